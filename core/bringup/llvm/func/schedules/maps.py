"""Kernels that fold nothing: units of a block of the lane axis."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain

from bringup.graph.index import Axis
from bringup.integers import round_up
from bringup.kernel.form import Kernel
from bringup.llvm.func.schedules.parts import split_whole
from bringup.llvm.loops.heuristics import LOOPS
from bringup.llvm.loops.schedule import Schedule as Plan
from bringup.loops.schedule import Step


def map_steps(plan: Plan) -> list[Step]:
    """Units of a block of the lane axis, each in whole register tiles, then whole vectors, then a
    masked vector.
    """
    lane = plan.lane
    if lane is None or plan.lanes == 1 or any(d.role == "tile" for d in plan.kernel.buffers):
        return []
    name = f"g{lane.id}"
    if plan.square:
        return _squares(plan, name)
    steps: list[Step] = []
    whole = name
    nest = [f"g{axis.id}" for axis in plan.kernel.grid if axis not in (lane, plan.last)]
    last = [] if plan.last is None else [f"g{plan.last.id}"]
    seams = _seams(plan.kernel, lane, plan.lanes)
    if any(seams) and _has_whole_rows(plan, lane):
        return _between_seams(plan, lane, seams)
    if plan.block < lane.size:
        whole = f"{name}.i"
        steps.append(Step("split", (name, f"{name}.o", whole, plan.block)))
        nest.append(f"{name}.o")
    nest += [*last, whole]
    if len(nest) > 1:
        steps.append(Step("reorder", tuple(nest)))
        steps.append(Step("hoist", (whole,)))
    return steps + _lanes(plan, whole, lane.size, min(plan.block, lane.size))


def _has_whole_rows(plan: Plan, lane: Axis) -> bool:
    """Whether a unit may be a row, which is not cut into blocks."""
    rows = math.prod(axis.size for axis in plan.kernel.grid if axis != lane)
    is_cut = plan.block < lane.size and rows < LOOPS.seam_rows
    return plan.last is None and len(plan.kernel.grid) > 1 and not is_cut


def _seams(kernel: Kernel, axis: Axis, lanes: int) -> tuple[int, int]:
    """How many iterations are peeled off at the beginning and the end of an axis.

    Rolls and pads have masks there that hold everywhere between.  What is peeled is vectors, so
    that those between begin where they would without it.
    """
    size, most = axis.size, axis.size // LOOPS.seam_part
    cuts = [cut for cut in _cuts(kernel, axis) if 0 < cut < size]
    first = round_up(max((cut for cut in cuts if cut <= most), default=0), lanes)
    last = size - min((cut for cut in cuts if cut >= size - most), default=size)
    if last:
        last += (size - first - last) % lanes
    return (first, last) if first + last <= most else (0, 0)


def _cuts(kernel: Kernel, lane: Axis) -> Iterator[int]:
    """The positions on an axis at which masks that depend on it alone begin or cease to hold."""
    for stage in kernel.stages:
        masks = [instr.attrs.get("mask", ()) for instr in stage.body.instrs]
        for bound in (*chain(*masks), *chain(*(store.mask for store in stage.stores))):
            if bound.expr.terms == ((lane, 1),):
                yield from (bound.low - bound.expr.const, bound.high - bound.expr.const)
            elif bound.expr.terms == ((lane, -1),):
                yield from (bound.expr.const - bound.low + 1, bound.expr.const - bound.high + 1)


def _between_seams(plan: Plan, lane: Axis, seams: tuple[int, int]) -> list[Step]:
    """Rows whose ends are masked vectors, and the first and last rows as units of their own."""
    whole = f"g{lane.id}"
    outer = [axis for axis in plan.kernel.grid if axis != lane]
    steps = [
        Step("reorder", (*(f"g{axis.id}" for axis in outer), whole)),
        Step("hoist", (whole,)),
    ]
    rows = _seams(plan.kernel, outer[0], 1)
    if any(rows) and plan.kernel.points >= LOOPS.seam_points:
        steps.append(Step("peel", (f"g{outer[0].id}", *rows)))
    middle = lane.size - sum(seams)
    steps += [Step("peel", (whole, *seams)), *_lanes(plan, whole, middle, middle)]
    vectors: list[str] = []
    for part, count in zip((f"{whole}.first", f"{whole}.last"), seams, strict=True):
        if count > plan.lanes:
            steps.append(Step("split", (part, f"{part}.b", f"{part}.v", plan.lanes)))
            steps.append(Step("serialize", (f"{part}.b",)))
            vectors.append(f"{part}.v")
        elif count:
            vectors.append(part)
    return [*steps, Step("vectorize", tuple(vectors))]


def _squares(plan: Plan, name: str) -> list[Step]:
    """Blocks of the lane axis and of the one along which loads are contiguous, in whole squares.

    The copies of a row of a square read side by side what its lanes read far apart.
    """
    assert plan.last is not None
    lanes, block, other = plan.lanes, plan.block, f"g{plan.last.id}"
    outer = [f"g{a.id}" for a in plan.kernel.grid if a not in (plan.lane, plan.last)]
    return [
        Step("split", (name, f"{name}.o", f"{name}.i", block)),
        Step("split", (other, f"{other}.o", f"{other}.i", block)),
        Step("split", (f"{name}.i", f"{name}.b", f"{name}.v", lanes)),
        Step("split", (f"{other}.i", f"{other}.b", f"{other}.u", lanes)),
        Step(
            "reorder",
            (
                *outer, f"{other}.o", f"{name}.o", f"{other}.b", f"{name}.b", f"{other}.u",
                f"{name}.v",
            ),
        ),
        Step("unroll", (f"{other}.u",)),
        Step("vectorize", (f"{name}.v",)),
        Step("serialize", (f"{other}.b", f"{name}.b")),
    ]  # fmt: skip


def _lanes(plan: Plan, whole: str, total: int, size: int) -> list[Step]:
    """The loop ``whole`` over a lane axis, or blocks of it, in vectors.

    total: the length of the axis.  size: that of a block.
    """
    lanes, width = plan.lanes, plan.lanes * plan.columns
    assert plan.lane is not None
    name = f"g{plan.lane.id}"
    steps: list[Step] = []
    serial, vectors = [], []
    if size >= width:
        if plan.columns > 1:
            steps.append(split_whole(whole, f"{name}.b", f"{name}.w", width))
            steps.append(split_whole(f"{name}.w", f"{name}.c", f"{name}.v", lanes))
            steps.append(Step("unroll", (f"{name}.c",)))
        else:
            steps.append(split_whole(whole, f"{name}.b", f"{name}.v", width))
        serial.append(f"{name}.b")
        vectors.append(f"{name}.v")
        whole = f"{whole}.t"
    count, left = divmod(total % width, lanes)
    if count:
        steps.append(split_whole(whole, f"{name}.r", f"{name}.u", lanes))
        serial.append(f"{name}.r")
        vectors.append(f"{name}.u")
        whole = f"{whole}.t"
    if left:
        vectors.append(whole)
    steps.append(Step("vectorize", tuple(vectors)))
    return [*steps, Step("serialize", tuple(serial))] if serial else steps


__all__ = ["map_steps"]

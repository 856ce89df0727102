"""Kernels that fold nothing: units of a block of the lane axis."""

from __future__ import annotations

from bringup.graph.index import Axis
from bringup.llvm.func.schedules.parts import split_whole
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
    if plan.block < lane.size:
        whole = f"{name}.i"
        steps.append(Step("split", (name, f"{name}.o", whole, plan.block)))
        nest.append(f"{name}.o")
    nest += [*last, whole]
    if len(nest) > 1:
        steps.append(Step("reorder", tuple(nest)))
        steps.append(Step("hoist", (whole,)))
    return steps + _lanes(plan, lane, whole)


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


def _lanes(plan: Plan, lane: Axis, whole: str) -> list[Step]:
    """The loop ``whole`` over a lane axis, or a block of it, in vectors."""
    lanes, width = plan.lanes, plan.lanes * plan.columns
    size, name = min(plan.block, lane.size), f"g{lane.id}"
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
    count, left = divmod(lane.size % width, lanes)
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

"""Kernels without loops that read along one axis and write along another, as transpositions do.

Square tiles go through shared memory, so that neighbouring threads both read and write neighbouring
elements.
"""

from __future__ import annotations

from dataclasses import replace

from bringup.dtypes import DType
from bringup.graph import Instr
from bringup.graph.index import Axis, Expr
from bringup.integers import ceil_div
from bringup.kernel.form import Kernel
from bringup.llvm.scalar import memory_type
from bringup.llvm.simt.access import accesses, vector_width
from bringup.llvm.simt.maps import lane_of
from bringup.llvm.simt.target import SHARED_BYTES
from bringup.loops.schedule import Schedule, Step
from bringup.records import record
from bringup.target import Target

#: Elements of a thread along the side of a tile, if each takes no more words of it than this; half
#: as many otherwise.
_UNROLL, _WORDS = 8, 2


@record
class TransposePlan:
    """Which axes are exchanged.

    lane: the axis along which most accesses are contiguous.
    other: the axis along which the remaining ones are, which go through shared memory.
    loads: these loads, or none if all stores are.
    lanes: neighbouring elements of a thread.
    """

    lane: Axis
    other: Axis
    loads: tuple[Instr, ...]
    lanes: int = 1

    def staged_dtypes(self, kernel: Kernel) -> tuple[DType, ...]:
        """The dtypes of the values that go through shared memory."""
        if self.loads:
            return tuple(load.result.dtype for load in self.loads)
        return tuple(value.dtype for value in kernel.stages[0].body.outputs)

    def tile_bytes(self, kernel: Kernel, side: int, lanes: int) -> int:
        """Shared memory of the tiles of all values."""
        bits = sum(memory_type(dtype).bits for dtype in self.staged_dtypes(kernel))
        return side * (side + lanes) * bits // 8

    def scalars(self, kernel: Kernel) -> list[int]:
        """The numbers of these values: loops call scalars by the instructions' order."""
        body = kernel.stages[0].body
        staged = [load.result for load in self.loads] or body.outputs
        numbers = {instr.result: number for number, instr in enumerate(body.instrs)}
        return list(dict.fromkeys(numbers[value] for value in staged))

    def words(self, kernel: Kernel) -> int:
        """32-bit words that a thread exchanges per position."""
        bits = (memory_type(dtype).bits * self.lanes for dtype in self.staged_dtypes(kernel))
        return sum(ceil_div(each, 32) for each in bits)


def transpose_plan(kernel: Kernel, target: Target) -> TransposePlan | None:
    """The plan for a kernel without loops that is faster in tiles, None for others."""
    lane = lane_of(kernel)
    if lane is None or len(kernel.stages) != 1 or kernel.stages[0].folds:
        return None
    stage = kernel.stages[0]
    best: TransposePlan | None = None
    for other in kernel.grid:
        if other == lane or min(lane.size, other.size) < target.warp // 2:
            continue
        if all(_crosses(s.index, lane, other) for s in stage.stores):
            return _fitting(kernel, TransposePlan(lane, other, ()), target)
        loads = tuple(
            i for i in stage.loads() if not i.operands and _crosses(i.attrs["index"], lane, other)
        )
        if loads and (best is None or len(loads) > len(best.loads)):
            best = TransposePlan(lane, other, loads)
    return best and _fitting(kernel, best, target)


def _fitting(kernel: Kernel, plan: TransposePlan, target: Target) -> TransposePlan | None:
    """The plan with tiles that fit shared memory, if some do."""
    warp, lanes = target.warp, _lanes(kernel, plan)
    while lanes > 1 and plan.tile_bytes(kernel, warp * lanes, lanes) > SHARED_BYTES:
        lanes //= 2
    while plan.loads[1:] and plan.tile_bytes(kernel, warp * lanes, lanes) > SHARED_BYTES:
        plan = replace(plan, loads=plan.loads[:-1])
    if plan.tile_bytes(kernel, warp * lanes, lanes) > SHARED_BYTES:
        return None
    return replace(plan, lanes=lanes)


def _crosses(index: Expr, lane: Axis, other: Axis) -> bool:
    """Whether an access is contiguous along ``other`` and jumps along ``lane``."""
    stride = index.coefficient(lane)
    return index.coefficient(other) == 1 and (stride is None or abs(stride) > 1)


def transpose_steps(kernel: Kernel, plan: TransposePlan, target: Target) -> Schedule:
    """The steps of a kernel in tiles; see `transpose_plan`.

    A block ``b`` has a tile, loops ``p`` along the other axis and ``q`` along the lane axis.  One
    nest fills shared memory along one of them, the other one reads it along the other.  Threads are
    ``y`` and ``x``; each has ``k`` lines of vectors ``v``.
    """
    lane, other, lanes = f"g{plan.lane.id}", f"g{plan.other.id}", plan.lanes
    side, lines = target.warp * lanes, _lines(kernel, plan, target)
    grid = [f"g{axis.id}" for axis in kernel.grid]
    outer = [name for name in grid if name not in (lane, other)]
    steps: list[Step] = []
    if [*outer, other, lane] != grid:
        steps.append(Step("reorder", (*outer, other, lane)))
    steps += [
        Step("split", (other, f"{other}.o", "p", side)),
        Step("split", (lane, f"{lane}.o", "q", side)),
        Step("reorder", (f"{lane}.o", "p")),
    ]
    blocks = [*outer, f"{other}.o", f"{lane}.o"]
    name = blocks[0]
    for axis in blocks[1:]:
        steps.append(Step("fuse", (name, axis, f"{name}.{axis}")))
        name = f"{name}.{axis}"
    steps.append(Step("bind", (name, "block")))
    along, across = ("p", "q") if plan.loads else ("q", "p")
    scalars = [f"%{number}" for number in plan.scalars(kernel)]
    steps.append(Step("share", (across, along, *scalars), (("pad", lanes),)))
    threads: list[str] = []
    unroll: list[str] = []
    for slow, fast in ((f"{across}.in", f"{along}.in"), (along, across)):
        order = [f"{slow}.y", f"{fast}.x", f"{slow}.k"]
        steps.append(Step("split", (slow, order[0], order[2], side // lines)))
        if lanes > 1:
            order.append(f"{fast}.v")
            steps.append(Step("split", (fast, order[1], order[3], lanes)))
        else:
            order[1] = fast
        steps.append(Step("reorder", tuple(order)))
        unroll.append(order[2])
        threads += order[1::-1]
    steps.append(Step("unroll", tuple(unroll)))
    if lanes > 1:
        steps.append(Step("vectorize", (f"{along}.in.v", f"{across}.v")))
    return Schedule((*steps, Step("bind", (*threads, "thread"))))


def _lines(kernel: Kernel, plan: TransposePlan, target: Target) -> int:
    """Lines of threads.  Few of them make each thread have many loads in flight."""
    unroll = _UNROLL if plan.words(kernel) <= _WORDS else _UNROLL // 2
    return max(1, min(target.most_threads // target.warp, target.warp * plan.lanes // unroll))


def registers_needed(kernel: Kernel, plan: TransposePlan, target: Target) -> int:
    """Registers of a thread for what it exchanges."""
    side = target.warp * plan.lanes
    return 2 * (side // _lines(kernel, plan, target) * plan.words(kernel))


def _lanes(kernel: Kernel, plan: TransposePlan) -> int:
    """Neighbouring elements that a thread takes, so that narrow elements fill words."""
    listed = list(accesses(kernel, kernel.stages))
    crossing = [a for a in listed if _crosses(a.index, plan.lane, plan.other)]
    others = [a for a in listed if a not in crossing]
    most = max(1, 32 // max(a.bits for a in listed))

    def fits(lanes: int) -> bool:
        return not (plan.lane.size % lanes or plan.other.size % lanes)

    return min(
        most, vector_width(others, plan.lane, fits), vector_width(crossing, plan.other, fits)
    )

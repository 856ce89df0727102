"""Kernels without loops: each thread computes a few neighbouring grid points, several times."""

from __future__ import annotations

from bringup.graph.index import Axis
from bringup.integers import ceil_power_of_two
from bringup.kernel.form import Kernel
from bringup.llvm.simt.access import accesses, cost_of, fetched_bytes, unroll_for, vector_width
from bringup.loops.schedule import Schedule, Step
from bringup.maths import ELEMENTARY
from bringup.records import record
from bringup.target import Target

#: Loads of a thread in flight that are enough, wide loads that are enough, and bytes in flight that
#: are enough: a multiprocessor with 1,000 threads then has twice the bytes that its share of the
#: memory bandwidth delivers in a latency of 700 ns.
_LOADS, _WIDE_LOADS, _BYTES = 16, 8, 32
#: Registers that eight elements of these ops need; with fewer, the assembler spills.
_REGISTERS = {
    **dict.fromkeys(ELEMENTARY, 12),
    **dict.fromkeys(("sin", "cos", "tan", "pow", "atan", "atan2"), 40),
    "div": 8,
    "rem": 24,
    "sqrt": 8,
    "convert": 4,
}


@record
class MapPlan:
    """How the grid is mapped to threads.

    lane: the axis of which a thread takes ``lanes`` neighbours; it becomes the last of the grid.
    unroll: positions that a thread computes at once.
    threads: of a block.
    loads: of a thread in flight.
    """

    lane: Axis | None
    lanes: int
    unroll: int
    threads: int
    loads: int = 1


def lane_of(kernel: Kernel) -> Axis | None:
    """The grid axis along which most accesses are contiguous; stores count three times."""
    stores = {s.buffer for stage in kernel.stages for s in stage.stores}
    listed = list(accesses(kernel, kernel.stages))

    def score(axis: Axis) -> tuple[int, int]:
        near = [a for a in listed if a.index.coefficient(axis) == 1 and axis not in a.axes]
        return sum(3 if a.buffer in stores else 1 for a in near), axis.id

    return max(kernel.grid, key=score, default=None)


def plan(kernel: Kernel, target: Target) -> MapPlan:
    """Choose lanes, unroll factor and threads."""
    lane = lane_of(kernel)
    if lane is None:
        return MapPlan(None, 1, 1, target.warp)
    alone = len(kernel.grid) == 1
    lanes = vector_width(
        accesses(kernel, kernel.stages),
        lane,
        lambda n: n <= lane.size and (alone or not lane.size % n),
    )
    steps = kernel.points // lane.size * (lane.size // lanes)
    size = sum(cost_of(s) for s in kernel.stages)
    nbytes = sum(fetched_bytes(kernel, s, lane, lanes) for s in kernel.stages)
    unroll = unroll_for(size, nbytes, _BYTES)
    loads = sum(1 for s in kernel.stages for _ in s.loads())
    most = _WIDE_LOADS if nbytes >= _BYTES // 4 * loads else _LOADS
    while unroll > 1 and unroll * loads > most:
        unroll //= 2
    while unroll > 1 and steps < unroll * target.threads:
        unroll //= 2
    threads = min(target.block, max(target.warp, ceil_power_of_two(steps)))
    return MapPlan(lane, lanes, unroll, threads, unroll * loads)


def map_steps(kernel: Kernel, mapping: MapPlan) -> Schedule:
    """The steps of a kernel none of whose stages loops.

    Blocks ``b`` compute a number of positions, each a vector ``v``.  Threads ``t`` have ``k``
    positions of a whole block at once, and those of the last one, if it is shorter, one by one.
    """
    if mapping.lane is None:
        return Schedule()
    maker = _MapSteps(mapping)
    maker.run(kernel, mapping.lane)
    return Schedule(tuple(maker.steps))


def flat_grid(kernel: Kernel, lane: Axis, lanes: int) -> tuple[list[Step], str]:
    """The loops of the grid as one, that of vectors ``v`` of ``lanes`` points along an axis that
    they divide; with the name of that loop.
    """
    name, grid = f"g{lane.id}", [f"g{axis.id}" for axis in kernel.grid]
    outer = [each for each in grid if each != name]
    steps: list[Step] = []
    if [*outer, name] != grid:
        steps.append(Step("reorder", (*outer, name)))
    if lanes > 1:
        steps.append(Step("split", (name, f"{name}.o", "v", lanes)))
        name = f"{name}.o"
    name, *inner = (*outer, name)
    for each in inner:
        steps.append(Step("fuse", (name, each, f"{name}.{each}")))
        name = f"{name}.{each}"
    return steps, name


class _MapSteps:
    def __init__(self, mapping: MapPlan) -> None:
        self.mapping = mapping
        self.steps: list[Step] = []
        self.kinds: list[Step] = []
        self.threads: list[str] = []

    def step(self, name: str, *args: str | int, tail: str = "") -> None:
        self.steps.append(Step(name, args, (("tail", tail),) if tail else ()))

    def run(self, kernel: Kernel, lane: Axis) -> None:
        lanes, block = self.mapping.lanes, self.mapping.threads * self.mapping.unroll
        if lane.size % lanes:
            self.partial_vectors(f"g{lane.id}", lane.size, block * lanes)
        else:
            steps, name = flat_grid(kernel, lane, lanes)
            self.steps += steps
            count = kernel.points // lanes
            self.blocks(name, block)
            if count >= block or self.mapping.unroll == 1:
                self.whole("i")
            if count % block and self.mapping.unroll > 1:
                self.rest(f"{name}.t", count % block)
        if lanes > 1:
            self.step("vectorize", "v")
        self.steps += self.kinds
        self.step("bind", "b", "block")
        self.step("bind", *self.threads, "thread")

    def blocks(self, name: str, block: int) -> None:
        """Blocks of positions; threads that have several of them have other code for the last."""
        self.step("split", name, "b", "i", block, tail="branch" if self.mapping.unroll > 1 else "")

    def partial_vectors(self, name: str, size: int, block: int) -> None:
        """A lane axis whose last elements fill no vector; it is the only axis."""
        lanes, rest = self.mapping.lanes, f"{name}.t"
        # One block takes the elements that are left, too.
        self.blocks(name, size if block < size < block + lanes else block)
        if self.mapping.unroll == 1:
            self.step("split", "i", "i.o", "v", lanes, tail="peel")
            self.threads += ["i.o", "i.t"]
            return
        if size >= block:
            self.step("split", "i", "i.o", "v", lanes)
            self.whole("i.o")
        count, left = divmod(size % block, lanes)
        if count:
            vector = "v" if size < block else "w"
            self.step("split", rest, f"{rest}.o", vector, lanes, tail="peel")
            if vector == "w":
                self.kinds.append(Step("vectorize", ("w",)))
            self.rest(f"{rest}.o", count)
            rest = f"{rest}.t"
        if left:
            self.threads.append(rest)

    def whole(self, name: str) -> None:
        """The positions of a whole block."""
        if self.mapping.unroll == 1:
            self.threads.append(name)
            return
        self.step("split", name, "k", "t", self.mapping.threads)
        self.step("reorder", "t", "k")
        self.kinds.append(Step("unroll", ("k",)))
        self.threads.append("t")

    def rest(self, name: str, count: int) -> None:
        """The positions of the last block."""
        if count <= self.mapping.threads:
            self.threads.append(name)
            return
        self.step("split", name, "r", "s", self.mapping.threads)
        self.kinds.append(Step("serialize", ("r",)))
        self.threads.append("s")


def registers_needed(kernel: Kernel, mapping: MapPlan) -> int:
    """Registers of a thread for its loads, and for the ops on all of its elements at once."""
    narrow = all(d.type.dtype.bits < 64 for d in kernel.buffers)
    names = [i.op.name for s in kernel.stages for i in s.body.instrs]
    ops = sum(_REGISTERS.get(name, 0) for name in names if not (narrow and name == "convert"))
    return mapping.lanes * mapping.loads // 2 + mapping.lanes * mapping.unroll * ops // 8

"""Kernels without loops: each thread computes a few neighbouring grid points, several times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from bringup.graph.index import Axis
from bringup.integers import ceil_div, ceil_power_of_two
from bringup.kernel.form import Fold, Kernel, Stage, Store
from bringup.llvm.body import Position, accumulate, start
from bringup.llvm.scalar import FLOAT_ONLY
from bringup.llvm.simt.access import accesses, cost_of, fetched_bytes, unroll_for, vector_width
from bringup.llvm.simt.body import UNROLL_AXIS, SimtBody, UnrolledPoint
from bringup.llvm.simt.frame import AxisValues, SimtFrame, steps_of
from bringup.llvm.simt.target import SimtKernel, SimtTarget
from bringup.llvm.text import Module, Val
from bringup.records import record

#: Loads of a thread in flight that are enough, wide loads that are enough, and bytes in flight that
#: are enough: a multiprocessor with 1,000 threads then has twice the bytes that its share of the
#: memory bandwidth delivers in a latency of 700 ns.
_LOADS, _WIDE_LOADS, _BYTES = 16, 8, 32
#: Registers that eight elements of these ops need; with fewer, the assembler spills.
_REGISTERS = {
    **dict.fromkeys(FLOAT_ONLY, 12),
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


def plan(kernel: Kernel, target: SimtTarget) -> MapPlan:
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
    while unroll > 1 and steps < unroll * target.full:
        unroll //= 2
    threads = min(target.block, max(target.warp, ceil_power_of_two(steps)))
    return MapPlan(lane, lanes, unroll, threads, unroll * loads)


def emit_map(
    module: Module, kernel: Kernel, name: str, target: SimtTarget, constant: frozenset[int]
) -> SimtKernel:
    """Emit a kernel none of whose stages loops, with at least one grid point."""
    mapping = plan(kernel, target)
    if mapping.lane is not None:
        grid = (*(a for a in kernel.grid if a != mapping.lane), mapping.lane)
        ordered = replace(kernel, grid=grid)
    else:
        ordered = kernel
    frame = SimtFrame(
        module, ordered, name, target, mapping.threads, constant, _registers(kernel, mapping)
    )
    return _MapEmitter(frame, mapping).run()


def _registers(kernel: Kernel, mapping: MapPlan) -> int:
    """Registers of a thread for its loads, and for the ops on all of its elements at once."""
    narrow = all(d.type.dtype.bits < 64 for d in kernel.buffers)
    names = [i.op.name for s in kernel.stages for i in s.body.instrs]
    ops = sum(_REGISTERS.get(name, 0) for name in names if not (narrow and name == "convert"))
    return mapping.lanes * mapping.loads // 2 + mapping.lanes * mapping.unroll * ops // 8


class _MapEmitter:
    def __init__(self, frame: SimtFrame, plan: MapPlan) -> None:
        self.frame, self.plan, self.b = frame, plan, frame.b
        self.kernel = frame.kernel
        self.thread = frame.read(frame.target.thread)
        lanes = {plan.lane: plan.lanes} if plan.lane is not None else {}
        self.parts = steps_of(self.kernel.grid, lanes)
        self.steps = prod(count for _, count, _ in self.parts)
        #: Elements of the lane axis that fill no vector.
        self.left = plan.lane.size % plan.lanes if plan.lane is not None else 0

    def run(self) -> SimtKernel:
        f, b, p = self.frame, self.b, self.plan
        chunk = p.threads * p.unroll
        units = ceil_div(self.steps, chunk)
        with f.units(units) as (unit, _):
            start = b.mul(unit, f.const(chunk))
            first = b.add(start, self.thread)
            if self.steps % chunk == 0:
                self._whole(first)
            elif p.unroll == 1:
                with b.if_then(b.icmp("ult", first, f.const(self.steps))):
                    self._whole(first)
            else:
                fits = b.icmp("ule", start, f.const(max(self.steps - chunk, 0)))
                if self.steps < chunk:
                    self._partial(first)
                else:
                    b.cond(fits, lambda: self._whole(first), lambda: self._partial(first), True)
            if self.left:
                self._tail(b.icmp("eq", unit, f.const(units - 1)))
        return f.done(units)

    def _whole(self, first: Val) -> None:
        f, p = self.frame, self.plan
        steps = [self.b.add(first, f.const(k * p.threads), "nuw nsw") for k in range(p.unroll)]
        self._points([f.split(step, self.parts) for step in steps], p.lanes)

    def _partial(self, first: Val) -> None:
        """A block in which some threads have fewer points than the unroll factor."""
        f, p = self.frame, self.plan
        with self.b.loop(first, f.const(self.steps), p.threads) as loop:
            self._points([f.split(loop.index, self.parts)], p.lanes)

    def _tail(self, is_last: Val) -> None:
        """The points that fill no vector, one for each thread of the last block."""
        f, b, p = self.frame, self.b, self.plan
        assert p.lane is not None, "points are left over along an axis"
        mine = b.and_(is_last, b.icmp("ult", self.thread, f.const(self.left)))
        with b.if_then(mine, likely=False):
            index = b.add(self.thread, f.const(self.steps * p.lanes))
            self._points([{p.lane: index}], 1)

    def _points(self, values: Sequence[AxisValues], lanes: int) -> None:
        points = [UnrolledPoint(each) for each in values]
        registers: list[list[Val]] = []
        for stage in self.kernel.stages:
            registers += self._stage(stage, points, lanes, registers)

    def _stage(
        self,
        stage: Stage,
        points: Sequence[UnrolledPoint],
        lanes: int,
        registers: Sequence[list[Val]],
    ) -> list[list[Val]]:
        """Emit a stage; returns the results of its folds by point."""
        f = self.frame
        grid = frozenset(self.kernel.grid)
        body = SimtBody(self.b, stage, f.pointers, (self.plan.lane, lanes), grid, f.state)
        for n, values in enumerate(registers):
            by_position: dict[Position, Val] = {(k,): value for k, value in enumerate(values)}
            body.give(n, by_position, frozenset({UNROLL_AXIS}), varying=values[0].type.lanes > 1)
        body.analyse()
        frame = body.emit(range(1), points)
        results: list[list[Val]] = []
        for value, sink in zip(stage.body.outputs, stage.sinks, strict=True):
            if isinstance(sink, Fold):
                first = start(sink, lanes, False)
                results.append([
                    accumulate(body, sink, value, position, first, lanes, None)
                    for position in frame.positions()
                ])  # fmt: skip
        for value, sink in zip(stage.body.outputs, stage.sinks, strict=True):
            if isinstance(sink, Store):
                dtype = self.kernel.buffers[sink.buffer].type.dtype
                body.put(value, dtype, (sink.buffer, sink.index, sink.mask), frame)
        return results

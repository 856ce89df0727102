"""Kernels without loops: each thread takes a few neighbouring grid points, at several places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from bringup.kernel.form import Fold, Kernel, Stage, Store
from bringup.kernel.index import Axis
from bringup.llvm.body import Position, accumulate, start
from bringup.llvm.scalar import FLOAT_ONLY
from bringup.llvm.simt.access import Access, accesses, copies_for, cost_of, fetched_bytes, width
from bringup.llvm.simt.body import COPY, Copy, SimtBody
from bringup.llvm.simt.frame import Bases, SimtFrame, steps_of
from bringup.llvm.simt.target import SimtKernel, SimtTarget
from bringup.llvm.text import Module, Val
from bringup.records import record

#: Loads of a thread on their way at once that are enough, and bytes of them: a multiprocessor with
#: 1,000 threads has twice what 700 ns of its share of memory come to.
_LOADS, _WIDE_LOADS, _BYTES = 16, 8, 32


#: Registers for eight elements in ops of many instructions: fewer, and the assembler keeps some in
#: memory.
_LONG = {
    **dict.fromkeys(FLOAT_ONLY, 12),
    **dict.fromkeys(("sin", "cos", "tan", "pow", "atan", "atan2"), 40),
    "div": 8,
    "rem": 24,
    "sqrt": 8,
    "convert": 4,
}


@record
class MapPlan:
    """lane: the axis of which a thread takes ``lanes`` neighbours; the last of the grid.
    copies: places at once.  threads: of a block.  loads: of a thread at once.
    """

    lane: Axis | None
    lanes: int
    copies: int
    threads: int
    loads: int = 1


def lane_of(kernel: Kernel) -> Axis | None:
    """The grid axis along which most accesses, and stores above all, are side by side."""
    stores = {s.buffer for stage in kernel.stages for s in stage.stores}
    found = list(accesses(kernel, kernel.stages))

    def score(axis: Axis) -> tuple[int, int]:
        near = [a for a in found if a.index.coefficient(axis) == 1 and axis not in a.axes]
        return sum(3 if a.buffer in stores else 1 for a in near), axis.id

    return max(kernel.grid, key=score, default=None)


def plan(kernel: Kernel, target: SimtTarget) -> MapPlan:
    """Choose lanes, copies and threads."""
    lane = lane_of(kernel)
    if lane is None:
        return MapPlan(None, 1, 1, target.warp)
    found: Sequence[Access] = list(accesses(kernel, kernel.stages))
    alone = len(kernel.grid) == 1
    lanes = width(found, lane, lambda n: n <= lane.size and (alone or not lane.size % n))
    steps = kernel.points // lane.size * (lane.size // lanes)
    size = sum(cost_of(s) for s in kernel.stages)
    nbytes = sum(fetched_bytes(kernel, s, lane, lanes) for s in kernel.stages)
    copies = copies_for(size, nbytes, _BYTES)
    loads = sum(1 for s in kernel.stages for _ in s.loads())
    most = _WIDE_LOADS if nbytes >= _BYTES // 4 * loads else _LOADS
    while copies > 1 and copies * loads > most:
        copies //= 2
    while copies > 1 and steps < copies * target.full:
        copies //= 2
    threads = min(target.block, max(target.warp, 1 << (steps - 1).bit_length()))
    return MapPlan(lane, lanes, copies, threads, copies * loads)


def emit_map(
    module: Module, kernel: Kernel, name: str, target: SimtTarget, constant: frozenset[int]
) -> SimtKernel:
    """Emit a kernel none of whose stages loops, with at least one grid point."""
    made = plan(kernel, target)
    grid = kernel.grid
    if made.lane is not None:
        grid = (*(a for a in grid if a != made.lane), made.lane)
    ordered, held = replace(kernel, grid=grid), _held(kernel, made)
    frame = SimtFrame(module, ordered, name, target, made.threads, constant, held)
    return _MapEmitter(frame, made).run()


def _held(kernel: Kernel, made: MapPlan) -> int:
    """Registers of a thread for what it loads, and for functions of all of its elements at once."""
    narrow = all(d.type.dtype.bits < 64 for d in kernel.buffers)
    names = [i.op.name for s in kernel.stages for i in s.body.instrs]
    long = sum(_LONG.get(name, 0) for name in names if not (narrow and name == "convert"))
    return made.lanes * made.loads // 2 + made.lanes * made.copies * long // 8


class _MapEmitter:
    def __init__(self, frame: SimtFrame, plan: MapPlan) -> None:
        self.frame, self.plan, self.b = frame, plan, frame.b
        self.kernel = frame.kernel
        self.thread = frame.read(frame.target.thread)
        lanes = {plan.lane: plan.lanes} if plan.lane is not None else {}
        self.parts = steps_of(self.kernel.grid, lanes)
        self.steps = prod(count for _, count, _ in self.parts)
        self.left = plan.lane.size % plan.lanes if plan.lane is not None else 0

    def run(self) -> SimtKernel:
        f, b, p = self.frame, self.b, self.plan
        chunk = p.threads * p.copies
        units = -(-self.steps // chunk)
        with f.units(units) as (unit, _):
            start = b.mul(unit, f.number(chunk))
            first = b.add(start, self.thread)
            if self.steps % chunk == 0:
                self._whole(first)
            elif p.copies == 1:
                with b.if_then(b.icmp("ult", first, f.number(self.steps))):
                    self._whole(first)
            else:
                fits = b.icmp("ule", start, f.number(max(self.steps - chunk, 0)))
                if self.steps < chunk:
                    self._rest(first)
                else:
                    b.cond(fits, lambda: self._whole(first), lambda: self._rest(first), True)
            if self.left:
                self._last(b.icmp("eq", unit, f.number(units - 1)))
        return f.done(units)

    def _whole(self, first: Val) -> None:
        f, p = self.frame, self.plan
        at = [self.b.add(first, f.number(k * p.threads), "nuw nsw") for k in range(p.copies)]
        self._points([f.split(x, self.parts) for x in at], p.lanes)

    def _rest(self, first: Val) -> None:
        """A block of which not all copies exist."""
        f, p = self.frame, self.plan
        with self.b.loop(first, f.number(self.steps), p.threads) as loop:
            self._points([f.split(loop.index, self.parts)], p.lanes)

    def _last(self, here: Val) -> None:
        """Points that fill no vector, in the last block."""
        f, b, p = self.frame, self.b, self.plan
        assert p.lane is not None, "points are left over along an axis"
        mine = b.and_(here, b.icmp("ult", self.thread, f.number(self.left)))
        with b.if_then(mine, likely=False):
            at = b.add(self.thread, f.number(self.steps * p.lanes))
            self._points([{p.lane: at}], 1)

    def _points(self, bases: Sequence[Bases], lanes: int) -> None:
        copies = [Copy(each) for each in bases]
        registers: list[list[Val]] = []
        for stage in self.kernel.stages:
            registers += self._stage(stage, copies, lanes, registers)

    def _stage(
        self, stage: Stage, copies: Sequence[Copy], lanes: int, registers: Sequence[list[Val]]
    ) -> list[list[Val]]:
        f = self.frame
        grid = frozenset(self.kernel.grid)
        body = SimtBody(self.b, stage, f.pointers, (self.plan.lane, lanes), grid, f.kept)
        for n, values in enumerate(registers):
            given: dict[Position, Val] = {(k,): value for k, value in enumerate(values)}
            body.give(n, given, frozenset({COPY}), varying=values[0].type.lanes > 1)
        body.analyse()
        frame = body.emit(range(1), copies)
        made: list[list[Val]] = []
        for value, sink in zip(stage.body.outputs, stage.sinks, strict=True):
            if isinstance(sink, Fold):
                first = start(sink, lanes, False)
                made.append([
                    accumulate(body, sink, value, position, first, lanes, None)
                    for position in frame.positions()
                ])  # fmt: skip
        for value, sink in zip(stage.body.outputs, stage.sinks, strict=True):
            if isinstance(sink, Store):
                dtype = self.kernel.buffers[sink.buffer].type.dtype
                body.put(value, dtype, (sink.buffer, sink.index, sink.mask), frame)
        return made

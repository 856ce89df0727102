"""Kernels without loops that read across what they write, as transpositions do: square tiles go
through shared memory, so that neighbouring threads read and write neighbouring elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bringup.graph import Instr
from bringup.kernel.form import Kernel, Store
from bringup.kernel.index import Axis
from bringup.llvm import text as ir
from bringup.llvm.body import Frame
from bringup.llvm.scalar import memory_type
from bringup.llvm.simt_body import Copy, SimtBody
from bringup.llvm.simt_frame import Bases, SimtFrame
from bringup.llvm.simt_map import lane_of
from bringup.llvm.simt_target import SimtKernel, SimtTarget
from bringup.llvm.text import Module, Val, const
from bringup.records import record

#: Copies of a thread along the side of a tile.
_COPIES = 4


@record
class Turn:
    """loads: which read along ``other`` while stores go along ``lane``."""

    lane: Axis
    other: Axis
    loads: tuple[Instr, ...]


def turn_of(kernel: Kernel, target: SimtTarget) -> Turn | None:
    """Whether a kernel without loops is better run in tiles."""
    lane = lane_of(kernel)
    if lane is None or len(kernel.stages) != 1 or kernel.stages[0].folds:
        return None
    best: Turn | None = None
    for other in kernel.grid:
        if other == lane or min(lane.size, other.size) < target.warp // 2:
            continue
        loads = tuple(i for i in kernel.stages[0].loads() if _crosses(i, lane, other))
        if loads and (best is None or len(loads) > len(best.loads)):
            best = Turn(lane, other, loads)
    return best


def _crosses(load: Instr, lane: Axis, other: Axis) -> bool:
    index = load.attrs["index"]
    stride = index.coefficient(lane)
    return (
        not load.operands and index.coefficient(other) == 1 and (stride is None or abs(stride) > 1)
    )


def emit_turn(
    module: Module,
    kernel: Kernel,
    name: str,
    target: SimtTarget,
    constant: frozenset[int],
    turn: Turn,
) -> SimtKernel:
    """Emit a kernel in tiles; see `turn_of`."""
    rest = (a for a in kernel.grid if a not in (turn.lane, turn.other))
    turned = replace(kernel, grid=(*rest, turn.other, turn.lane))
    side = target.warp
    lines = max(1, min(target.block // side, side // _COPIES))
    frame = SimtFrame(module, turned, name, target, side * lines, constant)
    return _TurnEmitter(frame, turn, side, lines).run()


class _TurnEmitter:
    """side: of a tile, as many threads side by side.  lines: of threads."""

    def __init__(self, frame: SimtFrame, turn: Turn, side: int, lines: int) -> None:
        self.f, self.turn, self.side, self.lines = frame, turn, side, lines
        self.b, self.kernel = frame.b, frame.kernel
        self.stage = self.kernel.stages[0]
        thread = frame.read(frame.target.thread)
        self.near = self.b.and_(thread, frame.number(side - 1))
        self.far = self.b.lshr(thread, frame.number(side.bit_length() - 1))
        self.tiles = [
            frame.shared_array(f"turned{n}", self._element(load), side * (side + 1))
            for n, load in enumerate(turn.loads)
        ]

    def _element(self, load: Instr) -> ir.Type:
        return memory_type(load.result.dtype)

    def run(self) -> SimtKernel:
        f, side = self.f, self.side
        parts = [(a, a.size, 1) for a in self.kernel.grid[:-2]]
        parts += [(a, -(-a.size // side), side) for a in (self.turn.other, self.turn.lane)]
        units = 1
        for _, count, _ in parts:
            units *= count
        with f.units(units) as unit:
            corner = f.split(unit, parts)
            self._read(corner)
            f.barrier()
            self._write(corner)
            f.barrier()
        return f.done(units)

    def _copies(self, corner: Bases, along: Axis, across: Axis) -> list[Copy]:
        """Threads side by side run along ``along``."""
        b, f = self.b, self.f
        copies: list[Copy] = []
        for k in range(self.side // self.lines):
            far = b.add(self.far, f.number(k * self.lines))
            places = {along: self.near, across: far}
            bases, alive = dict(corner), None
            for axis, offset in places.items():
                at = b.add(corner[axis], offset)
                if axis.size % self.side:
                    here = b.icmp("ult", at, f.number(axis.size))
                    alive = here if alive is None else b.and_(alive, here)
                    at = f.clamped(at, axis.size)
                bases[axis] = at
            copies.append(Copy(bases, alive))
        return copies

    def _body(self) -> SimtBody:
        f = self.f
        grid = frozenset({self.turn.lane, self.turn.other})
        body = SimtBody(self.b, self.stage, f.pointers, (None, 1), grid, f.kept)
        body.analyse()
        return body

    def _read(self, corner: Bases) -> None:
        b, f = self.b, self.f
        body = self._body()
        frame = body.emit(range(0), self._copies(corner, self.turn.other, self.turn.lane))
        values = [body.fetch(load, frame) for load in self.turn.loads]
        for load, tile, some in zip(self.turn.loads, self.tiles, values, strict=True):
            for k, value in enumerate(some):
                line = b.add(self.far, f.number(k * self.lines))
                kept = b.zext(value, ir.i8) if value.type is ir.i1 else value
                b.store(kept, self._place(tile, line, self.near, self._element(load)))

    def _place(self, tile: Val, line: Val, at: Val, element: ir.Type) -> Val:
        b = self.b
        place = b.add(b.mul(line, self.f.number(self.side + 1)), at)
        return b.gep(tile, b.zext(place, ir.i64), element)

    def _write(self, corner: Bases) -> None:
        body = self._body()
        copies = self._copies(corner, self.turn.lane, self.turn.other)
        for load, tile in zip(self.turn.loads, self.tiles, strict=True):
            body.fetched[load] = self._turned(load, tile, len(copies))
        frame: Frame = body.emit(range(1), copies)
        for value, sink in zip(self.stage.body.outputs, self.stage.sinks, strict=True):
            assert isinstance(sink, Store), "a kernel in tiles folds nothing"
            dtype = self.kernel.buffers[sink.buffer].type.dtype
            body.put(value, dtype, (sink.buffer, sink.index, sink.mask), frame)

    def _turned(self, load: Instr, tile: Val, copies: int) -> Sequence[Val]:
        b, f, element = self.b, self.f, self._element(load)
        result: list[Val] = []
        for k in range(copies):
            at = b.add(self.far, f.number(k * self.lines))
            value = b.load(element, self._place(tile, self.near, at, element))
            is_bool = load.result.dtype.name == "bool"
            result.append(b.icmp("ne", value, const(ir.i8, 0)) if is_bool else value)
        return result


__all__ = ["Turn", "emit_turn", "turn_of"]

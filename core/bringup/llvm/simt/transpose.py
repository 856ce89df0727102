"""Kernels without loops that read across what they write, as transpositions do: square tiles go
through shared memory, so that neighbouring threads read and write neighbouring elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bringup.dtypes import DType
from bringup.graph import Instr
from bringup.kernel.form import Kernel, Store
from bringup.kernel.index import Axis, Expr
from bringup.llvm import text as ir
from bringup.llvm.body import Frame
from bringup.llvm.scalar import memory_type
from bringup.llvm.simt.access import accesses, width
from bringup.llvm.simt.body import Copy, SimtBody
from bringup.llvm.simt.frame import Bases, SimtFrame
from bringup.llvm.simt.map import emit_map, lane_of
from bringup.llvm.simt.target import SimtKernel, SimtTarget
from bringup.llvm.text import Module, Val, const, vec
from bringup.records import record

#: Copies of a thread along the side of a tile, and how many words of each go through it for that.
_COPIES, _WORDS = 8, 2
#: Bytes of static shared memory for tiles, of 48 KiB that any machine has.
_SHARED = 40 << 10


@record
class Turn:
    """How a kernel crosses memory.

    lane: along which most is read or written.  other: along which the rest is, which is turned:
    loads, or else all that is stored.
    """

    lane: Axis
    other: Axis
    loads: tuple[Instr, ...]

    def turned(self, kernel: Kernel) -> tuple[DType, ...]:
        """The dtypes of what goes through shared memory."""
        if self.loads:
            return tuple(load.result.dtype for load in self.loads)
        return tuple(value.dtype for value in kernel.stages[0].body.outputs)


def turn_of(kernel: Kernel, target: SimtTarget) -> Turn | None:
    """Whether a kernel without loops is better run in tiles."""
    lane = lane_of(kernel)
    if lane is None or len(kernel.stages) != 1 or kernel.stages[0].folds:
        return None
    stage = kernel.stages[0]
    best: Turn | None = None
    for other in kernel.grid:
        if other == lane or min(lane.size, other.size) < target.warp // 2:
            continue
        if all(_crosses(s.index, lane, other) for s in stage.stores):
            return Turn(lane, other, ())
        loads = tuple(
            i for i in stage.loads() if not i.operands and _crosses(i.attrs["index"], lane, other)
        )
        if loads and (best is None or len(loads) > len(best.loads)):
            best = Turn(lane, other, loads)
    return best


def _crosses(index: Expr, lane: Axis, other: Axis) -> bool:
    stride = index.coefficient(lane)
    return index.coefficient(other) == 1 and (stride is None or abs(stride) > 1)


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
    warp = target.warp
    wide = _wide(turned, turn)
    while wide > 1 and _tile_bytes(kernel, turn, warp * wide, wide) > _SHARED:
        wide //= 2
    while turn.loads[1:] and _tile_bytes(kernel, turn, warp * wide, wide) > _SHARED:
        turn = replace(turn, loads=turn.loads[:-1])
    if _tile_bytes(kernel, turn, warp * wide, wide) > _SHARED:
        return emit_map(module, kernel, name, target, constant)
    lines = _lines(kernel, turn, wide, target)
    held = warp * wide // lines * _turned_words(kernel, turn, wide)
    frame = SimtFrame(module, turned, name, target, warp * lines, constant, 2 * held)
    return _TurnEmitter(frame, turn, warp * wide, lines, wide).run()


def _tile_bytes(kernel: Kernel, turn: Turn, side: int, wide: int) -> int:
    bits = sum(memory_type(dtype).bits for dtype in turn.turned(kernel))
    return side * (side + wide) * bits // 8


def _turned_words(kernel: Kernel, turn: Turn, wide: int) -> int:
    """32-bit words of one position of a thread."""
    return sum(-(-memory_type(d).bits * wide // 32) for d in turn.turned(kernel))


def _lines(kernel: Kernel, turn: Turn, wide: int, target: SimtTarget) -> int:
    """Lines of threads: as many loads of each on their way as make up for few threads."""
    copies = _COPIES if _turned_words(kernel, turn, wide) <= _WORDS else _COPIES // 2
    return max(1, min(target.most // target.warp, target.warp * wide // copies))


def _wide(kernel: Kernel, turn: Turn) -> int:
    """Elements a thread takes side by side, so that narrow ones fill words."""
    found = list(accesses(kernel, kernel.stages))
    crossing = [a for a in found if _crosses(a.index, turn.lane, turn.other)]
    others = [a for a in found if a not in crossing]
    most = max(1, 32 // max(a.bits for a in found))
    sizes = (turn.lane.size, turn.other.size)

    def fits(lanes: int) -> bool:
        return not any(size % lanes for size in sizes)

    return min(most, width(others, turn.lane, fits), width(crossing, turn.other, fits))


class _TurnEmitter:
    """side: of a tile.  lines: of threads, each as wide as the tile.  wide: elements of a thread
    side by side.
    """

    def __init__(self, frame: SimtFrame, turn: Turn, side: int, lines: int, wide: int) -> None:
        self.f, self.turn, self.side, self.lines = frame, turn, side, lines
        self.wide = wide
        self.b, self.kernel = frame.b, frame.kernel
        self.stage = self.kernel.stages[0]
        thread = frame.read(frame.target.thread)
        across = side // wide
        near = self.b.and_(thread, frame.number(across - 1))
        self.near = self.b.mul(near, frame.number(wide))
        self.far = self.b.lshr(thread, frame.number(across.bit_length() - 1))
        #: From line to line of a tile: a word more than one is long, for other banks.
        self.pitch = side + wide
        self.dtypes = turn.turned(self.kernel)
        #: Whether the next tiles are filled while these are still read.
        self.doubled = 2 * _tile_bytes(self.kernel, turn, side, wide) <= _SHARED // 2
        self.arrays = [
            frame.shared_array(f"turned{n}", memory_type(dtype), (1 + self.doubled) * self._size)
            for n, dtype in enumerate(self.dtypes)
        ]
        self.tiles = self.arrays

    @property
    def _size(self) -> int:
        return self.side * self.pitch

    def run(self) -> SimtKernel:
        f, side = self.f, self.side
        parts = [(a, a.size, 1) for a in self.kernel.grid[:-2]]
        parts += [(a, -(-a.size // side), side) for a in (self.turn.other, self.turn.lane)]
        units = 1
        for _, count, _ in parts:
            units *= count
        with f.units(units) as (unit, turn):
            if self.doubled:
                self.tiles = self._tiles_of(turn)
            corner = f.split(unit, parts)
            self._read(corner)
            f.barrier()
            self._write(corner)
            if not self.doubled:
                f.barrier()
        return f.done(units)

    def _tiles_of(self, turn: Val) -> list[Val]:
        """Those of even or odd turns: before they are filled again, all meet in between."""
        b = self.b
        first = b.zext(b.mul(turn, self.f.number(self._size)), ir.i64)
        pairs = zip(self.arrays, self.dtypes, strict=True)
        return [b.gep(array, first, memory_type(dtype)) for array, dtype in pairs]

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
                    at = f.clamped(at, axis.size - (self.wide - 1 if axis == along else 0))
                bases[axis] = at
            copies.append(Copy(bases, alive))
        return copies

    def _body(self, along: Axis) -> SimtBody:
        f = self.f
        grid = frozenset({self.turn.lane, self.turn.other})
        body = SimtBody(self.b, self.stage, f.pointers, (along, self.wide), grid, f.kept)
        body.analyse()
        return body

    def _read(self, corner: Bases) -> None:
        """Fill the tiles."""
        turn = self.turn
        if turn.loads:
            body = self._body(turn.other)
            frame = body.emit(range(0), self._copies(corner, turn.other, turn.lane))
            values = [body.fetch(load, frame) for load in turn.loads]
        else:
            body = self._body(turn.lane)
            frame = body.emit(range(1), self._copies(corner, turn.lane, turn.other))
            values = [
                [body.at(value, position) for position in frame.positions()]
                for value in self.stage.body.outputs
            ]
        for n, some in enumerate(values):
            self._put(n, some)

    def _write(self, corner: Bases) -> None:
        """Store from the tiles, or what is computed from them."""
        turn = self.turn
        count = self.side // self.lines
        along, across = (turn.lane, turn.other) if turn.loads else (turn.other, turn.lane)
        body = self._body(along)
        for n, load in enumerate(turn.loads):
            body.fetched[load] = self._get(n, count)
        frame: Frame = body.emit(range(bool(turn.loads)), self._copies(corner, along, across))
        for n, (value, sink) in enumerate(
            zip(self.stage.body.outputs, self.stage.sinks, strict=True)
        ):
            assert isinstance(sink, Store), "a kernel in tiles folds nothing"
            where = (sink.buffer, sink.index, sink.mask)
            if turn.loads:
                body.put(value, value.dtype, where, frame)
                continue
            for position, found in zip(frame.positions(), self._get(n, count), strict=True):
                body.write(found, value.dtype, where, position, frame)

    def _place(self, tile: Val, line: Val, at: Val, element: ir.Type) -> Val:
        b = self.b
        place = b.add(b.mul(line, self.f.number(self.pitch)), at)
        return b.gep(tile, b.zext(place, ir.i64), element)

    def _put(self, n: int, values: Sequence[Val]) -> None:
        """Write what threads side by side have to lines of a tile."""
        b, f, element = self.b, self.f, memory_type(self.dtypes[n])
        for k, value in enumerate(values):
            line = b.add(self.far, f.number(k * self.lines))
            kept = b.zext(value, ir.i8) if value.type.scalar is ir.i1 else value
            kept = b.splat(kept, self.wide) if kept.type.lanes == 1 else kept
            align = element.bits * self.wide // 8
            b.store(kept, self._place(self.tiles[n], line, self.near, element), align)

    def _get(self, n: int, copies: int) -> list[Val]:
        """Read columns of a tile."""
        b, f, element = self.b, self.f, memory_type(self.dtypes[n])
        result: list[Val] = []
        for k in range(copies):
            at = b.add(self.far, f.number(k * self.lines))
            first = self._place(self.tiles[n], self.near, at, element)
            places = [b.gep(first, m * self.pitch, element) for m in range(self.wide)]
            parts = [b.load(element, place, element.bits // 8) for place in places]
            value = parts[0]
            if self.wide > 1:
                value = ir.poison(vec(element, self.wide))
                for m, part in enumerate(parts):
                    value = b.insertelement(value, part, m)
            is_bool = self.dtypes[n].name == "bool"
            result.append(b.icmp("ne", value, const(value.type, 0)) if is_bool else value)
        return result

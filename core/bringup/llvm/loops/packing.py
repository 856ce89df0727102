"""Packing: one factor of a contraction copied into panels, in the order a micro-kernel reads it.

A panel holds, for each inner index, the elements of so many rows (or columns) one after the other.
They are read through the kernel's own index maps and prologue, so that a transposition, a cast, a
mask or the patches of a convolution cost nothing but this pass.  Vectors run along the panel where
memory does, else along the inner axis, and are turned in squares; what jumps along both goes
element by element.  Where the micro-kernel takes pairs, they are joined in a last pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bringup.graph import Value
from bringup.kernel.contraction import Axes, Contraction, Factor, panel, size
from bringup.kernel.form import Stage
from bringup.kernel.index import Axis, Expr
from bringup.llvm import text as ir
from bringup.llvm.body import Frame, Position, Tile
from bringup.llvm.loops.blocking import Cut
from bringup.llvm.loops.body import VectorBody
from bringup.llvm.loops.schedule import score
from bringup.llvm.scalar import register_type
from bringup.llvm.text import (
    Builder,
    Callee,
    Module,
    Param,
    Val,
    const,
    const_vector,
    i64_const,
    vec,
)
from bringup.llvm.text.masked import masked_store
from bringup.llvm.transpose import turn

#: Inner indices that go through all panels before the next: what of each cache line one panel
#: leaves is still there for the next.
_ROWS_AT_ONCE = 8
#: The same where finding the places of a run costs more than reading a few rows of it.
_PATCHES_AT_ONCE = 36
#: Vectors of so many bits have masks of their own.
_FREE_MASKS = 512
#: Short loops are written out.
_UNROLLED = 12
#: Stands for all axes of the panel where vectors run along the inner axis.
_ELEMENT = -1


def below(b: Builder, count: Val, lanes: int) -> Val:
    """The lanes below a count."""
    places = const_vector(ir.i32, list(range(lanes)))
    return b.icmp("slt", places, b.splat(b.trunc(count, ir.i32), lanes))


def coordinates(b: Builder, flat: Val, axes: Axes) -> dict[Axis, Val]:
    """The places on axes of a row-major number."""
    found: dict[Axis, Val] = {}
    for n, axis in reversed(list(enumerate(axes))):
        found[axis] = b.urem(flat, i64_const(axis.size)) if n else flat
        flat = b.udiv(flat, i64_const(axis.size)) if n else flat
    return found


def pointers(b: Builder, contraction: Contraction, buffers: Val) -> list[Val]:
    """The address of every buffer of the kernel."""
    count = len(contraction.kernel.buffers)
    return [b.load(ir.ptr, b.gep(buffers, n, ir.ptr), 8) for n in range(count)]


#: Emits for a run of columns: their places, the first one's number, and which lanes exist.
Run = Callable[[dict[Axis, Val], Val, Val | None], None]


def runs(b: Builder, axes: Axes, first: Val, count: Val, sizes: tuple[int, int], body: Run) -> None:
    """Emit ``body`` for ``count`` columns from ``first`` on, in runs that neither a vector's end
    nor one of the last axis cuts.

    sizes: most columns, lanes.
    """
    most, lanes = sizes
    whole = min(most, lanes)
    with b.while_loop([i64_const(0)], lambda c: b.icmp("slt", c[0], count)) as loop:
        done = loop.carried[0]
        places = coordinates(b, b.add(first, done), axes)
        length = b.lesser(b.sub(count, done), i64_const(lanes))
        if len(axes) > 1:
            length = b.lesser(length, b.sub(i64_const(axes[-1].size), places[axes[-1]]))
        full = const_vector(ir.i1, [n < whole for n in range(lanes)]) if whole < lanes else None
        if len(axes) == 1 and axes[0].size % most == 0 and most % whole == 0:
            body(places, done, full)
        else:
            b.cond(
                b.icmp("eq", length, i64_const(whole)),
                lambda: body(places, done, full),
                lambda: body(places, done, below(b, length, lanes)),
            )
        loop.next(b.add(done, length))


class _Body(VectorBody):
    """A factor's body; of the elements of a square each has its own places on the panel's axes."""

    def __init__(
        self, b: Builder, pack: Packing, loops: Sequence[Axis], lane: Axis | None, count: int = 0
    ) -> None:
        self.elements = Axis(_ELEMENT, count)
        self.pack = pack
        self.places: list[dict[Axis, Val]] = []
        self.fixed: dict[tuple[Expr, Position], Val] = {}
        tiled = [self.elements] if count else []
        super().__init__(b, pack.panel.body, pack.pointers, loops, lane, tiled)
        self.analyse()

    def _moved(self, used: frozenset[Axis]) -> frozenset[Axis]:
        if self.tiled and not used.isdisjoint(self.pack.panel.axes):
            return used | {self.elements}
        return used

    def _place(self, axis: Axis, position: Position, frame: Frame) -> Val:
        if self.tiled and axis in self.pack.panel.axes:
            return self.places[position[0]][axis]
        return frame.bases[axis]

    def begin(self, frame: Frame) -> None:
        """Emit what no loop changes, the fixed parts of addresses among it."""
        inner = set(self.loops)
        for instr in self.body.instrs:
            exprs = [instr.attrs["index"]] if "index" in instr.attrs else []
            for expr in exprs:
                part = Expr(expr.const, tuple(
                    (a, c) for a, c in expr.terms if isinstance(a, Axis) and a not in inner
                ))  # fmt: skip
                for position in frame.positions() if part.terms else ():
                    key = self._restrict(instr.result, position)
                    if (part, key) not in self.fixed:
                        self.fixed[(part, key)] = super().scalar(part, key, frame)
        self.emit_level(0, frame)

    def scalar(
        self, expr: Expr, position: Position, frame: Frame, loaded: Sequence[Value] = ()
    ) -> Val:
        inner = set(self.loops)
        part = Expr(expr.const, tuple(
            (a, c) for a, c in expr.terms if isinstance(a, Axis) and a not in inner
        ))  # fmt: skip
        known = self.fixed.get((part, position))
        if known is None:
            return super().scalar(expr, position, frame, loaded)
        rest = Expr(0, tuple(t for t in expr.terms if t not in part.terms))
        return self.b.add(known, super().scalar(rest, position, frame, loaded))


class Packing:
    """Emits the function that packs one factor.

    width: of a panel.  cut: of the inner axes.  pair: neighbours along the inner axis become one
    word, in the front half of each panel.
    """

    def __init__(
        self,
        contraction: Contraction,
        factor: Factor,
        width: int,
        lanes: int,
        cut: Cut,
        pair: bool = False,
    ) -> None:
        self.pair = pair
        self.contraction = contraction
        self.panel = panel(contraction, factor)
        self.width = width
        self.lanes = lanes
        self.element = register_type(contraction.fold.dtype)
        axes = self.panel.inner
        self.cut = next(n for n in range(len(axes)) if size(axes[n + 1 :]) <= cut.tail)
        self.piece = cut.depth // size(axes[self.cut + 1 :])
        self.pointers: list[Val] = []
        self.bases: dict[Axis, Val] = {}

    def function(self, module: Module, name: str) -> Callee:
        """``void (ptr buffers, ptr to, i64 batch, i64 first, i64 count, i64 start, i64 depth)``:
        packs ``count`` rows from ``first`` on, ``depth`` inner indices from ``start`` on.
        """
        params: list[Param] = [("buffers", ir.ptr), ("to", ir.ptr)]
        params += [(n, ir.i64) for n in ("batch", "first", "count", "start", "depth")]
        made = module.function(name, ir.void, params, attrs="nounwind", linkage="internal")
        self.module = module
        self.b = b = Builder(made.block("entry"))
        self.square = b.alloca(ir.array(self.element, self.lanes**2), align=64)
        buffers, self.to, batch, self.first, self.count, start, self.depth = made.args
        self.pointers = pointers(b, self.contraction, buffers)
        self.bases = coordinates(b, batch, self.contraction.batch)
        axes = self.panel.inner
        weight = size(axes[self.cut + 1 :])
        outer = coordinates(b, b.udiv(start, i64_const(weight)), axes[: self.cut + 1])
        self.low = outer.pop(axes[self.cut])
        self.bases |= outer
        self.high = b.add(self.low, b.udiv(self.depth, i64_const(weight)))
        self._emit()
        if self.pair:
            self._panels(lambda to, first, count: self._join(to))
        b.ret()
        return made.callee

    @property
    def _loops(self) -> Axes:
        return self.panel.inner[self.cut :]

    def _range(self, axis: Axis) -> tuple[Val, Val]:
        if axis == self._loops[0]:
            return self.low, self.high
        return i64_const(0), i64_const(axis.size)

    def _emit(self) -> None:
        stage = Stage((), self.panel.body, ())
        across, along = self.panel.axes[-1], self.panel.inner[-1]
        by_panel, by_inner = (score((stage,), a, self.lanes) for a in (across, along))
        if max(by_panel, by_inner) <= 0 and across.size < self.lanes:
            self._one_by_one()
        elif by_panel >= by_inner or max(by_panel, by_inner) <= 0:
            self._side_by_side()
        else:
            self._turned()

    def _panels(self, body: Callable[[Val, Val, Val], None]) -> None:
        """Emit ``body(address, first, count)`` for each panel."""
        b, width = self.b, i64_const(self.width)
        with b.loop(i64_const(0), self.count, self.width) as loop:
            address = b.gep(self.to, b.mul(loop.index, self.depth), self.element)
            body(address, loop.index, b.lesser(b.sub(self.count, loop.index), width))

    def _frame(self, lane: Axis | None, mask: Val | None, tiles: tuple[Tile, ...] = ()) -> Frame:
        lanes = self.lanes if lane is not None else 1
        return Frame(self.bases, tiles, lane, lanes, None if mask is None else (mask,))

    def _nest(
        self, body: VectorBody, frame: Frame, leaf: Callable[[Val], None], last: int | None = None
    ) -> None:
        """Emit the loops over inner indices, all or up to one; ``leaf`` gets the number in the
        panel.
        """
        loops = self._loops[:last]

        def level(depth: int, row: Val) -> None:
            if depth == len(loops):
                leaf(row)
                return
            axis = loops[depth]
            if depth and size(loops[depth:]) <= _UNROLLED:
                for place in range(axis.size):
                    self.bases[axis] = i64_const(place)
                    body.emit_level(depth + 1, frame)
                    level(
                        depth + 1,
                        self.b.add(row, i64_const(place * size(self._loops[depth + 1 :]))),
                    )
                return
            low, high = self._range(axis)
            with self.b.loop(low, high) as loop:
                self.bases[axis] = loop.index
                body.emit_level(depth + 1, frame)
                done = self.b.sub(loop.index, self.low if depth == 0 else i64_const(0))
                weight = i64_const(size(self._loops[depth + 1 :]))
                level(depth + 1, self.b.add(row, self.b.mul(done, weight)))

        level(0, i64_const(0))

    # -- vectors along the panel -------------------------------------------------------------------

    def _side_by_side(self) -> None:
        b, low, high = self.b, self.low, self.high
        weight = size(self._loops[1:])
        step = max(1, (_ROWS_AT_ONCE if len(self.panel.axes) == 1 else _PATCHES_AT_ONCE) // weight)
        with b.loop(low, high, step) as loop:
            self.low = loop.index
            self.high = b.lesser(b.add(loop.index, i64_const(step)), high)
            row = b.mul(b.sub(loop.index, low), i64_const(weight * self.width))
            self._panels(
                lambda to, first, count: self._columns(b.gep(to, row, self.element), first, count)
            )

    def _columns(self, to: Val, first: Val, count: Val) -> None:
        b, lane = self.b, self.panel.axes[-1]
        value = self.panel.body.outputs[0]

        def run(places: dict[Axis, Val], done: Val, mask: Val | None) -> None:
            self.bases |= places
            body = _Body(b, self, self._loops, lane)
            frame = self._frame(lane, mask)
            body.begin(frame)

            def leaf(row: Val) -> None:
                found = body.lanes_of(value, (), self.lanes)
                at = b.add(b.mul(row, i64_const(self.width)), done)
                self._put(found, b.gep(to, at, self.element), mask)

            self._nest(body, frame, leaf)

        start = b.add(self.first, first)
        runs(b, self.panel.axes, start, count, (self.width, self.lanes), run)

    def _put(self, value: Val, address: Val, mask: Val | None) -> None:
        b, align = self.b, self.element.bits // 8
        if mask is None:
            b.store(value, address, align)
        elif self.lanes * self.element.bits >= _FREE_MASKS:
            masked_store(b, value, address, mask, align)
        elif mask.is_constant:
            self._put_narrow(value, address, align)
        else:
            # A masked store takes many instructions here, and nobody else writes to the panel.
            # The load is volatile, or LLVM makes a masked store of the three.
            before = b.load(value.type, address, align, volatile=True)
            b.store(b.select(mask, value, before), address, align)

    def _put_narrow(self, value: Val, address: Val, align: int) -> None:
        """Store the row of a panel narrower than a vector in parts of powers of two."""
        b, done, size = self.b, 0, self.lanes // 2
        while size:
            if self.width & size:
                places = list(range(done, done + size))
                part = (
                    b.shufflevector(value, None, places)
                    if size > 1
                    else b.extractelement(value, done)
                )
                b.store(part, b.gep(address, done, self.element), align)
                done += size
            size //= 2

    # -- vectors along the inner axis --------------------------------------------------------------

    def _turned(self) -> None:
        def columns(to: Val, first: Val, _count: Val) -> None:
            # Backwards, since what the last square writes beyond the panel's width is in the first.
            for offset in reversed(range(0, self.width, self.lanes)):
                self._square_column(to, first, offset)

        self._panels(columns)

    def _square_column(self, to: Val, first: Val, offset: int) -> None:
        """Emit the packing of up to as many rows as a vector has lanes."""
        b, lane = self.b, self._loops[-1]
        count = min(self.lanes, self.width - offset)
        last = b.sub(self.count, i64_const(1))
        places = [
            coordinates(
                b,
                b.add(self.first, b.lesser(b.add(first, i64_const(offset + n)), last)),
                self.panel.axes,
            )
            for n in range(count)
        ]
        body = _Body(b, self, self._loops, lane, count)
        body.places = places
        tiles = (Tile(body.elements, count, 1),)
        self.bases[lane] = i64_const(0)
        body.begin(self._frame(lane, None, tiles))
        base = b.gep(to, offset, self.element)
        low, high = self._range(lane)
        level = len(self._loops)

        def squares(row: Val) -> None:
            def square(at: Val, live: Val | None) -> None:
                self.bases[lane] = at
                frame = self._frame(lane, live, tiles)
                body.emit_level(level, frame)
                self._square(body, b.gep(base, self._row(row, at, low), self.element), count)

            self._along(low, high, square)

        self._nest(body, self._frame(lane, None, tiles), squares, level - 1)

    def _along(self, low: Val, high: Val, square: Callable[[Val, Val | None], None]) -> None:
        """Emit squares along the last loop.  They are long to compile: one form serves all where
        none hangs over the edge, or where masks are free.
        """
        b, lanes, last = self.b, self.lanes, self._loops[-1]
        even = last.size % lanes == 0 and (len(self._loops) > 1 or self.piece % lanes == 0)
        if even or lanes * self.element.bits >= _FREE_MASKS:
            with b.loop(low, high, lanes) as loop:
                left = b.lesser(b.sub(high, loop.index), i64_const(lanes))
                square(loop.index, None if even else below(b, left, lanes))
            return
        whole = b.sub(high, b.urem(b.sub(high, low), i64_const(lanes)))
        with b.loop(low, whole, lanes) as loop:
            square(loop.index, None)
        with b.if_then(b.icmp("slt", whole, high)):
            square(whole, below(b, b.sub(high, whole), lanes))

    def _row(self, row: Val, at: Val, low: Val) -> Val:
        b = self.b
        return b.mul(b.add(row, b.sub(at, low)), i64_const(self.width))

    def _square(self, body: _Body, to: Val, count: int) -> None:
        """Turn a square, and store its rows; those beyond the end are overwritten later."""
        b, value = self.b, self.panel.body.outputs[0]
        align = self.element.bits // 8
        for n in range(count):
            row = body.lanes_of(value, (n,), self.lanes)
            b.store(row, b.gep(self.square, n * self.lanes, self.element), align)
        turned = turn(self.module, self.element, self.lanes, count)
        b.call(turned, [self.square, to, i64_const(self.width)])

    # -- elements ----------------------------------------------------------------------------------

    def _one_by_one(self) -> None:
        b, value = self.b, self.panel.body.outputs[0]

        def elements(to: Val, first: Val, count: Val) -> None:
            with b.loop(i64_const(0), count) as loop:
                place = b.add(self.first, b.add(first, loop.index))
                self.bases |= coordinates(b, place, self.panel.axes)
                body = _Body(b, self, self._loops, None)
                frame = self._frame(None, None)
                body.begin(frame)

                def leaf(row: Val) -> None:
                    at = b.add(b.mul(row, i64_const(self.width)), loop.index)
                    self._put(body.at(value, ()), b.gep(to, at, self.element), None)

                self._nest(body, frame, leaf)

        self._panels(elements)

    # -- pairs -------------------------------------------------------------------------------------

    def _join(self, to: Val) -> None:
        """Emit the pairs of a panel, in its own memory.

        No vector is longer than a row, so what one writes behind its row has been read before.
        """
        b = self.b
        lanes = min(self.lanes, 1 << self.width.bit_length() - 1)
        row = vec(self.element, lanes)
        pairs = b.lshr(self.depth, i64_const(1))

        def place(index: Val, column: int) -> Val:
            at = b.add(b.mul(index, i64_const(self.width)), i64_const(column))
            return b.gep(to, at, self.element)

        def words(pair: Val, odd: bool) -> None:
            first = b.shl(pair, i64_const(1))
            for column in range(0, self.width, lanes):
                low = b.load(row, place(first, column), 4)
                if odd:
                    word = b.and_(low, const(row, 0xFFFF))
                else:
                    high = b.load(row, place(b.add(first, i64_const(1)), column), 4)
                    word = b.or_(b.and_(low, const(row, 0xFFFF)), b.shl(high, const(row, 16)))
                b.store(word, place(pair, column), 4)

        with b.loop(i64_const(0), pairs) as loop:
            words(loop.index, odd=False)
        with b.if_then(b.icmp("ne", b.and_(self.depth, i64_const(1)), i64_const(0))):
            words(pairs, odd=True)

"""Packing: one factor of a contraction is copied to panels, in the order the micro-kernel reads it.

A panel holds, for each inner index, the elements of a tile's rows (or columns) one after the other.
They are read through the index maps and the prologue of the kernel, so that a transposition, a
cast, a mask or the patches of a convolution cost nothing beyond this pass.  Vectors run along the
panel if memory does.  If memory runs along the inner axis, vectors do as well, and squares of them
are transposed.  If it runs along neither, elements are copied one by one.  If the micro-kernel
takes pairs, a last pass joins them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bringup.graph import Value
from bringup.graph.index import Axis, Expr
from bringup.kernel.contraction import Axes, Contraction, Factor, panel, size
from bringup.kernel.form import Stage
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
from bringup.llvm.text.masked import lanes_below, masked_store
from bringup.llvm.transpose import transpose_square

#: Pack this many inner indices of every panel before going on, to use whole cache lines.
_ROWS_AT_ONCE = 8
#: The same if computing the indices of a run costs more than reading a few rows of it.
_PATCHES_AT_ONCE = 36
#: CPUs with vectors of so many bits have mask registers, so that masked stores are cheap.
_CHEAP_MASK_BITS = 512
#: Loops of at most so many iterations are unrolled.
_UNROLLED = 12
#: The id of the axis that stands for all axes of the panel if vectors run along the inner axis.
_ELEMENT = -1


def coordinates(b: Builder, flat: Val, axes: Axes) -> dict[Axis, Val]:
    """The index on each axis at a row-major position."""
    indices: dict[Axis, Val] = {}
    for n, axis in reversed(list(enumerate(axes))):
        indices[axis] = b.urem(flat, i64_const(axis.size)) if n else flat
        flat = b.udiv(flat, i64_const(axis.size)) if n else flat
    return indices


def pointers(b: Builder, contraction: Contraction, buffers: Val) -> list[Val]:
    """The address of every buffer of the kernel."""
    count = len(contraction.kernel.buffers)
    return [b.load(ir.ptr, b.gep(buffers, n, ir.ptr), 8) for n in range(count)]


#: Emits code for a run of columns, given their indices, the number of the first one, and a mask.
Run = Callable[[dict[Axis, Val], Val, Val | None], None]


def runs(b: Builder, axes: Axes, first: Val, count: Val, sizes: tuple[int, int], body: Run) -> None:
    """Emit ``body`` for ``count`` columns from ``first`` on, in runs of consecutive indices.

    A run ends with a vector or with the last axis.  sizes: the most columns, and the lanes.
    """
    most, lanes = sizes
    whole = min(most, lanes)
    with b.while_loop([i64_const(0)], lambda c: b.icmp("slt", c[0], count)) as loop:
        done = loop.carried[0]
        indices = coordinates(b, b.add(first, done), axes)
        length = b.lesser(b.sub(count, done), i64_const(lanes))
        if len(axes) > 1:
            length = b.lesser(length, b.sub(i64_const(axes[-1].size), indices[axes[-1]]))
        full = const_vector(ir.i1, [n < whole for n in range(lanes)]) if whole < lanes else None
        if len(axes) == 1 and axes[0].size % most == 0 and most % whole == 0:
            body(indices, done, full)
        else:
            b.cond(
                b.icmp("eq", length, i64_const(whole)),
                lambda: body(indices, done, full),
                lambda: body(indices, done, lanes_below(b, length, lanes)),
            )
        loop.next(b.add(done, length))


class _Body(VectorBody):
    """A factor's body.  Each row of a square has its own indices on the axes of the panel."""

    def __init__(
        self, b: Builder, pack: Packing, loops: Sequence[Axis], lane: Axis | None, count: int = 0
    ) -> None:
        self.elements = Axis(_ELEMENT, count)
        self.pack = pack
        self.indices: list[dict[Axis, Val]] = []
        self.fixed: dict[tuple[Expr, Position], Val] = {}
        tiled = [self.elements] if count else []
        super().__init__(b, pack.panel.body, pack.pointers, loops, lane, tiled)
        self.analyse()

    def _moved(self, used: frozenset[Axis]) -> frozenset[Axis]:
        if self.tiled and not used.isdisjoint(self.pack.panel.axes):
            return used | {self.elements}
        return used

    def _base(self, axis: Axis, position: Position, frame: Frame) -> Val:
        if self.tiled and axis in self.pack.panel.axes:
            return self.indices[position[0]][axis]
        return frame.bases[axis]

    def begin(self, frame: Frame) -> None:
        """Emit what does not depend on the loops, including constant parts of addresses."""
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

    width: of a panel.  cut: how the inner axes are split.  pair: neighbours along the inner axis
    are joined in one word, in the front half of each panel.
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
        """``void (ptr buffers, ptr to, i64 batch, i64 first, i64 count, i64 start, i64 depth)``.

        It packs ``count`` rows from ``first`` on, and ``depth`` inner indices from ``start`` on.
        """
        params: list[Param] = [("buffers", ir.ptr), ("to", ir.ptr)]
        params += [(n, ir.i64) for n in ("batch", "first", "count", "start", "depth")]
        function = module.function(name, ir.void, params, attrs="nounwind", linkage="internal")
        self.module = module
        self.b = b = Builder(function.block("entry"))
        self.square = b.alloca(ir.array(self.element, self.lanes**2), align=64)
        buffers, self.to, batch, self.first, self.count, start, self.depth = function.args
        self.pointers = pointers(b, self.contraction, buffers)
        self.bases = coordinates(b, batch, self.contraction.batch)
        axes = self.panel.inner
        weight = size(axes[self.cut + 1 :])
        outer = coordinates(b, b.udiv(start, i64_const(weight)), axes[: self.cut + 1])
        self.low = outer.pop(axes[self.cut])
        self.bases |= outer
        self.high = b.add(self.low, b.udiv(self.depth, i64_const(weight)))
        stage = Stage((), self.panel.body, ())
        across, along = self.panel.axes[-1], self.panel.inner[-1]
        by_panel, by_inner = (score((stage,), a, self.lanes) for a in (across, along))
        if max(by_panel, by_inner) <= 0 and across.size < self.lanes:
            self._by_elements()
        elif by_panel >= by_inner or max(by_panel, by_inner) <= 0:
            self._by_panel_vectors()
        else:
            self._by_squares()
        if self.pair:
            self._panels(lambda to, first, count: self._join(to))
        b.ret()
        return function.callee

    @property
    def _loops(self) -> Axes:
        return self.panel.inner[self.cut :]

    def _range(self, axis: Axis) -> tuple[Val, Val]:
        if axis == self._loops[0]:
            return self.low, self.high
        return i64_const(0), i64_const(axis.size)

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
        """Emit the loops over inner indices, or some of them.  ``leaf`` gets a row of the panel."""
        loops = self._loops[:last]

        def level(depth: int, row: Val) -> None:
            if depth == len(loops):
                leaf(row)
                return
            axis, weight = loops[depth], size(self._loops[depth + 1 :])
            if depth and size(loops[depth:]) <= _UNROLLED:
                for index in range(axis.size):
                    self.bases[axis] = i64_const(index)
                    body.emit_level(depth + 1, frame)
                    level(depth + 1, self.b.add(row, i64_const(index * weight)))
                return
            low, high = self._range(axis)
            with self.b.loop(low, high) as loop:
                self.bases[axis] = loop.index
                body.emit_level(depth + 1, frame)
                done = self.b.sub(loop.index, self.low if depth == 0 else i64_const(0))
                level(depth + 1, self.b.add(row, self.b.mul(done, i64_const(weight))))

        level(0, i64_const(0))

    # -- vectors along the panel -------------------------------------------------------------------

    def _by_panel_vectors(self) -> None:
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

        def run(indices: dict[Axis, Val], done: Val, mask: Val | None) -> None:
            self.bases |= indices
            body = _Body(b, self, self._loops, lane)
            frame = self._frame(lane, mask)
            body.begin(frame)

            def leaf(row: Val) -> None:
                vector = body.lanes_of(value, (), self.lanes)
                offset = b.add(b.mul(row, i64_const(self.width)), done)
                self._put(vector, b.gep(to, offset, self.element), mask)

            self._nest(body, frame, leaf)

        start = b.add(self.first, first)
        runs(b, self.panel.axes, start, count, (self.width, self.lanes), run)

    def _put(self, value: Val, address: Val, mask: Val | None) -> None:
        b, align = self.b, self.element.bits // 8
        if mask is None:
            b.store(value, address, align)
        elif self.lanes * self.element.bits >= _CHEAP_MASK_BITS:
            masked_store(b, value, address, mask, align)
        elif mask.is_constant:
            self._put_narrow(value, address, align)
        else:
            # A masked store takes many instructions here, and no other thread writes to the panel.
            # The load is volatile; otherwise LLVM turns the three instructions into a masked store.
            before = b.load(value.type, address, align, volatile=True)
            b.store(b.select(mask, value, before), address, align)

    def _put_narrow(self, value: Val, address: Val, align: int) -> None:
        """Store a row that is narrower than a vector, in parts whose sizes are powers of two."""
        b, done, size = self.b, 0, self.lanes // 2
        while size:
            if self.width & size:
                if size > 1:
                    part = b.shufflevector(value, None, range(done, done + size))
                else:
                    part = b.extractelement(value, done)
                b.store(part, b.gep(address, done, self.element), align)
                done += size
            size //= 2

    # -- vectors along the inner axis --------------------------------------------------------------

    def _by_squares(self) -> None:
        def columns(to: Val, first: Val, _count: Val) -> None:
            # Backwards: what a square writes beyond the panel's width is overwritten by the next.
            for offset in reversed(range(0, self.width, self.lanes)):
                self._square_column(to, first, offset)

        self._panels(columns)

    def _square_column(self, to: Val, first: Val, offset: int) -> None:
        """Emit the packing of up to as many rows as a vector has lanes."""
        b, lane = self.b, self._loops[-1]
        count = min(self.lanes, self.width - offset)
        last = b.sub(self.count, i64_const(1))
        indices = [
            coordinates(
                b,
                b.add(self.first, b.lesser(b.add(first, i64_const(offset + n)), last)),
                self.panel.axes,
            )
            for n in range(count)
        ]
        body = _Body(b, self, self._loops, lane, count)
        body.indices = indices
        tiles = (Tile(body.elements, count, 1),)
        self.bases[lane] = i64_const(0)
        body.begin(self._frame(lane, None, tiles))
        base = b.gep(to, offset, self.element)
        low, high = self._range(lane)
        level = len(self._loops)

        def squares(row: Val) -> None:
            def square(index: Val, mask: Val | None) -> None:
                self.bases[lane] = index
                body.emit_level(level, self._frame(lane, mask, tiles))
                offset = b.mul(b.add(row, b.sub(index, low)), i64_const(self.width))
                self._transpose(body, b.gep(base, offset, self.element), count)

            self._along(low, high, square)

        self._nest(body, self._frame(lane, None, tiles), squares, level - 1)

    def _along(self, low: Val, high: Val, square: Callable[[Val, Val | None], None]) -> None:
        """Emit squares along the last loop.

        Squares take long to compile, so one form serves all if none exceeds the axis or if masks
        are cheap.
        """
        b, lanes, last = self.b, self.lanes, self._loops[-1]
        even = last.size % lanes == 0 and (len(self._loops) > 1 or self.piece % lanes == 0)
        if even or lanes * self.element.bits >= _CHEAP_MASK_BITS:
            with b.loop(low, high, lanes) as loop:
                left = b.lesser(b.sub(high, loop.index), i64_const(lanes))
                square(loop.index, None if even else lanes_below(b, left, lanes))
            return
        whole = b.sub(high, b.urem(b.sub(high, low), i64_const(lanes)))
        with b.loop(low, whole, lanes) as loop:
            square(loop.index, None)
        with b.if_then(b.icmp("slt", whole, high)):
            square(whole, lanes_below(b, b.sub(high, whole), lanes))

    def _transpose(self, body: _Body, to: Val, count: int) -> None:
        """Transpose a square and store its rows; those beyond the end are overwritten later."""
        b, value = self.b, self.panel.body.outputs[0]
        align = self.element.bits // 8
        for n in range(count):
            row = body.lanes_of(value, (n,), self.lanes)
            b.store(row, b.gep(self.square, n * self.lanes, self.element), align)
        function = transpose_square(self.module, self.element, self.lanes, count)
        b.call(function, [self.square, to, i64_const(self.width), i64_const(self.lanes)])

    # -- elements ----------------------------------------------------------------------------------

    def _by_elements(self) -> None:
        b, value = self.b, self.panel.body.outputs[0]

        def elements(to: Val, first: Val, count: Val) -> None:
            with b.loop(i64_const(0), count) as loop:
                index = b.add(self.first, b.add(first, loop.index))
                self.bases |= coordinates(b, index, self.panel.axes)
                body = _Body(b, self, self._loops, None)
                frame = self._frame(None, None)
                body.begin(frame)

                def leaf(row: Val) -> None:
                    offset = b.add(b.mul(row, i64_const(self.width)), loop.index)
                    self._put(body.at(value, ()), b.gep(to, offset, self.element), None)

                self._nest(body, frame, leaf)

        self._panels(elements)

    # -- pairs -------------------------------------------------------------------------------------

    def _join(self, to: Val) -> None:
        """Join the pairs of a panel in place.

        No vector is longer than a row, so everything that a store overwrites has been read before.
        """
        b = self.b
        lanes = min(self.lanes, 1 << self.width.bit_length() - 1)
        row = vec(self.element, lanes)
        pairs = b.lshr(self.depth, i64_const(1))

        def address(row: Val, column: int) -> Val:
            offset = b.add(b.mul(row, i64_const(self.width)), i64_const(column))
            return b.gep(to, offset, self.element)

        def words(pair: Val, odd: bool) -> None:
            first = b.shl(pair, i64_const(1))
            for column in range(0, self.width, lanes):
                low = b.load(row, address(first, column), 4)
                if odd:
                    word = b.and_(low, const(row, 0xFFFF))
                else:
                    high = b.load(row, address(b.add(first, i64_const(1)), column), 4)
                    word = b.or_(b.and_(low, const(row, 0xFFFF)), b.shl(high, const(row, 16)))
                b.store(word, address(pair, column), 4)

        with b.loop(i64_const(0), pairs) as loop:
            words(loop.index, odd=False)
        with b.if_then(b.icmp("ne", b.and_(self.depth, i64_const(1)), i64_const(0))):
            words(pairs, odd=True)

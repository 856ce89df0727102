"""Sums of products by FMA: each thread keeps a few rows times a few columns in registers."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.dtypes import DType
from bringup.llvm import text as ir
from bringup.llvm.scalar import memory_type, widen
from bringup.llvm.text import Builder, Val, const, vec
from bringup_cuda.contraction.engine import sum_type
from bringup_cuda.contraction.layout import CHUNK, Layout
from bringup_cuda.contraction.points import number
from bringup_cuda.contraction.tiles import Tile

#: Threads of a warp down and across: its rows are four, so that one read serves eight threads.
_WARP = (4, 8)
#: Inner elements whose products are written out.
_UNROLLED = 8


class Side:
    """One factor's elements as a thread reads them.

    own: the thread's number among those along this side, of ``threads``.
    """

    def __init__(self, b: Builder, layout: Layout, own: Val, threads: int) -> None:
        self.b = b
        self.layout = layout
        self.threads = threads
        self.count = layout.extent // threads
        self.lanes = min(CHUNK // layout.dtype.itemsize, self.count)
        self.first = own if layout.inner_minor else b.mul(own, number(self.lanes))

    def shift(self, n: int) -> int:
        """Row or column ``n`` of the thread, counted from its first: quads of neighbours, or
        neighbours of other threads where lines run along the inner axis, which keeps reads in
        different banks.
        """
        if self.layout.inner_minor:
            return n * self.threads
        piece, lane = divmod(n, self.lanes)
        return piece * self.threads * self.lanes + lane

    def place(self, n: int) -> Val:
        """Row or column ``n`` of the thread."""
        return self.b.add(self.first, number(self.shift(n)))

    def read(self, tile: Val, inner: Val, depth: int) -> list[list[Val]]:
        """For ``depth`` inner elements from ``inner``: the thread's elements, widened."""
        b, layout = self.b, self.layout
        at = b.zext(layout.offset(b, self.first, inner), ir.i64)
        start = b.gep(tile, at, ir.i8)
        if layout.inner_minor:
            lines = [
                self._line(start, self.shift(n) * layout.stride, depth) for n in range(self.count)
            ]
            return [[line[d] for line in lines] for d in range(depth)]
        result: list[list[Val]] = []
        for d in range(depth):
            row: list[Val] = []
            for n in range(0, self.count, self.lanes):
                place = d * layout.stride + self.shift(n) * layout.dtype.itemsize
                row += self._line(start, place, self.lanes)
            result.append(row)
        return result

    def _line(self, start: Val, offset: int, lanes: int) -> list[Val]:
        b, dtype = self.b, self.layout.dtype
        kind = vec(memory_type(dtype), lanes)
        loaded = b.load(kind, b.gep(start, offset, ir.i8), dtype.itemsize * lanes)
        return [self._widened(b.extractelement(loaded, n)) for n in range(lanes)]

    def _widened(self, value: Val) -> Val:
        dtype, to = self.layout.dtype, sum_type(self.layout.dtype)
        if dtype.is_float:
            return widen(self.b, value)
        return value if value.type is to else self.b.zext(value, to)


class FmaEngine:
    """f32 and f64 rounded once per product and sum, and integers of any width."""

    def __init__(
        self, b: Builder, tile: Tile, layouts: tuple[Layout, Layout], dtype: DType, mine: Val
    ) -> None:
        self.b = b
        self.type = sum_type(dtype)
        lane, warp = b.urem(mine, number(32)), b.udiv(mine, number(32))
        down, across = tile.warps
        row = b.add(b.mul(b.udiv(warp, number(across)), number(_WARP[0])), b.udiv(lane, number(8)))
        column = b.add(b.mul(b.urem(warp, number(across)), number(8)), b.urem(lane, number(8)))
        self.rows = Side(b, layouts[0], row, down * _WARP[0])
        self.columns = Side(b, layouts[1], column, across * _WARP[1])
        self.depth = layouts[0].depth

    def start(self) -> list[Val]:
        """The sums of nothing, of this thread."""
        # Minus zero adds to nothing else, and what is added to it keeps its sign.
        return [const(self.type, -0.0 if self.type.is_float else 0)] * (
            self.rows.count * self.columns.count
        )

    def step(self, left: Val, right: Val, sums: Sequence[Val]) -> list[Val]:
        """Add the products of two tiles in shared memory."""
        if self.depth <= _UNROLLED:
            return self._products(left, right, number(0), self.depth, sums)
        with self.b.loop(number(0), number(self.depth), _UNROLLED, sums) as loop:
            loop.next(*self._products(left, right, loop.index, _UNROLLED, loop.carried))
        return list(loop.carried)

    def _products(
        self, left: Val, right: Val, first: Val, count: int, sums: Sequence[Val]
    ) -> list[Val]:
        minor = [s.layout for s in (self.rows, self.columns) if s.layout.inner_minor]
        depth = CHUNK // max(m.dtype.itemsize for m in minor) if minor else 1
        if len(minor) == 2:
            depth = max(depth // 2, 1)  # or the elements of both would take more than sums
        live = list(sums)
        for inner in range(0, count, depth):
            at = self.b.add(first, number(inner))
            rows = self.rows.read(left, at, depth)
            columns = self.columns.read(right, at, depth)
            for xs, ys in zip(rows, columns, strict=True):
                for i, x in enumerate(xs):
                    for j, y in enumerate(ys):
                        place = i * len(ys) + j
                        live[place] = self._add(x, y, live[place])
        return live

    def _add(self, x: Val, y: Val, total: Val) -> Val:
        if self.type.is_float:
            return self.b.fma(x, y, total)
        return self.b.add(self.b.mul(x, y), total)

    def meet(self) -> None:
        """Nothing is under way."""

    def finish(self, sums: Sequence[Val]) -> list[Val]:
        """The sums."""
        return list(sums)

    def put(self, sums: Sequence[Val], shared: Val, stride: int) -> None:
        """Write all sums to shared memory, row by row, ``stride`` sums apart."""
        b, bytes_ = self.b, self.type.bits // 8
        width = 1 if self.columns.layout.inner_minor else self.columns.lanes
        width = min(width, CHUNK // bytes_)
        start = b.add(b.mul(self.rows.first, number(stride)), self.columns.first)
        base = b.gep(shared, b.zext(start, ir.i64), self.type)
        for i in range(self.rows.count):
            for j in range(0, self.columns.count, width):
                at = self.rows.shift(i) * stride + self.columns.shift(j)
                first = i * self.columns.count + j
                made = self._joined(sums[first : first + width])
                b.store(made, b.gep(base, at, self.type), bytes_ * width)

    def scale(self, sums: Sequence[Val], factors: Val) -> list[Val]:
        """Multiply the sums of each row by its factor, an array in shared memory."""
        b, across = self.b, self.columns.count
        found: list[Val] = []
        for i in range(self.rows.count):
            at = b.zext(self.rows.place(i), ir.i64)
            factor = b.load(self.type, b.gep(factors, at, self.type), self.type.bits // 8)
            found += [b.fmul(s, factor) for s in sums[i * across : (i + 1) * across]]
        return found

    def _joined(self, values: Sequence[Val]) -> Val:
        if len(values) == 1:
            return values[0]
        made = ir.poison(vec(self.type, len(values)))
        for n, value in enumerate(values):
            made = self.b.insertelement(made, value, n)
        return made

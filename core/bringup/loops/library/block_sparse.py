"""Products with block-sparse matrices; only stored blocks cost anything.

Blocks are first sorted by column.  An iteration of the outer parallel loop packs some rows of x
into panels, which hold the elements of a tile of rows for each inner index, so that a block row is
a contiguous part of a panel.  Each block column is then multiplied with these rows: the products of
a tile of rows with a few vectors of the column stay in registers while the tile visits its blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from bringup.dtypes import DType, bool_, i32
from bringup.graph.index import Bound, Expr
from bringup.integers import ceil_div
from bringup.loops.form import Buffer, Func, Role, Scalar
from bringup.loops.library.builder import FuncBuilder, data, wide
from bringup.loops.library.calls import OpCall, StepLoops
from bringup.loops.library.tiles import Tile, Tiles, usual_lanes
from bringup.records import record

#: The most serial additions, and how many there are in each part of a longer sum.
_LONGEST = 8192
_RUN = 2048


def block_sparse_dot(call: OpCall) -> StepLoops:
    """Multiply rows with blocks whose places are data."""
    form = _Form.of(call)
    ends = Buffer("ends", i32, form.across + 1)
    order = Buffer("order", i32, max(2 * form.count, 1))
    funcs = _order(form, ends, order), _products(form, ends, order)
    products = form.count * form.height * form.width // form.across
    work = form.chunk * form.tile * (products + form.width)
    return StepLoops(call, funcs, (ends, order), work=work)


@record(eq=False)
class _Form:
    """How one product runs.

    dtype: of sums.  rows, inner, features: sizes of the product.
    count, height, width: of the blocks.
    lanes: of a vector; they divide the width of a block.
    tile, vectors: rows, and vectors of a block, of a register tile.
    chunk: tiles of a unit, whose panels stay in a core's cache.
    """

    call: OpCall
    dtype: DType
    rows: int
    inner: int
    features: int
    count: int
    height: int
    width: int
    lanes: int
    tile: int
    vectors: int
    chunk: int

    @classmethod
    def of(cls, call: OpCall) -> _Form:
        x, blocks = call.types[:2]
        target, dtype = call.target, wide(x.dtype)
        count, height, width = blocks.shape
        rows, inner = math.prod(x.shape[:-1]), x.shape[-1]
        count = count if inner else 0  # else no block has a place
        lanes = math.gcd(width, usual_lanes(call, dtype))
        sums = target.registers * 3 // 4
        most = 4 if target.registers >= 32 else 2
        tile = max(1, min(rows, sums // min(width // lanes, most)))
        vectors = min(width // lanes, sums // tile)
        near = target.cache_bytes // 2 // max(1, tile * inner * dtype.itemsize)
        chunk = max(1, min(ceil_div(rows, tile), near))
        features = call.attrs["features"]
        return cls(
            call, dtype, rows, inner, features, count, height, width, lanes, tile, vectors, chunk
        )

    @property
    def across(self) -> int:
        """The number of block columns."""
        return self.features // self.width

    @property
    def tiles(self) -> int:
        """Tiles that cover the rows."""
        return ceil_div(self.rows, self.tile)

    @property
    def is_long(self) -> bool:
        """Whether a column may have more products than a serial sum may have."""
        most: int = min(self.count, self.call.attrs["per_column"])
        return most * self.height > _LONGEST


def _order(form: _Form, ends: Buffer, order: Buffer) -> Func:
    """Sort blocks by column: count them, then list them as pairs of block number and row.

    Entry 0 of the ends stays 0.  Entry j + 1 is first the count of column j, then the start of its
    list, and after the list has been written, the end of it.
    """
    places = form.call.operands[2:]
    name = f"{form.call.name}_order"
    params: list[tuple[Role, Buffer]] = [("in", x) for x in places]
    b = FuncBuilder(name, [*params, ("out", ends), ("out", order)])
    zero, one = b.constant(0, i32), b.constant(1, i32)
    for buffer in (ends, order):
        with b.loop("clear", buffer.size) as i:
            b.store(buffer, i, zero)
    with _live(b, form) as (_, _, column):
        b.store(ends, data(form.across) + 1, one, fold="add", named=[column])
    total = b.variable("total", zero)
    with b.loop("j", form.across) as j:
        start = b.load(total)
        b.set(total, b.load(ends, j + 1), fold="add")
        b.store(ends, j + 1, start)
    with _live(b, form) as (block, row, column):
        end = data(form.across) + 1
        free = b.load(ends, end, named=[column])
        b.store(ends, end, b.op("add", free, one), named=[column])
        for n, value in enumerate((b.index(block, i32), row)):
            b.store(order, data(form.count) * 2 + n, value, named=[free])
    return b.func()


@contextmanager
def _live(b: FuncBuilder, form: _Form) -> Iterator[tuple[Expr, Scalar, Scalar]]:
    """A loop over the valid blocks: the number of a block, its row and its column."""
    sizes = form.inner // form.height, form.across
    with b.loop("n", form.count) as block:
        inside = b.constant(True, bool_)
        places: list[Scalar] = []
        for x, size in zip(form.call.operands[2:], sizes, strict=True):
            place = b.load(x, block)
            at_least = b.compare("ge", place, b.constant(0, i32))
            less = b.compare("lt", place, b.constant(size, i32))
            inside = b.op("and", inside, b.op("and", at_least, less))
            places.append(place)
        with b.where(test=inside):
            yield block, places[0], places[1]


def _products(form: _Form, ends: Buffer, order: Buffer) -> Func:
    """Multiply; a unit is a block column for a chunk of tiles, whose rows are packed before."""
    x, blocks = form.call.operands[:2]
    (y,) = form.call.results
    b = FuncBuilder(
        form.call.name, [("in", x), ("in", blocks), ("in", ends), ("in", order), ("out", y)]
    )
    tiles = Tiles(b, form.dtype, form.tile, form.lanes, form.vectors * form.lanes)
    with b.loop("chunk", ceil_div(form.tiles, form.chunk), "parallel") as chunk:
        first = chunk * form.chunk
        panels = b.alloc("panels", form.dtype, form.chunk * form.tile * form.inner)
        _pack(form, tiles, panels, first)
        with (
            b.loop("column", form.across, "parallel") as column,
            b.loop("tile", form.chunk, until=first * -1 + form.tiles) as tile,
        ):
            multiply = _Products(form, tiles, (panels, ends, order), (first, tile, column))
            whole = tiles.width
            parts = form.width // whole
            with b.loop("part", parts) as part:
                multiply.emit(part * whole, whole)
            if form.width % whole:
                multiply.emit(Expr(parts * whole), form.width % whole)
    return b.func()


def _pack(form: _Form, tiles: Tiles, panels: Buffer, first: Expr) -> None:
    """Pack the rows of a chunk: by tile, by inner index, by row of the tile.

    Beyond the last row of x it stands again, in place of a mask; nothing is stored of its products.
    """
    b, x, size = tiles.b, form.call.operands[0], form.tile
    lanes = usual_lanes(form.call, form.dtype)
    whole = form.inner // lanes

    def put(tile: Expr, k: Expr, r: Expr) -> None:
        row, named = (first + tile) * size + r, []
        if form.rows % size:
            last = b.constant(form.rows - 1, i32)
            named, row = [b.op("min", b.index(row, i32), last)], data(form.rows)
        value = b.load(x, row * form.inner + k, named=named)
        place = (tile * form.inner + k) * size + r
        b.store(panels, place, b.convert(value, form.dtype))

    with b.loop("tile", form.chunk, until=first * -1 + form.tiles) as tile:
        # Rows are vectors whose elements go to different parts of the panel: squares in registers.
        with (
            b.loop("k", whole) as k,
            b.loop("r", size, "unroll") as r,
            b.loop("l", lanes, "vector") as lane,
        ):
            put(tile, k * lanes + lane, r)
        with b.loop("k", form.inner - whole * lanes) as k, b.loop("r", size, "unroll") as r:
            put(tile, k + whole * lanes, r)


class _Products:
    """Multiplies a tile of rows with the blocks of a column.

    memory: the panels, the ends of columns, and the order of blocks.
    place: the first tile of the unit, the number of this one in it, and the column.
    """

    def __init__(
        self,
        form: _Form,
        tiles: Tiles,
        memory: tuple[Buffer, Buffer, Buffer],
        place: tuple[Expr, Expr, Expr],
    ) -> None:
        self.form, self.tiles, self.b = form, tiles, tiles.b
        self.panels, self.ends, self.order = memory
        first, self.tile, self.column = place
        self.row = (first + self.tile) * form.tile

    def emit(self, part: Expr, columns: int) -> None:
        """The ``columns`` of the block column from column ``part`` of it on."""
        b, form, zero = self.b, self.form, self.b.constant(0.0, self.form.dtype)
        first, last = (b.load(self.ends, self.column + n) for n in range(2))
        total = self.tiles.load(lambda r, lane: zero, form.tile, columns)
        if form.is_long:
            self._add_parts(total, first, last, part)
        else:
            self._add(total, (first, last), part, (0, form.height))
        left = self.row * -1 + form.rows
        with b.where(Bound(left, form.tile, left.last + 1)):
            self._store(total, part, None)
        if form.rows % form.tile:
            with b.where(Bound(left, 1, form.tile)):
                self._store(total, part, left)

    def _store(self, sums: Tile, part: Expr, until: Expr | None) -> None:
        b, form, (y,) = self.b, self.form, self.form.call.results
        with b.loop("r", form.tile, "unroll", until=until) as r:
            place = (self.row + r) * form.features + self.column * form.width + part
            with self.tiles.across(sums.width) as lane:
                b.store(y, place + lane, b.convert(sums.get(r, lane), y.dtype))

    def _add_parts(self, total: Tile, first: Scalar, last: Scalar, part: Expr) -> None:
        """Add partial sums, all of them short."""
        b, form = self.b, self.form
        each = max(1, _RUN // form.height)
        with (
            self._entries("runs", first, last, each) as (start, stop),
            b.loop("piece", ceil_div(form.height, _RUN)) as piece,
        ):
            zero = b.constant(0.0, form.dtype)
            some = self.tiles.load(lambda r, lane: zero, total.rows, total.width)
            self._add(some, (start, stop), part, (piece * _RUN, _RUN))
            with self.tiles.points(total.rows, total.width) as (r, lane):
                place = r * total.width + lane
                b.store(total.buffer, place, some.get(r, lane), fold="add")

    def _add(
        self, sums: Tile, entries: tuple[Scalar, Scalar], part: Expr, inner: tuple[Expr | int, int]
    ) -> None:
        """Add products of some entries, over a range of inner indices of each block."""
        b, form = self.b, self.form
        low, count = Expr.of(inner[0]), inner[1]
        with self._entries("entries", *entries, 1) as (entry, _):
            block, row = (
                b.load(self.order, data(form.count) * 2 + n, named=[entry]) for n in range(2)
            )

            def factor(r: Expr, p: Expr) -> Scalar:
                place = data(form.inner // form.height) * form.height + low + p
                place = (place + self.tile * form.inner) * form.tile + r
                return b.load(self.panels, place, named=[row])

            def other(p: Expr, lane: Expr) -> Scalar:
                place = (data(form.count) * form.height + low + p) * form.width + part + lane
                return b.convert(b.load(form.call.operands[1], place, named=[block]), form.dtype)

            sums.add_products(factor, other, count, low * -1 + form.height)

    @contextmanager
    def _entries(
        self, name: str, first: Scalar, last: Scalar, step: int
    ) -> Iterator[tuple[Scalar, Scalar]]:
        """A loop over entries of the order, ``step`` at a time: the first, and the next first."""
        b = self.b
        entry = b.variable("entry", first)
        more = b.variable("more", b.compare("lt", first, last))
        with b.loop(name, self.form.count), b.goes_on(more):
            start = b.load(entry)
            stop = b.op("add", start, b.constant(step, i32))
            stop = b.op("min", stop, last) if step > 1 else stop
            yield start, stop
            b.set(entry, stop)
            b.set(more, b.compare("lt", stop, last))


__all__ = ["block_sparse_dot"]

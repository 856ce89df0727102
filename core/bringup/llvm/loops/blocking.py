"""How a contraction is cut for packed panels: the tile in registers, the block in a core's cache.

The inner indices are cut at a fixed depth, since that says in which order a sum is added; how rows
and columns are cut into units follows from the caches and the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

from bringup.dtypes import DType, i8, i16, i32, u8, u32
from bringup.kernel.contraction import Axes, Contraction, panel, size, steps_of
from bringup.kernel.index import Expr, flatten
from bringup.llvm.loops.schedule import LONGEST_CHAIN, LoopTarget
from bringup.records import record

#: Bytes that the inner indices of a block are long: panels of it share the first-level cache.
_DEPTH_BYTES = 1024
_EVEN = 16
#: Below so many products the loops without packing are as fast.
LEAST_PRODUCTS = 1 << 17
_LEAST_ROWS = 16
#: From so many products on, packing pays for pairs with fewer rows as well.
_FEW_ROWS_PRODUCTS = 1 << 20
#: Up to so many rows, pairs are joined sooner for each tile than they are packed once.
_MOST_JOINED = 128
_LEAST_DEPTH = 16
#: Bytes of both factors up to which those loops read columns well that lie side by side.
_NEAR_BYTES = 3 << 18
#: What packing an element costs, in turns of the innermost loop's two products, more where a block
#: does not stay in a core's cache; and what starting a unit does.
_PACK = 1.0
_PACK_FAR = 1.0
#: The same for an element that is read where it lies, beyond a core's cache.
_READ = 0.5
_START = 2000
_MOST_ROWS = 14
#: Vectors of columns that a tile may have, in the order in which they are tried.
_VECTORS = (2, 1, 3)
#: What a worker may fill of the cache beyond its own, in sizes of that.
_SHARED = 4


@record
class TileShape:
    """Sums in registers: ``rows`` by ``vectors`` of ``lanes`` columns.

    pair: whether an element of a panel is a pair of neighbours along the inner axis.
    """

    rows: int
    vectors: int
    lanes: int
    pair: bool = False

    @property
    def columns(self) -> int:
        """Columns of the tile."""
        return self.vectors * self.lanes


@record
class Cut:
    """The inner axes in blocks: those outside ``level`` one by one, that axis in pieces."""

    axes: Axes
    level: int
    piece: int

    @property
    def tail(self) -> int:
        """Inner indices for each place on the axis that is cut."""
        return size(self.axes[self.level + 1 :])

    @property
    def pieces(self) -> int:
        """Of that axis."""
        return -(-self.axes[self.level].size // self.piece)

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return size(self.axes[: self.level]) * self.pieces

    @property
    def depth(self) -> int:
        """Inner indices of a block, at most."""
        return self.piece * self.tail


@record
class Panels:
    """Panels in memory.

    buffer: where they are.  first: the place of the first one, by the axes of the batch.
    dtype: of an element, which a sum's holds.
    """

    buffer: int
    first: Expr
    dtype: DType


@record
class Blocking:
    """rows, columns: of a unit, whole tiles.  band: rows that are packed at a time, whole tiles.
    ready: panels of the columns that are in memory and need no packing.
    """

    tile: TileShape
    cut: Cut
    rows: int
    columns: int
    band: int
    ready: Panels | None = None


def lengths(target: LoopTarget) -> tuple[int, ...]:
    """Rows, columns and inner indices of f32 at which packed products change path: the sides of the
    first tile that is tried, the least sides, and the depth of a block.
    """
    vectors = _VECTORS[0]
    sides = _most_rows(vectors, target.registers), vectors * target.vector_bits // 32
    return tuple(sorted({*sides, _LEAST_ROWS, _LEAST_DEPTH, _DEPTH_BYTES // 4}))


def panel_bits(target: LoopTarget) -> int:
    """Bits of a row of a right panel of the tile that is tried first."""
    return _VECTORS[0] * target.vector_bits


def blocking(contraction: Contraction, target: LoopTarget) -> Blocking | None:
    """How to cut a contraction; None where packing does not pay."""
    dtype = contraction.fold.dtype
    rows, columns = size(contraction.left.axes), size(contraction.right.axes)
    inner = size(contraction.inner)
    if contraction.fold.kind != "add" or dtype.bits < 32:
        return None
    products, pair = rows * columns * inner, _in_pairs(contraction)
    least = 2 if pair and products >= _FEW_ROWS_PRODUCTS else _LEAST_ROWS
    if rows < least or columns < _LEAST_ROWS or inner < _LEAST_DEPTH or products < LEAST_PRODUCTS:
        return None
    lanes = target.vector_bits // dtype.bits
    near = (rows + columns) * inner * dtype.bits // 8 <= _NEAR_BYTES
    if near and not pair and _side_by_side(contraction, lanes):
        return None
    cut = _cut(contraction.inner, _DEPTH_BYTES * 8 // dtype.bits)
    if cut.depth + cut.blocks > LONGEST_CHAIN:
        return None
    # The pair of a last single index would reach beyond its panel.
    joined = rows <= _MOST_JOINED and inner % 2 == 0 and cut.depth % 2 == 0
    ready = panels(contraction, target) if joined or not pair else None
    tried = _VECTORS if ready is None else _VECTORS[:1]
    tile = replace(_tile((rows, columns), tried, lanes, target.registers), pair=pair)
    sizes = size(contraction.batch), rows, columns, inner
    unit = _units(sizes, tile, cut, target, dtype.bits // 8, ready is not None)
    return replace(unit, ready=ready)


def panels(contraction: Contraction, target: LoopTarget) -> Panels | None:
    """The right factor in memory, if it lies there as panels of `panel_bits`."""
    width = panel_bits(target) // contraction.fold.dtype.bits
    right = contraction.right
    factor = panel(contraction, replace(right, value=right.narrow))
    made = factor.body.outputs[0].producer
    if made is None or made.op.name != "load" or made.operands or made.attrs["mask"]:
        return None
    column, row = (flatten(map(Expr.of, axes), [a.size for a in axes])
                   for axes in (factor.axes, factor.inner))  # fmt: skip
    place = column // width * (size(factor.inner) * width) + row * width + column % width
    buffer, first = made.attrs["buffer"], made.attrs["index"] + place * -1
    if not first.axes().isdisjoint((*factor.axes, *factor.inner)):
        return None
    # A last panel is read whole, whatever it has in place of columns.
    end = first.last + -(-size(factor.axes) // width) * width * size(factor.inner)
    inside = first.first >= 0 and end <= contraction.kernel.buffers[buffer].type.size
    return Panels(buffer, first, made.result.dtype) if inside else None


def _in_pairs(contraction: Contraction) -> bool:
    """Whether sums are of 32 bits and both factors integers that 16 bits with a sign hold."""
    narrow = [f.narrow.dtype for f in (contraction.left, contraction.right)]
    fits = all(d in (i8, i16, u8) for d in narrow)
    return fits and contraction.fold.dtype in (i32, u32)


def _side_by_side(contraction: Contraction, lanes: int) -> bool:
    """Whether the columns of the right factor are neighbours in memory, a vector at least."""
    loads = [i for i in steps_of(contraction.kernel.stages[0].body, contraction.right.value)
             if i.op.name == "load"]  # fmt: skip
    last = next(a for a in reversed(contraction.right.axes) if a.size > 1)
    return last.size >= lanes and all(i.attrs["index"].coefficient(last) in (0, 1) for i in loads)


def _cut(axes: Axes, most: int) -> Cut:
    level = next(n for n in range(len(axes)) if size(axes[n + 1 :]) <= most)
    tail = size(axes[level + 1 :])
    count = axes[level].size
    pieces = -(-count // max(1, most // tail))
    piece = -(-count // pieces)
    # Whole vectors, where an axis is packed along.
    return Cut(axes, level, min(count, -(-piece // _EVEN) * _EVEN if tail == 1 else piece))


def _tile(sides: tuple[int, int], tried: Sequence[int], lanes: int, registers: int) -> TileShape:
    """The tile that covers rows and columns in the least time.  tried: vectors it may have."""
    rows, columns = sides
    best: tuple[float, TileShape] | None = None
    for vectors in tried:
        most = _most_rows(vectors, registers)
        for count in range(most, most // 2, -1):
            tile = TileShape(count, vectors, lanes)
            many = -(-rows // count) * -(-columns // tile.columns)
            # Two products and two loads may begin at a time.
            turn = max(count * vectors, count + vectors) / 2 + 0.5
            cost = many * turn
            if best is None or cost < best[0] * 0.995:
                best = (cost, tile)
    assert best is not None
    return best[1]


def _most_rows(vectors: int, registers: int) -> int:
    """Rows of a tile whose sums leave registers for a row of the right panel and one number."""
    return min((registers - vectors - 1) // vectors, _MOST_ROWS)


def _parts(tiles: int) -> Iterator[int]:
    """Every number of tiles in a unit that gives another number of units."""
    last = 0
    for units in range(1, tiles + 1):
        count = -(-tiles // units)
        if count != last:
            yield count
        last = count


def _band(rows: int, tile: TileShape, cut: Cut, bytes_each: int, cache_bytes: int) -> int:
    """How many of a unit's rows stay in a core's cache while columns stream through, in equal parts
    of whole tiles.  Columns are packed once for all of them where the inner axes are cut.
    """
    tiles = rows // tile.rows
    if cut.blocks == 1:
        return rows
    most = cache_bytes // (2 * bytes_each * cut.depth) - 2 * tile.columns
    parts = -(-tiles // max(1, most // tile.rows))
    return -(-tiles // parts) * tile.rows


def _fits(unit: Blocking, bytes_each: int, cache_bytes: int) -> bool:
    """Whether a band stays in a core's cache while columns stream through, and all of the unit in
    what the core may fill of the next cache.
    """
    band, columns = unit.band * unit.cut.depth, unit.columns * unit.cut.depth
    sums = unit.rows * unit.columns if unit.cut.blocks > 1 else 0
    near = band + 2 * unit.tile.columns * unit.cut.depth
    total = band + columns + sums
    return 2 * near * bytes_each <= cache_bytes and total * bytes_each <= _SHARED * cache_bytes


def _packing(unit: Blocking, down: int, bytes_each: int, target: LoopTarget, ready: bool) -> float:
    """What packing a unit costs for each inner index.  down: units below one another."""
    stays = 2 * (unit.band + unit.columns) * unit.cut.depth * bytes_each <= target.cache_bytes
    far = 0 if stays else unit.columns * _PACK_FAR
    # Packed columns serve the units below one another, and rows all others if there is one.
    rows = unit.rows if down > 1 or unit.cut.blocks > 1 else 0
    if ready:
        return rows * _PACK + unit.columns * _READ
    return (rows + unit.columns / (down if unit.cut.blocks == 1 else 1)) * _PACK + far


@cache
def _units(
    sizes: tuple[int, int, int, int],
    tile: TileShape,
    cut: Cut,
    target: LoopTarget,
    bytes_each: int,
    ready: bool,
) -> Blocking:
    members, rows, columns, inner = sizes
    down, across = -(-rows // tile.rows), -(-columns // tile.columns)
    best: tuple[float, Blocking] | None = None
    for i in _parts(down):
        for j in _parts(across):
            band = _band(i * tile.rows, tile, cut, bytes_each, target.cache_bytes)
            unit = Blocking(tile, cut, i * tile.rows, j * tile.columns, band)
            if not _fits(unit, bytes_each, target.cache_bytes) and i + j > 2:
                continue
            products = unit.rows * unit.columns / tile.lanes / 2
            packing = _packing(unit, -(-down // i), bytes_each, target, ready)
            cost = (products + packing) * inner + _START
            units = members * -(-down // i) * -(-across // j)
            rounds = math.ceil(units / target.threads)
            # A thread that comes late costs less where there is more to share.
            total = rounds * cost * (1 + 0.02 / rounds)
            if best is None or total < best[0]:
                best = (total, unit)
    assert best is not None
    return best[1]

"""How a contraction is blocked: the tile in registers, and the block in a core's cache.

The inner indices are split at a fixed depth, because that determines the order of additions.  The
rows and columns of a unit follow from the caches and the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

from bringup.dtypes import DType, i8, i16, i32, u8, u32
from bringup.graph.index import Expr, flatten
from bringup.integers import ceil_div, round_up
from bringup.kernel.contraction import Axes, Contraction, panel, size, steps_of
from bringup.llvm.loops.heuristics import LONGEST_CHAIN
from bringup.llvm.loops.heuristics import PRODUCTS as RULES
from bringup.records import record
from bringup.target import Target


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
    """The inner axes in blocks: axis ``level`` in pieces, axes outside it index by index."""

    axes: Axes
    level: int
    piece: int

    @property
    def tail(self) -> int:
        """Inner indices for each index of the axis that is split."""
        return size(self.axes[self.level + 1 :])

    @property
    def pieces(self) -> int:
        """Pieces of that axis."""
        return ceil_div(self.axes[self.level].size, self.piece)

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return size(self.axes[: self.level]) * self.pieces

    @property
    def depth(self) -> int:
        """The most inner indices of a block."""
        return self.piece * self.tail


@record
class Panels:
    """A factor whose panels are in memory already.

    buffer: where they are.  first: the index of the first panel, by the axes of the batch.
    dtype: of their elements, every one of which the dtype of a sum can hold.
    """

    buffer: int
    first: Expr
    dtype: DType


@record
class Blocking:
    """How a contraction is blocked.

    rows, columns: of a unit; whole bands and tiles.
    band: rows that are packed at a time; whole tiles.
    ready: panels of the columns that are in memory and need no packing.
    """

    tile: TileShape
    cut: Cut
    rows: int
    columns: int
    band: int
    ready: Panels | None = None


def blocking(contraction: Contraction, target: Target) -> Blocking | None:
    """The blocking of a contraction; None if packing does not pay."""
    dtype = contraction.fold.dtype
    rows, columns = size(contraction.left.axes), size(contraction.right.axes)
    inner = size(contraction.inner)
    if contraction.fold.kind != "add" or dtype.bits < 32:
        return None
    products, pair = rows * columns * inner, _in_pairs(contraction)
    least = 2 if pair and products >= RULES.few_rows_products else RULES.least_rows
    if products < RULES.least_products or inner < RULES.least_depth:
        return None
    if rows < least or columns < RULES.least_rows:
        return None
    lanes = target.vector_bits // dtype.bits
    near = (rows + columns) * inner * dtype.bits // 8 <= RULES.near_bytes
    if near and not pair and _has_contiguous_columns(contraction, lanes):
        return None
    cut = _cut(contraction.inner, RULES.depth_bytes * 8 // dtype.bits)
    if cut.depth + cut.blocks > LONGEST_CHAIN:
        return None
    # The pair of a last single index would exceed its panel.
    joined = rows <= RULES.most_joined and inner % 2 == 0 and cut.depth % 2 == 0
    ready = panels(contraction, target) if joined or not pair else None
    tried = RULES.vectors if ready is None else RULES.vectors[:1]
    tile = replace(_tile((rows, columns), tried, lanes, target), pair=pair)
    sizes = size(contraction.batch), rows, columns, inner
    unit = _units(sizes, tile, cut, target, dtype.bits // 8, ready is not None)
    return replace(unit, ready=ready)


def panels(contraction: Contraction, target: Target) -> Panels | None:
    """The right factor, if memory holds it as panels of `ProductRules.panel_bits`."""
    width = RULES.panel_bits(target) // contraction.fold.dtype.bits
    right = contraction.right
    factor = panel(contraction, replace(right, value=right.narrow))
    load = factor.body.outputs[0].producer
    if load is None or load.op.name != "load" or load.operands or load.attrs["mask"]:
        return None
    column, row = (
        flatten(map(Expr.of, axes), [a.size for a in axes]) for axes in (factor.axes, factor.inner)
    )
    index = column // width * (size(factor.inner) * width) + row * width + column % width
    buffer, first = load.attrs["buffer"], load.attrs["index"] + index * -1
    if not first.axes().isdisjoint((*factor.axes, *factor.inner)):
        return None
    # The last panel is read whole, even where it has no columns.
    end = first.last + round_up(size(factor.axes), width) * size(factor.inner)
    inside = first.first >= 0 and end <= contraction.kernel.buffers[buffer].type.size
    return Panels(buffer, first, load.result.dtype) if inside else None


def _in_pairs(contraction: Contraction) -> bool:
    """Whether sums have 32 bits and both factors are integers that a signed i16 can hold."""
    narrow = [f.narrow.dtype for f in (contraction.left, contraction.right)]
    fits = all(d in (i8, i16, u8) for d in narrow)
    return fits and contraction.fold.dtype in (i32, u32)


def _has_contiguous_columns(contraction: Contraction, lanes: int) -> bool:
    """Whether at least a vector of columns of the right factor is contiguous in memory."""
    steps = steps_of(contraction.kernel.stages[0].body, contraction.right.value)
    loads = [i for i in steps if i.op.name == "load"]
    last = next(a for a in reversed(contraction.right.axes) if a.size > 1)
    return last.size >= lanes and all(i.attrs["index"].coefficient(last) in (0, 1) for i in loads)


def _cut(axes: Axes, most: int) -> Cut:
    level = next(n for n in range(len(axes)) if size(axes[n + 1 :]) <= most)
    tail = size(axes[level + 1 :])
    count = axes[level].size
    pieces = ceil_div(count, max(1, most // tail))
    piece = ceil_div(count, pieces)
    # Whole vectors if vectors run along an axis.
    return Cut(axes, level, min(count, round_up(piece, RULES.even) if tail == 1 else piece))


def _tile(sides: tuple[int, int], tried: Sequence[int], lanes: int, target: Target) -> TileShape:
    """The tile that covers rows and columns in the least time.

    tried: how many vectors of columns it may have.
    """
    rows, columns = sides
    best: tuple[float, TileShape] | None = None
    for vectors in tried:
        most = RULES.tile_rows(vectors, target)
        for count in range(most, most // 2, -1):
            tile = TileShape(count, vectors, lanes)
            many = ceil_div(rows, count) * ceil_div(columns, tile.columns)
            # A core starts two products and two loads per cycle.
            cost = many * (max(count * vectors, count + vectors) / 2 + 0.5)
            if best is None or cost < best[0] * 0.995:
                best = (cost, tile)
    assert best is not None
    return best[1]


def _parts(tiles: int) -> Iterator[int]:
    """Numbers of tiles in a unit, each of which gives another number of units."""
    last = 0
    for units in range(1, tiles + 1):
        count = ceil_div(tiles, units)
        if count != last:
            yield count
        last = count


def _band(rows: int, tile: TileShape, cut: Cut, bytes_each: int, cache_bytes: int) -> int:
    """The rows that stay in a core's cache while columns stream through; whole tiles.

    If the inner axes are split, columns are packed once for all bands of a unit.
    """
    tiles = rows // tile.rows
    if cut.blocks == 1:
        return rows
    most = cache_bytes // (2 * bytes_each * cut.depth) - 2 * tile.columns
    parts = ceil_div(tiles, max(1, most // tile.rows))
    return ceil_div(tiles, parts) * tile.rows


def _fits(unit: Blocking, bytes_each: int, cache_bytes: int) -> bool:
    """Whether a band stays in a core's cache while columns stream through, and the whole unit in
    the core's share of the next cache.
    """
    band, columns = unit.band * unit.cut.depth, unit.columns * unit.cut.depth
    sums = unit.rows * unit.columns if unit.cut.blocks > 1 else 0
    near = band + 2 * unit.tile.columns * unit.cut.depth
    total = band + columns + sums
    return 2 * near * bytes_each <= cache_bytes and total * bytes_each <= RULES.shared * cache_bytes


def _packing(unit: Blocking, down: int, bytes_each: int, target: Target, ready: bool) -> float:
    """The cost of packing a unit per inner index.  down: number of units below one another."""
    stays = 2 * (unit.band + unit.columns) * unit.cut.depth * bytes_each <= target.cache_bytes
    far = 0 if stays else unit.columns * RULES.pack_far
    # Units below one another share packed columns; a single row of units shares packed rows.
    rows = unit.rows if down > 1 or unit.cut.blocks > 1 else 0
    if ready:
        return rows * RULES.pack + unit.columns * RULES.read
    return (rows + unit.columns / (down if unit.cut.blocks == 1 else 1)) * RULES.pack + far


@cache
def _units(
    sizes: tuple[int, int, int, int],
    tile: TileShape,
    cut: Cut,
    target: Target,
    bytes_each: int,
    ready: bool,
) -> Blocking:
    members, rows, columns, inner = sizes
    down, across = ceil_div(rows, tile.rows), ceil_div(columns, tile.columns)
    best: tuple[float, Blocking] | None = None
    for i in _parts(down):
        for j in _parts(across):
            band = _band(i * tile.rows, tile, cut, bytes_each, target.cache_bytes)
            unit = Blocking(tile, cut, round_up(i * tile.rows, band), j * tile.columns, band)
            if not _fits(unit, bytes_each, target.cache_bytes) and i + j > 2:
                continue
            products = unit.rows * unit.columns / tile.lanes / 2
            packing = _packing(unit, ceil_div(rows, unit.rows), bytes_each, target, ready)
            cost = (products + packing) * inner + RULES.start
            units = members * ceil_div(rows, unit.rows) * ceil_div(across, j)
            rounds = math.ceil(units / target.threads)
            # A late thread costs less if there are more units to share.
            total = rounds * cost * (1 + RULES.late / rounds)
            if best is None or total < best[0]:
                best = (total, unit)
    assert best is not None
    return best[1]

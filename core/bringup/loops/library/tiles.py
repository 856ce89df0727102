"""Matrices in scratch memory, and products of them in tiles of registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal as OneOf

from bringup.dtypes import DType
from bringup.graph.index import ZERO, Bound, Expr
from bringup.integers import ceil_div, ceil_power_of_two, round_up
from bringup.loops.form import Buffer, Scalar
from bringup.loops.library.builder import FuncBuilder, below
from bringup.loops.library.calls import OpCall
from bringup.records import record

#: Rows of a tile of a machine with sixteen vector registers.
_ROWS = 4
#: Vectors of a row of a tile.
_VECTORS = 2
#: Rows and columns of a square that is transposed in registers.
SQUARE = 8
#: Bits of the vectors of a machine that leaves them to its compiler.
_USUAL_BITS = 128
#: Which squares of a matrix.
Part = OneOf["all", "upper", "lower"]
#: An element by its row and its column.
At = Callable[[Expr, Expr], Scalar]
#: Factors by row and term, and by term and column; how many terms, and where they end earlier.
Products = tuple[At, At, int, Expr | None]
#: The number of a row.
Scale = Callable[[Expr], Scalar]


@record(eq=False)
class Matrix:
    """A matrix in scratch memory, row by row.

    by: elements from row to row, at least as many as there are columns.
    """

    b: FuncBuilder
    buffer: Buffer
    by: int

    def place(self, i: Expr, j: Expr) -> Expr:
        """Where an element stands."""
        return i * self.by + j

    @property
    def dtype(self) -> DType:
        """Of the elements."""
        return self.buffer.dtype

    def get(self, i: Expr, j: Expr, *mask: Bound) -> Scalar:
        """An element, 0 where a bound does not hold."""
        return self.b.load(self.buffer, self.place(i, j), *mask)

    def from_(self, i: Expr, j: Expr) -> At:
        """The elements of the part that begins at a place."""
        return shifted(self.get, i, j)

    def transposed_from(self, i: Expr, j: Expr) -> At:
        """The same, with rows as columns and columns as rows."""
        return lambda r, c: self.get(i + c, j + r)

    def set(self, i: Expr, j: Expr, value: Scalar, *mask: Bound) -> None:
        """Change an element where bounds hold."""
        self.b.store(self.buffer, self.place(i, j), value, mask=mask)

    def add(self, i: Expr, j: Expr, value: Scalar, factor: Scalar | None = None) -> None:
        """Add to an element."""
        self.b.store(self.buffer, self.place(i, j), value, fold="add", factor=factor)


def usual_lanes(call: OpCall, dtype: DType) -> int:
    """Elements of a vector; of a usual one where the machine's compiler makes them."""
    return max((call.target.vector_bits or _USUAL_BITS) // dtype.bits, 1)


def shifted(at: At, i: Expr, j: Expr = ZERO) -> At:
    """The elements from a row and a column on."""
    return lambda r, c: at(i + r, j + c)


def reaches(end: Expr, size: int) -> bool:
    """Whether what ends there is surely the last part."""
    return end.is_const and end.const >= size


def diagonal(at: At) -> Scale:
    """The elements on the diagonal."""
    return lambda r: at(r, r)


def blocks(
    b: FuncBuilder, name: str, n: int, size: int, *, backward: bool = False
) -> Iterator[tuple[Expr, int]]:
    """The first number of each block of 0 … n − 1 and their count; the last may be smaller.

    What is emitted before the next block is asked for is done for each.
    """
    if n % size and backward:
        yield Expr(n - n % size), n % size
    if n >= size:
        with b.loop(name, n // size) as block:
            yield (block * -1 + (n // size - 1) if backward else block) * size, size
    if n % size and not backward:
        yield Expr(n - n % size), n % size


@record(eq=False)
class Tiles:
    """Tiles of a matrix, of which every element is in a register while products are added to it.

    rows: of a tile.  lanes: of a vector.  width: columns of a tile, which are whole vectors.
    """

    b: FuncBuilder
    dtype: DType
    rows: int
    lanes: int
    width: int

    @classmethod
    def of(cls, b: FuncBuilder, call: OpCall, dtype: DType, rows: int, columns: int) -> Tiles:
        """Tiles that a machine has the registers for, no larger than a matrix."""
        lanes = min(usual_lanes(call, dtype), ceil_power_of_two(columns))
        width = lanes * max(min(_VECTORS, ceil_div(columns, lanes)), 1)
        most = 2 * _ROWS if call.target.registers >= 32 else _ROWS
        return cls(b, dtype, min(most, ceil_power_of_two(rows)), lanes, width)

    def matrix(self, name: str, rows: int, columns: int) -> Matrix:
        """Memory for a matrix of whole tiles.

        Rows a power of two apart would share few sets of a cache.
        """
        by = round_up(columns, self.width)
        by += self.lanes if by > 2 * self.width else 0
        return Matrix(self.b, self.b.alloc(name, self.dtype, rows * by), by)

    def bands(self, n: int) -> Iterator[tuple[Expr, int]]:
        """The first row of each band of as many rows as a tile has, and their number."""
        return blocks(self.b, "band", n, self.rows)

    @contextmanager
    def right_of(self, first: Expr, columns: int) -> Iterator[Expr]:
        """The first column of each tile, beginning with the one that holds column ``first``."""
        count = ceil_div(columns, self.width)
        before = first // self.width
        with self.b.loop("tile", count, until=before * -1 + count) as tile:
            yield (before + tile) * self.width

    @contextmanager
    def squares(
        self, rows: int, columns: int, part: Part = "all"
    ) -> Iterator[tuple[Expr, Expr, tuple[Bound, ...]]]:
        """Every row and column in squares of vectors, and bounds; lanes are columns.

        What is read from column to column and written from row to row is transposed in registers.
        part: squares above or below those on the diagonal are left out.
        """
        lanes = min(self.lanes, SQUARE)
        loops = {"i": ceil_div(rows, lanes), "j": ceil_div(columns, lanes)}
        outer, inner = ("j", "i") if part == "upper" else ("i", "j")
        beyond = {"all": None, "upper": self.width // lanes, "lower": 1}[part]
        with self.b.loop(f"{outer}.square", loops[outer]) as o:
            until = None if beyond is None else o + beyond
            with self.b.loop(f"{inner}.square", loops[inner], until=until) as k:
                first = {outer: o * lanes, inner: k * lanes}
                with self.points(lanes, lanes) as (r, lane):
                    i, j = first["i"] + r, first["j"] + lane
                    yield i, j, (below(i, rows), below(j, columns))

    def pad(self, matrix: Matrix, rows: int, columns: int) -> None:
        """Write zeros to the columns that only fill the last tiles."""
        more = round_up(columns, self.width) - columns
        if more:
            zero = self.b.constant(0.0, self.dtype)
            with self.b.loop("i", rows) as i, self.b.loop("j", more) as j:
                matrix.set(i, j + columns, zero)

    @contextmanager
    def across(self, count: int) -> Iterator[Expr]:
        """So many neighbouring columns, in vectors."""
        b, lanes = self.b, min(self.lanes, count)
        if count > lanes:
            with b.loop("v", count // lanes, "unroll") as v, b.loop("l", lanes, "vector") as lane:
                yield v * lanes + lane
        elif lanes > 1:
            with b.loop("l", lanes, "vector") as lane:
                yield lane
        else:
            yield Expr()

    @contextmanager
    def points(self, rows: int, width: int) -> Iterator[tuple[Expr, Expr]]:
        """Every element of a tile."""
        with self.b.loop("r", rows, "unroll") as r, self.across(width) as lane:
            yield r, lane

    def load(self, at: At, rows: int, width: int) -> Tile:
        """A tile with the elements that ``at`` gives."""
        tile = Tile(self, self.b.alloc("tile", self.dtype, rows * width, "register"), rows, width)
        with self.points(rows, width) as (r, lane):
            tile.set(r, lane, at(r, lane))
        return tile

    def rest(self, at: At, shape: tuple[int, int], products: Products) -> Tile:
        """A tile with the elements that ``at`` gives, less sums of products.

        shape: rows and columns.  The sums come first: their roundings are smaller than those of
        what is left.
        """
        zero = self.b.constant(0.0, self.dtype)
        tile = self.load(lambda r, lane: zero, *shape)
        tile.add_products(*products)
        with self.points(*shape) as (r, lane):
            tile.set(r, lane, self.b.op("sub", at(r, lane), tile.get(r, lane)))
        return tile


@record(eq=False)
class Tile:
    """One tile, in registers."""

    tiles: Tiles
    buffer: Buffer
    rows: int
    width: int

    def get(self, r: Expr, lane: Expr) -> Scalar:
        """An element."""
        return self.tiles.b.load(self.buffer, r * self.width + lane)

    def set(self, r: Expr, lane: Expr, value: Scalar) -> None:
        """Change an element."""
        self.tiles.b.store(self.buffer, r * self.width + lane, value)

    def add(self, r: Expr, lane: Expr, value: Scalar, factor: Scalar) -> None:
        """Add a product to an element."""
        place = r * self.width + lane
        self.tiles.b.store(self.buffer, place, value, fold="add", factor=factor)

    def add_products(
        self, factor: At, other: At, terms: int, until: Expr | None = None, *, less: bool = False
    ) -> None:
        """Add ``Σ factor(row, p) · other(p, column)``, or subtract it if ``less``."""
        b = self.tiles.b
        with (
            b.loop("p", terms, until=until) as p,
            self.tiles.points(self.rows, self.width) as (r, lane),
        ):
            weight = factor(r, p)
            self.add(r, lane, other(p, lane), b.op("neg", weight) if less else weight)

    def subtract(self, factor: At, other: At, terms: int, until: Expr | None = None) -> None:
        """Subtract ``Σ factor(row, p) · other(p, column)``."""
        self.add_products(factor, other, terms, until, less=True)

    def solve(self, factor: At, scale: Scale | None = None, op: str = "div") -> None:
        """Solve a system whose right-hand sides are the columns, by its lower triangle.

        scale: by which a row is divided at the end, or multiplied if that is ``op``; the diagonal.
        """
        b = self.tiles.b
        with b.loop("r", self.rows, "unroll") as r:
            with b.loop("q", self.rows, "unroll", until=r) as q:
                less = b.op("neg", factor(r, q))
                with self.tiles.across(self.width) as lane:
                    self.add(r, lane, self.get(q, lane), less)
            if scale is not None:
                by = scale(r)
                with self.tiles.across(self.width) as lane:
                    self.set(r, lane, b.op(op, self.get(r, lane), by))

    def store(self, matrix: Matrix, i: Expr, j: Expr) -> None:
        """Write all elements from a place on."""
        with self.tiles.points(self.rows, self.width) as (r, lane):
            matrix.set(i + r, j + lane, self.get(r, lane))


__all__ = [
    "SQUARE",
    "At",
    "Matrix",
    "Tile",
    "Tiles",
    "blocks",
    "diagonal",
    "reaches",
    "shifted",
    "usual_lanes",
]

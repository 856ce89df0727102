"""Attention on warps that multiply tiles: scores and exponentials stay in registers.

Those of a row are with four neighbouring lanes, which is where the instruction takes them as its
left factor.  Such factors have few bits, while the op asks for those of f32; so an exponential is
the sum of two or three factors, each the rounded remainder of those before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from bringup.dtypes import f32, u32
from bringup.graph.index import Expr
from bringup.loops.form import Scalar
from bringup.loops.library.attention_blocks import (
    CHUNK,
    TILES,
    WARPS,
    Block,
    Part,
    SharedTile,
    Sums,
    Tile,
    count_of,
    over,
    own,
)
from bringup.loops.library.builder import FuncBuilder
from bringup.loops.library.calls import OpCall

#: Rows, columns, and bytes of inner elements of the instruction; lanes of a warp down and across
#: the sums that it makes.
_ROWS, _COLUMNS, _BYTES = 16, 8, 32
_DOWN, _ACROSS = 8, 4
#: By the dtype of factors: how many of them are the sum of an exponential, exact to 22 to 24 bits,
#: and by what that is multiplied, so that the remainder of one rounding is not too small for the
#: next: an exponential is 1 at most.
_TERMS = {"f16": (2, 16384.0), "bf16": (3, 1.0), "f32": (2, 1.0)}
#: Bits of f32 that a factor does not have.
_CUT = 13
#: Exponentials that are computed together, so that what few of them need is tested once; more would
#: take more registers.
_TOGETHER = 8


class Matrices(Block):
    """A warp has sixteen queries.

    weights: the factors whose sums are exponentials.
    """

    tiles = tuple(tile for tile in TILES if tile.queries == WARPS * _ROWS)

    def __init__(
        self, call: OpCall, b: FuncBuilder, tile: Tile, where: tuple[Expr, Expr, Expr]
    ) -> None:
        super().__init__(call, b, tile, where)
        self.narrow = call.types[0].dtype
        self.terms, self.times = _TERMS[self.narrow.name]
        self.inner = _BYTES // self.narrow.itemsize
        self.by = f"{_ROWS}x{_COLUMNS}x{self.inner}"
        size = self.terms * tile.queries * tile.keys
        self.weights = b.alloc("weights", self.narrow, size, "fragment")
        self.factors = b.alloc("factors", self.dtype, tile.queries * self.lanes, "fragment")

    @classmethod
    def nbytes(cls, call: OpCall, tile: Tile) -> int:
        """With gaps, where values are read word by word."""
        gap = CHUNK if call.types[2].dtype.itemsize == 4 else 0
        return super().nbytes(call, tile) + tile.keys * gap

    @property
    def lanes(self) -> int:
        """Those across the sums of an instruction."""
        return _ACROSS

    def shared(self, name: str, number: int, rows: int, columns: int) -> SharedTile:
        """Chunks change places, but where values are read word by word."""
        dtype = self.call.types[number].dtype
        if number == 2 and dtype.itemsize == 4:
            return self.tile_of(name, dtype, rows, columns, CHUNK // dtype.itemsize)
        return self.tile_of(name, dtype, rows, columns, 0, columns)

    def fragment(self, name: str, number: int, columns: int) -> Sums:
        """As the instruction has sums."""
        buffer = self.b.alloc(name, self.dtype, self.tile.queries * columns, "fragment")
        return Sums(
            buffer,
            (
                Part("w", WARPS, _ROWS, "thread"),
                Part("y", _DOWN, 1, "thread"),
                Part("l", _ROWS // _DOWN, _DOWN),
            ),
            (
                Part("x", _ACROSS, _COLUMNS // _ACROSS, "thread"),
                Part("q", columns // _COLUMNS, _COLUMNS),
                Part("c", _COLUMNS // _ACROSS, 1),
            ),
        )

    @contextmanager
    def row_threads(self) -> Iterator[tuple[Expr, Expr]]:
        """Loops over threads: the first row of each, and its lane."""
        with (
            over(self.b, "thread", self.sums.rows) as (row,),
            self.b.loop("x", _ACROSS, "thread") as lane,
        ):
            yield row, lane

    def own_rows(self) -> AbstractContextManager[tuple[Expr, Expr]]:
        """A loop over the rows of a thread."""
        return own(self.b, self.sums.rows)

    @contextmanager
    def rows(self) -> Iterator[tuple[Expr, Expr]]:
        """Two of each thread."""
        with self.row_threads() as (row, lane), self.own_rows() as (r, _):
            yield row + r, lane

    def multiply_keys(self, scores: Sums) -> None:
        """All in shared memory."""
        b = self.b
        with (
            over(b, "thread", scores.rows[:1]) as (warp,),
            b.loop("s", self.tile.depth // self.inner, "unroll") as s,
            self.product(scores) as (_, row, column),
            b.loop("e", self.inner) as e,
        ):
            inner = s * self.inner + e
            x = b.load(self.queries.buffer, self.queries.at(warp + row, inner))
            y = b.load(self.keys.buffer, self.keys.at(column, inner))
            self.add(scores, warp + row, column, x, y)

    def multiply_values(self) -> None:
        """Exponentials as they are in registers: each is with the lane that had the score."""
        b, sums, tile = self.b, self.sums, self.tile
        self.rescale()
        step, halves = _COLUMNS // _ACROSS, self.inner // _COLUMNS
        with (
            over(b, "thread", sums.rows[:1]) as (warp,),
            b.loop("s", tile.keys // self.inner, "unroll") as s,
            self.product(sums, self.terms) as (t, row, column),
            ExitStack() as stack,
        ):
            half = stack.enter_context(b.loop("h", halves)) if halves > 1 else Expr()
            lane, n = (stack.enter_context(b.loop(*of)) for of in (("e", _ACROSS), ("p", step)))
            place = ((t * tile.queries + warp + row) * self.lanes + lane) * (tile.keys // _ACROSS)
            x = b.load(self.weights, place + (s * halves + half) * step + n)
            key = s * self.inner + half * _COLUMNS + lane * step + n
            y = b.load(self.values.buffer, self.values.at(key, column))
            self.add(sums, warp + row, column, x, y)

    def rescale(self) -> None:
        """Multiply sums by the factors of their rows."""
        b, sums = self.b, self.sums
        with self.rows() as (row, lane):
            factor = b.load(self.factors, row * self.lanes + lane)
            with own(b, sums.columns) as (c, _):
                place = sums.at(row, lane * (_COLUMNS // _ACROSS) + c)
                b.store(sums.buffer, place, b.op("mul", b.load(sums.buffer, place), factor))

    @contextmanager
    def product(self, sums: Sums, terms: int = 1) -> Iterator[tuple[Expr, Expr, Expr]]:
        """Loops over the products of a warp, for each term, and over the sums of each."""
        b, rows, columns = self.b, sums.rows[1:], sums.columns
        with (
            over(b, "unroll", columns[1:2]) as (block,),
            b.loop("t", terms, "unroll") as t,
            over(b, "thread", rows, columns, by=self.by) as (y, x),
            over(b, "unroll", rows, columns[2:]) as (r, c),
        ):
            yield t, y + r, block + x + c

    def add(self, sums: Sums, row: Expr, column: Expr, x: Scalar, y: Scalar) -> None:
        """Add a product."""
        b = self.b
        x, y = b.convert(x, self.dtype), b.convert(y, self.dtype)
        place = sums.at(row, column)
        b.store(sums.buffer, place, x, fold="add", factor=y, precision=self.precision)

    def hand_over(self, scores: Sums) -> None:
        """They stay where they are."""

    def softmax(self, scores: Sums, key: Expr) -> None:
        """In registers."""
        b, parts = self.b, scores.columns[1:]
        count = count_of(parts)
        with self.row_threads() as (first, lane):
            powers = b.alloc("powers", self.dtype, _ROWS // _DOWN * count, "register")
            with self.own_rows() as (r, i):
                row, column = first + r, lane * (_COLUMNS // _ACROSS)
                last = b.variable("last", b.load(self.tops, row * self.lanes + lane))
                with own(b, parts) as (c, n):
                    product = b.load(scores.buffer, scores.at(row, column + c))
                    b.store(powers, i * count + n, self.score(product, row, key + column + c))
                with b.loop("n", count, "unroll") as n:
                    b.set(last, b.load(powers, i * count + n), fold="max")
                base, factor = self.top(row, lane, last)
                b.store(self.factors, row * self.lanes + lane, factor)
                with self.together(count) as n:
                    power = b.op("exp", b.op("sub", b.load(powers, i * count + n), base))
                    b.store(powers, i * count + n, power)
            with self.own_rows() as (r, i):
                place = (first + r) * self.lanes + lane
                before = b.op("mul", b.load(self.totals, place), b.load(self.factors, place))
                total = b.variable("total", before)
                with self.together(count) as n:
                    power = self.keep(b.load(powers, i * count + n), place * count + n)
                    b.store(powers, i * count + n, power)
                with b.loop("n", count, "unroll") as n:
                    b.set(total, b.op("add", b.load(total), b.load(powers, i * count + n)))
                b.store(self.totals, place, b.load(total))

    @contextmanager
    def together(self, count: int) -> Iterator[Expr]:
        """Loops over the scores of a row that a thread has, some at once."""
        b, lanes = self.b, min(count, _TOGETHER)
        with b.loop("o", count // lanes, "unroll") as o, b.loop("v", lanes, "vector") as v:
            yield o * lanes + v

    def keep(self, power: Scalar, place: Expr) -> Scalar:
        """Keep the factors whose sum is an exponential, which is returned.

        The instruction itself rounds the last one of f32.
        """
        b = self.b
        if self.times != 1:
            power = b.op("mul", power, b.constant(self.times, self.dtype))
        left = power
        for term in range(self.terms):
            is_last = term == self.terms - 1
            part = left if is_last and self.narrow is f32 else self.rounded(left)
            b.store(self.weights, place + term * (self.weights.size // self.terms), part)
            if not is_last:
                left = b.op("sub", left, b.convert(part, self.dtype))
        return power

    def rounded(self, value: Scalar) -> Scalar:
        """The nearest number that is a factor."""
        b = self.b
        if self.narrow is not f32:
            return b.convert(value, self.narrow)
        bits = b.op("bitcast", value, dtype=u32)
        bits = b.op("add", bits, b.constant(1 << _CUT - 1, u32))
        bits = b.op("and", bits, b.constant((1 << 32) - (1 << _CUT), u32))
        return b.op("bitcast", bits, dtype=f32)

    def total_of(self, total: Scalar, lane: Expr) -> Scalar:
        """Each thread has the sum of its own."""
        return self.fold(total, lane, lambda x, y: self.b.op("add", x, y))


__all__ = ["Matrices"]

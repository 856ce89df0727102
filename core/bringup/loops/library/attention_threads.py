"""Attention on threads that multiply by themselves.

Scores and exponentials pass through shared memory, where neighbouring threads share a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from bringup.graph.index import Expr
from bringup.loops.form import Scalar
from bringup.loops.library.attention_blocks import (
    CHUNK,
    Block,
    Part,
    SharedTile,
    Sums,
    Tile,
    count_of,
    over,
    own,
)
from bringup.loops.library.builder import FuncBuilder, below, wide
from bringup.loops.library.calls import OpCall

#: Threads of a block across, inner elements whose products are written out, and elements of a row
#: of scores.
_ACROSS, _INNER, _SCORES = 8, 8, 4


class Threads(Block):
    """Each thread multiplies rows by columns in registers, which it reads from shared memory.

    weights: scores, then exponentials.
    """

    few = 32

    def __init__(
        self, call: OpCall, b: FuncBuilder, tile: Tile, where: tuple[Expr, Expr, Expr]
    ) -> None:
        super().__init__(call, b, tile, where)
        gap = 2 * CHUNK // self.dtype.itemsize
        self.weights = self.tile_of("weights", self.dtype, tile.queries, tile.keys, gap)
        self.factors = b.alloc("factors", self.dtype, tile.queries, "shared")

    @classmethod
    def nbytes(cls, call: OpCall, tile: Tile) -> int:
        """With gaps, scores and factors."""
        row = (tile.keys + 1) * wide(call.types[0].dtype).itemsize + 3 * CHUNK
        return super().nbytes(call, tile) + tile.queries * row + 2 * tile.keys * CHUNK

    @property
    def lanes(self) -> int:
        """What is left of the threads, if each row has one."""
        return max(self.threads // self.tile.queries, 1)

    def shared(self, name: str, number: int, rows: int, columns: int) -> SharedTile:
        """Rows with a gap, so that vectors of several rows are in other banks."""
        dtype = self.call.types[number].dtype
        return self.tile_of(name, dtype, rows, columns, CHUNK // dtype.itemsize)

    def fragment(self, name: str, number: int, columns: int) -> Sums:
        """A thread has neighbours where they are neighbours in memory, else every few columns."""
        across = min(_ACROSS, self.threads)
        down, count = self.threads // across, columns // across
        quad = 1
        if number == 2:
            quad = min(CHUNK // self.call.types[number].dtype.itemsize, count)
        buffer = self.b.alloc(name, self.dtype, self.tile.queries * columns, "fragment")
        return Sums(
            buffer,
            (Part("y", down, 1, "thread"), Part("r", self.tile.queries // down, down)),
            (
                Part("x", across, quad, "thread"),
                Part("q", count // quad, across * quad),
                Part("l", quad, 1),
            ),
        )

    @contextmanager
    def rows(self) -> Iterator[tuple[Expr, Expr]]:
        """Neighbouring threads share a row."""
        b, lines = self.b, min(self.threads, self.tile.queries)
        with (
            b.loop("i", lines, "thread") as i,
            b.loop("n", self.lanes, "thread") as lane,
            b.loop("r", self.tile.queries // lines, "unroll") as r,
        ):
            yield r * lines + i, lane

    def multiply_keys(self, scores: Sums) -> None:
        """Of rows of both."""
        lanes = CHUNK // self.call.types[0].dtype.itemsize // 2
        with self.step(scores, self.tile.depth, lanes) as (inner, y, x):
            xs = self.vectors("xs", self.queries, scores.rows, y, inner, lanes)
            ys = self.vectors("ys", self.keys, scores.columns, x, inner, lanes)
            self.multiply(scores, (y, x), xs, lambda v, n: ys(n, v), lanes)

    def multiply_values(self) -> None:
        """Of rows of exponentials and columns of values."""
        b, sums, values = self.b, self.sums, self.values
        with self.elements(sums) as (row, column):
            place = sums.at(row, column)
            value = b.op("mul", b.load(sums.buffer, place), b.load(self.factors, row))
            b.store(sums.buffer, place, value)
        lanes = CHUNK // self.dtype.itemsize
        with self.step(sums, self.tile.keys, lanes) as (inner, y, x):
            xs = self.vectors("xs", self.weights, sums.rows, y, inner, lanes)
            count = count_of(sums.columns)
            ys = b.alloc("ys", self.dtype, lanes * count, "register")
            with b.loop("k.v", lanes, "unroll") as v, own(b, sums.columns, "vector") as (c, n):
                value = b.load(values.buffer, values.at(inner + v, x + c))
                b.store(ys, v * count + n, b.convert(value, self.dtype))
            self.multiply(sums, (y, x), xs, lambda v, n: b.load(ys, v * count + n), lanes)

    @contextmanager
    def step(self, sums: Sums, depth: int, lanes: int) -> Iterator[tuple[Expr, Expr, Expr]]:
        """Loops over inner elements, so many at a time: the first, and that row and column."""
        b = self.b
        with (
            over(b, "thread", sums.rows, sums.columns) as (y, x),
            b.loop("k.o", depth // _INNER) as o,
            b.loop("k.j", _INNER // lanes, "unroll") as j,
        ):
            yield o * _INNER + j * lanes, y, x

    def vectors(
        self,
        name: str,
        tile: SharedTile,
        parts: Sequence[Part],
        first: Expr,
        inner: Expr,
        lanes: int,
    ) -> Callable[[Expr, Expr], Scalar]:
        """Neighbouring elements of the rows of a thread: gives one of a row."""
        b = self.b
        buffer = b.alloc(name, self.dtype, count_of(parts) * lanes, "register")
        with own(b, parts) as (place, n), b.loop("k.v", lanes, "vector") as v:
            value = b.load(tile.buffer, tile.at(first + place, inner + v))
            b.store(buffer, n * lanes + v, b.convert(value, self.dtype))
        return lambda n, v: b.load(buffer, n * lanes + v)

    def multiply(
        self,
        sums: Sums,
        first: tuple[Expr, Expr],
        xs: Callable[[Expr, Expr], Scalar],
        ys: Callable[[Expr, Expr], Scalar],
        lanes: int,
    ) -> None:
        """Add all products of elements in registers."""
        b, (y, x) = self.b, first
        with (
            b.loop("k.v", lanes, "unroll") as v,
            own(b, sums.rows) as (r, n),
            own(b, sums.columns) as (c, m),
        ):
            one, other = xs(n, v), ys(v, m)
            b.store(sums.buffer, sums.at(y + r, x + c), one, fold="add", factor=other)

    def hand_over(self, scores: Sums) -> None:
        """To the threads that share a row."""
        with self.elements(scores) as (row, column):
            value = self.b.load(scores.buffer, scores.at(row, column))
            self.b.store(self.weights.buffer, self.weights.at(row, column), value)

    def softmax(self, scores: Sums, key: Expr) -> None:
        """In shared memory."""
        b, weights, count = self.b, self.weights, self.tile.keys // self.lanes // _SCORES
        with self.rows() as (row, lane):
            last = b.variable("last", b.load(self.tops, row * self.lanes + lane))
            with b.loop("s", count) as s, b.loop("e", _SCORES, "unroll") as e:
                column = self.column(s, e, lane)
                place = weights.at(row, column)
                score = self.score(b.load(weights.buffer, place), row, key + column)
                b.store(weights.buffer, place, score)
                b.set(last, self.rule.larger(score, b.load(last)))
            base, factor = self.top(row, lane, last)
            b.store(self.factors, row, factor, mask=[below(lane, 1)])
            total = b.variable("total", b.constant(0, self.dtype))
            with b.loop("s", count) as s:
                powers = b.alloc("powers", self.dtype, _SCORES, "register")
                with b.loop("e", _SCORES, "unroll") as e:
                    score = b.load(weights.buffer, weights.at(row, self.column(s, e, lane)))
                    b.store(powers, e, b.op("sub", score, base))
                # Together, so that what few of them need is tested once.
                with b.loop("v", _SCORES, "vector") as v:
                    b.store(powers, v, b.op("exp", b.load(powers, v)))
                with b.loop("e", _SCORES, "unroll") as e:
                    power = b.load(powers, e)
                    b.store(weights.buffer, weights.at(row, self.column(s, e, lane)), power)
                    b.set(total, b.op("add", b.load(total), power))
            b.set(total, self.fold(b.load(total), lane, lambda x, y: b.op("add", x, y)))
            before = b.load(self.totals, row * self.lanes + lane)
            b.set(total, before, fold="add", factor=factor)
            b.store(self.totals, row * self.lanes + lane, b.load(total))

    def column(self, s: Expr, e: Expr, lane: Expr) -> Expr:
        """One of those of a row that a thread has, which takes several at once."""
        return (s * _SCORES + e) * self.lanes + lane

    def total_of(self, total: Scalar, lane: Expr) -> Scalar:
        """All threads of a row have it."""
        return total


__all__ = ["Threads"]

"""Implicit QR steps on two diagonals, whose rotations are applied to the vectors in batches of many
steps, a few columns at a time, so that these columns stay in the nearest cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from bringup.dtypes import DType, bool_, f64, i32
from bringup.graph.index import ZERO, Bound, Expr
from bringup.integers import ceil_div, round_up
from bringup.loops.form import Buffer, Scalar
from bringup.loops.library.builder import FuncBuilder, data
from bringup.loops.library.lines import Line
from bringup.loops.library.tiles import Matrix
from bringup.records import record

#: QR steps whose rotations are applied together.
_BATCH = 32
#: Vectors of columns that rotations are applied to at once: enough to hide the latency of an fma,
#: and few enough for sixteen registers.
_COLUMN_VECTORS = 4
#: An off-diagonal element is negligible below this many roundoffs of its two diagonal neighbours.
#: That is about what rounding leaves there after a step on two equal values.
_NEGLIGIBLE = 4
#: The result is NaN after so many QR steps per value; two are usual.
_MAX_STEPS = 40


@record(eq=False)
class Rotated:
    """Vectors as rows, which the rotations change.

    line: a vector.  rows: the vectors.  block: elements that are changed at a time.
    rotations: sines and tangents of half the angles of a batch, those of a step in one row.
    ordered: memory for the vectors in the order of their values.
    """

    line: Line
    rows: Matrix
    count: int
    block: int
    rotations: Matrix
    ordered: Matrix

    @classmethod
    def of(cls, line: Line, q: Matrix, count: int) -> Rotated:
        """The first ``count`` columns of ``q``, whose memory is used anew."""
        b, dtype, lanes, size = line.b, q.dtype, line.lanes, line.length
        block = lanes * max(min(_COLUMN_VECTORS, ceil_div(size, lanes)), 1)
        by = round_up(size, block)
        # Rows that are a multiple of 1 KiB apart would share few sets of a cache.
        by += block if by * dtype.itemsize % 1024 == 0 else 0
        rows = Matrix(b, b.alloc("rows", dtype, count * by), by)
        zero = b.constant(0.0, dtype)
        with b.loop("i", count) as i, b.loop("c", by) as c:
            rows.set(i, c, zero)
        with line.tiles.squares(count, size) as (i, j, mask):
            rows.set(i, j, q.get(j, i, *mask), *mask)
        rotations = Matrix(b, b.alloc("rotations", dtype, _BATCH * 2 * count), 2 * count)
        return cls(line, rows, count, block, rotations, Matrix(b, q.buffer, line.whole))

    def order(self, places: Buffer, values: int, factor: Callable[[Expr], Scalar]) -> None:
        """Copy the vectors to the places of their values; those without a value come last.

        factor: of a vector, by its number.
        """
        b, n = self.line.b, self.line.length
        with b.loop("i", values) as i:
            to, by = [b.load(places, i)], factor(i)
            with b.loop("c", n) as c:
                value = b.op("mul", self.rows.get(i, c), by)
                b.store(self.ordered.buffer, self.ordered.place(data(values), c), value, named=to)
        with b.loop("i", self.count - values) as more, b.loop("c", n) as c:
            i = more + values
            self.ordered.set(i, c, b.op("mul", self.rows.get(i, c), factor(i)))

    def put(self, target: Buffer, s: Expr, *, is_column: bool) -> None:
        """Store the ordered vectors as matrix ``s`` of a stack: as its columns, or as its rows."""
        b, n, count = self.line.b, self.line.length, self.count
        start = s * (n * count)
        if is_column:
            with self.line.tiles.squares(n, count) as (i, j, mask):
                value = b.convert(self.ordered.get(j, i, *mask), target.dtype)
                b.store(target, start + i * count + j, value, mask=mask)
        else:
            with b.loop("i", count) as i, b.loop("c", n) as c:
                value = b.convert(self.ordered.get(i, c), target.dtype)
                b.store(target, start + i * n + c, value)


@contextmanager
def _rows(b: FuncBuilder, n: int, first: Scalar, last: Scalar) -> Iterator[Scalar]:
    """The numbers first … last − 1 of ``n``, of which there is one at least."""
    row, goes_on = b.variable("row", first), b.variable("goes_on", b.constant(True, bool_))
    with b.loop("rotation", n), b.goes_on(goes_on):
        i = b.load(row)
        yield i
        after = b.op("add", i, b.constant(1, i32))
        b.set(row, after)
        b.set(goes_on, b.compare("lt", after, last))


@record(eq=False)
class Batch:
    """The rotations of some QR steps, which change vectors together.

    n: rows that are rotated.  rotated: the vectors.
    steps, ranges: how many steps there are, and the rows of each.
    """

    b: FuncBuilder
    n: int
    rotated: Sequence[Rotated]
    steps: Buffer
    ranges: Buffer

    @classmethod
    def of(cls, b: FuncBuilder, n: int, rotated: Sequence[Rotated]) -> Batch:
        """No steps yet."""
        steps = b.variable("steps", b.constant(0, i32))
        return cls(b, n, rotated, steps, b.alloc("ranges", i32, 2 * _BATCH))

    def record(self, each: Rotated, i: Scalar, by: tuple[Scalar, Scalar]) -> None:
        """Keep the sine and the tangent of half the angle of rows ``i`` and ``i + 1``."""
        b, at = self.b, [self.b.load(self.steps), i]
        rotations = each.rotations
        for more, value in enumerate(by):
            place = data(_BATCH) * rotations.by + data(self.n, 1) * 2 + more
            b.store(rotations.buffer, place, b.convert(value, rotations.dtype), named=at)

    def end_step(self, first: Scalar, last: Scalar) -> None:
        """A step on rows first … last is whole."""
        b, at = self.b, [self.b.load(self.steps)]
        for more, row in enumerate((first, last)):
            b.store(self.ranges, data(_BATCH) * 2 + more, row, named=at)
        b.set(self.steps, b.constant(1, i32), fold="add")

    def apply(self, is_end: Scalar) -> None:
        """Rotate the vectors at the end, and if there are as many steps as a batch has."""
        b = self.b
        is_full = b.compare("eq", b.load(self.steps), b.constant(_BATCH, i32))
        with b.where(test=b.op("or", is_full, is_end)):
            for each in self.rotated:
                self._rotate_all(each)
            b.set(self.steps, b.constant(0, i32))

    def _rotate_all(self, each: Rotated) -> None:
        b, rows, tiles = self.b, each.rows, each.line.tiles
        dtype, n = rows.dtype, self.n
        some = b.compare("gt", b.load(self.steps), b.constant(0, i32))
        with b.loop("chunk", rows.by // each.block) as chunk:
            more = b.variable("more", some)
            with b.loop("kept", _BATCH) as step, b.goes_on(more):
                first, last = (b.load(self.ranges, step * 2 + k) for k in (0, 1))
                carried = b.alloc("carried", dtype, each.block, "register")
                column = chunk * each.block
                with tiles.across(each.block) as lane:
                    place = rows.place(data(n), column + lane)
                    b.store(carried, lane, b.load(rows.buffer, place, named=[first]))
                with _rows(b, n, first, last) as i:
                    angles = each.rotations
                    sine, half = (
                        b.load(angles.buffer, angles.place(step, data(n) * 2 + k), named=[i])
                        for k in (0, 1)
                    )
                    self._rotate(each, i, column, carried, (sine, half))
                with tiles.across(each.block) as lane:
                    place = rows.place(data(n), column + lane)
                    b.store(rows.buffer, place, b.load(carried, lane), named=[last])
                count = b.index(step + 1, i32)
                b.set(more, b.compare("lt", count, b.load(self.steps)))

    def _rotate(
        self, each: Rotated, i: Scalar, column: Expr, carried: Buffer, by: tuple[Scalar, Scalar]
    ) -> None:
        """Rotate the carried row ``i`` and the next one, which is carried then."""
        b, rows, (sine, half) = self.b, each.rows, by
        minus, less = b.op("neg", sine), b.op("neg", half)
        kept, following = (
            b.alloc(name, rows.dtype, each.block, "register") for name in ("kept", "following")
        )
        parts = [b.alloc("part", rows.dtype, each.block, "register") for _ in range(2)]
        with each.line.tiles.across(each.block) as lane:
            x = b.load(carried, lane)
            y = b.load(rows.buffer, rows.place(data(self.n) + 1, column + lane), named=[i])
            b.store(parts[0], lane, y)
            b.store(parts[0], lane, less, fold="add", factor=x)
            b.store(kept, lane, x)
            b.store(kept, lane, sine, fold="add", factor=b.load(parts[0], lane))
            b.store(parts[1], lane, x)
            b.store(parts[1], lane, half, fold="add", factor=y)
            b.store(following, lane, y)
            b.store(following, lane, minus, fold="add", factor=b.load(parts[1], lane))
            place = rows.place(data(self.n), column + lane)
            b.store(rows.buffer, place, b.load(kept, lane), named=[i])
            b.store(carried, lane, b.load(following, lane))


@record(eq=False)
class Rotation:
    """A rotation, represented by the sine and the tangent of half the angle.

    The cosine is 1 minus their product.  A rounded cosine would change lengths, always in the same
    direction if the angles are equally small, so that errors would accumulate over many steps.
    r: the first number after the rotation that makes the second one zero.
    """

    em: QrIteration
    sine: Scalar
    half: Scalar
    r: Scalar

    @classmethod
    def of(cls, em: QrIteration, f: Scalar, g: Scalar) -> Rotation:
        """The rotation that maps (f, g) to (r, 0); the identity if both are negligible."""
        b, dtype = em.b, f.dtype
        zero, one = b.constant(0.0, dtype), b.constant(1.0, dtype)
        squares = em.fma(f, f, b.op("mul", g, g))
        some = b.compare("gt", squares, b.constant(1e-280, dtype))
        root = b.op("sqrt", b.op("select", some, squares, one))
        r = b.op("select", b.compare("lt", f, zero), b.op("neg", root), root)
        sine = b.op("select", some, b.op("div", g, r), zero)
        half = b.op("select", some, b.op("div", g, b.op("add", r, f)), zero)
        return cls(em, sine, half, b.op("select", some, r, f))

    def times_cosine(self, x: Scalar) -> Scalar:
        """``c x``."""
        b = self.em.b
        return self.em.fma(b.op("neg", b.op("mul", self.sine, self.half)), x, x)

    def pair(self, x: Scalar, y: Scalar) -> tuple[Scalar, Scalar]:
        """``c x + s y`` and ``c y − s x``."""
        b, fma = self.em.b, self.em.fma
        one = fma(self.sine, fma(b.op("neg", self.half), x, y), x)
        return one, fma(b.op("neg", self.sine), fma(self.half, y, x), y)


#: Emits a QR step on rows first … last.
Step = Callable[["QrIteration", Scalar, Scalar], None]


@record(eq=False)
class QrIteration:
    """The diagonals, in f64, because errors of many steps add up.

    n: values.  d: the diagonal.  e: the second diagonal, behind one element that is none of it.
    floor: an absolute bound for negligible elements.  unit: the roundoff of the vectors.
    batch: of the steps that change vectors; None without vectors.
    """

    b: FuncBuilder
    n: int
    d: Buffer
    e: Buffer
    floor: Scalar
    unit: float
    batch: Batch | None

    @classmethod
    def of(
        cls,
        b: FuncBuilder,
        n: int,
        lines: Callable[[int, Expr], Scalar],
        dtype: DType,
        rotated: Sequence[Rotated],
    ) -> QrIteration:
        """The diagonals of the first two lines."""
        d, e = b.alloc("d", f64, n), b.alloc("e", f64, n + 2)
        zero = b.constant(0.0, f64)
        b.store(e, ZERO, zero)
        b.store(e, Expr(n + 1), zero)
        most = b.variable("most", zero)
        with b.loop("i", n) as i:
            for number, target, place in ((0, d, i), (1, e, i + 1)):
                value = b.convert(lines(number, i), f64)
                b.store(target, place, value)
                b.set(most, b.op("abs", value), fold="max")
        unit = float(np.finfo(dtype.numpy).eps) / 2
        floor = b.op("mul", b.load(most), b.constant(unit / 16, f64))
        return cls(b, n, d, e, floor, unit, Batch.of(b, n, rotated) if rotated else None)

    # -- elements ----------------------------------------------------------------------------------

    def get(self, line: Buffer, i: Scalar, more: int = 0) -> Scalar:
        """Element ``i + more`` of a diagonal."""
        return self.b.load(line, data(self.n) + more, named=[i])

    def put(self, line: Buffer, i: Scalar, value: Scalar, more: int = 0) -> None:
        """Change element ``i + more`` of a diagonal."""
        self.b.store(line, data(self.n) + more, value, named=[i])

    def fma(self, x: Scalar, y: Scalar, z: Scalar) -> Scalar:
        """``x y + z``."""
        total = self.b.variable("total", z)
        self.b.set(total, x, fold="add", factor=y)
        return self.b.load(total)

    @contextmanager
    def rows(self, first: Scalar, last: Scalar) -> Iterator[Scalar]:
        """The numbers first … last − 1, of which there is one at least."""
        with _rows(self.b, self.n, first, last) as i:
            yield i

    def record(self, number: int, i: Scalar, by: Rotation) -> None:
        """Keep the rotation of rows ``i`` and ``i + 1`` for vectors of that number, if any."""
        if self.batch is not None:
            self.batch.record(self.batch.rotated[number], i, (by.sine, by.half))

    # -- steps -------------------------------------------------------------------------------------

    def run(self, step: Step) -> Scalar:
        """QR steps until the second diagonal is negligible; gives whether that was reached."""
        b, n = self.b, self.n
        one, zero = b.constant(1, i32), b.constant(0, i32)
        last_ = b.variable("last", b.constant(n - 1, i32))
        busy = b.variable("busy", b.constant(n > 1, bool_))
        with b.loop("step", (_MAX_STEPS + 1) * n), b.goes_on(busy):
            last = b.load(last_)
            before = b.op("sub", last, one)
            small = self._is_small(before)
            with b.where(test=small):
                b.set(last_, before)
            with b.where(test=b.not_(small)):
                first = self._first(before)
                step(self, first, last)
                if self.batch is not None:
                    self.batch.end_step(first, last)
            b.set(busy, b.compare("gt", b.load(last_), zero))
            if self.batch is not None:
                self.batch.apply(b.not_(b.load(busy)))
        return b.compare("le", b.load(last_), zero)

    def _is_small(self, k: Scalar) -> Scalar:
        """Whether the element beside diagonal elements ``k`` and ``k + 1`` is negligible."""
        b = self.b
        beside = [b.op("abs", self.get(self.d, k, more)) for more in (0, 1)]
        share = b.constant(_NEGLIGIBLE * self.unit, f64)
        limit = self.fma(b.op("add", *beside), share, self.floor)
        return b.compare("le", b.op("abs", self.get(self.e, k, 1)), limit)

    def _first(self, before: Scalar) -> Scalar:
        """The first row of the block that ends behind row ``before``."""
        b, zero = self.b, self.b.constant(0, i32)
        first, goes_on = b.variable("first", before), b.variable("goes_on", b.constant(True, bool_))
        with b.loop("search", self.n), b.goes_on(goes_on):
            row = b.load(first)
            above = b.op("max", b.op("sub", row, b.constant(1, i32)), zero)
            is_start = b.op("or", b.compare("eq", row, zero), self._is_small(above))
            b.set(first, b.op("select", is_start, row, above))
            b.set(goes_on, b.not_(is_start))
        return b.load(first)

    # -- results -----------------------------------------------------------------------------------

    def places(self, values: Buffer, *, descending: bool) -> Buffer:
        """At which place each value stands in order; equal ones in their own order."""
        b, n = self.b, self.n
        places = b.alloc("places", i32, n)
        with b.loop("i", n) as i:
            mine, rank = b.load(values, i), b.variable("rank", b.constant(0, i32))
            with b.loop("j", n) as j:
                other = b.load(values, j)
                earlier = b.inside(Bound(i + j * -1, 1, max(n, 2)))
                tie = b.op("and", b.compare("eq", other, mine), earlier)
                ahead = b.compare("gt" if descending else "lt", other, mine)
                b.set(rank, b.convert(b.op("or", ahead, tie), i32), fold="add")
            b.store(places, i, b.load(rank))
        return places


__all__ = ["QrIteration", "Rotated", "Rotation", "Step"]

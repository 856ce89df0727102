"""Reductions of a matrix to two diagonals: scales, reflections, passes over what is left of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from bringup.dtypes import f64, i32, i64
from bringup.graph.index import ZERO, Expr
from bringup.loops.form import Scalar
from bringup.loops.library.lines import Line
from bringup.loops.library.tiles import Matrix
from bringup.records import record

#: An element of a line.
Element = Callable[[Expr], Scalar]
#: Changes an element of a line.
Setter = Callable[[Expr, Scalar], None]
#: Three lines, of which the last is changed.
Right = tuple[Element, Element, Element, Setter]


def finite_scale(line: Line, a: Matrix, rows: int) -> tuple[Scalar, Scalar]:
    """Divide a matrix by a power of two, so that its largest element is about 1.

    If some element is not finite, it becomes zeros.  Gives the power, and whether all are finite.
    """
    b, dtype = line.b, a.dtype
    zero, infinity = b.constant(0.0, dtype), b.constant(math.inf, dtype)
    most = b.variable("most", zero)
    with b.loop("i", rows) as i:
        b.set(most, line.fold(ZERO, "max", lambda j: (b.op("abs", a.get(i, j)),)), fold="max")
    large = b.load(most)
    good = b.compare("lt", large, infinity)
    # The exponent alone, of a normal number.
    bits, mantissa = (i64, 52) if dtype is f64 else (i32, 23)
    exponent = b.constant((1 << (bits.bits - 1)) - (1 << mantissa), bits)
    power = b.op("and", b.op("bitcast", large, dtype=bits), exponent)
    power = b.op("max", power, b.constant(1 << mantissa, bits))
    scale = b.op("select", good, b.op("bitcast", power, dtype=dtype), b.constant(1.0, dtype))
    with b.loop("i", rows) as i, line.elements(ZERO) as j:
        value = b.op("select", good, b.op("div", a.get(i, j), scale), zero)
        a.set(i, j, value)
    return scale, good


@record(eq=False)
class Lines:
    """Lines of one length, by their numbers."""

    line: Line
    lines: Matrix

    @classmethod
    def of(cls, line: Line, count: int, name: str = "lines") -> Lines:
        """Memory for so many."""
        buffer = line.b.alloc(name, line.tiles.dtype, count * line.whole)
        return cls(line, Matrix(line.b, buffer, line.whole))

    def get(self, number: int, i: Expr) -> Scalar:
        """An element of a line."""
        return self.lines.get(Expr(number), i)

    def set(self, number: int, i: Expr, value: Scalar) -> None:
        """Change an element of a line."""
        self.lines.set(Expr(number), i, value)

    def elements(self, number: int) -> Element:
        """The elements of a line."""
        return lambda i: self.get(number, i)

    def setter(self, number: int) -> Setter:
        """What changes elements of a line."""
        return lambda i, value: self.set(number, i, value)

    def clear(self, *numbers: int, first: Expr = ZERO) -> None:
        """Write zeros to the vectors from that which holds element ``first`` on."""
        zero = self.line.b.constant(0.0, self.lines.dtype)
        with self.line.elements(first) as i:
            for number in numbers:
                self.set(number, i, zero)

    def clear_before(self, number: int, first: Expr) -> None:
        """Write zeros to the elements before ``first``."""
        b, zero = self.line.b, self.line.b.constant(0.0, self.lines.dtype)
        with self.line.elements(ZERO) as i:
            value = self.get(number, i)
            self.set(number, i, b.op("select", self.line.holds(i, first), value, zero))

    def reflect(self, number: int, head: Expr, image: tuple[Lines, int, Expr]) -> Scalar:
        """Replace a line by the vector of the reflection that maps it to its head, 1 there.

        It has zeros before the head.  image: where the new head is stored.
        Gives the factor of the reflection.
        """
        line, x, row = self.line, self.lines, Expr(number)
        b, dtype = line.b, x.dtype
        zero, one = b.constant(0.0, dtype), b.constant(1.0, dtype)
        old = x.get(row, head)
        x.set(row, head, zero)
        tail = line.fold(head, "max", lambda i: (b.op("abs", x.get(row, i)),))
        most = b.op("max", tail, b.op("abs", old))
        large = b.op("select", b.compare("gt", most, zero), most, one)
        flat, scaled = b.compare("eq", tail, zero), b.op("div", old, large)
        with line.elements(head) as i:
            x.set(row, i, b.op("div", x.get(row, i), large))
        squares = line.fold(head, "add", lambda i: (x.get(row, i), x.get(row, i)))
        norm = b.op("sqrt", b.op("add", squares, b.op("mul", scaled, scaled)))
        signed = b.op("select", b.compare("lt", scaled, zero), norm, b.op("neg", norm))
        other = b.op("select", flat, scaled, signed)
        over = b.op("select", flat, one, b.op("sub", scaled, other))
        with line.elements(head) as i:
            x.set(row, i, b.op("div", x.get(row, i), over))
        # The length of the rounded vector, so that this is a reflection however elements round.
        length = line.fold(head, "add", lambda i: (x.get(row, i), x.get(row, i)))
        factor = b.op("div", b.constant(2.0, dtype), b.op("add", length, one))
        x.set(row, head, one)
        image[0].set(*image[1:], b.op("mul", other, large))
        return b.op("select", flat, zero, factor)


def update(
    a: Matrix, columns: Line, place: tuple[Expr, Expr], left: Sequence[Element], right: Right
) -> None:
    """``A −= u yᵀ + x vᵀ`` and then ``q += wᵀ A``, from a row and a column on.

    left: u, x and w.  right: y, v and q, whose elements are changed by the last function.
    """
    b, together = columns.b, _together(columns)
    (u, x, w), (y, v, q, set_q) = left, right
    with _bands(a, columns, place[0]) as rows:
        one = [b.op("neg", u(row)) for row in rows]
        other = [b.op("neg", x(row)) for row in rows]
        weights = [w(row) for row in rows]
        with columns.vectors(place[1]) as first:
            parts = b.alloc("parts", a.dtype, (together + 1) * columns.lanes, "register")
            with columns.across() as lane:
                j, product = first + lane, lane + together * columns.lanes
                along, across = y(j), v(j)
                b.store(parts, product, q(j))
                for r, row in enumerate(rows):
                    at = lane + r * columns.lanes
                    b.store(parts, at, a.get(row, j))
                    b.store(parts, at, along, fold="add", factor=one[r])
                    b.store(parts, at, across, fold="add", factor=other[r])
                    value = b.load(parts, at)
                    a.set(row, j, value)
                    b.store(parts, product, value, fold="add", factor=weights[r])
                set_q(j, b.load(parts, product))


def multiply(a: Matrix, columns: Line, place: tuple[Expr, Expr], v: Element, put: Setter) -> None:
    """``A v``, from a row and a column on; ``put`` stores its elements."""
    b, lanes = columns.b, columns.lanes
    zero = b.constant(0.0, a.dtype)
    with _bands(a, columns, place[0]) as rows:
        parts = b.alloc("parts", a.dtype, len(rows) * lanes, "register")
        with columns.tiles.points(len(rows), lanes) as (r, lane):
            b.store(parts, r * lanes + lane, zero)
        with columns.vectors(place[1]) as first, columns.across() as lane:
            factor = v(first + lane)
            for number, row in enumerate(rows):
                value = a.get(row, first + lane)
                b.store(parts, lane + number * lanes, value, fold="add", factor=factor)
        for number, row in enumerate(rows):
            total = b.variable("total", zero)
            with columns.across() as lane:
                b.set(total, b.load(parts, lane + number * lanes), fold="add")
            put(row, b.load(total))


def _together(columns: Line) -> int:
    """Rows that one pass over the columns takes."""
    return max(columns.tiles.rows // 2, 1)


@contextmanager
def _bands(a: Matrix, columns: Line, first: Expr) -> Iterator[list[Expr]]:
    """The rows of each band, from that which holds row ``first`` on."""
    together = _together(columns)
    bands, before = a.buffer.size // max(a.by, 1) // together, first // together
    with columns.b.loop("band", bands, until=before * -1 + bands) as band:
        yield [(before + band) * together + r for r in range(together)]


__all__ = ["Lines", "finite_scale", "multiply", "update"]

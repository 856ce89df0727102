"""Orthogonal factors by Householder's reflections, as part of other functions and as an op.

An iteration of the parallel loops has one matrix of the stack in scratch memory, in f32 if its
elements are narrower.
"""

from __future__ import annotations

from bringup.graph.index import Bound, Expr
from bringup.loops.form import Buffer, Scalar
from bringup.loops.library.builder import FuncBuilder
from bringup.records import record


@record(eq=False)
class Matrix:
    """A matrix in scratch memory, row by row."""

    b: FuncBuilder
    buffer: Buffer
    rows: int
    columns: int

    def get(self, i: Expr, j: Expr) -> Scalar:
        """An element."""
        return self.b.load(self.buffer, i * self.columns + j)

    def set(self, i: Expr, j: Expr, value: Scalar) -> None:
        """Change an element."""
        self.b.store(self.buffer, i * self.columns + j, value)

    def add(self, i: Expr, j: Expr, value: Scalar, factor: Scalar | None = None) -> None:
        """Add to an element."""
        place = i * self.columns + j
        self.b.store(self.buffer, place, value, fold="add", factor=factor)

    def fill_unit(self) -> None:
        """Make it the unit matrix."""
        dtype = self.buffer.dtype
        one, zero = self.b.constant(1.0, dtype), self.b.constant(0.0, dtype)
        with self.b.loop("i", self.rows) as i, self.b.loop("j", self.columns) as j:
            is_diagonal = self.b.inside(Bound(i + j * -1, 0, 1))
            self.set(i, j, self.b.op("select", is_diagonal, one, zero))


def orthogonal(b: FuncBuilder, a: Matrix, size: int, name: str) -> Matrix:
    """The first ``size`` columns of Q; ``a`` becomes R, but for what is below its diagonal."""
    dtype, count = a.buffer.dtype, min(a.rows, a.columns)
    q = Matrix(b, b.alloc(name, dtype, a.rows * size), a.rows, size)
    vectors = Matrix(b, b.alloc(f"{name}_vectors", dtype, a.rows * count), a.rows, count)
    scales = b.alloc(f"{name}_scales", dtype, count)
    products = b.alloc(f"{name}_products", dtype, max(a.columns, size))
    with b.loop("k", count) as k:
        scale = _reflector(b, a, vectors, k)
        b.store(scales, k, scale)
        if a.columns > 1:
            _reflect(b, a, vectors, (k, k + 1, a.columns - 1), scale, products)
    q.fill_unit()
    with b.loop("back", count) as back:
        k = back * -1 + (count - 1)
        _reflect(b, q, vectors, (k, Expr(), size), b.load(scales, k), products)
    return q


def _reflector(b: FuncBuilder, a: Matrix, vectors: Matrix, k: Expr) -> Scalar:
    """Make a column 0 below the diagonal; the vector has the first element 1.  Gives its scale.

    The elements are divided by the largest first: the remainder of dependent columns may be
    subnormal, with few significant bits.
    """
    zero, one = b.constant(0.0, a.buffer.dtype), b.constant(1.0, a.buffer.dtype)
    most = b.variable("most", zero)
    below = k * -1 + a.rows
    with b.loop("d", a.rows, until=below) as d:
        b.set(most, b.op("abs", a.get(k + d, k)), fold="max")
    large = b.op("select", b.compare("gt", b.load(most), zero), b.load(most), one)
    squares, tail = b.variable("squares", zero), b.variable("tail", zero)
    head = b.op("div", a.get(k, k), large)
    b.set(squares, head, fold="add", factor=head)
    with b.loop("d", a.rows, until=below + -1) as d:
        value = b.op("div", a.get(k + d + 1, k), large)
        b.set(squares, value, fold="add", factor=value)
        b.set(tail, b.op("abs", value), fold="max")
    flat = b.compare("eq", b.load(tail), zero)
    norm = b.op("sqrt", b.load(squares))
    away = b.op("select", b.compare("lt", head, zero), norm, b.op("neg", norm))
    image = b.op("select", flat, head, away)
    quotient = b.op("div", b.op("sub", image, head), b.op("select", flat, one, image))
    over = b.op("select", flat, one, b.op("sub", head, image))
    vectors.set(k, k, one)
    with b.loop("d", a.rows, until=below + -1) as d:
        value = b.op("div", a.get(k + d + 1, k), large)
        vectors.set(k + d + 1, k, b.op("div", value, over))
    a.set(k, k, b.op("mul", image, large))
    return b.op("select", flat, zero, quotient)


def _reflect(
    b: FuncBuilder,
    a: Matrix,
    vectors: Matrix,
    place: tuple[Expr, Expr, int],
    scale: Scalar,
    products: Buffer,
) -> None:
    """Reflect rows from ``k`` on by vector ``k``: X − scale · v (vᵀ X).

    place: ``k``, the first column, and the greatest number of columns.
    """
    k, first, most = place
    columns, rows = first * -1 + a.columns, k * -1 + a.rows
    zero = b.constant(0.0, a.buffer.dtype)
    with b.loop("j", most, until=columns) as j:
        b.store(products, j, zero)
    with b.loop("i", a.rows, until=rows) as i:
        weight = vectors.get(k + i, k)
        with b.loop("j", most, until=columns) as j:
            b.store(products, j, a.get(k + i, first + j), fold="add", factor=weight)
    less = b.op("neg", scale)
    with b.loop("i", a.rows, until=rows) as i:
        weight = b.op("mul", vectors.get(k + i, k), less)
        with b.loop("j", most, until=columns) as j:
            a.add(k + i, first + j, b.load(products, j), weight)

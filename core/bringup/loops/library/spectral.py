"""Eigenvalues and eigenvectors of symmetric matrices: reflections to two diagonals, then QR steps.

Householder's reflections make the matrix tridiagonal: in one pass over the rest of the matrix, the
update of the step before is applied and the product that the next step needs is formed.  Implicit
QR steps then make the second diagonal vanish.  (G. Golub and C. Van Loan, Matrix Computations,
section 8.3; the steps are those of steqr in LAPACK.)
"""

from __future__ import annotations

import math

from bringup.dtypes import i32
from bringup.graph.index import ZERO, Bound, Expr
from bringup.loops.form import Buffer, Scalar
from bringup.loops.library.blocked import Reflections
from bringup.loops.library.builder import FuncBuilder, data, wide
from bringup.loops.library.calls import OpCall, StepLoops
from bringup.loops.library.iteration import QrIteration, Rotation, Turned
from bringup.loops.library.lines import Line
from bringup.loops.library.scaling import finite_scale, reflect
from bringup.loops.library.tiles import Matrix, Tiles
from bringup.records import record


def eigh(call: OpCall) -> StepLoops:
    """The lower triangle of each matrix is read."""
    x, results = call.operands[0], call.results
    n, stack = call.types[0].shape[-1], math.prod(call.types[0].shape[:-2])
    b, dtype = FuncBuilder(call.name, [("in", x), *(("out", y) for y in results)]), wide(x.dtype)
    with b.parallel(s=stack) as (s,):
        line = Line.of(b, call, dtype, n)
        a = _symmetric(line, x, s)
        scale, good = finite_scale(line, a, n)
        lines = _Lines(line, Matrix(b, b.alloc("lines", dtype, 6 * line.whole), line.whole))
        reflections = Reflections.of(line, max(n - 1, 1)) if len(results) > 1 else None
        _tridiagonal(a, lines, reflections)
        turned = []
        if reflections is not None:
            reflections.multiply(n - 1)
            q = reflections.form(Tiles.of(b, call, dtype, n, n), n - 1, n)
            turned.append(Turned.of(line, q, n, n))
        iteration = QrIteration.of(b, n, lines.get, dtype, turned)
        done = iteration.run(_symmetric_step)
        good = b.op("and", good, done)
        factor = b.op("select", good, b.constant(1.0, dtype), b.constant(math.nan, dtype))
        places = iteration.places(descending=False)
        with b.loop("i", n) as i:
            value = b.op(
                "mul", b.convert(b.load(iteration.d, i), dtype), b.op("mul", scale, factor)
            )
            to = [b.load(places, i)]
            b.store(results[0], s * n + data(n), b.convert(value, x.dtype), named=to)
        for each in turned:
            each.order(places, n, a)
            with line.tiles.squares(n, n) as (i, j, mask):
                value = b.op("mul", a.get(j, i, *mask), factor)
                b.store(results[1], (s * n + i) * n + j, b.convert(value, x.dtype), mask=mask)
    return StepLoops(call, (b.func(),))


def _symmetric(line: Line, x: Buffer, s: Expr) -> Matrix:
    """The matrix whose lower triangle is given, in whole lines with zeros at the end."""
    b, n = line.b, line.length
    a = line.tiles.matrix("a", line.whole, line.whole)

    def element(i: Expr, j: Expr, *mask: Bound) -> Scalar:
        return b.convert(b.load(x, (s * n + i) * n + j, *mask), a.dtype)

    with b.loop("i", line.whole) as i, b.loop("c", line.whole) as c:
        a.set(i, c, element(i, c, Bound(i, 0, n), Bound(c, 0, n)))
    with line.tiles.squares(n, n, "upper") as (i, j, mask):
        lower, upper = element(i, j, *mask), element(j, i, *mask)
        is_upper = b.inside(Bound(j + i * -1, 0, n))
        a.set(i, j, b.op("select", is_upper, upper, lower), *mask)
    return a


@record(eq=False)
class _Lines:
    """The lines of a reduction, by their numbers.

    Diagonal and second diagonal; the vectors of the update of the step before; the vector of the
    step; its product with the matrix.
    """

    line: Line
    lines: Matrix

    def get(self, number: int, i: Expr) -> Scalar:
        """An element of a line."""
        return self.lines.get(Expr(number), i)

    def set(self, number: int, i: Expr, value: Scalar) -> None:
        """Change an element of a line."""
        self.lines.set(Expr(number), i, value)


_D, _E, _V, _W, _X, _Q = range(6)


def _tridiagonal(a: Matrix, lines: _Lines, reflections: Reflections | None) -> None:
    """Write the diagonals to the first two lines; the matrix is overwritten."""
    line = lines.line
    b, n = line.b, line.length
    zero = b.constant(0.0, a.dtype)
    with line.elements(ZERO) as i:
        for number in (_E, _V, _W):
            lines.set(number, i, zero)
    with b.loop("k", n - 1) as k:
        after = k + 1
        _row(a, lines, k)
        scale = reflect(line, lines.lines, Expr(_X), after, (lines.lines, Expr(_E), k))
        if reflections is not None:
            b.store(reflections.scales, k, scale)
            with line.elements(ZERO) as i:
                reflections.v.set(k, i, lines.get(_X, i))
        with line.elements(after) as i:
            lines.set(_Q, i, zero)
        _pass(a, lines, after)
        product = line.fold(after, "add", lambda i: (lines.get(_Q, i), lines.get(_X, i)))
        half = b.op(
            "mul", b.op("mul", product, b.op("mul", scale, scale)), b.constant(-0.5, a.dtype)
        )
        with line.elements(after) as i:
            along = b.op("mul", scale, lines.get(_Q, i))
            along = b.op("add", along, b.op("mul", half, lines.get(_X, i)))
            is_after = line.holds(i, after)
            lines.set(_W, i, b.op("select", is_after, along, zero))
            lines.set(_V, i, lines.get(_X, i))
    _row(a, lines, Expr(n - 1))


def _row(a: Matrix, lines: _Lines, k: Expr) -> None:
    """Row ``k`` of the rest, updated: its first element to the diagonal, the others to a line."""
    line = lines.line
    b, zero = line.b, line.b.constant(0.0, a.dtype)
    one, other = (b.op("neg", lines.get(number, k)) for number in (_V, _W))
    with line.elements(ZERO) as i:
        part = b.op("add", a.get(k, i), b.op("mul", one, lines.get(_W, i)))
        part = b.op("add", part, b.op("mul", other, lines.get(_V, i)))
        lines.set(_X, i, part)
    lines.set(_D, k, lines.get(_X, k))
    with line.elements(ZERO) as i:
        value = lines.get(_X, i)
        lines.set(_X, i, b.op("select", line.holds(i, k + 1), value, zero))


def _pass(a: Matrix, lines: _Lines, after: Expr) -> None:
    """``A −= v wᵀ + w vᵀ`` and then ``q += A x``, on the rows and columns from ``after`` on."""
    line = lines.line
    b, together = line.b, max(line.tiles.rows // 2, 1)
    bands, before = line.whole // together, after // together
    with b.loop("band", bands, until=before * -1 + bands) as band:
        rows = [(before + band) * together + r for r in range(together)]
        one = [b.op("neg", lines.get(_V, row)) for row in rows]
        other = [b.op("neg", lines.get(_W, row)) for row in rows]
        weights = [lines.get(_X, row) for row in rows]
        with line.vectors(after) as first:
            parts = b.alloc("parts", a.dtype, (together + 1) * line.lanes, "register")
            with line.across() as lane:
                i = first + lane
                v, w = lines.get(_V, i), lines.get(_W, i)
                product = lane + together * line.lanes
                b.store(parts, product, lines.get(_Q, i))
                for r, row in enumerate(rows):
                    place = lane + r * line.lanes
                    b.store(parts, place, a.get(row, i))
                    b.store(parts, place, w, fold="add", factor=one[r])
                    b.store(parts, place, v, fold="add", factor=other[r])
                    value = b.load(parts, place)
                    a.set(row, i, value)
                    b.store(parts, product, value, fold="add", factor=weights[r])
                lines.set(_Q, i, b.load(parts, product))


def _symmetric_step(em: QrIteration, first: Scalar, last: Scalar) -> None:
    """An implicit QR step on rows first … last, with Wilkinson's shift."""
    b = em.b
    one, two, zero = (b.constant(value, em.d.dtype) for value in (1.0, 2.0, 0.0))
    before = b.op("sub", last, b.constant(1, i32))
    low, off = em.get(em.d, last), em.get(em.e, last)
    difference = b.op("sub", em.get(em.d, before), low)
    half = b.op("div", difference, b.op("mul", off, two))
    root = b.op("sqrt", em.fma(half, half, one))
    signed = b.op("select", b.compare("lt", half, zero), b.op("neg", root), root)
    shifted = b.op("sub", em.get(em.d, first), low)
    g = b.variable("g", b.op("add", shifted, b.op("div", off, b.op("add", half, signed))))
    f = b.variable("f", em.get(em.e, first, 1))
    off_ = b.variable("off", b.load(f))
    taken = b.variable("taken", zero)
    with em.rows(first, last) as i:
        by = Rotation.of(em, b.load(g), b.load(f))
        em.record(0, i, by)
        em.put(em.e, i, by.r)
        diagonal = b.op("sub", em.get(em.d, i), b.load(taken))
        r = b.op("mul", b.op("sub", em.get(em.d, i, 1), diagonal), by.sine)
        r = em.fma(two, by.times_cosine(b.load(off_)), r)
        moved = b.op("mul", by.sine, r)
        em.put(em.d, i, b.op("add", diagonal, moved))
        following = em.get(em.e, i, 2)
        b.set(g, b.op("sub", by.times_cosine(r), b.load(off_)))
        b.set(f, b.op("mul", by.sine, following))
        b.set(off_, by.times_cosine(following))
        b.set(taken, moved)
    # The first rotation stored an element before its rows, which is not of them.
    em.put(em.e, first, zero)
    em.put(em.e, last, b.load(g))
    em.put(em.d, last, b.op("sub", em.get(em.d, last), b.load(taken)))

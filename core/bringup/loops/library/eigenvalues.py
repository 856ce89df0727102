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
from bringup.loops.library.builder import FuncBuilder, data, wide
from bringup.loops.library.calls import OpCall, StepLoops
from bringup.loops.library.lines import Line
from bringup.loops.library.qr_steps import QrIteration, Rotated, Rotation
from bringup.loops.library.reductions import Lines, finite_scale, update
from bringup.loops.library.reflections import Reflections
from bringup.loops.library.tiles import Matrix, Tiles


def eigh(call: OpCall) -> StepLoops:
    """The lower triangle of each matrix is read."""
    x, results = call.operands[0], call.results
    n, stack = call.types[0].shape[-1], math.prod(call.types[0].shape[:-2])
    b, dtype = FuncBuilder(call.name, [("in", x), *(("out", y) for y in results)]), wide(x.dtype)
    with b.parallel(s=stack) as (s,):
        line = Line.of(b, call, dtype, n)
        a = _symmetric(line, x, s)
        scale, good = finite_scale(line, a, n)
        lines = Lines.of(line, 6)
        reflections = Reflections.of(line, max(n - 1, 1)) if len(results) > 1 else None
        _tridiagonal(a, lines, reflections)
        rotated = []
        if reflections is not None:
            reflections.multiply(n - 1)
            q = reflections.form(Tiles.of(b, call, dtype, n, n), n - 1, n)
            rotated.append(Rotated.of(line, q, n))
        iteration = QrIteration.of(b, n, lines.get, dtype, rotated)
        done = iteration.run(_symmetric_step)
        good = b.op("and", good, done)
        factor = b.op("select", good, b.constant(1.0, dtype), b.constant(math.nan, dtype))
        places = iteration.places(iteration.d, descending=False)
        scale = b.op("mul", scale, factor)
        with b.loop("i", n) as i:
            value = b.op("mul", b.convert(b.load(iteration.d, i), dtype), scale)
            to = [b.load(places, i)]
            b.store(results[0], s * n + data(n), b.convert(value, x.dtype), named=to)
        for each in rotated:
            each.order(places, n, lambda i: factor)
            each.put(results[1], s, is_column=True)
    return StepLoops(call, (b.func(),), work=(9 if len(results) > 1 else 2) * n**3)


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


_D, _E, _V, _W, _X, _Q = range(6)


def _tridiagonal(a: Matrix, lines: Lines, reflections: Reflections | None) -> None:
    """Write the diagonals to the first two lines; the matrix is overwritten."""
    line = lines.line
    b, n = line.b, line.length
    zero = b.constant(0.0, a.dtype)
    lines.clear(_E, _V, _W)
    with b.loop("k", n - 1) as k:
        after = k + 1
        _row(a, lines, k)
        scale = lines.reflect(_X, after, (lines, _E, k))
        if reflections is not None:
            reflections.put(k, scale, lines.elements(_X))
        lines.clear(_Q, first=after)
        u, x, q = (lines.elements(number) for number in (_V, _W, _Q))
        right = (x, u, q, lines.setter(_Q))
        update(a, line, (after, after), (u, x, lines.elements(_X)), right)
        product = line.fold(after, "add", lambda i: (lines.get(_Q, i), lines.get(_X, i)))
        product = b.op("mul", product, b.op("mul", scale, scale))
        half = b.op("mul", product, b.constant(-0.5, a.dtype))
        with line.elements(after) as i:
            along = b.op("mul", scale, lines.get(_Q, i))
            along = b.op("add", along, b.op("mul", half, lines.get(_X, i)))
            is_after = line.holds(i, after)
            lines.set(_W, i, b.op("select", is_after, along, zero))
            lines.set(_V, i, lines.get(_X, i))
    _row(a, lines, Expr(n - 1))


def _row(a: Matrix, lines: Lines, k: Expr) -> None:
    """Row ``k`` of the rest, updated: its first element to the diagonal, the others to a line."""
    line = lines.line
    b = line.b
    one, other = (b.op("neg", lines.get(number, k)) for number in (_V, _W))
    with line.elements(ZERO) as i:
        part = b.op("add", a.get(k, i), b.op("mul", one, lines.get(_W, i)))
        part = b.op("add", part, b.op("mul", other, lines.get(_V, i)))
        lines.set(_X, i, part)
    lines.set(_D, k, lines.get(_X, k))
    lines.clear_before(_X, k + 1)


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

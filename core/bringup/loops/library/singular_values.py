"""Singular values and vectors: reflections on both sides to two diagonals, then QR steps.

Householder's reflections make the matrix upper bidiagonal; the rest is as for eigenvalues.
(G. Golub and C. Van Loan, Matrix Computations, section 8.6; the steps are those of bdsqr in
LAPACK.)
"""

from __future__ import annotations

import math

from bringup.dtypes import f64, i32
from bringup.graph.index import ZERO, Bound, Expr
from bringup.loops.form import Buffer, Scalar
from bringup.loops.library.builder import FuncBuilder, below, data, wide
from bringup.loops.library.calls import OpCall, StepLoops
from bringup.loops.library.lines import Line
from bringup.loops.library.qr_steps import QrIteration, Rotated, Rotation
from bringup.loops.library.reductions import Lines, finite_scale, multiply, update
from bringup.loops.library.reflections import Reflections
from bringup.loops.library.tiles import Matrix, Tiles


def svd(call: OpCall) -> StepLoops:
    """A wide matrix is read transposed."""
    x, results = call.operands[0], call.results
    shape, stack = call.types[0].shape[-2:], math.prod(call.types[0].shape[:-2])
    m, n, has_vectors = max(shape), min(shape), len(results) > 1
    is_wide, size = shape[0] < shape[1], m if call.attrs["complete"] else n
    b, dtype = FuncBuilder(call.name, [("in", x), *(("out", y) for y in results)]), wide(x.dtype)
    if not n:
        return _unit(call, b, m)
    with b.parallel(s=stack) as (s,):
        tall, line = Line.of(b, call, dtype, m), Line.of(b, call, dtype, n)
        a = line.tiles.matrix("a", tall.whole, line.whole)
        with b.loop("i", tall.whole) as i, b.loop("c", line.whole) as c:
            place = c * m + i if is_wide else i * n + c
            value = b.load(x, s * (m * n) + place, below(i, m), below(c, n))
            a.set(i, c, b.convert(value, dtype))
        scale, good = finite_scale(line, a, m)
        sides = (Lines.of(tall, 3, "columns"), Lines.of(line, 6))
        reflections = []
        if has_vectors:
            reflections = [Reflections.of(tall, n, "left"), Reflections.of(line, n, "right")]
        _bidiagonal(a, sides, reflections)
        rotated = []
        for each, count, wanted in zip(reflections, (n, max(n - 1, 0)), (size, n), strict=False):
            each.multiply(count)
            tiles = Tiles.of(b, call, dtype, each.line.length, wanted)
            rotated.append(Rotated.of(each.line, each.form(tiles, count, wanted), wanted))
        iteration = QrIteration.of(b, n, sides[1].get, dtype, rotated)
        done = iteration.run(_bidiagonal_step)
        good = b.op("and", good, done)
        factor = b.op("select", good, b.constant(1.0, dtype), b.constant(math.nan, dtype))
        values = b.alloc("values", f64, n)
        with b.loop("i", n) as i:
            b.store(values, i, b.op("abs", b.load(iteration.d, i)))
        places = iteration.places(values, descending=True)
        _values_out(b, values, (places, b.op("mul", scale, factor)), results[len(results) // 2], s)
        if has_vectors:
            _vectors_out(iteration, rotated, (places, factor), (results[0], results[2]), s, is_wide)
    return StepLoops(call, (b.func(),), work=(20 if has_vectors else 4) * m * n * n)


def _unit(call: OpCall, b: FuncBuilder, m: int) -> StepLoops:
    """The vectors of matrices without elements: unit matrices, in the only result that has any."""
    (y,) = (each for each in call.results if each.size)
    one, zero = b.constant(1.0, y.dtype), b.constant(0.0, y.dtype)
    with b.loop("s", y.size // (m * m), "parallel") as s, b.loop("i", m) as i, b.loop("j", m) as j:
        is_diagonal = b.inside(Bound(i + j * -1, 0, 1))
        b.store(y, (s * m + i) * m + j, b.op("select", is_diagonal, one, zero))
    return StepLoops(call, (b.func(),))


def _values_out(
    b: FuncBuilder, values: Buffer, order: tuple[Buffer, Scalar], target: Buffer, s: Expr
) -> None:
    """Store the values in order, times a factor."""
    (places, factor), n = order, values.size
    with b.loop("i", n) as i:
        value = b.op("mul", b.convert(b.load(values, i), factor.dtype), factor)
        to = [b.load(places, i)]
        b.store(target, s * n + data(n), b.convert(value, target.dtype), named=to)


def _vectors_out(
    iteration: QrIteration,
    rotated: list[Rotated],
    order: tuple[Buffer, Scalar],
    targets: tuple[Buffer, Buffer],
    s: Expr,
    is_wide: bool,
) -> None:
    """Store the vectors of both sides in order, those of the right one with the values' signs."""
    b, n, (places, factor) = iteration.b, iteration.n, order
    zero, minus = b.constant(0.0, f64), b.op("neg", factor)

    def signed(i: Expr) -> Scalar:
        return b.op("select", b.compare("lt", b.load(iteration.d, i), zero), minus, factor)

    left, right = rotated
    left.order(places, n, lambda i: factor)
    right.order(places, n, signed)
    for each, target, is_first in zip(
        (right, left) if is_wide else (left, right), targets, (True, False), strict=True
    ):
        each.put(target, s, is_column=is_first)


_U, _X, _COLUMN = range(3)
_D, _E, _Y, _V, _ALONG, _Q = range(6)


def _bidiagonal(a: Matrix, sides: tuple[Lines, Lines], reflections: list[Reflections]) -> None:
    """Write the diagonals to the first two lines; the matrix is overwritten."""
    columns, rows = sides
    tall, line = columns.line, rows.line
    b, n = line.b, line.length
    columns.clear(_U, _X, _COLUMN)
    rows.clear(_E, _Y, _V, _ALONG)
    with b.loop("k", n) as k:
        after = k + 1
        one, other = (b.op("neg", rows.get(number, k)) for number in (_Y, _V))
        with tall.elements(k) as i:
            part = b.op("add", a.get(i, k), b.op("mul", columns.get(_U, i), one))
            part = b.op("add", part, b.op("mul", columns.get(_X, i), other))
            columns.set(_COLUMN, i, part)
        columns.clear_before(_COLUMN, k)
        scale = columns.reflect(_COLUMN, k, (rows, _D, k))
        for each in reflections[:1]:
            each.put(k, scale, columns.elements(_COLUMN))
        rows.clear(_Q)
        left = (columns.elements(_U), columns.elements(_X), columns.elements(_COLUMN))
        right = (rows.elements(_Y), rows.elements(_V), rows.elements(_Q), rows.setter(_Q))
        update(a, line, (k, after), left, right)
        with line.elements(ZERO) as i:
            part = b.op("mul", scale, rows.get(_Q, i))
            rows.set(_Y, i, part)
            rows.set(_ALONG, i, b.op("sub", a.get(k, i), part))
        rows.clear_before(_Y, after)
        rows.clear_before(_ALONG, after)
        if n > 1:
            with b.loop("more", 1, until=k * -1 + (n - 1)):
                _reflect_row(a, sides, k, reflections[1:])
        with tall.elements(ZERO) as i:
            columns.set(_U, i, columns.get(_COLUMN, i))


def _reflect_row(
    a: Matrix, sides: tuple[Lines, Lines], k: Expr, reflections: list[Reflections]
) -> None:
    """Reflect the rest of a row, and begin the update of the rest of the matrix."""
    columns, rows = sides
    b, line, after = rows.line.b, rows.line, k + 1
    scale = rows.reflect(_ALONG, after, (rows, _E, k))
    for each in reflections:
        each.put(k, scale, rows.elements(_ALONG))
    multiply(a, line, (after, after), rows.elements(_ALONG), columns.setter(_X))
    product = line.fold(after, "add", lambda i: (rows.get(_Y, i), rows.get(_ALONG, i)))
    with columns.line.elements(ZERO) as i:
        part = b.op("mul", columns.get(_COLUMN, i), product)
        columns.set(_X, i, b.op("mul", scale, b.op("sub", columns.get(_X, i), part)))
    columns.clear_before(_X, after)
    with line.elements(ZERO) as i:
        rows.set(_V, i, rows.get(_ALONG, i))


def _bidiagonal_step(em: QrIteration, first: Scalar, last: Scalar) -> None:
    """An implicit QR step of B Bᵀ on rows first … last of upper bidiagonal B.

    The shift is the smaller singular value of the last two rows; none where a value is nothing, so
    that it goes to the end.
    """
    b = em.b
    one, two, zero = (b.constant(value, f64) for value in (1.0, 2.0, 0.0))
    least = b.variable("least", b.op("abs", em.get(em.d, last)))
    with em.rows(first, last) as i:
        b.set(least, b.op("abs", em.get(em.d, i)), fold="min")

    def root(x: Scalar, y: Scalar) -> Scalar:
        return b.op("sqrt", em.fma(x, x, b.op("mul", y, y)))

    before = b.op("sub", last, b.constant(1, i32))
    low, high = (b.op("abs", em.get(em.d, i)) for i in (before, last))
    off = em.get(em.e, last)
    largest = b.op("add", root(b.op("add", low, high), off), root(b.op("sub", low, high), off))
    shift = b.op("div", b.op("mul", b.op("mul", low, high), two), largest)
    head = em.get(em.d, first)
    size = b.op("abs", head)
    shifted = b.op("add", one, b.op("div", shift, size))
    shifted = b.op("mul", b.op("sub", size, shift), shifted)
    shifted = b.op("select", b.compare("lt", head, zero), b.op("neg", shifted), shifted)
    start = b.op("select", b.compare("gt", b.load(least), em.floor), shifted, head)
    f_, g_ = b.variable("f", start), b.variable("g", em.get(em.e, first, 1))
    with em.rows(first, last) as i:
        right = Rotation.of(em, b.load(f_), b.load(g_))
        em.put(em.e, i, right.r)
        f, off = right.pair(em.get(em.d, i), em.get(em.e, i, 1))
        low = em.get(em.d, i, 1)
        left = Rotation.of(em, f, b.op("mul", right.sine, low))
        em.put(em.d, i, left.r)
        f, low = left.pair(off, right.times_cosine(low))
        em.put(em.d, i, low, 1)
        off = em.get(em.e, i, 2)
        em.put(em.e, i, left.times_cosine(off), 2)
        em.record(0, i, left)
        em.record(1, i, right)
        b.set(f_, f)
        b.set(g_, b.op("mul", left.sine, off))
    # The first rotation stored an element before its rows, which is not of them.
    em.put(em.e, first, zero)
    em.put(em.e, last, b.load(f_))


__all__ = ["svd"]

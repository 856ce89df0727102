"""Triangular systems, and Cholesky and LU factors.

An iteration of the parallel loops has one matrix of the stack, or some right-hand sides of it, in
scratch memory, in f32 if its elements are narrower.
"""

from __future__ import annotations

import math

from bringup.dtypes import bool_, i32
from bringup.graph.index import Bound, Expr
from bringup.integers import ceil_div
from bringup.loops.form import Buffer, Scalar
from bringup.loops.library.builder import FuncBuilder, data, wide
from bringup.loops.library.calls import OpCall, StepLoops

#: Right-hand sides that are solved together.
_SIDES = 64


def triangular_solve(call: OpCall) -> StepLoops:
    """Substitution, every form of which is L X = B with other strides."""
    attrs, n = call.attrs, call.types[0].shape[-1]
    rows, columns = call.types[1].shape[-2:]
    m = columns if attrs["left"] else rows
    transpose = attrs["transpose"] != (not attrs["left"])
    is_lower = attrs["lower"] != transpose
    (t, b_), (y,) = call.operands, call.results
    stack, width = math.prod(call.types[1].shape[:-2]), min(m, _SIDES)
    b = FuncBuilder(call.name, [("in", t), ("in", b_), ("out", y)])
    with b.parallel(s=stack, c=ceil_div(m, width)) as (s, c):

        def row(i: Expr) -> Expr:
            """Of the system: that of an upper triangular one is solved from its end."""
            return i if is_lower else i * -1 + (n - 1)

        def factor(i: Expr, j: Expr) -> Scalar:
            i, j = (row(j), row(i)) if transpose else (row(i), row(j))
            return b.convert(b.load(t, (s * n + i) * n + j), wide(t.dtype))

        def side(i: Expr, e: Expr) -> Expr:
            i, j = (row(i), c * width + e) if attrs["left"] else (c * width + e, row(i))
            return (s * rows + i) * columns + j

        x = b.alloc("x", wide(y.dtype), n * width)
        left = c * -width + m
        with b.loop("i", n) as i:
            with b.loop("e", width, until=left) as e:
                b.store(x, i * width + e, b.convert(b.load(b_, side(i, e)), x.dtype))
            with b.loop("j", n, until=i) as j:
                less = b.op("neg", factor(i, j))
                with b.loop("e", width, until=left) as e:
                    value = b.load(x, j * width + e)
                    b.store(x, i * width + e, value, fold="add", factor=less)
            with b.loop("e", width, until=left) as e:
                value = b.load(x, i * width + e)
                if not attrs["unit"]:
                    value = b.op("div", value, factor(i, i))
                    b.store(x, i * width + e, value)
                b.store(y, side(i, e), b.convert(value, y.dtype))
    return StepLoops(call, (b.func(),))


def cholesky(call: OpCall) -> StepLoops:
    """Row by row: each element from those before it in its row and in that of its column."""
    (x,), (y,) = call.operands, call.results
    n, stack = call.types[0].shape[-1], math.prod(call.types[0].shape[:-2])
    b = FuncBuilder(call.name, [("in", x), ("out", y)])
    with b.parallel(s=stack) as (s,):
        a = b.alloc("a", wide(x.dtype), n * n)
        good = b.variable("good", b.constant(True, bool_))
        zero, infinity = b.constant(0.0, a.dtype), b.constant(math.inf, a.dtype)

        def rest(i: Expr, j: Expr) -> Scalar:
            """An element less the products of those before it."""
            value = b.convert(b.load(x, (s * n + i) * n + j), a.dtype)
            total = b.variable("total", value)
            with b.loop("p", n, until=j) as p:
                less = b.op("neg", b.load(a, i * n + p))
                b.set(total, b.load(a, j * n + p), fold="add", factor=less)
            return b.load(total)

        with b.loop("i", n) as i:
            with b.loop("j", n, until=i) as j:
                quotient = b.op("div", rest(i, j), b.load(a, j * n + j))
                b.store(a, i * n + j, quotient)
            root = b.op("sqrt", rest(i, i))
            b.store(a, i * n + i, root)
            above, below = b.compare("gt", root, zero), b.compare("lt", root, infinity)
            b.set(good, b.op("and", b.op("and", above, below), b.load(good)))
        nan = b.constant(math.nan, a.dtype)
        with b.loop("i", n) as i, b.loop("j", n) as j:
            is_lower = Bound(i + j * -1, 0, n)
            value = b.op("select", b.load(good), b.load(a, i * n + j, is_lower), nan)
            value = b.op("select", b.inside(is_lower), value, zero)
            b.store(y, (s * n + i) * n + j, b.convert(value, y.dtype))
    return StepLoops(call, (b.func(),))


def lu(call: OpCall) -> StepLoops:
    """Elimination column by column, with exchanges of rows."""
    (x,), (y, order) = call.operands, call.results
    (m, n), stack = call.types[0].shape[-2:], math.prod(call.types[0].shape[:-2])
    b = FuncBuilder(call.name, [("in", x), ("out", y), ("out", order)])
    with b.parallel(s=stack) as (s,):
        a = b.alloc("a", wide(x.dtype), m * n)
        with b.loop("i", m) as i:
            b.store(order, s * m + i, b.index(i, i32))
            with b.loop("j", n) as j:
                value = b.load(x, (s * m + i) * n + j)
                b.store(a, i * n + j, b.convert(value, a.dtype))
        with b.loop("k", min(m, n)) as k:
            row = _pivot(b, a, k, m, n)
            with b.loop("j", n) as j:
                _exchange(b, a, (k * n + j, data(m) * n + j), row)
            _exchange(b, order, (s * m + k, s * m + data(m)), row)
            _eliminate(b, a, k, m, n)
        with b.loop("i", m) as i, b.loop("j", n) as j:
            b.store(y, (s * m + i) * n + j, b.convert(b.load(a, i * n + j), y.dtype))
    return StepLoops(call, (b.func(),))


def _pivot(b: FuncBuilder, a: Buffer, k: Expr, m: int, n: int) -> Scalar:
    """The row of the first largest magnitude of a column, or of its first NaN."""
    best = b.variable("best", b.constant(-1.0, a.dtype))
    row = b.variable("row", b.index(k, i32))
    with b.loop("d", m, until=k * -1 + m) as d:
        size, most = b.op("abs", b.load(a, (k + d) * n + k)), b.load(best)
        is_first_nan = b.op("and", b.compare("ne", size, size), b.compare("eq", most, most))
        better = b.op("or", b.compare("gt", size, most), is_first_nan)
        b.set(best, b.op("select", better, size, most))
        b.set(row, b.op("select", better, b.index(k + d, i32), b.load(row)))
    return b.load(row)


def _exchange(b: FuncBuilder, buffer: Buffer, places: tuple[Expr, Expr], row: Scalar) -> None:
    one, other = b.load(buffer, places[0]), b.load(buffer, places[1], named=[row])
    b.store(buffer, places[0], other)
    b.store(buffer, places[1], one, named=[row])


def _eliminate(b: FuncBuilder, a: Buffer, k: Expr, m: int, n: int) -> None:
    """Subtract multiples of row ``k`` from those below it; the multipliers stay."""
    head, zero = b.load(a, k * n + k), b.constant(0.0, a.dtype)
    nothing = b.compare("eq", head, zero)
    with b.loop("i", m, until=k * -1 + (m - 1)) as d:
        i = k + d + 1
        quotient = b.op("div", b.load(a, i * n + k), head)
        multiplier = b.op("select", nothing, zero, quotient)
        b.store(a, i * n + k, multiplier)
        less = b.op("neg", multiplier)
        with b.loop("j", n, until=k * -1 + (n - 1)) as e:
            j = k + e + 1
            b.store(a, i * n + j, b.load(a, k * n + j), fold="add", factor=less)

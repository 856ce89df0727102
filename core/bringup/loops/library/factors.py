"""Triangular systems, and Cholesky and LU factors.

An iteration of the parallel loops has one matrix of the stack, or some right-hand sides of it, in
scratch memory, in f32 if its elements are narrower.
"""

from __future__ import annotations

import math

from bringup.dtypes import bool_, i32
from bringup.graph.index import Bound, Expr
from bringup.integers import ceil_div, ceil_power_of_two
from bringup.loops.form import Buffer, Scalar
from bringup.loops.library.builder import FuncBuilder, below, data, wide
from bringup.loops.library.calls import OpCall, StepLoops
from bringup.loops.library.tiles import Matrix, Tiles, shifted

def triangular_solve(call: OpCall) -> StepLoops:
    """Substitution, every form of which is L X = B with other strides.

    A tile of rows has the products with all rows above it subtracted, then is solved in registers.
    """
    attrs, n = call.attrs, call.types[0].shape[-1]
    rows, columns = call.types[1].shape[-2:]
    m = columns if attrs["left"] else rows
    transpose = attrs["transpose"] != (not attrs["left"])
    is_lower = attrs["lower"] != transpose
    (t, b_), (y,) = call.operands, call.results
    stack, dtype = math.prod(call.types[1].shape[:-2]), wide(y.dtype)
    b = FuncBuilder(call.name, [("in", t), ("in", b_), ("out", y)])
    tiles = Tiles.of(b, call, dtype, m)
    width = tiles.width
    with b.parallel(s=stack, c=ceil_div(m, width)) as (s, c):

        def row(i: Expr) -> Expr:
            """Of the system: that of an upper triangular one is solved from its end."""
            return i if is_lower else i * -1 + (n - 1)

        def factor(i: Expr, j: Expr) -> Scalar:
            i, j = (row(j), row(i)) if transpose else (row(i), row(j))
            return b.convert(b.load(t, (s * n + i) * n + j), dtype)

        def side(i: Expr, e: Expr) -> Expr:
            i, j = (row(i), c * width + e) if attrs["left"] else (c * width + e, row(i))
            return (s * rows + i) * columns + j

        x = Matrix(b, b.alloc("x", dtype, n * width), width)
        for first, count in tiles.bands(n):

            def right(r: Expr, e: Expr, first: Expr = first) -> Scalar:
                place, exists = side(first + r, e), below(c * width + e, m)
                return b.convert(b.load(b_, place, exists), dtype)

            tile = tiles.load(right, count, width)
            tile.subtract(shifted(factor, first), x.get, n, until=first)
            tile.solve(shifted(factor, first, first), unit=attrs["unit"])
            tile.store(x, first, Expr())
            with tiles.points(count, width) as (r, e):
                value = b.convert(tile.get(r, e), y.dtype)
                b.store(y, side(first + r, e), value, mask=[below(c * width + e, m)])
    return StepLoops(call, (b.func(),))


def cholesky(call: OpCall) -> StepLoops:
    """U with A = Uᵀ U, one band of rows after the other: less the products of the rows above it,
    then its corner on the diagonal, then the columns to the right by substitution.
    """
    (x,), (y,) = call.operands, call.results
    n, stack = call.types[0].shape[-1], math.prod(call.types[0].shape[:-2])
    b = FuncBuilder(call.name, [("in", x), ("out", y)])
    with b.parallel(s=stack) as (s,):
        tiles = Tiles.of(b, call, wide(x.dtype), n)
        u, zero = tiles.matrix("u", n, n), b.constant(0.0, tiles.dtype)
        with tiles.squares(n, n, "upper") as (i, j, mask):
            value = b.convert(b.load(x, (s * n + j) * n + i, *mask), u.dtype)
            is_upper = b.inside(Bound(j + i * -1, 0, n))
            u.set(i, j, b.op("select", is_upper, value, zero), *mask)
        tiles.pad(u, n, n)
        good = b.variable("good", b.constant(True, bool_))
        for k, count in tiles.bands(n):
            corner = _corner(tiles, u, k, count, n, good)
            with tiles.right_of(k + count, n) as j:
                tile = tiles.load(u.from_(k, j), count, tiles.width)
                tile.subtract(lambda r, p, k=k: u.get(p, k + r), u.from_(Expr(), j), n, until=k)
                tile.solve(lambda r, p: corner.get(p, r), unit=False)
                tile.store(u, k, j)
            # The first of these tiles may have written columns of the corner.
            with tiles.points(count, count) as (r, lane):
                u.set(k + r, k + lane, corner.get(r, lane))
        nan = b.constant(math.nan, tiles.dtype)
        with b.loop("i", n) as i, b.loop("j", n, until=i * -1 + (n - 1)) as j:
            b.store(y, (s * n + i) * n + i + j + 1, b.convert(zero, y.dtype))
        with tiles.squares(n, n, "lower") as (i, j, mask):
            value = b.op("select", b.load(good), u.get(j, i, *mask), nan)
            value = b.op("select", b.inside(Bound(i + j * -1, 0, n)), value, zero)
            b.store(y, (s * n + i) * n + j, b.convert(value, y.dtype), mask=mask)
    return StepLoops(call, (b.func(),))


def _corner(
    tiles: Tiles, u: Matrix, k: Expr, count: int, n: int, good: Buffer
) -> Matrix:
    """The part of a band on the diagonal, factored; ``good`` becomes false unless it is positive.
    """
    b, width = tiles.b, ceil_power_of_two(count)
    corner = Matrix(b, b.alloc("corner", tiles.dtype, count * width), width)
    zero, infinity = b.constant(0.0, tiles.dtype), b.constant(math.inf, tiles.dtype)
    tile = tiles.load(u.from_(k, k), count, width)
    tile.subtract(lambda r, p: u.get(p, k + r), u.from_(Expr(), k), n, until=k)
    with b.loop("r", count, "unroll") as r:
        root = b.op("sqrt", tile.get(r, r))
        above, below_ = b.compare("gt", root, zero), b.compare("lt", root, infinity)
        b.set(good, b.op("and", b.op("and", above, below_), b.load(good)))
        with tiles.across(width) as lane:
            tile.set(r, lane, b.op("div", tile.get(r, lane), root))
        tile.set(r, r, root)
        with b.loop("q", count, "unroll", until=r * -1 + (count - 1)) as q:
            after = r + q + 1
            less = b.op("neg", tile.get(r, after))
            with tiles.across(width) as lane:
                tile.add(after, lane, tile.get(r, lane), less)
    tile.store(corner, Expr(), Expr())
    return corner


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

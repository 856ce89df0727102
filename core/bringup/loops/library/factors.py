"""Triangular systems, and Cholesky and LU factors.

An iteration of the parallel loops has one matrix of the stack, or some right-hand sides of it, in
scratch memory, in f32 if its elements are narrower.
"""

from __future__ import annotations

import math

from bringup.dtypes import bool_, i32
from bringup.graph.index import ZERO, Bound, Expr
from bringup.integers import ceil_div, ceil_power_of_two, round_up
from bringup.loops.form import Buffer, Scalar
from bringup.loops.library import block_factors
from bringup.loops.library.builder import FuncBuilder, below, data, wide
from bringup.loops.library.calls import OpCall, StepLoops
from bringup.loops.library.panels import Panel
from bringup.loops.library.tiles import Matrix, Tiles, diagonal, reaches, shifted


def triangular_solve(call: OpCall) -> StepLoops:
    """Substitution, every form of which is L X = B with other strides.

    A tile of rows has the products with all rows above it subtracted, then is solved in registers.
    """
    if call.threads:
        return block_factors.triangular_solve(call)
    attrs, n = call.attrs, call.types[0].shape[-1]
    rows, columns = call.types[1].shape[-2:]
    m = columns if attrs["left"] else rows
    transpose = attrs["transpose"] != (not attrs["left"])
    is_lower = attrs["lower"] != transpose
    (t, b_), (y,) = call.operands, call.results
    stack, dtype = math.prod(call.types[1].shape[:-2]), wide(y.dtype)
    b = FuncBuilder(call.name, [("in", t), ("in", b_), ("out", y)])
    tiles = Tiles.of(b, call, dtype, n, m)
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
            corner = shifted(factor, first, first)
            tile.solve(corner, None if attrs["unit"] else diagonal(corner))
            tile.store(x, first, ZERO)
            with tiles.points(count, width) as (r, e):
                value = b.convert(tile.get(r, e), y.dtype)
                b.store(y, side(first + r, e), value, mask=[below(c * width + e, m)])
    return StepLoops(call, (b.func(),), work=n * n * width)


def cholesky(call: OpCall) -> StepLoops:
    """U with A = Uᵀ U, one band of rows after the other: less the products of the rows above it,
    then its corner on the diagonal, then the columns to the right by substitution.
    """
    if call.threads:
        return block_factors.cholesky(call)
    (x,), (y,) = call.operands, call.results
    n, stack = call.types[0].shape[-1], math.prod(call.types[0].shape[:-2])
    b = FuncBuilder(call.name, [("in", x), ("out", y)])
    with b.parallel(s=stack) as (s,):
        tiles = Tiles.of(b, call, wide(x.dtype), n, n)
        u, zero = tiles.matrix("u", n, n), b.constant(0.0, tiles.dtype)
        with tiles.squares(n, n, "upper") as (i, j, mask):
            value = b.convert(b.load(x, (s * n + j) * n + i, *mask), u.dtype)
            is_upper = b.inside(Bound(j + i * -1, 0, n))
            u.set(i, j, b.op("select", is_upper, value, zero), *mask)
        tiles.pad(u, n, n)
        good = b.variable("good", b.constant(True, bool_))
        for k, count in tiles.bands(n):
            corner = _corner(tiles, u, k, count, n, good)
            if not reaches(k + count, n):
                with tiles.right_of(k + count, n) as j:
                    tile = tiles.load(u.from_(k, j), count, tiles.width)
                    tile.subtract(u.transposed_from(ZERO, k), u.from_(ZERO, j), n, until=k)
                    above = corner.transposed_from(ZERO, ZERO)
                    tile.solve(above, diagonal(above))
                    tile.store(u, k, j)
            # The first of these tiles may have written columns of the corner.
            with tiles.points(count, corner.by) as (r, lane):
                u.set(k + r, k + lane, corner.get(r, lane))
        nan = b.constant(math.nan, tiles.dtype)
        with b.loop("i", n) as i, b.loop("j", n, until=i * -1 + (n - 1)) as j:
            b.store(y, (s * n + i) * n + i + j + 1, b.convert(zero, y.dtype))
        with tiles.squares(n, n, "lower") as (i, j, mask):
            value = b.op("select", b.load(good), u.get(j, i, *mask), nan)
            value = b.op("select", b.inside(Bound(i + j * -1, 0, n)), value, zero)
            b.store(y, (s * n + i) * n + j, b.convert(value, y.dtype), mask=mask)
    return StepLoops(call, (b.func(),), work=max(n**3 // 3, 1))


def _corner(tiles: Tiles, u: Matrix, k: Expr, count: int, n: int, good: Buffer) -> Matrix:
    """The part of a band on the diagonal, factored; ``good`` is false unless it is positive."""
    b, width = tiles.b, ceil_power_of_two(count)
    corner = Matrix(b, b.alloc("corner", tiles.dtype, count * width), width)
    zero, infinity = b.constant(0.0, tiles.dtype), b.constant(math.inf, tiles.dtype)
    tile = tiles.load(u.from_(k, k), count, width)
    tile.subtract(u.transposed_from(ZERO, k), u.from_(ZERO, k), n, until=k)
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
    tile.store(corner, ZERO, ZERO)
    return corner


def lu(call: OpCall) -> StepLoops:
    """One panel of columns after the other: elimination with exchanges of rows, then the columns to
    its right, in tiles.
    """
    if call.threads:
        return block_factors.lu(call)
    (x,), (y, order) = call.operands, call.results
    (m, n), stack = call.types[0].shape[-2:], math.prod(call.types[0].shape[:-2])
    b, dtype = FuncBuilder(call.name, [("in", x), ("out", y), ("out", order)]), wide(x.dtype)
    with b.parallel(s=stack) as (s,):

        def given(i: Expr, j: Expr) -> Scalar:
            place, mask = (s * m + i) * n + j, (below(i, m), below(j, n))
            return b.convert(b.load(x, place, *mask), dtype)

        def put(i: Expr, j: Expr, value: Scalar, *mask: Bound) -> None:
            mask = (*mask, below(i, m), below(j, n))
            b.store(y, (s * m + i) * n + j, b.convert(value, y.dtype), mask=mask)

        with b.loop("i", m) as i:
            b.store(order, s * m + i, b.index(i, i32))
        panel, tiles = Panel.of(b, call, dtype, m, min(m, n)), Tiles.of(b, call, dtype, m, n)
        if n <= panel.most:  # no column is beside it
            panel.load(given, ZERO, n)
            _eliminate(panel, ZERO, n, (order, s * m))
            panel.unload(put, ZERO, n)
        else:
            a, whole = tiles.matrix("a", panel.rows, n), round_up(n, tiles.width)
            with b.loop("i", panel.rows) as i, b.loop("c", whole) as c:
                a.set(i, c, given(i, c))
            for k, count in panel.each(min(m, n)):
                panel.load(a.get, k, count)
                _eliminate(panel, k, count, (order, s * m), (tiles, a, whole))
                if not reaches(k + count, n):
                    with tiles.right_of(k + count, n) as j:
                        _subtract_panel(tiles, panel, a, (k, count, j))
                panel.unload(a.set, k, count)
            with b.loop("i", m) as i, b.loop("c", n) as c:
                put(i, c, a.get(i, c))
    return StepLoops(call, (b.func(),), work=m * n * min(m, n))


def _eliminate(
    panel: Panel,
    k: Expr,
    count: int,
    order: tuple[Buffer, Expr],
    beside: tuple[Tiles, Matrix, int] | None = None,
) -> None:
    """Eliminate the columns from ``k`` on, below their diagonal; the multipliers stay.

    order: the numbers of rows, and where the first stands.  beside: the whole matrix, in which rows
    are exchanged, too, and its columns.
    """
    b, columns, m = panel.down.b, panel.columns, panel.down.length
    zero = b.constant(0.0, columns.dtype)
    lanes = panel.down.lanes
    with b.loop("j", count) as j:
        g = k + j
        row = _pivot(panel, j, g)
        _exchange(b, order[0], (order[1] + g, order[1] + data(m)), row)
        with b.loop("q", count) as q:
            _exchange(b, columns.buffer, (columns.place(q, g), columns.place(q, data(m))), row)
        if beside is not None:
            tiles, a, width = beside
            with b.loop("chunk", width // tiles.lanes) as c, tiles.across(tiles.lanes) as lane:
                across = c * tiles.lanes + lane
                _exchange(b, a.buffer, (a.place(g, across), a.place(data(m), across)), row)
        head = columns.get(j, g)
        nothing = b.compare("eq", head, zero)
        with panel.down.vectors(g) as i:
            multipliers = b.alloc("multipliers", columns.dtype, lanes, "register")
            with panel.down.across() as lane:
                value = columns.get(j, i + lane)
                multiplier = b.op("select", nothing, zero, b.op("div", value, head))
                b.store(multipliers, lane, multiplier)
                is_below = panel.down.holds(i + lane, g + 1)
                value = b.op("select", is_below, b.load(multipliers, lane), value)
                columns.set(j, i + lane, value)
            with b.loop("q", count, until=j * -1 + (count - 1)) as q:
                less = b.op("neg", columns.get(j + 1 + q, g))
                rest = b.alloc("rest", columns.dtype, lanes, "register")
                with panel.down.across() as lane:
                    value = columns.get(j + 1 + q, i + lane)
                    b.store(rest, lane, value)
                    b.store(rest, lane, b.load(multipliers, lane), fold="add", factor=less)
                    is_below = panel.down.holds(i + lane, g + 1)
                    value = b.op("select", is_below, b.load(rest, lane), value)
                    columns.set(j + 1 + q, i + lane, value)


def _pivot(panel: Panel, j: Expr, g: Expr) -> Scalar:
    """The row of the first largest magnitude of a column from row ``g`` on, or of its first NaN."""
    b, columns, lanes = panel.down.b, panel.columns, panel.down.lanes
    least, beyond = b.constant(-1.0, columns.dtype), b.constant(panel.down.length, i32)
    sizes = b.alloc("sizes", columns.dtype, lanes, "register")
    rows = b.alloc("rows", i32, lanes, "register")
    with panel.down.across() as lane:
        b.store(sizes, lane, least)
        b.store(rows, lane, beyond)
    with panel.down.vectors(g) as i, panel.down.across() as lane:
        size = b.op("abs", columns.get(j, i + lane))
        b.store(sizes, lane, b.op("select", panel.down.holds(i + lane, g), size, least), fold="max")
    best, row = b.variable("best", least), b.variable("row", beyond)
    with panel.down.across() as lane:
        b.set(best, b.load(sizes, lane), fold="max")
    most = b.load(best)
    with panel.down.vectors(g) as i, panel.down.across() as lane:
        size = b.op("abs", columns.get(j, i + lane))
        is_best = b.op("or", b.compare("eq", size, most), b.compare("ne", size, size))
        is_best = b.op("and", is_best, panel.down.holds(i + lane, g))
        number = b.op("select", is_best, b.index(i + lane, i32), beyond)
        b.store(rows, lane, number, fold="min")
    with panel.down.across() as lane:
        b.set(row, b.load(rows, lane), fold="min")
    return b.load(row)


def _exchange(b: FuncBuilder, buffer: Buffer, places: tuple[Expr, Expr], row: Scalar) -> None:
    one, other = b.load(buffer, places[0]), b.load(buffer, places[1], named=[row])
    b.store(buffer, places[0], other)
    b.store(buffer, places[1], one, named=[row])


def _subtract_panel(tiles: Tiles, panel: Panel, a: Matrix, place: tuple[Expr, int, Expr]) -> None:
    """The rows of U that belong to a panel, and the rows below less their products with it.

    place: the panel's first column and its number of columns, and the first column of the tiles.
    """
    b, columns, (k, count, j) = tiles.b, panel.columns, place
    for first, rows in tiles.bands(count):
        tile = tiles.load(a.from_(k + first, j), rows, tiles.width)
        top = k + first
        tile.subtract(columns.transposed_from(ZERO, top), a.from_(k, j), count, until=first)
        tile.solve(columns.transposed_from(first, top))
        tile.store(a, top, j)
    if reaches(k + count, panel.down.length):
        return
    bands = panel.rows // tiles.rows
    with b.loop("band", bands, until=((k + count) // tiles.rows) * -1 + bands) as band:
        i = k + count + band * tiles.rows
        tile = tiles.load(a.from_(i, j), tiles.rows, tiles.width)
        tile.subtract(columns.transposed_from(ZERO, i), a.from_(k, j), count)
        tile.store(a, i, j)

"""Householder's reflections in blocks, as products with matrices: I − V T Vᵀ.

T is not computed: its inverse has the reciprocal scales on the diagonal and Vᵀ V above it, so that
T times a matrix is substitution.  (C. Puglisi, Modification of the Householder method based on the
compact WY representation, 1992.)
"""

from __future__ import annotations

import math
from collections.abc import Callable

from bringup.graph.index import ZERO, Bound, Expr
from bringup.integers import round_up
from bringup.loops.form import Buffer, Scalar
from bringup.loops.library import block_factors
from bringup.loops.library.builder import FuncBuilder, below, wide
from bringup.loops.library.calls import OpCall, StepLoops
from bringup.loops.library.lines import Line
from bringup.loops.library.panels import Panel, most_columns
from bringup.loops.library.tiles import Matrix, Tiles, blocks, reaches, shifted
from bringup.records import record


def qr(call: OpCall) -> StepLoops:
    """R by reflections, a panel of columns after the other; Q as their product."""
    if call.threads:
        return block_factors.qr(call)
    (x,), (q_, r_) = call.operands, call.results
    (m, n), stack = call.types[0].shape[-2:], math.prod(call.types[0].shape[:-2])
    size, k_most = call.types[1].shape[-1], min(m, n)
    b, dtype = FuncBuilder(call.name, [("in", x), ("out", q_), ("out", r_)]), wide(x.dtype)
    with b.parallel(s=stack) as (s,):

        def given(i: Expr, j: Expr) -> Scalar:
            place, mask = (s * m + i) * n + j, (below(i, m), below(j, n))
            return b.convert(b.load(x, place, *mask), dtype)

        def put(i: Expr, j: Expr, value: Scalar, *mask: Bound) -> None:
            zero, is_upper = b.constant(0.0, dtype), b.inside(Bound(j + i * -1, 0, max(n, 1)))
            value = b.convert(b.op("select", is_upper, value, zero), r_.dtype)
            mask = (*mask, below(i, size), below(j, n))
            b.store(r_, (s * size + i) * n + j, value, mask=mask)

        panel, tiles = Panel.of(b, call, dtype, m, k_most), Tiles.of(b, call, dtype, m, n)
        reflections = Reflections.of(panel.down, k_most)
        if n <= panel.most:  # no column is beside it
            panel.load(given, ZERO, n)
            reflections.factor(panel, ZERO, n)
            panel.unload(put, ZERO, n)
        else:
            a, whole = tiles.matrix("a", panel.rows, n), round_up(n, tiles.width)
            with b.loop("i", panel.rows) as i, b.loop("c", whole) as c:
                a.set(i, c, given(i, c))
            for k, count in panel.each(k_most):
                panel.load(a.get, k, count)
                reflections.factor(panel, k, count)
                if not reaches(k + count, n):
                    with tiles.right_of(k + count, n) as j:
                        reflections.apply(tiles, a, (k, count, j), backward=False)
                panel.unload(a.set, k, count)
            with b.loop("i", size) as i, b.loop("c", n) as c:
                put(i, c, a.get(i, c))
        q = reflections.form(Tiles.of(b, call, dtype, m, size), k_most, size)
        with b.loop("i", m) as i, b.loop("c", size) as c:
            b.store(q_, (s * m + i) * size + c, b.convert(q.get(i, c), q_.dtype))
    return StepLoops(call, (b.func(),), work=2 * m * n * k_most)


@record(eq=False)
class Reflections:
    """The reflections of a matrix.

    line: their vectors as lines.  most: of a block.
    v: the vectors, a row each, with zeros before the first element, which is 1.
    products: those of each vector with the later ones of its block.
    scales: what the products of a vector with columns are multiplied by.
    """

    line: Line
    most: int
    v: Matrix
    products: Matrix
    scales: Buffer

    @classmethod
    def of(cls, line: Line, count: int, name: str = "") -> Reflections:
        """Memory for ``count`` reflections."""
        b, dtype, most = line.b, line.tiles.dtype, most_columns(count)
        v = line.tiles.matrix(f"{name}vectors", count, line.whole)
        products = Matrix(b, b.alloc(f"{name}products", dtype, count * most), most)
        return cls(line, most, v, products, b.alloc(f"{name}scales", dtype, count))

    def factor(self, panel: Panel, k: Expr, count: int) -> None:
        """Make the columns of a panel 0 below the diagonal of the matrix."""
        b, columns, line = self.line.b, panel.columns, self.line
        with b.loop("j", count) as j:
            g = k + j
            scale = self._reflector(columns, j, k, g)
            b.store(self.scales, g, scale)
            with b.loop("q", count, until=j) as q:
                self.products.set(k + q, j, self.dot(g, self.v, k + q))
            less = b.op("neg", scale)
            with b.loop("q", count, until=j * -1 + (count - 1)) as q:
                column = j + 1 + q
                weight = b.op("mul", self.dot(g, columns, column), less)
                with line.elements(g) as i:
                    columns.add(column, i, self.v.get(g, i), weight)

    def dot(self, g: Expr, other: Matrix, row: Expr) -> Scalar:
        """The product of vector ``g``, which begins there, with a row."""
        return self.line.fold(g, "add", lambda i: (self.v.get(g, i), other.get(row, i)))

    def _reflector(self, columns: Matrix, j: Expr, k: Expr, g: Expr) -> Scalar:
        """Make column ``j`` 0 below element ``g``.  Gives the scale of the reflection.

        The elements are divided by the largest first: the remainder of dependent columns may be
        subnormal, with few significant bits.
        """
        b, line = self.line.b, self.line
        zero, one = b.constant(0.0, columns.dtype), b.constant(1.0, columns.dtype)

        def below_head(i: Expr, value: Scalar) -> Scalar:
            return b.op("select", line.holds(i, g + 1), value, zero)

        tail = line.fold(g, "max", lambda i: (below_head(i, b.op("abs", columns.get(j, i))),))
        head = columns.get(j, g)
        most = b.op("max", tail, b.op("abs", head))
        large = b.op("select", b.compare("gt", most, zero), most, one)

        def scaled(i: Expr) -> tuple[Scalar, ...]:
            value = below_head(i, b.op("div", columns.get(j, i), large))
            return value, value

        flat, head = b.compare("eq", tail, zero), b.op("div", head, large)
        square = b.op("add", line.fold(g, "add", scaled), b.op("mul", head, head))
        norm = b.op("sqrt", square)
        away = b.op("select", b.compare("lt", head, zero), norm, b.op("neg", norm))
        image = b.op("select", flat, head, away)
        quotient = b.op("div", b.op("sub", image, head), b.op("select", flat, one, image))
        over = b.op("select", flat, one, b.op("sub", head, image))
        with line.elements(k) as i:
            value = b.op("div", b.op("div", columns.get(j, i), large), over)
            self.v.set(g, i, below_head(i, value))
        self.v.set(g, g, one)
        columns.set(j, g, b.op("mul", image, large))
        return b.op("select", flat, zero, quotient)

    def put(self, k: Expr, scale: Scalar, vector: Callable[[Expr], Scalar]) -> None:
        """Store reflection ``k``."""
        self.line.b.store(self.scales, k, scale)
        with self.line.elements(ZERO) as i:
            self.v.set(k, i, vector(i))

    def multiply(self, count: int) -> None:
        """Compute the products of ``count`` vectors with those of their blocks."""
        for k, some in blocks(self.line.b, "panel", count, self.most):
            with self.line.b.loop("j", some) as j, self.line.b.loop("q", some, until=j) as q:
                self.products.set(k + q, j, self.dot(k + j, self.v, k + q))

    # -- products with a block ---------------------------------------------------------------------

    def form(self, tiles: Tiles, count: int, size: int) -> Matrix:
        """The first ``size`` columns of the product of ``count`` reflections."""
        b, rows = tiles.b, self.line.whole
        q, whole = tiles.matrix("q", rows, size), round_up(size, tiles.width)
        one, zero = b.constant(1.0, q.dtype), b.constant(0.0, q.dtype)
        with b.loop("i", rows) as i, b.loop("c", whole) as c:
            q.set(i, c, b.op("select", b.inside(Bound(i + c * -1, 0, 1)), one, zero))
        for k, some in blocks(b, "panel", count, self.most, backward=True):
            # To the left of the block, its rows are still zeros.
            with tiles.right_of(k, size) as j:
                self.apply(tiles, q, (k, some, j), backward=True)
        return q

    def apply(
        self, tiles: Tiles, x: Matrix, place: tuple[Expr, int, Expr], *, backward: bool
    ) -> None:
        """Reflect the rows of ``x`` from the block's first on, in one tile of columns.

        place: the block's first reflection and their number, and the first column.
        backward: the last reflection is the first that is applied.
        """
        b, (k, count, j), whole = tiles.b, place, self.line.whole
        y = Matrix(b, b.alloc("weights", x.dtype, count * tiles.width), tiles.width)
        zero = b.constant(0.0, x.dtype)

        def number(r: Expr) -> Expr:
            return r * -1 + (count - 1) if backward else r

        def vector(r: Expr, i: Expr) -> Scalar:
            return self.v.get(k + number(r), i)

        def product(r: Expr, q: Expr) -> Scalar:
            one, other = (r, q) if backward else (q, r)
            return self.products.get(k + number(one), number(other))

        rows = k * -1 + whole
        for first, some in tiles.bands(count):

            def scale(r: Expr, first: Expr = first) -> Scalar:
                return b.load(self.scales, k + number(first + r))

            tile = tiles.load(lambda r, lane: zero, some, tiles.width)
            tile.add_products(shifted(vector, first, k), x.from_(k, j), whole, rows)
            tile.subtract(shifted(product, first), y.get, count, until=first)
            tile.solve(shifted(product, first, first), scale, "mul")
            tile.store(y, first, ZERO)
        bands = whole // tiles.rows
        before = k // tiles.rows
        with b.loop("band", bands, until=before * -1 + bands) as band:
            i = (before + band) * tiles.rows
            tile = tiles.load(x.from_(i, j), tiles.rows, tiles.width)
            tile.subtract(lambda r, p: vector(p, i + r), y.get, count)
            tile.store(x, i, j)

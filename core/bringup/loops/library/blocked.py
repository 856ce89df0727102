"""Householder's reflections in blocks, as products with matrices: I − V T Vᵀ.

T is not computed: its inverse has the reciprocal scales on the diagonal and Vᵀ V above it, so that
T times a matrix is substitution.  (C. Puglisi, Modification of the Householder method based on the
compact WY representation, 1992.)
"""

from __future__ import annotations

import math

from bringup.dtypes import DType
from bringup.graph.index import ZERO, Bound, Expr
from bringup.integers import round_up
from bringup.loops.form import Buffer, Scalar
from bringup.loops.library import block_factors
from bringup.loops.library.builder import FuncBuilder, below, wide
from bringup.loops.library.calls import OpCall, StepLoops
from bringup.loops.library.panels import Panel
from bringup.loops.library.tiles import Matrix, Tiles, reaches, shifted
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

        reflections = Reflections.of(b, call, dtype, m, k_most)
        panel, tiles = reflections.panel, Tiles.of(b, call, dtype, m, n)
        if n <= panel.most:  # no column is beside it
            panel.load(given, ZERO, n)
            reflections.factor(ZERO, n)
            panel.unload(put, ZERO, n)
        else:
            a, whole = tiles.matrix("a", panel.rows, n), round_up(n, tiles.width)
            with b.loop("i", panel.rows) as i, b.loop("c", whole) as c:
                a.set(i, c, given(i, c))
            for k, count in panel.each(k_most):
                panel.load(a.get, k, count)
                reflections.factor(k, count)
                if not reaches(k + count, n):
                    with tiles.right_of(k + count, n) as j:
                        reflections.apply(tiles, a, (k, count, j), backward=False)
                panel.unload(a.set, k, count)
            with b.loop("i", size) as i, b.loop("c", n) as c:
                put(i, c, a.get(i, c))
        tiles = Tiles.of(b, call, dtype, m, size)
        q, whole = tiles.matrix("q", panel.rows, size), round_up(size, tiles.width)
        one, zero = b.constant(1.0, dtype), b.constant(0.0, dtype)
        with b.loop("i", panel.rows) as i, b.loop("c", whole) as c:
            q.set(i, c, b.op("select", b.inside(Bound(i + c * -1, 0, 1)), one, zero))
        for k, count in panel.each(k_most, backward=True):
            # To the left of the block, its rows are still zeros.
            with tiles.right_of(k, size) as j:
                reflections.apply(tiles, q, (k, count, j), backward=True)
        with b.loop("i", m) as i, b.loop("c", size) as c:
            b.store(q_, (s * m + i) * size + c, b.convert(q.get(i, c), q_.dtype))
    return StepLoops(call, (b.func(),))


@record(eq=False)
class Reflections:
    """The reflections of a matrix.

    v: their vectors, a row each, with zeros before the first element, which is 1.
    products: those of each vector with the later ones of its block.
    scales: what the products of a vector with columns are multiplied by.
    """

    panel: Panel
    v: Matrix
    products: Matrix
    scales: Buffer

    @classmethod
    def of(cls, b: FuncBuilder, call: OpCall, dtype: DType, length: int, count: int) -> Reflections:
        """Memory for ``count`` reflections of vectors of ``length`` elements."""
        panel = Panel.of(b, call, dtype, length, count)
        v = panel.down.matrix("v", count, panel.rows)
        products = Matrix(b, b.alloc("products", dtype, count * panel.most), panel.most)
        return cls(panel, v, products, b.alloc("scales", dtype, count))

    # -- one panel ---------------------------------------------------------------------------------

    def factor(self, k: Expr, count: int) -> None:
        """Make the columns of the panel 0 below the diagonal of the matrix."""
        b, columns = self.panel.down.b, self.panel.columns
        with b.loop("j", count) as j:
            g = k + j
            scale = self._reflector(j, k, g)
            b.store(self.scales, g, scale)
            with b.loop("q", count, until=j) as q:
                self.products.set(k + q, j, self._dot(g, self.v, k + q, g))
            less = b.op("neg", scale)
            with b.loop("q", count, until=j * -1 + (count - 1)) as q:
                column = j + 1 + q
                weight = b.op("mul", self._dot(g, columns, column, g), less)
                with self.panel.vectors(g) as i, self.panel.down.across(self.lanes) as lane:
                    columns.add(column, i + lane, self.v.get(g, i + lane), weight)

    @property
    def lanes(self) -> int:
        """Of a vector."""
        return self.panel.down.lanes

    def _dot(self, g: Expr, other: Matrix, row: Expr, first: Expr) -> Scalar:
        """The product of vector ``g`` with a row, from an element on."""
        b, down = self.panel.down.b, self.panel.down
        sums = self._sums()
        with self.panel.vectors(first) as i, down.across(self.lanes) as lane:
            factor = other.get(row, i + lane)
            b.store(sums, lane, self.v.get(g, i + lane), fold="add", factor=factor)
        return self._total(sums, "add")

    def _sums(self) -> Buffer:
        b, dtype = self.panel.down.b, self.v.dtype
        sums, zero = b.alloc("sums", dtype, self.lanes, "register"), b.constant(0.0, dtype)
        with self.panel.down.across(self.lanes) as lane:
            b.store(sums, lane, zero)
        return sums

    def _total(self, parts: Buffer, fold: str) -> Scalar:
        b = self.panel.down.b
        total = b.variable("total", b.constant(0.0, self.v.dtype))
        with self.panel.down.across(self.lanes) as lane:
            b.set(total, b.load(parts, lane), fold=fold)
        return b.load(total)

    def _reflector(self, j: Expr, k: Expr, g: Expr) -> Scalar:
        """Make column ``j`` 0 below element ``g``.  Gives the scale of the reflection.

        The elements are divided by the largest first: the remainder of dependent columns may be
        subnormal, with few significant bits.
        """
        b, panel, columns = self.panel.down.b, self.panel, self.panel.columns
        zero, one = b.constant(0.0, columns.dtype), b.constant(1.0, columns.dtype)
        sizes = self._sums()
        with panel.vectors(g) as i, panel.down.across(self.lanes) as lane:
            size = b.op("abs", columns.get(j, i + lane))
            size = b.op("select", panel.holds(i + lane, g + 1), size, zero)
            b.store(sizes, lane, size, fold="max")
        tail, head = self._total(sizes, "max"), columns.get(j, g)
        most = b.op("max", tail, b.op("abs", head))
        large = b.op("select", b.compare("gt", most, zero), most, one)
        squares = self._sums()
        with panel.vectors(g) as i, panel.down.across(self.lanes) as lane:
            value = b.op("div", columns.get(j, i + lane), large)
            value = b.op("select", panel.holds(i + lane, g + 1), value, zero)
            b.store(squares, lane, value, fold="add", factor=value)
        flat, head = b.compare("eq", tail, zero), b.op("div", head, large)
        square = b.op("add", self._total(squares, "add"), b.op("mul", head, head))
        norm = b.op("sqrt", square)
        away = b.op("select", b.compare("lt", head, zero), norm, b.op("neg", norm))
        image = b.op("select", flat, head, away)
        quotient = b.op("div", b.op("sub", image, head), b.op("select", flat, one, image))
        over = b.op("select", flat, one, b.op("sub", head, image))
        with panel.vectors(k) as i, panel.down.across(self.lanes) as lane:
            value = b.op("div", b.op("div", columns.get(j, i + lane), large), over)
            value = b.op("select", panel.holds(i + lane, g + 1), value, zero)
            self.v.set(g, i + lane, value)
        self.v.set(g, g, one)
        columns.set(j, g, b.op("mul", image, large))
        return b.op("select", flat, zero, quotient)

    # -- products with a block ---------------------------------------------------------------------

    def apply(
        self, tiles: Tiles, x: Matrix, place: tuple[Expr, int, Expr], *, backward: bool
    ) -> None:
        """Reflect the rows of ``x`` from the block's first on, in one tile of columns.

        place: the block's first reflection and their number, and the first column.
        backward: the last reflection is the first that is applied.
        """
        b, (k, count, j), panel = tiles.b, place, self.panel
        y = Matrix(b, b.alloc("y", x.dtype, count * tiles.width), tiles.width)
        zero = b.constant(0.0, x.dtype)

        def number(r: Expr) -> Expr:
            return r * -1 + (count - 1) if backward else r

        def vector(r: Expr, i: Expr) -> Scalar:
            return self.v.get(k + number(r), i)

        def product(r: Expr, q: Expr) -> Scalar:
            one, other = (r, q) if backward else (q, r)
            return self.products.get(k + number(one), number(other))

        rows = k * -1 + panel.rows
        for first, some in tiles.bands(count):

            def scale(r: Expr, first: Expr = first) -> Scalar:
                return b.load(self.scales, k + number(first + r))

            tile = tiles.load(lambda r, lane: zero, some, tiles.width)
            tile.add_products(shifted(vector, first, k), x.from_(k, j), panel.rows, rows)
            tile.subtract(shifted(product, first), y.get, count, until=first)
            tile.solve(shifted(product, first, first), scale, "mul")
            tile.store(y, first, ZERO)
        bands = panel.rows // tiles.rows
        before = k // tiles.rows
        with b.loop("band", bands, until=before * -1 + bands) as band:
            i = (before + band) * tiles.rows
            tile = tiles.load(x.from_(i, j), tiles.rows, tiles.width)
            tile.subtract(lambda r, p: vector(p, i + r), y.get, count)
            tile.store(x, i, j)

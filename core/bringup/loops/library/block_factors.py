"""Cholesky, LU and QR factors and triangular systems by blocks of threads, one for each matrix.

A block keeps its matrix in the memory that it shares, or in temporary memory if it is too large,
and eliminates one column after another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from bringup.dtypes import DType, as_dtype, i32
from bringup.graph.index import ZERO, Bound, Expr
from bringup.integers import ceil_div, ceil_power_of_two
from bringup.loops.form import Buffer, Role, Scalar
from bringup.loops.library.builder import FuncBuilder, below, data, wide
from bringup.loops.library.calls import OpCall, StepLoops
from bringup.loops.library.exchange import BlockFold, threads_of
from bringup.records import record

#: Elements of a matrix for each thread of its block.
_ELEMENTS = 16
#: The most warps of a block that solves a triangular system.
_SOLVING_WARPS = 8


@record(eq=False)
class _Area:
    """A matrix in the working memory of a block."""

    b: FuncBuilder
    buffer: Buffer
    base: Expr
    stride: int

    def at(self, i: Expr, j: Expr = ZERO) -> Expr:
        """Where an element is."""
        return self.base + i * self.stride + j

    def load(self, i: Expr, j: Expr = ZERO, *named: Scalar) -> Scalar:
        """An element."""
        return self.b.load(self.buffer, self.at(i, j), named=named)

    def store(self, i: Expr, j: Expr, value: Scalar, *named: Scalar) -> None:
        """Write an element."""
        self.b.store(self.buffer, self.at(i, j), value, named=named)

    def add(self, i: Expr, j: Expr, x: Scalar, y: Scalar) -> None:
        """Add a product to an element."""
        self.b.store(self.buffer, self.at(i, j), x, fold="add", factor=y)


@record(eq=False)
class _Block:
    """A block: the number of its matrix, its own among the blocks of the matrix, its threads, and
    its working memory.  thread, warp, lane: numbers.
    """

    call: OpCall
    b: FuncBuilder
    dtype: DType
    matrix: Expr
    group: Expr
    threads: int
    thread: Expr
    warp: Expr
    lane: Expr
    areas: tuple[_Area, ...]

    @property
    def warps(self) -> int:
        """How many there are."""
        return self.threads // self.call.warp

    # Loops from ``first`` to ``stop``, distributed over threads, warps, and the lanes of a warp.

    @contextmanager
    def over_threads(self, name: str, first: Expr, stop: Expr) -> Iterator[Expr]:
        """Over the threads of the block."""
        with self.b.strided(name, stop, self.threads, first + self.thread) as index:
            yield index

    @contextmanager
    def over_warps(self, name: str, first: Expr, stop: Expr) -> Iterator[Expr]:
        """Over its warps."""
        with self.b.strided(name, stop, self.warps, first + self.warp) as index:
            yield index

    @contextmanager
    def over_lanes(self, name: str, first: Expr, stop: Expr) -> Iterator[Expr]:
        """Over the lanes of a warp."""
        with self.b.strided(name, stop, self.call.warp, first + self.lane) as index:
            yield index

    @contextmanager
    def over_elements(self, rows: int, columns: int) -> Iterator[tuple[Expr, Expr]]:
        """Row and column of each element of a matrix, distributed over the threads."""
        stop = Expr(columns)
        with self.over_warps("i", ZERO, Expr(rows)) as i, self.over_lanes("j", ZERO, stop) as j:
            yield i, j

    def fold(self, kind: str, dtype: DType | None = None) -> BlockFold:
        """How its threads fold."""
        return BlockFold(self.b, kind, dtype or self.dtype, self.warps, self.call.warp)

    def given(self, i: Expr, j: Expr, number: int = 0, mask: tuple[Bound, ...] = ()) -> Scalar:
        """An element of an operand; 0 where a bound does not hold."""
        x, (rows, columns) = self.call.operands[number], self.call.types[number].shape[-2:]
        index = (self.matrix * rows + i) * columns + j
        return self.b.convert(self.b.load(x, index, *mask), self.dtype)

    def put(
        self, i: Expr, j: Expr, value: Scalar, number: int = 0, mask: tuple[Bound, ...] = ()
    ) -> None:
        """Write an element of a result where bounds hold."""
        y = self.call.results[number]
        rows, columns = self.call.types[len(self.call.operands) + number].shape[-2:]
        index = (self.matrix * rows + i) * columns + j
        self.b.store(y, index, self.b.convert(value, y.dtype), mask=mask)


def _by_blocks(
    call: OpCall,
    sizes: Sequence[tuple[int, int]],
    emit: Callable[[_Block], None],
    shape: tuple[int, int] | None = None,
    cached: tuple[int, int] | None = None,
) -> StepLoops:
    """A function with a block for each matrix of the stack.

    sizes: rows and columns of each area, in memory that the block shares if all of them fit.
    shape: threads of a block, and blocks of a matrix.
    cached: of an area that there is only if it fits beside the others.
    """
    dtype, (m, n) = wide(call.operands[0].dtype), call.types[0].shape[-2:]
    stack = math.prod(call.types[0].shape[:-2])
    wanted = ceil_power_of_two(max(m * n // _ELEMENTS, 1))
    threads, groups = shape or (min(call.threads, max(call.warp, wanted)), 1)

    def fits(*areas: tuple[int, int]) -> bool:
        return sum(r * (c | 1) for r, c in areas) * dtype.itemsize <= call.target.tile_bytes

    if cached is not None and fits(*sizes, cached):
        sizes = [*sizes, cached]
    memory: list[Buffer] = []
    if not fits(*sizes):
        blocks = stack * groups
        memory = [Buffer(f"w{k}", dtype, blocks * r * c) for k, (r, c) in enumerate(sizes)]
    params: list[tuple[Role, Buffer]] = [("in", x) for x in call.operands]
    params += [("out", y) for y in call.results]
    b = FuncBuilder(call.name, [*params, *(("inout", buffer) for buffer in memory)])
    with b.loop("s", stack, "block") as s, b.loop("g", groups, "block") as g:
        areas: list[_Area] = []
        for number, (rows, columns) in enumerate(sizes):
            if memory:
                base = (s * groups + g) * (rows * columns)
                areas.append(_Area(b, memory[number], base, columns))
            else:
                stride = columns | 1  # rows of a column are in different banks
                area = b.alloc(f"w{number}", dtype, rows * stride, "shared")
                areas.append(_Area(b, area, ZERO, stride))
        with threads_of(b, call, threads) as (thread, (warp, lane)):
            emit(_Block(call, b, dtype, s, g, threads, thread, warp, lane, tuple(areas)))
    return StepLoops(call, (b.func(),), tuple(memory))


# -- cholesky --------------------------------------------------------------------------------------


def cholesky(call: OpCall) -> StepLoops:
    """Column by column: divided by its pivot, its products subtracted from those to its right."""
    n = call.types[0].shape[-1]
    return _by_blocks(call, [(n, n), (n, 1)], _cholesky)


def _cholesky(block: _Block) -> None:
    b, (a, pivots), n = block.b, block.areas, block.call.types[0].shape[-1]
    stop = Expr(n)
    with block.over_warps("i", ZERO, stop) as i, block.over_lanes("j", ZERO, i + 1) as j:
        a.store(i, j, block.given(i, j))
    b.barrier()
    good = b.variable("good", b.constant(1, i32))
    zero, infinity = b.constant(0.0, block.dtype), b.constant(math.inf, block.dtype)
    with b.loop("k", n) as k:
        pivot = b.op("sqrt", a.load(k, k))
        above, finite = b.compare("gt", pivot, zero), b.compare("lt", pivot, infinity)
        b.set(good, b.convert(b.op("and", above, finite), i32), fold="min")
        with b.where(below(block.thread, 1)):
            pivots.store(k, ZERO, pivot)
        with block.over_threads("i", k + 1, stop) as i:
            a.store(i, k, b.op("div", a.load(i, k), pivot))
        b.barrier()
        with block.over_warps("i", k + 1, stop) as i:
            less = b.op("neg", a.load(i, k))
            with block.over_lanes("j", k + 1, i + 1) as j:
                a.add(i, j, a.load(j, k), less)
        b.barrier()
    definite = b.compare("eq", b.load(good), b.constant(1, i32))
    nan = b.constant(math.nan, block.dtype)
    with block.over_elements(n, n) as (i, j):
        value = b.variable("value", zero)
        with b.where(Bound(i + j * -1, 1, max(n, 2))):
            b.set(value, b.op("select", definite, a.load(i, j), nan))
        with b.where(Bound(i + j * -1, 0, 1)):
            b.set(value, b.op("select", definite, pivots.load(i), nan))
        block.put(i, j, b.load(value))


# -- lu --------------------------------------------------------------------------------------------


def lu(call: OpCall) -> StepLoops:
    """Column by column: its largest element comes up by an exchange of rows."""
    m, n = call.types[0].shape[-2:]
    return _by_blocks(call, [(m, n)], _lu)


def _lu(block: _Block) -> None:
    b, (a,), (m, n) = block.b, block.areas, block.call.types[0].shape[-2:]
    order, rows = block.call.results[1], block.matrix * m
    code = as_dtype(f"u{block.dtype.bits}")
    sizes = b.alloc("sizes", code, block.warps, "shared")
    places = b.alloc("places", i32, block.warps, "shared")
    with block.over_elements(m, n) as (i, j):
        a.store(i, j, block.given(i, j))
    with block.over_threads("i", ZERO, Expr(m)) as i:
        b.store(order, rows + i, b.index(i, i32))
    b.barrier()
    zero = b.constant(0.0, block.dtype)
    with b.loop("k", min(m, n)) as k:
        row = _pivot(block, a, k, (sizes, places))
        with block.over_threads("j", ZERO, Expr(n)) as j:
            upper, lower = a.load(k, j), a.load(data(m), j, row)
            a.store(k, j, lower)
            a.store(data(m), j, upper, row)
        with b.where(below(block.thread, 1)):
            upper, lower = b.load(order, rows + k), b.load(order, rows + data(m), named=[row])
            b.store(order, rows + k, lower)
            b.store(order, rows + data(m), upper, named=[row])
        b.barrier()
        pivot = a.load(k, k)
        singular = b.compare("eq", pivot, zero)
        with block.over_threads("i", k + 1, Expr(m)) as i:
            quotient = b.op("div", a.load(i, k), pivot)
            a.store(i, k, b.op("select", singular, zero, quotient))
        b.barrier()
        with block.over_warps("i", k + 1, Expr(m)) as i:
            less = b.op("neg", a.load(i, k))
            with block.over_lanes("j", k + 1, Expr(n)) as j:
                a.add(i, j, a.load(k, j), less)
        b.barrier()
    with block.over_elements(m, n) as (i, j):
        block.put(i, j, a.load(i, j))


def _pivot(block: _Block, a: _Area, k: Expr, memory: tuple[Buffer, Buffer]) -> Scalar:
    """The row of the first largest magnitude of a column, or of its first NaN.

    Magnitudes of floats are ordered as their bits.  memory: for that of each warp, and its row.
    """
    b, (sizes, places), m = block.b, memory, block.call.types[0].shape[-2]
    best, row = b.variable("best", b.constant(0, sizes.dtype)), b.variable("row", b.index(k, i32))

    def take(size: Scalar, place: Scalar, *, is_behind: bool) -> None:
        most, better = b.load(best), b.compare("gt", size, b.load(best))
        if not is_behind:
            before = b.compare("lt", place, b.load(row))
            tie = b.op("and", b.compare("eq", size, most), before)
            better = b.op("or", better, tie)
        b.set(best, b.op("select", better, size, most))
        b.set(row, b.op("select", better, place, b.load(row)))

    nan = b.constant((1 << sizes.dtype.bits) - 1, sizes.dtype)
    with block.over_threads("i", k, Expr(m)) as i:
        x = b.op("abs", a.load(i, k))
        size = b.op("select", b.compare("ne", x, x), nan, b.op("bitcast", x, dtype=sizes.dtype))
        take(size, b.index(i, i32), is_behind=True)
    distance = 1
    while distance < block.call.warp:
        others = [b.shuffle(b.load(r), block.lane, distance) for r in (best, row)]
        take(others[0], others[1], is_behind=False)
        distance *= 2
    mask = [below(block.lane, 1)]
    b.store(sizes, block.warp, b.load(best), mask=mask)
    b.store(places, block.warp, b.load(row), mask=mask)
    b.barrier()
    for number in range(block.warps):
        at = Expr(number)
        take(b.load(sizes, at), b.load(places, at), is_behind=False)
    return b.load(row)


# -- triangular systems ----------------------------------------------------------------------------


@record(eq=False)
class _System:
    """L X = B, with a lower triangular L, as every form of it is: rows or columns of the operands
    in another order.
    """

    call: OpCall

    @property
    def n(self) -> int:
        """The number of equations."""
        return self.call.types[0].shape[-1]

    @property
    def sides(self) -> int:
        """The columns of X."""
        return self.call.types[1].shape[-1 if self.call.attrs["left"] else -2]

    @property
    def transposed(self) -> bool:
        """Whether L is operand 0 transposed."""
        attrs = self.call.attrs
        return bool(attrs["transpose"] == attrs["left"])

    def row(self, i: Expr) -> Expr:
        """Of the system: that of an upper triangular one is solved from its end."""
        is_lower = self.call.attrs["lower"] != self.transposed
        return i if is_lower else i * -1 + (self.n - 1)

    def of_factor(self, i: Expr, j: Expr) -> tuple[Expr, Expr]:
        """Where an element of L is in operand 0, and the other way round."""
        i, j = self.row(i), self.row(j)
        return (j, i) if self.transposed else (i, j)

    def of_side(self, i: Expr, column: Expr) -> tuple[Expr, Expr]:
        """Where an element of X is in the result."""
        return (self.row(i), column) if self.call.attrs["left"] else (column, self.row(i))


def triangular_solve(call: OpCall) -> StepLoops:
    """A warp for each column of X.  Where L is along memory by columns, or in the memory of the
    block, products of each solved row are subtracted from all further ones, so that no row waits
    for a sum.
    """
    system = _System(call)
    n, stack = system.n, math.prod(call.types[1].shape[:-2])
    warps = min(call.threads // call.warp, _SOLVING_WARPS, ceil_power_of_two(system.sides))
    busy = ceil_div(call.target.threads, call.threads)
    groups = min(ceil_div(system.sides, warps), max(ceil_div(busy, stack), 1))
    emit = partial(_solve, system, groups)
    return _by_blocks(call, [(warps, n)], emit, (warps * call.warp, groups), cached=(n, n))


def _solve(system: _System, groups: int, block: _Block) -> None:
    b, (x, *cached), n = block.b, block.areas, Expr(system.n)
    for area in cached:
        with block.over_elements(system.n, system.n) as (i, j):
            area.store(*system.of_factor(i, j), block.given(i, j))

    def factor(i: Expr, j: Expr) -> Scalar:
        return cached[0].load(i, j) if cached else block.given(*system.of_factor(i, j))

    def divided(value: Scalar, i: Expr) -> Scalar:
        return value if system.call.attrs["unit"] else b.op("div", value, factor(i, i))

    by_columns = bool(cached) or system.transposed
    each = block.warps * groups
    with b.loop("c", ceil_div(system.sides, each)) as c:
        column = c * each + block.group * block.warps + block.warp
        exists = below(column, system.sides)
        with block.over_lanes("i", ZERO, n) as i:
            value = block.given(*system.of_side(i, column), number=1, mask=(exists,))
            x.store(block.warp, i, value)
        b.barrier()
        with b.loop("k", system.n) as k:
            if by_columns:
                less = b.op("neg", divided(x.load(block.warp, k), k))
                with block.over_lanes("i", k + 1, n) as i:
                    x.add(block.warp, i, factor(i, k), less)
            else:
                total = b.variable("total", b.constant(-0.0, block.dtype))
                with block.over_lanes("i", ZERO, k) as i:
                    value = x.load(block.warp, i)
                    b.set(total, value, fold="add", factor=factor(k, i))
                _, whole = block.fold("add").across_lanes(b.load(total), block.lane)
                with b.where(below(block.lane, 1)):
                    value = b.op("sub", x.load(block.warp, k), whole)
                    x.store(block.warp, k, divided(value, k))
            b.barrier()
        with block.over_lanes("i", ZERO, n) as i:
            value = x.load(block.warp, i)
            value = divided(value, i) if by_columns else value
            block.put(*system.of_side(i, column), value, mask=(exists,))


# -- qr --------------------------------------------------------------------------------------------


def qr(call: OpCall) -> StepLoops:
    """Column by column: a reflection, whose vector stays below the diagonal of R; then all of them
    are applied to the identity, the last one first.
    """
    (m, n), size = call.types[0].shape[-2:], call.types[1].shape[-1]
    return _by_blocks(call, [(m, n), (m, size), (m, 1), (max(min(m, n), 1), 1)], _qr)


def _qr(block: _Block) -> None:
    b, (a, q, vector, scales), (m, n) = block.b, block.areas, block.call.types[0].shape[-2:]
    size, columns, rows = block.call.types[1].shape[-1], min(m, n), Expr(m)
    zero, one = b.constant(0.0, block.dtype), b.constant(1.0, block.dtype)
    with block.over_elements(m, n) as (i, j):
        a.store(i, j, block.given(i, j))
    with block.over_elements(m, size) as (i, j):
        q.store(i, j, b.op("select", b.inside(Bound(i + j * -1, 0, 1)), one, zero))
    b.barrier()
    with b.loop("k", columns) as k:
        unit, difference, image, scale = _reflection(block, a, k, m)
        with block.over_threads("i", k, rows) as i:
            scaled = b.op("div", b.op("div", a.load(i, k), unit), difference)
            vector.store(i, ZERO, b.op("select", b.inside(Bound(i + k * -1, 0, 1)), one, scaled))
        b.barrier()
        with block.over_threads("i", k + 1, rows) as i:
            a.store(i, k, vector.load(i))
        with b.where(below(block.thread, 1)):
            a.store(k, k, b.op("mul", image, unit))
            scales.store(k, ZERO, scale)
        _reflect(block, a, vector, scale, (k + 1, n), (k, rows))
        b.barrier()
    with b.loop("back", columns) as back:
        k = back * -1 + (columns - 1)
        with block.over_threads("i", k, rows) as i:
            # The first element is 1; its place holds the diagonal of R.
            is_first = b.inside(Bound(i + k * -1, 0, 1))
            vector.store(i, ZERO, b.op("select", is_first, one, a.load(i, k)))
        b.barrier()
        _reflect(block, q, vector, scales.load(k), (k, size), (k, rows))
        b.barrier()
    with block.over_elements(m, size) as (i, j):
        block.put(i, j, q.load(i, j))
    with block.over_elements(size, n) as (i, j):
        is_below = b.inside(Bound(i + j * -1, 1, max(size, 2)))
        block.put(i, j, b.op("select", is_below, zero, a.load(i, j)), number=1)


def _reflection(block: _Block, a: _Area, k: Expr, m: int) -> tuple[Scalar, ...]:
    """The reflection of a column from the diagonal on; every warp computes it for itself.

    The unit that the column is divided by, the first element minus its image, the image, and the
    factor of the product of the vector with itself.
    """
    b, rows = block.b, Expr(m)
    zero, one = b.constant(0.0, block.dtype), b.constant(1.0, block.dtype)
    tail, square = b.variable("tail", zero), b.variable("square", zero)
    with block.over_lanes("i", k + 1, rows) as i:
        b.set(tail, b.op("abs", a.load(i, k)), fold="max")
    _, largest = block.fold("max").across_lanes(b.load(tail), block.lane)
    head = a.load(k, k)
    unit = b.op("max", b.op("abs", head), largest)
    unit = b.op("select", b.compare("gt", unit, zero), unit, one)
    with block.over_lanes("i", k, rows) as i:
        x = b.op("div", a.load(i, k), unit)
        b.set(square, x, fold="add", factor=x)
    _, total = block.fold("add").across_lanes(b.load(square), block.lane)
    norm, scaled = b.op("sqrt", total), b.op("div", head, unit)
    is_zero = b.compare("eq", largest, zero)
    signed = b.op("select", b.compare("lt", scaled, zero), norm, b.op("neg", norm))
    image = b.op("select", is_zero, scaled, signed)
    scale = b.op("select", is_zero, zero, b.op("div", b.op("sub", image, scaled), image))
    difference = b.op("select", is_zero, one, b.op("sub", scaled, image))
    return unit, difference, image, scale


def _reflect(
    block: _Block,
    a: _Area,
    vector: _Area,
    scale: Scalar,
    columns: tuple[Expr, int],
    rows: tuple[Expr, Expr],
) -> None:
    """Reflect some columns, of which some rows change; a warp has a column."""
    b, (first, stop) = block.b, columns
    count = (first * -1 + (stop + block.warps - 1)) // block.warps
    # All warps come to each exchange of values, those that have no column as well.
    with b.loop("j", max(count.last, 0), until=count) as j:
        column = first + j * block.warps + block.warp
        exists = below(column, stop)
        product = b.variable("product", b.constant(0.0, block.dtype))
        with b.where(exists), block.over_lanes("i", *rows) as i:
            b.set(product, vector.load(i), fold="add", factor=a.load(i, column))
        _, total = block.fold("add").across_lanes(b.load(product), block.lane)
        less = b.op("neg", b.op("mul", scale, total))
        with b.where(exists), block.over_lanes("i", *rows) as i:
            a.add(i, column, vector.load(i), less)


__all__ = ["cholesky", "lu", "qr", "triangular_solve"]

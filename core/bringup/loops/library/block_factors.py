"""Cholesky, LU and QR factors and triangular systems by blocks of threads, one for each matrix.

A block keeps its matrix in the memory that it shares, or in temporary memory if it is too large,
and eliminates one column after another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from bringup.dtypes import DType, as_dtype, i32
from bringup.graph.index import ZERO, Bound, Expr
from bringup.integers import ceil_power_of_two
from bringup.loops.form import Buffer, Role, Scalar
from bringup.loops.library.builder import FuncBuilder, below, data, wide
from bringup.loops.library.calls import OpCall, StepLoops
from bringup.loops.library.exchange import BlockFold, threads_of
from bringup.records import record

#: Elements of a matrix for each thread of its block.
_ELEMENTS = 16


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
    """The block of one matrix: its number, its threads, and its working memory.

    thread, warp, lane: numbers.  parts: memory for folds, an element for each warp.
    """

    call: OpCall
    b: FuncBuilder
    dtype: DType
    matrix: Expr
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

    def given(self, i: Expr, j: Expr, number: int = 0) -> Scalar:
        """An element of an operand."""
        x, (rows, columns) = self.call.operands[number], self.call.types[number].shape[-2:]
        index = (self.matrix * rows + i) * columns + j
        return self.b.convert(self.b.load(x, index), self.dtype)

    def put(self, i: Expr, j: Expr, value: Scalar, number: int = 0) -> None:
        """Write an element of a result."""
        y = self.call.results[number]
        rows, columns = self.call.types[len(self.call.operands) + number].shape[-2:]
        index = (self.matrix * rows + i) * columns + j
        self.b.store(y, index, self.b.convert(value, y.dtype))


def _by_blocks(
    call: OpCall, sizes: Sequence[tuple[int, int]], emit: Callable[[_Block], None]
) -> StepLoops:
    """A function with a block for each matrix of the stack.

    sizes: rows and columns of each area, in memory that the block shares if all of them fit.
    """
    dtype, (m, n) = wide(call.operands[0].dtype), call.types[0].shape[-2:]
    stack = math.prod(call.types[0].shape[:-2])
    wanted = ceil_power_of_two(max(m * n // _ELEMENTS, 1))
    threads = min(call.threads, max(call.warp, wanted))
    # An odd stride puts the rows of a column into different banks.
    fits = sum(r * (c | 1) for r, c in sizes) * dtype.itemsize <= call.target.tile_bytes
    memory: list[Buffer] = []
    if not fits:
        memory = [Buffer(f"w{k}", dtype, stack * r * c) for k, (r, c) in enumerate(sizes)]
    params: list[tuple[Role, Buffer]] = [("in", x) for x in call.operands]
    params += [("out", y) for y in call.results]
    b = FuncBuilder(call.name, [*params, *(("inout", buffer) for buffer in memory)])
    with b.loop("s", stack, "block") as s:
        areas: list[_Area] = []
        for number, (rows, columns) in enumerate(sizes):
            if fits:
                stride = columns | 1
                area = b.alloc(f"w{number}", dtype, rows * stride, "shared")
                areas.append(_Area(b, area, ZERO, stride))
            else:
                base = s * (rows * columns)
                areas.append(_Area(b, memory[number], base, columns))
        with threads_of(b, call, threads) as (thread, (warp, lane)):
            block = _Block(call, b, dtype, s, threads, thread, warp, lane, tuple(areas))
            emit(block)
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


__all__ = ["cholesky", "lu"]

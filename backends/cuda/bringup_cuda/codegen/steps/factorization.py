"""Cholesky, LU and QR factors and triangular systems: one block for each matrix of a stack.

A block keeps its matrix in shared memory, or in scratch memory if it is too large, and eliminates
one column after another.  So stacks of small matrices use the whole GPU; a single large matrix uses
one multiprocessor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from bringup.dtypes import DType, f32
from bringup.integers import ceil_div, ceil_power_of_two, round_up
from bringup.llvm import text as ir
from bringup.llvm.scalar import combine, is_half, memory_type, narrow, widen
from bringup.llvm.text import Type, Val, const
from bringup.program.program import OpStep
from bringup.records import record
from bringup_cuda.codegen.commands import Argument, Command
from bringup_cuda.codegen.context import CodegenContext
from bringup_cuda.codegen.nvvm import IntBuilder, i32_const
from bringup_cuda.codegen.steps.block import MAX_BLOCKS, BlockEmitter
from bringup_cuda.targets import WARP

_MAX_THREADS = 256
_ZERO, _ONE = i32_const(0), i32_const(1)


@record
class Matrix:
    """A matrix in memory: rows of ``type``, ``stride`` elements apart; indices are i32."""

    b: IntBuilder
    base: Val
    stride: int
    type: Type

    def address(self, i: Val, j: Val) -> Val:
        """The address of an element."""
        b = self.b
        row = b.mul(b.zext(i, ir.i64), self.stride)
        return b.gep(self.base, b.add(row, b.zext(j, ir.i64)), self.type)

    def load(self, i: Val, j: Val) -> Val:
        """An element."""
        return self.b.load(self.type, self.address(i, j), self.type.bits // 8)

    def store(self, i: Val, j: Val, value: Val) -> None:
        """Write an element."""
        self.b.store(value, self.address(i, j), self.type.bits // 8)

    def subtract_product(self, i: Val, j: Val, x: Val, y: Val) -> None:
        """Subtract a product from an element."""
        b = self.b
        self.store(i, j, b.fma(b.fneg(x), y, self.load(i, j)))


class MatrixKernel:
    """A kernel with a block for each matrix of a stack.

    areas: addresses of the block's working memory, all in shared memory or all in scratch memory.
    type: the type that it computes in.
    """

    def __init__(
        self,
        codegen: CodegenContext,
        step: OpStep,
        work: int,
        sizes: Sequence[int],
        count: int = 0,
    ) -> None:
        """work: operations for one matrix, which choose the threads of a block.  sizes: elements of
        each area.  count: units of work, by default the matrices of the stack.
        """
        self.step = step
        self.dtype: DType = step.operands[0].type.dtype
        self.type = memory_type(f32 if is_half(self.dtype) else self.dtype)
        self.count = count or math.prod(step.operands[0].type.shape[:-2])
        nbytes = [round_up(n * self.type.bits // 8, 16) + 16 for n in sizes]
        fits = sum(nbytes) <= codegen.row.tile_bytes
        self._shared_bytes = sum(nbytes) if fits else 0
        scratch: list[Argument] = []
        if not fits:
            scratch.append(codegen.scratch(sum(nbytes) * min(self.count, MAX_BLOCKS)))
        threads = min(_MAX_THREADS, max(WARP, ceil_power_of_two(work // 16)))
        arguments = (*step.slots, *scratch)
        self.block = BlockEmitter(codegen, step, step.op.name, arguments, threads)
        b = self.b = self.block.b
        if fits:
            base = self.block.dynamic_shared()
        else:
            offset = b.mul(self.block.block, sum(nbytes))
            base = b.gep(self.block.args[-1], offset, ir.i8)
        self.areas = [b.gep(base, sum(nbytes[:n]), ir.i8) for n in range(len(nbytes))]

    @contextmanager
    def units(self) -> Iterator[Val]:
        """The loop over the block's units of work."""
        with self.block.units(self.count) as unit:
            yield unit
            if self.count > MAX_BLOCKS:
                self.block.barrier()

    def launch(self) -> list[Command]:
        """End the kernel; its launch."""
        return [self.block.launch(min(self.count, MAX_BLOCKS), self._shared_bytes)]

    def matrix(self, area: int, columns: int) -> Matrix:
        """An area as a matrix, whose odd stride puts rows into different banks of shared memory."""
        return Matrix(self.b, self.areas[area], columns | 1, self.type)

    def real(self, value: float) -> Val:
        """A constant of the computing type."""
        return const(self.type, value)

    # -- loops over i32 indices, distributed over the block's threads

    @contextmanager
    def over_threads(self, first: Val, stop: Val) -> Iterator[Val]:
        """Indices from ``first`` on, distributed over the block's threads."""
        start = self.b.add(first, self.block.thread)
        with self.b.loop(start, stop, self.block.threads) as loop:
            yield loop.index

    @contextmanager
    def over_warps(self, first: Val, stop: Val) -> Iterator[Val]:
        """Indices from ``first`` on, distributed over the block's warps."""
        start = self.b.add(first, self.block.warp)
        with self.b.loop(start, stop, self.block.warps) as loop:
            yield loop.index

    @contextmanager
    def over_lanes(self, first: Val, stop: Val) -> Iterator[Val]:
        """Indices from ``first`` on, distributed over the warp's lanes."""
        with self.b.loop(self.b.add(first, self.block.lane), stop, WARP) as loop:
            yield loop.index

    @contextmanager
    def over_elements(self, rows: int, columns: int) -> Iterator[tuple[Val, Val]]:
        """Row and column of each element of a matrix, distributed over the block's threads."""
        stop = i32_const(columns)
        with self.over_warps(_ZERO, i32_const(rows)) as i, self.over_lanes(_ZERO, stop) as j:
            yield i, j

    # -- operands and results

    def address(self, slot: int, matrix: Val, i: Val, j: Val) -> Val:
        """The address of an element of a matrix of an operand or result."""
        b, type_ = self.b, self.step.slots[slot].type
        rows, columns = type_.shape[-2:]
        index = b.mul(matrix, rows * columns)
        index = b.add(index, b.mul(b.zext(i, ir.i64), columns))
        index = b.add(index, b.zext(j, ir.i64))
        return b.gep(self.block.args[slot], index, memory_type(type_.dtype))

    def load(self, slot: int, matrix: Val, i: Val, j: Val) -> Val:
        """An element of an operand, in the computing type."""
        address = self.address(slot, matrix, i, j)
        return widen(self.b, self.b.load(memory_type(self.dtype), address, self.dtype.itemsize))

    def store(self, value: Val, slot: int, matrix: Val, i: Val, j: Val) -> None:
        """Write an element of a result."""
        value = narrow(self.b, value, self.dtype)
        self.b.store(value, self.address(slot, matrix, i, j), self.dtype.itemsize)


# -- cholesky --------------------------------------------------------------------------------------


def emit_cholesky(codegen: CodegenContext, step: OpStep) -> Sequence[Command]:
    """The launch of a step of the row ``cholesky``."""
    n = step.operands[0].type.shape[-1]
    kernel = MatrixKernel(codegen, step, n * n, [n * (n | 1), n])
    b, block = kernel.b, kernel.block
    a, pivots = kernel.matrix(0, n), kernel.areas[1]
    sums = block.shared(ir.i32, block.warps)
    rows = i32_const(n)
    with kernel.units() as unit:
        with kernel.over_warps(_ZERO, rows) as i, kernel.over_lanes(_ZERO, b.add(i, 1)) as j:
            a.store(i, j, kernel.load(0, unit, i, j))
        block.barrier()
        with b.loop(_ZERO, rows) as columns:
            _cholesky_column(kernel, a, pivots, columns.index, n)
        definite = _all_pivots_positive(kernel, pivots, sums, n)
        with kernel.over_elements(n, n) as (i, j):
            (element,) = b.cond(
                b.icmp("slt", j, i),
                partial(a.load, i, j),
                partial(block.load, pivots, i, kernel.type),
            )
            element = b.select(definite, element, kernel.real(math.nan))
            element = b.select(b.icmp("sgt", j, i), kernel.real(0.0), element)
            kernel.store(element, 1, unit, i, j)
    return kernel.launch()


def _cholesky_column(kernel: MatrixKernel, a: Matrix, pivots: Val, j: Val, n: int) -> None:
    """Divide a column by its pivot, and subtract its products from the columns right of it."""
    b, block, stop = kernel.b, kernel.block, i32_const(n)
    pivot = b.intrinsic("llvm.sqrt", kernel.type, (a.load(j, j),))
    with b.if_then(b.icmp("eq", block.thread, 0)):
        block.store(pivot, pivots, j)
    after = b.add(j, 1)
    with kernel.over_threads(after, stop) as i:
        a.store(i, j, b.fdiv(a.load(i, j), pivot))
    block.barrier()
    with kernel.over_warps(after, stop) as i:
        factor = a.load(i, j)
        with kernel.over_lanes(after, b.add(i, 1)) as k:
            a.subtract_product(i, k, factor, a.load(k, j))
    block.barrier()


def _all_pivots_positive(kernel: MatrixKernel, pivots: Val, sums: Val, n: int) -> Val:
    """Whether all pivots are positive and finite."""
    b, block = kernel.b, kernel.block
    with b.loop(block.thread, i32_const(n), block.threads, [_ONE]) as loop:
        pivot = block.load(pivots, loop.index, kernel.type)
        positive = b.fcmp("ogt", pivot, kernel.real(0.0))
        inside = b.and_(positive, b.fcmp("olt", pivot, kernel.real(math.inf)))
        loop.next(b.and_(loop.carried[0], b.zext(inside, ir.i32)))
    _, definite = block.scan_warps(block.reduce_warp(loop.carried[0], b.and_), sums, b.and_, _ONE)
    return b.icmp("ne", definite, 0)


# -- lu --------------------------------------------------------------------------------------------


def emit_lu(codegen: CodegenContext, step: OpStep) -> Sequence[Command]:
    """The launch of a step of the row ``lu``."""
    m, n = step.operands[0].type.shape[-2:]
    kernel = MatrixKernel(codegen, step, m * n, [m * (n | 1), m])
    b, block = kernel.b, kernel.block
    a, permutation = kernel.matrix(0, n), kernel.areas[1]
    word = ir.integer(kernel.type.bits)
    arrays = block.shared(word, block.warps), block.shared(ir.i32, block.warps)
    with kernel.units() as unit:
        with kernel.over_elements(m, n) as (i, j):
            a.store(i, j, kernel.load(0, unit, i, j))
        with kernel.over_threads(_ZERO, i32_const(m)) as i:
            block.store(i, permutation, i)
        block.barrier()
        with b.loop(_ZERO, i32_const(min(m, n))) as columns:
            j = columns.index
            pivot = _pivot_row(kernel, a, arrays, j, m)
            _swap_rows(kernel, a, permutation, j, pivot, n)
            _lu_column(kernel, a, j, (m, n))
        with kernel.over_elements(m, n) as (i, j):
            kernel.store(a.load(i, j), 1, unit, i, j)
        with kernel.over_threads(_ZERO, i32_const(m)) as i:
            index = b.add(b.mul(unit, m), b.zext(i, ir.i64))
            row = block.load(permutation, i, ir.i32)
            b.store(row, b.gep(block.args[2], index, ir.i32), 4)
    return kernel.launch()


def _pivot_row(kernel: MatrixKernel, a: Matrix, arrays: tuple[Val, Val], j: Val, m: int) -> Val:
    """The row of the first largest magnitude of a column, or of the first NaN."""
    b, block = kernel.b, kernel.block
    word, rows, none = ir.integer(kernel.type.bits), i32_const(m), i32_const(-1)

    def largest(x: Val, y: Val) -> Val:
        return b.extremum("umax", x, y)

    def first(x: Val, y: Val) -> Val:
        return b.extremum("umin", x, y)

    def magnitude(i: Val) -> Val:
        x = a.load(i, j)
        # Magnitudes of floats are ordered like their bits.
        bits = b.cast("bitcast", b.fabs(x), word)
        return b.select(b.fcmp("uno", x, x), const(word, -1), bits)

    start = b.add(j, block.thread)
    with b.loop(start, rows, block.threads, [const(word, 0)]) as loop:
        loop.next(largest(loop.carried[0], magnitude(loop.index)))
    best = block.reduce_warp(loop.carried[0], largest)
    _, best = block.scan_warps(best, arrays[0], largest, const(word, 0))
    with b.loop(start, rows, block.threads, [none]) as loop:
        row = b.select(b.icmp("eq", magnitude(loop.index), best), loop.index, none)
        loop.next(first(loop.carried[0], row))
    row = block.reduce_warp(loop.carried[0], first)
    return block.scan_warps(row, arrays[1], first, none)[1]


def _swap_rows(
    kernel: MatrixKernel, a: Matrix, permutation: Val, j: Val, pivot: Val, n: int
) -> None:
    b, block = kernel.b, kernel.block
    with kernel.over_threads(_ZERO, i32_const(n)) as k:
        upper, lower = a.load(j, k), a.load(pivot, k)
        a.store(j, k, lower)
        a.store(pivot, k, upper)
    with b.if_then(b.icmp("eq", block.thread, 0)):
        upper, lower = (block.load(permutation, i, ir.i32) for i in (j, pivot))
        block.store(lower, permutation, j)
        block.store(upper, permutation, pivot)
    block.barrier()


def _lu_column(kernel: MatrixKernel, a: Matrix, j: Val, sizes: tuple[int, int]) -> None:
    """Compute the multipliers of a column, and eliminate it from the rows below."""
    b, block, (m, n) = kernel.b, kernel.block, sizes
    pivot, after = a.load(j, j), b.add(j, 1)
    singular = b.fcmp("oeq", pivot, kernel.real(0.0))
    with kernel.over_threads(after, i32_const(m)) as i:
        factor = b.fdiv(a.load(i, j), pivot)
        a.store(i, j, b.select(singular, kernel.real(0.0), factor))
    block.barrier()
    with kernel.over_warps(after, i32_const(m)) as i:
        factor = a.load(i, j)
        with kernel.over_lanes(after, i32_const(n)) as k:
            a.subtract_product(i, k, factor, a.load(j, k))
    block.barrier()


# -- triangular systems ----------------------------------------------------------------------------

#: Blocks that keep a GPU busy; stacks of fewer matrices also distribute columns over blocks.
_BUSY_BLOCKS = 264
_MAX_WARPS = 8


def emit_triangular_solve(codegen: CodegenContext, step: OpStep) -> Sequence[Command]:
    """The launch of a step of the row ``triangular_solve``."""
    return _TriangularSolve(codegen, step).emit()


class _TriangularSolve:
    """Any form of it as T X = B with a lower triangular T: a warp for each column of X.

    transposed: whether T is the transpose of operand 0.
    reversed_: whether rows and columns of T are those of operand 0 in reverse order.
    groups: blocks that share the columns of a matrix.
    t: T in shared memory; None if it is read from operand 0.
    """

    def __init__(self, codegen: CodegenContext, step: OpStep) -> None:
        attrs, n = step.attrs, step.operands[0].type.shape[-1]
        rows, columns = step.operands[1].type.shape[-2:]
        self.n, self.m = n, columns if attrs["left"] else rows
        self.left, self.unit = attrs["left"], attrs["unit"]
        self.transposed = attrs["transpose"] == attrs["left"]
        self.reversed_ = attrs["lower"] == self.transposed
        warps = min(_MAX_WARPS, self.m)
        stack = math.prod(step.operands[0].type.shape[:-2])
        self.groups = min(ceil_div(self.m, warps), max(1, _BUSY_BLOCKS // stack))
        itemsize = max(4, step.operands[0].type.dtype.itemsize)
        nbytes = (n * (n | 1) + warps * n) * itemsize
        fits = nbytes <= codegen.row.tile_bytes // 2
        sizes = [warps * n, n * (n | 1)] if fits else [warps * n]
        count = stack * self.groups
        self.kernel = MatrixKernel(codegen, step, warps * WARP * 16, sizes, count)
        self.t = self.kernel.matrix(1, n) if fits else None

    def emit(self) -> list[Command]:
        """The launch."""
        kernel, b, block = self.kernel, self.kernel.b, self.kernel.block
        with kernel.units() as unit:
            matrix, group = b.udiv(unit, self.groups), b.urem(unit, self.groups)
            if self.t is not None:
                self._copy_t(self.t, matrix)
            first = b.mul(b.trunc(group, ir.i32), block.warps)
            first = b.add(first, block.warp)
            x = block.address(kernel.areas[0], b.mul(block.warp, self.n), kernel.type)
            stride = block.warps * self.groups
            with b.loop(first, i32_const(self.m), stride) as columns:
                self._solve_column(matrix, columns.index, x)
        return kernel.launch()

    def _copy_t(self, t: Matrix, matrix: Val) -> None:
        """Copy T to shared memory."""
        kernel, rows = self.kernel, i32_const(self.n)
        with (
            kernel.over_warps(_ZERO, rows) as i,
            kernel.over_lanes(_ZERO, kernel.b.add(i, 1)) as j,
        ):
            t.store(i, j, kernel.load(0, matrix, *self._t_position(i, j)))
        kernel.block.barrier()

    def _row(self, i: Val) -> Val:
        return self.kernel.b.sub(i32_const(self.n - 1), i) if self.reversed_ else i

    def _t_position(self, i: Val, j: Val) -> tuple[Val, Val]:
        """The position of an element of T in operand 0."""
        if self.transposed:
            return self._row(j), self._row(i)
        return self._row(i), self._row(j)

    def _x_position(self, i: Val, column: Val) -> tuple[Val, Val]:
        """The position of an element of X in operand 1 and the result."""
        return (self._row(i), column) if self.left else (column, self._row(i))

    def _load_t(self, matrix: Val, i: Val, j: Val) -> Val:
        if self.t is not None:
            return self.t.load(i, j)
        return self.kernel.load(0, matrix, *self._t_position(i, j))

    def _solve_column(self, matrix: Val, column: Val, x: Val) -> None:
        """Solve for a column of X, which replaces that of B at ``x`` in shared memory.

        Every equation waits for the one before; it should not wait for memory too.
        """
        kernel, b, block, rows = self.kernel, self.kernel.b, self.kernel.block, i32_const(self.n)
        with kernel.over_lanes(_ZERO, rows) as row:
            block.store(kernel.load(1, matrix, *self._x_position(row, column)), x, row)
        block.sync_warp()
        with b.loop(_ZERO, rows) as equations:
            i = equations.index
            with b.loop(block.lane, i, WARP, [kernel.real(0.0)]) as solved:
                factor = self._load_t(matrix, i, solved.index)
                value = block.load(x, solved.index, kernel.type)
                solved.next(b.fma(factor, value, solved.carried[0]))
            total = block.reduce_warp(solved.carried[0], b.fadd)
            with b.if_then(b.icmp("eq", block.lane, 0)):
                value = b.fsub(block.load(x, i, kernel.type), total)
                if not self.unit:
                    value = b.fdiv(value, self._load_t(matrix, i, i))
                block.store(value, x, i)
            block.sync_warp()
        with kernel.over_lanes(_ZERO, rows) as row:
            value = block.load(x, row, kernel.type)
            kernel.store(value, 2, matrix, *self._x_position(row, column))
        block.sync_warp()


# -- qr --------------------------------------------------------------------------------------------


def emit_qr(codegen: CodegenContext, step: OpStep) -> Sequence[Command]:
    """The launch of a step of the row ``qr``, by Householder reflections.

    A warp takes a column: its lanes share the rows.  The Householder vectors stay below the
    diagonal of R, and are applied to the identity from the last to the first.
    """
    m, n = step.operands[0].type.shape[-2:]
    size, k = step.results[0].type.shape[-1], min(m, n)
    kernel = MatrixKernel(codegen, step, m * n, [m * (n | 1), m * (size | 1), m, k])
    b, block = kernel.b, kernel.block
    a, q = kernel.matrix(0, n), kernel.matrix(1, size)
    vector, scales = kernel.areas[2:]
    zero, one = kernel.real(0.0), kernel.real(1.0)
    with kernel.units() as unit:
        with kernel.over_elements(m, n) as (i, j):
            a.store(i, j, kernel.load(0, unit, i, j))
        with kernel.over_elements(m, size) as (i, j):
            q.store(i, j, b.select(b.icmp("eq", i, j), one, zero))
        block.barrier()
        with b.loop(_ZERO, i32_const(k)) as columns:
            _qr_column(kernel, a, vector, scales, columns.index, (m, n))
        with b.loop(_ZERO, i32_const(k)) as reversed_columns:
            j = b.sub(i32_const(k - 1), reversed_columns.index)
            with kernel.over_threads(j, i32_const(m)) as i:
                # The first element is 1; its place holds the diagonal of R.
                element = b.select(b.icmp("eq", i, j), one, a.load(i, j))
                block.store(element, vector, i)
            block.barrier()
            scale = block.load(scales, j, kernel.type)
            _apply_reflection(kernel, q, vector, scale, j, j, (m, size))
            block.barrier()
        with kernel.over_elements(m, size) as (i, j):
            kernel.store(q.load(i, j), 1, unit, i, j)
        with kernel.over_elements(size, n) as (i, j):
            below = b.icmp("sgt", i, j)
            kernel.store(b.select(below, zero, a.load(i, j)), 2, unit, i, j)
    return kernel.launch()


@record
class _Reflection:
    """The Householder reflection of a column, which is divided by ``norm_scale`` first.

    difference: the first element minus its image.  image: the reflected first element.
    scale: the factor of the product of the vector with itself.
    """

    norm_scale: Val
    difference: Val
    image: Val
    scale: Val


def _qr_column(
    kernel: MatrixKernel, a: Matrix, vector: Val, scales: Val, j: Val, sizes: tuple[int, int]
) -> None:
    """Compute the reflection of a column, and apply it to the columns right of it."""
    b, block, (m, n) = kernel.b, kernel.block, sizes
    reflection, after = _reflection(kernel, a, j, m), b.add(j, 1)
    with kernel.over_threads(j, i32_const(m)) as i:
        scaled = b.fdiv(b.fdiv(a.load(i, j), reflection.norm_scale), reflection.difference)
        block.store(b.select(b.icmp("eq", i, j), kernel.real(1.0), scaled), vector, i)
    block.barrier()
    with kernel.over_threads(after, i32_const(m)) as i:
        a.store(i, j, block.load(vector, i, kernel.type))
    with b.if_then(b.icmp("eq", block.thread, 0)):
        a.store(j, j, b.fmul(reflection.image, reflection.norm_scale))
        block.store(reflection.scale, scales, j)
    _apply_reflection(kernel, a, vector, reflection.scale, after, j, (m, n))
    block.barrier()


def _reflection(kernel: MatrixKernel, a: Matrix, j: Val, m: int) -> _Reflection:
    """The reflection of a column from the diagonal on; every warp computes it for itself."""
    b, block, rows = kernel.b, kernel.block, i32_const(m)
    dtype: DType = f32 if is_half(kernel.dtype) else kernel.dtype

    def larger(x: Val, y: Val) -> Val:
        return combine(b, "max", dtype, x, y)

    zero, one = kernel.real(0.0), kernel.real(1.0)
    with b.loop(b.add(b.add(j, 1), block.lane), rows, WARP, [zero]) as loop:
        loop.next(larger(loop.carried[0], b.fabs(a.load(loop.index, j))))
    tail = block.reduce_warp(loop.carried[0], larger)
    head = a.load(j, j)
    norm_scale = larger(b.fabs(head), tail)
    norm_scale = b.select(b.fcmp("ogt", norm_scale, zero), norm_scale, one)
    with b.loop(b.add(j, block.lane), rows, WARP, [zero]) as loop:
        x = b.fdiv(a.load(loop.index, j), norm_scale)
        loop.next(b.fma(x, x, loop.carried[0]))
    square = block.reduce_warp(loop.carried[0], b.fadd)
    norm = b.intrinsic("llvm.sqrt", kernel.type, (square,))
    scaled, is_zero = b.fdiv(head, norm_scale), b.fcmp("oeq", tail, zero)
    signed = b.select(b.fcmp("olt", scaled, zero), norm, b.fneg(norm))
    image = b.select(is_zero, scaled, signed)
    scale = b.select(is_zero, zero, b.fdiv(b.fsub(image, scaled), image))
    difference = b.select(is_zero, one, b.fsub(scaled, image))
    return _Reflection(norm_scale, difference, image, scale)


def _apply_reflection(
    kernel: MatrixKernel,
    a: Matrix,
    vector: Val,
    scale: Val,
    first_column: Val,
    first_row: Val,
    sizes: tuple[int, int],
) -> None:
    """Reflect the columns from ``first_column`` on, whose rows from ``first_row`` on change."""
    b, block, (m, n) = kernel.b, kernel.block, sizes
    rows, zero = i32_const(m), kernel.real(0.0)
    with kernel.over_warps(first_column, i32_const(n)) as column:
        with b.loop(b.add(first_row, block.lane), rows, WARP, [zero]) as loop:
            factor = block.load(vector, loop.index, kernel.type)
            loop.next(b.fma(factor, a.load(loop.index, column), loop.carried[0]))
        product = b.fmul(scale, block.reduce_warp(loop.carried[0], b.fadd))
        with kernel.over_lanes(first_row, rows) as i:
            a.subtract_product(i, column, product, block.load(vector, i, kernel.type))


__all__ = ["emit_cholesky", "emit_lu", "emit_qr", "emit_triangular_solve"]

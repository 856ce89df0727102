"""A matrix that a block works on: in shared memory where it fits, else in scratch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from bringup.dtypes import DType, f32
from bringup.llvm import text as ir
from bringup.llvm.scalar import combine, is_half, memory_type, narrow, widen
from bringup.llvm.text import Builder, Type, Val, const
from bringup.program.program import OpStep
from bringup.records import record
from bringup_cuda.codegen.commands import Argument, Command
from bringup_cuda.codegen.context import CodegenContext
from bringup_cuda.codegen.steps.block import MAX_BLOCKS, BlockEmitter
from bringup_cuda.targets import TILE_KIB, WARP

_THREADS = 256
ZERO, ONE = const(ir.i32, 0), const(ir.i32, 1)


def number(value: int) -> Val:
    """An i32."""
    return const(ir.i32, value)


@record
class Matrix:
    """Rows of ``stride`` elements of ``type`` from an address on; indices are i32."""

    b: Builder
    base: Val
    stride: int
    type: Type

    def address(self, i: Val, j: Val) -> Val:
        """Of an element."""
        b = self.b
        row = b.mul(b.zext(i, ir.i64), const(ir.i64, self.stride))
        return b.gep(self.base, b.add(row, b.zext(j, ir.i64)), self.type)

    def get(self, i: Val, j: Val) -> Val:
        """An element."""
        return self.b.load(self.type, self.address(i, j), self.type.bits // 8)

    def put(self, i: Val, j: Val, value: Val) -> None:
        """Store an element."""
        self.b.store(value, self.address(i, j), self.type.bits // 8)

    def take(self, i: Val, j: Val, x: Val, y: Val) -> None:
        """Subtract a product from an element."""
        b = self.b
        self.put(i, j, b.fma(b.fneg(x), y, self.get(i, j)))


class Workshop:
    """A kernel with a block for each matrix of a stack.

    sizes: elements of each piece of memory that a block works in.  pieces: their addresses; all
    lie in shared memory, or all in scratch.
    """

    def __init__(
        self, codegen: CodegenContext, step: OpStep, work: int, sizes: Sequence[int], count: int = 0
    ) -> None:
        """work: what one matrix has to do.  count: units of work, if they are not the matrices."""
        self.step = step
        self.dtype: DType = step.operands[0].type.dtype
        self.type = memory_type(f32 if is_half(self.dtype) else self.dtype)
        self.count = count or math.prod(step.operands[0].type.shape[:-2])
        nbytes = [-(-n * self.type.bits // 8 // 16) * 16 + 16 for n in sizes]
        self._shared = sum(nbytes) if sum(nbytes) <= TILE_KIB[codegen.target] * 1024 else 0
        scratch: list[Argument] = []
        if not self._shared:
            scratch.append(codegen.scratch(sum(nbytes) * min(self.count, MAX_BLOCKS)))
        threads = min(_THREADS, max(WARP, 1 << max(work // 16 - 1, 0).bit_length()))
        self.block = BlockEmitter(codegen, step, step.op.name, (*step.slots, *scratch), threads)
        b = self.b = self.block.b
        if self._shared:
            base = self.block.dynamic_shared()
        else:
            own = b.mul(self.block.block, const(ir.i64, sum(nbytes)))
            base = b.gep(self.block.args[-1], own, ir.i8)
        starts = [sum(nbytes[:n]) for n in range(len(nbytes))]
        self.pieces = [b.gep(base, start, ir.i8) for start in starts]

    @contextmanager
    def each(self) -> Iterator[Val]:
        """The loop over the block's matrices; the number of one."""
        with self.block.units(self.count) as unit:
            yield unit
            if self.count > MAX_BLOCKS:
                self.block.barrier()

    def launch(self) -> list[Command]:
        """The one launch."""
        return [self.block.launch(min(self.count, MAX_BLOCKS), self._shared)]

    def matrix(self, piece: int, columns: int) -> Matrix:
        """A piece of memory as a matrix, whose rows begin in different banks of shared memory."""
        return Matrix(self.b, self.pieces[piece], columns | 1, self.type)

    def real(self, value: float) -> Val:
        """A number of the type worked in."""
        return const(self.type, value)

    # -- sharing out -------------------------------------------------------------------------------

    @contextmanager
    def threads_over(self, first: Val, stop: Val) -> Iterator[Val]:
        """Numbers from ``first`` on, shared by the block's threads."""
        start = self.b.add(first, self.block.thread)
        with self.b.loop(start, stop, self.block.threads) as loop:
            yield loop.index

    @contextmanager
    def warps_over(self, first: Val, stop: Val) -> Iterator[Val]:
        """Numbers from ``first`` on, shared by the block's warps."""
        start = self.b.add(first, self.block.warp)
        with self.b.loop(start, stop, self.block.warps) as loop:
            yield loop.index

    @contextmanager
    def lanes_over(self, first: Val, stop: Val) -> Iterator[Val]:
        """Numbers from ``first`` on, shared by the warp's lanes."""
        with self.b.loop(self.b.add(first, self.block.lane), stop, WARP) as loop:
            yield loop.index

    # -- operands and results ----------------------------------------------------------------------

    def address(self, place: int, unit: Val, i: Val, j: Val) -> Val:
        """Of an element of this matrix of an operand or result."""
        b, type_ = self.b, self.step.slots[place].type
        rows, columns = type_.shape[-2:]
        at = b.mul(unit, const(ir.i64, rows * columns))
        at = b.add(at, b.mul(b.zext(i, ir.i64), const(ir.i64, columns)))
        at = b.add(at, b.zext(j, ir.i64))
        return b.gep(self.block.args[place], at, memory_type(type_.dtype))

    def load(self, place: int, unit: Val, i: Val, j: Val) -> Val:
        """An element of an operand, in the type worked in."""
        found = self.address(place, unit, i, j)
        return widen(self.b, self.b.load(memory_type(self.dtype), found, self.dtype.itemsize))

    def store(self, value: Val, place: int, unit: Val, i: Val, j: Val) -> None:
        """Write an element of a result."""
        kept = narrow(self.b, value, self.dtype)
        self.b.store(kept, self.address(place, unit, i, j), self.dtype.itemsize)


def emit_cholesky(codegen: CodegenContext, step: OpStep) -> Sequence[Command]:
    """The launch of a step of the row ``cholesky``."""
    n = step.operands[0].type.shape[-1]
    shop = Workshop(codegen, step, n * n, [n * (n | 1), n])
    b, block = shop.b, shop.block
    a, pivots = shop.matrix(0, n), shop.pieces[1]
    sums = block.shared(ir.i32, block.warps)
    with shop.each() as unit:
        with shop.warps_over(ZERO, number(n)) as i, shop.lanes_over(ZERO, b.add(i, ONE)) as j:
            a.put(i, j, shop.load(0, unit, i, j))
        block.barrier()
        with b.loop(ZERO, number(n)) as columns:
            _take_column(shop, a, pivots, columns.index, n)
        good = _definite(shop, pivots, sums, n)
        with shop.warps_over(ZERO, number(n)) as i, shop.lanes_over(ZERO, number(n)) as j:
            (found,) = b.cond(
                b.icmp("slt", j, i),
                partial(a.get, i, j),
                partial(block.load, pivots, i, shop.type),
            )
            kept = b.select(good, found, shop.real(math.nan))
            shop.store(b.select(b.icmp("sgt", j, i), shop.real(0.0), kept), 1, unit, i, j)
    return shop.launch()


def _take_column(shop: Workshop, a: Matrix, pivots: Val, j: Val, n: int) -> None:
    """Finish a column, and take its products off those right of it."""
    b, block = shop.b, shop.block
    pivot = b.intrinsic("llvm.sqrt", shop.type, (a.get(j, j),))
    with b.if_then(b.icmp("eq", block.thread, ZERO)):
        block.store(pivot, pivots, j)
    after = b.add(j, ONE)
    with shop.threads_over(after, number(n)) as i:
        a.put(i, j, b.fdiv(a.get(i, j), pivot))
    block.barrier()
    with shop.warps_over(after, number(n)) as i:
        factor = a.get(i, j)
        with shop.lanes_over(after, b.add(i, ONE)) as k:
            a.take(i, k, factor, a.get(k, j))
    block.barrier()


def _definite(shop: Workshop, pivots: Val, sums: Val, n: int) -> Val:
    """Whether all pivots are positive and finite."""
    b, block = shop.b, shop.block
    with b.loop(block.thread, number(n), block.threads, [ONE]) as loop:
        x = block.load(pivots, loop.index, shop.type)
        positive = b.fcmp("ogt", x, shop.real(0.0))
        inside = b.and_(positive, b.fcmp("olt", x, shop.real(math.inf)))
        loop.next(b.and_(loop.carried[0], b.zext(inside, ir.i32)))
    _, good = block.scan_warps(block.reduce_warp(loop.carried[0], b.and_), sums, b.and_, ONE)
    return b.icmp("ne", good, ZERO)


# -- lu --------------------------------------------------------------------------------------------


def emit_lu(codegen: CodegenContext, step: OpStep) -> Sequence[Command]:
    """The launch of a step of the row ``lu``."""
    m, n = step.operands[0].type.shape[-2:]
    shop = Workshop(codegen, step, m * n, [m * (n | 1), m])
    b, block = shop.b, shop.block
    a, order = shop.matrix(0, n), shop.pieces[1]
    whole = ir.integer(shop.type.bits)
    arrays = block.shared(whole, block.warps), block.shared(ir.i32, block.warps)
    with shop.each() as unit:
        with shop.warps_over(ZERO, number(m)) as i, shop.lanes_over(ZERO, number(n)) as j:
            a.put(i, j, shop.load(0, unit, i, j))
        with shop.threads_over(ZERO, number(m)) as i:
            block.store(i, order, i)
        block.barrier()
        with b.loop(ZERO, number(min(m, n))) as columns:
            j = columns.index
            pivot = _pivot(shop, a, arrays, j, m)
            _exchange(shop, a, order, j, pivot, n)
            _eliminate(shop, a, j, (m, n))
        with shop.warps_over(ZERO, number(m)) as i, shop.lanes_over(ZERO, number(n)) as j:
            shop.store(a.get(i, j), 1, unit, i, j)
        with shop.threads_over(ZERO, number(m)) as i:
            at = b.add(b.mul(unit, const(ir.i64, m)), b.zext(i, ir.i64))
            b.store(block.load(order, i, ir.i32), b.gep(block.args[2], at, ir.i32), 4)
    return shop.launch()


def _pivot(shop: Workshop, a: Matrix, arrays: tuple[Val, Val], j: Val, m: int) -> Val:
    """The row of the first largest magnitude of a column, or of the first NaN."""
    b, block = shop.b, shop.block
    whole = ir.integer(shop.type.bits)

    def largest(x: Val, y: Val) -> Val:
        return b.intrinsic("llvm.umax", x.type, (x, y))

    def first(x: Val, y: Val) -> Val:
        return b.intrinsic("llvm.umin", x.type, (x, y))

    def size(i: Val) -> Val:
        x = a.get(i, j)
        # Magnitudes are in the order of their bits.
        bits = b.cast("bitcast", b.fabs(x), whole)
        return b.select(b.fcmp("uno", x, x), const(whole, -1), bits)

    start = b.add(j, block.thread)
    with b.loop(start, number(m), block.threads, [const(whole, 0)]) as loop:
        loop.next(largest(loop.carried[0], size(loop.index)))
    mine = block.reduce_warp(loop.carried[0], largest)
    _, best = block.scan_warps(mine, arrays[0], largest, const(whole, 0))
    with b.loop(start, number(m), block.threads, [number(-1)]) as loop:
        here = b.select(b.icmp("eq", size(loop.index), best), loop.index, number(-1))
        loop.next(first(loop.carried[0], here))
    mine = block.reduce_warp(loop.carried[0], first)
    return block.scan_warps(mine, arrays[1], first, number(-1))[1]


def _exchange(shop: Workshop, a: Matrix, order: Val, j: Val, pivot: Val, n: int) -> None:
    b, block = shop.b, shop.block
    with shop.threads_over(ZERO, number(n)) as k:
        one, other = a.get(j, k), a.get(pivot, k)
        a.put(j, k, other)
        a.put(pivot, k, one)
    with b.if_then(b.icmp("eq", block.thread, ZERO)):
        here, there = (block.load(order, i, ir.i32) for i in (j, pivot))
        block.store(there, order, j)
        block.store(here, order, pivot)
    block.barrier()


def _eliminate(shop: Workshop, a: Matrix, j: Val, sizes: tuple[int, int]) -> None:
    """Multipliers of a column, and what they take off the rest."""
    b, block, (m, n) = shop.b, shop.block, sizes
    head, after = a.get(j, j), b.add(j, ONE)
    nothing = b.fcmp("oeq", head, shop.real(0.0))
    with shop.threads_over(after, number(m)) as i:
        factor = b.fdiv(a.get(i, j), head)
        a.put(i, j, b.select(nothing, shop.real(0.0), factor))
    block.barrier()
    with shop.warps_over(after, number(m)) as i:
        factor = a.get(i, j)
        with shop.lanes_over(after, number(n)) as k:
            a.take(i, k, factor, a.get(j, k))
    block.barrier()


# -- triangular systems ----------------------------------------------------------------------------

#: Blocks that keep a GPU busy; stacks of fewer matrices share out columns as well.
_BUSY_BLOCKS = 264
_WARPS = 8


def emit_triangular_solve(codegen: CodegenContext, step: OpStep) -> Sequence[Command]:
    """The launch of a step of the row ``triangular_solve``."""
    return [_Solve(codegen, step).command()]


class _Solve:
    """Any form of it as T X = B, T being lower triangular: a warp for each column of X.

    turns: whether T is the transpose of operand 0.  backward: whether its last row is the first.
    groups: blocks that share the columns of a matrix.  kept: whether T is in shared memory.
    """

    def __init__(self, codegen: CodegenContext, step: OpStep) -> None:
        attrs, n = step.attrs, step.operands[0].type.shape[-1]
        rows, columns = step.operands[1].type.shape[-2:]
        self.n, self.m = n, columns if attrs["left"] else rows
        self.left, self.unit = attrs["left"], attrs["unit"]
        self.turns = attrs["transpose"] == attrs["left"]
        self.backward = attrs["lower"] == self.turns
        warps = min(_WARPS, self.m)
        stack = math.prod(step.operands[0].type.shape[:-2])
        self.groups = min(-(-self.m // warps), max(1, _BUSY_BLOCKS // stack))
        wide = max(4, step.operands[0].type.dtype.itemsize)
        self.kept = (n * (n | 1) + warps * n) * wide <= TILE_KIB[codegen.target] * 1024 // 2
        sizes = [warps * n, n * (n | 1)] if self.kept else [warps * n]
        self.shop = Workshop(codegen, step, warps * WARP * 16, sizes, stack * self.groups)
        self.t = self.shop.matrix(1, n) if self.kept else None

    def command(self) -> Command:
        """The launch."""
        shop, b = self.shop, self.shop.b
        with shop.each() as unit:
            number_of, group = b.udiv(unit, _wide(self.groups)), b.urem(unit, _wide(self.groups))
            if self.t is not None:
                self._keep(number_of)
            first = b.mul(b.trunc(group, ir.i32), number(shop.block.warps))
            first = b.add(first, shop.block.warp)
            x = shop.block.address(
                shop.pieces[0], b.mul(shop.block.warp, number(self.n)), shop.type
            )
            step = shop.block.warps * self.groups
            with b.loop(first, number(self.m), step) as columns:
                self._column(number_of, columns.index, x)
        return shop.launch()[0]

    def _keep(self, unit: Val) -> None:
        """Copy T to shared memory."""
        shop, b = self.shop, self.shop.b
        assert self.t is not None, "T is kept"
        with shop.warps_over(ZERO, number(self.n)) as i, shop.lanes_over(ZERO, b.add(i, ONE)) as j:
            self.t.put(i, j, shop.load(0, unit, *self._place(i, j)))
        shop.block.barrier()

    def _at(self, i: Val) -> Val:
        return self.shop.b.sub(number(self.n - 1), i) if self.backward else i

    def _place(self, i: Val, j: Val) -> tuple[Val, Val]:
        """Where an element of T lies in operand 0."""
        return (self._at(j), self._at(i)) if self.turns else (self._at(i), self._at(j))

    def _element(self, unit: Val, i: Val, j: Val) -> Val:
        if self.t is not None:
            return self.t.get(i, j)
        return self.shop.load(0, unit, *self._place(i, j))

    def _column(self, unit: Val, column: Val, x: Val) -> None:
        """Solve for a column of X, which is built up at ``x`` in the place of that of B.

        An equation waits for the one before, and had better not for memory as well.
        """
        shop, b, block = self.shop, self.shop.b, self.shop.block
        with shop.lanes_over(ZERO, number(self.n)) as row:
            block.store(shop.load(1, unit, *self._row(row, column)), x, row)
        block.sync_warp()
        with b.loop(ZERO, number(self.n)) as equations:
            i = equations.index
            with b.loop(block.lane, i, WARP, [shop.real(0.0)]) as known:
                factor = self._element(unit, i, known.index)
                found = block.load(x, known.index, shop.type)
                known.next(b.fma(factor, found, known.carried[0]))
            total = block.reduce_warp(known.carried[0], b.fadd)
            with b.if_then(b.icmp("eq", block.lane, ZERO)):
                value = b.fsub(block.load(x, i, shop.type), total)
                if not self.unit:
                    value = b.fdiv(value, self._element(unit, i, i))
                block.store(value, x, i)
            block.sync_warp()
        with shop.lanes_over(ZERO, number(self.n)) as row:
            shop.store(block.load(x, row, shop.type), 2, unit, *self._row(row, column))
        block.sync_warp()

    def _row(self, i: Val, column: Val) -> tuple[Val, Val]:
        """Where an element of X lies in operand 1 and the result."""
        return (self._at(i), column) if self.left else (column, self._at(i))


def _wide(value: int) -> Val:
    return const(ir.i64, value)


def emit_qr(codegen: CodegenContext, step: OpStep) -> Sequence[Command]:
    """The launch of a step of the row ``qr``."""
    m, n = step.operands[0].type.shape[-2:]
    size, k = step.results[0].type.shape[-1], min(m, n)
    sizes = [m * (n | 1), m * (size | 1), m, k]
    shop = Workshop(codegen, step, m * n, sizes)
    b, block = shop.b, shop.block
    a, q = shop.matrix(0, n), shop.matrix(1, size)
    vector, scales = shop.pieces[2:]
    with shop.each() as unit:
        with shop.warps_over(ZERO, number(m)) as i, shop.lanes_over(ZERO, number(n)) as j:
            a.put(i, j, shop.load(0, unit, i, j))
        with shop.warps_over(ZERO, number(m)) as i, shop.lanes_over(ZERO, number(size)) as j:
            one = b.icmp("eq", i, j)
            q.put(i, j, b.select(one, shop.real(1.0), shop.real(0.0)))
        block.barrier()
        with b.loop(ZERO, number(k)) as columns:
            _reflect(shop, a, vector, scales, columns.index, (m, n))
        with b.loop(ZERO, number(k)) as turned:
            j = b.sub(number(k - 1), turned.index)
            with shop.threads_over(j, number(m)) as i:
                block.store(_entry(shop, a, i, j), vector, i)
            block.barrier()
            _apply(shop, q, vector, block.load(scales, j, shop.type), j, j, (m, size))
            block.barrier()
        with shop.warps_over(ZERO, number(m)) as i, shop.lanes_over(ZERO, number(size)) as j:
            shop.store(q.get(i, j), 1, unit, i, j)
        with shop.warps_over(ZERO, number(size)) as i, shop.lanes_over(ZERO, number(n)) as j:
            below = b.icmp("sgt", i, j)
            shop.store(b.select(below, shop.real(0.0), a.get(i, j)), 2, unit, i, j)
    return shop.launch()


def _entry(shop: Workshop, a: Matrix, i: Val, j: Val) -> Val:
    """An element of the vector of a reflection; the first is 1, and R's diagonal has its place."""
    return shop.b.select(shop.b.icmp("eq", i, j), shop.real(1.0), a.get(i, j))


@record
class _Reflection:
    """large: what a column is divided by first.  over: its first element less the image of it.
    image: what becomes of the first element.  scale: of the product of the vector with itself.
    """

    large: Val
    over: Val
    image: Val
    scale: Val


def _reflect(
    shop: Workshop, a: Matrix, vector: Val, scales: Val, j: Val, sizes: tuple[int, int]
) -> None:
    """One column: its reflection, applied to the columns right of it."""
    b, block, (m, n) = shop.b, shop.block, sizes
    found, after = _reflection(shop, a, j, m), b.add(j, ONE)
    with shop.threads_over(j, number(m)) as i:
        scaled = b.fdiv(b.fdiv(a.get(i, j), found.large), found.over)
        block.store(b.select(b.icmp("eq", i, j), shop.real(1.0), scaled), vector, i)
    block.barrier()
    with shop.threads_over(after, number(m)) as i:
        a.put(i, j, block.load(vector, i, shop.type))
    with b.if_then(b.icmp("eq", block.thread, ZERO)):
        a.put(j, j, b.fmul(found.image, found.large))
        block.store(found.scale, scales, j)
    _apply(shop, a, vector, found.scale, after, j, (m, n))
    block.barrier()


def _reflection(shop: Workshop, a: Matrix, j: Val, m: int) -> _Reflection:
    """Of a column from the diagonal on; every warp finds it for itself."""
    b, block = shop.b, shop.block
    dtype: DType = f32 if is_half(shop.dtype) else shop.dtype

    def larger(x: Val, y: Val) -> Val:
        return combine(b, "max", dtype, x, y)

    zero, one = shop.real(0.0), shop.real(1.0)
    with b.loop(b.add(b.add(j, ONE), block.lane), number(m), WARP, [zero]) as loop:
        loop.next(larger(loop.carried[0], b.fabs(a.get(loop.index, j))))
    tail = block.reduce_warp(loop.carried[0], larger)
    head = a.get(j, j)
    large = larger(b.fabs(head), tail)
    large = b.select(b.fcmp("ogt", large, zero), large, one)
    with b.loop(b.add(j, block.lane), number(m), WARP, [zero]) as loop:
        x = b.fdiv(a.get(loop.index, j), large)
        loop.next(b.fma(x, x, loop.carried[0]))
    square = block.reduce_warp(loop.carried[0], b.fadd)
    norm = b.intrinsic("llvm.sqrt", shop.type, (square,))
    scaled, flat = b.fdiv(head, large), b.fcmp("oeq", tail, zero)
    signed = b.select(b.fcmp("olt", scaled, zero), norm, b.fneg(norm))
    image = b.select(flat, scaled, signed)
    scale = b.select(flat, zero, b.fdiv(b.fsub(image, scaled), image))
    return _Reflection(large, b.select(flat, one, b.fsub(scaled, image)), image, scale)


def _apply(
    shop: Workshop,
    a: Matrix,
    vector: Val,
    scale: Val,
    first: Val,
    row: Val,
    sizes: tuple[int, int],
) -> None:
    """Reflect the columns from ``first`` on, whose rows from ``row`` on change."""
    b, block, (m, n) = shop.b, shop.block, sizes
    with shop.warps_over(first, number(n)) as column:
        with b.loop(b.add(row, block.lane), number(m), WARP, [shop.real(0.0)]) as loop:
            factor = block.load(vector, loop.index, shop.type)
            loop.next(b.fma(factor, a.get(loop.index, column), loop.carried[0]))
        product = b.fmul(scale, block.reduce_warp(loop.carried[0], b.fadd))
        with shop.lanes_over(row, number(m)) as i:
            a.take(i, column, product, block.load(vector, i, shop.type))


__all__ = ["emit_cholesky", "emit_lu", "emit_qr", "emit_triangular_solve"]

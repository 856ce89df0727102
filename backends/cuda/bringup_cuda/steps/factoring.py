"""Factors of matrices and triangular systems: a block for each matrix of a stack.

A block keeps its matrix in shared memory and takes column after column off the rest of it, so that
stacks of small matrices use the whole GPU; a single large matrix uses one multiprocessor of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from bringup.llvm import text as ir
from bringup.llvm.text import Val, const
from bringup.program.program import OpStep
from bringup_cuda.commands import Command
from bringup_cuda.lower import Emission
from bringup_cuda.steps._matrices import ONE, ZERO, Matrix, Workshop, number
from bringup_cuda.targets import TILE_KIB, WARP


def render_cholesky(emission: Emission, step: OpStep) -> Sequence[Command]:
    """The launch of a step of the row ``cholesky``."""
    n = step.operands[0].type.shape[-1]
    shop = Workshop(emission, step, n * n, [n * (n | 1), n])
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
                partial(block.get, pivots, i, shop.type),
            )
            kept = b.select(good, found, shop.real(math.nan))
            shop.store(b.select(b.icmp("sgt", j, i), shop.real(0.0), kept), 1, unit, i, j)
    return shop.launch()


def _take_column(shop: Workshop, a: Matrix, pivots: Val, j: Val, n: int) -> None:
    """Finish a column, and take its products off those right of it."""
    b, block = shop.b, shop.block
    pivot = b.intrinsic("llvm.sqrt", shop.type, (a.get(j, j),))
    with b.if_then(b.icmp("eq", block.thread, ZERO)):
        block.put(pivot, pivots, j)
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
        x = block.get(pivots, loop.index, shop.type)
        positive = b.fcmp("ogt", x, shop.real(0.0))
        inside = b.and_(positive, b.fcmp("olt", x, shop.real(math.inf)))
        loop.next(b.and_(loop.carried[0], b.zext(inside, ir.i32)))
    _, good = block.spread(block.fold_lanes(loop.carried[0], b.and_), sums, b.and_, ONE)
    return b.icmp("ne", good, ZERO)


# -- lu --------------------------------------------------------------------------------------------


def render_lu(emission: Emission, step: OpStep) -> Sequence[Command]:
    """The launch of a step of the row ``lu``."""
    m, n = step.operands[0].type.shape[-2:]
    shop = Workshop(emission, step, m * n, [m * (n | 1), m])
    b, block = shop.b, shop.block
    a, order = shop.matrix(0, n), shop.pieces[1]
    whole = ir.integer(shop.type.bits)
    arrays = block.shared(whole, block.warps), block.shared(ir.i32, block.warps)
    with shop.each() as unit:
        with shop.warps_over(ZERO, number(m)) as i, shop.lanes_over(ZERO, number(n)) as j:
            a.put(i, j, shop.load(0, unit, i, j))
        with shop.threads_over(ZERO, number(m)) as i:
            block.put(i, order, i)
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
            b.store(block.get(order, i, ir.i32), b.gep(block.args[2], at, ir.i32), 4)
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
    mine = block.fold_lanes(loop.carried[0], largest)
    _, best = block.spread(mine, arrays[0], largest, const(whole, 0))
    with b.loop(start, number(m), block.threads, [number(-1)]) as loop:
        here = b.select(b.icmp("eq", size(loop.index), best), loop.index, number(-1))
        loop.next(first(loop.carried[0], here))
    mine = block.fold_lanes(loop.carried[0], first)
    return block.spread(mine, arrays[1], first, number(-1))[1]


def _exchange(shop: Workshop, a: Matrix, order: Val, j: Val, pivot: Val, n: int) -> None:
    b, block = shop.b, shop.block
    with shop.threads_over(ZERO, number(n)) as k:
        one, other = a.get(j, k), a.get(pivot, k)
        a.put(j, k, other)
        a.put(pivot, k, one)
    with b.if_then(b.icmp("eq", block.thread, ZERO)):
        here, there = (block.get(order, i, ir.i32) for i in (j, pivot))
        block.put(there, order, j)
        block.put(here, order, pivot)
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


def render_triangular_solve(emission: Emission, step: OpStep) -> Sequence[Command]:
    """The launch of a step of the row ``triangular_solve``."""
    return [_Solve(emission, step).command()]


class _Solve:
    """Any form of it as T X = B, T being lower triangular: a warp for each column of X.

    turns: whether T is the transpose of operand 0.  backward: whether its last row is the first.
    groups: blocks that share the columns of a matrix.  kept: whether T is in shared memory.
    """

    def __init__(self, emission: Emission, step: OpStep) -> None:
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
        self.kept = (n * (n | 1) + warps * n) * wide <= TILE_KIB[emission.target] * 1024 // 2
        sizes = [warps * n, n * (n | 1)] if self.kept else [warps * n]
        self.shop = Workshop(emission, step, warps * WARP * 16, sizes, stack * self.groups)
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
            x = shop.block.at(shop.pieces[0], b.mul(shop.block.warp, number(self.n)), shop.type)
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
            block.put(shop.load(1, unit, *self._row(row, column)), x, row)
        block.converge()
        with b.loop(ZERO, number(self.n)) as equations:
            i = equations.index
            with b.loop(block.lane, i, WARP, [shop.real(0.0)]) as known:
                factor = self._element(unit, i, known.index)
                found = block.get(x, known.index, shop.type)
                known.next(b.fma(factor, found, known.carried[0]))
            total = block.fold_lanes(known.carried[0], b.fadd)
            with b.if_then(b.icmp("eq", block.lane, ZERO)):
                value = b.fsub(block.get(x, i, shop.type), total)
                if not self.unit:
                    value = b.fdiv(value, self._element(unit, i, i))
                block.put(value, x, i)
            block.converge()
        with shop.lanes_over(ZERO, number(self.n)) as row:
            shop.store(block.get(x, row, shop.type), 2, unit, *self._row(row, column))
        block.converge()

    def _row(self, i: Val, column: Val) -> tuple[Val, Val]:
        """Where an element of X lies in operand 1 and the result."""
        return (self._at(i), column) if self.left else (column, self._at(i))


def _wide(value: int) -> Val:
    return const(ir.i64, value)


__all__ = ["render_cholesky", "render_lu", "render_triangular_solve"]

"""QR factors by Householder's reflections: a block for each matrix of a stack.

A warp takes a column: its lanes share the rows.  The vectors of the reflections stay below the
diagonal of R, and are applied to the identity from the last to the first.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.dtypes import DType, f32
from bringup.llvm.scalar import combine, is_half
from bringup.llvm.text import Val
from bringup.program.program import OpStep
from bringup.records import record
from bringup_cuda.commands import Command
from bringup_cuda.lower import Emission
from bringup_cuda.steps._matrices import ONE, ZERO, Matrix, Workshop, number
from bringup_cuda.targets import WARP


def render(emission: Emission, step: OpStep) -> Sequence[Command]:
    """The launch of a step of the row ``qr``."""
    m, n = step.operands[0].type.shape[-2:]
    size, k = step.results[0].type.shape[-1], min(m, n)
    sizes = [m * (n | 1), m * (size | 1), m, k]
    shop = Workshop(emission, step, m * n, sizes)
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
                block.put(_entry(shop, a, i, j), vector, i)
            block.barrier()
            _apply(shop, q, vector, block.get(scales, j, shop.type), j, j, (m, size))
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
        block.put(b.select(b.icmp("eq", i, j), shop.real(1.0), scaled), vector, i)
    block.barrier()
    with shop.threads_over(after, number(m)) as i:
        a.put(i, j, block.get(vector, i, shop.type))
    with b.if_then(b.icmp("eq", block.thread, ZERO)):
        a.put(j, j, b.fmul(found.image, found.large))
        block.put(found.scale, scales, j)
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
    tail = block.fold_lanes(loop.carried[0], larger)
    head = a.get(j, j)
    large = larger(b.fabs(head), tail)
    large = b.select(b.fcmp("ogt", large, zero), large, one)
    with b.loop(b.add(j, block.lane), number(m), WARP, [zero]) as loop:
        x = b.fdiv(a.get(loop.index, j), large)
        loop.next(b.fma(x, x, loop.carried[0]))
    square = block.fold_lanes(loop.carried[0], b.fadd)
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
            factor = block.get(vector, loop.index, shop.type)
            loop.next(b.fma(factor, a.get(loop.index, column), loop.carried[0]))
        product = b.fmul(scale, block.fold_lanes(loop.carried[0], b.fadd))
        with shop.lanes_over(row, number(m)) as i:
            a.take(i, column, product, block.get(vector, i, shop.type))


__all__ = ["render"]

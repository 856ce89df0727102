"""Cholesky and LU factors and triangular systems as native code."""

from __future__ import annotations

import math
from collections.abc import Callable

from bringup.llvm import text as ir
from bringup.llvm.scalar import memory_type
from bringup.llvm.steps.base import NativeStep
from bringup.llvm.steps.matrices import BLOCK, MatrixEmitter, Rows, Strides
from bringup.llvm.text import Module, Val, const, i64_const
from bringup.loops.target import Target
from bringup.program.program import OpStep

_ZERO, _ONE = i64_const(0), i64_const(1)


def emit_triangular_solve(module: Module, step: OpStep, name: str, target: Target) -> NativeStep:
    """Emit a step of the row ``triangular_solve``, every form of which becomes L X = B."""
    em = MatrixEmitter(module, step, name, target)
    attrs, n = step.attrs, step.operands[0].type.shape[-1]
    rows, columns = step.operands[1].type.shape[-2:]
    m = columns if attrs["left"] else rows
    transpose = attrs["transpose"] != (not attrs["left"])
    lower = attrs["lower"] != transpose
    strides: Strides = (1, n) if transpose else (n, 1)
    other: Strides = (m, 1) if attrs["left"] else (1, n)
    lda, ldx = em.dense.padded(n), em.dense.padded(m)
    t, x = em.scratch(n * lda, n * ldx)
    left, right = (t, i64_const(lda)), (x, i64_const(ldx))
    with em.each():
        b, kind = em.b, memory_type(em.dtype)
        sources = [em.operand(0), em.operand(1), em.result(0)]
        if not lower:  # reverse the order of equations and unknowns
            steps = ((n - 1) * (strides[0] + strides[1]), (n - 1) * other[0], (n - 1) * other[0])
            sources = [b.gep(s, step_, kind) for s, step_ in zip(sources, steps, strict=True)]
            strides, other = (-strides[0], -strides[1]), (-other[0], other[1])
        em.copy_in(sources[0], strides, left, n, n)
        em.copy_in(sources[1], other, right, n, m)
        em.dense.substitute(b, left, right, i64_const(n), i64_const(m), unit=attrs["unit"])
        em.copy_out(right, sources[2], other, n, m)
    return em.done(n * n * m)


def emit_cholesky(module: Module, step: OpStep, name: str, target: Target) -> NativeStep:
    """Emit a step of the row ``cholesky``: block rows, each solved with those above it."""
    em = MatrixEmitter(module, step, name, target)
    n = step.operands[0].type.shape[-1]
    ld = em.dense.padded(n)
    memory, panel = em.scratch(n * ld, n * BLOCK)
    a, p = (memory, i64_const(ld)), (panel, i64_const(BLOCK))
    with em.each():
        b = em.b
        em.copy_in(em.operand(0), (n, 1), a, n, n)
        with b.loop(_ZERO, i64_const(n), BLOCK) as blocks:
            k = blocks.index
            count = b.lesser(b.sub(i64_const(n), k), i64_const(BLOCK))
            em.each_element(count, k, lambda i, j: em.put(p, j, i, em.get(a, b.add(k, i), j)))
            em.dense.substitute(b, a, p, k, count)
            em.each_element(count, k, lambda i, j: em.put(a, b.add(k, i), j, em.get(p, j, i)))
            corner = em.part(a, k, k)
            em.dense.update(b, corner, (panel, _ONE, p[1]), p, (count, count, k))
            _factor_corner(em, corner, count)
        good = em.total(const(ir.i1, 1), _ZERO, i64_const(n), lambda i, ok: _positive(em, a, i, ok))

        def change(i: Val, j: Val, x: Val) -> Val:
            value = b.select(good, x, em.real(math.nan))
            return b.select(b.icmp("sgt", j, i), em.real(0.0), value)

        em.copy_out(a, em.result(0), (n, 1), n, n, change)
    return em.done(n * n * n // 3)


def _positive(em: MatrixEmitter, a: Rows, i: Val, before: Val) -> Val:
    b, x = em.b, em.get(a, i, i)
    inside = b.and_(b.fcmp("ogt", x, em.real(0.0)), b.fcmp("olt", x, em.real(math.inf)))
    return b.and_(before, inside)


def _factor_corner(em: MatrixEmitter, a: Rows, count: Val) -> None:
    """Factor a block on the diagonal, row by row."""
    b = em.b

    def product(i: Val, j: Val) -> Callable[[Val, Val], Val]:
        def term(p: Val, rest: Val) -> Val:
            return b.fsub(rest, b.fmul(em.get(a, i, p), em.get(a, j, p)))

        return term

    with b.loop(_ZERO, count) as outer:
        i = outer.index
        with b.loop(_ZERO, i) as inner:
            j = inner.index
            rest = em.total(em.get(a, i, j), _ZERO, j, product(i, j))
            em.put(a, i, j, b.fdiv(rest, em.get(a, j, j)))
        square = em.total(em.get(a, i, i), _ZERO, i, product(i, i))
        em.put(a, i, i, em.sqrt(square))


def emit_lu(module: Module, step: OpStep, name: str, target: Target) -> NativeStep:
    """Emit a step of the row ``lu``: a block of columns, then an update of the rest."""
    em = MatrixEmitter(module, step, name, target)
    m, n = step.operands[0].type.shape[-2:]
    ld, k = em.dense.padded(n), min(m, n)
    a = (em.scratch(m * ld)[0], i64_const(ld))
    with em.each():
        b, order = em.b, em.result(1, rank=1)
        em.copy_in(em.operand(0), (n, 1), a, m, n)
        with b.loop(_ZERO, i64_const(m)) as rows:
            b.store(b.trunc(rows.index, ir.i32), b.gep(order, rows.index, ir.i32), 4)
        with b.loop(_ZERO, i64_const(k), BLOCK) as blocks:
            first = blocks.index
            end = b.lesser(b.add(first, i64_const(BLOCK)), i64_const(k))
            with b.loop(first, end) as columns:
                _eliminate(em, a, order, columns.index, end, (m, n))
            rest = b.sub(i64_const(n), end)
            count, below = b.sub(end, first), b.sub(i64_const(m), end)
            top, corner = em.part(a, first, end), em.part(a, end, end)
            em.dense.substitute(b, em.part(a, first, first), top, count, rest, unit=True)
            view = (em.address(a, end, first), a[1], _ONE)
            em.dense.update(b, corner, view, top, (below, rest, count))
        em.copy_out(a, em.result(0), (n, 1), m, n)
    return em.done(m * n * k)


def _eliminate(
    em: MatrixEmitter, a: Rows, order: Val, j: Val, end: Val, sizes: tuple[int, int]
) -> None:
    """Eliminate one column: find the pivot, compute the multipliers, update the block."""
    b, (m, n) = em.b, sizes
    pivot = _pivot(em, a, j, i64_const(m))
    em.dense.swap(b, em.address(a, j, _ZERO), em.address(a, pivot, _ZERO), i64_const(n))
    addresses = [b.gep(order, i, ir.i32) for i in (j, pivot)]
    first, second = (b.load(ir.i32, address, 4) for address in addresses)
    b.store(second, addresses[0], 4)
    b.store(first, addresses[1], 4)
    head, after = em.get(a, j, j), b.add(j, _ONE)
    is_zero = b.fcmp("oeq", head, em.real(0.0))
    with b.loop(after, i64_const(m)) as rows:
        factor = b.fdiv(em.get(a, rows.index, j), head)
        em.put(a, rows.index, j, b.select(is_zero, em.real(0.0), factor))
    count = (b.sub(i64_const(m), after), b.sub(end, after), _ONE)
    view = (em.address(a, after, j), a[1], _ONE)
    em.dense.update(b, em.part(a, after, after), view, em.part(a, j, after), count)


def _pivot(em: MatrixEmitter, a: Rows, j: Val, m: Val) -> Val:
    """The row of the first largest magnitude of a column, or of its first NaN."""
    b = em.b
    with b.loop(j, m, carried=[em.real(-1.0), j]) as rows:
        best, row = rows.carried
        size = b.fabs(em.get(a, rows.index, j))
        unordered = b.and_(b.fcmp("uno", size, size), b.fcmp("ord", best, best))
        better = b.or_(b.fcmp("ogt", size, best), unordered)
        rows.next(b.select(better, size, best), b.select(better, rows.index, row))
    return rows.carried[1]

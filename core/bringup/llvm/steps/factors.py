"""Cholesky and LU factors and triangular systems as native code."""

from __future__ import annotations

import math
from collections.abc import Callable

from bringup.llvm import text as ir
from bringup.llvm.loops.schedule import LoopTarget
from bringup.llvm.scalar import memory_type
from bringup.llvm.steps.base import NativeStep
from bringup.llvm.steps.matrices import BLOCK, Matrices, Rows, Strides
from bringup.llvm.text import Module, Val, const, i64_const
from bringup.program.program import OpStep

_ZERO, _ONE = i64_const(0), i64_const(1)


def emit_triangular_solve(
    module: Module, step: OpStep, name: str, target: LoopTarget
) -> NativeStep:
    """Emit a step of the row ``triangular_solve``: any form of it as L X = B."""
    at = Matrices(module, step, name, target)
    attrs, n = step.attrs, step.operands[0].type.shape[-1]
    rows, columns = step.operands[1].type.shape[-2:]
    m = columns if attrs["left"] else rows
    turns = attrs["transpose"] != (not attrs["left"])
    lower = attrs["lower"] != turns
    own: Strides = (1, n) if turns else (n, 1)
    other: Strides = (m, 1) if attrs["left"] else (1, n)
    lda, ldx = at.dense.padded(n), at.dense.padded(m)
    t, x = at.scratch(n * lda, n * ldx)
    left, right = (t, i64_const(lda)), (x, i64_const(ldx))
    with at.each():
        b, kind = at.b, memory_type(at.dtype)
        sources = [at.operand(0), at.operand(1), at.result(0)]
        if not lower:  # the order of equations and unknowns reversed
            steps = ((n - 1) * (own[0] + own[1]), (n - 1) * other[0], (n - 1) * other[0])
            sources = [b.gep(s, step_, kind) for s, step_ in zip(sources, steps, strict=True)]
            own, other = (-own[0], -own[1]), (-other[0], other[1])
        at.copy_in(sources[0], own, left, n, n)
        at.copy_in(sources[1], other, right, n, m)
        at.dense.substitute(b, left, right, i64_const(n), i64_const(m), unit=attrs["unit"])
        at.copy_out(right, sources[2], other, n, m)
    return at.done(n * n * m)


def emit_cholesky(module: Module, step: OpStep, name: str, target: LoopTarget) -> NativeStep:
    """Emit a step of the row ``cholesky``: block rows, each solved with those above it."""
    at = Matrices(module, step, name, target)
    n = step.operands[0].type.shape[-1]
    ld = at.dense.padded(n)
    memory, panel = at.scratch(n * ld, n * BLOCK)
    a, p = (memory, i64_const(ld)), (panel, i64_const(BLOCK))
    with at.each():
        b = at.b
        at.copy_in(at.operand(0), (n, 1), a, n, n)
        with b.loop(_ZERO, i64_const(n), BLOCK) as blocks:
            k = blocks.index
            count = b.lesser(b.sub(i64_const(n), k), i64_const(BLOCK))
            at.nested(count, k, lambda i, j: at.put(p, j, i, at.get(a, b.add(k, i), j)))
            at.dense.substitute(b, a, p, k, count)
            at.nested(count, k, lambda i, j: at.put(a, b.add(k, i), j, at.get(p, j, i)))
            corner = at.part(a, k, k)
            at.dense.update(b, corner, (panel, _ONE, p[1]), p, (count, count, k))
            _factor_corner(at, corner, count)
        good = at.total(const(ir.i1, 1), _ZERO, i64_const(n), lambda i, ok: _positive(at, a, i, ok))

        def change(i: Val, j: Val, x: Val) -> Val:
            kept = b.select(good, x, at.real(math.nan))
            return b.select(b.icmp("sgt", j, i), at.real(0.0), kept)

        at.copy_out(a, at.result(0), (n, 1), n, n, change)
    return at.done(n * n * n // 3)


def _positive(at: Matrices, a: Rows, i: Val, before: Val) -> Val:
    b, x = at.b, at.get(a, i, i)
    inside = b.and_(b.fcmp("ogt", x, at.real(0.0)), b.fcmp("olt", x, at.real(math.inf)))
    return b.and_(before, inside)


def _factor_corner(at: Matrices, a: Rows, count: Val) -> None:
    """A block on the diagonal, row by row."""
    b = at.b

    def product(i: Val, j: Val) -> Callable[[Val, Val], Val]:
        def term(p: Val, rest: Val) -> Val:
            return b.fsub(rest, b.fmul(at.get(a, i, p), at.get(a, j, p)))

        return term

    with b.loop(_ZERO, count) as outer:
        i = outer.index
        with b.loop(_ZERO, i) as inner:
            j = inner.index
            rest = at.total(at.get(a, i, j), _ZERO, j, product(i, j))
            at.put(a, i, j, b.fdiv(rest, at.get(a, j, j)))
        square = at.total(at.get(a, i, i), _ZERO, i, product(i, i))
        at.put(a, i, i, at.sqrt(square))


def emit_lu(module: Module, step: OpStep, name: str, target: LoopTarget) -> NativeStep:
    """Emit a step of the row ``lu``: block columns, then the rest at once."""
    at = Matrices(module, step, name, target)
    m, n = step.operands[0].type.shape[-2:]
    ld, k = at.dense.padded(n), min(m, n)
    a = (at.scratch(m * ld)[0], i64_const(ld))
    with at.each():
        b, order = at.b, at.result(1, rank=1)
        at.copy_in(at.operand(0), (n, 1), a, m, n)
        with b.loop(_ZERO, i64_const(m)) as rows:
            b.store(b.trunc(rows.index, ir.i32), b.gep(order, rows.index, ir.i32), 4)
        with b.loop(_ZERO, i64_const(k), BLOCK) as blocks:
            first = blocks.index
            end = b.lesser(b.add(first, i64_const(BLOCK)), i64_const(k))
            with b.loop(first, end) as columns:
                _eliminate(at, a, order, columns.index, end, (m, n))
            rest = b.sub(i64_const(n), end)
            count, below = b.sub(end, first), b.sub(i64_const(m), end)
            top, corner = at.part(a, first, end), at.part(a, end, end)
            at.dense.substitute(b, at.part(a, first, first), top, count, rest, unit=True)
            view = (at.address(a, end, first), a[1], _ONE)
            at.dense.update(b, corner, view, top, (below, rest, count))
        at.copy_out(a, at.result(0), (n, 1), m, n)
    return at.done(m * n * k)


def _eliminate(at: Matrices, a: Rows, order: Val, j: Val, end: Val, sizes: tuple[int, int]) -> None:
    """One column: its pivot, its multipliers, and what they do to the block."""
    b, (m, n) = at.b, sizes
    pivot = _pivot(at, a, j, i64_const(m))
    at.dense.swap(b, at.address(a, j, _ZERO), at.address(a, pivot, _ZERO), i64_const(n))
    places = [b.gep(order, i, ir.i32) for i in (j, pivot)]
    here, there = (b.load(ir.i32, place, 4) for place in places)
    b.store(there, places[0], 4)
    b.store(here, places[1], 4)
    head, after = at.get(a, j, j), b.add(j, _ONE)
    nothing = b.fcmp("oeq", head, at.real(0.0))
    with b.loop(after, i64_const(m)) as rows:
        factor = b.fdiv(at.get(a, rows.index, j), head)
        at.put(a, rows.index, j, b.select(nothing, at.real(0.0), factor))
    count = (b.sub(i64_const(m), after), b.sub(end, after), _ONE)
    view = (at.address(a, after, j), a[1], _ONE)
    at.dense.update(b, at.part(a, after, after), view, at.part(a, j, after), count)


def _pivot(at: Matrices, a: Rows, j: Val, m: Val) -> Val:
    """The row of the first largest magnitude of a column, or of the first NaN."""
    b = at.b
    with b.loop(j, m, carried=[at.real(-1.0), j]) as rows:
        best, place = rows.carried
        size = b.fabs(at.get(a, rows.index, j))
        unordered = b.and_(b.fcmp("uno", size, size), b.fcmp("ord", best, best))
        better = b.or_(b.fcmp("ogt", size, best), unordered)
        rows.next(b.select(better, size, best), b.select(better, rows.index, place))
    return rows.carried[1]

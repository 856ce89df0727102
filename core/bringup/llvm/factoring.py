"""Factors of matrices and triangular systems as native code: one matrix is one unit of work.

A matrix is copied to scratch memory of its worker, in f32 if it is narrower, with rows whose
distance is no power of two, and worked on there in blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bringup.dtypes import f32
from bringup.llvm import text as ir
from bringup.llvm.dense import BLOCK, Dense, Rows, number, smaller
from bringup.llvm.launches import NativeStep, Phase
from bringup.llvm.scalar import is_half, memory_type, narrow, register_type, widen
from bringup.llvm.schedule import LoopTarget
from bringup.llvm.text import Builder, Module, Type, Val, const
from bringup.program.program import OpStep
from bringup.types import TensorType

Strides = tuple[int, int]
_ZERO, _ONE = number(0), number(1)
_ALIGNMENT = 64


class Matrices:
    """What the emitters of one step share.

    dense: its functions.  b: the builder.  unit: the number of the matrix, inside `each`.
    """

    def __init__(self, module: Module, step: OpStep, name: str, target: LoopTarget) -> None:
        self.step = step
        self.phase = Phase(module, step, name)
        self.b: Builder = self.phase.b
        self.dtype = step.operands[0].type.dtype
        wide = f32 if is_half(self.dtype) else self.dtype
        self.type: Type = memory_type(wide)
        self.dense = Dense(module, self.type, target)
        self.unit = _ZERO
        self._shared = 0

    @property
    def count(self) -> int:
        """Matrices of the stack."""
        return math.prod(self.step.operands[0].type.shape[:-2])

    @contextmanager
    def each(self) -> Iterator[None]:
        """The loop over matrices."""
        with self.phase.units() as unit:
            self.unit = unit
            yield

    def scratch(self, *sizes: int) -> list[Val]:
        """Addresses of memory for so many elements each."""
        nbytes = [max(size, 1) * self.dense.bytes for size in sizes]
        if self.count > 1:
            return self.phase.scratch(*nbytes)
        found: list[Val] = []  # one matrix: one worker, and so memory for one
        for size in nbytes:
            found.append(self.b.gep(self.phase.shared, self._shared, ir.i8))
            self._shared += -(-size // _ALIGNMENT) * _ALIGNMENT
        return found

    def done(self, work: int) -> NativeStep:
        """The finished step, each matrix taking so many operations."""
        return NativeStep((self.phase.done(self.count, work),), self._shared)

    def operand(self, place: int) -> Val:
        """The address of this unit's matrix of an operand."""
        return self._own(self.phase.operands[place], self.step.operands[place].type, 2)

    def result(self, place: int, rank: int = 2) -> Val:
        """As `operand`, of a result."""
        return self._own(self.phase.results[place], self.step.results[place].type, rank)

    def _own(self, base: Val, type_: TensorType, rank: int) -> Val:
        size = math.prod(type_.shape[len(type_.shape) - rank :])
        return self.b.gep(base, self.b.mul(self.unit, number(size)), memory_type(type_.dtype))

    def nested(self, rows: Val, columns: Val, body: Callable[[Val, Val], None]) -> None:
        """Loops over rows and columns."""
        with self.b.loop(_ZERO, rows) as outer, self.b.loop(_ZERO, columns) as inner:
            body(outer.index, inner.index)

    def copy_in(self, source: Val, by: Strides, target: Rows, rows: int, columns: int) -> None:
        """Elements of an operand's matrix, read with strides, to scratch memory."""
        b, kind = self.b, memory_type(self.dtype)

        def body(i: Val, j: Val) -> None:
            place = b.add(b.mul(i, number(by[0])), b.mul(j, number(by[1])))
            loaded = b.load(kind, b.gep(source, place, kind), self.dtype.itemsize)
            value = widen(b, Val(loaded.text, register_type(self.dtype)))
            self.put(target, i, j, value)

        self.nested(number(rows), number(columns), body)

    def copy_out(
        self, source: Rows, target: Val, by: Strides, rows: int, columns: int,
        change: Callable[[Val, Val, Val], Val] = lambda _i, _j, x: x,
    ) -> None:  # fmt: skip
        """Elements of scratch memory to a result, written with strides; perhaps changed."""
        b, kind = self.b, memory_type(self.dtype)

        def body(i: Val, j: Val) -> None:
            place = b.add(b.mul(i, number(by[0])), b.mul(j, number(by[1])))
            value = narrow(b, change(i, j, self.get(source, i, j)), self.dtype)
            kept = Val(value.text, kind)
            b.store(kept, b.gep(target, place, kind), self.dtype.itemsize)

        self.nested(number(rows), number(columns), body)

    def address(self, rows: Rows, i: Val, j: Val) -> Val:
        """Of an element of scratch memory."""
        return self.dense.at(self.b, rows[0], rows[1], i, j)

    def part(self, rows: Rows, i: Val, j: Val) -> Rows:
        """The matrix that begins at an element."""
        return self.address(rows, i, j), rows[1]

    def get(self, rows: Rows, i: Val, j: Val) -> Val:
        """An element."""
        return self.b.load(self.type, self.address(rows, i, j), self.dense.bytes)

    def put(self, rows: Rows, i: Val, j: Val, value: Val) -> None:
        """Store an element."""
        self.b.store(value, self.address(rows, i, j), self.dense.bytes)

    def clear(self, rows: Rows, m: Val, n: Val) -> None:
        """Zeros."""
        self.nested(m, n, lambda i, j: self.put(rows, i, j, self.real(0.0)))

    def real(self, value: float) -> Val:
        """A number of the type worked in."""
        return const(self.type, value)

    def total(self, start: Val, first: Val, end: Val, term: Callable[[Val, Val], Val]) -> Val:
        """A value carried through a loop: ``start = term(i, start)``."""
        with self.b.loop(first, end, carried=[start]) as loop:
            loop.next(term(loop.index, loop.carried[0]))
        return loop.carried[0]

    def sqrt(self, x: Val) -> Val:
        """The square root."""
        return self.b.intrinsic("llvm.sqrt", self.type, (x,))


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
    left, right = (t, number(lda)), (x, number(ldx))
    with at.each():
        b, kind = at.b, memory_type(at.dtype)
        sources = [at.operand(0), at.operand(1), at.result(0)]
        if not lower:  # the order of equations and unknowns reversed
            steps = ((n - 1) * (own[0] + own[1]), (n - 1) * other[0], (n - 1) * other[0])
            sources = [b.gep(s, step_, kind) for s, step_ in zip(sources, steps, strict=True)]
            own, other = (-own[0], -own[1]), (-other[0], other[1])
        at.copy_in(sources[0], own, left, n, n)
        at.copy_in(sources[1], other, right, n, m)
        at.dense.substitute(b, left, right, number(n), number(m), unit=attrs["unit"])
        at.copy_out(right, sources[2], other, n, m)
    return at.done(n * n * m)


def emit_cholesky(module: Module, step: OpStep, name: str, target: LoopTarget) -> NativeStep:
    """Emit a step of the row ``cholesky``: block rows, each solved with those above it."""
    at = Matrices(module, step, name, target)
    n = step.operands[0].type.shape[-1]
    ld = at.dense.padded(n)
    memory, panel = at.scratch(n * ld, n * BLOCK)
    a, p = (memory, number(ld)), (panel, number(BLOCK))
    with at.each():
        b = at.b
        at.copy_in(at.operand(0), (n, 1), a, n, n)
        with b.loop(_ZERO, number(n), BLOCK) as blocks:
            k = blocks.index
            count = smaller(b, b.sub(number(n), k), number(BLOCK))
            at.nested(count, k, lambda i, j: at.put(p, j, i, at.get(a, b.add(k, i), j)))
            at.dense.substitute(b, a, p, k, count)
            at.nested(count, k, lambda i, j: at.put(a, b.add(k, i), j, at.get(p, j, i)))
            corner = at.part(a, k, k)
            at.dense.update(b, corner, (panel, _ONE, p[1]), p, (count, count, k))
            _factor_corner(at, corner, count)
        good = at.total(const(ir.i1, 1), _ZERO, number(n), lambda i, ok: _positive(at, a, i, ok))

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
    a = (at.scratch(m * ld)[0], number(ld))
    with at.each():
        b, order = at.b, at.result(1, rank=1)
        at.copy_in(at.operand(0), (n, 1), a, m, n)
        with b.loop(_ZERO, number(m)) as rows:
            b.store(b.trunc(rows.index, ir.i32), b.gep(order, rows.index, ir.i32), 4)
        with b.loop(_ZERO, number(k), BLOCK) as blocks:
            first = blocks.index
            end = smaller(b, b.add(first, number(BLOCK)), number(k))
            with b.loop(first, end) as columns:
                _eliminate(at, a, order, columns.index, end, (m, n))
            rest = b.sub(number(n), end)
            count, below = b.sub(end, first), b.sub(number(m), end)
            top, corner = at.part(a, first, end), at.part(a, end, end)
            at.dense.substitute(b, at.part(a, first, first), top, count, rest, unit=True)
            view = (at.address(a, end, first), a[1], _ONE)
            at.dense.update(b, corner, view, top, (below, rest, count))
        at.copy_out(a, at.result(0), (n, 1), m, n)
    return at.done(m * n * k)


def _eliminate(at: Matrices, a: Rows, order: Val, j: Val, end: Val, sizes: tuple[int, int]) -> None:
    """One column: its pivot, its multipliers, and what they do to the block."""
    b, (m, n) = at.b, sizes
    pivot = _pivot(at, a, j, number(m))
    at.dense.swap(b, at.address(a, j, _ZERO), at.address(a, pivot, _ZERO), number(n))
    places = [b.gep(order, i, ir.i32) for i in (j, pivot)]
    here, there = (b.load(ir.i32, place, 4) for place in places)
    b.store(there, places[0], 4)
    b.store(here, places[1], 4)
    head, after = at.get(a, j, j), b.add(j, _ONE)
    nothing = b.fcmp("oeq", head, at.real(0.0))
    with b.loop(after, number(m)) as rows:
        factor = b.fdiv(at.get(a, rows.index, j), head)
        at.put(a, rows.index, j, b.select(nothing, at.real(0.0), factor))
    count = (b.sub(number(m), after), b.sub(end, after), _ONE)
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

"""Eigenvalues and singular values as native code: reflections to two diagonals, then QR steps.

A symmetric matrix becomes tridiagonal, any other one upper bidiagonal, by Householder's
reflections; both by one function, which in one pass over the rest of the matrix takes off what the
step before left and forms the product that the next one needs.  Implicit QR steps then make the
second diagonal vanish: their scalars are f64, and their rotations are collected and applied to the
vectors many steps at a time, a few columns at once, so that these stay in the nearest cache.

(G. Golub and C. Van Loan, Matrix Computations, sections 8.3 and 8.6; the steps are those of
steqr and bdsqr in LAPACK.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bringup.llvm import text as ir
from bringup.llvm.loops.schedule import LoopTarget
from bringup.llvm.steps.base import NativeStep
from bringup.llvm.steps.matrices import BLOCK, Rows
from bringup.llvm.steps.qr import Block, Room, apply_block, make_triangle, unit_matrix
from bringup.llvm.steps.qr_iteration import BATCH, Rotation, Spectra, double
from bringup.llvm.text import Module, Val, i64_const
from bringup.program.program import OpStep

_ZERO, _ONE = i64_const(0), i64_const(1)


class Vectors:
    """Reflections that make the vectors, and rotations that wait to be applied to them.

    rows: elements of a vector.  count: reflections.  size: vectors.  skipped: elements that no
    reflection changes.  v: the reflections as columns.  q: the vectors as rows, once formed.
    """

    def __init__(self, rows: int, count: int, size: int, skipped: int) -> None:
        self.rows, self.count, self.size, self.skipped = rows, count, size, skipped

    def sizes(self, at: Spectra) -> list[int]:
        """Elements of each piece of memory."""
        self.wide = max(at.dense.padded(self.size), BLOCK)
        self.kept = at.dense.padded(max(self.count, 1))
        self.by = at.width(self.rows)
        q = max(self.rows * self.kept, self.size * self.by)
        flat = self.rows * self.wide
        rotations = BATCH * 2 * self.rows
        return [q, flat, BLOCK * self.wide, BLOCK * self.wide, BLOCK**2, self.count, rotations]

    def take(self, at: Spectra, memory: Sequence[Val]) -> None:
        """The memory asked for, which the vectors share with the reflections."""
        q, flat, before, after, t, scales, self.rotations = memory
        wide = i64_const(self.wide)
        self.v, self.q, self.flat = (q, i64_const(self.kept)), (q, i64_const(self.by)), (flat, wide)
        self.t = (t, i64_const(BLOCK))
        self.room = Room((before, wide), (after, wide), scales)
        at.clear(self.v, i64_const(self.rows), i64_const(self.count))

    def put(self, at: Spectra, x: Val, k: Val) -> None:
        """Keep reflection k, a vector that begins with zeros."""
        with at.b.loop(at.b.add(k, i64_const(self.skipped)), i64_const(self.rows)) as loop:
            row = at.b.sub(loop.index, i64_const(self.skipped))
            at.put(self.v, row, k, at.load_element(x, loop.index))

    def scale(self, at: Spectra, k: Val) -> Val:
        """Where the factor of reflection k is."""
        return at.element_address(self.room.scales, k)

    def form(self, at: Spectra) -> None:
        """Multiply the reflections, from the last one on."""
        b, blocks = at.b, -(-self.count // BLOCK)
        unit_matrix(at, self.flat, self.rows, self.size)
        with b.loop(_ZERO, i64_const(blocks)) as loop:
            first = b.mul(b.sub(i64_const(blocks - 1), loop.index), i64_const(BLOCK))
            end = b.lesser(b.add(first, i64_const(BLOCK)), i64_const(self.count))
            block = Block(self.rows - self.skipped, first, end, self.v, self.t)
            make_triangle(at, block, self.room)
            corner = b.add(first, i64_const(self.skipped))
            part, rest = at.part(self.flat, corner, corner), b.sub(i64_const(self.size), corner)
            apply_block(at, block, part, rest, self.room, turned=False)
        zero = at.real(0.0)
        with b.loop(_ZERO, i64_const(self.size)) as outer:
            i = outer.index
            with b.loop(_ZERO, i64_const(self.rows)) as inner:
                at.put(self.q, i, inner.index, at.get(self.flat, inner.index, i))
            with b.loop(i64_const(self.rows), i64_const(self.by)) as inner:
                at.put(self.q, i, inner.index, zero)

    def record(self, at: Spectra, place: Val, k: Val, by: Rotation) -> None:
        """Keep the rotation of rows k and k + 1 in a step."""
        b = at.b
        start = b.add(b.mul(place, i64_const(2 * self.rows)), b.mul(k, i64_const(2)))
        for n, x in enumerate((by.sine, by.half)):
            value = x if at.type is ir.f64 else b.fptrunc(x, ir.f32)
            at.store_element(value, self.rotations, b.add(start, i64_const(n)))

    def rotate(self, at: Spectra, ranges: Val, count: Val) -> None:
        """Apply the rotations of so many steps."""
        at.rotate(self.q, self.by, self.rotations, ranges, count, 2 * self.rows)


def emit_eigh(module: Module, step: OpStep, name: str, target: LoopTarget) -> NativeStep:
    """Emit a step of the row ``eigh``."""
    at = Spectra(module, step, name, target)
    n, wanted = step.operands[0].type.shape[-1], step.attrs["vectors"]
    made = [Vectors(n, n - 1, n, 1)] if wanted else []
    by, line = at.width(n), at.whole(n) + at.lanes
    sizes = [n * by, *[line] * 7, *[at.wide(n + 2)] * 3, at.wide(2 * BATCH)]
    memory = at.scratch(*sizes, *(size for each in made for size in each.sizes(at)))
    a, lines = (memory[0], i64_const(by)), memory[1:8]
    wide, ranges, rest = memory[8:11], memory[11], memory[12:]
    d, e, ranks = wide[0], at.element_address(wide[1], _ONE, ir.f64), wide[2]
    with at.each():
        b = at.b
        for each in made:
            each.take(at, rest)
        at.copy_in(at.operand(0), (n, 1), a, n, n)
        with b.loop(_ZERO, i64_const(n)) as outer, b.loop(_ZERO, outer.index) as inner:
            at.put(a, inner.index, outer.index, at.get(a, outer.index, inner.index))
        scale = at.scaled(a, n, n)
        _tridiagonal(at, a, lines, made, n)
        for each in made:
            each.form(at)
        floor = at.diagonals(n, lines[0], lines[1], d, e)

        def apply(count: Val) -> None:
            made[0].rotate(at, ranges, count)

        def qr_step(first: Val, last: Val, place: Val) -> None:
            _symmetric_step(at, (d, e), (first, last), made, place)

        done = at.iterate(n, (d, e, floor), qr_step, ranges if made else None, apply)
        good = b.and_(done, b.fcmp("ord", scale, scale))
        scale = b.select(good, scale, at.real(math.nan))
        at.ranks(n, d, ranks, "olt")
        at.values_out(n, d, ranks, scale, at.result(0, rank=1))
        factor = b.select(good, at.real(1.0), at.real(math.nan))
        for each in made:
            at.vectors_out(each.q, (n, n), ranks, at.result(1), (1, n), lambda _: factor)
    return at.done((9 if made else 2) * n**3)


def _tridiagonal(at: Spectra, a: Rows, lines: Sequence[Val], made: list[Vectors], n: int) -> None:
    """The diagonals, to the first two lines, of a matrix that is destroyed."""
    b, end = at.b, i64_const(at.whole(n))
    d, e, v, w, x, q, spare = lines
    for line in (e, v, w):
        at.fill(line, at.whole(n))

    def row(k: Val) -> None:
        start = at.address(a, k, _ZERO)
        one, other = (at.spread(b.fneg(at.load_element(line, k))) for line in (v, w))

        def body(j: Val) -> None:
            part = b.fma(one, at.load_chunk(w, j), at.load_chunk(start, j))
            at.store_chunk(b.fma(other, at.load_chunk(v, j), part), x, j)

        at.across(at.down(k), end, body)
        at.store_element(at.load_element(x, k), d, k)

    with b.loop(_ZERO, i64_const(n - 1)) as loop:
        k, after = loop.index, b.add(loop.index, _ONE)
        first = at.down(after)
        row(k)
        at.clear_before(x, after)
        scale = made[0].scale(at, k) if made else spare
        at.reflect(x, after, at.whole(n), at.element_address(e, k), scale)
        for each in made:
            each.put(at, x, k)
        at.across(first, end, lambda j: at.store_chunk(ir.zero(at.vector), q, j))
        at.pass_over(a, (after, i64_const(n)), (first, at.whole(n)), (v, w, w, v, x, q))
        at.clear_before(q, after)
        factor = b.load(at.type, scale, at.dense.bytes)
        product = b.fmul(at.dot(q, x, first, at.whole(n)), b.fmul(factor, factor))
        half = at.spread(b.fmul(product, at.real(-0.5)))

        def body(j: Val) -> None:
            own = at.load_chunk(x, j)
            along = b.fmul(at.spread(factor), at.load_chunk(q, j))
            at.store_chunk(b.fma(half, own, along), w, j)
            at.store_chunk(own, v, j)

        at.across(first, end, body)
    row(i64_const(n - 1))


def _symmetric_step(
    at: Spectra, diagonals: tuple[Val, Val], rows: tuple[Val, Val], made: list[Vectors], place: Val
) -> None:
    """An implicit QR step on rows first … last, with Wilkinson's shift."""
    b, (d, e), (first, last) = at.b, diagonals, rows

    def get(base: Val, i: Val) -> Val:
        return at.load_element(base, i, ir.f64)

    before = b.sub(last, _ONE)
    low, beside = get(d, last), get(e, before)
    half = b.fdiv(b.fsub(get(d, before), low), b.fmul(beside, double(2.0)))
    root = b.intrinsic("llvm.sqrt", ir.f64, (b.fma(half, half, double(1.0)),))
    signed = b.select(b.fcmp("olt", half, double(0.0)), b.fneg(root), root)
    g = b.fadd(b.fsub(get(d, first), low), b.fdiv(beside, b.fadd(half, signed)))
    kept = get(e, b.sub(first, _ONE))
    start = [g, get(e, first), get(e, first), double(0.0)]
    with b.loop(first, last, carried=start) as loop:
        i, (g, f, beside, taken) = loop.index, loop.carried
        after = b.add(i, _ONE)
        by = at.rotation(g, f)
        for each in made:
            each.record(at, place, i, by)
        at.store_element(by.r, e, b.sub(i, _ONE))
        own, coming = b.fsub(get(d, i), taken), get(e, after)
        r = b.fmul(b.fsub(get(d, after), own), by.sine)
        r = b.fma(double(2.0), by.shorter(beside), r)
        moved = b.fmul(by.sine, r)
        at.store_element(b.fadd(own, moved), d, i)
        head = b.fsub(by.shorter(r), beside)
        loop.next(head, b.fmul(by.sine, coming), by.shorter(coming), moved)
    # What the first rotation put before its rows was no element of them.
    at.store_element(kept, e, b.sub(first, _ONE))
    at.store_element(loop.carried[0], e, before)
    at.store_element(b.fsub(get(d, last), loop.carried[3]), d, last)


def emit_svd(module: Module, step: OpStep, name: str, target: LoopTarget) -> NativeStep:
    """Emit a step of the row ``svd``; a wide matrix is transposed."""
    at = Spectra(module, step, name, target)
    shape, attrs = step.operands[0].type.shape[-2:], step.attrs
    m, n, wanted = max(shape), min(shape), attrs["vectors"]
    wide = shape[0] < shape[1]
    size = m if attrs["complete"] else n
    made = [Vectors(m, n, size, 0), Vectors(n, max(n - 1, 0), n, 1)] if wanted else []
    by, tall, line = at.width(n), at.whole(m) + at.lanes, at.whole(n) + at.lanes
    sizes = [m * by, *[tall] * 4, *[line] * 6, *[at.wide(n + 2)] * 4, at.wide(2 * BATCH)]
    memory = at.scratch(*sizes, *(each for one in made for each in one.sizes(at)))
    a, columns, lines = (memory[0], i64_const(by)), memory[1:5], memory[5:11]
    wides, ranges, rest = memory[11:15], memory[15], memory[16:]
    d, e, ranks, values = wides[0], at.element_address(wides[1], _ONE, ir.f64), wides[2], wides[3]
    with at.each():
        b = at.b
        for number_, each in enumerate(made):
            each.take(at, rest[7 * number_ : 7 * number_ + 7])
        at.copy_in(at.operand(0), (1, shape[1]) if wide else (shape[1], 1), a, m, n)
        scale = at.scaled(a, m, n)
        _bidiagonal(at, a, (columns, lines), made, (m, n))
        for each in made:
            each.form(at)
        floor = at.diagonals(n, lines[0], lines[1], d, e)

        def apply(count: Val) -> None:
            for each in made:
                each.rotate(at, ranges, count)

        def qr_step(first: Val, last: Val, place: Val) -> None:
            _bidiagonal_step(at, (d, e, floor), (first, last), made, place)

        done = at.iterate(n, (d, e, floor), qr_step, ranges if made else None, apply)
        good = b.and_(done, b.fcmp("ord", scale, scale))
        with b.loop(_ZERO, i64_const(n)) as loop:
            at.store_element(b.fabs(at.load_element(d, loop.index, ir.f64)), values, loop.index)
        at.ranks(n, values, ranks, "ogt")
        scale = b.select(good, scale, at.real(math.nan))
        at.values_out(n, values, ranks, scale, at.result(1 if made else 0, rank=1))
        if made:
            _factors_out(at, made, (d, ranks, good), wide)
    return at.done((20 if made else 4) * m * n * n)


def _factors_out(at: Spectra, made: list[Vectors], order: tuple[Val, Val, Val], wide: bool) -> None:
    """Store U and Vᵀ, one of them with the signs of the values; what has no value comes last."""
    b, (d, ranks, good), (left, right) = at.b, order, made
    factor = b.select(good, at.real(1.0), at.real(math.nan))
    n = right.rows

    def sign(i: Val) -> Val:
        below = b.fcmp("olt", at.load_element(d, i, ir.f64), double(0.0))
        return b.select(below, b.fneg(factor), factor)

    targets = (at.result(2), at.result(0)) if wide else (at.result(0), at.result(2))
    strides = [(1, each.size) if (each is right) == wide else (each.rows, 1) for each in made]
    at.vectors_out(right.q, (n, n), ranks, targets[1], strides[1], sign)
    at.vectors_out(left.q, (n, left.rows), ranks, targets[0], strides[0], lambda _: factor)
    start = b.gep(targets[0], n * strides[0][0], at.memory)
    extra = at.part(left.q, i64_const(n), _ZERO)
    sizes = (left.size - n, left.rows)
    at.vectors_out(extra, sizes, None, start, strides[0], lambda _: factor)


def _bidiagonal(
    at: Spectra,
    a: Rows,
    memory: tuple[Sequence[Val], Sequence[Val]],
    made: list[Vectors],
    sizes: tuple[int, int],
) -> None:
    """The diagonals, to the first two lines, of a matrix that is destroyed."""
    b, (m, n), zero = at.b, sizes, ir.zero(at.vector)
    (u, x, column, spare), (d, e, y, v, along, q) = memory
    end = at.whole(n)
    for line, count in ((u, m), (x, m), (column, m), (y, n), (v, n), (e, n)):
        at.fill(line, at.whole(count))
    with b.loop(_ZERO, i64_const(n)) as loop:
        k, after = loop.index, b.add(loop.index, _ONE)
        first = at.down(after)
        one, other = (b.fneg(at.load_element(line, k)) for line in (y, v))
        with b.loop(k, i64_const(m)) as down:
            i = down.index
            part = b.fma(at.load_element(u, i), one, at.get(a, i, k))
            at.store_element(b.fma(at.load_element(x, i), other, part), column, i)
        at.clear_before(column, k)
        scales = [each.scale(at, k) for each in made] or [spare, spare]
        at.reflect(column, k, at.whole(m), at.element_address(d, k), scales[0])
        for each in made[:1]:
            each.put(at, column, k)
        at.across(first, i64_const(end), lambda j: at.store_chunk(zero, q, j))
        at.pass_over(a, (k, i64_const(m)), (first, end), (u, y, x, v, column, q))
        by = at.spread(b.load(at.type, scales[0], at.dense.bytes))
        own = at.address(a, k, _ZERO)

        def body(j: Val) -> None:
            part = b.fmul(by, at.load_chunk(q, j))
            at.store_chunk(part, y, j)
            at.store_chunk(b.fsub(at.load_chunk(own, j), part), along, j)

        at.across(first, i64_const(end), body)
        at.clear_before(y, after)
        with b.if_then(b.icmp("slt", after, i64_const(n))):
            at.clear_before(along, after)
            at.reflect(along, after, end, at.element_address(e, k), scales[1])
            for each in made[1:]:
                each.put(at, along, k)
            at.dots(a, (after, i64_const(m)), (first, end), along, x)
            product = at.dot(y, along, first, end)
            factor = b.load(at.type, scales[1], at.dense.bytes)
            with b.loop(after, i64_const(m)) as down:
                i = down.index
                part = b.fmul(at.load_element(column, i), product)
                at.store_element(b.fmul(factor, b.fsub(at.load_element(x, i), part)), x, i)
            at.across(
                first, i64_const(end), lambda j: at.store_chunk(at.load_chunk(along, j), v, j)
            )
        at.across(
            _ZERO, i64_const(at.whole(m)), lambda j: at.store_chunk(at.load_chunk(column, j), u, j)
        )


def _bidiagonal_step(
    at: Spectra,
    diagonals: tuple[Val, Val, Val],
    rows: tuple[Val, Val],
    made: list[Vectors],
    place: Val,
) -> None:
    """An implicit QR step of B Bᵀ on rows first … last of upper bidiagonal B.

    The shift is the smaller singular value of the last two rows; none where a value is nothing, so
    that it goes to the end.
    """
    b, (d, e, floor), (first, last) = at.b, diagonals, rows

    def get(base: Val, i: Val) -> Val:
        return at.load_element(base, i, ir.f64)

    def root(x: Val, y: Val) -> Val:
        return b.intrinsic("llvm.sqrt", ir.f64, (b.fma(x, x, b.fmul(y, y)),))

    before = b.sub(last, _ONE)
    with b.loop(first, b.add(last, _ONE), carried=[double(math.inf)]) as loop:
        size = b.fabs(get(d, loop.index))
        least = loop.carried[0]
        loop.next(b.select(b.fcmp("olt", size, least), size, least))
    one, other = b.fabs(get(d, before)), b.fabs(get(d, last))
    beside = get(e, before)
    largest = b.fadd(root(b.fadd(one, other), beside), root(b.fsub(one, other), beside))
    shift = b.fdiv(b.fmul(b.fmul(one, other), double(2.0)), largest)
    head = get(d, first)
    size = b.fabs(head)
    shifted = b.fmul(b.fsub(size, shift), b.fadd(double(1.0), b.fdiv(shift, size)))
    shifted = b.select(b.fcmp("olt", head, double(0.0)), b.fneg(shifted), shifted)
    f = b.select(b.fcmp("ogt", loop.carried[0], floor), shifted, head)
    kept = get(e, b.sub(first, _ONE))
    with b.loop(first, last, carried=[f, get(e, first)]) as loop:
        i, (f, g) = loop.index, loop.carried
        after = b.add(i, _ONE)
        right = at.rotation(f, g)
        at.store_element(right.r, e, b.sub(i, _ONE))
        f, beside = right.pair(get(d, i), get(e, i))
        low = get(d, after)
        left = at.rotation(f, b.fmul(right.sine, low))
        at.store_element(left.r, d, i)
        f, low = left.pair(beside, right.shorter(low))
        at.store_element(low, d, after)
        beside = get(e, after)
        at.store_element(left.shorter(beside), e, after)
        for each, by in zip(made, (left, right), strict=bool(made)):
            each.record(at, place, i, by)
        loop.next(f, b.fmul(left.sine, beside))
    at.store_element(kept, e, b.sub(first, _ONE))
    at.store_element(loop.carried[0], e, before)

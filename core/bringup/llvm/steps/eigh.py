"""Eigenvalues and singular values as native code: reflections to two diagonals, then QR steps.

Householder reflections make a symmetric matrix tridiagonal, and any other matrix upper bidiagonal.
One function serves both: in one pass over the rest of the matrix, it applies the update of the
step before and forms the product that the next step needs.  Implicit QR steps then make the second
diagonal vanish.  Their scalars are f64.  Their rotations are collected and applied to the vectors
in batches of many steps, a few columns at a time, so that these columns stay in the nearest cache.

(G. Golub and C. Van Loan, Matrix Computations, sections 8.3 and 8.6; the steps are those of
steqr and bdsqr in LAPACK.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bringup.integers import ceil_div
from bringup.llvm import text as ir
from bringup.llvm.steps.base import NativeStep
from bringup.llvm.steps.matrices import BLOCK, Rows
from bringup.llvm.steps.qr import Block, Workspace, apply_block, make_triangle, unit_matrix
from bringup.llvm.steps.qr_iteration import BATCH, QrIteration, Rotation, double
from bringup.llvm.text import Module, Val, i64_const
from bringup.loops.target import Target
from bringup.program.program import OpStep

_ZERO, _ONE = i64_const(0), i64_const(1)


class VectorEmitter:
    """Emits the vectors: products of reflections, to which batches of rotations are applied.

    rows: elements of a vector.  count: of reflections.  size: number of vectors.
    skipped: leading elements that no reflection changes.
    v: the reflections as columns.  q: the vectors as rows, after `form`.
    """

    def __init__(self, rows: int, count: int, size: int, skipped: int) -> None:
        self.rows, self.count, self.size, self.skipped = rows, count, size, skipped

    def sizes(self, em: QrIteration) -> list[int]:
        """Elements of each area of scratch memory."""
        self.wide = max(em.dense.padded(self.size), BLOCK)
        self.stride = em.dense.padded(max(self.count, 1))
        self.by = em.width(self.rows)
        q = max(self.rows * self.stride, self.size * self.by)
        flat = self.rows * self.wide
        rotations = BATCH * 2 * self.rows
        return [q, flat, BLOCK * self.wide, BLOCK * self.wide, BLOCK**2, self.count, rotations]

    def take(self, em: QrIteration, memory: Sequence[Val]) -> None:
        """Take the areas of `sizes`; the vectors share theirs with the reflections."""
        q, flat, before, after, t, scales, self.rotations = memory
        wide = i64_const(self.wide)
        self.v, self.q, self.flat = (
            (q, i64_const(self.stride)),
            (q, i64_const(self.by)),
            (flat, wide),
        )
        self.t = (t, i64_const(BLOCK))
        self.workspace = Workspace((before, wide), (after, wide), scales)
        em.clear(self.v, i64_const(self.rows), i64_const(self.count))

    def put(self, em: QrIteration, x: Val, k: Val) -> None:
        """Store reflection ``k``, a vector that begins with zeros."""
        with em.b.loop(em.b.add(k, i64_const(self.skipped)), i64_const(self.rows)) as loop:
            row = em.b.sub(loop.index, i64_const(self.skipped))
            em.put(self.v, row, k, em.load_element(x, loop.index))

    def scale(self, em: QrIteration, k: Val) -> Val:
        """The address of the factor of reflection ``k``."""
        return em.element_address(self.workspace.scales, k)

    def form(self, em: QrIteration) -> None:
        """Multiply the reflections, from the last one to the first."""
        b, blocks = em.b, ceil_div(self.count, BLOCK)
        unit_matrix(em, self.flat, self.rows, self.size)
        with b.loop(_ZERO, i64_const(blocks)) as loop:
            first = b.mul(b.sub(i64_const(blocks - 1), loop.index), i64_const(BLOCK))
            end = b.lesser(b.add(first, i64_const(BLOCK)), i64_const(self.count))
            block = Block(self.rows - self.skipped, first, end, self.v, self.t)
            make_triangle(em, block, self.workspace)
            corner = b.add(first, i64_const(self.skipped))
            part, rest = em.part(self.flat, corner, corner), b.sub(i64_const(self.size), corner)
            apply_block(em, block, part, rest, self.workspace, transpose=False)
        zero = em.real(0.0)
        with b.loop(_ZERO, i64_const(self.size)) as outer:
            i = outer.index
            with b.loop(_ZERO, i64_const(self.rows)) as inner:
                em.put(self.q, i, inner.index, em.get(self.flat, inner.index, i))
            with b.loop(i64_const(self.rows), i64_const(self.by)) as inner:
                em.put(self.q, i, inner.index, zero)

    def record(self, em: QrIteration, step: Val, k: Val, by: Rotation) -> None:
        """Store the rotation of rows ``k`` and ``k + 1`` of a step of the batch."""
        b = em.b
        start = b.add(b.mul(step, i64_const(2 * self.rows)), b.mul(k, i64_const(2)))
        for n, x in enumerate((by.sine, by.half)):
            value = x if em.type is ir.f64 else b.fptrunc(x, ir.f32)
            em.store_element(value, self.rotations, b.add(start, i64_const(n)))

    def rotate(self, em: QrIteration, ranges: Val, count: Val) -> None:
        """Apply the rotations of ``count`` steps."""
        em.rotate(self.q, self.by, self.rotations, ranges, count, 2 * self.rows)


def emit_eigh(module: Module, step: OpStep, name: str, target: Target) -> NativeStep:
    """Emit a step of the row ``eigh``."""
    em = QrIteration(module, step, name, target)
    n, wanted = step.operands[0].type.shape[-1], step.attrs["vectors"]
    vectors = [VectorEmitter(n, n - 1, n, 1)] if wanted else []
    by, line = em.width(n), em.whole(n) + em.lanes
    sizes = [n * by, *[line] * 7, *[em.wide(n + 2)] * 3, em.wide(2 * BATCH)]
    memory = em.scratch(*sizes, *(size for each in vectors for size in each.sizes(em)))
    a, lines = (memory[0], i64_const(by)), memory[1:8]
    wide, ranges, rest = memory[8:11], memory[11], memory[12:]
    d, e, ranks = wide[0], em.element_address(wide[1], _ONE, ir.f64), wide[2]
    with em.each():
        b = em.b
        for each in vectors:
            each.take(em, rest)
        em.copy_in(em.operand(0), (n, 1), a, n, n)
        with b.loop(_ZERO, i64_const(n)) as outer, b.loop(_ZERO, outer.index) as inner:
            em.put(a, inner.index, outer.index, em.get(a, outer.index, inner.index))
        scale = em.scaled(a, n, n)
        _tridiagonal(em, a, lines, vectors, n)
        for each in vectors:
            each.form(em)
        floor = em.diagonals(n, lines[0], lines[1], d, e)

        def apply(count: Val) -> None:
            vectors[0].rotate(em, ranges, count)

        def qr_step(first: Val, last: Val, place: Val) -> None:
            _symmetric_step(em, (d, e), (first, last), vectors, place)

        done = em.iterate(n, (d, e, floor), qr_step, ranges if vectors else None, apply)
        good = b.and_(done, b.fcmp("ord", scale, scale))
        scale = b.select(good, scale, em.real(math.nan))
        em.ranks(n, d, ranks, "olt")
        em.values_out(n, d, ranks, scale, em.result(0, rank=1))
        factor = b.select(good, em.real(1.0), em.real(math.nan))
        for each in vectors:
            em.vectors_out(each.q, (n, n), ranks, em.result(1), (1, n), lambda _: factor)
    return em.done((9 if vectors else 2) * n**3)


def _tridiagonal(
    em: QrIteration, a: Rows, lines: Sequence[Val], vectors: list[VectorEmitter], n: int
) -> None:
    """Write the diagonals to the first two lines; the matrix is overwritten."""
    b, end = em.b, i64_const(em.whole(n))
    d, e, v, w, x, q, spare = lines
    for line in (e, v, w):
        em.fill(line, em.whole(n))

    def row(k: Val) -> None:
        start = em.address(a, k, _ZERO)
        one, other = (em.spread(b.fneg(em.load_element(line, k))) for line in (v, w))

        def body(j: Val) -> None:
            part = b.fma(one, em.load_chunk(w, j), em.load_chunk(start, j))
            em.store_chunk(b.fma(other, em.load_chunk(v, j), part), x, j)

        em.across(em.down(k), end, body)
        em.store_element(em.load_element(x, k), d, k)

    with b.loop(_ZERO, i64_const(n - 1)) as loop:
        k, after = loop.index, b.add(loop.index, _ONE)
        first = em.down(after)
        row(k)
        em.clear_before(x, after)
        scale = vectors[0].scale(em, k) if vectors else spare
        em.reflect(x, after, em.whole(n), em.element_address(e, k), scale)
        for each in vectors:
            each.put(em, x, k)
        em.across(first, end, lambda j: em.store_chunk(ir.zero(em.vector), q, j))
        em.pass_over(a, (after, i64_const(n)), (first, em.whole(n)), (v, w, w, v, x, q))
        em.clear_before(q, after)
        factor = b.load(em.type, scale, em.dense.bytes)
        product = b.fmul(em.dot(q, x, first, em.whole(n)), b.fmul(factor, factor))
        half = em.spread(b.fmul(product, em.real(-0.5)))

        def body(j: Val) -> None:
            chunk = em.load_chunk(x, j)
            along = b.fmul(em.spread(factor), em.load_chunk(q, j))
            em.store_chunk(b.fma(half, chunk, along), w, j)
            em.store_chunk(chunk, v, j)

        em.across(first, end, body)
    row(i64_const(n - 1))


def _symmetric_step(
    em: QrIteration,
    diagonals: tuple[Val, Val],
    rows: tuple[Val, Val],
    vectors: list[VectorEmitter],
    place: Val,
) -> None:
    """An implicit QR step on rows first … last, with Wilkinson's shift."""
    b, (d, e), (first, last) = em.b, diagonals, rows

    def get(base: Val, i: Val) -> Val:
        return em.load_element(base, i, ir.f64)

    before = b.sub(last, _ONE)
    low, off = get(d, last), get(e, before)
    half = b.fdiv(b.fsub(get(d, before), low), b.fmul(off, double(2.0)))
    root = b.intrinsic("llvm.sqrt", ir.f64, (b.fma(half, half, double(1.0)),))
    signed = b.select(b.fcmp("olt", half, double(0.0)), b.fneg(root), root)
    g = b.fadd(b.fsub(get(d, first), low), b.fdiv(off, b.fadd(half, signed)))
    saved = get(e, b.sub(first, _ONE))
    start = [g, get(e, first), get(e, first), double(0.0)]
    with b.loop(first, last, carried=start) as loop:
        i, (g, f, off, taken) = loop.index, loop.carried
        after = b.add(i, _ONE)
        by = em.rotation(g, f)
        for each in vectors:
            each.record(em, place, i, by)
        em.store_element(by.r, e, b.sub(i, _ONE))
        diagonal, following = b.fsub(get(d, i), taken), get(e, after)
        r = b.fmul(b.fsub(get(d, after), diagonal), by.sine)
        r = b.fma(double(2.0), by.times_cosine(off), r)
        moved = b.fmul(by.sine, r)
        em.store_element(b.fadd(diagonal, moved), d, i)
        head = b.fsub(by.times_cosine(r), off)
        loop.next(head, b.fmul(by.sine, following), by.times_cosine(following), moved)
    # The first rotation stored an element before its rows, which is restored here.
    em.store_element(saved, e, b.sub(first, _ONE))
    em.store_element(loop.carried[0], e, before)
    em.store_element(b.fsub(get(d, last), loop.carried[3]), d, last)


def emit_svd(module: Module, step: OpStep, name: str, target: Target) -> NativeStep:
    """Emit a step of the row ``svd``; a wide matrix is read transposed."""
    em = QrIteration(module, step, name, target)
    shape, attrs = step.operands[0].type.shape[-2:], step.attrs
    m, n, wanted = max(shape), min(shape), attrs["vectors"]
    wide = shape[0] < shape[1]
    size = m if attrs["complete"] else n
    vectors = (
        [VectorEmitter(m, n, size, 0), VectorEmitter(n, max(n - 1, 0), n, 1)] if wanted else []
    )
    by, tall, line = em.width(n), em.whole(m) + em.lanes, em.whole(n) + em.lanes
    sizes = [m * by, *[tall] * 4, *[line] * 6, *[em.wide(n + 2)] * 4, em.wide(2 * BATCH)]
    memory = em.scratch(*sizes, *(each for one in vectors for each in one.sizes(em)))
    a, columns, lines = (memory[0], i64_const(by)), memory[1:5], memory[5:11]
    wides, ranges, rest = memory[11:15], memory[15], memory[16:]
    d, e, ranks, values = wides[0], em.element_address(wides[1], _ONE, ir.f64), wides[2], wides[3]
    with em.each():
        b = em.b
        for number, each in enumerate(vectors):
            each.take(em, rest[7 * number : 7 * number + 7])
        em.copy_in(em.operand(0), (1, shape[1]) if wide else (shape[1], 1), a, m, n)
        scale = em.scaled(a, m, n)
        _bidiagonal(em, a, (columns, lines), vectors, (m, n))
        for each in vectors:
            each.form(em)
        floor = em.diagonals(n, lines[0], lines[1], d, e)

        def apply(count: Val) -> None:
            for each in vectors:
                each.rotate(em, ranges, count)

        def qr_step(first: Val, last: Val, place: Val) -> None:
            _bidiagonal_step(em, (d, e, floor), (first, last), vectors, place)

        done = em.iterate(n, (d, e, floor), qr_step, ranges if vectors else None, apply)
        good = b.and_(done, b.fcmp("ord", scale, scale))
        with b.loop(_ZERO, i64_const(n)) as loop:
            em.store_element(b.fabs(em.load_element(d, loop.index, ir.f64)), values, loop.index)
        em.ranks(n, values, ranks, "ogt")
        scale = b.select(good, scale, em.real(math.nan))
        em.values_out(n, values, ranks, scale, em.result(1 if vectors else 0, rank=1))
        if vectors:
            _factors_out(em, vectors, (d, ranks, good), wide)
    return em.done((20 if vectors else 4) * m * n * n)


def _factors_out(
    em: QrIteration, vectors: list[VectorEmitter], order: tuple[Val, Val, Val], wide: bool
) -> None:
    """Store U and Vᵀ, one of them times the signs of the values.

    Vectors without a value come last.
    """
    b, (d, ranks, good), (left, right) = em.b, order, vectors
    factor = b.select(good, em.real(1.0), em.real(math.nan))
    n = right.rows

    def sign(i: Val) -> Val:
        below = b.fcmp("olt", em.load_element(d, i, ir.f64), double(0.0))
        return b.select(below, b.fneg(factor), factor)

    targets = (em.result(2), em.result(0)) if wide else (em.result(0), em.result(2))
    strides = [(1, each.size) if (each is right) == wide else (each.rows, 1) for each in vectors]
    em.vectors_out(right.q, (n, n), ranks, targets[1], strides[1], sign)
    em.vectors_out(left.q, (n, left.rows), ranks, targets[0], strides[0], lambda _: factor)
    start = b.gep(targets[0], n * strides[0][0], em.memory)
    extra = em.part(left.q, i64_const(n), _ZERO)
    sizes = (left.size - n, left.rows)
    em.vectors_out(extra, sizes, None, start, strides[0], lambda _: factor)


def _bidiagonal(
    em: QrIteration,
    a: Rows,
    memory: tuple[Sequence[Val], Sequence[Val]],
    vectors: list[VectorEmitter],
    sizes: tuple[int, int],
) -> None:
    """Write the diagonals to the first two lines; the matrix is overwritten."""
    b, (m, n), zero = em.b, sizes, ir.zero(em.vector)
    (u, x, column, spare), (d, e, y, v, along, q) = memory
    end = em.whole(n)
    for line, count in ((u, m), (x, m), (column, m), (y, n), (v, n), (e, n)):
        em.fill(line, em.whole(count))
    with b.loop(_ZERO, i64_const(n)) as loop:
        k, after = loop.index, b.add(loop.index, _ONE)
        first = em.down(after)
        one, other = (b.fneg(em.load_element(line, k)) for line in (y, v))
        with b.loop(k, i64_const(m)) as down:
            i = down.index
            part = b.fma(em.load_element(u, i), one, em.get(a, i, k))
            em.store_element(b.fma(em.load_element(x, i), other, part), column, i)
        em.clear_before(column, k)
        scales = [each.scale(em, k) for each in vectors] or [spare, spare]
        em.reflect(column, k, em.whole(m), em.element_address(d, k), scales[0])
        for each in vectors[:1]:
            each.put(em, column, k)
        em.across(first, i64_const(end), lambda j: em.store_chunk(zero, q, j))
        em.pass_over(a, (k, i64_const(m)), (first, end), (u, y, x, v, column, q))
        by = em.spread(b.load(em.type, scales[0], em.dense.bytes))
        row = em.address(a, k, _ZERO)

        def body(j: Val) -> None:
            part = b.fmul(by, em.load_chunk(q, j))
            em.store_chunk(part, y, j)
            em.store_chunk(b.fsub(em.load_chunk(row, j), part), along, j)

        em.across(first, i64_const(end), body)
        em.clear_before(y, after)
        with b.if_then(b.icmp("slt", after, i64_const(n))):
            em.clear_before(along, after)
            em.reflect(along, after, end, em.element_address(e, k), scales[1])
            for each in vectors[1:]:
                each.put(em, along, k)
            em.dots(a, (after, i64_const(m)), (first, end), along, x)
            product = em.dot(y, along, first, end)
            factor = b.load(em.type, scales[1], em.dense.bytes)
            with b.loop(after, i64_const(m)) as down:
                i = down.index
                part = b.fmul(em.load_element(column, i), product)
                em.store_element(b.fmul(factor, b.fsub(em.load_element(x, i), part)), x, i)
            em.across(
                first, i64_const(end), lambda j: em.store_chunk(em.load_chunk(along, j), v, j)
            )
        em.across(
            _ZERO, i64_const(em.whole(m)), lambda j: em.store_chunk(em.load_chunk(column, j), u, j)
        )


def _bidiagonal_step(
    em: QrIteration,
    diagonals: tuple[Val, Val, Val],
    rows: tuple[Val, Val],
    vectors: list[VectorEmitter],
    place: Val,
) -> None:
    """An implicit QR step of B Bᵀ on rows first … last of upper bidiagonal B.

    The shift is the smaller singular value of the last two rows; none where a value is nothing, so
    that it goes to the end.
    """
    b, (d, e, floor), (first, last) = em.b, diagonals, rows

    def get(base: Val, i: Val) -> Val:
        return em.load_element(base, i, ir.f64)

    def root(x: Val, y: Val) -> Val:
        return b.intrinsic("llvm.sqrt", ir.f64, (b.fma(x, x, b.fmul(y, y)),))

    before = b.sub(last, _ONE)
    with b.loop(first, b.add(last, _ONE), carried=[double(math.inf)]) as loop:
        size = b.fabs(get(d, loop.index))
        least = loop.carried[0]
        loop.next(b.select(b.fcmp("olt", size, least), size, least))
    one, other = b.fabs(get(d, before)), b.fabs(get(d, last))
    off = get(e, before)
    largest = b.fadd(root(b.fadd(one, other), off), root(b.fsub(one, other), off))
    shift = b.fdiv(b.fmul(b.fmul(one, other), double(2.0)), largest)
    head = get(d, first)
    size = b.fabs(head)
    shifted = b.fmul(b.fsub(size, shift), b.fadd(double(1.0), b.fdiv(shift, size)))
    shifted = b.select(b.fcmp("olt", head, double(0.0)), b.fneg(shifted), shifted)
    f = b.select(b.fcmp("ogt", loop.carried[0], floor), shifted, head)
    saved = get(e, b.sub(first, _ONE))
    with b.loop(first, last, carried=[f, get(e, first)]) as loop:
        i, (f, g) = loop.index, loop.carried
        after = b.add(i, _ONE)
        right = em.rotation(f, g)
        em.store_element(right.r, e, b.sub(i, _ONE))
        f, off = right.pair(get(d, i), get(e, i))
        low = get(d, after)
        left = em.rotation(f, b.fmul(right.sine, low))
        em.store_element(left.r, d, i)
        f, low = left.pair(off, right.times_cosine(low))
        em.store_element(low, d, after)
        off = get(e, after)
        em.store_element(left.times_cosine(off), e, after)
        for each, by in zip(vectors, (left, right), strict=bool(vectors)):
            each.record(em, place, i, by)
        loop.next(f, b.fmul(left.sine, off))
    em.store_element(saved, e, b.sub(first, _ONE))
    em.store_element(loop.carried[0], e, before)

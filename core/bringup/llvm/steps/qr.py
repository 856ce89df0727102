"""QR factors as native code: Householder's reflections in blocks, products as I − V T Vᵀ.

(R. Schreiber and C. Van Loan, A storage-efficient WY representation for products of Householder
transformations, 1989.)
"""

from __future__ import annotations

from dataclasses import dataclass

from bringup.llvm.loops.schedule import LoopTarget
from bringup.llvm.steps.base import NativeStep
from bringup.llvm.steps.matrices import BLOCK, Matrices, Rows
from bringup.llvm.text import Module, Val, i64_const
from bringup.program.program import OpStep

_ZERO, _ONE = i64_const(0), i64_const(1)


@dataclass(frozen=True, slots=True)
class Block:
    """Reflections ``first`` … ``end`` − 1 of m rows.

    v: the vectors as columns of a matrix for all blocks.  t: T of this block, BLOCK wide.
    """

    m: int
    first: Val
    end: Val
    v: Rows
    t: Rows


@dataclass(frozen=True, slots=True)
class Room:
    """Scratch memory: products of a block with a matrix, before and after T; scales."""

    before: Rows
    after: Rows
    scales: Val


def emit_qr(module: Module, step: OpStep, name: str, target: LoopTarget) -> NativeStep:
    """Emit a step of the row ``qr``."""
    at = Matrices(module, step, name, target)
    m, n = step.operands[0].type.shape[-2:]
    size, k = step.results[0].type.shape[-1], min(m, n)
    ld, ldv, ldq = (at.dense.padded(width) for width in (n, k, size))
    wide, blocks = max(ld, ldq, BLOCK), -(-k // BLOCK)
    memory = at.scratch(
        m * ld, m * ldv, m * ldq, blocks * BLOCK * BLOCK, BLOCK * wide, BLOCK * wide, k
    )
    a, v, q = ((memory[i], i64_const(by)) for i, by in enumerate((ld, ldv, ldq)))
    room = Room((memory[4], i64_const(wide)), (memory[5], i64_const(wide)), memory[6])
    with at.each():
        b = at.b

        def block(first: Val) -> Block:
            end = b.lesser(b.add(first, i64_const(BLOCK)), i64_const(k))
            t = b.gep(memory[3], b.mul(first, i64_const(BLOCK)), at.type)
            return Block(m, first, end, v, (t, i64_const(BLOCK)))

        at.copy_in(at.operand(0), (n, 1), a, m, n)
        with b.loop(_ZERO, i64_const(k), BLOCK) as loop:
            _factor_block(at, a, block(loop.index), room, n)
        at.copy_out(a, at.result(1), (n, 1), size, n, lambda i, j, x: _upper(at, i, j, x))
        unit_matrix(at, q, m, size)
        with b.loop(_ZERO, i64_const(blocks)) as loop:
            number_ = b.sub(i64_const(blocks - 1), loop.index)
            found = block(b.mul(number_, i64_const(BLOCK)))
            # Left of the block its rows are still zeros.
            rest = b.sub(i64_const(size), found.first)
            apply_block(at, found, at.part(q, found.first, found.first), rest, room, turned=False)
        at.copy_out(q, at.result(0), (size, 1), m, size)
    return at.done(2 * m * n * k)


def _upper(at: Matrices, i: Val, j: Val, x: Val) -> Val:
    return at.b.select(at.b.icmp("sgt", i, j), at.real(0.0), x)


def unit_matrix(at: Matrices, a: Rows, m: int, n: int) -> None:
    """Ones on the diagonal, zeros elsewhere."""
    b = at.b

    def put(i: Val, j: Val) -> None:
        at.put(a, i, j, b.select(b.icmp("eq", i, j), at.real(1.0), at.real(0.0)))

    at.nested(i64_const(m), i64_const(n), put)


def _factor_block(at: Matrices, a: Rows, block: Block, room: Room, n: int) -> None:
    b = at.b
    with b.loop(block.first, block.end) as columns:
        _reflect(at, a, columns.index, block, room)
    make_triangle(at, block, room)
    rest = b.sub(i64_const(n), block.end)
    apply_block(at, block, at.part(a, block.first, block.end), rest, room, turned=True)


def _reflect(at: Matrices, a: Rows, j: Val, block: Block, room: Room) -> None:
    """One column: its vector and scale, and what they do to the other columns of the block."""
    b, m, v = at.b, i64_const(block.m), block.v
    after = b.add(j, _ONE)
    tail = _largest(at, a, j, after, m)
    head = at.get(a, j, j)
    large = b.select(b.fcmp("ogt", b.fabs(head), tail), b.fabs(head), tail)
    large = b.select(b.fcmp("ogt", large, at.real(0.0)), large, at.real(1.0))
    flat = b.fcmp("oeq", tail, at.real(0.0))
    scaled = b.fdiv(head, large)

    def square(i: Val, total: Val) -> Val:
        x = b.fdiv(at.get(a, i, j), large)
        return b.fadd(total, b.fmul(x, x))

    norm = at.sqrt(at.total(at.real(0.0), j, m, square))
    signed = b.select(b.fcmp("olt", scaled, at.real(0.0)), norm, b.fneg(norm))
    image = b.select(flat, scaled, signed)
    scale = b.select(flat, at.real(0.0), b.fdiv(b.fsub(image, scaled), image))
    over = b.select(flat, at.real(1.0), b.fsub(scaled, image))
    with b.loop(block.first, j) as above:
        at.put(v, above.index, j, at.real(0.0))
    with b.loop(after, m) as rows:
        at.put(v, rows.index, j, b.fdiv(b.fdiv(at.get(a, rows.index, j), large), over))
        at.put(a, rows.index, j, at.real(0.0))
    at.put(v, j, j, at.real(1.0))
    at.put(a, j, j, b.fmul(image, large))
    b.store(scale, b.gep(room.scales, j, at.type), at.dense.bytes)
    _reflect_rest(at, a, j, scale, block, room)


def _largest(at: Matrices, a: Rows, j: Val, first: Val, end: Val) -> Val:
    b = at.b

    def larger(i: Val, best: Val) -> Val:
        size = b.fabs(at.get(a, i, j))
        better = b.or_(b.fcmp("ogt", size, best), b.fcmp("uno", size, size))
        return b.select(better, size, best)

    return at.total(at.real(0.0), first, end, larger)


def _reflect_rest(at: Matrices, a: Rows, j: Val, scale: Val, block: Block, room: Room) -> None:
    b, after = at.b, at.b.add(j, _ONE)
    count, length = b.sub(block.end, after), b.sub(i64_const(block.m), j)
    row, rest = room.before, at.part(a, j, after)
    at.clear(row, _ONE, count)
    own = at.address(block.v, j, j)
    at.dense.update(b, row, (own, _ZERO, block.v[1]), rest, (_ONE, count, length))
    minus = b.fneg(scale)
    with b.loop(_ZERO, count) as columns:
        place = columns.index
        at.put(row, _ZERO, place, b.fmul(minus, at.get(row, _ZERO, place)))
    at.dense.update(b, rest, (own, block.v[1], _ONE), row, (length, count, _ONE))


def make_triangle(at: Matrices, block: Block, room: Room) -> None:
    """T: its diagonal the scales, column j above it −scale T (Vᵀ v)."""
    b, t, gram = at.b, block.t, room.before
    count, length = b.sub(block.end, block.first), b.sub(i64_const(block.m), block.first)
    own = at.part(block.v, block.first, block.first)
    at.clear(t, i64_const(BLOCK), i64_const(BLOCK))
    at.clear(gram, count, count)
    # This gives −Vᵀ V.
    at.dense.update(b, gram, (own[0], _ONE, own[1]), own, (count, count, length))
    with b.loop(_ZERO, count) as columns:
        j = columns.index
        place = b.gep(room.scales, b.add(block.first, j), at.type)
        scale = b.load(at.type, place, at.dense.bytes)
        with b.loop(_ZERO, j) as rows:
            i = rows.index

            def term(p: Val, total: Val, i: Val = i, j: Val = j) -> Val:
                return b.fadd(total, b.fmul(at.get(t, i, p), at.get(gram, p, j)))

            at.put(t, i, j, b.fmul(scale, at.total(at.real(0.0), i, j, term)))
        at.put(t, j, j, scale)


def apply_block(
    at: Matrices, block: Block, x: Rows, columns: Val, room: Room, *, turned: bool
) -> None:
    """X −= V T Vᵀ X, of T transposed if ``turned``; X begins at the block's first row."""
    b, t = at.b, block.t
    count, length = b.sub(block.end, block.first), b.sub(i64_const(block.m), block.first)
    v, ldv = at.part(block.v, block.first, block.first)
    at.clear(room.before, count, columns)
    at.clear(room.after, count, columns)
    at.dense.update(b, room.before, (v, _ONE, ldv), x, (count, columns, length))
    view = (t[0], _ONE, t[1]) if turned else (t[0], t[1], _ONE)
    at.dense.update(b, room.after, view, room.before, (count, columns, count))
    at.dense.update(b, x, (v, ldv, _ONE), room.after, (length, columns, count))

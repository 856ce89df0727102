"""QR factors as native code: blocks of Householder reflections, with products I − V T Vᵀ.

(R. Schreiber and C. Van Loan, A storage-efficient WY representation for products of Householder
transformations, 1989.)
"""

from __future__ import annotations

from bringup.integers import ceil_div
from bringup.llvm.steps.base import NativeStep
from bringup.llvm.steps.matrices import BLOCK, MatrixEmitter, Rows
from bringup.llvm.text import Module, Val, i64_const
from bringup.loops.target import Target
from bringup.program.program import OpStep
from bringup.records import record

_ZERO, _ONE = i64_const(0), i64_const(1)


@record
class Block:
    """Reflections ``first`` … ``end`` − 1, on vectors of ``m`` elements.

    v: the vectors of all blocks, as columns of a matrix.  t: T of this block, BLOCK wide.
    """

    m: int
    first: Val
    end: Val
    v: Rows
    t: Rows


@record
class Workspace:
    """Scratch memory for Vᵀ X, for T Vᵀ X, and for the scales of reflections."""

    before: Rows
    after: Rows
    scales: Val


def emit_qr(module: Module, step: OpStep, name: str, target: Target) -> NativeStep:
    """Emit a step of the row ``qr``."""
    em = MatrixEmitter(module, step, name, target)
    m, n = step.operands[0].type.shape[-2:]
    size, k = step.results[0].type.shape[-1], min(m, n)
    ld, ldv, ldq = (em.dense.padded(width) for width in (n, k, size))
    wide, blocks = max(ld, ldq, BLOCK), ceil_div(k, BLOCK)
    memory = em.scratch(
        m * ld, m * ldv, m * ldq, blocks * BLOCK * BLOCK, BLOCK * wide, BLOCK * wide, k
    )
    a, v, q = ((memory[i], i64_const(by)) for i, by in enumerate((ld, ldv, ldq)))
    workspace = Workspace((memory[4], i64_const(wide)), (memory[5], i64_const(wide)), memory[6])
    with em.each():
        b = em.b

        def block(first: Val) -> Block:
            end = b.lesser(b.add(first, i64_const(BLOCK)), i64_const(k))
            t = b.gep(memory[3], b.mul(first, i64_const(BLOCK)), em.type)
            return Block(m, first, end, v, (t, i64_const(BLOCK)))

        em.copy_in(em.operand(0), (n, 1), a, m, n)
        with b.loop(_ZERO, i64_const(k), BLOCK) as loop:
            _factor_block(em, a, block(loop.index), workspace, n)
        em.copy_out(a, em.result(1), (n, 1), size, n, lambda i, j, x: _upper(em, i, j, x))
        unit_matrix(em, q, m, size)
        with b.loop(_ZERO, i64_const(blocks)) as loop:
            number = b.sub(i64_const(blocks - 1), loop.index)
            current = block(b.mul(number, i64_const(BLOCK)))
            # To the left of the block, its rows are still zeros.
            rest = b.sub(i64_const(size), current.first)
            apply_block(
                em,
                current,
                em.part(q, current.first, current.first),
                rest,
                workspace,
                transpose=False,
            )
        em.copy_out(q, em.result(0), (size, 1), m, size)
    return em.done(2 * m * n * k)


def _upper(em: MatrixEmitter, i: Val, j: Val, x: Val) -> Val:
    return em.b.select(em.b.icmp("sgt", i, j), em.real(0.0), x)


def unit_matrix(em: MatrixEmitter, a: Rows, m: int, n: int) -> None:
    """Ones on the diagonal, zeros elsewhere."""
    b = em.b

    def put(i: Val, j: Val) -> None:
        em.put(a, i, j, b.select(b.icmp("eq", i, j), em.real(1.0), em.real(0.0)))

    em.each_element(i64_const(m), i64_const(n), put)


def _factor_block(em: MatrixEmitter, a: Rows, block: Block, workspace: Workspace, n: int) -> None:
    b = em.b
    with b.loop(block.first, block.end) as columns:
        _reflect(em, a, columns.index, block, workspace)
    make_triangle(em, block, workspace)
    rest = b.sub(i64_const(n), block.end)
    apply_block(em, block, em.part(a, block.first, block.end), rest, workspace, transpose=True)


def _reflect(em: MatrixEmitter, a: Rows, j: Val, block: Block, workspace: Workspace) -> None:
    """Reflect one column, and apply the reflection to the other columns of the block."""
    b, m, v = em.b, i64_const(block.m), block.v
    after = b.add(j, _ONE)
    tail = _largest(em, a, j, after, m)
    head = em.get(a, j, j)
    large = b.select(b.fcmp("ogt", b.fabs(head), tail), b.fabs(head), tail)
    large = b.select(b.fcmp("ogt", large, em.real(0.0)), large, em.real(1.0))
    flat = b.fcmp("oeq", tail, em.real(0.0))
    scaled = b.fdiv(head, large)

    def square(i: Val, total: Val) -> Val:
        x = b.fdiv(em.get(a, i, j), large)
        return b.fadd(total, b.fmul(x, x))

    norm = em.sqrt(em.total(em.real(0.0), j, m, square))
    signed = b.select(b.fcmp("olt", scaled, em.real(0.0)), norm, b.fneg(norm))
    image = b.select(flat, scaled, signed)
    scale = b.select(flat, em.real(0.0), b.fdiv(b.fsub(image, scaled), image))
    over = b.select(flat, em.real(1.0), b.fsub(scaled, image))
    with b.loop(block.first, j) as above:
        em.put(v, above.index, j, em.real(0.0))
    with b.loop(after, m) as rows:
        em.put(v, rows.index, j, b.fdiv(b.fdiv(em.get(a, rows.index, j), large), over))
        em.put(a, rows.index, j, em.real(0.0))
    em.put(v, j, j, em.real(1.0))
    em.put(a, j, j, b.fmul(image, large))
    b.store(scale, b.gep(workspace.scales, j, em.type), em.dense.bytes)
    _reflect_rest(em, a, j, scale, block, workspace)


def _largest(em: MatrixEmitter, a: Rows, j: Val, first: Val, end: Val) -> Val:
    b = em.b

    def larger(i: Val, best: Val) -> Val:
        size = b.fabs(em.get(a, i, j))
        better = b.or_(b.fcmp("ogt", size, best), b.fcmp("uno", size, size))
        return b.select(better, size, best)

    return em.total(em.real(0.0), first, end, larger)


def _reflect_rest(
    em: MatrixEmitter, a: Rows, j: Val, scale: Val, block: Block, workspace: Workspace
) -> None:
    b, after = em.b, em.b.add(j, _ONE)
    count, length = b.sub(block.end, after), b.sub(i64_const(block.m), j)
    row, rest = workspace.before, em.part(a, j, after)
    em.clear(row, _ONE, count)
    vector = em.address(block.v, j, j)
    em.dense.update(b, row, (vector, _ZERO, block.v[1]), rest, (_ONE, count, length))
    minus = b.fneg(scale)
    with b.loop(_ZERO, count) as columns:
        column = columns.index
        em.put(row, _ZERO, column, b.fmul(minus, em.get(row, _ZERO, column)))
    em.dense.update(b, rest, (vector, block.v[1], _ONE), row, (length, count, _ONE))


def make_triangle(em: MatrixEmitter, block: Block, workspace: Workspace) -> None:
    """Compute T: scales on its diagonal, and column j above it is −scale T (Vᵀ v)."""
    b, t, gram = em.b, block.t, workspace.before
    count, length = b.sub(block.end, block.first), b.sub(i64_const(block.m), block.first)
    part = em.part(block.v, block.first, block.first)
    em.clear(t, i64_const(BLOCK), i64_const(BLOCK))
    em.clear(gram, count, count)
    # The update of zeros gives −Vᵀ V.
    em.dense.update(b, gram, (part[0], _ONE, part[1]), part, (count, count, length))
    with b.loop(_ZERO, count) as columns:
        j = columns.index
        address = b.gep(workspace.scales, b.add(block.first, j), em.type)
        scale = b.load(em.type, address, em.dense.bytes)
        with b.loop(_ZERO, j) as rows:
            i = rows.index

            def term(p: Val, total: Val, i: Val = i, j: Val = j) -> Val:
                return b.fadd(total, b.fmul(em.get(t, i, p), em.get(gram, p, j)))

            em.put(t, i, j, b.fmul(scale, em.total(em.real(0.0), i, j, term)))
        em.put(t, j, j, scale)


def apply_block(
    em: MatrixEmitter, block: Block, x: Rows, columns: Val, workspace: Workspace, *, transpose: bool
) -> None:
    """X −= V T Vᵀ X, of T transposed if ``transpose``; X begins at the block's first row."""
    b, t = em.b, block.t
    count, length = b.sub(block.end, block.first), b.sub(i64_const(block.m), block.first)
    v, ldv = em.part(block.v, block.first, block.first)
    em.clear(workspace.before, count, columns)
    em.clear(workspace.after, count, columns)
    em.dense.update(b, workspace.before, (v, _ONE, ldv), x, (count, columns, length))
    view = (t[0], _ONE, t[1]) if transpose else (t[0], t[1], _ONE)
    em.dense.update(b, workspace.after, view, workspace.before, (count, columns, count))
    em.dense.update(b, x, (v, ldv, _ONE), workspace.after, (length, columns, count))

"""Blocks of Householder reflections as native code: products I − V T Vᵀ.

(R. Schreiber and C. Van Loan, A storage-efficient WY representation for products of Householder
transformations, 1989.)
"""

from __future__ import annotations

from bringup.llvm.steps.matrices import BLOCK, MatrixEmitter, Rows
from bringup.llvm.text import Val, i64_const
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


def unit_matrix(em: MatrixEmitter, a: Rows, m: int, n: int) -> None:
    """Ones on the diagonal, zeros elsewhere."""
    b = em.b

    def put(i: Val, j: Val) -> None:
        em.put(a, i, j, b.select(b.icmp("eq", i, j), em.real(1.0), em.real(0.0)))

    em.each_element(i64_const(m), i64_const(n), put)


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

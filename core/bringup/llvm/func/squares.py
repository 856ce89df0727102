"""Vectors that are stored across the lanes: transposed in squares, so that stores are of vectors.

An unrolled loop round a vector loop stores elements of which those of one lane are neighbours along
the unrolled loop.  So the lanes of its copies are the rows of a matrix whose columns are stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.graph.index import Axis
from bringup.llvm.func.memory import Memory
from bringup.llvm.scalar import memory_type
from bringup.llvm.text import Builder, Val, i64_const
from bringup.llvm.transpose import transpose_square
from bringup.loops.form import For, Stmt, Store, statements


def is_transposed(stmt: Stmt, copies: Axis, lane: Axis) -> bool:
    """Whether the copies of a store of a vector loop are better stored lane by lane."""
    if not isinstance(stmt, Store) or stmt.fold or stmt.mask or stmt.operands:
        return False
    if stmt.buffer.space != "scratch" or stmt.buffer.dtype.name == "bool" or lane.size < 2:
        return False
    apart = stmt.index.coefficient(lane) or 0
    return stmt.index.coefficient(copies) == 1 and apart >= copies.size > 1


def square_bytes(body: Sequence[Stmt]) -> int:
    """The bytes of the largest square of the statements; 0 if nothing is transposed."""
    most = 0
    for stmt in statements(tuple(body)):
        if not isinstance(stmt, For) or stmt.kind != "unroll" or len(stmt.body) != 1:
            continue
        (inner,) = stmt.body
        if isinstance(inner, For) and inner.kind == "vector":
            for store in inner.body:
                if is_transposed(store, stmt.axis, inner.axis) and isinstance(store, Store):
                    lanes = 1 << (inner.axis.size - 1).bit_length()
                    most = max(most, lanes * lanes * store.buffer.dtype.itemsize)
    return most


def store_transposed(
    b: Builder, memory: Memory, square: Val, stmt: Store, copies: Axis, rows: Sequence[Val]
) -> None:
    """Store the vectors of all copies of a store.

    square: memory that is free.  The copies are numbered from 0 on; the axis is at 0.
    """
    indices = memory.indices
    lane, lanes, element = indices.lane, indices.lanes, memory_type(stmt.buffer.dtype)
    assert lane is not None
    indices.axes[copies] = i64_const(0)
    apart = stmt.index.coefficient(lane) or 0
    to = b.gep(memory.pointers[stmt.buffer.name], indices.scalar(stmt.index), element)
    columns = memory.first_lanes
    for start in range(0, len(rows), lanes):
        group = rows[start : start + lanes]
        for n, row in enumerate(group):
            address = b.gep(square, n * lanes, element)
            b.store(indices.splat(row), address, element.bits // 8)
        ends = "some" if columns is not None else "next" if apart == len(group) else "exact"
        function = transpose_square(b.module, element, lanes, len(group), ends)
        count = i64_const(lanes) if columns is None else columns
        b.call(function, [square, b.gep(to, start, element), i64_const(apart), count])


__all__ = ["is_transposed", "square_bytes", "store_transposed"]

"""Squares of elements of which an unrolled loop reads the columns and memory has the rows.

The lanes of a vector loop may read elements far apart, of which the copies of the loop round it
read the neighbours.  Rows are then read whole, and become columns in vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace

from bringup.c.dialect import Dialect
from bringup.c.vectors import is_length
from bringup.graph.index import Expr
from bringup.loops.form import Buffer, For, Load, Stmt, Store
from bringup.records import record


@record(eq=False)
class Square:
    """One square.

    load: what reads its columns.  buffer: registers, a vector for each row.  rows: the loops that
    fill them.
    """

    load: Load
    buffer: Buffer
    rows: For


def squares(loop: For, known: Set[Buffer], dialect: Dialect) -> tuple[list[Square], For]:
    """The squares that a loop reads, and the loop as it is with columns in their registers.

    known: buffers that nothing writes.
    """
    found: list[Square] = []
    if loop.kind != "unroll" or loop.end is not None or not dialect.vector_order:
        return found, loop
    body: list[Stmt] = []
    for inner in loop.body:
        if not isinstance(inner, For):
            body.append(inner)
            continue
        mine = {square.load: square for square in _squares(loop, inner, known, dialect)}
        column = Expr.of(loop.axis) * inner.axis.size + Expr.of(inner.axis)
        stmts = (
            Load(stmt.result, mine[stmt].buffer, column)
            if isinstance(stmt, Load) and stmt in mine
            else stmt
            for stmt in inner.body
        )
        found += mine.values()
        body.append(replace(inner, body=tuple(stmts)))
    return found, replace(loop, body=tuple(body))


def _squares(loop: For, inner: For, known: Set[Buffer], dialect: Dialect) -> Iterator[Square]:
    copies, lane, size = loop.axis, inner.axis, inner.axis.size
    if inner.kind != "vector" or inner.end is not None:
        return
    if copies.size != size or not is_length(size, dialect):
        return
    for stmt in inner.body:
        if not isinstance(stmt, Load) or stmt.buffer not in known or stmt.operands:
            continue
        apart, dtype = stmt.index.coefficient(lane), stmt.buffer.dtype
        is_square = stmt.index.coefficient(copies) == 1 and apart is not None and abs(apart) > 1
        if is_square and size * dtype.itemsize <= dialect.vector_bytes:
            buffer = Buffer(f"square{stmt.result.name}", dtype, size * size, "register")
            store = Store(buffer, Expr.of(lane) * size + Expr.of(copies), stmt.result)
            row = For(copies, (stmt, store), "vector")
            yield Square(stmt, buffer, For(lane, (row,), "unroll"))


def exchanges(size: int) -> Iterator[tuple[int, int, int]]:
    """The pairs of rows, and how many lanes apart, that make columns of the rows of a square.

    Of two rows ``distance`` apart each lane of the first one whose number has that bit changes
    places with the lane of the second one that is ``distance`` before it.
    """
    distance = 1
    while distance < size:
        for row in range(size):
            if not row & distance:
                yield row, row + distance, distance
        distance *= 2


def orders(size: int, distance: int) -> tuple[list[int], list[int]]:
    """The lanes of both vectors, those of the second one counted behind, after an exchange."""
    first = [n + size - distance if n & distance else n for n in range(size)]
    return first, [n + size if n & distance else n + distance for n in range(size)]


__all__ = ["Square", "exchanges", "orders", "squares"]

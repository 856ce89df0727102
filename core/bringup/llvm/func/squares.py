"""Accesses across the lanes of vector loops: squares that are transposed, and groups of lanes.

An unrolled loop round a vector loop may store elements of which those of one lane are neighbours
along the unrolled loop.  So the lanes of its copies are the rows of a matrix whose columns are
stored.  Groups of lanes come from vector loops that were fused of two: pairs along the inner axis
of a product move together, and are added up in its sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from bringup.graph.index import Axis, Div, Expr, Mod
from bringup.integers import ceil_power_of_two
from bringup.llvm import text as ir
from bringup.llvm.text import Builder, Type, Val, i64_const, vec
from bringup.llvm.transpose import transpose_square
from bringup.loops.form import For, Stmt, Store, statements
from bringup.records import record


@record
class LaneSteps:
    """How an index goes along lanes: ``apart * (lane // group) + within * (lane % group)``."""

    apart: int
    within: int
    group: int

    @staticmethod
    def of(index: Expr, lane: Axis) -> LaneSteps | None:
        """The steps of an index; None if it goes in another way."""
        stride = index.coefficient(lane)
        if stride is not None:
            return LaneSteps(stride, 0, 1)
        steps = {Div: 0, Mod: 0}
        groups: set[int] = set()
        for atom, c in index.terms:
            if isinstance(atom, (Div, Mod)) and lane in atom.of.axes():
                if atom.of != Expr.of(lane):
                    return None
                steps[type(atom)] = c
                groups.add(atom.by)
            elif atom == lane:
                return None
        return LaneSteps(steps[Div], steps[Mod], groups.pop()) if len(groups) == 1 else None


def is_transposed(stmt: Stmt, copies: Axis, lane: Axis) -> TypeGuard[Store]:
    """Whether the copies of a store of a vector loop are better stored lane by lane."""
    if not isinstance(stmt, Store) or stmt.fold or stmt.mask or stmt.operands:
        return False
    if stmt.buffer.dtype.name == "bool" or lane.size < 2 or copies.size < 2:
        return False
    steps = LaneSteps.of(stmt.index, lane)
    if steps is None or stmt.index.coefficient(copies) != steps.group:
        return False
    if stmt.buffer.space == "register":
        return steps.apart == copies.size in (2, 4) and steps.group == 1
    return (
        stmt.buffer.space == "scratch"
        and steps.apart >= copies.size * steps.group
        and steps.within in (0, 1)
        and steps.group * stmt.buffer.dtype.itemsize <= 8
    )


def square_bytes(body: Sequence[Stmt]) -> int:
    """The bytes of the largest square of the statements; 0 if nothing is transposed."""
    most = 0
    for stmt in statements(tuple(body)):
        if not isinstance(stmt, For) or stmt.kind != "unroll" or len(stmt.body) != 1:
            continue
        (inner,) = stmt.body
        if isinstance(inner, For) and inner.kind == "vector":
            for store in inner.body:
                if is_transposed(store, stmt.axis, inner.axis):
                    lanes = ceil_power_of_two(inner.axis.size)
                    most = max(most, lanes * lanes * store.buffer.dtype.itemsize)
    return most


def interleaved(b: Builder, rows: Sequence[Val]) -> Val:
    """One vector with the first lanes of all rows, then the second ones, and so on."""
    if len(rows) == 1:
        return rows[0]
    half = len(rows) // 2
    even, odd = interleaved(b, rows[::2]), interleaved(b, rows[1::2])
    order = [n + side for n in range(even.type.lanes) for side in (0, even.type.lanes)]
    assert 2 * half == len(rows), "as many rows as a power of two"
    return b.shufflevector(even, odd, order)


def store_square(
    b: Builder, square: Val, to: Val, rows: Sequence[Val], apart: int, columns: Val | None
) -> None:
    """Store the columns of a matrix ``apart`` elements from each other.

    square: memory that is free.  columns: how many of them to store, if not all.
    """
    lanes, element = rows[0].type.lanes, rows[0].type.scalar
    for start in range(0, len(rows), lanes):
        group = rows[start : start + lanes]
        for n, row in enumerate(group):
            b.store(row, b.gep(square, n * lanes, element), element.bits // 8)
        ends = "some" if columns is not None else "next" if apart == len(group) else "exact"
        function = transpose_square(b.module, element, lanes, len(group), ends)
        count = i64_const(lanes) if columns is None else columns
        b.call(function, [square, b.gep(to, start, element), i64_const(apart), count])


def words(b: Builder, vector: Val, group: int) -> Val:
    """A vector with groups of lanes as one lane each."""
    if group == 1:
        return vector
    count = vector.type.lanes // group
    return b.bitcast(vector, vec(ir.integer(vector.type.scalar.bits * group), count))


def repeated(b: Builder, address: Val, wide: Type, group: int) -> Val:
    """A vector of one group of elements again and again."""
    word = ir.integer(wide.scalar.bits * group)
    value = b.load(word, address, wide.scalar.bits // 8)
    return b.bitcast(b.splat(value, wide.lanes // group), wide)


__all__ = [
    "LaneSteps",
    "interleaved",
    "is_transposed",
    "repeated",
    "square_bytes",
    "store_square",
    "words",
]

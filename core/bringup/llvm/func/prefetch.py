"""What the units of a function ask for ahead of their loads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bringup.graph.index import Axis, Expr
from bringup.loops.form import Buffer, For, If, Load, Stmt, statements

#: An element whose cache line is asked for.
Ahead = tuple[Buffer, Expr]


def prefetches(row: Axis, body: Sequence[Stmt]) -> Mapping[For, Sequence[Ahead]]:
    """What vector loops of a unit ask for: elements that the next unit reads first.

    row: the loop over units that changes fastest.
    A unit that goes over its elements twice computes the second time while the next unit's come.
    """
    passes = [stmt for stmt in body if isinstance(stmt, For) and _reads(stmt)]
    if len(passes) < 2:
        return {}
    first, second = passes[:2]
    places: dict[tuple[int, ...], tuple[Axis, ...]] = {}
    loops: dict[tuple[int, ...], For] = {}
    for axes, loop in _vectors(second, ()):
        sizes = tuple(axis.size for axis in axes)
        places.setdefault(sizes, axes)
        loops.setdefault(sizes, loop)
    result: dict[For, dict[Ahead, None]] = {}
    for axes, loop in _vectors(first, ()):
        sizes = tuple(axis.size for axis in axes)
        if sizes not in loops:
            continue
        table = {a: Expr.of(b) for a, b in zip(axes, places[sizes], strict=True)}
        for stmt in loop.body:
            if isinstance(stmt, Load) and _is_far(stmt):
                step = stmt.index.coefficient(row)
                if step and stmt.index.coefficient(loop.axis) == 1:
                    ahead = stmt.buffer, stmt.index.substitute(table) + step
                    result.setdefault(loops[sizes], {})[ahead] = None
    return {loop: tuple(found) for loop, found in result.items()}


def _reads(loop: For) -> bool:
    return any(isinstance(stmt, Load) and _is_far(stmt) for stmt in statements(loop.body))


def _is_far(stmt: Load) -> bool:
    """Whether a load of the caller's memory is at an index that is no data."""
    return stmt.buffer.space == "global" and not stmt.operands


def _vectors(loop: For, outer: tuple[Axis, ...]) -> Iterator[tuple[tuple[Axis, ...], For]]:
    """The vector loops within a loop, with the loops round them and their own."""
    axes = (*outer, loop.axis)
    if loop.kind == "vector":
        yield axes, loop
        return
    for stmt in loop.body:
        if isinstance(stmt, For):
            yield from _vectors(stmt, axes)
        elif isinstance(stmt, If):
            for inner in stmt.body:
                if isinstance(inner, For):
                    yield from _vectors(inner, axes)


__all__ = ["Ahead", "prefetches"]

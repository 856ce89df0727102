"""What the units of a function ask for ahead of their loads and stores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from bringup.graph.index import Axis, Bound, Expr
from bringup.llvm.loops.heuristics import LOOPS, PRODUCTS
from bringup.loops.form import (
    NESTING,
    PRIVATE,
    Body,
    Buffer,
    For,
    If,
    Load,
    Stmt,
    Store,
    statements,
)
from bringup.records import record

#: Bytes of a copy that are worth it.
_MANY = 2048
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


@record(eq=False)
class Results:
    """Stores to the caller's memory behind a loop that only fills registers.

    condition: under which they happen.  rows: the loop round them; the memory of each of its
    iterations is asked for before the first loop runs.  columns: the loops inside it.
    """

    condition: tuple[Bound, ...]
    rows: For
    columns: tuple[For, ...]
    store: Store


def results_behind(body: Sequence[Stmt]) -> dict[For, list[Results]]:
    """What follows each serial loop that only fills registers, as the sums of a tile do."""
    found: dict[For, list[Results]] = {}
    _find_results(body, found)
    return found


def _find_results(body: Sequence[Stmt], found: dict[For, list[Results]]) -> None:
    last: For | None = None
    for stmt in body:
        if isinstance(stmt, For) and stmt.kind == "serial" and fills_registers(stmt):
            last = stmt
        elif last is not None and isinstance(stmt, NESTING):
            condition = stmt.mask if isinstance(stmt, If) else ()
            rows = stmt.body[0] if isinstance(stmt, If) else stmt
            if isinstance(rows, For) and _are_sums(rows) and len(condition) < 2:
                results = _stores(rows.body, (), condition, rows)
                found.setdefault(last, []).extend(results)
        elif isinstance(stmt, NESTING):
            _find_results(stmt.body, found)


def fills_registers(loop: For) -> bool:
    """Whether a loop stores to registers alone."""
    stores = [stmt for stmt in statements(loop.body) if isinstance(stmt, Store)]
    return bool(stores) and all(stmt.buffer.space == "register" for stmt in stores)


def _are_sums(rows: For) -> bool:
    """Whether the rows of a loop are those of a register tile: few, and in memory of the unit.

    A loop that stores what it reads, such as x / norm of columns, has as many as the array.
    """
    if rows.kind != "serial" or rows.axis.size > LOOPS.most_rows:
        return False
    loads = (stmt for stmt in statements(rows.body) if isinstance(stmt, Load))
    return any(s.buffer.space in PRIVATE and s.index.coefficient(rows.axis) for s in loads)


def _stores(
    body: Sequence[Stmt], columns: tuple[For, ...], condition: tuple[Bound, ...], rows: For
) -> Iterator[Results]:
    for stmt in body:
        if isinstance(stmt, For):
            yield from _stores(stmt.body, (*columns, stmt), condition, rows)
        elif isinstance(stmt, If):
            yield from _stores(stmt.body, columns, condition, rows)
        elif isinstance(stmt, Store) and stmt.buffer.space == "global":
            results = Results(condition, rows, columns, stmt)
            if _are_apart(results):
                yield results


def _are_apart(results: Results) -> bool:
    """Whether vectors are stored in rows that do not follow one another in memory."""
    index, columns = results.store.index, results.columns
    if not columns or columns[-1].kind != "vector" or index.coefficient(columns[-1].axis) != 1:
        return False
    width = math.prod(loop.axis.size for loop in columns if loop.kind != "serial")
    return abs(index.coefficient(results.rows.axis) or 0) > width


@record
class Member:
    """What the units of an iteration of the outermost loop multiply: a dense part of a buffer.

    step: its elements, from one iteration to the next.
    """

    buffer: Buffer
    step: int


def members_of(axes: Sequence[Axis], body: Body) -> Sequence[Member]:
    """The factors that units read again and again until the outermost loop goes on.

    axes: of the loops round a unit, outermost first.
    Those of the next iteration are asked for meanwhile, if all of them together are in memory,
    those of two iterations in a core's cache, and half of them is read more than once: what is
    read once comes no sooner.
    """
    if len(axes) < 2 or not any(isinstance(s, Store) and s.factor for s in statements(body)):
        return ()
    indices: dict[Buffer, list[Expr]] = {}
    for stmt in statements(body):
        if isinstance(stmt, Load) and _is_far(stmt):
            indices.setdefault(stmt.buffer, []).append(stmt.index)
    members, once, again = [], 0, 0
    for buffer, places in indices.items():
        step, *others = {index.coefficient(axes[0]) or 0 for index in places}
        within = [index + Expr.of(axes[0]) * -step for index in places]
        first, end = min(e.first for e in within), max(e.last for e in within) + 1
        nbytes = step * buffer.dtype.itemsize
        # A tile at the end of a factor is as large as the others, and masked.
        if not others and first == 0 and step <= end < 2 * step and nbytes >= _MANY:
            members.append(Member(buffer, step))
            once += nbytes
            used = frozenset[Axis]().union(*(index.axes() for index in places))
            again += nbytes if used < used.union(axes) else 0
    is_far = once * axes[0].size > PRODUCTS.near_bytes
    is_worth = once <= min(2 * again, LOOPS.member_bytes)
    return members if is_far and is_worth else ()


@record(eq=False)
class Fill:
    """Memory of the caller's that is copied behind a loop that sums products.

    rows: loops over rows that are far apart.  index: where a row begins.  length: of a row.
    """

    rows: tuple[For, ...]
    buffer: Buffer
    index: Expr
    length: int


def fills_behind(body: Sequence[Stmt]) -> dict[For, list[Fill]]:
    """What is copied behind each loop that sums products, and asked for before it."""
    found: dict[For, list[Fill]] = {}
    _find_fills(body, found)
    return found


def _find_fills(body: Sequence[Stmt], found: dict[For, list[Fill]]) -> None:
    last: For | None = None
    for stmt in body:
        alone = stmt.body[0] if isinstance(stmt, If) and len(stmt.body) == 1 else stmt
        if isinstance(alone, For) and alone.kind == "serial" and _sums_products(alone):
            last = alone
        elif last is not None and isinstance(stmt, For) and (fill := _fill(stmt)) is not None:
            found.setdefault(last, []).append(fill)
        if isinstance(stmt, NESTING):
            _find_fills(stmt.body, found)


def _sums_products(loop: For) -> bool:
    stores = [stmt for stmt in statements(loop.body) if isinstance(stmt, Store)]
    return all(s.buffer.space != "global" for s in stores) and any(s.factor for s in stores)


def _fill(loop: For) -> Fill | None:
    """A nest that copies rows to private memory; None for another one."""
    nest: list[For] = []
    body: Sequence[Stmt] = (loop,)
    while len(body) == 1 and isinstance(body[0], For):
        nest.append(body[0])
        body = body[0].body
    if not body:
        return None
    load, store = body[0], body[-1]
    if not isinstance(load, Load) or not isinstance(store, Store) or not _is_far(load):
        return None
    if store.fold or any(isinstance(stmt, (Load, For, If)) for stmt in body[1:]):
        return None
    length = 1
    steps = {loop: load.index.coefficient(loop.axis) or 0 for loop in nest}
    for each in sorted(nest, key=lambda loop: steps[loop]):
        if steps[each] == length:
            length *= each.axis.size
            nest.remove(each)
    near = length * load.buffer.dtype.itemsize
    if not nest or length == 1 or math.prod(each.axis.size for each in nest) * near < _MANY:
        return None
    index = load.index.substitute({x.axis: Expr() for x in steps if x not in nest})
    return Fill(tuple(nest), load.buffer, index, length)


__all__ = [
    "Ahead",
    "Fill",
    "Member",
    "Results",
    "fills_behind",
    "fills_registers",
    "members_of",
    "prefetches",
    "results_behind",
]

"""Races that are seen without running a function: iterations side by side whose indices meet.

Indices, masks and the number of barriers before an access are expressions of loops, so that all
accesses of all iterations can be listed and sorted by element.  What data decides, and what takes
too many positions, stays undecided.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bringup.graph.index import Axis, Expr
from bringup.kernel.ranges import expr_value, mask_value, positions
from bringup.loops.form import (
    ACCESSES,
    NESTING,
    PRIVATE,
    Barrier,
    Buffer,
    For,
    Func,
    If,
    Load,
    Stmt,
    Store,
    statements,
)
from bringup.loops.scopes import Scope, accesses, walk, walk_block
from bringup.loops.text import print_stmt
from bringup.records import record

Array = np.ndarray[Any, Any]
Problems = Iterator[tuple[Stmt | None, str]]

#: Apart from all numbers of work items that one loop nest has.
_FAR = 1 << 40


@record(eq=False)
class _Use:
    """An access that iterations side by side have in common.

    threads: the loops whose iterations are its work item, outermost first.
    epoch: the number of barriers before it in its block.
    """

    stmt: Load | Store
    scope: Scope
    threads: tuple[For, ...]
    epoch: Expr

    @property
    def exprs(self) -> tuple[Expr, ...]:
        """All on which it depends at which element, when and whether it happens."""
        mask = (*self.stmt.mask, *self.scope.mask)
        return (self.stmt.index, self.epoch, *(bound.expr for bound in mask))


def races(func: Func) -> Problems:
    """Accesses of one element, one of them a write, by work items that nothing orders."""
    for stmt, scope in accesses(func):
        if isinstance(stmt, Store):
            yield from _written_by_all(stmt, scope)
    for loop, scope in walk(func):
        if isinstance(loop, For) and loop.kind in ("parallel", "block"):
            inner = scope.within(loop)
            uses = [
                _Use(stmt, around, (loop,), Expr())
                for stmt, around in walk_block(loop.body, inner)
                if isinstance(stmt, ACCESSES)
            ]
            yield from _meeting(uses, scope, f"iterations of {loop.kind} loop {loop.name}")
            if loop.kind == "block" and not _holds_block(loop):
                threads = _thread_uses(loop, inner)
                yield from _meeting(threads, inner, "threads, with no barrier between them,")


def _written_by_all(stmt: Store, scope: Scope) -> Problems:
    """What needs no positions: every iteration of a loop writes the same elements."""
    meeting = scope.meeting(stmt.buffer)
    if stmt.buffer.space in PRIVATE and any(loop.kind == "thread" for loop in meeting):
        yield stmt, f"a thread writes {stmt.buffer.name}, which is private to its block"
    if scope.guarded or stmt.operands or not all(axis.size for axis in scope.axes):
        return
    if stmt.atomic:
        return
    used = stmt.index.axes().union(*(b.expr.axes() for b in (*stmt.mask, *scope.mask)))
    for loop in meeting:
        if loop.axis not in used and loop.axis.size > 1:
            place = f"{stmt.buffer.name}[{stmt.index}]"
            yield stmt, f"every iteration of {loop.kind} loop {loop.name} writes {place}"


def _holds_block(loop: For) -> bool:
    return any(isinstance(stmt, For) and stmt.kind == "block" for stmt in statements(loop.body))


def _thread_uses(block: For, scope: Scope) -> list[_Use]:
    """The accesses of a block's threads; none if conditions decide how many barriers there are.

    No thread has what others have of a fragment, and an instruction waits for those that it is for.
    """
    for stmt in statements(block.body):
        if isinstance(stmt, If) and _barriers_in(stmt.body):
            return []
    epochs: dict[Stmt, Expr] = {}
    _count_epochs(block.body, Expr(), epochs)
    uses = []
    for stmt, around in walk_block(block.body, scope):
        if isinstance(stmt, ACCESSES) and stmt.buffer.space not in (*PRIVATE, "fragment"):
            threads = tuple(loop for loop in around.loops if loop.kind == "thread")
            uses.append(_Use(stmt, around, threads, epochs[stmt]))
    return uses if any(use.threads for use in uses) else []


def _barriers_in(body: Sequence[Stmt]) -> int:
    """How many barriers a block comes to."""
    count = 0
    for stmt in body:
        if isinstance(stmt, Barrier):
            count += 1
        elif isinstance(stmt, NESTING):
            times = stmt.axis.size if isinstance(stmt, For) and stmt.kind != "thread" else 1
            count += times * _barriers_in(stmt.body)
    return count


def _count_epochs(body: Sequence[Stmt], epoch: Expr, epochs: dict[Stmt, Expr]) -> None:
    for stmt in body:
        if isinstance(stmt, Barrier):
            epoch = epoch + 1
        elif isinstance(stmt, ACCESSES):
            epochs[stmt] = epoch
        elif isinstance(stmt, If):
            _count_epochs(stmt.body, epoch, epochs)
        elif isinstance(stmt, For):
            each = _barriers_in(stmt.body)
            repeated = stmt.kind != "thread"
            inner = epoch + Expr.of(stmt.axis) * each if repeated else epoch
            _count_epochs(stmt.body, inner, epochs)
            epoch = epoch + each * (stmt.axis.size if repeated else 1)


def _meeting(uses: Sequence[_Use], outer: Scope, who: str) -> Problems:
    """Uses of one element in one iteration of the outer loops by several work items.

    outer: what surrounds the loop whose iterations are work items.
    """
    shared: dict[Buffer, list[_Use]] = {}
    for use in uses:
        decided = not use.scope.guarded and not use.stmt.operands
        runs = all(axis.size for axis in use.scope.axes)
        home = use.scope.homes[use.stmt.buffer]
        if decided and runs and not any(loop in home for loop in use.threads):
            shared.setdefault(use.stmt.buffer, []).append(use)
    for buffer, group in shared.items():
        if not any(isinstance(use.stmt, Store) for use in group) or _never_meet(group):
            continue
        pair = _first_pair(group, outer.axes)
        if pair is not None:
            element, one, other = pair
            stmts = " and ".join(dict.fromkeys(map(print_stmt, (one.stmt, other.stmt))))
            yield one.stmt, f"several {who} use element {element} of {buffer.name}: {stmts}"


def _never_meet(group: Sequence[_Use]) -> bool:
    """Whether all uses have one index, which gives each work item elements of its own."""
    first = group[0]
    same = all(use.stmt.index == first.stmt.index and _names(use) == _names(first) for use in group)
    return same and _is_injective(first.stmt.index, [loop.axis for loop in first.threads])


def _names(use: _Use) -> tuple[tuple[str, int], ...]:
    """Threads are the same in all loops of these names and sizes."""
    return tuple((loop.name, loop.axis.size) for loop in use.threads)


def _is_injective(index: Expr, items: Sequence[Axis]) -> bool:
    """Whether positions of loops, all of these among them, give each another value: every
    coefficient is greater than what smaller ones add up to.
    """
    reach = 0
    for atom, c in sorted(index.terms, key=lambda term: abs(term[1])):
        if not isinstance(atom, Axis) or abs(c) <= reach:
            return False
        reach += abs(c) * atom.last
    return {axis for axis in items if axis.size > 1} <= index.axes()


def _first_pair(group: Sequence[_Use], outer: Sequence[Axis]) -> tuple[int, _Use, _Use] | None:
    """An element and two of its uses, by different work items, of which one is a write."""
    used = frozenset[Axis]().union(*(e.axes() for use in group for e in use.exprs))
    kinds = list(dict.fromkeys(map(_names, group)))
    parts: list[Array] = []
    for number, use in enumerate(group):
        rows = _rows(use, [axis for axis in outer if axis in used])
        if rows is None:
            return None
        who = np.full_like(rows[:1], kinds.index(_names(use)) * _FAR)
        rows[-1] += who[0]
        parts.append(np.concatenate([rows, np.full_like(rows[:1], number)]))
    table = np.concatenate(parts, axis=1)
    table = table[:, np.lexsort(table[::-1])]
    *key, item, number_of = table
    if not item.size:
        return None
    changes = np.any([column[1:] != column[:-1] for column in key], axis=0)
    starts = np.flatnonzero(np.r_[True, changes])
    writes = np.array([isinstance(use.stmt, Store) for use in group])[number_of]
    plain = np.array([not _is_atomic(use.stmt) for use in group])[number_of]
    several = np.minimum.reduceat(item, starts) != np.maximum.reduceat(item, starts)
    for some in (writes, plain):
        several &= np.logical_or.reduceat(some, starts)
    wrong = np.flatnonzero(several)
    if not wrong.size:
        return None
    begin = starts[wrong[0]]
    end = np.r_[starts, item.size][wrong[0] + 1]
    one = begin + int(np.flatnonzero(writes[begin:end])[0])
    other = begin + int(np.flatnonzero(item[begin:end] != item[one])[0])
    return int(key[-1][begin]), group[number_of[one]], group[number_of[other]]


def _is_atomic(stmt: Load | Store) -> bool:
    return isinstance(stmt, Store) and stmt.atomic


def _rows(use: _Use, outer: Sequence[Axis]) -> Array | None:
    """A column for each time of a use: iterations of outer loops, epoch, element, work item."""
    items = [loop.axis for loop in use.threads]
    depends = frozenset[Axis]().union(*(e.axes() for e in use.exprs), items, outer)
    table = positions([axis for axis in use.scope.axes if axis in depends])
    if table is None:
        return None
    item = np.zeros(1, np.int64)
    for axis in items:
        item = item * axis.size + table[axis]
    happens = mask_value((*use.stmt.mask, *use.scope.mask), table)
    rows = [*(table[axis] for axis in outer), expr_value(use.epoch, table)]
    rows += [expr_value(use.stmt.index, table), item, happens]
    *columns, live = np.broadcast_arrays(*rows, np.zeros(1))[:-1]
    return np.stack([column[live] for column in columns]).astype(np.int64)


__all__ = ["races"]

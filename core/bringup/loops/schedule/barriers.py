"""What threads of a block may do without a barrier between them."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.errors import ScheduleError
from bringup.graph.index import Axis, Expr, Mask
from bringup.kernel.ranges import span
from bringup.loops.form import (
    NESTING,
    OF_BLOCK,
    Alloc,
    Barrier,
    Body,
    Buffer,
    For,
    Func,
    If,
    Load,
    LoopKind,
    Store,
)
from bringup.loops.schedule.dependences import (
    Access,
    is_apart,
    may_conflict,
    meets_only_within,
)
from bringup.records import record


@record(eq=False)
class _Event:
    """An access by threads.

    threads: the thread loops round it; empty if one thread of the block does it.
    phase: how many barriers come before it.
    bound: the loop round it that has just been bound.
    """

    access: Access
    threads: tuple[Axis, ...]
    phase: int
    bound: For | None


class _Block:
    """What the threads of one block do, in order; serial loops that hold barriers run twice.

    bound: the loops that have just been bound, if only what they do is in question.
    """

    def __init__(self, bound: str) -> None:
        self.bound = bound
        self.within: For | None = None
        self.events: list[_Event] = []
        self.phase = 0
        self.inner: set[Axis] = set()
        self.outer: set[Buffer] = set()

    def walk(self, body: Body, facts: Mask, threads: tuple[Axis, ...]) -> None:
        private: set[Buffer] = set()
        for stmt in body:
            match stmt:
                case Load() | Store() if stmt.buffer not in private:
                    access = Access(stmt, facts + stmt.mask, ())
                    self.check_private(stmt, threads)
                    self.events.append(_Event(access, threads, self.phase, self.within))
                case Alloc() if threads and stmt.buffer.space not in OF_BLOCK:
                    private.add(stmt.buffer)
                case Alloc() if stmt.buffer.space not in OF_BLOCK:
                    self.outer.add(stmt.buffer)
                case If():
                    self.walk_inside(stmt.body, facts + stmt.mask, threads, private)
                case For():
                    self.inner.add(stmt.axis)
                    bounds = facts + stmt.bounds
                    if stmt.kind == "thread":
                        outer = self.within
                        self.within = stmt if stmt.name == self.bound else outer
                        self.walk_inside(stmt.body, bounds, (*threads, stmt.axis), private)
                        self.within = outer
                        continue
                    before = self.phase
                    self.walk_inside(stmt.body, bounds, threads, private)
                    if self.phase > before:
                        self.walk_inside(stmt.body, bounds, threads, private)
                case Barrier():
                    self.phase += 1

    def walk_inside(
        self, body: Body, facts: Mask, threads: tuple[Axis, ...], private: set[Buffer]
    ) -> None:
        """A block inside another one, whose private memory it sees."""
        first = len(self.events)
        self.walk(body, facts, threads)
        if private:
            mine = [e for e in self.events[first:] if e.access.buffer not in private]
            self.events[first:] = mine

    def check_private(self, stmt: Load | Store, threads: Sequence[Axis]) -> None:
        if threads and isinstance(stmt, Store) and stmt.buffer in self.outer:
            raise ScheduleError(
                f"threads write {stmt.buffer.name}, which is a {stmt.buffer.space} of their block",
                fix="bind loops inside its alloc, or divide the fold first",
            )

    def check(self, independent: bool) -> None:
        """Raise ScheduleError if the order of two threads matters and no barrier makes it.

        independent: whether the iterations of a loop that has just been bound are independent.
        """
        inner = frozenset(self.inner)
        for number, one in enumerate(self.events):
            for other in self.events[number:]:
                if other.phase > one.phase:
                    break
                if self.bound and one.bound is other.bound and (independent or not one.bound):
                    continue
                if not _needs_order(one, other) or _are_alternatives(one, other, inner):
                    continue
                if one.threads == other.threads and all(
                    meets_only_within(one.access, other.access, axis, inner) for axis in one.threads
                ):
                    continue
                if one.threads != other.threads and is_apart(one.access, other.access, inner):
                    continue
                raise ScheduleError(
                    f"a thread touches elements of {one.access.buffer.name} that another one "
                    "touches, with no barrier between them",
                    fix="stage the buffer in shared memory, or bind another loop",
                )


def _needs_order(one: _Event, other: _Event) -> bool:
    if one.access.is_atomic and other.access.is_atomic:
        return False
    if one.access.kind == other.access.kind != "load":
        return one.access.buffer == other.access.buffer
    return may_conflict(one.access, other.access)


def _are_alternatives(one: _Event, other: _Event, inner: frozenset[Axis]) -> bool:
    """Whether a block does only one of both: conditions on the block decide."""
    fixed = {axis for bound in one.access.facts for axis in bound.expr.axes()} - inner
    for axis in fixed:
        (low, high), (least, most) = (
            span(Expr.of(axis), event.access.facts) for event in (one, other)
        )
        if high < least or most < low:
            return True
    return False


def check_threads(func: Func, bound: str = "", independent: bool = False) -> None:
    """Raise ScheduleError for threads and shared memory in no block, for blocks in threads, and
    where threads of a block need an order that no barrier gives.

    bound: loops that have just been bound to threads of a function that was right before.
    independent: whether their iterations were independent.
    """
    _check_nesting(func.body, ())
    _check_blocks(func.body, (), bound, independent)


def _check_nesting(body: Body, outer: tuple[LoopKind, ...]) -> None:
    for stmt in body:
        if isinstance(stmt, Alloc) and stmt.buffer.space in OF_BLOCK and "block" not in outer:
            raise ScheduleError(
                f"{stmt.buffer.name} is in no block, so no threads share it",
                fix="bind a loop round it to block first",
            )
        if not isinstance(stmt, NESTING):
            continue
        kinds = outer
        if isinstance(stmt, For):
            if stmt.kind == "thread" and "block" not in outer:
                raise ScheduleError(
                    f"thread loop {stmt.name} is in no block loop",
                    fix="bind a loop round it to block first",
                )
            if stmt.kind in ("parallel", "block") and "thread" in outer:
                raise ScheduleError(
                    f"{stmt.kind} loop {stmt.name} is in a thread loop",
                    fix="let it be serial there",
                )
            kinds = (*outer, stmt.kind)
        _check_nesting(stmt.body, kinds)


def _check_blocks(body: Body, facts: Mask, bound: str, independent: bool) -> None:
    for stmt in body:
        if isinstance(stmt, For):
            inner = facts + stmt.bounds
            if stmt.kind in ("parallel", "block") and _holds_threads(stmt.body):
                block = _Block(bound)
                block.walk(stmt.body, inner, ())
                block.check(independent)
            _check_blocks(stmt.body, inner, bound, independent)
        elif isinstance(stmt, If):
            _check_blocks(stmt.body, facts + stmt.mask, bound, independent)


def _holds_threads(body: Body) -> bool:
    """Whether thread loops stand here, not those of parallel loops or blocks inside."""
    return any(
        (isinstance(stmt, For) and stmt.kind == "thread")
        or (
            isinstance(stmt, NESTING)
            and not (isinstance(stmt, For) and stmt.kind in ("parallel", "block"))
            and _holds_threads(stmt.body)
        )
        for stmt in body
    )


__all__ = ["check_threads"]

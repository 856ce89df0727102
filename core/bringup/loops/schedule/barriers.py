"""What threads of a block may do without a barrier between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from bringup.errors import ScheduleError
from bringup.graph.index import Axis, Expr, Mask
from bringup.kernel.ranges import span
from bringup.loops.contents import contents_of
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

#: Loops whose iterations have no barrier in common.
_OF_GRID: tuple[LoopKind, ...] = ("parallel", "block")


@record(eq=False)
class _Event:
    """An access by threads.

    threads: the thread loops round it; empty if one thread of the block does it.
    phase: how many barriers come before it.
    bound: the loops round it that have just been bound.
    """

    access: Access
    threads: tuple[Axis, ...]
    phase: int
    bound: tuple[For, ...]


class _Block:
    """What the threads of one block do, in order; serial loops that hold barriers run twice.

    bound: as in `check_threads`.
    """

    def __init__(self, bound: Mapping[str, bool]) -> None:
        self.bound = bound
        self.within: tuple[For, ...] = ()
        self.events: list[_Event] = []
        self.phase = 0
        self.inner: set[Axis] = set()
        self.outer: set[Buffer] = set()

    def walk(self, body: Body, facts: Mask, threads: tuple[Axis, ...]) -> None:
        private: set[Buffer] = set()
        for stmt in body:
            match stmt:
                case Load() | Store():
                    if stmt.buffer in private:
                        continue
                    if threads and stmt.buffer in self.outer:
                        self.check_private(stmt)
                    access = Access(stmt, facts + stmt.mask, ())
                    self.events.append(_Event(access, threads, self.phase, self.within))
                case Alloc() if stmt.buffer.space not in OF_BLOCK:
                    (private if threads else self.outer).add(stmt.buffer)
                case If():
                    self.walk_inside(stmt.body, facts + stmt.mask, threads, private)
                case For():
                    self.walk_loop(stmt, facts + stmt.bounds, threads, private)
                case Barrier():
                    self.phase += 1

    def walk_loop(
        self, loop: For, facts: Mask, threads: tuple[Axis, ...], private: set[Buffer]
    ) -> None:
        self.inner.add(loop.axis)
        before, phase = self.within, self.phase
        if loop.kind == "thread":
            threads = (*threads, loop.axis)
            if loop.axis.name in self.bound:
                self.within = (*before, loop)
        self.walk_inside(loop.body, facts, threads, private)
        if self.phase > phase and loop.kind != "thread":
            self.walk_inside(loop.body, facts, threads, private)
        self.within = before

    def walk_inside(
        self, body: Body, facts: Mask, threads: tuple[Axis, ...], private: set[Buffer]
    ) -> None:
        """A block inside another one, whose private memory it sees."""
        first = len(self.events)
        self.walk(body, facts, threads)
        if private:
            mine = [e for e in self.events[first:] if e.access.stmt.buffer not in private]
            self.events[first:] = mine

    def check_private(self, stmt: Load | Store) -> None:
        if isinstance(stmt, Store):
            raise ScheduleError(
                f"threads write {stmt.buffer.name}, which is a {stmt.buffer.space} of their block",
                fix="bind loops inside its alloc, or divide the fold first",
            )

    def check(self) -> None:
        """Raise ScheduleError if the order of two threads matters and no barrier makes it."""
        inner = frozenset(self.inner)
        for events in self.by_memory():
            for number, one in enumerate(events):
                is_known = self.bound and all(self.bound[loop.name] for loop in one.bound)
                for other in events[number:]:
                    if other.phase > one.phase:
                        break
                    if not (is_known and one.bound == other.bound):
                        self.check_pair(one, other, inner)

    def by_memory(self) -> Iterable[list[_Event]]:
        """The events on each buffer; parameters of one size may be the same memory."""
        found: defaultdict[Buffer | tuple[int, int], list[_Event]] = defaultdict(list)
        for event in self.events:
            buffer = event.access.stmt.buffer
            is_global = buffer.space == "global"
            found[(buffer.size, buffer.dtype.itemsize) if is_global else buffer].append(event)
        return found.values()

    def check_pair(self, one: _Event, other: _Event, inner: frozenset[Axis]) -> None:
        if not _needs_order(one, other) or _are_alternatives(one, other, inner):
            return
        if one.threads == other.threads and all(
            meets_only_within(one.access, other.access, axis, inner) for axis in one.threads
        ):
            return
        if one.threads != other.threads and is_apart(one.access, other.access, inner):
            return
        raise ScheduleError(
            f"a thread touches elements of {one.access.buffer.name} that another one "
            "touches, with no barrier between them",
            fix="precompute in shared memory what it reads, or bind another loop",
        )


def _needs_order(one: _Event, other: _Event) -> bool:
    first, second = one.access, other.access
    if first.kind == second.kind:
        is_order_free = first.kind == "load" or (first.is_atomic and second.is_atomic)
        return not is_order_free and first.buffer == second.buffer
    return not (first.is_atomic and second.is_atomic) and may_conflict(first, second)


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


def check_threads(func: Func, bound: Mapping[str, bool] | None = None) -> None:
    """Raise ScheduleError for threads and shared memory in no block, for blocks in threads, and
    where threads of a block need an order that no barrier gives.

    bound: loops that have just been bound to threads of a function that was right before, each with
    whether its iterations were independent.
    """
    _check_nesting(func.body, ())
    _check_blocks(func.body, (), bound or {})


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
            if stmt.kind in _OF_GRID and "thread" in outer:
                raise ScheduleError(
                    f"{stmt.kind} loop {stmt.name} is in a thread loop",
                    fix="let it be serial there",
                )
            kinds = (*outer, stmt.kind)
        inside = contents_of(stmt)
        wrong = inside.kinds.intersection(_OF_GRID if "thread" in kinds else ("thread",))
        if wrong or not inside.spaces.isdisjoint(OF_BLOCK):
            _check_nesting(stmt.body, kinds)


def _check_blocks(body: Body, facts: Mask, bound: Mapping[str, bool]) -> None:
    for stmt in body:
        if not isinstance(stmt, NESTING) or "thread" not in contents_of(stmt).kinds:
            continue
        inner = facts + (stmt.bounds if isinstance(stmt, For) else stmt.mask)
        if isinstance(stmt, For) and stmt.kind in _OF_GRID and _holds_threads(stmt.body):
            block = _Block(bound)
            block.walk(stmt.body, inner, ())
            block.check()
        _check_blocks(stmt.body, inner, bound)


def _holds_threads(body: Body) -> bool:
    """Whether thread loops stand here, not those of parallel loops or blocks inside."""
    for stmt in body:
        kind = stmt.kind if isinstance(stmt, For) else "serial"
        if kind == "thread":
            return True
        if not isinstance(stmt, NESTING) or kind in _OF_GRID:
            continue
        if "thread" in contents_of(stmt).kinds and _holds_threads(stmt.body):
            return True
    return False


__all__ = ["check_threads"]

"""What surrounds each statement of a function: loops, conditions, and the buffers that exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bringup.graph.index import Axis, Bound
from bringup.loops.form import (
    ACCESSES,
    CONCURRENT,
    NESTING,
    OF_BLOCK,
    Alloc,
    Buffer,
    For,
    Func,
    If,
    Load,
    Stmt,
    Store,
)
from bringup.records import record


@record(eq=False)
class Scope:
    """What surrounds a statement.

    mask: what holds wherever it runs: conditions and early ends.
    guarded: whether data decides, too, where it runs.
    homes: the buffers that exist, with the loops in whose iterations each exists once.
    """

    loops: tuple[For, ...] = ()
    mask: tuple[Bound, ...] = ()
    guarded: bool = False
    homes: Mapping[Buffer, tuple[For, ...]] = {}

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Those of the loops."""
        return tuple(loop.axis for loop in self.loops)

    def within(self, stmt: For | If) -> Scope:
        """What surrounds the body of a statement."""
        if isinstance(stmt, For):
            mask = (*self.mask, *stmt.bounds)
            return Scope((*self.loops, stmt), mask, self.guarded, self.homes)
        guarded = self.guarded or stmt.test is not None
        return Scope(self.loops, (*self.mask, *stmt.mask), guarded, self.homes)

    def meeting(self, buffer: Buffer) -> list[For]:
        """The loops round an access whose iterations have one memory in common."""
        home = self.homes[buffer]
        return [loop for loop in self.loops if loop.kind in CONCURRENT and loop not in home]


def walk(func: Func) -> Iterator[tuple[Stmt, Scope]]:
    """Every statement with what surrounds it."""
    yield from walk_block(func.body, Scope(homes={p.buffer: () for p in func.params}))


def walk_block(body: Sequence[Stmt], scope: Scope) -> Iterator[tuple[Stmt, Scope]]:
    """Every statement of a block with what surrounds it."""
    for stmt in body:
        yield stmt, scope
        if isinstance(stmt, NESTING):
            yield from walk_block(stmt.body, scope.within(stmt))
        elif isinstance(stmt, Alloc):
            home = scope.loops
            if stmt.buffer.space in OF_BLOCK:
                home = tuple(loop for loop in home if loop.kind != "thread")
            homes = {**scope.homes, stmt.buffer: home}
            scope = Scope(scope.loops, scope.mask, scope.guarded, homes)


def accesses(func: Func) -> Iterator[tuple[Load | Store, Scope]]:
    """Every load and store with what surrounds it."""
    for stmt, scope in walk(func):
        if isinstance(stmt, ACCESSES):
            yield stmt, scope


__all__ = ["Scope", "accesses", "walk", "walk_block"]

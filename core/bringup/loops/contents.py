"""What stands within each statement of a function: loops, memory, names, barriers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from bringup.loops.form import (
    DEFINING,
    NESTING,
    Alloc,
    Barrier,
    For,
    Func,
    If,
    LoopKind,
    Shuffle,
    Space,
    Stmt,
)


class Contents:
    """What stands in a block, at any depth.

    loops: the names of its loops, outer ones first.  kinds: those of the loops.
    spaces: of the buffers that it allocates.
    buffers, scalars: the names of those that it allocates and computes, each as often as it does.
    has_barrier: whether threads meet somewhere in it, or exchange values.
    """

    __slots__ = ("buffers", "has_barrier", "kinds", "loops", "scalars", "spaces")

    def __init__(self) -> None:
        self.loops: dict[str, None] = {}
        self.kinds: set[LoopKind] = set()
        self.spaces: set[Space] = set()
        self.buffers: list[str] = []
        self.scalars: list[str] = []
        self.has_barrier = False

    def add(self, stmt: Stmt) -> None:
        """One more statement of the block."""
        if isinstance(stmt, DEFINING):
            self.scalars.append(stmt.result.name)
            self.has_barrier |= isinstance(stmt, Shuffle)
        elif isinstance(stmt, NESTING):
            part = contents_of(stmt)
            self.loops.update(part.loops)
            self.kinds |= part.kinds
            self.spaces |= part.spaces
            self.buffers += part.buffers
            self.scalars += part.scalars
            self.has_barrier |= part.has_barrier
        elif isinstance(stmt, Alloc):
            self.spaces.add(stmt.buffer.space)
            self.buffers.append(stmt.buffer.name)
        elif isinstance(stmt, Barrier):
            self.has_barrier = True

    def within(self, loop: For) -> Contents:
        """What stands in the loop, whose body this is, and the loop itself."""
        found = Contents()
        found.loops = {loop.axis.name: None, **self.loops}
        found.kinds = self.kinds if loop.kind in self.kinds else {loop.kind, *self.kinds}
        found.spaces, found.buffers, found.scalars = self.spaces, self.buffers, self.scalars
        found.has_barrier = self.has_barrier
        return found


def contents_in(body: Sequence[Stmt]) -> Contents:
    """What stands in a block."""
    if len(body) == 1 and isinstance(body[0], NESTING):
        return contents_of(body[0])
    found = Contents()
    for stmt in body:
        found.add(stmt)
    return found


def contents_of(stmt: For | If) -> Contents:
    """A statement and what stands in it, which it remembers; nobody changes that."""
    try:
        found: Contents = stmt._memo
    except AttributeError:
        found = contents_in(stmt.body)
        if isinstance(stmt, For):
            found = found.within(stmt)
        object.__setattr__(stmt, "_memo", found)
    return found


@lru_cache(maxsize=1)
def contents(func: Func) -> Contents:
    """What stands in a function; steps ask several times for each."""
    return contents_in(func.body)


__all__ = ["Contents", "contents", "contents_in", "contents_of"]

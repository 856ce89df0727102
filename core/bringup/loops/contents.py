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

    def __init__(self, body: Sequence[Stmt]) -> None:
        self.loops: dict[str, None] = {}
        self.kinds: set[LoopKind] = set()
        self.spaces: set[Space] = set()
        self.buffers: list[str] = []
        self.scalars: list[str] = []
        self.has_barrier = False
        if len(body) == 1 and isinstance(body[0], NESTING):
            self._nest(body[0])
            return
        for stmt in body:
            if isinstance(stmt, DEFINING):
                self.scalars.append(stmt.result.name)
                self.has_barrier |= isinstance(stmt, Shuffle)
            elif isinstance(stmt, NESTING):
                self._add(Contents((stmt,)))
            elif isinstance(stmt, Alloc):
                self.spaces.add(stmt.buffer.space)
                self.buffers.append(stmt.buffer.name)
            elif isinstance(stmt, Barrier):
                self.has_barrier = True

    def _nest(self, stmt: For | If) -> None:
        """A block of one statement has all that is within it; nothing of that is copied."""
        inner = contents_of(stmt)
        self.loops, self.kinds, self.spaces = inner.loops, inner.kinds, inner.spaces
        self.buffers, self.scalars = inner.buffers, inner.scalars
        self.has_barrier = inner.has_barrier
        if isinstance(stmt, For):
            self.loops = {stmt.axis.name: None, **inner.loops}
            if stmt.kind not in inner.kinds:
                self.kinds = {stmt.kind, *inner.kinds}

    def _add(self, part: Contents) -> None:
        self.loops.update(part.loops)
        self.kinds |= part.kinds
        self.spaces |= part.spaces
        self.buffers += part.buffers
        self.scalars += part.scalars
        self.has_barrier |= part.has_barrier


def contents_of(stmt: For | If) -> Contents:
    """What stands in the body of a statement, which remembers it."""
    try:
        found: Contents = stmt._memo
    except AttributeError:
        found = Contents(stmt.body)
        object.__setattr__(stmt, "_memo", found)
    return found


@lru_cache(maxsize=1)
def contents(func: Func) -> Contents:
    """What stands in a function; steps ask several times for each."""
    return Contents(func.body)


__all__ = ["Contents", "contents", "contents_of"]

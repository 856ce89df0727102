"""What stands within each statement of a function: loops, memory, names, barriers."""

from __future__ import annotations

from functools import lru_cache

from bringup.loops.form import (
    Alloc,
    Barrier,
    Body,
    For,
    Func,
    If,
    Let,
    Load,
    LoopKind,
    Shuffle,
    Space,
)


class Contents:
    """What stands in a block, at any depth.

    loops: the names of its loops, outer ones first.  kinds: those of the loops.
    spaces: of the buffers that it allocates.
    buffers, scalars: the names of those that it allocates and computes, each as often as it does.
    has_barrier: whether threads meet somewhere in it, or exchange values.
    """

    def __init__(self, body: Body) -> None:
        self.loops: dict[str, None] = {}
        self.kinds: set[LoopKind] = set()
        self.spaces: set[Space] = set()
        self.buffers: list[str] = []
        self.scalars: list[str] = []
        self.has_barrier = False
        for stmt in body:
            kind = stmt.__class__
            if kind is Load or kind is Let or kind is Shuffle:
                self.scalars.append(stmt.result.name)
                self.has_barrier |= kind is Shuffle
            elif kind is For or kind is If:
                self._add(stmt)
            elif kind is Alloc:
                self.spaces.add(stmt.buffer.space)
                self.buffers.append(stmt.buffer.name)
            elif kind is Barrier:
                self.has_barrier = True

    def _add(self, stmt: For | If) -> None:
        if isinstance(stmt, For):
            self.loops[stmt.axis.name] = None
            self.kinds.add(stmt.kind)
        inner = contents_of(stmt)
        self.loops.update(inner.loops)
        self.kinds |= inner.kinds
        self.spaces |= inner.spaces
        self.buffers += inner.buffers
        self.scalars += inner.scalars
        self.has_barrier |= inner.has_barrier


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

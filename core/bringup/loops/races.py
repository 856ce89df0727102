"""Which work items accessed an element: finds accesses of two that nothing orders.

Every iteration of a ``parallel``, ``block`` or ``thread`` loop is a work item.  Items form a tree:
the function is the only item of level 0, and each such loop that is open adds a level, whose items
are iterations of one item of the level above.  Items are numbered row-major through all levels, so
the ancestors of an item follow from its number.

Two accesses of one element conflict if one of them writes, not both are atomic, neither item is an
ancestor of the other, and no synchronisation lies between them: the end of a loop of independent
iterations, or a `Barrier` where the items are threads of one block.  After a synchronisation,
accesses count as those of the item that the synchronised items have in common.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup.loops.form import For
from bringup.records import record

Array = np.ndarray[Any, Any]

#: In place of a level: no access since the memory was made.
_NOBODY = -1
# Who exactly accessed an element, where the item that is noted has items below it.
_BEFORE = 0  # the item itself, before any item below it went on
_BELOW = 1  # several items below it
_ONCE = 2  # the item itself; one of its threads does that, so that others have to wait for it


@record
class _Level:
    name: str
    size: int
    kind: str


class ItemTree:
    """The open loops whose iterations are items.

    ids: for each level the number of every item, of shape (size of the innermost loop, …, size of
    the outermost loop, 1), so that values of outer levels broadcast with those of inner ones.
    """

    def __init__(self) -> None:
        # Levels of thread loops that were left stay until another loop takes their place: the same
        # threads may come back.
        self.levels = [_Level("", 1, "")]
        self.ids: list[Array] = [np.zeros(1, np.int64)]

    @property
    def depth(self) -> int:
        """The level of the items that run now."""
        return len(self.ids) - 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a value that each item has."""
        return np.shape(self.ids[-1])

    @property
    def block(self) -> int:
        """The level above the thread loops that are open; `depth` if there are none."""
        level = self.depth
        while self.levels[level].kind == "thread":
            level -= 1
        return level

    @property
    def threads(self) -> int:
        """Threads of a block that the open loops have."""
        return math.prod(v.size for v in self.levels[self.block + 1 : self.depth + 1])

    def is_same_threads(self, loop: For) -> bool:
        """Whether the items of a loop that is about to be entered are threads that ran before."""
        level = self.depth + 1
        return level < len(self.levels) and self.levels[level] == _level(loop)

    def has_other_threads(self, loop: For) -> bool:
        """Whether other threads than those of a loop ran before."""
        return len(self.levels) > self.depth + 1 and not self.is_same_threads(loop)

    def enter(self, loop: For, values: Array) -> None:
        """Open a loop with some of its iterations, `spread`."""
        if not self.is_same_threads(loop):
            self.levels[self.depth + 1 :] = [_level(loop)]
        self.ids.append(self.ids[-1] * loop.axis.size + values)

    def spread(self, values: Array) -> Array:
        """The iterations of a loop within the loops that are open, as the first axis of arrays."""
        return values.reshape(-1, *(1 for _ in self.shape))

    def leave(self) -> None:
        """Close the innermost loop."""
        self.ids.pop()
        if self.levels[self.depth + 1].kind != "thread":
            del self.levels[self.depth + 1 :]

    def ancestors(self, items: Array, levels: Array, wanted: int) -> Array:
        """The ancestors at one level of items of any level that is not above it."""
        below = [math.prod(v.size for v in self.levels[wanted + 1 : k + 1]) for k in self._range]
        return items // np.maximum(np.array(below, np.int64), 1)[levels]

    @property
    def _range(self) -> range:
        return range(len(self.levels))

    def splits_threads(self, level: int) -> bool:
        """Whether the level below is one of threads."""
        return level < self.depth and self.levels[level + 1].kind == "thread"


def _level(loop: For) -> _Level:
    return _Level(loop.name, loop.axis.size, loop.kind)


class _Last:
    """Who accessed the elements of a memory last."""

    def __init__(self, size: int) -> None:
        self.level = np.full(size, _NOBODY, np.int8)
        self.item = np.zeros(size, np.int64)
        self.who = np.zeros(size, np.int8)

    def set(self, positions: Array, level: int | Array, item: Array, who: int | Array) -> None:
        self.level[positions], self.item[positions], self.who[positions] = level, item, who


class Accesses:
    """The last readers and writers of the elements of one memory, and what folded atomically."""

    def __init__(self, tree: ItemTree, size: int, *, private: bool) -> None:
        """private: every thread has this memory once more, where it is not a thread's own."""
        self.tree = tree
        self.own = _BEFORE if private else _ONCE
        self.writer = _Last(size)
        self.reader = _Last(size)
        self.folder = _Last(size)

    @property
    def _lasts(self) -> tuple[_Last, ...]:
        return self.writer, self.reader, self.folder

    def read(self, positions: Array, live: Array) -> tuple[int, str] | None:
        """Note a read by the items that run; which of them conflicts with others, and in what loop.

        positions: the elements read, of items where ``live``, of the items' shape, holds.
        """
        return self._share(positions, live, self.reader, (self.writer, self.folder))

    def fold(self, positions: Array, live: Array) -> tuple[int, str] | None:
        """Note an atomic fold by the items that run; see `read`."""
        return self._share(positions, live, self.folder, (self.writer, self.reader))

    def _share(
        self, positions: Array, live: Array, mine: _Last, others: Sequence[_Last]
    ) -> tuple[int, str] | None:
        """Note an access that several items may do to one element."""
        items = self._items(live)
        for last in others:
            conflict = self._conflict(last, positions, items)
            if conflict is not None:
                return conflict
        self._note_shared(mine, positions, items)
        return None

    def write(self, positions: Array, live: Array) -> tuple[int, str] | None:
        """Note a write by the items that run; see `read`."""
        items = self._items(live)
        for last in self._lasts:
            conflict = self._conflict(last, positions, items)
            if conflict is not None:
                return conflict
        order = np.argsort(positions, kind="stable")
        twice = np.flatnonzero(positions[order][1:] == positions[order][:-1])
        if twice.size:
            one, other = order[twice[0]], order[twice[0] + 1]
            level = next(k for k, of in enumerate(items) if of[one] != of[other])
            return int(other), self._loop(level)
        self.writer.set(positions, self.tree.depth, items[-1], self.own)
        return None

    def _items(self, live: Array) -> list[Array]:
        """The numbers of the items that access, level by level."""
        return [np.broadcast_to(ids, live.shape)[live] for ids in self.tree.ids]

    def _conflict(
        self, last: _Last, positions: Array, items: list[Array]
    ) -> tuple[int, str] | None:
        level, item, who = last.level[positions], last.item[positions], last.who[positions]
        clash = (level > self.tree.depth) | ((level != _NOBODY) & (who == _BELOW))
        for k, ids in enumerate(items):
            here = level == k
            clash |= here & (item != ids)
            if self.tree.splits_threads(k):
                clash |= here & (who == _ONCE)
        if not clash.any():
            return None
        at = int(np.flatnonzero(clash)[0])
        last_level = int(level[at])
        for k in range(min(last_level, self.tree.depth) + 1):
            ancestor = self.tree.ancestors(item[at : at + 1], level[at : at + 1], k)
            if ancestor[0] != items[k][at]:
                return at, self._loop(k)
        return at, self._loop(min(last_level, self.tree.depth) + 1)

    def _loop(self, level: int) -> str:
        of = self.tree.levels[level]
        return f"{of.kind} loop {of.name}" + (", without a barrier" if of.kind == "thread" else "")

    def _note_shared(self, last: _Last, positions: Array, items: list[Array]) -> None:
        """The new reader of an element is what all of its readers have in common; as for folds."""
        order = np.argsort(positions, kind="stable")
        positions = positions[order]
        starts = np.flatnonzero(np.r_[True, positions[1:] != positions[:-1]])[: positions.size]
        positions = positions[starts]
        depth = self.tree.depth
        level, who = np.full(positions.size, depth), np.full(positions.size, self.own)
        common: list[Array] = []
        for ids in items:
            least = np.minimum.reduceat(ids[order], starts) if positions.size else ids
            most = np.maximum.reduceat(ids[order], starts) if positions.size else ids
            apart = (least != most) & (level == depth)
            level[apart], who[apart] = len(common) - 1, _BELOW
            common.append(least)
        before, item, was = (
            last.level[positions],
            last.item[positions],
            last.who[positions],
        )
        shared = np.full(positions.size, _NOBODY)
        for k, ids in enumerate(common):
            both = (before >= k) & (level >= k)
            same = np.zeros(positions.size, np.bool_)
            same[both] = self.tree.ancestors(item[both], before[both], k) == ids[both]
            shared[same] = k
        splits = np.array([self.tree.splits_threads(k) for k in range(depth + 1)])
        several = (was == _BELOW) | ((was == _ONCE) & (level > before) & splits[shared])
        below = (shared < level) & (shared < before)
        below |= (shared == level) & (level < before)
        below |= (shared == before) & several
        below &= before != _NOBODY
        level = np.where(below, shared, level)
        who = np.where(below, _BELOW, who)
        last.set(positions, level, np.choose(level, common), who)

    # -- synchronisation ---------------------------------------------------------------------------

    def join(self) -> None:
        """The innermost loop, of independent iterations, is about to be left."""
        above = self.tree.depth - 1
        for last in self._lasts:
            below = last.level > above
            self._raise(last, below, above, self.own)
            last.who[(last.level == above) & (last.who == _BELOW)] = self.own

    def barrier(self, blocks: Array) -> None:
        """The threads of these blocks have met."""
        level = self.tree.block
        for last in self._lasts:
            below = last.level >= level
            ancestors = self.tree.ancestors(last.item[below], last.level[below], level)
            below[below] = np.isin(ancestors, blocks)
            self._raise(last, below, level, _BEFORE)

    def arrive(self, positions: Array, level: int, blocks: Array) -> None:
        """Elements that threads of these blocks sent have come: no thread sees that by itself."""
        self.writer.set(positions, level, blocks, _BELOW)

    def release(self, positions: Array, level: int, blocks: Array) -> None:
        """Products of these blocks have read elements: no thread sees that by itself."""
        self.reader.set(positions, level, blocks, _BELOW)

    def strangers(self) -> None:
        """Other threads than those that ran before go on in a block."""
        level = self.tree.depth
        for last in self._lasts:
            self._raise(last, last.level > level, level, _BELOW)

    def _raise(self, last: _Last, positions: Array, level: int, who: int) -> None:
        """Accesses below a level become those of an item of that level."""
        last.item[positions] = self.tree.ancestors(
            last.item[positions], last.level[positions], level
        )
        last.level[positions] = level
        last.who[positions] = who


__all__ = ["Accesses", "ItemTree"]

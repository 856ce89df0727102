"""Which lanes accessed an element: finds accesses of two lanes that nothing orders.

Every iteration of a ``parallel``, ``block`` or ``thread`` loop is a lane.  Lanes form a tree: the
function is the only lane of level 0, and each such loop that is open adds a level, whose lanes are
iterations of one lane of the level above.  Lanes are numbered row-major through all levels, so the
ancestors of a lane follow from its number.

Two accesses of one element conflict if one of them writes, neither lane is an ancestor of the
other, and no synchronisation lies between them: the end of a loop of independent iterations, or a
`Barrier` where the lanes are threads of one block.  After a synchronisation, accesses count as
those of the lane that the synchronised lanes have in common.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bringup.loops.form import For
from bringup.records import record

Array = np.ndarray[Any, Any]

#: In place of a level: no access since the memory was made.
_NOBODY = -1
# Who exactly accessed an element, where the lane that is noted has lanes below it.
_BEFORE = 0  # the lane itself, before any lane below it went on
_BELOW = 1  # several lanes below it
_ONCE = 2  # the lane itself; one of its threads does that, so that others have to wait for it


@record
class _Level:
    name: str
    size: int
    kind: str


class LaneTree:
    """The open loops whose iterations are lanes.

    ids: for each level the number of every lane, of shape (size of the innermost loop, …, size of
    the outermost loop, 1), so that values of outer levels broadcast with those of inner ones.
    """

    def __init__(self) -> None:
        # Levels of thread loops that were left stay until another loop takes their place: the same
        # threads may come back.
        self.levels = [_Level("", 1, "")]
        self.ids: list[Array] = [np.zeros(1, np.int64)]

    @property
    def depth(self) -> int:
        """The level of the lanes that run now."""
        return len(self.ids) - 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a value that each lane has."""
        return np.shape(self.ids[-1])

    @property
    def block(self) -> int:
        """The level above the thread loops that are open; `depth` if there are none."""
        level = self.depth
        while self.levels[level].kind == "thread":
            level -= 1
        return level

    def is_same_threads(self, loop: For) -> bool:
        """Whether the lanes of a loop that is about to be entered are threads that ran before."""
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

    def ancestors(self, lanes: Array, levels: Array, wanted: int) -> Array:
        """The ancestors at one level of lanes of any level that is not above it."""
        below = [math.prod(v.size for v in self.levels[wanted + 1 : k + 1]) for k in self._range]
        return lanes // np.maximum(np.array(below, np.int64), 1)[levels]

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
        self.lane = np.zeros(size, np.int64)
        self.who = np.zeros(size, np.int8)

    def set(self, cells: Array, level: int | Array, lane: Array, who: int | Array) -> None:
        self.level[cells], self.lane[cells], self.who[cells] = level, lane, who


class Accesses:
    """The last readers and writers of the elements of one memory."""

    def __init__(self, tree: LaneTree, size: int, *, private: bool) -> None:
        """private: every thread has this memory once more, where it is not a thread's own."""
        self.tree = tree
        self.own = _BEFORE if private else _ONCE
        self.writer = _Last(size)
        self.reader = _Last(size)

    def read(self, cells: Array, live: Array) -> tuple[int, str] | None:
        """Note a read by the lanes that run; the position in ``cells`` and the loop of a conflict.

        cells: those that are read, of lanes where ``live``, of the lanes' shape, holds.
        """
        lanes = self._lanes(live)
        conflict = self._conflict(self.writer, cells, lanes)
        if conflict is None:
            self._note_read(cells, lanes)
        return conflict

    def write(self, cells: Array, live: Array) -> tuple[int, str] | None:
        """Note a write by the lanes that run; see `read`."""
        lanes = self._lanes(live)
        for last in (self.writer, self.reader):
            conflict = self._conflict(last, cells, lanes)
            if conflict is not None:
                return conflict
        order = np.argsort(cells, kind="stable")
        twice = np.flatnonzero(cells[order][1:] == cells[order][:-1])
        if twice.size:
            one, other = order[twice[0]], order[twice[0] + 1]
            level = next(k for k, of in enumerate(lanes) if of[one] != of[other])
            return int(other), self._loop(level)
        self.writer.set(cells, self.tree.depth, lanes[-1], self.own)
        self.reader.level[cells] = _NOBODY
        return None

    def _lanes(self, live: Array) -> list[Array]:
        """The numbers of the lanes that access, level by level."""
        return [np.broadcast_to(ids, live.shape)[live] for ids in self.tree.ids]

    def _conflict(self, last: _Last, cells: Array, lanes: list[Array]) -> tuple[int, str] | None:
        level, lane, who = last.level[cells], last.lane[cells], last.who[cells]
        clash = (level > self.tree.depth) | ((level != _NOBODY) & (who == _BELOW))
        for k, ids in enumerate(lanes):
            here = level == k
            clash |= here & (lane != ids)
            if self.tree.splits_threads(k):
                clash |= here & (who == _ONCE)
        if not clash.any():
            return None
        at = int(np.flatnonzero(clash)[0])
        last_level = int(level[at])
        for k in range(min(last_level, self.tree.depth) + 1):
            ancestor = self.tree.ancestors(lane[at : at + 1], level[at : at + 1], k)
            if ancestor[0] != lanes[k][at]:
                return at, self._loop(k)
        return at, self._loop(min(last_level, self.tree.depth) + 1)

    def _loop(self, level: int) -> str:
        of = self.tree.levels[level]
        return f"{of.kind} loop {of.name}" + (", without a barrier" if of.kind == "thread" else "")

    def _note_read(self, cells: Array, lanes: list[Array]) -> None:
        """The new reader of an element is what all of its readers have in common."""
        order = np.argsort(cells, kind="stable")
        cells = cells[order]
        starts = np.flatnonzero(np.r_[True, cells[1:] != cells[:-1]])[: cells.size]
        cells = cells[starts]
        depth = self.tree.depth
        level, who = np.full(cells.size, depth), np.full(cells.size, self.own)
        common: list[Array] = []
        for ids in lanes:
            least = np.minimum.reduceat(ids[order], starts) if cells.size else ids
            most = np.maximum.reduceat(ids[order], starts) if cells.size else ids
            apart = (least != most) & (level == depth) & (who != _BELOW)
            level[apart], who[apart] = len(common) - 1, _BELOW
            common.append(least)
        before, lane, was = (
            self.reader.level[cells],
            self.reader.lane[cells],
            self.reader.who[cells],
        )
        shared = np.full(cells.size, _NOBODY)
        for k, ids in enumerate(common):
            both = (before >= k) & (level >= k)
            same = np.zeros(cells.size, np.bool_)
            same[both] = self.tree.ancestors(lane[both], before[both], k) == ids[both]
            shared[same] = k
        splits = np.array([self.tree.splits_threads(k) for k in range(depth + 1)])
        several = (was == _BELOW) | ((was == _ONCE) & (level > before) & splits[shared])
        below = (shared < level) & (shared < before)
        below |= (shared == level) & (level < before)
        below |= (shared == before) & several
        below &= before != _NOBODY
        level = np.where(below, shared, level)
        who = np.where(below, _BELOW, who)
        self.reader.set(cells, level, np.choose(level, common), who)

    # -- synchronisation ---------------------------------------------------------------------------

    def join(self) -> None:
        """The innermost loop, of independent iterations, is about to be left."""
        above = self.tree.depth - 1
        for last in (self.writer, self.reader):
            below = last.level > above
            self._raise(last, below, above, self.own)
            last.who[(last.level == above) & (last.who == _BELOW)] = self.own

    def barrier(self, blocks: Array) -> None:
        """The threads of these blocks have met."""
        level = self.tree.block
        for last in (self.writer, self.reader):
            below = last.level >= level
            ancestors = self.tree.ancestors(last.lane[below], last.level[below], level)
            below[below] = np.isin(ancestors, blocks)
            self._raise(last, below, level, _BEFORE)

    def strangers(self) -> None:
        """Other threads than those that ran before go on in a block."""
        level = self.tree.depth
        for last in (self.writer, self.reader):
            self._raise(last, last.level > level, level, _BELOW)

    def _raise(self, last: _Last, cells: Array, level: int, who: int) -> None:
        """Accesses below a level become those of a lane of that level."""
        last.lane[cells] = self.tree.ancestors(last.lane[cells], last.level[cells], level)
        last.level[cells] = level
        last.who[cells] = who


__all__ = ["Accesses", "LaneTree"]

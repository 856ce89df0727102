"""Memory as hardware has it: one heap, in which what runs past a block meets its neighbour."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from bringup.backend import BufferView
from bringup.errors import DeviceError, OutOfMemoryError
from bringup.types import TensorType

Array = np.ndarray[Any, Any]

ALIGNMENT = 64
#: Address space of a device, little enough to be filled; pages that nobody touches cost nothing.
CAPACITY = 1 << 25
# Blocks below this size lie at the upper end, so that those that stay do not cut up the room of
# large ones.
_SMALL = 1 << 16
# Bytes behind the last block: what runs past it meets something, as past any other.
_BEHIND = 1 << 12


@dataclass(slots=True, eq=False)
class Block:
    """A handle: ``nbytes`` at address ``start`` of a heap."""

    start: int
    nbytes: int
    alive: bool = True


class Heap:
    """A first-fit allocator over one array of bytes: large blocks from its lower end, small ones
    from its upper.  What is freed is given out again first.

    alive: bytes given out at the moment.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        raw = np.empty(capacity + _BEHIND + ALIGNMENT, np.uint8)
        first = -raw.ctypes.data % ALIGNMENT
        self.data: Array = raw[first : first + capacity + _BEHIND]
        self.alive = 0
        self._free: dict[int, list[int]] = {}
        self._end, self._top = 0, capacity
        self._lock = Lock()

    def alloc(self, nbytes: int) -> Block:
        """Memory with whatever is in it.  Raises OutOfMemoryError."""
        room = _room(nbytes)
        with self._lock:
            start = self._found(room)
            if start is None:
                self._merge()
                start = self._found(room)
            if start is None:
                raise OutOfMemoryError(f"no {nbytes} bytes left of {self.capacity}")
            self.alive += nbytes
        return Block(start, nbytes)

    def _found(self, room: int) -> int | None:
        """A place of that size, fresh if none was freed; None if there is no room."""
        waiting = self._free.get(room)
        if waiting:
            return waiting.pop()
        if self._end + room <= self._top:
            if room < _SMALL:
                self._top -= room
                return self._top
            self._end += room
            return self._end - room
        fits = [(start, n) for n, starts in self._free.items() if n > room for start in starts]
        if not fits:
            return None
        start, size = max(fits) if room < _SMALL else min(fits)
        self._free[size].remove(start)
        rest, found = start + room, start
        if room < _SMALL:
            rest, found = start, start + size - room
        self._free.setdefault(size - room, []).append(rest)
        return found

    def _merge(self) -> None:
        """Make one place of free neighbours; what lies in the middle is fresh again."""
        places = [(start, size) for size, starts in self._free.items() for start in starts]
        places.append((self._end, self._top - self._end))
        self._free = {}
        merged: list[tuple[int, int]] = []
        for start, size in sorted(places):
            if merged and sum(merged[-1]) == start:
                merged[-1] = merged[-1][0], merged[-1][1] + size
            else:
                merged.append((start, size))
        middle = next(place for place in merged if place[0] <= self._end <= sum(place))
        merged.remove(middle)
        self._end, self._top = middle[0], sum(middle)
        for start, size in merged:
            self._free.setdefault(size, []).append(start)

    def free(self, block: Block) -> None:
        """Give a block back.  Raises DeviceError if it was given back before."""
        with self._lock:
            if not block.alive:
                raise DeviceError(f"the block at {block.start} is freed twice")
            block.alive = False
            self.alive -= block.nbytes
            self._free.setdefault(_room(block.nbytes), []).append(block.start)

    def bytes_of(self, block: Block, nbytes: int) -> Array:
        """The first bytes of a block, or what lies behind it."""
        return self.data[block.start : block.start + nbytes]

    def dense(self, view: BufferView) -> Array:
        """A view as an array over the heap's own memory."""
        start = view.handle.start + view.offset
        type_: TensorType = view.type
        raw = self.data[start : start + type_.nbytes]
        return raw.view(type_.dtype.numpy).reshape(type_.shape)

    def elements(self, view: BufferView) -> tuple[Array, int]:
        """The whole heap in elements of a view's dtype, and the number of the view's first."""
        dtype = view.type.dtype.numpy
        start = view.handle.start + view.offset
        whole = self.data[start % dtype.itemsize :]
        fitting = len(whole) - len(whole) % dtype.itemsize
        return whole[:fitting].view(dtype), start // dtype.itemsize

    def close(self) -> None:
        """Let go of the memory."""
        self.data = np.empty(0, np.uint8)
        self._free.clear()


def _room(nbytes: int) -> int:
    return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)

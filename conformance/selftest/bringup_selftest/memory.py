"""Memory as hardware has it: one heap, in which what runs past a block meets its neighbour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from bringup.backend import BufferView
from bringup.errors import DeviceError, OutOfMemoryError
from bringup.kernel.evaluate import Place
from bringup.kernel.form import Kernel
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


class HeapLaunch:
    """Buffers of a launch on a heap: accesses go where the kernel says, as in hardware.

    Core's own memory raises for every access that the form forbids; a device under test has to be
    caught by what it computes.  Neighbours may be hit; what lies outside all memory is an error.
    """

    def __init__(self, heap: Heap, kernel: Kernel, views: Sequence[BufferView]) -> None:
        self.kernel = kernel
        outside = (i for i, decl in enumerate(kernel.buffers) if decl.role != "tile")
        #: Of each buffer, the array that it lies in, and the number of its first element there.
        self.arrays = {i: heap.elements(view) for i, view in zip(outside, views, strict=True)}
        self.points = 0

    def enter(self, points: Array) -> None:
        """Begin a block of grid points, each with tiles of its own."""
        self.points = points.size
        for i, decl in enumerate(self.kernel.buffers):
            if decl.role == "tile":
                self.arrays[i] = np.empty(points.size * decl.type.size, decl.type.dtype.numpy), 0

    def load(self, buffer: int, index: Array, mask: Array, where: Place) -> Array:
        """Elements where the mask holds, else 0."""
        array, _ = self.arrays[buffer]
        zero = self.kernel.buffers[buffer].type.dtype.numpy.type(0)
        # Work that no loop changes is not done for a loop of no iterations.
        live = mask & where.alive & (where.shape[1] > 0)
        at, live = np.broadcast_arrays(self._at(buffer, index), live)
        if not live.any():
            return np.full(live.shape, zero)
        if live.all():
            return np.asarray(array[_inside(array, at)])
        return np.where(live, array[_inside(array, np.where(live, at, at[live][0]))], zero)

    def store(self, buffer: int, index: Array, mask: Array, value: Array, where: Place) -> None:
        """Write where the mask holds."""
        array, _ = self.arrays[buffer]
        at = np.broadcast_to(self._at(buffer, index), where.shape)
        live = np.broadcast_to(mask & where.alive, where.shape)
        at, spread = at[live], np.broadcast_to(value, where.shape)[live]
        array[_inside(array, at)] = spread

    def _at(self, buffer: int, index: Array) -> Array:
        """Elements of a buffer's array; a tile's rows are those of the points."""
        decl = self.kernel.buffers[buffer]
        if decl.role != "tile":
            return index + self.arrays[buffer][1]
        rows = np.arange(self.points, dtype=np.int64)[:, None]
        return np.asarray(index + rows * decl.type.size)


def _inside(array: Array, at: Array) -> Array:
    if at.size and (at.min() < 0 or at.max() >= array.size):
        raise DeviceError("an address outside the device's memory")
    return at

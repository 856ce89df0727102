"""Memory of the device and pinned memory of the host, kept for reuse.

``cuMemAlloc`` takes as long as many launches and ``cuMemFree`` waits for the device, so freed
memory stays with the process.  It may be handed out again at once, while work that uses it is still
queued: that work and the next owner's run in the same stream, in order.  (Uploads, which run in
another, wait for it: see `bringup_cuda.streams`.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import numpy as np

from bringup.errors import DeviceError, OutOfMemoryError
from bringup.locks import ProcessLock
from bringup_cuda import surface
from bringup_cuda.errors import is_out_of_memory, reason_of
from bringup_cuda.targets import ALIGNMENT

#: Each power of two is cut into so many size classes, so that at most an eighth is wasted.
_CLASSES_LOG2 = 3
_PINNED_LEAST = 4096
#: Pinned blocks of a class; a transfer that needs one more waits for the oldest.
MOST_PINNED = 8


class Block:
    """A handle: ``nbytes`` bytes of device memory at ``address``.

    size: of its class.  allocation: the driver's, None once it was freed.
    used: the tick of the last work that was queued with it.
    """

    __slots__ = ("__weakref__", "address", "allocation", "nbytes", "size", "used")

    def __init__(self, address: int, nbytes: int, size: int, allocation: Any, used: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self.size = size
        self.allocation = allocation
        self.used = used

    def __repr__(self) -> str:  # pragma: no cover - only for those who debug
        state = "freed " if self.allocation is None else ""
        return f"<{state}block of {self.nbytes} bytes at {self.address:#x}>"


@lru_cache(1024)
def size_class(nbytes: int) -> int:
    """The size that an allocation of ``nbytes > 0`` bytes is rounded up to.

    >>> [size_class(n) for n in (1, 257, 4096, 4097, 1 << 20, (1 << 20) + 1)]
    [256, 512, 4096, 4608, 1048576, 1179648]
    """
    step = max(ALIGNMENT, 1 << max((nbytes - 1).bit_length() - 1 - _CLASSES_LOG2, 0))
    return (nbytes + step - 1) & -step


class DevicePool:
    """The memory of one device.  Its context must be current where the driver is asked.

    reserved: bytes that the driver gave and did not get back.  total: of the device.
    """

    def __init__(self, driver: surface.Driver, total: int, name: str) -> None:
        self.driver = driver
        self.total = total
        self.name = name
        self.reserved = 0
        self._free: dict[int, list[tuple[Any, int, int]]] = {}
        # By address: none may go when its block does, see `bringup_cuda.keeping`.
        self._owned: dict[int, Any] = {}
        self._lock = ProcessLock()

    @property
    def cached_bytes(self) -> int:
        """Kept for reuse."""
        return sum(size * len(blocks) for size, blocks in list(self._free.items()))

    @property
    def live_bytes(self) -> int:
        """Handed out, in sizes of classes."""
        return self.reserved - self.cached_bytes

    def alloc(self, nbytes: int, activated: Callable[[], AbstractContextManager[None]]) -> Block:
        """New memory; no driver call where some is kept.

        activated: gives a block inside which the context is current.
        Raises OutOfMemoryError after giving back all that is kept.
        """
        if not nbytes:
            return Block(0, 0, 0, _NOTHING, 0)
        size = size_class(nbytes)
        try:
            allocation, address, used = self._free[size].pop()
        except (KeyError, IndexError):
            with activated():
                allocation = self._fresh(nbytes, size)
            address, used = int(allocation), 0
        return Block(address, nbytes, size, allocation, used)

    def free(self, block: Block) -> None:
        """Keep the memory for reuse; needs no context.  Raises DeviceError the second time."""
        allocation, block.allocation = block.allocation, None
        if allocation is None:  # pragma: no cover - only a caller that frees twice
            raise DeviceError(f"{self.name}: memory is freed twice: {block!r}")
        if block.size:
            entry = (allocation, block.address, block.used)
            try:
                self._free[block.size].append(entry)
            except KeyError:
                self._free.setdefault(block.size, []).append(entry)

    def trim(self) -> int:
        """Give what is kept back to the driver, which waits for the device; how many bytes."""
        given = 0
        for size, blocks in list(self._free.items()):
            while blocks:
                try:
                    allocation, address, _ = blocks.pop()
                except IndexError:  # pragma: no cover - only threads at the same moment
                    break  # another thread took the last one
                given += size
                with self._lock:
                    self.reserved -= size
                    self._owned.pop(address, None)
                allocation.free()
        return given

    def _fresh(self, nbytes: int, size: int) -> Any:
        if size > self.total:
            raise self._out(nbytes, "it has not so much")
        try:
            made = self.driver.mem_alloc(size)
        except self.driver.Error as error:  # pragma: no cover on cuda-emulated - only drivers
            if not is_out_of_memory(error):
                raise
            if not self.trim():
                raise self._out(nbytes, reason_of(error)) from error
            made = self._once_more(nbytes, size)
        with self._lock:
            self.reserved += size
            self._owned[int(made)] = made
        return made

    def _once_more(
        self, nbytes: int, size: int
    ) -> Any:  # pragma: no cover on cuda-emulated - only drivers
        try:
            return self.driver.mem_alloc(size)
        except self.driver.Error as error:
            if not is_out_of_memory(error):
                raise
            raise self._out(nbytes, reason_of(error)) from error

    def _out(self, nbytes: int, reason: str) -> OutOfMemoryError:
        return OutOfMemoryError(
            f"{self.name}: no memory for a buffer of {nbytes} bytes: {reason}",
            notes=(f"{self.live_bytes} bytes are in use here, of {self.total} of the device",),
            fix="drop references to arrays, or compute in smaller pieces",
        )


#: The allocation of a block without bytes.
_NOTHING = object()


class Pinned:
    """Pinned memory of the host, in use by one transfer at a time.

    array: its bytes.  event: marks the end of the transfer.
    """

    __slots__ = ("array", "event", "size")

    def __init__(self, array: np.ndarray[Any, Any], event: Any) -> None:
        self.array = array
        self.event = event
        self.size = array.nbytes


class HostPool:
    """Pinned memory that transfers go through, because the device reads no other at full speed.

    limit: bytes; beyond it, too, a transfer waits for the oldest one of its class.
    """

    def __init__(
        self, driver: surface.Driver, event: Callable[[], Any], limit: int = 64 << 20
    ) -> None:
        self.driver = driver
        self.limit = limit
        self.bytes = 0
        self._event = event
        self._kept: dict[int, deque[Pinned]] = {}

    def take(self, nbytes: int) -> Pinned:
        """Memory of at least so many bytes that no transfer uses; give it back by `give`."""
        size = size_class(max(nbytes, _PINNED_LEAST))
        kept = self._kept.get(size)
        if kept is None:
            kept = self._kept.setdefault(size, deque())
        try:
            oldest = kept.popleft()
        except IndexError:
            return self._fresh(size)
        if oldest.event.query():
            return oldest
        if self.bytes + size > self.limit or len(kept) + 1 >= MOST_PINNED:
            oldest.event.synchronize()
            return oldest
        kept.appendleft(oldest)
        return self._fresh(size)

    def give(self, pinned: Pinned) -> None:
        """To be used again when its event has passed."""
        self._kept[pinned.size].append(pinned)

    def give_behind(self, pinned: Pinned, stream: Any) -> None:
        """To be used again behind all work so far in a stream."""
        pinned.event.record(stream)
        self.give(pinned)

    def trim(self) -> None:
        """Give back what no transfer uses."""
        for kept in self._kept.values():
            for _ in range(len(kept)):
                pinned = kept.popleft()
                if not pinned.event.query():  # pragma: no cover - only threads at the same moment
                    kept.append(pinned)
                    continue
                self.bytes -= pinned.size
                _free(pinned.array)

    def _fresh(self, size: int) -> Pinned:
        array = self.driver.pagelocked_empty(size, np.uint8)
        self.bytes += size
        return Pinned(array, self._event())


def _free(array: Any) -> None:
    array.base.free()

"""Pools of device memory and of pinned host memory.

``cuMemAlloc`` takes as long as many launches and ``cuMemFree`` waits for the device, so freed
memory stays with the process.  It may be handed out again at once, while work that uses it is still
queued: that work and the next owner's run in the same stream, in order.  (Uploads, which run in
another, wait for it: see `bringup_cuda.runtime.transfers`.)
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
from bringup_cuda.driver import protocol
from bringup_cuda.driver.errors import is_out_of_memory, reason_of
from bringup_cuda.targets import ALIGNMENT

#: Size classes per power of two, as a logarithm: at most an eighth of a block is wasted.
_CLASSES_LOG2 = 3
_MIN_PINNED = 4096
#: Pinned blocks of a size class; a transfer that needs one more waits for the oldest.
MAX_PINNED = 8


class Block:
    """A handle: ``nbytes`` bytes of device memory at ``address``.

    size: its size class.  allocation: the driver's, None once it was freed.
    used: the tick of the last work that uses it.
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
    """The memory of one device.  Its context must be current where the driver is called.

    reserved: bytes allocated from the driver.  total: bytes of the device.
    """

    def __init__(self, driver: protocol.Driver, total: int, name: str) -> None:
        self.driver = driver
        self.total = total
        self.name = name
        self.reserved = 0
        self._free: dict[int, list[tuple[Any, int, int]]] = {}
        # By address: an allocation must outlive its block, see `bringup_cuda.driver.errors.leak`.
        self._owned: dict[int, Any] = {}
        self._lock = ProcessLock()

    @property
    def cached_bytes(self) -> int:
        """Bytes that are free for reuse."""
        return sum(size * len(blocks) for size, blocks in list(self._free.items()))

    @property
    def live_bytes(self) -> int:
        """Bytes in use, in size classes."""
        return self.reserved - self.cached_bytes

    def alloc(self, nbytes: int, activated: Callable[[], AbstractContextManager[None]]) -> Block:
        """New memory, from the driver only if none is free for reuse.

        activated: makes a block inside which the context is current.
        Raises OutOfMemoryError after returning all free memory to the driver.
        """
        if not nbytes:
            return Block(0, 0, 0, _NOTHING, 0)
        size = size_class(nbytes)
        try:
            allocation, address, used = self._free[size].pop()
        except (KeyError, IndexError):
            with activated():
                allocation = self._allocate(nbytes, size)
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
        """Return free memory to the driver, which waits for the device; the number of bytes."""
        returned = 0
        for size, blocks in list(self._free.items()):
            while blocks:
                try:
                    allocation, address, _ = blocks.pop()
                except IndexError:  # pragma: no cover - only threads at the same moment
                    break  # another thread took the last one
                returned += size
                with self._lock:
                    self.reserved -= size
                    self._owned.pop(address, None)
                allocation.free()
        return returned

    def _allocate(self, nbytes: int, size: int) -> Any:
        if size > self.total:
            raise self._out(nbytes, "it has not so much")
        try:
            allocation = self.driver.mem_alloc(size)
        except self.driver.Error as error:  # pragma: no cover on cuda-emulated - only drivers
            if not is_out_of_memory(error):
                raise
            if not self.trim():
                raise self._out(nbytes, reason_of(error)) from error
            allocation = self._retry(nbytes, size)
        with self._lock:
            self.reserved += size
            self._owned[int(allocation)] = allocation
        return allocation

    def _retry(
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
    """Pinned memory that transfers go through: the device reads no other memory at full speed.

    limit: bytes beyond which a transfer waits for the oldest one of its size class.
    """

    def __init__(
        self, driver: protocol.Driver, event: Callable[[], Any], limit: int = 64 << 20
    ) -> None:
        self.driver = driver
        self.limit = limit
        self.bytes = 0
        self._event = event
        self._unused: dict[int, deque[Pinned]] = {}

    def acquire(self, nbytes: int) -> Pinned:
        """Memory of at least ``nbytes`` that no transfer uses, until `release`."""
        size = size_class(max(nbytes, _MIN_PINNED))
        unused = self._unused.get(size)
        if unused is None:
            unused = self._unused.setdefault(size, deque())
        try:
            oldest = unused.popleft()
        except IndexError:
            return self._allocate(size)
        if oldest.event.query():
            return oldest
        if self.bytes + size > self.limit or len(unused) + 1 >= MAX_PINNED:
            oldest.event.synchronize()
            return oldest
        unused.appendleft(oldest)
        return self._allocate(size)

    def release(self, pinned: Pinned) -> None:
        """Let the memory be used again after its event."""
        self._unused[pinned.size].append(pinned)

    def release_after(self, pinned: Pinned, stream: Any) -> None:
        """Let the memory be used again after all work so far in a stream."""
        pinned.event.record(stream)
        self.release(pinned)

    def trim(self) -> None:
        """Free the memory that no transfer uses."""
        for unused in self._unused.values():
            for _ in range(len(unused)):
                pinned = unused.popleft()
                if not pinned.event.query():  # pragma: no cover - only threads at the same moment
                    unused.append(pinned)
                    continue
                self.bytes -= pinned.size
                _free(pinned.array)

    def _allocate(self, size: int) -> Pinned:
        array = self.driver.pagelocked_empty(size, np.uint8)
        self.bytes += size
        return Pinned(array, self._event())


def _free(array: Any) -> None:
    array.base.free()

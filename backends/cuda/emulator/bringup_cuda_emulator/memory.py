"""The emulated GPU's memory: one range of addresses, with a map of what is allocated.

Beside each 16 bytes stands how many of them, from the first, may be touched; beside each granule
stand two records of who touched it last (`layout`).  All of it is reserved and takes memory only
where it is used.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import mmap
import sys

from bringup.records import record
from bringup_cuda_emulator.structs import SHARED_WINDOW

ALIGNMENT = 256
#: Bytes between allocations that belong to none.
GAP = 256
#: Freed memory from this size on goes back to the system.
_LARGE = 1 << 20
#: A GPU with less memory than this is of no use.
_LEAST = 64 << 20
# Python names it since 3.13.
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0


@record
class Allocation:
    """Bytes of the GPU's memory."""

    address: int
    size: int


class OutOfArena(Exception):
    """There is no room for an allocation."""


class Reserved:
    """Zeroed memory that takes none until it is touched.

    large: by large pages where there are some, for what is touched all over.
    """

    def __init__(self, size: int, *, large: bool = False) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        self._memory = mmap.mmap(-1, size, flags=flags)
        if large and hasattr(mmap, "MADV_HUGEPAGE"):
            # A kernel without them refuses.
            with contextlib.suppress(OSError):
                self._memory.madvise(mmap.MADV_HUGEPAGE)
        self.size = size
        self._view = (ctypes.c_char * 1).from_buffer(self._memory)
        self.address = ctypes.addressof(self._view)

    def forget(self, offset: int, size: int) -> None:
        """Give whole pages of this range back to the system: they hold zeros from then on."""
        start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (offset + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start and hasattr(mmap, "MADV_DONTNEED"):
            self._memory.madvise(mmap.MADV_DONTNEED, start, end - start)


def _reserve(size: int) -> tuple[Reserved, Reserved, Reserved]:
    """Data, map and cells."""
    while True:
        whole = size + SHARED_WINDOW
        try:
            data = Reserved(whole + SHARED_WINDOW)
            return data, Reserved(whole // 16), Reserved(whole * 16)
        except OSError:  # pragma: no cover - only machines with little memory
            if size <= _LEAST:
                raise
            size //= 2


class Arena:
    """The memory of one emulated GPU.

    size: in bytes, of global memory; less where the system does not let as many addresses be
    reserved, 17 for each byte.
    """

    def __init__(self, size: int = 4 << 30) -> None:
        self._data, self._map, self._cells = _reserve(size)
        self.bytes = self._data.size - SHARED_WINDOW
        self.size = self.bytes - SHARED_WINDOW
        # Low bits of an address in shared memory mean something: there as here they start at 0.
        self.address = -(-self._data.address // SHARED_WINDOW) * SHARED_WINDOW
        self.map_address = self._map.address
        self.cells_address = self._cells.address
        self._live: list[int] = []
        self._sizes: dict[int, int] = {}
        self.used = 0
        #: Allocations given back of late, for reports.
        self.freed: list[Allocation] = []

    def allocate(self, size: int) -> int:
        """The address of new memory.  Raises OutOfArena."""
        address = self._room(max(size, 1))
        bisect.insort(self._live, address)
        self._sizes[address] = size
        self.used += size
        self._mark(address, size)
        return address

    def _room(self, size: int) -> int:
        """The first gap that is wide enough: memory that was touched before is there already."""
        end = self.address + SHARED_WINDOW
        for start in (*self._live, self.address + self.bytes):
            if end + size + GAP <= start:
                return end
            end = _up(start + self._sizes.get(start, 0) + GAP)
        raise OutOfArena  # pragma: no cover - only machines with little memory

    def free(self, address: int) -> None:
        """Give back what `allocate` gave.  Raises KeyError for any other address."""
        size = self._sizes.pop(address)
        del self._live[bisect.bisect_left(self._live, address)]
        self.used -= size
        ctypes.memset(self.map_address + (address - self.address) // 16, 0, -(-size // 16))
        self.freed = [*self.freed[-63:], Allocation(address, size)]
        if size >= _LARGE:
            offset = address - self.address
            self._data.forget(offset + self.address - self._data.address, size)
            self._cells.forget(16 * offset, 16 * size)

    def share(self, shape: bytes) -> None:
        """Say which bytes of shared memory may be touched: the map's bytes from its beginning."""
        ctypes.memmove(self.map_address, shape, len(shape))
        ctypes.memset(self.map_address + len(shape), 0, 64)

    def _mark(self, address: int, size: int) -> None:
        start = self.map_address + (address - self.address) // 16
        ctypes.memset(start, 16, size // 16)
        ctypes.memset(start + size // 16, size % 16, 1)

    def find(self, address: int) -> Allocation | None:
        """The live allocation that begins last at or before an address."""
        index = bisect.bisect_right(self._live, address) - 1
        if index < 0:  # pragma: no cover - only wrong calls
            return None
        return Allocation(self._live[index], self._sizes[self._live[index]])

    def holds(self, address: int, size: int) -> bool:
        """Whether these bytes are all of one live allocation."""
        found = self.find(address)
        return found is not None and address + size <= found.address + found.size


def _up(value: int) -> int:
    return -(-value // ALIGNMENT) * ALIGNMENT

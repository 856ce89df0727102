"""Device memory: opaque handles; fresh memory is poisoned, and stands between guard bands."""

from __future__ import annotations

from typing import Any, NewType

import numpy as np
import numpy.typing as npt

from bringup_simulator.errors import (
    DoubleFreeError,
    GuardError,
    InvalidHandleError,
    OutOfBoundsError,
    OutOfDeviceMemoryError,
    UseAfterFreeError,
)

__all__ = ["GUARD", "Allocation", "Handle", "Memory"]

Handle = NewType("Handle", int)
Bytes = npt.NDArray[np.uint8]

# A full vector of 8-byte elements at the default width: the longest store past an end.
GUARD = 1024
# Handles are spread out, so that arithmetic on one (handle + offset) never gives another.
_FIRST_HANDLE = 0x5EED_0001
_HANDLE_STRIDE = 0x1_0007
# No byte repeats its neighbour: a stray fill of any constant shows.
_PATTERN = (np.arange(GUARD) * 151 + 89).astype(np.uint8).tobytes()


class Allocation:
    """One buffer: payload between two guard bands.  The simulator's own, never handed out.

    retired: freed by the host, and perhaps still used by queued commands.
    """

    __slots__ = ("handle", "nbytes", "retired", "storage")

    def __init__(self, handle: Handle, nbytes: int, poison: int) -> None:
        self.handle = handle
        self.nbytes = nbytes
        self.retired = False
        self.storage: Bytes = np.empty(GUARD + nbytes + GUARD, np.uint8)
        self.storage[GUARD : GUARD + nbytes] = poison
        self._repair()

    def span(self, offset: int, nbytes: int) -> Bytes:
        """Payload bytes ``[offset, offset + nbytes)``; OutOfBoundsError if not all there."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise OutOfBoundsError(
                f"bytes [{offset}, {offset + nbytes}) of buffer {self.handle:#x}, "
                f"which has {self.nbytes}"
            )
        return self.storage[GUARD + offset : GUARD + offset + nbytes]

    def check(self) -> None:
        """Raise GuardError, naming the nearest overwritten byte, and repair the guards."""
        damage: list[str] = []
        low, high = self.storage[:GUARD], self.storage[GUARD + self.nbytes :]
        for side, guard in (("before the start", low), ("past the end", high)):
            if guard.tobytes() == _PATTERN:
                continue
            wrong = np.flatnonzero(guard != np.frombuffer(_PATTERN, np.uint8))
            nearest = GUARD - int(wrong[-1]) if guard is low else int(wrong[0]) + 1
            damage.append(f"{wrong.size} bytes {side}, the nearest {nearest} away")
        if damage:
            self._repair()
            raise GuardError(
                f"buffer {self.handle:#x} of {self.nbytes} bytes: overwritten {'; '.join(damage)}"
            )

    def _repair(self) -> None:
        pattern = np.frombuffer(_PATTERN, np.uint8)
        self.storage[:GUARD] = pattern
        self.storage[GUARD + self.nbytes :] = pattern


class Memory:
    """Every allocation of one device and their counters.

    A buffer goes through three states: live; retired (freed by the host, still used by queued
    commands, its handle already invalid); released.
    """

    def __init__(self, capacity: int, poison: int, index: int) -> None:
        self.capacity = capacity
        self.poison = poison
        self.live_bytes = 0
        self.live_allocations = 0
        self.peak_bytes = 0
        self._resident = 0
        self._allocations: dict[int, Allocation] = {}
        # Devices count in residues of their own, so that none takes another's handle.
        self._first = self._next = _FIRST_HANDLE + index

    def fits(self, nbytes: int) -> bool:
        """Whether ``allocate(nbytes)`` would find room now."""
        return self._resident + nbytes <= self.capacity

    def allocate(self, nbytes: int) -> Handle:
        """A fresh, poisoned buffer; zero bytes are allowed and get a handle of their own."""
        if nbytes < 0:
            raise ValueError(f"cannot allocate {nbytes} bytes")
        if not self.fits(nbytes):
            raise OutOfDeviceMemoryError(
                f"{nbytes} bytes asked for, {self.capacity - self._resident} of {self.capacity} "
                f"free, {self.live_allocations} allocations live"
            )
        handle = Handle(self._next)
        self._next += _HANDLE_STRIDE
        self._allocations[handle] = Allocation(handle, nbytes, self.poison)
        self._resident += nbytes
        self.live_bytes += nbytes
        self.live_allocations += 1
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return handle

    def find(self, handle: Any) -> Allocation:
        """The live buffer of ``handle``; UseAfterFreeError or InvalidHandleError otherwise."""
        allocation = self._allocations.get(handle) if type(handle) is int else None
        if allocation is not None and not allocation.retired:
            return allocation
        if self._was_issued(handle):
            raise UseAfterFreeError(f"buffer {handle:#x} was freed")
        raise InvalidHandleError(f"{handle!r} is no handle of this device")

    def retire(self, handle: Handle) -> Allocation:
        """Invalidate the handle now; the storage stays until ``release``."""
        try:
            allocation = self.find(handle)
        except UseAfterFreeError:
            raise DoubleFreeError(f"buffer {handle:#x} was freed before") from None
        allocation.retired = True
        self.live_bytes -= allocation.nbytes
        self.live_allocations -= 1
        return allocation

    def release(self, allocation: Allocation) -> None:
        """Give a retired buffer's storage back, then check its guards a last time."""
        del self._allocations[allocation.handle]
        self._resident -= allocation.nbytes
        allocation.check()

    def check(self) -> None:
        """Check the guards of every buffer; the first damage found is raised."""
        for allocation in self._allocations.values():
            allocation.check()

    def _was_issued(self, handle: Any) -> bool:
        if type(handle) is not int or not self._first <= handle < self._next:
            return False
        return (handle - self._first) % _HANDLE_STRIDE == 0

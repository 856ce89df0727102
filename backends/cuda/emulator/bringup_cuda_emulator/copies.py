"""Memory of the emulated driver: the devices' and the host's, and copies between them."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np

from bringup_cuda_emulator.arena import OutOfArena
from bringup_cuda_emulator.contexts import (
    LogicError,
    MemoryError,
    State,
    current,
    stream_of,
    waited,
)
from bringup_cuda_emulator.queues import LOCK, is_working
from bringup_cuda_emulator.report import EmulatorError


class DeviceAllocation:
    """Memory of a device."""

    def __init__(self, state: State, address: int) -> None:
        self._address = address
        # The garbage collector calls for every object of a cycle that it tracks before any of them
        # is gone, and a finaliser may keep this one.  It does not track arrays of numpy.
        self._held = np.empty(0, np.uint8)
        self._free = weakref.finalize(self._held, _give_back, state, address)
        self._free.atexit = False

    def __int__(self) -> int:
        return self._address

    def free(self) -> None:
        """Run all work of the device, then give the memory back."""
        if not self._free.alive:  # pragma: no cover - only wrong calls
            raise LogicError("cuMemFree failed: invalid argument")
        state = current("cuMemFree")
        waited(state, "cuMemFree", state.queues.wait_all)
        self._free()


def _give_back(state: State, address: int) -> None:
    with LOCK:
        state.dropped.append(address)
        if not is_working():  # pragma: no branch - else the garbage collector called
            _free_dropped(state)


def _free_dropped(state: State) -> None:
    """Run all work, then free what nobody holds."""
    while state.dropped:
        address = state.dropped.pop()
        done = state.failed is not None
        while not done:
            try:
                state.queues.wait_all()
                done = True
            except EmulatorError as error:  # pragma: no cover - only wrong kernels
                state.pending = state.fail("cuMemFree", error)
        state.gpu.arena.free(address)


def mem_alloc(bytes: int, /) -> DeviceAllocation:
    """New memory, which holds whatever it held."""
    state = current("cuMemAlloc")
    if bytes <= 0:  # pragma: no cover - only wrong calls
        raise LogicError("cuMemAlloc failed: invalid argument")
    with LOCK:
        _free_dropped(state)
        try:
            return DeviceAllocation(state, state.gpu.arena.allocate(bytes))
        except OutOfArena:  # pragma: no cover - only machines with little memory
            raise MemoryError("cuMemAlloc failed: out of memory") from None


# -- memory of the host ----------------------------------------------------------------------------

_pinned: dict[int, int] = {}


class _Pinned:
    """Pinned memory; numpy's arrays on it have it as their base."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], order: str) -> None:
        own = np.empty(shape, dtype, "F" if order == "F" else "C")
        self._own: np.ndarray[Any, Any] | None = own
        self.__array_interface__ = own.__array_interface__
        self._address = own.ctypes.data
        _pinned[self._address] = own.nbytes
        weakref.finalize(self, _pinned.pop, self._address, None).atexit = False

    def free(self) -> None:
        """Give it back."""
        if self._own is None:  # pragma: no cover - only wrong calls
            raise LogicError("cuMemFreeHost failed: invalid argument")
        _pinned.pop(self._address, None)
        self._own = None


def pagelocked_empty(
    shape: Any, dtype: Any, order: str = "C", mem_flags: int = 0
) -> np.ndarray[Any, Any]:
    """Pinned memory as an array."""
    current("cuMemHostAlloc")
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    return np.asarray(_Pinned(dims, np.dtype(dtype), order))


def _bytes_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bytes of a contiguous array."""
    flat = array.reshape(-1, order="A") if array.ndim != 1 else array
    return flat.view(np.uint8)


def _is_pinned(array: np.ndarray[Any, Any]) -> bool:
    start = array.ctypes.data
    return any(a <= start and start + array.nbytes <= a + n for a, n in _pinned.items())


def owned(state: State, call: str, address: int, size: int) -> None:
    """Raises LogicError unless the bytes are all of one allocation."""
    if not state.gpu.arena.holds(address, size):  # pragma: no cover - only wrong calls
        raise LogicError(f"{call} failed: invalid argument")


def memcpy_htod_async(dest: Any, src: Any, stream: Any = None) -> None:
    """Queue a copy from the host; memory that is not pinned is read at once."""
    call = "cuMemcpyHtoDAsync"
    queue, data, address = stream_of(stream, call), _bytes_of(src), int(dest)
    owned(queue.state, call, address, data.nbytes)
    if not _is_pinned(data):  # pragma: no cover - only calls by hand
        data = data.copy()
    queue.add(lambda: move(address, data.ctypes.data, data.nbytes, data))


def memcpy_dtoh_async(dest: Any, src: Any, stream: Any = None) -> None:
    """Queue a copy to the host; to memory that is not pinned it is done at once."""
    call = "cuMemcpyDtoHAsync"
    queue, data, address = stream_of(stream, call), _bytes_of(dest), int(src)
    owned(queue.state, call, address, data.nbytes)
    queue.add(lambda: move(data.ctypes.data, address, data.nbytes, data))
    if not _is_pinned(data):  # pragma: no cover - only calls by hand
        queue.synchronize()


def memcpy_dtod_async(dest: Any, src: Any, size: int, stream: Any = None) -> None:
    """Queue a copy within the device."""
    call = "cuMemcpyDtoDAsync"
    queue, to, start = stream_of(stream, call), int(dest), int(src)
    owned(queue.state, call, to, size)
    owned(queue.state, call, start, size)
    queue.add(lambda: move(to, start, size))


def memset_d8_async(dest: Any, data: int, size: int, stream: Any = None) -> None:
    """Queue setting bytes."""
    call = "cuMemsetD8Async"
    queue, address = stream_of(stream, call), int(dest)
    owned(queue.state, call, address, size)

    def fill() -> None:
        ctypes.memset(address, data, size)

    queue.add(fill)


def move(to: int, start: int, size: int, keep: object = None) -> None:
    """keep: what must live until then."""
    ctypes.memmove(to, start, size)

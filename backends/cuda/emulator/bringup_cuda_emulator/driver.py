"""The emulator as a driver, as `bringup_cuda.driver.protocol` describes it.

Kernels are LLVM IR and run on the host, checked; memory is the host's; everything computes real
results.  Like a GPU it is asynchronous: queued work runs when something waits for it (`streams`),
and host memory that a copy reads is read then.  What no kernel may do raises LaunchError at the
wait, with the report of the emulator.
"""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bringup.errors import CompileError
from bringup_cuda_emulator.gpu import EmulatorError
from bringup_cuda_emulator.memory import OutOfArena
from bringup_cuda_emulator.native import Loaded, load
from bringup_cuda_emulator.rewrite import size_of
from bringup_cuda_emulator.streams import (
    FREE_SHARED,
    LOCK,
    MOST_SHARED,
    Context,
    Device,
    Error,
    Event,
    LaunchError,
    LogicError,
    MemoryError,
    RuntimeError,
    State,
    Stream,
    current,
    device_attribute,
    event_flags,
    function_attribute,
    init,
    is_working,
    stream_of,
    waited,
)


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


class Function:
    """A kernel."""

    def __init__(self, module: Loaded, name: str) -> None:
        self._module = module
        self._name = name
        self._code = module.kernels[name]
        self._letters = ""
        self._static = sum(v.size for v in self._code.shared)
        self._dynamic = FREE_SHARED - self._static

    def prepare(self, arg_types: Sequence[Any]) -> Function:
        """Say what calls pass, as letters of `struct`.  Raises LogicError unless it fits."""
        letters = "".join(str(letter) for letter in arg_types)
        wanted = [size_of(type) for type in self._code.params]
        given = [8 if letter == "P" else struct.calcsize(letter) for letter in letters]
        if wanted != given:  # pragma: no cover - only wrong calls
            raise LogicError(
                f"{self._name} takes {', '.join(self._code.params)}, and is prepared for {letters}"
            )
        self._letters = letters
        return self

    def prepared_async_call(
        self,
        grid: tuple[int, ...],
        block: tuple[int, int, int],
        stream: Any,
        *args: Any,
        shared_size: int = 0,
    ) -> None:
        """Queue a launch."""
        call = "cuLaunchKernel"
        queue = stream_of(stream, call)
        x, y, z = (*grid, 1, 1)[:3]
        threads = block[0] * block[1] * block[2]
        fits = shared_size <= self._dynamic and y <= 65535 and z <= 65535 and block[2] <= 64
        fits = fits and min(x, y, z, *block) >= 1 and threads <= 1024
        if not fits or len(args) != len(self._letters):  # pragma: no cover - only wrong calls
            raise LogicError(f"{call} failed: invalid argument")
        state, module, name = queue.state, self._module, self._name
        given = [int(a) if c == "P" else a for a, c in zip(args, self._letters, strict=True)]
        queue.add(lambda: state.gpu.launch(module, name, (x, y, z), block, given, shared_size))

    def get_attribute(self, attr: Any) -> int:
        """One of `function_attribute`; registers are not counted."""
        return {
            function_attribute.MAX_THREADS_PER_BLOCK: 1024,
            function_attribute.SHARED_SIZE_BYTES: self._static,
            function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES: self._dynamic,
        }.get(attr, 0)

    def set_attribute(self, attr: Any, value: int) -> None:
        """Allow more dynamic shared memory."""
        most = MOST_SHARED - self._static
        dynamic = attr == function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
        if not dynamic or not 0 <= value <= most:  # pragma: no cover - only wrong calls
            raise LogicError("cuFuncSetAttribute failed: invalid argument")
        self._dynamic = value


class Module:
    """Loaded code."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded

    def get_function(self, name: str) -> Function:
        """A kernel by its name."""
        if name not in self._loaded.kernels:  # pragma: no cover - only wrong calls
            raise LogicError("cuModuleGetFunction failed: named symbol not found")
        return Function(self._loaded, name)


def module_from_buffer(
    buffer: Any,
    options: Sequence[tuple[Any, Any]] = (),
    message_handler: Callable[[bool, str, str], None] | None = None,
) -> Module:
    """Load LLVM IR."""
    call = "cuModuleLoadDataEx"
    current(call)
    text = bytes(buffer).rstrip(b"\0").decode()
    try:
        loaded = load(text)
    except CompileError as error:  # pragma: no cover - only wrong kernels
        log = f"{error.what}\n{error.log}".strip()
        if message_handler is not None:
            message_handler(False, "", log)
        raise LogicError(f"{call} failed: a PTX JIT compilation failed - {log}") from error
    for name, code in loaded.kernels.items():
        if sum(v.size for v in code.shared) > FREE_SHARED:  # pragma: no cover - only wrong kernels
            raise LogicError(f"{call} failed: {name} uses too much shared data")
    return Module(loaded)


# -- what pycuda lacks -----------------------------------------------------------------------------


class Graph:
    """Work captured once."""

    def __init__(self, state: State, actions: Sequence[Callable[[], None]]) -> None:
        self._state = state
        self._actions: Sequence[Callable[[], None]] | None = tuple(actions)

    def launch(self, stream: Any) -> None:
        """Queue all of it."""
        actions, queue = self._actions, stream_of(stream, "cuGraphLaunch")
        if actions is None:  # pragma: no cover - only wrong calls
            raise LogicError("cuGraphLaunch failed: invalid argument")

        def run() -> None:
            for action in actions:
                action()

        queue.add(run)

    def free(self) -> None:
        """Give it back."""
        self._actions = None


class _Extras:
    """`protocol.Extras`."""

    def begin_capture(self, stream: Any) -> None:
        """Remember work of the stream from now on."""
        queue = stream_of(stream, "cuStreamBeginCapture")
        if queue.captured is not None:  # pragma: no cover - only wrong calls
            raise LogicError("cuStreamBeginCapture failed: operation not permitted")
        queue.captured = []

    def end_capture(self, stream: Any) -> Graph:
        """The work remembered."""
        queue = stream_of(stream, "cuStreamEndCapture")
        if queue.captured is None:  # pragma: no cover - only wrong calls
            raise LogicError("cuStreamEndCapture failed: operation not permitted")
        actions, queue.captured = queue.captured, None
        return Graph(queue.state, actions)

    def make_wait(self, waiting: int, stream: Any) -> None:  # pragma: no cover - only calls by hand
        """Wait here: no other library has streams of this device."""
        stream_of(stream, "cuStreamWaitEvent").synchronize()

    def memcpy_peer_async(
        self,
        dest: Any,
        dest_context: Any,
        src: Any,
        src_context: Any,
        size: int,
        stream: Any,
    ) -> None:
        """Queue a copy between devices."""
        call = "cuMemcpyPeerAsync"
        queue, to, start = stream_of(stream, call), int(dest), int(src)
        owned(dest_context.state, call, to, size)
        owned(src_context.state, call, start, size)
        queue.add(lambda: move(to, start, size))


extras = _Extras()

__all__ = [
    "Context", "Device", "DeviceAllocation", "Error", "Event", "Function", "Graph", "LaunchError",
    "LogicError", "MemoryError", "Module", "RuntimeError", "Stream", "device_attribute",
    "event_flags", "extras", "function_attribute", "init", "mem_alloc",
    "memcpy_dtod_async", "memcpy_dtoh_async", "memcpy_htod_async",
    "memset_d8_async", "module_from_buffer", "pagelocked_empty",
]  # fmt: skip

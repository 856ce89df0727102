"""The emulator as a driver: that part of ``pycuda.driver`` that `bringup_cuda.surface` describes.

Kernels are LLVM IR and run on the host, checked; memory is the host's; everything computes real
results.  Like a GPU it is asynchronous: queued work runs when something waits for it (`queues`),
and memory of the host that a copy reads is read then.  What no kernel may do raises LaunchError at
the wait, with the report of the emulator; as on hardware the context is of no use from then on.
"""

from __future__ import annotations

import builtins
import ctypes
import os
import struct
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bringup.errors import CompileError
from bringup_cuda.emulator.arena import OutOfArena
from bringup_cuda.emulator.gpu import Gpu
from bringup_cuda.emulator.layout import Fault
from bringup_cuda.emulator.loading import Loaded, load
from bringup_cuda.emulator.queues import LOCK, Queues, Work
from bringup_cuda.emulator.report import KINDS, EmulatorError
from bringup_cuda.emulator.rewrite import size_of

#: How many GPUs there are, and how much memory each has.
DEVICES = 2
MEMORY = 4 << 30
#: Picks the order of blocks, threads and streams; 0 is ascending, and as late as may be.
SEED = "BRINGUP_EMULATOR_SEED"

_FREE_SHARED = 48 << 10
_MOST_SHARED = 227 << 10


class Error(Exception):
    """The base of the driver's errors."""


class MemoryError(Error, builtins.MemoryError):
    """There is not enough memory."""


class LogicError(Error):
    """A call that makes no sense."""


class LaunchError(Error):
    """Queued work failed."""


class RuntimeError(Error):
    """Anything else."""


class device_attribute:  # pycuda's spelling
    """What `Device.get_attribute` can tell."""

    MULTIPROCESSOR_COUNT = 16
    MAX_THREADS_PER_MULTIPROCESSOR = 39
    ASYNC_ENGINE_COUNT = 40
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97
    PCI_BUS_ID = 33
    CLOCK_RATE = 13


class function_attribute:  # pycuda's spelling
    """What `Function.get_attribute` can tell."""

    MAX_THREADS_PER_BLOCK = 0
    SHARED_SIZE_BYTES = 1
    LOCAL_SIZE_BYTES = 3
    NUM_REGS = 4
    MAX_DYNAMIC_SHARED_SIZE_BYTES = 8


class event_flags:  # pycuda's spelling
    """Of `Event`."""

    DEFAULT = 0
    BLOCKING_SYNC = 1
    DISABLE_TIMING = 2


#: Few multiprocessors: a grid of the usual size for them is quickly run.
_DEVICE_FACTS = {
    device_attribute.MULTIPROCESSOR_COUNT: 4,
    device_attribute.MAX_THREADS_PER_MULTIPROCESSOR: 2048,
    device_attribute.ASYNC_ENGINE_COUNT: 2,
    device_attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: _MOST_SHARED,
    device_attribute.CLOCK_RATE: 1_000_000,
}
#: What hardware says of a fault that it notices; it calls the rest what ends a kernel for no
#: reason that it knows.
_TEXTS = {
    KINDS[Fault.OUTSIDE]: "an illegal memory access was encountered",
    KINDS[Fault.MISALIGNED]: "misaligned address",
    KINDS[Fault.WRONG_SPACE]: "operation not supported on global/shared address space",
    KINDS[Fault.TRAP]: "an illegal instruction was encountered",
}
_UNKNOWN = "unspecified launch failure"

_initialised = False
_stacks = threading.local()


class _State:
    """One GPU with the work that is queued for it.  failed: the error that ended its context."""

    def __init__(self, index: int) -> None:
        seed = int(os.environ.get(SEED, "0"))
        self.index = index
        self.gpu = Gpu(MEMORY, seed)
        self.queues = Queues(seed)
        self.failed: LaunchError | None = None
        self.handles = 0x1000 * (index + 1)

    def handle(self) -> int:
        self.handles += 1
        return self.handles

    def usable(self) -> None:
        if self.failed is not None:
            raise LaunchError(*self.failed.args)

    def fail(self, call: str, error: EmulatorError) -> LaunchError:
        said = "; ".join(line.strip() for line in str(error).splitlines())
        text = _TEXTS.get(error.finding.kind, _UNKNOWN)
        self.failed = LaunchError(f"{call} failed: {text} ({said})")
        return self.failed


_states: dict[int, _State] = {}


def _state(index: int) -> _State:
    with LOCK:
        if index not in _states:
            _states[index] = _State(index)
        return _states[index]


def _stack() -> list[Context]:
    found: list[Context] | None = getattr(_stacks, "contexts", None)
    if found is None:
        found = _stacks.contexts = []
    return found


def _current(call: str) -> _State:
    """The device of the current context.  Raises LogicError without one, the error that ended it."""
    stack = _stack()
    if not stack:
        raise LogicError(f"{call} failed: invalid device context")
    state = stack[-1].state
    state.usable()
    return state


def _waited(state: _State, call: str, wait: Callable[[], Any]) -> Any:
    state.usable()
    try:
        return wait()
    except EmulatorError as error:
        raise state.fail(call, error) from error


def init(flags: int = 0) -> None:
    """Before anything else."""
    global _initialised
    _initialised = True


def get_version() -> tuple[int, int, int]:
    """The release that the surface is of."""
    return 12, 8, 0


def get_driver_version() -> int:
    """The same, as the driver says it."""
    return 12080


class Context:
    """A device's only context."""

    def __init__(self, state: _State) -> None:
        self.state = state
        self.handle = state.handle()

    def push(self) -> None:
        """Make it current in this thread."""
        _stack().append(self)

    @staticmethod
    def pop() -> None:
        """Make that current which was before."""
        if not _stack():
            raise LogicError("cuCtxPopCurrent failed: invalid device context")
        _stack().pop()

    @staticmethod
    def synchronize() -> None:
        """Run all work of the current context."""
        state = _current("cuCtxSynchronize")
        _waited(state, "cuCtxSynchronize", state.queues.wait_all)

    @staticmethod
    def enable_peer_access(peer: Any, flags: int = 0) -> None:
        """Emulated devices cannot reach each other's memory."""
        raise LogicError("cuCtxEnablePeerAccess failed: peer access is not supported")

    def detach(self) -> None:
        """Pop it where it is current."""
        if self in _stack():
            _stack().remove(self)


class Device:
    """An emulated GPU."""

    def __init__(self, ordinal: int, /) -> None:
        if not _initialised:
            raise LogicError("cuDeviceGet failed: initialization error")
        if not 0 <= ordinal < DEVICES:
            raise LogicError("cuDeviceGet failed: invalid device ordinal")
        self.ordinal = ordinal

    @staticmethod
    def count() -> int:
        """How many there are."""
        return DEVICES

    def name(self) -> str:
        """For people."""
        return "emulated GPU"

    def compute_capability(self) -> tuple[int, int]:
        """That of an H100: nothing here depends on it."""
        return 9, 0

    def total_memory(self) -> int:
        """In bytes."""
        return MEMORY

    def get_attribute(self, attr: Any) -> int:
        """One of `device_attribute`."""
        if attr == device_attribute.PCI_BUS_ID:
            return self.ordinal
        return _DEVICE_FACTS[attr]

    def retain_primary_context(self) -> Context:
        """The context; not pushed."""
        return Context(_state(self.ordinal))

    def can_access_peer(self, other: Any) -> int:
        """0."""
        return 0


class Stream:
    """A queue.  flags: 1 for one that the default stream does not wait for."""

    def __init__(self, flags: int = 0) -> None:
        self.state = _current("cuStreamCreate")
        self.handle = self.state.handle()
        self.blocking = not flags & 1
        self.last: Work | None = None
        self.waits: list[Work] = []
        self.captured: list[Callable[[], None]] | None = None

    def add(self, action: Callable[[], None]) -> None:
        """Queue work behind all that is here, or remember it if work is being captured."""
        if self.captured is not None:
            self.captured.append(action)
            return
        queues = self.state.queues
        with LOCK:
            before = [*self.waits, *([self.last] if self.last is not None else [])]
            if self.blocking and queues.default is not None:
                before.append(queues.default)
            self.waits.clear()
            self.last = queues.add(action, before)
            if self.blocking:
                queues.blocking[self.handle] = self.last

    def ahead(self) -> Work:
        """All that is queued here, as one piece of work."""
        before = [*self.waits, *([self.last] if self.last is not None else [])]
        return self.state.queues.add(None, before)

    def synchronize(self) -> None:
        """Run the work queued here."""
        _waited(
            self.state, "cuStreamSynchronize", lambda: self.state.queues.wait(self.ahead())
        )

    def is_done(self) -> bool:
        """Whether all that was queued here is done."""
        work = self.ahead()
        return bool(_waited(self.state, "cuStreamQuery", lambda: self.state.queues.poll(work)))

    def wait_for_event(self, evt: Event) -> None:
        """What is queued from now on comes behind the event's mark."""
        self.state.usable()
        if evt.work is not None:
            self.waits.append(evt.work)


class _Default(Stream):
    """The default stream of a device: it and blocking streams wait for each other."""

    def __init__(self, state: _State) -> None:
        self.state = state
        self.handle = 0
        self.blocking = False
        self.last = None
        self.waits = []
        self.captured = None

    def add(self, action: Callable[[], None]) -> None:
        """Queue work behind all work of blocking streams."""
        queues = self.state.queues
        self.waits += queues.blocking.values()
        super().add(action)
        queues.default = self.last


_defaults: dict[int, _Default] = {}


def _stream(stream: Any, call: str) -> Stream:
    state = _current(call)
    if stream is None:
        with LOCK:
            return _defaults.setdefault(state.index, _Default(state))
    assert isinstance(stream, Stream), stream
    if stream.state is not state:
        raise LogicError(f"{call} failed: invalid resource handle")
    return stream


class Event:
    """A mark in a stream."""

    def __init__(self, flags: int = 0) -> None:
        self.state = _current("cuEventCreate")
        self.flags = flags
        self.work: Work | None = None

    def record(self, stream: Any = None) -> Event:
        """Set the mark."""
        self.work = _stream(stream, "cuEventRecord").ahead()
        return self

    def synchronize(self) -> Event:
        """Run what is before the mark."""
        work = self.work
        if work is not None:
            _waited(self.state, "cuEventSynchronize", lambda: self.state.queues.wait(work))
        return self

    def query(self) -> bool:
        """Whether the mark was passed."""
        work = self.work
        if work is None:
            return True
        return bool(_waited(self.state, "cuEventQuery", lambda: self.state.queues.poll(work)))

    def time_since(self, event: Event) -> float:
        """Milliseconds from the other mark to this one."""
        for one in (self, event):
            if one.flags & event_flags.DISABLE_TIMING:
                raise LogicError("cuEventElapsedTime failed: invalid resource handle")
            if one.work is None or not one.work.done:
                raise LogicError("cuEventElapsedTime failed: device not ready")
        assert self.work is not None
        assert event.work is not None
        return (self.work.at - event.work.at) * 1e3


class DeviceAllocation:
    """Memory of a device."""

    def __init__(self, state: _State, address: int) -> None:
        self._address = address
        self._free = weakref.finalize(self, _give_back, state, address)
        self._free.atexit = False

    def __int__(self) -> int:
        return self._address

    def free(self) -> None:
        """Run all work of the device, then give the memory back."""
        if not self._free.alive:
            raise LogicError("cuMemFree failed: invalid argument")
        state = _current("cuMemFree")
        _waited(state, "cuMemFree", state.queues.wait_all)
        self._free()


def _give_back(state: _State, address: int) -> None:
    with LOCK:
        try:
            if state.failed is None:
                state.queues.wait_all()
        except EmulatorError as error:
            state.fail("cuMemFree", error)
        state.gpu.arena.free(address)


def mem_alloc(bytes: int, /) -> DeviceAllocation:
    """New memory, which holds whatever it held."""
    state = _current("cuMemAlloc")
    if bytes <= 0:
        raise LogicError("cuMemAlloc failed: invalid argument")
    with LOCK:
        try:
            return DeviceAllocation(state, state.gpu.arena.allocate(bytes))
        except OutOfArena:
            raise MemoryError("cuMemAlloc failed: out of memory") from None


def mem_get_info() -> tuple[int, int]:
    """(free, total) bytes of the current context's device."""
    arena = _current("cuMemGetInfo").gpu.arena
    return arena.free_bytes, arena.size


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
        if self._own is None:
            raise LogicError("cuMemFreeHost failed: invalid argument")
        _pinned.pop(self._address, None)
        self._own = None


def pagelocked_empty(
    shape: Any, dtype: Any, order: str = "C", mem_flags: int = 0
) -> np.ndarray[Any, Any]:
    """Pinned memory as an array."""
    _current("cuMemHostAlloc")
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    return np.asarray(_Pinned(dims, np.dtype(dtype), order))


def _bytes_of(buffer: Any) -> np.ndarray[Any, Any]:
    """The bytes of a contiguous buffer."""
    if isinstance(buffer, np.ndarray):
        flat = buffer.reshape(-1, order="A") if buffer.ndim != 1 else buffer
        return flat.view(np.uint8)
    return np.frombuffer(buffer, np.uint8)


def _is_pinned(array: np.ndarray[Any, Any]) -> bool:
    start = array.ctypes.data
    return any(a <= start and start + array.nbytes <= a + n for a, n in _pinned.items())


def _owned(state: _State, call: str, address: int, size: int) -> None:
    if not state.gpu.arena.holds(address, size):
        raise LogicError(f"{call} failed: invalid argument")


def memcpy_htod_async(dest: Any, src: Any, stream: Any = None) -> None:
    """Queue a copy from the host; memory that is not pinned is read at once."""
    call = "cuMemcpyHtoDAsync"
    queue, data, address = _stream(stream, call), _bytes_of(src), int(dest)
    _owned(queue.state, call, address, data.nbytes)
    if not _is_pinned(data):
        data = data.copy()
    queue.add(lambda: _move(address, data.ctypes.data, data.nbytes, data))


def memcpy_dtoh_async(dest: Any, src: Any, stream: Any = None) -> None:
    """Queue a copy to the host; to memory that is not pinned it is done at once."""
    call = "cuMemcpyDtoHAsync"
    queue, data, address = _stream(stream, call), _bytes_of(dest), int(src)
    _owned(queue.state, call, address, data.nbytes)
    queue.add(lambda: _move(data.ctypes.data, address, data.nbytes, data))
    if not _is_pinned(data):
        queue.synchronize()


def memcpy_dtod_async(dest: Any, src: Any, size: int, stream: Any = None) -> None:
    """Queue a copy within the device."""
    call = "cuMemcpyDtoDAsync"
    queue, to, start = _stream(stream, call), int(dest), int(src)
    _owned(queue.state, call, to, size)
    _owned(queue.state, call, start, size)
    queue.add(lambda: _move(to, start, size))


def memset_d8_async(dest: Any, data: int, size: int, stream: Any = None) -> None:
    """Queue setting bytes."""
    call = "cuMemsetD8Async"
    queue, address = _stream(stream, call), int(dest)
    _owned(queue.state, call, address, size)

    def fill() -> None:
        ctypes.memset(address, data, size)

    queue.add(fill)


def _move(to: int, start: int, size: int, keep: object = None) -> None:
    """keep: what must live until then."""
    ctypes.memmove(to, start, size)


# -- code ------------------------------------------------------------------------------------------


class Function:
    """A kernel."""

    def __init__(self, module: Loaded, name: str) -> None:
        self._module = module
        self._name = name
        self._code = module.kernels[name]
        self._letters = ""
        self._dynamic = _FREE_SHARED
        self._static = sum(v.size for v in self._code.shared)

    def prepare(self, arg_types: Sequence[Any]) -> Function:
        """Say what calls pass, as letters of `struct`.  Raises LogicError unless it fits."""
        letters = "".join(str(letter) for letter in arg_types)
        wanted = [size_of(type) for type in self._code.params]
        given = [8 if letter == "P" else struct.calcsize(letter) for letter in letters]
        if wanted != given:
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
        queue = _stream(stream, call)
        x, y, z = (*grid, 1, 1)[:3]
        threads = block[0] * block[1] * block[2]
        room = self._static + shared_size
        fits = shared_size <= self._dynamic and room <= max(self._dynamic, _FREE_SHARED)
        if min(x, y, z, *block) < 1 or threads > 1024 or len(args) != len(self._letters):
            raise LogicError(f"{call} failed: invalid argument")
        if not fits or y > 65535 or z > 65535 or block[2] > 64:
            raise LogicError(f"{call} failed: invalid argument")
        state, module, name = queue.state, self._module, self._name
        given = [int(a) if c == "P" else a for a, c in zip(args, self._letters, strict=True)]
        queue.add(
            lambda: state.gpu.launch(module, name, (x, y, z), block, given, shared_size)
        )

    def get_attribute(self, attr: Any) -> int:
        """One of `function_attribute`; registers are not counted."""
        return {
            function_attribute.MAX_THREADS_PER_BLOCK: 1024,
            function_attribute.SHARED_SIZE_BYTES: self._static,
            function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES: self._dynamic,
        }.get(attr, 0)

    def set_attribute(self, attr: Any, value: int) -> None:
        """Allow more dynamic shared memory."""
        most = _MOST_SHARED - self._static
        if attr != function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES or not 0 <= value <= most:
            raise LogicError("cuFuncSetAttribute failed: invalid argument")
        self._dynamic = value


class Module:
    """Loaded code."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded

    def get_function(self, name: str) -> Function:
        """A kernel by its name."""
        if name not in self._loaded.kernels:
            raise LogicError("cuModuleGetFunction failed: named symbol not found")
        return Function(self._loaded, name)


def module_from_buffer(
    buffer: Any,
    options: Sequence[tuple[Any, Any]] = (),
    message_handler: Callable[[bool, str, str], None] | None = None,
) -> Module:
    """Load LLVM IR."""
    call = "cuModuleLoadDataEx"
    _current(call)
    text = bytes(buffer).rstrip(b"\0").decode()
    try:
        loaded = load(text)
    except CompileError as error:
        log = f"{error.what}\n{error.log}".strip()
        if message_handler is not None:
            message_handler(False, "", log)
        raise LogicError(f"{call} failed: a PTX JIT compilation failed - {log}") from error
    for name, code in loaded.kernels.items():
        if sum(v.size for v in code.shared) > _FREE_SHARED:
            raise LogicError(f"{call} failed: {name} uses too much shared data")
    return Module(loaded)


# -- what pycuda lacks -----------------------------------------------------------------------------


class Graph:
    """Work captured once."""

    def __init__(self, state: _State, actions: Sequence[Callable[[], None]]) -> None:
        self._state = state
        self._actions: Sequence[Callable[[], None]] | None = tuple(actions)

    def launch(self, stream: Any) -> None:
        """Queue all of it."""
        actions, queue = self._actions, _stream(stream, "cuGraphLaunch")
        if actions is None:
            raise LogicError("cuGraphLaunch failed: invalid argument")

        def run() -> None:
            for action in actions:
                action()

        queue.add(run)

    def free(self) -> None:
        """Give it back."""
        self._actions = None


class _Extras:
    """`surface.Extras`."""

    def begin_capture(self, stream: Any) -> None:
        """Remember work of the stream from now on."""
        queue = _stream(stream, "cuStreamBeginCapture")
        if queue.captured is not None:
            raise LogicError("cuStreamBeginCapture failed: operation not permitted")
        queue.captured = []

    def end_capture(self, stream: Any) -> Graph:
        """The work remembered."""
        queue = _stream(stream, "cuStreamEndCapture")
        if queue.captured is None:
            raise LogicError("cuStreamEndCapture failed: operation not permitted")
        actions, queue.captured = queue.captured, None
        return Graph(queue.state, actions)

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
        queue, to, start = _stream(stream, call), int(dest), int(src)
        _owned(dest_context.state, call, to, size)
        _owned(src_context.state, call, start, size)
        queue.add(lambda: _move(to, start, size))


extras = _Extras()

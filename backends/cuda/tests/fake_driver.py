"""A driver that records what it is asked, runs work as late as it may, and fails on demand.

It implements `bringup_cuda.driver.protocol`.  Work of a stream runs when something waits for it, so
that whoever relies on an order that no event makes reads old bytes; with ``eager`` uploads run as
early as they may instead, so that whoever overwrites memory in use is caught as well.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

ALIGNMENT = 256
FIRST_ADDRESS = 1 << 40
#: Addresses of one device; the next one's begin behind them.
DEVICE_SPAN = 1 << 44

#: Runs a launch: the driver, the module's image, the name of the function, its arguments.
Kernel = Callable[["FakeDriver", bytes, str, tuple[int, ...]], None]


class FakeError(Exception):
    """``pycuda.driver.Error``."""


class FakeMemoryError(FakeError):
    """``pycuda.driver.MemoryError``."""


class FakeLogicError(FakeError):
    """``pycuda.driver.LogicError``."""


class FakeLaunchError(FakeError):
    """``pycuda.driver.LaunchError``."""


class FakeRuntimeError(FakeError):
    """``pycuda.driver.RuntimeError``."""


#: What a GPU of that kind says of itself.
H100 = {
    "MULTIPROCESSOR_COUNT": 132,
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 32,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 1 << 16,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 228 << 10,
}


class FakeDriver:
    """The module.  Each has devices of its own.

    calls: what was asked, in order: tuples of a name and what matters.
    kernel: what launches do; nothing by default.
    refused: texts by name of a call that fails next, each once; a pair (class, text) or a text, or
    None where one does not.
    poisoned: texts by kernel: a launch of it fails, late, with this.
    """

    Error = FakeError
    MemoryError = FakeMemoryError
    LogicError = FakeLogicError
    LaunchError = FakeLaunchError
    RuntimeError = FakeRuntimeError
    device_attribute = SimpleNamespace(**{name: name for name in H100})
    function_attribute = SimpleNamespace(
        MAX_DYNAMIC_SHARED_SIZE_BYTES="MAX_DYNAMIC_SHARED",
        NUM_REGS="NUM_REGS",
        SHARED_SIZE_BYTES="SHARED_SIZE_BYTES",
    )
    event_flags = SimpleNamespace(DEFAULT=0, BLOCKING_SYNC=1, DISABLE_TIMING=2)

    def __init__(self, devices: int = 2, memory: int = 1 << 30, *, eager: bool = False) -> None:
        self.devices = devices
        self.memory = memory
        self.eager = eager
        self.calls: list[tuple[Any, ...]] = []
        self.kernel: Kernel = lambda driver, image, name, args: None
        self.refused: dict[str, list[Any]] = {}
        self.poisoned: dict[str, str] = {}
        self.live: dict[int, np.ndarray[Any, Any]] = {}
        self.pinned: dict[int, int] = {}
        self.local = threading.local()
        self.initialised = False
        self.lock = threading.RLock()
        driver = self

        class Device(_Device):
            def __init__(self, ordinal: int) -> None:
                super().__init__(driver, ordinal)

            @staticmethod
            def count() -> int:
                return driver.devices

        class Context(_Context):
            @staticmethod
            def pop() -> None:
                driver.note("pop")
                driver.stack.pop()

            @staticmethod
            def synchronize() -> None:
                driver.current().drain()

            @staticmethod
            def enable_peer_access(peer: _Context, flags: int = 0) -> None:
                driver.asked("enable_peer_access", peer.ordinal)

        self.Device = Device
        self.Context = Context

    # -- the module's functions --------------------------------------------------------------------

    def init(self, flags: int = 0) -> None:
        self.initialised = True

    def Stream(self, flags: int = 0) -> _Stream:
        return _Stream(self, self.asked("Stream"), flags)

    def Event(self, flags: int = 0) -> _Event:
        return _Event(self, self.asked("Event"), flags)

    def mem_alloc(self, nbytes: int) -> _Allocation:
        context = self.asked("mem_alloc", nbytes)
        assert nbytes > 0
        if context.used + nbytes > self.memory:
            raise FakeMemoryError("cuMemAlloc failed: out of memory")
        return _Allocation(context, nbytes)

    def pagelocked_empty(
        self, shape: int, dtype: Any, order: str = "C", mem_flags: int = 0
    ) -> np.ndarray[Any, Any]:
        self.asked("pagelocked_empty", shape)
        holder = _Pinned(self, shape, np.dtype(dtype))
        return holder.array

    def memcpy_htod_async(self, dest: int, src: Any, stream: Any = None) -> None:
        self.asked("htod", stream.name, len(src))
        data = np.frombuffer(src, np.uint8)
        if not self.is_pinned(data):
            data = data.copy()

        def move() -> None:
            self.bytes_at(dest, data.size)[...] = data

        stream.add(move)

    def memcpy_dtoh_async(self, dest: Any, src: int, stream: Any = None) -> None:
        self.asked("dtoh", stream.name, len(dest))
        data = np.frombuffer(dest, np.uint8)
        assert data.flags.writeable

        def move() -> None:
            data[...] = self.bytes_at(src, data.size)

        stream.add(move)
        if not self.is_pinned(data):
            stream.synchronize()

    def memcpy_dtod_async(self, dest: int, src: int, size: int, stream: Any = None) -> None:
        self.asked("dtod", stream.name, size)

        def move() -> None:
            self.bytes_at(dest, size)[...] = self.bytes_at(src, size).copy()

        stream.add(move)

    def memset_d8_async(self, dest: int, data: int, size: int, stream: Any = None) -> None:
        self.asked("memset", stream.name, data, size)

        def fill() -> None:
            self.bytes_at(dest, size)[...] = data

        stream.add(fill)

    def module_from_buffer(
        self,
        buffer: bytes,
        options: Sequence[Any] = (),
        message_handler: Callable[[bool, str, str], None] | None = None,
    ) -> _Module:
        assert buffer.endswith(b"\0"), "the driver reads up to a NUL"
        try:
            context = self.asked("module_from_buffer")
        except FakeError as error:
            if message_handler is not None:
                message_handler(False, "", f"ptxas error: {error}\0\0")
            raise
        if message_handler is not None:
            message_handler(True, "", "")
        return _Module(context, bytes(buffer))

    # -- what tests ask ----------------------------------------------------------------------------

    def names(self, *of: str) -> list[str]:
        """The names of calls so far, of all or of some kinds."""
        return [c[0] for c in self.calls if not of or c[0] in of]

    def bytes_at(self, address: int, nbytes: int) -> np.ndarray[Any, Any]:
        """Memory of a device; what was freed or never given is a fault of the caller."""
        for start, data in self.live.items():
            if start <= address and address + nbytes <= start + data.size:
                return data[address - start : address - start + nbytes]
        raise AssertionError(f"{nbytes} bytes at {address:#x} are no allocation")

    def is_pinned(self, data: np.ndarray[Any, Any]) -> bool:
        """Whether an array lies in pinned memory."""
        start = data.__array_interface__["data"][0]
        return any(s <= start and start + data.size <= s + n for s, n in self.pinned.items())

    # -- bookkeeping -------------------------------------------------------------------------------

    @property
    def stack(self) -> list[_Context]:
        """The contexts pushed in this thread."""
        if not hasattr(self.local, "stack"):
            self.local.stack = []
        found: list[_Context] = self.local.stack
        return found

    def note(self, *call: Any) -> None:
        self.calls.append(call)

    def current(self) -> _Context:
        assert self.initialised, "init() comes first"
        if not self.stack:
            raise FakeLogicError("explicit_context_dependent failed: invalid device context")
        return self.stack[-1]

    def asked(self, name: str, *what: Any) -> _Context:
        """A call was made in the current context, which is returned; it may fail."""
        context = self.current()
        self.note(name, *what)
        context.check(name)
        waiting = self.refused.get(name)
        found = waiting.pop(0) if waiting else None
        if found is not None:
            kind, text = found if isinstance(found, tuple) else (FakeLogicError, found)
            raise kind(f"{name} failed: {text}")
        return context


class _Device:
    def __init__(self, driver: FakeDriver, ordinal: int) -> None:
        if not 0 <= ordinal < driver.devices:
            raise FakeLogicError("cuDeviceGet failed: invalid device ordinal")
        self.driver, self.ordinal = driver, ordinal

    def total_memory(self) -> int:
        return self.driver.memory

    def get_attribute(self, attr: Any) -> int:
        return H100[attr]

    def can_access_peer(self, other: _Device) -> int:
        return 1

    def retain_primary_context(self) -> _Context:
        made: _Context = self.driver.Context(self.driver, self.ordinal)
        return made


class _Context:
    def __init__(self, driver: FakeDriver, ordinal: int) -> None:
        self.driver, self.ordinal = driver, ordinal
        self.handle = 0xC0 + ordinal
        self.thread = threading.get_ident()
        self.streams: list[_Stream] = []
        #: What streams of other libraries wait for, by their numbers.
        self.outside: dict[int, tuple[_Stream, int]] = {}
        self.used = 0
        self.next = FIRST_ADDRESS + ordinal * DEVICE_SPAN
        self.error: tuple[type[FakeError], str] | None = None

    def push(self) -> None:
        self.driver.note("push")
        self.driver.stack.append(self)

    def detach(self) -> None:
        self.driver.note("detach")
        assert threading.get_ident() == self.thread, "pycuda would leak it"
        assert self.driver.stack.pop() is self

    def check(self, name: str) -> None:
        if self.error is not None:
            kind, text = self.error
            raise kind(f"{name} failed: {text}")

    def drain(self) -> None:
        for stream in self.streams:
            stream.run()


class _Allocation:
    def __init__(self, context: _Context, nbytes: int) -> None:
        self.context = context
        self.address = context.next
        context.next += -(-nbytes // ALIGNMENT) * ALIGNMENT + ALIGNMENT
        context.used += nbytes
        context.driver.live[self.address] = np.full(nbytes, 0xA5, np.uint8)

    def __int__(self) -> int:
        return self.address

    def free(self) -> None:
        driver = self.context.driver
        assert driver.asked("mem_free") is self.context
        self.context.drain()
        self.context.used -= driver.live.pop(self.address).size


class _Pinned:
    """What ``array.base`` is for pinned memory: it has ``free``."""

    def __init__(self, driver: FakeDriver, nbytes: int, dtype: Any) -> None:
        self.driver = driver
        self.memory = np.full(nbytes, 0x5A, np.uint8)
        self.address = self.memory.__array_interface__["data"][0]
        self.__array_interface__ = self.memory.view(dtype).__array_interface__
        driver.pinned[self.address] = nbytes
        self.array = np.asarray(self)

    def free(self) -> None:
        self.driver.note("host_free")
        del self.driver.pinned[self.address]


class _Event:
    def __init__(self, driver: FakeDriver, context: _Context, flags: int) -> None:
        self.driver, self.context, self.flags = driver, context, flags
        self.mark: tuple[_Stream, int] | None = None

    def record(self, stream: Any = None) -> _Event:
        assert self.driver.asked("record", stream.name) is self.context
        self.mark = (stream, stream.queued)
        return self

    def synchronize(self) -> _Event:
        self.driver.asked("event_synchronize")
        if self.mark is not None:
            stream, count = self.mark
            stream.run(count)
        self.context.check("cuEventSynchronize")
        return self

    def query(self) -> bool:
        self.driver.asked("query")
        return self.mark is None or self.mark[0].done >= self.mark[1]


class _Stream:
    """Counts what was queued and what is done; events are such counts."""

    def __init__(self, driver: FakeDriver, context: _Context, flags: int) -> None:
        assert flags == 1, "the stream waits for other libraries' work"
        self.driver, self.context = driver, context
        self.name = ("compute", "uploads", "capture")[len(context.streams)]
        self.handle = 0x500 + len(context.streams)
        context.streams.append(self)
        self.tasks: deque[Callable[[], None]] = deque()
        self.queued = self.done = 0
        self.captured: list[Callable[[], None]] | None = None

    def add(self, task: Callable[[], None]) -> None:
        assert self.driver.current() is self.context, "another device's stream"
        if self.captured is not None:
            self.captured.append(task)
            return
        with self.driver.lock:
            self.tasks.append(task)
            self.queued += 1
        if self.driver.eager and self.name == "uploads":
            self.run()

    def run(self, until: int | None = None) -> None:
        """Do the tasks up to a count, or all."""
        with self.driver.lock:
            while self.tasks and (until is None or self.done < until):
                task = self.tasks.popleft()
                if self.context.error is None:
                    task()
                self.done += 1

    def wait_for_event(self, event: _Event) -> None:
        self.driver.asked("wait_for_event", self.name)
        if event.mark is not None:
            stream, count = event.mark
            self.add(lambda: stream.run(count))

    def synchronize(self) -> None:
        self.driver.asked("synchronize", self.name)
        self.run()
        self.context.check("cuStreamSynchronize")


class _Module:
    def __init__(self, context: _Context, image: bytes) -> None:
        self.context, self.image = context, image

    def get_function(self, name: str) -> _Function:
        self.context.driver.asked("get_function", name)
        if name.encode() not in self.image:
            raise FakeLogicError("cuModuleGetFunction failed: named symbol not found")
        return _Function(self, name)


class _Function:
    def __init__(self, module: _Module, name: str) -> None:
        self.module, self.name = module, name
        self.format = ""
        self.attributes: dict[Any, int] = {}

    def prepare(self, arg_types: str) -> _Function:
        self.format = arg_types
        return self

    def get_attribute(self, attr: Any) -> int:
        return {"NUM_REGS": 40, "SHARED_SIZE_BYTES": 0}[attr]

    def set_attribute(self, attr: Any, value: int) -> None:
        self.module.context.driver.asked("set_attribute", attr, value)
        self.attributes[attr] = value

    def prepared_async_call(
        self, grid: Any, block: Any, stream: Any, *args: int, shared_size: int = 0
    ) -> None:
        self.module.context.driver.asked("set_block_shape")
        self._launch(grid, block, args, shared_size, stream)

    def _launch_kernel(
        self, grid: Any, block: Any, arguments: bytes, shared_size: int, stream: Any
    ) -> None:
        self._launch(grid, block, struct.unpack(self.format, arguments), shared_size, stream)

    def _launch(
        self, grid: Any, block: Any, args: tuple[int, ...], shared_size: int, stream: Any
    ) -> None:
        driver = self.module.context.driver
        driver.asked("launch", stream.name, self.name, grid, block, shared_size)
        assert len(args) == len(self.format), "arguments as prepared"

        def run() -> None:
            text = driver.poisoned.get(self.name)
            if text is not None:
                self.module.context.error = (FakeLogicError, text)
                return
            driver.kernel(driver, self.module.image, self.name, args)

        stream.add(run)


class FakeExtras:
    """`protocol.Extras`: captured graphs replay what was queued."""

    def __init__(self, driver: FakeDriver) -> None:
        self.driver = driver

    def begin_capture(self, stream: _Stream) -> None:
        self.driver.asked("begin_capture", stream.name)
        assert stream.captured is None
        assert not stream.tasks
        stream.captured = []

    def end_capture(self, stream: _Stream) -> FakeGraph:
        self.driver.asked("end_capture", stream.name)
        assert stream.captured is not None
        tasks, stream.captured = stream.captured, None
        return FakeGraph(self.driver, tasks)

    def make_wait(self, waiting: int, stream: _Stream) -> None:
        context = self.driver.asked("make_wait", waiting, stream.name)
        upto = stream.queued
        for own in context.streams:
            if own.handle == waiting:
                own.add(lambda: stream.run(upto))
        context.outside[waiting] = (stream, upto)

    def memcpy_peer_async(
        self, dest: int, dest_context: Any, src: int, src_context: Any, size: int, stream: Any
    ) -> None:
        self.driver.asked("peer", stream.name, dest_context.ordinal, src_context.ordinal, size)

        def move() -> None:
            self.driver.bytes_at(dest, size)[...] = self.driver.bytes_at(src, size)

        stream.add(move)


class FakeGraph:
    """Launches all of it again."""

    def __init__(self, driver: FakeDriver, tasks: list[Callable[[], None]]) -> None:
        self.driver, self.tasks = driver, tasks
        self.freed = False

    def launch(self, stream: _Stream) -> None:
        assert not self.freed
        self.driver.asked("graph_launch", stream.name, len(self.tasks))
        for task in self.tasks:
            stream.add(task)

    def free(self) -> None:
        assert not self.freed
        self.driver.asked("graph_free")
        self.freed = True

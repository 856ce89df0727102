"""The emulator as a driver: that part of ``pycuda.driver`` that `bringup_cuda.surface` describes.

Kernels are LLVM IR and run on the host, checked; memory is the host's; everything computes real
results.  Like a GPU it is asynchronous: queued work runs when something waits for it (`queues`),
and memory of the host that a copy reads is read then.  What no kernel may do raises LaunchError at
the wait, with the report of the emulator.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from bringup.errors import CompileError
from bringup_cuda import surface
from bringup_cuda_emulator import contexts
from bringup_cuda_emulator.contexts import (
    FREE_SHARED,
    MOST_SHARED,
    State,
    current,
    init,
    stream_of,
)
from bringup_cuda_emulator.copies import (
    DeviceAllocation,
    mem_alloc,
    memcpy_dtod_async,
    memcpy_dtoh_async,
    memcpy_htod_async,
    memset_d8_async,
    move,
    owned,
    pagelocked_empty,
)
from bringup_cuda_emulator.irtext import size_of
from bringup_cuda_emulator.loading import Loaded, load

# Typed as the surface has them: a module's names may be assigned to, so that no subtype will do.
Error: type[Exception] = contexts.Error
MemoryError: type[Exception] = contexts.MemoryError
LogicError: type[Exception] = contexts.LogicError
LaunchError: type[Exception] = contexts.LaunchError
RuntimeError: type[Exception] = contexts.RuntimeError
Device: surface.DeviceClass = contexts.Device
Context: Any = contexts.Context
Stream: Callable[..., Any] = contexts.Stream
Event: Callable[..., Any] = contexts.Event
device_attribute: Any = contexts.device_attribute
function_attribute: Any = contexts.function_attribute
event_flags: Any = contexts.event_flags


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
            raise contexts.LogicError(
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
            raise contexts.LogicError(f"{call} failed: invalid argument")
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
        dynamic = attr == contexts.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
        if not dynamic or not 0 <= value <= most:  # pragma: no cover - only wrong calls
            raise contexts.LogicError("cuFuncSetAttribute failed: invalid argument")
        self._dynamic = value


class Module:
    """Loaded code."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded

    def get_function(self, name: str) -> Function:
        """A kernel by its name."""
        if name not in self._loaded.kernels:  # pragma: no cover - only wrong calls
            raise contexts.LogicError("cuModuleGetFunction failed: named symbol not found")
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
        raise contexts.LogicError(f"{call} failed: a PTX JIT compilation failed - {log}") from error
    for name, code in loaded.kernels.items():
        if sum(v.size for v in code.shared) > FREE_SHARED:  # pragma: no cover - only wrong kernels
            raise contexts.LogicError(f"{call} failed: {name} uses too much shared data")
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
            raise contexts.LogicError("cuGraphLaunch failed: invalid argument")

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
        queue = stream_of(stream, "cuStreamBeginCapture")
        if queue.captured is not None:  # pragma: no cover - only wrong calls
            raise contexts.LogicError("cuStreamBeginCapture failed: operation not permitted")
        queue.captured = []

    def end_capture(self, stream: Any) -> Graph:
        """The work remembered."""
        queue = stream_of(stream, "cuStreamEndCapture")
        if queue.captured is None:  # pragma: no cover - only wrong calls
            raise contexts.LogicError("cuStreamEndCapture failed: operation not permitted")
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

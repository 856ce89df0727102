"""That part of ``pycuda.driver`` which the runtime calls: the one seam to a GPU.

Names, orders of arguments and classes of exceptions are pycuda's (read in the source of release
2026.1).  Three things stand behind it: ``pycuda.driver`` itself, `bringup_cuda_emulator.driver`
(the same names, on memory of the host) and the fake driver of the tests, which records.

What releases of pycuda lack (captured graphs, copies between devices that work) is `Extras`; for
real hardware `bringup_cuda.runtime.command_list` calls the driver's C library for it.

Rules of pycuda that the runtime keeps, and that a stand-in should enforce:

* Everything but `Driver.init`, `Driver.Device` and queries of a device needs a current context in
  the calling thread; what is made belongs to that context.  A thread that ends with a context left
  pushed aborts the process, so every push is popped.
* Freeing or dropping memory, streams, events or modules wants their context current, too.
* A context that is dropped without `Context.detach` is released as if it were no primary one.
* In a child of fork nothing works, and what is dropped there ends the process: see
  `bringup_cuda.driver.errors`.
* `Driver.module_from_buffer` raises UnicodeDecodeError where the driver fails before it compiles,
  and leaves the buffers for its logs as they were.
* Objects are freed when dropped; the driver does not wait for queued work that uses them.
* An error of queued work is raised by a later call, `Stream.synchronize` for one.  One that
  `bringup_cuda.driver.errors` calls sticky is raised by every call on that context from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from bringup.records import record

#: What `Driver.module_from_buffer` takes: PTX for NVIDIA's driver, LLVM IR for the emulator.
Image = Literal["ptx", "llvm"]

#: A device address, of what `Driver.mem_alloc` gave or anywhere in it.
Address = int


@record
class Library:
    """What a device is opened with.

    extras: None where there are none; programs are then queued launch by launch.
    dlpack: the type of its memory in DLPack, 0 if no other library reaches it.
    survives_errors: whether other work and memory stay intact after work fails, which is so on no
    GPU.
    """

    driver: Driver
    extras: Extras | None
    image: Image
    dlpack: int = 0
    survives_errors: bool = False


class DeviceAllocation(Protocol):
    """Device memory; ``int(allocation)`` is its address, aligned to 256 bytes."""

    def __int__(self) -> int: ...

    def free(self) -> None:
        """Give it back now.  Waits for the device, as ``cuMemFree`` does."""
        ...


class Stream(Protocol):
    """A queue: its work runs in order, at the same time as that of other streams."""

    #: ``CUstream`` as an integer.
    handle: int

    def synchronize(self) -> None:
        """Wait for all work queued so far; raises what failed in it."""
        ...

    def wait_for_event(self, evt: Event) -> None:
        """Work queued from now on waits for the work before the event's last `Event.record`."""
        ...


class Event(Protocol):
    """A mark in a stream."""

    def record(self, stream: Any = None) -> Event:
        """Set the mark behind the work queued so far in ``stream``."""
        ...

    def synchronize(self) -> Event:
        """Wait for the mark; raises what failed before it."""
        ...

    def query(self) -> bool:
        """Whether the mark was passed; raises what failed before it."""
        ...


class Context(Protocol):
    """What memory, streams and modules of one device belong to."""

    #: ``CUcontext`` as an integer.
    handle: int

    def push(self) -> None:
        """Make it current in this thread, on top of the one that was."""
        ...

    @staticmethod
    def pop() -> None:
        """Make that current in this thread which was before the last `push`."""
        ...

    @staticmethod
    def synchronize() -> None:
        """Wait for all work of the current context."""
        ...

    @staticmethod
    def enable_peer_access(peer: Any, flags: int = 0) -> None:
        """Let the current context reach the memory of another one directly.

        Raises LogicError "peer access is already enabled" the second time.
        """
        ...

    def detach(self) -> None:
        """Release it, while it is current in this thread.

        pycuda pops it then, and leaves it current to the driver.
        """
        ...


class Device(Protocol):
    """A GPU; ``Device(0)`` is the first."""

    def total_memory(self) -> int:
        """In bytes."""
        ...

    def get_attribute(self, attr: Any) -> int:
        """Of `Driver.device_attribute`."""
        ...

    def retain_primary_context(self) -> Context:
        """The context that this process shares with CUDA's runtime; not pushed.

        Every call gives an object of its own, which stands for one use of the context.
        """
        ...

    def can_access_peer(self, other: Any) -> int:
        """Whether kernels and copies here can reach memory there directly: 0 or 1."""
        ...


class DeviceClass(Protocol):
    """``pycuda.driver.Device``, the class."""

    def __call__(self, ordinal: int, /) -> Device:
        """Raises LogicError for a number that no device has."""
        ...


class Function(Protocol):
    """A kernel of a loaded module."""

    def prepare(self, arg_types: Sequence[Any]) -> Function:
        """Set what calls pass, by letters of `struct`: "P" is a pointer, "i" and "q" integers.

        One string for all of them, such as ``"PPPq"``, does as well.  Returns the function itself.
        """
        ...

    def prepared_async_call(
        self,
        grid: tuple[int, ...],
        block: tuple[int, int, int],
        stream: Any,
        *args: int | float,
        shared_size: int = 0,
    ) -> None:
        """Queue one launch.

        grid: blocks along x and, if given, y and z.
        args: as prepared; a pointer is an `Address`.
        shared_size: bytes of shared memory beyond those that the kernel declares.
        """
        ...

    def get_attribute(self, attr: Any) -> int:
        """Of `Driver.function_attribute`."""
        ...

    def set_attribute(self, attr: Any, value: int) -> None:
        """``MAX_DYNAMIC_SHARED_SIZE_BYTES`` allows a ``shared_size`` beyond 48 KiB."""
        ...


class Module(Protocol):
    """Loaded code; the functions taken from it keep it."""

    def get_function(self, name: str) -> Function:
        """Raises LogicError "named symbol not found"."""
        ...


class Driver(Protocol):
    """``pycuda.driver``, the module.

    Error: the base; MemoryError, LogicError, LaunchError and RuntimeError derive from it, and from
    no builtin.  Messages read ``"<C function> failed: <cuGetErrorString>"``; see
    `bringup_cuda.driver.errors` for those with a meaning here.

    device_attribute: MULTIPROCESSOR_COUNT, ASYNC_ENGINE_COUNT, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
    CLOCK_RATE; MAX_THREADS_PER_MULTIPROCESSOR, MAX_BLOCKS_PER_MULTIPROCESSOR,
    MAX_REGISTERS_PER_MULTIPROCESSOR, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR.
    function_attribute: NUM_REGS, LOCAL_SIZE_BYTES, SHARED_SIZE_BYTES, MAX_THREADS_PER_BLOCK,
    MAX_DYNAMIC_SHARED_SIZE_BYTES.
    event_flags: DEFAULT, DISABLE_TIMING, BLOCKING_SYNC.
    """

    @property
    def Error(self) -> type[Exception]:
        """The base of all errors; none derives from a builtin."""
        ...

    @property
    def MemoryError(self) -> type[Exception]:
        """There is not enough memory."""
        ...

    @property
    def LogicError(self) -> type[Exception]:
        """A call with wrong arguments."""
        ...

    @property
    def LaunchError(self) -> type[Exception]:
        """Queued work failed."""
        ...

    @property
    def RuntimeError(self) -> type[Exception]:
        """Any other failure."""
        ...

    @property
    def Device(self) -> DeviceClass:
        """The class of devices."""
        ...

    @property
    def Context(self) -> Any:
        """``Context.pop()`` and the other static methods are called on the class."""
        ...

    @property
    def Stream(self) -> Callable[..., Any]:
        """``Stream(flags=0)``; flag 1 is ``CU_STREAM_NON_BLOCKING``."""
        ...

    @property
    def Event(self) -> Callable[..., Any]:
        """``Event(flags=0)``."""
        ...

    @property
    def device_attribute(self) -> Any:
        """MULTIPROCESSOR_COUNT and others."""
        ...

    @property
    def function_attribute(self) -> Any:
        """NUM_REGS and others."""
        ...

    @property
    def event_flags(self) -> Any:
        """DEFAULT, DISABLE_TIMING, BLOCKING_SYNC."""
        ...

    def init(self, flags: int = 0) -> None:
        """Before anything else; any number of times.  Raises Error."""
        ...

    def mem_alloc(self, bytes: int, /) -> DeviceAllocation:
        """New memory of the current context, ``bytes > 0``.  Raises MemoryError."""
        ...

    def pagelocked_empty(
        self, shape: Any, dtype: Any, order: str = "C", mem_flags: int = 0
    ) -> np.ndarray[Any, Any]:
        """Pinned memory of the host as an array; ``array.base.free()`` gives it back."""
        ...

    def memcpy_htod_async(self, dest: Address, src: Any, stream: Any = None) -> None:
        """Queue a copy of a buffer of the host.

        From pinned memory it returns at once, and the buffer must stay as it is until the copy is
        done.  From other memory it returns when the buffer may change.
        """
        ...

    def memcpy_dtoh_async(self, dest: Any, src: Address, stream: Any = None) -> None:
        """Queue a copy into a writable buffer of the host; to memory not pinned it waits."""
        ...

    def memcpy_dtod_async(self, dest: Address, src: Address, size: int, stream: Any = None) -> None:
        """Queue a copy within the device."""
        ...

    def memset_d8_async(self, dest: Address, data: int, size: int, stream: Any = None) -> None:
        """Queue setting ``size`` bytes."""
        ...

    def module_from_buffer(
        self,
        buffer: Any,
        options: Sequence[tuple[Any, Any]] = (),
        message_handler: Callable[[bool, str, str], None] | None = None,
    ) -> Module:
        """Load code into the current context: NUL-terminated PTX or a cubin, or for the emulator
        LLVM IR (see `Image`).

        message_handler: called with (success, information, errors) of the compiler.
        Raises an Error that ends with the compiler's log.
        """
        ...


class Graph(Protocol):
    """Work captured once, to be queued as one launch."""

    def launch(self, stream: Any) -> None:
        """Queue all of it, with the very arguments it was captured with."""
        ...

    def free(self) -> None:
        """Give it back; launches that are queued still run."""
        ...


class Extras(Protocol):
    """What the runtime needs beyond pycuda's releases.  Raises the driver's own Error classes.

    For the emulator, an object of the module: `bringup_cuda_emulator.driver.extras`.
    """

    def begin_capture(self, stream: Any) -> None:
        """From now on work queued in ``stream`` is remembered instead of run.

        Other streams are not affected, nor are calls that wait, allocate or free, as the garbage
        collector may make any time (``CU_STREAM_CAPTURE_MODE_RELAXED``).
        """
        ...

    def end_capture(self, stream: Any) -> Graph:
        """The work since `begin_capture`, ready to launch."""
        ...

    def make_wait(self, waiting: int, stream: Any) -> None:
        """Work queued from now on in a stream that another library made waits for the work before
        in ``stream``.

        waiting: its ``CUstream`` as an integer; 1 is the legacy default stream, 2 that of the
        thread.
        """
        ...

    def memcpy_peer_async(
        self,
        dest: Address,
        dest_context: Any,
        src: Address,
        src_context: Any,
        size: int,
        stream: Any,
    ) -> None:
        """Queue a copy between two devices, in a stream of the current context."""
        ...

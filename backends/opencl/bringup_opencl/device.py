"""The device: buffers, a queue in order, kernels, and the errors of what was queued."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from bringup.backend import BufferView, Handle, Step, step_locator
from bringup.c import geometry, render_all, render_c, scratch_bytes, symbol, units
from bringup.errors import OutOfMemoryError
from bringup.integers import ceil_div
from bringup.llvm.choices import ChosenLoopsDevice
from bringup.loops import Func
from bringup.types import TensorType
from bringup_opencl.driver import cl
from bringup_opencl.errors import device_error, errors_of
from bringup_opencl.machine import Machine, capabilities_of, dialect_of, target_of
from bringup_opencl.programs import build

Array = np.ndarray[Any, Any]
#: So many groups of each compute unit take turns: none waits long for the slowest one.
_ROUNDS = 8
#: Bytes that one thread of a processor has done sooner than a second one wakes.
_ALONE = 16 << 10
#: A kernel, its work items, those of a group, and the bytes of each argument.
_Loaded = tuple[cl.Kernel, tuple[int], tuple[int], list[int]]
#: After so many launches those that ended are forgotten.
_REMEMBERED = 256
#: The status of a command that ended well; errors are less, and what goes on is more.
_ENDED = cl.command_execution_status.COMPLETE


class OpenCLDevice(ChosenLoopsDevice):
    """A device of one context with one queue.  A handle is a buffer, which counts its users."""

    refcounted_handles = True

    def __init__(self, device: cl.Device, machine: Machine) -> None:
        self.machine = machine
        self.target = target_of(machine)
        self.capabilities = capabilities_of(machine)
        self.context = cl.Context([device])
        self.queue = cl.CommandQueue(self.context)
        # Arguments are set before a launch, which makes two calls of what threads may share.
        self._lock = threading.RLock()
        self._launched: deque[tuple[cl.Event, Callable[[], Step | None]]] = deque()
        flags = cl.mem_flags.READ_WRITE
        if machine.unified:
            flags |= cl.mem_flags.ALLOC_HOST_PTR
        # Drivers ask the system for large buffers each time; kept ones are reused in the order of
        # the queue, so behind all work that still needs them.
        self._pool = cl.tools.MemoryPool(cl.tools.ImmediateAllocator(self.queue, flags))

    # -- memory ------------------------------------------------------------------------------------

    def alloc(self, nbytes: int) -> Handle:
        """Of any content; OpenCL has no buffer without bytes."""
        most = self.machine.buffer_bytes
        if nbytes > most:
            raise OutOfMemoryError(
                f"{self.machine.name} has no buffer of {nbytes} bytes",
                fix=f"compute in pieces of at most {most} bytes",
            )
        try:
            return self._pool.allocate(max(nbytes, 1))
        except cl.Error as error:
            what = f"no {nbytes} bytes on {self.machine.name}: {error}"
            raise device_error(error.code, what) from error

    def free(self, handle: cl.Buffer) -> None:
        """The driver does it, behind all queued work."""

    def upload(self, handle: Handle, data: memoryview) -> None:
        """Done when it returns."""
        if len(data):
            self._wait(lambda: cl.enqueue_copy(self.queue, handle, data, is_blocking=True))

    def download(self, handle: Handle, out: memoryview) -> None:
        """Behind all work before it."""
        if len(out):
            self._wait(lambda: cl.enqueue_copy(self.queue, out, handle, is_blocking=True))

    def copy(self, target: Handle, source: Handle, nbytes: int) -> None:
        """Queued."""
        if nbytes:
            with errors_of("copy"):
                cl.enqueue_copy(self.queue, target, source, byte_count=nbytes)

    def synchronize(self) -> None:
        """Wait for the queue."""
        self._wait(self.queue.finish)

    def host_view(self, handle: Handle, type_: TensorType) -> Array | None:
        """The buffer itself, mapped to be read until the array goes."""
        if not self.machine.unified or not type_.size:
            return None
        dtype, shape = np.dtype(type_.dtype.numpy), (type_.nbytes,)
        mapped, _ = self._wait(
            lambda: cl.enqueue_map_buffer(
                self.queue, handle, cl.map_flags.READ, 0, shape, np.uint8, is_blocking=True
            )
        )
        return np.asarray(_Mapped(mapped, handle)).view(dtype).reshape(type_.shape)

    def borrow(self, data: memoryview) -> Handle | None:
        """Memory of the host as a buffer, where the device sees it."""
        if not self.machine.unified or not len(data):
            return None
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR
        with errors_of("borrow"):
            return cl.Buffer(self.context, flags, hostbuf=np.frombuffer(data, np.uint8))

    # -- code --------------------------------------------------------------------------------------

    def render(self, func: Func) -> str:
        """The source of one function."""
        return render_c(func, dialect_of(self.machine))

    def build(self, funcs: Sequence[Func]) -> list[tuple[str | bytes, object]]:
        """One run of the driver's compiler for all functions of a program."""
        dialect = dialect_of(self.machine)
        source = render_all(funcs, dialect)
        program = build(self.context, self.machine, source)
        with errors_of("loading kernels"):
            # Those that are asked for by name have a Python function each, which stays.
            kernels = {kernel.function_name: kernel for kernel in program.all_kernels()}
        return [(source, self._loaded(kernels[symbol(func, dialect)], func)) for func in funcs]

    def _loaded(self, kernel: cl.Kernel, func: Func) -> _Loaded:
        """A kernel with all that its launches have in common."""
        size, group = self._size(func)
        sizes = [p.buffer.size * p.buffer.dtype.itemsize for p in func.params]
        return kernel, (size,), (group,), [max(n, 1) for n in (*sizes, self.scratch_bytes(func))]

    def scratch_bytes(self, func: Func) -> int:
        """Of all work items of a launch."""
        each = scratch_bytes(func, dialect_of(self.machine))
        return each * self._size(func)[0] if each else 0

    def _size(self, func: Func) -> tuple[int, int]:
        """Work items of a launch and of each group."""
        shape = geometry(func)
        most = _ROUNDS * self.target.multiprocessors
        if shape.threads:
            return shape.threads * max(1, min(shape.blocks, most)), shape.threads
        points = max(1, units(func))
        if self.machine.kind != "gpu":
            # A work item is a thread of the processor, whose loops are its own.
            nbytes = sum(p.buffer.size * p.buffer.dtype.itemsize for p in func.params)
            return 1 if nbytes <= _ALONE else min(points, self.target.threads * _ROUNDS), 1
        group = self.target.block
        return group * min(ceil_div(points, group), most), group

    def launch(self, loaded: _Loaded, func: Func, views: list[BufferView]) -> None:
        """Queue the kernel."""
        kernel, size, group, sizes = loaded
        launched = self._launched
        with self._lock:
            try:
                for number, view in enumerate(views):
                    handle = view.handle
                    if view.offset:
                        whole = cl.Buffer.from_int_ptr(handle.int_ptr)
                        handle = whole.get_sub_region(view.offset, sizes[number])
                    kernel.set_arg(number, handle)
                event = cl.enqueue_nd_range_kernel(self.queue, kernel, size, group)
            except cl.Error as error:
                raise device_error(error.code, f"launch of {func.name}: {error}") from error
            launched.append((event, step_locator()))
            if not len(launched) % _REMEMBERED:
                while launched and launched[0][0].command_execution_status == _ENDED:
                    launched.popleft()

    # -- errors ------------------------------------------------------------------------------------

    def _wait(self, call: Callable[[], Any]) -> Any:
        """Call what waits for the queue; raises the error of the first launch that failed."""
        try:
            result = call()
        except cl.Error as error:
            self._raise_late()
            raise device_error(error.code, f"{self.machine.name}: {error}") from error
        self._raise_late()
        return result

    def _raise_late(self) -> None:
        """Raise the error of the first launch that failed, and forget it and all before it."""
        with self._lock:
            # Other threads may have queued more meanwhile, which go on.
            while self._launched and self._launched[0][0].command_execution_status <= _ENDED:
                event, locate = self._launched.popleft()
                status = event.command_execution_status
                if status < _ENDED:
                    step = locate()
                    what = self.machine.name if step is None else step.name
                    error = device_error(status, f"{what}: {cl.status_code.to_string(status)}")
                    error.location, error.step = None if step is None else step.location, step
                    raise error

    def close(self) -> None:
        """Wait for what is queued."""
        self.queue.finish()


class _Mapped:
    """What an array of the host keeps: the buffer, which is mapped meanwhile."""

    def __init__(self, mapped: Array, handle: Handle) -> None:
        self.__array_interface__ = mapped.__array_interface__ | {"data": (mapped.ctypes.data, True)}
        self._map: Any = mapped.base
        self._handle = handle

    def __del__(self) -> None:
        # Before the buffer can be another array's.
        with suppress(cl.Error):
            self._map.release()

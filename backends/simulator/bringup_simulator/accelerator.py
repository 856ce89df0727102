"""The driver: what a vendor's library would offer to a host program."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from bringup_simulator.arithmetic import DTYPES
from bringup_simulator.compiler import Limits, compile_kernel
from bringup_simulator.errors import (
    CommandFailedError,
    CommandTimeoutError,
    DeviceLostError,
    InjectedError,
    InvalidHandleError,
    LimitError,
    OutOfDeviceMemoryError,
)
from bringup_simulator.machine import Kernel, Region, Traffic, in_memory, run_kernel
from bringup_simulator.memory import GUARD, Allocation, Handle, Memory

__all__ = ["Accelerator", "Binding", "Counters", "FaultKind", "LoadedKernel", "Operand"]

HostData = npt.NDArray[Any] | memoryview | bytes
HostMemory = npt.NDArray[Any] | memoryview
FaultKind = Literal[
    "alloc", "free", "upload", "download", "copy", "call", "launch", "load", "synchronize"
]


@dataclass(frozen=True, slots=True)
class Binding:
    """A buffer for one parameter of a kernel, from byte ``offset`` on."""

    handle: Handle
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Operand:
    """A typed window of a buffer for ``call``: C order, ``offset`` in bytes."""

    handle: Handle
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0
    writable: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes the window covers."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A kernel on one chip."""

    kernel: Kernel
    chip: Accelerator


@dataclass(frozen=True, slots=True)
class Counters:
    """A snapshot of the device's bookkeeping; all sizes in bytes.

    live_*: allocated and not yet freed by the host.  peak_bytes: highest ``live_bytes`` so far.
    kernel_read, kernel_written: moved between memory and kernels; masked lanes and the scratchpad
    are not counted.
    """

    live_bytes: int
    live_allocations: int
    peak_bytes: int
    commands: int
    launches: int
    calls: int
    uploaded: int
    downloaded: int
    copied: int
    kernel_read: int
    kernel_written: int


@dataclass(frozen=True, slots=True)
class _Command:
    """Queued work.  touches: the buffers whose guards are checked afterwards."""

    name: str
    run: Callable[[], None]
    touches: Sequence[Allocation] = ()
    tag: object = None


@dataclass(slots=True)
class _PlannedFault:
    kind: FaultKind
    after: int
    times: int
    error: Exception


class Accelerator:
    """One simulated device.

    Commands (upload, copy, call, launch) are checked when they are submitted, queued, and run in
    order but late: only when somebody waits.  A failure surfaces there as ``CommandFailedError``,
    one at each wait, and later commands still run.

    index: number of the device.  capacity: bytes of memory.  poison: byte that fills fresh memory;
    0xFF is NaN in every float type.  protect: False lets kernels write past their parameter, as a
    chip without memory protection does; the guards then tell.  Methods may be called from several
    threads; callables run with the device's lock held.

    >>> chip = Accelerator(capacity=1 << 20)
    >>> buffer = chip.alloc(16)
    >>> chip.upload(buffer, np.arange(4, dtype=np.float32))
    >>> double = '''
    ... x = output(f32, 4)
    ... for i in lanes(4):
    ...     v = load(x, i)
    ...     store(x, i, add(v, v))
    ... '''
    >>> chip.launch(chip.load(double, "double"), [Binding(buffer)])
    >>> chip.download(buffer, result := np.empty(4, np.float32))
    >>> result
    array([0., 2., 4., 6.], dtype=float32)
    """

    def __init__(
        self,
        *,
        index: int = 0,
        capacity: int = 1 << 30,
        limits: Limits | None = None,
        poison: int = 0xFF,
        protect: bool = True,
    ) -> None:
        self.index = index
        self.limits = Limits() if limits is None else limits
        self.protect = protect
        self._memory = Memory(capacity, poison, index)
        self._pending: deque[_Command] = deque()
        self._failures: deque[CommandFailedError] = deque()
        self._planned_faults: list[_PlannedFault] = []
        self._lost = ""
        self._traffic = Traffic()
        self._commands = 0
        self._done = dict.fromkeys(("launches", "calls", "uploaded", "downloaded", "copied"), 0)
        self._lock = threading.RLock()

    # --- memory -----------------------------------------------------------------------------

    def alloc(self, nbytes: int) -> Handle:
        """A buffer of ``nbytes``, poisoned; OutOfDeviceMemoryError if there is no room."""
        with self._entered("alloc"):
            if not self._memory.fits(nbytes):
                self._run_pending()
            return self._memory.allocate(nbytes)

    def free(self, handle: Handle) -> None:
        """Invalidate ``handle`` now; queued commands that use it still run.

        Raises DoubleFreeError, and GuardError if the buffer's guards are damaged (at a wait if
        commands are pending).
        """
        with self._entered("free"):
            allocation = self._memory.retire(handle)
            if self._pending:
                self._submit("free", partial(self._memory.release, allocation))
            else:
                self._memory.release(allocation)

    def nbytes(self, handle: Handle) -> int:
        """The size ``handle`` was allocated with."""
        with self._lock:
            return self._memory.find(handle).nbytes

    def upload(self, handle: Handle, data: HostData) -> None:
        """Copy ``data`` (arrays of any layout; stored in C order) to the start of a buffer.

        The bytes are taken now: the host may overwrite ``data`` as soon as this returns.
        """
        with self._entered():
            snapshot = data if isinstance(data, bytes) else np.asarray(data).tobytes()
            target = self._memory.find(handle).span(0, len(snapshot))

            def run() -> None:
                self._strike("upload")
                target[:] = np.frombuffer(snapshot, np.uint8)
                self._done["uploaded"] += len(snapshot)

            self._submit("upload", run, [self._memory.find(handle)])

    def download(self, handle: Handle, into: HostMemory) -> None:
        """Wait for all work, and fill ``into`` (C-contiguous, writable) from a buffer's start."""
        with self._entered():
            array = np.asarray(into)
            if not array.flags.c_contiguous or not array.flags.writeable:
                raise ValueError("download needs writable C-contiguous memory")
            source = self._memory.find(handle).span(0, array.nbytes)

            def run() -> None:
                self._strike("download")
                array.reshape(-1).view(np.uint8)[:] = source
                self._done["downloaded"] += array.nbytes

            self._submit("download", run, [self._memory.find(handle)])
            self._wait()

    def copy(self, target: Handle, source: Handle, nbytes: int) -> None:
        """Copy the first bytes of one buffer to another."""
        with self._entered():
            touched = [self._memory.find(target), self._memory.find(source)]
            to, origin = (allocation.span(0, nbytes) for allocation in touched)

            def run() -> None:
                self._strike("copy")
                to[:] = origin
                self._done["copied"] += nbytes

            self._submit("copy", run, touched)

    # --- work -------------------------------------------------------------------------------

    def call(
        self,
        name: str,
        function: Callable[..., object],
        operands: Sequence[Operand],
        *,
        tag: object = None,
    ) -> None:
        """Run ``function(*views)`` on the device; ``name`` and ``tag`` come back if it fails.

        The views are numpy arrays over device memory, read-only unless the operand is writable.
        """
        with self._entered():
            self.limits.require(name, "buffers", len(operands), self.limits.buffers)
            touched = [self._memory.find(operand.handle) for operand in operands]
            views = [self._view(name, o, a) for o, a in zip(operands, touched, strict=True)]

            def run() -> None:
                self._strike("call")
                self._done["calls"] += 1
                function(*views)

            self._submit(name, run, touched, tag)

    def _view(self, name: str, operand: Operand, allocation: Allocation) -> npt.NDArray[Any]:
        dtype = DTYPES[operand.dtype]
        self.limits.require(name, "axes", len(operand.shape), self.limits.rank)
        self.limits.require(name, "elements", math.prod(operand.shape), self.limits.elements)
        if operand.offset % dtype.itemsize:
            raise LimitError(f"{name}: offset {operand.offset} is not aligned for {operand.dtype}")
        view = allocation.span(operand.offset, operand.nbytes).view(dtype).reshape(operand.shape)
        view.flags.writeable = operand.writable
        return view

    def load(self, text: str, name: str) -> LoadedKernel:
        """Compile a kernel; BadKernelError or LimitError if it cannot run here."""
        with self._entered("load"):
            return LoadedKernel(compile_kernel(text, name, self.limits), self)

    def launch(
        self, loaded: LoadedKernel, bindings: Sequence[Binding], *, tag: object = None
    ) -> None:
        """Run a kernel over its grid, one binding per parameter; ``tag`` comes back if it fails."""
        with self._entered():
            kernel = loaded.kernel
            if loaded.chip is not self:
                raise InvalidHandleError(f"kernel {kernel.name} is not loaded on this device")
            if len(bindings) != len(kernel.params):
                raise LimitError(
                    f"{kernel.name}: takes {len(kernel.params)} buffers, not {len(bindings)}"
                )
            touched = [self._memory.find(binding.handle) for binding in bindings]
            regions = [
                self._region(kernel, number, allocation, binding.offset)
                for number, (allocation, binding) in enumerate(zip(touched, bindings, strict=True))
            ]
            self._submit(kernel.name, partial(self._run_kernel, kernel, regions), touched, tag)

    def _region(self, kernel: Kernel, number: int, allocation: Allocation, offset: int) -> Region:
        if offset % self.limits.alignment:
            raise LimitError(
                f"{kernel.name}: offset {offset} is not a multiple of {self.limits.alignment}"
            )
        param = kernel.params[number]
        span, dtype = allocation.span(offset, param.nbytes), in_memory(param.dtype)
        origin, low, high = 0, 0, param.elements
        if not self.protect:
            span = allocation.storage[: allocation.storage.size // dtype.itemsize * dtype.itemsize]
            origin = (GUARD + offset) // dtype.itemsize
            low, high = -origin, span.size // dtype.itemsize - origin
        array = span.view(dtype)[None, :]
        return Region(f"parameter {number}", param.dtype, array, origin, low, high)

    def _run_kernel(self, kernel: Kernel, regions: Sequence[Region]) -> None:
        self._strike("launch")
        self._done["launches"] += 1
        if kernel.statements > self.limits.watchdog:
            raise CommandTimeoutError(
                f"{kernel.statements} statements a grid point, watchdog at {self.limits.watchdog}"
            )
        run_kernel(kernel, regions, self.limits.vector_width, self._memory.poison, self._traffic)

    # --- waiting ----------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Run everything queued, raise the first failure not yet raised, check every guard."""
        with self._entered("synchronize"):
            self._wait()
            self._memory.check()

    def _submit(
        self,
        name: str,
        run: Callable[[], None],
        touches: Sequence[Allocation] = (),
        tag: object = None,
    ) -> None:
        self._pending.append(_Command(name, run, touches, tag))

    def _wait(self) -> None:
        self._run_pending()
        if self._failures:
            raise self._failures.popleft()

    def _run_pending(self) -> None:
        while self._pending:
            command = self._pending.popleft()
            self._commands += 1
            try:
                command.run()
                for allocation in command.touches:
                    allocation.check()
            except DeviceLostError as error:
                raise DeviceLostError(f"device lost during {command.name}: {error}") from error
            except Exception as error:  # noqa: BLE001 - whatever a callable raises comes at the wait
                self._failures.append(CommandFailedError(command.name, error, command.tag))

    @contextmanager
    def _entered(self, kind: FaultKind | None = None) -> Iterator[None]:
        """Every driver call: one at a time, on a device that is there and stays there."""
        with self._lock:
            if self._lost:
                raise DeviceLostError(f"device {self.index}: {self._lost}")
            try:
                if kind is not None:
                    self._strike(kind)
                yield
            except DeviceLostError as error:
                self.lose(str(error))
                raise

    # --- diagnosis --------------------------------------------------------------------------

    def check_guards(self) -> None:
        """Check the guards of every buffer without running anything; GuardError on damage."""
        with self._lock:
            self._memory.check()

    @property
    def counters(self) -> Counters:
        """A snapshot of the bookkeeping."""
        with self._lock:
            memory, traffic = self._memory, self._traffic
            return Counters(
                memory.live_bytes,
                memory.live_allocations,
                memory.peak_bytes,
                self._commands,
                kernel_read=traffic.read,
                kernel_written=traffic.written,
                **self._done,
            )

    def fail_next(
        self, kind: FaultKind, *, after: int = 0, times: int = 1, error: Exception | None = None
    ) -> None:
        """Let ``after`` operations of ``kind`` succeed, then fail ``times`` of them.

        alloc, free, load and synchronize fail in the call; the others when the command runs.
        error: default OutOfDeviceMemoryError for alloc, else InjectedError; a DeviceLostError
        loses the device.
        """
        if kind not in get_args(FaultKind):
            raise ValueError(f"no fault kind {kind!r}: one of {', '.join(get_args(FaultKind))}")
        if after < 0 or times < 1:
            raise ValueError(f"after must be >= 0 and times >= 1, not {after} and {times}")
        if error is None:
            default = OutOfDeviceMemoryError if kind == "alloc" else InjectedError
            error = default(f"injected failure of {kind}")
        with self._lock:
            self._planned_faults.append(_PlannedFault(kind, after, times, error))

    def forget_faults(self) -> None:
        """Drop every planned failure."""
        with self._lock:
            self._planned_faults.clear()

    def lose(self, reason: str = "lost on demand") -> None:
        """Take the device away: everything raises DeviceLostError from now on."""
        with self._lock:
            self._lost = reason
            self._pending.clear()
            self._failures.clear()

    def _strike(self, kind: FaultKind) -> None:
        """Count one operation of ``kind``; raise if a plan says that it fails."""
        due: _PlannedFault | None = None
        for plan in [plan for plan in self._planned_faults if plan.kind == kind]:
            if plan.after:
                plan.after -= 1
            elif due is None:
                due = plan
        if due is None:
            return
        due.times -= 1
        if not due.times:
            self._planned_faults.remove(due)
        raise due.error

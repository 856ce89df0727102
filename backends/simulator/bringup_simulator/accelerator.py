"""The driver: what a vendor's library would offer to a host program."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from bringup_simulator.errors import (
    CommandTimeoutError,
    DeviceLostError,
    InvalidHandleError,
    LimitError,
)
from bringup_simulator.faults import FaultKind, Faults
from bringup_simulator.isa import DTYPES, Image, Param, decode
from bringup_simulator.limits import Counters, Limits
from bringup_simulator.machine import Region, run_image
from bringup_simulator.memory import GUARD, Allocation, Handle, Memory
from bringup_simulator.queue import Command, CommandQueue, Ticket
from bringup_simulator.verifier import steps_per_point, verify
from bringup_simulator.views import Operand, call_on_views, check_operand

__all__ = ["Accelerator", "Binding", "LoadedKernel"]

HostData = npt.NDArray[Any] | memoryview | bytes
HostMemory = npt.NDArray[Any] | memoryview


@dataclass(frozen=True, slots=True)
class Binding:
    """A buffer for one parameter of a kernel, from byte ``offset`` on."""

    handle: Handle
    offset: int = 0


class LoadedKernel:
    """A kernel on the chip; unloaded when nobody holds it any more."""

    __slots__ = ("__weakref__", "image")

    def __init__(self, image: Image) -> None:
        self.image = image


class Accelerator:
    """One simulated device.

    Commands (upload, copy, call, launch, enqueue_download) are checked when submitted, queued, and
    run in order but late: only when somebody waits.  Their failures surface there as
    ``CommandFailedError``, and later commands still run.

    index: number of the device.  capacity: bytes of memory.  poison: byte that fills fresh memory;
    0xFF is NaN in every float type.  protect: False lets kernels write past their parameter, as a
    chip without memory protection does; the guards then tell.  Methods may be called from several
    threads; callables run with the device's lock held.

    >>> chip = Accelerator(capacity=1 << 20)
    >>> buffer = chip.alloc(16)
    >>> _ = chip.upload(buffer, np.arange(4, dtype=np.float32))
    >>> chip.download(buffer, out := np.empty(4, np.float32))
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
        self._queue = CommandQueue()
        self._faults = Faults()
        self._kernels: WeakSet[LoadedKernel] = WeakSet()
        self._lost = ""
        self._tally = dict.fromkeys(_TALLIED, 0)
        self._lock = threading.RLock()

    # --- memory -----------------------------------------------------------------------------

    def alloc(self, nbytes: int) -> Handle:
        """A buffer of ``nbytes``, poisoned; OutOfDeviceMemoryError if there is no room."""
        with self._session("alloc"):
            if not self._memory.fits(nbytes):
                self._queue.run()
            return self._memory.allocate(nbytes)

    def free(self, handle: Handle) -> None:
        """Invalidate ``handle`` now; queued commands that use it still run.

        Raises DoubleFreeError, and GuardError if the buffer's guards are damaged (at the next wait
        if commands are pending).
        """
        with self._session("free"):
            allocation = self._memory.retire(handle)
            if self._queue.idle:
                self._memory.release(allocation)
            else:
                release = Command("free", lambda: self._memory.release(allocation))
                self._queue.submit(release)

    def nbytes(self, handle: Handle) -> int:
        """The size ``handle`` was allocated with."""
        with self._lock:
            return self._memory.find(handle).nbytes

    def upload(self, handle: Handle, data: HostData, offset: int = 0) -> Ticket:
        """Copy ``data`` (arrays of any layout; stored in C order) to byte ``offset``.

        The bytes are taken now: the host may overwrite ``data`` as soon as this returns.
        """
        with self._session():
            snapshot = data if isinstance(data, bytes) else np.asarray(data).tobytes()
            target = self._memory.find(handle)
            target.span(offset, len(snapshot))

            def run() -> None:
                self._faults.strike("upload")
                target.span(offset, len(snapshot))[:] = np.frombuffer(snapshot, np.uint8)
                self._tally["uploaded"] += len(snapshot)

            return self._queue.submit(Command("upload", run, (target,)))

    def enqueue_download(self, handle: Handle, into: HostMemory, offset: int = 0) -> Ticket:
        """Fill ``into`` (C-contiguous, writable) from byte ``offset`` when the command runs."""
        with self._session():
            array = np.asarray(into)
            if not array.flags.c_contiguous or not array.flags.writeable:
                raise ValueError("download needs writable C-contiguous memory")
            source = self._memory.find(handle)
            source.span(offset, array.nbytes)
            host = array.reshape(-1).view(np.uint8)

            def run() -> None:
                self._faults.strike("download")
                host[:] = source.span(offset, host.size)
                self._tally["downloaded"] += host.size

            return self._queue.submit(Command("download", run, (source,)))

    def download(self, handle: Handle, into: HostMemory, offset: int = 0) -> None:
        """``enqueue_download`` and wait for it."""
        with self._lock:
            self.wait(self.enqueue_download(handle, into, offset))

    def copy(
        self,
        target: Handle,
        source: Handle,
        nbytes: int,
        target_offset: int = 0,
        source_offset: int = 0,
    ) -> Ticket:
        """Copy bytes on the device; the two ranges may overlap."""
        with self._session():
            to, origin = self._memory.find(target), self._memory.find(source)
            to.span(target_offset, nbytes)
            origin.span(source_offset, nbytes)

            def run() -> None:
                self._faults.strike("copy")
                to.span(target_offset, nbytes)[:] = origin.span(source_offset, nbytes)
                self._tally["copied"] += nbytes

            return self._queue.submit(Command("copy", run, (to, origin)))

    # --- work -------------------------------------------------------------------------------

    def call(
        self,
        name: str,
        function: Callable[..., object],
        operands: Sequence[Operand],
        *,
        tag: object = None,
    ) -> Ticket:
        """Run ``function(*views)`` on the device; ``name`` and ``tag`` come back if it fails.

        The views are numpy arrays over device memory, read-only unless the operand is writable.
        They end with the command: keeping one fails the command with ViewEscapedError and leaves
        the keeper with a dead copy.
        """
        with self._session():
            self.limits.require(name, "buffers", len(operands), self.limits.buffers)
            found = [self._memory.find(operand.handle) for operand in operands]
            for operand, allocation in zip(operands, found, strict=True):
                check_operand(name, operand, allocation, self.limits)

            def run() -> None:
                self._faults.strike("call")
                self._tally["calls"] += 1
                call_on_views(function, operands, found)

            return self._queue.submit(Command(name, run, tuple(found), tag))

    def load(self, binary: bytes) -> LoadedKernel:
        """Check a kernel image and keep it; BadImageError or LimitError if it cannot run here."""
        with self._session("load"):
            image = decode(binary)
            verify(image, self.limits)
            kernel = LoadedKernel(image)
            self._kernels.add(kernel)
            return kernel

    def unload(self, kernel: LoadedKernel) -> None:
        """Forget a kernel; launches already queued still run."""
        with self._lock:
            self._image(kernel)
            self._kernels.discard(kernel)

    def launch(
        self,
        kernel: LoadedKernel,
        bindings: Sequence[Binding],
        grid: Sequence[int] | None = None,
        *,
        tag: object = None,
    ) -> Ticket:
        """Run a kernel once per point of ``grid`` (default: its own), one binding per parameter.

        tag: comes back with the error if the launch fails.
        """
        with self._session():
            image = self._image(kernel)
            extents = image.grid if grid is None else tuple(grid)
            found = self._check_launch(image, bindings, extents)
            run = partial(self._run_kernel, image, tuple(bindings), found, extents)
            return self._queue.submit(Command(image.name, run, tuple(found), tag))

    # --- waiting ----------------------------------------------------------------------------

    def wait(self, ticket: Ticket) -> None:
        """Run everything up to ``ticket``; raise CommandFailedError for what failed."""
        with self._session():
            self._queue.wait(ticket)

    def done(self, ticket: Ticket) -> bool:
        """Poll; each poll lets one command run.  Failures stay for the wait."""
        with self._session():
            return self._queue.done(ticket)

    def synchronize(self) -> None:
        """Run everything queued, then check every guard."""
        with self._session("synchronize"):
            self._queue.wait()
            self._memory.check()

    # --- diagnosis --------------------------------------------------------------------------

    def check_guards(self) -> None:
        """Check the guards of every buffer without running anything; GuardError on damage."""
        with self._lock:
            self._memory.check()

    def fail_next(
        self, kind: FaultKind, *, after: int = 0, times: int = 1, error: Exception | None = None
    ) -> None:
        """Let ``after`` operations of ``kind`` succeed, then fail ``times`` of them.

        alloc, free, load and synchronize fail in the call; the others when the command runs.
        error: default OutOfDeviceMemoryError for alloc, else InjectedError; a DeviceLostError
        loses the device.
        """
        with self._lock:
            self._faults.plan(kind, after, times, error)

    def lose(self, reason: str = "lost on demand") -> None:
        """Take the device away: everything raises DeviceLostError until ``reset``."""
        with self._lock:
            self._lost = reason
            self._queue.clear()

    def reset(self) -> None:
        """Bring the device back empty: no buffers, no kernels, no commands, no planned faults."""
        with self._lock:
            self._lost = ""
            self._queue.clear()
            self._faults.clear()
            self._kernels.clear()
            self._memory.clear()

    @property
    def counters(self) -> Counters:
        """A snapshot of the bookkeeping."""
        with self._lock:
            memory = self._memory
            return Counters(
                live_bytes=memory.live_bytes,
                live_allocations=memory.live_allocations,
                peak_bytes=memory.peak_bytes,
                commands=self._queue.executed,
                **self._tally,
            )

    # --- checks -----------------------------------------------------------------------------

    @contextmanager
    def _session(self, kind: FaultKind | None = None) -> Iterator[None]:
        """Every driver call: one at a time, on a device that is there and stays there."""
        with self._lock:
            if self._lost:
                raise DeviceLostError(f"device {self.index}: {self._lost}")
            try:
                if kind is not None:
                    self._faults.strike(kind)
                yield
            except DeviceLostError as error:
                self.lose(str(error))
                raise

    def _image(self, kernel: LoadedKernel) -> Image:
        if kernel not in self._kernels:
            raise InvalidHandleError(f"kernel {kernel.image.name} is not loaded here")
        return kernel.image

    def _check_launch(
        self, image: Image, bindings: Sequence[Binding], grid: tuple[int, ...]
    ) -> list[Allocation]:
        self.limits.require(image.name, "grid axes", len(grid), self.limits.rank)
        self.limits.require(image.name, "grid points", math.prod(grid), self.limits.elements)
        if any(extent < 0 for extent in grid) or len(grid) < image.grid_rank():
            raise LimitError(
                f"{image.name}: grid {grid} does not suit a kernel of {image.grid_rank()} axes"
            )
        if len(bindings) != len(image.params):
            raise LimitError(
                f"{image.name}: takes {len(image.params)} buffers, not {len(bindings)}"
            )
        found = [self._memory.find(binding.handle) for binding in bindings]
        for allocation, binding, param in zip(found, bindings, image.params, strict=True):
            if binding.offset % self.limits.alignment:
                raise LimitError(
                    f"{image.name}: offset {binding.offset} is not a multiple of "
                    f"{self.limits.alignment}"
                )
            allocation.span(binding.offset, param.elements * DTYPES[param.dtype].itemsize)
        return found

    def _run_kernel(
        self,
        image: Image,
        bindings: Sequence[Binding],
        found: Sequence[Allocation],
        grid: tuple[int, ...],
    ) -> None:
        self._faults.strike("launch")
        self._tally["launches"] += 1
        steps = steps_per_point(image)
        if steps > self.limits.watchdog:
            raise CommandTimeoutError(
                f"{steps} instructions a grid point, watchdog at {self.limits.watchdog}"
            )
        regions = [
            self._region(allocation, binding.offset, param)
            for allocation, binding, param in zip(found, bindings, image.params, strict=True)
        ]
        traffic = run_image(image, regions, grid, self.limits.vector_width, self._memory.poison)
        self._tally["kernel_read"] += traffic.read
        self._tally["kernel_written"] += traffic.written

    def _region(self, allocation: Allocation, offset: int, param: Param) -> Region:
        kind = DTYPES[param.dtype]
        kind = np.dtype(np.uint8) if kind == np.bool_ else kind
        if self.protect:
            span = allocation.span(offset, param.elements * kind.itemsize)
            return Region(span.view(kind), 0, 0, param.elements)
        usable = allocation.storage.size // kind.itemsize * kind.itemsize
        array = allocation.storage[:usable].view(kind)
        origin = (GUARD + offset) // kind.itemsize
        return Region(array, origin, -origin, array.size - origin)


_TALLIED = (
    "launches",
    "calls",
    "uploaded",
    "downloaded",
    "copied",
    "kernel_read",
    "kernel_written",
)

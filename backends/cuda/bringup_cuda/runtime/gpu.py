"""One opened GPU: its context, memory, streams, and the errors of its work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType

import numpy as np

from bringup.backend import located
from bringup.errors import DeviceError
from bringup.locks import ProcessLock
from bringup.program.program import Step
from bringup_cuda.driver import errors, protocol
from bringup_cuda.runtime.memory import Block, DevicePool, HostPool
from bringup_cuda.runtime.modules import LoadedModule, Multiprocessors
from bringup_cuda.runtime.transfers import Streams, Transfers

#: Queues work on addresses of inputs, of outputs, of the arena and of scratch memory.
Queue = Callable[[Sequence[int], Sequence[int], int, int], None]


class _Activation:
    """A block inside which the device's context is current in this thread.

    pycuda ends the process when a thread ends with a context left pushed, so it is always popped.
    """

    __slots__ = ("_error", "_pop", "_push")

    def __init__(
        self, push: Callable[[], None], pop: Callable[[], None], error: type[Exception]
    ) -> None:
        self._push = push
        self._pop = pop
        self._error = error

    def __enter__(self) -> None:
        try:
            self._push()
        except self._error:  # pragma: no cover on cuda-emulated - only drivers
            raise
        except BaseException:  # pragma: no cover - only a signal at this moment
            # An exception of a signal, such as KeyboardInterrupt, comes after the push.
            self._pop()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pop()


class Gpu:
    """One GPU, by its primary context.  Handles are `Block` objects.

    name: for messages, such as ``cuda:1``.
    processors: its multiprocessors.
    lost: the error that ended the context, None while it can be used.
    pending: work that no wait has completed: its tick, a function that locates its steps, and its
    launches as pairs of a step and the kernel's name.
    """

    def __init__(self, library: protocol.Library, index: int, name: str) -> None:
        driver = self.driver = library.driver
        self.library = library
        self.extras = library.extras
        self.name = name
        self.index = index
        self.lost: BaseException | None = None
        self.pending: deque[tuple[int, Callable[[Step], Step], Sequence[tuple[Step, str]]]]
        self.pending = deque(maxlen=4096)
        self.modules: dict[bytes, LoadedModule] = {}
        self._lock = ProcessLock()
        self._peers: set[int] = set()
        driver.init()
        self.device = driver.Device(index)
        self.processors = Multiprocessors.of(driver, self.device)
        self.context = self.device.retain_primary_context()
        self._push, self._pop = self.context.push, driver.Context.pop
        self._activation = _Activation(self._push, self._pop, driver.Error)
        with self._activation:
            self.streams = Streams(driver)
            self.pool = DevicePool(driver, self.device.total_memory(), name)
            self.host = HostPool(driver, self.streams.event)
        self.transfers = Transfers(driver, self.streams, self.host)

    def activated(self) -> AbstractContextManager[None]:
        """A block inside which the context is current in this thread."""
        return self._activation

    @contextmanager
    def driver_calls(self) -> Iterator[None]:
        """A block inside which the context is current and the driver's errors become ours."""
        self.check_usable()
        try:
            with self._activation:
                yield
        except self.driver.Error as error:  # pragma: no cover on cuda-emulated - only drivers
            raise self.failed(error) from error

    def check_usable(self) -> None:
        """Raise DeviceLostError if the GPU is lost."""
        if self.lost is not None:
            raise errors.lost_error(self.name, self.lost)

    # -- memory ------------------------------------------------------------------------------------

    def alloc(self, nbytes: int) -> Block:
        """A new block, from the pool if it has one.  Raises OutOfMemoryError."""
        if self.lost is not None:
            raise errors.lost_error(self.name, self.lost)
        try:
            return self.pool.alloc(nbytes, self.activated)
        except self.driver.Error as error:  # pragma: no cover on cuda-emulated - only drivers
            raise self.failed(error) from error

    def free(self, handle: Block) -> None:
        """Keep the memory for reuse.  Queued work may still use it: the next user's work is queued
        behind.
        """
        self.pool.free(handle)

    def trim(self) -> None:
        """Give the memory that is kept for reuse back to the driver; waits for the device."""
        with self.driver_calls():
            self.streams.synchronize()
            self.pool.trim()
            self.host.trim()

    # -- transfers ---------------------------------------------------------------------------------

    def upload(self, handle: Block, data: memoryview) -> None:
        """Copy from the host, through pinned memory and in a stream of its own: programs that were
        queued before continue to run.
        """
        source = np.frombuffer(data, np.uint8)
        if source.size:
            with self.driver_calls():
                self.transfers.upload(handle, source)

    def download(self, handle: Block, out: memoryview) -> None:
        """Copy to the host, through pinned memory, after all work before, which is then done."""
        target = np.frombuffer(out, np.uint8)
        if not target.size:
            return
        with self.driver_calls():
            latest = self.streams.latest
            self.transfers.download(handle.address, target)
        self._mark_complete(latest)

    def read_bytes(self, address: int, nbytes: int) -> bytes:
        """The bytes at an address, after all work before; the context must be current."""
        data = np.empty(nbytes, np.uint8)
        self.transfers.download(address, data)
        return data.tobytes()

    def copy_within(self, target: int, source: int, nbytes: int) -> None:
        """Queue a copy between addresses; the context must be current."""
        self.driver.memcpy_dtod_async(target, source, nbytes, self.streams.compute)

    def copy_from_peer(self, source: Gpu, handle: Block, nbytes: int) -> Block:
        """New memory with the contents of another GPU's, copied without the host."""
        source.check_usable()
        block = self.alloc(nbytes)
        if nbytes:
            try:
                self._copy_from_peer(source, handle, block, nbytes)
            except BaseException:  # pragma: no cover on cuda-emulated - only drivers
                self.free(block)
                raise
        return block

    def _copy_from_peer(self, source: Gpu, handle: Block, block: Block, nbytes: int) -> None:
        assert self.extras is not None
        theirs, ours = source.streams, self.streams
        with source.driver_calls():
            written = theirs.event()
            written.record(theirs.compute)
        with self.driver_calls():
            self._enable_peer_access(source)
            ours.compute.wait_for_event(written)
            self.extras.memcpy_peer_async(
                block.address, self.context, handle.address, source.context, nbytes, ours.compute
            )
            copied = ours.event()
            copied.record(ours.compute)
        block.used = ours.tick()
        with source.driver_calls():
            # The next user of the source's memory must not write to it before it is read.
            theirs.compute.wait_for_event(copied)
        handle.used = theirs.tick()
        theirs.recycle(written)
        ours.recycle(copied)

    def _enable_peer_access(self, source: Gpu) -> None:
        """Let copies go directly where the machine allows that; else they go through the host."""
        if source.index not in self._peers:
            self._peers.add(source.index)
            if self.device.can_access_peer(
                source.device
            ):  # pragma: no cover on cuda-emulated - only drivers
                with suppress(self.driver.LogicError):  # Another library may have enabled it.
                    self.driver.Context.enable_peer_access(source.context)

    def copy_from_address(
        self, address: int, nbytes: int
    ) -> Block:  # pragma: no cover on cuda-emulated - only drivers
        """New memory with the contents of an address of this GPU, after the work queued in the
        upload stream; they are read when this returns.  Raises OutOfMemoryError.

        Programs that were queued before continue to run.
        """
        block = self.alloc(nbytes)
        if not nbytes:
            return block
        try:
            with self.driver_calls():
                self.transfers.copy_from_address(block, address, nbytes)
        except BaseException:
            self.free(block)
            raise
        return block

    # -- queued work and its errors ----------------------------------------------------------------

    def queue(
        self, queue: Queue, inputs: Sequence[int], outputs: Sequence[int], arena: int, scratch: int
    ) -> None:
        """Call ``queue``, which queues the commands of a program on these addresses."""
        if self.lost is not None:  # pragma: no cover on cuda-emulated - only drivers
            raise errors.lost_error(self.name, self.lost)
        try:
            self._activation.__enter__()
            try:
                queue(inputs, outputs, arena, scratch)
            finally:
                self._pop()
        except self.driver.Error as error:  # pragma: no cover on cuda-emulated - only drivers
            raise self.failed(error) from error

    def make_wait(self, stream: int) -> None:  # pragma: no cover on cuda-emulated - only drivers
        """Let a stream of another library wait for all work that is queued here so far."""
        assert self.extras is not None
        with self.driver_calls():
            self.extras.make_wait(stream, self.streams.compute)

    def synchronize(self) -> None:
        """Wait for all work; raises the first pending error.

        After most errors of queued work CUDA fails every call: then the device is lost, and this
        raises DeviceLostError from then on.
        """
        latest = self.streams.latest
        with self.driver_calls():
            self.streams.synchronize()
        self._mark_complete(latest)

    def _mark_complete(self, tick: int) -> None:
        """Note that all work up to a tick is done, without an error."""
        self.streams.mark_complete(tick)
        pending = self.pending
        with self._lock:
            while pending and pending[0][0] <= tick:
                pending.popleft()

    def failed(  # pragma: no cover on cuda-emulated - only drivers
        self, error: BaseException, step: Step | None = None, *, alone: bool = False
    ) -> DeviceError:
        """The error to raise for one of the driver.

        step: the step being queued, if any.  alone: whether nothing else was queued.
        """
        if self.lost is not None:
            return errors.lost_error(self.name, self.lost)
        sticky = errors.is_sticky(error)
        suspects = [] if alone else self._suspects(str(error), any_=sticky)
        if step is not None and not suspects:
            suspects = [located(step)]
        if sticky:
            self.mark_lost(error)
        return errors.device_error(error, self.name, suspects)

    def mark_lost(
        self, error: BaseException
    ) -> None:  # pragma: no cover on cuda-emulated - only drivers
        """Let every call raise from now on that the device is lost, by this error."""
        if self.lost is None:
            errors.leak(self)
            for loaded in list(self.modules.values()):
                errors.leak(loaded.module)
        self.lost = error
        self.pending.clear()

    def _suspects(
        self, text: str, *, any_: bool
    ) -> list[Step]:  # pragma: no cover on cuda-emulated - only drivers
        """The launches of queued work that an error names; with ``any_`` all, if it names none."""
        launches = [
            (step, name, locate)
            for _, locate, queued in list(self.pending)
            for step, name in queued
        ]
        named = [launch for launch in launches if launch[1] in text]
        return [locate(step) for step, _, locate in named or (launches if any_ else ())]

    def close(self) -> None:
        """Give memory and context back; queued work still runs."""
        if self.lost is not None:  # pragma: no cover on cuda-emulated - only drivers
            return
        with suppress(Exception):
            self.trim()
        with suppress(Exception):
            self._push()
            self.context.detach()
        # Not `mark_lost`: what is left can still be given back.
        self.lost = errors.Closed()

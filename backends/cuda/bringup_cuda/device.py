"""The opened device: memory, transfers, programs, errors."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from bringup.backend import Capabilities, Device, located
from bringup.errors import DeviceError
from bringup.locks import ProcessLock
from bringup.program.program import Program, Step
from bringup_cuda import errors, surface
from bringup_cuda.exchange import CudaExchange
from bringup_cuda.keeping import keep
from bringup_cuda.memory import Block, DevicePool, HostPool
from bringup_cuda.occupancy import processors_of
from bringup_cuda.streams import Streams
from bringup_cuda.transfers import Transfers

if TYPE_CHECKING:
    from bringup.backend.dispatch import ArrayLayout, Dispatcher
    from bringup_cuda.bodies import Body, Loaded
    from bringup_cuda.executable import CudaExecutable


class _Activation:
    """Inside, the device's context is current in this thread.

    pycuda ends the process when a thread ends with a context left pushed, so it is never kept.
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
            # A signal's, such as KeyboardInterrupt: it comes when the push is done.
            self._pop()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pop()


class CudaDevice(Device):
    """One GPU, by its primary context.  Handles are `Block` objects.

    name: for people, such as ``cuda:1``.  architecture: what code is made for, such as ``sm_90``.
    processors: what they hold at once.
    pending: work that no wait has proved: its tick, what locates steps of it, and its launches, as
    pairs of a step and the kernel's name.
    """

    refcounted_handles = False

    def __init__(
        self,
        library: surface.Library,
        index: int,
        name: str,
        capabilities: Capabilities,
        architecture: str,
    ) -> None:
        driver = self.driver = library.driver
        self.library = library
        self.extras = library.extras
        self.name = name
        self.index = index
        self.capabilities = capabilities
        self.lost: BaseException | None = None
        self.pending: deque[tuple[int, Callable[[Step], Step], Sequence[tuple[Step, str]]]]
        self.pending = deque(maxlen=4096)
        self._lock, self._loading = ProcessLock(), ProcessLock()
        self._modules: dict[str, Loaded] = {}
        self._peers: set[int] = set()
        driver.init()
        self.gpu = driver.Device(index)
        self.processors = processors_of(driver, self.gpu)
        self.architecture = architecture
        self.context = self.gpu.retain_primary_context()
        self._push, self._pop = self.context.push, driver.Context.pop
        self._activation = _Activation(self._push, self._pop, driver.Error)
        self._enter = self._activation.__enter__
        with self._activation:
            self.streams = Streams(driver)
            self.pool = DevicePool(driver, self.gpu.total_memory(), name)
            self.host = HostPool(driver, self.streams.event)
        self.transfers = Transfers(driver, self.streams, self.host)
        self._exchange = CudaExchange(self, library.dlpack) if library.dlpack else None
        _opened.add(self)

    # -- memory ------------------------------------------------------------------------------------

    def alloc(self, nbytes: int) -> Block:
        """A new block, from the pool where it has one.  Raises OutOfMemoryError."""
        if self.lost is not None:
            raise errors.lost(self.name, self.lost)
        try:
            return self.pool.alloc(nbytes, self.activated)
        except self.driver.Error as error:  # pragma: no cover on cuda-emulated - only drivers
            raise self.failed(error) from error

    def free(self, handle: Block) -> None:
        """Keep the memory for reuse, which queued work may still use: whoever gets it next uses it
        after that work.
        """
        self.pool.free(handle)

    def trim(self) -> None:
        """Give back to the driver what is kept for reuse; waits for the device."""
        with self._working():
            self.streams.synchronize()
            self.pool.trim()
            self.host.trim()

    # -- transfers ---------------------------------------------------------------------------------

    def upload(self, handle: Block, data: memoryview) -> None:
        """Through pinned memory, in a stream of its own: programs queued before go on running."""
        source = np.frombuffer(data, np.uint8)
        if not source.size:
            return
        with self._working():
            self.transfers.upload(handle, source)

    def download(self, handle: Block, out: memoryview) -> None:
        """Through pinned memory, after all work before it, which the wait proves."""
        target = np.frombuffer(out, np.uint8)
        if not target.size:
            return
        with self._working():
            latest = self.streams.latest
            self.transfers.download(handle.address, target)
        self._proved(latest)

    def copy(self, target: Block, source: Block, nbytes: int) -> None:
        """Queued like programs."""
        if not nbytes:
            return
        with self._working():
            self.copy_within(target.address, source.address, nbytes)
        target.used = source.used = self.streams.tick()

    def adopt(self, source: Device, handle: Block, nbytes: int) -> Block | None:
        """What another device of the same driver holds, by way of neither host."""
        mine = isinstance(source, CudaDevice) and source.driver is self.driver
        if not mine or self.extras is None:  # pragma: no cover - only beside other backends
            return None
        assert isinstance(source, CudaDevice)
        source._usable()
        block = self.alloc(nbytes)
        if nbytes:
            try:
                self._fetch(source, handle, block, nbytes)
            except BaseException:  # pragma: no cover on cuda-emulated - only drivers
                self.free(block)
                raise
        return block

    def _fetch(self, source: CudaDevice, handle: Block, block: Block, nbytes: int) -> None:
        assert self.extras is not None
        there, here = source.streams, self.streams
        with source._working():
            made = there.event()
            made.record(there.compute)
        with self._working():
            self._reach(source)
            here.compute.wait_for_event(made)
            self.extras.memcpy_peer_async(
                block.address, self.context, handle.address, source.context, nbytes, here.compute
            )
            done = here.event()
            done.record(here.compute)
        block.used = here.tick()
        with source._working():
            # Whoever gets the source's memory next must not write it before it is read.
            there.compute.wait_for_event(done)
        handle.used = there.tick()
        there.recycle(made)
        here.recycle(done)

    def _reach(self, source: CudaDevice) -> None:
        """Let copies go directly, where the machine has a way; they go by the host else."""
        if source.index not in self._peers:
            self._peers.add(source.index)
            if self.gpu.can_access_peer(
                source.gpu
            ):  # pragma: no cover on cuda-emulated - only drivers
                with suppress(self.driver.LogicError):  # another library enabled it before
                    self.driver.Context.enable_peer_access(source.context)

    def take(
        self, address: int, nbytes: int
    ) -> Block:  # pragma: no cover on cuda-emulated - only drivers
        """New memory with what stands at an address of this GPU, once the work before in the stream
        of uploads is done; it is read when this returns.  Raises OutOfMemoryError.

        Programs queued before go on running.
        """
        block = self.alloc(nbytes)
        if not nbytes:
            return block
        try:
            with self._working():
                self.transfers.take(block, address, nbytes)
        except BaseException:
            self.free(block)
            raise
        return block

    def make_wait(self, stream: int) -> None:  # pragma: no cover on cuda-emulated - only drivers
        """Work queued from now on in a stream of another library waits for all work so far here."""
        assert self.extras is not None
        with self._working():
            self.extras.make_wait(stream, self.streams.compute)

    def exchange(self) -> CudaExchange | None:
        """DLPack, for libraries that reach the device's memory."""
        return self._exchange

    # -- waiting and errors ------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Wait for all work; raises the first pending error.

        After most errors of queued work CUDA fails every call: then the device is lost, and this
        raises DeviceLostError from then on.
        """
        latest = self.streams.latest
        with self._working():
            self.streams.synchronize()
        self._proved(latest)

    def failed(  # pragma: no cover on cuda-emulated - only drivers
        self, error: BaseException, step: Step | None = None, *, alone: bool = False
    ) -> DeviceError:
        """The error to raise for one of the driver's.

        step: the one being queued, if any.  alone: nothing else was queued when it happened.
        """
        if self.lost is not None:
            return errors.lost(self.name, self.lost)
        sticky = errors.is_sticky(error)
        suspects = [] if alone else self._suspects(str(error), any_=sticky)
        if step is not None and not suspects:
            suspects = [located(step)]
        if sticky:
            self.lose(error)
        return errors.failure(error, self.name, suspects)

    def lose(
        self, error: BaseException
    ) -> None:  # pragma: no cover on cuda-emulated - only drivers
        """From now on everything raises that the device is lost, by this error."""
        if self.lost is None:
            keep(self)
            for loaded in list(self._modules.values()):
                keep(loaded.module)
        self.lost = error
        self.pending.clear()

    def _suspects(
        self, text: str, *, any_: bool
    ) -> list[Step]:  # pragma: no cover on cuda-emulated - only drivers
        """The launches of queued work that an error names; or all of them, if it names none."""
        launches = [
            (step, name, locate)
            for _, locate, queued in list(self.pending)
            for step, name in queued
        ]
        named = [entry for entry in launches if entry[1] in text]
        return [locate(step) for step, _, locate in named or (launches if any_ else ())]

    def _proved(self, tick: int) -> None:
        """Everything up to a tick is done, without an error."""
        self.streams.proved(tick)
        pending = self.pending
        with self._lock:
            while pending and pending[0][0] <= tick:
                pending.popleft()

    def _usable(self) -> None:
        if self.lost is not None:
            raise errors.lost(self.name, self.lost)

    # -- programs ----------------------------------------------------------------------------------

    def compile(self, program: Program) -> CudaExecutable:
        """Code of the driver for a program.  Raises CompileError, UnsupportedError."""
        from bringup_cuda.executable import CudaExecutable
        from bringup_cuda.lower import translate

        self._usable()
        translated = translate(program, self.architecture)
        loaded = self._loaded(translated.text)
        with self._working():
            return CudaExecutable(self, program, translated, loaded)

    def dispatcher(self, layout: ArrayLayout, slow: Callable[..., Any]) -> Dispatcher | None:
        """A table for calls that repeat: a late error loses the device, so none is told apart."""
        if not self.library.goes_on:  # pragma: no cover on cuda-emulated - only drivers
            from bringup.runtime.repeats import RepeatedCalls

            return RepeatedCalls(self, layout, slow)
        return None

    def _loaded(self, text: str) -> Loaded:
        """The module of some code, which programs share; the caller releases it."""
        from bringup_cuda.bodies import Loaded
        from bringup_cuda.cache import image_of

        with self._loading:
            found = self._modules.get(text)
            if found is not None:
                # Before a look at it, since the garbage collector may release it any time.
                found.users += 1
                if found.module is not None:
                    return found
            image = image_of(text, self.architecture, self.library.image)
            found = Loaded(self._module(image), self.driver, self.streams.settle)
            found.users += 1
            self._modules = {k: m for k, m in self._modules.items() if m.users}
            self._modules[text] = found
        return found

    def _module(self, image: bytes) -> Any:
        logs: list[str] = []

        def listen(
            _: bool, info: str, problems: str
        ) -> None:  # pragma: no cover on cuda-emulated - only drivers
            logs.extend(text.strip("\0\n ") for text in (problems, info))

        try:
            with self._activation:
                return self.driver.module_from_buffer(image, [], listen)
        except self.driver.Error as error:  # pragma: no cover on cuda-emulated - only drivers
            if self.lost is not None or errors.is_sticky(error) or errors.is_out_of_memory(error):
                raise self.failed(error) from error
            log = "\n".join(filter(None, logs)) or str(error)
            raise errors.refused(error, log, image.decode(errors="replace")) from error
        except UnicodeDecodeError as error:  # pragma: no cover on cuda-emulated - only drivers
            # The log, where the driver left pycuda's buffers for it as they were.
            with self._working():
                self.driver.Context.synchronize()
            raise errors.refused(error, "", image.decode(errors="replace")) from error

    def queue(
        self, body: Body, inputs: Sequence[int], outputs: Sequence[int], arena: int, scratch: int
    ) -> None:
        """Queue a program's commands on these addresses."""
        if self.lost is not None:  # pragma: no cover on cuda-emulated - only drivers
            raise errors.lost(self.name, self.lost)
        try:
            self._enter()
            try:
                body.run(inputs, outputs, arena, scratch)
            finally:
                self._pop()
        except self.driver.Error as error:  # pragma: no cover on cuda-emulated - only drivers
            raise self.failed(error) from error

    # For loops and branches, inside `queue`.

    def copy_within(self, target: int, source: int, nbytes: int) -> None:
        """Queue a copy between addresses; the context must be current."""
        self.driver.memcpy_dtod_async(target, source, nbytes, self.streams.compute)

    def look(self, address: int, nbytes: int) -> bytes:
        """The bytes at an address, after all work before; the context must be current."""
        seen = np.empty(nbytes, np.uint8)
        self.transfers.download(address, seen)
        return seen.tobytes()

    @contextmanager
    def _working(self) -> Iterator[None]:
        """A block inside which the context is current and the driver's errors become ours."""
        self._usable()
        try:
            with self._activation:
                yield
        except self.driver.Error as error:  # pragma: no cover on cuda-emulated - only drivers
            raise self.failed(error) from error

    def activated(self) -> AbstractContextManager[None]:
        """A block inside which the context is current in this thread."""
        return self._activation

    def close(self) -> None:
        """Give memory and context back; what is queued still runs."""
        if self.lost is not None:  # pragma: no cover on cuda-emulated - only drivers
            return
        with suppress(Exception):
            self.trim()
        with suppress(Exception):
            self._push()
            self.context.detach()
        # Without `lose`: what is left can still be given back.
        self.lost = errors.Closed()


#: Devices that are open in this process.
_opened: weakref.WeakSet[CudaDevice] = weakref.WeakSet()


def _after_fork() -> None:  # pragma: no cover - only children of a fork
    for device in _opened:
        device.lose(errors.Forked())


if hasattr(os, "register_at_fork"):  # pragma: no branch - only systems without fork
    os.register_at_fork(after_in_child=_after_fork)

"""Queued work of emulated devices: what must come before what, and when it runs.

Work runs when something waits for it, and then no more of it than that wait needs: whoever relies
on an order that neither a stream nor an event makes reads what was there before.  Besides, the
seed lets other work that may run go first now and then, so that the opposite mistake shows, too:
memory that is used again while older work still has to read it.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterable
from typing import Any

from bringup_cuda_emulator.gpu import KINDS, EmulatorError, Gpu
from bringup_cuda_emulator.structs import Fault

#: One lock for all devices: copies between them take two.
LOCK = threading.RLock()
#: The work that is being done, under the lock.
_doing: list[Work] = []


def is_working() -> bool:
    """Whether this is called, under the lock, from inside a piece of work.

    Whatever the garbage collector calls may be, and must then leave other work alone.
    """
    return bool(_doing)


class Work:
    """Something queued.

    before: what must be done first.  done: whether it ran.
    """

    __slots__ = ("action", "before", "done")

    def __init__(self, action: Callable[[], None] | None, before: Iterable[Work]) -> None:
        self.done: bool = False
        self.action = action
        self.before: tuple[Work, ...] = tuple(w for w in before if not w.done)


class Queues:
    """The work of one device.

    seed: 0 runs nothing that no wait asks for.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed) if seed else None
        self._pending: dict[Work, None] = {}
        #: The last work of the default stream and of every other stream that it waits for.
        self.default: Work | None = None
        self.blocking: dict[int, Work] = {}

    def add(self, action: Callable[[], None] | None, before: Iterable[Work]) -> Work:
        """Queue work."""
        with LOCK:
            made = Work(action, before)
            self._pending[made] = None
            return made

    def wait(self, work: Work) -> None:
        """Run what a piece of work needs, and it; raises the first error."""
        with LOCK:
            if self._random is not None:  # pragma: no cover - only with CUDA_EMULATED_SEED
                while self._pending and self._random.random() < 0.5:
                    self._some()
            self._run(work)

    def wait_all(self) -> None:
        """Run everything; raises the first error."""
        with LOCK:
            while self._pending:
                self._run(self._pick())

    def poll(self, work: Work) -> bool:
        """Whether a piece of work is done; if not, something runs, so that asking again ends."""
        with LOCK:
            if not work.done:
                self._some()
            return work.done

    def _pick(self) -> Work:
        if self._random is not None:  # pragma: no cover - only with CUDA_EMULATED_SEED
            return self._random.choice(list(self._pending))
        return next(iter(self._pending))

    def _some(self) -> None:
        """One piece of work that may run now."""
        work = self._pick()
        while (earlier := next((w for w in work.before if not w.done), None)) is not None:
            work = earlier  # pragma: no cover - only where devices wait for each other
        self._do(work)

    def _run(self, work: Work) -> None:
        rest = [work]
        while rest:
            last = rest[-1]
            earlier = [w for w in last.before if not w.done]
            if earlier:
                rest += reversed(earlier)
                continue
            rest.pop()
            self._do(last)

    def _do(self, work: Work) -> None:
        # Another device's queue may have run it, as what comes before its own.
        self._pending.pop(work, None)
        if work.done:
            return
        work.done = True
        work.before = ()
        action, work.action = work.action, None
        _doing.append(work)
        try:
            if action is not None:
                action()
        finally:
            _doing.pop()


#: How many GPUs there are, and how much memory each has.
DEVICES = 2
MEMORY = 4 << 30
#: Picks the order of blocks, threads and streams; 0 is ascending, and as late as may be.
SEED = "CUDA_EMULATED_SEED"

#: Bytes of shared memory that a block has without asking, and after that.
FREE_SHARED = 48 << 10
MOST_SHARED = 227 << 10


class Error(Exception):
    """The base of the driver's errors."""


class MemoryError(Error):
    """There is not enough memory."""


class LogicError(Error):
    """A call that makes no sense."""


class LaunchError(Error):
    """Queued work failed."""


class RuntimeError(Error):
    """Anything else."""


class device_attribute:  # noqa: N801, pycuda's spelling
    """What `Device.get_attribute` can tell."""

    MULTIPROCESSOR_COUNT = 16
    MAX_THREADS_PER_MULTIPROCESSOR = 39
    ASYNC_ENGINE_COUNT = 40
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97
    CLOCK_RATE = 13
    MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81
    MAX_REGISTERS_PER_MULTIPROCESSOR = 82
    MAX_BLOCKS_PER_MULTIPROCESSOR = 106


class function_attribute:  # noqa: N801, pycuda's spelling
    """What `Function.get_attribute` can tell."""

    MAX_THREADS_PER_BLOCK = 0
    SHARED_SIZE_BYTES = 1
    LOCAL_SIZE_BYTES = 3
    NUM_REGS = 4
    MAX_DYNAMIC_SHARED_SIZE_BYTES = 8


class event_flags:  # noqa: N801, pycuda's spelling
    """Of `Event`."""

    DEFAULT = 0
    BLOCKING_SYNC = 1
    DISABLE_TIMING = 2


#: Few multiprocessors: a grid of the usual size for them is quickly run.
_DEVICE_FACTS = {
    device_attribute.MULTIPROCESSOR_COUNT: 4,
    device_attribute.MAX_THREADS_PER_MULTIPROCESSOR: 2048,
    device_attribute.MAX_BLOCKS_PER_MULTIPROCESSOR: 32,
    device_attribute.MAX_REGISTERS_PER_MULTIPROCESSOR: 1 << 16,
    device_attribute.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: MOST_SHARED + 1024,
    device_attribute.ASYNC_ENGINE_COUNT: 2,
    device_attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: MOST_SHARED,
    device_attribute.CLOCK_RATE: 1_000_000,
}
#: What ends a context, as on hardware.  After any other fault the emulated device goes on: the
#: report is worth more than the likeness.
_FATAL = {KINDS[Fault.TRAP]: "an illegal instruction was encountered"}
_FAULT = "the emulator found a fault"

_initialised = threading.Event()
_stacks = threading.local()


class State:
    """One GPU with the work that is queued for it.  failed: the error that ended its context."""

    def __init__(self, index: int) -> None:
        seed = int(os.environ.get(SEED, "0"))
        self.index = index
        self.gpu = Gpu(MEMORY, seed)
        self.queues = Queues(seed)
        self.failed: LaunchError | None = None
        #: A fault that nobody was told of yet.
        self.pending: LaunchError | None = None
        #: Memory that was dropped while work was done.
        self.dropped: list[int] = []
        self.handles = 0x1000 * (index + 1)

    def handle(self) -> int:
        """A new one."""
        self.handles += 1
        return self.handles

    def usable(self) -> None:
        """Raises the error that ended the context, or one that nobody was told of."""
        if self.failed is not None:  # pragma: no cover - only wrong kernels
            raise LaunchError(*self.failed.args)
        if self.pending is not None:  # pragma: no cover - only wrong kernels
            pending, self.pending = self.pending, None
            raise pending

    def fail(
        self, call: str, error: EmulatorError
    ) -> LaunchError:  # pragma: no cover - only wrong kernels
        """The error to raise; it ends the context where the fault is fatal."""
        said = "; ".join(line.strip() for line in str(error).splitlines())
        fatal = _FATAL.get(error.finding.kind)
        made = LaunchError(f"{call} failed: {fatal or _FAULT} ({said})")
        if fatal is not None:
            self.failed = made
        return made


_states: dict[int, State] = {}


def state_of(index: int) -> State:
    """A device, opened when it is first asked for."""
    with LOCK:
        if index not in _states:
            _states[index] = State(index)
        return _states[index]


def stack_of_thread() -> list[Context]:
    """The contexts that this thread has pushed."""
    found: list[Context] | None = getattr(_stacks, "contexts", None)
    if found is None:
        found = _stacks.contexts = []
    return found


def current(call: str) -> State:
    """The device of the current context.  Raises LogicError, or the error that ended it."""
    stack = stack_of_thread()
    if not stack:  # pragma: no cover - only wrong calls
        raise LogicError(f"{call} failed: invalid device context")
    state = stack[-1].state
    state.usable()
    return state


def waited(state: State, call: str, wait: Callable[[], Any]) -> Any:
    """Run queued work; a fault in it raises LaunchError."""
    state.usable()
    try:
        return wait()
    except EmulatorError as error:  # pragma: no cover - only wrong kernels
        raise state.fail(call, error) from error


def init(flags: int = 0) -> None:
    """Before anything else."""
    _initialised.set()


class Context:
    """A device's only context."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.handle = state.handle()

    def push(self) -> None:
        """Make it current in this thread."""
        stack_of_thread().append(self)

    @staticmethod
    def pop() -> None:
        """Make that current which was before."""
        if not stack_of_thread():  # pragma: no cover - only wrong calls
            raise LogicError("cuCtxPopCurrent failed: invalid device context")
        stack_of_thread().pop()

    @staticmethod
    def synchronize() -> None:
        """Run all work of the current context."""
        state = current("cuCtxSynchronize")
        waited(state, "cuCtxSynchronize", state.queues.wait_all)

    @staticmethod
    def enable_peer_access(
        peer: Any, flags: int = 0
    ) -> None:  # pragma: no cover - only wrong calls
        """Emulated devices cannot reach each other's memory."""
        raise LogicError("cuCtxEnablePeerAccess failed: peer access is not supported")

    def detach(self) -> None:
        """Pop it, which is current."""
        stack_of_thread().remove(self)


class Device:
    """An emulated GPU."""

    def __init__(self, ordinal: int, /) -> None:
        if not _initialised.is_set():  # pragma: no cover - only wrong calls
            raise LogicError("cuDeviceGet failed: initialization error")
        if not 0 <= ordinal < DEVICES:  # pragma: no cover - only wrong calls
            raise LogicError("cuDeviceGet failed: invalid device ordinal")
        self.ordinal = ordinal

    def total_memory(self) -> int:
        """In bytes."""
        return state_of(self.ordinal).gpu.arena.size

    def get_attribute(self, attr: Any) -> int:
        """One of `device_attribute`."""
        return _DEVICE_FACTS[attr]

    def retain_primary_context(self) -> Context:
        """The context; not pushed."""
        return Context(state_of(self.ordinal))

    def can_access_peer(self, other: Any) -> int:
        """0."""
        return 0


class Stream:
    """A queue.  flags: 1 for one that the default stream does not wait for."""

    def __init__(self, flags: int = 0) -> None:
        self.state = current("cuStreamCreate")
        self.handle = self.state.handle()
        self.blocking = not flags & 1
        self.last: Work | None = None
        self.waits: list[Work] = []
        self.captured: list[Callable[[], None]] | None = None

    def add(self, action: Callable[[], None] | None) -> None:
        """Queue work behind all that is here, or remember it if work is being captured."""
        if self.captured is not None:
            assert action is not None, "an event in work that is captured"
            self.captured.append(action)
            return
        queues = self.state.queues
        with LOCK:
            before = [*self.waits, *([self.last] if self.last is not None else [])]
            if self.blocking:  # pragma: no cover - only calls by hand
                before += [queues.default] if queues.default is not None else []
            self.waits.clear()
            self.last = queues.add(action, before)
            if self.blocking:  # pragma: no cover - only calls by hand
                queues.blocking[self.handle] = self.last

    def ahead(self) -> Work:
        """All that is queued here, as one piece of work."""
        before = [*self.waits, *([self.last] if self.last is not None else [])]
        return self.state.queues.add(None, before)

    def synchronize(self) -> None:
        """Run the work queued here."""
        with LOCK:
            # The garbage collector leaves other work alone.
            if is_working():  # pragma: no cover - only where it comes at a bad time
                return
        waited(self.state, "cuStreamSynchronize", lambda: self.state.queues.wait(self.ahead()))

    def wait_for_event(self, evt: Event) -> None:
        """What is queued from now on comes behind the event's mark."""
        self.state.usable()
        self.waits.append(evt.work)


class _Default(Stream):  # pragma: no cover - only calls by hand
    """The default stream of a device: it and blocking streams wait for each other."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.handle = 0
        self.blocking = False
        self.last = None
        self.waits = []
        self.captured = None

    def add(self, action: Callable[[], None] | None) -> None:
        """Queue work behind all work of blocking streams."""
        queues = self.state.queues
        self.waits += queues.blocking.values()
        super().add(action)
        queues.default = self.last


_defaults: dict[int, _Default] = {}


def stream_of(stream: Any, call: str) -> Stream:
    """A stream of the current context; None is the default one.  Raises LogicError."""
    state = current(call)
    if stream is None:  # pragma: no cover - only calls by hand
        with LOCK:
            return _defaults.setdefault(state.index, _Default(state))
    assert isinstance(stream, Stream), stream
    if stream.state is not state:  # pragma: no cover - only wrong calls
        raise LogicError(f"{call} failed: invalid resource handle")
    return stream


class Event:
    """A mark in a stream."""

    def __init__(self, flags: int = 0) -> None:
        self.state = current("cuEventCreate")
        self.work = Work(None, ())
        self.work.done = True

    def record(self, stream: Any = None) -> Event:
        """Set the mark."""
        queue = stream_of(stream, "cuEventRecord")
        queue.add(None)
        assert queue.last is not None
        self.work = queue.last
        return self

    def synchronize(self) -> Event:
        """Run what is before the mark."""
        waited(self.state, "cuEventSynchronize", lambda: self.state.queues.wait(self.work))
        return self

    def query(self) -> bool:
        """Whether the mark was passed."""
        return bool(waited(self.state, "cuEventQuery", lambda: self.state.queues.poll(self.work)))

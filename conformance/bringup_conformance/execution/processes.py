"""Worker processes, as the process that starts them sees them: how they start, and how they end.

They are started with `subprocess`: the `spawn` method of `multiprocessing` would import the user's
main module again in each, and users' scripts need no guard against that.  Messages are those of
`protocol`, over connections of `multiprocessing`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing import Pipe
from typing import IO, Any

import bringup.errors
from bringup.errors import BackendError, BringupError
from bringup_conformance.cases import Problem
from bringup_conformance.execution.heartbeat import Watchdog
from bringup_conformance.execution.protocol import (
    Answer,
    Began,
    Call,
    Exited,
    Raised,
    Ready,
    Refused,
    Setup,
    Suspected,
    Task,
)
from bringup_conformance.execution.running import RemoteError
from bringup_conformance.execution.targets import DeviceTarget, Runnable

#: Seconds that a device may take to open, however short the time for a run or a case is: importing
#: its libraries gives no sign of life.
OPENING = 30.0
#: Seconds that a process is given to end.
GRACE = 5.0
#: Seconds between looks at workers that say nothing.
TICK = 0.25
# How often to look whether a process that is about to be killed has printed its stack.
_STACK_POLLS = 20
# Characters and lines kept of what a worker printed last.
_LOG_CHARACTERS, _LOG_LINES = 6000, 60
_PROGRAM = """
import sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
sys.path[:] = connection.recv()
from bringup_conformance.execution.worker import main
main(connection, int(sys.argv[2]))
"""
#: The exit status of a worker whose device is lost, and what stands before the error in its log.
LOST, LOST_MARK = 81, "the device is lost by: "
#: Is called with a cause, as plain data, before each step that may end the process.
OnSuspect = Callable[[Mapping[str, Any]], None]
#: Threads of numpy's matrix products: workers share the cores among them.
_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(eq=False)
class WorkerProcess:
    """One worker process.

    threads: for numpy's matrix products; 0 to leave them as they are.
    tasks: those it was given and has not finished.  current: the item that it runs.  next_item: the
    number of the item behind the last one that it ran.  ready: whether its device is open.
    """

    setup: Setup
    threads: int = 0
    tasks: deque[Task] = field(default_factory=deque)
    current: Began | None = None
    next_item: int = 0
    ready: bool = False

    def __post_init__(self) -> None:
        if not sys.executable:  # embedded in another program
            raise BackendError("no Python interpreter to run workers in", fix="use jobs=0")
        self.watchdog = Watchdog()
        self._hang = ""
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `end`)
        self.connection, theirs = Pipe()
        descriptors = (theirs.fileno(), self.watchdog.descriptor)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *map(str, descriptors)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=descriptors,
            env=_environment(self.threads),
        )
        theirs.close()
        self.watchdog.watch(self._process.pid)
        self.send([*sys.path])
        self.send(self.setup)

    def send(self, message: object) -> None:
        """Send a message.  To a process that ended it does nothing: `receive` will tell."""
        try:
            self.connection.send(message)
        except OSError:
            return

    def receive(self) -> Any:
        """The next message, or `Exited`; waits for it."""
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            return Exited()
        self.watchdog.restart()
        return message

    def give(self, task: Task) -> None:
        """Give it a task to do after those it has."""
        self.tasks.append(task)
        if len(self.tasks) == 1:
            self.watchdog.restart()
        self.send(task)

    def kill_if_hung(self, limit: float, deadline: float = float("inf")) -> None:
        """Kill the process if it hangs or its time is up; `receive` will tell that it ended.

        limit: seconds without a sign of life.  deadline: by the clock `time.monotonic`.
        """
        if self._hang:  # it is killed already
            return
        self._hang = self.watchdog.hang_reason(limit)
        if not self._hang and time.monotonic() > deadline:
            self._hang = "its time was up"
        if not self._hang:
            return
        if hasattr(signal, "SIGUSR1"):  # at which it prints its stack
            size = os.fstat(self._log.fileno()).st_size
            self._process.send_signal(signal.SIGUSR1)
            for _ in range(_STACK_POLLS):
                time.sleep(TICK / 5)
                if os.fstat(self._log.fileno()).st_size > size:
                    break
        self._process.kill()

    def end(self) -> None:
        """End the process: at once if it works, else after its device is closed."""
        self.connection.close()
        try:
            self._process.wait(0.0 if self.tasks or self._hang else GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self.watchdog.close()

    def exit_problem(self) -> Problem:
        """How the process ended."""
        try:
            code: int = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._hang = "it closed its pipes and lives on"
            self._process.kill()
            code = self._process.wait()
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _LOG_CHARACTERS))
        text = self._log.read().decode(errors="replace")
        # Never empty: a log tells the end of a process from what a device raised.
        log = "\n".join(text.splitlines()[-_LOG_LINES:]) or "it printed nothing"
        kind, what = exit_reason(code, text, self._hang)
        phase = self.watchdog.phase if kind == "hang" else ""
        return Problem(kind, f"{phase}: {what}" if phase else what, log=log, phase=phase)


def _environment(threads: int) -> dict[str, str]:
    # The trace of one process would overwrite that of another.
    variables = {key: value for key, value in os.environ.items() if key != "BRINGUP_TRACE"}
    for name in _THREADS if threads else ():
        variables.setdefault(name, str(threads))
    return variables


def exit_reason(code: int, log: str, hang: str = "") -> tuple[str, str]:
    """The kind of problem, and a sentence, for a process that ended.

    code: its exit status; negative for a signal.  log: what it printed last.  hang: why it was
    killed as one that hangs, if it was.

    >>> exit_reason(-11, "")
    ('crash', 'its process ended with SIGSEGV')
    >>> exit_reason(3, "")
    ('crash', 'its process exited with status 3')
    >>> exit_reason(LOST, f"{LOST_MARK}DeviceError: it fell off the table")
    ('crash', 'the device is lost by: DeviceError: it fell off the table')
    """
    if hang:
        return "hang", hang
    if "Timeout (" in log:
        return "hang", "it ended itself, as nobody else did"
    if code == LOST and LOST_MARK in log:
        return "crash", LOST_MARK + log.rpartition(LOST_MARK)[2].strip()
    what = f"its process exited with status {code}"
    if code < 0:
        known = {each.value: each.name for each in signal.Signals}
        what = f"its process ended with {known.get(-code, f'signal {-code}')}"
    if code == -9:
        return "oom", f"{what}, as systems do that run out of memory"
    if "bad_alloc" in log or "MemoryError" in log:
        return "oom", f"{what} for want of memory"
    return "crash", what


def refusal(message: Refused) -> BringupError:
    """The error that a worker met when it opened its device."""
    kind = getattr(bringup.errors, message.kind, BackendError)
    error: BringupError = kind(message.what, fix=message.fix)
    return error


@dataclass(slots=True)
class Remote:
    """The device of a worker process, for the functions that it is asked to call.

    suspect: says what to report as the cause if the process ends now.  runnable: the program that
    was compiled last.
    """

    target: DeviceTarget
    suspect: OnSuspect
    runnable: Runnable | None = None


class DeviceProcess:
    """A process that has a device open and calls one function after another on it.

    It starts at the first call, and again at the first one after it ended.  Use it as a context,
    which ends it.
    generation: changes when a program is compiled and when the process ends, so that a caller knows
    whether its program is still the one there.
    """

    def __init__(self, backend: str, timeout: float) -> None:
        self._setup = Setup(backend, timeout)
        self._worker: WorkerProcess | None = None
        self.generation = 0

    def __enter__(self) -> DeviceProcess:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        on_suspect: OnSuspect | None = None,
        deadline: float = float("inf"),
    ) -> Any:
        """The result of ``function(remote, *args)`` in the process; see `Remote`.

        on_suspect: is called with each cause that the function suspects.  deadline: when the
        process is killed as one that hangs, by the clock `time.monotonic`.
        Raises RemoteError for what the function raises and for the end of the process, BackendError
        if the device cannot be opened.
        """
        timeout = self._setup.timeout
        if self._worker is None:
            self._worker = WorkerProcess(self._setup)
            message = self._receive(max(timeout, OPENING), deadline)
            if isinstance(message, Refused):
                raise refusal(message)
            assert isinstance(message, Ready)
        self._worker.send(Call(function, args))
        while True:
            message = self._receive(timeout, deadline)
            if isinstance(message, Suspected):
                if on_suspect is not None:
                    on_suspect(message.cause)
            elif isinstance(message, Raised):
                raise RemoteError(message.kind, message.message)
            else:
                assert isinstance(message, Answer)
                return message.value

    def _receive(self, limit: float, deadline: float) -> Any:
        worker = self._worker
        assert worker is not None
        worker.watchdog.restart()
        while not worker.connection.poll(TICK):
            worker.kill_if_hung(limit, deadline)
        message = worker.receive()
        if isinstance(message, Exited):
            problem = worker.exit_problem()
            self.end()
            raise RemoteError(problem.kind, problem.what, problem.log, problem.phase)
        return message

    def end(self) -> None:
        """End the process, if there is one."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None
            self.generation += 1

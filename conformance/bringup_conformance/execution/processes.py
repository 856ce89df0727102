"""Worker processes, as the process that starts them sees them: their life, and how they died."""

from __future__ import annotations

import itertools
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import IO, Any

import bringup.errors
from bringup.errors import BackendError, BringupError
from bringup_conformance.cases import Problem
from bringup_conformance.execution.protocol import Began, Refused, Setup, receive, send
from bringup_conformance.execution.pulse import Watch

#: Seconds that a process is given to end.
GRACE = 5.0
#: Seconds between looks at workers that say nothing.
TICK = 0.25
# Looks for the stack of a process that is about to be ended.
_LOOKS = 20
# Characters and lines kept of what a worker printed last.
_LAST = 6000
_LINES = 60
_PROGRAM = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from bringup_conformance.execution.worker import main
main()
"""
#: The exit status of a worker whose device is lost, and what stands before the error it tells last.
LOST, LOST_MARK = 81, "the device is lost by: "
#: Threads of numpy's matrix products: workers share the cores among them.
_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Gone:
    """A worker's last message, which it did not send."""


Inbox = queue.SimpleQueue[tuple["WorkerProcess", Any]]


class WorkerProcess:
    """One worker process.

    tasks: what it was given and has not finished.  at: the item in progress.  next: the number of
    the one after the last.  watch: whether it hangs.
    """

    _numbers = itertools.count()

    def __init__(self, setup: Setup, inbox: Inbox, threads: int = 0) -> None:
        if not sys.executable:  # embedded in another program
            raise BackendError("no Python interpreter to run workers in", fix="use jobs=0")
        self.number = next(self._numbers)
        self.tasks: deque[Any] = deque()
        self.at: Began | None = None
        self.next = 0
        self.watch = Watch()
        self.ready = False
        self._hangs = ""
        self._inbox = inbox
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (it lives as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=_environment(threads),
        )
        self.watch.of(self._process.pid)
        self.tell([*sys.path])
        self.tell(replace(setup, page=self.watch.path))
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        try:
            while True:
                message = receive(stream)
                self.watch.hide()
                self._inbox.put((self, message))
        except EOFError:
            self._inbox.put((self, Gone()))

    def tell(self, message: object) -> None:
        """Send a message; if it is dead, that will be heard of soon."""
        stream = self._process.stdin
        assert stream is not None
        try:
            send(stream, message)
        except (BrokenPipeError, OSError):
            return

    def give(self, task: object) -> None:
        """A task, after those it has."""
        self.tasks.append(task)
        if len(self.tasks) == 1:
            self.watch.begin()
        self.tell(task)

    def kill(self, why: str) -> None:
        """End a process that hangs, after it has printed its stack; its death will be heard of."""
        self._hangs = why
        if hasattr(signal, "SIGUSR1"):
            before = os.fstat(self._log.fileno()).st_size
            self._process.send_signal(signal.SIGUSR1)
            for _ in range(_LOOKS):
                time.sleep(TICK / 5)
                if os.fstat(self._log.fileno()).st_size > before:
                    break
        self._process.kill()

    def end(self) -> None:
        """Let it go at once."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            assert stream is not None
            try:
                stream.close()
            except OSError:
                continue
        self.watch.close()

    def death(self) -> Problem:
        """How it died."""
        try:
            code: int = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._hangs = "it closed its pipes and lives on"
            self._process.kill()
            code = self._process.wait()
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _LAST))
        text = self._log.read().decode(errors="replace")
        # Never empty: that tells the end of a process from what was raised.
        log = "\n".join(text.splitlines()[-_LINES:]) or "it printed nothing"
        kind, what = cause(code, text, self._hangs)
        phase = self.watch.phase if kind == "hang" else ""
        return Problem(kind, f"{phase}: {what}" if phase else what, log=log, phase=phase)


def cause(code: int, log: str, hangs: str = "") -> tuple[str, str]:
    """The kind of problem, and a sentence, of a process that ended.

    code: its exit status, of a signal negative.  log: what it printed last.  hangs: why it was
    ended as one that hangs, if it was.

    >>> cause(-11, "")
    ('crash', 'its process ended with SIGSEGV')
    >>> cause(3, "")
    ('crash', 'its process exited with status 3')
    >>> cause(LOST, f"{LOST_MARK}DeviceError: it fell off the table")
    ('crash', 'the device is lost by: DeviceError: it fell off the table')
    """
    if hangs:
        return "hang", hangs
    if "Timeout (" in log:
        return "hang", "it ended itself, as nobody else did"
    if code == LOST and LOST_MARK in log:
        return "crash", LOST_MARK + log.rpartition(LOST_MARK)[2].strip()
    ended = f"exited with status {code}" if code >= 0 else f"ended with {_signal(-code)}"
    what = f"its process {ended}"
    if code == -9:
        return "oom", f"{what}, as systems do that run out of memory"
    if "bad_alloc" in log or "MemoryError" in log:
        return "oom", f"{what} for want of memory"
    return "crash", what


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def refusal(message: Refused) -> BringupError:
    """The error that a worker met when it opened its device."""
    kind = getattr(bringup.errors, message.kind, BackendError)
    found: BringupError = kind(message.what, fix=message.fix)
    return found


def _environment(threads: int) -> Mapping[str, str]:
    # The trace of one process would overwrite that of another.
    found = {key: value for key, value in os.environ.items() if key != "BRINGUP_TRACE"}
    for name in _THREADS if threads else ():
        found.setdefault(name, str(threads))
    return found

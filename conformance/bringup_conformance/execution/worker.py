"""A worker process from the inside: it opens the device and does what it is told.

It ends when its connection is closed, and when its device is lost, which another process may be
able to open again.  Before it is killed as one that hangs, it prints the stack of every thread.  If
the process that would kill it is gone, it ends itself.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NoReturn

from bringup.errors import BringupError
from bringup_conformance.execution import code_coverage, heartbeat
from bringup_conformance.execution.processes import GRACE, LOST, LOST_MARK, Remote
from bringup_conformance.execution.protocol import (
    Answer,
    Began,
    Call,
    Done,
    Explain,
    Job,
    Raised,
    Ready,
    Refused,
    Setup,
    Suspected,
    Work,
    case_timeout,
)
from bringup_conformance.execution.running import error_text, is_lost, problem_kind
from bringup_conformance.execution.targets import DeviceTarget
from bringup_conformance.reporting.environment import environment
from bringup_conformance.reporting.results import Result

if TYPE_CHECKING:
    from bringup_conformance.execution.schedule import Schedule


def main(connection: Any, heartbeat_descriptor: int) -> NoReturn:
    """Serve the process that started this one, until it closes the connection.

    The device is closed at the end, and what it keeps in files is removed.
    """
    code_coverage.begin()
    sys.stdout = sys.stderr
    faulthandler.enable()
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1)
    # Graphs are many small objects that live on: looking at all of them again and again takes a
    # tenth of a run.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one decides
    with suppress(EOFError, OSError):
        heartbeat.start(heartbeat_descriptor)
        _serve(connection)
    sys.stderr.flush()
    faulthandler.dump_traceback_later(GRACE, exit=True)  # exit handlers of a driver may hang
    atexit._run_exitfuncs()  # all else of the end of an interpreter takes a second
    os._exit(0)


def _serve(connection: Connection) -> None:
    setup: Setup = connection.recv()
    try:
        target = DeviceTarget.named(setup.backend)
    except BringupError as error:
        connection.send(Refused(type(error).__name__, error.what, error.fix))
        return

    def reply(message: object) -> None:
        if not isinstance(message, Began):
            code_coverage.save()  # this process may be killed at any time
        connection.send(message)

    worker = _Worker(setup, target, reply)
    while True:
        worker.do(connection.recv())
        faulthandler.cancel_dump_traceback_later()


class _Worker:
    """The state between messages: the device, and the schedule if there is a job."""

    def __init__(self, setup: Setup, target: DeviceTarget, reply: Callable[[object], None]) -> None:
        self.timeout = setup.timeout
        self.target = target
        self.reply = reply
        self.remote = Remote(target, self.suspect)
        self.schedule = None if setup.job is None else _scheduled(target, setup.job)
        if self.schedule is None or not setup.lists_units:
            reply(Ready({}))
        else:
            schedule = self.schedule
            numbers, size = schedule.numbers, schedule.level_size
            reply(Ready(environment(target), schedule.unit_ids, numbers, size))

    def do(self, message: Work | Explain | Call) -> None:
        """Do what a message asks for, and reply."""
        if isinstance(message, Work):
            self.run(message)
        elif isinstance(message, Explain):
            self.explain(message)
        else:
            self.start_clock(self.timeout)
            self.reply(self.answer(message))

    def start_clock(self, seconds: float) -> None:
        """Begin something; if it is still under way when this process should have been killed for
        it, end this process.
        """
        heartbeat.clear_phase()
        limit = heartbeat.ALIVE_FACTOR * seconds + 2 * GRACE
        faulthandler.dump_traceback_later(limit, exit=True)

    def run(self, work: Work) -> None:
        assert self.schedule is not None
        limit = case_timeout(self.schedule.units[work.unit].level, self.timeout)
        self.start_clock(limit)
        for event in self.schedule.run(work):
            if isinstance(event, Done) and isinstance(event.result, Result):
                problem = event.result.problem
                if problem is not None:
                    self.exit_if_lost(problem.what)
            self.reply(event)
            self.start_clock(limit)

    def exit_if_lost(self, by: str) -> None:
        """End this process if its device runs nothing more.  by: what went wrong last."""
        if is_lost(self.target):
            sys.stderr.write(f"{LOST_MARK}{by}\n")
            sys.stderr.flush()
            os._exit(LOST)

    def explain(self, task: Explain) -> None:
        assert self.schedule is not None
        self.start_clock(task.seconds + heartbeat.ALIVE_FACTOR * self.timeout)
        if task.alone:
            from bringup_conformance.execution.isolated import Isolated

            with Isolated(self.target, self.timeout) as isolated:
                self.reply(self.schedule.explain(task, isolated))
        else:
            explained = self.schedule.explain(task, self.target)
            self.exit_if_lost(task.problem.what)
            self.reply(explained)

    def answer(self, call: Call) -> Answer | Raised:
        try:
            return Answer(call.function(self.remote, *call.args))
        except Exception as error:  # noqa: BLE001  (the answer is what the device raises)
            self.exit_if_lost(error_text(error))
            return Raised(problem_kind(error), error_text(error))

    def suspect(self, cause: Mapping[str, Any]) -> None:
        """Say what to report if this process ends now."""
        self.reply(Suspected(cause))
        self.start_clock(self.timeout)


def _scheduled(target: DeviceTarget, job: Job) -> Schedule:
    # What makes the cases takes a third of the time in which a process starts; one that only runs
    # programs, as the search for a cause starts many of, needs none of it.
    from bringup_conformance.execution.schedule import Schedule

    return Schedule(target, job)

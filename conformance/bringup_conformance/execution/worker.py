"""The child's side of a worker process: opens the device and does what it is told.

It ends when nobody tells it any more, and when its device is lost: for another process it may be
there.  Before it is ended as one that hangs it leaves the stack of every thread on its standard
error; should nobody be left to end it, it does so itself.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any, NoReturn

from bringup.errors import BringupError
from bringup.graph.parser import parse_graph
from bringup.ops.table import find
from bringup_conformance.diagnosis.cause import Cause
from bringup_conformance.execution import entered, pulse
from bringup_conformance.execution.here import explain
from bringup_conformance.execution.isolated import Isolated
from bringup_conformance.execution.processes import GRACE, LOST, LOST_MARK
from bringup_conformance.execution.protocol import (
    Answer,
    Began,
    Call,
    Compile,
    Done,
    Explain,
    Locate,
    Raised,
    Ready,
    Refused,
    RunCheck,
    Setup,
    Suspected,
    Work,
    patience,
    receive,
    send,
)
from bringup_conformance.execution.replaying import find_check
from bringup_conformance.execution.running import is_lost, kind_of, run_check, told
from bringup_conformance.execution.schedule import Job, Schedule, place_of
from bringup_conformance.execution.targets import DeviceTarget, Runnable, Target
from bringup_conformance.reporting.environment import environment
from bringup_conformance.reporting.failures import case_from_json
from bringup_conformance.reporting.results import Result


def main() -> NoReturn:
    """Serve the process that started this one, until it closes its end."""
    entered.begin()
    tell, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # native code prints to the descriptor, not to sys.stdout
    sys.stdout = sys.stderr
    faulthandler.enable()
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1)
    # Graphs are many small objects that live on; looking at all of them again and again takes a
    # tenth of a run.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who started this one decides
    with suppress(EOFError, BrokenPipeError):
        _serve(tell, replies)
    sys.stderr.flush()
    os._exit(0)  # a driver's threads and exit handlers may hang


def _serve(tell: IO[bytes], replies: IO[bytes]) -> None:
    setup: Setup = receive(tell)
    pulse.watched(setup.page)
    try:
        target = DeviceTarget.named(setup.backend)
    except BringupError as error:
        send(replies, Refused(type(error).__name__, error.what, error.fix))
        return

    def reply(message: object) -> None:
        if not isinstance(message, Began):
            entered.save()  # this process may be ended at any time
        send(replies, message)

    worker = _Worker(setup, target, reply)
    worker.begin()
    while True:
        worker.do(receive(tell))


class _Worker:
    """What is kept between messages."""

    def __init__(self, setup: Setup, target: Target, reply: Callable[[object], None]) -> None:
        self.setup = setup
        self.target = target
        self.reply = reply
        self.runnable: Runnable | None = None
        self.job = Job(
            setup.level, setup.seed, setup.only, setup.fraction, setup.timeout, setup.few
        )
        self.schedule = Schedule(target, self.job) if setup.level else None

    def begin(self) -> None:
        if not self.setup.asks or self.schedule is None:
            self.reply(Ready({}))
            return
        made = self.schedule
        places = tuple(map(place_of, made.units))
        self.reply(Ready(environment(self.target), places, made.numbers, made.of))

    def do(self, message: Any) -> None:
        if isinstance(message, Work):
            self.run(message)
        elif isinstance(message, Explain):
            self.explain(message)
        else:
            self.watch(self.setup.timeout)
            self.reply(self.answer(message))
        faulthandler.cancel_dump_traceback_later()

    def watch(self, seconds: float) -> None:
        """Begin something, and end this process if it is at it when it should have been ended."""
        pulse.rest()
        faulthandler.dump_traceback_later(pulse.MOST * seconds + 2 * GRACE, exit=True)

    def run(self, work: Work) -> None:
        assert self.schedule is not None
        limit = patience(self.schedule.units[work.unit].level, self.setup.timeout)
        self.watch(limit)
        for event in self.schedule.run(work):
            if isinstance(event, Done) and isinstance(event.found, Result) and event.found.problem:
                self.end_if_lost(event.found.problem.what)
            self.reply(event)
            self.watch(limit)

    def end_if_lost(self, by: str) -> None:
        """End this process if nothing more runs on the device in it.  by: what went wrong last."""
        if is_lost(self.target):
            sys.stderr.write(f"{LOST_MARK}{by}\n")
            sys.stderr.flush()
            os._exit(LOST)

    def answer(self, message: Compile | Call | Locate | RunCheck) -> Answer | Raised:
        try:
            if isinstance(message, Compile):
                graph = parse_graph(message.ir, find)
                self.runnable = self.target.compile(
                    graph, fuse=message.fuse, skip=message.skip, optimize=message.optimize
                )
                return Answer()
            if isinstance(message, Call):
                assert self.runnable is not None
                return Answer(self.runnable(message.inputs))
            if isinstance(message, Locate):
                return Answer(self.locate(message))
            return Answer(run_check(self.target, find_check(message.document, self.target)).problem)
        except Exception as error:  # noqa: BLE001  (the answer is what the device raises)
            self.end_if_lost(told(error))
            return Raised(kind_of(error), told(error))

    def locate(self, message: Locate) -> Mapping[str, Any]:
        from bringup_conformance.diagnosis.locate import locate  # few runs need it

        def suspect(cause: Cause) -> None:
            self.reply(Suspected(cause.to_json()))
            self.watch(self.setup.timeout)

        case = case_from_json(message.case)
        return locate(
            self.target, case, fuse=message.fuse, skip=message.skip, suspect=suspect
        ).to_json()

    def explain(self, task: Explain) -> None:
        assert self.schedule is not None
        timeout = self.setup.timeout
        self.watch(task.seconds + pulse.MOST * timeout)
        if task.alone:
            with Isolated(self.target, timeout) as target:
                self.reply(explain(target, self.schedule, task, timeout))
        else:
            found = explain(self.target, self.schedule, task, timeout)
            self.end_if_lost(task.problem.what)
            self.reply(found)

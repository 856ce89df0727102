"""Units of a run shared among worker processes: who is free gets the next, who dies is replaced.

A worker that dies takes one item with it, the one in progress: that is the item's result, and a new
worker goes on behind it.  An item that hangs is run once more, with nothing beside it; only if it
hangs again is that its result.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bringup.errors import BackendError
from bringup_conformance.cases import Problem
from bringup_conformance.execution.processes import TICK, Gone, Inbox, WorkerProcess, refusal
from bringup_conformance.execution.protocol import (
    Began,
    Done,
    Explain,
    Explained,
    Finished,
    Ready,
    Refused,
    Setup,
    Work,
    patience,
)
from bringup_conformance.execution.pulse import MOST
from bringup_conformance.reporting.failures import Run
from bringup_conformance.reporting.results import Place, lost

#: Workers that die one after the other, with no item between, before the run gives up.
MOST_IN_A_ROW = 10
#: Deaths in one unit before the rest of it is left out.
MOST_OF_A_UNIT = 3
#: Units that a worker holds, so that it never waits for the next.
_HELD = 2
#: Seconds that a device may take to open, however short the time for a run or a case is: importing
#: its libraries gives no sign of life.
OPENING = 30.0

#: Is given what a worker says of a unit.
Sink = Callable[[Began | Done | Finished | Explained], None]
#: When to end, by the clock `time.monotonic`; asked again and again.
Until = Callable[[], float]


class StoppedError(Exception):
    """The run ends before all is done."""


class Pool:
    """Worker processes on one device.

    Use it as a context, which ends them.  places: of all units.  numbers, of: see `Schedule`.
    environment: as a worker found it.
    silent: how many items hung, whatever they did when they ran again.
    """

    def __init__(self, setup: Setup, jobs: int, threads: int = 0) -> None:
        self.jobs = jobs
        self.places: tuple[Place, ...] = ()
        self.numbers: tuple[int, ...] = ()
        self.of = 0
        self.environment: dict[str, Any] = {}
        self._setup = replace(setup, asks=True)
        self._threads = threads
        self._inbox: Inbox = queue.SimpleQueue()
        self._workers: list[WorkerProcess] = []
        self._todo: deque[Work | Explain] = deque()
        self._again: deque[Work] = deque()
        self._proving: WorkerProcess | None = None
        self._looked = 0.0
        self.silent = 0
        self._deaths: dict[int, int] = {}
        self._in_a_row = 0
        self._known = False

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    def end(self) -> None:
        """End all workers at once."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self._todo.clear()
        self._again.clear()
        self._proving = None

    def open(self, until: float = float("inf")) -> None:
        """Start workers; returns when the device is known.

        until: when to give up, by the clock `time.monotonic`; never before `OPENING` seconds.
        Raises what opening it raises, BackendError also if the process ends of it.
        """
        until = max(until, time.monotonic() + OPENING)
        for _ in range(self.jobs):
            self._start()
        while not self._known:
            self._step(lambda _message: None)
            if time.monotonic() > until:
                raise BackendError(
                    f"the device {self._setup.backend!r} was not open when the time was up",
                    fix="give the run more time",
                )

    def work(
        self,
        tasks: deque[Work | Explain],
        take: Sink,
        until: Until = lambda: float("inf"),
        end: float = 0.0,
    ) -> int:
        """Do tasks; returns how many were not done in time.

        until: when no more are begun, by the clock `time.monotonic`.  end: when those under way
        end, if later.
        Raises StoppedError if workers die again and again.
        """
        self._todo, left = tasks, 0
        while True:
            now = time.monotonic()
            if now >= until():
                if now >= end:
                    return left + self._drop()
                left += len(self._todo) + len(self._again)
                self._todo.clear()
                self._again.clear()
            for _ in range(self.jobs - len(self._workers)):
                self._start()
            self._give()
            if not self._todo and not self._again and not any(h.tasks for h in self._workers):
                return left
            self._step(take)

    def _drop(self) -> int:
        """Forget all tasks, and end who is at one; returns how many."""
        busy = [worker for worker in self._workers if worker.tasks]
        dropped = len(self._todo) + len(self._again) + sum(len(worker.tasks) for worker in busy)
        for worker in busy:
            self._workers.remove(worker)
            worker.end()
        self._todo.clear()
        self._again.clear()
        self._proving = None
        return dropped

    def _give(self) -> None:
        """Give tasks to who is free; what hung is alone until it is done."""
        if self._proving is not None:
            return
        if self._again:
            free = next((worker for worker in self._workers if worker.ready), None)
            if free is not None and not any(worker.tasks for worker in self._workers):
                self._proving = free
                free.give(self._again.popleft())
            return
        for worker in self._workers:
            while self._todo and worker.ready and len(worker.tasks) < self._most():
                worker.give(self._todo.popleft())

    def _most(self) -> int:
        return _HELD if isinstance(self._todo[0], Work) else 1

    @property
    def doing(self) -> tuple[str, ...]:
        """The names of the items in progress."""
        return tuple(worker.at.name for worker in self._workers if worker.at is not None)

    def _start(self) -> None:
        self._workers.append(WorkerProcess(self._setup, self._inbox, self._threads))

    def _step(self, take: Sink) -> None:
        """Hear one message, or that there is none; look after those who say nothing."""
        if time.monotonic() - self._looked > TICK:
            self._look()
        try:
            worker, message = self._inbox.get(timeout=TICK)
        except queue.Empty:
            return
        if worker not in self._workers:
            return
        worker.watch.begin()
        if isinstance(message, Gone):
            self._bury(worker, take)
        elif isinstance(message, Refused):
            raise refusal(message)
        elif isinstance(message, Ready):
            self._greet(worker, message)
        else:
            self._hear(worker, message, take)

    def _greet(self, worker: WorkerProcess, message: Ready) -> None:
        worker.ready = True
        if not self._known:
            self._known = True
            self.places, self.environment = message.places, message.environment
            self.numbers, self.of = message.numbers, message.of
            self._setup = replace(self._setup, asks=False)

    def _hear(self, worker: WorkerProcess, message: Any, take: Sink) -> None:
        if isinstance(message, Began):
            worker.at = message
        elif isinstance(message, Done):
            worker.at, worker.next = None, int(message.item) + 1
            task = worker.tasks[0]
            if worker is self._proving:
                self._proving = None
            if task.problem is None or message.item != task.first:
                self._in_a_row = 0
        else:
            worker.at, worker.next = None, 0
            worker.tasks.popleft()
            if worker is self._proving:
                self._proving = None
        take(message)

    def _look(self) -> None:
        """Kill who hangs."""
        self._looked = time.monotonic()
        for worker in self._workers:
            why = (
                worker.watch.stuck(self._limit(worker)) if worker.tasks or not worker.ready else ""
            )
            if why:
                worker.kill(why)

    def _limit(self, worker: WorkerProcess) -> float:
        """Seconds without a sign of life."""
        timeout = self._setup.timeout
        if not worker.ready:
            return max(timeout, OPENING)
        task = worker.tasks[0]
        if isinstance(task, Explain):  # the process that it asks may hang, again and again
            return task.seconds + MOST * timeout
        return patience(self.places[task.unit].level, timeout)

    def _bury(self, worker: WorkerProcess, take: Sink) -> None:
        problem = worker.death()
        self._workers.remove(worker)
        if worker is self._proving:
            self._proving = None
        worker.end()
        if not self._known:
            raise BackendError(
                f"the device {self._setup.backend!r} cannot be opened: {problem.what}",
                fix="try it with `bringup doctor`",
                notes=tuple(problem.log.splitlines()[-20:]),
            )
        self._in_a_row += 1
        if self._in_a_row >= MOST_IN_A_ROW:
            raise StoppedError(f"{self._in_a_row} workers ended in a row; the last: {problem.what}")
        self._inherit(worker, problem, take)

    def _inherit(self, worker: WorkerProcess, problem: Problem, take: Sink) -> None:
        """What becomes of a dead worker's tasks."""
        tasks = list(worker.tasks)
        self._todo.extendleft(reversed(tasks[1:]))
        if not tasks:
            return
        task = tasks[0]
        if isinstance(task, Explain):
            if task.alone:
                take(Explained(task.unit, task.item, task.document))
            else:
                self._todo.appendleft(replace(task, alone=True))
            return
        at = max(task.first, worker.next) if worker.at is None else worker.at.item
        if problem.kind == "hang" and not (task.again and at == task.first):
            self.silent += 1
            self._again.append(Work(task.unit, at, last=task.last, again=True))
            return
        deaths = self._deaths[task.unit] = self._deaths.get(task.unit, 0) + 1
        last = deaths >= MOST_OF_A_UNIT or task.last
        if worker.at is not None and (task.problem is None or worker.at.item != task.first):
            self._todo.appendleft(Work(task.unit, worker.at.item, problem, last))
            return
        # It ended between items: what works late may do so, and so may the making of one.
        device = {key: self.environment[key] for key in ("product", "details")}
        run = Run(self._setup.backend, self._setup.seed, device)
        take(Done(task.unit, at - 0.5, lost(self.places[task.unit], problem, run)))
        if last:
            take(Finished(task.unit, left_out=True))
        else:
            self._todo.appendleft(Work(task.unit, at))

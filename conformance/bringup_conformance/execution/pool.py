"""Tasks of a run shared among worker processes: a free worker gets the next, one that ends is
replaced.

A worker that ends takes one item with it, the one that it was running: how the process ended is the
result of that item, and a new worker goes on behind it.  An item that hangs runs once more, with
nothing beside it; only if it hangs again is that its result.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any

from bringup.errors import BackendError
from bringup_conformance.cases import Problem
from bringup_conformance.execution.heartbeat import ALIVE_FACTOR
from bringup_conformance.execution.plan import UnitId
from bringup_conformance.execution.processes import OPENING, TICK, WorkerProcess, refusal
from bringup_conformance.execution.protocol import (
    Began,
    Done,
    Event,
    Exited,
    Explain,
    Explained,
    Finished,
    Job,
    Ready,
    Refused,
    Setup,
    Task,
    Work,
    case_timeout,
)
from bringup_conformance.execution.running import is_lost
from bringup_conformance.execution.schedule import Schedule
from bringup_conformance.execution.targets import Target
from bringup_conformance.reporting.environment import environment
from bringup_conformance.reporting.failures import Run
from bringup_conformance.reporting.results import Result, lost

#: Workers that end one after the other, with no item between, before the run gives up.
MAX_EXITS_IN_A_ROW = 10
#: Processes that one unit may end before the rest of it is left out.
MAX_EXITS_PER_UNIT = 3
#: Units that a worker holds, so that it never waits for the next.
_PREFETCH = 2

#: Is called with what happens to a unit or to a failure.
OnEvent = Callable[[Event], None]
#: When to begin no more tasks, by the clock `time.monotonic`; asked again and again.
Until = Callable[[], float]


def _never() -> float:
    return float("inf")


class StoppedError(Exception):
    """The run ends before all is done."""


class Pool:
    """Worker processes on one device.  Use it as a context, which ends them.

    threads: for numpy's matrix products in each worker; 0 to leave them as they are.
    units, numbers, level_size: see `Ready`.  environment: as a worker found it.
    retried: how many items hung, whatever they did when they ran again.
    """

    def __init__(self, backend: str, job: Job, jobs: int, threads: int = 0) -> None:
        self.jobs = jobs
        self.units: tuple[UnitId, ...] = ()
        self.numbers: tuple[int, ...] = ()
        self.level_size = 0
        self.environment: dict[str, Any] = {}
        self.retried = 0
        self._setup = Setup(backend, job.timeout, job, lists_units=True)
        self._threads = threads
        self._workers: list[WorkerProcess] = []
        self._queue: deque[Task] = deque()
        self._retries: deque[Work] = deque()
        self._retrying: WorkerProcess | None = None
        self._checked = 0.0
        self._exits_of: dict[int, int] = {}
        self._exits_in_a_row = 0
        self._is_open = False

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    def end(self) -> None:
        """End all workers at once, and forget all tasks."""
        self._forget(self._workers)

    def _forget(self, workers: list[WorkerProcess]) -> int:
        """End some workers and forget all tasks; returns how many these were."""
        tasks = len(self._queue) + len(self._retries) + sum(len(w.tasks) for w in workers)
        for worker in workers:
            worker.connection.close()  # at which all close their devices, before one is waited for
        for worker in [*workers]:
            self._workers.remove(worker)
            worker.end()
        self._queue.clear()
        self._retries.clear()
        self._retrying = None
        return tasks

    def open(self, until: float = float("inf")) -> None:
        """Start workers; returns when one has opened the device.

        until: when to give up, by the clock `time.monotonic`; never before `OPENING` seconds.
        Raises what opening it raises, BackendError also if the process ends over it.
        """
        until = max(until, time.monotonic() + OPENING)
        self._start_workers()
        while not self._is_open:
            self._step(lambda _event: None)
            if time.monotonic() > until:
                raise BackendError(
                    f"the device {self._setup.backend!r} was not open when the time was up",
                    fix="give the run more time",
                )

    def run(
        self, tasks: deque[Task], on_event: OnEvent, until: Until = _never, end: float = 0.0
    ) -> int:
        """Do tasks; returns how many were not done in time.

        until: when no more are begun.  end: when those under way are given up, if later, by the
        clock `time.monotonic`.
        Raises StoppedError if workers end again and again.
        """
        self._queue = tasks
        not_begun = 0
        while True:
            now = time.monotonic()
            if now >= until():
                if now >= end:
                    return not_begun + self._forget([w for w in self._workers if w.tasks])
                not_begun += len(self._queue) + len(self._retries)
                self._queue.clear()
                self._retries.clear()
            self._start_workers()
            self._give_tasks()
            if not self._queue and not self._retries and not any(w.tasks for w in self._workers):
                return not_begun
            self._step(on_event)

    @property
    def running(self) -> tuple[str, ...]:
        """The names of the items that run."""
        return tuple(w.current.name for w in self._workers if w.current is not None)

    def _start_workers(self) -> None:
        for _ in range(self.jobs - len(self._workers)):
            self._workers.append(WorkerProcess(self._setup, self._threads))

    def _give_tasks(self) -> None:
        """Give tasks to free workers; an item that hung is alone until it is done."""
        if self._retrying is not None:
            return
        if self._retries:
            free = next((worker for worker in self._workers if worker.ready), None)
            if free is not None and not any(worker.tasks for worker in self._workers):
                self._retrying = free
                free.give(self._retries.popleft())
            return
        for worker in self._workers:
            while self._queue and worker.ready and len(worker.tasks) < self._capacity():
                worker.give(self._queue.popleft())

    def _capacity(self) -> int:
        """Tasks that a worker may hold."""
        return _PREFETCH if isinstance(self._queue[0], Work) else 1

    def _step(self, on_event: OnEvent) -> None:
        """Wait for messages, take one of each worker, and kill workers that hang."""
        ready = wait([worker.connection for worker in self._workers], TICK)
        for worker in [w for w in self._workers if w.connection in ready]:
            message = worker.receive()
            if isinstance(message, Exited):
                self._on_exit(worker, on_event)
            elif isinstance(message, Refused):
                raise refusal(message)
            elif isinstance(message, Ready):
                self._on_ready(worker, message)
            else:
                self._on_unit_event(worker, message)
                on_event(message)
        now = time.monotonic()
        if now - self._checked > TICK:
            self._checked = now
            for worker in self._workers:
                if worker.tasks or not worker.ready:
                    worker.kill_if_hung(self._time_limit(worker))

    def _time_limit(self, worker: WorkerProcess) -> float:
        """Seconds without a sign of life after which a worker hangs."""
        timeout = self._setup.timeout
        if not worker.ready:
            return max(timeout, OPENING)
        task = worker.tasks[0]
        if isinstance(task, Explain):  # the process that it starts may hang again and again
            return task.seconds + ALIVE_FACTOR * timeout
        return case_timeout(self.units[task.unit].level, timeout)

    def _on_ready(self, worker: WorkerProcess, message: Ready) -> None:
        worker.ready = True
        if not self._is_open:
            self._is_open = True
            self.units, self.environment = message.units, message.environment
            self.numbers, self.level_size = message.numbers, message.level_size
            self._setup = replace(self._setup, lists_units=False)

    def _on_unit_event(self, worker: WorkerProcess, event: Event) -> None:
        """Note how far a worker is."""
        if isinstance(event, Began):
            worker.current = event
            return
        worker.current = None
        if worker is self._retrying:
            self._retrying = None
        if isinstance(event, Done):
            worker.next_item = event.item + 1
            task = worker.tasks[0]
            # That an exit was reported is no sign that the device works.
            if not isinstance(task, Work) or task.problem is None or event.item != task.first:
                self._exits_in_a_row = 0
        else:
            worker.next_item = 0
            worker.tasks.popleft()

    def _on_exit(self, worker: WorkerProcess, on_event: OnEvent) -> None:
        problem = worker.exit_problem()
        self._workers.remove(worker)
        if worker is self._retrying:
            self._retrying = None
        worker.end()
        if not self._is_open:
            raise BackendError(
                f"the device {self._setup.backend!r} cannot be opened: {problem.what}",
                fix="try it with `bringup doctor`",
                notes=tuple(problem.log.splitlines()[-20:]),
            )
        self._exits_in_a_row += 1
        if self._exits_in_a_row >= MAX_EXITS_IN_A_ROW:
            count = self._exits_in_a_row
            raise StoppedError(f"{count} workers ended in a row; the last: {problem.what}")
        if worker.tasks:
            first, *others = worker.tasks
            self._queue.extendleft(reversed(others))
            if isinstance(first, Work):
                self._requeue(worker, first, problem, on_event)
            elif first.alone:
                on_event(Explained(first.unit, first.item, first.document))
            else:
                self._queue.appendleft(replace(first, alone=True))

    def _requeue(
        self, worker: WorkerProcess, work: Work, problem: Problem, on_event: OnEvent
    ) -> None:
        """Report how a worker ended as the result of the item that it ran, and have another worker
        go on behind it.
        """
        current = worker.current
        item = max(work.first, worker.next_item) if current is None else current.item
        if problem.kind == "hang" and not (work.retry and item == work.first):
            self.retried += 1
            self._retries.append(Work(work.unit, item, last=work.last, retry=True))
            return
        exits = self._exits_of[work.unit] = self._exits_of.get(work.unit, 0) + 1
        last = exits >= MAX_EXITS_PER_UNIT or work.last
        if current is not None and (work.problem is None or item != work.first):
            self._queue.appendleft(Work(work.unit, item, problem, last))
            return
        # It ended between items: threads of the device may end it late, and so may making an item.
        device = {key: self.environment[key] for key in ("product", "details")}
        job = self._setup.job
        run = Run(self._setup.backend, 0 if job is None else job.seed, device)
        on_event(Done(work.unit, item, lost(self.units[work.unit], problem, run), between=True))
        if last:
            on_event(Finished(work.unit, left_out=True))
        else:
            self._queue.appendleft(Work(work.unit, item))


class InlinePool:
    """Tasks of a run, one after the other in this process.  The interface is that of `Pool`."""

    jobs = 1
    retried = 0
    running: tuple[str, ...] = ()

    def __init__(self, target: Target, job: Job) -> None:
        self._target = target
        self._schedule = Schedule(target, job)
        self.environment: dict[str, Any] = environment(target)
        self.units: tuple[UnitId, ...] = self._schedule.unit_ids
        self.numbers, self.level_size = self._schedule.numbers, self._schedule.level_size

    def __enter__(self) -> InlinePool:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    def end(self) -> None:
        """There is nothing to end."""

    def open(self, until: float = float("inf")) -> None:
        """The device is open."""

    def run(
        self, tasks: deque[Task], on_event: OnEvent, until: Until = _never, end: float = 0.0
    ) -> int:
        """Do tasks; returns how many were not done in time.

        until: when no more are begun, and a unit under way ends between two items.
        Raises StoppedError if the device is lost.
        """
        while tasks:
            if time.monotonic() >= until():
                return len(tasks)
            task = tasks.popleft()
            if isinstance(task, Explain):
                seconds = min(task.seconds, max(until(), end) - time.monotonic())
                task = replace(task, seconds=max(0.0, seconds))
                on_event(self._schedule.explain(task, self._target))
                continue
            for event in self._schedule.run(task):
                on_event(event)
                if isinstance(event, Done):
                    result = event.result
                    failed = isinstance(result, Result) and result.problem is not None
                    if failed and is_lost(self._target):
                        why = f"the device is lost in this process by {result.name}"
                        raise StoppedError(why)
                    if time.monotonic() >= until():
                        return 1 + len(tasks)
        return 0

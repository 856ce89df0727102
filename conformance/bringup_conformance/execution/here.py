"""Units of a run, one after the other in this process: what `Pool` is for targets at hand."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import Any

from bringup_conformance.cases import Case, Outcome
from bringup_conformance.execution.pool import Sink, StoppedError, Until
from bringup_conformance.execution.protocol import Done, Explain, Explained, Work
from bringup_conformance.execution.running import is_lost
from bringup_conformance.execution.schedule import Job, Schedule, place_of
from bringup_conformance.execution.targets import Target
from bringup_conformance.oracle.verdict import Verdict
from bringup_conformance.reporting.environment import environment
from bringup_conformance.reporting.results import Place, Result


class Here:
    """What runs a target at hand.  The interface is that of `Pool`."""

    jobs = 1
    silent = 0
    doing: tuple[str, ...] = ()

    def __init__(self, target: Target, job: Job) -> None:
        self._target = target
        self._schedule = Schedule(target, job)
        self.environment: dict[str, Any] = environment(target)
        self.places: tuple[Place, ...] = tuple(map(place_of, self._schedule.units))
        self.numbers, self.of = self._schedule.numbers, self._schedule.of

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    def end(self) -> None:
        """Nothing to end."""

    def open(self, until: float = float("inf")) -> None:
        """It is open."""

    def work(
        self,
        tasks: deque[Work | Explain],
        take: Sink,
        until: Until = lambda: float("inf"),
        end: float = 0.0,
    ) -> int:
        """Do tasks; returns how many were not done when the time came: one under way ends between
        two items.

        Raises StoppedError if the device is lost.
        """
        while tasks:
            if time.monotonic() >= until():
                return len(tasks)
            task = tasks.popleft()
            if isinstance(task, Work):
                for event in self._schedule.run(task):
                    take(event)
                    if isinstance(event, Done):
                        self._stop_if_lost(event)
                        if time.monotonic() >= until():
                            return 1 + len(tasks)
            else:
                left = max(0.0, min(task.seconds, max(until(), end) - time.monotonic()))
                task = replace(task, seconds=left)
                take(explain(self._target, self._schedule, task, self._schedule.job.timeout))
        return 0

    def _stop_if_lost(self, done: Done) -> None:
        found = done.found
        if isinstance(found, Result) and found.problem is not None and is_lost(self._target):
            raise StoppedError(f"the device is lost in this process by {found.name}")


def explain(target: Target, schedule: Schedule, task: Explain, timeout: float) -> Explained:
    """A failure looked into on a target.  timeout: seconds without a sign of life, elsewhere."""
    from bringup_conformance.diagnosis.investigate import diagnosed
    from bringup_conformance.diagnosis.shrinker import Effort
    from bringup_conformance.execution.running import run_case

    numbered = enumerate(schedule.items(task.unit))
    case = next(item for number, item in numbered if number == task.item)
    assert isinstance(case, Case)
    outcome, document = Outcome(case, Verdict(), task.problem), task.document
    if task.alone:  # how it ended is all that is known: where it does is not
        outcome = run_case(target, case)
    if outcome.problem is None:
        document = {**document, "alone": "passes"}
    elif outcome.problem.kind == task.problem.kind == "hang" and not outcome.problem.alike(
        task.problem
    ):
        document = {**document, "alone": f"hangs elsewhere: {outcome.problem.what}"}
    else:
        effort = Effort(seconds=task.seconds)
        document = diagnosed(target, outcome, document, effort, timeout)
    return Explained(task.unit, task.item, document)

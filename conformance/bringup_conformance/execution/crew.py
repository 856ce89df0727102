"""Units of a run shared among worker processes: who is free gets the next, who dies is replaced.

A worker that dies takes one item with it, the one at hand: that is the item's result, and a new
worker goes on behind it.
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
from bringup_conformance.execution.hands import GRACE, Gone, Hand, Inbox, refusal
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
from bringup_conformance.reporting.failures import Run
from bringup_conformance.reporting.results import Place, lost

#: Workers that die one after the other, with no item between, before the run gives up.
MOST_IN_A_ROW = 10
#: Deaths in one unit before the rest of it is left out.
MOST_OF_A_UNIT = 3
#: Units that a worker holds, so that it never waits for the next.
_HELD = 2
# Seconds between looks at workers that say nothing.
_TICK = 0.25

#: Is given what a worker says of a unit.
Sink = Callable[[Began | Done | Finished | Explained], None]


class StoppedError(Exception):
    """The run ends before all is done."""


class Crew:
    """Worker processes on one device.

    Use it as a context, which ends them.  places: of all units.  environment: as a worker found it.
    """

    def __init__(self, setup: Setup, jobs: int, threads: int = 0) -> None:
        self.jobs = jobs
        self.places: tuple[Place, ...] = ()
        self.environment: dict[str, Any] = {}
        self._setup = replace(setup, asks=True)
        self._threads = threads
        self._inbox: Inbox = queue.SimpleQueue()
        self._hands: list[Hand] = []
        self._todo: deque[Work | Explain] = deque()
        self._deaths: dict[int, int] = {}
        self._in_a_row = 0
        self._known = False

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    def end(self) -> None:
        """End all workers at once."""
        for hand in self._hands:
            hand.end()
        self._hands.clear()
        self._todo.clear()

    def open(self) -> None:
        """Start workers; returns when the device is known.

        Raises what opening it raises, BackendError also if the process ends of it.
        """
        for _ in range(self.jobs):
            self._start()
        while not self._known:
            self._step(lambda _message: None)

    def work(self, tasks: deque[Work | Explain], take: Sink, until: float = float("inf")) -> int:
        """Do tasks; returns how many were left when the time came, by the clock `time.monotonic`.

        Raises StoppedError if workers die again and again.
        """
        self._todo, left = tasks, 0
        while True:
            if time.monotonic() >= until:
                left += self._drop()
            for hand in self._hands:
                while self._todo and hand.ready and len(hand.tasks) < self._most():
                    hand.give(self._todo.popleft())
            if not self._todo and not any(hand.tasks for hand in self._hands):
                return left
            self._step(take)

    def _drop(self) -> int:
        """Forget all tasks but to report how a worker died; returns how many."""
        known = [t for t in self._todo if isinstance(t, Work) and t.problem is not None]
        dropped = len(self._todo) - len(known)
        self._todo = deque(replace(task, last=True) for task in known)
        return dropped

    def _most(self) -> int:
        return _HELD if isinstance(self._todo[0], Work) else 1

    @property
    def doing(self) -> tuple[str, ...]:
        """The names of the items at hand."""
        return tuple(hand.at.name for hand in self._hands if hand.at is not None)

    def _start(self) -> None:
        self._hands.append(Hand(self._setup, self._inbox, self._threads))

    def _step(self, take: Sink) -> None:
        """Hear one message, or that there is none."""
        try:
            hand, message = self._inbox.get(timeout=_TICK)
        except queue.Empty:
            self._look()
            return
        if hand not in self._hands:
            return
        hand.since = time.monotonic()
        if isinstance(message, Gone):
            self._bury(hand, take)
        elif isinstance(message, Refused):
            raise refusal(message)
        elif isinstance(message, Ready):
            self._greet(hand, message)
        else:
            self._hear(hand, message, take)

    def _greet(self, hand: Hand, message: Ready) -> None:
        hand.ready = True
        if not self._known:
            self._known = True
            self.places, self.environment = message.places, message.environment
            self._setup = replace(self._setup, asks=False)

    def _hear(self, hand: Hand, message: Any, take: Sink) -> None:
        if isinstance(message, Began):
            hand.at = message
        elif isinstance(message, Done):
            hand.at, hand.next = None, int(message.item) + 1
            task = hand.tasks[0]
            if task.problem is None or message.item != task.first:
                self._in_a_row = 0
        else:
            hand.at, hand.next = None, 0
            hand.tasks.popleft()
        take(message)

    def _look(self) -> None:
        """Kill who is silent for longer than it may."""
        now = time.monotonic()
        for hand in self._hands:
            if (hand.tasks or not hand.ready) and now - hand.since > self._limit(hand):
                hand.kill()

    def _limit(self, hand: Hand) -> float:
        timeout = self._setup.timeout
        if not hand.tasks:
            return timeout + GRACE
        task = hand.tasks[0]
        if isinstance(task, Explain):
            return 2 * (task.seconds + timeout) + GRACE
        return patience(self.places[task.unit].level, timeout) + GRACE

    def _bury(self, hand: Hand, take: Sink) -> None:
        problem = hand.death()
        self._hands.remove(hand)
        hand.end()
        if not self._known:
            raise BackendError(
                f"the device {self._setup.backend!r} cannot be opened: {problem.what}",
                fix="try it with `bringup check`",
                notes=tuple(problem.log.splitlines()[-20:]),
            )
        self._in_a_row += 1
        if self._in_a_row >= MOST_IN_A_ROW:
            raise StoppedError(f"{self._in_a_row} workers ended in a row; the last: {problem.what}")
        self._inherit(hand, problem, take)
        self._start()

    def _inherit(self, hand: Hand, problem: Problem, take: Sink) -> None:
        """What becomes of a dead worker's tasks."""
        tasks = list(hand.tasks)
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
        deaths = self._deaths[task.unit] = self._deaths.get(task.unit, 0) + 1
        last = deaths >= MOST_OF_A_UNIT
        if hand.at is not None and (task.problem is None or hand.at.item != task.first):
            self._todo.appendleft(Work(task.unit, hand.at.item, problem, last))
            return
        # It ended with no item at hand: what works late may do so, and so may the making of one.
        next_ = max(task.first, hand.next)
        device = {key: self.environment[key] for key in ("product", "details")}
        run = Run(self._setup.backend, self._setup.seed, device)
        take(Done(task.unit, next_ - 0.5, lost(self.places[task.unit], problem, run)))
        if last:
            take(Finished(task.unit, left_out=True))
        else:
            self._todo.appendleft(Work(task.unit, next_))

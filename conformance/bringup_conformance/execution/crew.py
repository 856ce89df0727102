"""Units of a run shared among worker processes: who is free gets the next, who dies is replaced.

A worker that dies takes one item with it, the one at hand: that is the item's result, and a new
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
from bringup_conformance.execution.hands import TICK, Gone, Hand, Inbox, refusal
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


class Crew:
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
        self._hands: list[Hand] = []
        self._todo: deque[Work | Explain] = deque()
        self._again: deque[Work] = deque()
        self._proving: Hand | None = None
        self._looked = 0.0
        self.silent = 0
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
            for _ in range(self.jobs - len(self._hands)):
                self._start()
            self._give()
            if not self._todo and not self._again and not any(h.tasks for h in self._hands):
                return left
            self._step(take)

    def _drop(self) -> int:
        """Forget all tasks, and end who is at one; returns how many."""
        busy = [hand for hand in self._hands if hand.tasks]
        dropped = len(self._todo) + len(self._again) + sum(len(hand.tasks) for hand in busy)
        for hand in busy:
            self._hands.remove(hand)
            hand.end()
        self._todo.clear()
        self._again.clear()
        self._proving = None
        return dropped

    def _give(self) -> None:
        """Give tasks to who is free; what hung is alone until it is done."""
        if self._proving is not None:
            return
        if self._again:
            free = next((hand for hand in self._hands if hand.ready), None)
            if free is not None and not any(hand.tasks for hand in self._hands):
                self._proving = free
                free.give(self._again.popleft())
            return
        for hand in self._hands:
            while self._todo and hand.ready and len(hand.tasks) < self._most():
                hand.give(self._todo.popleft())

    def _most(self) -> int:
        return _HELD if isinstance(self._todo[0], Work) else 1

    @property
    def doing(self) -> tuple[str, ...]:
        """The names of the items at hand."""
        return tuple(hand.at.name for hand in self._hands if hand.at is not None)

    def _start(self) -> None:
        self._hands.append(Hand(self._setup, self._inbox, self._threads))

    def _step(self, take: Sink) -> None:
        """Hear one message, or that there is none; look after those who say nothing."""
        if time.monotonic() - self._looked > TICK:
            self._look()
        try:
            hand, message = self._inbox.get(timeout=TICK)
        except queue.Empty:
            return
        if hand not in self._hands:
            return
        hand.watch.begin()
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
            self.numbers, self.of = message.numbers, message.of
            self._setup = replace(self._setup, asks=False)

    def _hear(self, hand: Hand, message: Any, take: Sink) -> None:
        if isinstance(message, Began):
            hand.at = message
        elif isinstance(message, Done):
            hand.at, hand.next = None, int(message.item) + 1
            task = hand.tasks[0]
            if hand is self._proving:
                self._proving = None
            if task.problem is None or message.item != task.first:
                self._in_a_row = 0
        else:
            hand.at, hand.next = None, 0
            hand.tasks.popleft()
            if hand is self._proving:
                self._proving = None
        take(message)

    def _look(self) -> None:
        """Kill who hangs."""
        self._looked = time.monotonic()
        for hand in self._hands:
            why = hand.watch.stuck(self._limit(hand)) if hand.tasks or not hand.ready else ""
            if why:
                hand.kill(why)

    def _limit(self, hand: Hand) -> float:
        """Seconds without a sign of life."""
        timeout = self._setup.timeout
        if not hand.ready:
            return max(timeout, OPENING)
        task = hand.tasks[0]
        if isinstance(task, Explain):  # the process that it asks may hang, again and again
            return task.seconds + MOST * timeout
        return patience(self.places[task.unit].level, timeout)

    def _bury(self, hand: Hand, take: Sink) -> None:
        problem = hand.death()
        self._hands.remove(hand)
        if hand is self._proving:
            self._proving = None
        hand.end()
        if not self._known:
            raise BackendError(
                f"the device {self._setup.backend!r} cannot be opened: {problem.what}",
                fix="try it with `bringup doctor`",
                notes=tuple(problem.log.splitlines()[-20:]),
            )
        self._in_a_row += 1
        if self._in_a_row >= MOST_IN_A_ROW:
            raise StoppedError(f"{self._in_a_row} workers ended in a row; the last: {problem.what}")
        self._inherit(hand, problem, take)

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
        at = max(task.first, hand.next) if hand.at is None else hand.at.item
        if problem.kind == "hang" and not (task.again and at == task.first):
            self.silent += 1
            self._again.append(Work(task.unit, at, last=task.last, again=True))
            return
        deaths = self._deaths[task.unit] = self._deaths.get(task.unit, 0) + 1
        last = deaths >= MOST_OF_A_UNIT or task.last
        if hand.at is not None and (task.problem is None or hand.at.item != task.first):
            self._todo.appendleft(Work(task.unit, hand.at.item, problem, last))
            return
        # It ended with no item at hand: what works late may do so, and so may the making of one.
        device = {key: self.environment[key] for key in ("product", "details")}
        run = Run(self._setup.backend, self._setup.seed, device)
        take(Done(task.unit, at - 0.5, lost(self.places[task.unit], problem, run)))
        if last:
            take(Finished(task.unit, left_out=True))
        else:
            self._todo.appendleft(Work(task.unit, at))

"""Queued work of emulated devices: what must come before what, and when it runs.

Work runs when something waits for it, and then no more of it than that wait needs: whoever relies
on an order that neither a stream nor an event makes reads what was there before.  Besides, the
seed lets other work that may run go first now and then, so that the opposite mistake shows, too:
memory that is used again while older work still has to read it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable

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

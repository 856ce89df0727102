"""The queues of a device, and what of their work is known to be done.

Programs, downloads and copies run in one stream, in the order of calls; uploads run in another
beside it, and each side waits for an event of the other where the same memory is concerned.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import Any

from bringup.locks import ProcessLock
from bringup_cuda import surface

#: ``CU_STREAM_NON_BLOCKING``: not ordered with the stream that other libraries use by default.
NON_BLOCKING = 1


class Streams:
    """The streams of one device.  Its context must be current whenever a method is called.

    compute, uploads: the streams.  capture: nobody runs anything in this one: what is queued there
    becomes a graph.  capturing: held by whoever queues anything there.
    done: a tick whose work is known to be done, and all work before it.
    """

    def __init__(self, driver: surface.Driver) -> None:
        self.driver = driver
        self.compute: Any = driver.Stream(NON_BLOCKING)
        self.uploads: Any = driver.Stream(NON_BLOCKING)
        self.capture: Any = driver.Stream(NON_BLOCKING)
        self.capturing = ProcessLock()
        self.done = 0
        self._ticks = count(1)
        self._last = 0
        self._marks: deque[tuple[int, Any]] = deque()
        self._spare: list[Any] = []

    def tick(self) -> int:
        """A number for the work just queued in ``compute``.

        Taken after queueing: an event recorded when `latest` is n is behind the work of n.
        """
        self._last = made = next(self._ticks)
        return made

    @property
    def latest(self) -> int:
        """A tick that all work queued so far in ``compute`` has, or a later one."""
        return self._last

    def event(self) -> Any:
        """An event nobody uses; `recycle` it."""
        try:
            return self._spare.pop()
        except IndexError:
            return self.driver.Event(self.driver.event_flags.DISABLE_TIMING)

    def recycle(self, event: Any) -> None:
        """Let an event be used again."""
        self._spare.append(event)

    def uploads_wait(self, used: int) -> None:
        """Uploads queued from now on run after the work of tick ``used`` in ``compute``."""
        self._advance()
        if used <= self.done:
            return
        latest, mark = self._last, self.event()
        mark.record(self.compute)
        self.uploads.wait_for_event(mark)
        self._marks.append((latest, mark))

    def compute_waits(self, event: Any) -> None:
        """Work queued from now on runs after an upload whose end ``event`` marks."""
        self.compute.wait_for_event(event)

    def join_uploads(self) -> None:  # pragma: no cover on cuda-emulated - only drivers
        """Work queued from now on runs after all uploads so far."""
        made = self.event()
        made.record(self.uploads)
        self.compute_waits(made)
        self.recycle(made)

    def settle(self) -> None:
        """Wait for programs that may still run, as before their code goes."""
        latest = self._last
        if latest > self.done:
            self.compute.synchronize()
            self.proved(latest)

    def synchronize(self) -> None:
        """Wait for all work queued so far.  Raises what failed in it."""
        latest = self._last
        self.compute.synchronize()
        self.uploads.synchronize()
        self.proved(latest)

    def proved(self, tick: int) -> None:
        """The work up to a tick turned out to be done."""
        self.done = max(self.done, tick)

    def _advance(self) -> None:
        marks = self._marks
        while marks:
            tick, mark = marks[0]
            if tick > self.done and not mark.query():
                return
            self.proved(tick)
            try:
                marks.popleft()
            except IndexError:
                return  # another thread was faster
            self._spare.append(mark)

"""The streams of a device, and copies between the device and the host.

Programs, downloads and copies run in one stream, in the order of calls.  Uploads run in another at
the same time, and each stream waits for an event of the other where both use the same memory.

Bytes between the device and the host go through pinned memory, in parts, so that the host fills one
part while the device copies another.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from itertools import count
from typing import Any

import numpy as np

from bringup.locks import ProcessLock
from bringup_cuda.driver import protocol
from bringup_cuda.runtime.memory import Block, HostPool, Pinned

#: ``CU_STREAM_NON_BLOCKING``: not ordered with the stream that other libraries use by default.
NON_BLOCKING = 1


class Streams:
    """The streams of one device.  Its context must be current whenever a method is called.

    compute, uploads: the streams.  capture: work queued in this one becomes a graph.
    capturing: a lock of the capture stream.
    done: a tick; its work, and all work before it, is known to be done.
    """

    def __init__(self, driver: protocol.Driver) -> None:
        self.driver = driver
        self.compute: Any = driver.Stream(NON_BLOCKING)
        self.uploads: Any = driver.Stream(NON_BLOCKING)
        self.capture: Any = driver.Stream(NON_BLOCKING)
        self.capturing = ProcessLock()
        self.done = 0
        self._ticks = count(1)
        self._last = 0
        self._events: deque[tuple[int, Any]] = deque()
        self._unused_events: list[Any] = []

    def tick(self) -> int:
        """A number for the work just queued in ``compute``.

        Ticks are taken after queueing: an event recorded when `latest` is n follows the work of n.
        """
        self._last = tick = next(self._ticks)
        return tick

    @property
    def latest(self) -> int:
        """The tick of the last work queued in ``compute``, or a later one."""
        return self._last

    def event(self) -> Any:
        """An unused event; `recycle` it."""
        try:
            return self._unused_events.pop()
        except IndexError:
            return self.driver.Event(self.driver.event_flags.DISABLE_TIMING)

    def recycle(self, event: Any) -> None:
        """Let an event be used again."""
        self._unused_events.append(event)

    def uploads_wait(self, used: int) -> None:
        """Uploads queued from now on run after the work of tick ``used`` in ``compute``."""
        self._advance()
        if used <= self.done:
            return
        latest, event = self._last, self.event()
        event.record(self.compute)
        self.uploads.wait_for_event(event)
        self._events.append((latest, event))

    def compute_waits(self, event: Any) -> None:
        """Work queued from now on runs after the upload that ``event`` follows."""
        self.compute.wait_for_event(event)

    def join_uploads(self) -> None:  # pragma: no cover on cuda-emulated - only drivers
        """Work queued from now on runs after all uploads so far."""
        event = self.event()
        event.record(self.uploads)
        self.compute_waits(event)
        self.recycle(event)

    def wait_for_programs(self) -> None:
        """Wait for programs that may still run, before their code is dropped."""
        latest = self._last
        if latest > self.done:
            self.compute.synchronize()
            self.mark_complete(latest)

    def synchronize(self) -> None:
        """Wait for all work queued so far.  Raises its errors."""
        latest = self._last
        self.compute.synchronize()
        self.uploads.synchronize()
        self.mark_complete(latest)

    def mark_complete(self, tick: int) -> None:
        """Note that the work up to a tick is done."""
        self.done = max(self.done, tick)

    def _advance(self) -> None:
        events = self._events
        while events:
            tick, event = events[0]
            if tick > self.done and not event.query():
                return
            self.mark_complete(tick)
            try:
                events.popleft()
            except IndexError:
                return  # Another thread took it.
            self._unused_events.append(event)


#: Bytes of a part.
PART = 4 << 20
#: Parts of a download in flight at once.
_MAX_IN_FLIGHT = 3

Bytes = np.ndarray[Any, Any]
#: Parts of a download in flight: the offset, the pinned bytes, and the pinned memory.
InFlight = deque[tuple[int, Bytes, Pinned]]


class Transfers:
    """The transfers of one device.  Errors and interrupts leave no pinned memory behind."""

    def __init__(self, driver: protocol.Driver, streams: Streams, host: HostPool) -> None:
        self.driver = driver
        self.streams = streams
        self.host = host

    def upload(self, block: Block, source: Bytes) -> None:
        """Copy some bytes of the host, at least one, to the start of a block, beside programs that
        were queued before.  The source may change when this returns.
        """
        streams = self.streams
        streams.uploads_wait(block.used)
        try:
            for start in range(0, source.size, PART):
                done = self._upload(block.address + start, source[start : start + PART])
        except BaseException:  # pragma: no cover on cuda-emulated - only drivers
            # The next user of the memory must wait for the parts in flight.
            with suppress(self.driver.Error):
                streams.join_uploads()
            raise
        streams.compute_waits(done)

    def _upload(self, address: int, part: Bytes) -> Any:
        """Queue the upload of a part; the event after it."""
        pinned, uploads = self.host.acquire(part.size), self.streams.uploads
        try:
            window = pinned.array[: part.size]
            window[...] = part
            self.driver.memcpy_htod_async(address, window, uploads)
        finally:
            self.host.release_after(pinned, uploads)
        return pinned.event

    def download(self, address: int, target: Bytes) -> None:
        """Fill memory of the host with the bytes at an address, after all work before."""
        stream, in_flight = self.streams.compute, InFlight()
        try:
            for start in range(0, target.size, PART):
                size = min(PART, target.size - start)
                pinned = self.host.acquire(size)
                window = pinned.array[:size]
                in_flight.append((start, window, pinned))
                self.driver.memcpy_dtoh_async(window, address + start, stream)
                pinned.event.record(stream)
                if len(in_flight) >= _MAX_IN_FLIGHT:
                    self._finish_part(target, in_flight)
            while in_flight:
                self._finish_part(target, in_flight)
        except BaseException:  # pragma: no cover on cuda-emulated - only drivers
            # Parts in flight still write to their pinned memory.
            with suppress(self.driver.Error):
                while in_flight:
                    self.host.release_after(in_flight.pop()[2], stream)
            raise

    def _finish_part(self, target: Bytes, in_flight: InFlight) -> None:
        start, window, pinned = in_flight[0]
        pinned.event.synchronize()
        target[start : start + window.size] = window
        in_flight.popleft()
        self.host.release(pinned)

    def copy_from_address(
        self, block: Block, address: int, nbytes: int
    ) -> None:  # pragma: no cover on cuda-emulated - only drivers
        """Fill a block from another address of the device, after the work in the upload stream.

        The source is read when this returns.  Programs queued before continue to run.
        """
        streams = self.streams
        streams.uploads_wait(block.used)
        read = streams.event()
        try:
            self.driver.memcpy_dtod_async(block.address, address, nbytes, streams.uploads)
        finally:
            streams.join_uploads()
        read.record(streams.uploads)
        read.synchronize()
        streams.recycle(read)

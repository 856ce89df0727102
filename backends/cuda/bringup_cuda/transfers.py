"""Bytes between a device and the host, and from other memory of the device.

They go through pinned memory, in parts, so that the host fills one while the device moves another.
The context must be current whenever a method is called; what the driver raises passes through.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any

import numpy as np

from bringup_cuda import surface
from bringup_cuda.memory import Block, HostPool, Pinned
from bringup_cuda.streams import Streams

#: Bytes of a part.
PART = 4 << 20
#: Parts of a download on their way at once.
_AHEAD = 3

Bytes = np.ndarray[Any, Any]
#: Parts on their way to the host: where each goes, where it lies, and the memory around it.
Moving = deque[tuple[int, Bytes, Pinned]]


class Transfers:
    """The transfers of one device.  Errors and interrupts leave no pinned memory behind."""

    def __init__(self, driver: surface.Driver, streams: Streams, host: HostPool) -> None:
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
            # Whoever gets the memory next comes behind what is on its way.
            with suppress(self.driver.Error):
                streams.join_uploads()
            raise
        streams.compute_waits(done)

    def _upload(self, address: int, part: Bytes) -> Any:
        """Queue a part; the event behind it."""
        pinned, uploads = self.host.take(part.size), self.streams.uploads
        try:
            window = pinned.array[: part.size]
            window[...] = part
            self.driver.memcpy_htod_async(address, window, uploads)
        finally:
            self.host.give_behind(pinned, uploads)
        return pinned.event

    def download(self, address: int, target: Bytes) -> None:
        """Fill memory of the host with the bytes at an address, after all work before."""
        stream, moving = self.streams.compute, Moving()
        try:
            for start in range(0, target.size, PART):
                size = min(PART, target.size - start)
                pinned = self.host.take(size)
                window = pinned.array[:size]
                moving.append((start, window, pinned))
                self.driver.memcpy_dtoh_async(window, address + start, stream)
                pinned.event.record(stream)
                if len(moving) >= _AHEAD:
                    self._arrived(target, moving)
            while moving:
                self._arrived(target, moving)
        except BaseException:  # pragma: no cover on cuda-emulated - only drivers
            # What is on its way still writes there.
            with suppress(self.driver.Error):
                while moving:
                    self.host.give_behind(moving.pop()[2], stream)
            raise

    def _arrived(self, target: Bytes, moving: Moving) -> None:
        start, window, pinned = moving[0]
        pinned.event.synchronize()
        target[start : start + window.size] = window
        moving.popleft()
        self.host.give(pinned)

    def take(
        self, block: Block, address: int, nbytes: int
    ) -> None:  # pragma: no cover on cuda-emulated - only drivers
        """Fill a block from another address of the device, behind the work before in the stream of
        uploads; that was read when this returns.  Programs queued before go on running.
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


__all__ = ["PART", "Transfers"]

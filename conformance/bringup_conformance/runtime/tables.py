"""All promises, by area."""

from __future__ import annotations

from bringup_conformance.runtime import (
    aliasing,
    caching,
    closing,
    declared,
    donation,
    edges,
    keys,
    lifetime,
    memory,
    rejections,
    repeats,
    streams,
    threads,
    transfers,
)
from bringup_conformance.runtime.bench import Promise

PROMISES: tuple[Promise, ...] = (
    *memory.PROMISES,
    *aliasing.PROMISES,
    *transfers.PROMISES,
    *streams.PROMISES,
    *donation.PROMISES,
    *caching.PROMISES,
    *threads.PROMISES,
    *lifetime.PROMISES,
    *closing.PROMISES,
    *rejections.PROMISES,
    *edges.PROMISES,
    *repeats.PROMISES,
    *declared.PROMISES,
    *keys.PROMISES,
)

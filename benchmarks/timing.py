"""How the benchmarks time a call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def seconds(
    run: Callable[[], Any], repeat: int = 1, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Of one of so many calls in a row.

    clock: `time.process_time` counts what the CPUs did for all threads, and none of the waiting.
    """
    start = clock()
    for _ in range(repeat):
        run()
    return (clock() - start) / repeat


def repeats(run: Callable[[], Any], least: float) -> int:
    """How many calls in a row take at least so many seconds: 1, 4, 16, …"""
    repeat = 1
    while seconds(run, repeat) * repeat < least:
        repeat *= 4
    return repeat

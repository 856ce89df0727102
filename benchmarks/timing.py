"""How the benchmarks time a call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def seconds(run: Callable[[], Any], repeat: int = 1) -> float:
    """Of one of so many calls in a row."""
    start = time.perf_counter()
    for _ in range(repeat):
        run()
    return (time.perf_counter() - start) / repeat


def repeats(run: Callable[[], Any], least: float) -> int:
    """How many calls in a row take at least so many seconds: 1, 4, 16, …"""
    repeat = 1
    while seconds(run, repeat) * repeat < least:
        repeat *= 4
    return repeat

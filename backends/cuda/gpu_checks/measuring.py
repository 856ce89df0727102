"""Timing several ways to do one thing, calls of all of them interleaved."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

#: Seconds that one sample should last at least: long beside a clock's tick and a wait.
SAMPLE = 0.01
ROUNDS = 15
#: Bytes of the sets of operands that calls take in turn, together: several times any L2.
ROTATED = 512 << 20


@dataclass(frozen=True, slots=True)
class Side:
    """One way.

    call: queues the work on the set of operands of this number.  wait: until all of it is done.
    """

    name: str
    call: Callable[[int], object]
    wait: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a call: the median of samples, and how far their middle half lies apart."""

    median: float
    spread: float
    samples: list[float] = field(default_factory=list)


def measure(sides: Sequence[Side], seconds: float, quick: bool = False) -> dict[str, Times]:
    """The times of every side.  A sample is the time of so many calls, and one wait after them.

    seconds: for all of it, warm-up left out.
    """
    for side in sides:
        for number in range(1 if quick else 3):
            side.call(number)
        side.wait()
    repeats = [1 if quick else _repeat(side) for side in sides]
    samples: list[list[float]] = [[] for _ in sides]
    begin = time.monotonic()
    for number in range(1 if quick else ROUNDS):
        if number > 2 and time.monotonic() - begin > seconds:
            break
        for side, repeat, into in zip(sides, repeats, samples, strict=True):
            into.append(_sample(side, repeat))
    return {side.name: _times(s) for side, s in zip(sides, samples, strict=True)}


def sets_of(nbytes: int) -> int:
    """How many sets of operands of so many bytes calls take in turn.

    >>> sets_of(1 << 20), sets_of(1 << 30)
    (512, 2)
    """
    return max(2, min(512, -(-ROTATED // max(nbytes, 1))))


def _repeat(side: Side) -> int:
    repeat = 1
    while (took := _sample(side, repeat)) * repeat < SAMPLE:
        repeat = max(repeat * 2, min(repeat * 64, int(SAMPLE / took)))
    return repeat


def _sample(side: Side, repeat: int) -> float:
    start = time.perf_counter()
    for number in range(repeat):
        side.call(number)
    side.wait()
    return (time.perf_counter() - start) / repeat


def _times(samples: list[float]) -> Times:
    median = statistics.median(samples)
    if len(samples) < 2:
        return Times(median, 0.0, samples)
    low, _, high = statistics.quantiles(samples, n=4)
    return Times(median, (high - low) / median, samples)

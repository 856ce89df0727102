"""Where decisions of generators come from: a small generator of our own, or anything else that
draws integers.

A generator of programs asks for integers only, 0 being the plainest answer.  The suite's runs
answer from `Stream`, whose numbers no library's next version changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol, TypeVar

T = TypeVar("T")
_MASK = (1 << 64) - 1


class Choices(Protocol):
    """A source of decisions."""

    def integer(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``, ends included."""
        ...


class Stream:
    """Decisions derived from a seed and names alone (splitmix64).

    >>> Stream(7, "a").integer(0, 9) == Stream(7, "a").integer(0, 9)
    True
    """

    __slots__ = ("_state",)

    def __init__(self, *key: int | str) -> None:
        self._state = derive(*key)

    def integer(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``."""
        return low + self._next() % (high - low + 1)

    def _next(self) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)


def derive(*key: int | str) -> int:
    """A 64-bit seed from numbers and names."""
    text = "\0".join(map(str, key)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def pick(choices: Choices, options: Sequence[T]) -> T:
    """One of several options, the first being the plainest."""
    return options[choices.integer(0, len(options) - 1)]


def chance(choices: Choices, numerator: int, denominator: int) -> bool:
    """True in ``numerator`` of ``denominator`` cases."""
    return choices.integer(0, denominator - 1) >= denominator - numerator


def weighted(choices: Choices, options: Sequence[tuple[int, T]]) -> T:
    """One of several options by whole-number weights."""
    left = choices.integer(0, sum(weight for weight, _ in options) - 1)
    for weight, option in options:
        if left < weight:
            return option
        left -= weight
    raise AssertionError("the weights cover every number drawn")

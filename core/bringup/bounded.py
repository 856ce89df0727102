"""A dict of bounded size, for what is made once and found again."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(dict[K, V]):
    """A dict whose oldest entries go when `add` makes more than ``limit``.

    >>> squares = BoundedDict(2)
    >>> [squares.add(n, n * n) for n in (1, 2, 3)], dict(squares)
    ([[], [], [1]], {2: 4, 3: 9})
    """

    __slots__ = ("limit",)

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def add(self, key: K, value: V) -> list[V]:
        """Set an entry; the values of those that had to go.  Several threads may add at once."""
        self[key] = value
        gone: list[V] = []
        while len(self) > self.limit:
            # Another thread may change the dict between two of these steps.
            with suppress(RuntimeError, StopIteration, KeyError):
                gone.append(self.pop(next(iter(self))))
        return gone


__all__ = ["BoundedDict"]

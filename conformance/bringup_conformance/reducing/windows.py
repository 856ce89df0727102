"""The fewest steps that are wrong in company: one with its results where the plan puts them, or two
of which each is right alone, and what is between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bringup.errors import BringupError
from bringup.graph import Value
from bringup.program.program import Program, Slot
from bringup.runtime.devices import OpenDevice
from bringup_conformance.execution.targets import runnable_of
from bringup_conformance.oracle.numbers import Array, same_bits
from bringup_conformance.reducing.steps import Copies, Place, some
from bringup_conformance.reducing.trials import Values

#: What is wrong with the array of a value on a data set; empty if nothing.
Wrong = Callable[[Value, Array, int], str]
Places = Sequence[tuple[list[Place], list[Place]]]


@dataclass(frozen=True, slots=True)
class Found:
    """A few steps that make a wrong result together.

    numbers: of the steps, in order.  what: is wrong with the result.  number: of the data set.
    array: what was there.
    """

    numbers: tuple[int, ...]
    what: str
    number: int
    array: Array


class Windows:
    """Tries of a few steps of a program on right inputs."""

    def __init__(
        self,
        device: OpenDevice,
        program: Program,
        steps: Places,
        wrong: Wrong,
        right: Sequence[Values],
        copies: Copies,
    ) -> None:
        self.device, self.program, self.steps = device, program, steps
        self.wrong, self.right, self.copies = wrong, right, copies

    def least(self, last: int, place: Place) -> Found | None:
        """The fewest steps up to one after which a place is wrong; None if no part shows it."""
        size, found = 1, self.tried([last], [place])
        while found is None and size <= last:
            size *= 2
            found = self.tried(range(max(last + 1 - size, 0), last + 1), [place])
        if found is None:
            return None
        part = len(found.numbers) // 2
        while part:
            at = 0
            while at < len(found.numbers) - 1:
                *others, end = found.numbers
                fewer = self.tried([*others[:at], *others[at + part :], end], [place])
                found, at = fewer or found, at if fewer else at + part
            part //= 2
        return found

    def tried(self, numbers: Sequence[int], looks: Sequence[Place]) -> Found | None:
        """Run some steps alone in the memory they have; what is wrong at the last place looked at.

        Results that are no more than scratch are copied out; others are where they were.
        """
        slots = [slot for _, slot in looks]
        try:
            program, given = some(self.program, self.steps, numbers, slots, self.copies)
            runnable = runnable_of(self.device, program, spoil=True)
        except BringupError:
            return None
        value = looks[-1][0]
        for number, values in enumerate(self.right):
            try:
                array = runnable([values[v].copy() for v in given])[-1]
            except Exception:  # noqa: BLE001  (what a device raises is found by other ways)
                return None
            what = self.wrong(value, array, number)
            if what:
                return Found(tuple(numbers), what, number, array)
        return None

    def belonging(self, found: Found, value: Value) -> Slot | None:
        """The place whose right content is found where another one's should be."""
        for other, slot in self._all():
            same = other is not value and other.type is value.type
            if same and _same(self.right[found.number][other], found.array):
                return slot
        return None

    def _all(self) -> Iterator[Place]:
        for reads, writes in self.steps:
            yield from (*reads, *writes)

    def between(self, numbers: Sequence[int], place: Place) -> tuple[str, Slot | None]:
        """What two steps do to each other: how it is known, and the place it is about."""
        *_, first, last = numbers
        reads, _ = self.steps[last]
        for value, slot in reads:
            if value in dict(self.steps[first][1]) and slot.space == "arena":
                if self.tried(numbers, [(value, slot)]) is not None:
                    return "is written over by its own reader", slot
                if self.tried(numbers, [(value, slot), place]) is None:
                    return "is taken for free memory while it is read: all is right as soon as a" \
                        " later step reads it too", slot  # fmt: skip
                return "is read before it is written, or elsewhere", slot
        return "", None


def _same(first: Array, second: Array) -> bool:
    return bool(np.all(same_bits(first, second)))

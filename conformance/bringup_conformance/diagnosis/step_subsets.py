"""The fewest steps of a program that are wrong together: a single one with its results where the
plan puts them, or two that are right alone, and what happens between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bringup.errors import BringupError
from bringup.graph import Value
from bringup.program.program import Program, Slot
from bringup.records import record
from bringup.runtime.devices import OpenDevice
from bringup_conformance.diagnosis.run_part import Values
from bringup_conformance.diagnosis.step_programs import (
    CopySteps,
    PlacedValue,
    StepValues,
    step_subset,
)
from bringup_conformance.execution.targets import runnable_of
from bringup_conformance.oracle.numbers import Array, same_bits

#: Says what is wrong with the array of a value on a data set; nothing if it is right.
Judge = Callable[[Value, Array, int], str]


@record
class FailingSteps:
    """A few steps that make a wrong result together.

    steps: their numbers, in order.  what: is wrong with the result.  data: number of the data set.
    array: the wrong result.
    """

    steps: tuple[int, ...]
    what: str
    data: int
    array: Array


@dataclass
class StepSubsets:
    """Runs of a few steps of a program on right inputs.

    values: the right array of every value, for each data set.
    """

    device: OpenDevice
    program: Program
    steps: StepValues
    judge: Judge
    values: Sequence[Values]
    copies: CopySteps

    def smallest(self, last: int, look: PlacedValue) -> FailingSteps | None:
        """The fewest steps up to one after which a value is wrong; None if no few show it."""
        size, failing = 1, self.run([last], [look])
        while failing is None and size <= last:
            size *= 2
            failing = self.run(range(max(last + 1 - size, 0), last + 1), [look])
        if failing is None:
            return None
        length = len(failing.steps) // 2
        while length:
            start = 0
            while start < len(failing.steps) - 1:
                *others, end = failing.steps
                fewer = self.run([*others[:start], *others[start + length :], end], [look])
                failing, start = fewer or failing, start if fewer else start + length
            length //= 2
        return failing

    def run(self, numbers: Sequence[int], looks: Sequence[PlacedValue]) -> FailingSteps | None:
        """Run some steps in the memory that they have, and judge the last value looked at.

        Results that are in scratch memory are copied out; others are where they were.
        """
        slots = [slot for _, slot in looks]
        try:
            program, inputs = step_subset(self.program, self.steps, numbers, slots, self.copies)
            runnable = runnable_of(self.device, program, spoil=True)
        except BringupError:
            return None
        value = looks[-1][0]
        for data, values in enumerate(self.values):
            try:
                array = runnable([values[v].copy() for v in inputs])[-1]
            except Exception:  # noqa: BLE001  (what a device raises is found by other ways)
                return None
            what = self.judge(value, array, data)
            if what:
                return FailingSteps(tuple(numbers), what, data, array)
        return None

    def slot_of_content(self, failing: FailingSteps, value: Value) -> Slot | None:
        """The slot whose right content is found where a value's should be."""
        for reads, writes in self.steps:
            for other, slot in (*reads, *writes):
                if other is not value and other.type is value.type:
                    right = self.values[failing.data][other]
                    if np.all(same_bits(right, failing.array)):
                        return slot
        return None

    def conflict(self, numbers: Sequence[int], look: PlacedValue) -> tuple[str, Slot | None]:
        """What two steps do to each other: how it is known, and the slot it is about."""
        *_, first, last = numbers
        written = dict(self.steps[first][1])
        for value, slot in self.steps[last][0]:
            if value not in written or slot.space != "arena":
                continue
            if self.run(numbers, [(value, slot)]) is not None:
                return "is written over by its own reader", slot
            if self.run(numbers, [(value, slot), look]) is None:
                return (
                    "is taken for free memory while it is read: all is right as soon as a later"
                    " step reads it too"
                ), slot
            return "is read before it is written, or elsewhere", slot
        return "", None

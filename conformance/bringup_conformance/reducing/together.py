"""Steps that are right alone and wrong together: whose memory was written over, by which step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from bringup.backend.device import KernelPass
from bringup.errors import BringupError
from bringup.graph import Value
from bringup.program.program import Program, Slot
from bringup.runtime.devices import OpenDevice
from bringup_conformance.execution.running import told
from bringup_conformance.execution.targets import runnable_of
from bringup_conformance.oracle.numbers import Array, same_bits
from bringup_conformance.reducing.cause import Cause
from bringup_conformance.reducing.steps import Copies, Place, overlap, upto, written_by

#: What is wrong with the array of a value on a data set; empty if nothing.
Wrong = Callable[[Value, Array, int], str]
Places = Sequence[tuple[list[Place], list[Place]]]


def in_the_way(steps: Places) -> tuple[str, ...]:
    """Pairs of places that share memory while both are needed."""
    found = []
    for first, (_, made) in enumerate(steps):
        for value, slot in made:
            last = max((n for n, (reads, _) in enumerate(steps) if value in dict(reads)), default=0)
            for later in range(first + 1, last):
                for _, other in steps[later][1]:
                    if overlap(slot, other):
                        found.append(
                            f"{slot} of step {first}, read by step {last}, and {other} of step"
                            f" {later}"
                        )
    return tuple(dict.fromkeys(found))


def first_spoilt(
    device: OpenDevice,
    program: Program,
    steps: Places,
    wrong: Wrong,
    sets: Sequence[list[Array]],
    passes: Sequence[KernelPass],
) -> Cause | None:
    """The first step after which a place holds something wrong, and what was done to it."""
    looking = _Looking(device, program, steps, wrong, sets, passes)
    for number in range(len(program.steps)):
        for value, slot in steps[number][1]:
            what = looking.at(number + 1, value, slot)
            if looking.changed is not None:
                return looking.on_input(number, looking.changed)
            if what:
                return looking.explained(number, slot, what)
        spoilt = next(looking.spoilt(number), None)
        if spoilt is not None:
            return spoilt
    return None


class _Looking:
    """Looks into the memory of a program after its first steps."""

    def __init__(
        self,
        device: OpenDevice,
        program: Program,
        steps: Places,
        wrong: Wrong,
        sets: Sequence[list[Array]],
        passes: Sequence[KernelPass],
    ) -> None:
        self.device, self.program, self.steps = device, program, steps
        self.wrong, self.sets = wrong, sets
        self.copies = Copies(device.capabilities, passes)
        self.kernels = tuple(map(str, program.kernels))
        #: The number of an input that the last run changed.
        self.changed: int | None = None

    def at(self, count: int, value: Value, slot: Slot) -> str:
        """What is wrong with a place after so many steps, or nothing."""
        try:
            made = upto(self.program, count, [slot], self.copies)
            runnable = runnable_of(self.device, made)
        except BringupError:
            return ""  # the device cannot copy it, so nothing is known
        for number, inputs in enumerate(self.sets):
            given = [x.copy() for x in inputs]
            try:
                array = runnable(given)[-1]
            except Exception as error:  # noqa: BLE001  (what a device raises is a result)
                return told(error)
            pairs = enumerate(zip(given, inputs, strict=True))
            other = (i for i, (x, y) in pairs if not bool(same_bits(x, y).all()))
            self.changed = next(other, None)
            if self.changed is not None:
                return ""
            what = self.wrong(value, array, number)
            if what:
                return what
        return ""

    def spoilt(self, number: int) -> Iterator[Cause]:
        """What a step does to places that it does not write, and that later steps read."""
        live = {
            (value, slot)
            for _, made in self.steps[:number]
            for value, slot in made
            if slot.space == "output"
            or any(value in dict(reads) for reads, _ in self.steps[number + 1 :])
        }
        for value, slot in sorted(live, key=lambda pair: (pair[1].offset, pair[1].index)):
            what = self.at(number + 1, value, slot)
            if what:
                yield self._written_over(number, value, slot, what)

    def _written_over(self, number: int, value: Value, slot: Slot, what: str) -> Cause:
        maker = next(n for n, (_, made) in enumerate(self.steps) if value in dict(made))
        later = (
            n for n, (reads, _) in enumerate(self.steps) if n > number and value in dict(reads)
        )
        reader = next((f"step {n}" for n in later), "the caller")
        own = written_by(self.program.steps[number])
        texts = [f"{slot}, written by step {maker}, read by {reader}"]
        texts += [f"{other}, written by step {number}" for other in own]
        name = self.program.steps[number].name
        shared = any(overlap(slot, other) for other in own)
        plan = "core's plan has them overlap" if shared else "core's plan keeps them apart"
        sentence = (
            f"every step is right alone; step {number} ({name}) writes over what step {maker} left"
            f" for {reader}: {what}; {plan}"
        )
        return Cause(
            "plan", f"{slot}", sentence, number, len(self.program.steps),
            kernels=self.kernels, slots=tuple(texts), mismatches=(what,),
        )  # fmt: skip

    def on_input(self, number: int, which: int) -> Cause:
        """A step that changes an input of the program."""
        step = self.program.steps[number]
        slot = Slot("input", which, 0, self.program.inputs[which])
        own = [f"{other}, written by step {number}" for other in written_by(step)]
        sentence = (
            f"every step is right alone; step {number} ({step.name}) changes input {which},"
            " which nobody gave away"
        )
        return Cause(
            "plan", f"{slot}", sentence, number, len(self.program.steps),
            kernels=self.kernels, slots=(f"{slot}, the caller's", *own),
        )  # fmt: skip

    def _used(self, number: int) -> tuple[str, ...]:
        reads, writes = self.steps[number]
        used = [f"{slot}, read by step {number}" for _, slot in reads]
        return tuple(dict.fromkeys([*used, *(f"{s}, written by step {number}" for _, s in writes)]))

    def explained(self, number: int, slot: Slot, what: str) -> Cause:
        """A step that writes something wrong in company, though it is right alone."""
        step = self.program.steps[number]
        sentence = (
            f"step {number} ({step.name}) is right alone, on right inputs, and what it leaves in"
            f" {slot} after the steps before it is not: {what}; what it reads was right when it"
            " was looked at: it may have run too soon, or in other memory"
        )
        return Cause(
            "together", step.name, sentence, number, len(self.program.steps),
            kernels=self.kernels, slots=self._used(number), mismatches=(what,),
        )  # fmt: skip

"""Steps that are right alone and wrong together: whose memory was written over, by which step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bringup.backend.device import KernelPass
from bringup.errors import BringupError
from bringup.graph import Value
from bringup.program.program import CONTROL_STEPS, KernelStep, Program, Slot
from bringup.runtime.devices import OpenDevice
from bringup_conformance.execution.running import error_text
from bringup_conformance.execution.targets import runnable_of
from bringup_conformance.oracle.numbers import Array, same_bits
from bringup_conformance.reducing.cause import Cause
from bringup_conformance.reducing.steps import Copies, Place, overlap, upto, written_by
from bringup_conformance.reducing.trials import Values
from bringup_conformance.reducing.windows import Found, Places, Windows, Wrong


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
    right: Sequence[Values],
    passes: Sequence[KernelPass],
) -> Cause | None:
    """The first step after which a place holds something wrong, and what was done to it.

    right: of every data set, the right array of every value.
    """
    copies = Copies(device.capabilities, passes)
    windows = Windows(device, program, steps, wrong, right, copies)
    looking = _Looking(device, program, steps, wrong, sets, copies)
    for number in range(len(program.steps)):
        for value, slot in steps[number][1]:
            what = looking.at(number + 1, value, slot)
            if looking.changed is not None:
                return looking.on_input(number, looking.changed)
            if what:
                return looking.explained(number, (value, slot), what, windows)
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
        copies: Copies,
    ) -> None:
        self.device, self.program, self.steps = device, program, steps
        self.wrong, self.sets = wrong, sets
        self.copies = copies
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
                return error_text(error)
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

    def explained(self, number: int, place: Place, what: str, windows: Windows) -> Cause:
        """A step that writes something wrong in company, though it is right alone."""
        found = windows.least(number, place)
        if found is None:
            return self._in_company(number, place[1], what)
        if len(found.numbers) == 1:
            if windows.tried([number], [place, place]) is None:
                return self._read_too_soon(number, place, found)
            return self._in_its_place(number, place, found, windows)
        return self._of_several(place, found, windows)

    def _in_company(self, number: int, slot: Slot, what: str) -> Cause:
        step = self.program.steps[number]
        sentence = (
            f"step {number} ({step.name}) is right alone, on right inputs, and what it leaves in"
            f" {slot} after all the steps before it is not: {what}; no few of them show it"
        )
        return self._cause("together", step.name, sentence, number, self._used(number), what)

    def _read_too_soon(self, number: int, place: Place, found: Found) -> Cause:
        """A step whose results are right a little later than what comes next reads them."""
        later = enumerate(self.steps[number + 1 :], number + 1)
        readers = [n for n, (reads, _) in later if place in reads][:1]
        names = [self.program.steps[n].name for n in (number, *readers)]
        reader = f"step {readers[0]} ({names[1]})" if readers else "what comes next"
        sentence = (
            f"every step is right alone; {reader} reads {place[1]} before step {number}"
            f" ({names[0]}) has written it: of two copies made behind that step, the first is wrong"
            f" ({found.what}) and the second is not"
        )
        used = tuple(text for n in (number, *readers) for text in self._used(n))
        return self._cause("together", " and ".join(names), sentence, number, used, found.what)

    def _in_its_place(self, number: int, place: Place, found: Found, windows: Windows) -> Cause:
        """A step that is right where its results are those of the program, and not in scratch."""
        step = self.program.steps[number]
        kind = "kernel" if isinstance(step, KernelStep) else "op"
        other = windows.belonging(found, place[0])
        held = "" if other is None else f"; what is there belongs in {other}"
        sentence = (
            f"on right inputs, alone, in scratch memory that held 0xFF, where the plan has it write"
            f" {place[1]}: {found.what}{held}; it is right where results of the program are"
        )
        used = self._used(number)
        return self._cause(
            "loop" if isinstance(step, CONTROL_STEPS) else kind, step.name, sentence, number, used,
            found.what,
        )  # fmt: skip

    def _of_several(self, place: Place, found: Found, windows: Windows) -> Cause:
        """Steps of which each is right alone, and what is between the last two."""
        *_, number = found.numbers
        named = [f"step {n} ({self.program.steps[n].name})" for n in found.numbers]
        how, slot = windows.between(found.numbers, place)
        sentence = (
            f"{' and '.join(named)} are right alone and wrong together, on right inputs and without"
            f" any other: {place[1]}: {found.what}"
        )
        used = tuple(dict.fromkeys(text for n in found.numbers for text in self._used(n)))
        names = " and ".join(self.program.steps[n].name for n in found.numbers)
        if slot is None:
            return self._cause("together", names, sentence, number, used, found.what)
        sentence += f"; {slot} {how}; core's plan keeps it until it is read"
        return self._cause("together", names, sentence, number, used, found.what)

    def _cause(
        self, kind: str, name: str, what: str, number: int, used: tuple[str, ...], line: str
    ) -> Cause:
        return Cause(
            kind, name, what, number, len(self.program.steps),
            kernels=self.kernels, slots=used, mismatches=(line,),
        )  # fmt: skip

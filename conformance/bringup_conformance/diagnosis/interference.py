"""Steps that are right alone and wrong together: whose memory was written over, by which step."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.backend.device import KernelPass
from bringup.errors import BringupError
from bringup.graph import Value
from bringup.program.program import ControlStep, KernelStep, Program, Slot
from bringup.runtime.devices import OpenDevice
from bringup_conformance.diagnosis.cause import Cause
from bringup_conformance.diagnosis.run_part import DataSets, Values
from bringup_conformance.diagnosis.step_programs import (
    CopySteps,
    PlacedValue,
    StepValues,
    first_steps,
    overlap,
    written_slots,
)
from bringup_conformance.diagnosis.step_subsets import FailingSteps, Judge, StepSubsets
from bringup_conformance.execution.running import error_text
from bringup_conformance.execution.targets import runnable_of
from bringup_conformance.oracle.numbers import same_bits


def overlapping_slots(steps: StepValues) -> tuple[str, ...]:
    """Pairs of slots that share memory while both are needed."""
    pairs = []
    for first, (_, made) in enumerate(steps):
        for value, slot in made:
            last = max((n for n, (reads, _) in enumerate(steps) if value in dict(reads)), default=0)
            for between in range(first + 1, last):
                for _, other in steps[between][1]:
                    if overlap(slot, other):
                        pairs.append(
                            f"{slot} of step {first}, read by step {last}, and {other} of step"
                            f" {between}"
                        )
    return tuple(dict.fromkeys(pairs))


def first_corruption(
    device: OpenDevice,
    program: Program,
    steps: StepValues,
    judge: Judge,
    sets: DataSets,
    values: Sequence[Values],
    passes: Sequence[KernelPass],
) -> Cause | None:
    """The first step after which memory holds something wrong, and what was done to it.

    values: the right array of every value, for each data set.
    """
    copies = CopySteps(device.capabilities, passes)
    subsets = StepSubsets(device, program, steps, judge, values, copies)
    probe = _MemoryProbe(subsets, sets)
    for number in range(len(program.steps)):
        for value, slot in steps[number][1]:
            what = probe.wrong_after(number + 1, value, slot)
            if probe.changed_input is not None:
                return probe.input_changed(number, probe.changed_input)
            if what:
                return probe.wrong_result(number, (value, slot), what)
        corrupted = probe.other_value_corrupted(number)
        if corrupted is not None:
            return corrupted
    return None


class _MemoryProbe:
    """Looks into the memory of a program after its first steps."""

    def __init__(self, subsets: StepSubsets, sets: DataSets) -> None:
        self.subsets, self.sets = subsets, sets
        self.program, self.steps = subsets.program, subsets.steps
        #: The number of an input that the last run changed.
        self.changed_input: int | None = None

    def wrong_after(self, count: int, value: Value, slot: Slot) -> str:
        """What is wrong with a value after so many steps, or nothing."""
        try:
            program = first_steps(self.program, self.steps, count, slot, self.subsets.copies)
            runnable = runnable_of(self.subsets.device, program)
        except BringupError:
            return ""  # the device cannot copy it, so nothing is known
        for data, inputs in enumerate(self.sets):
            copies = [x.copy() for x in inputs]
            try:
                array = runnable(copies)[-1]
            except Exception as error:  # noqa: BLE001  (what a device raises is a result)
                return error_text(error)
            pairs = enumerate(zip(copies, inputs, strict=True))
            changed = (i for i, (x, y) in pairs if not bool(same_bits(x, y).all()))
            self.changed_input = next(changed, None)
            if self.changed_input is not None:
                return ""
            what = self.subsets.judge(value, array, data)
            if what:
                return what
        return ""

    def other_value_corrupted(self, number: int) -> Cause | None:
        """What a step does to values that it does not write, and that later steps read."""
        live = {
            (value, slot)
            for _, made in self.steps[:number]
            for value, slot in made
            if slot.space == "output"
            or any(value in dict(reads) for reads, _ in self.steps[number + 1 :])
        }
        for value, slot in sorted(live, key=lambda pair: (pair[1].offset, pair[1].index)):
            what = self.wrong_after(number + 1, value, slot)
            if what:
                return self._written_over(number, value, slot, what)
        return None

    def _written_over(self, number: int, value: Value, slot: Slot, what: str) -> Cause:
        maker = next(n for n, (_, made) in enumerate(self.steps) if value in dict(made))
        readers = (
            n for n, (reads, _) in enumerate(self.steps) if n > number and value in dict(reads)
        )
        reader = next((f"step {n}" for n in readers), "the caller")
        written = written_slots(self.program.steps[number])
        slots = [f"{slot}, written by step {maker}, read by {reader}"]
        slots += [f"{other}, written by step {number}" for other in written]
        name = self.program.steps[number].name
        shared = any(overlap(slot, other) for other in written)
        plan = "core's plan has them overlap" if shared else "core's plan keeps them apart"
        sentence = (
            f"every step is right alone; step {number} ({name}) writes over what step {maker} left"
            f" for {reader}: {what}; {plan}"
        )
        return self._cause("plan", f"{slot}", sentence, number, tuple(slots), what)

    def input_changed(self, number: int, which: int) -> Cause:
        """A step that changes an input of the program."""
        step = self.program.steps[number]
        slot = Slot("input", which, 0, self.program.inputs[which])
        written = [f"{other}, written by step {number}" for other in written_slots(step)]
        sentence = (
            f"every step is right alone; step {number} ({step.name}) changes input {which},"
            " which nobody gave away"
        )
        slots = (f"{slot}, the caller's", *written)
        return self._cause("plan", f"{slot}", sentence, number, slots)

    def wrong_result(self, number: int, look: PlacedValue, what: str) -> Cause:
        """A step that writes something wrong after others, though it is right alone."""
        failing = self.subsets.smallest(number, look)
        if failing is None:
            step = self.program.steps[number]
            sentence = (
                f"step {number} ({step.name}) is right alone, on right inputs, and what it leaves"
                f" in {look[1]} after all the steps before it is not: {what}; no few of them show"
                " it"
            )
            return self._cause("together", step.name, sentence, number, self._used(number), what)
        if len(failing.steps) > 1:
            return self._wrong_together(look, failing)
        if self.subsets.run([number], [look, look]) is None:
            return self._read_too_soon(number, look, failing)
        return self._wrong_in_scratch(number, look, failing)

    def _read_too_soon(self, number: int, look: PlacedValue, failing: FailingSteps) -> Cause:
        """A step whose results are right a little later than the next step reads them."""
        others = enumerate(self.steps[number + 1 :], number + 1)
        readers = [n for n, (reads, _) in others if look in reads][:1]
        names = [self.program.steps[n].name for n in (number, *readers)]
        reader = f"step {readers[0]} ({names[1]})" if readers else "what comes next"
        sentence = (
            f"every step is right alone; {reader} reads {look[1]} before step {number}"
            f" ({names[0]}) has written it: of two copies made behind that step, the first is wrong"
            f" ({failing.what}) and the second is not"
        )
        used = tuple(text for n in (number, *readers) for text in self._used(n))
        return self._cause("together", " and ".join(names), sentence, number, used, failing.what)

    def _wrong_in_scratch(self, number: int, look: PlacedValue, failing: FailingSteps) -> Cause:
        """A step that is right where its results are the program's, and wrong in scratch."""
        step = self.program.steps[number]
        other = self.subsets.slot_of_content(failing, look[0])
        held = "" if other is None else f"; what is there belongs in {other}"
        sentence = (
            f"on right inputs, alone, in scratch memory that held 0xFF, where the plan has it write"
            f" {look[1]}: {failing.what}{held}; it is right where results of the program are"
        )
        kind = "kernel" if isinstance(step, KernelStep) else "op"
        kind = "loop" if isinstance(step, ControlStep) else kind
        return self._cause(kind, step.name, sentence, number, self._used(number), failing.what)

    def _wrong_together(self, look: PlacedValue, failing: FailingSteps) -> Cause:
        """Steps that are each right alone, and what is between the last two."""
        *_, number = failing.steps
        named = [f"step {n} ({self.program.steps[n].name})" for n in failing.steps]
        how, slot = self.subsets.conflict(failing.steps, look)
        sentence = (
            f"{' and '.join(named)} are right alone and wrong together, on right inputs and without"
            f" any other: {look[1]}: {failing.what}"
        )
        if slot is not None:
            sentence += f"; {slot} {how}; core's plan keeps it until it is read"
        used = tuple(dict.fromkeys(text for n in failing.steps for text in self._used(n)))
        names = " and ".join(self.program.steps[n].name for n in failing.steps)
        return self._cause("together", names, sentence, number, used, failing.what)

    def _used(self, number: int) -> tuple[str, ...]:
        reads, writes = self.steps[number]
        used = [f"{slot}, read by step {number}" for _, slot in reads]
        return tuple(dict.fromkeys([*used, *(f"{s}, written by step {number}" for _, s in writes)]))

    def _cause(
        self, kind: str, name: str, what: str, number: int, slots: tuple[str, ...], *lines: str
    ) -> Cause:
        return Cause(
            kind, name, what, number, len(self.program.steps),
            kernels=tuple(map(str, self.program.kernels)), slots=slots, mismatches=lines,
        )  # fmt: skip

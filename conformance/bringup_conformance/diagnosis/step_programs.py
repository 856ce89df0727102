"""Programs made of some steps of a program, with a look into memory after them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from bringup.backend.capabilities import Capabilities
from bringup.backend.device import KernelPass
from bringup.graph import Builder, Value
from bringup.kernel.fuse import Launch
from bringup.passes.outputs import materialize_outputs
from bringup.program.control import written_results
from bringup.program.program import ControlStep, KernelStep, OpStep, Program, Slot, Step
from bringup.runtime.compiler import fused_program
from bringup.types import TensorType

#: A value of the fused graph, and its memory.
PlacedValue = tuple[Value, Slot]
#: Of each step, what it reads and what it writes.
StepValues = Sequence[tuple[list[PlacedValue], list[PlacedValue]]]


def step_values(step: Step, launch: Launch) -> tuple[list[PlacedValue], list[PlacedValue]]:
    """What a step reads and what it writes."""
    if isinstance(step, KernelStep):
        assert launch.kernel is not None
        rows = list(zip(step.roles, launch.values, step.slots, strict=True))
        return (
            [(v, slot) for role, v, slot in rows if role == "in"],
            [(v, slot) for role, v, slot in rows if role == "out"],
        )
    written: Sequence[Value] = launch.writes
    if isinstance(step, ControlStep):
        assert launch.instr is not None
        written = [written[i] for i in written_results(launch.instr, step)]
    return (
        list(zip(launch.reads, step.operands, strict=True)),
        list(zip(written, step.results, strict=True)),
    )


def single_step(
    program: Program, step: Step, reads: Sequence[PlacedValue], writes: Sequence[PlacedValue]
) -> Program:
    """A program of one step: what it reads are inputs, what it writes are outputs."""
    inputs = {slot: Slot("input", i, 0, slot.type) for i, slot in enumerate(input_slots(reads))}
    outputs = {slot: Slot("output", i, 0, slot.type) for i, (_, slot) in enumerate(writes)}
    return replace(
        program,
        inputs=tuple(slot.type for slot in inputs),
        outputs=tuple(slot.type for slot in outputs),
        steps=(_moved(step, inputs, outputs),),
        donated=frozenset(),
        aliases=(),
    )


def input_slots(reads: Sequence[PlacedValue]) -> list[Slot]:
    """The slots that become inputs of a single step: all but constants, each once."""
    return [slot for slot in dict.fromkeys(s for _, s in reads) if slot.space != "constant"]


def _moved(step: Step, read_from: Mapping[Slot, Slot], write_to: Mapping[Slot, Slot]) -> Step:
    """A step that reads and writes other slots."""
    if isinstance(step, KernelStep):
        tables = [read_from if role == "in" else write_to for role in step.roles]
        slots = zip(step.slots, tables, strict=True)
        return replace(step, slots=tuple(table.get(slot, slot) for slot, table in slots))
    operands = tuple(read_from.get(slot, slot) for slot in step.operands)
    results = tuple(write_to.get(slot, slot) for slot in step.results)
    return replace(step, operands=operands, results=results)


class CopySteps:
    """Steps that copy a slot to another, as the device would compile them."""

    def __init__(self, capabilities: Capabilities, passes: Sequence[KernelPass]) -> None:
        self._capabilities, self._passes = capabilities, passes

    def step(self, source: Slot, target: Slot) -> Step:
        """Copy ``source`` to ``target``.  Raises UnsupportedError."""
        with Builder() as builder:
            x = builder.input(source.type)
            graph = materialize_outputs().run(builder.build([x], "look"))
        (step,) = fused_program(graph, self._capabilities, self._passes)[1].steps
        first, last = Slot("input", 0, 0, source.type), Slot("output", 0, 0, source.type)
        return _moved(step, {first: source}, {last: target})


def first_steps(
    program: Program, steps: StepValues, count: int, look: Slot, copies: CopySteps
) -> Program:
    """The first steps of a program, in the memory that they have there, then a copy of the slot
    looked at: the last output, after those written so far.
    """
    return _some_steps(program, steps, range(count), [look], copies, program.inputs, lambda _: {})


def step_subset(
    program: Program,
    steps: StepValues,
    numbers: Sequence[int],
    looks: Sequence[Slot],
    copies: CopySteps,
) -> tuple[Program, list[Value]]:
    """A few steps of a program, in the memory that they have there, then a copy of each slot looked
    at.

    What other steps make are inputs; their values are returned beside the program.
    """
    made = {value for n in numbers for value, _ in steps[n][1]}
    inputs: dict[Value, Slot] = {}

    def from_inputs(reads: Sequence[PlacedValue]) -> dict[Slot, Slot]:
        others = [(v, s) for v, s in reads if v not in made and s.space != "constant"]
        for value, slot in others:
            inputs.setdefault(value, Slot("input", len(inputs), 0, slot.type))
        return {slot: inputs[value] for value, slot in others}

    whole = _some_steps(program, steps, numbers, looks, copies, (), from_inputs)
    return replace(whole, inputs=tuple(slot.type for slot in inputs.values())), list(inputs)


def _some_steps(
    program: Program,
    steps: StepValues,
    numbers: Sequence[int],
    looks: Sequence[Slot],
    copies: CopySteps,
    inputs: tuple[TensorType, ...],
    from_inputs: Callable[[Sequence[PlacedValue]], Mapping[Slot, Slot]],
) -> Program:
    """Some steps, then a copy of each slot looked at.

    Outputs are those that the steps write, numbered anew, then the copies.
    from_inputs: of what a step reads, the slots that are to be inputs instead.
    """
    written = [slot for n in numbers for slot in written_slots(program.steps[n])]
    outputs = sorted({slot.index for slot in written if slot.space == "output"})
    number = {old: new for new, old in enumerate(outputs)}

    def renamed(slot: Slot) -> Slot:
        return replace(slot, index=number[slot.index]) if slot.space == "output" else slot

    chosen: list[Step] = []
    for n in numbers:
        reads, writes = steps[n]
        sources = from_inputs(reads)
        others = {s: renamed(s) for _, s in reads if s not in sources}
        targets = {s: renamed(s) for _, s in writes}
        chosen.append(_moved(program.steps[n], {**others, **sources}, targets))
    for n, slot in enumerate(looks, len(number)):
        chosen.append(copies.step(renamed(slot), Slot("output", n, 0, slot.type)))
    return replace(
        program,
        inputs=inputs,
        outputs=(*(program.outputs[i] for i in outputs), *(slot.type for slot in looks)),
        steps=tuple(chosen),
        donated=frozenset(),
        aliases=(),
    )


def written_slots(step: Step) -> tuple[Slot, ...]:
    """All slots that a step writes, those that it needs while it runs among them."""
    if isinstance(step, KernelStep):
        return tuple(s for s, role in zip(step.slots, step.roles, strict=True) if role == "out")
    if isinstance(step, OpStep):
        return step.results
    return (*step.results, *step.temporaries)


def overlap(a: Slot, b: Slot) -> bool:
    """Whether two slots share memory."""
    if (a.space, a.index) != (b.space, b.index):
        return False
    return a.offset < b.offset + b.type.nbytes and b.offset < a.offset + a.type.nbytes

"""Programs made of parts of a program: one step alone, or the first few with a look into memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bringup.backend.capabilities import Capabilities
from bringup.backend.device import Backend, KernelPass
from bringup.graph import Builder, Graph, Value
from bringup.kernel.fuse import Launch
from bringup.passes.outputs import materialize_outputs
from bringup.program.program import (
    CaseStep,
    KernelStep,
    OpStep,
    Program,
    ScanStep,
    Slot,
    Step,
    WhileStep,
)
from bringup.runtime.programs import fused_program
from bringup.types import TensorType

#: A value of the fused graph, and where it lives.
Place = tuple[Value, Slot]


def places(step: Step, launch: Launch) -> tuple[list[Place], list[Place]]:
    """What a step reads and what it writes."""
    if isinstance(step, KernelStep):
        assert launch.kernel is not None
        roles = [decl.role for decl in step.kernel.buffers if decl.role != "tile"]
        rows = list(zip(roles, launch.values, step.slots, strict=True))
        return (
            [(v, slot) for role, v, slot in rows if role == "in"],
            [(v, slot) for role, v, slot in rows if role == "out"],
        )
    written = [launch.writes[i] for i in _kept(step, len(launch.writes))]
    return (
        list(zip(launch.reads, step.operands, strict=True)),
        list(zip(written, step.results, strict=True)),
    )


def _kept(step: Step, count: int) -> Sequence[int]:
    """Numbers of the results that a step writes: a loop leaves alone what it does not change."""
    if isinstance(step, WhileStep):
        return (*step.carried, *step.updated)
    if isinstance(step, ScanStep):
        stacks = len(step.results) - len(step.carried) - len(step.updated)
        carries = count - stacks
        first = len(step.operands) - len(step.stacks) - carries
        changing = [i - first for i in (*step.carried, *step.updated)]
        return (*changing, *range(carries, count))
    return range(count)


def alone(program: Program, step: Step, reads: Sequence[Place], writes: Sequence[Place]) -> Program:
    """A program of one step: what it reads are inputs, what it writes are outputs."""
    given = {slot: Slot("input", i, 0, slot.type) for i, slot in enumerate(inputs_of(reads))}
    made = {slot: Slot("output", i, 0, slot.type) for i, (_, slot) in enumerate(writes)}
    return replace(
        program,
        inputs=tuple(slot.type for slot in given),
        outputs=tuple(slot.type for slot in made),
        steps=(_moved(step, given, made),),
        donated=frozenset(),
        aliases=(),
    )


def inputs_of(reads: Sequence[Place]) -> list[Slot]:
    """The slots that become inputs of a step alone: all but constants, each once."""
    return [slot for slot in dict.fromkeys(s for _, s in reads) if slot.space != "constant"]


def _moved(step: Step, given: dict[Slot, Slot], made: dict[Slot, Slot]) -> Step:
    if isinstance(step, KernelStep):
        roles = [decl.role for decl in step.kernel.buffers if decl.role != "tile"]
        tables = [given if role == "in" else made for role in roles]
        slots = zip(step.slots, tables, strict=True)
        return replace(step, slots=tuple(table.get(slot, slot) for slot, table in slots))
    operands = tuple(given.get(slot, slot) for slot in step.operands)
    results = tuple(made.get(slot, slot) for slot in step.results)
    return replace(step, operands=operands, results=results)


class Copies:
    """Steps that copy a place to another, as the device would compile them."""

    def __init__(self, capabilities: Capabilities, passes: Sequence[KernelPass]) -> None:
        self._capabilities, self._passes = capabilities, passes

    def step(self, source: Slot, target: Slot) -> Step:
        """Copy ``source`` to ``target``.  Raises UnsupportedError."""
        graph = _copying(source.type)
        (made,) = fused_program(graph, self._capabilities, self._passes)[1].steps
        first, last = Slot("input", 0, 0, source.type), Slot("output", 0, 0, source.type)
        return _moved(made, {first: source}, {last: target})


def _copying(type_: TensorType) -> Graph:
    with Builder() as builder:
        x = builder.input(type_)
        return materialize_outputs().run(builder.build([x], "look"))


def upto(program: Program, count: int, looks: Sequence[Slot], copies: Copies) -> Program:
    """The first steps of a program, in the memory they have there, then a copy of each place looked
    at.  Outputs are the copies alone.
    """
    kept = program.steps[:count]
    written = {slot.index for step in kept for slot in written_by(step) if slot.space == "output"}
    number = {old: new for new, old in enumerate(sorted(written))}

    def renamed(slot: Slot) -> Slot:
        return replace(slot, index=number[slot.index]) if slot.space == "output" else slot

    steps = [_renamed(step, {s: renamed(s) for s in step.slots}) for step in kept]
    first = len(number)
    for n, slot in enumerate(looks):
        steps.append(copies.step(renamed(slot), Slot("output", first + n, 0, slot.type)))
    return replace(
        program,
        outputs=(*(program.outputs[i] for i in sorted(written)), *(slot.type for slot in looks)),
        steps=tuple(steps),
        donated=frozenset(),
        aliases=(),
    )


def some(
    program: Program,
    steps: Sequence[tuple[list[Place], list[Place]]],
    kept: Sequence[int],
    looks: Sequence[Slot],
    copies: Copies,
) -> tuple[Program, list[Value]]:
    """A few steps of a program, in the memory they have there, then a copy of each place looked at.

    What other steps make are inputs; their values are returned beside the program.
    """
    made = {value for n in kept for value, _ in steps[n][1]}
    given: dict[Value, Slot] = {}
    written = {s.index for n in kept for s in written_by(program.steps[n]) if s.space == "output"}
    number = {old: new for new, old in enumerate(sorted(written))}

    def renamed(slot: Slot) -> Slot:
        return replace(slot, index=number[slot.index]) if slot.space == "output" else slot

    chosen: list[Step] = []
    for n in kept:
        reads, writes = steps[n]
        table = {slot: renamed(slot) for _, slot in reads if slot.space == "output"}
        for value, slot in reads:
            if value not in made and slot.space != "constant":
                given.setdefault(value, Slot("input", len(given), 0, slot.type))
                table[slot] = given[value]
        chosen.append(_moved(program.steps[n], table, {s: renamed(s) for _, s in writes}))
    first = len(number)
    for n, slot in enumerate(looks):
        chosen.append(copies.step(renamed(slot), Slot("output", first + n, 0, slot.type)))
    made_program = replace(
        program,
        inputs=tuple(slot.type for slot in given.values()),
        outputs=(*(program.outputs[i] for i in sorted(written)), *(slot.type for slot in looks)),
        steps=tuple(chosen),
        donated=frozenset(),
        aliases=(),
    )
    return made_program, list(given)


def _renamed(step: Step, table: dict[Slot, Slot]) -> Step:
    if isinstance(step, KernelStep):
        return replace(step, slots=tuple(table[slot] for slot in step.slots))
    operands = tuple(table[slot] for slot in step.operands)
    results = tuple(table[slot] for slot in step.results)
    return replace(step, operands=operands, results=results)


def written_by(step: Step) -> tuple[Slot, ...]:
    """All places that a step writes, those it needs while it runs among them."""
    if isinstance(step, KernelStep):
        decls = [decl for decl in step.kernel.buffers if decl.role != "tile"]
        return tuple(s for s, d in zip(step.slots, decls, strict=True) if d.role == "out")
    if isinstance(step, OpStep):
        return step.results
    return (*step.results, *step.places)


def overlap(a: Slot, b: Slot) -> bool:
    """Whether two places share memory."""
    if (a.space, a.index) != (b.space, b.index):
        return False
    return a.offset < b.offset + b.type.nbytes and b.offset < a.offset + a.type.nbytes


__all__ = [
    "Backend",
    "CaseStep",
    "Copies",
    "Place",
    "alone",
    "inputs_of",
    "overlap",
    "places",
    "some",
    "upto",
    "written_by",
]

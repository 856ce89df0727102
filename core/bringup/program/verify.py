"""The program level as a specification: every step reads what an earlier one wrote, and nothing
wrote over it since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bringup.errors import GraphError, OpTypeError
from bringup.kernel.form import Kernel
from bringup.kernel.verify import verify_kernel
from bringup.program.plan import overwrites
from bringup.program.program import KernelStep, OpStep, Program, Slot, Step
from bringup.records import record

#: A stretch of memory: which (space and number), first byte, byte after the last.
Place = tuple[str, int, int, int]
Check = Callable[[Program], Iterator[tuple[int | None, str]]]


@record
class ProgramRule:
    """One rule: its name, what it says, and the check that lists violations as (step or None, what
    is wrong).
    """

    name: str
    says: str
    check: Check


def verify_program(program: Program) -> None:
    """Check every kernel, then every rule of `PROGRAM_RULES`; each relies on those before it.

    Raises GraphError with the rule broken first, the step and the program's text.
    """
    for kernel in dict.fromkeys(program.kernels):
        verify_kernel(kernel)
    for rule in PROGRAM_RULES:
        for number, what in rule.check(program):
            where = "" if number is None else f", step {number}"
            raise GraphError(
                f"program {program.name}{where}: {what}",
                notes=tuple(str(program).splitlines()),
                location=None if number is None else program.steps[number].location,
                fix=f"rule {rule.name}: {rule.says}",
            )


def _aliases(program: Program) -> Iterator[tuple[int | None, str]]:
    outputs, inputs = [o for o, _ in program.aliases], [i for _, i in program.aliases]
    if len(set(outputs)) < len(outputs) or len(set(inputs)) < len(inputs):
        yield None, f"an input or output has two aliases: {program.aliases}"
    for position in program.donated:
        if not 0 <= position < len(program.inputs):
            yield None, f"input {position} is donated and does not exist"
    for o, i in program.aliases:
        if not (0 <= o < len(program.outputs) and i in program.donated):
            yield None, f"output {o} is in input {i}, which is not donated"
        elif program.outputs[o].nbytes != program.inputs[i].nbytes:
            yield None, f"output {o}, {program.outputs[o]}, is in input {i}, {program.inputs[i]}"


def _slots(program: Program) -> Iterator[tuple[int | None, str]]:
    types = {
        "input": program.inputs,
        "output": program.outputs,
        "constant": tuple(c.type for c in program.constants),
    }
    for number, step in enumerate(program.steps):
        for slot in step.slots:
            if slot.space == "arena":
                end = slot.offset + slot.type.nbytes
                if slot.offset < 0 or end > program.arena_bytes:
                    yield number, f"{slot} lies outside the arena of {program.arena_bytes} bytes"
                elif slot.offset % slot.type.dtype.itemsize:
                    yield number, f"{slot} is not aligned to its elements"
            elif slot.space not in types or not 0 <= slot.index < len(types[slot.space]):
                yield number, f"{slot} does not exist"
            elif slot.offset or types[slot.space][slot.index] is not slot.type:
                yield number, f"{slot} is a {types[slot.space][slot.index]}"


def _signatures(program: Program) -> Iterator[tuple[int | None, str]]:
    for number, step in enumerate(program.steps):
        found = [s.type for s in step.slots]
        if isinstance(step, KernelStep):
            wanted = [d.type for d in step.kernel.buffers if d.role != "tile"]
            if [(t.dtype, t.size) for t in found] != [(t.dtype, t.size) for t in wanted]:
                yield number, f"kernel {step.name} takes {wanted}, its slots are {found}"
            continue
        try:
            results = step.op.result_types(tuple(s.type for s in step.operands), step.attrs)
        except OpTypeError as error:
            yield number, error.what
            continue
        if list(results) != [s.type for s in step.results]:
            yield number, f"{step.name} gives {list(results)}, its slots are {list(step.results)}"


def _flow(program: Program) -> Iterator[tuple[int | None, str]]:
    """Replay the steps over what each stretch of memory holds."""
    alias = dict(program.aliases)
    holds: dict[Place, Slot] = {}
    lost: dict[Slot, int] = {}
    written: set[int] = set()
    for i, type_ in enumerate(program.inputs):
        holds[("input", i, 0, type_.nbytes)] = Slot("input", i, 0, type_)
    for i, literal in enumerate(program.constants):
        holds[("constant", i, 0, literal.type.nbytes)] = Slot("constant", i, 0, literal.type)
    for number, step in enumerate(program.steps):
        for slot in _reads(step):
            if holds.get(_place(slot, alias)) != slot:
                why = f"step {lost[slot]} wrote over it" if slot in lost else "no step wrote it"
                yield number, f"{step.name} reads {slot}, but {why}"
        for slot in _writes(step):
            place = _place(slot, alias)
            if slot.space == "output" and slot.index in written:
                yield number, f"{step.name} writes {slot} again"
            if slot.space in ("input", "constant"):
                yield number, f"{step.name} writes {slot}"
            written |= {slot.index} if slot.space == "output" else set()
            for other in [p for p in holds if _overlap(p, place)]:
                lost[holds.pop(other)] = number
            holds[place] = slot
            lost.pop(slot, None)
    for missing in sorted(set(range(len(program.outputs))) - written):
        yield None, f"output {missing} is never written"


def _in_place(program: Program) -> Iterator[tuple[int | None, str]]:
    alias = dict(program.aliases)
    for number, step in enumerate(program.steps):
        writes = _writes(step)
        for n, slot in enumerate(writes):
            place = _place(slot, alias)
            for other in writes[:n]:
                if _overlap(place, _place(other, alias)):
                    yield number, f"{step.name} writes {slot} and {other}, which overlap"
            for source in _reads(step):
                if _overlap(place, _place(source, alias)) and not _may(step, source, slot, alias):
                    yield number, f"{step.name} writes {slot} over {source}, which it still reads"


def _may(step: Step, source: Slot, target: Slot, alias: dict[int, int]) -> bool:
    same = _place(source, alias) == _place(target, alias)
    if not same or not isinstance(step, KernelStep):
        return False
    positions = _outside(step.kernel)
    sources = [i for i, s in zip(positions, step.slots, strict=True) if s == source]
    targets = [i for i, s in zip(positions, step.slots, strict=True) if s == target]
    kernel = step.kernel
    return all(
        overwrites(kernel, i, o)
        for i in sources if kernel.buffers[i].role == "in"
        for o in targets if kernel.buffers[o].role == "out"
    )  # fmt: skip


def _outside(kernel: Kernel) -> list[int]:
    return [i for i, d in enumerate(kernel.buffers) if d.role != "tile"]


def _reads(step: Step) -> tuple[Slot, ...]:
    return step.operands if isinstance(step, OpStep) else _with_role(step, "in")


def _writes(step: Step) -> tuple[Slot, ...]:
    return step.results if isinstance(step, OpStep) else _with_role(step, "out")


def _with_role(step: KernelStep, role: str) -> tuple[Slot, ...]:
    decls = [step.kernel.buffers[i] for i in _outside(step.kernel)]
    return tuple(s for s, d in zip(step.slots, decls, strict=True) if d.role == role)


def _place(slot: Slot, alias: dict[int, int]) -> Place:
    end = slot.offset + slot.type.nbytes
    if slot.space == "output" and slot.index in alias:
        return ("input", alias[slot.index], slot.offset, end)
    return (slot.space, slot.index, slot.offset, end)


def _overlap(a: Place, b: Place) -> bool:
    return a[:2] == b[:2] and a[2] < b[3] and b[2] < a[3]


PROGRAM_RULES: tuple[ProgramRule, ...] = (
    ProgramRule(
        "aliases", "an output may have the memory of one donated input of its size", _aliases
    ),
    ProgramRule("slots", "a slot is an input, output, constant, or lies inside the arena", _slots),
    ProgramRule("signatures", "the slots of a step have the types it takes and gives", _signatures),
    ProgramRule(
        "flow", "a step reads what was written and not written over; outputs once each", _flow
    ),
    ProgramRule(
        "in place", "a kernel may write over an operand it reads only where it writes", _in_place
    ),
)

__all__ = ["PROGRAM_RULES", "ProgramRule", "verify_program"]

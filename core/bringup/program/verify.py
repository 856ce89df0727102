"""The program level as a specification: every step reads what an earlier one wrote, and nothing
wrote over it since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from bringup.errors import GraphError, OpTypeError
from bringup.kernel.form import Kernel
from bringup.kernel.verify import verify_kernel
from bringup.program.in_place import loop_replaces, replaces
from bringup.program.plan import overwrites
from bringup.program.program import (
    BranchStep,
    ControlStep,
    KernelStep,
    LoopStep,
    OpStep,
    Program,
    Slot,
    Step,
)
from bringup.records import record
from bringup.types import TensorType

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
    """Check every kernel, then every rule of `PROGRAM_RULES`; each relies on those before it.  Then
    the programs of loops and branches.

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
    for step in program.steps:
        if isinstance(step, ControlStep):
            for inner in step.programs:
                verify_program(inner)


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
        if isinstance(step, ControlStep):
            yield from ((number, what) for what in _control_signature(step))
            continue
        try:
            results = step.op.result_types(tuple(s.type for s in step.operands), step.attrs)
        except OpTypeError as error:
            yield number, error.what
            continue
        if list(results) != [s.type for s in step.results]:
            yield number, f"{step.name} gives {list(results)}, its slots are {list(step.results)}"


def _control_signature(step: ControlStep) -> Iterator[str]:
    if any(p.arena_bytes > step.scratch.type.nbytes for p in step.programs):
        yield f"{step.name} has {step.scratch} as the arena of programs that need more"
    for inner in step.programs:
        updated: list[tuple[int, int]] = []
        if isinstance(step, LoopStep) and inner is step.body:
            updated = [(len(step.carried) + n, i) for n, i in enumerate(step.updated)]
        if list(inner.aliases) != updated or inner.donated != {i for _, i in updated}:
            yield f"{step.name} runs {inner.name}, which takes other inputs for itself"
    if isinstance(step, LoopStep) and step.cond is None and step.trips is None:
        yield f"{step.name} has neither a condition nor a number of runs"
    pairs = _branch_types(step) if isinstance(step, BranchStep) else _loop_types(step)
    for found, wanted in pairs:
        if found != wanted:
            yield f"{step.name} has {found} where {wanted} is due"


def _branch_types(step: BranchStep) -> Iterator[tuple[list[TensorType], list[TensorType]]]:
    """The types that a branch has, and those that it must have."""
    operands, results = _types(step.operands), _types(step.results)
    for program in step.programs:
        yield list(program.inputs), operands[1:]
        yield list(program.outputs), results


def _loop_types(step: LoopStep) -> Iterator[tuple[list[TensorType], list[TensorType]]]:
    """The types that a loop has, and those that it must have."""
    operands, results = _types(step.operands), _types(step.results)
    initial = [operands[i] for i in (*step.carried, *step.updated)]
    stacked = range(len(initial), len(results))
    yield list(step.body.inputs), _rows(operands, step.stacks, step.trips)
    yield list(step.body.outputs), _rows(results, stacked, step.trips)
    if step.cond is not None:
        yield list(step.cond.inputs), operands
        yield list(step.cond.outputs), [] if step.flag is None else [step.flag.type]
    yield initial, results[: len(initial)]
    yield initial[: len(step.carried)], _types(step.spare)


def _types(slots: Iterable[Slot]) -> list[TensorType]:
    return [slot.type for slot in slots]


def _rows(
    types: Sequence[TensorType], stacks: Iterable[int], length: int | None
) -> list[TensorType]:
    """The types with the stacks among them replaced by their rows, if they have as many."""
    rows = list(types)
    for i in stacks:
        if rows[i].shape[:1] == (length,):
            rows[i] = rows[i].with_shape(rows[i].shape[1:])
    return rows


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
            changes = isinstance(step, OpStep) and slot in _reads(step)
            if slot.space == "output" and slot.index in written and not changes:
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
    if same and isinstance(step, OpStep):
        return source.type is target.type and replaces(step.op, step.operands, source)
    if same and isinstance(step, LoopStep):
        return loop_replaces(step, step.operands, step.results, source, target)
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
    return _with_role(step, "in") if isinstance(step, KernelStep) else step.operands


def _writes(step: Step) -> tuple[Slot, ...]:
    if isinstance(step, KernelStep):
        return _with_role(step, "out")
    return step.results if isinstance(step, OpStep) else (*step.results, *step.temporaries)


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
        "in place",
        "a kernel may write over what it reads only where it writes, an op over what it changes",
        _in_place,
    ),
)

__all__ = ["PROGRAM_RULES", "ProgramRule", "verify_program"]

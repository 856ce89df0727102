"""Loops and branches as steps of a program: the programs they run, and the memory they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bringup.dtypes import bool_, u8
from bringup.graph import Graph, Instr, Value
from bringup.ops.subgraphs import carried, is_loop, loop_parts, trips_of, unchanged
from bringup.ops.table import OpDef, Trait
from bringup.program.program import BranchStep, ControlStep, LoopStep, Program, Slot

#: Makes the program of a sub-graph; of some outputs, the input whose memory they may take.
Inner = Callable[[Graph, Mapping[int, int]], Program]
#: Positions of operands.
Positions = tuple[int, ...]


def control_step(instr: Instr, inner: Inner) -> ControlStep:
    """The step of a loop or branch before its memory is planned: operands are inputs of the
    program, results are outputs, and each temporary is at the start of the arena.
    """
    operands = tuple(Slot("input", i, 0, v.type) for i, v in enumerate(instr.operands))
    if not is_loop(instr):
        programs = tuple(inner(branch, {}) for branch in instr.attrs["branches"])
        results = _outputs(instr, range(len(instr.results)))
        return BranchStep(programs, operands, results, _scratch(programs), instr.location)
    cond: Graph | None = instr.attrs.get("cond")
    conditions = () if cond is None else (inner(cond, {}),)
    body, carried_parts, updated_parts = _loop_body(instr, inner)
    programs = (*conditions, body)
    return LoopStep(
        programs,
        carried_parts,
        updated_parts,
        operands,
        _outputs(instr, _written_by_loop(instr, (*carried_parts, *updated_parts))),
        tuple(Slot("arena", 0, 0, type_) for type_ in body.outputs[: len(carried_parts)]),
        _scratch(programs),
        None if cond is None else Slot("arena", 0, 0, bool_[()]),
        trips_of(instr),
        tuple(range(loop_parts(instr).first_stack, len(operands))),
        bool(instr.attrs.get("reverse")),
        instr.location,
    )


def written_results(instr: Instr, step: ControlStep) -> Sequence[int]:
    """Of each result of the step, its position among the results of the instruction: a loop does
    not write what it does not change.
    """
    if isinstance(step, BranchStep):
        return range(len(instr.results))
    return _written_by_loop(instr, (*step.carried, *step.updated))


def _written_by_loop(instr: Instr, changed: Positions) -> Sequence[int]:
    result_of = dict(carried(instr))
    return (*(result_of[i] for i in changed), *range(len(result_of), len(instr.results)))


def _outputs(instr: Instr, positions: Sequence[int]) -> tuple[Slot, ...]:
    types = [instr.results[i].type for i in positions]
    return tuple(Slot("output", n, 0, type_) for n, type_ in enumerate(types))


def _scratch(programs: Sequence[Program]) -> Slot:
    return Slot("arena", 0, 0, u8[max(program.arena_bytes for program in programs)])


def _loop_body(instr: Instr, inner: Inner) -> tuple[Program, Positions, Positions]:
    """The program of a loop's body, and the positions of the carried and of the updated operands.

    Parts that ops change in place are updated, if the rest of the body allows it.
    """
    body: Graph = instr.attrs["body"]
    constant = unchanged(instr)
    changed = [pair for pair in carried(instr) if pair not in constant]
    updated = [(i, o) for i, o in changed if _is_update(body.outputs[o], body.inputs[i])]
    while True:
        swapped = [pair for pair in changed if pair not in updated]
        positions = _written_by_loop(instr, tuple(i for i, _ in (*swapped, *updated)))
        outputs = [body.outputs[i] for i in positions]
        first = len(swapped)
        own = {first + n: i for n, (i, _) in enumerate(updated)}
        program = inner(Graph(body.inputs, body.instrs, outputs, body.name), own)
        aliases = dict(program.aliases)
        aliased = [pair for n, pair in enumerate(updated) if first + n in aliases]
        if aliased == updated:
            return program, tuple(i for i, _ in swapped), tuple(i for i, _ in updated)
        updated = aliased


def _is_update(value: Value, start: Value) -> bool:
    """Whether ops that change their first operand make a value of another one."""
    while value is not start:
        made = value.producer
        if made is None or not isinstance(made.op, OpDef) or Trait.IN_PLACE not in made.op.traits:
            return False
        value = made.operands[0]
    return True


__all__ = ["Inner", "control_step", "written_results"]

"""Ops on whole buffers that change the memory of their first operand instead of copying it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bringup.graph import Graph, Instr, Operation, Value
from bringup.ops.table import OpDef, Trait, opdef
from bringup.program.program import LoopStep, OpStep, Slot

#: An update this many times smaller than its array is worth a step of its own.
_SMALL_PART = 4


def replaces(op: Operation, reads: Sequence[object], source: object) -> bool:
    """Whether the result of an op may take the memory of the operand ``source``: of the first one,
    if no other is the same.
    """
    assert isinstance(op, OpDef)
    return Trait.IN_PLACE in op.traits and reads[0] == source and list(reads).count(source) == 1


def loop_replaces(
    step: LoopStep,
    reads: Sequence[object],
    writes: Sequence[object],
    source: object,
    target: object,
) -> bool:
    """Whether a loop may write the result ``target`` over the operand ``source``: if the body
    updates it in place, and no other operand is the same.

    reads, writes: in the order of the operands and results of the step.
    """
    pairs = zip((reads[i] for i in step.updated), writes[len(step.carried) :], strict=False)
    return list(reads).count(source) == 1 and (source, target) in pairs


def is_one_memory(source: Slot, target: Slot, aliases: Mapping[int, int]) -> bool:
    """Whether an operand and a result of a step are one slot, or a donated input and the output in
    its place.

    aliases: the input in whose memory an output is.
    """
    if (source.space, target.space) == ("input", "output"):
        return aliases.get(target.index) == source.index
    return source == target


def changed_bytes(step: OpStep, aliases: Mapping[int, int]) -> int | None:
    """How much a step writes that changes the memory of its first operand; None if it does not.

    aliases: the input in whose memory an output is.
    """
    if not replaces(step.op, step.operands, step.operands[0]):
        return None
    source, target = step.operands[0], step.results[0]
    if not is_one_memory(source, target, aliases):
        return None
    parts = [s.type.nbytes for s in step.operands[1:] if s.type.dtype is target.type.dtype]
    return min(max(parts, default=0), target.type.nbytes)


def find_inplace_updates(
    graph: Graph, donated: frozenset[int], runs_op: Callable[[Instr], bool]
) -> frozenset[Instr]:
    """Instructions that write so little of memory they may have that no kernel should hold them: it
    would read and write all of it.

    donated: inputs whose memory may be overwritten.  runs_op: whether the device has the op.
    """
    found: set[Instr] = set()
    changing = [i for i in graph.instrs if Trait.IN_PLACE in _traits(i)]
    if not changing:
        return frozenset()
    users, outputs = graph.users(), set(graph.outputs)
    free = {graph.inputs[i] for i in donated}
    for instr in changing:
        x = instr.operands[0]
        others = set(users[x]) - {instr}
        dies = x not in outputs and instr.operands.count(x) == 1 and _needs(instr, others)
        theirs = x in free or (x.producer is not None and x.producer in found)
        if dies and theirs and runs_op(instr) and _part(instr) * _SMALL_PART <= x.type.size:
            found.add(instr)
    return frozenset(found)


def _needs(instr: Instr, others: set[Instr]) -> bool:
    """Whether an instruction needs the results of all others, which so come before it."""
    missing, stack, seen = set(others), [instr], {instr}
    while stack and missing:
        made = {v.producer for v in stack.pop().operands if v.producer is not None} - seen
        seen |= made
        missing -= made
        stack.extend(made)
    return not missing


def _traits(instr: Instr) -> frozenset[Trait]:
    return opdef(instr).traits


def _part(instr: Instr) -> int:
    """The most elements an update has."""
    values: Sequence[Value] = instr.operands[1:]
    return max((v.type.size for v in values), default=0)


__all__ = ["changed_bytes", "find_inplace_updates", "is_one_memory", "loop_replaces", "replaces"]

"""Instructions left out although what they make has another type than what they are made of: all
of a sort at once, where one alone leaves types that do not fit together, and parts of joins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bringup.errors import BringupError
from bringup.graph import Builder, Graph, Instr, Value
from bringup_conformance.generate.growing import pruned
from bringup_conformance.reducing.rewriting import Small, steers

#: Instructions -> the operands they are left with; of one operand, the operand itself is meant.
Left = Mapping[Instr, Sequence[int]]


def skippings(small: Small) -> Iterator[Small]:
    """Groups of alike instructions skipped, then each by itself, then parts of joins left out."""
    graph, recipes = small
    steering = steers(graph)
    free = [i for i in graph.instrs if i.operands and steering.isdisjoint(i.results)]
    for left in (*_groups(free), *_singly(free), *_parts(free)):
        made = _without(graph, left)
        if made is not None:
            yield pruned(made, recipes)


def _groups(instrs: Sequence[Instr]) -> Iterator[Left]:
    """Those of one op, and of one op with one type of the result."""
    for alike in (lambda i: i.op.name, lambda i: (i.op.name, i.results[0].type)):
        found: dict[object, list[Instr]] = {}
        for instr in instrs:
            if len(instr.results) == 1:
                found.setdefault(alike(instr), []).append(instr)
        for group in found.values():
            if len(group) > 1:
                yield dict.fromkeys(group, (0,))


def _singly(instrs: Sequence[Instr]) -> Iterator[Left]:
    """One instruction, where an operand is of another type than its result."""
    for instr in reversed(instrs):
        if len(instr.results) == 1:
            others = {v.type: n for n, v in enumerate(instr.operands)}
            yield from (
                {instr: (n,)} for type_, n in others.items() if type_ is not instr.result.type
            )


def _parts(instrs: Sequence[Instr]) -> Iterator[Left]:
    """A join of several with one part less."""
    for instr in reversed(instrs):
        numbers = range(len(instr.operands))
        if instr.op.name == "concatenate" and len(numbers) > 2:
            yield from ({instr: [n for n in numbers if n != gone]} for gone in numbers)


def _without(graph: Graph, left: Left) -> Graph | None:
    """The graph with types as they come, or None if they do not fit together."""
    builder = Builder()
    table: dict[Value, Value] = {v: builder.input(v.type) for v in graph.inputs}
    try:
        for instr in graph.instrs:
            operands = [table[v] for v in instr.operands]
            kept = left.get(instr)
            if kept is not None and len(kept) == 1:
                table[instr.result] = operands[kept[0]]
                continue
            chosen = operands if kept is None else [operands[n] for n in kept]
            made = builder.emit(instr.op, chosen, instr.attrs)
            table.update(zip(instr.results, made, strict=True))
    except (BringupError, ValueError, OverflowError):
        return None
    return builder.build([table[v] for v in graph.outputs], graph.name)

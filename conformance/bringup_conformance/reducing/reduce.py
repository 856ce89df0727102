"""The reducer: makes a failing program small while it keeps failing.

Hypothesis alone leaves five to twenty instructions where three show the fault: it works on the
choices that made a program.  This works on the program itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bringup.dtypes import BY_NAME
from bringup.errors import BringupError
from bringup.graph import Builder, Graph, Instr, Value
from bringup_conformance.cases import instructions
from bringup_conformance.generate.growing import pruned
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.reducing.nested import smaller_loops
from bringup_conformance.reducing.rewriting import (
    Small,
    cuts,
    fewer_outputs,
    fresh,
    halves,
    pairs,
    peeled,
    prefixes,
    rewirings,
    simpler_dtypes,
    single_outputs,
    smaller_sizes,
    steers,
)

#: Whether a program still shows the fault.
Fails = Callable[[Small], bool]

_SIMPLER = tuple(
    (BY_NAME[old], BY_NAME[new])
    for old, new in (
        ("f64", "f32"), ("f16", "f32"), ("bf16", "f32"), ("i64", "i32"), ("i16", "i32"),
        ("i8", "i32"), ("u64", "i32"), ("u32", "i32"), ("u16", "i32"), ("u8", "i32"),
    )
)  # fmt: skip


@dataclass(slots=True)
class Effort:
    """How long to try: runs of the program, and seconds, whichever ends first.

    hard: also try what seldom helps and takes long.
    """

    runs: int = 400
    seconds: float = 20.0
    hard: bool = False

    def spent(self, runs: int, start: float) -> bool:
        """Whether either is used up."""
        return runs >= self.runs or time.monotonic() - start > self.seconds


def reduced(small: Small, fails: Fails, effort: Effort | None = None) -> Small:
    """The smallest program found that still fails; the one given if none does.

    fails: must be true for `small`; never raises.
    """
    effort = effort or Effort()
    start, runs = time.monotonic(), 0
    tried: set[object] = {_key(small)}
    progress = True
    while progress:
        progress = False
        for candidate in candidates(small, effort.hard):
            key = _key(candidate)
            if key in tried or weight(candidate) >= weight(small):
                continue
            tried.add(key)
            if effort.spent(runs, start):
                return small
            runs += 1
            if fails(candidate):
                small, progress = candidate, True
                break
    return small


def _key(small: Small) -> object:
    graph, recipes = small
    return (graph.key, recipes)


def weight(small: Small) -> tuple[int, ...]:
    """What is smaller: instructions, outputs, elements, unusual dtypes, inputs, then odd data."""
    graph, recipes = small
    values = [*graph.inputs, *(v for instr in graph.instrs for v in instr.results)]
    plain = (BY_NAME["f32"], BY_NAME["i32"], BY_NAME["bool"])
    return (
        instructions(graph),
        len(graph.outputs),
        len(graph.instrs),
        sum(len(instr.operands) + len(instr.results) for instr in graph.instrs),
        sum(v.type.size for v in values),
        sum(v.dtype not in plain for v in values),
        len(graph.inputs),
        sum(_oddness(recipe) for recipe in recipes),
    )


def _oddness(recipe: Recipe) -> int:
    kinds = ("ramp", "small", "signed")
    kind = kinds.index(recipe.kind) if recipe.kind in kinds else len(kinds)
    return 4 * kind + 2 * (recipe.layout != "dense") + bool(recipe.overrides) + (recipe.seed != 0)


def candidates(small: Small, hard: bool) -> Iterator[Small]:
    """What may be smaller, what takes most away first."""
    yield from single_outputs(small)
    yield from fewer_outputs(small)
    yield from halves(small)
    yield from prefixes(small)
    yield from smaller_loops(small)
    yield from cuts(small)
    yield from rewirings(small)
    yield from peeled(small)
    yield from skippings(small)
    yield from smaller_sizes(small)
    yield from simpler_dtypes(small, _SIMPLER)
    yield from _plainer_data(small)
    if hard:
        yield from pairs(small)


def _plainer_data(small: Small) -> Iterator[Small]:
    graph, recipes = small
    steering = steers(graph)
    free = [i for i, value in enumerate(graph.inputs) if value not in steering]
    yield graph, tuple(Recipe() if i in free else r for i, r in enumerate(recipes))
    for i in free:
        recipe = recipes[i]
        signed = fresh(graph, [graph.inputs[i]], Recipe("signed"))[graph.inputs[i]]
        for simpler in (
            Recipe(),
            Recipe("small"),
            signed,
            replace(recipe, layout="dense"),
            replace(recipe, overrides=()),
            replace(recipe, seed=0),
        ):
            yield graph, (*recipes[:i], simpler, *recipes[i + 1 :])


#: Instructions -> the operands they are left with; of one operand, the operand itself is meant.
Left = Mapping[Instr, Sequence[int]]


def skippings(small: Small) -> Iterator[Small]:
    """Groups of alike instructions skipped, then each by itself, then parts of joins left out.

    What they make may have another type than what they are made of: all of a sort go at once, where
    one alone leaves types that do not fit together.
    """
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

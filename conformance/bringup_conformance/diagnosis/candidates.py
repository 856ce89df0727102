"""Programs that may be smaller than a given one: with other outputs, with instructions replaced,
with smaller sizes, plainer dtypes and plainer data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from bringup.errors import BringupError
from bringup.graph import Graph, Instr
from bringup_conformance.diagnosis.edits import (
    Candidate,
    Replacement,
    as_constants,
    as_inputs,
    as_operands,
    edited,
    has_while,
    loop_controls,
    pass_through,
    with_operands,
)
from bringup_conformance.diagnosis.loop_candidates import smaller_loops
from bringup_conformance.diagnosis.resizing import plainer_dtypes, smaller_sizes
from bringup_conformance.generate.recipes import Recipe

#: Data of new inputs.
_NEW_DATA = (Recipe("ramp"), Recipe("signed"), Recipe("negative"), Recipe("special"))
Edits = Mapping[Instr, Replacement]


def candidates(candidate: Candidate, hard: bool) -> Iterator[Candidate]:
    """What may be smaller, what takes most away first.

    hard: also what seldom helps and takes long.
    """
    yield from single_outputs(candidate)
    yield from fewer_outputs(candidate)
    yield from first_part_as_inputs(candidate)
    yield from last_part_dropped(candidate)
    yield from smaller_loops(candidate)
    yield from results_as_inputs(candidate)
    yield from results_as_operands(candidate)
    yield from last_instruction_dropped(candidate)
    yield from retyping_skips(candidate)
    yield from smaller_sizes(candidate)
    yield from plainer_dtypes(candidate)
    yield from _plainer_data(candidate)
    if hard:
        yield from pairs_replaced(candidate)


# -- other outputs ---------------------------------------------------------------------------------


def single_outputs(candidate: Candidate) -> Iterator[Candidate]:
    """Each computed value as the only output: first those that halve what is needed, as a bisection
    would go on if they fail, then all, the one that needs least first.
    """
    graph, _ = candidate
    computed = [v for instr in graph.instrs for v in instr.results if instr.literal is None]
    programs = sorted(
        (edited(candidate, {}, (v,)) for v in computed), key=lambda c: len(c[0].instrs)
    )
    middle = len(programs) // 2
    while middle < len(programs) - 1:
        yield programs[middle]
        middle += max(1, (len(programs) - middle) // 2)
    yield from programs


def fewer_outputs(candidate: Candidate) -> Iterator[Candidate]:
    """Half of the outputs, then all but one, if there are several."""
    outputs = candidate[0].outputs
    if len(outputs) < 2:
        return
    half = len(outputs) // 2
    halves = [outputs[:half], outputs[half:]] if len(outputs) > 3 else []
    for chosen in (*halves, *(outputs[:i] + outputs[i + 1 :] for i in range(len(outputs)))):
        yield edited(candidate, {}, chosen)


def last_part_dropped(candidate: Candidate) -> Iterator[Candidate]:
    """The last instructions dropped, and what they read from the others returned: the second half
    goes, then a quarter, and so on.
    """
    graph, recipes = candidate
    length = len(graph.instrs) // 2
    while length:
        first_part = graph.instrs[:-length]
        read = {v for instr in graph.instrs[-length:] for v in instr.operands}
        computed = [v for instr in first_part for v in instr.results if instr.literal is None]
        crossing = tuple(v for v in computed if v in read or v in graph.outputs)
        if crossing:
            yield edited((Graph(graph.inputs, first_part, crossing, graph.name), recipes), {})
        length //= 2


def last_instruction_dropped(candidate: Candidate) -> Iterator[Candidate]:
    """An instruction that only makes outputs dropped, and its operands returned instead."""
    graph, _ = candidate
    users = graph.users()
    for instr in reversed(graph.instrs):
        positions = [graph.outputs.index(v) for v in instr.results if v in graph.outputs]
        if instr.literal is not None or not positions or any(users[v] for v in instr.results):
            continue
        first = min(positions)
        computed = [v for v in instr.operands if v.producer and v.literal is None]
        others = [v for v in graph.outputs if v not in instr.results]
        outputs = tuple(dict.fromkeys((*others[:first], *computed, *others[first:])))
        if outputs:
            yield edited(candidate, {}, outputs)


# -- instructions replaced -------------------------------------------------------------------------


def first_part_as_inputs(candidate: Candidate) -> Iterator[Candidate]:
    """The first instructions replaced by new inputs, as far as the others read them: the first half
    goes, then a quarter, and so on.
    """
    graph, _ = candidate
    users, controls, small = graph.users(), loop_controls(graph), has_while(graph)
    length = len(graph.instrs) // 2
    while length > 1:
        after = set(graph.instrs[length:])
        crossing = [
            instr
            for instr in graph.instrs[:length]
            if instr.literal is None
            and any(v in graph.outputs or not after.isdisjoint(users[v]) for v in instr.results)
        ]
        computed = {v for instr in crossing for v in instr.results}
        if controls.isdisjoint(
            v for v in computed if v in graph.outputs or not after.isdisjoint(users[v])
        ):
            for recipe in _NEW_DATA[:2]:
                yield edited(candidate, {i: as_inputs(i, recipe, small=small) for i in crossing})
        length //= 2


def results_as_inputs(candidate: Candidate) -> Iterator[Candidate]:
    """The results of an instruction replaced by new inputs, those nearest to the outputs first."""
    small = has_while(candidate[0])
    for instr in _replaceable(candidate[0]):
        for recipe in _NEW_DATA:
            yield edited(candidate, {instr: as_inputs(instr, recipe, small=small)})


def results_as_operands(candidate: Candidate) -> Iterator[Candidate]:
    """The results of an instruction replaced by operands of their types, or by constants."""
    for instr in _replaceable(candidate[0]):
        for positions in pass_through(instr):
            yield edited(candidate, {instr: as_operands(positions)})
        if instr.operands:
            yield edited(candidate, {instr: as_constants(instr)})


def pairs_replaced(candidate: Candidate) -> Iterator[Candidate]:
    """Two instructions replaced at once, where neither can be alone: by operands or new inputs."""

    def replacements(instr: Instr) -> list[Replacement]:
        by_operands = map(as_operands, pass_through(instr))
        return [*by_operands, as_inputs(instr, _NEW_DATA[0], small=False)]

    instrs = list(_replaceable(candidate[0]))
    for n, first in enumerate(instrs):
        for second in instrs[:n]:
            for one, other in product(replacements(first), replacements(second)):
                yield edited(candidate, {first: one, second: other})


def _replaceable(graph: Graph) -> Iterator[Instr]:
    controls = loop_controls(graph)
    for instr in reversed(graph.instrs):
        empty = instr.literal is not None and instr.results[0].type.size < 1
        if not empty and controls.isdisjoint(instr.results):
            yield instr


def retyping_skips(candidate: Candidate) -> Iterator[Candidate]:
    """Groups of instructions of one op replaced by their operands, then single ones, then parts of
    joins left out.

    What an instruction makes may have another type than its operand has.  So all of an op go at
    once, where one alone would leave types that do not fit together.
    """
    graph, _ = candidate
    controls = loop_controls(graph)
    free = [i for i in graph.instrs if i.operands and controls.isdisjoint(i.results)]
    for edits in (*_groups_skipped(free), *_single_skipped(free), *_parts_left_out(free)):
        try:
            yield edited(candidate, edits)
        except (BringupError, ValueError, OverflowError):
            continue  # the types do not fit together


def _groups_skipped(instrs: Sequence[Instr]) -> Iterator[Edits]:
    """Those of one op, and of one op with one type of the result."""
    keys: tuple[Callable[[Instr], object], ...] = (
        lambda instr: instr.op.name,
        lambda instr: (instr.op.name, instr.results[0].type),
    )
    for key in keys:
        groups: dict[object, list[Instr]] = {}
        for instr in instrs:
            if len(instr.results) == 1:
                groups.setdefault(key(instr), []).append(instr)
        for group in groups.values():
            if len(group) > 1:
                yield dict.fromkeys(group, as_operands((0,)))


def _single_skipped(instrs: Sequence[Instr]) -> Iterator[Edits]:
    """One instruction, replaced by an operand of another type than its result's."""
    for instr in reversed(instrs):
        if len(instr.results) == 1:
            last_of_type = {v.type: n for n, v in enumerate(instr.operands)}
            for type_, position in last_of_type.items():
                if type_ is not instr.result.type:
                    yield {instr: as_operands((position,))}


def _parts_left_out(instrs: Sequence[Instr]) -> Iterator[Edits]:
    """A join of several with one part less."""
    for instr in reversed(instrs):
        positions = range(len(instr.operands))
        if instr.op.name == "concatenate" and len(positions) > 2:
            for gone in positions:
                yield {instr: with_operands(instr, [n for n in positions if n != gone])}


# -- data ------------------------------------------------------------------------------------------


def _plainer_data(candidate: Candidate) -> Iterator[Candidate]:
    graph, recipes = candidate
    controls, small = loop_controls(graph), has_while(graph)
    free = [i for i, value in enumerate(graph.inputs) if value not in controls]
    yield graph, tuple(Recipe() if i in free else r for i, r in enumerate(recipes))
    for i in free:
        recipe = recipes[i]
        for plainer in (
            Recipe(),
            Recipe("small"),
            Recipe() if small and graph.inputs[i].dtype.is_integer else Recipe("signed"),
            replace(recipe, layout="dense"),
            replace(recipe, overrides=()),
            replace(recipe, seed=0),
        ):
            yield graph, (*recipes[:i], plainer, *recipes[i + 1 :])

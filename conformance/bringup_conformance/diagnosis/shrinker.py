"""The shrinker: makes a failing program small while it keeps failing.

Hypothesis alone leaves five to twenty instructions where three show the fault: it works on the
choices that made a program.  This works on the program itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from bringup_conformance.cases import instructions
from bringup_conformance.diagnosis.candidates import candidates
from bringup_conformance.diagnosis.edits import Candidate
from bringup_conformance.generate.recipes import Recipe

#: Whether a program still shows the fault.
Fails = Callable[[Candidate], bool]
_PLAIN_DTYPES = ("f32", "i32", "bool")
_PLAIN_DATA = ("ramp", "small", "signed")


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


def shrink_program(program: Candidate, fails: Fails, effort: Effort | None = None) -> Candidate:
    """The smallest program found that still fails; the one given if none does.

    fails: must be true for `program`; never raises.
    """
    effort = effort or Effort()
    start, runs = time.monotonic(), 0
    tried: set[object] = {_key(program)}
    progress = True
    while progress:
        progress = False
        for candidate in candidates(program, effort.hard):
            key = _key(candidate)
            if key in tried or weight(candidate) >= weight(program):
                continue
            tried.add(key)
            if effort.spent(runs, start):
                return program
            runs += 1
            if fails(candidate):
                program, progress = candidate, True
                break
    return program


def _key(candidate: Candidate) -> object:
    graph, recipes = candidate
    return (graph.key, recipes)


def weight(candidate: Candidate) -> tuple[int, ...]:
    """What is smaller: instructions, outputs, elements, unusual dtypes, inputs, then odd data."""
    graph, recipes = candidate
    values = [*graph.inputs, *(v for instr in graph.instrs for v in instr.results)]
    return (
        instructions(graph),
        len(graph.outputs),
        len(graph.instrs),
        sum(len(instr.operands) + len(instr.results) for instr in graph.instrs),
        sum(v.type.size for v in values),
        sum(v.dtype.name not in _PLAIN_DTYPES for v in values),
        len(graph.inputs),
        sum(map(_oddness, recipes)),
    )


def _oddness(recipe: Recipe) -> int:
    known = recipe.kind in _PLAIN_DATA
    kind = _PLAIN_DATA.index(recipe.kind) if known else len(_PLAIN_DATA)
    return 4 * kind + 2 * (recipe.layout != "dense") + bool(recipe.overrides) + (recipe.seed != 0)

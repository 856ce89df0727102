"""A failure looked into: how small does it get, and without which pass or mode is it right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from bringup.dtypes import BY_NAME
from bringup.ops.evaluate import evaluate
from bringup.ops.table import lookup
from bringup_conformance.cases import Case, Outcome, Problem, instructions
from bringup_conformance.execution.isolated import Isolated
from bringup_conformance.execution.running import attempt, error_text, made_inputs
from bringup_conformance.execution.support import Support
from bringup_conformance.execution.targets import Target
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.oracle import special
from bringup_conformance.reducing.apart import ends_processes, locate_apart, where_needed
from bringup_conformance.reducing.cause import Cause
from bringup_conformance.reducing.locate import locate
from bringup_conformance.reducing.reduce import Effort, reduced
from bringup_conformance.reducing.rewriting import Small
from bringup_conformance.reporting.failures import TIMEOUT, case_to_json, digest, problem_to_json

#: What hangs is not made small where there is no time to wait for so many hangs.
MOST_TRIED = 4
# How a case is made of a program under reduction.
_Frame = Callable[[Case, Small], Case]


def explained(
    target: Target,
    outcome: Outcome,
    failure: Mapping[str, Any],
    effort: Effort,
    timeout: float = TIMEOUT,
) -> dict[str, Any]:
    """A failure with the smallest program, what it goes away without, what is guilty, and hashes of
    its results.

    timeout: seconds without a sign of life after which what ends its process hangs.
    """
    case, problem = outcome.case, outcome.problem
    assert isinstance(case, Case)
    assert problem is not None
    with where_needed(target, problem, timeout) as safe:
        return looked_into(safe, case, problem, failure, effort)


def looked_into(
    target: Target, case: Case, problem: Problem, failure: Mapping[str, Any], effort: Effort
) -> dict[str, Any]:
    """The same on a target that may be run here."""
    slow = isinstance(target, Isolated) and effort.seconds < MOST_TRIED * target.timeout
    if problem.kind == "hang" and slow and not effort.hard:
        return with_cause(failure, cause_of(target, case, problem))
    if ends_processes(problem):  # what comes after shrinking takes as long again
        effort = replace(effort, seconds=effort.seconds / 2)
    small = one_row(target, case, problem) if case.cells else shrunk(target, case, problem, effort)
    again = attempt(target, small, fuse=problem.fused)[1]
    if again is None or not again.alike(problem):
        again = problem
    found = {
        **failure,
        "nodes": instructions(small.graph),
        "guilty": guilty(target, small, again),
        "reduced": {**case_to_json(small), "problem": problem_to_json(again)},
        "hashes": hashes(target, small, again),
    }
    return with_cause(found, cause_of(target, small, again))


def with_cause(failure: Mapping[str, Any], cause: Cause) -> dict[str, Any]:
    """A failure's document with what is guilty: as a whole, and what reports show of it."""
    shown = {
        "guilty_kernel": cause.kernel and cause.name,
        "source": cause.source,
        "ir_before": cause.ir_before,
        "ir_after": cause.ir_after,
    }
    kept = {key: value for key, value in failure.items() if key not in shown}
    return {**kept, "cause": cause.to_json(), **{k: v for k, v in shown.items() if v}}


def cause_of(
    target: Target, case: Case, problem: Problem, skip: frozenset[str] = frozenset()
) -> Cause:
    """What is guilty of a case's failure; ``unknown`` if looking for it fails too."""
    if isinstance(target, Isolated):
        return locate_apart(target, case, problem, skip=skip)
    try:
        return locate(target, case, fuse=problem.fused, skip=skip)
    except Exception as error:  # noqa: BLE001  (a device may raise anything, anywhere)
        return Cause("unknown", "", f"looking for it raises {error_text(error)}")


def guilty(target: Target, case: Case, problem: Problem) -> list[str]:
    """What a failure goes away without: passes by name, ``fusion``; empty if nothing helps.

    A failure of the program that runs op by op is no fault of fusion.
    """
    if not problem.fused:
        return []
    if ends_processes(problem):  # each try would end one
        return ["fusion"] if attempt(target, case, fuse=False)[1] is None else []
    helps = [
        name for name in target.passes if attempt(target, case, skip=frozenset({name}))[1] is None
    ]
    if attempt(target, case, fuse=False)[1] is None:
        helps.append("fusion")
    return helps


def one_row(target: Target, case: Case, problem: Problem) -> Case:
    """Of a program of special cells, the one instruction that fails in the same way; the whole if
    none does alone.
    """
    row, dtype, support = lookup(case.op), BY_NAME[case.dtype], Support(target.missing)
    wrong = [mismatch.output for mismatch in problem.verdict.mismatches]
    for output in dict.fromkeys((*wrong, *range(len(case.cells)))):
        graph, kept = special.program(row, dtype, [case.cells[output]], support)
        small = replace(case, graph=graph, cells=kept)
        found = attempt(target, small, fuse=problem.fused)[1] if kept else None
        if found is not None and found.alike(problem):
            return small
    return case


def shrunk(target: Target, case: Case, problem: Problem, effort: Effort) -> Case:
    """The case as small as it gets while it fails in the same way."""
    start: Small = (case.graph, case.data[problem.data] if case.data else ())
    for frame in (_alone, _after_another):

        def fails(small: Small, frame: _Frame = frame) -> bool:
            found = attempt(target, frame(case, small), fuse=problem.fused)[1]
            return found is not None and found.alike(problem)

        if fails(start):
            return frame(case, reduced(start, fails, effort))
    return case


def _alone(case: Case, small: Small) -> Case:
    graph, recipes = small
    return replace(case, graph=graph, data=(recipes,), split=False)


def _after_another(case: Case, small: Small) -> Case:
    """With a call on other data before: what one call leaves behind may spoil the next."""
    graph, recipes = small
    before = tuple(Recipe("signed", recipe.seed + 1) for recipe in recipes)
    return replace(case, graph=graph, data=(before, recipes), split=False)


def hashes(target: Target, case: Case, problem: Problem) -> dict[str, str]:
    """Hashes of the reference's results and of the device's, on the last data set."""
    if case.cells:
        return {}
    inputs = made_inputs(case, len(case.data) - 1)
    found = {"expected": digest(evaluate(case.graph, inputs))}
    if ends_processes(problem):
        return found
    try:
        program = target.compile(case.graph, fuse=problem.fused, optimize=case.optimize)
        found["actual"] = digest(program(inputs))
    except Exception as error:  # noqa: BLE001  (a device that raises has no results)
        found["error"] = type(error).__name__
    return found

"""The diagnosis of a failure: how small it gets, without which pass or mode it goes away, and what
causes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from bringup.dtypes import BY_NAME
from bringup.ops.evaluate import evaluate
from bringup.ops.table import lookup
from bringup_conformance.cases import Case, Outcome, Problem, instructions
from bringup_conformance.diagnosis.cause import MOVES, Cause
from bringup_conformance.diagnosis.edits import Candidate
from bringup_conformance.diagnosis.isolation import ends_processes, locate_isolated, safe_target
from bringup_conformance.diagnosis.locate import locate
from bringup_conformance.diagnosis.shrinker import Effort, shrink_program
from bringup_conformance.execution.isolated import Isolated
from bringup_conformance.execution.running import attempt, error_text, made_inputs
from bringup_conformance.execution.support import Support
from bringup_conformance.execution.targets import Target
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.oracle import special
from bringup_conformance.reporting.failures import TIMEOUT, case_to_json, digest, problem_to_json

#: Where there is no time to wait for so many hangs, what hangs is not made small.
MOST_HANGS = 4


def diagnosed(
    target: Target,
    outcome: Outcome,
    failure: Mapping[str, Any],
    effort: Effort,
    timeout: float = TIMEOUT,
) -> dict[str, Any]:
    """A failure's document with the smallest program, what it goes away without, its cause, and
    hashes of its results.

    timeout: seconds without a sign of life after which what ends its process hangs.
    """
    case, problem = outcome.case, outcome.problem
    assert isinstance(case, Case)
    assert problem is not None
    with safe_target(target, problem, timeout) as safe:
        return diagnosed_here(safe, case, problem, failure, effort)


def diagnosed_here(
    target: Target, case: Case, problem: Problem, failure: Mapping[str, Any], effort: Effort
) -> dict[str, Any]:
    """`diagnosed`, on a target whose failures do not end this process."""
    slow = isinstance(target, Isolated) and effort.seconds < MOST_HANGS * target.timeout
    if problem.kind == "hang" and slow and not effort.hard:
        return with_cause(failure, cause_of(target, case, problem))
    if ends_processes(problem):  # what comes after shrinking takes as long again
        effort = replace(effort, seconds=effort.seconds / 2)
    shrink = failing_cells if case.cells else shrunk
    small = shrink(target, case, problem, effort)
    again = attempt(target, small, fuse=problem.fused)[1]
    if again is None or not again.alike(problem):
        again = problem
    cause = cause_of(target, small, again)
    document = {
        **failure,
        "nodes": instructions(small.graph),
        # What happens between or beside steps is no fault of the passes that put them there.
        "guilty": [] if cause.kind in ("together", "call") else guilty(target, small, again),
        "reduced": {**case_to_json(small), "problem": problem_to_json(again)},
        "hashes": hashes(target, small, again),
    }
    return with_cause(document, cause)


def with_cause(failure: Mapping[str, Any], cause: Cause) -> dict[str, Any]:
    """A failure's document with its cause: as a whole, and what reports show of it."""
    shown = {
        "guilty_kernel": cause.kernel and cause.name,
        "source": cause.source,
        "ir_before": cause.ir_before,
        "ir_after": cause.ir_after,
    }
    document = {key: value for key, value in failure.items() if key not in shown}
    return {**document, "cause": cause.to_json(), **{k: v for k, v in shown.items() if v}}


def cause_of(
    target: Target, case: Case, problem: Problem, skip: frozenset[str] = frozenset()
) -> Cause:
    """The cause of a case's failure; ``unknown`` if the search for it fails too.

    A method of the device that raised beside the steps is the cause, without a search, unless it
    may have waited for a step.
    """
    late = target.capabilities.asynchronous and problem.call in ("download", "host_view")
    if problem.call in MOVES and not late:
        return Cause("call", problem.call, problem.what)
    if isinstance(target, Isolated):
        return locate_isolated(target, case, problem, skip=skip)
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
    # Each try of what ends processes would end one.
    passes = () if ends_processes(problem) else target.passes
    helps = [name for name in passes if attempt(target, case, skip=frozenset({name}))[1] is None]
    if attempt(target, case, fuse=False)[1] is None:
        helps.append("fusion")
    return helps


def failing_cells(
    target: Target, case: Case, problem: Problem, _effort: Effort | None = None
) -> Case:
    """Of a program of special cells, the one instruction that fails in the same way; the whole if
    none does alone.
    """
    row, dtype, support = lookup(case.op), BY_NAME[case.dtype], Support(target.missing)
    wrong = [mismatch.output for mismatch in problem.verdict.mismatches]
    for output in dict.fromkeys((*wrong, *range(len(case.cells)))):
        graph, cells, _ = special.program(row, dtype, [case.cells[output]], support)
        small = replace(case, graph=graph, cells=cells)
        alone = attempt(target, small, fuse=problem.fused)[1] if cells else None
        if alone is not None and alone.alike(problem):
            return small
    return case


def shrunk(target: Target, case: Case, problem: Problem, effort: Effort) -> Case:
    """The case as small as it gets while it fails in the same way."""
    start: Candidate = (case.graph, case.data[problem.data] if case.data else ())
    as_case: Callable[[Case, Candidate], Case]
    for as_case in (_single_call, _second_call):

        def fails(
            candidate: Candidate, as_case: Callable[[Case, Candidate], Case] = as_case
        ) -> bool:
            other = attempt(target, as_case(case, candidate), fuse=problem.fused)[1]
            return other is not None and other.alike(problem)

        if fails(start):
            return as_case(case, shrink_program(start, fails, effort))
    return case


def _single_call(case: Case, candidate: Candidate) -> Case:
    graph, recipes = candidate
    return replace(case, graph=graph, data=(recipes,), split=False)


def _second_call(case: Case, candidate: Candidate) -> Case:
    """With a call on other data before: what one call leaves behind may spoil the next."""
    graph, recipes = candidate
    before = tuple(Recipe("signed", recipe.seed + 1) for recipe in recipes)
    return replace(case, graph=graph, data=(before, recipes), split=False)


def hashes(target: Target, case: Case, problem: Problem) -> dict[str, str]:
    """Hashes of the reference's results and of the device's, on the last data set."""
    if case.cells:
        return {}
    inputs = made_inputs(case, len(case.data) - 1)
    digests = {"expected": digest(evaluate(case.graph, inputs))}
    if ends_processes(problem):
        return digests
    try:
        program = target.compile(case.graph, fuse=problem.fused, optimize=case.optimize)
        digests["actual"] = digest(program(inputs))
    except Exception as error:  # noqa: BLE001  (a device that raises has no results)
        digests["error"] = type(error).__name__
    return digests

"""A failure looked into: does it fail op by op, without which pass is it right, how small is it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bringup_conformance import failures
from bringup_conformance.cases import Case, Outcome, Problem
from bringup_conformance.failures import case_to_json, digest, problem_to_json
from bringup_conformance.reduce import Effort, reduced
from bringup_conformance.rewriting import Small
from bringup_conformance.running import attempt, made_inputs
from bringup_conformance.targets import Target


@dataclass(frozen=True, slots=True)
class Context:
    """Where a case ran: recorded in its failure, so that the file alone replays it."""

    backend: str
    level: str
    seed: int
    cost: str


def basic(outcome: Outcome, context: Context) -> dict[str, Any]:
    """The failure as it was met."""
    assert outcome.problem is not None
    return {
        "format": failures.FORMAT,
        "suite": failures.suite_version(),
        "backend": context.backend,
        "run": {"level": context.level, "seed": context.seed, "cost": context.cost},
        "options": {"fuse": outcome.problem.fused, "skip": []},
        "case": case_to_json(outcome.case),
        "problem": problem_to_json(outcome.problem),
        "nodes": len(outcome.case.graph),
    }


def explained(
    target: Target, outcome: Outcome, failure: Mapping[str, Any], effort: Effort
) -> dict[str, Any]:
    """A failure with the guilty pass, the smallest program, and hashes of its results."""
    case, problem = outcome.case, outcome.problem
    assert problem is not None
    found = dict(failure)
    found["guilty"] = guilty(target, case, problem)
    if case.cells:
        return found
    small = shrunk(target, case, problem, effort)
    again = _problem(target, small, problem.fused) or problem
    found["reduced"] = {**case_to_json(small), "problem": problem_to_json(again)}
    found["nodes"] = len(small.graph)
    found["hashes"] = hashes(target, small, problem.fused)
    return found


def guilty(target: Target, case: Case, problem: Problem) -> str:
    """What a failure goes away without: fusion, or passes by name; empty if nothing helps.

    A failure of the program that runs op by op is no fault of fusion.
    """
    if case.level != "fusion" or not problem.fused:
        return ""
    helps = [
        name for name in target.passes if attempt(target, case, skip=frozenset({name}))[1] is None
    ]
    if attempt(target, case, fuse=False)[1] is None:
        helps.append("fusion")
    return ", ".join(helps)


def shrunk(target: Target, case: Case, problem: Problem, effort: Effort) -> Case:
    """The case as small as it gets while it fails in the same way."""

    def fails(small: Small) -> bool:
        found = _problem(target, _case_of(case, small), problem.fused)
        return found is not None and found.kind == problem.kind

    data = case.data[problem.data] if case.data else ()
    start: Small = (case.graph, data)
    if not fails(start):
        # It takes the sets before it: what one call leaves behind spoils the next.
        return case
    return _case_of(case, reduced(start, fails, effort))


def _case_of(case: Case, small: Small) -> Case:
    graph, recipes = small
    return replace(case, graph=graph, data=(recipes,), split=False)


def _problem(target: Target, case: Case, fuse: bool) -> Problem | None:
    return attempt(target, case, fuse=fuse)[1]


def hashes(target: Target, case: Case, fuse: bool) -> dict[str, str]:
    """Hashes of the reference's results and of the device's, on the last data set."""
    from bringup.ops.evaluate import evaluate

    inputs = made_inputs(case, len(case.data) - 1)
    found = {"expected": digest(evaluate(case.graph, inputs))}
    try:
        found["actual"] = digest(target.compile(case.graph, fuse=fuse)(inputs))
    except Exception as error:  # noqa: BLE001  (a device that raises has no results)
        found["error"] = type(error).__name__
    return found

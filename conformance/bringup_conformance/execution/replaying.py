"""Runs a failure file again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bringup_conformance.cases import Check, Problem
from bringup_conformance.diagnosis.isolation import safe_target
from bringup_conformance.execution import levels
from bringup_conformance.execution.isolated import Isolated
from bringup_conformance.execution.plan import Plan, budget_of
from bringup_conformance.execution.protocol import patience
from bringup_conformance.execution.running import ElsewhereError, attempt, run_check
from bringup_conformance.execution.support import Support
from bringup_conformance.execution.targets import DeviceTarget, Target
from bringup_conformance.reporting import failures
from bringup_conformance.reporting.failures import case_from_json, is_check, limit
from bringup_conformance.reporting.reports import Failure


def replay(
    path: Path, backend: str | Target | None = None, timeout: float | None = None
) -> tuple[Failure, Problem | None]:
    """Run the program of a failure file again: the smallest, then, if that passes, the whole; or
    its check.  What ended its process is run in another one.

    backend: another device than the file's.  timeout: seconds without a sign of life after which
    it hangs, other than the run's.  Returns the file's failure, and what is wrong now.
    Raises BackendError if the device cannot be opened, ValueError if the file is none, OSError.
    """
    document = failures.read(path)
    name = document["backend"] if backend is None else backend
    target = DeviceTarget.named(name) if isinstance(name, str) else name
    if is_check(document):
        return Failure(document, path), _check_again(document, target, limit(document, timeout))
    skip = frozenset(document["options"]["skip"])
    for form in filter(None, (document.get("reduced"), document["case"])):
        problem = document["problem"] if form is document["case"] else form["problem"]
        case = case_from_json(form)
        with safe_target(target, _met(problem), limit(document, timeout)) as safe:
            found = attempt(safe, case, fuse=problem["fused"], skip=skip)[1]
        if found is not None:
            return Failure(document, path), found
    return Failure(document, path), None


def _met(problem: Mapping[str, Any]) -> Problem:
    return Problem(problem["kind"], problem["what"], log=problem.get("log", ""))


def _check_again(document: Mapping[str, Any], target: Target, timeout: float) -> Problem | None:
    seconds = patience(document["case"]["level"], timeout)
    with safe_target(target, _met(document["problem"]), seconds) as safe:
        if not isinstance(safe, Isolated):
            return run_check(safe, find_check(document, safe)).problem
        try:
            return safe.run_check(document)
        except ElsewhereError as error:
            return Problem(error.kind, str(error), log=error.log, phase=error.phase)


def find_check(document: Mapping[str, Any], target: Target) -> Check:
    """The check of a failure, made again for a target.  Raises ValueError if there is none now."""
    wanted, capabilities = document["case"], target.capabilities
    seed, level = int(document["run"]["seed"]), wanted["level"]
    plan = Plan(capabilities, Support(target.missing), seed, budget_of(capabilities))
    for unit in levels.units(plan, level):
        if unit.op == wanted["op"] and unit.dtype in ("", wanted["dtype"]):
            for item in unit.make():
                if isinstance(item, Check) and item.name == wanted["name"]:
                    return item
    raise ValueError(f"no check is named {wanted['name']!r} for this device")

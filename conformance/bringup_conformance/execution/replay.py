"""Runs a failure file again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bringup_conformance.cases import Check, Problem
from bringup_conformance.diagnosis.isolation import safe_target
from bringup_conformance.execution import levels
from bringup_conformance.execution.isolated import Isolated
from bringup_conformance.execution.protocol import case_timeout
from bringup_conformance.execution.running import RemoteError, attempt, run_check
from bringup_conformance.execution.schedule import plan_of
from bringup_conformance.execution.targets import DeviceTarget, Target
from bringup_conformance.reporting import failures
from bringup_conformance.reporting.failures import case_from_json, is_check, timeout_of
from bringup_conformance.reporting.reports import Failure


def replay(
    path: Path, backend: str | Target | None = None, timeout: float | None = None
) -> tuple[Failure, Problem | None]:
    """Run the program of a failure file again, or its check: the smallest program, and then, if
    that passes, the whole one.  A failure that ended its process runs in another one.

    backend: another device than the file's.  timeout: seconds without a sign of life after which
    it hangs, other than the run's.  Returns the file's failure, and what is wrong now.
    Raises BackendError if the device cannot be opened, ValueError if it is no such file, OSError.
    """
    document = failures.read(path)
    failure = Failure(document, path)
    name = document["backend"] if backend is None else backend
    target = DeviceTarget.named(name) if isinstance(name, str) else name
    seconds = timeout_of(document, timeout)
    if is_check(document):
        return failure, _replay_check(document, target, seconds)
    skip = frozenset(document["options"]["skip"])
    for form in filter(None, (document.get("reduced"), document["case"])):
        problem = document["problem"] if form is document["case"] else form["problem"]
        case = case_from_json(form)
        with safe_target(target, _problem(problem), seconds) as safe:
            now = attempt(safe, case, fuse=problem["fused"], skip=skip)[1]
        if now is not None:
            return failure, now
    return failure, None


def _problem(data: Mapping[str, Any]) -> Problem:
    """A problem, as far as it decides where to run the case again."""
    return Problem(data["kind"], data["what"], log=data.get("log", ""))


def _replay_check(document: Mapping[str, Any], target: Target, timeout: float) -> Problem | None:
    seconds = case_timeout(document["case"]["level"], timeout)
    with safe_target(target, _problem(document["problem"]), seconds) as safe:
        if not isinstance(safe, Isolated):
            return run_check(safe, find_check(document, safe)).problem
        try:
            return safe.run_check(document)
        except RemoteError as error:
            return Problem(error.kind, str(error), log=error.log, phase=error.phase)


def find_check(document: Mapping[str, Any], target: Target) -> Check:
    """The check of a failure, made again for a target.  Raises ValueError if there is none now."""
    case = document["case"]
    plan = plan_of(target, int(document["run"]["seed"]))
    for unit in levels.units(plan, case["level"]):
        if unit.op == case["op"] and unit.dtype in ("", case["dtype"]):
            for item in unit.make():
                if isinstance(item, Check) and item.name == case["name"]:
                    return item
    raise ValueError(f"no check is named {case['name']!r} for this device")

"""A failure's file diagnosed again: its cause, and how small the program gets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bringup.errors import BringupError
from bringup_conformance.cases import Case, Problem, instructions
from bringup_conformance.diagnosis.cause import Cause
from bringup_conformance.diagnosis.investigate import cause_of, diagnosed_here, with_cause
from bringup_conformance.diagnosis.isolation import safe_target
from bringup_conformance.diagnosis.shrinker import Effort
from bringup_conformance.execution.running import attempt
from bringup_conformance.execution.targets import DeviceTarget, Target
from bringup_conformance.reporting import failures
from bringup_conformance.reporting.failures import case_from_json, is_check, timeout_of
from bringup_conformance.reporting.reports import Failure


def explain(
    path: Path, backend: str | Target | None = None, timeout: float | None = None
) -> tuple[Failure, Cause | None]:
    """The cause of a failure, which its file keeps from now on; None if it passes now.

    backend: another device than the file's.  timeout: seconds without a sign of life after which
    what ends its process hangs, other than the run's.  Raises BackendError if the device cannot be
    opened, BringupError for the failure of a check, ValueError if the file is none, OSError.
    """
    document, target = _opened(path, backend, "explained")
    with safe_target(target, problem_of(document), timeout_of(document, timeout)) as safe:
        failing = _still_failing(safe, document)
        if failing is None:
            return Failure(document, path), None
        case, problem = failing
        if "reduced" in document:
            cause = cause_of(safe, case, problem, _skipped(document))
            document = with_cause(document, cause)
        else:
            document = diagnosed_here(safe, case, problem, document, Effort())
    failures.rewrite(path, document)
    return Failure(document, path), Cause.from_json(document["cause"])


def shrink(
    path: Path,
    backend: str | Target | None = None,
    seconds: float = 60.0,
    attempts: int = 5000,
    output: Path | None = None,
    timeout: float | None = None,
) -> tuple[Failure, int | None]:
    """Make a failure smaller, beginning with the smallest program known, and write it back.

    seconds, attempts: when to stop.  output: another file for it.  timeout: as of `explain`.
    Returns the failure, and how many instructions it had; None if it passes now.  Raises as
    `explain`.
    """
    document, target = _opened(path, backend, "shrunk")
    with safe_target(target, problem_of(document), timeout_of(document, timeout)) as safe:
        failing = _still_failing(safe, document)
        if failing is None:
            return Failure(document, path), None
        case, problem = failing
        effort = Effort(attempts, seconds, hard=True)
        smaller = diagnosed_here(safe, case, problem, document, effort)
    failures.rewrite(output or path, smaller)
    return Failure(smaller, output or path), instructions(case.graph)


def problem_of(document: Mapping[str, Any]) -> Problem:
    """The problem that a document describes, as far as it decides how to run it again."""
    whole = document["problem"]
    smallest = (document.get("reduced") or document).get("problem") or whole
    shown = {key: smallest[key] for key in ("kind", "what", "fused")}
    more = {key: whole.get(key, "") for key in ("log", "phase", "call")}
    return Problem(**shown, **more)


def _opened(path: Path, backend: str | Target | None, done: str) -> tuple[dict[str, Any], Target]:
    document = failures.read(path)
    if is_check(document):
        raise BringupError(
            f"{path} is the failure of check {document['case']['name']!r}, which has no program"
            f" and is not {done}",
            fix=f"run it again: conformance replay {path}",
        )
    name = document["backend"] if backend is None else backend
    return document, DeviceTarget.named(name) if isinstance(name, str) else name


def _still_failing(target: Target, document: Mapping[str, Any]) -> tuple[Case, Problem] | None:
    """The smallest form that still fails, and how."""
    for form in filter(None, (document.get("reduced"), document["case"])):
        case = case_from_json(form)
        fused = (form.get("problem") or document["problem"])["fused"]
        problem = attempt(target, case, fuse=fused, skip=_skipped(document))[1]
        if problem is not None:
            return case, problem
    return None


def _skipped(document: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(document["options"]["skip"])

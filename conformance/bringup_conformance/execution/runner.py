"""Runs levels on a device and looks into what fails; runs a failure file again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bringup.errors import BringupError
from bringup_conformance.cases import PROGRAMS, Outcome, Problem, Unsupported
from bringup_conformance.execution import levels
from bringup_conformance.execution.levels import LEVELS, Plan, Unit
from bringup_conformance.execution.running import attempt, run_case
from bringup_conformance.execution.selection import Selection
from bringup_conformance.execution.support import Support
from bringup_conformance.execution.targets import DeviceTarget, Target
from bringup_conformance.reducing import explain
from bringup_conformance.reducing.reduce import Effort
from bringup_conformance.reporting import failures
from bringup_conformance.reporting.failures import case_from_json
from bringup_conformance.reporting.reports import Failure, Report

#: Failures that are shrunk in one run: of ops one each, so that a fault is not shrunk a hundred
#: times.
MOST_SHRUNK = 12


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.  done, total: units of work.  doing: what is at hand.  failed: cases."""

    done: int
    total: int
    doing: str
    failed: int


OnProgress = Callable[[Progress], None]


def run(
    backend: str | Target,
    level: str = "fusion",
    seed: int = 0,
    *,
    only: str = "",
    report: Path | None = None,
    on_progress: OnProgress | None = None,
    shrink_seconds: float = 90.0,
) -> Report:
    """Run a level, and those below it, on a device.

    backend: its name, or a target at hand.  only: which cases, see `Selection`.  report: a folder
    that receives a file for every failure as it is met, and ``report.json``; files of failures that
    an earlier run left there go.  shrink_seconds: for making failures small, all of them together.
    Raises BackendError if the device cannot be opened, BringupError for an unknown level, OSError
    if the folder cannot be written to.
    """
    if level not in LEVELS:
        raise BringupError(f"no level is named {level!r}", fix=f"use one of {', '.join(LEVELS)}")
    target = DeviceTarget.named(backend) if isinstance(backend, str) else backend
    if report is not None:
        failures.prepare(report)
    session = _Session(target, Report(target.name, level, seed, only), report)
    start = time.perf_counter()
    session.run(on_progress or (lambda _progress: None))
    session.explain(shrink_seconds, on_progress or (lambda _progress: None))
    session.report.seconds = time.perf_counter() - start
    session.report.failures.sort(key=lambda failure: failure.nodes)
    if report is not None:
        session.report.write(report)
    return session.report


class _Session:
    """A run in progress."""

    def __init__(self, target: Target, report: Report, folder: Path | None) -> None:
        self.target = target
        self.report = report
        self.folder = folder
        self.failed: list[tuple[Outcome, Failure]] = []

    def run(self, on_progress: OnProgress) -> None:
        report, capabilities = self.report, self.target.capabilities
        selection = Selection(report.only)
        budget = levels.budget_of(capabilities)
        plan = Plan(capabilities, Support(self.target.missing), report.seed, budget)
        wanted = LEVELS[: LEVELS.index(report.level) + 1]
        units = [u for name in wanted for u in levels.units(plan, name) if selection.reaches(u)]
        for number, unit in enumerate(units):
            on_progress(Progress(number, len(units), _title(unit), report.failed))
            for item in unit.make():
                if not selection.admits(item):
                    continue
                if isinstance(item, Unsupported):
                    report.unsupported.append(item)
                else:
                    self._take(run_case(self.target, item))

    def _take(self, outcome: Outcome) -> None:
        self.report.add(outcome)
        if outcome.problem is None:
            return
        report = self.report
        failure = Failure(explain.basic(outcome, report.backend, report.level, report.seed))
        report.failures.append(failure)
        self.failed.append((outcome, failure))
        self._write(len(self.failed) - 1, failure)

    def _write(self, number: int, failure: Failure) -> None:
        if self.folder is not None:
            failure.file = failures.write(self.folder, number, failure.document)

    def explain(self, seconds: float, on_progress: OnProgress) -> None:
        """Shrink failures, of ops the first of each, until there are many or time is up."""
        start, ops, done = time.monotonic(), set(), 0
        for number, (outcome, failure) in enumerate(self.failed):
            left = seconds - (time.monotonic() - start)
            if done == MOST_SHRUNK or left <= 0:
                return
            if outcome.case.op != PROGRAMS and outcome.case.op in ops:
                continue
            ops.add(outcome.case.op)
            what = f"shrinking {outcome.case.name}"
            on_progress(Progress(done, MOST_SHRUNK, what, self.report.failed))
            effort = Effort(seconds=min(left, Effort().seconds))
            failure.document = explain.explained(self.target, outcome, failure.document, effort)
            self._write(number, failure)
            done += 1


def _title(unit: Unit) -> str:
    return "/".join(filter(None, (unit.level, unit.op, unit.dtype, unit.number)))


def replay(path: Path, backend: str | Target | None = None) -> tuple[Failure, Problem | None]:
    """Run the program of a failure file again: the smallest, then, if that passes, the whole.

    backend: another device than the file's.  Returns the file's failure, and what is wrong now.
    Raises BackendError if the device cannot be opened, ValueError if the file is none, OSError.
    """
    document = failures.read(path)
    name = document["backend"] if backend is None else backend
    target = DeviceTarget.named(name) if isinstance(name, str) else name
    skip = frozenset(document["options"]["skip"])
    for form in filter(None, (document.get("reduced"), document["case"])):
        problem = document["problem"] if form is document["case"] else form["problem"]
        case = case_from_json(form)
        found = attempt(target, case, fuse=problem["fused"], skip=skip)[1]
        if found is not None:
            return Failure(document, path), found
    return Failure(document, path), None


__all__ = ["LEVELS", "Progress", "Report", "replay", "run"]

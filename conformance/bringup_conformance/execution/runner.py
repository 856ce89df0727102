"""Runs levels on a device and looks into what fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bringup_conformance.cases import PROGRAMS, Check, Outcome, Unsupported
from bringup_conformance.execution import levels
from bringup_conformance.execution.levels import LEVELS, ladder
from bringup_conformance.execution.plan import Plan, Unit, budget_of
from bringup_conformance.execution.running import run_item
from bringup_conformance.execution.selection import Selection
from bringup_conformance.execution.support import Support
from bringup_conformance.execution.targets import DeviceTarget, Target
from bringup_conformance.reducing import explain
from bringup_conformance.reducing.reduce import Effort
from bringup_conformance.reporting import failures
from bringup_conformance.reporting.environment import environment
from bringup_conformance.reporting.reports import Failure, Report
from bringup_conformance.reporting.results import result_of

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
    ladder(level)
    target = DeviceTarget.named(backend) if isinstance(backend, str) else backend
    if report is not None:
        failures.prepare(report)
    found = Report(target.name, level, seed, only, environment=environment(target))
    if only:
        found.reduced.append(f"only {only!r} was asked for")
    session = _Session(target, found, report)
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
        support = Support(self.target.missing)
        plan = Plan(capabilities, support, report.seed, budget_of(capabilities))
        units = [
            u
            for name in ladder(report.level)
            for u in levels.units(plan, name)
            if selection.reaches(u)
        ]
        for number, unit in enumerate(units):
            on_progress(Progress(number, len(units), _title(unit), report.failed))
            for item in unit.make():
                if not selection.admits(item):
                    continue
                if isinstance(item, Unsupported):
                    report.unsupported.append(item)
                else:
                    start = time.perf_counter()
                    outcome = run_item(self.target, item)
                    self._take(outcome, time.perf_counter() - start)

    def _take(self, outcome: Outcome, seconds: float) -> None:
        report = self.report
        if outcome.problem is None:
            report.add(result_of(outcome, seconds))
            return
        document = failures.document(outcome, report.backend, report.seed)
        report.add(result_of(outcome, seconds, document))
        failure = Failure(document)
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
            if isinstance(outcome.case, Check) or outcome.case.op in ops:
                continue
            if outcome.case.op != PROGRAMS:
                ops.add(outcome.case.op)
            what = f"shrinking {outcome.case.name}"
            on_progress(Progress(done, MOST_SHRUNK, what, self.report.failed))
            effort = Effort(seconds=min(left, Effort().seconds))
            failure.document = explain.explained(self.target, outcome, failure.document, effort)
            self._write(number, failure)
            done += 1


def _title(unit: Unit) -> str:
    return "/".join(filter(None, (unit.level, unit.op, unit.dtype, unit.number)))


__all__ = ["LEVELS", "Progress", "Report", "run"]

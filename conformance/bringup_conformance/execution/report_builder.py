"""Builds a report in the order of the suite, in whatever order workers finish units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bringup.records import record
from bringup_conformance.cases import Problem, Unsupported
from bringup_conformance.execution.plan import UnitId
from bringup_conformance.execution.protocol import Done, Finished
from bringup_conformance.reporting import failures
from bringup_conformance.reporting.reports import Failure, Report
from bringup_conformance.reporting.results import Result

Results = Sequence[Result | Unsupported]
#: Is called with the number of a whole unit, its name, and the results of its items.
OnWhole = Callable[[int, str, Results], None]


@record
class FailedItem:
    """A failure, and the item that it is of.  number: of its file."""

    unit: int
    item: int
    number: int
    problem: Problem
    failure: Failure


class ReportBuilder:
    """A report under way.

    Units enter the report in their order; one that ends early waits for those before it.
    folder: where files of failures go, if anywhere.  on_whole: see there.
    finished: number of units that ended.  whole: those of them of which nothing was left out.
    failed: number of cases, of waiting units too.  failed_items: those in the report, in order.
    """

    def __init__(
        self, report: Report, folder: Path | None, on_whole: OnWhole | None = None
    ) -> None:
        self.report = report
        self.folder = folder
        self.on_whole = on_whole
        self.finished = 0
        self.whole: set[int] = set()
        self.failed = 0
        self.failed_items: list[FailedItem] = []
        self._waiting: dict[int, list[Done]] = {}
        self._ended: dict[int, str] = {}
        self._next = 0

    def add(self, done: Done) -> None:
        """Take the result of an item."""
        self._waiting.setdefault(done.unit, []).append(done)
        self.failed += isinstance(done.result, Result) and done.result.problem is not None

    def finish(self, message: Finished, name: str) -> None:
        """A unit has ended: it enters the report as soon as all before it have."""
        self.finished += 1
        why = ""
        if message.left_out:
            why = f"{name}: what follows the last failure is left out"
        else:
            self.whole.add(message.unit)
            if self.on_whole is not None:
                self.on_whole(message.unit, name, [d.result for d in self._results(message.unit)])
        self._ended[message.unit] = why
        while self._next in self._ended:
            self._enter(self._next)
            self._next += 1

    def _results(self, unit: int) -> list[Done]:
        """The results of a waiting unit, in order."""
        return sorted(self._waiting.get(unit, ()), key=lambda done: done.order)

    def close(self) -> None:
        """Nothing more will come: let everything that waits enter the report."""
        for unit in sorted(self._waiting.keys() | self._ended.keys()):
            self._enter(unit)

    def _enter(self, unit: int) -> None:
        why = self._ended.pop(unit, "")
        if why:
            self.report.reduced.append(why)
        for done in self._results(unit):
            failure = _append(self.report, done.result)
            if failure is not None:
                assert isinstance(done.result, Result)
                assert done.result.problem is not None
                number = len(self.failed_items)
                item = FailedItem(done.unit, done.item, number, done.result.problem, failure)
                self.failed_items.append(item)
                self._write(item)
        self._waiting.pop(unit, None)

    def explained(self, item: FailedItem, document: dict[str, Any]) -> None:
        """Take the new document of a failure, which was shrunk and located."""
        item.failure.document = document
        self._write(item)

    def _write(self, item: FailedItem) -> None:
        if self.folder is not None:
            item.failure.file = failures.write(self.folder, item.number, item.failure.document)

    def so_far(self, units: Sequence[UnitId]) -> Report:
        """A report of all that is known now, with the waiting units.  units: of the run."""
        under_way = f"it is under way: {len(units) - self.finished} of {len(units)} units are left"
        partial = [unit.level for n, unit in enumerate(units) if n not in self.whole]
        report = replace(
            self.report,
            results=[*self.report.results],
            unsupported=[*self.report.unsupported],
            failures=[*self.report.failures],
            reduced=[*self.report.reduced, under_way],
            left=len(units) - len(self.whole),
            in_part=[*dict.fromkeys(partial)],
        )
        for unit in sorted(self._waiting):
            for done in self._results(unit):
                _append(report, done.result)
        return report


def _append(report: Report, result: Result | Unsupported) -> Failure | None:
    """Append a result to a report; returns the failure if it is one."""
    if isinstance(result, Unsupported):
        report.unsupported.append(result)
        return None
    report.results.append(result)
    if result.problem is None:
        return None
    assert result.document is not None
    failure = Failure(result.document)
    report.failures.append(failure)
    return failure

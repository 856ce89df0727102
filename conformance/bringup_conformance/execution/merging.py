"""Puts what workers find into a report in the order of the suite, however it arrives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bringup.errors import BringupError
from bringup_conformance.cases import Problem, Unsupported
from bringup_conformance.execution.journal import Journal, differences
from bringup_conformance.execution.protocol import Done, Finished
from bringup_conformance.execution.spent import NOTHING
from bringup_conformance.reporting import failures
from bringup_conformance.reporting.reports import Failure, Report
from bringup_conformance.reporting.results import Place, Result

#: Is given a unit, its name, and what came of its items.
Recording = Callable[[int, str, list[Result | Unsupported]], None]


@dataclass(frozen=True, slots=True)
class Met:
    """A failure, and where in the run it was met.  number: of its file."""

    unit: int
    item: int
    number: int
    problem: Problem
    failure: Failure


class Merge:
    """A report under way.

    folder: where files of failures go, if anywhere.  journal: where units go as they end, if
    anywhere.  finished: units.  whole: those of them of which nothing was left out.  failed: cases,
    those that wait for their turn too.  met: failures, in order.
    """

    def __init__(
        self, report: Report, folder: Path | None, journal: Recording | None = None
    ) -> None:
        self.report = report
        self.folder = folder
        self.journal = journal
        self.finished = 0
        self.whole: set[int] = set()
        self.failed = 0
        self.met: list[Met] = []
        self._waiting: dict[int, list[Done]] = {}
        self._ended: dict[int, str] = {}
        self._next = 0

    def add(self, done: Done) -> None:
        """An item is done."""
        self._waiting.setdefault(done.unit, []).append(done)
        self.failed += isinstance(done.found, Result) and done.found.problem is not None

    def finish(self, message: Finished, title: str) -> None:
        """A unit has no more items: it is reported as soon as all before it are."""
        self.finished += 1
        if not message.left_out:
            self.whole.add(message.unit)
            if self.journal is not None:
                self.journal(message.unit, title, self.found(message.unit))
        why = f"{title}: what follows the last failure is left out" if message.left_out else ""
        self._ended[message.unit] = why
        while self._next in self._ended:
            self._report(self._next)
            self._next += 1

    def found(self, unit: int) -> list[Result | Unsupported]:
        """What came of the items of a unit that is not reported yet."""
        done = sorted(self._waiting.get(unit, ()), key=lambda each: each.item)
        return [each.found for each in done]

    def so_far(self, places: Sequence[Place]) -> Report:
        """A report of all that came in: what waits for its turn too."""
        report = replace(
            self.report,
            tallies={}, rules={}, results=[], spent=NOTHING,
            failures=[*self.report.failures], unsupported=[*self.report.unsupported],
            reduced=[
                *self.report.reduced,
                f"it is under way: {len(places) - self.finished} of {len(places)} units are left",
            ],
            left=len(places) - len(self.whole),
            in_part=[*dict.fromkeys(p.level for n, p in enumerate(places) if n not in self.whole)],
        )  # fmt: skip
        waiting = [each for unit in sorted(self._waiting) for each in self.found(unit)]
        for each in (*self.report.results, *waiting):
            if isinstance(each, Result):
                report.add(each)
        report.unsupported += [each for each in waiting if isinstance(each, Unsupported)]
        report.failures += [
            Failure(each.document)
            for each in waiting
            if isinstance(each, Result) and each.document is not None
        ]
        return report

    def close(self) -> None:
        """Nothing more will come: report what waits."""
        for unit in sorted(self._waiting.keys() | self._ended.keys()):
            self._report(unit)

    def _report(self, unit: int) -> None:
        why = self._ended.pop(unit, "")
        if why:
            self.report.reduced.append(why)
        for done in sorted(self._waiting.pop(unit, ()), key=lambda each: each.item):
            if isinstance(done.found, Unsupported):
                self.report.unsupported.append(done.found)
            else:
                self._take(done, done.found)

    def _take(self, done: Done, result: Result) -> None:
        self.report.add(result)
        if result.problem is None:
            return
        assert result.document is not None
        failure = Failure(result.document)
        self.report.failures.append(failure)
        met = Met(done.unit, int(done.item), len(self.met), result.problem, failure)
        self.met.append(met)
        self._write(met)

    def explained(self, met: Met, document: dict[str, Any]) -> None:
        """A failure was looked into."""
        met.failure.document = document
        self._write(met)

    def _write(self, met: Met) -> None:
        if self.folder is not None:
            met.failure.file = failures.write(self.folder, met.number, met.failure.document)


def refusals(parts: Sequence[Journal]) -> list[str]:
    """Why parts are no whole run together, a sentence each."""
    first, found = parts[0], list[str]()
    for part in parts[1:]:
        why = differences(first.header, part.header, "fraction")
        found += [
            f"{part.path.parent} is of another run than {first.path.parent}: {w}" for w in why
        ]
    if found:
        return found
    names = {number: name for part in parts for number, name in part.names.items()}
    times = Counter(number for part in parts for number in part.units)
    twice = [number for number, many in times.items() if many > 1]
    if twice:
        found.append(f"units are in several parts: {len(twice)}, such as {names[min(twice)]}")
    missing = first.header["of"] - len(times)
    if missing > 0 and not first.header["only"]:
        short = [p for p in parts if len(p.units) < p.header["units"]]
        more = "".join(
            f"; {p.path.parent} lacks {p.header['units'] - len(p.units)} of its"
            f" {p.header['units']}: go on with --resume"
            for p in short
        )
        found.append(f"units are in no part: {missing} of {first.header['of']}{more}")
    if first.header["only"]:
        found.append(f"the parts are of a selection: only {first.header['only']!r} was asked for")
    return found


def whole(folders: Sequence[Path]) -> list[Journal]:
    """The parts of a run.

    Raises BringupError, with a note for each further reason, if they are no whole run; OSError.
    """
    parts = [Journal.read(folder) for folder in folders]
    why = refusals(parts)
    if why:
        raise BringupError(f"the parts are no whole run: {why[0]}", notes=tuple(why[1:]))
    return parts


def joined(parts: Sequence[Journal], into: Path | None = None) -> Report:
    """The report of the parts of a run.

    into: a folder that receives files of its failures and a journal of its own.  Raises OSError.
    """
    head = parts[0].header
    environment = head["environment"]
    report = Report(environment["device"], head["level"], head["seed"])
    report.environment = environment
    report.few_kernels = head["few_kernels"]
    report.seconds = sum(part.seconds for part in parts)
    report.notes.append(f"joined of {', '.join(str(part.path.parent) for part in parts)}")
    made = None
    if into is not None:
        made = Journal.begin(into, {**head, "fraction": None, "units": head["of"]})
    merge = Merge(report, into)
    units = {number: (part, part.units[number]) for part in parts for number in part.units}
    for number in sorted(units):
        part, found = units[number]
        if made is not None:
            made.add(number, part.names[number], found, 0.0)
        for item, each in enumerate(found):
            merge.add(Done(number, item, each))
        merge.finish(Finished(number), part.names[number])
    merge.close()
    return report

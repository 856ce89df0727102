"""What a run found, as objects while it is under way and as plain data afterwards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup.backend.capabilities import Capabilities
from bringup.errors import BringupError
from bringup.records import record
from bringup_conformance.cases import Unsupported
from bringup_conformance.execution.cost import NO_COST
from bringup_conformance.oracle.verdict import merged
from bringup_conformance.reporting import failures
from bringup_conformance.reporting.environment import claims_of
from bringup_conformance.reporting.failures import Plain, suite_version
from bringup_conformance.reporting.results import Result

if TYPE_CHECKING:
    from bringup_conformance.execution.expectations import Findings


@dataclass(slots=True)
class Tally:
    """Counts of the cases of one level, op and dtype.

    compared, open: elements, and those of which nothing can be said.  The others are of cases that
    passed.  ratio: the largest error as a share of its bound.  ulp: the largest error in ULP of the
    reference's value.  ulps: elements by that error, see `oracle.verdict.BUCKETS`.
    """

    passed: int = 0
    failed: int = 0
    compared: int = 0
    open: int = 0
    ratio: float = 0.0
    ulp: float = 0.0
    ulps: tuple[int, ...] = ()

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.passed + other.passed,
            self.failed + other.failed,
            self.compared + other.compared,
            self.open + other.open,
            max(self.ratio, other.ratio),
            max(self.ulp, other.ulp),
            merged(self.ulps, other.ulps),
        )

    def add(self, result: Result) -> None:
        """Count one case."""
        verdict = result.verdict
        self.compared += verdict.compared
        self.open += verdict.open
        if result.problem is not None:  # a wrong element is any number of bounds away
            self.failed += 1
            return
        self.passed += 1
        self.ratio, self.ulp = max(self.ratio, verdict.ratio), max(self.ulp, verdict.ulp)
        self.ulps = merged(self.ulps, verdict.ulps)


@dataclass(slots=True)
class RuleTally:
    """Counts of the cases that show a rule to hold, or to be broken."""

    passed: int = 0
    failed: int = 0


@dataclass(slots=True)
class Failure:
    """One failing case: the document that replays it, and the file it was written to, if any."""

    document: dict[str, Any]
    file: Path | None = None

    @property
    def nodes(self) -> int:
        """Instructions of the program, after shrinking if that was done."""
        return int(self.document["nodes"])

    @property
    def case(self) -> Plain:
        """The case as the run met it."""
        case: Plain = self.document["case"]
        return case

    @property
    def shown(self) -> Plain:
        """The smallest form of the case that is known."""
        return failures.smallest(self.document)

    @property
    def problem(self) -> Plain:
        """What went wrong in that form."""
        return failures.problem_of(self.document)

    def to_json(self) -> dict[str, Any]:
        """A summary; the file holds the whole."""
        return {
            **{key: self.case[key] for key in ("name", "level", "op", "dtype")},
            "mode": "fused" if self.problem["fused"] else "op by op",
            "kind": self.problem["kind"],
            "what": self.problem["what"],
            "guilty": self.document.get("guilty", []),
            "nodes": self.nodes,
            "program": self.shown["ir"],
            "file": None if self.file is None else str(self.file),
        }


@dataclass(slots=True)
class Report:
    """What a run found.

    only: the selection, if there was one.  results: every case, in the order of the suite.
    failures: the smallest first.
    reduced: why the run is not whole, such as a selection or a time budget; empty if it is.
    in_part: the levels of which it left something out.  left: units that are not whole.
    interrupted: whether someone stopped it.  notes: what else there is to know of the run.
    few_kernels: whether cases have few kernels, since the device compiles slowly.
    date: when it began, in UTC.  command: the command line that began it.
    environment: see the function of this name.  findings: what came of the expectations, if there
    were any.
    """

    backend: str
    level: str
    seed: int
    only: str = ""
    seconds: float = 0.0
    results: list[Result] = field(default_factory=list)
    unsupported: list[Unsupported] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    reduced: list[str] = field(default_factory=list)
    in_part: list[str] = field(default_factory=list)
    left: int = 0
    environment: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False
    notes: list[str] = field(default_factory=list)
    few_kernels: bool = False
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    command: list[str] = field(default_factory=list)
    findings: Findings | None = None

    @property
    def passed(self) -> int:
        """Number of cases that passed."""
        return sum(result.problem is None for result in self.results)

    @property
    def failed(self) -> int:
        """Number of cases that failed."""
        return len(self.results) - self.passed

    @property
    def ok(self) -> bool:
        """Whether something ran and nothing failed, or nothing but what was expected to."""
        good = self.failed == 0 if self.findings is None else self.findings.ok
        return good and self.passed > 0

    @property
    def tallies(self) -> dict[tuple[str, str, str], Tally]:
        """Counts by level, op and dtype; of whole programs by the dtype of their first output."""
        tallies: dict[tuple[str, str, str], Tally] = {}
        for result in self.results:
            key = (result.level, result.op, result.dtype)
            tallies.setdefault(key, Tally()).add(result)
        return tallies

    @property
    def rules(self) -> dict[str, RuleTally]:
        """Counts by the id of a rule."""
        tallies: dict[str, RuleTally] = {}
        for result in self.results:
            problem = result.problem
            for rule in result.rules:
                tally = tallies.setdefault(rule, RuleTally())
                if problem is None:
                    tally.passed += 1
                elif rule in problem.rules or not problem.rules:
                    tally.failed += 1
        return tallies

    def to_json(self) -> dict[str, Any]:
        """The object that ``conformance run --json`` prints."""
        return {
            "backend": self.backend,
            "level": self.level,
            "seed": self.seed,
            "passed": self.passed,
            "failed": self.failed,
            "unsupported": len(self.unsupported),
            "seconds": round(self.seconds, 3),
            "reduced": self.reduced,
            "failures": [failure.to_json() for failure in self.failures],
        }

    def whole(self) -> dict[str, Any]:
        """All of it as plain data: what ``report.json`` holds."""
        cost = sum((result.cost for result in self.results), NO_COST)
        seconds = sum(result.seconds for result in self.results)
        return {
            **self.to_json(),
            "ok": self.ok,
            "suite": suite_version(),
            "only": self.only,
            "in_part": self.in_part,
            "left": self.left,
            "notes": self.notes,
            "few_kernels": self.few_kernels,
            "date": self.date,
            "command": self.command,
            "costs": {"cases": round(seconds, 6), **cost.to_json()},
            "environment": self.environment,
            "rules": {rule: asdict(tally) for rule, tally in sorted(self.rules.items())},
            "results": [
                {"level": level, "op": op, "dtype": dtype, **asdict(tally)}
                for (level, op, dtype), tally in self.tallies.items()
            ],
            "unsupported_reasons": [asdict(each) for each in self.unsupported],
            "cases": [result.to_json() for result in self.results],
            "expected": None if self.findings is None else self.findings.to_json(),
        }

    def write(self, folder: Path) -> Path:
        """Write ``report.json``, for programs; returns its path.  Raises OSError."""
        text = json.dumps(self.whole(), indent=1, ensure_ascii=False)
        return failures.put(folder / "report.json", text + "\n")

    def write_all(self, folder: Path, against: Document | None = None) -> None:
        """Write it also as ``junit.xml``, for build servers, and as ``report.html``, for people.

        against: an earlier report, with which the page compares this one.
        Raises OSError.
        """
        from bringup_conformance.reporting.html import page  # which takes a while to import
        from bringup_conformance.reporting.junit import junit

        self.write(folder)
        document = document_of(self)
        failures.put(folder / "junit.xml", junit(document))
        failures.put(folder / "report.html", page(document, against))


@record
class Document:
    """A whole report as plain data, of which every form for readers is made.

    whole: what ``report.json`` holds.  failures: the documents of its failures, in its order; where
    the file of one is gone, what the report itself says.
    """

    whole: Plain
    failures: tuple[Plain, ...] = ()

    @property
    def excused(self) -> Plain:
        """Names of cases that failed as expected, each with the entry that expects it."""
        names: Plain = (self.whole.get("expected") or {}).get("xfailed", {})
        return names

    @property
    def declared(self) -> Capabilities:
        """The ops and kernels that the device claims; none where the report does not say."""
        capabilities = self.whole.get("environment", {}).get("capabilities", {})
        ops, kernels = (claims_of(capabilities.get(name, {})) for name in ("ops", "kernels"))
        return Capabilities(ops=ops, kernels=kernels)


def document_of(report: Report) -> Document:
    """A report as plain data."""
    return Document(report.whole(), tuple(failure.document for failure in report.failures))


def read(path: Path) -> Document:
    """Read a report's folder, or its ``report.json``.

    Raises OSError, and BringupError if it is none.
    """
    file = path / "report.json" if path.is_dir() else path
    try:
        whole = json.loads(file.read_text(encoding="utf-8"))
        documents = tuple(_failure_document(file.parent, each) for each in whole["failures"])
    except (ValueError, KeyError, TypeError) as error:
        raise BringupError(f"{file} is no report of this suite: {error}") from error
    if "results" not in whole:
        raise BringupError(f"{file} is no report of this suite")
    return Document(whole, documents)


def _failure_document(folder: Path, summary: Mapping[str, Any]) -> Plain:
    """A failure's document from its file, which may have moved with the folder, or what its summary
    says of it.
    """
    if summary.get("file"):
        file = Path(summary["file"])
        for path in (folder / file.name, file):
            if path.is_file():
                try:
                    return failures.read(path)
                except ValueError as error:
                    raise ValueError(f"{file.name}: {error}") from error
    case = {key: summary[key] for key in ("name", "level", "op", "dtype")}
    problem = {
        "kind": summary["kind"],
        "what": summary["what"],
        "fused": summary["mode"] == "fused",
        "mismatches": [],
    }
    return {
        "case": {**case, "ir": summary.get("program", ""), "data": []},
        "problem": problem,
        "guilty": summary.get("guilty", []),
        "nodes": summary.get("nodes", 0),
    }

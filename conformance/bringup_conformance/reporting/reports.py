"""What a run found: a tally for every op and dtype, what is unsupported, and the failures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup_conformance.cases import Unsupported
from bringup_conformance.execution.spent import NOTHING, Spent
from bringup_conformance.oracle.verdict import merged
from bringup_conformance.reporting import failures
from bringup_conformance.reporting.failures import suite_version
from bringup_conformance.reporting.results import Result

if TYPE_CHECKING:
    from bringup_conformance.execution.expectations import Findings


@dataclass(slots=True)
class Tally:
    """Cases of one level, op and dtype.

    compared, open: elements, and those of which nothing can be said.  ratio: the largest error as a
    share of its bound.  ulp: the largest error in ULP of the reference's value.  ulps: elements by
    that error, see `oracle.verdict.BUCKETS`.  The last three are of cases that passed.
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
        good = result.problem is None
        self.passed += good
        self.failed += not good
        verdict = result.verdict
        self.compared += verdict.compared
        self.open += verdict.open
        if good:  # a wrong element is any number of bounds away
            self.ratio, self.ulp = max(self.ratio, verdict.ratio), max(self.ulp, verdict.ulp)
            self.ulps = merged(self.ulps, verdict.ulps)


@dataclass(slots=True)
class RuleTally:
    """Cases that show a rule to hold, or to be broken."""

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
    def case(self) -> Mapping[str, Any]:
        """The case as it was met."""
        found: Mapping[str, Any] = self.document["case"]
        return found

    @property
    def shown(self) -> Mapping[str, Any]:
        """The smallest form of the case known."""
        found: Mapping[str, Any] = self.document.get("reduced") or self.document["case"]
        return found

    @property
    def problem(self) -> Mapping[str, Any]:
        """What went wrong, in that form."""
        found: Mapping[str, Any] = self.shown.get("problem") or self.document["problem"]
        return found

    def to_json(self) -> dict[str, Any]:
        """A summary; the whole is in the file."""
        case = self.document["case"]
        return {
            **{key: case[key] for key in ("name", "level", "op", "dtype")},
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

    only: the selection, if not every case was wanted.  tallies: by (level, op, dtype), whole
    programs by the dtype of their first output.  failures: the smallest first.  rules: by id.
    reduced: why the run is not whole, such as a selection or a time budget; empty if it is.
    in_part: the levels of which it left something out.  left: units that are not whole.
    interrupted: whether someone stopped it.  notes: what else there is to know of the run.
    few_kernels: whether cases have few kernels, since the device compiles slowly.
    date: when it began, in UTC.  command: the command line that began it.
    environment: see the function of this name.  results: every case, in the order of the suite.
    findings: what came of what was expected, if anything was.  spent: what its programs cost the
    device.
    """

    backend: str
    level: str
    seed: int
    only: str = ""
    seconds: float = 0.0
    tallies: dict[tuple[str, str, str], Tally] = field(default_factory=dict)
    unsupported: list[Unsupported] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    rules: dict[str, RuleTally] = field(default_factory=dict)
    reduced: list[str] = field(default_factory=list)
    in_part: list[str] = field(default_factory=list)
    left: int = 0
    environment: dict[str, Any] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    interrupted: bool = False
    notes: list[str] = field(default_factory=list)
    few_kernels: bool = False
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    command: list[str] = field(default_factory=list)
    findings: Findings | None = None
    spent: Spent = NOTHING

    @property
    def passed(self) -> int:
        """Cases that passed."""
        return sum(tally.passed for tally in self.tallies.values())

    @property
    def failed(self) -> int:
        """Cases that failed."""
        return sum(tally.failed for tally in self.tallies.values())

    @property
    def ok(self) -> bool:
        """Whether something ran and nothing failed, or nothing but what was expected to."""
        good = self.failed == 0 if self.findings is None else self.findings.ok
        return good and self.passed > 0

    def add(self, result: Result) -> None:
        """Count one case."""
        self.results.append(result)
        self.spent += result.spent
        self.tallies.setdefault((result.level, result.op, result.dtype), Tally()).add(result)
        problem = result.problem
        for rule in result.rules:
            tally = self.rules.setdefault(rule, RuleTally())
            if problem is None:
                tally.passed += 1
            elif rule in problem.rules or not problem.rules:
                tally.failed += 1

    def to_json(self) -> dict[str, Any]:
        """The object that ends ``conformance run --json``."""
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
            "costs": {
                "cases": round(sum(result.seconds for result in self.results), 6),
                **self.spent.to_json(),
            },
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
        """Write all of it as ``report.json``; returns its path.  Raises OSError."""
        text = json.dumps(self.whole(), indent=1, ensure_ascii=False)
        return failures.put(folder / "report.json", text + "\n")

"""What is kept of each case of a run, whichever process ran it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from bringup_conformance.cases import Check, Outcome, Problem, Status
from bringup_conformance.execution.spent import NOTHING, Spent
from bringup_conformance.oracle.verdict import Mismatch, Verdict
from bringup_conformance.reporting.failures import Run, document


@dataclass(frozen=True, slots=True)
class Place:
    """What a unit of cases is called; dtype and number may be empty."""

    level: str
    op: str
    dtype: str
    number: str

    def __str__(self) -> str:
        return "/".join(filter(None, (self.level, self.op, self.dtype, self.number)))


@dataclass(frozen=True, slots=True)
class Result:
    """One case or check of a run.

    seconds: that it took, with its reference.  document: what replays it, of a failure.
    spent: what its programs cost the device.
    """

    name: str
    level: str
    op: str
    dtype: str
    rules: tuple[str, ...]
    verdict: Verdict
    problem: Problem | None = None
    seconds: float = 0.0
    document: dict[str, Any] | None = None
    spent: Spent = NOTHING

    @property
    def status(self) -> Status:
        """Whether it passed."""
        return "pass" if self.problem is None else "fail"

    def to_json(self) -> dict[str, Any]:
        """Its row in ``report.json``."""
        return {
            "name": self.name,
            "level": self.level,
            "op": self.op,
            "dtype": self.dtype,
            "status": self.status,
            "kind": None if self.problem is None else self.problem.kind,
            "rules": list(self.rules),
            "seconds": round(self.seconds, 6),
        }

    def to_journal(self) -> dict[str, Any]:
        """All of it as plain data, which `from_journal` reads."""
        plain = asdict(self.verdict)
        problem = self.problem
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "rules": list(self.rules),
            "verdict": {name: value for name, value in plain.items() if value},
            "problem": None if problem is None else asdict(problem),
            "document": self.document,
            "spent": {name: value for name, value in asdict(self.spent).items() if value},
        }

    @classmethod
    def from_journal(cls, data: Mapping[str, Any]) -> Result:
        """Read `to_journal`'s data.  Raises KeyError or TypeError if it is none."""
        problem = data["problem"]
        if problem is not None:
            rules = tuple(problem["rules"])
            problem = Problem(
                **{**problem, "verdict": _verdict(problem["verdict"]), "rules": rules}
            )
        return cls(
            **{name: data[name] for name in _PLAIN},
            rules=tuple(data["rules"]),
            verdict=_verdict(data["verdict"]),
            problem=problem,
            document=data["document"],
            spent=Spent(**data["spent"]),
        )

    def with_document(self, document: dict[str, Any]) -> Result:
        """The same with another document."""
        return replace(self, document=document)


_PLAIN = ("name", "level", "op", "dtype", "seconds")


def _verdict(data: Mapping[str, Any]) -> Verdict:
    mismatches = tuple(map(Mismatch.from_json, data.get("mismatches", ())))
    return Verdict(**{**data, "mismatches": mismatches, "ulps": tuple(data.get("ulps", ()))})


def lost(place: Place, problem: Problem, run: Run) -> Result:
    """What stands for cases of a unit that could not be made, or between which a process ended."""
    check = Check(str(place), place.level, place.op, (), _nothing, place.dtype)
    outcome = Outcome(check, problem.verdict, problem)
    return result_of(outcome, found=document(outcome, run))


def _nothing(_target: object) -> None:
    return None


def result_of(
    outcome: Outcome,
    seconds: float = 0.0,
    found: dict[str, Any] | None = None,
    spent: Spent = NOTHING,
) -> Result:
    """What is kept of an outcome."""
    case = outcome.case
    return Result(
        case.name,
        case.level,
        case.op,
        case.dtype,
        case.rules,
        outcome.verdict,
        outcome.problem,
        seconds,
        found,
        spent,
    )

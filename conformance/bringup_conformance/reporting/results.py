"""What is kept of each case of a run, whichever process ran it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from bringup.records import record
from bringup_conformance.cases import Check, Outcome, Problem, Status
from bringup_conformance.execution.cost import NO_COST, Cost
from bringup_conformance.execution.plan import UnitId
from bringup_conformance.oracle.verdict import Mismatch, Verdict
from bringup_conformance.reporting.failures import Run, document

#: Fields that are the same in plain data.
_PLAIN = ("name", "level", "op", "dtype", "seconds")


@record
class Result:
    """One case or check of a run.

    seconds: that it took, with its reference.  document: of a failure, what replays it.
    cost: what its programs cost the device.
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
    cost: Cost = NO_COST

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
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "rules": list(self.rules),
            "verdict": {name: value for name, value in asdict(self.verdict).items() if value},
            "problem": None if self.problem is None else asdict(self.problem),
            "document": self.document,
            "spent": {name: value for name, value in asdict(self.cost).items() if value},
        }

    @classmethod
    def from_journal(cls, data: Mapping[str, Any]) -> Result:
        """Read the data of `to_journal`.  Raises KeyError or TypeError if it is something else."""
        problem = data["problem"]
        if problem is not None:
            verdict, rules = _verdict(problem["verdict"]), tuple(problem["rules"])
            problem = Problem(**{**problem, "verdict": verdict, "rules": rules})
        return cls(
            **{name: data[name] for name in _PLAIN},
            rules=tuple(data["rules"]),
            verdict=_verdict(data["verdict"]),
            problem=problem,
            document=data["document"],
            cost=Cost(**data["spent"]),
        )

    def with_document(self, document: dict[str, Any]) -> Result:
        """The same with another document."""
        return replace(self, document=document)


def _verdict(data: Mapping[str, Any]) -> Verdict:
    mismatches = tuple(map(Mismatch.from_json, data.get("mismatches", ())))
    return Verdict(**{**data, "mismatches": mismatches, "ulps": tuple(data.get("ulps", ()))})


def result_of(
    outcome: Outcome,
    seconds: float = 0.0,
    document: dict[str, Any] | None = None,
    cost: Cost = NO_COST,
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
        document,
        cost,
    )


def lost(unit: UnitId, problem: Problem, run: Run) -> Result:
    """The result of a unit whose cases could not be made, or between which a process ended."""
    check = Check(str(unit), unit.level, unit.op, (), lambda _target: None, unit.dtype)
    outcome = Outcome(check, problem.verdict, problem)
    return result_of(outcome, document=document(outcome, run))

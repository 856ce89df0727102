"""What is kept of each case of a run, whichever process ran it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bringup_conformance.cases import Outcome, Problem, Status
from bringup_conformance.oracle.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Result:
    """One case or check of a run.

    seconds: that it took, with its reference.  document: what replays it, of a failure.
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


def result_of(
    outcome: Outcome, seconds: float = 0.0, document: dict[str, Any] | None = None
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
    )

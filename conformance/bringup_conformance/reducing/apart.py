"""Looking into failures that end the process they happen in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bringup_conformance.cases import Case, Problem
from bringup_conformance.execution.isolated import Isolated
from bringup_conformance.execution.running import ElsewhereError
from bringup_conformance.execution.targets import DeviceTarget, Target
from bringup_conformance.reducing.cause import Cause
from bringup_conformance.reporting.failures import case_to_json

#: Seconds after which a silent process is given up; each try of a program that hangs takes as long.
PATIENCE = 8.0


def ends_processes(problem: Problem) -> bool:
    """Whether a failure may end the process that meets it."""
    return problem.kind in ("hang", "oom") or bool(problem.log)


@contextmanager
def where_needed(target: Target, problem: Problem) -> Iterator[Target]:
    """The target, in a process of its own if a problem asks for that."""
    if isinstance(target, DeviceTarget) and ends_processes(problem):
        with Isolated(target, PATIENCE) as apart:
            yield apart
    else:
        yield target


def locate_apart(target: Isolated, case: Case, *, fuse: bool, skip: frozenset[str]) -> Cause:
    """What is guilty; the last thing suspected if the process ends over it."""
    suspects: list[Cause] = []
    try:
        return Cause.from_json(
            target.locate(
                case_to_json(case), fuse, skip,
                lambda suspect: suspects.append(Cause.from_json(suspect)),
            )
        )  # fmt: skip
    except ElsewhereError as error:
        if not suspects:
            return Cause("unknown", "", f"before any step was run: {error}")
        last = suspects[-1].to_json()
        return Cause.from_json({**last, "what": f"{last['what']}: {error}"})

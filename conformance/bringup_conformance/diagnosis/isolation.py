"""Diagnosis of failures that end the process in which they happen, in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bringup_conformance.cases import Case, Problem
from bringup_conformance.diagnosis.cause import MOVING, Cause
from bringup_conformance.execution.isolated import Isolated
from bringup_conformance.execution.running import RemoteError
from bringup_conformance.execution.targets import DeviceTarget, Target
from bringup_conformance.reporting.failures import case_to_json


def ends_processes(problem: Problem) -> bool:
    """Whether a failure may end the process that meets it."""
    return problem.kind in ("hang", "oom") or bool(problem.log)


@contextmanager
def safe_target(target: Target, problem: Problem, timeout: float) -> Iterator[Target]:
    """The target; in a process of its own if the problem may end it.

    timeout: seconds without a sign of life after which that process hangs.
    """
    if isinstance(target, DeviceTarget) and ends_processes(problem):
        with Isolated(target, timeout) as isolated:
            yield isolated
    else:
        yield target


def locate_isolated(
    target: Isolated, case: Case, problem: Problem, skip: frozenset[str] = frozenset()
) -> Cause:
    """The cause of a problem; what was under suspicion last, if the process ends over it.

    A hang in another phase than the problem's has another cause.
    """
    suspects: list[Cause] = []
    try:
        return Cause.from_json(
            target.locate(
                case_to_json(case), problem.fused, skip,
                lambda suspect: suspects.append(Cause.from_json(suspect)),
            )
        )  # fmt: skip
    except RemoteError as error:
        if error.kind == "hang" and problem.kind == "hang" and error.phase != problem.phase:
            return Cause("unknown", "", f"looked for step by step, it hangs elsewhere: {error}")
        if error.phase in MOVING:
            return Cause("call", MOVING[error.phase], str(error))
        if not suspects:
            return Cause("unknown", "", f"before any step was run: {error}")
        last = suspects[-1].to_json()
        return Cause.from_json({**last, "what": f"{last['what']}: {error}"})

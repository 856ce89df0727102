"""How a run goes, beside what is run on which device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from bringup_conformance.execution.expectations import Expectations
from bringup_conformance.execution.progress import OnProgress
from bringup_conformance.reporting.failures import TIMEOUT


def _silent(_progress: object) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `run` can be told by keyword.

    jobs: worker processes; 0 for this process, where a crash of the device ends the run.  None for
    as many as there are cores, at most 4.  What is found does not depend on it.
    only: which cases, see `Selection`.  fraction: part ``(i, n)`` of n, counted from 1; all parts
    together are the whole run.
    time_budget: seconds that all of it may take, planning, reducing and reports too.
    timeout: seconds without a sign of life (see `pulse`) after which a case hangs, if it does so
    again alone: its worker is ended (not in this process).  For reducing too.
    report: a folder that receives a file for every failure as it is met, ``report.json`` and a
    journal of the run while it goes on, then ``junit.xml`` and ``report.html``; files of failures
    that an earlier run left there go.
    resume: go on with the run that `report` holds: with its units that are not whole.
    few_kernels: whether cases have few kernels, for a device that compiles slowly; None to have
    that found out by the first of them.
    command: the command line, for the report.
    on_progress: is told how far the run is.
    shrink_seconds: for making failures small, all of them together.
    expect: what is known to be missing or broken; the report says what came of it, and failures
    that are expected are not looked into.
    unclaimed: whether to try, in a process of its own, what the device does not declare.
    corpus: a folder from which level soak goes on, and where it leaves what it finds.
    """

    jobs: int | None = None
    only: str = ""
    fraction: tuple[int, int] | None = None
    time_budget: float | None = None
    timeout: float = TIMEOUT
    report: Path | None = None
    resume: bool = False
    few_kernels: bool | None = None
    command: tuple[str, ...] = ()
    on_progress: OnProgress = _silent
    shrink_seconds: float = 90.0
    expect: Expectations | None = None
    unclaimed: bool = False
    corpus: Path | None = None


class Keywords(TypedDict, total=False):
    """The fields of `Options`, as keywords."""

    jobs: int | None
    only: str
    fraction: tuple[int, int] | None
    time_budget: float | None
    timeout: float
    report: Path | None
    resume: bool
    few_kernels: bool | None
    command: tuple[str, ...]
    on_progress: OnProgress
    shrink_seconds: float
    expect: Expectations | None
    unclaimed: bool
    corpus: Path | None

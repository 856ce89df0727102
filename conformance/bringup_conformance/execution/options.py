"""How a run goes, beside what is run on which device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from bringup_conformance.execution.expectations import Expectations
from bringup_conformance.execution.progress import OnProgress


def _silent(_progress: object) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `run` can be told by keyword.

    jobs: worker processes; 0 for this process, where a crash of the device ends the run.  None for
    as many as there are cores, at most 4.  What is found does not depend on it.
    only: which cases, see `Selection`.  fraction: part ``(i, n)`` of n, counted from 1; all parts
    together are the whole run.
    time_budget: seconds after which no more is begun.  timeout: seconds for one case, then its
    worker is ended and the case hangs (not in this process).
    report: a folder that receives a file for every failure as it is met, then ``report.json``,
    ``junit.xml`` and ``report.html``; files of failures that an earlier run left there go.
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
    timeout: float = 60.0
    report: Path | None = None
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
    on_progress: OnProgress
    shrink_seconds: float
    expect: Expectations | None
    unclaimed: bool
    corpus: Path | None

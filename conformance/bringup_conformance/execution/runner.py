"""Runs levels on a device and looks into what fails."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bringup.errors import BringupError
from bringup_conformance.cases import PROGRAMS
from bringup_conformance.execution.crew import Crew, StoppedError
from bringup_conformance.execution.expectations import (
    CERTIFYING,
    Expectations,
    Findings,
    judged,
)
from bringup_conformance.execution.here import Here
from bringup_conformance.execution.levels import APART, LEVELS, ladder
from bringup_conformance.execution.merging import Merge, Met
from bringup_conformance.execution.protocol import (
    Began,
    Done,
    Explain,
    Explained,
    Finished,
    Setup,
    Work,
)
from bringup_conformance.execution.schedule import Job
from bringup_conformance.execution.targets import Target
from bringup_conformance.reducing.reduce import Effort
from bringup_conformance.reporting import failures
from bringup_conformance.reporting.failures import is_check
from bringup_conformance.reporting.reports import Report

#: Failures that are shrunk in one run: of ops one each, so that a fault is not shrunk a hundred
#: times.
MOST_SHRUNK = 12
#: Workers unless told otherwise, if there are cores for them.
MOST_JOBS = 4


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.

    done, total: units of work.  doing: what is at hand.  failed: cases.  jobs: what each worker is
    at, if there are workers.
    """

    done: int
    total: int
    doing: str
    failed: int
    jobs: tuple[str, ...] = ()


OnProgress = Callable[[Progress], None]


def run(
    backend: str | Target,
    level: str = "fusion",
    seed: int = 0,
    *,
    jobs: int | None = None,
    only: str = "",
    fraction: tuple[int, int] | None = None,
    time_budget: float | None = None,
    timeout: float = 60.0,
    report: Path | None = None,
    on_progress: OnProgress | None = None,
    shrink_seconds: float = 90.0,
    expect: Expectations | None = None,
    unclaimed: bool = False,
    corpus: Path | None = None,
) -> Report:
    """Run a level, and those below it, on a device.

    backend: its name, or a target at hand, which runs in this process.
    jobs: worker processes; 0 for this process, where a crash of the device ends the run.  By
    default as many as there are cores, at most 4.  What is found does not depend on it.
    only: which cases, see `Selection`.  fraction: part ``(i, n)`` of n, counted from 1; all parts
    together are the whole run.
    time_budget: seconds after which no more is begun.  timeout: seconds for one case, then its
    worker is ended and the case hangs (not in this process).
    report: a folder that receives a file for every failure as it is met, then ``report.json``,
    ``junit.xml`` and ``report.html``; files of failures that an earlier run left there go.
    shrink_seconds: for making failures small, all of them together.
    expect: what is known to be missing or broken; the report says what came of it, and failures
    that are expected are not looked into.
    unclaimed: whether to try, in a process of its own, what the device does not declare.
    corpus: a folder from which level soak goes on, and where it leaves what it finds.
    An interrupt from the keyboard ends the run, which tells what is known then.
    Raises BackendError if the device cannot be opened, BringupError for an unknown level or an odd
    fraction, OSError if the folder cannot be written to.

    >>> found = run("cpu", "ops", only="neg/f32", jobs=0)
    >>> found.ok, found.reduced
    (True, ["only 'neg/f32' was asked for"])
    """
    ladder(level)
    _check_fraction(fraction)
    if report is not None:
        failures.prepare(report)
    start, show = time.perf_counter(), on_progress or (lambda _progress: None)
    job = Job(level, seed, only, fraction)
    if level in APART:
        limits = _Soak(jobs != 0, time_budget, timeout, shrink_seconds, corpus)
        found = _soaked(backend, job, limits, report, show)
    else:
        with _workers(backend, job, jobs, timeout) as workers:
            workers.open()
            found = Report(workers.environment["device"], level, seed, only)
            found.environment = workers.environment
            found.reduced += _reductions(job)
            session = _Session(workers, Merge(found, report), show, expect)
            session.run(time_budget, shrink_seconds)
    found.seconds = time.perf_counter() - start
    found.failures.sort(key=lambda failure: ("reduced" not in failure.document, failure.nodes))
    if expect is not None or unclaimed:
        found.findings = _findings(found, expect or Expectations())
    if found.findings is not None and unclaimed and isinstance(backend, str):
        from bringup_conformance.execution import unclaimed as trying

        pairs = trying.pairs_of(found.unsupported)
        found.findings.unclaimed += map(str, trying.unclaimed(backend, pairs, seed))
    if report is not None:
        from bringup_conformance.reporting import writing

        writing.write(found, report)
    return found


def _findings(found: Report, expect: Expectations) -> Findings:
    whole = not found.reduced and found.level in CERTIFYING
    return judged(expect, found.results, found.unsupported, whole=whole)


@dataclass(frozen=True, slots=True)
class _Soak:
    """How level soak runs; see `run`."""

    apart: bool
    time_budget: float | None
    timeout: float
    shrink_seconds: float
    corpus: Path | None


def _soaked(
    backend: str | Target, job: Job, how: _Soak, report: Path | None, show: OnProgress
) -> Report:
    from bringup_conformance.execution import soak  # Hypothesis takes a while to import
    from bringup_conformance.execution.targets import DeviceTarget

    if job.only or job.fraction is not None:
        raise BringupError("level soak has no parts", fix="leave out the selection and fraction")
    named = isinstance(backend, str)
    target = DeviceTarget.named(backend) if isinstance(backend, str) else backend
    begun = time.monotonic()
    budget = float("inf") if how.time_budget is None else how.time_budget

    def tell(programs: int, doing: str, failed: int) -> None:
        total = programs if how.time_budget is None else int(budget)
        done = programs if how.time_budget is None else int(time.monotonic() - begun)
        show(Progress(done, total, doing, failed))

    return soak.run(
        target,
        job.seed,
        apart=named and how.apart,
        limits=soak.Limits(begun + budget),
        timeout=how.timeout,
        corpus=how.corpus,
        report=report,
        shrink_seconds=how.shrink_seconds,
        show=tell,
    )


def usable_cores() -> int:
    """Cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not every system knows affinity
        return os.cpu_count() or 1


def _workers(backend: str | Target, job: Job, jobs: int | None, timeout: float) -> Crew | Here:
    from bringup_conformance.execution.targets import DeviceTarget

    if not isinstance(backend, str):
        if jobs:
            raise BringupError("a target at hand cannot run in workers", fix="leave jobs out")
        return Here(backend, job)
    if jobs == 0:
        return Here(DeviceTarget.named(backend), job)
    cores = usable_cores()
    count = min(cores, MOST_JOBS) if jobs is None else jobs
    setup = Setup(backend, job.level, job.seed, job.only, job.fraction, timeout)
    return Crew(setup, count, max(1, cores // count))


def _check_fraction(fraction: tuple[int, int] | None) -> None:
    if fraction is not None and not 1 <= fraction[0] <= fraction[1]:
        text = "/".join(map(str, fraction))
        raise BringupError(f"{text!r} is no fraction", fix="use 1/N to N/N")


def _reductions(job: Job) -> list[str]:
    found = [f"only {job.only!r} was asked for"] if job.only else []
    if job.fraction is not None and job.fraction[1] > 1:
        found.append(f"part {job.fraction[0]} of {job.fraction[1]} was asked for")
    return found


class _Session:
    """A run in progress."""

    def __init__(
        self,
        workers: Crew | Here,
        merge: Merge,
        on_progress: OnProgress,
        expect: Expectations | None,
    ) -> None:
        self.workers = workers
        self.merge = merge
        self.on_progress = on_progress
        self.expect = expect or Expectations()

    def run(self, time_budget: float | None, shrink_seconds: float) -> None:
        report, total = self.merge.report, len(self.workers.places)
        until = float("inf") if time_budget is None else time.monotonic() + time_budget
        try:
            left = self.workers.work(deque(map(Work, range(total))), self.take, until)
            if left:
                report.reduced.append(
                    f"the time budget of {time_budget:g} s left out {left} of {total} units"
                )
            self.merge.close()
            self.explain(shrink_seconds)
        except StoppedError as error:
            self._stop(str(error))
        except KeyboardInterrupt:
            report.interrupted = True
            self._stop("interrupted")

    def _stop(self, why: str) -> None:
        """All that is known goes into the report."""
        self.workers.end()
        self.merge.close()
        left, total = len(self.workers.places) - self.merge.finished, len(self.workers.places)
        self.merge.report.reduced.append(f"{why}; {left} of {total} units are not whole")

    def take(self, message: Began | Done | Finished | Explained) -> None:
        """Hear of a unit."""
        if isinstance(message, Done):
            self.merge.add(message)
        elif isinstance(message, Finished):
            self.merge.finish(message, str(self.workers.places[message.unit]))
        elif isinstance(message, Began):
            self.show(message.name)

    def show(self, doing: str) -> None:
        """Tell how far it is."""
        merge, places = self.merge, self.workers.places
        self.on_progress(
            Progress(merge.finished, len(places), doing, merge.failed, self.workers.doing)
        )

    def explain(self, seconds: float) -> None:
        """Shrink failures, of ops the first of each, until there are many or time is up."""
        met = {(each.unit, each.item): each for each in self._worth_shrinking()}
        tasks: deque[Work | Explain] = deque(
            Explain(m.unit, m.item, m.problem, m.failure.document, min(seconds, Effort().seconds),
                    alone=bool(m.problem.log))
            for m in met.values()
        )  # fmt: skip

        def take(message: Began | Done | Finished | Explained) -> None:
            if isinstance(message, Explained):
                self.merge.explained(met[message.unit, message.item], message.document)
            self.show("shrinking")

        if tasks:
            self.show("shrinking")
            self.workers.work(tasks, take, time.monotonic() + seconds)

    def _worth_shrinking(self) -> list[Met]:
        """Of ops one failure each, and none that is expected."""
        known = {
            result.name
            for result in self.merge.report.results
            if result.problem is not None and self.expect.excuses(result)
        }
        ops: set[str] = set()
        found: list[Met] = []
        for each in self.merge.met:
            case = each.failure.document["case"]
            if is_check(each.failure.document) or case["op"] in ops or case["name"] in known:
                continue
            if case["op"] != PROGRAMS:
                ops.add(case["op"])
            found.append(each)
        return found[:MOST_SHRUNK]


__all__ = ["LEVELS", "Progress", "Report", "run", "usable_cores"]

"""Runs levels on a device and looks into what fails."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from typing import Unpack

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
from bringup_conformance.execution.holding import held
from bringup_conformance.execution.levels import APART, LEVELS, ladder
from bringup_conformance.execution.merging import Merge, Met
from bringup_conformance.execution.options import Keywords, Options
from bringup_conformance.execution.progress import OnProgress, Progress
from bringup_conformance.execution.protocol import (
    Began,
    Done,
    Explain,
    Explained,
    Finished,
    Setup,
    Work,
)
from bringup_conformance.execution.schedule import Job, thinned
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


def run(
    backend: str | Target, level: str = "runtime", seed: int = 0, **options: Unpack[Keywords]
) -> Report:
    """Run a level, and those below it, on a device.

    backend: its name, or a target at hand, which runs in this process.  seed: which cases to draw.
    options: the fields of `Options`: worker processes, parts, limits of time, folders.
    An interrupt from the keyboard ends the run, which tells what is known then.
    Raises BackendError if the device cannot be opened, BringupError for an unknown level or an odd
    fraction, OSError if the folder cannot be written to.

    >>> from bringup.runtime.devices import get
    >>> found = run(get().name, "ops", only="neg/f32", jobs=0)
    >>> found.ok, found.reduced
    (True, ["only 'neg/f32' was asked for"])
    """
    return run_with(backend, level, seed, Options(**options))


def run_with(backend: str | Target, level: str, seed: int, how: Options) -> Report:
    """The same with options at hand."""
    job = _asked(level, seed, how)
    if how.report is None:
        return _run(backend, job, how)
    how.report.mkdir(parents=True, exist_ok=True)
    with held(how.report):
        failures.prepare(how.report)
        found = _run(backend, job, how)
        from bringup_conformance.reporting import writing

        writing.write(found, how.report)
    return found


def _run(backend: str | Target, job: Job, how: Options) -> Report:
    start = time.perf_counter()
    found = _soaked(backend, job, how) if job.level in APART else _whole(backend, job, how)
    found.seconds = time.perf_counter() - start
    found.failures.sort(key=lambda failure: ("reduced" not in failure.document, failure.nodes))
    _judge(found, backend, how)
    return found


def _asked(level: str, seed: int, how: Options) -> Job:
    """Raises BringupError for what cannot be run."""
    ladder(level)
    if how.fraction is not None and not 1 <= how.fraction[0] <= how.fraction[1]:
        text = "/".join(map(str, how.fraction))
        raise BringupError(f"{text!r} is no fraction", fix="use 1/N to N/N")
    if how.corpus is not None and level not in APART:
        raise BringupError(f"level {level} has no corpus", fix=f"use one with level {APART[0]}")
    return Job(level, seed, how.only, how.fraction)


def _whole(backend: str | Target, job: Job, how: Options) -> Report:
    """A run of everything in a schedule."""
    with _workers(backend, job, how) as workers:
        workers.open()
        found = Report(workers.environment["device"], job.level, job.seed, job.only)
        found.environment = workers.environment
        found.reduced += _reductions(job)
        found.in_part = [*ladder(job.level)] if found.reduced else []
        session = _Session(workers, Merge(found, how.report), how.on_progress, how.expect)
        session.run(how.time_budget, how.shrink_seconds)
    return found


def _judge(found: Report, backend: str | Target, how: Options) -> None:
    """What is expected, and what passes unclaimed."""
    if how.expect is not None or how.unclaimed:
        found.findings = _findings(found, how.expect or Expectations())
    if found.findings is not None and how.unclaimed and isinstance(backend, str):
        from bringup_conformance.execution import unclaimed as trying

        pairs = trying.pairs_of(found.unsupported)
        found.findings.unclaimed += map(str, trying.unclaimed(backend, pairs, found.seed))


def _findings(found: Report, expect: Expectations) -> Findings:
    whole = not found.reduced and found.level in CERTIFYING
    return judged(expect, found.results, found.unsupported, whole=whole)


def _soaked(backend: str | Target, job: Job, how: Options) -> Report:
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
        how.on_progress(Progress(done, total, doing, failed))

    return soak.run(
        target,
        job.seed,
        apart=named and how.jobs != 0,
        limits=soak.Limits(begun + budget),
        timeout=how.timeout,
        corpus=how.corpus,
        report=how.report,
        shrink_seconds=how.shrink_seconds,
        show=tell,
    )


def usable_cores() -> int:
    """Cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not every system knows affinity
        return os.cpu_count() or 1


def _workers(backend: str | Target, job: Job, how: Options) -> Crew | Here:
    from bringup_conformance.execution.targets import DeviceTarget

    jobs = how.jobs
    if not isinstance(backend, str):
        if jobs:
            raise BringupError("a target at hand cannot run in workers", fix="leave jobs out")
        return Here(backend, job)
    if jobs == 0:
        return Here(DeviceTarget.named(backend), job)
    cores = usable_cores()
    count = min(cores, MOST_JOBS) if jobs is None else jobs
    setup = Setup(backend, job.level, job.seed, job.only, job.fraction, how.timeout)
    return Crew(setup, count, max(1, cores // count))


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
        report, places = self.merge.report, self.workers.places
        order: Sequence[int] = range(len(places))
        until = float("inf")
        if time_budget is not None:
            order, until = thinned(places, report.seed), time.monotonic() + time_budget
        try:
            left = self.workers.work(deque(map(Work, order)), self.take, until)
            if left:
                report.reduced.append(
                    f"the time budget of {time_budget:g} s left out {left} of {len(places)} units"
                )
            self.merge.close()
            self._part()
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
        self._part()
        left, total = len(self.workers.places) - self.merge.finished, len(self.workers.places)
        self.merge.report.reduced.append(f"{why}; {left} of {total} units are not whole")

    def _part(self) -> None:
        """Say which levels are not whole: some of their units did not end."""
        report, numbered = self.merge.report, enumerate(self.workers.places)
        missing = {place.level for n, place in numbered if n not in self.merge.whole}
        missing.update(report.in_part)
        report.in_part = [name for name in ladder(report.level) if name in missing]

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


__all__ = [
    "LEVELS",
    "OnProgress",
    "Options",
    "Progress",
    "Report",
    "run",
    "run_with",
    "usable_cores",
]

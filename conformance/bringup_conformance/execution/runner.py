"""Runs levels on a device and looks into what fails."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict, Unpack

from bringup.errors import BringupError
from bringup_conformance.cases import PROGRAMS, Unsupported
from bringup_conformance.diagnosis.shrinker import Effort
from bringup_conformance.execution.expectations import (
    CERTIFYING,
    Expectations,
    Findings,
    judged,
)
from bringup_conformance.execution.here import Here
from bringup_conformance.execution.holding import held
from bringup_conformance.execution.journal import Journal, differences, header
from bringup_conformance.execution.levels import APART, LEVELS, ladder
from bringup_conformance.execution.merging import Merge, Met
from bringup_conformance.execution.pool import Pool, StoppedError
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
from bringup_conformance.execution.spent import Spent
from bringup_conformance.execution.targets import Target
from bringup_conformance.reporting import failures
from bringup_conformance.reporting.failures import TIMEOUT, is_check
from bringup_conformance.reporting.reports import Report
from bringup_conformance.reporting.results import Result

#: Failures that are shrunk in one run: of ops one each, so that a fault is not shrunk a hundred
#: times.
MOST_SHRUNK = 12
#: Workers unless told otherwise, if there are cores for them.
MOST_JOBS = 4
#: The part of a time budget that is kept for looking into failures, if there are any.
_SHARE = 0.25
#: Seconds between reports of a run under way, and the share of the time that writing them takes at
#: most.
_SAVED, _SAVING = 10.0, 0.02
#: A device compiles slowly if the first cases take so many seconds, or so many of a processor's,
#: for each kernel.
SLOW_WALL, SLOW_BUSY = 1.0, 0.25
_MEASURED = 3
# Kernels that are compiled for a unit of each level, few to a case; counted on a CPU.
_KERNELS = {"smoke": 3, "ops": 15, "fusion": 2, "runtime": 6, "exhaustive": 2}
# Cases that hang, and load per core, from which on the machine is named as a reason.
_MANY, _BUSY = 2, 1.5


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.

    done, total: of what is `counted`.  doing: what is at hand.  failed: cases.  jobs: what each
    worker is at, if there are workers.  news: something to be told at once, such as a failure.
    """

    done: int
    total: int
    doing: str
    failed: int
    jobs: tuple[str, ...] = ()
    news: str = ""
    counted: str = "units"


OnProgress = Callable[[Progress], None]


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
        if level in APART:
            failures.prepare(how.report)
        try:
            found = _run(backend, job, how)
        except BaseException:
            with suppress(OSError):  # nothing was run
                how.report.rmdir()
            raise
        from bringup_conformance.reporting import writing

        writing.write(found, how.report)
    return found


def _run(backend: str | Target, job: Job, how: Options) -> Report:
    start = time.monotonic()
    found = _soaked(backend, job, how) if job.level in APART else _whole(backend, job, how)
    found.seconds += time.monotonic() - start
    found.failures.sort(key=lambda failure: ("reduced" not in failure.document, failure.nodes))
    _judge(found, backend, how, _end(how, start))
    return found


def _end(how: Options, start: float) -> float:
    """When the time budget ends, by the clock `time.monotonic`."""
    return float("inf") if how.time_budget is None else start + how.time_budget


def _asked(level: str, seed: int, how: Options) -> Job:
    """Raises BringupError for what cannot be run."""
    ladder(level)
    if how.fraction is not None and not 1 <= how.fraction[0] <= how.fraction[1]:
        text = "/".join(map(str, how.fraction))
        raise BringupError(f"{text!r} is no fraction", fix="use 1/N to N/N")
    if how.corpus is not None and level not in APART:
        raise BringupError(f"level {level} has no corpus", fix=f"use one with level {APART[0]}")
    return Job(level, seed, how.only, how.fraction, how.timeout)


class SlowError(Exception):
    """The device compiles slowly.  The message says how slowly, and what that means for the run."""


def _whole(backend: str | Target, job: Job, how: Options) -> Report:
    """A run of everything in a schedule.

    Whether cases have few kernels is found out by the first of them, unless it is said: if the
    device compiles slowly, the run begins again.
    """
    end = _end(how, time.monotonic())
    before = None
    if how.resume and how.report is not None:
        before = Journal.read(how.report, cut=True)
    few = how.few_kernels if before is None else before.header["few_kernels"]
    while True:
        made = replace(job, few=bool(few))
        with _workers(backend, made, how) as workers:
            workers.open(end)
            found = Report(workers.environment["device"], job.level, job.seed, job.only)
            found.environment, found.command = workers.environment, [*how.command]
            found.few_kernels = made.few
            found.reduced += _reductions(job)
            found.in_part = [*ladder(job.level)] if found.reduced else []
            session = _Session(workers, found, made, how, measures=few is None)
            try:
                session.begin(before)
                session.run(end)
            except SlowError as error:
                few = True
                how.on_progress(Progress(0, len(workers.places), "", 0, news=str(error)))
                continue
        found.notes += _busy(workers.silent, len(found.results))
        return found


def _busy(silent: int, ran: int) -> list[str]:
    """What to think of cases that hung on a machine that is busy with other things."""
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):  # not every system tells
        return []
    cores = usable_cores()
    if silent < _MANY or load < _BUSY * cores:
        return []
    return [
        f"{silent} of {ran + silent} cases gave no sign of life in time, and the machine is busy: a"
        f" load of {load:.0f} on {cores} cores; run it again when it is not, or with a longer"
        " --timeout"
    ]


def _judge(found: Report, backend: str | Target, how: Options, end: float) -> None:
    """What is expected, and what passes unclaimed."""
    if how.expect is not None or how.unclaimed:
        found.findings = _findings(found, how.expect or Expectations())
    if found.findings is not None and how.unclaimed and isinstance(backend, str):
        from bringup_conformance.execution import unclaimed as trying

        pairs = trying.pairs_of(found.unsupported)
        tried = trying.unclaimed(backend, pairs, found.seed, timeout=how.timeout, until=end)
        found.findings.unclaimed += map(str, tried)


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
    shrink = min(how.shrink_seconds, _SHARE * (how.time_budget or float("inf")))
    end = _end(how, begun) - (0 if how.time_budget is None else shrink)

    def tell(programs: int, doing: str, failed: int) -> None:
        total = programs if how.time_budget is None else int(how.time_budget)
        done = programs if how.time_budget is None else int(time.monotonic() - begun)
        counted = "programs" if how.time_budget is None else "seconds"
        how.on_progress(Progress(done, total, doing, failed, counted=counted))

    return soak.run(
        target,
        job.seed,
        apart=named and how.jobs != 0,
        limits=soak.Limits(end),
        timeout=how.timeout,
        corpus=how.corpus,
        report=how.report,
        shrink_seconds=shrink,
        show=tell,
    )


def usable_cores() -> int:
    """Cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not every system knows affinity
        return os.cpu_count() or 1


def _workers(backend: str | Target, job: Job, how: Options) -> Pool | Here:
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
    setup = Setup(backend, job.level, job.seed, job.only, job.fraction, how.timeout, few=job.few)
    return Pool(setup, count, max(1, cores // count))


def _reductions(job: Job) -> list[str]:
    found = [f"only {job.only!r} was asked for"] if job.only else []
    if job.fraction is not None and job.fraction[1] > 1:
        found.append(f"part {job.fraction[0]} of {job.fraction[1]} was asked for")
    return found


class _Session:
    """A run in progress.

    measures: whether a device that compiles slowly ends it.
    """

    def __init__(
        self, workers: Pool | Here, report: Report, job: Job, how: Options, *, measures: bool
    ) -> None:
        self.workers = workers
        self.merge = Merge(report, how.report)
        self.job = job
        self.how = how
        self.expect = how.expect or Expectations()
        self.journal: Journal | None = None
        self._measures = measures
        self._rates: list[tuple[float, float]] = []
        self._marked = self._saved = time.monotonic()
        self._every = _SAVED

    def begin(self, before: Journal | None) -> None:
        """Open the journal of the run, and take what it did before.

        Raises BringupError if that was another run.
        """
        folder, workers = self.how.report, self.workers
        if folder is None:
            return
        head = header(self.job, workers.environment, len(workers.places), workers.of)
        if before is None:
            failures.prepare(folder)
            self.journal = Journal.begin(folder, head)
        else:
            why = differences(before.header, head)
            if why:
                raise BringupError(
                    f"{folder} is of another run: {why[0]}",
                    notes=tuple(why[1:]),
                    fix="run it there, or begin a new run without --resume",
                )
            failures.prepare(folder)
            self.journal = before
            self.merge.report.seconds = before.seconds
            for unit, number in enumerate(workers.numbers):
                for item, found in enumerate(before.units.get(number, ())):
                    self.merge.add(Done(unit, item, found))
                if number in before.units:
                    self.merge.finish(Finished(unit), before.names[number])
        self.merge.journal = self._record

    def _record(self, unit: int, name: str, found: list[Result | Unsupported]) -> None:
        """A unit is whole."""
        assert self.journal is not None
        now = time.monotonic()
        self.journal.add(self.workers.numbers[unit], name, found, now - self._marked)
        self._marked = now

    def _measure(self, spent: Spent) -> None:
        """Raises SlowError if the first cases say that the device compiles slowly."""
        if not self._measures or not spent.compiled:
            return
        self._rates.append((spent.first / spent.compiled, spent.busy / spent.compiled))
        wall, busy = (min(column) for column in zip(*self._rates, strict=True))
        if len(self._rates) < _MEASURED:
            return
        self._measures = False
        if wall >= SLOW_WALL or busy >= SLOW_BUSY:
            raise SlowError(self._told(wall))

    def _told(self, wall: float) -> str:
        """What a device that compiles slowly is told at the start.  wall: seconds of a kernel."""
        places = self.workers.places
        kernels = sum(_KERNELS.get(place.level, 0) for place in places)
        minutes = kernels * wall / self.workers.jobs / 60
        return (
            f"the device takes {wall:.2g} s to compile a kernel: its cases have few of them, and"
            f" level {self.job.level} ({len(places):,} units, about {kernels:,} kernels) will take"
            f" about {minutes:,.0f} minutes at this rate; use --time-budget or --fraction for less,"
            " --resume to go on"
        )

    def run(self, end: float) -> None:
        """Run everything, and look into what fails.  end: of the time budget."""
        report, places, how = self.merge.report, self.workers.places, self.how
        order: Sequence[int] = range(len(places))
        budget = how.time_budget
        if budget is not None:
            order = thinned(places, report.seed)

        def until() -> float:
            """With time left to look into what failed."""
            known = budget is not None and self.merge.failed > 0
            return end - (min(how.shrink_seconds, _SHARE * (budget or 0)) if known else 0)

        try:
            tasks = (Work(unit) for unit in order if unit not in self.merge.whole)
            left = self.workers.work(deque(tasks), self.take, until)
            if left:
                report.reduced.append(
                    f"the time budget of {budget:g} s left out {left} of {len(places)} units"
                )
            self.merge.close()
            self._part()
            self.explain(min(how.shrink_seconds, end - time.monotonic()), end)
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
        report.left = len(self.workers.places) - len(self.merge.whole)

    def take(self, message: Began | Done | Finished | Explained) -> None:
        """Hear of a unit."""
        if isinstance(message, Done):
            self.merge.add(message)
            found = message.found
            if isinstance(found, Result) and found.problem is not None:
                self.show(found.name, f"FAIL {found.name}: {found.problem.what}")
            elif isinstance(found, Result):
                self._measure(found.spent)
            self._save()
        elif isinstance(message, Finished):
            self.merge.finish(message, str(self.workers.places[message.unit]))
        elif isinstance(message, Began):
            self.show(message.name)

    def _save(self) -> None:
        """Write what is known so far, now and then."""
        start = time.monotonic()
        if self.how.report is not None and start - self._saved >= self._every:
            self.merge.so_far(self.workers.places).write(self.how.report)
            self._saved = time.monotonic()
            self._every = max(_SAVED, (self._saved - start) / _SAVING)

    def show(self, doing: str, news: str = "") -> None:
        """Tell how far it is."""
        merge, places = self.merge, self.workers.places
        self.how.on_progress(
            Progress(merge.finished, len(places), doing, merge.failed, self.workers.doing, news)
        )

    def explain(self, seconds: float, end: float) -> None:
        """Shrink failures, of ops the first of each, until there are many or time is up.

        seconds: after which no more are begun.  end: of those under way, by `time.monotonic`.
        """
        met = {(each.unit, each.item): each for each in self._worth_shrinking()}
        tasks: deque[Work | Explain] = deque(
            Explain(m.unit, m.item, m.problem, m.failure.document, min(seconds, Effort().seconds),
                    alone=bool(m.problem.log))
            # What hangs takes longest to look into.
            for m in sorted(met.values(), key=lambda m: m.problem.kind == "hang")
            if seconds > 0
        )  # fmt: skip

        def take(message: Began | Done | Finished | Explained) -> None:
            if isinstance(message, Explained):
                each = met[message.unit, message.item]
                self.merge.explained(each, message.document)
                if self.journal is not None:
                    number = self.workers.numbers[message.unit]
                    name = message.document["case"]["name"]
                    self.journal.explained(number, name, message.document)
            self.show("shrinking")

        if tasks:
            self.show("shrinking")
            until = time.monotonic() + seconds
            self.workers.work(tasks, take, lambda: until, end)

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
            if "cause" not in each.failure.document:  # a run before this one looked into it
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

"""Runs levels on a device and looks into what fails."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

from bringup.errors import BringupError
from bringup.records import record
from bringup_conformance.cases import PROGRAMS
from bringup_conformance.diagnosis.shrinker import Effort
from bringup_conformance.execution.cost import Cost
from bringup_conformance.execution.expectations import CERTIFYING, Expectations, judged
from bringup_conformance.execution.journal import Journal, differences, header
from bringup_conformance.execution.levels import APART, LEVELS, ladder
from bringup_conformance.execution.pool import InlinePool, Pool, StoppedError
from bringup_conformance.execution.protocol import (
    Began,
    Done,
    Event,
    Explain,
    Explained,
    Finished,
    Job,
    Task,
    Work,
)
from bringup_conformance.execution.report_builder import FailedItem, ReportBuilder, Results
from bringup_conformance.execution.schedule import sampled_order
from bringup_conformance.execution.targets import DeviceTarget, Target
from bringup_conformance.reporting import failures
from bringup_conformance.reporting.failures import TIMEOUT, is_check
from bringup_conformance.reporting.folders import locked
from bringup_conformance.reporting.reports import Document, Report
from bringup_conformance.reporting.results import Result

#: Failures that are shrunk in one run: of ops one each, so that a fault is not shrunk a hundred
#: times.
MAX_SHRUNK = 12
#: Workers unless told otherwise, if there are cores for them.
MAX_JOBS = 4
#: The share of a time budget that is reserved for looking into failures, if there are any.
_EXPLAIN_SHARE = 0.25
#: Seconds between reports of a run under way, and the largest share of the time that writing them
#: may take.
_SAVE_INTERVAL, _SAVE_SHARE = 10.0, 0.02
#: A device compiles slowly if the first cases take so many seconds for each kernel, on a machine
#: that is not busy, or so many of a processor's, on any machine.
SLOW_SECONDS, SLOW_CPU_SECONDS = 1.0, 0.25
_MEASURED_CASES = 3
# Kernels that are compiled for a unit of each level, few to a case; counted on a CPU.
_KERNELS = {"smoke": 3, "ops": 15, "fusion": 2, "runtime": 6, "exhaustive": 2}
# Cases that hang, and load per core, from which on the machine is named as a reason.
_MANY_RETRIED, _BUSY_LOAD = 2, 1.5


@record
class Progress:
    """How far a run is.

    done, total: of what is `counted`.  doing: what it does.  failed: cases.  jobs: what each worker
    runs, if there are workers.  news: something to be told at once, such as a failure.
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


@record(kw_only=True)
class Options:
    """The keywords of `run`.

    jobs: worker processes; 0 for this process, where a crash of the device ends the run; None for
    as many as there are cores, at most 4.  The results do not depend on it.
    only: which cases, see `Selection`.  fraction: part ``(i, n)`` of n, counted from 1; all parts
    together are the whole run.
    time_budget: seconds for the whole run, planning, shrinking and reports included.
    timeout: seconds without a sign of life (see `heartbeat`) after which a case hangs, if it does
    so again alone: its worker is killed (this process is not).  It holds for shrinking too.
    report: a folder that receives a file for every failure as it is met, ``report.json`` and a
    journal while the run is under way, then ``junit.xml`` and ``report.html``.  Files of failures
    that an earlier run left there are removed.
    resume: go on with the run that `report` holds, with its units that are not whole.
    few_kernels: whether cases have few kernels, for a device that compiles slowly; None to find out
    with the first of them.
    command: the command line, for the report.
    on_progress: is called with how far the run is.
    shrink_seconds: for shrinking failures, all of them together.
    expect: what is known to be missing or broken; the report says what came of it, and failures
    that are expected are not looked into.
    unclaimed: whether to try, in a process of its own, what the device does not declare.
    corpus: a folder from which level soak resumes, and where it keeps what it finds.
    against: an earlier report, with which the page of this one compares it.
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
    against: Document | None = None


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
    against: Document | None


def run(
    backend: str | Target, level: str = "runtime", seed: int = 0, **options: Unpack[Keywords]
) -> Report:
    """Run a level, and those below it, on a device.

    backend: its name, or an opened target, which runs in this process.  seed: which cases to draw.
    options: the fields of `Options`: worker processes, parts, limits of time, folders.
    An interrupt from the keyboard ends the run; the report holds what is known then.
    Raises BackendError if the device cannot be opened, BringupError for an unknown level or an
    impossible fraction, OSError if the folder cannot be written to.

    >>> from bringup.runtime.devices import get
    >>> report = run(get().name, "ops", only="neg/f32", jobs=0)
    >>> report.ok, report.reduced
    (True, ["only 'neg/f32' was asked for"])
    """
    chosen = Options(**options)
    ladder(level)
    fraction, folder = chosen.fraction, chosen.report
    if fraction is not None and not 1 <= fraction[0] <= fraction[1]:
        text = "/".join(map(str, fraction))
        raise BringupError(f"{text!r} is no fraction", fix="use 1/N to N/N")
    if chosen.corpus is not None and level not in APART:
        raise BringupError(f"level {level} has no corpus", fix=f"use one with level {APART[0]}")
    job = Job(level, seed, chosen.only, fraction, chosen.timeout)
    run_level = _soak if level in APART else _run_units
    if folder is None:
        return _timed(run_level, backend, job, chosen)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        try:
            report = _timed(run_level, backend, job, chosen)
        except BaseException:
            with suppress(OSError):  # nothing was run
                folder.rmdir()
            raise
        report.write_all(folder, chosen.against)
    return report


def _timed(
    run_level: Callable[[str | Target, Job, Options, float], Report],
    backend: str | Target,
    job: Job,
    options: Options,
) -> Report:
    """Run within the time budget; then hold the report against what is expected."""
    start = time.monotonic()
    end = float("inf") if options.time_budget is None else start + options.time_budget
    report = run_level(backend, job, options, end)
    report.seconds += time.monotonic() - start
    report.failures.sort(key=lambda failure: ("reduced" not in failure.document, failure.nodes))
    if options.expect is None and not options.unclaimed:
        return report
    whole = not report.reduced and report.level in CERTIFYING
    expect = options.expect or Expectations()
    report.findings = judged(expect, report.results, report.unsupported, whole=whole)
    if options.unclaimed and isinstance(backend, str):
        from bringup_conformance.execution.unclaimed import pairs_of, unclaimed

        pairs, timeout = pairs_of(report.unsupported), options.timeout
        right = unclaimed(backend, pairs, report.seed, timeout=timeout, until=end)
        report.findings.unclaimed += map(str, right)
    return report


def _soak(backend: str | Target, job: Job, options: Options, end: float) -> Report:
    """Run level soak, which has no units."""
    from bringup_conformance.execution import soak  # Hypothesis takes a while to import

    if job.only or job.fraction is not None:
        raise BringupError("level soak has no parts", fix="leave out the selection and fraction")
    if options.report is not None:
        failures.prepare(options.report)
    target = DeviceTarget.named(backend) if isinstance(backend, str) else backend
    start, budget = time.monotonic(), options.time_budget
    shrink_seconds = options.shrink_seconds
    if budget is not None:
        shrink_seconds = min(shrink_seconds, _EXPLAIN_SHARE * budget)
        end -= shrink_seconds

    def show(programs: int, doing: str, failed: int) -> None:
        if budget is None:
            progress = Progress(programs, programs, doing, failed, counted="programs")
        else:
            elapsed = int(time.monotonic() - start)
            progress = Progress(elapsed, int(budget), doing, failed, counted="seconds")
        options.on_progress(progress)

    return soak.run(
        target,
        job.seed,
        isolated=isinstance(backend, str) and options.jobs != 0,
        limits=soak.Limits(end),
        timeout=options.timeout,
        corpus=options.corpus,
        report=options.report,
        shrink_seconds=shrink_seconds,
        show=show,
    )


class SlowError(Exception):
    """The device compiles slowly.  The message says how slowly, and what that means for the run."""


def _run_units(backend: str | Target, job: Job, options: Options, end: float) -> Report:
    """Run all units of a job.

    Unless the options say whether cases have few kernels, the first of them decide: if the device
    compiles slowly, the run begins again.
    """
    before = None
    if options.resume and options.report is not None:
        before = Journal.read(options.report, cut=True)
    few = options.few_kernels if before is None else before.header["few_kernels"]
    while True:
        job = replace(job, few=bool(few))
        with _open_pool(backend, job, options) as pool:
            pool.open(end)
            report = Report(pool.environment["device"], job.level, job.seed, job.only)
            report.environment, report.command = pool.environment, [*options.command]
            report.few_kernels = job.few
            if job.only:
                report.reduced.append(f"only {job.only!r} was asked for")
            if job.fraction is not None and job.fraction[1] > 1:
                part, parts = job.fraction
                report.reduced.append(f"part {part} of {parts} was asked for")
            report.in_part = [*ladder(job.level)] if report.reduced else []
            session = _Session(pool, report, job, options, end, measures=few is None)
            try:
                session.begin(before)
                session.run()
            except SlowError as error:
                few = True
                options.on_progress(Progress(0, len(pool.units), "", 0, news=str(error)))
                continue
        report.notes += _busy_machine(pool.retried, len(report.results))
        return report


def _open_pool(backend: str | Target, job: Job, options: Options) -> Pool | InlinePool:
    jobs = options.jobs
    if not isinstance(backend, str):
        if jobs:
            raise BringupError("a target at hand cannot run in workers", fix="leave jobs out")
        return InlinePool(backend, job)
    if jobs == 0:
        return InlinePool(DeviceTarget.named(backend), job)
    cores = usable_cores()
    count = min(cores, MAX_JOBS) if jobs is None else jobs
    return Pool(backend, job, count, max(1, cores // count))


def usable_cores() -> int:
    """Cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not every system knows affinity
        return os.cpu_count() or 1


def _load() -> str:
    """The load of a machine that is busy with other things; empty if it is not, or not known."""
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):  # not every system tells
        return ""
    cores = usable_cores()
    return f"a load of {load:.0f} on {cores} cores" if load >= _BUSY_LOAD * cores else ""


def _busy_machine(retried: int, ran: int) -> list[str]:
    """A note if cases hung on a machine that is busy with other things."""
    load = _load()
    if retried < _MANY_RETRIED or not load:
        return []
    return [
        f"{retried} of {ran + retried} cases gave no sign of life in time, and the machine is busy:"
        f" {load}; run it again when it is not, or with a longer --timeout"
    ]


class _Session:
    """The run of all units, under way.

    end: of the time budget, by the clock `time.monotonic`.  measures: whether a device that
    compiles slowly ends it.
    """

    def __init__(
        self,
        pool: Pool | InlinePool,
        report: Report,
        job: Job,
        options: Options,
        end: float,
        *,
        measures: bool,
    ) -> None:
        self.pool = pool
        self.report = report
        self.builder = ReportBuilder(report, options.report)
        self.job = job
        self.options = options
        self.end = end
        self.journal: Journal | None = None
        self._measures = measures
        self._compile_times: list[tuple[float, float]] = []
        self._unit_start = self._saved_at = time.monotonic()
        self._save_interval = _SAVE_INTERVAL

    def begin(self, before: Journal | None) -> None:
        """Open the journal of the run, and take over the units of one that it resumes.

        Raises BringupError if that was another run.
        """
        folder, pool = self.options.report, self.pool
        if folder is None:
            return
        now = header(self.job, pool.environment, len(pool.units), pool.level_size)
        if before is None:
            failures.prepare(folder)
            self.journal = Journal.begin(folder, now)
        else:
            why = differences(before.header, now)
            if why:
                raise BringupError(
                    f"{folder} is of another run: {why[0]}",
                    notes=tuple(why[1:]),
                    fix="run it there, or begin a new run without --resume",
                )
            failures.prepare(folder)
            self.journal = before
            self.report.seconds = before.seconds
            for unit, number in enumerate(pool.numbers):
                for item, result in enumerate(before.units.get(number, ())):
                    self.builder.add(Done(unit, item, result))
                if number in before.units:
                    self.builder.finish(Finished(unit), before.names[number])
        self.builder.on_whole = self._write_unit

    def _write_unit(self, unit: int, name: str, results: Results) -> None:
        """Write a whole unit to the journal."""
        assert self.journal is not None
        now = time.monotonic()
        self.journal.add(self.pool.numbers[unit], name, results, now - self._unit_start)
        self._unit_start = now

    def run(self) -> None:
        """Run the units that are not whole, and look into what fails."""
        report, builder, units = self.report, self.builder, self.pool.units
        budget = self.options.time_budget
        order: Sequence[int] = range(len(units))
        if budget is not None:
            order = sampled_order(units, report.seed)
        tasks: deque[Task] = deque(Work(unit) for unit in order if unit not in builder.whole)
        try:
            left = self.pool.run(tasks, self.on_event, self._until)
            if left:
                why = f"the time budget of {budget:g} s left out {left} of {len(units)} units"
                report.reduced.append(why)
            builder.close()
            self._note_parts()
            self.explain()
        except StoppedError as error:
            self._stop(str(error))
        except KeyboardInterrupt:
            report.interrupted = True
            self._stop("interrupted")

    def _until(self) -> float:
        """When to begin no more units: if some failed, there is to be time to look into them."""
        budget = self.options.time_budget
        if budget is None or not self.builder.failed:
            return self.end
        return self.end - min(self.options.shrink_seconds, _EXPLAIN_SHARE * budget)

    def _stop(self, why: str) -> None:
        """End the run with what is known."""
        self.pool.end()
        self.builder.close()
        self._note_parts()
        total = len(self.pool.units)
        left = total - self.builder.finished
        self.report.reduced.append(f"{why}; {left} of {total} units are not whole")

    def _note_parts(self) -> None:
        """Note which levels are not whole: those with units that were not run to their end."""
        whole, units = self.builder.whole, self.pool.units
        levels = {unit.level for n, unit in enumerate(units) if n not in whole}
        levels.update(self.report.in_part)
        self.report.in_part = [name for name in ladder(self.report.level) if name in levels]
        self.report.left = len(units) - len(whole)

    def on_event(self, event: Event) -> None:
        """Take what happens to a unit."""
        if isinstance(event, Began):
            self.show(event.name)
        elif isinstance(event, Finished):
            self.builder.finish(event, str(self.pool.units[event.unit]))
        elif isinstance(event, Done):
            self.builder.add(event)
            result = event.result
            if isinstance(result, Result) and result.problem is not None:
                self.show(result.name, f"FAIL {result.name}: {result.problem.what}")
            elif isinstance(result, Result):
                self._measure(result.cost)
            self._save()

    def _measure(self, cost: Cost) -> None:
        """Raises SlowError if the first cases show that the device compiles slowly."""
        if not self._measures or not cost.compiled:
            return
        seconds = cost.compiling + cost.first_calls
        self._compile_times.append((seconds / cost.compiled, cost.busy / cost.compiled))
        if len(self._compile_times) < _MEASURED_CASES:
            return
        self._measures = False
        seconds, cpu_seconds = (min(column) for column in zip(*self._compile_times, strict=True))
        if seconds < SLOW_SECONDS and cpu_seconds < SLOW_CPU_SECONDS:
            return
        load = _load()
        if cpu_seconds < SLOW_CPU_SECONDS and load:
            self.show(
                "",
                f"a kernel takes {seconds:.2g} s to compile, {cpu_seconds:.2g} s of it computing,"
                f" and the machine is busy: {load}; if the device is slow on an idle machine too,"
                " use --few-kernels",
            )
            return
        units = self.pool.units
        kernels = sum(_KERNELS.get(unit.level, 0) for unit in units)
        minutes = kernels * seconds / self.pool.jobs / 60
        raise SlowError(
            f"the device takes {seconds:.2g} s to compile a kernel: its cases have few of them,"
            f" and level {self.job.level} ({len(units):,} units, about {kernels:,} kernels)"
            f" will take about {minutes:,.0f} minutes at this rate; use --time-budget or"
            " --fraction for less, --resume to go on"
        )

    def _save(self) -> None:
        """Write a report of what is known, now and then."""
        start = time.monotonic()
        if self.options.report is not None and start - self._saved_at >= self._save_interval:
            self.builder.so_far(self.pool.units).write(self.options.report)
            self._saved_at = time.monotonic()
            self._save_interval = max(_SAVE_INTERVAL, (self._saved_at - start) / _SAVE_SHARE)

    def show(self, doing: str, news: str = "") -> None:
        """Tell how far the run is."""
        builder, total = self.builder, len(self.pool.units)
        running = self.pool.running
        progress = Progress(builder.finished, total, doing, builder.failed, running, news)
        self.options.on_progress(progress)

    def explain(self) -> None:
        """Shrink and locate failures, of ops the first of each, until there are many or time is
        up.
        """
        seconds = min(self.options.shrink_seconds, self.end - time.monotonic())
        failed = {(each.unit, each.item): each for each in self._worth_explaining()}
        if seconds <= 0 or not failed:
            return
        # What hangs takes longest to look into.
        order = sorted(failed.values(), key=lambda each: each.problem.kind == "hang")
        each_seconds = min(seconds, Effort().seconds)
        tasks: deque[Task] = deque(
            Explain(
                each.unit,
                each.item,
                each.problem,
                each.failure.document,
                each_seconds,
                alone=bool(each.problem.log),
            )
            for each in order
        )

        def on_event(event: Event) -> None:
            if isinstance(event, Explained):
                self.builder.explained(failed[event.unit, event.item], event.document)
                if self.journal is not None:
                    number = self.pool.numbers[event.unit]
                    name = event.document["case"]["name"]
                    self.journal.explained(number, name, event.document)
            self.show("shrinking")

        self.show("shrinking")
        until = time.monotonic() + seconds
        self.pool.run(tasks, on_event, lambda: until, self.end)

    def _worth_explaining(self) -> list[FailedItem]:
        """Failures of programs, and of each op the first, that are not expected."""
        expect = self.options.expect or Expectations()
        expected = {
            result.name
            for result in self.report.results
            if result.problem is not None and expect.excuses(result)
        }
        ops: set[str] = set()
        worth: list[FailedItem] = []
        for each in self.builder.failed_items:
            case, document = each.failure.case, each.failure.document
            if is_check(document) or case["op"] in ops or case["name"] in expected:
                continue
            if case["op"] != PROGRAMS:
                ops.add(case["op"])
            if "cause" not in document:  # else the run that this one resumes looked into it
                worth.append(each)
        return worth[:MAX_SHRUNK]


__all__ = [
    "LEVELS",
    "OnProgress",
    "Options",
    "Progress",
    "Report",
    "run",
    "usable_cores",
]

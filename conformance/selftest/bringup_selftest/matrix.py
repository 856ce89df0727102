"""The kill matrix: every fault tried, figures by group, and false positives of right devices."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import median
from typing import Any, TypeVar

from bringup.records import record
from bringup_conformance.execution import levels
from bringup_conformance.reporting.failures import suite_version
from bringup_selftest.control import ControlConfig, clean_run, held
from bringup_selftest.corpus import Fault, faults
from bringup_selftest.killing import Kill, Options
from bringup_selftest.process_pool import examined

_In = TypeVar("_In")
_Out = TypeVar("_Out")
#: Share of each group that has to be killed.
LEAST = 0.95
#: Instructions that the median smallest program of a fusion fault may have.
MOST_SIZE = 4


@record
class Clean:
    """A run of a right device: items, and what failed though nothing is wrong."""

    device: str
    seed: int
    items: int
    failed: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "device": self.device,
            "seed": self.seed,
            "items": self.items,
            "failed": self.failed,
        }


@dataclass(slots=True)
class Matrix:
    """What came of a selftest.

    planned: how many faults are to be tried.  stopped: whether it ended before it was done.
    whole: whether every fault of the corpus was to be tried.
    """

    options: Options
    rows: list[Kill] = field(default_factory=list)
    clean: list[Clean] = field(default_factory=list)
    planned: int = 0
    stopped: bool = False
    whole: bool = True

    @property
    def groups(self) -> dict[str, tuple[int, int]]:
        """Of each group, how many faults were killed, of how many."""
        found: dict[str, tuple[int, int]] = {}
        for row in self.rows:
            killed, tried = found.get(row.group, (0, 0))
            found[row.group] = (killed + row.killed, tried + 1)
        return found

    @property
    def survivors(self) -> list[Kill]:
        """The faults that nothing found."""
        return [row for row in self.rows if not row.killed]

    @property
    def false_positives(self) -> int:
        """Items that failed on right devices."""
        return sum(len(run.failed) for run in self.clean)

    @property
    def median_size(self) -> float | None:
        """Instructions of the smallest programs of fusion faults, in the middle."""
        sizes = [r.size for r in self.rows if r.kind in ("fus", "pass") and r.size is not None]
        return float(median(sizes)) if sizes else None

    def sizes(self, group: str) -> float | None:
        """Of a group, the instructions of the smallest programs, in the middle."""
        sizes = [row.size for row in self.rows if row.group == group and row.size is not None]
        return float(median(sizes)) if sizes else None

    def cases(self, group: str) -> float | None:
        """Of a group, the items until a fault was found, in the middle."""
        cases = [row.cases for row in self.rows if row.group == group and row.killed]
        return float(median(cases)) if cases else None

    @property
    def median_cases(self) -> float | None:
        """Items until a fault was found, in the middle."""
        cases = [row.cases for row in self.rows if row.killed]
        return float(median(cases)) if cases else None

    @property
    def problems(self) -> list[str]:
        """What falls short of the bars."""
        found = ["it was interrupted"] if self.stopped else []
        found += [
            f"{group}: {killed} of {tried} killed, at least {LEAST:.0%} should be"
            for group, (killed, tried) in self.groups.items()
            if killed < LEAST * tried
        ]
        if self.false_positives:
            found.append(f"{self.false_positives} items fail on right devices")
        if self.median_size is not None and self.median_size > MOST_SIZE:
            found.append(f"the median program of fusion faults has {self.median_size:g} ops")
        return found

    def by_level(self, group: str) -> dict[str, int]:
        """Of a group, how many faults each level killed first."""
        found = dict.fromkeys(levels.ladder(self.options.level), 0)
        for row in self.rows:
            if row.group == group and row.killed:
                found[row.level] = found.get(row.level, 0) + 1
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "suite": suite_version(),
            "level": self.options.level,
            "seed": self.options.seed,
            "simulated": self.options.simulated,
            "directed": self.options.directed,
            "whole": self.whole and not self.stopped and len(self.rows) == self.planned,
            "ok": not self.problems,
            "problems": self.problems,
            "killed": sum(row.killed for row in self.rows),
            "tried": len(self.rows),
            "groups": {g: {"killed": k, "tried": n} for g, (k, n) in self.groups.items()},
            "median_size_of_fusion_faults": self.median_size,
            "median_cases_to_kill": self.median_cases,
            "false_positives": self.false_positives,
            "survivors": [row.id for row in self.survivors],
            "clean": [run.to_json() for run in self.clean],
            "rows": [row.to_json() for row in self.rows],
        }


#: Faults of each sort that are soon found, and the cases that find them: for every change.
FAST = (
    "IX07", "MT02", "DT02", "SV04c", "IN03", "RD12", "BR01", "GS05", "SO05", "CV04", "DO01", "FP06",
    "CA01", "FU04", "FU10", "FU14", "BF08b", "SV08", "FU24", "CF05",
)  # fmt: skip
FAST_CASES = "smoke,ops/f32,ops/i32,ops/i64,fusion/hazard/f32"


def fast() -> list[Fault]:
    """A few faults of each group that small runs find."""
    return [fault for fault in faults() if fault.id in FAST]


def selected(only: str) -> list[Fault]:
    """The faults of a comma-separated list of ids, groups and kinds; all for nothing."""
    words = [word.strip().lower() for word in only.split(",") if word.strip()]

    def wanted(fault: Fault) -> bool:
        names = (fault.id.lower(), fault.kind)
        return any(w in names or fault.group.lower().startswith(w) for w in words)

    return [fault for fault in faults() if not words or wanted(fault)]


def run(
    chosen: Sequence[Fault],
    options: Options,
    jobs: int,
    seeds: int,
    backends: Sequence[str],
    on_row: Callable[[Matrix], None],
) -> Matrix:
    """Try faults, and run right devices: those the faults are injected into, and installed ones.

    seeds: of the runs of right devices; the first is of the options.  on_row: told of each fault
    and clean run as it is done.  An interrupt ends it; then it is not whole.  Raises BackendError.
    """
    made = Matrix(options, planned=len(chosen))
    order = {fault.id: number for number, fault in enumerate(chosen)}
    configs = dict.fromkeys(options.config(fault) for fault in chosen)
    wanted = range(options.seed, options.seed + seeds)
    every = [replace(config, seed=seed) for config in configs for seed in wanted]
    try:
        for row in examined(chosen, options, jobs):
            made.rows.append(row)
            made.rows.sort(key=lambda each: order[each.id])
            on_row(made)
        for run in chain(
            _mapped(_clean, every, jobs),
            (of_backend(name, options.level, seed) for name in backends for seed in wanted),
        ):
            made.clean.append(run)
            on_row(made)
    except KeyboardInterrupt:
        made.stopped = True
    return made


def _mapped(function: Callable[[_In], _Out], given: Sequence[_In], jobs: int) -> Iterator[_Out]:
    if jobs < 2 or "fork" not in multiprocessing.get_all_start_methods():
        yield from map(function, given)
        return
    # Forked, so that the workers have the controls.
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap(function, given)


def _clean(config: ControlConfig) -> Clean:
    control = held(config) or clean_run(config)
    failed = tuple(f"{control.items[n].name}: {what}" for n, what in control.failed.items())
    name = f"reference at depth {config.depth}{', late' if config.asynchronous else ''}"
    return Clean(name, config.seed, len(control.items), failed)


def of_backend(name: str, level: str, seed: int) -> Clean:
    """A clean run of an installed device.  Raises BackendError."""
    from bringup_conformance.execution.runner import run as run_suite

    report = run_suite(name, level, seed, shrink_seconds=0)
    failed = tuple(f"{r.name}: {r.problem.what}" for r in report.results if r.problem is not None)
    return Clean(name, seed, len(report.results), failed)

"""Mutants tried one by one: a clean run that notes which items meet them, then those items again
with the mistake.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

from bringup.backend.capabilities import Capabilities
from bringup.errors import BringupError, DeviceError
from bringup.graph import Graph
from bringup.records import record
from bringup_conformance.cases import Case, Check, NotOffered, Problem
from bringup_conformance.execution.processes import OPENING
from bringup_conformance.execution.protocol import Job
from bringup_conformance.execution.running import run_item
from bringup_conformance.execution.schedule import Schedule
from bringup_conformance.execution.targets import DeviceTarget, Runnable, missing_from
from bringup_conformance.generate.choices import Stream
from bringup_selftest.killing import Kill
from bringup_selftest.mutants import source
from bringup_selftest.mutants.mutant import Kind, Mutant
from bringup_selftest.process_pool import Trial, lost, watched

# What core says of a module that LLVM does not take: no emitter with such a mistake is ever used.
# Said too of a function that does not take the changed code.
_REFUSED = "LLVM refused a module"
#: Seconds of silence after which an item hangs.
_PATIENCE = 30.0
#: Bytes of address space of a process with a mutant.
_MEMORY = 16 << 30


@record
class Asked:
    """What is tried.

    kinds: of mutants.  sample: how many of each, chosen by the seed; 0 for all.  seconds: that a
    mutant is tried for.
    """

    backend: str
    job: Job
    kinds: tuple[Kind, ...]
    sample: int
    seconds: float
    jobs: int


@dataclass(slots=True)
class Clean:
    """A clean run, or a part of one.

    seconds: of each item.  failed: what was wrong with those that failed.  lines, emitted: the
    items that ran a line or emitted what may be mutated, as the bits of an integer, by module and
    line or by mutant.
    """

    seconds: dict[int, float] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    lines: dict[tuple[str, int], int] = field(default_factory=dict)
    emitted: dict[Mutant, int] = field(default_factory=dict)

    def add(self, other: Clean) -> None:
        """Take in a part of other items."""
        self.seconds |= other.seconds
        self.failed |= other.failed
        for line, items in other.lines.items():
            self.lines[line] = self.lines.get(line, 0) | items
        for mutant, items in other.emitted.items():
            self.emitted[mutant] = self.emitted.get(mutant, 0) | items

    def items(self, mutant: Mutant) -> list[int]:
        """The items that meet a mutant and pass without it, the cheapest first."""
        if mutant.kind == "source":
            met = self.lines.get((mutant.module, mutant.line), 0)
        else:
            met = self.emitted.get(mutant, 0)
        numbers = [n for n in self.seconds if met >> n & 1 and n not in self.failed]
        return sorted(numbers, key=self.seconds.__getitem__)


@dataclass(slots=True)
class Tried:
    """What came of it.

    of: how many mutants there are.  failed: what was wrong with the items that fail without any, by
    name; they are left out.  unmet: the mutants that no item meets.  refused: those whose text LLVM
    does not take, or whose code Python does not; they say nothing.  rows: of the others.
    """

    of: int
    failed: dict[str, str]
    unmet: list[Mutant] = field(default_factory=list)
    refused: int = 0
    rows: list[Kill] = field(default_factory=list)

    def by_rule(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Of each kind and rule, how many were killed, of how many."""
        tried = Counter((row.kind, row.group) for row in self.rows)
        killed = Counter((row.kind, row.group) for row in self.rows if row.killed)
        return {each: (killed[each], tried[each]) for each in sorted(tried)}

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "of": self.of,
            "failed": self.failed,
            "killed": sum(row.killed for row in self.rows),
            "tried": len(self.rows),
            "refused": self.refused,
            "unmet": [asdict(mutant) for mutant in self.unmet],
            "rows": [row.to_json() for row in self.rows],
        }


class _Declared:
    """A device that is open in another process: what cases are made for."""

    def __init__(self, name: str) -> None:
        nothing: Capabilities | BringupError = Capabilities()
        trial = Trial(nothing, partial(_opened, name), _lost)
        (found,) = watched([trial], 1, OPENING)
        if isinstance(found, BringupError):
            raise found
        self.name = name
        self.capabilities = found
        self.passes = ()

    def missing(self, graph: Graph) -> str | None:
        """By its declaration."""
        return missing_from(self.capabilities, graph)

    def compile(self, graph: Graph, **_options: Any) -> Runnable:
        """Nothing runs on it."""
        raise NotImplementedError


def _opened(
    name: str, row: Capabilities | BringupError
) -> Iterator[tuple[Capabilities | BringupError, bool]]:
    try:
        row = DeviceTarget.named(name).capabilities
    except BringupError as error:
        row = error
    yield row, True


def tried(asked: Asked, modules: Mapping[str, Path], on_row: Callable[[Tried], None]) -> Tried:
    """Try a sample of the mutants of some modules.  on_row: hears of each as it is done.

    Raises BackendError if the device cannot be opened, DeviceError if a run without any mistake
    ends its process, BringupError where processes cannot be forked.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        raise BringupError(
            "mutants are tried in forked processes, which this system does not have",
            fix="run it on Linux or macOS",
        )
    schedule = Schedule(_Declared(asked.backend), asked.job)
    made = (item for number in range(len(schedule.units)) for item in schedule.items(number))
    items = [item for item in made if isinstance(item, Case | Check)]
    parts = [range(part, len(items), asked.jobs) for part in range(asked.jobs)]
    runs = (Trial(Clean(), partial(_run, asked, items, modules, part), _lost) for part in parts)
    clean = Clean()
    for each in watched(runs, asked.jobs, _PATIENCE):
        clean.add(each)
    every: list[Mutant] = []
    if "source" in asked.kinds:
        entered = {name for name, _line in clean.lines}  # the others are those of other devices
        for name in entered.intersection(modules):
            every += source.mutants(name, modules[name])
        every.sort(key=lambda m: (m.module, m.line))
    every += sorted(clean.emitted, key=lambda m: (m.module, m.line, m.rule, m.change))
    found = Tried(len(every), {items[n].name: what for n, what in clean.failed.items()})
    on_row(found)
    chosen = [
        mutant
        for kind in asked.kinds
        for mutant in _sampled([m for m in every if m.kind == kind], asked.sample, asked.job.seed)
    ]
    found.unmet = [mutant for mutant in chosen if not clean.items(mutant)]
    trials = (
        Trial(
            _row(number, each), partial(_try, asked, _wanted(asked, items, clean, each), each), lost
        )
        for number, each in enumerate(chosen, 1)
        if each not in found.unmet
    )
    for row in watched(trials, asked.jobs, _PATIENCE):
        if _REFUSED in row.what:
            found.refused += 1
        else:
            found.rows.append(row)
        on_row(found)
    found.rows.sort(key=lambda row: row.id)
    return found


def _lost(_row: Any, kind: str, what: str) -> NoReturn:
    raise DeviceError(f"a run without any mistake ends its process ({kind}): {what}")


def _wanted(
    asked: Asked, items: Sequence[Case | Check], clean: Clean, mutant: Mutant
) -> list[Case | Check]:
    """The items that a mutant is tried on.

    What is made once in a process, such as code that launches programs, is met by the first item
    of each alone, and used by all: then these are followed by level smoke and the checks.
    """
    met = clean.items(mutant)
    if len(met) <= asked.jobs:
        later = (n for n, x in enumerate(items) if isinstance(x, Check) or x.level == "smoke")
        met += [n for n in later if n not in (*met, *clean.failed)]
    return [items[n] for n in met]


def _sampled(every: Sequence[Mutant], wanted: int, seed: int) -> list[Mutant]:
    """Some of the mutants, in their order."""
    if not wanted or wanted >= len(every):
        return list(every)
    order = sorted(range(len(every)), key=lambda n: Stream(seed, "mutant", n).integer(0, 1 << 62))
    return [every[n] for n in sorted(order[:wanted])]


def _row(number: int, mutant: Mutant) -> Kill:
    title = f"{mutant.module}:{mutant.line}: {mutant.change}"
    return Kill(f"{number:05}", mutant.rule, mutant.kind, title, killed=True)


@contextmanager
def _own_cache() -> Iterator[None]:
    """Nothing compiled here is found by another process: it may be wrong."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"XDG_CACHE_HOME": folder, "LOCALAPPDATA": folder, "BRINGUP_EMIT": "1"}
        yield


def _run(
    asked: Asked,
    items: Sequence[Case | Check],
    modules: Mapping[str, Path],
    part: range,
    found: Clean,
) -> Iterator[tuple[Clean, bool]]:
    """Run some items, and note what of the modules each runs and emits."""
    emits = "emitted" in asked.kinds
    noting = _planting("emitted").noted() if emits else nullcontext(set())
    # Threads of the device are noted too, if they start in here.
    with _own_cache(), _lines(modules) as lines, noting as mutants:
        target = DeviceTarget.named(asked.backend)
        for number in part:
            lines.clear()
            mutants.clear()
            start = time.perf_counter()
            problem = _problem(target, items[number])
            found.seconds[number] = time.perf_counter() - start
            if problem is not None:
                found.failed[number] = problem.what
            bit = 1 << number
            for line in lines:
                found.lines[line] = found.lines.get(line, 0) | bit
            for mutant in mutants:
                if mutant.module in modules:
                    found.emitted[mutant] = found.emitted.get(mutant, 0) | bit
            yield Clean(), False  # a sign of life
        yield found, True


@contextmanager
def _lines(modules: Mapping[str, Path]) -> Iterator[set[tuple[str, int]]]:
    """The lines of some modules that run inside, in threads that are started there too."""
    names = {str(file): name for name, file in modules.items()}
    found = set[tuple[str, int]]()

    def line(frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "line":
            found.add((names[frame.f_code.co_filename], frame.f_lineno))
        return line

    def call(frame: FrameType, _event: str, _arg: Any) -> Any:
        return line if frame.f_code.co_filename in names else None

    sys.settrace(call)
    threading.settrace(call)
    try:
        yield found
    finally:
        sys.settrace(None)
        threading.settrace(None)


def _problem(target: DeviceTarget, item: Case | Check) -> Problem | None:
    with suppress(NotOffered):
        return run_item(target, item).problem
    return None


def _try(
    asked: Asked, items: Sequence[Case | Check], mutant: Mutant, row: Kill
) -> Iterator[tuple[Kill, bool]]:
    """Inject a mutant and run what meets it until something fails, as `killing.examine` does."""
    import resource  # which systems have that have fork

    # A wrong size may be any: it must not take the machine's memory.
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    start = time.monotonic()
    row = replace(row, level="open", item="opening", cases=len(items))
    yield row, False
    with ExitStack() as stack:
        stack.enter_context(_own_cache())
        try:
            stack.enter_context(_planting(mutant.kind).planted(mutant))
        except ValueError:  # the function has other variables of outer scopes then
            yield replace(row, what=_REFUSED), True
            return
        try:
            target = DeviceTarget.named(asked.backend)
        except Exception as error:  # noqa: BLE001  (whatever a wrong backend raises is found)
            yield replace(row, problem="crash", what=str(error)[:300]), True
            return
        for met, item in enumerate(items, 1):
            if time.monotonic() - start > asked.seconds:
                break
            row = replace(row, level=item.level, item=item.name, met=met)
            yield row, False
            problem = _problem(target, item)
            if problem is not None and (isinstance(item, Case) or _problem(target, item)):
                yield replace(row, problem=problem.kind, what=problem.what[:300]), True
                return
        yield replace(row, killed=False), True


def _planting(kind: Kind) -> ModuleType:
    """The module that plants a kind of mutants, imported where it is needed: `bringup.llvm` is for
    backends alone.
    """
    return import_module(f"bringup_selftest.mutants.{kind}")

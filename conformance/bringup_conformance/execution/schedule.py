"""Which units a run holds, and what comes of each item of a unit."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeVar

from bringup_conformance.cases import PROGRAMS, Check, NotOffered, Outcome, Problem, Unsupported
from bringup_conformance.execution import levels
from bringup_conformance.execution.levels import SPECIAL
from bringup_conformance.execution.plan import Item, Plan, Unit, budget_of
from bringup_conformance.execution.protocol import Began, Done, Finished, Work
from bringup_conformance.execution.running import run_item, told
from bringup_conformance.execution.selection import Selection
from bringup_conformance.execution.spent import NOTHING, Spent
from bringup_conformance.execution.support import Support
from bringup_conformance.execution.targets import DeviceTarget, Target
from bringup_conformance.generate.choices import Stream
from bringup_conformance.oracle.verdict import Verdict
from bringup_conformance.reporting import failures
from bringup_conformance.reporting.environment import product
from bringup_conformance.reporting.failures import TIMEOUT
from bringup_conformance.reporting.results import Place, lost, result_of
from bringup_conformance.rules.carried import broken

T = TypeVar("T")
#: What is said of a unit while it runs.
Event = Began | Done | Finished


@dataclass(frozen=True, slots=True)
class Job:
    """What is run.

    fraction: see `chosen`.  timeout: seconds without a sign of life.  few: few kernels in a case,
    see `plan.budget_of`.
    """

    level: str
    seed: int = 0
    only: str = ""
    fraction: tuple[int, int] | None = None
    timeout: float = TIMEOUT
    few: bool = False


def plan_of(target: Target, seed: int, few: bool = False) -> Plan:
    """The plan that a device's declaration and a seed make."""
    capabilities = target.capabilities
    return Plan(capabilities, Support(target.missing), seed, budget_of(capabilities, few))


class Schedule:
    """The units of a run on a device, in order; equal in every process.

    numbers: of each unit in the whole level.  of: how many that has.
    """

    def __init__(self, target: Target, job: Job) -> None:
        self.target = target
        self.job = job
        self.selection = Selection(job.only)
        plan = plan_of(target, job.seed, job.few)
        every = [u for name in levels.ladder(job.level) for u in levels.units(plan, name)]
        wanted = [n for n, unit in enumerate(every) if self.selection.reaches(unit)]
        if job.fraction is not None:
            wanted = chosen(wanted, job.fraction, job.seed)
        self.numbers, self.of = tuple(wanted), len(every)
        self.units = [every[n] for n in wanted]

    def items(self, number: int) -> Iterator[Item]:
        """The items wanted of a unit."""
        return (item for item in self.units[number].make() if self.selection.admits(item))

    def run(self, work: Work) -> Iterator[Event]:
        """Run items of a unit; see `Work`."""
        made = iter(self.items(work.unit))
        for number in count():
            try:
                item = next(made, None)
            except Exception as error:  # noqa: BLE001  (a unit that cannot be made is not the run)
                problem = Problem("crash", f"making cases: {told(error)}")
                found = lost(place_of(self.units[work.unit]), problem, self._run())
                yield Done(work.unit, number, found)
                item = None
            if item is None:
                yield Finished(work.unit)
                return
            if number >= work.first:
                known = work.problem if number == work.first else None
                yield from self._run_item(work.unit, number, item, known)
                if work.last:
                    yield Finished(work.unit, left_out=True)
                    return

    def _run(self) -> failures.Run:
        return failures.Run(self.target.name, self.job.seed, product(self.target), self.job.timeout)

    def _run_item(
        self, unit: int, place: int, item: Item, problem: Problem | None
    ) -> Iterator[Event]:
        if isinstance(item, Unsupported):
            yield Done(unit, place, item)
            return
        yield Began(unit, place, item.name)
        start, before = time.perf_counter(), spent_by(self.target)
        try:
            if problem is None:
                outcome = run_item(self.target, item)
            else:
                known = replace(problem, rules=broken(problem, item.rules))
                outcome = Outcome(item, Verdict(), known)
        except NotOffered as error:
            found = Unsupported(item.name, item.level, item.op, item.dtype, str(error))
            yield Done(unit, place, found)
            return
        seconds, document = time.perf_counter() - start, None
        if outcome.problem is not None:
            document = failures.document(outcome, self._run())
        spent = spent_by(self.target) - before
        if isinstance(item, Check):
            spent = replace(spent, compiling=0.0, running=0.0, checking=seconds)
        yield Done(unit, place, result_of(outcome, seconds, document, spent))


def spent_by(target: Target) -> Spent:
    """What a target's programs cost so far; nothing of what does not count it."""
    return target.spent if isinstance(target, DeviceTarget) else NOTHING


def chosen(units: list[T], fraction: tuple[int, int], seed: int) -> list[T]:
    """Part i of N, counted from 1: every N-th of the units in an order that the seed makes, so
    that the parts are alike and together are all.
    """
    part, parts = fraction
    order = _shuffled(len(units), seed, "fraction")
    return [units[place] for place in sorted(order[part - 1 :: parts])]


#: Dtypes of ops in the order in which they see most faults: constants, counters and temporary
#: values that are too narrow show in the widest ones alone.
_TELLING = (
    "f64", "i64", "f32", "i32", "f16", "u64", "bf16", "u32", "i16", "u8", "bool", "u16", "i8",
)  # fmt: skip


def thinned(places: Sequence[Place], seed: int) -> list[int]:
    """The numbers of all units, in an order that may end anywhere: after level smoke, and the first
    of every other level and op, about the same share of each is done at any time.

    Of an op, dtypes that see most come first, and of each its special cells, which cost little; of
    programs those that hold a hazard, then those of many parts and of public functions, which cost
    much, then random ones.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for number in _shuffled(len(places), seed, "thinned"):
        groups.setdefault((places[number].level, places[number].op), []).append(number)
    shares = {
        number: rank / len(group) if level != "smoke" else 0.0
        for (level, _), group in groups.items()
        for rank, number in enumerate(sorted(group, key=lambda n: _telling(places[n])))
    }
    return sorted(shares, key=shares.__getitem__)


def _telling(place: Place) -> tuple[int, bool]:
    if place.op == PROGRAMS:
        first, *more = place.number.split("-")
        random = first.isdigit() or first == "mapped"
        return 1 + random if random or (more and first in ("many", "public")) else 0, False
    known = place.level == "ops" and place.dtype in _TELLING
    rank = _TELLING.index(place.dtype) if known else len(_TELLING)
    return rank, place.number != levels.SPECIAL


def _shuffled(count: int, *key: int | str) -> list[int]:
    stream = Stream(*key)
    places = list(range(count))
    for last in range(count - 1, 0, -1):
        other = stream.integer(0, last)
        places[last], places[other] = places[other], places[last]
    return places


def place_of(unit: Unit) -> Place:
    """What a unit is called."""
    return Place(unit.level, unit.op, unit.dtype, unit.number)


#: Random programs in one test.
CHUNK = 25
_NUMBERED = re.compile(r"(?:(.+)-)?(\d+)")


@dataclass(frozen=True, slots=True)
class Part:
    """Some items of a run.

    name: unique in a run and the same in every process, such as ``ops/add/f32/special``.  works:
    what a worker does for it: whole units, or items of one.
    """

    name: str
    works: tuple[Work, ...]


def parts_of(schedule: Schedule) -> list[Part]:
    """The tests of a run, in its order: of rows one for each feature (values, special, mapped, …),
    of what has a name of its own one each, of random programs one for some of them.
    """
    found: dict[str, list[Work]] = {}
    for number, unit in enumerate(schedule.units):
        place = "/".join(filter(None, (unit.level, unit.op, unit.dtype)))
        numbered = _NUMBERED.fullmatch(unit.number)
        if unit.op == PROGRAMS and numbered:
            first = int(numbered[2]) // CHUNK * CHUNK
            name = f"{place}/{numbered[1] or 'random'}/{first:04}"
            found.setdefault(name, []).append(Work(number))
        elif unit.number and unit.number != SPECIAL:  # of which a device may ask for none
            found.setdefault(f"{place}/{unit.number}", []).append(Work(number))
        else:
            for which, item in enumerate(schedule.items(number)):
                name = f"{place}/{feature_of(unit, item)}"
                found.setdefault(name, []).append(Work(number, which, last=True))
    return [Part(name, tuple(works)) for name, works in found.items()]


def feature_of(unit: Unit, item: Item) -> str:
    """What an item is about, besides level, op and dtype: the word after them, or ``values``."""
    place = "/".join(filter(None, (unit.level, unit.op, unit.dtype)))
    word = item.name.removeprefix(place).strip("/").partition("/")[0]
    return word if word and not word.isdigit() else "values"

"""The units of a run: which there are, in which order they run, and the result of each item."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import count
from typing import TypeVar

from bringup.dtypes import BY_NAME
from bringup.ops.table import all_ops
from bringup_conformance.cases import (
    PROGRAMS,
    Case,
    Check,
    NotOffered,
    Outcome,
    Problem,
    Unsupported,
)
from bringup_conformance.execution import levels
from bringup_conformance.execution.cost import NO_COST, Cost
from bringup_conformance.execution.levels import APART, LEVELS, SPECIAL
from bringup_conformance.execution.plan import Item, Plan, Unit, UnitId, budget_of
from bringup_conformance.execution.protocol import (
    Began,
    Done,
    Explain,
    Explained,
    Finished,
    Job,
    UnitEvent,
    Work,
)
from bringup_conformance.execution.running import error_text, run_case, run_item
from bringup_conformance.execution.support import Support
from bringup_conformance.execution.targets import DeviceTarget, Target
from bringup_conformance.generate.choices import Stream
from bringup_conformance.oracle.verdict import Verdict
from bringup_conformance.reporting import failures
from bringup_conformance.reporting.environment import product
from bringup_conformance.reporting.results import lost, result_of
from bringup_conformance.rules.carried import broken

T = TypeVar("T")

# Words that select cases of a unit by what is known only when they are made, and what they select.
_TAGS_OF_ROWS = {
    "special": "special cells of an op: NaN, infinities, both zeros, limits",
    "twins": "one operand under all values of an attribute in one program",
    "mapped": "an op, or a random program, on many examples at once by vmap",
    "deep": "an op at the largest number of dimensions that a device takes",
    "derivatives": "the derivatives of an op, which ask the device nothing",
}
_TAGS_OF_PROGRAMS = {
    "hazard": "a program that holds one hazard of fusion",
    "pair": "one way of reading operands with one use of what is read",
    "ladder": "programs of many inputs, outputs, launches, branches and so on",
    "public": "what examples call of functions; array.cumsum, nn.softmax choose one",
    "exact": "random programs on numbers of which every order gives the same bits",
    "bounded": "random programs on numbers whose results have bounds",
}
_TAGS_OF_EXHAUSTIVE = {
    "every": "all values of a dtype of 16 bits or fewer",
    "spaced": "values at equal distances through a wider dtype",
    "pairs": "all pairs of values of 8 bits",
    "chain": "conversions through every dtype to every other",
    "heavy": "arrays past 2^31 bytes",
}
#: The tags of cases, with what they select.
TAGS = {**_TAGS_OF_ROWS, **_TAGS_OF_PROGRAMS, **_TAGS_OF_EXHAUSTIVE}
# Levels whose units do not know the names and tags of their items.
_LEVELS_OF_CHECKS = ("runtime", "exhaustive")


class Selection:
    """Terms separated by commas, each of words separated by slashes; empty for everything.

    A case is selected if all words of a term are its level, op, kind of op, dtype, number, a tag
    (see `TAGS`) or a rule: ``fusion``, ``add/f32``, ``reduction``, ``exp/special``, ``f16,bf16``.
    The name of a case selects it alone.

    >>> from bringup_conformance.cases import Unsupported
    >>> case = Unsupported("ops/exp/f32", "ops", "exp", "f32", "no exp")
    >>> Selection("exp/f32").admits(case), Selection("f16,exp").admits(case)
    (True, True)
    >>> Selection("exp/f16").admits(case)
    False
    """

    def __init__(self, text: str = "") -> None:
        terms = (frozenset(filter(None, t.strip().split("/"))) for t in text.split(","))
        self.terms = tuple(term for term in terms if term)

    def admits(self, item: Item) -> bool:
        """Whether a case is selected."""
        more = () if isinstance(item, Unsupported) else (*item.tags, *item.rules)
        words = {*item.name.split("/"), *more}
        return not self.terms or any(term <= words for term in self.terms)

    def reaches(self, unit: Unit) -> bool:
        """Whether a case of a unit may be selected, as far as is known before it is made."""
        return not self.terms or any(all(_may_match(w, unit) for w in t) for t in self.terms)


def _may_match(word: str, unit: Unit) -> bool:
    if word in (unit.level, unit.op, unit.dtype, unit.number, unit.kind):
        return True
    if "." in word:  # a rule: any case may show that it holds
        return True
    is_level = word in (*LEVELS, *APART)
    if unit.level in _LEVELS_OF_CHECKS:
        return not is_level and (word not in BY_NAME or not unit.dtype)
    if unit.op == PROGRAMS and not unit.number:  # a few cases with names of their own
        return not is_level and word not in BY_NAME
    if word in BY_NAME:
        return not unit.dtype
    if unit.op == PROGRAMS:
        return (
            word in _TAGS_OF_PROGRAMS
            or word in unit.number.split("-")
            or word.startswith(f"{unit.number}-")  # the name of one of its cases
        )
    return word.partition("-")[0] in _TAGS_OF_ROWS or (word.isdigit() and not unit.number)


def resembling(text: str) -> list[str]:
    """Words that the author of a selection may have intended, where it selects nothing.

    >>> resembling("sinn/f32")
    ['sin', 'sinh', 'sign']
    """
    kinds = {row.kind.value for row in all_ops()}
    ops = (row.name for row in all_ops())
    known = [*LEVELS, *APART, PROGRAMS, *ops, *kinds, *BY_NAME, *TAGS]
    words = [word.strip() for term in text.split(",") for word in term.split("/")]
    unknown = [word for word in words if word not in known]
    return [name for word in unknown for name in get_close_matches(word, known)]


def plan_of(target: Target, seed: int, few: bool = False) -> Plan:
    """The plan that follows from a device's declaration and a seed."""
    capabilities = target.capabilities
    return Plan(capabilities, Support(target.missing), seed, budget_of(capabilities, few))


class Schedule:
    """The units of a run on a device, in order; equal in every process.

    numbers: of each unit in the whole level.  level_size: how many units the whole level has.
    """

    def __init__(self, target: Target, job: Job) -> None:
        self.target = target
        self.job = job
        self.selection = Selection(job.only)
        plan = plan_of(target, job.seed, job.few)
        every = [u for name in levels.ladder(job.level) for u in levels.units(plan, name)]
        numbers = [n for n, unit in enumerate(every) if self.selection.reaches(unit)]
        if job.fraction is not None:
            numbers = chosen(numbers, job.fraction, job.seed)
        self.numbers, self.level_size = tuple(numbers), len(every)
        self.units = [every[n] for n in numbers]
        self.unit_ids = tuple(unit.id for unit in self.units)

    def items(self, unit: int) -> Iterator[Item]:
        """The selected items of a unit."""
        return (item for item in self.units[unit].make() if self.selection.admits(item))

    def run(self, work: Work) -> Iterator[UnitEvent]:
        """Run items of a unit, see `Work`; yields what happens."""
        items = iter(self.items(work.unit))
        for number in count():
            try:
                item = next(items, None)
            except Exception as error:  # noqa: BLE001  (a unit that cannot be made is not the run)
                problem = Problem("crash", f"making cases: {error_text(error)}")
                yield Done(work.unit, number, lost(self.unit_ids[work.unit], problem, self._run()))
                item = None
            if item is None:
                yield Finished(work.unit)
                return
            if number >= work.first:
                problem_met = work.problem if number == work.first else None
                yield from self._run_item(work.unit, number, item, problem_met)
                if work.last:
                    yield Finished(work.unit, left_out=True)
                    return

    def _run(self) -> failures.Run:
        return failures.Run(self.target.name, self.job.seed, product(self.target), self.job.timeout)

    def _run_item(
        self, unit: int, number: int, item: Item, problem: Problem | None
    ) -> Iterator[UnitEvent]:
        """Run an item.  problem: how it ended a process, in which case it is not run again."""
        if isinstance(item, Unsupported):
            yield Done(unit, number, item)
            return
        yield Began(unit, number, item.name)
        start, cost_before = time.perf_counter(), cost_so_far(self.target)
        try:
            if problem is None:
                outcome = run_item(self.target, item)
            else:
                problem = replace(problem, rules=broken(problem, item.rules))
                outcome = Outcome(item, Verdict(), problem)
        except NotOffered as error:
            reason = Unsupported(item.name, item.level, item.op, item.dtype, str(error))
            yield Done(unit, number, reason)
            return
        seconds = time.perf_counter() - start
        document = None
        if outcome.problem is not None:
            document = failures.document(outcome, self._run())
        cost = cost_so_far(self.target) - cost_before
        if isinstance(item, Check):
            cost = replace(cost, compiling=0.0, running=0.0, checking=seconds)
        yield Done(unit, number, result_of(outcome, seconds, document, cost))

    def explain(self, task: Explain, target: Target) -> Explained:
        """Shrink and locate a failure.  target: where its programs run."""
        from bringup_conformance.diagnosis.investigate import diagnosed  # few runs need it
        from bringup_conformance.diagnosis.shrinker import Effort

        numbered = enumerate(self.items(task.unit))
        case = next(item for number, item in numbered if number == task.item)
        assert isinstance(case, Case)
        document = task.document
        outcome = Outcome(case, Verdict(), task.problem)
        if task.alone:  # only how it ended is known, not which of its runs did
            outcome = run_case(target, case)
        problem = outcome.problem
        if problem is None:
            document = {**document, "alone": "passes"}
        elif problem.kind == task.problem.kind == "hang" and not problem.alike(task.problem):
            document = {**document, "alone": f"hangs elsewhere: {problem.what}"}
        else:
            effort = Effort(seconds=task.seconds)
            document = diagnosed(target, outcome, document, effort, self.job.timeout)
        return Explained(task.unit, task.item, document)


def cost_so_far(target: Target) -> Cost:
    """What the programs of a target cost so far; nothing for a target that does not count it."""
    return target.cost if isinstance(target, DeviceTarget) else NO_COST


def chosen(units: list[T], fraction: tuple[int, int], seed: int) -> list[T]:
    """Part i of N, counted from 1: every N-th of the units in an order that the seed makes, so
    that the parts are similar and together complete.
    """
    part, parts = fraction
    order = _shuffled(len(units), seed, "fraction")
    return [units[index] for index in sorted(order[part - 1 :: parts])]


#: Dtypes of ops in the order in which they show most faults: constants, counters and temporary
#: values that are too narrow show in the widest ones alone.
_TELLING_DTYPES = (
    "f64", "i64", "f32", "i32", "f16", "u64", "bf16", "u32", "i16", "u8", "bool", "u16", "i8",
)  # fmt: skip


def sampled_order(units: Sequence[UnitId], seed: int) -> list[int]:
    """The numbers of all units, in an order that may end anywhere: after level smoke, and the first
    of every other level and op, about the same share of each is done at any time.

    Of an op, the dtypes that show most faults come first, and of each its special cells, which cost
    little.  Of programs, those with a hazard come first, then those of many parts and of public
    functions, which cost much, then random ones.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for number in _shuffled(len(units), seed, "thinned"):
        groups.setdefault((units[number].level, units[number].op), []).append(number)
    shares = {
        number: rank / len(group) if level != "smoke" else 0.0
        for (level, _), group in groups.items()
        for rank, number in enumerate(sorted(group, key=lambda n: _priority(units[n])))
    }
    return sorted(shares, key=shares.__getitem__)


def _priority(unit: UnitId) -> tuple[int, bool]:
    """Sorts units of one level and op: those that show most faults first."""
    if unit.op == PROGRAMS:
        first, *more = unit.number.split("-")
        if first.isdigit() or first == "mapped":
            return 2, False
        return int(bool(more) and first in ("many", "public")), False
    known = unit.level == "ops" and unit.dtype in _TELLING_DTYPES
    rank = _TELLING_DTYPES.index(unit.dtype) if known else len(_TELLING_DTYPES)
    return rank, unit.number != SPECIAL


def _shuffled(length: int, *key: int | str) -> list[int]:
    stream = Stream(*key)
    order = list(range(length))
    for last in range(length - 1, 0, -1):
        other = stream.integer(0, last)
        order[last], order[other] = order[other], order[last]
    return order

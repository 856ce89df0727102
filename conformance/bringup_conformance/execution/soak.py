"""Level soak: random programs without end, led to where the device comes near its bounds.

Hypothesis draws every decision of the generator that level fusion answers from a seed, and climbs
towards larger errors in shares of their bounds, more scratch memory and more kernels.  What it
finds worth keeping stays in a folder, the corpus, from which a later run goes on:

    examples/     Hypothesis's own database
    best.json     the programs of the highest scores, which a later run starts with, and how far
                  this one got

What fails is written down as a failure of any other level is, and made small by the same reducer;
Hypothesis never sees it fail, since it would spend the rest of the run on that one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis.database import DirectoryBasedExampleDatabase

from bringup.errors import BringupError
from bringup.graph import Graph
from bringup.runtime.compiler import lower_graph
from bringup_conformance.cases import Case, Outcome, instructions
from bringup_conformance.diagnosis.investigate import diagnosed
from bringup_conformance.diagnosis.shrinker import Effort
from bringup_conformance.execution.isolated import Isolated
from bringup_conformance.execution.merging import Merge
from bringup_conformance.execution.plan import Plan
from bringup_conformance.execution.protocol import Done, Finished
from bringup_conformance.execution.running import run_case
from bringup_conformance.execution.schedule import plan_of
from bringup_conformance.execution.targets import DeviceTarget, Target
from bringup_conformance.generate.choices import derive
from bringup_conformance.generate.drawn import Settings, programs
from bringup_conformance.generate.programs import Program, usable_dtypes
from bringup_conformance.reporting import failures
from bringup_conformance.reporting.environment import environment
from bringup_conformance.reporting.failures import (
    TIMEOUT,
    case_from_json,
    case_to_json,
    suite_version,
)
from bringup_conformance.reporting.reports import Report
from bringup_conformance.reporting.results import result_of

LEVEL = "soak"
#: Programs of one round, after which Hypothesis begins anew from the corpus.
ROUND = 200
#: Instructions from which on the share of a bound is climbed towards: single ones are for level
#: exhaustive, and a climb would never leave them.
FUSED = 4
#: The score that errors make.
SHARE = "share of the bound"
#: Failures after which no more is looked for, and those that are made small.
MOST_FAILURES, MOST_SHRUNK = 50, 12

#: Is given what came of a program, and the seconds it took.
Take = Callable[[Outcome, float], None]
#: Other scores of a program, by name.
Costs = Callable[[Graph], dict[str, float]]


class _OverError(KeyboardInterrupt):
    """Time is up.  Hypothesis passes an interrupt on, and takes anything else for a failure."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a search ends.  until: by `time.monotonic`.  most: programs that are drawn, about."""

    until: float = float("inf")
    most: float = float("inf")


def run(
    target: Target,
    seed: int = 0,
    *,
    apart: bool = False,
    limits: Limits | None = None,
    timeout: float = TIMEOUT,
    corpus: Path | None = None,
    report: Path | None = None,
    shrink_seconds: float = 90.0,
    show: Callable[[int, str, int], None] = lambda _programs, _doing, _failed: None,
) -> Report:
    """Search until time is up; see `runner.run`.

    apart: whether programs run in a process of their own, which may end.  show: is told how many
    programs ran, the one at hand, and how many failed.
    """
    kept = Corpus.opened(corpus)
    found = Report(target.name, LEVEL, seed, environment=environment(target))
    found.reduced.append("level soak has no end")
    merge, failed = Merge(found, report), list[Outcome]()

    def take(outcome: Outcome, seconds: float) -> None:
        number, document = len(found.results), None
        if outcome.problem is not None:
            where = failures.Run(target.name, seed, timeout=timeout)
            document = failures.document(outcome, where)
            failed.append(outcome)
        merge.add(Done(number, 0, result_of(outcome, seconds, document)))
        merge.finish(Finished(number), outcome.case.name)
        show(number, outcome.case.name, merge.failed)

    start = time.perf_counter()
    try:
        with Isolated(target, timeout) if apart else nullcontext(target) as safe:
            explore(safe, kept, take, seed=seed, limits=limits or Limits(), costs=costs_of(target))
        _explain(target, merge, failed, shrink_seconds, timeout)
    except KeyboardInterrupt:
        found.interrupted = True
    found.seconds = time.perf_counter() - start
    return found


def _explain(
    target: Target, merge: Merge, failed: list[Outcome], seconds: float, timeout: float
) -> None:
    end = time.monotonic() + seconds
    for met, outcome in list(zip(merge.met, failed, strict=True))[:MOST_SHRUNK]:
        left = min(end - time.monotonic(), Effort().seconds)
        if left > 0:
            effort = Effort(seconds=left)
            document = diagnosed(target, outcome, met.failure.document, effort, timeout)
            merge.explained(met, document)


def explore(
    target: Target,
    corpus: Corpus,
    take: Take,
    *,
    seed: int = 0,
    limits: Limits,
    costs: Costs,
) -> None:
    """Run the programs of a corpus, then others; the corpus is saved however it ends."""
    search = _Search(target, corpus, take, limits, costs)
    try:
        for case in [*corpus.cases()]:
            search.check()
            search.run(case)
        while search.goes_on():
            search.round(seed)
    except _OverError:
        return
    finally:
        corpus.save()


class _Search:
    """A search under way."""

    def __init__(
        self, target: Target, corpus: Corpus, take: Take, limits: Limits, costs: Costs
    ) -> None:
        self.target = target
        self.corpus = corpus
        self.take = take
        self.limits = limits
        self.costs = costs
        self.drawn = 0
        self.failures = 0
        self.rounds = corpus.programs // ROUND
        plan = plan_of(target, 0)
        self.strategy = programs(settings_of(plan), large=plan.budget.large)

    def goes_on(self) -> bool:
        """Whether there is time, and reason to look on."""
        return (
            time.monotonic() < self.limits.until
            and self.drawn < self.limits.most
            and self.failures < MOST_FAILURES
        )

    def check(self) -> None:
        """Raises what ends the search if it is over."""
        if not self.goes_on():
            raise _OverError

    def round(self, seed: int) -> None:
        """One search of Hypothesis."""
        first, folder = self.corpus.programs, self.corpus.folder
        # A climb that is told of all scores stays with the first that it improves.
        aim, self.rounds = self.rounds, self.rounds + 1
        database = None if folder is None else DirectoryBasedExampleDatabase(folder / "examples")

        def one(made: tuple[Program, bool]) -> None:
            program, exact = made
            self.check()
            self.drawn += 1
            self.corpus.programs += 1
            scores = self.run(program.case(LEVEL, exact, self.corpus.programs))
            name = sorted(scores)[aim % len(scores)] if scores else ""
            if scores.get(name):
                hypothesis.target(scores[name], label=name)

        searched = hypothesis.given(self.strategy)(one)
        searched = hypothesis.seed(derive(seed, LEVEL, first))(searched)
        hypothesis.settings(
            max_examples=ROUND,
            database=database,
            deadline=None,
            phases=(Phase.reuse, Phase.generate, Phase.target),
            suppress_health_check=list(HealthCheck),
        )(searched)()
        self.corpus.save()

    def run(self, case: Case) -> dict[str, float]:
        """Run a program; its scores, none if it fails."""
        start = time.perf_counter()
        outcome = run_case(self.target, case)
        if outcome.problem is not None and outcome.problem.kind == "hang":
            outcome = run_case(self.target, case)  # only what hangs again does
        self.take(outcome, time.perf_counter() - start)
        if outcome.problem is not None:
            self.failures += 1
            return {}
        scores = self.costs(case.graph)
        if instructions(case.graph) >= FUSED:
            scores[SHARE] = outcome.verdict.ratio
        self.corpus.keep(case, scores)
        return scores


def settings_of(plan: Plan) -> Settings:
    """What programs are made for: on data of known results, and on any."""
    dtypes = usable_dtypes(plan.support)
    return plan.config(dtypes, True), plan.config(dtypes, False)


def costs_of(target: Target) -> Costs:
    """Scratch memory and kernels of programs, if a target is a device of the SDK: no other target
    says them.
    """
    if not isinstance(target, DeviceTarget):
        return lambda _graph: {}
    backend = target.device.backend

    def costs(graph: Graph) -> dict[str, float]:
        try:
            cost = lower_graph(graph, backend).cost()
        except BringupError:  # nothing to climb towards; whether it runs is told elsewhere
            return {}
        return {"scratch bytes": float(cost.arena_bytes), "kernels": float(cost.kernels)}

    return costs


#: Programs kept for each score.
KEPT = 8
#: Changes when a corpus of an earlier version means something else.
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Best:
    """A program and its score."""

    score: float
    case: Case


@dataclass(slots=True)
class Corpus:
    """What was found worth keeping.

    folder: where it is kept, if anywhere.  programs: drawn so far.  best: by score.
    """

    folder: Path | None = None
    programs: int = 0
    best: dict[str, list[Best]] = field(default_factory=dict)

    @classmethod
    def opened(cls, folder: Path | None) -> Corpus:
        """The corpus of a folder, empty if there is none.  Raises BringupError if it holds one of
        another format, OSError.
        """
        path = None if folder is None else folder / "best.json"
        if path is None or not path.exists():
            return cls(folder)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["format"] != FORMAT:
                raise ValueError(f"format {data['format']}")
            best = {
                name: [Best(each["score"], case_from_json(each["case"])) for each in found]
                for name, found in data["best"].items()
            }
            return cls(folder, data["programs"], best)
        except (ValueError, KeyError, TypeError, AttributeError, BringupError) as error:
            fix = "name another folder"
            raise BringupError(f"{path} is of no corpus: {error!r}", fix=fix) from error

    def cases(self) -> Iterator[Case]:
        """The programs kept, each once."""
        seen = set()
        for best in [each for found in self.best.values() for each in found]:
            if best.case.name not in seen:
                seen.add(best.case.name)
                yield best.case

    def keep(self, case: Case, scores: Mapping[str, float]) -> None:
        """Keep a program if it is among the best in anything."""
        for name, score in scores.items():
            found = self.best.setdefault(name, [])
            alike = any(each.score == score or each.case.name == case.name for each in found)
            if score > 0 and not alike:
                found.append(Best(score, case))
                found.sort(key=lambda each: -each.score)
                del found[KEPT:]

    def save(self) -> None:
        """Write it to its folder.  Raises OSError."""
        if self.folder is None:
            return
        data = {
            "format": FORMAT,
            "suite": suite_version(),
            "programs": self.programs,
            "best": {
                name: [{"score": b.score, "case": case_to_json(b.case)} for b in found]
                for name, found in self.best.items()
            },
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        fresh = self.folder / "best.json.new"
        fresh.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        fresh.replace(self.folder / "best.json")


#: Raises what the test shall fail with.
Fail = Callable[[Outcome], None]


def soaked(target: Target, fail: Fail, seed: int = 0) -> Callable[[], None]:
    """A test that draws programs, and climbs as level soak does, for whatever runs such tests:
    pytest, or HypoFuzz, which goes on for ever and watches what code programs reach.

    Programs run in the process of the test, where coverage can be watched: a device that takes
    down its process is for `conformance run --level=soak`.

    fail: is given what failed.  seed: of the data of programs, and of the plan.
    """
    plan, costs = plan_of(target, seed), costs_of(target)

    @hypothesis.settings(
        deadline=None,
        # What fails is written down, and `conformance explain` makes it smaller.
        phases=(Phase.reuse, Phase.generate, Phase.target),
        suppress_health_check=[
            HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example
        ],
        print_blob=False,
    )  # fmt: skip
    @hypothesis.given(programs(settings_of(plan), large=plan.budget.large))
    def soak(made: tuple[Program, bool]) -> None:
        """A random program is right, whatever it scores."""
        program, exact = made
        case = program.case(LEVEL, exact, seed)
        outcome = run_case(target, case)
        if outcome.problem is not None:
            fail(outcome)
            return
        for name, score in costs(case.graph).items():
            hypothesis.target(score, label=name)
        if instructions(case.graph) >= FUSED:
            hypothesis.target(outcome.verdict.ratio, label=SHARE)

    made: Callable[[], None] = soak
    return made

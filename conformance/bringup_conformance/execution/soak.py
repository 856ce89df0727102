"""Level soak: random programs without end, steered to where the device comes near its bounds.

Hypothesis draws every decision of the generator, which level fusion draws from a seed, and searches
for larger errors as shares of their bounds, more scratch memory and more kernels.  What it finds
worth keeping stays in a folder, the corpus, from which a later run goes on:

    examples/     Hypothesis's own database
    best.json     the programs of the highest scores, which a later run starts with, and how far
                  this one got

A failure is written down as one of any other level, and shrunk by the same reducer.  Hypothesis
does not see it, since it would spend the rest of the run on that one program.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from bringup.errors import BringupError
from bringup.graph import Graph
from bringup.records import record
from bringup.runtime.compiler import lower_graph
from bringup_conformance.cases import Case, Outcome, instructions
from bringup_conformance.diagnosis.investigate import diagnosed
from bringup_conformance.diagnosis.shrinker import Effort
from bringup_conformance.execution.isolated import Isolated
from bringup_conformance.execution.plan import Plan
from bringup_conformance.execution.protocol import Done, Finished
from bringup_conformance.execution.report_builder import ReportBuilder
from bringup_conformance.execution.running import run_case
from bringup_conformance.execution.schedule import plan_of
from bringup_conformance.execution.targets import DeviceTarget, Target
from bringup_conformance.generate.choices import derive
from bringup_conformance.generate.program_builder import GenConfig
from bringup_conformance.generate.programs import Program, draw_program, usable_dtypes
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
#: Programs of one round, after which Hypothesis begins again from the corpus.
ROUND = 200
#: Instructions from which on the share of a bound is a score: level exhaustive looks at single ops,
#: and a search would never leave them.
FUSED = 4
#: The name of the score that errors make.
SHARE = "share of the bound"
#: Failures after which the search ends, and those that are shrunk.
MAX_FAILURES, MAX_SHRUNK = 50, 12

#: Is called with the outcome of a program, and the seconds it took.
OnOutcome = Callable[[Outcome, float], None]
#: Other scores of a program, by name.
Costs = Callable[[Graph], dict[str, float]]
#: The settings of programs on data of known results, and of the others.
_Settings = tuple[GenConfig, GenConfig]
# Shares of programs on exact data, and of those on large arrays, as in level fusion.
_EXACT, _LARGE = (2, 5), 16


class _OverError(KeyboardInterrupt):
    """Time is up.  Hypothesis passes an interrupt on, and takes any other error for a failure."""


@record
class Limits:
    """When a search ends.  until: by `time.monotonic`.  most: programs that are drawn, about."""

    until: float = float("inf")
    most: float = float("inf")


def run(
    target: Target,
    seed: int = 0,
    *,
    isolated: bool = False,
    limits: Limits | None = None,
    timeout: float = TIMEOUT,
    corpus: Path | None = None,
    report: Path | None = None,
    shrink_seconds: float = 90.0,
    show: Callable[[int, str, int], None] = lambda _programs, _doing, _failed: None,
) -> Report:
    """Search until time is up; see `runner.run`.

    isolated: whether programs run in a process of their own, which may end.  show: is called with
    how many programs ran, the name of the last one, and how many failed.
    """
    opened = Corpus.opened(corpus)
    whole = Report(target.name, LEVEL, seed, environment=environment(target))
    whole.reduced.append("level soak has no end")
    builder, failed = ReportBuilder(whole, report), list[Outcome]()

    def on_outcome(outcome: Outcome, seconds: float) -> None:
        number, document = len(whole.results), None
        if outcome.problem is not None:
            where = failures.Run(target.name, seed, timeout=timeout)
            document = failures.document(outcome, where)
            failed.append(outcome)
        builder.add(Done(number, 0, result_of(outcome, seconds, document)))
        builder.finish(Finished(number), outcome.case.name)
        show(number, outcome.case.name, builder.failed)

    start = time.perf_counter()
    try:
        with Isolated(target, timeout) if isolated else nullcontext(target) as safe:
            costs = costs_of(target)
            explore(safe, opened, on_outcome, seed=seed, limits=limits or Limits(), costs=costs)
        end = time.monotonic() + shrink_seconds
        for item, outcome in list(zip(builder.failed_items, failed, strict=True))[:MAX_SHRUNK]:
            seconds = min(end - time.monotonic(), Effort().seconds)
            if seconds > 0:
                effort, document = Effort(seconds=seconds), item.failure.document
                builder.explained(item, diagnosed(target, outcome, document, effort, timeout))
    except KeyboardInterrupt:
        whole.interrupted = True
    whole.seconds = time.perf_counter() - start
    return whole


def explore(
    target: Target,
    corpus: Corpus,
    on_outcome: OnOutcome,
    *,
    seed: int = 0,
    limits: Limits,
    costs: Costs,
) -> None:
    """Run the programs of a corpus, then others; the corpus is saved however it ends."""
    search = _Search(target, corpus, on_outcome, limits, costs)
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
        self,
        target: Target,
        corpus: Corpus,
        on_outcome: OnOutcome,
        limits: Limits,
        costs: Costs,
    ) -> None:
        self.target = target
        self.corpus = corpus
        self.on_outcome = on_outcome
        self.limits = limits
        self.costs = costs
        self.drawn = 0
        self.failures = 0
        self.rounds = corpus.programs // ROUND
        plan = plan_of(target, 0)
        self.strategy = _programs(settings_of(plan), large=plan.budget.large)

    def goes_on(self) -> bool:
        """Whether there is time, and reason to go on."""
        return (
            time.monotonic() < self.limits.until
            and self.drawn < self.limits.most
            and self.failures < MAX_FAILURES
        )

    def check(self) -> None:
        """Raises _OverError if the search is over."""
        if not self.goes_on():
            raise _OverError

    def round(self, seed: int) -> None:
        """One search of Hypothesis."""
        first, folder = self.corpus.programs, self.corpus.folder
        # Hypothesis improves the first score that it can, so each round is told of one score alone.
        score_number, self.rounds = self.rounds, self.rounds + 1
        database = None if folder is None else DirectoryBasedExampleDatabase(folder / "examples")

        def test(example: tuple[Program, bool]) -> None:
            program, exact = example
            self.check()
            self.drawn += 1
            self.corpus.programs += 1
            scores = self.run(program.case(LEVEL, exact, self.corpus.programs))
            name = sorted(scores)[score_number % len(scores)] if scores else ""
            if scores.get(name):
                hypothesis.target(scores[name], label=name)

        search = hypothesis.seed(derive(seed, LEVEL, first))(hypothesis.given(self.strategy)(test))
        hypothesis.settings(
            max_examples=ROUND,
            database=database,
            deadline=None,
            phases=(Phase.reuse, Phase.generate, Phase.target),
            suppress_health_check=list(HealthCheck),
        )(search)()
        self.corpus.save()

    def run(self, case: Case) -> dict[str, float]:
        """Run a program; returns its scores, none if it fails."""
        start = time.perf_counter()
        outcome = run_case(self.target, case)
        if outcome.problem is not None and outcome.problem.kind == "hang":
            outcome = run_case(self.target, case)  # it hangs only if it does so again
        self.on_outcome(outcome, time.perf_counter() - start)
        if outcome.problem is not None:
            self.failures += 1
            return {}
        scores = self.costs(case.graph)
        if instructions(case.graph) >= FUSED:
            scores[SHARE] = outcome.verdict.ratio
        self.corpus.keep(case, scores)
        return scores


def settings_of(plan: Plan) -> _Settings:
    """What programs are made for: on data of known results, and on any."""
    dtypes = usable_dtypes(plan.support)
    return plan.config(dtypes, True), plan.config(dtypes, False)


def costs_of(target: Target) -> Costs:
    """Scratch memory and kernels of programs, if a target is a device of the SDK; other targets do
    not tell them.
    """
    if not isinstance(target, DeviceTarget):
        return lambda _graph: {}
    backend = target.device.backend

    def costs(graph: Graph) -> dict[str, float]:
        try:
            cost = lower_graph(graph, backend).cost()
        except BringupError:  # that it cannot be compiled is a failure of the case, and no score
            return {}
        return {"scratch bytes": float(cost.arena_bytes), "kernels": float(cost.kernels)}

    return costs


#: Programs kept for each score.
KEPT = 8
#: Changes when a corpus of an earlier version means something else.
FORMAT = 1


@record
class Best:
    """A program and its score."""

    score: float
    case: Case


@dataclass(slots=True)
class Corpus:
    """The programs that were worth keeping.

    folder: where it is saved, if anywhere.  programs: number of those drawn so far.  best: the best
    programs for each score.
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
                name: [Best(each["score"], case_from_json(each["case"])) for each in kept]
                for name, kept in data["best"].items()
            }
            return cls(folder, data["programs"], best)
        except (ValueError, KeyError, TypeError, AttributeError, BringupError) as error:
            fix = "name another folder"
            raise BringupError(f"{path} is of no corpus: {error!r}", fix=fix) from error

    def cases(self) -> Iterator[Case]:
        """The programs kept, each once."""
        seen = set()
        for best in chain.from_iterable(self.best.values()):
            if best.case.name not in seen:
                seen.add(best.case.name)
                yield best.case

    def keep(self, case: Case, scores: Mapping[str, float]) -> None:
        """Keep a program if it is among the best in anything."""
        for name, score in scores.items():
            best = self.best.setdefault(name, [])
            alike = any(each.score == score or each.case.name == case.name for each in best)
            if score > 0 and not alike:
                best.append(Best(score, case))
                best.sort(key=lambda each: -each.score)
                del best[KEPT:]

    def save(self) -> None:
        """Write it to its folder.  Raises OSError."""
        if self.folder is None:
            return
        data = {
            "format": FORMAT,
            "suite": suite_version(),
            "programs": self.programs,
            "best": {
                name: [{"score": b.score, "case": case_to_json(b.case)} for b in kept]
                for name, kept in self.best.items()
            },
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        fresh = self.folder / "best.json.new"
        fresh.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        fresh.replace(self.folder / "best.json")


#: Raises what the test shall fail with.
Fail = Callable[[Outcome], None]


def soaked(target: Target, fail: Fail, seed: int = 0) -> Callable[[], None]:
    """A test that draws programs and searches as level soak does, for whatever runs such tests:
    pytest, or HypoFuzz, which goes on for ever and measures which code programs reach.

    Programs run in the process of the test, where their coverage can be measured.  A device that
    ends its process needs `conformance run --level=soak`.

    fail: is called with the outcome of a program that fails.  seed: of the data of programs, and of
    the plan.
    """
    plan, costs = plan_of(target, seed), costs_of(target)

    @hypothesis.settings(
        deadline=None,
        # A failure is written to a file, and `conformance explain` shrinks it.
        phases=(Phase.reuse, Phase.generate, Phase.target),
        suppress_health_check=[
            HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example
        ],
        print_blob=False,
    )  # fmt: skip
    @hypothesis.given(_programs(settings_of(plan), large=plan.budget.large))
    def soak(example: tuple[Program, bool]) -> None:
        """A random program is right, whatever it scores."""
        program, exact = example
        case = program.case(LEVEL, exact, seed)
        outcome = run_case(target, case)
        if outcome.problem is not None:
            fail(outcome)
            return
        for name, score in costs(case.graph).items():
            hypothesis.target(score, label=name)
        if instructions(case.graph) >= FUSED:
            hypothesis.target(outcome.verdict.ratio, label=SHARE)

    test: Callable[[], None] = soak
    return test


# -- programs whose every decision Hypothesis draws ------------------------------------------------


class _HypothesisChoices:
    """Decisions drawn by Hypothesis; see `Choices`."""

    __slots__ = ("_draw",)

    def __init__(self, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``."""
        return low if low == high else self._draw(_integers(low, high))


@lru_cache(None)
def _integers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high)


def _programs(settings: _Settings, *, large: bool) -> st.SearchStrategy[tuple[Program, bool]]:
    """Programs by the generator of level fusion, and whether their data are exact.

    large: whether some have larger arrays than any block.
    """

    @st.composite
    def drawn(draw: Any) -> tuple[Program, bool]:
        choices = _HypothesisChoices(draw)
        exact = choices.integer(0, _EXACT[1] - 1) >= _EXACT[1] - _EXACT[0]
        big = large and choices.integer(0, _LARGE - 1) == _LARGE - 1
        return draw_program(choices, settings[not exact], large=big), exact

    return drawn()

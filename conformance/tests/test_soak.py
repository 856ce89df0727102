"""Level soak: led to what scores high, equal for equal seeds, resumed from its corpus."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import toys
from planted import faulty, right
from typer.testing import CliRunner

from bringup.errors import BringupError
from bringup.graph import Graph
from bringup.graph.printer import print_graph
from bringup_conformance import cli, replay, run
from bringup_conformance.cases import Case, Outcome
from bringup_conformance.execution import plan, soak
from bringup_conformance.execution.soak import KEPT, Corpus, Limits
from bringup_conformance.execution.targets import DeviceTarget


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs on arrays of a few dozen elements."""
    monkeypatch.setattr(plan, "SIMULATED", replace(plan.SIMULATED, limit=80))


def size(graph: Graph) -> dict[str, float]:
    return {"instructions": float(len(graph))}


def nothing(_graph: Graph) -> dict[str, float]:
    return {}


def explored(
    corpus: Corpus | None = None, seed: int = 0, most: int = 30, costs: soak.Costs = size
) -> list[Case]:
    """The programs of a search on the reference, none of which fails."""
    met: list[Outcome] = []
    soak.explore(
        right(),
        corpus or Corpus(),
        lambda outcome, _seconds: met.append(outcome),
        seed=seed,
        limits=Limits(most=most),
        costs=costs,
    )
    assert [outcome.problem for outcome in met if outcome.problem] == []
    return [outcome.case for outcome in met if isinstance(outcome.case, Case)]


def test_equal_seeds_make_equal_searches() -> None:
    first, second, other = explored(), explored(), explored(seed=1)
    assert [print_graph(c.graph) for c in first] == [print_graph(c.graph) for c in second]
    assert [print_graph(c.graph) for c in first] != [print_graph(c.graph) for c in other]
    assert len({case.name for case in first}) == len(first) >= 29


def test_a_search_climbs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "ROUND", 90)
    led = [len(case.graph) for case in explored(most=90)]
    free = [len(case.graph) for case in explored(most=90, costs=nothing)]
    assert sum(sorted(led)[-30:]) > 1.3 * sum(sorted(free)[-30:])


def test_a_corpus_is_gone_on_from(tmp_path: Path) -> None:
    first = explored(Corpus.opened(tmp_path))
    data = json.loads((tmp_path / "best.json").read_text(encoding="utf-8"))
    assert data["programs"] == len(first)
    scores = [each["score"] for each in data["best"]["instructions"]]
    assert scores == sorted(scores, reverse=True)
    assert 0 < len(scores) <= KEPT
    assert scores[0] == max(len(case.graph) for case in first)
    corpus = Corpus.opened(tmp_path)
    kept = [case.name for case in corpus.cases()]
    again = explored(corpus)
    assert [case.name for case in again[: len(kept)]] == kept
    names = {case.name for case in first}
    assert not names & {case.name for case in again[len(kept) :]}
    assert corpus.programs > data["programs"]


def test_hypothesis_keeps_examples_beside_it(tmp_path: Path) -> None:
    explored(Corpus.opened(tmp_path), most=60)
    assert [*(tmp_path / "examples").rglob("*")]


@pytest.mark.parametrize("text", ["{}", "no JSON", '{"format": 0}', '{"format": 1, "best": []}'])
def test_another_file_is_no_corpus(tmp_path: Path, text: str) -> None:
    (tmp_path / "best.json").write_text(text, encoding="utf-8")
    with pytest.raises(BringupError, match=r"best.json is of no corpus"):
        Corpus.opened(tmp_path)


def test_a_fault_is_found_made_small_and_replayed(tmp_path: Path) -> None:
    target = faulty("FU14b")
    found = soak.run(target, limits=Limits(most=80), report=tmp_path, shrink_seconds=5)
    assert found.failed
    assert found.reduced == ["level soak has no end"]
    smallest = min(found.failures, key=lambda failure: failure.nodes)
    assert smallest.nodes <= 2
    assert smallest.file is not None
    assert replay(smallest.file, target)[1] is not None
    assert replay(smallest.file, right())[1] is None


def test_a_search_ends_after_many_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "MAX_FAILURES", 3)
    target = faulty("FU14b")
    assert soak.run(target, limits=Limits(most=500), shrink_seconds=0).failed == 3


def test_time_ends_a_search(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = count()
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    found = soak.run(right(), limits=Limits(until=30), corpus=tmp_path / "new" / "corpus")
    assert found.ok
    assert 10 <= found.passed <= 30
    assert (tmp_path / "new" / "corpus" / "best.json").exists()


def test_a_run_of_the_level_holds_no_other(tmp_path: Path) -> None:
    found = run(right(), "soak", time_budget=0.1, report=tmp_path)
    assert {result.level for result in found.results} <= {"soak"}
    assert found.reduced == ["level soak has no end"]
    with pytest.raises(BringupError, match="level soak has no parts"):
        run(right(), "soak", only="exp")


def test_a_device_that_dies_is_a_result_and_the_search_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    toys.install(tmp_path, monkeypatch, "if name == 'add' and operands[0].size > 2: os._exit(7)")
    monkeypatch.setattr(soak, "MAX_FAILURES", 2)
    found = run("toy", "soak", time_budget=900, jobs=1, shrink_seconds=0)
    assert [failure.problem["kind"] for failure in found.failures] == ["crash"] * 2
    assert all("exited with status 7" in failure.problem["what"] for failure in found.failures)


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = faulty("FU14b", "broken")
    monkeypatch.setattr(DeviceTarget, "named", lambda _name: target)
    monkeypatch.setattr(soak, "MAX_FAILURES", 1)
    arguments = ["--time-budget=900", f"--corpus={tmp_path / 'c'}", f"--report={tmp_path / 'r'}"]
    options = ["run", "--backend=broken", "--level=soak", "-j0", *arguments]
    done = CliRunner().invoke(cli.app, options)
    assert done.exit_code == 1, done.output
    assert "FAIL soak/programs/" in done.stdout
    assert (tmp_path / "r" / "failure-000.json").exists()

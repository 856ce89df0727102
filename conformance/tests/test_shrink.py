"""Failures made smaller: the command, loops and branches, several results, and equal ends of equal
beginnings.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest
import toys
from planted import case, failing_file, opened, right, spoilt
from test_explain import DEADLY, conformance
from typer.testing import CliRunner

from bringup.backend import Backend
from bringup.graph import Graph
from bringup.graph.verify import subgraphs, verify
from bringup.ops.evaluate import evaluate
from bringup_conformance import cli, run
from bringup_conformance.cases import Case, instructions
from bringup_conformance.diagnosis import reproduce
from bringup_conformance.diagnosis.candidates import (
    first_part_as_inputs,
    last_instruction_dropped,
    last_part_dropped,
    results_as_inputs,
)
from bringup_conformance.diagnosis.edits import Candidate, loop_controls
from bringup_conformance.diagnosis.loop_candidates import scans_instead, smaller_loops
from bringup_conformance.diagnosis.shrinker import Effort, shrink_program
from bringup_conformance.execution import levels, replay
from bringup_conformance.execution.plan import SIMULATED, Plan
from bringup_conformance.execution.support import Support
from bringup_conformance.execution.targets import DeviceTarget, Target
from bringup_conformance.generate.recipes import Recipe
from bringup_conformance.oracle.numbers import Array
from bringup_selftest import corpus
from bringup_selftest.corpus import OpCall
from bringup_selftest.device import Reference


def programs() -> Iterator[Candidate]:
    target = right()
    plan = Plan(target.capabilities, Support(target.missing), 3, SIMULATED)
    for unit in levels.fusion(plan):
        if unit.number.isdigit():
            yield from ((c.graph, c.data[0]) for c in unit.make() if isinstance(c, Case))


def ops(graph: Graph) -> list[str]:
    """All of them, those inside others among them."""
    inside = [name for inner in subgraphs(graph) for name in ops(inner)]
    return [*(instr.op.name for instr in graph.instrs), *inside]


def holding(name: str, least: int) -> Iterator[Candidate]:
    return (s for s in programs() if name in ops(s[0]) and instructions(s[0]) >= least)


@pytest.mark.parametrize(("name", "most"), [("while", 6), ("scan", 2), ("case", 4)])
def test_loops_and_branches_are_left_with_little_inside(name: str, most: int) -> None:
    def fails(small: Candidate) -> bool:
        return name in ops(small[0])

    found = 0
    for small in holding(name, 10):
        graph, recipes = shrink_program(small, fails)
        verify(graph)
        assert name in ops(graph)
        assert instructions(graph) <= most, graph
        inputs = [r.make(v.type) for r, v in zip(recipes, graph.inputs, strict=True)]
        assert len(evaluate(graph, inputs)) == len(graph.outputs)  # it ends
        found += 1
        if found == 3:
            return
    assert found


LOOP = """graph g(%0: f32[4], %1: f32[3,4]) {
  %2: f32[4], %3: f32[3,4] = scan(%0, %1) {
    body=graph inside(%0: f32[4], %1: f32[4]) {
      %2: f32[4] = mul(%0, %1)
      %3: f32[4] = exp(%2)
      %4: f32[4] = sub(%3, %1)
      %5: f32[4] = max(%4, %2)
      return %5, %4
    },
    length=3, reverse=false, consts=0, carries=1
  }
  %4: f32[3,4] = neg(%3)
  return %2, %4
}"""


def test_a_loop_goes_if_its_body_fails_alone() -> None:
    graph, _ = shrink_program(whole(LOOP), lambda s: "exp" in ops(s[0]))
    assert ops(graph) == ["exp"]


def test_a_body_loses_what_the_fault_does_not_need() -> None:
    def fails(small: Candidate) -> bool:
        inside = {name for graph in subgraphs(small[0]) for name in ops(graph)}
        return {"mul", "max"} <= inside

    graph, _ = shrink_program(whole(LOOP), fails)
    assert sorted(n for n in ops(graph) if n != "constant") == ["max", "mul", "scan"]
    assert max(v.type.size for v in graph.inputs) <= 3


def whole(ir: str) -> Candidate:
    made = case(ir)
    return made.graph, made.data[0]


def test_what_steers_a_loop_is_left_alone() -> None:
    for graph, _ in holding("while", 3):
        loop = next(i for i in graph.instrs if i.op.name == "while")
        counter = next(v for v in loop.operands if v.dtype.name == "i32")
        assert counter in loop_controls(graph)


def test_instructions_of_several_results_go_as_one() -> None:
    ir = """graph g(%0: f32[5], %1: i32[5]) {
      %2: f32[5], %3: i32[5] = sort(%0, %1) {dim=0}
      %4: f32[5] = neg(%2)
      %5: i32[5] = neg(%3)
      return %4, %5
    }"""
    seen: list[list[str]] = []

    def fails(small: Candidate) -> bool:
        seen.append(ops(small[0]))
        return len(small[0].outputs) == 2 and "neg" in ops(small[0])

    graph, _ = shrink_program(whole(ir), fails)
    assert ops(graph) == ["neg"]
    assert len(graph.outputs) == 2


def test_the_first_half_goes_at_once() -> None:
    lines = [f"  %{n + 1}: f32[3] = sin(%{n})" for n in range(32)]
    ir = "\n".join(["graph g(%0: f32[3]) {", *lines, "  return %32", "}"])
    lengths = [len(graph) for graph, _ in first_part_as_inputs(whole(ir))]
    assert lengths[:4] == [16, 16, 24, 24]
    runs: list[int] = []

    def fails(small: Candidate) -> bool:
        runs.append(len(small[0]))
        return len(small[0]) >= 3

    assert len(shrink_program(whole(ir), fails)[0]) == 3
    assert len(runs) < 40


def test_trying_hard_finds_what_goes_in_pairs() -> None:
    ir = """graph g(%0: f32[3]) {
      %1: f32[3] = neg(%0)
      %2: f32[3] = exp(%1)
      %3: f32[3] = abs(%2)
      return %3
    }"""

    def fails(small: Candidate) -> bool:
        found = ops(small[0])
        return "exp" in found and ("neg" in found) == ("abs" in found)

    assert ops(shrink_program(whole(ir), fails)[0]) == ["neg", "exp", "abs"]
    assert ops(shrink_program(whole(ir), fails, Effort(hard=True))[0]) == ["exp"]


def test_all_of_a_sort_go_at_once() -> None:
    ir = """graph g(%0: f32[3,4], %1: f32[3,4]) {
      %2: f32[12] = reshape(%0) {shape=(12,)}
      %3: f32[12] = reshape(%1) {shape=(12,)}
      %4: f32[12] = add(%2, %3)
      %5: f32[3,4] = reshape(%4) {shape=(3, 4)}
      %6: f32[3,4] = sub(%5, %0)
      return %6
    }"""

    def fails(small: Candidate) -> bool:
        found = ops(small[0])
        return {"add", "sub"} <= set(found) and found.count("reshape") in (0, 3)

    assert sorted(ops(shrink_program(whole(ir), fails)[0])) == ["add", "sub"]


def test_what_crosses_a_line_is_returned() -> None:
    def fails(small: Candidate) -> bool:
        made = {v.producer.op.name for v in small[0].outputs if v.producer is not None}
        return {"mul", "exp"} <= made

    ir = """graph g(%0: f32[4]) {
      %1: f32[4] = mul(%0, %0)
      %2: f32[4] = exp(%1)
      %3: f32[4] = sub(%1, %2)
      %4: f32[4] = abs(%3)
      return %4, %1, %2
    }"""
    behind = case(ir).graph
    one = Graph(behind.inputs, behind.instrs, behind.outputs[:1], "g")
    program = (one, case(ir).data[0])
    shown = [*last_part_dropped(program), *last_instruction_dropped(program)]
    assert any(fails(small) for small in shown)
    assert all(instructions(small[0]) < 4 for small in shown)


def test_an_instruction_that_nobody_needs_stops_nothing() -> None:
    ir = """graph g(%0: f32[4]) {
      %1: f32[4] = exp(%0)
      %2: f32[4] = mul(%0, %0)
      %3: f32[4] = abs(%2)
      return %3
    }"""
    graph, _ = shrink_program(whole(ir), lambda candidate: "mul" in ops(candidate[0]))
    assert ops(graph) == ["mul"]


COUNTING = """graph g(%0: i32[], %1: f32[4]) {
  %2: i32[], %3: f32[4] = while(%0, %1) {
    cond=graph more(%0: i32[], %1: f32[4]) {
      %2: i32[] = constant() {value=i32[](3)}
      %3: bool[] = compare(%0, %2) {direction="lt"}
      return %3
    },
    body=graph inside(%0: i32[], %1: f32[4]) {
      %2: i32[] = constant() {value=i32[](1)}
      %3: i32[] = add(%0, %2)
      %4: f32[4] = exp(%1)
      %5: f32[4] = neg(%4)
      return %3, %5
    }
  }
  return %3
}"""


def test_a_loop_with_a_condition_becomes_one_that_counts() -> None:
    def fails(small: Candidate) -> bool:
        return "exp" in {name for graph in subgraphs(small[0]) for name in ops(graph)}

    graph, _ = shrink_program(whole(COUNTING), fails)
    assert sorted(n for n in ops(graph) if n != "constant") == ["exp", "scan"]


def test_where_a_loop_counts_new_numbers_are_small() -> None:
    graph, recipes = whole(COUNTING)
    for small in (*scans_instead((graph, recipes)), *results_as_inputs((graph, recipes))):
        pairs = zip(small[0].inputs, small[1], strict=True)
        made = [recipe.make(v.type) for v, recipe in pairs if v.dtype.is_integer]
        assert all(abs(int(x)) < 1000 for array in made for x in array.reshape(-1))


def test_every_rewrite_of_loops_is_valid_and_ends() -> None:
    found = 0
    for name in ("while", "scan"):
        for small in islice(holding(name, 6), 4):
            for graph, recipes in smaller_loops(small):
                verify(graph)
                inputs = [r.make(v.type) for r, v in zip(recipes, graph.inputs, strict=True)]
                assert len(evaluate(graph, inputs)) == len(graph.outputs)
                found += 1
    assert found > 100


def test_a_loop_inside_a_loop_is_steered_from_outside() -> None:
    inside = COUNTING.replace("graph g", "graph turns")
    graph = case(
        f"""graph g(%0: i32[], %1: f32[4]) {{
          %2: f32[4] = scan(%0, %1) {{
            body={inside},
            length=2, reverse=false, consts=1, carries=1
          }}
          return %2
        }}"""
    ).graph
    assert set(loop_controls(graph)) == {graph.inputs[0]}


def test_equal_failures_shrink_equally_whatever_the_clock_says() -> None:
    found = []
    for wait in (0.0, 0.002):

        def fails(small: Candidate, wait: float = wait) -> bool:
            time.sleep(wait)
            return "mul" in ops(small[0])

        small = next(holding("mul", 8))
        graph, recipes = shrink_program(small, fails, Effort(runs=30))
        found.append((str(graph), recipes))
    assert found[0] == found[1]


# The command.

PROGRAM = """graph g(%0: f32[6,7], %1: f32[6,7]) {
  %2: f32[6,7] = mul(%0, %1)
  %3: f32[6,7] = sort(%2) {dim=1}
  %4: f32[6,7] = max(%3, %0)
  %5: f32[6,7] = add(%4, %1)
  return %5, %2
}"""


def backwards(backend: Backend) -> Backend:
    return corpus.with_ops({"sort": lambda call: call.right[..., ::-1]})(backend)


@pytest.fixture
def turned(monkeypatch: pytest.MonkeyPatch) -> DeviceTarget:
    """The device "turned", which sorts the wrong way round."""
    named = DeviceTarget.named
    others = {
        "turned": opened(backwards(Reference(depth=1, name="turned"))),
        "right": opened(Reference(depth=1, name="right")),
    }
    monkeypatch.setattr(DeviceTarget, "named", lambda name: others.get(name) or named(name))
    return others["turned"]


def test_the_command_writes_back_what_got_smaller(turned: DeviceTarget, tmp_path: Path) -> None:
    file = failing_file(turned, case(PROGRAM, (Recipe("signed"), Recipe("wide"))), tmp_path)
    before = file.read_text("utf-8")
    other = tmp_path / "small.json"
    status, shown = conformance("shrink", str(file), "--output", str(other))
    assert status == 1
    assert shown.endswith(f"4 -> 1 instructions: {other}\n")
    assert file.read_text("utf-8") == before
    document = json.loads(other.read_text("utf-8"))
    assert document["nodes"] == 1
    assert document["cause"]["name"] == "sort"
    assert document["case"] == json.loads(before)["case"]
    assert set(document["hashes"]) == {"expected", "actual"}
    assert other.with_suffix(".py").exists()
    status, text = conformance("shrink", str(file), "--attempts", "0", "--json")
    assert (status, json.loads(text)["nodes"], json.loads(text)["nodes_before"]) == (1, 4, 4)
    status, text = conformance("shrink", str(file), "--backend=right")
    assert (status, text) == (0, "passes now: fusion/programs/f32/0\n")


def test_shrinking_goes_on_from_the_smallest_program_known(
    turned: DeviceTarget, tmp_path: Path
) -> None:
    file = failing_file(turned, case(PROGRAM, (Recipe("signed"), Recipe("wide"))), tmp_path)
    sizes = []
    for attempts in (3, 5, 200):
        reproduce.shrink(file, seconds=60, attempts=attempts)
        sizes.append(json.loads(file.read_text("utf-8"))["nodes"])
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1


def test_a_program_that_ends_the_process_is_shrunk_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys.install(tmp_path / "toy", monkeypatch, DEADLY)
    ir = PROGRAM.replace("sort(%2) {dim=1}", "exp(%2)")
    file = deadly_file(case(ir), tmp_path)
    failure, before = reproduce.shrink(file, attempts=6)
    assert before == 4
    assert failure.nodes <= 2
    assert failure.document["cause"]["name"] == "exp"
    assert failure.document["reduced"]["problem"]["kind"] == "crash"
    assert "SIGSEGV" in failure.document["cause"]["what"]


def deadly_file(what: Case, folder: Path) -> Path:
    """The file that a run writes of a worker that ended."""
    from bringup_conformance.cases import Outcome, Problem
    from bringup_conformance.oracle.verdict import Verdict
    from bringup_conformance.reporting import failures

    problem = Problem("crash", "its process ended with SIGSEGV", log="Segmentation fault")
    run = failures.Run("toy", 0)
    return failures.write(folder, 0, failures.document(Outcome(what, Verdict(), problem), run))


@pytest.mark.parametrize("verb", ["replay", "explain", "shrink"])
def test_limits_of_time_are_those_of_the_run_unless_said(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    @contextmanager
    def needed(target: Target, _problem: object, timeout: float) -> Iterator[Target]:
        asked.append(timeout)
        yield target

    for module in (reproduce, replay):
        monkeypatch.setattr(module, "safe_target", needed)
    monkeypatch.setattr(DeviceTarget, "named", lambda _name: right())
    file = deadly_file(case(PROGRAM), tmp_path)
    document = json.loads(file.read_text("utf-8"))
    document["options"]["timeout"] = 7.5
    file.write_text(json.dumps(document), "utf-8")
    for more in ((), ("--timeout", "3")):
        assert CliRunner().invoke(cli.app, [verb, str(file), *more]).exit_code == 0
    assert set(asked[: len(asked) // 2]) == {7.5}
    assert set(asked[len(asked) // 2 :]) == {3.0}


def test_a_program_of_cells_is_cut_to_the_output_that_fails(tmp_path: Path) -> None:
    def dies(call: OpCall) -> Array:
        if call.attrs["dtype"] == "i8":
            raise RuntimeError("no bytes")
        return call.right

    report = run(spoilt({"convert": dies}), "ops", only="ops/convert/f32/special", report=tmp_path)
    [failure] = report.failures
    assert failure.problem["kind"] == "crash"
    assert "no bytes" in failure.problem["what"]
    assert len(failure.case["cells"]) > 3
    assert len(failure.shown["cells"]) == failure.nodes == 1
    assert "i8" in failure.shown["ir"]

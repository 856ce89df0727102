"""The reducer keeps the fault, drops the rest, and stops when told."""

from __future__ import annotations

import pytest
from planted import right

from bringup.graph import Graph
from bringup.graph.verify import verify
from bringup_conformance.cases import Case
from bringup_conformance.diagnosis.edits import Candidate
from bringup_conformance.diagnosis.shrinker import Effort, candidates, shrink_program, weight
from bringup_conformance.execution import levels
from bringup_conformance.execution.plan import SIMULATED, Plan
from bringup_conformance.execution.support import Support


def programs(count: int) -> list[Candidate]:
    target = right()
    plan = Plan(target.capabilities, Support(target.missing), 11, SIMULATED)
    items = [item for unit in levels.fusion(plan)[:count] for item in unit.make()]
    return [(c.graph, c.data[0]) for c in items if isinstance(c, Case)]


def ops(graph: Graph) -> list[str]:
    return [instr.op.name for instr in graph.instrs]


def computing(graph: Graph) -> int:
    return sum(name != "constant" for name in ops(graph))


WANTED = ("reduce", "slice", "concatenate", "transpose", "select", "dot_general", "convert")


@pytest.mark.parametrize("name", WANTED)
def test_what_hangs_on_one_op_is_left_with_that_op(name: str) -> None:
    found = 0
    for small in programs(120):
        if name in ops(small[0]) and computing(small[0]) > 3:
            graph, recipes = shrink_program(small, lambda s: name in ops(s[0]))
            verify(graph)
            assert computing(graph) == 1
            assert ops(graph).count(name) == 1
            assert len(recipes) == len(graph.inputs)
            assert sum(v.type.size for v in graph.inputs) <= 12
            found += 1
            if found == 3:
                return
    assert found


def test_what_hangs_on_a_pair_is_left_with_the_pair() -> None:
    def fails(small: Candidate) -> bool:
        return any(
            i.op.name == "sub"
            and any(v.producer and v.producer.op.name == "mul" for v in i.operands)
            for i in small[0].instrs
        )

    found = [small for small in programs(150) if fails(small) and computing(small[0]) > 3]
    assert found
    for small in found[:4]:
        assert computing(shrink_program(small, fails)[0]) == 2


def test_sizes_shrink_no_further_than_the_fault_allows() -> None:
    def fails(small: Candidate) -> bool:
        return any(n >= 5 for v in small[0].inputs for n in v.shape)

    small = next(s for s in programs(60) if fails(s) and any(n > 8 for n in s[0].inputs[0].shape))
    graph, _ = shrink_program(small, fails)
    assert max(n for v in graph.inputs for n in v.shape) == 5


def test_every_candidate_is_a_valid_program_with_data_for_its_inputs() -> None:
    found = 0
    for small in programs(60)[::6]:
        for graph, recipes in candidates(small, hard=False):
            verify(graph)
            assert graph.outputs
            assert len(recipes) == len(graph.inputs)
            found += 1
    assert found > 300


def test_what_is_kept_is_smaller_every_time() -> None:
    kept: list[tuple[int, ...]] = []

    def fails(small: Candidate) -> bool:
        failing = any(i.op.name in ("add", "sub", "mul") for i in small[0].instrs)
        if failing:
            kept.append(weight(small))
        return failing

    for small in [s for s in programs(80) if computing(s[0]) > 4 and fails(s)][:4]:
        kept[:] = [weight(small)]
        last = weight(shrink_program(small, fails))
        assert kept == sorted(set(kept), reverse=True)
        assert kept[-1] == last


def test_the_effort_is_kept() -> None:
    runs = 0

    def fails(_: Candidate) -> bool:
        nonlocal runs
        runs += 1
        return False

    small = max(programs(40), key=lambda s: len(s[0]))
    assert shrink_program(small, fails, Effort(runs=25)) == small
    assert runs == 25


def test_the_same_program_is_not_tried_twice() -> None:
    seen: list[object] = []

    def fails(small: Candidate) -> bool:
        seen.append((small[0].key, small[1]))
        return len(small[0]) % 2 == 0

    shrink_program(max(programs(30), key=lambda s: len(s[0])), fails, Effort(runs=200))
    assert len(seen) == len(set(seen))

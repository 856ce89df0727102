"""Programs with loops and branches: planned, verified, counted and run with what is inside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from lowering import KERNELS, Paper

import bringup as bu
from bringup import float32 as f32
from bringup import int32 as i32
from bringup.backend import Capabilities
from bringup.dtypes import ALL
from bringup.errors import GraphError
from bringup.graph import Graph
from bringup.ops.evaluate import evaluate
from bringup.program.cost import program_cost
from bringup.program.evaluate import evaluate_program
from bringup.program.program import ControlStep, KernelStep, Program
from bringup.program.verify import verify_program
from bringup.runtime.compiler import Options, lower_graph

#: A device that takes loops and branches into its programs.
NATIVE = replace(KERNELS, ops=dict.fromkeys(("while", "scan", "case"), frozenset(ALL)))
#: The same, with updates in place.
UPDATES = replace(NATIVE, ops={**NATIVE.ops, "dynamic_update_slice": frozenset(ALL)})
#: One that takes whiles, and no scan.
WHILES = replace(KERNELS, ops=dict.fromkeys(("while", "case"), frozenset(ALL)))


@pytest.fixture(autouse=True)
def _checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes, fusion and planning are compared in value with the graph, and programs verified."""
    monkeypatch.setenv("BRINGUP_CHECK", "2")


def lowered(graph: Graph, capabilities: Capabilities = NATIVE, **options: Any) -> Program:
    return lower_graph(graph, Paper(capabilities), options=Options(**options)).program


def looped(x: Any, y: Any) -> Any:
    """Carries that swap, one that nothing changes, and what is read from outside."""

    def body(_i: Any, state: Any) -> Any:
        a, b, held = state
        return b + held, a * y, held

    return bu.fori_loop(0, 5, body, (x, x + 1, y))


def scanned(w: Any, xs: Any) -> Any:
    def step(carry: Any, x: Any) -> Any:
        after = bu.tanh(carry * w + x)
        return after, (carry, bu.sum(after * after))

    return bu.scan(step, w * 0, xs, reverse=True)


def chosen(k: Any, x: Any) -> Any:
    return bu.switch(k, [lambda v: v, lambda v: bu.sum(v) * v, bu.exp], x)


def nested(n: Any, x: Any) -> Any:
    """A loop that ends by what it computed, with a branch and another loop inside."""

    def body(state: Any) -> Any:
        i, v = state
        v = bu.cond(i % 2 == 0, lambda u: u * 0.5, lambda u: u + 1, v)
        v = bu.fori_loop(0, 3, lambda _, u: u * 0.9, v)
        return i + 1, v

    return bu.while_loop(lambda state: state[0] < n, body, (bu.zeros((), dtype=i32), x))


def updated(n: Any, x: Any) -> Any:
    """An array in which every iteration changes an element, and a number made of it."""

    def body(state: Any) -> Any:
        i, held, last = state
        held = bu.dynamic_update_slice(held, bu.reshape(last, (1,)), (i,))
        return i + 1, held, last * 0.5 + held[3]

    start = (bu.zeros((), dtype=i32), x, bu.ones((), dtype=f32))
    return bu.while_loop(lambda state: state[0] < n, body, start)


def updated_rows(x: Any, rows: Any) -> Any:
    def step(held: Any, row: Any) -> Any:
        held = bu.dynamic_update_slice(held, row[:1], (2,))
        return held, bu.sum(held)

    return bu.scan(step, x, rows)


RUNS: dict[str, tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = {
    "while": (looped, (f32[4], f32[4]), (np.ones(4, np.float32), np.full(4, 0.5, np.float32))),
    "scan": (
        scanned,
        (f32[3], f32[4, 3]),
        (np.full(3, 0.5, np.float32), np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)),
    ),
    "first branch": (chosen, (i32, f32[4]), (np.int32(0), np.ones(4, np.float32))),
    "last branch": (chosen, (i32, f32[4]), (np.int32(9), np.ones(4, np.float32))),
    "updated": (updated, (i32, f32[64]), (np.int32(5), np.ones(64, np.float32))),
    "updated never": (updated, (i32, f32[64]), (np.int32(0), np.ones(64, np.float32))),
    "updated rows": (
        updated_rows,
        (f32[64], f32[3, 2]),
        (np.ones(64, np.float32), np.arange(6, dtype=np.float32).reshape(3, 2)),
    ),
    "nested": (nested, (i32, f32[4]), (np.int32(5), np.ones(4, np.float32))),
}


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize(
    "capabilities", [NATIVE, UPDATES, WHILES], ids=["native", "updates", "whiles"]
)
@pytest.mark.parametrize("name", RUNS)
def test_programs_keep_the_value_of_their_graph(
    name: str, capabilities: Capabilities, fuse: bool
) -> None:
    fn, types, inputs = RUNS[name]
    graph = bu.trace(fn, *types)
    program = lowered(graph, capabilities, fuse=fuse)
    verify_program(program)
    for found, wanted in zip(
        evaluate_program(program, inputs), evaluate(graph, inputs), strict=True
    ):
        assert np.allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_the_last_run_of_a_scan_writes_the_result(length: int) -> None:
    graph = bu.trace(scanned, f32[3], f32[length, 3])
    inputs = [np.full(3, 0.5, np.float32), np.ones((length, 3), np.float32)]
    program = lowered(graph, skip=frozenset({"simplify"}))
    for found, wanted in zip(
        evaluate_program(program, inputs), evaluate(graph, inputs), strict=True
    ):
        assert np.allclose(found, wanted, rtol=1e-5)


def only_step(program: Program, name: str) -> Any:
    (step,) = (s for s in program.steps if isinstance(s, ControlStep) and s.name == name)
    return step


def test_what_a_loop_does_not_change_stays_where_it_is() -> None:
    step = only_step(lowered(bu.trace(looped, f32[4], f32[4])), "scan")
    assert len(step.results) == len(step.spare) == len(step.carried) == 2
    reads = [slot.index for slot in step.operands if slot.space == "input"]
    assert 1 in reads, "y is read where the caller put it"


def test_rows_are_read_and_written_in_place() -> None:
    program = lowered(bu.trace(scanned, f32[3], f32[4, 3]))
    step = only_step(program, "scan")
    assert [slot.space for slot in step.results] == ["output"] * 3
    assert step.reverse
    assert all(isinstance(inner, KernelStep) for inner in step.body.steps)


def test_what_ops_change_in_place_has_one_place() -> None:
    """The array is copied once, before the first iteration, and nothing else is."""
    program = lowered(bu.trace(updated, i32, f32[64]), UPDATES)
    step = only_step(program, "while")
    assert (step.carried, step.updated) == ((0, 2), (1,))
    assert [slot.type for slot in step.spare] == [i32[()], f32[()]]
    assert step.body.aliases == ((2, 1),)
    rows = only_step(lowered(bu.trace(updated_rows, f32[64], f32[3, 2]), UPDATES), "scan")
    assert (rows.carried, len(rows.updated)) == ((), 1)
    wrong = changed(
        program, step, programs=(step.cond, replace(step.body, aliases=(), donated=frozenset()))
    )
    with pytest.raises(GraphError, match="takes other inputs"):
        verify_program(wrong)


def test_what_is_read_before_may_be_changed_in_place() -> None:
    """The next element is made of the one before."""

    def body(i: Any, held: Any) -> Any:
        value = bu.sin(bu.dynamic_slice(held, (i,), (1,))) + held[0]
        return bu.dynamic_update_slice(held, value, (i + 1,))

    graph = bu.trace(lambda x: bu.fori_loop(0, 5, body, x), f32[64])
    program = lowered(graph, UPDATES)
    assert len(only_step(program, "scan").updated) == 1
    inputs = [np.arange(64, dtype=np.float32)]
    assert np.allclose(evaluate_program(program, inputs), evaluate(graph, inputs), rtol=1e-5)


def test_what_is_changed_in_place_may_be_an_operand_that_dies() -> None:
    """A donated input, or an intermediate: then nothing at all is copied."""
    graph = bu.trace(updated, i32, f32[64])
    donated = lower_graph(graph, Paper(UPDATES), donated=frozenset({1})).program
    assert donated.aliases == ((1, 1),)
    inputs = [np.int32(5), np.arange(64, dtype=np.float32)]
    for found, wanted in zip(
        evaluate_program(donated, inputs), evaluate(graph, inputs), strict=True
    ):
        assert np.allclose(found, wanted)
    made = bu.trace(lambda n, x: bu.sin(updated(n, bu.sort(x))[1]), i32, f32[64])
    sorts = replace(UPDATES, ops={**UPDATES.ops, "sort": frozenset(ALL)})
    step = only_step(lowered(made, sorts), "while")
    assert step.operands[step.updated[0]] == step.results[2]


def test_what_is_still_read_is_not_changed_in_place() -> None:
    def body(i: Any, held: Any) -> Any:
        after = bu.dynamic_update_slice(held, held[:1] + 1, (i,))
        return after + held

    program = lowered(bu.trace(lambda x: bu.fori_loop(0, 3, body, x), f32[64]), UPDATES)
    assert only_step(program, "scan").updated == ()


def test_a_scan_becomes_a_while_where_a_device_has_none() -> None:
    step = only_step(lowered(bu.trace(scanned, f32[3], f32[4, 3]), WHILES), "while")
    assert step.trips == 4


def test_kernels_and_text_hold_what_is_inside() -> None:
    program = lowered(bu.trace(chosen, i32, f32[4]))
    step = only_step(program, "case")
    inside = [kernel for branch in step.programs for kernel in branch.kernels]
    assert inside
    assert set(inside) <= set(program.kernels)
    assert str(program).count("program ") == 1 + len(step.programs)


def test_keys_tell_what_is_inside_apart() -> None:
    def key(factor: float) -> str:
        fn = lambda x: bu.fori_loop(0, 3, lambda _, v: v * factor, x)  # noqa: E731
        return lowered(bu.trace(fn, f32[4])).key

    assert key(2.0) == key(2.0)
    assert key(2.0) != key(3.0)


def test_costs_of_loops_count_every_run() -> None:
    def cost(count: int) -> Any:
        fn = lambda x: bu.fori_loop(0, count, lambda _, v: bu.sin(v), x)  # noqa: E731
        return program_cost(lowered(bu.trace(fn, f32[100])))

    once, often = cost(2), cost(20)
    assert often.flops == 10 * once.flops == 2000
    assert often.kernels == 10 * once.kernels
    assert often.bytes_read == 10 * once.bytes_read


def test_costs_of_branches_are_those_of_the_largest() -> None:
    fn = lambda p, x: bu.cond(p, lambda v: bu.sin(v) + 1, lambda v: v, x)  # noqa: E731
    assert program_cost(lowered(bu.trace(fn, bu.bool, f32[100]))).flops == 200


def test_a_loop_of_unknown_length_counts_once() -> None:
    fn = lambda x: bu.while_loop(lambda v: bu.sum(v) < 9, lambda v: v * 2, x)  # noqa: E731
    program = lowered(bu.trace(fn, f32[100]))
    assert only_step(program, "while").trips is None
    assert program_cost(program).flops == 100 + 101


def changed(program: Program, step: Any, **changes: Any) -> Program:
    wrong = replace(step, **changes)
    return replace(program, steps=tuple(wrong if s is step else s for s in program.steps))


def test_the_verifier_looks_inside() -> None:
    program = lowered(bu.trace(scanned, f32[3], f32[4, 3]))
    step = only_step(program, "scan")
    for message, changes in (
        ("is never written", {"programs": (replace(step.body, steps=step.body.steps[:-1]),)}),
        ("which it still reads", {"spare": step.operands[1:2]}),
        ("is due", {"trips": 5}),
        ("nor a number of runs", {"trips": None}),
        ("takes other inputs", {"programs": (replace(step.body, donated=frozenset({0})),)}),
    ):
        with pytest.raises(GraphError, match=message):
            verify_program(changed(program, step, **changes))


def test_the_verifier_asks_for_room_inside() -> None:
    program = lowered(bu.trace(nested, i32, f32[4]))
    step = only_step(program, "while")
    assert step.scratch.type.nbytes
    with pytest.raises(GraphError, match="need more"):
        verify_program(changed(program, step, scratch=replace(step.scratch, type=bu.uint8[0])))

"""The reference interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup import ops
from bringup.dtypes import bf16, f32, i32
from bringup.errors import ConversionError
from bringup.graph import Builder, Literal
from bringup.ops.evaluate import evaluate, run_instr, subgraph_runs
from bringup.ops.table import opdef


def test_a_graph_with_sharing_and_several_outputs() -> None:
    with Builder() as b:
        x, y = b.input(f32[3]), b.input(f32[3])
        product = ops.mul(x, y)
        graph = b.build([ops.add(product, x), product, y])
    x_, y_ = np.array([1, 2, 3], np.float32), np.array([4, 5, 6], np.float32)
    total, product_, same = evaluate(graph, [x_, y_])
    assert total.tolist() == [5, 12, 21]
    assert product_.tolist() == [4, 10, 18]
    assert same.tolist() == [4, 5, 6]
    assert total.dtype == np.float32


def test_constants_and_ramps() -> None:
    with Builder() as b:
        c = ops.constant(value=Literal.splat(1.5, bf16[2, 2]))
        graph = b.build([c, ops.iota(type=i32[2, 3], dim=1)])
    splat, ramp = evaluate(graph, [])
    assert splat.dtype == bf16.numpy
    assert splat.shape == (2, 2)
    assert ramp.tolist() == [[0, 1, 2], [0, 1, 2]]


def test_0_d_results_are_arrays() -> None:
    with Builder() as b:
        graph = b.build([ops.reduce(b.input(f32[3]), kind="add", dims=(0,))])
    (total,) = evaluate(graph, [np.ones(3, np.float32)])
    assert isinstance(total, np.ndarray)
    assert total.shape == ()


def test_inputs_are_left_alone() -> None:
    with Builder() as b:
        x = b.input(f32[4])
        graph = b.build([ops.neg(x), ops.slice(x, start=(3,), limit=(-1,), stride=(-1,))])
    given = np.arange(4, dtype=np.float32)
    evaluate(graph, [given])
    assert given.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "array", [np.zeros(3, np.float32), np.zeros(2, np.float64), np.zeros((), np.float32)]
)
def test_inputs_of_another_type_are_refused(array) -> None:
    with Builder() as b:
        graph = b.build([b.input(f32[2])])
    with pytest.raises(ConversionError, match=r"input 0 must be f32\[2\]"):
        evaluate(graph, [array])


def test_the_number_of_inputs_must_fit() -> None:
    with Builder() as b:
        graph = b.build([b.input(f32[2])], "f")
    with pytest.raises(ConversionError, match="f takes 1 inputs, got 0"):
        evaluate(graph, [])


def runs_of(fn: Any, *inputs: Any) -> list[tuple[list[Any], list[Any]]]:
    """Inputs and outputs of the sub-graphs that the last instruction with some runs."""
    graph = bu.trace(fn, *inputs)
    instr = next(i for i in reversed(graph.instrs) if opdef(i).holds_graphs)
    values = dict(zip(graph.inputs, map(np.asarray, inputs), strict=True))
    for each in graph.instrs[: graph.instrs.index(instr)]:
        results = run_instr(each, [values[v] for v in each.operands])
        values.update(zip(each.results, results, strict=True))
    runs = subgraph_runs(instr, [values[v] for v in instr.operands])
    return [([x.tolist() for x in i], [x.tolist() for x in o]) for _, i, o in runs]


def test_the_runs_of_a_while() -> None:
    fn = lambda n: bu.while_loop(lambda v: v < 3, lambda v: v + 1, n)  # noqa: E731
    found = runs_of(fn, np.int32(1))
    assert found == [
        ([1], [True]), ([1], [2]),
        ([2], [True]), ([2], [3]),
        ([3], [False]),
    ]  # fmt: skip


@pytest.mark.parametrize("reverse", [False, True])
def test_the_runs_of_a_scan(reverse: bool) -> None:
    def fn(c: Any, rows: Any) -> Any:
        return bu.scan(lambda c, r: (c + r, c), c, rows, reverse=reverse)

    found = runs_of(fn, np.int32(5), np.array([1, 2], np.int32))
    first, second = (2, 1) if reverse else (1, 2)
    assert found == [([5, first], [5 + first, 5]), ([5 + first, second], [8, 5 + first])]


@pytest.mark.parametrize(("index", "result"), [(0, 8), (1, -7), (9, -7)])
def test_the_run_of_a_branch(index: int, result: int) -> None:
    fn = lambda k, x: bu.switch(k, [lambda v: v + 1, lambda v: -v], x)  # noqa: E731
    assert runs_of(fn, np.int32(index), np.int32(7)) == [([7], [result])]


def test_other_instructions_run_no_graphs() -> None:
    (instr,) = bu.trace(lambda x: -x, np.int32(1)).instrs
    assert not list(subgraph_runs(instr, [np.asarray(1)]))

"""The law of `batch_graph`: the batched graph gives what the graph gives for each example."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bringup import ops
from bringup.backend.capabilities import Numerics, Shapes
from bringup.dtypes import f32
from bringup.errors import Location, UnsupportedError
from bringup.graph import Builder, Graph
from bringup.graph.verify import verify
from bringup.ops import build
from bringup.ops.evaluate import evaluate
from bringup.ops.table import Kind, OpDef, all_ops
from bringup.tracing.batching import batch_graph
from bringup_conformance.execution.support import Support
from bringup_conformance.generate.choices import Stream
from bringup_conformance.generate.program_builder import GenConfig
from bringup_conformance.generate.programs import Program, draw_program, usable_dtypes

SHAPES = Shapes(vector=3, block=8)


def check(graph: Graph, flags: tuple[bool, ...], examples: list[list[Any]]) -> Graph:
    """Compare the batched graph with the graph of each example."""
    size = len(examples)
    batched, per_example = batch_graph(graph, flags, size)
    verify(batched)
    arguments = [
        np.stack([e[i] for e in examples]) if flag else examples[0][i]
        for i, flag in enumerate(flags)
    ]
    found = evaluate(batched, arguments)
    singly = [
        evaluate(
            graph,
            [
                x if flag else examples[0][i]
                for i, (x, flag) in enumerate(zip(e, flags, strict=True))
            ],
        )
        for e in examples
    ]
    for k, (output, flag) in enumerate(zip(graph.outputs, per_example, strict=True)):
        wanted = np.stack([each[k] for each in singly]) if flag else singly[0][k]
        assert found[k].shape == wanted.shape
        close(found[k], wanted, output.dtype)
    return batched


def close(found: Any, wanted: Any, dtype: Any) -> None:
    if not dtype.is_float:
        np.testing.assert_array_equal(found, wanted)
        return
    step = float(np.spacing(np.asarray(1, dtype.numpy)).astype(np.float64))
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_allclose(found, wanted, rtol=64 * step, atol=64 * step)


# ---- programs


def drawn(number: int) -> Program:
    """A random program of the suite, on a device that takes everything."""
    support = Support(lambda graph: None)
    config = GenConfig(support, Numerics(), SHAPES, number % 2 == 0, 200, usable_dtypes(support))
    return draw_program(Stream(11, "batching", number), config)


@pytest.mark.parametrize("number", range(60))
def test_random_programs_batched_in_drawn_combinations(number: int) -> None:
    program = drawn(number)
    inputs = program.graph.inputs
    flags = tuple((number >> i) % 2 == 0 for i in range(len(inputs)))
    recipes = program.data[0]
    examples = [
        [
            replace(r, seed=r.seed + 16 * e).make(v.type)
            for r, v in zip(recipes, inputs, strict=True)
        ]
        for e in range(3)
    ]
    check(program.graph, flags, examples)


def test_no_examples() -> None:
    for number in range(10):
        graph = drawn(number).graph
        batched, flags = batch_graph(graph, [True] * len(graph.inputs), 0)
        arguments = [np.zeros(v.shape, v.dtype.numpy) for v in batched.inputs]
        found = evaluate(batched, arguments)
        for array, old, flag in zip(found, graph.outputs, flags, strict=True):
            assert array.shape == ((0, *old.shape) if flag else old.shape)


# ---- what the rules make


def batched_ops(build_: Any, flags: tuple[bool, ...], *types: Any) -> list[str]:
    """The ops of a batched graph."""
    builder = Builder()
    inputs = [builder.input(t) for t in types]
    with builder:
        output = build_(*inputs)
    graph, _ = batch_graph(builder.build([output]), flags, 3)
    return [instr.op.name for instr in graph.instrs]


def product(a: Any, b: Any) -> Any:
    return ops.dot_general(a, b, batch=((), ()), contract=((1,), (0,)))


@pytest.mark.parametrize("flags", [(True, True), (True, False), (False, True)])
def test_a_product_with_a_vector_stays_one_product(flags: tuple[bool, ...]) -> None:
    assert batched_ops(product, flags, f32[4, 5], f32[5]) == ["dot_general"]


def test_a_product_with_one_batched_side_is_one_product() -> None:
    assert batched_ops(product, (True, False), f32[4, 5], f32[5, 6]) == ["dot_general"]
    wanted = ["dot_general", "transpose"]
    assert batched_ops(product, (False, True), f32[4, 5], f32[5, 6]) == wanted


def test_what_depends_on_no_example_is_computed_once() -> None:
    def build_(x: Any, w: Any) -> Any:
        return ops.add(x, ops.exp(w))

    assert batched_ops(build_, (True, False), f32[4], f32[4]) == ["exp", "broadcast_in_dim", "add"]


def test_pointwise_composites_stay_whole() -> None:
    assert batched_ops(ops.gelu, (True,), f32[4]) == ["gelu"]


def test_composites_over_dims_stay_whole() -> None:
    assert batched_ops(lambda x: ops.softmax(x, dims=(0,)), (True,), f32[4]) == ["softmax"]
    ones = build.ones_like
    norm = batched_ops(lambda x: ops.layer_norm(x, ones(x), ones(x), dims=(0,)), (True,), f32[4])
    assert norm == ["constant", "constant", "layer_norm"]


def test_instructions_keep_their_lines() -> None:
    place = Location("model.py", 7, "f")
    builder = Builder()
    x = builder.input(f32[2])
    with builder:
        builder.location = place
        y = ops.exp(x)
    graph, flags = batch_graph(builder.build([y, x]), [True], 3)
    assert flags == (True, True)
    assert graph.instrs[0].location == place


def test_a_row_without_rule_is_refused_with_its_line() -> None:
    row = OpDef(
        name="shuffle",
        arity=1,
        kind=Kind.ORDER,
        doc="x, reordered.",
        infer=lambda types, attrs: types[0],
        reference=np.sort,
    )
    place = Location("model.py", 7, "f")
    builder = Builder()
    x = builder.input(f32[2])
    with builder:
        builder.location = place
        y = row(x)
    graph = builder.build([y])
    with pytest.raises(UnsupportedError, match="shuffle has no rule") as caught:
        batch_graph(graph, [True], 3)
    assert caught.value.location == place
    assert batch_graph(graph, [False], 3)[1] == (False,)


def test_every_row_has_a_rule() -> None:
    """What is neither pointwise nor decomposed needs a batch column."""
    lacking = [
        row.name
        for row in all_ops()
        if row.kind not in (Kind.SOURCE, Kind.ELEMENTWISE)
        and row.batch is None
        and row.decompose is None
    ]
    assert not lacking

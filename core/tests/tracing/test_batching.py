"""The law of `batch_graph`: the batched graph gives what the graph gives for each example."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from bringup import ops
from bringup.backend.capabilities import Shapes
from bringup.graph import Builder, Graph
from bringup.graph.verify import verify
from bringup.ops.evaluate import evaluate
from bringup.ops.table import Kind, OpDef, all_ops
from bringup.tracing.batching import batch_graph
from bringup_conformance.cases import Instance
from bringup_conformance.instances import instances
from bringup_conformance.recipes import Recipe

SHAPES = Shapes(vector=3, block=8)
MAPPABLE = [row.name for row in all_ops() if row.kind is not Kind.SOURCE]


def graph_of(row: OpDef, instance: Instance) -> Graph:
    builder = Builder()
    with builder:
        operands = [builder.input(t) for t in instance.operands]
        results = row(*operands, **dict(instance.attrs))
    return builder.build(results if isinstance(results, tuple) else (results,))


def small(row: OpDef) -> list[Instance]:
    """A few instances of every row, of a float and of an integer dtype where it takes both."""
    found = []
    for kind in ("float", "int", "bool"):
        dtype = next((d for d in reversed(row.dtypes) if d.kind == kind), None)
        if dtype is not None:
            made = instances(row, dtype, SHAPES, 5, few=True)
            found += [i for i in made if all(t.size <= 600 for t in i.operands)][:6]
    return found


def operand(row: OpDef, instance: Instance, position: int, seed: int) -> Any:
    domain = row.domain
    interval = domain.intervals[min(position, len(domain.intervals) - 1)]
    kinds = [k for k in instance.kinds if k != "special"] or ["ramp"]
    recipe = Recipe(
        kinds[position % len(kinds)],
        seed,
        interval=interval,
        nonzero=position in domain.nonzero,
    )
    return recipe.make(instance.operands[position])


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


@pytest.mark.parametrize("name", MAPPABLE)
def test_every_row_batched_in_every_combination(name: str) -> None:
    row = ops.lookup(name)
    made = small(row)
    assert made, f"the suite has no small instance of {name}"
    for number, instance in enumerate(made):
        graph = graph_of(row, instance)
        count = len(instance.operands)
        examples = [
            [operand(row, instance, i, 10 * number + e) for i in range(count)] for e in range(3)
        ]
        for flags in itertools.product((False, True), repeat=min(count, 4)):
            check(graph, flags + (flags[-1],) * (count - len(flags)), examples)

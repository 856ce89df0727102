"""Kernels for a machine with a thread per lane, run on threads of this one: equal to the graph."""

from __future__ import annotations

import numpy as np
import pytest
from growing import graphs
from host_simt import Launches
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.dtypes import DType, bf16, bool_, f16, f32, i8
from bringup.graph import Builder, Graph, Value
from bringup.kernel.fuse import fuse
from bringup.kernel.limits import Limits
from bringup.ops.build import kept, rows, sum_
from bringup.ops.evaluate import evaluate
from bringup.passes.check import disagreement, generated_inputs, is_strict


@settings(max_examples=30)
@given(graph=graphs, chunk=st.sampled_from((0, 2, 7)))
def test_random_graphs(graph: Graph, chunk: int) -> None:
    run = Launches(graph, fuse(graph, Limits()), chunk)
    found = disagreement(graph, run, strict=is_strict(graph))
    assert found is None, f"{found[0]}\n{graph}"


def total(x: Value) -> Value:
    return sum_(x, (len(x.shape) - 1,))


def softmax(x: Value) -> Value:
    dims = (len(x.shape) - 1,)
    e = rows.exp(rows.sub(x, kept(rows.reduce(x, kind="max", dims=dims), dims, x.shape)))
    return rows.div(e, kept(sum_(e, dims), dims, x.shape))


def columns(x: Value) -> Value:
    return rows.reduce(x, kind="max", dims=(0,))


def turned(x: Value) -> Value:
    return rows.concatenate(rows.transpose(x, permutation=(1, 0)), rows.neg(square(x)), dim=1)


def square(x: Value) -> Value:
    return rows.reshape(x, shape=x.shape[::-1])


def every_other(x: Value) -> Value:
    return rows.slice(x, start=(0, 0), limit=x.shape, stride=(1, 2))


def products_of_nothing(x: Value) -> Value:
    cut = rows.slice(x, start=(0, 0), limit=(x.shape[0], 0), stride=(1, 1))
    return rows.dot_general(cut, cut, batch=((), ()), contract=((0,), (0,)))


FORMS = {
    "sums of rows": total,
    "greatest of columns": columns,
    "softmax": softmax,
    "sum of a softmax": lambda x: total(softmax(x)),
    "sums of every other column": lambda x: total(every_other(x)),
    "movement": turned,
    "products": lambda x: rows.dot_general(x, x, batch=((), ()), contract=((1,), (1,))),
    "products of no columns": products_of_nothing,
    "a sum over no axis": lambda x: rows.reduce(total(x), kind="add", dims=()),
    "a sum over one element": lambda x: total(rows.reshape(total(x), shape=(x.shape[0], 1))),
}


@pytest.mark.parametrize("shape", [(3, 70), (70, 3), (1, 33), (5, 1), (4, 0), (0, 4)], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_kernel(form: str, shape: tuple[int, ...]) -> None:
    """Rows longer and shorter than a block, more and fewer of them than blocks."""
    with Builder() as builder:
        graph = builder.build([FORMS[form](builder.input(f32[shape]))])
    run = Launches(graph, fuse(graph, Limits()))
    (inputs,) = generated_inputs(graph, 1, special=False)
    (wanted,), (found,) = evaluate(graph, [inputs]), run([inputs])
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 8, 100])
def test_a_long_sum_in_chunks(chunk: int) -> None:
    with Builder() as builder:
        x = builder.input(f32[3, 131])
        graph = builder.build([rows.neg(total(x)), rows.reduce(x, kind="min", dims=(1,))])
    run = Launches(graph, fuse(graph, Limits()), chunk)
    inputs = [np.round(4 * a) for a in generated_inputs(graph, 2, special=False)]
    for wanted, found in zip(evaluate(graph, inputs), run(inputs), strict=True):
        assert wanted.tolist() == found.tolist()


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [(i8, "add"), (bool_, "and"), (bool_, "or"), (f16, "add"), (bf16, "max"), (bf16, "mul")],
    ids=str,
)
def test_registers_of_every_width_cross_shared_memory(dtype: DType, kind: str) -> None:
    with Builder() as builder:
        x = builder.input(dtype[2, 45])
        graph = builder.build([rows.reduce(x, kind=kind, dims=(1,))])
    run = Launches(graph, fuse(graph, Limits()))
    assert disagreement(graph, run, strict=is_strict(graph)) is None

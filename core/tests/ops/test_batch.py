"""The batch column: every row, its operands batched in every combination, gives the row of each
example, stacked.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from bringup.dtypes import bool_, f16, f32, f64, i32, u8, u32
from bringup.graph.verify import verify
from bringup.ops.evaluate import evaluate
from bringup.ops.table import Kind, all_ops, lookup
from bringup.tracing.autodiff import vjp_graph
from bringup.tracing.batching import batch_graph

SIZE = 3
# Relative to the largest element: sums over other strides are rounded in another order.
LOOSE = {"f16": 2e-3, "bf16": 2e-2, "f32": 2e-6, "f64": 1e-13}
# Sub-graphs: core/tests/tracing/test_batching_nested.py.
MAPPED = sorted(row.name for row in all_ops() if row.kind not in (Kind.SOURCE, Kind.CONTROL))


def flags_of(count):
    """Every combination, of the last operands together if there are many."""
    for flags in product((False, True), repeat=min(count, 4)):
        if any(flags):
            yield flags + (flags[-1],) * (count - len(flags))


def of_each(graph, flags, arrays, size):
    rows = [
        evaluate(graph, [a[i] if flag else a for a, flag in zip(arrays, flags, strict=True)])
        for i in range(size)
    ]
    return [np.stack(column) for column in zip(*rows, strict=True)]


def is_exact(row, graph):
    return row.accuracy_for(graph.instrs[0].attrs).exact


def tamely(shape, seed):
    """Numbers near 1; matrices that are symmetric, definite and far from singular."""
    drawn = np.random.default_rng(seed).normal(size=shape)
    if len(shape) >= 2 and shape[-1] == shape[-2]:
        drawn = drawn + np.swapaxes(drawn, -1, -2) + 9 * np.eye(shape[-1])
    return drawn


def arrays_of(kit, graph, flags, size, tame):
    """tame: no numbers that overflow on the way in one form of an op and not in another."""
    arrays = []
    for i, (value, flag) in enumerate(zip(graph.inputs, flags, strict=True)):
        shape = (size, *value.shape) if flag else value.shape
        if tame and value.dtype.is_float:
            arrays.append(tamely(shape, i).astype(value.dtype.numpy))
        else:
            arrays.append(kit.values(value.dtype, shape, 7 + i))
    return arrays


def check(kit, row, graph, flags):
    batched, given = batch_graph(graph, flags, SIZE)
    verify(batched)
    exact = is_exact(row, graph)
    arrays = arrays_of(kit, graph, flags, SIZE, not exact)
    with np.errstate(all="ignore"):
        found, wanted = evaluate(batched, arrays), of_each(graph, flags, arrays, SIZE)
    for one, other, flag, value in zip(found, wanted, given, graph.outputs, strict=True):
        result = one if flag else np.stack([one] * SIZE)
        assert result.dtype == other.dtype
        assert result.shape == other.shape
        if exact or not value.dtype.is_float:
            assert kit.same(result, other).all(), (flags, graph)
        else:
            close(result, other, value.dtype)


def close(result, other, dtype):
    result, other = result.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(other)
    assert np.array_equal(np.isnan(result), np.isnan(other))
    assert np.array_equal(result[~finite & ~np.isnan(other)], other[~finite & ~np.isnan(other)])
    scale = np.abs(other[finite]).max(initial=1e-30)
    assert np.abs(result[finite] - other[finite]).max(initial=0) <= LOOSE[dtype.name] * scale


def graphs_of(kit, row):
    if row.accuracy.residual is not None:
        yield kit.graph(row, [f64[4, 4]] * row.arity, {})
        return
    dtypes = [d for d in (f32, f64, f16, i32, u8, u32, bool_) if d in row.dtypes]
    floats = [d for d in dtypes if d.is_float][:1]
    for dtype in floats + [d for d in dtypes if not d.is_float][:2]:
        for types, attrs in kit.cases(row, dtype):
            yield kit.graph(row, types, attrs)


@pytest.mark.parametrize("name", MAPPED)
def test_every_row_batched_in_every_combination(kit, name):
    row = lookup(name)
    checked = 0
    for graph in graphs_of(kit, row):
        for flags in flags_of(len(graph.inputs)):
            check(kit, row, graph, flags)
            checked += 1
    assert checked


@pytest.mark.parametrize("name", MAPPED)
def test_gradients_of_every_row_batched(kit, name):
    """Whatever a vjp is made of can be batched: gradients per example."""
    row, checked = lookup(name), 0
    for graph in graphs_of(kit, row):
        wrt = [i for i, v in enumerate(graph.inputs) if v.dtype in (f32, f64)]
        of = [i for i, v in enumerate(graph.outputs) if v.dtype in (f32, f64)]
        if not wrt or not of or 0 in [n for v in graph.inputs for n in v.shape]:
            continue
        pulled = vjp_graph(graph, wrt, of)
        flags = [v.dtype.is_float for v in pulled.inputs]
        batched, given = batch_graph(pulled, flags, SIZE)
        verify(batched)
        arrays = arrays_of(kit, pulled, flags, SIZE, True)
        with np.errstate(all="ignore"):
            found, wanted = evaluate(batched, arrays), of_each(pulled, flags, arrays, SIZE)
        for one, other, flag, value in zip(found, wanted, given, pulled.outputs, strict=True):
            result = one if flag else np.stack([one] * SIZE)
            if value.dtype.is_float:
                close(result, other, value.dtype)
            else:
                assert kit.same(result, other).all()
        checked += 1
    if not checked:
        pytest.skip("no float goes in and comes out")


@pytest.mark.parametrize("name", MAPPED)
def test_no_examples_give_none(kit, name):
    row = lookup(name)
    for graph in graphs_of(kit, row):
        flags = (True,) * len(graph.inputs)
        batched, given = batch_graph(graph, flags, 0)
        found = evaluate(batched, arrays_of(kit, graph, flags, 0, False))
        for array, flag, value in zip(found, given, graph.outputs, strict=True):
            assert array.shape == ((0, *value.shape) if flag else value.shape)

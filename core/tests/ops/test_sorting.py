"""Sorting and running folds: what the tests over all rows do not look at."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bringup import ops
from bringup.dtypes import ALL, DType, bf16, f16, f32, f64, i32, i64
from bringup.errors import OpTypeError
from bringup.graph import Builder
from bringup.ops.evaluate import evaluate
from bringup.ops.table import lookup
from bringup.tracing.autodiff import vjp_graph

Array = np.ndarray[Any, Any]


def run(arrays: list[Array], **attrs: Any) -> list[Array]:
    made = lookup("sort").reference(
        *arrays, **{"dim": 0, "num_keys": 1, "descending": False} | attrs
    )
    return list(made) if isinstance(made, tuple) else [made]


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_the_reference_sorts_every_dtype_as_numpy_does(dtype: DType) -> None:
    x = np.random.default_rng(0).integers(0, 9, 50).astype(dtype.numpy)
    (up,), (down,) = run([x]), run([x], descending=True)
    wanted = np.sort(x.astype(np.float64))
    assert np.array_equal(up.astype(np.float64), wanted)
    assert np.array_equal(down.astype(np.float64), wanted[::-1])


def test_equal_keys_keep_their_order_both_ways() -> None:
    x = np.array([1, 0.0, -0.0, np.nan, 1, 0.0, -np.nan, -0.0])
    places = np.arange(8)
    assert run([x, places])[1].tolist() == [1, 2, 5, 7, 0, 4, 3, 6]
    assert run([x, places], descending=True)[1].tolist() == [3, 6, 0, 4, 1, 2, 5, 7]


def test_the_first_of_several_keys_decides_first() -> None:
    a, b = np.array([1, 0, 1, 0]), np.array([2.0, 5.0, 1.0, 5.0])
    assert run([a, b, np.arange(4)], num_keys=2)[2].tolist() == [1, 3, 2, 0]
    assert run([a, b, np.arange(4)], num_keys=2, descending=True)[2].tolist() == [0, 2, 1, 3]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(("shape", "dim"), [((9,), 0), ((3, 5), 1), ((4, 2, 3), 0)])
def test_cotangents_go_back_where_the_elements_came_from(
    shape: tuple[int, ...], dim: int, descending: bool
) -> None:
    rng = np.random.default_rng(3)
    with Builder() as b:
        key, note, load = b.input(f64[shape]), b.input(i32[shape]), b.input(f64[shape])
        made = ops.sort(key, note, load, dim=dim, descending=descending)
        graph = b.build(made)
    gradients = vjp_graph(graph, (0, 2), (0, 2))
    arrays = [rng.permutation(int(np.prod(shape))).reshape(shape).astype(float) for _ in range(2)]
    notes = rng.integers(0, 9, shape).astype(np.int32)
    cts = [rng.normal(size=shape) for _ in range(2)]
    given = [arrays[0], notes, arrays[1]]
    found = evaluate(gradients, [*given, *cts])[-2:]
    order = np.argsort(-arrays[0] if descending else arrays[0], dim)
    for got, ct in zip(found, cts, strict=True):
        assert np.array_equal(np.take_along_axis(got, order, dim), ct)


def test_a_lone_operand_has_a_gradient_of_its_own() -> None:
    with Builder() as b:
        graph = b.build([ops.sort(b.input(f32[3]), dim=0)])
    x, ct = np.array([3, 1, 2], np.float32), np.array([10, 20, 30], np.float32)
    assert evaluate(vjp_graph(graph, (0,)), [x, ct])[-1].tolist() == [30, 10, 20]


@pytest.mark.parametrize(
    ("operands", "attrs", "what"),
    [
        ((f32[3], i32[4]), {"dim": 0}, "shapes differ"),
        ((f32[3],), {"dim": 1}, "out of range"),
        ((f32[()],), {"dim": 0}, "out of range"),
        ((f32[3], i32[3]), {"dim": 0, "num_keys": 3}, "num_keys 3 of 2"),
        ((f32[3],), {"dim": 0, "num_keys": 0}, "num_keys 0 of 1"),
        ((f32[3],), {"dim": 0, "descending": 1}, "is no bool"),
    ],
)
def test_sort_says_what_it_does_not_take(operands: Any, attrs: Any, what: str) -> None:
    with Builder() as b, pytest.raises(OpTypeError, match=what) as caught:
        ops.sort(*(b.input(t) for t in operands), **attrs)
    assert caught.value.fix


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("reverse", [False, True])
def test_an_extreme_before_the_first_element_is_the_identity(
    kit: Any, kind: str, reverse: bool
) -> None:
    for dtype in (f16, bf16, f32, i64):
        x = kit.values(dtype, (37,), 1)
        attrs = {"kind": kind, "dim": 0, "reverse": reverse, "exclusive": True}
        graph = kit.graph(lookup("cumulative"), [dtype[37]], attrs)
        (wanted,), (actual,) = evaluate(graph, [x]), evaluate(kit.lowered(graph), [x])
        assert kit.same(actual, wanted).all()
        first = lookup("reduce").reference(x[:0], kind=kind, dims=(0,))
        assert wanted[-1 if reverse else 0] == first


def test_a_running_product_with_zeros_has_a_gradient() -> None:
    with Builder() as b:
        graph = b.build([ops.cumulative(b.input(f64[4]), kind="mul", dim=0)])
    x, ct = np.array([2.0, 0.0, 3.0, 5.0]), np.ones(4)
    # d(2 + 0 + 0 + 0): of the first element 1 + x1(1 + x2(1 + x3)), of the second 2(1 + 3(1 + 5)).
    assert evaluate(vjp_graph(graph, (0,)), [x, ct])[-1].tolist() == [1, 38, 0, 0]


def test_the_last_of_equal_extremes_takes_the_cotangents() -> None:
    with Builder() as b:
        graph = b.build([ops.cumulative(b.input(f64[5]), kind="max", dim=0)])
    x, ct = np.array([1.0, 3.0, 2.0, 3.0, 0.0]), np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    assert evaluate(vjp_graph(graph, (0,)), [x, ct])[-1].tolist() == [1, 6, 0, 24, 0]

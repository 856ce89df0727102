"""Sorting, searching, distinct elements, running folds: against numpy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import OpTypeError, TraceError

RNG = np.random.default_rng(0)
FLOATS = np.array([3.0, np.nan, -0.0, 1.0, 0.0, 3.0, -np.inf, np.nan, np.inf, 1.0], np.float32)
CASES = [FLOATS, RNG.integers(-3, 4, (3, 4, 5)), RNG.integers(0, 2, 9).astype(bool), FLOATS[:0]]


def host(x: Any) -> Any:
    return np.asarray(x)


@pytest.mark.parametrize("x", CASES, ids=lambda x: f"{x.dtype}{list(x.shape)}")
@pytest.mark.parametrize("descending", [False, True])
def test_sorting_along_every_axis(x: Any, descending: bool) -> None:
    for axis in range(-x.ndim, x.ndim):
        order = host(bu.argsort(bu.asarray(x), axis=axis, descending=descending))
        wanted = np.argsort(x, axis, kind="stable")
        if descending:
            flipped = np.argsort(np.flip(x, axis), axis, kind="stable")
            wanted = x.shape[axis] - 1 - np.flip(flipped, axis)
        assert order.dtype == np.int64
        assert np.array_equal(order, wanted)
        made = host(bu.sort(bu.asarray(x), axis=axis, descending=descending))
        assert np.array_equal(
            made, np.take_along_axis(x, wanted, axis), equal_nan=x.dtype.kind == "f"
        )


def test_the_largest_and_the_smallest_entries() -> None:
    x = bu.asarray([[3, 1, 4, 1, 5], [2, 7, 1, 8, 2]])
    found = bu.top_k(x, 2)
    assert found.values.tolist() == [[5, 4], [8, 7]]
    assert found.indices.tolist() == [[4, 2], [3, 1]]
    assert bu.top_k(x, 2, mode="smallest").indices.tolist() == [[1, 3], [2, 0]]
    assert bu.top_k(x, 1, axis=0).values.tolist() == [[3, 7, 4, 8, 5]]
    assert bu.top_k(x, 0).values.shape == (2, 0)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 100])
def test_a_search_agrees_with_numpy(side: Any, size: int) -> None:
    for drawn in (RNG.integers(0, 9, size), np.round(RNG.normal(size=size), 1)):
        table: Any = np.sort(drawn)
        wanted: Any = np.append(drawn, [-5, 4.0, 99]).reshape(-1, 1)
        if table.dtype.kind == "f":
            table = np.append(table, [np.nan, np.nan])
            wanted = np.append(wanted, [np.nan, np.inf, -np.inf])
        else:
            wanted = wanted.astype(table.dtype)
        found = host(bu.searchsorted(bu.asarray(table), bu.asarray(wanted), side=side))
        assert np.array_equal(found, np.searchsorted(table, wanted, side))


def test_a_search_takes_the_order_instead_of_a_sorted_array() -> None:
    x = bu.asarray([3, 1, 2])
    found = bu.searchsorted(x, bu.asarray([2, 9]), sorter=bu.argsort(x))
    assert found.tolist() == [1, 3]


@pytest.mark.parametrize("count", [0, 3, 100])
def test_membership_agrees_with_numpy(count: int) -> None:
    x, others = RNG.integers(0, 300, (4, 9)), RNG.integers(0, 300, count)
    assert np.array_equal(host(bu.isin(bu.asarray(x), bu.asarray(others))), np.isin(x, others))
    found = bu.isin(bu.asarray(x), bu.asarray(others), invert=True)
    assert np.array_equal(host(found), np.isin(x, others, invert=True))
    many = bu.asarray(np.append(FLOATS, np.arange(40)))
    assert bu.isin(bu.asarray([np.nan, 0.0]), many).tolist() == [False, True]


@pytest.mark.parametrize("x", CASES, ids=lambda x: f"{x.dtype}{list(x.shape)}")
def test_distinct_elements(x: Any) -> None:
    found = bu.unique_all(bu.asarray(x))
    values, indices, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    assert np.array_equal(host(found.values), values, equal_nan=x.dtype.kind == "f")
    assert np.array_equal(host(found.indices), indices)
    assert np.array_equal(host(found.inverse_indices), inverse.reshape(x.shape))
    assert np.array_equal(host(found.counts), counts)
    assert found.inverse_indices.shape == x.shape
    assert host(bu.unique_values(bu.asarray(x))).shape == values.shape
    assert bu.unique_counts(bu.asarray(x)).counts.tolist() == counts.tolist()
    assert bu.unique_inverse(bu.asarray(x)).inverse_indices.shape == x.shape


@pytest.mark.parametrize("size", [0, 1, 2, 3, 5])
def test_distinct_elements_of_a_size_that_is_known(size: int) -> None:
    found = bu.jit(lambda x: bu.unique_all(x, size=size))(bu.asarray([5, 2, 5, 9, 2, 2]))
    assert found.values.tolist() == [2, 5, 9, 9, 9][:size]
    assert found.indices.tolist()[:3] == [1, 0, 3][:size]
    assert found.inverse_indices.tolist() == [1, 0, 1, 2, 0, 0]
    assert found.counts.tolist() == [3, 2, 1, 0, 0][:size]


@pytest.mark.parametrize("name", ["unique_all", "unique_counts", "unique_inverse", "unique_values"])
def test_a_traced_function_must_say_how_many_distinct_elements_it_keeps(name: str) -> None:
    function = getattr(bu, name)
    with pytest.raises(TraceError, match="the number of distinct elements") as caught:
        bu.jit(lambda x: function(x))(bu.asarray([1, 2]))
    assert f"{name}(x, size=n)" in str(caught.value)
    assert "test_sorting.py" in str(caught.value)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_running_folds_agree_with_numpy(axis: int) -> None:
    x = RNG.integers(-4, 5, (5, 7))
    a = bu.asarray(x)
    assert np.array_equal(host(bu.cumulative_sum(a, axis=axis)), np.cumsum(x, axis))
    assert np.array_equal(host(bu.cumulative_prod(a, axis=axis)), np.cumprod(x, axis))
    assert np.array_equal(host(bu.cummax(a, axis=axis)), np.maximum.accumulate(x, axis))
    assert np.array_equal(host(bu.cummin(a, axis=axis)), np.minimum.accumulate(x, axis))
    turned = np.flip(np.maximum.accumulate(np.flip(x, axis), axis), axis)
    assert np.array_equal(host(bu.cummax(a, axis=axis, reverse=True)), turned)


def test_running_folds_take_their_dtypes_from_sums() -> None:
    small = bu.asarray([100, 100], dtype=bu.int8)
    assert bu.cumulative_sum(small).dtype is bu.int64
    assert bu.cumulative_sum(small).tolist() == [100, 200]
    assert bu.cumulative_sum(small, dtype=bu.int8).tolist() == [100, -56]
    assert bu.cumulative_sum(bu.asarray([True, True])).tolist() == [1, 2]
    assert bu.cumulative_prod(bu.asarray([3, 5], dtype=bu.uint8)).dtype is bu.uint64
    assert bu.cummax(bu.asarray([False, True, False])).tolist() == [False, True, True]


def test_running_folds_may_begin_with_nothing() -> None:
    x = bu.asarray([[1.0, 2.0], [3.0, 4.0]])
    found = bu.cumulative_sum(x, axis=0, include_initial=True)
    assert found.tolist() == [[0, 0], [1, 2], [4, 6]]
    assert bu.cumulative_prod(x[0], include_initial=True).tolist() == [1, 1, 2]
    assert bu.cumulative_sum(x[0, :0], include_initial=True).tolist() == [0]


def test_differences() -> None:
    x = RNG.integers(0, 9, (3, 6))
    for axis, n in itertools.product((0, 1), (0, 1, 2, 3)):
        assert np.array_equal(host(bu.diff(bu.asarray(x), axis=axis, n=n)), np.diff(x, n, axis))
    found = bu.diff(bu.asarray([1, 4]), prepend=bu.asarray(0), append=bu.asarray([9, 9]))
    assert found.tolist() == [1, 3, 5, 0]
    assert bu.diff(bu.asarray([True, False, False])).tolist() == [True, False]


@pytest.mark.parametrize("axis", [None, 0, 1, (0, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_quantiles_agree_with_numpy(axis: Any, keepdims: bool) -> None:
    x = RNG.normal(size=(3, 4, 5))
    x[0, 1, 2] = np.nan
    for q in (0.0, 0.3, 1.0, [0.25, 0.5]):
        found = host(bu.quantile(bu.asarray(x), q, axis=axis, keepdims=keepdims))
        wanted = np.quantile(x, q, axis=axis, keepdims=keepdims)
        assert np.allclose(found, wanted, equal_nan=True)
    found = host(bu.median(bu.asarray(x), axis=axis, keepdims=keepdims))
    assert np.allclose(found, np.median(x, axis=axis, keepdims=keepdims), equal_nan=True)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_the_logarithm_of_a_sum_of_exponentials(axis: Any) -> None:
    x = np.array([[1000.0, 1000.0], [-1000.0, 0.0]])
    found = host(bu.nn.logsumexp(bu.asarray(x), axis=axis, keepdims=True))
    assert np.allclose(found, np.logaddexp.reduce(x, axis=axis, keepdims=True))
    inf = bu.asarray([-bu.inf, -bu.inf])
    assert bu.nn.logsumexp(inf).tolist() == -np.inf
    assert bu.nn.logsumexp(bu.asarray([bu.inf, 1.0])).tolist() == np.inf
    assert bu.nn.logsumexp(inf[:0]).tolist() == -np.inf


def test_gradients_go_through_what_sorts() -> None:
    x = bu.asarray([3.0, 1.0, 2.0])
    weights = bu.asarray([1.0, 10.0, 100.0])
    assert bu.grad(lambda x: bu.sum(bu.sort(x) * weights))(x).tolist() == [100, 1, 10]
    assert bu.grad(lambda x: bu.sum(bu.top_k(x, 2).values * weights[1:]))(x).tolist() == [
        10,
        0,
        100,
    ]
    assert bu.grad(lambda x: bu.median(x))(x).tolist() == [0, 0, 1]
    slopes = bu.grad(lambda x: bu.nn.logsumexp(x))(bu.asarray([0.0, 0.0]))
    assert slopes.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda x: bu.sort(bu.sum(x)), r"sort: f32\[\] is 0-d"),
        (lambda x: bu.sort(x, axis=1), "axis 1 is out of range"),
        (lambda x: bu.top_k(x, 4), "k 4 of axis 0"),
        (lambda x: bu.top_k(x, 1, mode="best"), "mode 'best' is unknown"),
        (lambda x: bu.searchsorted(bu.reshape(x, (1, 3)), x), "is not 1-d"),
        (lambda x: bu.searchsorted(x, x, side="up"), "side 'up' is unknown"),
        (lambda x: bu.cumulative_sum(bu.reshape(x, (1, 3))), "no axis is given"),
        (lambda x: bu.quantile(x, 1.5), "q 1.5 is no share"),
        (lambda x: bu.median(x[:0]), "no elements"),
        (lambda x: bu.diff(x, n=-1), "n -1 is negative"),
        (lambda x: bu.unique_all(x, size=-1), "size -1"),
        (lambda x: bu.unique_all(x[:0], size=2), "size 2 of"),
    ],
)
def test_what_is_not_taken_is_said_with_the_line(call: Callable[[Any], Any], what: str) -> None:
    with pytest.raises(OpTypeError, match=what) as caught:
        call(bu.asarray([1.0, 2.0, 3.0], dtype=bu.float32))
    assert "test_sorting.py" in str(caught.value)
    assert caught.value.fix

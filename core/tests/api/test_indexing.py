from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import bringup as bu
from bringup.errors import ArrayIndexError, ConversionError, OpTypeError

KEYS: list[Any] = [
    0,
    -1,
    np.int64(1),
    slice(None),
    slice(1, None),
    slice(None, -1),
    slice(None, None, -1),
    slice(3, 0, -2),
    slice(2, 2),
    slice(-100, 100, 2),
    slice(5, 1),
    ...,
    None,
    (),
    (1, 2),
    (1, ..., 0),
    (..., slice(None, None, -1)),
    (None, 1, None, slice(0, 2), None),
    (slice(None, None, 2), -1, slice(None, None, -3)),
    (1, 2, 3),
]


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_basic_indexing_is_numpys(key: Any) -> None:
    x = np.arange(60).reshape(3, 4, 5)
    found, expected = bu.asarray(x)[key], x[key]
    assert found.shape == expected.shape
    np.testing.assert_array_equal(np.asarray(found), expected)


@given(data=st.data())
@settings(max_examples=150)
def test_any_basic_index_is_numpys(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(max_dims=3, min_side=0, max_side=5))
    x = np.arange(int(np.prod(shape))).reshape(shape)
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True))
    np.testing.assert_array_equal(np.asarray(bu.asarray(x)[key]), x[key])
    values = np.broadcast_to(np.int64(-5), x[key].shape)
    expected = x.copy()
    expected[key] = values
    np.testing.assert_array_equal(np.asarray(bu.asarray(x).at[key].set(values)), expected)


def test_arrays_of_one_integer_index() -> None:
    x = bu.asarray([10, 20, 30])
    assert x[bu.asarray(1)].item() == 20
    assert x[bu.asarray(1) : bu.asarray(3)].tolist() == [20, 30]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (3, "index 3 is out of range for dimension 0 of i64[3,4]"),
        ((0, -5), "index -5 is out of range for dimension 1 of i64[3,4]"),
        ((0, 0, 0), "3 indices for i64[3,4], which has rank 2"),
        ((..., ...), "more than one '...' for i64[3,4]"),
        (1.0, "1.0 does not index an array"),
        ("a", "'a' does not index an array"),
    ],
    ids=repr,
)
def test_other_keys_are_refused(key: Any, message: str) -> None:
    with pytest.raises(ArrayIndexError) as caught:
        bu.asarray(np.arange(12).reshape(3, 4))[key]
    assert caught.value.what.startswith(message)
    assert caught.value.fix
    assert caught.value.location is not None
    assert caught.value.location.file == __file__


def test_items_cannot_be_assigned_and_the_error_shows_how_to_update() -> None:
    x = bu.zeros((2, 3))
    with pytest.raises(ConversionError) as caught:
        x[0, 1:] = 5
    assert "arrays are immutable: x[0, 1:] = … cannot change f64[2,3]" in str(caught.value)
    assert "fix: make a new array: x = x.at[0, 1:].set(value)" in str(caught.value)
    assert caught.value.location is not None
    assert caught.value.location.file == __file__


def test_updates() -> None:
    x = np.arange(12.0).reshape(3, 4)
    a = bu.asarray(x)
    expected = x.copy()
    expected[:, ::-2] += np.array([10.0, 20.0])
    np.testing.assert_array_equal(np.asarray(a.at[:, ::-2].add(np.array([10.0, 20.0]))), expected)
    assert a.tolist() == x.tolist()
    assert a.at[1, 1].set(9).dtype is bu.float64
    assert a.at[...].set(bu.ones(4)).tolist() == [[1.0] * 4] * 3
    assert bu.asarray([1, 2]).at[0].set(bu.asarray(True)).tolist() == [1, 2]
    assert bu.asarray([True, False]).at[1].set(True).tolist() == [True, True]
    with pytest.raises(OpTypeError, match=r"values of f64\[\] do not fit into i64\[2\]"):
        bu.asarray([1, 2]).at[0].set(bu.asarray(0.5))
    with pytest.raises(ConversionError, match="does not become i64"):
        bu.asarray([1, 2]).at[0].set(0.5)
    with pytest.raises(OpTypeError, match="does not broadcast to shape"):
        a.at[0].set(np.zeros(3))


def test_an_update_has_a_gradient() -> None:
    x, v = bu.asarray([1.0, 2.0, 3.0]), bu.asarray([5.0])
    by_x, by_v = bu.grad(lambda x, v: bu.sum(x.at[1:2].set(v) ** 2), argnums=(0, 1))(x, v)
    assert by_x.tolist() == [2.0, 0.0, 6.0]
    assert by_v.tolist() == [10.0]


def test_one_element_of_memory_the_host_sees_needs_no_program(shared: Any) -> None:
    x = bu.asarray(np.arange(6.0).reshape(2, 3))
    compiled = shared.compiled
    assert [float(x[i, j]) for i in range(2) for j in range(3)] == [0, 1, 2, 3, 4, 5]
    assert [row.tolist() for row in x] == [[0, 1, 2], [3, 4, 5]]
    assert shared.compiled == compiled

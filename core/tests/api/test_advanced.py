"""Indexing by arrays and masks: numpy is the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import bringup as bu
from bringup.errors import ArrayIndexError, OpTypeError, TraceError

X = np.arange(60).reshape(3, 4, 5)
MASK = (X[:, :, 0] % 3) == 0

KEYS: list[Any] = [
    np.array([0, 2, -1]),
    [1, 1, 0],
    [],
    np.zeros((0, 2), np.int64),
    np.array([[0, 1], [2, 0]]),
    (slice(None), [0, 3]),
    (..., [0, 4, -5]),
    ([0, 2], [1, 3]),
    ([0, 2], slice(None), [1, 3]),
    (slice(None), [0, 2], [1, 3]),
    ([[0], [2]], [1, 3], slice(1, 4)),
    (slice(None, None, -1), [0, 2], slice(None, None, 2)),
    (0, slice(None), [1, 2]),
    (slice(None), 0, [1, 2]),
    ([0, 1], None, [2, 3]),
    (None, [0, 1], [2, 3], None),
    (None, slice(1, 3), None, [2, 3]),
    (slice(1, 1), [2, 3]),
    X % 2 == 0,
    MASK,
    (slice(None), np.array([True, False, True, False])),
    (MASK, slice(1, 3)),
    (MASK, [0]),
    (..., X[0, 0] > 2),
    (np.array([True, False, True]), ..., [0, 2]),
    np.zeros((3, 4, 5), bool),
    # An ellipsis that stands for no dimension parts indices all the same.
    (slice(None, None, -2), [[0, 1], [2, 3]], ..., 0),
    (slice(None), ..., [0, 1], [2, 3]),
    ([0, 1], ..., [2, 3], 0),
]


def ours(key: Any) -> Any:
    """The key with arrays of ours for numpy's."""
    if isinstance(key, tuple):
        return tuple(map(ours, key))
    return bu.asarray(np.asarray(key)) if isinstance(key, np.ndarray | list) and len(key) else key


@pytest.mark.parametrize("convert", [lambda key: key, ours], ids=["known", "data"])
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_reading_is_numpys(key: Any, convert: Any) -> None:
    found, expected = bu.asarray(X)[convert(key)], X[key]
    assert found.shape == expected.shape
    np.testing.assert_array_equal(np.asarray(found), expected)


@pytest.mark.parametrize("convert", [lambda key: key, ours], ids=["known", "data"])
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_writing_is_numpys(key: Any, convert: Any) -> None:
    values = 100 + np.arange(X[key].size).reshape(X[key].shape)
    expected = X.copy()
    expected[key] = values
    np.testing.assert_array_equal(np.asarray(bu.asarray(X).at[convert(key)].set(values)), expected)
    expected = X.copy()
    np.add.at(expected, key, 7)
    np.testing.assert_array_equal(np.asarray(bu.asarray(X).at[convert(key)].add(7)), expected)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_index_arrays_are_numpys(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(max_dims=3, min_side=1, max_side=5))
    x = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    count = data.draw(st.integers(1, len(shape)))
    result = data.draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4))
    items: list[Any] = []
    for n in shape[:count]:
        dtype = data.draw(st.sampled_from([np.int8, np.uint8, np.int32, np.int64, np.uint64]))
        low = 0 if np.dtype(dtype).kind == "u" else -n
        items.append(data.draw(hnp.arrays(dtype, result, elements=st.integers(low, n - 1))))
    items += [slice(*data.draw(st.tuples(*[st.none() | st.integers(-3, 5)] * 2)))] * (
        len(shape) > count
    )
    order = data.draw(st.permutations(range(len(items))))
    dims = [shape[i] if i < count else 0 for i in order]
    if any(i < count and n != shape[at] for at, (i, n) in enumerate(zip(order, dims, strict=True))):
        order = list(range(len(items)))
    key = tuple(items[i] for i in order)
    wrapped = tuple(bu.asarray(i) if isinstance(i, np.ndarray) else i for i in key)
    np.testing.assert_array_equal(np.asarray(bu.asarray(x)[wrapped]), x[key])
    values = np.arange(x[key].size, dtype=np.float32).reshape(x[key].shape)
    expected = x.copy()
    expected[key] = values
    np.testing.assert_array_equal(np.asarray(bu.asarray(x).at[wrapped].set(values)), expected)


def test_indices_that_are_data_stay_in_range_and_updates_out_of_it_are_dropped() -> None:
    x = bu.asarray([10, 20, 30])
    far = bu.asarray([5, -9, 1])
    assert x[far].tolist() == [30, 10, 20]
    assert x.at[far].set(0).tolist() == [10, 0, 30]
    assert x.at[far].add(bu.asarray([1, 2, 3])).tolist() == [10, 23, 30]


def test_masks_of_many_sizes_need_no_programs(shared: Any) -> None:
    x = bu.asarray(np.arange(60.0).reshape(12, 5))
    masks = [bu.asarray(np.arange(12) < n) for n in range(8)]
    compiled = shared.compiled
    assert [x[mask, 1:].shape for mask in masks] == [(n, 4) for n in range(8)]
    assert [float(x[mask][n - 1, 0]) for n, mask in enumerate(masks) if n] == [
        5.0 * n for n in range(7)
    ]
    assert shared.compiled == compiled
    far = x[bu.asarray(np.arange(12) < 2), bu.asarray([9, 0])]
    assert far.tolist() == [4.0, 5.0]


def test_kinds_of_updates_and_repeated_indices() -> None:
    x, at = bu.asarray([5.0, 6.0, 7.0]), bu.asarray([1, 1, 2])
    new = bu.asarray([2.0, 3.0, 9.0])
    assert x.at[at].set(new).tolist() == [5.0, 3.0, 9.0]
    assert x.at[at].add(new).tolist() == [5.0, 11.0, 16.0]
    assert x.at[at].multiply(new).tolist() == [5.0, 36.0, 63.0]
    assert x.at[at].min(new).tolist() == [5.0, 2.0, 7.0]
    assert x.at[at].max(new).tolist() == [5.0, 6.0, 9.0]


def test_under_jit_indices_are_data() -> None:
    def f(x: Any, i: Any) -> Any:
        return x[i, 1:] + x[0, i][:, None]

    x, i = X[:, :, 0], np.array([0, 2, 2])
    wanted = x[i, 1:] + x[0, i][:, None]
    np.testing.assert_array_equal(np.asarray(bu.jit(f)(bu.asarray(x), bu.asarray(i))), wanted)
    one = bu.jit(lambda x, i: x[i])
    assert [one(bu.asarray(x), bu.asarray(k)).tolist() for k in (0, 2)] == [
        x[0].tolist(),
        x[2].tolist(),
    ]


def test_a_mask_under_jit_needs_a_size() -> None:
    x = bu.asarray([1.0, -2.0, 3.0])
    with pytest.raises(TraceError, match=r"fix: under jit use where\(mask, x, 0\)"):
        bu.jit(lambda x: x[x > 0])(x)
    with pytest.raises(TraceError, match=r"nonzero\(x, size=n\)"):
        bu.jit(bu.nonzero)(x)
    limited = bu.jit(lambda x: x.at[x < 0].set(0) + x.at[x > 0].multiply(2))
    assert limited(x).tolist() == [3.0, -2.0, 9.0]
    found = bu.jit(lambda x: x[bu.nonzero(x > 0, size=2)[0]])
    assert found(x).tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ([0, 3], "index 3 is out of range for dimension 0 of i64[3,4,5]"),
        (([0], [0], [0], [0]), "4 indices for i64[3,4,5], which has rank 3"),
        (([0, 1], [0, 1, 2]), "index arrays of i64[3,4,5] do not broadcast to one shape: (2,), (3"),
        (np.ones((3, 3), bool), "a mask of shape (3, 3) does not fit i64[3,4,5], whose"),
        (np.array([0.5]), "array([0.5]) does not index an array"),
        (([0], "a"), "'a' does not index an array"),
    ],
    ids=str,
)
def test_other_keys_are_refused(key: Any, message: str) -> None:
    for use in (lambda x: x[key], lambda x: x.at[key].set(0)):
        with pytest.raises(ArrayIndexError) as caught:
            use(bu.asarray(X))
        assert caught.value.what.startswith(message)
        assert caught.value.fix
        assert caught.value.location is not None
        assert caught.value.location.file == __file__


def test_take_and_along_axis_are_numpys() -> None:
    x = np.random.default_rng(0).random((4, 5)).astype(np.float32)
    i = np.array([[3, 0], [-1, 2]])
    np.testing.assert_array_equal(np.asarray(bu.take(bu.asarray(x), i, axis=1)), x.take(i, axis=1))
    np.testing.assert_array_equal(
        np.asarray(bu.take(bu.asarray(x[0]), bu.asarray(i))), x[0].take(i)
    )
    order = np.argsort(x, axis=0)
    for at in (order, order[:2], order[:, :1]):
        wanted = np.take_along_axis(x, np.broadcast_to(at, (len(at), 5)), axis=0)
        found = bu.take_along_axis(bu.asarray(x), bu.asarray(at), axis=0)
        np.testing.assert_array_equal(np.asarray(found), wanted)
    wanted = x.copy()
    np.put_along_axis(wanted, order[:2], -1, axis=0)
    found = bu.put_along_axis(bu.asarray(x), bu.asarray(order[:2]), -1, axis=0)
    np.testing.assert_array_equal(np.asarray(found), wanted)
    with pytest.raises(OpTypeError, match="pass axis="):
        bu.take(bu.asarray(x), [0])
    with pytest.raises(OpTypeError, match="indices must be integers"):
        bu.take(bu.asarray(x), bu.asarray([0.5]), axis=0)
    with pytest.raises(OpTypeError, match="differ in rank"):
        bu.take_along_axis(bu.asarray(x), bu.asarray([0]))


def test_dynamic_slices_clamp() -> None:
    x = bu.asarray(X[0])
    cut = bu.jit(lambda x, i, j: bu.dynamic_slice(x, (i, j), (2, 3)))
    for i, j in ((0, 0), (1, 2), (9, 9), (-4, 1)):
        a, b = min(max(i, 0), 2), min(max(j, 0), 2)
        assert cut(x, bu.asarray(i), bu.asarray(j)).tolist() == X[0][a : a + 2, b : b + 3].tolist()
        wanted = X[0].copy()
        wanted[a : a + 2, b : b + 3] = -1
        new = bu.full((2, 3), -1)
        assert bu.dynamic_update_slice(x, new, (bu.asarray(i), j)).tolist() == wanted.tolist()
    with pytest.raises(OpTypeError, match="1 starts for"):
        bu.dynamic_slice(x, [0], [1, 1])
    with pytest.raises(OpTypeError, match="starts must be integers"):
        bu.dynamic_slice(x, bu.asarray([0.5, 0.5]), [1, 1])


def test_nonzero_is_numpys() -> None:
    for x in (X % 3, np.zeros((2, 0)), np.array([False, True])):
        found = bu.nonzero(bu.asarray(x))
        for a, b in zip(found, np.nonzero(x), strict=True):
            np.testing.assert_array_equal(np.asarray(a), b)
    sized = bu.jit(lambda x: bu.nonzero(x, size=50, fill=-1))(bu.asarray(X % 3))
    for a, b in zip(sized, np.nonzero(X % 3), strict=True):
        assert a.tolist() == [*b, *[-1] * (50 - len(b))]
    assert bu.nonzero(bu.asarray([1, 1, 1]), size=2)[0].tolist() == [0, 1]
    with pytest.raises(OpTypeError, match="0-d"):
        bu.nonzero(bu.asarray(1))


def test_gradients() -> None:
    x = bu.asarray([1.0, 2.0, 3.0])
    i = bu.asarray([2, 0, 2])
    assert bu.grad(lambda x: bu.sum(x[i] ** 2))(x).tolist() == [2.0, 0.0, 12.0]
    v = bu.asarray([4.0, 5.0, 6.0])
    by_x, by_v = bu.grad(lambda x, v: bu.sum(x.at[i].set(v) ** 2), argnums=(0, 1))(x, v)
    assert by_x.tolist() == [0.0, 4.0, 0.0]
    assert by_v.tolist() == [0.0, 10.0, 12.0]
    by_x, by_v = bu.grad(lambda x, v: bu.sum(x.at[i].add(v) ** 2), argnums=(0, 1))(x, v)
    assert by_x.tolist() == [12.0, 4.0, 26.0]
    assert by_v.tolist() == [26.0, 12.0, 26.0]
    start = bu.asarray(1)
    by_x = bu.grad(lambda x: bu.sum(bu.dynamic_slice(x, [start], [2]) ** 2))(x)
    assert by_x.tolist() == [0.0, 4.0, 6.0]
    lines = bu.asarray([[0], [1]])
    m = bu.asarray([[1.0, 2.0], [3.0, 4.0]])
    by_m = bu.grad(lambda m: bu.sum(bu.take_along_axis(m, lines) ** 2))(m)
    assert by_m.tolist() == [[2.0, 0.0], [0.0, 8.0]]


NARROW = [np.int8, np.int16, np.uint8, np.uint16, np.int32, np.uint32, np.uint64]


@pytest.mark.parametrize("held", [True, False], ids=["known", "data"])
@pytest.mark.parametrize("dtype", NARROW)
def test_an_index_dtype_need_not_hold_the_size_it_indexes(dtype: Any, held: bool) -> None:
    size = 300 if np.iinfo(dtype).bits == 8 else 70000
    x = np.arange(size, dtype=np.float32)
    signs = [-3, -1] if np.iinfo(dtype).min < 0 else []
    index = np.array([0, 5, 127, *signs], dtype)
    given: Any = index if held else bu.asarray(index)
    ours = bu.asarray(x)
    np.testing.assert_array_equal(np.asarray(ours[given]), x[index])
    np.testing.assert_array_equal(np.asarray(bu.take(ours, given)), x[index])
    np.testing.assert_array_equal(np.asarray(bu.take_along_axis(ours, given)), x[index])
    np.testing.assert_array_equal(np.asarray(bu.jit(lambda v: v[given])(ours)), x[index])
    changed = x.copy()
    changed[index] = -1
    np.testing.assert_array_equal(np.asarray(ours.at[given].set(-1)), changed)
    np.testing.assert_array_equal(np.asarray(bu.put_along_axis(ours, given, -1)), changed)
    np.add.at(changed, index, 7)
    np.testing.assert_array_equal(np.asarray(ours.at[given].set(-1).at[given].add(7)), changed)


@pytest.mark.parametrize("dtype", NARROW)
def test_a_start_known_here_is_not_cut_to_the_dtype_of_the_others(dtype: Any) -> None:
    x = bu.asarray(np.arange(300 * 300).reshape(300, 300))
    first = bu.asarray(dtype(3))
    assert bu.dynamic_slice(x, [first, 290], (1, 1)).tolist() == [[3 * 300 + 290]]
    assert bu.dynamic_slice(x, [first, bu.asarray(290)], (1, 1)).tolist() == [[3 * 300 + 290]]
    huge = bu.asarray(np.uint64(2**63 + 1))
    assert bu.dynamic_slice(x, [huge, first], (1, 1)).tolist() == [[299 * 300 + 3]]


SCALAR_MASKS: list[Any] = [
    True, False, np.True_, np.array(False), (True, 1), (1, False), (..., True), (..., True, 0),
    (0, ..., True), (True, True), (True, [0, 2]), ([0, 2], True), (slice(1), True),
    (None, True, slice(1)), (MASK, True), (slice(None), True, [0, 2]), (..., [0, 2], True),
]  # fmt: skip


@pytest.mark.parametrize("key", SCALAR_MASKS, ids=str)
def test_masks_of_no_dimensions_are_numpys(key: Any) -> None:
    x = bu.asarray(X)
    found = x[key]
    assert found.shape == X[key].shape
    np.testing.assert_array_equal(np.asarray(found), X[key])
    values = 100 + np.arange(X[key].size).reshape(X[key].shape)
    expected = X.copy()
    expected[key] = values
    np.testing.assert_array_equal(np.asarray(x.at[key].set(values)), expected)


def test_a_traced_mask_of_no_dimensions_updates() -> None:
    f = bu.jit(lambda x, m: x.at[m].set(7))
    assert f(bu.arange(3), bu.asarray(True)).tolist() == [7, 7, 7]
    assert f(bu.arange(3), bu.asarray(False)).tolist() == [0, 1, 2]
    assert bu.asarray(5)[bu.asarray(True)].tolist() == [5]

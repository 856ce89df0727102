"""Dropout and the first values of weights."""

from __future__ import annotations

import math

import numpy as np
import pytest

import bringup as bu
from bringup.errors import OpTypeError


def test_dropout_keeps_the_mean_and_scales() -> None:
    x = bu.asarray(np.linspace(1, 2, 100_000).astype(np.float32))
    y = np.asarray(bu.nn.dropout(x, bu.random.key(0), 0.25))
    assert y.dtype == np.float32
    kept = y != 0
    assert abs(kept.mean() - 0.75) <= 5 * math.sqrt(0.75 * 0.25 / x.size)
    assert np.allclose(y[kept] / np.asarray(x)[kept], 4 / 3, rtol=1e-6)
    assert np.array_equal(bu.nn.dropout(x, bu.random.key(0), 0.0), x)
    assert not np.asarray(bu.nn.dropout(x, bu.random.key(0), 1.0)).any()


def test_the_rate_may_be_traced() -> None:
    x, key = bu.ones(1000), bu.random.key(1)
    drop = bu.jit(bu.nn.dropout)
    for rate in (0.0, 0.5, 0.9):
        assert np.allclose(drop(x, key, rate), bu.nn.dropout(x, key, rate), rtol=1e-15)
    assert np.array_equal(bu.nn.dropout(x, key, bu.asarray(0.5)), bu.nn.dropout(x, key, 0.5))


def test_the_gradient_drops_the_same_elements() -> None:
    key, x = bu.random.key(2), bu.asarray(np.arange(1.0, 501.0))
    slope = bu.jit(bu.grad(lambda x: bu.sum(bu.nn.dropout(x, key, 0.5) * 3)))(x)
    assert np.array_equal(slope, np.asarray(bu.nn.dropout(x, key, 0.5)) / np.asarray(x) * 3)


def test_gradient_and_value_make_the_mask_each_where_they_need_it() -> None:
    """No mask is stored between them: one kernel writes the value and one the gradient, or both."""

    def loss(x: bu.Array, key: bu.random.Key) -> bu.Array:
        return bu.sum(bu.square(bu.nn.dropout(x, key, 0.5)))

    x = bu.zeros(1 << 15, dtype=bu.float32)
    cost = bu.jit(bu.value_and_grad(loss)).lower(x, bu.random.key(0)).cost()
    assert cost.bytes_written == 4 + x.nbytes


def test_a_wrong_rate_is_explained() -> None:
    with pytest.raises(OpTypeError, match=r"rate=1.5 is no probability"):
        bu.nn.dropout(bu.ones(3), bu.random.key(0), 1.5)
    with pytest.raises(OpTypeError, match="needs a key, not int"):
        bu.nn.dropout(bu.ones(3), 0, 0.5)


INITIAL = [
    ("glorot_uniform", 2 / 300, math.sqrt(6 / 300)),
    ("glorot_normal", 2 / 300, None),
    ("he_uniform", 2 / 100, math.sqrt(6 / 100)),
    ("he_normal", 2 / 100, None),
    ("lecun_normal", 1 / 100, None),
]


@pytest.mark.parametrize(("name", "variance", "limit"), INITIAL, ids=[i[0] for i in INITIAL])
def test_weights_have_the_variance_of_their_name(name: str, variance: float, limit) -> None:
    make = getattr(bu.nn.init, name)
    w = np.asarray(make(bu.random.key(3), (100, 200), dtype=bu.float32)).astype(np.float64)
    squares = w**2
    assert abs(squares.mean() - variance) <= 5 * squares.std() / math.sqrt(w.size)
    assert abs(w.mean()) <= 5 * math.sqrt(variance / w.size)
    if limit is not None:
        assert np.abs(w).max() <= limit
        assert np.abs(w).max() > 0.999 * limit


def test_windows_count_as_inputs() -> None:
    key = bu.random.key(4)
    matrix = bu.nn.init.he_normal(key, (8 * 9, 16))
    window = bu.nn.init.he_normal(key, (16, 8, 3, 3), in_axis=1, out_axis=0)
    ratio = np.asarray(window).reshape(-1) / np.asarray(matrix).reshape(-1)
    assert np.allclose(ratio, 1)


def test_vectors_have_no_inputs_and_outputs() -> None:
    with pytest.raises(OpTypeError, match="no inputs and outputs") as caught:
        bu.nn.init.he_normal(bu.random.key(0), (3,))
    assert "zeros" in str(caught.value.fix)

"""Random orders and choices, against the counts that chance allows."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import OpTypeError

R = bu.random
IMPLS = ("threefry2x32", "philox4x32")


def chi_square(counts: Any, shares: Any) -> None:
    """By the bound of B. Laurent and P. Massart, with probability 1e-6."""
    counts = np.asarray(counts)
    expected = counts.sum() * np.broadcast_to(shares, counts.shape)
    assert expected.min() >= 5
    k, c = counts.size - 1, math.log(1e6)
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic <= k + 2 * math.sqrt(k * c) + 2 * c


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("count", [0, 1, 2, 17, 1000, 70_000])
def test_orders_hold_every_number_once(count: int, impl: str) -> None:
    x = np.asarray(R.permutation(R.key(0, impl=impl), count))
    assert x.dtype == np.int64
    assert np.array_equal(np.sort(x), np.arange(count))
    if count > 100:
        assert (x == np.arange(count)).mean() < 0.02


def test_all_orders_are_alike() -> None:
    keys = R.split(R.key(1), 24 * 400)
    found = np.asarray(bu.vmap(lambda k: R.permutation(k, 4))(keys))
    names = {order: n for n, order in enumerate(itertools.permutations(range(4)))}
    chi_square(np.bincount([names[tuple(row)] for row in found.tolist()], minlength=24), 1 / 24)


def test_rows_move_together() -> None:
    x = bu.asarray(np.arange(60.0).reshape(5, 3, 4))
    key = R.key(2)
    for axis in (0, 1, 2, -1):
        order = np.asarray(R.permutation(key, x.shape[axis]))
        wanted = np.take(np.asarray(x), order, axis=axis)
        assert np.array_equal(R.shuffle(key, x, axis=axis), wanted)
        assert np.array_equal(R.permutation(key, x, axis=axis), wanted)


def test_choices_with_replacement() -> None:
    x = bu.asarray([10, 20, 30, 40])
    found = np.asarray(R.choice(R.key(3), x, (100, 200)))
    assert found.shape == (100, 200)
    chi_square(np.bincount(found.reshape(-1) // 10, minlength=5)[1:], 0.25)
    assert R.choice(R.key(3), x).shape == ()
    assert np.array_equal(R.choice(R.key(3), 4, (100, 200)), found // 10 - 1)


@pytest.mark.parametrize("dtype", [bu.float16, bu.float32, bu.float64], ids=str)
def test_choices_by_weight(dtype: Any) -> None:
    weights = np.array([0.0, 1.0, 5.0, 0.0, 2.0, 0.0])
    found = np.asarray(R.choice(R.key(4), 6, 20_000, p=bu.asarray(weights, dtype=dtype)))
    counts = np.bincount(found, minlength=6)
    assert counts[weights == 0].sum() == 0
    chi_square(counts[weights > 0], weights[weights > 0] / 8)


def test_choices_without_replacement() -> None:
    keys = R.split(R.key(5), 6000)
    found = np.asarray(bu.vmap(lambda k: R.choice(k, 5, 2, replace=False))(keys))
    assert (found[:, 0] != found[:, 1]).all()
    pairs = np.bincount(found[:, 0] * 5 + found[:, 1], minlength=25)
    chi_square(pairs[~np.eye(5, dtype=bool).reshape(-1)], 1 / 20)


def test_weighted_choices_without_replacement_come_in_order() -> None:
    """The first by its weight, the second by its share of what is left."""
    weights = np.array([1.0, 2.0, 3.0, 0.0])
    p = bu.asarray(weights)
    keys = R.split(R.key(6), 6000)
    found = np.asarray(bu.vmap(lambda k: R.choice(k, 4, 2, replace=False, p=p))(keys))
    shares = weights / weights.sum()
    wanted = shares[:, None] * shares[None, :] / (1 - shares[:, None])
    counts = np.bincount(found[:, 0] * 4 + found[:, 1], minlength=16)
    possible = (wanted > 0).reshape(-1) & ~np.eye(4, dtype=bool).reshape(-1)
    assert counts[~possible].sum() == 0
    chi_square(counts[possible], wanted.reshape(-1)[possible])


def test_entries_are_chosen_along_an_axis() -> None:
    x = bu.asarray(np.arange(12.0).reshape(3, 4))
    found = np.asarray(R.choice(R.key(7), x, (2, 5), axis=1))
    assert found.shape == (3, 2, 5)
    assert np.array_equal(found[1] - found[0], np.full((2, 5), 4.0))


def test_the_same_orders_and_gamma_numbers_on_every_device() -> None:
    def draw(key: R.Key) -> Any:
        gammas = R.gamma(key, 0.3, 9, dtype=bu.float32)
        return R.permutation(key, 20), R.choice(key, 9, 4, replace=False), gammas

    found = [draw(R.key(8))]
    for name in (name for name in bu.devices() if ":" not in name):
        found.append(bu.jit(draw)(R.key(8, device=name)))
    wanted = [np.asarray(x).tobytes() for x in found[0]]
    for results in found:
        assert [np.asarray(x).tobytes() for x in results] == wanted


MISUSES = [
    (lambda k: R.permutation(k, -1), "negative size"),
    (lambda k: R.shuffle(k, bu.asarray(1.0)), "no entries to order|out of range"),
    (lambda k: R.shuffle(k, bu.ones(3), axis=1), "out of range"),
    (lambda k: R.choice(k, 3, 4, replace=False), "4 of 3 entries"),
    (lambda k: R.choice(k, 0, 4), "4 of 0 entries"),
    (lambda k: R.choice(k, 3, 4, p=bu.ones(2)), r"weights are f64\[2\] for 3 entries"),
    (lambda k: R.permutation(3, 4), "needs a key, not int"),
]


@pytest.mark.parametrize(("use", "what"), MISUSES, ids=[m[1] for m in MISUSES])
def test_wrong_arguments_are_explained(use: Any, what: str) -> None:
    with pytest.raises(OpTypeError, match=what) as caught:
        use(R.key(0))
    assert caught.value.fix
    assert caught.value.location.file == __file__

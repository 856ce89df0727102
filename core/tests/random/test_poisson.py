"""Poisson numbers against the probabilities of counts; the bound is that of test_distributions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import OpTypeError

R = bu.random
N = 100_000


def masses(rate: float, most: int) -> Any:
    """The probabilities of 0 … most, and of what is beyond."""
    k = np.arange(most + 1)
    logs = k * math.log(rate) - rate - np.array([math.lgamma(n + 1) for n in k])
    inside = np.exp(logs)
    return np.append(inside, 1 - inside.sum())


def fits(x: Any, rate: float) -> bool:
    """By a chi-square of the counts expected ten times at least, the others taken together."""
    most = int(rate + 12 * math.sqrt(rate) + 12)
    shares = masses(rate, most)
    counts = np.bincount(np.minimum(np.asarray(x), most + 1), minlength=most + 2)
    often = shares * N >= 10
    assert often.sum() >= 2
    pairs = [(counts[often], shares[often]), (counts[~often].sum(), shares[~often].sum())]
    counted, expected = (np.append(*column) for column in zip(*pairs, strict=True))
    statistic = ((counted - expected * N) ** 2 / np.maximum(expected * N, 1)).sum()
    k, c = counted.size - 1, math.log(1e6)
    return bool(statistic <= k + 2 * math.sqrt(k * c) + 2 * c)


RATES = [0.1, 1.0, 9.9, 10.0, 11.0, 50.0, 1000.0]


@pytest.mark.parametrize(
    ("rate", "impl"),
    [(rate, ("threefry2x32", "philox4x32")[n % 2]) for n, rate in enumerate(RATES)],
)
def test_counts(rate: float, impl: str) -> None:
    x = R.poisson(R.key(1, impl=impl), rate, N)
    assert x.dtype is bu.int64
    assert fits(x, rate)


def test_another_rate_is_seen() -> None:
    assert not fits(R.poisson(R.key(1), 9.5, N), 9.9)
    assert not fits(R.poisson(R.key(1), 51.0, N), 50.0)


@pytest.mark.parametrize("dtype", [bu.float16, bu.float32, bu.float64], ids=str)
def test_rates_may_be_arrays(dtype: Any) -> None:
    rates = [0.5, 9.0, 10.0, 100.0, 0.0, -1.0, math.nan, math.inf]
    x = np.asarray(R.poisson(R.key(2), bu.asarray(rates, dtype=dtype), (N, 8)))
    for column, rate in enumerate(rates[:4]):
        assert fits(x[:, column], rate)
    assert (x[:, 4] == 0).all()
    assert (x[:, 5:] == -1).all()


def test_large_rates_have_their_mean_and_variance() -> None:
    for rate in (1e6, 1e9):
        x = np.asarray(R.poisson(R.key(3), rate, N)).astype(np.float64)
        assert abs(x.mean() - rate) <= 5 * math.sqrt(rate / N)
        # The fourth central moment is 3 rate² + rate.
        assert abs(((x - rate) ** 2).mean() - rate) <= 5 * rate * math.sqrt(2.01 / N)


def test_every_device_counts_alike() -> None:
    def draw(key: R.Key) -> Any:
        return R.poisson(key, 3.0, 9), R.poisson(key, bu.full(9, 30.0, dtype=bu.float32))

    wanted = [np.asarray(x).tolist() for x in draw(R.key(4))]
    for name in (name for name in bu.devices() if ":" not in name):
        found = bu.jit(draw)(R.key(4, device=name))
        assert [np.asarray(x).tolist() for x in found] == wanted


def test_wrong_rates_are_explained() -> None:
    for rate in (-1.0, math.inf, math.nan):
        with pytest.raises(OpTypeError, match="is no mean of counts") as caught:
            R.poisson(R.key(0), rate)
        assert caught.value.location.file == __file__
    with pytest.raises(OpTypeError, match="no integer dtype"):
        R.poisson(R.key(0), 1.0, dtype=bu.float32)

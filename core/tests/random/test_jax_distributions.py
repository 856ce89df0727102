"""Distributions under JAX's names; the bounds are those of test_distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.dtypes import FLOATS
from bringup.errors import BringupError

R = bu.random
N = 30_000
#: By Massart's bound, with probability 1e-6; of whole numbers too, where it is wider than needed.
BOUND = math.sqrt(math.log(2 / 1e-6) / (2 * N))
#: What rounding to a dtype moves.
STEP = {"f16": 2.0**-8, "bf16": 2.0**-5, "f32": 1e-5, "f64": 0.0}


def distance(x: Any, cdf: Callable[[Any], Any]) -> float:
    """The largest difference of the shares at and below each value."""
    values, counts = np.unique(np.asarray(x).astype(np.float64), return_counts=True)
    upto = np.cumsum(counts) / N
    whole = np.asarray(x).dtype.kind in "iu"
    wanted, before = cdf(values), cdf(values - 1) if whole else cdf(values)
    return float(max(np.abs(upto - wanted).max(), np.abs(upto - counts / N - before).max()))


def binomial_cdf(n: int, p: float) -> Callable[[Any], Any]:
    mass = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
    sums = np.concatenate([[0.0], np.cumsum(mass)])
    return lambda k: sums[np.clip(k + 1, 0, n + 1).astype(int)]


#: By name: the sampler, and the distribution function.
DRAWN: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "cauchy": (R.cauchy, lambda x: 0.5 + np.arctan(x) / np.pi),
    "logistic": (R.logistic, lambda x: 1 / (1 + np.exp(-x))),
    "lognormal": (
        lambda key, shape, dtype: R.lognormal(key, 0.5, shape, dtype),
        lambda x: np.asarray(bu.special.ndtr(bu.asarray(np.log(x) / 0.5))),
    ),
    "rayleigh": (
        lambda key, shape, dtype: R.rayleigh(key, 2.0, shape, dtype),
        lambda x: -np.expm1(-x * x / 8),
    ),
    "pareto": (
        lambda key, shape, dtype: R.pareto(key, 3.0, shape, dtype),
        lambda x: 1 - x**-3.0,
    ),
    "weibull_min": (
        lambda key, shape, dtype: R.weibull_min(key, 2.0, 1.5, shape, dtype),
        lambda x: -np.expm1(-((x / 2) ** 1.5)),
    ),
    "chisquare": (
        lambda key, shape, dtype: R.chisquare(key, 4.0, shape, dtype),
        lambda x: 1 - np.exp(-x / 2) * (1 + x / 2),
    ),
    "t": (
        lambda key, shape, dtype: R.t(key, 2.0, shape, dtype),
        lambda x: 0.5 + x / (2 * np.sqrt(2 + x * x)),
    ),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, FLOATS[(n + turn) % len(FLOATS)]) for n, name in enumerate(DRAWN) for turn in (0, 1)],
    ids=str,
)
def test_distributions(name: str, dtype: Any) -> None:
    sampler, cdf = DRAWN[name]
    x = sampler(R.key(1), N, dtype)
    assert x.dtype is dtype
    # Halves lie close to each other where the density is high.
    assert distance(x, cdf) <= BOUND + 2 * STEP[dtype.name]


@pytest.mark.parametrize("impl", ["threefry2x32", "philox4x32"])
@pytest.mark.parametrize("p", [0.01, 0.25, 0.9, 1.0])
def test_geometric(p: float, impl: str) -> None:
    key = R.key(2, impl=impl)
    for given in (p, bu.asarray(p), bu.asarray(p, dtype=bu.float32)):
        x = R.geometric(key, given, N)
        assert x.dtype is bu.int64
        assert int(bu.min(x)) >= 1
        assert distance(x, lambda k: 1 - (1 - p) ** k) <= BOUND


@pytest.mark.parametrize(("n", "p"), [(1, 0.3), (2, 0.5), (7, 0.02), (10, 0.75), (200, 0.4)])
def test_binomial(n: int, p: float) -> None:
    x = R.binomial(R.key(3), n, p, N)
    assert x.dtype is bu.int64
    assert distance(x, binomial_cdf(n, p)) <= BOUND
    assert distance(x, binomial_cdf(n, p * 0.97)) > BOUND or n * p < 1


def test_binomial_of_many_trials() -> None:
    """Mean and variance to five standard errors; n tells that halves are counted exactly."""
    n, p = 10**12, 0.3
    x = np.asarray(R.binomial(R.key(4), n, p, N)).astype("f8")
    deviation = math.sqrt(n * p * (1 - p))
    assert abs(x.mean() - n * p) <= 5 * deviation / math.sqrt(N)
    assert abs(x.std() / deviation - 1) <= 5 / math.sqrt(2 * N)


def test_parameters_may_be_arrays_and_compiled() -> None:
    n = np.array([0, 5, 5, -1, 5, 3, 40])
    p = np.array([0.5, 0.0, 1.0, 0.5, math.nan, 0.5, 0.1])
    draw = bu.jit(lambda key, n, p: R.binomial(key, n, p, (N, 7)))
    x = np.asarray(draw(R.key(5), n, p))
    assert np.all(x[:, :5] == [0, 0, 5, -1, -1])
    assert distance(x[:, 5], binomial_cdf(3, 0.5)) <= BOUND
    assert distance(x[:, 6], binomial_cdf(40, 0.1)) <= BOUND
    x = R.geometric(R.key(5), bu.asarray([0.0, 1.0, 2.0, math.nan]))
    assert x.tolist() == [-1, 1, -1, -1]
    assert R.t(R.key(5), bu.ones((2, 1))).shape == (2, 1)


def test_signs() -> None:
    x = R.rademacher(R.key(6), N)
    assert x.dtype is bu.int64
    assert set(x.tolist()) == {-1, 1}
    assert abs(float(bu.mean(x))) <= 5 / math.sqrt(N)
    assert R.rademacher(R.key(6), 3, bu.float32).dtype is bu.float32


def test_multivariate_normal() -> None:
    """Means and covariances to five standard errors."""
    mean = np.array([1.0, -2.0, 0.5])
    root = np.array([[1.0, 0.0, 0.0], [0.5, 2.0, 0.0], [-1.0, 0.3, 0.7]])
    cov = root @ root.T
    for dtype in (bu.float32, bu.float64):
        x = R.multivariate_normal(R.key(7), bu.asarray(mean), bu.asarray(cov), (N,), dtype)
        assert x.type is dtype[N, 3]
        host = np.asarray(x).astype("f8")
        scale = np.sqrt(np.diag(cov))
        assert np.all(np.abs(host.mean(0) - mean) <= 5 * scale / math.sqrt(N))
        error = np.sqrt(np.outer(scale**2, scale**2) + cov**2) / math.sqrt(N)
        assert np.all(np.abs(np.cov(host.T) - cov) <= 5 * error)
    stack = R.multivariate_normal(R.key(7), bu.zeros((4, 1, 2)), bu.asarray([np.eye(2)] * 3))
    assert stack.shape == (4, 3, 2)


def test_names_and_positions_of_jax() -> None:
    key = R.PRNGKey(3)
    x = R.uniform(key, (4,), bu.float32, minval=-1.0, maxval=3.0)
    assert x.tolist() == R.uniform(key, 4, dtype=bu.float32, low=-1.0, high=3.0).tolist()
    assert R.uniform(key, (4,), bu.float32, -1.0, 3.0).tolist() == x.tolist()
    n = R.randint(key, (4,), minval=2, maxval=9)
    assert n.tolist() == R.randint(key, (4,), 2, 9).tolist()
    assert R.randint(key, (4,), 2, 9, bu.int32).dtype is bu.int32
    for draw in (R.normal, R.exponential, R.gumbel, R.laplace):
        assert draw(key, (2,), bu.float32).dtype is bu.float32
    for sample in (R.gamma, R.chisquare, R.t, R.pareto):
        assert sample(key, 2.0, (2,), bu.float32).dtype is bu.float32


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda key: R.geometric(key, 0.0), "geometric: p=0.0"),
        (lambda key: R.geometric(key, 1.5), "geometric: p=1.5"),
        (lambda key: R.binomial(key, 3, -0.1), "binomial: p=-0.1"),
        (lambda key: R.binomial(key, -3, 0.1), "binomial: n=-3"),
        (lambda key: R.pareto(key, -1.0), "pareto: b=-1.0"),
        (lambda key: R.chisquare(key, "a"), "chisquare: df is a str"),
        (lambda key: R.cauchy(key, 3, bu.int32), "cauchy: i32 is no float dtype"),
        (lambda key: R.randint(key, (2,), 0), "randint: high is a NoneType"),
        (lambda key: R.multivariate_normal(key, bu.ones(2), bu.ones((3, 3))), "mean f64"),
        (lambda key: R.rademacher(3), "rademacher: "),
    ],
)
def test_errors(call: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(BringupError, match=said) as caught:
        call(R.key(0))
    assert caught.value.fix

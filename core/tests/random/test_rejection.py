"""Gamma, beta and Dirichlet numbers; the bounds are those of test_distributions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.dtypes import FLOATS
from bringup.errors import OpTypeError

scipy_special = pytest.importorskip("scipy.special", reason="its distribution functions")

R = bu.random
N = 100_000
#: By Massart's bound, with probability 1e-6.
BOUND = math.sqrt(math.log(2 / 1e-6) / (2 * N))
IMPLS = ("threefry2x32", "philox4x32")
STEP = {"f16": 2.0**-8, "bf16": 2.0**-5, "f32": 1e-5, "f64": 0.0}


def distance(x: Any, cdf: Any) -> float:
    x = np.sort(np.asarray(x).astype(np.float64))
    wanted, steps = cdf(x), np.arange(x.size + 1) / x.size
    return float(max((steps[1:] - wanted).max(), (wanted - steps[:-1]).max()))


@pytest.mark.parametrize(
    ("a", "impl"), [(a, IMPLS[n % 2]) for n, a in enumerate((0.2, 0.9, 1.0, 1.5, 20.0, 1e4))]
)
def test_gamma(a: float, impl: str) -> None:
    key = R.key(1, impl=impl)
    for dtype in (bu.float32, bu.float64):
        x = R.gamma(key, a, N, dtype=dtype)
        assert x.dtype is dtype
        assert distance(x, lambda v: scipy_special.gammainc(a, v)) <= BOUND + STEP[dtype.name]


def test_another_gamma_is_seen() -> None:
    x = R.gamma(R.key(1), 2.0, N)
    assert distance(x, lambda v: scipy_special.gammainc(2.05, v)) > BOUND


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gamma_of_every_dtype(dtype: Any) -> None:
    x = R.gamma(R.key(2), 2.5, N, dtype=dtype)
    assert x.dtype is dtype
    assert distance(x, lambda v: scipy_special.gammainc(2.5, v)) <= BOUND + STEP[dtype.name]


def test_parameters_may_be_arrays() -> None:
    a = bu.asarray([0.5, 3.0, 0.0, -1.0, math.nan])
    x = np.asarray(R.gamma(R.key(3), a, (N, 5)))
    for column, value in ((0, 0.5), (1, 3.0)):
        assert distance(x[:, column], lambda v, b=value: scipy_special.gammainc(b, v)) <= BOUND
    assert (x[:, 2] == 0).all()
    assert np.isnan(x[:, 3:]).all()
    assert R.gamma(R.key(3), a).shape == (5,)
    alone = np.asarray(R.gamma(R.key(3), 3.0, (N, 5)))[:, 1]
    assert np.array_equal(alone, x[:, 1]), "a number and an array of it give the same"


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (2.0, 3.0), (30.0, 1.0), (0.01, 0.02)])
def test_beta(a: float, b: float) -> None:
    for dtype, step in ((bu.float64, 2.0**-53), (bu.float32, 2.0**-24)):
        x = R.beta(R.key(4), a, b, N, dtype=dtype)
        assert bool(bu.all((x >= 0) & (x <= 1)))
        # What is nearer to 1 than any other number is 1.
        near = float(scipy_special.betainc(b, a, step))
        loose = BOUND + near + STEP[dtype.name] + 1e-12
        assert distance(x, lambda v: scipy_special.betainc(a, b, v)) <= loose


def test_dirichlet() -> None:
    alpha = np.array([0.5, 2.0, 3.5])
    x = np.asarray(R.dirichlet(R.key(5), bu.asarray(alpha), N))
    assert x.shape == (N, 3)
    assert np.abs(x.sum(axis=1) - 1).max() < 1e-14
    for column, a in enumerate(alpha):
        rest = alpha.sum() - a
        found = distance(x[:, column], lambda v, a=a, r=rest: scipy_special.betainc(a, r, v))
        assert found <= BOUND + 1e-12
    each = R.dirichlet(R.key(5), bu.ones((4, 1, 3)), (4, 7), dtype=bu.float32)
    assert each.shape == (4, 7, 3)


def test_wrong_parameters_are_explained() -> None:
    key = R.key(0)
    for use in (lambda: R.gamma(key, -1.0), lambda: R.beta(key, 1.0, -2.0)):
        with pytest.raises(OpTypeError, match="is no parameter") as caught:
            use()
        assert caught.value.location.file == __file__
    with pytest.raises(OpTypeError, match="alpha is f64"):
        R.dirichlet(key, bu.asarray(1.0))
    with pytest.raises(OpTypeError, match="no float dtype"):
        R.gamma(key, 1.0, dtype=bu.int32)

"""Logarithm, exponential and normal quantile keep the errors they state."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.api import portable_math
from bringup.ops import _elementary as elementary

Array = np.ndarray[Any, Any]
KINDS = [np.float32, np.float64]
RNG = np.random.default_rng(0)
N = 100_000


def ulps(actual: bu.Array, wanted: Array) -> float:
    """The largest distance from a wider result, in units of the last place."""
    got = np.asarray(actual)
    unit = np.spacing(np.abs(wanted).astype(got.dtype)).astype(np.longdouble)
    return float((np.abs(got.astype(np.longdouble) - wanted) / unit).max())


@pytest.mark.parametrize("kind", KINDS)
def test_logarithm(kind: Any) -> None:
    x = np.exp(RNG.uniform(-80, 80, N)).astype(kind)
    near = (1 + RNG.uniform(-0.3, 0.4, N)).astype(kind)
    for values in (x, near, np.array([np.finfo(kind).tiny, np.finfo(kind).max, 0.5, 2], kind)):
        assert (
            ulps(
                portable_math.log(bu.asarray(values)), elementary.log(values.astype(np.longdouble))
            )
            <= 1
        )
    assert np.asarray(portable_math.log(bu.asarray(np.ones(1, kind)))).tolist() == [0.0]


@pytest.mark.parametrize("kind", KINDS)
def test_logarithm_next_to_one(kind: Any) -> None:
    above = np.exp2(RNG.uniform(-31 if kind is np.float32 else -63, 0, N)).astype(kind)
    below = (1 - above.astype(np.longdouble)).astype(kind)
    keep = below > 0
    above, below = above[keep], below[keep]
    wanted = elementary.log1p(-above.astype(np.longdouble))
    # Where 1 - above is rounded, its own digits count.
    near = above < 0.4
    got = np.asarray(portable_math.log(bu.asarray(below), bu.asarray(above)))
    assert ulps(bu.asarray(got[near]), wanted[near]) <= 3


@pytest.mark.parametrize("kind", KINDS)
def test_exponential(kind: Any) -> None:
    top = math.log(float(np.finfo(kind).max))
    x = RNG.uniform(-0.98 * top, top, N).astype(kind)
    assert ulps(portable_math.exp(bu.asarray(x)), elementary.exp(x.astype(np.longdouble))) <= 1
    ends = np.array([-np.inf, -1e30, -2.5 * top, 0.0, -0.0, 1.1 * top, np.inf, np.nan], kind)
    got = np.asarray(portable_math.exp(bu.asarray(ends)))
    assert got[:-1].tolist() == [0, 0, 0, 1, 1, np.inf, np.inf]
    assert np.isnan(got[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_normal_quantile(kind: Any) -> None:
    """Against Python's, in the tails; a wider one than f64's is not at hand."""
    depth = 33 if kind is np.float32 else 65
    tail = np.exp2(RNG.uniform(-depth, -2, 20_000)).astype(kind)
    centre = (0.5 - tail.astype(np.longdouble)).astype(kind)
    got = np.asarray(portable_math.upper_quantile(bu.asarray(tail), bu.asarray(centre)))
    inverse = NormalDist().inv_cdf
    wanted = np.array([-inverse(t) for t in tail.tolist()])
    loose = 4e-7 if kind is np.float32 else 3e-15
    assert np.abs(got / wanted - 1).max() <= loose


@pytest.mark.parametrize("kind", KINDS)
def test_deep_tails(kind: Any) -> None:
    lower = np.array([1e-30, 1e-20, 1e-12, 0.3], kind)
    got = np.asarray(portable_math.normal_quantile(bu.asarray(lower), bu.asarray(1 - lower)))
    wanted = [NormalDist().inv_cdf(p) for p in lower.tolist()]
    assert np.allclose(got, wanted, rtol=1e-6 if kind is np.float32 else 1e-14)
    back = np.asarray(portable_math.normal_quantile(bu.asarray(1 - lower), bu.asarray(lower)))
    assert np.array_equal(back, -got)


@pytest.mark.parametrize("kind", KINDS)
def test_normal_quantile_in_the_centre(kind: Any) -> None:
    """By the series of the inverse error function, exact to f64 there."""
    centre = np.array([1e-12, 1e-6, 1e-3, 0.004], kind)
    tail = (0.5 - centre.astype(np.longdouble)).astype(kind)
    got = np.asarray(portable_math.upper_quantile(bu.asarray(tail), bu.asarray(centre)))
    z = centre.astype(np.longdouble) * np.sqrt(2 * np.longdouble(np.pi))
    wanted = z + z**3 / 6 + 7 * z**5 / 120 + 127 * z**7 / 5040
    assert np.abs(got / wanted - 1).max() <= (4e-7 if kind is np.float32 else 1e-15)

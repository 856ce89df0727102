"""Samplers follow their distributions: fixed seeds, and bounds that right samples keep.

Kolmogorov's statistic of n right samples exceeds ``sqrt(log(2 / a) / (2 n))`` with probability `a`
at most (P. Massart, 1990); a chi-square of k degrees exceeds ``k + 2 sqrt(k c) + 2 c`` with
probability ``e^-c`` at most (B. Laurent and P. Massart, 2000).  With `a` = 1e-6 the tests below
would fail by chance once in a thousand choices of all seeds, and the seeds are fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.dtypes import FLOATS, INTS
from bringup.errors import ConversionError, OpTypeError

A = 1e-6
N = 200_000
IMPLS = ("threefry2x32", "philox4x32")
Array = np.ndarray[Any, Any]


def wide(x: bu.Array) -> Array:
    return np.asarray(x).astype(np.float64)


def kolmogorov(x: Array, cdf: Callable[[Array], Array], unit: float = 0.0) -> None:
    """The empirical distribution is the wanted one; unit: what rounding moves probabilities by."""
    x = np.sort(x)
    n = x.size
    wanted = cdf(x)
    steps = np.arange(n + 1) / n
    distance = max((steps[1:] - wanted).max(), (wanted - steps[:-1]).max())
    assert distance <= math.sqrt(math.log(2 / A) / (2 * n)) + unit


def chi_square(counts: Array, shares: Array | float) -> None:
    expected = counts.sum() * np.broadcast_to(shares, counts.shape)
    assert expected.min() >= 5
    statistic = ((counts - expected) ** 2 / expected).sum()
    k, c = counts.size - 1, -math.log(A)
    assert statistic <= k + 2 * math.sqrt(k * c) + 2 * c


def normal_cdf(x: Array) -> Array:
    return np.array([0.5 * math.erfc(-v * math.sqrt(0.5)) for v in x.tolist()])


def laplace_cdf(x: Array) -> Array:
    tail = 0.5 * np.exp(-np.abs(x))
    return np.where(x < 0, tail, 1 - tail)


CONTINUOUS: dict[str, tuple[Callable[..., bu.Array], Callable[[Array], Array]]] = {
    "uniform": (bu.random.uniform, lambda x: x),
    "normal": (bu.random.normal, normal_cdf),
    "exponential": (bu.random.exponential, lambda x: -np.expm1(-x)),
    "gumbel": (bu.random.gumbel, lambda x: np.exp(-np.exp(-x))),
    "laplace": (bu.random.laplace, laplace_cdf),
}
#: Rounding to the nearest moves a distribution function by the mass of one step at most.
STEP = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-22, "f64": 0.0}


@pytest.mark.parametrize(
    ("name", "dtype", "impl"),
    [
        (name, dtype, IMPLS[(m + n) % len(IMPLS)])
        for m, name in enumerate(CONTINUOUS)
        for n, dtype in enumerate(FLOATS)
    ],
    ids=str,
)
def test_the_distribution_is_the_named_one(name: str, dtype: Any, impl: str) -> None:
    draw, cdf = CONTINUOUS[name]
    x = draw(bu.random.key(11, impl=impl), N, dtype=dtype)
    assert x.dtype is dtype
    kolmogorov(wide(x), cdf, STEP[dtype.name])


@pytest.mark.parametrize("name", CONTINUOUS)
def test_another_distribution_is_seen(name: str) -> None:
    draw, cdf = CONTINUOUS[name]
    x = wide(draw(bu.random.key(11), N))
    with pytest.raises(AssertionError):
        kolmogorov(x * 1.02 + 0.02, cdf)


MOMENTS = {"uniform": (0.5, 1 / 12), "normal": (0.0, 1.0), "exponential": (1.0, 1.0)} | {
    "gumbel": (0.5772156649015329, math.pi**2 / 6),
    "laplace": (0.0, 2.0),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_mean_and_variance(name: str) -> None:
    """Within five standard errors: probability below 1e-6."""
    x = wide(CONTINUOUS[name][0](bu.random.key(12), N))
    mean, variance = MOMENTS[name]
    assert abs(x.mean() - mean) <= 5 * math.sqrt(variance / N)
    squares = (x - mean) ** 2
    assert abs(squares.mean() - variance) <= 5 * squares.std() / math.sqrt(N)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_uniform_numbers_are_all_multiples_below_one(dtype: Any) -> None:
    x = wide(bu.random.uniform(bu.random.key(1), N, dtype=dtype))
    precision = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}[dtype.name]
    whole = x * 2.0**precision
    assert np.array_equal(whole, np.floor(whole))
    assert x.min() >= 0
    assert x.max() < 1
    for bit in range(precision):
        ones = (whole.astype(np.uint64) >> np.uint64(bit) & np.uint64(1)).sum()
        chi_square(np.array([ones, N - ones]), 0.5)
    if precision <= 11:
        assert len(np.unique(x)) == 1 << precision, "every multiple occurs"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("low", "high"), [(-3.0, 5.0), (1.0, 1.0), (100.0, 101.0), (-1.0, 0.0)])
def test_uniform_keeps_its_bounds(low: float, high: float, dtype: Any) -> None:
    key = bu.random.key(2)
    x = bu.random.uniform(key, N, dtype=dtype, low=low, high=high)
    assert wide(x).min() >= low
    assert wide(x).max() < high or low == high
    same = bu.random.uniform(key, N, dtype=dtype, low=bu.asarray(low), high=bu.asarray(high))
    assert np.array_equal(x, same)
    if dtype.bits >= 32 and low < high:
        kolmogorov(wide(x), lambda v: (v - low) / (high - low), 1e-4)


def test_bounds_may_be_arrays() -> None:
    low, high = bu.asarray([0.0, 10.0, -5.0]), bu.asarray([1.0, 30.0, -5.0])
    x = wide(bu.random.uniform(bu.random.key(2), (1000, 3), low=low, high=high))
    assert (x >= np.asarray(low)).all()
    assert (x[:, :2] < np.asarray(high)[:2]).all()
    assert (x[:, 2] == -5).all()


def test_normal_numbers_reach_far_out() -> None:
    """The largest of 4 million is beyond 4.5 but for a chance of 1e-6."""
    x = wide(bu.random.normal(bu.random.key(3), 4_000_000, dtype=bu.float32))
    assert 4.5 < x.max() < 6.3
    assert -6.3 < x.min() < -4.5
    assert len(np.unique(x)) > 3_700_000


@pytest.mark.parametrize("dtype", [bu.float32, bu.float64], ids=str)
def test_normal_quantiles_are_accurate(dtype: Any) -> None:
    """Against Python's, which is right to 1e-15: numbers made of known bits."""
    key = bu.random.key(4)
    x = wide(bu.random.normal(key, 20_000, dtype=dtype))
    words = np.asarray(bu.random.bits(key, 20_000, dtype=bu.uint64)).tolist()
    if dtype is bu.float32:
        tails = [((w >> 33) + 0.5) / 2**32 for w in words]
    else:
        tails = [((w >> 33 << 32) + w % 2**32 + 0.5) / 2**64 for w in words]
    inverse = NormalDist().inv_cdf
    sizes = np.array([-inverse(t) for t in tails])
    wanted = np.where([w >> 32 & 1 for w in words], -sizes, sizes)
    loose = {"f32": 4e-7, "f64": 1e-15}[dtype.name]
    # Next to the centre Python's own argument, 1/2 - tiny, has lost digits.
    assert np.abs(x - wanted).max(initial=0, where=np.abs(wanted) > 1e-3) < loose * 7
    assert np.abs(x / wanted - 1).max(initial=0, where=np.abs(wanted) > 0.1) < 10 * loose


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("low", "high"), [(-2.0, 2.0), (0.5, math.inf), (-math.inf, -3.0), (4.0, 4.5), (-1.0, -1.0)]
)
def test_truncated_normal(low: float, high: float, dtype: Any) -> None:
    x = wide(bu.random.truncated_normal(bu.random.key(5), low, high, N, dtype=dtype))
    assert x.min() >= low
    assert x.max() <= high
    if low == high:
        return
    # From the side where the numbers are small.
    turn = -1 if low > 0 else 1
    ends = sorted((turn * low, turn * high))
    first, last = (0.5 * math.erfc(-v * math.sqrt(0.5)) for v in ends)
    kolmogorov(
        turn * x,
        lambda v: (normal_cdf(v) - first) / (last - first),
        {"f16": 0.02, "bf16": 0.1}.get(dtype.name, 1e-5),
    )


def test_truncation_by_arrays_is_near_that_by_numbers() -> None:
    key = bu.random.key(6)
    low, high = bu.asarray([-2.0, 0.0, 1.0]), 3.0
    x = bu.random.truncated_normal(key, low, high, (500, 3))
    assert bu.random.truncated_normal(key, low, high).shape == (3,)
    for column, bound in enumerate((-2.0, 0.0, 1.0)):
        alone = wide(bu.random.truncated_normal(key, bound, high, (500, 3)))[:, column]
        assert np.abs(wide(x)[:, column] - alone).max() < 1e-9


@pytest.mark.parametrize("p", [0.0, 1e-3, 0.3, 0.5, 0.999, 1.0])
def test_bernoulli(p: float) -> None:
    key = bu.random.key(7)
    x = np.asarray(bu.random.bernoulli(key, p, N))
    assert x.dtype == bool
    if p in (0.0, 1.0):
        assert (x == bool(p)).all()
    else:
        chi_square(np.array([x.sum(), N - x.sum()]), np.array([p, 1 - p]))
    same = np.asarray(bu.random.bernoulli(key, bu.asarray(p), (N,)))
    assert (same != x).mean() < 1e-6


def test_bernoulli_takes_the_shape_of_its_probabilities() -> None:
    p = bu.asarray([[0.1], [0.9]])
    assert bu.random.bernoulli(bu.random.key(0), p).shape == (2, 1)
    x = np.asarray(bu.random.bernoulli(bu.random.key(0), p, (2, N)))
    for row, share in zip(x, (0.1, 0.9), strict=True):
        chi_square(np.array([row.sum(), N - row.sum()]), np.array([share, 1 - share]))


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_randint_of_small_ranges(dtype: Any) -> None:
    low = 3 if dtype.kind == "uint" else -5
    x = np.asarray(bu.random.randint(bu.random.key(8), N, low, 11, dtype=dtype))
    assert x.dtype == dtype.numpy
    values, counts = np.unique(x, return_counts=True)
    assert values.tolist() == list(range(low, 11))
    chi_square(counts, 1 / (11 - low))


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_randint_of_the_whole_range(dtype: Any) -> None:
    info = np.iinfo(dtype.numpy)
    x = np.asarray(bu.random.randint(bu.random.key(9), N, info.min, info.max + 1, dtype=dtype))
    for bit in range(dtype.bits):
        ones = int((x >> dtype.numpy.type(bit) & dtype.numpy.type(1)).sum())
        chi_square(np.array([ones, N - ones]), 0.5)


SPANS = [(0, 3 << 30), (0, (1 << 32) + 1), (-(1 << 62), 1 << 62), (5, 5 + (3 << 61))]


@pytest.mark.parametrize(("low", "high"), SPANS)
def test_randint_of_wide_ranges_has_no_bias(low: int, high: int) -> None:
    """Thirds of a range that is no power of two: what a remainder of a word would get wrong."""
    x = np.asarray(bu.random.randint(bu.random.key(10), N, low, high)).astype(object)
    assert min(x) >= low
    assert max(x) < high
    thirds = np.array([(int(v) - low) * 3 // (high - low) for v in x])
    chi_square(np.bincount(thirds, minlength=3), 1 / 3)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_randint_between_arrays_is_that_between_ints(dtype: Any) -> None:
    info = np.iinfo(dtype.numpy)
    key = bu.random.key(13)
    for low, high in ((0, 7), (info.min, info.max), (info.max - 3, info.max)):
        wanted = bu.random.randint(key, 999, low, high, dtype=dtype)
        bounds = (bu.asarray(b, dtype=dtype) for b in (low, high))
        got = np.asarray(bu.random.randint(key, 999, *bounds, dtype=dtype))
        if dtype.bits < 64:
            assert np.array_equal(got, wanted)
        assert got.min() >= low
        assert got.max() < high
    nothing = bu.random.randint(key, 9, bu.asarray(5, dtype=dtype), 5, dtype=dtype)
    assert np.asarray(nothing).tolist() == [5] * 9


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_categorical(axis: int) -> None:
    shares = np.array([0.1, 0.5, 0.4])
    logits = np.log(np.stack([shares, shares[::-1]]))
    logits = bu.asarray(np.moveaxis(logits + 7.0, 1, axis))
    x = np.asarray(bu.random.categorical(bu.random.key(14), logits, axis=axis, shape=(N, 2)))
    for column, wanted in enumerate((shares, shares[::-1])):
        chi_square(np.bincount(x[:, column], minlength=3), wanted)
    assert bu.random.categorical(bu.random.key(14), logits, axis=axis).shape == (2,)


def test_parameters_of_numpy_are_taken() -> None:
    key, rng = bu.random.key(18), np.random.default_rng(0)
    p = rng.uniform(size=(3, 1))
    for given, meant in ((p, bu.asarray(p)), (np.float32(0.25), 0.25), (np.array(0.25), 0.25)):
        same = bu.random.bernoulli(key, meant, (3, 50))
        assert np.array_equal(bu.random.bernoulli(key, given, (3, 50)), same)
    high = np.array([3, 9], np.int64)
    same = bu.random.randint(key, (50, 2), 0, bu.asarray(high))
    assert np.array_equal(bu.random.randint(key, (50, 2), 0, high), same)
    assert bu.random.gamma(key, p).shape == (3, 1)
    assert bu.random.poisson(key, p).shape == (3, 1)
    assert bu.random.uniform(key, 2, low=np.float64(1.0), high=np.int32(2)).shape == (2,)


def test_split_keys_are_independent() -> None:
    """Numbers of neighbouring keys and of parent and child have no correlation."""
    key = bu.random.key(15)
    streams = [key, *bu.random.split(key, 4), *(bu.random.fold_in(key, i) for i in range(4))]
    x = np.stack([wide(bu.random.normal(k, 50_000)) for k in streams])
    off = np.corrcoef(x)[np.triu_indices(len(streams), 1)]
    # Correlations of n independent pairs are normal with deviation 1 / sqrt(n).
    assert np.abs(off).max() <= 5.5 / math.sqrt(50_000)
    seeds = np.stack([wide(bu.random.normal(bu.random.key(s), 50_000)) for s in range(6)])
    off = np.corrcoef(seeds)[np.triu_indices(6, 1)]
    assert np.abs(off).max() <= 5.5 / math.sqrt(50_000)


def test_neighbours_are_independent() -> None:
    x = wide(bu.random.normal(bu.random.key(16), N))
    for lag in (1, 2, 3, 64, 1024):
        correlation = np.corrcoef(x[:-lag], x[lag:])[0, 1]
        assert abs(correlation) <= 5.5 / math.sqrt(N - lag)
    pairs = np.asarray(bu.random.randint(bu.random.key(16), (N, 2), 0, 8))
    chi_square(np.bincount(pairs[:, 0] * 8 + pairs[:, 1], minlength=64), 1 / 64)


MISUSES = [
    (lambda k: bu.random.uniform(k, 2, low=2.0, high=1.0), OpTypeError, "low=2.0 is above"),
    (lambda k: bu.random.uniform(k, 2, dtype=bu.int32), OpTypeError, "i32 is no float dtype"),
    (lambda k: bu.random.uniform(k, (2, -1)), OpTypeError, "negative size"),
    (lambda k: bu.random.bernoulli(k, 1.5), OpTypeError, "no probability"),
    (lambda k: bu.random.randint(k, 2, 3, 3), OpTypeError, r"no integer is in \[3, 3\)"),
    (lambda k: bu.random.randint(k, 2, 0, 300, dtype=bu.uint8), ConversionError, "299 is out of"),
    (lambda k: bu.random.randint(k, 2, 0, 3, dtype=bu.float32), OpTypeError, "no integer dtype"),
    (lambda k: bu.random.randint(k, 2, 0.5, 3), OpTypeError, "low=0.5 is no integer"),
    (lambda k: bu.random.randint(k, 2, 0, bu.ones(2)), OpTypeError, r"high=f64\[2\] is no integer"),
    (
        lambda k: bu.random.randint(k, 2, bu.asarray([0, 1]), 256, dtype=bu.uint8),
        ConversionError,
        "256 is out of range",
    ),
    (lambda k: bu.random.uniform(k, 2, low="a"), OpTypeError, "uniform: low is a str"),
    (lambda k: bu.random.bernoulli(k, None), OpTypeError, "bernoulli: p is a NoneType"),
    (lambda k: bu.random.gamma(k, [1.0]), OpTypeError, "gamma: a is a list"),
    (lambda k: bu.random.poisson(k, True), OpTypeError, "poisson: rate is a bool"),
    (lambda k: bu.nn.dropout(bu.ones(2), k, "x"), OpTypeError, "dropout: rate is a str"),
    (lambda k: bu.random.truncated_normal(k, 1.0, 0.0), OpTypeError, "above"),
    (lambda k: bu.random.categorical(k, bu.ones(3), axis=1), OpTypeError, "out of range"),
    (lambda k: bu.random.bernoulli(k, bu.ones(3), (2,)), OpTypeError, "does not broadcast"),
]


@pytest.mark.parametrize(("use", "kind", "what"), MISUSES, ids=[m[2] for m in MISUSES])
def test_wrong_arguments_are_explained(use: Any, kind: type[Exception], what: str) -> None:
    with pytest.raises(kind, match=what) as caught:
        use(bu.random.key(0))
    assert caught.value.fix
    assert caught.value.location.file == __file__


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,) * 8, (2,) * 8], ids=str)
def test_every_shape(shape: tuple[int, ...]) -> None:
    key = bu.random.key(17)
    for draw in (bu.random.bits, *(d for d, _ in CONTINUOUS.values())):
        x = draw(key, shape)
        assert x.shape == np.asarray(x).shape == shape
        flat = np.asarray(draw(key, math.prod(shape)))
        assert np.array_equal(np.asarray(x).reshape(-1), flat)
    assert bu.random.randint(key, shape, 0, 5).shape == shape

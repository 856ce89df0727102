"""Special functions and their derivatives against mpmath, activations against numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath as mp
import numpy as np
import pytest

import bringup as bu
from bringup.errors import OpTypeError

RNG = np.random.default_rng(0)
UNIT = np.concatenate([RNG.random(60), [1e-30, 1e-5, 0.25, 0.2499, 0.5 - 1e-7, 0.5, 0.75, 0.99]])
LINE = np.concatenate([RNG.normal(size=40) * 6, -RNG.random(20) * 36, [-20.0, -20.01, -1e3, 7.0]])
ABOVE = np.exp(RNG.normal(size=60) * 2.5)
POSITIVE = np.concatenate([ABOVE, [1.0, 10.0, 9.99, 1e4]])
BESSEL = np.concatenate([LINE, [19.99, 20.0, 20.01, -80.0, 1e-6, 300.0]])
PAIRS = [*zip(POSITIVE, POSITIVE[::-1], strict=True)]
SHIFTED = [*zip(1 + ABOVE[:30], ABOVE[30:], strict=True)]


def one(xs: Any) -> list[tuple[float, ...]]:
    return [(float(x),) for x in xs]


def log_ndtr(x: Any) -> Any:
    half = mp.erfc(abs(x) / mp.sqrt(2)) / 2
    return mp.log1p(-half) if x > 0 else mp.log(half)


def factors(*terms: Any) -> float:
    return float(sum(abs(t) for t in terms))


def beta_terms(a: Any, b: Any) -> float:
    """The sizes of what is added up, see `betaln`."""
    a, b = min(a, b), max(a, b)
    result = mp.log(mp.beta(a, b))
    if b < 10:
        return factors(mp.loggamma(a), mp.loggamma(b), mp.loggamma(a + b), result)
    return factors(result, 1) + (factors(mp.loggamma(a), 2 * a * mp.log(b)) if a < 10 else 0)


#: By name: the function in mpmath, the points, and how many ULP of the result it may be off: 4 for
#: each function that is taken, times the condition of what it is taken of.
VALUES: dict[str, tuple[Callable[..., Any], Sequence[Any], Callable[..., float]]] = {
    "expit": (lambda x: 1 / (1 + mp.exp(-x)), one(LINE), lambda x: 4),
    "logit": (lambda x: mp.log(x / (1 - x)), one(UNIT), lambda x: 8),
    "xlogy": (lambda x, y: x * mp.log(y), PAIRS, lambda x, y: 5),
    "xlog1py": (lambda x, y: x * mp.log1p(y), PAIRS, lambda x, y: 5),
    "entr": (lambda x: -x * mp.log(x), one(ABOVE), lambda x: 5),
    # The quotient is rounded, by half an ULP: as much as its logarithm is off absolutely.
    "rel_entr": (
        lambda x, y: x * mp.log(x / y),
        PAIRS,
        lambda x, y: 5 + 1 / max(abs(mp.log(x / y)), mp.mpf(1e-30)),
    ),
    "ndtr": (mp.ncdf, one(LINE), lambda x: 5 + x * x),
    "log_ndtr": (log_ndtr, one(LINE), lambda x: 8 + (2 * x * x if x > 0 else 0)),
    # The bound of the page of `ndtri`, in units of f64; f32 has another.
    "ndtri": (lambda p: mp.sqrt(2) * mp.erfinv(2 * p - 1), one(UNIT[UNIT > 1e-20]), lambda p: 5),
    "gammaln": (mp.loggamma, one(2.5 + ABOVE), lambda x: 16),
    "gamma": (mp.gamma, one([*ABOVE[ABOVE < 30], -0.5, -1.5, -6.25]), lambda x: 0),
    "factorial": (mp.factorial, one(range(34)), lambda x: 0.5),
    "betaln": (lambda a, b: mp.log(mp.beta(a, b)), PAIRS, lambda a, b: 0),
    "zeta": (mp.zeta, SHIFTED, lambda s, q: 8),
    # The bound of the rows; without the scale two exponentials of 2 ULP and two products besides.
    "i0": (lambda x: mp.besseli(0, x), one(BESSEL), lambda x: 23),
    "i1": (lambda x: mp.besseli(1, x), one(BESSEL), lambda x: 23),
    "i0e": (
        lambda x: mp.besseli(0, x) * mp.exp(-abs(x)),
        one(BESSEL),
        lambda x: 18,
    ),
    "i1e": (
        lambda x: mp.besseli(1, x) * mp.exp(-abs(x)),
        one(BESSEL),
        lambda x: 18,
    ),
}


def bound_of(name: str, point: Sequence[Any], expected: Any, dtype: str) -> float:
    """In units of the epsilon, relative to the result."""
    if name == "gamma":  # an absolute error of the logarithm is a relative one here
        return 8 * (1 + factors(mp.log(abs(expected))))
    if name == "betaln":
        return 8 * beta_terms(*point) / max(factors(expected), 1e-30)
    if name == "ndtri" and dtype == "f4":
        return 4e-7 / 2**-23
    return float(VALUES[name][2](*point))


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("name", VALUES)
def test_values(name: str, dtype: str) -> None:
    reference, points, _ = VALUES[name]
    limits = np.finfo(dtype)
    columns = [np.array(column, dtype) for column in zip(*points, strict=True)]
    function = getattr(bu.special, name)
    found = np.asarray(function(*map(bu.asarray, columns)))
    compiled = np.asarray(bu.jit(function)(*map(bu.asarray, columns)))
    assert found.dtype == dtype
    wrong = []
    with mp.workdps(50):
        for n in range(len(points)):
            point = [mp.mpf(float(column[n])) for column in columns]
            expected = reference(*point)
            for value in (found[n], compiled[n]):
                if abs(expected) > float(limits.max):
                    assert value == math.copysign(math.inf, expected), (point, value)
                elif abs(expected) >= float(limits.tiny):
                    error = abs(mp.mpf(float(value)) - expected) / abs(expected)
                    units = float(error / float(limits.eps))
                    if not units <= bound_of(name, point, expected, dtype):
                        wrong.append((units, [float(x) for x in point], value))
    assert wrong == []


INF, NAN = math.inf, math.nan
SPECIAL: dict[str, list[tuple[tuple[float, ...], float]]] = {
    "logit": [((0.0,), -INF), ((1.0,), INF), ((-1.0,), NAN), ((2.0,), NAN), ((NAN,), NAN)],
    "xlogy": [((0.0, 0.0), 0.0), ((0.0, INF), 0.0), ((0.0, -1.0), 0.0), ((0.0, NAN), NAN),
              ((1.0, 0.0), -INF), ((2.0, 1.0), 0.0)],
    "xlog1py": [((0.0, -1.0), 0.0), ((0.0, INF), 0.0), ((0.0, NAN), NAN), ((1.0, -1.0), -INF)],
    "entr": [((0.0,), 0.0), ((-1.0,), -INF), ((NAN,), NAN), ((1.0,), 0.0), ((INF,), -INF)],
    "rel_entr": [((0.0, 0.0), 0.0), ((0.0, 1.0), 0.0), ((1.0, 0.0), INF), ((-1.0, 1.0), INF),
                 ((0.0, -1.0), INF), ((NAN, 1.0), NAN), ((1.0, NAN), NAN)],
    "kl_div": [((0.0, 0.5), 0.5), ((1.0, 1.0), 0.0), ((1.0, 0.0), INF)],
    "ndtr": [((-INF,), 0.0), ((INF,), 1.0), ((0.0,), 0.5), ((NAN,), NAN)],
    "log_ndtr": [((-INF,), -INF), ((INF,), 0.0), ((NAN,), NAN)],
    "ndtri": [((0.0,), -INF), ((1.0,), INF), ((0.5,), 0.0), ((-0.1,), NAN), ((1.1,), NAN),
              ((NAN,), NAN)],
    "gamma": [((0.0,), INF), ((-0.0,), -INF), ((-1.0,), NAN), ((INF,), INF), ((NAN,), NAN),
              ((1.0,), 1.0), ((2.0,), 1.0)],
    "factorial": [((-1.0,), 0.0), ((171.0,), INF), ((NAN,), NAN), ((0.0,), 1.0)],
    "zeta": [((1.0, 2.0), INF), ((0.5, 1.0), NAN), ((2.0, 0.0), INF), ((2.0, -1.0), NAN),
             ((NAN, 1.0), NAN)],
    "i0": [((0.0,), 1.0), ((INF,), INF), ((-INF,), INF), ((NAN,), NAN), ((800.0,), INF)],
    "i1": [((0.0,), 0.0), ((INF,), INF), ((-INF,), -INF), ((NAN,), NAN)],
    "i0e": [((0.0,), 1.0), ((INF,), 0.0), ((NAN,), NAN)],
    "i1e": [((0.0,), 0.0), ((INF,), 0.0), ((NAN,), NAN)],
}  # fmt: skip


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("dtype", ["f8", "f4", "f2"])
def test_special_values(name: str, dtype: str) -> None:
    points, expected = zip(*SPECIAL[name], strict=True)
    columns = [bu.asarray(np.array(column, dtype)) for column in zip(*points, strict=True)]
    found = np.asarray(getattr(bu.special, name)(*columns))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.array(expected, dtype))


def test_polygamma() -> None:
    xs = np.array([0.01, 0.5, 1.0, 7.5, 123.0])
    for n in (0, 1, 2, 5, 30):
        found = np.asarray(bu.special.polygamma(n, bu.asarray(xs)))
        for x, value in zip(xs, found, strict=True):
            expected = mp.polygamma(n, mp.mpf(float(x)))
            assert abs(value - expected) <= 16 * np.finfo("f8").eps * abs(expected), (n, x)
    with pytest.raises(OpTypeError, match="n is -1"):
        bu.special.polygamma(-1, bu.ones(1))


def test_arguments_that_are_no_floats() -> None:
    assert bu.special.ndtr(bu.asarray([0])).dtype is bu.float64
    assert bu.special.xlogy(2, bu.asarray([1.0], dtype=bu.float32)).dtype is bu.float32
    assert bu.special.gamma(bu.zeros((0, 2))).shape == (0, 2)
    assert bu.special.betaln(bu.ones((2, 1)), bu.ones(3)).shape == (2, 3)
    with pytest.raises(OpTypeError, match="real numbers"):
        bu.special.ndtr(bu.asarray([1j]))


#: Functions of one number, their derivatives, and the points where those are compared.
DERIVATIVES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], list[float]]] = {
    "logit": (bu.special.logit, lambda x: 1 / (x * (1 - x)), [0.01, 0.3, 0.5, 0.9]),
    "ndtr": (bu.special.ndtr, mp.npdf, [-30.0, -1.0, 0.0, 4.0]),
    "log_ndtr": (
        bu.special.log_ndtr,
        lambda x: mp.npdf(x) / mp.ncdf(x),
        [-1e4, -100.0, -20.1, -20.0, -19.9, -5.0, 0.0, 0.5, 6.0],
    ),
    "ndtri": (
        bu.special.ndtri,
        lambda p: 1 / mp.npdf(mp.sqrt(2) * mp.erfinv(2 * p - 1)),
        [1e-9, 0.2, 0.5, 0.9],
    ),
    "xlogy by x": (lambda x: bu.special.xlogy(x, 3.0), lambda x: mp.log(3), [0.0, 2.0]),
    "xlogy by y": (lambda y: bu.special.xlogy(2.0, y), lambda y: 2 / y, [0.5, 4.0]),
    "xlogy by y at 0": (lambda y: bu.special.xlogy(0.0, y), lambda y: 0, [0.0, 1.0, 4.0]),
    "xlogy of none": (lambda x: bu.special.xlogy(x, 0.0), lambda x: 0, [0.0]),
    "xlog1py": (lambda x: bu.special.xlog1py(x, 2.0), lambda x: mp.log(3), [0.0, 2.0]),
    "entr": (bu.special.entr, lambda x: -mp.log(x) - 1, [0.25, 3.0]),
    "entr at 0": (bu.special.entr, lambda x: 0, [0.0]),
    "rel_entr": (lambda x: bu.special.rel_entr(x, 3.0), lambda x: mp.log(x / 3) + 1, [0.5, 9.0]),
    "kl_div by y": (lambda y: bu.special.kl_div(0.0, y), lambda y: 1, [0.5, 9.0]),
    "gamma": (bu.special.gamma, lambda x: mp.gamma(x) * mp.digamma(x), [0.5, 3.0, -1.5]),
    "betaln": (
        lambda x: bu.special.betaln(x, 2.0),
        lambda x: mp.digamma(x) - mp.digamma(x + 2),
        [0.5, 3.0, 40.0],
    ),
    "betaln of large": (
        lambda x: bu.special.betaln(x, 30.0),
        lambda x: mp.digamma(x) - mp.digamma(x + 30),
        [0.5, 12.0, 200.0],
    ),
    "zeta": (lambda q: bu.special.zeta(3.0, q), lambda q: -3 * mp.zeta(4, q), [0.5, 2.0]),
    "i0": (bu.special.i0, lambda x: mp.besseli(1, x), [-3.0, 0.0, 5.0, 19.0, 25.0]),
    "i1": (
        bu.special.i1,
        lambda x: (mp.besseli(0, x) + mp.besseli(2, x)) / 2,
        [-3.0, 0.0, 5.0, 19.0, 25.0],
    ),
    "i0e": (
        bu.special.i0e,
        lambda x: (mp.besseli(1, x) - mp.sign(x) * mp.besseli(0, x)) * mp.exp(-abs(x)),
        [-3.0, 1e-9, 5.0, 19.0, 1e4],
    ),
    "i1e": (
        bu.special.i1e,
        lambda x: (
            (mp.besseli(0, x) - (1 / x + mp.sign(x)) * mp.besseli(1, x) if x else mp.mpf(1) / 2)
            * mp.exp(-abs(x))
        ),
        [-3.0, 0.0, 1e-30, 0.01, 5.0, 19.0, 1e4],
    ),
    "sinc": (
        bu.sinc,
        lambda x: (mp.cos(mp.pi * x) - mp.sinc(mp.pi * x)) / x if x else 0,
        [0.0, 0.0005, 0.3, -0.8],
    ),
    "elu": (bu.nn.elu, lambda x: mp.exp(x) if x <= 0 else 1, [-1e3, -1.0, 0.0, 1e3]),
    "celu": (lambda x: bu.nn.celu(x, 2.0), lambda x: mp.exp(x / 2) if x <= 0 else 1, [-1.0, 1e4]),
    "leaky_relu": (bu.nn.leaky_relu, lambda x: 0.01 if x <= 0 else 1, [-3.0, 2.0]),
    "soft_sign": (bu.nn.soft_sign, lambda x: 1 / (1 + abs(x)) ** 2, [-3.0, 2.0]),
    "exp2": (bu.exp2, lambda x: mp.log(2) * mp.mpf(2) ** x, [-3.0, 0.5]),
    "logaddexp2": (
        lambda x: bu.logaddexp2(x, 1.0),
        lambda x: mp.mpf(2) ** x / (mp.mpf(2) ** x + 2),
        [-3.0, 0.5, 60.0],
    ),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives(name: str) -> None:
    """To 64 ULP of the derivative or of 1, for sixteen functions of 4 ULP, times the condition."""
    function, derivative, points = DERIVATIVES[name]
    found = np.asarray(bu.vmap(bu.grad(function))(bu.asarray(points)))
    with mp.workdps(40):
        for x, value in zip(points, found, strict=True):
            expected = derivative(mp.mpf(x))
            scale = max(abs(expected), 1) if abs(expected) > 1e-8 else abs(expected) or 1
            # The exponent of the density is the square of x, or that of the quantile.
            square = x * x if name == "ndtr" else 2 * abs(math.log(x)) if name == "ndtri" else 0.0
            bound = 64 * np.finfo("f8").eps * scale * (1 + square) + 1e-300
            assert abs(mp.mpf(float(value)) - expected) <= bound, (x, value)


def test_second_derivative_of_sinc_at_0() -> None:
    found = float(bu.grad(bu.grad(bu.sinc))(bu.asarray(0.0)))
    assert abs(found + math.pi**2 / 3) <= 1e-14


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "identity": lambda x: x,
    "leaky_relu": lambda x: np.where(x > 0, x, x * 0.01),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "celu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "selu": lambda x: (
        1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0)))
    ),
    "relu6": lambda x: np.clip(x, 0, 6),
    "hard_tanh": lambda x: np.clip(x, -1, 1),
    "hard_sigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hard_swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hard_silu": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "swish": lambda x: x * sigmoid(x),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "soft_sign": lambda x: x / (1 + np.abs(x)),
    "squareplus": lambda x: (x + np.sqrt(x * x + 4)) / 2,
    "logsigmoid": lambda x: -np.log1p(np.exp(-x)),
    "glu": lambda x: x[..., :3] * sigmoid(x[..., 3:]),
    "standardize": lambda x: (
        (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    ),
}


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str, dtype: str) -> None:
    """A few roundings of numbers of up to 8 each; of halves every step is rounded to them."""
    x = RNG.uniform(-8, 8, (4, 6)).astype(dtype)
    function = getattr(bu.nn, name)
    expected = ACTIVATIONS[name](x.astype("f8"))
    for found in (function(bu.asarray(x)), bu.jit(function)(bu.asarray(x))):
        host = np.asarray(found)
        assert host.dtype == dtype
        assert np.all(np.abs(host - expected) <= 8 * 8 * np.finfo(dtype).eps), name


def test_activations_of_options_and_their_errors() -> None:
    x = bu.asarray([-2.0, 4.0])
    assert bu.nn.leaky_relu(x, 0.5).tolist() == [-1.0, 4.0]
    assert bu.nn.relu6(bu.asarray([-3, 9])).tolist() == [0, 6]
    assert bu.nn.standardize(x, mean=1.0, variance=9.0, epsilon=0.0).tolist() == [-1.0, 1.0]
    assert bu.nn.glu(bu.asarray([[1.0], [0.0]]), axis=0).tolist() == [[0.5]]
    with pytest.raises(OpTypeError, match="no halves"):
        bu.nn.glu(bu.ones(3))

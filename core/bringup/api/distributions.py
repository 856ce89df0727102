"""Distributions made of the samplers of others; `bringup.random` hands them on.

Numbers are of the default float dtype, or i64, unless ``dtype=`` says otherwise.
"""

from __future__ import annotations

from typing import Any

from bringup.api.array import Array
from bringup.api.broadcasting import as_array, convert, spread
from bringup.api.control import while_loop
from bringup.api.creation import zeros, zeros_like
from bringup.api.defaults import default_float
from bringup.api.elementwise import clip, floor, maximum, where
from bringup.api.floating import sqrt
from bringup.api.keys import Key, Shape, checked, fold_in, split
from bringup.api.linear import matmul
from bringup.api.manipulation import broadcast_shapes, expand_dims, squeeze
from bringup.api.promotion import DEFAULT_INT, dtype_of
from bringup.api.quantiles import exp, log
from bringup.api.reductions import any as any_of
from bringup.api.rejection import Parameter, beta, gamma, parameters_of
from bringup.api.samplers import bernoulli, exponential, normal
from bringup.api.sampling import float_of, sizes_of, tails, working
from bringup.api.solving import cholesky
from bringup.dtypes import f64, i32
from bringup.errors import OpTypeError


def rademacher(key: Key, shape: Shape = (), dtype: object = None) -> Array:
    """1 and -1, equally likely; i64 by default.

    >>> sorted(set(bu.random.rademacher(bu.random.key(0), 100).tolist()))
    [-1, 1]
    """
    own = DEFAULT_INT if dtype is None else dtype_of(dtype)
    return convert(where(bernoulli(checked("rademacher", key), 0.5, shape), 1, -1), own)


def cauchy(key: Key, shape: Shape = (), dtype: object = None) -> Array:
    """Numbers of the standard Cauchy distribution: ratios of normal ones.

    >>> bu.random.cauchy(bu.random.key(0), (2, 3)).shape
    (2, 3)
    """
    one, own = checked("cauchy", key), float_of("cauchy", dtype)
    x, y = (normal(part, shape, working(own)) for part in split(one))
    return convert(x / y, own)


def logistic(key: Key, shape: Shape = (), dtype: object = None) -> Array:
    """Numbers of the standard logistic distribution, of the default float dtype.

    >>> x = bu.random.logistic(bu.random.key(0), 10_000)
    >>> abs(float(bu.mean(x))) < 0.1
    True
    """
    one, own = checked("logistic", key), float_of("logistic", dtype)
    lower, upper, _ = tails(one, sizes_of("logistic", shape), working(own))
    return convert(log(lower, upper) - log(upper, lower), own)


def lognormal(
    key: Key, sigma: Parameter = 1.0, shape: Shape | None = None, dtype: object = None
) -> Array:
    """``exp(sigma * normal)``, of the default float dtype.

    sigma: at least 0; a number, or an array, to whose shape `shape` defaults.

    >>> float(bu.min(bu.random.lognormal(bu.random.key(0), 2.0, 100))) > 0
    True
    """
    one, own = checked("lognormal", key), float_of("lognormal", dtype)
    (scale,) = parameters_of("lognormal", one, own, shape, sigma=sigma)
    return convert(exp(scale * normal(one, scale.shape, scale.dtype)), own)


def rayleigh(
    key: Key, scale: Parameter = 1.0, shape: Shape | None = None, dtype: object = None
) -> Array:
    """Numbers of the Rayleigh distribution, the lengths of pairs of normal ones.

    scale: at least 0; a number, or an array, to whose shape `shape` defaults.

    >>> float(bu.min(bu.random.rayleigh(bu.random.key(0), 2.0, 100))) > 0
    True
    """
    one, own = checked("rayleigh", key), float_of("rayleigh", dtype)
    (size,) = parameters_of("rayleigh", one, own, shape, scale=scale)
    return convert(size * sqrt(2 * exponential(one, size.shape, size.dtype)), own)


def pareto(key: Key, b: Parameter, shape: Shape | None = None, dtype: object = None) -> Array:
    """Numbers of the Pareto distribution, of density ``b * x ** (-b - 1)`` above 1.

    b: above 0; a number, or an array, to whose shape `shape` defaults.

    >>> float(bu.min(bu.random.pareto(bu.random.key(0), 2.0, 100))) >= 1
    True
    """
    one, own = checked("pareto", key), float_of("pareto", dtype)
    (power,) = parameters_of("pareto", one, own, shape, b=b)
    return convert(exp(exponential(one, power.shape, power.dtype) / power), own)


def weibull_min(
    key: Key,
    scale: Parameter,
    concentration: Parameter,
    shape: Shape | None = None,
    dtype: object = None,
) -> Array:
    """Numbers of the Weibull distribution, ``scale * exponential ** (1 / concentration)``; f64 by
    default.

    scale, concentration: above 0; numbers, or arrays, to whose shape `shape` defaults.

    >>> float(bu.min(bu.random.weibull_min(bu.random.key(0), 2.0, 1.5, 100))) > 0
    True
    """
    name, one = "weibull_min", checked("weibull_min", key)
    own = float_of(name, dtype)
    size, power = parameters_of(name, one, own, shape, scale=scale, concentration=concentration)
    x = exponential(one, size.shape, size.dtype)
    return convert(size * exp(log(x) / power), own)


def chisquare(key: Key, df: Parameter, shape: Shape | None = None, dtype: object = None) -> Array:
    """Numbers of the chi-square distribution: sums of squares of normal ones.

    df: how many squares, at least 0; a number, or an array, to whose shape `shape` defaults.

    >>> x = bu.random.chisquare(bu.random.key(0), 3.0, 10_000)
    >>> abs(float(bu.mean(x)) - 3) < 0.2
    True
    """
    one, own = checked("chisquare", key), float_of("chisquare", dtype)
    (freedom,) = parameters_of("chisquare", one, own, shape, df=df)
    return convert(gamma(one, freedom * 0.5, dtype=freedom.dtype) * 2, own)


def t(key: Key, df: Parameter, shape: Shape | None = None, dtype: object = None) -> Array:
    """Numbers of Student's t distribution, of the default float dtype.

    df: the degrees of freedom, above 0; a number, or an array, to whose shape `shape` defaults.

    >>> bu.random.t(bu.random.key(0), 3.0, (2, 3)).shape
    (2, 3)
    """
    one, own = checked("t", key), float_of("t", dtype)
    (freedom,) = parameters_of("t", one, own, shape, df=df)
    first, second = split(one)
    half = freedom * 0.5
    x = normal(first, half.shape, half.dtype)
    return convert(x * sqrt(half / gamma(second, half, dtype=half.dtype)), own)


def geometric(key: Key, p: Parameter, shape: Shape | None = None, dtype: object = None) -> Array:
    """How many trials it takes to succeed once, i64 by default.

    p: the probability of success, above 0 and up to 1; a number, or an array, to whose shape
    `shape` defaults.
    Raises OpTypeError for a number that is none; in an array these give -1.

    >>> x = bu.random.geometric(bu.random.key(0), 0.25, 10_000)
    >>> int(bu.min(x)), abs(float(bu.mean(x)) - 4) < 0.2
    (1, True)
    """
    one, own = checked("geometric", key), DEFAULT_INT if dtype is None else dtype_of(dtype)
    _check_probability("geometric", p, least=True)
    (chance,) = parameters_of("geometric", one, _float_of(p), shape, p=p)
    open_ = (chance > 0) & (chance < 1)
    inside = where(open_, chance, 0.5)
    waited = exponential(one, inside.shape, inside.dtype) / -log(1 - inside, inside)
    found = where(open_, floor(waited) + 1, where(chance == 1, 1.0, -1.0))
    return convert(found, own)


def binomial(
    key: Key, n: Parameter, p: Parameter, shape: Shape | None = None, dtype: object = None
) -> Array:
    """How many of `n` trials succeed, i64 by default.

    n: a whole number of at least 0, below 2**53.  p: the probability of success.  Numbers, or
    arrays, to whose shape `shape` defaults.
    By halving: the middle one of n sorted uniform numbers is a beta number, and tells of half of
    them whether they are below p; L. Devroye, Non-Uniform Random Variate Generation (1986), X.4.3.
    Raises OpTypeError for numbers that are none; in an array these give -1.

    >>> x = bu.random.binomial(bu.random.key(0), 10, 0.3, 10_000)
    >>> abs(float(bu.mean(x)) - 3) < 0.1
    True
    """
    one, own = checked("binomial", key), DEFAULT_INT if dtype is None else dtype_of(dtype)
    _check_probability("binomial", p)
    count, chance = parameters_of("binomial", one, f64, shape, n=n, p=p)
    valid = (count >= 0) & (floor(count) == count) & (chance >= 0) & (chance <= 1)

    def waiting(state: tuple[Array, ...]) -> Array:
        return any_of(state[1] > 0)

    def halve(state: tuple[Array, ...]) -> tuple[Array, ...]:
        number, left, share, found = state
        middle = floor((left + 1) * 0.5)
        # What is done goes on as one trial that counts nothing.
        y = beta(fold_in(one, number), maximum(middle, 1.0), maximum(left + 1 - middle, 1.0))
        below = y <= share
        found = found + where(below, middle, 0.0)
        share = where(below, (share - y) / where(y < 1, 1 - y, 1.0), share / where(y > 0, y, 1.0))
        left = where(below, left - middle, maximum(middle - 1, 0.0))
        return number + 1, left, clip(share, 0.0, 1.0), found

    left, share = where(valid, count, 0.0), where(valid, chance, 0.0)
    start = (zeros((), i32, device=left._device), left, share, zeros_like(left))
    found = while_loop(waiting, halve, start)[3]
    return convert(where(valid, found, -1.0), own)


def _check_probability(name: str, p: Any, *, least: bool = False) -> None:
    """least: whether 0 is no probability."""
    if isinstance(p, int | float) and not (0 < p <= 1 or (p == 0 and not least)):
        raise OpTypeError(
            f"{name}: p={p} is no probability here",
            fix="give 0 < p <= 1" if least else "give 0 <= p <= 1",
        )


def _float_of(p: Any) -> Any:
    """The dtype to work in: that of an array of floats, else f64."""
    return p.dtype if isinstance(p, Array) and p.dtype.is_float else default_float()


def multivariate_normal(
    key: Key, mean: Array, cov: Array, shape: Shape | None = None, dtype: object = None
) -> Array:
    """Vectors of the normal distribution of a mean and a matrix of covariances.

    mean: ``[…, n]``.  cov: ``[…, n, n]``, positive definite: it is factored by `cholesky`.
    shape: of the result without its last dimension, n; by default that of `mean` and `cov`.
    Raises OpTypeError.

    >>> mean, cov = bu.asarray([1.0, 2.0]), bu.asarray([[2.0, 1.0], [1.0, 2.0]])
    >>> bu.random.multivariate_normal(bu.random.key(0), mean, cov, (5,)).shape
    (5, 2)
    """
    name, one = "multivariate_normal", checked("multivariate_normal", key)
    own = float_of(name, dtype)
    wide = working(own)
    middle, spread_ = (as_array(x, one.data._device) for x in (mean, cov))
    if not middle.ndim or spread_.ndim < 2 or spread_.shape[-2:] != middle.shape[-1:] * 2:
        raise OpTypeError(
            f"{name}: mean {middle.type} and cov {spread_.type}",
            fix="give a vector and a square matrix of its size, or stacks of them",
        )
    rest = broadcast_shapes(middle.shape[:-1], spread_.shape[:-2])
    sizes = rest if shape is None else sizes_of(name, shape)
    middle = spread(convert(middle, wide), (*sizes, middle.shape[-1]))
    factor = cholesky(convert(spread_, wide))
    noise = normal(one, middle.shape, wide)
    return convert(middle + squeeze(matmul(factor, expand_dims(noise, -1)), -1), own)

"""Distributions by rejection, and those made of the samplers of others.

Gamma and Poisson numbers are proposed, and accepted or rejected.  Poisson numbers of small rates
count arrivals.  Those of large ones are proposed by W. Hörmann's transformed rejection (1993), and
accepted by the distribution in C. Loader's form (2000), in which no large numbers cancel.

Numbers are of the default float dtype, or i64, unless ``dtype=`` says otherwise.
`bringup.random` hands these on.
"""

from __future__ import annotations

import math
from typing import Any

from bringup.api.array import Array
from bringup.api.broadcasting import as_array, as_float, convert, spread
from bringup.api.control import while_loop
from bringup.api.creation import full_like, zeros, zeros_like
from bringup.api.decompositions import cholesky
from bringup.api.defaults import default_float
from bringup.api.elementwise import clip, floor, isfinite, maximum, minimum, sqrt, where
from bringup.api.keys import Key, Shape, fold_in, single_key, split
from bringup.api.manipulation import broadcast_shapes, expand_dims, squeeze
from bringup.api.portable_math import exp, log
from bringup.api.products import matmul
from bringup.api.promotion import DEFAULT_INT, dtype_of
from bringup.api.reductions import all as all_of
from bringup.api.reductions import any as any_of
from bringup.api.reductions import max as largest
from bringup.api.reductions import sum as total
from bringup.api.samplers import (
    bernoulli,
    exponential,
    float_of,
    normal,
    parameter,
    sizes_of,
    spread_parameter,
    tails,
    working,
)
from bringup.dtypes import DType, bool_, f64, i32
from bringup.errors import OpTypeError

Parameter = float | Array
#: The most rounds: a proposal is accepted with probability 0.95 at least.
_MOST = 100
#: Poisson rates from which on proposals are cheaper than arrivals.
_LARGE = 10.0
#: The most rounds of arrivals below `_LARGE`, and of proposals: no element needs as many.
_MOST_ARRIVALS = 200


def gamma(key: Key, a: Parameter, shape: Shape | None = None, dtype: object = None) -> Array:
    """Numbers of the gamma distribution of scale 1, of the default float dtype.

    a: the shape parameter, at least 0; a number, or an array, to whose shape `shape` defaults.
    By the method of G. Marsaglia and W. Tsang (2000): proposals for all elements until each has one
    that is kept; five or six rounds for a million.  There is no gradient.
    Raises OpTypeError for a negative number; in an array negative ones and NaN give NaN.

    >>> x = bu.random.gamma(bu.random.key(0), 3.0, 10_000)
    >>> abs(float(bu.mean(x)) - 3) < 0.1
    True
    """
    key, result_dtype = single_key("gamma", key), float_of("gamma", dtype)
    parameter = parameters_of("gamma", key, result_dtype, shape, a=a)[0]
    size, power = _gamma(key, parameter)
    return convert(size * exp(power), result_dtype)


def beta(
    key: Key, a: Parameter, b: Parameter, shape: Shape | None = None, dtype: object = None
) -> Array:
    """Numbers of the beta distribution, of the default float dtype.

    a, b: above 0; numbers, or arrays, to whose shape `shape` defaults.

    >>> x = bu.random.beta(bu.random.key(0), 2.0, 3.0, 10_000)
    >>> abs(float(bu.mean(x)) - 0.4) < 0.02
    True
    """
    key, result_dtype = single_key("beta", key), float_of("beta", dtype)
    first, second = parameters_of("beta", key, result_dtype, shape, a=a, b=b)
    # Work with logarithms: both numbers may be too small for the dtype.
    x, y = (_log_gamma(k, v) for k, v in zip(split(key), (first, second), strict=True))
    top = maximum(x, y)
    part, other_part = exp(x - top), exp(y - top)
    return convert(part / (part + other_part), result_dtype)


def dirichlet(key: Key, alpha: Array, shape: Shape | None = None, dtype: object = None) -> Array:
    """Points of the simplex by the Dirichlet distribution: numbers that sum to 1 along a last axis.

    alpha: ``[…, n]``, above 0.
    shape: of the result without the last axis; by default that of `alpha` without it.
    dtype: the default float dtype by default.

    >>> x = bu.random.dirichlet(bu.random.key(0), bu.asarray([1.0, 2.0, 3.0]), 5)
    >>> x.shape, bool(bu.all(bu.abs(bu.sum(x, axis=1) - 1) < 1e-12))
    ((5, 3), True)
    """
    key, result_dtype = single_key("dirichlet", key), float_of("dirichlet", dtype)
    weights = as_array(alpha, key.data._device)
    if not weights.ndim:
        raise OpTypeError(
            f"dirichlet: alpha is {weights.type}",
            fix="give a weight for each number of a point, along the last axis",
        )
    sizes = weights.shape[:-1] if shape is None else sizes_of("dirichlet", shape)
    full = spread(convert(weights, working(result_dtype)), (*sizes, weights.shape[-1]))
    x = _log_gamma(key, full)
    parts = exp(x - largest(x, axis=-1, keepdims=True))
    return convert(parts / total(parts, axis=-1, keepdims=True), result_dtype)


def parameters_of(
    name: str, key: Key, dtype: DType, shape: Shape | None, **parameters: Any
) -> list[Array]:
    """Parameters as arrays of one shape, in the dtype to work in."""
    result = {label: parameter(name, label, value, key) for label, value in parameters.items()}
    for label, value in result.items():
        if not isinstance(value, Array) and not value >= 0:
            raise OpTypeError(
                f"{name}: {label}={value} is no parameter of the distribution",
                fix="give a number of at least 0",
            )
    sizes, wide = sizes_of(name, shape, list(result.values())), working(dtype)
    return [spread_parameter(value, wide, sizes, key) for value in result.values()]


def _log_gamma(key: Key, a: Array) -> Array:
    size, power = _gamma(key, a)
    return log(size) + power


def _gamma(key: Key, a: Array) -> tuple[Array, Array]:
    """A positive number, and the logarithm of the factor that is still missing."""
    proposing, shrinking = split(key)
    # For a < 1, draw with parameter a + 1 and scale the number down.
    small = a < 1
    size = _accepted(proposing, where(small, a + 1, a))
    lower, upper, _ = tails(shrinking, a.shape, a.dtype)
    power = where(small, log(lower, upper) / a, 0.0)
    return where(a >= 0, size, full_like(size, float("nan"))), power


def _accepted(key: Key, a: Array) -> Array:
    """Gamma numbers of parameters of at least 1: ``d · v``, v the cube of a normal number."""
    d = a - 1 / 3
    c = 1 / sqrt(d * 9)

    def waiting(state: tuple[Array, Array, Array]) -> Array:
        number, accepted, _ = state
        return (number < _MOST) & ~all_of(accepted)

    def propose(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        number, accepted, v = state
        first, second = split(fold_in(key, number))
        x = normal(first, a.shape, dtype=a.dtype)
        lower, upper, _ = tails(second, a.shape, a.dtype)
        root = 1 + c * x
        cube = where(root > 0, root * root * root, 1.0)
        bound = x * x * 0.5 + d * (1 - cube + log(cube))
        good = (root > 0) & (log(lower, upper) < bound)
        return number + 1, accepted | good, where(accepted, v, cube)

    # Invalid parameters need no proposal.
    start = (zeros((), dtype=i32, device=a._device), ~(a >= 1), full_like(a, 1.0))
    last: tuple[Array, Array, Array] = while_loop(waiting, propose, start)
    return d * last[2]


def poisson(
    key: Key, rate: float | Array, shape: Shape | None = None, dtype: object = None
) -> Array:
    """Numbers of events of a Poisson distribution, i64 by default.

    rate: their mean, at least 0; a number, which is taken in the default float dtype, or an array,
    in whose dtype is computed (f16 and bf16: f32), and to whose shape `shape` defaults.  f32 tells
    whole numbers apart up to 2**24, so rates should stay below.
    Raises OpTypeError for numbers that are no rates; in an array these give -1.

    >>> x = bu.random.poisson(bu.random.key(0), 4.0, 10_000)
    >>> abs(float(bu.mean(bu.astype(x, bu.float64))) - 4) < 0.1
    True
    """
    key = single_key("poisson", key)
    rate = _checked_rate(rate, key)
    sizes = sizes_of("poisson", shape, (rate,))
    result_dtype = DEFAULT_INT if dtype is None else dtype_of(dtype)
    if not result_dtype.is_integer:
        raise OpTypeError(
            f"poisson: {result_dtype} is no integer dtype",
            fix="convert the result, with astype(x, …)",
        )
    few, many = split(key)
    mean = as_float(as_array(rate, key.data._device))
    mean = spread(convert(mean, working(mean.dtype)), sizes)
    if not isinstance(rate, Array):
        return convert(
            _poisson_arrivals(few, mean) if rate < _LARGE else _poisson_proposed(many, mean),
            result_dtype,
        )
    small = mean < _LARGE
    counted = _poisson_arrivals(few, where(small, mean, 0.0))
    proposed = _poisson_proposed(many, where(small | ~isfinite(mean), _LARGE, mean))
    result = where(small, counted, proposed)
    return convert(where((mean >= 0) & isfinite(mean), result, -1.0), result_dtype)


def _checked_rate(value: Any, key: Key) -> float | Array:
    rate: float | Array = parameter("poisson", "rate", value, key)
    if not isinstance(rate, Array) and not 0 <= rate < math.inf:
        raise OpTypeError(
            f"poisson: rate={rate} is no mean of counts", fix="give a finite number of at least 0"
        )
    return rate


def _poisson_loop(key: Key, mean: Array, first: Array, step: Any) -> Array:
    """Whole numbers, drawn until every element has one.

    first: the second number of each element, which `step` may use.
    step: ``(key, number, second) -> (number, second, whether it is the last)``.
    """

    def waiting(state: tuple[Array, Array, Array, Array]) -> Array:
        return (state[0] < _MOST_ARRIVALS) & ~all_of(state[1])

    def draw(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        round_, done, number, second = state
        new, new_second, last = step(fold_in(key, round_), number, second)
        return round_ + 1, done | last, where(done, number, new), where(done, second, new_second)

    start = zeros((), dtype=i32, device=mean._device)
    none = zeros_like(mean, dtype=bool_)
    last: tuple[Array, ...] = while_loop(waiting, draw, (start, none, zeros_like(mean), first))
    return last[2]


def _poisson_arrivals(key: Key, mean: Array) -> Array:
    """How many exponential numbers sum to no more than the mean."""

    def step(key: Key, number: Array, passed: Array) -> tuple[Array, Array, Array]:
        lower, upper, _ = tails(key, mean.shape, mean.dtype)
        now = passed - log(lower, upper)
        return where(now <= mean, number + 1, number), now, now > mean

    return _poisson_loop(key, mean, zeros_like(mean), step)


def _poisson_proposed(key: Key, mean: Array) -> Array:
    """Rejection; means are at least `_LARGE`."""
    b = 2.53 * sqrt(mean) + 0.931
    a = 0.02483 * b - 0.059
    height = 1.1328 / (b - 3.4) + 1.1239
    quick = 0.9277 - 3.6224 / (b - 2)

    def step(key: Key, number: Array, second: Array) -> tuple[Array, Array, Array]:
        shift, test = split(key)
        lower, upper, _ = tails(shift, mean.shape, mean.dtype)
        v, complement, _ = tails(test, mean.shape, mean.dtype)
        near = minimum(lower, upper)
        k = floor((2 * a / near + b) * (lower - upper) * 0.5 + mean + 0.43)
        possible = (k >= 0) & ((near >= 0.013) | (v <= near))
        count = where(possible, k, 0.0)
        bound = log(v, complement) + log(height) - log(a / (near * near) + b)
        good = (near >= 0.07) & (v <= quick) | possible & (bound <= _log_mass(count, mean))
        return k, second, good

    return _poisson_loop(key, mean, zeros_like(mean), step)


def _log_mass(k: Array, mean: Array) -> Array:
    """The logarithm of the probability of `k` events."""
    some = where(k > 0, k, 1.0)
    square = 1 / (some * some)
    # The remainder of Stirling's formula for log k!, by a series that is too short only for k = 1.
    correction = (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680)))) / some
    correction = where(some == 1, 0.08106146679532726, correction)
    half = 0.5 * math.log(2 * math.pi) + 0.5 * log(some)
    return where(k > 0, -(_deviance(some, mean) + correction + half), -mean)


def _deviance(k: Array, mean: Array) -> Array:
    """``k log(k / mean) + mean - k``, by a series where that cancels."""
    apart = k - mean
    ratio = apart / (k + mean)
    square = ratio * ratio
    series = full_like(square, 1 / 15)
    for odd in (13, 11, 9, 7, 5, 3):
        series = series * square + 1 / odd
    near = apart * ratio + 2 * k * ratio * (square * series)
    return where(abs(ratio) < 0.1, near, k * log(k / mean) - apart)


def rademacher(key: Key, shape: Shape = (), dtype: object = None) -> Array:
    """1 and -1, equally likely; i64 by default.

    >>> sorted(set(bu.random.rademacher(bu.random.key(0), 100).tolist()))
    [-1, 1]
    """
    result_dtype = DEFAULT_INT if dtype is None else dtype_of(dtype)
    return convert(where(bernoulli(single_key("rademacher", key), 0.5, shape), 1, -1), result_dtype)


def cauchy(key: Key, shape: Shape = (), dtype: object = None) -> Array:
    """Numbers of the standard Cauchy distribution: ratios of normal ones.

    >>> bu.random.cauchy(bu.random.key(0), (2, 3)).shape
    (2, 3)
    """
    key, result_dtype = single_key("cauchy", key), float_of("cauchy", dtype)
    x, y = (normal(part, shape, working(result_dtype)) for part in split(key))
    return convert(x / y, result_dtype)


def logistic(key: Key, shape: Shape = (), dtype: object = None) -> Array:
    """Numbers of the standard logistic distribution, of the default float dtype.

    >>> x = bu.random.logistic(bu.random.key(0), 10_000)
    >>> abs(float(bu.mean(x))) < 0.1
    True
    """
    key, result_dtype = single_key("logistic", key), float_of("logistic", dtype)
    lower, upper, _ = tails(key, sizes_of("logistic", shape), working(result_dtype))
    return convert(log(lower, upper) - log(upper, lower), result_dtype)


def lognormal(
    key: Key, sigma: Parameter = 1.0, shape: Shape | None = None, dtype: object = None
) -> Array:
    """``exp(sigma * normal)``, of the default float dtype.

    sigma: at least 0; a number, or an array, to whose shape `shape` defaults.

    >>> float(bu.min(bu.random.lognormal(bu.random.key(0), 2.0, 100))) > 0
    True
    """
    key, result_dtype = single_key("lognormal", key), float_of("lognormal", dtype)
    (scale,) = parameters_of("lognormal", key, result_dtype, shape, sigma=sigma)
    return convert(exp(scale * normal(key, scale.shape, scale.dtype)), result_dtype)


def rayleigh(
    key: Key, scale: Parameter = 1.0, shape: Shape | None = None, dtype: object = None
) -> Array:
    """Numbers of the Rayleigh distribution, the lengths of pairs of normal ones.

    scale: at least 0; a number, or an array, to whose shape `shape` defaults.

    >>> float(bu.min(bu.random.rayleigh(bu.random.key(0), 2.0, 100))) > 0
    True
    """
    key, result_dtype = single_key("rayleigh", key), float_of("rayleigh", dtype)
    (size,) = parameters_of("rayleigh", key, result_dtype, shape, scale=scale)
    return convert(size * sqrt(2 * exponential(key, size.shape, size.dtype)), result_dtype)


def pareto(key: Key, b: Parameter, shape: Shape | None = None, dtype: object = None) -> Array:
    """Numbers of the Pareto distribution, of density ``b * x ** (-b - 1)`` above 1.

    b: above 0; a number, or an array, to whose shape `shape` defaults.

    >>> float(bu.min(bu.random.pareto(bu.random.key(0), 2.0, 100))) >= 1
    True
    """
    key, result_dtype = single_key("pareto", key), float_of("pareto", dtype)
    (power,) = parameters_of("pareto", key, result_dtype, shape, b=b)
    return convert(exp(exponential(key, power.shape, power.dtype) / power), result_dtype)


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
    name, key = "weibull_min", single_key("weibull_min", key)
    result_dtype = float_of(name, dtype)
    size, power = parameters_of(
        name, key, result_dtype, shape, scale=scale, concentration=concentration
    )
    x = exponential(key, size.shape, size.dtype)
    return convert(size * exp(log(x) / power), result_dtype)


def chisquare(key: Key, df: Parameter, shape: Shape | None = None, dtype: object = None) -> Array:
    """Numbers of the chi-square distribution: sums of squares of normal ones.

    df: how many squares, at least 0; a number, or an array, to whose shape `shape` defaults.

    >>> x = bu.random.chisquare(bu.random.key(0), 3.0, 10_000)
    >>> abs(float(bu.mean(x)) - 3) < 0.2
    True
    """
    key, result_dtype = single_key("chisquare", key), float_of("chisquare", dtype)
    (freedom,) = parameters_of("chisquare", key, result_dtype, shape, df=df)
    return convert(gamma(key, freedom * 0.5, dtype=freedom.dtype) * 2, result_dtype)


def t(key: Key, df: Parameter, shape: Shape | None = None, dtype: object = None) -> Array:
    """Numbers of Student's t distribution, of the default float dtype.

    df: the degrees of freedom, above 0; a number, or an array, to whose shape `shape` defaults.

    >>> bu.random.t(bu.random.key(0), 3.0, (2, 3)).shape
    (2, 3)
    """
    key, result_dtype = single_key("t", key), float_of("t", dtype)
    (freedom,) = parameters_of("t", key, result_dtype, shape, df=df)
    first, second = split(key)
    half = freedom * 0.5
    x = normal(first, half.shape, half.dtype)
    return convert(x * sqrt(half / gamma(second, half, dtype=half.dtype)), result_dtype)


def geometric(key: Key, p: Parameter, shape: Shape | None = None, dtype: object = None) -> Array:
    """How many trials it takes to succeed once, i64 by default.

    p: the probability of success, above 0 and up to 1; a number, or an array, to whose shape
    `shape` defaults.
    Raises OpTypeError for a number that is none; in an array these give -1.

    >>> x = bu.random.geometric(bu.random.key(0), 0.25, 10_000)
    >>> int(bu.min(x)), abs(float(bu.mean(x)) - 4) < 0.2
    (1, True)
    """
    key, result_dtype = (
        single_key("geometric", key),
        DEFAULT_INT if dtype is None else dtype_of(dtype),
    )
    _check_probability("geometric", p, positive=True)
    dtype_of_p = p.dtype if isinstance(p, Array) and p.dtype.is_float else default_float()
    (chance,) = parameters_of("geometric", key, dtype_of_p, shape, p=p)
    open_ = (chance > 0) & (chance < 1)
    inside = where(open_, chance, 0.5)
    waited = exponential(key, inside.shape, inside.dtype) / -log(1 - inside, inside)
    result = where(open_, floor(waited) + 1, where(chance == 1, 1.0, -1.0))
    return convert(result, result_dtype)


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
    key, result_dtype = (
        single_key("binomial", key),
        DEFAULT_INT if dtype is None else dtype_of(dtype),
    )
    _check_probability("binomial", p)
    count, chance = parameters_of("binomial", key, f64, shape, n=n, p=p)
    valid = (count >= 0) & (floor(count) == count) & (chance >= 0) & (chance <= 1)

    def waiting(state: tuple[Array, ...]) -> Array:
        return any_of(state[1] > 0)

    def halve(state: tuple[Array, ...]) -> tuple[Array, ...]:
        number, left, share, result = state
        middle = floor((left + 1) * 0.5)
        # Finished elements continue as one trial that is not counted.
        y = beta(fold_in(key, number), maximum(middle, 1.0), maximum(left + 1 - middle, 1.0))
        below = y <= share
        result = result + where(below, middle, 0.0)
        share = where(below, (share - y) / where(y < 1, 1 - y, 1.0), share / where(y > 0, y, 1.0))
        left = where(below, left - middle, maximum(middle - 1, 0.0))
        return number + 1, left, clip(share, 0.0, 1.0), result

    left, share = where(valid, count, 0.0), where(valid, chance, 0.0)
    start = (zeros((), i32, device=left._device), left, share, zeros_like(left))
    result = while_loop(waiting, halve, start)[3]
    return convert(where(valid, result, -1.0), result_dtype)


def _check_probability(name: str, p: Any, *, positive: bool = False) -> None:
    """positive: whether 0 is refused."""
    if isinstance(p, int | float) and not (0 < p <= 1 or (p == 0 and not positive)):
        raise OpTypeError(
            f"{name}: p={p} is no probability here",
            fix="give 0 < p <= 1" if positive else "give 0 <= p <= 1",
        )


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
    name, key = "multivariate_normal", single_key("multivariate_normal", key)
    result_dtype = float_of(name, dtype)
    wide = working(result_dtype)
    middle, spread_ = (as_array(x, key.data._device) for x in (mean, cov))
    if not middle.ndim or spread_.ndim < 2 or spread_.shape[-2:] != middle.shape[-1:] * 2:
        raise OpTypeError(
            f"{name}: mean {middle.type} and cov {spread_.type}",
            fix="give a vector and a square matrix of its size, or stacks of them",
        )
    stack = broadcast_shapes(middle.shape[:-1], spread_.shape[:-2])
    sizes = stack if shape is None else sizes_of(name, shape)
    middle = spread(convert(middle, wide), (*sizes, middle.shape[-1]))
    factor = cholesky(convert(spread_, wide))
    noise = normal(key, middle.shape, wide)
    return convert(middle + squeeze(matmul(factor, expand_dims(noise, -1)), -1), result_dtype)

"""Gamma numbers by proposals that are kept or not, and what is made of them.

`bringup.random` hands these on.
"""

from __future__ import annotations

from typing import Any

from bringup.api.array import Array
from bringup.api.broadcasting import as_array, convert, spread
from bringup.api.control import while_loop
from bringup.api.creation import full_like, zeros
from bringup.api.elementwise import maximum, where
from bringup.api.floating import sqrt
from bringup.api.keys import Key, Shape, checked, fold_in, split
from bringup.api.quantiles import exp, log
from bringup.api.reductions import all as all_of
from bringup.api.reductions import max as largest
from bringup.api.reductions import sum as total
from bringup.api.samplers import normal
from bringup.api.sampling import float_of, parameter, sizes_of, spread_parameter, tails, working
from bringup.dtypes import DType, i32
from bringup.errors import OpTypeError
from bringup.graph import user_location

Parameter = float | Array
#: A proposal is kept with probability 0.95 at least, so that no element needs as many.
_MOST = 100


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
    one, own = checked("gamma", key), float_of("gamma", dtype)
    parameter = parameters_of("gamma", one, own, shape, a=a)[0]
    size, power = _gamma(one, parameter)
    return convert(size * exp(power), own)


def beta(
    key: Key, a: Parameter, b: Parameter, shape: Shape | None = None, dtype: object = None
) -> Array:
    """Numbers of the beta distribution, of the default float dtype.

    a, b: above 0; numbers, or arrays, to whose shape `shape` defaults.

    >>> x = bu.random.beta(bu.random.key(0), 2.0, 3.0, 10_000)
    >>> abs(float(bu.mean(x)) - 0.4) < 0.02
    True
    """
    one, own = checked("beta", key), float_of("beta", dtype)
    first, second = parameters_of("beta", one, own, shape, a=a, b=b)
    # Of logarithms, as both numbers may be too small for the dtype.
    x, y = (_log_gamma(k, v) for k, v in zip(split(one), (first, second), strict=True))
    top = maximum(x, y)
    part, rest = exp(x - top), exp(y - top)
    return convert(part / (part + rest), own)


def dirichlet(key: Key, alpha: Array, shape: Shape | None = None, dtype: object = None) -> Array:
    """Points of the simplex by the Dirichlet distribution: numbers that sum to 1 along a last axis.

    alpha: ``[…, n]``, above 0.
    shape: of the result without the last axis; by default that of `alpha` without it.
    dtype: the default float dtype by default.

    >>> x = bu.random.dirichlet(bu.random.key(0), bu.asarray([1.0, 2.0, 3.0]), 5)
    >>> x.shape, bool(bu.all(bu.abs(bu.sum(x, axis=1) - 1) < 1e-12))
    ((5, 3), True)
    """
    one, own = checked("dirichlet", key), float_of("dirichlet", dtype)
    weights = as_array(alpha, one.data._device)
    if not weights.ndim:
        raise OpTypeError(
            f"dirichlet: alpha is {weights.type}",
            location=user_location(),
            fix="give a weight for each number of a point, along the last axis",
        )
    rest = weights.shape[:-1] if shape is None else sizes_of("dirichlet", shape)
    full = spread(convert(weights, working(own)), (*rest, weights.shape[-1]))
    x = _log_gamma(one, full)
    parts = exp(x - largest(x, axis=-1, keepdims=True))
    return convert(parts / total(parts, axis=-1, keepdims=True), own)


def parameters_of(
    name: str, key: Key, dtype: DType, shape: Shape | None, **given: Any
) -> list[Array]:
    """Parameters as arrays of one shape, in the dtype to work in."""
    found = {what: parameter(name, what, value, key) for what, value in given.items()}
    for what, value in found.items():
        if not isinstance(value, Array) and not value >= 0:
            raise OpTypeError(
                f"{name}: {what}={value} is no parameter of the distribution",
                location=user_location(),
                fix="give a number of at least 0",
            )
    sizes, wide = sizes_of(name, shape, list(found.values())), working(dtype)
    return [spread_parameter(value, wide, sizes, key) for value in found.values()]


def _log_gamma(key: Key, a: Array) -> Array:
    size, power = _gamma(key, a)
    return log(size) + power


def _gamma(key: Key, a: Array) -> tuple[Array, Array]:
    """A positive number, and the logarithm of one that it is still to be multiplied with."""
    proposing, shrinking = split(key)
    # Below 1 a number of a + 1 is drawn, and shrunk.
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
        number, kept, _ = state
        return (number < _MOST) & ~all_of(kept)

    def propose(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        number, kept, v = state
        first, second = split(fold_in(key, number))
        x = normal(first, a.shape, dtype=a.dtype)
        lower, upper, _ = tails(second, a.shape, a.dtype)
        root = 1 + c * x
        cube = where(root > 0, root * root * root, 1.0)
        bound = x * x * 0.5 + d * (1 - cube + log(cube))
        good = (root > 0) & (log(lower, upper) < bound)
        return number + 1, kept | good, where(kept, v, cube)

    # What is no parameter waits for nothing.
    start = (zeros((), dtype=i32, device=a._device), ~(a >= 1), full_like(a, 1.0))
    last: tuple[Array, Array, Array] = while_loop(waiting, propose, start)
    return d * last[2]

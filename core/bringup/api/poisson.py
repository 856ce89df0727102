"""Poisson numbers; `bringup.random` hands them on.

Small rates count arrivals.  Large ones propose, by W. Hörmann's transformed rejection (1993), and
judge by the distribution in C. Loader's form (2000), in which no large numbers cancel.
"""

from __future__ import annotations

import math
from typing import Any

from bringup.api.array import Array
from bringup.api.broadcasting import as_array, as_float, convert, spread
from bringup.api.control import while_loop
from bringup.api.creation import full_like, zeros, zeros_like
from bringup.api.elementwise import floor, isfinite, minimum, where
from bringup.api.floating import sqrt
from bringup.api.keys import Key, Shape, checked, fold_in, split
from bringup.api.promotion import DEFAULT_INT, dtype_of
from bringup.api.quantiles import log
from bringup.api.reductions import all as all_of
from bringup.api.sampling import parameter, sizes_of, tails, working
from bringup.dtypes import bool_, i32
from bringup.errors import OpTypeError
from bringup.graph import user_location

State = tuple[Array, Array, Array]
#: From here on proposals are cheaper than arrivals.
_LARGE = 10.0
#: Of rates below `_LARGE` no element counts as many arrivals, nor rejects as many proposals.
_MOST = 200


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
    one = checked("poisson", key)
    rate = _checked(rate, one)
    sizes = sizes_of("poisson", shape, (rate,))
    own = DEFAULT_INT if dtype is None else dtype_of(dtype)
    if not own.is_integer:
        raise OpTypeError(
            f"poisson: {own} is no integer dtype",
            location=user_location(),
            fix="convert the result, with astype(x, …)",
        )
    few, many = split(one)
    mean = as_float(as_array(rate, one.data._device))
    mean = spread(convert(mean, working(mean.dtype)), sizes)
    if not isinstance(rate, Array):
        return convert(_arrivals(few, mean) if rate < _LARGE else _proposed(many, mean), own)
    small = mean < _LARGE
    counted = _arrivals(few, where(small, mean, 0.0))
    proposed = _proposed(many, where(small | ~isfinite(mean), _LARGE, mean))
    found = where(small, counted, proposed)
    return convert(where((mean >= 0) & isfinite(mean), found, -1.0), own)


def _checked(given: Any, key: Key) -> float | Array:
    rate: float | Array = parameter("poisson", "rate", given, key)
    if not isinstance(rate, Array) and not 0 <= rate < math.inf:
        raise OpTypeError(
            f"poisson: rate={rate} is no mean of counts",
            location=user_location(),
            fix="give a finite number of at least 0",
        )
    return rate


def _loop(key: Key, mean: Array, first: Array, step: Any) -> Array:
    """Whole numbers, drawn until every element has one.

    first: of a second number an element, which `step` may use.
    step: ``(key, number, second) -> (number, second, whether it is the last)``.
    """

    def waiting(state: tuple[Array, Array, Array, Array]) -> Array:
        return (state[0] < _MOST) & ~all_of(state[1])

    def draw(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        turn, done, number, second = state
        new, other, last = step(fold_in(key, turn), number, second)
        return turn + 1, done | last, where(done, number, new), where(done, second, other)

    start = zeros((), dtype=i32, device=mean._device)
    none = zeros_like(mean, dtype=bool_)
    last: tuple[Array, ...] = while_loop(waiting, draw, (start, none, zeros_like(mean), first))
    return last[2]


def _arrivals(key: Key, mean: Array) -> Array:
    """How many exponential numbers sum to no more than the mean."""

    def step(key: Key, number: Array, passed: Array) -> State:
        lower, upper, _ = tails(key, mean.shape, mean.dtype)
        now = passed - log(lower, upper)
        return where(now <= mean, number + 1, number), now, now > mean

    return _loop(key, mean, zeros_like(mean), step)


def _proposed(key: Key, mean: Array) -> Array:
    """Rejection; means are at least `_LARGE`."""
    b = 2.53 * sqrt(mean) + 0.931
    a = 0.02483 * b - 0.059
    height = 1.1328 / (b - 3.4) + 1.1239
    quick = 0.9277 - 3.6224 / (b - 2)

    def step(key: Key, number: Array, second: Array) -> State:
        shift, test = split(key)
        lower, upper, _ = tails(shift, mean.shape, mean.dtype)
        v, rest, _ = tails(test, mean.shape, mean.dtype)
        near = minimum(lower, upper)
        k = floor((2 * a / near + b) * (lower - upper) * 0.5 + mean + 0.43)
        possible = (k >= 0) & ((near >= 0.013) | (v <= near))
        whole = where(possible, k, 0.0)
        bound = log(v, rest) + log(height) - log(a / (near * near) + b)
        good = (near >= 0.07) & (v <= quick) | possible & (bound <= _log_mass(whole, mean))
        return k, second, good

    return _loop(key, mean, zeros_like(mean), step)


def _log_mass(k: Array, mean: Array) -> Array:
    """The logarithm of the probability of `k` events."""
    some = where(k > 0, k, 1.0)
    square = 1 / (some * some)
    # What Stirling's formula leaves of log k!, by its series, which is too short for 1 alone.
    rest = (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680)))) / some
    rest = where(some == 1, 0.08106146679532726, rest)
    half = 0.5 * math.log(2 * math.pi) + 0.5 * log(some)
    return where(k > 0, -(_deviance(some, mean) + rest + half), -mean)


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

"""Random numbers made of words of a key, and random orders and choices; `bringup.random` hands them
on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup.api.apply import apply, apply_all
from bringup.api.arguments import axis_of, shape_of
from bringup.api.array import Array
from bringup.api.broadcasting import as_array, as_float, common_shape, convert, float_unary, spread
from bringup.api.defaults import default_float
from bringup.api.elementwise import clip, minimum, nextafter, where
from bringup.api.elementwise import log as device_log
from bringup.api.gathering import take
from bringup.api.keys import Key, Shape, bits, generate, single_key, split
from bringup.api.manipulation import expand_dims, moveaxis, reshape
from bringup.api.portable_math import log, normal_quantile, upper_quantile
from bringup.api.promotion import DEFAULT_INT, check_range, dtype_of
from bringup.api.reductions import argmax, cumulative_sum
from bringup.api.sorting import argsort, searchsorted
from bringup.dtypes import DType, f32, f64, i32, i64, u32, u64
from bringup.errors import OpTypeError
from bringup.types import TensorType

# -- what samplers share ---------------------------------------------------------------------------


# Bits of the significand: as many random bits make a number of [0, 1).
_PRECISION = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}


def float_of(name: str, dtype: object) -> DType:
    """A float dtype, the default one for None.  Raises OpTypeError for others."""
    result_dtype = default_float() if dtype is None else dtype_of(dtype)
    if not result_dtype.is_float:
        raise OpTypeError(
            f"{name}: {result_dtype} is no float dtype",
            fix="use float16, bfloat16, float32 or float64; randint draws integers",
        )
    return result_dtype


def parameter(name: str, label: str, value: Any, key: Key) -> Any:
    """A parameter of a distribution: an array of ours, or a Python number.

    Raises OpTypeError, naming function and parameter, for anything else.
    """
    if isinstance(value, Array):
        return value
    if isinstance(value, np.ndarray) and value.ndim:
        return as_array(value, key.data._device)
    if isinstance(value, np.ndarray | np.generic):
        value = value.item()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise OpTypeError(
        f"{name}: {label} is a {type(value).__name__}",
        fix="give a number, or an array of numbers",
    )


def spread_parameter(value: Any, dtype: DType, shape: tuple[int, ...], key: Key) -> Array:
    """What `parameter` gave as an array of a type."""
    return spread(convert(as_array(value, key.data._device), dtype), shape)


def working(dtype: DType) -> DType:
    """The dtype in which functions of random numbers are computed before they are rounded once."""
    return f64 if dtype is f64 else f32


def sizes_of(name: str, shape: Shape | None, parameters: Sequence[Any] = ()) -> tuple[int, ...]:
    """The shape of a result: as given, else that to which the parameters broadcast."""
    arrays = [x for x in parameters if isinstance(x, Array)]
    if shape is not None:
        sizes = shape_of(name, shape)
        for x in arrays:
            spread(x, sizes)
        return sizes
    return common_shape(name, arrays) if arrays else ()


def fraction(key: Key, shape: tuple[int, ...], dtype: DType) -> Array:
    """Multiples of the dtype's epsilon / 2 in [0, 1), every one equally likely."""
    precision = _PRECISION[dtype.name]
    scale = 2.0**-precision
    if dtype is not f64:
        (word,) = generate(key, shape, 1)
        return convert(word >> (32 - precision), dtype) * scale
    high, low = generate(key, shape, 2)
    return (convert(high >> 5, f64) * 2.0**26 + convert(low >> 6, f64)) * scale


def tails(key: Key, shape: tuple[int, ...], dtype: DType) -> tuple[Array, Array, Array]:
    """A probability strictly between 0 and 1, its complement, and an independent bit.

    dtype: f32 or f64.  Both come from the same 31 or 63 random bits, so that whichever is small has
    all its digits: 2**-32 or 2**-64 at least.
    """
    high, *further_words = generate(key, shape, 2 if dtype is f64 else 1)
    low = further_words[0] if further_words else None
    part = high >> 1
    lower = _scaled(part, low, dtype)
    upper = _scaled(part ^ 0x7FFFFFFF, None if low is None else ~low, dtype)
    return lower, upper, (high & 1) != 0


def _scaled(high: Array, low: Array | None, dtype: DType) -> Array:
    if low is None:
        return (convert(high, dtype) + 0.5) * 2.0**-31
    return (convert(high, dtype) * 2.0**32 + (convert(low, dtype) + 0.5)) * 2.0**-63


def high_product(x: Array, y: Array | int) -> Array:
    """The upper half of the product of u32 or u64 words."""
    half = x.dtype.bits // 2
    mask = (1 << half) - 1
    x_low, x_high, y_low, y_high = x & mask, x >> half, y & mask, y >> half
    first = x_high * y_low + ((x_low * y_low) >> half)
    second = x_low * y_high + (first & mask)
    return x_high * y_high + (first >> half) + (second >> half)


def scaled_down(high: Array, low: Array, span: Array | int) -> Array:
    """``floor((high · 2**bits + low) · span / 2**(2 · bits))``, of unsigned words.

    Every number below `span` gets its share of the words but for one in 2**bits · 2**bits / span.
    """
    carried = high * span
    total = carried + high_product(low, span)
    return high_product(high, span) + convert(total < carried, high.dtype)


def signed(size: Array, negative: Array) -> Array:
    """`size` with a sign."""
    return where(negative, -size, size)


# -- samplers --------------------------------------------------------------------------------------


Bound = float | Array


def uniform(
    key: Key,
    shape: Shape = (),
    dtype: object = None,
    low: Bound = 0.0,
    high: Bound = 1.0,
    *,
    minval: Bound | None = None,
    maxval: Bound | None = None,
) -> Array:
    """Numbers of ``[low, high)``, of the default float dtype.

    Between 0 and 1 they are the multiples of half the dtype's epsilon, all equally likely: 2**53 of
    f64, 2**24 of f32, 2**11 of f16, 2**8 of bf16.
    low, high: numbers, or arrays that broadcast to the shape; `minval` and `maxval` are JAX's names
    for them.  Raises OpTypeError if high < low.

    >>> x = bu.random.uniform(bu.random.key(0), 1000)
    >>> 0 <= float(bu.min(x)) < float(bu.max(x)) < 1
    True
    """
    key, result_dtype = single_key("uniform", key), float_of("uniform", dtype)
    sizes = sizes_of("uniform", shape)
    low, high = low if minval is None else minval, high if maxval is None else maxval
    low, high = (parameter("uniform", *named, key) for named in (("low", low), ("high", high)))
    x = fraction(key, sizes, result_dtype)
    if _is(low, 0.0) and _is(high, 1.0):
        return x
    if not isinstance(low, Array) and not isinstance(high, Array):
        _check_order("uniform", low, high)
        below = float(np.nextafter(result_dtype.numpy.type(high), result_dtype.numpy.type(low)))
        return minimum(x * (high - low) + low, below)
    first, last = (spread_parameter(bound, result_dtype, sizes, key) for bound in (low, high))
    return minimum(x * (last - first) + first, nextafter(last, first))


def _is(bound: Any, value: float) -> bool:
    return isinstance(bound, int | float) and bound == value


def _check_order(name: str, low: float, high: float) -> None:
    if not low <= high:
        raise OpTypeError(f"{name}: low={low} is above high={high}", fix="give low <= high")


def normal(key: Key, shape: Shape = (), dtype: object = None) -> Array:
    """Numbers of the standard normal distribution, of the default float dtype.

    By inversion of 31 or, in f64, 63 random bits and a sign, so out to 6.2 or 9.1; the quantile
    function is M. Wichura's, its relative error below 4e-7 in f32 and 1e-15 in f64.  f16 and bf16
    are f32's numbers rounded.

    >>> x = bu.random.normal(bu.random.key(0), 10_000)
    >>> abs(float(bu.mean(x))) < 0.05, abs(float(bu.std(x)) - 1) < 0.05
    (True, True)
    """
    key, result_dtype = single_key("normal", key), float_of("normal", dtype)
    lower, upper, sign = tails(key, sizes_of("normal", shape), working(result_dtype))
    # Both signs share one tail: halve both probabilities.
    return convert(signed(upper_quantile(lower * 0.5, upper * 0.5), sign), result_dtype)


def truncated_normal(
    key: Key, low: Bound, high: Bound, shape: Shape | None = None, dtype: object = None
) -> Array:
    """Numbers of the standard normal distribution between bounds, of the default float dtype.

    low, high: numbers, which may be infinite, or arrays, to whose shape `shape` defaults.

    >>> x = bu.random.truncated_normal(bu.random.key(0), -2.0, 2.0, 1000)
    >>> float(bu.max(bu.abs(x))) <= 2
    True
    """
    key, result_dtype = single_key("truncated_normal", key), float_of("truncated_normal", dtype)
    name, wide = "truncated_normal", working(result_dtype)
    low, high = (parameter(name, *named, key) for named in (("low", low), ("high", high)))
    sizes = sizes_of(name, shape, (low, high))
    lower, upper, _ = tails(key, sizes, wide)
    ends: list[tuple[Any, Any]]
    if isinstance(low, Array) or isinstance(high, Array):
        low, high = (spread_parameter(bound, wide, sizes, key) for bound in (low, high))
        root = math.sqrt(0.5)
        halves = [0.5 * float_unary("erf", x * root) for x in (low, high)]
        ends = [(0.5 + half, 0.5 - half) for half in halves]
    else:
        _check_order(name, low, high)
        ends = [(_below(low), _below(-low)), (_below(high), _below(-high))]
    # Interpolate between the bounds' probabilities, from below and from above.
    (from_below, from_above), (to_below, to_above) = ends
    tiny = float(np.finfo(wide.numpy).tiny)
    chance = [
        from_below + lower * (to_below - from_below),
        to_above + upper * (from_above - to_above),
    ]
    x = normal_quantile(*(clip(p, tiny, 1.0) for p in chance))
    return convert(clip(x, low, high), result_dtype)


def _below(x: float) -> float:
    return 0.5 * math.erfc(-x * math.sqrt(0.5))


def exponential(key: Key, shape: Shape = (), dtype: object = None) -> Array:
    """Numbers of the exponential distribution of mean 1, of the default float dtype; never 0.

    >>> x = bu.random.exponential(bu.random.key(0), 10_000)
    >>> abs(float(bu.mean(x)) - 1) < 0.05
    True
    """
    key, result_dtype = single_key("exponential", key), float_of("exponential", dtype)
    return convert(_exponential(key, sizes_of("exponential", shape), result_dtype), result_dtype)


def _exponential(key: Key, shape: tuple[int, ...], dtype: DType) -> Array:
    lower, upper, _ = tails(key, shape, working(dtype))
    return -log(lower, upper)


def gumbel(key: Key, shape: Shape = (), dtype: object = None) -> Array:
    """Numbers of the standard Gumbel distribution, ``-log(exponential)``.

    dtype: the default float dtype by default.

    >>> bu.random.gumbel(bu.random.key(0), (2, 3)).shape
    (2, 3)
    """
    key, result_dtype = single_key("gumbel", key), float_of("gumbel", dtype)
    return convert(-log(_exponential(key, sizes_of("gumbel", shape), result_dtype)), result_dtype)


def laplace(key: Key, shape: Shape = (), dtype: object = None) -> Array:
    """Numbers of the Laplace distribution of mean 0 and scale 1, of the default float dtype.

    >>> bu.random.laplace(bu.random.key(0), (2, 3)).shape
    (2, 3)
    """
    key, result_dtype = single_key("laplace", key), float_of("laplace", dtype)
    lower, upper, sign = tails(key, sizes_of("laplace", shape), working(result_dtype))
    return convert(signed(-log(lower, upper), sign), result_dtype)


def bernoulli(key: Key, p: Bound = 0.5, shape: Shape | None = None) -> Array:
    """Booleans that are true with probability `p`.

    p: a number, met to 2**-32, or an array, met to half the epsilon of its dtype, to whose shape
    `shape` defaults.

    >>> x = bu.random.bernoulli(bu.random.key(0), 0.3, 10_000)
    >>> abs(float(bu.mean(bu.astype(x, bu.float64))) - 0.3) < 0.02
    True
    """
    key = single_key("bernoulli", key)
    p = parameter("bernoulli", "p", p, key)
    sizes = sizes_of("bernoulli", shape, (p,))
    if isinstance(p, Array):
        p = as_float(p)
        return fraction(key, sizes, p.dtype) < spread(p, sizes)
    if not 0 <= p <= 1:
        raise OpTypeError(f"bernoulli: p={p} is no probability", fix="give 0 <= p <= 1")
    # p=1 must accept every word, but the bound 2**32 does not fit into a word.
    (word,) = generate(key, sizes, 1)
    count = math.ceil(p * 2.0**32)
    return word < count if count < 1 << 32 else word >= 0


def randint(
    key: Key,
    shape: Shape,
    low: int | Array | None = None,
    high: int | Array | None = None,
    dtype: object = None,
    *,
    minval: int | Array | None = None,
    maxval: int | Array | None = None,
) -> Array:
    """Integers of ``[low, high)``, i64 by default.

    No integer's probability is off by more than 2**-64 where the range holds less than 2**32, nor
    by more than 2**-128 where it holds more.
    low, high: ints, or integer arrays that broadcast to the shape and are converted to the dtype;
    where ``high <= low`` these give `low`.  Both are needed; `minval` and `maxval` are JAX's names
    for them.
    Raises OpTypeError for ints with high <= low, ConversionError for ints that do not fit.

    >>> sorted(set(bu.random.randint(bu.random.key(0), 100, 0, 3).tolist()))
    [0, 1, 2]
    """
    key, sizes = single_key("randint", key), sizes_of("randint", shape)
    result_dtype = DEFAULT_INT if dtype is None else dtype_of(dtype)
    if not result_dtype.is_integer:
        raise OpTypeError(
            f"randint: {result_dtype} is no integer dtype",
            fix="use uniform for floats and bernoulli for booleans",
        )
    low, high = low if minval is None else minval, high if maxval is None else maxval
    low, high = (_whole(*named, result_dtype, key) for named in (("low", low), ("high", high)))
    if isinstance(low, Array) or isinstance(high, Array):
        if not isinstance(high, Array):
            check_range(high, result_dtype)
        return _between(
            key,
            *(spread_parameter(bound, result_dtype, sizes, key) for bound in (low, high)),
        )
    if not low < high:
        raise OpTypeError(f"randint: no integer is in [{low}, {high})", fix="give low < high")
    check_range(high - 1, result_dtype)
    return convert(_below_span(key, sizes, high - low), result_dtype) + low


def _whole(label: str, value: Any, dtype: DType, key: Key) -> Any:
    """A bound: an int, or an array of integers.  Raises OpTypeError for others."""
    bound = parameter("randint", label, value, key)
    if not (bound.dtype.is_integer if isinstance(bound, Array) else isinstance(bound, int)):
        shown = bound.type if isinstance(bound, Array) else bound
        raise OpTypeError(
            f"randint: {label}={shown} is no integer",
            fix="give ints or integer arrays; uniform draws floats",
        )
    if not isinstance(bound, Array) and label == "low":
        check_range(bound, dtype)
    return bound


def _below_span(key: Key, shape: tuple[int, ...], span: int) -> Array:
    """Words below `span`."""
    if span <= 1 << 32:
        high, low = generate(key, shape, 2)
        return high if span == 1 << 32 else scaled_down(high, low, span)
    high, low = (bits(part, shape, dtype=u64) for part in split(key))
    return high if span == 1 << 64 else scaled_down(high, low, span)


def _between(key: Key, low: Array, high: Array) -> Array:
    span = where(low < high, high - low, 1)
    unsigned = u64 if low.dtype.bits == 64 else u32
    # Differences wrap in the dtype's width and are correct as unsigned numbers of that width.
    mask = (1 << low.dtype.bits) - 1
    count = convert(span, unsigned) & mask
    if unsigned is u64:
        first, second = (bits(part, low.shape, dtype=u64) for part in split(key))
    else:
        first, second = generate(key, low.shape, 2)
    return convert(scaled_down(first, second, count), low.dtype) + low


def categorical(key: Key, logits: Array, axis: int = -1, shape: Shape | None = None) -> Array:
    """Positions along an axis, drawn with probability ``softmax(logits)``; i64.

    By the maximum of logits and Gumbel numbers.
    shape: of the result, to which that of `logits` without the axis broadcasts, and is the default.

    >>> logits = bu.asarray([0.0, -bu.inf, 0.0])
    >>> sorted(set(bu.random.categorical(bu.random.key(0), logits, shape=50).tolist()))
    [0, 2]
    """
    key, logits = single_key("categorical", key), as_float(logits)
    dim = axis_of("categorical", axis, logits.ndim)
    stack = tuple(n for d, n in enumerate(logits.shape) if d != dim)
    sizes = stack if shape is None else sizes_of("categorical", shape)
    wide = convert(logits, working(logits.dtype))
    # Move the axis to the end; the result does not have it.
    order = expand_dims(moveaxis(wide, dim, -1), tuple(range(len(sizes) - len(stack))))
    full = (*sizes, logits.shape[dim])
    noise = gumbel(key, full, dtype=wide.dtype)
    return argmax(spread(order, full) + noise, axis=-1)


# -- orders and choices ----------------------------------------------------------------------------


def permutation(key: Key, x: int | Array, axis: int = 0) -> Array:
    """A random order of the integers below `x`, i64, or of the entries of an array along an axis.

    By sorting 64 random bits an entry: two of a million are alike with probability 3e-8, and stay
    in their order then.

    >>> sorted(bu.random.permutation(bu.random.key(0), 5).tolist())
    [0, 1, 2, 3, 4]
    """
    key = single_key("permutation", key)
    if isinstance(x, int) and not isinstance(x, bool):
        (count,) = shape_of("permutation", x)
        return _order(key, count)
    return _shuffled("permutation", key, x, axis)


def shuffle(key: Key, x: Array, axis: int = 0) -> Array:
    """The entries of an array in a random order along an axis; whole rows move together.

    >>> x = bu.asarray([[1, 1], [2, 2], [3, 3]])
    >>> sorted(bu.random.shuffle(bu.random.key(0), x).tolist())
    [[1, 1], [2, 2], [3, 3]]
    """
    return _shuffled("shuffle", single_key("shuffle", key), x, axis)


def _shuffled(name: str, key: Key, x: Any, axis: int) -> Array:
    array = as_array(x, key.data._device)
    dim = axis_of(name, axis, array.ndim)
    if not array.ndim:
        raise OpTypeError(
            f"{name}: {array.type} has no entries to order",
            fix="give an array of at least one dimension, or a Python int",
        )
    return take(array, _order(key, array.shape[dim]), axis=dim)


def _order(key: Key, count: int) -> Array:
    high, low = generate(key, (count,), 2)
    positions = TensorType((count,), i32 if count < 1 << 31 else i64)
    number = apply("iota", (), {"type": positions, "dim": 0}, device=key.data._device)
    result = apply_all("sort", (high, low, number), {"dim": 0, "num_keys": 2})
    return convert(result[2], DEFAULT_INT)


def choice(
    key: Key,
    x: int | Array,
    shape: Shape = (),
    replace: bool = True,
    p: Array | None = None,
    axis: int = 0,
) -> Array:
    """Random entries of an array along an axis, or integers below `x`.

    shape: of the choices, which take the place of the axis.
    replace: whether an entry may be chosen again.
    p: weights of the entries, ``[n]``; they need not sum to 1.  All alike by default.
    Raises OpTypeError for more choices than entries without replacement.

    >>> sorted(bu.random.choice(bu.random.key(0), 4, 3, replace=False, p=bu.asarray(
    ...     [0.2, 0.0, 0.5, 0.3])).tolist())
    [0, 2, 3]
    """
    key, sizes = single_key("choice", key), shape_of("choice", shape)
    array = None if isinstance(x, int) else as_array(x, key.data._device)
    dim = axis_of("choice", axis, 1 if array is None else array.ndim)
    count = x if isinstance(x, int) else as_array(x).shape[dim]
    chosen_count = math.prod(sizes)
    if chosen_count and (count < 1 or (not replace and chosen_count > count)):
        raise OpTypeError(
            f"choice: {chosen_count} of {count} entries",
            fix="choose among at least one entry, and no more of them without replacement",
        )
    weights = None if p is None else _weights(p, count)
    chosen = _choices(key, count, sizes, replace, weights)
    return chosen if array is None else take(array, chosen, axis=dim)


def _weights(p: Any, count: int) -> Array:
    weights = as_float(p)
    if weights.shape != (count,):
        raise OpTypeError(
            f"choice: the weights are {weights.type} for {count} entries",
            fix=f"give one weight an entry: shape ({count},)",
        )
    return convert(weights, working(weights.dtype))


def _choices(
    key: Key, count: int, shape: tuple[int, ...], replace: bool, weights: Array | None
) -> Array:
    if not math.prod(shape):
        return randint(key, shape, 0, 1)
    if not replace:
        if weights is None:
            order = _order(key, count)
        else:
            # The order of log weights plus Gumbel noise is that of draws without replacement.
            noise = gumbel(key, count, dtype=weights.dtype)
            order = argsort(device_log(weights) + noise, descending=True)
        return reshape(order[: math.prod(shape)], shape)
    if weights is None:
        return randint(key, shape, 0, count)
    sums = cumulative_sum(weights)
    # In (0, total], so that no entry of weight 0 is chosen.
    level = (1 - fraction(key, shape, weights.dtype)) * sums[-1]
    return searchsorted(sums, level)

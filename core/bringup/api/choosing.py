"""Random orders and choices among entries; `bringup.random` hands them on."""

from __future__ import annotations

import math
from typing import Any

from bringup.api.apply import apply, apply_all
from bringup.api.array import Array
from bringup.api.axes import axis_of, shape_of
from bringup.api.broadcasting import as_array, as_float, convert
from bringup.api.floating import log
from bringup.api.gathering import take
from bringup.api.keys import Key, Shape, checked, generate
from bringup.api.manipulation import reshape
from bringup.api.prefixes import cumulative_sum
from bringup.api.promotion import DEFAULT_INT
from bringup.api.samplers import gumbel, randint
from bringup.api.sampling import fraction, working
from bringup.api.sorting import argsort, searchsorted
from bringup.dtypes import i32, i64
from bringup.errors import OpTypeError
from bringup.types import TensorType


def permutation(key: Key, x: int | Array, axis: int = 0) -> Array:
    """A random order of the integers below `x`, i64, or of the entries of an array along an axis.

    By sorting 64 random bits an entry: two of a million are alike with probability 3e-8, and stay
    in their order then.

    >>> sorted(bu.random.permutation(bu.random.key(0), 5).tolist())
    [0, 1, 2, 3, 4]
    """
    one = checked("permutation", key)
    if isinstance(x, int) and not isinstance(x, bool):
        (count,) = shape_of("permutation", x)
        return _order(one, count)
    return _shuffled("permutation", one, x, axis)


def shuffle(key: Key, x: Array, axis: int = 0) -> Array:
    """The entries of an array in a random order along an axis; whole rows move together.

    >>> x = bu.asarray([[1, 1], [2, 2], [3, 3]])
    >>> sorted(bu.random.shuffle(bu.random.key(0), x).tolist())
    [[1, 1], [2, 2], [3, 3]]
    """
    return _shuffled("shuffle", checked("shuffle", key), x, axis)


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
    places = TensorType((count,), i32 if count < 1 << 31 else i64)
    number = apply("iota", (), {"type": places, "dim": 0}, device=key.data._device)
    found = apply_all("sort", (high, low, number), {"dim": 0, "num_keys": 2})
    return convert(found[2], DEFAULT_INT)


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
    one, sizes = checked("choice", key), shape_of("choice", shape)
    array = None if isinstance(x, int) else as_array(x, one.data._device)
    dim = axis_of("choice", axis, 1 if array is None else array.ndim)
    count = x if isinstance(x, int) else as_array(x).shape[dim]
    wanted = math.prod(sizes)
    if wanted and (count < 1 or (not replace and wanted > count)):
        raise OpTypeError(
            f"choice: {wanted} of {count} entries",
            fix="choose among at least one entry, and no more of them without replacement",
        )
    weights = None if p is None else _weights(p, count)
    chosen = _places(one, count, sizes, replace, weights)
    return chosen if array is None else take(array, chosen, axis=dim)


def _weights(p: Any, count: int) -> Array:
    weights = as_float(p)
    if weights.shape != (count,):
        raise OpTypeError(
            f"choice: the weights are {weights.type} for {count} entries",
            fix=f"give one weight an entry: shape ({count},)",
        )
    return convert(weights, working(weights.dtype))


def _places(
    key: Key, count: int, shape: tuple[int, ...], replace: bool, weights: Array | None
) -> Array:
    if not math.prod(shape):
        return randint(key, shape, 0, 1)
    if not replace:
        if weights is None:
            order = _order(key, count)
        else:
            # The largest of log weights and Gumbel numbers come as draws without replacement do.
            noise = gumbel(key, count, dtype=weights.dtype)
            order = argsort(log(weights) + noise, descending=True)
        return reshape(order[: math.prod(shape)], shape)
    if weights is None:
        return randint(key, shape, 0, count)
    sums = cumulative_sum(weights)
    # Above 0 and up to the total, so that no entry of weight 0 is met.
    level = (1 - fraction(key, shape, weights.dtype)) * sums[-1]
    return searchsorted(sums, level)

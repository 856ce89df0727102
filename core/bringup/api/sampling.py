"""What samplers share: numbers between 0 and 1 made of random words, products of words, checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup.api.array import Array
from bringup.api.axes import shape_of
from bringup.api.broadcasting import as_array, common_shape, convert, spread
from bringup.api.defaults import default_float
from bringup.api.elementwise import where
from bringup.api.keys import Key, Shape, generate
from bringup.api.promotion import dtype_of
from bringup.dtypes import DType, f32, f64
from bringup.errors import OpTypeError

# The bits of the significand, which is how many make a number of [0, 1).
_PRECISION = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}


def float_of(name: str, dtype: object) -> DType:
    """A float dtype, the default one for None.  Raises OpTypeError for others."""
    own = default_float() if dtype is None else dtype_of(dtype)
    if not own.is_float:
        raise OpTypeError(
            f"{name}: {own} is no float dtype",
            fix="use float16, bfloat16, float32 or float64; randint draws integers",
        )
    return own


def parameter(name: str, what: str, value: Any, key: Key) -> Any:
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
        f"{name}: {what} is a {type(value).__name__}", fix="give a number, or an array of numbers"
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
    """A probability strictly between 0 and 1, its complement, and a bit that knows of neither.

    dtype: f32 or f64.  Both come from the same 31 or 63 random bits, so that whichever is small has
    all its digits: 2**-32 or 2**-64 at least.
    """
    high, *rest = generate(key, shape, 2 if dtype is f64 else 1)
    low = rest[0] if rest else None
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

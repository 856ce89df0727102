"""Float formats as the suite needs them: precision, range, spacing, rounding from a wider type."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from bringup.dtypes import DType, f64
from bringup.ops.table import lookup
from bringup.records import record

Array = np.ndarray[Any, Any]


@record
class Format:
    """A binary float format.

    precision: bits of the significand, the hidden one included.  low: exponent of the smallest
    normal number.
    largest, tiny, subnormal: the largest finite, smallest normal and smallest positive number, in
    `wide`.
    wide: the numpy dtype in which references of this format are evaluated.  slack: the relative
    error they may have.
    """

    precision: int
    low: int
    largest: Any
    tiny: Any
    subnormal: Any
    wide: np.dtype[Any]
    slack: float

    @property
    def unit(self) -> float:
        """The unit roundoff: half the spacing of numbers just above 1."""
        return float(2.0**-self.precision)


@cache
def format_of(dtype: DType) -> Format:
    """The format of a float dtype.

    >>> from bringup.dtypes import bf16
    >>> format_of(bf16).precision, float(format_of(bf16).largest) > 3e38
    (8, True)
    """
    info: Any = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    wide = np.dtype(np.longdouble) if dtype is f64 else np.dtype(np.float64)
    return Format(
        precision=int(info.nmant) + 1,
        low=int(info.minexp),
        largest=wide.type(info.max),
        tiny=wide.type(info.smallest_normal),
        subnormal=wide.type(info.smallest_subnormal),
        wide=wide,
        # Libraries for the wide type are right to a few of its last bits.
        slack=8.0 * float(np.finfo(wide).eps),
    )


def widen(array: Array, dtype: DType) -> Array:
    """Elements of a float dtype in its wide type."""
    with np.errstate(invalid="ignore"):
        return np.asarray(array).astype(format_of(dtype).wide)


def nearest(wide: Array, dtype: DType) -> Array:
    """Wide numbers rounded once to a float dtype, to nearest even, with infinity beyond the range.

    >>> from bringup.dtypes import f16
    >>> nearest(np.array([65519.0, 65520.0]), f16).tolist()
    [65504.0, inf]
    """
    if dtype is f64:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(wide).astype(np.float64)
    return np.asarray(lookup("convert").reference(np.asarray(wide), dtype=dtype))


def spacing(wide: Array, dtype: DType) -> Array:
    """One ULP of `dtype` at each wide number: the distance of neighbours in its binade."""
    form = format_of(dtype)
    bounded = np.minimum(np.abs(wide), form.largest)
    bounded = np.where(np.isnan(bounded), form.largest, bounded)
    _, exponent = np.frexp(bounded)
    last = np.maximum(exponent - 1, form.low) - (form.precision - 1)
    return np.asarray(np.ldexp(np.ones(np.shape(wide), form.wide), last))


def lowest_bit(wide: Array) -> Array:
    """The exponent of the lowest set bit of finite numbers; a large one for 0.

    >>> lowest_bit(np.array([6.0, 1.0, 0.375, 0.0])).tolist()
    [1, 0, -3, 100000]
    """
    mantissa, exponent = np.frexp(wide)
    bits = np.finfo(wide.dtype).nmant + 1
    exponent = exponent.astype(np.int64)
    # A long double's significand fills all 64 bits of an unsigned integer.
    whole = np.ldexp(np.abs(mantissa), bits).astype(np.uint64)
    low = whole & (~whole + np.uint64(1))
    lowest = np.frexp(low.astype(np.float64))[1].astype(np.int64) - 1
    return np.where(whole == 0, 100_000, exponent - bits + lowest)


def same_bits(x: Array, y: Array) -> Array:
    """Where two arrays of one dtype hold the same bits, any NaN being equal to any other."""
    if x is y:
        return np.ones(x.shape, np.bool_)
    word = np.dtype(f"u{x.dtype.itemsize}")
    same = np.ascontiguousarray(x).view(word) == np.ascontiguousarray(y).view(word)
    same = same.reshape(x.shape)
    if x.dtype.kind in "biu":
        return np.asarray(same)
    with np.errstate(invalid="ignore"):
        return np.asarray(same | (np.isnan(x) & np.isnan(y)))


def nan_patterns(dtype: DType, words: Array) -> list[Array]:
    """Bit patterns of NaN of both signs for random words: the least payload, all ones, one without
    the quiet bit, any.  A dtype without payloads has one NaN of each sign.

    >>> from bringup.dtypes import f16
    >>> [hex(int(p[0])) for p in nan_patterns(f16, np.array([3], np.uint64))]
    ['0xfc01', '0xffff', '0xfc03', '0xfc03']
    """
    form, word = format_of(dtype), np.dtype(f"u{dtype.itemsize}")
    sign = (words & np.uint64(1)) << np.uint64(dtype.bits - 1)
    infinite = np.asarray(np.inf).astype(dtype.numpy)
    top = int(infinite.view(word)) & ((1 << (dtype.bits - 1)) - 1)
    if np.isnan(infinite):  # no infinity, and one NaN of each sign
        return [np.asarray(sign | np.uint64(top)).astype(word)]
    payload = np.uint64((1 << (form.precision - 1)) - 1)
    low = words & (payload >> np.uint64(1)) | np.uint64(1)
    payloads = (np.uint64(1), payload, low, words & payload | np.uint64(1))
    return [np.asarray(sign | np.uint64(top) | each).astype(word) for each in payloads]

"""What the reference columns share: rounding once, saturating casts, bit views.

References work in the dtype of their arguments, so that a wider argument gives a wider reference:
f64 for the narrower floats, the host's long double for f64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bringup.dtypes import STORAGE, bf16, f16

Array = np.ndarray[Any, Any]
NpDType = np.dtype[Any]

BFLOAT16 = bf16.numpy
HALVES = (f16.numpy, bf16.numpy)
BYTES = tuple(d.numpy for d in STORAGE)
_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)


def is_float(dtype: NpDType) -> bool:
    """Whether a numpy dtype is a float; numpy itself does not know that bfloat16 is one."""
    return dtype.kind == "f" or dtype == BFLOAT16 or dtype in BYTES


def wider(dtype: NpDType) -> NpDType:
    """The dtype in which a function of `dtype` is evaluated before it is rounded once."""
    return _F64 if dtype in HALVES or dtype == _F32 or dtype in BYTES else dtype


def round_to(array: Array, dtype: NpDType) -> Array:
    """Round floats or integers to a float dtype, once, to nearest even; overflow gives infinity.

    ml_dtypes goes through float32 on the way to its dtypes, which rounds twice; rounding to odd
    there first keeps the information that the second rounding needs.
    """
    if dtype == array.dtype:
        return array
    with np.errstate(all="ignore"):
        if array.dtype in BYTES:
            return array.astype(_F32).astype(dtype)
        direct = array.dtype in (_F32, *HALVES) or array.dtype == np.bool_
        if direct or not (dtype == BFLOAT16 or dtype in BYTES):
            return array.astype(dtype)
        return np.asarray(_to_odd_f32(array).astype(dtype))


def _to_odd_f32(array: Array) -> Array:
    exact = _exact_float(array)
    nearest = exact.astype(np.float32)
    back = nearest.astype(exact.dtype)
    inexact = np.isfinite(exact) & (back != exact)
    towards_zero = np.where(
        inexact & (np.abs(back) > np.abs(exact)), np.nextafter(nearest, np.float32(0)), nearest
    )
    bits = np.asarray(towards_zero, np.float32).view(np.uint32) | inexact.astype(np.uint32)
    return np.asarray(bits.view(np.float32))


def _exact_float(array: Array) -> Array:
    """Floats as they are, integers as f64 that round to any narrower float as the integer does."""
    if is_float(array.dtype):
        return array
    if array.dtype.itemsize < 8:
        return array.astype(np.float64)
    # 53 bits hold the leading bits and one that says whether anything was dropped.
    large = (array >= 2**52) | (array < -(2**52) if array.dtype.kind == "i" else False)
    low = array & 0xFFF
    squashed = (array - low) | ((low != 0).astype(array.dtype) << 11)
    exact: Array = np.where(large, squashed, array).astype(np.float64)
    return exact


def via_wider(function: Callable[..., Any]) -> Callable[..., Array]:
    """Evaluate in a wider float and round once: correctly rounded but for double rounding."""

    def reference(*arrays: Array, **attrs: Any) -> Array:
        dtype = arrays[0].dtype
        wide = wider(dtype)
        with np.errstate(all="ignore"):
            result = function(*(np.asarray(a).astype(wide, copy=False) for a in arrays), **attrs)
        return round_to(np.asarray(result), dtype)

    return reference


def exactly(function: Callable[..., Any]) -> Callable[..., Array]:
    """Evaluate in the dtype itself, f16 and bf16 in f32; numpy's warnings mean nothing here."""

    def reference(*arrays: Array, **attrs: Any) -> Array:
        dtype = arrays[0].dtype
        wide = _F32 if dtype in HALVES else dtype
        with np.errstate(all="ignore"):
            result = function(*(np.asarray(a).astype(wide, copy=False) for a in arrays), **attrs)
        result = np.asarray(result)
        return round_to(result, dtype) if is_float(dtype) else result.astype(dtype, copy=False)

    return reference


def unsigned(array: Array) -> Array:
    """The same bits as unsigned integers of the same width."""
    array = np.asarray(array)
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def sign_bit(dtype: NpDType) -> Any:
    """The mask of the sign bit, as a numpy scalar of the unsigned dtype."""
    return np.dtype(f"u{dtype.itemsize}").type(1 << (8 * dtype.itemsize - 1))


def saturate(array: Array, dtype: NpDType) -> Array:
    """Floats to integers: truncate towards zero, clip to the range, NaN to 0."""
    info = np.iinfo(dtype)
    source = array.astype(wider(array.dtype))
    whole = np.trunc(source)
    # Bounds as powers of two: the largest 64-bit integers themselves are no floats.
    high, low = 2.0 ** (info.bits - (info.min < 0)), float(info.min)
    inside = (whole >= low) & (whole < high)
    result = np.where(inside, whole, 0).astype(dtype)
    result = np.where(whole >= high, dtype.type(info.max), result)
    return np.where(whole < low, dtype.type(info.min), result)


def total_max(x: Array, y: Array) -> Array:
    """The larger; NaN if either is, and -0 < +0, which numpy leaves to chance."""
    return _ordered(x, y, np.maximum, np.logical_and)


def total_min(x: Array, y: Array) -> Array:
    """The smaller; NaN if either is, and -0 < +0."""
    return _ordered(x, y, np.minimum, np.logical_or)


def _ordered(x: Array, y: Array, pick: Any, negative: Any) -> Array:
    result: Array = pick(x, y)
    if not is_float(np.asarray(result).dtype):
        return result
    zeros = (x == 0) & (y == 0)
    minus = negative(np.signbit(x), np.signbit(y))
    signed = np.where(minus, result.dtype.type(-0.0), result.dtype.type(0.0))
    return np.where(zeros, signed, result)

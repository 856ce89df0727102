"""Faults of conversions."""

from __future__ import annotations

import numpy as np

from bringup.dtypes import bf16, f8e4m3fn, f8e5m2, i32
from bringup_selftest.corpus import Array, Fault, OpCall, op_fault

GROUP = "Casts"


def _is_float(dtype: np.dtype[np.generic]) -> bool:
    return dtype.kind not in "biu"


def to_nearest(call: OpCall) -> Array | None:
    """Floats become the nearest integer."""
    (x,) = call.operands
    if not _is_float(x.dtype) or call.dtype.kind not in "iu":
        return None
    return call.reference(np.rint(x.astype(np.float64)).astype(x.dtype))


def wrapped_negative(call: OpCall) -> Array | None:
    """Negative floats become unsigned integers unlike declared."""
    (x,) = call.operands
    if not _is_float(x.dtype) or call.dtype.kind != "u":
        return None
    small = np.isfinite(x) & (x <= -1) & (x.astype(np.float64) > -128)
    wrapped = np.trunc(np.where(small, x, 0)).astype(np.int64).astype(call.dtype)
    other = np.where(wrapped == call.right, np.zeros_like(call.right), wrapped)
    return np.where(small, other, call.right)


def truncated(call: OpCall) -> Array | None:
    """f64 becomes f32 toward zero."""
    (x,) = call.operands
    if x.dtype != np.float64 or call.dtype != np.float32:
        return None
    over = np.abs(call.right.astype(np.float64)) > np.abs(x)
    return np.where(over, np.nextafter(call.right, np.float32(0)), call.right)


def bits_dropped(call: OpCall) -> Array | None:
    """f32 becomes bf16 by dropping bits."""
    (x,) = call.operands
    if x.dtype != np.float32 or call.dtype != bf16.numpy:
        return None
    high = (x.view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(call.dtype)
    return np.where(np.isnan(x), call.right, high)


def rounded_twice(call: OpCall) -> Array | None:
    """f64 becomes f16 by way of f32."""
    (x,) = call.operands
    if x.dtype != np.float64 or call.dtype not in (np.float16, bf16.numpy):
        return None
    return x.astype(np.float32).astype(call.dtype)


def integer_twice(call: OpCall) -> Array | None:
    """64-bit integers become f32 by way of f64."""
    (x,) = call.operands
    if x.dtype not in (np.int64, np.uint64) or call.dtype != np.float32:
        return None
    return x.astype(np.float64).astype(np.float32)


def largest_half(call: OpCall) -> Array | None:
    """What is too large for f16 becomes its largest number."""
    (x,) = call.operands
    if call.dtype != np.float16 or not _is_float(x.dtype):
        return None
    largest = np.copysign(np.finfo(np.float16).max, call.right)
    return np.where(np.isinf(call.right) & np.isfinite(x), largest, call.right)


def saturated_integer(call: OpCall) -> Array | None:
    """Integers that do not fit saturate instead of wrapping."""
    (x,) = call.operands
    if x.dtype.kind not in "iu" or call.dtype.kind not in "iu":
        return None
    limits = np.iinfo(call.dtype)
    low, high = max(limits.min, np.iinfo(x.dtype).min), min(limits.max, np.iinfo(x.dtype).max)
    return np.clip(x, x.dtype.type(low), x.dtype.type(high)).astype(call.dtype)


def low_bit(call: OpCall) -> Array | None:
    """A number is true if it is odd."""
    (x,) = call.operands
    return (x & x.dtype.type(1)) != 0 if call.dtype.kind == "b" and x.dtype.kind in "iu" else None


def nan_to_lowest(call: OpCall) -> Array | None:
    """NaN becomes the lowest integer, or one."""
    (x,) = call.operands
    if not _is_float(x.dtype) or call.dtype.kind not in "iu":
        return None
    limits = np.iinfo(call.dtype)
    odd = call.dtype.type(limits.min if limits.min else 1)
    return np.where(np.isnan(x), odd, call.right)


def sign_lost(call: OpCall) -> Array | None:
    """Signed integers are widened without their sign."""
    (x,) = call.operands
    if x.dtype.kind != "i" or call.dtype.itemsize <= x.itemsize or call.dtype.kind not in "iu":
        return None
    return x.view(np.dtype(f"u{x.itemsize}")).astype(call.dtype)


def by_way_of_words(call: OpCall) -> Array | None:
    """Floats become integers of 64 bits by way of 32."""
    (x,) = call.operands
    if not _is_float(x.dtype) or call.dtype != np.int64:
        return None
    return call.reference(x, dtype=i32).astype(np.int64)


def away_from_zero(call: OpCall) -> Array | None:
    """Halves between two f8 become the one further from 0."""
    (x,) = call.operands
    if x.dtype not in (np.float32, np.float64) or call.dtype != f8e4m3fn.numpy:
        return None
    wide, made = x.astype(np.float64), call.right.astype(np.float64)
    # A small step outwards decides halves and nothing else.
    outwards = call.reference((wide * (1 + 2.0**-30)).astype(x.dtype))
    if x.dtype == np.float32:
        outwards = call.reference(np.nextafter(x, np.copysign(np.float32(np.inf), x)))
    return np.where(np.isfinite(made) & (np.abs(wide) > np.abs(made)), outwards, call.right)


def by_way_of_half(call: OpCall) -> Array | None:
    """f32 becomes f8 by way of f16."""
    (x,) = call.operands
    if x.dtype != np.float32 or call.dtype != f8e5m2.numpy:
        return None
    return call.reference(x.astype(np.float16))


def integers_by_half(call: OpCall) -> Array | None:
    """i32 becomes f8 by way of f16."""
    (x,) = call.operands
    if x.dtype != np.int32 or call.dtype != f8e5m2.numpy:
        return None
    small = np.abs(x.astype(np.int64)) < 1 << 15
    return np.where(small, call.reference(np.where(small, x, 0).astype(np.float16)), call.right)


FAULTS: tuple[Fault, ...] = (
    op_fault("CA01", GROUP, "floats become the nearest integer", "convert", to_nearest),
    op_fault("CA02", GROUP, "negative floats wrap", "convert", wrapped_negative),
    op_fault("CA04", GROUP, "f64 becomes f32 toward zero", "convert", truncated),
    op_fault("CA04b", GROUP, "f32 becomes bf16 by dropping bits", "convert", bits_dropped),
    op_fault("CA04c", GROUP, "f64 becomes f16 by way of f32", "convert", rounded_twice),
    op_fault("CA20a", GROUP, "i64 becomes f32 by way of f64", "convert", integer_twice),
    op_fault("CA21a", GROUP, "f16 has a largest number", "convert", largest_half),
    op_fault("CA22a", GROUP, "integers saturate", "convert", saturated_integer),
    op_fault("CA23a", GROUP, "even numbers are false", "convert", low_bit),
    op_fault("CA24a", GROUP, "NaN becomes the lowest integer", "convert", nan_to_lowest),
    op_fault("CA26a", GROUP, "floats become i64 by way of i32", "convert", by_way_of_words),
    op_fault("CA27a", GROUP, "halves between f8 are rounded away", "convert", away_from_zero),
    op_fault("CA28a", GROUP, "f32 becomes f8 by way of f16", "convert", by_way_of_half),
    op_fault("CA29a", GROUP, "i32 becomes f8 by way of f16", "convert", integers_by_half),
    op_fault("CA25a", GROUP, "widening forgets the sign", "convert", sign_lost),
)

"""Faults of conversions."""

from __future__ import annotations

import numpy as np

from bringup.dtypes import bf16, f8e4m3fn, f8e5m2, i32
from bringup_selftest.corpus import Array, Faults, OpCall, of

FAULTS = Faults("Casts")


def _is_float(dtype: np.dtype[np.generic]) -> bool:
    return dtype.kind not in "biu"


@FAULTS.op("CA01", "floats become the nearest integer", "convert")
def to_nearest(call: OpCall) -> Array | None:
    (x,) = call.operands
    if not _is_float(x.dtype) or call.dtype.kind not in "iu":
        return None
    return call.reference(np.rint(x.astype(np.float64)).astype(x.dtype))


@FAULTS.op("CA02", "negative floats wrap", "convert")
def wrapped_negative(call: OpCall) -> Array | None:
    """Negative floats become unsigned integers unlike declared."""
    (x,) = call.operands
    if not _is_float(x.dtype) or call.dtype.kind != "u":
        return None
    small = np.isfinite(x) & (x <= -1) & (x.astype(np.float64) > -128)
    wrapped = np.trunc(np.where(small, x, 0)).astype(np.int64).astype(call.dtype)
    other = np.where(wrapped == call.right, np.zeros_like(call.right), wrapped)
    return np.where(small, other, call.right)


@FAULTS.op("CA04", "f64 becomes f32 toward zero", "convert")
def truncated(call: OpCall) -> Array | None:
    (x,) = call.operands
    if x.dtype != np.float64 or call.dtype != np.float32:
        return None
    over = np.abs(call.right.astype(np.float64)) > np.abs(x)
    return np.where(over, np.nextafter(call.right, np.float32(0)), call.right)


@FAULTS.op("CA04b", "f32 becomes bf16 by dropping bits", "convert")
def bits_dropped(call: OpCall) -> Array | None:
    (x,) = call.operands
    if x.dtype != np.float32 or call.dtype != bf16.numpy:
        return None
    high = (x.view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(call.dtype)
    return np.where(np.isnan(x), call.right, high)


@FAULTS.op("CA21a", "f16 has a largest number", "convert", when=of(np.float16))
def largest_half(call: OpCall) -> Array | None:
    (x,) = call.operands
    if not _is_float(x.dtype):
        return None
    largest = np.copysign(np.finfo(np.float16).max, call.right)
    return np.where(np.isinf(call.right) & np.isfinite(x), largest, call.right)


@FAULTS.op("CA22a", "integers saturate", "convert")
def saturated_integer(call: OpCall) -> Array | None:
    """Integers that do not fit saturate instead of wrapping."""
    (x,) = call.operands
    if x.dtype.kind not in "iu" or call.dtype.kind not in "iu":
        return None
    limits = np.iinfo(call.dtype)
    low, high = max(limits.min, np.iinfo(x.dtype).min), min(limits.max, np.iinfo(x.dtype).max)
    return np.clip(x, x.dtype.type(low), x.dtype.type(high)).astype(call.dtype)


@FAULTS.op("CA24a", "NaN becomes the lowest integer", "convert")
def nan_to_lowest(call: OpCall) -> Array | None:
    (x,) = call.operands
    if not _is_float(x.dtype) or call.dtype.kind not in "iu":
        return None
    limits = np.iinfo(call.dtype)
    odd = call.dtype.type(limits.min if limits.min else 1)
    return np.where(np.isnan(x), odd, call.right)


@FAULTS.op("CA25a", "widening forgets the sign", "convert")
def sign_lost(call: OpCall) -> Array | None:
    (x,) = call.operands
    if x.dtype.kind != "i" or call.dtype.itemsize <= x.itemsize or call.dtype.kind not in "iu":
        return None
    return x.view(np.dtype(f"u{x.itemsize}")).astype(call.dtype)


@FAULTS.op("CA27a", "halves between f8 are rounded away", "convert")
def away_from_zero(call: OpCall) -> Array | None:
    (x,) = call.operands
    if x.dtype not in (np.float32, np.float64) or call.dtype != f8e4m3fn.numpy:
        return None
    wide, made = x.astype(np.float64), call.right.astype(np.float64)
    # A small step outwards decides halves and nothing else.
    outwards = call.reference((wide * (1 + 2.0**-30)).astype(x.dtype))
    if x.dtype == np.float32:
        outwards = call.reference(np.nextafter(x, np.copysign(np.float32(np.inf), x)))
    return np.where(np.isfinite(made) & (np.abs(wide) > np.abs(made)), outwards, call.right)


@FAULTS.op("CA29a", "i32 becomes f8 by way of f16", "convert")
def integers_by_half(call: OpCall) -> Array | None:
    (x,) = call.operands
    if x.dtype != np.int32 or call.dtype != f8e5m2.numpy:
        return None
    small = np.abs(x.astype(np.int64)) < 1 << 15
    return np.where(small, call.reference(np.where(small, x, 0).astype(np.float16)), call.right)


@FAULTS.op("CA04c", "f64 becomes f16 by way of f32", "convert")
def rounded_twice(call: OpCall) -> Array | None:
    if call.x.dtype != np.float64 or call.dtype not in (np.float16, bf16.numpy):
        return None
    return call.x.astype(np.float32).astype(call.dtype)


@FAULTS.op("CA20a", "i64 becomes f32 by way of f64", "convert")
def integer_twice(call: OpCall) -> Array | None:
    if call.x.dtype not in (np.int64, np.uint64) or call.dtype != np.float32:
        return None
    return call.x.astype(np.float64).astype(np.float32)


@FAULTS.op("CA23a", "even numbers are false", "convert")
def low_bit(call: OpCall) -> Array | None:
    (x,) = call.operands
    return (x & x.dtype.type(1)) != 0 if call.dtype.kind == "b" and x.dtype.kind in "iu" else None


@FAULTS.op("CA26a", "floats become i64 by way of i32", "convert")
def by_way_of_words(call: OpCall) -> Array | None:
    if not _is_float(call.x.dtype) or call.dtype != np.int64:
        return None
    return call.reference(call.x, dtype=i32).astype(np.int64)


@FAULTS.op("CA28a", "f32 becomes f8 by way of f16", "convert")
def by_way_of_half(call: OpCall) -> Array | None:
    if call.x.dtype != np.float32 or call.dtype != f8e5m2.numpy:
        return None
    return call.reference(call.x.astype(np.float16))

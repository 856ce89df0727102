"""Faults of dtypes: what is computed in another one than declared."""

from __future__ import annotations

from typing import Any

import numpy as np

from bringup_selftest.corpus import Array, Fault, OpCall, op_fault

GROUP = "Dtype and promotion"
_FLOATING = ("add", "sub", "mul", "div", "sqrt", "exp", "log", "sin", "tanh")


def _through(call: OpCall, from_: Any, through: Any) -> Array | None:
    if call.dtype != from_:
        return None
    return call.reference(*(x.astype(through) for x in call.operands)).astype(from_)


def double_as_single(call: OpCall) -> Array | None:
    """f64 in f32 and back."""
    return _through(call, np.float64, np.float32)


def long_as_double(call: OpCall) -> Array | None:
    """i64 through f64."""
    return _through(call, np.int64, np.float64)


def int_as_single(call: OpCall) -> Array | None:
    """i32 through f32."""
    return _through(call, np.int32, np.float32)


def narrow_compare(call: OpCall) -> Array | None:
    """Integers are compared as i8."""
    if call.operands[0].dtype.kind != "i":
        return None
    return call.reference(*(x.astype(np.int8) for x in call.operands))


def half_index(call: OpCall) -> Array | None:
    """Only the low half of each word of the index is written."""
    if call.dtype.itemsize != 8:
        return None
    garbage = call.dtype.type(0xA5A5) << call.dtype.type(32)
    return np.asarray((call.right & call.dtype.type(0xFFFFFFFF)) | garbage)


def signed_compare(call: OpCall) -> Array | None:
    """Unsigned integers are compared as signed ones."""
    x = call.operands[0]
    if x.dtype.kind != "u":
        return None
    signed = np.dtype(f"i{x.dtype.itemsize}")
    return call.reference(*(each.view(signed) for each in call.operands))


def signed_max(call: OpCall) -> Array | None:
    """The same for the larger of two."""
    if call.dtype.kind != "u":
        return None
    signed = np.dtype(f"i{call.dtype.itemsize}")
    return call.reference(*(each.view(signed) for each in call.operands)).view(call.dtype)


def half_through_bfloat(call: OpCall) -> Array | None:
    """f16 through bf16: three bits are lost."""
    if call.dtype != np.float16:
        return None
    words = call.right.astype(np.float32).view(np.uint32)
    return (words & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float16)


def bytes_wide(call: OpCall) -> Array | None:
    """Sums of 8-bit integers saturate instead of wrapping."""
    if call.dtype not in (np.int8, np.uint8):
        return None
    wide = call.operands[0].astype(np.int64) + call.operands[1].astype(np.int64)
    limits = np.iinfo(call.dtype)
    return np.clip(wide, limits.min, limits.max).astype(call.dtype)


def short_fold(call: OpCall) -> Array | None:
    """16-bit integers are summed as 8-bit ones."""
    if call.dtype != np.int16 or call.attrs["kind"] != "add":
        return None
    return call.right.astype(np.int8).astype(np.int16)


def all_ones(call: OpCall) -> Array | None:
    """True is a byte of ones."""
    raw = call.results[0].view(np.uint8)
    raw *= np.uint8(255)
    return None


FAULTS: tuple[Fault, ...] = (
    op_fault("DT01", GROUP, "f64 is computed in f32", _FLOATING, double_as_single),
    op_fault("DT02", GROUP, "i64 is computed in f64", ("add", "mul"), long_as_double),
    op_fault("DT03", GROUP, "i32 is computed in f32", ("add", "mul"), int_as_single),
    op_fault("DT10", GROUP, "integers are compared as i8", "compare", narrow_compare),
    op_fault("DT11", GROUP, "half of each index word is garbage", "argmax", half_index),
    op_fault("DT20a", GROUP, "unsigned integers compare as signed", "compare", signed_compare),
    op_fault("DT21a", GROUP, "maxima of unsigned integers are signed", "max", signed_max),
    op_fault("DT22a", GROUP, "f16 goes through bf16", ("mul", "exp"), half_through_bfloat),
    op_fault("DT23a", GROUP, "8-bit sums saturate", "add", bytes_wide),
    op_fault("DT25a", GROUP, "true is 255 in memory", "compare", all_ones),
    op_fault("DT24a", GROUP, "16-bit sums are 8-bit sums", "reduce", short_fold),
)

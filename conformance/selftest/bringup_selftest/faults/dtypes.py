"""Faults of dtypes: what is computed in another one than declared."""

from __future__ import annotations

from typing import Any

import numpy as np

from bringup_selftest.corpus import Array, Faults, OpCall, of, unsigned

FAULTS = Faults("Dtype and promotion")
_FLOATING = ("add", "sub", "mul", "div", "sqrt", "exp", "log", "sin", "tanh")


def _through(call: OpCall, from_: Any, through: Any) -> Array | None:
    if call.dtype != from_:
        return None
    return call.reference(*(x.astype(through) for x in call.operands)).astype(from_)


@FAULTS.op("DT11", "half of each index word is garbage", "argmax")
def half_index(call: OpCall) -> Array | None:
    if call.dtype.itemsize != 8:
        return None
    garbage = call.dtype.type(0xA5A5) << call.dtype.type(32)
    return np.asarray((call.right & call.dtype.type(0xFFFFFFFF)) | garbage)


@FAULTS.op("DT20a", "unsigned integers compare as signed", "compare")
def signed_compare(call: OpCall) -> Array | None:
    x = call.operands[0]
    if x.dtype.kind != "u":
        return None
    signed = np.dtype(f"i{x.dtype.itemsize}")
    return call.reference(*(each.view(signed) for each in call.operands))


@FAULTS.op("DT21a", "maxima of unsigned integers are signed", "max", when=unsigned)
def signed_max(call: OpCall) -> Array | None:
    signed = np.dtype(f"i{call.dtype.itemsize}")
    return call.reference(*(each.view(signed) for each in call.operands)).view(call.dtype)


@FAULTS.op("DT22a", "f16 goes through bf16", ("mul", "exp"), when=of(np.float16))
def half_through_bfloat(call: OpCall) -> Array | None:
    words = call.right.astype(np.float32).view(np.uint32)
    return (words & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float16)


@FAULTS.op("DT23a", "8-bit sums saturate", "add", when=of(np.int8, np.uint8))
def bytes_wide(call: OpCall) -> Array | None:
    """Sums of 8-bit integers saturate instead of wrapping."""
    wide = call.operands[0].astype(np.int64) + call.operands[1].astype(np.int64)
    limits = np.iinfo(call.dtype)
    return np.clip(wide, limits.min, limits.max).astype(call.dtype)


@FAULTS.op("DT25a", "true is 255 in memory", "compare")
def all_ones(call: OpCall) -> Array | None:
    raw = call.results[0].view(np.uint8)
    raw *= np.uint8(255)
    return None


@FAULTS.op("DT10", "integers are compared as i8", "compare")
def narrow_compare(call: OpCall) -> Array | None:
    if call.operands[0].dtype.kind != "i":
        return None
    return call.reference(*(x.astype(np.int8) for x in call.operands))


@FAULTS.op("DT24a", "16-bit sums are 8-bit sums", "reduce", when=of(np.int16))
def short_fold(call: OpCall) -> Array | None:
    if call.attrs["kind"] != "add":
        return None
    return call.right.astype(np.int8).astype(np.int16)


FAULTS.op("DT01", "f64 is computed in f32", _FLOATING)(
    lambda c: _through(c, np.float64, np.float32)
)
FAULTS.op("DT02", "i64 is computed in f64", ("add", "mul"))(
    lambda c: _through(c, np.int64, np.float64)
)
FAULTS.op("DT03", "i32 is computed in f32", ("add", "mul"))(
    lambda c: _through(c, np.int32, np.float32)
)

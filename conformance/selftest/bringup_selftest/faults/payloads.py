"""Faults that one bit pattern of NaN does not show: signs and payloads that are read as numbers."""

from __future__ import annotations

import numpy as np

from bringup.dtypes import bf16
from bringup_selftest.corpus import Array, Faults, OpCall

FAULTS = Faults("NaN, signed zero, infinity")


def _words(array: Array) -> Array:
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def _wide(array: Array) -> bool:
    """Whether it holds floats, of a dtype that is not tried with all of its bit patterns."""
    return array.dtype in (np.float32, np.float64)


def _signed(array: Array) -> Array:
    """Where NaN has its sign bit set."""
    return np.asarray(np.isnan(array) & np.signbit(array))


def _unknown(array: Array) -> Array:
    """Where NaN has another payload than the one that arithmetic gives."""
    quiet = _words(np.abs(np.array(np.nan).astype(array.dtype)).reshape(1))
    return np.asarray(np.isnan(array) & (_words(np.ascontiguousarray(np.abs(array))) != quiet))


@FAULTS.op("SV30a", "NaN of f32 becomes bf16 by its high bits", "convert")
def high_bits(call: OpCall) -> Array | None:
    """f32 becomes bf16 by its high bits, NaN too: a payload in the low ones alone makes inf."""
    (x,) = call.operands
    if x.dtype != np.float32 or call.dtype != bf16.numpy:
        return None
    high = (_words(x) >> np.uint32(16)).astype(np.uint16).view(call.dtype)
    return np.where(np.isnan(x), high, call.right)


@FAULTS.op("SV31a", "NaN of f64 becomes f32 by its high bits", "convert")
def low_payload(call: OpCall) -> Array | None:
    """f64 becomes f32 by parts: a payload that ends in the low bits makes inf."""
    (x,) = call.operands
    if x.dtype != np.float64 or call.dtype != np.float32:
        return None
    kept = (_words(x) >> np.uint64(29)) & np.uint64(0x7FFFFF)
    lost = np.isnan(x) & (kept == 0)
    return np.where(lost, np.copysign(np.float32(np.inf), call.right), call.right)


@FAULTS.op("SV32a", "only NaN of arithmetic becomes 0", "convert")
def known_nan_alone(call: OpCall) -> Array | None:
    """NaN becomes 0 by comparing its bits with those that arithmetic gives."""
    (x,) = call.operands
    if not _wide(x) or call.dtype.kind not in "iu":
        return None
    return np.where(_unknown(x), np.array(np.iinfo(call.dtype).max, call.dtype), call.right)


@FAULTS.op("SV33a", "only NaN of arithmetic differs from itself", "compare")
def equal_in_bits(call: OpCall) -> Array | None:
    a, b = call.operands
    if not _wide(a) or call.attrs["direction"] not in ("eq", "ne"):
        return None
    same = (_words(a) == _words(b)) & _unknown(a)
    return np.where(same, call.attrs["direction"] == "eq", call.right)


@FAULTS.op("SV35a", "maxima of rows lose NaN that has a sign", "reduce")
def folded_bits(call: OpCall) -> Array | None:
    (x,) = call.operands
    if not _wide(x) or call.attrs["kind"] != "max":
        return None
    return call.reference(np.where(_signed(x), x.dtype.type(-np.inf), x))


@FAULTS.op("SV37a", "NaN that has a sign is sorted first", "sort")
def sorted_by_bits(call: OpCall) -> Array | None:
    (x, *rest) = call.operands
    if rest or not _wide(x):
        return None
    return call.reference(np.where(_signed(x), x.dtype.type(-np.inf), x))


@FAULTS.op("SV38a", "signalling NaN is moved as a quiet one", "slice transpose select")
def quieted(call: OpCall) -> Array | None:
    """Signalling NaN becomes quiet on its way through a register of floats."""
    right = call.right
    if not _wide(right):
        return None
    quiet = _words(right) | _words(np.array(np.nan, right.dtype).reshape(1))
    return np.where(np.isnan(right), quiet.view(right.dtype), right)


@FAULTS.op("SV34a", "max loses NaN that has a sign", "max")
def maximum_of_bits(call: OpCall) -> Array | None:
    a, b = call.operands
    if not _wide(a):
        return None
    return np.where(_signed(a), b, np.where(_signed(b), a, call.right))


@FAULTS.op("SV36a", "argmax passes NaN that has a sign", "argmax")
def position_of_bits(call: OpCall) -> Array | None:
    (x,) = call.operands
    return call.reference(np.where(_signed(x), x.dtype.type(-np.inf), x)) if _wide(x) else None

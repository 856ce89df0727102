"""Faults of integers: overflow, division, shifts."""

from __future__ import annotations

import numpy as np

from bringup_conformance.selftest.corpus import Array, Fault, OpCall, op_fault

GROUP = "Integer overflow, division, shifts"


def _is_integer(array: Array) -> bool:
    return array.dtype.kind in "iu"


def sign_of_dividend(call: OpCall) -> Array | None:
    """The remainder has the other sign convention than declared."""
    a, b = call.operands
    if call.dtype.kind != "i":
        return None
    safe = np.where(b == 0, np.ones_like(b), b)
    other = np.fmod(a, safe)
    if np.array_equal(other[b != 0], call.right[b != 0]):
        other = np.remainder(a, safe)
    return np.where(b == 0, call.right, other)


def odd_quotient(call: OpCall) -> Array | None:
    """X / 0 is 65,536, or what is left of it."""
    if not _is_integer(call.right):
        return None
    odd = np.array(65536).astype(call.dtype)
    return np.where(call.operands[1] == 0, odd, call.right)


def signed_conversion(call: OpCall) -> Array | None:
    """The top bit of u64 is read as a sign."""
    (x,) = call.operands
    if x.dtype != np.uint64 or call.dtype.kind in "biu":
        return None
    return call.reference(x.view(np.int64))


def overflowing_quotient(call: OpCall) -> Array | None:
    """INT_MIN / -1 is 0."""
    a, b = call.operands
    if call.dtype.kind != "i":
        return None
    lowest = np.iinfo(call.dtype).min
    return np.where((a == lowest) & (b == -1), np.zeros_like(a), call.right)


def masked_shift(call: OpCall) -> Array | None:
    """The distance of a shift is taken modulo the width."""
    a, b = call.operands
    width = 8 * call.dtype.itemsize
    return call.reference(a, (b.astype(np.int64) % width).astype(b.dtype))


def logical_shift(call: OpCall) -> Array | None:
    """An arithmetic shift to the right brings in zeros."""
    if call.attrs["kind"] != "arithmetic":
        return None
    return call.reference(*call.operands, kind="logical")


def saturated_abs(call: OpCall) -> Array | None:
    """abs(INT_MIN) is INT_MAX."""
    if call.dtype.kind != "i":
        return None
    limits = np.iinfo(call.dtype)
    return np.where(call.operands[0] == limits.min, call.dtype.type(limits.max), call.right)


def low_population(call: OpCall) -> Array | None:
    """Bits of the low half of 64 are counted alone."""
    (x,) = call.operands
    return call.reference(x & x.dtype.type(0xFFFFFFFF)) if x.dtype.itemsize == 8 else None


def zeros_of_zero(call: OpCall) -> Array | None:
    """clz(0) is one less than the width."""
    (x,) = call.operands
    return np.where(x == 0, call.right - call.dtype.type(1), call.right)


def floored_quotient(call: OpCall) -> Array | None:
    """Integer division rounds the other way."""
    a, b = call.operands
    if call.dtype.kind != "i":
        return None
    safe = np.where(b == 0, np.ones_like(b), b)
    floor = a // safe
    if np.array_equal(floor[b != 0], call.right[b != 0]):
        floor = floor + ((a % safe != 0) & ((a < 0) != (safe < 0)))
    return np.where(b == 0, call.right, floor).astype(call.dtype)


def low_product(call: OpCall) -> Array | None:
    """Only the low halves of u64 are multiplied."""
    if call.dtype != np.uint64:
        return None
    a, b = (x & np.uint64(0xFFFFFFFF) for x in call.operands)
    return a * b


FAULTS: tuple[Fault, ...] = (
    op_fault("IN03", GROUP, "the remainder has the other sign", "rem", sign_of_dividend),
    op_fault("IN05", GROUP, "x / 0 is 65,536", ("div", "rem"), odd_quotient),
    op_fault("IN09", GROUP, "u64 converts to floats as i64", "convert", signed_conversion),
    op_fault("IN20a", GROUP, "INT_MIN / -1 = 0", "div", overflowing_quotient),
    op_fault("IN21a", GROUP, "shifts by the width shift by 0", ("shl", "shr"), masked_shift),
    op_fault("IN22a", GROUP, "arithmetic shifts are logical", "shr", logical_shift),
    op_fault("IN23a", GROUP, "abs(INT_MIN) = INT_MAX", "abs", saturated_abs),
    op_fault("IN24a", GROUP, "popcount of 64 bits counts 32", "popcount", low_population),
    op_fault("IN25a", GROUP, "clz(0) is one less", "clz", zeros_of_zero),
    op_fault("IN26a", GROUP, "quotients round the other way", "div", floored_quotient),
    op_fault("IN27a", GROUP, "u64 products are of low halves", "mul", low_product),
)

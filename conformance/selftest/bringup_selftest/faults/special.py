"""Faults at NaN, signed zeros and infinities."""

from __future__ import annotations

import numpy as np

from bringup_selftest.corpus import Array, Fault, OpCall, op_fault

GROUP = "NaN, signed zero, infinity"


def _is_float(array: Array) -> bool:
    return array.dtype.kind not in "biu"


def _zero(call: OpCall) -> Array:
    return np.zeros((), call.dtype)


def empty_min(call: OpCall) -> Array | None:
    """NaN is ignored by a minimum; without numbers it is the identity."""
    (x,) = call.operands
    if call.attrs["kind"] != "min" or not _is_float(x) or not x.size:
        return None
    identity = np.array(np.inf).astype(x.dtype)
    return call.reference(np.where(np.isnan(x), identity, x))


def first_nan(call: OpCall) -> Array | None:
    """NaN is kept by a minimum only where it comes first."""
    (x,) = call.operands
    dims = call.attrs["dims"]
    if call.attrs["kind"] not in ("min", "max") or not _is_float(x) or len(dims) != 1:
        return None
    first = np.take(x, [0], axis=dims[0])
    worst = np.array(np.inf if call.attrs["kind"] == "min" else -np.inf).astype(x.dtype)
    found = call.reference(np.where(np.isnan(x), worst, x))
    return np.where(np.isnan(first.squeeze(dims[0])), call.right, found)


def positive_root(call: OpCall) -> Array | None:
    """sqrt(-0) = +0."""
    return np.where(call.right == 0, _zero(call), call.right)


def signed_abs(call: OpCall) -> Array | None:
    """abs(-0) = -0, as a comparison with 0 has it."""
    if not _is_float(call.right):
        return None
    x = call.operands[0]
    return np.where(x == 0, x, call.right)


def subtracted(call: OpCall) -> Array | None:
    """Neg is 0 - x."""
    return np.where(call.right == 0, _zero(call), call.right) if _is_float(call.right) else None


def power_by_logarithm(call: OpCall) -> Array | None:
    """Pow is exp(y * log x)."""
    if not _is_float(call.right):
        return None
    x, y = (each.astype(np.float64) for each in call.operands)
    return np.exp(y * np.log(x)).astype(call.dtype)


def low_for_nan(call: OpCall) -> Array | None:
    """A clamp of NaN is the low bound."""
    low, x = call.operands[0], call.operands[1]
    if not _is_float(call.right):
        return None
    bound, value = (low, x) if x.shape == call.right.shape else (x, low)
    return np.where(np.isnan(value), bound, call.right)


def sign_of_nan(call: OpCall) -> Array | None:
    """sign(NaN) = 0."""
    return (
        np.where(np.isnan(call.right), _zero(call), call.right) if _is_float(call.right) else None
    )


def positive_round(call: OpCall) -> Array | None:
    """round(-0.4) = +0."""
    return np.where(call.right == 0, _zero(call), call.right) if _is_float(call.right) else None


def numbers_first(call: OpCall) -> Array | None:
    """Max as C's fmax: numbers before NaN."""
    if call.dtype not in (np.float32, np.float64):
        return None
    return np.fmax(*call.operands)


def ordered_unequal(call: OpCall) -> Array | None:
    """NaN is not unequal to anything."""
    a, b = call.operands
    if call.attrs["direction"] != "ne" or not _is_float(a):
        return None
    return call.right & ~(np.isnan(a) | np.isnan(b))


def unsigned_angle(call: OpCall) -> Array | None:
    """atan2(-0, x) is atan2(+0, x)."""
    y, x = call.operands
    return call.reference(np.where(y == 0, np.zeros_like(y), y), x)


def finite_logarithm(call: OpCall) -> Array | None:
    """log(0) is a large number."""
    return np.where(
        np.isneginf(call.right.astype(np.float64)), np.array(-1e4, call.dtype), call.right
    )


def tangent_of_quotient(call: OpCall) -> Array | None:
    """Tanh as a quotient of exponentials: NaN for large arguments."""
    (x,) = call.operands
    wide = x.astype(np.float64)
    return np.where(np.abs(wide) > 1e3, np.array(np.nan, call.dtype), call.right)


def finite_quotient(call: OpCall) -> Array | None:
    """X / 0 is the largest number."""
    if call.dtype != np.float32:
        return None
    largest = np.finfo(np.float32).max
    zero = (call.operands[1] == 0) & np.isinf(call.right)
    return np.where(zero, np.copysign(largest, call.right), call.right)


def unbounded_hypot(call: OpCall) -> Array | None:
    """hypot(inf, NaN) = NaN."""
    a, b = call.operands
    return np.where(np.isnan(a) | np.isnan(b), np.array(np.nan, call.dtype), call.right)


def zero_product(call: OpCall) -> Array | None:
    """0 * inf = 0."""
    if not _is_float(call.right):
        return None
    a, b = call.operands
    return np.where((a == 0) | (b == 0), _zero(call), call.right)


def _opposite_power(call: OpCall, wrong: Array) -> Array:
    return np.where(wrong & np.signbit(call.operands[0]), -call.right, call.right)


def saturated_parity(call: OpCall) -> Array | None:
    """Whether an exponent is odd is read from an i32, and so is that of one that does not fit."""
    y = call.operands[1]
    return _opposite_power(call, np.isfinite(y) & (y >= 2.0**31)) if _is_float(y) else None


def long_parity(call: OpCall) -> Array | None:
    """Whether an exponent is odd is read from an i64."""
    y = call.operands[1]
    if y.dtype != np.float64:
        return None
    return _opposite_power(call, np.isfinite(y) & (y >= 2.0**63))


def single_parity(call: OpCall) -> Array | None:
    """Whether the exponent of a double is odd is read from a single."""
    y = call.operands[1]
    if y.dtype != np.float64:
        return None
    whole = np.isfinite(y) & (np.abs(y) > 2.0**24) & (np.fmod(y, 2) != 0) & (y == np.floor(y))
    return _opposite_power(call, whole)


FAULTS: tuple[Fault, ...] = (
    op_fault("SV40a", GROUP, "exponents from 2**31 on are odd", "pow", saturated_parity),
    op_fault("SV41a", GROUP, "exponents from 2**63 on are odd", "pow", long_parity),
    op_fault("SV42a", GROUP, "odd exponents past 2**24 are even", "pow", single_parity),
    op_fault("SV03", GROUP, "minima ignore NaN", "reduce", empty_min),
    op_fault("SV03b", GROUP, "extremes keep NaN only where it is first", "reduce", first_nan),
    op_fault("SV04", GROUP, "sqrt(-0) = +0", "sqrt", positive_root),
    op_fault("SV04b", GROUP, "abs(-0) = -0", "abs", signed_abs),
    op_fault("SV04c", GROUP, "neg is 0 - x", "neg", subtracted),
    op_fault("SV28a", GROUP, "pow by exp and log", "pow", power_by_logarithm),
    op_fault("SV12", GROUP, "a clamp of NaN is the low bound", "clamp", low_for_nan),
    op_fault("SV12b", GROUP, "sign(NaN) = 0", "sign", sign_of_nan),
    op_fault("SV12c", GROUP, "round(-0.4) = +0", "round", positive_round),
    op_fault("SV20a", GROUP, "max prefers numbers to NaN", "max", numbers_first),
    op_fault("SV21a", GROUP, "NaN is not unequal", "compare", ordered_unequal),
    op_fault("SV22a", GROUP, "atan2 forgets the sign of zero", "atan2", unsigned_angle),
    op_fault("SV23a", GROUP, "log(0) is finite", "log", finite_logarithm),
    op_fault("SV24a", GROUP, "tanh of large numbers is NaN", "tanh", tangent_of_quotient),
    op_fault("SV25a", GROUP, "x / 0 is finite", "div", finite_quotient),
    op_fault("SV26a", GROUP, "hypot(inf, NaN) = NaN", "hypot", unbounded_hypot),
    op_fault("SV27a", GROUP, "0 * inf = 0", "mul", zero_product),
)

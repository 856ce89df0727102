"""Faults at NaN, signed zeros and infinities."""

from __future__ import annotations

import numpy as np

from bringup_selftest.corpus import Array, Faults, OpCall, floats, kind, single

FAULTS = Faults("NaN, signed zero, infinity")


def _is_float(array: Array) -> bool:
    return array.dtype.kind not in "biu"


def _zero(call: OpCall) -> Array:
    return np.zeros((), call.dtype)


@FAULTS.op("SV03", "minima ignore NaN", "reduce", when=kind("min"))
def empty_min(call: OpCall) -> Array | None:
    """NaN is ignored by a minimum; without numbers it is the identity."""
    (x,) = call.operands
    if not _is_float(x) or not x.size:
        return None
    identity = np.array(np.inf).astype(x.dtype)
    return call.reference(np.where(np.isnan(x), identity, x))


@FAULTS.op("SV03b", "extremes keep NaN only where it is first", "reduce")
def first_nan(call: OpCall) -> Array | None:
    (x,) = call.operands
    dims = call.attrs["dims"]
    if call.attrs["kind"] not in ("min", "max") or not _is_float(x) or len(dims) != 1:
        return None
    first = np.take(x, [0], axis=dims[0])
    worst = np.array(np.inf if call.attrs["kind"] == "min" else -np.inf).astype(x.dtype)
    found = call.reference(np.where(np.isnan(x), worst, x))
    return np.where(np.isnan(first.squeeze(dims[0])), call.right, found)


@FAULTS.op("SV28a", "pow by exp and log", "pow", when=floats)
def power_by_logarithm(call: OpCall) -> Array | None:
    x, y = (each.astype(np.float64) for each in call.operands)
    return np.exp(y * np.log(x)).astype(call.dtype)


@FAULTS.op("SV12", "a clamp of NaN is the low bound", "clamp", when=floats)
def low_for_nan(call: OpCall) -> Array | None:
    low, x = call.operands[0], call.operands[1]
    bound, value = (low, x) if x.shape == call.right.shape else (x, low)
    return np.where(np.isnan(value), bound, call.right)


@FAULTS.op("SV24a", "tanh of large numbers is NaN", "tanh")
def tangent_of_quotient(call: OpCall) -> Array | None:
    """Tanh as a quotient of exponentials: NaN for large arguments."""
    (x,) = call.operands
    wide = x.astype(np.float64)
    return np.where(np.abs(wide) > 1e3, np.array(np.nan, call.dtype), call.right)


@FAULTS.op("SV25a", "x / 0 is finite", "div", when=single)
def finite_quotient(call: OpCall) -> Array | None:
    largest = np.finfo(np.float32).max
    zero = (call.operands[1] == 0) & np.isinf(call.right)
    return np.where(zero, np.copysign(largest, call.right), call.right)


def _opposite_power(call: OpCall, wrong: Array) -> Array:
    return np.where(wrong & np.signbit(call.operands[0]), -call.right, call.right)


@FAULTS.op("SV42a", "odd exponents past 2**24 are even", "pow")
def single_parity(call: OpCall) -> Array | None:
    y = call.operands[1]
    if y.dtype != np.float64:
        return None
    whole = np.isfinite(y) & (np.abs(y) > 2.0**24) & (np.fmod(y, 2) != 0) & (y == np.floor(y))
    return _opposite_power(call, whole)


@FAULTS.op("SV41a", "exponents from 2**63 on are odd", "pow")
def long_parity(call: OpCall) -> Array | None:
    y = call.operands[1]
    if y.dtype != np.float64:
        return None
    return _opposite_power(call, np.isfinite(y) & (y >= 2.0**63))


@FAULTS.op("SV21a", "NaN is not unequal", "compare")
def ordered_unequal(call: OpCall) -> Array | None:
    if call.attrs["direction"] != "ne" or not _is_float(call.x):
        return None
    return call.right & ~(np.isnan(call.x) | np.isnan(call.y))


@FAULTS.op("SV23a", "log(0) is finite", "log")
def finite_logarithm(call: OpCall) -> Array | None:
    return np.where(
        np.isneginf(call.right.astype(np.float64)), np.array(-1e4, call.dtype), call.right
    )


@FAULTS.op("SV27a", "0 * inf = 0", "mul", when=floats)
def zero_product(call: OpCall) -> Array | None:
    return np.where((call.x == 0) | (call.y == 0), _zero(call), call.right)


FAULTS.op("SV40a", "exponents from 2**31 on are odd", "pow")(
    lambda c: _opposite_power(c, np.isfinite(c.y) & (c.y >= 2.0**31)) if _is_float(c.y) else None
)
FAULTS.op("SV04", "sqrt(-0) = +0", "sqrt")(lambda c: np.where(c.right == 0, _zero(c), c.right))
FAULTS.op("SV04b", "abs(-0) = -0", "abs")(
    lambda c: None if not _is_float(c.right) else np.where(c.x == 0, c.x, c.right)
)
FAULTS.op("SV04c", "neg is 0 - x", "neg")(
    lambda c: np.where(c.right == 0, _zero(c), c.right) if _is_float(c.right) else None
)
FAULTS.op("SV12b", "sign(NaN) = 0", "sign")(
    lambda c: np.where(np.isnan(c.right), _zero(c), c.right) if _is_float(c.right) else None
)
FAULTS.op("SV12c", "round(-0.4) = +0", "round")(
    lambda c: np.where(c.right == 0, _zero(c), c.right) if _is_float(c.right) else None
)
FAULTS.op("SV20a", "max prefers numbers to NaN", "max")(
    lambda c: None if c.dtype not in (np.float32, np.float64) else np.fmax(*c.operands)
)
FAULTS.op("SV22a", "atan2 forgets the sign of zero", "atan2")(
    lambda c: c.reference(np.where(c.x == 0, np.zeros_like(c.x), c.x), c.y)
)
FAULTS.op("SV26a", "hypot(inf, NaN) = NaN", "hypot")(
    lambda c: np.where(np.isnan(c.x) | np.isnan(c.y), np.array(np.nan, c.dtype), c.right)
)

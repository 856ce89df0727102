"""Faults of precision: subnormals, fast approximations, estimates, rounding modes."""

from __future__ import annotations

import numpy as np

from bringup.backend import Backend
from bringup_selftest.corpus import Array, Fault, OpCall, op_fault, with_ops

GROUP = "Denormals, fast math, precision"
_TINY = np.finfo(np.float32).tiny


def _single(call: OpCall) -> bool:
    return call.dtype == np.float32


def _flushed(x: Array) -> Array:
    return np.where(np.abs(x) < _TINY, np.copysign(np.float32(0), x), x)


def results_flushed(call: OpCall) -> Array | None:
    """Subnormal results are 0."""
    return _flushed(call.right) if _single(call) else None


def lanes_flushed(call: OpCall) -> Array | None:
    """Subnormal inputs are 0 in the first half of each vector."""
    if not _single(call):
        return None
    lane = np.arange(call.right.size).reshape(call.right.shape) % 8 < 4
    wrong = call.reference(*(_flushed(x) for x in call.operands))
    return np.where(lane, wrong, call.right)


def approximated(call: OpCall) -> Array | None:
    """A fast approximation: 1e-3 relative."""
    if not _single(call):
        return None
    ripple = np.sin(np.arange(call.right.size, dtype=np.float32)).reshape(call.right.shape)
    return (call.right * (1 + np.float32(1e-3) * ripple)).astype(np.float32)


def good_near_zero(call: OpCall) -> Array | None:
    """A polynomial that is good on [-1, 1] alone."""
    if not _single(call):
        return None
    x = call.operands[0]
    outside = np.isfinite(call.right) & (np.abs(x) > 1)
    return np.where(outside, call.right * np.float32(1 + 2e-4), call.right)


def unreduced(call: OpCall) -> Array | None:
    """Large arguments are reduced with pi in f32."""
    x = call.operands[0]
    if not _single(call):
        return None
    turn = np.float32(2 * np.pi)
    near = x - turn * np.round(x / turn)
    return np.where(np.abs(x) > 1e3, call.reference(near.astype(np.float32)), call.right)


def twelve_bits(call: OpCall) -> Array | None:
    """An estimate without a Newton step."""
    if not _single(call):
        return None
    words = call.right.view(np.uint32) & np.uint32(0xFFFFF000)
    return np.where(np.isfinite(call.right), words.view(np.float32), call.right)


def by_reciprocal(call: OpCall) -> Array | None:
    """A quotient as a product."""
    a, b = call.operands
    if not _single(call):
        return None
    wrong = a * (np.float32(1) / b)
    return np.where(np.isfinite(wrong) & np.isfinite(call.right), wrong, call.right)


def plain_log1p(call: OpCall) -> Array | None:
    """log(1 + x) as it is written."""
    x = call.operands[0]
    return np.log(np.float32(1) + x) if _single(call) else None


def plain_expm1(call: OpCall) -> Array | None:
    """exp(x) - 1 as it is written."""
    x = call.operands[0]
    return np.exp(x) - np.float32(1) if _single(call) else None


def plain_tanh(call: OpCall) -> Array | None:
    """Tanh by exponentials: wrong near 0."""
    x = call.operands[0]
    if not _single(call):
        return None
    e = np.exp(np.clip(2 * x, -80, 80))
    return np.where(np.abs(x) < 1, (e - 1) / (e + 1), call.right).astype(np.float32)


def toward_zero(backend: Backend) -> Backend:
    """Rounding stays toward zero after a floor, until the next product."""
    state = {"left on": False}

    def leave(_call: OpCall) -> Array | None:
        state["left on"] = True
        return None

    def restore(_call: OpCall) -> Array | None:
        state["left on"] = False
        return None

    def cut(call: OpCall) -> Array | None:
        if not state["left on"] or not _single(call):
            return None
        exact = np.add(*(x.astype(np.float64) for x in call.operands))
        over = np.abs(call.right.astype(np.float64)) > np.abs(exact)
        return np.where(over, np.nextafter(call.right, np.float32(0)), call.right)

    return with_ops({"floor": leave, "mul": restore, "add": cut})(backend)


def half_ulp_root(call: OpCall) -> Array | None:
    """Sqrt rounded down always."""
    if not _single(call):
        return None
    exact = np.sqrt(call.operands[0].astype(np.float64))
    over = call.right.astype(np.float64) > exact
    return np.where(over, np.nextafter(call.right, np.float32(0)), call.right)


def logistic_overflow(call: OpCall) -> Array | None:
    """1 / (1 + exp(-x)) with an exponential that is cut at 2^24."""
    if not _single(call):
        return None
    e = np.minimum(np.exp(-call.operands[0]), np.float32(2**24))
    return (np.float32(1) / (np.float32(1) + e)).astype(np.float32)


def single_power(call: OpCall) -> Array | None:
    """Pow of positive numbers by exp and log in f32."""
    a, b = call.operands
    if not _single(call):
        return None
    wrong = np.exp(b * np.log(np.abs(a)))
    return np.where((a > 0) & np.isfinite(wrong) & np.isfinite(b), wrong, call.right)


def unscaled_hypot(call: OpCall) -> Array | None:
    """sqrt(a^2 + b^2) overflows and underflows."""
    a, b = call.operands
    return np.sqrt(a * a + b * b) if _single(call) else None


def coarse_erf(call: OpCall) -> Array | None:
    """Erf by a polynomial good to 1e-6."""
    if not _single(call):
        return None
    return (call.right * np.float32(1 + 2e-6)).astype(np.float32)


FAULTS: tuple[Fault, ...] = (
    op_fault("FP01", GROUP, "subnormal results are 0", ("add", "mul", "div"), results_flushed),
    op_fault("FP02", GROUP, "subnormal inputs are 0 in some lanes", ("add", "mul"), lanes_flushed),
    op_fault("FP03", GROUP, "approximations good to 1e-3", ("exp", "log", "sin"), approximated),
    op_fault("FP03b", GROUP, "approximations good on [-1, 1]", ("exp", "sin"), good_near_zero),
    op_fault("FP04", GROUP, "large arguments are reduced badly", ("sin", "cos"), unreduced),
    op_fault("FP05", GROUP, "estimates of 12 bits", ("rsqrt", "reciprocal"), twelve_bits),
    op_fault("FP06", GROUP, "quotients as products", "div", by_reciprocal),
    op_fault("FP08", GROUP, "log1p as it is written", "log1p", plain_log1p),
    op_fault("FP08b", GROUP, "expm1 as it is written", "expm1", plain_expm1),
    Fault("FP09", GROUP, "op", "rounding stays toward zero", toward_zero),
    op_fault("FP20a", GROUP, "tanh by exponentials", "tanh", plain_tanh),
    op_fault("FP21a", GROUP, "sqrt rounds down", "sqrt", half_ulp_root),
    op_fault("FP22a", GROUP, "logistic loses small values", "logistic", logistic_overflow),
    op_fault("FP23a", GROUP, "pow by exp and log in f32", "pow", single_power),
    op_fault("FP24a", GROUP, "hypot does not scale", "hypot", unscaled_hypot),
    op_fault("FP25a", GROUP, "erf good to 2e-6", "erf", coarse_erf),
)

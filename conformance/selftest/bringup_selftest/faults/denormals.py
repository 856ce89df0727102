"""Faults of precision: subnormals, fast approximations, estimates, rounding modes."""

from __future__ import annotations

import numpy as np

from bringup.backend import Backend
from bringup_selftest.corpus import Array, Faults, OpCall, single, with_ops

FAULTS = Faults("Denormals, fast math, precision")
_TINY = np.finfo(np.float32).tiny


def _single(call: OpCall) -> bool:
    return call.dtype == np.float32


def _flushed(x: Array) -> Array:
    return np.where(np.abs(x) < _TINY, np.copysign(np.float32(0), x), x)


@FAULTS.op("FP02", "subnormal inputs are 0 in some lanes", ("add", "mul"), when=single)
def lanes_flushed(call: OpCall) -> Array | None:
    lane = np.arange(call.right.size).reshape(call.right.shape) % 8 < 4
    wrong = call.reference(*(_flushed(x) for x in call.operands))
    return np.where(lane, wrong, call.right)


@FAULTS.op("FP03", "approximations good to 1e-3", ("exp", "log", "sin"), when=single)
def approximated(call: OpCall) -> Array | None:
    ripple = np.sin(np.arange(call.right.size, dtype=np.float32)).reshape(call.right.shape)
    return (call.right * (1 + np.float32(1e-3) * ripple)).astype(np.float32)


@FAULTS.op("FP03b", "approximations good on [-1, 1]", ("exp", "sin"), when=single)
def good_near_zero(call: OpCall) -> Array | None:
    x = call.operands[0]
    outside = np.isfinite(call.right) & (np.abs(x) > 1)
    return np.where(outside, call.right * np.float32(1 + 2e-4), call.right)


@FAULTS.op("FP04", "large arguments are reduced badly", ("sin", "cos"), when=single)
def unreduced(call: OpCall) -> Array | None:
    x = call.operands[0]
    turn = np.float32(2 * np.pi)
    near = x - turn * np.round(x / turn)
    return np.where(np.abs(x) > 1e3, call.reference(near.astype(np.float32)), call.right)


@FAULTS.op("FP05", "estimates of 12 bits", ("rsqrt", "reciprocal"), when=single)
def twelve_bits(call: OpCall) -> Array | None:
    words = call.right.view(np.uint32) & np.uint32(0xFFFFF000)
    return np.where(np.isfinite(call.right), words.view(np.float32), call.right)


@FAULTS.op("FP06", "quotients as products", "div", when=single)
def by_reciprocal(call: OpCall) -> Array | None:
    a, b = call.operands
    wrong = a * (np.float32(1) / b)
    return np.where(np.isfinite(wrong) & np.isfinite(call.right), wrong, call.right)


@FAULTS.op("FP20a", "tanh by exponentials", "tanh", when=single)
def plain_tanh(call: OpCall) -> Array | None:
    x = call.operands[0]
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


@FAULTS.op("FP21a", "sqrt rounds down", "sqrt", when=single)
def half_ulp_root(call: OpCall) -> Array | None:
    exact = np.sqrt(call.operands[0].astype(np.float64))
    over = call.right.astype(np.float64) > exact
    return np.where(over, np.nextafter(call.right, np.float32(0)), call.right)


@FAULTS.op("FP22a", "logistic loses small values", "logistic", when=single)
def logistic_overflow(call: OpCall) -> Array | None:
    """1 / (1 + exp(-x)) with an exponential that is cut at 2^24."""
    e = np.minimum(np.exp(-call.operands[0]), np.float32(2**24))
    return (np.float32(1) / (np.float32(1) + e)).astype(np.float32)


@FAULTS.op("FP23a", "pow by exp and log in f32", "pow", when=single)
def single_power(call: OpCall) -> Array | None:
    a, b = call.operands
    wrong = np.exp(b * np.log(np.abs(a)))
    return np.where((a > 0) & np.isfinite(wrong) & np.isfinite(b), wrong, call.right)


FAULTS.op("FP01", "subnormal results are 0", ("add", "mul", "div"))(
    lambda c: _flushed(c.right) if _single(c) else None
)
FAULTS.op("FP08", "log1p as it is written", "log1p")(
    lambda c: np.log(np.float32(1) + c.x) if _single(c) else None
)
FAULTS.op("FP08b", "expm1 as it is written", "expm1")(
    lambda c: np.exp(c.x) - np.float32(1) if _single(c) else None
)
FAULTS.add("FP09", "rounding stays toward zero", toward_zero)
FAULTS.op("FP24a", "hypot does not scale", "hypot")(
    lambda c: np.sqrt(c.x * c.x + c.y * c.y) if _single(c) else None
)
FAULTS.op("FP25a", "erf good to 2e-6", "erf")(
    lambda c: None if not _single(c) else (c.right * np.float32(1 + 2e-06)).astype(np.float32)
)

"""Transcendental functions emitted inline: range reduction and polynomial, no library calls.

``MATH[name](builder, operand, …)`` appends the instructions and returns the result, for f32 and f64
scalars and vectors.  Arithmetic is IEEE without flushing; fma is used throughout.  Callers compute
the 16-bit floats in f32, by the functions of ``convert``.
"""

from __future__ import annotations

from collections.abc import Callable

from bringup.llvm.math.arctangent import atan, atan2
from bringup.llvm.math.convert import (
    bf16_to_f32,
    f8e4m3fn_to_f32,
    f8e5m2_to_f32,
    f16_to_f32,
    f32_to_bf16,
    f32_to_f8e4m3fn,
    f32_to_f8e5m2,
    f32_to_f16,
    f64_to_bf16,
    f64_to_f16,
    f64_to_f32_odd,
)
from bringup.llvm.math.errorfunction import erf
from bringup.llvm.math.exponential import exp, exp2, expm1
from bringup.llvm.math.hyperbolic import logistic, tanh
from bringup.llvm.math.logarithm import log, log1p
from bringup.llvm.math.power import power
from bringup.llvm.math.trigonometric import cos, sin, tan
from bringup.llvm.text import Builder, Val

__all__ = [
    "MATH",
    "bf16_to_f32",
    "f8e4m3fn_to_f32",
    "f8e5m2_to_f32",
    "f16_to_f32",
    "f32_to_bf16",
    "f32_to_f8e4m3fn",
    "f32_to_f8e5m2",
    "f32_to_f16",
    "f64_to_bf16",
    "f64_to_f16",
    "f64_to_f32_odd",
]


def _floor(b: Builder, x: Val) -> Val:
    return b.intrinsic("llvm.floor", x.type, (x,))


def _sqrt(b: Builder, x: Val) -> Val:
    return b.intrinsic("llvm.sqrt", x.type, (x,))


MATH: dict[str, Callable[..., Val]] = {
    "atan": atan,
    "atan2": atan2,
    "cos": cos,
    "erf": erf,
    "exp": exp,
    "exp2": exp2,
    "expm1": expm1,
    "floor": _floor,
    "log": log,
    "log1p": log1p,
    "logistic": logistic,
    "pow": power,
    "sin": sin,
    "sqrt": _sqrt,
    "tan": tan,
    "tanh": tanh,
}
"""The emitter of each operation, by its name in the op table."""

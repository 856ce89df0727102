"""Transcendental functions emitted inline: range reduction and polynomial, no library calls.

``MATH[name](builder, operand, …)`` appends the instructions and returns the result, for f32 and f64
scalars and vectors.  Arithmetic is IEEE without flushing; fma is used throughout.  Callers compute
the 16-bit floats in f32, by the functions of ``convert``.
"""

from __future__ import annotations

from collections.abc import Callable

from bringup.lazy import LazyTable
from bringup.llvm.math.convert import (
    bf16_to_f32,
    f8e4m3fn_to_f32,
    f8e5m2_to_f32,
    f32_to_bf16,
    f32_to_f8e4m3fn,
    f32_to_f8e5m2,
    f64_to_bf16,
    f64_to_f16,
    f64_to_f32_odd,
)
from bringup.llvm.text import Val

__all__ = [
    "MATH",
    "bf16_to_f32",
    "f8e4m3fn_to_f32",
    "f8e5m2_to_f32",
    "f32_to_bf16",
    "f32_to_f8e4m3fn",
    "f32_to_f8e5m2",
    "f64_to_bf16",
    "f64_to_f16",
    "f64_to_f32_odd",
]


def _of(module: str, *names: str) -> dict[str, tuple[str, str]]:
    return {name: (f"bringup.llvm.math.{module}", name) for name in names}


#: The emitter of each operation, by its name in the op table.
MATH: LazyTable[Callable[..., Val]] = LazyTable(
    {
        "pow": ("bringup.llvm.math.elementary", "power"),
        **_of("elementary", "atan", "atan2", "erf"),
        **_of("exponential", "exp", "exp2", "expm1"),
        **_of("hyperbolic", "logistic", "tanh"),
        **_of("logarithm", "log", "log1p"),
        **_of("trigonometric", "cos", "sin", "tan"),
    }
)

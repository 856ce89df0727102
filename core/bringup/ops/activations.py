"""Composite rows: logistic, relu, erf, gelu."""

from __future__ import annotations

import math

import numpy as np

from bringup.dtypes import NUMERIC
from bringup.graph import Value
from bringup.maths import errorfunction
from bringup.ops import _elementary as elementary
from bringup.ops import build
from bringup.ops._elementwise import composite
from bringup.ops._numeric import Array, exactly, total_max, via_wider
from bringup.ops.build import compare, in_f32, like, rows
from bringup.ops.graph_arithmetic import GraphArithmetic
from bringup.ops.special_values import Special, cells
from bringup.ops.table import (
    DERIVED,
    Attr,
    Cotangents,
    Trait,
    within,
)


@via_wider
def _logistic_reference(x: Array) -> Array:
    small = elementary.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, small, x.dtype.type(1)) / (1 + small))


def _logistic_vjp(ct: Value, result: Value, _x: Value) -> Cotangents:
    slope = rows.mul(result, rows.sub(build.ones_like(result), result))
    return (rows.mul(ct, slope),)


@in_f32
def _logistic_decompose(x: Value) -> Value:
    """Exp of −|x| alone, so that neither tail overflows and the lower one stays accurate."""
    one = build.ones_like(x)
    small = rows.exp(rows.neg(rows.abs(x)))
    top = rows.select(compare("lt", x, build.zeros_like(x)), small, one)
    return rows.div(top, rows.add(one, small))


logistic = composite(
    "logistic",
    doc="1 / (1 + e^−x). −inf gives 0, inf gives 1, NaN gives NaN; the lower tail stays accurate.",
    reference=_logistic_reference,
    vjp=_logistic_vjp,
    special=cells(
        "0.0 -> 0.5; -0.0 -> 0.5; inf -> 1; -inf -> 0.0; MAX -> 1; nan -> nan",
    ),
    traits=frozenset({Trait.EXPENSIVE, Trait.MONOTONE}),
    # What the decomposition keeps when exp is 2 ULP off.
    accuracy=within(6.0),
    decompose=_logistic_decompose,
)


@exactly
def _relu_reference(x: Array) -> Array:
    return total_max(x, np.zeros_like(x))


def _relu_vjp(ct: Value, _result: Value, x: Value) -> Cotangents:
    zero = build.zeros_like(x)
    return (rows.select(compare("gt", x, zero), ct, build.zeros_like(ct)),)


def _relu_decompose(x: Value) -> Value:
    return rows.max(x, build.zeros_like(x))


relu = composite(
    "relu",
    doc="max(x, 0). NaN gives NaN and −0 gives +0; the gradient at 0 is 0.",
    dtypes=NUMERIC,
    reference=_relu_reference,
    vjp=_relu_vjp,
    special=cells(
        "-0.0 -> 0.0; 0.0 -> 0.0; -inf -> 0.0; inf -> inf; nan -> nan; SUBNORMAL -> SUBNORMAL; "
        "INT_MIN -> 0 (int uint)",
    ),
    traits=frozenset({Trait.IDEMPOTENT, Trait.MONOTONE}),
    decompose=_relu_decompose,
)


def _erf_vjp(ct: Value, _result: Value, x: Value) -> Cotangents:
    bell = rows.exp(rows.neg(rows.mul(x, x)))
    return (rows.mul(ct, rows.mul(like(x, 2.0 / math.sqrt(math.pi)), bell)),)


@in_f32
def _erf_decompose(x: Value) -> Value:
    return errorfunction.erf(GraphArithmetic(x), x, rows.exp)


erf = composite(
    "erf",
    doc="The error function. erf(±0) is ±0, erf(±inf) is ±1, NaN gives NaN.",
    reference=via_wider(elementary.erf),
    vjp=_erf_vjp,
    special=cells(
        "0.0 -> 0.0; -0.0 -> -0.0; inf -> 1; -inf -> -1; MAX -> 1; nan -> nan",
    ),
    traits=frozenset({Trait.ODD, Trait.EXPENSIVE, Trait.MONOTONE}),
    # The decomposition keeps less than 2 when exp is 2 ULP off; the rest is for a device's own.
    accuracy=within(6.0),
    decompose=_erf_decompose,
)

_SQRT_TWO_OVER_PI = math.sqrt(2.0 / math.pi)


@via_wider
def _gelu_reference(x: Array, *, approximate: str) -> Array:
    if approximate == "tanh":
        inner = elementary.tanh(
            x.dtype.type(_SQRT_TWO_OVER_PI) * (x + x.dtype.type(0.044715) * x * x * x)
        )
    else:
        inner = elementary.erf(x * x.dtype.type(math.sqrt(0.5)))
    return np.asarray(x * ((1 + inner) / 2))


@in_f32
def _gelu_decompose(x: Value, *, approximate: str) -> Value:
    if approximate == "tanh":
        cube = rows.mul(rows.mul(rows.mul(x, x), x), like(x, 0.044715))
        inner = rows.tanh(rows.mul(rows.add(x, cube), like(x, _SQRT_TWO_OVER_PI)))
    else:
        inner = rows.erf(rows.mul(x, like(x, math.sqrt(0.5))))
    gate = rows.mul(rows.add(inner, build.ones_like(x)), like(x, 0.5))
    return rows.mul(x, gate)


gelu = composite(
    "gelu",
    doc=(
        "x · Φ(x) with the normal distribution's Φ, by erf or by its tanh approximation. "
        "−inf gives NaN, as −inf · 0 does."
    ),
    attrs=(
        Attr("approximate", "str", "none: erf; tanh: x + 0.044715 x³", ("none", "tanh"), "none"),
    ),
    reference=_gelu_reference,
    special=tuple(
        Special((x,), result, attrs=(("approximate", form),))
        for form in ("none", "tanh")
        for x, result in (
            ("0.0", "0.0"),
            ("-0.0", "-0.0"),
            ("inf", "inf"),
            ("-inf", "nan"),
            ("nan", "nan"),
        )
    ),
    traits=frozenset({Trait.EXPENSIVE}),
    accuracy=DERIVED,
    decompose=_gelu_decompose,
)

"""Composite rows: silu, and the smooth maxima: softplus, log_sigmoid, logaddexp."""

from __future__ import annotations

import numpy as np

from bringup.graph import Value
from bringup.ops import _elementary as elementary
from bringup.ops import build
from bringup.ops._elementwise import composite, slope
from bringup.ops._numeric import Array, via_wider
from bringup.ops.build import compare, in_f32, like, rows
from bringup.ops.special_values import cells
from bringup.ops.table import DERIVED, Cotangents, Trait, within


@via_wider
def _silu_reference(x: Array) -> Array:
    small = elementary.exp(-np.abs(x))
    return np.asarray(x * (np.where(x < 0, small, x.dtype.type(1)) / (1 + small)))


def _silu_vjp(ct: Value, result: Value, x: Value) -> Cotangents:
    gate = rows.logistic(x)
    closed = rows.sub(build.ones_like(x), gate)
    return (rows.mul(ct, rows.add(gate, rows.mul(result, closed))),)


@in_f32
def _silu_decompose(x: Value) -> Value:
    """With e^−|x| in two factors: x times a subnormal number would multiply its error."""
    one = build.ones_like(x)
    half = rows.exp(rows.mul(rows.abs(x), like(x, -0.5)))
    left = compare("lt", x, build.zeros_like(x))
    top = rows.select(left, rows.mul(rows.mul(x, half), half), x)
    return rows.div(top, rows.add(one, rows.mul(half, half)))


silu = composite(
    "silu",
    doc="x / (1 + e^−x), x times its logistic. ±0 gives ±0; −inf gives NaN, as −inf · 0 does.",
    reference=_silu_reference,
    vjp=_silu_vjp,
    special=cells(
        "0.0 -> 0.0; -0.0 -> -0.0; inf -> inf; -inf -> nan; MAX -> MAX; nan -> nan",
    ),
    traits=frozenset({Trait.EXPENSIVE}),
    # 2 of either exponential and four roundings, and what the divisor has of them.
    accuracy=within(8.0),
    decompose=_silu_decompose,
)


@via_wider
def _softplus_reference(x: Array) -> Array:
    return np.asarray(np.maximum(x, 0) + elementary.log1p(elementary.exp(-np.abs(x))))


@in_f32
def _softplus_decompose(x: Value) -> Value:
    """Exp of −|x| alone: neither tail overflows, and the left one stays accurate."""
    rest = rows.log1p(rows.exp(rows.neg(rows.abs(x))))
    return rows.add(rows.max(x, build.zeros_like(x)), rest)


softplus = composite(
    "softplus",
    doc="log(1 + e^x). −inf gives +0, inf gives inf, NaN gives NaN; the left tail stays accurate.",
    reference=_softplus_reference,
    vjp=slope(lambda _result, x: rows.logistic(x)),
    special=cells(
        "inf -> inf; -inf -> 0.0; MAX -> MAX; -MAX -> 0.0; nan -> nan",
    ),
    traits=frozenset({Trait.EXPENSIVE, Trait.MONOTONE}),
    # 6 of log1p and 2 of its argument, which a sum may double, and its rounding.
    accuracy=within(10.0),
    decompose=_softplus_decompose,
)


@via_wider
def _log_sigmoid_reference(x: Array) -> Array:
    return np.asarray(-(np.maximum(-x, 0) + elementary.log1p(elementary.exp(-np.abs(x)))))


@in_f32
def _log_sigmoid_decompose(x: Value) -> Value:
    return rows.neg(rows.softplus(rows.neg(x)))


log_sigmoid = composite(
    "log_sigmoid",
    doc="log(1 / (1 + e^−x)). −inf gives −inf, inf gives −0, NaN gives NaN.",
    reference=_log_sigmoid_reference,
    vjp=slope(lambda _result, x: rows.logistic(rows.neg(x))),
    special=cells(
        "inf -> -0.0; -inf -> -inf; -MAX -> -MAX; MAX -> -0.0; nan -> nan",
    ),
    traits=frozenset({Trait.EXPENSIVE, Trait.MONOTONE}),
    # As softplus.
    accuracy=within(10.0),
    decompose=_log_sigmoid_decompose,
)


@via_wider
def _logaddexp_reference(x: Array, y: Array) -> Array:
    return np.where(
        x == y,
        x + elementary.log(x.dtype.type(2)),
        np.maximum(x, y) + elementary.log1p(elementary.exp(-np.abs(x - y))),
    )


def _apart(x: Value, y: Value) -> Value:
    """``x − y``; equal operands, infinities among them, are not subtracted: inf − inf is NaN."""
    return rows.select(compare("eq", x, y), build.zeros_like(x), rows.sub(x, y))


def _logaddexp_vjp(ct: Value, _result: Value, x: Value, y: Value) -> Cotangents:
    share = _apart(x, y)
    return (
        rows.mul(ct, rows.logistic(share)),
        rows.mul(ct, rows.logistic(rows.neg(share))),
    )


@in_f32
def _logaddexp_decompose(x: Value, y: Value) -> Value:
    rest = rows.log1p(rows.exp(rows.neg(rows.abs(_apart(x, y)))))
    return rows.add(rows.max(x, y), rest)


logaddexp = composite(
    "logaddexp",
    arity=2,
    doc=(
        "log(e^x + e^y) without overflow. An infinite operand gives inf, two of −inf give −inf, "
        "NaN gives NaN. Where the result is near 0 it is right to an absolute error only."
    ),
    reference=_logaddexp_reference,
    vjp=_logaddexp_vjp,
    special=cells(
        "inf, 1 -> inf; inf, inf -> inf; inf, -inf -> inf; -inf, -inf -> -inf; -inf, 1 -> 1; "
        "MAX, -MAX -> MAX; nan, 1 -> nan; inf, nan -> nan",
    ),
    traits=frozenset({Trait.COMMUTATIVE, Trait.EXPENSIVE}),
    accuracy=DERIVED,
    decompose=_logaddexp_decompose,
)

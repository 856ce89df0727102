"""The cumulative row: running folds along one dimension."""

from __future__ import annotations

from typing import Any

import numpy as np

from bringup.dtypes import NUMERIC, bool_, i64
from bringup.errors import OpTypeError
from bringup.graph import Value
from bringup.ops import build
from bringup.ops._checks import dim_of, one_of
from bringup.ops._numeric import Array, is_float, round_to, wider
from bringup.ops.batching import shifting
from bringup.ops.build import in_f32, rows
from bringup.ops.monoids import MONOIDS, NUMERIC_KINDS, ROUNDING, Derivative
from bringup.ops.special_values import Special
from bringup.ops.table import EXACT, SUM, Attr, Attrs, Cotangents, Kind, Types, define
from bringup.types import TensorType


def _infer(operands: Types, attrs: Attrs) -> TensorType:
    (operand,) = operands
    one_of("cumulative", operand, NUMERIC)
    dim_of("cumulative", attrs, operand.rank, operand)
    for name in ("reverse", "exclusive"):
        if not isinstance(attrs[name], bool):
            raise OpTypeError(
                f"cumulative: {name} {attrs[name]!r} is no bool: {operand}",
                fix=f"pass {name}=True or {name}=False",
            )
    return operand


def _reference(x: Array, *, kind: str, dim: int, reverse: bool, exclusive: bool) -> Array:
    x = np.asarray(x)
    work = x.astype(wider(x.dtype)) if is_float(x.dtype) else x
    lines = np.moveaxis(np.flip(work, dim) if reverse else work, dim, 0)
    if exclusive and len(lines):
        start = np.full_like(lines[:1], MONOIDS[kind].empty(work.dtype))
        lines = np.concatenate([start, lines[:-1]])
    with np.errstate(all="ignore"):
        folds = MONOIDS[kind].accumulate(lines, axis=0)
    result = np.moveaxis(folds, 0, dim)
    return round_to(np.flip(result, dim) if reverse else result, x.dtype)


def _shifted(x: Value, dim: int, by: int, start: object) -> Value:
    """Element i is element i − by of ``x``, and ``start`` where that lies outside."""
    lo, hi = [0] * len(x.shape), [0] * len(x.shape)
    lo[dim], hi[dim] = by, -by
    return build.pad(x, start, lo, hi)


def _distances(size: int) -> list[int]:
    return [1 << k for k in range((size - 1).bit_length())] if size > 1 else []


def _scan(x: Value, *, kind: str, dim: int, reverse: bool, exclusive: bool) -> Value:
    """Hillis and Steele: after step k each element holds the fold of 2^k before it."""
    monoid = MONOIDS[kind]
    sign = -1 if reverse else 1
    if exclusive:
        x = _shifted(x, dim, sign, monoid.empty(x.dtype.numpy))
    neutral = monoid.neutral(x.dtype.numpy)
    for distance in _distances(x.shape[dim]):
        x = monoid.row(_shifted(x, dim, sign * distance, neutral), x)
    return x


def _decompose(x: Value, *, kind: str, dim: int, reverse: bool, exclusive: bool) -> Value:
    function = in_f32(_scan) if kind in ROUNDING else _scan
    return function(x, kind=kind, dim=dim, reverse=reverse, exclusive=exclusive)


def _vjp(
    ct: Value, result: Value, x: Value, *, kind: str, dim: int, reverse: bool, exclusive: bool
) -> Cotangents:
    sign = -1 if reverse else 1
    derivative = MONOIDS[kind].derivative
    if derivative is Derivative.LINEAR:
        back = rows.cumulative(ct, kind=kind, dim=dim, reverse=not reverse, exclusive=exclusive)
        return (back,)
    ct, wide = build.widened(ct), build.widened(x)
    if exclusive:
        ct = _shifted(ct, dim, -sign, 0)
    if derivative is Derivative.PRODUCT:
        gradient = _product_gradient(ct, wide, dim, reverse)
    else:
        if exclusive:
            result = rows.cumulative(x, kind=kind, dim=dim, reverse=reverse)
        gradient = _record_gradient(ct, x, result, dim, reverse)
    return (build.convert(gradient, x.dtype),)


def _product_gradient(ct: Value, x: Value, dim: int, reverse: bool) -> Value:
    """The product of all before, times the recurrence s[i] = ct[i] + x[i + 1] · s[i + 1].

    It divides by nothing, so zeros need no care.
    """
    sign = -1 if reverse else 1
    before = rows.cumulative(x, kind="mul", dim=dim, reverse=reverse, exclusive=True)
    total, factor = ct, _shifted(x, dim, -sign, 1)
    for distance in _distances(x.shape[dim]):
        total = rows.add(total, rows.mul(factor, _shifted(total, dim, -sign * distance, 0)))
        factor = rows.mul(factor, _shifted(factor, dim, -sign * distance, 1))
    return rows.mul(before, total)


def _record_gradient(ct: Value, x: Value, result: Value, dim: int, reverse: bool) -> Value:
    """Each cotangent goes to the last element that equals the extreme where it stands."""
    places = rows.iota(type=x.type.with_dtype(i64), dim=dim)
    hit = build.compare("eq", x, result)
    none = build.like(places, x.shape[dim] if reverse else -1)
    record = rows.cumulative(
        rows.select(hit, places, none),
        kind="min" if reverse else "max",
        dim=dim,
        reverse=reverse,
    )
    sign, total = -1 if reverse else 1, ct
    for distance in _distances(x.shape[dim]):
        other = _shifted(record, dim, -sign * distance, -2)
        more = _shifted(total, dim, -sign * distance, 0)
        same = build.compare("eq", record, other)
        total = rows.add(total, rows.select(same, more, build.zeros_like(more)))
    mine = rows.and_(hit, build.compare("eq", record, places))
    assert mine.dtype is bool_
    return rows.select(mine, total, build.zeros_like(total))


def _cell(operand: str, kind: str, result: str, *kinds: str, **attrs: Any) -> Special:
    given = {"kind": kind, "dim": 0, **attrs}
    return Special((operand,), result, kinds or ("float",), tuple(given.items()))


cumulative = define(
    name="cumulative",
    arity=1,
    kind=Kind.COMPOSITE,
    doc=(
        "Element i is the fold of elements 0 … i along a dimension, in unspecified order, and "
        "what an overflow on the way gives is unspecified too. "
        "add, mul: integers wrap; f16 and bf16 accumulate in f32 and are rounded once. "
        "max, min: NaN from the first NaN on; −0 < +0. An element that ties with the extreme "
        "before it takes over its gradient."
    ),
    attrs=(
        Attr("kind", "str", "the fold", NUMERIC_KINDS),
        Attr("dim", "int", "the dimension folded along"),
        Attr("reverse", "bool", "fold elements i … n − 1 instead", default=False),
        Attr(
            "exclusive",
            "bool",
            "leave element i itself out: the first is 0, 1, −inf or INT_MIN, inf or INT_MAX",
            default=False,
        ),
    ),
    infer=_infer,
    reference=_reference,
    vjp=_vjp,
    dtypes=NUMERIC,
    special=(
        _cell("[]", "add", "[]", "float", "int", "uint"),
        _cell("[1, 2, 3]", "add", "[1, 3, 6]", "float", "int", "uint"),
        _cell("[1, 2, 3]", "add", "[6, 5, 3]", "float", "int", "uint", reverse=True),
        _cell("[1, 2, 3]", "add", "[0, 1, 3]", "float", "int", "uint", exclusive=True),
        _cell("[3, 2, 1]", "mul", "[1, 3, 6]", "float", "int", "uint", exclusive=True),
        _cell("[INT_MAX, 1]", "add", "[INT_MAX, INT_MIN]", "int", "uint"),
        _cell("[1, inf, -inf]", "add", "[1, inf, nan]"),
        _cell("[1, nan, 2]", "add", "[1, nan, nan]"),
        _cell("[-0.0, -0.0, 0.0]", "add", "[-0.0, -0.0, 0.0]"),
        _cell("[-0.0, -0.0, 0.0]", "add", "[0.0, 0.0, 0.0]", exclusive=True),
        _cell("[inf, 0.0]", "mul", "[inf, nan]"),
        _cell("[1, nan, 2]", "max", "[1, nan, nan]"),
        _cell("[1, nan, 2]", "min", "[1, nan, nan]"),
        _cell("[-0.0, 0.0, -0.0]", "max", "[-0.0, 0.0, 0.0]"),
        _cell("[0.0, -0.0, 0.0]", "min", "[0.0, -0.0, -0.0]"),
        _cell("[2, 1]", "max", "[-inf, 2]", exclusive=True),
        _cell("[2, 3]", "max", "[INT_MIN, 2]", "int", "uint", exclusive=True),
        _cell("[2, 1]", "min", "[INT_MAX, 2]", "int", "uint", exclusive=True),
    ),
    accuracy=SUM,
    variant_accuracy={kind: EXACT for kind in NUMERIC_KINDS if kind not in ROUNDING},
    decompose=_decompose,
    batch=shifting("cumulative", "dim"),
    variant="kind",
)

__all__ = ["cumulative"]

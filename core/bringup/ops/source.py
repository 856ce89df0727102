"""Rows without operands: constants and index ramps."""

from __future__ import annotations

import numpy as np

from bringup.dtypes import NUMERIC, STORED
from bringup.errors import OpTypeError
from bringup.graph import Literal
from bringup.ops._checks import dim_of, one_of
from bringup.ops._numeric import Array, is_float, round_to
from bringup.ops.table import Attr, Attrs, Kind, Types, define
from bringup.types import TensorType


def _infer_constant(_operands: Types, attrs: Attrs) -> TensorType:
    value = attrs["value"]
    if not isinstance(value, Literal):
        raise OpTypeError(
            f"constant: attribute 'value' must be a literal, got {type(value).__name__}",
            fix="make one with Literal.of(array, dtype) or Literal.splat(value, type)",
        )
    return value.type


def _constant_reference(*, value: Literal) -> Array:
    return value.array()


constant = define(
    name="constant",
    arity=0,
    kind=Kind.SOURCE,
    doc="A literal array; every bit, NaN payloads included, is the literal's.",
    attrs=(Attr("value", "literal", "the content"),),
    infer=_infer_constant,
    reference=_constant_reference,
    dtypes=STORED,
    tier=0,
)


def _infer_iota(_operands: Types, attrs: Attrs) -> TensorType:
    type_ = attrs["type"]
    if not isinstance(type_, TensorType):
        raise OpTypeError(
            f"iota: attribute 'type' must be a tensor type, got {type_!r}",
            fix="pass type=i32[4, 8] or so",
        )
    one_of("iota", type_, NUMERIC, "the result")
    dim_of("iota", attrs, type_.rank, type_)
    return type_


def _iota_reference(*, type: TensorType, dim: int) -> Array:
    ramp = np.arange(type.shape[dim], dtype=np.int64)
    dtype = type.dtype.numpy
    values = round_to(ramp, dtype) if is_float(dtype) else ramp.astype(dtype)
    spread = values.reshape([-1 if d == dim else 1 for d in range(type.rank)])
    return np.broadcast_to(spread, type.shape)


iota = define(
    name="iota",
    arity=0,
    kind=Kind.SOURCE,
    doc=(
        "The index along one dimension. "
        "Integers wrap; floats are the index rounded once, infinity beyond the range of f16."
    ),
    attrs=(
        Attr("type", "type", "type of the result, of rank one or more"),
        Attr("dim", "int", "the dimension counted along"),
    ),
    infer=_infer_iota,
    reference=_iota_reference,
    dtypes=NUMERIC,
    tier=0,
)

__all__ = ["constant", "iota"]

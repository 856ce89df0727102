"""Makers of the rows that work element by element, on operands and to a result of one type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bringup.dtypes import FLOATS, DType
from bringup.graph import Value
from bringup.ops._checks import one_of, same_types
from bringup.ops.build import rows
from bringup.ops.table import Attrs, Cotangents, Infer, Kind, OpDef, Trait, Types, Vjp, define
from bringup.types import TensorType


def elementwise(
    name: str,
    *,
    arity: int = 1,
    dtypes: tuple[DType, ...] = FLOATS,
    infer: Infer | None = None,
    **columns: Any,
) -> OpDef:
    """Define a primitive; infer: for types that are not all the same."""

    def one_type(operands: Types, _attrs: Attrs) -> TensorType:
        return same_types(name, operands)

    return define(
        name=name,
        arity=arity,
        kind=Kind.ELEMENTWISE,
        dtypes=dtypes,
        infer=infer or one_type,
        **columns,
    )


def composite(
    name: str,
    *,
    arity: int = 1,
    dtypes: tuple[DType, ...] = FLOATS,
    traits: frozenset[Trait] = frozenset(),
    **columns: Any,
) -> OpDef:
    """Define a composite, which takes no other dtypes than these."""

    def infer(operands: Types, _attrs: Attrs) -> TensorType:
        type_ = same_types(name, operands)
        one_of(name, type_, dtypes)
        return type_

    return define(
        name=name,
        arity=arity,
        kind=Kind.COMPOSITE,
        dtypes=dtypes,
        infer=infer,
        traits=traits | {Trait.POINTWISE},
        **columns,
    )


def slope(derivative: Callable[[Value, Value], Value]) -> Vjp:
    """The vjp of a function of one number: the cotangent times ``derivative(result, x)``."""

    def vjp(cotangent: Value, result: Value, x: Value) -> Cotangents:
        return (rows.mul(cotangent, derivative(result, x)),)

    return vjp

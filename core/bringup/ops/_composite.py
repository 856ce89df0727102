"""The form shared by the composite rows that work element by element."""

from __future__ import annotations

from typing import Any

from bringup.dtypes import FLOATS, DType
from bringup.ops._checks import one_of, same_types
from bringup.ops.table import Attrs, Infer, Kind, OpDef, Trait, Types, define
from bringup.types import TensorType


def _infer(name: str, dtypes: tuple[DType, ...]) -> Infer:
    def infer(operands: Types, _attrs: Attrs) -> TensorType:
        type_ = same_types(name, operands)
        one_of(name, type_, dtypes)
        return type_

    return infer


def composite(
    name: str,
    *,
    dtypes: tuple[DType, ...] = FLOATS,
    arity: int = 1,
    traits: frozenset[Trait] = frozenset(),
    **rest: Any,
) -> OpDef:
    """Define a row whose operands and result have one type."""
    return define(
        OpDef(
            name=name,
            arity=arity,
            kind=Kind.COMPOSITE,
            dtypes=dtypes,
            infer=_infer(name, dtypes),
            traits=traits | {Trait.POINTWISE},
            **rest,
        )
    )

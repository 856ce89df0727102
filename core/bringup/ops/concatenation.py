"""The concatenate row."""

from __future__ import annotations

import numpy as np

from bringup.dtypes import STORED, bool_
from bringup.errors import OpTypeError
from bringup.graph import Value
from bringup.ops import build
from bringup.ops._checks import dim_of, listed
from bringup.ops._numeric import Array
from bringup.ops.batching import shifting
from bringup.ops.build import rows
from bringup.ops.special_values import cells
from bringup.ops.table import Attr, Attrs, Cotangents, Kind, Types, define
from bringup.types import TensorType


def _infer_concatenate(operands: Types, attrs: Attrs) -> TensorType:
    first = operands[0]
    dim = dim_of("concatenate", attrs, first.rank, first)
    for other in operands[1:]:
        rest = [t.shape[:dim] + t.shape[dim + 1 :] for t in (first, other)]
        if other.dtype is not first.dtype or other.rank != first.rank or rest[0] != rest[1]:
            raise OpTypeError(
                f"concatenate: types differ outside dim {dim}: {listed(operands)}",
                fix=f"give all operands dtype {first.dtype} and equal sizes but in dim {dim}",
            )
    total = sum(t.shape[dim] for t in operands)
    return first.with_shape((*first.shape[:dim], total, *first.shape[dim + 1 :]))


def _concatenate_reference(*operands: Array, dim: int) -> Array:
    return np.concatenate(operands, axis=dim)


def _concatenate_vjp(ct: Value, _result: Value, *operands: Value, dim: int) -> Cotangents:
    parts, start = [], 0
    for operand in operands:
        limit = start + operand.shape[dim]
        parts.append(build.slice_dim(ct, dim, start, limit))
        start = limit
    return tuple(parts)


def _concatenate_decompose(*operands: Value, dim: int) -> Value:
    """Pad every operand to the full size, then select by a mask padded alike."""
    total, rank = sum(v.shape[dim] for v in operands), len(operands[0].shape)
    result, start = None, 0
    for operand in operands:
        lo, hi = [0] * rank, [0] * rank
        lo[dim], hi[dim] = start, total - start - operand.shape[dim]
        part = build.pad(operand, 0, lo, hi)
        if result is not None:
            mask = build.pad(build.splat(True, operand.type.with_dtype(bool_)), False, lo, hi)
            part = rows.select(mask, part, result)
        result, start = part, start + operand.shape[dim]
    assert result is not None
    return result


concatenate = define(
    name="concatenate",
    arity=None,
    kind=Kind.MOVEMENT,
    doc="The operands one after the other along a dimension; some may be empty there.",
    attrs=(Attr("dim", "int", "the dimension along which sizes may differ"),),
    infer=_infer_concatenate,
    reference=_concatenate_reference,
    vjp=_concatenate_vjp,
    dtypes=STORED,
    special=cells(
        "[1, -nan], [], [-0.0] -> [1, -nan, -0.0]; [], [] -> []",
        dim=0,
    ),
    decompose=_concatenate_decompose,
    batch=shifting("concatenate", "dim"),
)

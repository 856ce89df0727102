"""The dot_general row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup.dtypes import NUMERIC, STORAGE, DType, Precision, accumulator, f16, f32
from bringup.errors import OpTypeError
from bringup.graph import Value
from bringup.ops import build
from bringup.ops._checks import dtype_attr, is_int, listed, one_of, precision_attr, precision_column
from bringup.ops._numeric import Array, is_float, round_to, wider
from bringup.ops.batching import Flags, shifted, to_front
from bringup.ops.build import rows
from bringup.ops.special_values import Special
from bringup.ops.table import SUM, Attr, Attrs, Cotangents, Kind, Trait, Types, define
from bringup.types import TensorType

Dims = tuple[int, ...]
Pair = tuple[Dims, Dims]


#: What the attribute ``precision`` of products means, for the texts of the rows that have it.
TF32 = (
    "precision: with tf32, factors of f32 may be rounded to nearest, with ties either way, to a "
    "mantissa of 10 bits or more, and past the largest of such numbers to an infinity, before they "
    "are multiplied and summed in f32 as ever; a NaN by none but the last 13 bits may be taken for "
    "an infinity. A device that has nothing for it computes as with highest."
)


def free_dims(rank: int, batch: Dims, contract: Dims) -> Dims:
    """The dimensions of one operand that are neither batch nor contracted, in order."""
    return tuple(d for d in range(rank) if d not in batch and d not in contract)


def _pair(attrs: Attrs, key: str) -> Pair:
    value = attrs[key]
    if not (
        isinstance(value, tuple)
        and len(value) == 2
        and all(isinstance(side, tuple) and all(map(is_int, side)) for side in value)
        and len(value[0]) == len(value[1])
    ):
        raise OpTypeError(
            f"dot_general: attribute {key!r} must pair dimensions of both operands, got {value!r}",
            fix=f"pass {key}=((lhs dims), (rhs dims)) of equal lengths",
        )
    return value


def _check_dims(operands: Types, batch: Pair, contract: Pair) -> None:
    for side, operand in enumerate(operands):
        used = batch[side] + contract[side]
        if len(set(used)) < len(used) or any(not 0 <= d < operand.rank for d in used):
            raise OpTypeError(
                f"dot_general: dims {used} of operand {side} do not lie in {operand} once each",
                fix=f"name each of 0 … {operand.rank - 1} at most once in batch and contract",
            )
    for key, pair in (("batch", batch), ("contract", contract)):
        for left, right in zip(*pair, strict=True):
            if operands[0].shape[left] != operands[1].shape[right]:
                raise OpTypeError(
                    f"dot_general: {key} sizes differ: {listed(operands)}",
                    notes=(
                        f"dimension {left} of operand 0 is {operands[0].shape[left]},"
                        f" dimension {right} of operand 1 is {operands[1].shape[right]}",
                    ),
                    fix=f"make the sizes equal, or pair other dimensions in {key}",
                )


def _check_dtypes(operands: Types, attrs: Attrs) -> DType:
    dtype = operands[0].dtype
    if operands[1].dtype is not dtype:
        raise OpTypeError(
            f"dot_general: operand dtypes differ: {listed(operands)}",
            fix=f"convert operand 1 to {dtype}",
        )
    result, wide = (dtype_attr("dot_general", attrs, key) for key in ("result", "accumulate"))
    least = f16 if dtype.is_storage else dtype
    floor = {"result": least, "accumulate": max(accumulator(dtype), result, key=lambda d: d.bits)}
    for key, given in (("result", result), ("accumulate", wide)):
        if given.kind == "bool" or given.is_float != dtype.is_float or given.bits < floor[key].bits:
            raise OpTypeError(
                f"dot_general: {key} {given} does not hold products of {listed(operands)}",
                fix=f"use {floor[key]} or wider",
            )
    precision_attr("dot_general", operands, attrs)
    return result


def _infer_dot(operands: Types, attrs: Attrs) -> TensorType:
    batch, contract = _pair(attrs, "batch"), _pair(attrs, "contract")
    result = _check_dtypes(operands, attrs)
    one_of("dot_general", operands[0], NUMERIC + STORAGE)
    _check_dims(operands, batch, contract)
    shape = tuple(operands[0].shape[d] for d in batch[0])
    for operand, b, c in zip(operands, batch, contract, strict=True):
        shape += tuple(operand.shape[d] for d in free_dims(operand.rank, b, c))
    return TensorType(shape, result)


def _dot_fill(operands: Types, attrs: Attrs) -> Attrs:
    dtype = operands[0].dtype
    result = attrs.get("result") or (f32 if dtype.is_storage else dtype)
    wide = attrs.get("accumulate") or max(accumulator(dtype), result, key=lambda d: d.bits)
    return {"result": result, "accumulate": wide}


def _flattened(x: Array, batch: Dims, rows_: Dims, columns: Dims) -> Array:
    shape = np.shape(x)
    sizes = (
        *(shape[d] for d in batch),
        math.prod(shape[d] for d in rows_),
        math.prod(shape[d] for d in columns),
    )
    return np.transpose(x, (*batch, *rows_, *columns)).reshape(sizes)


def _dot_reference(
    lhs: Array,
    rhs: Array,
    *,
    batch: Pair,
    contract: Pair,
    accumulate: DType,
    result: DType,
    precision: Precision = "highest",
) -> Array:
    lhs, rhs = np.asarray(lhs), np.asarray(rhs)
    left = free_dims(lhs.ndim, batch[0], contract[0])
    right = free_dims(rhs.ndim, batch[1], contract[1])
    shape = tuple(lhs.shape[d] for d in (*batch[0], *left)) + tuple(rhs.shape[d] for d in right)
    floats = is_float(lhs.dtype)
    wide = max(wider(lhs.dtype), accumulate.numpy, key=_width) if floats else accumulate.numpy
    a = _flattened(lhs, batch[0], left, contract[0]).astype(wide)
    b = _flattened(rhs, batch[1], contract[1], right).astype(wide)
    with np.errstate(all="ignore"):
        product: Array = np.matmul(a, b).reshape(shape)
    if floats:
        return round_to(product, max(result.numpy, lhs.dtype, key=_width))
    return np.asarray(product.astype(result.numpy))


def _width(dtype: Any) -> int:
    size: int = dtype.itemsize
    return size


def _dot_vjp(
    ct: Value,
    _result: Value,
    lhs: Value,
    rhs: Value,
    *,
    batch: Pair,
    contract: Pair,
    accumulate: DType,
    result: DType,
    precision: Precision,
) -> Cotangents:
    (lb, rb), (lc, rc) = batch, contract
    left, right = free_dims(len(lhs.shape), lb, lc), free_dims(len(rhs.shape), rb, rc)
    n, m = len(lb), len(left)
    ct_batch = tuple(range(n))
    ct_left, ct_right = tuple(range(n, n + m)), tuple(range(n + m, len(ct.shape)))
    kept: dict[str, Any] = {"accumulate": accumulate, "precision": precision}

    def dot(a: Value, b: Value, over: Pair, shared: Pair) -> Value:
        wide = [build.convert(v, ct.dtype) for v in (a, b)]
        return rows.dot_general(*wide, batch=shared, contract=over, **kept)

    d_lhs = dot(ct, rhs, (ct_right, right), (ct_batch, rb))
    d_rhs = dot(lhs, ct, (left, ct_left), (lb, ct_batch))
    to_left = (*lb, *left, *(lc[rc.index(d)] for d in sorted(rc)))
    to_right = (*rb, *(rc[lc.index(d)] for d in sorted(lc)), *right)
    return (_placed(d_lhs, to_left, lhs), _placed(d_rhs, to_right, rhs))


def _placed(x: Value, targets: Dims, operand: Value) -> Value:
    """Dimension i of `x` becomes dimension ``targets[i]``; the dtype becomes the operand's."""
    order = [targets.index(d) for d in range(len(targets))]
    return build.convert(build.transpose(x, order), operand.dtype)


def _dot_decompose(
    lhs: Value,
    rhs: Value,
    *,
    batch: Pair,
    contract: Pair,
    accumulate: DType,
    result: DType,
    precision: Precision,
) -> Value:
    """Spread both operands over batch, lhs free, rhs free and contracted dims; multiply; sum."""
    (lb, rb), (lc, rc) = batch, contract
    left, right = free_dims(len(lhs.shape), lb, lc), free_dims(len(rhs.shape), rb, rc)
    n, m, k = len(lb), len(left), len(right)
    shape = (
        *(lhs.shape[d] for d in (*lb, *left)),
        *(rhs.shape[d] for d in right),
        *(lhs.shape[d] for d in lc),
    )
    shared, folded = tuple(range(n)), tuple(range(n + m + k, len(shape)))
    a = build.transpose(build.convert(lhs, accumulate), (*lb, *left, *lc))
    b = build.transpose(build.convert(rhs, accumulate), (*rb, *right, *rc))
    a = build.broadcast_to(a, shape, (*shared, *range(n, n + m), *folded))
    b = build.broadcast_to(b, shape, (*shared, *range(n + m, n + m + k), *folded))
    return build.convert(build.sum_(rows.mul(a, b), folded), result)


def _dot_batch(
    operands: Sequence[Value],
    batched: Flags,
    _size: int,
    *,
    batch: Pair,
    contract: Pair,
    **kept: Any,
) -> Value:
    """One product: the examples are a batch dimension, or a free one of the only batched side."""
    sides = []
    for i, (x, flag) in enumerate(zip(operands, batched, strict=True)):
        b, c = batch[i], contract[i]
        sides.append((x, shifted(b), shifted(c)) if flag else (x, b, c))
    if all(batched):
        return _dot([(x, (0, *b), c) for x, b, c in sides], **kept)
    at = len(batch[0])
    if batched[1]:
        left, right = (len(free_dims(len(x.shape), b, c)) for x, b, c in sides)
        if right == 1:  # the examples alone: they come first when the sides change places
            sides.reverse()
        else:
            at += left
    return to_front(_dot(sides, **kept), at)


def _dot(sides: Sequence[tuple[Value, Dims, Dims]], **kept: Any) -> Value:
    (lhs, lb, lc), (rhs, rb, rc) = sides
    return rows.dot_general(lhs, rhs, batch=(lb, rb), contract=(lc, rc), **kept)


def _cell(
    lhs: str, rhs: str, result: str | tuple[str, ...], kinds: tuple[str, ...], **attrs: Any
) -> Special:
    dims = (("batch", ((), ())), ("contract", ((0,), (0,))))
    return Special((lhs, rhs), result, kinds, (*dims, *attrs.items()))


def _factor_dims(
    position: int, x: Value, y: Value, *, batch: Pair, contract: Pair, **_: Any
) -> dict[int, int]:
    ranks = (len(x.shape), len(y.shape))
    free = [free_dims(*sides) for sides in zip(ranks, batch, contract, strict=True)]
    first = len(batch[0]) + (len(free[0]) if position else 0)
    return {**dict(enumerate(batch[position])), **dict(enumerate(free[position], first))}


dot_general = define(
    name="dot_general",
    arity=2,
    kind=Kind.CONTRACTION,
    doc=(
        "Sums of products over the contracted dimensions; result dimensions are batch, free "
        "ones of lhs, free ones of rhs. Operands are converted to the accumulate dtype, "
        "multiplied and summed there in any order, and the sum converted to the result dtype "
        "once. Integers wrap in the accumulate dtype. 0 · inf and inf − inf give NaN; an empty "
        "contraction gives 0. " + TF32
    ),
    attrs=(
        Attr("batch", "dims", "(dims of lhs, dims of rhs) that run together"),
        Attr("contract", "dims", "(dims of lhs, dims of rhs) that are summed over"),
        Attr(
            "accumulate",
            "dtype",
            "dtype of products and sums; if left out, f32 for floats below, else the result's",
        ),
        Attr("result", "dtype", "dtype of the result; if left out the operands', f32 for f8"),
        precision_column("tf32 is for f32 alone"),
    ),
    infer=_infer_dot,
    fill=_dot_fill,
    factor_dims=_factor_dims,
    reference=_dot_reference,
    vjp=_dot_vjp,
    batch=_dot_batch,
    dtypes=NUMERIC + STORAGE,
    special=(
        _cell("[]", "[]", "0.0", ("float",)),
        _cell("[-0.0, -0.0]", "[1, 1]", ("0.0", "-0.0"), ("float",)),
        _cell("[-0.0, 0.0]", "[1, 1]", "0.0", ("float",)),
        _cell("[0.0, 1]", "[inf, 1]", "nan", ("float",)),
        _cell("[inf, inf]", "[1, -1]", "nan", ("float",)),
        _cell("[nan, 0.0]", "[0.0, 0.0]", "nan", ("float",)),
        _cell("[MAX, -MAX]", "[1, 1]", "0.0", ("float",)),
        _cell("[INT_MIN, 1]", "[1, -1]", "INT_MAX", ("int",)),
        _cell("[2047, 2]", "[1025, 1]", "2098177", ("f32",), precision="tf32"),
        _cell("[0.0, 1]", "[inf, 1]", "nan", ("f32",), precision="tf32"),
    ),
    traits=frozenset({Trait.EXPENSIVE}),
    accuracy=SUM,
    decompose=_dot_decompose,
)

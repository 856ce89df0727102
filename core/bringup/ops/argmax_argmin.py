"""Composite rows about positions: argmax, argmin, one_hot."""

from __future__ import annotations

from typing import Any

import numpy as np

from bringup.dtypes import INTS, NUMERIC, DType, i32, i64
from bringup.errors import OpTypeError
from bringup.graph import Value
from bringup.ops import build
from bringup.ops._checks import dim_of, dtype_attr, is_int, one_of
from bringup.ops._numeric import HALVES, Array
from bringup.ops.batching import shifting
from bringup.ops.build import rows
from bringup.ops.special_values import Special
from bringup.ops.table import Attr, Attrs, Infer, Kind, OpDef, Types, define
from bringup.types import TensorType


def _infer_position(name: str) -> Infer:
    def infer(operands: Types, attrs: Attrs) -> TensorType:
        (operand,) = operands
        one_of(name, operand, NUMERIC)
        dim = dim_of(name, attrs, operand.rank, operand)
        dtype = dtype_attr(name, attrs, "dtype")
        rest = operand.shape[:dim] + operand.shape[dim + 1 :]
        result = TensorType(rest, dtype)
        one_of(name, result, INTS, "the result")
        if operand.shape[dim] == 0:
            raise OpTypeError(
                f"{name}: dim {dim} of {operand} is empty: no position exists",
                fix="give the dimension at least one element",
            )
        _holds(name, operand, operand.shape[dim], dtype)
        return result

    return infer


def _holds(name: str, operand: TensorType, count: int, dtype: DType) -> None:
    if count - 1 > np.iinfo(dtype.numpy).max:
        raise OpTypeError(
            f"{name}: {dtype} does not hold positions up to {count - 1}: {operand}",
            fix="use i64",
        )


def _position_reference(name: str) -> Any:
    pick = {"argmax": np.argmax, "argmin": np.argmin}[name]

    def reference(x: Array, *, dim: int, dtype: DType) -> Array:
        x = np.asarray(x)
        wide = x.astype(np.float32) if x.dtype in HALVES else x
        return np.asarray(pick(wide, axis=dim)).astype(dtype.numpy)

    return reference


def _position_decompose(kind: str) -> Any:
    def decompose(x: Value, *, dim: int, dtype: DType) -> Value:
        best = build.kept(build.reduce(kind, x, (dim,)), (dim,), x.shape)
        hits = build.compare("eq", x, best)
        if x.dtype.is_float:
            hits = rows.or_(hits, build.is_nan(x))
        positions = x.type.with_dtype(dtype)
        last = build.splat(np.iinfo(dtype.numpy).max, positions)
        return build.reduce(
            "min", rows.select(hits, rows.iota(type=positions, dim=dim), last), (dim,)
        )

    return decompose


def _positions(name: str, kind: str, cells: tuple[tuple[str, str], ...]) -> OpDef:
    attrs = (("dim", 0), ("dtype", i64))
    return define(
        name=name,
        arity=1,
        kind=Kind.COMPOSITE,
        doc=(
            f"The position of the first {kind}imum along a dimension, which disappears; of the "
            "first NaN if there is one. −0 and +0 are equal. An empty dimension is an error."
        ),
        attrs=(
            Attr("dim", "int", "the dimension searched"),
            Attr("dtype", "dtype", "integer dtype of the positions", default=i64),
        ),
        infer=_infer_position(name),
        reference=_position_reference(name),
        vjp=build.no_gradient,
        dtypes=NUMERIC,
        special=tuple(Special((x,), at, attrs=attrs) for x, at in cells),
        decompose=_position_decompose(kind),
        batch=shifting(name, "dim"),
    )


argmax = _positions(
    "argmax",
    "max",
    (
        ("[1, 3, 3]", "1"),
        ("[-0.0, 0.0]", "0"),
        ("[1, nan, inf, nan]", "1"),
        ("[-inf, -inf]", "0"),
    ),
)
argmin = _positions(
    "argmin",
    "min",
    (
        ("[3, 1, 1]", "1"),
        ("[0.0, -0.0]", "0"),
        ("[1, nan, -inf, nan]", "1"),
        ("[inf, inf]", "0"),
    ),
)


def _infer_one_hot(operands: Types, attrs: Attrs) -> TensorType:
    (operand,) = operands
    one_of("one_hot", operand, INTS)
    size = attrs["size"]
    if not is_int(size) or size < 0:
        raise OpTypeError(
            f"one_hot: size {size!r} for {operand} is no count", fix="pass an int >= 0"
        )
    _holds("one_hot", operand, size, _working(operand.dtype))
    return TensorType((*operand.shape, size), dtype_attr("one_hot", attrs, "dtype"))


def _working(dtype: DType) -> DType:
    """Where every index and every position can be compared."""
    return dtype if dtype.bits >= 32 else i32


def _one_hot_reference(indices: Array, *, size: int, dtype: DType) -> Array:
    indices = np.asarray(indices)
    inside = (indices >= 0) & (indices < size)
    positions = np.where(inside, indices, 0).astype(np.int64)
    hot: Array = (positions[..., None] == np.arange(size)) & inside[..., None]
    return hot.astype(dtype.numpy)


def _one_hot_decompose(indices: Value, *, size: int, dtype: DType) -> Value:
    shape = (*indices.shape, size)
    working = build.convert(indices, _working(indices.dtype))
    spread = build.broadcast_to(working, shape, range(len(shape) - 1))
    positions = rows.iota(type=spread.type, dim=len(shape) - 1)
    return build.convert(build.compare("eq", spread, positions), dtype)


def _one_hot_cell(operand: str, result: str, *kinds: str) -> Special:
    return Special((operand,), result, kinds, (("size", 3), ("dtype", i32)))


one_hot = define(
    name="one_hot",
    arity=1,
    kind=Kind.COMPOSITE,
    doc=(
        "1 where the position along a new last dimension is the index, else 0; all 0 for an "
        "index outside it."
    ),
    attrs=(
        Attr("size", "int", "size of the new dimension"),
        Attr("dtype", "dtype", "dtype of the result"),
    ),
    infer=_infer_one_hot,
    reference=_one_hot_reference,
    vjp=build.no_gradient,
    dtypes=INTS,
    special=(
        _one_hot_cell("2", "[0, 0, 1]", "int", "uint"),
        _one_hot_cell("0", "[1, 0, 0]", "int", "uint"),
        _one_hot_cell("3", "[0, 0, 0]", "int", "uint"),
        _one_hot_cell("-1", "[0, 0, 0]", "int"),
        _one_hot_cell("INT_MAX", "[0, 0, 0]", "int", "uint"),
    ),
    decompose=_one_hot_decompose,
    batch=shifting("one_hot"),
)

"""Elementwise rows that compare, choose and convert."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bringup.dtypes import (
    ALL,
    STORED,
    DType,
    bf16,
    bool_,
    f8e4m3fn,
    f8e5m2,
    f16,
    f32,
    f64,
    i8,
    i32,
    i64,
    u8,
    u32,
    u64,
)
from bringup.errors import OpTypeError
from bringup.graph import Value
from bringup.ops import build
from bringup.ops._checks import dtype_attr, listed, one_of, same_types
from bringup.ops._elementwise import elementwise
from bringup.ops._numeric import HALVES, Array, is_float, round_to, saturate
from bringup.ops.build import rows
from bringup.ops.special_values import Special, cells
from bringup.ops.table import Attr, Attrs, Cotangents, Trait, Types
from bringup.types import TensorType

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _infer_compare(operands: Types, _attrs: Attrs) -> TensorType:
    return same_types("compare", operands).with_dtype(bool_)


def _compare_reference(x: Array, y: Array, *, direction: str) -> Array:
    if np.asarray(x).dtype in HALVES:
        x, y = x.astype(np.float32), y.astype(np.float32)
    return np.asarray(_COMPARISONS[direction](x, y))


def _compare_decompose(x: Value, y: Value, *, direction: str) -> Value:
    if direction == "ne":
        return build.not_(build.compare("eq", x, y))
    if direction == "gt":
        return build.compare("lt", y, x)
    less = build.compare("lt", x, y) if direction == "le" else build.compare("lt", y, x)
    return rows.or_(less, build.compare("eq", x, y))


# Operands, the relations that hold, dtype kinds.
_PAIRS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("nan", "nan", "ne", ("float",)),
    ("nan", "1", "ne", ("float",)),
    ("-inf", "nan", "ne", ("float",)),
    ("0.0", "-0.0", "eq le ge", ("float",)),
    ("-0.0", "0.0", "eq le ge", ("float",)),
    ("inf", "inf", "eq le ge", ("float",)),
    ("SUBNORMAL", "0.0", "ne gt ge", ("float",)),
    ("INT_MIN", "INT_MAX", "ne lt le", ("int", "uint")),
    ("-1", "0", "ne lt le", ("int",)),
    ("false", "true", "ne lt le", ("bool",)),
)
_COMPARE_CELLS = tuple(
    Special((x, y), str(d in holds.split()).lower(), kinds, (("direction", d),))
    for x, y, holds, kinds in _PAIRS
    for d in _COMPARISONS
)


compare = elementwise(
    "compare",
    arity=2,
    doc=(
        "Whether the relation holds, as bool. NaN is unequal to everything and makes every "
        "other comparison false; −0 equals +0; false < true."
    ),
    attrs=(Attr("direction", "str", "the relation", tuple(_COMPARISONS)),),
    infer=_infer_compare,
    reference=_compare_reference,
    dtypes=ALL,
    special=_COMPARE_CELLS,
    decompose=_compare_decompose,
    variant="direction",
    tier=0,
    tier0_variants=("eq", "lt"),
)


def _infer_select(operands: Types, _attrs: Attrs) -> TensorType:
    predicate, *branches = operands
    chosen = same_types("select", tuple(branches), start=1)
    if predicate.shape != chosen.shape:
        raise OpTypeError(
            f"select: shapes differ: {listed(operands)}",
            fix=f"broadcast the predicate and both branches to one shape, such as {chosen.shape}",
        )
    return chosen


def _select_reference(predicate: Array, x: Array, y: Array) -> Array:
    return np.where(predicate, x, y)


def _select_vjp(ct: Value, _result: Value, predicate: Value, _x: Value, _y: Value) -> Cotangents:
    nothing = build.zeros_like(ct)
    return (None, rows.select(predicate, ct, nothing), rows.select(predicate, nothing, ct))


select = elementwise(
    "select",
    arity=3,
    doc=(
        "x where the bool operand is true, else y, bit for bit. "
        "What the other branch holds, NaN included, never shows."
    ),
    infer=_infer_select,
    reference=_select_reference,
    vjp=_select_vjp,
    linear=((1, 2),),
    dtypes=(bool_,),
    special=cells(
        "true, true, false -> true (bool); false, true, false -> false (bool)",
    ),
    tier=0,
)


def _infer_convert(operands: Types, attrs: Attrs) -> TensorType:
    result = operands[0].with_dtype(dtype_attr("convert", attrs, "dtype"))
    one_of("convert", result, STORED, "the result")
    return result


def _convert_reference(x: Array, *, dtype: DType) -> Array:
    x, target = np.asarray(x), dtype.numpy
    if dtype is bool_:
        return np.asarray(x != 0)
    if dtype.is_float:
        return round_to(x, target)
    if is_float(x.dtype):
        return saturate(x, target)
    return x.astype(target)


def _convert_vjp(ct: Value, _result: Value, x: Value, *, dtype: DType) -> Cotangents:
    return (build.convert(ct, x.dtype) if x.dtype.is_float else None,)


def _cast(operand: str, dtype: DType, result: str, *kinds: str) -> Special:
    return Special((operand,), result, kinds or ("float",), (("dtype", dtype),))


_CASTS = (
    *(_cast("nan", d, "0") for d in (i8, i32, i64, u8, u64)),
    *(_cast("inf", d, "INT_MAX") for d in (i8, i32, i64, u8, u64)),
    *(_cast("-inf", d, "INT_MIN") for d in (i8, i32, i64, u8, u64)),
    _cast("2.9", i32, "2"),
    _cast("-2.9", i32, "-2"),
    _cast("3.5", u8, "3"),
    _cast("-0.5", u8, "0"),
    _cast("-1", u32, "0"),
    _cast("-0.0", i32, "0"),
    _cast("300", i8, "127"),
    _cast("-300", i8, "-128"),
    _cast("300", u8, "255"),
    _cast("1e10", i32, "INT_MAX", "f32", "f64", "bf16"),
    _cast("1e30", i64, "INT_MAX", "f32", "f64", "bf16"),
    _cast("-1e30", i64, "INT_MIN", "f32", "f64", "bf16"),
    _cast("nan", bool_, "true"),
    _cast("0.0", bool_, "false"),
    _cast("-0.0", bool_, "false"),
    _cast("SUBNORMAL", bool_, "true"),
    _cast("0.5", bool_, "true"),
    _cast("-2", bool_, "true", "int"),
    _cast("0", bool_, "false", "int", "uint"),
    _cast("true", i32, "1", "bool"),
    _cast("true", f32, "1", "bool"),
    _cast("false", f16, "0.0", "bool"),
    _cast("-1", u8, "255", "int"),
    _cast("-1", u64, "INT_MAX", "int"),
    _cast("INT_MIN", u8, "128", "i8"),
    _cast("INT_MIN", i64, "-128", "i8"),
    _cast("INT_MAX", i8, "-1", "i16", "i32", "i64", "u8", "u64"),
    _cast("INT_MIN", i8, "0", "i32", "i64"),
    _cast("nan", f16, "nan"),
    _cast("-0.0", bf16, "-0.0"),
    _cast("-inf", f32, "-inf"),
    _cast("MAX", f16, "inf", "f32", "f64", "bf16"),
    _cast("MAX", f32, "inf", "f64"),
    _cast("SUBNORMAL", f32, "0.0", "f64"),
    _cast("65519", f16, "65504", "f32", "f64"),
    _cast("65520", f16, "inf", "f32", "f64", "i32"),
    _cast("1.00048828125091", f16, "1.0009765625", "f64"),
    _cast("1.00390625000091", bf16, "1.0078125", "f64"),
    _cast("1077936129", bf16, "1082130432", "i32", "i64", "u64"),
    _cast("INT_MAX", f32, "18446744073709551616", "u64"),
    _cast("INT_MAX", f64, "18446744073709551616", "u64"),
    _cast("464", f8e4m3fn, "448", "f16", "f32", "f64", "i32"),
    _cast("465", f8e4m3fn, "nan", "f32", "f64", "i32"),
    _cast("-inf", f8e4m3fn, "nan"),
    _cast("nan", f8e4m3fn, "nan"),
    _cast("-0.0", f8e4m3fn, "-0.0"),
    _cast("0.0009765625", f8e4m3fn, "0.0", "f16", "f32", "f64"),
    _cast("0.00292968750001", f8e4m3fn, "0.00390625", "f64"),
    _cast("0.0029296875", f8e4m3fn, "0.00390625", "f32", "f64"),
    _cast("61439", f8e5m2, "57344", "f32", "f64", "i32"),
    _cast("61440", f8e5m2, "inf", "f16", "f32", "f64", "i32"),
    _cast("-inf", f8e5m2, "-inf"),
    _cast("nan", f8e5m2, "nan"),
    _cast("1.12500000000001", f8e5m2, "1.25", "f64"),
    _cast("inf", f32, "inf", "f8e5m2"),
    _cast("nan", i8, "0", "f8e4m3fn", "f8e5m2"),
    _cast("MAX", i8, "127", "f8e4m3fn"),
    _cast("SUBNORMAL", f16, "0.001953125", "f8e4m3fn"),
    _cast("-SUBNORMAL", f8e4m3fn, "-0.0", "f8e5m2"),
    _cast("MAX", f8e4m3fn, "nan", "f8e5m2"),
    _cast("0.0", bool_, "false", "f8e4m3fn", "f8e5m2"),
)

convert = elementwise(
    "convert",
    doc=(
        "The value in another dtype. To a float: rounded once, to nearest even, with infinity "
        "beyond the range, or NaN in f8e4m3fn, which has no infinity. Float to integer: "
        "truncated towards zero, then saturated; NaN gives 0. Integer to integer wraps: the "
        "low bits are kept, and a signed source is extended by its sign. To bool: whether "
        "x ≠ 0, so true for NaN. From bool: 0 or 1."
    ),
    attrs=(Attr("dtype", "dtype", "dtype of the result"),),
    infer=_infer_convert,
    reference=_convert_reference,
    vjp=_convert_vjp,
    traits=frozenset({Trait.ADAPTS}),
    dtypes=STORED,
    special=_CASTS,
    tier=0,
)

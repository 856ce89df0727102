"""Elementwise rows on bits: and, or, xor, shl, shr, bitcast."""

from __future__ import annotations

import numpy as np

from bringup.dtypes import (
    INTS,
    NUMERIC,
    STORAGE,
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
    u16,
    u32,
)
from bringup.errors import OpTypeError
from bringup.ops._checks import dtype_attr, one_of
from bringup.ops._elementwise import elementwise
from bringup.ops._numeric import Array, unsigned
from bringup.ops.special_values import Special, cells
from bringup.ops.table import Attr, Attrs, Trait, Types
from bringup.types import TensorType

_INTEGERS = ("int", "uint")
_LATTICE = frozenset({Trait.COMMUTATIVE, Trait.ASSOCIATIVE, Trait.IDEMPOTENT})

and_ = elementwise(
    "and",
    arity=2,
    doc="Bitwise and; on booleans the logical one.",
    reference=np.bitwise_and,
    dtypes=(bool_, *INTS),
    special=cells(
        "true, false -> false (bool); true, true -> true (bool); "
        "INT_MIN, INT_MAX -> 0 (int uint); -1, INT_MIN -> INT_MIN (int)",
    ),
    traits=_LATTICE,
    tier=0,
)

or_ = elementwise(
    "or",
    arity=2,
    doc="Bitwise or; on booleans the logical one.",
    reference=np.bitwise_or,
    dtypes=(bool_, *INTS),
    special=cells(
        "false, true -> true (bool); false, false -> false (bool); "
        "INT_MIN, INT_MAX -> -1 (int); 0, INT_MAX -> INT_MAX (int uint)",
    ),
    traits=_LATTICE,
    tier=0,
)

xor = elementwise(
    "xor",
    arity=2,
    doc="Bitwise exclusive or; on booleans, whether they differ.",
    reference=np.bitwise_xor,
    dtypes=(bool_, *INTS),
    special=cells(
        "true, true -> false (bool); true, false -> true (bool); "
        "INT_MIN, -1 -> INT_MAX (int); INT_MAX, INT_MAX -> 0 (int uint)",
    ),
    traits=frozenset({Trait.COMMUTATIVE, Trait.ASSOCIATIVE}),
    tier=0,
)


def _amounts(y: Array) -> tuple[Array, Array]:
    """Shift amounts made safe for numpy, and where they were too wide (negative ones are)."""
    amounts = unsigned(y)
    over = amounts >= 8 * amounts.dtype.itemsize
    return np.where(over, 0, amounts).astype(amounts.dtype), over


def _shl_reference(x: Array, y: Array) -> Array:
    amounts, over = _amounts(y)
    shifted = np.left_shift(unsigned(x), amounts)
    return np.where(over, 0, shifted).astype(shifted.dtype).view(np.asarray(x).dtype)


shl = elementwise(
    "shl",
    arity=2,
    doc=(
        "x shifted left by y bits, zeros coming in. "
        "y is read as unsigned; y ≥ width, so any negative y, gives 0."
    ),
    reference=_shl_reference,
    dtypes=INTS,
    special=cells(
        "1, BITS -> 0 (int uint); -1, INT_MAX -> 0 (int); -1, -1 -> 0 (int); "
        "1, INT_MIN -> 0 (int); INT_MAX, 0 -> INT_MAX (int uint); INT_MIN, 1 -> 0 (int uint); "
        "INT_MAX, 1 -> -2 (int)",
    ),
    tier=0,
)


def _shr_reference(x: Array, y: Array, *, kind: str) -> Array:
    dtype = np.asarray(x).dtype
    amounts, over = _amounts(y)
    bits = unsigned(x)
    if kind == "logical":
        return np.where(over, 0, np.right_shift(bits, amounts)).astype(bits.dtype).view(dtype)
    numbers = bits.view(np.dtype(f"i{dtype.itemsize}"))
    widest = numbers.dtype.type(8 * dtype.itemsize - 1)
    shift = np.where(over, widest, amounts.astype(numbers.dtype))
    return np.asarray(np.right_shift(numbers, shift)).view(dtype)


shr = elementwise(
    "shr",
    arity=2,
    doc=(
        "x shifted right by y bits: logical brings in zeros, arithmetic copies of the top bit, "
        "whether or not the dtype is signed. y is read as unsigned; y ≥ width, so any negative "
        "y, gives 0 or, arithmetic, the top bit everywhere."
    ),
    attrs=(Attr("kind", "str", "what comes in from the left", ("logical", "arithmetic")),),
    reference=_shr_reference,
    dtypes=INTS,
    special=(
        *cells(
            "-1, BITS -> 0 (int); INT_MAX, BITS -> 0 (uint); -1, 1 -> INT_MAX (int); "
            "INT_MIN, -1 -> 0 (int); INT_MIN, 0 -> INT_MIN (int uint)",
            kind="logical",
        ),
        *cells(
            "-1, BITS -> -1 (int); INT_MIN, BITS -> -1 (int); INT_MAX, BITS -> 0 (int); "
            "INT_MAX, BITS -> INT_MAX (uint); INT_MIN, -1 -> -1 (int); -1, 1 -> -1 (int); "
            "1, 1 -> 0 (int uint)",
            kind="arithmetic",
        ),
    ),
    variant="kind",
    tier=0,
)


def _infer_bitcast(operands: Types, attrs: Attrs) -> TensorType:
    (operand,) = operands
    dtype = dtype_attr("bitcast", attrs, "dtype")
    result = operand.with_dtype(dtype)
    one_of("bitcast", result, NUMERIC + STORAGE, "the result")
    if dtype.bits != operand.dtype.bits:
        raise OpTypeError(
            f"bitcast: widths differ: {operand} to {result}",
            fix=f"use a dtype of {operand.dtype.bits} bits, or convert",
        )
    return result


def _bitcast_reference(x: Array, *, dtype: DType) -> Array:
    return np.asarray(x).view(dtype.numpy)


def _bitcast_cell(operand: str, source: DType, result: str, dtype: DType) -> Special:
    return Special((operand,), result, (source.name,), (("dtype", dtype),))


bitcast = elementwise(
    "bitcast",
    doc=(
        "The same bits as another dtype of the same width, NaN payloads included. "
        "Not for bool, whose other bit patterns mean nothing."
    ),
    attrs=(Attr("dtype", "dtype", "dtype of the result"),),
    infer=_infer_bitcast,
    reference=_bitcast_reference,
    dtypes=NUMERIC + STORAGE,
    special=(
        _bitcast_cell("-0.0", f32, "INT_MIN", i32),
        _bitcast_cell("inf", f32, "2139095040", u32),
        _bitcast_cell("SUBNORMAL", f32, "1", u32),
        _bitcast_cell("+nan", f32, "2143289344", u32),
        _bitcast_cell("-1", i32, "INT_MAX", u32),
        _bitcast_cell("INT_MIN", i8, "128", u8),
        _bitcast_cell("1", u16, "SUBNORMAL", f16),
        _bitcast_cell("1", f16, "0.0078125", bf16),
        _bitcast_cell("-inf", bf16, "65408", u16),
        _bitcast_cell("INT_MIN", i64, "-0.0", f64),
        _bitcast_cell("nan", f8e4m3fn, "127", u8),
        _bitcast_cell("MAX", f8e4m3fn, "126", i8),
        _bitcast_cell("-inf", f8e5m2, "252", u8),
    ),
    tier=0,
)

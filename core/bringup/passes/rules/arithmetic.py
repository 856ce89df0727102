"""Rules on numbers: identities, signs, powers, conversions."""

from __future__ import annotations

import math

import numpy as np

from bringup.dtypes import DType
from bringup.graph import Value
from bringup.ops.build import convert, like, ones_like, rows, zeros_like
from bringup.passes.rewrite import Rule, is_splat, made_by, rule


@rule("add")
def add_nothing(x: Value, y: Value) -> Value | None:
    """add(x, -0.0) -> x
    add(x, 0) -> x where x: i32[4]
    """
    return x if is_splat(y, -0.0) else None


@rule("sub")
def sub_nothing(x: Value, y: Value) -> Value | None:
    """sub(x, 0.0) -> x
    sub(x, 0) -> x where x: i32[4]
    """
    return x if is_splat(y, 0.0) else None


@rule("sub")
def sub_itself(x: Value, y: Value) -> Value | None:
    """sub(x, x) -> 0 where x: i32[4]"""
    return zeros_like(x) if x is y and x.dtype.is_integer else None


@rule("add")
def add_negated(x: Value, y: Value) -> Value | None:
    """add(x, neg(y)) -> sub(x, y)
    add(neg(x), y) -> sub(y, x) where x: i32[4], y: i32[4]
    """
    for kept, other in ((x, y), (y, x)):
        made = made_by(other, "neg")
        if made is not None:
            return rows.sub(kept, made.operands[0])
    return None


@rule("sub")
def sub_negated(x: Value, y: Value) -> Value | None:
    """sub(x, neg(y)) -> add(x, y)"""
    made = made_by(y, "neg")
    return rows.add(x, made.operands[0]) if made is not None else None


@rule("neg")
def neg_difference(x: Value) -> Value | None:
    """neg(sub(x, y)) -> sub(y, x) where x: i32[4], y: i32[4]

    Not on floats: x - x is +0 both ways.
    """
    made = made_by(x, "sub")
    if made is None or x.dtype.is_float:
        return None
    return rows.sub(made.operands[1], made.operands[0])


@rule("mul")
def mul_one(x: Value, y: Value) -> Value | None:
    """mul(x, 1) -> x"""
    return x if is_splat(y, 1) else None


@rule("mul")
def mul_zero(x: Value, y: Value) -> Value | None:
    """mul(x, 0) -> 0 where x: i32[4]"""
    return y if x.dtype.is_integer and is_splat(y, 0) else None


@rule("mul")
def mul_minus_one(x: Value, y: Value) -> Value | None:
    """mul(x, -1) -> neg(x)"""
    return rows.neg(x) if x.dtype.is_signed and is_splat(y, -1) else None


@rule("mul")
def mul_negated(x: Value, y: Value) -> Value | None:
    """mul(neg(x), neg(y)) -> mul(x, y)
    mul(neg(x), 3) -> mul(x, -3)
    """
    first, second = made_by(x, "neg"), made_by(y, "neg")
    if first is not None and second is not None:
        return rows.mul(first.operands[0], second.operands[0])
    if first is not None and y.literal is not None:
        return rows.mul(first.operands[0], rows.neg(y))
    return None


@rule("div")
def div_one(x: Value, y: Value) -> Value | None:
    """div(x, 1) -> x
    div(x, 1) -> x where x: u8[4]
    """
    return x if is_splat(y, 1) else None


@rule("div")
def div_power_of_two(x: Value, y: Value) -> Value | None:
    """div(x, 4) -> mul(x, 0.25)

    Exact, as both are the correctly rounded value of the same real number.
    """
    literal = y.literal
    if literal is None or not literal.is_splat or not x.dtype.is_float:
        return None
    divisor = float(literal.scalar)
    if math.frexp(abs(divisor))[0] != 0.5:
        return None
    least, most = _NORMAL_POWERS[x.dtype.name]
    if not 2.0**least <= 1.0 / abs(divisor) <= 2.0**most:
        return None
    return rows.mul(x, like(y, 1.0 / divisor))


_NORMAL_POWERS = {"f16": (-14, 15), "bf16": (-126, 127), "f32": (-126, 127), "f64": (-1022, 1023)}


def _extreme(dtype: DType, sign: int) -> int | float:
    if dtype.is_float:
        return sign * math.inf
    info = np.iinfo(dtype.numpy)
    return int(info.max if sign > 0 else info.min)


@rule("max")
def max_lowest(x: Value, y: Value) -> Value | None:
    """max(x, -inf) -> x
    max(x, 0) -> x where x: u8[4]
    """
    return x if is_splat(y, _extreme(x.dtype, -1)) else None


@rule("min")
def min_highest(x: Value, y: Value) -> Value | None:
    """min(x, inf) -> x
    min(x, 255) -> x where x: u8[4]
    """
    return x if is_splat(y, _extreme(x.dtype, +1)) else None


@rule("pow")
def pow_small(x: Value, y: Value) -> Value | None:
    """pow(x, 0) -> 1
    pow(x, 1) -> x
    pow(x, 2) -> mul(x, x)
    pow(x, -1) -> div(1, x)

    The last two are correctly rounded where pow may be off by the ULP its row allows; they agree on
    every special value.
    """
    if is_splat(y, 0):
        return ones_like(x)
    if is_splat(y, 1):
        return x
    if is_splat(y, 2):
        return rows.mul(x, x)
    if x.dtype.is_float and is_splat(y, -1):
        return rows.div(ones_like(x), x)
    return None


@rule("floor")
def floor_integer(x: Value) -> Value | None:
    """floor(convert(x, dtype=f32)) -> convert(x, dtype=f32) where x: i32[4]"""
    made = made_by(x, "convert")
    return x if made is not None and not made.operands[0].dtype.is_float else None


@rule("abs")
def abs_unsigned(x: Value) -> Value | None:
    """abs(x) -> x where x: u8[4]"""
    return None if x.dtype.is_signed else x


@rule("convert")
def convert_nothing(x: Value, *, dtype: DType) -> Value | None:
    """convert(x, dtype=f32) -> x"""
    return x if x.dtype is dtype else None


@rule("convert")
def convert_twice(x: Value, *, dtype: DType) -> Value | None:
    """convert(convert(x, dtype=f32), dtype=f64) -> convert(x, dtype=f64) where x: f16[4]
    convert(convert(x, dtype=f32), dtype=i16) -> x where x: i16[4]
    convert(convert(x, dtype=i64), dtype=u8) -> convert(x, dtype=u8) where x: i8[4]
    convert(convert(x, dtype=i32), dtype=i8) -> convert(x, dtype=i8) where x: i64[4]
    """
    made = made_by(x, "convert")
    if made is None or not _may_skip(made.operands[0].dtype, x.dtype, dtype):
        return None
    return convert(made.operands[0], dtype)


def _may_skip(source: DType, between: DType, target: DType) -> bool:
    """Whether conversion through another dtype gives what direct conversion gives."""
    if source.is_integer and between.is_integer and target.is_integer:
        if target.bits <= between.bits:
            return True  # both ways keep the low bits
    elif source.is_integer and target.is_integer and not holds(target, source):
        return False  # floats saturate where integers wrap
    return holds(between, source)


@rule("bitcast")
def bitcast_twice(x: Value, *, dtype: DType) -> Value | None:
    """bitcast(x, dtype=f32) -> x
    bitcast(bitcast(x, dtype=i32), dtype=f32) -> x
    bitcast(bitcast(x, dtype=i32), dtype=u32) -> bitcast(x, dtype=u32)
    """
    if x.dtype is dtype:
        return x
    made = made_by(x, "bitcast")
    if made is None:
        return None
    source = made.operands[0]
    return source if source.dtype is dtype else rows.bitcast(source, dtype=dtype)


# Significant bits of the floats; the exponents of bf16, f32 and f64 hold those before them.
_DIGITS = {"f8e4m3fn": 4, "f8e5m2": 3, "f16": 11, "bf16": 8, "f32": 24, "f64": 53}
_FLOATS_WITHIN = {
    "f8e4m3fn": ("f8e4m3fn", "f16", "bf16", "f32", "f64"),
    "f8e5m2": ("f8e5m2", "f16", "bf16", "f32", "f64"),
    "f16": ("f16", "f32", "f64"),
    "bf16": ("bf16", "f32", "f64"),
    "f32": ("f32", "f64"),
    "f64": ("f64",),
}


def holds(wide: DType, narrow: DType) -> bool:
    """Whether every value of `narrow` is a value of `wide`.

    >>> from bringup.dtypes import f32, f64, i32, u8
    >>> holds(f64, i32), holds(f32, i32), holds(i32, u8)
    (True, False, True)
    """
    if narrow.kind == "bool":
        return True
    if narrow.is_float:
        return wide.name in _FLOATS_WITHIN[narrow.name]
    digits = narrow.bits - narrow.is_signed
    if wide.is_float:
        return digits <= _DIGITS[wide.name]
    if wide.kind == "bool" or (narrow.is_signed and not wide.is_signed):
        return False
    return digits <= wide.bits - wide.is_signed


RULES: tuple[Rule, ...] = (
    add_nothing,
    sub_nothing,
    sub_itself,
    add_negated,
    sub_negated,
    neg_difference,
    mul_one,
    mul_zero,
    mul_minus_one,
    mul_negated,
    div_one,
    div_power_of_two,
    max_lowest,
    min_highest,
    pow_small,
    floor_integer,
    abs_unsigned,
    convert_nothing,
    convert_twice,
    bitcast_twice,
)

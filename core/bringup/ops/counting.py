"""Composite rows that count bits: popcount and clz."""

from __future__ import annotations

import numpy as np

from bringup.dtypes import INTS
from bringup.graph import Value
from bringup.ops import build
from bringup.ops._elementwise import composite
from bringup.ops._numeric import Array, unsigned
from bringup.ops.build import like, rows
from bringup.ops.special_values import cells


def _repeated(pattern: int, bits: int) -> int:
    """A byte in every byte of a word."""
    return int.from_bytes(bytes([pattern]) * (bits // 8), "little")


def _shifted(x: Value, by: int) -> Value:
    return rows.shr(x, like(x, by), kind="logical")


def _popcount_of(x: Value) -> Value:
    """The bits set of an unsigned value: in pairs, nibbles and bytes, then of all bytes at once."""
    bits = x.dtype.bits
    pairs, nibbles, low = (like(x, _repeated(p, bits)) for p in (0x55, 0x33, 0x0F))
    x = rows.sub(x, rows.and_(_shifted(x, 1), pairs))
    x = rows.add(rows.and_(x, nibbles), rows.and_(_shifted(x, 2), nibbles))
    x = rows.and_(rows.add(x, _shifted(x, 4)), low)
    return _shifted(rows.mul(x, like(x, _repeated(1, bits))), bits - 8)


def _popcount_decompose(x: Value) -> Value:
    return build.bitcast(_popcount_of(build.bitcast(x, build.unsigned(x.dtype))), x.dtype)


def _popcount_reference(x: Array) -> Array:
    return np.asarray(np.bitwise_count(unsigned(x)).astype(x.dtype))


popcount = composite(
    "popcount",
    doc="How many bits are set, in the operand's dtype; negative integers as their bits.",
    dtypes=INTS,
    reference=_popcount_reference,
    vjp=build.no_gradient,
    special=cells(
        "0 -> 0 (int uint); 7 -> 3 (int uint); INT_MIN -> 1 (int); -1 -> 8 (i8); -1 -> 64 (i64); "
        "INT_MAX -> 31 (i32); INT_MAX -> 16 (u16)",
    ),
    decompose=_popcount_decompose,
)


def _clz_decompose(x: Value) -> Value:
    """The zeros of a word in which every bit below the highest one is set."""
    word = build.bitcast(x, build.unsigned(x.dtype))
    step = 1
    while step < x.dtype.bits:
        word = rows.or_(word, _shifted(word, step))
        step *= 2
    return build.bitcast(_popcount_of(build.not_(word)), x.dtype)


def _clz_reference(x: Array) -> Array:
    word = unsigned(x)
    width = word.dtype.itemsize * 8
    step = 1
    while step < width:
        word = word | (word >> word.dtype.type(step))
        step *= 2
    return np.asarray((width - np.bitwise_count(word).astype(np.int64)).astype(x.dtype))


clz = composite(
    "clz",
    doc="How many zero bits come before the highest set one, in the operand's dtype; all for 0.",
    dtypes=INTS,
    reference=_clz_reference,
    vjp=build.no_gradient,
    special=cells(
        "0 -> BITS (int uint); INT_MIN -> 0 (int); -1 -> 0 (int); INT_MAX -> 1 (int); "
        "INT_MAX -> 0 (uint); 1 -> 31 (i32 u32); 1 -> 7 (i8 u8)",
    ),
    decompose=_clz_decompose,
)

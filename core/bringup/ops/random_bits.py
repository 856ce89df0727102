"""Composite rows of counter-based random bits: threefry2x32 and philox4x32.

Both are the generators of J. Salmon, M. Moraes, R. Dror and D. Shaw, "Parallel random numbers: as
easy as 1, 2, 3" (2011): bijections of a counter under a key, with no state, so that element i of a
random array is a function of i alone and can be computed wherever it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bringup.dtypes import u32
from bringup.graph import Value
from bringup.ops import build
from bringup.ops._checks import one_of, same_types
from bringup.ops._numeric import Array
from bringup.ops.build import like, rows
from bringup.ops.special_values import Special
from bringup.ops.table import Attrs, Infer, Kind, OpDef, Trait, Types, define

Words = tuple[Value, ...]


def _infer(name: str, results: int) -> Infer:
    def infer(operands: Types, _attrs: Attrs) -> Types:
        type_ = same_types(name, operands)
        one_of(name, type_, (u32,))
        return (type_,) * results

    return infer


def _wrapping(function: Callable[..., tuple[Array, ...]]) -> Callable[..., tuple[Array, ...]]:
    """Numpy warns of overflow where the operands are 0-d."""

    def reference(*words: Array) -> tuple[Array, ...]:
        with np.errstate(over="ignore"):
            results = function(*(np.asarray(w, np.uint32) for w in words))
        return tuple(np.asarray(w, np.uint32) for w in results)

    return reference


def _generator(
    name: str,
    words: int,
    doc: str,
    reference: Callable[..., tuple[Array, ...]],
    decompose: Callable[..., Words],
    cells: Sequence[tuple[tuple[str, ...], int]],
) -> OpDef:
    return define(
        name=name,
        arity=words + 2,
        kind=Kind.COMPOSITE,
        doc=doc,
        infer=_infer(name, words),
        reference=_wrapping(reference),
        vjp=build.no_gradient,
        dtypes=(u32,),
        special=tuple(Special(given, str(first), ("uint",)) for given, first in cells),
        traits=frozenset({Trait.POINTWISE}),
        decompose=decompose,
    )


# Left rotations of the eight kinds of round; a key word is added after every fourth.
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_ROUNDS = 20
_PARITY = 0x1BD11BDA


def _threefry_reference(key0: Array, key1: Array, x0: Array, x1: Array) -> tuple[Array, ...]:
    key = (key0, key1, key0 ^ key1 ^ np.uint32(_PARITY))
    x0, x1 = x0 + key[0], x1 + key[1]
    for number in range(_ROUNDS):
        turn = _ROTATIONS[number % 8]
        x0 = x0 + x1
        x1 = (x1 << np.uint32(turn)) | (x1 >> np.uint32(32 - turn))
        x1 = x1 ^ x0
        if number % 4 == 3:
            after = number // 4 + 1
            x0 = x0 + key[after % 3]
            x1 = x1 + key[(after + 1) % 3] + np.uint32(after)
    return x0, x1


def _rotated(x: Value, count: int) -> Value:
    left = rows.shl(x, like(x, count))
    return rows.or_(left, rows.shr(x, like(x, 32 - count), kind="logical"))


def _threefry_decompose(key0: Value, key1: Value, x0: Value, x1: Value) -> Words:
    key = (key0, key1, rows.xor(rows.xor(key0, key1), like(key0, _PARITY)))
    x0, x1 = rows.add(x0, key[0]), rows.add(x1, key[1])
    for number in range(_ROUNDS):
        x0 = rows.add(x0, x1)
        x1 = rows.xor(_rotated(x1, _ROTATIONS[number % 8]), x0)
        if number % 4 == 3:
            after = number // 4 + 1
            x0 = rows.add(x0, key[after % 3])
            x1 = rows.add(x1, rows.add(key[(after + 1) % 3], like(x1, after)))
    return x0, x1


threefry2x32 = _generator(
    "threefry2x32",
    2,
    "Threefry-2x32 with 20 rounds: operands are two words of key and two of counter, results the "
    "two words of random bits. Equal to Random123's, bit for bit.",
    _threefry_reference,
    _threefry_decompose,
    (
        (("0", "0", "0", "0"), 0x6B200159),
        (("INT_MAX", "INT_MAX", "INT_MAX", "INT_MAX"), 0x1CB996FC),
    ),
)

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
# The golden ratio and sqrt(3) − 1, by which the key grows from round to round (H. Weyl's sequence).
_WEYL = (0x9E3779B9, 0xBB67AE85)
_PHILOX_ROUNDS = 10


def _wide_product(x: Array, factor: int) -> tuple[Array, Array]:
    product = np.asarray(x, np.uint64) * np.uint64(factor)
    return (product >> np.uint64(32)).astype(np.uint32), product.astype(np.uint32)


def _philox_reference(
    key0: Array, key1: Array, c0: Array, c1: Array, c2: Array, c3: Array
) -> tuple[Array, ...]:
    for number in range(_PHILOX_ROUNDS):
        if number:
            key0, key1 = key0 + np.uint32(_WEYL[0]), key1 + np.uint32(_WEYL[1])
        high0, low0 = _wide_product(c0, _MULTIPLIERS[0])
        high1, low1 = _wide_product(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
    return c0, c1, c2, c3


def _high_product(x: Value, factor: int) -> Value:
    """The upper word of x · factor from products of halves, which need no wider integer."""
    low_mask, half = like(x, 0xFFFF), like(x, 16)

    def upper(v: Value) -> Value:
        return rows.shr(v, half, kind="logical")

    x_low, x_high = rows.and_(x, low_mask), upper(x)
    f_low, f_high = like(x, factor & 0xFFFF), like(x, factor >> 16)
    first = rows.add(rows.mul(x_high, f_low), upper(rows.mul(x_low, f_low)))
    second = rows.add(rows.mul(x_low, f_high), rows.and_(first, low_mask))
    return rows.add(rows.mul(x_high, f_high), rows.add(upper(first), upper(second)))


def _philox_decompose(
    key0: Value, key1: Value, c0: Value, c1: Value, c2: Value, c3: Value
) -> Words:
    for number in range(_PHILOX_ROUNDS):
        if number:
            key0 = rows.add(key0, like(key0, _WEYL[0]))
            key1 = rows.add(key1, like(key1, _WEYL[1]))
        high0, low0 = _high_product(c0, _MULTIPLIERS[0]), rows.mul(c0, like(c0, _MULTIPLIERS[0]))
        high1, low1 = _high_product(c2, _MULTIPLIERS[1]), rows.mul(c2, like(c2, _MULTIPLIERS[1]))
        c0 = rows.xor(rows.xor(high1, c1), key0)
        c2 = rows.xor(rows.xor(high0, c3), key1)
        c1, c3 = low1, low0
    return c0, c1, c2, c3


philox4x32 = _generator(
    "philox4x32",
    4,
    "Philox-4x32 with 10 rounds: operands are two words of key and four of counter, results the "
    "four words of random bits. Equal to Random123's, bit for bit.",
    _philox_reference,
    _philox_decompose,
    (
        (("0",) * 6, 0x6627E8D5),
        (("INT_MAX",) * 6, 0x408F276D),
    ),
)

__all__ = ["philox4x32", "threefry2x32"]

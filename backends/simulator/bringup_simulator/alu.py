"""The chip's arithmetic: one row per ALU operation, over whole vectors.

Rounding is to nearest even in the operation's own dtype, once; exp, log, sin, cos and tanh stay
within 2 ULP.  Integers wrap.  Signed division truncates, floordiv and floormod round down; by zero
a quotient is all ones and a remainder the dividend; INT_MIN / -1 is INT_MIN.  ``convert`` saturates
and takes NaN to 0; ``truncate`` keeps the low bits.  max and min propagate NaN and order -0 before
+0.  ``shr_l`` brings in zeros, ``shr_a`` copies of the top bit, of signed and unsigned alike; a
shift by the width or more, or by a negative count, leaves nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from bringup_simulator.isa import DTYPES

__all__ = ["ALU", "LANES", "AluOp", "kind_of"]

Vector = npt.NDArray[Any]
_STORAGE_ONLY = ("f8e4m3fn", "f8e5m2")


def kind_of(dtype: str) -> str:
    """``b`` bool, ``i`` signed, ``u`` unsigned, ``f`` float, ``s`` storage-only float."""
    if dtype in _STORAGE_ONLY:
        return "s"
    return {"b": "b", "i": "i", "u": "u"}.get(dtype[0], "f") if dtype != "bf16" else "f"


@dataclass(frozen=True, slots=True)
class AluOp:
    """One operation: arity, kinds of operand allowed, result ``same``, ``bool`` or ``declared``.

    compute: ``(*operands, result dtype) -> result``.
    """

    arity: int
    kinds: str
    result: str
    compute: Callable[..., Vector]


def _plain(function: Callable[..., Any]) -> Callable[..., Vector]:
    def compute(*operands: Any) -> Vector:
        result: Vector = function(*operands[:-1])
        return result

    return compute


def _div(a: Vector, b: Vector, dtype: str) -> Vector:
    if kind_of(dtype) == "f":
        return np.asarray(a / b)
    zero = b == 0
    divisor = np.where(zero, b.dtype.type(1), b)
    return np.where(zero, ~np.zeros_like(b), _truncated(a, divisor))


def _rem(a: Vector, b: Vector, dtype: str) -> Vector:
    if kind_of(dtype) == "f":
        return np.asarray(np.fmod(a, b))
    zero = b == 0
    divisor = np.where(zero, b.dtype.type(1), b)
    return np.where(zero, a, a - _truncated(a, divisor) * divisor)


def _floordiv(a: Vector, b: Vector, dtype: str) -> Vector:
    zero = b == 0
    quotient = a // np.where(zero, b.dtype.type(1), b)
    return np.where(zero, ~np.zeros_like(b), quotient)


def _floormod(a: Vector, b: Vector, dtype: str) -> Vector:
    zero = b == 0
    return np.where(zero, a, a % np.where(zero, b.dtype.type(1), b))


def _truncated(a: Vector, divisor: Vector) -> Vector:
    quotient = a // divisor
    rest = a - quotient * divisor
    return np.asarray(quotient + ((rest != 0) & ((a < 0) != (divisor < 0))).astype(a.dtype))


def _pow(a: Vector, b: Vector, dtype: str) -> Vector:
    if kind_of(dtype) == "f":
        return _float_pow(a, b)
    result, base, exponent = np.ones_like(a + b), a, np.where(b < 0, b.dtype.type(0), b)
    while exponent.any():
        result = np.where((exponent & 1) != 0, result * base, result)
        base, exponent = base * base, exponent >> 1
    if kind_of(dtype) == "u":
        return result
    # 1/a truncates to 0 unless |a| is 1; the sign of -1 follows the parity of the exponent.
    odd = np.where((b & 1) != 0, a, a * a)
    inverse = np.where((a == 1) | (a == -1), odd, a.dtype.type(0))
    return np.where(b < 0, inverse, result)


def _float_pow(a: Vector, b: Vector) -> Vector:
    # numpy takes the square root for a lone 0.5, which has other signs at -0 and -inf.
    edge = (a == 0) | np.isinf(a)
    result = np.power(np.where(edge, np.abs(a), a), b)
    odd = np.abs(np.fmod(b, b.dtype.type(2))) == 1
    result = np.where(edge & odd, np.copysign(result, a), result)
    # C's function gives NaN where either operand is a signalling one.
    return np.where((b == 0) | (a == 1), a.dtype.type(1), result)


def _max(a: Vector, b: Vector, dtype: str) -> Vector:
    if kind_of(dtype) != "f":
        return np.asarray(np.maximum(a, b))
    return np.where((a == 0) & (b == 0), a + b, np.maximum(a, b))


def _min(a: Vector, b: Vector, dtype: str) -> Vector:
    if kind_of(dtype) != "f":
        return np.asarray(np.minimum(a, b))
    return np.where((a == 0) & (b == 0), -(-a + -b), np.minimum(a, b))


def _shl(a: Vector, count: Vector, dtype: str) -> Vector:
    return _logical(np.left_shift, a, count)


def _shr_l(a: Vector, count: Vector, dtype: str) -> Vector:
    return _logical(np.right_shift, a, count)


def _shr_a(a: Vector, count: Vector, dtype: str) -> Vector:
    signed = np.dtype(f"i{a.dtype.itemsize}")
    last = 8 * a.dtype.itemsize - 1
    counts = np.where((count < 0) | (count > last), last, count).astype(signed)
    return np.asarray(np.right_shift(a.view(signed), counts).view(a.dtype))


def _logical(shift: Callable[..., Any], a: Vector, count: Vector) -> Vector:
    bits = a.view(f"u{a.dtype.itemsize}")
    over = (count < 0) | (count >= 8 * a.dtype.itemsize)
    shifted = shift(bits, np.where(over, 0, count).astype(bits.dtype))
    result: Vector = np.where(over, bits.dtype.type(0), shifted).view(a.dtype)
    return result


def _precise(function: Callable[..., Any]) -> Callable[..., Vector]:
    """In f64, rounded once: numpy's own f32 loops are up to 3 ULP off."""

    def compute(a: Vector, dtype: str) -> Vector:
        return _rounded(function(a.astype(np.float64)), DTYPES[dtype])

    return compute


def _rounded(a: Vector, target: np.dtype[Any]) -> Vector:
    """Round once; the way ml_dtypes takes to its types, through f32, rounds twice."""
    through_f32 = target in (DTYPES["bf16"], *(DTYPES[name] for name in _STORAGE_ONLY))
    if not through_f32 or a.dtype.itemsize < 4 or a.dtype == np.float32:
        return a.astype(target)
    if a.dtype.kind in "iu" and a.dtype.itemsize == 8:
        # f64 cannot hold all 64 bits: one bit says whether any of the low twelve is set.
        low = a & 0xFFF
        large = (a >= 1 << 52) | (a <= -(1 << 52) if a.dtype.kind == "i" else False)
        a = np.where(large, (a - low) | ((low != 0).astype(a.dtype) << 11), a)
    wide = a.astype(np.float64)
    near = wide.astype(np.float32)
    back = near.astype(np.float64)
    # Towards zero with a sticky last bit, which the second rounding then takes into account.
    bits = near.view(np.uint32) - (np.abs(back) > np.abs(wide)).astype(np.uint32)
    return np.asarray((bits | (back != wide)).view(np.float32).astype(target))


def _convert(a: Vector, dtype: str) -> Vector:
    source, target = a.dtype, DTYPES[dtype]
    if target == np.bool_:
        return np.asarray(a != source.type(0))
    if kind_of(dtype) not in "iu" or source == np.bool_:
        return _rounded(a, target)
    bounds = np.iinfo(target)
    if source.kind in "iu":
        own = np.iinfo(source)
        return np.clip(a, max(own.min, bounds.min), min(own.max, bounds.max)).astype(target)
    # max itself may not be a float; one past it always is.
    wide = np.trunc(a.astype(np.float64))
    low, past = float(bounds.min), float(bounds.max) + (bounds.max < 2**53)
    inside = (wide >= low) & (wide < past)
    exact = np.where(inside, wide, 0.0).astype(target)
    edges = np.where(wide >= past, bounds.max, bounds.min).astype(target)
    return np.where(inside | np.isnan(wide), exact, edges)


def _fold(combine: Callable[..., Vector]) -> Callable[[Vector, str], Vector]:
    def compute(a: Vector, dtype: str) -> Vector:
        while a.shape[1] > 1:
            half = a.shape[1] // 2
            a = combine(a[:, :half], a[:, half:], dtype)
        return a

    return compute


_ARITHMETIC = {
    "add": AluOp(2, "iuf", "same", _plain(np.add)),
    "sub": AluOp(2, "iuf", "same", _plain(np.subtract)),
    "mul": AluOp(2, "iuf", "same", _plain(np.multiply)),
    "div": AluOp(2, "iuf", "same", _div),
    "rem": AluOp(2, "iuf", "same", _rem),
    "floordiv": AluOp(2, "iu", "same", _floordiv),
    "floormod": AluOp(2, "iu", "same", _floormod),
    "pow": AluOp(2, "iuf", "same", _pow),
    "max": AluOp(2, "biuf", "same", _max),
    "min": AluOp(2, "biuf", "same", _min),
    "and": AluOp(2, "biu", "same", _plain(np.bitwise_and)),
    "or": AluOp(2, "biu", "same", _plain(np.bitwise_or)),
    "xor": AluOp(2, "biu", "same", _plain(np.bitwise_xor)),
    "not": AluOp(1, "biu", "same", _plain(np.invert)),
    "shl": AluOp(2, "iu", "same", _shl),
    "shr_l": AluOp(2, "iu", "same", _shr_l),
    "shr_a": AluOp(2, "iu", "same", _shr_a),
    "neg": AluOp(1, "iuf", "same", _plain(np.negative)),
    "abs": AluOp(1, "iuf", "same", _plain(np.absolute)),
}
_FLOAT = {
    name: AluOp(1, "f", "same", _plain(getattr(np, name))) for name in ("floor", "rint", "sqrt")
} | {
    name: AluOp(1, "f", "same", _precise(getattr(np, name)))
    for name in ("exp", "log", "sin", "cos", "tanh")
}
_COMPARE = {
    name: AluOp(2, "biuf", "bool", _plain(function))
    for name, function in {
        "eq": np.equal,
        "ne": np.not_equal,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
    }.items()
}
_MOVES = {
    "mov": AluOp(1, "biufs", "same", lambda a, dtype: a),
    "select": AluOp(3, "biufs", "same", _plain(np.where)),
    "convert": AluOp(1, "biufs", "declared", _convert),
    "truncate": AluOp(1, "iu", "declared", lambda a, dtype: a.astype(DTYPES[dtype])),
    "bitcast": AluOp(1, "iufs", "declared", lambda a, dtype: a.view(DTYPES[dtype])),
}

# Every operation a register-to-register instruction may name.
ALU: Mapping[str, AluOp] = MappingProxyType({**_ARITHMETIC, **_FLOAT, **_COMPARE, **_MOVES})

# Reductions over the lanes of one register, as a balanced tree; all lanes receive the result.
LANES: Mapping[str, AluOp] = MappingProxyType(
    {
        f"lanes_{name}": AluOp(1, ALU[name].kinds, "same", _fold(ALU[name].compute))
        for name in ("add", "mul", "max", "min", "and", "or", "xor")
    }
)

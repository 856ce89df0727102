"""The chip's arithmetic: what each operation computes, element by element, on numpy arrays.

Rounding is to nearest even in the operation's own type, once; exp, log, sin, cos and tanh stay
within 2 ULP.  Integers wrap.  Signed division truncates; by zero a quotient is all ones and a
remainder the dividend; INT_MIN / -1 is INT_MIN.  ``convert`` saturates and takes NaN to 0;
``truncate`` keeps the low bits.  max and min propagate NaN and order -0 before +0.  ``shr_l``
brings in zeros, ``shr_a`` copies of the top bit, of signed and unsigned alike; a shift by the width
or more, or by a negative count, leaves nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

__all__ = ["CASTS", "DTYPES", "OPERATIONS", "Array", "Operation", "kind_of", "name_of", "tree"]

Array = npt.NDArray[Any]
Function = Callable[..., Any]

DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "bool": np.dtype(np.bool_),
        **{
            f"{kind}{8 * size}": np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)
        },
        "f16": np.dtype(np.float16),
        "bf16": np.dtype(ml_dtypes.bfloat16),
        "f32": np.dtype(np.float32),
        "f64": np.dtype(np.float64),
        "f8e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
        "f8e5m2": np.dtype(ml_dtypes.float8_e5m2),
    }
)
_STORED_ONLY = (DTYPES["f8e4m3fn"], DTYPES["f8e5m2"])


_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def name_of(dtype: np.dtype[Any]) -> str:
    """The chip's name of a type."""
    return _NAMES.get(dtype, str(dtype))


def kind_of(dtype: np.dtype[Any]) -> str:
    """``b`` bool, ``i`` signed, ``u`` unsigned, ``f`` float, ``s`` a float that is only stored."""
    if dtype in _STORED_ONLY:
        return "s"
    return dtype.kind if dtype.kind in "biu" else "f"


def tree(function: Function, rows: Array) -> Array:
    """Reduce the last axis, of at least one element, as a balanced tree; it keeps one element."""
    while half := rows.shape[-1] // 2:
        pairs = function(rows[..., :half], rows[..., half : 2 * half])
        odd = rows[..., 2 * half :]
        rows = np.concatenate((pairs, odd), axis=-1) if odd.shape[-1] else pairs
    return rows


def _div(a: Array, b: Array) -> Any:
    if kind_of(a.dtype) == "f":
        return a / b
    divisor = np.where(b == 0, b.dtype.type(1), b)
    return np.where(b == 0, ~np.zeros_like(b), _truncated_quotient(a, divisor))


def _rem(a: Array, b: Array) -> Any:
    if kind_of(a.dtype) == "f":
        return np.fmod(a, b)
    divisor = np.where(b == 0, b.dtype.type(1), b)
    return np.where(b == 0, a, a - _truncated_quotient(a, divisor) * divisor)


def _truncated_quotient(a: Array, divisor: Array) -> Array:
    quotient = a // divisor
    inexact = a - quotient * divisor != 0
    return np.asarray(quotient + (inexact & ((a < 0) != (divisor < 0))).astype(a.dtype))


def _pow(a: Array, b: Array) -> Any:
    kind = kind_of(a.dtype)
    if kind == "f":
        return _float_pow(a, b)
    result, base, exponent = np.ones_like(a + b), a, np.where(b < 0, b.dtype.type(0), b)
    while exponent.any():
        result = np.where((exponent & 1) != 0, result * base, result)
        base, exponent = base * base, exponent >> 1
    if kind == "u":
        return result
    # 1/a truncates to 0 unless |a| is 1; the sign of -1 follows the parity of the exponent.
    odd = np.where((b & 1) != 0, a, a * a)
    inverse = np.where((a == 1) | (a == -1), odd, a.dtype.type(0))
    return np.where(b < 0, inverse, result)


def _float_pow(a: Array, b: Array) -> Any:
    # numpy takes the square root for an exponent of 0.5, which has other signs at -0 and -inf.
    edge = (a == 0) | np.isinf(a)
    result = np.power(np.where(edge, np.abs(a), a), b)
    odd = np.abs(np.fmod(b, b.dtype.type(2))) == 1
    result = np.where(edge & odd, np.copysign(result, a), result)
    # C's function gives NaN where either operand is a signalling one.
    return np.where((b == 0) | (a == 1), a.dtype.type(1), result)


def _max(a: Array, b: Array) -> Any:
    if kind_of(a.dtype) != "f":
        return np.maximum(a, b)
    return np.where((a == 0) & (b == 0), a + b, np.maximum(a, b))


def _min(a: Array, b: Array) -> Any:
    if kind_of(a.dtype) != "f":
        return np.minimum(a, b)
    return np.where((a == 0) & (b == 0), -(-a + -b), np.minimum(a, b))


def _logical_shift(shift: Function) -> Function:
    def compute(a: Array, count: Array) -> Any:
        bits = a.view(f"u{a.dtype.itemsize}")
        too_far = (count < 0) | (count >= 8 * a.dtype.itemsize)
        shifted = shift(bits, np.where(too_far, 0, count).astype(bits.dtype))
        return np.where(too_far, bits.dtype.type(0), shifted).view(a.dtype)

    return compute


def _arithmetic_shift(a: Array, count: Array) -> Any:
    signed = np.dtype(f"i{a.dtype.itemsize}")
    last = 8 * a.dtype.itemsize - 1
    counts = np.where((count < 0) | (count > last), last, count).astype(signed)
    return np.right_shift(a.view(signed), counts).view(a.dtype)


def _in_f64(function: Function) -> Function:
    """Compute in f64 and round once: numpy's own f32 loops are up to 3 ULP off."""

    def compute(a: Array) -> Any:
        return _rounded(function(a.astype(np.float64)), a.dtype)

    return compute


def _rounded(a: Array, target: np.dtype[Any]) -> Array:
    """Round once; the way ml_dtypes takes to its types, through f32, rounds twice."""
    through_f32 = target in (DTYPES["bf16"], *_STORED_ONLY)
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


def _convert(a: Array, target: np.dtype[Any]) -> Array:
    source = a.dtype
    if target == np.bool_:
        return np.asarray(a != source.type(0))
    if kind_of(target) not in "iu" or source == np.bool_:
        return _rounded(a, target)
    bounds = np.iinfo(target)
    if source.kind in "iu":
        own = np.iinfo(source)
        return np.clip(a, max(own.min, bounds.min), min(own.max, bounds.max)).astype(target)
    # The largest integer may not be a float; one past it always is.
    wide = np.trunc(a.astype(np.float64))
    low, past = float(bounds.min), float(bounds.max) + (bounds.max < 2**53)
    inside = (wide >= low) & (wide < past)
    exact = np.where(inside, wide, 0.0).astype(target)
    edges = np.where(wide >= past, bounds.max, bounds.min).astype(target)
    return np.where(inside | np.isnan(wide), exact, edges)


def _truncate(a: Array, target: np.dtype[Any]) -> Array:
    if a.dtype.kind + target.kind not in ("ii", "iu", "ui", "uu"):
        raise TypeError(f"truncate takes no {name_of(a.dtype)} to {name_of(target)}")
    return a.astype(target)


def _bitcast(a: Array, target: np.dtype[Any]) -> Array:
    if "b" in (a.dtype.kind, target.kind) or a.dtype.itemsize != target.itemsize:
        raise TypeError(f"bitcast takes no {name_of(a.dtype)} to {name_of(target)}")
    return a.view(target)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on operands of one type.

    kinds: what that type may be, as `kind_of` has it.  The result has the type of the operands, or
    is bool of a comparison; the first operand of ``select`` is bool.
    """

    arity: int
    kinds: str
    compute: Function


def _operations(arity: int, kinds: str, **functions: Function) -> dict[str, Operation]:
    return {name: Operation(arity, kinds, function) for name, function in functions.items()}


# `and_` and `or_` are spelt as in Python's module operator: the bare words are Python's own.
OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        **_operations(1, "iuf", neg=np.negative, abs=np.absolute),
        **_operations(2, "iuf", add=np.add, sub=np.subtract, mul=np.multiply),
        **_operations(2, "iuf", div=_div, rem=_rem, pow=_pow),
        **_operations(2, "biuf", max=_max, min=_min),
        **_operations(2, "biu", and_=np.bitwise_and, or_=np.bitwise_or, xor=np.bitwise_xor),
        **_operations(2, "iu", shl=_logical_shift(np.left_shift), shr_a=_arithmetic_shift),
        **_operations(2, "iu", shr_l=_logical_shift(np.right_shift)),
        **_operations(1, "f", floor=np.floor, sqrt=np.sqrt, exp=_in_f64(np.exp)),
        **_operations(1, "f", log=_in_f64(np.log), sin=_in_f64(np.sin)),
        **_operations(1, "f", cos=_in_f64(np.cos), tanh=_in_f64(np.tanh)),
        **_operations(2, "biuf", eq=np.equal, ne=np.not_equal, lt=np.less, le=np.less_equal),
        **_operations(2, "biuf", gt=np.greater, ge=np.greater_equal),
        **_operations(3, "biufs", select=np.where),
    }
)

#: ``(operand, type of the result) -> result``.
CASTS: Mapping[str, Callable[[Array, np.dtype[Any]], Array]] = MappingProxyType(
    {"convert": _convert, "truncate": _truncate, "bitcast": _bitcast}
)

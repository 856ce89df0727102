"""Arrays as unevaluated sums of two floats, and constants by integer arithmetic.

Everything here stands on +, −, ·, / and square roots that are correctly rounded, and on functions
that are exact (frexp, ldexp, rint, floor): IEEE 754 leaves the same bits on every machine, whatever
its C library and vector units.  The float dtype is f64 or the host's long double.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from bringup.ops._numeric import Array, NpDType

#: Fractional bits of constants while they are integers.
BITS = 320
#: Elements that are evaluated at once, so that temporaries stay in a core's cache.
_BLOCK = 8192
_AS_FLOAT: Any = np.frompyfunc(float, 1, 1)
_AS_INTEGER: Any = np.frompyfunc(int, 1, 1)


def precision(dtype: NpDType) -> int:
    """Significant bits."""
    return int(np.finfo(dtype).nmant) + 1


def two_sum(x: Array, y: Array) -> Doubled:
    """X + y, exactly."""
    total = x + y
    part = total - x
    return Doubled(total, (x - (total - part)) + (y - part))


def fast_sum(large: Array, small: Array) -> Doubled:
    """Large + small, exactly, where large is 0 or the larger in size."""
    total = large + small
    return Doubled(total, small - (total - large))


def two_product(x: Array, y: Array) -> Doubled:
    """X · y, exactly, away from the ends of the range (T. Dekker 1971)."""
    product = x * y
    factor = 2.0 ** ((precision(product.dtype) + 1) // 2) + 1
    xh, yh = factor * x, factor * y
    xh, yh = xh - (xh - x), yh - (yh - y)
    xl, yl = x - xh, y - yh
    return Doubled(product, xl * yl - (((product - xh * yh) - xl * yh) - xh * yl))


class Doubled:
    """An array of unevaluated sums ``high + low``: low is at most half a unit of high's last bit.

    Sums, products and quotients err by a few units of 2^(−2p) of the larger operand's size.
    """

    __slots__ = ("high", "low")

    def __init__(self, high: Array, low: Array) -> None:
        self.high = high
        self.low = low

    def __add__(self, other: Doubled) -> Doubled:
        total = two_sum(self.high, other.high)
        return fast_sum(total.high, total.low + (self.low + other.low))

    def __sub__(self, other: Doubled) -> Doubled:
        return self + -other

    def __neg__(self) -> Doubled:
        return Doubled(-self.high, -self.low)

    def __mul__(self, other: Doubled) -> Doubled:
        product = two_product(self.high, other.high)
        cross = self.high * other.low + self.low * other.high
        return fast_sum(product.high, product.low + cross)

    def __truediv__(self, other: Doubled) -> Doubled:
        high = self.high / other.high
        product = two_product(high, other.high)
        rest = (self.high - product.high) - product.low + self.low - high * other.low
        return fast_sum(high, rest / other.high)

    def __getitem__(self, index: Any) -> Doubled:
        return Doubled(self.high[index], self.low[index])

    def plus(self, small: Array) -> Doubled:
        """The sum with an array that is no larger in size."""
        return fast_sum(self.high, self.low + small)

    def scaled(self, exponent: Any) -> Doubled:
        """The product with a power of 2."""
        return Doubled(np.ldexp(self.high, exponent), np.ldexp(self.low, exponent))

    def sqrt(self) -> Doubled:
        """The square root; of 0 it is 0."""
        root = np.sqrt(self.high)
        square = two_product(root, root)
        rest = (self.high - square.high) - square.low + self.low
        return fast_sum(root, rest / np.where(root == 0, 1, 2 * root))

    def value(self) -> Array:
        """The sum, rounded once."""
        return self.high + self.low


def exactly(x: Array) -> Doubled:
    """An array without a low part."""
    return Doubled(x, np.zeros_like(x))


def choose(mask: Array, yes: Doubled, no: Doubled) -> Doubled:
    """Element by element."""
    return Doubled(np.where(mask, yes.high, no.high), np.where(mask, yes.low, no.low))


def from_integers(values: Any, bits: int, dtype: NpDType) -> Doubled:
    """Python's integers over 2^bits, as long as they are below 2^1000."""
    rest = np.asarray(values, object)
    pieces = []
    for _ in range(3 if dtype.itemsize == 8 else 5):
        piece = np.asarray(_AS_FLOAT(rest), np.float64)
        rest = rest - _AS_INTEGER(piece)
        pieces.append(np.ldexp(piece.astype(dtype), -bits))
    high = sum(pieces[1:], pieces[0])
    low = pieces[0] - high
    for piece in pieces[1:]:
        low = low + piece
    return Doubled(high, low)


def elementwise(function: Callable[..., Array]) -> Callable[..., Array]:
    """Broadcast the operands, evaluate them in blocks, each as a vector, and ignore float errors.

    f64 is the narrowest dtype in which anything is evaluated.
    """

    def evaluated(*operands: Any) -> Array:
        arrays = np.broadcast_arrays(*(np.asarray(x) for x in operands))
        dtype = np.result_type(np.float64, *arrays)
        flat = [np.ravel(x).astype(dtype, copy=False) for x in arrays]
        result = np.empty(flat[0].shape, dtype)
        with np.errstate(all="ignore"):
            for start in range(0, result.size, _BLOCK):
                block = slice(start, start + _BLOCK)
                result[block] = function(*(x[block] for x in flat))
        return result.reshape(arrays[0].shape)

    return evaluated


# ---- constants: integers over 2^BITS


def artanh(top: int, bottom: int, alternating: bool = False, bits: int = BITS) -> int:
    """The area tangent of a ratio below 1 in size, or its arc tangent: their series."""
    if top < 0:
        return -artanh(-top, bottom, alternating, bits)
    power = (top << bits) // bottom
    total, n = power, 1
    while power:
        power = power * top * top // (bottom * bottom)
        n += 2
        total += (-power if alternating and n % 4 == 3 else power) // n
    return total


def pi_integer(bits: int = BITS) -> int:
    """Pi, by J. Machin."""
    guard = bits + 32
    fifth, small = artanh(1, 5, True, guard), artanh(1, 239, True, guard)
    return (16 * fifth - 4 * small) >> 32


def logarithm(top: int, bottom: int) -> int:
    """The natural logarithm of a ratio between 1/2 and 2."""
    return 2 * artanh(top - bottom, top + bottom)


def root_of(value: int, bits: int = BITS) -> int:
    """The square root of an integer over 2^bits."""
    return math.isqrt(value << bits)


@cache
def constants(dtype: NpDType) -> dict[str, Doubled]:
    """Pi, log 2, log 10 and 2/√π."""
    two = 2 * artanh(1, 3)
    values = {
        "pi": pi_integer(),
        "log 2": two,
        # 10 = 2³ · 5/4.
        "log 10": 3 * two + logarithm(5, 4),
        "2 over root pi": (2 << 2 * BITS) // root_of(pi_integer()),
    }
    return {name: from_integers(value, BITS, dtype) for name, value in values.items()}

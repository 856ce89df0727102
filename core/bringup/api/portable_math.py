"""Logarithm, exponential and normal quantile for samplers, made of correctly rounded ops alone.

What the table lets a device's own `exp` and `log` be off would show in random numbers, and in
which proposals are accepted.  Of additions, products, quotients, square roots and moves of bits
every device makes the same bits.  Arguments are f32 or f64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bringup.api.apply import apply
from bringup.api.array import Array
from bringup.api.broadcasting import convert
from bringup.api.elementwise import clip, minimum, sqrt, where
from bringup.dtypes import DType, f32, i32, i64, u32, u64
from bringup.ops.error_functions import NORMAL_QUANTILE


@dataclass(frozen=True, slots=True)
class _Format:
    """A float format: its integers, bits of the fraction, exponent bias; log 2 in two parts, the
    upper with trailing zeros; coefficients of the functions below, highest power first.

    root: the bits of the square root of 1/2.
    """

    unsigned: DType
    signed: DType
    stored: int
    bias: int
    root: int
    log2: tuple[float, float]
    log: tuple[float, ...]
    exp: tuple[float, ...]


# Logarithm and exponential as in FreeBSD's libm (Sun Microsystems, 1993; I. Taylor, 1995).
_F32 = _Format(
    u32,
    i32,
    23,
    127,
    0x3F3504F3,
    (6.9313812256e-01, 9.0580006145e-06),
    (0.24279078841, 0.28498786688, 0.40000972152, 0.66666662693),
    (-2.7667332906e-3, 1.6666625440e-1),
)
_F64 = _Format(
    u64,
    i64,
    52,
    1023,
    0x3FE6A09E667F3BCD,
    (6.93147180369123816490e-01, 1.90821492927058770002e-10),
    (
        1.479819860511658591e-01,
        1.531383769920937332e-01,
        1.818357216161805012e-01,
        2.222219843214978396e-01,
        2.857142874366239149e-01,
        3.999999999940941908e-01,
        6.666666666666735130e-01,
    ),
    (
        4.13813679705723846039e-08,
        -1.65339022054652515390e-06,
        6.61375632143793436117e-05,
        -2.77777777770155933842e-03,
        1.66666666666666019037e-01,
    ),
)


def _format(x: Array) -> _Format:
    return _F32 if x.dtype is f32 else _F64


def bitcast(x: Array, dtype: DType) -> Array:
    """The bits of `x` as another dtype of the same width."""
    return apply("bitcast", (x,), {"dtype": dtype})


def _polynomial(x: Array, coefficients: Sequence[float]) -> Array:
    first, *rest = coefficients
    result = x * first + rest[0]
    for coefficient in rest[1:]:
        result = result * x + coefficient
    return result


def log(x: Array, above: Array | None = None) -> Array:
    """The natural logarithm of positive normal numbers, within 1 ULP.

    above: ``1 - x``, where that is known better than `x` tells; then within 3 ULP.
    """
    form = _format(x)
    one = form.bias << form.stored
    # The significand between the roots of 1/2 and 2, and the exponent that goes with it.
    moved = bitcast(x, form.unsigned) + (one - form.root)
    power = convert(bitcast(moved, form.signed) >> form.stored, x.dtype) - float(form.bias)
    fraction = (moved & ((1 << form.stored) - 1)) + form.root
    f = bitcast(fraction, x.dtype) - 1.0
    if above is not None:
        f = where(power == 0, -above, f)
    s = f / (f + 2.0)
    square = s * s
    series = square * _polynomial(square, form.log)
    half = f * f * 0.5
    high, low = form.log2
    return power * high - ((half - (s * (half + series) + power * low)) - f)


def exp(x: Array) -> Array:
    """The exponential function, within 1 ULP where the result is normal; 0 far below."""
    form = _format(x)
    high, low = form.log2
    x = clip(x, -1.3 * form.bias, float(form.bias))
    near = convert(convert(x * (1 / (high + low)) + where(x < 0, -0.5, 0.5), i32), x.dtype)
    top, rest = x - near * high, near * low
    r = top - rest
    square = r * r
    c = r - square * _polynomial(square, form.exp)
    value = 1.0 + (top - (rest - r * c / (2.0 - c)))
    # In two factors, as the power of two alone may be no normal number.
    power = convert(near, form.signed)
    for part in (power >> 1, power - (power >> 1)):
        value = value * bitcast((part + form.bias) << form.stored, x.dtype)
    return value


# M. Wichura, algorithm AS 241 (1988): rational functions of the centre and of the tails, in f32.
_CENTRE32 = (
    (5.9109374720e1, 1.5929113202e2, 5.0434271938e1, 3.3871327179e0),
    (6.7187563600e1, 7.8757757664e1, 1.7895169469e1, 1.0),
)
_TAIL32 = (
    (1.7023821103e-1, 1.3067284816e0, 2.7568153900e0, 1.4234372777e0),
    (1.2021132975e-1, 7.3700164250e-1, 1.0),
)
_FAR32 = (
    (1.7337203997e-2, 4.2868294337e-1, 3.0812263860e0, 6.6579051150e0),
    (1.2258202635e-2, 2.4197894225e-1, 1.0),
)
_NARROW = (_CENTRE32, _TAIL32, _FAR32)
# Up to here from 1/2 the centre's function holds.
_CENTRAL = 0.425


def upper_quantile(tail: Array, centre: Array, *, deep: bool = False) -> Array:
    """The number a standard normal variable exceeds with probability `tail`.

    tail: above 0, up to 1/2.  centre: ``1/2 - tail``, where that is known better than `tail` tells.
    deep: tails may be below 1e-11.
    The relative error is below 4e-7 in f32 and 1e-15 in f64.
    """
    narrow = tail.dtype is f32
    centre_of, tail_of, far_of = _NARROW if narrow else NORMAL_QUANTILE
    central = centre <= _CENTRAL
    rest = 0.180625 - centre * centre
    root = sqrt(-log(where(central, 0.5, tail)))
    outer = [_polynomial(root - 1.6, row) for row in tail_of]
    if deep or not narrow:
        far = [_polynomial(root - 5.0, row) for row in far_of]
        outer = [where(root > 5.0, *pair) for pair in zip(far, outer, strict=True)]
    inner = [_polynomial(rest, row) for row in centre_of]
    return where(central, inner[0] * centre, outer[0]) / where(central, inner[1], outer[1])


def normal_quantile(lower: Array, upper: Array) -> Array:
    """The normal quantile of probability `lower`, which is ``1 - upper``, both above 0."""
    size = upper_quantile(minimum(lower, upper), abs(upper - lower) * 0.5, deep=True)
    return where(lower < upper, -size, size)

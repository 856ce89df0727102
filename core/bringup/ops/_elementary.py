"""Elementary functions of numpy arrays, for references: the same bits on every machine.

Each reduces its argument to a point of a table and a small rest, whose series is short; what
decides the last bit is an unevaluated sum of two floats (see `_doubled`).  A result in the normal
range is within 0.52 units in the last place of f64, or of the host's long double; in the subnormal
range, where it is rounded again, within 0.76.  So what is exact, such as the cube root of 27, comes
out exact.  Arguments are f64 or wider, or are widened to f64.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from bringup.integers import ceil_div
from bringup.ops import _doubled as dd
from bringup.ops._doubled import (
    Doubled,
    choose,
    elementwise,
    exactly,
    fast_sum,
    two_product,
    two_sum,
)
from bringup.ops._numeric import Array, NpDType

# Points of tables per unit of the argument; for exp, per binade of the result.
_STEPS = 64
# Beyond it erfc is its asymptotic series, whose 30th term is below 2^−75 there.
_ERFC_TABLE = 8


def _terms(dtype: NpDType, ratio: float, factorial: bool = False) -> int:
    """How many terms of a series exceed 2^−(p + 18), if each is at most ``ratio`` of the last.

    factorial: and the n-th is divided by n besides.
    """
    goal, size, n = 2.0 ** -(dd.precision(dtype) + 18), 1.0, 0
    while size > goal:
        n += 1
        size *= ratio / (n if factorial else 1)
    return n


def _series(x: Array, coefficients: list[float]) -> Array:
    """A polynomial, the lowest power first; coefficients are quotients of small integers."""
    total = np.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * x + c
    return total


def _ratios(dtype: NpDType, tops: list[int], bottoms: list[int]) -> list[Any]:
    """Quotients, rounded to a dtype."""
    return [dtype.type(a) / dtype.type(b) for a, b in zip(tops, bottoms, strict=True)]


# ---- exp and its relatives


@cache
def _exp_table(dtype: NpDType) -> tuple[Doubled, Any, Any, list[Any]]:
    """The powers of 2^(1/64); log 2 / 64 in two parts, the first short; and 1/n!, n >= 2."""
    root = 2 << dd.BITS
    for _ in range(_STEPS.bit_length() - 1):
        root = dd.root_of(root)
    powers = [1 << dd.BITS]
    for _ in range(_STEPS - 1):
        powers.append(powers[-1] * root >> dd.BITS)
    step = 2 * dd.artanh(1, 3) // _STEPS
    kept = dd.BITS - dd.precision(dtype) + 14
    short = step >> kept << kept
    first, second = (dd.from_integers(v, dd.BITS, dtype).high for v in (short, step - short))
    n = range(2, _terms(dtype, math.log(2) / 2 / _STEPS, factorial=True) + 1)
    factors = _ratios(dtype, [1] * len(n), [math.factorial(k) for k in n])
    return dd.from_integers(powers, dd.BITS, dtype), first, second, factors


def _exp_parts(x: Doubled) -> tuple[Doubled, Doubled, Array]:
    """T, q and k with e^x = T (1 + q) 2^k; |x| is small enough that k is an exponent."""
    table, first, second, factors = _exp_table(x.high.dtype)
    steps = np.rint(x.high / (first + second))
    rest = two_sum(x.high - steps * first, -steps * second).plus(x.low)
    r = rest.high
    tail = r * r * _series(r, factors)
    q = fast_sum(r, tail + (rest.low + rest.low * r))
    whole = steps.astype(np.int64)
    index = whole % _STEPS
    return table[index], q, ((whole - index) // _STEPS).astype(np.int32)


def exp_sum(x: Doubled) -> tuple[Doubled, Array]:
    """A sum near 1 and a power of 2."""
    table, q, k = _exp_parts(x)
    return table + table * q, k


def _expm1(x: Doubled) -> Doubled:
    """E^x − 1 for x that is not large."""
    table, q, k = _exp_parts(x)
    one = np.ones_like(x.high)
    less = table.scaled(k) + exactly(-one)
    return less + (table * q).scaled(k)


def _bounded(x: Array) -> Array:
    """X, or the nearest number whose exponential overflows, or is 0; 0 for NaN."""
    limit = math.ceil((np.finfo(x.dtype).maxexp + 2 * dd.precision(x.dtype)) * math.log(2))
    return np.where(np.isnan(x), 0, np.clip(x, -limit, limit)).astype(x.dtype)


@elementwise
def exp(x: Array) -> Array:
    """The exponential."""
    power, k = exp_sum(exactly(_bounded(x)))
    result = np.ldexp(power.value(), k)
    return np.where(np.isnan(x), x, np.where(np.isneginf(x), 0, result))


@elementwise
def expm1(x: Array) -> Array:
    """The exponential less 1."""
    limit = 2.0 * dd.precision(x.dtype)
    near = _expm1(exactly(np.clip(np.nan_to_num(x), -limit, limit))).value()
    result = np.where(x > limit, exp(x), near)
    return np.where((x == 0) | np.isnan(x), x, result)


def _far(x: Array) -> Array:
    """Where the exponential's inverse is nothing beside it."""
    return np.asarray(x > dd.precision(x.dtype))


def _half_exp(x: Array) -> Array:
    """E^x / 2, which may be finite where e^x is not."""
    power, k = exp_sum(exactly(_bounded(x)))
    return np.asarray(np.ldexp(power.value(), k - 1))


def _near(x: Array) -> Array:
    """The size of x, or 1 where that is far off or NaN."""
    size = np.abs(x)
    return np.where(_far(size) | np.isnan(size), 1, size).astype(x.dtype)


@elementwise
def sinh(x: Array) -> Array:
    """The hyperbolic sine."""
    less = _expm1(exactly(_near(x)))
    one = exactly(np.ones_like(x))
    near = (less + less / (less + one)).value() / 2
    size = np.abs(x)
    result = np.where(_far(size), _half_exp(size), near)
    return np.where((x == 0) | np.isnan(x), x, np.copysign(result, x))


@elementwise
def cosh(x: Array) -> Array:
    """The hyperbolic cosine."""
    power, k = exp_sum(exactly(_near(x)))
    power = power.scaled(k)
    near = (power + exactly(np.ones_like(x)) / power).value() / 2
    size = np.abs(x)
    return np.where(np.isnan(x), x, np.where(_far(size), _half_exp(size), near))


@elementwise
def tanh(x: Array) -> Array:
    """The hyperbolic tangent."""
    less = _expm1(exactly(2 * _near(x)))
    near = (less / (less + exactly(np.full_like(x, 2)))).value()
    result = np.copysign(np.where(_far(np.abs(x)), 1, near), x)
    return np.where((x == 0) | np.isnan(x), x, result)


# ---- log and its relatives


@cache
def _log_table(dtype: NpDType) -> tuple[Array, Doubled, Any, Any, list[Any]]:
    """By m · 128 for m of √½ … √2: a short number near 1/m, and less its logarithm; log 2 in two
    parts, the first short; and ∓1/n, n >= 3.
    """
    points = range(2 * _STEPS * 2)
    near = [round(4096 * 2 * _STEPS / max(i, 1)) if 88 <= i <= 184 else 4096 for i in points]
    logs = [-dd.logarithm(n, 4096) for n in near]
    two = 2 * dd.artanh(1, 3)
    kept = dd.BITS - dd.precision(dtype) + 16
    short = two >> kept << kept
    first, second = (dd.from_integers(v, dd.BITS, dtype).high for v in (short, two - short))
    n = range(3, _terms(dtype, 2.0**-7) + 1)
    factors = _ratios(dtype, [1 if k % 2 else -1 for k in n], list(n))
    inverses = np.array(near, dtype) / 4096
    return inverses, dd.from_integers(logs, dd.BITS, dtype), first, second, factors


def _log(x: Doubled) -> Doubled:
    """The natural logarithm of finite x > 0."""
    inverses, logs, first, second, factors = _log_table(x.high.dtype)
    m, k = np.frexp(x.high)
    low = m < math.sqrt(0.5)
    k = k - low
    reduced = x.scaled(-k)
    index = np.rint(reduced.high * (2 * _STEPS)).astype(np.int64)
    inverse = inverses[index]
    product = two_product(reduced.high, inverse)
    r = fast_sum(product.high - 1, product.low + reduced.low * inverse)
    square = two_product(r.high, r.high)
    half = Doubled(square.high / -2, square.low / -2 - r.high * r.low)
    tail = r.high * square.high * _series(r.high, factors)
    power = k.astype(x.high.dtype)
    start = two_sum(power * first, logs.high[index]).plus(power * second + logs.low[index])
    return start + (r + half.plus(tail))


def _inside(x: Array) -> Array:
    return np.asarray((x > 0) & np.isfinite(x))


def _outside(x: Array, result: Array) -> Array:
    """A logarithm, and what it is at 0, inf, NaN and left of 0."""
    nan = np.array(np.nan, x.dtype)
    edge = np.where(x == 0, -np.inf, np.where(x > 0, x, np.where(np.isnan(x), x, nan)))
    return np.where(_inside(x), result, edge)


def _positive(x: Array) -> Doubled:
    return exactly(np.where(_inside(x), x, 1).astype(x.dtype))


@elementwise
def log(x: Array) -> Array:
    """The natural logarithm."""
    return _outside(x, _log(_positive(x)).value())


@elementwise
def log2(x: Array) -> Array:
    """The logarithm to base 2."""
    return _outside(x, (_log(_positive(x)) / dd.constants(x.dtype)["log 2"]).value())


@elementwise
def log10(x: Array) -> Array:
    """The logarithm to base 10."""
    return _outside(x, (_log(_positive(x)) / dd.constants(x.dtype)["log 10"]).value())


@elementwise
def log1p(x: Array) -> Array:
    """The logarithm of 1 + x."""
    inside = (x > -1) & np.isfinite(x)
    safe = np.where(inside, x, 0).astype(x.dtype)
    result = _log(two_sum(np.ones_like(x), safe)).value()
    return np.where(inside & (x != 0), result, np.where(x == 0, x, _outside(1 + x, x)))


def _tiny(x: Array) -> Array:
    """Where the cube is nothing beside x, or all but nothing."""
    return np.asarray(np.abs(x) < 2.0 ** -(dd.precision(x.dtype) // 2 + 1))


def _odd_inverse(x: Array, special: Array, inside: Doubled, cubic: float) -> Array:
    """The logarithm of 1 + ``inside`` with the sign of x, near 0 by its series."""
    one = exactly(np.ones_like(x))
    result = np.copysign(_log(one + inside).value(), x)
    return np.where(special, x, np.where(_tiny(x), x + x * x * x / cubic, result))


@elementwise
def asinh(x: Array) -> Array:
    """The inverse of sinh."""
    size, one = np.abs(x), exactly(np.ones_like(x))
    large = size > 2.0 ** dd.precision(x.dtype)
    a = exactly(np.where(large | np.isnan(x), 1, size).astype(x.dtype))
    square = a * a
    near = _odd_inverse(x, x == 0, a + square / (one + (one + square).sqrt()), -6)
    far = _log(_positive(size)) + dd.constants(x.dtype)["log 2"]
    result = np.where(large, np.copysign(far.value(), x), near)
    return np.where(np.isfinite(x), result, x)


@elementwise
def acosh(x: Array) -> Array:
    """The inverse of cosh, x >= 1."""
    one = exactly(np.ones_like(x))
    large = x > 2.0 ** dd.precision(x.dtype)
    t = two_sum(np.where(large | ~(x >= 1), 1, x).astype(x.dtype), -one.high)
    near = _log(one + (t + (t * (t + one + one)).sqrt())).value()
    far = (_log(_positive(x)) + dd.constants(x.dtype)["log 2"]).value()
    result = np.where(large & np.isfinite(x), far, np.where(large, x, near))
    return np.where(x >= 1, result, np.array(np.nan, x.dtype))


@elementwise
def atanh(x: Array) -> Array:
    """The inverse of tanh, |x| <= 1."""
    size, one = np.abs(x), exactly(np.ones_like(x))
    a = exactly(np.where(size < 1, size, 0).astype(x.dtype))
    result = _odd_inverse(x, x == 0, (a + a) / (one - a), 3 / 2)
    result = np.where(_tiny(x) | (x == 0), np.where(x == 0, x, x + x * x * x / 3), result / 2)
    edge = np.where(size == 1, np.copysign(np.array(np.inf, x.dtype), x), np.nan)
    return np.where(size < 1, result, edge)


def _power(size: Array, y: Array) -> Array:
    """Positive finite numbers to finite powers."""
    # Beyond, any logarithm but 0 overflows or vanishes.
    limit = 2.0 ** (dd.precision(y.dtype) + 20)
    product = _log(exactly(size)) * exactly(np.clip(y, -limit, limit))
    high = _bounded(product.high)
    same = high == product.high
    power, k = exp_sum(Doubled(high, np.where(same, product.low, 0).astype(y.dtype)))
    return np.asarray(np.ldexp(power.value(), k))


@elementwise
def power(x: Array, y: Array) -> Array:
    """X to the power y as in IEEE 754."""
    size = np.abs(x)
    infinite = np.array(np.inf, x.dtype)
    plain = (size > 0) & np.isfinite(size) & np.isfinite(y)
    result = _power(*(np.where(plain, v, 1).astype(x.dtype) for v in (size, y)))
    shrinks = (size < 1) == (y > 0)
    result = np.where(plain, result, np.where(shrinks, 0, infinite))
    result = np.where(size == 1, 1, result)
    odd = np.abs(np.fmod(y, 2)) == 1
    result = np.where(np.signbit(x) & odd, -result, result)
    undefined = (x < 0) & np.isfinite(x) & np.isfinite(y) & (np.rint(y) != y)
    result = np.where(undefined | np.isnan(x) | np.isnan(y), np.nan, result)
    return np.where((y == 0) | (x == 1), 1, result)


@elementwise
def cbrt(x: Array) -> Array:
    """The real cube root."""
    plain = np.isfinite(x) & (x != 0)
    size = exactly(np.where(plain, np.abs(x), 1).astype(x.dtype))
    power, k = exp_sum(_log(size) / exactly(np.full_like(x, 3)))
    return np.where(plain, np.copysign(np.ldexp(power.value(), k), x), x)


@elementwise
def hypot(x: Array, y: Array) -> Array:
    """The root of the sum of two squares; inf beside NaN is inf."""
    x, y = np.abs(x), np.abs(y)
    large = np.maximum(x, y)
    plain = np.isfinite(large)
    k = np.frexp(np.where(plain, large, 1))[1]
    a, b = (np.ldexp(np.where(plain, v, 0).astype(x.dtype), -k) for v in (x, y))
    root = (two_product(a, a) + two_product(b, b)).sqrt()
    infinite = np.isinf(x) | np.isinf(y)
    edge = np.where(infinite, np.array(np.inf, x.dtype), np.nan)
    return np.where(plain, np.ldexp(root.value(), k), edge)


# ---- circular functions


@cache
def _circle_table(dtype: NpDType) -> tuple[Doubled, Doubled, list[Any], list[Any]]:
    """Sine and cosine of j/64 up to π/4, and the series of sin t − t over t³, cos t − 1 over t²."""
    one, n = 1 << dd.BITS, 1
    sin = cos = 0
    term = one
    # Of 1/64: the terms in turn belong to cos, sin, −cos, −sin.
    for n in range(60):
        sign = -1 if n % 4 >= 2 else 1
        sin, cos = (sin + sign * term, cos) if n % 2 else (sin, cos + sign * term)
        term = term // (_STEPS * (n + 1))
    sines, cosines = [0], [one]
    for _ in range(52):
        s, c = sines[-1], cosines[-1]
        sines.append((s * cos + c * sin) >> dd.BITS)
        cosines.append((c * cos - s * sin) >> dd.BITS)
    count = _terms(dtype, 0.5 / _STEPS, factorial=True) // 2 + 1
    signs = [-1 if k % 2 == 0 else 1 for k in range(count)]
    odd = _ratios(dtype, signs, [math.factorial(2 * k + 3) for k in range(count)])
    even = _ratios(dtype, signs, [math.factorial(2 * k + 2) for k in range(count)])
    first, second = (dd.from_integers(v, dd.BITS, dtype) for v in (sines, cosines))
    return first, second, odd, even


# Bits of an integer's digits: sums of their products fit 64 bits.
_DIGIT = 24


def _digits(dtype: NpDType) -> tuple[int, int]:
    """How many digits a significand has, and a multiple of π/2 modulo 4 that may all but cancel."""
    p = dd.precision(dtype)
    return ceil_div(p, _DIGIT), ceil_div(3 * p + 40, _DIGIT)


@cache
def _two_over_pi(bits: int) -> int:
    return (2 << 2 * bits) // dd.pi_integer(bits)


@cache
def _window(dtype: NpDType, exponent: int) -> tuple[int, ...]:
    """The digits of 2/π that meet a significand of that exponent; those before give whole turns."""
    parts, count = _digits(dtype)
    length = int(np.finfo(dtype).maxexp) + (count + 2) * _DIGIT
    # Of 2/π · 2^(exponent − 24): the first has weight 2^(24 (parts − 1) − 22).
    drop = length - (exponent - _DIGIT) - (_DIGIT * count - 2)
    kept = _two_over_pi(length) >> drop if drop > 0 else _two_over_pi(length) << -drop
    places = range(parts + count - 2, -1, -1)
    return tuple((kept >> _DIGIT * n) % (1 << _DIGIT) for n in places)


def _quadrant(x: Array) -> tuple[Array, Doubled]:
    """The nearest multiple of π/2 to finite x, modulo 4, and the rest.

    M. Payne and R. Hanek: of 2/π only the bits matter that a float's significand meets.
    """
    count, rest = np.zeros(x.shape, np.int64), exactly(x.copy())
    (far,) = np.nonzero(np.abs(x) > 0.785)
    if far.size == 0:
        return count, rest
    mantissa, exponent = np.frexp(np.abs(x[far]))
    present, where = np.unique(exponent, return_inverse=True)
    digits = np.array([_window(x.dtype, int(k)) for k in present], np.int64)[where].T
    parts, length = _digits(x.dtype)
    product = [np.zeros(far.shape, np.int64) for _ in range(length)]
    for i in range(parts):
        mantissa = np.ldexp(mantissa, _DIGIT)
        part = np.floor(mantissa)
        mantissa = mantissa - part
        whole = part.astype(np.int64)
        for n in range(length):
            product[n] += whole * digits[n - i + parts - 1]
    low = (1 << _DIGIT) - 1
    for n in range(length - 1, 0, -1):
        product[n - 1] += product[n] >> _DIGIT
        product[n] &= low
    # Two bits of the first digit are of the quadrant.
    quadrant, product[0] = product[0] >> (_DIGIT - 2) & 3, product[0] & (low >> 2)
    above = product[0] >> (_DIGIT - 3)
    product = [digit ^ (-above & low) for digit in product]
    product[0] &= low >> 2
    total = exactly(np.zeros(far.shape, x.dtype))
    for n in range(length - 1, -1, -1):
        term = np.ldexp(product[n].astype(x.dtype), 2 - _DIGIT * (n + 1))
        partial = fast_sum(term, total.high)
        total = Doubled(partial.high, total.low + partial.low)
    angle = total * dd.constants(x.dtype)["pi"].scaled(-1)
    negative = (above == 1) ^ (x[far] < 0)
    angle = choose(negative, -angle, angle)
    quadrant = quadrant + above
    count[far] = np.where(x[far] < 0, -quadrant, quadrant) % 4
    rest.high[far], rest.low[far] = angle.high, angle.low
    return count, rest


def _sine(count: Array, x: Doubled) -> Doubled:
    """The sine of x + ``count`` quadrants, |x| up to π/4."""
    sines, cosines, odd, even = _circle_table(x.high.dtype)
    point = np.rint(x.high * _STEPS)
    t = fast_sum(x.high - point / _STEPS, x.low)
    index = np.abs(point).astype(np.int64)
    sine, cosine = sines[index], cosines[index]
    sine = choose(point < 0, -sine, sine)
    turned, back = count % 2 == 1, count >= 2
    start, slope = choose(turned, cosine, sine), choose(turned, -sine, cosine)
    square = t.high * t.high
    small = slope.high * (t.high * square * _series(square, odd))
    small = small + start.high * (square * _series(square, even) - t.high * t.low)
    result = start + slope * t
    result = result.plus(small)
    return choose(back, -result, result)


def _finite(x: Array) -> Array:
    return np.where(np.isfinite(x), x, 0).astype(x.dtype)


@elementwise
def sin(x: Array) -> Array:
    """The sine."""
    result = _sine(*_quadrant(_finite(x))).value()
    return np.where(np.isfinite(x), np.where(x == 0, x, result), np.nan)


@elementwise
def cos(x: Array) -> Array:
    """The cosine."""
    count, rest = _quadrant(_finite(x))
    return np.where(np.isfinite(x), _sine((count + 1) % 4, rest).value(), np.nan)


@elementwise
def tan(x: Array) -> Array:
    """The tangent."""
    count, rest = _quadrant(_finite(x))
    result = (_sine(count, rest) / _sine((count + 1) % 4, rest)).value()
    return np.where(np.isfinite(x), np.where(x == 0, x, result), np.nan)


@cache
def _arc_table(dtype: NpDType) -> tuple[Doubled, list[Any]]:
    """The arc tangents of j/64 up to 1, and the series of atan t − t over t³."""
    angles = [0]
    for j in range(_STEPS):
        # The difference of neighbours' angles.
        top, bottom = _STEPS, _STEPS * _STEPS + j * (j + 1)
        angles.append(angles[-1] + dd.artanh(top, bottom, alternating=True))
    count = _terms(dtype, (0.5 / _STEPS) ** 2) + 1
    signs = [-1 if k % 2 == 0 else 1 for k in range(count)]
    series = _ratios(dtype, signs, [2 * k + 3 for k in range(count)])
    return dd.from_integers(angles, dd.BITS, dtype), series


def _angle(y: Doubled, x: Doubled) -> Doubled:
    """The angle of a point of the first quadrant, not 0, whose coordinates are not extreme."""
    angles, series = _arc_table(y.high.dtype)
    steep = y.high > x.high
    a, b = choose(steep, x, y), choose(steep, y, x)
    point = np.rint(a.high / b.high * _STEPS)
    c = exactly(point / _STEPS)
    t = (a - c * b) / (b + c * a)
    square = t.high * t.high
    result = angles[point.astype(np.int64)] + t.plus(t.high * square * _series(square, series))
    half_pi = dd.constants(y.high.dtype)["pi"].scaled(-1)
    return choose(steep, half_pi - result, result)


def _whole_angle(y: Doubled, x: Doubled) -> Array:
    """As `_angle` for y >= 0 and any x."""
    size = choose(x.high < 0, -x, x)
    result = _angle(y, size)
    pi = dd.constants(y.high.dtype)["pi"]
    return choose(np.signbit(x.high), pi - result, result).value()


@elementwise
def atan2(y: Array, x: Array) -> Array:
    """The angle of a point, −π to π; zeros keep their signs as in IEEE 754."""
    above, beside = np.abs(y), np.abs(x)
    one = np.array(1, x.dtype)
    same = np.isinf(y) & np.isinf(x)
    above = np.where(same, one, np.where(np.isinf(x), 0, above))
    beside = np.where(same, one, np.where(np.isinf(y), 0, beside))
    above, beside = (np.where(np.isinf(v), one, v) for v in (above, beside))
    origin = (above == 0) & (beside == 0)
    bad = np.isnan(x) | np.isnan(y)
    above, beside = np.where(bad | origin, 0, above), np.where(bad | origin, one, beside)
    k = np.frexp(np.maximum(above, beside))[1]
    a, b = (np.ldexp(v, -k) for v in (above, beside))
    result = _whole_angle(exactly(a), exactly(np.copysign(b, x)))
    # The quotient is the angle, and may be subnormal.
    flat = (a < 2.0 ** -dd.precision(x.dtype)) & ~np.signbit(x)
    result = np.copysign(np.where(flat, above / np.where(flat, beside, 1), result), y)
    return np.where(bad, np.nan, result)


def atan(x: Array) -> Array:
    """The inverse of tan."""
    x = np.asarray(x)
    return atan2(x, np.ones_like(x))


def _complement(x: Array) -> Doubled:
    """The root of 1 − x²."""
    one = np.ones_like(x)
    return (two_sum(one, -x) * two_sum(one, x)).sqrt()


@elementwise
def asin(x: Array) -> Array:
    """The inverse of sin."""
    size = np.abs(x)
    safe = np.where(size <= 1, size, 0).astype(x.dtype)
    near = np.where(_tiny(x), 0.5, safe).astype(x.dtype)
    result = np.copysign(_angle(exactly(near), _complement(near)).value(), x)
    result = np.where(_tiny(x), x + x * x * x / 6, result)
    return np.where(size <= 1, np.where(x == 0, x, result), np.nan)


@elementwise
def acos(x: Array) -> Array:
    """The inverse of cos."""
    inside = np.abs(x) <= 1
    safe = np.where(inside, x, 0).astype(x.dtype)
    return np.where(inside, _whole_angle(_complement(safe), exactly(safe)), np.nan)


# ---- the error function


@cache
def _error_table(dtype: NpDType) -> tuple[Doubled, Doubled, Doubled]:
    """Of j/64 up to 8: erf, erfc and 2/√π e^(−x²)."""
    one = 1 << dd.BITS
    slope = (2 << 2 * dd.BITS) // dd.root_of(dd.pi_integer())
    # e^(−j²/4096) by its quotients, which have the constant quotient e^(−2/4096).
    quotient, step = _small_exp(1, 4096), _small_exp(2, 4096)
    bell, bells, values = one, [], []
    for j in range(_STEPS * _ERFC_TABLE + 1):
        bells.append(slope * bell >> dd.BITS)
        # erf x = 2/√π e^(−x²) Σ 2ⁿ x^(2n + 1) / (1 · 3 · … · (2n + 1))
        term, total, n = one * j // _STEPS, 0, 0
        while term:
            total += term
            n += 1
            term = term * 2 * j * j // (_STEPS * _STEPS * (2 * n + 1))
        values.append(bells[-1] * total >> dd.BITS)
        bell, quotient = bell * quotient >> dd.BITS, quotient * step >> dd.BITS
    rests = [one - v for v in values]
    erf_, erfc_, bells_ = (dd.from_integers(v, dd.BITS, dtype) for v in (values, rests, bells))
    return erf_, erfc_, bells_


def _small_exp(top: int, bottom: int) -> int:
    """E^(−top/bottom)."""
    total, term, n = 0, 1 << dd.BITS, 0
    while term:
        total += -term if n % 2 else term
        n += 1
        term = term * top // (bottom * n)
    return total


def _error_parts(x: Array) -> tuple[Array, Doubled, Doubled]:
    """For 0 <= x < 8: the table's point, the difference of erf there and at x, the slope there."""
    _, _, bells = _error_table(x.dtype)
    point = np.rint(x * _STEPS)
    index = point.astype(np.int64)
    c = point / _STEPS
    h = x - c
    # e^(−2ch − h²) as a series in h, integrated.
    before, now = np.zeros_like(x), np.ones_like(x)
    terms = [now]
    for n in range(1, _terms(x.dtype, 0.13, factorial=True) + 1):
        before, now = now, -2 * (c * now + before) / n
        terms.append(now / (n + 1))
    total = np.zeros_like(x)
    for term in reversed(terms[1:]):
        total = (total + term) * h
    slope = bells[index]
    change = slope * exactly(h)
    return index, change.plus(change.high * total), slope


def _erfc_far(x: Array) -> tuple[Doubled, Array]:
    """Erfc of x >= 8: a sum and a power of 2."""
    square = two_product(x, x)
    u = 1 / (2 * square.high)
    total = np.zeros_like(x)
    for n in range(30, 0, -1):
        total = (total + 1) * (-(2 * n - 1) * u)
    power, k = exp_sum(-square)
    scaled = (power / exactly(x)) * dd.constants(x.dtype)["2 over root pi"].scaled(-1)
    return scaled.plus(scaled.high * total), k


@elementwise
def erf(x: Array) -> Array:
    """The error function."""
    size = np.abs(x)
    inside = size < _ERFC_TABLE
    index, change, _ = _error_parts(np.where(inside, size, 0).astype(x.dtype))
    result = (_error_table(x.dtype)[0][index] + change).value()
    result = np.copysign(np.where(inside, result, 1), x)
    return np.where((x == 0) | np.isnan(x), x, result)


@elementwise
def erfc(x: Array) -> Array:
    """The complement of the error function."""
    size = np.abs(x)
    inside = size < _ERFC_TABLE
    index, change, _ = _error_parts(np.where(inside, size, 0).astype(x.dtype))
    values, rests, _ = _error_table(x.dtype)
    one = exactly(np.ones_like(x))
    near = choose(x < 0, one + (values[index] + change), rests[index] - change).value()
    # Where the square's exponential is 0 even as a subnormal number.
    end = math.sqrt(np.finfo(x.dtype).maxexp + 2 * dd.precision(x.dtype))
    beyond, k = _erfc_far(np.where(inside | np.isnan(x), 8, np.minimum(size, end)).astype(x.dtype))
    far = np.where(x < 0, 2, np.ldexp(beyond.value(), k))
    return np.where(np.isnan(x), x, np.where(inside, near, far))


@elementwise
def erfinv(x: Array, start: Array) -> Array:
    """One step of Halley's towards the inverse of erf, from a start good to half the digits.

    x: inside (−1, 1), not 0.
    """
    size, y = np.abs(x), np.abs(start)
    index, change, _ = _error_parts(np.minimum(y, np.nextafter(y.dtype.type(_ERFC_TABLE), 0)))
    values, rests, _ = _error_table(x.dtype)
    left_over = two_sum(np.ones_like(x), -size)
    above = choose(
        size < 0.5, values[index] + change - exactly(size), left_over - (rests[index] - change)
    )
    bell, k = exp_sum(-two_product(y, y))
    slope = bell.scaled(k) * dd.constants(x.dtype)["2 over root pi"]
    newton = above.high / slope.high
    return np.copysign(y - newton / (1 + y * newton), x)


_EIGHTH_TURN = np.longdouble("0.785398163397448309615660845819875721")


def roots_of_unity(count: Array, n: int) -> tuple[Array, Array]:
    """Roots of unity: cosine and −sine of ``count`` n-ths of a turn, exact where they are 0, ½ of
    roots or 1.
    """
    octant, rest = np.divmod(8 * (count % n), n)
    angle = np.where(octant % 2 == 1, n - rest, rest) * _EIGHTH_TURN / n
    x, y = cos(angle), sin(angle)
    swapped = np.isin(octant, (1, 2, 5, 6))
    x, y = np.where(swapped, y, x), np.where(swapped, x, y)
    x = np.where(np.isin(octant, (2, 3, 4, 5)), -x, x)
    y = np.where(octant >= 4, -y, y)
    return x, -y

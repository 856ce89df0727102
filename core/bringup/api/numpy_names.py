"""Functions of elements and reductions under the names of numpy and JAX.

They are made of the functions of the array API standard; `bringup` hands them on.  Functions whose
names begin with ``nan`` leave NaN out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup.api.arguments import axes_of, flag_of, number_of
from bringup.api.array import Array, Axis, Operand
from bringup.api.broadcasting import as_array, as_float, binary, convert
from bringup.api.complex import ComplexArray, conj, imag, real
from bringup.api.creation import full
from bringup.api.datatypes import finfo
from bringup.api.elementwise import (
    abs,
    acos,
    acosh,
    add,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_right_shift,
    divide,
    equal,
    floor_divide,
    isfinite,
    isnan,
    less_equal,
    log1p,
    logical_and,
    logical_or,
    maximum,
    minimum,
    multiply,
    pow,
    remainder,
    round,
    sin,
    sqrt,
    square,
    subtract,
    trunc,
    where,
)
from bringup.api.manipulation import broadcast_to, expand_dims, reshape
from bringup.api.promotion import DEFAULT_INT
from bringup.api.reductions import (
    all,
    argmax,
    argmin,
    cumulative_prod,
    cumulative_sum,
    max,
    mean,
    min,
    prod,
    sum,
)
from bringup.api.sorting import nanquantile, quantile
from bringup.dtypes import bf16, f16, f32
from bringup.errors import OpTypeError

absolute = abs
amax = max
amin = min
arccos = acos
arccosh = acosh
arcsin = asin
arcsinh = asinh
arctan = atan
arctan2 = atan2
arctanh = atanh
around = round
bitwise_not = invert = bitwise_invert
conjugate = conj
fix = trunc
left_shift = bitwise_left_shift
mod = remainder
power = pow
product = prod
right_shift = bitwise_right_shift
true_divide = divide


# -- elements --------------------------------------------------------------------------------------


def fabs(x: Operand, /) -> Array:
    """The magnitude in a float dtype; integers become the default float first.

    >>> bu.fabs(bu.asarray([-1, 2])).tolist()
    [1.0, 2.0]
    """
    return abs(as_float(x))


def fmod(x1: Operand, x2: Operand, /) -> Array:
    """The rest of a division rounded towards 0, with the sign of `x1`, as in C.

    >>> bu.fmod(bu.asarray([7, -7]), 4).tolist()
    [3, -3]
    """
    return binary("rem", x1, x2)


rem = fmod


def divmod(x1: Operand, x2: Operand, /) -> tuple[Array, Array]:
    """``x1 // x2`` and ``x1 % x2``.

    >>> [part.tolist() for part in bu.divmod(bu.asarray([7, -7]), 4)]
    [[1, -2], [3, 1]]
    """
    return floor_divide(x1, x2), remainder(x1, x2)


def float_power(x1: Operand, x2: Operand, /) -> Array:
    """``x1 ** x2`` in a float dtype; integers become the default float first.

    >>> bu.float_power(bu.asarray([2, 4]), -1).tolist()
    [0.5, 0.25]
    """
    return pow(as_float(x1), x2)


def heaviside(x1: Operand, x2: Operand, /) -> Array:
    """0 below 0, 1 above, `x2` at 0; NaN for NaN.

    >>> bu.heaviside(bu.asarray([-2.0, 0.0, 3.0]), 0.5).tolist()
    [0.0, 0.5, 1.0]
    """
    x = as_float(x1)
    return where(isnan(x), x, where(x == 0, x2, convert(x > 0, x.dtype)))


def exp2(x: Operand, /) -> Array:
    """``2 ** x`` in a float dtype.

    >>> bu.exp2(bu.asarray([-1, 10])).tolist()
    [0.5, 1024.0]
    """
    return pow(2.0, as_float(x))


def deg2rad(x: Operand, /) -> Array:
    """Radians of degrees.

    >>> bu.deg2rad(bu.asarray([180.0])).tolist()
    [3.141592653589793]
    """
    return as_float(x) * (math.pi / 180)


def rad2deg(x: Operand, /) -> Array:
    """Degrees of radians.

    >>> bu.rad2deg(bu.asarray([bu.pi])).tolist()
    [180.0]
    """
    return as_float(x) * (180 / math.pi)


radians = deg2rad
degrees = rad2deg


def fmax(x1: Operand, x2: Operand, /) -> Array:
    """The larger of two; of NaN and a number the number.

    >>> bu.fmax(bu.asarray([1.0, bu.nan]), 0.5).tolist()
    [1.0, 0.5]
    """
    return where(_is_nan(x1), x2, where(_is_nan(x2), x1, maximum(x1, x2)))


def fmin(x1: Operand, x2: Operand, /) -> Array:
    """The smaller of two; of NaN and a number the number.

    >>> bu.fmin(bu.asarray([1.0, bu.nan]), 0.5).tolist()
    [0.5, 0.5]
    """
    return where(_is_nan(x1), x2, where(_is_nan(x2), x1, minimum(x1, x2)))


def _is_nan(x: Operand) -> Array:
    return isnan(as_array(x))


def sinc(x: Operand, /) -> Array:
    """``sin(pi * x) / (pi * x)``, 1 at 0.

    >>> bu.sinc(bu.asarray([0.0, 0.5])).tolist()
    [1.0, 0.6366197723675814]
    """
    angle = as_float(x) * math.pi
    # Use the Taylor series near 0, so that the derivatives there are right.
    near = abs(angle) <= 0.005
    apart, close = where(near, 1.0, angle), square(where(near, angle, 0.0))
    return where(near, 1 - close / 6 * (1 - close / 20), sin(apart) / apart)


def logaddexp2(x1: Operand, x2: Operand, /) -> Array:
    """``log2(2 ** x1 + 2 ** x2)`` without overflow.

    >>> bu.logaddexp2(bu.asarray([1000.0]), 1000.0).tolist()
    [1001.0]
    """
    x = as_float(x1)
    # The difference of equal infinities would be NaN.
    apart = where(x == x2, 0.0, abs(subtract(x, x2)))
    return maximum(x, x2) + log1p(exp2(-apart)) / math.log(2)


def nan_to_num(
    x: Operand,
    /,
    copy: bool = True,
    nan: Operand = 0.0,
    posinf: Operand | None = None,
    neginf: Operand | None = None,
) -> Array:
    """Numbers in the place of NaN and infinities, by default 0 and the ends of the dtype.

    copy: without a meaning here, since arrays are immutable.

    >>> bu.nan_to_num(bu.asarray([bu.nan, bu.inf, 1.0]), posinf=9.0).tolist()
    [0.0, 9.0, 1.0]
    """
    x = as_array(x)
    if isinstance(x, ComplexArray):
        parts = (nan_to_num(part, copy, nan, posinf, neginf) for part in (real(x), imag(x)))
        return ComplexArray(*parts)
    if not x.dtype.is_float:
        return x
    limits = finfo(x.dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    result = where(isnan(x), nan, where(isposinf(x), high, where(isneginf(x), low, x)))
    return convert(result, x.dtype)


def isposinf(x: Operand, /) -> Array:
    """Whether an element is positive infinity.

    >>> bu.isposinf(bu.asarray([bu.inf, -bu.inf])).tolist()
    [True, False]
    """
    return as_float(x) == math.inf


def isneginf(x: Operand, /) -> Array:
    """Whether an element is negative infinity.

    >>> bu.isneginf(bu.asarray([bu.inf, -bu.inf])).tolist()
    [False, True]
    """
    return as_float(x) == -math.inf


def isclose(
    x1: Operand,
    x2: Operand,
    /,
    rtol: Operand = 1e-5,
    atol: Operand = 1e-8,
    equal_nan: bool = False,
) -> Array:
    """Whether ``|x1 - x2| <= atol + rtol * |x2|``; infinities are close to themselves.

    equal_nan: whether NaN is close to NaN.

    >>> bu.isclose(bu.asarray([1.0, 1.0]), bu.asarray([1.000001, 1.1])).tolist()
    [True, False]
    """
    a, b = as_float(x1), as_float(x2)
    near = less_equal(abs(subtract(a, b)), add(atol, multiply(rtol, abs(b))))
    result = logical_or(equal(a, b), logical_and(isfinite(b), near))
    if not flag_of("isclose", "equal_nan", equal_nan):
        return result
    return logical_or(result, logical_and(isnan(a), isnan(b)))


def allclose(
    x1: Operand,
    x2: Operand,
    /,
    rtol: Operand = 1e-5,
    atol: Operand = 1e-8,
    equal_nan: bool = False,
) -> Array:
    """Whether all elements are close, as `isclose` says: one bool.

    >>> bu.allclose(bu.asarray([1.0]), bu.asarray([1.000001])).item()
    True
    """
    return all(isclose(x1, x2, rtol, atol, equal_nan))


def array_equal(x1: Operand, x2: Operand, /, equal_nan: bool = False) -> Array:
    """Whether two arrays have one shape and equal elements: one bool.

    equal_nan: whether NaN equals NaN.

    >>> bu.array_equal(bu.asarray([1, 2]), bu.asarray([1, 2])).item()
    True
    """
    a, b = as_array(x1), as_array(x2)
    if a.shape != b.shape:
        return full((), False)
    same = a == b
    if flag_of("array_equal", "equal_nan", equal_nan):
        same = same | isnan(a) & isnan(b)
    return all(same)


# -- reductions ------------------------------------------------------------------------------------


def cumsum(x: Operand, /, axis: int | None = None, dtype: object = None) -> Array:
    """`cumulative_sum` along an axis, of the flattened array for None.

    >>> bu.cumsum(bu.asarray([[1, 2], [3, 4]])).tolist()
    [1, 3, 6, 10]
    """
    x = as_array(x)
    return cumulative_sum(reshape(x, -1) if axis is None else x, axis, dtype)


def cumprod(x: Operand, /, axis: int | None = None, dtype: object = None) -> Array:
    """`cumulative_prod` along an axis, of the flattened array for None.

    >>> bu.cumprod(bu.asarray([[1, 2], [3, 4]]), axis=1).tolist()
    [[1, 2], [3, 12]]
    """
    x = as_array(x)
    return cumulative_prod(reshape(x, -1) if axis is None else x, axis, dtype)


def ptp(x: Operand, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The largest element minus the smallest.

    >>> bu.ptp(bu.asarray([3, 9, 4])).tolist()
    6
    """
    return max(x, axis, keepdims=keepdims) - min(x, axis, keepdims=keepdims)


def average(
    x: Operand, /, axis: Axis = None, weights: Operand | None = None, *, keepdims: bool = False
) -> Array:
    """The mean, or ``sum(weights * x) / sum(weights)``.

    weights: of the shape of `x`, or one for each entry of the axis.
    Raises OpTypeError.

    >>> bu.average(bu.asarray([1.0, 4.0]), weights=bu.asarray([3, 1])).tolist()
    1.75
    """
    if weights is None:
        return mean(x, axis, keepdims=keepdims)
    x, shares = as_float(x), as_array(weights)
    dims = axes_of("average", axis, x.ndim)
    if shares.shape != x.shape:
        if shares.ndim != 1 or len(dims) != 1 or shares.size != x.shape[dims[0]]:
            raise OpTypeError(
                f"average: weights {shares.type} for {x.type}",
                fix="give weights of the shape of the array, or one for each entry of the axis",
            )
        other_dims = tuple(d for d in range(x.ndim) if d != dims[0])
        shares = broadcast_to(expand_dims(shares, other_dims) if other_dims else shares, x.shape)
    total = sum(x * shares, axis, keepdims=keepdims)
    return total / sum(shares, axis, keepdims=keepdims)


def percentile(
    x: Operand, /, q: float | Sequence[float] | Array, axis: Axis = None, *, keepdims: bool = False
) -> Array:
    """`quantile` of ``q / 100``.

    >>> bu.percentile(bu.asarray([1.0, 2.0, 3.0]), 25).tolist()
    1.5
    """
    return quantile(x, _shares(q), axis, keepdims=keepdims)


def nanpercentile(
    x: Operand, /, q: float | Sequence[float] | Array, axis: Axis = None, *, keepdims: bool = False
) -> Array:
    """`nanquantile` of ``q / 100``.

    >>> bu.nanpercentile(bu.asarray([1.0, bu.nan, 3.0]), 50).tolist()
    2.0
    """
    return nanquantile(x, _shares(q), axis, keepdims=keepdims)


def _shares(q: Any) -> Any:
    if isinstance(q, Array):
        return q / 100
    try:
        return np.asarray(q, np.float64) / 100
    except (TypeError, ValueError):
        return q  # for the error of what takes it


def nanmedian(x: Operand, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """`median` without NaN; NaN where there is nothing else.

    >>> bu.nanmedian(bu.asarray([1.0, bu.nan, 3.0])).tolist()
    2.0
    """
    return nanquantile(x, 0.5, axis, keepdims=keepdims)


def _with(x: Operand, value: float) -> Array:
    """`x` with a value in the place of NaN."""
    x = as_array(x)
    return where(isnan(x), value, x) if x.dtype.is_inexact else x


def nansum(
    x: Operand, /, axis: Axis = None, dtype: object = None, *, keepdims: bool = False
) -> Array:
    """The sum without NaN; 0 where there is nothing else.

    >>> bu.nansum(bu.asarray([1.0, bu.nan])).tolist()
    1.0
    """
    return sum(_with(x, 0.0), axis, dtype, keepdims=keepdims)


def nanprod(
    x: Operand, /, axis: Axis = None, dtype: object = None, *, keepdims: bool = False
) -> Array:
    """The product without NaN; 1 where there is nothing else.

    >>> bu.nanprod(bu.asarray([2.0, bu.nan])).tolist()
    2.0
    """
    return prod(_with(x, 1.0), axis, dtype, keepdims=keepdims)


def nancumsum(x: Operand, /, axis: int | None = None, dtype: object = None) -> Array:
    """`cumsum` without NaN.

    >>> bu.nancumsum(bu.asarray([1.0, bu.nan, 2.0])).tolist()
    [1.0, 1.0, 3.0]
    """
    return cumsum(_with(x, 0.0), axis, dtype)


def nancumprod(x: Operand, /, axis: int | None = None, dtype: object = None) -> Array:
    """`cumprod` without NaN.

    >>> bu.nancumprod(bu.asarray([2.0, bu.nan, 3.0])).tolist()
    [2.0, 2.0, 6.0]
    """
    return cumprod(_with(x, 1.0), axis, dtype)


def nanmax(x: Operand, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The largest element but NaN; NaN where there is nothing else.

    >>> bu.nanmax(bu.asarray([1.0, bu.nan])).tolist()
    1.0
    """
    result = max(_with(x, -math.inf), axis, keepdims=keepdims)
    return where(all(_is_nan(x), axis, keepdims=keepdims), math.nan, result) if _has(x) else result


def nanmin(x: Operand, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The smallest element but NaN; NaN where there is nothing else.

    >>> bu.nanmin(bu.asarray([1.0, bu.nan])).tolist()
    1.0
    """
    result = min(_with(x, math.inf), axis, keepdims=keepdims)
    return where(all(_is_nan(x), axis, keepdims=keepdims), math.nan, result) if _has(x) else result


def _has(x: Operand) -> bool:
    """Whether the dtype has NaN."""
    return as_array(x).dtype.is_inexact


def nanargmax(x: Operand, /, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """The position of the first largest element but NaN, as i64; -1 where there is nothing else.

    >>> bu.nanargmax(bu.asarray([bu.nan, 1.0, 3.0])).tolist()
    2
    """
    result = argmax(_with(x, -math.inf), axis, keepdims=keepdims)
    return where(all(_is_nan(x), axis, keepdims=keepdims), -1, result)


def nanargmin(x: Operand, /, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """The position of the first smallest element but NaN, as i64; -1 where there is nothing else.

    >>> bu.nanargmin(bu.asarray([bu.nan, 1.0, 3.0])).tolist()
    1
    """
    result = argmin(_with(x, math.inf), axis, keepdims=keepdims)
    return where(all(_is_nan(x), axis, keepdims=keepdims), -1, result)


def nanmean(x: Operand, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The mean without NaN; NaN where there is nothing else.

    >>> bu.nanmean(bu.asarray([1.0, bu.nan, 3.0])).tolist()
    2.0
    """
    x = as_float(x)
    total = sum(_with(_wide(x), 0.0), axis, keepdims=keepdims)
    return convert(total / _count(x, total, axis, keepdims), x.dtype)


def nanvar(
    x: Operand, /, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False
) -> Array:
    """The variance without NaN, divided by their count - correction; NaN where that is not above 0.

    >>> bu.nanvar(bu.asarray([1.0, bu.nan, 3.0])).tolist()
    1.0
    """
    x = as_float(x)
    wide, less = _wide(x), number_of("nanvar", "correction", correction)
    away = where(isnan(x), 0.0, wide - nanmean(wide, axis, keepdims=True))
    total = sum(square(abs(away)), axis, keepdims=keepdims)
    count = _count(x, total, axis, keepdims) - less
    result = where(count > 0, total / count, math.nan)
    return result if x.dtype.is_complex else convert(result, x.dtype)


def nanstd(
    x: Operand, /, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False
) -> Array:
    """The square root of `nanvar`.

    >>> bu.nanstd(bu.asarray([1.0, bu.nan, 3.0])).tolist()
    1.0
    """
    return sqrt(nanvar(x, axis, correction=correction, keepdims=keepdims))


def _wide(x: Array) -> Array:
    """`x` in a dtype to sum it in."""
    return convert(x, f32) if x.dtype in (f16, bf16) else x


def _count(x: Array, total: Array, axis: Axis, keepdims: bool) -> Array:
    """How many elements are numbers, in the dtype of their sum."""
    result = sum(convert(~isnan(x), DEFAULT_INT), axis, keepdims=keepdims)
    return convert(result, total.dtype)


__all__ = [
    "absolute", "allclose", "amax", "amin", "arccos", "arccosh", "arcsin", "arcsinh", "arctan",
    "arctan2", "arctanh", "around", "array_equal", "average", "bitwise_not", "conjugate", "cumprod",
    "cumsum", "deg2rad", "degrees", "divmod", "exp2", "fabs", "fix", "float_power", "fmax", "fmin",
    "fmod", "heaviside", "invert", "isclose", "isneginf", "isposinf", "left_shift", "logaddexp2",
    "mod", "nan_to_num", "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean",
    "nanmedian", "nanmin", "nanpercentile", "nanprod", "nanquantile", "nanstd", "nansum", "nanvar",
    "percentile", "power", "product", "ptp", "rad2deg", "radians", "rem", "right_shift", "sinc",
    "true_divide",
]  # fmt: skip

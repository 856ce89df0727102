"""Arithmetic, exponentials, trigonometry, comparisons, logic and bits, element by element.

Operands are arrays; one of two may be a Python scalar.  They broadcast, and promote as
`result_type` says.  Types that an op does not take raise OpTypeError at the line of the call.
Special values follow the rows of the op table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np

from bringup.api.apply import apply
from bringup.api.arguments import integer_of
from bringup.api.array import Array, Operand
from bringup.api.broadcasting import (
    aligned,
    as_array,
    binary,
    common_shape,
    convert,
    fit,
    float_unary,
    spread,
    unary,
)
from bringup.api.defaults import default_float
from bringup.api.promotion import common
from bringup.dtypes import bf16, bool_, f16, f32, i8, i16, i32, i64, u8
from bringup.errors import ConversionError, OpTypeError
from bringup.graph import Literal
from bringup.types import TensorType

F = TypeVar("F", bound=Callable[..., Any])

_SIGNED = {1: i8, 2: i16, 4: i32, 8: i64}


class Unary(Protocol):
    """A function of one operand."""

    __name__: str

    def __call__(self, x: Operand) -> Array:
        """The result for each element."""


class Binary(Protocol):
    """A function of two operands."""

    __name__: str

    def __call__(self, x1: Operand, x2: Operand) -> Array:
        """The result for each pair of elements."""


def _float(name: str, summary: str, example: str) -> Unary:
    """A function that is the float op of its name: integers become the default float first.

    example: the elements of an operand and of the result.
    """

    def function(x: Operand) -> Array:
        return float_unary(name, x)

    operand, _, result = example.partition(" -> ")
    return _documented(function, name, f"{summary}\n\n>>> bu.{name}(bu.asarray({operand}))", result)


def _comparison(name: str, sign: str, direction: str, example: str, note: str = "") -> Binary:
    """A function that compares.  example: the result for 1, 2, 3 and 2."""

    def function(x1: Operand, x2: Operand) -> Array:
        return binary("compare", x1, x2, {"direction": direction})

    doc = f"``x1 {sign} x2`` as bool{note}.\n\n>>> (bu.asarray([1, 2, 3]) {sign} 2)"
    return _documented(function, name, doc, example)


def _documented(function: F, name: str, doc: str, result: str) -> F:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc}.tolist()\n{result}\n"
    return function


reciprocal = _float("reciprocal", "``1 / x`` in a float dtype.", "[4.0] -> [0.25]")
exp = _float("exp", "``e ** x``.", "[0.0] -> [1.0]")
expm1 = _float("expm1", "``exp(x) - 1``, precise near 0.", "[0.0] -> [0.0]")
log = _float("log", "The natural logarithm; NaN below 0.", "[1.0] -> [0.0]")
log1p = _float("log1p", "``log(1 + x)``, precise near 0.", "[0.0] -> [0.0]")
log2 = _float("log2", "The logarithm to base 2; NaN below 0.", "[8.0] -> [3.0]")
log10 = _float("log10", "The logarithm to base 10; NaN below 0.", "[1000.0] -> [3.0]")
sqrt = _float("sqrt", "The square root; NaN below 0.", "[9.0] -> [3.0]")
cbrt = _float("cbrt", "The real cube root.", "[-27.0] -> [-3.0]")
rsqrt = _float("rsqrt", "``1 / sqrt(x)``.", "[4.0] -> [0.5]")
sin = _float("sin", "The sine of radians.", "[0.0] -> [0.0]")
cos = _float("cos", "The cosine of radians.", "[0.0] -> [1.0]")
tan = _float("tan", "The tangent of radians.", "[0.0] -> [0.0]")
asin = _float(
    "asin", "The inverse sine in [−π/2, π/2]; NaN beyond ±1.", "[1.0] -> [1.5707963267948966]"
)
acos = _float("acos", "The inverse cosine in [0, π]; NaN beyond ±1.", "[1.0] -> [0.0]")
atan = _float("atan", "The inverse tangent in [−π/2, π/2].", "[bu.inf] -> [1.5707963267948966]")
sinh = _float("sinh", "The hyperbolic sine.", "[0.0] -> [0.0]")
cosh = _float("cosh", "The hyperbolic cosine.", "[0.0] -> [1.0]")
tanh = _float("tanh", "The hyperbolic tangent.", "[0.0] -> [0.0]")
asinh = _float("asinh", "The inverse hyperbolic sine.", "[0.0] -> [0.0]")
acosh = _float("acosh", "The inverse hyperbolic cosine; NaN below 1.", "[1.0] -> [0.0]")
atanh = _float("atanh", "The inverse hyperbolic tangent; NaN beyond ±1.", "[0.0] -> [0.0]")

equal = _comparison("equal", "==", "eq", "[False, True, False]", "; NaN equals nothing")
not_equal = _comparison("not_equal", "!=", "ne", "[True, False, True]")
less = _comparison("less", "<", "lt", "[True, False, False]")
less_equal = _comparison("less_equal", "<=", "le", "[True, True, False]")
greater = _comparison("greater", ">", "gt", "[False, False, True]")
greater_equal = _comparison("greater_equal", ">=", "ge", "[False, True, True]")


def _float_binary(name: str, x1: Operand, x2: Operand) -> Array:
    """An elementwise op of two operands in a float dtype."""
    dtype, _ = common((x1, x2))
    return binary(name, x1, x2, dtype=None if dtype.is_inexact else default_float())


def logaddexp(x1: Operand, x2: Operand) -> Array:
    """``log(exp(x1) + exp(x2))`` without overflow.

    >>> bu.logaddexp(bu.asarray([-bu.inf]), bu.asarray([1.0])).tolist()
    [1.0]
    """
    return _float_binary("logaddexp", x1, x2)


def hypot(x1: Operand, x2: Operand) -> Array:
    """``sqrt(x1² + x2²)`` without overflow on the way.

    >>> bu.hypot(bu.asarray([3.0]), bu.asarray([4.0])).tolist()
    [5.0]
    """
    return _float_binary("hypot", x1, x2)


def atan2(x1: Operand, x2: Operand) -> Array:
    """The angle of the points (`x2`, `x1`) in [−π, π]; the sign of a zero tells its side.

    >>> bu.atan2(bu.asarray([0.0, -0.0]), -1.0).tolist() == [bu.pi, -bu.pi]
    True
    """
    return _float_binary("atan2", x1, x2)


def positive(x: Operand) -> Array:
    """``+x``: the array itself.

    >>> bu.positive(bu.asarray([-1, 2])).tolist()
    [-1, 2]
    """
    return as_array(x)


def negative(x: Operand) -> Array:
    """``-x``; unsigned integers wrap.

    >>> (-bu.asarray([1, -2])).tolist()
    [-1, 2]
    """
    return unary("neg", x)


def abs(x: Operand) -> Array:
    """The magnitude; |INT_MIN| wraps to INT_MIN.

    >>> bu.abs(bu.asarray([-1.5, 2.0])).tolist()
    [1.5, 2.0]
    """
    return unary("abs", x)


def sign(x: Operand) -> Array:
    """-1, 0 or 1 in the dtype of `x`; NaN for NaN.

    >>> bu.sign(bu.asarray([-3, 0, 9])).tolist()
    [-1, 0, 1]
    """
    return unary("sign", x)


def square(x: Operand) -> Array:
    """``x * x``.

    >>> bu.square(bu.asarray([2, -3])).tolist()
    [4, 9]
    """
    return unary("square", x)


def floor(x: Operand) -> Array:
    """The largest integral value not above `x`; integers as they are.

    >>> bu.floor(bu.asarray([-1.5, 1.5])).tolist()
    [-2.0, 1.0]
    """
    return _integral("floor", x)


def ceil(x: Operand) -> Array:
    """The smallest integral value not below `x`; integers as they are.

    >>> bu.ceil(bu.asarray([-1.5, 1.5])).tolist()
    [-1.0, 2.0]
    """
    x = as_array(x)
    return x if not x.dtype.is_inexact else (-floor(-x))


def trunc(x: Operand) -> Array:
    """`x` without its fraction; integers as they are.

    >>> bu.trunc(bu.asarray([-1.5, 1.5])).tolist()
    [-1.0, 1.0]
    """
    x = as_array(x)
    return x if not x.dtype.is_inexact else copysign(floor(abs(x)), x)


def round(x: Operand, decimals: int = 0) -> Array:
    """The nearest integral value, halves to even; integers as they are.

    decimals: digits after the point to keep.  As in numpy `x` is multiplied by a power of ten,
    rounded and divided again, which may be off by one ULP.  Below 0: digits before the point that
    become 0, of integers too, exactly.
    Raises OpTypeError for a power of ten that the dtype does not hold.

    >>> bu.round(bu.asarray([0.5, 1.5, -0.4])).tolist()
    [0.0, 2.0, -0.0]
    >>> bu.round(bu.asarray([2.346, -1.5]), 2).tolist()
    [2.35, -1.5]
    """
    x, digits = as_array(x), integer_of("round", "decimals", decimals)
    if digits == 0 or (digits > 0 and not x.dtype.is_inexact):
        return _integral("round", x)
    if x.dtype.is_complex:
        from bringup.api.complex import ComplexArray, imag, real

        return ComplexArray(round(real(x), digits), round(imag(x), digits))
    if x.dtype is bool_:
        raise OpTypeError(f"round: {x.type} has no digits", fix="convert it first")
    wide = f32 if x.dtype in (f16, bf16) else x.dtype
    limits = np.iinfo(wide.numpy) if wide.is_integer else np.finfo(wide.numpy)
    size = -digits if digits < 0 else digits
    if 10**size > int(limits.max):
        raise OpTypeError(f"round: {x.type} has no 10**{size}", fix="keep more digits")
    if not wide.is_float:
        remainder = x % 10**size
        complement = 10**size - remainder
        odd = x // 10**size % 2 != 0
        up = (remainder > complement) | (remainder == complement) & odd
        return where(up, x + complement, x - remainder)
    moved = convert(x, wide)
    moved = (moved * 10.0**size) if digits > 0 else (moved / 10.0**size)
    unscale = divide if digits > 0 else multiply
    # Where the product overflows, x has no digits after the point.
    return where(isfinite(moved), convert(unscale(unary("round", moved), 10.0**size), x.dtype), x)


def _integral(name: str, x: Operand) -> Array:
    x = as_array(x)
    return unary(name, x) if x.dtype.is_inexact else x


def add(x1: Operand, x2: Operand) -> Array:
    """``x1 + x2``; integers wrap.

    >>> bu.add(bu.asarray([1, 2]), 0.5).tolist()
    [1.5, 2.5]
    """
    return binary("add", x1, x2)


def subtract(x1: Operand, x2: Operand) -> Array:
    """``x1 - x2``; integers wrap.

    >>> (1 - bu.asarray([1, 2])).tolist()
    [0, -1]
    """
    return binary("sub", x1, x2)


def multiply(x1: Operand, x2: Operand) -> Array:
    """``x1 * x2``; integers wrap.

    >>> (bu.asarray([[1], [2]]) * bu.asarray([3, 4])).tolist()
    [[3, 4], [6, 8]]
    """
    return binary("mul", x1, x2)


def divide(x1: Operand, x2: Operand) -> Array:
    """``x1 / x2`` in a float dtype: integers become the default float first.

    >>> (bu.asarray([1, 2]) / 4).tolist()
    [0.25, 0.5]
    """
    return _float_binary("div", x1, x2)


def floor_divide(x1: Operand, x2: Operand) -> Array:
    """``x1 // x2``, rounded down as Python does.  Integers: x // 0 has every bit set.

    >>> (bu.asarray([7, -7]) // 2).tolist()
    [3, -4]
    """
    a, b = _pair(x1, x2)
    inside = binary("rem", a, b)
    turned = _other_sign(inside, b)
    if not a.dtype.is_float:
        return binary("sub", binary("div", a, b), convert(turned, a.dtype))
    quotient = binary("sub", (a - inside) / b, convert(turned, a.dtype))
    # The division above may have rounded a whole number to just below it.
    down = floor(quotient)
    down = where(quotient - down > 0.5, down + 1, down)
    plain = a / b
    return where(b == 0, plain, where(quotient == 0, copysign(quotient, plain), down))


def remainder(x1: Operand, x2: Operand) -> Array:
    """``x1 % x2``, with the sign of `x2` as Python does.

    >>> (bu.asarray([7, -7]) % 4).tolist()
    [3, 1]
    """
    a, b = _pair(x1, x2)
    inside = binary("rem", a, b)
    result = where(_other_sign(inside, b), inside + b, inside)
    return where(result == 0, copysign(result, b), result) if a.dtype.is_float else result


def _pair(x1: Operand, x2: Operand) -> tuple[Array, Array]:
    """Both operands as arrays of their common type."""
    (a, b), weak = aligned("remainder", (x1, x2))
    device = next((x._device for x in (x1, x2) if isinstance(x, Array)), None)
    first, second = (
        # An operation on the scalar, not a constant: see `trace.lazy.Scalar`.
        apply("reshape", (x,), {"shape": x.type.shape}, weak=weak, device=device)
        if isinstance(x, Literal)
        else x
        for x in (a, b)
    )
    return first, second


def _other_sign(remainder: Array, divisor: Array) -> Array:
    """Where a remainder and its divisor are not zero and differ in sign."""
    differ = (remainder < 0) != (divisor < 0)
    return (remainder != 0) & (divisor != 0) & differ


def pow(x1: Operand, x2: Operand) -> Array:
    """``x1 ** x2``.  Raises ConversionError for integers to a negative Python int.

    >>> (bu.asarray([2, 3]) ** 3).tolist()
    [8, 27]
    """
    if type(x2) is int and isinstance(x1, Array):
        if x2 == 2 and x1.dtype is not bool_:
            return square(x1)
        if x1.dtype.is_complex:
            return integral_power(x1, x2)
        if x2 < 0 and not x1.dtype.is_float:
            raise ConversionError(
                f"{x1.type} to the power {x2} is no integer",
                fix="convert the base to a float dtype first, or write the exponent as a float",
            )
    return binary("pow", x1, x2)


def integral_power(x: Operand, exponent: int) -> Array:
    """A complex array to a power that is an int."""
    from bringup.api.complex import ComplexArray
    from bringup.api.complex_rules import power

    assert isinstance(x, ComplexArray)
    return power(x, exponent)


def maximum(x1: Operand, x2: Operand) -> Array:
    """The larger of two; NaN if either is.

    >>> bu.maximum(bu.asarray([1, 5]), 3).tolist()
    [3, 5]
    """
    return binary("or" if _are_bools(x1, x2) else "max", x1, x2)


def _are_bools(x1: Operand, x2: Operand) -> bool:
    """Whether two operands meet in bool, of which true is the larger value."""
    if type(x1) is Array and x1.dtype is not bool_:
        return False
    return common((x1, x2))[0] is bool_


def minimum(x1: Operand, x2: Operand) -> Array:
    """The smaller of two; NaN if either is.

    >>> bu.minimum(bu.asarray([1, 5]), 3).tolist()
    [1, 3]
    """
    return binary("and" if _are_bools(x1, x2) else "min", x1, x2)


def clip(x: Operand, /, min: Operand | None = None, max: Operand | None = None) -> Array:
    """`x` limited to ``min <= x <= max`` in its own dtype; NaN stays, max wins over min.

    >>> bu.clip(bu.asarray([-2, 0, 7]), 0, 5).tolist()
    [0, 0, 5]
    """
    x = as_array(x)
    bounds = [bound for bound in (min, max) if bound is not None]
    dtype, _ = common((x, *bounds))
    if dtype is not x.dtype:
        raise OpTypeError(
            f"clip: bounds of {dtype} do not fit {x.type}",
            fix=f"convert the bounds to {x.dtype}, or x to {dtype}",
        )
    if len(bounds) == 2:
        operands, weak = aligned("clip", (x, *bounds))
        return apply("clamp", operands, weak=weak)
    return x if not bounds else binary("min" if min is None else "max", x, bounds[0])


def where(condition: Operand, x1: Operand, x2: Operand, /) -> Array:
    """`x1` where the condition holds, else `x2`.  Raises OpTypeError if it is not bool.

    >>> bu.where(bu.asarray([True, False]), 1, 2).tolist()
    [1, 2]
    """
    condition = as_array(condition)
    if condition.dtype is not bool_:
        raise OpTypeError(
            f"where: the condition is {condition.type}, not bool",
            fix="compare first, for instance condition != 0",
        )
    dtype, weak = common((x1, x2))
    type_ = TensorType(common_shape("where", (condition, x1, x2)), dtype)
    mask = spread(condition, type_.shape)
    branches = [fit(x, type_, condition._device) for x in (x1, x2)]
    return apply("select", (mask, *branches), weak=weak)


def copysign(x1: Operand, x2: Operand) -> Array:
    """The magnitude of `x1` with the sign bit of `x2`; floats only.

    >>> bu.copysign(bu.asarray([1.0, -2.0]), -0.0).tolist()
    [-1.0, -2.0]
    """
    a, b = _pair(x1, x2)
    return where(signbit(a) == signbit(b), a, -a)


def signbit(x: Operand) -> Array:
    """Whether the sign bit is set, of zeros and NaNs too; floats only.

    >>> bu.signbit(bu.asarray([-0.0, 1.0])).tolist()
    [True, False]
    """
    x = as_array(x)
    if not x.dtype.is_float:
        raise OpTypeError(f"signbit: {x.type} is no float", fix="compare with 0 instead")
    return bits(x) < 0


def bits(x: Array) -> Array:
    """The bits of a float array as signed integers of the same width."""
    if not x.dtype.is_float:
        raise OpTypeError(f"{x.type} is no float", fix="convert it, or use real(x)")
    return apply("bitcast", (x,), {"dtype": _SIGNED[x.dtype.itemsize]})


def nextafter(x1: Operand, x2: Operand) -> Array:
    """The neighbour of `x1` in its dtype on the way to `x2`; floats only.

    >>> bu.nextafter(bu.asarray([0.0]), 1.0).tolist()
    [5e-324]
    """
    a, b = _pair(x1, x2)
    word = bits(a)
    upwards_in_size = (a < b) == (a > 0)
    moved = apply("bitcast", (where(upwards_in_size, word + 1, word - 1),), {"dtype": a.dtype})
    smallest = np.ones((), f"u{a.dtype.itemsize}").view(a.dtype.numpy)[()]
    moved = where(a == 0, copysign(smallest, b), moved)
    unordered = not_equal(a, a) | not_equal(b, b)
    return where(unordered, a + b, where(a == b, b, moved))


def as_bool(x: Operand) -> Array:
    """Whether each element is not zero."""
    return convert(as_array(x), bool_)


def logical_and(x1: Operand, x2: Operand) -> Array:
    """Whether both are true, or not zero.

    >>> bu.logical_and(bu.asarray([True, False]), True).tolist()
    [True, False]
    """
    return binary("and", as_bool(x1), as_bool(x2))


def logical_or(x1: Operand, x2: Operand) -> Array:
    """Whether either is true, or not zero.

    >>> bu.logical_or(bu.asarray([True, False]), False).tolist()
    [True, False]
    """
    return binary("or", as_bool(x1), as_bool(x2))


def logical_xor(x1: Operand, x2: Operand) -> Array:
    """Whether exactly one is true, or not zero.

    >>> bu.logical_xor(bu.asarray([True, False]), True).tolist()
    [False, True]
    """
    return binary("xor", as_bool(x1), as_bool(x2))


def logical_not(x: Operand) -> Array:
    """Whether an element is false, or zero.

    >>> bu.logical_not(bu.asarray([True, False])).tolist()
    [False, True]
    """
    return binary("xor", as_bool(x), True)


def bitwise_and(x1: Operand, x2: Operand) -> Array:
    """``x1 & x2`` on integers and bools.

    >>> (bu.asarray([6, 5]) & 3).tolist()
    [2, 1]
    """
    return binary("and", x1, x2)


def bitwise_or(x1: Operand, x2: Operand) -> Array:
    """``x1 | x2`` on integers and bools.

    >>> (bu.asarray([6, 5]) | 1).tolist()
    [7, 5]
    """
    return binary("or", x1, x2)


def bitwise_xor(x1: Operand, x2: Operand) -> Array:
    """``x1 ^ x2`` on integers and bools.

    >>> (bu.asarray([6, 5]) ^ 1).tolist()
    [7, 4]
    """
    return binary("xor", x1, x2)


def bitwise_invert(x: Operand) -> Array:
    """``~x`` on integers and bools.

    >>> (~bu.asarray([0, 5])).tolist()
    [-1, -6]
    """
    x = as_array(x)
    every = x.dtype.kind == "uint" and (1 << x.dtype.bits) - 1
    return binary("xor", x, True if x.dtype is bool_ else every or -1)


def bitwise_left_shift(x1: Operand, x2: Operand) -> Array:
    """``x1 << x2`` on integers; 0 once every bit is out.

    >>> (bu.asarray([1, 3]) << 2).tolist()
    [4, 12]
    """
    return binary("shl", x1, x2)


def bitwise_right_shift(x1: Operand, x2: Operand) -> Array:
    """``x1 >> x2`` on integers; negative numbers stay negative.

    >>> (bu.asarray([-8, 9]) >> 1).tolist()
    [-4, 4]
    """
    dtype, _ = common((x1, x2))
    return binary("shr", x1, x2, {"kind": "logical" if dtype.kind == "uint" else "arithmetic"})


def bitwise_count(x: Operand) -> Array:
    """How many bits of integers are set, as u8; negative ones as their bits.

    >>> bu.bitwise_count(bu.asarray([0, 7, -1])).tolist()
    [0, 3, 64]
    """
    return convert(unary("popcount", x), u8)


def count_leading_zeros(x: Operand) -> Array:
    """How many zero bits come before the highest set one, as u8; all of them for 0.

    >>> bu.count_leading_zeros(bu.asarray([0, 1, -1])).tolist()
    [64, 63, 0]
    """
    return convert(unary("clz", x), u8)


def isnan(x: Operand) -> Array:
    """Whether an element is NaN.

    >>> bu.isnan(bu.asarray([1.0, bu.nan])).tolist()
    [False, True]
    """
    return as_array(x) != x


def isinf(x: Operand) -> Array:
    """Whether an element is infinite.

    >>> bu.isinf(bu.asarray([1.0, -bu.inf])).tolist()
    [False, True]
    """
    x = as_array(x)
    if x.dtype.is_complex:
        from bringup.api.complex import imag, real

        return isinf(real(x)) | isinf(imag(x))
    return (abs(x) == float("inf")) if x.dtype.is_float else not_equal(x, x)


def isfinite(x: Operand) -> Array:
    """Whether an element is neither NaN nor infinite.

    >>> bu.isfinite(bu.asarray([1.0, bu.nan])).tolist()
    [True, False]
    """
    x = as_array(x)
    if x.dtype.is_complex:
        return x - x == 0  # inf - inf is NaN
    return (abs(x) < float("inf")) if x.dtype.is_float else equal(x, x)

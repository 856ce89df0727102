"""What ops do to complex arrays: a rule per op, in terms of ops on the parts.

Arithmetic is that of numpy: products are not repaired where they overflow to NaN, and quotients
are scaled (R. L. Smith, 1962).  Functions follow C99's Annex G at zeros and infinities as far as
their formulas do; a few ULP of the larger part are lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bringup.api.apply import apply
from bringup.api.array import Array
from bringup.api.broadcasting import convert as real_convert
from bringup.api.complex import ComplexArray, from_literal
from bringup.api.elementwise import (
    abs,
    add,
    copysign,
    divide,
    equal,
    greater,
    greater_equal,
    isfinite,
    less,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    multiply,
    negative,
    not_equal,
    square,
    subtract,
    where,
)
from bringup.api.floating import (
    asinh,
    atan2,
    cos,
    cosh,
    exp,
    expm1,
    hypot,
    log,
    log1p,
    sin,
    sinh,
    sqrt,
    tan,
)
from bringup.api.manipulation import concat, reshape
from bringup.dtypes import PART_OF, DType, bool_, f32
from bringup.errors import OpTypeError
from bringup.graph import Literal, user_location
from bringup.types import TensorType

Attrs = Mapping[str, Any]
Rule = Callable[..., Array]

# Exponents up to which integral powers are products.
_PRODUCTS = 64


def apply_rule(name: str, operands: Sequence[Array | Literal], attrs: Attrs) -> Array:
    """The result of an op some of whose operands are complex.  Raises OpTypeError without a rule.

    operands: at least one is a `ComplexArray` or a literal of a complex dtype.
    """
    rule = RULES.get(name)
    device = next((x._device for x in operands if isinstance(x, Array)), None)
    if rule is None:
        raise _refused(name, operands)
    if name in ("mul", "div") and _is_real(operands[1]):
        return _linear(name, attrs, operands[0], _factor(operands[1]))
    if name == "pow" and _is_real(operands[1]) and isinstance(operands[0], ComplexArray):
        exponent = float(_factor(operands[1]).scalar)
        if exponent.is_integer() and math.fabs(exponent) <= _PRODUCTS:
            return power(operands[0], int(exponent))
    if name == "mul" and _is_real(operands[0]):
        return _linear(name, attrs, _factor(operands[0]), operands[1])
    arrays = [
        from_literal(x, device) if isinstance(x, Literal) and x.type.dtype.is_complex else x
        for x in operands
    ]
    return rule(name, attrs, *arrays)


def _is_real(x: Array | Literal) -> bool:
    """Whether an operand is a real scalar, by which parts are multiplied apart."""
    return isinstance(x, Literal) and math.copysign(1, x.scalar.imag) > 0 and not x.scalar.imag


def _factor(x: Array | Literal) -> Literal:
    assert isinstance(x, Literal)
    return Literal.splat(x.scalar.real, x.type.with_dtype(PART_OF[x.type.dtype]))


def _refused(name: str, operands: Sequence[Array | Literal]) -> OpTypeError:
    types = ", ".join(str(x.type) for x in operands)
    return OpTypeError(
        f"{name}: does not take complex numbers: {types}",
        location=user_location(),
        fix="use real(x), imag(x), abs(x) or angle(x)",
    )


def _part(x: Any, which: str) -> Any:
    """A part of a complex operand; a real factor, an index or a condition as it is."""
    return getattr(x, which) if isinstance(x, ComplexArray) else x


def _linear(name: str, attrs: Attrs, *operands: Any) -> Array:
    """Moves, sums, choices: the same op on either part."""
    real, imag = (apply(name, [_part(x, which) for x in operands], attrs) for which in _PARTS)
    return ComplexArray(real, imag)


_PARTS = ("_real", "_imag")


def _fold(name: str, attrs: Attrs, *operands: Any) -> Array:
    if attrs["kind"] not in ("add", "set"):
        raise _refused(f"{name} ({attrs['kind']})", operands)
    return _linear(name, attrs, *operands)


def _reduce(name: str, attrs: Attrs, x: ComplexArray) -> Array:
    if attrs["kind"] != "mul":
        return _fold(name, attrs, x)
    dims = attrs["dims"]
    kept = [d for d in range(x.ndim) if d not in dims]
    count = math.prod(x.shape[d] for d in dims)
    shape = tuple(x.shape[d] for d in kept)
    order = {"permutation": (*kept, *dims)}
    rest = reshape(apply("transpose", (x,), order), (*shape, count))
    # Halves are multiplied by each other until one is left.
    while count > 1:
        half = count // 2
        product = multiply(rest[..., :half], rest[..., half : 2 * half])
        rest = concat([product, rest[..., 2 * half :]], axis=-1) if count % 2 else product
        count = half + count % 2
    if count == 0:
        return _constant(x.dtype, shape, x._device)
    return reshape(rest, shape)


def _convert(_name: str, attrs: Attrs, x: ComplexArray) -> Array:
    dtype = attrs["dtype"]
    if dtype is bool_:
        return logical_or(not_equal(x.real, 0), not_equal(x.imag, 0))
    if not dtype.is_complex:
        raise OpTypeError(
            f"{x.type} does not become {dtype}: that would lose the imaginary part",
            location=user_location(),
            fix="take a part first: real(x), imag(x) or abs(x)",
        )
    part = PART_OF[dtype]
    return ComplexArray(real_convert(x.real, part), real_convert(x.imag, part))


def _compare(_name: str, attrs: Attrs, x: ComplexArray, y: ComplexArray) -> Array:
    direction = attrs["direction"]
    if direction == "eq":
        return logical_and(equal(x.real, y.real), equal(x.imag, y.imag))
    if direction == "ne":
        return logical_or(not_equal(x.real, y.real), not_equal(x.imag, y.imag))
    raise OpTypeError(
        f"complex numbers have no order: {x.type} and {y.type}",
        location=user_location(),
        fix="compare abs(x), real(x) or imag(x)",
    )


def _mul(_name: str, _attrs: Attrs, x: ComplexArray, y: ComplexArray) -> ComplexArray:
    a, b, c, d = x.real, x.imag, y.real, y.imag
    return ComplexArray(
        subtract(multiply(a, c), multiply(b, d)), add(multiply(a, d), multiply(b, c))
    )


def _square(_name: str, _attrs: Attrs, x: ComplexArray) -> Array:
    a, b = x.real, x.imag
    product = multiply(a, b)
    return ComplexArray(multiply(subtract(a, b), add(a, b)), add(product, product))


def _div(_name: str, _attrs: Attrs, x: ComplexArray, y: ComplexArray) -> ComplexArray:
    a, b, c, d = x.real, x.imag, y.real, y.imag
    wide = greater_equal(abs(c), abs(d))
    large, small = where(wide, c, d), where(wide, d, c)
    ratio = divide(small, where(equal(large, 0), 1.0, large))
    scale = add(large, multiply(small, ratio))
    first, second = where(wide, a, b), where(wide, b, a)
    real = divide(add(first, multiply(second, ratio)), scale)
    crossed = subtract(second, multiply(first, ratio))
    return ComplexArray(real, divide(where(wide, crossed, negative(crossed)), scale))


def _reciprocal(name: str, attrs: Attrs, x: ComplexArray) -> Array:
    return _div(name, attrs, _constant(x.dtype, x.shape, x._device), x)


def _constant(dtype: DType, shape: tuple[int, ...], device: Any) -> ComplexArray:
    """Ones."""
    return from_literal(Literal.splat(1, TensorType(shape, dtype)), device)


def _dot(name: str, attrs: Attrs, x: ComplexArray, y: ComplexArray) -> Array:
    kept = {key: attrs[key] for key in ("batch", "contract", "precision") if key in attrs}

    def product(a: Array, b: Array) -> Array:
        return apply(name, (a, b), kept)

    real = subtract(product(x.real, y.real), product(x.imag, y.imag))
    return ComplexArray(real, add(product(x.real, y.imag), product(x.imag, y.real)))


def _abs(_name: str, _attrs: Attrs, x: ComplexArray) -> Array:
    return hypot(x.real, x.imag)


def _sign(_name: str, _attrs: Attrs, x: ComplexArray) -> Array:
    size = hypot(x.real, x.imag)
    size = where(equal(size, 0), 1.0, size)
    return ComplexArray(divide(x.real, size), divide(x.imag, size))


def _var(name: str, attrs: Attrs, x: ComplexArray) -> Array:
    return add(apply(name, (x.real,), attrs), apply(name, (x.imag,), attrs))


def _choose(mask: Array, x: Any, y: Any, like: Array) -> Array:
    """`where` of scalars, in the type of an array."""
    parts = [v if isinstance(v, Array) else Literal.splat(v, like.type) for v in (x, y)]
    return apply("select", (mask, *parts))


def _exp(_name: str, _attrs: Attrs, x: ComplexArray) -> ComplexArray:
    """Far out e^x is taken in two factors: cos y may bring the product back into range."""
    a, b = x.real, x.imag
    limit = 88.0 if a.dtype is f32 else 709.0
    far = greater(a, limit)
    size = exp(where(far, subtract(a, limit), a))
    rest = _choose(far, math.exp(limit), 1.0, a)
    real = multiply(multiply(size, cos(b)), rest)
    imag = where(equal(b, 0), b, multiply(multiply(size, sin(b)), rest))
    # e^-inf is 0 in every direction, and e^inf infinite.
    turning = logical_not(isfinite(b))
    none = logical_and(equal(a, -math.inf), turning)
    real = where(logical_and(equal(a, math.inf), turning), a, where(none, 0.0, real))
    return ComplexArray(real, where(none, 0.0, imag))


def _expm1(_name: str, _attrs: Attrs, x: ComplexArray) -> Array:
    a, b = x.real, x.imag
    half = sin(multiply(b, 0.5))
    real = subtract(multiply(expm1(a), cos(b)), multiply(2.0, square(half)))
    return ComplexArray(real, multiply(exp(a), sin(b)))


def _log(_name: str, _attrs: Attrs, x: ComplexArray) -> ComplexArray:
    """Near |x| = 1 by log1p, since the logarithm of a rounded 1 has no right digit."""
    a, b = abs(x.real), abs(x.imag)
    large, small = maximum(a, b), minimum(a, b)
    near = logical_and(greater(large, 0.5), less(large, 2.0))
    within = where(near, large, 1.0)
    excess = add(multiply(subtract(within, 1.0), add(within, 1.0)), square(where(near, small, 0.0)))
    # Quarters, so that the size does not overflow.
    far = greater(large, 2.0)
    factor = _choose(far, 0.25, 1.0, a)
    size = hypot(multiply(a, factor), multiply(b, factor))
    whole = add(log(size), _choose(far, math.log(4), 0.0, a))
    real = where(near, multiply(log1p(excess), 0.5), whole)
    return ComplexArray(real, atan2(x.imag, x.real))


def _log_to(base: int) -> Rule:
    def apply_log(name: str, attrs: Attrs, x: ComplexArray) -> Array:
        return _linear("div", {}, _log(name, attrs, x), _like(x, math.log(base)))

    return apply_log


def _like(x: ComplexArray, value: float) -> Literal:
    return Literal.splat(value, x.real.type)


def _log1p(name: str, attrs: Attrs, x: ComplexArray) -> Array:
    a, b = x.real, x.imag
    excess = add(multiply(a, add(a, 2.0)), square(b))
    near = less(abs(excess), 0.5)
    whole = _log(name, attrs, ComplexArray(add(a, 1.0), b))
    real = where(near, multiply(log1p(where(near, excess, 0.0)), 0.5), whole.real)
    return ComplexArray(real, whole.imag)


def _sqrt(_name: str, _attrs: Attrs, x: ComplexArray) -> ComplexArray:
    a, b = x.real, x.imag
    large = maximum(abs(a), abs(b))
    # Powers of 4, so that scaling is exact on both sides of the root.
    top, bottom = (2.0**120, 2.0**-100) if a.dtype is f32 else (2.0**1000, 2.0**-900)
    high, low = greater(large, top), less(large, bottom)
    factor = where(high, 2.0**-4, _choose(low, 2.0**60, 1.0, a))
    back = where(high, 4.0, _choose(low, 2.0**-30, 1.0, a))
    c, d = multiply(a, factor), multiply(b, factor)
    root = sqrt(multiply(add(abs(c), hypot(c, d)), 0.5))
    other = divide(d, where(equal(root, 0), 1.0, add(root, root)))
    right = greater_equal(c, 0)
    real = multiply(where(right, root, abs(other)), back)
    imag = multiply(where(right, other, copysign(root, b)), back)
    # An infinite imaginary part wins, and a zero one stays where the root is real.
    endless = equal(abs(b), math.inf)
    kept = logical_or(endless, logical_and(equal(b, 0), greater_equal(a, 0)))
    return ComplexArray(where(endless, math.inf, real), where(kept, b, imag))


def _pow(name: str, attrs: Attrs, x: ComplexArray, y: ComplexArray) -> Array:
    none = equal(hypot(x.real, x.imag), 0)
    base = ComplexArray(where(none, 1.0, x.real), where(none, 0.0, x.imag))
    result = _exp(name, attrs, _mul(name, attrs, y, _log(name, attrs, base)))
    unit = logical_and(equal(y.real, 0), equal(y.imag, 0))
    # 0^y is 0 to the right, 1 at 0 and nothing elsewhere.
    nothing = _choose(greater(y.real, 0), 0.0, math.nan, y.real)
    real, imag = where(unit, 1.0, nothing), where(unit, 0.0, nothing)
    return ComplexArray(where(none, real, result.real), where(none, imag, result.imag))


def power(x: ComplexArray, exponent: int) -> Array:
    """A power by products, where numpy takes them too."""
    if not -_PRODUCTS <= exponent <= _PRODUCTS:
        return apply_rule("pow", (x, Literal.splat(exponent, x.type)), {})
    result, factor = _constant(x.dtype, x.shape, x._device), x
    first, rest = True, exponent if exponent >= 0 else -exponent
    while rest:
        if rest & 1:
            result, first = (factor, False) if first else (_mul("mul", {}, result, factor), False)
        rest >>= 1
        factor = _mul("mul", {}, factor, factor) if rest else factor
    return result if exponent >= 0 else _reciprocal("reciprocal", {}, result)


def _sin(_name: str, _attrs: Attrs, x: ComplexArray) -> Array:
    a, b = x.real, x.imag
    return ComplexArray(multiply(sin(a), cosh(b)), multiply(cos(a), sinh(b)))


def _cos(_name: str, _attrs: Attrs, x: ComplexArray) -> Array:
    a, b = x.real, x.imag
    return ComplexArray(multiply(cos(a), cosh(b)), negative(multiply(sin(a), sinh(b))))


def _sinh(_name: str, _attrs: Attrs, x: ComplexArray) -> Array:
    a, b = x.real, x.imag
    return ComplexArray(multiply(sinh(a), cos(b)), multiply(cosh(a), sin(b)))


def _cosh(_name: str, _attrs: Attrs, x: ComplexArray) -> Array:
    a, b = x.real, x.imag
    return ComplexArray(multiply(cosh(a), cos(b)), multiply(sinh(a), sin(b)))


def _tanh(_name: str, _attrs: Attrs, x: ComplexArray) -> ComplexArray:
    """By W. Kahan (1987): no factor overflows before the quotient is near ±1."""
    a, b = x.real, x.imag
    within = maximum(minimum(a, 20.0), -20.0)
    slope, s = tan(b), sinh(within)
    grown = add(square(slope), 1.0)
    scale = add(multiply(grown, square(s)), 1.0)
    real = divide(multiply(multiply(grown, sqrt(add(square(s), 1.0))), s), scale)
    return ComplexArray(real, divide(slope, scale))


def _times_i(x: ComplexArray) -> ComplexArray:
    return ComplexArray(negative(x.imag), x.real)


def _over_i(x: ComplexArray) -> ComplexArray:
    return ComplexArray(x.imag, negative(x.real))


def _turned(rule: Callable[[str, Attrs, ComplexArray], ComplexArray]) -> Rule:
    """f(ix)/i: what the hyperbolic functions make of the others."""

    def apply_turned(name: str, attrs: Attrs, x: ComplexArray) -> Array:
        return _over_i(rule(name, attrs, _times_i(x)))

    return apply_turned


def _beside_one(x: ComplexArray) -> tuple[ComplexArray, ComplexArray]:
    """The roots of 1 − x and 1 + x, on whose branches the inverse functions stand (W. Kahan)."""
    below = ComplexArray(subtract(1.0, x.real), negative(x.imag))
    above = ComplexArray(add(x.real, 1.0), x.imag)
    return _sqrt("sqrt", {}, below), _sqrt("sqrt", {}, above)


def _crossed(x: ComplexArray, y: ComplexArray) -> Array:
    """The imaginary part of conj(x) y."""
    return subtract(multiply(x.real, y.imag), multiply(x.imag, y.real))


def _asin(_name: str, _attrs: Attrs, x: ComplexArray) -> ComplexArray:
    below, above = _beside_one(x)
    across = subtract(multiply(below.real, above.real), multiply(below.imag, above.imag))
    return ComplexArray(atan2(x.real, across), asinh(_crossed(below, above)))


def _acos(_name: str, _attrs: Attrs, x: ComplexArray) -> ComplexArray:
    below, above = _beside_one(x)
    angle = multiply(atan2(below.real, above.real), 2.0)
    return ComplexArray(angle, asinh(_crossed(above, below)))


def _asinh(name: str, attrs: Attrs, x: ComplexArray) -> ComplexArray:
    return _over_i(_asin(name, attrs, _times_i(x)))


def _acosh(_name: str, _attrs: Attrs, x: ComplexArray) -> Array:
    below = _sqrt("sqrt", {}, ComplexArray(subtract(x.real, 1.0), x.imag))
    above = _sqrt("sqrt", {}, ComplexArray(add(x.real, 1.0), x.imag))
    size = add(multiply(below.real, above.real), multiply(below.imag, above.imag))
    return ComplexArray(asinh(size), multiply(atan2(below.imag, above.real), 2.0))


def _atanh(_name: str, _attrs: Attrs, x: ComplexArray) -> ComplexArray:
    a, b = x.real, x.imag
    beyond = subtract(1.0, a)
    ratio = divide(multiply(a, 4.0), add(square(beyond), square(b)))
    across = subtract(multiply(beyond, add(a, 1.0)), square(b))
    angle = atan2(multiply(b, 2.0), across)
    return ComplexArray(multiply(log1p(ratio), 0.25), multiply(angle, 0.5))


_LINEAR = (
    "add", "sub", "neg", "select", "reshape", "transpose", "broadcast_in_dim", "slice", "pad",
    "concatenate", "mean", "round", "gather", "dynamic_slice", "dynamic_update_slice",
)  # fmt: skip

RULES: dict[str, Rule] = {
    **dict.fromkeys(_LINEAR, _linear),
    "abs": _abs,
    "acos": _acos,
    "acosh": _acosh,
    "asin": _asin,
    "asinh": _asinh,
    "atan": _turned(_atanh),
    "atanh": _atanh,
    "compare": _compare,
    "convert": _convert,
    "cos": _cos,
    "cosh": _cosh,
    "cumulative": _fold,
    "div": _div,
    "dot_general": _dot,
    "exp": _exp,
    "expm1": _expm1,
    "log": _log,
    "log1p": _log1p,
    "log2": _log_to(2),
    "log10": _log_to(10),
    "mul": _mul,
    "pow": _pow,
    "reciprocal": _reciprocal,
    "reduce": _reduce,
    "reduce_window": _fold,
    "scatter": _fold,
    "sign": _sign,
    "sin": _sin,
    "sinh": _sinh,
    "sqrt": _sqrt,
    "square": _square,
    "tan": _turned(_tanh),
    "tanh": _tanh,
    "var": _var,
}
"""What an op does to complex operands, by its name: ``rule(name, attrs, *operands)``."""

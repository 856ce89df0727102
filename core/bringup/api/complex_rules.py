"""What ops do to complex arrays: a rule per op, in terms of ops on the parts.

Arithmetic is that of numpy: products are not repaired where they overflow to NaN, and quotients
are scaled (R. L. Smith, 1962).  Functions have the special values of C99's Annex G, which are those
of the array API standard.  A few ULP of the larger part are lost, of either part by roots and the
inverse functions (W. Kahan, Branch cuts for complex elementary functions, 1987).
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
    asinh,
    atan2,
    copysign,
    cos,
    cosh,
    equal,
    exp,
    expm1,
    hypot,
    isfinite,
    log,
    log1p,
    maximum,
    minimum,
    sin,
    sinh,
    sqrt,
    square,
    tan,
    where,
)
from bringup.api.manipulation import concat, flip, reshape
from bringup.dtypes import PART_OF, DType, bool_, f32
from bringup.errors import OpTypeError
from bringup.graph import Literal
from bringup.ops.table import OpDef, lookup
from bringup.types import TensorType

Attrs = Mapping[str, Any]
Rule = Callable[..., Array]

# Integral powers up to this exponent are computed by multiplication.
_PRODUCTS = 64


def apply_rule(name: str, operands: Sequence[Array | Literal], attrs: Attrs) -> Array:
    """The result of an op some of whose operands are complex.  Raises OpTypeError without a rule.

    operands: at least one is a `ComplexArray` or a literal of a complex dtype.
    """
    row = lookup(name)
    rule = RULES.get(name, _linear if _is_by_parts(row) else None)
    device = next((x._device for x in operands if isinstance(x, Array)), None)
    if rule is None:
        raise _refused(name, operands)
    for position, x in enumerate(operands):
        factors = [y for n, y in enumerate(operands) if n != position]
        if (
            (position,) in row.linear
            and isinstance(x, ComplexArray)
            and all(map(_is_real, factors))
        ):
            real = [x if n == position else _factor(y) for n, y in enumerate(operands)]
            return _linear(name, attrs, *real)
    if name == "pow" and isinstance(operands[0], ComplexArray) and _is_real(operands[1]):
        exponent = float(_factor(operands[1]).scalar)
        if exponent.is_integer() and math.fabs(exponent) <= _PRODUCTS:
            return power(operands[0], int(exponent))
    arrays = [
        from_literal(x, device) if isinstance(x, Literal) and x.type.dtype.is_complex else x
        for x in operands
    ]
    return rule(name, attrs, *arrays)


def _is_by_parts(row: OpDef) -> bool:
    """Whether an op does the same with either part: it moves elements, or is linear in all complex
    operands together.
    """
    return row.index_map is not None or len(row.linear) == 1


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
        fix="use real(x), imag(x), abs(x) or angle(x)",
    )


def _part(x: Any, which: str) -> Any:
    """A part of a complex operand; a real factor, an index or a condition as it is."""
    return getattr(x, which) if isinstance(x, ComplexArray) else x


def _linear(name: str, attrs: Attrs, *operands: Any) -> Array:
    """Ops that move, add or select elements: the same op on either part."""
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
    free_dims = [d for d in range(x.ndim) if d not in dims]
    count = math.prod(x.shape[d] for d in dims)
    shape = tuple(x.shape[d] for d in free_dims)
    order = {"permutation": (*free_dims, *dims)}
    factors = reshape(apply("transpose", (x,), order), (*shape, count))
    # Multiply the two halves elementwise until one element is left.
    while count > 1:
        half = count // 2
        product = factors[..., :half] * factors[..., half : 2 * half]
        factors = concat([product, factors[..., 2 * half :]], axis=-1) if count % 2 else product
        count = half + count % 2
    if count == 0:
        return _ones(x.dtype, shape, x._device)
    return reshape(factors, shape)


def _cumulative(name: str, attrs: Attrs, x: Array) -> Array:
    """Products of 2, 4, 8 … elements and those before them, by doubling (D. Hillis, G. Steele)."""
    if attrs["kind"] != "mul":
        return _fold(name, attrs, x)
    axis = attrs["dim"]
    before = (slice(None),) * axis
    if attrs.get("reverse"):
        return flip(_cumulative(name, {**attrs, "reverse": False}, flip(x, axis=axis)), axis=axis)
    result: Array = x
    if attrs.get("exclusive"):
        ones = _ones(x.dtype, (*x.shape[:axis], 1, *x.shape[axis + 1 :]), x._device)
        result = concat([ones, result[(*before, slice(-1))]], axis=axis)
    step = 1
    while step < x.shape[axis]:
        product = result[*before, slice(step, None)] * result[*before, slice(-step)]
        result = concat([result[(*before, slice(step))], product], axis=axis)
        step *= 2
    return result


def _convert(_name: str, attrs: Attrs, x: ComplexArray) -> Array:
    dtype = attrs["dtype"]
    if dtype is bool_:
        return (x.real != 0) | (x.imag != 0)
    if not dtype.is_complex:
        raise OpTypeError(
            f"{x.type} does not become {dtype}: that would lose the imaginary part",
            fix="take a part first: real(x), imag(x) or abs(x)",
        )
    part = PART_OF[dtype]
    return ComplexArray(real_convert(x.real, part), real_convert(x.imag, part))


def _compare(_name: str, attrs: Attrs, x: ComplexArray, y: ComplexArray) -> Array:
    direction = attrs["direction"]
    if direction == "eq":
        return (x.real == y.real) & (x.imag == y.imag)
    if direction == "ne":
        return (x.real != y.real) | (x.imag != y.imag)
    raise OpTypeError(
        f"complex numbers have no order: {x.type} and {y.type}",
        fix="compare abs(x), real(x) or imag(x)",
    )


def _mul(_name: str, _attrs: Attrs, x: ComplexArray, y: ComplexArray) -> ComplexArray:
    a, b, c, d = x.real, x.imag, y.real, y.imag
    return ComplexArray(a * c - b * d, a * d + b * c)


def _square(_name: str, _attrs: Attrs, x: ComplexArray) -> Array:
    a, b = x.real, x.imag
    product = a * b
    return ComplexArray((a - b) * (a + b), product + product)


def _div(_name: str, _attrs: Attrs, x: ComplexArray, y: ComplexArray) -> ComplexArray:
    a, b, c, d = x.real, x.imag, y.real, y.imag
    wide = abs(c) >= abs(d)
    large, small = where(wide, c, d), where(wide, d, c)
    ratio = small / where(large == 0, 1.0, large)
    scale = large + small * ratio
    first, second = where(wide, a, b), where(wide, b, a)
    real = (first + second * ratio) / scale
    crossed = second - first * ratio
    return ComplexArray(real, where(wide, crossed, -crossed) / scale)


def _reciprocal(name: str, attrs: Attrs, x: ComplexArray) -> Array:
    return _div(name, attrs, _ones(x.dtype, x.shape, x._device), x)


def _ones(dtype: DType, shape: tuple[int, ...], device: Any) -> ComplexArray:
    """Complex ones."""
    return from_literal(Literal.splat(1, TensorType(shape, dtype)), device)


def _dot(name: str, attrs: Attrs, x: ComplexArray, y: ComplexArray) -> Array:
    product_attrs = {key: attrs[key] for key in ("batch", "contract", "precision") if key in attrs}

    def product(a: Array, b: Array) -> Array:
        return apply(name, (a, b), product_attrs)

    real = product(x.real, y.real) - product(x.imag, y.imag)
    return ComplexArray(real, product(x.real, y.imag) + product(x.imag, y.real))


def _abs(_name: str, _attrs: Attrs, x: ComplexArray) -> Array:
    return hypot(x.real, x.imag)


def _sign(_name: str, _attrs: Attrs, x: ComplexArray) -> Array:
    size = hypot(x.real, x.imag)
    size = where(size == 0, 1.0, size)
    return ComplexArray(x.real / size, x.imag / size)


def _var(name: str, attrs: Attrs, x: ComplexArray) -> Array:
    return apply(name, (x.real,), attrs) + apply(name, (x.imag,), attrs)


def _choose(mask: Array, x: Any, y: Any, like: Array) -> Array:
    """`where` of scalars, in the type of an array."""
    parts = [v if isinstance(v, Array) else Literal.splat(v, like.type) for v in (x, y)]
    return apply("select", (mask, *parts))


def _zero_or_product(x: Array, y: Array) -> Array:
    """``x * y``, but 0 of their signs where a factor is 0, even if the other is infinite or NaN."""
    none = (x == 0) | (y == 0)
    zero = copysign(0.0, x) * copysign(1.0, y)
    return where(none, zero, x * y)


def _cos_sin(a: Array, b: Array) -> tuple[Array, Array]:
    """The cosine and sine of b.  e^(∞ + ib) is infinite for any b: where `a` is infinite and `b` is
    not finite the cosine is 1, so that the real part keeps its size.
    """
    known = isfinite(b) | (abs(a) != math.inf)
    return where(known, cos(b), 1.0), sin(b)


def _exp(_name: str, _attrs: Attrs, x: ComplexArray) -> ComplexArray:
    """Far out e^a is computed as two factors, as cos b may bring the product back into range."""
    a, (real, imag) = x.real, _cos_sin(x.real, x.imag)
    limit = _exponent(a)
    far = a > limit
    size = exp(where(far, a - limit, a))
    far_factor = _choose(far, math.exp(limit), 1.0, a)
    product = where(imag == 0, imag, size * imag * far_factor)
    none = a == -math.inf
    return ComplexArray(size * real * far_factor, where(none, copysign(0.0, imag), product))


def _exponent(x: Array) -> float:
    """The largest whole exponent of which the exponential is finite."""
    return 88.0 if x.dtype is f32 else 709.0


def _expm1(name: str, attrs: Attrs, x: ComplexArray) -> Array:
    a, b = x.real, x.imag
    exponential = _exp(name, attrs, x)
    half = sin(b * 0.5)
    near = expm1(a) * cos(b) - 2.0 * square(half)
    real = where(abs(a) < 1.0, near, exponential.real - 1.0)
    return ComplexArray(real, exponential.imag)


def _log(_name: str, _attrs: Attrs, x: ComplexArray) -> ComplexArray:
    """Near |x| = 1 by log1p, since the logarithm of a rounded 1 has no right digit."""
    a, b = abs(x.real), abs(x.imag)
    large, small = maximum(a, b), minimum(a, b)
    near = (large > 0.5) & (large < 2.0)
    within = where(near, large, 1.0)
    excess = (within - 1.0) * (within + 1.0) + square(where(near, small, 0.0))
    # Scale by 1/4, so that the magnitude does not overflow.
    far = large > 2.0
    factor = _choose(far, 0.25, 1.0, a)
    size = hypot(a * factor, b * factor)
    far_log = log(size) + _choose(far, math.log(4), 0.0, a)
    real = where(near, log1p(excess) * 0.5, far_log)
    return ComplexArray(real, atan2(x.imag, x.real))


def _log_to(base: int) -> Rule:
    def apply_log(name: str, attrs: Attrs, x: ComplexArray) -> Array:
        return _linear("div", {}, _log(name, attrs, x), _like(x, math.log(base)))

    return apply_log


def _like(x: ComplexArray, value: float) -> Literal:
    return Literal.splat(value, x.real.type)


def _log1p(name: str, attrs: Attrs, x: ComplexArray) -> Array:
    a, b = x.real, x.imag
    excess = a * (a + 2.0) + square(b)
    near = abs(excess) < 0.5
    logarithm = _log(name, attrs, ComplexArray(a + 1.0, b))
    real = where(near, log1p(where(near, excess, 0.0)) * 0.5, logarithm.real)
    return ComplexArray(real, logarithm.imag)


def _sqrt(_name: str, _attrs: Attrs, x: ComplexArray) -> ComplexArray:
    a, b = x.real, x.imag
    large = maximum(abs(a), abs(b))
    # Powers of 4, so that scaling is exact on both sides of the root.
    top, bottom = (2.0**120, 2.0**-100) if a.dtype is f32 else (2.0**1000, 2.0**-900)
    high, low = large > top, large < bottom
    factor = where(high, 2.0**-4, _choose(low, 2.0**60, 1.0, a))
    unscale = where(high, 4.0, _choose(low, 2.0**-30, 1.0, a))
    c, d = a * factor, b * factor
    root = sqrt((abs(c) + hypot(c, d)) * 0.5)
    ratio = d / where(root == 0, 1.0, root + root)
    right = c >= 0
    real = where(right, root, abs(ratio)) * unscale
    imag = where(right, ratio, copysign(root, b)) * unscale
    # An infinite imaginary part dominates; a zero one is kept where the root is real.
    endless = abs(b) == math.inf
    imag_stays = endless | (b == 0) & (a >= 0)
    return ComplexArray(where(endless, math.inf, real), where(imag_stays, b, imag))


def _pow(name: str, attrs: Attrs, x: ComplexArray, y: ComplexArray) -> Array:
    none = hypot(x.real, x.imag) == 0
    base = ComplexArray(where(none, 1.0, x.real), where(none, 0.0, x.imag))
    result = _exp(name, attrs, _mul(name, attrs, y, _log(name, attrs, base)))
    unit = (y.real == 0) & (y.imag == 0)
    # 0^y is 0 for Re y > 0, 1 for y = 0, and NaN otherwise.
    nothing = _choose(y.real > 0, 0.0, math.nan, y.real)
    real, imag = where(unit, 1.0, nothing), where(unit, 0.0, nothing)
    return ComplexArray(where(none, real, result.real), where(none, imag, result.imag))


def power(x: ComplexArray, exponent: int) -> Array:
    """A power by products, where numpy takes them too."""
    if not -_PRODUCTS <= exponent <= _PRODUCTS:
        return apply_rule("pow", (x, Literal.splat(exponent, x.type)), {})
    result, factor = _ones(x.dtype, x.shape, x._device), x
    first, bits = True, exponent if exponent >= 0 else -exponent
    while bits:
        if bits & 1:
            result, first = (factor, False) if first else (_mul("mul", {}, result, factor), False)
        bits >>= 1
        factor = _mul("mul", {}, factor, factor) if bits else factor
    return result if exponent >= 0 else _reciprocal("reciprocal", {}, result)


def _scaled_hyperbolics(x: ComplexArray) -> tuple[Array, Array, Array]:
    """The hyperbolic cosine and sine of the real part over a factor, so that they are finite, and
    that factor.
    """
    a = x.real
    limit = _exponent(a)
    far = abs(a) > limit
    size = exp(where(far, abs(a) - limit, 0.0))
    within = where(far, 0.0, a)
    factor = _choose(far, math.exp(limit) / 2, 1.0, a)
    return where(far, size, cosh(within)), where(far, copysign(size, a), sinh(within)), factor


def _sinh(_name: str, _attrs: Attrs, x: ComplexArray) -> ComplexArray:
    (even, odd, factor), (real, imag) = _scaled_hyperbolics(x), _cos_sin(x.real, x.imag)
    return ComplexArray(_zero_or_product(odd, real) * factor, _zero_or_product(even, imag) * factor)


def _cosh(_name: str, _attrs: Attrs, x: ComplexArray) -> ComplexArray:
    (even, odd, factor), (real, imag) = _scaled_hyperbolics(x), _cos_sin(x.real, x.imag)
    return ComplexArray(_zero_or_product(even, real) * factor, _zero_or_product(odd, imag) * factor)


def _cos(name: str, attrs: Attrs, x: ComplexArray) -> Array:
    return _cosh(name, attrs, _times_i(x))


def _tanh(_name: str, _attrs: Attrs, x: ComplexArray) -> ComplexArray:
    """By W. Kahan (1987); far out the real part is ±1 and the imaginary one 2 sin 2b e^(−2|a|)."""
    a, b = x.real, x.imag
    limit = 10.0 if a.dtype is f32 else 22.0
    within = maximum(minimum(a, limit), -limit)
    slope, s = tan(b), sinh(within)
    grown = square(slope) + 1.0
    scale = grown * square(s) + 1.0
    real = grown * sqrt(square(s) + 1.0) * s / scale
    imag = slope / scale
    small, wave = exp(-abs(a)), sin(b) * cos(b)
    tail = wave * 4.0 * small * small
    tail = where(abs(a) == math.inf, copysign(0.0, wave), tail)
    far = abs(a) > limit
    far_real = where(equal(tail, tail), copysign(1.0, a), tail)
    real = where(a == 0, a, where(far, far_real, real))
    return ComplexArray(real, where(b == 0, b, where(far, tail, imag)))


def _times_i(x: ComplexArray) -> ComplexArray:
    return ComplexArray(-x.imag, x.real)


def _over_i(x: ComplexArray) -> ComplexArray:
    return ComplexArray(x.imag, -x.real)


def _of_rotated(rule: Callable[[str, Attrs, ComplexArray], ComplexArray]) -> Rule:
    """The rule f(ix)/i, which makes circular functions of the hyperbolic ones."""

    def apply_rotated(name: str, attrs: Attrs, x: ComplexArray) -> Array:
        return _over_i(rule(name, attrs, _times_i(x)))

    return apply_rotated


def _root(a: Array, b: Array) -> ComplexArray:
    """The root of a + ib, whose squared size must neither overflow nor, but for 0, underflow."""
    root = sqrt(abs(a) + hypot(a, b)) * math.sqrt(0.5)
    ratio = b / where(root == 0, 1.0, root + root)
    right = a >= 0
    return ComplexArray(where(right, root, abs(ratio)), where(right, ratio, copysign(root, b)))


def _roots_beside_one(x: ComplexArray) -> tuple[ComplexArray, ComplexArray]:
    """The roots of 1 − x and 1 + x, which decide the inverse functions' branches (W. Kahan)."""
    return _root(1.0 - x.real, -x.imag), _root(x.real + 1.0, x.imag)


def _cross(x: ComplexArray, y: ComplexArray) -> Array:
    """The imaginary part of conj(x) y."""
    return x.real * y.imag - x.imag * y.real


def _distant(x: ComplexArray) -> tuple[Array, ComplexArray, Array]:
    """Where log 2|x| is the size of the inverse functions to the last bit; `x` elsewhere; and that
    logarithm.
    """
    bound = 2.0**16 if x.real.dtype is f32 else 2.0**32
    far = (abs(x.real) > bound) | (abs(x.imag) > bound)
    near = ComplexArray(where(far, 0.0, x.real), where(far, 0.0, x.imag))
    size = log(hypot(x.real * 0.25, x.imag * 0.25))
    return far, near, size + math.log(8)


def _asin(_name: str, _attrs: Attrs, x: ComplexArray) -> ComplexArray:
    far, near, size = _distant(x)
    below, above = _roots_beside_one(near)
    across = below.real * above.real - below.imag * above.imag
    real = atan2(x.real, where(far, abs(x.imag), across))
    imag = where(far, copysign(size, x.imag), asinh(_cross(below, above)))
    return ComplexArray(where(x.real == 0, x.real, real), imag)


def _acos(_name: str, _attrs: Attrs, x: ComplexArray) -> ComplexArray:
    far, near, size = _distant(x)
    below, above = _roots_beside_one(near)
    angle = atan2(below.real, above.real) * 2.0
    real = where(far, atan2(abs(x.imag), x.real), angle)
    imag = where(far, -copysign(size, x.imag), asinh(_cross(above, below)))
    return ComplexArray(where(x.real == 0, math.pi / 2, real), imag)


def _asinh(name: str, attrs: Attrs, x: ComplexArray) -> ComplexArray:
    return _over_i(_asin(name, attrs, _times_i(x)))


def _acosh(_name: str, _attrs: Attrs, x: ComplexArray) -> Array:
    far, near, size = _distant(x)
    below = _root(near.real - 1.0, near.imag)
    above = _root(near.real + 1.0, near.imag)
    across = below.real * above.real + below.imag * above.imag
    angle = atan2(below.imag, above.real) * 2.0
    imag = where(far, atan2(x.imag, x.real), angle)
    right = copysign(math.pi / 2, x.imag)
    return ComplexArray(where(far, size, asinh(across)), where(x.real == 0, right, imag))


def _atanh(_name: str, _attrs: Attrs, x: ComplexArray) -> ComplexArray:
    """log1p(4|a| / |1 − |a| + ib|²) / 4 with the sign of a, and half the angle of 1 − x² + 2ib."""
    a, b = abs(x.real), x.imag
    beyond = 1.0 - a
    single = a.dtype is f32
    # Scale by 1/4, so that the distance from 1 does not overflow.
    wide = (a > 4.0) | (abs(b) > 4.0)
    factor = _choose(wide, 0.25, 1.0, a)
    distance = hypot(beyond * factor, b * factor)
    tiny = distance < (2.0 ** (-50) if single else 2.0 ** (-450))
    apart = where(tiny, 1.0, distance)
    ratio = a / apart / apart * _choose(wide, 0.25, 4.0, a)
    size = where(tiny, (math.log(2) - log(distance)) * 0.5, log1p(ratio) * 0.25)
    size = where(distance == math.inf, 0.0, size)
    real = where(a == 0, x.real, copysign(size, x.real))
    far = (maximum(a, abs(b)) > (2.0**30 if single else 2.0**60)) | (distance == math.inf)
    c, d = where(far, 0.0, a), where(far, 0.0, b)
    across = (1.0 - c) * (c + 1.0) - square(d)
    right = where(equal(b, b), copysign(math.pi / 2, b), b)
    return ComplexArray(real, where(far, right, atan2(d * 2.0, across) * 0.5))


RULES: dict[str, Rule] = {
    "abs": _abs,
    "acos": _acos,
    "acosh": _acosh,
    "asin": _asin,
    "asinh": _asinh,
    "atan": _of_rotated(_atanh),
    "atanh": _atanh,
    "compare": _compare,
    "convert": _convert,
    "cos": _cos,
    "cosh": _cosh,
    "cumulative": _cumulative,
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
    "round": _linear,
    "scatter": _fold,
    "sign": _sign,
    "sin": _of_rotated(_sinh),
    "sinh": _sinh,
    "sqrt": _sqrt,
    "square": _square,
    "tan": _of_rotated(_tanh),
    "tanh": _tanh,
    "var": _var,
}
"""What an op does to complex operands, by its name: ``rule(name, attrs, *operands)``; ops that move
elements or are linear need none.
"""

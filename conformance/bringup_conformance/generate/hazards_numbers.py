"""Hazards of rewriting arithmetic: signed zeros, NaN, overflow, cancellation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bringup.dtypes import DType, bf16, f16, f32, i8, i32, i64
from bringup.graph import Value
from bringup.ops.build import broadcast_to, convert, like, reduce, rows, splat, sum_, transpose
from bringup.ops.table import lookup
from bringup.passes.base import as_results

if TYPE_CHECKING:
    from bringup_conformance.generate.hazards import PatternInputs

Values = Sequence[Value]
#: Two more than the digits of a significand: sums with such a number lose some.
_DIGITS = {"f16": 12, "bf16": 9, "f32": 25, "f64": 54}


def _zero_products(inputs: PatternInputs) -> Values:
    x = inputs.row()
    return rows.mul(x, like(x, 0.0)), rows.mul(like(x, -0.0), x)


def _zero_sums(inputs: PatternInputs) -> Values:
    x = inputs.row()
    return rows.add(x, like(x, 0.0)), rows.sub(x, like(x, -0.0)), rows.sub(like(x, 0.0), x)


def _itself(inputs: PatternInputs) -> Values:
    x = inputs.row()
    return rows.div(x, x), rows.sub(x, x)


def _itself_compared(inputs: PatternInputs) -> Values:
    x = inputs.row()
    ways = ("eq", "ne", "le", "ge")
    return [rows.compare(x, x, direction=way) for way in ways]


def _roots(inputs: PatternInputs) -> Values:
    """Exponents for which a root and products do."""
    x = inputs.row()
    return [rows.pow(x, like(x, power)) for power in (0.5, -0.5, 1.5, -1.5)]


def _powers(inputs: PatternInputs) -> Values:
    x = inputs.row()
    return rows.pow(x, like(x, 3)), rows.pow(x, like(x, -1)), rows.pow(x, like(x, 0.0))


def _sums_of_two(inputs: PatternInputs) -> Values:
    x = inputs.row()
    large = 2.0 ** _DIGITS[inputs.dtype.name]
    lost = rows.add(rows.add(x, like(x, large)), like(x, -large))
    return lost, rows.sub(rows.add(x, like(x, 3)), like(x, large))


def _sums_near_overflow(inputs: PatternInputs) -> Values:
    x = inputs.row()
    most = 6e4 if inputs.dtype.name == "f16" else 3e38
    return (rows.add(rows.add(x, like(x, most)), like(x, -most)), rows.add(rows.mul(x, x), x))


def _quotients(inputs: PatternInputs) -> Values:
    x = inputs.row()
    return rows.div(x, like(x, 3)), rows.div(x, like(x, 10)), rows.div(like(x, 1), x)


def _differences(inputs: PatternInputs) -> Values:
    x, y = inputs.row(), inputs.row()
    return rows.neg(rows.sub(x, y)), rows.sub(y, x)


def _choices(inputs: PatternInputs) -> Values:
    x, y = inputs.row(), inputs.row()
    less = rows.compare(x, y, direction="lt")
    least = rows.compare(x, y, direction="ge")
    return rows.select(less, x, y), rows.select(least, x, y)


def _there_and_back(inputs: PatternInputs) -> Values:
    x = inputs.table()
    through: tuple[DType, ...] = (i32, i8, f16, bf16, f32)
    return [
        convert(rows.convert(x, dtype=d), inputs.dtype) for d in through if d is not inputs.dtype
    ]


def _scaled_back(inputs: PatternInputs) -> Values:
    x = inputs.row()
    scaled = rows.div(rows.mul(x, like(x, 3)), like(x, 3))
    return scaled, rows.sub(rows.add(x, like(x, 7)), like(x, 7))


def _zeros_of_both_signs(inputs: PatternInputs) -> Values:
    x = inputs.row()
    below = rows.compare(x, like(x, 1), direction="lt")
    return rows.select(below, like(x, -0.0), like(x, 0.0)), rows.add(like(x, 0.0), x)


def _near_numbers(inputs: PatternInputs) -> Values:
    x = inputs.row()
    near = 1 + 2.0 ** (2 - _DIGITS[inputs.dtype.name])
    return rows.mul(x, like(x, 1.5)), rows.mul(x, like(x, 1.5 * near)), rows.mul(x, like(x, -1.5))


def _products_and_sums(inputs: PatternInputs) -> Values:
    x, y, z = inputs.row(), inputs.row(), inputs.row()
    product = rows.mul(x, y)
    return rows.sub(product, rows.mul(y, x)), rows.add(rows.mul(x, z), product)


def _one_after_another(inputs: PatternInputs) -> Values:
    """So many of one function in a kernel that a device may call it instead of writing it out."""
    values = [inputs.row()]
    for row, count in ((rows.sin, 6), (rows.tanh, 34)):
        for _ in range(count):
            values.append(row(values[-1]))
    return values[6], values[-1]


def _soft(inputs: PatternInputs) -> Values:
    """Softmax of rows whose powers overflow, with a tail and without."""
    shapes = ((3, inputs.w + 1), (3, 2 * inputs.w))
    return [_softened(rows.mul(inputs.new(*s), splat(100, inputs.dtype[s])), 1) for s in shapes]


def _soft_side_by_side(inputs: PatternInputs) -> Values:
    """Softmax of so many lines that all cores of a device work at once, each with scratch memory
    of its own.
    """
    lines, columns = 16 * inputs.far[0], 2 * inputs.w + 3
    return _softened(inputs.new(lines, columns), 1), _softened(inputs.new(columns, lines), 0)


def _soft_tall(inputs: PatternInputs) -> Values:
    """Softmax of columns that no registers hold."""
    return (_softened(inputs.new(12 * min(inputs.block, 256) + 3, 5), 0),)


def _softened(x: Value, dim: int) -> Value:
    kept = (1 - dim,)
    peak = broadcast_to(reduce("max", x, (dim,)), x.shape, kept)
    powers = rows.exp(rows.sub(x, peak))
    return rows.div(powers, broadcast_to(sum_(powers, (dim,)), x.shape, kept))


def _rounded_between(inputs: PatternInputs) -> Values:
    x, y = inputs.row(), inputs.row()
    total = rows.add(x, y)
    for _ in range(3):
        total = rows.add(rows.mul(total, x), y)
    return (total,)


def _rectified(inputs: PatternInputs) -> Values:
    x, y = inputs.row(), inputs.row()
    return (
        rows.max(rows.add(x, y), like(x, 0)),
        rows.relu(rows.mul(x, y)),
        rows.min(rows.sub(x, y), like(x, 1)),
    )


def _divided(inputs: PatternInputs) -> Values:
    x = inputs.row()
    quotients = [rows.div(x, like(x, n)) for n in (2, 4, -2, 7)]
    return [*quotients, *(rows.rem(x, like(x, n)) for n in (4, -4, 7))]


def _narrowed(inputs: PatternInputs) -> Values:
    x = inputs.row()
    through = [d for d in (i8, i32, i64, f32) if d is not inputs.dtype]
    return [convert(rows.convert(x, dtype=d), inputs.dtype) for d in through]


def _wrapping(inputs: PatternInputs) -> Values:
    x = inputs.row()
    tripled = rows.div(rows.mul(x, like(x, 3)), like(x, 3))
    higher = rows.compare(rows.add(x, like(x, 1)), x, direction="gt")
    return tripled, higher, rows.abs(rows.neg(x))


def _shifted_out(inputs: PatternInputs) -> Values:
    x = inputs.row()
    left = rows.shl(x, like(x, 3))
    return (
        rows.shr(left, like(x, 3), kind="arithmetic"),
        rows.shr(left, like(x, 3), kind="logical"),
        rows.xor(rows.and_(x, like(x, 6)), rows.or_(x, like(x, 9))),
    )


_SHIFTS = ("shl", "shr")


def _by(op: str, x: Value, c: int) -> Value:
    """An integer and a constant, which is a distance for shifts."""
    if op in _SHIFTS:
        kind = {"kind": "arithmetic" if c % 2 else "logical"} if op == "shr" else {}
        result: Value = lookup(op)(x, like(x, c % x.dtype.bits or 1), **kind)
        return result
    return as_results(lookup(op)(x, like(x, c)))[0]


_BY_CONSTANTS = ("div", "rem", "shl", "mul", "and", "shr")


def _then(first: str) -> Callable[[PatternInputs], Values]:
    """An op by constants; then each op by the same, by another and by a divisor of it; powers of
    two meet shifts by their exponents.
    """

    def build(inputs: PatternInputs) -> Values:
        x, bits = inputs.table(), inputs.dtype.bits - inputs.dtype.is_signed
        start, once, results = inputs.choices.integer(0, 6), {}, []
        for number, second in enumerate(_BY_CONSTANTS, start):
            k = inputs.choices.integer(2, bits - 1)
            fitting = [c for c in (2, 7, 641, 10, 3, 1 << k, 5) if c < 1 << bits]
            c, d = (fitting[n % len(fitting)] for n in (number, number + 1))
            pairs = [(c, c), (d, c), (c * d, c)]
            if (first in _SHIFTS) != (second in _SHIFTS):
                pairs.append((k, 1 << k) if first in _SHIFTS else (1 << k, k))
            for a, b in dict.fromkeys(pairs):
                if a < 1 << bits:
                    once[a] = _by(first, x, a)
                    results.append(_by(second, once[a], b))
        return *once.values(), *results

    return build


# -- both ------------------------------------------------------------------------------------------


def _in_order(inputs: PatternInputs) -> Values:
    x, y = inputs.row(), inputs.row()
    return rows.sub(x, y), rows.sub(y, x), rows.sub(like(x, 3), x), rows.sub(x, like(x, 3))


def _least_and_most(inputs: PatternInputs) -> Values:
    x, y = inputs.row(), inputs.row()
    apart = rows.sub(rows.max(x, y), rows.min(x, y))
    return (
        apart,
        rows.min(rows.max(x, like(x, 1)), like(x, 2)),
        rows.clamp(y, like(y, 1), like(y, 3)),
    )


def _directions(inputs: PatternInputs) -> Values:
    x, y = inputs.row(), inputs.row()
    below = rows.select(rows.compare(x, y, direction="lt"), like(x, 1), like(x, 0))
    above = rows.select(rows.compare(x, y, direction="gt"), like(x, 2), like(x, 0))
    same = rows.select(rows.compare(x, y, direction="eq"), like(x, 4), like(x, 0))
    return (rows.add(below, rows.add(above, same)),)


def _read_inside(inputs: PatternInputs) -> Values:
    x = inputs.row()
    once = rows.add(x, like(x, 1))
    twice = rows.add(once, x)
    return once, twice, rows.sub(twice, once)


def _diamond(inputs: PatternInputs) -> Values:
    x, y = inputs.row(), inputs.row()
    middle = rows.add(x, y)
    left, right = rows.max(middle, x), rows.min(middle, y)
    return left, rows.sub(left, right), middle


# -- random words ----------------------------------------------------------------------------------


def _words(generator: str, count: int) -> Callable[[PatternInputs], Values]:
    def build(inputs: PatternInputs) -> Values:
        n = 2 * inputs.block + 5
        type_ = inputs.dtype[n]
        numbers = rows.iota(type=type_, dim=0)
        row = {"threefry2x32": rows.threefry2x32, "philox4x32": rows.philox4x32}[generator]

        def drawn(key: Value, second: int) -> Values:
            counters = (like(key, second) for _ in range(count - 1))
            return as_results(row(key, like(key, 7), numbers, *counters))

        key = rows.broadcast_in_dim(inputs.new(), shape=(n,), dims=())
        first, other = drawn(key, 0), drawn(key, 1)
        low = rows.compare(first[0], like(first[0], 1 << 31), direction="lt")
        chosen = rows.select(low, first[0], first[1])
        return rows.xor(first[0], first[1]), chosen, other[0], rows.add(first[0], numbers)

    return build


def _fractions(inputs: PatternInputs) -> Values:
    words = inputs.row()
    results: list[Value] = []
    for dtype, digits in ((f32, 24), (f16, 11)):
        high = rows.shr(words, like(words, 32 - digits), kind="logical")
        part = rows.mul(convert(high, dtype), splat(2.0**-digits, dtype[words.shape]))
        results += [part, rows.compare(part, like(part, 1), direction="lt")]
    return results


def _precisions(inputs: PatternInputs) -> Values:
    """Equal products of equal factors, of which some may be less exact than the others."""
    x, y = inputs.square(), inputs.square()
    less = {"batch": ((), ()), "contract": ((1,), (0,)), "precision": "tf32"}
    exact, rough = (
        rows.dot_general(x, y, **attrs) for attrs in ({**less, "precision": "highest"}, less)
    )
    across = rows.dot_general(transpose(x, (1, 0)), y, **{**less, "contract": ((0,), (0,))})
    return exact, rough, rows.add(across, exact), rows.dot_general(rough, y, **less)


_BOTH = {
    "in-order": _in_order,
    "least-and-most": _least_and_most,
    "directions": _directions,
    "read-inside": _read_inside,
    "diamond": _diamond,
}
FLOATING = {
    "zero-products": _zero_products,
    "zero-sums": _zero_sums,
    "itself": _itself,
    "itself-compared": _itself_compared,
    "roots": _roots,
    "powers": _powers,
    "sums-of-two": _sums_of_two,
    "sums-near-overflow": _sums_near_overflow,
    "quotients": _quotients,
    "differences": _differences,
    "choices": _choices,
    "there-and-back": _there_and_back,
    "scaled-back": _scaled_back,
    "zeros-of-both-signs": _zeros_of_both_signs,
    "near-numbers": _near_numbers,
    "products-and-sums": _products_and_sums,
    "rectified": _rectified,
    "one-after-another": _one_after_another,
    "soft": _soft,
    "soft-side-by-side": _soft_side_by_side,
    "soft-tall": _soft_tall,
    **_BOTH,
}
SINGLE = {"precisions": _precisions}
NARROW = {"rounded-between": _rounded_between}
INTEGER = {
    "divided": _divided,
    "narrowed": _narrowed,
    "wrapping": _wrapping,
    "shifted-out": _shifted_out,
}
SIGNED = {f"{name}-then": _then(name) for name in _BY_CONSTANTS[::2]}
UNSIGNED = {f"{name}-then": _then(name) for name in _BY_CONSTANTS[1::2]}
WORDS = {
    "words-of-threefry": _words("threefry2x32", 2),
    "words-of-philox": _words("philox4x32", 4),
    "fractions": _fractions,
}

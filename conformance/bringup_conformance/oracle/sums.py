"""How spans are propagated through sums, products and dots: bounds that hold for any order, and
exact results where the data allow them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup.backend.capabilities import Numerics
from bringup.dtypes import DType, accumulator
from bringup.graph import Instr
from bringup.integers import ceil_div
from bringup.ops.monoids import MONOIDS, ROUNDING, Derivative
from bringup.records import record
from bringup_conformance.oracle.elementwise import references, settled
from bringup_conformance.oracle.numbers import Array, Format, format_of, lowest_bit, nearest, widen
from bringup_conformance.oracle.span import Span, spanning

#: Roundings a sum may have besides those of its additions: of the start value, of masked lanes, of
# the last bits.
EXTRA = 3


def height(count: int, longest: int) -> int:
    """How many roundings any element of a sum may pass through: a chain, then pairwise combination
    of the chains.

    >>> height(1024, 32), height(1024, 1 << 62)
    (40, 1027)
    """
    chain = min(max(longest, 1), count)
    parts = ceil_div(count, chain) if chain else 0
    return chain + (math.ceil(math.log2(parts)) if parts > 1 else 0) + EXTRA


@record
class Terms:
    """Per result element, in the wide type: what is needed to bound a sum in any order.

    low, high: sums of the ends.  size: sum of the largest magnitudes.  grid: every term is a
    multiple of 2^grid.
    known: all terms are known bit for bit.  nan: a term is surely NaN.  unlimited: a term may be
    anything.
    up, down: a term is +inf or −inf.  maybe: a term's span reaches an infinity it need not have.
    one_sign: no two finite terms have opposite signs.
    minus: every term is −0; None where the sign of a sum of zeros is free.
    """

    low: Array
    high: Array
    size: Array
    grid: Array
    known: Array
    nan: Array
    unlimited: Array
    up: Array
    down: Array
    maybe: Array
    one_sign: Array
    minus: Array | None = None


def reduce_sum(instr: Instr, operand: Span, numerics: Numerics) -> Span:
    """The sum over whole dimensions, in the accumulator of its dtype, rounded once."""
    dtype = operand.dtype
    count = math.prod(operand.shape[d] for d in instr.attrs["dims"])
    middle = references(instr, [operand.middle])
    if count == 0 or not instr.attrs["dims"]:
        return Span.exactly(middle, dtype)
    terms = _terms(operand, instr.attrs["dims"])
    steps = 0 if count == 1 else height(count, numerics.longest_chain)
    # numpy adds blocks of 128 in eight chains, then pairwise.
    own = 36.0 + math.log2(count)
    span = bounded(terms, steps, count, accumulator(dtype), dtype, middle, numerics, own)
    return settled(span, numerics, rounded=True)


def running_fold(instr: Instr, operands: Sequence[Span], numerics: Numerics) -> Span | None:
    """The span of a running fold; None for products of floats, which their definition bounds."""
    (operand,), monoid = operands, MONOIDS[instr.attrs["kind"]]
    if monoid.is_exact(operand.dtype):
        return _running_exact(instr, operand)
    linear = monoid.derivative is Derivative.LINEAR
    return _running_sum(instr, operand, numerics) if linear else None


def _running_sum(instr: Instr, operand: Span, numerics: Numerics) -> Span:
    """The sums of all beginnings of a line, each in any order, rounded once."""
    attrs, dtype = instr.attrs, operand.dtype
    middle = references(instr, [operand.middle])

    def line(array: Array) -> Array:
        moved = np.moveaxis(array, attrs["dim"], -1)
        return moved[..., ::-1] if attrs["reverse"] else moved

    ends = (operand.low,) * 3 if operand.exact else (operand.low, operand.middle, operand.high)
    terms = _beginnings(Span(dtype, *map(line, ends)), attrs["exclusive"])
    length = middle.shape[attrs["dim"]]
    count = np.arange(1, length + 1) - int(attrs["exclusive"])
    # However far a tree over the whole line is, no sum has more roundings than terms.
    steps = np.minimum(height(length, numerics.longest_chain), count + EXTRA)
    wide = accumulator(dtype)
    span = bounded(terms, steps, count, wide, dtype, line(middle), numerics, count)

    def back(array: Array) -> Array:
        turned = array[..., ::-1] if attrs["reverse"] else array
        return np.ascontiguousarray(np.moveaxis(turned, -1, attrs["dim"]))

    sums = Span(dtype, back(span.low), middle, back(span.high)).simplified()
    return settled(sums, numerics, rounded=True)


def _beginnings(x: Span, exclusive: bool) -> Terms:
    """What bounds the sum of each element of a line and those before it, or of those alone."""

    def gathered(fold: np.ufunc, array: Array, start: Any) -> Array:
        if exclusive:
            first = np.full((*array.shape[:-1], 1), start, array.dtype)
            array = np.concatenate([first, array], axis=-1)[..., : array.shape[-1]]
        return np.asarray(fold.accumulate(array, axis=-1))

    low, high = widen(x.low, x.dtype), widen(x.high, x.dtype)
    finite = np.isfinite(low) & np.isfinite(high)
    wide_low, wide_high = np.where(finite, low, 0), np.where(finite, high, 0)
    size = np.maximum(np.abs(wide_low), np.abs(wide_high))
    above = gathered(np.logical_and, wide_low >= 0, True)
    return Terms(
        low=gathered(np.add, wide_low, 0),
        high=gathered(np.add, wide_high, 0),
        size=gathered(np.add, size, 0),
        grid=gathered(np.minimum, lowest_bit(wide_low), 100_000),
        known=gathered(np.logical_and, x.known(), True),
        nan=gathered(np.logical_or, np.isnan(low) & np.isnan(high), False),
        unlimited=gathered(np.logical_or, (low == -np.inf) & (high == np.inf), False),
        up=gathered(np.logical_or, low == np.inf, False),
        down=gathered(np.logical_or, high == -np.inf, False),
        maybe=gathered(np.logical_or, np.isinf(low) ^ np.isinf(high), False),
        one_sign=above | gathered(np.logical_and, wide_high <= 0, True),
    )


def _running_exact(instr: Instr, operand: Span) -> Span:
    """Running maxima and minima, which are monotone, and running folds of integers, which wrap."""
    middle = references(instr, [operand.middle])
    if operand.exact:
        return Span.exactly(middle, operand.dtype)
    ordered = instr.attrs["kind"] not in ROUNDING
    low, high = (references(instr, [x]) if ordered else middle for x in (operand.low, operand.high))
    dim, reverse = instr.attrs["dim"], instr.attrs["reverse"]
    lost = operand.unlimited() if ordered else ~operand.known()
    lost = np.flip(lost, dim) if reverse else lost
    lost = np.logical_or.accumulate(lost, axis=dim)
    return spanning(operand.dtype, low, middle, high, np.flip(lost, dim) if reverse else lost)


def _rows(array: Array, dims: tuple[int, ...]) -> Array:
    """The folded dimensions as one last, contiguous one, along which numpy sums pairwise."""
    others = [d for d in range(array.ndim) if d not in dims]
    moved = np.transpose(array, (*others, *dims))
    shape = [array.shape[d] for d in others]
    count = math.prod(array.shape[d] for d in dims)
    return np.ascontiguousarray(moved).reshape((*shape, count))


def _terms(x: Span, dims: tuple[int, ...]) -> Terms:
    low_end = _rows(x.low, dims)
    high_end = low_end if x.exact else _rows(x.high, dims)
    low, high = widen(low_end, x.dtype), widen(high_end, x.dtype)
    finite = np.isfinite(low) & np.isfinite(high)
    known = np.ones(low.shape, np.bool_) if x.exact else _rows(x.known(), dims)
    wide_low, wide_high = np.where(finite, low, 0), np.where(finite, high, 0)
    size = np.maximum(np.abs(wide_low), np.abs(wide_high))
    return Terms(
        low=wide_low.sum(axis=-1),
        high=wide_high.sum(axis=-1),
        size=size.sum(axis=-1),
        grid=lowest_bit(wide_low).min(axis=-1, initial=100_000),
        known=np.asarray(known.all(axis=-1)),
        nan=np.asarray((np.isnan(low) & np.isnan(high)).any(axis=-1)),
        unlimited=((low == -np.inf) & (high == np.inf)).any(axis=-1),
        up=(low == np.inf).any(axis=-1),
        down=(high == -np.inf).any(axis=-1),
        maybe=np.asarray((np.isinf(low) ^ np.isinf(high)).any(axis=-1)),
        one_sign=np.asarray((wide_low >= 0).all(axis=-1) | (wide_high <= 0).all(axis=-1)),
        minus=np.asarray(((low == 0) & np.signbit(low)).all(axis=-1)),
    )


def bounded(
    terms: Terms,
    steps: int | Array,
    count: int | Array,
    wide: DType,
    dtype: DType,
    middle: Array,
    numerics: Numerics,
    reference_steps: float | Array,
    underflows: int = 0,
) -> Span:
    """The span of a sum of `count` terms in any order, rounded to `dtype` at the end.

    Each term passes through at most `steps` roundings to `wide`, and `reference_steps` of the sums
    in `terms`.  underflows: roundings of terms that may be subnormal; sums of them are exact.
    """
    form, final = format_of(wide), format_of(dtype)
    with np.errstate(all="ignore"):
        error = _error(terms, steps, count, form, numerics)
        error = error + reference_steps * final.slack * terms.size
        error = error + underflows * form.subnormal
        exact = is_exact(terms, form, numerics)
        low = nearest(np.where(exact, terms.low, terms.low - error), wide)
        high = nearest(np.where(exact, terms.low, terms.high + error), wide)
        low, high = _zero_signs(terms, exact, low, high)
        low, high = nearest(widen(low, wide), dtype), nearest(widen(high, wide), dtype)
        overflow = ~(terms.size + error < form.largest * (1 - 2.0**-8))
    unlimited = terms.unlimited | terms.maybe | (overflow & ~terms.one_sign)
    low, high, certain = _infinities(terms, low, high, overflow, dtype)
    return spanning(dtype, low, middle, high, unlimited & ~certain)


def _error(
    terms: Terms, steps: int | Array, count: int | Array, form: Format, numerics: Numerics
) -> Array:
    growth = steps * form.unit
    error = growth * (1 + 2 * growth) * terms.size
    if numerics.flush_subnormals:
        error = error + (count + steps) * form.tiny
    return np.asarray(error)


def is_exact(terms: Terms, form: Format, numerics: Numerics) -> Array:
    """Where every partial sum, in whatever order, is representable: multiples of one grid, all
    below its reach.
    """
    reach = np.ldexp(np.ones_like(terms.size), np.minimum(terms.grid + form.precision, 16_000))
    inside = (terms.size <= reach) & (terms.size <= form.largest)
    lowest = form.low if numerics.flush_subnormals else form.low - form.precision + 1
    inside &= terms.grid >= lowest
    return np.asarray(inside & terms.known)


def _zero_signs(terms: Terms, exact: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """The sign of a zero sum of products depends on the start value and the order: of cancelled
    terms, and of a product that underflows to -0, to which the start value may add +0.  A plain sum
    of zeros is -0 if all of them are.
    """
    minus, plus = low.dtype.type(-0.0), low.dtype.type(0.0)
    lows, highs = np.where(low == 0, minus, low), np.where(high == 0, plus, high)
    if terms.minus is None:
        return lows, highs
    known = np.where(terms.minus, minus, plus)
    zero = exact & (low == 0)
    return np.where(zero, known, lows), np.where(zero, known, highs)


def _infinities(
    terms: Terms, low: Array, high: Array, overflow: Array, dtype: DType
) -> tuple[Array, Array, Array]:
    """NaN and infinity where some term makes them certain, and where that is."""
    number = dtype.numpy.type
    nan = terms.nan | (terms.up & terms.down & ~terms.unlimited)
    # A finite part that overflows the other way, or an infinity more, would make NaN of it.
    alone = ~terms.unlimited & ~terms.maybe & ~(overflow & ~terms.one_sign)
    up = terms.up & ~terms.down & alone & (~overflow | (terms.low >= 0))
    down = terms.down & ~terms.up & alone & (~overflow | (terms.high <= 0))
    for mask, value in ((up, np.inf), (down, -np.inf), (nan, np.nan)):
        low, high = np.where(mask, number(value), low), np.where(mask, number(value), high)
    return low, high, up | down | nan


def dot(instr: Instr, operands: Sequence[Span], numerics: Numerics) -> Span:
    """Sums of products in the accumulate dtype, rounded to the result's once."""
    attrs, dtype = instr.attrs, instr.result.dtype
    wide: DType = attrs["accumulate"]
    middle = references(instr, [x.middle for x in operands])
    count = math.prod(operands[0].shape[d] for d in attrs["contract"][0])
    if count == 0:
        return Span.exactly(middle, dtype)
    if attrs["precision"] == "tf32":
        operands = [in_tf32(x) for x in operands]
    sides = [_matrices(x, side, attrs) for side, x in enumerate(operands)]
    terms = _products(sides[0], sides[1], count)
    steps = height(count, numerics.longest_chain) + 1
    flat = middle.reshape(terms.size.shape)
    # A product rounds once on the device, unless fused with its addition, and once in `terms`.
    span = bounded(terms, steps, count, wide, dtype, flat, numerics, count / 4, 2 * count)
    shaped = Span(dtype, *(a.reshape(middle.shape) for a in (span.low, span.middle, span.high)))
    return settled(shaped.simplified(), numerics, rounded=True)


@record
class _Side:
    """One operand as (batch, free, contracted).

    centre, radius: of the finite terms' spans, in the wide type.  nan, odd: terms surely NaN, terms
    not surely finite.
    known, grid: of whole rows, as in `Terms`.
    """

    centre: Array
    radius: Array
    known: Array
    nan: Array
    odd: Array
    grid: Array


def _matrices(x: Span, side: int, attrs: Any) -> _Side:
    batch, contract = attrs["batch"][side], attrs["contract"][side]
    free = [d for d in range(len(x.shape)) if d not in batch and d not in contract]

    def matrix(array: Array) -> Array:
        shape = [math.prod(array.shape[d] for d in part) for part in (batch, free, contract)]
        return np.ascontiguousarray(np.transpose(array, (*batch, *free, *contract))).reshape(shape)

    low = widen(matrix(x.low), x.dtype)
    known = np.ones(low.shape, np.bool_) if x.exact else matrix(x.known())
    high = low if x.exact else widen(matrix(x.high), x.dtype)
    finite = np.isfinite(low) & np.isfinite(high)
    with np.errstate(invalid="ignore", over="ignore"):
        centre = np.where(finite, low / 2 + high / 2, 0)
        radius = np.where(finite, np.maximum(high - centre, centre - low), 0)
        radius = radius if x.exact else radius * (1 + 4 * format_of(x.dtype).slack)
    return _Side(
        centre=centre,
        radius=radius,
        known=np.asarray(known.all(axis=-1)),
        nan=np.isnan(low) & np.isnan(high),
        odd=~finite,
        grid=lowest_bit(np.where(finite, low, 0)).min(axis=-1, initial=100_000),
    )


def _products(lhs: _Side, rhs: _Side, count: int) -> Terms:
    def matmul(a: Array, b: Array) -> Array:
        return np.asarray(np.matmul(a, np.swapaxes(b, -1, -2)))

    def anywhere(a: Array, b: Array) -> Array:
        left, right = np.asarray(a.any(axis=-1)), np.asarray(b.any(axis=-1))
        return np.asarray(left[..., :, None] | right[..., None, :])

    with np.errstate(all="ignore"):
        centre = matmul(lhs.centre, rhs.centre)
        size = matmul(np.abs(lhs.centre), np.abs(rhs.centre))
        spread = np.zeros_like(size)
        if lhs.radius.any() or rhs.radius.any():
            spread = matmul(np.abs(lhs.centre), rhs.radius) + matmul(
                lhs.radius, np.abs(rhs.centre) + rhs.radius
            )
            rounding = 2.0 * count * np.finfo(size.dtype).eps * (size + spread)
            spread = np.where(spread > 0, spread + rounding, 0)
    known = lhs.known[..., :, None] & rhs.known[..., None, :]
    odd, nan = anywhere(lhs.odd, rhs.odd), anywhere(lhs.nan, rhs.nan)
    no = np.zeros(size.shape, np.bool_)
    return Terms(
        low=centre - spread,
        high=centre + spread,
        size=size + spread,
        grid=np.minimum(lhs.grid[..., :, None] + rhs.grid[..., None, :], 100_000),
        known=known & ~odd,
        nan=nan,
        unlimited=odd & ~nan,
        up=no,
        down=no,
        maybe=no,
        one_sign=no,
    )


def reduce_product(instr: Instr, operand: Span, numerics: Numerics) -> Span:
    """The product over whole dimensions: a relative bound while no partial product leaves the
    normal range.
    """
    dtype, dims = operand.dtype, instr.attrs["dims"]
    count = math.prod(operand.shape[d] for d in dims)
    middle = references(instr, [operand.middle])
    if count == 0 or not dims:
        return Span.exactly(middle, dtype)
    wide = accumulator(dtype)
    form = format_of(wide)
    low_end, high_end = (widen(_rows(x, dims), dtype) for x in (operand.low, operand.high))
    finite = np.isfinite(low_end).all(axis=-1) & np.isfinite(high_end).all(axis=-1)
    nan = (np.isnan(low_end) & np.isnan(high_end)).any(axis=-1)
    zero = ((low_end == 0) & (high_end == 0)).any(axis=-1)
    with np.errstate(all="ignore"):
        low, high, top, bottom = _tree(low_end, high_end)
        usable = (top < form.largest / 4) & ((bottom > form.tiny * 4) | zero) & finite
        growth = _product_growth(operand, low_end, dims, form)
        low, high = low - growth * np.abs(low), high + growth * np.abs(high)
    number = dtype.numpy.type
    ends = []
    for end, signed in ((low, -0.0), (high, 0.0)):
        rounded = nearest(widen(nearest(end, wide), wide), dtype)
        rounded = np.where(zero & usable, number(signed), rounded)
        ends.append(np.where(nan, number(np.nan), rounded))
    span = spanning(dtype, ends[0], middle, ends[1], ~usable & ~nan)
    return settled(span, numerics, rounded=True)


def _product_growth(operand: Span, wide: Array, dims: tuple[int, ...], form: Format) -> Array:
    """The relative error of products in any order; 0 where partial products are representable."""
    count = wide.shape[-1]
    known = True if operand.exact else _rows(operand.known(), dims).all(axis=-1)
    bits = np.log2(_odd_part(wide)).sum(axis=-1)
    exact = known & (bits < form.precision - 0.5)
    growth = (count + EXTRA) * form.unit * (1 + count * form.unit)
    return np.where(exact, 0.0, growth + 4 * count * format_of(operand.dtype).slack)


def _tree(low: Array, high: Array) -> tuple[Array, Array, Array, Array]:
    """Interval products along the last dimension, and the products of all magnitudes above and
    below 1.
    """
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(low), np.abs(high))
        top = np.maximum(size, 1).prod(axis=-1)
        least = np.where((low <= 0) & (high >= 0), 0, np.minimum(np.abs(low), np.abs(high)))
        bottom = np.minimum(least, 1).prod(axis=-1)
        while low.shape[-1] > 1:
            if low.shape[-1] % 2:
                ones = np.ones((*low.shape[:-1], 1), low.dtype)
                low, high = np.concatenate([low, ones], -1), np.concatenate([high, ones], -1)
            a, b, c, d = low[..., ::2], high[..., ::2], low[..., 1::2], high[..., 1::2]
            corners = (a * c, a * d, b * c, b * d)
            low = np.minimum.reduce(corners)
            high = np.maximum.reduce(corners)
    return low[..., 0], high[..., 0], top, bottom


def _odd_part(wide: Array) -> Array:
    """Numbers without their factors of two; 1 for 0 and for what is not finite."""
    usable = np.isfinite(wide) & (wide != 0)
    value = np.where(usable, wide, 1)
    return np.asarray(
        np.abs(np.ldexp(value, -np.clip(lowest_bit(value), -16_000, 16_000).astype(np.int32)))
    )


def reduce_ordered(instr: Instr, operand: Span) -> Span:
    """Maxima, minima and bitwise folds: monotone and exact."""
    dtype = operand.dtype
    middle = references(instr, [operand.middle])
    if operand.exact:
        return Span.exactly(middle, dtype)
    low, high = references(instr, [operand.low]), references(instr, [operand.high])
    dims = instr.attrs["dims"]
    unlimited = np.asarray(operand.unlimited().any(axis=dims))
    if dtype.is_float:
        unlimited = unlimited & ~np.isnan(operand.low).any(axis=dims)
    elif MONOIDS[instr.attrs["kind"]].derivative is None and dtype.is_integer:  # bitwise
        unlimited = ~operand.known().all(axis=dims)
    return spanning(dtype, low, middle, high, unlimited)


#: Bits of f32's mantissa that tf32 lacks.
_LACKING = 13


def in_tf32(x: Span) -> Span:
    """The span of factors of f32 that may be rounded to nearest, to mantissas of 10 bits or more.

    What has no more bits keeps them.  Of the rest none goes farther than to its nearest number of
    10 bits; past the largest of these lies infinity.  A NaN by its last bits alone may be one too.

    >>> from bringup.dtypes import f32
    >>> span = in_tf32(Span.exactly(np.float32([2047.0, 2049.0]), f32))
    >>> span.low.tolist(), span.high.tolist()
    ([2047.0, 2048.0], [2047.0, 2050.0])
    """
    low, high = _moved(x.low, -1), _moved(x.high, 1)
    return spanning(x.dtype, low, x.middle, high, _nan_by_last_bits(x.low))


def _moved(x: Array, sign: int) -> Array:
    """Numbers as far away in one direction as they are from the nearest one of 10 bits."""
    way = _distance(x)
    with np.errstate(over="ignore", invalid="ignore"):
        wide = x + sign * way
        moved = wide.astype(np.float32)
        short = (moved > wide) if sign < 0 else (moved < wide)
        moved = np.where(short, np.nextafter(moved, np.float32(sign * np.inf)), moved)
    return np.where(way > 0, moved, x)


def _nan_by_last_bits(x: Array) -> Array:
    """Where nothing but bits that tf32 lacks tells a NaN from an infinity."""
    mask = np.uint32(0x7FFFFF >> _LACKING << _LACKING)
    bits = np.ascontiguousarray(x).view(np.uint32).reshape(x.shape)
    return np.asarray(np.isnan(x) & ((bits & mask) == 0))


def _distance(x: Array) -> Array:
    """To the nearest number of 10 bits, infinity among them; 0 of what is not finite."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    half, mask = np.uint32(1 << (_LACKING - 1)), ~np.uint32((1 << _LACKING) - 1)
    rounded = ((bits + half) & mask).view(np.float32).reshape(x.shape)
    with np.errstate(invalid="ignore"):
        distance = np.abs(rounded.astype(np.float64) - x)
    return np.where(np.isfinite(x), distance, 0.0)

"""How spans are propagated through elementwise ops, comparisons, selects, conversions and moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import product

import numpy as np

from bringup.backend.capabilities import Numerics
from bringup.dtypes import DType, bool_
from bringup.graph import Instr
from bringup.ops.table import OpDef, Trait, opdef
from bringup_conformance.oracle.numbers import Array, format_of, nearest, spacing, widen
from bringup_conformance.oracle.span import (
    Span,
    extremes,
    hull,
    larger,
    smaller,
    spanning,
)

# The extrema of other functions, such as sin, lie farther apart than this.
_WIDEST_SAMPLE = 0.5
_MONOTONE = frozenset({Trait.MONOTONE, Trait.PIECEWISE_MONOTONE})


def is_monotone(row: OpDef) -> bool:
    """Whether the extremes over a box of operands lie in its corners, wherever the row is defined
    and has no pole.
    """
    return not _MONOTONE.isdisjoint(row.traits)


@cache
def pole_of(row: OpDef) -> int | None:
    """The operand in which a zero is a pole, whose sign decides between two infinities, or None."""
    results = {cell.operands: cell.result for cell in row.special if "float" in cell.kinds}
    for operands, result in results.items():
        for position, text in enumerate(operands):
            negated = (*operands[:position], f"-{text}", *operands[position + 1 :])
            if text == "0.0" and {result, results.get(negated)} == {"inf", "-inf"}:
                return position
    return None


@cache
def ignores_nan(row: OpDef) -> bool:
    """Whether a NaN among the operands may give a number."""
    floats = [cell for cell in row.special if "float" in cell.kinds]
    return any("nan" in cell.operands and cell.result != "nan" for cell in floats)


def references(instr: Instr, arrays: Sequence[Array]) -> Array:
    """The reference's single result."""
    with np.errstate(all="ignore"):
        return np.asarray(opdef(instr).reference(*arrays, **instr.attrs))


def movement(instr: Instr, operands: Sequence[Span]) -> Span:
    """Moved elements keep their spans."""
    dtype = instr.result.dtype
    middle = references(instr, [x.middle for x in operands])
    if all(x.exact for x in operands):
        return Span.exactly(middle, dtype)
    low = references(instr, [x.low for x in operands])
    high = references(instr, [x.high for x in operands])
    return Span(dtype, low, middle, high).simplified()


def select(_instr: Instr, operands: Sequence[Span], _numerics: Numerics) -> Span:
    """Where the predicate is uncertain, everything that either operand allows."""
    choice, x, y = operands
    dtype = x.dtype
    middle = np.where(choice.middle, x.middle, y.middle)
    if choice.exact and x.exact and y.exact:
        return Span.exactly(middle, dtype)
    taken, dropped = choice.low, ~choice.high
    low = np.where(taken, x.low, np.where(dropped, y.low, smaller(x.low, y.low, dtype)))
    high = np.where(taken, x.high, np.where(dropped, y.high, larger(x.high, y.high, dtype)))
    unlimited = np.zeros(low.shape, np.bool_)
    if dtype.is_float:
        unlimited = ~taken & ~dropped & (np.isnan(x.low) | np.isnan(y.low))
    return spanning(dtype, low, middle, high, unlimited)


def compare(instr: Instr, operands: Sequence[Span], _numerics: Numerics) -> Span:
    """False to true wherever the operands' spans overlap."""
    x, y = operands
    direction: str = instr.attrs["direction"]
    middle = references(instr, [x.middle, y.middle])
    if x.exact and y.exact:
        return Span.exactly(middle, bool_)
    if direction in ("gt", "ge"):
        x, y, direction = y, x, {"gt": "lt", "ge": "le"}[direction]
    reference = opdef(instr).reference
    if direction in ("lt", "le"):
        sure = reference(x.high, y.low, direction=direction)
        possible = reference(x.low, y.high, direction=direction)
    else:
        low_met = reference(x.low, y.high, direction="le")
        possible = low_met & reference(y.low, x.high, direction="le")
        sure = reference(x.low, y.high, direction="eq") & reference(x.high, y.low, direction="eq")
        if direction == "ne":
            sure, possible = ~possible, ~sure
    # NaN, which an unlimited span allows, may fail a comparison that every number passes.
    return spanning(bool_, sure, middle, possible, x.unlimited() | y.unlimited())


def convert(instr: Instr, operands: Sequence[Span], numerics: Numerics) -> Span:
    """Conversions are monotone, but for integers that wrap and for ``x != 0``."""
    (x,) = operands
    source, target = x.dtype, instr.result.dtype
    middle = references(instr, [x.middle])
    if x.exact:
        return settled(Span.exactly(middle, target), numerics, rounded=True)
    low, high = references(instr, [x.low]), references(instr, [x.high])
    unlimited = x.unlimited()
    if target is bool_:
        zero_inside = (x.low <= 0) & (x.high >= 0)
        unlimited = unlimited | (zero_inside & ((x.low != 0) | (x.high != 0)))
    elif source.is_integer and target.is_integer and not _holds(target, source):
        unlimited = unlimited | ~x.known()
    return settled(spanning(target, low, middle, high, unlimited), numerics, rounded=True)


def _holds(wide: DType, narrow: DType) -> bool:
    outer, inner = np.iinfo(wide.numpy), np.iinfo(narrow.numpy)
    return bool(outer.min <= inner.min and inner.max <= outer.max)


def known_only(instr: Instr, operands: Sequence[Span]) -> Span:
    """The exact value where every operand is known, else everything."""
    middle = references(instr, [x.middle for x in operands])
    if all(x.exact for x in operands):
        return Span.exactly(middle, instr.result.dtype)
    unlimited = ~_all_known(operands)
    return spanning(instr.result.dtype, middle, middle, middle, unlimited)


def logical(instr: Instr, operands: Sequence[Span]) -> Span:
    """Ops on booleans: every combination that is possible."""
    middle = references(instr, [x.middle for x in operands])
    low, high = hull([references(instr, c) for c in _corners(instr, operands)], bool_)
    return Span(bool_, low, middle, high).simplified()


def power(instr: Instr, operands: Sequence[Span], numerics: Numerics) -> Span:
    """Powers of positive numbers are monotone in the base and in the exponent; of others nothing is
    said.
    """
    span = computed(instr, operands, numerics, monotone=True)
    unlimited = ~_all_known(operands) & ~(operands[0].low > 0)
    return spanning(span.dtype, span.low, span.middle, span.high, unlimited)


def computed(
    instr: Instr, operands: Sequence[Span], numerics: Numerics, *, monotone: bool | None = None
) -> Span:
    """Ops that compute a number: evaluated over the box of the operands' spans, then widened by the
    row's allowance.

    monotone: whether the corners of the box hold the extremes; None for what the row's traits say.
    """
    monotone = is_monotone(opdef(instr)) if monotone is None else monotone
    row, dtype = opdef(instr), instr.result.dtype
    ordered = dtype.is_float or Trait.MONOTONE in row.traits  # others wrap
    if not ordered or (not dtype.is_float and all(x.exact for x in operands)):
        return known_only(instr, operands)
    accuracy = row.accuracy_for(instr.attrs)
    ulp = 0.0 if accuracy.exact or not dtype.is_float else accuracy.ulp[dtype.name]
    middle = references(instr, [x.middle for x in operands])
    if ulp <= 0.5:  # correctly rounded, and rounding is monotone
        if all(x.exact for x in operands):
            span = Span.exactly(middle, dtype)
        else:
            evaluate = partial(references, instr)
            low, high = _over_box(instr, operands, evaluate, monotone)
            span = _with_nan(instr, operands, low, middle, high, monotone)
        return settled(span, numerics, rounded=not accuracy.exact)
    low, high = _over_box(instr, operands, partial(_wide_reference, instr), monotone)
    low, high = allowance(low, high, ulp, dtype)
    span = _with_nan(instr, operands, low, middle, high, monotone)
    return settled(span, numerics, rounded=True)


def _wide_reference(instr: Instr, arrays: Sequence[Array]) -> Array:
    pairs = zip(arrays, instr.operands, strict=True)
    return references(instr, [widen(a, v.dtype) if v.dtype.is_float else a for a, v in pairs])


def allowance(low: Array, high: Array, ulp: float, dtype: DType) -> tuple[Array, Array]:
    """Ends in the wide type, moved apart by so many ULP and rounded to the dtype.

    A result has the sign of the reference: where that is not negative, neither is the low end below
    −0.
    """
    form = format_of(dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        step = ulp * np.maximum(spacing(low, dtype), spacing(high, dtype))
        below = np.where(np.isinf(low), low, low - step - form.slack * np.abs(low))
        above = np.where(np.isinf(high), high, high + step + form.slack * np.abs(high))
    below = np.where((low >= 0) & (below < 0), form.wide.type(-0.0), below)
    above = np.where((high <= 0) & (above > 0), form.wide.type(0.0), above)
    return nearest(below, dtype), nearest(above, dtype)


Evaluate = Callable[[Sequence[Array]], Array]


def _over_box(
    instr: Instr, operands: Sequence[Span], evaluate: Evaluate, monotone: bool
) -> tuple[Array, Array]:
    """The extremes of an op over a box; NaN where it is NaN at any of the points evaluated."""
    dtype = instr.result.dtype
    if all(x.exact for x in operands):
        value = evaluate([x.low for x in operands])
        return value, value
    values = [evaluate(corner) for corner in _corners(instr, operands)]
    if monotone:
        return hull(values, dtype)
    values += [evaluate(point) for point in _diagonal(operands)]
    low, high = hull(values, dtype)
    with np.errstate(invalid="ignore"):
        # An extremum between the points exceeds them by less than they differ.
        margin = np.where(_all_known(operands), 0, high - low)
        return low - margin, high + margin


def _corners(instr: Instr, operands: Sequence[Span]) -> list[list[Array]]:
    traits, x = opdef(instr).traits, operands[0]
    squared = Trait.COMMUTATIVE in traits and len(set(instr.operands)) == 1
    even = traits >= {Trait.EVEN, Trait.PIECEWISE_MONOTONE} and not x.exact
    if squared or even:
        points = (x.low, x.high, _towards_zero(x))
        return [[point] * len(operands) for point in points]
    ends = [(x.low,) if x.exact else (x.low, x.high) for x in operands]
    return [list(corner) for corner in product(*ends)]


def _towards_zero(x: Span) -> Array:
    zero = x.low.dtype.type(0)
    return np.where((x.low <= 0) & (x.high >= 0), zero, x.low)


def _diagonal(operands: Sequence[Span]) -> list[list[Array]]:
    """Points between the corners, of the operands' own dtypes."""
    points = []
    for weight in (0.25, 0.5, 0.75):
        point = []
        for x in operands:
            if x.exact or not x.dtype.is_float:
                point.append(x.middle)
                continue
            with np.errstate(invalid="ignore", over="ignore"):
                low, high = widen(x.low, x.dtype), widen(x.high, x.dtype)
                point.append(nearest(low + weight * (high - low), x.dtype))
        points.append(point)
    return points


def _with_nan(
    instr: Instr, operands: Sequence[Span], low: Array, middle: Array, high: Array, monotone: bool
) -> Span:
    """A span from the extremes over a box; it allows everything where a NaN may be among the
    values.
    """
    dtype = instr.result.dtype
    if all(x.exact for x in operands):
        return Span(dtype, low, middle, high).simplified()
    unlimited = np.zeros(low.shape, np.bool_)
    for x in operands:
        unlimited |= x.unlimited()
    fuzzy = ~_all_known(operands)
    if dtype.is_float:
        certain = np.zeros(low.shape, np.bool_)
        for x in operands:
            if x.dtype.is_float:
                certain |= np.isnan(x.low) & np.isnan(x.high)
        if ignores_nan(opdef(instr)):
            certain = np.zeros(low.shape, np.bool_)
        unlimited |= fuzzy & (np.isnan(low) | np.isnan(high)) & ~certain
    unlimited |= fuzzy & _beyond(instr, operands, monotone)
    return spanning(dtype, low, middle, high, unlimited)


def _beyond(instr: Instr, operands: Sequence[Span], monotone: bool) -> Array:
    """Where the corners tell nothing: a pole lies inside, or the box is wider than the distance of
    extrema.
    """
    unlimited = np.zeros(instr.result.shape, np.bool_)
    if monotone:
        position = pole_of(opdef(instr))
        if position is not None:
            pole = operands[position]
            unlimited = unlimited | (~pole.known() & (pole.low <= 0) & (pole.high >= 0))
        return np.asarray(unlimited)
    for x in operands:
        if not x.exact and x.dtype.is_float:
            with np.errstate(invalid="ignore", over="ignore"):
                width = widen(x.high, x.dtype) - widen(x.low, x.dtype)
            unlimited = unlimited | ~(width <= _WIDEST_SAMPLE)
    return unlimited


def _all_known(operands: Sequence[Span]) -> Array:
    known = operands[0].known()
    for x in operands[1:]:
        known = known & x.known()
    return known


def including(span: Span, array: Array) -> Span:
    """A span that also allows what is within one ULP of an array, wherever both are numbers.

    A device may compute a composite at once, and better than its decomposition does.
    """
    dtype = span.dtype
    if not dtype.is_float:
        return span
    wide = widen(array, dtype)
    below, above = allowance(wide, wide, 1.0, dtype)
    finite = np.isfinite(wide) & np.isfinite(span.low) & np.isfinite(span.high)
    low = np.where(finite, smaller(span.low, below, dtype), span.low)
    high = np.where(finite, larger(span.high, above, dtype), span.high)
    return Span(dtype, low, span.middle, high).simplified()


def settled(span: Span, numerics: Numerics, *, rounded: bool) -> Span:
    """A computed span with what the device declares about its arithmetic.

    rounded: the op rounds, so that excess precision may show.
    """
    if not span.dtype.is_float:
        return span
    if numerics.excess_precision and rounded:
        span = _one_wider(span)
    return flushed(span) if numerics.flush_subnormals else span


def flushed(span: Span) -> Span:
    """Subnormal values may read as either zero."""
    dtype = span.dtype
    tiny = dtype.numpy.type(format_of(dtype).tiny)
    zero, minus = dtype.numpy.type(0.0), dtype.numpy.type(-0.0)
    low, high = span.low, span.high
    with np.errstate(invalid="ignore"):
        near = (low > -tiny) & (low < tiny) & (low != 0)
        low = np.where(near & (low > 0), minus, low)
        above = (high > -tiny) & (high < tiny) & (high != 0)
        high = np.where(above & (high < 0), zero, high)
        low = np.where(above & (low > 0), minus, low)
        high = np.where(near & (high < 0), zero, high)
    return Span(dtype, low, span.middle, high).simplified()


def _one_wider(span: Span) -> Span:
    dtype = span.dtype
    bottom, top = extremes(dtype)
    with np.errstate(all="ignore"):
        exact = span.known() & ((span.low == 0) | ~np.isfinite(span.low))
        low = np.where(exact, span.low, np.nextafter(span.low, bottom))
        high = np.where(exact, span.high, np.nextafter(span.high, top))
    return Span(dtype, low, span.middle, high).simplified()

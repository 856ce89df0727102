"""What a right implementation may give: per element the smallest and the largest allowed value."""

from __future__ import annotations

from typing import Any

import numpy as np

from bringup.dtypes import DType, bool_
from bringup.records import record
from bringup_conformance.oracle.numbers import Array, same_bits


@record(eq=False)
class Span:
    """The allowed values of one array: every element from ``low`` to ``high`` of the dtype, ends
    included.

    middle: the reference's own value, inside the span wherever that is not everything.
    −0 is below +0.  NaN in both ends: only NaN is allowed.  −inf to inf (all values of an integer
    dtype, false to true): everything is, NaN too, and nothing can be said.  Ends equal in bits:
    exactly that value.
    """

    dtype: DType
    low: Array
    middle: Array
    high: Array

    @classmethod
    def exactly(cls, array: Array, dtype: DType) -> Span:
        """The span that allows nothing but an array."""
        return cls(dtype, array, array, array)

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's."""
        return tuple(self.middle.shape)

    @property
    def exact(self) -> bool:
        """Whether the whole array is known bit for bit (see `simplified`)."""
        return self.low is self.high

    def known(self) -> Array:
        """Where the ends are equal in bits."""
        return same_bits(self.low, self.high)

    def unlimited(self) -> Array:
        """Where everything is allowed."""
        if self.exact:
            return np.zeros(self.shape, np.bool_)
        bottom, top = extremes(self.dtype)
        return np.asarray((self.low == bottom) & (self.high == top))

    def simplified(self) -> Span:
        """The same span, with one array for all three if it is exact everywhere."""
        if self.exact or not bool(np.all(self.known())):
            return self
        return Span.exactly(self.low, self.dtype)


def extremes(dtype: DType) -> tuple[Any, Any]:
    """The ends of the span that allows everything."""
    if dtype is bool_:
        return np.False_, np.True_
    if dtype.is_float:
        return dtype.numpy.type(-np.inf), dtype.numpy.type(np.inf)
    info = np.iinfo(dtype.numpy)
    return dtype.numpy.type(info.min), dtype.numpy.type(info.max)


def spanning(dtype: DType, low: Array, middle: Array, high: Array, unlimited: Array) -> Span:
    """A span with some elements made unlimited."""
    if unlimited.any():
        bottom, top = extremes(dtype)
        low = np.where(unlimited, bottom, low)
        high = np.where(unlimited, top, high)
    return Span(dtype, low, middle, high).simplified()


def hull(arrays: list[Array], dtype: DType) -> tuple[Array, Array]:
    """The smallest and the largest of several arrays, −0 below +0; NaN where any is NaN."""
    low, high = arrays[0], arrays[0]
    for other in arrays[1:]:
        low, high = smaller(low, other, dtype), larger(high, other, dtype)
    return low, high


def smaller(x: Array, y: Array, dtype: DType) -> Array:
    """The smaller of each pair, −0 below +0, NaN if either is."""
    return _ordered(x, y, dtype, np.minimum, np.logical_or)


def larger(x: Array, y: Array, dtype: DType) -> Array:
    """The larger of each pair, −0 below +0, NaN if either is."""
    return _ordered(x, y, dtype, np.maximum, np.logical_and)


def _ordered(x: Array, y: Array, dtype: DType, pick: Any, negative: Any) -> Array:
    if x is y:
        return x
    with np.errstate(invalid="ignore"):
        result: Array = pick(x, y)
    if not dtype.is_float:
        return result
    zeros = (x == 0) & (y == 0)
    if not zeros.any():
        return result
    minus = negative(np.signbit(x), np.signbit(y))
    signed = np.where(minus, result.dtype.type(-0.0), result.dtype.type(0.0))
    return np.where(zeros, signed, result)


def inside(actual: Array, span: Span) -> Array:
    """Where an array lies in a span.

    >>> from bringup.dtypes import f32
    >>> one = np.ones(2, np.float32)
    >>> inside(one, Span.exactly(one, f32))
    array([ True,  True])
    """
    if span.exact:
        return same_bits(actual, span.low)
    low, high = span.low, span.high
    if not span.dtype.is_float:
        return np.asarray((low <= actual) & (actual <= high))
    with np.errstate(invalid="ignore"):
        within = (low <= actual) & (actual <= high)
    zero = actual == 0
    if zero.any():
        minus = np.signbit(actual)
        within &= ~(zero & (low == 0) & minus & ~np.signbit(low))
        within &= ~(zero & (high == 0) & ~minus & np.signbit(high))
    nan = np.isnan(low) & np.isnan(actual)
    return np.asarray(within | nan | span.unlimited())

"""Factors of products that may be rounded before they are multiplied."""

from __future__ import annotations

import numpy as np

from bringup_conformance.oracle.numbers import Array
from bringup_conformance.oracle.span import Span, spanning

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
    kept = np.uint32(0x7FFFFF >> _LACKING << _LACKING)
    bits = np.ascontiguousarray(x).view(np.uint32).reshape(x.shape)
    return np.asarray(np.isnan(x) & ((bits & kept) == 0))


def _distance(x: Array) -> Array:
    """To the nearest number of 10 bits, infinity among them; 0 of what is not finite."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    half, kept = np.uint32(1 << (_LACKING - 1)), ~np.uint32((1 << _LACKING) - 1)
    rounded = ((bits + half) & kept).view(np.float32).reshape(x.shape)
    with np.errstate(invalid="ignore"):
        distance = np.abs(rounded.astype(np.float64) - x)
    return np.where(np.isfinite(x), distance, 0.0)

"""The distinct elements of an array, in order.

Complex numbers are in the order of their real parts, equal ones in that of their imaginary parts.

How many there are depends on the values: a traced function must say with ``size`` how many to
keep.  Each NaN is distinct from every other; −0 and +0 are one element, shown as the first of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bringup.api.apply import apply, apply_all
from bringup.api.array import Array, Operand
from bringup.api.axes import integer_of
from bringup.api.broadcasting import as_array, convert
from bringup.api.complex import imag, real
from bringup.api.creation import zeros
from bringup.api.elementwise import equal, minimum, not_equal, subtract
from bringup.api.gathering import nonzero, take
from bringup.api.manipulation import concat, reshape
from bringup.api.promotion import DEFAULT_INT
from bringup.dtypes import i32, i64
from bringup.errors import OpTypeError
from bringup.types import TensorType


class UniqueAll(NamedTuple):
    """What `unique_all` gives."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """What `unique_counts` gives."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """What `unique_inverse` gives."""

    values: Array
    inverse_indices: Array


def unique_all(x: Operand, /, *, size: int | None = None) -> UniqueAll:
    """The distinct elements in ascending order, where each occurs first in the flat array, which of
    them stands at each place, and how often each occurs; positions and counts as i64.

    size: how many elements to keep, as a traced function needs: further ones are dropped, and
    after the last come copies of the largest that count 0.
    Raises OpTypeError, TraceError in a traced function without size.

    >>> values, indices, inverse, counts = bu.unique_all(bu.asarray([3, 1, 3]))
    >>> values.tolist(), indices.tolist(), inverse.tolist(), counts.tolist()
    ([1, 3], [1, 0], [1, 0, 1], [1, 2])
    """
    return _unique("unique_all", x, size)


def unique_counts(x: Operand, /, *, size: int | None = None) -> UniqueCounts:
    """The distinct elements and how often each occurs; the rest is as in `unique_all`.

    >>> bu.unique_counts(bu.asarray([3, 1, 3])).counts.tolist()
    [1, 2]
    """
    found = _unique("unique_counts", x, size)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Operand, /, *, size: int | None = None) -> UniqueInverse:
    """The distinct elements and which of them stands at each place; as in `unique_all`.

    >>> bu.unique_inverse(bu.asarray([3, 1, 3])).inverse_indices.tolist()
    [1, 0, 1]
    """
    found = _unique("unique_inverse", x, size)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Operand, /, *, size: int | None = None) -> Array:
    """The distinct elements in ascending order; the rest is as in `unique_all`.

    >>> bu.unique_values(bu.asarray([3, 1, 3])).tolist()
    [1, 3]
    """
    return _unique("unique_values", x, size).values


def _unique(name: str, x: Operand, size: int | None) -> UniqueAll:
    x = as_array(x)
    size = None if size is None else integer_of(name, "size", size)
    if not x.size and not size:
        none = zeros(0, dtype=DEFAULT_INT, device=x._device)
        return UniqueAll(reshape(x, -1), none, zeros(x.shape, dtype=DEFAULT_INT), none)
    if size is None:
        return _all_of(name, x)
    count = size
    if count < 0 or not x.size:
        raise OpTypeError(
            f"{name}: size {count} of {x.type}", fix="use size >= 0, of an array with elements"
        )
    ordered, came, first, inverse = _groups(x)
    bounds = nonzero(first, size=count + 1, fill=x.size)[0]
    starts = bounds[:count]
    known = minimum(starts, x.size - 1)
    return UniqueAll(take(ordered, known), take(came, known), inverse, subtract(bounds[1:], starts))


def _all_of(name: str, x: Array) -> UniqueAll:
    """All of them: the values are looked at, so that no program depends on how many there are."""
    fix = f"say how many to keep: {name}(x, size=n)"
    what = "the number of distinct elements of"
    x._host(what, fix)
    ordered, came, first, inverse = _groups(x)
    starts = np.flatnonzero(first._host(what, fix))
    parts = (
        ordered._host(what, fix)[starts],
        came._host(what, fix)[starts],
        np.diff(starts, append=x.size),
    )
    values, indices, counts = (as_array(part, x._device) for part in parts)
    return UniqueAll(values, indices, inverse, counts)


def _groups(x: Array) -> tuple[Array, Array, Array, Array]:
    """The elements in order, where each stood, whether it is the first of its kind, and which kind
    stands at each place of the array.
    """
    flat = reshape(x, -1)
    total = flat.shape[0]
    narrow = i32 if total < 2**31 else i64
    type_ = TensorType((total,), narrow)
    places = apply("iota", (), {"type": type_, "dim": 0}, device=x._device)
    if flat.dtype.is_complex:
        # By the imaginary parts, then, as every sort is stable, by the real ones.
        _, first = apply_all("sort", (imag(flat), places), {"dim": 0})
        moved = take(flat, first)
        _, real_first = apply_all("sort", (real(moved), places), {"dim": 0})
        ordered, came = take(moved, real_first), take(first, real_first)
    else:
        ordered, came = apply_all("sort", (flat, places), {"dim": 0})
    differs = not_equal(ordered[1:], ordered[:-1])
    first = concat([equal(places[:1], 0), differs])
    rank = apply("cumulative", (convert(first, narrow),), {"kind": "add", "dim": 0})
    _, kind = apply_all("sort", (came, subtract(rank, 1)), {"dim": 0})
    inverse = reshape(convert(kind, DEFAULT_INT), x.shape)
    return ordered, convert(came, DEFAULT_INT), first, inverse

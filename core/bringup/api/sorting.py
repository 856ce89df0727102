"""Sorting and what follows from it: the largest entries, searches, quantiles.

NaN is above every number, as in numpy: last in ascending order, first in descending order.  −0
equals +0.  All sorts are stable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bringup.api.apply import apply, apply_all
from bringup.api.arguments import (
    axes_of,
    axis_of,
    choice_of,
    flag_of,
    integer_of,
    items_of,
    number_of,
)
from bringup.api.array import Array, Operand
from bringup.api.broadcasting import as_array, as_float, convert
from bringup.api.complex import imag, real
from bringup.api.creation import zeros
from bringup.api.elementwise import (
    floor,
    isnan,
    minimum,
    where,
)
from bringup.api.gathering import nonzero, take, take_along_axis
from bringup.api.manipulation import (
    broadcast_to,
    concat,
    expand_dims,
    moveaxis,
    permute_dims,
    reshape,
    squeeze,
    stack,
)
from bringup.api.promotion import DEFAULT_INT, common
from bringup.api.reductions import any as _any
from bringup.api.reductions import count_nonzero
from bringup.dtypes import i32, i64
from bringup.errors import OpTypeError
from bringup.types import TensorType

Host = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

#: Up to this many elements are compared one by one instead of searched.
_COMPARED_DIRECTLY = 32


class TopK(NamedTuple):
    """The largest or smallest entries in order, and where they stand."""

    values: Array
    indices: Array


def sort(x: Operand, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """The elements in order along an axis.

    x: any dtype but complex ones.  stable: every sort is.
    Raises OpTypeError.

    >>> bu.sort(bu.asarray([3, 1, 2]), descending=True).tolist()
    [3, 2, 1]
    """
    x, dim = _line("sort", x, axis)
    return _sorted((x,), dim, flag_of("sort", "descending", descending))[0]


def argsort(
    x: Operand, /, axis: int = -1, *, descending: bool = False, stable: bool = True
) -> Array:
    """The positions of the elements in order along an axis, as i64.

    >>> bu.argsort(bu.asarray([3, 1, 2])).tolist()
    [1, 2, 0]
    """
    x, dim = _line("argsort", x, axis)
    return _ordered(x, dim, flag_of("argsort", "descending", descending))[1]


def top_k(x: Operand, /, k: int, *, axis: int = -1, mode: str = "largest") -> TopK:
    """The ``k`` largest elements along an axis in descending order, and their positions as i64.

    mode: ``"smallest"`` gives the smallest ones in ascending order.  Of equal elements the first
    come first.
    Raises OpTypeError.

    >>> values, indices = bu.top_k(bu.asarray([3, 1, 4, 1, 5]), 2)
    >>> values.tolist(), indices.tolist()
    ([5, 4], [4, 2])
    """
    x, dim = _line("top_k", x, axis)
    count = integer_of("top_k", "k", k)
    if not 0 <= count <= x.shape[dim]:
        raise OpTypeError(
            f"top_k: k {count} of axis {dim} of {x.type}", fix=f"use 0 <= k <= {x.shape[dim]}"
        )
    choice_of("top_k", "mode", mode, ("largest", "smallest"))
    values, indices = _ordered(x, dim, mode == "largest")
    part = (*(slice(None),) * dim, slice(count))
    return TopK(values[part], indices[part])


def searchsorted(
    x1: Operand, x2: Operand, /, side: str = "left", sorter: Operand | None = None
) -> Array:
    """Where the elements of ``x2`` would stand in ``x1``, which is sorted, as i64.

    x1: 1-d.  side: before elements that equal it (``"left"``) or after them (``"right"``).
    sorter: the positions that sort ``x1`` if it is not sorted.
    Raises OpTypeError.

    >>> bu.searchsorted(bu.asarray([1, 3, 3, 5]), bu.asarray([3, 4]), side="right").tolist()
    [3, 3]
    """
    table, queries = as_array(x1), as_array(x2)
    if table.ndim != 1:
        raise OpTypeError(
            f"searchsorted: {table.type} is not 1-d",
            fix="search one line at a time, with vmap for several",
        )
    choice_of("searchsorted", "side", side, ("left", "right"))
    dtype, _ = common([table, queries])
    table, queries = convert(table, dtype), convert(queries, dtype)
    if sorter is not None:
        table = take(table, sorter)
    return _searched(table, queries, side)


def _searched(table: Array, queries: Array, side: str) -> Array:
    """A binary search for all queries at once: `result` counts entries known to lie before each."""
    size = table.shape[0]
    result = zeros(queries.shape, dtype=DEFAULT_INT, device=queries._device)
    if not size or not queries.size:
        return result
    step = 1 << (size.bit_length() - 1)
    while step:
        probe = result + step
        entries = _entries(table, probe - 1)
        passed = _below(entries, queries) if side == "left" else (~_below(queries, entries))
        result = where((probe <= size) & passed, probe, result)
        step //= 2
    return result


def _entries(table: Array, index: Array) -> Array:
    """Entries of a 1-d array at positions, which are kept inside."""
    attrs = {
        "offset": (),
        "index_map": (0,),
        "index_dim": index.ndim,
        "collapsed": (0,),
        "sizes": (1,),
    }
    return apply("gather", (table, index), attrs)


def _below(x: Array, y: Array) -> Array:
    """``x < y``, NaN being above every number."""
    if not x.dtype.is_float:
        return x < y
    return (x < y) | isnan(y) & ~isnan(x)


def isin(x: Operand, /, test_elements: Operand, *, invert: bool = False) -> Array:
    """Whether each element occurs among others.  NaN equals nothing.

    invert: whether it does not.

    >>> bu.isin(bu.asarray([1, 2, 3]), bu.asarray([3, 1])).tolist()
    [True, False, True]
    """
    elements, candidates = as_array(x), reshape(as_array(test_elements), -1)
    dtype, _ = common([elements, candidates])
    elements, candidates = convert(elements, dtype), convert(candidates, dtype)
    if candidates.shape[0] <= _COMPARED_DIRECTLY:
        hits = reshape(elements, (*elements.shape, 1)) == candidates
        result = _any(hits, axis=-1)
    else:
        table = sort(candidates)
        result = _entries(table, _searched(table, elements, "left")) == elements
    return (~result) if flag_of("isin", "invert", invert) else result


def quantile(
    x: Operand,
    /,
    q: float | Sequence[float] | Array,
    axis: int | Sequence[int] | None = None,
    *,
    keepdims: bool = False,
) -> Array:
    """The value below which a share of the elements lies, linear between neighbours.

    q: between 0 and 1; a sequence or a 1-d array gives a first axis.  In an array shares are data:
    those that are out of range give NaN.  Lines with NaN give NaN.
    Raises OpTypeError, also for no elements.

    >>> bu.quantile(bu.asarray([3.0, 1.0, 2.0, 4.0]), 0.5).tolist()
    2.5
    """
    return _quantiles("quantile", x, _shares("quantile", q), axis, keepdims)


def nanquantile(
    x: Operand,
    /,
    q: float | Sequence[float] | Array,
    axis: int | Sequence[int] | None = None,
    *,
    keepdims: bool = False,
) -> Array:
    """`quantile` of the elements that are not NaN; NaN where there are none.

    >>> bu.nanquantile(bu.asarray([3.0, bu.nan, 1.0]), 0.5).tolist()
    2.0
    """
    return _quantiles("nanquantile", x, _shares("nanquantile", q), axis, keepdims, without_nan=True)


def median(
    x: Operand, /, axis: int | Sequence[int] | None = None, *, keepdims: bool = False
) -> Array:
    """The middle element, or the mean of the two in the middle.  Lines with NaN give NaN.

    >>> bu.median(bu.asarray([[1, 7, 3], [4, 4, 0]]), axis=1).tolist()
    [3.0, 4.0]
    """
    return _quantiles("median", x, np.asarray(0.5), axis, keepdims)


def _shares(name: str, q: Any) -> Host | Array:
    """The shares: known ones, checked to lie between 0 and 1, or data; of shape () or (n,)."""
    if isinstance(q, Array):
        if q.ndim > 1 or not q.dtype.is_float:
            raise OpTypeError(
                f"{name}: q is {q.type}, not one share nor a line of them",
                fix="give floats of shape () or (n,)",
            )
        return q
    many = isinstance(q, Sequence | np.ndarray) and not isinstance(q, str | bytes)
    if many and getattr(q, "shape", None) != ():
        numbers = [number_of(name, "a share", share) for share in items_of(name, "q", q)]
        shares = np.asarray(numbers, np.float64)
    else:
        shares = np.asarray(number_of(name, "q", q))
    if not np.all((shares >= 0) & (shares <= 1)):
        raise OpTypeError(f"{name}: q {q!r} is no share", fix="give numbers from 0 to 1")
    return shares


def _quantiles(
    name: str,
    x: Operand,
    shares: Host | Array,
    axis: int | Sequence[int] | None,
    keepdims: bool,
    *,
    without_nan: bool = False,
) -> Array:
    x = as_float(x)
    dims = axes_of(name, axis, x.ndim)
    other_dims = [d for d in range(x.ndim) if d not in dims]
    flat = reshape(permute_dims(x, (*other_dims, *dims)), (*(x.shape[d] for d in other_dims), -1))
    size = flat.shape[-1]
    if not size:
        raise OpTypeError(
            f"{name}: {x.type} has no elements along the axes",
            fix="give it elements, or test x.size first",
        )
    line = sort(flat)
    bad = isnan(line[..., -1])
    last: Array | int = size - 1
    if without_nan:
        # NaN comes last, so that the numbers of each line are its first entries.
        bad = isnan(line[..., 0])
        last = count_nonzero(~isnan(line), axis=-1) - 1
    shape = [1 if d in dims else n for d, n in enumerate(x.shape)]
    result_shape = shape if flag_of(name, "keepdims", keepdims) else list(bad.shape)
    if isinstance(shares, Array) or without_nan:
        data = convert(shares, x.dtype) if isinstance(shares, Array) else None
        data_shares = reshape(as_array(shares, x._device) if data is None else data, (-1,))
        parts = [
            reshape(_traced_quantile(line, last, bad, data_shares[n]), result_shape)
            for n in range(data_shares.shape[0])
        ]
        if not shares.ndim:
            return parts[0]
        return stack(parts) if parts else zeros((0, *result_shape), dtype=x.dtype, device=x._device)
    result: list[Array] = []
    for share in shares.reshape(-1).tolist():
        position = share * (size - 1)
        low = int(position)
        value = line[..., low]
        if position > low:
            value = value + (line[..., low + 1] - value) * (position - low)
        value = where(bad, float("nan"), value)
        result.append(reshape(value, result_shape))
    if shares.ndim == 0:
        return result[0]
    return stack(result) if result else zeros((0, *result_shape), dtype=x.dtype, device=x._device)


def _traced_quantile(line: Array, last: Array | int, bad: Array, share: Array) -> Array:
    """The quantile of sorted lines at a share that is data.

    last: the position of the last number, of all lines or of each.
    """
    position = share * (convert(last, share.dtype) if isinstance(last, Array) else last)
    low = floor(position)
    first = broadcast_to(convert(low, DEFAULT_INT), bad.shape)
    pair = [expand_dims(index, -1) for index in (first, minimum(first + 1, last))]
    below, above = (squeeze(take_along_axis(line, index), -1) for index in pair)
    # A neighbour with weight 0 must not contribute, even if it is infinite.
    part = convert(position - low, line.dtype)
    value = where(part > 0, below + (above - below) * part, below)
    inside = (share >= 0) & (share <= 1)
    return where(inside & ~bad, value, float("nan"))


def _line(name: str, x: Operand, axis: int) -> tuple[Array, int]:
    x = as_array(x)
    if not x.ndim:
        raise OpTypeError(
            f"{name}: {x.type} is 0-d: it has no axis", fix="reshape it to (1,) first"
        )
    return x, axis_of(name, axis, x.ndim)


def _sorted(operands: Sequence[Array], dim: int, descending: bool) -> list[Array]:
    """Sorted by the first operand along the last dimension, whatever the dimension.

    Lines that lie apart are brought together first: reading them one by one costs much more.
    """
    last = operands[0].ndim - 1
    moved = [moveaxis(x, dim, last) for x in operands]
    result = apply_all("sort", moved, {"dim": last, "descending": descending})
    return [moveaxis(x, last, dim) for x in result]


def _ordered(x: Array, dim: int, descending: bool) -> tuple[Array, Array]:
    """The elements in order, and their positions."""
    narrow = i32 if x.shape[dim] < 2**31 else i64
    type_ = TensorType(x.shape, narrow)
    positions = apply("iota", (), {"type": type_, "dim": dim}, device=x._device)
    values, result = _sorted((x, positions), dim, descending)
    return values, convert(result, DEFAULT_INT)


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
    result = _unique("unique_counts", x, size)
    return UniqueCounts(result.values, result.counts)


def unique_inverse(x: Operand, /, *, size: int | None = None) -> UniqueInverse:
    """The distinct elements and which of them stands at each place; as in `unique_all`.

    >>> bu.unique_inverse(bu.asarray([3, 1, 3])).inverse_indices.tolist()
    [1, 0, 1]
    """
    result = _unique("unique_inverse", x, size)
    return UniqueInverse(result.values, result.inverse_indices)


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
        return _unique_on_host(name, x)
    count = size
    if count < 0 or not x.size:
        raise OpTypeError(
            f"{name}: size {count} of {x.type}", fix="use size >= 0, of an array with elements"
        )
    ordered, origin, first, inverse = _groups(x)
    bounds = nonzero(first, size=count + 1, fill=x.size)[0]
    starts = bounds[:count]
    known = minimum(starts, x.size - 1)
    return UniqueAll(take(ordered, known), take(origin, known), inverse, bounds[1:] - starts)


def _unique_on_host(name: str, x: Array) -> UniqueAll:
    """All distinct elements: the host reads values, so that no program depends on their number."""
    fix = f"say how many to keep: {name}(x, size=n)"
    purpose = "the number of distinct elements of"
    x._host(purpose, fix)
    ordered, origin, first, inverse = _groups(x)
    starts = np.flatnonzero(first._host(purpose, fix))
    parts = (
        ordered._host(purpose, fix)[starts],
        origin._host(purpose, fix)[starts],
        np.diff(starts, append=x.size),
    )
    values, indices, counts = (as_array(part, x._device) for part in parts)
    return UniqueAll(values, indices, inverse, counts)


def _groups(x: Array) -> tuple[Array, Array, Array, Array]:
    """The elements in order, the position that each had, whether it is the first of equal ones; and
    for each element of the array the number of its distinct value.
    """
    flat = reshape(x, -1)
    total = flat.shape[0]
    narrow = i32 if total < 2**31 else i64
    type_ = TensorType((total,), narrow)
    positions = apply("iota", (), {"type": type_, "dim": 0}, device=x._device)
    if flat.dtype.is_complex:
        # Sort by the imaginary parts, then by the real ones: every sort is stable.
        _, first = apply_all("sort", (imag(flat), positions), {"dim": 0})
        moved = take(flat, first)
        _, real_first = apply_all("sort", (real(moved), positions), {"dim": 0})
        ordered, origin = take(moved, real_first), take(first, real_first)
    else:
        ordered, origin = apply_all("sort", (flat, positions), {"dim": 0})
    differs = ordered[1:] != ordered[:-1]
    first = concat([positions[:1] == 0, differs])
    rank = apply("cumulative", (convert(first, narrow),), {"kind": "add", "dim": 0})
    _, kind = apply_all("sort", (origin, rank - 1), {"dim": 0})
    inverse = reshape(convert(kind, DEFAULT_INT), x.shape)
    return ordered, convert(origin, DEFAULT_INT), first, inverse

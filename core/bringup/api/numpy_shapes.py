"""Joining, splitting, padding and numbering of elements, under the names of numpy and JAX.

They are made of the functions of the array API standard; `bringup` hands them on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np

from bringup.api.apply import apply
from bringup.api.arguments import axis_of, choice_of, integer_of, items_of, shape_of
from bringup.api.array import Array, Operand
from bringup.api.broadcasting import as_array, spread
from bringup.api.creation import asarray, eye, ones, tril, zeros_like
from bringup.api.decompositions import diagonal as last_diagonal
from bringup.api.elementwise import clip, where
from bringup.api.gathering import nonzero
from bringup.api.manipulation import (
    broadcast_arrays,
    concat,
    expand_dims,
    flip,
    moveaxis,
    permute_dims,
    reshape,
    stack,
    swapaxes,
)
from bringup.api.promotion import DEFAULT_INT, literal
from bringup.dtypes import bool_
from bringup.errors import ArrayIndexError, OpTypeError

concatenate = concat


def size(x: Operand, /, axis: int | None = None) -> int:
    """The number of elements, or of the entries along an axis.

    >>> bu.size(bu.zeros((2, 3))), bu.size(bu.zeros((2, 3)), 1)
    (6, 3)
    """
    x = as_array(x)
    return x.size if axis is None else x.shape[axis_of("size", axis, x.ndim)]


def ndim(x: Operand, /) -> int:
    """The number of dimensions.

    >>> bu.ndim(bu.zeros((2, 3)))
    2
    """
    return as_array(x).ndim


def shape(x: Operand, /) -> tuple[int, ...]:
    """The sizes of the dimensions.

    >>> bu.shape(bu.zeros((2, 3)))
    (2, 3)
    """
    return as_array(x).shape


# -- axes ------------------------------------------------------------------------------------------


def transpose(x: Operand, /, axes: Sequence[int] | None = None) -> Array:
    """The axes in another order, by default the reverse one.

    >>> bu.transpose(bu.zeros((2, 3, 4))).shape
    (4, 3, 2)
    """
    x = as_array(x)
    return permute_dims(x, range(x.ndim)[::-1] if axes is None else axes)


def ravel(x: Operand, /) -> Array:
    """All elements in one dimension, row by row.

    >>> bu.ravel(bu.asarray([[1, 2], [3, 4]])).tolist()
    [1, 2, 3, 4]
    """
    return reshape(as_array(x), -1)


def rot90(x: Operand, /, k: int = 1, axes: Sequence[int] = (0, 1)) -> Array:
    """The array turned by 90 degrees `k` times, from the first of two axes towards the second.

    >>> bu.rot90(bu.asarray([[1, 2], [3, 4]])).tolist()
    [[2, 4], [1, 3]]
    """
    x, quarters = as_array(x), integer_of("rot90", "k", k) % 4
    first, second = _two_axes("rot90", axes, x.ndim)
    if quarters == 2:
        return flip(x, (first, second))
    swapped = swapaxes(x, first, second)
    return [x, flip(swapped, first), x, flip(swapped, second)][quarters]


def _two_axes(name: str, axes: Any, rank: int) -> tuple[int, int]:
    result = [axis_of(name, axis, rank) for axis in items_of(name, "axes", axes)]
    if len(result) != 2 or result[0] == result[1]:
        raise OpTypeError(f"{name}: axes {axes!r} are not two", fix="give two axes")
    return result[0], result[1]


def fliplr(x: Operand, /) -> Array:
    """The order reversed along the second axis.

    >>> bu.fliplr(bu.asarray([[1, 2], [3, 4]])).tolist()
    [[2, 1], [4, 3]]
    """
    return flip(as_array(x), 1)


def flipud(x: Operand, /) -> Array:
    """The order reversed along the first axis.

    >>> bu.flipud(bu.asarray([[1, 2], [3, 4]])).tolist()
    [[3, 4], [1, 2]]
    """
    return flip(as_array(x), 0)


@overload
def atleast_1d(x: Operand, /) -> Array: ...
@overload
def atleast_1d(*arrays: Operand) -> list[Array]: ...
def atleast_1d(*arrays: Operand) -> Array | list[Array]:
    """Arrays, those of no dimensions with one; a list if there is not exactly one array.

    >>> bu.atleast_1d(bu.asarray(3)).shape
    (1,)
    """
    return _at_least(1, arrays)


@overload
def atleast_2d(x: Operand, /) -> Array: ...
@overload
def atleast_2d(*arrays: Operand) -> list[Array]: ...
def atleast_2d(*arrays: Operand) -> Array | list[Array]:
    """Arrays, those of fewer than two dimensions with more in front.

    >>> bu.atleast_2d(bu.zeros(3)).shape
    (1, 3)
    """
    return _at_least(2, arrays)


@overload
def atleast_3d(x: Operand, /) -> Array: ...
@overload
def atleast_3d(*arrays: Operand) -> list[Array]: ...
def atleast_3d(*arrays: Operand) -> Array | list[Array]:
    """Arrays, those of fewer than three dimensions with more: (n,) to (1, n, 1), (m, n) to (m, n,
    1).

    >>> bu.atleast_3d(bu.zeros(3)).shape
    (1, 3, 1)
    """
    return _at_least(3, arrays)


def _at_least(rank: int, arrays: Sequence[Operand]) -> Array | list[Array]:
    result = []
    for x in map(as_array, arrays):
        leading = (1,) * min(rank - x.ndim, 2 - x.ndim if rank == 3 else rank)
        trailing = (1,) * (rank - x.ndim - len(leading))
        result.append(x if x.ndim >= rank else reshape(x, (*leading, *x.shape, *trailing)))
    return result[0] if len(result) == 1 else result


# -- joining and splitting -------------------------------------------------------------------------


def hstack(arrays: Sequence[Array], /) -> Array:
    """Arrays one after the other along the second axis, 1-d ones along the first.

    >>> bu.hstack([bu.asarray([1, 2]), bu.asarray([3])]).tolist()
    [1, 2, 3]
    """
    parts = _parts("hstack", arrays, 1)
    return concat(parts, 0 if not parts or parts[0].ndim == 1 else 1)


def vstack(arrays: Sequence[Array], /) -> Array:
    """Arrays one after the other along the first axis, 1-d ones as rows.

    >>> bu.vstack([bu.asarray([1, 2]), bu.asarray([3, 4])]).tolist()
    [[1, 2], [3, 4]]
    """
    return concat(_parts("vstack", arrays, 2))


def dstack(arrays: Sequence[Array], /) -> Array:
    """Arrays one after the other along the third axis, after `atleast_3d`.

    >>> bu.dstack([bu.asarray([1, 2]), bu.asarray([3, 4])]).tolist()
    [[[1, 3], [2, 4]]]
    """
    return concat(_parts("dstack", arrays, 3), 2)


def column_stack(arrays: Sequence[Array], /) -> Array:
    """Arrays one after the other along the second axis, 1-d ones as columns.

    >>> bu.column_stack([bu.asarray([1, 2]), bu.asarray([3, 4])]).tolist()
    [[1, 3], [2, 4]]
    """
    parts = _parts("column_stack", arrays, 1)
    return concat([expand_dims(x, 1) if x.ndim == 1 else x for x in parts], 1)


def _parts(name: str, arrays: Any, rank: int) -> list[Array]:
    result = _at_least(rank, items_of(name, "arrays", arrays))
    return result if isinstance(result, list) else [result]


def append(x: Operand, /, values: Operand, axis: int | None = None) -> Array:
    """Values put behind an array along an axis; both flattened first for None.

    >>> bu.append(bu.asarray([1, 2]), bu.asarray([[3], [4]])).tolist()
    [1, 2, 3, 4]
    """
    return concat([as_array(x), as_array(values)], axis)


def array_split(
    x: Operand, /, indices_or_sections: int | Sequence[int], axis: int = 0
) -> list[Array]:
    """The parts of an array along an axis.

    indices_or_sections: how many parts, whose sizes differ by 1 at most, or where parts begin, but
    for the first.

    >>> [part.tolist() for part in bu.array_split(bu.arange(5), 2)]
    [[0, 1, 2], [3, 4]]
    """
    return _split("array_split", as_array(x), indices_or_sections, axis)


def split(x: Operand, /, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """`array_split` into parts of one size, or at indices.

    Raises OpTypeError if the number of parts does not divide the axis.

    >>> [part.tolist() for part in bu.split(bu.arange(5), [2])]
    [[0, 1], [2, 3, 4]]
    """
    return _split("split", as_array(x), indices_or_sections, axis, even=True)


def hsplit(x: Operand, /, indices_or_sections: int | Sequence[int]) -> list[Array]:
    """`split` along the second axis, of 1-d arrays along the first.

    >>> [part.tolist() for part in bu.hsplit(bu.asarray([[1, 2], [3, 4]]), 2)]
    [[[1], [3]], [[2], [4]]]
    """
    x = as_array(x)
    return _split("hsplit", x, indices_or_sections, 0 if x.ndim == 1 else 1, even=True)


def vsplit(x: Operand, /, indices_or_sections: int | Sequence[int]) -> list[Array]:
    """`split` along the first axis.

    >>> [part.tolist() for part in bu.vsplit(bu.asarray([[1, 2], [3, 4]]), 2)]
    [[[1, 2]], [[3, 4]]]
    """
    return _split("vsplit", as_array(x), indices_or_sections, 0, even=True)


def dsplit(x: Operand, /, indices_or_sections: int | Sequence[int]) -> list[Array]:
    """`split` along the third axis.

    >>> [part.shape for part in bu.dsplit(bu.zeros((2, 3, 4)), 2)]
    [(2, 3, 2), (2, 3, 2)]
    """
    return _split("dsplit", as_array(x), indices_or_sections, 2, even=True)


def _split(name: str, x: Array, parts: Any, axis: int, even: bool = False) -> list[Array]:
    dim = axis_of(name, axis, x.ndim)
    length = x.shape[dim]
    if isinstance(parts, Sequence) or (isinstance(parts, np.ndarray) and parts.ndim):
        indices = items_of(name, "indices", parts)
        cuts = [0, *(integer_of(name, "an index", index) for index in indices), length]
    else:
        count = integer_of(name, "the number of parts", parts)
        if count < 1 or (even and length % count):
            raise OpTypeError(
                f"{name}: axis {dim} of {x.type} in {count} parts",
                fix="give a number that divides the size, or use array_split",
            )
        larger = length % count
        cuts = [n * (length // count) + min(n, larger) for n in range(count + 1)]
    before = (slice(None),) * dim
    return [x[(*before, slice(*cut))] for cut in pairwise(cuts)]


_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


def pad(
    x: Operand,
    /,
    pad_width: int | Sequence[int] | Sequence[Sequence[int]],
    mode: str = "constant",
    *,
    constant_values: Operand = 0,
) -> Array:
    """The array with more entries before and after those of each axis.

    pad_width: how many: one number, a pair (before, after), or a pair for each axis.
    mode: what they hold: "constant" one value, "edge" the first and last entry, "reflect" the
    entries mirrored at these, "symmetric" mirrored behind them, "wrap" those of the other end.
    Raises OpTypeError.

    >>> bu.pad(bu.asarray([1, 2, 3]), (1, 2), "reflect").tolist()
    [2, 1, 2, 3, 2, 1]
    """
    x = as_array(x)
    choice_of("pad", "mode", mode, _MODES)
    try:
        widths = np.asarray(pad_width)
        if widths.dtype.kind not in "iu" or (widths < 0).any():
            raise ValueError
        pairs = np.broadcast_to(widths, (x.ndim, 2)).tolist()
    except ValueError:
        raise OpTypeError(
            f"pad: pad_width {pad_width!r} for {x.type}",
            fix="give an int of at least 0, a pair of them, or a pair for each axis",
        ) from None
    if mode == "constant":
        return _framed(x, pairs, constant_values)
    for dim, pair in enumerate(pairs):
        if not any(pair):
            continue
        if not x.shape[dim]:
            raise OpTypeError(
                f"pad: axis {dim} of {x.type} has no entries to repeat", fix='use mode="constant"'
            )
        # numpy pads the positions; one gather then works for every mode.
        index = np.pad(np.arange(x.shape[dim]), pair, mode)  # type: ignore[call-overload]
        x = _entries(x, dim, index)
    return x


#: Runs of neighbouring entries that are joined; more are read by their indices, one by one.
_RUNS = 16


def _entries(x: Array, dim: int, index: np.ndarray[Any, Any]) -> Array:
    """Entries of an axis in an order that consists of few runs: up, down or of one entry."""
    before = (slice(None),) * dim
    steps = np.diff(index)
    turns = np.flatnonzero(np.diff(steps)) + 1
    parts: list[Array] = []
    start = 0
    while start < index.size and len(parts) < _RUNS:
        first = int(index[start])
        step = int(steps[start]) if start < steps.size else 1
        count = 1
        if abs(step) <= 1:
            later = turns[turns > start]
            count = int(later[0]) + 1 - start if later.size else index.size - start
        low = first - (count - 1 if step == -1 else 0)
        part = x[(*before, slice(low, low + (1 if step == 0 else count)))]
        if step == 0:
            part = spread(part, (*x.shape[:dim], count, *x.shape[dim + 1 :]))
        parts.append(flip(part, dim) if step == -1 else part)
        start += count
    return concat(parts, dim) if start == index.size else x[(*before, index)]


def _framed(x: Array, pairs: list[list[int]], value: Operand) -> Array:
    edge = as_array(value).astype(x.dtype) if isinstance(value, Array | np.ndarray) else None
    if edge is not None and edge.ndim:
        raise OpTypeError(f"pad: the value is {edge.type}", fix="give one value")
    lo, hi = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
    attrs = {"lo": lo, "hi": hi, "interior": (0,) * x.ndim}
    return apply("pad", (x, edge or literal(value, x.type.with_shape(()))), attrs)


# -- matrices and their indices --------------------------------------------------------------------


def identity(n: int, dtype: object = None) -> Array:
    """The identity matrix of n rows, of the default float dtype.

    >>> bu.identity(2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return eye(n, dtype=dtype)


def tri(n: int, m: int | None = None, k: int = 0, dtype: object = None) -> Array:
    """Ones on diagonal `k` and below it, zeros above; of the default float dtype.

    >>> bu.tri(2, 3).tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
    """
    sizes = [integer_of("tri", "a size", size) for size in (n, n if m is None else m)]
    return tril(ones(sizes, dtype), k)


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """The rows and the columns of the elements on diagonal `k` and below it of an n by m matrix.

    >>> [index.tolist() for index in bu.tril_indices(2)]
    [[0, 1, 1], [0, 0, 1]]
    """
    return _triangle("tril_indices", n, k, m, lower=True)


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """The rows and the columns of the elements on diagonal `k` and above it of an n by m matrix.

    >>> [index.tolist() for index in bu.triu_indices(2)]
    [[0, 0, 1], [0, 1, 1]]
    """
    return _triangle("triu_indices", n, k, m, lower=False)


def _triangle(name: str, n: int, k: int, m: int | None, *, lower: bool) -> tuple[Array, Array]:
    sizes = shape_of(name, (n, n if m is None else m))
    mask = np.tri(sizes[0], sizes[1], integer_of(name, "k", k) - (not lower), bool)
    rows, columns = np.nonzero(mask if lower else ~mask)
    return asarray(rows), asarray(columns)


def diagonal(x: Operand, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """The diagonals of the matrices of two axes, along a new last axis.

    >>> bu.diagonal(bu.asarray([[1, 2], [3, 4]])).tolist()
    [1, 4]
    """
    x = as_array(x)
    first, second = _two_axes("diagonal", (axis1, axis2), x.ndim)
    return last_diagonal(moveaxis(x, (first, second), (-2, -1)), offset=offset)


def diag(x: Operand, /, k: int = 0) -> Array:
    """Diagonal `k` of a matrix, or the matrix whose diagonal `k` is a vector.

    >>> bu.diag(bu.asarray([1, 2])).tolist()
    [[1, 0], [0, 2]]
    """
    x, k = as_array(x), integer_of("diag", "k", k)
    if x.ndim == 2:
        return last_diagonal(x, offset=k)
    if x.ndim != 1:
        raise OpTypeError(
            f"diag: {x.type} is neither a vector nor a matrix",
            fix="use diagonal for stacks of matrices",
        )
    size = x.size + abs(k)
    shape_of("diag", (size, size))
    line = pad(x, (0, abs(k)))
    values = spread(expand_dims(line, 1 if k >= 0 else 0), (size, size))
    return where(eye(size, k=k, dtype=bool_), values, zeros_like(values))


def argwhere(x: Operand, /, *, size: int | None = None, fill: int = 0) -> Array:
    """The index of each element that is not 0, one in a row.

    size, fill: as in `nonzero`.

    >>> bu.argwhere(bu.asarray([[0, 3], [4, 0]])).tolist()
    [[0, 1], [1, 0]]
    """
    return stack(nonzero(x, size=size, fill=fill), 1)


def flatnonzero(x: Operand, /, *, size: int | None = None, fill: int = 0) -> Array:
    """The positions of the elements that are not 0 in the flattened array.

    size, fill: as in `nonzero`.

    >>> bu.flatnonzero(bu.asarray([[0, 3], [4, 0]])).tolist()
    [1, 2]
    """
    return nonzero(reshape(as_array(x), -1), size=size, fill=fill)[0]


def unravel_index(indices: Operand, shape: int | Sequence[int], /) -> tuple[Array, ...]:
    """The indices along each axis of positions in a flattened array of a shape.

    indices: integers; those in Python or numpy are checked, in an array they are kept in range.
    Raises OpTypeError, ArrayIndexError.

    >>> [index.tolist() for index in bu.unravel_index(bu.asarray([1, 5]), (2, 3))]
    [[0, 1], [1, 2]]
    """
    sizes = shape_of("unravel_index", shape)
    count = math.prod(sizes)
    index = _whole("unravel_index", indices)
    if not isinstance(indices, Array):
        host = np.asarray(indices)
        if host.size and not (host.min() >= 0 and host.max() < count):
            raise ArrayIndexError(
                f"unravel_index: an index is out of range for {count} elements",
                fix=f"use 0 … {count - 1}",
            )
    remainder = clip(index, 0, max(count - 1, 0))
    result: list[Array] = []
    for n in reversed(sizes):
        result.append(remainder % max(n, 1))
        remainder = remainder // max(n, 1)
    return tuple(reversed(result))


def ravel_multi_index(
    multi_index: Sequence[Operand], dims: int | Sequence[int], /, mode: str = "clip"
) -> Array:
    """The positions in a flattened array of indices along each axis.

    multi_index: integers for each axis, which broadcast.  dims: the shape.
    mode: what becomes of indices that are out of range: "clip" keeps them in it, "wrap" counts
    from the start again.
    Raises OpTypeError.

    >>> bu.ravel_multi_index((bu.asarray([0, 1]), bu.asarray([1, 2])), (2, 3)).tolist()
    [1, 5]
    """
    name = "ravel_multi_index"
    sizes = shape_of(name, dims)
    choice_of(name, "mode", mode, ("clip", "wrap"))
    indices = [_whole(name, index) for index in items_of(name, "indices", multi_index)]
    if len(indices) != len(sizes) or not all(sizes):
        raise OpTypeError(
            f"{name}: {len(indices)} indices for shape {sizes}",
            fix="give indices for each of the dimensions, which must have elements",
        )
    flat = asarray(0)
    for index, n in zip(broadcast_arrays(*indices), sizes, strict=True):
        inside = clip(index, 0, n - 1) if mode == "clip" else (index % n)
        flat = flat * n + inside
    return flat


def _whole(name: str, index: Any) -> Array:
    """Indices as i64."""
    result = as_array(index)
    if not result.dtype.is_integer:
        raise OpTypeError(
            f"{name}: indices must be integers, got {result.type}",
            fix="convert them: astype(indices, bu.int64)",
        )
    return result.astype(DEFAULT_INT)


__all__ = [
    "append", "argwhere", "array_split", "atleast_1d", "atleast_2d", "atleast_3d", "column_stack",
    "concatenate", "diag", "diagonal", "dsplit", "dstack", "flatnonzero", "fliplr", "flipud",
    "hsplit", "hstack", "identity", "ndim", "pad", "ravel", "ravel_multi_index", "rot90", "shape",
    "size", "split", "swapaxes", "transpose", "tri", "tril_indices", "triu_indices",
    "unravel_index", "vsplit", "vstack",
]  # fmt: skip

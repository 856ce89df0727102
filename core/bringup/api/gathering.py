"""Reading and writing at indices that are data: take, put, dynamic slices, nonzero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup.api import advanced
from bringup.api.apply import apply
from bringup.api.arguments import axis_of, integer_of, items_of, shape_of
from bringup.api.array import Array, Operand
from bringup.api.broadcasting import as_array, broadcast_shapes, convert, spread
from bringup.api.elementwise import where
from bringup.api.manipulation import reshape
from bringup.api.promotion import literal
from bringup.dtypes import bool_, i32, i64
from bringup.errors import OpTypeError
from bringup.types import TensorType


def take(x: Operand, /, indices: Operand, axis: int | None = None) -> Array:
    """The entries of an axis at integer indices, which take its place in the shape.

    x: any dtype.  indices: integers of any shape; negative ones count from the end.  Indices in
    Python or numpy are checked; in an array they are kept in range.  axis: needed unless x is 1-d.
    Raises OpTypeError, ArrayIndexError.

    >>> bu.take(bu.asarray([[1, 2, 3], [4, 5, 6]]), bu.asarray([2, 0]), axis=1).tolist()
    [[3, 1], [6, 4]]
    """
    x = as_array(x)
    if axis is None and x.ndim != 1:
        raise OpTypeError(
            f"take: {x.type} has {x.ndim} dimensions, and no axis is given", fix="pass axis="
        )
    dim = axis_of("take", 0 if axis is None else axis, x.ndim)
    index = _integers("take", indices)
    return x[(*(slice(None),) * dim, index)]


def _integers(name: str, indices: Operand) -> advanced.Index:
    index = indices if isinstance(indices, Array) else advanced.host_index(name, indices)
    if isinstance(index, np.ndarray) and not index.size:
        index = index.astype(np.int64)
    kind = index.dtype.kind
    if kind not in ("int", "uint", "i", "u"):
        raise OpTypeError(
            f"{name}: indices must be integers, got {index.dtype}",
            fix="convert them: astype(indices, bu.int64)",
        )
    return index


def take_along_axis(x: Operand, /, indices: Operand, axis: int = -1) -> Array:
    """The element of each line along an axis that the index at the same place names.

    x, indices: of one rank, their other dimensions broadcast.  Negative indices count from the
    end; those out of range are kept in it.  Such as argsort and argmax with ``keepdims`` give.
    Raises OpTypeError.

    >>> x = bu.asarray([[30, 10, 20], [5, 6, 4]])
    >>> bu.take_along_axis(x, bu.asarray([[1], [2]])).tolist()
    [[10], [4]]
    """
    x, index, dim = _lines("take_along_axis", as_array(x), indices, axis)
    if not index.size:
        return advanced.zeros_of(TensorType(index.shape, x.dtype), x)
    sizes = (1,) * x.ndim
    return apply("gather", (x, index), {**_line_numbers(x, dim), "sizes": sizes})


def put_along_axis(x: Operand, /, indices: Operand, values: Operand, axis: int = -1) -> Array:
    """The array with the element of each line that an index names replaced by a value.

    Indices as in `take_along_axis`, those out of range replacing nothing; values broadcast to
    them.  Of several values for one element the last stays.
    Raises OpTypeError.

    >>> x = bu.zeros((2, 3), dtype=bu.int32)
    >>> bu.put_along_axis(x, bu.asarray([[1], [2]]), 7).tolist()
    [[0, 7, 0], [0, 0, 7]]
    """
    x, index, dim = _lines("put_along_axis", as_array(x), indices, axis)
    if not index.size:
        return x
    new = values if isinstance(values, Array | np.ndarray) else None
    if new is None:
        filling = literal(values, TensorType(index.shape, x.dtype))
        new = apply("reshape", (filling,), {"shape": index.shape}, device=x._device)
    updates = spread(convert(as_array(new, x._device), x.dtype), index.shape)
    return apply("scatter", (x, index, updates), {**_line_numbers(x, dim), "kind": "set"})


def _lines(name: str, x: Array, indices: Operand, axis: int) -> tuple[Array, Array, int]:
    """Both spread over their other dimensions, and indices counted from 0."""
    index = _integers(name, indices)
    if index.ndim != x.ndim or not x.ndim:
        raise OpTypeError(
            f"{name}: {x.type} and indices of shape {tuple(index.shape)} differ in rank",
            fix="give indices the rank of the array, which must not be 0-d",
        )
    dim = axis_of(name, axis, x.ndim)
    other_sizes = [tuple(1 if d == dim else n for d, n in enumerate(a.shape)) for a in (x, index)]
    shape = broadcast_shapes(*other_sizes)
    if shape is None:
        raise OpTypeError(
            f"{name}: {x.type} and indices of shape {tuple(index.shape)} do not broadcast",
            fix="make sizes equal or 1, but along the axis",
        )
    counted = as_array(advanced.from_start(index, dim, x.type), x._device)
    sizes = [tuple(a.shape[d] if d == dim else n for d, n in enumerate(shape)) for a in (x, index)]
    return spread(x, sizes[0]), spread(counted, sizes[1]), dim


def _line_numbers(x: Array, dim: int) -> dict[str, Any]:
    other_dims = tuple(d for d in range(x.ndim) if d != dim)
    return {
        "offset": (),
        "index_map": (dim,),
        "index_dim": x.ndim,
        "collapsed": (dim,),
        "batch": (other_dims, other_dims),
    }


def dynamic_slice(x: Operand, starts: Sequence[Operand] | Array, sizes: Sequence[int], /) -> Array:
    """The window of the given sizes that begins at starts, which may be data.

    starts: an integer per dimension, or a 1-d array of them; they are clamped so that the window
    lies inside; negative ones do not count from the end.
    Raises OpTypeError.

    >>> bu.dynamic_slice(bu.arange(6), [bu.asarray(4)], [3]).tolist()
    [3, 4, 5]
    """
    x = as_array(x)
    firsts = _starts("dynamic_slice", x, starts)
    return apply("dynamic_slice", (x, *firsts), {"sizes": shape_of("dynamic_slice", sizes)})


def dynamic_update_slice(
    x: Operand, update: Operand, starts: Sequence[Operand] | Array, /
) -> Array:
    """The array with the window that begins at starts replaced; the rest is as in `dynamic_slice`.

    Where `x` dies or was donated to `jit`, the window alone is written.

    >>> bu.dynamic_update_slice(bu.arange(4), bu.asarray([9, 9]), [1]).tolist()
    [0, 9, 9, 3]
    """
    x = as_array(x)
    firsts = _starts("dynamic_update_slice", x, starts)
    new = convert(as_array(update, x._device), x.dtype)
    return apply("dynamic_update_slice", (x, new, *firsts))


def _starts(name: str, x: Array, starts: Sequence[Operand] | Array) -> list[Array]:
    """A 0-d start of one dtype per dimension."""
    if isinstance(starts, Array | np.ndarray):
        values: list[Any] = [starts[n] for n in range(starts.shape[0])] if starts.ndim else []
    else:
        values = items_of(name, "starts", starts)
    if len(values) != x.ndim:
        raise OpTypeError(
            f"{name}: {len(values)} starts for {x.type}", fix="give one start for each dimension"
        )
    dtypes = {start.dtype for start in values if isinstance(start, Array)}
    # Known starts take the dtype of the other starts if it holds every position.
    dtype = dtypes.pop() if len(dtypes) == 1 else i64
    if (
        dtype.is_integer
        and np.iinfo(dtype.numpy).max < max(x.shape, default=0)
        and any(not isinstance(start, Array) for start in values)
    ):
        dtype = i64
    if not dtype.is_integer:
        raise OpTypeError(
            f"{name}: starts must be integers, got {dtype}",
            fix="convert them: astype(start, bu.int32)",
        )
    return [_start(name, start, dtype, x) for start in values]


def _start(name: str, start: Any, dtype: Any, x: Array) -> Array:
    if isinstance(start, Array):
        wide = advanced.signed(start) if dtype is i64 else convert(start, dtype)
        return reshape(wide, ())
    value = max(integer_of(name, "start", start), 0)
    scalar = literal(min(value, int(np.iinfo(dtype.numpy).max)), dtype[()])
    return apply("reshape", (scalar,), {"shape": ()}, device=x._device)


def nonzero(x: Operand, /, *, size: int | None = None, fill: int = 0) -> tuple[Array, ...]:
    """The indices of the elements that are not 0, in row-major order, one array per dimension.

    size: how many, as a traced function needs; further ones are dropped, and missing ones are
    `fill`.  Without it the values are looked at.
    Raises OpTypeError for a 0-d array, TraceError in a traced function if there is no size.

    >>> [i.tolist() for i in bu.nonzero(bu.asarray([[0, 3], [4, 0]]))]
    [[0, 1], [1, 0]]
    >>> bu.nonzero(bu.asarray([0, 3, 4]), size=3, fill=-1)[0].tolist()
    [1, 2, -1]
    """
    x = as_array(x)
    if not x.ndim:
        raise OpTypeError(f"nonzero: {x.type} is 0-d", fix="reshape it to (1,) first")
    if size is None:
        fix = "give the number of indices: nonzero(x, size=n)"
        indices = np.nonzero(x._host("the number of nonzeros of", fix))
        return tuple(as_array(part.astype(np.int64), x._device) for part in indices)
    count = integer_of("nonzero", "size", size)
    if count < 0:
        raise OpTypeError(f"nonzero: size {count} is negative", fix="use size >= 0")
    return _first_nonzeros(x, count, fill)


def _first_nonzeros(x: Array, count: int, fill: int) -> tuple[Array, ...]:
    """Every true element is written where its rank says; those beyond are dropped."""
    mask = reshape(x if x.dtype is bool_ else x != 0, -1)
    if not count or not x.size:
        empty = TensorType((count,), i64)
        filling = literal(fill, empty)
        return (apply("reshape", (filling,), {"shape": (count,)}, device=x._device),) * x.ndim
    dtype = i32 if x.size < 2**31 else i64
    attrs = {"kind": "add", "dim": 0, "reverse": False, "exclusive": True}
    rank = apply("cumulative", (convert(mask, dtype),), attrs)
    targets = convert(where(mask, rank, -1), dtype)
    zeros = advanced.zeros_of(TensorType((count,), i64), x)
    numbers = apply("iota", (), {"type": TensorType((x.size,), i64), "dim": 0}, device=x._device)
    once = {"offset": (), "index_map": (0,), "index_dim": 1, "collapsed": (0,), "unique": True}
    flat = apply("scatter", (zeros - 1, targets, numbers), {**once, "kind": "set"})
    parts: list[Array] = []
    remainder = flat
    for n in reversed(x.shape):
        parts.append(where(flat < 0, fill, remainder % n))
        remainder = remainder // n
    return tuple(reversed(parts))


__all__ = [
    "dynamic_slice",
    "dynamic_update_slice",
    "nonzero",
    "put_along_axis",
    "take",
    "take_along_axis",
]

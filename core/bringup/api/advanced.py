"""Indexing by integer arrays and boolean masks, as numpy does it, and updates at such indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup.api.apply import apply
from bringup.api.array import Array
from bringup.api.broadcasting import as_array, broadcast_shapes, convert, spread
from bringup.api.creation import refuse_masked
from bringup.api.elementwise import minimum, where
from bringup.api.manipulation import concat, reshape
from bringup.api.promotion import literal
from bringup.dtypes import bool_, i32, i64, u64
from bringup.errors import ArrayIndexError, OpTypeError
from bringup.records import record
from bringup.runtime import transfer
from bringup.types import TensorType

Host = np.ndarray[Any, Any]
Index = Array | Host
Ints = tuple[int, ...]

_MASK_FIX = "under jit use where(mask, x, 0), or indices of a fixed number: nonzero(mask, size=n)"


@record(eq=False)
class Picks:
    """What a key with arrays selects.

    slices: a basic key to apply first, which leaves indexed dimensions alone.
    dims: dimensions then indexed, in increasing order.
    indices: by indexed dimension, of one shape, each counting from 0.
    front: dimensions of the result before those of the indices, without new ones.
    shape: of the result.
    """

    slices: tuple[slice, ...]
    dims: Ints
    indices: tuple[Index, ...]
    front: int
    shape: Ints

    @property
    def positions(self) -> Ints:
        """The shape of the indices."""
        return tuple(self.indices[0].shape)


def is_advanced(key: Any) -> bool:
    """Whether a key holds an array, a mask or a list, so that indices are data."""
    items = key if isinstance(key, tuple) else (key,)
    return any(map(_is_data, items))


def _is_data(item: Any) -> bool:
    if isinstance(item, list | tuple):
        return True
    if isinstance(item, Array):
        return item.dtype.is_integer or item.dtype is bool_
    many = isinstance(item, np.ndarray) and item.ndim > 0
    return many or isinstance(item, bool | np.bool_) or getattr(item, "dtype", None) == np.bool_


def picks(type_: TensorType, key: Any) -> Picks:
    """Resolve a key that `is_advanced`.  Raises ArrayIndexError."""
    items = _without_masks(type_, key if isinstance(key, tuple) else (key,))
    data = [n for n, item in enumerate(items) if not _is_plain(item)]
    # As numpy counts: "..." stands between indices even where it stands for no dimension.
    together = data[-1] - data[0] == len(data) - 1
    items = _without_dots(type_, items)
    slices: list[slice] = []
    by_dim: dict[int, Index] = {}
    sizes: list[int] = []  # of the result's dimensions that are sliced or new
    plain_before: list[int] = []  # how many of those stand before each index
    for item in items:
        dim = len(slices)
        if item is None:
            sizes.append(1)
        elif isinstance(item, slice):
            slices.append(item)
            sizes.append(len(_range(item, type_.shape[dim])))
        else:
            by_dim[dim] = _from_start(item, dim, type_)
            plain_before.append(len(sizes))
            slices.append(slice(None))
    # Indices side by side keep their place; otherwise their dimensions come first.
    insert_at = plain_before[0] if together else 0
    indices = _alike(list(by_dim.values()), type_)
    shape = (*sizes[:insert_at], *indices[0].shape, *sizes[insert_at:])
    front = _sliced_before(items, insert_at)
    return Picks(tuple(slices), tuple(by_dim), indices, front, shape)


def _is_plain(item: Any) -> bool:
    return item is None or item is Ellipsis or isinstance(item, slice)


def _sliced_before(items: Sequence[Any], count: int) -> int:
    """Of the first `count` sliced or new dimensions, how many are sliced."""
    plain = [item for item in items if item is None or isinstance(item, slice)]
    return sum(item is not None for item in plain[:count])


def _range(item: slice, size: int) -> range:
    try:
        return range(size)[item]
    except (TypeError, ValueError) as error:
        raise ArrayIndexError(
            f"a slice in a key with arrays slices nothing: {error}",
            fix="give integers, and a step that is not 0",
        ) from None


# -- masks -----------------------------------------------------------------------------------------


def _without_masks(type_: TensorType, key: tuple[Any, ...]) -> list[Any]:
    """The key with every mask replaced by the positions of its true elements."""
    items = [_as_index(item) for item in key]
    result: list[Any] = []
    for n, item in enumerate(items):
        if not isinstance(item, Array | np.ndarray) or not is_mask(item):
            result.append(item)
            continue
        hidden = any(before is Ellipsis for before in items[:n])
        used = sum(map(_width, items[n:] if hidden else items[:n]))
        _check_mask(type_, item, type_.rank - used if hidden else used)
        mask = item._host("how many are true in", _MASK_FIX) if isinstance(item, Array) else item
        result += np.nonzero(mask)
    return result


def is_mask(index: Index) -> bool:
    """Whether an index is boolean."""
    return index.dtype in (bool_, np.bool_)


def _as_index(item: Any) -> Any:
    if isinstance(item, list | tuple):
        try:
            host = np.asarray(item)
        except ValueError:  # ragged
            host = np.empty(1, object)
        return host if host.size else host.astype(np.int64)
    refuse_masked(item)
    return np.asarray(item) if isinstance(item, bool | np.bool_) else item


def host_index(name: str, indices: Any) -> Host:
    """Indices of Python or numpy as an array.  Raises OpTypeError for ragged ones."""
    refuse_masked(indices)
    try:
        return np.asarray(indices)
    except (ValueError, OverflowError):
        raise OpTypeError(
            f"{name}: indices {indices!r} are no array",
            fix="give an integer, or nested lists of equal lengths",
        ) from None


def _width(item: Any) -> int:
    """Dimensions that an item of a key stands for."""
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if isinstance(item, Array | np.ndarray) and is_mask(item) else 1


def _check_mask(type_: TensorType, mask: Index, start: int) -> None:
    shape = type_.shape[max(start, 0) : max(start, 0) + mask.ndim]
    if tuple(mask.shape) != shape:
        raise ArrayIndexError(
            f"a mask of shape {tuple(mask.shape)} does not fit {type_}, whose dimensions there"
            f" are {shape}",
            fix="give the mask the sizes of the dimensions that it stands for",
        )


def with_dimensions(x: Array, key: Any) -> tuple[Array, Any]:
    """The array with a new dimension for each mask of no dimensions, and the key with masks of one
    element in their place: ``x[True]`` is ``x[None]``, of which ``x[False]`` has no entry.
    """
    items = [_as_index(item) for item in (key if isinstance(key, tuple) else (key,))]
    scalars = [
        isinstance(item, Array | np.ndarray) and is_mask(item) and not item.ndim for item in items
    ]
    if not any(scalars):
        return x, key
    dots = items.index(Ellipsis) if any(item is Ellipsis for item in items) else len(items)
    shape = list(x.shape)
    for n in range(len(items)):
        if scalars[n] and n < dots:
            shape.insert(_used(items[:n], scalars[:n]), 1)
    for n in reversed(range(len(items))):
        if scalars[n] and n > dots:
            shape.insert(len(shape) - _used(items[n + 1 :], scalars[n + 1 :]), 1)
    new = [
        reshape(as_array(item), (1,)) if scalar and isinstance(item, Array)
        else np.reshape(item, (1,)) if scalar
        else item
        for item, scalar in zip(items, scalars, strict=True)
    ]  # fmt: skip
    return reshape(x, shape), tuple(new)


def _used(items: Sequence[Any], scalars: Sequence[bool]) -> int:
    """Dimensions of the array with new ones that items of a key stand for."""
    return sum(1 if new else _width(item) for item, new in zip(items, scalars, strict=True))


# -- integers --------------------------------------------------------------------------------------


def _without_dots(type_: TensorType, items: Sequence[Any]) -> list[Any]:
    used = sum(item is not None and item is not Ellipsis for item in items)
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if used > type_.rank or len(dots) > 1:
        problem = "more than one '...'" if len(dots) > 1 else f"{used} indices"
        raise ArrayIndexError(
            f"{problem} for {type_}, which has rank {type_.rank}",
            fix=f"give indices for at most {type_.rank} dimensions, and at most one '...'",
        )
    position = dots[0] if dots else len(items)
    return [*items[:position], *[slice(None)] * (type_.rank - used), *items[position + 1 :]]


def _from_start(item: Any, dim: int, type_: TensorType) -> Index:
    """Indices that count from 0; those known here are checked."""
    index = item if isinstance(item, Array) else np.asarray(item)
    if not (index.dtype.is_integer if isinstance(index, Array) else index.dtype.kind in "iu"):
        raise ArrayIndexError(
            f"{item!r} does not index an array",
            fix="use integers, slices, '...', None, integer arrays and boolean masks",
        )
    return from_start(index, dim, type_)


def from_start(index: Index, dim: int, type_: TensorType) -> Index:
    """Indices of a dimension with negative ones counted from 0.

    Raises ArrayIndexError for indices known here that are out of range.
    """
    size = type_.shape[dim]
    if isinstance(index, np.ndarray):
        wrong = (index < -size) | (index >= size)
        if wrong.any():
            raise ArrayIndexError(
                f"index {index[wrong].flat[0]} is out of range for dimension {dim} of {type_}",
                fix=f"use {-size} … {size - 1}" if size else "the dimension is empty",
            )
        index = index.astype(np.int64)  # first: a narrow dtype does not hold the size
        return np.where(index < 0, index + size, index)
    if not size and index.size:
        raise ArrayIndexError(
            f"dimension {dim} of {type_} is empty: no index is in range",
            fix="give the dimension at least one element",
        )
    if index.dtype.kind == "uint":
        return index
    if size > np.iinfo(index.dtype.numpy).max:
        index = convert(index, i32 if size < 2**31 else i64)
    return where(index < 0, index + size, index)


def _alike(indices: list[Index], type_: TensorType) -> tuple[Index, ...]:
    """Indices of one shape and, where some are arrays of ours, all arrays of one dtype."""
    shape = broadcast_shapes(*(tuple(index.shape) for index in indices))
    if shape is None:
        shapes = ", ".join(str(tuple(index.shape)) for index in indices)
        raise ArrayIndexError(
            f"index arrays of {type_} do not broadcast to one shape: {shapes}",
            fix="make their sizes equal or 1, counted from the last dimension",
        )
    if all(isinstance(index, np.ndarray) for index in indices):
        return tuple(np.broadcast_to(np.asarray(index), shape) for index in indices)
    if len(indices) > 1:
        indices = [signed(index) for index in indices]
    return tuple(spread(as_array(index), shape) for index in indices)


def signed(index: Index) -> Array:
    """Indices as i64; those of u64 that it does not hold stay beyond every size."""
    index = as_array(index)
    if index.dtype is u64:
        index = minimum(index, 2**62)
    return convert(index, i64)


# -- reading and writing ---------------------------------------------------------------------------


def selected(x: Array, key: Any) -> Array | None:
    """``x[key]`` for a checked key with masks and without other data, if the host sees the memory:
    the number of elements changes from call to call, and each would be a program of its own.
    """
    items = [_as_index(item) for item in (key if isinstance(key, tuple) else (key,))]
    arrays = [item for item in items if isinstance(item, Array | np.ndarray)]
    data = [array for array in arrays if isinstance(array, Array) and not is_mask(array)]
    if data or not any(map(is_mask, arrays)):
        return None
    concrete = x._concrete("the elements of")
    seen = transfer.view(concrete.device.device, concrete._buffer, x.type)
    if seen is None:
        return None
    known = tuple(
        item._host("the indices of") if isinstance(item, Array) else item for item in items
    )
    picked = np.ascontiguousarray(seen[known])
    buffer = transfer.upload(concrete.device.device, picked)
    return Array(TensorType(picked.shape, x.dtype), concrete._device, buffer)


def numbers(x: Array, picked: Picks) -> tuple[Array, dict[str, Any]]:
    """The indices as one array, and the dimension numbers of a gather or scatter at them."""
    rank = len(picked.positions)
    window_rank = x.ndim - len(picked.dims)
    offset = tuple(d if d < picked.front else d + rank for d in range(window_rank))
    attrs = {
        "offset": offset,
        "index_map": picked.dims,
        "index_dim": rank,
        "collapsed": picked.dims,
    }
    return _joined(x, picked), attrs


def _joined(x: Array, picked: Picks) -> Array:
    """The indices with components last, or alone if there is one."""
    narrow = all(x.shape[d] < 2**31 for d in picked.dims)
    hosts = [index for index in picked.indices if isinstance(index, np.ndarray)]
    if len(hosts) == len(picked.indices):
        host = np.stack(hosts, axis=-1) if len(hosts) > 1 else hosts[0]
        return as_array(host.astype(np.int32 if narrow else np.int64), x._device)
    arrays = [as_array(index) for index in picked.indices]
    if len(arrays) == 1:
        return arrays[0]
    return concat([reshape(index, (*index.shape, 1)) for index in arrays], axis=-1)


def zeros_of(type_: TensorType, like: Array) -> Array:
    """An array of zeros on the device of another."""
    return apply("reshape", (literal(0, type_),), {"shape": type_.shape}, device=like._device)


def read(x: Array, picked: Picks) -> Array:
    """The elements picked of an array that was sliced already."""
    if not math.prod(picked.shape):
        return zeros_of(TensorType(picked.shape, x.dtype), x)
    indices, attrs = numbers(x, picked)
    sizes = tuple(1 if d in picked.dims else n for d, n in enumerate(x.shape))
    return reshape(apply("gather", (x, indices), {**attrs, "sizes": sizes}), picked.shape)


def written(x: Array, picked: Picks, kind: str, values: Array) -> Array:
    """An array that was sliced already with values, of the shape picked, combined into it.

    kind: of the scatter.
    """
    if not values.size:
        return x
    indices, attrs = numbers(x, picked)
    window_sizes = [n for d, n in enumerate(x.shape) if d not in picked.dims]
    shape = (*window_sizes[: picked.front], *picked.positions, *window_sizes[picked.front :])
    return apply("scatter", (x, indices, reshape(values, shape)), {**attrs, "kind": kind})

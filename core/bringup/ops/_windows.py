"""Dimension numbers of gather and scatter: which element of an array belongs to which element of
the windows read from it or written to it.

The *rows form* is what decompositions, emitters and gradients work on: an array as ``(batch, place,
row)`` and windows as ``(batch, window, row)``, where a target says at which place a window lies.
Dimensions that windows span whole make the row; windows that do not span a dimension count once per
element along it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from bringup.dtypes import INTS, i32, i64
from bringup.errors import OpTypeError
from bringup.graph import Value
from bringup.ops import build
from bringup.ops._checks import ints, is_int, one_of
from bringup.ops._numeric import Array
from bringup.ops.build import rows
from bringup.ops.table import Attr, Attrs
from bringup.records import record
from bringup.types import TensorType

Ints = tuple[int, ...]

#: The attributes that gather and scatter share, named and meant as in StableHLO but shorter.
DIMENSION_NUMBERS = (
    Attr("offset", "ints", "dimensions of the windows' array that run over a window, increasing"),
    Attr("index_map", "ints", "dimension of x that each component of an index counts in"),
    Attr("index_dim", "int", "dimension of indices along which components lie; its rank if none"),
    Attr("collapsed", "ints", "dimensions of x that windows have one element of and drop", (), ()),
    Attr(
        "batch", "dims", "dimensions that x and indices share, pairwise: (x's, …), (indices', …)",
        (), ((), ()),
    ),
)  # fmt: skip


@record
class Windows:
    """The geometry of one gather or scatter.

    shape: of the array.  indices: shape of the indices.  sizes: of a window, by dimension of the
    array.  The others are the attributes.
    """

    shape: Ints
    indices: Ints
    sizes: Ints
    offset: Ints
    index_map: Ints
    index_dim: int
    collapsed: Ints
    batch: tuple[Ints, Ints]

    @property
    def positions(self) -> Ints:
        """The shape of the indices without the dimension of components: one position per index."""
        return self.indices[: self.index_dim] + self.indices[self.index_dim + 1 :]

    @property
    def window_dims(self) -> Ints:
        """Dimensions of the array that windows have too, in the order of ``offset``."""
        dropped = {*self.collapsed, *self.batch[0]}
        return tuple(d for d in range(len(self.shape)) if d not in dropped)

    @property
    def result(self) -> Ints:
        """The shape of all windows together."""
        windows = iter(self.sizes[d] for d in self.window_dims)
        positions = iter(self.positions)
        rank = len(self.positions) + len(self.offset)
        return tuple(next(windows if d in self.offset else positions) for d in range(rank))

    @property
    def position_dims(self) -> Ints:
        """Dimensions of the result that run over positions."""
        rank = len(self.positions) + len(self.offset)
        return tuple(d for d in range(rank) if d not in self.offset)

    @property
    def batch_position_dims(self) -> Ints:
        """The positions' dimension of each batch dimension."""
        return tuple(d - (d > self.index_dim) for d in self.batch[1])

    @property
    def last_starts(self) -> Ints:
        """The largest start at which a window lies inside, by component of an index."""
        return tuple(self.shape[d] - self.sizes[d] for d in self.index_map)

    @property
    def place_dims(self) -> Ints:
        """Dimensions of the array that windows do not span whole; places count along them."""
        return tuple(
            d
            for d, (n, size) in enumerate(zip(self.shape, self.sizes, strict=True))
            if size < n and d not in self.batch[0]
        )

    @property
    def row_dims(self) -> Ints:
        """Dimensions of the array that every window spans."""
        return tuple(
            d for d in range(len(self.shape)) if d not in (*self.place_dims, *self.batch[0])
        )

    @property
    def count_of_rows(self) -> int:
        """The number of windows of one batch element in the rows form."""
        batch = math.prod(self.positions[d] for d in self.batch_position_dims)
        spans = math.prod(self.sizes[d] for d in self.place_dims)
        return math.prod(self.positions) // max(batch, 1) * spans

    def count(self, dims: Sequence[int]) -> int:
        """Elements of the array along some of its dimensions."""
        return math.prod(self.shape[d] for d in dims)


def windows_of(x: TensorType, indices: TensorType, sizes: Ints, attrs: Attrs) -> Windows:
    """The geometry of an instruction whose attributes were checked."""
    names = ("offset", "index_map", "index_dim", "collapsed", "batch")
    return Windows(x.shape, indices.shape, sizes, *(attrs[name] for name in names))


# -- checks --------------------------------------------------------------------------------------


def checked_numbers(name: str, x: TensorType, indices: TensorType, attrs: Attrs) -> None:
    """Raise OpTypeError unless the dimension numbers fit the operands."""
    one_of(name, indices, INTS, "indices")
    index_dim = attrs["index_dim"]
    if not is_int(index_dim) or not 0 <= index_dim <= indices.rank:
        raise OpTypeError(
            f"{name}: index_dim {index_dim!r} is out of range for {indices}",
            fix=f"use 0 <= index_dim <= {indices.rank}",
        )
    components = indices.shape[index_dim] if index_dim < indices.rank else 1
    index_map = _distinct(name, ints(name, attrs, "index_map"), x, "index_map")
    if len(index_map) != components:
        raise OpTypeError(
            f"{name}: index_map {index_map} names {len(index_map)} dimensions, an index of"
            f" {indices} has {components} components",
            fix="name one dimension of x for each component",
        )
    collapsed = _increasing(name, ints(name, attrs, "collapsed"), "collapsed")
    _distinct(name, collapsed, x, "collapsed")
    batch_dims = _checked_batch(name, x, indices, attrs)
    for attribute, dims in (("index_map", index_map), ("collapsed", collapsed)):
        if not set(batch_dims).isdisjoint(dims):
            raise OpTypeError(
                f"{name}: batch dimensions {batch_dims} of {x} stand in {attribute} {dims} too",
                fix=f"leave them out of {attribute}",
            )
    _increasing(
        name, ints(name, attrs, "offset", x.rank - len(collapsed) - len(batch_dims)), "offset"
    )
    rank = indices.rank - (index_dim < indices.rank) + len(attrs["offset"])
    if any(not 0 <= d < rank for d in attrs["offset"]):
        raise OpTypeError(
            f"{name}: offset {attrs['offset']} is out of range for windows of rank {rank}",
            fix=f"use 0 <= dim < {rank}",
        )


def _checked_batch(name: str, x: TensorType, indices: TensorType, attrs: Attrs) -> Ints:
    batch = attrs["batch"]
    pair = isinstance(batch, tuple) and len(batch) == 2
    if not pair or not all(isinstance(b, tuple) and all(map(is_int, b)) for b in batch):
        raise OpTypeError(
            f"{name}: batch {batch!r} is no pair of tuples", fix="pass batch=((0,), (0,)) or so"
        )
    x_dims, index_dims = batch
    _increasing(name, _distinct(name, x_dims, x, "batch"), "batch")
    _distinct(name, index_dims, indices, "batch")
    sizes = [[t.shape[d] for d in dims] for t, dims in ((x, x_dims), (indices, index_dims))]
    if sizes[0] != sizes[1] or attrs["index_dim"] in index_dims:
        raise OpTypeError(
            f"{name}: batch {batch} does not pair equal dimensions of {x} and {indices}",
            fix="pair dimensions of one size, none of them index_dim",
        )
    return tuple(x_dims)


def _distinct(name: str, dims: Ints, operand: TensorType, attribute: str) -> Ints:
    if len(set(dims)) != len(dims) or any(not 0 <= d < operand.rank for d in dims):
        raise OpTypeError(
            f"{name}: {attribute} {dims} does not name dimensions of {operand} once each",
            fix=f"use 0 <= dim < {operand.rank}, none twice",
        )
    return dims


def _increasing(name: str, dims: Ints, attribute: str) -> Ints:
    if any(a >= b for a, b in pairwise(dims)):
        raise OpTypeError(
            f"{name}: {attribute} {dims} is not strictly increasing",
            fix=f"pass {attribute}={tuple(sorted(set(dims)))}",
        )
    return dims


def checked_sizes(name: str, x: TensorType, sizes: Ints, attrs: Attrs) -> None:
    """Raise OpTypeError unless windows of these sizes fit into x."""
    for d, (n, size) in enumerate(zip(x.shape, sizes, strict=True)):
        shared = d in attrs["batch"][0]
        dropped = shared or d in attrs["collapsed"]
        # A batch dimension may be empty: then there are no windows.
        if (dropped and size != 1) or not (shared or 0 <= size <= n):
            raise OpTypeError(
                f"{name}: windows of sizes {sizes} do not fit dimension {d} of {x}",
                fix="use 1 there" if dropped else f"use 0 <= size <= {n}",
            )


# -- numpy ---------------------------------------------------------------------------------------


def starts_in(windows: Windows, indices: Array) -> tuple[list[Array], Array]:
    """Starts of windows by component, clamped to lie inside; and whether each lay inside before."""
    indices = np.asarray(indices)
    if windows.index_dim == indices.ndim:
        indices = indices[..., None]
    starts, inside = [], np.ones(windows.positions, np.bool_)
    for c, last in enumerate(windows.last_starts):
        raw = np.take(indices, c, axis=windows.index_dim)
        # Compare before narrowing to i64: a u64 may not fit.
        low, high = raw < 0, raw > np.uint64(last) if raw.dtype.kind == "u" else raw > last
        starts.append(np.where(low, 0, np.where(high, last, raw)).astype(np.int64))
        inside &= ~(low | high)
    return starts, inside


def coordinates(windows: Windows, starts: Sequence[Array]) -> tuple[Array, ...]:
    """The array's index of every element of the windows, by dimension, broadcast lazily."""
    rank = len(windows.result)

    def along(values: Array, dims: Sequence[int]) -> Array:
        shape = [1] * rank
        for d, n in zip(dims, values.shape, strict=True):
            shape[d] = n
        return values.reshape(shape)

    index: list[Array] = [np.zeros((1,) * rank, np.int64) for _ in windows.shape]
    for d, start in zip(windows.index_map, starts, strict=True):
        index[d] = index[d] + along(start, windows.position_dims)
    for d, dim in zip(windows.window_dims, windows.offset, strict=True):
        index[d] = index[d] + along(np.arange(windows.sizes[d]), (dim,))
    for d, dim in zip(windows.batch[0], windows.batch_position_dims, strict=True):
        index[d] = index[d] + along(np.arange(windows.shape[d]), (windows.position_dims[dim],))
    return tuple(index)


def spread_inside(windows: Windows, inside: Array) -> Array:
    """A bool per position, broadcast to one per element of the windows."""
    shape = [1] * len(windows.result)
    for d, n in zip(windows.position_dims, windows.positions, strict=True):
        shape[d] = n
    return np.broadcast_to(inside.reshape(shape), windows.result)


# -- emitting ------------------------------------------------------------------------------------


def clamped(index: Value, last: int) -> Value:
    """An index kept in ``0 … last``, in its own dtype."""
    info = np.iinfo(index.dtype.numpy)
    if info.min < 0:
        index = rows.max(index, build.zeros_like(index))
    return index if last >= info.max else rows.min(index, build.like(index, last))


def fits_in(index: Value, last: int) -> Value | None:
    """Whether an index lies in ``0 … last``; None if every value of its dtype does."""
    kept = clamped(index, last)
    return None if kept is index else build.compare("eq", index, kept)


@record
class Targets:
    """The rows form of indices.

    places: ``int[batch, window]``, the place at which each window lies.
    inside: ``bool[…]`` of the positions: whether the window lies inside; None if all do.
    """

    places: Value
    inside: Value | None

    def inside_only(self, windows: Windows) -> Value:
        """``places`` with −1 for windows that lie outside."""
        if self.inside is None:
            return self.places
        fits = _per_target(windows, self.inside, self.places)
        return rows.select(fits, self.places, build.like(self.places, -1))


def _per_target(windows: Windows, inside: Value, places: Value) -> Value:
    """A bool per position, repeated to one per target."""
    batch = windows.batch_position_dims
    unbatched = [d for d in range(len(windows.positions)) if d not in batch]
    ordered = build.transpose(inside, (*batch, *unbatched))
    count = build.size_of(inside, unbatched)
    flat = build.reshape(ordered, (places.shape[0], count, 1))
    repeats = places.shape[1] // max(count, 1)
    return build.reshape(
        build.broadcast_to(flat, (*flat.shape[:2], repeats), (0, 1, 2)), places.shape
    )


def components(windows: Windows, indices: Value) -> list[Value]:
    """The components of every index, each of the shape of the positions."""
    if windows.index_dim == len(windows.indices):
        return [indices]
    count = windows.indices[windows.index_dim]
    parts = [build.slice_dim(indices, windows.index_dim, c, c + 1) for c in range(count)]
    return [build.reshape(part, windows.positions) for part in parts]


def targets(windows: Windows, indices: Value) -> Targets:
    """The rows form of indices; windows that lie outside are moved inside."""
    count = windows.count(windows.place_dims)
    dtype = i32 if count < 2**31 else i64
    steps, step = {}, 1
    for d in reversed(windows.place_dims):
        steps[d], step = step, step * windows.shape[d]
    places = build.splat(0, TensorType(windows.positions, dtype))
    inside: Value | None = None
    for raw, d, last in zip(
        components(windows, indices), windows.index_map, windows.last_starts, strict=True
    ):
        fits = fits_in(raw, last)
        if fits is not None:
            inside = fits if inside is None else rows.and_(inside, fits)
        if d in steps:
            wide = build.convert(clamped(raw, last), dtype)
            places = rows.add(places, rows.mul(wide, build.like(wide, steps[d])))
    return Targets(_per_element(windows, places, steps), inside)


def _per_element(windows: Windows, places: Value, steps: dict[int, int]) -> Value:
    """Places of whole windows ``[positions]`` to places of their elements ``[batch, window]``."""
    batch = [windows.batch_position_dims[i] for i in range(len(windows.batch_position_dims))]
    unbatched = [d for d in range(len(windows.positions)) if d not in batch]
    places = build.transpose(places, (*batch, *unbatched))
    spans = tuple(windows.sizes[d] for d in windows.place_dims)
    shape = (*places.shape, *spans)
    places = build.broadcast_to(places, shape, range(len(places.shape)))
    for i, d in enumerate(windows.place_dims):
        if windows.sizes[d] > 1:
            along = rows.iota(type=places.type, dim=len(shape) - len(spans) + i)
            places = rows.add(places, rows.mul(along, build.like(along, steps[d])))
    sizes = (math.prod(shape[: len(batch)]), math.prod(shape[len(batch) :]))
    return build.reshape(places, sizes)


def array_rows(windows: Windows, x: Value) -> Value:
    """The array as ``[batch, place, row]``."""
    batch_dims, place_dims, row = windows.batch[0], windows.place_dims, windows.row_dims
    count = windows.count
    return build.reshape(
        build.transpose(x, (*batch_dims, *place_dims, *row)),
        (count(batch_dims), count(place_dims), count(row)),
    )


def array_of(windows: Windows, x: Value) -> Value:
    """The inverse of `array_rows`."""
    order = (*windows.batch[0], *windows.place_dims, *windows.row_dims)
    spread = build.reshape(x, tuple(windows.shape[d] for d in order))
    return build.transpose(spread, np.argsort(order).tolist())


def _window_order(windows: Windows) -> tuple[list[int], list[int]]:
    """Dimensions of the windows' array in the order of the rows form: those that number windows,
    those of rows.
    """
    dim_of = dict(zip(windows.window_dims, windows.offset, strict=True))
    batch = [windows.position_dims[d] for d in windows.batch_position_dims]
    unbatched = [d for d in windows.position_dims if d not in batch]
    numbered = [dim_of[d] for d in windows.place_dims if d in dim_of]
    return batch + unbatched + numbered, [dim_of[d] for d in windows.row_dims if d in dim_of]


def window_rows(windows: Windows, x: Value) -> Value:
    """The windows' array, or one of its shape, as ``[batch, window, row]``."""
    numbering, row = _window_order(windows)
    batch = windows.count(windows.batch[0])
    width = math.prod(x.shape[d] for d in row)
    count = math.prod(x.shape[d] for d in numbering[len(windows.batch_position_dims) :])
    return build.reshape(build.transpose(x, (*numbering, *row)), (batch, count, width))


def windows_from(windows: Windows, x: Value) -> Value:
    """The inverse of `window_rows`."""
    numbering, row = _window_order(windows)
    order = [*numbering, *row]
    spread = build.reshape(x, tuple(windows.result[d] for d in order))
    return build.transpose(spread, np.argsort(order).tolist())


def spread_positions(windows: Windows, x: Value) -> Value:
    """A value per position, broadcast to one per element of the windows' array."""
    return build.broadcast_to(x, windows.result, windows.position_dims)


def sizes_of_updates(
    name: str, x: TensorType, updates: TensorType, attrs: dict[str, Any] | Attrs
) -> Ints:
    """The sizes of the windows that updates of this type hold."""
    dropped = {*attrs["collapsed"], *attrs["batch"][0]}
    window_dims = iter(attrs["offset"])
    if any(d >= updates.rank for d in attrs["offset"]):
        raise OpTypeError(
            f"{name}: offset {attrs['offset']} names dimensions that {updates} does not have",
            fix=f"use dims below {updates.rank}",
        )
    return tuple(1 if d in dropped else updates.shape[next(window_dims)] for d in range(x.rank))

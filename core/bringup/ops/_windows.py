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
        """One index each: the shape of indices without the dimension of components."""
        return self.indices[: self.index_dim] + self.indices[self.index_dim + 1 :]

    @property
    def kept(self) -> Ints:
        """Dimensions of the array that windows keep, in the order of ``offset``."""
        gone = {*self.collapsed, *self.batch[0]}
        return tuple(d for d in range(len(self.shape)) if d not in gone)

    @property
    def result(self) -> Ints:
        """The shape of all windows together."""
        windows = iter(self.sizes[d] for d in self.kept)
        positions = iter(self.positions)
        rank = len(self.positions) + len(self.offset)
        return tuple(next(windows if d in self.offset else positions) for d in range(rank))

    @property
    def between(self) -> Ints:
        """Dimensions of the result that run over positions."""
        rank = len(self.positions) + len(self.offset)
        return tuple(d for d in range(rank) if d not in self.offset)

    @property
    def batched(self) -> Ints:
        """The positions' dimension of each batch dimension."""
        return tuple(d - (d > self.index_dim) for d in self.batch[1])

    @property
    def lasts(self) -> Ints:
        """The last place at which a window lies inside, by component of an index."""
        return tuple(self.shape[d] - self.sizes[d] for d in self.index_map)

    @property
    def places(self) -> Ints:
        """Dimensions of the array that windows do not span whole: where they lie."""
        return tuple(
            d
            for d, (n, size) in enumerate(zip(self.shape, self.sizes, strict=True))
            if size < n and d not in self.batch[0]
        )

    @property
    def row(self) -> Ints:
        """Dimensions of the array that every window spans."""
        return tuple(d for d in range(len(self.shape)) if d not in (*self.places, *self.batch[0]))

    @property
    def count_of_rows(self) -> int:
        """Windows of a batch in the rows form."""
        batch = math.prod(self.positions[d] for d in self.batched)
        spans = math.prod(self.sizes[d] for d in self.places)
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
    mine = _checked_batch(name, x, indices, attrs)
    for other, dims in (("index_map", index_map), ("collapsed", collapsed)):
        if not set(mine).isdisjoint(dims):
            raise OpTypeError(
                f"{name}: batch dimensions {mine} of {x} stand in {other} {dims} too",
                fix=f"leave them out of {other}",
            )
    _increasing(name, ints(name, attrs, "offset", x.rank - len(collapsed) - len(mine)), "offset")
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
    mine, theirs = batch
    _increasing(name, _distinct(name, mine, x, "batch"), "batch")
    _distinct(name, theirs, indices, "batch")
    sizes = [[t.shape[d] for d in dims] for t, dims in ((x, mine), (indices, theirs))]
    if sizes[0] != sizes[1] or attrs["index_dim"] in theirs:
        raise OpTypeError(
            f"{name}: batch {batch} does not pair equal dimensions of {x} and {indices}",
            fix="pair dimensions of one size, none of them index_dim",
        )
    return tuple(mine)


def _distinct(name: str, dims: Ints, operand: TensorType, what: str) -> Ints:
    if len(set(dims)) != len(dims) or any(not 0 <= d < operand.rank for d in dims):
        raise OpTypeError(
            f"{name}: {what} {dims} does not name dimensions of {operand} once each",
            fix=f"use 0 <= dim < {operand.rank}, none twice",
        )
    return dims


def _increasing(name: str, dims: Ints, what: str) -> Ints:
    if any(a >= b for a, b in pairwise(dims)):
        raise OpTypeError(
            f"{name}: {what} {dims} is not strictly increasing",
            fix=f"pass {what}={tuple(sorted(set(dims)))}",
        )
    return dims


def checked_sizes(name: str, x: TensorType, sizes: Ints, attrs: Attrs) -> None:
    """Raise OpTypeError unless windows of these sizes fit into x."""
    for d, (n, size) in enumerate(zip(x.shape, sizes, strict=True)):
        shared = d in attrs["batch"][0]
        gone = shared or d in attrs["collapsed"]
        # A batch dimension may be empty: then there are no windows.
        if (gone and size != 1) or not (shared or 0 <= size <= n):
            raise OpTypeError(
                f"{name}: windows of sizes {sizes} do not fit dimension {d} of {x}",
                fix="use 1 there" if gone else f"use 0 <= size <= {n}",
            )


# -- numpy ---------------------------------------------------------------------------------------


def starts_in(windows: Windows, indices: Array) -> tuple[list[Array], Array]:
    """Where windows begin, clamped so that they lie inside, by component; and whether they did."""
    indices = np.asarray(indices)
    if windows.index_dim == indices.ndim:
        indices = indices[..., None]
    starts, inside = [], np.ones(windows.positions, np.bool_)
    for c, last in enumerate(windows.lasts):
        raw = np.take(indices, c, axis=windows.index_dim)
        # Compared before they are narrowed: a u64 need not fit.
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

    found: list[Array] = [np.zeros((1,) * rank, np.int64) for _ in windows.shape]
    for d, start in zip(windows.index_map, starts, strict=True):
        found[d] = found[d] + along(start, windows.between)
    for d, at in zip(windows.kept, windows.offset, strict=True):
        found[d] = found[d] + along(np.arange(windows.sizes[d]), (at,))
    for d, at in zip(windows.batch[0], windows.batched, strict=True):
        found[d] = found[d] + along(np.arange(windows.shape[d]), (windows.between[at],))
    return tuple(found)


def spread_inside(windows: Windows, inside: Array) -> Array:
    """A truth per position as one per element of the windows."""
    shape = [1] * len(windows.result)
    for d, n in zip(windows.between, windows.positions, strict=True):
        shape[d] = n
    return np.broadcast_to(inside.reshape(shape), windows.result)


# -- emitting ------------------------------------------------------------------------------------


def clamped(index: Value, last: int) -> Value:
    """An index kept in ``0 … last``, in its own dtype."""
    info = np.iinfo(index.dtype.numpy)
    if info.min < 0:
        index = rows.max(index, build.zeros_like(index))
    return index if last >= info.max else rows.min(index, build.like(index, last))


@record
class Targets:
    """The rows form of indices.

    at: ``int[batch, window]``, the place at which each window lies.
    inside: ``bool[…]`` of the positions: whether the window lies inside; None if it cannot fail to.
    """

    at: Value
    inside: Value | None

    def inside_only(self, windows: Windows) -> Value:
        """``at`` with −1 for windows that lie outside."""
        if self.inside is None:
            return self.at
        fits = _per_target(windows, self.inside, self.at)
        return rows.select(fits, self.at, build.like(self.at, -1))


def _per_target(windows: Windows, inside: Value, at: Value) -> Value:
    """A truth per position as one per target."""
    batch = windows.batched
    others = [d for d in range(len(windows.positions)) if d not in batch]
    ordered = build.transpose(inside, (*batch, *others))
    count = build.size_of(inside, others)
    flat = build.reshape(ordered, (at.shape[0], count, 1))
    each = at.shape[1] // max(count, 1)
    return build.reshape(build.broadcast_to(flat, (*flat.shape[:2], each), (0, 1, 2)), at.shape)


def components(windows: Windows, indices: Value) -> list[Value]:
    """The components of every index, each of the shape of the positions."""
    if windows.index_dim == len(windows.indices):
        return [indices]
    count = windows.indices[windows.index_dim]
    parts = [build.slice_dim(indices, windows.index_dim, c, c + 1) for c in range(count)]
    return [build.reshape(part, windows.positions) for part in parts]


def targets(windows: Windows, indices: Value) -> Targets:
    """The rows form of indices, windows that lie outside being moved inside."""
    count = windows.count(windows.places)
    dtype = i32 if count < 2**31 else i64
    steps, step = {}, 1
    for d in reversed(windows.places):
        steps[d], step = step, step * windows.shape[d]
    at = build.splat(0, TensorType(windows.positions, dtype))
    inside: Value | None = None
    for raw, d, last in zip(
        components(windows, indices), windows.index_map, windows.lasts, strict=True
    ):
        start = clamped(raw, last)
        fits = build.compare("eq", raw, start)
        inside = fits if inside is None else rows.and_(inside, fits)
        if d in steps:
            wide = build.convert(start, dtype)
            at = rows.add(at, rows.mul(wide, build.like(wide, steps[d])))
    return Targets(_per_element(windows, at, steps), inside)


def _per_element(windows: Windows, at: Value, steps: dict[int, int]) -> Value:
    """Places of whole windows ``[positions]`` to places of their elements ``[batch, window]``."""
    batch = [windows.batched[i] for i in range(len(windows.batched))]
    others = [d for d in range(len(windows.positions)) if d not in batch]
    at = build.transpose(at, (*batch, *others))
    spans = tuple(windows.sizes[d] for d in windows.places)
    shape = (*at.shape, *spans)
    at = build.broadcast_to(at, shape, range(len(at.shape)))
    for i, d in enumerate(windows.places):
        if windows.sizes[d] > 1:
            along = rows.iota(type=at.type, dim=len(shape) - len(spans) + i)
            at = rows.add(at, rows.mul(along, build.like(along, steps[d])))
    sizes = (math.prod(shape[: len(batch)]), math.prod(shape[len(batch) :]))
    return build.reshape(at, sizes)


def array_rows(windows: Windows, x: Value) -> Value:
    """The array as ``[batch, place, row]``."""
    mine, places, row = windows.batch[0], windows.places, windows.row
    count = windows.count
    return build.reshape(
        build.transpose(x, (*mine, *places, *row)), (count(mine), count(places), count(row))
    )


def array_of(windows: Windows, x: Value) -> Value:
    """`array_rows` undone."""
    order = (*windows.batch[0], *windows.places, *windows.row)
    spread = build.reshape(x, tuple(windows.shape[d] for d in order))
    return build.transpose(spread, np.argsort(order).tolist())


def _window_order(windows: Windows) -> tuple[list[int], list[int]]:
    """Dimensions of the windows' array in the order of the rows form: those that number windows,
    those of rows.
    """
    at = dict(zip(windows.kept, windows.offset, strict=True))
    batch = [windows.between[d] for d in windows.batched]
    others = [d for d in windows.between if d not in batch]
    places = [at[d] for d in windows.places if d in at]
    return batch + others + places, [at[d] for d in windows.row if d in at]


def window_rows(windows: Windows, x: Value) -> Value:
    """The windows' array, or one of its shape, as ``[batch, window, row]``."""
    numbering, row = _window_order(windows)
    batch = windows.count(windows.batch[0])
    width = math.prod(x.shape[d] for d in row)
    count = math.prod(x.shape[d] for d in numbering[len(windows.batched) :])
    return build.reshape(build.transpose(x, (*numbering, *row)), (batch, count, width))


def windows_from(windows: Windows, x: Value) -> Value:
    """`window_rows` undone."""
    numbering, row = _window_order(windows)
    order = [*numbering, *row]
    spread = build.reshape(x, tuple(windows.result[d] for d in order))
    return build.transpose(spread, np.argsort(order).tolist())


def spread_positions(windows: Windows, x: Value) -> Value:
    """A value per position as one per element of the windows' array."""
    return build.broadcast_to(x, windows.result, windows.between)


def sizes_of_updates(
    name: str, x: TensorType, updates: TensorType, attrs: dict[str, Any] | Attrs
) -> Ints:
    """The sizes of the windows that updates of this type hold."""
    gone = {*attrs["collapsed"], *attrs["batch"][0]}
    found = iter(attrs["offset"])
    if any(d >= updates.rank for d in attrs["offset"]):
        raise OpTypeError(
            f"{name}: offset {attrs['offset']} names dimensions that {updates} does not have",
            fix=f"use dims below {updates.rank}",
        )
    return tuple(1 if d in gone else updates.shape[next(found)] for d in range(x.rank))

"""Shapes and order: movement that fuses into what reads the result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bringup.api.apply import apply
from bringup.api.arguments import axes_of, axis_of, integer_of, items_of, shape_of
from bringup.api.array import Array, Operand
from bringup.api.broadcasting import as_array, common_shape, convert, spread
from bringup.api.broadcasting import broadcast_shapes as shape_in_common
from bringup.api.promotion import common
from bringup.errors import AxisError, OpTypeError
from bringup.runtime import transfer
from bringup.tracing.context import current


def reshape(x: Operand, /, shape: int | Sequence[int], *, copy: bool | None = None) -> Array:
    """The same elements in row-major order under another shape; one size may be -1.

    >>> bu.reshape(bu.arange(6), (2, -1)).shape
    (2, 3)
    """
    x = as_array(x)
    sizes = shape_of("reshape", shape, inferred=True)
    if sizes.count(-1) == 1:
        known_size = math.prod(n for n in sizes if n != -1)
        if known_size and x.size % known_size == 0:
            sizes = tuple(x.size // known_size if n == -1 else n for n in sizes)
    if math.prod(sizes) != x.size or any(n < 0 for n in sizes):
        raise OpTypeError(
            f"reshape: {x.type} does not become {sizes}",
            fix=f"the sizes must multiply to {x.size}; at most one may be -1",
        )
    return x if sizes == x.shape else apply("reshape", (x,), {"shape": sizes})


def permute_dims(x: Operand, /, axes: Sequence[int]) -> Array:
    """The axes in another order.

    >>> bu.permute_dims(bu.zeros((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    x = as_array(x)
    axes = items_of("permute_dims", "axes", axes)
    order = tuple(axis_of("permute_dims", a, x.ndim) for a in axes)
    if order == tuple(range(x.ndim)):
        return x
    return apply("transpose", (x,), {"permutation": order})


def moveaxis(x: Operand, /, source: int | Sequence[int], destination: int | Sequence[int]) -> Array:
    """Axes moved to other positions, the rest in their order.

    >>> bu.moveaxis(bu.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    x = as_array(x)
    sources = source if isinstance(source, Sequence) else (source,)
    targets = destination if isinstance(destination, Sequence) else (destination,)
    if len(sources) != len(targets):
        raise OpTypeError(
            f"moveaxis: {len(sources)} axes to {len(targets)} positions",
            fix="give as many positions as axes",
        )
    pairs = {
        axis_of("moveaxis", t, x.ndim): axis_of("moveaxis", s, x.ndim)
        for s, t in zip(sources, targets, strict=True)
    }
    axes_of("moveaxis", tuple(sources), x.ndim)
    axes_of("moveaxis", tuple(targets), x.ndim)
    other_dims = iter([d for d in range(x.ndim) if d not in pairs.values()])
    return permute_dims(x, [pairs[d] if d in pairs else next(other_dims) for d in range(x.ndim)])


def swapaxes(x: Operand, /, axis1: int, axis2: int) -> Array:
    """Two axes in each other's place.

    >>> bu.swapaxes(bu.zeros((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    x = as_array(x)
    first, second = (axis_of("swapaxes", axis, x.ndim) for axis in (axis1, axis2))
    order = list(range(x.ndim))
    order[first], order[second] = second, first
    return permute_dims(x, order)


def expand_dims(x: Operand, /, axis: int | Sequence[int] = 0) -> Array:
    """New axes of size 1 at positions of the result.

    >>> bu.expand_dims(bu.zeros(3), -1).shape
    (3, 1)
    """
    x = as_array(x)
    added = len(axis) if isinstance(axis, Sequence) else 1
    listed = axis if isinstance(axis, Sequence) else (axis,)  # None would be all of them
    axes = axes_of("expand_dims", listed, x.ndim + added)
    sizes = iter(x.shape)
    return reshape(x, [1 if d in axes else next(sizes) for d in range(x.ndim + added)])


def squeeze(x: Operand, /, axis: int | Sequence[int] | None = None) -> Array:
    """Axes of size 1 removed, all of them for None.  Raises AxisError for other sizes.

    >>> bu.squeeze(bu.zeros((1, 3)), 0).shape
    (3,)
    """
    x = as_array(x)
    if axis is None:
        axis = [d for d, n in enumerate(x.shape) if n == 1]
    axes = axes_of("squeeze", axis, x.ndim)
    if any(x.shape[a] != 1 for a in axes):
        raise AxisError(
            f"squeeze: axes {axes} of {x.type} are not all of size 1",
            fix="squeeze axes of size 1 only, or reshape",
        )
    return reshape(x, [n for d, n in enumerate(x.shape) if d not in axes])


def concat(arrays: Sequence[Array], /, axis: int | None = 0) -> Array:
    """Arrays one after the other along an axis, in one dtype; flattened first for None.

    >>> bu.concat([bu.asarray([1]), bu.asarray([2, 3])]).tolist()
    [1, 2, 3]
    """
    parts = [as_array(x) for x in items_of("concat", "arrays", arrays)]
    if not parts:
        raise OpTypeError("concat: no arrays", fix="give one or more")
    dtype, _ = common(parts)
    if axis is None:
        parts, axis = [reshape(x, -1) for x in parts], 0
    dim = axis_of("concat", axis, parts[0].ndim)
    for x in parts:
        sizes = (x.shape[:dim], x.shape[dim + 1 :])
        if x.ndim != parts[0].ndim or sizes != (parts[0].shape[:dim], parts[0].shape[dim + 1 :]):
            raise OpTypeError(
                f"concat: {parts[0].type} and {x.type} differ in more than axis {dim}",
                fix="make their other sizes equal",
            )
    parts = [convert(x, dtype) for x in parts]
    return parts[0] if len(parts) == 1 else apply("concatenate", parts, {"dim": dim})


def stack(arrays: Sequence[Array], /, axis: int = 0) -> Array:
    """Arrays of one shape along a new axis.

    >>> bu.stack([bu.asarray([1, 2]), bu.asarray([3, 4])], axis=1).tolist()
    [[1, 3], [2, 4]]
    """
    parts = [as_array(x) for x in items_of("stack", "arrays", arrays)]
    for x in parts:
        if x.shape != parts[0].shape:
            raise OpTypeError(
                f"stack: {parts[0].type} and {x.type} differ in shape",
                fix="make their shapes equal, or join them with concat",
            )
    return concat([expand_dims(x, axis) for x in parts], axis=axis)


def unstack(x: Operand, /, axis: int = 0) -> tuple[Array, ...]:
    """The entries along an axis, without it.

    >>> [a.tolist() for a in bu.unstack(bu.asarray([[1, 2], [3, 4]]))]
    [[1, 2], [3, 4]]
    """
    x = as_array(x)
    dim = axis_of("unstack", axis, x.ndim)
    before = (slice(None),) * dim
    return tuple(x[(*before, i)] for i in range(x.shape[dim]))


def flip(x: Operand, /, axis: int | Sequence[int] | None = None) -> Array:
    """The order reversed along axes, all by default.

    >>> bu.flip(bu.asarray([1, 2, 3])).tolist()
    [3, 2, 1]
    """
    x = as_array(x)
    axes = axes_of("flip", axis, x.ndim)
    return x[tuple(slice(None, None, -1) if d in axes else slice(None) for d in range(x.ndim))]


def roll(
    x: Operand, /, shift: int | Sequence[int], axis: int | Sequence[int] | None = None
) -> Array:
    """Elements moved along axes, those beyond the end to the beginning; flat if axis is None.

    >>> bu.roll(bu.asarray([1, 2, 3]), 1).tolist()
    [3, 1, 2]
    """
    x = as_array(x)
    if axis is None:
        return reshape(roll(reshape(x, -1), shift, axis=0), x.shape)
    axes = axis if isinstance(axis, Sequence) else (axis,)
    shifts = shift if isinstance(shift, Sequence) else (shift,) * len(axes)
    if len(shifts) != len(axes):
        raise OpTypeError(
            f"roll: {len(shifts)} shifts for {len(axes)} axes",
            fix="give one shift, or one for each axis",
        )
    for step, a in zip(shifts, axes, strict=True):
        dim = axis_of("roll", a, x.ndim)
        size = x.shape[dim]
        cut = size - integer_of("roll", "shift", step) % size if size else 0
        if cut not in (0, size):
            before = (slice(None),) * dim
            x = concat([x[(*before, slice(cut, None))], x[(*before, slice(cut))]], axis=dim)
    return x


def broadcast_to(x: Operand, /, shape: int | Sequence[int]) -> Array:
    """`x` spread over a shape, counted from the last dimension.

    >>> bu.broadcast_to(bu.asarray([1, 2]), (2, 2)).tolist()
    [[1, 2], [1, 2]]
    """
    return spread(as_array(x), shape_of("broadcast_to", shape))


def broadcast_shapes(*shapes: int | Sequence[int]) -> tuple[int, ...]:
    """The shape to which arrays of these shapes broadcast.  Raises OpTypeError if they do not.

    >>> bu.broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    sizes = [shape_of("broadcast_shapes", shape) for shape in shapes]
    result = shape_in_common(*sizes)
    if result is None:
        raise OpTypeError(
            f"broadcast_shapes: {' and '.join(map(str, sizes))} do not broadcast",
            fix="make sizes equal or 1, counted from the last dimension",
        )
    return result


def broadcast_arrays(*arrays: Operand) -> list[Array]:
    """Arrays spread over the shape they broadcast to.

    >>> [a.shape for a in bu.broadcast_arrays(bu.zeros((2, 1)), bu.zeros(3))]
    [(2, 3), (2, 3)]
    """
    parts = [as_array(x) for x in arrays]
    shape = common_shape("broadcast_arrays", parts)
    return [spread(x, shape) for x in parts]


def tile(x: Operand, repetitions: int | Sequence[int], /) -> Array:
    """The whole array repeated along each axis.

    >>> bu.tile(bu.asarray([1, 2]), 2).tolist()
    [1, 2, 1, 2]
    """
    x = as_array(x)
    counts = shape_of("tile", repetitions)
    rank = max(x.ndim, len(counts))
    counts = (1,) * (rank - len(counts)) + counts
    sizes = (1,) * (rank - x.ndim) + x.shape
    apart = reshape(x, [m for n in sizes for m in (1, n)])
    spread_out = spread(apart, tuple(m for c, n in zip(counts, sizes, strict=True) for m in (c, n)))
    return reshape(spread_out, [c * n for c, n in zip(counts, sizes, strict=True)])


def repeat(x: Operand, /, repeats: Any, axis: int | None = None) -> Array:
    """Each element repeated along an axis; flat if axis is None.

    repeats: an int, or one for each entry: a sequence, or an array whose values are known.

    >>> bu.repeat(bu.asarray([1, 2]), 2).tolist()
    [1, 1, 2, 2]
    """
    x = as_array(x)
    if axis is None:
        x, axis = reshape(x, -1), 0
    dim = axis_of("repeat", axis, x.ndim)
    many = isinstance(repeats, Array | np.ndarray)
    counts = shape_of("repeat", np.asarray(repeats).tolist() if many else repeats)
    if len(counts) == 1:
        apart = expand_dims(x, dim + 1)
        wide = spread(apart, (*x.shape[: dim + 1], counts[0], *x.shape[dim + 1 :]))
        return reshape(wide, (*x.shape[:dim], x.shape[dim] * counts[0], *x.shape[dim + 1 :]))
    if len(counts) != x.shape[dim]:
        raise OpTypeError(
            f"repeat: {len(counts)} counts for axis {dim} of {x.type}",
            fix=f"give one count, or {x.shape[dim]}",
        )
    # One gather, so the program's size does not depend on the number of entries or copies.
    return x[(*(slice(None),) * dim, np.repeat(np.arange(len(counts)), counts))]


def rows_of(x: Array) -> Iterator[Array]:
    """The entries of the first dimension; outside traces cut from one look at the array."""
    if current() is not None:
        yield from unstack(x)
        return
    # Cut rows on the host: indexing would compile one program for each row.
    device = x.device
    for row in x._host("the entries of"):
        yield Array(x.type.with_shape(x.shape[1:]), device, transfer.upload(device.device, row))

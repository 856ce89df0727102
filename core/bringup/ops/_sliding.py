"""Sliding windows by movement ops alone, so that inside kernels they are affine indices."""

from __future__ import annotations

from bringup.graph import Value
from bringup.ops import build
from bringup.ops.build import rows


def spread_size(count: int, step: int) -> int:
    """The extent of `count` elements `step` apart."""
    return (count - 1) * step + 1 if count else 0


def positions(length: int, extent: int, stride: int) -> int:
    """How many windows of an extent fit into a length."""
    return max(0, (length - extent) // stride + 1)


def windows(x: Value, dim: int, steps: tuple[int, int], counts: tuple[int, int]) -> Value:
    """Dimension `dim` becomes two: element (k, i) is element ``k·steps[0] + i·steps[1]`` of it.

    counts: sizes of both new dimensions, at least 1; every element named lies inside.
    """
    if counts[0] > counts[1]:
        # The copies below are as many as the outer dimension is long.
        turned = windows(x, dim, steps[::-1], counts[::-1])
        order = list(range(len(turned.shape)))
        order[dim], order[dim + 1] = dim + 1, dim
        return build.transpose(turned, order)
    shape, after = x.shape[:dim], x.shape[dim + 1 :]
    outer, inner = counts
    if outer == 1:
        line = _strided(x, dim, inner, steps[1])
        return build.reshape(line, (*shape, 1, inner, *after))
    # Position f = k·(length + step) + i of copies in a row is element k·step + i of one copy.
    length = x.shape[dim]
    width = length + steps[0]
    copies = -(-outer * width // length)
    dims = [d + (d >= dim) for d in range(len(x.shape))]
    many = build.broadcast_to(x, (*shape, copies, length, *after), dims)
    flat = build.reshape(many, (*shape, copies * length, *after))
    cut = build.slice_dim(flat, dim, 0, outer * width)
    skewed = build.reshape(cut, (*shape, outer, width, *after))
    return _strided(skewed, dim + 1, inner, steps[1])


def _strided(x: Value, dim: int, count: int, step: int) -> Value:
    """Elements 0, step, … of one dimension."""
    limit = spread_size(count, step)
    if step == 1:
        return build.slice_dim(x, dim, 0, limit)
    limits, strides = list(x.shape), [1] * len(x.shape)
    limits[dim], strides[dim] = limit, step
    start = (0,) * len(strides)
    return rows.slice(x, start=start, limit=tuple(limits), stride=tuple(strides))

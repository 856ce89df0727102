"""Convolutions of dilated operands without products with the zeros between their elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bringup.graph import Value
from bringup.ops import build
from bringup.ops.build import rows
from bringup.types import TensorType

if TYPE_CHECKING:
    from bringup.ops.convolutions import Geometry

#: The most parts a convolution is taken apart into.
_MOST = 16


def phased_dim(at: Geometry, lhs: Sequence[int]) -> int | None:
    """A spatial dimension along which results at equal remainders are convolutions of their own."""
    if math.prod(at.lhs_dilation) > _MOST:
        return None
    for i, gap in enumerate(at.lhs_dilation):
        plain = at.strides[i] == at.rhs_dilation[i] == 1
        if gap > 1 and plain and lhs[at.lhs_dims[2 + i]] > 0:
            return i
    return None


def by_phases(lhs: Value, rhs: Value, at: Geometry, i: int, kept: dict[str, Any]) -> Value:
    """Result s·t + r of the dimension, s the dilation, sees every s-th element of the window alone:
    one convolution for each r, put together alternately.
    """
    gap, dim = at.lhs_dilation[i], at.out_dims[2 + i]
    shape = list(at.shape(lhs.shape, rhs.shape))
    count, most = shape[dim], -(-shape[dim] // gap)
    parts: list[Value] = []
    for r in range(min(gap, count)):
        shape[dim] = -(-(count - r) // gap)
        part = _phase(lhs, rhs, at, i, r, TensorType(tuple(shape), kept["result"]), kept)
        missing = [0] * len(shape)
        missing[dim] = most - shape[dim]
        part = build.pad(part, 0, [0] * len(shape), missing)
        parts.append(build.reshape(part, (*part.shape[: dim + 1], 1, *part.shape[dim + 1 :])))
    if len(parts) == 1:
        return build.reshape(parts[0], (*shape[:dim], most, *shape[dim + 1 :]))
    joined: Value = rows.concatenate(*parts, dim=dim + 1)
    joined = build.reshape(joined, (*shape[:dim], most * len(parts), *shape[dim + 1 :]))
    return build.slice_dim(joined, dim, 0, count)


def _phase(
    lhs: Value, rhs: Value, at: Geometry, i: int, r: int, type_: TensorType, kept: dict[str, Any]
) -> Value:
    """The results at one remainder."""
    gap, dim = at.lhs_dilation[i], at.rhs_dims[2 + i]
    first = (at.lo[i] - r) % gap
    size = -(-(rhs.shape[dim] - first) // gap)
    if size <= 0:
        return build.splat(0, type_)
    start, stride = [0] * len(rhs.shape), [1] * len(rhs.shape)
    start[dim], stride[dim] = first, gap
    seen = rows.slice(rhs, start=tuple(start), limit=rhs.shape, stride=tuple(stride))
    lo = (at.lo[i] - r - first) // gap
    hi = type_.shape[at.out_dims[2 + i]] + size - 1 - lhs.shape[at.lhs_dims[2 + i]] - lo

    def put(values: Sequence[int], value: int) -> tuple[int, ...]:
        return (*values[:i], value, *values[i + 1 :])

    inner = replace(at, lo=put(at.lo, lo), hi=put(at.hi, hi), lhs_dilation=put(at.lhs_dilation, 1))
    return rows.convolution(lhs, seen, **inner.attrs(), **kept)

"""The chip's op library: functions over whole arrays, to be run by ``Accelerator.call``.

A real one would be written in the chip's own language; these are numpy over the chip's arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup_simulator.arithmetic import CASTS, DTYPES, OPERATIONS, Array, tree

__all__ = ["Array", "compute", "convert", "fold", "pad", "pick", "ramp", "spread"]


def compute(operation: str, *operands: Array) -> Array:
    """One row of ``OPERATIONS``, element by element."""
    with np.errstate(all="ignore"):
        return np.asarray(OPERATIONS[operation].compute(*operands))


def convert(x: Array, dtype: str) -> Array:
    """To another type as in C, except that floats beyond an integer's range saturate."""
    target = DTYPES[dtype]
    cast = "truncate" if x.dtype.kind in "iu" and target.kind in "iu" else "convert"
    with np.errstate(all="ignore"):
        return CASTS[cast](x, target)


def ramp(shape: Sequence[int], dim: int, dtype: str) -> Array:
    """The index along one dimension."""
    index = np.arange(shape[dim]).reshape([-1 if d == dim else 1 for d in range(len(shape))])
    return np.broadcast_to(convert(index, dtype), shape)


def spread(x: Array, shape: Sequence[int], dims: Sequence[int]) -> Array:
    """Repeat ``x``, whose dimension i becomes dimension dims[i] of the result."""
    sizes = [1] * len(shape)
    for n, d in zip(x.shape, dims, strict=True):
        sizes[d] = n
    return np.broadcast_to(x.reshape(sizes), shape)


def pick(x: Array, start: Sequence[int], limit: Sequence[int], stride: Sequence[int]) -> Array:
    """Every stride-th element from start to before limit, forwards or backwards."""
    return x[np.ix_(*map(np.arange, start, limit, stride))]


def pad(
    x: Array, value: Array, low: Sequence[int], high: Sequence[int], between: Sequence[int]
) -> Array:
    """Put ``value`` before, after and between the elements; negative low and high crop."""
    sizes = [n + gap * max(n - 1, 0) for n, gap in zip(x.shape, between, strict=True)]
    result = np.full([sum(part) for part in zip(low, sizes, high, strict=True)], value, x.dtype)
    positions = [
        first + np.arange(n) * (gap + 1)
        for n, first, gap in zip(x.shape, low, between, strict=True)
    ]
    inside = [(p >= 0) & (p < n) for p, n in zip(positions, result.shape, strict=True)]
    targets = [p[i] for p, i in zip(positions, inside, strict=True)]
    result[np.ix_(*targets)] = x[np.ix_(*inside)]
    return result


def fold(operation: str, x: Array, dims: Sequence[int]) -> Array:
    """Reduce dimensions with ``add`` or ``max``, as a balanced tree.

    Nothing adds up to +0, and its greatest element is the least value of the type.  f16 and bf16
    are added in f32 and rounded at the end.
    """
    remaining = [d for d in range(x.ndim) if d not in dims]
    shape = [x.shape[d] for d in remaining]
    count = math.prod(x.shape[d] for d in dims)
    if not count:
        return np.full(shape, 0 if operation == "add" else _least(x.dtype), x.dtype)
    rows = x.transpose(*remaining, *dims).reshape(*shape, count)
    narrow = operation == "add" and x.dtype in (DTYPES["f16"], DTYPES["bf16"])
    with np.errstate(all="ignore"):
        wide = rows.astype(np.float32) if narrow else rows
        total = tree(OPERATIONS[operation].compute, wide)[..., 0]
        return CASTS["convert"](total, x.dtype) if narrow else total


def _least(dtype: np.dtype[Any]) -> float:
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min)
    return False if dtype.kind == "b" else -math.inf

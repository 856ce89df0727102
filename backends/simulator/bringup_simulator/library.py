"""The chip's op library: functions over whole arrays, to be run by ``Accelerator.call``.

A real one would be written in the chip's own language; these are numpy over the chip's arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bringup_simulator.alu import ALU, kind_of
from bringup_simulator.isa import DTYPES

__all__ = ["Array", "alu", "convert", "fold", "pad", "pick", "ramp", "spread"]

Array = npt.NDArray[Any]

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_SUMS = ("add", "mul")


def alu(op: str, *operands: Array) -> Array:
    """One row of ``ALU`` whose result type follows from its operands, element by element."""
    with np.errstate(all="ignore"):
        return ALU[op].compute(*operands, _NAMES[operands[-1].dtype])


def convert(x: Array, dtype: str) -> Array:
    """To another type as in C, except that floats beyond an integer's range saturate."""
    whole = kind_of(dtype) in "iu" and kind_of(_NAMES[x.dtype]) in "iu"
    with np.errstate(all="ignore"):
        return ALU["truncate" if whole else "convert"].compute(x, dtype)


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
    steps = zip(x.shape, low, between, strict=True)
    at = [first + np.arange(n) * (gap + 1) for n, first, gap in steps]
    kept = [(p >= 0) & (p < n) for p, n in zip(at, result.shape, strict=True)]
    result[np.ix_(*(p[k] for p, k in zip(at, kept, strict=True)))] = x[np.ix_(*kept)]
    return result


def fold(op: str, x: Array, dims: Sequence[int], start: float) -> Array:
    """Reduce dimensions with a row of ``ALU``, as a balanced tree; ``start`` joins in, once.

    f16 and bf16 are added and multiplied in f32 and rounded at the end.
    """
    name = _NAMES[x.dtype]
    wide = "f32" if op in _SUMS and name in ("f16", "bf16") else name
    kept = [d for d in range(x.ndim) if d not in dims]
    shape = [x.shape[d] for d in kept]
    rows = np.empty((*shape, 1 + x.size // max(1, int(np.prod(shape)))), DTYPES[wide])
    rows[..., 0] = start
    rows[..., 1:] = x.transpose(*kept, *dims).reshape(*shape, -1)
    with np.errstate(all="ignore"):
        while half := rows.shape[-1] // 2:
            pairs = ALU[op].compute(rows[..., :half], rows[..., half : 2 * half], wide)
            rows = np.concatenate((pairs, rows[..., 2 * half :]), axis=-1)
    return convert(rows[..., 0], name)

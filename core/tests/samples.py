"""Operands worth trying, and how far results are from references; for tests of rows and of what
renders them.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from bringup.dtypes import DType, bool_, f16, f64

Array = np.ndarray[Any, Any]


def values(dtype: DType, shape: tuple[int, ...], seed: int) -> Array:
    """Boundary values first, then numbers of every size."""
    rng = np.random.default_rng(seed)
    count = int(np.prod(shape, dtype=int))
    if dtype is bool_:
        return rng.integers(0, 2, shape).astype(bool)
    edges = _edges(dtype)
    rng.shuffle(edges)
    if dtype.is_float:
        info = ml_dtypes.finfo(dtype.numpy)
        exponents = rng.uniform(int(info.minexp) - 3, int(info.maxexp) - 1, count)
        near = rng.uniform(-4, 4, count)
        sizes = np.exp2(np.where(rng.random(count) < 0.6, near, exponents))
        drawn = (sizes * rng.choice([-1.0, 1.0], count)).astype(dtype.numpy)
    else:
        info = np.iinfo(dtype.numpy)
        wide = rng.integers(info.min, info.max, count, dtype.numpy, endpoint=True)
        small = rng.integers(0 if info.min == 0 else -9, 9, count).astype(dtype.numpy)
        drawn = np.where(rng.random(count) < 0.5, wide, small)
    share = count // 3
    drawn[:share] = np.resize(edges, share)
    rng.shuffle(drawn)
    return drawn.reshape(shape)


def same(actual: Array, wanted: Array) -> Array:
    """Where two arrays agree in bits, any NaN being like any other."""
    bits = np.dtype(f"u{actual.dtype.itemsize}")
    equal = actual.view(bits) == wanted.view(bits)
    if actual.dtype.kind in "fV":
        equal = equal | (np.isnan(actual) & np.isnan(wanted))
    return equal


def ulps(actual: Array, wide: Array, dtype: DType) -> Array:
    """The distance from a wider reference in units of the last place of `dtype`."""
    info = ml_dtypes.finfo(dtype.numpy)
    wide = np.asarray(wide)
    actual = actual.astype(wide.dtype)
    with np.errstate(all="ignore"):
        finite = np.where((wide == 0) | ~np.isfinite(wide), 1, wide)
        exponent = np.maximum(np.frexp(finite)[1] - 1, int(info.minexp))
        unit = np.ldexp(np.ones_like(wide), exponent - int(info.nmant))
        error = np.abs(actual - wide) / unit
        same = (actual == wide) | (np.isnan(actual) & np.isnan(wide))
        # An allowance next to the largest number reaches infinity.
        spill = np.isinf(actual) & (np.sign(actual) == np.sign(wide))
        spill &= np.abs(wide) >= wide.dtype.type(info.max) * (1 - 8 * float(info.eps))
    return np.where(same | spill, 0.0, np.where(np.isnan(error), np.inf, error))


def wider(dtype: DType) -> Any:
    return np.longdouble if dtype is f64 else np.float64


def _edges(dtype: DType) -> Array:
    if dtype.is_float:
        info = ml_dtypes.finfo(dtype.numpy)
        sizes = [0.0, np.inf, 0.5, 1, 2, 2.5, 3, 0.625, 65504 if dtype is f16 else 1e5]
        ends = [info.max, info.smallest_normal, info.smallest_subnormal, 1 - info.epsneg]
        positive = np.array([*map(float, sizes), *map(float, ends)], np.float64)
        positive = np.append(positive, np.nan).astype(dtype.numpy)
        return np.concatenate([positive, -positive])
    info = np.iinfo(dtype.numpy)
    some = [info.min, info.max, 0, 1, 2, 7, dtype.bits - 1, dtype.bits, dtype.bits + 1]
    some += [-1, -2, info.min + 1] if info.min < 0 else [info.max - 1]
    return np.array(some, dtype.numpy)

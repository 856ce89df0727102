"""Where windows lie in an array: what scatter and dynamic_update_slice share on every machine."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bringup.dtypes import DType
from bringup.llvm import text as ir
from bringup.llvm.scalar import memory_type
from bringup.llvm.text import Builder, Val, const
from bringup.ops.scattering import Windows

Ints = tuple[int, ...]


def stride_of(shape: Ints, dim: int) -> int:
    """Elements between neighbours along a dimension."""
    return math.prod(shape[dim + 1 :])


def array_strides(windows: Windows) -> Ints:
    """Strides of the array by dimension of the updates; 0 along positions that are no batch."""
    strides = [0] * len(windows.result)
    for d, at in zip(windows.kept, windows.offset, strict=True):
        strides[at] = stride_of(windows.shape, d)
    for d, at in zip(windows.batch[0], windows.batched, strict=True):
        strides[windows.between[at]] = stride_of(windows.shape, d)
    return tuple(strides)


def trailing_run(shape: Ints, strides: Sequence[int], windows: Sequence[int]) -> int:
    """Trailing dimensions, of windows alone, that lie in the array as they do in the updates."""
    run, step = 0, 1
    for d in reversed(range(len(shape))):
        if d not in windows or (strides[d] != step and shape[d] != 1):
            break
        run, step = run + 1, step * shape[d]
    return run


def load_index(b: Builder, address: Val, dtype: DType) -> Val:
    """An index as i64; one of u64 keeps its bits."""
    value = b.load(memory_type(dtype), address, dtype.itemsize)
    if dtype.bits == 64:
        return value
    return b.sext(value, ir.i64) if dtype.kind == "int" else b.zext(value, ir.i64)


def coordinates(b: Builder, flat: Val, shape: Ints) -> list[Val]:
    """Those of a row-major position."""
    found: list[Val] = []
    for n in reversed(shape[1:]):
        found.append(b.urem(flat, const(ir.i64, n)))
        flat = b.udiv(flat, const(ir.i64, n))
    return [flat, *reversed(found)] if shape else []

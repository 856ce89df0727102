"""Writing windows of an array at places that are data.

The array is copied, then windows are written over it.  Windows that may overlap are written one
after the other, in row-major order of the updates; what cannot overlap is written in parallel:
windows of different batches, and elements of windows along dimensions that these span whole.

A machine with blocks of threads writes all elements side by side.  Where they may meet, it folds
atomically if every order of the fold gives the same bits.  Of elements that are set, it finds the
last by an atomic maximum of their numbers.  Sums and products of floats do not: there updates are
sorted by what they change, and each element folds its own updates in order (`ordered_folds`).
"""

from __future__ import annotations

import math

from bringup.loops.form import Buffer
from bringup.loops.library.builder import wide
from bringup.loops.library.calls import OpCall, StepLoops
from bringup.loops.library.side_by_side import OrderedFolds, SideBySide
from bringup.loops.library.updates import (
    Start,
    Write,
    array_strides,
    copy,
    independent,
    place_of_index,
    stride_of,
)
from bringup.ops.monoids import MONOIDS, ROUNDING
from bringup.ops.scattering import scatter_windows


def scatter(call: OpCall) -> StepLoops:
    """Write or fold updates at windows whose starts are rows of an array of indices."""
    x, indices, updates, _ = call.types
    kind, unique = call.attrs["kind"], call.attrs["unique"]
    fold = "" if kind == "set" else kind
    windows = scatter_windows(x, indices, updates, call.attrs)
    strides = array_strides(windows)
    unique = unique or math.prod(windows.positions) == 1
    side_by_side = bool(call.threads and not unique and updates.size)
    free = range(updates.rank) if unique or side_by_side else independent(windows)
    lasts = tuple(zip(windows.index_map, windows.last_starts, strict=True))
    starts = tuple(
        Start(call.operands[1], place_of_index(windows, c), stride_of(x.shape, d), last)
        for c, (d, last) in enumerate(lasts)
    )
    write = Write(call, updates.shape, strides, frozenset(free), starts, moves=False)
    if side_by_side and fold and not MONOIDS[fold].is_exact(x.dtype):
        return OrderedFolds(SideBySide(write, fold)).loops()
    if side_by_side:
        return SideBySide(write, fold).loops()
    return _phases(call, write, call.operands[2], fold, rounds=kind in ROUNDING and not unique)


def dynamic_update_slice(call: OpCall) -> StepLoops:
    """Write one window, which is moved inside the array."""
    x, update = (type_.shape for type_ in call.types[:2])
    strides = tuple(stride_of(x, d) for d in range(len(x)))
    starts = tuple(
        Start(buffer, (0, ()), stride, n - size)
        for buffer, stride, n, size in zip(call.operands[2:], strides, x, update, strict=True)
    )
    write = Write(call, update, strides, frozenset(range(len(x))), starts, moves=True)
    return _phases(call, write, call.operands[1], "", rounds=False)


def _phases(call: OpCall, write: Write, updates: Buffer, fold: str, *, rounds: bool) -> StepLoops:
    """rounds: several updates of an element may be rounded, which half floats are only once."""
    x, y = call.operands[0], call.results[0]
    if not updates.size:
        return StepLoops(call, (copy(call, "copy", x, y),), copies=True)
    if not rounds or wide(y.dtype) is y.dtype:
        funcs = (copy(call, "copy", x, y), write.func(y, updates, fold))
        return StepLoops(call, funcs, copies=True)
    sums = Buffer("sums", wide(y.dtype), y.size)
    first, last = copy(call, "widen", x, sums), copy(call, "round", sums, y)
    return StepLoops(call, (first, write.func(sums, updates, fold), last), (sums,))

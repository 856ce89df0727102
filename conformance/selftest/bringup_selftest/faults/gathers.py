"""Faults of gather, scatter and dynamic slices."""

from __future__ import annotations

import numpy as np

from bringup_selftest.corpus import Array, Faults, OpCall, kind

FAULTS = Faults("Gather, scatter, dynamic slices")


@FAULTS.op("GS05", "one of several additions is kept", "scatter", when=kind("add"))
def one_update(call: OpCall) -> Array | None:
    set_ = call.reference(*call.operands, kind="set")
    x = call.operands[0]
    updated = call.reference(np.zeros_like(x), call.operands[1], np.ones_like(call.operands[2]))
    return np.where(updated != 0, x + set_, x).astype(call.dtype)


@FAULTS.op("GS06", "the first of several values stays", "scatter", when=kind("set"))
def other_order(call: OpCall) -> Array | None:
    if call.operands[1].ndim < 1:
        return None
    x, indices, updates = call.operands
    dim = call.attrs["index_dim"]
    axes = [d for d in range(indices.ndim) if d != dim]
    windows = set(call.attrs["offset"])
    rows = [d for d in range(updates.ndim) if d not in windows]
    if len(axes) != 1 or len(rows) != 1:
        return None
    return call.reference(x, np.flip(indices, axes[0]), np.flip(updates, rows[0]))


@FAULTS.op("GS07", "index n - 1 reads n - 2", "gather")
def short_last(call: OpCall) -> Array | None:
    x, indices = call.operands
    last = x.shape[call.attrs["index_map"][0]] - call.attrs["sizes"][call.attrs["index_map"][0]]
    if last < 1:
        return None
    return call.reference(x, np.where(indices == last, indices - 1, indices).astype(indices.dtype))


@FAULTS.op("GS09", "a window that does not fit starts at 0", "dynamic_slice")
def unclamped(call: OpCall) -> Array | None:
    x, *starts = call.operands
    moved = []
    for d, (start, size) in enumerate(zip(starts, call.attrs["sizes"], strict=True)):
        fits = int(start) + size <= x.shape[d]
        moved.append(start if fits else np.zeros_like(start))
    return call.reference(x, *moved)


@FAULTS.op("GS09b", "a window is written past the end", "dynamic_update_slice")
def written_past(call: OpCall) -> Array | None:
    """A window past the end is written where it was asked for, as far as that is inside."""
    x, update, *starts = call.operands
    if all(int(s) + n <= m for s, n, m in zip(starts, update.shape, x.shape, strict=True)):
        return None
    wrong = x.copy()
    at = [max(int(s), 0) for s in starts]
    window = tuple(slice(s, s + n) for s, n in zip(at, update.shape, strict=True))
    inside = wrong[window].shape
    wrong[window] = update[tuple(slice(0, n) for n in inside)]
    return wrong


@FAULTS.op("GS10", "squares are gathered along axis 0", "gather")
def along_first(call: OpCall) -> Array | None:
    x, indices = call.operands
    if x.ndim != 2 or x.shape[0] != x.shape[1] or len(call.attrs["index_map"]) != 1:
        return None
    if call.attrs["batch"] != ((), ()):
        return None
    return call.reference(x.T, indices).reshape(call.right.shape)


@FAULTS.op("GS21a", "negative indices count from the end", "gather")
def wrapped_negative(call: OpCall) -> Array | None:
    x, indices = call.operands
    if indices.dtype.kind != "i" or not call.attrs["index_map"]:
        return None
    n = x.shape[call.attrs["index_map"][0]]
    return call.reference(x, np.where(indices < 0, indices + n, indices).astype(indices.dtype))


@FAULTS.op("GS22a", "updates out of range are made", "scatter")
def clipped_update(call: OpCall) -> Array | None:
    """An update out of range goes to the nearest place instead of nowhere."""
    x, indices, updates = call.operands
    shape = indices.shape
    limits = [x.shape[d] - 1 for d in call.attrs["index_map"]]
    if len(limits) != 1:
        return None
    inside = np.clip(indices.astype(np.int64), 0, max(limits[0], 0)).astype(indices.dtype)
    return call.reference(x, inside.reshape(shape), updates)


@FAULTS.op("GS23a", "outside the window nothing is written", "dynamic_update_slice")
def untouched_lost(call: OpCall) -> Array | None:
    wrong = call.right
    return np.where(wrong == call.operands[0], call.before[0], wrong)


@FAULTS.op("GS24a", "starts are rotated", "dynamic_slice")
def index_rotated(call: OpCall) -> Array | None:
    """The starts of a window are those of the dimension before."""
    x, *starts = call.operands
    if len(starts) < 2 or len({s.dtype for s in starts}) > 1:
        return None
    return call.reference(x, *starts[-1:], *starts[:-1])


@FAULTS.op("GS25a", "indices of 64 bits are read as 32", ("gather", "scatter"))
def low_halves(call: OpCall) -> Array | None:
    x, indices, *rest = call.operands
    if indices.dtype.itemsize != 8:
        return None
    half = np.dtype(f"{indices.dtype.kind}4")
    return call.reference(x, indices.astype(half).astype(indices.dtype), *rest)


FAULTS.op("GS20a", "out of range reads the nearest", "gather")(
    lambda c: c.reference(*c.operands, mode="clip")
)

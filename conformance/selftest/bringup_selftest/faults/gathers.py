"""Faults of gather, scatter and dynamic slices."""

from __future__ import annotations

import numpy as np

from bringup_selftest.corpus import Array, Fault, OpCall, op_fault

GROUP = "Gather, scatter, dynamic slices"


def one_update(call: OpCall) -> Array | None:
    """Of several additions to one place one is kept."""
    if call.attrs["kind"] != "add":
        return None
    set_ = call.reference(*call.operands, kind="set")
    x = call.operands[0]
    updated = call.reference(np.zeros_like(x), call.operands[1], np.ones_like(call.operands[2]))
    return np.where(updated != 0, x + set_, x).astype(call.dtype)


def other_order(call: OpCall) -> Array | None:
    """Of several values for one place the first stays."""
    if call.attrs["kind"] != "set" or call.operands[1].ndim < 1:
        return None
    x, indices, updates = call.operands
    dim = call.attrs["index_dim"]
    axes = [d for d in range(indices.ndim) if d != dim]
    windows = set(call.attrs["offset"])
    rows = [d for d in range(updates.ndim) if d not in windows]
    if len(axes) != 1 or len(rows) != 1:
        return None
    return call.reference(x, np.flip(indices, axes[0]), np.flip(updates, rows[0]))


def short_last(call: OpCall) -> Array | None:
    """Index n - 1 reads n - 2."""
    x, indices = call.operands
    last = x.shape[call.attrs["index_map"][0]] - call.attrs["sizes"][call.attrs["index_map"][0]]
    if last < 1:
        return None
    return call.reference(x, np.where(indices == last, indices - 1, indices).astype(indices.dtype))


def unclamped(call: OpCall) -> Array | None:
    """The start of a window that does not fit is 0."""
    x, *starts = call.operands
    moved = []
    for d, (start, size) in enumerate(zip(starts, call.attrs["sizes"], strict=True)):
        fits = int(start) + size <= x.shape[d]
        moved.append(start if fits else np.zeros_like(start))
    return call.reference(x, *moved)


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


def along_first(call: OpCall) -> Array | None:
    """Gathers along axis 0 where all sizes are equal."""
    x, indices = call.operands
    if x.ndim != 2 or x.shape[0] != x.shape[1] or len(call.attrs["index_map"]) != 1:
        return None
    if call.attrs["batch"] != ((), ()):
        return None
    return call.reference(x.T, indices).reshape(call.right.shape)


def clipped_fill(call: OpCall) -> Array | None:
    """What is out of range is the nearest element where 0 is declared."""
    return call.reference(*call.operands, mode="clip")


def wrapped_negative(call: OpCall) -> Array | None:
    """Negative indices count from the end."""
    x, indices = call.operands
    if indices.dtype.kind != "i" or not call.attrs["index_map"]:
        return None
    n = x.shape[call.attrs["index_map"][0]]
    return call.reference(x, np.where(indices < 0, indices + n, indices).astype(indices.dtype))


def clipped_update(call: OpCall) -> Array | None:
    """An update out of range goes to the nearest place instead of nowhere."""
    x, indices, updates = call.operands
    shape = indices.shape
    limits = [x.shape[d] - 1 for d in call.attrs["index_map"]]
    if len(limits) != 1:
        return None
    inside = np.clip(indices.astype(np.int64), 0, max(limits[0], 0)).astype(indices.dtype)
    return call.reference(x, inside.reshape(shape), updates)


def untouched_lost(call: OpCall) -> Array | None:
    """Outside the window the result is not written."""
    wrong = call.right
    return np.where(wrong == call.operands[0], call.before[0], wrong)


def index_rotated(call: OpCall) -> Array | None:
    """The starts of a window are those of the dimension before."""
    x, *starts = call.operands
    if len(starts) < 2 or len({s.dtype for s in starts}) > 1:
        return None
    return call.reference(x, *starts[-1:], *starts[:-1])


def low_halves(call: OpCall) -> Array | None:
    """Of indices of 64 bits the low half is read."""
    x, indices, *rest = call.operands
    if indices.dtype.itemsize != 8:
        return None
    half = np.dtype(f"{indices.dtype.kind}4")
    return call.reference(x, indices.astype(half).astype(indices.dtype), *rest)


FAULTS: tuple[Fault, ...] = (
    op_fault("GS05", GROUP, "one of several additions is kept", "scatter", one_update),
    op_fault("GS06", GROUP, "the first of several values stays", "scatter", other_order),
    op_fault("GS07", GROUP, "index n - 1 reads n - 2", "gather", short_last),
    op_fault("GS09", GROUP, "a window that does not fit starts at 0", "dynamic_slice", unclamped),
    op_fault("GS09b", GROUP, "a window is written past the end", "dynamic_update_slice",
             written_past),
    op_fault("GS10", GROUP, "squares are gathered along axis 0", "gather", along_first),
    op_fault("GS20a", GROUP, "out of range reads the nearest", "gather", clipped_fill),
    op_fault("GS21a", GROUP, "negative indices count from the end", "gather", wrapped_negative),
    op_fault("GS22a", GROUP, "updates out of range are made", "scatter", clipped_update),
    op_fault("GS23a", GROUP, "outside the window nothing is written", "dynamic_update_slice",
             untouched_lost),
    op_fault("GS25a", GROUP, "indices of 64 bits are read as 32", ("gather", "scatter"),
             low_halves),
    op_fault("GS24a", GROUP, "starts are rotated", "dynamic_slice", index_rotated),
)  # fmt: skip

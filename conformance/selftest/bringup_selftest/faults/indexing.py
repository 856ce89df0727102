"""Faults of indexing: which element is read or written."""

from __future__ import annotations

import numpy as np

from bringup_selftest.corpus import Array, Faults, OpCall

FAULTS = Faults("Indexing")
ELEMENTWISE = ("add", "sub", "mul", "div", "max", "min", "neg", "abs", "exp", "select", "compare")


def _unwritten(call: OpCall, first: int) -> Array | None:
    if call.right.size <= first:
        return None
    wrong = call.right
    wrong.reshape(-1)[first:] = call.before[0].reshape(-1)[first:]
    return wrong


@FAULTS.op("IX04", "the offset in bytes wraps (a model at 2^18)", "add")
def short_offset(call: OpCall) -> Array | None:
    """The offset in bytes wraps: 18 bits stand for the 31 that take gigabytes to meet."""
    first = (1 << 18) // call.dtype.itemsize
    if call.right.size <= first:
        return None
    wrong = call.right
    flat = wrong.reshape(-1)
    flat[first:] = flat[np.arange(first, flat.size) - first]
    return wrong


@FAULTS.op("IX07", "a slice with steps ends at its limit", "slice")
def last_of_steps(call: OpCall) -> Array | None:
    """The last element of a slice with steps is the one before its limit."""
    wrong, (x,) = call.right, call.operands
    for d, step in enumerate(call.attrs["stride"]):
        if step > 1:
            window = [slice(*t) for t in zip(call.attrs["start"], call.attrs["limit"],
                                             call.attrs["stride"], strict=True)]  # fmt: skip
            last = call.attrs["limit"][d] - 1
            window[d] = slice(last, last + 1)
            into = [slice(None)] * x.ndim
            into[d] = slice(-1, None)
            wrong[tuple(into)] = x[tuple(window)]
    return wrong


@FAULTS.op("IX08", "slices backwards start early", "slice")
def early_start(call: OpCall) -> Array | None:
    """A slice that runs backwards starts one element too early, if there is one."""
    attrs, (x,) = call.attrs, call.operands
    steps = zip(attrs["start"], attrs["stride"], strict=True)
    start = tuple(s - 1 if step < 0 and s > 0 else s for s, step in steps)
    if start == attrs["start"]:
        return None
    at = [np.arange(n) * step + s for n, step, s in zip(call.right.shape, attrs["stride"], start,
                                                      strict=True)]  # fmt: skip
    return np.asarray(x[np.ix_(*(np.maximum(a, 0) for a in at))])


@FAULTS.op("IX09", "of several flips the first is done", "slice")
def first_flipped(call: OpCall) -> Array | None:
    turned = [d for d, step in enumerate(call.attrs["stride"]) if step == -1]
    return np.flip(call.right, tuple(turned[1:])) if len(turned) > 1 else None


@FAULTS.op("IX12", "a negative pad cuts the other end", "pad")
def crop_moved(call: OpCall) -> Array | None:
    """What a negative pad cuts off at the start is cut off at the end."""
    wrong = call.right
    for d, lo in enumerate(call.attrs["lo"]):
        if lo < 0:
            wrong = np.roll(wrong, 1, axis=d)
    return wrong


@FAULTS.op("IX14", "iota counts along the last dimension", "iota")
def iota_last(call: OpCall) -> Array | None:
    shape = call.right.shape
    count = np.arange(shape[-1]) if shape else np.arange(1)
    return np.broadcast_to(count, shape).astype(call.dtype)


@FAULTS.op("IX21a", "a transpose permutes backwards", "transpose")
def inverse_permutation(call: OpCall) -> Array | None:
    """Reads with the inverse permutation, which pairs of dimensions hide."""
    (x,) = call.operands
    wrong = x.transpose(np.argsort(call.attrs["permutation"]))
    return wrong if wrong.shape == call.right.shape else wrong.reshape(call.right.shape)


@FAULTS.op("IX22a", "the third part of a join is the second", "concatenate")
def third_part(call: OpCall) -> Array | None:
    """From the third part on, the second is joined again where sizes agree."""
    parts = list(call.operands)
    for n in range(2, len(parts)):
        if parts[n].shape == parts[1].shape:
            parts[n] = parts[1]
    return np.concatenate(parts, axis=call.attrs["dim"])


@FAULTS.op("IX23a", "interior padding is off by one", "pad")
def interior_forgotten(call: OpCall) -> Array | None:
    """Elements between which a pad puts others lie one place further."""
    wrong = call.right
    for d, between in enumerate(call.attrs["interior"]):
        if between:
            wrong = np.roll(wrong, 1, axis=d)
    return wrong


@FAULTS.op("IX24a", "all dimensions of a slice start alike", "slice")
def start_of_first(call: OpCall) -> Array | None:
    start, limit = list(call.attrs["start"]), list(call.attrs["limit"])
    for d in range(1, len(start)):
        length = limit[d] - start[d]
        if start[0] + length <= call.operands[0].shape[d]:
            start[d], limit[d] = start[0], start[0] + length
    return call.reference(*call.operands, start=tuple(start), limit=tuple(limit))


FAULTS.op("IX02", "elements from 1,024 on are not written", ELEMENTWISE)(
    lambda c: _unwritten(c, 1024)
)
FAULTS.op("IX03", "elements from 65,536 on are not written", ELEMENTWISE)(
    lambda c: _unwritten(c, 1 << 16)
)
FAULTS.op("IX20a", "a transpose of squares does nothing", "transpose")(
    lambda c: c.x if c.x.ndim == 2 and c.x.shape[0] == c.x.shape[1] else None
)

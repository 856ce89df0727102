"""Faults of reductions and scans.

Core folds reductions over no elements (RD03), dots of no products among them, and reductions of
single numbers (RD17) away before any device sees them.
"""

from __future__ import annotations

import numpy as np

from bringup.ops.table import lookup
from bringup_selftest.corpus import Array, Faults, OpCall, kind, of

FAULTS = Faults("Reductions and scans")
#: Elements that one block scans.
_SCANNED = 256
_BLOCK = 64


def _is_float(array: Array) -> bool:
    return array.dtype.kind not in "biu"


@FAULTS.op("RD07", "16-bit floats are summed in 16 bits", "reduce")
def narrow_sum(call: OpCall) -> Array | None:
    (x,) = call.operands
    dims = call.attrs["dims"]
    if call.attrs["kind"] != "add" or not _is_float(x) or x.itemsize != 2 or len(dims) != 1:
        return None
    rows = np.moveaxis(x, dims[0], 0)
    total = np.zeros(rows.shape[1:], x.dtype)
    for row in rows:
        total = (total + row).astype(x.dtype)
    return total


@FAULTS.op("RD09", "variance as a difference", "var")
def difference_of_squares(call: OpCall) -> Array | None:
    (x,) = call.operands
    dims = tuple(call.attrs["dims"])
    count = int(np.prod([x.shape[d] for d in dims]))
    if not _is_float(x) or not count:
        return None
    mean = (x.sum(axis=dims, dtype=x.dtype) / x.dtype.type(count)).astype(x.dtype)
    square = ((x * x).sum(axis=dims, dtype=x.dtype) / x.dtype.type(count)).astype(x.dtype)
    scale = count / max(count - call.attrs["correction"], 1e-30)
    return np.asarray(((square - mean * mean) * x.dtype.type(scale)).astype(call.dtype))


def _scan(call: OpCall) -> tuple[Array, int, int]:
    (x,) = call.operands
    d = call.attrs["dim"]
    return x, d, x.shape[d]


@FAULTS.op("RD10", "scans lose the carry at 256", "cumulative")
def lost_carry(call: OpCall) -> Array | None:
    x, d, n = _scan(call)
    if n <= _SCANNED:
        return None
    parts = np.split(x, range(_SCANNED, n, _SCANNED), axis=d)
    return np.concatenate([call.reference(part) for part in parts], axis=d)


@FAULTS.op("RD11", "the second block has the carry twice", "cumulative")
def double_carry(call: OpCall) -> Array | None:
    _, d, n = _scan(call)
    if n <= _SCANNED or call.attrs["kind"] != "add":
        return None
    wrong = np.moveaxis(call.right, d, 0)
    wrong[_SCANNED : 2 * _SCANNED] += wrong[_SCANNED - 1]
    return np.moveaxis(wrong, 0, d)


@FAULTS.op("RD12", "exclusive scans keep the first input", "cumulative")
def first_kept(call: OpCall) -> Array | None:
    x, d, n = _scan(call)
    if not call.attrs["exclusive"] or n == 0:
        return None
    wrong, at = call.right, [slice(None)] * x.ndim
    at[d] = slice(-1, None) if call.attrs["reverse"] else slice(0, 1)
    wrong[tuple(at)] = x[tuple(at)]
    return wrong


@FAULTS.op("RD14", "argmax takes the last of equals", ("argmax", "argmin"))
def last_equal(call: OpCall) -> Array | None:
    (x,) = call.operands
    d = call.attrs["dim"]
    flipped = call.reference(np.flip(x, d))
    return np.asarray(x.shape[d] - 1 - flipped).astype(call.dtype)


@FAULTS.op("RD14b", "later blocks win ties", ("argmax", "argmin"))
def blocks_in_any_order(call: OpCall) -> Array | None:
    (x,) = call.operands
    d = call.attrs["dim"]
    if x.shape[d] <= _BLOCK:
        return None
    best = np.take_along_axis(x, np.expand_dims(call.right.astype(np.int64), d), d)
    tail = np.take(x, range(_BLOCK, x.shape[d]), axis=d)
    hit = np.any(tail == best, axis=d)
    return np.where(hit, np.argmax(tail == best, axis=d) + _BLOCK, call.right).astype(call.dtype)


@FAULTS.op("RD15", "any and all stop at the first block", "reduce")
def first_block(call: OpCall) -> Array | None:
    (x,) = call.operands
    dims = call.attrs["dims"]
    if call.attrs["kind"] not in ("and", "or") or len(dims) != 1 or x.shape[dims[0]] <= _BLOCK:
        return None
    return call.reference(np.take(x, range(_BLOCK), axis=dims[0]))


@FAULTS.op("RD20a", "of several axes the last is one element", "reduce")
def first_axis_only(call: OpCall) -> Array | None:
    """Of several axes in the middle, the last is reduced at its first element alone."""
    (x,) = call.operands
    dims = sorted(call.attrs["dims"])
    if len(dims) < 2 or not x.size:
        return None
    kept = np.take(x, [0], axis=dims[-1])
    return call.reference(kept)


@FAULTS.op("RD23a", "means divide by the last axis", "mean")
def mean_of_last(call: OpCall) -> Array | None:
    (x,) = call.operands
    dims = call.attrs["dims"]
    if not x.ndim or not x.size:
        return None
    total = lookup("reduce").reference(x.astype(np.float64), kind="add", dims=dims)
    return np.asarray(total / x.shape[-1]).astype(call.dtype)


@FAULTS.op("RD24a", "a fold in parts loses an element at the seam", "reduce")
def seam_lost(call: OpCall) -> Array | None:
    """A fold in parts is off by one: the first element behind the first part is in none."""
    (x,) = call.operands
    dims = call.attrs["dims"]
    if len(dims) != 1 or x.shape[dims[0]] <= _BLOCK:
        return None
    return call.reference(np.delete(x, _BLOCK, axis=dims[0]))


@FAULTS.op("RD38a", "epsilon is always 1e-5", ("layer_norm", "rms_norm"))
@FAULTS.op("RD39a", "epsilon of groups is 1e-5", "group_norm")
def usual_epsilon(call: OpCall) -> Array | None:
    return call.reference(*call.operands, epsilon=1e-5)


@FAULTS.op("RD33a", "sums of -0 are +0", "reduce")
@FAULTS.op("RD34a", "sums of windows of -0 are +0", "reduce_window")
@FAULTS.op("RD36a", "running sums of -0 are +0", "cumulative")
def positive_zero(call: OpCall) -> Array | None:
    if call.dtype.kind in "biu" or call.attrs["kind"] != "add":
        return None
    return np.where(call.right == 0, np.zeros_like(call.right), call.right)


def _partial_overflow(x: Array, dims: tuple[int, ...]) -> Array:
    """Where a sum that is taken in order leaves the range of f16 on its way."""
    kept = [d for d in range(x.ndim) if d not in dims]
    line = np.transpose(x, (*kept, *dims)).reshape([x.shape[d] for d in kept] + [-1])
    return np.asarray((np.abs(np.cumsum(line.astype(np.float64), axis=-1)) > 65504).any(axis=-1))


@FAULTS.op("RD30a", "f16 sums overflow half-way", "reduce", when=of(np.float16))
def half_way_overflow(call: OpCall) -> Array | None:
    (x,) = call.operands
    if call.attrs["kind"] != "add" or not x.size:
        return None
    lost = _partial_overflow(x, call.attrs["dims"]) & np.isfinite(call.right)
    return np.where(lost, np.float16(np.inf), call.right)


@FAULTS.op("RD31a", "f16 means overflow with the sum", "mean", when=of(np.float16))
def sum_before_quotient(call: OpCall) -> Array | None:
    (x,) = call.operands
    if not x.size:
        return None
    total = x.astype(np.float64).sum(axis=call.attrs["dims"])
    return np.where(
        np.isfinite(call.right) & (np.abs(total) > 65519), np.float16(np.inf), call.right
    )


@FAULTS.op("RD32a", "f16 norms overflow with a square", "rms_norm", when=of(np.float16))
def overflowing_squares(call: OpCall) -> Array | None:
    x = call.operands[0]
    if not x.size:
        return None
    lost = (np.abs(x) > 256).any(axis=call.attrs["dims"], keepdims=True) & np.isfinite(call.right)
    return np.where(lost, np.float16(0), call.right)


@FAULTS.op("RD35a", "products that are 0 have no sign", "reduce")
def unsigned_product(call: OpCall) -> Array | None:
    if call.dtype.kind in "biu" or call.attrs["kind"] != "mul":
        return None
    return np.where(call.right == 0, np.zeros_like(call.right), call.right)


@FAULTS.op("RD01", "sums start at 1", "reduce", when=kind("add"))
def from_one(call: OpCall) -> Array | None:
    if call.dtype.kind == "b":
        return None
    return np.asarray(call.right + call.dtype.type(1))


FAULTS.op("RD21a", "the variance is not corrected", "var")(
    lambda c: c.reference(*c.operands, correction=0.0)
)
FAULTS.op("RD22a", "reversed scans run forward", "cumulative")(
    lambda c: c.reference(*c.operands, reverse=False)
)

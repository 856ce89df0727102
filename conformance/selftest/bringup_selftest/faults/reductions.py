"""Faults of reductions and scans.

Core folds reductions over no elements (RD03), dots of no products among them, and reductions of
single numbers (RD17) away before any device sees them.
"""

from __future__ import annotations

import numpy as np

from bringup.ops.table import lookup
from bringup_selftest.corpus import Array, Fault, OpCall, op_fault

GROUP = "Reductions and scans"
#: Elements that one block scans.
_SCANNED = 256
_BLOCK = 64


def _is_float(array: Array) -> bool:
    return array.dtype.kind not in "biu"


def from_one(call: OpCall) -> Array | None:
    """A sum starts at 1."""
    if call.attrs["kind"] != "add" or call.dtype.kind == "b":
        return None
    return np.asarray(call.right + call.dtype.type(1))


def narrow_sum(call: OpCall) -> Array | None:
    """Sums of 16-bit floats are kept in 16 bits all the way."""
    (x,) = call.operands
    dims = call.attrs["dims"]
    if call.attrs["kind"] != "add" or not _is_float(x) or x.itemsize != 2 or len(dims) != 1:
        return None
    rows = np.moveaxis(x, dims[0], 0)
    total = np.zeros(rows.shape[1:], x.dtype)
    for row in rows:
        total = (total + row).astype(x.dtype)
    return total


def difference_of_squares(call: OpCall) -> Array | None:
    """The variance is E[x^2] - E[x]^2 in the input's dtype."""
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


def lost_carry(call: OpCall) -> Array | None:
    """Every block of a scan begins anew."""
    x, d, n = _scan(call)
    if n <= _SCANNED:
        return None
    parts = np.split(x, range(_SCANNED, n, _SCANNED), axis=d)
    return np.concatenate([call.reference(part) for part in parts], axis=d)


def double_carry(call: OpCall) -> Array | None:
    """The carry is added twice to the second block."""
    _, d, n = _scan(call)
    if n <= _SCANNED or call.attrs["kind"] != "add":
        return None
    wrong = np.moveaxis(call.right, d, 0)
    wrong[_SCANNED : 2 * _SCANNED] += wrong[_SCANNED - 1]
    return np.moveaxis(wrong, 0, d)


def first_kept(call: OpCall) -> Array | None:
    """An exclusive scan keeps the first input."""
    x, d, n = _scan(call)
    if not call.attrs["exclusive"] or n == 0:
        return None
    wrong, at = call.right, [slice(None)] * x.ndim
    at[d] = slice(-1, None) if call.attrs["reverse"] else slice(0, 1)
    wrong[tuple(at)] = x[tuple(at)]
    return wrong


def forward_always(call: OpCall) -> Array | None:
    """A scan from the end runs from the start."""
    return call.reference(*call.operands, reverse=False)


def last_equal(call: OpCall) -> Array | None:
    """Of equal values the last is found."""
    (x,) = call.operands
    d = call.attrs["dim"]
    flipped = call.reference(np.flip(x, d))
    return np.asarray(x.shape[d] - 1 - flipped).astype(call.dtype)


def blocks_in_any_order(call: OpCall) -> Array | None:
    """Between blocks the later of equal values wins."""
    (x,) = call.operands
    d = call.attrs["dim"]
    if x.shape[d] <= _BLOCK:
        return None
    best = np.take_along_axis(x, np.expand_dims(call.right.astype(np.int64), d), d)
    tail = np.take(x, range(_BLOCK, x.shape[d]), axis=d)
    hit = np.any(tail == best, axis=d)
    return np.where(hit, np.argmax(tail == best, axis=d) + _BLOCK, call.right).astype(call.dtype)


def first_block(call: OpCall) -> Array | None:
    """Whether any or all hold is asked of the first block alone."""
    (x,) = call.operands
    dims = call.attrs["dims"]
    if call.attrs["kind"] not in ("and", "or") or len(dims) != 1 or x.shape[dims[0]] <= _BLOCK:
        return None
    return call.reference(np.take(x, range(_BLOCK), axis=dims[0]))


def first_axis_only(call: OpCall) -> Array | None:
    """Of several axes in the middle, the last is reduced at its first element alone."""
    (x,) = call.operands
    dims = sorted(call.attrs["dims"])
    if len(dims) < 2 or not x.size:
        return None
    kept = np.take(x, [0], axis=dims[-1])
    return call.reference(kept)


def uncorrected(call: OpCall) -> Array | None:
    """The correction of a variance is ignored."""
    return call.reference(*call.operands, correction=0.0)


def mean_of_last(call: OpCall) -> Array | None:
    """A mean divides by the length of the last axis."""
    (x,) = call.operands
    dims = call.attrs["dims"]
    if not x.ndim or not x.size:
        return None
    total = lookup("reduce").reference(x.astype(np.float64), kind="add", dims=dims)
    return np.asarray(total / x.shape[-1]).astype(call.dtype)


def seam_lost(call: OpCall) -> Array | None:
    """A fold in parts is off by one: the first element behind the first part is in none."""
    (x,) = call.operands
    dims = call.attrs["dims"]
    if len(dims) != 1 or x.shape[dims[0]] <= _BLOCK:
        return None
    return call.reference(np.delete(x, _BLOCK, axis=dims[0]))


def usual_epsilon(call: OpCall) -> Array | None:
    """Norms add 1e-5, whatever they are asked for."""
    return call.reference(*call.operands, epsilon=1e-5)


def positive_zero(call: OpCall) -> Array | None:
    """Sums of floats begin with +0."""
    if call.dtype.kind in "biu" or call.attrs["kind"] != "add":
        return None
    return np.where(call.right == 0, np.zeros_like(call.right), call.right)


def unsigned_product(call: OpCall) -> Array | None:
    """Products of floats that are 0 have no sign."""
    if call.dtype.kind in "biu" or call.attrs["kind"] != "mul":
        return None
    return np.where(call.right == 0, np.zeros_like(call.right), call.right)


def _partial_overflow(x: Array, dims: tuple[int, ...]) -> Array:
    """Where a sum that is taken in order leaves the range of f16 on its way."""
    kept = [d for d in range(x.ndim) if d not in dims]
    line = np.transpose(x, (*kept, *dims)).reshape([x.shape[d] for d in kept] + [-1])
    return np.asarray((np.abs(np.cumsum(line.astype(np.float64), axis=-1)) > 65504).any(axis=-1))


def half_way_overflow(call: OpCall) -> Array | None:
    """Sums of f16 are infinite if a sum on the way is."""
    (x,) = call.operands
    if call.dtype != np.float16 or call.attrs["kind"] != "add" or not x.size:
        return None
    lost = _partial_overflow(x, call.attrs["dims"]) & np.isfinite(call.right)
    return np.where(lost, np.float16(np.inf), call.right)


def sum_before_quotient(call: OpCall) -> Array | None:
    """The mean of f16 is infinite if the sum is."""
    (x,) = call.operands
    if call.dtype != np.float16 or not x.size:
        return None
    total = x.astype(np.float64).sum(axis=call.attrs["dims"])
    return np.where(
        np.isfinite(call.right) & (np.abs(total) > 65519), np.float16(np.inf), call.right
    )


def overflowing_squares(call: OpCall) -> Array | None:
    """A norm of f16 is 0 if the square of an element is infinite."""
    x = call.operands[0]
    if call.dtype != np.float16 or not x.size:
        return None
    lost = (np.abs(x) > 256).any(axis=call.attrs["dims"], keepdims=True) & np.isfinite(call.right)
    return np.where(lost, np.float16(0), call.right)


FAULTS: tuple[Fault, ...] = (
    op_fault("RD38a", GROUP, "epsilon is always 1e-5", ("layer_norm", "rms_norm"), usual_epsilon),
    op_fault("RD39a", GROUP, "epsilon of groups is 1e-5", "group_norm", usual_epsilon),
    op_fault("RD33a", GROUP, "sums of -0 are +0", "reduce", positive_zero),
    op_fault("RD34a", GROUP, "sums of windows of -0 are +0", "reduce_window", positive_zero),
    op_fault("RD35a", GROUP, "products that are 0 have no sign", "reduce", unsigned_product),
    op_fault("RD36a", GROUP, "running sums of -0 are +0", "cumulative", positive_zero),
    op_fault("RD30a", GROUP, "f16 sums overflow half-way", "reduce", half_way_overflow),
    op_fault("RD31a", GROUP, "f16 means overflow with the sum", "mean", sum_before_quotient),
    op_fault("RD32a", GROUP, "f16 norms overflow with a square", "rms_norm", overflowing_squares),
    op_fault("RD01", GROUP, "sums start at 1", "reduce", from_one),
    op_fault("RD07", GROUP, "16-bit floats are summed in 16 bits", "reduce", narrow_sum),
    op_fault("RD09", GROUP, "variance as a difference", "var", difference_of_squares),
    op_fault("RD10", GROUP, "scans lose the carry at 256", "cumulative", lost_carry),
    op_fault("RD11", GROUP, "the second block has the carry twice", "cumulative", double_carry),
    op_fault("RD12", GROUP, "exclusive scans keep the first input", "cumulative", first_kept),
    op_fault("RD14", GROUP, "argmax takes the last of equals", ("argmax", "argmin"), last_equal),
    op_fault("RD14b", GROUP, "later blocks win ties", ("argmax", "argmin"), blocks_in_any_order),
    op_fault("RD15", GROUP, "any and all stop at the first block", "reduce", first_block),
    op_fault("RD20a", GROUP, "of several axes the last is one element", "reduce", first_axis_only),
    op_fault("RD21a", GROUP, "the variance is not corrected", "var", uncorrected),
    op_fault("RD22a", GROUP, "reversed scans run forward", "cumulative", forward_always),
    op_fault("RD23a", GROUP, "means divide by the last axis", "mean", mean_of_last),
    op_fault("RD24a", GROUP, "a fold in parts loses an element at the seam", "reduce", seam_lost),
)

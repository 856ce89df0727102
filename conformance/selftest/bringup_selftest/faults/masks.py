"""Faults of masks and tails: what does not fill a vector or a tile."""

from __future__ import annotations

import numpy as np

from bringup.ops.table import lookup
from bringup_selftest.corpus import Array, Faults, OpCall

FAULTS = Faults("Masks and tails")
#: Elements that an unrolled loop stores at once.
_UNROLLED = 32


@FAULTS.op("MT01", "the tail of a product is a sum", "mul")
def stale_tail(call: OpCall) -> Array | None:
    n = call.right.size
    if n < 4 or n % 4 == 0 or call.right.dtype == np.bool_:
        return None
    wrong, tail = call.right, slice(n - n % 4, None)
    other = lookup("add").reference(*(x.reshape(-1)[tail] for x in call.operands))
    wrong.reshape(-1)[tail] = other
    return wrong


def _along(call: OpCall) -> tuple[int, int] | None:
    """The one dimension that is reduced, and its length."""
    dims = call.attrs["dims"]
    return (dims[0], call.operands[0].shape[dims[0]]) if len(dims) == 1 else None


@FAULTS.op("MT02", "reductions drop what fills no vector", "reduce")
def short_fold(call: OpCall) -> Array | None:
    """The elements that fill no vector are dropped from longer reductions."""
    found = _along(call)
    if found is None or found[1] <= 32 or found[1] % 8 == 0:
        return None
    d, n = found
    kept = np.take(call.operands[0], range(n - n % 8), axis=d)
    return call.reference(kept)


@FAULTS.op("MT03", "maxima see the zeros of the padding", "reduce")
def zeros_in_max(call: OpCall) -> Array | None:
    found = _along(call)
    if call.attrs["kind"] != "max" or found is None or found[1] % 8 == 0:
        return None
    return np.asarray(np.maximum(call.right, call.dtype.type(0)))


@FAULTS.op("MT03b", "sums see the ones of the padding", "reduce")
def ones_in_sum(call: OpCall) -> Array | None:
    found = _along(call)
    if call.attrs["kind"] != "add" or found is None or found[1] % 8 == 0:
        return None
    return np.asarray(call.right + call.dtype.type(-found[1] % 8))


@FAULTS.op("MT05", "the last store goes past the end", ("add", "mul"))
def wide_store(call: OpCall) -> Array | None:
    n = call.right.size
    array, start = call.device.heap.elements(call.out[0])
    array[start + n : start + n + -n % _UNROLLED] = array[start + n - 1]
    return None


@FAULTS.op("MT05b", "the last store of a row goes over the next", "add")
def into_next_row(call: OpCall) -> Array | None:
    wrong = call.right
    if wrong.ndim < 2 or wrong.shape[-1] % 8 == 0 or wrong.shape[-1] < 2:
        return None
    rows = wrong.reshape(-1, wrong.shape[-1])
    rows[1:, : min(-rows.shape[1] % 8, rows.shape[1])] = rows[:-1, -1:]
    return wrong


@FAULTS.op("MT06", "rows are read at a rounded distance", "reduce")
def rounded_stride(call: OpCall) -> Array | None:
    (x,) = call.operands
    found = _along(call)
    if found is None or found[0] != x.ndim - 1 or x.ndim < 2 or found[1] % 32 == 0:
        return None
    n = found[1]
    rows, wide = x.size // max(n, 1), -(-n // 32) * 32
    at = np.arange(rows)[:, None] * wide + np.arange(n)
    moved = x.reshape(-1)[np.minimum(at, x.size - 1)] if x.size else x
    return call.reference(moved.reshape(x.shape))


@FAULTS.op("MT20a", "argmax finds the padding", "argmax")
def padded_argmax(call: OpCall) -> Array | None:
    """The index of a maximum may be that of a zero that pads the last tile."""
    (x,) = call.operands
    d = call.attrs["dim"]
    n = x.shape[d]
    if n % 8 == 0:
        return None
    return np.where(np.max(x, axis=d) < 0, n, call.right).astype(call.dtype)


@FAULTS.op("MT21a", "products see the zeros of the padding", "reduce")
def padded_product(call: OpCall) -> Array | None:
    found = _along(call)
    if call.attrs["kind"] != "mul" or found is None or found[1] < 8 or found[1] % 8 == 0:
        return None
    return np.zeros_like(call.right)

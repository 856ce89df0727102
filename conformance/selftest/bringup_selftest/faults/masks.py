"""Faults of masks and tails: what does not fill a vector or a tile."""

from __future__ import annotations

import numpy as np

from bringup.ops.table import lookup
from bringup_selftest.corpus import Array, Fault, OpCall, op_fault

GROUP = "Masks and tails"
#: Elements that an unrolled loop stores at once.
_UNROLLED = 32


def stale_tail(call: OpCall) -> Array | None:
    """The tail is computed by the scalar code of another op."""
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


def short_fold(call: OpCall) -> Array | None:
    """The elements that fill no vector are dropped from longer reductions."""
    found = _along(call)
    if found is None or found[1] <= 32 or found[1] % 8 == 0:
        return None
    d, n = found
    kept = np.take(call.operands[0], range(n - n % 8), axis=d)
    return call.reference(kept)


def zeros_in_max(call: OpCall) -> Array | None:
    """A maximum sees the zeros that pad the last tile."""
    found = _along(call)
    if call.attrs["kind"] != "max" or found is None or found[1] % 8 == 0:
        return None
    return np.asarray(np.maximum(call.right, call.dtype.type(0)))


def ones_in_sum(call: OpCall) -> Array | None:
    """A sum sees the ones that pad the last tile."""
    found = _along(call)
    if call.attrs["kind"] != "add" or found is None or found[1] % 8 == 0:
        return None
    return np.asarray(call.right + call.dtype.type(-found[1] % 8))


def wide_store(call: OpCall) -> Array | None:
    """The last store is a whole one, past the end of the value."""
    n = call.right.size
    array, start = call.device.heap.elements(call.out[0])
    array[start + n : start + n + -n % _UNROLLED] = array[start + n - 1]
    return None


def into_next_row(call: OpCall) -> Array | None:
    """The last store of a row is a whole one, over the row behind it."""
    wrong = call.right
    if wrong.ndim < 2 or wrong.shape[-1] % 8 == 0 or wrong.shape[-1] < 2:
        return None
    rows = wrong.reshape(-1, wrong.shape[-1])
    rows[1:, : min(-rows.shape[1] % 8, rows.shape[1])] = rows[:-1, -1:]
    return wrong


def rounded_stride(call: OpCall) -> Array | None:
    """Rows are read at a distance that is a multiple of 32."""
    (x,) = call.operands
    found = _along(call)
    if found is None or found[0] != x.ndim - 1 or x.ndim < 2 or found[1] % 32 == 0:
        return None
    n = found[1]
    rows, wide = x.size // max(n, 1), -(-n // 32) * 32
    at = np.arange(rows)[:, None] * wide + np.arange(n)
    moved = x.reshape(-1)[np.minimum(at, x.size - 1)] if x.size else x
    return call.reference(moved.reshape(x.shape))


def padded_argmax(call: OpCall) -> Array | None:
    """The index of a maximum may be that of a zero that pads the last tile."""
    (x,) = call.operands
    d = call.attrs["dim"]
    n = x.shape[d]
    if n % 8 == 0:
        return None
    return np.where(np.max(x, axis=d) < 0, n, call.right).astype(call.dtype)


def padded_product(call: OpCall) -> Array | None:
    """A product sees the zeros that pad the last tile."""
    found = _along(call)
    if call.attrs["kind"] != "mul" or found is None or found[1] < 8 or found[1] % 8 == 0:
        return None
    return np.zeros_like(call.right)


FAULTS: tuple[Fault, ...] = (
    op_fault("MT01", GROUP, "the tail of a product is a sum", "mul", stale_tail),
    op_fault("MT02", GROUP, "reductions drop what fills no vector", "reduce", short_fold),
    op_fault("MT03", GROUP, "maxima see the zeros of the padding", "reduce", zeros_in_max),
    op_fault("MT03b", GROUP, "sums see the ones of the padding", "reduce", ones_in_sum),
    op_fault("MT05", GROUP, "the last store goes past the end", ("add", "mul"), wide_store),
    op_fault("MT05b", GROUP, "the last store of a row goes over the next", "add", into_next_row),
    op_fault("MT06", GROUP, "rows are read at a rounded distance", "reduce", rounded_stride),
    op_fault("MT20a", GROUP, "argmax finds the padding", "argmax", padded_argmax),
    op_fault("MT21a", GROUP, "products see the zeros of the padding", "reduce", padded_product),
)

"""Faults of dot products."""

from __future__ import annotations

import numpy as np

from bringup_conformance.selftest.corpus import Array, Fault, OpCall, op_fault

GROUP = "Dot products"
#: Products that one tile adds.
_TILE = 64


def _shorter(call: OpCall, keep: int) -> Array:
    """The dot of the first products alone."""
    operands = list(call.operands)
    for n, dims in enumerate(call.attrs["contract"]):
        operands[n] = np.take(operands[n], range(keep), axis=dims[0])
    return call.reference(*operands)


def _length(call: OpCall) -> int:
    """How many products are added, of dots over one dimension; else 0."""
    dims = call.attrs["contract"][0]
    return call.operands[0].shape[dims[0]] if len(dims) == 1 else 0


def tail_dropped(call: OpCall) -> Array | None:
    """The last K % 4 products are dropped."""
    k = _length(call)
    return _shorter(call, k - k % 4) if k > 4 and k % 4 else None


def tile_skipped(call: OpCall) -> Array | None:
    """The last tile is skipped."""
    k = _length(call)
    return _shorter(call, (k - 1) // _TILE * _TILE) if k > _TILE else None


def ten_bits(call: OpCall) -> Array | None:
    """f32 is multiplied with mantissas of 10 bits."""
    if call.operands[0].dtype != np.float32:
        return None
    operands = [
        ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
        for x in call.operands
    ]
    return call.reference(*operands)


def first_batch(call: OpCall) -> Array | None:
    """Every batch reads the first of the right operand."""
    dims = call.attrs["batch"][1]
    if not dims:
        return None
    x, y = call.operands
    return call.reference(x, np.take(y, np.zeros(y.shape[dims[0]], np.int64), axis=dims[0]))


def short_accumulator(call: OpCall) -> Array | None:
    """Products of i8 are added in i16, which saturates."""
    if call.operands[0].dtype != np.int8 or call.dtype.itemsize < 4:
        return None
    return np.clip(call.right, -32768, 32767).astype(call.dtype)


def byte_accumulator(call: OpCall) -> Array | None:
    """Products of i8 are added in i8."""
    if call.operands[0].dtype != np.int8 or call.dtype.itemsize < 2:
        return None
    return call.right.astype(np.int8).astype(call.dtype)


def not_zeroed(call: OpCall) -> Array | None:
    """Partial sums are added to what is there."""
    return np.asarray(call.right + call.before[0]) if _length(call) > _TILE else None


def square_transposed(call: OpCall) -> Array | None:
    """The right operand of squares is read across."""
    x, y = call.operands
    if y.ndim != 2 or y.shape[0] != y.shape[1]:
        return None
    return call.reference(x, np.ascontiguousarray(y.T))


def narrow_accumulator(call: OpCall) -> Array | None:
    """Products of 16-bit floats are added in 16 bits."""
    x, y = call.operands
    if x.ndim != 2 or y.ndim != 2 or x.dtype.kind in "biu" or x.itemsize != 2:
        return None
    (a,), (b,) = call.attrs["contract"] if _length(call) else ((0,), (0,))
    rows, columns = np.moveaxis(x, a, 0), np.moveaxis(y, b, 0)
    total = np.zeros((rows.shape[1], columns.shape[1]), x.dtype)
    for row, column in zip(rows, columns, strict=True):
        total = (total + np.multiply.outer(row, column).astype(x.dtype)).astype(x.dtype)
    return total.astype(call.dtype)


def last_row(call: OpCall) -> Array | None:
    """The last row of results, where rows fill no tile, is not written."""
    if call.right.ndim < 2 or call.right.shape[-2] % 8 == 0:
        return None
    wrong = call.right
    wrong[..., -1, :] = call.before[0][..., -1, :]
    return wrong


FAULTS: tuple[Fault, ...] = (
    op_fault("DO01", GROUP, "the last K % 4 products are dropped", "dot_general", tail_dropped),
    op_fault("DO01b", GROUP, "the last tile is skipped", "dot_general", tile_skipped),
    op_fault("DO03", GROUP, "f32 with mantissas of 10 bits", "dot_general", ten_bits),
    op_fault("DO05", GROUP, "every batch reads the first", "dot_general", first_batch),
    op_fault("DO06", GROUP, "i8 adds up in i16", "dot_general", short_accumulator),
    op_fault("DO06b", GROUP, "i8 adds up in i8", "dot_general", byte_accumulator),
    op_fault("DO07", GROUP, "the result is not zeroed first", "dot_general", not_zeroed),
    op_fault("DO20a", GROUP, "squares are read across", "dot_general", square_transposed),
    op_fault("DO21a", GROUP, "16-bit floats add up in 16 bits", "dot_general", narrow_accumulator),
    op_fault("DO22a", GROUP, "the last row is not written", "dot_general", last_row),
)

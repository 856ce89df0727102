"""Faults of dot products."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bringup.backend import Backend
from bringup.dtypes import f32
from bringup.graph import Graph, Instr, Value, rebuild
from bringup.ops.table import lookup
from bringup.passes.base import Pass
from bringup_selftest.corpus import (
    Array,
    Fault,
    OpCall,
    op_fault,
    with_ops,
    with_passes,
)

GROUP = "Dot products"
#: Products that one tile adds.
_TILE = 64
#: Where factors are packed: least sides, least multiplications, longest block of a sum.
_SIDE, _PACKED, _DEPTH = 16, 1 << 17, 256


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
    """f32 is multiplied with mantissas of 10 bits though nobody asked for that."""
    return None if call.attrs["precision"] == "tf32" else rounded(call)


def asked_bits(call: OpCall) -> Array | None:
    """What a right device may do: f32 with mantissas of 10 bits where that is asked for."""
    return rounded(call) if call.attrs["precision"] == "tf32" else None


def eight_bits(call: OpCall) -> Array | None:
    """Where 10 bits are asked for, 7 are used, those of bf16."""
    return rounded(call, 7) if call.attrs["precision"] == "tf32" else None


def rounded(call: OpCall, bits: int = 10) -> Array | None:
    """The product of f32 whose mantissas are rounded to so many bits."""
    if call.operands[0].dtype != np.float32:
        return None
    kept = np.uint32(0xFFFFFFFF << (23 - bits) & 0xFFFFFFFF)
    half = np.uint32(1 << (22 - bits))
    operands = [
        np.where(np.isfinite(x), ((x.view(np.uint32) + half) & kept).view(np.float32), x)
        for x in call.operands
    ]
    return call.reference(*operands)


def _precisions_merged(graph: Graph) -> Graph:
    """Every product of a graph is computed as the least exact of them."""
    products = [i for i in graph.instrs if i.op.name == "dot_general"]
    if all(i.attrs["precision"] == "highest" for i in products):
        return graph

    def rewrite(instr: Instr, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        dtypes = {instr.attrs.get("accumulate"), *(x.dtype for x in operands)}
        if instr.op.name != "dot_general" or dtypes != {f32}:
            return None
        return (lookup("dot_general")(*operands, **{**instr.attrs, "precision": "tf32"}),)

    return rebuild(graph, rewrite)


def _merged(backend: Backend) -> Backend:
    """A device that rounds where that is asked for, and a pass that asks too often."""
    careless = Pass("precisions", "anything -> the least precision", _precisions_merged)
    return with_passes(careless)(with_ops({"dot_general": asked_bits})(backend))


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


def in_order(call: OpCall) -> Array | None:
    """Contracted dimensions are paired in the order in which they stand."""
    lhs, rhs = (tuple(sorted(side)) for side in call.attrs["contract"])
    shapes = [x.shape for x in call.operands]
    if [shapes[0][d] for d in lhs] != [shapes[1][d] for d in rhs]:
        return None
    return call.reference(*call.operands, contract=(lhs, rhs))


def _packed(call: OpCall) -> bool:
    """Whether a product is so large that its factors are packed first."""
    if _length(call) < _SIDE or call.right.ndim < 2:
        return False
    rows, columns = call.right.shape[-2:]
    products: int = _length(call) * rows * columns
    return min(rows, columns) >= _SIDE and products >= _PACKED


def never_computed(call: OpCall) -> Array | None:
    """Packed products are not computed: what was in memory stays."""
    return call.before[0] if _packed(call) else None


def last_block_alone(call: OpCall) -> Array | None:
    """Of packed products a block of the sum overwrites the one before it."""
    k = _length(call)
    if not _packed(call) or k <= _DEPTH:
        return None
    last = range((k - 1) // _DEPTH * _DEPTH, k)
    (a,), (b,) = call.attrs["contract"]
    x, y = call.operands
    return call.reference(np.take(x, last, axis=a), np.take(y, last, axis=b))


def panel_kept(call: OpCall) -> Array | None:
    """Packed columns past 128 are those of the panel before."""
    columns = call.right.shape[-1] if call.right.ndim else 0
    if not _packed(call) or columns <= 128:
        return None
    return np.take(call.right, [n if n < 128 else n - 128 for n in range(columns)], axis=-1)


def batch_packed_once(call: OpCall) -> Array | None:
    """Columns are packed for the first of a batch alone."""
    return first_batch(call) if _packed(call) else None


def few_keys(call: OpCall) -> Array | None:
    """Attention goes along the first 128 keys."""
    query, key, value, *bias = call.operands
    if key.shape[-2] <= 128 or call.attrs["causal"]:
        return None
    return call.reference(query, key[..., :128, :], value[..., :128, :], *(
        b if b.shape[-1] == 1 else b[..., :128] for b in bias
    ))  # fmt: skip


FAULTS: tuple[Fault, ...] = (
    op_fault("DO30a", GROUP, "contracted dimensions are paired in order", "dot_general", in_order),
    op_fault("DO01", GROUP, "the last K % 4 products are dropped", "dot_general", tail_dropped),
    op_fault("DO01b", GROUP, "the last tile is skipped", "dot_general", tile_skipped),
    op_fault("DO03", GROUP, "f32 with mantissas of 10 bits", "dot_general", ten_bits),
    op_fault("DO03a", GROUP, "tf32 with mantissas of 7 bits", "dot_general", eight_bits),
    Fault("DO03b", GROUP, "pass", "one product asks for tf32, and all get it", _merged),
    op_fault("DO05", GROUP, "every batch reads the first", "dot_general", first_batch),
    op_fault("DO06", GROUP, "i8 adds up in i16", "dot_general", short_accumulator),
    op_fault("DO06b", GROUP, "i8 adds up in i8", "dot_general", byte_accumulator),
    op_fault("DO07", GROUP, "the result is not zeroed first", "dot_general", not_zeroed),
    op_fault("DO20a", GROUP, "squares are read across", "dot_general", square_transposed),
    op_fault("DO21a", GROUP, "16-bit floats add up in 16 bits", "dot_general", narrow_accumulator),
    op_fault("DO22a", GROUP, "the last row is not written", "dot_general", last_row),
    op_fault("DO23a", GROUP, "packed products are not computed", "dot_general", never_computed),
    op_fault("DO24a", GROUP, "blocks of sums are not added", "dot_general", last_block_alone),
    op_fault("DO25a", GROUP, "columns past 128 are others", "dot_general", panel_kept),
    op_fault("DO26a", GROUP, "only the first batch is packed", "dot_general", batch_packed_once),
    op_fault("DO27a", GROUP, "attention sees 128 keys", "attention", few_keys),
)

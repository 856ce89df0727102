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
    Faults,
    OpCall,
    with_ops,
    with_passes,
)

FAULTS = Faults("Dot products")
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


@FAULTS.op("DO01", "the last K % 4 products are dropped", "dot_general")
def tail_dropped(call: OpCall) -> Array | None:
    k = _length(call)
    return _shorter(call, k - k % 4) if k > 4 and k % 4 else None


@FAULTS.op("DO01b", "the last tile is skipped", "dot_general")
def tile_skipped(call: OpCall) -> Array | None:
    k = _length(call)
    return _shorter(call, (k - 1) // _TILE * _TILE) if k > _TILE else None


def asked_bits(call: OpCall) -> Array | None:
    """What a right device may do: f32 with mantissas of 10 bits where that is asked for."""
    return rounded(call) if call.attrs["precision"] == "tf32" else None


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


@FAULTS.op("DO05", "every batch reads the first", "dot_general")
def first_batch(call: OpCall) -> Array | None:
    dims = call.attrs["batch"][1]
    if not dims:
        return None
    x, y = call.operands
    return call.reference(x, np.take(y, np.zeros(y.shape[dims[0]], np.int64), axis=dims[0]))


@FAULTS.op("DO21a", "16-bit floats add up in 16 bits", "dot_general")
def narrow_accumulator(call: OpCall) -> Array | None:
    x, y = call.operands
    if x.ndim != 2 or y.ndim != 2 or x.dtype.kind in "biu" or x.itemsize != 2:
        return None
    (a,), (b,) = call.attrs["contract"] if _length(call) else ((0,), (0,))
    rows, columns = np.moveaxis(x, a, 0), np.moveaxis(y, b, 0)
    total = np.zeros((rows.shape[1], columns.shape[1]), x.dtype)
    for row, column in zip(rows, columns, strict=True):
        total = (total + np.multiply.outer(row, column).astype(x.dtype)).astype(x.dtype)
    return total.astype(call.dtype)


@FAULTS.op("DO22a", "the last row is not written", "dot_general")
def last_row(call: OpCall) -> Array | None:
    """The last row of results, where rows fill no tile, is not written."""
    if call.right.ndim < 2 or call.right.shape[-2] % 8 == 0:
        return None
    wrong = call.right
    wrong[..., -1, :] = call.before[0][..., -1, :]
    return wrong


@FAULTS.op("DO30a", "contracted dimensions are paired in order", "dot_general")
def in_order(call: OpCall) -> Array | None:
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


@FAULTS.op("DO24a", "blocks of sums are not added", "dot_general")
def last_block_alone(call: OpCall) -> Array | None:
    """Of packed products a block of the sum overwrites the one before it."""
    k = _length(call)
    if not _packed(call) or k <= _DEPTH:
        return None
    last = range((k - 1) // _DEPTH * _DEPTH, k)
    (a,), (b,) = call.attrs["contract"]
    x, y = call.operands
    return call.reference(np.take(x, last, axis=a), np.take(y, last, axis=b))


@FAULTS.op("DO25a", "columns past 128 are others", "dot_general")
def panel_kept(call: OpCall) -> Array | None:
    columns = call.right.shape[-1] if call.right.ndim else 0
    if not _packed(call) or columns <= 128:
        return None
    return np.take(call.right, [n if n < 128 else n - 128 for n in range(columns)], axis=-1)


@FAULTS.op("DO27a", "attention sees 128 keys", "attention")
def few_keys(call: OpCall) -> Array | None:
    query, key, value, *bias = call.operands
    if key.shape[-2] <= 128 or call.attrs["causal"]:
        return None
    return call.reference(query, key[..., :128, :], value[..., :128, :], *(
        b if b.shape[-1] == 1 else b[..., :128] for b in bias
    ))  # fmt: skip


@FAULTS.op("DO06", "i8 adds up in i16", "dot_general")
def short_accumulator(call: OpCall) -> Array | None:
    if call.operands[0].dtype != np.int8 or call.dtype.itemsize < 4:
        return None
    return np.clip(call.right, -32768, 32767).astype(call.dtype)


@FAULTS.op("DO06b", "i8 adds up in i8", "dot_general")
def byte_accumulator(call: OpCall) -> Array | None:
    if call.operands[0].dtype != np.int8 or call.dtype.itemsize < 2:
        return None
    return call.right.astype(np.int8).astype(call.dtype)


@FAULTS.op("DO20a", "squares are read across", "dot_general")
def square_transposed(call: OpCall) -> Array | None:
    x, y = call.operands
    if y.ndim != 2 or y.shape[0] != y.shape[1]:
        return None
    return call.reference(x, np.ascontiguousarray(y.T))


FAULTS.op("DO03", "f32 with mantissas of 10 bits", "dot_general")(
    lambda c: None if c.attrs["precision"] == "tf32" else rounded(c)
)
FAULTS.op("DO03a", "tf32 with mantissas of 7 bits", "dot_general")(
    lambda c: rounded(c, 7) if c.attrs["precision"] == "tf32" else None
)
FAULTS.add("DO03b", "one product asks for tf32, and all get it", _merged, kind="pass")
FAULTS.op("DO07", "the result is not zeroed first", "dot_general")(
    lambda c: np.asarray(c.right + c.before[0]) if _length(c) > _TILE else None
)
FAULTS.op("DO23a", "packed products are not computed", "dot_general")(
    lambda c: c.before[0] if _packed(c) else None
)
FAULTS.op("DO26a", "only the first batch is packed", "dot_general")(
    lambda c: first_batch(c) if _packed(c) else None
)

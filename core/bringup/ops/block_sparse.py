"""The block_sparse_dot row: products with matrices of which only some blocks are stored.

Where blocks stand is data, not an attribute, so that one program serves every pattern of a size and
caches hold it once; a pattern that is constant is folded like any constant.  It is a list of rows
and of columns in any order, which has no padding and no invalid state, and which exchanged is the
list of the transposed matrix: the gradient by x is the same row, as fast as the product.  A device
that wants blocks sorted by column, or tables of equal length, makes them of the list once for each
product, as the decomposition does; the two promises bound the tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup.dtypes import FLOATS, Precision, i32
from bringup.errors import OpTypeError
from bringup.graph import Value
from bringup.ops import build
from bringup.ops._checks import is_int, listed, one_of, precision_attr, precision_column
from bringup.ops._numeric import Array, via_wider
from bringup.ops.batching import Flags
from bringup.ops.build import rows
from bringup.ops.special_values import Special
from bringup.ops.table import (
    DERIVED,
    Attr,
    Attrs,
    Cotangents,
    Domain,
    Kind,
    Trait,
    Types,
    define,
)
from bringup.types import TensorType


def _infer(operands: Types, attrs: Attrs) -> TensorType:
    x, blocks, *places = operands
    one_of("block_sparse_dot", x, FLOATS)
    if blocks.dtype is not x.dtype or any(p.dtype is not i32 for p in places):
        raise OpTypeError(
            f"block_sparse_dot: dtypes do not fit: {listed(operands)}",
            fix=f"convert blocks to {x.dtype}, rows and columns to i32",
        )
    if x.rank < 1 or blocks.rank != 3 or any(p.shape != blocks.shape[:1] for p in places):
        raise OpTypeError(
            f"block_sparse_dot: shapes do not fit: {listed(operands)}",
            fix="give x (…, k), blocks (n, height, width), rows and columns (n,)",
        )
    features = attrs["features"]
    _, height, width = blocks.shape
    if not is_int(features) or features < 0 or not height or not width:
        raise OpTypeError(
            f"block_sparse_dot: {features!r} features of blocks {blocks}",
            fix="give an int of 0 or more, and blocks with elements",
        )
    if x.shape[-1] % height or features % width:
        raise OpTypeError(
            f"block_sparse_dot: blocks of {height} × {width} do not divide"
            f" {x.shape[-1]} × {features}: {listed(operands)}",
            fix="choose blocks that divide both sizes, or pad with zeros",
        )
    for key in ("per_row", "per_column"):
        if not is_int(attrs[key]) or attrs[key] < 0:
            raise OpTypeError(
                f"block_sparse_dot: {key}={attrs[key]!r} is no number of {blocks}",
                fix="give an int of 0 or more, or leave it out",
            )
    precision_attr("block_sparse_dot", operands[:2], attrs)
    return x.with_shape((*x.shape[:-1], features))


def _fill(operands: Types, attrs: Attrs) -> Attrs:
    count = operands[1].shape[0] if operands[1].rank else 0
    return {key: attrs.get(key, count) for key in ("per_row", "per_column")}


@via_wider
def _reference(
    x: Array,
    blocks: Array,
    rows_: Array,
    columns: Array,
    *,
    features: int,
    **_: Any,
) -> Array:
    _, height, width = blocks.shape
    lead = x.shape[:-1]
    parts = np.reshape(x, (math.prod(lead), x.shape[-1] // height, height))
    total = np.zeros((parts.shape[0], features // width, width), x.dtype)
    # The places are floats here, like all operands, and still whole numbers.
    for block, row, column in zip(blocks, rows_.astype(int), columns.astype(int), strict=True):
        if 0 <= row < parts.shape[1] and 0 <= column < total.shape[1]:
            total[:, column] += np.matmul(parts[:, row], block)
    return total.reshape((*lead, features))


class _Operands:
    """The operands as matrices of blocks, with the places of the blocks that count.

    inputs: x as ``(m, block rows, height)``.  row, column: of each block; where either is out of
    range, both are the number of block rows and columns, beyond the last.
    """

    def __init__(self, x: Value, blocks: Value, at: tuple[Value, Value], features: int) -> None:
        self.count, self.height, self.width = blocks.shape
        self.lead = x.shape[:-1]
        self.across, self.down = features // self.width, x.shape[-1] // self.height
        self.inputs = split(x, self.height)
        live = rows.and_(_inside(at[0], self.down), _inside(at[1], self.across))
        self.row = rows.select(live, at[0], build.like(at[0], self.down))
        self.column = rows.select(live, at[1], build.like(at[1], self.across))


def split(x: Value, width: int) -> Value:
    """``(…, k)`` as ``(m, k / width, width)``."""
    return build.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1] // width, width))


def _inside(index: Value, count: int) -> Value:
    low = build.compare("ge", index, build.zeros_like(index))
    return rows.and_(low, build.compare("lt", index, build.like(index, count)))


def _picked(x: Value, indices: Value, dim: int) -> Value:
    """The entries of one dimension at places of any shape; zeros where a place is out of range."""
    sizes = tuple(1 if d == dim else n for d, n in enumerate(x.shape))
    rank = len(indices.shape)
    before, after = range(dim), range(dim + rank, len(x.shape) - 1 + rank)
    return rows.gather(
        x, indices, offset=(*before, *after), index_map=(dim,), index_dim=rank,
        collapsed=(dim,), sizes=sizes, mode="fill",
    )  # fmt: skip


def _decompose(
    x: Value,
    blocks: Value,
    rows_: Value,
    columns: Value,
    *,
    features: int,
    per_row: int,
    per_column: int,
    precision: Precision,
) -> Value:
    """A table of so many places for each block column, filled up with zeros; one dot over them."""
    del per_row
    slots = min(per_column, blocks.shape[0])
    result = x.type.with_shape((*x.shape[:-1], features))
    if not result.size or not x.type.size or not slots:
        return build.splat(0, result)
    at = _Operands(x, blocks, (rows_, columns), features)
    order = rows.iota(type=columns.type, dim=0)
    by_column: Any = rows.sort(at.column, at.row, order, dim=0, num_keys=1)
    column, row, number = by_column
    # How many blocks stand in the columns before each one, and in these and itself.
    pairs = TensorType((at.across, at.count), i32)
    other, each = build.broadcast_to(column, pairs.shape, (1,)), rows.iota(type=pairs, dim=0)
    first, end = (
        build.sum_(build.convert(build.compare(how, other, each), i32), (1,))
        for how in ("lt", "le")
    )
    table = TensorType((at.across, slots), i32)
    first, end = (build.broadcast_to(v, table.shape, (0,)) for v in (first, end))
    place = rows.add(first, rows.iota(type=table, dim=1))
    live = build.compare("lt", place, end)

    def listed_at(values: Value, none: int) -> Value:
        return rows.select(live, _picked(values, place, 0), build.splat(none, table))

    x_blocks = _picked(at.inputs, listed_at(row, at.down), 1)
    w_blocks = _picked(blocks, listed_at(number, at.count), 0)
    dot = rows.dot_general(
        x_blocks, w_blocks, batch=((1,), (0,)), contract=((2, 3), (1, 2)), precision=precision
    )
    return build.reshape(build.transpose(dot, (1, 0, 2)), result.shape)


def _vjp(
    ct: Value,
    _result: Value,
    x: Value,
    blocks: Value,
    rows_: Value,
    columns: Value,
    *,
    features: int,
    per_row: int,
    per_column: int,
    precision: Precision,
) -> Cotangents:
    by_x = rows.block_sparse_dot(
        ct, build.transpose(blocks, (0, 2, 1)), columns, rows_, features=x.shape[-1],
        per_row=per_column, per_column=per_row, precision=precision,
    )  # fmt: skip
    if not x.type.size or not ct.type.size:
        return by_x, build.zeros_like(blocks), None, None
    at = _Operands(x, blocks, (rows_, columns), features)
    x_blocks = _picked(at.inputs, at.row, 1)
    ct_blocks = _picked(split(ct, at.width), at.column, 1)
    by_blocks = rows.dot_general(
        x_blocks, ct_blocks, batch=((1,), (1,)), contract=((0,), (0,)), precision=precision
    )
    return by_x, by_blocks, None, None


def _batch(operands: Sequence[Value], batched: Flags, _size: int, /, **attrs: Any) -> Value | None:
    # Examples of x are more rows of it; matrices of their own go through the decomposition.
    return None if any(batched[1:]) else rows.block_sparse_dot(*operands, **attrs)


def _cell(x: str, blocks: str, rows_: str, columns: str, result: str, features: int = 2) -> Special:
    return Special(
        (x, blocks, f"i32:{rows_}", f"i32:{columns}"), result, attrs=(("features", features),)
    )


block_sparse_dot = define(
    name="block_sparse_dot",
    arity=4,
    kind=Kind.COMPOSITE,
    doc=(
        "x (…, k) times a matrix (k, features) that is zero but for blocks (n, height, width): "
        "block i stands in block row rows[i] and block column columns[i], both i32, in any "
        "order; blocks of one place add up, and one whose row or column is out of range does "
        "not count. An element of the result is the sum of products over the blocks of its "
        "block column, with the elements of x in their block rows and no others; f16 and bf16 "
        "are summed in f32 and rounded once. Without blocks it is 0. Where blocks stand is "
        "data and how many are there is known, so one program serves every pattern of a size, "
        "and its gradient by x is the row itself with rows and columns exchanged. What a NaN "
        "or ±inf of a block that does not count does is unspecified, and what a block row or "
        "column with more blocks than promised gives."
    ),
    attrs=(
        Attr("features", "int", "columns of the matrix"),
        Attr("per_row", "int", "promise: no block row has more blocks; n if left out"),
        Attr("per_column", "int", "promise: no block column has more blocks; n if left out"),
        precision_column(),
    ),
    infer=_infer,
    fill=_fill,
    reference=_reference,
    vjp=_vjp,
    dtypes=FLOATS,
    special=(
        _cell("[[1, 2]]", "[[[3]], [[4]], [[5]]]", "[1, 0, 1]", "[0, 1, 0]", "[[16, 4]]"),
        _cell("[[1, 2]]", "[[[3]], [[4]]]", "[0, 2]", "[-1, 0]", "[[0.0, 0.0]]"),
        _cell("[[1, 2]]", "[[[3]], [[4]]]", "[INT_MIN, 1]", "[0, INT_MAX]", "[[0.0, 0.0]]"),
        _cell("[[inf, 2]]", "[[[3]]]", "[1]", "[0]", "[[6, 0.0]]"),
        _cell("[[inf, 2]]", "[[[0.0]]]", "[0]", "[1]", "[[0.0, nan]]"),
        _cell("[nan]", "[[[1, 2]]]", "[0]", "[0]", "[nan, nan]"),
    ),
    # Some places are before the first and some beyond the last.
    domain=Domain((None, None, (-1.0, 4.0))),
    traits=frozenset({Trait.EXPENSIVE}),
    accuracy=DERIVED,
    decompose=_decompose,
    batch=_batch,
)

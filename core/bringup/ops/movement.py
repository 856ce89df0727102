"""Movement rows: index maps that compute nothing and keep every bit, NaN payloads included."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bringup.dtypes import STORED, bool_
from bringup.errors import OpTypeError
from bringup.graph import Value
from bringup.graph.index import ZERO, Bound, Expr, Index, Mask, Source, flatten, unflatten
from bringup.ops import build
from bringup.ops._checks import dim_of, dims_of, ints, listed
from bringup.ops._numeric import Array
from bringup.ops.batching import Flags, shifted, shifting, spread
from bringup.ops.build import rows
from bringup.ops.special_values import Special, cells
from bringup.ops.table import Attr, Attrs, Cotangents, Kind, Trait, Types, define
from bringup.types import TensorType

Ints = tuple[int, ...]


def _target(name: str, operand: TensorType, attrs: Attrs) -> Ints:
    shape = ints(name, attrs, "shape")
    if any(n < 0 for n in shape):
        raise OpTypeError(
            f"{name}: shape {shape} for {operand} has a negative size",
            fix="give every size; the IR infers none",
        )
    return shape


def _infer_reshape(operands: Types, attrs: Attrs) -> TensorType:
    (operand,) = operands
    shape = _target("reshape", operand, attrs)
    if math.prod(shape) != operand.size:
        raise OpTypeError(
            f"reshape: {operand} has {operand.size} elements, shape {shape} {math.prod(shape)}",
            fix=f"give a shape of {operand.size} elements",
        )
    return operand.with_shape(shape)


def _reshape_reference(x: Array, *, shape: Ints) -> Array:
    return np.reshape(x, shape)


def _reshape_vjp(ct: Value, _result: Value, x: Value, *, shape: Ints) -> Cotangents:
    return (build.reshape(ct, x.shape),)


def _reshape_batch(operands: Sequence[Value], _batched: Flags, size: int, *, shape: Ints) -> Value:
    return rows.reshape(operands[0], shape=(size, *shape))


def _reshape_index(index: Index, _mask: Mask, x: Value, *, shape: Ints) -> list[Source]:
    before = [d for d, n in enumerate(x.shape) if n != 1]
    after = [d for d, n in enumerate(shape) if n != 1]
    if [shape[d] for d in after] == [x.shape[d] for d in before]:
        mapped = dict(zip(before, (index[d] for d in after), strict=True))
        return [Source(0, tuple(mapped.get(d, ZERO) for d in range(len(x.shape))))]
    return [Source(0, unflatten(flatten(index, shape), x.shape))]


reshape = define(
    name="reshape",
    arity=1,
    kind=Kind.MOVEMENT,
    doc="The same elements in row-major order under another shape of the same size.",
    attrs=(Attr("shape", "ints", "shape of the result"),),
    infer=_infer_reshape,
    reference=_reshape_reference,
    index_map=_reshape_index,
    vjp=_reshape_vjp,
    batch=_reshape_batch,
    traits=frozenset({Trait.ADAPTS}),
    dtypes=STORED,
    special=(
        *cells(
            "-nan -> [-nan]",
            shape=(1,),
        ),
        *cells(
            "[-0.0, 1] -> [-0.0, 1]",
            shape=(2,),
        ),
    ),
    tier=0,
)


def _infer_transpose(operands: Types, attrs: Attrs) -> TensorType:
    (operand,) = operands
    order = ints("transpose", attrs, "permutation", operand.rank)
    if sorted(order) != list(range(operand.rank)):
        raise OpTypeError(
            f"transpose: {order} does not permute the dimensions of {operand}",
            fix=f"name each of 0 … {operand.rank - 1} once",
        )
    return operand.with_shape(tuple(operand.shape[d] for d in order))


def _transpose_reference(x: Array, *, permutation: Ints) -> Array:
    return np.transpose(x, permutation)


def _transpose_vjp(ct: Value, _result: Value, _x: Value, *, permutation: Ints) -> Cotangents:
    return (build.transpose(ct, np.argsort(permutation).tolist()),)


def _transpose_batch(
    operands: Sequence[Value], _batched: Flags, _size: int, *, permutation: Ints
) -> Value:
    return rows.transpose(operands[0], permutation=(0, *shifted(permutation)))


def _transpose_index(index: Index, _mask: Mask, x: Value, *, permutation: Ints) -> list[Source]:
    table = dict(zip(permutation, index, strict=True))
    return [Source(0, tuple(table[d] for d in range(len(x.shape))))]


transpose = define(
    name="transpose",
    arity=1,
    kind=Kind.MOVEMENT,
    doc="Dimension i of the result is dimension permutation[i] of x.",
    attrs=(Attr("permutation", "ints", "operand dimension of each result dimension"),),
    infer=_infer_transpose,
    reference=_transpose_reference,
    index_map=_transpose_index,
    vjp=_transpose_vjp,
    batch=_transpose_batch,
    traits=frozenset({Trait.ADAPTS}),
    dtypes=STORED,
    special=cells(
        "[-nan, -0.0] -> [-nan, -0.0]",
        permutation=(0,),
    ),
    tier=0,
)


def _infer_broadcast(operands: Types, attrs: Attrs) -> TensorType:
    (operand,) = operands
    name = "broadcast_in_dim"
    result = operand.with_shape(_target(name, operand, attrs))
    dims = dims_of(name, ints(name, attrs, "dims", operand.rank), result)
    for i, d in enumerate(dims):
        if operand.shape[i] not in (1, result.shape[d]):
            raise OpTypeError(
                f"{name}: dimension {i} of {operand} does not spread over dimension {d} of"
                f" {result}",
                fix=f"a size must be 1 or {result.shape[d]}; check shape and dims",
            )
    return result


def _broadcast_reference(x: Array, *, shape: Ints, dims: Ints) -> Array:
    sizes = [1] * len(shape)
    for n, d in zip(np.shape(x), dims, strict=True):
        sizes[d] = n
    return np.broadcast_to(np.reshape(x, sizes), shape)


def _broadcast_vjp(ct: Value, _result: Value, x: Value, *, shape: Ints, dims: Ints) -> Cotangents:
    same = {d for n, d in zip(x.shape, dims, strict=True) if n == shape[d]}
    spread = tuple(d for d in range(len(shape)) if d not in same)
    return (build.reshape(build.sum_(ct, spread), x.shape),)


def _broadcast_batch(
    operands: Sequence[Value], _batched: Flags, size: int, *, shape: Ints, dims: Ints
) -> Value:
    (x,) = operands
    return rows.broadcast_in_dim(x, shape=(size, *shape), dims=(0, *shifted(dims)))


def _broadcast_index(
    index: Index, _mask: Mask, x: Value, *, shape: Ints, dims: Ints
) -> list[Source]:
    del shape
    pairs = zip(x.shape, dims, strict=True)
    return [Source(0, tuple(ZERO if n == 1 else index[d] for n, d in pairs))]


broadcast_in_dim = define(
    name="broadcast_in_dim",
    arity=1,
    kind=Kind.MOVEMENT,
    doc=(
        "x repeated: dimension i of x is dimension dims[i] of the result and has its size or "
        "1; along all others x is copied."
    ),
    attrs=(
        Attr("shape", "ints", "shape of the result"),
        Attr("dims", "ints", "result dimension of each operand dimension, increasing"),
    ),
    infer=_infer_broadcast,
    reference=_broadcast_reference,
    index_map=_broadcast_index,
    vjp=_broadcast_vjp,
    batch=_broadcast_batch,
    traits=frozenset({Trait.ADAPTS}),
    dtypes=STORED,
    special=(
        *cells(
            "-nan -> [-nan, -nan]",
            shape=(2,),
            dims=(),
        ),
        *cells(
            "[-0.0] -> [-0.0, -0.0]",
            shape=(2,),
            dims=(0,),
        ),
        *cells(
            "[7] -> [] (int uint)",
            shape=(0,),
            dims=(0,),
        ),
    ),
    tier=0,
)


def _steps(start: int, limit: int, stride: int) -> int:
    """How many of start, start + stride, … lie before limit."""
    return max(0, -((start - limit) // stride))


def _infer_slice(operands: Types, attrs: Attrs) -> TensorType:
    (operand,) = operands
    columns = [ints("slice", attrs, key, operand.rank) for key in ("start", "limit", "stride")]
    for d, (n, start, limit, stride) in enumerate(zip(operand.shape, *columns, strict=True)):
        if stride == 0:
            raise OpTypeError(
                f"slice: stride 0 in dimension {d} of {operand}", fix="use a positive or negative"
            )
        low, high = (0, n) if stride > 0 else (-1, n - 1)
        first, last = (start, limit) if stride > 0 else (limit, start)
        if not low <= first <= last <= high:
            relation = "start <= limit" if stride > 0 else "limit <= start"
            raise OpTypeError(
                f"slice: start {start}, limit {limit}, stride {stride} do not lie in dimension {d}"
                f" of {operand}",
                fix=f"keep both in {low} … {high} with {relation}",
            )
    return operand.with_shape(tuple(map(_steps, *columns)))


def _slice_fill(operands: Types, _attrs: Attrs) -> Attrs:
    return {"stride": (1,) * operands[0].rank}


def _slice_reference(x: Array, *, start: Ints, limit: Ints, stride: Ints) -> Array:
    x = np.asarray(x)
    for d, (first, bound, step) in enumerate(zip(start, limit, stride, strict=True)):
        picked = range(first, bound, step)
        index = slice(first, bound if bound >= 0 else None, step) if picked else slice(0, 0)
        x = x[(slice(None),) * d + (index,)]
    return x


def _slice_vjp(
    ct: Value, result: Value, x: Value, *, start: Ints, limit: Ints, stride: Ints
) -> Cotangents:
    if result.type.size == 0:
        return (build.zeros_like(x),)
    ct = build.reverse(ct, [d for d, step in enumerate(stride) if step < 0])
    lasts = [s + (n - 1) * k for s, n, k in zip(start, result.shape, stride, strict=True)]
    lo = [min(pair) for pair in zip(start, lasts, strict=True)]
    hi = [n - 1 - max(ends) for n, *ends in zip(x.shape, start, lasts, strict=True)]
    # One element has no gap after it; a huge stride would still count as padding.
    gaps = [abs(k) - 1 if n > 1 else 0 for n, k in zip(result.shape, stride, strict=True)]
    return (build.pad(ct, 0, lo, hi, gaps),)


def _slice_batch(
    operands: Sequence[Value],
    _batched: Flags,
    size: int,
    *,
    start: Ints,
    limit: Ints,
    stride: Ints,
) -> Value:
    (x,) = operands
    return rows.slice(x, start=(0, *start), limit=(size, *limit), stride=(1, *stride))


def _slice_cell(operand: str, result: str, start: int, limit: int, stride: int) -> Special:
    attrs = (("start", (start,)), ("limit", (limit,)), ("stride", (stride,)))
    return Special((operand,), result, attrs=attrs)


def _slice_index(
    index: Index, _mask: Mask, _x: Value, *, start: Ints, limit: Ints, stride: Ints
) -> list[Source]:
    del limit
    steps = zip(index, start, stride, strict=True)
    return [Source(0, tuple(e * step + first for e, first, step in steps))]


slice_ = define(
    name="slice",
    arity=1,
    kind=Kind.MOVEMENT,
    doc=(
        "The elements start, start + stride, … before limit, in every dimension. A negative "
        "stride counts down to a limit that may be −1. Both ends lie inside the operand; "
        "nothing is clamped."
    ),
    attrs=(
        Attr("start", "ints", "first index of each dimension"),
        Attr("limit", "ints", "exclusive end of each dimension"),
        Attr("stride", "ints", "step of each dimension, not 0; 1 if left out"),
    ),
    infer=_infer_slice,
    fill=_slice_fill,
    reference=_slice_reference,
    index_map=_slice_index,
    vjp=_slice_vjp,
    batch=_slice_batch,
    dtypes=STORED,
    special=(
        _slice_cell("[1, 2, 3, 4, 5]", "[2, 4]", 1, 5, 2),
        _slice_cell("[1, 2, 3, 4, 5]", "[1, 3]", 0, 4, 2),
        _slice_cell("[1, 2, 3, 4, 5]", "[5, 3, 1]", 4, -1, -2),
        _slice_cell("[1, 2, 3, 4, 5]", "[4, 2]", 3, 0, -2),
        _slice_cell("[1, 2, 3]", "[]", 3, 3, 1),
        _slice_cell("[1, 2, 3]", "[]", -1, -1, -1),
        _slice_cell("[1, -nan]", "[-nan]", 1, 2, 7),
    ),
    tier=0,
)


def _infer_pad(operands: Types, attrs: Attrs) -> TensorType:
    operand, value = operands
    if value.rank or value.dtype is not operand.dtype:
        raise OpTypeError(
            f"pad: the padding value of {operand} must be {operand.with_shape(())}, got {value}",
            fix=f"pass a 0-d value of dtype {operand.dtype}",
        )
    columns = [ints("pad", attrs, key, operand.rank) for key in ("lo", "hi", "interior")]
    if any(gap < 0 for gap in columns[2]):
        raise OpTypeError(
            f"pad: interior {columns[2]} of {operand} is negative",
            fix="crop with a strided slice instead",
        )
    lows, highs, gaps = columns
    shape = tuple(
        lo + hi + n + gap * max(n - 1, 0)
        for n, lo, hi, gap in zip(operand.shape, lows, highs, gaps, strict=True)
    )
    if any(n < 0 for n in shape):
        raise OpTypeError(
            f"pad: lo {lows} and hi {highs} crop more than {operand} has",
            fix="crop at most the whole dimension",
        )
    return operand.with_shape(shape)


def _pad_fill(operands: Types, _attrs: Attrs) -> Attrs:
    return {"interior": (0,) * operands[0].rank}


def _pad_reference(x: Array, value: Array, *, lo: Ints, hi: Ints, interior: Ints) -> Array:
    x = np.asarray(x)
    spread = [n + gap * max(n - 1, 0) for n, gap in zip(x.shape, interior, strict=True)]
    grown = [n + max(a, 0) + max(b, 0) for n, a, b in zip(spread, lo, hi, strict=True)]
    result = np.full(grown, value, dtype=x.dtype)
    inside = zip(spread, lo, interior, strict=True)
    result[tuple(slice(max(a, 0), max(a, 0) + n, gap + 1) for n, a, gap in inside)] = x
    kept = zip(grown, lo, hi, strict=True)
    return result[tuple(slice(max(-a, 0), n - max(-b, 0)) for n, a, b in kept)]


def _pad_vjp(
    ct: Value, _result: Value, x: Value, value: Value, *, lo: Ints, hi: Ints, interior: Ints
) -> Cotangents:
    spread = build.pad(ct, 0, [-n for n in lo], [-n for n in hi])
    strides = tuple(gap + 1 for gap in interior)
    whole = all(step == 1 for step in strides)
    origin = (0,) * len(strides)
    inner = (
        spread if whole else rows.slice(spread, start=origin, limit=spread.shape, stride=strides)
    )
    inside = build.pad(build.splat(True, x.type.with_dtype(bool_)), False, lo, hi, interior)
    outer = build.sum_(rows.select(inside, build.zeros_like(ct), ct), range(len(ct.shape)))
    return (inner, build.reshape(outer, value.shape))


def _pad_batch(
    operands: Sequence[Value],
    batched: Flags,
    size: int,
    *,
    lo: Ints,
    hi: Ints,
    interior: Ints,
) -> Value:
    x, value = operands
    plain = {"lo": (0, *lo), "hi": (0, *hi), "interior": (0, *interior)}
    if not batched[1]:
        return rows.pad(x, value, **plain)
    # One padding value per example is beyond the op: pad with anything, then choose.
    per_example = x.type if not batched[0] else x.type.with_shape(x.shape[1:])
    inside = build.splat(True, per_example.with_dtype(bool_))
    mask = spread(build.pad(inside, False, lo, hi, interior), size)
    x = x if batched[0] else spread(x, size)
    moved = rows.pad(x, build.splat(0, x.type.with_shape(())), **plain)
    return rows.select(mask, moved, build.broadcast_to(value, moved.shape, (0,)))


def _pad_cell(operand: str, value: str, result: str, lo: int, hi: int, gap: int) -> Special:
    attrs = (("lo", (lo,)), ("hi", (hi,)), ("interior", (gap,)))
    return Special((operand, value), result, attrs=attrs)


def _pad_index(
    index: Index, _mask: Mask, x: Value, _edge: Value, *, lo: Ints, hi: Ints, interior: Ints
) -> list[Source]:
    del hi
    bounds: list[Bound] = []
    inner: list[Expr] = []
    for e, n, before, gap in zip(index, x.shape, lo, interior, strict=True):
        step, shifted = gap + 1, e + -before
        bounds.append(Bound(shifted, 0, (n - 1) * step + 1 if n else 0))
        if step > 1:
            bounds.append(Bound(shifted % step, 0, 1))
        inner.append(shifted // step)
    needed = tuple(b for b in bounds if not b.always)
    edge = Source(1, ())
    if any(b.never for b in needed):
        return [edge]
    return [Source(0, tuple(inner), needed), edge] if needed else [Source(0, tuple(inner))]


pad = define(
    name="pad",
    arity=2,
    kind=Kind.MOVEMENT,
    doc=(
        "x with the 0-d padding value put before (lo), after (hi) and between (interior) its "
        "elements. Negative lo or hi crop, after the interior was added."
    ),
    attrs=(
        Attr("lo", "ints", "elements added before each dimension; negative crops"),
        Attr("hi", "ints", "elements added after each dimension; negative crops"),
        Attr("interior", "ints", "elements added between neighbours; 0 if left out"),
    ),
    infer=_infer_pad,
    fill=_pad_fill,
    reference=_pad_reference,
    index_map=_pad_index,
    vjp=_pad_vjp,
    batch=_pad_batch,
    dtypes=STORED,
    special=(
        _pad_cell("[1, 2]", "9", "[9, 1, 9, 9, 2, 9, 9]", 1, 2, 2),
        _pad_cell("[1, 2, 3]", "9", "[9, 2, 9]", -1, -1, 1),
        _pad_cell("[1, 2, 3]", "9", "[3, 9]", -2, 1, 0),
        _pad_cell("[]", "-nan", "[-nan, -nan]", 1, 1, 3),
        _pad_cell("[-nan]", "-0.0", "[-0.0, -nan]", 1, 0, 0),
    ),
    tier=0,
)


def _infer_concatenate(operands: Types, attrs: Attrs) -> TensorType:
    first = operands[0]
    dim = dim_of("concatenate", attrs, first.rank, first)
    for other in operands[1:]:
        rest = [t.shape[:dim] + t.shape[dim + 1 :] for t in (first, other)]
        if other.dtype is not first.dtype or other.rank != first.rank or rest[0] != rest[1]:
            raise OpTypeError(
                f"concatenate: types differ outside dim {dim}: {listed(operands)}",
                fix=f"give all operands dtype {first.dtype} and equal sizes but in dim {dim}",
            )
    total = sum(t.shape[dim] for t in operands)
    return first.with_shape((*first.shape[:dim], total, *first.shape[dim + 1 :]))


def _concatenate_reference(*operands: Array, dim: int) -> Array:
    return np.concatenate(operands, axis=dim)


def _concatenate_vjp(ct: Value, _result: Value, *operands: Value, dim: int) -> Cotangents:
    parts, start = [], 0
    for operand in operands:
        limit = start + operand.shape[dim]
        parts.append(build.slice_dim(ct, dim, start, limit))
        start = limit
    return tuple(parts)


def _concatenate_decompose(*operands: Value, dim: int) -> Value:
    """Pad every operand to the full size, then select by a mask padded alike."""
    total, rank = sum(v.shape[dim] for v in operands), len(operands[0].shape)
    result, start = None, 0
    for operand in operands:
        lo, hi = [0] * rank, [0] * rank
        lo[dim], hi[dim] = start, total - start - operand.shape[dim]
        part = build.pad(operand, 0, lo, hi)
        if result is not None:
            mask = build.pad(build.splat(True, operand.type.with_dtype(bool_)), False, lo, hi)
            part = rows.select(mask, part, result)
        result, start = part, start + operand.shape[dim]
    assert result is not None
    return result


def _concatenate_index(index: Index, _mask: Mask, *operands: Value, dim: int) -> list[Source]:
    sources: list[Source] = []
    offset = 0
    for i, operand in enumerate(operands):
        n = operand.shape[dim]
        bound = Bound(index[dim], offset, offset + n)
        if n and not bound.never:
            shifted = tuple(e + -offset if d == dim else e for d, e in enumerate(index))
            sources.append(Source(i, shifted, () if bound.always else (bound,)))
            if bound.always:
                break
        offset += n
    # Of empty operands no element exists, and none is asked for.
    return sources or [Source(0, index)]


concatenate = define(
    name="concatenate",
    arity=None,
    kind=Kind.MOVEMENT,
    doc="The operands one after the other along a dimension; some may be empty there.",
    attrs=(Attr("dim", "int", "the dimension along which sizes may differ"),),
    infer=_infer_concatenate,
    reference=_concatenate_reference,
    index_map=_concatenate_index,
    vjp=_concatenate_vjp,
    dtypes=STORED,
    special=cells(
        "[1, -nan], [], [-0.0] -> [1, -nan, -0.0]; [], [] -> []",
        dim=0,
    ),
    decompose=_concatenate_decompose,
    batch=shifting("concatenate", "dim"),
)

"""The attention row: sums of values weighed by the softmax of scaled products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup.dtypes import FLOATS, Precision, i64
from bringup.errors import OpTypeError
from bringup.graph import Value
from bringup.ops import _elementary as elementary
from bringup.ops import build
from bringup.ops._checks import listed, one_of, precision_attr, precision_column
from bringup.ops._numeric import Array, via_wider
from bringup.ops.batching import Flags
from bringup.ops.build import rows
from bringup.ops.special_values import cells
from bringup.ops.table import DERIVED, Attr, Attrs, Cotangents, Kind, Trait, Types, define
from bringup.types import TensorType


def _infer(operands: Types, attrs: Attrs) -> TensorType:
    one_of("attention", operands[0], FLOATS)
    if len(operands) not in (3, 4):
        raise OpTypeError(
            f"attention: takes 3 or 4 operands, got {len(operands)}",
            fix="pass queries, keys, values and perhaps a bias",
        )
    query, key, value = operands[:3]
    if any(other.dtype is not query.dtype for other in operands[1:]):
        raise OpTypeError(
            f"attention: operand dtypes differ: {listed(operands)}",
            fix=f"convert all of them to {query.dtype}",
        )
    lead = query.shape[:-2]
    fits = query.rank >= 2 and key.rank == value.rank == query.rank
    fits = fits and key.shape[:-2] == value.shape[:-2] == lead
    if not fits or key.shape[-1] != query.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise OpTypeError(
            f"attention: shapes do not fit: {listed(operands)}",
            fix="give queries (…, n, d), keys (…, m, d) and values (…, m, v), … alike",
        )
    if len(operands) == 4:
        _check_bias(operands, (*lead, query.shape[-2], key.shape[-2]))
    if not isinstance(attrs["causal"], bool):
        raise OpTypeError(f"attention: causal {attrs['causal']!r} is no bool", fix="use True")
    precision_attr("attention", operands[:3], attrs)
    return query.with_shape((*lead, query.shape[-2], value.shape[-1]))


def _check_bias(operands: Types, scores: tuple[int, ...]) -> None:
    bias = operands[3].shape
    if len(bias) != len(scores) or any(n not in (1, m) for n, m in zip(bias, scores, strict=True)):
        raise OpTypeError(
            f"attention: the bias does not stretch to the scores {scores}: {listed(operands)}",
            fix="make each of its sizes that of the scores or 1",
        )


@via_wider
def _reference(
    query: Array,
    key: Array,
    value: Array,
    *bias: Array,
    scale: float,
    causal: bool,
    precision: Precision = "highest",
) -> Array:
    scores = np.matmul(query, np.swapaxes(key, -1, -2)) * query.dtype.type(scale)
    for each in bias:
        scores = scores + each
    if causal:
        n, m = scores.shape[-2:]
        seen = np.arange(m) <= np.arange(n)[:, None] + (m - n)
        scores = np.where(seen, scores, scores.dtype.type(-np.inf))
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    powers = elementary.exp(scores - top)
    return np.asarray(np.matmul(powers / np.sum(powers, axis=-1, keepdims=True), value))


def _product(a: Value, b: Value, over: tuple[int, int], precision: Precision) -> Value:
    """Dimension ``over[0]`` of the last two of `a` against ``over[1]`` of `b`, in f32 at least."""
    lead = len(a.shape) - 2
    batch = tuple(range(lead))
    contract = ((lead + over[0],), (lead + over[1],))
    result = build.widened(build.splat(0, a.type.with_shape(()))).dtype
    attrs: dict[str, Any] = {"batch": (batch, batch), "contract": contract, "result": result}
    return rows.dot_general(a, b, **attrs, precision=precision)


def _weights(
    query: Value,
    key: Value,
    bias: tuple[Value, ...],
    scale: float,
    causal: bool,
    precision: Precision,
) -> Value:
    """How much of each value every query takes, in f32 at least."""
    scores = _product(query, key, (1, 1), precision)
    scores = rows.mul(scores, build.like(scores, scale))
    for each in bias:
        scores = rows.add(scores, build.broadcast_to(build.widened(each), scores.shape))
    rank = len(scores.shape)
    if causal:
        places = scores.type.with_dtype(i64)
        shift = build.splat(scores.shape[-1] - scores.shape[-2], places)
        last = rows.add(rows.iota(type=places, dim=rank - 2), shift)
        seen = build.compare("le", rows.iota(type=places, dim=rank - 1), last)
        scores = rows.select(seen, scores, build.like(scores, -np.inf))
    return rows.softmax(scores, dims=(rank - 1,))


def _decompose(
    query: Value,
    key: Value,
    value: Value,
    *bias: Value,
    scale: float,
    causal: bool,
    precision: Precision,
) -> Value:
    weights = _weights(query, key, bias, scale, causal, precision)
    return build.convert(_product(weights, build.widened(value), (1, 0), precision), query.dtype)


def _vjp(
    ct: Value,
    result: Value,
    query: Value,
    key: Value,
    value: Value,
    *bias: Value,
    scale: float,
    causal: bool,
    precision: Precision,
) -> Cotangents:
    weights = _weights(query, key, bias, scale, causal, precision)
    ct, result, q, k, v = map(build.widened, (ct, result, query, key, value))
    last = len(ct.shape) - 1
    level = build.kept(build.sum_(rows.mul(ct, result), (last,)), (last,), weights.shape)
    slopes = rows.mul(weights, rows.sub(_product(ct, v, (1, 1), precision), level))
    inner = rows.mul(slopes, build.like(slopes, scale))
    factors = (inner, k, (1, 0)), (inner, q, (0, 0)), (weights, ct, (0, 0))
    found = [_product(*each, precision) for each in factors]
    for each in bias:
        dims = [d for d, n in enumerate(each.shape) if n != weights.shape[d]]
        found.append(build.reshape(build.sum_(slopes, dims), each.shape))
    pairs = zip(found, (query, key, value, *bias), strict=True)
    return tuple(build.convert(slope, operand.dtype) for slope, operand in pairs)


_PLAIN = (("scale", 1.0),)


def _batch(operands: Sequence[Value], batched: Flags, _size: int, /, **attrs: Any) -> Value | None:
    if not all(batched[:3]):
        return None  # the products of the decomposition need no copies of what is shared
    bias = [
        x if flag else build.reshape(x, (1, *x.shape))
        for x, flag in zip(operands[3:], batched[3:], strict=True)
    ]
    return rows.attention(*operands[:3], *bias, **attrs)


attention = define(
    name="attention",
    arity=None,
    kind=Kind.COMPOSITE,
    doc=(
        "softmax(scale · query·keyᵀ + bias)·value over the last two dimensions, the others "
        "running together; a bias of size 1 in a dimension stretches. causal: query i sees the "
        "keys up to i + (keys − queries), so the last query sees all. f16 and bf16 work in f32 "
        "and are rounded once. A query that sees no key gives NaN, or 0 where there is no key. "
        "What a hidden key's value of NaN or ±inf does is unspecified. precision is that of "
        "both products."
    ),
    attrs=(
        Attr("scale", "float", "factor of the products"),
        Attr("causal", "bool", "hide later keys", default=False),
        precision_column(),
    ),
    infer=_infer,
    reference=_reference,
    vjp=_vjp,
    dtypes=FLOATS,
    special=(
        *cells(
            "[[0.0]], [[1], [2]], [[2], [4]] -> [[3]]",
            scale=1.0,
        ),
        *cells(
            "[[0.0], [0.0]], [[1], [2]], [[2], [4]] -> [[2], [3]]",
            scale=1.0,
            causal=True,
        ),
        *cells(
            "[[1]], [[1], [2]], [[2], [4]], [[-inf, 1]] -> [[4]]; "
            "[[1]], [[1]], [[2]], [[-inf]] -> [[nan]]; [[nan]], [[1]], [[2]] -> [[nan]]",
            scale=1.0,
        ),
    ),
    traits=frozenset({Trait.EXPENSIVE}),
    accuracy=DERIVED,
    decompose=_decompose,
    batch=_batch,
)

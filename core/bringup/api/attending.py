"""Attention, as ``bringup.nn`` names it."""

from __future__ import annotations

import math

from bringup.api.apply import apply
from bringup.api.array import Array
from bringup.api.broadcasting import as_array, common_shape, convert, fit, spread
from bringup.api.defaults import default_float
from bringup.api.manipulation import reshape
from bringup.api.promotion import Operand, common
from bringup.dtypes import DType, Precision, bool_
from bringup.errors import OpTypeError
from bringup.graph import user_location
from bringup.types import TensorType


def attention(
    query: Operand,
    key: Operand,
    value: Operand,
    *,
    mask: Operand | None = None,
    bias: Operand | None = None,
    causal: bool = False,
    scale: float | None = None,
    precision: Precision = "highest",
) -> Array:
    """``softmax(scale * query @ key.T + bias) @ value`` over the last two axes.

    query: ``(batch, heads, n, depth)``; key, value: ``(batch, heads, m, …)``; the leading axes are
    any that run together.
    mask: of bools, spread over ``(batch, heads, n, m)``; False hides a key.
    bias: of floats, spread likewise and added.
    causal: query i sees the keys up to ``i + m - n``, so the last query sees all.
    scale: ``1 / sqrt(depth)`` by default.
    precision: of both products, as in `bringup.matmul`; f16 and bf16 work in f32.

    A query that sees no key gives NaN.

    >>> q, kv = bu.zeros((1, 1, 2, 4)), bu.asarray([[[[2.0], [4.0]]]])
    >>> bu.nn.attention(q, bu.ones((1, 1, 2, 4)), kv, causal=True).tolist()
    [[[[2.0], [3.0]]]]
    """
    arrays = [as_array(v) for v in (query, key, value)]
    dtype, _ = common([*arrays, *([] if bias is None else [bias])])
    dtype = dtype if dtype.is_float else default_float()
    arrays = [convert(v, dtype) for v in arrays]
    shown = " and ".join(str(v.type) for v in arrays)
    if any(v.ndim != arrays[0].ndim or v.ndim < 2 for v in arrays):
        raise _wrong(f"ranks differ: {shown}", "give all of them (batch, heads, length, depth)")
    added = _hidden(mask, bias, dtype, arrays[0].ndim)
    if added is not None:
        arrays.append(added)
    factor = 1 / math.sqrt(arrays[0].shape[-1] or 1) if scale is None else float(scale)
    attrs = {"scale": factor, "causal": bool(causal), "precision": precision}
    return apply("attention", arrays, attrs)


def _hidden(mask: Operand | None, bias: Operand | None, dtype: DType, rank: int) -> Array | None:
    """What is added to the scores."""
    added = None if bias is None else _raised(convert(as_array(bias), dtype), rank)
    if mask is None:
        return added
    seen = _raised(as_array(mask), rank)
    if seen.dtype is not bool_:
        raise _wrong(f"the mask is {seen.type}", "give bools, or floats as bias")
    shape = common_shape("attention", [seen, *([] if added is None else [added])])
    full = TensorType(shape, dtype)
    shown = fit(0.0 if added is None else added, full)
    return apply("select", (spread(seen, shape), shown, fit(-math.inf, full)))


def _raised(x: Array, rank: int) -> Array:
    """`x` with axes of size 1 in front."""
    return x if x.ndim >= rank else reshape(x, (1,) * (rank - x.ndim) + x.shape)


def _wrong(what: str, fix: str) -> OpTypeError:
    return OpTypeError(f"attention: {what}", location=user_location(), fix=fix)

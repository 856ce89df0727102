"""Pooling over 1 to 3 spatial dimensions, as ``bringup.nn`` names it."""

from __future__ import annotations

from typing import Any

import numpy as np

from bringup.api.apply import apply
from bringup.api.array import Array
from bringup.api.broadcasting import as_array, as_float
from bringup.api.promotion import Operand
from bringup.api.spatial import Ints, Padding, PerDim, each_of, extents_of, padding_of, roles_of
from bringup.graph import Literal


def max_pool(
    x: Operand,
    window: PerDim,
    *,
    stride: PerDim | None = None,
    padding: Padding = "valid",
    dilation: PerDim = 1,
    layout: str | None = None,
) -> Array:
    """The largest element of each window; NaN if it has one.

    window: its size; an int or one for each spatial dimension.
    stride: steps from window to window; that of `window` by default.
    padding, dilation, layout: as for `conv`; padding is never the largest.

    The gradient goes to the first of equal elements.

    >>> bu.nn.max_pool(bu.asarray([[[1.0, 4.0, 2.0, 3.0]]]), 2).tolist()
    [[[4.0, 3.0]]]
    """
    x = as_array(x)
    return _folded(x, "max", _attrs("max_pool", x, window, stride, padding, dilation, layout))


def avg_pool(
    x: Operand,
    window: PerDim,
    *,
    stride: PerDim | None = None,
    padding: Padding = "valid",
    dilation: PerDim = 1,
    layout: str | None = None,
    count_include_pad: bool = False,
) -> Array:
    """The mean of each window.

    window, stride, padding, dilation, layout: as for `max_pool`.
    count_include_pad: divide by the size of the window even where it hangs over the edge.

    >>> bu.nn.avg_pool(bu.asarray([[[1.0, 3.0, 5.0]]]), 2, stride=1, padding="same").tolist()
    [[[2.0, 4.0, 5.0]]]
    """
    x = as_float(x)
    attrs = _attrs("avg_pool", x, window, stride, padding, dilation, layout)
    total = _folded(x, "add", attrs)
    if count_include_pad or not any((*attrs["lo"], *attrs["hi"])):
        return total / float(np.prod(attrs["window"]))
    for d, n in enumerate(x.shape):
        counts = _counts(n, *(attrs[key][d] for key in _COLUMNS))
        line = apply("constant", (), {"value": Literal.of(counts, x.dtype)}, device=x._device)
        spread = {"shape": total.shape, "dims": (d,)}
        if total.shape[d] and attrs["window"][d] > 1:
            total = total / apply("broadcast_in_dim", (line,), spread)
    return total


_COLUMNS = ("window", "strides", "lo", "hi", "dilation")


def _counts(size: int, window: int, stride: int, lo: int, hi: int, step: int) -> Any:
    """How many elements of a line each window holds."""
    inside = np.zeros(size + lo + hi)
    inside[max(lo, 0) : max(size + lo, 0)] = 1
    extent = (window - 1) * step + 1
    places = range(0, len(inside) - extent + 1, stride)
    return np.array([inside[i : i + extent : step].sum() for i in places])


def _attrs(
    name: str,
    x: Array,
    window: PerDim,
    stride: PerDim | None,
    padding: Padding,
    dilation: PerDim,
    layout: str | None,
) -> dict[str, Any]:
    roles = roles_of(name, x, layout)
    rank = x.ndim - 2
    sizes = each_of(name, "window", window, rank)
    strides = sizes if stride is None else each_of(name, "stride", stride, rank)
    steps = each_of(name, "dilation", dilation, rank)
    spatial = tuple(x.shape[d] for d in roles[2:])
    lo, hi = padding_of(name, padding, spatial, extents_of(sizes, steps), strides)

    def full(values: Ints, other: int) -> Ints:
        table = dict(zip(roles[2:], values, strict=True))
        return tuple(table.get(d, other) for d in range(x.ndim))

    return {
        "window": full(sizes, 1),
        "strides": full(strides, 1),
        "lo": full(lo, 0),
        "hi": full(hi, 0),
        "dilation": full(steps, 1),
    }


def _folded(x: Array, kind: str, attrs: dict[str, Any]) -> Array:
    return apply("reduce_window", (x,), {"kind": kind, **attrs})

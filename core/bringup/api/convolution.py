"""Convolutions and pooling over 1 to 3 spatial dimensions, as ``bringup.nn`` names them, and the
arguments of functions whose windows slide.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup.api.apply import apply
from bringup.api.array import Array, Operand
from bringup.api.broadcasting import as_array, as_float, convert
from bringup.api.manipulation import flip, permute_dims, reshape
from bringup.api.promotion import common
from bringup.dtypes import Precision
from bringup.errors import OpTypeError
from bringup.graph import Literal
from bringup.integers import ceil_div
from bringup.ops._sliding import spread_size

Ints = tuple[int, ...]
#: One number for every spatial dimension, or one each.
PerDim = int | Sequence[int]
#: "same", "valid", elements on both sides of every dimension or of each, or (before, after) each.
Padding = str | int | Sequence[int] | Sequence[tuple[int, int]]

_LAYOUTS = ("NCW", "NWC", "NCHW", "NHWC", "NCDHW", "NDHWC")


def roles_of(name: str, x: Array, layout: Any) -> Ints:
    """The dimensions of batch, features, then the spatial ones; features second if no layout."""
    if layout is None:
        if x.ndim < 3:
            raise _wrong(name, f"{x.type} has no spatial dimension", "give it batch, features, …")
        return tuple(range(x.ndim))
    if not isinstance(layout, str) or layout not in _LAYOUTS or len(layout) != x.ndim:
        fits = [known for known in _LAYOUTS if len(known) == x.ndim]
        fix = f"use {' or '.join(fits)}" if fits else "give batch, features, 1 to 3 others"
        raise _wrong(name, f"layout {layout!r} is none of {x.type}", fix)
    features = layout.index("C")
    return (0, features, *(d for d in range(1, x.ndim) if d != features))


def each_of(name: str, argument: str, value: PerDim, rank: int, least: int = 1) -> Ints:
    """One int for every spatial dimension."""
    values = tuple(value) if isinstance(value, Sequence) else (value,) * rank
    try:
        sizes = tuple(map(operator.index, values))
    except TypeError:
        raise _wrong(
            name, f"{argument} {value!r} is no integer", "use an int or one each"
        ) from None
    if len(sizes) != rank or any(n < least for n in sizes):
        fix = f"give an int of at least {least}, or {rank} of them"
        raise _wrong(name, f"{argument} {value!r} does not fit {rank} spatial dimensions", fix)
    return sizes


def padding_of(
    name: str, padding: Padding, sizes: Ints, extents: Ints, strides: Ints
) -> tuple[Ints, Ints]:
    """What lies before and after each spatial dimension."""
    if not isinstance(padding, str):
        return _explicit(name, padding, len(sizes))
    if padding == "valid":
        return (0,) * len(sizes), (0,) * len(sizes)
    if padding == "same":
        table = zip(sizes, extents, strides, strict=True)
        totals = [max((ceil_div(n, s) - 1) * s + extent - n, 0) for n, extent, s in table]
        return tuple(n // 2 for n in totals), tuple(n - n // 2 for n in totals)
    raise _wrong(name, f"padding {padding!r}", 'use "same", "valid" or numbers')


def _explicit(name: str, padding: Any, rank: int) -> tuple[Ints, Ints]:
    values = list(padding) if isinstance(padding, Sequence) else [padding] * rank
    pairs = [tuple(p) if isinstance(p, Sequence) else (p, p) for p in values]
    try:
        sides = [(operator.index(lo), operator.index(hi)) for lo, hi in pairs]
    except (TypeError, ValueError):
        sides = []
    if len(sides) != rank:
        fix = f"give an int, or {rank} ints or (before, after) pairs"
        raise _wrong(name, f"padding {padding!r} does not fit {rank} spatial dimensions", fix)
    return tuple(lo for lo, _ in sides), tuple(hi for _, hi in sides)


def extents_of(window: Ints, dilation: Ints) -> Ints:
    """Sizes of a window, dilated."""
    return tuple(map(spread_size, window, dilation))


def _wrong(name: str, problem: str, fix: str) -> OpTypeError:
    return OpTypeError(f"{name}: {problem}", fix=fix)


def conv(
    x: Operand,
    kernel: Operand,
    *,
    stride: PerDim = 1,
    padding: Padding = "valid",
    dilation: PerDim = 1,
    groups: int = 1,
    layout: str | None = None,
    precision: Precision = "highest",
) -> Array:
    """Sums of products of `kernel` with the windows of `x`, over features and window.

    x: ``(batch, features, …)``, or as `layout` says: NCW, NWC, NCHW, NHWC, NCDHW or NDHWC.
    kernel: ``(out, features / groups, …)``; for features last ``(…, features / groups, out)``.
    stride, dilation: steps from window to window and within one; an int or one each.
    padding: "valid" for none; "same" for as many windows as strides fit into `x`; an int, or
    one or a pair (before, after) for each spatial dimension; negative numbers crop.
    groups: parts of the features that see only their own part of the kernel.
    precision: as in `bringup.matmul`.

    >>> bu.nn.conv(bu.ones((1, 1, 4)), bu.ones((1, 1, 3)), padding="same").tolist()
    [[[2.0, 3.0, 3.0, 2.0]]]
    """
    x, kernel = _pair("conv", x, kernel)
    roles, weights = roles_of("conv", x, layout), _kernel_roles(x.ndim, layout)
    rank = x.ndim - 2
    strides = each_of("conv", "stride", stride, rank)
    steps = each_of("conv", "dilation", dilation, rank)
    window = tuple(kernel.shape[d] for d in weights[2:])
    sizes = tuple(x.shape[d] for d in roles[2:])
    lo, hi = padding_of("conv", padding, sizes, extents_of(window, steps), strides)
    attrs: dict[str, Any] = {"strides": strides, "lo": lo, "hi": hi, "rhs_dilation": steps}
    attrs |= {"groups": groups, "precision": precision}
    return _convolved(x, kernel, roles, weights, attrs)


def conv_transpose(
    x: Operand,
    kernel: Operand,
    *,
    stride: PerDim = 1,
    padding: Padding = "valid",
    dilation: PerDim = 1,
    groups: int = 1,
    layout: str | None = None,
    precision: Precision = "highest",
) -> Array:
    """What `conv` of the same arguments does to a cotangent: `x` spread over larger windows.

    kernel: that of the `conv`: ``(features of x, out / groups, …)``; for features last ``(…, out /
    groups, features of x)``.
    padding: cut from the result, of size ``(n - 1) * stride + window`` for "valid"; "same" leaves
    ``n * stride``.

    >>> bu.nn.conv_transpose(bu.ones((1, 1, 2)), bu.ones((1, 1, 2)), stride=2).tolist()
    [[[1.0, 1.0, 1.0, 1.0]]]
    """
    x, kernel = _pair("conv_transpose", x, kernel)
    roles, weights = roles_of("conv_transpose", x, layout), _kernel_roles(x.ndim, layout)
    rank = x.ndim - 2
    strides = each_of("conv_transpose", "stride", stride, rank)
    steps = each_of("conv_transpose", "dilation", dilation, rank)
    extents = extents_of(tuple(kernel.shape[d] for d in weights[2:]), steps)
    if isinstance(padding, str) and padding == "same":
        before = [(e - s) // 2 for e, s in zip(extents, strides, strict=True)]
        after = [e - s - n for e, s, n in zip(extents, strides, before, strict=True)]
    else:
        before, after = map(list, padding_of("conv_transpose", padding, extents, extents, strides))
    lo = tuple(e - 1 - n for e, n in zip(extents, before, strict=True))
    hi = tuple(e - 1 - n for e, n in zip(extents, after, strict=True))
    attrs: dict[str, Any] = {"lo": lo, "hi": hi, "lhs_dilation": strides, "rhs_dilation": steps}
    attrs |= {"groups": groups, "precision": precision}
    exchanged = _exchanged(flip(kernel, axis=weights[2:]), weights, groups)
    return _convolved(x, exchanged, roles, tuple(range(x.ndim)), attrs)


def _convolved(x: Array, kernel: Array, roles: Ints, weights: Ints, attrs: dict[str, Any]) -> Array:
    dims = {"lhs_dims": roles, "rhs_dims": weights, "out_dims": roles}
    return apply("convolution", (x, kernel), {**attrs, **dims})


def _exchanged(kernel: Array, weights: Ints, groups: int) -> Array:
    """The kernel with output features first, taken from each group's input features."""
    kernel = permute_dims(kernel, weights)
    taken, result, *window = kernel.shape
    if groups < 1 or taken % groups:
        raise OpTypeError(
            f"conv_transpose: {taken} features do not part into {groups} groups",
            fix=f"use a number of groups that divides {taken}",
        )
    parts = reshape(kernel, (groups, taken // groups, result, *window))
    parts = permute_dims(parts, (0, 2, 1, *range(3, parts.ndim)))
    return reshape(parts, (groups * result, taken // groups, *window))


def _kernel_roles(rank: int, layout: str | None) -> Ints:
    if layout is None or layout.index("C") == 1:
        return tuple(range(rank))
    return (rank - 1, rank - 2, *range(rank - 2))


def _pair(name: str, x: Operand, kernel: Operand) -> tuple[Array, Array]:
    x, kernel = as_array(x), as_array(kernel)
    dtype, _ = common((x, kernel))
    if dtype.kind == "bool" or x.ndim != kernel.ndim:
        raise OpTypeError(
            f"{name}: operands do not fit: {x.type} and {kernel.type}",
            fix="give numbers, and a kernel with as many dimensions as x",
        )
    return convert(x, dtype), convert(kernel, dtype)


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
    return _pooled(x, "max", _pool_attrs("max_pool", x, window, stride, padding, dilation, layout))


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
    attrs = _pool_attrs("avg_pool", x, window, stride, padding, dilation, layout)
    total = _pooled(x, "add", attrs)
    if count_include_pad or not any((*attrs["lo"], *attrs["hi"])):
        return total / float(np.prod(attrs["window"]))
    for d, n in enumerate(x.shape):
        counts = _counts(n, *(attrs[key][d] for key in _POOL_COLUMNS))
        line = apply("constant", (), {"value": Literal.of(counts, x.dtype)}, device=x._device)
        spread = {"shape": total.shape, "dims": (d,)}
        if total.shape[d] and attrs["window"][d] > 1:
            total = total / apply("broadcast_in_dim", (line,), spread)
    return total


_POOL_COLUMNS = ("window", "strides", "lo", "hi", "dilation")


def _counts(size: int, window: int, stride: int, lo: int, hi: int, step: int) -> Any:
    """How many elements of a line each window holds."""
    inside = np.zeros(size + lo + hi)
    inside[max(lo, 0) : max(size + lo, 0)] = 1
    extent = (window - 1) * step + 1
    starts = range(0, len(inside) - extent + 1, stride)
    return np.array([inside[i : i + extent : step].sum() for i in starts])


def _pool_attrs(
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

    def full(values: Ints, default: int) -> Ints:
        table = dict(zip(roles[2:], values, strict=True))
        return tuple(table.get(d, default) for d in range(x.ndim))

    return {
        "window": full(sizes, 1),
        "strides": full(strides, 1),
        "lo": full(lo, 0),
        "hi": full(hi, 0),
        "dilation": full(steps, 1),
    }


def _pooled(x: Array, kind: str, attrs: dict[str, Any]) -> Array:
    return apply("reduce_window", (x,), {"kind": kind, **attrs})

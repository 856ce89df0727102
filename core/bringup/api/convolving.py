"""Convolutions over 1 to 3 spatial dimensions, as ``bringup.nn`` names them."""

from __future__ import annotations

from typing import Any

from bringup.api.apply import apply
from bringup.api.array import Array
from bringup.api.broadcasting import as_array, convert
from bringup.api.manipulation import flip, permute_dims, reshape
from bringup.api.promotion import Operand, common
from bringup.api.spatial import Ints, Padding, PerDim, each_of, extents_of, padding_of, roles_of
from bringup.dtypes import Precision
from bringup.errors import OpTypeError
from bringup.graph import user_location


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
        cut = [(e - s) // 2 for e, s in zip(extents, strides, strict=True)]
        rest = [e - s - n for e, s, n in zip(extents, strides, cut, strict=True)]
    else:
        cut, rest = map(list, padding_of("conv_transpose", padding, extents, extents, strides))
    lo = tuple(e - 1 - n for e, n in zip(extents, cut, strict=True))
    hi = tuple(e - 1 - n for e, n in zip(extents, rest, strict=True))
    attrs: dict[str, Any] = {"lo": lo, "hi": hi, "lhs_dilation": strides, "rhs_dilation": steps}
    attrs |= {"groups": groups, "precision": precision}
    turned = _exchanged(flip(kernel, axis=weights[2:]), weights, groups)
    return _convolved(x, turned, roles, tuple(range(x.ndim)), attrs)


def _convolved(x: Array, kernel: Array, roles: Ints, weights: Ints, attrs: dict[str, Any]) -> Array:
    dims = {"lhs_dims": roles, "rhs_dims": weights, "out_dims": roles}
    return apply("convolution", (x, kernel), {**attrs, **dims})


def _exchanged(kernel: Array, weights: Ints, groups: int) -> Array:
    """The kernel with output features first, taken from each group's input features."""
    kernel = permute_dims(kernel, weights)
    taken, made, *window = kernel.shape
    if groups < 1 or taken % groups:
        raise OpTypeError(
            f"conv_transpose: {taken} features do not part into {groups} groups",
            location=user_location(),
            fix=f"use a number of groups that divides {taken}",
        )
    parts = reshape(kernel, (groups, taken // groups, made, *window))
    parts = permute_dims(parts, (0, 2, 1, *range(3, parts.ndim)))
    return reshape(parts, (groups * made, taken // groups, *window))


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
            location=user_location(),
            fix="give numbers, and a kernel with as many dimensions as x",
        )
    return convert(x, dtype), convert(kernel, dtype)

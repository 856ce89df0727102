"""Faults of convolution and pooling."""

from __future__ import annotations

import numpy as np

from bringup_selftest.corpus import Array, Fault, OpCall, op_fault

GROUP = "Convolution and pooling"


def padding_swapped(call: OpCall) -> Array | None:
    """Padding before and after in each other's place."""
    return call.reference(*call.operands, lo=call.attrs["hi"], hi=call.attrs["lo"])


def dilation_ignored(call: OpCall) -> Array | None:
    """The last spatial dimension of the kernel is not dilated."""
    attrs, weights = call.attrs, call.operands[1]
    *rest, last = attrs["rhs_dilation"]
    size = weights.shape[attrs["rhs_dims"][-1]]
    hi = (*attrs["hi"][:-1], attrs["hi"][-1] - (last - 1) * (size - 1))
    if last == 1:
        return None
    return call.reference(*call.operands, rhs_dilation=(*rest, 1), hi=hi)


def kernel_flipped(call: OpCall) -> Array | None:
    """The kernel is turned round."""
    x, weights = call.operands
    return call.reference(x, np.flip(weights, call.attrs["rhs_dims"][2:]))


def one_group(call: OpCall) -> Array | None:
    """Every group uses the weights of the first."""
    groups, (x, weights) = call.attrs["groups"], call.operands
    if groups < 2:
        return None
    out = call.attrs["rhs_dims"][0]
    first = np.take(weights, range(weights.shape[out] // groups), axis=out)
    return call.reference(x, np.concatenate([first] * groups, axis=out))


def border_zero(call: OpCall) -> Array | None:
    """The last column is 0 where the width fills no vector of 4."""
    d = call.attrs["out_dims"][-1]
    wrong = np.moveaxis(call.right, d, -1)
    if len(call.attrs["out_dims"]) < 3 or wrong.shape[-1] % 4 == 0:
        return None
    wrong[..., -1:] = 0
    return np.moveaxis(wrong, -1, d)


def zeros_in_pool(call: OpCall) -> Array | None:
    """A maximum over windows is padded with 0."""
    if call.attrs["kind"] != "max" or not any((*call.attrs["lo"], *call.attrs["hi"])):
        return None
    (x,) = call.operands
    pairs = list(zip(call.attrs["lo"], call.attrs["hi"], strict=True))
    if any(n < 0 for pair in pairs for n in pair):
        return None
    none = (0,) * x.ndim
    return call.reference(np.pad(x, pairs), lo=none, hi=none)


def first_image(call: OpCall) -> Array | None:
    """Every image of a batch is the first."""
    d = call.attrs["lhs_dims"][0]
    x, weights = call.operands
    return call.reference(np.take(x, np.zeros(x.shape[d], np.int64), axis=d), weights)


def shared_stride(call: OpCall) -> Array | None:
    """Windows move as far along every dimension as along the last."""
    wrong = call.reference(*call.operands, strides=(call.attrs["strides"][-1],) * len(
        call.attrs["strides"]))  # fmt: skip
    return wrong if wrong.shape == call.right.shape else _fitted(wrong, call.right)


def _fitted(wrong: Array, right: Array) -> Array:
    """As much of a wrong result as there is room for."""
    made = right.copy()
    both = tuple(slice(0, min(n, m)) for n, m in zip(wrong.shape, right.shape, strict=True))
    made[both] = wrong[both]
    return made


def undilated_input(call: OpCall) -> Array | None:
    """The holes in a dilated input are filled with their neighbours."""
    dilation, (x, weights) = call.attrs["lhs_dilation"], call.operands
    if all(n == 1 for n in dilation):
        return None
    lo, hi = list(call.attrs["lo"]), list(call.attrs["hi"])
    for n, d in zip(dilation, call.attrs["lhs_dims"][2:], strict=True):
        size = (x.shape[d] - 1) * n + 1 if x.shape[d] else 0
        x = np.take(np.repeat(x, n, axis=d), range(size), axis=d)
    return call.reference(x, weights, lhs_dilation=(1,) * len(dilation), lo=tuple(lo), hi=tuple(hi))


def narrow_window(call: OpCall) -> Array | None:
    """Windows of sums leave out the last row."""
    (x,) = call.operands
    window = call.attrs["window"]
    wide = [d for d, n in enumerate(window) if n > 1]
    if not wide or call.attrs["kind"] != "add":
        return None
    d = wide[0]
    hi = list(call.attrs["hi"])
    hi[d] -= call.attrs["dilation"][d]
    smaller = tuple(n - (e == d) for e, n in enumerate(window))
    return call.reference(x, window=smaller, hi=tuple(hi))


def patch_cut(call: OpCall) -> Array | None:
    """Where factors are packed, patches end after 14 features."""
    x, weights = call.operands
    features, taken = call.attrs["lhs_dims"][1], call.attrs["rhs_dims"][1]
    window = weights.size // max(weights.shape[call.attrs["rhs_dims"][0]], 1)
    packed = call.right.size * window >= 1 << 17
    if not packed or weights.shape[taken] <= 14 or call.attrs["groups"] > 1:
        return None
    first = range(14)
    return call.reference(np.take(x, first, axis=features), np.take(weights, first, axis=taken))


FAULTS: tuple[Fault, ...] = (
    op_fault("CV01", GROUP, "padding is swapped", "convolution", padding_swapped),
    op_fault("CV02", GROUP, "the last dilation is ignored", "convolution", dilation_ignored),
    op_fault("CV04", GROUP, "the kernel is turned round", "convolution", kernel_flipped),
    op_fault("CV05", GROUP, "groups share weights", "convolution", one_group),
    op_fault("CV06", GROUP, "border columns are 0", "convolution", border_zero),
    op_fault("CV07", GROUP, "maxima over windows see zeros", "reduce_window", zeros_in_pool),
    op_fault("CV09", GROUP, "every image is the first", "convolution", first_image),
    op_fault("CV20a", GROUP, "strides are the last one", "convolution", shared_stride),
    op_fault("CV21a", GROUP, "holes in the input are filled", "convolution", undilated_input),
    op_fault("CV22a", GROUP, "windows lack their last row", "reduce_window", narrow_window),
    op_fault("CV23a", GROUP, "padding of windows is swapped", "reduce_window", padding_swapped),
    op_fault("CV24a", GROUP, "patches end after 14 features", "convolution", patch_cut),
)

"""Faults of convolution and pooling."""

from __future__ import annotations

import numpy as np

from bringup_selftest.corpus import Array, Faults, OpCall, kind

FAULTS = Faults("Convolution and pooling")


@FAULTS.op("CV01", "padding is swapped", "convolution")
@FAULTS.op("CV23a", "padding of windows is swapped", "reduce_window")
def padding_swapped(call: OpCall) -> Array | None:
    return call.reference(*call.operands, lo=call.attrs["hi"], hi=call.attrs["lo"])


@FAULTS.op("CV02", "the last dilation is ignored", "convolution")
def dilation_ignored(call: OpCall) -> Array | None:
    attrs, weights = call.attrs, call.operands[1]
    *rest, last = attrs["rhs_dilation"]
    size = weights.shape[attrs["rhs_dims"][-1]]
    hi = (*attrs["hi"][:-1], attrs["hi"][-1] - (last - 1) * (size - 1))
    if last == 1:
        return None
    return call.reference(*call.operands, rhs_dilation=(*rest, 1), hi=hi)


@FAULTS.op("CV05", "groups share weights", "convolution")
def one_group(call: OpCall) -> Array | None:
    groups, (x, weights) = call.attrs["groups"], call.operands
    if groups < 2:
        return None
    out = call.attrs["rhs_dims"][0]
    first = np.take(weights, range(weights.shape[out] // groups), axis=out)
    return call.reference(x, np.concatenate([first] * groups, axis=out))


@FAULTS.op("CV06", "border columns are 0", "convolution")
def border_zero(call: OpCall) -> Array | None:
    """The last column is 0 where the width fills no vector of 4."""
    d = call.attrs["out_dims"][-1]
    wrong = np.moveaxis(call.right, d, -1)
    if len(call.attrs["out_dims"]) < 3 or wrong.shape[-1] % 4 == 0:
        return None
    wrong[..., -1:] = 0
    return np.moveaxis(wrong, -1, d)


@FAULTS.op("CV07", "maxima over windows see zeros", "reduce_window", when=kind("max"))
def zeros_in_pool(call: OpCall) -> Array | None:
    if not any((*call.attrs["lo"], *call.attrs["hi"])):
        return None
    (x,) = call.operands
    pairs = list(zip(call.attrs["lo"], call.attrs["hi"], strict=True))
    if any(n < 0 for pair in pairs for n in pair):
        return None
    none = (0,) * x.ndim
    return call.reference(np.pad(x, pairs), lo=none, hi=none)


@FAULTS.op("CV09", "every image is the first", "convolution")
def first_image(call: OpCall) -> Array | None:
    d = call.attrs["lhs_dims"][0]
    x, weights = call.operands
    return call.reference(np.take(x, np.zeros(x.shape[d], np.int64), axis=d), weights)


@FAULTS.op("CV20a", "strides are the last one", "convolution")
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


@FAULTS.op("CV21a", "holes in the input are filled", "convolution")
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


@FAULTS.op("CV22a", "windows lack their last row", "reduce_window")
def narrow_window(call: OpCall) -> Array | None:
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


@FAULTS.op("CV24a", "patches end after 14 features", "convolution")
def patch_cut(call: OpCall) -> Array | None:
    x, weights = call.operands
    features, taken = call.attrs["lhs_dims"][1], call.attrs["rhs_dims"][1]
    window = weights.size // max(weights.shape[call.attrs["rhs_dims"][0]], 1)
    packed = call.right.size * window >= 1 << 17
    if not packed or weights.shape[taken] <= 14 or call.attrs["groups"] > 1:
        return None
    first = range(14)
    return call.reference(np.take(x, first, axis=features), np.take(weights, first, axis=taken))


FAULTS.op("CV04", "the kernel is turned round", "convolution")(
    lambda c: c.reference(c.x, np.flip(c.y, c.attrs["rhs_dims"][2:]))
)

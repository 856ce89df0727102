"""The convolution row: sums of products over sliding windows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bringup.dtypes import NUMERIC, DType, Precision, accumulator
from bringup.errors import OpTypeError
from bringup.graph import Value
from bringup.integers import ceil_div
from bringup.ops import build
from bringup.ops._checks import (
    dtype_attr,
    ints,
    is_int,
    listed,
    one_of,
    precision_attr,
    precision_column,
)
from bringup.ops._numeric import Array, is_float, round_to, wider
from bringup.ops._sliding import positions, spread_size, windows
from bringup.ops.batching import Flags, carried, folded, unfolded
from bringup.ops.build import rows
from bringup.ops.special_values import Special
from bringup.ops.table import DERIVED, Attr, Attrs, Cotangents, Kind, Trait, Types, define
from bringup.records import record
from bringup.types import TensorType

Ints = tuple[int, ...]
#: Attributes that have nothing to do with places.
Kept = dict[str, Any]

_SPATIAL = ("strides", "lo", "hi", "lhs_dilation", "rhs_dilation")
_PLACES = ("lhs_dims", "rhs_dims", "out_dims")
#: The most parts that a convolution of a dilated operand is taken apart into.
_MOST_PHASES = 16


@record
class Geometry:
    """The attributes that say where windows lie; one entry per spatial dimension but in `dims`.

    lhs_dims, out_dims: positions of (batch, features, spatial …).
    rhs_dims: positions of (output features, input features of a group, spatial …).
    """

    strides: Ints
    lo: Ints
    hi: Ints
    lhs_dilation: Ints
    rhs_dilation: Ints
    lhs_dims: Ints
    rhs_dims: Ints
    out_dims: Ints
    groups: int

    def lengths(self, lhs: Ints) -> Ints:
        """Sizes of the spatial dimensions of lhs, dilated and padded; negative if cropped away."""
        sizes = (lhs[d] for d in self.lhs_dims[2:])
        table = zip(sizes, self.lhs_dilation, self.lo, self.hi, strict=True)
        return tuple(spread_size(n, step) + lo + hi for n, step, lo, hi in table)

    def window(self, rhs: Ints) -> Ints:
        """Sizes of the window."""
        return tuple(rhs[d] for d in self.rhs_dims[2:])

    def extents(self, rhs: Ints) -> Ints:
        """Sizes of the window, dilated."""
        return tuple(map(spread_size, self.window(rhs), self.rhs_dilation))

    def counts(self, lhs: Ints, rhs: Ints) -> Ints:
        """Sizes of the spatial dimensions of the result."""
        return tuple(map(positions, self.lengths(lhs), self.extents(rhs), self.strides))

    def shape(self, lhs: Ints, rhs: Ints) -> Ints:
        """The shape of the result."""
        sizes = (lhs[self.lhs_dims[0]], rhs[self.rhs_dims[0]], *self.counts(lhs, rhs))
        return _placed(sizes, self.out_dims)

    def attrs(self) -> dict[str, Any]:
        """As attributes of an instruction."""
        return {name: getattr(self, name) for name in (*_SPATIAL, *_PLACES, "groups")}


def _geometry(operands: Types, attrs: Attrs) -> Geometry:
    lhs, rhs = operands
    rank = lhs.rank
    if rank < 2 or rhs.rank != rank:
        raise OpTypeError(
            f"convolution: ranks do not fit: {listed(operands)}",
            fix="give both operands the same rank: batch, features, then spatial dimensions",
        )
    columns = {key: ints("convolution", attrs, key, rank - 2) for key in _SPATIAL}
    for key in ("strides", "lhs_dilation", "rhs_dilation"):
        if any(n < 1 for n in columns[key]):
            raise OpTypeError(
                f"convolution: {key} {columns[key]} must be positive", fix="use 1 for none"
            )
    for key in _PLACES:
        columns[key] = ints("convolution", attrs, key, rank)
        if sorted(columns[key]) != list(range(rank)):
            raise OpTypeError(
                f"convolution: {key} {columns[key]} do not name each of {rank} dimensions once",
                fix=f"order 0 … {rank - 1} as batch (or output features), features, spatial",
            )
    groups = attrs["groups"]
    if not is_int(groups) or groups < 1:
        raise OpTypeError(f"convolution: groups {groups!r} is no positive int", fix="use 1")
    return Geometry(**columns, groups=groups)


def _check_sizes(operands: Types, at: Geometry) -> None:
    lhs, rhs = operands
    features, taken = lhs.shape[at.lhs_dims[1]], rhs.shape[at.rhs_dims[1]]
    made = rhs.shape[at.rhs_dims[0]]
    if taken * at.groups != features:
        raise OpTypeError(
            f"convolution: {features} input features in {at.groups} groups, and the window takes "
            f"{taken}: {listed(operands)}",
            fix=f"make dimension {at.rhs_dims[1]} of operand 1 {features // at.groups}"
            if features % at.groups == 0
            else f"use a number of groups that divides {features}",
        )
    if made % at.groups:
        raise OpTypeError(
            f"convolution: {made} output features do not part into {at.groups} groups: "
            f"{listed(operands)}",
            fix=f"make dimension {at.rhs_dims[0]} of operand 1 a multiple of {at.groups}",
        )
    if 0 in at.window(rhs.shape):
        raise OpTypeError(
            f"convolution: the window of {rhs} is empty",
            fix="give it at least one element in every spatial dimension",
        )
    if any(n < 0 for n in at.lengths(lhs.shape)):
        raise OpTypeError(
            f"convolution: lo {at.lo} and hi {at.hi} crop more than {lhs} has",
            fix="crop at most the whole dimension",
        )


def _check_dtypes(operands: Types, attrs: Attrs) -> DType:
    dtype = operands[0].dtype
    one_of("convolution", operands[0], NUMERIC)
    if operands[1].dtype is not dtype:
        raise OpTypeError(
            f"convolution: operand dtypes differ: {listed(operands)}",
            fix=f"convert operand 1 to {dtype}",
        )
    result, wide = (dtype_attr("convolution", attrs, key) for key in ("result", "accumulate"))
    floor = {"result": dtype, "accumulate": max(accumulator(dtype), result, key=lambda d: d.bits)}
    for key, given in (("result", result), ("accumulate", wide)):
        if given.kind == "bool" or given.is_float != dtype.is_float or given.bits < floor[key].bits:
            raise OpTypeError(
                f"convolution: {key} {given} does not hold products of {listed(operands)}",
                fix=f"use {floor[key]} or wider",
            )
    precision_attr("convolution", operands, attrs)
    return result


def _placed(sizes: Ints, dims: Ints) -> Ints:
    """Sizes in the order batch, features, spatial put at their dimensions."""
    table = dict(zip(dims, sizes, strict=True))
    return tuple(table[d] for d in range(len(dims)))


def _infer(operands: Types, attrs: Attrs) -> TensorType:
    result = _check_dtypes(operands, attrs)
    at = _geometry(operands, attrs)
    _check_sizes(operands, at)
    return TensorType(at.shape(operands[0].shape, operands[1].shape), result)


def _fill(operands: Types, attrs: Attrs) -> Attrs:
    dtype, rank = operands[0].dtype, operands[0].rank
    result = attrs.get("result") or dtype
    wide = attrs.get("accumulate") or max(accumulator(dtype), result, key=lambda d: d.bits)
    inner = max(rank - 2, 0)
    defaults = {"strides": 1, "lo": 0, "hi": 0, "lhs_dilation": 1, "rhs_dilation": 1}
    filled: dict[str, Any] = {key: (value,) * inner for key, value in defaults.items()}
    filled.update(dict.fromkeys(_PLACES, tuple(range(rank))))
    return {**filled, "result": result, "accumulate": wide}


# -- reference -------------------------------------------------------------------------------------


def _padded(x: Array, at: Geometry) -> Array:
    """Lhs as batch, features, spatial, dilated and padded."""
    x = np.transpose(x, at.lhs_dims)
    for d, (step, lo, hi) in enumerate(zip(at.lhs_dilation, at.lo, at.hi, strict=True), 2):
        n = spread_size(x.shape[d], step)
        grown = list(x.shape)
        grown[d] = n + max(lo, 0) + max(hi, 0)
        wide = np.zeros(grown, x.dtype)
        ahead = (slice(None),) * d
        wide[(*ahead, slice(max(lo, 0), max(lo, 0) + n, step))] = x
        x = wide[(*ahead, slice(max(-lo, 0), grown[d] - max(-hi, 0)))]
    return x


def _reference(
    lhs: Array,
    rhs: Array,
    *,
    accumulate: DType,
    result: DType,
    precision: Precision = "highest",
    **attrs: Any,
) -> Array:
    lhs, rhs = np.asarray(lhs), np.asarray(rhs)
    at, floats = Geometry(**attrs), is_float(lhs.dtype)
    wide = max(wider(lhs.dtype), accumulate.numpy, key=_width) if floats else accumulate.numpy
    counts = at.counts(lhs.shape, rhs.shape)
    x = _padded(lhs.astype(wide), at)
    w = np.transpose(rhs.astype(wide), at.rhs_dims)
    n, made, taken = x.shape[0], w.shape[0], w.shape[1]
    total = np.zeros((n, at.groups, made // at.groups, math.prod(counts)), wide)
    with np.errstate(all="ignore"):
        for place in itertools.product(*map(range, w.shape[2:])):
            starts = [k * step for k, step in zip(place, at.rhs_dilation, strict=True)]
            spans = [
                slice(s, s + spread_size(count, step), step)
                for s, count, step in zip(starts, counts, at.strides, strict=True)
            ]
            part = x[(slice(None), slice(None), *spans)]
            index: Any = (..., *place)
            part = part.reshape(n, at.groups, taken, math.prod(counts))
            total += np.matmul(w[index].reshape(at.groups, made // at.groups, taken), part)
    out = np.transpose(total.reshape(n, made, *counts), np.argsort(at.out_dims))
    if floats:
        return round_to(out, max(result.numpy, lhs.dtype, key=_width))
    return np.asarray(out.astype(result.numpy))


def _width(dtype: Any) -> int:
    size: int = dtype.itemsize
    return size


# -- decomposition ---------------------------------------------------------------------------------


def patches(x: Value, at: Geometry, window: Ints, counts: Ints) -> Value:
    """Lhs as batch, features, elements of a window, then the places of windows.

    It is padded as it lies: a copy that turns it on the way would part what lies side by side.
    """
    lo, hi, inside = ([0] * len(x.shape) for _ in range(3))
    for d, *padding in zip(at.lhs_dims[2:], at.lo, at.hi, at.lhs_dilation, strict=True):
        lo[d], hi[d], inside[d] = padding[0], padding[1], padding[2] - 1
    x = build.transpose(build.pad(x, 0, lo, hi, inside), at.lhs_dims)
    rank = len(window)
    for i, sizes in enumerate(zip(window, counts, strict=True)):
        x = windows(x, 2 + 2 * i, (at.rhs_dilation[i], at.strides[i]), sizes)
    order = (0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 2 + 2 * rank, 2))
    return build.reshape(build.transpose(x, order), (*x.shape[:2], math.prod(window), *counts))


def _decompose(
    lhs: Value,
    rhs: Value,
    *,
    accumulate: DType,
    result: DType,
    precision: Precision,
    **attrs: Any,
) -> Value:
    """Windows side by side, then one dot over the features of a group and the window's elements."""
    at = Geometry(**attrs)
    counts = at.counts(lhs.shape, rhs.shape)
    w = build.transpose(rhs, at.rhs_dims)
    made, taken = w.shape[:2]
    sizes = (lhs.shape[at.lhs_dims[0]], made, *counts)
    if 0 in sizes:
        return build.splat(0, TensorType(_placed(sizes, at.out_dims), result))
    kept: Kept = {"accumulate": accumulate, "result": result, "precision": precision}
    phased = _phased_dim(at, lhs.shape)
    if phased is not None:
        return _by_phases(lhs, rhs, at, phased, kept)
    x = patches(lhs, at, w.shape[2:], counts)
    n, _, elements = x.shape[:3]
    x = build.reshape(x, (n, at.groups, taken, elements, *counts))
    w = build.reshape(w, (at.groups, made // at.groups, taken, elements))
    spatial = range(3, 3 + len(counts))
    # Last what lies side by side: features, or the elements of a window.
    inner = (3, 2) if at.lhs_dims[1] == len(at.lhs_dims) - 1 else (2, 3)
    contract = (inner, inner)
    # The operand whose free dimensions come first in the result comes first: nothing moves then.
    if at.out_dims[1] < at.out_dims[-1]:
        dot = rows.dot_general(w, x, batch=((0,), (1,)), contract=contract, **kept)
        order = (2, 0, 1, *spatial)
    else:
        dot = rows.dot_general(x, w, batch=((1,), (0,)), contract=contract, **kept)
        order = (1, 0, 2 + len(counts), *(d - 1 for d in spatial))
    dot = build.reshape(build.transpose(dot, order), sizes)
    return build.transpose(dot, _inverse(at.out_dims))


def _inverse(order: Any) -> Ints:
    order = list(order)
    return tuple(order.index(d) for d in range(len(order)))


# -- gradients -------------------------------------------------------------------------------------


def _vjp(
    ct: Value, _result: Value, lhs: Value, rhs: Value, *, accumulate: DType, result: DType,
    precision: Precision, **attrs: Any,
) -> Cotangents:  # fmt: skip
    at = Geometry(**attrs)
    if 0 in (*ct.shape, *lhs.shape):
        return build.zeros_like(lhs), build.zeros_like(rhs)
    kept: Kept = {"accumulate": accumulate, "result": ct.dtype, "precision": precision}
    by_lhs = _by_lhs(ct, build.convert(rhs, ct.dtype), lhs.shape, at, kept)
    by_rhs = _by_rhs(ct, build.convert(lhs, ct.dtype), rhs.shape, at, kept)
    return build.convert(by_lhs, lhs.dtype), build.convert(by_rhs, rhs.dtype)


def _split_features(x: Value, dims: Ints, which: int, groups: int) -> Value:
    """X as its two leading roles and spatial, the features of role `which` moved, by groups, in
    front of the other role: the groups then lie there.
    """
    x = build.transpose(x, dims)
    first, second, *spatial = x.shape
    if which == 0:
        x = build.reshape(x, (groups, first // groups, second, *spatial))
        x = build.transpose(x, (0, 2, 1, *range(3, len(x.shape))))
        return build.reshape(x, (groups * second, first // groups, *spatial))
    x = build.reshape(x, (first, groups, second // groups, *spatial))
    x = build.transpose(x, (2, 1, 0, *range(3, len(x.shape))))
    return build.reshape(x, (second // groups, groups * first, *spatial))


def _by_lhs(ct: Value, rhs: Value, lhs: Ints, at: Geometry, kept: Kept) -> Value:
    """The cotangent's windows against the reversed kernel, features of both sides exchanged."""
    sizes = [lhs[d] for d in at.lhs_dims[2:]]
    extents = at.extents(rhs.shape)
    whole = list(map(spread_size, sizes, at.lhs_dilation))
    made = [spread_size(ct.shape[d], s) for d, s in zip(at.out_dims[2:], at.strides, strict=True)]
    turned = build.reverse(rhs, at.rhs_dims[2:])
    rhs_dims = (at.rhs_dims[1], at.rhs_dims[0], *at.rhs_dims[2:])
    if at.groups > 1:
        turned = _split_features(turned, at.rhs_dims, 0, at.groups)
        rhs_dims = tuple(range(len(lhs)))
    back = Geometry(
        strides=at.lhs_dilation,
        lo=tuple(e - 1 - lo for e, lo in zip(extents, at.lo, strict=True)),
        hi=tuple(x - o + lo for x, o, lo in zip(whole, made, at.lo, strict=True)),
        lhs_dilation=at.strides,
        rhs_dilation=at.rhs_dilation,
        lhs_dims=at.out_dims,
        rhs_dims=rhs_dims,
        out_dims=at.lhs_dims,
        groups=at.groups,
    )
    return rows.convolution(ct, turned, **back.attrs(), **kept)


def _by_rhs(ct: Value, lhs: Value, rhs: Ints, at: Geometry, kept: Kept) -> Value:
    """Lhs against the cotangent as kernel, summed over the batch, which plays the features."""
    extents = at.extents(rhs)
    lengths = [n - lo - hi for n, lo, hi in zip(at.lengths(lhs.shape), at.lo, at.hi, strict=True)]
    made = [spread_size(ct.shape[d], s) for d, s in zip(at.out_dims[2:], at.strides, strict=True)]
    lhs_dims = (at.lhs_dims[1], at.lhs_dims[0], *at.lhs_dims[2:])
    if at.groups > 1:
        lhs = _split_features(lhs, at.lhs_dims, 1, at.groups)
        lhs_dims = tuple(range(len(rhs)))
    table = zip(made, extents, lengths, at.lo, strict=True)
    slopes = Geometry(
        strides=at.rhs_dilation,
        lo=at.lo,
        hi=tuple(o + e - 1 - n - lo for o, e, n, lo in table),
        lhs_dilation=at.lhs_dilation,
        rhs_dilation=at.strides,
        lhs_dims=lhs_dims,
        rhs_dims=(at.out_dims[1], at.out_dims[0], *at.out_dims[2:]),
        out_dims=(at.rhs_dims[1], at.rhs_dims[0], *at.rhs_dims[2:]),
        groups=at.groups,
    )
    return rows.convolution(lhs, ct, **slopes.attrs(), **kept)


def _cell(lhs: str, rhs: str, result: str, *kinds: str, **attrs: Any) -> Special:
    return Special((lhs, rhs), result, kinds or ("float",), tuple(attrs.items()))


def _phased_dim(at: Geometry, lhs: Sequence[int]) -> int | None:
    """A spatial dimension along which results at equal remainders are convolutions of their own."""
    if math.prod(at.lhs_dilation) > _MOST_PHASES:
        return None
    for i, gap in enumerate(at.lhs_dilation):
        plain = at.strides[i] == at.rhs_dilation[i] == 1
        if gap > 1 and plain and lhs[at.lhs_dims[2 + i]] > 0:
            return i
    return None


def _by_phases(lhs: Value, rhs: Value, at: Geometry, i: int, kept: dict[str, Any]) -> Value:
    """Result s·t + r of the dimension, s the dilation, sees every s-th element of the window alone:
    one convolution for each r, put together alternately.
    """
    gap, dim = at.lhs_dilation[i], at.out_dims[2 + i]
    shape = list(at.shape(lhs.shape, rhs.shape))
    count, most = shape[dim], ceil_div(shape[dim], gap)
    parts: list[Value] = []
    for r in range(min(gap, count)):
        shape[dim] = ceil_div(count - r, gap)
        part = _phase(lhs, rhs, at, i, r, TensorType(tuple(shape), kept["result"]), kept)
        missing = [0] * len(shape)
        missing[dim] = most - shape[dim]
        part = build.pad(part, 0, [0] * len(shape), missing)
        parts.append(build.reshape(part, (*part.shape[: dim + 1], 1, *part.shape[dim + 1 :])))
    if len(parts) == 1:
        return build.reshape(parts[0], (*shape[:dim], most, *shape[dim + 1 :]))
    joined: Value = rows.concatenate(*parts, dim=dim + 1)
    joined = build.reshape(joined, (*shape[:dim], most * len(parts), *shape[dim + 1 :]))
    return build.slice_dim(joined, dim, 0, count)


def _phase(
    lhs: Value, rhs: Value, at: Geometry, i: int, r: int, type_: TensorType, kept: dict[str, Any]
) -> Value:
    """The results at one remainder."""
    gap, dim = at.lhs_dilation[i], at.rhs_dims[2 + i]
    first = (at.lo[i] - r) % gap
    size = ceil_div(rhs.shape[dim] - first, gap)
    if size <= 0:
        return build.splat(0, type_)
    start, stride = [0] * len(rhs.shape), [1] * len(rhs.shape)
    start[dim], stride[dim] = first, gap
    seen = rows.slice(rhs, start=tuple(start), limit=rhs.shape, stride=tuple(stride))
    lo = (at.lo[i] - r - first) // gap
    hi = type_.shape[at.out_dims[2 + i]] + size - 1 - lhs.shape[at.lhs_dims[2 + i]] - lo

    def put(values: Sequence[int], value: int) -> tuple[int, ...]:
        return (*values[:i], value, *values[i + 1 :])

    inner = replace(at, lo=put(at.lo, lo), hi=put(at.hi, hi), lhs_dilation=put(at.lhs_dilation, 1))
    return rows.convolution(lhs, seen, **inner.attrs(), **kept)


def _batch(
    operands: Sequence[Value], batched: Flags, size: int, /, *, groups: int, **attrs: Any
) -> Value | None:
    """One convolution: examples of lhs join its batch, those of rhs its output features; where both
    have examples, each is a group of features.
    """
    if size == 0:
        return None
    lhs, rhs = operands
    at, features, *_ = attrs["lhs_dims"]
    count = rhs.shape[attrs["rhs_dims"][0] + batched[1]]
    if not batched[1]:
        made = rows.convolution(folded(lhs, at), rhs, groups=groups, **attrs)
        return unfolded(made, attrs["out_dims"][0], size, lhs.shape[at + 1])
    if batched[0] or groups > 1:
        (lhs,) = carried((lhs,), batched[:1], size)
        lhs, groups = folded(lhs, features), size * groups
    made = rows.convolution(lhs, folded(rhs, attrs["rhs_dims"][0]), groups=groups, **attrs)
    return unfolded(made, attrs["out_dims"][1], size, count)


def _factor_dims(
    position: int, _x: Value, _weights: Value, *, rhs_dims: Ints, out_dims: Ints, **_: Any
) -> dict[int, int] | None:
    return {out_dims[1]: rhs_dims[0]} if position == 1 else None


convolution = define(
    name="convolution",
    arity=2,
    kind=Kind.COMPOSITE,
    doc=(
        "Sums of products of windows of lhs with rhs, over the features of a group and the "
        "window; nothing is reversed. lhs is dilated with zeros, then padded with zeros or "
        "cropped. Operands are converted to the accumulate dtype, multiplied and summed there "
        "in any order, and the sum converted to the result dtype once. Integers wrap. "
        "0 · inf gives NaN, with padding too; whether zeros between elements of lhs count is "
        "unspecified. No features give 0."
    ),
    attrs=(
        Attr("strides", "ints", "steps from window to window; 1 if left out"),
        Attr("lo", "ints", "zeros before each spatial dimension; negative crops"),
        Attr("hi", "ints", "zeros after each spatial dimension; negative crops"),
        Attr("lhs_dilation", "ints", "steps between elements of lhs; 1 if left out"),
        Attr("rhs_dilation", "ints", "steps between elements of a window; 1 if left out"),
        Attr("lhs_dims", "ints", "dimensions of batch, features, spatial; in order if left out"),
        Attr("rhs_dims", "ints", "dimensions of output features, input features, spatial"),
        Attr("out_dims", "ints", "dimensions of batch, features, spatial of the result"),
        Attr("groups", "int", "parts of the features, each with its own windows", default=1),
        Attr("accumulate", "dtype", "dtype of products and sums; as for dot_general"),
        Attr("result", "dtype", "dtype of the result; the operands' if left out"),
        precision_column(),
    ),
    infer=_infer,
    fill=_fill,
    factor_dims=_factor_dims,
    reference=_reference,
    vjp=_vjp,
    dtypes=NUMERIC,
    special=(
        _cell("[[[1, 2, 3]]]", "[[[1, -1]]]", "[[[-1, -1]]]"),
        _cell("[[[1, inf, nan]]]", "[[[0.0]]]", "[[[0.0, nan, nan]]]"),
        _cell("[[[inf]]]", "[[[0.0, 1]]]", "[[[inf, nan]]]", lo=(1,), hi=(1,)),
        _cell("[[[]]]", "[[[2]]]", "[[[0.0, 0.0]]]", lo=(1,), hi=(1,)),
        _cell("[[[1, 2, 3]]]", "[[[1]]]", "[[[2]]]", lo=(-1,), hi=(-1,)),
        _cell("[[[INT_MAX, 1]]]", "[[[1, 1]]]", "[[[INT_MIN]]]", "int"),
    ),
    traits=frozenset({Trait.EXPENSIVE}),
    accuracy=DERIVED,
    decompose=_decompose,
    batch=_batch,
)


__all__ = ["Geometry", "convolution", "patches"]

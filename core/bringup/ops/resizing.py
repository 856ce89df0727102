"""The resize row: dimensions resampled at half-pixel centres."""

from __future__ import annotations

import numpy as np

from bringup.dtypes import FLOATS, STORED, i32
from bringup.errors import OpTypeError
from bringup.graph import Value
from bringup.ops import build
from bringup.ops._checks import ints, one_of
from bringup.ops._numeric import Array, is_float, round_to, wider
from bringup.ops.build import rows
from bringup.ops.special_values import Special
from bringup.ops.table import DERIVED, EXACT, Attr, Attrs, Cotangents, Kind, Types, define
from bringup.records import record
from bringup.types import TensorType

Ints = tuple[int, ...]

_METHODS = ("nearest", "linear", "cubic")
_REACH = {"linear": 1.0, "cubic": 2.0}


def _infer(operands: Types, attrs: Attrs) -> TensorType:
    (x,) = operands
    shape = ints("resize", attrs, "shape", x.rank)
    if attrs["method"] != "nearest":
        one_of("resize", x, FLOATS)
    for d, (n, m) in enumerate(zip(x.shape, shape, strict=True)):
        if m < 0 or (m and not n):
            raise OpTypeError(
                f"resize: dimension {d} of {x} has {n} elements, {m} are asked for",
                fix="resize what is not empty to a size of at least 0",
            )
    return x.with_shape(shape)


# -- weights ---------------------------------------------------------------------------------------


@record(eq=False)
class _Taps:
    """Which elements make each new one: ``sum over t of weight[o, t] · x[index[o, t]]``."""

    index: Array
    weight: Array

    def turned(self, size: int) -> _Taps:
        """The taps of the gradient: which results each of `size` elements is in."""
        readers: list[list[tuple[int, float]]] = [[] for _ in range(size)]
        for o, (places, weights) in enumerate(zip(self.index, self.weight, strict=True)):
            for i, w in zip(places, weights, strict=True):
                if w != 0:
                    readers[i].append((o, w))
        most = max(map(len, readers), default=0)
        index, weight = np.zeros((size, most), np.int64), np.zeros((size, most))
        for i, found in enumerate(readers):
            for t, (o, w) in enumerate(found):
                index[i, t], weight[i, t] = o, w
        return _Taps(index, weight)


def _centres(size: int, count: int) -> Array:
    """Where the new elements lie among the old ones, whose centres are whole numbers."""
    return np.asarray((np.arange(count) + 0.5) * size / count - 0.5)


def _nearest(size: int, count: int) -> Array:
    """The element in which each new centre lies, computed without rounding."""
    return (2 * np.arange(count) + 1) * size // (2 * count)


def _kernel(method: str, distance: Array) -> Array:
    """The weight at a distance: a triangle, or the cubic of Keys with a = −1/2."""
    distance = np.abs(distance)
    if method == "linear":
        return np.asarray(np.maximum(1 - distance, 0))
    near = (1.5 * distance - 2.5) * distance * distance + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return np.where(distance < 1, near, np.where(distance < 2, far, 0.0))


def _taps(size: int, count: int, method: str, antialias: bool) -> _Taps:
    if method == "nearest":
        index = _nearest(size, count)[:, None]
        return _Taps(index, np.ones(index.shape))
    width = max(size / count, 1.0) if antialias else 1.0
    reach = _REACH[method] * width
    centres = _centres(size, count)[:, None]
    most = int(np.ceil(2 * reach)) + 1
    index = np.floor(centres - reach).astype(np.int64) + 1 + np.arange(most)
    weight = _kernel(method, (index - centres) / width)
    # Outside there is nothing: what is inside shares its weight.
    weight = np.where((index >= 0) & (index < size), weight, 0.0)
    weight /= weight.sum(axis=1, keepdims=True)
    used = np.flatnonzero(weight.any(axis=0))
    span = slice(used[0], used[-1] + 1) if used.size else slice(0, 1)
    return _Taps(np.clip(index, 0, size - 1)[:, span], weight[:, span])


def _changed(shape: Ints, target: Ints) -> list[int]:
    """The dimensions to resample, those that shrink most first."""
    dims = [d for d, (n, m) in enumerate(zip(shape, target, strict=True)) if n != m]
    return sorted(dims, key=lambda d: target[d] / shape[d])


# -- reference -------------------------------------------------------------------------------------


def _reference(x: Array, *, shape: Ints, method: str, antialias: bool) -> Array:
    x = np.asarray(x)
    dtype = x.dtype
    if 0 in shape:
        return np.zeros(shape, dtype)
    wide = x.astype(wider(dtype)) if is_float(dtype) and method != "nearest" else x
    for d in _changed(x.shape, shape):
        taps = _taps(wide.shape[d], shape[d], method, antialias)
        found = np.take(wide, taps.index, axis=d)
        if method == "nearest":
            wide = np.take(found, 0, axis=d + 1)
            continue
        weight = taps.weight.astype(wide.dtype)
        weight = weight.reshape(*weight.shape, *(1,) * (wide.ndim - 1 - d))
        with np.errstate(all="ignore"):
            wide = np.sum(np.where(weight == 0, 0, found * weight), axis=d + 1, dtype=wide.dtype)
    return wide if wide.dtype == dtype else round_to(wide, dtype)


# -- decomposition ---------------------------------------------------------------------------------


def _picked(x: Value, dim: int, index: Array) -> Value:
    """Elements of one dimension by a table of two, whose dimensions take its place."""
    shape = (*x.shape[:dim], *index.shape, *x.shape[dim + 1 :])
    return rows.gather(
        x,
        build.constant(index.astype(np.int32), i32),
        offset=tuple(d for d in range(len(shape)) if d not in (dim, dim + 1)),
        index_map=(dim,),
        index_dim=2,
        collapsed=(dim,),
        sizes=tuple(1 if d == dim else n for d, n in enumerate(x.shape)),
    )


def _weighed(x: Value, dim: int, taps: _Taps) -> Value:
    found = _picked(x, dim, taps.index)
    weight = build.constant(taps.weight, x.dtype)
    spread = build.broadcast_to(weight, found.shape, (dim, dim + 1))
    zero = build.zeros_like(found)
    unused = build.compare("eq", spread, zero)  # 0 times what is no number would be one
    return build.sum_(rows.select(unused, zero, rows.mul(found, spread)), (dim + 1,))


def _near(x: Value, dim: int, count: int) -> Value:
    """Nearest elements, by movement where one size divides the other."""
    size = x.shape[dim]
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :])
    if count % size == 0:
        many = (*x.shape[: dim + 1], count // size, *x.shape[dim + 1 :])
        dims = [d + (d > dim) for d in range(len(x.shape))]
        return build.reshape(build.broadcast_to(x, many, dims), shape)
    if size % count == 0:
        step = size // count
        start, stride = [0] * len(shape), [1] * len(shape)
        start[dim], stride[dim] = step // 2, step
        return rows.slice(x, start=tuple(start), limit=x.shape, stride=tuple(stride))
    return build.reshape(_picked(x, dim, _nearest(size, count)[:, None]), shape)


def _decompose(x: Value, *, shape: Ints, method: str, antialias: bool) -> Value:
    if 0 in shape:
        return build.splat(0, x.type.with_shape(shape))
    wide = x if method == "nearest" else build.widened(x)
    for d in _changed(x.shape, shape):
        if method == "nearest":
            wide = _near(wide, d, shape[d])
        else:
            wide = _weighed(wide, d, _taps(wide.shape[d], shape[d], method, antialias))
    return build.convert(wide, x.dtype)


def _vjp(
    ct: Value, _result: Value, x: Value, *, shape: Ints, method: str, antialias: bool
) -> Cotangents:
    if 0 in (*shape, *x.shape):
        return (build.zeros_like(x),)
    wide = build.widened(ct)
    for d in _changed(x.shape, shape)[::-1]:
        taps = _taps(x.shape[d], shape[d], method, antialias).turned(x.shape[d])
        wide = _weighed(wide, d, taps)
    return (build.convert(wide, x.dtype),)


def _cell(x: str, result: str, method: str, *kinds: str, size: int) -> Special:
    attrs = (("shape", (size,)), ("method", method))
    return Special((x,), result, kinds or ("float",), attrs)


resize = define(
    name="resize",
    arity=1,
    kind=Kind.COMPOSITE,
    doc=(
        "Every dimension resampled to a new size; centres lie at (i + 1/2) · old / new − 1/2. "
        "nearest takes the element a centre lies in; linear and cubic (Keys, a = −1/2) weigh "
        "those around it, and at the edge those inside share the weight. NaN and ±inf reach "
        "no further than their weights."
    ),
    attrs=(
        Attr("shape", "ints", "the new sizes"),
        Attr("method", "str", "what is taken", _METHODS),
        Attr("antialias", "bool", "reach wider where a size shrinks", default=False),
    ),
    infer=_infer,
    reference=_reference,
    vjp=_vjp,
    dtypes=STORED,
    special=(
        _cell("[1, nan]", "[1, 1, nan, nan]", "nearest", size=4),
        _cell("[1, 2, 3, 4]", "[2, 4]", "nearest", "float", "int", "uint", size=2),
        _cell("[0.0, 4]", "[0.0, 1, 3, 4]", "linear", size=4),
        _cell("[2, inf]", "[2, inf, inf, inf]", "linear", size=4),
        _cell("[true, false]", "[false]", "nearest", "bool", size=1),
    ),
    accuracy=DERIVED,
    variant_accuracy={"nearest": EXACT},
    decompose=_decompose,
    variant="method",
)

"""The reduce_window row: folds of sliding windows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup.dtypes import NUMERIC, bool_, i32
from bringup.errors import OpTypeError
from bringup.graph import Value
from bringup.ops import build
from bringup.ops._checks import ints, one_of
from bringup.ops._numeric import Array, is_float, round_to, wider
from bringup.ops._sliding import positions, spread_size, windows
from bringup.ops.batching import Flags
from bringup.ops.build import rows
from bringup.ops.monoids import MONOIDS, NUMERIC_KINDS, ROUNDING, Derivative
from bringup.ops.special_values import Special
from bringup.ops.table import (
    DERIVED,
    EXACT,
    Attr,
    Attrs,
    Cotangents,
    Kind,
    Trait,
    Types,
    define,
)
from bringup.records import record
from bringup.types import TensorType

Ints = tuple[int, ...]

_KINDS = tuple(k for k in NUMERIC_KINDS if MONOIDS[k].derivative is not Derivative.PRODUCT)
_COLUMNS = ("window", "strides", "lo", "hi", "dilation")


@record
class _Window:
    """The attributes that say where windows lie; one entry per dimension."""

    window: Ints
    strides: Ints
    lo: Ints
    hi: Ints
    dilation: Ints

    def extents(self) -> Ints:
        """Sizes of the window, dilated."""
        return tuple(map(spread_size, self.window, self.dilation))

    def counts(self, shape: Ints) -> Ints:
        """The shape of the result."""
        lengths = [n + lo + hi for n, lo, hi in zip(shape, self.lo, self.hi, strict=True)]
        return tuple(map(positions, lengths, self.extents(), self.strides))

    @property
    def moving(self) -> Ints:
        """The dimensions in which a window is more than one element."""
        return tuple(d for d, n in enumerate(self.window) if n > 1)


def _infer(operands: Types, attrs: Attrs) -> TensorType:
    (x,) = operands
    one_of("reduce_window", x, NUMERIC)
    columns = {key: ints("reduce_window", attrs, key, x.rank) for key in _COLUMNS}
    for key in ("window", "strides", "dilation"):
        if any(n < 1 for n in columns[key]):
            raise OpTypeError(
                f"reduce_window: {key} {columns[key]} of {x} must be positive",
                fix="use 1 in dimensions that stay as they are",
            )
    at = _Window(**columns)
    if any(n + lo + hi < 0 for n, lo, hi in zip(x.shape, at.lo, at.hi, strict=True)):
        raise OpTypeError(
            f"reduce_window: lo {at.lo} and hi {at.hi} crop more than {x} has",
            fix="crop at most the whole dimension",
        )
    return x.with_shape(at.counts(x.shape))


def _fill(operands: Types, _attrs: Attrs) -> Attrs:
    rank = operands[0].rank
    ones, none = (1,) * rank, (0,) * rank
    return {"strides": ones, "lo": none, "hi": none, "dilation": ones}


# -- reference -------------------------------------------------------------------------------------


def _reference(x: Array, *, kind: str, **attrs: Any) -> Array:
    x, at, monoid = np.asarray(x), _Window(**attrs), MONOIDS[kind]
    rounded = kind in ROUNDING and is_float(x.dtype)
    wide = x.astype(wider(x.dtype)) if rounded else x
    edge = monoid.empty(wide.dtype)
    grown = [n + max(a, 0) + max(b, 0) for n, a, b in zip(x.shape, at.lo, at.hi, strict=True)]
    padded = np.full(grown, edge, wide.dtype)
    table = zip(x.shape, at.lo, strict=True)
    padded[tuple(slice(max(lo, 0), max(lo, 0) + n) for n, lo in table)] = wide
    kept = zip(grown, at.lo, at.hi, strict=True)
    padded = padded[tuple(slice(max(-a, 0), n - max(-b, 0)) for n, a, b in kept)]
    counts = at.counts(x.shape)
    total = np.full(counts, monoid.neutral(wide.dtype), wide.dtype)
    with np.errstate(all="ignore"):
        for place in itertools.product(*map(range, at.window)):
            table2 = zip(place, at.dilation, counts, at.strides, strict=True)
            spans = [slice(k * d, k * d + spread_size(n, s), s) for k, d, n, s in table2]
            total = monoid.row.reference(total, padded[tuple(spans)])
    return round_to(total, x.dtype) if rounded else np.asarray(total)


# -- decomposition ---------------------------------------------------------------------------------


def _spread(x: Value, edge: Any, at: _Window) -> tuple[Value, Ints]:
    """Every window laid out: its elements in a dimension in front of each moving one.

    edge: what padding holds.
    Returns also where the windows' own dimensions are.
    """
    counts = at.counts(x.shape)
    x = build.pad(x, edge, at.lo, at.hi)
    own: list[int] = []
    for d, count in enumerate(counts):
        dim = d + len(own)
        sizes = (at.window[d], count)
        x = windows(x, dim, (at.dilation[d], at.strides[d]), sizes)
        if d in at.moving:
            own.append(dim)
        else:
            x = build.reshape(x, (*x.shape[:dim], *x.shape[dim + 1 :]))
    return x, tuple(own)


def _decompose(x: Value, *, kind: str, **attrs: Any) -> Value:
    at, edge = _Window(**attrs), MONOIDS[kind].empty(x.dtype.numpy)
    counts = at.counts(x.shape)
    if 0 in counts:
        return build.splat(0, x.type.with_shape(counts))
    spread, own = _spread(x, edge, at)
    return build.reduce(kind, spread, own)


# -- gradients -------------------------------------------------------------------------------------


def _vjp(ct: Value, result: Value, x: Value, *, kind: str, **attrs: Any) -> Cotangents:
    at = _Window(**attrs)
    if 0 in (*ct.shape, *x.shape):
        return (build.zeros_like(x),)
    back = _back(x.shape, ct.shape, at)
    gaps = [s - 1 for s in at.strides]
    if MONOIDS[kind].derivative is Derivative.LINEAR:
        dilated = build.pad(ct, 0, back.lo, back.hi, gaps)
        plain = (0,) * len(x.shape)
        columns = {"window": at.window, "dilation": at.dilation, "lo": plain, "hi": plain}
        return (rows.reduce_window(dilated, kind=kind, strides=back.strides, **columns),)
    first = _first(result, x, kind, at)
    bare = _Window(back.window, back.strides, (0,) * len(gaps), (0,) * len(gaps), back.dilation)
    cts, own = _spread(build.pad(ct, 0, back.lo, back.hi, gaps), 0, bare)
    chosen, _ = _spread(build.pad(first, -1, back.lo, back.hi, gaps), -1, bare)
    # Windows of results that hold an element have it at mirrored places.
    last = build.splat(math.prod(at.window) - 1, chosen.type)
    mine = build.compare("eq", chosen, rows.sub(last, _places(chosen.type, own)))
    return (build.sum_(rows.select(mine, cts, build.zeros_like(cts)), own),)


def _back(shape: Ints, counts: Ints, at: _Window) -> _Window:
    """For each element, the windows that hold it, in the dilated results."""
    made = map(spread_size, counts, at.strides)
    return _Window(
        window=at.window,
        strides=(1,) * len(shape),
        lo=tuple(e - 1 - lo for e, lo in zip(at.extents(), at.lo, strict=True)),
        hi=tuple(n - o + lo for n, o, lo in zip(shape, made, at.lo, strict=True)),
        dilation=at.dilation,
    )


def _places(type_: TensorType, own: Ints) -> Value:
    """The row-major place of each element within its window."""
    places = build.splat(0, type_)
    for d in own:
        size = build.splat(type_.shape[d], type_)
        places = rows.add(rows.mul(places, size), rows.iota(type=type_, dim=d))
    return places


def _first(result: Value, x: Value, kind: str, at: _Window) -> Value:
    """The place of the first extreme of each window."""
    spread, own = _spread(x, MONOIDS[kind].empty(x.dtype.numpy), at)
    hits = build.compare("eq", spread, build.kept(result, own, spread.shape))
    hits = rows.or_(hits, build.is_nan(spread))
    if any(n > 0 for n in (*at.lo, *at.hi)):
        # Padding is as extreme as an infinity, but no element.
        inside, _ = _spread(build.splat(True, x.type.with_dtype(bool_)), False, at)
        hits = rows.and_(hits, inside)
    type_ = spread.type.with_dtype(i32)
    beyond = build.splat(math.prod(at.window), type_)
    return build.reduce("min", rows.select(hits, _places(type_, own), beyond), own)


def _cell(x: str, kind: str, result: str, *kinds: str, **attrs: Any) -> Special:
    table = {"kind": kind, "window": (2,), **attrs}
    return Special((x,), result, kinds or ("float",), tuple(table.items()))


def _batch(
    operands: Sequence[Value], _batched: Flags, _size: int, /, *, kind: str, **attrs: Ints
) -> Value:
    """Windows of one example."""
    still = {"window": 1, "strides": 1, "lo": 0, "hi": 0, "dilation": 1}
    moved = {name: (still[name], *values) for name, values in attrs.items()}
    return rows.reduce_window(operands[0], kind=kind, **moved)


reduce_window = define(
    name="reduce_window",
    arity=1,
    kind=Kind.COMPOSITE,
    doc=(
        "Fold windows that slide over every dimension, as reduce folds dimensions: padding "
        "holds 0, −inf or INT_MIN, inf or INT_MAX; NaN in a window gives NaN, and −0 < +0. "
        "Integers wrap. The gradient of max and min goes to the first extreme of each window."
    ),
    attrs=(
        Attr("kind", "str", "the fold", _KINDS),
        Attr("window", "ints", "size in each dimension"),
        Attr("strides", "ints", "steps from window to window; 1 if left out"),
        Attr("lo", "ints", "elements added before each dimension; negative crops"),
        Attr("hi", "ints", "elements added after each dimension; negative crops"),
        Attr("dilation", "ints", "steps between elements of a window; 1 if left out"),
    ),
    infer=_infer,
    fill=_fill,
    reference=_reference,
    vjp=_vjp,
    dtypes=NUMERIC,
    special=(
        _cell("[1, 3, 2]", "max", "[3, 3]"),
        _cell("[1, nan, -inf]", "max", "[nan, nan]"),
        _cell("[-0.0, 0.0]", "min", "[-0.0]"),
        _cell("[-inf]", "max", "[-inf, -inf]", lo=(1,), hi=(1,)),
        _cell("[]", "add", "[0.0]", lo=(1,), hi=(1,)),
        _cell("[1]", "max", "[]"),
        _cell("[-0.0, -0.0]", "add", "[-0.0]"),
        _cell("[-0.0]", "add", "[0.0, 0.0]", lo=(1,), hi=(1,)),
        _cell("[inf, -inf, 1]", "add", "[nan, -inf]"),
        _cell("[INT_MAX, 1]", "add", "[INT_MIN]", "int"),
        _cell("[]", "max", "[INT_MIN]", "int", lo=(2,), hi=(0,)),
    ),
    traits=frozenset({Trait.EXPENSIVE}),
    accuracy=DERIVED,
    variant_accuracy={kind: EXACT for kind in _KINDS if kind not in ROUNDING},
    decompose=_decompose,
    batch=_batch,
    variant="kind",
)

"""Rows that write at data-dependent indices: scatter and dynamic_update_slice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bringup.dtypes import NUMERIC, STORED, i32, i64
from bringup.errors import OpTypeError
from bringup.graph import Value
from bringup.graph.index import Bound, Element, Expr, Index, Mask, Source
from bringup.ops import build
from bringup.ops._checks import listed, one_of
from bringup.ops._numeric import Array, is_float, round_to, wider
from bringup.ops._windows import (
    DIMENSION_NUMBERS,
    Windows,
    array_of,
    array_rows,
    checked_numbers,
    checked_sizes,
    clamped,
    coordinates,
    sizes_of_updates,
    spread_inside,
    starts_in,
    targets,
    window_rows,
    windows_of,
)
from bringup.ops.batching import Flags, carried
from bringup.ops.build import rows
from bringup.ops.gathering import (
    checked_starts,
    clamp_starts,
    first_example,
    inside_of,
    joined_starts,
    numbers_of_examples,
    one_of_rows,
)
from bringup.ops.monoids import MONOIDS, NUMERIC_KINDS, ROUNDING, Derivative
from bringup.ops.special_values import Special
from bringup.ops.table import (
    EXACT,
    SUM,
    Attr,
    Attrs,
    Cotangents,
    Domain,
    Kind,
    Trait,
    Types,
    define,
)
from bringup.types import TensorType

Ints = tuple[int, ...]

_KINDS = ("set", *NUMERIC_KINDS)
_NUMBERS = ("offset", "index_map", "index_dim", "collapsed", "batch")


def scatter_windows(
    x: TensorType, indices: TensorType, updates: TensorType, attrs: Attrs
) -> Windows:
    """The geometry of a scatter."""
    return windows_of(x, indices, sizes_of_updates("scatter", x, updates, attrs), attrs)


def _infer_scatter(operands: Types, attrs: Attrs) -> TensorType:
    x, indices, updates = operands
    if updates.dtype is not x.dtype:
        raise OpTypeError(
            f"scatter: updates must have the dtype of x: {listed(operands)}",
            fix=f"convert updates to {x.dtype}",
        )
    if attrs["kind"] != "set":
        one_of("scatter", x, NUMERIC, f"x of kind {attrs['kind']!r}")
    checked_numbers("scatter", x, indices, attrs)
    windows = scatter_windows(x, indices, updates, attrs)
    checked_sizes("scatter", x, windows.sizes, attrs)
    if windows.result != updates.shape:
        raise OpTypeError(
            f"scatter: updates of {listed(operands)} must have shape {windows.result}",
            fix="give updates the shape of the positions with the windows' dimensions at offset",
        )
    return x


def _scatter_reference(
    x: Array, indices: Array, updates: Array, *, kind: str, unique: bool, **attrs: Any
) -> Array:
    del unique
    x, updates = np.asarray(x), np.asarray(updates)
    gone = {*attrs["collapsed"], *attrs["batch"][0]}
    spans = iter(updates.shape[d] for d in attrs["offset"])
    sizes = tuple(1 if d in gone else next(spans) for d in range(x.ndim))
    windows = Windows(x.shape, np.shape(indices), sizes, **attrs)
    starts, inside = starts_in(windows, indices)
    position = np.zeros((1,) * updates.ndim, np.int64)
    for n, part in zip(x.shape, coordinates(windows, starts), strict=True):
        position = position * n + part
    is_inside = spread_inside(windows, inside).reshape(-1)
    positions = np.broadcast_to(position, updates.shape).reshape(-1)[is_inside]
    dtype = wider(x.dtype) if kind in ROUNDING and is_float(x.dtype) else x.dtype
    result = x.astype(dtype).reshape(-1)
    with np.errstate(all="ignore"):
        combine = _last if kind == "set" else MONOIDS[kind].row.reference
        _in_order(result, positions, updates.reshape(-1)[is_inside].astype(dtype), combine)
    result = round_to(result, x.dtype) if is_float(x.dtype) else result
    return np.asarray(result.reshape(x.shape))


def _last(_old: Array, new: Array) -> Array:
    return new


def _in_order(result: Array, positions: Array, values: Array, combine: Callable[..., Any]) -> None:
    """Combine each value into ``result[positions]``, first come first served.

    All first visitors of an element go together, then all second ones, and so on.
    """
    order = np.argsort(positions, kind="stable")
    positions, values = positions[order], values[order]
    first = (
        np.flatnonzero(np.r_[True, positions[1:] != positions[:-1]])
        if positions.size
        else positions
    )
    visit = np.arange(positions.size) - np.repeat(first, np.diff(np.r_[first, positions.size]))
    for number in range(int(visit.max(initial=-1)) + 1):
        visitors = visit == number
        result[positions[visitors]] = combine(result[positions[visitors]], values[visitors])


def _scatter_vjp(
    ct: Value, result: Value, x: Value, indices: Value, updates: Value, /, **attrs: Any
) -> Cotangents:
    kind, back = attrs["kind"], _Back(ct, result, x, indices, updates, attrs)
    derivative = None if kind == "set" else MONOIDS[kind].derivative
    return _BACK[derivative](back)


class _Back:
    """What the gradients of the kinds share."""

    def __init__(
        self, ct: Value, result: Value, x: Value, indices: Value, updates: Value, attrs: Any
    ) -> None:
        self.ct, self.result, self.x = ct, result, x
        self.indices, self.updates = indices, updates
        self.numbers = {name: attrs[name] for name in _NUMBERS}
        self.unique = attrs["unique"]
        self.windows = scatter_windows(x.type, indices.type, updates.type, attrs)

    def read(self, x: Value) -> Value:
        """An array's elements where the updates went, 0 for those that were dropped."""
        sizes = self.windows.sizes
        return rows.gather(x, self.indices, sizes=sizes, mode="fill", **self.numbers)

    def write(self, x: Value, updates: Value, kind: str) -> Value:
        unique = self.unique
        return rows.scatter(x, self.indices, updates, kind=kind, unique=unique, **self.numbers)


def _back_add(back: _Back) -> Cotangents:
    return (back.ct, None, back.read(back.ct))


def _back_set(back: _Back) -> Cotangents:
    by_x = back.write(back.ct, build.zeros_like(back.updates), "set")
    by_updates = back.read(back.ct)
    if not back.unique:
        # An update that a later one replaced has no influence.
        count = back.updates.type.size
        flat = rows.iota(type=TensorType((count,), i64), dim=0)
        numbers = build.reshape(flat, back.updates.shape)
        none = build.splat(-1, back.x.type.with_dtype(i64))
        won = build.compare("eq", back.read(back.write(none, numbers, "set")), numbers)
        by_updates = rows.select(won, by_updates, build.zeros_like(by_updates))
    return (by_x, None, by_updates)


def _back_mul(back: _Back) -> Cotangents:
    """Products of all other factors, right where zeros would make a quotient NaN."""
    zero, one = build.zeros_like(back.updates), build.ones_like(back.updates)
    by_x = rows.mul(back.ct, back.write(build.ones_like(back.x), back.updates, "mul"))
    is_zero = build.compare("eq", back.updates, zero)
    factors = rows.select(is_zero, one, back.updates)
    product = rows.mul(back.ct, back.write(back.x, factors, "mul"))
    zeros = back.write(build.zeros_like(back.x), rows.select(is_zero, one, zero), "add")
    others = rows.sub(back.read(zeros), rows.select(is_zero, one, zero))
    share = rows.div(back.read(product), factors)
    return (by_x, None, rows.select(build.compare("eq", others, zero), share, zero))


def _back_extremum(back: _Back) -> Cotangents:
    """Those that equal the result share its cotangent."""
    dtype = back.x.dtype
    x_hits = build.convert(build.compare("eq", back.x, back.result), dtype)
    hits = build.compare("eq", back.updates, back.read(back.result))
    inside = inside_of(back.windows, back.indices)
    if inside is not None:
        spread = build.broadcast_to(inside, back.updates.shape, back.windows.position_dims)
        hits = rows.and_(hits, spread)
    update_hits = build.convert(hits, dtype)
    share = rows.div(back.ct, back.write(x_hits, update_hits, "add"))
    return (rows.mul(share, x_hits), None, rows.mul(back.read(share), update_hits))


_BACK: dict[Derivative | None, Callable[[_Back], Cotangents]] = {
    None: _back_set,
    Derivative.LINEAR: _back_add,
    Derivative.PRODUCT: _back_mul,
    Derivative.SELECTION: _back_extremum,
}


def _scatter_decompose(
    x: Value, indices: Value, updates: Value, /, *, kind: str, unique: bool, **attrs: Any
) -> Value:
    del unique
    windows = scatter_windows(x.type, indices.type, updates.type, attrs)
    rows_form = targets(windows, indices)
    if not updates.type.size or not x.type.size:
        return x
    target = rows_form.inside_only(windows)
    old, new = array_rows(windows, x), window_rows(windows, updates)
    return array_of(windows, _combined(kind, old, target, new, _order(windows, updates)))


def _order(windows: Windows, updates: Value) -> Value:
    """The place in row-major order of the updates of the first element of each row."""
    dtype = i32 if updates.type.size < 2**31 else i64
    flat = rows.iota(type=TensorType((updates.type.size,), dtype), dim=0)
    numbers = window_rows(windows, build.reshape(flat, updates.shape))
    return build.reshape(build.slice_dim(numbers, 2, 0, 1), numbers.shape[:2])


def _combined(kind: str, old: Value, target: Value, new: Value, order: Value) -> Value:
    """``old[batch, place, row]`` combined with ``new[batch, window, row]`` at ``target``."""
    batch, places, width = old.shape
    flat = (batch, places, target.shape[1])
    spread = build.broadcast_to(target, flat, (0, 2))
    hit = build.compare("eq", spread, rows.iota(type=spread.type, dim=1))
    number = build.broadcast_to(order, flat, (0, 2))
    last = build.reduce("max", rows.select(hit, number, build.like(number, -1)), (2,))
    touched = build.compare("ge", last, build.zeros_like(last))
    touched = build.broadcast_to(touched, old.shape, (0, 1))
    if kind == "set":
        final = build.compare("eq", number, build.broadcast_to(last, flat, (0, 1)))
        return rows.select(touched, one_of_rows(new, rows.and_(hit, final)), old)
    shape = (*flat, width)
    values = build.broadcast_to(new, shape, (0, 2, 3))
    monoid = MONOIDS[kind]
    neutral = monoid.neutral(old.dtype.numpy)
    hit = build.broadcast_to(hit, shape, (0, 1, 2))
    wide = build.widened if kind in ROUNDING else lambda v: v
    selected = wide(rows.select(hit, values, build.like(values, neutral)))
    folded = build.reduce(kind, selected, (2,))
    combined = build.convert(monoid.row(wide(old), folded), old.dtype)
    return rows.select(touched, combined, old)


def _cell(x: str, at: str, new: str, result: str, kind: str, *kinds: str) -> Special:
    attrs = (
        ("kind", kind), ("offset", ()), ("collapsed", (0,)), ("index_map", (0,)), ("index_dim", 1),
    )  # fmt: skip
    return Special((x, at, new), result, kinds or ("int", "uint"), attrs)


def _batch_scatter(operands: Sequence[Value], batched: Flags, size: int, /, **attrs: Any) -> Value:
    """As `gather`; each example writes into an array of its own."""
    x, indices, updates = operands
    x, updates = carried((x, updates), (batched[0], batched[2]), size)
    return rows.scatter(x, indices, updates, **numbers_of_examples(attrs, True, batched[1]))


scatter = define(
    name="scatter",
    arity=3,
    kind=Kind.INDEXED,
    doc=(
        "x with each window of updates combined into it where its index says; dimension"
        " numbers as of gather, whose result has the shape of updates. A window that does not"
        " lie inside x whole is dropped. Updates of one element are combined in their"
        " row-major order, so the last one set stays; with unique, that two never meet is"
        " promised, and what happens otherwise is unspecified. Sums and products of floats are"
        " in any order. Integers wrap; max, min: NaN if either is, −0 < +0, and equal"
        " extremes share the gradient equally."
    ),
    attrs=(
        Attr("kind", "str", "how an update meets what is there", _KINDS),
        *DIMENSION_NUMBERS,
        Attr("unique", "bool", "no two updates meet", default=False),
    ),
    infer=_infer_scatter,
    reference=_scatter_reference,
    domain=Domain(indices=1),
    vjp=_scatter_vjp,
    dtypes=STORED,
    special=(
        _cell("[5, 6, 7]", "[2, 0]", "[1, 2]", "[2, 6, 1]", "set"),
        _cell("[5, 6, 7]", "[1, 1, 1]", "[3, 4, 2]", "[5, 2, 7]", "set"),
        _cell("[5, 6, 7]", "[1, 1, 1]", "[3, 4, 2]", "[5, 15, 7]", "add"),
        _cell("[5, 6, 7]", "[1, 1]", "[3, 2]", "[5, 36, 7]", "mul"),
        _cell("[5, 6, 7]", "[1, 2, 1]", "[3, 9, 2]", "[5, 2, 7]", "min"),
        _cell("[5, 6, 7]", "[1, 2, 1]", "[3, 9, 2]", "[5, 6, 9]", "max"),
        _cell("[5, 6, 7]", "[3, INT_MAX]", "[1, 1]", "[5, 6, 7]", "set"),
        _cell("[5, 6, 7]", "[-1, INT_MIN]", "[1, 1]", "[5, 6, 7]", "set", "int"),
        _cell("[INT_MAX]", "[0]", "[1]", "[INT_MIN]", "add"),
        _cell("[5]", "[]", "[]", "[5]", "set"),
    ),
    traits=frozenset({Trait.IN_PLACE}),
    accuracy=SUM,
    variant_accuracy={kind: EXACT for kind in _KINDS if kind not in ROUNDING},
    decompose=_scatter_decompose,
    batch=_batch_scatter,
    variant="kind",
)


# -- dynamic_update_slice ------------------------------------------------------------------------


def _infer_update(operands: Types, _attrs: Attrs) -> TensorType:
    if len(operands) < 2:
        raise OpTypeError(
            f"dynamic_update_slice: takes x, update and starts, got {listed(operands)}",
            fix="give an update of the rank of x and one 0-d start for each dimension",
        )
    x, update, *starts = operands
    checked_starts("dynamic_update_slice", x, tuple(starts))
    fits = update.rank == x.rank and all(
        n <= m for n, m in zip(update.shape, x.shape, strict=False)
    )
    if not fits or update.dtype is not x.dtype:
        raise OpTypeError(
            f"dynamic_update_slice: an update of {update} does not fit into {x}",
            fix=f"give it dtype {x.dtype}, rank {x.rank} and sizes of at most {x.shape}",
        )
    return x


def _update_reference(x: Array, update: Array, *starts: Array) -> Array:
    result, update = np.array(x), np.asarray(update)
    lasts = [n - size for n, size in zip(result.shape, update.shape, strict=True)]
    first = clamp_starts(starts, lasts)
    result[tuple(slice(s, s + n) for s, n in zip(first, update.shape, strict=True))] = update
    return result


def _update_vjp(ct: Value, _result: Value, _x: Value, update: Value, *starts: Value) -> Cotangents:
    by_x = rows.dynamic_update_slice(ct, build.zeros_like(update), *starts)
    by_update = rows.dynamic_slice(ct, *starts, sizes=update.shape)
    return (by_x, by_update, *(None for _ in starts))


def _update_decompose(x: Value, update: Value, *starts: Value) -> Value:
    """Along one dimension after the other, every place reads the update's element that would be
    there; those outside keep x.
    """
    if update.shape == x.shape or not update.type.size:
        return update if update.shape == x.shape else x
    mask: Value | None = None
    for d, start in enumerate(starts):
        n, size = x.shape[d], update.shape[d]
        if size == n:
            continue
        dtype = i32 if n < 2**31 else i64
        first = build.broadcast_to(build.convert(clamped(start, n - size), dtype), (n,), ())
        position = rows.sub(rows.iota(type=first.type, dim=0), first)
        near = clamped(position, size - 1)
        inside = build.broadcast_to(build.compare("eq", position, near), x.shape, (d,))
        mask = inside if mask is None else rows.and_(mask, inside)
        update = _spread_along(update, near, d)
    assert mask is not None
    return rows.select(mask, update, x)


def _spread_along(update: Value, indices: Value, dim: int) -> Value:
    sizes = tuple(1 if d == dim else n for d, n in enumerate(update.shape))
    every = tuple(d for d in range(len(sizes)) if d != dim)
    numbers = {"offset": every, "index_map": (dim,), "index_dim": 1, "collapsed": (dim,)}
    return rows.gather(update, indices, sizes=sizes, **numbers)


def _update_cell(x: str, new: str, start: str, result: str, *kinds: str) -> Special:
    return Special((x, new, start), result, kinds or ("int", "uint"))


def _update_index(
    index: Index, _mask: Mask, x: Value, update: Value, *starts: Value
) -> list[Source]:
    if not update.type.size:
        return [Source(0, index)]
    bounds: list[Bound] = []
    shifted: list[Expr] = []
    for e, start, n, size in zip(index, starts, x.shape, update.shape, strict=True):
        if size == n:
            shifted.append(e)
            continue
        shifted.append(e + Expr.of(Element(start, (), (), n - size)) * -1)
        bounds.append(Bound(shifted[-1], 0, size))
    inner = Source(1, tuple(shifted), tuple(bounds))
    return [inner, Source(0, index)] if bounds else [inner]


def _batch_dynamic_update_slice(operands: Sequence[Value], batched: Flags, size: int, /) -> Value:
    """An update if the starts are shared, else windows of a scatter, moved inside before."""
    x, update, *starts = operands
    x, update = carried((x, update), batched[:2], size)
    if not any(batched[2:]):
        return rows.dynamic_update_slice(x, update, first_example(starts), *starts)
    lasts = [n - m for n, m in zip(x.shape[1:], update.shape[1:], strict=True)]
    inside = [clamped(start, last) for start, last in zip(starts, lasts, strict=True)]
    every = tuple(range(1, len(x.shape)))
    return rows.scatter(
        x,
        joined_starts(inside, batched[2:], size),
        update,
        kind="set",
        offset=every,
        index_map=every,
        index_dim=1,
        batch=((0,), (0,)),
        unique=True,
    )


dynamic_update_slice = define(
    name="dynamic_update_slice",
    arity=None,
    kind=Kind.INDEXED,
    doc=(
        "x with the window that begins at the 0-d starts, one for each dimension, replaced by"
        " update. Starts are clamped so that the window lies inside x."
    ),
    infer=_infer_update,
    reference=_update_reference,
    index_map=_update_index,
    domain=Domain(indices=2),
    vjp=_update_vjp,
    dtypes=STORED,
    special=(
        _update_cell("[5, 6, 7]", "[1, 2]", "1", "[5, 1, 2]"),
        _update_cell("[5, 6, 7]", "[1, 2]", "2", "[5, 1, 2]"),
        _update_cell("[5, 6, 7]", "[1, 2]", "INT_MAX", "[5, 1, 2]"),
        _update_cell("[5, 6, 7]", "[1, 2]", "-1", "[1, 2, 7]", "int"),
        _update_cell("[5, 6, 7]", "[]", "1", "[5, 6, 7]"),
    ),
    traits=frozenset({Trait.IN_PLACE}),
    decompose=_update_decompose,
    batch=_batch_dynamic_update_slice,
)

__all__ = ["Windows", "dynamic_update_slice", "scatter", "scatter_windows"]

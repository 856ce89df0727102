"""Rows that read at data-dependent indices: gather and dynamic_slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup.dtypes import INTS, STORAGE, STORED, bool_, f32, i32, i64
from bringup.errors import OpTypeError
from bringup.graph import Value
from bringup.graph.index import ZERO, Element, Expr, Index, Mask, Source
from bringup.ops import build
from bringup.ops._checks import ints, listed, one_of
from bringup.ops._numeric import Array
from bringup.ops._windows import (
    DIMENSION_NUMBERS,
    Windows,
    array_of,
    array_rows,
    checked_numbers,
    checked_sizes,
    clamped,
    components,
    coordinates,
    fits_in,
    spread_inside,
    spread_positions,
    starts_in,
    targets,
    window_rows,
    windows_from,
    windows_of,
)
from bringup.ops.batching import Flags, shifted, spread
from bringup.ops.build import rows
from bringup.ops.monoids import MONOIDS
from bringup.ops.special_values import Special
from bringup.ops.table import Attr, Attrs, Cotangents, Domain, Kind, Types, define
from bringup.types import TensorType

Ints = tuple[int, ...]


def gather_windows(x: TensorType, indices: TensorType, attrs: Attrs) -> Windows:
    """The geometry of a gather."""
    return windows_of(x, indices, attrs["sizes"], attrs)


def _infer_gather(operands: Types, attrs: Attrs) -> TensorType:
    x, indices = operands
    checked_numbers("gather", x, indices, attrs)
    sizes = ints("gather", attrs, "sizes", x.rank)
    checked_sizes("gather", x, sizes, attrs)
    return x.with_shape(gather_windows(x, indices, attrs).result)


def _gather_reference(x: Array, indices: Array, *, mode: str, sizes: Ints, **attrs: Any) -> Array:
    x, indices = np.asarray(x), np.asarray(indices)
    windows = Windows(x.shape, indices.shape, sizes, **attrs)
    starts, inside = starts_in(windows, indices)
    elements = np.broadcast_to(x[coordinates(windows, starts)], windows.result)
    if mode == "clip":
        return elements
    return np.where(spread_inside(windows, inside), elements, x.dtype.type(0))


def inside_of(windows: Windows, indices: Value) -> Value | None:
    """Whether each window lies inside, by position; None if all do, whatever the indices are."""
    inside: Value | None = None
    parts = components(windows, indices)
    for raw, last in zip(parts, windows.last_starts, strict=True):
        fits = fits_in(raw, last)
        if fits is not None:
            inside = fits if inside is None else rows.and_(inside, fits)
    return inside


def _gather_vjp(
    ct: Value, _result: Value, x: Value, indices: Value, *, mode: str, sizes: Ints, **attrs: Any
) -> Cotangents:
    windows = Windows(x.shape, indices.shape, sizes, **attrs)
    if windows.count_of_rows == 1:
        return (_placed(windows, indices, ct, mode), None)
    if mode == "clip":
        indices, attrs = _moved_inside(windows, indices, attrs)
    zeros = build.zeros_like(x)
    return (rows.scatter(zeros, indices, ct, kind="add", **attrs), None)


def _placed(windows: Windows, indices: Value, ct: Value, mode: str) -> Value:
    """The one row of each batch at its place among zeros: a choice, which fuses, unlike scatter."""
    rows_form = targets(windows, indices)
    target = rows_form.places if mode == "clip" else rows_form.inside_only(windows)
    new = window_rows(windows, ct)
    shape = (new.shape[0], windows.count(windows.place_dims), new.shape[2])
    spread = build.broadcast_to(target, shape, (0, 1))
    hit = build.compare("eq", spread, rows.iota(type=spread.type, dim=1))
    values = build.broadcast_to(new, shape, (0, 1, 2))
    return array_of(windows, rows.select(hit, values, build.zeros_like(values)))


def _moved_inside(
    windows: Windows, indices: Value, attrs: dict[str, Any]
) -> tuple[Value, dict[str, Any]]:
    """Indices whose windows all lie inside, components last."""
    parts = components(windows, indices)
    if not parts:
        return indices, attrs
    dtype = i32 if max(windows.last_starts) < 2**31 else i64
    moved = [
        build.convert(clamped(raw, last), dtype)
        for raw, last in zip(parts, windows.last_starts, strict=True)
    ]
    last = len(windows.positions)
    batch = (windows.batch[0], windows.batch_position_dims)
    if len(moved) == 1:
        return moved[0], {**attrs, "index_dim": last, "batch": batch}
    wide = [build.reshape(part, (*part.shape, 1)) for part in moved]
    joined = rows.concatenate(*wide, dim=last)
    return joined, {**attrs, "index_dim": last, "batch": batch}


def _gather_decompose(x: Value, indices: Value, *, mode: str, sizes: Ints, **attrs: Any) -> Value:
    windows = Windows(x.shape, indices.shape, sizes, **attrs)
    rows_form = targets(windows, indices)
    picked = windows_from(windows, picked_rows(array_rows(windows, x), rows_form.places))
    if mode == "clip" or rows_form.inside is None:
        return picked
    inside = spread_positions(windows, rows_form.inside)
    return rows.select(inside, picked, build.zeros_like(picked))


def picked_rows(x: Value, target: Value) -> Value:
    """``x[batch, place, row]`` at places ``target[batch, window]``, as ``[batch, window, row]``."""
    batch, places, width = x.shape
    shape = (batch, target.shape[1], width)
    if not x.type.size:
        return build.splat(0, x.type.with_shape(shape))
    if places == 1:
        return build.broadcast_to(x, shape, (0, 1, 2))
    spread = build.broadcast_to(target, (*target.shape, places), (0, 1))
    return one_of_rows(x, build.compare("eq", spread, rows.iota(type=spread.type, dim=2)))


def one_of_rows(x: Value, hot: Value) -> Value:
    """``[batch, result, row]`` of ``x[batch, place, row]`` at the place where ``hot[batch, result,
    place]`` is true, of which there is one at most; unspecified without.

    A maximum over all places, of which one alone is not the least value of the dtype.
    """
    if x.dtype is bool_:
        wide = one_of_rows(build.convert(x, i32), hot)
        return build.compare("ne", wide, build.zeros_like(wide))
    if x.dtype in STORAGE:  # no op orders them
        return build.convert(one_of_rows(build.convert(x, f32), hot), x.dtype)
    shape = (*hot.shape, x.shape[2])
    values = build.broadcast_to(x, shape, (0, 2, 3))
    least = build.like(values, MONOIDS["max"].empty(x.dtype.numpy))
    hot = build.broadcast_to(hot, shape, (0, 1, 2))
    return build.reduce("max", rows.select(hot, values, least), (2,))


def _cell(
    x: str, indices: str, result: str, *kinds: str, mode: str = "clip", size: int = 1
) -> Special:
    windows = (("sizes", (size,)), ("offset", (1,))) if size > 1 else (
        ("sizes", (1,)), ("offset", ()), ("collapsed", (0,))
    )  # fmt: skip
    attrs = (("index_map", (0,)), ("index_dim", 1), *windows, ("mode", mode))
    return Special((x, indices), result, kinds or ("int", "uint"), attrs)


def _gather_index(
    index: Index, mask: Mask, x: Value, indices: Value, /, *, mode: str, **attrs: Any
) -> list[Source]:
    windows = gather_windows(x.type, indices.type, attrs)
    positions = [index[d] for d in windows.position_dims]
    source_index = [ZERO] * len(windows.shape)
    for d, position in zip(windows.window_dims, windows.offset, strict=True):
        source_index[d] = index[position]
    for d, position in zip(windows.batch[0], windows.batch_position_dims, strict=True):
        source_index[d] = positions[position]
    elements: list[Element] = []
    for c, (d, last) in enumerate(zip(windows.index_map, windows.last_starts, strict=True)):
        where = list(positions)
        if windows.index_dim < len(indices.shape):
            where.insert(windows.index_dim, Expr(c))
        pairs = zip(where, indices.shape, strict=True)
        is_inside = all(e.first >= 0 and e.last < n for e, n in pairs)
        elements.append(Element(indices, tuple(where), () if is_inside else mask, last))
        if last:
            source_index[d] = source_index[d] + elements[-1]
    return [Source(0, tuple(source_index), inside=tuple(elements) if mode == "fill" else ())]


def numbers_of_examples(attrs: dict[str, Any], array: bool, indices: bool) -> dict[str, Any]:
    """Dimension numbers for operands with a batch dimension: array, indices or both."""
    of_array, of_indices = attrs["batch"]
    offset: Ints = shifted(attrs["offset"])
    moved = {**attrs, "offset": offset, "index_dim": attrs["index_dim"] + indices}
    if array:
        moved |= {name: shifted(attrs[name]) for name in ("index_map", "collapsed")}
        of_array = shifted(of_array)
    if indices:
        of_indices = shifted(of_indices)
    if array and indices:
        of_array, of_indices = (0, *of_array), (0, *of_indices)
    elif array:
        moved["offset"] = (0, *offset)
    return {**moved, "batch": (of_array, of_indices)}


def _batch_gather(
    operands: Sequence[Value], batched: Flags, size: int, /, *, sizes: Ints, **attrs: Any
) -> Value:
    """Windows of one element along the examples, or of all of them if the indices are shared."""
    x, indices = operands
    has_array, has_indices = batched
    if has_array:
        sizes = (1 if has_indices else size, *sizes)
    return rows.gather(
        x, indices, sizes=sizes, **numbers_of_examples(attrs, has_array, has_indices)
    )


gather = define(
    name="gather",
    arity=2,
    kind=Kind.INDEXED,
    doc=(
        "Windows of x that begin where indices say. Dimension numbers as in StableHLO: a"
        " window has sizes[d] elements along dimension d of x and begins at 0, or at the"
        " component of its index that index_map gives to d. A window that does not lie inside"
        " x whole is moved to the nearest place where it does (mode clip), or gives 0 or false"
        " throughout (mode fill)."
    ),
    attrs=(
        *DIMENSION_NUMBERS,
        Attr("sizes", "ints", "sizes of a window, by dimension of x"),
        Attr("mode", "str", "what a window outside x gives", ("clip", "fill"), "clip"),
    ),
    infer=_infer_gather,
    reference=_gather_reference,
    index_map=_gather_index,
    domain=Domain(indices=1),
    vjp=_gather_vjp,
    dtypes=STORED,
    special=(
        _cell("[5, 6, 7]", "[2, 0, 0]", "[7, 5, 5]"),
        _cell("[5, 6, 7]", "[3, INT_MAX]", "[7, 7]"),
        _cell("[5, 6, 7]", "[-1, INT_MIN]", "[5, 5]", "int"),
        _cell("[5, 6, 7]", "[3, 1]", "[0, 6]", mode="fill"),
        _cell("[5, 6, 7]", "[-1, INT_MIN]", "[0, 0]", "int", mode="fill"),
        _cell("[5, 6, 7]", "[]", "[]"),
    ),
    decompose=_gather_decompose,
    batch=_batch_gather,
)


# -- dynamic_slice -------------------------------------------------------------------------------


def checked_starts(name: str, x: TensorType, starts: Types) -> None:
    """Raise OpTypeError unless there is one 0-d index of one integer dtype per dimension of x."""
    if len(starts) != x.rank:
        raise OpTypeError(
            f"{name}: {len(starts)} starts for {x}, which has rank {x.rank}",
            fix="give one 0-d start for each dimension",
        )
    for start in starts:
        one_of(name, start, INTS, "a start")
        if start.rank or start is not starts[0]:
            raise OpTypeError(
                f"{name}: starts must be 0-d integers of one dtype: {listed(starts)}",
                fix="reshape them to () and convert them to one dtype",
            )


def _infer_dynamic_slice(operands: Types, attrs: Attrs) -> TensorType:
    x, *starts = operands
    checked_starts("dynamic_slice", x, tuple(starts))
    sizes = ints("dynamic_slice", attrs, "sizes", x.rank)
    checked_sizes("dynamic_slice", x, sizes, {"collapsed": (), "batch": ((), ())})
    return x.with_shape(sizes)


def clamp_starts(starts: Sequence[Array], lasts: Sequence[int]) -> list[int]:
    """Where a window begins, as Python integers."""
    return [min(max(int(np.asarray(s)), 0), last) for s, last in zip(starts, lasts, strict=True)]


def _dynamic_slice_reference(x: Array, *starts: Array, sizes: Ints) -> Array:
    x = np.asarray(x)
    lasts = [n - size for n, size in zip(x.shape, sizes, strict=True)]
    first = clamp_starts(starts, lasts)
    return x[tuple(slice(s, s + size) for s, size in zip(first, sizes, strict=True))]


def _dynamic_slice_vjp(
    ct: Value, _result: Value, x: Value, *starts: Value, sizes: Ints
) -> Cotangents:
    del sizes
    zeros = build.zeros_like(x)
    back = rows.dynamic_update_slice(zeros, ct, *starts) if starts else ct
    return (back, *(None for _ in starts))


def _dynamic_slice_decompose(x: Value, *starts: Value, sizes: Ints) -> Value:
    for d, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if size < x.shape[d]:
            x = _sliced(x, start, d, size)
    return x


def _sliced(x: Value, start: Value, dim: int, size: int) -> Value:
    sizes = tuple(size if d == dim else n for d, n in enumerate(x.shape))
    every = tuple(range(len(sizes)))
    return rows.gather(x, start, offset=every, index_map=(dim,), index_dim=0, sizes=sizes)


def _slice_cell(x: str, start: str, result: str, *kinds: str) -> Special:
    return Special((x, start), result, kinds or ("int", "uint"), (("sizes", (2,)),))


def _dynamic_slice_index(
    index: Index, _mask: Mask, x: Value, *starts: Value, sizes: Ints
) -> list[Source]:
    firsts = [
        Expr.of(Element(start, (), (), n - size)) if size < n else ZERO
        for start, n, size in zip(starts, x.shape, sizes, strict=True)
    ]
    return [Source(0, tuple(e + first for e, first in zip(index, firsts, strict=True)))]


def _batch_dynamic_slice(
    operands: Sequence[Value], batched: Flags, size: int, /, *, sizes: Ints
) -> Value:
    """A slice if the starts are shared, else windows of a gather."""
    x, *starts = operands
    if not any(batched[1:]):
        return rows.dynamic_slice(x, first_example(starts), *starts, sizes=(size, *sizes))
    indices = joined_starts(starts, batched[1:], size)
    rank = len(sizes)
    attrs = {
        "offset": tuple(range(rank)),
        "index_map": tuple(range(rank)),
        "index_dim": 0,
        "collapsed": (),
        "batch": ((), ()),
        "mode": "clip",
    }
    return _batch_gather((x, indices), (batched[0], True), size, sizes=sizes, **attrs)


def first_example(starts: Sequence[Value]) -> Value:
    """The start along the examples."""
    return build.splat(0, starts[0].type if starts else TensorType((), i32))


def joined_starts(starts: Sequence[Value], batched: Flags, size: int) -> Value:
    """One index per example, components last."""
    each = [x if b else spread(x, size) for x, b in zip(starts, batched, strict=True)]
    wide = [build.reshape(x, (size, 1)) for x in each]
    return rows.concatenate(*wide, dim=1) if len(wide) > 1 else wide[0]


dynamic_slice = define(
    name="dynamic_slice",
    arity=None,
    kind=Kind.INDEXED,
    doc=(
        "The window of the given sizes that begins at the 0-d starts, one for each dimension."
        " Starts are clamped so that the window lies inside x."
    ),
    attrs=(Attr("sizes", "ints", "sizes of the result"),),
    infer=_infer_dynamic_slice,
    reference=_dynamic_slice_reference,
    index_map=_dynamic_slice_index,
    domain=Domain(indices=1),
    vjp=_dynamic_slice_vjp,
    dtypes=STORED,
    special=(
        _slice_cell("[5, 6, 7]", "1", "[6, 7]"),
        _slice_cell("[5, 6, 7]", "2", "[6, 7]"),
        _slice_cell("[5, 6, 7]", "INT_MAX", "[6, 7]"),
        _slice_cell("[5, 6, 7]", "-1", "[5, 6]", "int"),
    ),
    decompose=_dynamic_slice_decompose,
    batch=_batch_dynamic_slice,
)

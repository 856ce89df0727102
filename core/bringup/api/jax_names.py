"""Functions of JAX's `lax`, `ops` and top level: windows, scans, segments, whole trees.

`bringup` hands them on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from bringup.api.apply import apply
from bringup.api.arguments import axis_of, flag_of, integer_of, shape_of
from bringup.api.array import Array, Operand
from bringup.api.boundary import guarded
from bringup.api.broadcasting import as_array, as_float, convert
from bringup.api.closures import require_function
from bringup.api.control import scan
from bringup.api.creation import asarray, full
from bringup.api.derivatives import jvp
from bringup.api.elementwise import clip, logaddexp, where
from bringup.api.gathering import dynamic_slice, dynamic_update_slice
from bringup.api.manipulation import concat, expand_dims, flip, reshape, squeeze, stack
from bringup.api.numpy_shapes import ravel
from bringup.api.promotion import common, dtype_of
from bringup.dtypes import bool_, i64, u8
from bringup.errors import OpTypeError
from bringup.ops.monoids import MONOIDS, Derivative
from bringup.runtime.devices import DeviceSpec
from bringup.tracing.pytree import flatten, tree_map, unflatten

T = TypeVar("T")
R = TypeVar("R")
Y = TypeVar("Y")


def clamp(low: Operand, x: Operand, high: Operand, /) -> Array:
    """`clip` with its arguments in JAX's order.

    >>> bu.clamp(0, bu.asarray([-2, 3, 7]), 5).tolist()
    [0, 3, 5]
    """
    return clip(x, low, high)


def bitcast_convert_type(x: Operand, dtype: object, /) -> Array:
    """The bits of each element as another dtype of the same width.

    Raises OpTypeError for another width.

    >>> bu.bitcast_convert_type(bu.asarray([1.0], dtype=bu.float32), bu.int32).tolist()
    [1065353216]
    """
    x, result_dtype = as_array(x), dtype_of(dtype)
    if (
        result_dtype.itemsize != x.dtype.itemsize
        or bool_ in (result_dtype, x.dtype)
        or "complex"
        in (
            result_dtype.kind,
            x.dtype.kind,
        )
    ):
        raise OpTypeError(
            f"bitcast_convert_type: {x.type} has no bits of {result_dtype}",
            fix="give a dtype of numbers of the same width",
        )
    return x if result_dtype is x.dtype else apply("bitcast", (x,), {"dtype": result_dtype})


# -- windows at positions that are data ------------------------------------------------------------


def dynamic_slice_in_dim(
    x: Operand, /, start_index: Operand, slice_size: int, axis: int = 0
) -> Array:
    """`dynamic_slice` along one axis.

    >>> bu.dynamic_slice_in_dim(bu.arange(6), bu.asarray(4), 3).tolist()
    [3, 4, 5]
    """
    x = as_array(x)
    dim = axis_of("dynamic_slice_in_dim", axis, x.ndim)
    sizes = list(x.shape)
    sizes[dim] = slice_size
    return dynamic_slice(x, _starts(x, start_index, dim), sizes)


def dynamic_index_in_dim(
    x: Operand, /, index: Operand, axis: int = 0, keepdims: bool = True
) -> Array:
    """The entry of an axis at a position, which is kept in range.

    keepdims: leave the axis with size 1.

    >>> bu.dynamic_index_in_dim(bu.arange(6), bu.asarray(4), keepdims=False).tolist()
    4
    """
    result = dynamic_slice_in_dim(x, index, 1, axis)
    keeps = flag_of("dynamic_index_in_dim", "keepdims", keepdims)
    return result if keeps else squeeze(result, axis)


def dynamic_update_slice_in_dim(
    x: Operand, /, update: Operand, start_index: Operand, axis: int = 0
) -> Array:
    """`dynamic_update_slice` along one axis.

    >>> bu.dynamic_update_slice_in_dim(bu.arange(4), bu.asarray([9, 9]), 1, 0).tolist()
    [0, 9, 9, 3]
    """
    x = as_array(x)
    dim = axis_of("dynamic_update_slice_in_dim", axis, x.ndim)
    return dynamic_update_slice(x, update, _starts(x, start_index, dim))


def dynamic_update_index_in_dim(
    x: Operand, /, update: Operand, index: Operand, axis: int = 0
) -> Array:
    """The array with the entry of an axis at a position, which is kept in range, replaced.

    update: the entry, with the axis or without it.

    >>> bu.dynamic_update_index_in_dim(bu.arange(4), 9, 1, 0).tolist()
    [0, 9, 2, 3]
    """
    x, new = as_array(x), as_array(update)
    dim = axis_of("dynamic_update_index_in_dim", axis, x.ndim)
    new = expand_dims(new, dim) if new.ndim == x.ndim - 1 else new
    return dynamic_update_slice_in_dim(x, new, index, dim)


def _starts(x: Array, start: Operand, dim: int) -> list[Operand]:
    return [start if d == dim else 0 for d in range(x.ndim)]


# -- loops over rows -------------------------------------------------------------------------------


def map(f: Callable[[Any], Y], /, xs: Any) -> Y:
    """The results of a function for each row of `xs`, one after the other, stacked; see `vmap`.

    xs: a container of arrays whose first dimensions are all the same.

    >>> bu.map(lambda x: x * x, bu.asarray([1, 2, 3])).tolist()
    [1, 4, 9]
    """
    require_function("map", f, "f")
    return scan(lambda _, row: (None, f(row)), None, xs)[1]


def associative_scan(
    fn: Callable[[T, T], T], /, elems: T, reverse: bool = False, axis: int = 0
) -> T:
    """For each entry of an axis what `fn` makes of it and all entries before it, in parallel.

    fn: takes and gives containers like `elems`, of any number of entries, and combines them entry
    by entry: ``fn(earlier, later)``.  It must be associative.
    elems: a container of arrays of one size along the axis.
    reverse: with the entries behind it instead, which are the earlier ones to `fn`.
    As many steps as the logarithm of the size; G. Blelloch (1990).
    Raises OpTypeError.

    >>> bu.associative_scan(bu.maximum, bu.asarray([1, 3, 2, 4])).tolist()
    [1, 3, 3, 4]
    """
    require_function("associative_scan", fn, "fn")
    leaves, treedef = flatten(elems)
    arrays = [as_array(x) for x in leaves]
    dims = [axis_of("associative_scan", axis, x.ndim) for x in arrays]
    if not arrays or len({x.shape[d] for x, d in zip(arrays, dims, strict=True)}) != 1:
        raise OpTypeError(
            f"associative_scan: axis {axis} of {', '.join(str(x.type) for x in arrays)}",
            fix="give arrays of one size along the axis",
        )

    def part(lines: Sequence[Array], *span: int | None) -> list[Array]:
        return [x[(*(slice(None),) * d, slice(*span))] for x, d in zip(lines, dims, strict=True)]

    def combined(first: list[Array], second: list[Array]) -> list[Array]:
        result = flatten(fn(unflatten(treedef, first), unflatten(treedef, second)))[0]
        return [as_array(x) for x in result]

    def prefixes(lines: list[Array]) -> list[Array]:
        size = lines[0].shape[dims[0]]
        if size < 2:
            return lines
        odd = prefixes(combined(part(lines, 0, size - 1, 2), part(lines, 1, None, 2)))
        even_tail = part(lines, 2, None, 2)
        count = (size - 1) // 2
        later = combined(part(odd, 0, count), even_tail) if count else even_tail
        even = [concat([x, y], d) for x, y, d in zip(part(lines, 0, 1), later, dims, strict=True)]
        return [_alternating(x, y, d) for x, y, d in zip(even, odd, dims, strict=True)]

    reversed_ = flag_of("associative_scan", "reverse", reverse)
    ordered = [flip(x, d) for x, d in zip(arrays, dims, strict=True)] if reversed_ else arrays
    scanned = prefixes(ordered)
    result: T = unflatten(
        treedef, [flip(x, d) for x, d in zip(scanned, dims, strict=True)] if reversed_ else scanned
    )
    return result


def _alternating(even: Array, odd: Array, dim: int) -> Array:
    """Entries in turn from two arrays, of which the first may have one more."""
    count = odd.shape[dim]
    before = (slice(None),) * dim
    pairs = stack([even[(*before, slice(0, count))], odd], dim + 1)
    joined = reshape(pairs, (*odd.shape[:dim], 2 * count, *odd.shape[dim + 1 :]))
    tail = even[(*before, slice(count, None))]
    return concat([joined, tail], dim) if tail.shape[dim] else joined


def cumlogsumexp(x: Operand, /, axis: int = 0, reverse: bool = False) -> Array:
    """The logarithm of the sum of ``exp`` of each element and those before it, without overflow.

    >>> bu.cumlogsumexp(bu.asarray([1000.0, -bu.inf])).tolist()
    [1000.0, 1000.0]
    """
    return associative_scan(logaddexp, as_float(x), reverse, axis)


# -- segments --------------------------------------------------------------------------------------


def segment_sum(data: Operand, segment_ids: Operand, /, num_segments: int | None = None) -> Array:
    """The sums of the entries of each segment, ``[num_segments, …]``; of bools how many are true.

    data: ``[n, …]``.  segment_ids: the segment of each entry, integers, ``[n]``; entries of others
    than 0 … num_segments - 1 count nowhere.
    num_segments: as a traced function needs; else the values are looked at, and it is one more than
    the largest.
    Raises OpTypeError, TraceError in a traced function without a number of segments.

    >>> bu.segment_sum(bu.asarray([1, 2, 3]), bu.asarray([1, 0, 1]), 3).tolist()
    [2, 4, 0]
    """
    return _segments("segment_sum", "add", data, segment_ids, num_segments)


def segment_prod(data: Operand, segment_ids: Operand, /, num_segments: int | None = None) -> Array:
    """The products of the entries of each segment, 1 of none; else like `segment_sum`.

    >>> bu.segment_prod(bu.asarray([1, 2, 3]), bu.asarray([1, 0, 1]), 3).tolist()
    [2, 3, 1]
    """
    return _segments("segment_prod", "mul", data, segment_ids, num_segments)


def segment_max(data: Operand, segment_ids: Operand, /, num_segments: int | None = None) -> Array:
    """The largest entry of each segment, the least number of the dtype of none; else like
    `segment_sum`.

    >>> bu.segment_max(bu.asarray([1.0, 2.0, 3.0]), bu.asarray([1, 0, 1]), 3).tolist()
    [2.0, 3.0, -inf]
    """
    return _segments("segment_max", "max", data, segment_ids, num_segments)


def segment_min(data: Operand, segment_ids: Operand, /, num_segments: int | None = None) -> Array:
    """The smallest entry of each segment, the largest number of the dtype of none; else like
    `segment_sum`.

    >>> bu.segment_min(bu.asarray([1.0, 2.0, 3.0]), bu.asarray([1, 0, 1]), 3).tolist()
    [2.0, 1.0, inf]
    """
    return _segments("segment_min", "min", data, segment_ids, num_segments)


def _segments(name: str, kind: str, data: Operand, segment_ids: Operand, count: Any) -> Array:
    x, ids = as_array(data), as_array(segment_ids)
    if not ids.dtype.is_integer or ids.ndim != 1 or ids.shape != x.shape[:1]:
        raise OpTypeError(
            f"{name}: segments {ids.type} of {x.type}",
            fix="give an integer for each entry of the first dimension",
        )
    monoid = MONOIDS[kind]
    selects = monoid.derivative is Derivative.SELECTION
    if x.dtype.is_complex and selects:
        raise OpTypeError(f"{name}: {x.type} has no order", fix="take a real part")
    if x.dtype is bool_:
        result = _segments(name, kind, convert(x, u8 if selects else i64), ids, count)
        return convert(result, bool_) if selects else result
    ids = convert(ids, i64)
    if count is None:
        host = ids._host("the largest of", f"give the number: {name}(data, ids, n)")
        count = int(host.max(initial=-1)) + 1
    (size,) = shape_of(name, integer_of(name, "num_segments", count))
    start = full((size, *x.shape[1:]), monoid.empty(x.dtype.numpy).item(), x.dtype)
    if not size or not x.size:
        return start
    return start.at[where(ids < 0, size, ids)]._update(kind, x)


# -- functions and trees ---------------------------------------------------------------------------


def linearize(fn: Callable[..., R], *primals: Any) -> tuple[R, Callable[..., R]]:
    """The result of ``fn(*primals)``, and a function that says how it changes along tangents.

    primals: containers of float arrays.  The function takes tangents like them, as `jvp` does, and
    computes `fn` again.
    Raises OpTypeError.

    >>> y, push = bu.linearize(lambda x: x * x, bu.asarray(3.0))
    >>> y.item(), push(bu.asarray(1.0)).item()
    (9.0, 6.0)
    """
    require_function("linearize", fn, "fn")

    @guarded
    def push(*tangents: Any) -> R:
        return jvp(fn, primals, tangents)[1]

    return fn(*primals), push


def block_until_ready(tree: T) -> T:
    """A container, once all its arrays are computed.

    >>> bu.block_until_ready({"x": bu.ones(2) + 1})["x"].tolist()
    [2.0, 2.0]
    """
    for leaf in flatten(tree)[0]:
        if isinstance(leaf, Array):
            leaf.block_until_ready()
    return tree


def device_put(tree: T, device: DeviceSpec = None) -> T:
    """A container with its leaves as arrays on a device, by default where they are.

    >>> bu.device_put({"x": 1.5})["x"].tolist()
    1.5
    """
    return tree_map(lambda leaf: asarray(leaf, device=device), tree)


def device_get(tree: Any) -> Any:
    """A container with numpy's arrays in the place of ours.

    >>> bu.device_get({"x": bu.ones(2)})
    {'x': array([1., 1.])}
    """
    return tree_map(lambda leaf: np.asarray(leaf) if isinstance(leaf, Array) else leaf, tree)


def ravel_pytree(tree: T) -> tuple[Array, Callable[[Array], T]]:
    """All elements of a container of arrays as one vector, and the function that puts them back.

    The vector has the dtype in which all meet; the function gives each array its own again.

    >>> flat, unravel = bu.ravel_pytree({"w": bu.ones((2, 1)), "b": bu.zeros(1)})
    >>> flat.tolist(), unravel(flat * 2)["w"].tolist()
    ([0.0, 1.0, 1.0], [[2.0], [2.0]])
    """
    leaves, treedef = flatten(tree)
    arrays = [as_array(leaf) for leaf in leaves]
    types = [x.type for x in arrays]
    wide = common(arrays)[0] if arrays else None
    flat = concat([convert(ravel(x), wide) for x in arrays]) if wide else asarray([])
    size = sum(type_.size for type_ in types)

    @guarded
    def unravel(vector: Array) -> T:
        if vector.shape != (size,):
            raise OpTypeError(
                f"ravel_pytree: {vector.type} does not go back into {treedef}",
                fix=f"give a vector of {size} elements",
            )
        parts, offset = [], 0
        for type_ in types:
            piece = reshape(vector[offset : offset + type_.size], type_.shape)
            parts.append(convert(piece, type_.dtype))
            offset += type_.size
        result: T = unflatten(treedef, parts)
        return result

    return flat, unravel


__all__ = [
    "associative_scan", "bitcast_convert_type", "block_until_ready", "clamp", "cumlogsumexp",
    "device_get", "device_put", "dynamic_index_in_dim", "dynamic_slice_in_dim",
    "dynamic_update_index_in_dim", "dynamic_update_slice_in_dim", "linearize", "map",
    "ravel_pytree", "segment_max", "segment_min", "segment_prod", "segment_sum",
]  # fmt: skip

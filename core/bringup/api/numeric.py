"""Products, polynomials, interpolation, histograms and statistics under the names of numpy and JAX.

`bringup` hands them on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bringup.api.apply import apply_all
from bringup.api.arguments import (
    axes_of,
    axis_of,
    choice_of,
    flag_of,
    integer_of,
    items_of,
    number_of,
    shape_of,
)
from bringup.api.array import Array, Axis, Operand
from bringup.api.boundary import guarded
from bringup.api.broadcasting import as_array, as_float, common_shape, convert, spread
from bringup.api.closures import require_function
from bringup.api.complex import ComplexArray, conj, imag, real
from bringup.api.convolution import conv
from bringup.api.creation import asarray, iota, linspace, ones, ones_like, zeros, zeros_like
from bringup.api.datatypes import finfo
from bringup.api.decompositions import pinv
from bringup.api.defaults import default_float
from bringup.api.elementwise import (
    clip,
    divide,
    equal,
    multiply,
    pow,
    sqrt,
    where,
)
from bringup.api.gathering import take
from bringup.api.manipulation import (
    concat,
    expand_dims,
    flip,
    moveaxis,
    reshape,
    squeeze,
    stack,
)
from bringup.api.numpy_shapes import atleast_2d, diag, ravel, swapaxes
from bringup.api.products import matmul, matrix_transpose, outer, tensordot, vecdot
from bringup.api.promotion import DEFAULT_INT, common, dtype_of
from bringup.api.reductions import diff, max, mean, min, sum
from bringup.api.sorting import searchsorted
from bringup.api.vmap import vmap
from bringup.dtypes import i32, i64
from bringup.errors import OpTypeError
from bringup.tracing.pytree import tree_map
from bringup.types import TensorType

# -- products --------------------------------------------------------------------------------------


def dot(x1: Operand, x2: Operand, /) -> Array:
    """The sum of products over the last axis of `x1` and the last but one of `x2`, or its only one.

    >>> bu.dot(bu.asarray([1, 2]), bu.asarray([3, 4])).tolist()
    11
    """
    a, b = as_array(x1), as_array(x2)
    if not a.ndim or not b.ndim:
        return a * b
    return tensordot(a, b, axes=((-1,), (-2 if b.ndim > 1 else 0,)))


def vdot(x1: Operand, x2: Operand, /) -> Array:
    """The dot product of flattened arrays, of the conjugate of `x1` if complex.

    >>> bu.vdot(bu.asarray([[1, 2]]), bu.asarray([[3], [4]])).tolist()
    11
    """
    return vecdot(ravel(x1), ravel(x2))


def inner(x1: Operand, x2: Operand, /) -> Array:
    """The sum of products over the last axes.

    >>> bu.inner(bu.asarray([1, 2]), bu.asarray([[3, 4], [5, 6]])).tolist()
    [11, 17]
    """
    a, b = as_array(x1), as_array(x2)
    return tensordot(a, b, axes=((-1,), (-1,))) if a.ndim and b.ndim else (a * b)


def kron(x1: Operand, x2: Operand, /) -> Array:
    """Kronecker's product: `x2` times each element of `x1`, put in its place.

    >>> bu.kron(bu.asarray([1, 10]), bu.asarray([1, 2, 3])).tolist()
    [1, 2, 3, 10, 20, 30]
    """
    a, b = as_array(x1), as_array(x2)
    rank = a.ndim if a.ndim > b.ndim else b.ndim
    a, b = (reshape(x, (1,) * (rank - x.ndim) + x.shape) for x in (a, b))
    sizes = [m * n for m, n in zip(a.shape, b.shape, strict=True)]
    apart = [reshape(a, [n for m in a.shape for n in (m, 1)])]
    apart.append(reshape(b, [n for m in b.shape for n in (1, m)]))
    return reshape(multiply(*apart), sizes)


def convolve(x1: Operand, x2: Operand, /, mode: str = "full") -> Array:
    """The sums of products of one vector with the reverse of another, moved along it.

    mode: "full" where they meet at all, "same" as many as the longer has elements, "valid" where
    one lies within the other.
    Raises OpTypeError.

    >>> bu.convolve(bu.asarray([1, 2, 3]), bu.asarray([0, 1])).tolist()
    [0, 1, 2, 3]
    """
    a, b = _vectors("convolve", x1, x2, mode)
    a, b = (b, a) if a.size < b.size else (a, b)
    return _slid(a, flip(b), mode)


def correlate(x1: Operand, x2: Operand, /, mode: str = "valid") -> Array:
    """The sums of products of one vector with another, moved along it; its conjugate if complex.

    mode: as in `convolve`.

    >>> bu.correlate(bu.asarray([1, 2, 3]), bu.asarray([0, 1]), "full").tolist()
    [1, 2, 3, 0]
    """
    a, b = _vectors("correlate", x1, x2, mode)
    b = conj(b) if b.dtype.is_complex else b
    return flip(_slid(b, a, mode)) if a.size < b.size else _slid(a, b, mode)


def _vectors(name: str, x1: Operand, x2: Operand, mode: str) -> tuple[Array, Array]:
    choice_of(name, "mode", mode, ("full", "same", "valid"))
    dtype, _ = common((x1, x2))
    a, b = (convert(as_array(x), dtype) for x in (x1, x2))
    if a.ndim != 1 or b.ndim != 1 or not a.size or not b.size:
        raise OpTypeError(
            f"{name}: {a.type} and {b.type}",
            fix="give two vectors that have elements; nn.conv takes more dimensions",
        )
    return a, b


def _slid(x: Array, kernel: Array, mode: str) -> Array:
    if x.dtype.is_complex:
        (a, b), (c, d) = ((real(vector), imag(vector)) for vector in (x, kernel))
        first = _slid(a, c, mode) - _slid(b, d, mode)
        return ComplexArray(first, _slid(a, d, mode) + _slid(b, c, mode))
    n = kernel.size
    before = {"full": n - 1, "same": n // 2, "valid": 0}[mode]
    after = n - 1 - before if mode == "same" else before
    lines = (reshape(vector, (1, 1, -1)) for vector in (x, kernel))
    return reshape(conv(*lines, padding=((before, after),)), -1)


# -- counts ----------------------------------------------------------------------------------------


def bincount(
    x: Operand,
    /,
    weights: Operand | None = None,
    minlength: int = 0,
    *,
    length: int | None = None,
) -> Array:
    """How often each integer from 0 on occurs, or the sum of the weights where it does.

    x: integers, ``[n]``; those out of range count nowhere.
    length: of the result, as a traced function needs; else the values are looked at, and it is one
    more than the largest, `minlength` at least.
    Raises OpTypeError, TraceError in a traced function without a length.

    >>> bu.bincount(bu.asarray([0, 2, 2])).tolist()
    [1, 0, 2]
    """
    x, min_length = as_array(x), integer_of("bincount", "minlength", minlength)
    if x.ndim != 1 or not (x.dtype.is_integer or x.dtype.kind == "bool"):
        raise OpTypeError(
            f"bincount: {x.type} is no vector of integers",
            fix="convert it, or flatten it with ravel",
        )
    x = convert(x, i64)
    if length is None:
        host = x._host("the largest of", "give the length: bincount(x, length=n)")
        length = int(host.max(initial=-1)) + 1
        length = min_length if min_length > length else length
    (size,) = shape_of("bincount", integer_of("bincount", "length", length))
    shares = ones_like(x) if weights is None else as_array(weights)
    if shares.shape != x.shape:
        raise OpTypeError(
            f"bincount: weights {shares.type} for {x.type}", fix="give one weight for each element"
        )
    return _counted(x, shares, size)


def _counted(indices: Array, weights: Array, size: int) -> Array:
    """The sum of the weights of each index below `size`; indices out of range are left out."""
    if not size or not indices.size:
        return zeros(size, weights.dtype, device=weights._device)
    inside = where(indices < 0, size, indices)
    return zeros(size, weights.dtype, device=weights._device).at[inside].add(weights)


def histogram_bin_edges(
    x: Operand, /, bins: Any = 10, range: Sequence[float] | None = None
) -> Array:
    """The edges of the bins of `histogram`.

    >>> bu.histogram_bin_edges(bu.asarray([1.0, 3.0]), 2).tolist()
    [1.0, 2.0, 3.0]
    """
    name, x = "histogram", ravel(as_float(x))
    edges = None if isinstance(bins, int) else asarray(bins)
    if edges is not None and edges.ndim:
        if edges.ndim != 1 or edges.size < 2:
            raise OpTypeError(
                f"{name}: the edges are {edges.type}",
                fix="give a number of bins, or a vector of two edges at least",
            )
        return edges
    count = integer_of(name, "the number of bins", bins)
    if count < 1:
        raise OpTypeError(f"{name}: {count} bins", fix="give 1 at least")
    if range is not None:
        ends = [number_of(name, "an end", end) for end in items_of(name, "the range", range)]
        if len(ends) != 2 or not (math.isfinite(ends[0]) and 0 <= ends[1] - ends[0] < math.inf):
            raise OpTypeError(f"{name}: {range!r} is no range", fix="give (low, high)")
        low, high = (zeros((), x.dtype, device=x._device) + end for end in ends)
    elif not x.size:
        low, high = zeros((), x.dtype), ones((), x.dtype)
    else:
        low, high = min(x), max(x)
    empty = low == high
    low, high = where(empty, low - 0.5, low), where(empty, high + 0.5, high)
    ramp = convert(iota(TensorType((count,), DEFAULT_INT), 0, x._device), x.dtype)
    return concat([ramp * ((high - low) / count) + low, reshape(high, 1)])


def histogram(
    x: Operand,
    /,
    bins: Any = 10,
    range: Sequence[float] | None = None,
    weights: Operand | None = None,
    density: bool = False,
) -> tuple[Array, Array]:
    """How many elements lie in each bin, and the edges of the bins.

    bins: how many bins of one width, or their edges in order.  The last bin holds its upper edge.
    range: the lowest and the highest edge, by default the smallest and the largest element.
    weights: what each element counts.  density: divide by the whole and by the widths.
    Raises OpTypeError.

    >>> counts, edges = bu.histogram(bu.asarray([0.0, 1.0, 3.0, 4.0]), 2)
    >>> counts.tolist(), edges.tolist()
    ([2, 2], [0.0, 2.0, 4.0])
    """
    x = as_array(x)
    edges = histogram_bin_edges(x, bins, range)
    if weights is None:
        shares = zeros(x.size, DEFAULT_INT, device=x._device) + 1
    else:
        shares = ravel(weights)
    if shares.size != x.size:
        raise OpTypeError(
            f"histogram: weights {shares.type} for {x.type}", fix="give one weight for each element"
        )
    values, size = ravel(x), edges.size - 1
    bin_index = searchsorted(edges, values, side="right") - 1
    bin_index = where(values == edges[-1], size - 1, bin_index)
    # Elements above the last edge, and NaN, are counted in no bin.
    counts = _counted(where(values <= edges[-1], bin_index, size), shares, size)
    if flag_of("histogram", "density", density):
        counts = counts / diff(edges) / sum(counts)
    return counts, edges


def digitize(x: Operand, /, bins: Operand, right: bool = False) -> Array:
    """The number of the bin that each element lies in, as i64: 0 before the first edge.

    bins: edges, ``[n]``, in increasing or decreasing order.
    right: whether bins hold their upper edges instead of their lower ones.

    >>> bu.digitize(bu.asarray([0.5, 1.0, 9.0]), bu.asarray([0.0, 1.0, 2.0])).tolist()
    [1, 2, 3]
    """
    edges = as_array(bins)
    side = "left" if flag_of("digitize", "right", right) else "right"
    rising = searchsorted(edges, x, side=side)
    if edges.size < 2:
        return rising
    falling = edges.size - searchsorted(flip(edges), x, side=side)
    return where(edges[0] > edges[-1], falling, rising)


# -- lines -----------------------------------------------------------------------------------------


def interp(
    x: Operand,
    /,
    xp: Operand,
    fp: Operand,
    left: Operand | None = None,
    right: Operand | None = None,
) -> Array:
    """The values at `x` of the function whose values at points are given, linear between them.

    xp: the points, increasing, ``[n]``.  fp: the values there, ``[n]``.
    left, right: the values before and behind the points, by default the first and the last one.
    Raises OpTypeError.

    >>> bu.interp(bu.asarray([0.5, 3.0]), bu.asarray([0.0, 1.0]), bu.asarray([2.0, 4.0])).tolist()
    [3.0, 4.0]
    """
    x, points, values = as_float(x), as_float(xp), as_float(fp)
    if points.ndim != 1 or points.shape != values.shape or not points.size:
        raise OpTypeError(
            f"interp: values {values.type} at points {points.type}",
            fix="give two vectors of one size",
        )
    # Repeat the last point, so that one point alone works too.
    ends = [concat([line, line[-1:]]) for line in (points, values)]
    left_index = clip(searchsorted(points, x, side="right") - 1, 0, points.size - 1)
    x0, x1, y0, y1 = (take(line, index) for line in ends for index in (left_index, left_index + 1))
    distinct = x1 > x0
    result = y0 + (y1 - y0) * where(distinct, (x - x0) / where(distinct, x1 - x0, 1), 0)
    result = where(x < points[0], values[0] if left is None else left, result)
    result = where(x > points[-1], values[-1] if right is None else right, result)
    return where(equal(x, x), result, x)


def trapezoid(y: Operand, /, x: Operand | None = None, dx: Operand = 1.0, axis: int = -1) -> Array:
    """The integral along an axis of the lines between values.

    x: where the values are, ``[n]`` or of the shape of `y`; without it they are `dx` apart.

    >>> bu.trapezoid(bu.asarray([0.0, 2.0, 0.0])).tolist()
    2.0
    """
    values = as_float(y)
    dim = axis_of("trapezoid", axis, values.ndim)
    line = moveaxis(values, dim, -1)
    width: Operand = dx
    if x is not None:
        points = as_array(x)
        width = diff(points if points.ndim == 1 else moveaxis(points, dim, -1))
    return sum(multiply(width, line[..., 1:] + line[..., :-1]), -1) / 2


def gradient(f: Operand, /, *varargs: Operand, axis: Axis = None) -> Array | list[Array]:
    """The differences of neighbours over their distances, central ones but at the ends.

    varargs: nothing for a distance of 1; one distance for all axes, or one for each axis, which may
    be a vector of the places of the entries.
    Returns an array for each axis; not in a list if there is one.
    Raises OpTypeError, also for axes of fewer than two entries.

    >>> bu.gradient(bu.asarray([1.0, 2.0, 4.0, 7.0])).tolist()
    [1.0, 1.5, 2.5, 3.0]
    """
    x = as_float(f)
    axes = axis if isinstance(axis, Sequence) else None
    dims = (
        [axis_of("gradient", a, x.ndim) for a in axes]
        if axes
        else axes_of("gradient", axis, x.ndim)
    )
    spaces = varargs * len(dims) if len(varargs) == 1 else varargs or (1.0,) * len(dims)
    if len(spaces) != len(dims) or any(x.shape[d] < 2 for d in dims):
        raise OpTypeError(
            f"gradient: {len(varargs)} distances for axes {tuple(dims)} of {x.type}",
            fix="give one, or one for each axis; axes must have two entries at least",
        )
    result = [_slopes(x, d, space) for d, space in zip(dims, spaces, strict=True)]
    return result[0] if len(result) == 1 else result


def _slopes(x: Array, dim: int, space: Operand) -> Array:
    y = moveaxis(x, dim, -1)
    gaps = as_float(space)
    if gaps.ndim > 1 or (gaps.ndim and gaps.size != y.shape[-1]):
        raise OpTypeError(
            f"gradient: places {gaps.type} of {y.shape[-1]} entries",
            fix="give a distance, or the place of each entry",
        )
    steps = y[..., 1:] - y[..., :-1]
    if not gaps.ndim:
        inside = divide((y[..., 2:] - y[..., :-2]) * 0.5, space)
        slopes = divide(steps, space)
    else:
        width = diff(gaps)
        slopes = steps / width
        before, after = width[:-1], width[1:]
        inside = (before * slopes[..., 1:] + after * slopes[..., :-1]) / (before + after)
    return moveaxis(concat([slopes[..., :1], inside, slopes[..., -1:]], -1), -1, dim)


def geomspace(
    start: float, /, stop: float, num: int = 50, *, endpoint: bool = True, dtype: object = None
) -> Array:
    """`num` values from `start` to `stop` of which each is the same multiple of the one before it.

    start, stop: numbers of one sign.  dtype: the default float dtype by default.
    Raises OpTypeError.

    >>> bu.round(bu.geomspace(1, 8, 4), 12).tolist()
    [1.0, 2.0, 4.0, 8.0]
    """
    first, last = (number_of("geomspace", "an end", end) for end in (start, stop))
    if not first * last > 0 or not math.isfinite(last / first):
        raise OpTypeError(
            f"geomspace: no such values from {start} to {stop}", fix="give two numbers of one sign"
        )
    share = linspace(0.0, 1.0, num, endpoint=endpoint)
    values = where(share == 1, last, first * pow(last / first, share))
    return convert(values, default_float() if dtype is None else dtype_of(dtype))


def logspace(
    start: float,
    /,
    stop: float,
    num: int = 50,
    *,
    endpoint: bool = True,
    base: float = 10.0,
    dtype: object = None,
) -> Array:
    """``base ** linspace(start, stop, num)``, of the default float dtype.

    >>> bu.round(bu.logspace(0, 2, 3), 9).tolist()
    [1.0, 10.0, 100.0]
    """
    values = pow(number_of("logspace", "base", base), linspace(start, stop, num, endpoint=endpoint))
    return convert(values, default_float() if dtype is None else dtype_of(dtype))


# -- polynomials -----------------------------------------------------------------------------------


def vander(x: Operand, /, N: int | None = None, increasing: bool = False) -> Array:
    """The powers of each element in a row, the highest first.

    x: ``[m]``.  N: how many powers, m by default.  increasing: the lowest first.

    >>> bu.vander(bu.asarray([1, 2, 3]), 3).tolist()
    [[1, 1, 1], [4, 2, 1], [9, 3, 1]]
    """
    x = as_array(x)
    if x.ndim != 1:
        raise OpTypeError(f"vander: {x.type} is no vector", fix="flatten it with ravel")
    (count,) = shape_of("vander", x.size if N is None else integer_of("vander", "N", N))
    rising = flag_of("vander", "increasing", increasing)
    powers = [ones_like(x)]
    for _ in range(count - 1):
        powers.append(powers[-1] * x)
    if not count:
        return zeros((x.size, 0), x.dtype, device=x._device)
    return stack(powers if rising else powers[::-1], 1)


def polyval(p: Operand, x: Operand, /) -> Array:
    """The value at `x` of the polynomial of coefficients, that of the highest power first.

    p: ``[n]``.

    >>> bu.polyval(bu.asarray([3, 0, 1]), bu.asarray([0, 2])).tolist()
    [1, 13]
    """
    coefficients, x = as_array(p), as_array(x)
    if coefficients.ndim != 1:
        raise OpTypeError(f"polyval: the coefficients are {coefficients.type}", fix="give a vector")
    value = zeros_like(x)
    for n in range(coefficients.size):
        value = value * x + coefficients[n]
    return value


def polyfit(x: Operand, /, y: Operand, deg: int, rcond: float | None = None) -> Array:
    """The coefficients of the polynomial that is nearest to values, by least squares.

    x: the places, ``[n]``.  y: the values there, ``[n]`` or ``[n, k]``.  deg: the degree.
    rcond: singular values below this share of the largest count as 0; by default n times the
    spacing of numbers at 1.
    Returns ``[deg + 1]`` or ``[deg + 1, k]``, the coefficient of the highest power first.
    Raises OpTypeError.

    >>> bu.round(bu.polyfit(bu.asarray([0, 1, 2]), bu.asarray([1, 3, 5]), 1), 9).tolist()
    [2.0, 1.0]
    """
    points, values = as_float(x), as_float(y)
    degree = integer_of("polyfit", "deg", deg)
    shaped = points.ndim == 1 and values.ndim in (1, 2) and values.shape[:1] == points.shape
    if degree < 0 or not shaped or not points.size:
        raise OpTypeError(
            f"polyfit: degree {degree} for values {values.type} at {points.type}",
            fix="give a degree of at least 0, and a value for each place of a vector",
        )
    powers = vander(points, degree + 1)
    # Scale the columns to one size, so that small singular values are meaningful.
    scale = sqrt(sum(powers * powers, 0))
    if rcond is None:
        rcond = points.size * finfo(points.dtype).eps
    share = number_of("polyfit", "rcond", rcond)
    result = matmul(pinv(powers / scale, rtol=share), values)
    return result / (scale if result.ndim == 1 else expand_dims(scale, 1))


# -- statistics ------------------------------------------------------------------------------------


def cov(
    x: Operand,
    y: Operand | None = None,
    /,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
) -> Array:
    """The covariances of variables.

    x: a variable in each row, ``[k, n]``, or one, ``[n]``.  y: more of them.
    rowvar: whether variables are rows, not columns.
    bias: divide by n, not by n - 1.  ddof: divide by n - ddof.
    Raises OpTypeError.

    >>> bu.cov(bu.asarray([[0.0, 2.0], [1.0, 5.0]])).tolist()
    [[2.0, 4.0], [4.0, 8.0]]
    """
    parts = [as_float(part) for part in (x, y) if part is not None]
    in_rows = flag_of("cov", "rowvar", rowvar)
    for n, part in enumerate(parts):
        if part.ndim > 2:
            raise OpTypeError(
                f"cov: {part.type} has more than two dimensions", fix="use vmap for stacks"
            )
        rows = atleast_2d(part)
        parts[n] = rows if in_rows or part.ndim < 2 else matrix_transpose(rows)
    rows = concat(parts)
    less = (
        int(not flag_of("cov", "bias", bias)) if ddof is None else integer_of("cov", "ddof", ddof)
    )
    away = rows - mean(rows, 1, keepdims=True)
    conjugate = conj(away) if away.dtype.is_complex else away
    result = matmul(away, matrix_transpose(conjugate))
    count = rows.shape[1] - less
    return squeeze(result / float(count if count > 0 else 0))


def corrcoef(x: Operand, y: Operand | None = None, /, rowvar: bool = True) -> Array:
    """The coefficients of correlation of variables; arguments as in `cov`.

    >>> bu.round(bu.corrcoef(bu.asarray([[0.0, 2.0, 4.0], [1.0, 5.0, 9.0]])), 9).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    result = cov(x, y, rowvar)
    if not result.ndim:
        return result / result
    size = sqrt(real(diag(result)) if result.dtype.is_complex else diag(result))
    result = result / outer(size, size)
    return result if result.dtype.is_complex else clip(result, -1.0, 1.0)


# -- order and choice ------------------------------------------------------------------------------


def lexsort(keys: Sequence[Array] | Array, /, axis: int = -1) -> Array:
    """The positions that sort by several keys, of which the last counts most; i64.

    keys: arrays of one shape, or the rows of an array.
    Raises OpTypeError.

    >>> bu.lexsort((bu.asarray([2, 1, 3]), bu.asarray([5, 5, 1]))).tolist()
    [2, 1, 0]
    """
    key_arrays = [as_array(key) for key in items_of("lexsort", "keys", keys)]
    if not key_arrays or any(
        key.shape != key_arrays[0].shape or not key.ndim for key in key_arrays
    ):
        raise OpTypeError(
            f"lexsort: keys {', '.join(str(key.type) for key in key_arrays) or 'none'}",
            fix="give arrays of one shape, which has an axis",
        )
    dim = axis_of("lexsort", axis, key_arrays[0].ndim)
    lines = [swapaxes(key, dim, -1) for key in reversed(key_arrays)]
    narrow = i32 if key_arrays[0].shape[dim] < 1 << 31 else i64
    last = lines[0].ndim - 1
    positions = iota(TensorType(lines[0].shape, narrow), last, key_arrays[0]._device)
    attrs = {"dim": last, "num_keys": len(lines)}
    result = apply_all("sort", (*lines, positions), attrs)[-1]
    return swapaxes(convert(result, DEFAULT_INT), dim, -1)


def select(
    condlist: Sequence[Operand], /, choicelist: Sequence[Operand], default: Operand = 0
) -> Array:
    """The elements of the first of several choices whose condition holds, else `default`.

    condlist, choicelist: lists of one length.  Of one condition `where` chooses.
    Raises OpTypeError.

    >>> x = bu.arange(4)
    >>> bu.select([x < 1, x < 3], [x, x * 10], 7).tolist()
    [0, 10, 20, 7]
    """
    if isinstance(condlist, Array | np.ndarray):
        raise OpTypeError(
            "select: the conditions are an array",
            fix="give a list of conditions and one of choices, or use where(condition, x, y)",
        )
    conditions = items_of("select", "conditions", condlist)
    choices = items_of("select", "choices", choicelist)
    if len(conditions) != len(choices) or not choices:
        raise OpTypeError(
            f"select: {len(choices)} choices for {len(conditions)} conditions",
            fix="give a choice for each condition",
        )
    result = default
    for condition, choice in zip(reversed(conditions), reversed(choices), strict=True):
        result = where(condition, choice, result)
    return as_array(result)


def piecewise(
    x: Operand,
    /,
    condlist: Sequence[Operand] | Array,
    funclist: Sequence[Callable[..., Any] | Operand],
    *args: Any,
) -> Array:
    """The results of functions of `x` where their conditions hold, in the dtype of `x`.

    condlist: the last of several that hold decides; or one array of the rank of `x`.
    funclist: functions or values; one more than the conditions is for where none holds, else that
    is 0.  args: what the functions get besides.
    Raises OpTypeError.

    >>> x = bu.asarray([-2.0, 3.0])
    >>> bu.piecewise(x, [x < 0, x >= 0], [lambda x: -x, 1.0]).tolist()
    [2.0, 1.0]
    """
    x = as_array(x)
    if isinstance(condlist, Array | np.ndarray) and condlist.ndim == x.ndim:
        condlist = [condlist]
    conditions = items_of("piecewise", "conditions", condlist)
    functions = items_of("piecewise", "functions", funclist)
    if len(functions) not in (len(conditions), len(conditions) + 1):
        raise OpTypeError(
            f"piecewise: {len(functions)} functions for {len(conditions)} conditions",
            fix="give a function for each condition, and perhaps one more",
        )
    values = [f(x, *args) if callable(f) else f for f in functions]
    result: Operand = values[-1] if len(values) > len(conditions) else 0
    for condition, value in zip(conditions, values, strict=False):
        result = where(condition, value, result)
    return spread(convert(as_array(result), x.dtype), x.shape)


def apply_along_axis(
    func1d: Callable[..., Any], axis: int, x: Operand, /, *args: Any, **kwargs: Any
) -> Array:
    """The results of a function of each line along an axis, in the place of the lines.

    func1d: takes a vector, and `args` and `kwargs`; gives an array.  It is traced once, by `vmap`.

    >>> bu.apply_along_axis(bu.sum, 1, bu.asarray([[1, 2], [3, 4]])).tolist()
    [3, 7]
    """
    require_function("apply_along_axis", func1d, "func1d")
    x = as_array(x)
    dim = axis_of("apply_along_axis", axis, x.ndim)
    lines = moveaxis(x, dim, -1)
    stack = lines.shape[:-1]
    result = vmap(lambda line: func1d(line, *args, **kwargs))(
        reshape(lines, (math.prod(stack), x.shape[dim]))
    )
    result = reshape(result, (*stack, *result.shape[1:]))
    extra = range(result.ndim - len(stack))
    return moveaxis(result, [len(stack) + n for n in extra], [dim + n for n in extra])


def vectorize(pyfunc: Callable[..., Any], /) -> Callable[..., Any]:
    """A function of arrays that broadcast, made of a function of their elements, by `vmap`.

    pyfunc: takes and gives 0-d arrays.

    >>> bu.vectorize(lambda x, y: bu.maximum(x, y) - y)(bu.asarray([1, 5]), 3).tolist()
    [0, 2]
    """
    require_function("vectorize", pyfunc, "pyfunc")

    @guarded
    def call(*args: Operand) -> Any:
        sizes = common_shape("vectorize", args)
        # Python scalars stay Python scalars, so that they take the dtype of arrays.
        mapped = [isinstance(x, Array | np.ndarray) for x in args]
        if not any(mapped):
            return pyfunc(*args)
        flat = [
            ravel(spread(as_array(x), sizes)) if is_array else x
            for x, is_array in zip(args, mapped, strict=True)
        ]
        result = vmap(pyfunc, in_axes=tuple(0 if is_array else None for is_array in mapped))(*flat)
        return tree_map(lambda x: reshape(x, sizes), result)

    return call


__all__ = [
    "apply_along_axis", "bincount", "convolve", "corrcoef", "correlate", "cov", "digitize", "dot",
    "geomspace", "gradient", "histogram", "histogram_bin_edges", "inner", "interp", "kron",
    "lexsort", "logspace", "piecewise", "polyfit", "polyval", "select", "trapezoid", "vander",
    "vdot", "vectorize",
]  # fmt: skip

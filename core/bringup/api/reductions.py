"""Reductions, running ones too, and differences.

axis: an int, a tuple of ints, or None for all.
keepdims: leave reduced axes with size 1.
"""

from __future__ import annotations

from bringup.api.apply import apply
from bringup.api.arguments import axes_of, axis_of, flag_of, integer_of, number_of
from bringup.api.array import Array, Axis, Operand
from bringup.api.broadcasting import as_array, as_float, convert
from bringup.api.elementwise import as_bool, sqrt
from bringup.api.manipulation import broadcast_to, concat, reshape
from bringup.api.promotion import DEFAULT_INT, DEFAULT_UINT, dtype_of, literal
from bringup.dtypes import DType, bool_, u8
from bringup.errors import OpTypeError
from bringup.ops.monoids import MONOIDS


def sum(x: Operand, /, axis: Axis = None, dtype: object = None, *, keepdims: bool = False) -> Array:
    """The sum: of bools and integers as i64 or u64, of f16 and bf16 accumulated in f32.

    >>> bu.sum(bu.asarray([[1, 2], [3, 4]]), axis=0).tolist()
    [4, 6]
    """
    return _fold("sum", "add", _wide(x, dtype), axis, keepdims)


def prod(
    x: Operand, /, axis: Axis = None, dtype: object = None, *, keepdims: bool = False
) -> Array:
    """The product, in the dtype of `sum`.

    >>> bu.prod(bu.asarray([2, 3, 4])).tolist()
    24
    """
    return _fold("prod", "mul", _wide(x, dtype), axis, keepdims)


def max(x: Operand, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The largest element; NaN if there is one.  Raises OpTypeError for no elements.

    >>> bu.max(bu.asarray([[1, 5], [7, 2]]), axis=1).tolist()
    [5, 7]
    """
    x = _not_empty("max", x, axis)
    return _fold("max", "or" if x.dtype is bool_ else "max", x, axis, keepdims)


def min(x: Operand, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The smallest element; NaN if there is one.  Raises OpTypeError for no elements.

    >>> bu.min(bu.asarray([[1, 5], [7, 2]]), axis=1).tolist()
    [1, 2]
    """
    x = _not_empty("min", x, axis)
    return _fold("min", "and" if x.dtype is bool_ else "min", x, axis, keepdims)


def any(x: Operand, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Whether any element is true, or not zero; false for none.

    >>> bu.any(bu.asarray([0, 2])).tolist()
    True
    """
    return _fold("any", "or", as_bool(x), axis, keepdims)


def all(x: Operand, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Whether all elements are true, or not zero; true for none.

    >>> bu.all(bu.asarray([0, 2])).tolist()
    False
    """
    return _fold("all", "and", as_bool(x), axis, keepdims)


def count_nonzero(x: Operand, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """How many elements are not zero, as i64.

    >>> bu.count_nonzero(bu.asarray([0, 2, 3])).tolist()
    2
    """
    return _fold("count_nonzero", "add", convert(as_bool(x), DEFAULT_INT), axis, keepdims)


def mean(x: Operand, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The mean in a float dtype; integers become the default float first.  NaN for no elements.

    >>> bu.mean(bu.asarray([1.0, 2.0])).tolist()
    1.5
    """
    x = as_float(x)
    dims = axes_of("mean", axis, x.ndim)
    return _kept(apply("mean", (x,), {"dims": dims}), x, dims, keepdims)


def var(
    x: Operand,
    /,
    axis: Axis = None,
    *,
    correction: float = 0.0,
    keepdims: bool = False,
    ddof: float | None = None,
) -> Array:
    """The mean squared distance from the mean, divided by n - correction.

    ddof: the correction under numpy's name.

    >>> bu.var(bu.asarray([1.0, 3.0])).tolist()
    1.0
    """
    x = as_float(x)
    dims = axes_of("var", axis, x.ndim)
    less = correction if ddof is None else ddof
    attrs = {"dims": dims, "correction": number_of("var", "correction", less)}
    return _kept(apply("var", (x,), attrs), x, dims, keepdims)


def std(
    x: Operand,
    /,
    axis: Axis = None,
    *,
    correction: float = 0.0,
    keepdims: bool = False,
    ddof: float | None = None,
) -> Array:
    """The square root of `var`.

    >>> bu.std(bu.asarray([1.0, 3.0])).tolist()
    1.0
    """
    return sqrt(var(x, axis, correction=correction, keepdims=keepdims, ddof=ddof))


def argmax(x: Operand, /, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """The position of the first largest element or the first NaN, as i64; flat for None.

    >>> bu.argmax(bu.asarray([[1, 5], [7, 2]]), axis=1).tolist()
    [1, 0]
    """
    return _position("argmax", x, axis, keepdims)


def argmin(x: Operand, /, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """The position of the first smallest element or the first NaN, as i64; flat for None.

    >>> bu.argmin(bu.asarray([[1, 5], [7, 2]]), axis=1).tolist()
    [0, 1]
    """
    return _position("argmin", x, axis, keepdims)


def _position(name: str, x: Operand, axis: int | None, keepdims: bool) -> Array:
    x = as_array(x)
    ordered = convert(x, u8) if x.dtype is bool_ else x
    flat, dim = (
        (reshape(ordered, -1), 0) if axis is None else (ordered, axis_of(name, axis, x.ndim))
    )
    result = apply(name, (flat,), {"dim": dim, "dtype": DEFAULT_INT})
    dims = tuple(range(x.ndim)) if axis is None else (dim,)
    return _kept(result, x, dims, keepdims)


def _fold(name: str, kind: str, x: Array, axis: Axis, keepdims: bool) -> Array:
    dims = axes_of(name, axis, x.ndim)
    result = apply("reduce", (x,), {"kind": kind, "dims": dims}) if dims else x
    return _kept(result, x, dims, keepdims)


def _kept(result: Array, x: Array, dims: tuple[int, ...], keepdims: bool) -> Array:
    if not flag_of("a reduction", "keepdims", keepdims):
        return result
    return reshape(result, [1 if d in dims else n for d, n in enumerate(x.shape)])


def _wide(x: Operand, dtype: object) -> Array:
    """`x` in the dtype it is summed in."""
    x = as_array(x)
    if dtype is not None:
        return convert(x, dtype_of(dtype))
    kinds: dict[str, DType] = {"bool": DEFAULT_INT, "int": DEFAULT_INT, "uint": DEFAULT_UINT}
    return convert(x, kinds.get(x.dtype.kind, x.dtype))


def _not_empty(name: str, x: Operand, axis: Axis) -> Array:
    x = as_array(x)
    if 0 in [x.shape[d] for d in axes_of(name, axis, x.ndim)]:
        raise OpTypeError(
            f"{name}: {x.type} has no elements along the reduced axes",
            fix="give it elements, or test x.size first",
        )
    return x


def cumulative_sum(
    x: Operand, /, axis: int | None = None, dtype: object = None, *, include_initial: bool = False
) -> Array:
    """The sum of each element and those before it along an axis.

    axis: may be left out for a 1-d array.  dtype: bools and integers are summed as i64 or u64, f16
    and bf16 accumulate in f32.  include_initial: begin with the sum of none, 0.
    Raises OpTypeError.

    >>> bu.cumulative_sum(bu.asarray([1, 2, 3])).tolist()
    [1, 3, 6]
    """
    return _running("cumulative_sum", "add", x, axis, dtype, include_initial)


def cumulative_prod(
    x: Operand, /, axis: int | None = None, dtype: object = None, *, include_initial: bool = False
) -> Array:
    """The product of each element and those before it; else like `cumulative_sum`.

    >>> bu.cumulative_prod(bu.asarray([2, 3, 4]), include_initial=True).tolist()
    [1, 2, 6, 24]
    """
    return _running("cumulative_prod", "mul", x, axis, dtype, include_initial)


def cummax(x: Operand, /, axis: int = -1, *, reverse: bool = False) -> Array:
    """The largest of each element and those before it along an axis; NaN from the first NaN on.

    reverse: of those behind it instead.

    >>> bu.cummax(bu.asarray([1, 3, 2])).tolist()
    [1, 3, 3]
    """
    return _extreme("cummax", "max", x, axis, reverse)


def cummin(x: Operand, /, axis: int = -1, *, reverse: bool = False) -> Array:
    """The smallest of each element and those before it; else like `cummax`.

    >>> bu.cummin(bu.asarray([2, 3, 1]), reverse=True).tolist()
    [1, 1, 1]
    """
    return _extreme("cummin", "min", x, axis, reverse)


def _running(
    name: str, kind: str, x: Operand, axis: int | None, dtype: object, include_initial: bool
) -> Array:
    x = as_array(x)
    if axis is None and x.ndim != 1:
        raise OpTypeError(
            f"{name}: {x.type} has {x.ndim} dimensions, and no axis is given", fix="pass axis="
        )
    dim = axis_of(name, 0 if axis is None else axis, x.ndim)
    kinds: dict[str, DType] = {"bool": DEFAULT_INT, "int": DEFAULT_INT, "uint": DEFAULT_UINT}
    x = convert(x, kinds.get(x.dtype.kind, x.dtype) if dtype is None else dtype_of(dtype))
    if flag_of(name, "include_initial", include_initial):
        lo, hi = [0] * x.ndim, [0] * x.ndim
        lo[dim] = 1
        first = literal(MONOIDS[kind].empty(x.dtype.numpy).item(), x.type.with_shape(()))
        attrs = {"lo": tuple(lo), "hi": tuple(hi), "interior": (0,) * x.ndim}
        x = apply("pad", (x, first), attrs)
    return apply("cumulative", (x,), {"kind": kind, "dim": dim})


def _extreme(name: str, kind: str, x: Operand, axis: int, reverse: bool) -> Array:
    x = as_array(x)
    if not x.ndim:
        return x
    attrs = {
        "kind": kind,
        "dim": axis_of(name, axis, x.ndim),
        "reverse": flag_of(name, "reverse", reverse),
    }
    if x.dtype is bool_:
        return convert(apply("cumulative", (convert(x, u8),), attrs), bool_)
    return apply("cumulative", (x,), attrs)


def diff(
    x: Operand,
    /,
    n: int = 1,
    axis: int = -1,
    *,
    prepend: Operand | None = None,
    append: Operand | None = None,
) -> Array:
    """The difference of each element and the one before it along an axis, ``n`` times over.

    prepend, append: what to put before and behind the array first.  Of bools: whether they differ.
    Raises OpTypeError.

    >>> bu.diff(bu.asarray([1, 4, 9])).tolist()
    [3, 5]
    """
    x = as_array(x)
    dim = axis_of("diff", axis, x.ndim)
    times = integer_of("diff", "n", n)
    if times < 0 or not x.ndim:
        reason = f"n {times} is negative" if times < 0 else f"{x.type} is 0-d: it has no axis"
        raise OpTypeError(f"diff: {reason}", fix="use n >= 0 on an array with an axis")
    parts = [None if p is None else _beside(as_array(p), x, dim) for p in (prepend, append)]
    joined = [p for p in (parts[0], x, parts[1]) if p is not None]
    x = concat(joined, axis=dim) if len(joined) > 1 else x
    before = (slice(None),) * dim
    for _ in range(times):
        left, right = x[(*before, slice(None, -1))], x[(*before, slice(1, None))]
        x = (right != left) if x.dtype is bool_ else (right - left)
    return x


def _beside(part: Array, x: Array, dim: int) -> Array:
    """A 0-d array as one entry of an axis."""
    if part.ndim:
        return part
    shape = [1 if d == dim else n for d, n in enumerate(x.shape)]
    return broadcast_to(reshape(part, [1] * x.ndim), shape)

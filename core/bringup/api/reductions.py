"""Reductions.

axis: an int, a tuple of ints, or None for all.
keepdims: leave reduced axes with size 1.
"""

from __future__ import annotations

from bringup.api.apply import apply
from bringup.api.array import Array, Axis, Operand
from bringup.api.axes import axes_of, axis_of, flag_of, number_of
from bringup.api.broadcasting import as_array, as_float, convert
from bringup.api.elementwise import as_bool
from bringup.api.floating import sqrt
from bringup.api.manipulation import reshape
from bringup.api.promotion import DEFAULT_INT, DEFAULT_UINT, dtype_of
from bringup.dtypes import DType, bool_, u8
from bringup.errors import OpTypeError


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
    found = apply(name, (flat,), {"dim": dim, "dtype": DEFAULT_INT})
    dims = tuple(range(x.ndim)) if axis is None else (dim,)
    return _kept(found, x, dims, keepdims)


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

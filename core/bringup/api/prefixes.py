"""Running sums, products and extremes, and differences."""

from __future__ import annotations

from bringup.api.apply import apply
from bringup.api.array import Array, Operand
from bringup.api.axes import axis_of, flag_of, integer_of
from bringup.api.broadcasting import as_array, convert
from bringup.api.elementwise import not_equal, subtract
from bringup.api.manipulation import broadcast_to, concat, reshape
from bringup.api.promotion import DEFAULT_INT, DEFAULT_UINT, dtype_of, literal
from bringup.dtypes import DType, bool_, u8
from bringup.errors import OpTypeError


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
        first = literal(int(kind == "mul"), x.type.with_shape(()))
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
        what = f"n {times} is negative" if times < 0 else f"{x.type} is 0-d: it has no axis"
        raise OpTypeError(f"diff: {what}", fix="use n >= 0 on an array with an axis")
    parts = [None if p is None else _beside(as_array(p), x, dim) for p in (prepend, append)]
    joined = [p for p in (parts[0], x, parts[1]) if p is not None]
    x = concat(joined, axis=dim) if len(joined) > 1 else x
    before = (slice(None),) * dim
    for _ in range(times):
        left, right = x[(*before, slice(None, -1))], x[(*before, slice(1, None))]
        x = not_equal(right, left) if x.dtype is bool_ else subtract(right, left)
    return x


def _beside(part: Array, x: Array, dim: int) -> Array:
    """A 0-d array as one entry of an axis."""
    if part.ndim:
        return part
    shape = [1 if d == dim else n for d, n in enumerate(x.shape)]
    return broadcast_to(reshape(part, [1] * x.ndim), shape)

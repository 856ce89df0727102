"""The reduce row, its identities, and reductions as trees of elementwise steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bringup.dtypes import ALL, BY_NAME, DType, bool_, i32
from bringup.errors import OpTypeError
from bringup.graph import Value
from bringup.integers import ceil_power_of_two
from bringup.ops import build
from bringup.ops._checks import dims_of, ints, without
from bringup.ops._numeric import Array, exactly, is_float, via_wider
from bringup.ops.arithmetic import opposite
from bringup.ops.batching import shifting
from bringup.ops.build import in_f32, rows
from bringup.ops.table import EXACT, SUM, Attr, Attrs, Kind, OpDef, Special, Types, define
from bringup.types import TensorType

Cotangents = tuple[Value | None, ...]
Dims = tuple[int, ...]

_KINDS = ("add", "mul", "max", "min", "and", "or")


def identity(kind: str, dtype: DType) -> Any:
    """What an empty reduction gives, as a numpy scalar: the neutral element of the fold.

    >>> from bringup.dtypes import f32, i8
    >>> identity("max", f32), identity("and", i8)
    (np.float32(-inf), np.int8(-1))
    """
    if kind in ("add", "mul", "or"):
        return dtype.numpy.type(kind == "mul")
    if kind == "and":
        return dtype.numpy.type(build.all_ones(dtype))
    if dtype.is_float:
        return dtype.numpy.type(-np.inf if kind == "max" else np.inf)
    info = np.iinfo(dtype.numpy)
    return dtype.numpy.type(info.min if kind == "max" else info.max)


def start_of(kind: str, dtype: DType, count: int) -> Any:
    """What a fold of so many elements begins with, as a numpy scalar: the neutral element, which
    for a sum of floats is −0, but for a sum of nothing, which is +0.

    >>> from bringup.dtypes import f32
    >>> start_of("add", f32, 3), start_of("add", f32, 0)
    (np.float32(-0.0), np.float32(0.0))
    """
    start = identity(kind, dtype)
    return -start if kind == "add" and dtype.is_float and count else start


def _infer_reduce(operands: Types, attrs: Attrs) -> TensorType:
    (operand,) = operands
    kind, dtype = attrs["kind"], operand.dtype
    bitwise = kind in ("and", "or")
    if (dtype.is_float and bitwise) or (dtype is bool_ and not bitwise):
        raise OpTypeError(
            f"reduce: kind {kind!r} does not take {dtype}: {operand}",
            fix="and, or: bool and integers; add, mul, max, min: integers and floats",
        )
    return without(operand, dims_of("reduce", ints("reduce", attrs, "dims"), operand))


_FOLDS: dict[str, Any] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}


def _fold(x: Array, *, kind: str, dims: Dims) -> Array:
    if is_float(x.dtype):
        # Only the host's long double, which is no dtype of the table, has no row of its own.
        start = {"add": 0.0, "mul": 1.0, "max": -np.inf, "min": np.inf}[kind]
        if kind == "add" and all(x.shape[d] for d in dims):
            start = -0.0
    else:
        start = identity(kind, next(d for d in BY_NAME.values() if d.numpy == x.dtype))
    result: Array = np.asarray(_FOLDS[kind].reduce(x, axis=dims, dtype=x.dtype, initial=start))
    return result


_sum_or_product = via_wider(_fold)


@exactly
def _extremum(x: Array, *, kind: str, dims: Dims) -> Array:
    result = _fold(x, kind=kind, dims=dims)
    if not is_float(x.dtype):
        return result
    # numpy leaves the sign of a zero to the order of the fold: the decisive one need only occur.
    wins = (x == 0) & (np.signbit(x) == (kind == "min"))
    found = np.logical_or.reduce(wins, axis=dims)
    zero = np.where(found == (kind == "max"), x.dtype.type(0.0), x.dtype.type(-0.0))
    return np.where(result == 0, zero, result)


def _reduce_reference(x: Array, *, kind: str, dims: Dims) -> Array:
    x = np.asarray(x)
    if kind in ("max", "min"):
        return _extremum(x, kind=kind, dims=dims)
    if is_float(x.dtype):
        return _sum_or_product(x, kind=kind, dims=dims)
    return _fold(x, kind=kind, dims=dims)


def _reduce_vjp(ct: Value, result: Value, x: Value, *, kind: str, dims: Dims) -> Cotangents:
    spread = build.kept(ct, dims, x.shape)
    if kind == "add":
        return (spread,)
    if kind == "mul":
        return (rows.mul(spread, _others_product(result, x, dims)),)
    hits = build.convert(build.compare("eq", x, build.kept(result, dims, x.shape)), x.dtype)
    share = rows.div(ct, build.sum_(hits, dims))
    return (rows.mul(build.kept(share, dims, x.shape), hits),)


def _others_product(result: Value, x: Value, dims: Dims) -> Value:
    """The product of all other elements, right where zeros would make result / x NaN."""
    zero, one = build.zeros_like(x), build.ones_like(x)
    is_zero = build.compare("eq", x, zero)
    nonzero = build.reduce("mul", rows.select(is_zero, one, x), dims)
    count = build.sum_(build.convert(is_zero, x.dtype), dims)
    lonely = build.compare("eq", count, build.ones_like(count))
    at_zero = rows.select(lonely, nonzero, build.zeros_like(nonzero))
    elsewhere = rows.div(build.kept(result, dims, x.shape), rows.select(is_zero, one, x))
    return rows.select(is_zero, build.kept(at_zero, dims, x.shape), elsewhere)


def fold_tree(x: Value, dims: Dims, combine: Callable[[Value, Value], Value], start: Any) -> Value:
    """Reduce by halving: log2(n) elementwise steps on slices.

    combine: an associative op.
    start: its identity, which fills up to a power of two.
    """
    kept = [d for d in range(len(x.shape)) if d not in dims]
    shape = tuple(x.shape[d] for d in kept)
    n, last = build.size_of(x, dims), len(shape)
    if n == 0:
        return build.splat(start, x.type.with_shape(shape))
    flat = build.reshape(build.transpose(x, (*kept, *dims)), (*shape, n))
    size = ceil_power_of_two(n)
    padding = [0] * last + [size - n]
    flat = build.pad(flat, start, [0] * (last + 1), padding)
    while size > 1:
        size //= 2
        low = build.slice_dim(flat, last, 0, size)
        flat = combine(low, build.slice_dim(flat, last, size, 2 * size))
    return build.reshape(flat, shape)


@in_f32
def _sum(x: Value, *, dims: Dims) -> Value:
    return fold_tree(x, dims, rows.add, start_of("add", x.dtype, build.size_of(x, dims)))


@in_f32
def _product(x: Value, *, dims: Dims) -> Value:
    return fold_tree(x, dims, rows.mul, 1)


def _any(x: Value, dims: Dims) -> Value:
    count = build.reduce("max", build.convert(x, i32), dims)
    # An empty maximum is INT_MIN, which must not count as true.
    return build.compare("lt", build.zeros_like(count), count)


def _reduce_decompose(x: Value, *, kind: str, dims: Dims) -> Value:
    if kind in ("add", "mul"):
        return (_sum if kind == "add" else _product)(x, dims=dims)
    if kind == "min":
        return opposite(build.reduce("max", opposite(x), dims))
    if x.dtype is bool_:
        return _any(x, dims) if kind == "or" else build.not_(_any(build.not_(x), dims))
    combine = {"max": rows.max, "or": rows.or_, "and": rows.and_}[kind]
    return fold_tree(x, dims, combine, identity(kind, x.dtype))


def _cell(operand: str, kind: str, result: str, *kinds: str) -> Special:
    return Special((operand,), result, kinds or ("float",), (("kind", kind), ("dims", (0,))))


_CELLS = (
    _cell("[]", "add", "0.0"),
    _cell("[]", "mul", "1"),
    _cell("[]", "max", "-inf"),
    _cell("[]", "min", "inf"),
    _cell("[]", "add", "0", "int", "uint"),
    _cell("[]", "mul", "1", "int", "uint"),
    _cell("[]", "max", "INT_MIN", "int", "uint"),
    _cell("[]", "min", "INT_MAX", "int", "uint"),
    _cell("[]", "and", "-1", "int"),
    _cell("[]", "and", "INT_MAX", "uint"),
    _cell("[]", "or", "0", "int", "uint"),
    _cell("[]", "and", "true", "bool"),
    _cell("[]", "or", "false", "bool"),
    _cell("[nan, nan]", "max", "nan"),
    _cell("[nan, nan]", "min", "nan"),
    _cell("[1, nan, inf]", "max", "nan"),
    _cell("[-inf, 1, nan]", "min", "nan"),
    _cell("[-inf, -inf]", "max", "-inf"),
    _cell("[-3, -2]", "max", "-2"),
    _cell("[-0.0, 0.0, -0.0]", "max", "0.0"),
    _cell("[0.0, -0.0, 0.0]", "min", "-0.0"),
    _cell("[-0.0, -0.0]", "max", "-0.0"),
    _cell("[-0.0, -0.0, -0.0]", "add", "-0.0"),
    _cell("[-0.0]", "add", "-0.0"),
    _cell("[-0.0, 0.0, -0.0]", "add", "0.0"),
    _cell("[1, -0.0, -1]", "add", "0.0"),
    _cell("[-0.0, -0.0, -0.0]", "mul", "-0.0"),
    _cell("[-0.0, 0.0, -2]", "mul", "0.0"),
    _cell("[inf, 1, -inf]", "add", "nan"),
    _cell("[nan, 1]", "add", "nan"),
    _cell("[inf, 0.0]", "mul", "nan"),
    _cell("[-2, inf]", "mul", "-inf"),
    _cell("[INT_MAX, 1]", "add", "INT_MIN", "int", "uint"),
    _cell("[INT_MIN, -1]", "mul", "INT_MIN", "int"),
    _cell("[INT_MIN, INT_MAX]", "or", "-1", "int"),
    _cell("[true, false, true]", "and", "false", "bool"),
    _cell("[false, false, true]", "or", "true", "bool"),
)

reduce = define(
    OpDef(
        name="reduce",
        arity=1,
        kind=Kind.REDUCTION,
        doc=(
            "Fold whole dimensions, which disappear from the shape; no dims gives x. "
            "The order is unspecified, and so is what an overflow on the way gives. "
            "add, mul: integers wrap; f16 and bf16 accumulate in f32 and are rounded once. "
            "add: a sum of zeros is −0 if all of them are −0, else +0, as is a sum of nothing. "
            "max, min: NaN if any element is; −0 < +0; equal extremes share the gradient equally. "
            "and, or: bitwise, or logical on bool. Empty: 0, 1, −inf or INT_MIN, inf or INT_MAX, "
            "all bits set, 0."
        ),
        attrs=(
            Attr("kind", "str", "the fold", _KINDS),
            Attr("dims", "ints", "dimensions folded, increasing"),
        ),
        infer=_infer_reduce,
        reference=_reduce_reference,
        vjp=_reduce_vjp,
        dtypes=ALL,
        special=_CELLS,
        accuracy=SUM,
        variant_accuracy=dict.fromkeys(("max", "min", "and", "or"), EXACT),
        decompose=_reduce_decompose,
        batch=shifting("reduce", "dims"),
        variant="kind",
        tier=0,
        tier0_variants=("add", "max"),
    )
)

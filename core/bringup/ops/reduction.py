"""The reduce row, and reductions as trees of elementwise steps."""

from __future__ import annotations

import numpy as np

from bringup.dtypes import ALL, bool_, i32
from bringup.errors import OpTypeError
from bringup.graph import Value
from bringup.integers import ceil_power_of_two
from bringup.ops import build
from bringup.ops._checks import dims_of, ints, without
from bringup.ops._numeric import Array, exactly, is_float, via_wider
from bringup.ops.arithmetic import opposite
from bringup.ops.batching import shifting
from bringup.ops.build import in_f32, rows
from bringup.ops.monoids import MONOIDS, ROUNDING, Derivative, Monoid
from bringup.ops.special_values import Special
from bringup.ops.table import EXACT, SUM, Attr, Attrs, Cotangents, Kind, Types, define
from bringup.types import TensorType

Dims = tuple[int, ...]


def _infer_reduce(operands: Types, attrs: Attrs) -> TensorType:
    (operand,) = operands
    kind, dtype = attrs["kind"], operand.dtype
    if dtype not in MONOIDS[kind].dtypes:
        raise OpTypeError(
            f"reduce: kind {kind!r} does not take {dtype}: {operand}",
            fix="and, or: bool and integers; add, mul, max, min: integers and floats",
        )
    return without(operand, dims_of("reduce", ints("reduce", attrs, "dims"), operand))


def _reduce_reference(x: Array, *, kind: str, dims: Dims) -> Array:
    x = np.asarray(x)
    evaluated = via_wider if kind in ROUNDING and is_float(x.dtype) else exactly
    return evaluated(MONOIDS[kind].reduce)(x, axes=dims)


def _reduce_vjp(ct: Value, result: Value, x: Value, *, kind: str, dims: Dims) -> Cotangents:
    spread = build.kept(ct, dims, x.shape)
    derivative = MONOIDS[kind].derivative
    if derivative is Derivative.LINEAR:
        return (spread,)
    if derivative is Derivative.PRODUCT:
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


def _halved(x: Value, *, dims: Dims, monoid: Monoid) -> Value:
    """Reduce by halving: log2(n) elementwise steps on slices of a power of two."""
    kept = [d for d in range(len(x.shape)) if d not in dims]
    shape = tuple(x.shape[d] for d in kept)
    n, last = build.size_of(x, dims), len(shape)
    start = monoid.start(x.dtype.numpy, n)
    if n == 0:
        return build.splat(start, x.type.with_shape(shape))
    flat = build.reshape(build.transpose(x, (*kept, *dims)), (*shape, n))
    size = ceil_power_of_two(n)
    padding = [0] * last + [size - n]
    flat = build.pad(flat, start, [0] * (last + 1), padding)
    while size > 1:
        size //= 2
        low = build.slice_dim(flat, last, 0, size)
        flat = monoid.row(low, build.slice_dim(flat, last, size, 2 * size))
    return build.reshape(flat, shape)


def _reduce_decompose(x: Value, *, kind: str, dims: Dims) -> Value:
    monoid = MONOIDS[kind]
    if x.dtype is bool_ and kind in _ORDER_OF_BOOLS:
        extreme = build.reduce(_ORDER_OF_BOOLS[kind], build.convert(x, i32), dims)
        # The extreme of nothing is an end of the range of i32: INT_MIN must not count as true.
        return build.compare("lt", build.zeros_like(extreme), extreme)
    if monoid.opposite is not None:
        return opposite(build.reduce(monoid.opposite, opposite(x), dims))
    halved = in_f32(_halved) if kind in ROUNDING else _halved
    return halved(x, dims=dims, monoid=monoid)


#: For monoids of bools: that of numbers which does the same with 0 and 1.
_ORDER_OF_BOOLS = {m.on_bool: m.name for m in MONOIDS.values() if m.on_bool is not None}


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
        Attr("kind", "str", "the fold", tuple(MONOIDS)),
        Attr("dims", "ints", "dimensions folded, increasing"),
    ),
    infer=_infer_reduce,
    reference=_reduce_reference,
    vjp=_reduce_vjp,
    dtypes=ALL,
    special=_CELLS,
    accuracy=SUM,
    variant_accuracy={kind: EXACT for kind in MONOIDS if kind not in ROUNDING},
    decompose=_reduce_decompose,
    batch=shifting("reduce", "dims"),
    variant="kind",
    tier=0,
    tier0_variants=("add", "max"),
)

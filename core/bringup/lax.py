"""Functions of JAX's `lax`, as ``bringup.lax``: those of `bringup` that mean the same, and others.

What takes other arguments here than in JAX is not among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bringup.api.apply import apply
from bringup.api.array import Array, Operand
from bringup.api.axes import items_of, pair_of, shape_of
from bringup.api.boundary import publish
from bringup.api.broadcasting import as_array, convert
from bringup.api.complex import conj, imag, real
from bringup.api.control import cond, fori_loop, scan, switch, while_loop
from bringup.api.convolution import Ints, each_of, extents_of, padding_of
from bringup.api.creation import full, full_like
from bringup.api.custom import stop_gradient
from bringup.api.datatypes import astype as convert_element_type
from bringup.api.elementwise import (
    abs,
    acos,
    acosh,
    add,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    cbrt,
    ceil,
    cos,
    cosh,
    exp,
    expm1,
    floor,
    log,
    log1p,
    nextafter,
    pow,
    reciprocal,
    rsqrt,
    sign,
    sin,
    sinh,
    sqrt,
    square,
    tan,
    tanh,
)
from bringup.api.elementwise import equal as eq
from bringup.api.elementwise import greater as gt
from bringup.api.elementwise import greater_equal as ge
from bringup.api.elementwise import isfinite as is_finite
from bringup.api.elementwise import less as lt
from bringup.api.elementwise import less_equal as le
from bringup.api.elementwise import maximum as max
from bringup.api.elementwise import minimum as min
from bringup.api.elementwise import multiply as mul
from bringup.api.elementwise import negative as neg
from bringup.api.elementwise import not_equal as ne
from bringup.api.elementwise import subtract as sub
from bringup.api.elementwise import where as select
from bringup.api.gathering import dynamic_slice, dynamic_update_slice
from bringup.api.jax_names import (
    associative_scan,
    bitcast_convert_type,
    clamp,
    cumlogsumexp,
    dynamic_index_in_dim,
    dynamic_slice_in_dim,
    dynamic_update_index_in_dim,
    dynamic_update_slice_in_dim,
    map,
)
from bringup.api.manipulation import broadcast_shapes, expand_dims, reshape, squeeze
from bringup.api.numpy_names import bitwise_not, exp2, rem
from bringup.api.numpy_shapes import concatenate
from bringup.api.promotion import common, dtype_of
from bringup.api.sorting import top_k
from bringup.dtypes import Precision
from bringup.errors import OpTypeError
from bringup.nn import erf, logistic

#: "SAME", "VALID", or elements before and after each dimension.
Pads = str | Sequence[tuple[int, int]]
#: Dimensions of the left operand and of the right one, which go together.
Dims = tuple[Sequence[int], Sequence[int]]


class ConvDimensionNumbers(NamedTuple):
    """Where a convolution has its dimensions: batch and features, then the spatial ones.

    lhs_spec, out_spec: of operand and result.  rhs_spec: of the kernel, output features first.
    """

    lhs_spec: Ints
    rhs_spec: Ints
    out_spec: Ints


def conv_dimension_numbers(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    dimension_numbers: Sequence[str] | ConvDimensionNumbers | None,
) -> ConvDimensionNumbers:
    """What texts such as ``("NHWC", "HWIO", "NHWC")`` say of a convolution.

    dimension_numbers: N is the batch, C features, O and I those of the kernel; every other letter
    is a spatial dimension.  None is batch and features first.
    Raises OpTypeError.

    >>> bu.lax.conv_dimension_numbers((1, 8, 8, 3), (3, 3, 3, 4), ("NHWC", "HWIO", "NHWC")).rhs_spec
    (3, 2, 0, 1)
    """
    name = "conv_dimension_numbers"
    lhs_shape, rhs_shape = shape_of(name, lhs_shape), shape_of(name, rhs_shape)
    rank = len(lhs_shape)
    specs: Any = dimension_numbers
    if specs is None:
        specs = ConvDimensionNumbers(*(tuple(range(rank)),) * 3)
    elif not isinstance(specs, ConvDimensionNumbers):
        specs = [str(text) for text in items_of(name, "dimension_numbers", specs)]
        spatial = [c for c in specs[1] if c not in "OI"] if len(specs) == 3 else []
        orders = [[*"NC", *spatial], [*"OI", *spatial], [*"NC", *spatial]]
        table = list(zip(specs, orders, strict=False))
        fit = len(specs) == 3 and all(sorted(s) == sorted(o) for s, o in table)
        specs = [tuple(s.index(c) for c in o) for s, o in table] if fit else []
    if not specs or {rank, len(rhs_shape)} != {len(s) for s in specs}:
        raise OpTypeError(
            f"{name}: dimensions {dimension_numbers!r} of shapes {lhs_shape} and {rhs_shape}",
            fix='give three texts of a letter for each, as in ("NHWC", "HWIO", "NHWC")',
        )
    return ConvDimensionNumbers(*specs)


def conv_general_dilated(
    lhs: Operand,
    rhs: Operand,
    window_strides: Sequence[int],
    padding: Pads,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Sequence[str] | ConvDimensionNumbers | None = None,
    feature_group_count: int = 1,
    *,
    precision: Precision = "highest",
    preferred_element_type: object = None,
) -> Array:
    """The convolution of `bringup.nn.conv` with dimensions in any order, also of a spread operand.

    lhs, rhs: operand and kernel, with dimensions as `conv_dimension_numbers` reads
    `dimension_numbers`.
    window_strides, rhs_dilation: steps from window to window and within one.
    padding: "SAME", "VALID", or a pair (before, after) for each spatial dimension, which is needed
    beside `lhs_dilation`: steps between elements of the operand, with zeros between them.
    feature_group_count: parts of the features that see only their own part of the kernel.
    precision, preferred_element_type: as precision and dtype of `bringup.matmul`.
    Raises OpTypeError.

    >>> x, kernel = bu.ones((1, 4, 1)), bu.ones((3, 1, 1))
    >>> bu.lax.conv_general_dilated(
    ...     x, kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    ... ).ravel().tolist()
    [2.0, 3.0, 3.0, 2.0]
    """
    name = "conv_general_dilated"
    x, kernel = _numbers(lhs, rhs)
    lhs_dims, rhs_dims, out_dims = conv_dimension_numbers(x.shape, kernel.shape, dimension_numbers)
    ones = (1,) * (x.ndim - 2)
    strides = each_of(name, "window_strides", window_strides, len(ones))
    spread = each_of(name, "lhs_dilation", 1 if lhs_dilation is None else lhs_dilation, len(ones))
    steps = each_of(name, "rhs_dilation", 1 if rhs_dilation is None else rhs_dilation, len(ones))
    if isinstance(padding, str) and spread != ones:
        raise OpTypeError(
            f"{name}: padding {padding!r} of an operand spread by {spread}",
            fix="give a pair (before, after) for each spatial dimension",
        )
    sizes = tuple(x.shape[d] for d in lhs_dims[2:])
    extents = extents_of(tuple(kernel.shape[d] for d in rhs_dims[2:]), steps)
    lo, hi = _padding_of(name, padding, sizes, extents, strides)
    attrs = {"strides": strides, "lo": lo, "hi": hi, "lhs_dilation": spread, "rhs_dilation": steps}
    attrs |= {"lhs_dims": lhs_dims, "rhs_dims": rhs_dims, "out_dims": out_dims}
    attrs |= {"groups": feature_group_count, "precision": precision}
    return apply("convolution", (x, kernel), attrs | _result(preferred_element_type))


def conv(lhs: Operand, rhs: Operand, window_strides: Sequence[int], padding: Pads) -> Array:
    """`conv_general_dilated` with batch and features first.

    >>> bu.lax.conv(bu.ones((1, 1, 4)), bu.ones((1, 1, 3)), (1,), "VALID").tolist()
    [[[3.0, 3.0]]]
    """
    return conv_general_dilated(lhs, rhs, window_strides, padding)


def dot_general(
    lhs: Operand,
    rhs: Operand,
    dimension_numbers: tuple[
        tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]
    ],
    *,
    precision: Precision = "highest",
    preferred_element_type: object = None,
) -> Array:
    """Sums of products over any dimensions of two arrays, for each entry of others.

    dimension_numbers: ``((lhs, rhs), (lhs, rhs))``: the dimensions that are summed over, then those
    that both have.  The result has the latter, then the rest of `lhs`, then the rest of `rhs`.
    precision, preferred_element_type: as precision and dtype of `bringup.matmul`.
    Raises OpTypeError.

    >>> x, y = bu.ones((5, 2, 3)), bu.ones((5, 3, 4))
    >>> bu.lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,)))).shape
    (5, 2, 4)
    """
    contract, batch = (
        tuple(shape_of("dot_general", dims) for dims in items_of("dot_general", "dimensions", pair))
        for pair in pair_of("dot_general", "dimension_numbers", dimension_numbers)
    )
    attrs = {"contract": contract, "batch": batch, "precision": precision}
    return apply("dot_general", _numbers(lhs, rhs), attrs | _result(preferred_element_type))


def reduce_window(
    operand: Operand,
    init_value: Operand,
    computation: Callable[..., Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Pads,
    *,
    window_dilation: Sequence[int] | None = None,
) -> Array:
    """The elements of each window and a first value, folded.

    computation: `add`, `max` or `min`, from here or `bringup`.
    window_dimensions, window_strides, window_dilation: a number for each dimension.
    padding: "SAME", "VALID", or a pair (before, after) for each dimension; it takes no part.
    Raises OpTypeError.

    >>> x = bu.asarray([1.0, 4.0, 2.0, 3.0])
    >>> bu.lax.reduce_window(x, -bu.inf, bu.lax.max, (2,), (2,), "VALID").tolist()
    [4.0, 3.0]
    """
    name, x = "reduce_window", as_array(operand)
    folds = ((add, "add", 0), (max, "max", -math.inf), (min, "min", math.inf))
    kind, first = next((row[1:] for row in folds if row[0] is computation), ("", 0))
    if not kind:
        raise OpTypeError(
            f"{name}: {computation!r} folds no windows", fix="use bringup.lax.add, max or min"
        )
    window = each_of(name, "window_dimensions", window_dimensions, x.ndim)
    strides = each_of(name, "window_strides", window_strides, x.ndim)
    steps = each_of(
        name, "window_dilation", 1 if window_dilation is None else window_dilation, x.ndim
    )
    lo, hi = _padding_of(name, padding, x.shape, extents_of(window, steps), strides)
    attrs = {"kind": kind, "window": window, "strides": strides, "lo": lo, "hi": hi}
    folded = apply("reduce_window", (x,), attrs | {"dilation": steps})
    if isinstance(init_value, int | float) and init_value == first:
        return folded
    result: Array = computation(folded, init_value)
    return result


def _numbers(lhs: Operand, rhs: Operand) -> tuple[Array, Array]:
    x, y = as_array(lhs), as_array(rhs)
    dtype, _ = common((x, y))
    return convert(x, dtype), convert(y, dtype)


def _result(preferred: object) -> dict[str, Any]:
    return {} if preferred is None else {"result": dtype_of(preferred)}


def _padding_of(name: str, padding: Any, sizes: Ints, extents: Ints, strides: Ints) -> Any:
    given = padding.lower() if isinstance(padding, str) else padding
    return padding_of(name, given, sizes, extents, strides)


__all__ = [
    "ConvDimensionNumbers", "abs", "acos", "acosh", "add", "asin", "asinh", "associative_scan",
    "atan", "atan2", "atanh", "bitcast_convert_type", "bitwise_and", "bitwise_not", "bitwise_or",
    "bitwise_xor", "broadcast_shapes", "cbrt", "ceil", "clamp", "concatenate", "cond", "conj",
    "conv", "conv_dimension_numbers", "conv_general_dilated", "convert_element_type", "cos", "cosh",
    "cumlogsumexp", "dot_general", "dynamic_index_in_dim", "dynamic_slice", "dynamic_slice_in_dim",
    "dynamic_update_index_in_dim", "dynamic_update_slice", "dynamic_update_slice_in_dim", "eq",
    "erf", "exp", "exp2", "expand_dims", "expm1", "floor", "fori_loop", "full", "full_like", "ge",
    "gt", "imag", "is_finite", "le", "log", "log1p", "logistic", "lt", "map", "max", "min", "mul",
    "ne", "neg", "nextafter", "pow", "real", "reciprocal", "reduce_window", "rem", "reshape",
    "rsqrt", "scan", "select", "sign", "sin", "sinh", "sqrt", "square", "squeeze", "stop_gradient",
    "sub", "switch", "tan", "tanh", "top_k", "while_loop",
]  # fmt: skip

publish(globals(), "bringup.lax")

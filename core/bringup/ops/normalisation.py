"""Composite rows over whole dimensions: mean, var, softmax, log_softmax, layer_norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bringup.dtypes import FLOATS
from bringup.errors import OpTypeError
from bringup.graph import Value
from bringup.ops import _elementary as elementary
from bringup.ops import build
from bringup.ops._checks import dims_of, ints, listed, one_of, without
from bringup.ops._numeric import Array, via_wider
from bringup.ops.batching import shifting, shifting_first
from bringup.ops.build import in_f32, like, rows
from bringup.ops.special_values import cells
from bringup.ops.table import (
    DERIVED,
    Attr,
    Attrs,
    Cotangents,
    Kind,
    Trait,
    Types,
    define,
)
from bringup.types import TensorType

Dims = tuple[int, ...]


def _checked(name: str, operands: Types, attrs: Attrs) -> Dims:
    one_of(name, operands[0], FLOATS)
    return dims_of(name, ints(name, attrs, "dims"), operands[0])


def _gradient_in_f32(function: Callable[..., Cotangents]) -> Callable[..., Cotangents]:
    """Make a vjp work on f16 and bf16 in f32 and round every cotangent once."""

    def vjp(ct: Value, result: Value, *operands: Value, **attrs: Any) -> Cotangents:
        wide = [build.widened(v) for v in (ct, result, *operands)]
        cotangents = function(*wide, **attrs)
        pairs = zip(cotangents, operands, strict=True)
        return tuple(None if c is None else build.convert(c, v.dtype) for c, v in pairs)

    return vjp


def _count(shape: tuple[int, ...], dims: Dims) -> int:
    count = 1
    for d in dims:
        count *= shape[d]
    return count


def _infer_removing(name: str) -> Callable[[Types, Attrs], TensorType]:
    def infer(operands: Types, attrs: Attrs) -> TensorType:
        return without(operands[0], _checked(name, operands, attrs))

    return infer


def _infer_keeping(name: str) -> Callable[[Types, Attrs], TensorType]:
    def infer(operands: Types, attrs: Attrs) -> TensorType:
        _checked(name, operands, attrs)
        return operands[0]

    return infer


_DIMS = Attr("dims", "ints", "dimensions taken together, increasing")


@via_wider
def _mean_reference(x: Array, *, dims: Dims) -> Array:
    return np.asarray(np.sum(x, axis=dims) / x.dtype.type(_count(x.shape, dims)))


@_gradient_in_f32
def _mean_vjp(ct: Value, _result: Value, x: Value, *, dims: Dims) -> Cotangents:
    share = rows.div(ct, like(ct, _count(x.shape, dims)))
    return (build.kept(share, dims, x.shape),)


@in_f32
def _mean_decompose(x: Value, *, dims: Dims) -> Value:
    total = build.sum_(x, dims)
    return rows.div(total, like(total, _count(x.shape, dims)))


mean = define(
    name="mean",
    arity=1,
    kind=Kind.COMPOSITE,
    doc="The sum over dims divided by the count; NaN where that is 0.",
    attrs=(_DIMS,),
    infer=_infer_removing("mean"),
    reference=_mean_reference,
    vjp=_mean_vjp,
    linear=((0,),),
    dtypes=FLOATS,
    special=cells(
        "[] -> nan; [1, nan] -> nan; [1, 3] -> 2; [inf, 3] -> inf; [inf, -inf] -> nan",
        dims=(0,),
    ),
    accuracy=DERIVED,
    decompose=_mean_decompose,
    batch=shifting("mean", "dims"),
)


def _freedom(shape: tuple[int, ...], dims: Dims, correction: float) -> float:
    return max(_count(shape, dims) - correction, 0.0)


@via_wider
def _var_reference(x: Array, *, dims: Dims, correction: float) -> Array:
    centre = np.sum(x, axis=dims, keepdims=True) / x.dtype.type(_count(x.shape, dims))
    squares = np.square(x - centre)
    freedom = x.dtype.type(_freedom(x.shape, dims, correction))
    return np.asarray(np.sum(squares, axis=dims) / freedom)


def _centred(x: Value, dims: Dims) -> Value:
    return rows.sub(x, build.kept(rows.mean(x, dims=dims), dims, x.shape))


@_gradient_in_f32
def _var_vjp(ct: Value, _result: Value, x: Value, *, dims: Dims, correction: float) -> Cotangents:
    freedom = _freedom(x.shape, dims, correction)
    scaled = rows.div(rows.add(ct, ct), like(ct, freedom))
    return (rows.mul(build.kept(scaled, dims, x.shape), _centred(x, dims)),)


@in_f32
def _var_decompose(x: Value, *, dims: Dims, correction: float) -> Value:
    total = build.sum_(rows.square(_centred(x, dims)), dims)
    return rows.div(total, like(total, _freedom(x.shape, dims, correction)))


var = define(
    name="var",
    arity=1,
    kind=Kind.COMPOSITE,
    doc=(
        "The mean squared distance from the mean over dims, the mean taken first; divided by "
        "max(count − correction, 0), so NaN or inf where that is 0."
    ),
    attrs=(_DIMS, Attr("correction", "float", "subtracted from the count", default=0.0)),
    infer=_infer_removing("var"),
    reference=_var_reference,
    vjp=_var_vjp,
    dtypes=FLOATS,
    special=(
        *cells(
            "[] -> nan; [7] -> 0.0",
            dims=(0,),
        ),
        *cells(
            "[7] -> nan; [1, 3] -> 2",
            dims=(0,),
            correction=1.0,
        ),
        *cells(
            "[1, inf] -> nan; [1, nan] -> nan",
            dims=(0,),
        ),
    ),
    accuracy=DERIVED,
    decompose=_var_decompose,
    batch=shifting("var", "dims"),
)


def _shifted_array(x: Array, dims: Dims) -> Array:
    return np.asarray(x - np.max(x, axis=dims, keepdims=True, initial=-np.inf))


@via_wider
def _softmax_reference(x: Array, *, dims: Dims) -> Array:
    powers = elementary.exp(_shifted_array(x, dims))
    return np.asarray(powers / np.sum(powers, axis=dims, keepdims=True))


def _shifted(x: Value, dims: Dims) -> Value:
    return rows.sub(x, build.kept(build.reduce("max", x, dims), dims, x.shape))


@_gradient_in_f32
def _softmax_vjp(ct: Value, result: Value, _x: Value, *, dims: Dims) -> Cotangents:
    shared = build.sum_(rows.mul(ct, result), dims)
    return (rows.mul(result, rows.sub(ct, build.kept(shared, dims, ct.shape))),)


@in_f32
def _softmax_decompose(x: Value, *, dims: Dims) -> Value:
    powers = rows.exp(_shifted(x, dims))
    return rows.div(powers, build.kept(build.sum_(powers, dims), dims, x.shape))


softmax = define(
    name="softmax",
    arity=1,
    kind=Kind.COMPOSITE,
    doc=(
        "e^(x − m) over its sum along dims, m the maximum there, so nothing overflows. "
        "A group with NaN or inf, or of −inf alone, gives NaN; −inf among others gives 0."
    ),
    attrs=(_DIMS,),
    infer=_infer_keeping("softmax"),
    reference=_softmax_reference,
    vjp=_softmax_vjp,
    dtypes=FLOATS,
    special=cells(
        "[1000, 1000] -> [0.5, 0.5]; [-inf, 0.0] -> [0.0, 1]; [-inf, -inf] -> [nan, nan]; "
        "[1, nan] -> [nan, nan]; [] -> []",
        dims=(0,),
    ),
    traits=frozenset({Trait.EXPENSIVE}),
    accuracy=DERIVED,
    decompose=_softmax_decompose,
    batch=shifting("softmax", "dims"),
)


@via_wider
def _log_softmax_reference(x: Array, *, dims: Dims) -> Array:
    shifted = _shifted_array(x, dims)
    return np.asarray(
        shifted - elementary.log(np.sum(elementary.exp(shifted), axis=dims, keepdims=True))
    )


@_gradient_in_f32
def _log_softmax_vjp(ct: Value, result: Value, _x: Value, *, dims: Dims) -> Cotangents:
    total = build.kept(build.sum_(ct, dims), dims, ct.shape)
    return (rows.sub(ct, rows.mul(rows.exp(result), total)),)


@in_f32
def _log_softmax_decompose(x: Value, *, dims: Dims) -> Value:
    shifted = _shifted(x, dims)
    total = rows.log(build.sum_(rows.exp(shifted), dims))
    return rows.sub(shifted, build.kept(total, dims, x.shape))


log_softmax = define(
    name="log_softmax",
    arity=1,
    kind=Kind.COMPOSITE,
    doc=(
        "x − m − log of the sum of e^(x − m) along dims, m the maximum there. "
        "A group with NaN or inf, or of −inf alone, gives NaN; −inf among others gives −inf."
    ),
    attrs=(_DIMS,),
    infer=_infer_keeping("log_softmax"),
    reference=_log_softmax_reference,
    vjp=_log_softmax_vjp,
    dtypes=FLOATS,
    special=cells(
        "[-inf, 0.0] -> [-inf, 0.0]; [-inf, -inf] -> [nan, nan]; [1, nan] -> [nan, nan]; "
        "[1000, 0.0] -> [0.0, -1000]; [] -> []",
        dims=(0,),
    ),
    traits=frozenset({Trait.EXPENSIVE}),
    accuracy=DERIVED,
    decompose=_log_softmax_decompose,
    batch=shifting("log_softmax", "dims"),
)


def _infer_layer_norm(operands: Types, attrs: Attrs) -> TensorType:
    x = operands[0]
    dims = _checked("layer_norm", operands, attrs)
    wanted = x.with_shape(tuple(x.shape[d] for d in dims))
    for position, operand in enumerate(operands[1:], 1):
        if operand is not wanted:
            raise OpTypeError(
                f"layer_norm: gain and bias must be {wanted} for dims {dims}: {listed(operands)}",
                fix=f"give operand {position} type {wanted}",
            )
    return x


@via_wider
def _layer_norm_reference(
    x: Array, gain: Array, bias: Array, *, dims: Dims, epsilon: float
) -> Array:
    count = x.dtype.type(_count(x.shape, dims))
    centred = x - np.sum(x, axis=dims, keepdims=True) / count
    spread = np.sum(np.square(centred), axis=dims, keepdims=True) / count
    shape = [n if d in dims else 1 for d, n in enumerate(x.shape)]
    normal = centred / np.sqrt(spread + x.dtype.type(epsilon))
    return np.asarray(normal * gain.reshape(shape) + bias.reshape(shape))


def _normalised(x: Value, dims: Dims, epsilon: float) -> tuple[Value, Value]:
    """The normalised x, and 1 / its standard deviation spread over its shape."""
    centred = _centred(x, dims)
    spread = rows.mean(rows.square(centred), dims=dims)
    inverse = rows.rsqrt(rows.add(spread, like(spread, epsilon)))
    inverse = build.kept(inverse, dims, x.shape)
    return rows.mul(centred, inverse), inverse


@_gradient_in_f32
def _layer_norm_vjp(
    ct: Value, _result: Value, x: Value, gain: Value, _bias: Value, *, dims: Dims, epsilon: float
) -> Cotangents:
    normal, inverse = _normalised(x, dims, epsilon)
    scaled = rows.mul(ct, build.broadcast_to(gain, x.shape, dims))
    level = build.kept(rows.mean(scaled, dims=dims), dims, x.shape)
    tilt = build.kept(rows.mean(rows.mul(scaled, normal), dims=dims), dims, x.shape)
    inner = rows.sub(rows.sub(scaled, level), rows.mul(normal, tilt))
    others = tuple(d for d in range(len(x.shape)) if d not in dims)
    by_gain = build.sum_(rows.mul(ct, normal), others)
    return (rows.mul(inner, inverse), by_gain, build.sum_(ct, others))


@in_f32
def _layer_norm_decompose(
    x: Value, gain: Value, bias: Value, *, dims: Dims, epsilon: float
) -> Value:
    normal, _ = _normalised(x, dims, epsilon)
    scaled = rows.mul(normal, build.broadcast_to(gain, x.shape, dims))
    return rows.add(scaled, build.broadcast_to(bias, x.shape, dims))


layer_norm = define(
    name="layer_norm",
    arity=3,
    kind=Kind.COMPOSITE,
    doc=(
        "(x − mean) / sqrt(var + epsilon) · gain + bias, mean and var over dims; gain and bias "
        "have the sizes of dims. A group with NaN or ±inf gives NaN."
    ),
    attrs=(_DIMS, Attr("epsilon", "float", "added to the variance", default=1e-5)),
    infer=_infer_layer_norm,
    reference=_layer_norm_reference,
    vjp=_layer_norm_vjp,
    dtypes=FLOATS,
    special=cells(
        "[3, 3], [1, 1], [2, 5] -> [2, 5]; [1, inf], [1, 1], [0, 0] -> [nan, nan]; "
        "[nan, 1], [1, 1], [0, 0] -> [nan, nan]; [], [], [] -> []",
        dims=(0,),
    ),
    traits=frozenset({Trait.EXPENSIVE}),
    accuracy=DERIVED,
    decompose=_layer_norm_decompose,
    batch=shifting_first("layer_norm", "dims"),
)

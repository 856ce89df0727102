"""Composite rows that normalise by features: rms_norm, group_norm, batch_norm."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bringup.dtypes import FLOATS
from bringup.errors import OpTypeError
from bringup.graph import Value
from bringup.ops import build
from bringup.ops._checks import dim_of, dims_of, ints, is_int, listed, one_of
from bringup.ops._numeric import Array, via_wider
from bringup.ops.batching import shifting_first
from bringup.ops.build import in_f32, like, rows
from bringup.ops.special_values import Special, cells
from bringup.ops.table import DERIVED, Attr, Attrs, Cotangents, Kind, OpDef, Trait, Types, define
from bringup.types import TensorType

Dims = tuple[int, ...]

_EPSILON = Attr("epsilon", "float", "added before the root", default=1e-5)
_FEATURES = Attr("dim", "int", "the dimension of the features")


def _same_affine(name: str, operands: Types, wanted: TensorType) -> None:
    for position, operand in enumerate(operands[1:], 1):
        if operand is not wanted:
            raise OpTypeError(
                f"{name}: operand {position} must be {wanted}: {listed(operands)}",
                fix=f"give operand {position} type {wanted}",
            )


# -- rms_norm --------------------------------------------------------------------------------------


def _infer_rms(operands: Types, attrs: Attrs) -> TensorType:
    x = operands[0]
    one_of("rms_norm", x, FLOATS)
    dims = dims_of("rms_norm", ints("rms_norm", attrs, "dims"), x)
    _same_affine("rms_norm", operands, x.with_shape(tuple(x.shape[d] for d in dims)))
    return x


@via_wider
def _rms_reference(x: Array, gain: Array, *, dims: Dims, epsilon: float) -> Array:
    count = np.prod([x.shape[d] for d in dims], dtype=int)
    spread = np.sum(np.square(x), axis=dims, keepdims=True) / x.dtype.type(count)
    shape = [n if d in dims else 1 for d, n in enumerate(x.shape)]
    return np.asarray(x / np.sqrt(spread + x.dtype.type(epsilon)) * gain.reshape(shape))


def _inverse(x: Value, dims: Dims, epsilon: float) -> Value:
    """1 / the root of the mean square, spread over the shape."""
    spread = rows.mean(rows.square(x), dims=dims)
    return build.kept(rows.rsqrt(rows.add(spread, like(spread, epsilon))), dims, x.shape)


@in_f32
def _rms_decompose(x: Value, gain: Value, *, dims: Dims, epsilon: float) -> Value:
    normal = rows.mul(x, _inverse(x, dims, epsilon))
    return rows.mul(normal, build.broadcast_to(gain, x.shape, dims))


def _rms_vjp(
    ct: Value, _result: Value, x: Value, gain: Value, *, dims: Dims, epsilon: float
) -> Cotangents:
    ct, wide, weight = map(build.widened, (ct, x, gain))
    inverse = _inverse(wide, dims, epsilon)
    normal = rows.mul(wide, inverse)
    scaled = rows.mul(ct, build.broadcast_to(weight, x.shape, dims))
    tilt = build.kept(rows.mean(rows.mul(scaled, normal), dims=dims), dims, x.shape)
    by_x = rows.mul(rows.sub(scaled, rows.mul(normal, tilt)), inverse)
    others = tuple(d for d in range(len(x.shape)) if d not in dims)
    by_gain = build.sum_(rows.mul(ct, normal), others)
    return build.convert(by_x, x.dtype), build.convert(by_gain, gain.dtype)


rms_norm = define(
    name="rms_norm",
    arity=2,
    kind=Kind.COMPOSITE,
    doc=(
        "x / sqrt(mean of x² + epsilon) · gain, the mean over dims; gain has the sizes of "
        "dims. A group with NaN or ±inf gives NaN where it is, and 0 or NaN elsewhere."
    ),
    attrs=(Attr("dims", "ints", "dimensions taken together, increasing"), _EPSILON),
    infer=_infer_rms,
    reference=_rms_reference,
    vjp=_rms_vjp,
    dtypes=FLOATS,
    special=cells(
        "[0.0, -0.0], [1, 1] -> [0.0, -0.0]; [1, inf], [1, 1] -> [0.0, nan]; "
        "[nan, 1], [1, 1] -> [nan, nan]; [], [] -> []",
        dims=(0,),
    ),
    traits=frozenset({Trait.EXPENSIVE}),
    accuracy=DERIVED,
    decompose=_rms_decompose,
    batch=shifting_first("rms_norm", "dims"),
)


# -- group_norm and batch_norm ---------------------------------------------------------------------


def _features(name: str, operands: Types, attrs: Attrs) -> int:
    x = operands[0]
    one_of(name, x, FLOATS)
    dim = dim_of(name, attrs, x.rank, x)
    _same_affine(name, operands, x.with_shape((x.shape[dim],)))
    return x.shape[dim]


def _infer_group(operands: Types, attrs: Attrs) -> TensorType:
    size, groups = _features("group_norm", operands, attrs), attrs["groups"]
    if attrs["dim"] == 0:
        raise OpTypeError(
            f"group_norm: dim 0 of {operands[0]} is the batch, whose members stay apart",
            fix="give it a dimension of size 1 in front with reshape",
        )
    if not is_int(groups) or groups < 1 or size % groups:
        raise OpTypeError(
            f"group_norm: {size} features do not part into {groups} groups: {operands[0]}",
            fix=f"use a number of groups that divides {size}",
        )
    return operands[0]


def _infer_batch(operands: Types, attrs: Attrs) -> TensorType:
    _features("batch_norm", operands, attrs)
    return operands[0]


def _normal(x: Array, dims: Dims, epsilon: float) -> Array:
    count = x.dtype.type(np.prod([x.shape[d] for d in dims], dtype=int))
    centred = x - np.sum(x, axis=dims, keepdims=True) / count
    spread = np.sum(np.square(centred), axis=dims, keepdims=True) / count
    return np.asarray(centred / np.sqrt(spread + x.dtype.type(epsilon)))


def _scaled(normal: Array, gain: Array, bias: Array, dim: int) -> Array:
    shape = [-1 if d == dim else 1 for d in range(normal.ndim)]
    return np.asarray(normal * gain.reshape(shape) + bias.reshape(shape))


@via_wider
def _group_reference(
    x: Array, gain: Array, bias: Array, *, dim: int, groups: int, epsilon: float
) -> Array:
    parts = x.reshape(*x.shape[:dim], groups, x.shape[dim] // groups, *x.shape[dim + 1 :])
    dims = tuple(d for d in range(1, parts.ndim) if d != dim)
    return _scaled(_normal(parts, dims, epsilon).reshape(x.shape), gain, bias, dim)


@via_wider
def _batch_reference(x: Array, gain: Array, bias: Array, *, dim: int, epsilon: float) -> Array:
    dims = tuple(d for d in range(x.ndim) if d != dim)
    return _scaled(_normal(x, dims, epsilon), gain, bias, dim)


def _bare(x: Value, dims: Dims, epsilon: float) -> Value:
    """Mean 0 and variance 1; its gradient is that of layer_norm."""
    plain = x.type.with_shape(tuple(x.shape[d] for d in dims))
    one, zero = build.splat(1, plain), build.splat(0, plain)
    return rows.layer_norm(x, one, zero, dims=dims, epsilon=epsilon)


def _affine(normal: Value, gain: Value, bias: Value, dim: int) -> Value:
    scaled = rows.mul(normal, build.broadcast_to(gain, normal.shape, (dim,)))
    return rows.add(scaled, build.broadcast_to(bias, normal.shape, (dim,)))


@in_f32
def _group_decompose(
    x: Value, gain: Value, bias: Value, *, dim: int, groups: int, epsilon: float
) -> Value:
    shape = (*x.shape[:dim], groups, x.shape[dim] // groups, *x.shape[dim + 1 :])
    dims = tuple(d for d in range(1, len(shape)) if d != dim)
    normal = _bare(build.reshape(x, shape), dims, epsilon)
    return _affine(build.reshape(normal, x.shape), gain, bias, dim)


@in_f32
def _batch_decompose(x: Value, gain: Value, bias: Value, *, dim: int, epsilon: float) -> Value:
    dims = tuple(d for d in range(len(x.shape)) if d != dim)
    return _affine(_bare(x, dims, epsilon), gain, bias, dim)


def _row(
    name: str,
    doc: str,
    attrs: tuple[Attr, ...],
    infer: Callable[[Types, Attrs], TensorType],
    special: tuple[Special, ...],
    reference: Callable[..., Array],
    decompose: Callable[..., Value],
) -> OpDef:
    return define(
        name=name,
        arity=3,
        kind=Kind.COMPOSITE,
        doc=doc,
        attrs=attrs,
        infer=infer,
        reference=reference,
        dtypes=FLOATS,
        special=special,
        traits=frozenset({Trait.EXPENSIVE}),
        accuracy=DERIVED,
        decompose=decompose,
    )


group_norm = _row(
    "group_norm",
    "(x − mean) / sqrt(var + epsilon) · gain + bias, mean and var over the features of a group and "
    "every dimension but the first, the batch; gain and bias hold one element per feature. A group "
    "with NaN or ±inf gives NaN.",
    (_FEATURES, Attr("groups", "int", "parts of the features"), _EPSILON),
    _infer_group,
    (
        *cells(
            "[[3, 3]], [1, 1], [2, 5] -> [[2, 5]]",
            dim=1,
            groups=1,
        ),
        *cells(
            "[[3, 9]], [1, 1], [2, 5] -> [[2, 5]]",
            dim=1,
            groups=2,
        ),
        *cells(
            "[[inf, nan, 9]], [1, 1, 1], [0, 0, 0] -> [[nan, nan, 0.0]]",
            dim=1,
            groups=3,
        ),
    ),
    _group_reference,
    _group_decompose,
)

batch_norm = _row(
    "batch_norm",
    "(x − mean) / sqrt(var + epsilon) · gain + bias, mean and var of each feature over every other "
    "dimension; gain and bias hold one element per feature. A feature with NaN or ±inf gives NaN.",
    (_FEATURES, _EPSILON),
    _infer_batch,
    (
        *cells(
            "[[3, 3]], [1], [2] -> [[2, 2]]",
            dim=0,
        ),
        *cells(
            "[[3, inf]], [1, 1], [2, 5] -> [[2, nan]]; [[nan, 4]], [1, 1], [2, 5] -> [[nan, 5]]",
            dim=1,
        ),
    ),
    _batch_reference,
    _batch_decompose,
)

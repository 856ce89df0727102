"""Functions of neural networks, as ``bringup.nn``; rows of ops that a device may run whole."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from bringup.api.apply import apply
from bringup.api.array import Array
from bringup.api.attending import attention
from bringup.api.axes import axes_of, axis_of
from bringup.api.broadcasting import as_array, as_float, fit, float_unary, unary
from bringup.api.convolving import conv, conv_transpose
from bringup.api.dropout import dropout
from bringup.api.elementwise import isfinite, where
from bringup.api.floating import exp, log
from bringup.api.manipulation import moveaxis, reshape
from bringup.api.norms import batch_norm, batch_norm_train, group_norm, instance_norm, rms_norm
from bringup.api.pooling import avg_pool, max_pool
from bringup.api.promotion import DEFAULT_FLOAT, common, dtype_of, literal
from bringup.api.reductions import Axis
from bringup.api.reductions import sum as _sum
from bringup.api.resizing import resize
from bringup.api.text import missing_function
from bringup.dtypes import bool_
from bringup.errors import OpTypeError
from bringup.graph import user_location
from bringup.types import TensorType

if TYPE_CHECKING:
    from bringup.api import init
else:

    def __getattr__(name: str) -> object:
        if name == "init":  # imported when first asked for
            return importlib.import_module("bringup.api.init")
        if name.startswith("_"):
            raise AttributeError(f"module 'bringup.nn' has no attribute {name!r}")
        raise missing_function(name, __all__, "bringup.nn")


def relu(x: Array) -> Array:
    """``max(x, 0)``; the gradient at 0 is 0.

    >>> bu.nn.relu(bu.asarray([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    return unary("relu", x)


def logistic(x: Array) -> Array:
    """``1 / (1 + exp(-x))``, the sigmoid.

    >>> bu.nn.logistic(bu.asarray([0.0])).tolist()
    [0.5]
    """
    return float_unary("logistic", x)


sigmoid = logistic


def silu(x: Array) -> Array:
    """``x * logistic(x)``.

    >>> bu.nn.silu(bu.asarray([0.0])).tolist()
    [0.0]
    """
    return float_unary("silu", x)


def softplus(x: Array) -> Array:
    """``log(1 + exp(x))`` without overflow.

    >>> bu.nn.softplus(bu.asarray([-bu.inf, 1e9])).tolist()
    [0.0, 1000000000.0]
    """
    return float_unary("softplus", x)


def log_sigmoid(x: Array) -> Array:
    """``log(logistic(x))``, precise where that rounds to 0 or 1.

    >>> bu.nn.log_sigmoid(bu.asarray([-1000.0])).tolist()
    [-1000.0]
    """
    return float_unary("log_sigmoid", x)


def gelu(x: Array, *, approximate: bool = False) -> Array:
    """``x`` times the normal distribution function of `x`.

    approximate: compute that function by tanh.

    >>> bu.nn.gelu(bu.asarray([0.0])).tolist()
    [0.0]
    """
    return apply("gelu", (as_float(x),), {"approximate": "tanh" if approximate else "none"})


def erf(x: Array) -> Array:
    """The error function.

    >>> bu.nn.erf(bu.asarray([0.0])).tolist()
    [0.0]
    """
    return float_unary("erf", x)


def softmax(x: Array, *, axis: Axis = -1) -> Array:
    """``exp(x)`` over its sum along axes, without overflow.

    >>> bu.nn.softmax(bu.asarray([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """
    return _over_axes("softmax", x, axis)


def log_softmax(x: Array, *, axis: Axis = -1) -> Array:
    """The logarithm of `softmax`, without loss of precision.

    >>> bu.nn.log_softmax(bu.asarray([7.0])).tolist()
    [0.0]
    """
    return _over_axes("log_softmax", x, axis)


def logsumexp(x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The logarithm of the sum of ``exp(x)`` over axes, without overflow; of nothing it is -inf.

    >>> bu.nn.logsumexp(bu.asarray([1000.0])).tolist()
    1000.0
    """
    x = as_float(x)
    dims = axes_of("logsumexp", axis, x.ndim)
    kept = [1 if d in dims else n for d, n in enumerate(x.shape)]
    top = reshape(apply("reduce", (x,), {"kind": "max", "dims": dims}), kept)
    # An infinite one is no offset: inf - inf is NaN.
    top = where(isfinite(top), top, 0)
    result = log(_sum(exp(x - top), axis=dims, keepdims=True)) + top
    return result if keepdims else reshape(result, [n for d, n in enumerate(kept) if d not in dims])


def _over_axes(name: str, x: Array, axis: Axis) -> Array:
    x = as_float(x)
    return apply(name, (x,), {"dims": axes_of(name, axis, x.ndim)})


def layer_norm(
    x: Array,
    gain: Array | None = None,
    bias: Array | None = None,
    *,
    axis: Axis = -1,
    epsilon: float = 1e-5,
) -> Array:
    """``(x - mean) / sqrt(var + epsilon) * gain + bias``, mean and variance over axes.

    gain, bias: of the sizes of these axes; ones and zeros by default.

    >>> bu.nn.layer_norm(bu.asarray([1.0, 3.0]), epsilon=0.0).tolist()
    [-1.0, 1.0]
    """
    x = as_array(x)
    dtype, _ = common([v for v in (x, gain, bias) if v is not None])
    dims = axes_of("layer_norm", axis, x.ndim)
    wide = TensorType(x.shape, dtype if dtype.is_float else DEFAULT_FLOAT)
    affine = wide.with_shape(tuple(x.shape[d] for d in dims))
    parts = [fit(x, wide)]
    for value, default in ((gain, 1), (bias, 0)):
        if value is None:
            parts.append(literal(default, affine))
            continue
        if as_array(value).shape != affine.shape:
            raise OpTypeError(
                f"layer_norm: gain or bias is {as_array(value).type}, not {affine}",
                location=user_location(),
                fix=f"give it shape {affine.shape}, the sizes of the normalised axes",
            )
        parts.append(fit(value, affine))
    return apply("layer_norm", parts, {"dims": dims, "epsilon": float(epsilon)})


def cross_entropy(scores: Array, labels: Array, *, axis: int = -1) -> Array:
    """Minus `log_softmax` of the scores at each label; 0 where a label is no index.

    scores: any floats, a class for each index along `axis`.  labels: integers, without that axis.

    >>> bu.nn.cross_entropy(bu.asarray([[0.0, 0.0], [0.0, 1000.0]]), bu.asarray([0, 1])).tolist()
    [0.6931471805599453, 0.0]
    """
    scores, labels = as_float(scores), as_array(labels)
    dim = axis_of("cross_entropy", axis, scores.ndim)
    if labels.shape != scores.shape[:dim] + scores.shape[dim + 1 :] or not labels.dtype.is_integer:
        raise OpTypeError(
            f"cross_entropy: labels {labels.type} do not fit scores {scores.type}",
            location=user_location(),
            fix=f"give integers of the shape of the scores without axis {dim}",
        )
    hot = one_hot(labels, scores.shape[dim], axis=dim, dtype=bool_)
    return _sum(where(hot, -log_softmax(scores, axis=dim), 0.0), axis=dim)


def one_hot(indices: Array, size: int, *, axis: int = -1, dtype: object = None) -> Array:
    """A new axis of that size with 1 at the index and 0 elsewhere; all 0 for indices out of range.

    dtype: f64 by default.

    >>> bu.nn.one_hot(bu.asarray([2, 0]), 3, dtype=bu.int8).tolist()
    [[0, 0, 1], [1, 0, 0]]
    """
    own = DEFAULT_FLOAT if dtype is None else dtype_of(dtype)
    result = apply("one_hot", (as_array(indices),), {"size": size, "dtype": own})
    return moveaxis(result, -1, axis_of("one_hot", axis, result.ndim))


__all__ = [
    "attention",
    "avg_pool",
    "batch_norm",
    "batch_norm_train",
    "conv",
    "conv_transpose",
    "cross_entropy",
    "dropout",
    "erf",
    "gelu",
    "group_norm",
    "init",
    "instance_norm",
    "layer_norm",
    "log_sigmoid",
    "log_softmax",
    "logistic",
    "logsumexp",
    "max_pool",
    "one_hot",
    "relu",
    "resize",
    "rms_norm",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
]

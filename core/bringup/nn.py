"""Functions of neural networks, as ``bringup.nn``; rows of ops that a device may run whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bringup.api.activations import (
    celu,
    elu,
    glu,
    hard_sigmoid,
    hard_swish,
    hard_tanh,
    identity,
    leaky_relu,
    mish,
    relu6,
    selu,
    soft_sign,
    squareplus,
    standardize,
)
from bringup.api.apply import apply
from bringup.api.array import Array, Axis, Operand
from bringup.api.axes import (
    axes_of,
    axis_of,
    choice_of,
    flag_of,
    integer_of,
    items_of,
    number_of,
    shape_of,
)
from bringup.api.boundary import publish
from bringup.api.broadcasting import (
    as_array,
    as_float,
    common_shape,
    convert,
    fit,
    float_unary,
    spread,
    unary,
)
from bringup.api.convolution import avg_pool, conv, conv_transpose, max_pool
from bringup.api.defaults import default_float
from bringup.api.elementwise import exp, isfinite, log, where
from bringup.api.manipulation import moveaxis, reshape
from bringup.api.norms import batch_norm, batch_norm_train, group_norm, instance_norm, rms_norm
from bringup.api.promotion import common, dtype_of, literal
from bringup.api.reductions import sum as _sum
from bringup.dtypes import DType, Precision, bool_
from bringup.errors import ArrayIndexError, OpTypeError
from bringup.types import TensorType

if TYPE_CHECKING:
    from bringup.api import init
    from bringup.api.keys import Key


def relu(x: Operand) -> Array:
    """``max(x, 0)``; the gradient at 0 is 0.

    >>> bu.nn.relu(bu.asarray([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    return unary("relu", x)


def logistic(x: Operand) -> Array:
    """``1 / (1 + exp(-x))``, the sigmoid.

    >>> bu.nn.logistic(bu.asarray([0.0])).tolist()
    [0.5]
    """
    return float_unary("logistic", x)


sigmoid = logistic


def silu(x: Operand) -> Array:
    """``x * logistic(x)``.

    >>> bu.nn.silu(bu.asarray([0.0])).tolist()
    [0.0]
    """
    return float_unary("silu", x)


def softplus(x: Operand) -> Array:
    """``log(1 + exp(x))`` without overflow.

    >>> bu.nn.softplus(bu.asarray([-bu.inf, 1e9])).tolist()
    [0.0, 1000000000.0]
    """
    return float_unary("softplus", x)


def log_sigmoid(x: Operand) -> Array:
    """``log(logistic(x))``, precise where that rounds to 0 or 1.

    >>> bu.nn.log_sigmoid(bu.asarray([-1000.0])).tolist()
    [-1000.0]
    """
    return float_unary("log_sigmoid", x)


def gelu(x: Operand, approximate: bool = False) -> Array:
    """``x`` times the normal distribution function of `x`.

    approximate: compute that function by tanh, which JAX does unless told otherwise.

    >>> bu.nn.gelu(bu.asarray([0.0])).tolist()
    [0.0]
    """
    return apply(
        "gelu",
        (as_float(x),),
        {"approximate": "tanh" if flag_of("gelu", "approximate", approximate) else "none"},
    )


def erf(x: Operand) -> Array:
    """The error function.

    >>> bu.nn.erf(bu.asarray([0.0])).tolist()
    [0.0]
    """
    return float_unary("erf", x)


def softmax(x: Operand, axis: Axis = -1) -> Array:
    """``exp(x)`` over its sum along axes, without overflow.

    >>> bu.nn.softmax(bu.asarray([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """
    return _over_axes("softmax", x, axis)


def log_softmax(x: Operand, axis: Axis = -1) -> Array:
    """The logarithm of `softmax`, without loss of precision.

    >>> bu.nn.log_softmax(bu.asarray([7.0])).tolist()
    [0.0]
    """
    return _over_axes("log_softmax", x, axis)


def logsumexp(x: Operand, axis: Axis = None, *, keepdims: bool = False) -> Array:
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
    kept_too = flag_of("logsumexp", "keepdims", keepdims)
    return result if kept_too else reshape(result, [n for d, n in enumerate(kept) if d not in dims])


def _over_axes(name: str, x: Operand, axis: Axis) -> Array:
    x = as_float(x)
    return apply(name, (x,), {"dims": axes_of(name, axis, x.ndim)})


def layer_norm(
    x: Operand,
    gain: Operand | None = None,
    bias: Operand | None = None,
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
    wide = TensorType(x.shape, dtype if dtype.is_float else default_float())
    affine = wide.with_shape(tuple(x.shape[d] for d in dims))
    parts = [fit(x, wide)]
    for value, default in ((gain, 1), (bias, 0)):
        if value is None:
            parts.append(literal(default, affine))
            continue
        if as_array(value).shape != affine.shape:
            raise OpTypeError(
                f"layer_norm: gain or bias is {as_array(value).type}, not {affine}",
                fix=f"give it shape {affine.shape}, the sizes of the normalised axes",
            )
        parts.append(fit(value, affine))
    return apply(
        "layer_norm", parts, {"dims": dims, "epsilon": number_of("layer_norm", "epsilon", epsilon)}
    )


def cross_entropy(scores: Operand, labels: Operand, *, axis: int = -1) -> Array:
    """Minus `log_softmax` of the scores at each label.

    scores: any floats, a class for each index along `axis`.  labels: integers, without that axis.
    Labels in Python or numpy are checked: ArrayIndexError; in an array they are data, and the loss
    is NaN where one is no index.

    >>> bu.nn.cross_entropy(bu.asarray([[0.0, 0.0], [0.0, 1000.0]]), bu.asarray([0, 1])).tolist()
    [0.6931471805599453, 0.0]
    """
    scores, known = as_float(scores), labels
    dim = axis_of("cross_entropy", axis, scores.ndim)
    labels = as_array(labels)
    if labels.shape != scores.shape[:dim] + scores.shape[dim + 1 :] or not labels.dtype.is_integer:
        raise OpTypeError(
            f"cross_entropy: labels {labels.type} do not fit scores {scores.type}",
            fix=f"give integers of the shape of the scores without axis {dim}",
        )
    size = scores.shape[dim]
    hot = one_hot(known, size, axis=dim, dtype=bool_)
    loss = _sum(where(hot, -log_softmax(scores, axis=dim), 0.0), axis=dim)
    if not isinstance(known, Array):
        return loss
    low = labels < 0
    outside = low | (labels >= size) if size <= np.iinfo(labels.dtype.numpy).max else low
    return where(outside, math.nan, loss)


def one_hot(indices: Operand, num_classes: int, *, axis: int = -1, dtype: object = None) -> Array:
    """A new axis of `num_classes` with 1 at the index and 0 elsewhere.

    indices: those in Python or numpy are checked: ArrayIndexError; in an array they are data, and
    one that is out of range gives zeros alone.  dtype: the default float by default.

    >>> bu.nn.one_hot(bu.asarray([2, 0]), 3, dtype=bu.int8).tolist()
    [[0, 0, 1], [1, 0, 0]]
    """
    own = default_float() if dtype is None else dtype_of(dtype)
    (size,) = shape_of("one_hot", integer_of("one_hot", "num_classes", num_classes))
    if not isinstance(indices, Array):
        host = np.asarray(indices)
        wrong = (host < 0) | (host >= size) if host.dtype.kind in "iu" else np.zeros((), bool)
        if wrong.any():
            raise ArrayIndexError(
                f"index {host[wrong].flat[0]} is out of range for {size} classes",
                fix=f"use 0 … {size - 1}; what has no class, such as padding, mask with where",
            )
    result = apply("one_hot", (as_array(indices),), {"size": size, "dtype": own})
    return moveaxis(result, -1, axis_of("one_hot", axis, result.ndim))


def attention(
    query: Operand,
    key: Operand,
    value: Operand,
    *,
    mask: Operand | None = None,
    bias: Operand | None = None,
    causal: bool = False,
    scale: float | None = None,
    precision: Precision = "highest",
) -> Array:
    """``softmax(scale * query @ key.T + bias) @ value`` over the last two axes.

    query: ``(batch, heads, n, depth)``; key, value: ``(batch, heads, m, …)``; the leading axes are
    any that run together.
    mask: of bools, spread over ``(batch, heads, n, m)``; False hides a key.
    bias: of floats, spread likewise and added.
    causal: query i sees the keys up to ``i + m - n``, so the last query sees all.
    scale: ``1 / sqrt(depth)`` by default.
    precision: of both products, as in `bringup.matmul`; f16 and bf16 work in f32.

    A query that sees no key gives NaN.

    >>> q, kv = bu.zeros((1, 1, 2, 4)), bu.asarray([[[[2.0], [4.0]]]])
    >>> bu.nn.attention(q, bu.ones((1, 1, 2, 4)), kv, causal=True).tolist()
    [[[[2.0], [3.0]]]]
    """
    arrays = [as_array(v) for v in (query, key, value)]
    dtype, _ = common([*arrays, *([] if bias is None else [bias])])
    dtype = dtype if dtype.is_float else default_float()
    arrays = [convert(v, dtype) for v in arrays]
    shown = " and ".join(str(v.type) for v in arrays)
    if any(v.ndim != arrays[0].ndim or v.ndim < 2 for v in arrays):
        raise _wrong_attention(
            f"ranks differ: {shown}", "give all of them (batch, heads, length, depth)"
        )
    added = _added_scores(mask, bias, dtype, arrays[0].ndim)
    if added is not None:
        arrays.append(added)
    factor = 1 / math.sqrt(arrays[0].shape[-1] or 1) if scale is None else float(scale)
    attrs = {"scale": factor, "causal": bool(causal), "precision": precision}
    return apply("attention", arrays, attrs)


def _added_scores(
    mask: Operand | None, bias: Operand | None, dtype: DType, rank: int
) -> Array | None:
    """What is added to the scores."""
    added = None if bias is None else _with_rank(convert(as_array(bias), dtype), rank)
    if mask is None:
        return added
    seen = _with_rank(as_array(mask), rank)
    if seen.dtype is not bool_:
        raise _wrong_attention(f"the mask is {seen.type}", "give bools, or floats as bias")
    shape = common_shape("attention", [seen, *([] if added is None else [added])])
    full = TensorType(shape, dtype)
    shown = fit(0.0 if added is None else added, full)
    return apply("select", (spread(seen, shape), shown, fit(-math.inf, full)))


def _with_rank(x: Array, rank: int) -> Array:
    """`x` with axes of size 1 in front."""
    return x if x.ndim >= rank else reshape(x, (1,) * (rank - x.ndim) + x.shape)


def _wrong_attention(what: str, fix: str) -> OpTypeError:
    return OpTypeError(f"attention: {what}", fix=fix)


def dropout(x: Operand, key: Key, rate: float | Array) -> Array:
    """`x` with elements replaced by 0 with probability `rate`, the others divided by 1 - rate.

    So the expected value stays `x`.  Which ones is a function of the key: a new one for every step
    (`bringup.random.fold_in`).  The choice is made where `x` is read, also in the gradient, and
    takes no memory.
    rate: a number of [0, 1], or a 0-d array.

    >>> x = bu.nn.dropout(bu.ones(1000), bu.random.key(0), 0.2)
    >>> sorted(set(x.tolist())), 750 < float(bu.sum(x != 0)) < 850
    ([0.0, 1.25], True)
    """
    from bringup.api.keys import checked
    from bringup.api.samplers import bernoulli, parameter

    x, key = as_float(x), checked("dropout", key)
    rate = parameter("dropout", "rate", rate, key)
    if isinstance(rate, Array):
        kept = 1 - convert(rate, x.dtype)
        return where(bernoulli(key, spread(kept, x.shape)), x / kept, 0.0)
    if not 0 <= rate <= 1:
        raise OpTypeError(
            f"dropout: rate={rate} is no probability", fix="give the share to drop, 0 <= rate <= 1"
        )
    return where(bernoulli(key, 1 - rate, x.shape), x * (1 / (1 - rate) if rate < 1 else 0.0), 0.0)


def resize(
    x: Operand,
    shape: Sequence[int],
    method: str = "linear",
    antialias: bool = False,
    *,
    axis: Sequence[int] | None = None,
) -> Array:
    """`x` resampled to a shape, at half-pixel centres.

    shape: the sizes of all axes, or of those in `axis`.
    method: "nearest", any dtype; "linear" or "cubic", floats.
    antialias: where an axis shrinks, weigh all it had, not only the nearest.

    >>> bu.nn.resize(bu.asarray([0.0, 4.0]), (4,)).tolist()
    [0.0, 1.0, 3.0, 4.0]
    >>> bu.nn.resize(bu.asarray([[1, 2]]), (4,), axis=(1,), method="nearest").tolist()
    [[1, 1, 2, 2]]
    """
    choice_of("resize", "method", method, ("nearest", "linear", "cubic"))
    x = as_array(x) if method == "nearest" else as_float(x)
    sizes = shape_of("resize", shape)
    axes = (
        range(x.ndim)
        if axis is None
        else [axis_of("resize", a, x.ndim) for a in items_of("resize", "axis", axis)]
    )
    if len(sizes) != len(axes) or len(set(axes)) != len(axes):
        raise OpTypeError(
            f"resize: sizes {sizes} are given for axes {tuple(axes)} of {x.type}",
            fix="give one size for each axis, or name the axes",
        )
    table = dict(zip(axes, sizes, strict=True))
    full = tuple(table.get(d, n) for d, n in enumerate(x.shape))
    attrs = {
        "shape": full,
        "method": method,
        "antialias": flag_of("resize", "antialias", antialias),
    }
    return apply("resize", (x,), attrs)


hard_silu = hard_swish
logsigmoid = log_sigmoid
swish = silu

__all__ = [
    "attention", "avg_pool", "batch_norm", "batch_norm_train", "celu", "conv", "conv_transpose",
    "cross_entropy", "dropout", "elu", "erf", "gelu", "glu", "group_norm", "hard_sigmoid",
    "hard_silu", "hard_swish", "hard_tanh", "identity", "init", "instance_norm", "layer_norm",
    "leaky_relu", "log_sigmoid", "log_softmax", "logistic", "logsigmoid", "logsumexp", "max_pool",
    "mish", "one_hot", "relu", "relu6", "resize", "rms_norm", "selu", "sigmoid", "silu",
    "soft_sign", "softmax", "softplus", "squareplus", "standardize", "swish",
]  # fmt: skip

publish(globals(), "bringup.nn", later={"init": "bringup.api.init:"})

"""Functions of neural networks, as ``bringup.nn``; rows of ops that a device may run whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bringup.api.apply import apply
from bringup.api.arguments import (
    axes_of,
    axis_of,
    choice_of,
    flag_of,
    integer_of,
    items_of,
    number_of,
    shape_of,
)
from bringup.api.array import Array, Axis, Operand
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
from bringup.api.elementwise import abs as _abs
from bringup.api.elementwise import (
    add,
    clip,
    divide,
    exp,
    expm1,
    greater,
    isfinite,
    log,
    multiply,
    rsqrt,
    sqrt,
    tanh,
    where,
)
from bringup.api.manipulation import moveaxis, reshape
from bringup.api.promotion import common, dtype_of, literal
from bringup.api.reductions import mean as _mean
from bringup.api.reductions import sum as _sum
from bringup.api.reductions import var as _var
from bringup.dtypes import DType, Precision, bool_
from bringup.errors import ArrayIndexError, OpTypeError
from bringup.graph import Literal
from bringup.types import TensorType

if TYPE_CHECKING:
    from bringup.api import init
    from bringup.api.keys import Key

Affine = tuple[Operand | None, int]


# -- activations -----------------------------------------------------------------------------------


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


def identity(x: Operand) -> Array:
    """`x` itself.

    >>> bu.nn.identity(bu.asarray([-1.0])).tolist()
    [-1.0]
    """
    return as_array(x)


def leaky_relu(x: Operand, negative_slope: Operand = 0.01) -> Array:
    """`x` above 0, ``negative_slope * x`` below.

    >>> bu.nn.leaky_relu(bu.asarray([-1.0, 2.0]), 0.5).tolist()
    [-0.5, 2.0]
    """
    x = as_float(x)
    return where(x > 0, x, multiply(x, negative_slope))


def elu(x: Operand, alpha: Operand = 1.0) -> Array:
    """`x` above 0, ``alpha * expm1(x)`` below.

    >>> bu.nn.elu(bu.asarray([-bu.inf, 2.0])).tolist()
    [-1.0, 2.0]
    """
    x = as_float(x)
    above = greater(x, 0)
    return where(above, x, multiply(alpha, expm1(where(above, 0.0, x))))


def celu(x: Operand, alpha: Operand = 1.0) -> Array:
    """`x` above 0, ``alpha * expm1(x / alpha)`` below.

    >>> bu.nn.celu(bu.asarray([-bu.inf, 2.0]), 3.0).tolist()
    [-3.0, 2.0]
    """
    x = as_float(x)
    above = greater(x, 0)
    return where(above, x, multiply(alpha, expm1(divide(where(above, 0.0, x), alpha))))


def selu(x: Operand) -> Array:
    """`elu` with the factors of G. Klambauer (2017), which keep mean 0 and variance 1.

    >>> bu.nn.selu(bu.asarray([0.0, 1.0])).tolist()
    [0.0, 1.0507009873554805]
    """
    return elu(x, 1.6732632423543772) * 1.0507009873554805


def relu6(x: Operand) -> Array:
    """`x` limited to 0 … 6.

    >>> bu.nn.relu6(bu.asarray([-1.0, 2.0, 7.0])).tolist()
    [0.0, 2.0, 6.0]
    """
    return clip(x, 0, 6)


def hard_tanh(x: Operand) -> Array:
    """`x` limited to -1 … 1.

    >>> bu.nn.hard_tanh(bu.asarray([-2.0, 0.5])).tolist()
    [-1.0, 0.5]
    """
    return clip(as_float(x), -1.0, 1.0)


def hard_sigmoid(x: Operand) -> Array:
    """``relu6(x + 3) / 6``.

    >>> bu.nn.hard_sigmoid(bu.asarray([-3.0, 0.0, 3.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return relu6(as_float(x) + 3.0) / 6.0


def hard_swish(x: Operand) -> Array:
    """``x * hard_sigmoid(x)``.

    >>> bu.nn.hard_swish(bu.asarray([-3.0, 3.0])).tolist()
    [-0.0, 3.0]
    """
    x = as_float(x)
    return x * hard_sigmoid(x)


def mish(x: Operand) -> Array:
    """``x * tanh(softplus(x))``.

    >>> bu.nn.mish(bu.asarray([0.0, 100.0])).tolist()
    [0.0, 100.0]
    """
    x = as_float(x)
    return x * tanh(float_unary("softplus", x))


def soft_sign(x: Operand) -> Array:
    """``x / (1 + |x|)``.

    >>> bu.nn.soft_sign(bu.asarray([-1.0, 3.0])).tolist()
    [-0.5, 0.75]
    """
    x = as_float(x)
    return x / (1 + _abs(x))


def squareplus(x: Operand, b: Operand = 4.0) -> Array:
    """``(x + sqrt(add(x * x, b))) / 2``.

    >>> bu.nn.squareplus(bu.asarray([0.0])).tolist()
    [1.0]
    """
    x = as_float(x)
    return (x + sqrt(add(x * x, b))) / 2


def glu(x: Operand, axis: int = -1) -> Array:
    """The first half of an axis times the sigmoid of the second.

    Raises OpTypeError for an odd size.

    >>> bu.nn.glu(bu.asarray([4.0, 0.0])).tolist()
    [2.0]
    """
    x = as_float(x)
    dim = axis_of("glu", axis, x.ndim)
    half, odd = divmod(x.shape[dim], 2) if x.ndim else (0, 1)
    if odd:
        raise OpTypeError(
            f"glu: axis {dim} of {x.type} has no halves", fix="give an axis of even size"
        )
    before = (slice(None),) * dim
    gate = float_unary("logistic", x[(*before, slice(half, None))])
    return x[*before, slice(0, half)] * gate


def standardize(
    x: Operand,
    axis: Axis = -1,
    mean: Operand | None = None,
    variance: Operand | None = None,
    epsilon: float = 1e-5,
) -> Array:
    """``(x - mean) / sqrt(variance + epsilon)``, both by default those of `x` over axes.

    >>> bu.nn.standardize(bu.asarray([1.0, 3.0]), epsilon=0.0).tolist()
    [-1.0, 1.0]
    """
    x, least = as_float(x), number_of("standardize", "epsilon", epsilon)
    middle = _mean(x, axis, keepdims=True) if mean is None else as_array(mean)
    spread = _var(x, axis, keepdims=True) if variance is None else as_array(variance)
    return (x - middle) * rsqrt(spread + least)


# -- normalisations --------------------------------------------------------------------------------


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
    dims = axes_of("layer_norm", axis, x.ndim)
    shape = tuple(x.shape[d] for d in dims)
    parts = _together("layer_norm", x, ((gain, 1), (bias, 0)), shape)
    return apply(
        "layer_norm", parts, {"dims": dims, "epsilon": number_of("layer_norm", "epsilon", epsilon)}
    )


def rms_norm(
    x: Operand, gain: Operand | None = None, *, axis: Axis = -1, epsilon: float = 1e-5
) -> Array:
    """``x / sqrt(mean(x * x) + epsilon) * gain``, the mean over axes.

    gain: of the sizes of these axes; ones by default.

    >>> bu.nn.rms_norm(bu.asarray([1.0, -1.0]), epsilon=0.0).tolist()
    [1.0, -1.0]
    """
    x = as_array(x)
    dims = axes_of("rms_norm", axis, x.ndim)
    shape = tuple(x.shape[d] for d in dims)
    parts = _together("rms_norm", x, ((gain, 1),), shape)
    return apply(
        "rms_norm", parts, {"dims": dims, "epsilon": number_of("rms_norm", "epsilon", epsilon)}
    )


def group_norm(
    x: Operand,
    groups: int,
    gain: Operand | None = None,
    bias: Operand | None = None,
    *,
    axis: int = 1,
    epsilon: float = 1e-5,
) -> Array:
    """`x` of mean 0 and variance 1 over each group of features of each member of the batch.

    x: the first axis is the batch.  axis: that of the features.
    gain, bias: per feature; ones and zeros by default.

    >>> bu.nn.group_norm(bu.asarray([[1.0, 3.0, 7.0, 5.0]]), 2, epsilon=0.0).tolist()
    [[-1.0, 1.0, 1.0, -1.0]]
    """
    x = as_array(x)
    dim = axis_of("group_norm", axis, x.ndim)
    parts = _together("group_norm", x, ((gain, 1), (bias, 0)), (x.shape[dim],))
    count = integer_of("group_norm", "groups", groups)
    return apply(
        "group_norm",
        parts,
        {"dim": dim, "groups": count, "epsilon": number_of("group_norm", "epsilon", epsilon)},
    )


def instance_norm(
    x: Operand,
    gain: Operand | None = None,
    bias: Operand | None = None,
    *,
    axis: int = 1,
    epsilon: float = 1e-5,
) -> Array:
    """`group_norm` with a group for every feature.

    >>> bu.nn.instance_norm(bu.asarray([[[1.0, 3.0]]]), epsilon=0.0).tolist()
    [[[-1.0, 1.0]]]
    """
    x = as_array(x)
    dim = axis_of("instance_norm", axis, x.ndim)
    groups = x.shape[dim] or 1
    return group_norm(x, groups, gain, bias, axis=dim, epsilon=epsilon)


def batch_norm(
    x: Operand,
    gain: Operand | None = None,
    bias: Operand | None = None,
    *,
    mean: Operand,
    var: Operand,
    axis: int = 1,
    epsilon: float = 1e-5,
) -> Array:
    """``(x - mean) / sqrt(var + epsilon) * gain + bias`` of each feature: what runs after training.

    mean, var: per feature, such as `batch_norm_train` returns.
    gain, bias: per feature; ones and zeros by default.  axis: that of the features.

    >>> one = bu.ones(1)
    >>> bu.nn.batch_norm(bu.asarray([[3.0]]), mean=one, var=one, epsilon=0.0).tolist()
    [[2.0]]
    """
    x = as_array(x)
    dim = axis_of("batch_norm", axis, x.ndim)
    given = ((mean, 0), (var, 1), (gain, 1), (bias, 0))
    wide, *parts = _together("batch_norm", x, given, (x.shape[dim],))
    assert isinstance(wide, Array)
    spread = (x.shape[dim],) + (1,) * (x.ndim - 1 - dim)
    centre, square, factor, shift = (_spread(part, spread) for part in parts)
    scale = rsqrt(square + number_of("batch_norm", "epsilon", epsilon))
    return (wide - centre) * (scale * factor) + shift


def batch_norm_train(
    x: Operand,
    gain: Operand | None = None,
    bias: Operand | None = None,
    *,
    mean: Operand,
    var: Operand,
    axis: int = 1,
    momentum: float = 0.1,
    epsilon: float = 1e-5,
) -> tuple[Array, Array, Array]:
    """`x` of mean 0 and variance 1 by feature, scaled; and the running mean and variance, updated.

    mean, var: the running ones, per feature; each moves to that of `x` by `momentum`, the variance
    to the unbiased one.  gain, bias, axis: as for `batch_norm`.

    >>> x, mean, var = bu.asarray([[1.0], [3.0]]), bu.zeros(1), bu.ones(1)
    >>> y, mean, var = bu.nn.batch_norm_train(x, mean=mean, var=var, epsilon=0.0)
    >>> y.tolist(), mean.tolist(), var.tolist()
    ([[-1.0], [1.0]], [0.2], [1.1])
    """
    x = as_array(x)
    dim = axis_of("batch_norm_train", axis, x.ndim)
    parts = _together("batch_norm_train", x, ((gain, 1), (bias, 0)), (x.shape[dim],))
    wide = parts[0]
    assert isinstance(wide, Array)
    result = apply(
        "batch_norm",
        parts,
        {"dim": dim, "epsilon": number_of("batch_norm_train", "epsilon", epsilon)},
    )
    others = [d for d in range(x.ndim) if d != dim]
    return result, *_moved(
        (mean, var), wide, others, number_of("batch_norm_train", "momentum", momentum)
    )


def _moved(
    running: tuple[Operand, Operand], x: Array, others: Sequence[int], momentum: float
) -> tuple[Array, Array]:
    kept = 1.0 - momentum
    count = 1
    for d in others:
        count *= x.shape[d]
    freed = count / (count - 1) if count > 1 else 1.0
    centre = as_array(running[0]) * kept + _mean(x, axis=others) * momentum
    spread = as_array(running[1]) * kept + _var(x, axis=others) * (momentum * freed)
    return centre, spread


def _together(
    name: str, x: Array, affine: Sequence[Affine], shape: tuple[int, ...]
) -> list[Array | Literal]:
    """`x` and the others, with defaults, in the float dtype in which they meet."""
    dtype, _ = common([x, *(v for v, _ in affine if v is not None)])
    wide = TensorType(x.shape, dtype if dtype.is_float else default_float())
    small = wide.with_shape(shape)
    parts: list[Array | Literal] = [fit(x, wide)]
    for value, default in affine:
        if value is None:
            parts.append(literal(default, small))
            continue
        if as_array(value).shape != shape:
            raise OpTypeError(
                f"{name}: {as_array(value).type} is given where {small} is needed",
                fix=f"give it shape {shape}",
            )
        parts.append(convert(as_array(value), wide.dtype))
    return parts


def _spread(part: Array | Literal, shape: tuple[int, ...]) -> Array:
    array = part if isinstance(part, Array) else apply("constant", (), {"value": part})
    return reshape(array, shape)


# -- softmax, losses, attention, images ------------------------------------------------------------


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
    # Do not subtract an infinite maximum: inf - inf is NaN.
    top = where(isfinite(top), top, 0)
    result = log(_sum(exp(x - top), axis=dims, keepdims=True)) + top
    kept_too = flag_of("logsumexp", "keepdims", keepdims)
    return result if kept_too else reshape(result, [n for d, n in enumerate(kept) if d not in dims])


def _over_axes(name: str, x: Operand, axis: Axis) -> Array:
    x = as_float(x)
    return apply(name, (x,), {"dims": axes_of(name, axis, x.ndim)})


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
    result_dtype = default_float() if dtype is None else dtype_of(dtype)
    (size,) = shape_of("one_hot", integer_of("one_hot", "num_classes", num_classes))
    if not isinstance(indices, Array):
        host = np.asarray(indices)
        wrong = (host < 0) | (host >= size) if host.dtype.kind in "iu" else np.zeros((), bool)
        if wrong.any():
            raise ArrayIndexError(
                f"index {host[wrong].flat[0]} is out of range for {size} classes",
                fix=f"use 0 … {size - 1}; what has no class, such as padding, mask with where",
            )
    result = apply("one_hot", (as_array(indices),), {"size": size, "dtype": result_dtype})
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
    from bringup.api.keys import single_key
    from bringup.api.samplers import bernoulli, parameter

    x, key = as_float(x), single_key("dropout", key)
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

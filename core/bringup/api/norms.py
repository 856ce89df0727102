"""Normalisations by feature, as ``bringup.nn`` names them."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.api.apply import apply
from bringup.api.array import Array, Axis, Operand
from bringup.api.axes import axes_of, axis_of, integer_of, number_of
from bringup.api.broadcasting import as_array, convert, fit
from bringup.api.defaults import default_float
from bringup.api.elementwise import rsqrt
from bringup.api.manipulation import reshape
from bringup.api.promotion import common, literal
from bringup.api.reductions import mean, var
from bringup.errors import OpTypeError
from bringup.graph import Literal
from bringup.types import TensorType

Affine = tuple[Operand | None, int]


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
    centre = as_array(running[0]) * kept + mean(x, axis=others) * momentum
    spread = as_array(running[1]) * kept + var(x, axis=others) * (momentum * freed)
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

"""Mixed precision, as ``bringup.amp``: compute in narrow floats what need not be in wide ones.

A `Policy` says once for a model in which dtype parameters are kept, in which they and the inputs
are computed with, and in which results come.  A `LossScale` keeps the gradients of float16 in its
range.  `quantize` keeps arrays in floats of 8 bits, with a scale for each array that an
`AmaxHistory` knows beforehand.  All of these but policies are containers of arrays, so a training
step takes and returns them, and `jit` compiles it whole.

Products of narrow floats need no care: matrices and convolutions accumulate float16 and bfloat16 in
float32, as sums do, and ``matmul(…, dtype=bu.float32)`` returns the sums unrounded.

>>> policy = bu.amp.Policy(compute=bu.bfloat16)
>>> predict = policy.apply(lambda params, x: x @ params["w"])
>>> predict({"w": bu.ones((3, 2), dtype=bu.float32)}, bu.ones((4, 3))).dtype
f32
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, ParamSpec, TypeVar

import numpy as np

from bringup.api import promotion
from bringup.api.arguments import integer_of, number_of
from bringup.api.array import Array, Operand
from bringup.api.boundary import guarded, guarded_methods, publish
from bringup.api.broadcasting import as_array, convert, floats_of
from bringup.api.complex import ComplexArray
from bringup.api.creation import asarray, zeros
from bringup.api.datatypes import finfo
from bringup.api.elementwise import abs, clip, divide, isfinite, logical_and, maximum, where
from bringup.api.elementwise import minimum as smaller
from bringup.api.manipulation import concat, expand_dims
from bringup.api.reductions import all as every
from bringup.api.reductions import max as largest_of
from bringup.dtypes import FLOATS, STORAGE, DType, bf16, f8e4m3fn, f32, i32
from bringup.errors import OpTypeError
from bringup.tracing.pytree import TreeDef, flatten, tree_map, unflatten

P = ParamSpec("P")
T = TypeVar("T")

_STATIC: dict[str, Any] = {"static": True}


@guarded_methods
@dataclasses.dataclass(frozen=True, slots=True, init=False)
class Policy:
    """The dtypes of a model: float64, float32, bfloat16 or float16 each.

    compute: of its operations.
    param: of the parameters that are kept and updated.
    output: of its results.

    Casts are of floats; integers, bools, complex arrays and Python numbers stay what they are.
    Raises OpTypeError for other dtypes.

    >>> policy = bu.amp.Policy(compute="bfloat16")
    >>> policy.cast_to_compute({"w": bu.ones(2), "count": bu.asarray(3)})["w"].dtype
    bf16
    """

    compute: DType = dataclasses.field(metadata=_STATIC)
    param: DType = dataclasses.field(metadata=_STATIC)
    output: DType = dataclasses.field(metadata=_STATIC)

    def __init__(self, compute: object = bf16, param: object = f32, output: object = f32) -> None:
        for name, dtype in (("compute", compute), ("param", param), ("output", output)):
            object.__setattr__(self, name, promotion.dtype_among("Policy", name, dtype, FLOATS))

    def cast_to_compute(self, tree: T) -> T:
        """A container with its floats in the dtype of operations."""
        return _cast(tree, self.compute)

    def cast_to_param(self, tree: T) -> T:
        """A container with its floats in the dtype of parameters."""
        return _cast(tree, self.param)

    def cast_to_output(self, tree: T) -> T:
        """A container with its floats in the dtype of results."""
        return _cast(tree, self.output)

    def apply(self, fn: Callable[P, T]) -> Callable[P, T]:
        """A function whose arguments are cast to the dtype of operations, and whose results to that
        of results.

        Gradients by the arguments have the dtypes that these have outside: of float32 parameters
        they are float32.  Arrays that `fn` finds elsewhere than among its arguments are not cast,
        and a float32 array among them makes what it meets float32.

        >>> dot = bu.amp.Policy(compute=bu.float16).apply(bu.vecdot)
        >>> x = bu.asarray([0.1, 0.2], dtype=bu.float32)
        >>> bu.grad(dot)(x, x).dtype
        f32
        """

        @guarded
        @wraps(fn)
        def cast(*args: P.args, **kwargs: P.kwargs) -> T:
            args, kwargs = self.cast_to_compute((args, kwargs))
            return self.cast_to_output(fn(*args, **kwargs))

        return cast


def _cast(tree: T, dtype: DType) -> T:
    leaves, treedef = flatten(tree)
    for n, (leaf, real) in enumerate(zip(leaves, _are_whole_arrays(treedef), strict=True)):
        if real and isinstance(leaf, Array | np.ndarray | np.generic):
            array = as_array(leaf)
            if array.dtype in FLOATS:
                leaves[n] = convert(array, dtype)
    result: T = unflatten(treedef, leaves)
    return result


def _are_whole_arrays(treedef: TreeDef) -> list[bool]:
    """For each leaf, whether it is an array and not a part of one that is complex or quantised."""
    if treedef.kind is None:
        return [True]
    if treedef.kind is ComplexArray or getattr(treedef.kind, "_is_array", False):
        return [False] * treedef.leaves
    return [real for child in treedef.children for real in _are_whole_arrays(child)]


def all_finite(tree: Any) -> Array:
    """Whether no float in a container is infinite or NaN: a bool of shape ().

    >>> bu.amp.all_finite({"w": bu.asarray([1.0, bu.inf]), "b": bu.zeros(2)}).item()
    False
    """
    flags = [every(isfinite(as_array(leaf))) for leaf in flatten(tree)[0]]
    result = asarray(True) if not flags else flags[0]
    for flag in flags[1:]:
        result = result & flag
    return result


def select(condition: Operand, tree: T, other: T) -> T:
    """One of two containers alike, leaf by leaf: `tree` where the condition holds, else `other`.

    condition: a bool of shape ().
    Raises OpTypeError for a condition of another type and for containers that are not alike.

    >>> bu.amp.select(bu.asarray(False), {"w": bu.ones(2)}, {"w": bu.zeros(2)})["w"].tolist()
    [0.0, 0.0]
    """
    chosen = as_array(condition)
    if chosen.shape or chosen.dtype.kind != "bool":
        raise OpTypeError(
            f"select: the condition is {chosen.type}, not bool[]",
            fix="give one truth for the whole containers, such as all_finite(gradients)",
        )
    leaves, treedef = flatten(tree)
    other_leaves, other_treedef = flatten(other)
    if other_treedef != treedef:
        raise OpTypeError(
            f"select: the containers differ: {treedef} and {other_treedef}",
            fix="give what was there before, and what takes its place",
        )
    picked: T = unflatten(
        treedef, [where(chosen, a, b) for a, b in zip(leaves, other_leaves, strict=True)]
    )
    return picked


@guarded_methods
@dataclasses.dataclass(frozen=True, slots=True, init=False)
class LossScale:
    """A factor of the loss that keeps the gradients of float16 representable; a container.

    float16 has no numbers above 65504 nor, but for zero, below 6e-8.  A loss that is multiplied by
    the scale has gradients that are larger by it: too small a scale loses the small ones, too large
    a one makes the large ones infinite.  So `adjust` doubles the scale after every `period` good
    steps, and halves it after a step whose gradients were not finite, which is then skipped.

    scale: the factor, an f32 array; a number is made one.
    good: how many good steps the scale has seen, an i32 array.
    period: how many it must have seen to grow.
    factor: by which it grows and shrinks; a power of two rounds nothing.
    least, largest: its bounds.
    Raises OpTypeError for bounds, factors and periods that make no sense.

    P. Micikevicius et al., Mixed Precision Training, 2018.

    >>> loss_scale = bu.amp.LossScale(8.0, period=1)
    >>> loss_scale.scale_loss(bu.asarray(2.0)).item()
    16.0
    >>> loss_scale.adjust(bu.asarray(True)).scale.item()
    16.0
    >>> loss_scale.adjust(bu.asarray(False)).scale.item()
    4.0
    """

    scale: Array
    good: Array
    period: int = dataclasses.field(metadata=_STATIC)
    factor: float = dataclasses.field(metadata=_STATIC)
    least: float = dataclasses.field(metadata=_STATIC)
    largest: float = dataclasses.field(metadata=_STATIC)

    def __init__(
        self,
        scale: Operand = 2.0**15,
        good: Operand = 0,
        *,
        period: int = 2000,
        factor: float = 2.0,
        least: float = 1.0,
        largest: float = 2.0**24,
    ) -> None:
        period = integer_of("LossScale", "period", period)
        factor = number_of("LossScale", "factor", factor)
        least = number_of("LossScale", "least", least)
        largest = number_of("LossScale", "largest", largest)
        if period < 1 or factor <= 1 or not 0 < least <= largest:
            raise OpTypeError(
                f"LossScale: period={period}, factor={factor}, least={least}, largest={largest}",
                fix="give a period of at least 1, a factor above 1, and 0 < least <= largest",
            )
        # As arrays from the start, so that every step has the same signature.
        object.__setattr__(self, "scale", asarray(scale, dtype=f32))
        object.__setattr__(self, "good", asarray(good, dtype=i32))
        object.__setattr__(self, "period", period)
        object.__setattr__(self, "factor", factor)
        object.__setattr__(self, "least", least)
        object.__setattr__(self, "largest", largest)

    def scale_loss(self, loss: Operand) -> Array:
        """The loss times the scale, in f32 at least."""
        loss = as_array(loss)
        return loss * convert(self.scale, promotion.promote(loss.dtype, f32))

    def unscale(self, gradients: T) -> T:
        """Gradients of the scaled loss as those of the loss itself, in f32 at least."""

        def unscaled(leaf: Any) -> Array:
            array = as_array(leaf)
            wide = convert(array, promotion.promote(array.dtype, f32))
            return divide(wide, convert(self.scale, wide.dtype))

        return tree_map(unscaled, gradients)

    def adjust(self, finite: Operand) -> LossScale:
        """The scale for the next step.

        finite: whether this step was good, as `all_finite` says of its gradients.
        """
        good = self.good + 1
        grows = good >= self.period
        grown = smaller(self.scale * self.factor, self.largest)
        shrunk = maximum(self.scale / self.factor, self.least)
        next_scale = where(grows, grown, self.scale)
        return dataclasses.replace(
            self,
            scale=where(finite, next_scale, shrunk),
            good=where(logical_and(finite, good < self.period), good, 0),
        )


@guarded_methods
@dataclasses.dataclass(frozen=True, slots=True)
class Quantized:
    """An array in floats of 8 bits, with one scale: a container that `quantize` makes.

    values: the array divided by the scale.
    scale: f32, of shape ().
    """

    values: Array
    scale: Array
    _is_array: ClassVar[bool] = True

    def dequantize(self, dtype: object = f32) -> Array:
        """The array again, computed in f32 and rounded once.

        >>> bu.amp.quantize(bu.asarray([1.0, -448.0])).dequantize().tolist()
        [1.0, -448.0]
        """
        wide = convert(self.values, f32) * self.scale
        return convert(wide, promotion.dtype_among("dequantize", "dtype", dtype, FLOATS))


def quantize(x: Operand, dtype: object = f8e4m3fn, *, scale: Operand | None = None) -> Quantized:
    """An array in floats of 8 bits.

    x: floats of any shape.
    dtype: float8_e4m3fn, of 3 bits of mantissa, for values; float8_e5m2, of 2 bits and a wider
    range, for gradients.
    scale: what the array is divided by; by default as large as makes its largest element the
    largest of the dtype.  Elements beyond become the largest; NaN stays NaN.

    Elements in the normal range of the dtype are off by one part in 16, or in 8, at most.
    Two quantised matrices multiply so, without going through a wider dtype:
    ``bu.matmul(a.values, b.values, dtype=bu.float32) * (a.scale * b.scale)``.

    >>> q = bu.amp.quantize(bu.asarray([0.5, 0.26], dtype=bu.float32))
    >>> q.values.dtype, bu.max(bu.abs(q.dequantize() - bu.asarray([0.5, 0.26]))).item() < 0.26 / 16
    (f8e4m3fn, True)
    """
    array = floats_of("quantize", x)
    kind = promotion.dtype_among("quantize", "dtype", dtype, STORAGE)
    wide = convert(array, f32)
    if scale is None:
        factor = _scale_of(_amax(wide), kind)
    else:
        factor = convert(as_array(scale), f32)
    bound = finfo(kind).max
    return Quantized(convert(clip(wide / factor, -bound, bound), kind), factor)


@guarded_methods
@dataclasses.dataclass(frozen=True, slots=True, init=False)
class AmaxHistory:
    """The largest magnitudes that an array had in the last steps; a container.

    With the scale of an earlier step an array is quantised while it is computed; its own scale
    would have it read twice.  An array that outgrows its history is clipped for one step.

    amax: f32, the latest first, 0 where nothing was seen; a number of steps is made zeros.
    Raises OpTypeError for a number below 1.

    >>> history = bu.amp.AmaxHistory(16).update(bu.asarray([3.0, -448.0]))
    >>> history.scale().item()
    1.0
    """

    amax: Array

    def __init__(self, amax: Array | int = 16) -> None:
        if not isinstance(amax, Array):
            steps = integer_of("AmaxHistory", "amax", amax)
            if steps < 1:
                raise OpTypeError(
                    f"AmaxHistory: {steps} steps are no history", fix="give at least 1"
                )
            amax = zeros(steps, dtype=f32)
        object.__setattr__(self, "amax", amax)

    def update(self, x: Operand) -> AmaxHistory:
        """The history with the largest finite magnitude of an array, and without the oldest."""
        latest = _amax(convert(floats_of("AmaxHistory.update", x), f32))
        return AmaxHistory(concat([expand_dims(latest, 0), self.amax[:-1]]))

    def scale(self, dtype: object = f8e4m3fn) -> Array:
        """The scale with which the largest in the history becomes the largest of a dtype."""
        kind = promotion.dtype_among("AmaxHistory.scale", "dtype", dtype, STORAGE)
        return _scale_of(largest_of(self.amax), kind)


def _amax(wide: Array) -> Array:
    """The largest finite magnitude; 0 if there is none."""
    if not wide.size:
        return zeros((), dtype=f32, device=wide._device)
    return largest_of(where(isfinite(wide), abs(wide), 0.0))


def _scale_of(amax: Array, kind: DType) -> Array:
    """The scale of an array of this largest magnitude; 1 where it would be 0."""
    factor = amax / finfo(kind).max
    return where(factor > 0, factor, 1.0)


__all__ = [
    "AmaxHistory",
    "LossScale",
    "Policy",
    "Quantized",
    "all_finite",
    "quantize",
    "select",
]

publish(globals(), "bringup.amp")

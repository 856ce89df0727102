"""Weights and activations in 8 or 4 bits, as ``bringup.quant``.

`quantize` makes int8 codes with a scale for a whole array or for each channel, `quantize_int4` two
codes a byte with a scale for each group.  Both results are containers that stand on the right of
``@``, so a network runs with quantised parameters as it is: `quantize_params` makes them of the
dense weights in a container, `calibrate` with the ranges of activations that were observed.
`fake_quantize` and `fake_params` train a network with the errors that quantising makes.

A code q stands for ``(q - zero_point) * scale``; the scale is also called a step.

>>> params = {"w": bu.asarray([[0.5, -1.0], [0.25, 2.0]]), "b": bu.ones(2)}
>>> small = bu.quant.quantize_params(params)
>>> small["w"].values.tolist()
[[127, -64], [64, 127]]
>>> bu.round(bu.ones((1, 2)) @ small["w"], 1).tolist()
[[0.8, 1.0]]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

import numpy as np

from bringup.api.array import Array, Operand
from bringup.api.axes import axes_of, flag_of, integer_of, number_of
from bringup.api.boundary import guarded_methods, publish
from bringup.api.broadcasting import as_array, convert, floats_of
from bringup.api.closures import require_function
from bringup.api.creation import arange, asarray, zeros
from bringup.api.custom import custom_vjp, stop_gradient
from bringup.api.elementwise import (
    abs,
    ceil,
    clip,
    floor,
    isfinite,
    log2,
    maximum,
    minimum,
    pow,
    square,
    where,
)
from bringup.api.elementwise import bitwise_left_shift as shift_left
from bringup.api.elementwise import bitwise_right_shift as shift_right
from bringup.api.elementwise import round as nearest
from bringup.api.manipulation import flip, reshape, squeeze
from bringup.api.numeric import bincount
from bringup.api.products import matmul
from bringup.api.promotion import dtype_among, promote
from bringup.api.reductions import argmin, cumulative_sum
from bringup.api.reductions import max as largest_of
from bringup.api.reductions import min as least_of
from bringup.api.reductions import sum as sum_of
from bringup.dtypes import FLOATS, f32, i8, i16, i32
from bringup.errors import OpTypeError
from bringup.tracing.pytree import flatten, unflatten

T = TypeVar("T")

_STATIC: dict[str, Any] = {"static": True}
#: The largest magnitude of a code with so many bits, where zero is the code 0.
_MOST = {8: 127, 4: 7}
#: The least magnitude that has a scale of its own: below, its reciprocal is no f32.
_LEAST = 1e-30


# -- arrays ----------------------------------------------------------------------------------------


@guarded_methods
@dataclasses.dataclass(frozen=True, slots=True)
class Int8Array:
    """An array as int8 codes; a container that `quantize` makes.

    values: the codes, int8.
    scale: f32, of as many axes, those of size 1 that share it.
    zero_point: the code of zero, int8, like the scale; None where it is 0.
    inputs: for products of integers with codes whose scale is known before: that scale, f32 of
    shape (), their zero point, f32, and its product with the sums of columns, int32; made by
    `with_inputs`.
    dynamic: whether what it is multiplied with is quantised at run time, each row by its largest.

    ``x @ self`` takes floats of shape ``[…, k]`` and gives the dtype of `x`.  Codes on both sides
    are multiplied and added as integers, exactly; else codes are made floats inside the product.
    Raises OpTypeError for products of integers whose sums i32 may not hold, and where scales differ
    along the axis that is contracted.

    >>> w = bu.quant.quantize(bu.asarray([[3.0, 0.5], [-6.0, 1.0]]), axis=-1)
    >>> bu.round(bu.asarray([[1.0, 1.0]]) @ w, 1).tolist()
    [[-3.0, 1.5]]
    """

    values: Array
    scale: Array
    zero_point: Array | None = None
    inputs: tuple[Array, Array, Array] | None = None
    dynamic: bool = dataclasses.field(default=False, metadata=_STATIC)
    #: numpy's arrays leave the product to us.
    __array_ufunc__: ClassVar[None] = None
    #: A policy of mixed precision casts no part of it.
    _is_array: ClassVar[bool] = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array."""
        return self.values.shape

    def dequantize(self, dtype: object = f32) -> Array:
        """The array again, computed in f32 and rounded once.

        Elements between the ends of the range that was quantised are off by half a step at most.

        >>> bu.quant.quantize(bu.asarray([1.0, -127.0])).dequantize().tolist()
        [1.0, -127.0]
        """
        codes = convert(self.values, f32)
        if self.zero_point is not None:
            codes = codes - convert(self.zero_point, f32)
        return convert(codes * self.scale, dtype_among("dequantize", "dtype", dtype, FLOATS))

    def __rmatmul__(self, x: Operand) -> Array:
        x = floats_of("matmul", x)
        shared = self.scale.ndim < 2 or self.scale.shape[-2] == 1
        if self.inputs is None and not self.dynamic:
            if not shared or self.zero_point is not None or len(self.shape) < 2:
                return matmul(x, self.dequantize(x.dtype))
            sums = matmul(x, convert(self.values, x.dtype), dtype=promote(x.dtype, f32))
            return convert(sums * self._columns(x), x.dtype)
        self._require_exact(shared)
        codes, scale, offset = self._quantized(convert(x, f32))
        sums = matmul(codes, self._weights(), dtype=i32)
        if offset is not None:
            sums = sums - (offset if x.ndim > 1 else squeeze(offset, -2))
        return convert(convert(sums, f32) * (scale * self._columns(x)), x.dtype)

    def with_inputs(self, scale: Operand, zero_point: Operand) -> Int8Array:
        """The same weights, for products with codes of this scale and zero point.

        scale, zero_point: of shape (), as `MinMax.qparams` gives them of what stood on the left;
        elements beyond the codes become the nearest code.

        >>> w = bu.quant.quantize(bu.asarray([[2.0], [2.0]]), axis=-1).with_inputs(0.01, -128)
        >>> bu.round(bu.asarray([[1.0, 99.0]]) @ w, 1).tolist()
        [[7.1]]
        """
        zero = convert(as_array(zero_point), f32)
        sums = sum_of(self._weights(), axis=-2, keepdims=True, dtype=i32)
        inputs = convert(as_array(scale), f32), zero, sums * convert(zero, i32)
        return dataclasses.replace(self, inputs=inputs, dynamic=False)

    def _weights(self) -> Array:
        """The codes as integers whose zero is 0."""
        if self.zero_point is None:
            return self.values
        return convert(self.values, i16) - convert(self.zero_point, i16)

    def _require_exact(self, shared: bool) -> None:
        most = (127 if self.inputs is None else 255) * (128 if self.zero_point is None else 255)
        if len(self.shape) < 2 or not shared or self.shape[-2] * most >= 2**31:
            raise OpTypeError(
                f"matmul: no exact product of integers with {self.values.type}"
                f" and scales {self.scale.type}",
                fix="give matrices quantised with axis=-1, of fewer rows, or dequantize them",
            )

    def _quantized(self, x: Array) -> tuple[Array, Array, Array | None]:
        """The codes of what is multiplied, their scale, and what their zero adds to the sums."""
        if self.inputs is None:
            scale = _symmetric(largest_of(abs(x), axis=-1, keepdims=True), 8)
            return convert(clip(nearest(x / scale), -127, 127), i8), scale, None
        scale, zero, offset = self.inputs
        return convert(clip(nearest(x / scale) + zero, -128, 127), i8), scale, offset

    def _columns(self, x: Array) -> Array:
        return self.scale if x.ndim > 1 or self.scale.ndim < 2 else squeeze(self.scale, -2)


@guarded_methods
@dataclasses.dataclass(frozen=True, slots=True)
class Int4Array:
    """A matrix in 4 bits, or a stack of them; a container that `quantize_int4` makes.

    values: int8 ``[…, k/2, n]``, two codes from -7 to 7 a byte: those of rows 2i and 2i + 1, the
    first in the low bits.
    scale: f32 ``[…, k/group, n]``.

    ``x @ self`` takes floats of shape ``[…, k]`` and gives the dtype of `x`: the codes are unpacked
    inside the product.

    >>> w = bu.quant.quantize_int4(bu.asarray([[7.0], [-3.0]]), group=2)
    >>> (bu.asarray([[1.0, 1.0]]) @ w).tolist(), w.values.nbytes
    ([[4.0]], 1)
    """

    values: Array
    scale: Array
    __array_ufunc__: ClassVar[None] = None
    _is_array: ClassVar[bool] = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array."""
        *outer, pairs, columns = self.values.shape
        return (*outer, 2 * pairs, columns)

    def dequantize(self, dtype: object = f32) -> Array:
        """The array again, computed in f32 and rounded once.

        Elements are off by half a step of their group at most.

        >>> w = bu.asarray([[7.0, 1.0], [-3.0, 0.5]])
        >>> bu.quant.quantize_int4(w, group=2).dequantize()[:, 0].tolist()
        [7.0, -3.0]
        """
        *outer, rows, columns = self.shape
        pairs = reshape(self.values, (*outer, rows // 2, 1, columns))
        # The low four bits go to the top, the high ones stay; both come down with their sign.
        top = shift_left(pairs, asarray([[4], [0]], dtype=i8))
        codes = convert(shift_right(top, asarray(4, dtype=i8)), f32)
        groups = self.scale.shape[-2]
        grouped = reshape(codes, (*outer, groups, rows // groups, columns))
        wide = grouped * reshape(self.scale, (*outer, groups, 1, columns))
        return convert(reshape(wide, self.shape), dtype_among("dequantize", "dtype", dtype, FLOATS))

    def __rmatmul__(self, x: Operand) -> Array:
        x = floats_of("matmul", x)
        return matmul(x, self.dequantize(x.dtype))


def quantize(
    x: Operand,
    scale: Operand | None = None,
    zero_point: Operand | None = None,
    *,
    axis: int | tuple[int, ...] | None = None,
    symmetric: bool = True,
) -> Int8Array:
    """An array as int8 codes, the nearest; halves go to even.

    x: floats of any shape.
    scale, zero_point: as an observer's `MinMax.qparams` gives them, or of other shapes that
    broadcast to `x`; elements beyond the codes become the nearest code.  By default they follow
    from the array itself.
    axis: the channels, which have a scale each; None for one of all: -1 is a scale for each column
    of weights in ``x @ w``.
    symmetric: codes from -127 to 127 where 0 is zero; else from -128 to 127 with a zero point, for
    elements that are mostly of one sign.  For scales that follow from the array.
    Raises OpTypeError for what are no floats, and for a zero point without a scale.

    Zero is exact.  A NaN or an infinity makes the scale of its channel one, and so the elements.

    >>> bu.quant.quantize(bu.asarray([0.0, 1.0, 4.0]), symmetric=False).values.tolist()
    [-128, -64, 127]
    """
    array = convert(floats_of("quantize", x), f32)
    if scale is None:
        if zero_point is not None:
            raise OpTypeError(
                "quantize: a zero point without a scale", fix="give both, or symmetric=False"
            )
        if flag_of("quantize", "symmetric", symmetric):
            step, zero = _symmetric(_own(abs(array), axis), 8), None
        else:
            step, zero = _affine(_own(array, axis, least_of), _own(array, axis))
    else:
        step = convert(as_array(scale), f32)
        zero = None if zero_point is None else convert(as_array(zero_point), f32)
    codes = nearest(array / step)
    if zero is None:
        return Int8Array(convert(clip(codes, -127, 127), i8), step)
    return Int8Array(convert(clip(codes + zero, -128, 127), i8), step, convert(zero, i8))


def quantize_int4(x: Operand, *, group: int = 32) -> Int4Array:
    """Matrices in 4 bits, with a scale for every `group` rows of each column.

    x: floats ``[…, k, n]``; `group` is even and divides k.
    Raises OpTypeError for other shapes and groups.

    >>> w = bu.random.normal(bu.random.key(0), (64, 8))
    >>> bu.quant.quantize_int4(w).values.shape, bu.quant.quantize_int4(w).scale.shape
    ((32, 8), (2, 8))
    """
    array = convert(floats_of("quantize_int4", x), f32)
    groups = _groups("quantize_int4", array, group)
    scale = _symmetric(largest_of(abs(groups), axis=-2, keepdims=True), 4)
    codes = convert(nearest(groups / scale), i8)
    *outer, rows, columns = array.shape
    pairs = reshape(codes, (*outer, rows // 2, 2, columns))
    low, high = pairs[..., 0, :], pairs[..., 1, :]
    packed = (low & asarray(15, dtype=i8)) | shift_left(high, asarray(4, dtype=i8))
    return Int4Array(packed, squeeze(scale, -2))


def _groups(name: str, array: Array, group: int) -> Array:
    """``[…, k, n]`` as ``[…, k/group, group, n]``."""
    group = integer_of(name, "group", group)
    if array.ndim < 2 or group < 2 or group % 2 or array.shape[-2] % group:
        raise OpTypeError(
            f"{name}: groups of {group} rows of {array.type}",
            fix="give an even group that divides the axis before the last",
        )
    *outer, rows, columns = array.shape
    return reshape(array, (*outer, rows // group, group, columns))


def _own(
    x: Array, axis: int | tuple[int, ...] | None, most: Callable[..., Array] = largest_of
) -> Array:
    """The largest element of each channel, or the least."""
    channels = () if axis is None else axes_of("quantize", axis, x.ndim)
    others = tuple(d for d in range(x.ndim) if d not in channels)
    return most(x, axis=others, keepdims=True)


def _symmetric(magnitude: Array, bits: int) -> Array:
    return maximum(magnitude, _LEAST) * (1 / _MOST[bits])


def _affine(low: Array, high: Array) -> tuple[Array, Array]:
    """The scale and the zero point of a range, which is made to hold zero."""
    low, high = minimum(low, 0.0), maximum(high, 0.0)
    scale = maximum(high - low, _LEAST) * (1 / 255)
    return scale, clip(nearest(-128.0 - low / scale), -128, 127)


# -- observers -------------------------------------------------------------------------------------


@guarded_methods
@dataclasses.dataclass(frozen=True, slots=True, init=False)
class MinMax:
    """The least and the largest finite element of all arrays so far, and zero; a container.

    low, high: f32 of shape ().

    >>> seen = bu.quant.MinMax().update(bu.asarray([0.5, 2.0])).update(bu.asarray([-0.55]))
    >>> [float(end) for end in (seen.high, seen.qparams()[1])]
    [2.0, -73.0]
    """

    low: Array
    high: Array

    def __init__(self, low: Operand = 0.0, high: Operand = 0.0) -> None:
        object.__setattr__(self, "low", asarray(low, dtype=f32))
        object.__setattr__(self, "high", asarray(high, dtype=f32))

    def update(self, x: Operand) -> MinMax:
        """The observer when it has seen another array."""
        array = _finite("MinMax.update", x)
        return MinMax(minimum(self.low, least_of(array)), maximum(self.high, largest_of(array)))

    def qparams(self) -> tuple[Array, Array]:
        """Scale and zero point, f32 of shape (), with which all that was seen has codes."""
        return _affine(self.low, self.high)


@guarded_methods
@dataclasses.dataclass(frozen=True, slots=True, init=False)
class Histogram:
    """How often elements were how large; a container.  It finds ranges that leave outliers out.

    counts: f32, of bins of equal width between -limit and limit; a number is made so many zeros.
    limit: f32, of shape (), a power of two; where it grows, bins are put together.
    keep: the share of elements that the range holds at least, in whole bins; None for the range of
    the least mean squared error, among 128 parts of the whole one.
    Raises OpTypeError for an odd number of bins, or fewer than two, and for shares not in (0, 1].

    >>> x = bu.concat([bu.linspace(-1, 1, 999, dtype=bu.float32), bu.asarray([60.0], bu.float32)])
    >>> [round(float(bu.quant.Histogram(keep=k).update(x).qparams()[0]), 2) for k in (1.0, 0.99)]
    [0.24, 0.01]
    """

    counts: Array
    limit: Array
    keep: float | None = dataclasses.field(metadata=_STATIC)

    def __init__(
        self, counts: Array | int = 2048, limit: Operand = 0.0, *, keep: float | None = None
    ) -> None:
        share = None if keep is None else number_of("Histogram", "keep", keep)
        bins = counts.size if isinstance(counts, Array) else integer_of("Histogram", "bins", counts)
        if bins < 2 or bins % 2 or (share is not None and not 0 < share <= 1):
            raise OpTypeError(
                f"Histogram: {bins} bins, keep={share}",
                fix="give an even number of bins, and a share above 0 and at most 1",
            )
        made = counts if isinstance(counts, Array) else zeros(bins, dtype=f32)
        object.__setattr__(self, "counts", made)
        object.__setattr__(self, "limit", asarray(limit, dtype=f32))
        object.__setattr__(self, "keep", share)

    def update(self, x: Operand) -> Histogram:
        """The observer when it has seen another array."""
        array = reshape(_finite("Histogram.update", x), (-1,))
        bins, half = self.counts.size, self.counts.size // 2
        power = clip(ceil(log2(largest_of(abs(array)))), -126, 127)
        limit = maximum(self.limit, pow(2.0, power))
        times = where(self.limit > 0, limit / self.limit, 1.0)

        def counted(places: Array, weights: Array | None = None) -> Array:
            inside = clip(places + float(half), 0, bins - 1)
            return convert(bincount(convert(inside, i32), weights, length=bins), f32)

        # Places are numbers of bins from zero on; a bin that grows holds all of some old ones.
        old = counted(floor((arange(bins, dtype=f32) - (half - 0.5)) / times), self.counts)
        return Histogram(old + counted(floor(array * (half / limit))), limit, keep=self.keep)

    def qparams(self) -> tuple[Array, Array]:
        """Scale and zero point, f32 of shape ()."""
        bins, width = self.counts.size, self.limit * (2 / self.counts.size)
        below = cumulative_sum(self.counts)
        tail = below[-1] * ((1 - (self.keep or 1.0)) / 2)
        low = (sum_of(convert(below <= tail, f32)) - bins / 2) * width
        above = cumulative_sum(flip(self.counts))
        high = (bins / 2 - sum_of(convert(above <= tail, f32))) * width
        if self.keep is None:
            parts = arange(1, 129, dtype=f32) / 128
            middles = (arange(bins, dtype=f32) - (bins / 2 - 0.5)) * width
            scale, zero = _affine(low * parts[:, None], high * parts[:, None])
            codes = clip(nearest(middles / scale) + zero, -128, 127)
            errors = square((codes - zero) * scale - middles)
            best = parts[argmin(sum_of(errors * self.counts, axis=1))]
            low, high = low * best, high * best
        return _affine(low, high)


def _finite(name: str, x: Operand) -> Array:
    array = convert(floats_of(name, x), f32)
    return where(isfinite(array), array, 0.0)


# -- training --------------------------------------------------------------------------------------


@custom_vjp
def _nearest_through(x: Array) -> Array:
    return nearest(x)


_nearest_through.defvjp(lambda x: (nearest(x), None), lambda _, ct: (ct,))


def fake_quantize(
    x: Operand,
    scale: Operand | None = None,
    zero_point: Operand | None = None,
    *,
    axis: int | tuple[int, ...] | None = None,
    bits: int = 8,
) -> Array:
    """What quantising and dequantising makes of an array, with a gradient to train by.

    x: floats of any shape; the result has its dtype.
    scale, zero_point: as of `quantize`; by default a symmetric scale that follows from the array
    and counts as a constant.  `axis`: the channels that have one each; -2 is one for each row.
    bits: 8, or 4 with codes from -7 to 7, or from -8 with a zero point.
    Raises OpTypeError for other bits and what are no floats.

    Rounding is differentiated as if it were not there (Y. Bengio et al., 2013), so elements have
    the gradient of the result where they have codes, and 0 beyond; a scale that is given has one
    as well, and can be learned (S. Esser et al., Learned Step Size Quantization, 2020).

    >>> x = bu.asarray([0.2, 0.9, 300.0])
    >>> bu.quant.fake_quantize(x, 1.0).tolist()
    [0.0, 1.0, 127.0]
    >>> bu.grad(lambda x: bu.sum(bu.quant.fake_quantize(x, 1.0)))(x).tolist()
    [1.0, 1.0, 0.0]
    """
    array = floats_of("fake_quantize", x)
    most = _MOST.get(integer_of("fake_quantize", "bits", bits))
    if most is None:
        raise OpTypeError(f"fake_quantize: bits={bits}", fix="give 8 or 4")
    wide = convert(array, f32)
    zero = 0.0 if zero_point is None else convert(as_array(zero_point), f32)
    if scale is None:
        step = stop_gradient(_symmetric(_own(abs(wide), axis), bits))
    else:
        step = convert(as_array(scale), f32)
    lowest = -most if zero_point is None else -most - 1
    codes = _nearest_through(wide / step) + zero
    inside = (codes >= lowest) & (codes <= most)
    codes = where(inside, codes, stop_gradient(clip(codes, lowest, most)))
    return convert((codes - zero) * step, array.dtype)


# -- containers of parameters ----------------------------------------------------------------------


def quantize_params(
    params: Any,
    *,
    bits: int = 8,
    group: int = 32,
    dynamic: bool = False,
    takes: Callable[[Array], bool] | None = None,
) -> Any:
    """A container with its dense weights quantised, for a network that uses them as ``x @ w``.

    bits: 8, with a scale for each column; 4, with one for every `group` rows of each.
    dynamic: rows of x are quantised at run time, and the product is one of integers.  For 8 bits.
    takes: which parameters, by default matrices of floats; the others stay.  Leave out tables that
    are indexed and not multiplied.
    Raises OpTypeError for other bits and groups, and for what has 4 bits and is dynamic.

    >>> small = bu.quant.quantize_params({"w": bu.ones((64, 8)), "b": bu.ones(8)}, bits=4)
    >>> bu.max(bu.abs(bu.ones((2, 64)) @ small["w"] - 64)).item() < 1e-4
    True
    """
    bits = integer_of("quantize_params", "bits", bits)
    dynamic = flag_of("quantize_params", "dynamic", dynamic)
    if bits not in _MOST or (dynamic and bits == 4):
        raise OpTypeError(
            f"quantize_params: bits={bits}, dynamic={dynamic}",
            fix="give bits=8, or bits=4 without dynamic",
        )

    def small(p: Array) -> Int8Array | Int4Array:
        if bits == 4:
            return quantize_int4(p, group=group)
        return dataclasses.replace(quantize(p, axis=-1), dynamic=dynamic)

    return _mapped("quantize_params", params, takes, lambda p, _: small(p))


def fake_params(
    params: Any,
    *,
    bits: int = 8,
    group: int = 32,
    takes: Callable[[Array], bool] | None = None,
) -> Any:
    """A container whose dense weights have the values that `quantize_params` keeps of them.

    Gradients go through to the weights themselves; call it inside the loss that is differentiated.
    bits, group, takes: as of `quantize_params`.

    >>> loss = lambda p: bu.sum(bu.quant.fake_params(p)["w"])
    >>> bu.grad(loss)({"w": bu.asarray([[0.1], [0.2]])})["w"].tolist()
    [[1.0], [1.0]]
    """

    def fake(p: Array) -> Array:
        if bits != 4:
            return fake_quantize(p, axis=-1, bits=bits)
        groups = _groups("fake_params", p, group)
        scale = stop_gradient(_symmetric(largest_of(abs(groups), axis=-2, keepdims=True), 4))
        return reshape(fake_quantize(groups, scale, bits=4), p.shape)

    return _mapped("fake_params", params, takes, lambda p, _: fake(p))


def calibrate(
    fn: Callable[..., Any],
    params: Any,
    batches: Iterable[Any],
    *,
    observer: MinMax | Histogram | None = None,
    takes: Callable[[Array], bool] | None = None,
) -> Any:
    """`quantize_params` in 8 bits, with the ranges of what the weights are multiplied with.

    fn: called as ``fn(params, *batch)``, not compiled; dense weights are used as ``x @ w``.
    batches: tuples of arguments, or single ones.
    observer: what sees all factors of a weight: a `MinMax`, which is the default, or a `Histogram`.
    takes: as of `quantize_params`.
    Raises OpTypeError for a weight that no call multiplied, and for one array as batches.

    >>> params = {"w": bu.asarray([[1.0], [2.0]])}
    >>> batches = [bu.asarray([[0.0, 1.0]]), bu.asarray([[3.0, 2.0]])]
    >>> small = bu.quant.calibrate(lambda p, x: x @ p["w"], params, batches)
    >>> bu.round(batches[1] @ small["w"], 1).tolist()
    [[7.0]]
    """
    if isinstance(batches, Array | np.ndarray) or not isinstance(batches, Iterable):
        raise OpTypeError(
            f"calibrate: batches of {type(batches).__name__}",
            fix="give a list of batches, or another iterable of them",
        )
    seen: dict[str, MinMax | Histogram] = {}

    def watched(p: Array, path: str) -> _Watch:
        return _Watch(p, path, seen, MinMax() if observer is None else observer)

    model = _mapped("calibrate", params, takes, watched)
    for batch in batches:
        fn(model, *(batch if isinstance(batch, tuple) else (batch,)))

    def small(p: Array, path: str) -> Int8Array:
        if path not in seen:
            raise OpTypeError(
                f"calibrate: params{path} was not multiplied with anything",
                fix="use it as x @ w in fn, give batches, or leave it out by takes",
            )
        return quantize(p, axis=-1).with_inputs(*seen[path].qparams())

    return _mapped("calibrate", params, takes, small)


@dataclasses.dataclass(slots=True)
class _Watch:
    """A weight that shows an observer what it is multiplied with."""

    weight: Array
    path: str
    seen: dict[str, MinMax | Histogram]
    fresh: MinMax | Histogram
    __array_ufunc__: ClassVar[None] = None

    def __rmatmul__(self, x: Operand) -> Array:
        array = as_array(x)
        self.seen[self.path] = self.seen.get(self.path, self.fresh).update(array)
        return matmul(array, self.weight)


def _mapped(
    name: str,
    params: Any,
    takes: Callable[[Array], bool] | None,
    change: Callable[[Array, str], Any],
) -> Any:
    """A container with another thing in place of each parameter that is taken, by its path."""
    if takes is not None:
        require_function(name, takes, "takes")
    leaves, treedef = flatten(params)
    for n, (leaf, path) in enumerate(zip(leaves, treedef.paths(), strict=True)):
        array = as_array(leaf)
        if takes(array) if takes else array.ndim == 2 and array.dtype in FLOATS:
            leaves[n] = change(array, path)
    return unflatten(treedef, leaves)


__all__ = [
    "Histogram",
    "Int4Array",
    "Int8Array",
    "MinMax",
    "calibrate",
    "fake_params",
    "fake_quantize",
    "quantize",
    "quantize_int4",
    "quantize_params",
]

publish(globals(), "bringup.quant")

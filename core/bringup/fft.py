"""Discrete Fourier transforms, as ``bringup.fft``: the extension of the array API standard.

Results are complex64 for f32 and narrower floats, complex128 else.  ``norm`` says which direction
divides by the length: ``backward`` the inverse, ``forward`` the other, ``ortho`` both by its root.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup.api.apply import apply, apply_all
from bringup.api.array import Array, Operand
from bringup.api.axes import axes_of, axis_of, choice_of, integer_of, items_of, number_of
from bringup.api.boundary import publish
from bringup.api.broadcasting import as_array, as_float, convert
from bringup.api.complex import ComplexArray, conj
from bringup.api.creation import asarray, zeros_like
from bringup.api.defaults import default_float
from bringup.api.elementwise import add, subtract
from bringup.api.indexing import getitem
from bringup.api.manipulation import concat, flip, moveaxis, reshape, roll, stack
from bringup.api.promotion import dtype_of
from bringup.dtypes import bf16, f16, f32
from bringup.errors import OpTypeError
from bringup.graph import Literal
from bringup.ops._elementary import roots_of_unity
from bringup.runtime.devices import DeviceSpec

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift",
    "ihfft", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

Pair = tuple[Array, Array]
Axes = Sequence[int] | None

_OPPOSITE = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def fft(x: Operand, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The transform along an axis, cropped or padded with zeros to `n` elements.

    >>> bu.fft.fft(bu.asarray([1.0, 2.0, 3.0, 4.0])).tolist()
    [(10+0j), (-2+2j), (-2+0j), (-2-2j)]
    """
    return _along("fft", x, n, axis, norm, inverse=False)


def ifft(x: Operand, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The inverse of `fft`.

    >>> bu.fft.ifft(bu.asarray([4.0, 0.0, 0.0, 0.0])).tolist()
    [(1+0j), (1+0j), (1+0j), (1+0j)]
    """
    return _along("ifft", x, n, axis, norm, inverse=True)


def rfft(x: Operand, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The first ``n // 2 + 1`` elements of `fft` of real numbers; the others are conjugates.

    >>> bu.fft.rfft(bu.asarray([1.0, 2.0, 3.0, 4.0])).tolist()
    [(10+0j), (-2+2j), (-2+0j)]
    """
    x = _wide("rfft", x)
    if isinstance(x, ComplexArray):
        raise OpTypeError(f"rfft: takes real numbers, got {x.type}", fix="use fft")
    line, length, dim = _line("rfft", x, n, axis)
    result = _half(line) if length % 2 == 0 else _first((line, zeros_like(line)), length)
    return _back(_scaled(result, _factor("rfft", length, norm, inverse=False)), dim)


def irfft(x: Operand, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The inverse of `rfft`: `n` real numbers, by default an even count, ``2 * (size - 1)``.

    >>> bu.fft.irfft(bu.asarray([10.0, -2.0, -2.0])).tolist()
    [1.0, 3.0, 3.0, 3.0]
    """
    x = _wide("irfft", x)
    dim = axis_of("irfft", axis, x.ndim)
    length = _length("irfft", x, 2 * (x.shape[dim] - 1) if n is None else n)
    parts, _, _ = _lines("irfft", x, length // 2 + 1, dim)
    parts = (parts[0], _without_ends(parts[1], length))
    result = _from_half(parts) if length % 2 == 0 else _from_odd(parts)
    scale = _factor("irfft", length, norm, inverse=True)
    return moveaxis(result if scale == 1 else result * scale, -1, dim)


def hfft(x: Operand, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """`fft` of numbers whose second half, left out, is the conjugate of the first: real.

    >>> bu.fft.hfft(bu.asarray([1.0, 0.0, 0.0])).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    return irfft(conj(as_float(x)), n=n, axis=axis, norm=_opposite("hfft", norm))


def ihfft(x: Operand, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The inverse of `hfft`.

    >>> bu.fft.ihfft(bu.asarray([4.0, 0.0, 0.0, 0.0])).tolist()
    [(1-0j), (1-0j), (1-0j)]
    """
    return conj(rfft(x, n=n, axis=axis, norm=_opposite("ihfft", norm)))


def fftn(
    x: Operand, /, *, s: Sequence[int] | None = None, axes: Axes = None, norm: str = "backward"
) -> Array:
    """`fft` along several axes, all by default; `s` their lengths.

    >>> bu.fft.fftn(bu.asarray([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [[(10+0j), (-2+0j)], [(-4+0j), 0j]]
    """
    x = as_float(x)
    for axis, n in _sites("fftn", x, s, axes):
        x = fft(x, n=n, axis=axis, norm=norm)
    return x


def ifftn(
    x: Operand, /, *, s: Sequence[int] | None = None, axes: Axes = None, norm: str = "backward"
) -> Array:
    """The inverse of `fftn`.

    >>> bu.fft.ifftn(bu.asarray([[4.0, 0.0], [0.0, 0.0]])).tolist()
    [[(1+0j), (1+0j)], [(1+0j), (1+0j)]]
    """
    x = as_float(x)
    for axis, n in _sites("ifftn", x, s, axes):
        x = ifft(x, n=n, axis=axis, norm=norm)
    return x


def rfftn(
    x: Operand, /, *, s: Sequence[int] | None = None, axes: Axes = None, norm: str = "backward"
) -> Array:
    """`rfft` along the last axis, then `fft` along the others.

    >>> bu.fft.rfftn(bu.asarray([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [[(10+0j), (-2+0j)], [(-4+0j), 0j]]
    """
    x = as_float(x)
    *others, (axis, n) = _sites("rfftn", x, s, axes)
    x = rfft(x, n=n, axis=axis, norm=norm)
    for axis, n in others:
        x = fft(x, n=n, axis=axis, norm=norm)
    return x


def irfftn(
    x: Operand, /, *, s: Sequence[int] | None = None, axes: Axes = None, norm: str = "backward"
) -> Array:
    """The inverse of `rfftn`; by default the last axis gets an even length.

    >>> bu.fft.irfftn(bu.asarray([[4.0, 0.0], [0.0, 0.0]])).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    x = as_float(x)
    *others, (axis, n) = _sites("irfftn", x, s, axes)
    for other, size in others:
        x = ifft(x, n=size, axis=other, norm=norm)
    return irfft(x, n=None if s is None else n, axis=axis, norm=norm)


def fft2(
    x: Operand,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str = "backward",
) -> Array:
    """`fftn` along two axes, the last ones by default.

    >>> bu.fft.fft2(bu.asarray([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [[(10+0j), (-2+0j)], [(-4+0j), 0j]]
    """
    return fftn(x, s=s, axes=axes, norm=norm)


def ifft2(
    x: Operand,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str = "backward",
) -> Array:
    """`ifftn` along two axes, the last ones by default.

    >>> bu.fft.ifft2(bu.asarray([[4.0, 0.0], [0.0, 0.0]])).tolist()
    [[(1+0j), (1+0j)], [(1+0j), (1+0j)]]
    """
    return ifftn(x, s=s, axes=axes, norm=norm)


def rfft2(
    x: Operand,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str = "backward",
) -> Array:
    """`rfftn` along two axes, the last ones by default.

    >>> bu.fft.rfft2(bu.asarray([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [[(10+0j), (-2+0j)], [(-4+0j), 0j]]
    """
    return rfftn(x, s=s, axes=axes, norm=norm)


def irfft2(
    x: Operand,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str = "backward",
) -> Array:
    """`irfftn` along two axes, the last ones by default.

    >>> bu.fft.irfft2(bu.asarray([[4.0, 0.0], [0.0, 0.0]])).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    return irfftn(x, s=s, axes=axes, norm=norm)


def fftfreq(n: int, /, d: float = 1.0, *, dtype: object = None, device: DeviceSpec = None) -> Array:
    """The frequency of each element of `fft`, in cycles per unit of the spacing `d`.

    >>> bu.fft.fftfreq(4).tolist()
    [0.0, 0.25, -0.5, -0.25]
    """
    return _made(np.fft.fftfreq(_count("fftfreq", n), _spacing("fftfreq", d)), dtype, device)


def rfftfreq(
    n: int, /, d: float = 1.0, *, dtype: object = None, device: DeviceSpec = None
) -> Array:
    """The frequency of each element of `rfft`.

    >>> bu.fft.rfftfreq(4).tolist()
    [0.0, 0.25, 0.5]
    """
    return _made(np.fft.rfftfreq(_count("rfftfreq", n), _spacing("rfftfreq", d)), dtype, device)


def fftshift(x: Operand, /, *, axes: int | Axes = None) -> Array:
    """Frequency 0 moved to the middle of axes, all by default.

    >>> bu.fft.fftshift(bu.fft.fftfreq(4)).tolist()
    [-0.5, -0.25, 0.0, 0.25]
    """
    x = as_array(x)
    dims = axes_of("fftshift", axes, x.ndim)
    return roll(x, tuple(x.shape[d] // 2 for d in dims), axis=dims)


def ifftshift(x: Operand, /, *, axes: int | Axes = None) -> Array:
    """The inverse of `fftshift`.

    >>> bu.fft.ifftshift(bu.asarray([-1, 0, 1])).tolist()
    [0, 1, -1]
    """
    x = as_array(x)
    dims = axes_of("ifftshift", axes, x.ndim)
    return roll(x, tuple(-(x.shape[d] // 2) for d in dims), axis=dims)


# -- lines: the axis last, of the length asked for -------------------------------------------------


def _wide(name: str, x: Any) -> Array:
    """In f32, f64 or a complex dtype."""
    x = as_float(x)
    if x.ndim == 0:
        raise OpTypeError(f"{name}: {x.type} has no axis", fix="reshape it to 1-d")
    return convert(x, f32) if x.dtype in (f16, bf16) else x


def _length(name: str, x: Array, n: Any) -> int:
    length = integer_of(name, "n", n)
    if length < 1:
        raise OpTypeError(
            f"{name}: {n!r} elements of {x.type} have no transform",
            fix="give an axis, or n, of at least 1",
        )
    return length


def _count(name: str, n: int) -> int:
    length = integer_of(name, "n", n)
    if length < 1:
        raise OpTypeError(f"{name}: {n!r} is no length", fix="give at least 1")
    return length


def _spacing(name: str, d: float) -> float:
    spacing = number_of(name, "d", d)
    if not spacing:
        raise OpTypeError(f"{name}: d is 0", fix="give a spacing")
    return spacing


def _line(name: str, x: Array, n: int | None, axis: int) -> tuple[Array, int, int]:
    """The axis last, cropped or padded to the length; the length and the axis."""
    dim = axis_of(name, axis, x.ndim)
    length = _length(name, x, x.shape[dim] if n is None else n)
    last = moveaxis(x, dim, -1)
    size = last.shape[-1]
    if size > length:
        last = getitem(last, (..., slice(0, length)))
    if size < length:
        lo, hi = (0,) * x.ndim, (*(0,) * (x.ndim - 1), length - size)
        zero = Literal.splat(0, last.type.with_shape(()))
        last = apply("pad", (last, zero), {"lo": lo, "hi": hi, "interior": lo})
    return last, length, dim


def _lines(name: str, x: Array, n: int | None, axis: int) -> tuple[Pair, int, int]:
    if isinstance(x, ComplexArray):
        re, length, dim = _line(name, x.real, n, axis)
        return (re, _line(name, x.imag, n, axis)[0]), length, dim
    re, length, dim = _line(name, x, n, axis)
    return (re, zeros_like(re)), length, dim


def _back(x: Pair, dim: int) -> Array:
    return ComplexArray(moveaxis(x[0], -1, dim), moveaxis(x[1], -1, dim))


def _along(name: str, x: Operand, n: int | None, axis: int, norm: str, *, inverse: bool) -> Array:
    parts, length, dim = _lines(name, _wide(name, x), n, axis)
    scale = _factor(name, length, norm, inverse=inverse)
    return _back(_scaled(_transform(parts, inverse=inverse), scale), dim)


def _transform(x: Pair, *, inverse: bool = False) -> Pair:
    re, im = apply_all("fft", x[::-1] if inverse else x)
    return (im, re) if inverse else (re, im)


def _factor(name: str, length: int, norm: str, *, inverse: bool) -> float:
    _opposite(name, norm)
    if norm == "ortho":
        return 1 / math.sqrt(length)
    return 1 / length if (norm == "backward") == inverse else 1.0


def _opposite(name: str, norm: str) -> str:
    return _OPPOSITE[choice_of(name, "norm", norm, _OPPOSITE)]


def _scaled(x: Pair, scale: float) -> Pair:
    return x if scale == 1 else (x[0] * scale, x[1] * scale)


def _sites(
    name: str, x: Array, s: Sequence[int] | None, axes: Axes
) -> list[tuple[int, int | None]]:
    """Axes and their lengths, in the order given; the same axis may come twice."""
    s = None if s is None else items_of(name, "s", s)
    axes = None if axes is None else items_of(name, "axes", axes)
    if axes is None:
        axes = range(x.ndim) if s is None else range(x.ndim - len(s), x.ndim)
    dims = [axis_of(name, a, x.ndim) for a in axes]
    if not dims or (s is not None and len(s) != len(dims)):
        raise OpTypeError(
            f"{name}: {len(dims)} axes and {'no' if s is None else len(s)} lengths for {x.type}",
            fix="give one axis at least, and a length for each or none",
        )
    return list(zip(dims, s if s is not None else [None] * len(dims), strict=True))


def _made(values: Any, dtype: object, device: DeviceSpec) -> Array:
    result_dtype = default_float() if dtype is None else dtype_of(dtype)
    return asarray(values, dtype=result_dtype, device=device)


# -- real numbers: two of them make one complex number ---------------------------------------------


def _first(x: Pair, length: int) -> Pair:
    re, im = (getitem(part, (..., slice(0, length // 2 + 1))) for part in _transform(x))
    return re, im


def _constants(like: Array, count: int, length: int) -> Pair:
    """e^(−2πik/length) for k < count."""
    type_ = like.type.with_shape((count,))
    found = roots_of_unity(np.arange(count), length)
    cos, sin = (
        apply("constant", (), {"value": Literal.of(part, type_.dtype)}, device=like._device)
        for part in found
    )
    return cos, sin


def _folded(x: Pair) -> tuple[Array, Array, Array, Array]:
    """Half the sums and differences of Z[k] and the conjugate of Z[N − k], k = 0 … N."""
    (re, im), (back_re, back_im) = x, (flip(part, axis=-1) for part in x)
    pairs = (
        (add, re, back_re),
        (subtract, im, back_im),
        (subtract, re, back_re),
        (add, im, back_im),
    )
    a, b, c, d = (combine(u, v) * 0.5 for combine, u, v in pairs)
    return a, b, c, d


def _half(x: Array) -> Pair:
    """Even elements as real and odd ones as imaginary parts, transformed and told apart."""
    n = x.shape[-1]
    even, odd = (getitem(x, (..., slice(first, None, 2))) for first in (0, 1))
    found = _transform((even, odd))
    whole = [concat([part, getitem(part, (..., slice(0, 1)))], axis=-1) for part in found]
    even_re, even_im, minus_odd_im, odd_re = _folded((whole[0], whole[1]))
    cos, sin = _constants(x, n // 2 + 1, n)
    re = even_re + (odd_re * cos + minus_odd_im * sin)
    im = even_im + (odd_re * sin - minus_odd_im * cos)
    return re, im


def _without_ends(im: Array, length: int) -> Array:
    """The imaginary parts of numbers that are their own conjugates are not read."""
    zero = zeros_like(getitem(im, (..., slice(0, 1))))
    last = length // 2 if length % 2 == 0 else length // 2 + 1
    parts = [zero, getitem(im, (..., slice(1, last)))]
    return concat(parts + [zero] * (length % 2 == 0), axis=-1)


def _from_half(x: Pair) -> Array:
    """The reverse of `_half`, times n."""
    count = x[0].shape[-1] - 1
    even_re, even_im, odd_re, odd_im = _folded(x)
    cos, sin = _constants(x[0], count + 1, 2 * count)
    turned_re = odd_re * cos + odd_im * sin
    turned_im = odd_im * cos - odd_re * sin
    both = (even_re - turned_im, even_im + turned_re)
    kept = [getitem(part, (..., slice(0, count))) * 2.0 for part in both]
    found = _transform((kept[0], kept[1]), inverse=True)
    pairs = stack(list(found), axis=-1)
    return reshape(pairs, (*pairs.shape[:-2], 2 * count))


def _from_odd(x: Pair) -> Array:
    re, im = (getitem(part, (..., slice(1, None))) for part in x)
    whole_re = concat([x[0], flip(re, axis=-1)], axis=-1)
    whole_im = concat([x[1], flip(im, axis=-1) * -1.0], axis=-1)
    return _transform((whole_re, whole_im), inverse=True)[0]


publish(globals(), "bringup.fft")

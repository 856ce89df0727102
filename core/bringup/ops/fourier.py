"""The composite row fft: the discrete Fourier transform of any length, on pairs of real arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from bringup.dtypes import FLOATS, DType
from bringup.errors import OpTypeError
from bringup.graph import Value
from bringup.ops import _elementary as elementary
from bringup.ops import _matrices as la
from bringup.ops import build
from bringup.ops._checks import one_of, same_types
from bringup.ops._elementary import roots_of_unity
from bringup.ops._numeric import Array
from bringup.ops.batching import shifting
from bringup.ops.build import rows
from bringup.ops.special_values import cells
from bringup.ops.table import Accuracy, Attrs, Kind, Trait, Types, define

Pair = tuple[Value, Value]

#: The longest transform by a matrix where the length has smaller factors, and where it has none.
_RADIX = 16
_DIRECT = 61


def _infer(operands: Types, _attrs: Attrs) -> Types:
    one_of("fft", operands[0], FLOATS)
    type_ = same_types("fft", operands)
    if type_.rank == 0:
        raise OpTypeError(
            f"fft: takes vectors in the last dimension, got {type_}",
            fix="reshape it to one dimension or more",
        )
    return type_, type_


@la.stacked
def _reference(re: Array, im: Array) -> tuple[Array, Array]:
    if re.size == 0:
        return re, im
    found = np.fft.fft(re + 1j * im, axis=-1)
    return found.real, found.imag


def _residual(
    operands: Sequence[Array],
    results: Sequence[Array],
    references: Sequence[Array],
    _attrs: Attrs,
    dtype: DType,
) -> list[la.Judged]:
    """The norm of the error grows with the logarithm of the length (N. Higham, Accuracy and
    Stability, theorem 24.2); one factor of it serves any splitting of the length.
    """
    n = operands[0].shape[-1]
    if operands[0].size == 0:
        return []
    unit, rounding, least = la.units(dtype)
    growth = (4 * math.log2(n) + 8) * unit + 2 * rounding if n > 1 else 0.0
    size = elementary.hypot(*(np.linalg.norm(x, axis=-1) for x in references))
    off = [x - y for x, y in zip(results, references, strict=True)]
    error = elementary.hypot(*(np.linalg.norm(x, axis=-1) for x in off))
    finite = np.isfinite(references[0]).all(axis=-1) & np.isfinite(references[1]).all(axis=-1)
    allowed = growth * size + 4 * n * least
    return [("the transform", error, np.where(finite, allowed, np.inf))]


@lru_cache(64)
def _matrix(n: int) -> Array:
    """The transform of n numbers as real: [part of the result, k, part of the operand, j]."""
    j = np.arange(n)
    cos, sin = roots_of_unity(np.multiply.outer(j, j), n)
    return np.stack([np.stack([cos, -sin], axis=1), np.stack([sin, cos], axis=1)])


def _times(x: Pair, cos: Array, sin: Array, *dims: int) -> Pair:
    """The product with constants that run along dimensions of `x`."""
    (re, im), dtype = x, x[0].dtype
    c, s = (build.broadcast_to(build.constant(v, dtype), re.shape, dims) for v in (cos, sin))
    return (
        rows.sub(rows.mul(re, c), rows.mul(im, s)),
        rows.add(rows.mul(re, s), rows.mul(im, c)),
    )


def _by_matrix(x: Pair, dim: int) -> Pair:
    """The transform along one dimension, which comes first in the result."""
    both = [build.reshape(v, (1, *v.shape)) for v in x]
    joined = rows.concatenate(*both, dim=0)
    n = x[0].shape[dim]
    matrix = build.constant(_matrix(n), x[0].dtype)
    contract = ((2, 3), (0, dim + 1))
    found = rows.dot_general(matrix, joined, batch=((), ()), contract=contract)
    parts = (build.slice_dim(found, 0, part, part + 1) for part in (0, 1))
    re, im = (build.reshape(part, part.shape[1:]) for part in parts)
    return re, im


def _to_back(x: Value) -> Value:
    return build.transpose(x, (*range(1, len(x.shape)), 0))


def _by_factors(x: Pair, radix: int) -> Pair:
    """J. Cooley and J. Tukey: ``radix`` short transforms, a turn of each number, long ones."""
    n = x[0].shape[-1]
    rest = n // radix
    split = [build.reshape(v, (*v.shape[:-1], radix, rest)) for v in x]
    re, im = _by_matrix((split[0], split[1]), len(split[0].shape) - 2)
    cos, sin = roots_of_unity(np.multiply.outer(np.arange(radix), np.arange(rest)), n)
    turned = _times((re, im), cos, sin, 0, len(re.shape) - 1)
    re, im = (build.reshape(_to_back(v), x[0].shape) for v in _transform(*turned))
    return re, im


def _transform(re: Value, im: Value) -> Pair:
    parts: Any = rows.fft(re, im)
    return parts[0], parts[1]


@lru_cache(16)
def _chirp(n: int, size: int) -> tuple[Array, Array, Array, Array]:
    """e^(−iπk²/n) for k < n, and the transform of its conjugate, wrapped round ``size``."""
    k = np.arange(n, dtype=np.int64)
    cos, sin = roots_of_unity(k * k % (2 * n), 2 * n)
    wrapped = np.zeros(size, np.clongdouble)
    wrapped[:n] = cos - 1j * sin
    wrapped[size - n + 1 :] = wrapped[1:n][::-1]
    spectrum = np.fft.fft(wrapped) / size
    return cos, sin, spectrum.real, spectrum.imag


def _by_convolution(x: Pair) -> Pair:
    """L. Bluestein: jk = (j² + k² − (k − j)²) / 2 makes a convolution of a transform."""
    n = x[0].shape[-1]
    size = 1 << (2 * n - 2).bit_length()
    cos, sin, re_spectrum, im_spectrum = _chirp(n, size)
    last = len(x[0].shape) - 1
    zeros = (0,) * last
    turned = _times(x, cos, sin, last)
    re, im = (build.pad(v, 0, (*zeros, 0), (*zeros, size - n)) for v in turned)
    re, im = _times(_transform(re, im), re_spectrum, im_spectrum, last)
    im, re = (build.slice_dim(v, last, 0, n) for v in _transform(im, re))
    return _times((re, im), cos, sin, last)


def _factor(n: int) -> int:
    """What to split a length by: 1 if all its factors are too large for a matrix."""
    small = max(r for r in range(1, _RADIX + 1) if n % r == 0)
    large = (r for r in range(_RADIX + 1, _DIRECT + 1) if n % r == 0)
    return small if small > 1 else min(large, default=1)


@la.in_work
def _decompose(re: Value, im: Value) -> tuple[Value, ...]:
    """Of any rank by way of two dimensions, so that the steps, which add two, stay in bounds."""
    if len(re.shape) <= 2:
        return _transformed(re, im)
    flat = (math.prod(re.shape[:-1]), re.shape[-1])
    found = _transformed(*(build.reshape(v, flat) for v in (re, im)))
    return build.reshape(found[0], re.shape), build.reshape(found[1], re.shape)


def _transformed(re: Value, im: Value) -> Pair:
    n = re.shape[-1]
    if n <= 1 or re.type.size == 0:
        return re, im
    radix = _factor(n)
    if n == radix:
        found = _by_matrix((re, im), len(re.shape) - 1)
        return _to_back(found[0]), _to_back(found[1])
    return _by_convolution((re, im)) if radix == 1 else _by_factors((re, im), radix)


def _vjp(cts: Pair, _results: Pair, _re: Value, _im: Value) -> tuple[Value, ...]:
    """The transposed matrix of pairs is that of the inverse transform without its factor 1/n."""
    im, re = _transform(cts[1], cts[0])
    return re, im


fft = define(
    name="fft",
    arity=2,
    kind=Kind.COMPOSITE,
    doc=(
        "The discrete Fourier transform along the last dimension, without a factor: real and "
        "imaginary parts in, real and imaginary parts of Σ x[j] e^(−2πijk/n) out. With the two "
        "exchanged, of operands and results, it is the inverse times n. inf and NaN spread "
        "over the whole transform."
    ),
    infer=_infer,
    reference=_reference,
    vjp=_vjp,
    dtypes=FLOATS,
    special=cells(
        "[], [] -> []; [3], [4] -> [3]; [1, 2], [0, 0] -> [3, -1]; "
        "[1, 2, 3, 4], [0, 0, 0, 0] -> [10, -2, -2, -2]; [nan, 1], [0, 0] -> [nan, nan]",
    ),
    traits=frozenset({Trait.EXPENSIVE}),
    accuracy=Accuracy(residual=_residual),
    decompose=_decompose,
    batch=shifting("fft"),
)

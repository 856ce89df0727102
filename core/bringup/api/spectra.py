"""Eigenvalues and singular values of matrices, and what follows: ranks, norms, inverses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bringup.api.apply import apply_all
from bringup.api.array import Array, Operand
from bringup.api.axes import axes_of, axis_of, flag_of, items_of, number_of
from bringup.api.broadcasting import as_array, as_float, convert
from bringup.api.elementwise import abs, greater, multiply, not_equal, pow, square, where
from bringup.api.floating import sqrt
from bringup.api.linear import matmul, matrix_transpose
from bringup.api.manipulation import expand_dims, moveaxis, reshape
from bringup.api.reductions import max, min, sum
from bringup.api.solving import inv, matrix
from bringup.api.solving import square as square_matrix
from bringup.dtypes import i64
from bringup.errors import OpTypeError


class LstsqResult(NamedTuple):
    """A solution by least squares, the sums of squared residuals, the rank, the singular values."""

    solution: Array
    residuals: Array
    rank: Array
    singular_values: Array


class EighResult(NamedTuple):
    """Increasing eigenvalues, and eigenvectors as columns."""

    eigenvalues: Array
    eigenvectors: Array


class SVDResult(NamedTuple):
    """The factors of ``U * S @ Vh``."""

    U: Array
    S: Array
    Vh: Array


def eigh(x: Operand, /) -> EighResult:
    """Eigenvalues of symmetric matrices in increasing order, and orthonormal eigenvectors.

    Only the lower triangle is read.

    >>> values, vectors = bu.linalg.eigh(bu.asarray([[2.0, 0.0], [0.0, 1.0]]))
    >>> values.tolist()
    [1.0, 2.0]
    """
    return EighResult(*apply_all("eigh", (square_matrix("eigh", x),)))


def eigvalsh(x: Operand, /) -> Array:
    """Eigenvalues of symmetric matrices in increasing order.

    >>> bu.linalg.eigvalsh(bu.asarray([[2.0, 0.0], [0.0, 1.0]])).tolist()
    [1.0, 2.0]
    """
    return eigh(x).eigenvalues


def svd(x: Operand, /, full_matrices: bool = True) -> SVDResult:
    """Orthonormal U and Vh and decreasing singular values S of ``x = U * S @ Vh``.

    full_matrices: make U and Vh square.

    >>> u, s, vh = bu.linalg.svd(bu.asarray([[0.0, 2.0], [3.0, 0.0]]))
    >>> bu.round(s).tolist()
    [3.0, 2.0]
    """
    x = matrix("svd", x)
    return SVDResult(
        *apply_all("svd", (x,), {"complete": flag_of("svd", "full_matrices", full_matrices)})
    )


def svdvals(x: Operand, /) -> Array:
    """The singular values, decreasing.

    >>> bu.round(bu.linalg.svdvals(bu.asarray([[0.0, 2.0], [3.0, 0.0]]))).tolist()
    [3.0, 2.0]
    """
    return svd(x, full_matrices=False).S


def matrix_rank(x: Operand, /, *, rtol: float | Array | None = None) -> Array:
    """How many singular values exceed `rtol` times the largest.

    rtol: by default the larger size of the matrices times the spacing of numbers at 1.

    >>> bu.linalg.matrix_rank(bu.asarray([[1.0, 2.0], [2.0, 4.0]])).tolist()
    1
    """
    x = matrix("matrix_rank", x)
    if 0 in x.shape[-2:]:
        return sum(convert(reshape(x, (*x.shape[:-2], 0)), i64), axis=-1)
    values = svdvals(x)
    return sum(convert(greater(values, _limit(values, x, rtol)), i64), axis=-1)


def _limit(values: Array, x: Array, rtol: float | Array | None) -> Array:
    """What singular values must exceed, one for each matrix, as a last dimension of size 1."""
    share: Any = rtol
    if rtol is None:
        share = float(np.finfo(_host_dtype(x)).eps) * int(np.max(x.shape[-2:]))
    elif isinstance(rtol, Array) and rtol.ndim:
        share = expand_dims(rtol, axis=-1)
    return multiply(max(values, axis=-1, keepdims=True), share)


def _host_dtype(x: Array) -> Any:
    return {"f64": np.float64, "f32": np.float32}.get(x.dtype.name, np.float16)


def pinv(x: Operand, /, *, rtol: float | Array | None = None) -> Array:
    """The inverse in the sense of Moore and Penrose; singular values up to `rtol` times the largest
    count as 0.

    rtol: by default as in `matrix_rank`.

    >>> bu.linalg.pinv(bu.asarray([[2.0], [0.0]])).tolist()
    [[0.5, 0.0]]
    """
    x = matrix("pinv", x)
    if x.size == 0:
        return matrix_transpose(x)
    u, values, vh = svd(x, full_matrices=False)
    kept = greater(values, _limit(values, x, rtol))
    inverse = where(kept, 1 / where(kept, values, 1), 0)
    return matmul(
        multiply(matrix_transpose(vh), expand_dims(inverse, axis=-2)), matrix_transpose(u)
    )


def matrix_norm(x: Operand, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """A norm of each matrix.

    ord: ``fro`` the root of the sum of squares, ``nuc`` the sum of the singular values, 2 and -2
    the largest and the smallest of them, 1 and -1 the largest and smallest sum of magnitudes of a
    column, inf and -inf of a row.

    >>> bu.linalg.matrix_norm(bu.asarray([[3.0, 0.0], [0.0, 4.0]])).tolist()
    5.0
    """
    x = as_float(x)
    if x.ndim < 2:
        matrix("matrix_norm", x)
    if not isinstance(ord, str | int | float):
        ord = number_of("matrix_norm", "ord", ord)
    fold = max if ord in (1, 2, math.inf) else min
    if ord == "fro":
        result = sqrt(sum(square(abs(x)), axis=(-2, -1)))
    elif ord == "nuc":
        result = sum(svdvals(x), axis=-1)
    elif ord in (2, -2):
        result = fold(svdvals(x), axis=-1)
    elif ord in (1, -1):
        result = fold(sum(abs(x), axis=-2), axis=-1)
    elif ord in (math.inf, -math.inf):
        result = fold(sum(abs(x), axis=-1), axis=-1)
    else:
        raise OpTypeError(
            f"matrix_norm: ord {ord!r} is none", fix="use fro, nuc, 1, -1, 2, -2, inf or -inf"
        )
    return reshape(result, (*result.shape, 1, 1)) if keepdims else result


def vector_norm(
    x: Operand, /, *, axis: int | Sequence[int] | None = None, keepdims: bool = False, ord: Any = 2
) -> Array:
    """The norm over axes taken as one: ``sum(abs(x) ** ord) ** (1 / ord)``.

    ord: a number; inf and -inf give the largest and the smallest magnitude, 0 the count of
    elements other than 0.

    >>> bu.linalg.vector_norm(bu.asarray([3.0, 4.0])).tolist()
    5.0
    """
    x = as_array(x)
    sizes = abs(x if x.dtype.is_float or x.dtype.is_complex else as_float(x))
    dims = axes_of("vector_norm", axis, x.ndim)
    if not isinstance(ord, int | float):
        ord = number_of("vector_norm", "ord", ord)
    if ord == math.inf:
        return max(sizes, axis=dims, keepdims=keepdims)
    if ord == -math.inf:
        return min(sizes, axis=dims, keepdims=keepdims)
    if ord == 0:
        return sum(convert(not_equal(sizes, 0), sizes.dtype), axis=dims, keepdims=keepdims)
    if ord == 1:
        return sum(sizes, axis=dims, keepdims=keepdims)
    if ord == 2:
        return sqrt(sum(square(sizes), axis=dims, keepdims=keepdims))
    return pow(sum(pow(sizes, ord), axis=dims, keepdims=keepdims), 1 / ord)


def norm(
    x: Operand,
    /,
    ord: Any = None,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
) -> Array:
    """A norm of vectors or of matrices, as axes say.

    ord: as in `vector_norm` and `matrix_norm`; by default the root of the sum of squares.
    axis: one of vectors, two of matrices; by default that of a vector, those of a matrix, or all
    axes as one if there is no `ord`.
    Raises OpTypeError.

    >>> bu.linalg.norm(bu.asarray([[3.0, 0.0], [4.0, 1.0]]), axis=0).tolist()
    [5.0, 1.0]
    """
    x = as_array(x)
    if axis is None and (ord is None or x.ndim == 1):
        return vector_norm(x, keepdims=keepdims, ord=2 if ord is None else ord)
    given = axis if axis is not None else tuple(range(x.ndim))
    axes = [given] if isinstance(given, int) else items_of("norm", "axes", given)
    dims = [axis_of("norm", each, x.ndim) for each in axes]
    if len(dims) == 1:
        return vector_norm(x, axis=dims[0], keepdims=keepdims, ord=2 if ord is None else ord)
    if len(dims) != 2 or dims[0] == dims[1]:
        raise OpTypeError(
            f"norm: {x.type} along axes {tuple(dims)}",
            fix="give one axis, of vectors, or two, of matrices",
        )
    found = matrix_norm(moveaxis(x, dims, (-2, -1)), ord="fro" if ord is None else ord)
    return expand_dims(found, dims) if flag_of("norm", "keepdims", keepdims) else found


def cond(x: Operand, /, p: Any = None) -> Array:
    """The condition number of matrices: the norm of each times that of its inverse.

    p: the norm, as in `matrix_norm`; 2 by default, the largest singular value over the smallest.

    >>> bu.linalg.cond(bu.asarray([[4.0, 0.0], [0.0, 2.0]])).tolist()
    2.0
    """
    if p is None or (isinstance(p, int | float) and p in (2, -2)):
        x = matrix("cond", x)
        if 0 in x.shape[-2:]:
            raise OpTypeError(f"cond: {x.type} has no elements", fix="give it some")
        values = svdvals(x)
        ends = (values[..., 0], values[..., -1])
        return ends[1] / ends[0] if p == -2 else ends[0] / ends[1]
    return matrix_norm(x, ord=p) * matrix_norm(inv(x), ord=p)


def lstsq(a: Operand, b: Operand, /, rcond: float | None = None) -> LstsqResult:
    """The x of the smallest size for which ``a @ x`` is nearest to `b`, by singular values.

    a: ``[m, n]``.  b: ``[m]`` or ``[m, k]``.
    rcond: singular values up to this share of the largest count as 0; by default as in
    `matrix_rank`.
    Returns ``[n]`` or ``[n, k]``; the sums of the squares of ``b - a @ x``, ``[1]`` or ``[k]``, of
    any rank; the rank; the singular values.
    Raises OpTypeError.

    >>> x, residuals, rank, values = bu.linalg.lstsq(bu.asarray([[2.0], [0.0]]), bu.asarray([6, 1]))
    >>> x.tolist(), residuals.tolist(), rank.item()
    ([3.0], [1.0], 1)
    """
    rows, wanted = matrix("lstsq", a), as_float(b)
    if rows.ndim != 2 or wanted.ndim not in (1, 2) or wanted.shape[0] != rows.shape[0]:
        raise OpTypeError(
            f"lstsq: {rows.type} and {wanted.type}",
            fix="give a matrix, and a vector or a matrix of as many rows; use vmap for stacks",
        )
    share = None if rcond is None else number_of("lstsq", "rcond", rcond)
    x = matmul(pinv(rows, rtol=share), wanted)
    away = square(abs(wanted - matmul(rows, x)))
    residuals = sum(away if wanted.ndim == 2 else expand_dims(away, 1), axis=0)
    values = svdvals(rows)
    return LstsqResult(x, residuals, matrix_rank(rows, rtol=share), values)

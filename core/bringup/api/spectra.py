"""Eigenvalues and singular values of matrices, and what follows: ranks, norms, inverses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bringup.api.apply import apply_all
from bringup.api.array import Array
from bringup.api.axes import axes_of, flag_of, number_of
from bringup.api.broadcasting import as_array, as_float, convert
from bringup.api.elementwise import abs, greater, multiply, not_equal, pow, square, where
from bringup.api.floating import sqrt
from bringup.api.linear import matmul, matrix_transpose
from bringup.api.manipulation import expand_dims, reshape
from bringup.api.promotion import Operand
from bringup.api.reductions import max, min, sum
from bringup.api.solving import matrix
from bringup.api.solving import square as square_matrix
from bringup.dtypes import i64
from bringup.errors import OpTypeError
from bringup.graph import user_location


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


def svd(x: Operand, /, *, full_matrices: bool = True) -> SVDResult:
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
            f"matrix_norm: ord {ord!r} is none",
            location=user_location(),
            fix="use fro, nuc, 1, -1, 2, -2, inf or -inf",
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

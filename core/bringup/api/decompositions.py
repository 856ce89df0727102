"""Factors, eigenvalues and singular values of matrices, and what follows: equations, inverses,
determinants, ranks, norms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bringup.api.apply import apply, apply_all
from bringup.api.arguments import (
    axes_of,
    axis_of,
    choice_of,
    flag_of,
    integer_of,
    items_of,
    number_of,
    pair_of,
)
from bringup.api.array import Array, Operand
from bringup.api.broadcasting import (
    as_array,
    as_float,
    broadcast_shapes,
    convert,
    matrices_of,
    spread,
)
from bringup.api.creation import eye, tril
from bringup.api.elementwise import (
    abs,
    log,
    multiply,
    pow,
    sign,
    sqrt,
    square,
    where,
)
from bringup.api.gathering import take_along_axis
from bringup.api.indexing import getitem
from bringup.api.manipulation import concat, expand_dims, moveaxis, reshape
from bringup.api.products import matmul, matrix_transpose
from bringup.api.promotion import common
from bringup.api.reductions import max as largest
from bringup.api.reductions import min as smallest
from bringup.api.reductions import prod, sum
from bringup.dtypes import i64
from bringup.errors import OpTypeError


class QRResult(NamedTuple):
    """The factors of `qr`."""

    Q: Array
    R: Array


class LUResult(NamedTuple):
    """The factors of `lu`: row i of ``L @ U`` is row ``permutation[i]`` of the matrix."""

    permutation: Array
    L: Array
    U: Array


class SlogdetResult(NamedTuple):
    """Sign of a determinant, and the logarithm of its magnitude."""

    sign: Array
    logabsdet: Array


def matrix(name: str, x: Operand) -> Array:
    """A stack of float matrices.  Raises OpTypeError for fewer dimensions or complex numbers."""
    x = as_float(x)
    if x.dtype.is_complex:
        raise OpTypeError(
            f"{name}: does not take complex numbers: {x.type}",
            fix="work on the real matrix [[re, -im], [im, re]] instead",
        )
    return matrices_of(name, x)


def square_matrix(name: str, x: Operand) -> Array:
    """A stack of square float matrices."""
    x = matrix(name, x)
    if x.shape[-1] != x.shape[-2]:
        raise OpTypeError(
            f"{name}: the matrices of {x.type} are not square",
            fix="make the last two dimensions equal",
        )
    return x


def cholesky(x: Operand, /, *, upper: bool = False) -> Array:
    """The triangular L of ``x = L @ L.mT``, or its transpose if `upper`.

    x: symmetric positive definite matrices, of which only the lower triangle is read.  The triangle
    of a matrix that is not positive definite is NaN.

    >>> bu.linalg.cholesky(bu.asarray([[4.0, 2.0], [2.0, 10.0]])).tolist()
    [[2.0, 0.0], [1.0, 3.0]]
    """
    factor = apply("cholesky", (square_matrix("cholesky", x),))
    return matrix_transpose(factor) if flag_of("cholesky", "upper", upper) else factor


def cho_factor(x: Operand, /, lower: bool = False) -> tuple[Array, bool]:
    """The triangle of `cholesky`, the upper one by default, and whether it is the lower: what
    `cho_solve` takes.

    >>> bu.linalg.cho_factor(bu.asarray([[4.0]]))[0].tolist()
    [[2.0]]
    """
    return cholesky(x, upper=not flag_of("cho_factor", "lower", lower)), lower


def cho_solve(c_and_lower: tuple[Operand, bool], b: Operand, /) -> Array:
    """X of ``a @ X = b`` by the triangle of a positive definite matrix.

    c_and_lower: a triangle of `cholesky`, and whether it is the lower.
    b: a vector, or matrices; leading dimensions broadcast.

    >>> factor = bu.linalg.cholesky(bu.asarray([[4.0, 2.0], [2.0, 10.0]]))
    >>> bu.linalg.cho_solve((factor, True), bu.asarray([8.0, 22.0])).tolist()
    [1.0, 2.0]
    """
    factor, lower = pair_of("cho_solve", "c_and_lower", c_and_lower)
    lower = flag_of("cho_solve", "lower", lower)
    y = solve_triangular(factor, b, lower=lower, transpose=not lower)
    return solve_triangular(factor, y, lower=lower, transpose=lower)


def qr(x: Operand, /, *, mode: str = "reduced") -> QRResult:
    """Q with orthonormal columns and upper triangular R of ``x = Q @ R``.

    mode: ``reduced``, or ``complete`` for a square Q.

    >>> q, r = bu.linalg.qr(bu.asarray([[3.0, 5.0], [4.0, 0.0]]))
    >>> bu.round(r).tolist()
    [[-5.0, -3.0], [0.0, -4.0]]
    """
    choice_of("qr", "mode", mode, ("reduced", "complete"))
    return QRResult(*apply_all("qr", (matrix("qr", x),), {"complete": mode == "complete"}))


def lu(x: Operand, /) -> LUResult:
    """Row permutation, unit lower triangular L and upper triangular U, with partial pivoting.

    >>> p, l, u = bu.linalg.lu(bu.asarray([[1.0, 3.0], [2.0, 4.0]]))
    >>> p.tolist(), l.tolist(), u.tolist()
    ([1, 0], [[1.0, 0.0], [0.5, 1.0]], [[2.0, 4.0], [0.0, 1.0]])
    """
    x = matrix("lu", x)
    packed, order = apply_all("lu", (x,))
    k = min(packed.shape[-2:])
    lower = tril(getitem(packed, (..., slice(None, k))), k=-1)
    unit = eye(lower.shape[-2], k, dtype=x.dtype, device=packed._device)
    upper = getitem(packed, (..., slice(None, k), slice(None)))
    return LUResult(order, lower + unit, upper - tril(upper, k=-1))


def solve_triangular(
    a: Operand,
    b: Operand,
    /,
    *,
    lower: bool = False,
    transpose: bool = False,
    unit_diagonal: bool = False,
    left: bool = True,
) -> Array:
    """X of ``a @ X = b``, of ``X @ a = b`` if not `left`; with ``a.mT`` if `transpose`.

    a: of which only the triangle named is read, without its diagonal, taken as ones, if
    `unit_diagonal`.  b: a vector, or matrices; leading dimensions broadcast.

    >>> a = bu.asarray([[2.0, 0.0], [1.0, 4.0]])
    >>> bu.linalg.solve_triangular(a, bu.asarray([4.0, 10.0]), lower=True).tolist()
    [2.0, 2.0]
    """
    flags = {"left": left, "lower": lower, "transpose": transpose, "unit": unit_diagonal}
    attrs = {
        argument: flag_of("solve_triangular", argument, flag) for argument, flag in flags.items()
    }
    a, b, vector = _system("solve_triangular", a, b, attrs["left"])
    return _without(apply("triangular_solve", _stacks(a, b), attrs), vector, left)


def solve(x1: Operand, x2: Operand, /) -> Array:
    """X of ``x1 @ X = x2``, by elimination with partial pivoting.

    x2: a vector, or matrices; leading dimensions broadcast.  A singular matrix gives inf or NaN.

    >>> bu.linalg.solve(bu.asarray([[0.0, 2.0], [4.0, 0.0]]), bu.asarray([6.0, 8.0])).tolist()
    [2.0, 3.0]
    """
    a, b, vector = _system("solve", x1, x2, left=True)
    packed, order = apply_all("lu", (a,))
    packed, b = _stacks(packed, b)
    order = spread(expand_dims(order, axis=-1), (*packed.shape[:-1], 1))
    b = take_along_axis(b, spread(order, b.shape), axis=-2)
    lower = {"left": True, "lower": True, "transpose": False, "unit": True}
    y = apply("triangular_solve", (packed, b), lower)
    x = apply("triangular_solve", (packed, y), {**lower, "lower": False, "unit": False})
    return _without(x, vector, left=True)


def _system(name: str, a: Operand, b: Operand, left: bool) -> tuple[Array, Array, bool]:
    """Both sides in one dtype, vectors as a column or row, and whether the second was one."""
    a, b = square_matrix(name, a), as_float(b)
    dtype, _ = common((a, b))
    a, b = convert(a, dtype), convert(b, dtype)
    vector = b.ndim == 1
    if vector:
        b = expand_dims(b, axis=-1 if left else 0)
    b = matrix(name, b)
    if b.shape[-2 if left else -1] != a.shape[-1]:
        raise OpTypeError(
            f"{name}: sizes do not fit: {a.type} and {b.type}",
            fix=f"give the right side {a.shape[-1]} {'rows' if left else 'columns'}",
        )
    return a, b, vector


def _stacks(a: Array, b: Array) -> tuple[Array, Array]:
    """Two stacks of matrices with equal leading dimensions."""
    stack = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if stack is None:
        raise OpTypeError(
            f"leading dimensions do not broadcast: {a.type} and {b.type}",
            fix="make their sizes equal or 1",
        )
    return spread(a, stack + a.shape[-2:]), spread(b, stack + b.shape[-2:])


def _without(x: Array, vector: bool, left: bool) -> Array:
    if not vector:
        return x
    return reshape(x, x.shape[:-1] if left else (*x.shape[:-2], x.shape[-1]))


def inv(x: Operand, /) -> Array:
    """The inverse, by elimination with partial pivoting; inf or NaN for a singular matrix.

    >>> bu.linalg.inv(bu.asarray([[0.0, 2.0], [4.0, 0.0]])).tolist()
    [[0.0, 0.25], [0.5, 0.0]]
    """
    x = square_matrix("inv", x)
    return solve(x, eye(x.shape[-1], dtype=x.dtype, device=x._device))


def det(x: Operand, /) -> Array:
    """The determinant, of the pivots of an elimination.

    Its gradient is det(x) times the transposed inverse, so NaN for a singular matrix.

    >>> bu.linalg.det(bu.asarray([[0.0, 2.0], [3.0, 0.0]])).tolist()
    -6.0
    """
    signs, pivots = _pivots(square_matrix("det", x))
    return signs * prod(pivots, axis=-1)


def slogdet(x: Operand, /) -> SlogdetResult:
    """The sign of the determinant and the logarithm of its magnitude; 0 and −inf if it is 0.

    >>> sign, logabsdet = bu.linalg.slogdet(bu.asarray([[0.0, 1.0], [1.0, 0.0]]))
    >>> sign.tolist(), logabsdet.tolist()
    (-1.0, 0.0)
    """
    signs, pivots = _pivots(square_matrix("slogdet", x))
    return SlogdetResult(signs * prod(sign(pivots), axis=-1), sum(log(abs(pivots)), axis=-1))


def _pivots(x: Array) -> tuple[Array, Array]:
    """The sign of the permutation of an elimination, and its pivots."""
    packed, order = apply_all("lu", (x,))
    n = x.shape[-1]
    swapped = tril(expand_dims(order, axis=-2) > expand_dims(order, axis=-1), k=-1)
    odd = sum(convert(swapped, order.dtype), axis=(-2, -1)) % 2
    signs = where(odd == 1, -1, 1)
    return convert(signs, x.dtype), diagonal(packed) if n else reshape(packed, packed.shape[:-1])


def diagonal(x: Operand, /, *, offset: int = 0) -> Array:
    """The elements with as many columns before them as rows, plus `offset`.

    >>> bu.linalg.diagonal(bu.asarray([[1, 2], [3, 4]]), offset=1).tolist()
    [2]
    """
    x = matrices_of("diagonal", x)
    *stack, m, n = x.shape
    k = integer_of("diagonal", "offset", offset)
    start = k if k >= 0 else -k * n
    count = max(0, min(m, n - k) if k >= 0 else min(m + k, n))
    flat = reshape(x, (*stack, m * n))
    if not count:
        return getitem(flat, (..., slice(0, 0)))
    return getitem(flat, (..., slice(start, start + (count - 1) * (n + 1) + 1, n + 1)))


def trace(x: Operand, /, *, offset: int = 0, dtype: object = None) -> Array:
    """The sum of a diagonal.

    >>> bu.linalg.trace(bu.asarray([[1, 2], [3, 4]])).tolist()
    5
    """
    return sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def matrix_power(x: Operand, /, n: int) -> Array:
    """The product of `n` times the matrix; of its inverse for n < 0.

    >>> bu.linalg.matrix_power(bu.asarray([[1.0, 1.0], [0.0, 1.0]]), 5).tolist()
    [[1.0, 5.0], [0.0, 1.0]]
    """
    x, count = square_matrix("matrix_power", x), integer_of("matrix_power", "n", n)
    if count < 0:
        x, count = inv(x), -count
    result: Array | None = None
    while count:
        if count & 1:
            result = x if result is None else matmul(result, x)
        count >>= 1
        if count:
            x = matmul(x, x)
    if result is None:
        return spread(eye(x.shape[-1], dtype=x.dtype, device=x._device), x.shape)
    return result


def cross(x1: Operand, x2: Operand, /, *, axis: int = -1) -> Array:
    """The vector product of vectors of three elements along an axis, the others broadcast.

    >>> bu.linalg.cross(bu.asarray([1, 0, 0]), bu.asarray([0, 1, 0])).tolist()
    [0, 0, 1]
    """
    a, b = as_array(x1), as_array(x2)
    dims = [axis_of("cross", axis, v.ndim) for v in (a, b)]
    if any(v.shape[d] != 3 for v, d in zip((a, b), dims, strict=True)):
        raise OpTypeError(
            f"cross: the vectors have not three elements: {a.type} and {b.type}",
            fix="give axis sizes of 3",
        )
    u, v = (
        [getitem(moveaxis(x, d, -1), (..., i)) for i in range(3)]
        for x, d in zip((a, b), dims, strict=True)
    )
    parts = [u[i - 2] * v[i - 1] - u[i - 1] * v[i - 2] for i in range(3)]
    joined = concat([expand_dims(part, axis=-1) for part in parts], axis=-1)
    return moveaxis(joined, -1, axis)


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
    return sum(convert(values > _limit(values, x, rtol), i64), axis=-1)


def _limit(values: Array, x: Array, rtol: float | Array | None) -> Array:
    """What singular values must exceed, one for each matrix, as a last dimension of size 1."""
    share: float | Array
    if rtol is None:
        dtype: Any = {"f64": np.float64, "f32": np.float32}.get(x.dtype.name, np.float16)
        share = float(np.finfo(dtype).eps) * int(np.max(x.shape[-2:]))
    else:
        share = expand_dims(rtol, axis=-1) if isinstance(rtol, Array) and rtol.ndim else rtol
    return multiply(largest(values, axis=-1, keepdims=True), share)


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
    significant = values > _limit(values, x, rtol)
    inverse = where(significant, 1 / where(significant, values, 1), 0)
    return matmul(matrix_transpose(vh) * expand_dims(inverse, axis=-2), matrix_transpose(u))


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
    fold = largest if ord in (1, 2, math.inf) else smallest
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
        return largest(sizes, axis=dims, keepdims=keepdims)
    if ord == -math.inf:
        return smallest(sizes, axis=dims, keepdims=keepdims)
    if ord == 0:
        return sum(convert(sizes != 0, sizes.dtype), axis=dims, keepdims=keepdims)
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
    listed = axis if axis is not None else tuple(range(x.ndim))
    axes = [listed] if isinstance(listed, int) else items_of("norm", "axes", listed)
    dims = [axis_of("norm", dim, x.ndim) for dim in axes]
    if len(dims) == 1:
        return vector_norm(x, axis=dims[0], keepdims=keepdims, ord=2 if ord is None else ord)
    if len(dims) != 2 or dims[0] == dims[1]:
        raise OpTypeError(
            f"norm: {x.type} along axes {tuple(dims)}",
            fix="give one axis, of vectors, or two, of matrices",
        )
    result = matrix_norm(moveaxis(x, dims, (-2, -1)), ord="fro" if ord is None else ord)
    return expand_dims(result, dims) if flag_of("norm", "keepdims", keepdims) else result


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
    rows, right_side = matrix("lstsq", a), as_float(b)
    if rows.ndim != 2 or right_side.ndim not in (1, 2) or right_side.shape[0] != rows.shape[0]:
        raise OpTypeError(
            f"lstsq: {rows.type} and {right_side.type}",
            fix="give a matrix, and a vector or a matrix of as many rows; use vmap for stacks",
        )
    share = None if rcond is None else number_of("lstsq", "rcond", rcond)
    x = matmul(pinv(rows, rtol=share), right_side)
    squares = square(abs(right_side - matmul(rows, x)))
    residuals = sum(squares if right_side.ndim == 2 else expand_dims(squares, 1), axis=0)
    values = svdvals(rows)
    return LstsqResult(x, residuals, matrix_rank(rows, rtol=share), values)

"""Factors of matrices, and what follows from them: equations, inverses, determinants, powers."""

from __future__ import annotations

from typing import Any, NamedTuple

from bringup.api.apply import apply, apply_all
from bringup.api.array import Array, Operand
from bringup.api.axes import axis_of, choice_of, flag_of, integer_of, pair_of
from bringup.api.broadcasting import as_array, as_float, broadcast_shapes, convert, spread
from bringup.api.creation import eye, tril
from bringup.api.elementwise import abs, greater, multiply, remainder, sign, where
from bringup.api.floating import log
from bringup.api.gathering import take_along_axis
from bringup.api.indexing import getitem
from bringup.api.linear import matmul, matrix_transpose
from bringup.api.manipulation import concat, expand_dims, moveaxis, reshape
from bringup.api.promotion import common
from bringup.api.reductions import prod, sum
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
    if x.ndim < 2:
        raise OpTypeError(
            f"{name}: {x.type} has fewer than two dimensions", fix="reshape it to a matrix"
        )
    return x


def square(name: str, x: Operand) -> Array:
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
    factor = apply("cholesky", (square("cholesky", x),))
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
    return LUResult(order, lower + unit, _upper_part(upper))


def _upper_part(x: Array) -> Array:
    return x - tril(x, k=-1)


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
    given = {"left": left, "lower": lower, "transpose": transpose, "unit": unit_diagonal}
    attrs = {what: flag_of("solve_triangular", what, flag) for what, flag in given.items()}
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
    a, b = square(name, a), as_float(b)
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
    x = square("inv", x)
    return solve(x, eye(x.shape[-1], dtype=x.dtype, device=x._device))


def det(x: Operand, /) -> Array:
    """The determinant, of the pivots of an elimination.

    Its gradient is det(x) times the transposed inverse, so NaN for a singular matrix.

    >>> bu.linalg.det(bu.asarray([[0.0, 2.0], [3.0, 0.0]])).tolist()
    -6.0
    """
    signs, pivots = _pivots(square("det", x))
    return multiply(signs, prod(pivots, axis=-1))


def slogdet(x: Operand, /) -> SlogdetResult:
    """The sign of the determinant and the logarithm of its magnitude; 0 and −inf if it is 0.

    >>> sign, logabsdet = bu.linalg.slogdet(bu.asarray([[0.0, 1.0], [1.0, 0.0]]))
    >>> sign.tolist(), logabsdet.tolist()
    (-1.0, 0.0)
    """
    signs, pivots = _pivots(square("slogdet", x))
    return SlogdetResult(
        multiply(signs, prod(sign(pivots), axis=-1)), sum(log(abs(pivots)), axis=-1)
    )


def _pivots(x: Array) -> tuple[Array, Array]:
    """The sign of the permutation of an elimination, and its pivots."""
    packed, order = apply_all("lu", (x,))
    n = x.shape[-1]
    swapped = tril(greater(expand_dims(order, axis=-2), expand_dims(order, axis=-1)), k=-1)
    odd = remainder(sum(convert(swapped, order.dtype), axis=(-2, -1)), 2)
    signs = where(odd == 1, -1, 1)
    return convert(signs, x.dtype), diagonal(packed) if n else reshape(packed, packed.shape[:-1])


def diagonal(x: Operand, /, *, offset: int = 0) -> Array:
    """The elements with as many columns before them as rows, plus `offset`.

    >>> bu.linalg.diagonal(bu.asarray([[1, 2], [3, 4]]), offset=1).tolist()
    [2]
    """
    x = as_array(x)
    if x.ndim < 2:
        raise OpTypeError(
            f"diagonal: {x.type} has fewer than two dimensions", fix="reshape it to a matrix"
        )
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
    x, count = square("matrix_power", x), integer_of("matrix_power", "n", n)
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
    places = [axis_of("cross", axis, v.ndim) for v in (a, b)]
    if any(v.shape[d] != 3 for v, d in zip((a, b), places, strict=True)):
        raise OpTypeError(
            f"cross: the vectors have not three elements: {a.type} and {b.type}",
            fix="give axis sizes of 3",
        )
    u, v = (_parts(x, d) for x, d in zip((a, b), places, strict=True))
    found = [u[i - 2] * v[i - 1] - u[i - 1] * v[i - 2] for i in range(3)]
    joined = concat([expand_dims(each, axis=-1) for each in found], axis=-1)
    return moveaxis(joined, -1, axis)


def _parts(x: Array, d: int) -> list[Any]:
    last = moveaxis(x, d, -1)
    return [getitem(last, (..., i)) for i in range(3)]

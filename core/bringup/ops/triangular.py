"""Composite rows on triangular matrices: triangular_solve and cholesky."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bringup.dtypes import FLOATS, DType
from bringup.errors import OpTypeError
from bringup.graph import Value
from bringup.ops import _matrices as la
from bringup.ops import build
from bringup.ops._checks import listed
from bringup.ops._matrices import Index, repeat
from bringup.ops._numeric import Array
from bringup.ops.batching import shifting
from bringup.ops.build import like, rows
from bringup.ops.special_values import Special, cells
from bringup.ops.table import (
    Accuracy,
    Attr,
    Attrs,
    Cotangents,
    Domain,
    Kind,
    Trait,
    Types,
    define,
)
from bringup.types import TensorType


def _infer_solve(operands: Types, attrs: Attrs) -> TensorType:
    matrix, b = operands
    la.square_of("triangular_solve", matrix)
    la.matrix_of("triangular_solve", b)
    la.same_stack("triangular_solve", operands)
    side = -2 if attrs["left"] else -1
    if b.shape[side] != matrix.shape[-1]:
        where = "rows" if attrs["left"] else "columns"
        raise OpTypeError(
            f"triangular_solve: sizes differ: {listed(operands)}",
            notes=(f"left={attrs['left']} takes {matrix.shape[-1]} {where} of operand 1",),
            fix=f"give operand 1 {matrix.shape[-1]} {where}, or turn left round",
        )
    return b


def _as_lower_left(
    matrix: Array, b: Array, left: bool, lower: bool, transpose: bool
) -> tuple[Array, Array, bool]:
    """The same equations as T X = B; whether T is lower triangular."""
    if transpose:
        matrix, lower = la.t(matrix), not lower
    if not left:
        matrix, lower, b = la.t(matrix), not lower, la.t(b)
    return matrix, b, lower


@la.stacked
def _solve_reference(
    matrix: Array, b: Array, *, left: bool, lower: bool, transpose: bool, unit: bool
) -> Array:
    matrix, x, lower = _as_lower_left(matrix, b.copy(), left, lower, transpose)
    n = matrix.shape[-1]
    for j in range(n) if lower else range(n - 1, -1, -1):
        if not unit:
            x[..., j, :] /= matrix[..., j, j, None]
        remaining = slice(j + 1, n) if lower else slice(0, j)
        x[..., remaining, :] -= matrix[..., remaining, j, None] * x[..., None, j, :]
    return x if left else la.t(x)


def _solve_residual(
    operands: Sequence[Array],
    results: Sequence[Array],
    references: Sequence[Array],
    attrs: Attrs,
    dtype: DType,
) -> list[la.Judged]:
    """Substitution in any order (N. Higham, Accuracy and Stability, theorem 8.5)."""
    forms = {k: attrs[k] for k in ("left", "lower", "transpose")}
    matrix, b, lower = _as_lower_left(operands[0], operands[1], **forms)
    x, known = (v if attrs["left"] else la.t(v) for v in (results[0], references[0]))
    matrix = np.tril(matrix) if lower else np.triu(matrix)
    if attrs["unit"]:
        matrix = matrix - matrix * np.eye(matrix.shape[-1]) + np.eye(matrix.shape[-1])
    unit, rounding, tiny = la.units(dtype)
    size = la.product(np.abs(matrix), np.abs(x))
    growth = (matrix.shape[-1] + 4) * unit + rounding
    floor = tiny * (la.product(np.abs(matrix), np.ones_like(x)) + matrix.shape[-1])
    error = np.abs(la.product(matrix, x) - b)
    return [la.judged("T X = B", error, 1.01 * growth * size + floor, known)]


@la.in_work
def _solve_decompose(
    matrix: Value, b: Value, *, left: bool, lower: bool, transpose: bool, unit: bool
) -> Value:
    if transpose:
        matrix, lower = la.t_(matrix), not lower
    if not left:
        matrix, lower, b = la.t_(matrix), not lower, la.t_(b)
    n = matrix.shape[-1]
    if 0 in b.shape:
        return b if left else la.t_(b)

    def step(i: Index, x: Value, matrix: Value) -> tuple[Value, ...]:
        j = i if lower else la.backward(n, i)
        row, factors = la.row_of(x, j), la.column(matrix, j)
        if not unit:
            pivot = la.column(factors, j)
            row = rows.div(row, build.broadcast_to(pivot, row.shape, range(len(row.shape) - 1)))
        update = rows.mul(la.along(factors, x.shape, -2), la.along(row, x.shape, -1))
        remaining = la.mask(x.shape, -2, "gt" if lower else "lt", j)
        return la.replaced(rows.select(remaining, rows.sub(x, update), x), -2, j, row), matrix

    x, _ = repeat(n, step, (b, matrix))
    return x if left else la.t_(x)


@la.gradient_in_work
def _solve_vjp(
    ct: Value,
    result: Value,
    matrix: Value,
    _b: Value,
    *,
    left: bool,
    lower: bool,
    transpose: bool,
    unit: bool,
) -> Cotangents:
    """M. Giles, Collected matrix derivative results for forward and reverse mode AD (2008)."""
    by_b = rows.triangular_solve(
        matrix, ct, left=left, lower=lower, transpose=not transpose, unit=unit
    )
    first, second = (by_b, la.t_(result)) if left else (la.t_(result), by_b)
    outer = la.matmul(first, second)
    outer = la.t_(outer) if transpose else outer
    triangle = la.triangle(outer, lower=lower, strict=unit)
    return rows.neg(triangle), by_b


def _solve_cell(matrix: str, b: str, result: str, **attrs: bool) -> Special:
    return Special((matrix, b), result, attrs=tuple(attrs.items()))


triangular_solve = define(
    name="triangular_solve",
    arity=2,
    kind=Kind.COMPOSITE,
    doc=(
        "X of op(T) X = B, or of X op(T) = B: op(T) is the matrix of operand 0 or its "
        "transpose, of which only the triangle named is read. The equations are solved by "
        "substitution, so a zero on the diagonal divides, and inf and NaN spread from row to "
        "row. Leading dimensions are those of stacks."
    ),
    attrs=(
        Attr("left", "bool", "whether op(T) stands left of X", default=True),
        Attr("lower", "bool", "whether T is lower triangular", default=True),
        Attr("transpose", "bool", "whether op(T) is T transposed", default=False),
        Attr("unit", "bool", "take the diagonal as ones, without reading it", default=False),
    ),
    infer=_infer_solve,
    reference=_solve_reference,
    vjp=_solve_vjp,
    dtypes=FLOATS,
    domain=Domain(matrices=("dominant",)),
    special=(
        _solve_cell("[[2, 5], [1, 4]]", "[[4], [10]]", "[[2], [2]]"),
        _solve_cell("[[2, 5], [1, 4]]", "[[12], [4]]", "[[3.5], [1]]", lower=False),
        _solve_cell("[[2, 5], [1, 4]]", "[[4], [8]]", "[[1], [2]]", transpose=True),
        _solve_cell("[[2, 5], [3, 4]]", "[[4], [10]]", "[[4], [-2]]", unit=True),
        _solve_cell("[[0.0]]", "[[1]]", "[[inf]]"),
        _solve_cell("[[0.0]]", "[[0.0]]", "[[nan]]"),
        _solve_cell("[[2, nan], [0, 4]]", "[[4, 8]]", "[[2, 2]]", left=False),
        _solve_cell("[[nan, 0], [0, 1]]", "[[4], [8]]", "[[nan], [nan]]"),
    ),
    traits=frozenset({Trait.EXPENSIVE}),
    accuracy=Accuracy(residual=_solve_residual),
    decompose=_solve_decompose,
    batch=shifting("triangular_solve"),
)


def _infer_cholesky(operands: Types, _attrs: Attrs) -> TensorType:
    return la.square_of("cholesky", operands[0])


@la.stacked
def _cholesky_reference(a: Array) -> Array:
    n = a.shape[-1]
    for j in range(n):
        pivot = np.sqrt(a[..., j, j])
        a[..., j, j] = pivot
        a[..., j + 1 :, j] /= pivot[..., None]
        factor = a[..., j + 1 :, j]
        a[..., j + 1 :, j + 1 :] -= factor[..., :, None] * factor[..., None, :]
    diagonal = np.diagonal(a, axis1=-2, axis2=-1)
    inside = (diagonal > 0) & (diagonal < np.inf)
    definite = np.asarray(inside.all(axis=-1, keepdims=True))
    lower = np.tril(np.ones((n, n), np.bool_))
    return np.where(lower, np.where(definite[..., None], a, np.nan), 0)


def _cholesky_residual(
    operands: Sequence[Array],
    results: Sequence[Array],
    references: Sequence[Array],
    _attrs: Attrs,
    dtype: DType,
) -> list[la.Judged]:
    """N. Higham, Accuracy and Stability, theorem 10.3: |A − L Lᵀ| ≤ γ |L| |Lᵀ|."""
    a, factor = np.tril(operands[0]), results[0]
    unit, rounding, tiny = la.units(dtype)
    n = a.shape[-1]
    size = la.product(np.abs(factor), np.abs(la.t(factor)))
    error = np.abs(np.tril(la.product(factor, la.t(factor))) - a)
    bound = 1.01 * ((n + 4) * unit + 2 * rounding) * size + n * tiny * (1 + size)
    above = np.abs(np.triu(factor, 1))
    return [
        la.judged("A = L L^T", error, np.tril(bound), references[0]),
        ("zeros above", above, np.zeros_like(above)),
    ]


@la.in_work
def _cholesky_decompose(a: Value) -> Value:
    if 0 in a.shape:
        return a

    def step(j: Index, x: Value) -> tuple[Value, ...]:
        pivot_column = la.column(x, j)
        pivot = rows.sqrt(la.column(pivot_column, j))
        spread = build.broadcast_to(pivot, pivot_column.shape, range(len(pivot_column.shape) - 1))
        factor = la.replaced(rows.div(pivot_column, spread), -1, j, pivot)
        update = rows.mul(la.along(factor, x.shape, -2), la.along(factor, x.shape, -1))
        below, right = (la.mask(x.shape, dim, "gt", j) for dim in (-2, -1))
        trailing = rows.select(rows.and_(below, right), rows.sub(x, update), x)
        return (la.replaced(trailing, -1, j, factor),)

    (x,) = repeat(a.shape[-1], step, (a,))
    # Above the diagonal, columns hold quotients that are no part of the result.
    lower = la.lower_part(x)
    diagonal = build.sum_(
        rows.select(la.diagonal(x.shape, "eq"), x, build.zeros_like(x)), (len(x.shape) - 1,)
    )
    positive = rows.and_(
        build.compare("gt", diagonal, build.zeros_like(diagonal)),
        build.compare("lt", diagonal, like(diagonal, np.inf)),
    )
    wrong = la.any_of(build.not_(positive), 1)
    spread = build.broadcast_to(wrong, x.shape, range(len(x.shape) - 2))
    bad = rows.and_(spread, la.diagonal(x.shape, "ge"))
    return rows.select(bad, like(x, np.nan), lower)


@la.gradient_in_work
def _cholesky_vjp(ct: Value, factor: Value, _a: Value) -> Cotangents:
    """I. Murray, Differentiation of the Cholesky decomposition (2016), equation 9."""
    inner = la.halved_diagonal(la.lower_part(la.matmul(la.t_(factor), la.lower_part(ct))))
    left = rows.triangular_solve(factor, inner, transpose=True)
    both = rows.triangular_solve(factor, left, left=False)
    return (la.reads_lower(both),)


cholesky = define(
    name="cholesky",
    arity=1,
    kind=Kind.COMPOSITE,
    doc=(
        "The lower triangular L with positive diagonal of A = L Lᵀ. Only the lower triangle of "
        "A is read, and zeros stand above the diagonal of L. Where A is not positive definite, "
        "as far as its dtype tells, or holds NaN or inf, the whole lower triangle of L is NaN. "
        "Leading dimensions are those of stacks."
    ),
    infer=_infer_cholesky,
    reference=_cholesky_reference,
    vjp=_cholesky_vjp,
    dtypes=FLOATS,
    domain=Domain(matrices=("definite",)),
    special=cells(
        "[[4, 7], [2, 10]] -> [[2, 0.0], [1, 3]]; "
        "[[1, 2], [2, 1]] -> [[nan, 0.0], [nan, nan]]; [[0.0]] -> [[nan]]; "
        "[[1, 0], [0, 0]] -> [[nan, 0.0], [nan, nan]]; [[inf]] -> [[nan]]; "
        "[[1, 0], [nan, 1]] -> [[nan, 0.0], [nan, nan]]; "
        "[[1, nan], [0, 1]] -> [[1, 0.0], [0.0, 1]]",
    ),
    traits=frozenset({Trait.EXPENSIVE}),
    accuracy=Accuracy(residual=_cholesky_residual),
    decompose=_cholesky_decompose,
    batch=shifting("cholesky"),
)

"""Composite rows that factor any matrix: lu and qr."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bringup.dtypes import FLOATS, DType, i32
from bringup.errors import UnsupportedError
from bringup.graph import Value
from bringup.ops import _matrices as la
from bringup.ops import build
from bringup.ops._matrices import Index, repeat
from bringup.ops._numeric import Array
from bringup.ops.batching import shifting
from bringup.ops.build import like, rows
from bringup.ops.special_values import cells
from bringup.ops.table import Accuracy, Attr, Attrs, Cotangents, Kind, Trait, Types, define
from bringup.types import TensorType


def _infer_lu(operands: Types, _attrs: Attrs) -> Types:
    a = la.matrix_of("lu", operands[0])
    return a, TensorType(a.shape[:-1], i32)


def _exchange(m: int, j: int, pivot: Array) -> Array:
    """0 … m − 1 with `j` and the pivot of each stack exchanged."""
    order = np.broadcast_to(np.arange(m), (*pivot.shape, m)).copy()
    np.put_along_axis(order, pivot[..., None], j, axis=-1)
    order[..., j] = pivot
    return order


@la.stacked
def _lu_reference(a: Array) -> tuple[Array, Array]:
    m, n = a.shape[-2:]
    order = np.broadcast_to(np.arange(m, dtype=np.int32), a.shape[:-1]).copy()
    for j in range(min(m, n)):
        pivot = j + np.argmax(np.abs(a[..., j:, j]), axis=-1)
        exchanged = _exchange(m, j, pivot)
        a = np.take_along_axis(a, exchanged[..., None], axis=-2)
        order = np.take_along_axis(order, exchanged, axis=-1)
        top = a[..., j, j, None]
        a[..., j + 1 :, j] = np.where(top == 0, 0, a[..., j + 1 :, j] / top)
        factor, row = a[..., j + 1 :, j], a[..., j, j + 1 :]
        a[..., j + 1 :, j + 1 :] -= factor[..., :, None] * row[..., None, :]
    return a, order


def _lu_parts(packed: Array) -> tuple[Array, Array]:
    m, n = packed.shape[-2:]
    k = min(m, n)
    return np.tril(packed[..., :k], -1) + np.eye(m, k), np.triu(packed[..., :k, :])


def _lu_residual(
    operands: Sequence[Array],
    results: Sequence[Array],
    references: Sequence[Array],
    _attrs: Attrs,
    dtype: DType,
) -> list[la.Judged]:
    """N. Higham, Accuracy and Stability, theorem 9.3: |P A − L U| ≤ γ |L| |U|."""
    (a,), (packed, order) = operands, results
    unit, rounding, tiny = la.units(dtype)
    m, n = packed.shape[-2:]
    lower, upper = _lu_parts(packed)
    if a.size == 0:
        return []
    misplaced = np.sort(order, axis=-1) != np.arange(m)
    permuted = np.take_along_axis(a, np.clip(order, 0, m - 1)[..., None].astype(np.int64), axis=-2)
    size = la.product(np.abs(lower), np.abs(upper))
    bound = 1.01 * ((min(m, n) + 4) * unit + 2 * rounding) * size + n * tiny * (1 + np.abs(a))
    error = np.abs(la.product(lower, upper) - permuted)
    factors = np.abs(lower)
    return [
        (
            "a permutation",
            misplaced[..., None].astype(size.dtype),
            np.zeros_like(misplaced[..., None], size.dtype),
        ),
        la.judged("P A = L U", error, bound, references[0]),
        la.judged(
            "largest pivots", factors, np.full_like(factors, 1 + 4 * unit + rounding), references[0]
        ),
    ]


def _exchanged(x: Value, dim: int, j: Index, at_j: Value, pivot: Value, at_pivot: Value) -> Value:
    """`x` with `at_pivot` at index `j` and `at_j` at index `pivot` of each stack."""
    rank = len(x.shape)
    stack = range(len(pivot.shape))
    position = rows.iota(type=x.type.with_dtype(i32), dim=rank + dim)
    is_pivot = build.compare("eq", position, build.broadcast_to(pivot, x.shape, stack))
    spread = build.broadcast_to(at_j, x.shape, [d for d in range(rank) if d != rank + dim])
    return la.replaced(rows.select(is_pivot, spread, x), dim, j, at_pivot)


def _at_pivot(x: Value, dim: int, pivot: Value) -> Value:
    rank = len(x.shape)
    position = rows.iota(type=x.type.with_dtype(i32), dim=rank + dim)
    spread = build.broadcast_to(pivot, x.shape, range(len(pivot.shape)))
    chosen = rows.select(build.compare("eq", position, spread), x, build.zeros_like(x))
    return build.sum_(chosen, (rank + dim,))


@la.in_work
def _lu_decompose(a: Value) -> tuple[Value, ...]:
    m, n = a.shape[-2:]
    order = rows.iota(type=TensorType(a.shape[:-1], i32), dim=len(a.shape) - 2)
    if 0 in a.shape:
        return a, order

    def step(j: Index, x: Value, order: Value) -> tuple[Value, ...]:
        size = rows.abs(la.column(x, j))
        size = rows.select(la.mask(size.shape, -1, "ge", j), size, like(size, -1.0))
        pivot = rows.argmax(size, dim=len(size.shape) - 1, dtype=i32)
        top = _at_pivot(x, -2, pivot)
        x = _exchanged(x, -2, j, la.row_of(x, j), pivot, top)
        order = _exchanged(order, -1, j, la.column(order, j), pivot, _at_pivot(order, -1, pivot))
        pivot_column = la.column(x, j)
        head = la.column(top, j)
        spread = build.broadcast_to(head, pivot_column.shape, range(len(head.shape)))
        none = build.compare("eq", spread, build.zeros_like(spread))
        factor = rows.select(none, build.zeros_like(pivot_column), rows.div(pivot_column, spread))
        factor = rows.select(la.mask(factor.shape, -1, "gt", j), factor, pivot_column)
        update = rows.mul(la.along(factor, x.shape, -2), la.along(top, x.shape, -1))
        trailing = rows.and_(la.mask(x.shape, -2, "gt", j), la.mask(x.shape, -1, "gt", j))
        return la.replaced(rows.select(trailing, rows.sub(x, update), x), -1, j, factor), order

    return repeat(min(m, n), step, (a, order))


def unpacked(packed: Value) -> tuple[Value, Value]:
    """L and U of what `lu` gives: m × k and k × n."""
    m, n = packed.shape[-2:]
    k, rank = min(m, n), len(packed.shape)
    left = build.slice_dim(packed, rank - 1, 0, k)
    upper = la.triangle(build.slice_dim(packed, rank - 2, 0, k), lower=False)
    strict = la.triangle(left, lower=True, strict=True)
    return rows.add(strict, la.eye(left.shape, left.dtype)), upper


def permutation_matrix(order: Value, like_: Value) -> Value:
    """P with ``P A`` having row ``order[i]`` of A as row i."""
    result: Value = rows.one_hot(order, size=order.shape[-1], dtype=like_.dtype)
    return result


def _split(x: Value, dim: int, k: int) -> tuple[Value, Value | None]:
    """The first `k` rows or columns, and the others if there are any."""
    d = len(x.shape) + dim
    surplus = build.slice_dim(x, d, k, x.shape[d]) if x.shape[d] > k else None
    return build.slice_dim(x, d, 0, k), surplus


@la.gradient_in_work
def _lu_vjp(cts: tuple[Value, ...], results: tuple[Value, ...], a: Value) -> Cotangents:
    """As for a square matrix, L⁻ᵀ [tril(Lᵀ L̄, −1) + triu(Ū Uᵀ)] U⁻ᵀ; what surplus rows or columns
    add follows from d(L₂) = d(A₂) U⁻¹ − L₂ dU U⁻¹ and its transpose.
    """
    k = min(a.shape[-2:])
    by_packed, packed = cts[0], results[0]
    lower, upper = unpacked(packed)
    rank = len(a.shape)
    by_lower = la.triangle(build.slice_dim(by_packed, rank - 1, 0, k), lower=True, strict=True)
    by_upper = la.triangle(build.slice_dim(by_packed, rank - 2, 0, k), lower=False)
    (low, low2), (by_low, by_low2) = _split(lower, -2, k), _split(by_lower, -2, k)
    (up, up2), (by_up, by_up2) = _split(upper, -1, k), _split(by_upper, -1, k)
    left, right = la.matmul(la.t_(low), by_low), la.matmul(by_up, la.t_(up))
    if up2 is not None and by_up2 is not None:
        left = rows.sub(left, la.matmul(by_up2, la.t_(up2)))
    if low2 is not None and by_low2 is not None:
        right = rows.sub(right, la.matmul(la.t_(low2), by_low2))
    inner = rows.add(la.triangle(left, lower=True, strict=True), la.triangle(right, lower=False))
    inner = rows.triangular_solve(up, inner, left=False, lower=False, transpose=True)
    result = rows.triangular_solve(low, inner, transpose=True, unit=True)
    if by_up2 is not None:
        surplus = rows.triangular_solve(low, by_up2, transpose=True, unit=True)
        result = rows.concatenate(result, surplus, dim=rank - 1)
    if by_low2 is not None:
        surplus = rows.triangular_solve(up, by_low2, left=False, lower=False, transpose=True)
        result = rows.concatenate(result, surplus, dim=rank - 2)
    return (la.matmul(la.t_(permutation_matrix(results[1], a)), result),)


lu = define(
    name="lu",
    arity=1,
    kind=Kind.COMPOSITE,
    doc=(
        "P A = L U by elimination with partial pivoting: in one matrix the multipliers of L "
        "below its unit diagonal and U on and above its own; and row numbers p, i32, so that "
        "row i of P A is row p[i] of A. The pivot is the first of the largest magnitude, or "
        "the first NaN. A pivot of 0 leaves multipliers of 0. Leading dimensions are those of "
        "stacks."
    ),
    infer=_infer_lu,
    reference=_lu_reference,
    vjp=_lu_vjp,
    dtypes=FLOATS,
    special=cells(
        "[[1, 3], [2, 4]] -> [[2, 4], [0.5, 1]]; "
        "[[0.0, 0.0], [0.0, 0.0]] -> [[0.0, 0.0], [0.0, 0.0]]; "
        "[[1, 2], [-1, 2]] -> [[1, 2], [-1, 4]]; "
        "[[0.0, 2], [0.0, 3]] -> [[0.0, 2], [0.0, 3]]; "
        "[[1, 2], [nan, 4]] -> [[nan, 4], [nan, nan]]",
    ),
    traits=frozenset({Trait.EXPENSIVE}),
    accuracy=Accuracy(residual=_lu_residual),
    decompose=_lu_decompose,
    batch=shifting("lu"),
)


def _infer_qr(operands: Types, attrs: Attrs) -> Types:
    a = la.matrix_of("qr", operands[0])
    m, n = a.shape[-2:]
    k = m if attrs["complete"] else min(m, n)
    return a.with_shape((*a.shape[:-2], m, k)), a.with_shape((*a.shape[:-2], k, n))


@la.stacked
def _qr_reference(a: Array, *, complete: bool) -> tuple[Array, Array]:
    m, n = a.shape[-2:]
    k = min(m, n)
    vectors = np.zeros((*a.shape[:-2], m, k), a.dtype)
    scales = np.zeros((*a.shape[:-2], k), a.dtype)
    for j in range(k):
        v, scales[..., j], a[..., j, j] = _reflector(a[..., j:, j])
        vectors[..., j:, j] = v
        a[..., j + 1 :, j] = 0
        trailing = a[..., j:, j + 1 :]
        trailing -= scales[..., j, None, None] * v[..., :, None] * (v[..., None, :] @ trailing)
    size = m if complete else k
    q = np.broadcast_to(np.eye(m, size, dtype=a.dtype), (*a.shape[:-2], m, size)).copy()
    for j in reversed(range(k)):
        v, trailing = vectors[..., j:, j], q[..., j:, :]
        trailing -= scales[..., j, None, None] * v[..., :, None] * (v[..., None, :] @ trailing)
    return q, np.triu(a[..., :size, :])


def _reflector(x: Array) -> tuple[Array, Array, Array]:
    """The vector with first element 1, the scale, and the first element of the image of `x`."""
    large = np.abs(x).max(axis=-1, initial=0)
    large = np.where(large > 0, large, 1)
    # The remainder of dependent columns may be subnormal, with few significant bits.
    x = x / large[..., None]
    head, tail = x[..., 0], x[..., 1:]
    norm = np.sqrt((x**2).sum(axis=-1))
    flat = (tail == 0).all(axis=-1)
    image = np.where(flat, head, np.where(head < 0, norm, -norm))
    scale = np.where(flat, 0, (image - head) / np.where(flat, 1, image))
    v = x / np.where(flat, 1, head - image)[..., None]
    v[..., 1:][flat] = 0
    v[..., 0] = 1
    return v, scale, image * large


def _qr_residual(
    operands: Sequence[Array],
    results: Sequence[Array],
    references: Sequence[Array],
    _attrs: Attrs,
    dtype: DType,
) -> list[la.Judged]:
    """N. Higham, Accuracy and Stability, theorems 19.4 and 19.13, column by column."""
    (a,), (q, r) = operands, results
    unit, rounding, tiny = la.units(dtype)
    m, n = a.shape[-2:]
    if a.size == 0:
        return []
    growth = 1.01 * (6 * m * min(m, n) ** 0.5 + 20) * unit + 2 * m**0.5 * rounding
    norms = np.sqrt((a**2).sum(axis=-2, keepdims=True)) * (1 + rounding * m)
    error = np.abs(la.product(q, r) - a)
    off = np.abs(la.product(la.t(q), q) - np.eye(q.shape[-1]))
    below = np.abs(np.tril(r, -1))
    return [
        la.judged("A = Q R", error, growth * norms + m * tiny + 0 * error, *references),
        la.judged("orthogonal Q", off, growth + 0 * off, *references),
        la.judged("zeros below", below, 0 * below, *references),
    ]


def _reflector_value(x: Value, j: Index) -> tuple[Value, Value, Value]:
    """As `_reflector`, of the elements from `j` on; zeros before."""
    rank = len(x.shape)
    last, stack = (rank - 1,), range(rank - 1)
    zero = build.zeros_like(x)
    x = rows.select(la.mask(x.shape, -1, "ge", j), x, zero)
    large = build.reduce("max", rows.abs(x), last)
    ones = build.ones_like(large)
    large = rows.select(build.compare("gt", large, build.zeros_like(large)), large, ones)
    x = rows.div(x, build.broadcast_to(large, x.shape, stack))
    head = la.column(x, j)
    tail = rows.select(la.mask(x.shape, -1, "gt", j), x, zero)
    flat = build.compare("eq", build.reduce("max", rows.abs(tail), last), build.zeros_like(head))
    norm = rows.sqrt(build.sum_(rows.mul(x, x), last))
    down = build.compare("lt", head, build.zeros_like(head))
    image = rows.select(flat, head, rows.select(down, norm, rows.neg(norm)))
    scale = rows.div(rows.sub(image, head), rows.select(flat, ones, image))
    scale = rows.select(flat, build.zeros_like(scale), scale)
    over = rows.select(flat, ones, rows.sub(head, image))
    v = rows.div(tail, build.broadcast_to(over, x.shape, stack))
    return la.replaced(v, -1, j, ones), scale, rows.mul(image, large)


def _reflected(x: Value, v: Value, scale: Value) -> Value:
    """X − scale · v (vᵀ X)."""
    rank = len(x.shape)
    stack = tuple(range(rank - 2))
    row = rows.dot_general(v, x, batch=(stack, stack), contract=((rank - 2,), (rank - 2,)))
    row = rows.mul(row, build.broadcast_to(scale, row.shape, stack))
    return rows.sub(x, rows.mul(la.along(v, x.shape, -2), la.along(row, x.shape, -1)))


@la.in_work
def _qr_decompose(a: Value, *, complete: bool) -> tuple[Value, ...]:
    m, n = a.shape[-2:]
    k, rank = min(m, n), len(a.shape)
    size = m if complete else k
    q = la.eye((*a.shape[:-2], m, size), a.dtype)
    if 0 in a.shape:
        return q, build.splat(0, a.type.with_shape((*a.shape[:-2], size, n)))
    vectors = build.splat(0, a.type.with_shape((*a.shape[:-2], m, k)))
    scales = build.splat(0, a.type.with_shape((*a.shape[:-2], k)))

    def forwards(j: Index, x: Value, vectors: Value, scales: Value) -> tuple[Value, ...]:
        pivot_column = la.column(x, j)
        v, scale, image = _reflector_value(pivot_column, j)
        below_zero = rows.select(
            la.mask(pivot_column.shape, -1, "gt", j), build.zeros_like(pivot_column), pivot_column
        )
        reflected = rows.select(la.mask(x.shape, -1, "gt", j), _reflected(x, v, scale), x)
        x = la.replaced(reflected, -1, j, la.replaced(below_zero, -1, j, image))
        return x, la.replaced(vectors, -1, j, v), la.replaced(scales, -1, j, scale)

    x, vectors, scales = repeat(k, forwards, (a, vectors, scales))

    def backwards(i: Index, q: Value, vectors: Value, scales: Value) -> tuple[Value, ...]:
        j = la.backward(k, i)
        return _reflected(q, la.column(vectors, j), la.column(scales, j)), vectors, scales

    q, _, _ = repeat(k, backwards, (q, vectors, scales))
    return q, la.triangle(build.slice_dim(x, rank - 2, 0, size), lower=False)


@la.gradient_in_work
def _qr_vjp(
    cts: tuple[Value, ...], results: tuple[Value, ...], a: Value, *, complete: bool
) -> Cotangents:
    """S. Walter and L. Lehmann (2018) for tall matrices; D. Roberts and L. Roberts, QR and LQ
    decomposition matrix backpropagation algorithms (2020), for wide ones.
    """
    m, n = a.shape[-2:]
    if complete and m > n:
        raise UnsupportedError(
            f"qr has no derivative for complete=True of {a.type}: columns of Q past the rank of A "
            "are not determined by it",
            fix="ask for the reduced factors, complete=False",
        )
    (by_q, by_r), (q, r) = cts, results
    if n <= m:
        return (_qr_tall_vjp(by_q, by_r, q, r),)
    (_, y), (u, _), (by_u, by_v) = (_split(v, -1, m) for v in (a, r, by_r))
    assert y is not None
    assert by_v is not None
    by_q = rows.add(by_q, la.matmul(y, la.t_(by_v)))
    by_x = _qr_tall_vjp(by_q, by_u, q, u)
    return (rows.concatenate(by_x, la.matmul(q, by_v), dim=len(a.shape) - 1),)


def _qr_tall_vjp(by_q: Value, by_r: Value, q: Value, r: Value) -> Value:
    inner = rows.sub(la.matmul(r, la.t_(by_r)), la.matmul(la.t_(by_q), q))
    lower = la.triangle(inner, lower=True)
    symmetric = rows.add(lower, la.t_(la.triangle(inner, lower=True, strict=True)))
    right_side = rows.add(by_q, la.matmul(q, symmetric))
    result: Value = rows.triangular_solve(r, right_side, left=False, lower=False, transpose=True)
    return result


qr = define(
    name="qr",
    arity=1,
    kind=Kind.COMPOSITE,
    doc=(
        "Q with orthonormal columns and upper triangular R of A = Q R, by Householder's "
        "reflections: a column becomes minus its norm with the sign of its first element "
        "(minus for 0), or stays as it is if nothing stands below the diagonal. NaN gives NaN, and "
        "so does inf, where LAPACK may keep it: a column is divided by its largest element first. "
        "Leading dimensions are those of stacks."
    ),
    attrs=(
        Attr(
            "complete",
            "bool",
            "for m × n: Q is m × m and R m × n, rather than m × k and k × n of the smaller k",
            default=False,
        ),
    ),
    infer=_infer_qr,
    reference=_qr_reference,
    vjp=_qr_vjp,
    dtypes=FLOATS,
    special=cells(
        "[[0.0, 0.0], [0.0, 0.0]] -> [[1, 0.0], [0.0, 1]]; [[2]] -> [[1]]; "
        "[[-2, 1], [0.0, 3]] -> [[1, 0.0], [0.0, 1]]; [[nan]] -> [[1]]",
    ),
    traits=frozenset({Trait.EXPENSIVE}),
    accuracy=Accuracy(residual=_qr_residual),
    decompose=_qr_decompose,
    batch=shifting("qr"),
)

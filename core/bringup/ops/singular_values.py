"""The composite row svd: singular values, by Jacobi's method on one side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup.dtypes import FLOATS, DType
from bringup.errors import UnsupportedError
from bringup.graph import Value
from bringup.ops import _jacobi as jacobi
from bringup.ops import _matrices as la
from bringup.ops import build
from bringup.ops._numeric import Array
from bringup.ops.batching import shifting
from bringup.ops.build import like, rows
from bringup.ops.special_values import cells
from bringup.ops.table import (
    Accuracy,
    Attr,
    Attrs,
    Cotangents,
    Kind,
    Pruned,
    Trait,
    Types,
    define,
)

#: Columns whose product is below this many roundoffs of their sizes are not rotated.
_NOISE = 2.0


def _infer_svd(operands: Types, attrs: Attrs) -> Types:
    a = la.matrix_of("svd", operands[0])
    *stack, m, n = a.shape
    k = min(m, n)
    if not attrs["vectors"]:
        return (a.with_shape((*stack, k)),)
    rows_, columns = (m, n) if attrs["complete"] else (k, k)
    sizes = ((m, rows_), (k,), (columns, n))
    first, second, third = (a.with_shape((*stack, *size)) for size in sizes)
    return first, second, third


@la.stacked
def _svd_reference(
    a: Array, *, complete: bool, vectors: bool
) -> tuple[Array, Array, Array] | Array:
    m, n = a.shape[-2:]
    a, bad = jacobi.finite(a)
    if m < n:
        v, s, ut = _tall_svd(la.t(a).copy(), complete)
        u, vt = la.t(ut), la.t(v)
    else:
        u, s, vt = _tall_svd(a, complete)
    nan = bad[..., None, None]
    s = np.where(bad[..., None], np.nan, s)
    return (np.where(nan, np.nan, u), s, np.where(nan, np.nan, vt)) if vectors else s


def _qr(a: Array, complete: bool) -> tuple[Array, Array]:
    factors: Any = rows.qr.reference(a, complete=complete)  # type: ignore[attr-defined]
    return factors[0], factors[1]


def _tall_svd(a: Array, complete: bool) -> tuple[Array, Array, Array]:
    n = a.shape[-1]
    if a.size == 0:
        size = a.shape[-2] if complete else n
        u = np.broadcast_to(np.eye(a.shape[-2], size, dtype=a.dtype), (*a.shape[:-1], size))
        vt = np.broadcast_to(np.eye(n, dtype=a.dtype), (*a.shape[:-2], n, n))
        return u.copy(), np.zeros((*a.shape[:-2], n), a.dtype), vt.copy()
    q, r = _qr(a, complete)
    x = jacobi.padded(la.t(r[..., :n, :]))
    v = np.broadcast_to(np.eye(x.shape[-1], dtype=a.dtype), x.shape).copy()
    order, rounds = jacobi.next_order(x.shape[-1]), max(x.shape[-1] - 1, 1)
    half, busy = x.shape[-1] // 2, True
    eps = np.finfo(a.dtype).eps
    floor = eps**2 * (x**2).sum(axis=(-2, -1))[..., None]
    for round_index in range(jacobi.SWEEPS * rounds):
        if round_index % rounds == 0:
            if not busy:
                break
            busy = False
        first, second = x[..., :half], x[..., half:]
        low, high, cross = (
            (p * o).sum(axis=-2) for p, o in ((first, first), (second, second), (first, second))
        )
        large = np.abs(cross) > _NOISE * eps / 2 * np.sqrt(low * high) + floor
        busy |= bool(large.any())
        c, s = jacobi.angles(low, high, np.where(large, cross, 0))
        x, v = jacobi.rotated(x, c, s)[..., order], jacobi.rotated(v, c, s)[..., order]
    x, v = x[..., :n, :n], v[..., :n, :n]
    norms = np.sqrt((x**2).sum(axis=-2))
    descending = np.argsort(-norms, axis=-1, kind="stable")
    norms = np.take_along_axis(norms, descending, axis=-1)
    x, v = (np.take_along_axis(columns, descending[..., None, :], axis=-1) for columns in (x, v))
    w, r = _qr(x, False)
    signs = np.where(np.diagonal(r, axis1=-2, axis2=-1) < 0, -1.0, 1.0)
    u = np.concatenate([q[..., :n] @ v, q[..., n:]], axis=-1)
    return u, norms, la.t(w * signs[..., None, :])


def _svd_residual(
    operands: Sequence[Array],
    results: Sequence[Array],
    references: Sequence[Array],
    attrs: Attrs,
    dtype: DType,
) -> list[la.Judged]:
    """As for eigh: A = U S Vᵀ with orthonormal U and V, and singular values in order."""
    (a,) = operands
    if not a.size:
        return []
    value_index = 1 if attrs["vectors"] else 0
    s = results[value_index]
    k = s.shape[-1]
    unit, rounding, tiny = la.units(dtype)
    size = max(a.shape[-2:])
    growth = 1.01 * (16 * size**0.5 + 24) * unit + (2 * size**0.5 + 3) * rounding
    norm = np.sqrt((a**2).sum(axis=(-2, -1), keepdims=True)) + size * tiny / unit
    fall = np.maximum(np.concatenate([s[..., 1:], 0 * s[..., :1]], -1) - s, 0)[..., None]
    known = np.abs(s - references[value_index])[..., None]
    judgements = [
        la.judged("decreasing S", fall, 0 * fall, *references),
        la.judged("S", known, growth * norm + 0 * known, *references),
    ]
    if attrs["vectors"]:
        u, _, vt = results
        error = np.abs(la.product(u[..., :k] * s[..., None, :], vt[..., :k, :]) - a)
        left, right = jacobi.orthogonality(u), jacobi.orthogonality(la.t(vt))
        judgements += [
            la.judged("A = U S V^T", error, growth * norm + 0 * error, *references),
            la.judged("orthogonal U", left, growth + 0 * left, *references),
            la.judged("orthogonal V", right, growth + 0 * right, *references),
        ]
    return judgements


@la.in_work
def _svd_decompose(a: Value, *, complete: bool, vectors: bool) -> tuple[Value, ...]:
    m, n = a.shape[-2:]
    k, stack = min(m, n), range(len(a.shape) - 2)
    if 0 in a.shape:
        sizes = (m, n) if complete else (k, k)
        u, vt = (la.eye((*a.shape[:-2], *size), a.dtype) for size in ((m, sizes[0]), (sizes[1], n)))
        s = build.splat(0, a.type.with_shape((*a.shape[:-2], k)))
        return (u, s, vt) if vectors else (s,)
    x, scale, bad = jacobi.prepared(a)
    s, *factors = _tall_values(la.t_(x) if m < n else x, complete, vectors)
    s = jacobi.or_nan(rows.mul(s, build.broadcast_to(scale, s.shape, stack)), bad)
    if not vectors:
        return (s,)
    u, vt = map(la.t_, reversed(factors)) if m < n else factors
    return jacobi.or_nan(u, bad), s, jacobi.or_nan(vt, bad)


def _tall_values(a: Value, complete: bool, vectors: bool) -> tuple[Value, ...]:
    """The singular values, then U and Vᵀ if `vectors`.

    One-sided Jacobi on the columns of Rᵀ (Z. Drmač and K. Veselić, 2008): A = Q R, so with
    Rᵀ J = W, A = (Q J) Wᵀ.  W's columns, made exactly orthonormal by a QR of their own, are V.
    """
    n, rank = a.shape[-1], len(a.shape)
    q, r = _factors(a, complete)
    x = la.t_(build.slice_dim(r, rank - 2, 0, n))
    noise, floor = _NOISE * jacobi.unit(a), jacobi.unit(a) ** 2 / 64

    def step(counter: Value, x: Value, *rotated: Value) -> tuple[Value, ...]:
        sizes = build.sum_(rows.mul(x, x), (rank - 2,))
        cross = build.sum_(rows.mul(x, jacobi.shifted(x, 1)), (rank - 2,))
        means = rows.sqrt(rows.mul(sizes, jacobi.shifted(sizes, 1)))
        limit = rows.add(rows.mul(means, like(means, noise)), like(means, floor))
        large = build.compare("gt", rows.abs(cross), limit)
        left = la.any_of(large, rank - 1)
        by = jacobi.weights(sizes, rows.select(large, cross, build.zeros_like(cross)), counter)
        return *(jacobi.rotated_pairs(v, by, counter, -1) for v in (x, *rotated)), left

    first = (la.eye(x.shape, x.dtype),) if vectors else ()
    x, *rotations = jacobi.sweeps(n, step, (x, *first), every=n)
    norms = rows.sqrt(build.sum_(rows.mul(x, x), (rank - 2,)))
    order = jacobi.ordering(rows.neg(norms))
    row = build.reshape(norms, (*norms.shape[:-1], 1, n))
    norms = build.reshape(la.matmul(row, order), norms.shape)
    if not vectors:
        return (norms,)
    w, r = _factors(la.matmul(x, order), False)
    diagonal = jacobi.diagonal_of(r)
    down = build.compare("lt", diagonal, build.zeros_like(diagonal))
    signs = rows.select(down, like(diagonal, -1.0), build.ones_like(diagonal))
    w = rows.mul(w, la.along(signs, w.shape, -1))
    left = la.matmul(build.slice_dim(q, rank - 1, 0, n), la.matmul(rotations[0], order))
    if q.shape[-1] > n:
        surplus = build.slice_dim(q, rank - 1, n, q.shape[-1])
        left = rows.concatenate(left, surplus, dim=rank - 1)
    return norms, left, la.t_(w)


def _factors(a: Value, complete: bool) -> tuple[Value, Value]:
    factors: Any = rows.qr(a, complete=complete)
    return factors[0], factors[1]


def _svd_residuals(a: Value, *, complete: bool, vectors: bool) -> tuple[Value, ...]:
    """Vectors too, which the vjp reads."""
    results: Any = rows.svd(a, complete=complete and vectors)
    u, s, vt = results
    return (u, s, vt) if vectors else (s, u, vt)


def _prune_svd(live: frozenset[int], operands: tuple[Value, ...], attrs: Attrs) -> Pruned | None:
    if live != {1} or not attrs["vectors"]:
        return None
    return Pruned(operands, {"complete": False, "vectors": False}, (1,))


@la.gradient_in_work
def _svd_vjp(
    cts: tuple[Value, ...],
    results: tuple[Value, ...],
    a: Value,
    *,
    complete: bool,
    vectors: bool,
) -> Cotangents:
    """J. Townsend, Differentiating the singular value decomposition (2016)."""
    assert vectors, "what is differentiated keeps its vectors"
    m, n = a.shape[-2:]
    if complete and m != n:
        raise UnsupportedError(
            f"svd has no derivative for complete=True of {a.type}: vectors past its rank are not "
            "determined by it",
            fix="ask for the reduced factors, complete=False",
        )
    (by_u, by_s, by_vt), (u, s, vt) = cts, results
    v, by_v = la.t_(vt), la.t_(by_vt)
    squares = rows.mul(s, s)
    left, right = (_skew_part(squares, x, by) for x, by in ((u, by_u), (v, by_v)))
    shape = left.shape
    inner = rows.add(
        rows.mul(left, la.along(s, shape, -1)), rows.mul(la.along(s, shape, -2), right)
    )
    inner = rows.add(inner, jacobi.as_diagonal(by_s))
    cotangent = la.matmul(la.matmul(u, inner), vt)
    if m > n:
        outside = _outside(u, jacobi.over(by_u, la.along(s, by_u.shape, -1)))
        cotangent = rows.add(cotangent, la.matmul(outside, vt))
    if n > m:
        outside = _outside(v, jacobi.over(by_v, la.along(s, by_v.shape, -1)))
        cotangent = rows.add(cotangent, la.matmul(u, la.t_(outside)))
    return (cotangent,)


def _skew_part(squares: Value, x: Value, by_x: Value) -> Value:
    product = la.matmul(la.t_(x), by_x)
    return jacobi.over_gaps(rows.sub(product, la.t_(product)), squares)


def _outside(basis: Value, x: Value) -> Value:
    """The part of `x` outside the span of a basis."""
    return rows.sub(x, la.matmul(basis, la.matmul(la.t_(basis), x)))


svd = define(
    name="svd",
    arity=1,
    kind=Kind.COMPOSITE,
    doc=(
        "A = U diag(s) Vᵀ: orthonormal columns of U, decreasing s ≥ 0, and Vᵀ with orthonormal "
        "rows. Signs of pairs of vectors, and vectors of equal or vanishing singular values, "
        "are unspecified. A matrix with inf or NaN gives NaN throughout. Equal singular values "
        "have no gradient of vectors, nor have vanishing ones: NaN or inf. Leading dimensions "
        "are those of stacks."
    ),
    attrs=(
        Attr(
            "complete",
            "bool",
            "for m × n: U is m × m and Vᵀ n × n, rather than m × k and k × n of the smaller k",
            default=False,
        ),
        Attr("vectors", "bool", "False: the singular values alone", default=True),
    ),
    infer=_infer_svd,
    reference=_svd_reference,
    vjp=_svd_vjp,
    dtypes=FLOATS,
    special=cells(
        "[[nan]] -> [[nan]]; [[1, 2], [inf, 4]] -> [[nan, nan], [nan, nan]]",
    ),
    traits=frozenset({Trait.EXPENSIVE}),
    accuracy=Accuracy(residual=_svd_residual),
    decompose=_svd_decompose,
    residuals=_svd_residuals,
    prune=_prune_svd,
    batch=shifting("svd"),
)

"""The composite row eigh: eigenvalues of symmetric matrices, by Jacobi's method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bringup.dtypes import FLOATS, DType
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
    Domain,
    Kind,
    Pruned,
    Trait,
    Types,
    define,
)

#: Sweeps end when the off-diagonal norm is this many roundoffs of the whole norm.
_NOISE = 2.0
#: A pair is not rotated if the square of its element is below this share of the mean off-diagonal
#: square.  Between equal eigenvalues such a small element would rotate by an arbitrary angle, which
#: fills elements again that had vanished: convergence would be slow.
_SKIPPED = 2.0**-8


def _infer_eigh(operands: Types, attrs: Attrs) -> Types:
    a = la.square_of("eigh", operands[0])
    values = a.with_shape(a.shape[:-1])
    return (values, a) if attrs["vectors"] else (values,)


@la.stacked
def _eigh_reference(a: Array, *, vectors: bool) -> tuple[Array, Array] | Array:
    n = a.shape[-1]
    lower = np.tril(a)
    a, bad = jacobi.finite(lower + la.t(np.tril(lower, -1)))
    x = jacobi.padded(a)
    v = np.broadcast_to(np.eye(x.shape[-1], dtype=a.dtype), x.shape).copy()
    order = jacobi.next_order(x.shape[-1])
    norm = np.sqrt((x**2).sum(axis=(-2, -1), keepdims=True))
    for step in range(jacobi.SWEEPS * max(x.shape[-1] - 1, 1)):
        off = np.abs(x - x * np.eye(x.shape[-1], dtype=a.dtype))
        if step % max(x.shape[-1] - 1, 1) == 0 and (off <= np.finfo(a.dtype).eps / 8 * norm).all():
            break
        x, v = _eigh_round(x, v, order)
    w = np.diagonal(x, axis1=-2, axis2=-1)[..., :n]
    ascending = np.argsort(w, axis=-1, kind="stable")
    w = np.take_along_axis(w, ascending, axis=-1)
    v = np.take_along_axis(v[..., :n, :n], ascending[..., None, :], axis=-1)
    w = np.where(bad[..., None], np.nan, w)
    return (w, np.where(bad[..., None, None], np.nan, v)) if vectors else w


def _eigh_round(x: Array, v: Array, order: Array) -> tuple[Array, Array]:
    half = x.shape[-1] // 2
    diagonal = np.diagonal(x, axis1=-2, axis2=-1)
    cross = np.diagonal(x[..., :half, half:], axis1=-2, axis2=-1)
    c, s = jacobi.angles(diagonal[..., :half], diagonal[..., half:], cross)
    x = la.t(jacobi.rotated(la.t(jacobi.rotated(x, c, s)), c, s))
    # Rotations make these elements vanish but for rounding: store exact zeros.
    i = np.arange(half)
    x[..., i, half + i] = 0
    x[..., half + i, i] = 0
    return x[..., order, :][..., order], jacobi.rotated(v, c, s)[..., order]


def _eigh_residual(
    operands: Sequence[Array],
    results: Sequence[Array],
    references: Sequence[Array],
    _attrs: Attrs,
    dtype: DType,
) -> list[la.Judged]:
    """Backward stable: A V = V W and orthonormal V, up to a multiple of the norm of A; so are
    eigenvalues (H. Weyl), in order.
    """
    w, *vectors = results
    n = w.shape[-1]
    if not operands[0].size:
        return []
    a = np.tril(operands[0]) + la.t(np.tril(operands[0], -1))
    unit, rounding, tiny = la.units(dtype)
    # A column is rotated with each other one some ten times, with independent roundings
    # (N. Higham and T. Mary, A new approach to probabilistic rounding error analysis, 2019).
    growth = 1.01 * (12 * n**0.5 + 16) * unit + (2 * n**0.5 + 2) * rounding
    norm = np.sqrt((a**2).sum(axis=(-2, -1), keepdims=True)) + n * tiny / unit
    fall = np.maximum(w[..., :-1] - w[..., 1:], 0)[..., None]
    known = np.abs(w - references[0])[..., None]
    judgements = [
        la.judged("increasing W", fall, 0 * fall, *references),
        la.judged("W", known, growth * norm + 0 * known, *references),
    ]
    for v in vectors:
        error = np.abs(la.product(a, v) - v * w[..., None, :])
        judgements += [
            la.judged("A V = V W", error, growth * norm + 0 * error, *references),
            la.judged("orthogonal V", jacobi.orthogonality(v), growth + 0 * error, *references),
        ]
    return judgements


@la.in_work
def _eigh_decompose(a: Value, *, vectors: bool) -> tuple[Value, ...]:
    n, rank = a.shape[-1], len(a.shape)
    stack = range(rank - 2)
    if 0 in a.shape:
        nothing = build.splat(0, a.type.with_shape(a.shape[:-1]))
        return (nothing, a) if vectors else (nothing,)
    strict = la.triangle(a, lower=True, strict=True)
    symmetric, scale, bad = jacobi.prepared(rows.add(la.lower_part(a), la.t_(strict)))
    squares = build.sum_(rows.mul(symmetric, symmetric), (rank - 2, rank - 1))
    limit = rows.mul(squares, like(squares, (_NOISE * jacobi.unit(a)) ** 2))

    def step(counter: Value, limit: Value, x: Value, *rotated: Value) -> tuple[Value, ...]:
        zero = build.zeros_like(x)
        off = rows.select(la.diagonal(x.shape, "eq"), zero, x)
        off_squares = build.sum_(rows.mul(off, off), (rank - 2, rank - 1))
        left = la.any_of(build.compare("gt", off_squares, limit), rank - 2)
        after = jacobi.shifted(x, 1)
        cross = build.sum_(rows.select(la.diagonal(x.shape, "eq"), after, zero), (rank - 1,))
        skipped = rows.mul(off_squares, like(off_squares, _SKIPPED / n**2))
        small = build.compare(
            "le", rows.mul(cross, cross), build.broadcast_to(skipped, cross.shape, range(rank - 2))
        )
        cross = rows.select(small, build.zeros_like(cross), cross)
        by = jacobi.weights(jacobi.diagonal_of(x), cross, counter)
        x = jacobi.rotated_pairs(jacobi.rotated_pairs(x, by, counter, -2), by, counter, -1)
        rotated = tuple(jacobi.rotated_pairs(v, by, counter, -1) for v in rotated)
        return limit, jacobi.with_zeros(x, by[0], counter), *rotated, left

    # The step tests the norm of the whole matrix, not only the pairs of its round: every=1.
    first = (la.eye(a.shape, a.dtype),) if vectors else ()
    _, x, *eigenvectors = jacobi.sweeps(n, step, (limit, symmetric, *first), every=1)
    w = jacobi.diagonal_of(x)
    order = jacobi.ordering(w)
    row = build.reshape(w, (*w.shape[:-1], 1, n))
    w = build.reshape(la.matmul(row, order), w.shape)
    w = rows.mul(w, build.broadcast_to(scale, w.shape, stack))
    return jacobi.or_nan(w, bad), *(jacobi.or_nan(la.matmul(v, order), bad) for v in eigenvectors)


def _eigh_residuals(a: Value, **_attrs: bool) -> tuple[Value, ...]:
    """Vectors too, which the vjp reads."""
    results: Any = rows.eigh(a)
    return tuple(results)


def _prune_eigh(live: frozenset[int], operands: tuple[Value, ...], attrs: Attrs) -> Pruned | None:
    return Pruned(operands, {"vectors": False}, (0,)) if live == {0} and attrs["vectors"] else None


@la.gradient_in_work
def _eigh_vjp(
    cts: tuple[Value, ...], results: tuple[Value, ...], _a: Value, *, vectors: bool
) -> Cotangents:
    """M. Giles, Collected matrix derivative results (2008), section 3.1."""
    assert vectors, "what is differentiated keeps its vectors"
    (by_w, by_v), (w, v) = cts, results
    inner = jacobi.over_gaps(la.matmul(la.t_(v), by_v), w)
    inner = rows.add(inner, jacobi.as_diagonal(by_w))
    cotangent = la.matmul(la.matmul(v, inner), la.t_(v))
    return (la.reads_lower(cotangent),)


eigh = define(
    name="eigh",
    arity=1,
    kind=Kind.COMPOSITE,
    doc=(
        "Eigenvalues of symmetric matrices in increasing order, and orthonormal eigenvectors "
        "as columns; only the lower triangle is read. The signs of eigenvectors, and which of "
        "equal eigenvalues, are unspecified. A matrix with inf or NaN gives NaN throughout. "
        "Equal eigenvalues have no gradient of eigenvectors: NaN or inf. Leading dimensions "
        "are those of stacks."
    ),
    attrs=(Attr("vectors", "bool", "False: the eigenvalues alone", default=True),),
    infer=_infer_eigh,
    reference=_eigh_reference,
    vjp=_eigh_vjp,
    dtypes=FLOATS,
    domain=Domain(matrices=("symmetric",)),
    special=cells(
        "[[3, 7], [0.0, 2]] -> [2, 3]; [[0.0, 0.0], [0.0, 0.0]] -> [0.0, 0.0]; "
        "[[-2]] -> [-2]; [[1, 0], [nan, 1]] -> [nan, nan]; [[inf]] -> [nan]",
    ),
    traits=frozenset({Trait.EXPENSIVE}),
    accuracy=Accuracy(residual=_eigh_residual),
    decompose=_eigh_decompose,
    residuals=_eigh_residuals,
    prune=_prune_eigh,
    batch=shifting("eigh"),
)

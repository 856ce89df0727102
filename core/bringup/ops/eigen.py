"""The composite row eigh: eigenvalues of symmetric matrices, by Jacobi's method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bringup.dtypes import FLOATS, DType
from bringup.graph import Value
from bringup.ops import _jacobi as jacobi
from bringup.ops import _matrices as la
from bringup.ops import build
from bringup.ops._numeric import Array
from bringup.ops.batching import shifting
from bringup.ops.build import like, rows
from bringup.ops.table import (
    Accuracy,
    Attrs,
    Domain,
    Kind,
    OpDef,
    Special,
    Trait,
    Types,
    define,
)

Cotangents = tuple[Value | None, ...]
#: Roundoffs of a product to which rotations bring it down.
_NOISE = 2.0


def _infer_eigh(operands: Types, _attrs: Attrs) -> Types:
    a = la.square_of("eigh", operands[0])
    return a.with_shape(a.shape[:-1]), a


@la.stacked
def _eigh_reference(a: Array) -> tuple[Array, Array]:
    n = a.shape[-1]
    lower = np.tril(a)
    a, bad = jacobi.finite(lower + la.t(np.tril(lower, -1)))
    x = jacobi.padded(a)
    v = np.broadcast_to(np.eye(x.shape[-1], dtype=a.dtype), x.shape).copy()
    order = jacobi.players(x.shape[-1])
    norm = np.sqrt((x**2).sum(axis=(-2, -1), keepdims=True))
    for turn in range(jacobi.SWEEPS * max(x.shape[-1] - 1, 1)):
        off = np.abs(x - x * np.eye(x.shape[-1], dtype=a.dtype))
        if turn % max(x.shape[-1] - 1, 1) == 0 and (off <= np.finfo(a.dtype).eps / 8 * norm).all():
            break
        x, v = _eigh_round(x, v, order)
    w = np.diagonal(x, axis1=-2, axis2=-1)[..., :n]
    places = np.argsort(w, axis=-1, kind="stable")
    w = np.take_along_axis(w, places, axis=-1)
    v = np.take_along_axis(v[..., :n, :n], places[..., None, :], axis=-1)
    return np.where(bad[..., None], np.nan, w), np.where(bad[..., None, None], np.nan, v)


def _eigh_round(x: Array, v: Array, order: Array) -> tuple[Array, Array]:
    half = x.shape[-1] // 2
    diagonal = np.diagonal(x, axis1=-2, axis2=-1)
    cross = np.diagonal(x[..., :half, half:], axis1=-2, axis2=-1)
    c, s = jacobi.angles(diagonal[..., :half], diagonal[..., half:], cross)
    x = la.t(jacobi.rotated(la.t(jacobi.rotated(x, c, s)), c, s))
    # What a rotation makes vanish vanishes exactly.
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
    w, v = results
    n = w.shape[-1]
    if not operands[0].size:
        return []
    a = np.tril(operands[0]) + la.t(np.tril(operands[0], -1))
    unit, rounding, least = la.units(dtype)
    growth = 1.01 * (10 * n + 40) * unit + (2 * n**0.5 + 2) * rounding
    norm = np.sqrt((a**2).sum(axis=(-2, -1), keepdims=True)) + n * least / unit
    error = np.abs(la.product(a, v) - v * w[..., None, :])
    fall = np.maximum(w[..., :-1] - w[..., 1:], 0)[..., None]
    known = np.abs(w - references[0])[..., None]
    return [
        la.judged("A V = V W", error, growth * norm + 0 * error, *references),
        la.judged("orthogonal V", jacobi.orthogonality(v), growth + 0 * error, *references),
        la.judged("increasing W", fall, 0 * fall, *references),
        la.judged("W", known, growth * norm + 0 * known, *references),
    ]


@la.in_work
def _eigh_decompose(a: Value) -> tuple[Value, ...]:
    n, rank = a.shape[-1], len(a.shape)
    stack = range(rank - 2)
    if 0 in a.shape:
        return build.splat(0, a.type.with_shape(a.shape[:-1])), a
    strict = la.triangle(a, lower=True, strict=True)
    whole, scale, bad = jacobi.prepared(rows.add(la.lower_part(a), la.t_(strict)))
    squares = build.sum_(rows.mul(whole, whole), (rank - 2, rank - 1))
    limit = rows.mul(squares, like(squares, (_NOISE * jacobi.unit(a)) ** 2))

    def step(counter: Value, x: Value, v: Value, limit: Value) -> tuple[Value, ...]:
        zero = build.zeros_like(x)
        off = rows.select(la.diagonal(x.shape, "eq"), zero, x)
        rest = build.sum_(rows.mul(off, off), (rank - 2, rank - 1))
        left = la.any_of(build.compare("gt", rest, limit), rank - 2)
        after = jacobi.shifted(x, 1)
        cross = build.sum_(rows.select(la.diagonal(x.shape, "eq"), after, zero), (rank - 1,))
        by = jacobi.weights(jacobi.diagonal_of(x), cross, counter)
        x = jacobi.turned(jacobi.turned(x, by, counter, -2), by, counter, -1)
        return jacobi.vanished(x, counter), jacobi.turned(v, by, counter, -1), limit, left

    # What is left is known of the whole matrix, not of the pairs of a round alone.
    x, v, _ = jacobi.sweeps(n, step, (whole, la.eye(a.shape, a.dtype), limit), every=1)
    w = jacobi.diagonal_of(x)
    order = jacobi.ordering(w)
    row = build.reshape(w, (*w.shape[:-1], 1, n))
    w = build.reshape(la.matmul(row, order), w.shape)
    w = rows.mul(w, build.broadcast_to(scale, w.shape, stack))
    return jacobi.or_nan(w, bad), jacobi.or_nan(la.matmul(v, order), bad)


@la.gradient_in_work
def _eigh_vjp(cts: tuple[Value, ...], results: tuple[Value, ...], _a: Value) -> Cotangents:
    """M. Giles, Collected matrix derivative results (2008), section 3.1."""
    (by_w, by_v), (w, v) = cts, results
    inner = jacobi.over_gaps(la.matmul(la.t_(v), by_v), w)
    inner = rows.add(inner, jacobi.as_diagonal(by_w))
    whole = la.matmul(la.matmul(v, inner), la.t_(v))
    return (la.reads_lower(whole),)


eigh = define(
    OpDef(
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
        infer=_infer_eigh,
        reference=_eigh_reference,
        vjp=_eigh_vjp,
        dtypes=FLOATS,
        domain=Domain(matrices=("symmetric",)),
        special=(
            Special(("[[3, 7], [0.0, 2]]",), "[2, 3]"),
            Special(("[[0.0, 0.0], [0.0, 0.0]]",), "[0.0, 0.0]"),
            Special(("[[-2]]",), "[-2]"),
            Special(("[[1, 0], [nan, 1]]",), "[nan, nan]"),
            Special(("[[inf]]",), "[nan]"),
        ),
        traits=frozenset({Trait.EXPENSIVE}),
        accuracy=Accuracy(residual=_eigh_residual),
        decompose=_eigh_decompose,
        batch=shifting("eigh"),
    )
)

"""Jacobi's rotations on all pairs of a round at once, as numpy and as graphs.

The pairs of a round are element i of the first half with element i of the second; between rounds
the halves exchange elements as the players of a tournament do, so that n − 1 rounds, one sweep,
meet every pair and restore the order.  (R. Brent and F. Luk, The solution of singular-value and
symmetric eigenvalue problems on multiprocessor arrays, 1985.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bringup.dtypes import bool_, i32
from bringup.graph import Builder, Graph, Value
from bringup.ops import _matrices as la
from bringup.ops import build
from bringup.ops._numeric import Array
from bringup.ops.build import like, rows

Values = tuple[Value, ...]

#: Sweeps after which a loop ends in any case; five to ten are usual.
SWEEPS = 24


def players(n: int) -> Array:
    """The order after a round: n is even, and the first stays."""
    half = n // 2
    if half <= 1:
        return np.arange(n)
    top = [0, half, *range(1, half - 1)]
    bottom = [*range(half + 1, n), half - 1]
    return np.array(top + bottom)


def angles(low: Array, high: Array, cross: Array) -> tuple[Array, Array]:
    """Cosine and sine that make ``cross`` vanish, of at most an eighth of a turn."""
    nothing = cross == 0
    tau = (high - low) / np.where(nothing, 1, 2 * cross)
    tangent = np.where(tau < 0, -1, 1) / (np.abs(tau) + np.hypot(1, tau))
    tangent = np.where(nothing, 0, tangent)
    cosine = 1 / np.sqrt(1 + tangent**2)
    return cosine, tangent * cosine


def angle_values(low: Value, high: Value, cross: Value) -> tuple[Value, Value]:
    """As `angles`."""
    zero, one = build.zeros_like(cross), build.ones_like(cross)
    nothing = build.compare("eq", cross, zero)
    tau = rows.div(rows.sub(high, low), rows.select(nothing, one, rows.add(cross, cross)))
    size = rows.abs(tau)
    # Past the square root of the range, 1 / 2|tau| is the tangent.
    huge = build.compare("gt", size, like(size, 1e18))
    bounded = rows.select(huge, one, size)
    root = rows.sqrt(rows.add(one, rows.mul(bounded, bounded)))
    tangent = rows.div(one, rows.add(size, rows.select(huge, size, root)))
    tangent = rows.select(build.compare("lt", tau, zero), rows.neg(tangent), tangent)
    tangent = rows.select(nothing, zero, tangent)
    cosine = rows.div(one, rows.sqrt(rows.add(one, rows.mul(tangent, tangent))))
    return cosine, rows.mul(tangent, cosine)


def halves(x: Value, dim: int) -> tuple[Value, Value]:
    """The first and the second half along a dimension, −2 or −1."""
    d = len(x.shape) + dim
    half = x.shape[d] // 2
    return build.slice_dim(x, d, 0, half), build.slice_dim(x, d, half, 2 * half)


def turned(x: Value, cosine: Value, sine: Value, dim: int) -> Value:
    """The pairs along a dimension rotated, and moved to their places of the next round."""
    first, second = halves(x, dim)
    c, s = (la.along(v, first.shape, dim) for v in (cosine, sine))
    top = rows.sub(rows.mul(c, first), rows.mul(s, second))
    bottom = rows.add(rows.mul(s, first), rows.mul(c, second))
    return _seated(top, bottom, len(x.shape) + dim)


def _seated(top: Value, bottom: Value, d: int) -> Value:
    half = top.shape[d]
    if half == 1:
        return _joined([top, bottom], d)
    parts = [
        build.slice_dim(top, d, 0, 1),
        build.slice_dim(bottom, d, 0, 1),
        build.slice_dim(top, d, 1, half - 1),
        build.slice_dim(bottom, d, 1, half),
        build.slice_dim(top, d, half - 1, half),
    ]
    return _joined([part for part in parts if part.shape[d]], d)


def _joined(parts: Sequence[Value], d: int) -> Value:
    result: Value = rows.concatenate(*parts, dim=d)
    return result


def sweeps(rounds: int, step: Callable[..., Values], state: Values) -> Values:
    """Rounds until a sweep found nothing to do.

    step: takes the values of `state` and gives the next ones and whether, of any matrix of the
    stack, something was left to do: bool[].
    """
    counter, busy = build.splat(0, i32[()]), build.splat(True, bool_[()])
    loop = (counter, busy, busy, *state)
    results: Values = rows.while_(
        *loop, cond=_condition(rounds, loop), body=_body(rounds, step, loop)
    )
    return results[3:]


def _condition(rounds: int, loop: Values) -> Graph:
    with Builder() as builder:
        counter, _, found, *_ = [builder.input(v.type) for v in loop]
        more = build.compare("lt", counter, like(counter, SWEEPS * rounds))
        return builder.build([rows.and_(more, found)], "cond")


def _body(rounds: int, step: Callable[..., Values], loop: Values) -> Graph:
    """The state holds the round, whether this sweep did something, and whether to go on."""
    with Builder() as builder:
        counter, busy, found, *state = [builder.input(v.type) for v in loop]
        *after, left = step(*state)
        busy = rows.or_(busy, left)
        counter = rows.add(counter, like(counter, 1))
        end = build.compare("eq", rows.rem(counter, like(counter, rounds)), like(counter, 0))
        nothing = like(busy, False)
        going = rows.select(end, busy, found)
        return builder.build([counter, rows.select(end, nothing, busy), going, *after], "body")


def ordering(keys: Value) -> Value:
    """P so that ``keys P`` is increasing and ``M P`` has its columns in that order."""
    n, rank = keys.shape[-1], len(keys.shape)
    shape = (*keys.shape, n)
    one, other = la.along(keys, shape, -2), la.along(keys, shape, -1)
    earlier = la.diagonal(shape, "gt")
    same = rows.and_(build.compare("eq", other, one), earlier)
    before = rows.or_(build.compare("lt", other, one), same)
    places = build.sum_(build.convert(before, i32), (rank,))
    result: Value = rows.one_hot(places, size=n, dtype=keys.dtype)
    return result


def padded(x: Array) -> Array:
    """Padded by a row and a column of zeros if their number is odd."""
    more = x.shape[-1] % 2
    return np.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, more)] * 2)


def finite(a: Array) -> tuple[Array, Array]:
    """Stacks with zeros for matrices that are not finite, and which those are."""
    bad = ~np.isfinite(a).all(axis=(-2, -1))
    return np.where(bad[..., None, None], 0, a), bad


def rotated(x: Array, c: Array, s: Array) -> Array:
    """Pairs of columns rotated."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    c, s = c[..., None, :], s[..., None, :]
    return np.concatenate([c * first - s * second, s * first + c * second], axis=-1)


def orthogonality(x: Array) -> Array:
    """How far columns are from orthonormal."""
    return np.abs(la.product(la.t(x), x) - np.eye(x.shape[-1]))


def diagonal_of(x: Value) -> Value:
    """The diagonals of square blocks."""
    rank = len(x.shape)
    return build.sum_(rows.select(la.diagonal(x.shape, "eq"), x, build.zeros_like(x)), (rank - 1,))


def padded_value(x: Value) -> Value:
    """As `padded`."""
    more, rank = x.shape[-1] % 2, len(x.shape)
    return build.pad(x, 0, (0,) * rank, (*(0,) * (rank - 2), more, more))


def prepared(a: Value) -> tuple[Value, Value, Value]:
    """Matrices scaled to elements up to 1, zeros for those not finite; the scales; where not."""
    rank = len(a.shape)
    ends, stack = (rank - 2, rank - 1), range(rank - 2)
    large = build.reduce("max", rows.abs(a), ends)
    finite = build.compare("lt", large, like(large, np.inf))  # false for NaN too
    bad = build.not_(finite)
    usable = rows.and_(finite, build.compare("gt", large, build.zeros_like(large)))
    scale = rows.select(usable, large, build.ones_like(large))
    spread = build.broadcast_to(scale, a.shape, stack)
    kept = rows.select(build.broadcast_to(finite, a.shape, stack), a, build.zeros_like(a))
    return rows.div(kept, spread), scale, bad


def or_nan(x: Value, bad: Value) -> Value:
    """NaN throughout where a matrix is bad."""
    spread = build.broadcast_to(bad, x.shape, range(len(bad.shape)))
    return rows.select(spread, like(x, np.nan), x)


def unit(x: Value) -> float:
    """The unit roundoff of a dtype in which rows work."""
    return float(np.finfo(x.dtype.numpy).eps) / 2


def over_gaps(x: Value, w: Value) -> Value:
    """``x[i, j] / (w[j] − w[i])``; 0 for 0, so that equal values of `w` harm nobody who does not
    ask for their vectors.
    """
    gap = rows.sub(la.along(w, x.shape, -1), la.along(w, x.shape, -2))
    return over(x, rows.select(la.diagonal(x.shape, "eq"), like(gap, np.inf), gap))


def over(x: Value, y: Value) -> Value:
    """X / y, but 0 for x = 0."""
    zero = build.zeros_like(x)
    return rows.select(build.compare("eq", x, zero), zero, rows.div(x, y))


def as_diagonal(v: Value) -> Value:
    """Diagonal matrices."""
    shape = (*v.shape, v.shape[-1])
    spread = la.along(v, shape, -1)
    return rows.select(la.diagonal(shape, "eq"), spread, build.zeros_like(spread))

"""Jacobi's rotations on all pairs of a round at once, as numpy and as graphs.

In graphs neighbours are paired: in one round elements at even positions with the next element, in
the following round elements at odd positions.  Each pair is rotated and exchanged, so that n
rounds, one sweep, pair every two elements and reverse the order.  In numpy element i of the first
half is paired with element i of the second; between rounds elements change places as the players of
a round-robin tournament do: n − 1 rounds for even n.  (R. Brent and F. Luk, The solution of
singular-value and symmetric eigenvalue problems on multiprocessor arrays, 1985.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bringup.dtypes import bool_, i32
from bringup.graph import Builder, Graph, Value
from bringup.ops import _matrices as la
from bringup.ops import build
from bringup.ops._numeric import Array
from bringup.ops.build import like, rows
from bringup.types import TensorType

Values = tuple[Value, ...]

#: Sweeps after which a loop ends in any case; five to ten are usual.
SWEEPS = 24


def next_order(n: int) -> Array:
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
    size = np.abs(tau)
    # Past the square root of the range, 1 / 2|tau| is the tangent.
    huge = size > 1e18
    root = np.where(huge, size, np.sqrt(1 + np.where(huge, 1, size) ** 2))
    tangent = np.where(tau < 0, -1, 1) / (size + root)
    tangent = np.where(nothing, 0, tangent)
    cosine = 1 / np.sqrt(1 + tangent**2)
    return cosine, tangent * cosine


def angle_values(low: Value, high: Value, cross: Value) -> tuple[Value, Value]:
    """As `angles`."""
    zero, ones = build.zeros_like(cross), build.ones_like(cross)
    nothing = build.compare("eq", cross, zero)
    tau = rows.div(rows.sub(high, low), rows.select(nothing, ones, rows.add(cross, cross)))
    size = rows.abs(tau)
    # Past the square root of the range, 1 / 2|tau| is the tangent.
    huge = build.compare("gt", size, like(size, 1e18))
    bounded = rows.select(huge, ones, size)
    root = rows.sqrt(rows.add(ones, rows.mul(bounded, bounded)))
    tangent = rows.div(ones, rows.add(size, rows.select(huge, size, root)))
    tangent = rows.select(build.compare("lt", tau, zero), rows.neg(tangent), tangent)
    tangent = rows.select(nothing, zero, tangent)
    cosine = rows.div(ones, rows.sqrt(rows.add(ones, rows.mul(tangent, tangent))))
    return cosine, rows.mul(tangent, cosine)


def _first(shape: Sequence[int], counter: Value) -> Value:
    """Where the position along the last dimension is the first of a pair in this round."""
    positions = TensorType(tuple(shape), i32)
    position = rows.iota(type=positions, dim=len(shape) - 1)
    step = build.broadcast_to(counter, shape, ())
    odd = rows.and_(rows.add(position, step), like(position, 1))
    return build.compare("eq", odd, like(position, 0))


def shifted(x: Value, by: int, dim: int = -1) -> Value:
    """Element i of a dimension from element i + 1, or i − 1 for −1; 0 past the end."""
    lo = [0] * len(x.shape)
    lo[dim] = -by
    return build.pad(x, 0, lo, [-n for n in lo])


def weights(sizes: Value, cross: Value, counter: Value) -> tuple[Value, Value]:
    """The weights of ``partner + own_weight[i] (x[i] - half[i] partner)``, element i after a round.

    They are the sine and the tangent of half the angle; `partner` is the other element of the pair.
    A rounded cosine would change lengths by the same share of a roundoff whenever the angle is
    small, and these errors would add up over rounds; the term added here to the exchanged element
    is as small as the angle.
    (H. Rutishauser, The Jacobi method for real symmetric matrices, 1966.)

    sizes: of each element, the `low` or `high` of `angles`.  cross: of each and the next one.
    """
    first = _first(sizes.shape, counter)
    low = rows.select(first, sizes, shifted(sizes, -1))
    high = rows.select(first, shifted(sizes, 1), sizes)
    cosine, sine = angle_values(low, high, rows.select(first, cross, shifted(cross, -1)))
    last = la.mask(sizes.shape, -1, "eq", sizes.shape[-1] - 1)
    start = la.mask(sizes.shape, -1, "eq", 0)
    alone = rows.or_(rows.and_(first, last), rows.and_(build.not_(first), start))
    own_weight = rows.select(first, sine, rows.neg(sine))
    ones, zero = build.ones_like(own_weight), build.zeros_like(own_weight)
    half = rows.div(own_weight, rows.add(ones, cosine))
    return rows.select(alone, ones, own_weight), rows.select(alone, zero, half)


def with_zeros(x: Value, own_weight: Value, counter: Value) -> Value:
    """A symmetric matrix after a round, with exact zeros at rotated pairs in place of roundoff.

    own_weight: of `weights`; 0 where a pair was exchanged and not rotated.
    """
    rank = len(x.shape)
    positions = x.type.with_dtype(i32)
    row, col = (rows.iota(type=positions, dim=rank - d) for d in (2, 1))
    step = build.broadcast_to(counter, x.shape, ())
    ones = like(row, 1)
    even = build.compare("eq", rows.and_(rows.add(rows.min(row, col), step), ones), like(row, 0))
    next_ = build.compare("eq", rows.abs(rows.sub(row, col)), ones)
    zero = build.zeros_like(x)
    rotated_ = build.compare("ne", la.along(own_weight, x.shape, -2), zero)
    return rows.select(rows.and_(rows.and_(next_, even), rotated_), zero, x)


def rotated_pairs(x: Value, by: tuple[Value, Value], counter: Value, dim: int) -> Value:
    """The pairs of a round along a dimension, −2 or −1, rotated and exchanged."""
    own_weight, half = (la.along(v, x.shape, dim) for v in by)
    first = la.along(_first(by[0].shape, counter), x.shape, dim)
    partner = rows.select(first, shifted(x, 1, dim), shifted(x, -1, dim))
    return rows.add(partner, rows.mul(own_weight, rows.sub(x, rows.mul(half, partner))))


def sweeps(rounds: int, step: Callable[..., Values], state: Values, *, every: int) -> Values:
    """Run rounds until `every` of them, one after the other, had no pair to rotate.

    rounds: how many make a sweep.
    step: takes the number of the round and the values of `state`; gives the next values, and
    whether any matrix of the stack had a pair to rotate, bool[].
    """
    counter, busy = build.splat(0, i32[()]), build.splat(True, bool_[()])
    loop = (counter, busy, busy, *state)
    results: Any = rows.while_(*loop, cond=_condition(rounds, loop), body=_body(every, step, loop))
    return tuple(results[3:])


def _condition(rounds: int, loop: Values) -> Graph:
    with Builder() as builder:
        counter, _, active, *_ = [builder.input(v.type) for v in loop]
        more = build.compare("lt", counter, like(counter, SWEEPS * rounds))
        return builder.build([rows.and_(more, active)], "cond")


def _body(every: int, step: Callable[..., Values], loop: Values) -> Graph:
    """The state holds the round, whether rounds since the last test were busy, whether to go on."""
    with Builder() as builder:
        counter, busy, active, *state = [builder.input(v.type) for v in loop]
        *after, left = step(counter, *state)
        busy = rows.or_(busy, left)
        counter = rows.add(counter, like(counter, 1))
        end = build.compare("eq", rows.rem(counter, like(counter, every)), like(counter, 0))
        nothing = like(busy, False)
        next_active = rows.select(end, busy, active)
        return builder.build(
            [counter, rows.select(end, nothing, busy), next_active, *after], "body"
        )


def ordering(keys: Value) -> Value:
    """P so that ``keys P`` is increasing and ``M P`` has its columns in that order."""
    n, rank = keys.shape[-1], len(keys.shape)
    shape = (*keys.shape, n)
    row_keys, column_keys = la.along(keys, shape, -2), la.along(keys, shape, -1)
    earlier = la.diagonal(shape, "gt")
    same = rows.and_(build.compare("eq", column_keys, row_keys), earlier)
    before = rows.or_(build.compare("lt", column_keys, row_keys), same)
    ranks = build.sum_(build.convert(before, i32), (rank,))
    result: Value = rows.one_hot(ranks, size=n, dtype=keys.dtype)
    return result


def padded(x: Array) -> Array:
    """Padded by a row and a column of zeros if their number is odd."""
    more = x.shape[-1] % 2
    return np.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, more)] * 2)


def finite(a: Array) -> tuple[Array, Array]:
    """Stacks with zeros for matrices that are not finite, and which those are."""
    bad = np.asarray(~np.isfinite(a).all(axis=(-2, -1)))
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


def prepared(a: Value) -> tuple[Value, Value, Value]:
    """Matrices scaled to elements up to 1, zeros if not finite; scales; which are not finite."""
    rank = len(a.shape)
    ends, stack = (rank - 2, rank - 1), range(rank - 2)
    large = build.reduce("max", rows.abs(a), ends)
    finite = build.compare("lt", large, like(large, np.inf))  # false for NaN too
    bad = build.not_(finite)
    usable = rows.and_(finite, build.compare("gt", large, build.zeros_like(large)))
    scale = rows.select(usable, large, build.ones_like(large))
    spread = build.broadcast_to(scale, a.shape, stack)
    finite_part = rows.select(build.broadcast_to(finite, a.shape, stack), a, build.zeros_like(a))
    return rows.div(finite_part, spread), scale, bad


def or_nan(x: Value, bad: Value) -> Value:
    """NaN throughout where a matrix is bad."""
    spread = build.broadcast_to(bad, x.shape, range(len(bad.shape)))
    return rows.select(spread, like(x, np.nan), x)


def unit(x: Value) -> float:
    """The unit roundoff of a dtype in which rows work."""
    return float(np.finfo(x.dtype.numpy).eps) / 2


def over_gaps(x: Value, w: Value) -> Value:
    """``x[i, j] / (w[j] − w[i])``; 0 for 0, so that equal values of `w` do no harm where
    their vectors have no cotangent.
    """
    gap = rows.sub(la.along(w, x.shape, -1), la.along(w, x.shape, -2))
    return over(x, rows.select(la.diagonal(x.shape, "eq"), like(gap, np.inf), gap))


def over(x: Value, y: Value) -> Value:
    """X / y, but 0 / 0 = 0.

    Its instructions must be linear in x, not only its values: forward mode differentiates vjps by
    their cotangents, at cotangents of zero.  So no select depends on x.
    """
    nothing = build.compare("eq", y, build.zeros_like(y))
    quotient = rows.div(x, rows.select(nothing, build.ones_like(y), y))
    # Three products by the largest number overflow for each x but 0, even the smallest subnormal.
    largest = like(x, float(np.finfo(x.dtype.numpy).max))
    infinite = rows.mul(rows.mul(rows.mul(x, largest), largest), largest)
    return rows.select(nothing, infinite, quotient)


def as_diagonal(v: Value) -> Value:
    """Diagonal matrices."""
    shape = (*v.shape, v.shape[-1])
    spread = la.along(v, shape, -1)
    return rows.select(la.diagonal(shape, "eq"), spread, build.zeros_like(spread))

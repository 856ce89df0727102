"""Eigenvalues and singular values by Jacobi's rotations of one pair of columns after the other.

An iteration of the parallel loops has one matrix of the stack in scratch memory, in f32 if its
elements are narrower.  Sweeps, each of which rotates all pairs, end when nothing is left to rotate.
"""

from __future__ import annotations

import math

import numpy as np

from bringup.dtypes import DType, bool_, i32
from bringup.graph.index import Bound, Expr
from bringup.loops.form import Buffer, Scalar
from bringup.loops.library.builder import FuncBuilder, data, wide
from bringup.loops.library.calls import OpCall, StepLoops
from bringup.loops.library.reflections import Matrix, orthogonal
from bringup.ops._jacobi import SWEEPS
from bringup.records import record

#: Sweeps end when the off-diagonal norm is this many roundoffs of the whole norm.  Columns whose
#: product is below this many roundoffs of their sizes are not rotated.
_NOISE = 2.0
#: A pair of a symmetric matrix is not rotated if the square of its element is below this share of
#: the mean off-diagonal square: between equal eigenvalues it would rotate by an arbitrary angle.
_SKIPPED = 2.0**-8


def eigh(call: OpCall) -> StepLoops:
    """Two-sided rotations of a symmetric matrix, of which the lower triangle is read."""
    x, results = call.operands[0], call.results
    n, stack = call.types[0].shape[-1], math.prod(call.types[0].shape[:-2])
    b = FuncBuilder(call.name, [("in", x), *(("out", y) for y in results)])
    dtype = wide(x.dtype)
    with b.parallel(s=stack) as (s,):
        a = Matrix(b, b.alloc("a", dtype, n * n), n, n)
        with b.loop("i", n) as i, b.loop("j", n) as j:
            swapped = b.inside(Bound(j + i * -1, 1, n))
            lower, upper = (b.load(x, s * (n * n) + e) for e in (i * n + j, j * n + i))
            a.set(i, j, b.convert(b.op("select", swapped, upper, lower), dtype))
        scale, bad = _prepare(a)
        rotated = [a]
        if len(results) > 1:
            rotated.append(Matrix(b, b.alloc("v", dtype, n * n), n, n))
            rotated[1].fill_unit()
        _diagonalise(a, rotated[1:])
        values = b.alloc("values", dtype, n)
        with b.loop("i", n) as i:
            b.store(values, i, a.get(i, i))
        places = _places(b, values, descending=False)
        nan = b.constant(math.nan, dtype)
        with b.loop("i", n) as i:
            to = [b.load(places, i)]
            value = b.op("mul", b.load(values, i), scale)
            value = b.convert(b.op("select", bad, nan, value), x.dtype)
            b.store(results[0], s * n + data(n), value, named=to)
            for v, y in zip(rotated[1:], results[1:], strict=True):
                with b.loop("j", n) as j:
                    value = b.op("select", bad, nan, v.get(j, i))
                    place = (s * n + j) * n + data(n)
                    b.store(y, place, b.convert(value, x.dtype), named=to)
    return StepLoops(call, (b.func(),))


def svd(call: OpCall) -> StepLoops:
    """One-sided rotations on the columns of Rᵀ (Z. Drmač and K. Veselić, 2008): A = Q R, so with
    Rᵀ J = W S, A = (Q J) S Wᵀ.  W is made orthonormal by a QR of its own.
    """
    x, results = call.operands[0], call.results
    (m, n), stack = call.types[0].shape[-2:], math.prod(call.types[0].shape[:-2])
    has_vectors, dtype = len(results) > 1, wide(x.dtype)
    tall, k = max(m, n), min(m, n)
    size = tall if has_vectors and call.attrs["complete"] else k
    b = FuncBuilder(call.name, [("in", x), *(("out", y) for y in results)])
    with b.parallel(s=stack) as (s,):
        a = Matrix(b, b.alloc("a", dtype, tall * k), tall, k)
        with b.loop("i", tall) as i, b.loop("j", k) as j:
            place = i * n + j if m >= n else j * n + i
            a.set(i, j, b.convert(b.load(x, s * (m * n) + place), dtype))
        scale, bad = _prepare(a)
        q = orthogonal(b, a, size, "q")
        w = Matrix(b, b.alloc("w", dtype, k * k), k, k)
        with b.loop("i", k) as i, b.loop("j", k) as j:
            w.set(i, j, b.load(a.buffer, j * k + i, Bound(i + j * -1, 0, k)))
        turns = [w]
        if has_vectors:
            turns.append(Matrix(b, b.alloc("turns", dtype, k * k), k, k))
            turns[1].fill_unit()
        _make_orthogonal(w, turns)
        values = b.alloc("values", dtype, k)
        with b.loop("j", k) as j:
            b.store(values, j, b.op("sqrt", _product(w, j, j)))
        places = _places(b, values, descending=True)
        out = _Output(b, s, scale, bad, places, k)
        out.values(values, results[len(results) // 2])
        if has_vectors:
            left, right = (results[0], results[2]) if m >= n else (results[2], results[0])
            out.vectors(q, turns[1], w, (left, right), is_tall=m >= n)
    return StepLoops(call, (b.func(),))


def _prepare(a: Matrix) -> tuple[Scalar, Scalar]:
    """Scale a matrix to elements up to 1, and clear it if not all are finite; the scale, and
    whether it was cleared.
    """
    b, dtype = a.b, a.buffer.dtype
    zero, one = b.constant(0.0, dtype), b.constant(1.0, dtype)
    most = b.variable("large", zero)
    with b.loop("i", a.rows) as i, b.loop("j", a.columns) as j:
        b.set(most, b.op("abs", a.get(i, j)), fold="max")
    large = b.load(most)
    finite = b.compare("lt", large, b.constant(math.inf, dtype))
    usable = b.op("and", finite, b.compare("gt", large, zero))
    scale = b.op("select", usable, large, one)
    with b.loop("i", a.rows) as i, b.loop("j", a.columns) as j:
        a.set(i, j, b.op("select", finite, b.op("div", a.get(i, j), scale), zero))
    return scale, b.not_(finite)


def _unit(dtype: DType) -> float:
    return float(np.finfo(dtype.numpy).eps) / 2


def _diagonalise(a: Matrix, vectors: list[Matrix]) -> None:
    b, n, dtype = a.b, a.rows, a.buffer.dtype
    zero = b.constant(0.0, dtype)
    squares = b.variable("squares", zero)
    with b.loop("i", n) as i, b.loop("j", n) as j:
        b.set(squares, a.get(i, j), fold="add", factor=a.get(i, j))
    noise = b.constant((_NOISE * _unit(dtype)) ** 2, dtype)
    limit = b.op("mul", b.load(squares), noise)
    with b.loop("sweep", SWEEPS):
        off = b.variable("off", zero)
        with b.loop("i", n) as i, b.loop("j", n, until=i) as j:
            b.set(off, a.get(i, j), fold="add", factor=a.get(i, j))
        both = b.op("add", b.load(off), b.load(off))
        with b.where(test=b.compare("gt", both, limit)):
            least = b.op("mul", both, b.constant(_SKIPPED / n**2, dtype))
            with b.loop("p", n) as p, b.loop("d", n, until=p * -1 + (n - 1)) as d:
                q = p + d + 1
                cross = a.get(p, q)
                with b.where(test=b.compare("gt", b.op("mul", cross, cross), least)):
                    turn = _Rotation.of(b, a.get(p, p), a.get(q, q), cross)
                    with b.loop("i", n) as i:
                        turn.apply(a, (i, p), (i, q))
                    with b.loop("i", n) as i:
                        turn.apply(a, (p, i), (q, i))
                    # Rotation makes these vanish but for rounding.
                    a.set(p, q, zero)
                    a.set(q, p, zero)
                    for v in vectors:
                        with b.loop("i", n) as i:
                            turn.apply(v, (i, p), (i, q))


def _product(w: Matrix, p: Expr, q: Expr) -> Scalar:
    """The product of two columns."""
    b = w.b
    total = b.variable("total", b.constant(0.0, w.buffer.dtype))
    with b.loop("i", w.rows) as i:
        b.set(total, w.get(i, p), fold="add", factor=w.get(i, q))
    return b.load(total)


def _make_orthogonal(w: Matrix, turns: list[Matrix]) -> None:
    """Rotate the columns of ``w``, and of the others with it, until they are orthogonal."""
    b, n, dtype = w.b, w.rows, w.buffer.dtype
    noise = b.constant(_NOISE * _unit(dtype), dtype)
    floor = b.constant(_unit(dtype) ** 2 / 64, dtype)
    busy = b.variable("busy", b.constant(True, bool_))
    with b.loop("sweep", SWEEPS), b.where(test=b.load(busy)):
        b.set(busy, b.constant(False, bool_))
        with b.loop("p", n) as p, b.loop("d", n, until=p * -1 + (n - 1)) as d:
            q = p + d + 1
            low, high, cross = _product(w, p, p), _product(w, q, q), _product(w, p, q)
            mean = b.op("sqrt", b.op("mul", low, high))
            limit = b.op("add", b.op("mul", mean, noise), floor)
            large = b.compare("gt", b.op("abs", cross), limit)
            with b.where(test=large):
                b.set(busy, b.constant(True, bool_))
                turn = _Rotation.of(b, low, high, cross)
                for matrix in turns:
                    with b.loop("i", n) as i:
                        turn.apply(matrix, (i, p), (i, q))


@record(eq=False)
class _Rotation:
    """A rotation that makes a product vanish, by its sine and the tangent of half its angle.

    A rounded cosine would change lengths by the same share of a roundoff whenever the angle is
    small, and these errors would add up.  (H. Rutishauser, The Jacobi method for real symmetric
    matrices, 1966.)
    """

    b: FuncBuilder
    sine: Scalar
    half: Scalar

    @classmethod
    def of(cls, b: FuncBuilder, low: Scalar, high: Scalar, cross: Scalar) -> _Rotation:
        """The rotation of at most an eighth of a turn; ``cross`` is not 0."""
        one = b.constant(1.0, low.dtype)
        tau = b.op("div", b.op("sub", high, low), b.op("add", cross, cross))
        size = b.op("abs", tau)
        # Past the square root of the range, 1 / 2|tau| is the tangent.
        huge = b.compare("gt", size, b.constant(1e18, low.dtype))
        bounded = b.op("select", huge, one, size)
        root = b.op("sqrt", b.op("add", one, b.op("mul", bounded, bounded)))
        root = b.op("select", huge, size, root)
        tangent = b.op("div", one, b.op("add", size, root))
        below = b.compare("lt", tau, b.constant(0.0, low.dtype))
        tangent = b.op("select", below, b.op("neg", tangent), tangent)
        length = b.op("sqrt", b.op("add", one, b.op("mul", tangent, tangent)))
        cosine = b.op("div", one, length)
        sine = b.op("mul", tangent, cosine)
        return cls(b, sine, b.op("div", sine, b.op("add", one, cosine)))

    def apply(self, a: Matrix, one: tuple[Expr, Expr], other: tuple[Expr, Expr]) -> None:
        """Rotate two elements."""
        b, sine, half = self.b, self.sine, self.half
        x, y = a.get(*one), a.get(*other)
        less = b.op("mul", sine, b.op("add", y, b.op("mul", half, x)))
        more = b.op("mul", sine, b.op("sub", x, b.op("mul", half, y)))
        a.set(*one, b.op("sub", x, less))
        a.set(*other, b.op("add", y, more))


def _places(b: FuncBuilder, values: Buffer, *, descending: bool) -> Buffer:
    """At which place each value stands in order; equal ones in their own order."""
    n = values.size
    places = b.alloc("places", i32, n)
    with b.loop("i", n) as i:
        rank = b.variable("rank", b.constant(0, i32))
        with b.loop("j", n) as j:
            x, y = b.load(values, j), b.load(values, i)
            earlier = b.inside(Bound(i + j * -1, 1, max(n, 2)))
            tie = b.op("and", b.compare("eq", x, y), earlier)
            first = b.op("or", b.compare("gt" if descending else "lt", x, y), tie)
            b.set(rank, b.convert(first, i32), fold="add")
        b.store(places, i, b.load(rank))
    return places


@record(eq=False)
class _Output:
    """Writes singular values and vectors in their order.

    s: the number of the matrix.  count: of singular values.
    """

    b: FuncBuilder
    s: Expr
    scale: Scalar
    bad: Scalar
    places: Buffer
    count: int

    def values(self, values: Buffer, target: Buffer) -> None:
        """The singular values."""
        b = self.b
        with b.loop("j", self.count) as j:
            value = b.op("mul", b.load(values, j), self.scale)
            place = self.s * self.count + data(self.count)
            self.store(target, place, value, named=[b.load(self.places, j)])

    def store(
        self, target: Buffer, place: Expr, value: Scalar, named: list[Scalar] | None = None
    ) -> None:
        """Store a value, or NaN if the matrix was not finite."""
        b = self.b
        value = b.op("select", self.bad, b.constant(math.nan, value.dtype), value)
        b.store(target, place, b.convert(value, target.dtype), named=named or ())

    def vectors(
        self, q: Matrix, turns: Matrix, w: Matrix, targets: tuple[Buffer, Buffer], *, is_tall: bool
    ) -> None:
        """The vectors on both sides: products of ``q``, and orthonormal columns of ``w``.

        is_tall: the matrix has at least as many rows as columns; else it was transposed.
        """
        b, s, k = self.b, self.s, self.count
        (left, right), size = targets, q.columns
        ordered = Matrix(b, b.alloc("ordered", w.buffer.dtype, k * k), k, k)
        with b.loop("j", k) as j:
            named = [b.load(self.places, j)]
            with b.loop("i", k) as i:
                b.store(ordered.buffer, i * k + data(k), w.get(i, j), named=named)
            with b.loop("i", q.rows) as i:
                total = b.variable("total", b.constant(0.0, w.buffer.dtype))
                with b.loop("p", k) as p:
                    b.set(total, q.get(i, p), fold="add", factor=turns.get(p, j))
                place = i * size + data(k) if is_tall else data(k) * q.rows + i
                place = s * (q.rows * size) + place
                self.store(left, place, b.load(total), named=named)
        with b.loop("i", q.rows) as i, b.loop("more", size - k) as more:
            j = more + k
            place = i * size + j if is_tall else j * q.rows + i
            self.store(left, s * (q.rows * size) + place, q.get(i, j))
        factor = orthogonal(b, ordered, k, "u")
        zero = b.constant(0.0, w.buffer.dtype)
        with b.loop("j", k) as j:
            down = b.compare("lt", ordered.get(j, j), zero)
            with b.loop("i", k) as i:
                value = factor.get(i, j)
                value = b.op("select", down, b.op("neg", value), value)
                place = j * k + i if is_tall else i * k + j
                self.store(right, s * (k * k) + place, value)

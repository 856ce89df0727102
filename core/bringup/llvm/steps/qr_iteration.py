"""The parts that eigenvalues and singular values share: Householder reflections on whole vectors,
and implicit QR steps whose rotations are applied to the vectors in batches of many steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from bringup.integers import round_up
from bringup.llvm import text as ir
from bringup.llvm.scalar import memory_type, narrow
from bringup.llvm.steps.matrices import MatrixEmitter, Rows, Strides
from bringup.llvm.text import Builder, Module, Param, Type, Val, const, i64_const, vec
from bringup.loops.target import Target
from bringup.program.program import OpStep

_ZERO, _ONE = i64_const(0), i64_const(1)
#: QR steps whose rotations are applied together.
BATCH = 32
#: Vectors of columns that rotations are applied to at once: enough to hide the latency of an fma,
#: and few enough for sixteen registers.
_COLUMN_VECTORS = 4
#: An off-diagonal element is negligible below this many roundoffs of its two diagonal neighbours.
#: That is about what rounding leaves there after a step on two equal values.
_NEGLIGIBLE = 4
#: The result is NaN after so many QR steps per value; two are usual.
_MAX_STEPS = 40


def double(value: float) -> Val:
    """A constant of f64."""
    return const(ir.f64, value)


class Rotation:
    """A rotation, represented by the sine and the tangent of half the angle.

    The cosine is 1 minus their product.  A rounded cosine would change lengths, always in the same
    direction if the angles are equally small, so that errors would accumulate over many steps.
    r: the first number after the rotation that makes the second one zero.
    """

    def __init__(self, b: Builder, sine: Val, half: Val, r: Val) -> None:
        self.b, self.sine, self.half, self.r = b, sine, half, r
        self.cosine_minus_one = b.fneg(b.fmul(sine, half))

    def times_cosine(self, x: Val) -> Val:
        """``c x``."""
        return self.b.fma(self.cosine_minus_one, x, x)

    def pair(self, x: Val, y: Val) -> tuple[Val, Val]:
        """``c x + s y`` and ``c y − s x``."""
        b, s, h = self.b, self.sine, self.half
        return (
            b.fma(s, b.fma(b.fneg(h), x, y), x),
            b.fma(b.fneg(s), b.fma(h, y, x), y),
        )


class QrIteration(MatrixEmitter):
    """What both steps share.  Rows end with zeros, so that all loops take whole vectors."""

    def __init__(self, module: Module, step: OpStep, name: str, target: Target) -> None:
        super().__init__(module, step, name, target)
        self.lanes = self.dense.lanes
        self.vector = vec(self.type, self.lanes)
        self.block = self.lanes * _COLUMN_VECTORS
        self.memory = memory_type(self.dtype)

    def width(self, columns: int) -> int:
        """The leading dimension of a matrix with ``columns`` columns."""
        count = round_up(columns, self.block)
        # Rows that are a multiple of 1 KiB apart would share few sets of a cache.
        return count + self.block if count * self.dense.bytes % 1024 == 0 else count

    def whole(self, columns: int) -> int:
        """``columns``, rounded up to whole vectors."""
        return round_up(columns, self.lanes)

    def wide(self, count: int) -> int:
        """Elements of the type worked in that have the workspace of so many of eight bytes."""
        return count * 8 // self.dense.bytes

    def element_address(self, base: Val, index: Val, type_: Type | None = None) -> Val:
        """The address of an element of a vector."""
        return self.b.gep(base, index, type_ or self.type)

    def load_element(self, base: Val, index: Val, type_: Type | None = None) -> Val:
        """An element of a vector, of `type` by default."""
        kind = type_ or self.type
        return self.b.load(kind, self.element_address(base, index, kind), kind.bits // 8)

    def store_element(self, value: Val, base: Val, index: Val) -> None:
        """Store an element of a vector."""
        self.b.store(value, self.element_address(base, index, value.type), value.type.bits // 8)

    def across(self, first: Val, end: Val, body: Callable[[Val], None]) -> None:
        """A loop over whole vectors."""
        with self.b.loop(first, end, self.lanes) as loop:
            body(loop.index)

    def load_chunk(self, base: Val, index: Val) -> Val:
        """Load a vector register."""
        return self.b.load(self.vector, self.element_address(base, index), self.dense.bytes)

    def store_chunk(self, value: Val, base: Val, index: Val) -> None:
        """Store a vector register."""
        self.b.store(value, self.element_address(base, index), self.dense.bytes)

    def spread(self, x: Val) -> Val:
        """A number in every lane."""
        return self.b.splat(x, self.lanes)

    def fill(self, base: Val, count: int) -> None:
        """Write zeros to the first ``count`` elements, a multiple of the lanes."""
        zero = ir.zero(self.vector)
        self.across(_ZERO, i64_const(count), lambda j: self.store_chunk(zero, base, j))

    def down(self, index: Val) -> Val:
        """The first index of the vector register that holds an element."""
        return self.b.and_(index, i64_const(-self.lanes))

    def call(
        self, name: str, params: Sequence[Param], args: Sequence[Val], fill: Callable[..., None]
    ) -> None:
        """Call a function that `fill` emits once per module."""

        def filled(b: Builder, params: list[Val]) -> None:
            caller, self.b = self.b, b
            fill(*params)
            self.b = caller

        self.b.call(self.dense.function(name, params, filled), args)

    # -- scaling -----------------------------------------------------------------------------------

    def scaled(self, a: Rows, rows: int, columns: int) -> Val:
        """Divide a matrix by a power of two, so that its largest element is about 1.

        Also writes zeros after its columns.  If some element is not finite, the matrix becomes
        zeros.  Returns the factor for results: the power of two, or NaN if not all are finite.
        """
        b, end, zero = self.b, i64_const(self.whole(columns)), ir.zero(self.vector)
        inf = self.spread(self.real(math.inf))

        def row(i: Val) -> Val:
            return b.gep(a[0], b.mul(i, a[1]), self.type)

        best = const(vec(ir.i1, self.lanes), 1), zero
        with b.loop(_ZERO, i64_const(rows), carried=best) as outer:
            start = row(outer.index)
            with b.loop(i64_const(columns), end) as after:
                self.store_element(self.real(0.0), start, after.index)
            with b.loop(_ZERO, end, self.lanes, outer.carried) as inner:
                held, largest = inner.carried
                size = b.intrinsic("llvm.fabs", self.vector, (self.load_chunk(start, inner.index),))
                larger = b.select(b.fcmp("ogt", size, largest), size, largest)
                inner.next(b.and_(held, b.fcmp("olt", size, inf)), larger)
            outer.next(*inner.carried)
        good = b.reduce("and", outer.carried[0])
        large = b.reduce("fmax", outer.carried[1])
        bits, mantissa = (ir.i32, 23) if self.type is ir.f32 else (ir.i64, 52)
        power = b.lshr(b.bitcast(large, bits), const(bits, mantissa))
        power = b.smax(power, const(bits, 1))
        scale = b.bitcast(b.shl(power, const(bits, mantissa)), self.type)
        by = self.spread(b.select(good, scale, self.real(1.0)))
        with b.loop(_ZERO, i64_const(rows)) as outer:
            start = row(outer.index)

            def divide(j: Val) -> None:
                x = b.fdiv(self.load_chunk(start, j), by)
                self.store_chunk(b.select(good, x, zero), start, j)

            self.across(_ZERO, end, divide)
        return b.select(good, scale, self.real(math.nan))

    # -- reflections -------------------------------------------------------------------------------

    def reflect(self, x: Val, head: Val, end: int, image: Val, scale: Val) -> None:
        """Replace ``x[head:]`` by the vector of the reflection that maps it to its head; v[0] = 1.

        x: whole vectors, with zeros before the head and after the end.  image, scale: addresses
        for the new head and for the factor of the reflection.
        """
        params: list[Param] = [("x", ir.ptr), ("head", ir.i64), ("end", ir.i64)]
        params += [("image", ir.ptr), ("scale", ir.ptr)]
        args = [x, head, i64_const(end), image, scale]
        self.call("reflect", params, args, self._fill_reflect)

    def _fill_reflect(self, x: Val, head: Val, end: Val, image: Val, scale: Val) -> None:
        b, real = self.b, self.real
        first, zero = self.down(head), ir.zero(self.vector)
        old = self.load_element(x, head)
        self.store_element(real(0.0), x, head)
        with b.loop(first, end, self.lanes, [zero]) as loop:
            size = b.intrinsic("llvm.fabs", self.vector, (self.load_chunk(x, loop.index),))
            more = b.fcmp("ogt", size, loop.carried[0])
            loop.next(b.select(more, size, loop.carried[0]))
        tail = b.reduce("fmax", loop.carried[0])
        size = b.fabs(old)
        large = b.select(b.fcmp("ogt", size, tail), size, tail)
        large = b.select(b.fcmp("ogt", large, real(0.0)), large, real(1.0))
        flat = b.fcmp("oeq", tail, real(0.0))
        by, scaled = self.spread(large), b.fdiv(old, large)
        with b.loop(first, end, self.lanes, [zero]) as loop:
            part = b.fdiv(self.load_chunk(x, loop.index), by)
            self.store_chunk(part, x, loop.index)
            loop.next(b.fma(part, part, loop.carried[0]))
        squares = b.reduce("fadd", loop.carried[0], b.fmul(scaled, scaled), "reassoc")
        norm = self.sqrt(squares)
        signed = b.select(b.fcmp("olt", scaled, real(0.0)), norm, b.fneg(norm))
        other = b.select(flat, scaled, signed)
        over = self.spread(b.select(flat, real(1.0), b.fsub(scaled, other)))
        with b.loop(first, end, self.lanes, [zero]) as loop:
            part = b.fdiv(self.load_chunk(x, loop.index), over)
            self.store_chunk(part, x, loop.index)
            loop.next(b.fma(part, part, loop.carried[0]))
        # The length of the rounded vector, so that this is a reflection however elements round.
        length = b.reduce("fadd", loop.carried[0], real(1.0), "reassoc")
        factor = b.fdiv(real(2.0), length)
        self.store_element(real(1.0), x, head)
        b.store(b.fmul(other, large), image, self.dense.bytes)
        b.store(b.select(flat, real(0.0), factor), scale, self.dense.bytes)

    def pass_over(
        self, a: Rows, rows: tuple[Val, Val], columns: tuple[Val, int], vectors: Sequence[Val]
    ) -> None:
        """``A −= u yᵀ + x vᵀ`` and then ``q += nᵀ A``, on some rows and whole vectors of columns.

        vectors: the addresses of u, y, x, v, n and q.
        """
        params: list[Param] = [("a", ir.ptr), ("lda", ir.i64)]
        params += [(name, ir.i64) for name in ("top", "bottom", "left", "right")]
        params += [(name, ir.ptr) for name in "uyxvnq"]
        args = [*a, *rows, columns[0], i64_const(columns[1]), *vectors]
        self.call("pass_over", params, args, self._fill_pass_over)

    def _fill_pass_over(self, *args: Val) -> None:
        b, (_, _, top, bottom, *_) = self.b, args
        together = 4 if self.dense.rows > 4 else 2
        whole = b.sub(bottom, b.urem(b.sub(bottom, top), i64_const(together)))
        with b.loop(top, whole, together) as loop:
            self._pass(args, loop.index, together)
        with b.loop(whole, bottom) as loop:
            self._pass(args, loop.index, 1)

    def _pass(self, args: Sequence[Val], row: Val, together: int) -> None:
        b, (a, lda, _, _, left, right, u, y, x, v, n, q) = self.b, args
        places = [b.add(row, i64_const(r)) for r in range(together)]
        starts = [b.gep(a, b.mul(place, lda), self.type) for place in places]
        first = [self.spread(b.fneg(self.load_element(u, place))) for place in places]
        second = [self.spread(b.fneg(self.load_element(x, place))) for place in places]
        third = [self.spread(self.load_element(n, place)) for place in places]

        def body(j: Val) -> None:
            along, across, total = (
                self.load_chunk(y, j),
                self.load_chunk(v, j),
                self.load_chunk(q, j),
            )
            for r, start in enumerate(starts):
                value = b.fma(first[r], along, self.load_chunk(start, j))
                value = b.fma(second[r], across, value)
                self.store_chunk(value, start, j)
                total = b.fma(third[r], value, total)
            self.store_chunk(total, q, j)

        self.across(left, right, body)

    def dots(
        self, a: Rows, rows: tuple[Val, Val], columns: tuple[Val, int], v: Val, to: Val
    ) -> None:
        """``to[i] = A[i] v`` on some rows and whole vectors of columns."""
        params: list[Param] = [("a", ir.ptr), ("lda", ir.i64)]
        params += [(name, ir.i64) for name in ("top", "bottom", "left", "right")]
        params += [("v", ir.ptr), ("to", ir.ptr)]
        args = [*a, *rows, columns[0], i64_const(columns[1]), v, to]
        self.call("dots", params, args, self._fill_dots)

    def _fill_dots(
        self, a: Val, lda: Val, top: Val, bottom: Val, left: Val, right: Val, v: Val, to: Val
    ) -> None:
        b, together, zero = self.b, 4, ir.zero(self.vector)

        def some(row: Val, count: int) -> None:
            places = [b.add(row, i64_const(r)) for r in range(count)]
            starts = [b.gep(a, b.mul(place, lda), self.type) for place in places]
            with b.loop(left, right, self.lanes, [zero] * count) as loop:
                factor = self.load_chunk(v, loop.index)
                loop.next(*(
                    b.fma(self.load_chunk(start, loop.index), factor, total)
                    for start, total in zip(starts, loop.carried, strict=True)
                ))  # fmt: skip
            for place, total in zip(places, loop.carried, strict=True):
                self.store_element(b.reduce("fadd", total, self.real(0.0), "reassoc"), to, place)

        whole = b.sub(bottom, b.urem(b.sub(bottom, top), i64_const(together)))
        with b.loop(top, whole, together) as rows:
            some(rows.index, together)
        with b.loop(whole, bottom) as rows:
            some(rows.index, 1)

    def dot(self, x: Val, y: Val, first: Val, end: int) -> Val:
        """The dot product of two vectors."""
        b = self.b
        with b.loop(first, i64_const(end), self.lanes, [ir.zero(self.vector)]) as loop:
            product = b.fma(
                self.load_chunk(x, loop.index), self.load_chunk(y, loop.index), loop.carried[0]
            )
            loop.next(product)
        return b.reduce("fadd", loop.carried[0], self.real(0.0), "reassoc")

    def clear_before(self, x: Val, index: Val) -> None:
        """Write zeros before an element, in the vector register that holds it."""
        with self.b.loop(self.down(index), index) as loop:
            self.store_element(self.real(0.0), x, loop.index)

    # -- rotations ---------------------------------------------------------------------------------

    def rotate(self, q: Rows, width: int, rotations: Val, ranges: Val, count: Val, by: int) -> None:
        """Apply the rotations of some QR steps to the rows of a matrix.

        rotations: sines and tangents of half the angles, ``by`` elements per step.
        ranges: the first and the last row of each step.
        """
        params: list[Param] = [("q", ir.ptr), ("ldq", ir.i64), ("width", ir.i64)]
        params += [("rotations", ir.ptr), ("by", ir.i64), ("ranges", ir.ptr), ("count", ir.i64)]
        args = [*q, i64_const(width), rotations, i64_const(by), ranges, count]
        self.call("rotate", params, args, self._fill_rotate)

    def _fill_rotate(
        self, q: Val, ldq: Val, width: Val, rotations: Val, by: Val, ranges: Val, count: Val
    ) -> None:
        b = self.b

        def chunks(start: Val) -> list[Val]:
            return [
                self.load_chunk(start, i64_const(v * self.lanes)) for v in range(_COLUMN_VECTORS)
            ]

        def put(values: Sequence[Val], start: Val) -> None:
            for v, value in enumerate(values):
                self.store_chunk(value, start, i64_const(v * self.lanes))

        with b.loop(_ZERO, width, self.block) as columns, b.loop(_ZERO, count) as steps:
            entry = b.mul(steps.index, i64_const(2))
            first, last = (
                self.load_element(ranges, b.add(entry, i64_const(k)), ir.i64) for k in (0, 1)
            )
            angles = self.element_address(rotations, b.mul(steps.index, by))
            base = self.element_address(q, columns.index)

            def row(i: Val) -> Val:
                return self.element_address(base, b.mul(i, ldq))

            with b.loop(first, last, carried=chunks(row(first))) as loop:
                offset = b.mul(loop.index, i64_const(2))
                sine, half = (
                    self.spread(self.load_element(angles, b.add(offset, i64_const(k))))
                    for k in (0, 1)
                )
                minus, less = b.fneg(sine), b.fneg(half)
                pairs = list(zip(loop.carried, chunks(row(b.add(loop.index, _ONE))), strict=True))
                put([b.fma(sine, b.fma(less, x, y), x) for x, y in pairs], row(loop.index))
                loop.next(*(b.fma(minus, b.fma(half, y, x), y) for x, y in pairs))
            put(loop.carried, row(last))

    def rotation(self, f: Val, g: Val) -> Rotation:
        """The rotation that maps (f, g) to (r, 0); the identity if both are negligible."""
        b = self.b
        squares = b.fma(f, f, b.fmul(g, g))
        some = b.fcmp("ogt", squares, double(1e-280))
        r = b.intrinsic("llvm.sqrt", ir.f64, (b.select(some, squares, double(1.0)),))
        r = b.intrinsic("llvm.copysign", ir.f64, (r, f))
        sine = b.select(some, b.fdiv(g, r), double(0.0))
        half = b.select(some, b.fdiv(g, b.fadd(r, f)), double(0.0))
        return Rotation(b, sine, half, b.select(some, r, f))

    def diagonals(self, n: int, source: Val, beside: Val, d: Val, e: Val) -> Val:
        """Copy two diagonals to f64; returns an absolute bound for negligible elements."""
        b = self.b
        with b.loop(_ZERO, i64_const(n), carried=[double(0.0)]) as loop:
            i = loop.index
            largest: Val = loop.carried[0]
            for base, to in ((source, d), (beside, e)):
                x = self.load_element(base, i)
                x = x if self.type is ir.f64 else b.fpext(x, ir.f64)
                self.store_element(x, to, i)
                size = b.fabs(x)
                largest = b.select(b.fcmp("ogt", size, largest), size, largest)
            loop.next(largest)
        return b.fmul(loop.carried[0], double(self.roundoff / 16))

    @property
    def roundoff(self) -> float:
        """The unit roundoff of `type`."""
        return 2.0 ** (-24 if self.type is ir.f32 else -53)

    def iterate(
        self,
        n: int,
        diagonals: tuple[Val, Val, Val],
        step: Callable[[Val, Val, Val], None],
        ranges: Val | None,
        apply: Callable[[Val], None],
    ) -> Val:
        """QR steps until the second diagonal is negligible; returns whether that was reached.

        diagonals: d, e and the absolute bound for negligible elements.
        step: emits a step on rows first … last; its third argument is its number in the batch.
        ranges: the rows of the steps of a batch; None if no vectors are wanted.
        apply: emits the rotation of the vectors by a batch.
        """
        b, (d, e, floor) = self.b, diagonals

        def small(k: Val) -> Val:
            beside = b.fadd(
                b.fabs(self.load_element(d, k, ir.f64)),
                b.fabs(self.load_element(d, b.add(k, _ONE), ir.f64)),
            )
            limit = b.fma(beside, double(_NEGLIGIBLE * self.roundoff), floor)
            return b.fcmp("ole", b.fabs(self.load_element(e, k, ir.f64)), limit)

        def more(phis: Sequence[Val]) -> Val:
            return b.and_(b.icmp("sgt", phis[0], _ZERO), b.icmp("sgt", phis[1], _ZERO))

        state = [i64_const(n - 1), i64_const(_MAX_STEPS * n), _ZERO]
        with b.while_loop(state, more) as loop:
            last, left, count = loop.carried
            before = b.sub(last, _ONE)

            def work() -> tuple[Val, Val, Val]:
                def longer(phis: Sequence[Val]) -> Val:
                    (first,) = phis
                    above = b.select(b.icmp("sgt", first, _ZERO), b.sub(first, _ONE), _ZERO)
                    is_start = b.or_(small(above), b.icmp("eq", first, _ZERO))
                    return b.not_(is_start)

                with b.while_loop([before], longer) as search:
                    search.next(b.sub(search.carried[0], _ONE))
                first = search.carried[0]
                step(first, last, count)
                after = b.sub(left, _ONE)
                if ranges is None:
                    return last, after, count
                entry = b.mul(count, i64_const(2))
                self.store_element(first, ranges, entry)
                self.store_element(last, ranges, b.add(entry, _ONE))
                steps = b.add(count, _ONE)
                is_full = b.icmp("eq", steps, i64_const(BATCH))
                with b.if_then(is_full):
                    apply(steps)
                return last, after, b.select(is_full, _ZERO, steps)

            loop.next(*b.cond(small(before), lambda: (before, left, count), work))
        if ranges is not None:
            apply(loop.carried[2])
        return b.icmp("sle", loop.carried[0], _ZERO)

    # -- results -----------------------------------------------------------------------------------

    def ranks(self, n: int, values: Val, to: Val, direction: str) -> None:
        """Compute the rank of each value; equal values keep their order."""
        b = self.b
        with b.loop(_ZERO, i64_const(n)) as outer:
            mine = self.load_element(values, outer.index, ir.f64)
            with b.loop(_ZERO, i64_const(n), carried=[_ZERO]) as inner:
                other = self.load_element(values, inner.index, ir.f64)
                same = b.and_(b.fcmp("oeq", other, mine), b.icmp("slt", inner.index, outer.index))
                ahead = b.or_(b.fcmp(direction, other, mine), same)
                inner.next(b.add(inner.carried[0], b.zext(ahead, ir.i64)))
            self.store_element(inner.carried[0], to, outer.index)

    def values_out(self, n: int, values: Val, ranks: Val, scale: Val, target: Val) -> None:
        """Store values by rank, times a scale."""
        b, kind = self.b, self.memory
        with b.loop(_ZERO, i64_const(n)) as loop:
            x = self.load_element(values, loop.index, ir.f64)
            x = x if self.type is ir.f64 else b.fptrunc(x, ir.f32)
            rank = self.load_element(ranks, loop.index, ir.i64)
            x = Val(narrow(b, b.fmul(x, scale), self.dtype).text, kind)
            b.store(x, b.gep(target, rank, kind), self.dtype.itemsize)

    def vectors_out(
        self, q: Rows, sizes: tuple[int, int], ranks: Val | None, target: Val, by: Strides,
        sign: Callable[[Val], Val],
    ) -> None:  # fmt: skip
        """Store rows of a matrix by rank, times a factor for each.

        sizes: number of rows, and of their elements.  by: strides of the target.
        """
        b = self.b

        def body(i: Val, j: Val) -> None:
            x = narrow(b, b.fmul(self.get(q, i, j), sign(i)), self.dtype)
            x = Val(x.text, self.memory)
            row = i if ranks is None else self.load_element(ranks, i, ir.i64)
            offset = b.add(b.mul(row, i64_const(by[0])), b.mul(j, i64_const(by[1])))
            b.store(x, b.gep(target, offset, self.memory), self.dtype.itemsize)

        if by[1] == 1:
            self.each_element(i64_const(sizes[0]), i64_const(sizes[1]), body)
        else:
            self.each_element(i64_const(sizes[1]), i64_const(sizes[0]), lambda j, i: body(i, j))

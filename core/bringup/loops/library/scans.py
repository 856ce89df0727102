"""Running folds: a loop for each line.

On a machine with vectors, lanes are neighbouring lines.  Where lines are contiguous, a vector is
scanned in log2(lanes) steps, and its last lane is carried on.  A few long lines are cut into
chunks, whose folds come first.

On a machine with blocks of threads each iteration has a chunk of a line, and the chunks are short.
Contiguous lines are scanned by several threads together (`row_scans`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bringup.dtypes import DType
from bringup.graph.index import Bound, Expr
from bringup.integers import ceil_div, ceil_power_of_two, round_up
from bringup.loops.form import Buffer, Func, Role, Scalar
from bringup.loops.library.builder import FuncBuilder, below, wide
from bringup.loops.library.calls import OpCall, StepLoops
from bringup.loops.library.row_scans import row_scan
from bringup.ops.monoids import MONOIDS
from bringup.records import record

#: The least elements of a chunk, and the most chunks of a line.
_LEAST_CHUNK = 1 << 15
_MOST_CHUNKS = 256
#: A longer chain of additions would make the errors of sums too large, if there are several.
_LONGEST_CHAIN = 1 << 13
#: The elements of a thread's chunk, and how many of them it loads at a time.
_THREAD_CHUNKS, _AHEAD = (32, 1024), 4
#: Bits of the widest access of a thread.
_ACCESS_BITS = 128
#: Vectors of neighbouring lines that walk along the dimension together.
_COLUMNS = 4


def cumulative(call: OpCall) -> StepLoops:
    """Scan ``outer * inner`` lines of ``length`` elements."""
    (shape, _), dim = (type_.shape for type_ in call.types), call.attrs["dim"]
    outer, length, inner = math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])
    dtype = wide(call.operands[0].dtype)
    if call.threads and inner == 1:
        return row_scan(call, call.operands[0], call.results[0], (outer, length))
    if call.threads:
        return _column_scan(call, (outer, length, inner))
    lanes = call.target.lanes(max(32, dtype.bits))
    if inner > 1:
        lanes = min(lanes, ceil_power_of_two(inner))
    size = max(_LEAST_CHUNK, round_up(ceil_div(length, _MOST_CHUNKS), lanes))
    is_whole = length < 2 * size or (inner > 1 and lanes > 1)
    if outer * inner >= call.target.threads and length <= lanes * _LONGEST_CHAIN:
        is_whole = True
    if is_whole or call.target.threads == 1:
        size = max(length, 1)
    scan = _Scan(call, dtype, outer, length, inner, lanes, size, max(ceil_div(length, size), 1))
    return scan.loops()


def _column_scan(call: OpCall, sizes: tuple[int, int, int]) -> StepLoops:
    """A chunk of a line, or of some neighbouring lines, for each thread."""
    outer, length, inner = sizes
    dtype, lanes = call.operands[0].dtype, 1
    if outer * inner >= 2 * call.target.threads:
        lanes = math.gcd(inner, _ACCESS_BITS // dtype.bits)
    least, most = _THREAD_CHUNKS
    by_threads = min(ceil_div(call.target.threads * lanes, outer * inner), length // least)
    chunks = max(ceil_div(length, most), by_threads, 1)
    size = round_up(ceil_div(length, chunks), _AHEAD)
    chunks = ceil_div(length, size)
    return _Scan(call, wide(dtype), outer, length, inner, lanes, size, chunks, 1, _AHEAD).loops()


@record(eq=False)
class _Scan:
    """dtype: of the folds.  lanes: of a vector, which are neighbouring lines, or elements of one
    line if ``inner`` is 1.  size, chunks: of a line's chunks.
    columns: vectors of neighbouring lines that walk along the dimension together.
    ahead: elements of a line that are loaded at a time.
    """

    call: OpCall
    dtype: DType
    outer: int
    length: int
    inner: int
    lanes: int
    size: int
    chunks: int
    columns: int = _COLUMNS
    ahead: int = 1

    def loops(self) -> StepLoops:
        """The scan of each chunk, behind the folds of the chunks if there are several."""
        call = self.call
        if self.chunks == 1:
            return StepLoops(call, (self.func(None, call.name),))
        totals = Buffer("totals", self.dtype, self.outer * self.inner * self.chunks)
        first = self.func(totals, f"{call.name}_totals", is_first=True)
        return StepLoops(call, (first, self.func(totals, call.name)), (totals,))

    @property
    def kind(self) -> str:
        """The monoid."""
        name: str = self.call.attrs["kind"]
        return name

    def neutral(self, b: FuncBuilder, *, is_result: bool = False) -> Scalar:
        """The fold of no element, which is neutral if it is no result."""
        monoid = MONOIDS[self.kind]
        value = (monoid.empty if is_result else monoid.neutral)(self.dtype.numpy)
        return b.constant(value, self.dtype)

    def index(self, o: Expr, i: Expr, k: Expr) -> Expr:
        """Of element ``k`` of a line in the order of the scan."""
        k = k * -1 + (self.length - 1) if self.call.attrs["reverse"] else k
        return (o * self.length + k) * self.inner + i

    def func(self, totals: Buffer | None, name: str, *, is_first: bool = False) -> Func:
        """The scan of each chunk after ``totals``, those before it; or these, if ``is_first``."""
        (x,), (y,) = self.call.operands, self.call.results
        params: list[tuple[Role, Buffer]] = [("in", x)]
        params += [] if totals is None else [("out" if is_first else "in", totals)]
        b = FuncBuilder(name, params if is_first else [*params, ("out", y)])
        chunk = _Chunk(self, b, totals, is_first)
        along = self.inner == 1 and self.lanes > 1
        columns = 1 if self.lanes == 1 else min(self.columns, ceil_div(self.inner, self.lanes))
        lines = 1 if along else self.lanes * columns
        blocks, left = ceil_div(self.inner, lines), self.inner % lines
        with b.parallel(o=self.outer, c=self.chunks, i=blocks) as (o, c, block):
            if along:
                chunk.row(o, c)
            elif self.inner >= lines:
                with b.where(below(block, self.inner // lines)):
                    chunk.lines((o, c, block * lines), lines)
            if not along and left:  # a vector that is not whole, apart from those without a mask
                with b.where(Bound(block, blocks - 1, blocks)):
                    chunk.lines((o, c, block * lines), left)
        return b.func()


@record(eq=False)
class _Chunk:
    """Writes the statements for one chunk.  is_first: only its fold is wanted."""

    scan: _Scan
    b: FuncBuilder
    totals: Buffer | None
    is_first: bool

    @contextmanager
    def lanes(self, count: int) -> Iterator[Expr]:
        """The lanes of one vector or of several; no loop if there is one lane."""
        lanes = min(count, self.scan.lanes)
        with ExitStack() as stack:
            vectors, lane = Expr(), Expr()
            if count > lanes:
                vectors = stack.enter_context(self.b.loop("v", count // lanes, "unroll"))
            if lanes > 1:
                lane = stack.enter_context(self.b.loop("l", lanes, "vector"))
            yield vectors * lanes + lane

    def fold(self, target: Buffer, index: Expr, value: Scalar) -> None:
        """Fold a value into an element."""
        self.b.store(target, index, value, fold=self.scan.kind)

    def value(self, place: Expr, *mask: Bound) -> Scalar:
        """An element of the operand; neutral where a bound does not hold."""
        b, scan = self.b, self.scan
        value = b.convert(b.load(scan.call.operands[0], place, *mask), scan.dtype)
        if all(bound.always for bound in mask):
            return value
        return b.op("select", b.inside(*mask), value, scan.neutral(b))

    def put(self, place: Expr, value: Scalar, *mask: Bound) -> None:
        """Write an element of the result where bounds hold."""
        y = self.scan.call.results[0]
        self.b.store(y, place, self.b.convert(value, y.dtype), mask=mask)

    def start(self, place: tuple[Expr, Expr, Expr], count: int) -> Buffer:
        """The running folds before the chunk, ``count`` of them in whole vectors."""
        b, scan, (o, c, i) = self.b, self.scan, place
        exclusive = scan.call.attrs["exclusive"] and not self.is_first
        lanes = self.whole(count)
        total = b.alloc("total", scan.dtype, lanes, "register")
        first = scan.neutral(b, is_result=exclusive)
        with self.lanes(lanes) as lane:
            b.store(total, lane, first)
        if self.totals is not None and not self.is_first:
            with b.loop("n", scan.chunks - 1, until=c) as n, self.lanes(lanes) as lane:
                place_ = (o * scan.chunks + n) * scan.inner + i + lane
                before = b.load(self.totals, place_, below(lane, count))
                self.fold(total, lane, before)
        return total

    def whole(self, count: int) -> int:
        """The lanes of as many vectors as hold so many elements; one is no vector."""
        return round_up(count, self.scan.lanes) if count > 1 else count

    def lines(self, place: tuple[Expr, Expr, Expr], count: int) -> None:
        """Lanes that are ``count`` neighbouring lines."""
        b, scan, (o, c, i) = self.b, self.scan, place
        total, lanes = self.start(place, count), self.whole(count)
        left, ahead = c * -scan.size + scan.length, scan.ahead
        if ahead > 1:
            with b.loop("q", scan.size // ahead, until=left // ahead) as q:
                self.several(total, place, q * ahead, count)
            rest = scan.length % ahead
            with b.where(Bound(c, scan.chunks - 1, scan.chunks)), b.loop("k", rest) as k:
                self.step(total, scan.index(o, i, k + (scan.length - rest)), count)
        else:
            with b.loop("k", scan.size, until=left) as k:
                self.step(total, scan.index(o, i, c * scan.size + k), count)
        if self.totals is not None and self.is_first:
            with self.lanes(lanes) as lane:
                to = (o * scan.chunks + c) * scan.inner + i + lane
                b.store(self.totals, to, b.load(total, lane), mask=[below(lane, count)])

    def several(
        self, total: Buffer, place: tuple[Expr, Expr, Expr], first: Expr, count: int
    ) -> None:
        """Some elements of the chunk, which are loaded before the first of them is used."""
        b, scan, (o, c, i) = self.b, self.scan, place
        x, lanes = scan.call.operands[0], self.whole(count)
        loaded = b.alloc("loaded", x.dtype, scan.ahead * lanes, "register")
        with b.loop("u", scan.ahead, "unroll") as u, self.lanes(lanes) as lane:
            index = scan.index(o, i, c * scan.size + first + u)
            b.store(loaded, u * lanes + lane, b.load(x, index + lane))
        with b.loop("u", scan.ahead, "unroll") as u:
            self.step(total, scan.index(o, i, c * scan.size + first + u), count, loaded, u * lanes)

    def step(
        self,
        total: Buffer,
        index: Expr,
        count: int,
        source: Buffer | None = None,
        at: Expr | None = None,
    ) -> None:
        """Fold an element of each line, those at ``index``, which may have been loaded before."""
        b, scan = self.b, self.scan
        with self.lanes(self.whole(count)) as lane:
            before, exists = b.load(total, lane), below(lane, count)
            if source is None or at is None:
                value = b.load(scan.call.operands[0], index + lane, exists)
            else:
                value = b.load(source, at + lane)
            self.fold(total, lane, b.convert(value, scan.dtype))
            if not self.is_first:
                value = before if scan.call.attrs["exclusive"] else b.load(total, lane)
                self.put(index + lane, value, exists)

    def row(self, o: Expr, c: Expr) -> None:
        """Lanes along one line: vectors, and the rest of the last chunk."""
        b, scan, lanes = self.b, self.scan, self.scan.lanes
        left = c * -scan.size + scan.length
        total = self.start((o, c, Expr()), lanes if self.is_first else 1)
        step = self.gather if self.is_first else self.vector
        if scan.length >= lanes:
            with b.loop("q", scan.size // lanes, until=left // lanes) as q:
                step(total, o, c * scan.size + q * lanes, lanes)
        rest = scan.length % lanes
        if rest:
            with b.where(Bound(c, scan.chunks - 1, scan.chunks)):
                step(total, o, Expr(scan.length - rest), rest)
        if self.totals is not None and self.is_first:
            one = b.variable("one", scan.neutral(b))
            with self.lanes(lanes) as lane:
                self.fold(one, Expr(), b.load(total, lane))
            b.store(self.totals, o * scan.chunks + c, b.load(one))

    def gather(self, total: Buffer, o: Expr, k: Expr, count: int) -> None:
        """Fold the elements from ``k`` on, lane by lane."""
        with self.lanes(count) as lane:
            self.fold(total, lane, self.value(self.scan.index(o, Expr(), k + lane)))

    def vector(self, total: Buffer, o: Expr, k: Expr, count: int) -> None:
        """Scan the elements from ``k`` on: each lane is combined with those at growing distances
        before it, then with the running fold.
        """
        b, scan, lanes = self.b, self.scan, self.scan.lanes
        nothing, start = scan.neutral(b), b.load(total)
        folds = self.after(nothing)
        with self.lanes(lanes) as lane:
            value = self.value(scan.index(o, Expr(), k + lane), below(lane, count))
            b.store(folds, lane + lanes, value)
        distance = 1
        while distance < lanes:
            further = self.after(nothing)
            with self.lanes(lanes) as lane:
                b.store(further, lane + lanes, b.load(folds, lane + (lanes - distance)))
                self.fold(further, lane + lanes, b.load(folds, lane + lanes))
            folds, distance = further, 2 * distance
        running = self.after(start)
        with self.lanes(lanes) as lane:
            b.store(running, lane + lanes, start)
            self.fold(running, lane + lanes, b.load(folds, lane + lanes))
        shift = lanes - 1 if scan.call.attrs["exclusive"] else lanes
        with self.lanes(lanes) as lane:
            value = b.load(running, lane + shift)
            self.put(scan.index(o, Expr(), k + lane), value, below(lane, count))
        self.fold(total, Expr(), b.load(folds, Expr(2 * lanes - 1)))

    def after(self, value: Scalar) -> Buffer:
        """A vector behind another one, all of whose lanes are one value."""
        vectors = self.b.alloc("folds", self.scan.dtype, 2 * self.scan.lanes, "register")
        with self.lanes(self.scan.lanes) as lane:
            self.b.store(vectors, lane, value)
        return vectors

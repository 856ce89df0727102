"""Running folds of contiguous lines by blocks of threads.

A thread has some vectors of neighbouring elements.  Their folds are scanned across the lanes of a
warp, by exchanges between threads at growing distances, then across warps, through memory that the
block shares.  A short line has a few lanes of a warp, and a warp several lines.  A long line is cut
into chunks of whole tiles, whose folds come first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from bringup.dtypes import DType
from bringup.graph.index import Bound, Expr
from bringup.integers import ceil_div, ceil_power_of_two
from bringup.loops.form import Buffer, Func, Role, Scalar
from bringup.loops.library.builder import FuncBuilder, below, wide
from bringup.loops.library.calls import OpCall, StepLoops
from bringup.loops.library.exchange import BlockFold, threads_of
from bringup.records import record

#: Bits of the widest access of a thread, and the most vectors and elements of a thread.
_ACCESS_BITS, _VECTORS, _ITEMS = 128, 4, 16
#: Tiles from which on a line is worth cutting.
_LEAST_TILES = 4


def row_scan(call: OpCall, source: Buffer, target: Buffer, sizes: tuple[int, int]) -> StepLoops:
    """Scan the lines of ``source`` into ``target``.  sizes: how many lines, and their length."""
    scan = _RowScan.of(call, source, target, sizes)
    if scan.chunks == 1:
        func = scan.short() if scan.lanes else scan.scans(None)
        return StepLoops(call, (func,))
    totals = Buffer(f"{target.name}_totals", scan.dtype, scan.count * scan.chunks)
    return StepLoops(call, (scan.folds(totals), scan.scans(totals)), (totals,))


@record(eq=False)
class _RowScan:
    """dtype: of the folds.  count, length: of the lines.
    width: elements of a vector.  vectors: of a thread.  threads: of a block.
    lanes: threads that scan a line; 0 if a block does.
    chunks: of a line.  size: elements of a chunk.
    """

    call: OpCall
    source: Buffer
    target: Buffer
    dtype: DType
    count: int
    length: int
    width: int
    vectors: int
    threads: int
    lanes: int
    chunks: int = 1
    size: int = 0

    @classmethod
    def of(cls, call: OpCall, source: Buffer, target: Buffer, sizes: tuple[int, int]) -> _RowScan:
        """A thread for each vector of short lines, else as many elements of a thread as fit."""
        (count, length), widest = sizes, _ACCESS_BITS // source.dtype.bits
        width = widest
        if count > 1 or call.attrs["reverse"]:
            width = math.gcd(length, widest)
        vectors = min(_VECTORS, max(1, _ITEMS // width))
        needed, threads, lanes = ceil_div(length, width), call.threads, 0
        dtype = wide(source.dtype)
        if needed <= call.warp * vectors:
            lanes = min(call.warp, ceil_power_of_two(needed))
            vectors = ceil_div(needed, lanes)
            threads = min(threads, max(call.warp, ceil_power_of_two(count * lanes)))
            return cls(call, source, target, dtype, count, length, width, vectors, threads, lanes)
        if needed <= threads // 2 * vectors and threads > call.warp:
            threads //= 2
        tile = threads * vectors * width
        tiles, blocks = ceil_div(length, tile), ceil_div(call.target.threads, call.threads)
        each = tiles
        if tiles >= _LEAST_TILES and 2 * count <= blocks:
            each = ceil_div(tiles, ceil_div(blocks, count))
        chunks = ceil_div(tiles, each), each * tile
        return cls(
            call, source, target, dtype, count, length, width, vectors, threads, lanes, *chunks
        )

    # -- scalars -----------------------------------------------------------------------------------

    def folds_by(self, b: FuncBuilder) -> BlockFold:
        """How the threads of a block fold."""
        warps = self.threads // self.call.warp
        return BlockFold(b, self.call.attrs["kind"], self.dtype, warps, self.call.warp)

    def first(self, b: FuncBuilder) -> Scalar:
        """The fold before the first element of a line."""
        return self.folds_by(b).neutral(is_result=self.call.attrs["exclusive"])

    # -- a tile ------------------------------------------------------------------------------------

    def index(self, row: Expr, position: Expr) -> Expr:
        """Where a vector is in memory.  position: of its first element in the order of the scan."""
        if self.call.attrs["reverse"]:
            position = position * -1 + (self.length - self.width)
        return row * self.length + position

    def load(
        self, b: FuncBuilder, row: Expr, position: Expr, exists: tuple[Bound, ...], whole: Bound
    ) -> Buffer:
        """The elements of a thread's vectors, neutral where there are none.

        position: of the first vector.  exists: where there are elements of the thread at all.
        whole: whether all elements of the tile are inside the line.
        """
        values = b.alloc("values", self.dtype, self.vectors * self.width, "register")
        if whole.always or self.length % self.width == 0:
            self.load_vectors(b, values, row, position, exists, is_inside=whole.always)
            return values
        with b.where(whole):
            self.load_vectors(b, values, row, position, exists, is_inside=True)
        beyond = Bound(whole.expr, whole.high, max(whole.expr.last + 1, whole.high))
        with b.where(beyond):
            self.load_vectors(b, values, row, position, exists, is_inside=False)
        return values

    def load_vectors(
        self,
        b: FuncBuilder,
        values: Buffer,
        row: Expr,
        position: Expr,
        exists: tuple[Bound, ...],
        *,
        is_inside: bool,
    ) -> None:
        """is_inside: whether all elements are inside the line."""
        with self.elements(b) as (n, v):
            at = position + n * (self.group * self.width)
            mask = exists if is_inside else (*exists, below(at + v, self.length))
            value = b.convert(b.load(self.source, self.index(row, at) + v, *mask), self.dtype)
            if any(not bound.always for bound in mask):
                value = b.op("select", b.inside(*mask), value, self.folds_by(b).neutral())
            b.store(values, n * self.width + v, value)

    @property
    def group(self) -> int:
        """The lanes that have neighbouring vectors."""
        return self.lanes or self.call.warp

    @contextmanager
    def elements(self, b: FuncBuilder) -> Iterator[tuple[Expr, Expr]]:
        """Loops over the vectors of a thread and their elements."""
        with b.loop("n", self.vectors, "unroll") as n:
            if self.width == 1:
                yield n, Expr()
            else:
                with b.loop("v", self.width, "vector") as v:
                    yield n, v

    def lane_of(self, element: int) -> int:
        """The lane of an element of a vector, by its number in the order of the scan."""
        return self.width - 1 - element if self.call.attrs["reverse"] else element

    def folds_of(self, b: FuncBuilder, values: Buffer) -> list[list[Scalar]]:
        """The running folds within each vector."""
        fold, result = self.folds_by(b), list[list[Scalar]]()
        for n in range(self.vectors):
            places = [Expr(n * self.width + self.lane_of(e)) for e in range(self.width)]
            row = [b.load(values, places[0])]
            for place in places[1:]:
                row.append(fold.fold(row[-1], b.load(values, place)))
            result.append(row)
        return result

    def put(
        self,
        b: FuncBuilder,
        values: Buffer,
        folds: list[list[Scalar]],
        starts: list[Scalar],
    ) -> None:
        """Replace elements by their results.  starts: the fold before each vector."""
        fold, exclusive = self.folds_by(b), self.call.attrs["exclusive"]
        for n, (row, start) in enumerate(zip(folds, starts, strict=True)):
            after = [fold.fold(start, x) for x in (row[:-1] if exclusive else row)]
            results = [start, *after] if exclusive else after
            for e, result in enumerate(results):
                b.store(values, Expr(n * self.width + self.lane_of(e)), result)

    def store(
        self, b: FuncBuilder, values: Buffer, row: Expr, position: Expr, exists: tuple[Bound, ...]
    ) -> None:
        """Write a thread's vectors."""
        with self.elements(b) as (n, v):
            at = position + n * (self.group * self.width)
            value = b.convert(b.load(values, n * self.width + v), self.target.dtype)
            mask = (*exists, below(at + v, self.length))
            b.store(self.target, self.index(row, at) + v, value, mask=mask)

    def starts(
        self, b: FuncBuilder, folds: list[list[Scalar]], lane: Expr
    ) -> tuple[list[Scalar], Scalar]:
        """The fold before each vector within the group of lanes, and that of all of its vectors."""
        fold, starts = self.folds_by(b), list[Scalar]()
        total = fold.neutral()
        for row in folds:
            before, all_lanes = fold.across_lanes(row[-1], lane, self.group)
            starts.append(fold.fold(total, before) if starts else before)
            total = fold.fold(total, all_lanes) if len(starts) > 1 else all_lanes
        return starts, total

    # -- functions ---------------------------------------------------------------------------------

    def short(self) -> Func:
        """A few lanes for each line."""
        rows = self.threads // self.lanes
        b = FuncBuilder(self.call.name, [("in", self.source), ("out", self.target)])
        with (
            b.loop("b", ceil_div(self.count, rows), "block") as block,
            b.loop("g", rows, "thread") as g,
            b.loop("l", self.lanes, "thread") as lane,
        ):
            row = block * rows + g
            exists = (below(row, self.count),)
            whole = below(Expr(self.lanes * self.vectors * self.width), self.length + 1)
            values = self.load(b, row, lane * self.width, exists, whole)
            folds = self.folds_of(b, values)
            starts, _ = self.starts(b, folds, lane)
            fold, first = self.folds_by(b), self.first(b)
            self.put(b, values, folds, [fold.fold(first, start) for start in starts])
            self.store(b, values, row, lane * self.width, exists)
        return b.func()

    @contextmanager
    def blocks(self, b: FuncBuilder) -> Iterator[tuple[Expr, Expr, Expr, Expr, Buffer]]:
        """Loops over lines, chunks, and the warps and lanes of a block, with memory of it."""
        warps = self.threads // self.call.warp
        with (
            b.loop("o", self.count, "block") as o,
            b.loop("c", self.chunks, "block") as c,
        ):
            parts = b.alloc("parts", self.dtype, 2 * warps, "shared")
            with threads_of(b, self.call, self.threads) as (_, (w, lane)):
                yield o, c, w, lane, parts

    @contextmanager
    def tiles(
        self, b: FuncBuilder, c: Expr, w: Expr, lane: Expr
    ) -> Iterator[tuple[Expr, Expr, Bound]]:
        """A loop over the tiles of a chunk: the number, where a thread's first vector is in the
        line, and whether the tile lies inside it.
        """
        tile = self.threads * self.vectors * self.width
        count = (c * -self.size + (self.length + tile - 1)) // tile
        with b.loop("k", self.size // tile, until=count) as k:
            begin = c * self.size + k * tile
            of_warp = w * (self.call.warp * self.vectors * self.width)
            inside = below(begin + tile, self.length + 1)
            yield k, begin + of_warp + lane * self.width, inside

    def folds(self, totals: Buffer) -> Func:
        """The fold of each chunk."""
        b = FuncBuilder(f"{self.call.name}_totals", [("in", self.source), ("out", totals)])
        with self.blocks(b) as (o, c, w, lane, parts):
            fold = self.folds_by(b)
            running = b.alloc("running", self.dtype, self.vectors, "register")
            with b.loop("n", self.vectors, "unroll") as n:
                b.store(running, n, fold.neutral())
            with self.tiles(b, c, w, lane) as (_, position, whole):
                values = self.load(b, o, position, (), whole)
                for number, row in enumerate(self.folds_of(b, values)):
                    b.store(running, Expr(number), row[-1], fold=self.call.attrs["kind"])
            total = b.load(running, Expr(0))
            for number in range(1, self.vectors):
                total = fold.fold(total, b.load(running, Expr(number)))
            _, total = fold.across_block(total, parts, Expr(), (w, lane))
            is_first = [below(w * self.call.warp + lane, 1)]
            b.store(totals, o * self.chunks + c, total, mask=is_first)
        return b.func()

    def scans(self, totals: Buffer | None) -> Func:
        """The scan of each chunk, behind the folds of those before it."""
        params: list[tuple[Role, Buffer]] = [("in", self.source), ("out", self.target)]
        b = FuncBuilder(self.call.name, params if totals is None else [*params, ("in", totals)])
        with self.blocks(b) as (o, c, w, lane, parts):
            fold, carry = self.folds_by(b), b.variable("carry", self.first(b))
            if totals is not None:
                self.skip(b, totals, parts, carry, (o, c, w, lane))
            warps = self.threads // self.call.warp
            with self.tiles(b, c, w, lane) as (k, position, whole):
                values = self.load(b, o, position, (), whole)
                folds = self.folds_of(b, values)
                starts, total = self.starts(b, folds, lane)
                # Two tiles in a row have memory of their own, so that one barrier is enough.
                half = k % 2 * warps
                before, total = fold.across_warps(total, parts, half, (w, lane))
                base = fold.fold(b.load(carry), before)
                self.put(b, values, folds, [fold.fold(base, start) for start in starts])
                b.set(carry, fold.fold(b.load(carry), total))
                self.store(b, values, o, position, ())
        return b.func()

    def skip(
        self,
        b: FuncBuilder,
        totals: Buffer,
        parts: Buffer,
        carry: Buffer,
        place: tuple[Expr, Expr, Expr, Expr],
    ) -> None:
        """Begin with the folds of the chunks before this one."""
        fold, (o, c, w, lane) = self.folds_by(b), place
        skipped = b.variable("skipped", fold.neutral())
        thread = w * self.call.warp + lane
        count = (thread * -1 + c + (self.threads - 1)) // self.threads
        with b.loop("s", ceil_div(self.chunks - 1, self.threads), until=count) as s:
            at = o * self.chunks + s * self.threads + thread
            b.set(skipped, b.load(totals, at), fold=self.call.attrs["kind"])
        warps = self.threads // self.call.warp
        _, total = fold.across_block(b.load(skipped), parts, Expr(warps), (w, lane))
        b.set(carry, fold.fold(b.load(carry), total))


__all__ = ["row_scan"]

"""Attention on blocks of threads: a block takes some queries along all keys once.

Tiles of queries, keys and values are in shared memory; the next keys are on their way while the
exponentials of the last ones are computed, and the next values while the keys after them are
multiplied.  The sums of a block are in registers of its threads, as are the running maxima and sums
of its queries.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import ClassVar

from bringup.dtypes import DType
from bringup.graph.index import Expr
from bringup.integers import ceil_div, ceil_power_of_two
from bringup.loops.form import Buffer, LoopKind, Scalar
from bringup.loops.library.attention_scores import Scores
from bringup.loops.library.builder import FuncBuilder, at_least_one, below, wide
from bringup.loops.library.calls import OpCall
from bringup.records import record

#: Warps of a block.
WARPS = 4
#: Bytes of the widest access, and of those that copies which nobody waits for may have.
CHUNK, _LATER = 16, (4, 8, 16)
#: Copies of a thread that are written out; of more, half as many at a time.
_MOST_COPIES = 8


@record
class Tile:
    """Queries and keys of a tile, and the most inner elements and values that a block takes."""

    queries: int
    keys: int
    depth: int
    values: int


#: From the largest to one that fits any machine.
TILES = (
    Tile(64, 64, 128, 128),
    Tile(64, 32, 128, 128),
    Tile(64, 32, 64, 64),
    Tile(32, 32, 64, 64),
    Tile(32, 32, 32, 32),
)


# -- which thread has what -------------------------------------------------------------------------


@record
class Part:
    """A loop over a side of a tile, from iteration to iteration so many rows or columns."""

    name: str
    size: int
    step: int
    kind: LoopKind = "unroll"


@record(eq=False)
class Sums:
    """A tile in registers of the threads of a block, and the loops over either side."""

    buffer: Buffer
    rows: tuple[Part, ...]
    columns: tuple[Part, ...]

    def at(self, row: Expr, column: Expr) -> Expr:
        """The index of an element."""
        return row * math.prod(part.size for part in self.columns) + column


@record(eq=False)
class SharedTile:
    """A tile in shared memory, whose rows are ``stride`` elements apart."""

    buffer: Buffer
    rows: int
    columns: int
    stride: int

    def at(self, row: Expr, column: Expr) -> Expr:
        """The index of an element."""
        return row * self.stride + column


@contextmanager
def over(
    b: FuncBuilder, kind: LoopKind, *sides: Sequence[Part], by: str = ""
) -> Iterator[list[Expr]]:
    """The loops of a kind over some sides; the row or column of each.

    by: an instruction for the outermost loop.
    """
    with ExitStack() as stack:
        places: list[Expr] = []
        for parts in sides:
            place = Expr()
            for part in parts:
                if part.kind == kind:
                    loop = b.loop(part.name, part.size, kind, by=by)
                    place, by = place + stack.enter_context(loop) * part.step, ""
            places.append(place)
        yield places


@contextmanager
def own(
    b: FuncBuilder, parts: Sequence[Part], last: LoopKind = "unroll"
) -> Iterator[tuple[Expr, Expr]]:
    """Loops over what a thread has on a side: how far behind its first, and which it is.

    last: the kind of the innermost loop.
    """
    mine = [part for part in parts if part.kind == "unroll"]
    with ExitStack() as stack:
        place = number = Expr()
        for part in mine:
            kind = last if part is mine[-1] else part.kind
            i = stack.enter_context(b.loop(part.name, part.size, kind))
            place, number = place + i * part.step, number * part.size + i
        yield place, number


def count_of(parts: Sequence[Part]) -> int:
    """How many rows or columns a thread has."""
    return math.prod(part.size for part in parts if part.kind == "unroll")


# -- a block ---------------------------------------------------------------------------------------


class Block(ABC):
    """Writes the statements of a block.

    where: the member of the batch, the first query and the first value.
    dtype: of sums.  tops, totals: the maximum of a row and the sum of its exponentials, of which
    each of the threads that share it has its own.
    tiles: those of `TILES` that are possible.  few: so few queries take a tile of no more.
    """

    tiles: ClassVar[Sequence[Tile]] = TILES
    few: ClassVar[int] = 0

    def __init__(
        self, call: OpCall, b: FuncBuilder, tile: Tile, where: tuple[Expr, Expr, Expr]
    ) -> None:
        self.call, self.b, self.tile = call, b, tile
        self.m, self.query, self.value = where
        self.dtype = wide(call.types[0].dtype)
        self.precision = call.attrs["precision"]
        self.rule = Scores(call, self.dtype, b, self.m)
        self.threads = min(WARPS * call.target.warp, call.threads)
        self.steps = ceil_div(call.types[0].shape[-1], tile.depth)
        self.queries = self.shared("queries", 0, tile.queries, tile.depth)
        self.keys = self.shared("keys", 1, tile.keys, tile.depth)
        self.values = self.shared("values", 2, tile.keys, tile.values)
        self.sums = self.fragment("sums", 2, tile.values)
        self.tops = b.alloc("tops", self.dtype, tile.queries * self.lanes, "fragment")
        self.totals = b.alloc("totals", self.dtype, tile.queries * self.lanes, "fragment")

    @classmethod
    def chosen(cls, call: OpCall) -> Tile:
        """The largest tile of which two fit on a multiprocessor, as large as a call needs."""
        (queries, depth), values = call.types[0].shape[-2:], call.types[2].shape[-1]
        depth, values = max(16, ceil_power_of_two(depth)), max(32, ceil_power_of_two(values))
        for each in cls.tiles:
            tile = Tile(each.queries, each.keys, min(each.depth, depth), min(each.values, values))
            fits = cls.nbytes(call, tile) <= call.target.shared_bytes // 2
            if fits and not queries <= cls.few < tile.queries:
                break
        return tile

    # -- what differs ------------------------------------------------------------------------------

    @classmethod
    def nbytes(cls, call: OpCall, tile: Tile) -> int:
        """Shared memory of a block, without gaps between rows."""
        elements = (tile.queries + tile.keys) * tile.depth + tile.keys * tile.values
        return elements * call.types[0].dtype.itemsize

    @property
    @abstractmethod
    def lanes(self) -> int:
        """Threads that share a row of scores."""

    @abstractmethod
    def shared(self, name: str, number: int, rows: int, columns: int) -> SharedTile:
        """A tile of an operand."""

    @abstractmethod
    def fragment(self, name: str, number: int, columns: int) -> Sums:
        """Sums of products with keys (1) or values (2)."""

    @abstractmethod
    def rows(self) -> AbstractContextManager[tuple[Expr, Expr]]:
        """Loops over threads and over the rows of each: a row, and the lane of the thread in it."""

    @abstractmethod
    def multiply_keys(self, scores: Sums) -> None:
        """Add the products of tiles of queries and keys to scores."""

    @abstractmethod
    def hand_over(self, scores: Sums) -> None:
        """Put scores where `softmax` reads them."""

    @abstractmethod
    def softmax(self, scores: Sums, key: Expr) -> None:
        """Exponentials of scores of keys from ``key`` on, in which sums are from now on."""

    @abstractmethod
    def multiply_values(self) -> None:
        """Add the products of exponentials and a tile of values to sums."""

    @abstractmethod
    def total_of(self, total: Scalar, lane: Expr) -> Scalar:
        """The sum of all exponentials of a row, from what its threads have."""

    # -- the loop over keys ------------------------------------------------------------------------

    def run(self) -> None:
        """All tiles of keys."""
        b, rule, tile = self.b, self.rule, self.tile
        count = ceil_div(rule.keys, tile.keys)
        until = Expr(count)
        if rule.is_causal:
            until = (rule.seen(self.query + (tile.queries - 1)) + (tile.keys - 1)) // tile.keys
        if self.steps == 1:
            self.copy("q", 0, self.queries, self.query, Expr())
            self.copy("k", 1, self.keys, Expr(), Expr())
        self.commit()
        self.copy("v", 2, self.values, Expr(), self.value)
        self.commit()
        self.start()
        with b.loop("j", count, until=until) as j:
            key, more = j * tile.keys, [at_least_one(j * -1 + n + -1) for n in (until, Expr(count))]
            scores = self.fragment("scores", 1, tile.keys)
            self.zero(scores)
            self.products_of_keys(scores, key)
            self.hand_over(scores)
            b.barrier()
            if self.steps == 1:
                with b.where(*more):
                    self.copy("k", 1, self.keys, key + tile.keys, Expr())
            self.commit()
            self.softmax(scores, key)
            self.wait(1)
            self.multiply_values()
            b.barrier()
            with b.where(*more):
                self.copy("v", 2, self.values, key + tile.keys, self.value)
            self.commit()
        self.wait(0)
        self.finish()

    def start(self) -> None:
        """What rows are that have seen no key."""
        b = self.b
        with self.rows() as (row, lane):
            b.store(self.tops, row * self.lanes + lane, b.constant(-math.inf, self.dtype))
            b.store(self.totals, row * self.lanes + lane, b.constant(0, self.dtype))
        self.zero(self.sums)

    def zero(self, sums: Sums) -> None:
        """Sums of nothing, which keep the sign of what is added first."""
        nothing = self.b.constant(-0.0, self.dtype)
        with self.elements(sums) as (row, column):
            self.b.store(sums.buffer, sums.at(row, column), nothing)

    @contextmanager
    def elements(self, sums: Sums) -> Iterator[tuple[Expr, Expr]]:
        """Loops over the elements of sums."""
        sides = sums.rows, sums.columns
        with over(self.b, "thread", *sides) as (y, x), over(self.b, "unroll", *sides) as (r, c):
            yield y + r, x + c

    def products_of_keys(self, scores: Sums, key: Expr) -> None:
        """The products with a tile of keys, part after part where they are too deep."""
        if self.steps == 1:
            self.wait(1)
            self.multiply_keys(scores)
            return
        with self.b.loop("d", self.steps) as d:
            self.b.barrier()
            depth = d * self.tile.depth
            self.copy("q", 0, self.queries, self.query, depth)
            self.copy("k", 1, self.keys, key, depth)
            self.commit()
            self.wait(0)
            self.multiply_keys(scores)

    # -- copies ------------------------------------------------------------------------------------

    @property
    def copies_later(self) -> bool:
        """Whether the machine has copies that nobody waits for."""
        return "later" in self.call.target.instructions

    def commit(self) -> None:
        """What was sent becomes a group."""
        if self.copies_later:
            self.b.commit()

    def wait(self, pending: int) -> None:
        """All have what was sent, but for the last ``pending`` groups."""
        if self.copies_later:
            self.b.wait(pending)
        self.b.barrier()

    def copy(self, name: str, number: int, tile: SharedTile, row: Expr, column: Expr) -> None:
        """A tile of an operand from this row and column on; 0 where it has no element."""
        b, x = self.b, self.call.operands[number]
        rows, columns = self.call.types[number].shape[-2:]
        lanes = min(widest(columns, x.dtype), tile.columns)
        is_later = self.copies_later and lanes * x.dtype.itemsize in _LATER
        with self.spread(name, tile.rows, tile.columns, lanes, _MOST_COPIES) as (r, c):
            mask = [below(row + r, rows)] if rows % tile.rows else []
            mask += [below(column + c, columns)] if columns % tile.columns else []
            value = b.load(x, (self.m * rows + row + r) * columns + column + c, *mask)
            b.store(tile.buffer, tile.at(r, c), value, later=is_later)

    @contextmanager
    def spread(
        self, name: str, rows: int, columns: int, lanes: int, most: int = 1
    ) -> Iterator[tuple[Expr, Expr]]:
        """Loops over a tile, of which neighbouring threads take neighbouring vectors.

        most: vectors of a thread that are written out; of more, half as many at a time.
        """
        b, vectors = self.b, columns // lanes
        fast = min(vectors, self.threads)
        lines = min(rows, self.threads // fast)
        count = rows // lines
        several = count if count <= most else max(most // 2, 1)
        with (
            b.loop(f"{name}.y", lines, "thread") as y,
            b.loop(f"{name}.x", fast, "thread") as x,
            b.loop(f"{name}.n", vectors // fast) as n,
            b.loop(f"{name}.o", count // several) as o,
            b.loop(f"{name}.u", several, "unroll") as u,
            b.loop(f"{name}.v", lanes, "vector") as v,
        ):
            yield (o * several + u) * lines + y, (n * fast + x) * lanes + v

    # -- folds of threads --------------------------------------------------------------------------

    def fold(
        self, value: Scalar, lane: Expr, combine: Callable[[Scalar, Scalar], Scalar]
    ) -> Scalar:
        """The values of the threads of a row combined."""
        distance = 1
        while distance < self.lanes:
            value = combine(value, self.b.shuffle(value, lane, distance))
            distance *= 2
        return value

    def top(self, row: Expr, lane: Expr, last: Buffer) -> tuple[Scalar, Scalar]:
        """What scores of a row are less from now on, and the factor of what was before.

        last: the maximum of this thread.
        """
        b, place = self.b, row * self.lanes + lane
        before = b.load(self.tops, place)
        top = self.fold(b.load(last), lane, self.rule.larger)
        b.store(self.tops, place, top)
        base = self.rule.base(top)
        return base, b.op("exp", b.op("sub", before, base))

    def score(self, product: Scalar, row: Expr, key: Expr) -> Scalar:
        """The score of a row and a key."""
        rule, query = self.rule, self.query + row
        seen = [rule.sees(query, key)] if rule.is_causal else []
        if rule.keys % self.tile.keys and not rule.is_causal:
            seen = [below(key, rule.keys)]
        return rule.score(product, rule.bias(query, key) if rule.has_bias else None, *seen)

    # -- results -----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Divide sums by those of exponentials, and write them."""
        b, tile, y = self.b, self.tile, self.call.results[0]
        gap = 2 * CHUNK // self.dtype.itemsize
        totals = b.alloc("row.totals", self.dtype, tile.queries, "shared")
        rows = self.tile_of("rows", self.dtype, tile.queries, tile.values, gap)
        with self.rows() as (row, lane):
            total = b.load(self.totals, row * self.lanes + lane)
            total = self.total_of(total, lane)
            b.store(totals, row, total, mask=[below(lane, 1)])
        with self.elements(self.sums) as (row, column):
            value = b.load(self.sums.buffer, self.sums.at(row, column))
            b.store(rows.buffer, rows.at(row, column), value)
        b.barrier()
        queries, values = self.rule.queries, self.call.types[2].shape[-1]
        lanes = min(widest(values, y.dtype), tile.values)
        with self.spread("y", tile.queries, tile.values, lanes) as (r, c):
            value = b.op("div", b.load(rows.buffer, rows.at(r, c)), b.load(totals, r))
            query, column = self.query + r, self.value + c
            place = (self.m * queries + query) * values + column
            mask = [below(query, queries)] if queries % tile.queries else []
            mask += [below(column, values)] if values % tile.values else []
            b.store(y, place, b.convert(value, y.dtype), mask=mask)

    def tile_of(
        self, name: str, dtype: DType, rows: int, columns: int, gap: int, swizzle: int = 0
    ) -> SharedTile:
        """Shared memory of rows with a gap between them."""
        stride = columns + gap
        buffer = self.b.alloc(name, dtype, rows * stride, "shared", swizzle)
        return SharedTile(buffer, rows, columns, stride)


def widest(size: int, dtype: DType) -> int:
    """Elements of the widest accesses of which rows of so many are whole."""
    lanes = CHUNK // dtype.itemsize
    while size % lanes:
        lanes //= 2
    return lanes


__all__ = [
    "CHUNK",
    "TILES",
    "WARPS",
    "Block",
    "Part",
    "SharedTile",
    "Sums",
    "Tile",
    "count_of",
    "over",
    "own",
]

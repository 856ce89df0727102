"""Attention on blocks of threads: a block takes some queries along all keys once.

Tiles of queries, keys and values are in shared memory; the next keys are on their way while the
exponentials of the last ones are computed, and the next values while the keys after them are
multiplied.  The sums of a block are in registers of its threads, as are the running maxima and sums
of its queries.

Where warps multiply tiles, scores and exponentials stay in registers, too: those of a row are with
four neighbouring lanes, which is where the instruction takes them as its left factor.  Such factors
have few bits, while the op asks for those of f32; so an exponential is the sum of two or three
factors, each the rounded remainder of those before it.  Elsewhere scores and exponentials pass
through shared memory, where neighbouring threads share a row.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

from bringup.dtypes import DType, f32, u32
from bringup.graph.index import Axis, Bound, Expr
from bringup.integers import ceil_div, ceil_power_of_two
from bringup.loops.form import Buffer, Func, LoopKind, Scalar
from bringup.loops.library.attention_scores import Scores
from bringup.loops.library.builder import FuncBuilder, at_least_one, below, wide
from bringup.loops.library.calls import OpCall
from bringup.records import record

#: Warps of a block.
_WARPS = 4
#: Bytes of the widest access, and of those that copies which nobody waits for may have.
_CHUNK, _LATER = 16, (4, 8, 16)
#: Rows, columns, and bytes of inner elements of an instruction that multiplies tiles; lanes of a
#: warp down and across the sums that it makes.
_ROWS, _COLUMNS, _BYTES = 16, 8, 32
_DOWN, _ACROSS = 8, 4
#: By the dtype of factors: how many of them are the sum of an exponential, exact to 22 to 24 bits,
#: and by what that is multiplied, so that the remainder of one rounding is not too small for the
#: next: an exponential is 1 at most.
_TERMS = {"f16": (2, 16384.0), "bf16": (3, 1.0), "f32": (2, 1.0)}
#: Bits of f32 that a factor does not have.
_CUT = 13
#: Copies of a thread that are written out; of more, half as many at a time.
_MOST_COPIES = 8
#: Exponentials that are computed together, so that what few of them need is tested once; more would
#: take more registers.
_TOGETHER = 8
#: Where each thread multiplies by itself: threads of a block across, inner elements whose products
#: are written out, and elements of a row of scores.
_THREADS_ACROSS, _INNER, _SCORES = 8, 8, 4


@record
class _Tile:
    """Queries and keys of a tile, and the most inner elements and values that a block takes."""

    queries: int
    keys: int
    depth: int
    values: int


#: From the largest to one that fits any machine.
_TILES = (
    _Tile(64, 64, 128, 128),
    _Tile(64, 32, 128, 128),
    _Tile(64, 32, 64, 64),
    _Tile(32, 32, 64, 64),
    _Tile(32, 32, 32, 32),
)


def attention_of_blocks(call: OpCall, b: FuncBuilder) -> Func:
    """The function of a call with keys.  b: has its parameters."""
    block = _Matrices if _takes_matrices(call) else _Alone
    tile = _choose(call, block)
    queries = ceil_div(call.types[0].shape[-2], tile.queries)
    values = ceil_div(call.types[2].shape[-1], tile.values)
    with (
        b.loop("m", math.prod(call.types[0].shape[:-2]), "block") as m,
        b.loop("g", queries, "block") as u,
        b.loop("z", values, "block") as c,
    ):
        if call.attrs["causal"]:
            u = u * -1 + (queries - 1)  # The last queries see most keys: they start first.
        block(call, b, tile, (m, u * tile.queries, c * tile.values)).run()
    return b.func()


def _takes_matrices(call: OpCall) -> bool:
    """Whether warps multiply tiles: of f16, bf16, and of f32 where few bits are enough."""
    dtype, is_few = call.types[0].dtype, call.attrs["precision"] == "tf32"
    can = "matrices" in call.target.instructions
    return can and (dtype.bits == 16 or (dtype is f32 and is_few))


def _choose(call: OpCall, block: type[_Block]) -> _Tile:
    """The largest tile of which two fit on a multiprocessor, as large as the call needs."""
    (queries, depth), values = call.types[0].shape[-2:], call.types[2].shape[-1]
    depth, values = max(16, ceil_power_of_two(depth)), max(32, ceil_power_of_two(values))
    for each in block.tiles:
        tile = _Tile(each.queries, each.keys, min(each.depth, depth), min(each.values, values))
        is_small = block.nbytes(call, tile) <= call.target.shared_bytes // 2
        if is_small and not (block is _Alone and queries <= 32 < tile.queries):
            break
    return tile


# -- which thread has what -------------------------------------------------------------------------


@record
class _Part:
    """A loop over a side of a tile, from iteration to iteration so many rows or columns."""

    name: str
    size: int
    step: int
    kind: LoopKind = "unroll"


@record(eq=False)
class _Sums:
    """A tile in registers of the threads of a block, and the loops over either side."""

    buffer: Buffer
    rows: tuple[_Part, ...]
    columns: tuple[_Part, ...]

    def at(self, row: Expr, column: Expr) -> Expr:
        """The index of an element."""
        return row * math.prod(part.size for part in self.columns) + column


@record(eq=False)
class _Shared:
    """A tile in shared memory, whose rows are ``stride`` elements apart."""

    buffer: Buffer
    rows: int
    columns: int
    stride: int

    def at(self, row: Expr, column: Expr) -> Expr:
        """The index of an element."""
        return row * self.stride + column


@contextmanager
def _over(
    b: FuncBuilder, kind: LoopKind, *sides: Sequence[_Part], by: str = ""
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
def _own(
    b: FuncBuilder, parts: Sequence[_Part], last: LoopKind = "unroll"
) -> Iterator[tuple[Expr, Expr]]:
    """Loops over what a thread has on a side: how far behind its first, and which it is.

    last: the kind of the innermost loop.
    """
    own = [part for part in parts if part.kind == "unroll"]
    with ExitStack() as stack:
        place = number = Expr()
        for part in own:
            kind = last if part is own[-1] else part.kind
            i = stack.enter_context(b.loop(part.name, part.size, kind))
            place, number = place + i * part.step, number * part.size + i
        yield place, number


def _count(parts: Sequence[_Part]) -> int:
    """How many rows or columns a thread has."""
    return math.prod(part.size for part in parts if part.kind == "unroll")


# -- a block ---------------------------------------------------------------------------------------


class _Block(ABC):
    """Writes the statements of a block.

    where: the member of the batch, the first query and the first value.
    dtype: of sums.  tops, totals: the maximum of a row and the sum of its exponentials, of which
    each of the threads that share it has its own.
    """

    tiles: Sequence[_Tile] = _TILES

    def __init__(
        self, call: OpCall, b: FuncBuilder, tile: _Tile, where: tuple[Expr, Expr, Expr]
    ) -> None:
        self.call, self.b, self.tile = call, b, tile
        self.m, self.query, self.value = where
        self.dtype = wide(call.types[0].dtype)
        self.precision = call.attrs["precision"]
        self.rule = Scores(call, self.dtype, b, self.m)
        self.threads = min(_WARPS * call.target.warp, call.threads)
        self.steps = ceil_div(call.types[0].shape[-1], tile.depth)
        self.queries = self.shared("queries", 0, tile.queries, tile.depth)
        self.keys = self.shared("keys", 1, tile.keys, tile.depth)
        self.values = self.shared("values", 2, tile.keys, tile.values)
        self.sums = self.fragment("sums", 2, tile.values)
        self.tops = b.alloc("tops", self.dtype, tile.queries * self.lanes, "fragment")
        self.totals = b.alloc("totals", self.dtype, tile.queries * self.lanes, "fragment")

    # -- what differs ------------------------------------------------------------------------------

    @classmethod
    def nbytes(cls, call: OpCall, tile: _Tile) -> int:
        """Shared memory of a block, without gaps between rows."""
        elements = (tile.queries + tile.keys) * tile.depth + tile.keys * tile.values
        return elements * call.types[0].dtype.itemsize

    @property
    @abstractmethod
    def lanes(self) -> int:
        """Threads that share a row of scores."""

    @abstractmethod
    def shared(self, name: str, number: int, rows: int, columns: int) -> _Shared:
        """A tile of an operand."""

    @abstractmethod
    def fragment(self, name: str, number: int, columns: int) -> _Sums:
        """Sums of products with keys (1) or values (2)."""

    @abstractmethod
    def rows(self) -> AbstractContextManager[tuple[Expr, Expr]]:
        """Loops over threads and over the rows of each: a row, and the lane of the thread in it."""

    @abstractmethod
    def multiply_keys(self, scores: _Sums) -> None:
        """Add the products of tiles of queries and keys to scores."""

    @abstractmethod
    def hand_over(self, scores: _Sums) -> None:
        """Put scores where `softmax` reads them."""

    @abstractmethod
    def softmax(self, scores: _Sums, key: Expr) -> None:
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

    def zero(self, sums: _Sums) -> None:
        """Sums of nothing, which keep the sign of what is added first."""
        with self.elements(sums) as (row, column):
            self.b.store(sums.buffer, sums.at(row, column), self.b.constant(-0.0, self.dtype))

    @contextmanager
    def elements(self, sums: _Sums) -> Iterator[tuple[Expr, Expr]]:
        """Loops over the elements of sums."""
        sides = sums.rows, sums.columns
        with _over(self.b, "thread", *sides) as (y, x), _over(self.b, "unroll", *sides) as (r, c):
            yield y + r, x + c

    def products_of_keys(self, scores: _Sums, key: Expr) -> None:
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
    def is_later(self) -> bool:
        """Whether the machine has copies that nobody waits for."""
        return "later" in self.call.target.instructions

    def commit(self) -> None:
        """What was sent becomes a group."""
        if self.is_later:
            self.b.commit()

    def wait(self, pending: int) -> None:
        """All have what was sent, but for the last ``pending`` groups."""
        if self.is_later:
            self.b.wait(pending)
        self.b.barrier()

    def copy(self, name: str, number: int, tile: _Shared, row: Expr, column: Expr) -> None:
        """A tile of an operand from this row and column on; 0 where it has no element."""
        b, x = self.b, self.call.operands[number]
        rows, columns = self.call.types[number].shape[-2:]
        lanes = min(_lanes(columns, x.dtype), tile.columns)
        is_later = self.is_later and lanes * x.dtype.itemsize in _LATER
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

    def fold(self, value: Scalar, lane: Expr, combine: Callable[[Scalar, Scalar], Scalar]) -> Scalar:
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

    def exponentials(self, powers: Buffer) -> None:
        """All at once, so that what few of them need is tested once."""
        b = self.b
        with b.loop("v", powers.size, "vector") as v:
            b.store(powers, v, b.op("exp", b.load(powers, v)))

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
        gap = 2 * _CHUNK // self.dtype.itemsize
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
        lanes = min(_lanes(values, y.dtype), tile.values)
        with self.spread("y", tile.queries, tile.values, lanes) as (r, c):
            value = b.op("div", b.load(rows.buffer, rows.at(r, c)), b.load(totals, r))
            query, column = self.query + r, self.value + c
            place = (self.m * queries + query) * values + column
            mask = [below(query, queries)] if queries % tile.queries else []
            mask += [below(column, values)] if values % tile.values else []
            b.store(y, place, b.convert(value, y.dtype), mask=mask)

    def tile_of(
        self, name: str, dtype: DType, rows: int, columns: int, gap: int, swizzle: int = 0
    ) -> _Shared:
        """Shared memory of rows with a gap between them."""
        stride = columns + gap
        buffer = self.b.alloc(name, dtype, rows * stride, "shared", swizzle)
        return _Shared(buffer, rows, columns, stride)


def _lanes(size: int, dtype: DType) -> int:
    """Elements of the widest accesses of which rows of so many are whole."""
    lanes = _CHUNK // dtype.itemsize
    while size % lanes:
        lanes //= 2
    return lanes


# -- warps that multiply tiles ---------------------------------------------------------------------


class _Matrices(_Block):
    """A warp has sixteen queries.

    weights: the factors whose sums are exponentials.
    """

    tiles = tuple(tile for tile in _TILES if tile.queries == _WARPS * _ROWS)

    def __init__(
        self, call: OpCall, b: FuncBuilder, tile: _Tile, where: tuple[Expr, Expr, Expr]
    ) -> None:
        super().__init__(call, b, tile, where)
        self.narrow = call.types[0].dtype
        self.terms, self.times = _TERMS[self.narrow.name]
        self.inner = _BYTES // self.narrow.itemsize
        self.by = f"{_ROWS}x{_COLUMNS}x{self.inner}"
        size = self.terms * tile.queries * tile.keys
        self.weights = b.alloc("weights", self.narrow, size, "fragment")
        self.factors = b.alloc("factors", self.dtype, tile.queries * self.lanes, "fragment")

    @classmethod
    def nbytes(cls, call: OpCall, tile: _Tile) -> int:
        """With gaps, where values are read word by word."""
        gap = _CHUNK if call.types[2].dtype.itemsize == 4 else 0
        return super().nbytes(call, tile) + tile.keys * gap

    @property
    def lanes(self) -> int:
        """Those across the sums of an instruction."""
        return _ACROSS

    def shared(self, name: str, number: int, rows: int, columns: int) -> _Shared:
        """Chunks change places, but where values are read word by word."""
        dtype = self.call.types[number].dtype
        if number == 2 and dtype.itemsize == 4:
            return self.tile_of(name, dtype, rows, columns, _CHUNK // dtype.itemsize)
        return self.tile_of(name, dtype, rows, columns, 0, columns)

    def fragment(self, name: str, number: int, columns: int) -> _Sums:
        """As the instruction has sums."""
        buffer = self.b.alloc(name, self.dtype, self.tile.queries * columns, "fragment")
        return _Sums(
            buffer,
            (
                _Part("w", _WARPS, _ROWS, "thread"),
                _Part("y", _DOWN, 1, "thread"),
                _Part("l", _ROWS // _DOWN, _DOWN),
            ),
            (
                _Part("x", _ACROSS, _COLUMNS // _ACROSS, "thread"),
                _Part("q", columns // _COLUMNS, _COLUMNS),
                _Part("c", _COLUMNS // _ACROSS, 1),
            ),
        )

    @contextmanager
    def row_threads(self) -> Iterator[tuple[Expr, Expr]]:
        """Loops over threads: the first row of each, and its lane."""
        with (
            _over(self.b, "thread", self.sums.rows) as (row,),
            self.b.loop("x", _ACROSS, "thread") as lane,
        ):
            yield row, lane

    def own_rows(self) -> AbstractContextManager[tuple[Expr, Expr]]:
        """A loop over the rows of a thread."""
        return _own(self.b, self.sums.rows)

    @contextmanager
    def rows(self) -> Iterator[tuple[Expr, Expr]]:
        """Two of each thread."""
        with self.row_threads() as (row, lane), self.own_rows() as (r, _):
            yield row + r, lane

    def multiply_keys(self, scores: _Sums) -> None:
        """All in shared memory."""
        b = self.b
        with (
            _over(b, "thread", scores.rows[:1]) as (warp,),
            b.loop("s", self.tile.depth // self.inner, "unroll") as s,
            self.product(scores) as (_, row, column),
            b.loop("e", self.inner) as e,
        ):
            inner = s * self.inner + e
            x = b.load(self.queries.buffer, self.queries.at(warp + row, inner))
            y = b.load(self.keys.buffer, self.keys.at(column, inner))
            self.add(scores, warp + row, column, x, y)

    def multiply_values(self) -> None:
        """Exponentials as they are in registers: each is with the lane that had the score."""
        b, sums, tile = self.b, self.sums, self.tile
        self.rescale()
        step, halves = _COLUMNS // _ACROSS, self.inner // _COLUMNS
        with (
            _over(b, "thread", sums.rows[:1]) as (warp,),
            b.loop("s", tile.keys // self.inner, "unroll") as s,
            self.product(sums, self.terms) as (t, row, column),
            ExitStack() as stack,
        ):
            sizes = (("h", halves),) if halves > 1 else ()
            loops = [b.loop(*of) for of in (*sizes, ("e", _ACROSS), ("p", step))]
            *half, lane, own = map(stack.enter_context, loops)
            h = half[0] if half else Expr()
            place = ((t * tile.queries + warp + row) * self.lanes + lane) * (tile.keys // _ACROSS)
            x = b.load(self.weights, place + (s * halves + h) * step + own)
            key = s * self.inner + h * _COLUMNS + lane * step + own
            y = b.load(self.values.buffer, self.values.at(key, column))
            self.add(sums, warp + row, column, x, y)

    def rescale(self) -> None:
        """Multiply sums by the factors of their rows."""
        b, sums = self.b, self.sums
        with self.rows() as (row, lane):
            factor = b.load(self.factors, row * self.lanes + lane)
            with _own(b, sums.columns) as (c, _):
                place = sums.at(row, lane * (_COLUMNS // _ACROSS) + c)
                b.store(sums.buffer, place, b.op("mul", b.load(sums.buffer, place), factor))

    @contextmanager
    def product(self, sums: _Sums, terms: int = 1) -> Iterator[tuple[Expr, Expr, Expr]]:
        """Loops over the products of a warp, for each term, and over the sums of each."""
        b, rows, columns = self.b, sums.rows[1:], sums.columns
        with (
            _over(b, "unroll", columns[1:2]) as (block,),
            b.loop("t", terms, "unroll") as t,
            _over(b, "thread", rows, columns, by=self.by) as (y, x),
            _over(b, "unroll", rows, columns[2:]) as (r, c),
        ):
            yield t, y + r, block + x + c

    def add(self, sums: _Sums, row: Expr, column: Expr, x: Scalar, y: Scalar) -> None:
        """Add a product."""
        b = self.b
        x, y = b.convert(x, self.dtype), b.convert(y, self.dtype)
        place = sums.at(row, column)
        b.store(sums.buffer, place, x, fold="add", factor=y, precision=self.precision)

    def hand_over(self, scores: _Sums) -> None:
        """They stay where they are."""

    def softmax(self, scores: _Sums, key: Expr) -> None:
        """In registers."""
        b, parts = self.b, scores.columns[1:]
        count = _count(parts)
        with self.row_threads() as (first, lane):
            powers = b.alloc("powers", self.dtype, _ROWS // _DOWN * count, "register")
            with self.own_rows() as (r, l):
                row, column = first + r, lane * (_COLUMNS // _ACROSS)
                last = b.variable("last", b.load(self.tops, row * self.lanes + lane))
                with _own(b, parts) as (c, n):
                    product = b.load(scores.buffer, scores.at(row, column + c))
                    b.store(powers, l * count + n, self.score(product, row, key + column + c))
                with b.loop("n", count, "unroll") as n:
                    b.set(last, b.load(powers, l * count + n), fold="max")
                base, factor = self.top(row, lane, last)
                b.store(self.factors, row * self.lanes + lane, factor)
                with self.together(count) as n:
                    power = b.op("exp", b.op("sub", b.load(powers, l * count + n), base))
                    b.store(powers, l * count + n, power)
            with self.own_rows() as (r, l):
                place = (first + r) * self.lanes + lane
                total = b.op("mul", b.load(self.totals, place), b.load(self.factors, place))
                total_ = b.variable("total", total)
                with self.together(count) as n:
                    power = self.keep(b.load(powers, l * count + n), place * count + n)
                    b.store(powers, l * count + n, power)
                with b.loop("n", count, "unroll") as n:
                    b.set(total_, b.op("add", b.load(total_), b.load(powers, l * count + n)))
                b.store(self.totals, place, b.load(total_))

    @contextmanager
    def together(self, count: int) -> Iterator[Expr]:
        """Loops over the scores of a row that a thread has, some at once."""
        b, lanes = self.b, min(count, _TOGETHER)
        with b.loop("o", count // lanes, "unroll") as o, b.loop("v", lanes, "vector") as v:
            yield o * lanes + v

    def keep(self, power: Scalar, place: Expr) -> Scalar:
        """Keep the factors whose sum is an exponential, which is returned.

        The instruction itself rounds the last one of f32.
        """
        b = self.b
        if self.times != 1:
            power = b.op("mul", power, b.constant(self.times, self.dtype))
        left = power
        for term in range(self.terms):
            is_last = term == self.terms - 1
            part = left if is_last and self.narrow is f32 else self.rounded(left)
            b.store(self.weights, place + term * (self.weights.size // self.terms), part)
            if not is_last:
                left = b.op("sub", left, b.convert(part, self.dtype))
        return power

    def rounded(self, value: Scalar) -> Scalar:
        """The nearest number that is a factor."""
        b = self.b
        if self.narrow is not f32:
            return b.convert(value, self.narrow)
        bits = b.op("bitcast", value, dtype=u32)
        bits = b.op("add", bits, b.constant(1 << _CUT - 1, u32))
        bits = b.op("and", bits, b.constant((1 << 32) - (1 << _CUT), u32))
        return b.op("bitcast", bits, dtype=f32)

    def total_of(self, total: Scalar, lane: Expr) -> Scalar:
        """Each thread has the sum of its own."""
        return self.fold(total, lane, lambda x, y: self.b.op("add", x, y))


# -- threads that multiply by themselves -----------------------------------------------------------


class _Alone(_Block):
    """Each thread multiplies rows by columns in registers, which it reads from shared memory.

    weights: scores, then exponentials.
    """

    def __init__(
        self, call: OpCall, b: FuncBuilder, tile: _Tile, where: tuple[Expr, Expr, Expr]
    ) -> None:
        super().__init__(call, b, tile, where)
        gap = 2 * _CHUNK // self.dtype.itemsize
        self.weights = self.tile_of("weights", self.dtype, tile.queries, tile.keys, gap)
        self.factors = b.alloc("factors", self.dtype, tile.queries, "shared")

    @classmethod
    def nbytes(cls, call: OpCall, tile: _Tile) -> int:
        """With gaps, scores and factors."""
        row = (tile.keys + 1) * wide(call.types[0].dtype).itemsize + 3 * _CHUNK
        return super().nbytes(call, tile) + tile.queries * row + 2 * tile.keys * _CHUNK

    @property
    def lanes(self) -> int:
        """What is left of the threads, if each row has one."""
        return max(self.threads // self.tile.queries, 1)

    def shared(self, name: str, number: int, rows: int, columns: int) -> _Shared:
        """Rows with a gap, so that vectors of several rows are in other banks."""
        dtype = self.call.types[number].dtype
        return self.tile_of(name, dtype, rows, columns, _CHUNK // dtype.itemsize)

    def fragment(self, name: str, number: int, columns: int) -> _Sums:
        """A thread has neighbours where they are neighbours in memory, else every few columns."""
        across = min(_THREADS_ACROSS, self.threads)
        down, count = self.threads // across, columns // across
        quad = 1
        if number == 2:
            quad = min(_CHUNK // self.call.types[number].dtype.itemsize, count)
        buffer = self.b.alloc(name, self.dtype, self.tile.queries * columns, "fragment")
        return _Sums(
            buffer,
            (_Part("y", down, 1, "thread"), _Part("r", self.tile.queries // down, down)),
            (
                _Part("x", across, quad, "thread"),
                _Part("q", count // quad, across * quad),
                _Part("l", quad, 1),
            ),
        )

    @contextmanager
    def rows(self) -> Iterator[tuple[Expr, Expr]]:
        """Neighbouring threads share a row."""
        b, lines = self.b, min(self.threads, self.tile.queries)
        with (
            b.loop("i", lines, "thread") as i,
            b.loop("n", self.lanes, "thread") as lane,
            b.loop("r", self.tile.queries // lines, "unroll") as r,
        ):
            yield r * lines + i, lane

    def multiply_keys(self, scores: _Sums) -> None:
        """Of rows of both."""
        lanes = _CHUNK // self.call.types[0].dtype.itemsize // 2
        with self.step(scores, self.tile.depth, lanes) as (inner, y, x):
            xs = self.vectors("xs", self.queries, scores.rows, y, inner, lanes)
            ys = self.vectors("ys", self.keys, scores.columns, x, inner, lanes)
            self.multiply(scores, (y, x), xs, lambda v, n: ys(n, v), lanes)

    def multiply_values(self) -> None:
        """Of rows of exponentials and columns of values."""
        b, sums, values = self.b, self.sums, self.values
        with self.elements(sums) as (row, column):
            place = sums.at(row, column)
            value = b.op("mul", b.load(sums.buffer, place), b.load(self.factors, row))
            b.store(sums.buffer, place, value)
        lanes = _CHUNK // self.dtype.itemsize
        with self.step(sums, self.tile.keys, lanes) as (inner, y, x):
            xs = self.vectors("xs", self.weights, sums.rows, y, inner, lanes)
            count = _count(sums.columns)
            ys = b.alloc("ys", self.dtype, lanes * count, "register")
            with b.loop("k.v", lanes, "unroll") as v, _own(b, sums.columns, "vector") as (c, n):
                value = b.load(values.buffer, values.at(inner + v, x + c))
                b.store(ys, v * count + n, b.convert(value, self.dtype))
            self.multiply(sums, (y, x), xs, lambda v, n: b.load(ys, v * count + n), lanes)

    @contextmanager
    def step(self, sums: _Sums, depth: int, lanes: int) -> Iterator[tuple[Expr, Expr, Expr]]:
        """Loops over inner elements, so many at a time: the first, and that row and column."""
        b = self.b
        with (
            _over(b, "thread", sums.rows, sums.columns) as (y, x),
            b.loop("k.o", depth // _INNER) as o,
            b.loop("k.j", _INNER // lanes, "unroll") as j,
        ):
            yield o * _INNER + j * lanes, y, x

    def vectors(
        self,
        name: str,
        tile: _Shared,
        parts: Sequence[_Part],
        first: Expr,
        inner: Expr,
        lanes: int,
    ) -> Callable[[Expr, Expr], Scalar]:
        """Neighbouring elements of the rows of a thread: gives one of a row."""
        b = self.b
        buffer = b.alloc(name, self.dtype, _count(parts) * lanes, "register")
        with _own(b, parts) as (place, n), b.loop("k.v", lanes, "vector") as v:
            value = b.load(tile.buffer, tile.at(first + place, inner + v))
            b.store(buffer, n * lanes + v, b.convert(value, self.dtype))
        return lambda n, v: b.load(buffer, n * lanes + v)

    def multiply(
        self,
        sums: _Sums,
        first: tuple[Expr, Expr],
        xs: Callable[[Expr, Expr], Scalar],
        ys: Callable[[Expr, Expr], Scalar],
        lanes: int,
    ) -> None:
        """Add all products of elements in registers."""
        b, (y, x) = self.b, first
        with (
            b.loop("k.v", lanes, "unroll") as v,
            _own(b, sums.rows) as (r, n),
            _own(b, sums.columns) as (c, m),
        ):
            one, other = xs(n, v), ys(v, m)
            b.store(sums.buffer, sums.at(y + r, x + c), one, fold="add", factor=other)

    def hand_over(self, scores: _Sums) -> None:
        """To the threads that share a row."""
        with self.elements(scores) as (row, column):
            value = self.b.load(scores.buffer, scores.at(row, column))
            self.b.store(self.weights.buffer, self.weights.at(row, column), value)

    def softmax(self, scores: _Sums, key: Expr) -> None:
        """In shared memory."""
        b, weights, count = self.b, self.weights, self.tile.keys // self.lanes // _SCORES
        with self.rows() as (row, lane):
            last = b.variable("last", b.load(self.tops, row * self.lanes + lane))
            with b.loop("s", count) as s, b.loop("e", _SCORES, "unroll") as e:
                column = self.column(s, e, lane)
                place = weights.at(row, column)
                score = self.score(b.load(weights.buffer, place), row, key + column)
                b.store(weights.buffer, place, score)
                b.set(last, self.rule.larger(score, b.load(last)))
            base, factor = self.top(row, lane, last)
            b.store(self.factors, row, factor, mask=[below(lane, 1)])
            total = b.variable("total", b.constant(0, self.dtype))
            with b.loop("s", count) as s:
                powers = b.alloc("powers", self.dtype, _SCORES, "register")
                with b.loop("e", _SCORES, "unroll") as e:
                    score = b.load(weights.buffer, weights.at(row, self.column(s, e, lane)))
                    b.store(powers, e, b.op("sub", score, base))
                self.exponentials(powers)
                with b.loop("e", _SCORES, "unroll") as e:
                    power = b.load(powers, e)
                    b.store(weights.buffer, weights.at(row, self.column(s, e, lane)), power)
                    b.set(total, b.op("add", b.load(total), power))
            sum_ = self.fold(b.load(total), lane, lambda x, y: b.op("add", x, y))
            b.set(total, sum_)
            before = b.load(self.totals, row * self.lanes + lane)
            b.set(total, before, fold="add", factor=factor)
            b.store(self.totals, row * self.lanes + lane, b.load(total))

    def column(self, s: Expr, e: Expr, lane: Expr) -> Expr:
        """One of those of a row that a thread has, which takes several at once."""
        return (s * _SCORES + e) * self.lanes + lane

    def total_of(self, total: Scalar, lane: Expr) -> Scalar:
        """All threads of a row have it."""
        return total


__all__ = ["attention_of_blocks"]

"""Attention with the online softmax of flash attention.

Each query visits the keys once, block by block, and carries its running maximum and the running sum
of exponentials.  Scores of a block are in scratch memory alone.  Lanes are neighbouring queries, so
that nothing is folded across lanes: queries, scores and sums are stored with them innermost.  If
there are fewer queries than that pays for, lanes are along depth, keys and values.  On blocks of
threads tiles are in shared memory: see `attention_blocks`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bringup.dtypes import DType, f32
from bringup.graph.index import Expr
from bringup.integers import ceil_div, round_up
from bringup.loops.form import Buffer, Role, Scalar
from bringup.loops.library.attention_matrices import Matrices
from bringup.loops.library.attention_scores import Scores
from bringup.loops.library.attention_threads import Threads
from bringup.loops.library.builder import FuncBuilder, at_least_one, below, wide
from bringup.loops.library.calls import OpCall, StepLoops
from bringup.records import record

#: About how many keys a block has: with depths of 64, their keys and values take two thirds of a
#: nearest cache of 48 KiB.
_BLOCK = 60
#: Keys whose scores are computed together.  Register tiles have as many rows, or half of that.
_TILES = range(12, 7, -1)
#: Vectors of queries that visit a key together, and as how many queries without vectors.
_COLUMNS, _QUERIES = 2, 16
#: Biases are copied so many keys at a time: a cache line of f32.
_SQUARE = 16
#: So few queries have no lanes of their own: a vector would be mostly empty.
_FEW = 6
#: About how many keys they visit at a time.  Nothing of them is used twice, but folds across lanes
#: are paid for once a block.
_FEW_BLOCK = 128
#: The most panels of queries that share a block of keys while it is in the nearest cache.
_PANELS = 4


def attention(call: OpCall) -> StepLoops:
    """A unit is some panels of queries of one member of the batch.  Without keys, results are 0."""
    y = call.results[0]
    params: list[tuple[Role, Buffer]] = [("in", x) for x in call.operands]
    b = FuncBuilder(call.name, [*params, ("out", y)])
    if not call.types[1].shape[-2]:
        with b.loop("i", y.size, "parallel") as i:
            b.store(y, i, b.constant(0, y.dtype))
        return StepLoops(call, (b.func(),))
    if call.threads:
        return _on_blocks(call, b)
    form = _Form.of(call)
    with b.parallel(m=form.batch, u=ceil_div(form.panels, form.together)) as (m, u):
        _Unit(form, b, m, u * form.together).run()
    return StepLoops(call, (b.func(),))


def _on_blocks(call: OpCall, b: FuncBuilder) -> StepLoops:
    """A block of threads has some queries and values of one member of the batch."""
    dtype, is_few = call.types[0].dtype, call.attrs["precision"] == "tf32"
    takes = dtype.bits == 16 or (dtype is f32 and is_few)
    block = Matrices if takes and "matrices" in call.target.instructions else Threads
    tile = block.chosen(call)
    queries = ceil_div(call.types[0].shape[-2], tile.queries)
    values = ceil_div(call.types[2].shape[-1], tile.values)
    with (
        b.loop("m", math.prod(call.types[0].shape[:-2]), "block") as m,
        b.loop("g", queries, "block") as g,
        b.loop("z", values, "block") as z,
    ):
        # Where later keys are hidden, the last queries see most keys: they start first.
        number = g * -1 + (queries - 1) if call.attrs["causal"] else g
        block(call, b, tile, (m, number * tile.queries, z * tile.values)).run()
    return StepLoops(call, (b.func(),))


@record(eq=False)
class _Form:
    """How one call runs.

    dtype: of scores and sums.  lanes: of a vector.
    width: queries of a panel.  together: panels of a unit.
    tile: keys of a register tile.  block: keys of a block.
    """

    call: OpCall
    dtype: DType
    lanes: int
    batch: int
    queries: int
    keys: int
    depth: int
    values: int
    width: int
    together: int
    tile: int
    block: int

    @classmethod
    def of(cls, call: OpCall) -> _Form:
        query, key, value = call.types[:3]
        dtype = wide(query.dtype)
        batch, queries, keys = math.prod(query.shape[:-2]), query.shape[-2], key.shape[-2]
        lanes = call.target.lanes(dtype.bits)
        if queries <= _FEW:
            width, tile, most, whole = max(queries, 1), 1, _FEW_BLOCK, lanes
        else:
            width = lanes * min(_COLUMNS, ceil_div(queries, lanes)) if lanes > 1 else _QUERIES
            tile = next((tile for tile in _TILES if keys % tile == 0), _TILES[0])
            most, whole = _BLOCK, tile
        block = min(_blocks(keys, most, whole), key=lambda n: ceil_div(keys, n) * n)
        panels = ceil_div(queries, width)
        together = max(1, min(_PANELS, panels, batch * panels // call.target.threads))
        depth, values = query.shape[-1], value.shape[-1]
        return cls(
            call, dtype, lanes, batch, queries, keys, depth, values, width, together, tile, block
        )

    @property
    def is_few(self) -> bool:
        """Whether lanes are not along queries."""
        return self.queries <= _FEW

    @property
    def panels(self) -> int:
        """Panels of all queries of a member of the batch; the last may be smaller."""
        return ceil_div(self.queries, self.width)

    @property
    def blocks(self) -> int:
        """Blocks of keys."""
        return ceil_div(self.keys, self.block)


@record(eq=False)
class _Rows:
    """Rows of ``width`` elements of a buffer, from element ``start`` on."""

    buffer: Buffer
    start: Expr
    width: int

    def load(self, b: FuncBuilder, row: Expr, column: Expr) -> Scalar:
        """An element."""
        return b.load(self.buffer, self.start + row * self.width + column)


def _blocks(keys: int, most: int, whole: int) -> range:
    """Sizes of blocks of keys: about ``most`` if there are so many, and multiples of ``whole``."""
    if keys <= most:
        return range(round_up(keys, whole), keys + whole, whole)
    return range(round_up(most * 2 // 3, whole), most * 4 // 3 + whole, whole)


class _Unit:
    """Writes the statements of one unit: panels from number ``first`` on, of member ``m``."""

    def __init__(self, form: _Form, b: FuncBuilder, m: Expr, first: Expr) -> None:
        self.form, self.b, self.m, self.first = form, b, m, first
        self.count = first * -1 + form.panels
        self.rule = Scores(form.call, form.dtype, b, m)
        panels, width, dtype = form.together, form.width, form.dtype
        size = panels * self.padded(form.depth) * width
        self.queries = b.alloc("queries", dtype, size) if size else None
        self.sums = b.alloc("sums", dtype, panels * self.padded(form.values) * width)
        self.tops = b.alloc("tops", dtype, panels * width)
        self.totals = b.alloc("totals", dtype, panels * width)
        self.scores = b.alloc("scores", dtype, form.block * width)
        self.bases = b.alloc("bases", dtype, width)
        self.factors = b.alloc("factors", dtype, width)

    def run(self) -> None:
        """All blocks of keys for all panels."""
        form, b = self.form, self.b
        with self.panels() as (p, first):
            self.start(p, first)
        until = None
        if self.rule.is_causal:
            seen = self.rule.seen(self.first * form.width + (form.together * form.width - 1))
            until = (seen + (form.block - 1)) // form.block
        with b.loop("j", form.blocks, until=until) as j:
            # The last panel may have queries that do not exist, and would see keys that do not.
            exact = not (self.rule.is_causal and form.queries % form.width)
            keys = self.rows("keys", 1, j, is_whole=exact and form.keys % form.tile == 0)
            values = self.rows("values", 2, j, is_whole=exact)
            with self.panels() as (p, first):
                left = j * -form.block + form.keys
                if self.rule.is_causal:
                    left = self.rule.seen(first + (form.width - 1)) + j * -form.block
                with b.where(at_least_one(left)):
                    self.scores_of(p, keys, left)
                    self.softmax(p, first, j * form.block, left)
                    self.add_values(p, values, left)
        with self.panels() as (p, first):
            self.finish(p, first)

    @contextmanager
    def panels(self) -> Iterator[tuple[Expr, Expr]]:
        """A loop over the panels of the unit: the number of each, and its first query."""
        with self.b.loop("p", self.form.together, until=self.count) as p:
            yield p, (self.first + p) * self.form.width

    def start(self, p: Expr, first: Expr) -> None:
        """The queries of a panel with lanes innermost, and running folds of no key."""
        form, b, x = self.form, self.b, self.form.call.operands[0]
        if self.queries is not None:
            depth = self.padded(form.depth)
            with b.loop("query.i", form.width) as i, b.loop("query.d", depth) as d:
                place = (self.m * form.queries + first + i) * form.depth + d
                mask = below(first + i, form.queries), below(d, form.depth)
                value = b.convert(b.load(x, place, *mask), form.dtype)
                b.store(self.queries, self.at(depth, p, d, i), value)
        lowest, zero = b.constant(-math.inf, form.dtype), b.constant(0, form.dtype)
        with b.loop("start.i", form.width) as i:
            b.store(self.tops, p * form.width + i, lowest)
            b.store(self.totals, p * form.width + i, zero)
        size = self.sums.size // form.together
        with b.loop("sums.i", size) as i:
            b.store(self.sums, p * size + i, zero)

    def padded(self, rows: int) -> int:
        """Rows of queries or of sums in whole vectors, so that squares of them are whole."""
        return round_up(rows, self.form.lanes)

    def at(self, rows: int, p: Expr, row: Expr, i: Expr) -> Expr:
        """The index of an element of query ``i`` of panel ``p``, which has ``rows``."""
        if self.form.is_few:
            return i * rows + row
        return (p * rows + row) * self.form.width + i

    def rows(self, name: str, number: int, j: Expr, *, is_whole: bool) -> _Rows:
        """Block ``j`` of keys or of values where they are, or as a copy.

        That has zeros after the last key, where the block is not whole, and elements of the dtype
        of sums.
        """
        form, b, x = self.form, self.b, self.form.call.operands[number]
        width, start = form.call.types[number].shape[-1], self.m * form.keys + j * form.block
        if is_whole and x.dtype is form.dtype:
            return _Rows(x, start * width, width)
        copy = b.alloc(name, form.dtype, form.block * width)
        with b.loop(f"{name}.n", form.block) as n, b.loop(f"{name}.d", width) as d:
            place = (start + n) * width + d
            value = b.load(x, place, below(j * form.block + n, form.keys))
            b.store(copy, n * width + d, b.convert(value, form.dtype))
        return _Rows(copy, Expr(), width)

    def scores_of(self, p: Expr, keys: _Rows, left: Expr) -> None:
        """Products of the queries of a panel with ``left`` keys, and perhaps some after these."""
        form, b, size = self.form, self.b, self.form.tile
        precision = form.call.attrs["precision"]
        tiles = (left + (size - 1)) // size
        with (
            b.loop("s", form.block // size, until=tiles) as s,
            b.loop("s.n", size) as n,
            b.loop("s.i", form.width) as i,
        ):
            key = s * size + n
            score = b.variable("score", b.constant(-0.0, form.dtype))
            if self.queries is not None:
                with b.loop("s.d", form.depth) as d:
                    factor = b.load(self.queries, self.at(self.padded(form.depth), p, d, i))
                    one = keys.load(b, key, d)
                    b.set(score, one, fold="add", factor=factor, precision=precision)
            b.store(self.scores, self.at(form.block, Expr(), key, i), b.load(score))

    def add_values(self, p: Expr, values: _Rows, left: Expr) -> None:
        """Add ``left`` values, times their exponentials, to the sums of a panel."""
        form, b = self.form, self.b
        precision = form.call.attrs["precision"]
        with b.loop("o.w", form.values) as w, b.loop("o.i", form.width) as i:
            place = self.at(self.padded(form.values), p, w, i)
            before = b.op("mul", b.load(self.sums, place), b.load(self.factors, i))
            value = b.variable("value", before)
            with b.loop("o.n", form.block, until=left) as n:
                weight = b.load(self.scores, self.at(form.block, Expr(), n, i))
                one = values.load(b, n, w)
                b.set(value, one, fold="add", factor=weight, precision=precision)
            b.store(self.sums, place, b.load(value))

    def softmax(self, p: Expr, first: Expr, key: Expr, left: Expr) -> None:
        """Exponentials in place of scores, the running folds, and the factors of earlier sums."""
        form, b, rule = self.form, self.b, self.rule
        zero = b.constant(0, form.dtype)
        biases = self.biases(first, key)
        with b.loop("top.i", form.width) as i:
            before = b.load(self.tops, p * form.width + i)
            top = b.variable("top", before)
            with b.loop("top.n", form.block, until=left) as n:
                place = self.at(form.block, Expr(), n, i)
                seen = [rule.sees(first + i, key + n)] if rule.is_causal else []
                score = rule.score(b.load(self.scores, place), biases(n, i), *seen)
                b.store(self.scores, place, score)
                self.raise_to(top, score)
            after = b.load(top)
            b.store(self.tops, p * form.width + i, after)
            base = rule.base(after)
            b.store(self.bases, i, base)
            b.store(self.factors, i, b.op("sub", before, base))
        with b.loop("factors.i", form.width) as i:
            b.store(self.factors, i, b.op("exp", b.load(self.factors, i)))
        with b.loop("total.i", form.width) as i:
            total, base = b.variable("total", zero), b.load(self.bases, i)
            with b.loop("total.n", form.block, until=left) as n:
                place = self.at(form.block, Expr(), n, i)
                power = b.op("exp", b.op("sub", b.load(self.scores, place), base))
                b.store(self.scores, place, power)
                b.set(total, power, fold="add")
            earlier = b.load(self.totals, p * form.width + i)
            earlier = b.op("mul", earlier, b.load(self.factors, i))
            b.store(self.totals, p * form.width + i, b.op("add", earlier, b.load(total)))

    def raise_to(self, top: Buffer, score: Scalar) -> None:
        """Change a maximum that NaN need not change, because its exponential is NaN."""
        b = self.b
        if self.form.is_few:
            b.set(top, score, fold="max")
        else:  # fewer instructions, which lanes of one query could not share
            b.set(top, self.rule.larger(score, b.load(top)))

    def biases(self, first: Expr, key: Expr) -> Callable[[Expr, Expr], Scalar | None]:
        """What gives the bias of a key of the block and a query of the panel, if there is any."""
        form, b = self.form, self.b
        if not self.rule.has_bias:
            return lambda n, i: None
        shape = form.call.types[3].shape
        if form.is_few or 1 in shape[-2:]:
            return lambda n, i: self.rule.bias(first + i, key + n)
        # Each query's are contiguous, but lanes are queries: squares are transposed.
        size = min(form.lanes, _SQUARE)
        vectors = ceil_div(form.block, size)
        copy = b.alloc("biases", form.dtype, vectors * size * form.width)
        with (
            b.loop("bias.i", form.width) as i,
            b.loop("bias.o", vectors) as o,
            b.loop("bias.n", size) as k,
        ):
            n = o * size + k
            b.store(copy, n * form.width + i, self.rule.bias(first + i, key + n))
        return lambda n, i: b.load(copy, n * form.width + i)

    def finish(self, p: Expr, first: Expr) -> None:
        """Divide by the sums of exponentials and write the results."""
        form, b, y = self.form, self.b, self.form.call.results[0]
        values = self.padded(form.values)

        def result(w: Expr, i: Expr) -> Scalar:
            value = b.load(self.sums, self.at(values, p, w, i))
            return b.op("div", value, b.load(self.totals, p * form.width + i))

        rows = None
        if not form.is_few:
            rows = b.alloc("rows", form.dtype, form.width * values)
            with b.loop("row.w", values) as w, b.loop("row.i", form.width) as i:
                b.store(rows, i * values + w, result(w, i))
        until = first * -1 + form.queries
        with b.loop("y.i", form.width, until=until) as i, b.loop("y.w", form.values) as w:
            value = result(w, i) if rows is None else b.load(rows, i * values + w)
            place = (self.m * form.queries + first + i) * form.values + w
            b.store(y, place, b.convert(value, y.dtype))

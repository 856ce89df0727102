"""Attention as native code: queries go along the keys once, with the greatest score and the sum of
powers so far; the scores of a block of keys live in cache alone.

The keys are first turned, block by block, so that one vector holds neighbouring keys; for no more
queries than a tile has that does not pay, and vectors go along the depth.  A tile of queries times
a few vectors of keys, and of queries times a few vectors of values, stays in registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from bringup.llvm import text as ir
from bringup.llvm.loops.schedule import LoopTarget, NativeKernel
from bringup.llvm.math import MATH
from bringup.llvm.scalar import memory_type, narrow, widen
from bringup.llvm.steps.base import NativeStep, Phase
from bringup.llvm.steps.params import AttentionSizes
from bringup.llvm.text import Builder, Module, Type, Val, const, const_vector, i64_const, vec
from bringup.llvm.text.masked import masked_gather, masked_load, masked_store, prefetch
from bringup.program.program import OpStep
from bringup.records import record

#: Vectors of keys in a block.
_BLOCK = 4
#: Bytes of a cache line.
_LINE = 64
#: Tiles of queries that go along the keys together.
_TILES = 8

_Fold = Callable[[Builder, Val, Val], Val]


@record
class _Form:
    """How one step runs.

    lanes: of a vector.  rows, columns: queries, and vectors of keys or values, in a register tile.
    """

    sizes: AttentionSizes
    lanes: int
    rows: int
    columns: int

    @property
    def few(self) -> bool:
        """One tile has all queries: keys are read once, as they lie."""
        return self.sizes.queries <= self.rows

    @property
    def block(self) -> int:
        """Keys of a block."""
        return self.lanes * _BLOCK

    @property
    def blocks(self) -> int:
        return -(-self.sizes.keys // self.block)

    @property
    def tiles(self) -> int:
        """Tiles that cover the queries of one member of the batch; the last may overlap."""
        return -(-self.sizes.queries // self.rows)

    @property
    def chunks(self) -> int:
        """Units of one member of the batch."""
        return -(-self.tiles // _TILES)

    @property
    def spread(self) -> int:
        """Values of a query, filled up to whole vectors."""
        return -(-self.sizes.values // self.lanes) * self.lanes

    @property
    def number(self) -> Type:
        """The LLVM type of scores and sums."""
        return memory_type(self.sizes.wide)

    @property
    def vector(self) -> Type:
        return vec(self.number, self.lanes)

    def load(self, b: Builder, base: Val, index: Val, mask: Val | None = None) -> Val:
        """A vector of operand elements, in the wide dtype; 0 where the mask does not hold."""
        element = memory_type(self.sizes.dtype)
        address, to = b.gep(base, index, element), vec(element, self.lanes)
        if mask is None:
            return widen(b, b.load(to, address, self.sizes.dtype.itemsize))
        zero = ir.zero(to)
        return widen(b, masked_load(b, to, address, mask, zero, self.sizes.dtype.itemsize))

    def spread_one(self, b: Builder, base: Val, index: Val) -> Val:
        """One operand element in every lane."""
        element = memory_type(self.sizes.dtype)
        one = widen(b, b.load(element, b.gep(base, index, element), self.sizes.dtype.itemsize))
        return b.splat(one, self.lanes)

    def get(self, b: Builder, base: Val, index: Val, lanes: int) -> Val:
        """Scores or sums in scratch."""
        address = b.gep(base, index, self.number)
        return b.load(vec(self.number, lanes), address, self.sizes.wide.itemsize)

    def put(self, b: Builder, value: Val, base: Val, index: Val) -> None:
        """Write scores or sums to scratch."""
        b.store(value, b.gep(base, index, self.number), self.sizes.wide.itemsize)


def emit_attention(module: Module, step: OpStep, name: str, target: LoopTarget) -> NativeStep:
    """Emit a step of the row ``attention``."""
    form = _form_of(step, target)
    if not form.sizes.keys:
        return NativeStep((_emit_zeros(module, step, name, form),))
    if form.few:
        return NativeStep((_Main(module, step, name, form).run(),))
    sizes = form.sizes
    shared = sizes.batch * form.blocks * sizes.depth * form.block * sizes.wide.itemsize
    turned = _emit_turned(module, step, f"{name}.keys", form)
    return NativeStep((turned, _Main(module, step, name, form).run()), shared)


def _form_of(step: OpStep, target: LoopTarget) -> _Form:
    sizes = AttentionSizes.of(step)
    columns = 4 if target.registers >= 32 else 2
    rows = min(sizes.queries, max(1, target.registers * 3 // 4 // columns))
    return _Form(sizes, target.vector_bits // sizes.wide.bits, rows, columns)


def _emit_zeros(module: Module, step: OpStep, name: str, form: _Form) -> NativeKernel:
    """Without keys every sum is empty."""
    phase = Phase(module, step, name)
    sizes, element = form.sizes, memory_type(form.sizes.dtype)
    with phase.units() as unit:
        address = phase.b.gep(phase.results[0], unit, element)
        phase.b.store(ir.zero(element), address, sizes.dtype.itemsize)
    return phase.done(sizes.batch * sizes.queries * sizes.values, 1)


def _emit_turned(module: Module, step: OpStep, name: str, form: _Form) -> NativeKernel:
    """Keys as (batch, block, depth, key of the block) in the wide dtype; 0 beyond the last."""
    phase = Phase(module, step, name)
    b, element = phase.b, memory_type(form.sizes.dtype)
    with phase.units() as unit:
        member, number = _parts(b, unit, form.blocks)
        first = b.mul(number, i64_const(form.block))
        key = b.add(b.mul(member, i64_const(form.sizes.keys)), first)
        start = b.mul(key, i64_const(form.sizes.depth))
        target = b.mul(unit, i64_const(form.sizes.depth * form.block))
        left = b.sub(i64_const(form.sizes.keys), first)
        bounds = _below(b, left, form.block, form.lanes)
        steps = const_vector(ir.i64, [n * form.sizes.depth for n in range(form.lanes)])
        with b.loop(i64_const(0), i64_const(form.sizes.depth)) as loop:
            for skipped, mask in zip(range(0, form.block, form.lanes), bounds, strict=True):
                here = b.add(b.add(start, loop.index), i64_const(skipped * form.sizes.depth))
                places = b.add(b.splat(here, form.lanes), steps)
                addresses = b.gep(phase.operands[1], places, element, flags="")
                to = vec(element, form.lanes)
                found = masked_gather(
                    b, to, addresses, mask, ir.zero(to), form.sizes.dtype.itemsize
                )
                row = b.add(target, b.mul(loop.index, i64_const(form.block)))
                form.put(b, widen(b, found), phase.shared, b.add(row, i64_const(skipped)))
    return phase.done(form.sizes.batch * form.blocks, form.sizes.depth * form.block)


class _Main:
    """The phase that goes along the keys."""

    def __init__(self, module: Module, step: OpStep, name: str, form: _Form) -> None:
        self.form = form
        self.phase = Phase(module, step, name)
        self.b = self.phase.b
        size, slots = form.sizes.wide.itemsize, _TILES * form.rows
        self.sums, self.scores, self.tops, self.totals, self.factors = self.phase.scratch(
            slots * form.spread * size,
            form.rows * form.block * size,
            slots * size,
            slots * size,
            -(-form.rows // form.lanes) * form.lanes * size,
        )

    def run(self) -> NativeKernel:
        form, b = self.form, self.b
        with self.phase.units() as unit:
            self.member, chunk = _parts(b, unit, form.chunks)
            self.first = b.mul(chunk, i64_const(_TILES))
            left = b.sub(i64_const(form.tiles), self.first)
            self.count = b.smin(left, i64_const(_TILES))
            self.bias = self._bias_start()
            self._start()
            with b.loop(i64_const(0), self._blocks_seen()) as blocks:
                self._block(blocks.index)
            self._finish()
        work = _TILES * form.rows * form.sizes.keys * (form.sizes.depth + form.sizes.values)
        return self.phase.done(form.sizes.batch * form.chunks, work)

    def _bias_start(self) -> Val:
        """Where the bias of the member begins; dimensions of size 1 do not move it."""
        b, form = self.b, self.form
        place, rest = i64_const(0), self.member
        if form.sizes.bias is None:
            return place
        step = form.sizes.bias[-1] * form.sizes.bias[-2]
        for n, size in zip(form.sizes.lead[::-1], form.sizes.bias[-3::-1], strict=True):
            rest, at = _parts(b, rest, n)
            if size != 1:
                place = b.add(place, b.mul(at, i64_const(step)))
            step *= size
        return place

    def _start(self) -> None:
        b, form = self.b, self.form
        lowest = const(form.number, -math.inf)
        with b.loop(i64_const(0), b.mul(self.count, i64_const(form.rows))) as slots:
            form.put(b, lowest, self.tops, slots.index)
            form.put(b, ir.zero(form.number), self.totals, slots.index)
            row = b.mul(slots.index, i64_const(form.spread))
            with b.loop(i64_const(0), i64_const(form.spread), form.lanes) as columns:
                form.put(b, ir.zero(form.vector), self.sums, b.add(row, columns.index))

    def _blocks_seen(self) -> Val:
        """How many blocks of keys any query of the unit sees."""
        b, form = self.b, self.form
        if not form.sizes.causal:
            return i64_const(form.blocks)
        rows = b.mul(b.add(self.first, self.count), i64_const(form.rows))
        rows = b.smin(rows, i64_const(form.sizes.queries))
        seen = b.add(rows, i64_const(form.sizes.keys - form.sizes.queries))
        seen = b.smax(seen, i64_const(0))
        return b.udiv(b.add(seen, i64_const(form.block - 1)), i64_const(form.block))

    def _row(self, tile: Val) -> Val:
        """The first query of a tile; the last tile begins early enough to be whole."""
        b, form = self.b, self.form
        row = b.mul(b.add(self.first, tile), i64_const(form.rows))
        last = i64_const(form.sizes.queries - form.rows)
        return b.smin(row, last)

    def _block(self, block: Val) -> None:
        with self.b.loop(i64_const(0), self.count) as tiles:
            self._tile(block, tiles.index)

    def _tile(self, block: Val, tile: Val) -> None:
        b, form = self.b, self.form
        row, key = self._row(tile), b.mul(block, i64_const(form.block))

        def run() -> None:
            self._fetch_bias(row, key)
            (self._score_few if form.few else self._score)(row, block)
            slot = b.mul(tile, i64_const(form.rows))
            # Three loops: within each, a machine works on several rows at a time.
            with b.loop(i64_const(0), i64_const(form.rows)) as rows:
                self._level(b.add(row, rows.index), rows.index, b.add(slot, rows.index), key)
            for n in range(0, form.rows, form.lanes):
                factors = form.get(b, self.factors, i64_const(n), form.lanes)
                form.put(b, MATH["exp"](b, factors), self.factors, i64_const(n))
            with b.loop(i64_const(0), i64_const(form.rows)) as rows:
                self._powers(rows.index, b.add(slot, rows.index))
            self._collect(slot, key)

        if not form.sizes.causal:
            run()
            return
        last = b.add(row, i64_const(form.rows - 1 + form.sizes.keys - form.sizes.queries))
        with b.if_then(b.icmp("sle", key, last)):
            run()

    # -- scores ------------------------------------------------------------------------------------

    def _score(self, row: Val, block: Val) -> None:
        """Products of a tile of queries with a block of keys."""
        b, form = self.b, self.form
        start = b.add(b.mul(self.member, i64_const(form.blocks)), block)
        start = b.mul(start, i64_const(form.sizes.depth * form.block))
        query = b.add(b.mul(self.member, i64_const(form.sizes.queries)), row)
        query = b.mul(query, i64_const(form.sizes.depth))
        width = form.columns * form.lanes
        with b.loop(i64_const(0), i64_const(form.block), width) as loop:
            self._products(query, b.add(start, loop.index), loop.index)

    def _products(self, query: Val, start: Val, column: Val) -> None:
        """Products of a tile of queries with the keys of a register tile."""
        b, form = self.b, self.form
        zeros = [ir.zero(form.vector)] * (form.rows * form.columns)
        with b.loop(i64_const(0), i64_const(form.sizes.depth), carried=zeros) as loop:
            here = b.add(start, b.mul(loop.index, i64_const(form.block)))
            keys = [
                form.get(b, self.phase.shared, b.add(here, i64_const(n)), form.lanes)
                for n in range(0, form.columns * form.lanes, form.lanes)
            ]
            after: list[Val] = []
            for r in range(form.rows):
                place = b.add(b.add(query, i64_const(r * form.sizes.depth)), loop.index)
                factor = form.spread_one(b, self.phase.operands[0], place)
                after += [
                    b.fma(factor, k, loop.carried[r * form.columns + n]) for n, k in enumerate(keys)
                ]
            loop.next(*after)
        for number, total in enumerate(loop.carried):
            r, n = divmod(number, form.columns)
            at = b.add(column, i64_const(r * form.block + n * form.lanes))
            form.put(b, total, self.scores, at)

    def _score_few(self, row: Val, block: Val) -> None:
        """The same, key by key; what lies beyond the last key is never looked at."""
        b, form = self.b, self.form
        first = b.mul(block, i64_const(form.block))
        start = b.add(b.mul(self.member, i64_const(form.sizes.keys)), first)
        query = b.add(b.mul(self.member, i64_const(form.sizes.queries)), row)
        query = b.mul(query, i64_const(form.sizes.depth))
        left = b.sub(i64_const(form.sizes.keys), first)
        count = b.smin(left, i64_const(form.block))
        with b.loop(i64_const(0), count) as keys:
            key = b.mul(b.add(start, keys.index), i64_const(form.sizes.depth))
            for r, total in enumerate(self._along_depth(query, key)):
                place = b.add(i64_const(r * form.block), keys.index)
                form.put(b, _across(b, [total], _sum), self.scores, place)

    def _along_depth(self, query: Val, key: Val) -> Sequence[Val]:
        """Products of a tile of queries with one key, summed but for the lanes of a vector."""
        b, form = self.b, self.form
        whole = form.sizes.depth // form.lanes * form.lanes

        def step(sums: Sequence[Val], column: Val, mask: Val | None) -> list[Val]:
            factor = form.load(b, self.phase.operands[1], b.add(key, column), mask)
            after: list[Val] = []
            for r, total in enumerate(sums):
                place = b.add(b.add(query, i64_const(r * form.sizes.depth)), column)
                mine = form.load(b, self.phase.operands[0], place, mask)
                after.append(b.fma(mine, factor, total))
            return after

        sums: Sequence[Val] = [ir.zero(form.vector)] * form.rows
        with b.loop(i64_const(0), i64_const(whole), form.lanes, sums) as loop:
            loop.next(*step(loop.carried, loop.index, None))
        sums = loop.carried
        if whole < form.sizes.depth:
            sums = step(sums, i64_const(whole), _edge(whole, form.sizes.depth, form.lanes))
        return sums

    def _level(self, row: Val, at: Val, slot: Val, key: Val) -> None:
        """Scale and mask the scores of one query, and find the greatest so far.  The logarithm of
        what the query's sums are to shrink by goes to ``factors``.
        """
        b, form = self.b, self.form
        place = b.mul(at, i64_const(form.block))
        bound = i64_const(form.sizes.keys)
        if form.sizes.causal:
            past = b.add(row, i64_const(form.sizes.keys - form.sizes.queries + 1))
            bound = b.smin(bound, past)
        bounds = _below(b, b.sub(bound, key), form.block, form.lanes)
        scores: list[Val] = []
        for n, seen in zip(range(0, form.block, form.lanes), bounds, strict=True):
            score = form.get(b, self.scores, b.add(place, i64_const(n)), form.lanes)
            score = b.fmul(score, const(form.vector, form.sizes.scale))
            if form.sizes.bias is not None:
                score = b.fadd(score, self._bias(row, b.add(key, i64_const(n)), seen))
            scores.append(b.select(seen, score, const(form.vector, -math.inf)))
            form.put(b, scores[-1], self.scores, b.add(place, i64_const(n)))
        before = form.get(b, self.tops, slot, 1)
        top = _greater(b, before, _across(b, scores, _greater))
        form.put(b, top, self.tops, slot)
        form.put(b, b.fsub(before, self._finite(top)), self.factors, at)

    def _finite(self, top: Val) -> Val:
        """A greatest score to subtract: −inf − −inf would be NaN."""
        b, form = self.b, self.form
        lowest = b.fcmp("oeq", top, const(form.number, -math.inf))
        return b.select(lowest, ir.zero(form.number), top)

    def _powers(self, at: Val, slot: Val) -> None:
        """The scores of one query become powers, and are added to the sum of those so far."""
        b, form = self.b, self.form
        place = b.mul(at, i64_const(form.block))
        level = b.splat(self._finite(form.get(b, self.tops, slot, 1)), form.lanes)
        powers: list[Val] = []
        for n in range(0, form.block, form.lanes):
            here = b.add(place, i64_const(n))
            score = form.get(b, self.scores, here, form.lanes)
            powers.append(MATH["exp"](b, b.fsub(score, level)))
            form.put(b, powers[-1], self.scores, here)
        factor = form.get(b, self.factors, at, 1)
        total = b.fma(form.get(b, self.totals, slot, 1), factor, _across(b, powers, _sum))
        form.put(b, total, self.totals, slot)

    def _bias(self, row: Val, key: Val, seen: Val) -> Val:
        b, form = self.b, self.form
        assert form.sizes.bias is not None
        place = self.bias
        if form.sizes.bias[-2] != 1:
            place = b.add(place, b.mul(row, i64_const(form.sizes.bias[-1])))
        if form.sizes.bias[-1] == 1:
            return form.spread_one(b, self.phase.operands[3], place)
        return form.load(b, self.phase.operands[3], b.add(place, key), seen)

    def _fetch_bias(self, row: Val, key: Val) -> None:
        """Ask for the bias of a tile before its products: each of its rows is elsewhere in memory,
        and what waits for one is too long for a machine to look ahead to the next.
        """
        b, form = self.b, self.form
        if form.sizes.bias is None or 1 in form.sizes.bias[-2:]:
            return
        element = memory_type(form.sizes.dtype)
        with b.loop(i64_const(0), i64_const(form.rows)) as rows:
            place = b.mul(b.add(row, rows.index), i64_const(form.sizes.bias[-1]))
            place = b.add(b.add(self.bias, place), key)
            for n in range(0, form.block, _LINE // form.sizes.dtype.itemsize):
                here = b.add(place, i64_const(n))
                prefetch(b, b.gep(self.phase.operands[3], here, element, flags=""))

    # -- values ------------------------------------------------------------------------------------

    def _collect(self, slot: Val, key: Val) -> None:
        """Add the values of a block of keys, weighed, to the sums of a tile of queries."""
        b, form = self.b, self.form
        width = form.lanes * form.columns
        whole = form.sizes.values // width * width
        left = b.sub(i64_const(form.sizes.keys), key)
        count = b.smin(left, i64_const(form.block))
        if whole:
            with b.loop(i64_const(0), i64_const(whole), width) as columns:
                self._columns(slot, key, count, columns.index, [None] * form.columns)
        if whole < form.sizes.values:
            rest = form.sizes.values - whole
            masks = [_edge(n, rest, form.lanes) for n in range(0, rest, form.lanes)]
            self._columns(slot, key, count, i64_const(whole), masks)

    def _columns(
        self, slot: Val, key: Val, count: Val, column: Val, masks: Sequence[Val | None]
    ) -> None:
        b, form = self.b, self.form
        start = b.add(b.mul(self.member, i64_const(form.sizes.keys)), key)
        places = [self._sum_at(b.add(slot, i64_const(r)), column) for r in range(form.rows)]
        carried: list[Val] = []
        for r, place in enumerate(places):
            factor = b.splat(form.get(b, self.factors, i64_const(r), 1), form.lanes)
            for n in range(len(masks)):
                at = b.add(place, i64_const(n * form.lanes))
                carried.append(b.fmul(form.get(b, self.sums, at, form.lanes), factor))
        with b.loop(i64_const(0), count, carried=carried) as loop:
            row = b.mul(b.add(start, loop.index), i64_const(form.sizes.values))
            row = b.add(row, column)
            values = [
                form.load(b, self.phase.operands[2], b.add(row, i64_const(n * form.lanes)), m)
                for n, m in enumerate(masks)
            ]
            after: list[Val] = []
            for r in range(form.rows):
                at = b.add(loop.index, i64_const(r * form.block))
                weight = b.splat(form.get(b, self.scores, at, 1), form.lanes)
                for n, value in enumerate(values):
                    after.append(b.fma(weight, value, loop.carried[r * len(masks) + n]))
            loop.next(*after)
        for r, place in enumerate(places):
            for n in range(len(masks)):
                at = b.add(place, i64_const(n * form.lanes))
                form.put(b, loop.carried[r * len(masks) + n], self.sums, at)

    def _sum_at(self, slot: Val, column: Val) -> Val:
        return self.b.add(self.b.mul(slot, i64_const(self.form.spread)), column)

    def _finish(self) -> None:
        """Divide by the sums of powers and write the results."""
        b, form = self.b, self.form
        with b.loop(i64_const(0), self.count) as tiles:
            queries = b.mul(self.member, i64_const(form.sizes.queries))
            row = b.add(queries, self._row(tiles.index))
            slot = b.mul(tiles.index, i64_const(form.rows))
            with b.loop(i64_const(0), i64_const(form.rows)) as rows:
                at = b.add(slot, rows.index)
                total = b.splat(form.get(b, self.totals, at, 1), form.lanes)
                start = b.mul(b.add(row, rows.index), i64_const(form.sizes.values))
                self._write(at, total, start)

    def _write(self, slot: Val, total: Val, start: Val) -> None:
        b, form = self.b, self.form
        whole = form.sizes.values // form.lanes * form.lanes
        element = memory_type(form.sizes.dtype)

        def one(column: Val, mask: Val | None) -> None:
            sums = form.get(b, self.sums, self._sum_at(slot, column), form.lanes)
            result = narrow(b, b.fdiv(sums, total), form.sizes.dtype)
            address = b.gep(self.phase.results[0], b.add(start, column), element)
            if mask is None:
                b.store(result, address, form.sizes.dtype.itemsize)
            else:
                masked_store(b, result, address, mask, form.sizes.dtype.itemsize)

        if whole:
            with b.loop(i64_const(0), i64_const(whole), form.lanes) as columns:
                one(columns.index, None)
        if whole < form.sizes.values:
            one(i64_const(whole), _edge(whole, form.sizes.values, form.lanes))


def _edge(start: int, stop: int, lanes: int) -> Val | None:
    """The lanes of a vector at ``start`` that lie before ``stop``; None for all."""
    if stop - start >= lanes:
        return None
    return const_vector(ir.i1, [n < stop - start for n in range(lanes)])


def _greater(b: Builder, x: Val, y: Val) -> Val:
    return b.select(b.fcmp("ogt", x, y), x, y)


def _sum(b: Builder, x: Val, y: Val) -> Val:
    return b.fadd(x, y)


def _across(b: Builder, vectors: Sequence[Val], fold: _Fold) -> Val:
    """All lanes of all vectors folded into one."""
    live = list(vectors)
    while len(live) > 1:
        live = [fold(b, x, y) for x, y in zip(live[::2], live[1::2], strict=True)]
    total = live[0]
    while (half := total.type.lanes // 2) > 0:
        low = b.shufflevector(total, None, list(range(half)))
        total = fold(b, low, b.shufflevector(total, None, list(range(half, 2 * half))))
    return total


def _parts(b: Builder, unit: Val, count: int) -> tuple[Val, Val]:
    """Quotient and remainder of a number that is not negative."""
    if count == 1:
        return unit, i64_const(0)
    size = i64_const(count)
    return b.binary("udiv", unit, size), b.binary("urem", unit, size)


def _below(b: Builder, left: Val, count: int, lanes: int) -> list[Val]:
    """Of each vector of ``count`` elements the lanes below ``left``, which may be negative."""
    clamped = b.smin(left, i64_const(count))
    clamped = b.smax(clamped, i64_const(0))
    stop = b.splat(b.trunc(clamped, ir.i32), lanes)
    places = [const_vector(ir.i32, range(n, n + lanes)) for n in range(0, count, lanes)]
    return [b.icmp("slt", each, stop) for each in places]

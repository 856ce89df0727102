"""Attention as native code, with the online softmax of flash attention.

Each query visits the keys once, block by block, and carries its running maximum and the running sum
of exponentials.  Scores of a block exist only in cache.  Keys are first transposed, block by block,
so that a vector holds neighbouring keys.  If one tile holds all queries, that does not pay, and
vectors run along the depth instead.  The products of a tile of queries with a few vectors of keys
or of values stay in registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from bringup.integers import ceil_div, round_up
from bringup.llvm import text as ir
from bringup.llvm.loops.schedule import LINE_BYTES, NativeKernel
from bringup.llvm.math import MATH
from bringup.llvm.scalar import memory_type, narrow, widen
from bringup.llvm.steps.base import NativeStep, PhaseBuilder, split_unit
from bringup.llvm.steps.params import AttentionParams
from bringup.llvm.text import Builder, Module, Type, Val, const, const_vector, i64_const, vec
from bringup.llvm.text.masked import (
    clamp,
    fold_lanes,
    masked_gather,
    masked_load,
    masked_store,
    prefetch,
)
from bringup.loops.target import Target
from bringup.program.program import OpStep
from bringup.records import record

#: Vectors of keys in a block.
_BLOCK = 4
#: Tiles of queries in a unit, which visit each block of keys together.
_TILES = 8

_Fold = Callable[[Builder, Val, Val], Val]


@record
class _Form:
    """How one step runs.

    lanes: of a vector.  rows, columns: queries, and vectors of keys or of values, of a register
    tile.
    """

    params: AttentionParams
    lanes: int
    rows: int
    columns: int

    @property
    def is_single_tile(self) -> bool:
        """Whether one tile holds all queries; then keys are read once, without transposition."""
        return self.params.queries <= self.rows

    @property
    def block(self) -> int:
        """Keys of a block."""
        return self.lanes * _BLOCK

    @property
    def blocks(self) -> int:
        return ceil_div(self.params.keys, self.block)

    @property
    def tiles(self) -> int:
        """Tiles that cover the queries of a member of the batch; the last two may overlap."""
        return ceil_div(self.params.queries, self.rows)

    @property
    def chunks(self) -> int:
        """Units per member of the batch."""
        return ceil_div(self.tiles, _TILES)

    @property
    def padded_values(self) -> int:
        """The values of a query, rounded up to whole vectors."""
        return round_up(self.params.values, self.lanes)

    @property
    def sum_type(self) -> Type:
        """The LLVM type of scores and sums."""
        return memory_type(self.params.wide)

    @property
    def vector(self) -> Type:
        return vec(self.sum_type, self.lanes)

    def load(self, b: Builder, base: Val, index: Val, mask: Val | None = None) -> Val:
        """A vector of operand elements, in the wide dtype; 0 where the mask does not hold."""
        element = memory_type(self.params.dtype)
        address, to = b.gep(base, index, element), vec(element, self.lanes)
        if mask is None:
            return widen(b, b.load(to, address, self.params.dtype.itemsize))
        zero = ir.zero(to)
        return widen(b, masked_load(b, to, address, mask, zero, self.params.dtype.itemsize))

    def broadcast(self, b: Builder, base: Val, index: Val) -> Val:
        """One operand element in every lane."""
        element = memory_type(self.params.dtype)
        one = widen(b, b.load(element, b.gep(base, index, element), self.params.dtype.itemsize))
        return b.splat(one, self.lanes)

    def get(self, b: Builder, base: Val, index: Val, lanes: int) -> Val:
        """Load scores or sums from scratch memory."""
        address = b.gep(base, index, self.sum_type)
        return b.load(vec(self.sum_type, lanes), address, self.params.wide.itemsize)

    def put(self, b: Builder, value: Val, base: Val, index: Val) -> None:
        """Write scores or sums to scratch memory."""
        b.store(value, b.gep(base, index, self.sum_type), self.params.wide.itemsize)


def emit_attention(module: Module, step: OpStep, name: str, target: Target) -> NativeStep:
    """Emit a step of the row ``attention``."""
    form = _form_of(step, target)
    if not form.params.keys:
        return NativeStep((_emit_zeros(module, step, name, form),))
    if form.is_single_tile:
        return NativeStep((_AttentionEmitter(module, step, name, form).run(),))
    params = form.params
    shared = params.batch * form.blocks * params.depth * form.block * params.wide.itemsize
    transposed = _emit_transposed_keys(module, step, f"{name}.keys", form)
    return NativeStep((transposed, _AttentionEmitter(module, step, name, form).run()), shared)


def _form_of(step: OpStep, target: Target) -> _Form:
    params = AttentionParams.of(step)
    columns = 4 if target.registers >= 32 else 2
    rows = min(params.queries, max(1, target.registers * 3 // 4 // columns))
    return _Form(params, target.vector_bits // params.wide.bits, rows, columns)


def _emit_zeros(module: Module, step: OpStep, name: str, form: _Form) -> NativeKernel:
    """Without keys, every sum is empty."""
    phase = PhaseBuilder(module, step, name)
    params, element = form.params, memory_type(form.params.dtype)
    with phase.units() as unit:
        address = phase.b.gep(phase.results[0], unit, element)
        phase.b.store(ir.zero(element), address, params.dtype.itemsize)
    return phase.done(params.batch * params.queries * params.values, 1)


def _emit_transposed_keys(module: Module, step: OpStep, name: str, form: _Form) -> NativeKernel:
    """Keys as (batch, block, depth, key of the block), widened; zeros after the last key."""
    phase = PhaseBuilder(module, step, name)
    b, element = phase.b, memory_type(form.params.dtype)
    with phase.units() as unit:
        member, number = split_unit(b, unit, form.blocks)
        first = b.mul(number, i64_const(form.block))
        key = b.add(b.mul(member, i64_const(form.params.keys)), first)
        start = b.mul(key, i64_const(form.params.depth))
        target = b.mul(unit, i64_const(form.params.depth * form.block))
        left = b.sub(i64_const(form.params.keys), first)
        bounds = _below(b, left, form.block, form.lanes)
        steps = const_vector(ir.i64, [n * form.params.depth for n in range(form.lanes)])
        with b.loop(i64_const(0), i64_const(form.params.depth)) as loop:
            for skipped, mask in zip(range(0, form.block, form.lanes), bounds, strict=True):
                offset = b.add(b.add(start, loop.index), i64_const(skipped * form.params.depth))
                offsets = b.add(b.splat(offset, form.lanes), steps)
                addresses = b.gep(phase.operands[1], offsets, element, flags="")
                to = vec(element, form.lanes)
                keys = masked_gather(
                    b, to, addresses, mask, ir.zero(to), form.params.dtype.itemsize
                )
                row = b.add(target, b.mul(loop.index, i64_const(form.block)))
                form.put(b, widen(b, keys), phase.shared, b.add(row, i64_const(skipped)))
    return phase.done(form.params.batch * form.blocks, form.params.depth * form.block)


class _AttentionEmitter:
    """Emits the phase that visits the keys."""

    def __init__(self, module: Module, step: OpStep, name: str, form: _Form) -> None:
        self.form = form
        self.phase = PhaseBuilder(module, step, name)
        self.b = self.phase.b
        size, slots = form.params.wide.itemsize, _TILES * form.rows
        self.sums, self.scores, self.maxima, self.totals, self.factors = self.phase.scratch(
            slots * form.padded_values * size,
            form.rows * form.block * size,
            slots * size,
            slots * size,
            round_up(form.rows, form.lanes) * size,
        )

    def run(self) -> NativeKernel:
        form, b = self.form, self.b
        with self.phase.units() as unit:
            self.member, chunk = split_unit(b, unit, form.chunks)
            self.first = b.mul(chunk, i64_const(_TILES))
            left = b.sub(i64_const(form.tiles), self.first)
            self.count = b.smin(left, i64_const(_TILES))
            self.bias = self._bias_start()
            self._start()
            with b.loop(i64_const(0), self._blocks_seen()) as blocks:
                self._block(blocks.index)
            self._finish()
        work = _TILES * form.rows * form.params.keys * (form.params.depth + form.params.values)
        return self.phase.done(form.params.batch * form.chunks, work)

    def _bias_start(self) -> Val:
        """The offset of the bias of the member; dimensions of size 1 are broadcast."""
        b, form = self.b, self.form
        offset, member = i64_const(0), self.member
        if form.params.bias is None:
            return offset
        step = form.params.bias[-1] * form.params.bias[-2]
        for n, size in zip(form.params.lead[::-1], form.params.bias[-3::-1], strict=True):
            member, index = split_unit(b, member, n)
            if size != 1:
                offset = b.add(offset, b.mul(index, i64_const(step)))
            step *= size
        return offset

    def _start(self) -> None:
        b, form = self.b, self.form
        lowest = const(form.sum_type, -math.inf)
        with b.loop(i64_const(0), b.mul(self.count, i64_const(form.rows))) as slots:
            form.put(b, lowest, self.maxima, slots.index)
            form.put(b, ir.zero(form.sum_type), self.totals, slots.index)
            row = b.mul(slots.index, i64_const(form.padded_values))
            with b.loop(i64_const(0), i64_const(form.padded_values), form.lanes) as columns:
                form.put(b, ir.zero(form.vector), self.sums, b.add(row, columns.index))

    def _blocks_seen(self) -> Val:
        """The number of blocks of keys that some query of the unit sees."""
        b, form = self.b, self.form
        if not form.params.causal:
            return i64_const(form.blocks)
        rows = b.mul(b.add(self.first, self.count), i64_const(form.rows))
        rows = b.smin(rows, i64_const(form.params.queries))
        seen = b.add(rows, i64_const(form.params.keys - form.params.queries))
        seen = b.smax(seen, i64_const(0))
        return b.udiv(b.add(seen, i64_const(form.block - 1)), i64_const(form.block))

    def _row(self, tile: Val) -> Val:
        """The first query of a tile; the last tile begins so early that it is whole."""
        b, form = self.b, self.form
        row = b.mul(b.add(self.first, tile), i64_const(form.rows))
        last = i64_const(form.params.queries - form.rows)
        return b.smin(row, last)

    def _block(self, block: Val) -> None:
        with self.b.loop(i64_const(0), self.count) as tiles:
            self._tile(block, tiles.index)

    def _tile(self, block: Val, tile: Val) -> None:
        b, form = self.b, self.form
        row, key = self._row(tile), b.mul(block, i64_const(form.block))

        def run() -> None:
            self._fetch_bias(row, key)
            (self._score_by_key if form.is_single_tile else self._score)(row, block)
            slot = b.mul(tile, i64_const(form.rows))
            # Three loops: within each, a machine works on several rows at a time.
            with b.loop(i64_const(0), i64_const(form.rows)) as rows:
                self._update_maximum(
                    b.add(row, rows.index), rows.index, b.add(slot, rows.index), key
                )
            for n in range(0, form.rows, form.lanes):
                factors = form.get(b, self.factors, i64_const(n), form.lanes)
                form.put(b, MATH["exp"](b, factors), self.factors, i64_const(n))
            with b.loop(i64_const(0), i64_const(form.rows)) as rows:
                self._exponentials(rows.index, b.add(slot, rows.index))
            self._add_values(slot, key)

        if not form.params.causal:
            run()
            return
        last = b.add(row, i64_const(form.rows - 1 + form.params.keys - form.params.queries))
        with b.if_then(b.icmp("sle", key, last)):
            run()

    # -- scores ------------------------------------------------------------------------------------

    def _score(self, row: Val, block: Val) -> None:
        """Products of a tile of queries with a block of keys."""
        b, form = self.b, self.form
        start = b.add(b.mul(self.member, i64_const(form.blocks)), block)
        start = b.mul(start, i64_const(form.params.depth * form.block))
        query = b.add(b.mul(self.member, i64_const(form.params.queries)), row)
        query = b.mul(query, i64_const(form.params.depth))
        width = form.columns * form.lanes
        with b.loop(i64_const(0), i64_const(form.block), width) as loop:
            self._products(query, b.add(start, loop.index), loop.index)

    def _products(self, query: Val, start: Val, column: Val) -> None:
        """Products of a tile of queries with the keys of a register tile."""
        b, form = self.b, self.form
        zeros = [ir.zero(form.vector)] * (form.rows * form.columns)
        with b.loop(i64_const(0), i64_const(form.params.depth), carried=zeros) as loop:
            position = b.add(start, b.mul(loop.index, i64_const(form.block)))
            keys = [
                form.get(b, self.phase.shared, b.add(position, i64_const(n)), form.lanes)
                for n in range(0, form.columns * form.lanes, form.lanes)
            ]
            after: list[Val] = []
            for r in range(form.rows):
                offset = b.add(b.add(query, i64_const(r * form.params.depth)), loop.index)
                factor = form.broadcast(b, self.phase.operands[0], offset)
                after += [
                    b.fma(factor, k, loop.carried[r * form.columns + n]) for n, k in enumerate(keys)
                ]
            loop.next(*after)
        for number, total in enumerate(loop.carried):
            r, n = divmod(number, form.columns)
            at = b.add(column, i64_const(r * form.block + n * form.lanes))
            form.put(b, total, self.scores, at)

    def _score_by_key(self, row: Val, block: Val) -> None:
        """The same, key by key; nothing reads scores after the last key."""
        b, form = self.b, self.form
        first = b.mul(block, i64_const(form.block))
        start = b.add(b.mul(self.member, i64_const(form.params.keys)), first)
        query = b.add(b.mul(self.member, i64_const(form.params.queries)), row)
        query = b.mul(query, i64_const(form.params.depth))
        left = b.sub(i64_const(form.params.keys), first)
        count = b.smin(left, i64_const(form.block))
        with b.loop(i64_const(0), count) as keys:
            key = b.mul(b.add(start, keys.index), i64_const(form.params.depth))
            for r, total in enumerate(self._along_depth(query, key)):
                offset = b.add(i64_const(r * form.block), keys.index)
                form.put(b, _across(b, [total], _sum), self.scores, offset)

    def _along_depth(self, query: Val, key: Val) -> Sequence[Val]:
        """Products of a tile of queries with one key; the lanes are not summed yet."""
        b, form = self.b, self.form
        whole = form.params.depth // form.lanes * form.lanes

        def step(sums: Sequence[Val], column: Val, mask: Val | None) -> list[Val]:
            factor = form.load(b, self.phase.operands[1], b.add(key, column), mask)
            after: list[Val] = []
            for r, total in enumerate(sums):
                offset = b.add(b.add(query, i64_const(r * form.params.depth)), column)
                mine = form.load(b, self.phase.operands[0], offset, mask)
                after.append(b.fma(mine, factor, total))
            return after

        sums: Sequence[Val] = [ir.zero(form.vector)] * form.rows
        with b.loop(i64_const(0), i64_const(whole), form.lanes, sums) as loop:
            loop.next(*step(loop.carried, loop.index, None))
        sums = loop.carried
        if whole < form.params.depth:
            sums = step(sums, i64_const(whole), _edge(whole, form.params.depth, form.lanes))
        return sums

    def _update_maximum(self, row: Val, at: Val, slot: Val, key: Val) -> None:
        """Scale and mask the scores of one query, and update its running maximum.

        The logarithm of the factor for the query's sums goes to ``factors``.
        """
        b, form = self.b, self.form
        offset = b.mul(at, i64_const(form.block))
        bound = i64_const(form.params.keys)
        if form.params.causal:
            past = b.add(row, i64_const(form.params.keys - form.params.queries + 1))
            bound = b.smin(bound, past)
        bounds = _below(b, b.sub(bound, key), form.block, form.lanes)
        scores: list[Val] = []
        for n, seen in zip(range(0, form.block, form.lanes), bounds, strict=True):
            score = form.get(b, self.scores, b.add(offset, i64_const(n)), form.lanes)
            score = b.fmul(score, const(form.vector, form.params.scale))
            if form.params.bias is not None:
                score = b.fadd(score, self._bias(row, b.add(key, i64_const(n)), seen))
            scores.append(b.select(seen, score, const(form.vector, -math.inf)))
            form.put(b, scores[-1], self.scores, b.add(offset, i64_const(n)))
        before = form.get(b, self.maxima, slot, 1)
        maximum = _greater(b, before, _across(b, scores, _greater))
        form.put(b, maximum, self.maxima, slot)
        form.put(b, b.fsub(before, self._finite(maximum)), self.factors, at)

    def _finite(self, maximum: Val) -> Val:
        """The maximum to subtract; 0 in offset of −inf, because −inf − −inf would be NaN."""
        b, form = self.b, self.form
        is_empty = b.fcmp("oeq", maximum, const(form.sum_type, -math.inf))
        return b.select(is_empty, ir.zero(form.sum_type), maximum)

    def _exponentials(self, at: Val, slot: Val) -> None:
        """Replace the scores of one query by exponentials, and add these to its running sum."""
        b, form = self.b, self.form
        offset = b.mul(at, i64_const(form.block))
        maximum = b.splat(self._finite(form.get(b, self.maxima, slot, 1)), form.lanes)
        exponentials: list[Val] = []
        for n in range(0, form.block, form.lanes):
            position = b.add(offset, i64_const(n))
            score = form.get(b, self.scores, position, form.lanes)
            exponentials.append(MATH["exp"](b, b.fsub(score, maximum)))
            form.put(b, exponentials[-1], self.scores, position)
        factor = form.get(b, self.factors, at, 1)
        total = b.fma(form.get(b, self.totals, slot, 1), factor, _across(b, exponentials, _sum))
        form.put(b, total, self.totals, slot)

    def _bias(self, row: Val, key: Val, seen: Val) -> Val:
        b, form = self.b, self.form
        assert form.params.bias is not None
        offset = self.bias
        if form.params.bias[-2] != 1:
            offset = b.add(offset, b.mul(row, i64_const(form.params.bias[-1])))
        if form.params.bias[-1] == 1:
            return form.broadcast(b, self.phase.operands[3], offset)
        return form.load(b, self.phase.operands[3], b.add(offset, key), seen)

    def _fetch_bias(self, row: Val, key: Val) -> None:
        """Prefetch the bias of a tile before its products.

        Each row is elsewhere in memory, and too much code lies between two rows for the processor
        to look ahead.
        """
        b, form = self.b, self.form
        if form.params.bias is None or 1 in form.params.bias[-2:]:
            return
        element = memory_type(form.params.dtype)
        with b.loop(i64_const(0), i64_const(form.rows)) as rows:
            offset = b.mul(b.add(row, rows.index), i64_const(form.params.bias[-1]))
            offset = b.add(b.add(self.bias, offset), key)
            for n in range(0, form.block, LINE_BYTES // form.params.dtype.itemsize):
                position = b.add(offset, i64_const(n))
                prefetch(b, b.gep(self.phase.operands[3], position, element, flags=""))

    # -- values ------------------------------------------------------------------------------------

    def _add_values(self, slot: Val, key: Val) -> None:
        """Add the values of a block of keys, times their exponentials, to the sums of a tile."""
        b, form = self.b, self.form
        width = form.lanes * form.columns
        whole = form.params.values // width * width
        left = b.sub(i64_const(form.params.keys), key)
        count = b.smin(left, i64_const(form.block))
        if whole:
            with b.loop(i64_const(0), i64_const(whole), width) as columns:
                self._columns(slot, key, count, columns.index, [None] * form.columns)
        if whole < form.params.values:
            rest = form.params.values - whole
            masks = [_edge(n, rest, form.lanes) for n in range(0, rest, form.lanes)]
            self._columns(slot, key, count, i64_const(whole), masks)

    def _columns(
        self, slot: Val, key: Val, count: Val, column: Val, masks: Sequence[Val | None]
    ) -> None:
        b, form = self.b, self.form
        start = b.add(b.mul(self.member, i64_const(form.params.keys)), key)
        offsets = [self._sum_at(b.add(slot, i64_const(r)), column) for r in range(form.rows)]
        carried: list[Val] = []
        for r, offset in enumerate(offsets):
            factor = b.splat(form.get(b, self.factors, i64_const(r), 1), form.lanes)
            for n in range(len(masks)):
                at = b.add(offset, i64_const(n * form.lanes))
                carried.append(b.fmul(form.get(b, self.sums, at, form.lanes), factor))
        with b.loop(i64_const(0), count, carried=carried) as loop:
            row = b.mul(b.add(start, loop.index), i64_const(form.params.values))
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
        for r, offset in enumerate(offsets):
            for n in range(len(masks)):
                at = b.add(offset, i64_const(n * form.lanes))
                form.put(b, loop.carried[r * len(masks) + n], self.sums, at)

    def _sum_at(self, slot: Val, column: Val) -> Val:
        return self.b.add(self.b.mul(slot, i64_const(self.form.padded_values)), column)

    def _finish(self) -> None:
        """Divide by the sums of exponentials and write the results."""
        b, form = self.b, self.form
        with b.loop(i64_const(0), self.count) as tiles:
            queries = b.mul(self.member, i64_const(form.params.queries))
            row = b.add(queries, self._row(tiles.index))
            slot = b.mul(tiles.index, i64_const(form.rows))
            with b.loop(i64_const(0), i64_const(form.rows)) as rows:
                at = b.add(slot, rows.index)
                total = b.splat(form.get(b, self.totals, at, 1), form.lanes)
                start = b.mul(b.add(row, rows.index), i64_const(form.params.values))
                self._write(at, total, start)

    def _write(self, slot: Val, total: Val, start: Val) -> None:
        b, form = self.b, self.form
        whole = form.params.values // form.lanes * form.lanes
        element = memory_type(form.params.dtype)

        def one(column: Val, mask: Val | None) -> None:
            sums = form.get(b, self.sums, self._sum_at(slot, column), form.lanes)
            result = narrow(b, b.fdiv(sums, total), form.params.dtype)
            address = b.gep(self.phase.results[0], b.add(start, column), element)
            if mask is None:
                b.store(result, address, form.params.dtype.itemsize)
            else:
                masked_store(b, result, address, mask, form.params.dtype.itemsize)

        if whole:
            with b.loop(i64_const(0), i64_const(whole), form.lanes) as columns:
                one(columns.index, None)
        if whole < form.params.values:
            one(i64_const(whole), _edge(whole, form.params.values, form.lanes))


def _edge(start: int, stop: int, lanes: int) -> Val | None:
    """The mask of the lanes of a vector at ``start`` that are before ``stop``; None for all."""
    if stop - start >= lanes:
        return None
    return const_vector(ir.i1, [n < stop - start for n in range(lanes)])


def _greater(b: Builder, x: Val, y: Val) -> Val:
    return b.select(b.fcmp("ogt", x, y), x, y)


def _sum(b: Builder, x: Val, y: Val) -> Val:
    return b.fadd(x, y)


def _across(b: Builder, vectors: Sequence[Val], fold: _Fold) -> Val:
    """Fold all lanes of all vectors into one number."""
    live = list(vectors)
    while len(live) > 1:
        live = [fold(b, x, y) for x, y in zip(live[::2], live[1::2], strict=True)]
    return fold_lanes(b, live[0], lambda x, y: fold(b, x, y))


def _below(b: Builder, left: Val, count: int, lanes: int) -> list[Val]:
    """Masks of the vectors of ``count`` elements: those below ``left``, which may be negative."""
    stop = b.splat(b.trunc(clamp(b, left, count), ir.i32), lanes)
    numbers = [const_vector(ir.i32, range(n, n + lanes)) for n in range(0, count, lanes)]
    return [b.icmp("slt", each, stop) for each in numbers]

"""Online softmax, and the product of probabilities and values, as in flash attention.

Scores and probabilities stay in registers where tensor cores multiply, else they pass through
shared memory.  Probabilities are ``exp(score − row maximum)``, not yet divided by their sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from bringup.dtypes import f32
from bringup.graph.index import Axis, Expr
from bringup.llvm import text as ir
from bringup.llvm.math import MATH
from bringup.llvm.scalar import memory_type, narrow, widen
from bringup.llvm.text import Val, const, vec
from bringup.records import record
from bringup_cuda.codegen.contraction.attention_params import AttentionParams
from bringup_cuda.codegen.contraction.attention_plan import (
    KEY,
    LEAD,
    QUERY,
    THREADS,
    AttentionPlan,
)
from bringup_cuda.codegen.contraction.engines import (
    MMA_BYTES,
    MMA_COLUMNS,
    MMA_ROWS,
    FmaEngine,
    TensorEngine,
)
from bringup_cuda.codegen.contraction.points import Point, emit_index
from bringup_cuda.codegen.contraction.tiles import sum_stride, sum_type
from bringup_cuda.codegen.nvvm import IntBuilder, build_vector, i32_const, round_to_tf32

_UNROLL = 4
#: Probabilities, which are at most 1, are multiplied by this, so that the remainder of one rounding
#: to f16 is not too small for the next.
_SCALE = {"f16": 16384.0}
#: Numbers of the dtype (for f32: of tf32) whose sum is a probability, exact to 22 to 24 bits.
_TERMS = {"f16": 2, "bf16": 3, "f32": 2}


class OnlineSoftmax(Protocol):
    """Keeps the maximum score and the sum of probabilities of each row."""

    def initial_state(self) -> list[Val]:
        """The state before the first key."""

    def store_products(self, products: Sequence[Val]) -> None:
        """Put the products of queries and keys where `update` reads them."""

    def update(self, state: Sequence[Val], products: Sequence[Val], key: Val) -> list[Val]:
        """Turn the products with the keys from ``key`` on into probabilities; the new state."""

    def accumulate(self, sums: Sequence[Val]) -> list[Val]:
        """Rescale the sums so far and add the products of probabilities and values."""

    def store_row_sums(self, state: Sequence[Val]) -> None:
        """Write the sum of probabilities of each row to the array of factors."""


@record
class SharedTiles:
    """Addresses in shared memory, as in `attention_plan.SharedMap`."""

    values: Val
    scores: Val
    probabilities: Val
    factors: Val


class Scores:
    """Turns products into scores: scaled, biased, and −inf where the query does not see the key.

    batch: the point of the batch.  first: the block's first query.  bias: its address.
    """

    def __init__(
        self, b: IntBuilder, sizes: AttentionParams, batch: Point, first: Val, bias: Val | None
    ) -> None:
        self.b = b
        self.sizes = sizes
        self.batch = batch
        self.first = first
        self.bias = bias
        self.type = sum_type(sizes.wide)

    def score(self, product: Val, row: Val, key: Val) -> Val:
        """The score of row ``row`` of the block and a key."""
        b, sizes = self.b, self.sizes
        query = b.add(self.first, row)
        score = b.fmul(product, const(self.type, sizes.scale))
        end = i32_const(sizes.keys)
        if sizes.causal:
            causal_end = b.add(query, sizes.keys - sizes.queries + 1)
            end = b.intrinsic("llvm.smin", ir.i32, (end, causal_end))
        seen = b.icmp("slt", key, end)
        if self.bias is not None:
            score = b.fadd(score, self._load_bias(self.bias, query, key, seen))
        return b.select(seen, score, const(self.type, -math.inf))

    def _load_bias(self, start: Val, query: Val, key: Val, seen: Val) -> Val:
        b, sizes = self.b, self.sizes
        assert sizes.bias is not None
        axes = [Axis(LEAD + n, size) for n, size in enumerate(sizes.lead)]
        axes += [Axis(QUERY, sizes.queries), Axis(KEY, sizes.keys)]
        index, stride = Expr(), 1
        for axis, size in zip(axes[::-1], sizes.bias[::-1], strict=True):
            if size != 1:
                index = index + Expr.of(axis) * stride
            stride *= size
        position = emit_index(b, index, {**self.batch, axes[-2]: query, axes[-1]: key})
        # Queries beyond the last are computed like any other, and not written.
        exists = b.and_(seen, b.icmp("slt", query, sizes.queries))
        position = b.select(exists, position, const(position.type, 0))
        element = memory_type(sizes.dtype)
        address = b.gep(start, b.sext(position, ir.i64), element)
        return widen(b, b.load(element, address, sizes.dtype.itemsize))


def _finite_maximum(b: IntBuilder, maximum: Val) -> Val:
    """The number to subtract from scores: the row's maximum, or 0 where that is −inf."""
    nothing_seen = b.fcmp("oeq", maximum, const(maximum.type, -math.inf))
    return b.select(nothing_seen, ir.zero(maximum.type), maximum)  # −inf − −inf would be NaN.


def _maximum(b: IntBuilder, x: Val, y: Val) -> Val:
    """The larger number; the second where the first is NaN."""
    return b.select(b.fcmp("ogt", x, y), x, y)


def _add(b: IntBuilder, x: Val, y: Val) -> Val:
    return b.fadd(x, y)


def _reduce_lanes(
    b: IntBuilder, value: Val, lanes: int, combine: Callable[[IntBuilder, Val, Val], Val]
) -> Val:
    """Combine the values of ``lanes`` neighbouring lanes, by shuffles."""
    distance = 1
    while distance < lanes:
        value = combine(b, value, _shuffle_xor(b, value, distance))
        distance *= 2
    return value


def _shuffle_xor(b: IntBuilder, value: Val, distance: int) -> Val:
    kind = value.type
    count = kind.bits // 32
    words = b.bitcast(value, ir.i32 if count == 1 else vec(ir.i32, count))
    all_lanes, last_lane = i32_const(-1), i32_const(31)
    shuffled = [
        b.intrinsic(
            "llvm.nvvm.shfl.sync.bfly",
            ir.i32,
            (all_lanes, b.extractelement(words, n), i32_const(distance), last_lane),
        )
        for n in range(count)
    ]
    if count == 1:
        return b.bitcast(shuffled[0], kind)
    return b.cast("bitcast", build_vector(b, shuffled), kind)


class SharedMemorySoftmax:
    """Scores and probabilities of a tile lie in shared memory; neighbouring threads share a row."""

    def __init__(
        self,
        b: IntBuilder,
        plan: AttentionPlan,
        scores: Scores,
        engines: tuple[FmaEngine, FmaEngine],
        tiles: SharedTiles,
        thread: Val,
    ) -> None:
        self.b = b
        self.keys = plan.tile.keys
        self.layout = plan.probabilities
        self.scores = scores
        self.score_engine, self.result_engine = engines
        self.tiles = tiles
        self.type = scores.type
        self.itemsize = self.type.bits // 8
        self.lanes = THREADS // plan.tile.queries
        self.row = b.udiv(thread, self.lanes)
        self.lane = b.urem(thread, self.lanes)

    def initial_state(self) -> list[Val]:
        """Maximum and sum of the thread's row."""
        return [const(self.type, -math.inf), ir.zero(self.type)]

    def store_products(self, products: Sequence[Val]) -> None:
        """Write the products of queries and keys."""
        stride = sum_stride(self.keys, self.type)
        self.score_engine.store_sums(products, self.tiles.scores, stride)

    def update(self, state: Sequence[Val], _products: Sequence[Val], key: Val) -> list[Val]:
        """As in `OnlineSoftmax`; the factors by which sums are rescaled go to shared memory."""
        b, (old_maximum, old_sum) = self.b, state
        maximum = self._store_scores(old_maximum, key)
        shift = _finite_maximum(b, maximum)
        row_sum = self._store_probabilities(shift)
        factor = MATH["exp"](b, b.fsub(old_maximum, shift))
        self._store_factor(factor)
        return [maximum, b.fma(old_sum, factor, row_sum)]

    def _store_scores(self, maximum: Val, key: Val) -> Val:
        """Replace products by scores; the maximum of the row."""
        b = self.b
        steps = i32_const(self.keys // self.lanes)
        with b.loop(i32_const(0), steps, _UNROLL, [maximum]) as loop:
            maximum = loop.carried[0]
            for column in self._columns(loop.index):
                address = self._score_address(column)
                product = b.load(self.type, address, self.itemsize)
                score = self.scores.score(product, self.row, b.add(key, column))
                b.store(score, address, self.itemsize)
                maximum = _maximum(b, maximum, score)
            loop.next(maximum)
        return _reduce_lanes(b, loop.carried[0], self.lanes, _maximum)

    def _store_probabilities(self, shift: Val) -> Val:
        """Write probabilities; their sum over the row."""
        b = self.b
        steps = i32_const(self.keys // self.lanes)
        with b.loop(i32_const(0), steps, _UNROLL, [ir.zero(self.type)]) as loop:
            total: Val = loop.carried[0]
            for column in self._columns(loop.index):
                score = b.load(self.type, self._score_address(column), self.itemsize)
                probability = MATH["exp"](b, b.fsub(score, shift))
                offset = b.zext(self.layout.offset(b, self.row, column), ir.i64)
                address = b.gep(self.tiles.probabilities, offset, ir.i8)
                b.store(probability, address, self.itemsize)
                total = b.fadd(total, probability)
            loop.next(total)
        return _reduce_lanes(b, loop.carried[0], self.lanes, _add)

    def _score_address(self, column: Val) -> Val:
        b = self.b
        row = b.mul(self.row, sum_stride(self.keys, self.type))
        return b.gep(self.tiles.scores, b.zext(b.add(row, column), ir.i64), self.type)

    def _columns(self, step: Val) -> list[Val]:
        """The columns of the row that this thread takes in one iteration."""
        b = self.b
        start = b.add(self.lane, b.mul(step, self.lanes))
        return [b.add(start, n * self.lanes) for n in range(_UNROLL)]

    def _store_factor(self, value: Val) -> None:
        b = self.b
        with b.if_then(b.icmp("eq", self.lane, 0)):
            address = b.gep(self.tiles.factors, b.zext(self.row, ir.i64), self.type)
            b.store(value, address, self.itemsize)

    def accumulate(self, sums: Sequence[Val]) -> list[Val]:
        """As in `OnlineSoftmax`."""
        scaled = self.result_engine.scale_rows(sums, self.tiles.factors)
        tiles = self.tiles.probabilities, self.tiles.values
        return self.result_engine.accumulate(*tiles, scaled)

    def store_row_sums(self, state: Sequence[Val]) -> None:
        """As in `OnlineSoftmax`."""
        self._store_factor(state[1])


class RegisterSoftmax:
    """Scores stay in the registers where tensor cores leave them, which is where they expect
    probabilities: four neighbouring lanes share two rows, which are eight apart.
    """

    def __init__(
        self,
        b: IntBuilder,
        plan: AttentionPlan,
        scores: Scores,
        engines: tuple[TensorEngine, TensorEngine],
        tiles: SharedTiles,
    ) -> None:
        self.b = b
        self.scores = scores
        self.score_engine, self.result_engine = engines
        self.tiles = tiles
        self.type = scores.type
        self.dtype = plan.sizes.dtype
        lane = self.score_engine.lane
        first = b.add(self.score_engine.row, b.udiv(lane, 4))
        self.rows = [first, b.add(first, MMA_ROWS // 2)]
        self.lane = b.urem(lane, 4)
        self.blocks = plan.tile.keys // MMA_COLUMNS
        self.factors: list[Val] = []
        self.fragments: list[list[list[Val]]] = []

    def initial_state(self) -> list[Val]:
        """The maxima of both rows, and the sums of the thread's own probabilities."""
        return [const(self.type, -math.inf)] * 2 + [ir.zero(self.type)] * 2

    def store_products(self, products: Sequence[Val]) -> None:
        """They stay in registers."""

    def update(self, state: Sequence[Val], products: Sequence[Val], key: Val) -> list[Val]:
        """As in `OnlineSoftmax`; the factors by which sums are rescaled stay in registers too."""
        b = self.b
        scores = [self._score(n, product, key) for n, product in enumerate(products)]
        probabilities, maxima, totals = list(scores), list[Val](), list[Val]()
        self.factors = []
        for half in range(2):
            registers = [n for n in range(len(scores)) if n % 4 // 2 == half]
            maximum = state[half]
            for n in registers:
                maximum = _maximum(b, maximum, scores[n])
            maximum = _reduce_lanes(b, maximum, 4, _maximum)
            shift = _finite_maximum(b, maximum)
            factor = MATH["exp"](b, b.fsub(state[half], shift))
            total = b.fmul(state[2 + half], factor)
            for n in registers:
                probabilities[n] = self._probability(b.fsub(scores[n], shift))
                total = b.fadd(total, probabilities[n])
            maxima.append(maximum)
            totals.append(total)
            self.factors.append(factor)
        terms = self._tf32_terms if self.dtype is f32 else self._half_terms
        width = MMA_BYTES // self.dtype.itemsize // MMA_COLUMNS
        self.fragments = [terms(probabilities, block) for block in range(0, self.blocks, width)]
        return [*maxima, *totals]

    def _score(self, n: int, product: Val, key: Val) -> Val:
        """Score ``n`` of the thread: two columns of either row in each block of eight."""
        b = self.b
        column = b.mul(self.lane, 2)
        column = b.add(b.add(key, column), n // 4 * MMA_COLUMNS + n % 2)
        return self.scores.score(product, self.rows[n % 4 // 2], column)

    def _probability(self, score: Val) -> Val:
        probability = MATH["exp"](self.b, score)
        scale = _SCALE.get(self.dtype.name)
        if scale is None:
            return probability
        return self.b.fmul(probability, const(self.type, scale))

    def _half_terms(self, probabilities: Sequence[Val], block: int) -> list[list[Val]]:
        """The terms of 16 columns of probabilities, each as four registers of two."""
        b = self.b
        remainders = list(probabilities[4 * block : 4 * block + 8])
        terms: list[list[Val]] = []
        for _ in range(_TERMS[self.dtype.name]):
            parts = [narrow(b, x, self.dtype) for x in remainders]
            remainders = [
                b.fsub(x, widen(b, part)) for x, part in zip(remainders, parts, strict=True)
            ]
            pairs = [build_vector(b, parts[n : n + 2]) for n in range(0, 8, 2)]
            terms.append([b.cast("bitcast", pair, ir.i32) for pair in pairs])
        return terms

    def _tf32_terms(self, probabilities: Sequence[Val], block: int) -> list[list[Val]]:
        """The terms of 8 columns of probabilities in tf32: neighbours belong to two matrices."""
        b = self.b
        remainders = [probabilities[4 * block + n] for n in (0, 2, 1, 3)]
        terms: list[list[Val]] = []
        for _ in range(_TERMS[self.dtype.name]):
            parts = [round_to_tf32(b, x) for x in remainders]
            remainders = [
                b.fsub(x, b.bitcast(part, self.type))
                for x, part in zip(remainders, parts, strict=True)
            ]
            terms.append(parts)
        return terms

    def accumulate(self, sums: Sequence[Val]) -> list[Val]:
        """As in `OnlineSoftmax`."""
        scaled = [self.b.fmul(s, self.factors[n % 4 // 2]) for n, s in enumerate(sums)]
        return self.result_engine.accumulate_registers(self.fragments, self.tiles.values, scaled)

    def store_row_sums(self, state: Sequence[Val]) -> None:
        """As in `OnlineSoftmax`."""
        b = self.b
        totals = [_reduce_lanes(b, total, 4, _add) for total in state[2:]]
        with b.if_then(b.icmp("eq", self.lane, 0)):
            for row, total in zip(self.rows, totals, strict=True):
                address = b.gep(self.tiles.factors, b.zext(row, ir.i64), self.type)
                b.store(total, address, self.type.bits // 8)

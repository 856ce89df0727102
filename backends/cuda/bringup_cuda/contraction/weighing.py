"""From scores to powers, and from powers to weighed sums: in registers where tensor cores multiply,
else through shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from bringup.dtypes import f32
from bringup.kernel.index import Axis, Expr
from bringup.llvm import text as ir
from bringup.llvm.math import MATH
from bringup.llvm.scalar import memory_type, narrow, widen
from bringup.llvm.steps.params import AttentionSizes
from bringup.llvm.text import Builder, Type, Val, const, vec
from bringup.records import record
from bringup_cuda.contraction.attention_plan import KEY, LEAD, QUERY, Planned
from bringup_cuda.contraction.engine import sum_stride, sum_type
from bringup_cuda.contraction.fma import FmaEngine
from bringup_cuda.contraction.points import Point, evaluate, is_wide, number
from bringup_cuda.contraction.tensor import BYTES, COLUMNS, ROWS, TensorEngine, rounded

_UNROLL = 4
#: Powers of f16 are kept this much greater, so that what one half leaves is not too small for the
#: next: none is above 1.
_LIFT = {"f16": 16384.0}
#: Numbers of the dtype, and of tf32, that make a power: they hold 22 to 24 bits of it.
_TERMS = {"f16": 2, "bf16": 3, "f32": 2}

Fold = Callable[[Builder, Val, Val], Val]


class Weigher(Protocol):
    """Keeps the greatest score and the sum of powers of rows."""

    def start(self) -> list[Val]:
        """The state before the first key."""

    def put(self, products: Sequence[Val]) -> None:
        """Leave the products of queries and keys where `weigh` finds them."""

    def weigh(self, state: Sequence[Val], products: Sequence[Val], key: Val) -> list[Val]:
        """Scores of the keys from ``key`` on become powers; the state after them."""

    def collect(self, sums: Sequence[Val]) -> list[Val]:
        """Shrink the sums so far and add the values weighed by powers."""

    def finish(self, state: Sequence[Val]) -> None:
        """Write the sums of powers of all rows to the array of factors."""


@record
class Tiles:
    """Addresses in shared memory, as in `attention_plan.Map`."""

    values: Val
    scores: Val
    powers: Val
    factors: Val


class Scores:
    """Products as scores: scaled, biased, and −inf where the query does not see the key.

    base: point of the batch.  first: the block's first query.  bias: its address.
    """

    def __init__(
        self, b: Builder, form: AttentionSizes, base: Point, first: Val, bias: Val | None
    ) -> None:
        self.b = b
        self.form = form
        self.base = base
        self.first = first
        self.bias = bias
        self.kind = sum_type(form.wide)

    def of(self, product: Val, row: Val, key: Val) -> Val:
        """The score of row ``row`` of the block and a key."""
        b, form = self.b, self.form
        query = b.add(self.first, row)
        score = b.fmul(product, const(self.kind, form.scale))
        bound = number(form.keys)
        if form.causal:
            past = b.add(query, number(form.keys - form.queries + 1))
            bound = b.intrinsic("llvm.smin", ir.i32, (bound, past))
        seen = b.icmp("slt", key, bound)
        if self.bias is not None:
            score = b.fadd(score, self._bias(self.bias, query, key, seen))
        return b.select(seen, score, const(self.kind, -math.inf))

    def _bias(self, start: Val, query: Val, key: Val, seen: Val) -> Val:
        b, form = self.b, self.form
        assert form.bias is not None
        axes = [Axis(LEAD + n, size) for n, size in enumerate(form.lead)]
        axes += [Axis(QUERY, form.queries), Axis(KEY, form.keys)]
        index, step = Expr(), 1
        for axis, size in zip(axes[::-1], form.bias[::-1], strict=True):
            if size != 1:
                index = index + Expr.of(axis) * step
            step *= size
        point = {**self.base, axes[-2]: query, axes[-1]: key}
        at = evaluate(b, index, point, is_wide(index))
        # Queries beyond the last are computed like any other, and not written.
        there = b.and_(seen, b.icmp("slt", query, number(form.queries)))
        at = b.select(there, at, const(at.type, 0))
        address = b.gep(start, b.sext(at, ir.i64), memory_type(form.dtype))
        return widen(b, b.load(memory_type(form.dtype), address, form.dtype.itemsize))


def level_of(b: Builder, top: Val) -> Val:
    """What is taken from scores before they become powers."""
    lowest = b.fcmp("oeq", top, const(top.type, -math.inf))
    return b.select(lowest, ir.zero(top.type), top)  # −inf − −inf would be NaN


def greater(b: Builder, x: Val, y: Val) -> Val:
    """The greater of two numbers; the second where the first is NaN."""
    return b.select(b.fcmp("ogt", x, y), x, y)


def total(b: Builder, x: Val, y: Val) -> Val:
    """The sum of two numbers."""
    return b.fadd(x, y)


def across(b: Builder, value: Val, lanes: int, fold: Fold) -> Val:
    """Combine the values of so many neighbouring lanes."""
    step = 1
    while step < lanes:
        value = fold(b, value, _shuffled(b, value, step))
        step *= 2
    return value


def _shuffled(b: Builder, value: Val, step: int) -> Val:
    kind = value.type
    words = kind.bits // 32
    whole = b.bitcast(value, ir.i32 if words == 1 else vec(ir.i32, words))
    everyone, last = number(-1), number(31)
    parts = [
        b.intrinsic(
            "llvm.nvvm.shfl.sync.bfly",
            ir.i32,
            (everyone, b.extractelement(whole, n), number(step), last),
        )
        for n in range(words)
    ]
    if words == 1:
        return b.bitcast(parts[0], kind)
    return b.cast("bitcast", joined(b, ir.i32, parts), kind)


def joined(b: Builder, kind: Type, values: Sequence[Val]) -> Val:
    """A vector of values."""
    made = ir.poison(vec(kind, len(values)))
    for n, value in enumerate(values):
        made = b.insertelement(made, value, n)
    return made


class SharedWeigher:
    """Scores and powers of a tile lie in shared memory; neighbouring threads share a row."""

    def __init__(
        self,
        b: Builder,
        planned: Planned,
        scores: Scores,
        engines: tuple[FmaEngine, FmaEngine],
        tiles: Tiles,
        mine: Val,
    ) -> None:
        self.b = b
        self.keys = planned.cut.keys
        self.layout = planned.powers
        self.scores = scores
        self.products, self.results = engines
        self.tiles = tiles
        self.kind = scores.kind
        self.bytes = self.kind.bits // 8
        self.lanes = planned.threads // planned.cut.queries
        self.row = b.udiv(mine, number(self.lanes))
        self.part = b.urem(mine, number(self.lanes))

    def start(self) -> list[Val]:
        """The greatest score and the sum of powers of the thread's row."""
        return [const(self.kind, -math.inf), ir.zero(self.kind)]

    def put(self, products: Sequence[Val]) -> None:
        """Write the products of queries and keys."""
        stride = sum_stride(self.keys, self.kind)
        self.products.put(products, self.tiles.scores, stride)

    def weigh(self, state: Sequence[Val], _products: Sequence[Val], key: Val) -> list[Val]:
        """Scores become powers; factors of rows are left for those who keep their sums."""
        b, (before, so_far) = self.b, state
        top = self._scored(before, key)
        level = level_of(b, top)
        own = self._powers(level)
        factor = MATH["exp"](b, b.fsub(before, level))
        self._put_row(factor)
        return [top, b.fma(so_far, factor, own)]

    def _scored(self, before: Val, key: Val) -> Val:
        """Write scores over products; the greatest of the row."""
        b = self.b
        turns = number(self.keys // self.lanes)
        with b.loop(number(0), turns, _UNROLL, [before]) as loop:
            best: Val = loop.carried[0]
            for column in self._columns(loop.index):
                address = self._score_at(column)
                product = b.load(self.kind, address, self.bytes)
                score = self.scores.of(product, self.row, b.add(key, column))
                b.store(score, address, self.bytes)
                best = greater(b, best, score)
            loop.next(best)
        return across(b, loop.carried[0], self.lanes, greater)

    def _powers(self, level: Val) -> Val:
        """Write powers; their sum over the row."""
        b = self.b
        turns = number(self.keys // self.lanes)
        with b.loop(number(0), turns, _UNROLL, [ir.zero(self.kind)]) as loop:
            found: Val = loop.carried[0]
            for column in self._columns(loop.index):
                score = b.load(self.kind, self._score_at(column), self.bytes)
                power = MATH["exp"](b, b.fsub(score, level))
                at = b.zext(self.layout.offset(b, self.row, column), ir.i64)
                b.store(power, b.gep(self.tiles.powers, at, ir.i8), self.bytes)
                found = b.fadd(found, power)
            loop.next(found)
        return across(b, loop.carried[0], self.lanes, total)

    def _score_at(self, column: Val) -> Val:
        b = self.b
        at = b.add(b.mul(self.row, number(sum_stride(self.keys, self.kind))), column)
        return b.gep(self.tiles.scores, b.zext(at, ir.i64), self.kind)

    def _columns(self, first: Val) -> list[Val]:
        """Columns of the row that this thread takes in one turn."""
        b = self.b
        start = b.add(self.part, b.mul(first, number(self.lanes)))
        return [b.add(start, number(n * self.lanes)) for n in range(_UNROLL)]

    def _put_row(self, value: Val) -> None:
        b = self.b
        with b.if_then(b.icmp("eq", self.part, number(0))):
            address = b.gep(self.tiles.factors, b.zext(self.row, ir.i64), self.kind)
            b.store(value, address, self.bytes)

    def collect(self, sums: Sequence[Val]) -> list[Val]:
        """Shrink the sums so far and add the values weighed by powers."""
        smaller = self.results.scale(sums, self.tiles.factors)
        return self.results.step(self.tiles.powers, self.tiles.values, smaller)

    def finish(self, state: Sequence[Val]) -> None:
        """Write the row's sum of powers."""
        self._put_row(state[1])


class RegisterWeigher:
    """Scores stay where tensor cores leave them, which is where they want powers: four neighbouring
    lanes share two rows, eight apart.
    """

    def __init__(
        self,
        b: Builder,
        planned: Planned,
        scores: Scores,
        engines: tuple[TensorEngine, TensorEngine],
        tiles: Tiles,
    ) -> None:
        self.b = b
        self.scores = scores
        self.products, self.results = engines
        self.tiles = tiles
        self.kind = scores.kind
        self.dtype = planned.form.dtype
        lane = self.products.lane
        first = b.add(self.products.row, b.udiv(lane, number(4)))
        self.rows = [first, b.add(first, number(ROWS // 2))]
        self.member = b.urem(lane, number(4))
        self.blocks = planned.cut.keys // COLUMNS
        self.factors: list[Val] = []
        self.powers: list[list[list[Val]]] = []

    def start(self) -> list[Val]:
        """Greatest scores of both rows, and sums of the thread's own powers."""
        return [const(self.kind, -math.inf)] * 2 + [ir.zero(self.kind)] * 2

    def put(self, products: Sequence[Val]) -> None:
        """They stay in registers."""

    def weigh(self, state: Sequence[Val], products: Sequence[Val], key: Val) -> list[Val]:
        """Scores become fragments of powers; factors stay in registers as well."""
        b = self.b
        scores = [self._score(n, product, key) for n, product in enumerate(products)]
        powers, tops, totals = list(scores), [], []
        self.factors = []
        for half in range(2):
            mine = [n for n in range(len(scores)) if n % 4 // 2 == half]
            top = state[half]
            for n in mine:
                top = greater(b, top, scores[n])
            top = across(b, top, 4, greater)
            level = level_of(b, top)
            factor = MATH["exp"](b, b.fsub(state[half], level))
            own = b.fmul(state[2 + half], factor)
            for n in mine:
                powers[n] = self._power(b.fsub(scores[n], level))
                own = b.fadd(own, powers[n])
            tops.append(top)
            totals.append(own)
            self.factors.append(factor)
        split = self._words if self.dtype is f32 else self._fragments
        width = BYTES // self.dtype.itemsize // COLUMNS
        self.powers = [split(powers, block) for block in range(0, self.blocks, width)]
        return [*tops, *totals]

    def _score(self, n: int, product: Val, key: Val) -> Val:
        """Number ``n`` of the thread: two columns of either row in each block of eight."""
        b = self.b
        column = b.mul(self.member, number(2))
        column = b.add(b.add(key, column), number(n // 4 * COLUMNS + n % 2))
        return self.scores.of(product, self.rows[n % 4 // 2], column)

    def _power(self, score: Val) -> Val:
        power = MATH["exp"](self.b, score)
        lift = _LIFT.get(self.dtype.name)
        return power if lift is None else self.b.fmul(power, const(self.kind, lift))

    def _fragments(self, powers: Sequence[Val], block: int) -> list[list[Val]]:
        """The terms of 16 columns of powers, each as four registers of two."""
        b = self.b
        left = list(powers[4 * block : 4 * block + 8])
        terms: list[list[Val]] = []
        for _ in range(_TERMS[self.dtype.name]):
            parts = [narrow(b, power, self.dtype) for power in left]
            left = [b.fsub(x, widen(b, part)) for x, part in zip(left, parts, strict=True)]
            pairs = [joined(b, parts[n].type, parts[n : n + 2]) for n in range(0, 8, 2)]
            terms.append([b.cast("bitcast", pair, ir.i32) for pair in pairs])
        return terms

    def _words(self, powers: Sequence[Val], block: int) -> list[list[Val]]:
        """The terms of 8 columns of powers in tf32: two neighbours are of two matrices."""
        b = self.b
        left = [powers[4 * block + n] for n in (0, 2, 1, 3)]
        terms: list[list[Val]] = []
        for _ in range(_TERMS[self.dtype.name]):
            parts = [rounded(b, power) for power in left]
            left = [b.fsub(x, b.bitcast(p, self.kind)) for x, p in zip(left, parts, strict=True)]
            terms.append(parts)
        return terms

    def collect(self, sums: Sequence[Val]) -> list[Val]:
        """Shrink the sums so far and add the values weighed by powers."""
        smaller = [self.b.fmul(s, self.factors[n % 4 // 2]) for n, s in enumerate(sums)]
        return self.results.multiply(self.powers, self.tiles.values, smaller)

    def finish(self, state: Sequence[Val]) -> None:
        """Write both rows' sums of powers."""
        b = self.b
        found = [across(b, own, 4, total) for own in state[2:]]
        with b.if_then(b.icmp("eq", self.member, number(0))):
            for row, value in zip(self.rows, found, strict=True):
                address = b.gep(self.tiles.factors, b.zext(row, ir.i64), self.kind)
                b.store(value, address, self.kind.bits // 8)

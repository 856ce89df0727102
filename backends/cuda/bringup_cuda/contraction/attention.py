"""Attention as one kernel: a block takes some queries along the keys once, with the greatest score
and the sum of powers so far; scores and powers of a few keys live in shared memory alone.

Halves go through tensor cores.  The row asks for f32 throughout, so powers, which are no halves,
are the sums of two or three of them: what one leaves, the next takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bringup.dtypes import DType, f32
from bringup.graph import Builder as GraphBuilder
from bringup.kernel import ops as kops
from bringup.kernel.form import BufferDecl, Fold, Kernel, Stage
from bringup.kernel.index import Axis, Expr
from bringup.llvm import text as ir
from bringup.llvm.math import MATH
from bringup.llvm.scalar import is_half, memory_type, narrow, widen
from bringup.llvm.simt import SimtKernel
from bringup.llvm.text import Builder, Module, Param, Val, const, vec
from bringup.program.program import OpStep
from bringup.records import record
from bringup_cuda.contraction.copying import CHUNK, Copier, Layout, Plan, Threads, plan_copy
from bringup_cuda.contraction.engine import Engine, sum_stride, sum_type
from bringup_cuda.contraction.fma import FmaEngine
from bringup_cuda.contraction.form import Contraction, Factor
from bringup_cuda.contraction.memory import shared_memory
from bringup_cuda.contraction.points import Point, decode, evaluate, is_wide, number
from bringup_cuda.contraction.tensor import TensorEngine
from bringup_cuda.contraction.tiles import Tile, has_async, shared_bytes

_MEMBER, _QUERY, _KEY, _DEPTH, _VALUE, _LEAD = 0, 1, 2, 3, 4, 8
_WARPS = (4, 1)
_Fold = Callable[[Builder, Val, Val], Val]
_UNROLL = 4
#: Powers of f16 are kept this much greater, so that what one half leaves is not too small for the
#: next: none is above 1.
_LIFT = {"f16": 16384.0}
#: Halves that hold 22 and 24 bits of a power.
_TERMS = {"f16": 2, "bf16": 3}


@record
class Form:
    """The sizes of one step.

    wide: the dtype of scores and sums.  bias: its shape, None if there is none.
    """

    dtype: DType
    wide: DType
    lead: tuple[int, ...]
    queries: int
    keys: int
    depth: int
    values: int
    scale: float
    causal: bool
    bias: tuple[int, ...] | None

    @property
    def batch(self) -> int:
        """Members."""
        return math.prod(self.lead)


def form_of(step: OpStep) -> Form:
    """The sizes of a step of the row ``attention``."""
    query, key, value, *bias = (slot.type for slot in step.operands)
    return Form(
        dtype=query.dtype,
        wide=f32 if is_half(query.dtype) else query.dtype,
        lead=query.shape[:-2],
        queries=query.shape[-2],
        keys=key.shape[-2],
        depth=query.shape[-1],
        values=value.shape[-1],
        scale=step.attrs["scale"],
        causal=step.attrs["causal"],
        bias=bias[0].shape if bias else None,
    )


@record
class Cut:
    """Queries and keys of a tile, inner elements and values of a piece."""

    queries: int
    keys: int
    depth: int
    values: int


#: From the most that a block may do to what fits anywhere.
CUTS = (
    Cut(64, 64, 128, 128),
    Cut(64, 32, 128, 128),
    Cut(64, 32, 64, 64),
    Cut(32, 32, 64, 64),
    Cut(32, 32, 32, 32),
)


def _power_of_two(n: int, least: int) -> int:
    return max(least, 1 << max(n - 1, 0).bit_length())


@record
class Planned:
    """How a step runs.  plans: the copies of queries, keys and values."""

    form: Form
    cut: Cut
    tensor: bool
    made: tuple[Contraction, Contraction]
    plans: tuple[Plan, Plan, Plan]

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * _WARPS[0] * _WARPS[1]

    @property
    def tiles(self) -> int:
        """Tiles of queries."""
        return -(-self.form.queries // self.cut.queries)

    @property
    def pieces(self) -> int:
        """Pieces of the values."""
        return -(-self.form.values // self.cut.values)

    @property
    def chunks(self) -> int:
        """Pieces of the depth."""
        return -(-self.form.depth // self.cut.depth)

    @property
    def terms(self) -> int:
        """Numbers that make one power."""
        return _TERMS[self.form.dtype.name] if self.tensor else 1

    @property
    def powers(self) -> Layout:
        """Of the powers in shared memory."""
        dtype = self.form.dtype if self.tensor else self.form.wide
        return Layout(self.cut.queries, self.cut.keys, dtype, True, self.tensor)

    def map(self) -> Map:
        """Where things lie in shared memory."""
        kind = sum_type(self.form.wide)
        size = kind.bits // 8
        scores = self.cut.queries * sum_stride(self.cut.keys, kind) * size
        sizes = [p.layout.nbytes for p in self.plans] + [scores]
        sizes += [self.powers.nbytes] * self.terms
        places = [sum(sizes[:n]) for n in range(len(sizes) + 1)]
        results = self.cut.queries * sum_stride(self.cut.values, kind) * size
        factors = max(places[-1], results)
        return Map(
            places[0],
            places[1],
            places[2],
            places[3],
            tuple(places[4:-1]),
            factors,
            factors + self.cut.queries * size,
        )


@record
class Map:
    """Offsets into shared memory; results go where everything before the factors was."""

    queries: int
    keys: int
    values: int
    scores: int
    powers: tuple[int, ...]
    factors: int
    nbytes: int


def plan_attention(form: Form, architecture: str) -> Planned:
    """How to run attention of these sizes."""
    least = shared_bytes(architecture)
    for most in CUTS:
        cut = Cut(
            most.queries,
            most.keys,
            min(most.depth, _power_of_two(form.depth, 16)),
            min(most.values, _power_of_two(form.values, 32)),
        )
        if form.queries <= 32 < cut.queries and most is not CUTS[-1] and not is_half(form.dtype):
            continue
        planned = _planned(form, cut, architecture)
        if planned is not None and planned.map().nbytes <= least // 2:
            return planned
    planned = _planned(form, cut, architecture)
    assert planned is not None, "the smallest cut fits every architecture"
    return planned


def _planned(form: Form, cut: Cut, architecture: str) -> Planned | None:
    later = has_async(architecture)
    tensor = later and is_half(form.dtype)
    if tensor and cut.queries != 16 * _WARPS[0]:
        return None
    products = _products(form), _weighed(form)
    sides = (
        (products[0], products[0].left, (cut.queries, cut.depth)),
        (products[0], products[0].right, (cut.keys, cut.depth)),
        (products[1], products[1].right, (cut.values, cut.keys)),
    )
    queries, keys, values = (
        plan_copy(m, f, f.narrow, s, tensor=tensor, later=later) for m, f, s in sides
    )
    return Planned(form, cut, tensor, products, (queries, keys, values))


def _axis(id_: int, size: int) -> Axis:
    return Axis(id_, size)


def _factors(form: Form, inner: Axis, *sides: tuple[int, Expr, Axis]) -> Contraction:
    """Two loads as the factors of a contraction."""
    builder = GraphBuilder()
    with builder:
        loads = [kops.load(buffer=n, dtype=form.dtype, index=index) for n, index, _ in sides]
    stage = Stage((inner,), builder.build(loads, "factors"), ())
    kernel = Kernel("attention", (), (), (stage,))
    left, right = (Factor(v, v, (s[2],)) for v, s in zip(loads, sides, strict=True))
    return Contraction(kernel, (), left, right, (inner,), Fold("add", form.wide, True), {})


def _products(form: Form) -> Contraction:
    """Scores: queries and keys over the depth."""
    query, key = _axis(_QUERY, form.queries), _axis(_KEY, form.keys)
    depth = _axis(_DEPTH, form.depth)
    return _factors(
        form,
        depth,
        (0, _rows(form, query, depth), query),
        (1, _rows(form, key, depth), key),
    )


def _weighed(form: Form) -> Contraction:
    """Results: the powers, which no load gives, and values over the keys."""
    key, value = _axis(_KEY, form.keys), _axis(_VALUE, form.values)
    index = _rows(form, key, value)
    return _factors(form, key, (2, index, key), (2, index, value))


def _rows(form: Form, row: Axis, column: Axis) -> Expr:
    member = Expr.of(_axis(_MEMBER, form.batch)) * (row.size * column.size)
    return member + Expr.of(row) * column.size + Expr.of(column)


def emit_attention(module: Module, planned: Planned, name: str) -> SimtKernel:
    """Emit planned attention as function ``name``: pointers to queries, keys, values, perhaps the
    bias, and the results.
    """
    return _Emitter(module, planned, name).run()


@dataclass(slots=True)
class _State:
    """What a thread carries from keys to keys: greatest score and sum of powers of its row."""

    top: Val
    total: Val
    sums: list[Val]


class _Emitter:
    def __init__(self, module: Module, planned: Planned, name: str) -> None:
        self.planned, self.form, self.cut = planned, planned.form, planned.cut
        self.name = name
        count = 5 if self.form.bias is not None else 4
        params: list[Param] = [(f"b{n}", ir.pointer(1)) for n in range(count)]
        attrs = f'nounwind "nvvm.reqntid"="{planned.threads}"'
        self.function = module.function(
            name, ir.void, params, attrs=attrs, calling_convention="ptx_kernel"
        )
        self.b = Builder(self.function.block("entry"))
        self.kind = sum_type(self.form.wide)
        self.map = planned.map()
        self.mine = self._read("tid.x")
        self.shared, self.dynamic = shared_memory(module, name, self.map.nbytes)
        self.lanes = planned.threads // self.cut.queries
        self.row = self.b.udiv(self.mine, number(self.lanes))
        self.part = self.b.urem(self.mine, number(self.lanes))
        self._place()
        self._copiers()
        self.scores, self.results = self._engines()

    def _read(self, register: str) -> Val:
        return self.b.intrinsic(f"llvm.nvvm.read.ptx.sreg.{register}", ir.i32, (), ())

    def _at(self, offset: int) -> Val:
        return self.b.gep(self.shared, offset, ir.i8)

    def _place(self) -> None:
        """The block's member, first query and first value."""
        b, planned, form = self.b, self.planned, self.form
        block = self._read("ctaid.x")
        piece, rest = b.urem(block, number(planned.pieces)), b.udiv(block, number(planned.pieces))
        tile, member = b.urem(rest, number(planned.tiles)), b.udiv(rest, number(planned.tiles))
        if form.causal:
            # The last queries see most keys: they begin first.
            tile = b.sub(number(planned.tiles - 1), tile)
        self.first = b.mul(tile, number(self.cut.queries))
        self.value = b.mul(piece, number(self.cut.values))
        lead = tuple(_axis(_LEAD + n, size) for n, size in enumerate(form.lead))
        point = {_axis(_MEMBER, form.batch): member}
        self.base: Point = {**point, **(decode(b, member, lead) if lead else {})}

    def _copiers(self) -> None:
        form, planned = self.form, self.planned
        buffers: list[tuple[BufferDecl, Val]] = []
        rows = (form.queries, form.depth), (form.keys, form.depth), (form.keys, form.values)
        for (n, m), pointer in zip(rows, self.function.args, strict=False):
            buffers.append((BufferDecl(form.dtype[form.batch, n, m], "in"), pointer))
        threads = Threads(self.mine, planned.threads)
        made = planned.made
        self.copy_queries = Copier(
            self.b, made[0], made[0].left, planned.plans[0], buffers, threads, self.base, self.first
        )
        self.copy_values = Copier(
            self.b,
            made[1],
            made[1].right,
            planned.plans[2],
            buffers,
            threads,
            self.base,
            self.value,
        )
        self._buffers, self._threads = buffers, threads

    def _key_copier(self, key: Val) -> Copier:
        """Copies of the keys from ``key`` on."""
        made, plan = self.planned.made[0], self.planned.plans[1]
        return Copier(self.b, made, made.right, plan, self._buffers, self._threads, self.base, key)

    def _engines(self) -> tuple[Engine, Engine]:
        plans, cut = self.planned.plans, self.cut
        pairs = (
            (cut.keys, plans[0].layout, plans[1].layout),
            (cut.values, self.planned.powers, plans[2].layout),
        )
        one, other = (self._engine(n, (left, right)) for n, left, right in pairs)
        return one, other

    def _engine(self, columns: int, layouts: tuple[Layout, Layout]) -> Engine:
        tile = Tile(self.cut.queries, columns, layouts[0].depth, 1, _WARPS, 1.0)
        if self.planned.tensor:
            return TensorEngine(self.b, tile, layouts, self.form.dtype, self.mine)
        return FmaEngine(self.b, tile, layouts, self.form.wide, self.mine)

    # -- copies

    def _commit(self) -> None:
        if any(plan.asynchronous for plan in self.planned.plans):
            self.b.intrinsic("llvm.nvvm.cp.async.commit.group", ir.void, (), ())

    def _wait(self, pending: int) -> None:
        if any(plan.asynchronous for plan in self.planned.plans):
            self.b.intrinsic("llvm.nvvm.cp.async.wait.group", ir.void, (number(pending),), ())
        self._barrier()

    def _barrier(self) -> None:
        self.b.intrinsic("llvm.nvvm.barrier0", ir.void, (), ())

    def _fetch(self, copier: Copier, first: Val, offset: int) -> None:
        copier.start(first, self._at(offset))
        copier.store(copier.load(first), self._at(offset))

    def _fetch_keys(self, key: Val, depth: Val) -> None:
        self._fetch(self._key_copier(key), depth, self.map.keys)

    # -- the loop

    def run(self) -> SimtKernel:
        """Emit all of it."""
        b, cut = self.b, self.cut
        whole = self.planned.chunks == 1
        blocks = self._blocks()
        if whole:
            self._fetch(self.copy_queries, number(0), self.map.queries)
            self._fetch_keys(number(0), number(0))
        self._commit()
        self._fetch(self.copy_values, number(0), self.map.values)
        self._commit()
        start = const(self.kind, -math.inf), ir.zero(self.kind), *self.results.start()
        with b.loop(number(0), blocks, 1, start) as loop:
            key = b.mul(loop.index, number(cut.keys))
            following = b.add(key, number(cut.keys))
            more = b.icmp("slt", b.add(loop.index, number(1)), blocks)
            if whole:
                self._wait(1)
                sums = self.scores.step(
                    self._at(self.map.queries), self._at(self.map.keys), self.scores.start()
                )
            else:
                sums = self._score_chunks(key)
            stride = sum_stride(cut.keys, self.kind)
            self.scores.put(sums, self._at(self.map.scores), stride)
            self._barrier()
            if whole:
                with b.if_then(more):
                    self._fetch_keys(following, number(0))
            self._commit()
            state = _State(loop.carried[0], loop.carried[1], list(loop.carried[2:]))
            self._weigh(state, key)
            self._wait(1)
            self._collect(state)
            self._barrier()
            with b.if_then(more):
                self._fetch(self.copy_values, following, self.map.values)
            self._commit()
            loop.next(state.top, state.total, *state.sums)
        self._wait(0)
        self._finish(loop.carried[1], loop.carried[2:])
        b.ret()
        count = self.form.batch * self.planned.tiles * self.planned.pieces
        return SimtKernel(self.name, count, self.planned.threads, self.dynamic, True)

    def _blocks(self) -> Val:
        """How many tiles of keys any query of the block sees."""
        b, form, cut = self.b, self.form, self.cut
        every = -(-form.keys // cut.keys)
        if not form.causal:
            return number(every)
        past = b.add(self.first, number(cut.queries + form.keys - form.queries))
        past = b.intrinsic("llvm.smax", ir.i32, (past, number(0)))
        seen = b.udiv(b.add(past, number(cut.keys - 1)), number(cut.keys))
        return b.intrinsic("llvm.smin", ir.i32, (seen, number(every)))

    def _score_chunks(self, key: Val) -> list[Val]:
        """Scores where queries and keys are too deep to lie in shared memory at once."""
        b, cut = self.b, self.cut
        zeros = self.scores.start()
        with b.loop(number(0), number(self.planned.chunks), 1, zeros) as loop:
            depth = b.mul(loop.index, number(cut.depth))
            self._barrier()
            self._fetch(self.copy_queries, depth, self.map.queries)
            self._fetch_keys(key, depth)
            self._commit()
            self._wait(0)
            tiles = self._at(self.map.queries), self._at(self.map.keys)
            loop.next(*self.scores.step(*tiles, loop.carried))
        return list(loop.carried)

    # -- powers

    def _score_at(self, column: Val) -> Val:
        b = self.b
        stride = sum_stride(self.cut.keys, self.kind)
        at = b.add(b.mul(self.row, number(stride)), column)
        return b.gep(self._at(self.map.scores), b.zext(at, ir.i64), self.kind)

    def _columns(self, first: Val) -> list[Val]:
        """Columns of the row that this thread takes in one turn."""
        b = self.b
        start = b.add(self.part, b.mul(first, number(self.lanes)))
        return [b.add(start, number(n * self.lanes)) for n in range(_UNROLL)]

    def _weigh(self, state: _State, key: Val) -> None:
        """Scores become powers; the state and the rows' factors follow."""
        b = self.b
        size = self.kind.bits // 8
        turns = self.cut.keys // self.lanes
        with b.loop(number(0), number(turns), _UNROLL, [state.top]) as loop:
            best: Val = loop.carried[0]
            for column in self._columns(loop.index):
                address = self._score_at(column)
                score = self._score(b.load(self.kind, address, size), key, column)
                b.store(score, address, size)
                best = _greater(b, best, score)
            loop.next(best)
        top = self._across(loop.carried[0], _greater)
        lowest = b.fcmp("oeq", top, const(self.kind, -math.inf))
        level = b.select(lowest, ir.zero(self.kind), top)  # −inf − −inf would be NaN
        with b.loop(number(0), number(turns), _UNROLL, [ir.zero(self.kind)]) as loop:
            total: Val = loop.carried[0]
            for column in self._columns(loop.index):
                score = b.load(self.kind, self._score_at(column), size)
                power = MATH["exp"](b, b.fsub(score, level))
                lift = _LIFT.get(self.form.dtype.name) if self.planned.tensor else None
                if lift is not None:
                    power = b.fmul(power, const(self.kind, lift))
                self._put(power, column)
                total = b.fadd(total, power)
            loop.next(total)
        factor = MATH["exp"](b, b.fsub(state.top, level))
        own = self._across(loop.carried[0], lambda b, x, y: b.fadd(x, y))
        state.total = b.fma(state.total, factor, own)
        state.top = top
        self._put_row(factor)

    def _put_row(self, value: Val) -> None:
        """A number of the row, for those who keep its sums."""
        b = self.b
        with b.if_then(b.icmp("eq", self.part, number(0))):
            at = b.gep(self._at(self.map.factors), b.zext(self.row, ir.i64), self.kind)
            b.store(value, at, self.kind.bits // 8)

    def _across(self, value: Val, fold: _Fold) -> Val:
        """Combine the lanes that share a row."""
        b, step = self.b, 1
        while step < self.lanes:
            value = fold(b, value, self._shuffled(value, step))
            step *= 2
        return value

    def _shuffled(self, value: Val, step: int) -> Val:
        b = self.b
        words = self.kind.bits // 32
        whole = b.bitcast(value, ir.i32 if words == 1 else vec(ir.i32, words))
        parts = [
            b.intrinsic(
                "llvm.nvvm.shfl.sync.bfly",
                ir.i32,
                (number(-1), b.extractelement(whole, n), number(step), number(31)),
            )
            for n in range(words)
        ]
        if words == 1:
            return b.bitcast(parts[0], self.kind)
        made = ir.poison(vec(ir.i32, words))
        for n, part in enumerate(parts):
            made = b.insertelement(made, part, n)
        return b.cast("bitcast", made, self.kind)

    def _score(self, product: Val, key: Val, column: Val) -> Val:
        """A product scaled, biased, and −inf where the query does not see the key."""
        b, form = self.b, self.form
        query, at = b.add(self.first, self.row), b.add(key, column)
        score = b.fmul(product, const(self.kind, form.scale))
        bound = number(form.keys)
        if form.causal:
            past = b.add(query, number(form.keys - form.queries + 1))
            bound = b.intrinsic("llvm.smin", ir.i32, (bound, past))
        seen = b.icmp("slt", at, bound)
        if form.bias is not None:
            score = b.fadd(score, self._bias(query, at, seen))
        return b.select(seen, score, const(self.kind, -math.inf))

    def _bias(self, query: Val, key: Val, seen: Val) -> Val:
        b, form = self.b, self.form
        assert form.bias is not None
        axes = [_axis(_LEAD + n, size) for n, size in enumerate(form.lead)]
        axes += [_axis(_QUERY, form.queries), _axis(_KEY, form.keys)]
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
        element = memory_type(form.dtype)
        address = b.gep(self.function.args[3], b.sext(at, ir.i64), element)
        return widen(b, b.load(element, address, form.dtype.itemsize))

    def _put(self, power: Val, column: Val) -> None:
        """A power where the second product finds it, as one number or as several halves."""
        b, layout = self.b, self.planned.powers
        at = b.zext(layout.offset(b, self.row, column), ir.i64)
        left = power
        for n, place in enumerate(self.map.powers):
            address = b.gep(self._at(place), at, ir.i8)
            part = narrow(b, left, layout.dtype)
            b.store(part, address, layout.dtype.itemsize)
            if n + 1 < len(self.map.powers):
                left = b.fsub(left, widen(b, part))

    # -- results

    def _collect(self, state: _State) -> None:
        """Shrink the sums so far and add the values weighed by powers."""
        sums = self.results.scale(state.sums, self._at(self.map.factors))
        for place in reversed(self.map.powers):
            sums = self.results.step(self._at(place), self._at(self.map.values), sums)
        state.sums = sums

    def _finish(self, total: Val, sums: Sequence[Val]) -> None:
        b, cut, form = self.b, self.cut, self.form
        size = self.kind.bits // 8
        stride = sum_stride(cut.values, self.kind)
        self._put_row(total)
        self.results.put(sums, self.shared, stride)
        self._barrier()
        lanes = CHUNK // form.dtype.itemsize
        lanes = lanes if form.values % lanes == 0 else 1
        units = cut.values // lanes
        with b.loop(self.mine, number(cut.queries * units), self.planned.threads) as loop:
            row = b.udiv(loop.index, number(units))
            column = b.mul(b.urem(loop.index, number(units)), number(lanes))
            query, value = b.add(self.first, row), b.add(self.value, column)
            inside = b.icmp("slt", query, number(form.queries))
            inside = b.and_(inside, b.icmp("slt", value, number(form.values)))
            with b.if_then(inside):
                place = b.zext(b.add(b.mul(row, number(stride)), column), ir.i64)
                address = b.gep(self.shared, place, self.kind)
                found = b.load(vec(self.kind, lanes), address, min(lanes * size, CHUNK))
                at = b.gep(self._at(self.map.factors), b.zext(row, ir.i64), self.kind)
                by = b.splat(b.load(self.kind, at, size), lanes)
                self._write(narrow(b, b.fdiv(found, by), form.dtype), query, value)

    def _write(self, value: Val, query: Val, column: Val) -> None:
        b, form = self.b, self.form
        query_axis, value_axis = _axis(_QUERY, form.queries), _axis(_VALUE, form.values)
        index = _rows(form, query_axis, value_axis)
        point = {**self.base, query_axis: query, value_axis: column}
        at = evaluate(b, index, point, is_wide(index))
        element = memory_type(form.dtype)
        address = b.gep(self.function.args[-1], b.sext(at, ir.i64), element)
        b.store(value, address, form.dtype.itemsize * value.type.lanes)


def _greater(b: Builder, x: Val, y: Val) -> Val:
    return b.select(b.fcmp("ogt", x, y), x, y)

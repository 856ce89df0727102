"""Attention as one kernel: a block takes some queries along the keys once, with the greatest score
and the sum of powers so far.

Halves go through tensor cores, and their scores and powers never leave registers.  The row asks for
f32 throughout, so powers, which are no halves, are the sums of two or three of them: what one
leaves, the next takes.  So does f32 where tf32 is asked for, which is about the factors and not
about what is only proportional to one.  Other floats multiply by FMA, and powers pass through
shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.kernel.form import BufferDecl
from bringup.kernel.index import Axis
from bringup.llvm import text as ir
from bringup.llvm.scalar import memory_type, narrow
from bringup.llvm.simt import SimtKernel
from bringup.llvm.text import Builder, Module, Param, Val, vec
from bringup_cuda.contraction.attention_plan import (
    LEAD,
    MEMBER,
    QUERY,
    VALUE,
    WARPS,
    Planned,
    rows_index,
)
from bringup_cuda.contraction.copying import Copier, Threads, shared_memory
from bringup_cuda.contraction.engine import Engine, sum_stride, sum_type
from bringup_cuda.contraction.fma import FmaEngine
from bringup_cuda.contraction.layout import CHUNK
from bringup_cuda.contraction.points import Point, decode, evaluate, is_wide, number
from bringup_cuda.contraction.tensor import TensorEngine
from bringup_cuda.contraction.tiles import Tile
from bringup_cuda.contraction.weighing import (
    RegisterWeigher,
    Scores,
    SharedWeigher,
    Tiles,
    Weigher,
)


def emit_attention(module: Module, planned: Planned, name: str) -> SimtKernel:
    """Emit planned attention as function ``name``: pointers to queries, keys, values, perhaps the
    bias, and the results.
    """
    return _Emitter(module, planned, name).run()


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
        self._place()
        self._copiers()
        self._multiply()

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
        lead = tuple(Axis(LEAD + n, size) for n, size in enumerate(form.lead))
        point = {Axis(MEMBER, form.batch): member}
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

    def _multiply(self) -> None:
        """What multiplies queries with keys and powers with values, and what is in between."""
        b, planned, cut = self.b, self.planned, self.cut
        queries, keys, values = (plan.layout for plan in planned.plans)
        scores = Tile(cut.queries, cut.keys, queries.depth, 1, WARPS, 1.0), (queries, keys)
        results = Tile(cut.queries, cut.values, cut.keys, 1, WARPS, 1.0), (planned.powers, values)
        bias = self.function.args[3] if self.form.bias is not None else None
        made = Scores(b, self.form, self.base, self.first, bias)
        places = self.map.values, self.map.scores, self.map.powers, self.map.factors
        tiles = Tiles(*(self._at(place) for place in places))
        self.products: Engine
        self.results: Engine
        self.weigher: Weigher
        if planned.tensor:
            dtype, mine = self.form.dtype, self.mine
            one = TensorEngine(b, *scores, dtype, mine)
            other = TensorEngine(b, *results, dtype, mine, paired=dtype is self.form.wide)
            self.weigher = RegisterWeigher(b, planned, made, (one, other), tiles)
            self.products, self.results = one, other
            return
        first, last = (FmaEngine(b, *of, self.form.wide, self.mine) for of in (scores, results))
        self.weigher = SharedWeigher(b, planned, made, (first, last), tiles, self.mine)
        self.products, self.results = first, last

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
        start = self.weigher.start()
        with b.loop(number(0), blocks, 1, [*start, *self.results.start()]) as loop:
            key = b.mul(loop.index, number(cut.keys))
            more = b.icmp("slt", b.add(loop.index, number(1)), blocks)
            products = self._products(key)
            self.weigher.put(products)
            self._barrier()
            following = b.add(key, number(cut.keys))
            if whole:
                with b.if_then(more):
                    self._fetch_keys(following, number(0))
            self._commit()
            state = self.weigher.weigh(loop.carried[: len(start)], products, key)
            self._wait(1)
            sums = self.weigher.collect(loop.carried[len(start) :])
            self._barrier()
            with b.if_then(more):
                self._fetch(self.copy_values, following, self.map.values)
            self._commit()
            loop.next(*state, *sums)
        self._wait(0)
        self.weigher.finish(loop.carried[: len(start)])
        self._finish(loop.carried[len(start) :])
        b.ret()
        count = self.form.batch * self.planned.tiles * self.planned.pieces
        return SimtKernel(self.name, count, self.planned.threads, self.dynamic, True)

    def _products(self, key: Val) -> list[Val]:
        """Of all queries with the keys from ``key`` on."""
        if self.planned.chunks > 1:
            return self._product_chunks(key)
        self._wait(1)
        tiles = self._at(self.map.queries), self._at(self.map.keys)
        return self.products.step(*tiles, self.products.start())

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

    def _product_chunks(self, key: Val) -> list[Val]:
        """The same where queries and keys are too deep to lie in shared memory at once."""
        b, cut = self.b, self.cut
        zeros = self.products.start()
        with b.loop(number(0), number(self.planned.chunks), 1, zeros) as loop:
            depth = b.mul(loop.index, number(cut.depth))
            self._barrier()
            self._fetch(self.copy_queries, depth, self.map.queries)
            self._fetch_keys(key, depth)
            self._commit()
            self._wait(0)
            tiles = self._at(self.map.queries), self._at(self.map.keys)
            loop.next(*self.products.step(*tiles, loop.carried))
        return list(loop.carried)

    # -- results

    def _finish(self, sums: Sequence[Val]) -> None:
        b, cut, form = self.b, self.cut, self.form
        size = self.kind.bits // 8
        stride = sum_stride(cut.values, self.kind)
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
        query_axis, value_axis = Axis(QUERY, form.queries), Axis(VALUE, form.values)
        index = rows_index(form, query_axis, value_axis)
        point = {**self.base, query_axis: query, value_axis: column}
        at = evaluate(b, index, point, is_wide(index))
        element = memory_type(form.dtype)
        address = b.gep(self.function.args[-1], b.sext(at, ir.i64), element)
        b.store(value, address, form.dtype.itemsize * value.type.lanes)

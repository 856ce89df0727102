"""Attention as one kernel: a block takes some queries along all keys once, with an online softmax.

f16 and bf16 are multiplied by tensor cores, and their scores and probabilities stay in registers.
The op asks for f32 throughout; so a probability is the sum of two or three numbers of the dtype,
each the rounded remainder of those before it.  The same holds for f32 where tf32 is asked for,
which allows less exact factors, but not less exact probabilities.  Other floats are multiplied by
FMA, and their probabilities pass through shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.graph.index import Axis
from bringup.integers import ceil_div
from bringup.kernel.form import BufferDecl
from bringup.llvm import text as ir
from bringup.llvm.scalar import memory_type, narrow
from bringup.llvm.simt import SimtKernel
from bringup.llvm.text import Module, Param, Val, vec
from bringup.program.program import OpStep
from bringup_cuda.codegen.commands import Clear, Command, Launch
from bringup_cuda.codegen.context import CodegenContext
from bringup_cuda.codegen.contraction.attention_params import AttentionParams
from bringup_cuda.codegen.contraction.attention_plan import (
    LEAD,
    MEMBER,
    QUERY,
    THREADS,
    VALUE,
    WARPS,
    AttentionPlan,
    plan_attention,
    row_major_index,
)
from bringup_cuda.codegen.contraction.engines import Engine, FmaEngine, TensorEngine
from bringup_cuda.codegen.contraction.online_softmax import (
    OnlineSoftmax,
    RegisterSoftmax,
    Scores,
    SharedMemorySoftmax,
    SharedTiles,
)
from bringup_cuda.codegen.contraction.points import Point, delinearize, emit_index
from bringup_cuda.codegen.contraction.staging import Threads, TileCopier
from bringup_cuda.codegen.contraction.tiles import CHUNK, Tile, sum_stride, sum_type
from bringup_cuda.codegen.nvvm import (
    SIMT,
    AsyncCopies,
    IntBuilder,
    block_barrier,
    i32_const,
    shared_memory,
    special_register,
)


def emit_attention_step(codegen: CodegenContext, step: OpStep) -> Sequence[Command]:
    """The commands of a step of the row ``attention``."""
    sizes = AttentionParams.of(step)
    (result,) = step.results
    if not sizes.batch * sizes.queries * sizes.values:  # pragma: no cover - folded before
        return []
    if not sizes.keys:
        return [Clear(result, result.type.nbytes)]
    kernel = codegen.emit_once(
        f"attention {sizes}",
        "attention",
        lambda name: emit_attention(codegen.module, plan_attention(sizes, codegen.target), name),
    )
    return [Launch(kernel, step.slots, step)]


def emit_attention(module: Module, plan: AttentionPlan, name: str) -> SimtKernel:
    """Emit planned attention as function ``name``, whose parameters are pointers to queries, keys,
    values, the bias if there is one, and the results.
    """
    return _AttentionEmitter(module, plan, name).emit()


class _AttentionEmitter:
    def __init__(self, module: Module, plan: AttentionPlan, name: str) -> None:
        self.plan, self.sizes, self.tile = plan, plan.sizes, plan.tile
        self.name = name
        count = 5 if self.sizes.bias is not None else 4
        params: list[Param] = [(f"b{n}", ir.pointer(SIMT.global_space)) for n in range(count)]
        self.function = module.function(
            name,
            ir.void,
            params,
            attrs=f'nounwind "nvvm.reqntid"="{THREADS}"',
            calling_convention=SIMT.calling_convention,
        )
        self.b = IntBuilder(self.function.block("entry"))
        self.sums_type = sum_type(self.sizes.wide)
        self.map = plan.shared_map()
        self.thread = special_register(self.b, "tid.x")
        self.shared, self.dynamic_bytes = shared_memory(module, name, self.map.nbytes)
        self.first_query, self.first_value, self.batch = self._block_position()
        self._buffers = [
            (BufferDecl(self.sizes.dtype[self.sizes.batch, rows, columns], "in"), pointer)
            for (rows, columns), pointer in zip(
                (
                    (self.sizes.queries, self.sizes.depth),
                    (self.sizes.keys, self.sizes.depth),
                    (self.sizes.keys, self.sizes.values),
                ),
                self.function.args,
                strict=False,
            )
        ]
        self.query_copier = self._copier(0, self.first_query)
        self.value_copier = self._copier(2, self.first_value)
        self.score_engine: Engine
        self.result_engine: Engine
        self.softmax: OnlineSoftmax
        self._make_engines()
        self.async_copies = AsyncCopies(self.b, any(copy.asynchronous for copy in plan.copies))

    def _shared_at(self, offset: int) -> Val:
        return self.b.gep(self.shared, offset, ir.i8)

    def _block_position(self) -> tuple[Val, Val, Point]:
        """The block's first query, its first value, and its member of the batch as a point."""
        b, plan, sizes = self.b, self.plan, self.sizes
        block, value_tiles = special_register(b, "ctaid.x"), i32_const(plan.value_tiles)
        value_tile, block = b.urem(block, value_tiles), b.udiv(block, value_tiles)
        query_tiles = i32_const(plan.query_tiles)
        query_tile, member = b.urem(block, query_tiles), b.udiv(block, query_tiles)
        if sizes.causal:
            # The last queries see most keys: they start first.
            query_tile = b.sub(i32_const(plan.query_tiles - 1), query_tile)
        first_query = b.mul(query_tile, self.tile.queries)
        first_value = b.mul(value_tile, self.tile.values)
        lead = tuple(Axis(LEAD + n, size) for n, size in enumerate(sizes.lead))
        batch = {Axis(MEMBER, sizes.batch): member, **delinearize(b, member, lead)}
        return first_query, first_value, batch

    def _copier(self, operand: int, first: Val) -> TileCopier:
        """Copies of queries, keys or values (0, 1 or 2), from row or column ``first`` on."""
        contraction = self.plan.contractions[operand // 2]
        factor = contraction.right if operand else contraction.left
        copy, threads = self.plan.copies[operand], Threads(self.thread, THREADS)
        return TileCopier(
            self.b, contraction, factor, copy, self._buffers, threads, self.batch, first
        )

    def _make_engines(self) -> None:
        b, plan, tile, sizes, thread = self.b, self.plan, self.tile, self.sizes, self.thread
        queries, keys, values = (copy.layout for copy in plan.copies)
        score = Tile(tile.queries, tile.keys, queries.depth, 1, WARPS, 1.0), (queries, keys)
        result = Tile(tile.queries, tile.values, tile.keys, 1, WARPS, 1.0)
        results = result, (plan.probabilities, values)
        bias = self.function.args[3] if sizes.bias is not None else None
        scores = Scores(b, sizes, self.batch, self.first_query, bias)
        offsets = self.map.values, self.map.scores, self.map.probabilities, self.map.factors
        tiles = SharedTiles(*(self._shared_at(offset) for offset in offsets))
        if plan.tensor:
            tensor_engines = (
                TensorEngine(b, *score, sizes.dtype, thread),
                TensorEngine(b, *results, sizes.dtype, thread, paired=sizes.dtype is sizes.wide),
            )
            self.score_engine, self.result_engine = tensor_engines
            self.softmax = RegisterSoftmax(b, plan, scores, tensor_engines, tiles)
            return
        engines = (
            FmaEngine(b, *score, sizes.wide, thread),
            FmaEngine(b, *results, sizes.wide, thread),
        )
        self.score_engine, self.result_engine = engines
        self.softmax = SharedMemorySoftmax(b, plan, scores, engines, tiles, thread)

    # -- the loop over keys

    def emit(self) -> SimtKernel:
        """Emit the whole kernel."""
        b, map_, one_step = self.b, self.map, self.plan.depth_steps == 1
        zero, tile_keys = i32_const(0), i32_const(self.tile.keys)
        blocks = self._key_tiles()
        if one_step:
            self._copy(self.query_copier, zero, map_.queries)
            self._copy_keys(zero, zero)
        self.async_copies.commit()
        self._copy(self.value_copier, zero, map_.values)
        self.async_copies.commit()
        state = self.softmax.initial_state()
        count = len(state)
        with b.loop(zero, blocks, 1, [*state, *self.result_engine.zero_sums()]) as loop:
            key = b.mul(loop.index, tile_keys)
            more = b.icmp("slt", b.add(loop.index, 1), blocks)
            products = self._score_products(key)
            self.softmax.store_products(products)
            block_barrier(b)
            next_key = b.add(key, tile_keys)
            if one_step:
                with b.if_then(more):
                    self._copy_keys(next_key, zero)
            self.async_copies.commit()
            state = self.softmax.update(loop.carried[:count], products, key)
            self._wait_for_copies(1)
            sums = self.softmax.accumulate(loop.carried[count:])
            block_barrier(b)
            with b.if_then(more):
                self._copy(self.value_copier, next_key, map_.values)
            self.async_copies.commit()
            loop.next(*state, *sums)
        self._wait_for_copies(0)
        self.softmax.store_row_sums(loop.carried[:count])
        self._store_results(loop.carried[count:])
        b.ret()
        grid = self.sizes.batch * self.plan.query_tiles * self.plan.value_tiles
        return SimtKernel(self.name, grid, THREADS, self.dynamic_bytes, True)

    def _copy(self, copier: TileCopier, first: Val, offset: int) -> None:
        copier.start(first, self._shared_at(offset))
        copier.store(copier.load(first), self._shared_at(offset))

    def _copy_keys(self, key: Val, depth: Val) -> None:
        self._copy(self._copier(1, key), depth, self.map.keys)

    def _wait_for_copies(self, pending: int) -> None:
        """Wait for the copies of all threads, except for the last ``pending`` groups."""
        self.async_copies.wait(pending)
        block_barrier(self.b)

    def _key_tiles(self) -> Val:
        """The number of tiles of keys that any query of the block sees."""
        b, sizes, tile = self.b, self.sizes, self.tile
        all_tiles = ceil_div(sizes.keys, tile.keys)
        if not sizes.causal:
            return i32_const(all_tiles)
        end = b.add(self.first_query, tile.queries + sizes.keys - sizes.queries)
        end = b.intrinsic("llvm.smax", ir.i32, (end, i32_const(0)))
        tiles = b.udiv(b.add(end, tile.keys - 1), tile.keys)
        return b.intrinsic("llvm.smin", ir.i32, (tiles, i32_const(all_tiles)))

    def _score_products(self, key: Val) -> list[Val]:
        """The products of all queries and the keys from ``key`` on.

        Where queries and keys are too deep to lie in shared memory, part after part of the depth.
        """
        b = self.b
        if self.plan.depth_steps == 1:
            self._wait_for_copies(1)
            tiles = self._shared_at(self.map.queries), self._shared_at(self.map.keys)
            return self.score_engine.accumulate(*tiles, self.score_engine.zero_sums())
        zeros = self.score_engine.zero_sums()
        with b.loop(i32_const(0), i32_const(self.plan.depth_steps), 1, zeros) as loop:
            depth = b.mul(loop.index, self.tile.depth)
            block_barrier(b)
            self._copy(self.query_copier, depth, self.map.queries)
            self._copy_keys(key, depth)
            self.async_copies.commit()
            self._wait_for_copies(0)
            tiles = self._shared_at(self.map.queries), self._shared_at(self.map.keys)
            loop.next(*self.score_engine.accumulate(*tiles, loop.carried))
        return list(loop.carried)

    # -- results

    def _store_results(self, sums: Sequence[Val]) -> None:
        """Divide the sums by the row sums of probabilities, and write them."""
        b, tile, sizes = self.b, self.tile, self.sizes
        itemsize = self.sums_type.bits // 8
        stride = sum_stride(tile.values, self.sums_type)
        self.result_engine.store_sums(sums, self.shared, stride)
        block_barrier(b)
        lanes = CHUNK // sizes.dtype.itemsize
        lanes = lanes if sizes.values % lanes == 0 else 1
        vectors = tile.values // lanes
        with b.loop(self.thread, i32_const(tile.queries * vectors), THREADS) as loop:
            row = b.udiv(loop.index, vectors)
            column = b.mul(b.urem(loop.index, vectors), lanes)
            query, value = b.add(self.first_query, row), b.add(self.first_value, column)
            inside = b.icmp("slt", query, sizes.queries)
            inside = b.and_(inside, b.icmp("slt", value, sizes.values))
            with b.if_then(inside):
                offset = b.zext(b.add(b.mul(row, stride), column), ir.i64)
                address = b.gep(self.shared, offset, self.sums_type)
                align = min(lanes * itemsize, CHUNK)
                total = b.load(vec(self.sums_type, lanes), address, align)
                factors = self._shared_at(self.map.factors)
                address = b.gep(factors, b.zext(row, ir.i64), self.sums_type)
                divisor = b.splat(b.load(self.sums_type, address, itemsize), lanes)
                self._store(narrow(b, b.fdiv(total, divisor), sizes.dtype), query, value)

    def _store(self, result: Val, query: Val, value: Val) -> None:
        b, sizes = self.b, self.sizes
        query_axis, value_axis = Axis(QUERY, sizes.queries), Axis(VALUE, sizes.values)
        index = row_major_index(sizes, query_axis, value_axis)
        position = emit_index(b, index, {**self.batch, query_axis: query, value_axis: value})
        element = memory_type(sizes.dtype)
        address = b.gep(self.function.args[-1], b.sext(position, ir.i64), element)
        b.store(result, address, sizes.dtype.itemsize * result.type.lanes)

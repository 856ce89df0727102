"""The kernel of a contraction by warpgroups: tiles, a pipeline of copies, and the epilogue.

Each block keeps the sums of a tile of rows times columns.  Tiles of both factors come in stages:
while one is multiplied, the next ones are on their way.  The sums then pass through shared memory,
so that the epilogue, which is the part of the fused kernel after its sum, reads and writes
neighbouring elements in wide accesses.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.graph import Value
from bringup.integers import ceil_div
from bringup.kernel.contraction import size
from bringup.kernel.form import BufferDecl, Store
from bringup.llvm import text as ir
from bringup.llvm.simt import SimtKernel
from bringup.llvm.text import Module, Param, Val, const, vec
from bringup_cuda.codegen.contraction.engines import WarpgroupEngine
from bringup_cuda.codegen.contraction.planning import ContractionPlan
from bringup_cuda.codegen.contraction.points import (
    Point,
    PointBody,
    delinearize,
    neighbours,
    widest_store,
)
from bringup_cuda.codegen.contraction.staging import SWIZZLE_PERIOD, Threads, TileCopier
from bringup_cuda.codegen.contraction.tiles import CHUNK, sum_stride, sum_type
from bringup_cuda.codegen.nvvm import (
    SIMT,
    AsyncCopies,
    IntBuilder,
    block_barrier,
    i32_const,
    shared_memory,
    special_register,
)

#: Rows of tiles whose blocks follow each other, so that they find the same columns in L2.
_RASTER_ROWS = 8


def emit_contraction(module: Module, plan: ContractionPlan, name: str) -> SimtKernel:
    """Emit a planned contraction as function ``name``, whose parameters are pointers to its
    buffers in order.
    """
    return _ContractionEmitter(module, plan, name).emit()


class _ContractionEmitter:
    def __init__(self, module: Module, plan: ContractionPlan, name: str) -> None:
        self.plan = plan
        self.contraction = plan.contraction
        self.name = name
        self.threads = plan.tile.threads
        kernel = self.contraction.kernel
        pointer = ir.pointer(SIMT.global_space)
        params: list[Param] = [(f"b{i}", pointer) for i in range(len(kernel.buffers))]
        # The assembler gives each thread the registers that this many resident blocks leave.
        attrs = f'nounwind "nvvm.reqntid"="{self.threads}" "nvvm.minctasm"="{plan.resident}"'
        function = module.function(
            name, ir.void, params, attrs=attrs, calling_convention=SIMT.calling_convention
        )
        self.b = IntBuilder(function.block("entry"))
        self.buffers: list[tuple[BufferDecl, Val]] = list(
            zip(kernel.buffers, function.args, strict=True)
        )
        self.thread = special_register(self.b, "tid.x")
        self.shared, self.dynamic_bytes = shared_memory(module, name, plan.shared_bytes)
        self.shared = _aligned(self.b, self.shared, SWIZZLE_PERIOD)
        self.async_copies = AsyncCopies(self.b, any(copy.asynchronous for copy in plan.copies))

    def emit(self) -> SimtKernel:
        """Emit the whole kernel."""
        b, plan, contraction, tile = self.b, self.plan, self.contraction, self.plan.tile
        member, down, across = self._block_position()
        batch = delinearize(b, member, contraction.batch)
        first = b.mul(down, tile.rows), b.mul(across, tile.columns)
        engine = self._engine()
        factors = contraction.left, contraction.right
        threads = Threads(self.thread, self.threads)
        copiers = [
            TileCopier(b, contraction, factor, copy, self.buffers, threads, batch, start)
            for factor, copy, start in zip(factors, plan.copies, first, strict=True)
        ]
        sums = self._pipeline(copiers, engine)
        sums_type = sum_type(contraction.fold.dtype)
        engine.store_sums(sums, self.shared, sum_stride(tile.columns, sums_type))
        block_barrier(b)
        self._epilogue(batch, first)
        b.ret()
        return SimtKernel(self.name, plan.blocks, self.threads, self.dynamic_bytes, True)

    def _engine(self) -> WarpgroupEngine:
        plan = self.plan
        assert plan.tensor is not None, "all other contractions have steps"
        layouts = plan.copies[0].layout, plan.copies[1].layout
        return WarpgroupEngine(self.b, plan.tile, layouts, plan.tensor, self.thread)

    def _block_position(self) -> tuple[Val, Val, Val]:
        """The block's member of the batch, and its tile down and across."""
        b = self.b
        down, across = self.plan.grid
        block, tiles = special_register(b, "ctaid.x"), i32_const(down * across)
        member, tile = b.udiv(block, tiles), b.urem(block, tiles)
        if down <= 1 or across <= 1:
            return member, b.udiv(tile, across), b.urem(tile, across)
        group = b.udiv(tile, _RASTER_ROWS * across)
        start = b.mul(group, _RASTER_ROWS)
        within = b.urem(tile, _RASTER_ROWS * across)
        rows = b.sub(i32_const(down), start)
        rows = b.intrinsic("llvm.umin", ir.i32, (rows, i32_const(_RASTER_ROWS)))
        return member, b.add(start, b.urem(within, rows)), b.udiv(within, rows)

    # -- the pipeline

    def _slots(self, stage: Val) -> tuple[Val, Val]:
        """The start of a stage's tiles of both factors."""
        b = self.b
        left, right = (copy.layout.nbytes for copy in self.plan.copies)
        offset = b.zext(b.mul(stage, left + right), ir.i64)
        start = b.gep(self.shared, offset, ir.i8)
        return start, b.gep(start, left, ir.i8)

    def _pipeline(self, copiers: Sequence[TileCopier], engine: WarpgroupEngine) -> list[Val]:
        """The sums of all tiles along the inner axes."""
        depth, prefetch = self.plan.copies[0].layout.depth, self.plan.tile.prefetch
        steps = ceil_div(size(self.contraction.inner), depth)
        for n in range(min(prefetch, steps)):
            slots = self._slots(i32_const(n))
            for copier, slot in zip(copiers, slots, strict=True):
                copier.start(i32_const(n * depth), slot)
                copier.store(copier.load(i32_const(n * depth)), slot)
            self.async_copies.commit()
        # Waits count groups of copies, so a short sum needs empty ones.
        for _ in range(prefetch - steps):
            self.async_copies.commit()
        return self._pipeline_loop(copiers, engine, steps)

    def _pipeline_loop(
        self, copiers: Sequence[TileCopier], engine: WarpgroupEngine, steps: int
    ) -> list[Val]:
        b, tile = self.b, self.plan.tile
        depth, prefetch = self.plan.copies[0].layout.depth, tile.prefetch
        carried = [i32_const(0), i32_const(prefetch), *engine.zero_sums()]
        # The assembler of CUDA 12.9 crashes where it unrolls a loop that waits for warpgroups.
        rolled = b.module.loop_hints("llvm.loop.unroll.disable")
        with b.loop(i32_const(0), i32_const(steps), 1, carried, meta=rolled) as loop:
            stage, free = loop.carried[:2]
            sums: list[Val] = list(loop.carried[2:])
            self.async_copies.wait(prefetch - 1)
            engine.before_barrier()
            block_barrier(b)
            sums = engine.accumulate(*self._slots(stage), sums)
            fetched = b.add(loop.index, prefetch)
            more = b.icmp("slt", fetched, steps)
            slots = self._slots(free)
            first = b.mul(fetched, depth)
            values = self._start_copies(copiers, first, more, slots)
            self.async_copies.commit()
            if any(values):
                with b.if_then(more):
                    for copier, elements, slot in zip(copiers, values, slots, strict=True):
                        copier.store(elements, slot)
            loop.next(self._next_stage(stage), self._next_stage(free), *sums)
        sums = engine.finish(loop.carried[2:])
        self.async_copies.wait(0)
        block_barrier(b)
        return sums

    def _next_stage(self, stage: Val) -> Val:
        b = self.b
        following = b.add(stage, 1)
        wraps = b.icmp("eq", following, self.plan.tile.stages)
        return b.select(wraps, i32_const(0), following)

    def _start_copies(
        self, copiers: Sequence[TileCopier], first: Val, more: Val, slots: tuple[Val, Val]
    ) -> list[list[Val]]:
        """Start the copies that may overlap with products, and load all other elements to
        registers: those of each copier.
        """
        values: list[list[Val]] = []

        def start() -> list[Val]:
            for copier, slot in zip(copiers, slots, strict=True):
                copier.start(first, slot)
                values.append(copier.load(first))
            return [element for elements in values for element in elements]

        def zeros() -> list[Val]:
            return [ir.zero(element.type) for elements in values for element in elements]

        elements = self.b.cond(more, start, zeros)
        count = len(values[0])
        return [list(elements[:count]), list(elements[count:])]

    # -- the epilogue

    def _epilogue(self, batch: Point, first: tuple[Val, Val]) -> None:
        b, contraction, tile = self.b, self.contraction, self.plan.tile
        sinks = [s for stage in contraction.epilogue for s in stage.stores]
        lanes = widest_store(sinks, contraction.kernel.buffers, contraction.right.axes)
        lanes = min(lanes, tile.columns)
        vectors = tile.columns // lanes
        with b.loop(self.thread, i32_const(tile.rows * vectors), self.threads) as loop:
            row = b.udiv(loop.index, vectors)
            column = b.mul(b.urem(loop.index, vectors), lanes)
            position = b.add(first[0], row), b.add(first[1], column)
            rows, columns = size(contraction.left.axes), size(contraction.right.axes)
            inside = b.icmp("ult", position[0], rows)
            inside = b.and_(inside, b.icmp("ult", position[1], columns))
            with b.if_then(inside):
                self._finish_sums(batch, position, (row, column), lanes)

    def _finish_sums(
        self, batch: Point, position: tuple[Val, Val], within: tuple[Val, Val], lanes: int
    ) -> None:
        """Run the epilogue on ``lanes`` sums of one row.  within: the position in the tile."""
        b, contraction = self.b, self.contraction
        sums_type = sum_type(contraction.fold.dtype)
        stride = sum_stride(self.plan.tile.columns, sums_type)
        offset = b.add(b.mul(within[0], stride), within[1])
        address = b.gep(self.shared, b.zext(offset, ir.i64), sums_type)
        align = min(lanes * sums_type.bits // 8, CHUNK)
        total = b.load(vec(sums_type, lanes), address, align)
        row = {**batch, **delinearize(b, position[0], contraction.left.axes)}
        columns = neighbours(b, position[1], contraction.right.axes, lanes)
        points = [{**row, **column} for column in columns]
        body = PointBody(b, self.buffers, points, contraction.right.axes, None)
        for stage in contraction.epilogue:
            values: dict[Value, Val] = dict(zip(stage.body.inputs, [total], strict=False))
            body.run(stage.body.instrs, values)
            for sink, output in zip(stage.sinks, stage.body.outputs, strict=True):
                assert isinstance(sink, Store), sink
                body.store(sink, body.spread(values[output]))


def _aligned(b: IntBuilder, start: Val, alignment: int) -> Val:
    """The first multiple of ``alignment`` at or after an address in shared memory; CUDA promises no
    more than the alignment of `shared_memory`.
    """
    address = b.ptrtoint(start, ir.i64)
    padding = b.and_(b.sub(const(ir.i64, 0), address), alignment - 1)
    return b.gep(start, padding, ir.i8)

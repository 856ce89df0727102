"""The kernel of a contraction: blocks of tiles, a pipeline of copies, products, and the epilogue.

Each block keeps the sums of a tile of rows times columns.  Tiles of both factors come in stages:
while one is multiplied, the next ones are on their way.  The sums then pass through shared memory,
so that the epilogue, which is whatever the fused kernel has after its sum, reads and writes
neighbouring elements in wide accesses.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.graph import Value
from bringup.kernel.contraction import Contraction, size
from bringup.kernel.form import BufferDecl, Store
from bringup.llvm import text as ir
from bringup.llvm.scalar import register_type
from bringup.llvm.simt import SimtKernel
from bringup.llvm.text import Builder, Function, Module, Param, Val, vec
from bringup_cuda.contraction.copying import Copier, Threads, aligned, neighbours, shared_memory
from bringup_cuda.contraction.engine import Engine, sum_stride, sum_type
from bringup_cuda.contraction.fma import FmaEngine
from bringup_cuda.contraction.layout import CHUNK, TURN, Plan
from bringup_cuda.contraction.planning import Planned, Side
from bringup_cuda.contraction.points import Point, Points, decode, number, widest_store

_GLOBAL = 1
#: Rows of tiles whose blocks follow each other, so that they find each other's columns in L2.
_GROUP = 8


def emit_contraction(module: Module, planned: Planned, name: str) -> SimtKernel:
    """Emit a planned contraction as function ``name``, whose parameters are pointers to its
    buffers in order.
    """
    return _Emitter(module, planned, name).run()


class _Emitter:
    def __init__(self, module: Module, planned: Planned, name: str) -> None:
        self.module = module
        self.planned = planned
        self.made: Contraction = planned.made
        self.name = name
        kernel = self.made.kernel
        pointer = ir.pointer(_GLOBAL)
        params: list[Param] = [(f"b{i}", pointer) for i in range(len(kernel.buffers))]
        self.threads = planned.tile.threads
        # The assembler gives each thread as many registers as that many threads leave.
        attrs = f'nounwind "nvvm.reqntid"="{self.threads}" "nvvm.minctasm"="{planned.resident}"'
        self.function: Function = module.function(
            name, ir.void, params, attrs=attrs, calling_convention="ptx_kernel"
        )
        self.b = Builder(self.function.block("entry"))
        self.buffers: list[tuple[BufferDecl, Val]] = list(
            zip(kernel.buffers, self.function.args, strict=True)
        )
        self.mine = self._read("tid.x")
        self.shared, self.dynamic = shared_memory(module, name, planned.shared_bytes)
        if planned.tile.warpgroups:
            self.shared = aligned(self.b, self.shared, TURN)

    def _read(self, register: str) -> Val:
        return self.b.intrinsic(f"llvm.nvvm.read.ptx.sreg.{register}", ir.i32, (), ())

    def run(self) -> SimtKernel:
        """Emit all of it."""
        b, tile = self.b, self.planned.tile
        batch, down, across = self._place()
        base = decode(b, batch, self.made.batch) if self.made.batch else {}
        first = b.mul(down, number(tile.rows)), b.mul(across, number(tile.columns))
        plans = self.planned.plans
        engine = self._engine(plans)
        copiers = [
            Copier(
                b,
                self.made,
                factor,
                plan,
                self.buffers,
                Threads(self.mine, self.threads),
                base,
                start,
            )
            for factor, plan, start in zip(
                (self.made.left, self.made.right), plans, first, strict=True
            )
        ]
        sums = self._pipeline(copiers, engine)
        kind = sum_type(self.made.fold.dtype)
        engine.put(sums, self.shared, sum_stride(tile.columns, kind))
        self._barrier()
        self._epilogue(base, first)
        b.ret()
        return SimtKernel(self.name, self.planned.blocks, self.threads, self.dynamic, True)

    def _engine(self, plans: tuple[Plan, Plan]) -> Engine:
        layouts = plans[0].layout, plans[1].layout
        if self.planned.tile.warpgroups:
            from bringup_cuda.contraction.warpgroup import WarpgroupEngine

            assert self.planned.tensor is not None, "they multiply nothing else"
            return WarpgroupEngine(
                self.b, self.planned.tile, layouts, self.planned.tensor, self.mine
            )
        if self.planned.tensor is not None:
            from bringup_cuda.contraction.tensor import TensorEngine

            return TensorEngine(self.b, self.planned.tile, layouts, self.planned.tensor, self.mine)
        return FmaEngine(self.b, self.planned.tile, layouts, self.made.fold.dtype, self.mine)

    def _place(self) -> tuple[Val, Val, Val]:
        """The block's member of the batch, and its tile down and across."""
        b = self.b
        down, across = self.planned.grid
        block = self._read("ctaid.x")
        batch, rest = b.udiv(block, number(down * across)), b.urem(block, number(down * across))
        if down <= 1 or across <= 1:
            return batch, b.udiv(rest, number(across)), b.urem(rest, number(across))
        group = b.udiv(rest, number(_GROUP * across))
        start = b.mul(group, number(_GROUP))
        within = b.urem(rest, number(_GROUP * across))
        rows = b.intrinsic("llvm.umin", ir.i32, (b.sub(number(down), start), number(_GROUP)))
        return batch, b.add(start, b.urem(within, rows)), b.udiv(within, rows)

    def _barrier(self) -> None:
        self.b.intrinsic("llvm.nvvm.barrier0", ir.void, (), ())

    # -- the pipeline

    def _slots(self, stage: Val) -> tuple[Val, Val]:
        """Where a stage's tiles of both factors begin."""
        b = self.b
        left, right = (plan.layout.nbytes for plan in self.planned.plans)
        at = b.zext(b.mul(stage, number(left + right)), ir.i64)
        start = b.gep(self.shared, at, ir.i8)
        return start, b.gep(start, left, ir.i8)

    @property
    def _later(self) -> bool:
        """Whether some copies are asynchronous."""
        return any(plan.asynchronous for plan in self.planned.plans)

    def _pipeline(self, copiers: Sequence[Copier], engine: Engine) -> list[Val]:
        """The sums of all tiles along the inner axes."""
        depth, ahead = self.planned.plans[0].layout.depth, self.planned.tile.ahead
        trips = -(-size(self.made.inner) // depth)
        for n in range(min(ahead, trips)):
            self._fetch(copiers, number(n * depth), number(n))
        # What is waited for is counted in groups, of which there are as many for a short sum.
        for _ in range(ahead - trips):
            self._commit()
        return self._loop(copiers, engine, trips)

    def _fetch(self, copiers: Sequence[Copier], first: Val, stage: Val) -> None:
        """Bring the tiles that start at ``first``, one group of copies."""
        for copier, slot in zip(copiers, self._slots(stage), strict=True):
            copier.start(first, slot)
            copier.store(copier.load(first), slot)
        self._commit()

    def _commit(self) -> None:
        if self._later:
            self.b.intrinsic("llvm.nvvm.cp.async.commit.group", ir.void, (), ())

    def _wait(self, pending: int) -> None:
        """Until this thread's copies are there but for the last groups."""
        if self._later:
            self.b.intrinsic("llvm.nvvm.cp.async.wait.group", ir.void, (number(pending),), ())

    def _loop(self, copiers: Sequence[Copier], engine: Engine, trips: int) -> list[Val]:
        b, planned = self.b, self.planned
        ahead, later = planned.tile.ahead, planned.tile.warpgroups
        depth = planned.plans[0].layout.depth
        with b.loop(
            number(0), number(trips), 1, [number(0), number(ahead), *engine.start()]
        ) as loop:
            stage, free = loop.carried[:2]
            sums: list[Val] = list(loop.carried[2:])
            self._wait(ahead - 1)
            engine.meet()
            self._barrier()
            if later:
                sums = engine.step(*self._slots(stage), sums)
            coming = b.add(loop.index, number(ahead))
            more = b.icmp("slt", coming, number(trips))
            slots = self._slots(free)
            values = self._start_next(copiers, b.mul(coming, number(depth)), more, slots)
            self._commit()
            if not later:
                sums = engine.step(*self._slots(stage), sums)
            self._store_next(copiers, values, more, slots)
            loop.next(self._after(stage), self._after(free), *sums)
        sums = engine.finish(loop.carried[2:])
        self._wait(0)
        self._barrier()
        return sums

    def _after(self, stage: Val) -> Val:
        b = self.b
        following = b.add(stage, number(1))
        over = b.icmp("eq", following, number(self.planned.tile.stages))
        return b.select(over, number(0), following)

    def _start_next(
        self, copiers: Sequence[Copier], first: Val, more: Val, slots: tuple[Val, Val]
    ) -> list[list[Val]]:
        """Begin what can be copied while products are summed, and load the rest to registers."""
        found: list[list[Val]] = []

        def start() -> list[Val]:
            for copier, slot in zip(copiers, slots, strict=True):
                copier.start(first, slot)
                found.append(copier.load(first))
            return [value for values in found for value in values]

        def nothing() -> list[Val]:
            return [ir.zero(value.type) for values in found for value in values]

        flat = self.b.cond(more, start, nothing)
        count = len(found[0])
        return [list(flat[:count]), list(flat[count:])]

    def _store_next(
        self,
        copiers: Sequence[Copier],
        values: Sequence[Sequence[Val]],
        more: Val,
        slots: tuple[Val, Val],
    ) -> None:
        if not any(values):
            return
        with self.b.if_then(more):
            for copier, found, slot in zip(copiers, values, slots, strict=True):
                copier.store(found, slot)

    # -- the epilogue

    def _epilogue(self, base: Point, first: tuple[Val, Val]) -> None:
        b, made, tile = self.b, self.made, self.planned.tile
        sinks = [s for stage in made.epilogue for s in stage.stores]
        buffers = made.kernel.buffers
        lanes = min(widest_store(sinks, buffers, made.right.axes), tile.columns)
        units = tile.columns // lanes
        with b.loop(self.mine, number(tile.rows * units), self.threads) as loop:
            row = b.udiv(loop.index, number(units))
            column = b.mul(b.urem(loop.index, number(units)), number(lanes))
            at = b.add(first[0], row), b.add(first[1], column)
            sides: list[Side] = [made.left, made.right]
            inside: Val | None = None
            for place, side in zip(at, sides, strict=True):
                bound = b.icmp("ult", place, number(size(side.axes)))
                inside = bound if inside is None else b.and_(inside, bound)
            assert inside is not None
            with b.if_then(inside):
                self._finish(base, at, (row, column), lanes)

    def _finish(
        self, base: Point, at: tuple[Val, Val], within: tuple[Val, Val], lanes: int
    ) -> None:
        """The epilogue of ``lanes`` sums of one row."""
        b, made = self.b, self.made
        kind = sum_type(made.fold.dtype)
        stride = sum_stride(self.planned.tile.columns, kind)
        place = b.add(b.mul(within[0], number(stride)), within[1])
        address = b.gep(self.shared, b.zext(place, ir.i64), kind)
        align = min(lanes * kind.bits // 8, CHUNK)
        total = b.load(vec(kind, lanes), address, align)
        to = register_type(made.fold.dtype)
        if to.is_int and to.bits < kind.bits:
            total = b.trunc(total, to)
        row = {**base, **decode(b, at[0], made.left.axes)}
        columns = neighbours(b, at[1], made.right.axes, lanes)
        points = [{**row, **column} for column in columns]
        work = Points(b, self.buffers, points, made.right.axes, None)
        for stage in made.epilogue:
            values: dict[Value, Val] = dict(zip(stage.body.inputs, [total], strict=False))
            work.run(stage.body.instrs, values)
            for sink, output in zip(stage.sinks, stage.body.outputs, strict=True):
                assert isinstance(sink, Store), sink
                work.store(sink, work.spread(values[output]))

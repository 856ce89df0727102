"""Kernels that fold: the reducers of a group share the loops of a grid point and combine results.

If all stages have the same loop, each reducer keeps what later stages need in registers, so that
memory is read once.  Otherwise tiles are in shared memory, and other values are read again.
Reducers combine their results by shuffles within a warp, and through shared memory between warps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from math import prod

from bringup.graph import Value
from bringup.graph.index import Axis, Expr
from bringup.integers import ceil_div
from bringup.kernel.form import Fold, Kernel, Stage, Store
from bringup.llvm import text as ir
from bringup.llvm.body import Frame, Position, accumulate, finish, start
from bringup.llvm.scalar import combine, memory_type
from bringup.llvm.simt.body import SimtBody, UnrolledPoint
from bringup.llvm.simt.frame import AxisValues, SimtFrame, steps_of
from bringup.llvm.simt.plan import (
    ThreadMapping,
    has_spare_slots,
    owns_tiles,
    registers_needed,
    with_loops,
)
from bringup.llvm.simt.target import SimtDialect, SimtKernel, shuffled, stored_type
from bringup.llvm.text import Module, Val, const
from bringup.loops.target import Target
from bringup.records import record

#: Accumulators by fold.
Partial = list[list[Val]]


def emit_reduction(
    module: Module,
    kernel: Kernel,
    name: str,
    target: Target,
    dialect: SimtDialect,
    constant: frozenset[int],
    mapping: ThreadMapping,
) -> SimtKernel:
    """Emit a kernel with a loop and at least one grid point."""
    ordered, registers = with_loops(kernel, mapping), registers_needed(kernel, mapping)
    threads = mapping.threads
    frame = SimtFrame(module, ordered, name, target, dialect, threads, constant, registers)
    return ReductionEmitter(frame, mapping).run()


class ReductionEmitter:
    """Emits one kernel, stage by stage at every grid point of a group."""

    def __init__(self, frame: SimtFrame, mapping: ThreadMapping) -> None:
        self.frame, self.mapping = frame, mapping
        self.b, self.kernel = frame.b, frame.kernel
        self.wide_tiles: dict[int, int] = {}
        tiles = frozenset(i for i, d in enumerate(self.kernel.buffers) if d.role == "tile")
        self.shares_tiles = bool(tiles) and not mapping.in_registers
        frame.state.reuses_loads = mapping.in_registers
        if mapping.in_registers:
            frame.state.register_tiles = tiles
        self._number_threads()
        if self.shares_tiles:
            frame.state.shared_tiles = tiles
            self._place_tiles(tiles)
        self.block_reduce = BlockReduce(frame, mapping, self.thread)
        self._plan_barriers()

    def _number_threads(self) -> None:
        f, g = self.frame, self.mapping
        self.thread = f.read(f.dialect.thread)
        self.column = self._digit(self.thread, 1, g.columns)
        self.reducer = self._digit(self.thread, g.columns, g.reducers)
        self.group = self._digit(self.thread, g.columns * g.reducers, g.groups)

    def _digit(self, number: Val, step: int, count: int) -> Val:
        b, f = self.b, self.frame
        if count == 1:
            return f.const(0)
        part = number if step == 1 else b.lshr(number, f.const(step.bit_length() - 1))
        whole = step * count == self.mapping.threads
        return part if whole else b.and_(part, f.const(count - 1))

    def _place_tiles(self, tiles: frozenset[int]) -> None:
        g = self.mapping
        if g.lane is None:
            self.frame.place_tiles(1)
            return
        width = g.columns * g.lanes
        self.frame.place_tiles(width)
        self.wide_tiles = dict.fromkeys(tiles, width)
        first = self.b.mul(self.column, self.frame.const(g.lanes))
        for i in tiles:
            element = memory_type(self.kernel.buffers[i].type.dtype)
            self.frame.pointers[i] = self.b.gep(
                self.frame.pointers[i], self.b.zext(first, ir.i64), element
            )

    def run(self) -> SimtKernel:
        """Emit it."""
        f, g, b = self.frame, self.mapping, self.b
        points, side = self.kernel.points // g.lanes, g.groups * g.columns
        units = ceil_div(points, side)
        with f.units(units) as (unit, parity):
            self.block_reduce.parity = parity if self.double_buffered else None
            first = b.mul(unit, f.const(side))
            mine = b.add(b.mul(self.group, f.const(g.columns)), self.column)
            flat, alive = b.add(first, mine), None
            if points % side:
                alive = b.icmp("ult", flat, f.const(points))
                flat = f.clamped(flat, points)
            point = GridPoint(f.grid(flat, g.lane, g.lanes), alive, [])
            for number, stage in enumerate(self.kernel.stages):
                point.registers.extend(self._stage(number, stage, point))
            if self.end_barrier:
                f.barrier()
        return f.done(units)

    def _plan_barriers(self) -> None:
        """Find the barriers that are needed; one barrier may serve several purposes.

        fold_barrier: of each stage, whether its folds end with a barrier.
        tile_barrier: of each stage, whether a barrier must follow because others read its tiles.
        double_buffered: whether iterations of even and odd number have slots of their own.
        end_barrier: whether an iteration ends with a barrier, because the next one may write shared
        memory that others still read.
        """
        stages = self.kernel.stages
        slots = self.block_reduce.slots > 1
        self.fold_barrier = [bool(slots and s.folds and s.axes and s.trips) for s in stages]
        writing = [n for n, s in enumerate(stages) if any(self._is_tile(x) for x in s.stores)]
        shared = self.shares_tiles and not owns_tiles(self.kernel, self.mapping)
        self.tile_barrier = [
            shared and n in writing and not m for n, m in enumerate(self.fold_barrier)
        ]
        single = sum(self.fold_barrier) == 1
        self.double_buffered = single and not self.shares_tiles and has_spare_slots(
            self.kernel, self.mapping, self.frame.target
        )  # fmt: skip
        rewritten = shared and bool(writing) and not any(self.fold_barrier[: writing[0]])
        self.end_barrier = rewritten or (single and not self.double_buffered)

    # -- stages ------------------------------------------------------------------------------------

    def body_of(self, stage: Stage, point: GridPoint, lane: tuple[Axis | None, int]) -> SimtBody:
        """The body of a stage at a grid point, with the results of the folds before it."""
        f = self.frame
        body = SimtBody(
            self.b, stage, f.pointers, lane, frozenset(stage.axes), f.state, self.wide_tiles
        )
        for n, value in enumerate(point.registers):
            body.give(n, {(0,): value}, frozenset(), varying=value.type.lanes > 1)
        body.analyse()
        return body

    def _stage(self, number: int, stage: Stage, point: GridPoint) -> list[Val]:
        g, inner = self.mapping, self.mapping.inner[number]
        empty = any(a.size == 0 for a in stage.axes)
        if empty:  # pragma: no cover - folded before
            return [start(f, g.lanes, True) for f in stage.folds]
        lane = (g.lane, g.lanes) if g.lane is not None else (_last(inner.axes), inner.lanes)
        if not stage.axes:
            results = self._once(stage, point, (g.lane, g.lanes))
            if self.tile_barrier[number]:
                self.frame.barrier()
            return results
        if g.in_registers:
            parts = self._in_registers(stage, point, lane)
        else:
            parts = LoopEmitter(self, stage, point, lane).run()
        if self.tile_barrier[number]:
            self.frame.barrier()
        results = [
            finish(self.b, fold, accumulators, across=g.lane is None)
            for fold, accumulators in zip(stage.folds, parts, strict=True)
        ]
        return self.block_reduce.combine(f"s{number}", stage.folds, results)

    def _is_tile(self, store: Store) -> bool:
        return self.kernel.buffers[store.buffer].role == "tile"

    def _once(self, stage: Stage, point: GridPoint, lane: tuple[Axis | None, int]) -> list[Val]:
        """A stage without loop: every reducer folds, and the first one stores."""
        b, body = self.b, self.body_of(stage, point, lane)
        first = None
        if self.mapping.reducers > 1:
            first = b.icmp("eq", self.reducer, self.frame.const(0))
        storing = UnrolledPoint(point.bases, _both(self, point.alive, first), first)
        # All reducers need the result of a fold.  If a stage only stores, the reducer that stores
        # also loads, because the store may be to the same memory; later stages cannot reuse that.
        loading = UnrolledPoint(point.bases, point.alive) if stage.folds else storing
        body.loads_for_all = bool(stage.folds) or first is None
        frame = body.emit(range(1), [loading])
        results = [
            self._value(body, fold, value, frame.positions()[0], None)
            for value, fold in zip(stage.body.outputs, stage.sinks, strict=True)
            if isinstance(fold, Fold)
        ]
        body.points = [storing]
        self.store(stage, body, frame)
        return results

    def store(
        self,
        stage: Stage,
        body: SimtBody,
        frame: Frame,
        positions: Sequence[Position] | None = None,
    ) -> None:
        """Emit the stores of a stage, at some positions or all."""
        for value, sink in zip(stage.body.outputs, stage.sinks, strict=True):
            if isinstance(sink, Store):
                dtype = self.kernel.buffers[sink.buffer].type.dtype
                target = (sink.buffer, sink.index, sink.mask)
                for position in frame.positions() if positions is None else positions:
                    body.put_at(value, dtype, target, position, frame)

    def _value(
        self,
        body: SimtBody,
        fold: Fold,
        value: Value,
        position: Position,
        alive: Val | None,
    ) -> Val:
        """What a position adds to a fold; the identity where it is not alive."""
        lanes = body.lanes
        first = start(fold, lanes, False)
        if fold.product:
            return accumulate(body, fold, value, position, first, lanes, alive)
        addend = body.lanes_of(value, position, lanes)
        return addend if alive is None else self.b.select(alive, addend, first)

    # -- rows in registers -------------------------------------------------------------------------

    def _in_registers(
        self, stage: Stage, point: GridPoint, lane: tuple[Axis | None, int]
    ) -> Partial:
        g, f, b = self.mapping, self.frame, self.b
        lanes = {} if g.lane is not None or lane[0] is None else {lane[0]: lane[1]}
        parts = steps_of(stage.axes, lanes)
        steps = prod(count for _, count, _ in parts)
        body = self.body_of(stage, point, lane)
        body.emit(range(1), [UnrolledPoint(point.bases, point.alive)])
        points: list[UnrolledPoint] = []
        inside: list[Val | None] = []
        for k in range(g.unroll):
            step, exists = b.add(self.reducer, f.const(k * g.reducers)), None
            if (k + 1) * g.reducers > steps:
                exists = b.icmp("ult", step, f.const(steps))
                step = f.clamped(step, steps)
            alive = _both(self, point.alive, exists)
            points.append(UnrolledPoint({**point.bases, **f.split(step, parts)}, alive))
            inside.append(exists)
        folds = [
            (fold, value)
            for fold, value in zip(stage.sinks, stage.body.outputs, strict=True)
            if isinstance(fold, Fold)
        ]
        # One accumulator per fold is enough, because a row has few unrolled positions.
        accumulators: Partial = [[] for _ in folds]

        def use(position: Position, frame: Frame) -> None:
            for (fold, value), total in zip(folds, accumulators, strict=True):
                addend = self._value(body, fold, value, position, inside[position[0]])
                if total:
                    addend = combine(self.b, fold.kind, fold.dtype, total.pop(), addend)
                total.append(addend)
            self.store(stage, body, frame, [position])

        body.emit(range(1, len(stage.axes) + 1), points, use)
        return accumulators


def _both(owner: ReductionEmitter, x: Val | None, y: Val | None) -> Val | None:
    if x is None or y is None:
        return y if x is None else x
    return owner.b.and_(x, y)


def _last(axes: Sequence[Axis]) -> Axis | None:
    return axes[-1] if axes else None


class BlockReduce:
    """Combines the results of the reducers of each group, so that each of them has the whole.

    parity: of the iteration of the block, if even and odd iterations have slots of their own.  If
    an iteration combines twice, the second barrier guarantees that the first slots were read.
    """

    def __init__(self, frame: SimtFrame, mapping: ThreadMapping, thread: Val) -> None:
        self.frame, self.g, self.thread = frame, mapping, thread
        self.b = frame.b
        self.parity: Val | None = None
        #: Threads that share one slot for each of their columns.
        self.run = max(frame.target.warp, mapping.columns)
        size = mapping.columns * mapping.reducers
        self.slots = size // self.run if size > self.run else 1

    def combine(self, name: str, folds: Sequence[Fold], values: Sequence[Val]) -> list[Val]:
        """Combine the folds of one stage."""
        partials = [self._in_warp(f, v) for f, v in zip(folds, values, strict=True)]
        if self.slots == 1 or not folds:
            return partials
        arrays = [self._put(f"{name}f{n}", v) for n, v in enumerate(partials)]
        self.frame.barrier()
        return [self._get(f, v, a) for f, v, a in zip(folds, partials, arrays, strict=True)]

    def _in_warp(self, fold: Fold, value: Val) -> Val:
        g, offset = self.g, self.g.columns
        while offset < min(g.columns * g.reducers, self.frame.target.warp):
            other = shuffled(self.b, value, offset, self.frame.dialect)
            value = combine(self.b, fold.kind, fold.dtype, value, other)
            offset *= 2
        return value

    def _put(self, name: str, value: Val) -> Val:
        """Write one value for each warp and column to shared memory."""
        b, f, g = self.b, self.frame, self.g
        kind = stored_type(value.type)
        count = self.slots * g.columns
        array = f.shared_array(name, kind, count * (1 if self.parity is None else 2))
        if self.parity is not None:
            offset = b.mul(self.parity, f.const(count))
            array = b.gep(array, b.zext(offset, ir.i64), kind)
        lane = b.and_(self.thread, f.const(self.run - 1))
        slot = b.lshr(self.thread, f.const(self.run.bit_length() - 1))
        index = b.add(b.mul(slot, f.const(g.columns)), lane)

        def write() -> None:
            stored = b.zext(value, ir.i8) if kind is not value.type else value
            b.store(stored, b.gep(array, b.zext(index, ir.i64), kind), _align(kind))

        if g.columns == self.run:
            write()
        else:
            with b.if_then(b.icmp("ult", lane, f.const(g.columns))):
                write()
        return array

    def _get(self, fold: Fold, like: Val, array: Val) -> Val:
        b, f, g = self.b, self.frame, self.g
        warp = f.target.warp
        if g.columns == 1 and self.slots <= warp:
            lane = b.and_(self.thread, f.const(self.slots - 1))
            value = self._read(array, lane, like)
            offset = 1
            while offset < self.slots:
                other = shuffled(b, value, offset, f.dialect)
                value = combine(b, fold.kind, fold.dtype, value, other)
                offset *= 2
            return value
        column = b.and_(self.thread, f.const(g.columns - 1))
        # One after another, because all at once would take too many registers.
        total = self._read(array, column, like)
        for s in range(1, self.slots):
            other = self._read(array, b.add(column, f.const(s * g.columns)), like)
            total = combine(b, fold.kind, fold.dtype, total, other)
        return total

    def _read(self, array: Val, index: Val, like: Val) -> Val:
        b, kind = self.b, stored_type(like.type)
        value = b.load(kind, b.gep(array, b.zext(index, ir.i64), kind), _align(kind))
        return value if kind is like.type else b.icmp("ne", value, const(kind, 0))


def _align(kind: ir.Type) -> int:
    return min(16, kind.bits * kind.lanes // 8)


@record(eq=False)
class GridPoint:
    """A grid point of this thread.

    alive: whether the thread has this point for its own; None means yes.
    registers: results of folds, in the order of the stages.
    """

    bases: AxisValues
    alive: Val | None
    registers: list[Val]


class LoopEmitter:
    """Emits the loop of one stage, which the reducers share.

    Each takes several positions at a time, then one at a time, then elements that fill no vector.
    """

    def __init__(
        self,
        owner: ReductionEmitter,
        stage: Stage,
        point: GridPoint,
        lane: tuple[Axis | None, int],
    ) -> None:
        self.owner, self.stage, self.point, self.lane = owner, stage, point, lane
        self.b, self.f, self.g = owner.b, owner.frame, owner.mapping
        self.body = owner.body_of(stage, point, lane)
        self.body.emit(range(1), [UnrolledPoint(point.bases, point.alive)])
        self.over_lanes = self.g.lane is None and lane[1] > 1
        self.width = lane[1] if self.over_lanes else 1
        single = len(stage.axes) == 1
        self.limits = {limit.axis: limit.end for limit in stage.limits}
        #: Elements of the loop, if only the running kernel knows them.
        self.limit: Val | None = None
        if single and self.limits:
            stop = self._stop(self.body, self.limits.pop(stage.axes[0]))
            self.limit = self.b.smin(stop, self.f.const(stage.axes[0].size))
        wide = {stage.axes[-1]: self.width} if self.over_lanes else {}
        self.parts = steps_of(stage.axes, wide)

    def run(self) -> Partial:
        """Emit the loop; returns the accumulators of this thread for each fold."""
        f, b, g = self.f, self.b, self.g
        span = g.reducers * g.unroll
        steps = prod(count for _, count, _ in self.parts)
        total: Val = f.const(steps)
        if self.limit is not None:
            total = self.limit
            if self.width > 1:
                total = b.binary("udiv", self.limit, f.const(self.width))
        lanes = self.body.lanes
        accs = [[start(fold, lanes, False)] * g.chains(lanes) for fold in self.stage.folds]
        main: Val = f.const(0)
        if g.unroll > 1 and steps >= span:
            main = f.const(steps // span * span)
            if self.limit is not None:
                main = b.sub(total, b.binary("urem", total, f.const(span)))
            accs = self._steps(f.const(0), main, g.unroll, accs)
        if self.limit is not None or steps % span or g.unroll == 1:
            firsts = self._steps(main, total, 1, [each[:1] for each in accs])
            accs = [first + each[1:] for first, each in zip(firsts, accs, strict=True)]
        # Accumulators that nothing was added to are still constants.
        parts = [[v for v in each if not v.is_constant] or each[:1] for each in accs]
        last = self.stage.axes[-1]
        if self.over_lanes and (self.limit is not None or last.size % self.width):
            parts = self._tail(total, parts)
        return parts

    def _stop(self, body: SimtBody, stop: Expr) -> Val:
        return body.scalar(stop, (0,), Frame({}, (), None, 1, None))

    def _steps(self, first: Val, stop: Val, count: int, accs: Partial) -> Partial:
        """Positions from ``first`` to ``stop``, each reducer taking ``count`` at a time."""
        f, b, g = self.f, self.b, self.g
        flat = [v for each in accs for v in each]
        with b.loop(b.add(first, self.owner.reducer), stop, g.reducers * count, flat) as loop:
            steps = [b.add(loop.index, f.const(g.reducers * k), "nuw nsw") for k in range(count)]
            values = [f.split(step, self.parts) for step in steps]
            after = self._at(self.body, values, _grouped(list(loop.carried), accs))
            loop.next(*(v for each in after for v in each))
        return _grouped(list(loop.carried), accs)

    def _at(self, body: SimtBody, bases: Sequence[AxisValues], accs: Partial) -> Partial:
        """Fold the values at some positions, except those beyond the limits of their axes."""
        points = [UnrolledPoint({**self.point.bases, **each}, self.point.alive) for each in bases]
        levels = range(1, len(self.stage.axes) + 1)
        if not self.limits:
            return self._fold(body, body.emit(levels, points), accs)
        result: Partial = [list(each) for each in accs]
        for k, point in enumerate(points):
            body.points = [point]
            inside = self._within(body, point)
            before = [[each[k % len(each)]] for each in result]

            def run(point: UnrolledPoint = point, before: Partial = before) -> list[Val]:
                after = self._fold(body, body.emit(levels, [point]), before)
                return [each[0] for each in after]

            merged = self.b.cond(inside, run, partial(list, chain(*before)))
            for each, value in zip(result, merged, strict=True):
                each[k % len(each)] = value
        return result

    def _within(self, body: SimtBody, point: UnrolledPoint) -> Val:
        result: Val | None = None
        for axis, stop in self.limits.items():
            below = self.b.icmp("slt", point.bases[axis], self._stop(body, stop))
            result = below if result is None else self.b.and_(result, below)
        assert result is not None
        return result

    def _fold(self, body: SimtBody, frame: Frame, accs: Partial) -> Partial:
        result: Partial = []
        folds = [
            (s, v)
            for s, v in zip(self.stage.sinks, self.stage.body.outputs, strict=True)
            if isinstance(s, Fold)
        ]
        for (fold, value), each in zip(folds, accs, strict=True):
            after = list(each)
            for k, position in enumerate(frame.positions()):
                n = k % len(after)
                after[n] = accumulate(body, fold, value, position, after[n], body.lanes, None)
            result.append(after)
        self.owner.store(self.stage, body, frame)
        return result

    def _tail(self, whole: Val, parts: Partial) -> Partial:
        """Elements after the last whole vector, one per reducer.  Results have a single lane."""
        f, b = self.f, self.b
        axis = self.stage.axes[0]
        body = self.owner.body_of(self.stage, self.point, (None, 1))
        body.emit(range(1), [UnrolledPoint(self.point.bases, self.point.alive)])
        index = b.add(b.mul(whole, f.const(self.width)), self.owner.reducer)
        end = self.limit if self.limit is not None else f.const(axis.size)
        before = [
            [finish(b, fold, each, across=True)]
            for fold, each in zip(self.stage.folds, parts, strict=True)
        ]

        def run() -> list[Val]:
            return [each[0] for each in self._at(body, [{axis: index}], before)]

        merged = b.cond(b.icmp("slt", index, end), run, lambda: [each[0] for each in before])
        return [[value] for value in merged]


def _grouped(flat: list[Val], like: Partial) -> Partial:
    values = iter(flat)
    return [[next(values) for _ in each] for each in like]

"""Kernels as loops: one native function per kernel, with explicit vectors and masked tails.

Kernels whose schedule is written in steps (`bringup.llvm.func.schedules`) are rendered from the
loop level; those with register tiles of products are emitted here.

The function is ``void name(ptr buffers, i64 begin, i64 end, i64 worker)``.  It runs the units
``begin … end - 1`` of the kernel.  Units are independent, so threads may share them in any way.
``buffers`` holds one pointer per buffer that is not a tile, then one to scratch memory, of which
each worker has `NativeKernel.tile_bytes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bringup.graph.index import Axis
from bringup.integers import ceil_div, round_up
from bringup.kernel.form import Fold, Kernel, Stage, Store
from bringup.llvm import text as ir
from bringup.llvm.body import Frame, Position, Tile, accumulate, finish, start
from bringup.llvm.func.render import emit_func
from bringup.llvm.func.schedules import has_steps, scheduled
from bringup.llvm.loops.body import VectorBody
from bringup.llvm.loops.schedule import (
    LINE_BYTES,
    SUMS,
    TILED,
    LoopTarget,
    NativeKernel,
    Schedule,
    schedule,
    unit_function,
)
from bringup.llvm.scalar import combine
from bringup.llvm.text import Builder, Module, Val, const_vector, i64_const
from bringup.llvm.text.masked import clamp, lanes_below
from bringup.loops import lower_kernel
from bringup.loops.schedule import Schedule as Steps
from bringup.loops.schedule import Scheduled

if TYPE_CHECKING:  # most programs have no product
    from bringup.kernel.contraction import Contraction
    from bringup.llvm.loops.blocking import Blocking

Registers = dict[Position, Val]
Accumulators = dict[tuple[int, Position], Val]


def emit_kernel(
    module: Module,
    kernel: Kernel,
    name: str,
    target: LoopTarget,
    steps: Steps | None = None,
) -> NativeKernel:
    """Emit ``kernel`` into ``module`` as function ``name``; nothing for a grid without points.

    steps: as in `scheduled_kernel`.
    """
    if not kernel.points:
        return NativeKernel(name, 0, 0, 0)
    if steps is not None:
        return emit_func(module, _applied(schedule(kernel, target), steps).after, name)
    packed = _packed_plan(kernel, target)
    if packed is not None:
        from bringup.llvm.loops.packed import emit_packed

        return emit_packed(module, *packed, name)
    plan = schedule(kernel, target)
    if has_steps(plan):
        return emit_func(module, scheduled(plan).after, name)
    return _KernelEmitter(module, plan, name).run()


def scheduled_kernel(
    kernel: Kernel, target: LoopTarget, steps: Steps | None = None
) -> Scheduled | None:
    """The loops of a kernel as `emit_kernel` renders them; None for those that it emits itself.

    steps: in place of those that this module would choose.  Raises ScheduleError if they do not
    fit.
    """
    if not kernel.points or _packed_plan(kernel, target) is not None:
        return None
    plan = schedule(kernel, target)
    if not has_steps(plan):
        return None
    return scheduled(plan) if steps is None else _applied(plan, steps)


def _applied(plan: Schedule, steps: Steps) -> Scheduled:
    return Scheduled.of(lower_kernel(plan.kernel), steps)


def _packed_plan(kernel: Kernel, target: LoopTarget) -> tuple[Contraction, Blocking] | None:
    first = kernel.stages[0]
    if first.limits or not any(f.product for f in first.folds):
        return None
    from bringup.llvm.loops.packed import packed_plan

    return packed_plan(kernel, target)


class _KernelEmitter:
    """Emits a kernel: its units, the register tile of each, and loops over vectors."""

    def __init__(self, module: Module, plan: Schedule, name: str) -> None:
        self.plan = plan
        self.kernel = plan.kernel
        self.name = name
        self.function = unit_function(module, name)
        self.b = Builder(self.function.block("entry"))
        self.bases: dict[Axis, Val] = {}
        self.pointers: list[Val] = []
        self.tile_bytes = 0
        self.wide_tiles: dict[int, int] = {}

    def run(self) -> NativeKernel:
        b = self.b
        _, begin, end, worker = self.function.args
        self._load_pointers(worker)
        cuts = self._cuts()
        units = math.prod(count for _, count, _ in cuts)
        with b.loop(begin, end) as loop:
            self._unit(loop.index, cuts)
        b.ret()
        work = sum(len(s.body) * s.trips for s in self.kernel.stages) * self.kernel.points
        return NativeKernel(self.name, units, self.tile_bytes, work // max(units, 1))

    def _load_pointers(self, worker: Val) -> None:
        b, buffers = self.b, self.function.args[0]
        outside = [i for i, d in enumerate(self.kernel.buffers) if d.role != "tile"]
        table = {i: b.load(ir.ptr, b.gep(buffers, n, ir.ptr), 8) for n, i in enumerate(outside)}
        tiles = [i for i, d in enumerate(self.kernel.buffers) if d.role == "tile"]
        width = self.plan.lanes * self.plan.columns if self.plan.lane is not None else 1
        offsets: dict[int, int] = {}
        if self.plan.lane is not None:
            self.wide_tiles = dict.fromkeys(tiles, width)
        for i in tiles:
            offsets[i] = self.tile_bytes
            nbytes = self.kernel.buffers[i].type.nbytes * width
            self.tile_bytes += round_up(nbytes, LINE_BYTES)
        if tiles:
            scratch = b.load(ir.ptr, b.gep(buffers, len(outside), ir.ptr), 8)
            base = b.gep(scratch, b.mul(worker, i64_const(self.tile_bytes)), ir.i8)
            for i, offset in offsets.items():
                table[i] = b.gep(base, offset, ir.i8)
        self.pointers = [table[i] for i in range(len(self.kernel.buffers))]

    # -- units -------------------------------------------------------------------------------------

    def _cuts(self) -> list[tuple[Axis, int, int]]:
        """The unit space, outermost first: (axis, number of pieces, elements per piece)."""
        plan = self.plan
        cuts: list[tuple[Axis, int, int]] = []
        tiled = {t.axis: t.count for t in (plan.rows, plan.cross) if t is not None}
        innermost: list[tuple[Axis, int, int]] = []
        for axis in self.kernel.grid:
            if axis == plan.lane:
                cuts.append((axis, ceil_div(axis.size, plan.block), plan.block))
            elif axis in tiled:
                piece = (axis, ceil_div(axis.size, tiled[axis]), tiled[axis])
                is_rows = plan.rows is not None and axis == plan.rows.axis
                (innermost if is_rows else cuts).append(piece)
            else:
                cuts.append((axis, axis.size, 1))
        return cuts + innermost

    def _unit(self, unit: Val, cuts: Sequence[tuple[Axis, int, int]]) -> None:
        """Emit a unit: the first position of each axis in it, then its loops."""
        b = self.b
        for n, (axis, count, size) in reversed(list(enumerate(cuts))):
            piece = i64_const(0)
            if count > 1:
                piece = b.urem(unit, i64_const(count)) if n else unit
                unit = b.udiv(unit, i64_const(count)) if n else unit
            self.bases[axis] = b.mul(piece, i64_const(size))
        self._split_tiles([t for t in (self.plan.rows, self.plan.cross) if t is not None], [])

    def _split_tiles(self, todo: list[Tile], done: list[Tile]) -> None:
        """Emit the unit's tile at full size, and a smaller one for the last unit of its axis."""
        if not todo:
            self._columns(done)
            return
        tile, more = todo[0], todo[1:]
        base = self.bases[tile.axis]
        if tile.axis.size % tile.count == 0:
            self._split_tiles(more, [*done, tile])
            return

        smaller = Tile(tile.axis, tile.axis.size % tile.count, tile.step)
        self.b.cond(
            self.b.icmp("sle", base, i64_const(tile.axis.size - tile.count)),
            lambda: self._split_tiles(more, [*done, tile]),
            lambda: self._split_tiles(more, [*done, smaller]),
        )

    def _columns(self, tiles: list[Tile]) -> None:
        """Emit the stages on a register tile; with grid lanes, masked where it exceeds the axis."""
        plan, b = self.plan, self.b
        if plan.lane is None:
            self._stages(tiles, None)
            return
        lane, block = plan.lane, plan.block
        tiles = [*tiles, Tile(lane, plan.columns, plan.lanes)]
        if lane.size % block == 0:
            self._stages(tiles, None)
            return
        base = self.bases[lane]
        if lane.size < block:
            self._stages(tiles, self._edge_masks(i64_const(lane.size)))
            return
        fits = b.icmp("sle", base, i64_const(lane.size - block))
        left = b.sub(i64_const(lane.size), base)
        b.cond(
            fits,
            lambda: self._stages(tiles, None),
            lambda: self._stages(tiles, self._edge_masks(left)),
        )

    def _edge_masks(self, left: Val) -> tuple[Val, ...]:
        plan = self.plan
        return tuple(
            self._lane_mask(self.b.sub(left, i64_const(j * plan.lanes)), plan.lanes)
            for j in range(plan.columns)
        )

    def _lane_mask(self, left: Val, lanes: int) -> Val:
        """The lanes below ``left``, which may be negative."""
        known = left.integer
        if known is not None:
            return const_vector(ir.i1, [i < known for i in range(lanes)])
        return lanes_below(self.b, clamp(self.b, left, lanes), lanes)

    # -- stores ------------------------------------------------------------------------------------

    def store(self, stage: Stage, body: VectorBody, frame: Frame) -> None:
        """Emit all stores of a stage, after every value that they need."""
        for value, sink in zip(stage.body.outputs, stage.sinks, strict=True):
            if not isinstance(sink, Store):
                continue
            index, buffer = sink.index, sink.buffer
            dtype = self.kernel.buffers[sink.buffer].type.dtype
            done: set[Position] = set()
            used = index.axes() | {a for m in sink.mask for a in m.expr.axes()}
            if buffer in self.wide_tiles:
                used = frozenset(t.axis for t in frame.tiles)
            for position in frame.positions():
                key = tuple(
                    p if t.axis in used else 0 for p, t in zip(position, frame.tiles, strict=True)
                )
                if key not in done:
                    done.add(key)
                    body.store(body.at(value, key), dtype, (buffer, index, sink.mask), key, frame)

    # -- loops over lanes --------------------------------------------------------------------------

    def vector_loop(
        self,
        axis: Axis,
        outer: tuple[Tile, ...],
        low: Val,
        high: Val,
        accs: Accumulators,
        step: Callable[[Frame, Accumulators], Accumulators],
    ) -> Accumulators:
        """Cover ``low … high`` of ``axis``: vectors, and a masked tail."""
        b, lanes = self.b, self.plan.lanes
        stop = b.add(low, self._multiple(b.sub(high, low), lanes))
        frame = Frame(self.bases, (*outer, Tile(axis, 1, lanes)), axis, lanes, None)
        accs = self.counted_loop(axis, low, stop, lanes, accs, frame, step)
        span = b.sub(high, stop)
        if span.integer == 0:
            return accs
        return self._masked_tail(axis, outer, stop, span, accs, step)

    def _masked_tail(
        self,
        axis: Axis,
        outer: tuple[Tile, ...],
        start: Val,
        span: Val,
        accs: Accumulators,
        step: Callable[[Frame, Accumulators], Accumulators],
    ) -> Accumulators:
        b, lanes = self.b, self.plan.lanes
        keys = list(accs)

        def run() -> list[Val]:
            self.bases[axis] = start
            masks = (self._lane_mask(span, lanes),)
            frame = Frame(self.bases, (*outer, Tile(axis, 1, lanes)), axis, lanes, masks)
            after = step(frame, dict(accs))
            return [after[k] for k in keys]

        if lanes == 1:
            return accs
        if span.integer is not None:
            return dict(zip(keys, run(), strict=True))
        is_left = b.icmp("sgt", span, i64_const(0))
        merged = b.cond(is_left, run, lambda: [accs[k] for k in keys])
        return dict(zip(keys, merged, strict=True))

    def _multiple(self, span: Val, width: int) -> Val:
        known = span.integer
        if known is not None:
            return i64_const(max(known, 0) // width * width)
        if width == 1:
            return span
        return self.b.sub(span, self.b.binary("urem", span, i64_const(width)))

    def counted_loop(
        self,
        axis: Axis,
        start: Val,
        stop: Val,
        width: int,
        accs: Accumulators,
        frame: Frame,
        step: Callable[[Frame, Accumulators], Accumulators],
    ) -> Accumulators:
        """A loop that carries accumulators; straight code for one iteration, nothing for none."""
        b, keys = self.b, list(accs)
        low, high = start.integer, stop.integer
        if low is not None and high is not None and high - low <= width:
            if high <= low:
                return accs
            self.bases[axis] = start
            return step(frame, dict(accs))
        if start.text == stop.text:
            return accs
        with b.loop(start, stop, width, [accs[k] for k in keys]) as loop:
            self.bases[axis] = loop.index
            after = step(frame, dict(zip(keys, loop.carried, strict=True)))
            loop.next(*(after[k] for k in keys))
        return dict(zip(keys, loop.carried, strict=True))

    # -- stages with folds -------------------------------------------------------------------------

    def _stages(self, tiles: list[Tile], masks: tuple[Val, ...] | None) -> None:
        registers: list[Registers] = []
        for stage in self.kernel.stages:
            registers += _StageEmitter(self, stage, tuple(tiles), masks, registers).run()


class _StageEmitter:
    """Emits one stage on one register tile.

    registers: results of the folds of earlier stages, by grid position.
    """

    def __init__(
        self,
        owner: _KernelEmitter,
        stage: Stage,
        tiles: tuple[Tile, ...],
        masks: tuple[Val, ...] | None,
        registers: Sequence[Registers],
    ) -> None:
        self.owner = owner
        self.b = owner.b
        self.stage = stage
        self.tiles = tiles
        self.masks = masks
        plan = owner.plan
        self.inner_lane = plan.lane is None and bool(stage.axes)
        self.lane = stage.axes[-1] if self.inner_lane else plan.lane
        self.lanes = plan.lanes if self.lane is not None else 1
        tiled = [t.axis for t in tiles] + ([stage.axes[-1]] if self.inner_lane else [])
        self.body = VectorBody(
            owner.b, stage.body, owner.pointers, stage.axes, self.lane, tiled, owner.wide_tiles
        )
        axes = frozenset(t.axis for t in tiles)
        for number, known in enumerate(registers):
            padded = {(*p, 0) if self.inner_lane else p: v for p, v in known.items()}
            self.body.give(number, padded, axes, plan.lane is not None)
        self.body.analyse()
        self.folds = [
            (n, s, v)
            for n, (s, v) in enumerate(zip(stage.sinks, stage.body.outputs, strict=True))
            if isinstance(s, Fold)
        ]

    def run(self) -> list[Registers]:
        """Emit the stage; returns the registers of its folds by grid position."""
        empty = any(a.size == 0 for a in self.stage.axes)
        accs = self._fresh(empty)
        if not empty:
            accs = self._nest(0, accs)
        return [self._finished(n, fold, accs) for n, fold, _ in self.folds]

    def _frame(self) -> Frame:
        tiles = self.tiles
        if self.inner_lane:
            tiles = (*tiles, Tile(self.stage.axes[-1], 1, self.lanes))
        masks = self.masks if not self.inner_lane else None
        return Frame(self.owner.bases, tiles, self.lane, self.lanes, masks)

    def _grid_positions(self) -> list[Position]:
        return Frame({}, self.tiles, None, 1, None).positions()

    def _fresh(self, empty: bool) -> Accumulators:
        accs: Accumulators = {}
        for n, fold, _ in self.folds:
            first = start(fold, self.lanes, empty)
            for position in self._grid_positions():
                accs[(n, (*position, 0) if self.inner_lane else position)] = first
        return accs

    def _nest(self, depth: int, accs: Accumulators) -> Accumulators:
        """Loops ``depth`` and deeper; instructions that need no deeper loop come before it."""
        axes = self.stage.axes
        if depth < len(axes) or not self.inner_lane:
            self.body.emit_level(depth, self._frame())
        if depth == len(axes):
            return self._innermost(self._frame(), accs)
        axis = axes[depth]
        vectors = depth == len(axes) - 1 and self.inner_lane
        low, high = i64_const(0), self._stop(axis)
        steps = self._chain(depth)
        chain = SUMS if self.owner.plan.rows is None else TILED
        if steps > chain.longest:
            unit = self.lanes if vectors else 1
            sizes = chain.sizes(axis.size // unit, steps * unit // axis.size)
            return self._blocked(axis, depth, [unit * n for n in sizes], low, high, accs)
        return self._serial(axis, low, high, accs, depth)

    def _serial(
        self, axis: Axis, low: Val, high: Val, accs: Accumulators, depth: int
    ) -> Accumulators:
        """The loop ``depth`` from ``low`` to ``high``, over vectors if the lanes are along it."""
        if depth == len(self.stage.axes) - 1 and self.inner_lane:

            def vector_step(frame: Frame, live: Accumulators) -> Accumulators:
                self.body.emit_level(depth + 1, frame)
                return self._innermost(frame, live)

            return self.owner.vector_loop(axis, self.tiles, low, high, accs, vector_step)
        return self.owner.counted_loop(
            axis,
            low,
            high,
            1,
            accs,
            self._frame(),
            lambda _frame, live: self._nest(depth + 1, live),
        )

    def _chain(self, depth: int) -> int:
        """Serial additions into one accumulator from loop ``depth`` on; 0 without float sums."""
        if all(f.monoid.is_exact(f.dtype) for _, f, _ in self.folds):
            return 0
        trips = math.prod(axis.size for axis in self.stage.axes[depth:])
        return trips // self.lanes if self.inner_lane else trips

    def _blocked(
        self, axis: Axis, depth: int, sizes: Sequence[int], low: Val, high: Val, accs: Accumulators
    ) -> Accumulators:
        """Blocked summation, which bounds the rounding error.

        sizes: of blocks; each block is summed from blocks of the size before its own.
        """
        if not sizes:
            return self._serial(axis, low, high, accs, depth)
        *smaller, size = sizes
        start, stop = low.integer, high.integer
        even = start is not None and stop is not None and (stop - start) % size == 0

        def block(_frame: Frame, live: Accumulators) -> Accumulators:
            first = self.owner.bases[axis]
            last = self.b.add(first, i64_const(size))
            if not even:
                last = self.b.smin(last, high)
            part = self._blocked(axis, depth, smaller, first, last, self._fresh(False))
            folds = {n: f for n, f, _ in self.folds}
            return {
                k: combine(self.b, folds[k[0]].kind, folds[k[0]].dtype, v, part[k])
                for k, v in live.items()
            }

        return self.owner.counted_loop(axis, low, high, size, accs, self._frame(), block)

    def _stop(self, axis: Axis) -> Val:
        end = self.stage.end_of(axis)
        if end is None:
            return i64_const(axis.size)
        position = (0,) * len(self.body.tiled)
        stop = self.body.scalar(end, position, self._frame())
        return self.b.smin(stop, i64_const(axis.size))

    def _innermost(self, frame: Frame, accs: Accumulators) -> Accumulators:
        after = dict(accs)
        mask = frame.masks[0] if self.inner_lane and frame.masks is not None else None
        for n, fold, value in self.folds:
            for position in frame.positions():
                key = (n, position)
                after[key] = accumulate(
                    self.body, fold, value, position, accs[key], self.lanes, mask
                )
        self.owner.store(self.stage, self.body, frame)
        return after

    def _finished(self, n: int, fold: Fold, accs: Accumulators) -> Registers:
        result: Registers = {}
        for position in self._grid_positions():
            if self.inner_lane:
                parts = [v for k, v in accs.items() if k[0] == n and k[1][:-1] == position]
                result[position] = finish(self.b, fold, parts, across=True)
            else:
                result[position] = finish(self.b, fold, [accs[(n, position)]], across=False)
        return result

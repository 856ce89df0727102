"""Kernels that fold: members of a group share the loops of a grid point and combine what they have.

Where all stages run over the same loop, each member keeps what it loaded or made for a later stage
in registers, so that memory is read once; else tiles are in shared memory and the rest is read
again.  Members within a warp combine by shuffles, warps by one slot of shared memory each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from math import prod

from bringup.graph import Value
from bringup.kernel.form import Fold, Kernel, Stage, Store
from bringup.kernel.index import Axis, Expr
from bringup.llvm import text as ir
from bringup.llvm.body import Frame, Position, accumulate, finish, start
from bringup.llvm.scalar import combine
from bringup.llvm.simt.body import Copy, SimtBody
from bringup.llvm.simt.frame import Bases, SimtFrame, steps_of
from bringup.llvm.simt.plan import (
    Grouping,
    has_spare_slots,
    kept_words,
    owns_tiles,
    plan,
    with_loops,
)
from bringup.llvm.simt.target import SimtKernel, SimtTarget, shuffled, stored_type
from bringup.llvm.text import Module, Val, const
from bringup.records import record

#: Fold results so far, by fold.
Partial = list[list[Val]]


def emit_group(
    module: Module,
    kernel: Kernel,
    name: str,
    target: SimtTarget,
    clips: Mapping[Axis, Expr],
    constant: frozenset[int],
) -> SimtKernel:
    """Emit a kernel with a loop and at least one grid point."""
    grouping = plan(kernel, clips, target)
    ordered, registers = with_loops(kernel, grouping), kept_words(kernel, grouping)
    threads = grouping.threads
    frame = SimtFrame(module, ordered, name, target, threads, constant, registers)
    return GroupEmitter(frame, grouping, clips).run()


class GroupEmitter:
    """Emits one kernel, stage by stage at every point of the group."""

    def __init__(self, frame: SimtFrame, grouping: Grouping, clips: Mapping[Axis, Expr]) -> None:
        self.frame, self.grouping, self.clips = frame, grouping, clips
        self.b, self.kernel = frame.b, frame.kernel
        self.wide_tiles: dict[int, int] = {}
        tiles = frozenset(i for i, d in enumerate(self.kernel.buffers) if d.role == "tile")
        self.shares_tiles = bool(tiles) and not grouping.resident
        frame.kept.keeps = grouping.resident
        if grouping.resident:
            frame.kept.registers = tiles
        self._number_threads()
        if self.shares_tiles:
            frame.kept.shared = tiles
            self._place_tiles(tiles)
        self.across = Across(frame, grouping, self.thread)
        self._plan_barriers()

    def _number_threads(self) -> None:
        f, g = self.frame, self.grouping
        self.thread = f.read(f.target.thread)
        self.column = self._digit(self.thread, 1, g.columns)
        self.member = self._digit(self.thread, g.columns, g.members)
        self.row = self._digit(self.thread, g.columns * g.members, g.rows)

    def _digit(self, number: Val, step: int, count: int) -> Val:
        b, f = self.b, self.frame
        if count == 1:
            return f.number(0)
        part = number if step == 1 else b.lshr(number, f.number(step.bit_length() - 1))
        whole = step * count == self.grouping.threads
        return part if whole else b.and_(part, f.number(count - 1))

    def _place_tiles(self, tiles: frozenset[int]) -> None:
        g = self.grouping
        if g.lane is None:
            self.frame.place_tiles(1)
            return
        width = g.columns * g.lanes
        self.frame.place_tiles(width)
        self.wide_tiles = dict.fromkeys(tiles, width)
        first = self.b.mul(self.column, self.frame.number(g.lanes))
        for i in tiles:
            element = _element(self.kernel, i)
            self.frame.pointers[i] = self.b.gep(
                self.frame.pointers[i], self.b.zext(first, ir.i64), element
            )

    def run(self) -> SimtKernel:
        """Emit it."""
        f, g, b = self.frame, self.grouping, self.b
        points, side = self.kernel.points // g.lanes, g.rows * g.columns
        units = -(-points // side)
        with f.units(units) as (unit, turn):
            self.across.turn = turn if self.takes_turns else None
            first = b.mul(unit, f.number(side))
            mine = b.add(b.mul(self.row, f.number(g.columns)), self.column)
            flat, alive = b.add(first, mine), None
            if points % side:
                alive = b.icmp("ult", flat, f.number(points))
                flat = f.clamped(flat, points)
            point = Point(f.grid(flat, g.lane, g.lanes), alive, [])
            for number, stage in enumerate(self.kernel.stages):
                point.registers.extend(self._stage(number, stage, point))
            if self.ends:
                f.barrier()
        return f.done(units)

    def _plan_barriers(self) -> None:
        """Which barriers do for several purposes.

        meets: of each stage, whether its folds end with a barrier.
        shows_tiles: of each stage, whether others read what it wrote, and it does not meet.
        takes_turns: whether slots are those of even and odd turns.
        ends: whether what is shared may be written in the next turn before all have read it.
        """
        stages = self.kernel.stages
        slots = self.across.slots > 1
        self.meets = [bool(slots and s.folds and s.axes and s.trips) for s in stages]
        writing = [n for n, s in enumerate(stages) if any(self._is_tile(x) for x in s.stores)]
        shared = self.shares_tiles and not owns_tiles(self.kernel, self.grouping)
        self.shows_tiles = [shared and n in writing and not m for n, m in enumerate(self.meets)]
        alone = sum(self.meets) == 1
        self.takes_turns = alone and not self.shares_tiles and has_spare_slots(
            self.kernel, self.grouping, self.frame.target
        )  # fmt: skip
        again = shared and bool(writing) and not any(self.meets[: writing[0]])
        self.ends = again or (alone and not self.takes_turns)

    # -- stages ------------------------------------------------------------------------------------

    def body_of(self, stage: Stage, point: Point, lane: tuple[Axis | None, int]) -> SimtBody:
        """The body of a stage at a point, which knows the registers so far."""
        f = self.frame
        body = SimtBody(
            self.b, stage, f.pointers, lane, frozenset(stage.axes), f.kept, self.wide_tiles
        )
        for n, value in enumerate(point.registers):
            body.give(n, {(0,): value}, frozenset(), varying=value.type.lanes > 1)
        body.analyse()
        return body

    def _stage(self, number: int, stage: Stage, point: Point) -> list[Val]:
        g, inner = self.grouping, self.grouping.inner[number]
        empty = any(a.size == 0 for a in stage.axes)
        if empty:  # pragma: no cover - folded before
            return [start(f, g.lanes, True) for f in stage.folds]
        lane = (g.lane, g.lanes) if g.lane is not None else (_last(inner.axes), inner.lanes)
        if not stage.axes:
            made = self._once(stage, point, (g.lane, g.lanes))
            if self.shows_tiles[number]:
                self.frame.barrier()
            return made
        emit = self._resident if g.resident else self._loop
        parts = emit(stage, point, lane)
        if self.shows_tiles[number]:
            self.frame.barrier()
        across = g.lane is None
        made = [
            finish(self.b, f, some, across=across)
            for f, some in zip(stage.folds, parts, strict=True)
        ]
        return self.across.combine(f"s{number}", stage.folds, made)

    def _is_tile(self, store: Store) -> bool:
        return self.kernel.buffers[store.buffer].role == "tile"

    def _once(self, stage: Stage, point: Point, lane: tuple[Axis | None, int]) -> list[Val]:
        """A stage without loop: every member folds, the first one stores."""
        b, body = self.b, self.body_of(stage, point, lane)
        first = None
        if self.grouping.members > 1:
            first = b.icmp("eq", self.member, self.frame.number(0))
        storing = Copy(point.bases, _both(self, point.alive, first), first)
        # What is folded is wanted by all members.  What is only stored is loaded by the one that
        # stores it, because the store may be to the same memory; so it is no use to later stages.
        loading = Copy(point.bases, point.alive) if stage.folds else storing
        body.loads_for_all = bool(stage.folds) or first is None
        frame = body.emit(range(1), [loading])
        made = self._values(stage, body, frame, [None])
        body.copies = [storing]
        self.store(stage, body, frame)
        return [some[0] for some in made]

    def store(
        self,
        stage: Stage,
        body: SimtBody,
        frame: Frame,
        positions: Sequence[Position] | None = None,
    ) -> None:
        """Write what a stage stores, at some positions or all."""
        for value, sink in zip(stage.body.outputs, stage.sinks, strict=True):
            if isinstance(sink, Store):
                dtype = self.kernel.buffers[sink.buffer].type.dtype
                target = (sink.buffer, sink.index, sink.mask)
                for position in frame.positions() if positions is None else positions:
                    body.put_at(value, dtype, target, position, frame)

    def _values(
        self, stage: Stage, body: SimtBody, frame: Frame, alive: Sequence[Val | None]
    ) -> Partial:
        """What each copy adds to each fold; the identity where it is not alive."""
        made: Partial = []
        for value, fold in zip(stage.body.outputs, stage.sinks, strict=True):
            if isinstance(fold, Fold):
                made.append([
                    self._value(body, fold, value, position, here)
                    for position, here in zip(frame.positions(), alive, strict=True)
                ])  # fmt: skip
        return made

    def _value(
        self,
        body: SimtBody,
        fold: Fold,
        value: Value,
        position: Position,
        alive: Val | None,
    ) -> Val:
        lanes = body.lanes
        first = start(fold, lanes, False)
        if fold.product:
            return accumulate(body, fold, value, position, first, lanes, alive)
        found = body.lanes_of(value, position, lanes)
        return found if alive is None else self.b.select(alive, found, first)

    # -- rows in registers -------------------------------------------------------------------------

    def _resident(self, stage: Stage, point: Point, lane: tuple[Axis | None, int]) -> Partial:
        g, f, b = self.grouping, self.frame, self.b
        lanes = {} if g.lane is not None or lane[0] is None else {lane[0]: lane[1]}
        parts = steps_of(stage.axes, lanes)
        steps = prod(count for _, count, _ in parts)
        body = self.body_of(stage, point, lane)
        body.emit(range(1), [Copy(point.bases, point.alive)])
        copies: list[Copy] = []
        inside: list[Val | None] = []
        for k in range(g.copies):
            at, here = b.add(self.member, f.number(k * g.members)), None
            if (k + 1) * g.members > steps:
                here = b.icmp("ult", at, f.number(steps))
                at = f.clamped(at, steps)
            alive = _both(self, point.alive, here)
            copies.append(Copy({**point.bases, **f.split(at, parts)}, alive))
            inside.append(here)
        parts_of: Partial = [[] for _ in stage.folds]

        def use(position: Position, frame: Frame) -> None:
            self._add(stage, body, position, inside[position[0]], parts_of)
            self.store(stage, body, frame, [position])

        body.emit(range(1, len(stage.axes) + 1), copies, use)
        return parts_of

    def _add(
        self, stage: Stage, body: SimtBody, position: Position, alive: Val | None, parts: Partial
    ) -> None:
        """Add what one copy has to the only part of each fold: rows have few copies."""
        folding = [(s, v) for s, v in zip(stage.sinks, stage.body.outputs, strict=True)
                   if isinstance(s, Fold)]  # fmt: skip
        for (fold, value), some in zip(folding, parts, strict=True):
            made = self._value(body, fold, value, position, alive)
            some[:] = [combine(self.b, fold.kind, fold.dtype, x, made) for x in some] or [made]

    # -- loops -------------------------------------------------------------------------------------

    def _loop(self, stage: Stage, point: Point, lane: tuple[Axis | None, int]) -> Partial:
        return LoopEmitter(self, stage, point, lane).run()


def _both(owner: GroupEmitter, x: Val | None, y: Val | None) -> Val | None:
    if x is None or y is None:
        return y if x is None else x
    return owner.b.and_(x, y)


def _last(axes: Sequence[Axis]) -> Axis | None:
    return axes[-1] if axes else None


def _element(kernel: Kernel, buffer: int) -> ir.Type:
    from bringup.llvm.scalar import memory_type

    return memory_type(kernel.buffers[buffer].type.dtype)


class Across:
    """Combines what the members of each group hold, so that each of them knows the whole.

    turn: 0 or 1 by turns of the block, to have slots of its own for each.  Where a turn combines
    twice, the second barrier tells that the first slots were read.
    """

    def __init__(self, frame: SimtFrame, grouping: Grouping, thread: Val) -> None:
        self.frame, self.g, self.thread = frame, grouping, thread
        self.b = frame.b
        self.turn: Val | None = None
        #: Threads that have one slot in common for each of their columns.
        self.run = max(frame.target.warp, grouping.columns)
        size = grouping.columns * grouping.members
        self.slots = size // self.run if size > self.run else 1

    def combine(self, name: str, folds: Sequence[Fold], values: Sequence[Val]) -> list[Val]:
        """The folds of one stage."""
        made = [self._in_warp(f, v) for f, v in zip(folds, values, strict=True)]
        if self.slots == 1 or not folds:
            return made
        arrays = [self._put(f"{name}f{n}", v) for n, v in enumerate(made)]
        self.frame.barrier()
        return [self._get(f, v, a) for f, v, a in zip(folds, made, arrays, strict=True)]

    def _in_warp(self, fold: Fold, value: Val) -> Val:
        g, offset = self.g, self.g.columns
        while offset < min(g.columns * g.members, self.frame.target.warp):
            other = shuffled(self.b, value, offset, self.frame.target)
            value = combine(self.b, fold.kind, fold.dtype, value, other)
            offset *= 2
        return value

    def _put(self, name: str, value: Val) -> Val:
        """Write one value for each warp and column."""
        b, f, g = self.b, self.frame, self.g
        kind = stored_type(value.type)
        count = self.slots * g.columns
        array = f.shared_array(name, kind, count * (1 if self.turn is None else 2))
        if self.turn is not None:
            mine = b.mul(self.turn, f.number(count))
            array = b.gep(array, b.zext(mine, ir.i64), kind)
        lane = b.and_(self.thread, f.number(self.run - 1))
        slot = b.lshr(self.thread, f.number(self.run.bit_length() - 1))
        place = b.add(b.mul(slot, f.number(g.columns)), lane)

        def write() -> None:
            kept = b.zext(value, ir.i8) if kind is not value.type else value
            b.store(kept, b.gep(array, b.zext(place, ir.i64), kind), _align(kind))

        if g.columns == self.run:
            write()
        else:
            with b.if_then(b.icmp("ult", lane, f.number(g.columns))):
                write()
        return array

    def _get(self, fold: Fold, like: Val, array: Val) -> Val:
        b, f, g = self.b, self.frame, self.g
        warp = f.target.warp
        if g.columns == 1 and self.slots <= warp:
            lane = b.and_(self.thread, f.number(self.slots - 1))
            value = self._read(array, lane, like)
            offset = 1
            while offset < self.slots:
                other = shuffled(b, value, offset, f.target)
                value = combine(b, fold.kind, fold.dtype, value, other)
                offset *= 2
            return value
        column = b.and_(self.thread, f.number(g.columns - 1))
        # One after another: all at once would take too many registers.
        total = self._read(array, column, like)
        for s in range(1, self.slots):
            other = self._read(array, b.add(column, f.number(s * g.columns)), like)
            total = combine(b, fold.kind, fold.dtype, total, other)
        return total

    def _read(self, array: Val, place: Val, like: Val) -> Val:
        b, kind = self.b, stored_type(like.type)
        value = b.load(kind, b.gep(array, b.zext(place, ir.i64), kind), _align(kind))
        return value if kind is like.type else b.icmp("ne", value, const(kind, 0))


def _align(kind: ir.Type) -> int:
    return min(16, kind.bits * kind.lanes // 8)


@record(eq=False)
class Point:
    """A grid point of this thread.  alive: whether it is its own; None means yes."""

    bases: Bases
    alive: Val | None
    registers: list[Val]


class LoopEmitter:
    """The loop of one stage, shared by members: several positions at once, then one, then elements
    that fill no vector.
    """

    def __init__(
        self,
        owner: GroupEmitter,
        stage: Stage,
        point: Point,
        lane: tuple[Axis | None, int],
    ) -> None:
        self.owner, self.stage, self.point, self.lane = owner, stage, point, lane
        self.b, self.f, self.g = owner.b, owner.frame, owner.grouping
        self.body = owner.body_of(stage, point, lane)
        self.body.emit(range(1), [Copy(point.bases, point.alive)])
        self.over_lanes = self.g.lane is None and lane[1] > 1
        self.width = lane[1] if self.over_lanes else 1
        alone = len(stage.axes) == 1
        self.clip = {a: owner.clips[a] for a in stage.axes if a in owner.clips}
        #: Elements of the loop, where they are not a number of the kernel.
        self.limit: Val | None = None
        if alone and self.clip:
            size = stage.axes[0].size
            stop = self._stop(self.body, self.clip.pop(stage.axes[0]))
            self.limit = self.b.smin(stop, self.f.number(size))
        wide = {stage.axes[-1]: self.width} if self.over_lanes else {}
        self.parts = steps_of(stage.axes, wide)

    def run(self) -> Partial:
        """Emit it; the parts of each fold that this thread has."""
        f, b, g = self.f, self.b, self.g
        span = g.members * g.copies
        steps = prod(count for _, count, _ in self.parts)
        total: Val = f.number(steps)
        if self.limit is not None:
            total = b.binary("udiv", self.limit, f.number(self.width)) if self.width > 1 else (
                self.limit)  # fmt: skip
        lanes = self.body.lanes
        accs = [[start(fold, lanes, False)] * g.chains(lanes) for fold in self.stage.folds]
        main: Val = f.number(0)
        if g.copies > 1 and steps >= span:
            main = f.number(steps // span * span) if self.limit is None else (
                b.sub(total, b.binary("urem", total, f.number(span))))  # fmt: skip
            accs = self._steps(f.number(0), main, g.copies, accs)
        if self.limit is not None or steps % span or g.copies == 1:
            ones = self._steps(main, total, 1, [some[:1] for some in accs])
            accs = [one + some[1:] for one, some in zip(ones, accs, strict=True)]
        parts = [self._trimmed(some) for some in accs]
        last = self.stage.axes[-1]
        if self.over_lanes and (self.limit is not None or last.size % self.width):
            parts = self._tail(total, parts)
        return parts

    def _stop(self, body: SimtBody, stop: Expr) -> Val:
        return body.scalar(stop, (0,), Frame({}, (), None, 1, None))

    def _trimmed(self, some: list[Val]) -> list[Val]:
        """Without accumulators that nothing was added to."""
        return [v for v in some if not v.is_constant] or some[:1]

    def _steps(self, first: Val, stop: Val, copies: int, accs: Partial) -> Partial:
        """Positions from ``first`` to ``stop``, ``copies`` of each member at once."""
        f, b, g = self.f, self.b, self.g
        flat = [v for some in accs for v in some]
        with b.loop(b.add(first, self.owner.member), stop, g.members * copies, flat) as loop:
            at = [b.add(loop.index, f.number(g.members * k), "nuw nsw") for k in range(copies)]
            after = self._at(self.body, [f.split(x, self.parts) for x in at],
                             _grouped(list(loop.carried), accs))  # fmt: skip
            loop.next(*(v for some in after for v in some))
        return _grouped(list(loop.carried), accs)

    def _at(self, body: SimtBody, bases: Sequence[Bases], accs: Partial) -> Partial:
        """One step of some copies, which are skipped where a clipped loop has ended."""
        copies = [Copy({**self.point.bases, **each}, self.point.alive) for each in bases]
        levels = range(1, len(self.stage.axes) + 1)
        if not self.clip:
            return self._fold(body, body.emit(levels, copies), accs)
        result: Partial = [list(some) for some in accs]
        for k, copy in enumerate(copies):
            body.copies = [copy]
            here = self._within(body, copy)
            before = [[some[k % len(some)]] for some in result]

            def run(copy: Copy = copy, before: Partial = before) -> list[Val]:
                made = self._fold(body, body.emit(levels, [copy]), before)
                return [some[0] for some in made]

            merged = self.b.cond(here, run, partial(list, chain(*before)))
            for some, value in zip(result, merged, strict=True):
                some[k % len(some)] = value
        return result

    def _within(self, body: SimtBody, copy: Copy) -> Val:
        result: Val | None = None
        for axis, stop in self.clip.items():
            here = self.b.icmp("slt", copy.bases[axis], self._stop(body, stop))
            result = here if result is None else self.b.and_(result, here)
        assert result is not None
        return result

    def _fold(self, body: SimtBody, frame: Frame, accs: Partial) -> Partial:
        result: Partial = []
        folds = [
            (s, v)
            for s, v in zip(self.stage.sinks, self.stage.body.outputs, strict=True)
            if isinstance(s, Fold)
        ]
        for (fold, value), some in zip(folds, accs, strict=True):
            made = list(some)
            for k, position in enumerate(frame.positions()):
                acc = made[k % len(made)]
                made[k % len(made)] = accumulate(body, fold, value, position, acc, body.lanes, None)
            result.append(made)
        self.owner.store(self.stage, body, frame)
        return result

    def _tail(self, whole: Val, parts: Partial) -> Partial:
        """Elements after the last whole vector, a member each; the parts then have no lanes."""
        f, b = self.f, self.b
        axis = self.stage.axes[0]
        body = self.owner.body_of(self.stage, self.point, (None, 1))
        body.emit(range(1), [Copy(self.point.bases, self.point.alive)])
        at = b.add(b.mul(whole, f.number(self.width)), self.owner.member)
        end = self.limit if self.limit is not None else f.number(axis.size)
        before = [
            [finish(b, fold, some, across=True)]
            for fold, some in zip(self.stage.folds, parts, strict=True)
        ]

        def run() -> list[Val]:
            made = self._at(body, [{axis: at}], before)
            return [some[0] for some in made]

        merged = b.cond(b.icmp("slt", at, end), run, lambda: [some[0] for some in before])
        return [[value] for value in merged]


def _grouped(flat: list[Val], like: Partial) -> Partial:
    rest = iter(flat)
    return [[next(rest) for _ in some] for some in like]

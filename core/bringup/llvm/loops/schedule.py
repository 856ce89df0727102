"""How a kernel's loops map to vector lanes and register tiles on a machine that loops (a CPU).

`schedule` picks the axis that runs across vector lanes, how many grid points a register tile holds,
and how the grid is cut into units that threads share.  The choice never changes which element is
computed from which.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from bringup.graph import Instr, Value
from bringup.kernel.form import Kernel, Stage
from bringup.kernel.index import Axis, Expr
from bringup.llvm.body import Tile
from bringup.records import record


@record
class LoopTarget:
    """What the emitter must know of a looping machine.

    vector_bits: width of a vector register.
    registers: how many there are.
    cache_bytes: of the cache that a core has for itself, the larger one.
    threads: that share the work; how it is cut into units may follow from it, never a result.
    """

    vector_bits: int = 128
    registers: int = 16
    cache_bytes: int = 1 << 20
    threads: int = 1


@record
class NativeKernel:
    """An emitted kernel: its function, how many units it has, scratch bytes per worker, rough
    scalar work per unit.
    """

    name: str
    units: int
    tile_bytes: int
    work: int


@record
class Schedule:
    """The mapping of one kernel.

    kernel: with its axes reordered.
    lanes: vector length.
    lane: the grid axis across lanes, or None when each stage runs its last inner axis across lanes.
    columns: vectors of the lane axis held together (grid lanes) or along an inner axis (inner
    lanes).
    rows: the register tile over another grid axis, None for one point at a time.
    cross: a second tiled grid axis (inner lanes only).
    block: elements of the lane axis in one unit (grid lanes).
    last: the grid axis that changes fastest from unit to unit, by default the last.
    """

    kernel: Kernel
    lanes: int
    lane: Axis | None
    columns: int
    rows: Tile | None
    cross: Tile | None
    block: int
    last: Axis | None = None

    @property
    def is_map(self) -> bool:
        """Nothing folds: elementwise work whose lane axis is looped over inside a unit."""
        return _is_map(self.kernel)


#: The most additions in a row that any accumulator sees.
LONGEST_CHAIN = 8192
#: Lanes of a unit that crosses memory: so many cache lines stay in the first-level cache.
_CROSS_BLOCK = 64
#: Rows of a register tile.
_MOST_ROWS = 14


def schedule(
    kernel: Kernel, target: LoopTarget, one_by_one: frozenset[Axis] = frozenset()
) -> Schedule:
    """Choose lanes, tiles and units.

    one_by_one: grid axes whose points differ in how far their loops go, so that no two may share a
    vector or a tile.
    """
    widest = max((v.dtype.bits for s in kernel.stages for v in _lane_values(s)), default=32)
    full = max(4, min(64, target.vector_bits // max(widest, 8)))
    looping = [s for s in kernel.stages if s.axes]
    shared = [a for a in kernel.grid if a not in one_by_one]
    best_grid = max(shared, key=lambda a: (score(kernel.stages, a, full), a.id), default=None)
    if best_grid is None and not looping:
        return Schedule(kernel, 1, None, 1, None, None, 1)
    if _is_map(kernel):
        return _map_schedule(kernel, full)
    inner_score = sum(max(score([s], a, full) for a in s.axes) for s in looping)
    if best_grid is not None and not looping:
        return _grid_schedule(kernel, best_grid, full, target, shared)
    if best_grid is not None and score(kernel.stages, best_grid, full) > inner_score:
        return _grid_schedule(kernel, best_grid, full, target, shared)
    return _inner_schedule(kernel, full, target, shared)


def _lane_values(stage: Stage) -> Iterator[Value]:
    """What the sinks are computed from; what only finds addresses does not set the lanes."""
    wanted = set(stage.body.outputs)
    for instr in reversed(stage.body.instrs):
        if wanted.isdisjoint(instr.results):
            continue
        yield from instr.results
        if instr.op.name not in ("load", "inside"):
            wanted.update(instr.operands)
    yield from stage.body.inputs


def _is_map(kernel: Kernel) -> bool:
    return all(not s.axes and not s.folds for s in kernel.stages)


def _accesses(stage: Stage) -> Iterator[tuple[Expr, frozenset[Axis]]]:
    """Index of every access, and the axes that move it through data."""
    data = stage.data_axes()
    for instr in stage.loads():
        yield instr.attrs["index"], data.get(instr, frozenset())
    for store in stage.stores:
        yield store.index, frozenset()


def score(stages: Iterable[Stage], axis: Axis, lanes: int) -> float:
    """How well memory accesses go with running ``axis`` across lanes, per grid point."""
    total = 0.0
    for stage in stages:
        for index, data in _accesses(stage):
            stride = index.coefficient(axis) if axis not in data else None
            worth = {1: 2.0, 0: 1.0, -1: 1.0}.get(stride if stride is not None else 99, -3.0)
            total += worth * max(stage.trips, 1)
    efficiency = min(axis.size, lanes) / lanes
    return total * efficiency if total > 0 else total


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _grid_with_last(kernel: Kernel, axis: Axis) -> Kernel:
    order = [a for a in kernel.grid if a != axis] + [axis]
    return replace(kernel, grid=tuple(order))


def _map_schedule(kernel: Kernel, full: int) -> Schedule:
    lane = max(kernel.grid, key=lambda a: (score(kernel.stages, a, full), a.id))
    lanes = min(full, _power_of_two(lane.size))
    size = sum(len(s.body) for s in kernel.stages)
    columns = 4 if size <= 24 else 2 if size <= 64 else 1
    columns = max(1, min(columns, lane.size // max(lanes, 1)))
    unit = lanes * columns
    block = lane.size if lane.size <= 2048 else max(unit, 2048 // unit * unit)
    across = _crossing_axis(kernel, lane)
    if across is not None:
        block = min(block, _CROSS_BLOCK)
    return Schedule(_grid_with_last(kernel, lane), lanes, lane, columns, None, None, block, across)


def _crossing_axis(kernel: Kernel, lane: Axis) -> Axis | None:
    """A grid axis along which a load is contiguous that jumps along the lanes, as in a
    transposition: walked next, it uses the rest of every cache line.
    """
    for stage in kernel.stages:
        for instr in stage.loads():
            index = instr.attrs["index"]
            if index.coefficient(lane) not in (0, 1, -1):
                for axis in kernel.grid:
                    if axis != lane and index.coefficient(axis) in (1, -1):
                        return axis
    return None


def _row_axis(kernel: Kernel, lane: Axis, shared: Sequence[Axis]) -> Axis | None:
    """A grid axis some inner load does not depend on while it depends on the lanes: worth a
    register tile, the more so the more rows it has.
    """
    if not _only_folds(kernel):
        return None
    stage = next(s for s in kernel.stages if s.axes)
    data = stage.data_axes()
    used = [i.attrs["index"].axes() | data.get(i, frozenset()) for i in stage.loads()]
    moving = [axes for axes in used if lane in axes and axes & set(stage.axes)]
    fitting = [
        axis
        for axis in reversed(shared)
        if axis != lane and any(axis not in axes for axes in moving)
    ]
    return max(fitting, key=lambda axis: min(axis.size, _MOST_ROWS), default=None)


def _grid_schedule(
    kernel: Kernel, lane: Axis, full: int, target: LoopTarget, shared: Sequence[Axis]
) -> Schedule:
    lanes = min(full, _power_of_two(lane.size))
    row = _row_axis(kernel, lane, shared)
    vectors = -(-lane.size // lanes)
    if row is None:
        columns = min(4, vectors)
        # Two sums hide no latency, and one stream of memory is slower than two.
        others = [a for a in shared if a != lane and a.size % 2 == 0]
        double = Tile(others[-1], 2, 1) if columns == 2 and others and _only_folds(kernel) else None
        return Schedule(
            _grid_with_last(kernel, lane), lanes, lane, columns, double, None, lanes * columns
        )
    # Up to four vectors that do not pair up make one masked body rather than two.
    columns = vectors if vectors <= 4 and lane.size % (2 * lanes) else min(2, vectors)
    rows = Tile(row, _rows(row.size, columns, target.registers), 1)
    return Schedule(
        _grid_with_last(kernel, lane), lanes, lane, columns, rows, None, lanes * columns
    )


def _only_folds(kernel: Kernel) -> bool:
    """One loop per grid point that only folds: the form a register tile over the grid pays for."""
    looping = [s for s in kernel.stages if s.axes]
    return len(looping) == 1 and not looping[0].stores


def _rows(size: int, columns: int, registers: int) -> int:
    """How many rows a register tile has: a number that divides them if that is large enough, so
    that there is one body; where a second takes the rest, both must leave registers free, or
    compilers spill.
    """
    most = min((registers - columns - 2) // columns, _MOST_ROWS)
    usual = min(registers * 3 // 4 // columns, _MOST_ROWS)
    even = [n for n in range(most, (usual * 3 - 1) // 4, -1) if size % n == 0]
    return even[0] if even else _divide(size, usual)


def _divide(size: int, most: int) -> int:
    """A tile of at most ``most`` that covers ``size`` in equal parts as nearly as possible."""
    parts = -(-size // max(most, 1))
    return -(-size // parts) if parts else 1


def _inner_schedule(
    kernel: Kernel, full: int, target: LoopTarget, shared: Sequence[Axis]
) -> Schedule:
    stages = tuple(_best_last(s, full) for s in kernel.stages)
    kernel = replace(kernel, stages=stages)
    longest = max(s.axes[-1].size for s in stages if s.axes)
    lanes = min(full, _power_of_two(longest))
    rows, cross = _cross_axes(kernel, shared)
    if rows is not None:
        tiles = 4 if target.registers >= 32 else 2
        tile = Tile(rows, _divide(rows.size, tiles if cross is not None else 2 * tiles), 1)
        other = Tile(cross, _divide(cross.size, tiles), 1) if cross is not None else None
        return Schedule(kernel, lanes, None, 1, tile, other, 1)
    bodies = max(len(s.body) for s in stages if s.axes)
    columns = 8 if bodies <= 12 else 4 if bodies <= 40 else 2
    columns = max(1, min(columns, longest // max(lanes, 1)))
    return Schedule(kernel, lanes, None, columns, None, None, 1)


def _best_last(stage: Stage, full: int) -> Stage:
    if len(stage.axes) < 2:
        return stage
    best = max(stage.axes, key=lambda a: (score([stage], a, full), a.id))
    order = [a for a in stage.axes if a != best] + [best]
    return replace(stage, axes=tuple(order))


def _cross_axes(kernel: Kernel, shared: Sequence[Axis]) -> tuple[Axis | None, Axis | None]:
    """Grid axes over which inner loads are shared: rows that one load skips, and columns that
    another skips.
    """
    skipped: list[Axis] = []
    for axis in reversed(shared) if _only_folds(kernel) else ():
        for stage in kernel.stages:
            if not stage.axes:
                continue
            data = stage.data_axes()
            if any(_shares(i, axis, stage, data) for i in stage.loads()):
                skipped.append(axis)
                break
    if not skipped:
        return None, None
    return skipped[0], skipped[1] if len(skipped) > 1 else None


def _shares(load: Instr, axis: Axis, stage: Stage, data: Mapping[Instr, frozenset[Axis]]) -> bool:
    used = load.attrs["index"].axes() | data.get(load, frozenset())
    return axis not in used and bool(used & set(stage.axes))


@record
class Chain:
    """More than ``longest`` additions in a row become blocks of ``block``, and more blocks than
    that blocks of blocks.
    """

    longest: int
    block: int

    def sizes(self, count: int, deeper: int) -> list[int]:
        """Sizes of blocks of ``count`` steps of ``deeper`` additions each, smallest first."""
        sizes = [max(1, self.block // max(deeper, 1))]
        while count > sizes[-1] * self.longest:
            sizes.append(sizes[-1] * self.block)
        return sizes


#: What a sum costs is its reads, however often it is cut.
SUMS = Chain(128, 64)
#: A register tile has an accumulator in every register, and each cut moves all of them.
TILED = Chain(2048, 1024)

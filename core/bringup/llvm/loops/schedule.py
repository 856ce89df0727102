"""How a kernel's loops map to vector lanes and register tiles on a CPU.

`schedule` chooses the axis that the vector lanes are along, the grid points of a register tile,
and how the grid is cut into units that threads share.  No choice changes which elements a result
is computed from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from bringup.graph import Instr, Value
from bringup.graph.index import Axis, Expr
from bringup.integers import ceil_div, ceil_power_of_two, round_up
from bringup.kernel.form import Kernel, Stage
from bringup.kernel.stage_body import is_expensive
from bringup.llvm import text as ir
from bringup.llvm.loops.heuristics import LOOPS
from bringup.llvm.text import Function, Module, Param
from bringup.records import record
from bringup.target import Target


@record
class Tile:
    """``count`` positions of ``axis``, ``step`` apart, computed together."""

    axis: Axis
    count: int
    step: int


@record
class NativeKernel:
    """An emitted kernel.

    name: of its function.  units: how many there are.  tile_bytes: scratch memory per worker.
    work: about how many scalar operations a unit has.
    """

    name: str
    units: int
    tile_bytes: int
    work: int


def unit_function(module: Module, name: str) -> Function:
    """Start a function ``void name(ptr buffers, i64 begin, i64 end, i64 worker)``.

    It runs the units ``begin … end - 1`` of a kernel or of a phase.
    """
    params: list[Param] = [("buffers", ir.ptr, "nocapture readonly")]
    params += [(n, ir.i64) for n in ("begin", "end", "worker")]
    return module.function(name, ir.void, params, attrs="nounwind", linkage="internal")


@record
class Schedule:
    """How one kernel is mapped.

    kernel: with its axes reordered.
    lanes: vector length.
    lane: the grid axis that the lanes are along; None if they are along each stage's last axis.
    columns: vectors along the lane axis that are computed together.
    rows: the register tile over another grid axis, None for one point at a time.
    cross: a second tiled grid axis, only if the lanes are along inner axes.
    block: elements of the lane axis in one unit, if the lanes are along the grid.
    last: the grid axis that changes fastest from unit to unit, by default the last.
    square: whether blocks of ``last`` by the lane axis are transposed in registers.
    """

    kernel: Kernel
    lanes: int
    lane: Axis | None
    columns: int
    rows: Tile | None
    cross: Tile | None
    block: int
    last: Axis | None = None
    square: bool = False

    @property
    def is_map(self) -> bool:
        """Whether nothing folds; then a unit loops over its part of the lane axis."""
        return _is_map(self.kernel)


#: Bytes of a cache line; scratch areas begin at multiples of it.
LINE_BYTES = 64


def schedule(kernel: Kernel, target: Target) -> Schedule:
    """Choose lanes, tiles and units."""
    widest = max((v.dtype.bits for s in kernel.stages for v in _lane_values(s)), default=32)
    lanes = target.vector_bits // max(widest, 8)
    full = max(LOOPS.least_lanes, min(LOOPS.most_lanes, lanes))
    looping = [s for s in kernel.stages if s.axes]
    # Points with loops of different length share no vector and no tile.
    limiting = frozenset[Axis]().union(*(s.limiting_axes for s in looping))
    shared = [a for a in kernel.grid if a not in limiting]
    is_vector = target.warp == 1  # else lanes are threads
    # Lanes along another axis would change the order of additions.
    near = LOOPS.nearest(full) if is_vector and _is_exact(kernel) else 1
    scores = {axis: score(kernel.stages, axis, full, near) for axis in shared}
    suits = scores
    if is_vector and looping:
        # Short rows waste lanes in every iteration of the fold, far stores take one once.
        suits = {a: score(kernel.stages, a, full, near, tails=True, far=full) for a in shared}
    best_grid = max(shared, key=lambda a: (suits[a], a.id), default=None)
    if best_grid is None and not looping:
        return Schedule(kernel, 1, None, 1, None, None, 1)
    if _is_map(kernel):
        return _map_schedule(kernel, full)
    inner_score = sum(max(score([s], a, full, tails=is_vector) for a in s.axes) for s in looping)
    if best_grid is not None and not looping:
        return _grid_schedule(kernel, best_grid, full, target, shared)
    if best_grid is not None and scores[best_grid] > inner_score:
        return _grid_schedule(kernel, best_grid, full, target, shared)
    return _inner_schedule(kernel, full, target, shared)


def _lane_values(stage: Stage) -> Iterator[Value]:
    """The values that sinks are computed from, without those that only compute addresses."""
    wanted = set(stage.body.outputs)
    for instr in reversed(stage.body.instrs):
        if wanted.isdisjoint(instr.results):
            continue
        yield from instr.results
        if instr.op.name not in ("load", "inside"):
            wanted.update(instr.operands)
    yield from stage.body.inputs


def _is_exact(kernel: Kernel) -> bool:
    """Whether no products are added up, and every order of what is folded gives the same bits."""
    folds = [f for s in kernel.stages for f in s.folds]
    return all(f.monoid.is_exact(f.dtype) and not f.product for f in folds)


def _is_map(kernel: Kernel) -> bool:
    return all(not s.axes and not s.folds for s in kernel.stages)


def _accesses(stage: Stage, near: int) -> Iterator[tuple[Expr, frozenset[Axis], int]]:
    """The index of every access, the axes that change it through loaded indices, and by how many
    elements lanes may be apart.
    """
    data = stage.data_axes()
    for instr in stage.loads():
        yield instr.attrs["index"], data.get(instr, frozenset()), near
    for store in stage.stores:
        yield store.index, frozenset(), 1


def score(
    stages: Iterable[Stage],
    axis: Axis,
    lanes: int,
    near: int = 1,
    *,
    tails: bool = False,
    far: int = 3,
) -> float:
    """How well the memory accesses suit lanes along ``axis``, per grid point.

    near: up to so many elements apart the lanes of a load are as good as one element for all.
    tails: whether the last vector counts as a whole one, as where a loop of a fold is short.
    far: what lanes cost that are further apart.
    """
    total = 0.0
    for stage in stages:
        for index, data, apart in _accesses(stage, near):
            stride = index.coefficient(axis) if axis not in data else None
            value = -float(far)
            if stride is not None and -1 <= stride <= apart:
                value = 2.0 if stride == 1 else 1.0
            total += value * max(stage.trips, 1)
    whole = max(lanes, round_up(axis.size, lanes) if tails else 0)
    efficiency = min(axis.size / whole, 1.0)
    return total * efficiency if total > 0 else total


def _grid_with_last(kernel: Kernel, axis: Axis) -> Kernel:
    order = [a for a in kernel.grid if a != axis] + [axis]
    return replace(kernel, grid=tuple(order))


def _columns(size: int, table: Iterable[tuple[int, int]]) -> int:
    """Vectors that bodies of so many instructions compute together."""
    return next(columns for most, columns in table if size <= most)


def _map_schedule(kernel: Kernel, full: int) -> Schedule:
    lane = max(kernel.grid, key=lambda a: (score(kernel.stages, a, full), a.id))
    lanes = min(full, ceil_power_of_two(lane.size))
    size = sum(len(s.body) for s in kernel.stages)
    columns = _columns(size, LOOPS.map_columns)
    columns = max(1, min(columns, lane.size // max(lanes, 1)))
    unit = lanes * columns
    usual = LOOPS.map_block
    block = lane.size if lane.size <= usual else max(unit, usual // unit * unit)
    across = _crossing_axis(kernel, lane)
    is_short = size <= LOOPS.map_columns[0][0]
    if across is not None and is_short and (sides := _squares(kernel, lane, across, full)):
        ordered = _grid_with_last(kernel, lane)
        return Schedule(ordered, sides[0], lane, 1, None, None, sides[1], across, True)
    if across is not None:
        block = min(block, LOOPS.cross_block)
    if block < lane.size:
        # Only the last unit of a lane axis has less than whole register tiles.
        columns = next(n for n in range(columns, 0, -1) if block % (n * lanes) == 0)
    return Schedule(_grid_with_last(kernel, lane), lanes, lane, columns, None, None, block, across)


def _crossing_axis(kernel: Kernel, lane: Axis) -> Axis | None:
    """A grid axis along which a load is contiguous that jumps along the lanes.

    Transpositions have one.  If it is walked next, the rest of every cache line is used.
    """
    for stage in kernel.stages:
        for instr in stage.loads():
            index = instr.attrs["index"]
            if index.coefficient(lane) not in (0, 1, -1):
                for axis in kernel.grid:
                    if axis != lane and index.coefficient(axis) in (1, -1):
                        return axis
    return None


def _squares(kernel: Kernel, lane: Axis, across: Axis, full: int) -> tuple[int, int] | None:
    """The sides of squares, and of blocks of whole squares; None if nothing is transposed.

    A load is then contiguous along the axis across the lanes, and jumps along the lanes.  Squares
    are read line by line and transposed in registers: lanes are no loads of their own, and lines
    that share a set of the nearest cache do not take each other's place.  Smaller squares than
    vectors of ``full`` lanes pay if nothing else is computed that takes long.
    """
    loads = (i.attrs["index"] for stage in kernel.stages for i in stage.loads())
    if not any(e.coefficient(across) == 1 and e.coefficient(lane) for e in loads):
        return None
    takes_long = any(is_expensive(i) for stage in kernel.stages for i in stage.body.instrs)
    least = min(full, LOOPS.square) if takes_long else LOOPS.least_square
    common = math.gcd(lane.size, across.size)
    lanes = math.gcd(common, full, LOOPS.square)
    if lanes < least or kernel.points < LOOPS.square_points:
        return None
    most = LOOPS.cross_block // lanes * lanes
    return lanes, next(n for n in range(most, 0, -lanes) if common % n == 0)


def _row_axis(kernel: Kernel, lane: Axis, shared: Sequence[Axis]) -> Axis | None:
    """A grid axis for a register tile: a load in the loop depends on the lanes, but not on it."""
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
    return max(fitting, key=lambda axis: min(axis.size, LOOPS.most_rows), default=None)


def _grid_schedule(
    kernel: Kernel, lane: Axis, full: int, target: Target, shared: Sequence[Axis]
) -> Schedule:
    lanes = min(full, ceil_power_of_two(lane.size))
    row = _row_axis(kernel, lane, shared)
    vectors = ceil_div(lane.size, lanes)
    if row is None:
        columns = min(LOOPS.grid_columns, vectors)
        # Two accumulators do not hide the latency of an addition, and two streams of memory are
        # faster than one.
        others = [a for a in shared if a != lane and a.size % 2 == 0]
        double = Tile(others[-1], 2, 1) if columns == 2 and others and _only_folds(kernel) else None
        return Schedule(
            _grid_with_last(kernel, lane), lanes, lane, columns, double, None, lanes * columns
        )
    is_few = vectors <= LOOPS.few_vectors and lane.size % (2 * lanes)
    columns = vectors if is_few else min(2, vectors)
    rows = Tile(row, _rows(row.size, columns, target.registers), 1)
    return Schedule(
        _grid_with_last(kernel, lane), lanes, lane, columns, rows, None, lanes * columns
    )


def _only_folds(kernel: Kernel) -> bool:
    """Whether there is one loop per grid point, and it only folds; then register tiles pay."""
    looping = [s for s in kernel.stages if s.axes]
    return len(looping) == 1 and not looping[0].stores


def _rows(size: int, columns: int, registers: int) -> int:
    """The rows of a register tile.

    A divisor of ``size`` if it is large enough, so that there is one body.  Otherwise a second body
    takes the remainder, and both must leave registers free, or the compiler spills.
    """
    most = min((registers - columns - 2) // columns, LOOPS.most_rows)
    usual = min(int(registers * LOOPS.tile_share) // columns, LOOPS.most_rows)
    even = [n for n in range(most, (usual * 3 - 1) // 4, -1) if size % n == 0]
    return even[0] if even else _divide(size, usual)


def _divide(size: int, most: int) -> int:
    """The size of a tile of at most ``most`` that covers ``size`` in about equal parts."""
    parts = ceil_div(size, max(most, 1))
    return ceil_div(size, parts) if parts else 1


def _inner_schedule(kernel: Kernel, full: int, target: Target, shared: Sequence[Axis]) -> Schedule:
    stages = tuple(_best_last(s, full) for s in kernel.stages)
    kernel = replace(kernel, stages=stages)
    longest = max(s.axes[-1].size for s in stages if s.axes)
    lanes = min(full, ceil_power_of_two(longest))
    rows, cross = _cross_axes(kernel, shared)
    if rows is not None:
        tiles = 4 if target.registers >= LOOPS.many_registers else 2
        tile = Tile(rows, _divide(rows.size, tiles if cross is not None else 2 * tiles), 1)
        other = Tile(cross, _divide(cross.size, tiles), 1) if cross is not None else None
        return Schedule(kernel, lanes, None, 1, tile, other, 1)
    bodies = max(len(s.body) for s in stages if s.axes)
    columns = _columns(bodies, LOOPS.row_columns)
    columns = max(1, min(columns, longest // max(lanes, 1)))
    return Schedule(kernel, lanes, None, columns, None, None, 1)


def _best_last(stage: Stage, full: int) -> Stage:
    if len(stage.axes) < 2:
        return stage
    best = max(stage.axes, key=lambda a: (score([stage], a, full), a.id))
    order = [a for a in stage.axes if a != best] + [best]
    return replace(stage, axes=tuple(order))


def _cross_axes(kernel: Kernel, shared: Sequence[Axis]) -> tuple[Axis | None, Axis | None]:
    """Grid axes for the two sides of a register tile: each is one that some load does not use."""
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

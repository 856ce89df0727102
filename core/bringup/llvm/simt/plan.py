"""How threads share a kernel that folds: which of them work on one grid point, and in which order.

A block is ``groups × reducers × columns`` threads.  The reducers of a group share the
loops of one grid point.  Neighbouring columns are neighbouring grid points, so that accesses that
are contiguous along the grid coalesce.  Several groups share a block where loops are too short for
a warp.  `chunk_length` says how long folds over few grid points are cut, so that the whole device
has work.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.dtypes import DType
from bringup.graph.index import Axis, Expr
from bringup.integers import ceil_div, ceil_power_of_two, round_up
from bringup.kernel.form import Kernel, Stage
from bringup.kernel.split import longest_axis
from bringup.llvm.loops.schedule import schedule
from bringup.llvm.simt.access import (
    WIDEST,
    accesses,
    divides,
    fetched_bytes,
    unroll_for,
    vector_width,
)
from bringup.llvm.simt.target import SHARED_BYTES
from bringup.records import record
from bringup.target import Target

#: Independent accumulators of a thread.
_CHAINS = 8
#: The most positions that a thread holds in registers.
_MOST_IN_REGISTERS = 16
#: Bytes that a thread has in flight: 64 KiB for 1,000 threads.
_BYTES = 64
#: Bytes of a memory transaction.
_LINE = 128
#: Words of a row that a thread may hold in registers beside everything else.
_WORDS = 64
#: Loads of one position in flight; further ones wait.
_FRESH = 8
#: Of a fold in two launches: the least elements of a chunk, and the least rows of a chunk if the
#: lanes are along the grid.
_CHUNK = 1 << 13
_LINES = 64
#: So many elements are folded sooner by one launch than a second one starts.
_SMALL = 1 << 16


@record
class Inner:
    """The order of a stage's loops.  axes: outermost first.  lanes: along the last axis."""

    axes: tuple[Axis, ...]
    lanes: int


@record
class ThreadMapping:
    """How one kernel is mapped to threads.

    lane, lanes: the grid axis of which a thread takes ``lanes`` neighbours, if there is one.
    columns, reducers, groups: powers of two; see the text of the module.
    inner: the loops of each stage.
    unroll: positions that a thread works on at once; all that it has if ``in_registers``.
    in_registers: what stages share stays in registers.
    """

    lane: Axis | None
    lanes: int
    columns: int
    reducers: int
    groups: int
    inner: tuple[Inner, ...]
    unroll: int
    in_registers: bool

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.columns * self.reducers * self.groups

    def chains(self, lanes: int) -> int:
        """Accumulators that a thread has for a fold, each of ``lanes`` lanes."""
        return min(self.unroll, max(1, _CHAINS // lanes))


def plan(kernel: Kernel, target: Target) -> ThreadMapping:
    """Choose a mapping for a kernel with a loop and at least one grid point."""
    lane = schedule(kernel, Target(vector_bits=512, registers=32, warp=target.warp)).lane
    if lane is not None:
        return _along_grid(kernel, lane, target)
    return _along_loops(kernel, target)


def _looping(kernel: Kernel) -> list[Stage]:
    return [s for s in kernel.stages if s.axes]


def _aligned(kernel: Kernel) -> bool:
    """Whether all stages have the same loop, so that a thread has the same elements in each."""
    loops = {s.axes for s in _looping(kernel)}
    return len(loops) == 1 and all(s.trips and not s.limits for s in kernel.stages)


def _words(kernel: Kernel) -> tuple[int, int] | None:
    """32-bit words per element if stages share registers: the most that stay from one stage to the
    next, and the most that are loaded besides.  None if tiles cannot be registers.
    """
    spans: dict[tuple[object, ...], tuple[int, int, int]] = {}
    tiles: dict[int, set[Expr]] = {}

    def extend(number: int, key: tuple[object, ...], buffer: int) -> None:
        first = spans.get(key, (number, number, 0))[0]
        spans[key] = (first, number, _words_of(kernel.buffers[buffer].type.dtype))

    for number, stage in enumerate(kernel.stages):
        loads = [(i.attrs["buffer"], i.attrs["index"], i.attrs["mask"]) for i in stage.loads()]
        stores = [(s.buffer, s.index, s.mask) for s in stage.stores]
        for buffer, index, mask in (*loads, *stores):
            if kernel.buffers[buffer].role == "tile":
                tiles.setdefault(buffer, set()).add(index)
                if mask or not stage.axes:
                    return None
                extend(number, (buffer,), buffer)
            elif kernel.buffers[buffer].role == "in" and index.axes() & set(stage.axes):
                extend(number, (buffer, index, tuple(mask)), buffer)
    if any(len(indices) > 1 for indices in tiles.values()):
        return None
    numbers = range(len(kernel.stages))
    live = max(sum(w for a, b, w in spans.values() if a <= n < b) for n in numbers)
    fresh = max(sum(w for a, b, w in spans.values() if a == n == b) for n in numbers)
    return live, max(1, min(fresh, _FRESH))


def registers_needed(kernel: Kernel, mapping: ThreadMapping) -> int:
    """Registers that a thread needs: for shared values, or for accumulators and loads in flight."""
    lanes = max(mapping.lanes, *(i.lanes for i in mapping.inner))
    if mapping.in_registers:
        live, fresh = _words(kernel) or (0, 1)
        # Each of the neighbouring columns has an accumulator and the next addend.
        folded = max(sum(_words_of(f.dtype) for f in s.folds) for s in _looping(kernel))
        sums = 2 * mapping.lanes * folded if mapping.lane is not None else 0
        return mapping.unroll * lanes * max(live, fresh // 2, 1) + sums
    chains, lane = mapping.chains(lanes) * lanes, mapping.lane
    work = []
    for stage in _looping(kernel):
        fetched = fetched_bytes(kernel, stage, lane or stage.axes[-1], lanes) * mapping.unroll
        work.append(chains * sum(_words_of(f.dtype) for f in stage.folds) + min(48, fetched // 4))
    return max(work)


def _words_of(dtype: DType) -> int:
    return max(1, dtype.bits // 32)


def _unroll_factor(kernel: Kernel, lane: Axis | None, lanes: int) -> int:
    """Positions that a thread works on at once; more where accesses are narrow.

    lane: the grid axis that the lanes are along; None if they are along the loops.
    """
    looping = _looping(kernel)
    size = max(len(s.body) for s in looping)
    nbytes = max(fetched_bytes(kernel, s, lane or s.axes[-1], lanes) for s in looping)
    loads = max(sum(1 for _ in s.loads()) for s in looping)
    return max(1, min(unroll_for(size, nbytes, _BYTES), 2 * _FRESH // max(loads, 1)))


# -- lanes along the loops -------------------------------------------------------------------------


def _inner(kernel: Kernel, stage: Stage, tail: bool) -> Inner:
    """The order of a stage's loops and its lanes.  tail: elements may be left over."""
    if not stage.axes:
        return Inner((), 1)
    listed = list(accesses(kernel, [stage]))

    def score(axis: Axis) -> tuple[int, int]:
        near = sum(a.index.coefficient(axis) == 1 and axis not in a.axes for a in listed)
        return near, axis.id

    last = max(stage.axes, key=score)
    axes = (*(a for a in stage.axes if a != last), last)
    alone, end = tail and len(axes) == 1, stage.end_of(last)

    def fits(lanes: int) -> bool:
        whole = not last.size % lanes
        if end is not None:
            whole = whole and divides(end, None, lanes)
        return whole or alone

    return Inner(axes, vector_width(listed, last, fits))


def _common(inner: Sequence[Inner]) -> tuple[Inner, ...]:
    """The loops of all stages in the same order, with lanes that suit every stage."""
    lanes = min(i.lanes for i in inner if i.axes)
    axes = next(i.axes for i in inner if i.axes)
    return tuple(Inner(axes, lanes) if i.axes else i for i in inner)


def _along_loops(kernel: Kernel, target: Target) -> ThreadMapping:
    words = _words(kernel) if _aligned(kernel) else None
    if words is not None:
        mapping = _loops_in_registers(kernel, target, words)
        if mapping is not None:
            return mapping
    inner = tuple(_inner(kernel, s, True) for s in kernel.stages)
    steps = max(s.trips // i.lanes for s, i in zip(kernel.stages, inner, strict=True))
    # A tile that leaves no shared memory for a second block needs the largest block.
    crowded = _tile_bytes(kernel, 1) > target.tile_bytes // 8
    busy = kernel.points * target.block >= target.threads // 2
    usual = target.block if busy and not crowded else target.most_threads
    reducers = max(target.warp, min(usual, ceil_power_of_two(ceil_div(steps, 2))))
    narrow = min(i.lanes for i in inner if i.axes)
    needed = ceil_power_of_two(ceil_div(steps, reducers))
    unroll = max(1, min(_unroll_factor(kernel, None, narrow), needed))
    if reducers > target.block * 2:
        # Each of so many threads has few registers.
        unroll = max(1, unroll // 2)
    return ThreadMapping(None, 1, 1, reducers, 1, inner, unroll, False)


def _loops_in_registers(
    kernel: Kernel, target: Target, words: tuple[int, int]
) -> ThreadMapping | None:
    inner = _common([_inner(kernel, s, False) for s in kernel.stages])
    stage = _looping(kernel)[0]
    lanes = next(i.lanes for i in inner if i.axes)
    steps = stage.trips // lanes
    reducers = ceil_power_of_two(steps)
    if reducers > target.warp:
        short = steps * lanes <= 2 * _MOST_IN_REGISTERS * target.warp
        needed = ceil_power_of_two(ceil_div(steps * lanes, _MOST_IN_REGISTERS))
        reducers = target.warp if short else needed
    reducers = _fewer(kernel, stage, reducers, steps, lanes, words, target)
    while reducers < target.most_threads:
        held = ceil_div(steps, reducers) * lanes * sum(words)
        busy = kernel.points * reducers >= target.threads // 2 or reducers >= steps
        if held <= _budget(reducers, target) and (busy or reducers >= target.block):
            break
        reducers *= 2
    reducers = min(reducers, target.most_threads)
    unroll = ceil_div(steps, reducers)
    if unroll * lanes * sum(words) > _budget(reducers, target) or unroll > _MOST_IN_REGISTERS:
        return None
    groups = 1
    if reducers <= target.warp:
        # Enough blocks for the whole device matter more than blocks of the usual size.
        few = max(1, kernel.points * reducers * 512 // target.threads)
        few = 1 << few.bit_length() - 1
        groups = max(1, min(target.block, max(target.warp, few)) // reducers)
    return ThreadMapping(None, 1, 1, reducers, groups, inner, unroll, True)


def _fewer(
    kernel: Kernel,
    stage: Stage,
    reducers: int,
    steps: int,
    lanes: int,
    words: tuple[int, int],
    target: Target,
) -> int:
    """Fewer threads for a short row, so that each has several loads in flight.

    Together they load at least one memory transaction at a time; each of them may load less if its
    share would be tiny otherwise.
    """
    nbytes = max(1, fetched_bytes(kernel, stage, stage.axes[-1], lanes))
    while 2 <= reducers <= target.warp:
        unroll = ceil_div(2 * steps, reducers)
        tiny = ceil_div(steps, reducers) * nbytes < WIDEST
        if not tiny and (reducers * nbytes <= _LINE or unroll * nbytes > _BYTES):
            break
        if unroll > _MOST_IN_REGISTERS or unroll * lanes * sum(words) > _WORDS // 2:
            break
        if kernel.points * reducers < 2 * target.threads:
            break
        reducers //= 2
    return reducers


def _budget(reducers: int, target: Target) -> int:
    """Words that a thread can hold if at least two blocks of ``reducers`` threads are to fit."""
    return min(_WORDS, target.registers // max(reducers, target.block) * 5 // 8)


# -- lanes along the grid --------------------------------------------------------------------------


def _along_grid(kernel: Kernel, lane: Axis, target: Target) -> ThreadMapping:
    lanes = vector_width(accesses(kernel, kernel.stages), lane, lambda n: not lane.size % n)
    words = _words(kernel) if _aligned(kernel) else None
    has_tiles = any(d.role == "tile" for d in kernel.buffers)
    trips = max(s.trips for s in kernel.stages)
    if words is not None and words[0]:
        mapping = _grid_in_registers(kernel, lane, lanes, target, words, trips)
        if mapping is not None:
            return mapping
    inner = tuple(Inner(s.axes, 1) for s in kernel.stages)
    unroll = _unroll_factor(kernel, lane, lanes)
    columns, reducers = _shape(kernel, lane, lanes, trips // unroll, target)
    if has_tiles:
        while columns * lanes > 1:
            taken = _slot_bytes(kernel, columns, reducers, lanes, target)
            if taken + _tile_bytes(kernel, columns * lanes) <= target.tile_bytes:
                break
            if columns > 8 or lanes == 1:
                columns, reducers = columns // 2, min(reducers * 2, target.block)
            else:
                lanes //= 2
        if 2 * _tile_bytes(kernel, columns * lanes) > target.tile_bytes:
            # No second block fits beside this one, so it should be large.
            needed = ceil_power_of_two(ceil_div(trips, 4))
            reducers = max(reducers, min(needed, target.most_threads // columns))
            unroll = min(unroll, 4)
    return ThreadMapping(lane, lanes, columns, reducers, 1, inner, unroll, False)


def _tile_bytes(kernel: Kernel, width: int) -> int:
    return sum(d.type.nbytes * width for d in kernel.buffers if d.role == "tile")


def _shape(kernel: Kernel, lane: Axis, lanes: int, steps: int, target: Target) -> tuple[int, int]:
    """Columns and reducers of a block."""
    points = kernel.points // lanes
    # A kernel with few grid points gets the largest blocks.
    block = target.block if points * 8 >= target.threads // target.block else target.most_threads
    reducers = 1
    while reducers * 2 <= max(steps, 1) and reducers * points < target.threads:
        reducers *= 2
    near = ceil_power_of_two(lane.size // lanes)
    columns = min(near, max(target.warp, block // reducers))
    reducers = min(reducers, max(1, block // columns))
    columns = min(columns, max(block // reducers, 1))
    while reducers > 1 and _slot_bytes(kernel, columns, reducers, lanes, target) > SHARED_BYTES:
        reducers //= 2
    if columns * reducers < target.warp:
        columns = target.warp // reducers
    return columns, reducers


def _slot_bytes(kernel: Kernel, columns: int, reducers: int, lanes: int, target: Target) -> int:
    """Shared memory for the partial results of each column."""
    slots = columns * reducers * columns // max(columns, target.warp)
    each = sum(max(f.dtype.bits // 8, 1) for s in kernel.stages for f in s.folds)
    return each * slots * lanes


def _grid_in_registers(
    kernel: Kernel, lane: Axis, lanes: int, target: Target, words: tuple[int, int], trips: int
) -> ThreadMapping | None:
    inner = tuple(Inner(s.axes, 1) for s in kernel.stages)
    while lanes:
        columns, reducers = _shape(kernel, lane, lanes, max(trips // 4, 1), target)
        near = min(columns, target.warp)
        while reducers * columns <= target.most_threads:
            if _slot_bytes(kernel, columns, reducers, lanes, target) > SHARED_BYTES:
                break
            unroll = ceil_div(trips, reducers)
            threads = columns * reducers
            held = unroll * lanes * sum(words)
            if held <= _budget(threads, target) and unroll <= _MOST_IN_REGISTERS:
                return ThreadMapping(lane, lanes, columns, reducers, 1, inner, unroll, True)
            if columns > near:
                columns //= 2
            reducers *= 2
        lanes //= 2
    return None


def chunk_length(kernel: Kernel, target: Target) -> int:
    """The length of chunks of a fold that would leave much of the device idle; 0 for others.

    Depends on sizes alone, so that results do not differ between devices of one kind.
    """
    first = kernel.stages[0]
    if kernel.points * first.trips < _SMALL:
        return 0
    mapping = plan(kernel, target)
    units = ceil_div(kernel.points, mapping.lanes * mapping.columns * mapping.groups)
    # Four blocks for each that runs at once, so that the last one does not run alone for long.
    wanted = -(-4 * (target.threads // target.block) // units)
    size = longest_axis(kernel).size
    others = first.trips // size
    least = max(1, (_LINES if mapping.lane is not None else _CHUNK) // others)
    chunks = min(wanted, size // least)
    if wanted <= 4 or chunks < 2:
        return 0
    length = ceil_div(size, chunks)
    # A chunk is a whole number of a block's iterations if it has several.
    grain = mapping.threads * 16 if mapping.lane is None and others == 1 else 16
    return round_up(length, grain) if length >= 2 * grain else round_up(length, 4)

"""How threads share a kernel that folds: which of them work on one grid point, and in what steps.

A block is ``rows × members × columns`` threads.  Members share the loops of one grid point;
neighbouring columns are neighbouring points, for memory where those lie side by side, and rows are
groups of members of their own, for loops too short for a warp.  `split_for` cuts long folds over
few points into two launches, so that all of a machine has work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bringup.dtypes import DType
from bringup.kernel.form import Kernel, Stage
from bringup.kernel.index import Axis, Expr
from bringup.kernel.split import SplitFold, split_fold
from bringup.llvm.loops.schedule import LoopTarget, schedule
from bringup.llvm.simt.access import (
    WIDEST,
    accesses,
    copies_for,
    divides,
    fetched_bytes,
    width,
)
from bringup.llvm.simt.target import SimtTarget
from bringup.records import record

#: Sums of a thread that do not wait for each other.
_CHAINS = 8
#: Positions a thread keeps in registers.
_RESIDENT = 16
#: Bytes of memory that a thread has on their way at once: 64 KiB for 1,000 threads.
_BYTES = 64
#: Bytes of a line of memory.
_LINE = 128
#: Words of a kept row per thread that leave room for all else.
_WORDS = 64
#: Loads of one position on their way at once; of more, some wait.
_FRESH = 8
#: Bytes of static shared memory for partial results, of 48 KiB that any machine has.
_SLOTS = 40 << 10
#: Of a fold in two launches: elements a chunk should have at least, and rows of one where columns
#: are folded.
_CHUNK = 1 << 13
_LINES = 64
#: Elements that take no longer than a second launch would.
_SMALL = 1 << 16


@record
class Inner:
    """How a stage's loop is walked.  axes: outermost first.  lanes: along the last one."""

    axes: tuple[Axis, ...]
    lanes: int


@record
class Grouping:
    """The mapping of one kernel.

    lane, lanes: the grid axis of which a thread takes so many neighbours, if it does.
    columns, members, rows: powers of two; see the module's text.
    inner: of each stage.
    copies: positions a thread works on at once; all it has, if ``resident``.
    resident: what stages share stays in registers.
    """

    lane: Axis | None
    lanes: int
    columns: int
    members: int
    rows: int
    inner: tuple[Inner, ...]
    copies: int
    resident: bool

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.columns * self.members * self.rows

    def chains(self, lanes: int) -> int:
        """Accumulators of a fold in a thread, of so many lanes each."""
        return min(self.copies, max(1, _CHAINS // lanes))


def plan(kernel: Kernel, clips: Mapping[Axis, Expr], target: SimtTarget) -> Grouping:
    """Choose a mapping for a kernel with a loop and at least one grid point."""
    clipped = frozenset[Axis]().union(*(stop.axes() for stop in clips.values()))
    lane = schedule(kernel, LoopTarget(512, 32), clipped).lane
    made = _columns(kernel, lane, clips, target) if lane is not None else None
    return made or _rows(kernel, clips, target)


def _above(n: float) -> int:
    """The least power of two that is no less."""
    return 1 << max(int(-(-n // 1)) - 1, 0).bit_length()


def _below(n: int) -> int:
    return 1 << max(n, 1).bit_length() - 1


def _looping(kernel: Kernel) -> list[Stage]:
    return [s for s in kernel.stages if s.axes]


def _aligned(kernel: Kernel, clips: Mapping[Axis, Expr]) -> bool:
    """Whether all loops are one, so that each thread meets the same elements in every stage."""
    loops = {s.axes for s in _looping(kernel)}
    return len(loops) == 1 and not clips and all(s.trips for s in kernel.stages)


def _words(kernel: Kernel) -> tuple[int, int] | None:
    """32-bit words per element if stages share registers: kept from stage to stage, at most at
    once, and on their way from memory beside them.  None if tiles are not for that.
    """
    spans: dict[tuple[object, ...], tuple[int, int, int]] = {}
    tiles: dict[int, set[Expr]] = {}

    def seen(number: int, key: tuple[object, ...], buffer: int) -> None:
        first = spans.get(key, (number, number, 0))[0]
        spans[key] = (first, number, _wide(kernel, buffer))

    for number, stage in enumerate(kernel.stages):
        found = [(i.attrs["buffer"], i.attrs["index"], i.attrs["mask"]) for i in stage.loads()]
        for buffer, index, mask in [*found, *((s.buffer, s.index, s.mask) for s in stage.stores)]:
            if kernel.buffers[buffer].role == "tile":
                tiles.setdefault(buffer, set()).add(index)
                if mask or not stage.axes:
                    return None
                seen(number, (buffer,), buffer)
            elif kernel.buffers[buffer].role == "in" and index.axes() & set(stage.axes):
                seen(number, (buffer, index, tuple(mask)), buffer)
    if any(len(found) > 1 for found in tiles.values()):
        return None
    numbers = range(len(kernel.stages))
    kept = max(sum(w for a, b, w in spans.values() if a <= n < b) for n in numbers)
    fresh = max(sum(w for a, b, w in spans.values() if a == n == b) for n in numbers)
    return kept, max(1, min(fresh, _FRESH))


def kept_words(kernel: Kernel, grouping: Grouping) -> int:
    """Registers that a thread needs for what it keeps, or for what it adds to and what it adds."""
    lanes = max(grouping.lanes, *(i.lanes for i in grouping.inner))
    if grouping.resident:
        kept, fresh = _words(kernel) or (0, 1)
        # Of neighbouring columns, each has its sum and what is added next.
        folded = max(sum(_words_of(f.dtype) for f in s.folds) for s in _looping(kernel))
        sums = 2 * grouping.lanes * folded if grouping.lane is not None else 0
        return grouping.copies * lanes * max(kept, fresh // 2, 1) + sums
    chains, lane = grouping.chains(lanes) * lanes, grouping.lane
    work = []
    for stage in _looping(kernel):
        fetched = fetched_bytes(kernel, stage, lane or stage.axes[-1], lanes) * grouping.copies
        work.append(chains * sum(_words_of(f.dtype) for f in stage.folds) + min(48, fetched // 4))
    return max(work)


def _loads(stage: Stage) -> int:
    return sum(1 for _ in stage.loads())


def _wide(kernel: Kernel, buffer: int) -> int:
    return _words_of(kernel.buffers[buffer].type.dtype)


def _words_of(dtype: DType) -> int:
    return max(1, dtype.bits // 32)


def _unroll(kernel: Kernel, lane: Axis | None, lanes: int) -> int:
    """Positions a thread works on at once; more where each is a narrow access.

    lane: the grid axis that lanes are along, if it is one; else they are along the loops.
    """
    looping = _looping(kernel)
    size = max(len(s.body) for s in looping)
    nbytes = max(fetched_bytes(kernel, s, lane or s.axes[-1], lanes) for s in looping)
    loads = max(_loads(s) for s in looping)
    return max(1, min(copies_for(size, nbytes, _BYTES), 2 * _FRESH // max(loads, 1)))


# -- members along memory --------------------------------------------------------------------------


def _inner(kernel: Kernel, stage: Stage, clips: Mapping[Axis, Expr], tail: bool) -> Inner:
    """The order of a stage's loops and its lanes.  tail: elements may be left over."""
    if not stage.axes:
        return Inner((), 1)
    found = list(accesses(kernel, [stage]))

    def score(axis: Axis) -> tuple[int, int]:
        near = sum(a.index.coefficient(axis) == 1 and axis not in a.axes for a in found)
        return near, axis.id

    last = max(stage.axes, key=score)
    axes = (*(a for a in stage.axes if a != last), last)
    alone = tail and len(axes) == 1

    def fits(lanes: int) -> bool:
        whole = not last.size % lanes
        if last in clips:
            whole = whole and divides(clips[last], None, lanes)
        return whole or alone

    return Inner(axes, width(found, last, fits))


def _common(inner: Sequence[Inner]) -> tuple[Inner, ...]:
    """All loops walked as one of them, with lanes that suit each."""
    lanes = min(i.lanes for i in inner if i.axes)
    axes = next(i.axes for i in inner if i.axes)
    return tuple(Inner(axes, lanes) if i.axes else i for i in inner)


def _rows(kernel: Kernel, clips: Mapping[Axis, Expr], target: SimtTarget) -> Grouping:
    words = _words(kernel) if _aligned(kernel, clips) else None
    if words is not None:
        made = _resident_rows(kernel, clips, target, words)
        if made is not None:
            return made
    inner = tuple(_inner(kernel, s, clips, True) for s in kernel.stages)
    steps = max(s.trips // i.lanes for s, i in zip(kernel.stages, inner, strict=True))
    # One tile that leaves no memory for a second block wants all the threads there can be.
    crowded = _tile_bytes(kernel, 1) > target.shared_bytes // 8
    busy = kernel.points * target.block >= target.full // 2
    usual = target.block if busy and not crowded else target.most
    members = max(target.warp, min(usual, _above(steps / 2)))
    narrow = min(i.lanes for i in inner if i.axes)
    copies = max(1, min(_unroll(kernel, None, narrow), _above(steps / members)))
    if members > target.block * 2:
        # So many threads have few registers each.
        copies = max(1, copies // 2)
    return Grouping(None, 1, 1, members, 1, inner, copies, False)


def _resident_rows(
    kernel: Kernel, clips: Mapping[Axis, Expr], target: SimtTarget, words: tuple[int, int]
) -> Grouping | None:
    inner = _common([_inner(kernel, s, clips, False) for s in kernel.stages])
    stage = _looping(kernel)[0]
    lanes = next(i.lanes for i in inner if i.axes)
    steps = stage.trips // lanes
    members = _above(steps)
    if members > target.warp:
        short = steps * lanes <= 2 * _RESIDENT * target.warp
        members = target.warp if short else _above(steps * lanes / _RESIDENT)
    members = _fewer(kernel, stage, members, steps, lanes, words, target)
    while members < target.most:
        held = -(-steps // members) * lanes * sum(words)
        busy = kernel.points * members >= target.full // 2 or members >= steps
        if held <= _budget(members, target) and (busy or members >= target.block):
            break
        members *= 2
    members = min(members, target.most)
    copies = -(-steps // members)
    if copies * lanes * sum(words) > _budget(members, target) or copies > _RESIDENT:
        return None
    rows = 1
    if members <= target.warp:
        # Enough blocks for all of the machine come before blocks of the usual size.
        few = _below(max(1, kernel.points * members * 512 // target.full))
        rows = max(1, min(target.block, max(target.warp, few)) // members)
    return Grouping(None, 1, 1, members, rows, inner, copies, True)


def _fewer(
    kernel: Kernel,
    stage: Stage,
    members: int,
    steps: int,
    lanes: int,
    words: tuple[int, int],
    target: SimtTarget,
) -> int:
    """Members of a short row, so that each has several loads on their way: a line of memory for
    all of them at once, less where the loads of one would be little.
    """
    nbytes = max(1, fetched_bytes(kernel, stage, stage.axes[-1], lanes))
    while 2 <= members <= target.warp:
        copies = -(-2 * steps // members)
        little = -(-steps // members) * nbytes < WIDEST
        if not little and (members * nbytes <= _LINE or copies * nbytes > _BYTES):
            break
        if copies > _RESIDENT or copies * lanes * sum(words) > _WORDS // 2:
            break
        if kernel.points * members < 2 * target.full:
            break
        members //= 2
    return members


def _budget(members: int, target: SimtTarget) -> int:
    """Words a thread can keep where so many members make a block, and two blocks or more fit."""
    return min(_WORDS, target.registers // max(members, target.block) * 5 // 8)


# -- columns along memory --------------------------------------------------------------------------


def _columns(
    kernel: Kernel, lane: Axis | None, clips: Mapping[Axis, Expr], target: SimtTarget
) -> Grouping | None:
    assert lane is not None
    found = list(accesses(kernel, kernel.stages))
    lanes = width(found, lane, lambda n: not lane.size % n)
    words = _words(kernel) if _aligned(kernel, clips) else None
    has_tiles = any(d.role == "tile" for d in kernel.buffers)
    trips = max(s.trips for s in kernel.stages)
    if words is not None and words[0]:
        made = _resident_columns(kernel, lane, lanes, target, words, trips)
        if made is not None:
            return made
    inner = tuple(Inner(s.axes, 1) for s in kernel.stages)
    copies = _unroll(kernel, lane, lanes)
    columns, members = _shape(kernel, lane, lanes, trips // copies, target)
    if has_tiles:
        while columns * lanes > 1:
            taken = _slot_bytes(kernel, columns, members, lanes, target)
            if taken + _tile_bytes(kernel, columns * lanes) <= target.shared_bytes:
                break
            if columns > 8 or lanes == 1:
                columns, members = columns // 2, min(members * 2, target.block)
            else:
                lanes //= 2
        if 2 * _tile_bytes(kernel, columns * lanes) > target.shared_bytes:
            # Nothing else fits beside this block: it had better be large.
            members = max(members, min(_above(trips / 4), target.most // columns))
            copies = min(copies, 4)
    return Grouping(lane, lanes, columns, members, 1, inner, copies, False)


def _tile_bytes(kernel: Kernel, width: int) -> int:
    return sum(d.type.nbytes * width for d in kernel.buffers if d.role == "tile")


def _shape(
    kernel: Kernel, lane: Axis, lanes: int, steps: int, target: SimtTarget
) -> tuple[int, int]:
    """Columns and members of a block."""
    points = kernel.points // lanes
    # Few points get the largest blocks.
    block = target.block if points * 8 >= target.full // target.block else target.most
    members = 1
    while members * 2 <= max(steps, 1) and members * points < target.full:
        members *= 2
    near = _above(lane.size // lanes)
    columns = min(near, max(target.warp, block // members))
    members = min(members, max(1, block // columns))
    columns = min(columns, max(block // members, 1))
    while members > 1 and _slot_bytes(kernel, columns, members, lanes, target) > _SLOTS:
        members //= 2
    if columns * members < target.warp:
        columns = target.warp // members
    return columns, members


def _slot_bytes(kernel: Kernel, columns: int, members: int, lanes: int, target: SimtTarget) -> int:
    """Shared memory in which the members of each column meet."""
    slots = columns * members * columns // max(columns, target.warp)
    each = sum(max(f.dtype.bits // 8, 1) for s in kernel.stages for f in s.folds)
    return each * slots * lanes


def has_spare_slots(kernel: Kernel, grouping: Grouping, target: SimtTarget) -> bool:
    """Whether shared memory has room for the partial results of two turns."""
    g = grouping
    return 2 * _slot_bytes(kernel, g.columns, g.members, g.lanes, target) <= _SLOTS


def _resident_columns(
    kernel: Kernel, lane: Axis, lanes: int, target: SimtTarget, words: tuple[int, int], trips: int
) -> Grouping | None:
    inner = tuple(Inner(s.axes, 1) for s in kernel.stages)
    while lanes:
        columns, members = _shape(kernel, lane, lanes, max(trips // 4, 1), target)
        near = min(columns, target.warp)
        while members * columns <= target.most:
            if _slot_bytes(kernel, columns, members, lanes, target) > _SLOTS:
                break
            copies = -(-trips // members)
            threads = columns * members
            held = copies * lanes * sum(words)
            if held <= _budget(threads, target) and copies <= _RESIDENT:
                return Grouping(lane, lanes, columns, members, 1, inner, copies, True)
            if columns > near:
                columns //= 2
            members *= 2
        lanes //= 2
    return None


def owns_tiles(kernel: Kernel, grouping: Grouping) -> bool:
    """Whether no thread touches what another one writes to tiles: all loops are shared out alike,
    and no two of their steps have an element in common.
    """
    inner = {(i.axes, i.lanes) for i in grouping.inner if i.axes}
    if len(inner) > 1 or not _aligned(kernel, {}) or _words(kernel) is None:
        return False
    axes = _looping(kernel)[0].axes
    found = [a.index for a in accesses(kernel, kernel.stages) if a.tile]
    return all(_distinct(index, axes) for index in found)


def _distinct(index: Expr, axes: Sequence[Axis]) -> bool:
    """Whether the index differs wherever the axes do."""
    span = 1
    for stride, size in sorted((index.coefficient(a) or 0, a.size) for a in axes if a.size > 1):
        if stride < span:
            return False
        span += stride * (size - 1)
    return True


def with_loops(kernel: Kernel, grouping: Grouping) -> Kernel:
    """The kernel with its loops in the order they are walked and the lane axis last."""
    stages = tuple(
        replace(s, axes=i.axes) for s, i in zip(kernel.stages, grouping.inner, strict=True)
    )
    grid = kernel.grid
    if grouping.lane is not None:
        grid = (*(a for a in grid if a != grouping.lane), grouping.lane)
    return replace(kernel, stages=stages, grid=grid)


def split_for(kernel: Kernel, target: SimtTarget) -> SplitFold | None:
    """Two kernels for one, where one would leave much of the machine without work.

    Depends on sizes alone, so that results do not differ from device to device of a kind.
    """
    first = kernel.stages[0]
    if not first.axes or not first.folds or kernel.points * first.trips < _SMALL:
        return None
    grouping = plan(kernel, {}, target)
    units = -(-kernel.points // (grouping.lanes * grouping.columns * grouping.rows))
    # Four blocks for each of those that run at once, so that none waits long for the last.
    wanted = -(-4 * (target.full // target.block) // units)
    axis = max(first.axes, key=lambda a: (a.size, -a.id))
    rest = first.trips // axis.size
    least = max(1, _LINES // rest) if grouping.lane is not None else max(1, _CHUNK // rest)
    chunks = min(wanted, axis.size // least)
    if wanted <= 4 or chunks < 2:
        return None
    size = -(-axis.size // chunks)
    # Whole rounds of a block, as far as there are several.
    grain = grouping.threads * 16 if grouping.lane is None and rest == 1 else 16
    size = -(-size // grain) * grain if size >= 2 * grain else -(-size // 4) * 4
    elements = size * rest * min(kernel.points, 64)
    return split_fold(kernel, chunk_elements=elements, max_points=kernel.points)

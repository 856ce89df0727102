"""Which accesses of neighbouring lanes can be one vector access, and how wide it may be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from bringup.graph.index import Axis, Bound, Expr
from bringup.kernel.form import Kernel, Stage
from bringup.llvm.scalar import memory_type
from bringup.maths import ELEMENTARY
from bringup.records import record

#: Bytes of the widest load or store of a thread.
WIDEST = 16
#: A block that moves fewer bytes than this takes less time than a few block starts.
SMALL_BLOCK_BYTES = 16 << 10
#: Unroll factors: of small bodies, and the largest, for small bodies with narrow accesses.
_UNROLL, _MOST_UNROLL = 4, 16
#: Instructions of ops that take many; all others count as one.
_COSTS = {**dict.fromkeys(ELEMENTARY, 20), "div": 8, "rem": 16, "sqrt": 8}


@record
class Access:
    """A load or store.

    axes: those that change its address through loaded indices.  bits: of an element.
    weight: number of iterations; less for tiles, because they are in fast memory.
    """

    buffer: int
    index: Expr
    mask: tuple[Bound, ...]
    axes: frozenset[Axis]
    bits: int
    weight: float
    tile: bool


def accesses(kernel: Kernel, stages: Iterable[Stage]) -> Iterator[Access]:
    """Every load and store of some stages of a kernel."""
    for stage in stages:
        data, weight = stage.data_axes(), max(stage.trips, 1)
        listed = [
            (i.attrs["buffer"], i.attrs["index"], i.attrs["mask"], data.get(i, frozenset()))
            for i in stage.loads()
        ]
        listed += [(s.buffer, s.index, s.mask, frozenset[Axis]()) for s in stage.stores]
        for buffer, index, mask, axes in listed:
            decl = kernel.buffers[buffer]
            bits = memory_type(decl.type.dtype).bits
            tile = decl.role == "tile"
            cost = 0.25 if tile else 1
            yield Access(buffer, index, tuple(mask), axes, bits, weight * cost, tile)


def divides(expr: Expr, lane: Axis | None, lanes: int) -> bool:
    """Whether the value is a multiple of ``lanes`` wherever that of ``lane`` is."""
    return not expr.const % lanes and all(atom == lane or not c % lanes for atom, c in expr.terms)


def is_even(bound: Bound, lane: Axis, lanes: int) -> bool:
    """Whether a bound holds for all of ``lanes`` neighbours or for none of them."""
    stride = bound.expr.coefficient(lane)
    if stride == 0:
        return True
    ends = (bound.low, bound.high)
    return stride == 1 and divides(bound.expr, lane, lanes) and not any(e % lanes for e in ends)


def _cost(access: Access, lane: Axis, lanes: int) -> float:
    """Instructions per element; separate accesses to neighbours also slow other threads down."""
    stride = access.index.coefficient(lane) if lane not in access.axes else None
    if not all(is_even(b, lane, lanes) for b in access.mask):
        return 1.5
    if stride == 0:
        return 1 / lanes
    if stride == 1 and divides(access.index, lane, lanes):
        return 1 / lanes
    return 1 + (0.25 if stride == 1 else 0.05) * (lanes - 1)


def vector_width(candidates: Iterable[Access], lane: Axis, fits: Callable[[int], bool]) -> int:
    """The number of neighbours along ``lane`` that one thread should take.

    fits: whether a number of lanes is possible at all.
    """
    listed = list(candidates)
    moving = [a for a in listed if a.index.coefficient(lane) == 1 and lane not in a.axes]
    if not moving:
        return 1
    # Rare accesses may be split into several; only frequent ones limit the width.
    heavy = max(a.weight for a in moving) / 16
    most = WIDEST * 8 // max([a.bits for a in moving if not a.tile and a.weight >= heavy] or [32])
    costs: dict[int, float] = {}
    lanes = 1
    while lanes <= most:
        if fits(lanes):
            costs[lanes] = sum(a.weight * _cost(a, lane, lanes) for a in listed)
        lanes *= 2
    return min(costs, key=lambda n: (costs[n], n))


def fetched_bytes(kernel: Kernel, stage: Stage, lane: Axis | None, lanes: int) -> int:
    """Bytes of memory that a stage loads at ``lanes`` positions along ``lane``.

    Masked loads are alternatives, such as the parts of a concatenation: only the largest counts.
    """
    data, always, masked = stage.data_axes(), 0, 0
    for load in stage.loads():
        decl = kernel.buffers[load.attrs["buffer"]]
        if decl.role == "tile":
            continue
        uniform = load.attrs["index"].coefficient(lane) == 0 and lane not in data.get(load, ())
        nbytes = memory_type(decl.type.dtype).bits // 8 * (1 if uniform else lanes)
        if load.attrs["mask"]:
            masked = max(masked, nbytes)
        else:
            always += nbytes
    return always + masked


def cost_of(stage: Stage) -> int:
    """About how many instructions a stage has per position."""
    return sum(_COSTS.get(i.op.name, 1) for i in stage.body.instrs)


def unroll_for(size: int, nbytes: int, wanted: int) -> int:
    """The number of positions that a thread works on at once, so that enough loads are in flight.

    size: instructions of a position.  nbytes: that it loads.  wanted: bytes in flight per thread.
    """
    unroll = _UNROLL if size <= 24 else _UNROLL // 2 if size <= 64 else 1
    while size <= 12 and unroll < _MOST_UNROLL and unroll * nbytes < wanted:
        unroll *= 2
    return unroll


def has_small_blocks(kernel: Kernel, units: int) -> bool:
    """Whether a block moves so little that starting it takes as long.

    What several stages read is counted once.
    """
    distinct = {
        (a.buffer, a.index, a.mask): a.weight * a.bits
        for a in accesses(kernel, kernel.stages)
        if not a.tile
    }
    moved = kernel.points * sum(distinct.values()) / 8
    return bool(units) and moved <= SMALL_BLOCK_BYTES * units


def registers_of(kernel: Kernel, held: int) -> int:
    """Registers of a thread: few where there is little to compute, so that many threads can wait
    for memory at once.
    """
    names = [i.op.name for s in kernel.stages for i in s.body.instrs]
    steps = 8 if len(names) <= 12 else 16 if len(names) <= 24 else max(24, len(names) // 4)
    usual = 24 + max(held, 16) + steps
    if any(stage.axes for stage in kernel.stages):
        return usual + 8 * sum(name in ELEMENTARY for name in names)
    return usual

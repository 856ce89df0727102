"""How accesses to memory look from neighbouring lanes: which may be one, and how wide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from bringup.kernel.form import Kernel, Stage
from bringup.kernel.index import Axis, Bound, Div, Expr, Mod
from bringup.llvm.scalar import FLOAT_ONLY, memory_type
from bringup.records import record

#: Bytes of the widest access of a thread.
WIDEST = 16
_LIMIT = 1 << 31
#: Positions at once of small bodies; of those whose accesses are narrow.
_COPIES, _MOST_COPIES = 4, 16
#: What takes many instructions and registers, beside all else.
_COSTS = {**dict.fromkeys(FLOAT_ONLY, 20), "div": 8, "rem": 16, "sqrt": 8}


@record
class Access:
    """A load or store.

    axes: those that move it through data.  bits: of an element.  weight: iterations, fewer for
    tiles, which are near.
    """

    buffer: int
    index: Expr
    mask: tuple[Bound, ...]
    axes: frozenset[Axis]
    bits: int
    weight: float
    tile: bool


def accesses(kernel: Kernel, stages: Iterable[Stage]) -> Iterator[Access]:
    """Every load and store of some stages of a kernel; the weight counts iterations."""
    for stage in stages:
        data, weight = stage.data_axes(), max(stage.trips, 1)
        found = [
            (i.attrs["buffer"], i.attrs["index"], i.attrs["mask"], data.get(i, frozenset()))
            for i in stage.loads()
        ]
        found += [(s.buffer, s.index, s.mask, frozenset[Axis]()) for s in stage.stores]
        for buffer, index, mask, axes in found:
            decl = kernel.buffers[buffer]
            bits = memory_type(decl.type.dtype).bits
            tile = decl.role == "tile"
            near = 0.25 if tile else 1
            yield Access(buffer, index, tuple(mask), axes, bits, weight * near, tile)


def divides(expr: Expr, lane: Axis | None, lanes: int) -> bool:
    """Whether the value is a multiple of ``lanes`` wherever that of ``lane`` is."""
    return not expr.const % lanes and all(atom == lane or not c % lanes for atom, c in expr.terms)


def is_even(bound: Bound, lane: Axis, lanes: int) -> bool:
    """Whether a bound holds for all of ``lanes`` neighbours or none."""
    stride = bound.expr.coefficient(lane)
    if stride == 0:
        return True
    ends = (bound.low, bound.high)
    return stride == 1 and divides(bound.expr, lane, lanes) and not any(e % lanes for e in ends)


def _cost(access: Access, lane: Axis, lanes: int) -> float:
    """Instructions per element; neighbours that are no one access disturb other threads."""
    stride = access.index.coefficient(lane) if lane not in access.axes else None
    if not all(is_even(b, lane, lanes) for b in access.mask):
        return 1.5
    if stride == 0:
        return 1 / lanes
    if stride == 1 and divides(access.index, lane, lanes):
        return 1 / lanes
    return 1 + (0.25 if stride == 1 else 0.05) * (lanes - 1)


def width(found: Iterable[Access], lane: Axis, fits: Callable[[int], bool]) -> int:
    """How many neighbours along ``lane`` one thread should take.

    fits: whether a number of lanes is possible at all.
    """
    listed = list(found)
    moving = [a for a in listed if a.index.coefficient(lane) == 1 and lane not in a.axes]
    if not moving:
        return 1
    # What is met once for many of the others may take several accesses.
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
    """Bytes of memory that a stage asks for at ``lanes`` positions along ``lane``.

    Of what is there or not, as parts that are joined, the most at a time.
    """
    data, always, other = stage.data_axes(), 0, 0
    for load in stage.loads():
        decl = kernel.buffers[load.attrs["buffer"]]
        if decl.role == "tile":
            continue
        still = load.attrs["index"].coefficient(lane) == 0 and lane not in data.get(load, ())
        nbytes = memory_type(decl.type.dtype).bits // 8 * (1 if still else lanes)
        if load.attrs["mask"]:
            other = max(other, nbytes)
        else:
            always += nbytes
    return always + other


def fits_words(kernel: Kernel) -> bool:
    """Whether every position and index of a kernel fits 32 bits with room to spare."""
    exprs: list[Expr] = []
    for stage in kernel.stages:
        for instr in stage.body.instrs:
            exprs += [b.expr for b in instr.attrs.get("mask", ())]
            if "index" in instr.attrs:
                exprs.append(instr.attrs["index"])
        exprs += [e for s in stage.stores for e in (s.index, *(b.expr for b in s.mask))]
    trips = max((s.trips for s in kernel.stages), default=1)
    return max(kernel.points, trips) < _LIMIT // 8 and all(map(_fits, exprs))


def _fits(expr: Expr) -> bool:
    # The vectors of `BodyEmitter` take narrow integers under the same condition.
    most = sum(abs(c) * (max(abs(a.first), abs(a.last)) + 128) for a, c in expr.terms)
    inner = all(_fits(a.of) for a, _ in expr.terms if isinstance(a, Div | Mod))
    return inner and most + abs(expr.const) < _LIMIT


def cost_of(stage: Stage) -> int:
    """Instructions of a position, as far as they are not a few each."""
    return sum(_COSTS.get(i.op.name, 1) for i in stage.body.instrs)


def copies_for(size: int, nbytes: int, wanted: int) -> int:
    """Positions a thread works on at once, so that enough of memory is on its way.

    size: instructions of a position.  nbytes: that it asks for.  wanted: bytes for a thread.
    """
    copies = _COPIES if size <= 24 else _COPIES // 2 if size <= 64 else 1
    while size <= 12 and copies < _MOST_COPIES and copies * nbytes < wanted:
        copies *= 2
    return copies

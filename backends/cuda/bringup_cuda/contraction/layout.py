"""How tiles of a factor lie in shared memory, and by which accesses they come there."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.dtypes import DType
from bringup.graph import Instr, Value
from bringup.kernel.contraction import Contraction, Factor, run, size, steps_of, vector
from bringup.llvm.text import Builder, Val
from bringup.records import record
from bringup_cuda.contraction.points import number

#: Bytes of the widest access, of a chunk that swizzling moves as a whole.
CHUNK = 16
#: Bytes of a line in which a whole turn of chunks lies.
PANEL = 8 * CHUNK
#: What the address of a tile in panels is a multiple of: from there on chunks of eight lines change
#: places again and again.
TURN = 8 * PANEL
#: Bytes between lines that are not swizzled: where eight lanes read chunks of as many lines, and
#: where four groups of eight lanes read words of four.
GAPS = (CHUNK, 2 * CHUNK)
_GRAINS = (4, 8, 16)
_WORD = 4


@record
class Layout:
    """How a tile lies in shared memory: lines of equal length.

    extent: rows or columns of the tile.  depth: inner elements.  inner_minor: a line holds inner
    elements of one row or column; else it holds all rows or columns of one inner element.
    swizzled: chunks of a line change places so that eight lines' equal chunks lie in different
    banks; else lines are longer than their contents.
    panels: lines are cut every `PANEL` bytes, and what lies in one column of such pieces comes
    together, as tensor cores that read shared memory themselves want it.
    gap: bytes by which lines that are not swizzled are longer, one of `GAPS`.
    """

    extent: int
    depth: int
    dtype: DType
    inner_minor: bool
    swizzled: bool
    panels: bool = False
    gap: int = CHUNK

    @property
    def length(self) -> int:
        """Elements in a line."""
        return self.depth if self.inner_minor else self.extent

    @property
    def stride(self) -> int:
        """Bytes from line to line."""
        if self.panels:
            return PANEL
        return self.length * self.dtype.itemsize + (0 if self.swizzled else self.gap)

    @property
    def lines(self) -> int:
        """How many there are."""
        return self.extent if self.inner_minor else self.depth

    @property
    def panel(self) -> int:
        """Bytes from panel to panel."""
        return self.lines * PANEL

    @property
    def nbytes(self) -> int:
        """Of the whole tile."""
        if self.panels:
            return self.lines * self.length * self.dtype.itemsize
        return self.lines * self.stride

    def turn(self, b: Builder, line: Val) -> Val:
        """What the byte offset in a line is to be xored with."""
        chunks = self.length * self.dtype.itemsize // CHUNK
        # Only chunks of one power of two change places, so that all stay in their line.
        mask = min(chunks & -chunks, 8) - 1
        if not self.swizzled or not mask:
            return number(0)
        shift = {1: 2, 3: 1, 7: 0}[mask]
        turned = b.and_(b.lshr(line, number(shift)) if shift else line, number(mask))
        return b.mul(turned, number(CHUNK))

    def offset(self, b: Builder, own: Val, inner: Val) -> Val:
        """Bytes from the tile's start to an element."""
        line, column = (own, inner) if self.inner_minor else (inner, own)
        place = b.mul(column, number(self.dtype.itemsize))
        turn = self.turn(b, line)
        first = b.mul(line, number(self.stride))
        if self.panels and self.length * self.dtype.itemsize > PANEL:
            start = b.mul(b.udiv(place, number(PANEL)), number(self.panel))
            first, place = b.add(first, start), b.urem(place, number(PANEL))
        if turn.text != "0":
            place = b.xor(place, turn)
        return b.add(first, place)


@record
class Plan:
    """How a tile is copied.

    value: what is stored.  along: lanes follow each other along the inner axes; else along the
    factor's own.  lanes: elements of one access to global memory.  group: inner elements that a
    unit has, each an access, to be stored together.
    """

    layout: Layout
    value: Value
    along: bool
    lanes: int
    asynchronous: bool
    group: int = 1

    @property
    def fast(self) -> int:
        """Units side by side, taken by neighbouring threads."""
        return (self.layout.depth if self.along else self.layout.extent) // self.lanes

    @property
    def slow(self) -> int:
        """Units the other way."""
        return self.layout.extent if self.along else self.layout.depth // self.group


def plan_copy(
    made: Contraction,
    factor: Factor,
    value: Value,
    tile: tuple[int, int],
    tensor: bool,
    later: bool,
    panels: bool = False,
) -> Plan:
    """How to copy tiles of a factor.

    value: which to store.  tile: extent and depth.  tensor: lines as tensor cores want them.
    later: asynchronous copies exist.  panels: as in `Layout`.
    """
    load = value.producer
    plain = load is not None and load.op.name == "load" and not load.operands
    loads = [i for i in steps_of(made.kernel.stages[0].body, value) if i.op.name == "load"]
    along, lanes = _direction(made, factor, loads, max(1, CHUNK // value.dtype.itemsize))
    lanes = min(lanes, tile[1] if along else tile[0])
    grain = lanes * value.dtype.itemsize
    if tensor:
        inner_minor = along or value.dtype.itemsize == 1
    else:
        inner_minor = along and grain == CHUNK
    if along is not inner_minor and later and plain and value.dtype.itemsize >= _GRAINS[0]:
        lanes, grain = 1, value.dtype.itemsize
    movable = plain and value.dtype.kind != "bool" and (along is inner_minor or lanes == 1)
    asynchronous = later and movable and grain in _GRAINS
    # Matrix loads turn elements of two bytes alone; others are read word by word.
    words = tensor and not inner_minor and value.dtype.itemsize > 2
    layout = Layout(*tile, value.dtype, inner_minor, tensor and not words, panels, GAPS[words])
    # Bytes that must be turned are put together to words.
    turned = inner_minor and not along and value.dtype.itemsize == 1 and lanes > 1
    return Plan(layout, value, along, lanes, asynchronous, _WORD if turned else 1)


def _direction(
    made: Contraction, factor: Factor, loads: Sequence[Instr], most: int
) -> tuple[bool, int]:
    """Whether lanes go along the inner axes, and how many there are."""
    best = (False, 0, 0)
    for load in loads:
        index, mask = load.attrs["index"], load.attrs["mask"]
        inner = min(vector(index, mask, made.inner, most), _clip_lanes(made, most))
        own = vector(index, mask, factor.axes, most)
        one = (True, inner, run(index, made.inner))
        other = (False, own, run(index, factor.axes))
        best = max(best, one, other, key=lambda found: (found[1], found[2]))
    return best[0], max(best[1], 1)


def _clip_lanes(made: Contraction, most: int) -> int:
    """Inner elements that end together wherever an axis is clipped."""
    lanes = most
    for axis, clip in made.clips.items():
        after = size(made.inner[made.inner.index(axis) + 1 :])
        ends = [after] if after > 1 else [clip.const, *(c for _, c in clip.terms)]
        while lanes > 1 and any(n % lanes for n in ends):
            lanes //= 2
    return lanes

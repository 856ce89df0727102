"""Tiles of a factor: how they lie in shared memory, and how they are copied there.

Elements that need no prologue are copied asynchronously, 16, 8 or 4 bytes at a time, whatever their
index map: rows, columns and convolution patches only differ in how many elements lie side by side.
All other elements are loaded to registers before the products of a tile, computed there, and stored
after the products.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.dtypes import DType
from bringup.graph import Instr, Value
from bringup.kernel.contraction import Contraction, Factor, run, size, steps_of, vector
from bringup.records import record
from bringup_cuda.codegen.contraction.tiles import CHUNK

#: Padding between lines that are not swizzled: where eight lanes read chunks of eight lines, and
#: where four groups of eight lanes read words of four lines.
GAPS = (CHUNK, 2 * CHUNK)
#: Bytes that one asynchronous copy may move.
_ASYNC_BYTES = (4, 8, 16)
_WORD = 4


@record
class TileLayout:
    """How a tile lies in shared memory: in lines of equal length.

    extent: rows or columns of the tile.  depth: inner elements.
    inner_minor: whether a line holds the inner elements of one row or column; else it holds all
    rows or columns of one inner element.
    swizzled: whether the chunks of a line are permuted, so that equal chunks of eight lines lie in
    different banks; else lines are padded by ``gap`` bytes, one of `GAPS`.
    """

    extent: int
    depth: int
    dtype: DType
    inner_minor: bool
    swizzled: bool
    gap: int = CHUNK

    @property
    def length(self) -> int:
        """Elements of a line."""
        return self.depth if self.inner_minor else self.extent

    @property
    def stride(self) -> int:
        """Bytes from line to line."""
        return self.length * self.dtype.itemsize + (0 if self.swizzled else self.gap)

    @property
    def lines(self) -> int:
        """The number of lines."""
        return self.extent if self.inner_minor else self.depth

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tile."""
        return self.lines * self.stride


@record
class CopyPlan:
    """How tiles of a factor are copied.

    value: the value that is stored.
    along_inner: whether neighbouring threads take neighbours along the inner axes, else along the
    factor's own axes.
    lanes: elements of one access to global memory.
    packed: accesses that a thread makes along the inner axes, to store their elements together.
    """

    layout: TileLayout
    value: Value
    along_inner: bool
    lanes: int
    asynchronous: bool
    packed: int = 1

    @property
    def fast_units(self) -> int:
        """Accesses side by side, taken by neighbouring threads."""
        length = self.layout.depth if self.along_inner else self.layout.extent
        return length // self.lanes

    @property
    def slow_units(self) -> int:
        """Groups of packed accesses in the other direction."""
        return self.layout.extent if self.along_inner else self.layout.depth // self.packed


def plan_copy(
    contraction: Contraction,
    factor: Factor,
    value: Value,
    tile: tuple[int, int],
    *,
    tensor: bool,
    async_copies: bool,
) -> CopyPlan:
    """How to copy tiles of a factor.

    value: the value to store.  tile: extent and depth.  tensor: whether tensor cores read them.
    async_copies: whether the architecture has asynchronous copies.
    """
    load, itemsize = value.producer, value.dtype.itemsize
    plain = load is not None and load.op.name == "load" and not load.operands
    body = contraction.kernel.stages[0].body
    loads = [i for i in steps_of(body, value) if i.op.name == "load"]
    along_inner, lanes = _access(contraction, factor, loads, max(1, CHUNK // itemsize))
    lanes = min(lanes, tile[1] if along_inner else tile[0])
    if tensor:
        inner_minor = along_inner or itemsize == 1
    else:
        inner_minor = along_inner and lanes * itemsize == CHUNK
    can_transpose_async = async_copies and plain and itemsize >= _ASYNC_BYTES[0]
    if along_inner is not inner_minor and can_transpose_async:
        lanes = 1
    movable = plain and value.dtype.kind != "bool" and (along_inner is inner_minor or lanes == 1)
    asynchronous = async_copies and movable and lanes * itemsize in _ASYNC_BYTES
    # Matrix loads transpose elements of two bytes only; wider ones are read word by word.
    by_words = tensor and not inner_minor and itemsize > 2
    layout = TileLayout(*tile, value.dtype, inner_minor, tensor and not by_words, GAPS[by_words])
    # Bytes that must be transposed are packed to words.
    packs = inner_minor and not along_inner and itemsize == 1 and lanes > 1
    return CopyPlan(layout, value, along_inner, lanes, asynchronous, _WORD if packs else 1)


def _access(
    contraction: Contraction, factor: Factor, loads: Sequence[Instr], most: int
) -> tuple[bool, int]:
    """Whether accesses go along the inner axes, and how many elements each has."""
    best = (False, 0, 0)
    for load in loads:
        index, mask = load.attrs["index"], load.attrs["mask"]
        inner_lanes = vector(index, mask, contraction.inner, most)
        inner_lanes = min(inner_lanes, _limit_lanes(contraction, most))
        along_inner = (True, inner_lanes, run(index, contraction.inner))
        along_outer = (False, vector(index, mask, factor.axes, most), run(index, factor.axes))
        best = max(best, along_inner, along_outer, key=lambda access: access[1:])
    return best[0], max(best[1], 1)


def _limit_lanes(contraction: Contraction, most: int) -> int:
    """Inner elements that end together wherever an axis ends early."""
    lanes = most
    for limit in contraction.limits:
        after = size(contraction.inner[contraction.inner.index(limit.axis) + 1 :])
        ends = [after] if after > 1 else [limit.end.const, *(c for _, c in limit.end.terms)]
        while lanes > 1 and any(n % lanes for n in ends):
            lanes //= 2
    return lanes

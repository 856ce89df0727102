"""Tiles of a factor: how they lie in shared memory, and how they are copied there.

Elements that need no prologue are copied asynchronously, 16, 8 or 4 bytes at a time, whatever their
index map: rows, columns and convolution patches only differ in how many elements lie side by side.
All other elements are loaded to registers before the products of a tile, computed there, and stored
after the products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bringup.dtypes import DType
from bringup.graph import Instr, Value
from bringup.graph.index import Expr
from bringup.integers import ceil_div
from bringup.kernel.contraction import Axes, Contraction, Factor, run, size, steps_of, vector
from bringup.kernel.form import BufferDecl
from bringup.llvm import text as ir
from bringup.llvm.scalar import memory_type
from bringup.llvm.text import Val
from bringup.records import record
from bringup_cuda.codegen.contraction.points import (
    Point,
    PointBody,
    both,
    delinearize,
    emit_index,
    emit_mask,
    neighbours,
)
from bringup_cuda.codegen.contraction.tiles import CHUNK
from bringup_cuda.codegen.nvvm import IntBuilder, i32_const

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

    def swizzle(self, b: IntBuilder, line: Val) -> Val:
        """The number to XOR byte offsets in a line with."""
        chunks = self.length * self.dtype.itemsize // CHUNK
        # Only a power of two of chunks is permuted, so that all stay in their line.
        mask = min(chunks & -chunks, 8) - 1
        if not self.swizzled or not mask:
            return i32_const(0)
        shift = {1: 2, 3: 1, 7: 0}[mask]
        chunk = b.and_(b.lshr(line, shift) if shift else line, mask)
        return b.mul(chunk, CHUNK)

    def offset(self, b: IntBuilder, outer: Val, inner: Val) -> Val:
        """Bytes from the tile's start to an element; outer: its row or column."""
        line, column = (outer, inner) if self.inner_minor else (inner, outer)
        within = b.mul(column, self.dtype.itemsize)
        swizzle = self.swizzle(b, line)
        start = b.mul(line, self.stride)
        if swizzle.text != "0":
            within = b.xor(within, swizzle)
        return b.add(start, within)


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


# -- emission --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Coordinate:
    """A coordinate of an access: the points along its axes, one or one for each lane.

    exists: whether they lie inside the axes; None for always.
    """

    points: list[Point]
    exists: Val | None

    def point(self, lane: int) -> Point:
        """The point of a lane."""
        return self.points[min(lane, len(self.points) - 1)]


@record
class Threads:
    """The threads of a block: the number of this one, and their count."""

    index: Val
    count: int


class TileCopier:
    """Emits the copies of one factor's tiles.

    batch: the point of the batch axes.  first: the tile's first row or column.
    """

    def __init__(
        self,
        b: IntBuilder,
        contraction: Contraction,
        factor: Factor,
        plan: CopyPlan,
        buffers: Sequence[tuple[BufferDecl, Val]],
        threads: Threads,
        batch: Point,
        first: Val,
    ) -> None:
        self.b = b
        self.contraction = contraction
        self.plan = plan
        self.factor = factor
        self.buffers = buffers
        self.batch = batch
        self.instrs = steps_of(contraction.kernel.stages[0].body, plan.value)
        #: Whether this thread copies anything; None if all threads do.
        self.active: Val | None = None
        self._units = self._assign_units(threads)
        self._outer: dict[str, _Coordinate] = {}
        extent, total = plan.layout.extent, size(factor.axes)
        for outer, _ in self._units:
            if outer.text not in self._outer:
                position = b.add(first, outer)
                bound = None if total % extent == 0 else total
                self._outer[outer.text] = self._coordinate(
                    position, factor.axes, bound, vector=not plan.along_inner
                )
        self._addresses = self._hoisted_addresses() if plan.asynchronous else {}

    def _assign_units(self, threads: Threads) -> list[tuple[Val, Val]]:
        """The accesses of this thread, as coordinates within the tile: outer and inner."""
        b, plan, count = self.b, self.plan, threads.count
        fast_units, slow_units = plan.fast_units, plan.slow_units
        whole_lines = fast_units % count == 0
        assert whole_lines or count % fast_units == 0, "threads cover whole lines"
        per_line = fast_units // count if whole_lines else 1
        first_fast, first_slow = threads.index, i32_const(0)
        if not whole_lines:
            first_fast = b.urem(threads.index, fast_units)
            first_slow = b.udiv(threads.index, fast_units)
        lines = 1 if whole_lines else count // fast_units
        units: list[tuple[Val, Val]] = []
        for n in range(ceil_div(fast_units * slow_units, count)):
            fast = b.add(first_fast, n % per_line * count)
            slow = b.add(first_slow, n // per_line * lines)
            fast = b.mul(fast, plan.lanes)
            units.append((slow, fast) if plan.along_inner else (fast, slow))
        if fast_units * slow_units < count:
            self.active = b.icmp("ult", first_slow, slow_units)
        return units

    def _coordinate(
        self, position: Val, axes: Axes, bound: int | None, *, vector: bool
    ) -> _Coordinate:
        b, lanes = self.b, self.plan.lanes
        exists = None if bound is None else b.icmp("ult", position, bound)
        if not vector or lanes == 1:
            return _Coordinate([delinearize(b, position, axes)], exists)
        return _Coordinate(neighbours(b, position, axes, lanes), exists)

    def _inner_coordinates(self, first: Val) -> dict[str, _Coordinate]:
        """Every inner coordinate of the tile that starts at ``first``."""
        contraction, plan, b = self.contraction, self.plan, self.b
        total = size(contraction.inner)
        bound = total if total % plan.layout.depth or not total else None
        coordinates: dict[str, _Coordinate] = {}
        for _, inner in self._units:
            if inner.text in coordinates:
                continue
            coordinate = self._coordinate(
                b.add(first, inner), contraction.inner, bound, vector=plan.along_inner
            )
            for limit in contraction.limits:
                end = emit_index(b, limit.end, self.batch)
                inside = b.icmp("slt", coordinate.points[0][limit.axis], end)
                coordinate.exists = both(b, coordinate.exists, inside)
            coordinates[inner.text] = coordinate
        return coordinates

    # -- asynchronous copies

    def start(self, first: Val, slot: Val) -> None:
        """Start to copy the tile at inner position ``first``, if copies are asynchronous."""
        if not self.plan.asynchronous:
            return
        if self.active is None:
            self._start(first, slot)
            return
        with self.b.if_then(self.active):
            self._start(first, slot)

    def _index_parts(self) -> tuple[Expr, Expr]:
        """The index as a part that a row or column fixes, and a part that moves with the tile."""
        index = self.instrs[-1].attrs["index"]
        inner = set(self.contraction.inner)
        moving = tuple(t for t in index.terms if not inner.isdisjoint(Expr(0, (t,)).axes()))
        fixed = tuple(t for t in index.terms if t not in moving)
        return Expr(index.const, fixed), Expr(0, moving)

    def _hoisted_addresses(self) -> dict[str, Val]:
        """Addresses of rows or columns, without the part that moves with the tile."""
        b = self.b
        fixed, _ = self._index_parts()
        _, base = self.buffers[self.instrs[-1].attrs["buffer"]]
        element = memory_type(self.plan.value.dtype)
        addresses: dict[str, Val] = {}
        for name, coordinate in self._outer.items():
            index = emit_index(b, fixed, {**self.batch, **coordinate.points[0]})
            addresses[name] = b.gep(base, b.sext(index, ir.i64), element, "")
        return addresses

    def _start(self, first: Val, slot: Val) -> None:
        b, plan = self.b, self.plan
        _, moving = self._index_parts()
        mask = self.instrs[-1].attrs["mask"]
        inner_coordinates = self._inner_coordinates(first)
        nbytes = plan.lanes * plan.value.dtype.itemsize
        cache = "cg" if nbytes == CHUNK else "ca"
        element = memory_type(plan.value.dtype)
        for outer, inner in self._units:
            row, column = self._outer[outer.text], inner_coordinates[inner.text]
            point = {**self.batch, **row.points[0], **column.points[0]}
            index = emit_index(b, moving, point)
            source = b.gep(self._addresses[outer.text], b.sext(index, ir.i64), element, "")
            target = b.gep(slot, b.zext(plan.layout.offset(b, outer, inner), ir.i64), ir.i8)
            exists = both(b, both(b, row.exists, column.exists), emit_mask(b, mask, point))
            amount = i32_const(nbytes)
            if exists is not None:
                amount = b.select(exists, amount, i32_const(0))
            name = f"llvm.nvvm.cp.async.{cache}.shared.global.{nbytes}.s"
            b.intrinsic(name, ir.void, (target, source, amount), ())

    # -- copies through registers

    def load(self, first: Val) -> list[Val]:
        """Load and compute this thread's elements of the tile at ``first``; nothing if copies are
        asynchronous.
        """
        if self.plan.asynchronous:
            return []
        coordinates = self._inner_coordinates(first)
        return [
            self._load(self._outer[outer.text], coordinates[inner.text])
            for outer, inner in self._units
        ]

    def _load(self, outer: _Coordinate, inner: _Coordinate) -> Val:
        """The elements of one access, after the prologue."""
        plan, b = self.plan, self.b
        points = [
            {**self.batch, **outer.point(lane), **inner.point(lane)} for lane in range(plan.lanes)
        ]
        active = both(b, both(b, outer.exists, inner.exists), self.active)
        walk = self.contraction.inner if plan.along_inner else self.factor.axes
        body = PointBody(b, self.buffers, points, walk, active)
        values: dict[Value, Val] = {}
        body.run(self.instrs, values)
        value = body.spread(values[plan.value])
        # A prologue may turn the zeros of missing elements into numbers, which no sum may contain.
        if active is not None and len(self.instrs) > 1:
            value = b.select(active, value, ir.zero(value.type))
        return value

    def store(self, values: Sequence[Val], slot: Val) -> None:
        """Write the values of `load` into a tile in shared memory."""
        if not values:
            return
        if self.active is None:
            self._store(values, slot)
            return
        with self.b.if_then(self.active):
            self._store(values, slot)

    def _store(self, values: Sequence[Val], slot: Val) -> None:
        b, plan = self.b, self.plan
        for value, (outer, inner) in zip(values, self._units, strict=True):
            if plan.along_inner is plan.layout.inner_minor:
                self._store_at(value, slot, outer, inner, plan.lanes)
                continue
            for lane in range(plan.lanes):
                row = outer if plan.along_inner else b.add(outer, lane)
                column = b.add(inner, lane) if plan.along_inner else inner
                self._store_at(b.extractelement(value, lane), slot, row, column, 1)

    def _store_at(self, value: Val, slot: Val, outer: Val, inner: Val, count: int) -> None:
        b, layout = self.b, self.plan.layout
        offset = b.zext(layout.offset(b, outer, inner), ir.i64)
        b.store(value, b.gep(slot, offset, ir.i8), layout.dtype.itemsize * count)

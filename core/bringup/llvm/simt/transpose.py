"""Kernels without loops that read along one axis and write along another, as transpositions do.

Square tiles go through shared memory, so that neighbouring threads both read and write neighbouring
elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from bringup.dtypes import DType
from bringup.graph import Instr
from bringup.graph.index import Axis, Expr
from bringup.integers import ceil_div
from bringup.kernel.form import Kernel, Store
from bringup.llvm import text as ir
from bringup.llvm.body import Frame
from bringup.llvm.scalar import memory_type
from bringup.llvm.simt.access import accesses, vector_width
from bringup.llvm.simt.body import SimtBody, UnrolledPoint
from bringup.llvm.simt.frame import AxisValues, SimtFrame
from bringup.llvm.simt.maps import lane_of
from bringup.llvm.simt.target import SHARED_BYTES, SimtKernel, SimtTarget
from bringup.llvm.text import Module, Val, const, vec
from bringup.records import record

#: Elements of a thread along the side of a tile, if each takes no more words of it than this; half
#: as many otherwise.
_UNROLL, _WORDS = 8, 2


@record
class TransposePlan:
    """Which axes are exchanged.

    lane: the axis along which most accesses are contiguous.
    other: the axis along which the remaining ones are, which go through shared memory.
    loads: these loads, or none if all stores are.
    lanes: neighbouring elements of a thread.
    """

    lane: Axis
    other: Axis
    loads: tuple[Instr, ...]
    lanes: int = 1

    def staged_dtypes(self, kernel: Kernel) -> tuple[DType, ...]:
        """The dtypes of the values that go through shared memory."""
        if self.loads:
            return tuple(load.result.dtype for load in self.loads)
        return tuple(value.dtype for value in kernel.stages[0].body.outputs)

    def tile_bytes(self, kernel: Kernel, side: int, lanes: int) -> int:
        """Shared memory of the tiles of all values."""
        bits = sum(memory_type(dtype).bits for dtype in self.staged_dtypes(kernel))
        return side * (side + lanes) * bits // 8

    def words(self, kernel: Kernel, lanes: int) -> int:
        """32-bit words that a thread exchanges per position."""
        bits = (memory_type(dtype).bits * lanes for dtype in self.staged_dtypes(kernel))
        return sum(ceil_div(each, 32) for each in bits)


def transpose_plan(kernel: Kernel, target: SimtTarget) -> TransposePlan | None:
    """The plan for a kernel without loops that is faster in tiles, None for others."""
    lane = lane_of(kernel)
    if lane is None or len(kernel.stages) != 1 or kernel.stages[0].folds:
        return None
    stage = kernel.stages[0]
    best: TransposePlan | None = None
    for other in kernel.grid:
        if other == lane or min(lane.size, other.size) < target.warp // 2:
            continue
        if all(_crosses(s.index, lane, other) for s in stage.stores):
            return _fitting(kernel, TransposePlan(lane, other, ()), target)
        loads = tuple(
            i for i in stage.loads() if not i.operands and _crosses(i.attrs["index"], lane, other)
        )
        if loads and (best is None or len(loads) > len(best.loads)):
            best = TransposePlan(lane, other, loads)
    return best and _fitting(kernel, best, target)


def _fitting(kernel: Kernel, plan: TransposePlan, target: SimtTarget) -> TransposePlan | None:
    """The plan with tiles that fit shared memory, if some do."""
    warp, lanes = target.warp, _lanes(kernel, plan)
    while lanes > 1 and plan.tile_bytes(kernel, warp * lanes, lanes) > SHARED_BYTES:
        lanes //= 2
    while plan.loads[1:] and plan.tile_bytes(kernel, warp * lanes, lanes) > SHARED_BYTES:
        plan = replace(plan, loads=plan.loads[:-1])
    if plan.tile_bytes(kernel, warp * lanes, lanes) > SHARED_BYTES:
        return None
    return replace(plan, lanes=lanes)


def _crosses(index: Expr, lane: Axis, other: Axis) -> bool:
    """Whether an access is contiguous along ``other`` and jumps along ``lane``."""
    stride = index.coefficient(lane)
    return index.coefficient(other) == 1 and (stride is None or abs(stride) > 1)


def emit_transpose(
    module: Module,
    kernel: Kernel,
    name: str,
    target: SimtTarget,
    constant: frozenset[int],
    plan: TransposePlan,
) -> SimtKernel:
    """Emit a kernel in tiles; see `transpose_plan`."""
    outer = (a for a in kernel.grid if a not in (plan.lane, plan.other))
    ordered = replace(kernel, grid=(*outer, plan.other, plan.lane))
    warp, lanes = target.warp, plan.lanes
    words = plan.words(kernel, lanes)
    # Few lines of threads make each thread have many loads in flight.
    unroll = _UNROLL if words <= _WORDS else _UNROLL // 2
    lines = max(1, min(target.most // warp, warp * lanes // unroll))
    registers = 2 * (warp * lanes // lines * words)
    frame = SimtFrame(module, ordered, name, target, warp * lines, constant, registers)
    return _TransposeEmitter(frame, plan, warp * lanes, lines, lanes).run()


def _lanes(kernel: Kernel, plan: TransposePlan) -> int:
    """Neighbouring elements that a thread takes, so that narrow elements fill words."""
    listed = list(accesses(kernel, kernel.stages))
    crossing = [a for a in listed if _crosses(a.index, plan.lane, plan.other)]
    others = [a for a in listed if a not in crossing]
    most = max(1, 32 // max(a.bits for a in listed))

    def fits(lanes: int) -> bool:
        return not (plan.lane.size % lanes or plan.other.size % lanes)

    return min(
        most, vector_width(others, plan.lane, fits), vector_width(crossing, plan.other, fits)
    )


class _TransposeEmitter:
    """Emits the kernel.

    side: of a tile, in elements.  lines: of threads; each line spans the tile.
    lanes: neighbouring elements of a thread.
    """

    def __init__(
        self, frame: SimtFrame, plan: TransposePlan, side: int, lines: int, lanes: int
    ) -> None:
        self.f, self.plan, self.side, self.lines = frame, plan, side, lines
        self.lanes = lanes
        self.b, self.kernel = frame.b, frame.kernel
        self.stage = self.kernel.stages[0]
        thread = frame.read(frame.target.thread)
        line_threads = side // lanes
        near = self.b.and_(thread, frame.const(line_threads - 1))
        #: Position of the thread along its line, and the number of its line.
        self.near = self.b.mul(near, frame.const(lanes))
        self.far = self.b.lshr(thread, frame.const(line_threads.bit_length() - 1))
        #: Elements from one line of a tile to the next: padded, so that banks differ.
        self.pitch = side + lanes
        self.tile_size = side * self.pitch
        self.dtypes = plan.staged_dtypes(self.kernel)
        #: Whether the next tiles are filled while these are still read.
        self.double_buffered = 2 * plan.tile_bytes(self.kernel, side, lanes) <= SHARED_BYTES // 2
        self.arrays = [
            frame.shared_array(
                f"turned{n}", memory_type(dtype), (1 + self.double_buffered) * self.tile_size
            )
            for n, dtype in enumerate(self.dtypes)
        ]
        self.tiles = self.arrays

    def run(self) -> SimtKernel:
        f, b, side = self.f, self.b, self.side
        parts = [(a, a.size, 1) for a in self.kernel.grid[:-2]]
        parts += [(a, ceil_div(a.size, side), side) for a in (self.plan.other, self.plan.lane)]
        units = prod(count for _, count, _ in parts)
        with f.units(units) as (unit, parity):
            if self.double_buffered:
                # The barrier of the iteration between two of equal parity separates them.
                first = b.zext(b.mul(parity, f.const(self.tile_size)), ir.i64)
                self.tiles = [
                    b.gep(array, first, memory_type(dtype))
                    for array, dtype in zip(self.arrays, self.dtypes, strict=True)
                ]
            corner = f.split(unit, parts)
            self._fill(corner)
            f.barrier()
            self._drain(corner)
            if not self.double_buffered:
                f.barrier()
        return f.done(units)

    def _points(self, corner: AxisValues, along: Axis, across: Axis) -> list[UnrolledPoint]:
        """The positions of a thread, whose neighbours in its line are neighbours on ``along``."""
        b, f = self.b, self.f
        points: list[UnrolledPoint] = []
        for k in range(self.side // self.lines):
            far = b.add(self.far, f.const(k * self.lines))
            values, alive = dict(corner), None
            for axis, offset in ((along, self.near), (across, far)):
                index = b.add(corner[axis], offset)
                if axis.size % self.side:
                    inside = b.icmp("ult", index, f.const(axis.size))
                    alive = inside if alive is None else b.and_(alive, inside)
                    index = f.clamped(index, axis.size - (self.lanes - 1 if axis == along else 0))
                values[axis] = index
            points.append(UnrolledPoint(values, alive))
        return points

    def _body(self, along: Axis) -> SimtBody:
        f = self.f
        grid = frozenset({self.plan.lane, self.plan.other})
        body = SimtBody(self.b, self.stage, f.pointers, (along, self.lanes), grid, f.state)
        body.analyse()
        return body

    def _fill(self, corner: AxisValues) -> None:
        """Write the staged values to the tiles."""
        plan = self.plan
        if plan.loads:
            body = self._body(plan.other)
            frame = body.emit(range(0), self._points(corner, plan.other, plan.lane))
            staged = [body.fetch(load, frame) for load in plan.loads]
        else:
            body = self._body(plan.lane)
            frame = body.emit(range(1), self._points(corner, plan.lane, plan.other))
            staged = [
                [body.at(value, position) for position in frame.positions()]
                for value in self.stage.body.outputs
            ]
        for n, values in enumerate(staged):
            self._put(n, values)

    def _drain(self, corner: AxisValues) -> None:
        """Store from the tiles, or compute from them and store."""
        plan = self.plan
        along, across = (plan.lane, plan.other) if plan.loads else (plan.other, plan.lane)
        body = self._body(along)
        for n, load in enumerate(plan.loads):
            body.fetched[load] = self._get(n)
        points = self._points(corner, along, across)
        frame: Frame = body.emit(range(bool(plan.loads)), points)
        sinks = zip(self.stage.body.outputs, self.stage.sinks, strict=True)
        for n, (value, sink) in enumerate(sinks):
            assert isinstance(sink, Store), "a kernel in tiles folds nothing"
            target = (sink.buffer, sink.index, sink.mask)
            if plan.loads:
                body.put(value, value.dtype, target, frame)
                continue
            for position, staged in zip(frame.positions(), self._get(n), strict=True):
                body.write(staged, value.dtype, target, position, frame)

    def _address(self, tile: Val, line: Val, column: Val, element: ir.Type) -> Val:
        b = self.b
        offset = b.add(b.mul(line, self.f.const(self.pitch)), column)
        return b.gep(tile, b.zext(offset, ir.i64), element)

    def _put(self, n: int, values: Sequence[Val]) -> None:
        """Write the values of each thread to lines of tile ``n``."""
        b, f, element = self.b, self.f, memory_type(self.dtypes[n])
        for k, value in enumerate(values):
            line = b.add(self.far, f.const(k * self.lines))
            stored = b.zext(value, ir.i8) if value.type.scalar is ir.i1 else value
            stored = b.splat(stored, self.lanes) if stored.type.lanes == 1 else stored
            align = element.bits * self.lanes // 8
            b.store(stored, self._address(self.tiles[n], line, self.near, element), align)

    def _get(self, n: int) -> list[Val]:
        """Read columns of tile ``n``."""
        b, f, element = self.b, self.f, memory_type(self.dtypes[n])
        is_bool = self.dtypes[n].name == "bool"
        values: list[Val] = []
        for k in range(self.side // self.lines):
            column = b.add(self.far, f.const(k * self.lines))
            first = self._address(self.tiles[n], self.near, column, element)
            addresses = [b.gep(first, m * self.pitch, element) for m in range(self.lanes)]
            parts = [b.load(element, address, element.bits // 8) for address in addresses]
            value = parts[0]
            if self.lanes > 1:
                value = ir.poison(vec(element, self.lanes))
                for m, part in enumerate(parts):
                    value = b.insertelement(value, part, m)
            values.append(b.icmp("ne", value, const(value.type, 0)) if is_bool else value)
        return values

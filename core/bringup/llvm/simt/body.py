"""A stage's body at several positions of one thread, each with lanes of its own.

The loop is unrolled: every position has its own values of the axes.  The loads of all positions
are emitted first, so that all of them are in flight together.  A value that does not depend on an
unrolled axis is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bringup.dtypes import DType
from bringup.graph import Instr, Value
from bringup.graph.index import Axis, Bound, Div, Expr, Mod
from bringup.kernel.form import Stage
from bringup.llvm import text as ir
from bringup.llvm.body import BodyEmitter, Frame, Position, Tile, divide
from bringup.llvm.index import divided
from bringup.llvm.scalar import memory_type
from bringup.llvm.simt.access import WIDEST, divides, is_even
from bringup.llvm.text import Builder, Type, Val, const, vec
from bringup.records import record

#: The axis of the register tile that numbers unrolled positions.
UNROLL_AXIS = Axis(1 << 30, 1 << 30)


@record(eq=False)
class UnrolledPoint:
    """One unrolled position.

    bases: the value of every axis there.
    alive: whether it exists; None means yes.
    chosen: whether this thread, of those that have this position, writes tiles in shared memory.
    """

    bases: Mapping[Axis, Val]
    alive: Val | None = None
    chosen: Val | None = None


class ThreadState:
    """What is known about the threads of a kernel, from stage to stage.

    index: the type of positions.
    constant: buffers that nobody writes while the kernel runs.
    meta: metadata of loads from them.
    register_tiles: tiles that stay in registers.  shared_tiles: tiles in shared memory.
    reuses_loads: whether later stages use the values that earlier stages loaded.
    loads: these values.  tile_values: values of register tiles.
    """

    def __init__(self, index: Type, constant: frozenset[int], meta: str) -> None:
        self.index = index
        self.constant = constant
        self.meta = meta
        self.register_tiles: frozenset[int] = frozenset()
        self.shared_tiles: frozenset[int] = frozenset()
        self.reuses_loads = False
        self.loads: dict[tuple[object, ...], Val] = {}
        self.tile_values: dict[tuple[int, Position], Val] = {}


class SimtBody(BodyEmitter):
    """Emits one stage's body at the positions `points`."""

    def __init__(
        self,
        b: Builder,
        stage: Stage,
        pointers: Sequence[Val],
        lane: tuple[Axis | None, int],
        unrolled_axes: frozenset[Axis],
        state: ThreadState,
        wide_tiles: Mapping[int, int] | None = None,
    ) -> None:
        """unrolled_axes: the axes whose values differ between unrolled positions."""
        #: Whether every thread of a group loads, so that later stages may use what was loaded.
        self.loads_for_all = True
        axis, self.lanes = lane
        lane_axis = axis if self.lanes > 1 else None
        super().__init__(b, stage.body, pointers, stage.axes, lane_axis, (UNROLL_AXIS,), wide_tiles)
        self.unrolled_axes = unrolled_axes
        self.state = state
        self.points: list[UnrolledPoint] = []

    def _moved(self, used: frozenset[Axis]) -> frozenset[Axis]:
        return used | {UNROLL_AXIS} if used & self.unrolled_axes else used

    def analyse(self) -> None:
        """Find out dependences; loads that depend on no other load come first."""
        super().analyse()
        for instrs in self._levels.values():
            instrs.sort(key=lambda instr: instr.op.name != "load" or bool(instr.operands))

    def emit(
        self,
        levels: range,
        points: Sequence[UnrolledPoint],
        use: Callable[[Position, Frame], None] | None = None,
    ) -> Frame:
        """Emit what depends on the loops ``levels``, at these positions.

        use: called for each position as soon as its values have been emitted.
        """
        self.points = list(points)
        frame = Frame({}, (Tile(UNROLL_AXIS, len(points), 0),), self.lane, self.lanes, None)
        for level in levels[:-1]:
            self.emit_level(level, frame)
        for level in levels[-1:]:
            # Loads of all positions come first.  The rest goes position by position, because
            # branches hold what is needed after them in registers.
            rest = self._emit_loads(level, frame)
            done: set[tuple[Value, Position]] = set()
            for position in frame.positions():
                for instr in rest:
                    key = instr.result, self._restrict(instr.result, position)
                    if key not in done:
                        done.add(key)
                        self.values[key] = self._emit(instr, key[1], frame)
                if use is not None:
                    use(position, frame)
        return frame

    def _emit_loads(self, level: int, frame: Frame) -> Sequence[Instr]:
        """Emit the loads of a level at all positions; returns the instructions that remain."""
        instrs = self._levels.get(level, [])
        first = [i for i in instrs if i.op.name == "load" or i.result in self.divisors]
        if any(instr.operands for instr in first):
            first = instrs
        self._levels[level] = first
        self.emit_level(level, frame)
        self._levels[level] = instrs
        return [instr for instr in instrs if instr not in first]

    def _emit(self, instr: Instr, position: Position, frame: Frame) -> Val:
        if instr.op.name == "div" and instr.operands[1] in self.divisors:
            x, y = instr.operands
            value = self.at(x, position)
            if value.type.lanes > 1:
                by = self.reciprocals[(y, self._restrict(y, position))]
                return divide(self.b, value, by, lane_registers=True)
        return super()._emit(instr, position, frame)

    def _point(self, position: Position) -> UnrolledPoint:
        return self.points[position[0]]

    # -- index expressions -------------------------------------------------------------------------

    def scalar(
        self, expr: Expr, position: Position, frame: Frame, loaded: Sequence[Value] = ()
    ) -> Val:
        """The expression at lane 0."""
        b, index = self.b, self.state.index
        total = const(index, 0)
        for atom, c in expr.terms:
            if isinstance(atom, Axis):
                part = self._point(position).bases[atom]
            elif isinstance(atom, Div | Mod):
                part = divided(self.b, atom, self.scalar(atom.of, position, frame, loaded))
            else:
                part = self._data_index(atom, loaded, position, index)
            total = b.add(total, b.mul(part, const(index, c), "nsw"), "nsw")
        return b.add(total, const(index, expr.const), "nsw")

    def _inside(
        self,
        mask: Sequence[Bound],
        position: Position,
        frame: Frame,
        loaded: Sequence[Value] = (),
    ) -> Val:
        if frame.lane is None:
            return super()._inside(mask, position, frame, loaded)
        lane, lanes = frame.lane, frame.lanes
        even = [
            m
            for m in mask
            if not self._varies(m.expr, frame, loaded)
            or (is_even(m, lane, lanes) and self._lane_stride(m.expr, frame, loaded) is not None)
        ]
        one_lane = Frame(frame.bases, frame.tiles, None, 1, None)
        result = super()._inside(even, position, one_lane, loaded)
        rest = [m for m in mask if m not in even]
        if not rest:
            return result
        varying = super()._inside(rest, position, frame, loaded)
        return varying if not even else self._both(result, varying, frame)

    def _address(self, buffer: int, index: Val, element: Type) -> Val:
        return self.b.gep(self.pointers[buffer], self.b.sext(index, ir.i64), element)

    # -- loads -------------------------------------------------------------------------------------

    def _load(self, instr: Instr, position: Position, frame: Frame) -> Val:
        buffer: int = instr.attrs["buffer"]
        if buffer in self.state.register_tiles:
            return self.state.tile_values[(buffer, self._restrict(instr.result, position))]
        if not self.state.reuses_loads or instr.operands or buffer in self.wide_tiles:
            return self._fetch(instr, position, frame)
        key = (buffer, instr.attrs["index"], instr.attrs["mask"], position, self.lanes)
        value = self.state.loads.get(key)
        if value is None:
            value = self._fetch(instr, position, frame)
            if self.loads_for_all:
                self.state.loads[key] = value
        return value

    def _fetch(self, instr: Instr, position: Position, frame: Frame) -> Val:
        b, dtype = self.b, instr.result.dtype
        element, buffer = memory_type(dtype), instr.attrs["buffer"]
        expr: Expr = instr.attrs["index"]
        if buffer in self.wide_tiles:
            wide = vec(element, self.lanes)
            address = self._wide_address(buffer, expr, position, frame, element)
            align = min(WIDEST, self.lanes * element.bits // 8)
            return self._from_memory(b.load(wide, address, align), dtype)
        alive = None if buffer in self.state.constant else self._point(position).alive
        bounds = instr.attrs["mask"]
        mask = self._inside(bounds, position, frame, instr.operands) if bounds else None
        if alive is not None:
            mask = alive if mask is None else self._both(mask, alive, frame)
        stride = self._lane_stride(expr, frame, instr.operands)
        whole = stride == 1 and divides(expr, frame.lane, frame.lanes)
        meta = self.state.meta if buffer in self.state.constant else ""
        if (mask is None or mask.type.lanes == 1) and (whole or stride == 0):
            lanes = frame.lanes if whole else 1
            index = self.scalar(expr, position, frame, instr.operands)
            address = self._address(buffer, index, element)
            value = self._guarded(vec(element, lanes), address, mask, meta)
        else:
            value = self._one_by_one(instr, position, frame, mask, meta)
        return self._from_memory(value, dtype)

    def _guarded(self, type: Type, address: Val, mask: Val | None, meta: str) -> Val:
        b, align = self.b, min(WIDEST, type.lanes * type.bits // 8)
        if mask is None:
            return b.load(type, address, align, meta=meta)
        zero = ir.zero(type)
        return b.cond(mask, lambda: b.load(type, address, align, meta=meta), lambda: zero)[0]

    def _one_by_one(
        self, instr: Instr, position: Position, frame: Frame, mask: Val | None, meta: str
    ) -> Val:
        """Load each lane from its own address."""
        b, element = self.b, memory_type(instr.result.dtype)
        expr, buffer = instr.attrs["index"], instr.attrs["buffer"]
        addresses = self._lane_addresses(buffer, expr, position, frame, element, instr.operands)
        if mask is not None and mask.type.lanes == 1:
            wide = vec(element, frame.lanes)
            return b.cond(
                mask, lambda: self._gathered(wide, addresses, None, meta), lambda: ir.zero(wide)
            )[0]
        return self._gathered(vec(element, frame.lanes), addresses, mask, meta)

    def _gathered(self, type: Type, addresses: Sequence[Val], mask: Val | None, meta: str) -> Val:
        b, value = self.b, ir.poison(type)
        for i, address in enumerate(addresses):
            condition = None if mask is None else b.extractelement(mask, i)
            value = b.insertelement(value, self._guarded(type.scalar, address, condition, meta), i)
        return value

    def _lane_addresses(
        self,
        buffer: int,
        expr: Expr,
        position: Position,
        frame: Frame,
        element: Type,
        loaded: Sequence[Value] = (),
    ) -> list[Val]:
        b = self.b
        stride = self._lane_stride(expr, frame, loaded)
        if stride is not None:
            first = self._address(buffer, self.scalar(expr, position, frame, loaded), element)
            return [b.gep(first, stride * i, element) for i in range(frame.lanes)]
        index = self._wide_index(expr, position, frame, loaded)
        return [
            b.gep(self.pointers[buffer], b.extractelement(index, i), element)
            for i in range(frame.lanes)
        ]

    def _wide_address(
        self, buffer: int, expr: Expr, position: Position, frame: Frame, element: Type
    ) -> Val:
        index = self.scalar(expr * self.wide_tiles[buffer], position, frame)
        return self._address(buffer, index, element)

    # -- stores ------------------------------------------------------------------------------------

    def put_at(
        self,
        value: Value,
        dtype: DType,
        target: tuple[int, Expr, Sequence[Bound]],
        position: Position,
        frame: Frame,
    ) -> None:
        """Store a value at a position, or keep it if the tile is in registers."""
        if target[0] in self.state.register_tiles:
            register = self.lanes_of(value, position, self.lanes)
            self.state.tile_values[(target[0], position)] = register
        else:
            self.write(self.at(value, position), dtype, target, position, frame)

    def write(
        self,
        value: Val,
        dtype: DType,
        target: tuple[int, Expr, Sequence[Bound]],
        position: Position,
        frame: Frame,
    ) -> None:
        """Write a register to memory at the index of one position."""
        b, element = self.b, memory_type(dtype)
        buffer, expr, bounds = target
        if dtype.name == "bool":
            value = b.zext(value, ir.i8)
        mask = self._inside(bounds, position, frame) if bounds else None
        point = self._point(position)
        # Tiles belong to blocks, so a thread without a grid point of its own writes them as well.
        alive = point.chosen if buffer in self.state.shared_tiles else point.alive
        if alive is not None:
            mask = alive if mask is None else self._both(mask, alive, frame)
        if buffer in self.wide_tiles:
            address = self._wide_address(buffer, expr, position, frame, element)
            wide = b.splat(value, self.lanes) if value.type.lanes == 1 else value
            self._guarded_store(wide, address, mask)
            return
        stride = self._lane_stride(expr, frame, ())
        if value.type.lanes == 1 and frame.lanes > 1 and stride != 0:
            value = b.splat(value, frame.lanes)
        whole = frame.lanes == 1 or (stride == 1 and divides(expr, frame.lane, frame.lanes))
        if (whole or stride == 0) and (mask is None or mask.type.lanes == 1):
            index = self.scalar(expr, position, frame)
            self._guarded_store(value, self._address(buffer, index, element), mask)
            return
        for i, address in enumerate(self._lane_addresses(buffer, expr, position, frame, element)):
            condition = mask if mask is None or mask.type.lanes == 1 else b.extractelement(mask, i)
            self._guarded_store(b.extractelement(value, i), address, condition)

    def _guarded_store(self, value: Val, address: Val, mask: Val | None) -> None:
        align = min(WIDEST, value.type.lanes * value.type.bits // 8)
        if mask is None:
            self.b.store(value, address, align)
            return
        with self.b.if_then(mask):
            self.b.store(value, address, align)

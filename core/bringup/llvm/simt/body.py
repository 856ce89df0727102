"""A stage's body for several positions of one thread at once, each with lanes of its own.

Positions are *copies* of the loop body: each has its own values of the axes, and all of them come
to every load before any goes on, so that as many loads are on their way.  What does not depend on
an axis that tells copies apart is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bringup.dtypes import DType
from bringup.graph import Instr, Value
from bringup.kernel.form import Stage
from bringup.kernel.index import Atom, Axis, Bound, Div, Expr, Mod
from bringup.llvm import text as ir
from bringup.llvm.body import BodyEmitter, Frame, Position, Tile, divide
from bringup.llvm.scalar import memory_type
from bringup.llvm.simt.access import WIDEST, divides, is_even
from bringup.llvm.text import Builder, Type, Val, const, vec
from bringup.records import record

#: Tells copies apart: the axis of their register tile, on which what differs among them depends.
COPY = Axis(1 << 30, 1 << 30)


@record(eq=False)
class Copy:
    """One position.

    bases: of every axis there.
    alive: whether it exists; None means yes.
    chosen: whether this thread, of those that have it, writes tiles in shared memory.
    """

    bases: Mapping[Axis, Val]
    alive: Val | None = None
    chosen: Val | None = None


class Kept:
    """What the threads of a kernel remember and know, from stage to stage.

    index: the type of positions.
    constant: buffers that nobody writes while the kernel runs.
    meta: metadata of loads from them.
    registers: tiles that stay in registers.  shared: tiles in shared memory.
    """

    def __init__(self, index: Type, constant: frozenset[int], meta: str) -> None:
        self.index = index
        self.constant = constant
        self.meta = meta
        self.registers: frozenset[int] = frozenset()
        self.shared: frozenset[int] = frozenset()
        self.keeps = False
        self.loads: dict[tuple[object, ...], Val] = {}
        self.tiles: dict[tuple[int, Position], Val] = {}


class SimtBody(BodyEmitter):
    """Emits one stage's body; `copies` says for which positions."""

    def __init__(
        self,
        b: Builder,
        stage: Stage,
        pointers: Sequence[Val],
        lane: tuple[Axis | None, int],
        copied: frozenset[Axis],
        kept: Kept,
        wide_tiles: Mapping[int, int] | None = None,
    ) -> None:
        """copied: the axes that tell copies apart."""
        #: Whether every member of a group loads, so that later stages may use what was loaded.
        self.loads_for_all = True
        axis, self.lanes = lane
        lane_axis = axis if self.lanes > 1 else None
        super().__init__(b, stage.body, pointers, stage.axes, lane_axis, (COPY,), wide_tiles)
        self.copied = copied
        self.kept = kept
        self.copies: list[Copy] = []
        #: What some loads give, by copy, where it was fetched before.
        self.fetched: dict[Instr, Sequence[Val]] = {}

    def _moved(self, used: frozenset[Axis]) -> frozenset[Axis]:
        return used | {COPY} if used & self.copied else used

    def analyse(self) -> None:
        """Also puts loads that depend on no other before everything else."""
        super().analyse()
        for some in self._levels.values():
            some.sort(key=lambda instr: instr.op.name != "load" or bool(instr.operands))

    def emit(
        self,
        levels: range,
        copies: Sequence[Copy],
        use: Callable[[Position, Frame], None] | None = None,
    ) -> Frame:
        """Emit what the loops ``levels`` change, for these positions.

        use: called for each position where its values are known.
        """
        self.copies = list(copies)
        frame = Frame({}, (Tile(COPY, len(copies), 0),), self.lane, self.lanes, None)
        for level in levels[:-1]:
            self.emit_level(level, frame)
        for level in levels[-1:]:
            rest = self._emit_first(level, frame)
            done: set[tuple[Value, Position]] = set()
            for position in frame.positions():
                self._emit_rest(rest, position, frame, done)
                if use is not None:
                    use(position, frame)
        return frame

    def _emit_first(self, level: int, frame: Frame) -> Sequence[Instr]:
        """Loads at all positions; what is left to emit there.

        That goes position by position: branches keep what waits for them in registers.
        """
        some = self._levels.get(level, [])
        first = [i for i in some if i.op.name == "load" or i.result in self.divisors]
        if any(instr.operands for instr in first):
            first = some
        self._levels[level] = first
        self.emit_level(level, frame)
        self._levels[level] = some
        return [instr for instr in some if instr not in first]

    def _emit_rest(
        self,
        rest: Sequence[Instr],
        position: Position,
        frame: Frame,
        done: set[tuple[Value, Position]],
    ) -> None:
        for instr in rest:
            key = self._restrict(instr.result, position)
            if (instr.result, key) not in done:
                done.add((instr.result, key))
                self.values[(instr.result, key)] = self._emit(instr, key, frame)

    def _emit(self, instr: Instr, position: Position, frame: Frame) -> Val:
        if instr.op.name == "div" and instr.operands[1] in self.divisors:
            x, y = instr.operands
            value = self.at(x, position)
            if value.type.lanes > 1:
                by = self.reciprocals[(y, self._restrict(y, position))]
                return divide(self.b, value, by, apart=True)
        return super()._emit(instr, position, frame)

    def _copy(self, position: Position) -> Copy:
        return self.copies[position[0]]

    # -- index expressions -------------------------------------------------------------------------

    def scalar(
        self, expr: Expr, position: Position, frame: Frame, loaded: Sequence[Value] = ()
    ) -> Val:
        """The expression at lane 0."""
        b, index = self.b, self.kept.index
        total = const(index, 0)
        for atom, c in expr.terms:
            part = self._atom(atom, position, frame, loaded)
            total = b.add(total, b.mul(part, const(index, c), "nsw"), "nsw")
        return b.add(total, const(index, expr.const), "nsw")

    def _atom(self, atom: Atom, position: Position, frame: Frame, loaded: Sequence[Value]) -> Val:
        if isinstance(atom, Axis):
            return self._copy(position).bases[atom]
        if isinstance(atom, Div | Mod):
            return self._divided(atom, self.scalar(atom.of, position, frame, loaded))
        return self._data_index(atom, loaded, position, self.kept.index)

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
        alone = Frame(frame.bases, frame.tiles, None, 1, None)
        result = super()._inside(even, position, alone, loaded)
        rest = [m for m in mask if m not in even]
        if not rest:
            return result
        varying = super()._inside(rest, position, frame, loaded)
        return varying if not even else self._both(result, varying, frame)

    def _address(self, buffer: int, at: Val, element: Type) -> Val:
        return self.b.gep(self.pointers[buffer], self.b.sext(at, ir.i64), element)

    # -- loads -------------------------------------------------------------------------------------

    def _load(self, instr: Instr, position: Position, frame: Frame) -> Val:
        buffer: int = instr.attrs["buffer"]
        if instr in self.fetched:
            return self.fetched[instr][position[0]]
        if buffer in self.kept.registers:
            return self.kept.tiles[(buffer, self._restrict(instr.result, position))]
        if not self.kept.keeps or instr.operands or buffer in self.wide_tiles:
            return self._fetch(instr, position, frame)
        key = (buffer, instr.attrs["index"], instr.attrs["mask"], position, self.lanes)
        found = self.kept.loads.get(key)
        if found is None:
            found = self._fetch(instr, position, frame)
            if self.loads_for_all:
                self.kept.loads[key] = found
        return found

    def fetch(self, instr: Instr, frame: Frame) -> list[Val]:
        """A load that depends on no other, at every copy."""
        return [self._fetch(instr, position, frame) for position in frame.positions()]

    def _fetch(self, instr: Instr, position: Position, frame: Frame) -> Val:
        b, dtype = self.b, instr.result.dtype
        element, buffer = memory_type(dtype), instr.attrs["buffer"]
        expr: Expr = instr.attrs["index"]
        if buffer in self.wide_tiles:
            wide = vec(element, self.lanes)
            place = self._wide_address(buffer, expr, position, frame, element)
            align = min(WIDEST, self.lanes * element.bits // 8)
            return self._from_memory(b.load(wide, place, align), dtype)
        alive = None if buffer in self.kept.constant else self._copy(position).alive
        mask = self._inside(instr.attrs["mask"], position, frame, instr.operands) if (
            instr.attrs["mask"]) else None  # fmt: skip
        if alive is not None:
            mask = alive if mask is None else self._both(mask, alive, frame)
        stride = self._lane_stride(expr, frame, instr.operands)
        whole = stride == 1 and divides(expr, frame.lane, frame.lanes)
        meta = self.kept.meta if buffer in self.kept.constant else ""
        if (mask is None or mask.type.lanes == 1) and (whole or stride == 0):
            lanes = frame.lanes if whole else 1
            at = self.scalar(expr, position, frame, instr.operands)
            place = self._address(buffer, at, element)
            value = self._guarded(vec(element, lanes), place, mask, meta)
        else:
            value = self._one_by_one(instr, position, frame, mask, meta)
        return self._from_memory(value, dtype)

    def _guarded(self, type: Type, place: Val, mask: Val | None, meta: str) -> Val:
        b, align = self.b, min(WIDEST, type.lanes * type.bits // 8)
        if mask is None:
            return b.load(type, place, align, meta=meta)
        zero = ir.zero(type)
        return b.cond(mask, lambda: b.load(type, place, align, meta=meta), lambda: zero)[0]

    def _one_by_one(
        self, instr: Instr, position: Position, frame: Frame, mask: Val | None, meta: str
    ) -> Val:
        """Each lane from an address of its own."""
        b, element = self.b, memory_type(instr.result.dtype)
        places = self._lane_addresses(instr, position, frame, element)
        if mask is not None and mask.type.lanes == 1:
            wide = vec(element, frame.lanes)
            return b.cond(
                mask, lambda: self._gathered(wide, places, None, meta), lambda: ir.zero(wide)
            )[0]
        return self._gathered(vec(element, frame.lanes), places, mask, meta)

    def _gathered(self, type: Type, places: Sequence[Val], mask: Val | None, meta: str) -> Val:
        b, made = self.b, ir.poison(type)
        for i, place in enumerate(places):
            here = None if mask is None else b.extractelement(mask, i)
            made = b.insertelement(made, self._guarded(type.scalar, place, here, meta), i)
        return made

    def _lane_addresses(
        self, instr: Instr, position: Position, frame: Frame, element: Type
    ) -> list[Val]:
        expr, buffer = instr.attrs["index"], instr.attrs["buffer"]
        return self._spread(buffer, expr, position, frame, element, instr.operands)

    def _spread(
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
        at = self._wide_index(expr, position, frame, loaded)
        return [
            b.gep(self.pointers[buffer], b.extractelement(at, i), element)
            for i in range(frame.lanes)
        ]

    def _wide_address(
        self, buffer: int, expr: Expr, position: Position, frame: Frame, element: Type
    ) -> Val:
        at = self.scalar(expr * self.wide_tiles[buffer], position, frame)
        return self._address(buffer, at, element)

    # -- stores ------------------------------------------------------------------------------------

    def put(
        self, value: Value, dtype: DType, target: tuple[int, Expr, Sequence[Bound]], frame: Frame
    ) -> None:
        """Write a value of every copy to memory, or keep it where the tile is in registers."""
        for position in frame.positions():
            self.put_at(value, dtype, target, position, frame)

    def put_at(
        self,
        value: Value,
        dtype: DType,
        target: tuple[int, Expr, Sequence[Bound]],
        position: Position,
        frame: Frame,
    ) -> None:
        """`put` of one copy."""
        if target[0] in self.kept.registers:
            found = self.lanes_of(value, position, self.lanes)
            self.kept.tiles[(target[0], position)] = found
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
        """Write a register to memory at one copy's index."""
        b, element = self.b, memory_type(dtype)
        buffer, expr, bounds = target
        if dtype.name == "bool":
            value = b.zext(value, ir.i8)
        mask = self._inside(bounds, position, frame) if bounds else None
        copy = self._copy(position)
        # Threads without a point of their own have tiles all the same.
        alive = copy.chosen if buffer in self.kept.shared else copy.alive
        if alive is not None:
            mask = alive if mask is None else self._both(mask, alive, frame)
        if buffer in self.wide_tiles:
            place = self._wide_address(buffer, expr, position, frame, element)
            self._guarded_store(b.splat(value, self.lanes) if value.type.lanes == 1 else value,
                                place, mask)  # fmt: skip
            return
        stride = self._lane_stride(expr, frame, ())
        if value.type.lanes == 1 and frame.lanes > 1 and stride != 0:
            value = b.splat(value, frame.lanes)
        whole = frame.lanes == 1 or (stride == 1 and divides(expr, frame.lane, frame.lanes))
        if (whole or stride == 0) and (mask is None or mask.type.lanes == 1):
            at = self.scalar(expr, position, frame)
            self._guarded_store(value, self._address(buffer, at, element), mask)
            return
        places = self._spread(buffer, expr, position, frame, element)
        for i, place in enumerate(places):
            here = mask if mask is None or mask.type.lanes == 1 else b.extractelement(mask, i)
            self._guarded_store(b.extractelement(value, i), place, here)

    def _guarded_store(self, value: Val, place: Val, mask: Val | None) -> None:
        align = min(WIDEST, value.type.lanes * value.type.bits // 8)
        if mask is None:
            self.b.store(value, place, align)
            return
        with self.b.if_then(mask):
            self.b.store(value, place, align)

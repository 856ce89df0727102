"""A stage's body on vectors of a CPU, with gathers, scatters and masks."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.dtypes import DType
from bringup.graph import Instr, Value
from bringup.graph.index import Axis, Bound, Div, Expr, Mod
from bringup.llvm import text as ir
from bringup.llvm.body import BodyEmitter, Frame, Position, divide
from bringup.llvm.index import divided
from bringup.llvm.scalar import memory_type
from bringup.llvm.text import Type, Val, i64_const, vec
from bringup.llvm.text.masked import masked_gather, masked_load, masked_scatter, masked_store

#: Bytes of the smallest page of any CPU.
_PAGE = 4096


class VectorBody(BodyEmitter):
    """Emits one stage's body for a CPU."""

    def _emit(self, instr: Instr, position: Position, frame: Frame) -> Val:
        if instr.op.name == "div" and instr.operands[1] in self.divisors:
            x, by = self.at(instr.operands[0], position), instr.operands[1]
            if x.type.lanes > 1:
                return divide(self.b, x, self.reciprocals[(by, self._restrict(by, position))])
        return super()._emit(instr, position, frame)

    # -- index expressions -------------------------------------------------------------------------

    def _offset(self, axis: Axis, position: Position) -> int:
        return position[self.tiled.index(axis)] if axis in self.tiled else 0

    def _base(self, axis: Axis, _position: Position, frame: Frame) -> Val:
        """The value of an axis at a position, without the steps of the tile along it."""
        return frame.bases[axis]

    def scalar(
        self, expr: Expr, position: Position, frame: Frame, loaded: Sequence[Value] = ()
    ) -> Val:
        """The expression at lane 0, as i64.  loaded: the index values that it refers to."""
        b = self.b
        constant, total = expr.const, i64_const(0)
        for atom, c in expr.terms:
            if isinstance(atom, Axis):
                tile = next((t for t in frame.tiles if t.axis == atom), None)
                if tile is not None:
                    constant += c * tile.step * self._offset(atom, position)
                part = self._base(atom, position, frame)
            elif isinstance(atom, Div | Mod):
                part = divided(self.b, atom, self.scalar(atom.of, position, frame, loaded))
            else:
                part = self._data_index(atom, loaded, position, ir.i64)
            total = b.add(total, b.mul(part, i64_const(c)))
        return b.add(total, i64_const(constant))

    # -- memory ------------------------------------------------------------------------------------

    def _load(self, instr: Instr, position: Position, frame: Frame) -> Val:
        b, dtype = self.b, instr.result.dtype
        element = memory_type(dtype)
        expr: Expr = instr.attrs["index"]
        buffer: int = instr.attrs["buffer"]
        pointer = self.pointers[buffer]
        if buffer in self.wide_tiles:
            address = self._wide_address(buffer, expr, position, frame, element)
            return self._from_memory(
                b.load(vec(element, frame.lanes), address, element.bits // 8), dtype
            )
        mask = self._mask(instr.attrs["mask"], position, frame, instr)
        indices = instr.operands
        stride = self._lane_stride(expr, frame, indices)
        if stride == 0 and (mask is None or mask.type.lanes == 1):
            address = b.gep(pointer, self.scalar(expr, position, frame, indices), element)
            if mask is None:
                return self._from_memory(b.load(element, address, element.bits // 8), dtype)
            loaded = masked_load(b, element, address, mask, ir.zero(element))
            return self._from_memory(loaded, dtype)
        wide = vec(element, frame.lanes)
        align = element.bits // 8
        if mask is not None and mask.type.lanes == 1 and frame.lanes > 1:
            mask = b.splat(mask, frame.lanes)
        if stride == 1:
            offset = self.scalar(expr, position, frame, indices)
            reached = self._reached(instr, position, frame)
            if reached is not None:
                offset = b.select(reached, offset, i64_const(0))
            address = b.gep(pointer, offset, element)
            if mask is None:
                return self._from_memory(b.load(wide, address, align), dtype)
            return self._from_memory(
                masked_load(b, wide, address, mask, ir.zero(wide), align), dtype
            )
        if stride == -1 and mask is None:
            first = expr + -(frame.lanes - 1)
            address = b.gep(pointer, self.scalar(first, position, frame, indices), element)
            loaded = b.load(wide, address, align)
            order = list(range(frame.lanes - 1, -1, -1))
            return self._from_memory(b.shufflevector(loaded, None, order), dtype)
        addresses = b.gep(pointer, self._wide_index(expr, position, frame, indices), element)
        return self._from_memory(
            masked_gather(b, wide, addresses, mask, ir.zero(wide), align), dtype
        )

    def _wide_address(
        self, buffer: int, expr: Expr, position: Position, frame: Frame, element: Type
    ) -> Val:
        """The address of a vector in a tile that holds a vector for each of its elements."""
        assert frame.lane is not None
        lane_free = Expr(expr.const, tuple(t for t in expr.terms if t[0] != frame.lane))
        column = self._offset(frame.lane, position) * frame.lanes
        offset = self.scalar(lane_free * self.wide_tiles[buffer] + column, position, frame)
        return self.b.gep(self.pointers[buffer], offset, element)

    def _mask(
        self, bounds: Sequence[Bound], position: Position, frame: Frame, instr: Instr | None
    ) -> Val | None:
        """The lanes that may touch memory; None for all."""
        loaded = instr.operands if instr is not None else ()
        mask = self._inside(bounds, position, frame, loaded) if bounds else None
        if frame.masks is None or frame.lane is None:
            return mask
        if instr is not None and instr.result not in self.varying:
            return mask
        alive = frame.masks[self._offset(frame.lane, position)]
        return alive if mask is None else self._both(mask, alive, frame)

    def _reached(self, instr: Instr, position: Position, frame: Frame) -> Val | None:
        """Whether any lane of a masked load is enabled.

        None where the disabled lanes are always within a page of enabled ones.  A load far outside
        of its buffer takes some hundred cycles although no lane is enabled, because the page may
        not be mapped.
        """
        page = _PAGE // instr.result.dtype.itemsize
        loaded = instr.operands
        far = [
            bound
            for bound in instr.attrs["mask"]
            if not self._varies(bound.expr, frame, loaded) or _excluded(bound) >= page
        ]
        if not far:
            return None
        inside = self._inside(far, position, frame, loaded)
        return self.b.reduce("or", inside)

    def store(
        self,
        value: Val,
        dtype: DType,
        target: tuple[int, Expr, Sequence[Bound]],
        position: Position,
        frame: Frame,
    ) -> None:
        """Store one register at an index, each lane where the index says."""
        b = self.b
        buffer, expr, bounds = target
        pointer = self.pointers[buffer]
        if dtype.name == "bool":
            value = b.zext(value, ir.i8)
        element = memory_type(dtype)
        align = element.bits // 8
        if buffer in self.wide_tiles:
            wide = self.b.splat(value, frame.lanes) if value.type.lanes == 1 else value
            b.store(wide, self._wide_address(buffer, expr, position, frame, element), align)
            return
        if frame.lane is not None:
            mask = self._mask(bounds, position, frame, None)
        else:
            mask = self._inside(bounds, position, frame) if bounds else None
        spread = frame.lane is not None and frame.lanes > 1
        if spread and value.type.lanes == 1:
            value = b.splat(value, frame.lanes)
        if spread and mask is not None and mask.type.lanes == 1:
            mask = b.splat(mask, frame.lanes)
        if spread and frame.lane is not None and expr.coefficient(frame.lane) != 1:
            addresses = b.gep(pointer, self._wide_index(expr, position, frame), element)
            masked_scatter(b, value, addresses, mask, align)
            return
        address = b.gep(pointer, self.scalar(expr, position, frame), element)
        if mask is None:
            b.store(value, address, align)
        else:
            masked_store(b, value, address, mask, align)


def _excluded(bound: Bound) -> int:
    """How many values of its expression a bound excludes."""
    below, above = bound.low - bound.expr.first, bound.expr.last + 1 - bound.high
    return max(below, 0) + max(above, 0)

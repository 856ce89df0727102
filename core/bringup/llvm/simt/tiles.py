"""Memory of blocks of tiles: swizzled lines, copies that do not wait, addresses with offsets."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bringup.errors import UnsupportedError
from bringup.graph.index import Axis, Bound, Expr
from bringup.llvm import text as ir
from bringup.llvm.func.registers import Registers
from bringup.llvm.scalar import memory_type
from bringup.llvm.simt.access import divides
from bringup.llvm.simt.render import _ThreadIndices, _ThreadMemory
from bringup.llvm.simt.target import SimtDialect
from bringup.llvm.text import Builder, Type, Val, const
from bringup.loops.form import Load, Store

#: Bytes of a chunk that swizzling moves as a whole, and lines after which it repeats.
CHUNK, SWIZZLE_LINES = 16, 8


class TileIndices(_ThreadIndices):
    """Indices whose conditions may count down, as those do that say where a loop ends."""

    def differs(self, bound: Bound, loaded: Sequence[Val]) -> bool:
        """Whether a condition is one for each lane."""
        if self.lane is None or bound.expr.coefficient(self.lane) != -1:
            return super().differs(bound, loaded)
        least, most = max(bound.low, bound.expr.first), min(bound.high, bound.expr.last + 1)
        least, most = (n if n in (bound.low, bound.high) else 1 for n in (least, most))
        return super().differs(Bound(bound.expr * -1, 1 - most, 1 - least), loaded)


class TileMemory(_ThreadMemory):
    """Accesses whose constant parts are apart, so that they are offsets of instructions.

    sent: loads of what is stored later, by the name of their scalar.
    swizzled: the length of lines, by buffer.
    """

    def __init__(
        self, b: Builder, indices: _ThreadIndices, registers: Registers, dialect: SimtDialect
    ) -> None:
        super().__init__(b, indices, registers, frozenset(), dialect)
        self.sent: dict[str, Load] = {}
        self.swizzled: dict[str, int] = {}

    def _address(self, name: str, index: Expr, loaded: Sequence[Val], element: Type) -> Val:
        line = self.swizzled.get(name)
        if line is not None:
            number, within, offset = self._in_line(index, line, element)
            address = self.plain_address(name, number * (line * element.bits // 8), loaded, ir.i8)
            address = self.b.gep(address, self.b.zext(within, ir.i64), ir.i8)
            return self.b.gep(address, offset, ir.i8) if offset else address
        return self.plain_address(name, index, loaded, element)

    def _lane_addresses(
        self, name: str, index: Expr, loaded: Sequence[Val], element: Type
    ) -> list[Val]:
        stride = self.indices.stride(index, loaded)
        if name not in self.swizzled or stride is None:
            return super()._lane_addresses(name, index, loaded, element)
        places = (index + stride * lane for lane in range(self.indices.lanes))
        return [self._address(name, place, loaded, element) for place in places]

    def _in_line(self, index: Expr, line: int, element: Type) -> tuple[Expr, Val, int]:
        """The line of an element, its byte there, and how far behind that it is.

        What is constant and smaller than all else counts bytes within a chunk, which keeps its
        bytes.
        """
        size = element.bits // 8
        number, within = index // line, self.known((index % line) * size)
        step = math.gcd(CHUNK, *(c for _, c in within.terms))
        offset = within.const % step
        byte = self.indices.scalar(within + -offset)
        swizzle = self.swizzle(self.indices.scalar(_small(number)), line * size)
        return number, byte if swizzle is None else self.b.xor(byte, swizzle), offset

    def known(self, index: Expr) -> Expr:
        """An index whose loops that are written out are constants."""
        table = {
            axis: Expr(value.integer)
            for axis in index.axes()
            if (value := self.indices.axes[axis]).integer is not None
        }
        return index.substitute(table) if table else index

    def swizzle(self, line: Val, nbytes: int) -> Val | None:
        """What byte offsets in a line are combined with by exclusive or; None for nothing.

        nbytes: of a line.  Only a power of two of chunks changes places, so that all stay there.
        """
        chunks = nbytes // CHUNK
        mask = min(chunks & -chunks, 8) - 1
        if not mask:
            return None
        b, const = self.b, self.indices.const
        shift = {1: 2, 3: 1, 7: 0}[mask]
        line = b.lshr(line, const(shift)) if shift else line
        return b.mul(b.and_(line, const(mask)), const(CHUNK))

    def plain_address(self, name: str, index: Expr, loaded: Sequence[Val], element: Type) -> Val:
        """The address of an element of a buffer whose lines are as they are."""
        constant, terms = index.const, []
        for atom, c in index.terms:
            known = self.indices.axes[atom].integer if isinstance(atom, Axis) else None
            if known is None:
                terms.append((atom, c))
            else:
                constant += c * known
        address = self.pointers[name]
        if terms:
            address = super()._address(name, Expr(0, tuple(terms)), loaded, element)
        return self.b.gep(address, constant, element) if constant else address

    def send(self, stmt: Store) -> None:
        """Start to copy what a load of this scalar would give."""
        load, copies, lanes = self.sent[stmt.value.name], self.dialect.copies, self.indices.lanes
        if copies is None:
            raise UnsupportedError("this GPU has no copies that do not wait")
        element = memory_type(stmt.buffer.dtype)
        size = lanes * element.bits // 8
        is_whole = lanes == 1 or all(
            self.indices.stride(s.index, ()) == 1 and divides(s.index, self.indices.lane, lanes)
            for s in (load, stmt)
        )
        if not is_whole or size not in copies.sizes:
            raise UnsupportedError(f"{size} bytes are no copy: {stmt.buffer.name}[{stmt.index}]")
        inside = self.indices.both(self.indices.inside(load.mask, ()), self.alive)
        if inside is not None and inside.type.lanes > 1:
            raise UnsupportedError(f"lanes differ in whether they exist: {load.buffer.name}")
        source = self._address(load.buffer.name, load.index, (), element)
        to = self._address(stmt.buffer.name, stmt.index, (), element)
        amount = const(ir.i32, size)
        if inside is not None:
            amount = self.b.select(inside, amount, const(ir.i32, 0))
        copies.start(self.b, to, source, size, amount)


def _small(line: Expr) -> Expr:
    """The part of a line's number that says how its chunks change places."""
    return Expr(line.const % SWIZZLE_LINES, tuple(t for t in line.terms if t[1] % SWIZZLE_LINES))


__all__ = ["CHUNK", "TileIndices", "TileMemory"]

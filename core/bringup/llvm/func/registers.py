"""Register buffers as LLVM values.

A register buffer is kept as vectors of its widest access, so that an accumulator of a vector loop
is one value.  LLVM's code generator makes no registers from memory, so nothing is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bringup.graph.index import Axis
from bringup.integers import ceil_div, ceil_power_of_two
from bringup.llvm.scalar import register_type
from bringup.llvm.text import Builder, Type, Val, poison, vec
from bringup.loops.form import Alloc, Buffer, For, If, Load, Stmt, Store, statements

#: A vector of a buffer: the buffer's name, and the number of the vector in it.
Part = tuple[str, int]


class Registers:
    """The values of the register buffers at one point of a function.

    widths: elements of a vector, by buffer.
    private: the buffers that begin within a vector loop, so that each lane has elements of its own:
    a vector for each element.
    """

    def __init__(self, b: Builder, body: Sequence[Stmt]) -> None:
        self.b = b
        self.widths = _widths(body)
        self.buffers: dict[str, Buffer] = {}
        self.values: dict[Part, Val] = {}
        self.private: set[str] = set()

    def alloc(self, buffer: Buffer, lanes: int) -> None:
        """A buffer begins, once for each of the lanes; its elements are poison."""
        self.buffers[buffer.name] = buffer
        self.private.discard(buffer.name)
        if lanes > 1:
            self.private.add(buffer.name)
            for number in range(buffer.size):
                self.values[buffer.name, number] = poison(vec(register_type(buffer.dtype), lanes))
            return
        for number in range(ceil_div(buffer.size, self.widths.get(buffer.name, 1))):
            self.values[buffer.name, number] = poison(self._vector(buffer))

    def _vector(self, buffer: Buffer) -> Type:
        return vec(register_type(buffer.dtype), self.widths.get(buffer.name, 1))

    def stored(self, body: Iterable[Stmt]) -> list[Part]:
        """The vectors of open buffers that statements may change."""
        inside = list(statements(tuple(body)))
        names = {s.buffer.name for s in inside if isinstance(s, Store)}
        # Another buffer of such a name, in a block that has ended, may have left values.
        names -= {s.buffer.name for s in inside if isinstance(s, Alloc)}
        return [part for part in self.values if part[0] in names]

    def read(self, buffer: Buffer, first: int, lanes: int) -> Val:
        """``lanes`` elements from ``first`` on; those beyond the end are poison."""
        width = self.widths.get(buffer.name, 1)
        number, offset = divmod(first, width)
        if lanes == width and offset == 0:
            return self.values[buffer.name, number]
        elements = [self._element(buffer, first + i) for i in range(lanes)]
        if lanes == 1:
            return elements[0]
        value = poison(vec(register_type(buffer.dtype), lanes))
        for i, element in enumerate(elements):
            value = self.b.insertelement(value, element, i)
        return value

    def _element(self, buffer: Buffer, index: int) -> Val:
        number, offset = divmod(index, self.widths.get(buffer.name, 1))
        whole = self.values.get((buffer.name, number))
        if whole is None:
            return poison(register_type(buffer.dtype))
        return self.b.extractelement(whole, offset)

    def write(self, buffer: Buffer, first: int, value: Val) -> None:
        """Set as many elements as the value has lanes; those beyond the end are dropped."""
        width, lanes = self.widths.get(buffer.name, 1), value.type.lanes
        number, offset = divmod(first, width)
        if lanes == width and offset == 0:
            self.values[buffer.name, number] = value
            return
        for i in range(min(lanes, buffer.size - first)):
            number, offset = divmod(first + i, width)
            element = self.b.extractelement(value, i)
            whole = self.values[buffer.name, number]
            if width > 1:
                element = self.b.insertelement(whole, element, offset)
            self.values[buffer.name, number] = element


def _widths(body: Sequence[Stmt]) -> dict[str, int]:
    """The most lanes of an access along a vector loop, by register buffer."""
    widths: dict[str, int] = {}
    _widen(body, None, widths)
    return widths


def _widen(body: Sequence[Stmt], lane: Axis | None, widths: dict[str, int]) -> None:
    for stmt in body:
        if isinstance(stmt, For):
            _widen(stmt.body, stmt.axis if stmt.kind == "vector" else lane, widths)
        elif isinstance(stmt, If):
            _widen(stmt.body, lane, widths)
        elif isinstance(stmt, Load | Store) and stmt.buffer.space == "register":
            stride = 0 if lane is None else stmt.index.coefficient(lane)
            if lane is not None and stride == 1:
                name = stmt.buffer.name
                widths[name] = max(widths.get(name, 1), ceil_power_of_two(lane.size))


__all__ = ["Part", "Registers"]

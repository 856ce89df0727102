"""Register buffers as LLVM values.

A register buffer is kept as vectors of its widest access, so that an accumulator of a vector loop
is one value.  LLVM's code generator makes no registers from memory, so nothing is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bringup.graph.index import Expr
from bringup.integers import ceil_div, ceil_power_of_two
from bringup.llvm.scalar import register_type
from bringup.llvm.text import Builder, Type, Val, poison, vec
from bringup.loops.form import ACCESSES, Alloc, Buffer, For, If, Load, Stmt, Store, statements

#: A vector of a buffer: the buffer's name, and the number of the vector in it.
Part = tuple[str, int]
#: The index of an access to whole vectors, and the end of its lanes.
_Form = tuple[Expr, Expr | None]


class Registers:
    """The values of the register buffers at one point of a function.

    widths: elements of a vector, by buffer.
    private: buffers that begin within a vector loop, so that each lane has elements of its own: a
    vector for each element.
    padded: buffers of which no lane is read that is beyond the end of a vector loop.
    """

    def __init__(self, b: Builder, body: Sequence[Stmt]) -> None:
        self.b = b
        self.widths: dict[str, int] = {}
        self._forms: dict[Alloc, set[_Form | None]] = {}
        self._see(body, None, {})
        self.padded: set[str] = set()
        self.buffers: dict[str, Buffer] = {}
        self.values: dict[Part, Val] = {}
        self.private: set[str] = set()

    def _see(self, body: Sequence[Stmt], vectors: For | None, allocs: dict[str, Alloc]) -> None:
        """Note the accesses to register buffers in a block, by the `Alloc` that each sees.

        vectors: the vector loop round it.
        """
        allocs = dict(allocs)
        for stmt in body:
            if isinstance(stmt, ACCESSES):
                if stmt.buffer.space == "register":
                    name = stmt.buffer.name
                    if vectors is not None and stmt.index.coefficient(vectors.axis) == 1:
                        lanes = ceil_power_of_two(vectors.axis.size)
                        self.widths[name] = max(self.widths.get(name, 1), lanes)
                    if name in allocs:
                        self._forms[allocs[name]].add(_form(stmt, vectors))
            elif isinstance(stmt, Alloc):
                allocs[stmt.buffer.name] = stmt
                self._forms[stmt] = set()
            elif isinstance(stmt, For):
                self._see(stmt.body, stmt if stmt.kind == "vector" else vectors, allocs)
            elif isinstance(stmt, If):
                self._see(stmt.body, vectors, allocs)

    def alloc(self, stmt: Alloc, lanes: int) -> None:
        """A buffer begins, once for each of the lanes; its elements are poison."""
        buffer = stmt.buffer
        self.buffers[buffer.name] = buffer
        self.padded.discard(buffer.name)
        self.private.discard(buffer.name)
        forms = self._forms[stmt]
        if len(forms) == 1 and None not in forms:
            self.padded.add(buffer.name)
        if lanes > 1:
            self.private.add(buffer.name)
            for number in range(buffer.size):
                self.values[buffer.name, number] = poison(vec(register_type(buffer.dtype), lanes))
            return
        for number in range(ceil_div(buffer.size, self.widths.get(buffer.name, 1))):
            self.values[buffer.name, number] = poison(self._vector(buffer))

    def free(self, buffer: Buffer) -> None:
        """A buffer ends with its block, whose values are none outside it."""
        width = 1 if buffer.name in self.private else self.widths.get(buffer.name, 1)
        for number in range(ceil_div(buffer.size, width)):
            del self.values[buffer.name, number]

    def _vector(self, buffer: Buffer) -> Type:
        return vec(register_type(buffer.dtype), self.widths.get(buffer.name, 1))

    def stored(self, body: Iterable[Stmt]) -> list[Part]:
        """The vectors of open buffers that statements may change."""
        if not self.values:
            return []
        inside = tuple(statements(tuple(body)))
        names = {s.buffer.name for s in inside if isinstance(s, Store)}
        # What is allocated inside may have the name of a buffer of an earlier block.
        names -= {s.buffer.name for s in inside if isinstance(s, Alloc)}
        return [part for part in self.values if part[0] in names]

    def read(self, buffer: Buffer, first: int, lanes: int) -> Val:
        """``lanes`` elements from ``first`` on; those beyond the end are poison."""
        if buffer.name in self.private:
            return self.values[buffer.name, first]
        width = self.widths.get(buffer.name, 1)
        number, offset = divmod(first, width)
        if lanes == width and offset == 0:
            return self.values[buffer.name, number]
        if lanes == width:
            nothing = poison(self._vector(buffer))
            low, high = (self.values.get((buffer.name, n), nothing) for n in (number, number + 1))
            return self.b.shufflevector(low, high, range(offset, offset + lanes))
        elements = [self._element(buffer, first + i) for i in range(lanes)]
        if lanes == 1:
            return elements[0]
        value = poison(vec(register_type(buffer.dtype), lanes))
        for i, element in enumerate(elements):
            value = self.b.insertelement(value, element, i)
        return value

    def permuted(self, buffer: Buffer, elements: Sequence[int]) -> Val:
        """Any elements, lane by lane; those that the buffer does not have are poison."""
        width = self.widths.get(buffer.name, 1)
        inside = [n for n in elements if 0 <= n < buffer.size]
        numbers = sorted({n // width for n in inside})
        if len(elements) == width > 1 and 0 < len(numbers) <= 2:
            parts = [self.values[buffer.name, number] for number in numbers]
            place = {n: numbers.index(n // width) * width + n % width for n in inside}
            order = [place.get(n, 0) for n in elements]
            return self.b.shufflevector(parts[0], parts[1] if len(parts) > 1 else None, order)
        value = poison(vec(register_type(buffer.dtype), len(elements)))
        for lane, n in enumerate(elements):
            if 0 <= n < buffer.size:
                value = self.b.insertelement(value, self._element(buffer, n), lane)
        return value

    def _element(self, buffer: Buffer, index: int) -> Val:
        number, offset = divmod(index, self.widths.get(buffer.name, 1))
        whole = self.values.get((buffer.name, number))
        if whole is None:
            return poison(register_type(buffer.dtype))
        return self.b.extractelement(whole, offset)

    def write(self, buffer: Buffer, first: int, value: Val) -> None:
        """Set as many elements as the value has lanes; those beyond the end are dropped."""
        if buffer.name in self.private:
            self.values[buffer.name, first] = value
            return
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


def _form(stmt: Load | Store, vectors: For | None) -> _Form | None:
    """The index of an access and the end of its lanes; None if they are no vector of the buffer."""
    if vectors is None or stmt.index.coefficient(vectors.axis) != 1:
        return None
    lanes = ceil_power_of_two(vectors.axis.size)
    others = (c for atom, c in stmt.index.terms if atom != vectors.axis)
    is_whole = all(c % lanes == 0 for c in (*others, stmt.index.const))
    return (stmt.index, vectors.end) if is_whole else None


__all__ = ["Part", "Registers"]

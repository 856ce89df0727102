"""Writing kernels: an assembler that types values, scopes loops and allocates registers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from bringup_simulator.alu import ALU
from bringup_simulator.isa import (
    LANE,
    Affine,
    Image,
    Instruction,
    Param,
    Range,
    Tile,
    bits_of,
    grid_axis,
    loop_counter,
)
from bringup_simulator.limits import VECTOR_WIDTH

__all__ = ["Assembler", "Place", "Reg"]


@dataclass(frozen=True, slots=True)
class Reg:
    """A virtual register; there are as many as needed until ``finish`` maps them to real ones."""

    number: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Place:
    """A parameter or a tile."""

    space: str
    dtype: str
    elements: int


class Assembler:
    """Builds one kernel image, instruction by instruction.

    Every method that computes returns a new register, or writes ``into`` an earlier one, which is
    how a value is carried around a loop.  A ``grid`` axis or ``loop`` over ``lanes`` runs a vector
    of elements at a time; in its scope, lanes past the end neither load, store nor accumulate.

    >>> from bringup_simulator import encode
    >>> asm = Assembler("double")
    >>> x, y = asm.param("f32", 1000), asm.param("f32", 1000, writable=True)
    >>> i = asm.grid(1000, lanes=True)
    >>> a = asm.load(x, i)
    >>> asm.store(y, i, asm.alu("add", a, a))
    >>> binary = encode(asm.finish())
    """

    def __init__(self, name: str, vector_width: int = VECTOR_WIDTH) -> None:
        self._name = name
        self._width = vector_width
        self._spreads = False
        self._grid: list[int] = []
        self._active: list[Range] = []
        self._params: list[Param] = []
        self._tiles: list[Tile] = []
        self._code: list[Instruction] = []
        self._registers = 0
        self._depth = 0

    def param(self, dtype: str, elements: int, *, writable: bool = False) -> Place:
        """Declare the next parameter: the launch must bind at least ``elements`` of ``dtype``."""
        self._params.append(Param(dtype, elements, writable))
        return Place(f"p{len(self._params) - 1}", dtype, elements)

    def tile(self, dtype: str, elements: int) -> Place:
        """Reserve scratchpad for each grid point; undefined until stored to."""
        self._tiles.append(Tile(dtype, elements))
        return Place(f"t{len(self._tiles) - 1}", dtype, elements)

    def grid(self, size: int, *, lanes: bool = False) -> Affine:
        """Add an axis to the launch grid; gives its coordinate; with ``lanes``, one a lane."""
        self._grid.append(self._vectors(size) if lanes else size)
        axis = grid_axis(len(self._grid) - 1)
        return self._spread(axis, size) if lanes else axis

    def const(self, value: Any, dtype: str, *, into: Reg | None = None) -> Reg:
        """``value``, rounded to ``dtype``, in all lanes."""
        return self._emit(into, Instruction("const", dtype, bits=bits_of(value, dtype)))

    def index(self, address: Affine, *, into: Reg | None = None) -> Reg:
        """The value of an affine expression, as i64."""
        return self._emit(into, Instruction("index", "i64", address=address))

    def inside(self, ranges: Sequence[Range], *, mask: Reg | None = None) -> Reg:
        """Which lanes lie inside all ``ranges`` and ``mask``, as bool."""
        masked = -1 if mask is None else mask.number
        return self._emit(None, Instruction("inside", "bool", ranges=tuple(ranges), mask=masked))

    def load(
        self,
        place: Place,
        address: Affine,
        *,
        index: Reg | None = None,
        ranges: Sequence[Range] = (),
        mask: Reg | None = None,
        fill: Any = 0,
        into: Reg | None = None,
    ) -> Reg:
        """The elements at ``address`` (plus ``index``, i64); masked-off lanes hold ``fill``.

        Masked-off lanes touch no memory, so their address may lie anywhere.
        """
        access = self._access("load", place, address, index, ranges, mask)
        return self._emit(into, replace(access, bits=bits_of(fill, place.dtype)))

    def store(
        self,
        place: Place,
        address: Affine,
        value: Reg,
        *,
        index: Reg | None = None,
        ranges: Sequence[Range] = (),
        mask: Reg | None = None,
    ) -> None:
        """Store ``value`` where the mask holds; lanes that meet at one address race."""
        access = self._access("store", place, address, index, ranges, mask)
        self._code.append(replace(access, srcs=(value.number,)))

    def alu(self, op: str, *operands: Reg, into: Reg | None = None) -> Reg:
        """One row of ``ALU`` whose result type follows from its operands."""
        row = ALU.get(op)
        if row is None or row.result == "declared":
            raise ValueError(f"alu has no operation {op!r} with a derived result type")
        dtype = "bool" if row.result == "bool" else operands[-1].dtype
        numbers = tuple(r.number for r in operands)
        return self._emit(into, Instruction(op, dtype, srcs=numbers))

    def cast(self, op: str, value: Reg, dtype: str, *, into: Reg | None = None) -> Reg:
        """``op`` is ``convert`` (saturating), ``truncate`` (low bits) or ``bitcast``."""
        return self._emit(into, Instruction(op, dtype, srcs=(value.number,)))

    def lanes(self, op: str, value: Reg, *, into: Reg | None = None) -> Reg:
        """Reduce over the lanes with ``add mul max min and or xor``; every lane gets the result."""
        return self._emit(into, Instruction(f"lanes_{op}", value.dtype, srcs=(value.number,)))

    def accumulate(self, op: str, total: Reg, value: Reg) -> None:
        """``total = op(total, value)``, in the lanes that are not past an end."""
        if not self._active:
            self.alu(op, total, value, into=total)
            return
        combined = self.alu(op, total, value)
        self.alu("select", self.inside(self._active), combined, total, into=total)

    @contextmanager
    def loop(self, size: int, *, lanes: bool = False) -> Iterator[Affine]:
        """Repeat the body for each of ``size`` elements; gives the index of the element.

        lanes: take a vector of elements a round, one in each lane.
        """
        active = len(self._active)
        self._code.append(Instruction("loop", trip=self._vectors(size) if lanes else size))
        counter = loop_counter(self._depth)
        self._depth += 1
        yield self._spread(counter, size) if lanes else counter
        self._depth -= 1
        del self._active[active:]
        self._code.append(Instruction("end"))

    def _vectors(self, size: int) -> int:
        return -(-size // self._width)

    def _spread(self, vector: Affine, size: int) -> Affine:
        self._spreads = True
        index = vector * self._width + LANE
        if size % self._width:
            self._active.append(Range(index, 0, size))
        return index

    def finish(self) -> Image:
        """The image, with as few real registers as a linear scan needs."""
        mapping = _allocate(self._code)
        code = tuple(_renumber(instruction, mapping) for instruction in self._code)
        used = max(mapping.values(), default=-1) + 1
        width = self._width if self._spreads else 0
        params, tiles, grid = tuple(self._params), tuple(self._tiles), tuple(self._grid)
        return Image(self._name, params, tiles, used, code, grid, width)

    def _access(
        self,
        op: str,
        place: Place,
        address: Affine,
        index: Reg | None,
        ranges: Sequence[Range],
        mask: Reg | None,
    ) -> Instruction:
        # What is the same in every lane is in bounds if it is in any.
        affines = (address, *(bounds.expr for bounds in ranges))
        varies = mask or index or any("lane" in expr.symbols() for expr in affines)
        active = self._active if op == "store" or varies else ()
        return Instruction(
            op,
            place.dtype,
            space=place.space,
            address=address,
            index=-1 if index is None else index.number,
            mask=-1 if mask is None else mask.number,
            ranges=(*active, *ranges),
        )

    def _emit(self, into: Reg | None, instruction: Instruction) -> Reg:
        if into is None:
            into = Reg(self._registers, instruction.dtype)
            self._registers += 1
        if into.dtype != instruction.dtype:
            raise ValueError(f"{instruction.op} makes {instruction.dtype}, not {into.dtype}")
        self._code.append(replace(instruction, dst=into.number))
        return into


def _allocate(code: Sequence[Instruction]) -> dict[int, int]:
    """Real register of each virtual one, by linear scan over live intervals."""
    first, last = _intervals(code)
    mapping: dict[int, int] = {}
    free: list[int] = []
    active: list[int] = []
    for register in sorted(first, key=first.__getitem__):
        for done in [r for r in active if last[r] <= first[register]]:
            active.remove(done)
            free.append(mapping[done])
        free.sort(reverse=True)
        mapping[register] = free.pop() if free else len(active)
        active.append(register)
    return mapping


def _intervals(code: Sequence[Instruction]) -> tuple[dict[int, int], dict[int, int]]:
    """First definition and last use of each register.

    A register defined before a loop and touched inside it must survive until the loop's end,
    because the next round needs it.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    starts: list[int] = []
    inside: list[set[int]] = []
    for pc, instruction in enumerate(code):
        if instruction.op == "loop":
            starts.append(pc)
            inside.append(set())
            continue
        if instruction.op == "end":
            start, touched = starts.pop(), inside.pop()
            last.update((r, pc) for r in touched if first[r] < start)
            if inside:
                inside[-1] |= touched
            continue
        touched = {r for r in (*instruction.reads(), instruction.dst) if r >= 0}
        for register in touched:
            first.setdefault(register, pc)
            last[register] = pc
        if inside:
            inside[-1] |= touched
    return first, last


def _renumber(instruction: Instruction, mapping: dict[int, int]) -> Instruction:
    return replace(
        instruction,
        dst=mapping.get(instruction.dst, -1),
        srcs=tuple(mapping[r] for r in instruction.srcs),
        index=mapping.get(instruction.index, -1),
        mask=mapping.get(instruction.mask, -1),
    )

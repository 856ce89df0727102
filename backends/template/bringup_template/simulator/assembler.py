"""Writing kernels: an assembler that types values, scopes loops and allocates registers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from bringup_template.simulator.alu import ALU
from bringup_template.simulator.isa import (
    Affine,
    Image,
    Instruction,
    Param,
    Range,
    Tile,
    bits_of,
    loop_counter,
)

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
    how a value is carried around a loop.

    >>> from bringup_template.simulator import LANE, encode
    >>> asm = Assembler("double")
    >>> x, y = asm.param("f32", 128), asm.param("f32", 128, writable=True)
    >>> a = asm.load(x, LANE)
    >>> asm.store(y, LANE, asm.alu("add", a, a))
    >>> binary = encode(asm.finish())
    """

    def __init__(self, name: str) -> None:
        self._name = name
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

    @contextmanager
    def loop(self, trip: int) -> Iterator[Affine]:
        """Repeat the body ``trip`` times; gives the counter as an affine symbol."""
        self._code.append(Instruction("loop", trip=trip))
        self._depth += 1
        yield loop_counter(self._depth - 1)
        self._depth -= 1
        self._code.append(Instruction("end"))

    def finish(self) -> Image:
        """The image, with as few real registers as a linear scan needs."""
        mapping = _allocate(self._code)
        code = tuple(_renumber(instruction, mapping) for instruction in self._code)
        used = max(mapping.values(), default=-1) + 1
        return Image(self._name, tuple(self._params), tuple(self._tiles), used, code)

    def _access(
        self,
        op: str,
        place: Place,
        address: Affine,
        index: Reg | None,
        ranges: Sequence[Range],
        mask: Reg | None,
    ) -> Instruction:
        return Instruction(
            op,
            place.dtype,
            space=place.space,
            address=address,
            index=-1 if index is None else index.number,
            mask=-1 if mask is None else mask.number,
            ranges=tuple(ranges),
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

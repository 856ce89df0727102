"""Static rules of kernel images, checked once when an image is loaded."""

from __future__ import annotations

from typing import NoReturn

from bringup_simulator.alu import ALU, LANES, kind_of
from bringup_simulator.errors import BadImageError
from bringup_simulator.isa import DTYPES, Image, Instruction, Param, Tile
from bringup_simulator.limits import Limits

__all__ = ["loop_ends", "steps_per_point", "verify"]

# Register number -> dtype of what it holds.
_State = dict[int, str]


def verify(image: Image, limits: Limits) -> None:
    """Raise LimitError if the chip cannot hold the image, BadImageError if it breaks a rule.

    Checked: known ops and dtypes; registers written before they are read, with the type the reader
    expects, also around loops; spaces that exist and stores only to writable ones;
    symbols in scope.
    """
    _check_limits(image, limits)
    places: tuple[Param | Tile, ...] = (*image.params, *image.tiles)
    for place in places:
        if place.dtype not in DTYPES or place.elements < 0:
            raise BadImageError(f"{image.name}: bad declaration {place}")
    _Checker(image, limits).block(0, len(image.code), {}, 0)


def steps_per_point(image: Image) -> int:
    """Instructions one grid point executes, loops counted."""
    return _steps(image, loop_ends(image), 0, len(image.code))


def loop_ends(image: Image) -> dict[int, int]:
    """For each ``loop`` its ``end``; BadImageError if they do not nest."""
    ends: dict[int, int] = {}
    open_loops: list[int] = []
    for pc, instruction in enumerate(image.code):
        if instruction.op == "loop":
            open_loops.append(pc)
        elif instruction.op == "end":
            if not open_loops:
                raise BadImageError(f"{image.name}: instruction {pc}: end without loop")
            ends[open_loops.pop()] = pc
    if open_loops:
        raise BadImageError(f"{image.name}: instruction {open_loops[-1]}: loop without end")
    return ends


def _check_limits(image: Image, limits: Limits) -> None:
    limits.require(image.name, "buffers", len(image.params), limits.buffers)
    limits.require(image.name, "bytes of scratchpad", image.scratch_bytes(), limits.scratchpad)
    limits.require(image.name, "registers", image.registers, limits.registers)
    limits.require(image.name, "instructions", len(image.code), limits.instructions)
    if image.width not in (0, limits.vector_width):
        raise BadImageError(
            f"{image.name}: made for {image.width} lanes, the chip has {limits.vector_width}"
        )


def _steps(image: Image, ends: dict[int, int], start: int, stop: int) -> int:
    total, pc = 0, start
    while pc < stop:
        total += 1
        if pc in ends:
            total += image.code[pc].trip * _steps(image, ends, pc + 1, ends[pc])
            pc = ends[pc]
        pc += 1
    return total


class _Checker:
    def __init__(self, image: Image, limits: Limits) -> None:
        self.image = image
        self.limits = limits
        self.ends = loop_ends(image)
        self.pc = 0

    def block(self, start: int, stop: int, state: _State, depth: int) -> None:
        """Check ``[start, stop)``, updating ``state``."""
        pc = start
        while pc < stop:
            self.pc = pc
            instruction = self.image.code[pc]
            if instruction.op != "loop":
                self._instruction(instruction, state, depth)
                pc += 1
                continue
            if instruction.trip < 0:
                self._fail("negative trip count")
            end = self.ends[pc]
            entry, body = dict(state), dict(state)
            self.block(pc + 1, end, body, depth + 1)
            # Later rounds start with what the first one left.
            again = {r: t for r, t in body.items() if entry.get(r, t) == t}
            if instruction.trip > 1:
                self.block(pc + 1, end, again, depth + 1)
            if instruction.trip:
                state.clear()
                state.update(body)
            pc = end + 1

    def _instruction(self, i: Instruction, state: _State, depth: int) -> None:
        if i.op in ALU or i.op in LANES:
            self._alu(i, state)
        elif i.op in ("load", "store"):
            self._access(i, state, depth)
        elif i.op == "index":
            self._need(i.dtype == "i64" and i.address is not None, "index makes i64 of an address")
        elif i.op == "inside":
            self._need(i.dtype == "bool", "inside makes bool")
        else:
            self._need(i.op == "const", "unknown op")
        self._symbols(i, depth)
        if i.op == "store":
            return
        self._need(i.dtype in DTYPES, f"unknown dtype {i.dtype!r}")
        self._need(0 <= i.dst < self.image.registers, f"no register v{i.dst}")
        if i.op in ("const", "load"):
            self._need(0 <= i.bits < 1 << 8 * DTYPES[i.dtype].itemsize, "bits beyond the dtype")
        state[i.dst] = i.dtype

    def _alu(self, i: Instruction, state: _State) -> None:
        row = ALU.get(i.op) or LANES[i.op]
        self._need(len(i.srcs) == row.arity, f"takes {row.arity} operands, not {len(i.srcs)}")
        types = [self._read(r, state) for r in i.srcs]
        if i.op == "select":
            self._need(types.pop(0) == "bool", "the condition of select must be bool")
        kinds = {kind_of(t) for t in types}
        self._need(len(set(types)) == 1, f"operand types differ: {', '.join(types)}")
        self._need(kinds <= set(row.kinds), f"does not take {types[0]}")
        if row.result == "declared":
            self._need(i.dtype in DTYPES, f"unknown dtype {i.dtype!r}")
            self._declared(i, types[0])
        else:
            expected = types[0] if row.result == "same" else "bool"
            self._need(i.dtype == expected, f"result must be declared {expected}")

    def _declared(self, i: Instruction, source: str) -> None:
        target = kind_of(i.dtype)
        if i.op == "truncate":
            self._need(target in "iu", f"cannot truncate to {i.dtype}")
        if i.op == "bitcast":
            same = DTYPES[i.dtype].itemsize == DTYPES[source].itemsize
            self._need(same and target != "b", f"cannot bitcast {source} to {i.dtype}")

    def _access(self, i: Instruction, state: _State, depth: int) -> None:
        place = self._place(i.space)
        self._need(i.address is not None, "no address")
        self._need(i.dtype == place.dtype, f"{i.space} holds {place.dtype}, not {i.dtype}")
        if i.index >= 0:
            self._need(self._read(i.index, state) == "i64", "an index register holds i64")
        if i.mask >= 0:
            self._need(self._read(i.mask, state) == "bool", "a mask register holds bool")
        if i.op == "store":
            stored = [self._read(r, state) for r in i.srcs]
            self._need(stored == [i.dtype], f"stores one {i.dtype}")
            writable = isinstance(place, Tile) or place.writable
            self._need(writable, f"{i.space} is read-only")

    def _place(self, space: str) -> Param | Tile:
        places: tuple[Param | Tile, ...] = (
            self.image.params if space[:1] == "p" else self.image.tiles if space[:1] == "t" else ()
        )
        number = space[1:]
        if not number.isdecimal() or int(number) >= len(places):
            self._fail(f"no parameter or tile {space!r}")
        return places[int(number)]

    def _symbols(self, i: Instruction, depth: int) -> None:
        for expr in i.affines():
            self._need(all(by > 0 for by in expr.divisors()), "divisors are positive")
            for symbol in expr.symbols():
                kind, number = symbol[0], int(symbol[1:]) if symbol != "lane" else 0
                if symbol == "lane" or (kind == "g" and number < self.limits.rank):
                    continue
                self._need(kind == "l" and number < depth, f"{symbol} is not in scope")

    def _read(self, register: int, state: _State) -> str:
        if register not in state:
            self._fail(f"v{register} is read before it is written")
        return state[register]

    def _need(self, holds: bool, message: str) -> None:
        if not holds:
            self._fail(message)

    def _fail(self, message: str) -> NoReturn:
        code = self.image.code[self.pc]
        raise BadImageError(f"{self.image.name}: instruction {self.pc} ({code}): {message}")

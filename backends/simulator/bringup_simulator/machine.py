"""The interpreter: one instruction at a time, over all lanes of many grid points at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bringup_simulator.alu import ALU, LANES
from bringup_simulator.errors import OutOfBoundsError
from bringup_simulator.isa import DTYPES, Affine, Divided, Image, Instruction, value_of
from bringup_simulator.verifier import loop_ends

__all__ = ["Region", "Traffic", "run_image"]

Vector = npt.NDArray[Any]

# Lanes interpreted together: enough to hide numpy's call overhead, few enough to stay in cache.
_LANES_AT_ONCE = 1 << 16
_TILE_BYTES_AT_ONCE = 1 << 26


@dataclass(frozen=True, slots=True)
class Region:
    """Memory a parameter is bound to.

    array: elements, 1-d; bool as bytes.  origin: index in ``array`` of address 0.  low, high: the
    addresses allowed, ``low <= address < high``.
    """

    array: Vector
    origin: int
    low: int
    high: int


@dataclass(slots=True)
class Traffic:
    """Bytes moved between memory and registers."""

    read: int = 0
    written: int = 0


@dataclass(frozen=True, slots=True)
class _Static:
    """The part of an affine expression that loops do not change, with its extremes.

    loops: (depth, coefficient) of loop counters.  divided: divisions that depend on some.
    """

    values: npt.NDArray[np.int64]
    low: int
    high: int
    loops: tuple[tuple[int, int], ...]
    divided: tuple[tuple[Divided, int], ...]


def run_image(
    image: Image, regions: Sequence[Region], grid: tuple[int, ...], width: int, poison: int
) -> Traffic:
    """Run ``image`` once per point of ``grid``; the order of points is unspecified.

    Raises: OutOfBoundsError at the first access outside a region or tile; what other points have
    stored by then stays.
    """
    traffic = Traffic()
    points = math.prod(grid)
    at_once = max(1, _LANES_AT_ONCE // width)
    if image.scratch_bytes():
        at_once = max(1, min(at_once, _TILE_BYTES_AT_ONCE // image.scratch_bytes()))
    ends = loop_ends(image)
    with np.errstate(all="ignore"):
        for start in range(0, points, at_once):
            flat = np.arange(start, min(points, start + at_once))
            coordinates = np.unravel_index(flat, grid) if grid else ()
            batch = _Batch(image, ends, regions, flat.size, coordinates, width, poison, traffic)
            batch.block(0, len(image.code))
    return traffic


class _Batch:
    """A run of consecutive grid points in lock step.

    A register is an array that broadcasts to ``(points, lanes)``: what is the same in all lanes or
    all points is kept once.
    """

    def __init__(
        self,
        image: Image,
        ends: dict[int, int],
        regions: Sequence[Region],
        points: int,
        coordinates: Sequence[npt.NDArray[np.intp]],
        width: int,
        poison: int,
        traffic: Traffic,
    ) -> None:
        self.code = image.code
        self.ends = ends
        self.points = points
        self.traffic = traffic
        self.registers: list[Vector] = [np.empty((1, 1))] * image.registers
        self.loops: list[int] = []
        self.places = {f"p{n}": region for n, region in enumerate(regions)}
        self.tiles: dict[str, Vector] = {}
        for n, tile in enumerate(image.tiles):
            kind = DTYPES[tile.dtype]
            raw = np.full((points, tile.elements * kind.itemsize), poison, np.uint8)
            self.tiles[f"t{n}"] = raw.view(np.uint8 if kind == np.bool_ else kind)
        self._symbols = {f"g{n}": c.astype(np.int64)[:, None] for n, c in enumerate(coordinates)}
        self._symbols["lane"] = np.arange(width, dtype=np.int64)[None, :]
        self._rows = np.arange(points)[:, None]
        self._lanes = (points, width)
        self._statics: dict[int, _Static] = {}

    def block(self, start: int, stop: int) -> None:
        """Execute the instructions ``[start, stop)``."""
        pc = start
        while pc < stop:
            instruction = self.code[pc]
            if instruction.op == "loop":
                self.loops.append(0)
                for count in range(instruction.trip):
                    self.loops[-1] = count
                    self.block(pc + 1, self.ends[pc])
                self.loops.pop()
                pc = self.ends[pc]
            else:
                self._execute(instruction)
            pc += 1

    def _execute(self, i: Instruction) -> None:
        row = ALU.get(i.op)
        if row is not None:
            operands = [self.registers[r] for r in i.srcs]
            self.registers[i.dst] = row.compute(*operands, i.dtype)
        elif i.op == "load":
            self.registers[i.dst] = self._load(i)
        elif i.op == "store":
            self._store(i)
        elif i.op == "const":
            self.registers[i.dst] = value_of(i.bits, i.dtype).reshape(1, 1)
        elif i.op == "index":
            assert i.address is not None
            static, shift = self._affine(i.address)
            self.registers[i.dst] = static.values + shift
        elif i.op == "inside":
            inside = self._inside(i)
            self.registers[i.dst] = np.ones((1, 1), np.bool_) if inside is None else inside
        else:
            whole = np.broadcast_to(self.registers[i.srcs[0]], self._lanes)
            self.registers[i.dst] = LANES[i.op].compute(whole, i.dtype)

    def _affine(self, expr: Affine) -> tuple[_Static, int]:
        """The value as an array with its extremes, and an int to add to all three."""
        static = self._statics.get(id(expr))
        if static is None:
            static = self._statics[id(expr)] = self._static(expr)
        if static.divided:
            values = static.values
            for symbol, coefficient in static.divided:
                values = values + self._divide(symbol) * coefficient
            static = replace(static, values=values, low=int(values.min()), high=int(values.max()))
        return static, sum(self.loops[depth] * c for depth, c in static.loops)

    def _static(self, expr: Affine) -> _Static:
        values = np.full((1, 1), expr.const, np.int64)
        loops: list[tuple[int, int]] = []
        divided: list[tuple[Divided, int]] = []
        for symbol, coefficient in expr.terms:
            if isinstance(symbol, Divided):
                if any(s[0] == "l" and s != "lane" for s in symbol.of.symbols()):
                    divided.append((symbol, coefficient))
                else:
                    values = values + self._divide(symbol) * coefficient
            elif symbol in self._symbols:
                values = values + self._symbols[symbol] * coefficient
            else:
                loops.append((int(symbol[1:]), coefficient))
        low, high = int(values.min()), int(values.max())
        return _Static(values, low, high, tuple(loops), tuple(divided))

    def _divide(self, symbol: Divided) -> npt.NDArray[np.int64]:
        static, shift = self._affine(symbol.of)
        values = static.values + shift
        return values % symbol.by if symbol.rest else values // symbol.by

    def _inside(self, i: Instruction) -> Vector | None:
        """Lanes inside all ranges and the mask register; None if that is all of them."""
        inside: Vector | None = None
        for bounds in i.ranges:
            static, shift = self._affine(bounds.expr)
            low, high = bounds.low - shift, bounds.high - shift
            if static.low < low or static.high >= high:
                held = (static.values >= low) & (static.values < high)
                inside = held if inside is None else inside & held
        if i.mask >= 0:
            mask = self.registers[i.mask]
            inside = mask if inside is None else inside & mask
        return None if inside is None or inside.all() else inside

    def _addresses(
        self, i: Instruction, inside: Vector | None, low: int, high: int
    ) -> npt.NDArray[np.int64]:
        """Addresses checked against ``[low, high)``; masked lanes get ``low``."""
        assert i.address is not None
        static, shift = self._affine(i.address)
        values = static.values + shift
        if i.index >= 0:
            values = values + self.registers[i.index]
        if inside is not None:
            values = np.where(inside, values, low)
        if i.index < 0 and inside is None:
            least, most = static.low + shift, static.high + shift
        else:
            least, most = int(values.min()), int(values.max())
        if least < low or most >= high:
            raise OutOfBoundsError(
                f"{i.op} reaches address {least if least < low else most} of {i.space}, "
                f"which allows [{low}, {high}): {i}"
            )
        return values

    def _load(self, i: Instruction) -> Vector:
        inside = self._inside(i)
        fill = value_of(i.bits, i.dtype).reshape(1, 1)
        if inside is not None and not inside.any():
            return fill
        tile = self.tiles.get(i.space)
        if tile is not None:
            address = self._addresses(i, inside, 0, tile.shape[1])
            shared = address.shape[0] == 1
            found = tile.take(address[0], axis=1) if shared else tile[self._rows, address]
        else:
            region = self.places[i.space]
            address = self._addresses(i, inside, region.low, region.high)
            found = region.array.take(address + region.origin)
            moved = found.size if inside is None else _count(inside, found.shape)
            self.traffic.read += moved * found.dtype.itemsize
        if i.dtype == "bool":
            found = found != 0
        return found if inside is None else np.where(inside, found, fill)

    def _store(self, i: Instruction) -> None:
        inside = self._inside(i)
        if inside is not None and not inside.any():
            return
        tile = self.tiles.get(i.space)
        value = self.registers[i.srcs[0]]
        shapes = [value.shape] if inside is None else [value.shape, inside.shape]
        if tile is not None:
            address = self._addresses(i, inside, 0, tile.shape[1])
            shape = np.broadcast_shapes(address.shape, *shapes, (self.points, 1))
            where, array = address + self._rows * tile.shape[1], tile.reshape(-1)
        else:
            region = self.places[i.space]
            address = self._addresses(i, inside, region.low, region.high)
            shape = np.broadcast_shapes(address.shape, *shapes)
            where, array = address + region.origin, region.array
            moved = math.prod(shape) if inside is None else _count(inside, shape)
            self.traffic.written += moved * array.dtype.itemsize
        where, value = np.broadcast_to(where, shape), np.broadcast_to(value, shape)
        if inside is not None:
            chosen = np.broadcast_to(inside, shape)
            where, value = where[chosen], value[chosen]
        array[where] = value


def _count(inside: Vector, shape: tuple[int, ...]) -> int:
    whole = np.broadcast_shapes(inside.shape, shape)
    return int(np.count_nonzero(inside)) * (math.prod(whole) // inside.size)

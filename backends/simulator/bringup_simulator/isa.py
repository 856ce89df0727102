"""The chip's kernel image: its instructions, their binary form and their listing.

One image is run once per grid point.  A grid point owns vector registers of ``vector_width``
lanes, each of any element type, and tiles in the scratchpad.  Addresses and masks are affine in the
grid coordinates ``g0 …``, the counters of the enclosing loops ``l0 …`` (outermost first), ``lane``
and quotients and remainders of such expressions; an address may add an integer register for
data-dependent access.  Addresses count elements.  Loops have fixed trip counts; there are no
branches.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from bringup_simulator.errors import BadImageError

__all__ = [
    "DTYPES",
    "LANE",
    "Affine",
    "Divided",
    "Image",
    "Instruction",
    "Param",
    "Range",
    "Tile",
    "bits_of",
    "decode",
    "encode",
    "grid_axis",
    "loop_counter",
    "value_of",
]

DTYPES: dict[str, np.dtype[Any]] = {
    "bool": np.dtype(np.bool_),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8),
    "u16": np.dtype(np.uint16),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f8e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8e5m2": np.dtype(ml_dtypes.float8_e5m2),
}

_MAGIC = b"BKI2"
_SYMBOL = re.compile(r"lane|[gl]\d+")


@dataclass(frozen=True, slots=True)
class Divided:
    """``of // by`` rounded down, or with ``rest`` the remainder ``of % by``, never negative."""

    of: Affine
    by: int
    rest: bool

    def __str__(self) -> str:
        return f"({self.of}){'%' if self.rest else '//'}{self.by}"


Symbol = str | Divided


@dataclass(frozen=True, slots=True)
class Affine:
    """``const + Σ coefficient·symbol``; supports ``+``, ``-``, and ``*``, ``//``, ``%`` by an int.

    >>> LANE + 128 * grid_axis(0)
    Affine(const=0, terms=(('g0', 128), ('lane', 1)))
    >>> print(grid_axis(0) // 3 * 5 + LANE % 2)
    5*(g0)//3 + (lane)%2
    """

    const: int = 0
    terms: tuple[tuple[Symbol, int], ...] = ()

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.const + other, self.terms)
        total = dict(self.terms)
        for symbol, coefficient in other.terms:
            total[symbol] = total.get(symbol, 0) + coefficient
        terms = sorted(((s, c) for s, c in total.items() if c), key=lambda term: str(term[0]))
        return Affine(self.const + other.const, tuple(terms))

    def __mul__(self, factor: int) -> Affine:
        if not factor:
            return Affine()
        return Affine(self.const * factor, tuple((s, c * factor) for s, c in self.terms))

    def __sub__(self, other: Affine | int) -> Affine:
        return self + other * -1

    def __floordiv__(self, by: int) -> Affine:
        return Affine(0, ((Divided(self, by, rest=False), 1),))

    def __mod__(self, by: int) -> Affine:
        return Affine(0, ((Divided(self, by, rest=True), 1),))

    __radd__ = __add__
    __rmul__ = __mul__

    def symbols(self) -> Iterator[str]:
        """Every plain symbol, those under a division too."""
        for symbol, _ in self.terms:
            if isinstance(symbol, Divided):
                yield from symbol.of.symbols()
            else:
                yield symbol

    def divisors(self) -> Iterator[int]:
        """Every divisor."""
        for symbol, _ in self.terms:
            if isinstance(symbol, Divided):
                yield symbol.by
                yield from symbol.of.divisors()

    def __str__(self) -> str:
        parts = [str(symbol) if c == 1 else f"{c}*{symbol}" for symbol, c in self.terms]
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)


LANE = Affine(0, (("lane", 1),))


def grid_axis(axis: int) -> Affine:
    """The grid point's coordinate along ``axis``."""
    return Affine(0, ((f"g{axis}", 1),))


def loop_counter(depth: int) -> Affine:
    """The counter of the enclosing loop at ``depth``, 0 for the outermost."""
    return Affine(0, ((f"l{depth}", 1),))


@dataclass(frozen=True, slots=True)
class Range:
    """The condition ``low <= expr < high``."""

    expr: Affine
    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low} <= {self.expr} < {self.high}"


@dataclass(frozen=True, slots=True)
class Param:
    """A buffer the launch binds: at least ``elements`` of ``dtype``."""

    dtype: str
    elements: int
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Tile:
    """Scratchpad of one grid point, undefined at the start."""

    dtype: str
    elements: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; the fields an op does not use keep their defaults.

    op: ``const index inside load store loop end lanes_*`` or a row of the ALU table.  dtype: of the
    result, for a store of the stored value.  dst, srcs, mask, index: registers, -1 for none.
    space: ``p3`` is parameter 3, ``t0`` tile 0.  ranges: lanes outside any of them are masked off.
    bits: pattern of a constant, or of what masked lanes of a load hold.  trip: of a loop.
    """

    op: str
    dtype: str = ""
    dst: int = -1
    srcs: tuple[int, ...] = ()
    space: str = ""
    address: Affine | None = None
    index: int = -1
    mask: int = -1
    ranges: tuple[Range, ...] = ()
    bits: int = 0
    trip: int = 0

    def reads(self) -> tuple[int, ...]:
        """Registers read, in a fixed order."""
        return (*self.srcs, *(r for r in (self.index, self.mask) if r >= 0))

    def affines(self) -> Iterator[Affine]:
        """Every affine expression, of the address first."""
        if self.address is not None:
            yield self.address
        for bounds in self.ranges:
            yield bounds.expr

    def __str__(self) -> str:
        if self.op == "loop":
            return f"loop {self.trip}"
        words = [self.op if not self.dtype else f"{self.op}.{self.dtype}"]
        operands = [f"v{self.dst}"] if self.dst >= 0 else []
        if self.address is not None:
            offset = f" + v{self.index}" if self.index >= 0 else ""
            operands.append(f"{self.space}[{self.address}{offset}]")
        operands += [f"v{r}" for r in self.srcs]
        if self.op in ("const", "load"):
            operands.append(f"0x{self.bits:x}")
        conditions = [f"v{self.mask}"] if self.mask >= 0 else []
        conditions += [str(bounds) for bounds in self.ranges]
        words.append(", ".join(operands))
        if conditions:
            words.append(f"if {' and '.join(conditions)}")
        return " ".join(words).rstrip()


@dataclass(frozen=True, slots=True)
class Image:
    """A kernel ready to load: parameters, tiles, register count and code.

    grid: what to launch it on, unless the launch says otherwise.  width: the lanes it was written
    for, 0 if it runs on any number.
    """

    name: str
    params: tuple[Param, ...]
    tiles: tuple[Tile, ...]
    registers: int
    code: tuple[Instruction, ...]
    grid: tuple[int, ...] = ()
    width: int = 0

    def scratch_bytes(self) -> int:
        """Scratchpad one grid point needs."""
        return sum(t.elements * DTYPES[t.dtype].itemsize for t in self.tiles)

    def grid_rank(self) -> int:
        """Grid axes the code refers to."""
        symbols = [s for i in self.code for expr in i.affines() for s in expr.symbols()]
        return max((int(s[1:]) + 1 for s in symbols if s[0] == "g"), default=0)

    def listing(self) -> str:
        """The image as text, one instruction a line."""
        grid = f", grid {'×'.join(map(str, self.grid))}" if self.grid else ""
        lines = [f"kernel {self.name}, {self.registers} registers{grid}"]
        for n, param in enumerate(self.params):
            lines.append(
                f"  p{n}: {'inout' if param.writable else 'in'} {param.dtype}[{param.elements}]"
            )
        lines += [f"  t{n}: {tile.dtype}[{tile.elements}]" for n, tile in enumerate(self.tiles)]
        depth = 1
        for instruction in self.code:
            depth -= instruction.op == "end"
            lines.append("  " * depth + str(instruction))
            depth += instruction.op == "loop"
        return "\n".join(lines) + "\n"


def bits_of(value: Any, dtype: str) -> int:
    """The bit pattern of ``value`` as ``dtype``; NaN payloads and the sign of zero survive."""
    return int.from_bytes(np.asarray(value, DTYPES[dtype]).tobytes(), "little")


def value_of(bits: int, dtype: str) -> npt.NDArray[Any]:
    """The inverse of ``bits_of``, as a 0-d array."""
    kind = DTYPES[dtype]
    return np.frombuffer(bits.to_bytes(kind.itemsize, "little"), kind)[0:1].reshape(())


def encode(image: Image) -> bytes:
    """The binary form: magic, checksum, then the fields as compact JSON."""
    code = [_pack(instruction) for instruction in image.code]
    body = json.dumps(
        [
            image.name,
            [[p.dtype, p.elements, p.writable] for p in image.params],
            [[t.dtype, t.elements] for t in image.tiles],
            image.registers,
            code,
            image.grid,
            image.width,
        ],
        separators=(",", ":"),
    ).encode()
    return _MAGIC + zlib.crc32(body).to_bytes(4, "little") + body


def decode(binary: bytes) -> Image:
    """The image of ``binary``; BadImageError if it is damaged or not one of ours.

    Whether the code keeps the rules is for ``verify`` to say.
    """
    body = binary[8:]
    if binary[:4] != _MAGIC:
        raise BadImageError(f"not a kernel image of version {_MAGIC.decode()}")
    if zlib.crc32(body).to_bytes(4, "little") != binary[4:8]:
        raise BadImageError("checksum does not match: the image is truncated or damaged")
    try:
        name, params, tiles, registers, code, grid, width = json.loads(body)
        return Image(
            name,
            tuple(Param(*p) for p in params),
            tuple(Tile(*t) for t in tiles),
            registers,
            tuple(_unpack(fields) for fields in code),
            tuple(grid),
            width,
        )
    except (ValueError, TypeError, KeyError) as error:
        raise BadImageError(f"malformed image: {error}") from error


def _pack(instruction: Instruction) -> list[Any]:
    i = instruction
    address = None if i.address is None else _pack_affine(i.address)
    ranges = [[_pack_affine(r.expr), r.low, r.high] for r in i.ranges]
    return [i.op, i.dtype, i.dst, i.srcs, i.space, address, i.index, i.mask, ranges, i.bits, i.trip]


def _unpack(fields: list[Any]) -> Instruction:
    op, dtype, dst, srcs, space, address, index, mask, ranges, bits, trip = fields
    return Instruction(
        op,
        dtype,
        dst,
        tuple(srcs),
        space,
        None if address is None else _unpack_affine(address),
        index,
        mask,
        tuple(Range(_unpack_affine(e), low, high) for e, low, high in ranges),
        bits,
        trip,
    )


def _pack_affine(expr: Affine) -> list[Any]:
    return [expr.const, [[_pack_symbol(symbol), c] for symbol, c in expr.terms]]


def _pack_symbol(symbol: Symbol) -> Any:
    if isinstance(symbol, Divided):
        return [_pack_affine(symbol.of), symbol.by, symbol.rest]
    return symbol


def _unpack_affine(fields: list[Any]) -> Affine:
    const, terms = fields
    return Affine(const, tuple((_unpack_symbol(symbol), c) for symbol, c in terms))


def _unpack_symbol(fields: Any) -> Symbol:
    if isinstance(fields, list):
        of, by, rest = fields
        return Divided(_unpack_affine(of), by, rest)
    if not _SYMBOL.fullmatch(fields):
        raise ValueError(f"unknown symbol {fields!r}")
    return str(fields)

"""What is sorted, where it lies, and integers in the order of the keys."""

from __future__ import annotations

import math

from bringup.dtypes import DType
from bringup.llvm import text as ir
from bringup.llvm.text import Builder, Type, Val, const
from bringup.program.program import OpStep
from bringup.records import record
from bringup_cuda.commands import Argument

#: Bits that one pass orders by.
DIGIT_BITS = 8


@record
class Key:
    """A key: what orders, and in which direction.  It is moved as its bits in memory.

    width: how many low bits of an unsigned number decide, if those above are 0; 0 for all.
    """

    dtype: DType
    descending: bool
    width: int = 0

    @property
    def bits(self) -> int:
        """How many bits decide."""
        if self.width:
            return self.width
        return 1 if self.dtype.kind == "bool" else self.dtype.bits

    @property
    def digit_bits(self) -> int:
        """Bits of a digit."""
        return min(DIGIT_BITS, self.bits)

    @property
    def radix(self) -> int:
        """How many digits there are."""
        return 1 << self.digit_bits

    @property
    def raw(self) -> Type:
        """The type of an element's bits."""
        return raw_type(self.dtype)

    @property
    def word(self) -> Type:
        """The type of a code."""
        return ir.integer(max(32, self.raw.bits))

    def code(self, b: Builder, raw: Val) -> Val:
        """An unsigned number in the order of the elements: equal for -0 and +0, and for all NaN,
        which come last if ascending.
        """
        if self.dtype.kind == "bool":
            code = b.zext(b.icmp("ne", raw, const(raw.type, 0)), self.word)
        else:
            code = b.zext(self._ordered(b, raw), self.word)
        return b.xor(code, const(self.word, (1 << self.bits) - 1)) if self.descending else code

    def _ordered(self, b: Builder, raw: Val) -> Val:
        top = const(raw.type, 1 << (self.bits - 1))
        if self.dtype.kind == "int":
            return b.xor(raw, top)
        if not self.dtype.is_float:
            return raw
        size = b.and_(raw, const(raw.type, (1 << (self.bits - 1)) - 1))
        infinity = int.from_bytes(self.dtype.numpy.type(math.inf).tobytes(), "little")
        none = const(raw.type, 0)
        turned = b.select(b.icmp("slt", raw, none), b.not_(raw), b.or_(raw, top))
        turned = b.select(b.icmp("eq", size, none), top, turned)
        nan = b.icmp("ugt", size, const(raw.type, infinity))
        return b.select(nan, const(raw.type, -1), turned)

    def digit(self, b: Builder, raw: Val, shift: Val) -> Val:
        """A digit of an element's code, as i32; shift: of its lowest bit."""
        code = self.code(b, raw)
        if shift.type.bits < code.type.bits:
            shift = b.zext(shift, code.type)
        part = b.trunc(b.lshr(code, shift), ir.i32)
        return b.and_(part, const(ir.i32, self.radix - 1))


def raw_type(dtype: DType) -> Type:
    """The type of an element's bits in memory."""
    return ir.integer(dtype.itemsize * 8)


@record
class Lines:
    """The lines of a sort: ``outer`` x ``inner``, of ``length`` elements that are ``inner`` apart.

    operands, results: where they are.  dtypes: of the operands.  keys: the first operands.
    places: where the place goes that each element came from, as i32.
    """

    operands: tuple[Argument, ...]
    results: tuple[Argument, ...]
    dtypes: tuple[DType, ...]
    keys: tuple[Key, ...]
    outer: int
    length: int
    inner: int
    places: Argument | None = None

    @classmethod
    def of(cls, step: OpStep) -> Lines:
        """What a step of the row ``sort`` sorts."""
        shape, dim = step.operands[0].type.shape, step.attrs["dim"]
        keys = step.operands[: step.attrs["num_keys"]]
        return cls(
            step.operands,
            step.results,
            tuple(slot.type.dtype for slot in step.operands),
            tuple(Key(slot.type.dtype, step.attrs["descending"]) for slot in keys),
            math.prod(shape[:dim]),
            shape[dim],
            math.prod(shape[dim + 1 :]),
        )

    @property
    def count(self) -> int:
        """How many lines there are."""
        return self.outer * self.inner

    @property
    def alone(self) -> bool:
        """Whether nothing but the key is moved: then no place need be kept."""
        return len(self.operands) == 1 and self.places is None

    @property
    def written(self) -> tuple[Argument, ...]:
        """The results, then the places if they are asked for."""
        return self.results if self.places is None else (*self.results, self.places)

    def start(self, b: Builder, line: Val) -> Val:
        """Where a line begins, in elements."""
        if self.inner == 1:
            return b.mul(line, const(ir.i64, self.length))
        inner = const(ir.i64, self.inner)
        whole = b.mul(b.udiv(line, inner), const(ir.i64, self.length * self.inner))
        return b.add(whole, b.urem(line, inner))

    def address(self, b: Builder, pointer: Val, start: Val, place: Val, element: Type) -> Val:
        """Where the element at a place of a line lies; place: i32 or i64."""
        wide = b.zext(place, ir.i64) if place.type.bits < 64 else place
        return b.gep(pointer, b.add(start, b.mul(wide, const(ir.i64, self.inner))), element)

    def load(self, b: Builder, pointer: Val, dtype: DType, start: Val, place: Val) -> Val:
        """The bits of an element."""
        raw = raw_type(dtype)
        return b.load(raw, self.address(b, pointer, start, place, raw), dtype.itemsize)

    def store(self, b: Builder, value: Val, pointer: Val, start: Val, place: Val) -> None:
        """Write the bits of an element."""
        address = self.address(b, pointer, start, place, value.type)
        b.store(value, address, value.type.bits // 8)


__all__ = ["DIGIT_BITS", "Key", "Lines", "raw_type"]

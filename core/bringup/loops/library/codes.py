"""Keys of sorts as unsigned numbers in the same order."""

from __future__ import annotations

import math

from bringup.dtypes import DType, as_dtype, i32, u8, u32
from bringup.loops.form import Scalar
from bringup.loops.library.builder import FuncBuilder
from bringup.records import record


@record
class KeyCode:
    """The code of a key: equal for -0 and +0, and for all NaN, which are above all numbers.

    dtype: of the elements.  width: the low bits of an unsigned number that matter, if those above
    are 0; 0 for all bits.
    """

    dtype: DType
    descending: bool
    width: int = 0

    @property
    def raw(self) -> DType:
        """Of the bits of an element, and of codes."""
        return u8 if self.dtype.kind == "bool" else as_dtype(f"u{self.dtype.bits}")

    @property
    def bits(self) -> int:
        """The bits of a code that matter."""
        return self.width or (1 if self.dtype.kind == "bool" else self.dtype.bits)

    @property
    def is_exact(self) -> bool:
        """Whether elements of one code have the same bits."""
        return not self.dtype.is_float

    @property
    def last(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1

    def bits_of(self, b: FuncBuilder, x: Scalar) -> Scalar:
        """The bits of an element, as an unsigned number."""
        if self.dtype.kind == "bool":
            return b.convert(x, u8)
        return x if x.dtype is self.raw else b.op("bitcast", x, dtype=self.raw)

    def element(self, b: FuncBuilder, bits: Scalar) -> Scalar:
        """The element of these bits."""
        if self.dtype.kind == "bool":
            return b.compare("ne", bits, b.constant(0, u8))
        return bits if self.dtype is self.raw else b.op("bitcast", bits, dtype=self.dtype)

    def encode(self, b: FuncBuilder, bits: Scalar) -> Scalar:
        """The code of the element of these bits."""
        code = self._ordered(b, bits)
        return b.op("xor", code, self._constant(b, self.last)) if self.descending else code

    def decode(self, b: FuncBuilder, code: Scalar) -> Scalar:
        """The bits of the element of a code, if it `is_exact`."""
        mask = self.last if self.descending else 0
        mask ^= 1 << (self.bits - 1) if self.dtype.kind == "int" else 0
        return b.op("xor", code, self._constant(b, mask)) if mask else code

    def digit(self, b: FuncBuilder, code: Scalar, shift: Scalar, radix: int) -> Scalar:
        """A digit of a code, as i32.  shift: its lowest bit, as u32."""
        code = b.convert(code, u32) if code.dtype.bits < 32 else code
        moved = b.op("shr", code, b.convert(shift, code.dtype), kind="logical")
        return b.op("and", b.convert(moved, i32), b.constant(radix - 1, i32))

    def _constant(self, b: FuncBuilder, value: int) -> Scalar:
        return b.constant(value, self.raw)

    def _ordered(self, b: FuncBuilder, bits: Scalar) -> Scalar:
        sign = 1 << (self.bits - 1)
        if self.dtype.kind == "int":
            return b.op("xor", bits, self._constant(b, sign))
        if not self.dtype.is_float:
            return bits
        magnitude = b.op("and", bits, self._constant(b, sign - 1))
        zero = self._constant(b, 0)
        code = b.op("select", b.compare("eq", magnitude, zero), zero, bits)
        signs = b.op("shr", code, self._constant(b, self.bits - 1), kind="arithmetic")
        code = b.op("xor", code, b.op("or", signs, self._constant(b, sign)))
        return b.op("select", self.is_nan(b, magnitude), self._constant(b, self.last), code)

    def is_nan(self, b: FuncBuilder, magnitude: Scalar) -> Scalar:
        """Whether a float is no number, by its bits but for the sign."""
        infinity = int.from_bytes(self.dtype.numpy.type(math.inf).tobytes(), "little")
        return b.compare("gt", magnitude, self._constant(b, infinity))


__all__ = ["KeyCode"]

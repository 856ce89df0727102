"""The records that a sorting network orders: how elements are encoded, read and written.

A single operand is sorted as numbers (`ValueCodec`).  Otherwise a record holds the codes of the
keys and the index of the element (`IndexedCodec`).  The index makes the order stable, and then
leads to the elements of every operand.  Records of at most 52 bits are compared as doubles, which
are the fastest words.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.dtypes import DType
from bringup.llvm import text as ir
from bringup.llvm.scalar import memory_type, narrow, widen
from bringup.llvm.text import Builder, Type, Val, const, const_vector, i64_const, vec
from bringup.llvm.text.masked import masked_gather, masked_load, masked_scatter, masked_store
from bringup.records import record

_MANTISSA = 52
_ONE = 0x3FF << _MANTISSA


@record
class StridedLine:
    """The position of a vector of elements: lane i is ``across * i`` elements after ``start``.

    along: elements from one index of the line to the next.
    lanes_are_indices: lanes are consecutive indices of one line; otherwise they are the same index
    of different lines.
    """

    start: Val
    across: int
    along: int
    lanes_are_indices: bool

    def offsets(self, b: Builder, index: Val, lanes: int) -> Val:
        """Element offsets of the lanes at an index; a vector has an index for each lane."""
        if index.type.lanes == 1:
            base = b.add(self.start, b.mul(index, i64_const(self.along)))
            steps = const_vector(ir.i64, [i * self.across for i in range(lanes)])
            return b.add(b.splat(base, lanes), steps)
        far = b.mul(index, const(index.type, self.along)) if self.along != 1 else index
        base = b.add(b.splat(self.start, lanes), far)
        if self.lanes_are_indices:
            return base
        return b.add(base, const_vector(ir.i64, [i * self.across for i in range(lanes)]))

    def load(
        self, b: Builder, pointer: Val, dtype: DType, index: Val, lanes: int, mask: Val | None
    ) -> Val:
        """Elements of a buffer at an index, as they are in memory."""
        element, align = memory_type(dtype), dtype.itemsize
        type_ = vec(element, lanes)
        if index.type.lanes == 1 and self.across == 1:
            address = self._first(b, pointer, element, index)
            if mask is None:
                return b.load(type_, address, align)
            return masked_load(b, type_, address, mask, ir.zero(type_), align)
        addresses = b.gep(pointer, self.offsets(b, index, lanes), element)
        return masked_gather(b, type_, addresses, mask, ir.zero(type_), align)

    def store(
        self, b: Builder, value: Val, pointer: Val, dtype: DType, index: Val, mask: Val | None
    ) -> None:
        """Write elements as they are in memory."""
        element, align, lanes = memory_type(dtype), dtype.itemsize, value.type.lanes
        if self.across != 1:
            addresses = b.gep(pointer, self.offsets(b, index, lanes), element)
            masked_scatter(b, value, addresses, mask, align)
            return
        address = self._first(b, pointer, element, index)
        if mask is None:
            b.store(value, address, align)
        else:
            masked_store(b, value, address, mask, align)

    def _first(self, b: Builder, pointer: Val, element: Type, index: Val) -> Val:
        return b.gep(pointer, b.add(self.start, b.mul(index, i64_const(self.along))), element)


@record
class ValueCodec:
    """Elements that are sorted as numbers, one word each; NaN becomes infinity."""

    dtype: DType
    descending: bool

    @property
    def type(self) -> Type:
        """The type of a word."""
        if self.dtype.is_float or self.dtype.bits <= 16:
            return ir.f64 if self.dtype.bits == 64 else ir.f32
        return ir.integer(self.dtype.bits)

    @property
    def words(self) -> int:
        """Words of a record."""
        return 1

    def last(self, lanes: int) -> list[Val]:
        """A record that comes after all others."""
        high = float("inf") if self.type.is_float else (1 << (self.type.bits - 1)) - 1
        return [const(vec(self.type, lanes), high)]

    def encoded(self, b: Builder, values: Sequence[Val], _index: Val) -> list[Val]:
        """Records of elements."""
        x = _number(b, values[0], self.dtype, self.type)
        if self.dtype.is_float:
            x = b.select(b.fcmp("uno", x, x), const(x.type, float("inf")), x)
        if self.type.is_float:
            return [b.fneg(x) if self.descending else x]
        if self.dtype.kind == "uint":
            x = b.xor(x, const(x.type, 1 << (self.type.bits - 1)))
        return [b.not_(x) if self.descending else x]

    def decoded(self, b: Builder, record: Sequence[Val]) -> Val:
        """The elements of records, as they are in memory."""
        (x,) = record
        if self.type.is_float:
            x = b.fneg(x) if self.descending else x
            if self.dtype.is_float:
                return narrow(b, x, self.dtype)
            cast = b.fptosi if self.dtype.kind == "int" else b.fptoui
            return b.trunc(cast(x, ir.i32), memory_type(self.dtype))
        x = b.not_(x) if self.descending else x
        if self.dtype.kind == "uint":
            x = b.xor(x, const(x.type, 1 << (self.type.bits - 1)))
        return x

    def lost(self, b: Builder, values: Sequence[Val]) -> Val | None:
        """The lanes whose elements the records cannot represent: NaN, and −0, which equals +0."""
        if not self.dtype.is_float:
            return None
        x = values[0]
        bits = ir.integer(self.dtype.bits)
        sign = 1 << (self.dtype.bits - 1)
        raw = b.bitcast(x, bits)
        size = b.and_(raw, const(raw.type, sign - 1))
        nan = b.icmp("ugt", size, const(raw.type, _infinity(self.dtype)))
        return b.or_(nan, b.icmp("eq", raw, const(raw.type, sign)))


def _number(b: Builder, x: Val, dtype: DType, to: Type) -> Val:
    """An element as a number of the word's type, exactly."""
    if dtype.is_float:
        return widen(b, x)
    if not to.is_float:
        return x
    return b.sitofp(x, to) if dtype.kind == "int" else b.uitofp(x, to)


def _infinity(dtype: DType) -> int:
    """The bits of infinity."""
    return int.from_bytes(dtype.numpy.type(float("inf")).tobytes(), "little")


@record
class IndexedCodec:
    """Elements that are sorted by codes of their keys, then by index.

    keys: their dtypes.  size: number of indices.
    """

    keys: tuple[DType, ...]
    descending: bool
    size: int

    @property
    def bits(self) -> int:
        """Bits of an index."""
        return max(1, (self.size - 1).bit_length())

    def _fields(self) -> list[list[int]]:
        """The widths of the fields of each word; the index is the last field."""
        words: list[list[int]] = [[]]
        for width in (*(1 if d.name == "bool" else d.bits for d in self.keys), self.bits):
            if sum(words[-1]) + width > 64:
                words.append([])
            words[-1].append(width)
        return words

    @property
    def words(self) -> int:
        """Words of a record."""
        return len(self._fields())

    @property
    def type(self) -> Type:
        """The type of a word."""
        return ir.f64 if sum(map(sum, self._fields())) <= _MANTISSA else ir.i64

    def last(self, lanes: int) -> list[Val]:
        """A record that comes after all others."""
        if self.type is ir.f64:
            bits = ir.const_bits(vec(ir.f64, lanes), _ONE | ((1 << _MANTISSA) - 1))
            return [bits]
        return [const(vec(ir.i64, lanes), (1 << 63) - 1)] * self.words

    def encoded(self, b: Builder, values: Sequence[Val], index: Val) -> list[Val]:
        """Records of the elements of the keys at an index."""
        codes = [_code(b, x, d, self.descending) for x, d in zip(values, self.keys, strict=True)]
        codes.append(index)
        record: list[Val] = []
        for widths in self._fields():
            word = codes.pop(0)
            for width in widths[1:]:
                word = b.or_(b.shl(word, const(word.type, width)), codes.pop(0))
            if self.type is ir.f64:
                word = b.bitcast(b.or_(word, const(word.type, _ONE)), ir.f64)
            elif sum(widths) == 64:
                word = b.xor(word, const(word.type, 1 << 63))
            record.append(word)
        return record

    def index(self, b: Builder, record: Sequence[Val]) -> Val:
        """The indices of the elements of records."""
        word = record[-1]
        raw = b.bitcast(word, ir.i64) if self.type is ir.f64 else word
        return b.and_(raw, const(raw.type, (1 << self.bits) - 1))


def _code(b: Builder, x: Val, dtype: DType, descending: bool) -> Val:
    """Unsigned 64-bit numbers in the order of the elements, below 2 to the width of the dtype."""
    width = 1 if dtype.name == "bool" else dtype.bits
    raw = b.bitcast(x, ir.integer(max(width, 8)))
    top = const(raw.type, 1 << (raw.type.bits - 1))
    if dtype.is_float:
        size = b.and_(raw, const(raw.type, (1 << (width - 1)) - 1))
        nan = b.icmp("ugt", size, const(raw.type, _infinity(dtype)))
        zero = const(raw.type, 0)
        raw = b.select(b.icmp("eq", size, zero), zero, raw)
        sign = b.ashr(raw, const(raw.type, width - 1))
        raw = b.select(nan, const(raw.type, -1), b.xor(raw, b.or_(sign, top)))
    elif dtype.kind == "int":
        raw = b.xor(raw, top)
    wide = b.zext(raw, ir.i64) if raw.type.bits < 64 else raw
    return b.xor(wide, const(wide.type, (1 << width) - 1)) if descending else wide

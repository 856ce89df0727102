"""The records that sorting networks order: how elements become words, and words elements.

A single operand is sorted as numbers (`ValueCode`).  Otherwise a record holds the codes of the keys
and the index of the element (`IndexedCode`).  The index makes the order stable, and then leads to
the elements of every operand.  In vectors, records of at most 52 bits are compared as doubles,
which are the fastest words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bringup.dtypes import DType, as_dtype, f32, f64, i32, i64, u64
from bringup.loops.form import Scalar
from bringup.loops.library.builder import FuncBuilder
from bringup.loops.library.codes import KeyCode
from bringup.records import record

_MANTISSA = 52
_ONE = 0x3FF << _MANTISSA

Record = list[Scalar]


@record
class ValueCode:
    """Elements that are sorted as numbers, one word each; NaN becomes infinity."""

    dtype: DType
    descending: bool

    @property
    def word(self) -> DType:
        """The dtype of a word."""
        if self.dtype.is_float:
            return f64 if self.dtype.bits == 64 else f32
        return i64 if self.dtype.bits == 64 else i32

    @property
    def words(self) -> int:
        """Words of a record."""
        return 1

    @property
    def _is_flipped(self) -> bool:
        """Whether the sign bit stands for a half of unsigned numbers."""
        return self.dtype.kind == "uint" and self.dtype.bits == self.word.bits

    def last(self, b: FuncBuilder) -> Record:
        """A record that comes after all others."""
        high = math.inf if self.word.is_float else (1 << (self.word.bits - 1)) - 1
        return [b.constant(high, self.word)]

    def encode(self, b: FuncBuilder, x: Scalar) -> Record:
        """The record of an element."""
        value = b.convert(x, self.word)
        if self.word.is_float:
            infinity = b.constant(math.inf, self.word)
            value = b.op("select", b.compare("ne", value, value), infinity, value)
            return [b.op("neg", value) if self.descending else value]
        return [self._oriented(b, value)]

    def decode(self, b: FuncBuilder, words: Record) -> Scalar:
        """The element of a record."""
        (value,) = words
        if self.word.is_float:
            value = b.op("neg", value) if self.descending else value
        else:
            value = self._oriented(b, value)
        return b.convert(value, self.dtype)

    def _oriented(self, b: FuncBuilder, value: Scalar) -> Scalar:
        least = 1 << (self.word.bits - 1)
        mask = (-least if self._is_flipped else 0) ^ (-1 if self.descending else 0)
        return b.op("xor", value, b.constant(mask, self.word)) if mask else value

    def is_lost(self, b: FuncBuilder, x: Scalar) -> Scalar:
        """Whether records cannot represent an element: NaN, and −0, which equals +0."""
        return b.op("or", self.is_nan(b, x), self.is_negative_zero(b, x))

    @property
    def raw(self) -> DType:
        """Of the bits of an element."""
        return as_dtype(f"u{self.dtype.bits}")

    def is_nan(self, b: FuncBuilder, x: Scalar) -> Scalar:
        """Whether an element is no number."""
        if self.dtype is self.word:
            return b.compare("ne", x, x)
        sign = b.constant((1 << (self.dtype.bits - 1)) - 1, self.raw)
        magnitude = b.op("and", b.op("bitcast", x, dtype=self.raw), sign)
        return KeyCode(self.dtype, self.descending).is_nan(b, magnitude)

    def is_negative_zero(self, b: FuncBuilder, x: Scalar) -> Scalar:
        """Whether an element is −0."""
        bits = b.op("bitcast", x, dtype=self.raw)
        return b.compare("eq", bits, b.constant(1 << (self.dtype.bits - 1), self.raw))


@record
class IndexedCode:
    """Elements that are sorted by codes of their keys, then by index.

    keys: their codes.  size: number of indices.  doubles: records of few bits are doubles.
    """

    keys: tuple[KeyCode, ...]
    size: int
    doubles: bool

    @property
    def bits(self) -> int:
        """Bits of an index."""
        return max(1, (self.size - 1).bit_length())

    def _fields(self) -> list[list[int]]:
        """The widths of the fields of each word; the index is the last field."""
        words: list[list[int]] = [[]]
        for width in (*(key.bits for key in self.keys), self.bits):
            if sum(words[-1]) + width > 64:
                words.append([])
            words[-1].append(width)
        return words

    @property
    def words(self) -> int:
        """Words of a record."""
        return len(self._fields())

    @property
    def word(self) -> DType:
        """The dtype of a word."""
        is_short = self.doubles and sum(map(sum, self._fields())) <= _MANTISSA
        return f64 if is_short else i64

    def last(self, b: FuncBuilder) -> Record:
        """A record that comes after all others."""
        if self.word is f64:
            return [b.constant(np.uint64(_ONE | ((1 << _MANTISSA) - 1)).view(np.float64), f64)]
        return [b.constant((1 << 63) - 1, i64)] * self.words

    def encode(self, b: FuncBuilder, elements: Sequence[Scalar], index: Scalar) -> Record:
        """The record of an element by its keys and its index, as u64."""
        codes = [
            b.convert(key.encode(b, key.bits_of(b, x)), u64)
            for key, x in zip(self.keys, elements, strict=True)
        ]
        codes.append(index)
        words: Record = []
        for widths in self._fields():
            word = codes.pop(0)
            for width in widths[1:]:
                word = b.op("shl", word, b.constant(width, u64))
                word = b.op("or", word, codes.pop(0))
            if self.word is f64:
                word = b.op("or", word, b.constant(_ONE, u64))
            elif sum(widths) == 64:
                word = b.op("xor", word, b.constant(1 << 63, u64))
            words.append(b.op("bitcast", word, dtype=self.word))
        return words

    def index(self, b: FuncBuilder, words: Record) -> Scalar:
        """The index of the element of a record."""
        bits = b.op("bitcast", words[-1], dtype=u64)
        return b.op("and", bits, b.constant((1 << self.bits) - 1, u64))


__all__ = ["IndexedCode", "Record", "ValueCode"]

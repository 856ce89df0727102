"""After a sort of numbers: NaN, which was sorted as infinity, and the signs of zeros.

Both are rare, so they are mended element by element.
"""

from __future__ import annotations

from collections.abc import Callable

from bringup.llvm import text as ir
from bringup.llvm._records import Line, Numbers
from bringup.llvm.launches import Phase
from bringup.llvm.scalar import memory_type, widen
from bringup.llvm.text import Val, const


class Oddities:
    """One line of floats of ``length`` places, sorted as numbers."""

    def __init__(self, phase: Phase, codec: Numbers, line: Line, length: int) -> None:
        self.phase = phase
        self.b = phase.b
        self.codec = codec
        self.line = line
        self.length = length
        self.element = memory_type(codec.dtype)

    def _at(self, pointer: Val, place: Val) -> Val:
        offset = self.b.add(self.line.start, self.b.mul(place, const(ir.i64, self.line.along)))
        return self.b.gep(pointer, offset, self.element)

    def _load(self, pointer: Val, place: Val) -> tuple[Val, Val]:
        """An element as it is in memory, and as a number."""
        raw = self.b.load(self.element, self._at(pointer, place), self.codec.dtype.itemsize)
        return raw, widen(self.b, raw)

    def _tally(self, first: Val, stop: Val, test: Callable[[Val, Val], list[Val]]) -> list[Val]:
        """How many of the elements from a place on hold for each test."""
        b = self.b
        zeros = [const(ir.i64, 0)] * len(test(*self._load(self.phase.operands[0], first)))
        with b.loop(first, stop, carried=zeros) as loop:
            hits = test(*self._load(self.phase.operands[0], loop.index))
            pairs = zip(loop.carried, hits, strict=True)
            loop.next(*(b.add(count, b.zext(hit, ir.i64)) for count, hit in pairs))
        return list(loop.carried)

    def count(self, first: Val, stop: Val) -> tuple[Val, Val]:
        """How many NaN and how many negative zeros lie from a place on."""
        b = self.b

        def test(raw: Val, x: Val) -> list[Val]:
            bits = b.bitcast(raw, ir.integer(self.codec.dtype.bits))
            sign = const(bits.type, 1 << (self.codec.dtype.bits - 1))
            return [b.fcmp("uno", x, x), b.icmp("eq", bits, sign)]

        nans, zeros = self._tally(first, stop, test)
        return nans, zeros

    def mend_all(self) -> None:
        """Count, and mend the whole line."""
        first, stop = const(ir.i64, 0), const(ir.i64, self.length)
        self.mend(*self.count(first, stop), first, stop)

    def mend(self, nans: Val, zeros: Val, first: Val, stop: Val) -> None:
        """Put the line's NaN and its zeros where they belong in a stretch of the result.

        nans, zeros: how many NaN and how many negative zeros the line has.
        """
        b, length = self.b, const(ir.i64, self.length)
        low, high = (const(ir.i64, 0), nans)
        if not self.codec.descending:
            low, high = b.sub(length, nans), length
        low = b.intrinsic("llvm.smax", ir.i64, (low, first))
        high = b.intrinsic("llvm.smin", ir.i64, (high, stop))
        nan = ir.const_bits(ir.f64, 0x7FF8 << 48)
        with b.loop(low, high) as loop:
            self._store(self._nan(nan), loop.index)
        with b.if_then(b.icmp("sgt", zeros, const(ir.i64, 0))):
            self._mend_zeros(nans, first, stop)

    def _nan(self, nan: Val) -> Val:
        if self.codec.dtype.bits == 64:
            return nan
        bits = int.from_bytes(self.codec.dtype.numpy.type(float("nan")).tobytes(), "little")
        return self.b.bitcast(const(ir.integer(self.codec.dtype.bits), bits), self.element)

    def _store(self, value: Val, place: Val) -> None:
        at = self._at(self.phase.results[0], place)
        self.b.store(value, at, self.codec.dtype.itemsize)

    def _mend_zeros(self, nans: Val, first: Val, stop: Val) -> None:
        """Zeros are equal: they stand in the order of the operand, each with its own sign."""
        b, begin = self.b, const(ir.i64, 0)
        down = self.codec.descending

        def before(_raw: Val, x: Val) -> list[Val]:
            return [b.fcmp("ogt" if down else "olt", x, const(x.type, 0.0))]

        (place,) = self._tally(begin, const(ir.i64, self.length), before)
        place = b.add(place, nans) if down else place
        with b.loop(begin, const(ir.i64, self.length), carried=[place]) as loop:
            raw, x = self._load(self.phase.operands[0], loop.index)
            zero = b.fcmp("oeq", x, const(x.type, 0.0))
            here = loop.carried[0]
            inside = b.and_(b.icmp("sge", here, first), b.icmp("slt", here, stop))
            with b.if_then(b.and_(zero, inside)):
                self._store(raw, here)
            loop.next(b.add(here, b.zext(zero, ir.i64)))

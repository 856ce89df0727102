"""Sorts of lines in lanes, and of blocks, by networks: elements as records, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from bringup.dtypes import u64
from bringup.graph.index import ZERO, Bound, Expr
from bringup.integers import ceil_div, ceil_power_of_two, round_up
from bringup.loops.form import Buffer, Func, Role
from bringup.loops.library.builder import FuncBuilder, below, data
from bringup.loops.library.calls import OpCall
from bringup.loops.library.codes import KeyCode
from bringup.loops.library.float_order import FloatOrder
from bringup.loops.library.networks import Block, Code, Network
from bringup.loops.library.records import IndexedCode, Record, ValueCode
from bringup.records import record

#: Levels of a network at a time without vectors: with more, code is longer than it is faster.
_LEVELS_ALONE = 2


@record(eq=False)
class Lines:
    """``outer`` × ``inner`` lines of ``length`` elements, ``inner`` elements apart.

    code: of their records.  lanes, levels: as of `Network`.
    """

    call: OpCall
    code: Code
    outer: int
    length: int
    inner: int
    lanes: int
    levels: int

    @classmethod
    def of(cls, call: OpCall) -> Lines:
        """The lines of a call."""
        shape, dim, descending = call.types[0].shape, call.attrs["dim"], call.attrs["descending"]
        code: Code = ValueCode(call.types[0].dtype, descending)
        if len(call.operands) > 1:
            keys = call.operands[: call.attrs["num_keys"]]
            codes = tuple(KeyCode(x.dtype, descending) for x in keys)
            code = IndexedCode(codes, shape[dim], doubles=call.permutes)
        levels, lanes = _LEVELS_ALONE, 1
        if call.permutes:
            levels = max(1, (5 if call.target.registers >= 32 else 4) - code.words)
            lanes = call.target.lanes(code.word.bits)
        outer, inner = math.prod(shape[:dim]), math.prod(shape[dim + 1 :])
        return cls(call, code, outer, shape[dim], inner, lanes, levels)

    @property
    def count(self) -> int:
        """The number of lines."""
        return self.outer * self.inner

    def bytes_of(self, records: int) -> int:
        """Bytes of so many records."""
        return records * self.code.words * self.code.word.itemsize

    def func(self, name: str = "", more: Sequence[tuple[Role, Buffer]] = ()) -> Sorter:
        """A function of the operands, and of the results unless others are given."""
        params: list[tuple[Role, Buffer]] = [("in", x) for x in self.call.operands]
        params += more or [("out", y) for y in self.call.results]
        return Sorter(self, FuncBuilder(self.call.name + name, params))


class Sorter:
    """Encodes elements as records, and decodes records in order.

    b: what statements are added to.  lost: a flag for each lane, whether it had an element that
    records cannot represent; None if no element is such.
    """

    def __init__(self, lines: Lines, b: FuncBuilder) -> None:
        self.lines, self.b = lines, b
        self.network = Network(b, lines.code, lines.lanes, lines.levels)
        self.lost: Buffer | None = None

    # -- elements ----------------------------------------------------------------------------------

    def read(self, lane: Expr, place: Expr, index: Expr, *mask: Bound) -> Record:
        """The record of the element at a place; the last record outside the mask."""
        b, code = self.b, self.lines.code
        keys = self.lines.call.operands[: self.lines.call.attrs["num_keys"]]
        elements = [b.load(x, place, *mask) for x in keys]
        if isinstance(code, ValueCode):
            words = code.encode(b, elements[0])
            if self.lost is not None:
                dtype = self.lost.dtype
                ones, zeros = b.constant((1 << dtype.bits) - 1, dtype), b.constant(0, dtype)
                flag = b.op("select", code.is_lost(b, elements[0]), ones, zeros)
                b.store(self.lost, lane, flag, fold="or")
        else:
            words = code.encode(b, elements, b.index(index, u64))
        mask = tuple(bound for bound in mask if not bound.always)
        return self.network.chosen(b.inside(*mask), words, code.last(b)) if mask else words

    def write(self, words: Record, line: Expr, place: Expr, *mask: Bound) -> None:
        """Write the elements of a record.  line: where the line begins."""
        b, code, call = self.b, self.lines.code, self.lines.call
        if isinstance(code, ValueCode):
            b.store(call.results[0], place, code.decode(b, words), mask=mask)
            return
        source = code.index(b, words)
        mask = tuple(bound for bound in mask if not bound.always)
        if mask:
            source = b.op("select", b.inside(*mask), source, b.constant(0, u64))
        index = line + data(self.lines.length) * self.lines.inner
        for x, y in zip(call.operands, call.results, strict=True):
            b.store(y, place, b.load(x, index, *mask, named=[source]), mask=mask)

    # -- blocks whose lanes belong to one line -----------------------------------------------------

    def read_block(self, block: Block, line: Expr, first: Expr, left: Expr) -> None:
        """Fill a block with the elements of a line from number ``first`` on, of which it has
        ``left``.
        """
        b, lines, lanes = self.b, self.lines, self.lines.lanes

        def row(number: Expr, *mask: Bound) -> None:
            with self.network.vector() as lane:
                index = first + number * lanes + lane
                words = self.read(lane, line + index * lines.inner, index, *mask)
                block.set(number, lane, words)

        with b.loop("row", block.rows, until=left // lanes) as number:
            row(number)
        if lines.length % lanes:
            with b.where(below(left, block.rows * lanes)):
                number = left // lanes
                with self.network.vector() as lane:
                    index = first + number * lanes + lane
                    mask = below(index, lines.length)
                    words = self.read(lane, line + index * lines.inner, index, mask)
                    block.set(number, lane, words)
        self.fill(block, (left + (lanes - 1)) // lanes)

    def fill(self, block: Block, first: Expr) -> None:
        """Fill the rows from one on with records that come after all others."""
        with self.b.strided("rest", block.rows, 1, first) as row, self.network.vector() as lane:
            block.set(row, lane, self.lines.code.last(self.b))

    def store_ordered(self, block: Block, to: Buffer, first: Expr, stride: int) -> None:
        """Write a sorted block in order.  stride: elements of ``to`` from word to word."""
        b, lanes = self.b, self.lines.lanes
        for word in range(self.lines.code.words):
            # Each square of rows is transposed in registers.
            with (
                b.loop("square", block.rows // lanes) as square,
                b.loop("r", lanes, "unroll") as r,
                self.network.vector() as lane,
            ):
                value = b.load(block.buffer, block.place(square * lanes + lane, r, word))
                place = first + r * block.rows + square * lanes + lane
                b.store(to, place + word * stride, value)

    def write_ordered(
        self, records: Buffer, at: Expr, stride: int, line: Expr, part: tuple[Expr, int]
    ) -> None:
        """Write elements of a line.

        records: of them, in order, from ``at`` on; ``stride`` elements from word to word.
        part: the number of the first element, and how many there are if the line does not end
        before.
        """
        b, lines, lanes, (first, size) = self.b, self.lines, self.lines.lanes, part
        left = first * -1 + lines.length

        def vector(start: Expr, *, masked: bool) -> None:
            with self.network.vector() as lane:
                index = first + start + lane
                mask = [below(index, lines.length)] if masked else []
                words = [
                    b.load(records, at + start + lane + n * stride) for n in range(lines.code.words)
                ]
                self.write(words, line, line + index * lines.inner, *mask)

        with b.loop("v", size // lanes, until=left // lanes) as number:
            vector(number * lanes, masked=False)
        if lines.length % lanes:
            with b.where(below(left, size)):
                vector(left // lanes * lanes, masked=True)

    # -- what records cannot represent -------------------------------------------------------------

    def watch(self) -> None:
        """Begin to look for elements that records cannot represent."""
        code = self.lines.code
        if isinstance(code, ValueCode) and self.loses:
            dtype = code.raw
            self.lost = self.b.alloc("lost", dtype, self.lines.lanes, "register")
            with self.network.vector() as lane:
                self.b.store(self.lost, lane, self.b.constant(0, dtype))

    @property
    def loses(self) -> bool:
        """Whether there are elements that records cannot represent."""
        code = self.lines.code
        return isinstance(code, ValueCode) and code.dtype.is_float

    def order_of(self, line: Expr) -> FloatOrder:
        """The order of the line that begins at a place, which is of floats."""
        lines, code = self.lines, self.lines.code
        assert isinstance(code, ValueCode)
        memory = lines.call.operands[0], lines.call.results[0]
        return FloatOrder(self.b, code, *memory, line, lines.inner, lines.length)

    @contextmanager
    def where_lost(self) -> Iterator[bool]:
        """Where any lane has seen an element that records cannot represent.

        False if there are no such elements, so that nothing is to be added within.
        """
        if self.lost is None:
            yield False
            return
        b, dtype = self.b, self.lost.dtype
        total = b.variable("any", b.constant(0, dtype))
        with self.network.vector() as lane:
            b.set(total, b.load(self.lost, lane), fold="or")
        with b.where(test=b.compare("ne", b.load(total), b.constant(0, dtype))):
            yield True

    def restore(self, count: int, until: Expr | None, start: Callable[[Expr], Expr]) -> None:
        """Write what records could not represent of ``count`` lines, or up to an earlier end.

        start: where the line of a number begins.
        """
        with self.where_lost() as some:
            if some:
                with self.b.loop("line", count, until=until) as n:
                    order = self.order_of(start(n))
                    order.restore(*order.count(ZERO, order.length), ZERO, order.length)


def single_blocks(lines: Lines, size: int) -> Func:
    """Sort lines that are one block of ``size`` records each."""
    sorter = lines.func()
    b, network = sorter.b, sorter.network
    with b.lines(lines.outer, lines.inner) as (o, i):
        line = o * (lines.length * lines.inner) + i
        block = Block.of(network, size // lines.lanes)
        ordered = b.alloc("ordered", lines.code.word, block.buffer.size)
        sorter.watch()
        sorter.read_block(block, line, ZERO, Expr(lines.length))
        network.sort_block(block)
        sorter.store_ordered(block, ordered, ZERO, size)
        sorter.write_ordered(ordered, ZERO, size, line, (ZERO, size))
        sorter.restore(1, None, lambda _: line)
    return b.func()


def columns(lines: Lines) -> Func:
    """Sort lines in lanes; elements of the same index are neighbours in memory."""
    sorter = lines.func()
    b, network, lanes = sorter.b, sorter.network, lines.lanes
    with b.parallel(o=lines.outer, g=ceil_div(lines.inner, lanes)) as (o, g):
        start, first = o * (lines.length * lines.inner), g * lanes
        block = Block.of(network, ceil_power_of_two(lines.length))
        sorter.watch()
        with b.loop("e", lines.length) as e, network.vector() as lane:
            line = start + first + lane
            mask = below(first + lane, lines.inner)
            block.set(e, lane, sorter.read(lane, line + e * lines.inner, e, mask))
        sorter.fill(block, Expr(lines.length))
        network.sort_columns(block)
        with b.loop("e", lines.length) as e, network.vector() as lane:
            line = start + first + lane
            mask = below(first + lane, lines.inner)
            sorter.write(block.get(e, lane), line, line + e * lines.inner, mask)
        left = first * -1 + lines.inner
        sorter.restore(lanes, left, lambda n: start + first + n)
    return b.func()


def short_lines(lines: Lines) -> Func:
    """Sort lines in lanes; each line is contiguous, so squares are transposed in registers."""
    sorter = lines.func()
    b, network, lanes, length = sorter.b, sorter.network, lines.lanes, lines.length
    end = round_up(length, lanes)
    with b.parallel(g=ceil_div(lines.outer, lanes)) as (g,):
        block = Block.of(network, ceil_power_of_two(length))
        sorter.watch()
        with b.loop("s", end // lanes) as s:
            square, turned = (
                [
                    b.alloc(f"{name}{n}", lines.code.word, lanes**2, "register")
                    for n in range(lines.code.words)
                ]
                for name in ("square", "turned")
            )
            with b.loop("r", lanes, "unroll") as r, network.vector() as lane:
                index = s * lanes + lane
                mask = below(g * lanes + r, lines.outer), below(index, length)
                encoded = sorter.read(lane, (g * lanes + r) * length + index, index, *mask)
                for word, buffer in zip(encoded, square, strict=True):
                    b.store(buffer, r * lanes + lane, word)
            with b.loop("r", lanes, "unroll") as r, network.vector() as lane:
                for buffer, to in zip(square, turned, strict=True):
                    b.store(to, r * lanes + lane, b.load(buffer, lane * lanes + r))
            for n in range(min(block.rows, lanes)):
                with network.vector() as lane:
                    words = [b.load(buffer, lane + n * lanes) for buffer in turned]
                    block.set(s * lanes + n, lane, words)
        sorter.fill(block, Expr(end))
        network.sort_columns(block)
        with (
            b.loop("s", end // lanes) as s,
            b.loop("r", lanes, "unroll") as r,
            network.vector() as lane,
        ):
            index = s * lanes + lane
            words = block.get(index, r, below(index, block.rows))
            line = (g * lanes + r) * length
            mask = below(g * lanes + r, lines.outer), below(index, length)
            sorter.write(words, line, line + index, *mask)
        left = g * -lanes + lines.outer
        sorter.restore(lanes, left, lambda n: (g * lanes + n) * length)
    return b.func()


__all__ = ["Lines", "Sorter", "columns", "short_lines", "single_blocks"]

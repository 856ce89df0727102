"""Lines longer than a block: blocks are sorted, merged pair by pair, and then written.

All lines have the same number of blocks; the last block is padded with records that come after all
others.  All merges are one function, which reads the length of its runs.  A unit produces one part
of a merge's result.  A binary search finds where the part begins in both runs; then both runs pass
through a vector of records that holds the largest so far.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.dtypes import i64
from bringup.graph.index import ZERO, Expr
from bringup.integers import ceil_div
from bringup.loops.form import Buffer, Func, Role, Scalar
from bringup.loops.library.builder import FuncBuilder, at_least_one, data
from bringup.loops.library.calls import StepLoops
from bringup.loops.library.networks import Block, Lanes, Network
from bringup.loops.library.records import Record
from bringup.loops.library.vector_sorts import Lines
from bringup.records import record

#: Elements of the result that one unit produces.
_PART = 1 << 14
#: Independent merges in one unit, because one alone mostly waits for its own results.
_STREAMS = 2


@record(eq=False)
class _Runs:
    """The memory of all functions: the records twice, the counts of lost elements, run lengths.

    block: records of a block.  part: records of a merge's result that a unit produces.
    """

    lines: Lines
    block: int

    @property
    def part(self) -> int:
        """Records of a merge's result that a unit produces."""
        return min(_PART, self.block)

    @property
    def count(self) -> int:
        """Blocks of a line."""
        return ceil_div(self.lines.length, self.block)

    @property
    def padded(self) -> int:
        """Records of a line."""
        return self.count * self.block

    @property
    def total(self) -> int:
        """Records of all lines, and elements from the first words to the second ones."""
        return self.lines.count * self.padded

    @property
    def top(self) -> int:
        """Above the number of every record that a vector may begin with: runs end earlier."""
        return self.total + 2 * self.lines.lanes

    @property
    def size(self) -> int:
        """Elements of the records; after the last record, whole vectors are loaded by a mask."""
        return self.lines.code.words * self.total + 4 * self.lines.lanes


def merged_blocks(lines: Lines, block: int) -> StepLoops:
    """Sort lines that are several blocks of ``block`` records."""
    runs = _Runs(lines, block)
    sides = [Buffer(f"t{n}", lines.code.word, runs.size) for n in range(2)]
    counts = Buffer("counts", i64, 2 * lines.count * runs.count)
    merges = (runs.count - 1).bit_length()
    lengths = [Buffer(f"run{n}", i64, 1) for n in range(merges)]
    first = _lengths(runs, lengths), _blocks(runs, sides[0], counts)
    merge = _merge(runs, sides, lengths[0])
    last = _write(runs, sides[merges % 2], counts)
    call = lines.call
    given: list[tuple[Buffer, ...]] = [
        tuple(lengths),
        (*call.operands, sides[0], counts),
        *((sides[n % 2], sides[1 - n % 2], length) for n, length in enumerate(lengths)),
        (*call.operands, sides[merges % 2], counts, *call.results),
    ]
    funcs = (*first, *(merge for _ in lengths), last)
    return StepLoops(call, funcs, (*sides, counts, *lengths), given=tuple(given))


def _lengths(runs: _Runs, lengths: list[Buffer]) -> Func:
    """The lengths of the runs of every merge."""
    b = FuncBuilder(f"{runs.lines.call.name}_runs", [("out", length) for length in lengths])
    for n, length in enumerate(lengths):
        b.store(length, ZERO, b.constant(runs.block << n, i64))
    return b.func()


def _blocks(runs: _Runs, records: Buffer, counts: Buffer) -> Func:
    """Sort every block, and count the elements that its records cannot represent."""
    lines = runs.lines
    sorter = lines.func("_blocks", [("inout", records), ("out", counts)])
    b = sorter.b
    with b.parallel(o=lines.outer, i=lines.inner, c=runs.count) as (o, i, c):
        line, first = o * (lines.length * lines.inner) + i, c * runs.block
        number = (o * lines.inner + i) * runs.count + c
        left = first * -1 + lines.length
        block = Block.of(sorter.network, runs.block // lines.lanes)
        sorter.watch()
        sorter.read_block(block, line, first, left)
        sorter.network.sort_block(block)
        sorter.store_ordered(block, records, number * runs.block, runs.total)
        for n in range(2):
            b.store(counts, number * 2 + n, b.constant(0, i64))
        with sorter.where_lost() as some:
            if some:
                for n, lost in enumerate(sorter.order_of(line).count(first, runs.block, left)):
                    b.store(counts, number * 2 + n, lost)
    return b.func()


def _merge(runs: _Runs, sides: Sequence[Buffer], length: Buffer) -> Func:
    """Merge sorted runs."""
    source, target = sides
    name = f"{runs.lines.call.name}_merge"
    b = FuncBuilder(name, [("in", source), ("inout", target), ("in", length)])
    lines = runs.lines
    network = Network(b, lines.code, lines.lanes, lines.levels)
    with b.parallel(n=lines.count, p=runs.padded // runs.part) as (n, p):
        _Merge(runs, network, source, target, b.load(length)).run(n * runs.padded, p * runs.part)
    return b.func()


class _Merge:
    """Writes the merge of one part.  run: the length of runs."""

    def __init__(
        self, runs: _Runs, network: Network, source: Buffer, target: Buffer, run: Scalar
    ) -> None:
        self.runs, self.network, self.b = runs, network, network.b
        self.source, self.target, self.length = source, target, run

    def _number(self, value: int) -> Scalar:
        return self.b.constant(value, i64)

    def run(self, line: Expr, first: Expr) -> None:
        """The part from record ``first`` on of the line that begins at a record."""
        b, padded = self.b, self._number(self.runs.padded)
        base, offset = b.index(line, i64), b.index(first, i64)
        twice = b.op("add", self.length, self.length)
        start = b.op("and", offset, b.op("sub", self._number(0), twice))
        left = b.op("add", base, start)
        middle, stop = (
            b.op("add", base, b.op("min", b.op("add", start, length), padded))
            for length in (self.length, twice)
        )
        index = b.op("sub", offset, start)
        length = self.runs.part // _STREAMS
        streams: list[_Stream] = []
        for n in range(_STREAMS):
            wanted = b.op("add", index, self._number(n * length))
            from_left = self._merge_path((left, middle, stop), wanted)
            begin = (
                b.op("add", left, from_left),
                b.op("add", middle, b.op("sub", wanted, from_left)),
            )
            streams.append(_Stream(self, begin, (middle, stop)))
        lanes = self.network.lanes
        for n, stream in enumerate(streams):
            stream.begin(line + first + n * length)
        with b.loop("v", length // lanes - 1) as v:
            for n, stream in enumerate(streams):
                stream.go_on(line + first + n * length + (v + 1) * lanes)

    def record_at(self, index: Scalar) -> Record:
        """One record."""
        places = [data(self.runs.total) + n * self.runs.total for n in range(self._words)]
        return [self.b.load(self.source, place, named=[index]) for place in places]

    @property
    def _words(self) -> int:
        return self.network.code.words

    def _merge_path(self, ends: tuple[Scalar, Scalar, Scalar], index: Scalar) -> Scalar:
        """How many of the first ``index`` records of the result come from the left run.

        ends: where the left run begins, where the right one begins and where it ends.
        """
        b, one, (left, middle, stop) = self.b, self._number(1), ends
        least = b.op("sub", index, b.op("sub", stop, middle))
        low = b.variable("low", b.op("max", least, self._number(0)))
        high = b.variable("high", b.op("min", index, b.op("sub", middle, left)))
        more = b.variable("more", b.compare("lt", b.load(low), b.load(high)))
        with b.loop("halving", self.runs.padded.bit_length()), b.goes_on(more):
            bottom, top = b.load(low), b.load(high)
            centre = b.op("shr", b.op("add", bottom, top), one, kind="logical")
            x = self.record_at(b.op("add", left, centre))
            other = b.op("sub", b.op("sub", index, one), centre)
            y = self.record_at(b.op("add", middle, other))
            goes_right = self.network.before(y, x)
            bottom = b.op("select", goes_right, bottom, b.op("add", centre, one))
            top = b.op("select", goes_right, centre, top)
            b.set(low, bottom)
            b.set(high, top)
            b.set(more, b.compare("lt", bottom, top))
        return b.load(low)

    def vector(self, index: Scalar, stop: Scalar) -> Lanes:
        """The records from an index on; from ``stop`` on, records that come after all others."""
        b, runs = self.b, self.runs
        result = self.network.vectors("next")
        with self.network.vector() as lane:
            # Numbers have the bits of words: then so have the parts of the mask.
            range_ = runs.top if runs.lines.code.word.bits < 64 else 1 << 40
            left = data(range_, 1) + data(range_, 0) * -1 + lane * -1
            mask, named = at_least_one(left), [index, stop]
            inside = b.inside(mask, named=named)
            words = [
                b.load(self.source, data(runs.top) + lane + n * runs.total, mask, named=named)
                for n in range(self._words)
            ]
            last = self.network.code.last(b)
            result.set(lane, self.network.chosen(inside, words, last))
        return result


class _Stream:
    """A merge of two runs.  begin: the first records.  ends: where the runs end."""

    def __init__(
        self, merge: _Merge, begin: tuple[Scalar, Scalar], ends: tuple[Scalar, Scalar]
    ) -> None:
        self.merge, self.network, self.b, self.ends = merge, merge.network, merge.b, ends
        self.largest = self.network.vectors("largest")
        self.first = begin
        step = self.b.constant(self.network.lanes, i64)
        left, right = (self.b.op("add", index, step) for index in begin)
        self.left, self.right = self.b.variable("left", left), self.b.variable("right", right)

    def begin(self, to: Expr) -> None:
        """The first vector of the result."""
        both = [self.merge.vector(*each) for each in zip(self.first, self.ends, strict=True)]
        self._put(both[0], both[1], to)

    def go_on(self, to: Expr) -> None:
        """The next vector: of the run whose next record comes first, the next records are taken."""
        b, step = self.b, self.b.constant(self.network.lanes, i64)
        left, right = b.load(self.left), b.load(self.right)
        heads = [self._head(*each) for each in zip((left, right), self.ends, strict=True)]
        from_right = self.network.before(heads[1], heads[0])
        index = b.op("select", from_right, right, left)
        stop = b.op("select", from_right, self.ends[1], self.ends[0])
        self._put(self.largest, self.merge.vector(index, stop), to)
        after = b.op("add", index, step)
        b.set(self.left, b.op("select", from_right, left, after))
        b.set(self.right, b.op("select", from_right, after, right))

    def _head(self, index: Scalar, stop: Scalar) -> Record:
        """The first remaining record of a run; if there is none, one that comes after all."""
        b = self.b
        inside = b.op("min", index, b.op("sub", stop, b.constant(1, i64)))
        words = self.merge.record_at(inside)
        return self.network.chosen(b.compare("lt", index, stop), words, self.network.code.last(b))

    def _put(self, x: Lanes, y: Lanes, to: Expr) -> None:
        low, high = self.network.merged(x, y)
        with self.network.vector() as lane:
            for n, word in enumerate(low.get(lane)):
                self.b.store(self.merge.target, to + lane + n * self.merge.runs.total, word)
            self.largest.set(lane, high.get(lane))


def _write(runs: _Runs, records: Buffer, counts: Buffer) -> Func:
    """Write the elements of the sorted records."""
    lines = runs.lines
    params: list[tuple[Role, Buffer]] = [("in", records), ("in", counts)]
    params += [("out", y) for y in lines.call.results]
    sorter = lines.func("_write", params)
    b = sorter.b
    with b.parallel(o=lines.outer, i=lines.inner, q=ceil_div(lines.length, _PART)) as (o, i, q):
        line, number, first = o * (lines.length * lines.inner) + i, o * lines.inner + i, q * _PART
        at = number * runs.padded + first
        sorter.write_ordered(records, at, runs.total, line, (first, _PART))
        if sorter.loses:
            nans, zeros = (b.variable(name, b.constant(0, i64)) for name in ("nans", "zeros"))
            with b.loop("c", runs.count) as c:
                for n, total in enumerate((nans, zeros)):
                    lost = b.load(counts, (number * runs.count + c) * 2 + n)
                    b.set(total, lost, fold="add")
            some = b.op("add", b.load(nans), b.load(zeros))
            with b.where(test=b.compare("gt", some, b.constant(0, i64))):
                order = sorter.order_of(line)
                order.restore(b.load(nans), b.load(zeros), first, _PART)
    return b.func()


__all__ = ["merged_blocks"]

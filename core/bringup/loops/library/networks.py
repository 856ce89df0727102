"""Sorting networks over memory: records in vectors, compared and exchanged without a branch.

A record is one or more words of one dtype, in order of significance.  Equal records are
indistinguishable.  A block is a matrix whose rows are vectors of records.  Element i of the sorted
block is in lane i // rows of row i % rows, so that nearly all exchanges are between whole vectors.
Several levels of the bitonic network run on rows in registers before these are stored again.  Every
merge begins with a mirrored level, after which all exchanges have the same direction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from bringup.graph.index import Bound, Expr
from bringup.loops.form import Buffer, Scalar
from bringup.loops.library.builder import FuncBuilder
from bringup.loops.library.records import IndexedCode, Record, ValueCode
from bringup.records import record

Code = ValueCode | IndexedCode


def at_lane(lane: Expr, mask: int) -> Expr:
    """The number of a lane with the bits of ``mask`` changed."""
    result, bit = lane + mask, 1
    while bit <= mask:
        if mask & bit:
            result = result + (lane // bit % 2) * (-2 * bit)
        bit *= 2
    return result


def is_upper(b: FuncBuilder, lane: Expr, distance: int) -> Scalar:
    """Whether a lane is the upper one of two at a distance."""
    return b.inside(Bound(lane // distance % 2, 1, 2))


@record(eq=False)
class Network:
    """Writes networks for records of a code, ``lanes`` of them in a vector.

    levels: levels of the network that run on rows in registers.
    """

    b: FuncBuilder
    code: Code
    lanes: int
    levels: int

    @contextmanager
    def vector(self) -> Iterator[Expr]:
        """The lanes of a vector."""
        if self.lanes == 1:
            yield Expr()
        else:
            with self.b.loop("l", self.lanes, "vector") as lane:
                yield lane

    # -- records in registers ----------------------------------------------------------------------

    def before(self, x: Record, y: Record) -> Scalar:
        """Whether ``x`` comes before ``y``."""
        b = self.b
        less = [b.compare("lt", p, q) for p, q in zip(x, y, strict=True)]
        result = less[-1]
        for n in range(len(less) - 2, -1, -1):
            tie = b.compare("eq", x[n], y[n])
            result = b.op("or", less[n], b.op("and", tie, result))
        return result

    def chosen(self, which: Scalar, x: Record, y: Record) -> Record:
        """One of two records."""
        return [self.b.op("select", which, p, q) for p, q in zip(x, y, strict=True)]

    def exchange(self, x: Record, y: Record) -> tuple[Record, Record]:
        """The smaller and the larger of two records."""
        if self.code.words == 1 and not self.code.word.is_float:
            return [self.b.op("min", *x, *y)], [self.b.op("max", *x, *y)]
        first = self.before(x, y)
        return self.chosen(first, x, y), self.chosen(first, y, x)

    def split(self, x: Record, y: Record, upper: Scalar) -> tuple[Record, Record]:
        """The smaller and the larger record, exchanged in ``upper`` lanes."""
        if self.code.words == 1:
            low, high = self.exchange(x, y)
            return self.chosen(upper, high, low), self.chosen(upper, low, high)
        keep = self.b.op("xor", self.before(x, y), upper)
        return self.chosen(keep, x, y), self.chosen(keep, y, x)

    def vectors(self, name: str) -> Lanes:
        """Registers for a vector of records."""
        buffers = [
            self.b.alloc(f"{name}{n}", self.code.word, self.lanes, "register")
            for n in range(self.code.words)
        ]
        return Lanes(self, tuple(buffers))

    def across(self, vectors: Sequence[Lanes], first: int) -> list[Lanes]:
        """Exchange lanes at distances ``first`` … 1: the smaller record goes to the lower lane."""
        while first:
            results = [self.vectors("crossed") for _ in vectors]
            with self.vector() as lane:
                upper = is_upper(self.b, lane, first)
                for x, to in zip(vectors, results, strict=True):
                    to.set(lane, self.split(x.get(lane), x.get(lane, first), upper)[0])
            vectors, first = results, first // 2
        return list(vectors)

    def merged(self, x: Lanes, y: Lanes) -> tuple[Lanes, Lanes]:
        """Two sorted vectors as one sorted sequence of twice the length."""
        low, high = self.vectors("low"), self.vectors("high")
        with self.vector() as lane:
            pair = self.exchange(x.get(lane), y.get(lane, self.lanes - 1))
            low.set(lane, pair[0])
            high.set(lane, pair[1])
        low, high = self.across([low, high], self.lanes // 2)
        return low, high

    # -- blocks ------------------------------------------------------------------------------------

    def sort_columns(self, block: Block) -> None:
        """Sort each lane of a block."""
        self._sort(block, ())

    def sort_block(self, block: Block) -> None:
        """Sort a block: its columns, and then merge columns."""
        self._sort(block, [2 << n for n in range(self.lanes.bit_length() - 1)])

    def _sort(self, block: Block, widths: Sequence[int]) -> None:
        """Sort columns, and then merge as many of them as ``widths`` say, one width by the other.

        All merges are iterations of one loop, so that each pass over the rows is written once.
        """
        b, count, most = self.b, block.rows.bit_length() - 1, self.levels
        first = min(most, count)
        if first:
            self._pass(block, first, first, self._sorted)
        down = count - first
        total = down + len(widths)
        with b.loop("merge", total) as merge:
            for size in range(first + 1, count + 1):
                with b.where(Bound(merge, size - first - 1, size - first)):
                    self._pass(block, (size - 1) % most + 1, size, self._mirror)
            for n, width in enumerate(widths):
                with b.where(Bound(merge, down + n, down + n + 1)):
                    self._columns(block, width)
            rest = count % most
            if rest:
                with b.where(Bound(merge, down, total)):
                    self._pass(block, rest, count, self._halve)
            for size in range(count - rest, 0, -most):
                with b.where(Bound(merge, min(size - first, down), total)):
                    self._pass(block, most, size, self._halve)

    def _pass(
        self, block: Block, levels: int, size: int, run: Callable[[list[Record]], list[Record]]
    ) -> None:
        """Do ``levels`` levels on each ``2^size`` rows.

        The rows of a group are ``2^(size − levels)`` apart.  If the first level is mirrored, half
        of them are counted from the front and half from the end.
        """
        b, count, step = self.b, 1 << levels, 1 << (size - levels)
        half = count // 2 if run == self._mirror else count
        with b.loop("group", block.rows >> size) as group, b.loop("within", step) as i:
            start = group * (1 << size)
            rows = [start + i + n * step for n in range(half)]
            rows += [start + i * -1 + ((n + 1) * step - 1) for n in range(half, count)]
            with self.vector() as lane:
                records = run([block.get(row, lane) for row in rows])
                for row, words in zip(rows, records, strict=True):
                    block.set(row, lane, words)

    def _sorted(self, records: list[Record]) -> list[Record]:
        """Batcher's lost-even merge sort."""
        for low, high in odd_even_pairs(len(records)):
            records[low], records[high] = self.exchange(records[low], records[high])
        return records

    def _mirror(self, records: list[Record]) -> list[Record]:
        """The first level of a merge, whose pairs are symmetric, then the levels of each half."""
        half = len(records) // 2
        for n in range(half):
            records[n], records[-1 - n] = self.exchange(records[n], records[-1 - n])
        # The rows of both halves are in the order of memory.
        return self._halve(records[:half]) + self._halve(records[half:])

    def _halve(self, records: list[Record]) -> list[Record]:
        """Levels of distances half the group … 1."""
        distance = len(records) // 2
        while distance:
            for n in range(len(records)):
                if not n & distance:
                    pair = self.exchange(records[n], records[n | distance])
                    records[n], records[n | distance] = pair
            distance //= 2
        return records

    def _columns(self, block: Block, width: int) -> None:
        """The mirrored level of merging ``width`` lanes, and those between lanes of one row."""
        b, rows = self.b, block.rows
        with b.loop("pair", rows // 2) as front:
            back = front * -1 + (rows - 1)
            y, low, high = (self.vectors(name) for name in ("back", "low", "high"))
            with self.vector() as lane:
                y.set(lane, block.get(back, lane))
            with self.vector() as lane:
                other = y.get(lane, width - 1)
                upper = is_upper(b, lane, width // 2)
                pair = self.split(block.get(front, lane), other, upper)
                low.set(lane, pair[0])
                high.set(lane, pair[1])
            mirrored = Lanes(self, high.buffers, width - 1)
            results = self.across([low, mirrored], width // 4)
            with self.vector() as lane:
                for row, vector in zip((front, back), results, strict=True):
                    block.set(row, lane, vector.get(lane))


@record(eq=False)
class Lanes:
    """A vector of records in registers.  view: which bits of the numbers of lanes are changed."""

    network: Network
    buffers: tuple[Buffer, ...]
    view: int = 0

    def get(self, lane: Expr, mask: int = 0) -> Record:
        """The record of the lane whose number differs in the bits of ``mask``."""
        index = at_lane(lane, mask ^ self.view)
        return [self.network.b.load(buffer, index) for buffer in self.buffers]

    def set(self, lane: Expr, words: Record) -> None:
        """Change the record of a lane."""
        for buffer, word in zip(self.buffers, words, strict=True):
            self.network.b.store(buffer, lane, word)


@record(eq=False)
class Block:
    """A block of ``rows`` rows in memory: all first words, all second words, and so on."""

    network: Network
    buffer: Buffer
    rows: int

    @classmethod
    def of(cls, network: Network, rows: int) -> Block:
        """Scratch memory for a block."""
        size = network.code.words * rows * network.lanes
        return cls(network, network.b.alloc("block", network.code.word, size), rows)

    def place(self, row: Expr, lane: Expr, word: int) -> Expr:
        """Where a word stands."""
        return (row + word * self.rows) * self.network.lanes + lane

    def get(self, row: Expr, lane: Expr, *mask: Bound) -> Record:
        """A record."""
        b = self.network.b
        return [
            b.load(self.buffer, self.place(row, lane, n), *mask)
            for n in range(self.network.code.words)
        ]

    def set(self, row: Expr, lane: Expr, words: Record) -> None:
        """Change a record."""
        for n, word in enumerate(words):
            self.network.b.store(self.buffer, self.place(row, lane, n), word)


def odd_even_pairs(count: int) -> list[tuple[int, int]]:
    """Batcher's network for a power of two: the pairs to exchange, in order.

    >>> odd_even_pairs(4)
    [(0, 1), (2, 3), (0, 2), (1, 3), (1, 2)]
    """
    pairs: list[tuple[int, int]] = []
    block = 1
    while block < count:
        distance = block
        while distance:
            for start in range(distance % block, count - distance, 2 * distance):
                for n in range(start, min(start + distance, count - distance)):
                    if n // (2 * block) == (n + distance) // (2 * block):
                        pairs.append((n, n + distance))
            distance //= 2
        block *= 2
    return pairs


__all__ = ["Block", "Code", "Lanes", "Network", "odd_even_pairs"]

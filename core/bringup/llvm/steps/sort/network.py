"""Sorting networks over memory: records in vectors, compared and exchanged without a branch.

A record is one or more words of one type, in order of significance.  Equal records are
indistinguishable.  A block is a matrix whose rows are vectors of records.  Element i of the sorted
block is in lane i // rows of row i % rows, so that nearly all exchanges are between whole vectors.
Several levels of the bitonic network run on rows in registers before these are stored again.  Every
merge begins with a mirrored level, after which all exchanges have the same direction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bringup.integers import ceil_div
from bringup.llvm import text as ir
from bringup.llvm.text import Builder, Function, Module, Param, Type, Val, i64_const, vec
from bringup.llvm.text import const_vector as lanes_of
from bringup.records import record

Record = list[Val]
#: The addresses of the first words of a block's records, of the second words, and so on.
Words = list[Val]


@record
class Network:
    """Emits networks for records of ``words`` words of ``type``, ``lanes`` records in a vector.

    All sorts of such records in a module share its functions.
    word_stride: elements from the first words of a block to the second words.
    levels: levels of the network that run on rows in registers.
    """

    module: Module
    type: Type
    words: int
    lanes: int
    word_stride: int
    levels: int

    @property
    def vector(self) -> Type:
        """A vector of one word."""
        return vec(self.type, self.lanes)

    # -- records in registers ----------------------------------------------------------------------

    def before(self, b: Builder, x: Record, y: Record) -> Val:
        """Lanes where ``x`` comes before ``y``."""
        less = [
            b.fcmp("olt", p, q) if self.type.is_float else b.icmp("slt", p, q)
            for p, q in zip(x, y, strict=True)
        ]
        result = less[-1]
        for n in range(len(less) - 2, -1, -1):
            tie = b.icmp("eq", x[n], y[n])
            result = b.or_(less[n], b.and_(tie, result))
        return result

    def exchange(self, b: Builder, x: Record, y: Record) -> tuple[Record, Record]:
        """The smaller and the larger of each lane's two records."""
        if self.words == 1 and not self.type.is_float:
            low = b.intrinsic("llvm.smin", x[0].type, (x[0], y[0]))
            return [low], [b.intrinsic("llvm.smax", x[0].type, (x[0], y[0]))]
        first = self.before(b, x, y)
        low_high = [
            (b.select(first, p, q), b.select(first, q, p)) for p, q in zip(x, y, strict=True)
        ]
        return [p for p, _ in low_high], [q for _, q in low_high]

    def permuted(self, b: Builder, x: Record, lanes: Sequence[int]) -> Record:
        """The records, lane i being that of ``lanes[i]``."""
        return [b.shufflevector(p, None, lanes) for p in x]

    def across(self, b: Builder, x: Record, distance: int) -> Record:
        """Exchange lanes at a distance: the smaller record goes to the lower lane."""
        upper = [bool(i & distance) for i in range(self.lanes)]
        other = self.permuted(b, x, [i ^ distance for i in range(self.lanes)])
        return self.split(b, x, other, upper)[0]

    def split(
        self, b: Builder, x: Record, y: Record, upper: Sequence[bool]
    ) -> tuple[Record, Record]:
        """The smaller and the larger records, exchanged in ``upper`` lanes."""
        mask = lanes_of(ir.i1, upper)
        if self.words == 1:
            low, high = self.exchange(b, x, y)
            return [b.select(mask, high[0], low[0])], [b.select(mask, low[0], high[0])]
        keep = b.xor(self.before(b, x, y), mask)
        pairs = [(b.select(keep, p, q), b.select(keep, q, p)) for p, q in zip(x, y, strict=True)]
        return [p for p, _ in pairs], [q for _, q in pairs]

    def merged(self, b: Builder, x: Record, y: Record) -> tuple[Record, Record]:
        """Two sorted vectors as one sorted sequence of twice the length."""
        mirrored = self.permuted(b, y, range(self.lanes - 1, -1, -1))
        low, high = self.exchange(b, x, mirrored)
        distance = self.lanes // 2
        while distance:
            low, high = self.across(b, low, distance), self.across(b, high, distance)
            distance //= 2
        return low, high

    # -- records in memory -------------------------------------------------------------------------

    def words_at(self, b: Builder, pointer: Val) -> Words:
        """The words of the block at an address."""
        return [b.gep(pointer, n * self.word_stride, self.type) for n in range(self.words)]

    def load(self, b: Builder, block: Words, row: Val) -> Record:
        """A row of a block."""
        return [
            b.load(self.vector, at, self.type.bits // 8) for at in self._addresses(b, block, row)
        ]

    def store(self, b: Builder, record: Record, block: Words, row: Val) -> None:
        """Write a row of a block."""
        for word, at in zip(record, self._addresses(b, block, row), strict=True):
            b.store(word, at, self.type.bits // 8)

    def _addresses(self, b: Builder, block: Words, row: Val) -> list[Val]:
        return [b.gep(words, row, self.vector) for words in block]

    # -- blocks ------------------------------------------------------------------------------------

    def sort_columns(self, b: Builder, block: Words, rows: int) -> None:
        """Sort each lane of a block; the number of rows is a power of two."""
        count = rows.bit_length() - 1
        levels = min(self.levels, count)
        if levels:
            self._call(b, "sorted", levels, block, rows, 1 << levels)
        for size in range(levels + 1, count + 1):
            groups = ceil_div(size, self.levels)
            first = size - self.levels * (groups - 1)
            self._call(b, "mirrored", first, block, rows, 1 << size)
            self._halves(b, block, rows, size - first)

    def sort_block(self, b: Builder, block: Words, rows: int) -> None:
        """Sort a block: its columns, and then merge columns.  The rows are a power of two."""
        self.sort_columns(b, block, rows)
        width = 2
        while width <= self.lanes:
            self._call(b, "columns", width, block, rows, 0)
            self._halves(b, block, rows, rows.bit_length() - 1)
            width *= 2

    def _halves(self, b: Builder, block: Words, rows: int, count: int) -> None:
        """The levels of distances 2^(count − 1) … 1 rows."""
        while count:
            levels = (count - 1) % self.levels + 1
            self._call(b, "halved", levels, block, rows, 1 << count)
            count -= levels

    def _call(self, b: Builder, what: str, number: int, block: Words, rows: int, size: int) -> None:
        name = f"bringup.sort.{self.vector.code}x{self.words}.{what}{number}"
        function = self.module.functions.get(name) or self._define(name, what, number)
        b.call(function.callee, [i64_const(rows), i64_const(size), *block])

    def _define(self, name: str, what: str, number: int) -> Function:
        params: list[Param] = [("rows", ir.i64), ("size", ir.i64)]
        params += [(f"words{n}", ir.ptr) for n in range(self.words)]
        attributes = "nounwind noinline"
        function = self.module.function(name, ir.void, params, attributes, linkage="internal")
        b = Builder(function.block("entry"))
        if what == "columns":
            self._emit_columns(b, function, number)
        else:
            emit = {"sorted": self._small, "mirrored": self._mirror, "halved": self._halve}[what]
            self._emit_groups(b, function, number, emit)
        b.ret()
        return function

    def _emit_groups(
        self,
        b: Builder,
        function: Function,
        levels: int,
        run: Callable[[Builder, list[Record]], list[Record]],
    ) -> None:
        """Loops over the groups of rows on which ``run`` does ``levels`` levels.

        The rows of a group are ``size / 2^levels`` apart.  In a mirrored level, half of them are
        counted from the front and half from the end of each ``size`` rows.
        """
        rows, size, *block = function.args
        step = b.lshr(size, i64_const(levels))
        mirrored = run == self._mirror
        count = 1 << levels
        with b.loop(i64_const(0), rows, size) as outer, b.loop(i64_const(0), step) as inner:
            front = b.add(outer.index, inner.index)
            last = b.sub(b.sub(b.add(outer.index, size), i64_const(1)), inner.index)
            group: list[Val] = []
            for n in range(count):
                if mirrored and n >= count // 2:
                    group.append(b.sub(last, b.mul(step, i64_const(count - 1 - n))))
                else:
                    group.append(b.add(front, b.mul(step, i64_const(n))))
            records = run(b, [self.load(b, block, row) for row in group])
            for record, row in zip(records, group, strict=True):
                self.store(b, record, block, row)

    def _small(self, b: Builder, records: list[Record]) -> list[Record]:
        """Batcher's lost-even merge sort."""
        for low, high in odd_even_pairs(len(records)):
            records[low], records[high] = self.exchange(b, records[low], records[high])
        return records

    def _mirror(self, b: Builder, records: list[Record]) -> list[Record]:
        """The first level of a merge, whose pairs are symmetric, then the levels of each half."""
        count = len(records)
        for n in range(count // 2):
            records[n], records[-1 - n] = self.exchange(b, records[n], records[-1 - n])
        half = count // 2
        # The rows of both halves are in the order of memory.
        return self._halve(b, records[:half]) + self._halve(b, records[half:])

    def _halve(self, b: Builder, records: list[Record]) -> list[Record]:
        """Levels of distances half the group … 1."""
        distance = len(records) // 2
        while distance:
            for n in range(len(records)):
                if not n & distance:
                    pair = self.exchange(b, records[n], records[n | distance])
                    records[n], records[n | distance] = pair
            distance //= 2
        return records

    def _emit_columns(self, b: Builder, function: Function, width: int) -> None:
        """The mirrored level of merging ``width`` lanes, and those between lanes of one row."""
        rows, _, *block = function.args
        half = b.lshr(rows, i64_const(1))
        mirrored = [i ^ (width - 1) for i in range(self.lanes)]
        upper = [bool(i & (width // 2)) for i in range(self.lanes)]
        with b.loop(i64_const(0), half) as loop:
            last = b.sub(b.sub(rows, i64_const(1)), loop.index)
            x, y = self.load(b, block, loop.index), self.load(b, block, last)
            x, y = self.split(b, x, self.permuted(b, y, mirrored), upper)
            y = self.permuted(b, y, mirrored)
            distance = width // 4
            while distance:
                x, y = self.across(b, x, distance), self.across(b, y, distance)
                distance //= 2
            self.store(b, x, block, loop.index)
            self.store(b, y, block, last)


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

"""Stable sorts by blocks of threads, digit by digit of the keys' codes.

A short line has a thread for each element, which counts the elements that come before it.  A longer
line is sorted in the memory that a block shares, four bits at a time, the lowest first: a thread
counts the digits of its own elements, one after the other; the running sum of all counts, by digit
and then by thread, says where each element goes.

A line that is too long for a block takes a pass over memory for each digit of up to eight bits: the
digits of every tile are counted, the counts are summed by digit and then by tile, and the elements
are moved, each tile sorted by the digit first, so that neighbours are written together.  Passes of
one form are one function, which reads where its digit begins.

Where an element goes follows from the order of items and threads, and is the same in every run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from bringup.dtypes import DType, i32, u16, u32
from bringup.errors import UnsupportedError
from bringup.graph.index import Bound, Expr
from bringup.integers import ceil_div, ceil_power_of_two
from bringup.loops.form import Buffer, Func, Role, Scalar
from bringup.loops.library.builder import FuncBuilder, at_least_one, below, data
from bringup.loops.library.calls import OpCall, StepLoops
from bringup.loops.library.codes import KeyCode
from bringup.loops.library.exchange import BlockFold, threads_of
from bringup.loops.library.row_scans import row_scan
from bringup.records import record

#: Bits of the digits that a block sorts by at a time, and of those of a pass over memory.
_LOCAL_BITS, _PASS_BITS = 4, 8
_RADIX = 1 << _LOCAL_BITS
#: The most elements of a thread, and the most bytes of its keys in a pass over memory.
_ITEMS, _KEY_BYTES = 16, 64
#: The longest line: positions have 32 bits.
LONGEST = 1 << 31


@record(eq=False)
class SortLines:
    """The lines of a sort: ``outer`` × ``inner``, of ``length`` elements that are ``inner`` apart.

    operands, results: flat.  keys: of the first operands.
    order: receives the position in the line that each element came from; None if nobody asks.
    """

    call: OpCall
    operands: tuple[Buffer, ...]
    results: tuple[Buffer, ...]
    keys: tuple[KeyCode, ...]
    outer: int
    length: int
    inner: int
    order: Buffer | None = None

    @classmethod
    def of(cls, call: OpCall) -> SortLines:
        """The lines of a sort's operands."""
        shape, dim, descending = call.types[0].shape, call.attrs["dim"], call.attrs["descending"]
        keys = call.operands[: call.attrs["num_keys"]]
        codes = tuple(KeyCode(x.dtype, descending) for x in keys)
        outer, inner = math.prod(shape[:dim]), math.prod(shape[dim + 1 :])
        return cls(call, call.operands, call.results, codes, outer, shape[dim], inner)

    @property
    def count(self) -> int:
        """The number of lines."""
        return self.outer * self.inner

    @property
    def tracked(self) -> bool:
        """Whether more than one key is moved: then so are the positions that elements came from."""
        return len(self.operands) > 1 or self.order is not None

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """The results, and the order if somebody asks for it."""
        return self.results if self.order is None else (*self.results, self.order)

    def func(self, name: str) -> FuncBuilder:
        """A function from the operands to the outputs."""
        params: list[tuple[Role, Buffer]] = [("in", x) for x in self.operands]
        name = self.call.name + name
        return FuncBuilder(name, [*params, *(("out", y) for y in self.outputs)])

    def start(self, line: Expr) -> Expr:
        """The index of a line's first element."""
        if self.inner == 1:
            return line * self.length
        return line // self.inner * (self.length * self.inner) + line % self.inner

    def store(
        self,
        b: FuncBuilder,
        start: Expr,
        place: tuple[Expr, Scalar | None],
        element: Scalar | None,
        source: Scalar | None,
    ) -> None:
        """Write an element with all that belongs to it.

        place: its position, whose `Dyn` is the scalar.  element: of the first key, if it is known.
        source: the position that it came from.
        """
        position, named = place
        target = start + position * self.inner
        names = [] if named is None else [named]
        come = [] if source is None else [source]
        for number, (x, y) in enumerate(zip(self.operands, self.results, strict=True)):
            value = element
            if number or value is None:
                value = b.load(x, start + data(self.length) * self.inner, named=come)
            b.store(y, target, value, named=names)
        if self.order is not None and source is not None:
            b.store(self.order, target, b.convert(source, self.order.dtype), named=names)


def radix_sort(lines: SortLines) -> StepLoops:
    """Sort all lines.  Raises UnsupportedError for a line too long."""
    call, length = lines.call, lines.length
    if length >= LONGEST:
        raise UnsupportedError(
            f"sort of {length} elements: threads sort lines of less than {LONGEST}",
            fix="sort parts of the line and merge them, or sort on the host",
        )
    if length <= call.warp:
        return StepLoops(call, (_sort_by_counting(lines),))
    if length <= call.threads * _ITEMS:
        return StepLoops(call, (_sort_in_block(lines),))
    return _LongSort(lines).loops()


def _sort_by_counting(lines: SortLines) -> Func:
    """A thread for each element of some lines."""
    call, length = lines.call, lines.length
    group = min(ceil_power_of_two(length), call.threads)
    each = min(call.threads, max(call.warp, ceil_power_of_two(lines.count * group))) // group
    b = lines.func("")
    with b.loop("b", ceil_div(lines.count, each), "block") as block:
        shared = [b.alloc("codes", key.raw, each * group, "shared") for key in lines.keys]
        with b.loop("g", each, "thread") as g, b.loop("p", group, "thread") as position:
            line = block * each + g
            exists = (below(line, lines.count), below(position, length))
            start = lines.start(line)
            place = start + position * lines.inner
            own: list[Scalar] = []
            for key, x, codes in zip(lines.keys, lines.operands, shared, strict=False):
                own.append(key.encode(b, key.bits_of(b, b.load(x, place, *exists))))
                b.store(codes, g * group + position, own[-1])
            b.barrier()
            rank = b.variable("rank", b.constant(0, i32))
            with b.loop("e", length) as e:
                before = b.inside(Bound(position + e * -1, 1, group + 1))
                for code, codes in reversed(list(zip(own, shared, strict=True))):
                    other = b.load(codes, g * group + e)
                    tie = b.op("and", b.compare("eq", other, code), before)
                    before = b.op("or", b.compare("lt", other, code), tie)
                b.set(rank, b.convert(before, i32), fold="add")
            with b.where(*exists):
                target, source = b.load(rank), b.index(position, i32)
                lines.store(b, start, (data(length), target), None, source)
    return b.func()


@record(eq=False)
class _Tile:
    """Elements of a line in the memory that a block shares, to be sorted by digits.

    key: whose codes these are, or whose bits if not ``coded``.
    codes: where they are.  order: where they came from; None if that is not moved.
    end: how many there are; those behind come last by their digits where it is None.
    """

    b: FuncBuilder
    call: OpCall
    key: KeyCode
    threads: int
    items: int
    codes: Buffer
    order: Buffer | None
    counts: Buffer
    parts: Buffer
    thread: Expr
    place: tuple[Expr, Expr]
    coded: bool
    end: Expr | None = None

    def at(self, position: Expr) -> Expr:
        """Where an element is, such that neighbouring threads use different banks."""
        return position if self.items % 2 else position + position // 32

    def digit(self, code: Scalar, shift: Scalar, radix: int) -> Scalar:
        """A digit of an element, as i32.  shift: its lowest bit, as u32."""
        code = code if self.coded else self.key.encode(self.b, code)
        return self.key.digit(self.b, code, shift, radix)

    def sort(self, shift: Scalar, bits: int = _LOCAL_BITS) -> None:
        """Sort by one digit of so many bits.  Threads come from a barrier and go to one."""
        b, items, threads = self.b, self.items, self.threads
        moved = [self.codes] if self.order is None else [self.codes, self.order]
        own = [b.alloc("own", buffer.dtype, items, "register") for buffer in moved]
        for mine, buffer in zip(own, moved, strict=True):
            with b.loop("j", items, "unroll") as j:
                b.store(mine, j, b.load(buffer, self.at(self.thread * items + j)))
        with b.loop("d", _RADIX, "unroll") as d:
            b.store(self.counts, d * threads + self.thread, b.constant(0, u16))
        digits = b.alloc("tile_digits", i32, items, "register")
        ranks = b.alloc("tile_ranks", u16, items, "register")
        count = data(_RADIX) * threads + self.thread
        with b.loop("j", items, "unroll") as j:
            digit = self.digit(b.load(own[0], j), shift, 1 << bits)
            if self.end is not None:
                left = self.end + (self.thread * items + j) * -1
                exists = b.inside(at_least_one(left))
                digit = b.op("select", exists, digit, b.constant((1 << bits) - 1, i32))
            before = b.load(self.counts, count, named=[digit])
            b.store(digits, j, digit)
            b.store(ranks, j, before)
            more = b.op("add", before, b.constant(1, u16))
            b.store(self.counts, count, more, named=[digit])
        b.barrier()
        self._sum_counts()
        b.barrier()
        with b.loop("j", items, "unroll") as j:
            first = b.load(self.counts, count, named=[b.load(digits, j)])
            rank = b.convert(b.op("add", first, b.load(ranks, j)), i32)
            for mine, buffer in zip(own, moved, strict=True):
                b.store(buffer, self.at(data(items * threads)), b.load(mine, j), named=[rank])
        b.barrier()

    def _sum_counts(self) -> None:
        """Replace the counts by the sums of those before them; each thread has neighbours."""
        b = self.b
        sums = b.alloc("tile_sums", u16, _RADIX, "register")
        vector = 8
        mine = self.thread * _RADIX
        with b.loop("h", _RADIX // vector, "unroll") as h, b.loop("v", vector, "vector") as v:
            b.store(sums, h * vector + v, b.load(self.counts, mine + h * vector + v))
        before = [b.constant(0, u16)]
        for n in range(_RADIX):
            before.append(b.op("add", before[-1], b.load(sums, Expr(n))))
        warps = self.threads // self.call.warp
        fold = BlockFold(b, "add", i32, warps, self.call.warp)
        total = b.convert(before.pop(), i32)
        start, _ = fold.across_block(total, self.parts, Expr(), self.place)
        start = b.convert(start, u16)
        for n, value in enumerate(before):
            b.store(sums, Expr(n), b.op("add", start, value))
        with b.loop("h", _RADIX // vector, "unroll") as h, b.loop("v", vector, "vector") as v:
            b.store(self.counts, mine + h * vector + v, b.load(sums, h * vector + v))


@contextmanager
def _tile(
    b: FuncBuilder,
    lines: SortLines,
    key: KeyCode,
    shape: tuple[int, int],
    order: DType | None,
    end: Expr | None = None,
) -> Iterator[_Tile]:
    """The memory of a tile, and the threads of a block.

    shape: threads, and elements of each.  order: of the positions that are moved, if they are.
    """
    threads, items = shape
    size = threads * items
    size += 0 if items % 2 else size // 32
    widest = max((k.raw for k in lines.keys), key=lambda dtype: dtype.bits)
    codes = b.alloc("tile_codes", widest, size, "shared")
    moved = None if order is None else b.alloc("tile_order", order, size, "shared")
    counts = b.alloc("tile_counts", u16, _RADIX * threads, "shared")
    parts = b.alloc("parts", i32, threads // lines.call.warp, "shared")
    coded = moved is not None or key.is_exact
    with threads_of(b, lines.call, threads) as (thread, place):
        memory = codes, moved, counts, parts
        yield _Tile(b, lines.call, key, threads, items, *memory, thread, place, coded, end)


def _sort_in_block(lines: SortLines) -> Func:
    """A block for each line."""
    call, length = lines.call, lines.length
    threads = min(call.threads, max(call.warp, ceil_power_of_two(ceil_div(length, _ITEMS // 2))))
    items = ceil_div(length, threads)
    tracked = lines.tracked or not lines.keys[0].is_exact
    order = None if not tracked else u16 if threads * items <= 1 << 16 else i32
    b = lines.func("")
    with (
        b.loop("b", lines.count, "block") as line,
        _tile(b, lines, lines.keys[0], (threads, items), order) as tile,
    ):
        start = lines.start(line)
        for number in reversed(range(len(lines.keys))):
            key = lines.keys[number]
            _fill(tile, lines, number, start, is_first=number == len(lines.keys) - 1)
            with b.loop("k", ceil_div(key.bits, _LOCAL_BITS)) as k:
                replace(tile, key=key).sort(b.index(k * _LOCAL_BITS, u32))
        with b.loop("n", items, "unroll") as n:
            position = n * threads + tile.thread
            with b.where(below(position, length)):
                source = element = None
                if tile.order is not None:
                    source = b.convert(b.load(tile.order, tile.at(position)), i32)
                if lines.keys[0].is_exact:
                    code = b.convert(b.load(tile.codes, tile.at(position)), lines.keys[0].raw)
                    bits = lines.keys[0].decode(b, code)
                    element = lines.keys[0].element(b, bits)
                lines.store(b, start, (position, None), element, source)
    return b.func()


def _fill(tile: _Tile, lines: SortLines, number: int, start: Expr, *, is_first: bool) -> None:
    """Put the codes of a key into a tile, in the order so far; behind the line come the last."""
    b, key, x, length = tile.b, lines.keys[number], lines.operands[number], lines.length
    with b.loop("n", tile.items, "unroll") as n:
        position = n * tile.threads + tile.thread
        inside = below(position, length)
        place, named = start + position * lines.inner, list[Scalar]()
        if tile.order is not None and is_first:
            b.store(tile.order, tile.at(position), b.index(position, tile.order.dtype))
        elif tile.order is not None:
            # Behind the line are those that were there before.
            named.append(b.convert(b.load(tile.order, tile.at(position)), i32))
            source = data(tile.items * tile.threads)
            place, inside = start + source * lines.inner, below(source, length)
        code = key.encode(b, key.bits_of(b, b.load(x, place, inside, named=named)))
        if not inside.always:
            last = b.constant(key.last, code.dtype)
            code = b.op("select", b.inside(inside, named=named), code, last)
        b.store(tile.codes, tile.at(position), b.convert(code, tile.codes.dtype))
    b.barrier()


# -- long lines ------------------------------------------------------------------------------------


@record(eq=False)
class _Pass:
    """A pass over memory.

    number: of the key.  digit: of the key, 0 for the lowest.
    moved: the key's elements in their order so far, as codes or bits; None: the operand is read.
    order: where elements came from; None: they are where they were.
    to: where both are written; None for the results.
    """

    number: int
    digit: int
    moved: Buffer | None
    order: Buffer | None
    to: tuple[Buffer, ...] | None

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """The temporaries that it reads."""
        return tuple(buffer for buffer in (self.moved, self.order) if buffer is not None)


@record(eq=False)
class _LongSort:
    """Sorts all lines at once, by passes over memory."""

    lines: SortLines

    @property
    def widest(self) -> DType:
        """Of the codes of all keys."""
        return max((key.raw for key in self.lines.keys), key=lambda dtype: dtype.bits)

    @property
    def items(self) -> int:
        """Elements of a thread."""
        return max(1, min(_ITEMS, _KEY_BYTES // self.widest.itemsize))

    @property
    def tiles(self) -> int:
        """Of a line."""
        return ceil_div(self.lines.length, self.lines.call.threads * self.items)

    def bits(self, key: KeyCode) -> int:
        """Bits of a digit: a thread of a block counts each."""
        most = self.lines.call.threads.bit_length() - 1
        return min(_PASS_BITS, key.bits, most)

    def loops(self) -> StepLoops:
        """All functions."""
        lines, call = self.lines, self.lines.call
        passes, temporaries = self.passes()
        digits = max(ceil_div(key.bits, self.bits(key)) for key in lines.keys)
        shifts = [Buffer(f"shift{n}", u32, 1) for n in range(1, digits)]
        funcs: list[Func] = []
        given: list[tuple[Buffer, ...]] = []
        made: dict[tuple[object, ...], tuple[Func, Func]] = {}
        scans: dict[int, StepLoops] = {}
        for n, each in enumerate(passes):
            key = lines.keys[each.number]
            radix = 1 << self.bits(key)
            counts, sums = self._tables(radix)
            if radix not in scans:
                scans[radix] = self._scan(counts, sums, radix)
                temporaries += [counts, sums, *scans[radix].temporaries]
            form: tuple[object, ...] = (key, n == 0, each.digit == 0)
            form += each.order is None, each.to is None
            # Keys of one dtype are read from operands of their own.
            form += (each.number,) if each.moved is None or each.to is None else ()
            if form not in made:
                made[form] = self._count(each, shifts if n == 0 else []), self._move(each)
            count, move = made[form]
            shift = (shifts[each.digit - 1],) if each.digit else ()
            read = each.inputs if each.moved else (lines.operands[each.number], *each.inputs)
            funcs.append(count)
            given.append((*read, *shift, counts, *(shifts if n == 0 else ())))
            funcs += scans[radix].funcs
            given += scans[radix].arguments
            others = lines.operands if each.moved else _without(lines.operands, each.number)
            targets = each.to if each.to is not None else (*others, *lines.outputs)
            funcs.append(move)
            given.append((*read, *shift, counts, sums, *targets))
        return StepLoops(call, tuple(funcs), (*temporaries, *shifts), given=tuple(given))

    def passes(self) -> tuple[list[_Pass], list[Buffer]]:
        """All passes, those of the last key first, and the memory between them."""
        lines = self.lines
        digits = [
            (number, digit)
            for number, key in reversed(list(enumerate(lines.keys)))
            for digit in range(ceil_div(key.bits, self.bits(key)))
        ]
        elements = lines.count * lines.length
        pairs = range(min(2, len(digits) - 1))
        moved = [Buffer(f"moved{n}", self.widest, elements) for n in pairs]
        orders = [Buffer(f"order{n}", i32, elements) for n in pairs] if lines.tracked else []
        result: list[_Pass] = []
        for n, (number, digit) in enumerate(digits):
            order = orders[(n - 1) % 2] if n and orders else None
            to = None
            if n + 1 < len(digits):
                to = (moved[n % 2], orders[n % 2]) if orders else (moved[n % 2],)
            result.append(_Pass(number, digit, moved[(n - 1) % 2] if digit else None, order, to))
        return result, [*moved, *orders]

    def _tables(self, radix: int) -> tuple[Buffer, Buffer]:
        """Memory for the count of each digit in each tile, and for their running sums."""
        size = self.lines.count * radix * self.tiles
        return Buffer(f"counts{radix}", i32, size), Buffer(f"sums{radix}", i32, size)

    def _scan(self, counts: Buffer, sums: Buffer, radix: int) -> StepLoops:
        """The counts of lower digits, and of the same digit in lower tiles."""
        attrs = {"kind": "add", "reverse": False, "exclusive": True}
        call = replace(self.lines.call, name=f"{self.lines.call.name}_sums_{radix}", attrs=attrs)
        return row_scan(call, counts, sums, (self.lines.count, radix * self.tiles))

    def _function(
        self, what: str, each: _Pass, more: Sequence[tuple[Role, Buffer]]
    ) -> tuple[FuncBuilder, _PassKernel]:
        """A function of a pass, of parameters that stand for the memory of all passes of its form.

        more: parameters behind those that every function of a pass has.
        """
        lines, name = self.lines, f"{self.lines.call.name}_{what}"
        read = lines.operands[each.number]
        if each.moved is not None:
            read = Buffer("from", each.moved.dtype, each.moved.size)
        order = None if each.order is None else Buffer("from_order", i32, each.order.size)
        shift = Buffer("shift", u32, 1) if each.digit else None
        params: list[tuple[Role, Buffer]] = [
            ("in", x) for x in (read, order, shift) if x is not None
        ]
        b = FuncBuilder(name, [*params, *more])
        return b, _PassKernel(self, b, each, read, order, shift)

    def _count(self, each: _Pass, shifts: Sequence[Buffer]) -> Func:
        """Count each digit in each tile.  shifts: receive where the digits begin."""
        lines, threads = self.lines, self.lines.call.threads
        key = lines.keys[each.number]
        radix = 1 << self.bits(key)
        counts, _ = self._tables(radix)
        more: list[tuple[Role, Buffer]] = [("out", counts), *(("out", s) for s in shifts)]
        b, kernel = self._function("count", each, more)
        with b.loop("o", lines.count, "block") as line, b.loop("c", self.tiles, "block") as tile:
            table = b.alloc("table", i32, radix, "shared")
            with threads_of(b, lines.call, threads) as (thread, _):
                b.store(table, thread, b.constant(0, i32), mask=[below(thread, radix)])
                b.barrier()
                shift = kernel.shift()
                one = b.constant(1, i32)
                with b.loop("n", self.items, "unroll") as n:
                    position = (tile * self.items + n) * threads + thread
                    with b.where(below(position, lines.length)):
                        bits, _ = kernel.load(line, position, ())
                        digit = kernel.digit(bits, shift, radix)
                        at = data(radix)
                        b.store(table, at, one, fold="add", named=[digit], atomic=True)
                b.barrier()
                total = b.load(table, thread, below(thread, radix))
                place = (line * radix + thread) * self.tiles + tile
                b.store(counts, place, total, mask=[below(thread, radix)])
                if shifts:
                    is_first = line * self.tiles + tile + thread
                    with b.where(below(is_first, 1)):
                        for number, buffer in enumerate(shifts):
                            first = (number + 1) * self.bits(key)
                            b.store(buffer, Expr(), b.constant(first, u32))
        return b.func()

    def _move(self, each: _Pass) -> Func:
        """Move every element to its position."""
        lines, threads = self.lines, self.lines.call.threads
        key = lines.keys[each.number]
        radix = 1 << self.bits(key)
        counts, sums = self._tables(radix)
        more: list[tuple[Role, Buffer]] = [("in", counts), ("in", sums)]
        others = lines.operands if each.moved else _without(lines.operands, each.number)
        if each.to is None:
            more += [("in", x) for x in others]
            more += [("out", y) for y in lines.outputs]
        else:
            names = ("to", "to_order")
            to = [Buffer(n, x.dtype, x.size) for n, x in zip(names, each.to, strict=False)]
            more += [("inout", x) for x in to]
        b, kernel = self._function("move", each, more)
        order = i32 if lines.tracked else None
        with b.loop("o", lines.count, "block") as line, b.loop("c", self.tiles, "block") as number:
            bases = b.alloc("bases", i32, radix, "shared")
            begin, end = number * (threads * self.items), None
            if key.descending and not kernel.coded and lines.length % (threads * self.items):
                end = begin * -1 + lines.length  # no bits of a float come behind all others
            with _tile(b, lines, key, (threads, self.items), order, end) as tile:
                kernel.fill(tile, line, begin)
                self._bases(tile, bases, (counts, sums), (line, number), radix)
                shift = kernel.shift()
                bits = self.bits(key)
                if bits % _LOCAL_BITS:
                    for low in range(0, bits, _LOCAL_BITS):
                        first = b.op("add", shift, b.constant(low, u32))
                        tile.sort(first, min(_LOCAL_BITS, bits - low))
                else:
                    with b.loop("part", bits // _LOCAL_BITS) as part:
                        tile.sort(b.op("add", shift, b.index(part * _LOCAL_BITS, u32)))
                with b.loop("n", self.items, "unroll") as n:
                    rank = n * threads + tile.thread
                    with b.where(below(begin + rank, lines.length)):
                        code = b.load(tile.codes, tile.at(rank))
                        digit = tile.digit(b.convert(code, key.raw), shift, radix)
                        base = b.load(bases, data(radix), named=[digit])
                        to_place = b.op("add", base, b.index(rank, i32))
                        source = None
                        if tile.order is not None:
                            source = b.load(tile.order, tile.at(rank))
                        if each.to is None:
                            kernel.put(tile, line, to_place, code, source)
                        else:
                            at = line * lines.length + data(lines.length)
                            b.store(to[0], at, code, named=[to_place])
                            if source is not None:
                                b.store(to[1], at, source, named=[to_place])
        return b.func()

    def _bases(
        self,
        tile: _Tile,
        bases: Buffer,
        tables: tuple[Buffer, Buffer],
        place: tuple[Expr, Expr],
        radix: int,
    ) -> None:
        """Where elements of each digit go, less their first rank in the tile."""
        b, (counts, sums), (line, number) = tile.b, tables, place
        exists = below(tile.thread, radix)
        at = (line * radix + tile.thread) * self.tiles + number
        warps = tile.threads // tile.call.warp
        fold = BlockFold(b, "add", i32, warps, tile.call.warp)
        count = b.load(counts, at, exists)
        before, _ = fold.across_block(count, tile.parts, Expr(), tile.place)
        base = b.op("sub", b.load(sums, at, exists), before)
        b.store(bases, tile.thread, base, mask=[exists])
        b.barrier()


@record(eq=False)
class _PassKernel:
    """A function of a pass while it is written.  read, order, shift: its parameters."""

    sort: _LongSort
    b: FuncBuilder
    each: _Pass
    read: Buffer
    order: Buffer | None
    from_shift: Buffer | None

    @property
    def key(self) -> KeyCode:
        """The key of the pass."""
        return self.sort.lines.keys[self.each.number]

    @property
    def coded(self) -> bool:
        """Whether codes are moved in place of bits."""
        return self.sort.lines.tracked or self.key.is_exact

    def shift(self) -> Scalar:
        """The lowest bit of the digit."""
        return self.b.load(self.from_shift) if self.from_shift else self.b.constant(0, u32)

    def load(
        self, line: Expr, position: Expr, mask: tuple[Bound, ...]
    ) -> tuple[Scalar, Scalar | None]:
        """The code or the bits of an element, and where it came from."""
        b, lines = self.b, self.sort.lines
        at = line * lines.length + position
        source = None
        if self.order is not None:
            source = b.load(self.order, at, *mask)
        elif lines.tracked:
            source = b.index(position, i32)
        if self.each.moved is not None:
            return b.convert(b.load(self.read, at, *mask), self.key.raw), source
        at, named = lines.start(line) + position * lines.inner, list[Scalar]()
        if self.order is not None and source is not None:
            at, named = lines.start(line) + data(lines.length) * lines.inner, [source]
        bits = self.key.bits_of(b, b.load(self.read, at, *mask, named=named))
        return self.key.encode(b, bits) if self.coded else bits, source

    def digit(self, bits: Scalar, shift: Scalar, radix: int) -> Scalar:
        """The digit of what `load` gives."""
        code = bits if self.coded else self.key.encode(self.b, bits)
        return self.key.digit(self.b, code, shift, radix)

    def fill(self, tile: _Tile, line: Expr, begin: Expr) -> None:
        """Put the elements into a tile; behind the line come the last."""
        b, lines = self.b, self.sort.lines
        with b.loop("n", tile.items, "unroll") as n:
            rank = n * tile.threads + tile.thread
            inside = below(begin + rank, lines.length)
            bits, source = self.load(line, begin + rank, (inside,))
            if not inside.always:
                bits = b.op("select", b.inside(inside), bits, self.last())
            b.store(tile.codes, tile.at(rank), b.convert(bits, tile.codes.dtype))
            if tile.order is not None and source is not None:
                b.store(tile.order, tile.at(rank), source)
        b.barrier()

    def last(self) -> Scalar:
        """What comes behind all elements, as a code or as bits."""
        b, key = self.b, self.key
        if self.coded:
            return b.constant(key.last, key.raw)
        nan = int.from_bytes(key.dtype.numpy.type(math.nan).tobytes(), "little")
        return b.constant(nan, key.raw)

    def put(
        self, tile: _Tile, line: Expr, place: Scalar, code: Scalar, source: Scalar | None
    ) -> None:
        """Write an element to the results."""
        b, lines, key = self.b, self.sort.lines, self.sort.lines.keys[0]
        element = None
        if not self.coded or key.is_exact:
            code = b.convert(code, key.raw)
            bits = key.decode(b, code) if self.coded else code
            element = key.element(b, bits)
        lines.store(b, lines.start(line), (data(lines.length), place), element, source)


def _without(buffers: Sequence[Buffer], number: int) -> tuple[Buffer, ...]:
    """All but one."""
    return tuple(buffer for n, buffer in enumerate(buffers) if n != number)


__all__ = ["LONGEST", "SortLines", "radix_sort"]

"""Radix sort: stable, by several keys, with payload.

A line of at most a warp's lanes has one element in each lane, which counts the elements that come
before it.  A longer line is sorted digit by digit in the shared memory of one block.  A line that
is too long for a block takes a pass over memory for each digit, the lowest first.

A pass counts the digits of every tile, sums the counts by digit and then by tile, and moves the
elements.  Each tile is sorted in shared memory first, so that neighbours are written together.
Passes of one form share their kernels, which take the number of the digit as an argument.

To rank elements by a digit, every warp counts its own elements, one at a time in each lane: lanes
with equal digits find each other by votes, and the first of them counts for all.  So the rank of an
element among equal digits follows from the order of items, lanes and warps, and is the same in
every run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from bringup.dtypes import DType, i32
from bringup.errors import UnsupportedError
from bringup.integers import ceil_div, ceil_power_of_two, round_up
from bringup.llvm import text as ir
from bringup.llvm.steps.params import ScanParams
from bringup.llvm.text import Type, Val, const
from bringup.program.program import OpStep
from bringup.records import record
from bringup_cuda.codegen.commands import Argument, Command, Copy, Launch, Scratch
from bringup_cuda.codegen.context import CodegenContext
from bringup_cuda.codegen.nvvm import IntBuilder, i32_const
from bringup_cuda.codegen.steps.block import MAX_BLOCKS, BlockEmitter
from bringup_cuda.codegen.steps.scan import emit_scan
from bringup_cuda.targets import WARP

#: Bits that one pass orders by.
DIGIT_BITS = 8
#: Threads of a block, and the most elements of a thread.
_THREADS = 256
_MAX_ITEMS = 16
#: The longest line that one block sorts, and the longest of all: positions have 32 bits.
BLOCK_LENGTH = _THREADS * _MAX_ITEMS
LONGEST = 1 << 31
#: Bytes of keys that a thread holds in a pass over memory.
_KEY_BYTES = 64


@record
class SortKey:
    """A key: its dtype and direction.  Keys are moved as their bits in memory.

    width: the low bits of an unsigned number that matter, if those above are 0; 0 for all bits.
    """

    dtype: DType
    descending: bool
    width: int = 0

    @property
    def bits(self) -> int:
        """The bits that matter."""
        if self.width:
            return self.width
        return 1 if self.dtype.kind == "bool" else self.dtype.bits

    @property
    def digit_bits(self) -> int:
        """Bits of a digit."""
        return min(DIGIT_BITS, self.bits)

    @property
    def radix(self) -> int:
        """The number of digits."""
        return 1 << self.digit_bits

    @property
    def raw(self) -> Type:
        """The type of an element's bits."""
        return raw_type(self.dtype)

    def code(self, b: IntBuilder, raw: Val) -> Val:
        """An unsigned number in the order of the elements: equal for -0 and +0, and for all NaN,
        which come last if the order is ascending.
        """
        word = ir.integer(max(32, self.raw.bits))
        if self.dtype.kind == "bool":
            code = b.zext(b.icmp("ne", raw, 0), word)
        else:
            code = b.zext(self._ordered(b, raw), word)
        return b.xor(code, (1 << self.bits) - 1) if self.descending else code

    def _ordered(self, b: IntBuilder, raw: Val) -> Val:
        sign = const(raw.type, 1 << (self.bits - 1))
        if self.dtype.kind == "int":
            return b.xor(raw, sign)
        if not self.dtype.is_float:
            return raw
        magnitude = b.and_(raw, (1 << (self.bits - 1)) - 1)
        infinity = int.from_bytes(self.dtype.numpy.type(math.inf).tobytes(), "little")
        ordered = b.select(b.icmp("slt", raw, 0), b.not_(raw), b.or_(raw, sign))
        ordered = b.select(b.icmp("eq", magnitude, 0), sign, ordered)
        is_nan = b.icmp("ugt", magnitude, infinity)
        return b.select(is_nan, const(raw.type, -1), ordered)

    def digit(self, b: IntBuilder, raw: Val, shift: Val) -> Val:
        """A digit of an element's code, as i32; shift: its lowest bit."""
        code = self.code(b, raw)
        if shift.type.bits < code.type.bits:
            shift = b.zext(shift, code.type)
        return b.and_(b.trunc(b.lshr(code, shift), ir.i32), self.radix - 1)


def raw_type(dtype: DType) -> Type:
    """The type of an element's bits in memory."""
    return ir.integer(dtype.itemsize * 8)


@record
class SortLines:
    """The lines of a sort: ``outer`` × ``inner``, of ``length`` elements that are ``inner`` apart.

    operands, results: their memory.  dtypes: of the operands.  keys: the first operands.
    permutation: memory for the position that each element came from, as i32; None if not needed.
    """

    operands: tuple[Argument, ...]
    results: tuple[Argument, ...]
    dtypes: tuple[DType, ...]
    keys: tuple[SortKey, ...]
    outer: int
    length: int
    inner: int
    permutation: Argument | None = None

    @classmethod
    def of(cls, step: OpStep) -> SortLines:
        """The lines of a step of the row ``sort``."""
        shape, dim = step.operands[0].type.shape, step.attrs["dim"]
        keys = step.operands[: step.attrs["num_keys"]]
        return cls(
            step.operands,
            step.results,
            tuple(slot.type.dtype for slot in step.operands),
            tuple(SortKey(slot.type.dtype, step.attrs["descending"]) for slot in keys),
            math.prod(shape[:dim]),
            shape[dim],
            math.prod(shape[dim + 1 :]),
        )

    @property
    def count(self) -> int:
        """The number of lines."""
        return self.outer * self.inner

    @property
    def keys_only(self) -> bool:
        """Whether only one key is moved: then positions need not be tracked."""
        return len(self.operands) == 1 and self.permutation is None

    @property
    def outputs(self) -> tuple[Argument, ...]:
        """The results, then the permutation if there is one."""
        return self.results if self.permutation is None else (*self.results, self.permutation)

    def start(self, b: IntBuilder, line: Val) -> Val:
        """The index of a line's first element."""
        if self.inner == 1:
            return b.mul(line, self.length)
        outer = b.mul(b.udiv(line, self.inner), self.length * self.inner)
        return b.add(outer, b.urem(line, self.inner))

    def address(self, b: IntBuilder, pointer: Val, start: Val, position: Val, type_: Type) -> Val:
        """The address of an element of a line; position: i32 or i64."""
        wide = b.zext(position, ir.i64) if position.type.bits < 64 else position
        return b.gep(pointer, b.add(start, b.mul(wide, self.inner)), type_)

    def load(self, b: IntBuilder, pointer: Val, dtype: DType, start: Val, position: Val) -> Val:
        """The bits of an element."""
        raw = raw_type(dtype)
        return b.load(raw, self.address(b, pointer, start, position, raw), dtype.itemsize)

    def store(self, b: IntBuilder, value: Val, pointer: Val, start: Val, position: Val) -> None:
        """Write the bits of an element."""
        address = self.address(b, pointer, start, position, value.type)
        b.store(value, address, value.type.bits // 8)

    def store_element(
        self,
        b: IntBuilder,
        pointers: Sequence[Val],
        start: Val,
        position: Val,
        raw: Val,
        source: Val,
    ) -> None:
        """Write the element with the first key ``raw`` to a position, with all that belongs to it.

        pointers: operands, then outputs.  source: the position that it came from.
        """
        count = len(self.operands)
        self.store(b, raw, pointers[count], start, position)
        for n in range(1, count):
            value = self.load(b, pointers[n], self.dtypes[n], start, source)
            self.store(b, value, pointers[count + n], start, position)
        if self.permutation is not None:
            self.store(b, source, pointers[-1], start, position)


class DigitRanking:
    """Ranks a block's elements by digits of ``bits`` bits.

    starts: an array in shared memory with the first rank of each digit.
    """

    def __init__(self, block: BlockEmitter, bits: int) -> None:
        self.block = block
        self.bits = bits
        self.radix = 1 << bits
        self._counts = block.shared(ir.i32, self.radix * block.warps)
        self._warp_sums = block.shared(ir.i32, block.warps)
        self.starts = block.shared(ir.i32, self.radix)

    def ranks(self, digits: Sequence[Val]) -> list[Val]:
        """The ranks of the block's elements by digit; equal digits are ranked by warp, then item,
        then lane.

        digits: of this thread's items.  All threads must come; call it again after a barrier.
        """
        block, b = self.block, self.block.b
        warp_counts = b.gep(self._counts, b.mul(block.warp, self.radix), ir.i32)
        lane = b.zext(block.lane, ir.i64)
        with b.loop(lane, const(ir.i64, self.radix), WARP) as loop:
            block.store(i32_const(0), warp_counts, loop.index)
        block.sync_warp()
        within_warp = [self._count_equal_before(digit, warp_counts) for digit in digits]
        block.barrier()
        self._sum_counts()
        block.barrier()
        ranks: list[Val] = []
        for digit, rank in zip(digits, within_warp, strict=True):
            start = block.load(self.starts, digit, ir.i32)
            start = b.add(start, block.load(warp_counts, digit, ir.i32))
            ranks.append(b.add(start, rank))
        return ranks

    def _count_equal_before(self, digit: Val, counts: Val) -> Val:
        """The number of elements of the warp with this digit that come before this one."""
        block, b = self.block, self.block.b
        equal = i32_const(-1)
        for n in range(self.bits):
            bit = b.icmp("ne", b.and_(digit, 1 << n), 0)
            flip = b.select(bit, i32_const(0), i32_const(-1))
            equal = b.and_(equal, b.xor(block.ballot(bit), flip))
        below = b.intrinsic("llvm.ctpop", ir.i32, (b.and_(equal, block.lanes_below()),))
        size = b.intrinsic("llvm.ctpop", ir.i32, (equal,))
        first = b.intrinsic("llvm.cttz", ir.i32, (equal, const(ir.i1, 1)), (ir.i32,))

        def count() -> Val:
            before = block.load(counts, digit, ir.i32)
            block.store(b.add(before, size), counts, digit)
            return before

        (before,) = b.cond(b.icmp("eq", below, 0), count, lambda: i32_const(0))
        rank = b.add(block.shuffle_index(before, first), below)
        block.sync_warp()
        return rank

    def _sum_counts(self) -> None:
        """Replace counts by the sums over lower digits, and over lower warps of the same digit."""
        block, b = self.block, self.block.b
        digits = max(1, self.radix // block.threads)
        first = b.mul(block.thread, digits)
        exists = b.icmp("ult", first, self.radix)

        def sum_digits() -> list[Val]:
            return [self._sum_digit(b.add(first, n)) for n in range(digits)]

        if digits * block.threads == self.radix:
            totals = sum_digits()
        else:
            totals = list(b.cond(exists, sum_digits, lambda: [i32_const(0)] * digits))
        before = [i32_const(0)]
        for total in totals:
            before.append(b.add(before[-1], total))
        through_lane = block.scan_lanes(before[-1], b.add)
        warp_total = block.shuffle_index(through_lane, i32_const(WARP - 1))
        lower_warps, _ = block.scan_warps(warp_total, self._warp_sums, b.add, i32_const(0))
        start = b.add(lower_warps, b.sub(through_lane, before[-1]))
        with b.if_then(exists):
            for n in range(digits):
                digit = b.add(first, n)
                block.store(b.add(start, before[n]), self.starts, digit)

    def _sum_digit(self, digit: Val) -> Val:
        """Sum one digit's counts warp by warp; the total."""
        block, b = self.block, self.block.b
        total = i32_const(0)
        for warp in range(block.warps):
            index = b.add(digit, warp * self.radix)
            count = block.load(self._counts, index, ir.i32)
            block.store(total, self._counts, index)
            total = b.add(total, count)
        return total


# -- short lines -----------------------------------------------------------------------------------


def _sort_in_warps(codegen: CodegenContext, step: OpStep, lines: SortLines) -> list[Command]:
    """Sort lines of at most `WARP` elements, each by a group of lanes."""
    group = ceil_power_of_two(lines.length)
    lines_per_block = min(_THREADS, max(WARP, lines.count * group)) // group
    threads = round_up(lines_per_block * group, WARP)
    lines_per_block = threads // group
    units = ceil_div(lines.count, lines_per_block)
    block = BlockEmitter(codegen, step, "sort_lanes", (*lines.operands, *lines.outputs), threads)
    b, count = block.b, len(lines.operands)
    with block.units(units) as unit:
        group_index = b.udiv(block.thread, group)
        line = b.add(b.mul(unit, lines_per_block), b.zext(group_index, ir.i64))
        position = b.and_(block.lane, group - 1)
        inside = b.icmp("slt", line, lines.count)
        inside = b.and_(inside, b.icmp("ult", position, lines.length))
        start = lines.start(b, line)

        def load(start: Val = start, position: Val = position) -> list[Val]:
            return [
                lines.load(b, pointer, dtype, start, position)
                for pointer, dtype in zip(block.args[:count], lines.dtypes, strict=True)
            ]

        zeros = [const(raw_type(dtype), 0) for dtype in lines.dtypes]
        values = b.cond(inside, load, partial(list, zeros))
        rank = _count_smaller(block, lines, values[: len(lines.keys)], position, group)
        with b.if_then(inside):
            for value, pointer in zip((*values, position), block.args[count:], strict=False):
                lines.store(b, value, pointer, start, rank)
    return [block.launch(min(units, MAX_BLOCKS))]


def _count_smaller(
    block: BlockEmitter, lines: SortLines, raws: Sequence[Val], position: Val, group: int
) -> Val:
    """The number of elements of the line that come before this one."""
    b = block.b
    codes = [key.code(b, raw) for key, raw in zip(lines.keys, raws, strict=True)]
    first_lane = b.and_(block.lane, WARP - group)
    with b.loop(i32_const(0), i32_const(lines.length), carried=[i32_const(0)]) as loop:
        lane = b.or_(first_lane, loop.index)
        before = b.icmp("ult", loop.index, position)
        for code in reversed(codes):
            other = block.shuffle_index(code, lane)
            tie = b.and_(b.icmp("eq", other, code), before)
            before = b.or_(b.icmp("ult", other, code), tie)
        loop.next(b.add(loop.carried[0], b.zext(before, ir.i32)))
    return loop.carried[0]


class BlockSort:
    """Sorts each line in the shared memory of a block."""

    def __init__(self, codegen: CodegenContext, step: OpStep, lines: SortLines) -> None:
        self.lines = lines
        wanted = 1 << max(5, (ceil_div(lines.length, 8) - 1).bit_length())
        threads = min(_THREADS, wanted)
        self.items = ceil_div(lines.length, threads)
        arguments = (*lines.operands, *lines.outputs)
        self.block = BlockEmitter(codegen, step, "sort_block", arguments, threads)
        self.b = self.block.b
        self.capacity = threads * self.items
        widest = max(4, *(key.dtype.itemsize for key in lines.keys))
        self.shared = self.block.shared(ir.i8, self.capacity * widest)
        self.rankings: dict[int, DigitRanking] = {}

    def commands(self) -> list[Command]:
        """The one launch."""
        b, block, lines = self.b, self.block, self.lines
        first = b.mul(block.warp, WARP * self.items)
        first = b.add(first, block.lane)
        positions = [b.add(first, n * WARP) for n in range(self.items)]
        with block.units(lines.count) as line:
            start = lines.start(b, line)
            sources = list(positions)
            raws: list[Val] = []
            for n in reversed(range(len(lines.keys))):
                raws = self._load(block.args[n], lines.keys[n], start, positions, sources)
                raws, sources = self._sort_by(lines.keys[n], positions, raws, sources)
            for position, raw, source in zip(positions, raws, sources, strict=True):
                with b.if_then(b.icmp("ult", position, lines.length)):
                    lines.store_element(b, block.args, start, position, raw, source)
            if lines.count > MAX_BLOCKS:
                block.barrier()
        return [block.launch(min(lines.count, MAX_BLOCKS))]

    def _load(
        self,
        pointer: Val,
        key: SortKey,
        start: Val,
        positions: Sequence[Val],
        sources: Sequence[Val],
    ) -> list[Val]:
        """The elements of a key; beyond the end of the line the last one.

        No load waits for a test, so that all are in flight together.
        """
        b, lines, raws = self.b, self.lines, list[Val]()
        for position, source in zip(positions, sources, strict=True):
            clamped = source
            if self.capacity != lines.length:
                inside = b.icmp("ult", position, lines.length)
                clamped = b.select(inside, source, i32_const(lines.length - 1))
            raws.append(lines.load(b, pointer, key.dtype, start, clamped))
        return raws

    def _sort_by(
        self, key: SortKey, positions: Sequence[Val], raws: Sequence[Val], sources: Sequence[Val]
    ) -> tuple[list[Val], list[Val]]:
        """Sort by all digits of a key, the lowest first: its elements and where they came from."""
        b, n = self.b, self.items
        if key.digit_bits not in self.rankings:
            self.rankings[key.digit_bits] = DigitRanking(self.block, key.digit_bits)
        ranking = self.rankings[key.digit_bits]
        tracked = [] if self.lines.keys_only else list(sources)
        end = i32_const(key.bits)
        with b.loop(i32_const(0), end, key.digit_bits, [*raws, *tracked]) as loop:
            digits: list[Val] = []
            for position, raw in zip(positions, loop.carried, strict=False):
                digit = key.digit(b, raw, loop.index)
                # Elements beyond the end of the line stay there.
                inside = b.icmp("ult", position, self.lines.length)
                digits.append(b.select(inside, digit, i32_const(key.radix - 1)))
            ranks = ranking.ranks(digits)
            values = self._permute(loop.carried[:n], ranks, positions)
            if tracked:
                self.block.barrier()
                values += self._permute(loop.carried[n:], ranks, positions)
            self.block.barrier()
            loop.next(*values)
        return list(loop.carried[:n]), list(loop.carried[n:]) or list(sources)

    def _permute(
        self, values: Sequence[Val], ranks: Sequence[Val], positions: Sequence[Val]
    ) -> list[Val]:
        """The values at this thread's positions after each value moved to its rank."""
        block = self.block
        for value, rank in zip(values, ranks, strict=True):
            block.store(value, self.shared, rank)
        block.barrier()
        return [block.load(self.shared, position, values[0].type) for position in positions]


# -- long lines ------------------------------------------------------------------------------------


@record
class _Pass:
    """One pass over memory.

    key: the number of the key.  digit: of the key, 0 for the lowest.
    raws: the key's elements in their order so far; None: the operand, indexed by the permutation.
    permutation: the positions that elements came from; None: they are in their original order.
    to_raws, to_permutation: where both are written; None for the results.
    """

    key: int
    digit: int
    raws: Argument | None
    permutation: Argument | None
    to_raws: Argument | None
    to_permutation: Argument | None


class LongSort:
    """Sorts all lines at once, by passes over memory."""

    def __init__(self, codegen: CodegenContext, step: OpStep, lines: SortLines) -> None:
        self.codegen = codegen
        self.step = step
        self.lines = lines
        self.widest = max(key.dtype.itemsize for key in lines.keys)
        self.items = min(_MAX_ITEMS, _KEY_BYTES // self.widest)
        self.tile = _THREADS * self.items
        self.tiles = ceil_div(lines.length, self.tile)
        self._launches: dict[Hashable, Launch] = {}

    def commands(self) -> list[Command]:
        """All launches."""
        lines, commands = self.lines, list[Command]()
        radix = max(key.radix for key in lines.keys)
        nbytes = lines.count * radix * self.tiles * 4
        counts, sums = self.codegen.scratch(nbytes), self.codegen.scratch(nbytes)
        scans: dict[int, list[Command]] = {}
        for pass_ in self._passes():
            radix = lines.keys[pass_.key].radix
            if radix not in scans:
                size = radix * self.tiles
                scan = ScanParams("add", i32, i32, lines.count, size, 1, False, True)
                scans[radix] = emit_scan(self.codegen, self.step, scan, counts, sums)
            commands += [self._count(pass_, counts), *scans[radix], self._move(pass_, sums)]
        return commands

    def _passes(self) -> list[_Pass]:
        """All passes, those of the last key first."""
        lines = self.lines
        digits = [
            (number, digit)
            for number, key in reversed(list(enumerate(lines.keys)))
            for digit in range(ceil_div(key.bits, key.digit_bits))
        ]
        elements = lines.count * lines.length
        buffers = range(min(2, len(digits) - 1))
        raws = [self.codegen.scratch(elements * self.widest) for _ in buffers]
        permutations: Sequence[Argument | None] = [None] * 2
        if not lines.keys_only:
            permutations = [self.codegen.scratch(elements * 4) for _ in buffers]
        passes: list[_Pass] = []
        for n, (number, digit) in enumerate(digits):
            is_last = n + 1 == len(digits)
            passes.append(
                _Pass(
                    number,
                    digit,
                    raws[(n - 1) % 2] if digit else None,
                    permutations[(n - 1) % 2] if n else None,
                    None if is_last else raws[n % 2],
                    None if is_last else permutations[n % 2],
                )
            )
        return passes

    def _count(self, pass_: _Pass, counts: Scratch) -> Launch:
        """Count each digit in each tile."""

        def emit(kernel: _PassKernel) -> None:
            block, b, key = kernel.block, kernel.block.b, kernel.key
            radix, shift = i32_const(key.radix), kernel.shift()
            table = block.shared(ir.i32, key.radix)
            with kernel.tiles() as (line, tile):
                with b.loop(block.thread, radix, _THREADS) as loop:
                    block.store(i32_const(0), table, loop.index)
                block.barrier()
                elements = kernel.load(line, tile)
                for position, (raw, _) in zip(kernel.positions(), elements, strict=True):
                    digit = key.digit(b, raw, shift)
                    with b.if_then(kernel.inside(tile, position)):
                        address = block.address(table, digit, ir.i32)
                        b.atomicrmw("add", address, i32_const(1), "monotonic", "block")
                block.barrier()
                with b.loop(block.thread, radix, _THREADS) as loop:
                    count = block.load(table, loop.index, ir.i32)
                    b.store(count, kernel.count_address(line, tile, loop.index), 4)
                block.barrier()

        return self._launch("count", pass_, counts, (), emit)

    def _move(self, pass_: _Pass, sums: Scratch) -> Launch:
        """Move every element to its position."""
        lines = self.lines
        targets = [t for t in (pass_.to_raws, pass_.to_permutation) if t is not None]
        others = targets if pass_.to_raws is not None else (*lines.operands, *lines.outputs)

        def emit(kernel: _PassKernel) -> None:
            block, b, key = kernel.block, kernel.block.b, kernel.key
            shift = kernel.shift()
            ranking = DigitRanking(block, key.digit_bits)
            shared = block.shared(ir.i8, self.tile * max(4, key.dtype.itemsize))
            bases = block.shared(ir.i32, key.radix)
            with kernel.tiles() as (line, tile):
                elements = kernel.load(line, tile)
                digits: list[Val] = []
                for position, (raw, _) in zip(kernel.positions(), elements, strict=True):
                    digit, inside = key.digit(b, raw, shift), kernel.inside(tile, position)
                    digits.append(b.select(inside, digit, i32_const(key.radix - 1)))
                ranks = ranking.ranks(digits)
                with b.loop(block.thread, i32_const(key.radix), _THREADS) as loop:
                    address = kernel.count_address(line, tile, loop.index)
                    start = block.load(ranking.starts, loop.index, ir.i32)
                    block.store(b.sub(b.load(ir.i32, address, 4), start), bases, loop.index)
                raws = kernel.permute(shared, [raw for raw, _ in elements], ranks)
                sources = kernel.rank_positions()
                if not lines.keys_only:
                    block.barrier()
                    sources = kernel.permute(shared, [source for _, source in elements], ranks)
                for rank, raw, source in zip(kernel.rank_positions(), raws, sources, strict=True):
                    with b.if_then(kernel.inside(tile, rank)):
                        base = block.load(bases, key.digit(b, raw, shift), ir.i32)
                        kernel.store(line, b.add(base, rank), raw, source)
                block.barrier()

        return self._launch("move", pass_, sums, others, emit)

    def _launch(
        self,
        name: str,
        pass_: _Pass,
        counts: Scratch,
        others: Sequence[Argument],
        emit: Callable[[_PassKernel], None],
    ) -> Launch:
        """A launch of a pass, whose kernel ``emit`` makes if no pass of the same form has one."""
        raws = pass_.raws if pass_.raws is not None else self.lines.operands[pass_.key]
        inputs = [raws] if pass_.permutation is None else [raws, pass_.permutation]
        arguments = (*inputs, counts, pass_.digit, *others)
        key = self.lines.keys[pass_.key]
        is_last_move = bool(others) and pass_.to_raws is None
        form = (name, key, pass_.raws is None, pass_.permutation is None, is_last_move)
        if form not in self._launches:
            block = BlockEmitter(self.codegen, self.step, f"sort_{name}", arguments, _THREADS)
            emit(_PassKernel(self, pass_, block, len(inputs)))
            blocks = min(self.lines.count * self.tiles, MAX_BLOCKS)
            self._launches[form] = block.launch(blocks)
        return replace(self._launches[form], arguments=arguments)


class _PassKernel:
    """The kernel of a pass while it is emitted.

    inputs: how many of its arguments are inputs; counts (or their sums) and the digit follow.
    """

    def __init__(self, sort: LongSort, pass_: _Pass, block: BlockEmitter, inputs: int) -> None:
        self.sort = sort
        self.lines = sort.lines
        self.pass_ = pass_
        self.key = sort.lines.keys[pass_.key]
        self.block = block
        self.counts, self.digit, *self.others = block.args[inputs:]

    def shift(self) -> Val:
        """The lowest bit of the digit."""
        return self.block.b.mul(self.digit, self.key.digit_bits)

    @contextmanager
    def tiles(self) -> Iterator[tuple[Val, Val]]:
        """A loop over the block's tiles: line and tile."""
        b, tiles = self.block.b, self.sort.tiles
        with self.block.units(self.lines.count * tiles) as unit:
            yield b.udiv(unit, tiles), b.urem(unit, tiles)

    def positions(self) -> list[Val]:
        """The positions in the tile of this thread's items."""
        block, b, items = self.block, self.block.b, self.sort.items
        first = b.add(b.mul(block.warp, WARP * items), block.lane)
        return [b.add(first, n * WARP) for n in range(items)]

    def rank_positions(self) -> list[Val]:
        """The ranks in the sorted tile that this thread writes; neighbours write neighbours."""
        return [self.block.b.add(self.block.thread, n * _THREADS) for n in range(self.sort.items)]

    def inside(self, tile: Val, position: Val) -> Val:
        """Whether a position of a tile lies inside the line."""
        b, sort = self.block.b, self.sort
        is_last = b.icmp("eq", tile, sort.tiles - 1)
        last_length = sort.lines.length - (sort.tiles - 1) * sort.tile
        length = b.select(is_last, i32_const(last_length), i32_const(sort.tile))
        return b.icmp("ult", position, length)

    def load(self, line: Val, tile: Val) -> list[tuple[Val, Val]]:
        """The key's element and its source, of every item; beyond the end those of the last one.

        No load waits for a test, so that all are in flight together.
        """
        b, last = self.block.b, self.lines.length - 1
        first = b.mul(b.trunc(tile, ir.i32), self.sort.tile)
        positions = [b.add(first, position) for position in self.positions()]
        clamped = [b.extremum("umin", position, last) for position in positions]
        return [self._load_element(line, position) for position in clamped]

    def _load_element(self, line: Val, position: Val) -> tuple[Val, Val]:
        b, lines, args, key = self.block.b, self.lines, self.block.args, self.key
        index = b.add(b.mul(line, lines.length), b.zext(position, ir.i64))
        source = position
        if self.pass_.permutation is not None:
            source = b.load(ir.i32, b.gep(args[1], index, ir.i32), 4)
        if self.pass_.raws is not None:
            raw = b.load(key.raw, b.gep(args[0], index, key.raw), key.dtype.itemsize)
        else:
            raw = lines.load(b, args[0], key.dtype, lines.start(b, line), source)
        return raw, source

    def count_address(self, line: Val, tile: Val, digit: Val) -> Val:
        """The address of the count of a digit in a tile, or of the sum of those before."""
        b = self.block.b
        row = b.add(b.mul(line, self.key.radix), b.zext(digit, ir.i64))
        return b.gep(self.counts, b.add(b.mul(row, self.sort.tiles), tile), ir.i32)

    def permute(self, shared: Val, values: Sequence[Val], ranks: Sequence[Val]) -> list[Val]:
        """The tile's values in order, those of `rank_positions`."""
        block, kind = self.block, values[0].type
        for value, rank in zip(values, ranks, strict=True):
            block.store(value, shared, rank)
        block.barrier()
        return [block.load(shared, position, kind) for position in self.rank_positions()]

    def store(self, line: Val, position: Val, raw: Val, source: Val) -> None:
        """Write an element to its position; in the last pass with all that belongs to it."""
        b, lines = self.block.b, self.lines
        if self.pass_.to_raws is None:
            lines.store_element(b, self.others, lines.start(b, line), position, raw, source)
            return
        index = b.add(b.mul(line, lines.length), b.zext(position, ir.i64))
        for value, pointer in zip((raw, source), self.others, strict=False):
            b.store(value, b.gep(pointer, index, value.type), value.type.bits // 8)


def emit_sort_step(codegen: CodegenContext, step: OpStep) -> Sequence[Command]:
    """The launches of a step of the row ``sort``."""
    return emit_sort(codegen, step, SortLines.of(step))


def emit_sort(codegen: CodegenContext, step: OpStep, lines: SortLines) -> list[Command]:
    """Launches that sort lines for a step.  Raises UnsupportedError for a line too long."""
    if lines.length >= LONGEST:  # pragma: no cover - only arrays of more than 2 GiB
        raise UnsupportedError(
            f"sort of {lines.length} elements: a GPU sorts lines of less than {LONGEST}",
            location=step.location,
            fix="sort parts of the line and merge them, or sort on the host",
        )
    if lines.length == 1 and lines.permutation is None:
        pairs = zip(lines.operands, lines.results, lines.dtypes, strict=True)
        return [Copy(x, y, lines.count * dtype.itemsize) for x, y, dtype in pairs]
    if lines.length <= WARP:
        return _sort_in_warps(codegen, step, lines)
    if lines.length <= BLOCK_LENGTH:
        return BlockSort(codegen, step, lines).commands()
    return LongSort(codegen, step, lines).commands()


__all__ = ["LONGEST", "SortKey", "SortLines", "emit_sort", "emit_sort_step", "raw_type"]

"""Running folds along one dimension.

Along the last dimension a group of lanes, or a block, scans a row: vectors of neighbouring elements
in each thread, then their totals across lanes and warps.  Along any other dimension a thread goes
down a column.  What is too long for that is cut into chunks, whose totals are folded first: sums of
floats are the same in each run, which a scan that looks back at other blocks would not give.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from bringup.llvm import text as ir
from bringup.llvm.scalar import memory_type, narrow, widen
from bringup.llvm.steps.params import ScanParams
from bringup.llvm.text import Builder, Val, const, vec
from bringup.program.program import OpStep
from bringup_cuda.codegen.commands import Argument, Command
from bringup_cuda.codegen.context import CodegenContext
from bringup_cuda.codegen.steps.block import MAX_BLOCKS, BlockEmitter
from bringup_cuda.targets import WARP

#: Bytes of the widest access.
_ACCESS = 16
#: Threads of a block, vectors of a thread at a time.
_THREADS = 256
_VECTORS = 4
#: Threads that keep a GPU busy, and how far one goes down a column.
_BUSY_THREADS = 1 << 17
_SHORT_COLUMN = 32
_LONG_COLUMN = 1024
_UNROLLED = 4
#: Blocks that keep a GPU busy, and tiles from which on a row is worth cutting.
_BUSY_BLOCKS = 528
_CUT_TILES = 4


class Scanner(ABC):
    """What both ways share."""

    def __init__(
        self,
        codegen: CodegenContext,
        step: OpStep,
        scan: ScanParams,
        source: Argument,
        target: Argument,
    ) -> None:
        self.codegen = codegen
        self.step = step
        self.scan = scan
        self.source = source
        self.target = target

    def block(self, label: str, arguments: Sequence[Argument], threads: int) -> BlockEmitter:
        return BlockEmitter(self.codegen, self.step, label, arguments, threads)

    @property
    def vector(self) -> int:
        """Elements of the widest access."""
        return _ACCESS // self.scan.dtype.itemsize

    def commands(self) -> list[Command]:
        """Every launch: the totals of chunks first where there are several."""
        chunks = self.chunks()
        if chunks == 1:
            return [self.scans(chunks, None)]
        lines = self.scan.outer * self.scan.inner
        totals = self.codegen.scratch(lines * chunks * self.scan.wide.itemsize)
        return [self.totals(chunks, totals), self.scans(chunks, totals)]

    @abstractmethod
    def chunks(self) -> int:
        """Into how many chunks a line is cut."""

    @abstractmethod
    def totals(self, chunks: int, totals: Argument) -> Command:
        """Fold every chunk."""

    @abstractmethod
    def scans(self, chunks: int, totals: Argument | None) -> Command:
        """Scan every chunk, after the totals of those before it."""


class Columns(Scanner):
    """A thread goes down a column of every chunk, or down some that lie side by side.

    width: columns of a thread.
    """

    def __init__(
        self,
        codegen: CodegenContext,
        step: OpStep,
        scan: ScanParams,
        source: Argument,
        target: Argument,
    ) -> None:
        super().__init__(codegen, step, scan, source, target)
        many = scan.outer * scan.inner >= 2 * _BUSY_THREADS
        self.width = math.gcd(scan.inner, self.vector) if many else 1
        self.across = scan.inner // self.width

    def chunks(self) -> int:
        scan = self.scan
        short = -(-scan.length // _LONG_COLUMN)
        busy = -(-_BUSY_THREADS // (scan.outer * self.across))
        wanted = max(short, min(busy, scan.length // _SHORT_COLUMN), 1)
        return -(-scan.length // -(-scan.length // wanted))

    def totals(self, chunks: int, totals: Argument) -> Command:
        block = self.block(f"totals_{self.scan.kind}", [self.source, totals], _THREADS)
        b, scan = block.b, self.scan
        with block.items(scan.outer * chunks * self.across) as item:
            start, low, high, _ = self._split(block, item, chunks)
            carry = self._down(block, start, low, high, scan.neutral(self.width), False)
            at = b.mul(item, const(ir.i64, self.width))
            self._put(block, carry, b.gep(block.args[1], at, memory_type(scan.wide)))
        return block.launch(block.blocks_for(scan.outer * chunks * self.across))

    def scans(self, chunks: int, totals: Argument | None) -> Command:
        arguments = [self.source, self.target, *([] if totals is None else [totals])]
        block = self.block(f"scan_{self.scan.kind}", arguments, _THREADS)
        scan = self.scan
        with block.items(scan.outer * chunks * self.across) as item:
            start, low, high, number = self._split(block, item, chunks)
            carry = scan.first(self.width)
            if chunks > 1:
                carry = self._before(block, item, number, carry)
            self._down(block, start, low, high, carry, True)
        return block.launch(block.blocks_for(scan.outer * chunks * self.across))

    def _split(self, block: BlockEmitter, item: Val, chunks: int) -> tuple[Val, Val, Val, Val]:
        """Where the column of an item begins, the first row of its chunk and the one behind its
        last, and the number of the chunk.
        """
        b, scan = block.b, self.scan
        column = b.mul(b.urem(item, const(ir.i64, self.across)), const(ir.i64, self.width))
        rest = b.udiv(item, const(ir.i64, self.across))
        number = b.urem(rest, const(ir.i64, chunks)) if chunks > 1 else const(ir.i64, 0)
        outer = b.udiv(rest, const(ir.i64, chunks))
        start = b.add(b.mul(outer, const(ir.i64, scan.length * scan.inner)), column)
        each = -(-scan.length // chunks)
        low = b.mul(number, const(ir.i64, each))
        high = b.add(low, const(ir.i64, each))
        high = b.intrinsic("llvm.smin", ir.i64, (high, const(ir.i64, scan.length)))
        return start, low, high, number

    def _put(self, block: BlockEmitter, value: Val, address: Val) -> None:
        element = value.type.scalar
        block.b.store(value, address, element.bits // 8 * self.width)

    def _before(self, block: BlockEmitter, item: Val, number: Val, carry: Val) -> Val:
        """The fold of the same column in the chunks before."""
        b, wide = block.b, memory_type(self.scan.wide)
        behind = b.sub(item, b.mul(number, const(ir.i64, self.across)))
        with b.loop(const(ir.i64, 0), number, 1, [carry]) as loop:
            at = b.add(behind, b.mul(loop.index, const(ir.i64, self.across)))
            address = b.gep(block.args[2], b.mul(at, const(ir.i64, self.width)), wide)
            known = b.load(vec(wide, self.width), address, wide.bits // 8 * self.width)
            loop.next(self.scan.fold(b, loop.carried[0], known))
        return loop.carried[0]

    def _down(
        self, block: BlockEmitter, start: Val, low: Val, high: Val, carry: Val, shown: bool
    ) -> Val:
        """Go down a chunk of columns, several loads at a time."""
        b = block.b
        rest = b.urem(b.sub(high, low), const(ir.i64, _UNROLLED))
        stop = b.sub(high, rest)
        for begin, end, count in ((low, stop, _UNROLLED), (stop, high, 1)):
            with b.loop(begin, end, count, [carry]) as loop:
                carry = self._some(block, start, loop.index, count, loop.carried[0], shown)
                loop.next(carry)
            carry = loop.carried[0]
        return carry

    def _some(
        self, block: BlockEmitter, start: Val, row: Val, count: int, carry: Val, shown: bool
    ) -> Val:
        b, scan = block.b, self.scan
        element, step = memory_type(scan.dtype), -scan.inner if scan.reverse else scan.inner
        if scan.reverse:
            row = b.sub(const(ir.i64, scan.length - 1), row)
        base = b.add(start, b.mul(row, const(ir.i64, scan.inner)))
        align = scan.dtype.itemsize * self.width
        places = [b.add(base, const(ir.i64, n * step)) for n in range(count)]
        loaded = [
            b.load(vec(element, self.width), b.gep(block.args[0], place, element), align)
            for place in places
        ]
        for place, x in zip(places, loaded, strict=True):
            after = self.scan.fold(b, carry, widen(b, x))
            if shown:
                kept = narrow(b, carry if scan.exclusive else after, scan.dtype)
                b.store(kept, b.gep(block.args[1], place, element), align)
            carry = after
        return carry


class Rows(Scanner):
    """Rows whose elements lie side by side.

    width: elements of a vector.  vectors: of a thread.  lanes: of a row's group; 0 if a block takes
    a row.  tile: elements that a block scans at once.
    """

    def __init__(
        self,
        codegen: CodegenContext,
        step: OpStep,
        scan: ScanParams,
        source: Argument,
        target: Argument,
    ) -> None:
        super().__init__(codegen, step, scan, source, target)
        whole = scan.outer > 1 or scan.reverse
        self.width = math.gcd(scan.length, self.vector) if whole else self.vector
        self.vectors = min(_VECTORS, max(1, 16 // self.width))
        needed = -(-scan.length // self.width)
        self.lanes, self.threads = 0, _THREADS
        if needed <= WARP * self.vectors:
            self.lanes = min(WARP, 1 << (needed - 1).bit_length())
            self.vectors = -(-needed // self.lanes)
            self.threads = min(_THREADS, max(WARP, scan.outer * self.lanes // WARP * WARP))
            self.threads = 1 << (self.threads.bit_length() - 1)
        elif needed <= _THREADS // 2 * self.vectors:
            self.threads = _THREADS // 2
        self.tile = self.threads * self.vectors * self.width

    def chunks(self) -> int:
        scan, tiles = self.scan, -(-self.scan.length // self.tile)
        if self.lanes or tiles < _CUT_TILES or 2 * scan.outer > _BUSY_BLOCKS:
            return 1
        each = -(-tiles // -(-_BUSY_BLOCKS // scan.outer))
        return -(-tiles // each)

    def _chunk(self, chunks: int) -> int:
        """Elements of a chunk."""
        tiles = -(-self.scan.length // self.tile)
        return -(-tiles // chunks) * self.tile

    # -- places ------------------------------------------------------------------------------------

    def _address(self, block: BlockEmitter, pointer: Val, row: Val, place: Val) -> Val:
        """Where a vector lies that begins at a place, counted from where the scan begins."""
        b, scan = block.b, self.scan
        if scan.reverse:
            place = b.sub(const(ir.i64, scan.length - self.width), place)
        index = b.add(b.mul(row, const(ir.i64, scan.length)), place)
        return b.gep(pointer, index, memory_type(scan.dtype))

    def _places(self, block: BlockEmitter, base: Val) -> list[Val]:
        """Where the thread's vectors begin in a tile at ``base``."""
        b, group = block.b, self.lanes or WARP
        lane = b.and_(block.lane, const(ir.i32, group - 1))
        own = b.mul(lane, const(ir.i32, self.width))
        if not self.lanes:
            span = WARP * self.vectors * self.width
            own = b.add(own, b.mul(block.warp, const(ir.i32, span)))
        first = b.add(base, b.zext(own, ir.i64))
        return [b.add(first, const(ir.i64, n * group * self.width)) for n in range(self.vectors)]

    def _whole(self) -> bool:
        """Whether vectors lie wholly inside or outside."""
        return self.scan.length % self.width == 0

    # -- memory ------------------------------------------------------------------------------------

    def _read(
        self, block: BlockEmitter, row: Val, base: Val, places: Sequence[Val], limit: Val | None
    ) -> list[list[Val]]:
        """The elements of all vectors of a tile at ``base`` in the order of the scan, neutral from
        ``limit`` on.  No load waits for a test, so that all are on their way together.
        """
        b, whole = block.b, self._whole()
        if limit is None or whole:
            return [self._vector(block, row, place, limit) for place in places]
        bound = limit

        def vectors() -> list[Val]:
            return [x for place in places for x in self._vector(block, row, place, None)]

        def elements() -> list[Val]:
            return [x for place in places for x in self._elements(block, row, place, bound)]

        inside = b.icmp("sle", b.add(base, const(ir.i64, self.tile)), limit)
        found = b.cond(inside, vectors, elements)
        width = self.width
        return [list(found[n : n + width]) for n in range(0, len(found), width)]

    def _vector(self, block: BlockEmitter, row: Val, place: Val, limit: Val | None) -> list[Val]:
        """A vector; one behind the limit is read where the row's last one is."""
        b, scan = block.b, self.scan
        near = place
        if limit is not None:
            last = const(ir.i64, scan.length - self.width)
            near = b.intrinsic("llvm.smin", ir.i64, (place, last))
        address = self._address(block, block.args[0], row, near)
        wide = vec(memory_type(scan.dtype), self.width)
        vector = b.load(wide, address, self.width * scan.dtype.itemsize)
        found = [b.extractelement(vector, n) for n in range(self.width)]
        values = [widen(b, x) for x in (found[::-1] if scan.reverse else found)]
        if limit is None:
            return values
        fits = b.icmp("sle", b.add(place, const(ir.i64, self.width)), limit)
        return [b.select(fits, x, scan.neutral()) for x in values]

    def _elements(self, block: BlockEmitter, row: Val, place: Val, limit: Val) -> list[Val]:
        """As `_vector`, element by element."""
        b, scan = block.b, self.scan
        element, last = memory_type(scan.dtype), const(ir.i64, scan.length - 1)
        start = b.mul(row, const(ir.i64, scan.length))
        made: list[Val] = []
        for n in range(self.width):
            own = b.add(place, const(ir.i64, n))
            near = b.add(start, b.intrinsic("llvm.smin", ir.i64, (own, last)))
            x = b.load(element, b.gep(block.args[0], near, element), scan.dtype.itemsize)
            inside = b.icmp("slt", own, limit)
            made.append(b.select(inside, widen(b, x), scan.neutral()))
        return made

    def _store(
        self, block: BlockEmitter, row: Val, place: Val, limit: Val | None, values: Sequence[Val]
    ) -> None:
        """Write the elements of a vector that lie before ``limit``."""
        b, scan = block.b, self.scan
        element = memory_type(scan.dtype)
        address = self._address(block, block.args[1], row, place)
        kept = [narrow(b, x, scan.dtype) for x in values]

        def stored() -> None:
            vector = ir.poison(vec(element, self.width))
            for n, x in enumerate(kept[::-1] if scan.reverse else kept):
                vector = b.insertelement(vector, x, n) if self.width > 1 else x
            b.store(vector, address, self.width * scan.dtype.itemsize)

        def parts() -> None:
            for n, x in enumerate(kept):
                with b.if_then(b.icmp("slt", b.add(place, const(ir.i64, n)), bound)):
                    b.store(x, b.gep(address, n, element), scan.dtype.itemsize)

        if limit is None:
            stored()
            return
        bound = limit
        fits = b.icmp("sle", b.add(place, const(ir.i64, self.width)), limit)
        if self._whole():
            with b.if_then(fits):
                stored()
        else:
            b.cond(fits, stored, parts)

    # -- the scan of a tile ------------------------------------------------------------------------

    def _scan_tile(
        self, block: BlockEmitter, values: Sequence[Sequence[Val]], carry: Val, array: Val | None
    ) -> tuple[list[list[Val]], Val]:
        """What each element shows, and the carry of the next tile."""
        b, group = block.b, self.lanes or WARP

        def fold(x: Val, y: Val) -> Val:
            return self.scan.fold(b, x, y)

        first = b.icmp("eq", b.and_(block.lane, const(ir.i32, group - 1)), const(ir.i32, 0))
        last = b.or_(block.lane, const(ir.i32, group - 1))
        sums: list[list[Val]] = []
        starts: list[Val] = []
        before = self.scan.neutral()
        for vector in values:
            running = [vector[0]]
            for x in vector[1:]:
                running.append(fold(running[-1], x))
            sums.append(running)
            upto = block.scan_lanes(running[-1], fold, group)
            lower = b.select(first, self.scan.neutral(), block.shuffle_up(upto, 1))
            starts.append(fold(before, lower))
            before = fold(before, block.shuffle_index(upto, last))
        base, following = carry, carry
        if array is not None:
            earlier, total = block.scan_warps(before, array, fold, self.scan.neutral())
            base, following = fold(carry, earlier), fold(carry, total)
        shown: list[list[Val]] = []
        for start, running in zip(starts, sums, strict=True):
            begin = fold(base, start)
            after = [fold(begin, x) for x in running]
            shown.append([begin, *after[:-1]] if self.scan.exclusive else after)
        return shown, following

    # -- launches ----------------------------------------------------------------------------------

    def scans(self, chunks: int, totals: Argument | None) -> Command:
        arguments = [self.source, self.target, *([] if totals is None else [totals])]
        block = self.block(f"scan_{self.scan.kind}", arguments, self.threads)
        if self.lanes:
            return self._short(block)
        b, scan = block.b, self.scan
        arrays = [block.shared(memory_type(scan.wide), block.warps) for _ in range(2)]
        with block.units(scan.outer * chunks) as unit:
            row, number = b.udiv(unit, const(ir.i64, chunks)), const(ir.i64, 0)
            carry = scan.first()
            if chunks > 1:
                number = b.urem(unit, const(ir.i64, chunks))
                carry = self._carry(block, arrays[1], row, number, chunks)
            low = b.mul(number, const(ir.i64, self._chunk(chunks)))
            high = self._end(block, low, chunks)
            with b.loop(low, high, self.tile, [carry]) as loop:
                limit = None if scan.length % self.tile == 0 else const(ir.i64, scan.length)
                places = self._places(block, loop.index)
                values = self._read(block, row, loop.index, places, limit)
                shown, carry = self._scan_tile(block, values, loop.carried[0], arrays[0])
                for place, vector in zip(places, shown, strict=True):
                    self._store(block, row, place, limit, vector)
                block.barrier()
                loop.next(carry)
        return block.launch(min(scan.outer * chunks, MAX_BLOCKS))

    def _short(self, block: BlockEmitter) -> Command:
        """A group of lanes for each row."""
        b, scan = block.b, self.scan
        each = self.threads // self.lanes
        with block.units(-(-scan.outer // each)) as unit:
            team = b.zext(b.udiv(block.thread, const(ir.i32, self.lanes)), ir.i64)
            row = b.add(b.mul(unit, const(ir.i64, each)), team)
            inside = b.icmp("slt", row, const(ir.i64, scan.outer))
            whole = self.lanes * self.vectors * self.width == scan.length
            full = whole and scan.outer % each == 0
            stop = b.select(inside, const(ir.i64, scan.length), const(ir.i64, 0))
            limit = None if full else stop
            places = self._places(block, const(ir.i64, 0))
            last = const(ir.i64, scan.outer - 1)
            near = b.intrinsic("llvm.smin", ir.i64, (row, last))
            values = self._read(block, near, const(ir.i64, 0), places, limit)
            shown, _ = self._scan_tile(block, values, scan.first(), None)
            for place, vector in zip(places, shown, strict=True):
                self._store(block, row, place, limit, vector)
        return block.launch(min(-(-scan.outer // each), MAX_BLOCKS))

    def _end(self, block: BlockEmitter, low: Val, chunks: int) -> Val:
        """Where a chunk that begins at ``low`` ends."""
        b, length = block.b, const(ir.i64, self.scan.length)
        if chunks == 1:
            return length
        high = b.add(low, const(ir.i64, self._chunk(chunks)))
        return b.intrinsic("llvm.smin", ir.i64, (high, length))

    def _carry(self, block: BlockEmitter, array: Val, row: Val, number: Val, chunks: int) -> Val:
        """The fold of the chunks before a chunk."""
        b, wide = block.b, memory_type(self.scan.wide)
        base = b.gep(block.args[2], b.mul(row, const(ir.i64, chunks)), wide)
        mine = b.zext(block.thread, ir.i64)
        with b.loop(mine, number, self.threads, [self.scan.neutral()]) as loop:
            known = block.load(base, loop.index, wide)
            loop.next(self.scan.fold(b, loop.carried[0], known))
        total = self._across(block, array, loop.carried[0])
        return self.scan.fold(b, self.scan.first(), total)

    def _across(self, block: BlockEmitter, array: Val, value: Val) -> Val:
        """The fold of all threads' values."""

        def fold(x: Val, y: Val) -> Val:
            return self.scan.fold(block.b, x, y)

        return block.scan_warps(block.reduce_warp(value, fold), array, fold, self.scan.neutral())[1]

    def totals(self, chunks: int, totals: Argument) -> Command:
        block = self.block(f"totals_{self.scan.kind}", [self.source, totals], self.threads)
        b, scan = block.b, self.scan
        wide = memory_type(scan.wide)
        array = block.shared(wide, block.warps)
        with block.units(scan.outer * chunks) as unit:
            row = b.udiv(unit, const(ir.i64, chunks))
            low = b.mul(b.urem(unit, const(ir.i64, chunks)), const(ir.i64, self._chunk(chunks)))
            none = [scan.neutral()] * self.vectors
            with b.loop(low, self._end(block, low, chunks), self.tile, none) as loop:
                limit = None if scan.length % self.tile == 0 else const(ir.i64, scan.length)
                places = self._places(block, loop.index)
                values = self._read(block, row, loop.index, places, limit)
                pairs = zip(loop.carried, values, strict=True)
                fold = scan.fold
                loop.next(*(fold(b, acc, self._folded(b, vector)) for acc, vector in pairs))
            total = self._across(block, array, self._folded(b, loop.carried))
            with b.if_then(b.icmp("eq", block.thread, const(ir.i32, 0))):
                b.store(total, b.gep(block.args[1], unit, wide), wide.bits // 8)
            block.barrier()
        return block.launch(min(scan.outer * chunks, MAX_BLOCKS))

    def _folded(self, b: Builder, values: Sequence[Val]) -> Val:
        """The fold of some values, pairwise."""
        live = list(values)
        while len(live) > 1:
            pairs = [self.scan.fold(b, x, y) for x, y in zip(live[::2], live[1::2], strict=False)]
            live = [*pairs, *live[len(pairs) * 2 :]]
        return live[0]


def emit_cumulative(codegen: CodegenContext, step: OpStep) -> Sequence[Command]:
    """The launches of a step of the row ``cumulative``."""
    scan = ScanParams.of(step)
    source, target = step.operands[0], step.results[0]
    return emit_scan(codegen, step, scan, source, target)


def emit_scan(
    codegen: CodegenContext, step: OpStep, scan: ScanParams, source: Argument, target: Argument
) -> list[Command]:
    """Launches that scan ``source`` into ``target``, which is other memory."""
    if scan.inner > 1:
        return Columns(codegen, step, scan, source, target).commands()
    return Rows(codegen, step, scan, source, target).commands()


__all__ = ["emit_cumulative", "emit_scan"]

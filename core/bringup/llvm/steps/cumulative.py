"""Running folds along one dimension as native code.

Where the dimension is not the last one, vectors hold neighbouring columns and go along it with
their accumulators in registers.  Along the last dimension a vector is scanned in log2(lanes) steps
and carries its last lane on; few long rows are cut into chunks whose totals are folded first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bringup.llvm import text as ir
from bringup.llvm.loops.schedule import LONGEST_CHAIN, LoopTarget, NativeKernel
from bringup.llvm.scalar import memory_type, narrow, widen
from bringup.llvm.steps.base import NativeStep, Phase
from bringup.llvm.steps.params import ScanSizes
from bringup.llvm.text import Builder, Module, Val, const_vector, i64_const, vec
from bringup.llvm.text.masked import masked_load, masked_store
from bringup.program.program import OpStep
from bringup.records import record

#: Elements of a chunk, and how many chunks at most a row is cut into.
_CHUNK = 1 << 15
_MAX_CHUNKS = 256
#: Rows from which on the rows alone keep the threads busy.
_MANY_ROWS = 16
#: Vectors of columns that go along the dimension together.
_COLUMNS = 4


@record
class _Scan:
    """How one step runs.  lanes: of a vector."""

    sizes: ScanSizes
    lanes: int

    def load(self, b: Builder, address: Val, mask: Val | None, lanes: int) -> Val:
        element = memory_type(self.sizes.dtype)
        if mask is None:
            return widen(b, b.load(vec(element, lanes), address, self._align))
        loaded = masked_load(b, vec(element, lanes), address, mask, align=self._align)
        return b.select(mask, widen(b, loaded), self.sizes.neutral(lanes))

    def store(self, b: Builder, value: Val, address: Val, mask: Val | None) -> None:
        kept = narrow(b, value, self.sizes.dtype)
        if mask is None:
            b.store(kept, address, self._align)
        else:
            masked_store(b, kept, address, mask, self._align)

    @property
    def _align(self) -> int:
        return self.sizes.dtype.itemsize


def emit_cumulative(module: Module, step: OpStep, name: str, target: LoopTarget) -> NativeStep:
    """Emit a step of the row ``cumulative``."""
    scan = _scan_of(step, target)
    if scan.sizes.inner > 1:
        return NativeStep((_emit_columns(module, step, name, scan),))
    chunk = max(_CHUNK, -(-scan.sizes.length // (_MAX_CHUNKS * scan.lanes)) * scan.lanes)
    many = scan.sizes.outer >= _MANY_ROWS and scan.sizes.length <= scan.lanes * LONGEST_CHAIN
    if many or scan.sizes.length < 2 * chunk:
        return NativeStep((_emit_rows(module, step, name, scan, scan.sizes.length),))
    chunks = -(-scan.sizes.length // chunk)
    totals = _emit_totals(module, step, f"{name}.totals", scan, chunk)
    rows = _emit_rows(module, step, name, scan, chunk)
    return NativeStep((totals, rows), scan.sizes.outer * chunks * scan.sizes.wide.itemsize)


def _scan_of(step: OpStep, target: LoopTarget) -> _Scan:
    sizes = ScanSizes.of(step)
    lanes = target.vector_bits // max(32, sizes.wide.bits)
    if sizes.inner > 1:
        lanes = min(lanes, 1 << (sizes.inner - 1).bit_length())
    return _Scan(sizes, lanes)


# -- along a dimension that is not the last --------------------------------------------------------


def _emit_columns(module: Module, step: OpStep, name: str, scan: _Scan) -> NativeKernel:
    phase = Phase(module, step, name)
    b = phase.b
    width = scan.lanes * min(_COLUMNS, -(-scan.sizes.inner // scan.lanes))
    blocks = -(-scan.sizes.inner // width)
    with phase.units() as unit:
        row, block = _split(b, unit, blocks)
        column = b.mul(block, i64_const(width))
        start = b.add(b.mul(row, i64_const(scan.sizes.length * scan.sizes.inner)), column)
        left = b.sub(i64_const(scan.sizes.inner), column)

        def whole() -> None:
            _run_columns(phase, scan, start, [None] * (width // scan.lanes))

        def partial() -> None:
            masks = [
                _lanes_below(b, b.sub(left, i64_const(n)), scan.lanes)
                for n in range(0, width, scan.lanes)
            ]
            _run_columns(phase, scan, start, masks)

        if scan.sizes.inner % width == 0:
            whole()
        else:
            b.cond(b.icmp("sge", left, i64_const(width)), whole, partial)
    return phase.done(scan.sizes.outer * blocks, scan.sizes.length * width)


def _run_columns(phase: Phase, scan: _Scan, start: Val, masks: Sequence[Val | None]) -> None:
    """One block of columns from end to end."""
    b, lanes = phase.b, scan.lanes
    element = memory_type(scan.sizes.dtype)
    first = [scan.sizes.first(lanes)] * len(masks)
    with b.loop(i64_const(0), i64_const(scan.sizes.length), carried=first) as loop:
        index: Val = loop.index
        if scan.sizes.reverse:
            index = b.sub(i64_const(scan.sizes.length - 1), index)
        base = b.add(start, b.mul(index, i64_const(scan.sizes.inner)))
        totals: list[Val] = []
        for n, mask in enumerate(masks):
            place = b.add(base, i64_const(n * lanes))
            value = scan.load(b, b.gep(phase.operands[0], place, element), mask, lanes)
            total = scan.sizes.fold(b, loop.carried[n], value)
            shown = loop.carried[n] if scan.sizes.exclusive else total
            scan.store(b, shown, b.gep(phase.results[0], place, element), mask)
            totals.append(total)
        loop.next(*totals)


# -- along the last dimension ----------------------------------------------------------------------


def _emit_rows(module: Module, step: OpStep, name: str, scan: _Scan, chunk: int) -> NativeKernel:
    """Scan chunks of rows; those of a cut row begin with what the totals before them fold to."""
    phase = Phase(module, step, name)
    b = phase.b
    chunks = -(-scan.sizes.length // chunk)
    with phase.units() as unit:
        row, number = _split(b, unit, chunks)
        carry = scan.sizes.first()
        if chunks > 1:
            wide = memory_type(scan.sizes.wide)
            totals = b.gep(phase.shared, b.mul(row, i64_const(chunks)), wide)
            with b.loop(i64_const(0), number, carried=[carry]) as before:
                known = b.load(wide, b.gep(totals, before.index, wide))
                before.next(scan.sizes.fold(b, before.carried[0], known))
            carry = before.carried[0]

        def step_(address: Val, mask: Val | None, carried: Val) -> Val:
            return _scan_vector(phase, scan, address, mask, carried)

        _along(b, scan, row, number, chunk, carry, step_)
    return phase.done(scan.sizes.outer * chunks, min(chunk, scan.sizes.length))


def _emit_totals(module: Module, step: OpStep, name: str, scan: _Scan, chunk: int) -> NativeKernel:
    """What each chunk folds to, in the memory that the phases share."""
    phase = Phase(module, step, name)
    b, element = phase.b, memory_type(scan.sizes.dtype)
    chunks = -(-scan.sizes.length // chunk)
    with phase.units() as unit:
        row, number = _split(b, unit, chunks)

        def step_(place: Val, mask: Val | None, carried: Val) -> Val:
            address = b.gep(phase.operands[0], place, element)
            return scan.sizes.fold(b, carried, scan.load(b, address, mask, scan.lanes))

        total = _along(b, scan, row, number, chunk, scan.sizes.neutral(scan.lanes), step_)
        lanes = scan.lanes
        while lanes > 1:
            lanes //= 2
            low = b.shufflevector(total, None, list(range(lanes)))
            high = b.shufflevector(total, None, list(range(lanes, 2 * lanes)))
            total = scan.sizes.fold(b, low, high)
        place = b.add(b.mul(row, i64_const(chunks)), number)
        b.store(total, b.gep(phase.shared, place, memory_type(scan.sizes.wide)))
    return phase.done(scan.sizes.outer * chunks, chunk)


def _along(
    b: Builder,
    scan: _Scan,
    row: Val,
    number: Val,
    chunk: int,
    carry: Val,
    step: Callable[[Val, Val | None, Val], Val],
) -> Val:
    """Go through a chunk of a row vector by vector, from its end where the scan is reversed.

    step: given the element offset of a vector, its mask and the carried value, gives the next one.
    """
    lanes = scan.lanes
    low = b.mul(number, i64_const(chunk))
    high = b.smin(b.add(low, i64_const(chunk)), i64_const(scan.sizes.length))
    base = b.mul(row, i64_const(scan.sizes.length))
    rest = b.binary("and", b.sub(high, low), i64_const(lanes - 1))
    stop = b.sub(high, rest)
    with b.loop(low, stop, lanes, [carry]) as loop:
        turned = b.sub(i64_const(scan.sizes.length - lanes), loop.index)
        place = turned if scan.sizes.reverse else loop.index
        loop.next(step(b.add(base, place), None, loop.carried[0]))
    mask = _lanes_below(b, rest, lanes)
    if scan.sizes.reverse:
        stop = b.sub(i64_const(scan.sizes.length), high)

    def last() -> Val:
        return step(b.add(base, stop), mask, loop.carried[0])

    some = b.icmp("sgt", rest, i64_const(0))
    return b.cond(some, last, lambda: loop.carried[0])[0]


def _scan_vector(phase: Phase, scan: _Scan, place: Val, mask: Val | None, carry: Val) -> Val:
    """Write the running fold of one vector; returns what the next one begins with."""
    b, lanes, element = phase.b, scan.lanes, memory_type(scan.sizes.dtype)
    turned = list(range(lanes))[::-1]
    value = scan.load(b, b.gep(phase.operands[0], place, element), mask, lanes)
    if scan.sizes.reverse:
        value = b.shufflevector(value, None, turned)
    distance = 1
    while distance < lanes:
        moved = [lanes] * distance + list(range(lanes - distance))
        value = scan.sizes.fold(b, b.shufflevector(value, scan.sizes.neutral(lanes), moved), value)
        distance *= 2
    last = b.extractelement(value, lanes - 1)
    before = b.splat(carry, lanes)
    shown = scan.sizes.fold(b, before, value)
    if scan.sizes.exclusive:
        shown = b.shufflevector(before, shown, [0, *range(lanes, 2 * lanes - 1)])
    if scan.sizes.reverse:
        shown = b.shufflevector(shown, None, turned)
    scan.store(b, shown, b.gep(phase.results[0], place, element), mask)
    return scan.sizes.fold(b, carry, last)


def _split(b: Builder, unit: Val, count: int) -> tuple[Val, Val]:
    """Row and number within the row of a unit."""
    if count == 1:
        return unit, i64_const(0)
    size = i64_const(count)
    return b.binary("udiv", unit, size), b.binary("urem", unit, size)


def _lanes_below(b: Builder, left: Val, lanes: int) -> Val:
    """Lanes below ``left``, which may be negative."""
    if lanes == 1:
        return b.icmp("sgt", left, i64_const(0))
    clamped = b.smin(left, i64_const(lanes))
    clamped = b.smax(clamped, i64_const(0))
    count = b.splat(b.trunc(clamped, ir.i32), lanes)
    return b.icmp("slt", const_vector(ir.i32, list(range(lanes))), count)

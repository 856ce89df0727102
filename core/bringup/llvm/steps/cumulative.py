"""Scans (running folds) along one dimension as native code.

If the dimension is not the last one, vectors hold neighbouring columns and walk along it, with
their accumulators in registers.  Along the last dimension, a vector is scanned in log2(lanes) steps
and its last lane is carried on.  A few long rows are split into chunks, whose totals come first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bringup.integers import ceil_div, ceil_power_of_two
from bringup.llvm.loops.schedule import LONGEST_CHAIN, LoopTarget, NativeKernel
from bringup.llvm.scalar import memory_type, narrow, widen
from bringup.llvm.steps.base import NativeStep, PhaseBuilder
from bringup.llvm.steps.params import ScanParams
from bringup.llvm.text import Builder, Module, Val, i64_const, vec
from bringup.llvm.text.masked import clamp, lanes_below, masked_load, masked_store
from bringup.program.program import OpStep
from bringup.records import record

#: Elements of a chunk, and the most chunks of a row.
_CHUNK = 1 << 15
_MAX_CHUNKS = 256
#: So many rows keep the threads busy.
_MANY_ROWS = 16
#: Vectors of columns that walk along the dimension together.
_COLUMNS = 4


@record
class _Scan:
    """How one step runs.  lanes: of a vector."""

    params: ScanParams
    lanes: int

    def load(self, b: Builder, address: Val, mask: Val | None, lanes: int) -> Val:
        element = memory_type(self.params.dtype)
        if mask is None:
            return widen(b, b.load(vec(element, lanes), address, self._align))
        loaded = masked_load(b, vec(element, lanes), address, mask, align=self._align)
        return b.select(mask, widen(b, loaded), self.params.neutral(lanes))

    def store(self, b: Builder, value: Val, address: Val, mask: Val | None) -> None:
        stored = narrow(b, value, self.params.dtype)
        if mask is None:
            b.store(stored, address, self._align)
        else:
            masked_store(b, stored, address, mask, self._align)

    @property
    def _align(self) -> int:
        return self.params.dtype.itemsize


def emit_cumulative(module: Module, step: OpStep, name: str, target: LoopTarget) -> NativeStep:
    """Emit a step of the row ``cumulative``."""
    scan = _scan_of(step, target)
    if scan.params.inner > 1:
        return NativeStep((_emit_columns(module, step, name, scan),))
    chunk = max(_CHUNK, ceil_div(scan.params.length, _MAX_CHUNKS * scan.lanes) * scan.lanes)
    many = scan.params.outer >= _MANY_ROWS and scan.params.length <= scan.lanes * LONGEST_CHAIN
    if many or scan.params.length < 2 * chunk:
        return NativeStep((_emit_rows(module, step, name, scan, scan.params.length),))
    chunks = ceil_div(scan.params.length, chunk)
    totals = _emit_totals(module, step, f"{name}.totals", scan, chunk)
    rows = _emit_rows(module, step, name, scan, chunk)
    return NativeStep((totals, rows), scan.params.outer * chunks * scan.params.wide.itemsize)


def _scan_of(step: OpStep, target: LoopTarget) -> _Scan:
    params = ScanParams.of(step)
    lanes = target.vector_bits // max(32, params.wide.bits)
    if params.inner > 1:
        lanes = min(lanes, ceil_power_of_two(params.inner))
    return _Scan(params, lanes)


# -- along a dimension that is not the last --------------------------------------------------------


def _emit_columns(module: Module, step: OpStep, name: str, scan: _Scan) -> NativeKernel:
    phase = PhaseBuilder(module, step, name)
    b = phase.b
    width = scan.lanes * min(_COLUMNS, ceil_div(scan.params.inner, scan.lanes))
    blocks = ceil_div(scan.params.inner, width)
    with phase.units() as unit:
        row, block = _split(b, unit, blocks)
        column = b.mul(block, i64_const(width))
        start = b.add(b.mul(row, i64_const(scan.params.length * scan.params.inner)), column)
        left = b.sub(i64_const(scan.params.inner), column)

        def whole() -> None:
            _run_columns(phase, scan, start, [None] * (width // scan.lanes))

        def partial() -> None:
            masks = [
                _lanes_below(b, b.sub(left, i64_const(n)), scan.lanes)
                for n in range(0, width, scan.lanes)
            ]
            _run_columns(phase, scan, start, masks)

        if scan.params.inner % width == 0:
            whole()
        else:
            b.cond(b.icmp("sge", left, i64_const(width)), whole, partial)
    return phase.done(scan.params.outer * blocks, scan.params.length * width)


def _run_columns(phase: PhaseBuilder, scan: _Scan, start: Val, masks: Sequence[Val | None]) -> None:
    """Scan one block of columns from end to end."""
    b, lanes = phase.b, scan.lanes
    element = memory_type(scan.params.dtype)
    first = [scan.params.first(lanes)] * len(masks)
    with b.loop(i64_const(0), i64_const(scan.params.length), carried=first) as loop:
        index: Val = loop.index
        if scan.params.reverse:
            index = b.sub(i64_const(scan.params.length - 1), index)
        base = b.add(start, b.mul(index, i64_const(scan.params.inner)))
        totals: list[Val] = []
        for n, mask in enumerate(masks):
            offset = b.add(base, i64_const(n * lanes))
            value = scan.load(b, b.gep(phase.operands[0], offset, element), mask, lanes)
            total = scan.params.fold(b, loop.carried[n], value)
            result = loop.carried[n] if scan.params.exclusive else total
            scan.store(b, result, b.gep(phase.results[0], offset, element), mask)
            totals.append(total)
        loop.next(*totals)


# -- along the last dimension ----------------------------------------------------------------------


def _emit_rows(module: Module, step: OpStep, name: str, scan: _Scan, chunk: int) -> NativeKernel:
    """Scan chunks of rows; a chunk of a split row begins with the fold of the totals before it."""
    phase = PhaseBuilder(module, step, name)
    b = phase.b
    chunks = ceil_div(scan.params.length, chunk)
    with phase.units() as unit:
        row, number = _split(b, unit, chunks)
        carry = scan.params.first()
        if chunks > 1:
            wide = memory_type(scan.params.wide)
            totals = b.gep(phase.shared, b.mul(row, i64_const(chunks)), wide)
            with b.loop(i64_const(0), number, carried=[carry]) as before:
                total = b.load(wide, b.gep(totals, before.index, wide))
                before.next(scan.params.fold(b, before.carried[0], total))
            carry = before.carried[0]

        def step_(address: Val, mask: Val | None, carried: Val) -> Val:
            return _scan_vector(phase, scan, address, mask, carried)

        _along(b, scan, row, number, chunk, carry, step_)
    return phase.done(scan.params.outer * chunks, min(chunk, scan.params.length))


def _emit_totals(module: Module, step: OpStep, name: str, scan: _Scan, chunk: int) -> NativeKernel:
    """Write the total of each chunk to the memory that the phases share."""
    phase = PhaseBuilder(module, step, name)
    b, element = phase.b, memory_type(scan.params.dtype)
    chunks = ceil_div(scan.params.length, chunk)
    with phase.units() as unit:
        row, number = _split(b, unit, chunks)

        def step_(offset: Val, mask: Val | None, carried: Val) -> Val:
            address = b.gep(phase.operands[0], offset, element)
            return scan.params.fold(b, carried, scan.load(b, address, mask, scan.lanes))

        total = _along(b, scan, row, number, chunk, scan.params.neutral(scan.lanes), step_)
        lanes = scan.lanes
        while lanes > 1:
            lanes //= 2
            low = b.shufflevector(total, None, list(range(lanes)))
            high = b.shufflevector(total, None, list(range(lanes, 2 * lanes)))
            total = scan.params.fold(b, low, high)
        offset = b.add(b.mul(row, i64_const(chunks)), number)
        b.store(total, b.gep(phase.shared, offset, memory_type(scan.params.wide)))
    return phase.done(scan.params.outer * chunks, chunk)


def _along(
    b: Builder,
    scan: _Scan,
    row: Val,
    number: Val,
    chunk: int,
    carry: Val,
    step: Callable[[Val, Val | None, Val], Val],
) -> Val:
    """Walk along a chunk of a row vector by vector, from its end if the scan is reversed.

    step: from the offset of a vector, its mask and the carried value to the next carried value.
    """
    lanes = scan.lanes
    low = b.mul(number, i64_const(chunk))
    high = b.smin(b.add(low, i64_const(chunk)), i64_const(scan.params.length))
    base = b.mul(row, i64_const(scan.params.length))
    rest = b.binary("and", b.sub(high, low), i64_const(lanes - 1))
    stop = b.sub(high, rest)
    with b.loop(low, stop, lanes, [carry]) as loop:
        mirrored = b.sub(i64_const(scan.params.length - lanes), loop.index)
        index = mirrored if scan.params.reverse else loop.index
        loop.next(step(b.add(base, index), None, loop.carried[0]))
    mask = _lanes_below(b, rest, lanes)
    if scan.params.reverse:
        stop = b.sub(i64_const(scan.params.length), high)

    def last() -> Val:
        return step(b.add(base, stop), mask, loop.carried[0])

    some = b.icmp("sgt", rest, i64_const(0))
    return b.cond(some, last, lambda: loop.carried[0])[0]


def _scan_vector(
    phase: PhaseBuilder, scan: _Scan, offset: Val, mask: Val | None, carry: Val
) -> Val:
    """Write the running fold of one vector; returns the carried value of the next one."""
    b, lanes, element = phase.b, scan.lanes, memory_type(scan.params.dtype)
    mirrored = range(lanes - 1, -1, -1)
    value = scan.load(b, b.gep(phase.operands[0], offset, element), mask, lanes)
    if scan.params.reverse:
        value = b.shufflevector(value, None, mirrored)
    distance = 1
    while distance < lanes:
        moved = [lanes] * distance + list(range(lanes - distance))
        value = scan.params.fold(
            b, b.shufflevector(value, scan.params.neutral(lanes), moved), value
        )
        distance *= 2
    last = b.extractelement(value, lanes - 1)
    before = b.splat(carry, lanes)
    result = scan.params.fold(b, before, value)
    if scan.params.exclusive:
        result = b.shufflevector(before, result, [0, *range(lanes, 2 * lanes - 1)])
    if scan.params.reverse:
        result = b.shufflevector(result, None, mirrored)
    scan.store(b, result, b.gep(phase.results[0], offset, element), mask)
    return scan.params.fold(b, carry, last)


def _split(b: Builder, unit: Val, count: int) -> tuple[Val, Val]:
    """The row of a unit, and its number within the row."""
    if count == 1:
        return unit, i64_const(0)
    size = i64_const(count)
    return b.binary("udiv", unit, size), b.binary("urem", unit, size)


def _lanes_below(b: Builder, left: Val, lanes: int) -> Val:
    """The lanes below ``left``, which may be negative."""
    if lanes == 1:
        return b.icmp("sgt", left, i64_const(0))
    return lanes_below(b, clamp(b, left, lanes), lanes)

"""Scatter and dynamic_update_slice as native code.

The array is copied, unless the result has its memory.  Then every window is written in row-major
order, in runs that are contiguous in both the array and the updates, by vectors.  Threads share the
columns of runs or the batches, so that updates of one element stay in order.  If no two updates
overlap, threads share the windows themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from bringup.dtypes import DType, f32
from bringup.integers import ceil_div, ceil_power_of_two
from bringup.llvm import text as ir
from bringup.llvm.loops.schedule import LoopTarget, NativeKernel
from bringup.llvm.scalar import combine, is_half, memory_type, narrow, widen
from bringup.llvm.steps.base import NativeStep, PhaseBuilder
from bringup.llvm.steps.params import (
    array_strides,
    coordinates,
    load_index,
    stride_of,
    trailing_run,
)
from bringup.llvm.text import Builder, Module, Val, const, i64_const, vec
from bringup.llvm.text.masked import lanes_below, masked_load, masked_store
from bringup.ops._windows import Windows
from bringup.ops.monoids import ROUNDING
from bringup.ops.scattering import scatter_windows
from bringup.program.program import OpStep
from bringup.records import record

Ints = tuple[int, ...]

#: Bytes of the array that one unit copies.
_COPIED = 1 << 17
#: Threads share a run of at least so many bytes.
_SHARED_RUN = 512
#: Rows of a unit if no two windows overlap.
_ROWS = 256


@record(eq=False)
class _Write:
    """What is written, and where.

    shape: of the updates.  strides: of the array, by dimension of the updates.
    run: trailing dimensions of the updates that are contiguous in the array.
    moves: by component of an index, the stride of the array and the last valid start.
    is_unique: whether no two updates overlap.
    batches: leading dimensions of the updates along which no two updates overlap.
    operand: the number of the operand with the updates.
    """

    kind: str
    dtype: DType
    shape: Ints
    strides: Ints
    run: int
    moves: tuple[tuple[int, int], ...]
    is_unique: bool
    batches: int
    operand: int

    @property
    def rows(self) -> Ints:
        """Sizes of the dimensions outside of runs."""
        return self.shape[: len(self.shape) - self.run]

    @property
    def wide(self) -> bool:
        """Whether half floats are summed in f32 and rounded once at the end."""
        return is_half(self.dtype) and self.kind in ROUNDING and not self.is_unique

    @property
    def array_dtype(self) -> DType:
        """The dtype of the array while updates are written."""
        return f32 if self.wide else self.dtype

    @property
    def width(self) -> int:
        """Elements of a run."""
        return math.prod(self.shape[len(self.shape) - self.run :])


def emit_scatter(module: Module, step: OpStep, name: str, target: LoopTarget) -> NativeStep:
    """Emit a step of the row ``scatter``."""
    x, indices, updates = (slot.type for slot in step.operands)
    windows = scatter_windows(x, indices, updates, step.attrs)
    strides = array_strides(windows)
    batch = {windows.position_dims[d] for d in windows.batch_position_dims}
    write = _Write(
        step.attrs["kind"],
        x.dtype,
        updates.shape,
        strides,
        trailing_run(updates.shape, strides, windows.offset),
        tuple(
            (stride_of(x.shape, d), last)
            for d, last in zip(windows.index_map, windows.last_starts, strict=True)
        ),
        step.attrs["unique"] or math.prod(windows.positions) == 1,
        next((n for n in range(updates.rank) if n not in batch), updates.rank),
        2,
    )

    def begin(phase: PhaseBuilder, row: Sequence[Val]) -> tuple[Val, Val | None]:
        position = [row[d] for d in windows.position_dims]
        return _indexed(phase, windows, write, indices.dtype, position)

    return _emit(module, step, name, target, write, begin)


def emit_dynamic_update_slice(
    module: Module, step: OpStep, name: str, target: LoopTarget
) -> NativeStep:
    """Emit a step of the row ``dynamic_update_slice``."""
    x, update, *starts = (slot.type for slot in step.operands)
    strides = tuple(stride_of(x.shape, d) for d in range(x.rank))
    moves = tuple(
        (stride, n - size) for stride, n, size in zip(strides, x.shape, update.shape, strict=True)
    )
    run = trailing_run(update.shape, strides, range(x.rank))
    write = _Write("set", x.dtype, update.shape, strides, run, moves, True, 0, 1)

    def begin(phase: PhaseBuilder, _row: Sequence[Val]) -> tuple[Val, Val | None]:
        b, offset = phase.b, i64_const(0)
        for address, type_, (stride, last) in zip(phase.operands[2:], starts, moves, strict=True):
            start = load_index(b, address, type_.dtype)
            if type_.dtype.kind == "int":
                start = b.smax(start, i64_const(0))
            start = b.umin(start, i64_const(last))
            offset = b.add(offset, b.mul(start, i64_const(stride)))
        return offset, None

    return _emit(module, step, name, target, write, begin)


# -- geometry --------------------------------------------------------------------------------------


def _indexed(
    phase: PhaseBuilder, windows: Windows, write: _Write, dtype: DType, position: Sequence[Val]
) -> tuple[Val, Val | None]:
    """The offset of the window of an index, and whether the window is inside of the array."""
    b, offset = phase.b, i64_const(0)
    inside: Val | None = None
    for c, (stride, last) in enumerate(write.moves):
        full = list(position)
        if windows.index_dim < len(windows.indices):
            full.insert(windows.index_dim, i64_const(c))
        flat = i64_const(0)
        for coordinate, n in zip(full, windows.indices, strict=True):
            flat = b.add(b.mul(flat, i64_const(n)), coordinate)
        start = load_index(b, b.gep(phase.operands[1], flat, memory_type(dtype)), dtype)
        fits = b.icmp("ule", start, i64_const(last))
        inside = fits if inside is None else b.and_(inside, fits)
        offset = b.add(offset, b.mul(start, i64_const(stride)))
    return offset, inside


# -- phases ----------------------------------------------------------------------------------------

#: From a row of the updates to the offset of its run in the array, and whether it is written.
_Begin = Callable[[PhaseBuilder, Sequence[Val]], tuple[Val, Val | None]]


def _emit(
    module: Module,
    step: OpStep,
    name: str,
    target: LoopTarget,
    write: _Write,
    begin: _Begin,
) -> NativeStep:
    if not math.prod(write.shape):
        return NativeStep((_emit_copy(module, step, name),))
    rows = _emit_rows(module, step, name, target, write, begin)
    if not write.wide:
        return NativeStep((_emit_copy(module, step, f"{name}.copy"), rows))
    lanes = target.vector_bits // 32
    first = _emit_conversion(module, step, f"{name}.widen", lanes, True)
    last = _emit_conversion(module, step, f"{name}.narrow", lanes, False)
    return NativeStep((first, rows, last), step.operands[0].type.size * 4)


def _emit_copy(module: Module, step: OpStep, name: str) -> NativeKernel:
    """Copy the array to the memory of the result, unless it is the same memory."""
    phase = PhaseBuilder(module, step, name)
    b, nbytes = phase.b, step.operands[0].type.nbytes
    source, target = phase.operands[0], phase.results[0]
    units = ceil_div(nbytes, _COPIED)
    differ = b.icmp("ne", b.ptrtoint(source, ir.i64), b.ptrtoint(target, ir.i64))
    with phase.units() as unit, b.if_then(differ):
        offset = b.mul(unit, i64_const(_COPIED))
        left = b.sub(i64_const(nbytes), offset)
        count = b.smin(left, i64_const(_COPIED))
        addresses = [b.gep(pointer, offset, ir.i8) for pointer in (target, source)]
        is_volatile = const(ir.i1, 0)
        b.intrinsic(
            "llvm.memcpy", ir.void, (*addresses, count, is_volatile), (ir.ptr, ir.ptr, ir.i64)
        )
    return phase.done(units, _COPIED // 8)


def _emit_conversion(
    module: Module, step: OpStep, name: str, lanes: int, widening: bool
) -> NativeKernel:
    """Convert the array to f32 in shared memory, or that to the result."""
    phase = PhaseBuilder(module, step, name)
    b, type_ = phase.b, step.operands[0].type
    half, each = memory_type(type_.dtype), _COPIED // 4
    source = phase.operands[0] if widening else phase.shared
    target = phase.shared if widening else phase.results[0]
    from_type, to_type = (half, ir.f32) if widening else (ir.f32, half)

    def convert(index: Val, count: int) -> None:
        x = b.load(vec(from_type, count), b.gep(source, index, from_type), from_type.bits // 8)
        converted = widen(b, x) if widening else narrow(b, x, type_.dtype)
        b.store(converted, b.gep(target, index, to_type), to_type.bits // 8)

    with phase.units() as unit:
        low = b.mul(unit, i64_const(each))
        high = b.add(low, i64_const(each))
        high = b.smin(high, i64_const(type_.size))
        stop = b.sub(high, b.binary("urem", b.sub(high, low), i64_const(lanes)))
        with b.loop(low, stop, lanes) as loop:
            convert(loop.index, lanes)
        with b.loop(stop, high) as loop:
            convert(loop.index, 1)
    return phase.done(ceil_div(type_.size, each), each // 4)


def _emit_rows(
    module: Module, step: OpStep, name: str, target: LoopTarget, write: _Write, begin: _Begin
) -> NativeKernel:
    phase = PhaseBuilder(module, step, name)
    b = phase.b
    total = math.prod(write.rows)
    if write.is_unique:
        each, parts, width = min(_ROWS, total), 1, write.width
        blocks = ceil_div(total, each)
    else:
        blocks = math.prod(write.rows[: min(write.batches, len(write.rows))])
        each = total // blocks
        nbytes = write.width * write.dtype.itemsize
        parts = max(1, min(8, nbytes // _SHARED_RUN))
        width = ceil_div(write.width, parts)
    lanes = _lanes(target, write.dtype, width)
    with phase.units() as unit:
        block = b.binary("udiv", unit, i64_const(parts))
        first = b.mul(block, i64_const(each))
        last = b.add(first, i64_const(each))
        last = b.smin(last, i64_const(total))
        low, high = i64_const(0), i64_const(write.width)
        if parts > 1:
            low = b.mul(b.binary("urem", unit, i64_const(parts)), i64_const(width))
            high = b.smin(b.add(low, i64_const(width)), high)
        with b.loop(first, last) as loop:
            _row(phase, write, begin, loop.index, (low, high), lanes)
    return phase.done(blocks * parts, each * (width + 4))


def _lanes(target: LoopTarget, dtype: DType, width: int) -> int:
    lanes = target.vector_bits // max(dtype.bits, 16)
    return min(lanes, ceil_power_of_two(width))


def _row(
    phase: PhaseBuilder, write: _Write, begin: _Begin, row: Val, span: tuple[Val, Val], lanes: int
) -> None:
    """Write one run: find its offset in the array, then write elements ``span[0] … span[1]``."""
    b, element = phase.b, memory_type(write.dtype)
    position = coordinates(b, row, write.rows)
    offset, inside = begin(phase, position)
    for coordinate, stride in zip(position, write.strides, strict=False):
        offset = b.add(offset, b.mul(coordinate, i64_const(stride)))
    updates = b.gep(phase.operands[write.operand], b.mul(row, i64_const(write.width)), element)

    array = phase.shared if write.wide else phase.results[0]

    def run() -> None:
        target = b.gep(array, offset, memory_type(write.array_dtype))
        _elements(b, write, (target, updates), span, lanes)

    if inside is None:
        run()
        return
    with b.if_then(inside, likely=True):
        run()


def _elements(
    b: Builder, write: _Write, pointers: tuple[Val, Val], span: tuple[Val, Val], lanes: int
) -> None:
    """Combine the updates of a span with the array: whole vectors, then a masked vector."""
    low, high = span
    if write.width == 1:
        _combine(b, write, pointers, low, 1, None)
        return
    if lanes == 1:
        with b.loop(low, high) as loop:
            _combine(b, write, pointers, loop.index, 1, None)
        return
    length = b.sub(high, low)
    stop = b.sub(high, b.binary("urem", length, i64_const(lanes)))
    with b.loop(low, stop, lanes) as loop:
        _combine(b, write, pointers, loop.index, lanes, None)
    left = b.sub(high, stop)
    with b.if_then(b.icmp("sgt", left, i64_const(0))):
        _combine(b, write, pointers, stop, lanes, lanes_below(b, left, lanes))


def _combine(
    b: Builder, write: _Write, pointers: tuple[Val, Val], index: Val, lanes: int, mask: Val | None
) -> None:
    target = b.gep(pointers[0], index, memory_type(write.array_dtype))
    source = b.gep(pointers[1], index, memory_type(write.dtype))

    def load(address: Val, dtype: DType) -> Val:
        wide = vec(memory_type(dtype), lanes)
        if mask is None:
            return b.load(wide, address, dtype.itemsize)
        return masked_load(b, wide, address, mask, ir.zero(wide), dtype.itemsize)

    new = load(source, write.dtype)
    if write.kind != "set":
        dtype = f32 if is_half(write.dtype) else write.dtype
        both = combine(
            b, write.kind, dtype, widen(b, load(target, write.array_dtype)), widen(b, new)
        )
        new = narrow(b, both, write.array_dtype)
    if mask is None:
        b.store(new, target, write.array_dtype.itemsize)
    else:
        masked_store(b, new, target, mask, write.array_dtype.itemsize)

"""Updates written by a thread each, without order or by atomics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bringup.dtypes import DType, f32
from bringup.llvm import text as ir
from bringup.llvm.scalar import combine, identity, is_half, memory_type, narrow, widen
from bringup.llvm.text import Builder, Val, const
from bringup.program.program import OpStep
from bringup_cuda.commands import Argument, Clear, Command
from bringup_cuda.lower import Emission
from bringup_cuda.steps._places import Places
from bringup_cuda.steps.block import Block

_THREADS = 256
_SCOPE = "device"
#: An array of so many bytes at most is worth one in each block, if there are so many updates for
#: each of its elements, and in all; updates that a thread takes, and blocks.
_TABLE = 16 << 10
_OFTEN = 4
_MANY = 4096
_EACH = 16
_BUSY_BLOCKS = 528


def folded(b: Builder, kind: str, dtype: DType, old: Val, new: Val) -> Val:
    """An element combined with an update, both as in memory."""
    wide = f32 if is_half(dtype) else dtype
    return narrow(b, combine(b, kind, wide, widen(b, old), widen(b, new)), dtype)


@contextmanager
def target_of(block: Block, places: Places, item: Val) -> Iterator[Val]:
    """Run for an element of the updates whose window lies inside: where it goes in the array.

    The indices are the block's argument 1.
    """
    b = block.b
    row, column = _split(b, places, item)
    offset, inside = places.begin(b, row, block.args[1])
    offset = b.add(offset, column)
    if inside is None:
        yield offset
        return
    with b.if_then(inside):
        yield offset


def _split(b: Builder, places: Places, item: Val) -> tuple[Val, Val]:
    """Row and column of an element of the updates."""
    width = const(ir.i64, places.width)
    return b.udiv(item, width), b.urem(item, width) if places.width > 1 else const(ir.i64, 0)


def arguments_of(step: OpStep, *scratch: Argument) -> tuple[Argument, ...]:
    """The array, the indices, the updates, then scratch."""
    return (step.results[0], *step.operands[1:3], *scratch)


def _each(
    emission: Emission, step: OpStep, places: Places, one: Callable[[Builder, Val, Val], None]
) -> Command:
    """Something for each update: given its target's address and its value."""
    updates = step.operands[2].type
    element, nbytes = memory_type(updates.dtype), updates.dtype.itemsize
    label = f"scatter_{step.attrs['kind']}"
    block = Block(emission, step, label, arguments_of(step), _THREADS)
    b = block.b
    with block.items(updates.size) as item, target_of(block, places, item) as offset:
        value = b.load(element, b.gep(block.args[2], item, element), nbytes)
        one(b, b.gep(block.args[0], offset, element), value)
    return block.launch(block.blocks_for(updates.size))


def write(emission: Emission, step: OpStep, places: Places) -> Command:
    """Updates that never meet."""
    kind, dtype = step.attrs["kind"], step.operands[0].type.dtype

    def one(b: Builder, target: Val, update: Val) -> None:
        if kind != "set":
            update = folded(b, kind, dtype, b.load(update.type, target, dtype.itemsize), update)
        b.store(update, target, dtype.itemsize)

    return _each(emission, step, places, one)


def write_clamped(emission: Emission, step: OpStep, places: Places) -> Command:
    """An update as one window, moved inside the array."""
    _, update, *starts = step.operands
    arguments = (step.results[0], update, *starts)
    block = Block(emission, step, "update_slice", arguments, _THREADS)
    b, element = block.b, memory_type(update.type.dtype)
    with block.items(update.type.size) as item:
        row, column = _split(b, places, item)
        dtypes = [slot.type.dtype for slot in starts]
        offset = places.clamped(b, row, block.args[2:], dtypes)
        value = b.load(element, b.gep(block.args[1], item, element), element.bits // 8)
        target = b.gep(block.args[0], b.add(offset, column), element)
        b.store(value, target, element.bits // 8)
    return block.launch(block.blocks_for(update.type.size))


def set_last(emission: Emission, step: OpStep, places: Places) -> list[Command]:
    """The last of the updates that meet: their numbers are compared first."""
    updates, unit = step.operands[2].type, places.unit
    # Numbers count from 1; 0 is none.
    number = ir.i32 if updates.size < (1 << 32) - 1 else ir.i64
    nbytes = places.size // unit * number.bits // 8
    winners = emission.scratch(nbytes)
    arguments = arguments_of(step, winners)

    def entry(block: Block, offset: Val) -> Val:
        place = block.b.udiv(offset, const(ir.i64, unit))
        return block.b.gep(block.args[3], place, number)

    def numbered(b: Builder, item: Val) -> Val:
        count = b.add(b.udiv(item, const(ir.i64, unit)), const(ir.i64, 1))
        return b.trunc(count, number)

    first = Block(emission, step, "scatter_last", arguments, _THREADS)
    with first.items(updates.size // unit) as count:
        item = first.b.mul(count, const(ir.i64, unit))
        with target_of(first, places, item) as offset:
            mine = numbered(first.b, item)
            first.b.atomicrmw("umax", entry(first, offset), mine, "monotonic", _SCOPE)
    compared = first.launch(first.blocks_for(updates.size // unit))
    block = Block(emission, step, "scatter_set", arguments, _THREADS)
    b, element = block.b, memory_type(updates.dtype)
    with block.items(updates.size) as item, target_of(block, places, item) as offset:
        last = b.load(number, entry(block, offset), number.bits // 8)
        with b.if_then(b.icmp("eq", last, numbered(b, item))):
            value = b.load(element, b.gep(block.args[2], item, element), updates.dtype.itemsize)
            b.store(value, b.gep(block.args[0], offset, element), updates.dtype.itemsize)
    return [Clear(winners, nbytes), compared, block.launch(block.blocks_for(updates.size))]


def fold_atomically(emission: Emission, step: OpStep, places: Places) -> Command:
    """Folds that give the same in any order."""
    kind, dtype = step.attrs["kind"], step.operands[0].type.dtype
    if not _has_atomic(kind, dtype):
        return _each(emission, step, places, lambda b, *at: _exchange(b, kind, dtype, *at))
    array, updates = places.size * dtype.itemsize, step.operands[2].type.size
    if array <= _TABLE and updates >= _OFTEN * places.size and updates >= _MANY:
        return _fold_in_blocks(emission, step, places)

    def one(b: Builder, target: Val, update: Val) -> None:
        b.atomicrmw(_atomic(kind, dtype), target, update, "monotonic", _SCOPE)

    return _each(emission, step, places, one)


def _has_atomic(kind: str, dtype: DType) -> bool:
    return not dtype.is_float and kind != "mul" and dtype.bits >= 32


def _atomic(kind: str, dtype: DType) -> str:
    return f"u{kind}" if dtype.kind == "uint" and kind != "add" else kind


def _fold_in_blocks(emission: Emission, step: OpStep, places: Places) -> Command:
    """Folds into few places: every block has its own array in shared memory, and folds what it
    holds into the real one at the end, so that updates of one place do not wait for each other.
    """
    kind, updates = step.attrs["kind"], step.operands[2].type
    element, nbytes = memory_type(updates.dtype), updates.dtype.itemsize
    block = Block(emission, step, f"scatter_{kind}", arguments_of(step), _THREADS)
    b, atomic = block.b, _atomic(kind, updates.dtype)
    table, none = block.shared(element, places.size), identity(kind, updates.dtype)
    size, first = const(ir.i64, places.size), b.zext(block.thread, ir.i64)
    with b.loop(first, size, _THREADS) as loop:
        block.put(none, table, loop.index)
    block.barrier()
    blocks = min(_BUSY_BLOCKS, -(-updates.size // (_EACH * _THREADS)))
    with block.items(updates.size, blocks) as item, target_of(block, places, item) as offset:
        value = b.load(element, b.gep(block.args[2], item, element), nbytes)
        b.atomicrmw(atomic, block.at(table, offset, element), value, "monotonic", "block")
    block.barrier()
    with b.loop(first, size, _THREADS) as loop:
        found = block.get(table, loop.index, element)
        with b.if_then(b.icmp("ne", found, none)):
            target = b.gep(block.args[0], loop.index, element)
            b.atomicrmw(atomic, target, found, "monotonic", _SCOPE)
    return block.launch(blocks)


def _exchange(b: Builder, kind: str, dtype: DType, target: Val, update: Val) -> None:
    """Combine until nobody else came between."""
    raw = ir.integer(dtype.itemsize * 8)
    first = b.atomic_load(raw, target, "monotonic")
    with b.while_loop([first, const(ir.i1, 0)], lambda c: b.not_(c[1])) as loop:
        old = b.cast("bitcast", loop.carried[0], update.type)
        made = folded(b, kind, dtype, old, update)
        if dtype.is_float:
            made = _one_nan(b, dtype, made)
        new = b.cast("bitcast", made, raw)
        known = loop.carried[0]
        loop.next(*b.cmpxchg(target, known, new, "monotonic", "monotonic", syncscope=_SCOPE))


def _one_nan(b: Builder, dtype: DType, value: Val) -> Val:
    """Any NaN as the same one: which of several stays would depend on order."""
    wide = widen(b, value)
    nan = narrow(b, const(wide.type, math.nan), dtype)
    return b.select(b.fcmp("uno", wide, wide), nan, value)


__all__ = [
    "arguments_of",
    "fold_atomically",
    "folded",
    "set_last",
    "target_of",
    "write",
    "write_clamped",
]

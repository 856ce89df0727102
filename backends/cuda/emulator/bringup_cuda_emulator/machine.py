"""The machine in native code: launches, blocks, fibres.

A block's threads are fibres that take turns.  A thread that must wait says what for, and goes back
to the scheduler; the one that comes last does what all wait for and makes them ready.  When nobody
is ready and somebody waits, the block hangs, which is a fault.
"""

from __future__ import annotations

from collections.abc import Callable

from bringup.llvm.host.emit import Emit, define, number
from bringup.llvm.text import Module, Val, const, i32, i64, ptr, void
from bringup_cuda_emulator.layout import (
    STAMP_SHIFT,
    THREAD_SHIFT,
    WARP,
    Context,
    Fault,
    State,
    Thread,
)
from bringup_cuda_emulator.switching import Host, emit_switch

EXPORTS = ("emu.launch",)


def word(value: int) -> Val:
    """A 32-bit constant."""
    return const(i32, value)


def context_of(b: Emit, thread: Val) -> Val:
    """The launch a thread belongs to."""
    return b.get(thread, Thread.CONTEXT, ptr)


def thread_at(b: Emit, context: Val, index: Val) -> Val:
    """A thread by its 64-bit number in the block."""
    return b.at(b.get(context, Context.THREADS_AT, ptr), b.mul(index, number(Thread.BYTES)))


def leave(b: Emit, thread: Val) -> None:
    """Give the turn back to the scheduler."""
    save, to = b.at(thread, Thread.SP), b.get(context_of(b, thread), Context.SP, ptr)
    b.c("emu.switch", void, save, to)


def fail(b: Emit, thread: Val, fault: int | Val, site: Val, **facts: Val) -> None:
    """Record a fault and end the block; nothing after this is reached.

    facts: ``address``, ``other`` (a record) and ``info``, 64 bits each.
    """
    code = word(fault) if isinstance(fault, int) else fault
    zero = number(0)
    b.c(
        "emu.fail", void, thread, code, site,
        *(facts.get(name, zero) for name in ("address", "other", "info")),
    )  # fmt: skip
    b.unreachable()


def emit_machine(module: Module, host: Host) -> None:
    """Everything that schedules."""
    emit_switch(module, host)
    _fail(module)
    _fibre(module)
    _alone(module)
    _prepare(module, host)
    _schedule(module)
    _stuck(module)
    _new_time(module)
    _begin_block(module)
    _run_block(module)
    _launch(module)


def _fail(module: Module) -> None:
    b, (thread, code, site, address, other, info) = define(
        module, "emu.fail", void,
        [("t", ptr), ("code", i32), ("site", i32), ("address", i64), ("other", i64), ("info", i64)],
    )  # fmt: skip
    context = context_of(b, thread)
    b.put(context, Context.FAULT, b.zext(code, i64))
    b.put(context, Context.FAULT_SITE, b.zext(site, i64))
    b.put(context, Context.FAULT_THREAD, b.zext(b.get(thread, Thread.NUMBER, i32), i64))
    b.put(context, Context.FAULT_ADDRESS, address)
    b.put(context, Context.FAULT_OTHER, other)
    b.put(context, Context.FAULT_INFO, info)
    leave(b, thread)
    b.unreachable()


def _enter(b: Emit, thread: Val) -> None:
    context = context_of(b, thread)
    arguments = b.get(context, Context.ARGUMENTS, ptr)
    b.call_pointer(void, b.get(context, Context.ENTRY, ptr), (thread, arguments))


def _fibre(module: Module) -> None:
    """``emu.fibre(t)``: the thread's life."""
    b, (thread,) = define(module, "emu.fibre", void, [("t", ptr)])
    _enter(b, thread)
    context = context_of(b, thread)
    b.c("emu.left", void, thread)
    b.put(thread, Thread.STATE, word(State.DONE))
    b.bump(context, Context.LIVE, number(-1))
    b.put(context, Context.IDLE, number(0))
    leave(b, thread)
    b.unreachable()


def _alone(module: Module) -> None:
    """``emu.alone(t)``: every thread of the block to its end, where none waits for another."""
    b, (first,) = define(module, "emu.alone", void, [("t", ptr)])
    context = context_of(b, first)
    count = b.get(context, Context.THREADS)
    start, step = (b.get(context, o) for o in (Context.THREAD_FIRST, Context.THREAD_STEP))
    with b.loop(number(0), count) as loop:
        index = b.urem(b.add(start, b.mul(loop.index, step)), count)
        thread = thread_at(b, context, index)
        # A fault saves the stack it leaves in the thread it is of.
        _enter(b, thread)
        b.put(context, Context.IDLE, number(0))
    b.put(context, Context.LIVE, number(0))
    leave(b, first)
    b.unreachable()


def _prepare(module: Module, host: Host) -> None:
    """``emu.prepare(t, main)``: a stack on which ``main(t)`` is about to run."""
    b, (thread, main) = define(module, "emu.prepare", void, [("t", ptr), ("main", ptr)])
    index = b.zext(b.get(thread, Thread.NUMBER, i32), i64)
    context = context_of(b, thread)
    stacks = b.get(context, Context.STACKS, ptr)
    top = b.mul(b.add(index, number(1)), b.get(context, Context.STACK))
    # Stacks that begin at equal offsets of a page would compete for the same lines of the cache.
    colour = b.mul(b.and_(index, number(15)), number(256))
    frame = b.at(stacks, b.sub(b.sub(top, colour), number(host.frame)))
    b.put(frame, host.thread, thread)
    b.put(frame, host.main, main)
    b.put(frame, host.resume, module.functions["emu.start"].callee.pointer)
    b.put(thread, Thread.SP, frame)
    b.ret()


def _resume(b: Emit, context: Val, thread: Val) -> None:
    b.c("emu.switch", void, b.at(context, Context.SP), b.get(thread, Thread.SP, ptr))


def _failed(b: Emit, context: Val) -> Val:
    return b.icmp("ne", b.get(context, Context.FAULT), number(0))


def _schedule(module: Module) -> None:
    """``emu.schedule(c)``: turns, until every thread is done or there is a fault."""
    b, (context,) = define(module, "emu.schedule", void, [("c", ptr)])
    count = b.get(context, Context.THREADS)
    start, step = (b.get(context, o) for o in (Context.THREAD_FIRST, Context.THREAD_STEP))
    again, over = b.function.block("again"), b.function.block("over")
    b.br(again)
    b.position(again)
    b.put(context, Context.PROGRESS, number(0))
    with b.loop(number(0), count) as loop:
        index = b.urem(b.add(start, b.mul(loop.index, step)), count)
        thread = thread_at(b, context, index)
        ready = b.icmp("eq", b.get(thread, Thread.STATE, i32), word(State.READY))
        with b.if_then(ready):
            b.put(context, Context.PROGRESS, number(1))
            _resume(b, context, thread)
            with b.rarely(_failed(b, context)):
                b.ret()
    with b.if_then(b.icmp("eq", b.get(context, Context.LIVE), number(0))):
        b.br(over)
    with b.if_then(b.icmp("ne", b.get(context, Context.PROGRESS), number(0))):
        b.br(again)
    b.c("emu.stuck", void, context)
    b.br(over)
    b.position(over)
    b.ret()


def _stuck(module: Module) -> None:
    """``emu.stuck(c)``: the first thread that waits is said to hang."""
    b, (context,) = define(module, "emu.stuck", void, [("c", ptr)])
    with b.loop(number(0), b.get(context, Context.THREADS)) as loop:
        thread = thread_at(b, context, loop.index)
        state = b.get(thread, Thread.STATE, i32)
        with b.if_then(b.icmp("ne", state, word(State.DONE))):
            b.put(context, Context.FAULT, number(Fault.STUCK))
            b.put(context, Context.FAULT_SITE, b.zext(b.get(thread, Thread.SITE, i32), i64))
            b.put(context, Context.FAULT_THREAD, loop.index)
            b.ret()
    b.ret()


def stamped(b: Emit, stamp: Val, index: Val) -> Val:
    """The record of a thread at a stamp."""
    high = b.shl(stamp, number(STAMP_SHIFT))
    return b.or_(high, b.shl(index, number(THREAD_SHIFT)))


def _new_time(module: Module) -> None:
    """``emu.new_time(c)``: a synchronisation of the whole block: all before is ordered."""
    b, (context,) = define(module, "emu.new_time", void, [("c", ptr)])
    stamp = b.bump(context, Context.STAMP, number(1))
    b.put(context, Context.FLOOR, b.sub(stamp, number(1)))
    with b.loop(number(0), b.get(context, Context.THREADS)) as loop:
        thread = thread_at(b, context, loop.index)
        b.put(thread, Thread.RECORD, stamped(b, stamp, loop.index))
    b.ret()


def _begin_block(module: Module) -> None:
    """``emu.begin(c, i)``: everything a block starts with, for block ``i`` of the grid."""
    b, (context, index) = define(module, "emu.begin", void, [("c", ptr), ("i", i64)])
    b.put(context, Context.BLOCK, index)
    nx, ny = (b.zext(b.get(context, Context.NCTAID + o, i32), i64) for o in (0, 4))
    row = b.udiv(index, nx)
    place = (b.urem(index, nx), b.urem(row, ny), b.udiv(row, ny))
    b.c("emu.new_time", void, context)
    stamp = b.get(context, Context.STAMP)
    b.put(context, Context.FIRST_OF_BLOCK, stamp)
    b.put(b.at(b.get(context, Context.FIRSTS_AT, ptr), b.mul(index, number(8))), 0, stamp)
    b.put(context, Context.ACQUIRED, number(0))
    count = b.get(context, Context.THREADS)
    b.put(context, Context.LIVE, count)
    b.put(context, Context.IDLE, number(0))
    begin = b.at(context, Context.ARRIVED)
    _clear(b, begin, Context.BYTES - Context.ARRIVED)
    with b.loop(number(0), count) as loop:
        thread = thread_at(b, context, loop.index)
        for offset, value in zip((0, 4, 8), place, strict=True):
            b.put(thread, Thread.CTAID + offset, b.trunc(value, i32))
        b.put(thread, Thread.STATE, word(State.READY))
        b.put(thread, Thread.FENCED, word(0))
        b.put(thread, Thread.COPIES, word(0))
        b.put(thread, Thread.GROUPS, word(0))
    b.ret()


def _clear(b: Emit, start: Val, size: int) -> None:
    with b.loop(number(0), number(size), 8) as loop:
        b.store(number(0), b.at(start, loop.index))


def _run_block(module: Module) -> None:
    """``emu.run_block(c, i)``."""
    b, (context, index) = define(module, "emu.run_block", void, [("c", ptr), ("i", i64)])
    b.c("emu.begin", void, context, index)
    fibres = b.icmp("ne", b.get(context, Context.FIBRES), number(0))

    def together() -> None:
        main = module.functions["emu.fibre"].callee.pointer
        with b.loop(number(0), b.get(context, Context.THREADS)) as loop:
            b.c("emu.prepare", void, thread_at(b, context, loop.index), main)
        b.c("emu.schedule", void, context)

    def alone() -> None:
        first = b.get(context, Context.THREADS_AT, ptr)
        b.c("emu.prepare", void, first, module.functions["emu.alone"].callee.pointer)
        _resume(b, context, first)

    b.cond(fibres, together, alone)
    b.ret()


def _launch(module: Module) -> None:
    """``emu.launch(c)``: the grid, block after block, until a fault."""
    b, (context,) = define(module, "emu.launch", void, [("c", ptr)], internal=False)
    b.put(context, Context.FIRST_OF_LAUNCH, b.add(b.get(context, Context.STAMP), number(1)))
    nx, ny = (b.zext(b.get(context, Context.NTID + o, i32), i64) for o in (0, 4))
    with b.loop(number(0), b.get(context, Context.THREADS)) as loop:
        thread, i = thread_at(b, context, loop.index), loop.index
        b.put(thread, Thread.CONTEXT, context)
        b.put(thread, Thread.NUMBER, b.trunc(i, i32))
        b.put(thread, Thread.LANE, b.trunc(b.and_(i, number(WARP - 1)), i32))
        b.put(thread, Thread.WARP, b.trunc(b.udiv(i, number(WARP)), i32))
        row = b.udiv(i, nx)
        place = (b.urem(i, nx), b.urem(row, ny), b.udiv(row, ny))
        for n, value in enumerate(place):
            b.put(thread, Thread.TID + 4 * n, b.trunc(value, i32))
            b.put(thread, Thread.NTID + 4 * n, b.get(context, Context.NTID + 4 * n, i32))
            b.put(thread, Thread.NCTAID + 4 * n, b.get(context, Context.NCTAID + 4 * n, i32))
        b.put(thread, Thread.SHARED, b.get(context, Context.SHARED))
    blocks = b.get(context, Context.BLOCKS)
    start, step = (b.get(context, o) for o in (Context.BLOCK_FIRST, Context.BLOCK_STEP))
    with b.loop(number(0), blocks) as loop:
        index = b.urem(b.add(start, b.mul(loop.index, step)), blocks)
        b.c("emu.run_block", void, context, index)
        with b.rarely(_failed(b, context)):
            b.ret()
        b.bump(context, Context.RAN, number(1))
    b.ret()


def each_lane(b: Emit, context: Val, warp: Val, mask: Val, do: Callable[[Val, Val], None]) -> None:
    """``do(lane, thread)`` for each lane of a mask; ``warp`` and ``lane`` are 64 bits wide."""
    first = b.mul(warp, number(WARP))
    with b.loop(number(0), number(WARP)) as loop:
        inside = b.and_(b.lshr(mask, b.trunc(loop.index, i32)), word(1))
        with b.if_then(b.icmp("ne", inside, word(0))):
            do(loop.index, thread_at(b, context, b.add(first, loop.index)))

"""Fibers in native code: how threads are switched, scheduled, and synchronised.

A block's threads are fibers.  A thread that must wait says what for, and switches to the scheduler;
the last thread to arrive does the work that all wait for, and makes them ready.  If no thread is
ready while some wait, the block is deadlocked, which is a fault.  Blocks run one after another.

``emu.switch(save, to)`` saves the registers that a callee must preserve on the current stack,
stores the stack pointer at ``save`` and continues on the stack ``to``.
"""

from __future__ import annotations

import platform
from collections.abc import Callable

from bringup.errors import UnsupportedError
from bringup.llvm.text import Builder, Module, Param, Val, i32, i64, ptr, void
from bringup.records import record
from bringup_cuda_emulator.builder import NativeBuilder, define, number, word
from bringup_cuda_emulator.structs import (
    BARRIERS,
    STAMP_SHIFT,
    THREAD_SHIFT,
    WARP,
    Context,
    Fault,
    Thread,
    ThreadState,
    nbytes,
)


@record
class SwitchCode:
    """The context switch of a host.

    switch, start: assembly; ``start`` calls the fiber's function with its thread.
    frame: bytes at the top of a new fiber's stack.  thread, main, resume: the offsets in it of the
    thread, the function and the address of ``start``.
    """

    switch: str
    start: str
    frame: int
    thread: int
    main: int
    resume: int


_X86 = SwitchCode(
    switch="pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15; "
    "movq %rsp, (%rdi); movq %rsi, %rsp; "
    "popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp; retq",
    start="movq %r12, %rdi; callq *%r13; ud2",
    # 16-byte alignment is due where the call stands: 56 bytes are popped before it.
    frame=72,
    thread=24,
    main=16,
    resume=48,
)

_PAIRS = [(19, 20), (21, 22), (23, 24), (25, 26), (27, 28), (29, 30)]
_FLOATS = [(8, 9), (10, 11), (12, 13), (14, 15)]


def _arm_frame(op: str) -> str:
    lines = [f"{op} x{a}, x{b}, [sp, #{16 * i}]" for i, (a, b) in enumerate(_PAIRS)]
    lines += [f"{op} d{a}, d{b}, [sp, #{96 + 16 * i}]" for i, (a, b) in enumerate(_FLOATS)]
    return "; ".join(lines)


_ARM = SwitchCode(
    switch=f"sub sp, sp, #160; {_arm_frame('stp')}; mov x9, sp; str x9, [x0]; mov sp, x1; "
    f"{_arm_frame('ldp')}; add sp, sp, #160; ret",
    start="mov x0, x19; blr x20; brk #1",
    frame=160,
    thread=0,
    main=8,
    resume=88,
)

SWITCH_CODES = {"x86_64": _X86, "AMD64": _X86, "aarch64": _ARM, "arm64": _ARM}


def switch_code(machine: str = "") -> SwitchCode:
    """The host's, or another machine's.  Raises UnsupportedError."""
    name = machine or platform.machine()
    code = SWITCH_CODES.get(name)
    if code is None:  # pragma: no cover - only other processors
        raise UnsupportedError(
            f"the emulator cannot switch fibres on {name}",
            fix=f"use one of {', '.join(SWITCH_CODES)}",
        )
    return code


def emit_switch(module: Module, switch_code: SwitchCode) -> None:
    """``emu.switch`` and ``emu.start``."""
    emit_naked(module, "emu.switch", [("save", ptr), ("to", ptr)], switch_code.switch)
    emit_naked(module, "emu.start", [], switch_code.start)


def emit_naked(module: Module, name: str, params: list[Param], text: str) -> None:
    """A function of this assembly alone; instructions are separated by ``; ``."""
    function = module.function(name, void, params, "naked noinline nounwind", linkage="internal")
    b = Builder(function.block("entry"))
    lines = text.replace("$", "$$").replace("; ", "\\0A")
    b.emit_void(f'call void asm sideeffect "{lines}", ""()')
    b.unreachable()


LAUNCH_EXPORTS = ("emu.launch",)


def context_of(b: NativeBuilder, thread: Val) -> Val:
    """The launch a thread belongs to."""
    return b.get(thread, Thread.context, ptr)


def thread_at(b: NativeBuilder, context: Val, index: Val) -> Val:
    """A thread by its 64-bit number in the block."""
    return b.at(b.get(context, Context.threads_at, ptr), b.mul(index, nbytes(Thread)))


def yield_to_scheduler(b: NativeBuilder, thread: Val) -> None:
    """Switch to the scheduler."""
    save, to = (
        b.at(thread, Thread.stack_pointer),
        b.get(context_of(b, thread), Context.stack_pointer, ptr),
    )
    b.c("emu.switch", void, save, to)


def fail(b: NativeBuilder, thread: Val, fault: int | Val, site: Val, **facts: Val) -> None:
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


def emit_scheduler(module: Module, switch_code: SwitchCode) -> None:
    """The scheduler of launches, blocks and threads."""
    emit_switch(module, switch_code)
    _fail(module)
    _run_fiber(module)
    _run_to_end(module)
    _prepare_stack(module, switch_code)
    _schedule(module)
    _report_deadlock(module)
    _order_block(module)
    _begin_block(module)
    _run_block(module)
    _launch(module)


def _fail(module: Module) -> None:
    b, (thread, code, site, address, other, info) = define(
        module, "emu.fail", void, "t:ptr code:i32 site:i32 address:i64 other:i64 info:i64"
    )
    context = context_of(b, thread)
    b.put(context, Context.fault, b.zext(code, i64))
    b.put(context, Context.fault_site, b.zext(site, i64))
    b.put(context, Context.fault_thread, b.zext(b.get(thread, Thread.index), i64))
    b.put(context, Context.fault_address, address)
    b.put(context, Context.fault_other, other)
    b.put(context, Context.fault_info, info)
    yield_to_scheduler(b, thread)
    b.unreachable()


def _enter(b: NativeBuilder, thread: Val) -> None:
    context = context_of(b, thread)
    arguments = b.get(context, Context.arguments, ptr)
    b.call_pointer(void, b.get(context, Context.entry, ptr), (thread, arguments))


def _run_fiber(module: Module) -> None:
    """``emu.fibre(t)``: run a thread from start to end."""
    b, (thread,) = define(module, "emu.fibre", void, "t:ptr")
    _enter(b, thread)
    context = context_of(b, thread)
    b.c("emu.left", void, thread)
    b.put(thread, Thread.state, ThreadState.DONE)
    b.bump(context, Context.live, -1)
    b.put(context, Context.idle, 0)
    yield_to_scheduler(b, thread)
    b.unreachable()


def _run_to_end(module: Module) -> None:
    """``emu.alone(t)``: run every thread of a block to its end, where none waits for another."""
    b, (first,) = define(module, "emu.alone", void, "t:ptr")
    context = context_of(b, first)
    count = b.get(context, Context.threads)
    start, step = (b.get(context, o) for o in (Context.thread_first, Context.thread_step))
    with b.loop(number(0), count) as loop:
        index = b.urem(b.add(start, b.mul(loop.index, step)), count)
        thread = thread_at(b, context, index)
        # A fault saves the current stack in its thread.
        _enter(b, thread)
        b.put(context, Context.idle, 0)
    b.put(context, Context.live, 0)
    yield_to_scheduler(b, first)
    b.unreachable()


def _prepare_stack(module: Module, switch_code: SwitchCode) -> None:
    """``emu.prepare(t, main)``: a stack on which ``main(t)`` is about to run."""
    b, (thread, main) = define(module, "emu.prepare", void, "t:ptr main:ptr")
    index = b.zext(b.get(thread, Thread.index), i64)
    context = context_of(b, thread)
    stacks = b.get(context, Context.stacks, ptr)
    top = b.mul(b.add(index, 1), b.get(context, Context.stack))
    # Stacks at equal offsets of a page would compete for the same cache lines.
    colour = b.mul(b.and_(index, 15), 256)
    frame = b.at(stacks, b.sub(b.sub(top, colour), switch_code.frame))
    b.put(frame, switch_code.thread, thread)
    b.put(frame, switch_code.main, main)
    b.put(frame, switch_code.resume, module.functions["emu.start"].callee.pointer)
    b.put(thread, Thread.stack_pointer, frame)
    b.ret()


def _resume(b: NativeBuilder, context: Val, thread: Val) -> None:
    b.c(
        "emu.switch",
        void,
        b.at(context, Context.stack_pointer),
        b.get(thread, Thread.stack_pointer, ptr),
    )


def _failed(b: NativeBuilder, context: Val) -> Val:
    return b.icmp("ne", b.get(context, Context.fault), 0)


def _schedule(module: Module) -> None:
    """``emu.schedule(c)``: resume ready threads until all are done or there is a fault."""
    b, (context,) = define(module, "emu.schedule", void, "c:ptr")
    count = b.get(context, Context.threads)
    start, step = (b.get(context, o) for o in (Context.thread_first, Context.thread_step))
    again, over = b.function.block("again"), b.function.block("over")
    b.br(again)
    b.position(again)
    b.put(context, Context.progress, 0)
    with b.loop(number(0), count) as loop:
        index = b.urem(b.add(start, b.mul(loop.index, step)), count)
        thread = thread_at(b, context, index)
        ready = b.icmp("eq", b.get(thread, Thread.state), ThreadState.READY)
        with b.if_then(ready):
            b.put(context, Context.progress, 1)
            _resume(b, context, thread)
            with b.rarely(_failed(b, context)):
                b.ret()
    with b.if_then(b.icmp("eq", b.get(context, Context.live), 0)):
        b.br(over)
    with b.if_then(b.icmp("ne", b.get(context, Context.progress), 0)):
        b.br(again)
    b.c("emu.stuck", void, context)
    b.br(over)
    b.position(over)
    b.ret()


def _report_deadlock(module: Module) -> None:
    """``emu.stuck(c)``: report the first thread that waits as deadlocked."""
    b, (context,) = define(module, "emu.stuck", void, "c:ptr")
    with b.loop(number(0), b.get(context, Context.threads)) as loop:
        thread = thread_at(b, context, loop.index)
        state = b.get(thread, Thread.state)
        with b.if_then(b.icmp("ne", state, ThreadState.DONE)):
            b.put(context, Context.fault, Fault.STUCK)
            b.put(context, Context.fault_site, b.zext(b.get(thread, Thread.site), i64))
            b.put(context, Context.fault_thread, loop.index)
            b.ret()
    b.ret()


def record_at(b: NativeBuilder, stamp: Val, index: Val) -> Val:
    """The record of a thread at a stamp."""
    high = b.shl(stamp, number(STAMP_SHIFT))
    return b.or_(high, b.shl(index, number(THREAD_SHIFT)))


def _order_block(module: Module) -> None:
    """``emu.new_time(c)``: order all accesses of the block so far before those that follow."""
    b, (context,) = define(module, "emu.new_time", void, "c:ptr")
    stamp = b.bump(context, Context.stamp, 1)
    b.put(context, Context.floor, b.sub(stamp, 1))
    with b.loop(number(0), b.get(context, Context.threads)) as loop:
        thread = thread_at(b, context, loop.index)
        b.put(thread, Thread.record, record_at(b, stamp, loop.index))
    b.ret()


def _begin_block(module: Module) -> None:
    """``emu.begin(c, i)``: initialise the state of block ``i`` of the grid."""
    b, (context, index) = define(module, "emu.begin", void, "c:ptr i:i64")
    b.put(context, Context.block, index)
    nx, ny = (b.zext(b.get(context, Context.nctaid.offset + o, i32), i64) for o in (0, 4))
    row = b.udiv(index, nx)
    place = (b.urem(index, nx), b.urem(row, ny), b.udiv(row, ny))
    b.c("emu.new_time", void, context)
    stamp = b.get(context, Context.stamp)
    b.put(context, Context.first_of_block, stamp)
    b.put(b.at(b.get(context, Context.block_stamps, ptr), b.mul(index, 8)), 0, stamp)
    b.put(context, Context.acquired, 0)
    count = b.get(context, Context.threads)
    b.put(context, Context.live, count)
    b.put(context, Context.idle, 0)
    begin = b.at(context, Context.arrived)
    _clear(b, begin, nbytes(Context) - Context.arrived.offset)
    with b.loop(number(0), count) as loop:
        thread = thread_at(b, context, loop.index)
        for offset, value in zip((0, 4, 8), place, strict=True):
            b.put(thread, Thread.ctaid.offset + offset, b.trunc(value, i32))
        b.put(thread, Thread.state, ThreadState.READY)
        b.put(thread, Thread.fenced, 0)
        b.put(thread, Thread.copies, 0)
        b.put(thread, Thread.copy_groups, 0)
    b.ret()


def _clear(b: NativeBuilder, start: Val, size: int) -> None:
    with b.loop(number(0), number(size), 8) as loop:
        b.store(number(0), b.at(start, loop.index))


def _run_block(module: Module) -> None:
    """``emu.run_block(c, i)``."""
    b, (context, index) = define(module, "emu.run_block", void, "c:ptr i:i64")
    b.c("emu.begin", void, context, index)
    fibres = b.icmp("ne", b.get(context, Context.fibers), 0)

    def together() -> None:
        main = module.functions["emu.fibre"].callee.pointer
        with b.loop(number(0), b.get(context, Context.threads)) as loop:
            b.c("emu.prepare", void, thread_at(b, context, loop.index), main)
        b.c("emu.schedule", void, context)

    def alone() -> None:
        first = b.get(context, Context.threads_at, ptr)
        b.c("emu.prepare", void, first, module.functions["emu.alone"].callee.pointer)
        _resume(b, context, first)

    b.cond(fibres, together, alone)
    b.ret()


def _launch(module: Module) -> None:
    """``emu.launch(c)``: the grid, block after block, until a fault."""
    b, (context,) = define(module, "emu.launch", void, "c:ptr", internal=False)
    b.put(context, Context.first_of_launch, b.add(b.get(context, Context.stamp), 1))
    nx, ny = (b.zext(b.get(context, Context.ntid.offset + o, i32), i64) for o in (0, 4))
    with b.loop(number(0), b.get(context, Context.threads)) as loop:
        thread, i = thread_at(b, context, loop.index), loop.index
        b.put(thread, Thread.context, context)
        b.put(thread, Thread.index, b.trunc(i, i32))
        b.put(thread, Thread.lane, b.trunc(b.and_(i, WARP - 1), i32))
        b.put(thread, Thread.warp, b.trunc(b.udiv(i, WARP), i32))
        row = b.udiv(i, nx)
        place = (b.urem(i, nx), b.urem(row, ny), b.udiv(row, ny))
        for n, value in enumerate(place):
            b.put(thread, Thread.tid.offset + 4 * n, b.trunc(value, i32))
            b.put(
                thread, Thread.ntid.offset + 4 * n, b.get(context, Context.ntid.offset + 4 * n, i32)
            )
            b.put(
                thread,
                Thread.nctaid.offset + 4 * n,
                b.get(context, Context.nctaid.offset + 4 * n, i32),
            )
        b.put(thread, Thread.shared, b.get(context, Context.shared))
    blocks = b.get(context, Context.blocks)
    start, step = (b.get(context, o) for o in (Context.block_first, Context.block_step))
    with b.loop(number(0), blocks) as loop:
        index = b.urem(b.add(start, b.mul(loop.index, step)), blocks)
        b.c("emu.run_block", void, context, index)
        with b.rarely(_failed(b, context)):
            b.ret()
        b.bump(context, Context.blocks_run, 1)
    b.ret()


def each_lane(
    b: NativeBuilder, context: Val, warp: Val, mask: Val, do: Callable[[Val, Val], None]
) -> None:
    """``do(lane, thread)`` for each lane of a mask; ``warp`` and ``lane`` are 64 bits wide."""
    first = b.mul(warp, WARP)
    with b.loop(number(0), number(WARP)) as loop:
        inside = b.and_(b.lshr(mask, b.trunc(loop.index, i32)), 1)
        with b.if_then(b.icmp("ne", inside, 0)):
            do(loop.index, thread_at(b, context, b.add(first, loop.index)))


SYNC_EXPORTS = ("emu.barrier", "emu.trap", "emu.pause")

#: Pauses without progress after which a thread that waits in a loop is reported.
MAX_PAUSES = 1 << 20


def emit_synchronisation(module: Module) -> None:
    """Barriers of blocks and warps, and waits for values in memory."""
    _barrier(module)
    _release_barrier(module)
    _present_lanes(module)
    _arrive_in_warp(module)
    _release_warp(module)
    _order_warp(module)
    _pause(module)
    _trap(module)


def wait(b: NativeBuilder, thread: Val, state: int, site: Val) -> None:
    """Wait until the last thread to arrive makes this thread ready."""
    b.put(thread, Thread.site, site)
    b.put(thread, Thread.state, state)
    yield_to_scheduler(b, thread)


def _barrier(module: Module) -> None:
    """``emu.barrier(t, site, id, count, wait)``: a barrier of ``count`` threads, 0 for all;
    without ``wait`` the thread only arrives.
    """
    b, (thread, site, name, wanted, waits) = define(
        module, "emu.barrier", void, "t:ptr site:i32 id:i32 count:i32 wait:i32", internal=False
    )
    context = context_of(b, thread)
    with b.rarely(b.icmp("uge", name, BARRIERS)):
        fail(b, thread, Fault.BAD_BARRIER, site, info=b.zext(name, i64))
    everyone = b.icmp("eq", wanted, 0)
    count = b.select(everyone, b.get(context, Context.threads), b.zext(wanted, i64))
    b.put(thread, Thread.barrier, name)
    b.put(thread, Thread.site, site)
    place = b.at(context, b.add(b.mul(b.zext(name, i64), 8), Context.at_barrier.offset))
    come = b.add(b.load(i64, place), 1)
    b.store(come, place)
    with b.if_then(b.icmp("ult", come, count)):
        with b.if_then(b.icmp("ne", waits, 0)):
            wait(b, thread, ThreadState.AT_BARRIER, site)
        b.ret()
    b.store(number(0), place)
    b.c("emu.release_barrier", void, context, thread, name, site, b.zext(everyone, i32))
    b.ret()


def _release_barrier(module: Module) -> None:
    """``emu.release_barrier(c, t, id, site, everyone)``: make all who wait there ready."""
    b, (context, last, name, site, everyone) = define(
        module, "emu.release_barrier", void, "c:ptr t:ptr id:i32 site:i32 everyone:i32"
    )
    warp = b.get(last, Thread.warp)
    all_of_block = b.icmp("ne", everyone, 0)
    with b.loop(number(0), b.get(context, Context.threads)) as loop:
        thread = thread_at(b, context, loop.index)
        waiting = b.icmp("eq", b.get(thread, Thread.state), ThreadState.AT_BARRIER)
        here = b.icmp("eq", b.get(thread, Thread.barrier), name)
        with b.if_then(b.and_(waiting, here)):
            strange = b.icmp("ne", b.get(thread, Thread.site), site)
            same_warp = b.icmp("eq", b.get(thread, Thread.warp), warp)
            with b.rarely(b.and_(strange, b.or_(same_warp, all_of_block))):
                other = b.zext(b.get(thread, Thread.site), i64)
                other = b.or_(other, b.shl(loop.index, number(THREAD_SHIFT)))
                fail(b, last, Fault.DIVERGENT_BARRIER, site, other=other)
            b.put(thread, Thread.state, ThreadState.READY)
    b.put(context, Context.idle, 0)
    # A barrier of some threads orders more here than on a GPU: races may be missed, but none is
    # reported that is not there.
    b.c("emu.new_time", void, context)
    b.ret()


def _present_lanes(module: Module) -> None:
    """``emu.present(t, mask)``: the lanes of a mask that exist: the last warp may be short."""
    b, (thread, mask) = define(module, "emu.present", i32, "t:ptr mask:i32")
    warp = b.zext(b.get(thread, Thread.warp), i64)
    left = b.sub(b.get(context_of(b, thread), Context.threads), b.mul(warp, WARP))
    lanes = b.select(b.icmp("slt", left, WARP), left, number(WARP))
    whole = b.trunc(b.sub(b.shl(number(1), lanes), 1), i32)
    b.ret(b.and_(mask, whole))


def _arrive_in_warp(module: Module) -> None:
    """``emu.arrive(t, site, mask, payload)``: whether this lane is the last one of the mask to
    arrive, which must do the work; the others return when the work is done.
    """
    b, (thread, site, mask, payload) = define(
        module, "emu.arrive", i32, "t:ptr site:i32 mask:i32 payload:ptr"
    )
    context = context_of(b, thread)
    lane = b.get(thread, Thread.lane)
    bit = b.shl(word(1), lane)
    with b.rarely(b.icmp("eq", b.and_(bit, mask), 0)):
        fail(b, thread, Fault.NOT_IN_MASK, site, info=b.zext(mask, i64))
    b.put(thread, Thread.payload, payload)
    b.put(thread, Thread.mask, mask)
    b.put(thread, Thread.site, site)
    warp = b.zext(b.get(thread, Thread.warp), i64)
    place = b.at(context, b.add(b.mul(warp, 4), Context.arrived.offset))
    arrived = b.or_(b.load(i32, place), bit)
    b.store(arrived, place)
    with b.if_then(b.icmp("ne", b.and_(arrived, mask), mask)):
        wait(b, thread, ThreadState.IN_WARP, site)
        b.ret(word(0))

    def agree(_: Val, other: Val) -> None:
        theirs, where = b.get(other, Thread.mask), b.get(other, Thread.site)
        with b.rarely(b.or_(b.icmp("ne", theirs, mask), b.icmp("ne", where, site))):
            index = b.zext(b.get(other, Thread.index), i64)
            record = b.or_(b.zext(where, i64), b.shl(index, number(THREAD_SHIFT)))
            masks = b.or_(b.shl(b.zext(theirs, i64), number(32)), b.zext(mask, i64))
            fail(b, thread, Fault.DIVERGENT_WARP, site, other=record, info=masks)

    each_lane(b, context, warp, mask, agree)
    b.store(b.and_(arrived, b.not_(mask)), place)
    b.ret(word(1))


def _release_warp(module: Module) -> None:
    """``emu.release_warp(t, mask)``: make the lanes of the mask ready: the work is done."""
    b, (thread, mask) = define(module, "emu.release_warp", void, "t:ptr mask:i32")
    context = context_of(b, thread)
    warp = b.zext(b.get(thread, Thread.warp), i64)
    each_lane(b, context, warp, mask, lambda _, t: b.put(t, Thread.state, ThreadState.READY))
    b.put(context, Context.idle, 0)
    b.ret()


def _order_warp(module: Module) -> None:
    """``emu.sync_warp(t, mask)``: order a whole warp's accesses so far before those that follow."""
    b, (thread, mask) = define(module, "emu.sync_warp", void, "t:ptr mask:i32")
    context = context_of(b, thread)
    warp = b.zext(b.get(thread, Thread.warp), i64)
    first = b.mul(warp, WARP)
    whole = b.c("emu.present", i32, thread, word(-1))
    with b.unless(b.icmp("eq", mask, whole)):
        b.ret()
    stamp = b.bump(context, Context.stamp, 1)
    clock = b.add(b.mul(warp, 8 * (WARP + 1)), Context.clocks.offset)
    b.put(b.at(context, clock), 0, b.sub(stamp, 1))

    def tick(lane: Val, other: Val) -> None:
        b.put(other, Thread.record, record_at(b, stamp, b.add(first, lane)))

    each_lane(b, context, warp, whole, tick)
    b.ret()


def _pause(module: Module) -> None:
    """``emu.pause(t, site)``: let others run while a thread waits for a value in memory."""
    b, (thread, site) = define(module, "emu.pause", void, "t:ptr site:i32", internal=False)
    context = context_of(b, thread)
    idle = b.bump(context, Context.idle, 1)
    with b.rarely(b.icmp("ugt", idle, MAX_PAUSES)):
        fail(b, thread, Fault.ENDLESS, site)
    with b.if_then(b.icmp("ne", b.get(context, Context.fibers), 0)):
        yield_to_scheduler(b, thread)
    b.ret()


def _trap(module: Module) -> None:
    """``emu.trap(t, site)``: the kernel ran into a trap."""
    b, (thread, site) = define(module, "emu.trap", void, "t:ptr site:i32", internal=False)
    fail(b, thread, Fault.TRAP, site)

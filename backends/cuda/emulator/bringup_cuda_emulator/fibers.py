"""The context switch between fibres, for each host's calling convention.

``emu.switch(save, to)`` keeps what a callee must keep on the stack it leaves, stores that stack's
pointer at ``save`` and goes on with the stack ``to``.
"""

from __future__ import annotations

import platform
from collections.abc import Callable

from bringup.errors import UnsupportedError
from bringup.llvm.host.emit import Emit, define, number
from bringup.llvm.text import Builder, Module, Param, Val, const, i32, i64, ptr, void
from bringup.records import record
from bringup_cuda_emulator.structs import (
    BARRIERS,
    STAMP_SHIFT,
    THREAD_SHIFT,
    WARP,
    Context,
    Fault,
    State,
    Thread,
)


@record
class Host:
    """How a host switches.

    switch, start: assembly; ``start`` calls the fibre's function with its thread.
    frame: bytes a new fibre's stack begins with.  thread, main, resume: where in it the thread, the
    function and the address of ``start`` stand.
    """

    switch: str
    start: str
    frame: int
    thread: int
    main: int
    resume: int


_X86 = Host(
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


_ARM = Host(
    switch=f"sub sp, sp, #160; {_arm_frame('stp')}; mov x9, sp; str x9, [x0]; mov sp, x1; "
    f"{_arm_frame('ldp')}; add sp, sp, #160; ret",
    start="mov x0, x19; blr x20; brk #1",
    frame=160,
    thread=0,
    main=8,
    resume=88,
)

HOSTS = {"x86_64": _X86, "AMD64": _X86, "aarch64": _ARM, "arm64": _ARM}


def host(machine: str = "") -> Host:
    """The host's, or another machine's.  Raises UnsupportedError."""
    name = machine or platform.machine()
    found = HOSTS.get(name)
    if found is None:  # pragma: no cover - only other processors
        raise UnsupportedError(
            f"the emulator cannot switch fibres on {name}", fix=f"use one of {', '.join(HOSTS)}"
        )
    return found


def emit_switch(module: Module, host: Host) -> None:
    """``emu.switch`` and ``emu.start``."""
    emit_naked(module, "emu.switch", [("save", ptr), ("to", ptr)], host.switch)
    emit_naked(module, "emu.start", [], host.start)


def emit_naked(module: Module, name: str, params: list[Param], text: str) -> None:
    """A function that is nothing but this assembly; instructions are separated by ``; ``."""
    function = module.function(name, void, params, "naked noinline nounwind", linkage="internal")
    b = Builder(function.block("entry"))
    lines = text.replace("$", "$$").replace("; ", "\\0A")
    b.emit_void(f'call void asm sideeffect "{lines}", ""()')
    b.unreachable()


LAUNCH_EXPORTS = ("emu.launch",)


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


SYNC_EXPORTS = ("emu.barrier", "emu.trap", "emu.pause")

#: Turns without any progress after which threads that wait in a loop are said to wait for ever.
PATIENCE = 1 << 20


def emit_meetings(module: Module) -> None:
    """Everything that waits, and what wakes it."""
    _barrier(module)
    _release_barrier(module)
    _present(module)
    _arrive(module)
    _release_warp(module)
    _sync_warp(module)
    _pause(module)
    _trap(module)


def wait(b: Emit, thread: Val, state: int, site: Val) -> None:
    """Wait until whoever comes last makes this thread ready."""
    b.put(thread, Thread.SITE, site)
    b.put(thread, Thread.STATE, word(state))
    leave(b, thread)


def _barrier(module: Module) -> None:
    """``emu.barrier(t, site, id, count, wait)``: a barrier of ``count`` threads, 0 for all;
    without ``wait`` the thread only says that it has come.
    """
    b, (thread, site, name, wanted, waits) = define(
        module, "emu.barrier", void,
        [("t", ptr), ("site", i32), ("id", i32), ("count", i32), ("wait", i32)], internal=False,
    )  # fmt: skip
    context = context_of(b, thread)
    with b.rarely(b.icmp("uge", name, word(BARRIERS))):
        fail(b, thread, Fault.BAD_BARRIER, site, info=b.zext(name, i64))
    everyone = b.icmp("eq", wanted, word(0))
    count = b.select(everyone, b.get(context, Context.THREADS), b.zext(wanted, i64))
    b.put(thread, Thread.BARRIER, name)
    b.put(thread, Thread.SITE, site)
    place = b.at(context, b.add(b.mul(b.zext(name, i64), number(8)), number(Context.COME)))
    come = b.add(b.load(i64, place), number(1))
    b.store(come, place)
    with b.if_then(b.icmp("ult", come, count)):
        with b.if_then(b.icmp("ne", waits, word(0))):
            wait(b, thread, State.AT_BARRIER, site)
        b.ret()
    b.store(number(0), place)
    b.c("emu.release_barrier", void, context, thread, name, site, b.zext(everyone, i32))
    b.ret()


def _release_barrier(module: Module) -> None:
    """``emu.release_barrier(c, t, id, site, everyone)``: make all who wait there ready."""
    b, (context, last, name, site, everyone) = define(
        module, "emu.release_barrier", void,
        [("c", ptr), ("t", ptr), ("id", i32), ("site", i32), ("everyone", i32)],
    )  # fmt: skip
    warp = b.get(last, Thread.WARP, i32)
    all_of_block = b.icmp("ne", everyone, word(0))
    with b.loop(number(0), b.get(context, Context.THREADS)) as loop:
        thread = thread_at(b, context, loop.index)
        waiting = b.icmp("eq", b.get(thread, Thread.STATE, i32), word(State.AT_BARRIER))
        here = b.icmp("eq", b.get(thread, Thread.BARRIER, i32), name)
        with b.if_then(b.and_(waiting, here)):
            strange = b.icmp("ne", b.get(thread, Thread.SITE, i32), site)
            same_warp = b.icmp("eq", b.get(thread, Thread.WARP, i32), warp)
            with b.rarely(b.and_(strange, b.or_(same_warp, all_of_block))):
                other = b.zext(b.get(thread, Thread.SITE, i32), i64)
                other = b.or_(other, b.shl(loop.index, number(THREAD_SHIFT)))
                fail(b, last, Fault.DIVERGENT_BARRIER, site, other=other)
            b.put(thread, Thread.STATE, word(State.READY))
    b.put(context, Context.IDLE, number(0))
    # A barrier of some threads orders more here than it does there: races may be missed, none is
    # reported that is not there.
    b.c("emu.new_time", void, context)
    b.ret()


def _present(module: Module) -> None:
    """``emu.present(t, mask)``: the lanes of a mask that there are: the last warp may be short."""
    b, (thread, mask) = define(module, "emu.present", i32, [("t", ptr), ("mask", i32)])
    warp = b.zext(b.get(thread, Thread.WARP, i32), i64)
    left = b.sub(b.get(context_of(b, thread), Context.THREADS), b.mul(warp, number(WARP)))
    lanes = b.select(b.icmp("slt", left, number(WARP)), left, number(WARP))
    whole = b.trunc(b.sub(b.shl(number(1), lanes), number(1)), i32)
    b.ret(b.and_(mask, whole))


def _arrive(module: Module) -> None:
    """``emu.arrive(t, site, mask, payload)``: whether this lane is the last one of the mask to come
    and so has to do the work; the others return when that is done.
    """
    b, (thread, site, mask, payload) = define(
        module, "emu.arrive", i32, [("t", ptr), ("site", i32), ("mask", i32), ("payload", ptr)]
    )
    context = context_of(b, thread)
    lane = b.get(thread, Thread.LANE, i32)
    bit = b.shl(word(1), lane)
    with b.rarely(b.icmp("eq", b.and_(bit, mask), word(0))):
        fail(b, thread, Fault.NOT_IN_MASK, site, info=b.zext(mask, i64))
    b.put(thread, Thread.PAYLOAD, payload)
    b.put(thread, Thread.MASK, mask)
    b.put(thread, Thread.SITE, site)
    warp = b.zext(b.get(thread, Thread.WARP, i32), i64)
    place = b.at(context, b.add(b.mul(warp, number(4)), number(Context.ARRIVED)))
    arrived = b.or_(b.load(i32, place), bit)
    b.store(arrived, place)
    with b.if_then(b.icmp("ne", b.and_(arrived, mask), mask)):
        wait(b, thread, State.IN_WARP, site)
        b.ret(word(0))

    def agree(_: Val, other: Val) -> None:
        theirs, where = b.get(other, Thread.MASK, i32), b.get(other, Thread.SITE, i32)
        with b.rarely(b.or_(b.icmp("ne", theirs, mask), b.icmp("ne", where, site))):
            index = b.zext(b.get(other, Thread.NUMBER, i32), i64)
            record = b.or_(b.zext(where, i64), b.shl(index, number(THREAD_SHIFT)))
            masks = b.or_(b.shl(b.zext(theirs, i64), number(32)), b.zext(mask, i64))
            fail(b, thread, Fault.DIVERGENT_WARP, site, other=record, info=masks)

    each_lane(b, context, warp, mask, agree)
    b.store(b.and_(arrived, b.not_(mask)), place)
    b.ret(word(1))


def _release_warp(module: Module) -> None:
    """``emu.release_warp(t, mask)``: the work is done: the lanes of the mask are ready."""
    b, (thread, mask) = define(module, "emu.release_warp", void, [("t", ptr), ("mask", i32)])
    context = context_of(b, thread)
    warp = b.zext(b.get(thread, Thread.WARP, i32), i64)
    each_lane(b, context, warp, mask, lambda _, t: b.put(t, Thread.STATE, word(State.READY)))
    b.put(context, Context.IDLE, number(0))
    b.ret()


def _sync_warp(module: Module) -> None:
    """``emu.sync_warp(t, mask)``: what the lanes of a whole warp did is ordered from here on."""
    b, (thread, mask) = define(module, "emu.sync_warp", void, [("t", ptr), ("mask", i32)])
    context = context_of(b, thread)
    warp = b.zext(b.get(thread, Thread.WARP, i32), i64)
    first = b.mul(warp, number(WARP))
    whole = b.c("emu.present", i32, thread, word(-1))
    with b.unless(b.icmp("eq", mask, whole)):
        b.ret()
    stamp = b.bump(context, Context.STAMP, number(1))
    clock = b.add(b.mul(warp, number(8 * (WARP + 1))), number(Context.CLOCKS))
    b.put(b.at(context, clock), 0, b.sub(stamp, number(1)))

    def tick(lane: Val, other: Val) -> None:
        b.put(other, Thread.RECORD, stamped(b, stamp, b.add(first, lane)))

    each_lane(b, context, warp, whole, tick)
    b.ret()


def _pause(module: Module) -> None:
    """``emu.pause(t, site)``: let others go on, as whoever waits for a value in memory must."""
    b, (thread, site) = define(
        module, "emu.pause", void, [("t", ptr), ("site", i32)], internal=False
    )
    context = context_of(b, thread)
    idle = b.bump(context, Context.IDLE, number(1))
    with b.rarely(b.icmp("ugt", idle, number(PATIENCE))):
        fail(b, thread, Fault.ENDLESS, site)
    with b.if_then(b.icmp("ne", b.get(context, Context.FIBRES), number(0))):
        leave(b, thread)
    b.ret()


def _trap(module: Module) -> None:
    """``emu.trap(t, site)``: the kernel ends itself."""
    b, (thread, site) = define(
        module, "emu.trap", void, [("t", ptr), ("site", i32)], internal=False
    )
    fail(b, thread, Fault.TRAP, site)

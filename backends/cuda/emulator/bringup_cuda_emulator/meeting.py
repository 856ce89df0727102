"""Where threads wait for each other: barriers of a block, lanes of a warp, values in memory."""

from __future__ import annotations

from bringup.llvm.host.emit import Emit, define, number
from bringup.llvm.text import Module, Val, i32, i64, ptr, void
from bringup_cuda_emulator.layout import (
    BARRIERS,
    THREAD_SHIFT,
    WARP,
    Context,
    Fault,
    State,
    Thread,
)
from bringup_cuda_emulator.machine import (
    context_of,
    each_lane,
    fail,
    leave,
    stamped,
    thread_at,
    word,
)

EXPORTS = ("emu.barrier", "emu.trap", "emu.pause")

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

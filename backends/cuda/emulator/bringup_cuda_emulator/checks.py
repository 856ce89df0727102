"""The checks of memory accesses in native code.

Each granule of memory has two records (`layout`): of the last write, and of the last read.
An access conflicts with a record of another thread unless a synchronisation lies between: a barrier
of the block, of the warp, or, between blocks, something published by an atomic and read by another.
That the threads of a warp go in step excuses nothing: hardware gives no such promise.
"""

from __future__ import annotations

from functools import partial

from bringup.llvm.text import Module, Val, const, i1, i8, i32, i64, ptr, void
from bringup_cuda_emulator.builder import NativeBuilder, define, number
from bringup_cuda_emulator.fibers import context_of, fail
from bringup_cuda_emulator.structs import (
    IN_FLIGHT,
    KIND_SHIFT,
    PLAIN,
    RELAXED,
    RELEASED,
    SEVERAL,
    SHARED_WINDOW,
    STAMP_SHIFT,
    THREAD_SHIFT,
    WARP,
    Access,
    Context,
    Fault,
    Thread,
)

CHECK_EXPORTS = ("emu.check", "emu.within")
_SHARED_SPACE = 3


def emit_checks(module: Module) -> None:
    """``emu.check(t, address, access, site)`` and what it needs."""
    _conflict(module)
    _other_readers(module)
    _check_other_memory(module)
    _check_bounds(module)
    _read(module)
    _write(module)
    _check(module)
    _within(module)


def _field(b: NativeBuilder, access: Val, shift: int, bits: int) -> Val:
    part = b.and_(b.lshr(access, shift), (1 << bits) - 1)
    return b.zext(part, i64)


_RECORD_PARAMS = "t:ptr record:i64 since:i64"


def _since(b: NativeBuilder, context: Val, shared: Val) -> Val:
    """The first stamp that matters: that of the block for shared memory, else of the launch."""
    block, launch = (b.get(context, o) for o in (Context.first_of_block, Context.first_of_launch))
    return b.select(b.icmp("ne", shared, 0), block, launch)


def _conflict(module: Module) -> None:
    """``emu.conflict(t, record, since)``: whether the access of the record is ordered by nothing.
    What lies before the stamp ``since`` has nothing to do with this memory's contents.
    """
    b, (thread, record, since) = define(module, "emu.conflict", i1, _RECORD_PARAMS)
    context = context_of(b, thread)
    stamp = b.lshr(record, STAMP_SHIFT)
    with b.if_then(b.icmp("ult", stamp, since)):
        b.ret(const(i1, 0))
    with b.if_then(b.icmp("ult", stamp, b.get(context, Context.first_of_block))):
        b.ret(b.icmp("ugt", stamp, b.get(context, Context.acquired)))
    other = b.and_(b.lshr(record, THREAD_SHIFT), 1023)
    same = b.icmp("eq", other, b.zext(b.get(thread, Thread.index), i64))
    ordered = b.icmp("ule", stamp, b.get(context, Context.floor))
    with b.if_then(b.or_(same, ordered)):
        b.ret(const(i1, 0))
    mine = b.zext(b.get(thread, Thread.warp), i64)
    pair = b.add(b.mul(mine, WARP), b.udiv(other, WARP))
    known = b.get(b.at(context, b.mul(pair, 8)), Context.clocks)
    b.ret(b.icmp("ugt", stamp, known))


def _other_readers(module: Module) -> None:
    """``emu.others(t, record, since)``: whether the record of a read stands for several threads,
    which nothing orders before this access.
    """
    b, (thread, record, since) = define(module, "emu.others", i1, _RECORD_PARAMS)
    context = context_of(b, thread)
    several = b.and_(b.lshr(record, KIND_SHIFT), SEVERAL)
    with b.if_then(b.icmp("eq", several, 0)):
        b.ret(const(i1, 0))
    stamp = b.lshr(record, STAMP_SHIFT)
    late = b.icmp("ugt", stamp, b.get(context, Context.floor))
    warp = b.zext(b.get(thread, Thread.warp), i64)
    clock = b.mul(warp, 8 * (WARP + 1))
    fresh = b.icmp("ugt", stamp, b.get(b.at(context, clock), Context.clocks))
    now = b.icmp("uge", stamp, since)
    unknown = b.icmp("ugt", stamp, b.get(context, Context.acquired))
    b.ret(b.and_(b.and_(late, fresh), b.and_(now, unknown)))


def _check_other_memory(module: Module) -> None:
    """``emu.beyond(t, address, access, site)``: an address of no buffer: a local variable and a
    table of the module are allowed.
    """
    b, (thread, address, access, site) = define(
        module, "emu.beyond", void, "t:ptr a:i64 access:i32 site:i32"
    )
    context = context_of(b, thread)
    end = b.add(address, _field(b, access, Access.SIZE_SHIFT, 8))

    def within(low: Val, high: Val) -> Val:
        return b.and_(b.icmp("uge", address, low), b.icmp("ule", end, high))

    stacks = (b.get(context, o) for o in (Context.stacks, Context.stacks_end))
    with b.if_then(within(*stacks)):
        b.ret()
    table = b.get(context, Context.constants, ptr)
    with b.loop(number(0), b.get(context, Context.constant_count)) as loop:
        row = b.at(table, b.mul(loop.index, 16))
        reads = b.icmp("eq", _field(b, access, Access.KIND_SHIFT, 4), Access.READ)
        with b.if_then(b.and_(reads, within(b.get(row, 0), b.get(row, 8)))):
            b.ret()
    fail(b, thread, Fault.OUTSIDE, site, address=address, info=b.zext(access, i64))


def _check_bounds(module: Module) -> None:
    """``emu.inside(t, address, access, site)``: that every byte belongs to a buffer."""
    b, (thread, address, access, site) = define(
        module, "emu.inside", void, "t:ptr a:i64 access:i32 site:i32"
    )
    context = context_of(b, thread)
    offset = b.sub(address, b.get(context, Context.arena))
    end = b.add(offset, _field(b, access, Access.SIZE_SHIFT, 8))
    table = b.get(context, Context.map, ptr)
    first = b.lshr(offset, 4)
    last = b.lshr(b.sub(end, 1), 4)
    with b.loop(first, b.add(last, 1)) as loop:
        usable = b.zext(b.get(b.at(table, loop.index), 0, i8), i64)
        begin = b.shl(loop.index, number(4))
        left = b.sub(end, begin)
        needed = b.select(b.icmp("ult", left, 16), left, number(16))
        with b.rarely(b.icmp("ugt", needed, usable)):
            fail(b, thread, Fault.OUTSIDE, site, address=address, info=b.zext(access, i64))
    b.ret()


def _report(
    b: NativeBuilder, thread: Val, fault: int, record: Val, rest: tuple[Val, Val, Val]
) -> None:
    address, access, site = rest
    fail(b, thread, fault, site, address=address, other=record, info=b.zext(access, i64))


_CELL_PARAMS = "t:ptr cell:ptr address:i64 access:i32 site:i32 shared:i32"


def _written(
    b: NativeBuilder,
    thread: Val,
    cell: Val,
    shared: Val,
    atomic: Val,
    fault: int,
    rest: tuple[Val, ...],
) -> Val:
    """The record of the last write, with the faults that it alone shows."""
    address, access, site = rest
    facts = (address, access, site)
    context = context_of(b, thread)
    write = b.get(cell, 0)
    kind = b.and_(b.lshr(write, KIND_SHIFT), 3)
    stamp = b.lshr(write, STAMP_SHIFT)
    stale = b.icmp("ult", stamp, b.get(context, Context.first_of_block))
    flying = b.icmp("eq", kind, IN_FLIGHT)
    with b.rarely(b.and_(flying, b.not_(stale))):
        _report(b, thread, Fault.IN_FLIGHT, write, facts)
    if fault == Fault.RACE_READ:
        with b.rarely(b.and_(b.icmp("ne", shared, 0), stale)):
            _report(b, thread, Fault.UNINITIALISED, write, facts)
    since = _since(b, context, shared)
    with b.if_then(b.c("emu.conflict", i1, thread, write, since)):
        both = b.and_(atomic, b.icmp("ne", kind, PLAIN))
        with b.rarely(b.not_(both)):
            _report(b, thread, fault, write, facts)
    return write


def _read(module: Module) -> None:
    """``emu.read``: check a cell for a read, and note it."""
    b, (thread, cell, address, access, site, shared) = define(
        module, "emu.read", void, _CELL_PARAMS
    )
    kind = _field(b, access, Access.KIND_SHIFT, 4)
    atomic = b.icmp("ne", kind, Access.READ)
    write = _written(b, thread, cell, shared, atomic, Fault.RACE_READ, (address, access, site))
    with b.if_then(atomic):
        b.c("emu.acquire", void, thread, write)
        b.ret()
    mine = b.or_(b.get(thread, Thread.record), b.zext(site, i64))
    last = b.get(cell, 8)
    same = b.icmp("ult", b.xor(last, mine), 1 << THREAD_SHIFT)
    with b.if_then(same):
        b.ret()
    since = _since(b, context_of(b, thread), shared)
    others = b.or_(
        b.c("emu.conflict", i1, thread, last, since), b.c("emu.others", i1, thread, last, since)
    )
    several = b.select(others, number(SEVERAL << KIND_SHIFT), number(0))
    b.put(cell, 8, b.or_(mine, several))
    b.ret()


def _write(module: Module) -> None:
    """``emu.write``: check a cell for a write, and note it."""
    b, (thread, cell, address, access, site, shared) = define(
        module, "emu.write", void, _CELL_PARAMS
    )
    kind = _field(b, access, Access.KIND_SHIFT, 4)
    atomic = b.icmp("ne", kind, Access.WRITE)
    facts = (address, access, site)
    before = _written(b, thread, cell, shared, atomic, Fault.RACE_WRITE, facts)
    last = b.get(cell, 8)
    since = _since(b, context_of(b, thread), shared)
    others = b.or_(
        b.c("emu.conflict", i1, thread, last, since), b.c("emu.others", i1, thread, last, since)
    )
    with b.rarely(others):
        _report(b, thread, Fault.RACE_AFTER_READ, last, facts)
    with b.if_then(atomic):
        b.c("emu.acquire", void, thread, before)
    mine = b.or_(b.get(thread, Thread.record), b.zext(site, i64))
    fenced = b.icmp("ne", b.get(thread, Thread.fenced), 0)
    publishes = b.or_(fenced, b.icmp("eq", kind, Access.ATOMIC_RELEASE))
    how = b.select(publishes, number(RELEASED << KIND_SHIFT), number(RELAXED << KIND_SHIFT))
    how = b.select(atomic, how, number(PLAIN))
    b.put(cell, 0, b.or_(mine, how))
    with b.unless(atomic):
        b.put(thread, Thread.fenced, 0)
    b.ret()


def _acquire(module: Module) -> None:
    """``emu.acquire(t, record)``: an atomic has read what the record's thread wrote: if that
    published, all that was before it is ordered before what this block does from here on.
    """
    b, (thread, record) = define(module, "emu.acquire", void, "t:ptr record:i64")
    context = context_of(b, thread)
    kind = b.and_(b.lshr(record, KIND_SHIFT), 3)
    with b.if_then(b.icmp("ne", kind, RELEASED)):
        b.ret()
    stamp = b.lshr(record, STAMP_SHIFT)
    known = b.get(context, Context.acquired)
    inside = b.icmp("uge", stamp, b.get(context, Context.first_of_block))

    def own() -> None:
        other = b.and_(b.lshr(record, THREAD_SHIFT), 1023)
        mine = b.zext(b.get(thread, Thread.warp), i64)
        pair = b.add(b.mul(mine, WARP), b.udiv(other, WARP))
        place = b.at(context, b.mul(pair, 8))
        older = b.icmp("ult", b.get(place, Context.clocks), stamp)
        with b.if_then(older):
            b.put(place, Context.clocks, stamp)

    def foreign() -> None:
        with b.if_then(b.icmp("ult", known, stamp)):
            b.put(context, Context.acquired, stamp)

    b.cond(inside, own, foreign)
    b.ret()


def _call(b: NativeBuilder, name: str, args: tuple[Val, ...]) -> None:
    b.c(name, void, *args)


def _check(module: Module) -> None:
    """``emu.check(t, address, access, site)``: before every access."""
    _acquire(module)
    b, (thread, address, access, site) = define(
        module, "emu.check", void, "t:ptr p:ptr access:i32 site:i32", internal=False
    )
    context = context_of(b, thread)
    place = b.ptrtoint(address, i64)
    align = _field(b, access, Access.ALIGN_SHIFT, 8)
    with b.rarely(b.icmp("ne", b.and_(place, b.sub(align, 1)), 0)):
        _report(b, thread, Fault.MISALIGNED, number(0), (place, access, site))
    offset = b.sub(place, b.get(context, Context.arena))
    with b.rarely(b.icmp("uge", offset, b.get(context, Context.arena_bytes))):
        b.c("emu.beyond", void, thread, place, access, site)
        b.ret()
    space = _field(b, access, Access.SPACE_SHIFT, 4)
    shared = b.icmp("ult", offset, SHARED_WINDOW)
    should = b.icmp("eq", space, _SHARED_SPACE)
    wrong = b.and_(b.icmp("ne", space, 0), b.xor(shared, should))
    with b.rarely(wrong):
        _report(b, thread, Fault.WRONG_SPACE, number(0), (place, access, site))
    b.c("emu.inside", void, thread, place, access, site)
    shift = b.get(context, Context.granule)
    cells = b.get(context, Context.cells, ptr)
    last = b.sub(b.add(offset, _field(b, access, Access.SIZE_SHIFT, 8)), 1)
    kind = _field(b, access, Access.KIND_SHIFT, 4)
    reads = b.or_(b.icmp("eq", kind, Access.READ), b.icmp("eq", kind, Access.ATOMIC_READ))
    flag = b.zext(shared, i32)
    with b.loop(b.lshr(offset, shift), b.add(b.lshr(last, shift), 1)) as loop:
        cell = b.at(cells, b.shl(loop.index, number(4)))
        at = b.add(b.shl(loop.index, shift), b.get(context, Context.arena))
        args = (thread, cell, at, access, site, flag)
        b.cond(reads, partial(_call, b, "emu.read", args), partial(_call, b, "emu.write", args))
    b.ret()


def _within(module: Module) -> None:
    """``emu.within(t, address, access, site, argument, size, number)``: that an access stays inside
    the ``size`` bytes behind the argument that its address was made from.
    """
    b, (thread, address, access, site, start, size, which) = define(
        module,
        "emu.within",
        void,
        "t:ptr p:ptr access:i32 site:i32 start:ptr size:i64 number:i32",
        internal=False,
    )
    place = b.ptrtoint(address, i64)
    offset = b.sub(place, b.ptrtoint(start, i64))
    bytes_ = _field(b, access, Access.SIZE_SHIFT, 8)
    wrong = b.or_(b.icmp("ugt", offset, size), b.icmp("ugt", b.add(offset, bytes_), size))
    with b.rarely(b.and_(wrong, b.icmp("ne", bytes_, 0))):
        facts = b.or_(b.zext(access, i64), b.shl(b.zext(which, i64), number(32)))
        fail(b, thread, Fault.BEYOND_ARGUMENT, site, address=place, other=offset, info=facts)
    b.ret()

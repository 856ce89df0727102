"""The checks of memory accesses in native code.

For each granule of memory stand two records (`layout`): of the last write, and of the last read.
An access conflicts with a record of another thread unless a synchronisation lies between: a barrier
of the block, of the warp, or, between blocks, something published by an atomic and read by another.
That the threads of a warp go in step excuses nothing: hardware gives no such promise.
"""

from __future__ import annotations

from functools import partial

from bringup.llvm.host.emit import Emit, define, number
from bringup.llvm.text import Module, Val, const, i1, i8, i32, i64, ptr, void
from bringup_cuda_emulator.fibers import context_of, fail, word
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
    _beyond(module)
    _inside(module)
    _read(module)
    _write(module)
    _check(module)
    _within(module)


def _field(b: Emit, access: Val, shift: int, bits: int) -> Val:
    part = b.and_(b.lshr(access, word(shift)), word((1 << bits) - 1))
    return b.zext(part, i64)


_RECORD_PARAMS = [("t", ptr), ("record", i64), ("since", i64)]


def _since(b: Emit, context: Val, shared: Val) -> Val:
    """The first stamp that matters: a block's shared memory is its own."""
    block, launch = (b.get(context, o) for o in (Context.FIRST_OF_BLOCK, Context.FIRST_OF_LAUNCH))
    return b.select(b.icmp("ne", shared, word(0)), block, launch)


def _conflict(module: Module) -> None:
    """``emu.conflict(t, record, since)``: whether the access of the record is ordered by nothing.
    What lies before the stamp ``since`` has nothing to do with this memory's contents.
    """
    b, (thread, record, since) = define(module, "emu.conflict", i1, _RECORD_PARAMS)
    context = context_of(b, thread)
    stamp = b.lshr(record, number(STAMP_SHIFT))
    with b.if_then(b.icmp("ult", stamp, since)):
        b.ret(const(i1, 0))
    with b.if_then(b.icmp("ult", stamp, b.get(context, Context.FIRST_OF_BLOCK))):
        b.ret(b.icmp("ugt", stamp, b.get(context, Context.ACQUIRED)))
    other = b.and_(b.lshr(record, number(THREAD_SHIFT)), number(1023))
    same = b.icmp("eq", other, b.zext(b.get(thread, Thread.NUMBER, i32), i64))
    ordered = b.icmp("ule", stamp, b.get(context, Context.FLOOR))
    with b.if_then(b.or_(same, ordered)):
        b.ret(const(i1, 0))
    mine = b.zext(b.get(thread, Thread.WARP, i32), i64)
    pair = b.add(b.mul(mine, number(WARP)), b.udiv(other, number(WARP)))
    known = b.get(b.at(context, b.mul(pair, number(8))), Context.CLOCKS)
    b.ret(b.icmp("ugt", stamp, known))


def _other_readers(module: Module) -> None:
    """``emu.others(t, record, since)``: whether the record of a read stands for several threads,
    which nothing orders before this access.
    """
    b, (thread, record, since) = define(module, "emu.others", i1, _RECORD_PARAMS)
    context = context_of(b, thread)
    several = b.and_(b.lshr(record, number(KIND_SHIFT)), number(SEVERAL))
    with b.if_then(b.icmp("eq", several, number(0))):
        b.ret(const(i1, 0))
    stamp = b.lshr(record, number(STAMP_SHIFT))
    late = b.icmp("ugt", stamp, b.get(context, Context.FLOOR))
    warp = b.zext(b.get(thread, Thread.WARP, i32), i64)
    clock = b.mul(warp, number(8 * (WARP + 1)))
    fresh = b.icmp("ugt", stamp, b.get(b.at(context, clock), Context.CLOCKS))
    now = b.icmp("uge", stamp, since)
    unknown = b.icmp("ugt", stamp, b.get(context, Context.ACQUIRED))
    b.ret(b.and_(b.and_(late, fresh), b.and_(now, unknown)))


def _beyond(module: Module) -> None:
    """``emu.beyond(t, address, access, site)``: an address of no buffer: a local variable and a
    table of the module are allowed.
    """
    b, (thread, address, access, site) = define(
        module, "emu.beyond", void, [("t", ptr), ("a", i64), ("access", i32), ("site", i32)]
    )
    context = context_of(b, thread)
    end = b.add(address, _field(b, access, Access.SIZE_SHIFT, 8))

    def within(low: Val, high: Val) -> Val:
        return b.and_(b.icmp("uge", address, low), b.icmp("ule", end, high))

    stacks = (b.get(context, o) for o in (Context.STACKS, Context.STACKS_END))
    with b.if_then(within(*stacks)):
        b.ret()
    table = b.get(context, Context.CONSTANTS, ptr)
    with b.loop(number(0), b.get(context, Context.CONSTANT_COUNT)) as loop:
        row = b.at(table, b.mul(loop.index, number(16)))
        reads = b.icmp("eq", _field(b, access, Access.KIND_SHIFT, 4), number(Access.READ))
        with b.if_then(b.and_(reads, within(b.get(row, 0), b.get(row, 8)))):
            b.ret()
    fail(b, thread, Fault.OUTSIDE, site, address=address, info=b.zext(access, i64))


def _inside(module: Module) -> None:
    """``emu.inside(t, address, access, site)``: that every byte belongs to a buffer."""
    b, (thread, address, access, site) = define(
        module, "emu.inside", void, [("t", ptr), ("a", i64), ("access", i32), ("site", i32)]
    )
    context = context_of(b, thread)
    offset = b.sub(address, b.get(context, Context.ARENA))
    end = b.add(offset, _field(b, access, Access.SIZE_SHIFT, 8))
    table = b.get(context, Context.MAP, ptr)
    first = b.lshr(offset, number(4))
    last = b.lshr(b.sub(end, number(1)), number(4))
    with b.loop(first, b.add(last, number(1))) as loop:
        usable = b.zext(b.get(b.at(table, loop.index), 0, i8), i64)
        begin = b.shl(loop.index, number(4))
        left = b.sub(end, begin)
        needed = b.select(b.icmp("ult", left, number(16)), left, number(16))
        with b.rarely(b.icmp("ugt", needed, usable)):
            fail(b, thread, Fault.OUTSIDE, site, address=address, info=b.zext(access, i64))
    b.ret()


def _report(b: Emit, thread: Val, fault: int, record: Val, rest: tuple[Val, Val, Val]) -> None:
    address, access, site = rest
    fail(b, thread, fault, site, address=address, other=record, info=b.zext(access, i64))


_CELL_PARAMS = [
    ("t", ptr), ("cell", ptr), ("address", i64), ("access", i32), ("site", i32), ("shared", i32),
]  # fmt: skip


def _written(
    b: Emit, thread: Val, cell: Val, shared: Val, atomic: Val, fault: int, rest: tuple[Val, ...]
) -> Val:
    """The record of the last write, with the faults that it alone shows."""
    address, access, site = rest
    facts = (address, access, site)
    context = context_of(b, thread)
    write = b.get(cell, 0)
    kind = b.and_(b.lshr(write, number(KIND_SHIFT)), number(3))
    stamp = b.lshr(write, number(STAMP_SHIFT))
    stale = b.icmp("ult", stamp, b.get(context, Context.FIRST_OF_BLOCK))
    flying = b.icmp("eq", kind, number(IN_FLIGHT))
    with b.rarely(b.and_(flying, b.not_(stale))):
        _report(b, thread, Fault.IN_FLIGHT, write, facts)
    if fault == Fault.RACE_READ:
        with b.rarely(b.and_(b.icmp("ne", shared, word(0)), stale)):
            _report(b, thread, Fault.UNINITIALISED, write, facts)
    since = _since(b, context, shared)
    with b.if_then(b.c("emu.conflict", i1, thread, write, since)):
        both = b.and_(atomic, b.icmp("ne", kind, number(PLAIN)))
        with b.rarely(b.not_(both)):
            _report(b, thread, fault, write, facts)
    return write


def _read(module: Module) -> None:
    """``emu.read``: check a cell for a read, and note it."""
    b, (thread, cell, address, access, site, shared) = define(
        module, "emu.read", void, _CELL_PARAMS
    )
    kind = _field(b, access, Access.KIND_SHIFT, 4)
    atomic = b.icmp("ne", kind, number(Access.READ))
    write = _written(b, thread, cell, shared, atomic, Fault.RACE_READ, (address, access, site))
    with b.if_then(atomic):
        b.c("emu.acquire", void, thread, write)
        b.ret()
    mine = b.or_(b.get(thread, Thread.RECORD), b.zext(site, i64))
    last = b.get(cell, 8)
    same = b.icmp("ult", b.xor(last, mine), number(1 << THREAD_SHIFT))
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
    atomic = b.icmp("ne", kind, number(Access.WRITE))
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
    mine = b.or_(b.get(thread, Thread.RECORD), b.zext(site, i64))
    fenced = b.icmp("ne", b.get(thread, Thread.FENCED, i32), word(0))
    publishes = b.or_(fenced, b.icmp("eq", kind, number(Access.ATOMIC_RELEASE)))
    how = b.select(publishes, number(RELEASED << KIND_SHIFT), number(RELAXED << KIND_SHIFT))
    how = b.select(atomic, how, number(PLAIN))
    b.put(cell, 0, b.or_(mine, how))
    with b.unless(atomic):
        b.put(thread, Thread.FENCED, word(0))
    b.ret()


def _acquire(module: Module) -> None:
    """``emu.acquire(t, record)``: an atomic has read what the record's thread wrote: if that
    published, all that was before it is ordered before what this block does from here on.
    """
    b, (thread, record) = define(module, "emu.acquire", void, [("t", ptr), ("record", i64)])
    context = context_of(b, thread)
    kind = b.and_(b.lshr(record, number(KIND_SHIFT)), number(3))
    with b.if_then(b.icmp("ne", kind, number(RELEASED))):
        b.ret()
    stamp = b.lshr(record, number(STAMP_SHIFT))
    known = b.get(context, Context.ACQUIRED)
    inside = b.icmp("uge", stamp, b.get(context, Context.FIRST_OF_BLOCK))

    def own() -> None:
        other = b.and_(b.lshr(record, number(THREAD_SHIFT)), number(1023))
        mine = b.zext(b.get(thread, Thread.WARP, i32), i64)
        pair = b.add(b.mul(mine, number(WARP)), b.udiv(other, number(WARP)))
        place = b.at(context, b.mul(pair, number(8)))
        older = b.icmp("ult", b.get(place, Context.CLOCKS), stamp)
        with b.if_then(older):
            b.put(place, Context.CLOCKS, stamp)

    def foreign() -> None:
        with b.if_then(b.icmp("ult", known, stamp)):
            b.put(context, Context.ACQUIRED, stamp)

    b.cond(inside, own, foreign)
    b.ret()


def _do(b: Emit, name: str, args: tuple[Val, ...]) -> None:
    b.c(name, void, *args)


def _check(module: Module) -> None:
    """``emu.check(t, address, access, site)``: before every access."""
    _acquire(module)
    b, (thread, address, access, site) = define(
        module, "emu.check", void,
        [("t", ptr), ("p", ptr), ("access", i32), ("site", i32)], internal=False,
    )  # fmt: skip
    context = context_of(b, thread)
    place = b.ptrtoint(address, i64)
    align = _field(b, access, Access.ALIGN_SHIFT, 8)
    with b.rarely(b.icmp("ne", b.and_(place, b.sub(align, number(1))), number(0))):
        _report(b, thread, Fault.MISALIGNED, number(0), (place, access, site))
    offset = b.sub(place, b.get(context, Context.ARENA))
    with b.rarely(b.icmp("uge", offset, b.get(context, Context.ARENA_BYTES))):
        b.c("emu.beyond", void, thread, place, access, site)
        b.ret()
    space = _field(b, access, Access.SPACE_SHIFT, 4)
    shared = b.icmp("ult", offset, number(SHARED_WINDOW))
    should = b.icmp("eq", space, number(_SHARED_SPACE))
    wrong = b.and_(b.icmp("ne", space, number(0)), b.xor(shared, should))
    with b.rarely(wrong):
        _report(b, thread, Fault.WRONG_SPACE, number(0), (place, access, site))
    b.c("emu.inside", void, thread, place, access, site)
    shift = b.get(context, Context.GRANULE)
    cells = b.get(context, Context.CELLS, ptr)
    last = b.sub(b.add(offset, _field(b, access, Access.SIZE_SHIFT, 8)), number(1))
    kind = _field(b, access, Access.KIND_SHIFT, 4)
    reads = b.or_(
        b.icmp("eq", kind, number(Access.READ)), b.icmp("eq", kind, number(Access.ATOMIC_READ))
    )
    flag = b.zext(shared, i32)
    with b.loop(b.lshr(offset, shift), b.add(b.lshr(last, shift), number(1))) as loop:
        cell = b.at(cells, b.shl(loop.index, number(4)))
        at = b.add(b.shl(loop.index, shift), b.get(context, Context.ARENA))
        args = (thread, cell, at, access, site, flag)
        b.cond(reads, partial(_do, b, "emu.read", args), partial(_do, b, "emu.write", args))
    b.ret()


def _within(module: Module) -> None:
    """``emu.within(t, address, access, site, argument, size, number)``: that an access stays inside
    the ``size`` bytes behind the argument that its address was made from.
    """
    b, (thread, address, access, site, start, size, which) = define(
        module, "emu.within", void,
        [
            ("t", ptr), ("p", ptr), ("access", i32), ("site", i32), ("start", ptr), ("size", i64),
            ("number", i32),
        ],
        internal=False,
    )  # fmt: skip
    place = b.ptrtoint(address, i64)
    offset = b.sub(place, b.ptrtoint(start, i64))
    bytes_ = _field(b, access, Access.SIZE_SHIFT, 8)
    wrong = b.or_(b.icmp("ugt", offset, size), b.icmp("ugt", b.add(offset, bytes_), size))
    with b.rarely(b.and_(wrong, b.icmp("ne", bytes_, number(0)))):
        facts = b.or_(b.zext(access, i64), b.shl(b.zext(which, i64), number(32)))
        fail(b, thread, Fault.BEYOND_ARGUMENT, site, address=place, other=offset, info=facts)
    b.ret()

"""Asynchronous copies to shared memory: what is copied arrives when its thread has waited for it,
and until then nobody may touch the place.
"""

from __future__ import annotations

from collections.abc import Callable

from bringup.llvm.host.emit import NULL, Emit, number
from bringup.llvm.text import Val, i8, i32, i64, ptr, void
from bringup_cuda_emulator.layout import (
    COPY_BYTES,
    IN_FLIGHT,
    KIND_SHIFT,
    MAX_COPIES,
    PLAIN,
    Access,
    Context,
    Fault,
    Thread,
)
from bringup_cuda_emulator.machine import context_of, fail, word
from bringup_cuda_emulator.shims import Body, Call, Shim, check

_GLOBAL, _SHARED = 1, 3
#: Members of a copy under way: target, source, bytes that are read, all bytes, group, site.
_TARGET, _SOURCE, _READ, _ALL, _GROUP, _SITE = 0, 8, 16, 20, 24, 28


def _queue(b: Emit, thread: Val) -> Val:
    """Where the thread's copies stand."""
    start = b.get(context_of(b, thread), Context.COPIES_AT, ptr)
    mine = b.zext(b.get(thread, Thread.NUMBER, i32), i64)
    return b.at(start, b.mul(mine, number(MAX_COPIES * COPY_BYTES)))


def _mark(b: Emit, thread: Val, target: Val, size: Val, site: Val, kind: int) -> None:
    """Say of every granule of the target who writes it, and how."""
    context = context_of(b, thread)
    cells = b.get(context, Context.CELLS, ptr)
    with b.if_then(b.icmp("ne", cells, NULL)):
        offset = b.sub(b.ptrtoint(target, i64), b.get(context, Context.ARENA))
        shift = b.get(context, Context.GRANULE)
        last = b.lshr(b.add(offset, b.sub(size, number(1))), shift)
        record = b.or_(b.get(thread, Thread.RECORD), b.zext(site, i64))
        record = b.or_(record, number(kind << KIND_SHIFT))
        with b.loop(b.lshr(offset, shift), b.add(last, number(1))) as loop:
            b.put(b.at(cells, b.shl(loop.index, number(4))), 0, record)


def _start(size: int, *, partial: bool) -> Body:
    def body(b: Emit, call: Call) -> None:
        target, source = call.args[:2]
        read = call.args[2] if partial else word(size)
        thread, site = call.thread, call.site
        with b.if_then(b.icmp("eq", read, word(size))):
            check(b, thread, site, source, size, space=_GLOBAL, kind=Access.READ)
        few = b.select(b.icmp("ult", read, word(size)), read, word(0))
        with b.loop(number(0), b.zext(few, i64)) as loop:
            one = b.at(source, loop.index)
            check(b, thread, site, one, 1, space=_GLOBAL, kind=Access.READ)
        check(b, thread, site, target, size, space=_SHARED, kind=Access.WRITE)
        count = b.get(thread, Thread.COPIES, i32)
        with b.rarely(b.icmp("uge", count, word(MAX_COPIES))):
            fail(b, thread, Fault.TOO_MANY_COPIES, site)
        place = b.at(_queue(b, thread), b.mul(b.zext(count, i64), number(COPY_BYTES)))
        for offset, value in (
            (_TARGET, target),
            (_SOURCE, source),
            (_READ, read),
            (_ALL, word(size)),
            (_GROUP, b.get(thread, Thread.GROUPS, i32)),
            (_SITE, site),
        ):
            b.put(place, offset, value)
        b.put(thread, Thread.COPIES, b.add(count, word(1)))
        _mark(b, thread, target, number(size), site, IN_FLIGHT)

    return body


def _commit(b: Emit, call: Call) -> None:
    groups = b.get(call.thread, Thread.GROUPS, i32)
    b.put(call.thread, Thread.GROUPS, b.add(groups, word(1)))


def _arrive(b: Emit, thread: Val, copy: Val) -> None:
    """The bytes of a copy, and 0 for those that are not read."""
    target, source = (b.get(copy, offset, ptr) for offset in (_TARGET, _SOURCE))
    read, size = (b.zext(b.get(copy, offset, i32), i64) for offset in (_READ, _ALL))
    with b.loop(number(0), read) as loop:
        b.store(b.load(i8, b.at(source, loop.index)), b.at(target, loop.index))
    with b.loop(read, size) as loop:
        b.store(b.trunc(number(0), i8), b.at(target, loop.index))
    _mark(b, thread, target, size, b.get(copy, _SITE, i32), PLAIN)


def _wait(limit: Callable[[Emit, Call, Val], Val]) -> Body:
    """Let copies of groups below ``limit`` arrive, and keep the others in order."""

    def body(b: Emit, call: Call) -> None:
        thread = call.thread
        queue = _queue(b, thread)
        below = limit(b, call, b.get(thread, Thread.GROUPS, i32))
        count = b.zext(b.get(thread, Thread.COPIES, i32), i64)
        with b.loop(number(0), count, carried=[number(0)]) as loop:
            copy = b.at(queue, b.mul(loop.index, number(COPY_BYTES)))
            done = b.icmp("slt", b.get(copy, _GROUP, i32), below)

            def arrive() -> Val:
                _arrive(b, thread, copy)
                return loop.carried[0]

            def keep() -> Val:
                to = b.at(queue, b.mul(loop.carried[0], number(COPY_BYTES)))
                for offset in range(0, COPY_BYTES, 8):
                    b.put(to, offset, b.get(copy, offset))
                return b.add(loop.carried[0], number(1))

            loop.next(*b.cond(done, arrive, keep))
        b.put(thread, Thread.COPIES, b.trunc(loop.carried[0], i32))

    return body


def _copies(kind: str, size: int) -> tuple[Shim, Shim]:
    name = f"llvm.nvvm.cp.async.{kind}.shared.global.{size}"
    return (
        Shim(name, void, (ptr, ptr), _start(size, partial=False), grain=size, reads=1),
        Shim(f"{name}.s", void, (ptr, ptr, i32), _start(size, partial=True), grain=size, reads=1),
    )


SHIMS = (
    *(shim for size in (4, 8, 16) for shim in _copies("ca", size)),
    *_copies("cg", 16),
    Shim("llvm.nvvm.cp.async.commit.group", void, (), _commit),
    Shim(
        "llvm.nvvm.cp.async.wait.group",
        void,
        (i32,),
        _wait(lambda b, call, groups: b.sub(groups, call.args[0])),
    ),
    Shim(
        "llvm.nvvm.cp.async.wait.all", void, (), _wait(lambda b, _, groups: b.add(groups, word(1)))
    ),
)

"""Warpgroups in native code: which threads they are, and where these meet."""

from __future__ import annotations

from collections.abc import Callable

from bringup.llvm.host.emit import Emit, define, number
from bringup.llvm.text import Module, Val, i32, i64, ptr, void
from bringup_cuda_emulator.layout import (
    GROUP_THREADS,
    THREAD_SHIFT,
    Context,
    Fault,
    Group,
    State,
    Thread,
)
from bringup_cuda_emulator.machine import context_of, fail, thread_at, word
from bringup_cuda_emulator.meeting import wait


def emit_warpgroups(module: Module) -> None:
    """Where the threads of a warpgroup meet."""
    _arrive(module)
    _release(module)


def number_of_group(b: Emit, thread: Val) -> Val:
    """The warpgroup of a thread."""
    return b.zext(b.udiv(b.get(thread, Thread.NUMBER, i32), word(GROUP_THREADS)), i64)


def group_of(b: Emit, thread: Val) -> Val:
    """What is known of a thread's warpgroup."""
    first = b.at(context_of(b, thread), Context.GROUPS)
    return b.at(first, b.mul(number_of_group(b, thread), number(Group.BYTES)))


def each_thread(b: Emit, thread: Val, do: Callable[[Val, Val], None]) -> None:
    """``do(index, thread)`` for each thread of a thread's warpgroup."""
    context = context_of(b, thread)
    first = b.mul(number_of_group(b, thread), number(GROUP_THREADS))
    with b.loop(number(0), number(GROUP_THREADS)) as loop:
        do(loop.index, thread_at(b, context, b.add(first, loop.index)))


def _arrive(module: Module) -> None:
    """``emu.group_arrive(t, site, payload)``: whether this thread is the last of its warpgroup to
    come and so has to do the work; the others return when that is done.
    """
    b, (thread, site, payload) = define(
        module, "emu.group_arrive", i32, [("t", ptr), ("site", i32), ("payload", ptr)]
    )
    context, group = context_of(b, thread), group_of(b, thread)
    end = b.mul(b.add(number_of_group(b, thread), number(1)), number(GROUP_THREADS))
    with b.rarely(b.icmp("ugt", end, b.get(context, Context.THREADS))):
        fail(b, thread, Fault.SHORT_GROUP, site)
    b.put(thread, Thread.PAYLOAD, payload)
    b.put(thread, Thread.SITE, site)
    come = b.bump(group, Group.COME, number(1))
    with b.if_then(b.icmp("ult", come, number(GROUP_THREADS))):
        wait(b, thread, State.IN_GROUP, site)
        b.ret(word(0))

    def agree(_: Val, other: Val) -> None:
        where = b.get(other, Thread.SITE, i32)
        with b.rarely(b.icmp("ne", where, site)):
            index = b.zext(b.get(other, Thread.NUMBER, i32), i64)
            record = b.or_(b.zext(where, i64), b.shl(index, number(THREAD_SHIFT)))
            fail(b, thread, Fault.DIVERGENT_GROUP, site, other=record)

    each_thread(b, thread, agree)
    b.put(group, Group.COME, number(0))
    b.ret(word(1))


def _release(module: Module) -> None:
    """``emu.group_release(t)``: the work is done: the warpgroup is ready."""
    b, (thread,) = define(module, "emu.group_release", void, [("t", ptr)])
    each_thread(b, thread, lambda _, t: b.put(t, Thread.STATE, word(State.READY)))
    b.put(context_of(b, thread), Context.IDLE, number(0))
    b.ret()

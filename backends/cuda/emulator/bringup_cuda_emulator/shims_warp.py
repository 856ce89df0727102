"""Warps: shuffles, votes, matches, reductions, synchronisation."""

from __future__ import annotations

from collections.abc import Callable

from bringup.llvm.host.emit import Emit, number
from bringup.llvm.text import Type, Val, const, f32, i1, i32, i64, struct_type, void
from bringup_cuda_emulator.layout import Fault, Thread
from bringup_cuda_emulator.machine import fail, word
from bringup_cuda_emulator.shims import Call, Lanes, Shim, Work, collective, shim

_PREFIX = "llvm.nvvm."


def _source(b: Emit, mode: str, lane: Val, by: Val, limits: Val) -> tuple[Val, Val]:
    """The lane a shuffle reads, and whether it is in range; as the PTX manual has it."""
    distance, clamp = b.and_(by, word(31)), b.and_(limits, word(31))
    segment = b.and_(b.lshr(limits, word(8)), word(31))
    outside = b.xor(segment, word(31))
    first = b.and_(lane, segment)
    last = b.or_(first, b.and_(clamp, outside))
    if mode == "up":
        source = b.sub(lane, distance)
        return source, b.icmp("sge", source, last)
    if mode == "down":
        source = b.add(lane, distance)
    elif mode == "bfly":
        source = b.xor(lane, distance)
    else:
        source = b.or_(first, b.and_(distance, outside))
    return source, b.icmp("sle", source, last)


def _shuffle(mode: str, value: Type, *, predicate: bool) -> Shim:
    ret = struct_type(value, i1) if predicate else value

    def work(b: Emit, lanes: Lanes) -> None:
        def one(lane: Val, thread: Val) -> None:
            narrow = b.trunc(lane, i32)
            source, good = _source(b, mode, narrow, lanes.arg(thread, 2), lanes.arg(thread, 3))
            source = b.select(good, source, narrow)
            present = b.and_(b.lshr(lanes.mask, source), word(1))
            with b.rarely(b.icmp("eq", present, word(0))):
                fail(b, thread, Fault.FOREIGN_LANE, lanes.site, info=b.zext(source, i64))
            got = lanes.arg(lanes.at(b.zext(source, i64)), 1)
            if predicate:
                got = b.insertvalue(b.insertvalue(Val("undef", ret), got, 0), good, 1)
            lanes.give(thread, got)

        lanes.each(one)

    name = f"{_PREFIX}shfl.sync.{mode}.{value.code}{'p' if predicate else ''}"
    return collective(name, ret, (i32, value, i32, i32), work, mask=0)


def _over_lanes(b: Emit, lanes: Lanes, start: Val, step: Callable[[Val, Val, Val], Val]) -> Val:
    """Fold over the lanes: ``step(so far, lane, thread)``."""
    place = b.alloca(start.type)
    b.store(start, place)
    lanes.each(lambda lane, thread: b.store(step(b.load(start.type, place), lane, thread), place))
    return b.load(start.type, place)


def _ballot(b: Emit, lanes: Lanes) -> Val:
    def step(so_far: Val, lane: Val, thread: Val) -> Val:
        bit = b.shl(b.zext(lanes.arg(thread, 1), i32), b.trunc(lane, i32))
        return b.or_(so_far, bit)

    return _over_lanes(b, lanes, word(0), step)


def _vote(kind: str) -> Work:
    def work(b: Emit, lanes: Lanes) -> None:
        ballot = _ballot(b, lanes)
        every, none = b.icmp("eq", ballot, lanes.mask), b.icmp("eq", ballot, word(0))
        result = {
            "ballot": lambda: ballot,
            "all": lambda: every,
            "any": lambda: b.not_(none),
            "uni": lambda: b.or_(every, none),
        }[kind]()
        lanes.each(lambda _, thread: lanes.give(thread, result))

    return work


def _peers(b: Emit, lanes: Lanes, value: Val) -> Val:
    def step(so_far: Val, lane: Val, thread: Val) -> Val:
        same = b.zext(b.icmp("eq", lanes.arg(thread, 1), value), i32)
        return b.or_(so_far, b.shl(same, b.trunc(lane, i32)))

    return _over_lanes(b, lanes, word(0), step)


def _match_any(b: Emit, lanes: Lanes) -> None:
    lanes.each(lambda _, t: lanes.give(t, _peers(b, lanes, lanes.arg(t, 1))))


def _match_all(b: Emit, lanes: Lanes) -> None:
    pair = struct_type(i32, i1)
    alike = b.icmp("eq", _peers(b, lanes, lanes.arg(lanes.thread, 1)), lanes.mask)
    mask = b.select(alike, lanes.mask, word(0))
    result = b.insertvalue(b.insertvalue(Val("undef", pair), mask, 0), alike, 1)
    lanes.each(lambda _, thread: lanes.give(thread, result))


def _reduction(op: str) -> Work:
    starts = {"and": -1, "min": (1 << 31) - 1, "max": -(1 << 31), "umin": -1}

    def work(b: Emit, lanes: Lanes) -> None:
        def step(so_far: Val, lane: Val, thread: Val) -> Val:
            mine = lanes.arg(thread, 0)
            if "min" in op or "max" in op:
                name = f"llvm.{op if op[0] == 'u' else 's' + op}"
                return b.intrinsic(name, i32, (so_far, mine))
            return b.binary(op, so_far, mine)

        total = _over_lanes(b, lanes, word(starts.get(op, 0)), step)
        lanes.each(lambda _, thread: lanes.give(thread, total))

    return work


def _sync(b: Emit, lanes: Lanes) -> None:
    b.c("emu.sync_warp", void, lanes.thread, lanes.mask)


def _active(b: Emit, call: Call) -> Val:
    """Its own lane alone: no more is promised, and nobody else need be converged here."""
    return b.shl(const(i32, 1), b.get(call.thread, Thread.LANE, i32))


def _lane_mask(kind: str) -> Callable[[Emit, Call], Val]:
    def body(b: Emit, call: Call) -> Val:
        bit = b.shl(number(1), b.zext(b.get(call.thread, Thread.LANE, i32), i64))
        below = b.sub(bit, number(1))
        made = {
            "eq": lambda: bit,
            "lt": lambda: below,
            "le": lambda: b.or_(below, bit),
            "gt": lambda: b.not_(b.or_(below, bit)),
            "ge": lambda: b.not_(below),
        }[kind]()
        return b.trunc(made, i32)

    return body


SHIMS = (
    *(
        _shuffle(mode, value, predicate=predicate)
        for mode in ("up", "down", "bfly", "idx")
        for value in (i32, f32)
        for predicate in (False, True)
    ),
    *(
        collective(f"{_PREFIX}vote.{kind}.sync", i1, (i32, i1), _vote(kind), mask=0)
        for kind in ("all", "any", "uni")
    ),
    collective(f"{_PREFIX}vote.ballot.sync", i32, (i32, i1), _vote("ballot"), mask=0),
    *(
        collective(f"{_PREFIX}match.any.sync.{t.code}", i32, (i32, t), _match_any, mask=0)
        for t in (i32, i64)
    ),
    *(
        collective(
            f"{_PREFIX}match.all.sync.{t.code}p", struct_type(i32, i1), (i32, t), _match_all, mask=0
        )
        for t in (i32, i64)
    ),
    *(
        collective(f"{_PREFIX}redux.sync.{op}", i32, (i32, i32), _reduction(op), mask=1)
        for op in ("add", "min", "max", "umin", "umax", "and", "or", "xor")
    ),
    collective(f"{_PREFIX}bar.warp.sync", void, (i32,), _sync, mask=0),
    shim(f"{_PREFIX}activemask", i32, (), _active),
    *(
        shim(f"llvm.nvvm.read.ptx.sreg.lanemask.{kind}", i32, (), _lane_mask(kind))
        for kind in ("eq", "lt", "le", "gt", "ge")
    ),
)

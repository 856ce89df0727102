"""Barriers of a block, and fences."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from bringup.errors import CompileError
from bringup.llvm.host.emit import NULL, Emit, number
from bringup.llvm.math import f32_to_bf16
from bringup.llvm.text import (
    Type,
    Val,
    bf16,
    const,
    f16,
    f32,
    i1,
    i8,
    i16,
    i32,
    i64,
    poison,
    ptr,
    struct_type,
    vec,
    void,
)
from bringup_cuda_emulator.fibers import context_of, fail, word
from bringup_cuda_emulator.shims import Body, Call, Lanes, Shim, Work, check, collective, shim
from bringup_cuda_emulator.structs import (
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
from bringup_cuda_emulator.wgmma import WGMMA_ASSEMBLY, WGMMA_INTRINSICS


def _barrier(b: Emit, call: Call, count: Val, *, wait: bool) -> None:
    b.c("emu.barrier", void, call.thread, call.site, call.args[0], count, word(wait))


def _all(b: Emit, call: Call) -> None:
    _barrier(b, call, word(0), wait=True)


def _some(b: Emit, call: Call) -> None:
    _barrier(b, call, call.args[1], wait=True)


def _arrive(b: Emit, call: Call) -> None:
    _barrier(b, call, call.args[1], wait=False)


def _fence(b: Emit, call: Call) -> None:
    b.put(call.thread, Thread.FENCED, word(1))


def _nothing(b: Emit, call: Call) -> None:
    """A fence within the block publishes nothing to other blocks."""


_CTA = "llvm.nvvm.barrier.cta"


def _one(b: Emit, call: Call) -> Val:
    return f32_to_bf16(b, call.args[0])


def _two(b: Emit, call: Call) -> Val:
    """The first argument goes to the upper half."""
    high, low = (f32_to_bf16(b, x) for x in call.args)
    made = b.insertelement(poison(vec(bf16, 2)), low, 0)
    return b.insertelement(made, high, 1)


def _tf32(b: Emit, call: Call) -> Val:
    """Half of the last bit that is kept is added, unless to an infinity or NaN, and what is behind
    that bit is cut off, as the assembler has it for sm_80 to sm_120: ties go away from zero, and a
    NaN by its last 13 bits alone becomes an infinity.
    """
    bits = b.bitcast(call.args[0], i32)
    size = b.and_(bits, const(i32, 0x7FFFFFFF))
    finite = b.icmp("ult", size, const(i32, 0x7F800000))
    rounded = b.select(finite, b.add(bits, const(i32, 1 << 12)), bits)
    return b.and_(rounded, const(i32, -(1 << 13)))


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


def _complete_copy(b: Emit, thread: Val, copy: Val) -> None:
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
                _complete_copy(b, thread, copy)
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


#: Registers of a lane: of the left factor, of the right one, of the sums.
_LEFT, _RIGHT, _SUMS = 4, 2, 4


def _lane(b: Emit, group: Val, member: Val) -> Val:
    """A lane by its group of four and its place there."""
    return b.add(b.mul(group, number(4)), member)


def _parts(b: Emit, lane: Val) -> tuple[Val, Val]:
    return b.lshr(lane, number(2)), b.and_(lane, number(3))


# -- matrix loads


def _load_matrices(*, turned: bool) -> Work:
    def work(b: Emit, lanes: Lanes) -> None:
        def look(_: Val, thread: Val) -> None:
            address = lanes.arg(thread, 0)
            check(b, thread, lanes.site, address, 16, space=_SHARED, kind=Access.READ)

        def one(lane: Val, thread: Val) -> None:
            group, member = _parts(b, lane)
            for matrix in range(4):
                first = number(8 * matrix)

                def row(at: Val, first: Val = first) -> Val:
                    return lanes.arg(lanes.at(b.add(first, at)), 0)

                if turned:
                    found = [
                        b.load(
                            i16, b.gep(row(b.add(b.mul(member, number(2)), number(n))), group, i16)
                        )
                        for n in range(2)
                    ]
                    high = b.shl(b.zext(found[1], i32), const(i32, 16))
                    word = b.or_(b.zext(found[0], i32), high)
                else:
                    word = b.load(i32, b.gep(row(group), member, i32))
                b.put(lanes.result_bytes(thread), 4 * matrix, word)

        lanes.each(look)
        lanes.each(one)

    return work


# -- products


def _elements(b: Emit, kind: str, word: Val) -> list[Val]:
    """The elements of a register, as f32 or i32."""
    if kind in ("s8", "u8"):
        lanes = b.bitcast(word, vec(i8, 4))
        parts = [b.extractelement(lanes, n) for n in range(4)]
        return [(b.sext if kind == "s8" else b.zext)(part, i32) for part in parts]
    if kind == "tf32":
        # The last 13 bits are none of the format's.
        return [b.bitcast(b.and_(word, const(i32, -(1 << 13))), f32)]
    if kind == "f16":
        halves = b.bitcast(word, vec(f16, 2))
        return [b.fpext(b.extractelement(halves, n), f32) for n in range(2)]
    low = b.shl(word, const(i32, 16))
    high = b.and_(word, const(i32, -(1 << 16)))
    return [b.bitcast(low, f32), b.bitcast(high, f32)]


def _product(kind: str, total: Type) -> Work:
    """Rows of a lane's sums are its group's and the eighth one after; columns twice its place."""

    def work(b: Emit, lanes: Lanes) -> None:
        def one(lane: Val, thread: Val) -> None:
            group, member = _parts(b, lane)
            for place in range(_SUMS):
                lower, column = divmod(place, 2)
                sums = lanes.arg(thread, _LEFT + _RIGHT + place)
                right = b.add(b.mul(member, number(2)), number(column))
                for half in range(2):
                    for quarter in range(4):
                        x = lanes.at(_lane(b, group, number(quarter)))
                        y = lanes.at(_lane(b, right, number(quarter)))
                        xs = b.load(i32, lanes.arg_bytes(x, lower + 2 * half))
                        ys = b.load(i32, lanes.arg_bytes(y, _LEFT + half))
                        pairs = zip(_elements(b, kind, xs), _elements(b, kind, ys), strict=True)
                        for p, q in pairs:
                            if total is f32:
                                sums = b.fadd(sums, b.fmul(p, q))
                            else:
                                sums = b.add(sums, b.mul(p, q))
                b.put(lanes.result_bytes(thread), 4 * place, sums)

        lanes.each(one)

    return work


def _mma(name: str, kind: str, element: Type, total: Type) -> Shim:
    params = (*[element] * (_LEFT + _RIGHT), *[total] * _SUMS)
    ret = struct_type(*[total] * _SUMS)
    return collective(f"llvm.nvvm.mma.{name}", ret, params, _product(kind, total))


def _matrices(form: str, *, turned: bool) -> Shim:
    name = f"llvm.nvvm.ldmatrix.sync.aligned.{form}.b16.p3"
    ret = struct_type(*[i32] * 4)
    return collective(name, ret, (ptr,), _load_matrices(turned=turned))


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


# -- the table -------------------------------------------------------------------------------------

INTRINSICS = (
    *(Shim(f"{_CTA}.sync{a}.all", void, (i32,), _all, waits=True) for a in (".aligned", "")),
    *(Shim(f"{_CTA}.sync{a}.count", void, (i32, i32), _some, waits=True) for a in (".aligned", "")),
    *(
        Shim(f"{_CTA}.arrive{a}.count", void, (i32, i32), _arrive, waits=True)
        for a in (".aligned", "")
    ),
    Shim("llvm.nvvm.membar.gl", void, (), _fence),
    Shim("llvm.nvvm.membar.sys", void, (), _fence),
    Shim("llvm.nvvm.membar.cta", void, (), _nothing),
    shim("llvm.nvvm.f2bf16.rn", bf16, (f32,), _one),
    shim("llvm.nvvm.f2tf32.rna", i32, (f32,), _tf32),
    shim("llvm.nvvm.ff2bf16x2.rn", vec(bf16, 2), (f32, f32), _two),
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
    _matrices("m8n8.x4", turned=False),
    _matrices("m8n8.x4.trans", turned=True),
    _mma("m16n8k16.row.col.f32.f32", "f16", vec(f16, 2), f32),
    _mma("m16n8k16.row.col.bf16", "bf16", i32, f32),
    _mma("m16n8k8.row.col.tf32", "tf32", i32, f32),
    _mma("m16n8k32.row.col.s8", "s8", i32, i32),
    _mma("m16n8k32.row.col.u8", "u8", i32, i32),
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
    *WGMMA_INTRINSICS,
)


@cache
def all_shims() -> dict[str, Shim]:
    """Every shim by its intrinsic's name."""
    shims = {shim.name: shim for shim in INTRINSICS}
    assert len(shims) == len(INTRINSICS), "two shims of one intrinsic"
    return shims


def read_assembly(text: str, constraints: str) -> tuple[str, tuple[str, ...]]:
    """The shim for inline PTX, and more operands for it.  Raises CompileError."""
    for spelling in WGMMA_ASSEMBLY:
        match = spelling.pattern.fullmatch(text)
        shim = None if match is None else spelling.read(match, constraints)
        if shim is not None:
            return shim
    raise CompileError(  # pragma: no cover - only wrong kernels
        f"the emulator does not run PTX like this: {text} ({constraints})"
    )

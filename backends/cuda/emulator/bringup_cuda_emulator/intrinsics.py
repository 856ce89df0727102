"""The shims of intrinsics, in one table: barriers, conversions, copies, tensor cores, warps.

An asynchronous copy to shared memory arrives when its thread has waited for it; until then nobody
may access the target.  Sums of tensor cores are added in the order of the inner index, each product
exact and each addition rounded to f32; hardware adds several products at once and rounds
differently, within the same bound.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from bringup.errors import CompileError
from bringup.llvm.host.emit import NULL
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
from bringup_cuda_emulator.builder import NativeBuilder, number, word
from bringup_cuda_emulator.fibers import context_of, fail
from bringup_cuda_emulator.shims import Body, Call, Lanes, Shim, Work, check, collective, shim
from bringup_cuda_emulator.structs import (
    IN_FLIGHT,
    KIND_SHIFT,
    MAX_COPIES,
    PLAIN,
    Access,
    Context,
    Copy,
    Fault,
    Thread,
    nbytes,
)
from bringup_cuda_emulator.wgmma import WGMMA_ASSEMBLY, WGMMA_INTRINSICS


def _barrier(b: NativeBuilder, call: Call, count: Val, *, wait: bool) -> None:
    b.c("emu.barrier", void, call.thread, call.site, call.args[0], count, word(wait))


def _barrier_all(b: NativeBuilder, call: Call) -> None:
    _barrier(b, call, word(0), wait=True)


def _barrier_count(b: NativeBuilder, call: Call) -> None:
    _barrier(b, call, call.args[1], wait=True)


def _arrive(b: NativeBuilder, call: Call) -> None:
    _barrier(b, call, call.args[1], wait=False)


def _fence(b: NativeBuilder, call: Call) -> None:
    b.put(call.thread, Thread.fenced, 1)


def _block_fence(b: NativeBuilder, call: Call) -> None:
    """A fence within the block publishes nothing to other blocks."""


_CTA = "llvm.nvvm.barrier.cta"


def _to_bf16(b: NativeBuilder, call: Call) -> Val:
    return f32_to_bf16(b, call.args[0])


def _to_bf16x2(b: NativeBuilder, call: Call) -> Val:
    """The first argument goes to the upper half."""
    high, low = (f32_to_bf16(b, x) for x in call.args)
    result = b.insertelement(poison(vec(bf16, 2)), low, 0)
    return b.insertelement(result, high, 1)


def _tf32(b: NativeBuilder, call: Call) -> Val:
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


def _queue(b: NativeBuilder, thread: Val) -> Val:
    """The address of the thread's copies in flight."""
    start = b.get(context_of(b, thread), Context.copies_at, ptr)
    mine = b.zext(b.get(thread, Thread.index), i64)
    return b.at(start, b.mul(mine, MAX_COPIES * nbytes(Copy)))


def _record_write(
    b: NativeBuilder, thread: Val, target: Val, size: Val, site: Val, kind: int
) -> None:
    """Set the write records of the target's granules."""
    context = context_of(b, thread)
    cells = b.get(context, Context.cells, ptr)
    with b.if_then(b.icmp("ne", cells, NULL)):
        offset = b.sub(b.ptrtoint(target, i64), b.get(context, Context.arena))
        shift = b.get(context, Context.granule)
        last = b.lshr(b.add(offset, b.sub(size, 1)), shift)
        record = b.or_(b.get(thread, Thread.record), b.zext(site, i64))
        record = b.or_(record, number(kind << KIND_SHIFT))
        with b.loop(b.lshr(offset, shift), b.add(last, 1)) as loop:
            b.put(b.at(cells, b.shl(loop.index, number(4))), 0, record)


def _start(size: int, *, partial: bool) -> Body:
    def body(b: NativeBuilder, call: Call) -> None:
        target, source = call.args[:2]
        read = call.args[2] if partial else word(size)
        thread, site = call.thread, call.site
        with b.if_then(b.icmp("eq", read, size)):
            check(b, thread, site, source, size, space=_GLOBAL, kind=Access.READ)
        few = b.select(b.icmp("ult", read, size), read, word(0))
        with b.loop(number(0), b.zext(few, i64)) as loop:
            one = b.at(source, loop.index)
            check(b, thread, site, one, 1, space=_GLOBAL, kind=Access.READ)
        check(b, thread, site, target, size, space=_SHARED, kind=Access.WRITE)
        count = b.get(thread, Thread.copies)
        with b.rarely(b.icmp("uge", count, MAX_COPIES)):
            fail(b, thread, Fault.TOO_MANY_COPIES, site)
        place = b.at(_queue(b, thread), b.mul(b.zext(count, i64), nbytes(Copy)))
        for offset, value in (
            (Copy.target, target),
            (Copy.source, source),
            (Copy.read, read),
            (Copy.nbytes, word(size)),
            (Copy.group, b.get(thread, Thread.copy_groups)),
            (Copy.site, site),
        ):
            b.put(place, offset, value)
        b.put(thread, Thread.copies, b.add(count, 1))
        _record_write(b, thread, target, number(size), site, IN_FLIGHT)

    return body


def _commit(b: NativeBuilder, call: Call) -> None:
    groups = b.get(call.thread, Thread.copy_groups)
    b.put(call.thread, Thread.copy_groups, b.add(groups, 1))


def _complete_copy(b: NativeBuilder, thread: Val, copy: Val) -> None:
    """The bytes of a copy, and 0 for those that are not read."""
    target, source = (b.get(copy, offset, ptr) for offset in (Copy.target, Copy.source))
    read, size = (b.zext(b.get(copy, offset), i64) for offset in (Copy.read, Copy.nbytes))
    with b.loop(number(0), read) as loop:
        b.store(b.load(i8, b.at(source, loop.index)), b.at(target, loop.index))
    with b.loop(read, size) as loop:
        b.store(b.trunc(number(0), i8), b.at(target, loop.index))
    _record_write(b, thread, target, size, b.get(copy, Copy.site), PLAIN)


def _wait(limit: Callable[[NativeBuilder, Call, Val], Val]) -> Body:
    """Let copies of groups below ``limit`` arrive, and keep the others in order."""

    def body(b: NativeBuilder, call: Call) -> None:
        thread = call.thread
        queue = _queue(b, thread)
        below = limit(b, call, b.get(thread, Thread.copy_groups))
        count = b.zext(b.get(thread, Thread.copies), i64)
        with b.loop(number(0), count, carried=[number(0)]) as loop:
            copy = b.at(queue, b.mul(loop.index, nbytes(Copy)))
            done = b.icmp("slt", b.get(copy, Copy.group), below)

            def arrive() -> Val:
                _complete_copy(b, thread, copy)
                return loop.carried[0]

            def keep() -> Val:
                to = b.at(queue, b.mul(loop.carried[0], nbytes(Copy)))
                for offset in range(0, nbytes(Copy), 8):
                    b.put(to, offset, b.get(copy, offset))
                return b.add(loop.carried[0], 1)

            loop.next(*b.cond(done, arrive, keep))
        b.put(thread, Thread.copies, b.trunc(loop.carried[0], i32))

    return body


def _copies(kind: str, size: int) -> tuple[Shim, Shim]:
    name = f"llvm.nvvm.cp.async.{kind}.shared.global.{size}"
    return (
        Shim(name, void, (ptr, ptr), _start(size, partial=False), grain=size, reads=1),
        Shim(f"{name}.s", void, (ptr, ptr, i32), _start(size, partial=True), grain=size, reads=1),
    )


#: Registers of a lane: of the left factor, of the right one, of the sums.
_LEFT, _RIGHT, _SUMS = 4, 2, 4


def _lane(b: NativeBuilder, group: Val, member: Val) -> Val:
    """A lane by its group of four and its position there."""
    return b.add(b.mul(group, 4), member)


def _group_and_member(b: NativeBuilder, lane: Val) -> tuple[Val, Val]:
    return b.lshr(lane, 2), b.and_(lane, 3)


# -- matrix loads


def _load_matrices(*, transposed: bool) -> Work:
    def work(b: NativeBuilder, lanes: Lanes) -> None:
        def look(_: Val, thread: Val) -> None:
            address = lanes.argument(thread, 0)
            check(b, thread, lanes.site, address, 16, space=_SHARED, kind=Access.READ)

        def one(lane: Val, thread: Val) -> None:
            group, member = _group_and_member(b, lane)
            for matrix in range(4):
                first = number(8 * matrix)

                def row(at: Val, first: Val = first) -> Val:
                    return lanes.argument(lanes.at(b.add(first, at)), 0)

                if transposed:
                    halves = [
                        b.load(i16, b.gep(row(b.add(b.mul(member, 2), n)), group, i16))
                        for n in range(2)
                    ]
                    high = b.shl(b.zext(halves[1], i32), const(i32, 16))
                    word = b.or_(b.zext(halves[0], i32), high)
                else:
                    word = b.load(i32, b.gep(row(group), member, i32))
                b.put(lanes.result_address(thread), 4 * matrix, word)

        lanes.each(look)
        lanes.each(one)

    return work


# -- products


def _elements(b: NativeBuilder, kind: str, word: Val) -> list[Val]:
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

    def work(b: NativeBuilder, lanes: Lanes) -> None:
        def one(lane: Val, thread: Val) -> None:
            group, member = _group_and_member(b, lane)
            for place in range(_SUMS):
                lower, column = divmod(place, 2)
                sums = lanes.argument(thread, _LEFT + _RIGHT + place)
                right = b.add(b.mul(member, 2), column)
                for half in range(2):
                    for quarter in range(4):
                        x = lanes.at(_lane(b, group, number(quarter)))
                        y = lanes.at(_lane(b, right, number(quarter)))
                        xs = b.load(i32, lanes.argument_address(x, lower + 2 * half))
                        ys = b.load(i32, lanes.argument_address(y, _LEFT + half))
                        pairs = zip(_elements(b, kind, xs), _elements(b, kind, ys), strict=True)
                        for p, q in pairs:
                            if total is f32:
                                sums = b.fadd(sums, b.fmul(p, q))
                            else:
                                sums = b.add(sums, b.mul(p, q))
                b.put(lanes.result_address(thread), 4 * place, sums)

        lanes.each(one)

    return work


def _mma(name: str, kind: str, element: Type, total: Type) -> Shim:
    params = (*[element] * (_LEFT + _RIGHT), *[total] * _SUMS)
    ret = struct_type(*[total] * _SUMS)
    return collective(f"llvm.nvvm.mma.{name}", ret, params, _product(kind, total))


def _matrices(form: str, *, transposed: bool) -> Shim:
    name = f"llvm.nvvm.ldmatrix.sync.aligned.{form}.b16.p3"
    ret = struct_type(*[i32] * 4)
    return collective(name, ret, (ptr,), _load_matrices(transposed=transposed))


_PREFIX = "llvm.nvvm."


def _source(b: NativeBuilder, mode: str, lane: Val, by: Val, limits: Val) -> tuple[Val, Val]:
    """The lane a shuffle reads, and whether it is in range; as the PTX manual has it."""
    distance, clamp = b.and_(by, 31), b.and_(limits, 31)
    segment = b.and_(b.lshr(limits, 8), 31)
    outside = b.xor(segment, 31)
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

    def work(b: NativeBuilder, lanes: Lanes) -> None:
        def one(lane: Val, thread: Val) -> None:
            narrow = b.trunc(lane, i32)
            source, good = _source(
                b, mode, narrow, lanes.argument(thread, 2), lanes.argument(thread, 3)
            )
            source = b.select(good, source, narrow)
            present = b.and_(b.lshr(lanes.mask, source), 1)
            with b.rarely(b.icmp("eq", present, 0)):
                fail(b, thread, Fault.FOREIGN_LANE, lanes.site, info=b.zext(source, i64))
            got = lanes.argument(lanes.at(b.zext(source, i64)), 1)
            if predicate:
                got = b.insertvalue(b.insertvalue(Val("undef", ret), got, 0), good, 1)
            lanes.set_result(thread, got)

        lanes.each(one)

    name = f"{_PREFIX}shfl.sync.{mode}.{value.code}{'p' if predicate else ''}"
    return collective(name, ret, (i32, value, i32, i32), work, mask=0)


def _fold_lanes(
    b: NativeBuilder, lanes: Lanes, start: Val, step: Callable[[Val, Val, Val], Val]
) -> Val:
    """Fold over the lanes: ``step(so far, lane, thread)``."""
    place = b.alloca(start.type)
    b.store(start, place)
    lanes.each(lambda lane, thread: b.store(step(b.load(start.type, place), lane, thread), place))
    return b.load(start.type, place)


def _ballot(b: NativeBuilder, lanes: Lanes) -> Val:
    def step(so_far: Val, lane: Val, thread: Val) -> Val:
        bit = b.shl(b.zext(lanes.argument(thread, 1), i32), b.trunc(lane, i32))
        return b.or_(so_far, bit)

    return _fold_lanes(b, lanes, word(0), step)


def _vote(kind: str) -> Work:
    def work(b: NativeBuilder, lanes: Lanes) -> None:
        ballot = _ballot(b, lanes)
        every, none = b.icmp("eq", ballot, lanes.mask), b.icmp("eq", ballot, 0)
        result = {
            "ballot": lambda: ballot,
            "all": lambda: every,
            "any": lambda: b.not_(none),
            "uni": lambda: b.or_(every, none),
        }[kind]()
        lanes.each(lambda _, thread: lanes.set_result(thread, result))

    return work


def _equal_lanes(b: NativeBuilder, lanes: Lanes, value: Val) -> Val:
    def step(so_far: Val, lane: Val, thread: Val) -> Val:
        same = b.zext(b.icmp("eq", lanes.argument(thread, 1), value), i32)
        return b.or_(so_far, b.shl(same, b.trunc(lane, i32)))

    return _fold_lanes(b, lanes, word(0), step)


def _match_any(b: NativeBuilder, lanes: Lanes) -> None:
    lanes.each(lambda _, t: lanes.set_result(t, _equal_lanes(b, lanes, lanes.argument(t, 1))))


def _match_all(b: NativeBuilder, lanes: Lanes) -> None:
    pair = struct_type(i32, i1)
    alike = b.icmp("eq", _equal_lanes(b, lanes, lanes.argument(lanes.thread, 1)), lanes.mask)
    mask = b.select(alike, lanes.mask, word(0))
    result = b.insertvalue(b.insertvalue(Val("undef", pair), mask, 0), alike, 1)
    lanes.each(lambda _, thread: lanes.set_result(thread, result))


def _reduction(op: str) -> Work:
    starts = {"and": -1, "min": (1 << 31) - 1, "max": -(1 << 31), "umin": -1}

    def work(b: NativeBuilder, lanes: Lanes) -> None:
        def step(so_far: Val, lane: Val, thread: Val) -> Val:
            mine = lanes.argument(thread, 0)
            if "min" in op or "max" in op:
                name = f"llvm.{op if op[0] == 'u' else 's' + op}"
                return b.intrinsic(name, i32, (so_far, mine))
            return b.binary(op, so_far, mine)

        total = _fold_lanes(b, lanes, word(starts.get(op, 0)), step)
        lanes.each(lambda _, thread: lanes.set_result(thread, total))

    return work


def _sync(b: NativeBuilder, lanes: Lanes) -> None:
    b.c("emu.sync_warp", void, lanes.thread, lanes.mask)


def _active_mask(b: NativeBuilder, call: Call) -> Val:
    """Its own lane alone: no more is promised, and nobody else need be converged here."""
    return b.shl(const(i32, 1), b.get(call.thread, Thread.lane))


def _lane_mask(kind: str) -> Callable[[NativeBuilder, Call], Val]:
    def body(b: NativeBuilder, call: Call) -> Val:
        bit = b.shl(number(1), b.zext(b.get(call.thread, Thread.lane), i64))
        below = b.sub(bit, 1)
        result = {
            "eq": lambda: bit,
            "lt": lambda: below,
            "le": lambda: b.or_(below, bit),
            "gt": lambda: b.not_(b.or_(below, bit)),
            "ge": lambda: b.not_(below),
        }[kind]()
        return b.trunc(result, i32)

    return body


# -- the table -------------------------------------------------------------------------------------

INTRINSICS = (
    *(
        Shim(f"{_CTA}.sync{a}.all", void, (i32,), _barrier_all, waits=True)
        for a in (".aligned", "")
    ),
    *(
        Shim(f"{_CTA}.sync{a}.count", void, (i32, i32), _barrier_count, waits=True)
        for a in (".aligned", "")
    ),
    *(
        Shim(f"{_CTA}.arrive{a}.count", void, (i32, i32), _arrive, waits=True)
        for a in (".aligned", "")
    ),
    Shim("llvm.nvvm.membar.gl", void, (), _fence),
    Shim("llvm.nvvm.membar.sys", void, (), _fence),
    Shim("llvm.nvvm.membar.cta", void, (), _block_fence),
    shim("llvm.nvvm.f2bf16.rn", bf16, (f32,), _to_bf16),
    shim("llvm.nvvm.f2tf32.rna", i32, (f32,), _tf32),
    shim("llvm.nvvm.ff2bf16x2.rn", vec(bf16, 2), (f32, f32), _to_bf16x2),
    *(shim for size in (4, 8, 16) for shim in _copies("ca", size)),
    *_copies("cg", 16),
    Shim("llvm.nvvm.cp.async.commit.group", void, (), _commit),
    Shim(
        "llvm.nvvm.cp.async.wait.group",
        void,
        (i32,),
        _wait(lambda b, call, groups: b.sub(groups, call.args[0])),
    ),
    Shim("llvm.nvvm.cp.async.wait.all", void, (), _wait(lambda b, _, groups: b.add(groups, 1))),
    _matrices("m8n8.x4", transposed=False),
    _matrices("m8n8.x4.trans", transposed=True),
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
    shim(f"{_PREFIX}activemask", i32, (), _active_mask),
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

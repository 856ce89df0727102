"""Matrices in shared memory as descriptors name them: where their elements are, and whether tensor
cores may read them.  As in the PTX manual's chapter on asynchronous warpgroup instructions.
"""

from __future__ import annotations

from bringup.llvm.host.emit import NULL, Emit, define, number
from bringup.llvm.text import Module, Val, f16, f32, i16, i32, i64, ptr, void
from bringup_cuda_emulator.layout import (
    GROUP_THREADS,
    STAMP_SHIFT,
    THREAD_SHIFT,
    Access,
    Context,
    Fault,
    Thread,
)
from bringup_cuda_emulator.machine import context_of, fail, thread_at, word
from bringup_cuda_emulator.warpgroups import number_of_group

#: Inner elements of a product.
INNER = 16
_SHARED_SPACE = 3
#: Swizzling by 128 bytes; bytes of a piece of a line, of a chunk, and of eight pieces.
_SWIZZLED, _PIECE, _CHUNK, _TURN = 1, 128, 16, 1024
#: Bits of a descriptor that are nothing's, and its base offset, which is not 0 where a matrix does
#: not begin at a multiple of `_TURN`.
_RESERVED = 3 << 14 | 3 << 30 | 7 << 46 | 0x3FF << 52
_BASE_OFFSET = 7 << 49


def emit_matrices(module: Module) -> None:
    """What is checked of a matrix, and how it is read."""
    _visible(module)
    _describe(module)
    _place(module)
    _look(module)
    _gather(module)


def _visible(module: Module) -> None:
    """``emu.visible(t, address, site, since)``: that tensor cores see the 16 bytes there as the
    thread would.  since: the stamp from which on nobody may have written them; 0 for a product that
    is only asked for.
    """
    b, (thread, address, site, since) = define(
        module, "emu.visible", void, [("t", ptr), ("p", ptr), ("site", i32), ("since", i64)]
    )
    context = context_of(b, thread)
    cells = b.get(context, Context.CELLS, ptr)
    with b.if_then(b.icmp("eq", cells, NULL)):
        b.ret()
    access = Access.pack(_CHUNK, _CHUNK, _SHARED_SPACE, Access.READ)
    b.c("emu.check", void, thread, address, word(access), site)
    place, info = b.ptrtoint(address, i64), number(access)
    offset = b.sub(place, b.get(context, Context.ARENA))
    shift = b.get(context, Context.GRANULE)
    end = b.lshr(b.add(offset, number(_CHUNK)), shift)
    with b.loop(b.lshr(offset, shift), end) as loop:
        write = b.get(b.at(cells, b.shl(loop.index, number(4))), 0)
        stamp = b.lshr(write, number(STAMP_SHIFT))
        later = b.and_(b.icmp("ne", since, number(0)), b.icmp("uge", stamp, since))
        with b.rarely(later):
            fail(b, thread, Fault.OVERTAKEN, site, address=place, other=write, info=info)
        known = b.icmp("ult", stamp, _seen_until(b, thread, write))
        with b.rarely(b.and_(b.icmp("eq", since, number(0)), b.not_(known))):
            fail(b, thread, Fault.NOT_VISIBLE, site, address=place, other=write, info=info)
    b.ret()


def _seen_until(b: Emit, thread: Val, write: Val) -> Val:
    """The stamp before which a write's thread has made visible what it wrote: a fence counts for
    others from the next barrier on.
    """
    context = context_of(b, thread)
    index = b.and_(b.lshr(write, number(THREAD_SHIFT)), number(1023))
    writer = thread_at(b, context, index)
    fence = b.get(writer, Thread.PROXY)
    own = b.icmp("eq", number_of_group(b, writer), number_of_group(b, thread))
    settled = b.icmp("ule", fence, b.get(context, Context.FLOOR))
    return b.select(b.or_(own, settled), fence, b.get(writer, Thread.SETTLED))


def _bits(b: Emit, value: Val, low: int, count: int) -> Val:
    return b.and_(b.lshr(value, number(low)), number((1 << count) - 1))


def _offsets(b: Emit, descriptor: Val) -> tuple[Val, Val, Val]:
    """The start address and the two byte offsets: each is kept without its last four bits."""
    start, leading, stride = (_bits(b, descriptor, low, 14) for low in (0, 16, 32))
    return b.shl(start, number(4)), b.shl(leading, number(4)), b.shl(stride, number(4))


def _describe(module: Module) -> None:
    """``emu.describe(t, site, descriptor, lines, turned)``: that it describes a matrix swizzled by
    128 bytes, of so many rows or columns.
    """
    b, (thread, site, descriptor, lines, turned) = define(
        module, "emu.describe", void,
        [("t", ptr), ("site", i32), ("d", i64), ("lines", i64), ("turned", i64)],
    )  # fmt: skip
    start, leading, stride = _offsets(b, descriptor)
    wrong = b.icmp("ne", _bits(b, descriptor, 62, 2), number(_SWIZZLED))
    strange = b.and_(descriptor, number(_RESERVED | _BASE_OFFSET))
    wrong = b.or_(wrong, b.icmp("ne", strange, number(0)))
    # Without a base offset the first of eight pieces lies at a multiple of all eight.
    wrong = b.or_(wrong, b.icmp("ne", b.and_(start, number(_TURN - _PIECE)), number(0)))
    column = b.and_(start, number(_PIECE - 1))
    along = b.icmp("ne", turned, number(0))
    room = b.select(along, number(0), number(_PIECE - 2 * INNER))
    wrong = b.or_(wrong, b.icmp("ugt", column, room))
    wrong = b.or_(wrong, b.icmp("eq", stride, number(0)))
    several = b.and_(along, b.icmp("ugt", lines, number(_PIECE // 2)))
    used = b.or_(stride, b.select(several, leading, number(0)))
    wrong = b.or_(wrong, b.icmp("ne", b.and_(used, number(_TURN - 1)), number(0)))
    wrong = b.or_(wrong, b.and_(several, b.icmp("eq", leading, number(0))))
    with b.rarely(wrong):
        fail(b, thread, Fault.BAD_DESCRIPTOR, site, info=descriptor)
    b.ret()


def _place(module: Module) -> None:
    """``emu.place(t, descriptor, turned, line, inner)``: the address of an element of two bytes.

    The manual's canonical layouts: ``((8, m), (T, 2k)) : ((8T, SBO), (1, T))`` where lines run
    along the inner axis, else ``((T, 8, m), (8, k)) : ((1, T, LBO), (8T, SBO))``, with T elements
    in 16 bytes; then bits 4 to 6 of the address are xored with bits 7 to 9.
    """
    b, (thread, descriptor, turned, line, inner) = define(
        module, "emu.place", ptr,
        [("t", ptr), ("d", i64), ("turned", i64), ("line", i64), ("inner", i64)],
    )  # fmt: skip
    start, leading, stride = _offsets(b, descriptor)

    def pieces(index: Val) -> Val:
        """The offset of one of the lines that eight pieces of each stride make."""
        eight = b.mul(b.lshr(index, number(3)), stride)
        return b.add(eight, b.mul(b.and_(index, number(7)), number(_PIECE)))

    straight = b.add(pieces(line), b.mul(inner, number(2)))
    beside = b.mul(b.lshr(line, number(6)), leading)
    beside = b.add(beside, b.mul(b.and_(line, number(63)), number(2)))
    along = b.add(pieces(inner), beside)
    offset = b.select(b.icmp("ne", turned, number(0)), along, straight)
    at = b.add(start, offset)
    at = b.xor(at, b.shl(_bits(b, at, 7, 3), number(4)))
    shared = b.get(context_of(b, thread), Context.SHARED, ptr)
    b.ret(b.at(shared, b.and_(at, number((1 << 18) - 1))))


def _look(module: Module) -> None:
    """``emu.look(t, site, descriptor, lines, turned, since)``: check all that a product reads of a
    matrix, 16 bytes at a time, as if the warpgroup's first thread did.
    """
    b, (last, site, descriptor, lines, turned, since) = define(
        module, "emu.look", void,
        [
            ("t", ptr), ("site", i32), ("d", i64), ("lines", i64), ("turned", i64),
            ("since", i64),
        ],
    )  # fmt: skip
    first = b.mul(number_of_group(b, last), number(GROUP_THREADS))
    thread = thread_at(b, context_of(b, last), first)
    along = b.icmp("ne", turned, number(0))
    step = b.select(along, number(8), number(1))
    deep = b.select(along, number(1), number(8))
    with b.loop(number(0), lines, step) as outer, b.loop(number(0), number(INNER), deep) as loop:
        at = b.c("emu.place", ptr, thread, descriptor, turned, outer.index, loop.index)
        b.c("emu.visible", void, thread, at, site, since)
    b.ret()


def _gather(module: Module) -> None:
    """``emu.gather(t, descriptor, lines, turned, bf16, out)``: the elements as f32, those of one
    inner place side by side.
    """
    b, (thread, descriptor, lines, turned, wide, out) = define(
        module, "emu.gather", void,
        [("t", ptr), ("d", i64), ("lines", i64), ("turned", i64), ("bf16", i64), ("out", ptr)],
    )  # fmt: skip
    with b.loop(number(0), number(INNER)) as outer:
        row = b.gep(out, b.mul(outer.index, lines), f32)
        with b.loop(number(0), lines) as loop:
            at = b.c("emu.place", ptr, thread, descriptor, turned, loop.index, outer.index)
            bits = b.load(i16, at)
            upper = b.bitcast(b.shl(b.zext(bits, i32), word(16)), f32)
            half = b.fpext(b.bitcast(bits, f16), f32)
            value = b.select(b.icmp("ne", wide, number(0)), upper, half)
            b.store(value, b.gep(row, loop.index, f32))
    b.ret()

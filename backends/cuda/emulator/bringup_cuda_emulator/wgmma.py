"""Warpgroups in native code: their instructions, matrices by descriptors, and products.

A requested product is recorded, and only done when it is waited for: until then each of its
registers holds a token, a NaN that tells which set of sums it belongs to.  The memory that a
product reads is checked when it is requested (it must be written, ordered, and visible to tensor
cores), and again when it is done (it must not have been overwritten).

Descriptors are as in the PTX manual's chapter on asynchronous warpgroup instructions.  LLVM has no
intrinsic of the product, nor of a fence and a wait that name their registers: these come as inline
PTX, by `WGMMA_ASSEMBLY`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from bringup.llvm.host.emit import NULL
from bringup.llvm.text import (
    Module,
    Val,
    const,
    f16,
    f32,
    i1,
    i16,
    i32,
    i64,
    ptr,
    struct_type,
    void,
)
from bringup_cuda_emulator.builder import NativeBuilder, define, number, word
from bringup_cuda_emulator.fibers import context_of, fail, record_at, thread_at, wait
from bringup_cuda_emulator.shims import Body, Call, Shim, Spelling
from bringup_cuda_emulator.structs import (
    GROUP_BYTES,
    GROUP_THREADS,
    MAX_PRODUCTS,
    MAX_SETS,
    MAX_SUMS,
    SET_BYTES,
    STAMP_SHIFT,
    THREAD_SHIFT,
    WORK_AT,
    Access,
    Context,
    Fault,
    Group,
    Product,
    Thread,
    ThreadState,
    nbytes,
)


def emit_warpgroups(module: Module) -> None:
    """The functions by which the threads of a warpgroup wait for each other."""
    _arrive(module)
    _release(module)


def group_index(b: NativeBuilder, thread: Val) -> Val:
    """The number of a thread's warpgroup."""
    return b.zext(b.udiv(b.get(thread, Thread.index), GROUP_THREADS), i64)


def group_of(b: NativeBuilder, thread: Val) -> Val:
    """The state of a thread's warpgroup."""
    first = b.at(context_of(b, thread), Context.groups)
    return b.at(first, b.mul(group_index(b, thread), nbytes(Group)))


def each_thread(b: NativeBuilder, thread: Val, do: Callable[[Val, Val], None]) -> None:
    """``do(index, thread)`` for each thread of a thread's warpgroup."""
    context = context_of(b, thread)
    first = b.mul(group_index(b, thread), GROUP_THREADS)
    with b.loop(number(0), number(GROUP_THREADS)) as loop:
        do(loop.index, thread_at(b, context, b.add(first, loop.index)))


def _arrive(module: Module) -> None:
    """``emu.group_arrive(t, site, payload)``: whether this thread is the last of its warpgroup to
    come and so has to do the work; the others return when that is done.
    """
    b, (thread, site, payload) = define(
        module, "emu.group_arrive", i32, "t:ptr site:i32 payload:ptr"
    )
    context, group = context_of(b, thread), group_of(b, thread)
    end = b.mul(b.add(group_index(b, thread), 1), GROUP_THREADS)
    with b.rarely(b.icmp("ugt", end, b.get(context, Context.threads))):
        fail(b, thread, Fault.SHORT_GROUP, site)
    b.put(thread, Thread.payload, payload)
    b.put(thread, Thread.site, site)
    come = b.bump(group, Group.arrived, 1)
    with b.if_then(b.icmp("ult", come, GROUP_THREADS)):
        wait(b, thread, ThreadState.IN_GROUP, site)
        b.ret(word(0))

    def agree(_: Val, other: Val) -> None:
        where = b.get(other, Thread.site)
        with b.rarely(b.icmp("ne", where, site)):
            index = b.zext(b.get(other, Thread.index), i64)
            record = b.or_(b.zext(where, i64), b.shl(index, number(THREAD_SHIFT)))
            fail(b, thread, Fault.DIVERGENT_GROUP, site, other=record)

    each_thread(b, thread, agree)
    b.put(group, Group.arrived, 0)
    b.ret(word(1))


def _release(module: Module) -> None:
    """``emu.group_release(t)``: the work is done: the warpgroup is ready."""
    b, (thread,) = define(module, "emu.group_release", void, "t:ptr")
    each_thread(b, thread, lambda _, t: b.put(t, Thread.state, ThreadState.READY))
    b.put(context_of(b, thread), Context.idle, 0)
    b.ret()


#: Inner elements of a product.
INNER = 16
_SHARED_SPACE = 3
#: Swizzling by 128 bytes; bytes of a piece of a line, of a chunk, and of eight pieces.
_SWIZZLED, _PIECE, _CHUNK, _SWIZZLE_PERIOD = 1, 128, 16, 1024
#: Bits of a descriptor that are nothing's, and its base offset, which is not 0 where a matrix does
#: not begin at a multiple of `_SWIZZLE_PERIOD`.
_RESERVED = 3 << 14 | 3 << 30 | 7 << 46 | 0x3FF << 52
_BASE_OFFSET = 7 << 49


def emit_matrices(module: Module) -> None:
    """The functions that check and read matrices."""
    _check_visible(module)
    _check_descriptor(module)
    _element_address(module)
    _check_operand(module)
    _load_operand(module)


def _check_visible(module: Module) -> None:
    """``emu.visible(t, address, site, since)``: that tensor cores see the 16 bytes there as the
    thread would.  since: the stamp from which on nobody may have written them; 0 for a product that
    is only asked for.
    """
    b, (thread, address, site, since) = define(
        module, "emu.visible", void, "t:ptr p:ptr site:i32 since:i64"
    )
    context = context_of(b, thread)
    cells = b.get(context, Context.cells, ptr)
    with b.if_then(b.icmp("eq", cells, NULL)):
        b.ret()
    access = Access.pack(_CHUNK, _CHUNK, _SHARED_SPACE, Access.READ)
    b.c("emu.check", void, thread, address, word(access), site)
    place, info = b.ptrtoint(address, i64), number(access)
    offset = b.sub(place, b.get(context, Context.arena))
    shift = b.get(context, Context.granule)
    end = b.lshr(b.add(offset, _CHUNK), shift)
    with b.loop(b.lshr(offset, shift), end) as loop:
        write = b.get(b.at(cells, b.shl(loop.index, number(4))), 0)
        stamp = b.lshr(write, STAMP_SHIFT)
        later = b.and_(b.icmp("ne", since, 0), b.icmp("uge", stamp, since))
        with b.rarely(later):
            fail(b, thread, Fault.OVERTAKEN, site, address=place, other=write, info=info)
        known = b.icmp("ult", stamp, _visible_until(b, thread, write))
        with b.rarely(b.and_(b.icmp("eq", since, 0), b.not_(known))):
            fail(b, thread, Fault.NOT_VISIBLE, site, address=place, other=write, info=info)
    b.ret()


def _visible_until(b: NativeBuilder, thread: Val, write: Val) -> Val:
    """The stamp before which a write's thread has made visible what it wrote: a fence counts for
    others from the next barrier on.
    """
    context = context_of(b, thread)
    index = b.and_(b.lshr(write, THREAD_SHIFT), 1023)
    writer = thread_at(b, context, index)
    fence = b.get(writer, Thread.proxy_fence)
    own = b.icmp("eq", group_index(b, writer), group_index(b, thread))
    settled = b.icmp("ule", fence, b.get(context, Context.floor))
    return b.select(b.or_(own, settled), fence, b.get(writer, Thread.settled_fence))


def _bits(b: NativeBuilder, value: Val, low: int, count: int) -> Val:
    return b.and_(b.lshr(value, low), (1 << count) - 1)


def _offsets(b: NativeBuilder, descriptor: Val) -> tuple[Val, Val, Val]:
    """The start address and the two byte offsets: each is kept without its last four bits."""
    start, leading, stride = (_bits(b, descriptor, low, 14) for low in (0, 16, 32))
    return b.shl(start, number(4)), b.shl(leading, number(4)), b.shl(stride, number(4))


def _check_descriptor(module: Module) -> None:
    """``emu.describe(t, site, descriptor, lines, turned)``: that it describes a matrix swizzled by
    128 bytes, of so many rows or columns.
    """
    b, (thread, site, descriptor, lines, transposed) = define(
        module, "emu.describe", void, "t:ptr site:i32 d:i64 lines:i64 turned:i64"
    )
    start, leading, stride = _offsets(b, descriptor)
    wrong = b.icmp("ne", _bits(b, descriptor, 62, 2), _SWIZZLED)
    strange = b.and_(descriptor, _RESERVED | _BASE_OFFSET)
    wrong = b.or_(wrong, b.icmp("ne", strange, 0))
    # Without a base offset the first of eight pieces lies at a multiple of all eight.
    wrong = b.or_(wrong, b.icmp("ne", b.and_(start, _SWIZZLE_PERIOD - _PIECE), 0))
    column = b.and_(start, _PIECE - 1)
    along = b.icmp("ne", transposed, 0)
    room = b.select(along, number(0), number(_PIECE - 2 * INNER))
    wrong = b.or_(wrong, b.icmp("ugt", column, room))
    wrong = b.or_(wrong, b.icmp("eq", stride, 0))
    several = b.and_(along, b.icmp("ugt", lines, _PIECE // 2))
    used = b.or_(stride, b.select(several, leading, number(0)))
    wrong = b.or_(wrong, b.icmp("ne", b.and_(used, _SWIZZLE_PERIOD - 1), 0))
    wrong = b.or_(wrong, b.and_(several, b.icmp("eq", leading, 0)))
    with b.rarely(wrong):
        fail(b, thread, Fault.BAD_DESCRIPTOR, site, info=descriptor)
    b.ret()


def _element_address(module: Module) -> None:
    """``emu.place(t, descriptor, turned, line, inner)``: the address of an element of two bytes.

    The manual's canonical layouts: ``((8, m), (T, 2k)) : ((8T, SBO), (1, T))`` where lines run
    along the inner axis, else ``((T, 8, m), (8, k)) : ((1, T, LBO), (8T, SBO))``, with T elements
    in 16 bytes; then bits 4 to 6 of the address are xored with bits 7 to 9.
    """
    b, (thread, descriptor, transposed, line, inner) = define(
        module, "emu.place", ptr, "t:ptr d:i64 turned:i64 line:i64 inner:i64"
    )
    start, leading, stride = _offsets(b, descriptor)

    def pieces(index: Val) -> Val:
        """The offset of one of the lines that eight pieces of each stride make."""
        eight = b.mul(b.lshr(index, 3), stride)
        return b.add(eight, b.mul(b.and_(index, 7), _PIECE))

    straight = b.add(pieces(line), b.mul(inner, 2))
    beside = b.mul(b.lshr(line, 6), leading)
    beside = b.add(beside, b.mul(b.and_(line, 63), 2))
    along = b.add(pieces(inner), beside)
    offset = b.select(b.icmp("ne", transposed, 0), along, straight)
    at = b.add(start, offset)
    at = b.xor(at, b.shl(_bits(b, at, 7, 3), number(4)))
    shared = b.get(context_of(b, thread), Context.shared, ptr)
    b.ret(b.at(shared, b.and_(at, (1 << 18) - 1)))


def _check_operand(module: Module) -> None:
    """``emu.look(t, site, descriptor, lines, turned, since)``: check all that a product reads of a
    matrix, 16 bytes at a time, as if the warpgroup's first thread did.
    """
    b, (last, site, descriptor, lines, transposed, since) = define(
        module, "emu.look", void, "t:ptr site:i32 d:i64 lines:i64 turned:i64 since:i64"
    )
    first = b.mul(group_index(b, last), GROUP_THREADS)
    thread = thread_at(b, context_of(b, last), first)
    along = b.icmp("ne", transposed, 0)
    step = b.select(along, number(8), number(1))
    deep = b.select(along, number(1), number(8))
    with b.loop(number(0), lines, step) as outer, b.loop(number(0), number(INNER), deep) as loop:
        at = b.c("emu.place", ptr, thread, descriptor, transposed, outer.index, loop.index)
        b.c("emu.visible", void, thread, at, site, since)
    b.ret()


def _load_operand(module: Module) -> None:
    """``emu.gather(t, descriptor, lines, turned, bf16, out)``: the elements as f32, those of one
    inner place side by side.
    """
    b, (thread, descriptor, lines, transposed, wide, out) = define(
        module, "emu.gather", void, "t:ptr d:i64 lines:i64 turned:i64 bf16:i64 out:ptr"
    )
    with b.loop(number(0), number(INNER)) as outer:
        row = b.gep(out, b.mul(outer.index, lines), f32)
        with b.loop(number(0), lines) as loop:
            at = b.c("emu.place", ptr, thread, descriptor, transposed, loop.index, outer.index)
            bits = b.load(i16, at)
            upper = b.bitcast(b.shl(b.zext(bits, i32), word(16)), f32)
            half = b.fpext(b.bitcast(bits, f16), f32)
            value = b.select(b.icmp("ne", wide, 0), upper, half)
            b.store(value, b.gep(row, loop.index, f32))
    b.ret()


WGMMA_EXPORTS = ("emu.settled",)

#: Where a thread's payload has its sums and its two descriptors, and how long it is.
SUMS, LEFT, RIGHT, PAYLOAD_BYTES = 0, 4 * MAX_SUMS, 4 * MAX_SUMS + 8, 4 * MAX_SUMS + 16
#: Of a product's form: columns, and whether elements are bf16, lines run along rows or columns.
FORM_BF16, FORM_TRANSPOSED = 1 << 9, (1 << 10, 1 << 11)
ROWS = 64
#: The bits of a register whose sums are under way, but for the number of their set.
TOKEN, TOKEN_MASK = 0x7FFA5A00, ~0xFF


def emit_products(module: Module) -> None:
    """The functions that record, do and check products."""
    _multiply(module)
    _set_of_tokens(module)
    _start(module)
    _complete(module)
    _deliver(module)
    _check_settled(module)
    _check_no_products_left(module)


def _group_memory(b: NativeBuilder, thread: Val) -> Val:
    start = b.get(context_of(b, thread), Context.products_at, ptr)
    return b.at(start, b.mul(group_index(b, thread), GROUP_BYTES))


def _set(b: NativeBuilder, thread: Val, name: Val) -> Val:
    return b.at(_group_memory(b, thread), b.mul(name, SET_BYTES))


def _product(b: NativeBuilder, thread: Val, index: Val) -> Val:
    queue = b.at(_group_memory(b, thread), MAX_SETS * SET_BYTES)
    return b.at(queue, b.mul(index, nbytes(Product)))


def _parts(b: NativeBuilder, product: Val) -> tuple[Val, Val, Val, Val]:
    """Of a product's form: columns, bf16, left turned, right turned."""
    form = b.get(product, Product.form)
    transposed = [b.and_(form, bit) for bit in FORM_TRANSPOSED]
    return b.and_(form, 0x1FF), b.and_(form, FORM_BF16), transposed[0], transposed[1]


def _multiply(module: Module) -> None:
    """``emu.multiply(t, product)``: add it to its set of sums.

    Sum ``i`` of a thread is that of row ``16 * warp + lane / 4``, and 8 more in every other pair,
    and of column ``i / 4 * 8 + lane % 4 * 2``, and one more in every other register.
    """
    b, (thread, product) = define(module, "emu.multiply", void, "t:ptr p:ptr")
    columns, wide, *transposed = _parts(b, product)
    site = b.trunc(b.get(product, Product.site), i32)
    since = b.get(product, Product.stamp)
    work = b.at(_group_memory(b, thread), WORK_AT)
    memory = [work, b.at(work, 4 * INNER * ROWS)]
    for n, lines in enumerate((number(ROWS), columns)):
        descriptor = b.get(product, (Product.left, Product.right)[n])
        b.c("emu.look", void, thread, site, descriptor, lines, transposed[n], since)
        b.c("emu.gather", void, thread, descriptor, lines, transposed[n], wide, memory[n])
    start = _set(b, thread, b.get(product, Product.set))
    line = b.at(memory[1], 4 * INNER * 2 * MAX_SUMS)
    with b.loop(number(0), number(ROWS)) as loop:
        row = loop.index
        _copy_sum_row(b, start, row, columns, line, back=False)
        with b.loop(number(0), number(INNER)) as inner:
            x = b.load(f32, b.gep(memory[0], b.add(b.mul(inner.index, ROWS), row), f32))
            ys = b.gep(memory[1], b.mul(inner.index, columns), f32)
            with b.loop(number(0), columns) as across:
                place = b.gep(line, across.index, f32)
                y = b.load(f32, b.gep(ys, across.index, f32))
                b.store(b.fadd(b.load(f32, place), b.fmul(x, y)), place)
        _copy_sum_row(b, start, row, columns, line, back=True)
    b.ret()


def _copy_sum_row(
    b: NativeBuilder, start: Val, row: Val, columns: Val, line: Val, *, back: bool
) -> None:
    """A row of sums to a line in memory, or back to the registers they are kept in."""
    warp, within = b.lshr(row, 4), b.and_(row, 15)
    upper, lane = b.lshr(within, 3), b.mul(b.and_(within, 7), 4)
    with b.loop(number(0), columns) as loop:
        column = loop.index
        mine = b.add(b.mul(warp, 32), lane)
        mine = b.add(mine, b.and_(b.lshr(column, 1), 3))
        register = b.mul(b.lshr(column, 3), 4)
        register = b.add(register, b.mul(upper, 2))
        register = b.add(register, b.and_(column, 1))
        saved = b.gep(start, b.add(b.mul(mine, MAX_SUMS), register), f32)
        beside = b.gep(line, column, f32)
        source, target = (beside, saved) if back else (saved, beside)
        b.store(b.load(f32, source), target)


# -- sums that are under way


def _is_token(b: NativeBuilder, bits: Val) -> Val:
    return b.icmp("eq", b.and_(bits, TOKEN_MASK), TOKEN)


def _set_of_tokens(module: Module) -> None:
    """``emu.tokens(t, site, count)``: the set of sums that all registers of the warpgroup belong
    to, -1 if they are numbers; a fault if only some do.
    """
    b, (thread, site, count) = define(module, "emu.tokens", i64, "t:ptr site:i32 count:i64")
    first = b.get(b.get(thread, Thread.payload, ptr), SUMS, i32)
    token = _is_token(b, first)

    def same(_: Val, other: Val) -> None:
        payload = b.get(other, Thread.payload, ptr)
        with b.loop(number(0), count) as loop:
            bits = b.load(i32, b.gep(payload, loop.index, i32))
            wrong = b.select(token, b.icmp("ne", bits, first), _is_token(b, bits))
            with b.rarely(wrong):
                fail(b, other, Fault.SUMS_IN_FLIGHT, site)

    each_thread(b, thread, same)
    b.ret(b.select(token, b.zext(b.and_(first, 0xFF), i64), number(-1)))


def _start(module: Module) -> None:
    """``emu.product(t, site, form)``: keep a product that the warpgroup asks for."""
    b, (thread, site, form) = define(module, "emu.product", void, "t:ptr site:i32 form:i64")
    group, payload = group_of(b, thread), b.get(thread, Thread.payload, ptr)
    count = b.udiv(b.and_(form, 0x1FF), 2)
    _check_same_descriptors(b, thread, site, payload)
    known = b.c("emu.tokens", i64, thread, site, count)
    none = b.icmp("slt", known, 0)

    def fresh() -> Val:
        return _new_set(b, thread, site, count)

    (name,) = b.cond(none, fresh, lambda: known)
    index = b.get(group, Group.products)
    with b.rarely(b.icmp("uge", index, MAX_PRODUCTS)):
        fail(b, thread, Fault.TOO_MANY_PRODUCTS, site)
    product = _product(b, thread, index)
    for offset, value in (
        (Product.left, b.get(payload, LEFT)),
        (Product.right, b.get(payload, RIGHT)),
        (Product.form, form),
        (Product.set, name),
        (Product.group, b.get(group, Group.committed)),
        (Product.site, b.zext(site, i64)),
    ):
        b.put(product, offset, value)
    _check_operands(b, thread, site, product)
    b.put(product, Product.stamp, _advance_stamp(b, thread))
    b.put(group, Group.products, b.add(index, 1))
    token = b.or_(b.trunc(name, i32), word(TOKEN))

    def set_result(_: Val, other: Val) -> None:
        sums = b.get(other, Thread.payload, ptr)
        with b.loop(number(0), count) as loop:
            b.store(token, b.gep(sums, loop.index, i32))

    each_thread(b, thread, set_result)
    b.ret()


def _check_same_descriptors(b: NativeBuilder, thread: Val, site: Val, payload: Val) -> None:
    """Check that all threads give the same descriptors."""

    def same(_: Val, other: Val) -> None:
        theirs = b.get(other, Thread.payload, ptr)
        for place in (LEFT, RIGHT):
            descriptor = b.get(theirs, place)
            with b.rarely(b.icmp("ne", descriptor, b.get(payload, place))):
                fail(b, other, Fault.BAD_DESCRIPTOR, site, info=descriptor)

    each_thread(b, thread, same)


def _new_set(b: NativeBuilder, thread: Val, site: Val, count: Val) -> Val:
    """Save the registers as a new set of sums; its number."""
    group = group_of(b, thread)
    with b.rarely(b.icmp("eq", b.get(group, Group.fenced), 0)):
        fail(b, thread, Fault.NOT_FENCED, site)
    used = b.get(group, Group.sets)
    bit = b.and_(b.not_(used), b.add(used, 1))
    with b.rarely(b.icmp("uge", bit, 1 << MAX_SETS)):
        fail(b, thread, Fault.TOO_MANY_PRODUCTS, site)
    b.put(group, Group.sets, b.or_(used, bit))
    name = b.sub(number(63), b.intrinsic("llvm.ctlz", i64, (bit, const(i1, 0)), (i64,)))
    start = _set(b, thread, name)
    each_thread(
        b, thread, lambda index, other: _copy_registers(b, start, index, other, count, back=False)
    )
    return name


def _copy_registers(
    b: NativeBuilder, start: Val, index: Val, thread: Val, count: Val, *, back: bool
) -> None:
    """Copy a thread's registers to a set of sums, or back."""
    saved = b.gep(start, b.mul(index, MAX_SUMS), f32)
    payload = b.get(thread, Thread.payload, ptr)
    with b.loop(number(0), count) as loop:
        places = [b.gep(base, loop.index, f32) for base in (payload, saved)]
        source, target = places[::-1] if back else places
        b.store(b.load(i32, source), target)


def _check_operands(b: NativeBuilder, thread: Val, site: Val, product: Val) -> None:
    columns, _, *transposed = _parts(b, product)
    for n, lines in enumerate((number(ROWS), columns)):
        descriptor = b.get(product, (Product.left, Product.right)[n])
        b.c("emu.describe", void, thread, site, descriptor, lines, transposed[n])
        b.c("emu.look", void, thread, site, descriptor, lines, transposed[n], number(0))


def _advance_stamp(b: NativeBuilder, thread: Val) -> Val:
    """A new stamp, which orders the warpgroup's accesses from here on."""
    context = context_of(b, thread)
    stamp = b.bump(context, Context.stamp, 1)

    def stamp_thread(_: Val, other: Val) -> None:
        index = b.zext(b.get(other, Thread.index), i64)
        b.put(other, Thread.record, record_at(b, stamp, index))

    each_thread(b, thread, stamp_thread)
    return stamp


def _complete(module: Module) -> None:
    """``emu.complete(t, pending)``: do the products of all groups but the last ones."""
    b, (thread, pending) = define(module, "emu.complete", void, "t:ptr pending:i64")
    group = group_of(b, thread)
    below = b.sub(b.get(group, Group.committed), pending)
    count = b.get(group, Group.products)
    with b.loop(number(0), count, carried=[number(0)]) as loop:
        product = _product(b, thread, loop.index)
        done = b.icmp("slt", b.get(product, Product.group), below)

        def finish() -> Val:
            b.c("emu.multiply", void, thread, product)
            return loop.carried[0]

        def keep() -> Val:
            to = _product(b, thread, loop.carried[0])
            for offset in range(0, nbytes(Product), 8):
                b.put(to, offset, b.get(product, offset))
            return b.add(loop.carried[0], 1)

        loop.next(*b.cond(done, finish, keep))
    b.put(group, Group.products, loop.carried[0])
    b.ret()


def _deliver(module: Module) -> None:
    """``emu.deliver(t, site, count)``: give the sums to the registers if nothing adds to them."""
    b, (thread, site, count) = define(module, "emu.deliver", void, "t:ptr site:i32 count:i64")
    group = group_of(b, thread)
    name = b.c("emu.tokens", i64, thread, site, count)
    with b.if_then(b.icmp("slt", name, 0)):
        b.ret()
    with b.loop(number(0), b.get(group, Group.products)) as loop:
        other = b.get(_product(b, thread, loop.index), Product.set)
        with b.if_then(b.icmp("eq", other, name)):
            b.ret()
    start = _set(b, thread, name)
    each_thread(
        b, thread, lambda index, other: _copy_registers(b, start, index, other, count, back=True)
    )
    free = b.not_(b.shl(number(1), name))
    b.put(group, Group.sets, b.and_(b.get(group, Group.sets), free))
    b.put(group, Group.fenced, 0)
    b.ret()


def _check_settled(module: Module) -> None:
    """``emu.settled(t, bits, site)``: that what is stored is no sum under way."""
    b, (thread, bits, site) = define(
        module, "emu.settled", void, "t:ptr bits:i32 site:i32", internal=False
    )
    with b.rarely(_is_token(b, bits)):
        fail(b, thread, Fault.SUMS_IN_FLIGHT, site)
    b.ret()


def _check_no_products_left(module: Module) -> None:
    """``emu.left(t)``: that a thread which ends has waited for its products."""
    b, (thread,) = define(module, "emu.left", void, "t:ptr")
    with b.rarely(b.icmp("ne", b.get(group_of(b, thread), Group.products), 0)):
        fail(b, thread, Fault.PRODUCTS_LEFT, b.get(thread, Thread.site))
    b.ret()


_PREFIX = "llvm.nvvm.wgmma."
_PRODUCT, _FENCE, _WAIT = (f"emulated.wgmma.{name}." for name in ("product", "fence", "wait"))
#: Columns of products that are known.
COLUMNS = (64, 128, 256)

Work = Callable[[NativeBuilder, Call, Val], None]


def _once_per_group(b: NativeBuilder, call: Call, payload: Val, work: Work) -> None:
    """Let the last thread of the warpgroup to arrive do the work for all of them."""
    last = b.c("emu.group_arrive", i32, call.thread, call.site, payload)
    with b.if_then(b.icmp("ne", last, 0)):
        work(b, call, group_of(b, call.thread))
        b.c("emu.group_release", void, call.thread)


def _plain(work: Work) -> Body:
    """An instruction without registers."""

    def body(b: NativeBuilder, call: Call) -> None:
        _once_per_group(b, call, b.alloca(i64), work)

    return body


def _with_sums(count: int, work: Work) -> Body:
    """An instruction that changes registers in place; descriptors may follow."""
    kind = struct_type(*[f32] * count)

    def body(b: NativeBuilder, call: Call) -> Val:
        payload = b.alloca(i64, number(PAYLOAD_BYTES // 8), 16)
        for n, value in enumerate(call.args[:count]):
            b.put(payload, 4 * n, value)
        for place, value in zip((LEFT, RIGHT), call.args[count : count + 2], strict=False):
            b.put(payload, place, value)
        _once_per_group(b, call, payload, work)
        result = Val("undef", kind)
        for n in range(count):
            result = b.insertvalue(result, b.get(payload, 4 * n, f32), n)
        return result

    return body


def _fence(b: NativeBuilder, call: Call, group: Val) -> None:
    b.put(group, Group.fenced, 1)


def _commit(b: NativeBuilder, call: Call, group: Val) -> None:
    b.bump(group, Group.committed, 1)


def _wait(b: NativeBuilder, call: Call, group: Val) -> None:
    b.c("emu.complete", void, call.thread, call.args[0])


def _request(b: NativeBuilder, call: Call, group: Val) -> None:
    b.c("emu.product", void, call.thread, call.site, call.args[-1])


def _wait_for_sums(b: NativeBuilder, call: Call, group: Val) -> None:
    b.c("emu.complete", void, call.thread, call.args[-1])
    b.c("emu.deliver", void, call.thread, call.site, number(len(call.args) - 1))


def _proxy_fence(b: NativeBuilder, call: Call) -> None:
    """Make this thread's writes so far visible to tensor cores."""
    thread, context = call.thread, context_of(b, call.thread)
    before = b.get(thread, Thread.proxy_fence)
    settled = b.icmp("ule", before, b.get(context, Context.floor))
    b.put(
        thread, Thread.settled_fence, b.select(settled, before, b.get(thread, Thread.settled_fence))
    )
    stamp = b.bump(context, Context.stamp, 1)
    b.put(thread, Thread.proxy_fence, stamp)
    index = b.zext(b.get(thread, Thread.index), i64)
    b.put(thread, Thread.record, record_at(b, stamp, index))


def _registers(count: int) -> tuple[str, str]:
    """The names of registers of sums in PTX, and the constraints that tie them."""
    names = ", ".join(f"${n}" for n in range(count))
    ties = ",".join([*["=f"] * count, *(str(n) for n in range(count))])
    return names, ties


def _read_product(match: re.Match[str], constraints: str) -> tuple[str, tuple[str, ...]] | None:
    columns = int(match["columns"])
    count = columns // 2
    names, ties = _registers(count)
    operands = match["sums"], int(match["left"]), int(match["right"])
    known = columns in COLUMNS and operands == (names, 2 * count, 2 * count + 1)
    if (
        not known or constraints != f"{ties},l,l,~{{memory}}"
    ):  # pragma: no cover - only wrong kernels
        return None
    form = columns | (FORM_BF16 if match["kind"] == "bf16" else 0)
    for bit, transposed in zip(FORM_TRANSPOSED, (match["a"], match["b"]), strict=True):
        form |= bit * int(transposed)
    return f"{_PRODUCT}{columns}", (f"i64 {form}",)


def _columns(constraints: str) -> int | None:
    """The columns of the sums that constraints tie, and nothing else."""
    ties = (c for c in COLUMNS if constraints == f"{_registers(c // 2)[1]},~{{memory}}")
    return next(ties, None)


def _read_fence(_: re.Match[str], constraints: str) -> tuple[str, tuple[str, ...]] | None:
    columns = _columns(constraints)
    return None if columns is None else (f"{_FENCE}{columns}", ())


def _read_wait(match: re.Match[str], constraints: str) -> tuple[str, tuple[str, ...]] | None:
    columns = _columns(constraints)
    return None if columns is None else (f"{_WAIT}{columns}", (f"i64 {match['pending']}",))


def _sums(name: str, columns: int, more: int, work: Work) -> Shim:
    """An instruction with the registers of sums of so many columns, and ``more`` operands."""
    count = columns // 2
    params = (*[f32] * count, *[i64] * more)
    body = _with_sums(count, work)
    return Shim(f"{name}{columns}", struct_type(*[f32] * count), params, body, waits=True)


WGMMA_INTRINSICS = (
    Shim(f"{_PREFIX}fence.sync.aligned", void, (), _plain(_fence), waits=True),
    Shim(f"{_PREFIX}commit_group.sync.aligned", void, (), _plain(_commit), waits=True),
    Shim(f"{_PREFIX}wait_group.sync.aligned", void, (i64,), _plain(_wait), waits=True),
    Shim("llvm.nvvm.fence.proxy.async.shared_cta", void, (), _proxy_fence),
    Shim("llvm.nvvm.fence.proxy.async", void, (), _proxy_fence),
    *(_sums(_PRODUCT, columns, 3, _request) for columns in COLUMNS),
    *(_sums(_FENCE, columns, 0, _fence) for columns in COLUMNS),
    *(_sums(_WAIT, columns, 1, _wait_for_sums) for columns in COLUMNS),
)

WGMMA_ASSEMBLY = (
    Spelling(
        re.compile(
            r"\{ \.reg \.pred (?P<p>\w+); setp\.ne\.b32 (?P=p), 1, 0; "
            r"wgmma\.mma_async\.sync\.aligned\.m64n(?P<columns>\d+)k16\.f32\.(?P<kind>f16|bf16)"
            r"\.(?P=kind) \{(?P<sums>[^}]*)\}, \$(?P<left>\d+), \$(?P<right>\d+), (?P=p), 1, 1, "
            r"(?P<a>[01]), (?P<b>[01]); \}"
        ),
        _read_product,
    ),
    Spelling(re.compile(r"wgmma\.fence\.sync\.aligned;"), _read_fence),
    Spelling(re.compile(r"wgmma\.wait_group\.sync\.aligned (?P<pending>\d+);"), _read_wait),
)

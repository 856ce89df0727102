"""Products of warpgroups in native code.

A product asked for is kept, and done only when it is waited for: until then each of its registers
holds a token, a NaN that says which set of sums it belongs to.  What it reads is checked when it is
asked for, that everything is written, in order and visible to tensor cores, and again when it is
done, that nothing was overwritten meanwhile.
"""

from __future__ import annotations

from bringup.llvm.host.emit import Emit, define, number
from bringup.llvm.text import Module, Val, const, f32, i1, i32, i64, ptr, void
from bringup_cuda_emulator.layout import (
    GROUP_BYTES,
    MAX_PRODUCTS,
    MAX_SETS,
    MAX_SUMS,
    PRODUCT_BYTES,
    SET_BYTES,
    WORK_AT,
    Context,
    Fault,
    Group,
    Product,
    Thread,
)
from bringup_cuda_emulator.machine import context_of, fail, stamped, word
from bringup_cuda_emulator.matrices import INNER
from bringup_cuda_emulator.warpgroups import each_thread, group_of, number_of_group

EXPORTS = ("emu.settled",)

#: Where a thread's payload has its sums and its two descriptors, and how long it is.
SUMS, LEFT, RIGHT, PAYLOAD_BYTES = 0, 4 * MAX_SUMS, 4 * MAX_SUMS + 8, 4 * MAX_SUMS + 16
#: Of a product's form: columns, and whether elements are bf16, lines run along rows or columns.
FORM_BF16, FORM_TURNED = 1 << 9, (1 << 10, 1 << 11)
ROWS = 64
#: The bits of a register whose sums are under way, but for the number of their set.
TOKEN, TOKEN_MASK = 0x7FFA5A00, ~0xFF


def emit_products(module: Module) -> None:
    """Everything of products but the instructions themselves."""
    _multiply(module)
    _tokens(module)
    _start(module)
    _complete(module)
    _deliver(module)
    _settled(module)
    _left(module)


def _memory(b: Emit, thread: Val) -> Val:
    start = b.get(context_of(b, thread), Context.PRODUCTS_AT, ptr)
    return b.at(start, b.mul(number_of_group(b, thread), number(GROUP_BYTES)))


def _set(b: Emit, thread: Val, name: Val) -> Val:
    return b.at(_memory(b, thread), b.mul(name, number(SET_BYTES)))


def _product(b: Emit, thread: Val, index: Val) -> Val:
    queue = b.at(_memory(b, thread), MAX_SETS * SET_BYTES)
    return b.at(queue, b.mul(index, number(PRODUCT_BYTES)))


def _parts(b: Emit, product: Val) -> tuple[Val, Val, Val, Val]:
    """Of a product's form: columns, bf16, left turned, right turned."""
    form = b.get(product, Product.FORM)
    turned = [b.and_(form, number(bit)) for bit in FORM_TURNED]
    return b.and_(form, number(0x1FF)), b.and_(form, number(FORM_BF16)), turned[0], turned[1]


def _multiply(module: Module) -> None:
    """``emu.multiply(t, product)``: add it to its set of sums.

    Sum ``i`` of a thread is that of row ``16 * warp + lane / 4``, and 8 more in every other pair,
    and of column ``i / 4 * 8 + lane % 4 * 2``, and one more in every other register.
    """
    b, (thread, product) = define(module, "emu.multiply", void, [("t", ptr), ("p", ptr)])
    columns, wide, *turned = _parts(b, product)
    site = b.trunc(b.get(product, Product.SITE), i32)
    since = b.get(product, Product.STAMP)
    work = b.at(_memory(b, thread), WORK_AT)
    memory = [work, b.at(work, 4 * INNER * ROWS)]
    for n, lines in enumerate((number(ROWS), columns)):
        descriptor = b.get(product, (Product.LEFT, Product.RIGHT)[n])
        b.c("emu.look", void, thread, site, descriptor, lines, turned[n], since)
        b.c("emu.gather", void, thread, descriptor, lines, turned[n], wide, memory[n])
    start = _set(b, thread, b.get(product, Product.SET))
    line = b.at(memory[1], 4 * INNER * 2 * MAX_SUMS)
    with b.loop(number(0), number(ROWS)) as loop:
        row = loop.index
        _move(b, start, row, columns, line, back=False)
        with b.loop(number(0), number(INNER)) as inner:
            x = b.load(f32, b.gep(memory[0], b.add(b.mul(inner.index, number(ROWS)), row), f32))
            ys = b.gep(memory[1], b.mul(inner.index, columns), f32)
            with b.loop(number(0), columns) as across:
                place = b.gep(line, across.index, f32)
                y = b.load(f32, b.gep(ys, across.index, f32))
                b.store(b.fadd(b.load(f32, place), b.fmul(x, y)), place)
        _move(b, start, row, columns, line, back=True)
    b.ret()


def _move(b: Emit, start: Val, row: Val, columns: Val, line: Val, *, back: bool) -> None:
    """A row of sums to a line in memory, or back to the registers they are kept in."""
    warp, within = b.lshr(row, number(4)), b.and_(row, number(15))
    upper, lane = b.lshr(within, number(3)), b.mul(b.and_(within, number(7)), number(4))
    with b.loop(number(0), columns) as loop:
        column = loop.index
        mine = b.add(b.mul(warp, number(32)), lane)
        mine = b.add(mine, b.and_(b.lshr(column, number(1)), number(3)))
        register = b.mul(b.lshr(column, number(3)), number(4))
        register = b.add(register, b.mul(upper, number(2)))
        register = b.add(register, b.and_(column, number(1)))
        kept = b.gep(start, b.add(b.mul(mine, number(MAX_SUMS)), register), f32)
        beside = b.gep(line, column, f32)
        source, target = (beside, kept) if back else (kept, beside)
        b.store(b.load(f32, source), target)


# -- sums that are under way


def _is_token(b: Emit, bits: Val) -> Val:
    return b.icmp("eq", b.and_(bits, word(TOKEN_MASK)), word(TOKEN))


def _tokens(module: Module) -> None:
    """``emu.tokens(t, site, count)``: the set of sums that all registers of the warpgroup belong
    to, -1 if they are numbers; a fault if only some do.
    """
    b, (thread, site, count) = define(
        module, "emu.tokens", i64, [("t", ptr), ("site", i32), ("count", i64)]
    )
    first = b.get(b.get(thread, Thread.PAYLOAD, ptr), SUMS, i32)
    token = _is_token(b, first)

    def same(_: Val, other: Val) -> None:
        payload = b.get(other, Thread.PAYLOAD, ptr)
        with b.loop(number(0), count) as loop:
            bits = b.load(i32, b.gep(payload, loop.index, i32))
            wrong = b.select(token, b.icmp("ne", bits, first), _is_token(b, bits))
            with b.rarely(wrong):
                fail(b, other, Fault.SUMS_IN_FLIGHT, site)

    each_thread(b, thread, same)
    b.ret(b.select(token, b.zext(b.and_(first, word(0xFF)), i64), number(-1)))


def _start(module: Module) -> None:
    """``emu.product(t, site, form)``: keep a product that the warpgroup asks for."""
    b, (thread, site, form) = define(
        module, "emu.product", void, [("t", ptr), ("site", i32), ("form", i64)]
    )
    group, payload = group_of(b, thread), b.get(thread, Thread.PAYLOAD, ptr)
    count = b.udiv(b.and_(form, number(0x1FF)), number(2))
    _alike(b, thread, site, payload)
    known = b.c("emu.tokens", i64, thread, site, count)
    none = b.icmp("slt", known, number(0))

    def fresh() -> Val:
        return _new_set(b, thread, site, count)

    (name,) = b.cond(none, fresh, lambda: known)
    index = b.get(group, Group.COUNT)
    with b.rarely(b.icmp("uge", index, number(MAX_PRODUCTS))):
        fail(b, thread, Fault.TOO_MANY_PRODUCTS, site)
    product = _product(b, thread, index)
    for offset, value in (
        (Product.LEFT, b.get(payload, LEFT)),
        (Product.RIGHT, b.get(payload, RIGHT)),
        (Product.FORM, form),
        (Product.SET, name),
        (Product.GROUP, b.get(group, Group.COMMITTED)),
        (Product.SITE, b.zext(site, i64)),
    ):
        b.put(product, offset, value)
    _examine(b, thread, site, product)
    b.put(product, Product.STAMP, _tick(b, thread))
    b.put(group, Group.COUNT, b.add(index, number(1)))
    token = b.or_(b.trunc(name, i32), word(TOKEN))

    def give(_: Val, other: Val) -> None:
        sums = b.get(other, Thread.PAYLOAD, ptr)
        with b.loop(number(0), count) as loop:
            b.store(token, b.gep(sums, loop.index, i32))

    each_thread(b, thread, give)
    b.ret()


def _alike(b: Emit, thread: Val, site: Val, payload: Val) -> None:
    """All threads must give the same descriptors."""

    def same(_: Val, other: Val) -> None:
        theirs = b.get(other, Thread.PAYLOAD, ptr)
        for place in (LEFT, RIGHT):
            given = b.get(theirs, place)
            with b.rarely(b.icmp("ne", given, b.get(payload, place))):
                fail(b, other, Fault.BAD_DESCRIPTOR, site, info=given)

    each_thread(b, thread, same)


def _new_set(b: Emit, thread: Val, site: Val, count: Val) -> Val:
    """Keep the numbers in the registers as a new set of sums; its number."""
    group = group_of(b, thread)
    with b.rarely(b.icmp("eq", b.get(group, Group.FENCED), number(0))):
        fail(b, thread, Fault.NOT_FENCED, site)
    used = b.get(group, Group.SETS)
    bit = b.and_(b.not_(used), b.add(used, number(1)))
    with b.rarely(b.icmp("uge", bit, number(1 << MAX_SETS))):
        fail(b, thread, Fault.TOO_MANY_PRODUCTS, site)
    b.put(group, Group.SETS, b.or_(used, bit))
    name = b.sub(number(63), b.intrinsic("llvm.ctlz", i64, (bit, const(i1, 0)), (i64,)))
    start = _set(b, thread, name)
    each_thread(b, thread, lambda index, other: _keep(b, start, index, other, count, back=False))
    return name


def _keep(b: Emit, start: Val, index: Val, thread: Val, count: Val, *, back: bool) -> None:
    """A thread's registers to its place in a set of sums, or back."""
    kept = b.gep(start, b.mul(index, number(MAX_SUMS)), f32)
    payload = b.get(thread, Thread.PAYLOAD, ptr)
    with b.loop(number(0), count) as loop:
        places = [b.gep(base, loop.index, f32) for base in (payload, kept)]
        source, target = places[::-1] if back else places
        b.store(b.load(i32, source), target)


def _examine(b: Emit, thread: Val, site: Val, product: Val) -> None:
    columns, _, *turned = _parts(b, product)
    for n, lines in enumerate((number(ROWS), columns)):
        descriptor = b.get(product, (Product.LEFT, Product.RIGHT)[n])
        b.c("emu.describe", void, thread, site, descriptor, lines, turned[n])
        b.c("emu.look", void, thread, site, descriptor, lines, turned[n], number(0))


def _tick(b: Emit, thread: Val) -> Val:
    """A stamp that all the warpgroup does from here on has at least."""
    context = context_of(b, thread)
    stamp = b.bump(context, Context.STAMP, number(1))

    def later(_: Val, other: Val) -> None:
        index = b.zext(b.get(other, Thread.NUMBER, i32), i64)
        b.put(other, Thread.RECORD, stamped(b, stamp, index))

    each_thread(b, thread, later)
    return stamp


def _complete(module: Module) -> None:
    """``emu.complete(t, pending)``: do the products of all groups but the last ones."""
    b, (thread, pending) = define(module, "emu.complete", void, [("t", ptr), ("pending", i64)])
    group = group_of(b, thread)
    below = b.sub(b.get(group, Group.COMMITTED), pending)
    count = b.get(group, Group.COUNT)
    with b.loop(number(0), count, carried=[number(0)]) as loop:
        product = _product(b, thread, loop.index)
        done = b.icmp("slt", b.get(product, Product.GROUP), below)

        def finish() -> Val:
            b.c("emu.multiply", void, thread, product)
            return loop.carried[0]

        def keep() -> Val:
            to = _product(b, thread, loop.carried[0])
            for offset in range(0, PRODUCT_BYTES, 8):
                b.put(to, offset, b.get(product, offset))
            return b.add(loop.carried[0], number(1))

        loop.next(*b.cond(done, finish, keep))
    b.put(group, Group.COUNT, loop.carried[0])
    b.ret()


def _deliver(module: Module) -> None:
    """``emu.deliver(t, site, count)``: give the sums to the registers if nothing adds to them."""
    b, (thread, site, count) = define(
        module, "emu.deliver", void, [("t", ptr), ("site", i32), ("count", i64)]
    )
    group = group_of(b, thread)
    name = b.c("emu.tokens", i64, thread, site, count)
    with b.if_then(b.icmp("slt", name, number(0))):
        b.ret()
    with b.loop(number(0), b.get(group, Group.COUNT)) as loop:
        other = b.get(_product(b, thread, loop.index), Product.SET)
        with b.if_then(b.icmp("eq", other, name)):
            b.ret()
    start = _set(b, thread, name)
    each_thread(b, thread, lambda index, other: _keep(b, start, index, other, count, back=True))
    free = b.not_(b.shl(number(1), name))
    b.put(group, Group.SETS, b.and_(b.get(group, Group.SETS), free))
    b.put(group, Group.FENCED, number(0))
    b.ret()


def _settled(module: Module) -> None:
    """``emu.settled(t, bits, site)``: that what is stored is no sum under way."""
    b, (thread, bits, site) = define(
        module, "emu.settled", void, [("t", ptr), ("bits", i32), ("site", i32)], internal=False
    )
    with b.rarely(_is_token(b, bits)):
        fail(b, thread, Fault.SUMS_IN_FLIGHT, site)
    b.ret()


def _left(module: Module) -> None:
    """``emu.left(t)``: that a thread which ends has waited for its products."""
    b, (thread,) = define(module, "emu.left", void, [("t", ptr)])
    with b.rarely(b.icmp("ne", b.get(group_of(b, thread), Group.COUNT), number(0))):
        fail(b, thread, Fault.PRODUCTS_LEFT, b.get(thread, Thread.SITE, i32))
    b.ret()

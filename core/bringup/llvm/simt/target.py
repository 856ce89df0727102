"""How LLVM spells what a GPU has, and what an emitter says of the kernel that it emitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bringup.llvm import text as ir
from bringup.llvm.text import Builder, Module, Val, i64_const
from bringup.records import record

#: ``shuffle(b, word, mask)`` exchanges an i32 with the thread whose number differs in the bits of
#: ``mask``.  All threads of a warp must call it together.
Shuffle = Callable[[Builder, Val, int], Val]
#: The largest grid that GPUs take in one dimension.
MAX_BLOCKS = (1 << 31) - 1
#: Bytes of static shared memory that a kernel may use, of the 48 KiB that every device has.
SHARED_BYTES = 40 << 10


@record
class Copies:
    """Copies from global to shared memory that a thread starts, and does not wait for.

    sizes: bytes that one may have.
    start: ``start(b, to, source, nbytes, amount)``; what is beyond ``amount`` bytes becomes 0.
    commit: what was started becomes a group.
    wait: waits for all groups but the last ones of this number.
    """

    sizes: tuple[int, ...]
    start: Callable[[Builder, Val, Val, int, Val], None]
    commit: Callable[[Builder], None]
    wait: Callable[[Builder, int], None]


@record
class MatrixUnit:
    """Instructions by which a warp multiplies tiles: 16 rows by 8 columns by 32 bytes of inner
    elements.

    A register holds 4 bytes of inner elements of a row or column.  Lane ``4·i + j`` has the rows
    ``i`` and ``i + 8`` of the left factor and column ``i`` of the right one, there the ``j``-th
    register and that 16 bytes on; of the sums it has rows ``i``, ``i + 8`` and columns ``2·j``,
    ``2·j + 1``.

    dtypes: of factors, each with those that sums may have.
    load: ``load(b, address, transposed)`` reads four matrices of eight lines of 16 bytes, of which
    each lane has a line's address: a register of each matrix; transposed for elements of 2 bytes.
    multiply: ``multiply(b, dtype, left, right, sums)``, of 4, 2 and 4 registers; the new sums.
    rounded: a word of f32 as the unit takes it.
    """

    dtypes: Mapping[str, Sequence[str]]
    load: Callable[[Builder, Val, bool], list[Val]]
    multiply: Callable[[Builder, str, Sequence[Val], Sequence[Val], Sequence[Val]], list[Val]]
    rounded: Callable[[Builder, Val], Val]


@record
class GroupUnit:
    """Instructions by which 128 threads ask for products of tiles in shared memory: 64 rows by 8 to
    ``columns`` columns, a multiple of 8, by 32 bytes of inner elements.

    A factor lies in pieces of 128 bytes, whose chunks of 16 bytes change places by the number of
    the piece; eight pieces begin at a multiple of 1024 bytes.  A piece has inner elements of a row
    or column, or else 64 rows or columns of an inner element.  Four warps have 16 rows each, and of
    these a lane has those sums that `MatrixUnit` says, for eight columns after eight.

    dtypes: of factors, each with those that sums may have.
    instruction: what a target's list of them calls the unit.
    factor: ``factor(b, address, beside)`` describes a factor, given the i64 address of its first
    element, and bytes from one piece of rows or columns to the next, 0 where there is one at most.
    moved: ``moved(b, factor, nbytes)``, a factor so many bytes on.
    multiply: ``multiply(b, dtype, sums, factors, along)`` asks for products; the new sums are on
    their way.  along: for both factors, whether pieces run along rows or columns.
    fence: ``fence(b, sums)`` comes before the first product of a group.
    commit: what was asked for becomes a group.
    wait: ``wait(b, pending, sums)`` waits for all groups but the last ones; sums are there then.
    show: what the thread wrote to shared memory is seen by the unit.
    uniform: a number that is equal in all threads of a warp, in a form that says so.
    """

    dtypes: Mapping[str, Sequence[str]]
    instruction: str
    columns: int
    factor: Callable[[Builder, Val, int], Val]
    moved: Callable[[Builder, Val, int], Val]
    multiply: Callable[[Builder, str, Sequence[Val], tuple[Val, Val], tuple[bool, bool]], list[Val]]
    fence: Callable[[Builder, Sequence[Val]], list[Val]]
    commit: Callable[[Builder], None]
    wait: Callable[[Builder, int, Sequence[Val]], list[Val]]
    show: Callable[[Builder], None]
    uniform: Callable[[Builder, Val], Val]


@record
class SimtDialect:
    """The names of a GPU's registers, barrier and address spaces, as LLVM spells them.

    calling_convention: of a kernel.
    thread, block_index, grid_size: intrinsics that read the x coordinate.
    barrier: the intrinsic that synchronises a block.
    shuffle: exchanges words within a warp.
    attributes: function attributes of a kernel, given the threads of a block and the registers that
    each of them needs; 0 if the assembler should choose.
    global_space, shared_space: address spaces.
    device_scope, block_scope: of what is atomic between all threads, and between those of a block.
    copies: None where every copy goes through registers.
    matrices: None where no unit multiplies tiles.
    groups: None where no unit does so for several warps together.
    """

    calling_convention: str
    thread: str
    block_index: str
    grid_size: str
    barrier: str
    shuffle: Shuffle
    attributes: Callable[[int, int], str] = lambda threads, registers: ""
    global_space: int = 1
    shared_space: int = 3
    device_scope: str = "device"
    block_scope: str = "block"
    copies: Copies | None = None
    matrices: MatrixUnit | None = None
    groups: GroupUnit | None = None


def dynamic_shared(module: Module, name: str, dialect: SimtDialect) -> Val:
    """The start of a block's dynamic shared memory, aligned to 16 bytes.

    name: of the array that this declares.  Only letters, digits and underscores, because
    assemblers see it.
    """
    return module.global_variable(
        name,
        ir.array(ir.i8, 0),
        "",
        align=16,
        linkage="external",
        address_space=dialect.shared_space,
    )


def shuffled(b: Builder, value: Val, mask: int, dialect: SimtDialect) -> Val:
    """Shuffle a register of any type; vectors lane by lane."""
    if value.type.lanes > 1:
        lanes = [
            shuffled(b, b.extractelement(value, i), mask, dialect) for i in range(value.type.lanes)
        ]
        result = ir.poison(value.type)
        for i, lane in enumerate(lanes):
            result = b.insertelement(result, lane, i)
        return result
    bits = value.type.bits
    whole = b.cast("bitcast", value, ir.integer(bits))
    if bits <= 32:
        word = dialect.shuffle(b, b.zext(whole, ir.i32), mask)
        return b.cast("bitcast", b.trunc(word, ir.integer(bits)), value.type)
    low = dialect.shuffle(b, b.trunc(whole, ir.i32), mask)
    high = dialect.shuffle(b, b.trunc(b.lshr(whole, i64_const(32)), ir.i32), mask)
    joined = b.or_(b.shl(b.zext(high, ir.i64), i64_const(32)), b.zext(low, ir.i64))
    return b.cast("bitcast", joined, value.type)

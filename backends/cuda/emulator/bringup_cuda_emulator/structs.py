"""The emulator's memory: structs that native code and Python share, and the kinds of faults.

A *record* is a 64-bit word that says which access touched a piece of memory:
``stamp << 28 | kind << 26 | thread << 16 | site``.  Stamps count synchronisations of the whole
process, so that a record of an earlier block or launch is known by its stamp alone, and nothing
needs to be cleared between launches.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import TYPE_CHECKING, Any

WARP = 32
MAX_THREADS = 1024
BARRIERS = 16

SITE_BITS = 16
THREAD_SHIFT = 16
KIND_SHIFT = 26
STAMP_SHIFT = 28

#: Kinds of a write: by a plain store, by an atomic, by an atomic that publishes earlier writes, by
#: a copy that is still in flight.
PLAIN, RELAXED, RELEASED, IN_FLIGHT = range(4)
#: The kind of a read: whether another thread has read too since the last synchronisation.
SEVERAL = 2

#: Bytes of the arena that are shared memory.
SHARED_WINDOW = 1 << 20
#: Address spaces.
GLOBAL_SPACE, SHARED_SPACE = 1, 3
#: Bytes for the stacks of a block's threads, and the least for one of them.
STACKS_BYTES = 1 << 28
LEAST_STACK = 1 << 14
#: The most copies that a thread may have in flight.
MAX_COPIES = 256

#: Threads of a warpgroup, and the most warpgroups of a block.
GROUP_THREADS = 128
MAX_GROUPS = MAX_THREADS // GROUP_THREADS
#: The most registers of sums of a product; the most sets of sums, and products, that a warpgroup
#: may have in flight.
MAX_SUMS = 128
MAX_SETS = 4
MAX_PRODUCTS = 64

_u32, _u64 = ctypes.c_uint32, ctypes.c_uint64


if TYPE_CHECKING:

    class _Members(type):
        def __getattr__(cls, name: str) -> Any: ...
        def __mul__(cls, count: int) -> Any: ...

    class Struct(metaclass=_Members):
        """A struct; its members have an ``offset`` and a ``size``."""

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...
else:
    Struct = ctypes.Structure


def nbytes(struct: Any) -> int:
    """The bytes of a struct."""
    return ctypes.sizeof(struct)


def struct_at(struct: Any, address: int) -> Any:
    """The struct at an address."""
    return struct.from_address(address)


class Thread(Struct):
    """A GPU thread.

    site: the instruction that it waits at.  mask: the lanes that it waits for.
    fenced: whether it has run a fence of global memory.
    shared: the address of the block's shared memory.
    copies: copies in flight.  copy_groups: groups of copies committed so far.
    proxy_fence: the stamp of the last fence between its accesses and those of tensor cores.
    settled_fence: the same for the last one before a barrier of the block.
    """

    _fields_ = (
        ("stack_pointer", _u64), ("context", _u64), ("payload", _u64), ("record", _u64),
        ("index", _u32), ("state", _u32), ("site", _u32), ("mask", _u32),
        ("barrier", _u32), ("lane", _u32), ("warp", _u32), ("fenced", _u32),
        ("tid", _u32 * 3), ("ntid", _u32 * 3), ("ctaid", _u32 * 3), ("nctaid", _u32 * 3),
        ("shared", _u64), ("copies", _u32), ("copy_groups", _u32),
        ("proxy_fence", _u64), ("settled_fence", _u64),
    )  # fmt: skip


class ThreadState(IntEnum):
    """What a thread does."""

    READY, AT_BARRIER, IN_WARP, DONE, IN_GROUP = range(5)


class Copy(Struct):
    """An asynchronous copy in flight.  read: bytes that are read; the others become 0."""

    _fields_ = (
        ("target", _u64), ("source", _u64), ("read", _u32), ("nbytes", _u32),
        ("group", _u32), ("site", _u32),
    )  # fmt: skip


class Group(Struct):
    """A warpgroup.

    arrived: threads that wait.  products: products in flight.  committed: groups of products so
    far.  fenced: whether registers may be given to products.  sets: the sets of sums in use, as
    bits.
    """

    _fields_ = (
        ("arrived", _u64), ("products", _u64), ("committed", _u64), ("fenced", _u64),
        ("sets", _u64),
    )  # fmt: skip


class Product(Struct):
    """A product of a warpgroup in flight: descriptors, form, set of sums, group of products, the
    stamp at which it was requested, and the site.
    """

    _fields_ = (
        ("left", _u64), ("right", _u64), ("form", _u64), ("set", _u64), ("group", _u64),
        ("stamp", _u64), ("site", _u64),
    )  # fmt: skip


class Context(Struct):
    """A launch and the block that runs.

    block_first, block_step, thread_first, thread_step: the order of blocks and threads: the first
    one, and the step from one to the next.
    fibers: whether threads wait for each other; else each runs to its end.
    stack: bytes from one thread's stack to the next.
    granule: log2 of the bytes of a cell.  constants: ranges of the module's tables.
    stamp: the last one.  floor: the stamp up to which all accesses of the block are ordered.
    acquired: the last stamp of other blocks that is ordered before this block.
    block_stamps: the first stamp of each block.
    live: threads that run.  progress: whether one ran.  idle: pauses without progress.
    fault and the members after it: the first fault.
    arrived: the lanes of each warp that wait.  at_barrier: the threads that have come to each.
    clocks: for each warp the stamp of each other warp up to which it is ordered.
    """

    _fields_ = (
        ("stack_pointer", _u64), ("entry", _u64), ("arguments", _u64), ("threads_at", _u64),
        ("stacks", _u64), ("stacks_end", _u64), ("threads", _u64), ("blocks", _u64),
        ("ntid", _u32 * 3), ("nctaid", _u32 * 3),
        ("block_first", _u64), ("block_step", _u64), ("thread_first", _u64), ("thread_step", _u64),
        ("fibers", _u64), ("shared", _u64), ("stack", _u64), ("copies_at", _u64),
        ("products_at", _u64),
        ("arena", _u64), ("arena_bytes", _u64), ("map", _u64), ("cells", _u64),
        ("granule", _u64), ("constants", _u64), ("constant_count", _u64),
        ("stamp", _u64), ("floor", _u64), ("first_of_block", _u64), ("first_of_launch", _u64),
        ("acquired", _u64), ("block_stamps", _u64),
        ("live", _u64), ("progress", _u64), ("idle", _u64), ("block", _u64), ("blocks_run", _u64),
        ("fault", _u64), ("fault_site", _u64), ("fault_thread", _u64), ("fault_address", _u64),
        ("fault_other", _u64), ("fault_info", _u64),
        ("arrived", _u32 * WARP), ("at_barrier", _u64 * BARRIERS),
        ("clocks", _u64 * (WARP * WARP)), ("groups", Group * MAX_GROUPS),
    )  # fmt: skip


#: Memory of a warpgroup: its sets of sums, its products, and working memory: both factors of a
#: product of 64 × 256 × 16 in f32, and a line of sums.
SET_BYTES = GROUP_THREADS * MAX_SUMS * 4
WORK_AT = MAX_SETS * SET_BYTES + MAX_PRODUCTS * nbytes(Product)
GROUP_BYTES = WORK_AT + 4 * (64 * 16 + 256 * 16 + 256)


class Fault(IntEnum):
    """What went wrong.  kind: a short name.  title: a sentence."""

    kind: str
    title: str

    def __new__(cls, value: int, kind: str, title: str) -> Fault:
        """A fault from its row of the table."""
        fault = int.__new__(cls, value)
        fault._value_, fault.kind, fault.title = value, kind, title
        return fault

    @classmethod
    def of(cls, value: int) -> Fault:
        """The fault of a number."""
        return next(fault for fault in cls if fault == value)

    OUTSIDE = 1, "out-of-bounds", "out of bounds"
    MISALIGNED = 2, "misaligned", "misaligned access"
    RACE_READ = 3, "race", "data race: a read of what another thread wrote"
    RACE_WRITE = 4, "race", "data race: two threads write"
    RACE_AFTER_READ = 5, "race", "data race: a write of what another thread reads"
    UNINITIALISED = (
        6, "uninitialised", "read of shared memory that this block has not written",
    )  # fmt: skip
    IN_FLIGHT = (
        7, "in-flight", "access to memory that an asynchronous copy is still writing",
    )  # fmt: skip
    DIVERGENT_BARRIER = (
        8, "divergent-barrier", "divergent barrier: threads meet at different barriers",
    )  # fmt: skip
    STUCK = 9, "deadlock", "deadlock: nobody comes whom the waiting threads wait for"
    DIVERGENT_WARP = (
        10, "divergent-warp", "divergent warp: lanes meet with different masks or instructions",
    )  # fmt: skip
    NOT_IN_MASK = (
        11, "lane-not-in-mask", "a lane runs a warp instruction whose mask leaves it out",
    )  # fmt: skip
    FOREIGN_LANE = 12, "foreign-lane", "a shuffle reads a lane that takes no part in it"
    ENDLESS = 13, "endless-wait", "endless wait: the value that a thread waits for never comes"
    BAD_BARRIER = 14, "bad-barrier", "no such barrier: a block has 16"
    TOO_MANY_COPIES = (
        15, "too-many-copies", "more asynchronous copies under way than the emulator keeps",
    )  # fmt: skip
    TRAP = 16, "trap", "the kernel ran into llvm.trap"
    WRONG_SPACE = 17, "wrong-space", "an address of another address space"
    BEYOND_ARGUMENT = 18, "out-of-bounds", "out of bounds of the argument"
    SHORT_GROUP = 19, "short-warpgroup", "a warpgroup has fewer than 128 threads"
    DIVERGENT_GROUP = (
        20, "divergent-warpgroup", "divergent warpgroup: threads meet at different instructions",
    )  # fmt: skip
    BAD_DESCRIPTOR = 21, "bad-descriptor", "no descriptor of a matrix that tensor cores read"
    NOT_VISIBLE = (
        22, "not-visible", "tensor cores read what its writer has not made visible to them",
    )  # fmt: skip
    OVERTAKEN = 23, "overtaken", "shared memory was written while tensor cores read it"
    NOT_FENCED = 24, "not-fenced", "registers are given to tensor cores without a fence"
    SUMS_IN_FLIGHT = 25, "sums-in-flight", "sums are used while tensor cores still add to them"
    PRODUCTS_LEFT = 26, "products-left", "products of tensor cores that nobody waits for"
    TOO_MANY_PRODUCTS = (
        27, "too-many-products", "more products under way than the emulator keeps",
    )  # fmt: skip


class Access:
    """An access packed into one constant: bytes, alignment, address space, and kind."""

    SIZE_SHIFT, ALIGN_SHIFT, SPACE_SHIFT, KIND_SHIFT = 0, 8, 16, 20
    READ, WRITE, ATOMIC_READ, ATOMIC, ATOMIC_RELEASE = range(5)

    @staticmethod
    def pack(size: int, align: int, space: int, kind: int) -> int:
        """Alignments above 128 are checked as 128."""
        return size | min(align, 128) << 8 | space << 16 | kind << 20

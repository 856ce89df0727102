"""What the emulator keeps in memory: members of its structs, as byte offsets.

A *record* is a 64-bit word that says who touched a piece of memory: ``stamp << 28 | kind << 26 |
thread << 16 | site``.  Stamps count synchronisations of the whole process, so that a record of an
earlier block or launch is known by its stamp alone; nothing needs clearing between launches.
"""

from __future__ import annotations

WARP = 32
MAX_THREADS = 1024
BARRIERS = 16

SITE_BITS = 16
THREAD_SHIFT = 16
KIND_SHIFT = 26
STAMP_SHIFT = 28

#: Kinds of a write: by a plain store, an atomic, an atomic that publishes what was written before
#: it, a copy that is still under way.
PLAIN, RELAXED, RELEASED, IN_FLIGHT = range(4)
#: The kind of a read: whether another thread has read as well since the last synchronisation.
SEVERAL = 2

#: Bytes of the arena that belong to shared memory.
SHARED_WINDOW = 1 << 20
#: Bytes for the stacks of a block's threads, and the least of one.
STACKS_BYTES = 1 << 28
LEAST_STACK = 1 << 14
#: Copies that a thread may have under way.
MAX_COPIES = 256
COPY_BYTES = 32

#: Threads of a warpgroup, and warpgroups of the largest block.
GROUP_THREADS = 128
MAX_GROUPS = MAX_THREADS // GROUP_THREADS
#: Registers of sums that a product has at most; sets of sums and products that a warpgroup may have
#: under way.
MAX_SUMS = 128
MAX_SETS = 4
MAX_PRODUCTS = 64
PRODUCT_BYTES = 64
#: Memory of a warpgroup: its sets of sums, its products, and room to work in: both factors of a
#: product of 64 × 256 × 16 in f32, and a line of sums.
SET_BYTES = GROUP_THREADS * MAX_SUMS * 4
WORK_AT = MAX_SETS * SET_BYTES + MAX_PRODUCTS * PRODUCT_BYTES
GROUP_BYTES = WORK_AT + 4 * (64 * 16 + 256 * 16 + 256)


class Thread:
    """A GPU thread."""

    SP = 0
    CONTEXT = 8
    PAYLOAD = 16
    RECORD = 24
    NUMBER = 32
    STATE = 36
    SITE = 40
    MASK = 44
    BARRIER = 48
    LANE = 52
    WARP = 56
    FENCED = 60
    TID = 64
    NTID = 76
    CTAID = 88
    NCTAID = 100
    SHARED = 112
    #: Copies under way: how many, and how many of them were committed in how many groups.
    COPIES = 120
    GROUPS = 124
    COPY_AT = 128
    RESULT = 136
    #: Stamps of the last fence between what threads and what tensor cores see, and of the last one
    #: before a barrier of the block.
    PROXY = 144
    SETTLED = 152
    BYTES = 256


class State:
    """Of a thread."""

    READY, AT_BARRIER, IN_WARP, DONE, IN_GROUP = range(5)


class Context:
    """A launch and the block that runs."""

    SP = 0
    ENTRY = 8
    ARGUMENTS = 16
    THREADS_AT = 24
    STACKS = 32
    STACKS_END = 40
    #: Threads of a block, blocks of the grid.
    THREADS = 48
    BLOCKS = 56
    NTID = 64
    NCTAID = 76
    #: The order of blocks and of threads: first one, and the step from one to the next.
    BLOCK_FIRST, BLOCK_STEP = 96, 104
    THREAD_FIRST, THREAD_STEP = 112, 120
    #: Whether threads take turns; else each runs to its end.
    FIBRES = 128
    SHARED = 136
    # -- what the checks know
    ARENA = 144
    ARENA_BYTES = 152
    MAP = 160
    CELLS = 168
    GRANULE = 176
    CONSTANTS = 184
    CONSTANT_COUNT = 192
    # -- time
    STAMP = 200
    FLOOR = 208
    FIRST_OF_BLOCK = 216
    FIRST_OF_LAUNCH = 224
    ACQUIRED = 232
    FIRSTS_AT = 240
    # -- progress
    LIVE = 248
    PROGRESS = 256
    IDLE = 264
    BLOCK = 272
    RAN = 280
    COPIES_AT = 288
    #: Bytes from one thread's stack to the next.
    STACK = 296
    PRODUCTS_AT = 304
    # -- the first fault
    FAULT = 320
    FAULT_SITE = 328
    FAULT_THREAD = 336
    FAULT_ADDRESS = 344
    FAULT_OTHER = 352
    FAULT_INFO = 360
    #: Lanes that wait in each warp; threads that have come to each barrier; what each warp knows of
    #: each other warp's time.
    ARRIVED = 512
    COME = ARRIVED + 4 * WARP
    CLOCKS = COME + 8 * BARRIERS
    GROUPS = CLOCKS + 8 * WARP * WARP
    BYTES = GROUPS + 64 * MAX_GROUPS


class Group:
    """A warpgroup, of `Context.GROUPS`.

    COME: threads that have met.  COUNT: products under way.  COMMITTED: groups of them so far.
    FENCED: whether registers may be given to products.  SETS: bits of the sets of sums in use.
    """

    COME, COUNT, COMMITTED, FENCED, SETS = range(0, 40, 8)
    BYTES = 64


class Product:
    """A product under way.  STAMP: when it was asked for."""

    LEFT, RIGHT, FORM, SET, GROUP, STAMP, SITE = range(0, 56, 8)


class Fault:
    """What went wrong; the number the machine leaves in `Context.FAULT`."""

    (
        NONE,
        OUTSIDE,
        MISALIGNED,
        RACE_READ,
        RACE_WRITE,
        RACE_AFTER_READ,
        UNINITIALISED,
        IN_FLIGHT,
        DIVERGENT_BARRIER,
        STUCK,
        DIVERGENT_WARP,
        NOT_IN_MASK,
        FOREIGN_LANE,
        EXITED_LANE,
        ENDLESS,
        BAD_BARRIER,
        COPIES_LEFT,
        TOO_MANY_COPIES,
        TRAP,
        WRONG_SPACE,
        BEYOND_ARGUMENT,
        SHORT_GROUP,
        DIVERGENT_GROUP,
        BAD_DESCRIPTOR,
        NOT_VISIBLE,
        OVERTAKEN,
        NOT_FENCED,
        SUMS_IN_FLIGHT,
        PRODUCTS_LEFT,
        TOO_MANY_PRODUCTS,
    ) = range(30)


class Access:
    """Packed into one constant per access: bytes, alignment, address space, and how."""

    SIZE_SHIFT, ALIGN_SHIFT, SPACE_SHIFT, KIND_SHIFT = 0, 8, 16, 20
    READ, WRITE, ATOMIC_READ, ATOMIC, ATOMIC_RELEASE = range(5)

    @staticmethod
    def pack(size: int, align: int, space: int, kind: int) -> int:
        """Alignments above 128 are checked as 128."""
        return size | min(align, 128) << 8 | space << 16 | kind << 20

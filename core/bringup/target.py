"""What choices of schedules know of a machine."""

from __future__ import annotations

from bringup.records import record

#: Of folds that all threads of a block take part in: a value of 4 bytes of each of 1,024 threads.
_PARTIAL_BYTES = 4 << 10


@record
class Target:
    """A class of machines: the numbers that schedules are chosen by.

    A backend has a row for each class that it compiles for (`Backend.target`), and a `LoopsDevice`
    has that of its machine.  No number changes which elements a result is computed from.

    name: of the class.  Schedules that were found for it stand in tables under this name; without
    one it has none.
    vector_bits: of a vector register; 0 leaves vectors to the machine's compiler.
    registers: vector registers of a core; on a machine of warps, the registers of 32 bits that the
    threads of a multiprocessor share.
    thread_registers: the most of these for one thread.
    line_bytes: what memory is read by: a cache line, or the widest access of a warp.
    cache_bytes: of the largest cache that a core has for itself.
    threads: how many iterations of parallel loops keep the machine busy.  More are made where that
    takes more work, only if there are fewer.
    warp: threads that run in step; 1 where each runs alone.
    block: threads of a usual block.  most_threads: threads of the largest block.
    shared_bytes: the most shared memory of a block.
    multiprocessors: how many blocks run at the same time on cores of their own.
    instructions: what not every machine of the kind has, by the names that its emitters give.  The
    op library asks for ``atomic``, ``later`` and ``matrices``: atomic folds of blocks of threads,
    copies to shared memory that nobody waits for, and warps of 32 that multiply tiles of 16 rows by
    8 columns by 32 bytes.
    launch_instructions: how many instructions a thread runs in the time of a launch.  Functions of
    fewer are launched together with those before and after them, to be run by one thread; 0 for a
    machine that has each launched alone.

    >>> Target("x86-64-v3", vector_bits=256, registers=16).lanes(32)
    8
    """

    name: str = ""
    vector_bits: int = 0
    registers: int = 16
    thread_registers: int = 0
    line_bytes: int = 64
    cache_bytes: int = 1 << 20
    threads: int = 1
    warp: int = 1
    block: int = 1
    most_threads: int = 1
    shared_bytes: int = 0
    multiprocessors: int = 1
    instructions: tuple[str, ...] = ()
    launch_instructions: int = 0

    @property
    def tile_bytes(self) -> int:
        """Shared memory of a block for tiles; the rest is for partial results of its threads."""
        return max(0, self.shared_bytes - _PARTIAL_BYTES)

    def lanes(self, bits: int) -> int:
        """Elements of a vector register; 1 without one that holds several."""
        return max(1, self.vector_bits // bits)


#: A machine of one thread of which nothing else is known.
UNKNOWN = Target()

__all__ = ["UNKNOWN", "Target"]

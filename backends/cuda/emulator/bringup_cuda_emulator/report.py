"""What a fault says: the kernel, the threads, the address, the instructions."""

from __future__ import annotations

from bringup.errors import BringupError
from bringup.records import record
from bringup_cuda_emulator.layout import Fault

Coordinates = tuple[int, int, int]

_TITLES = {
    Fault.OUTSIDE: "out of bounds",
    Fault.MISALIGNED: "misaligned access",
    Fault.RACE_READ: "data race: a read of what another thread wrote",
    Fault.RACE_WRITE: "data race: two threads write",
    Fault.RACE_AFTER_READ: "data race: a write of what another thread reads",
    Fault.UNINITIALISED: "read of shared memory that this block has not written",
    Fault.IN_FLIGHT: "access to memory that an asynchronous copy is still writing",
    Fault.DIVERGENT_BARRIER: "divergent barrier: threads meet at different barriers",
    Fault.STUCK: "deadlock: nobody comes whom the waiting threads wait for",
    Fault.DIVERGENT_WARP: "divergent warp: lanes meet with different masks or instructions",
    Fault.NOT_IN_MASK: "a lane runs a warp instruction whose mask leaves it out",
    Fault.FOREIGN_LANE: "a shuffle reads a lane that takes no part in it",
    Fault.ENDLESS: "endless wait: the value that a thread waits for never comes",
    Fault.BAD_BARRIER: "no such barrier: a block has 16",
    Fault.TOO_MANY_COPIES: "more asynchronous copies under way than the emulator keeps",
    Fault.TRAP: "the kernel ran into llvm.trap",
    Fault.WRONG_SPACE: "an address of another address space",
    Fault.BEYOND_ARGUMENT: "out of bounds of the argument",
    Fault.SHORT_GROUP: "a warpgroup has fewer than 128 threads",
    Fault.DIVERGENT_GROUP: "divergent warpgroup: threads meet at different instructions",
    Fault.BAD_DESCRIPTOR: "no descriptor of a matrix that tensor cores read",
    Fault.NOT_VISIBLE: "tensor cores read what its writer has not made visible to them",
    Fault.OVERTAKEN: "shared memory was written while tensor cores read it",
    Fault.NOT_FENCED: "registers are given to tensor cores without a fence",
    Fault.SUMS_IN_FLIGHT: "sums are used while tensor cores still add to them",
    Fault.PRODUCTS_LEFT: "products of tensor cores that nobody waits for",
    Fault.TOO_MANY_PRODUCTS: "more products under way than the emulator keeps",
}
KINDS = {
    Fault.OUTSIDE: "out-of-bounds",
    Fault.MISALIGNED: "misaligned",
    Fault.RACE_READ: "race",
    Fault.RACE_WRITE: "race",
    Fault.RACE_AFTER_READ: "race",
    Fault.UNINITIALISED: "uninitialised",
    Fault.IN_FLIGHT: "in-flight",
    Fault.DIVERGENT_BARRIER: "divergent-barrier",
    Fault.STUCK: "deadlock",
    Fault.DIVERGENT_WARP: "divergent-warp",
    Fault.NOT_IN_MASK: "lane-not-in-mask",
    Fault.FOREIGN_LANE: "foreign-lane",
    Fault.ENDLESS: "endless-wait",
    Fault.BAD_BARRIER: "bad-barrier",
    Fault.TOO_MANY_COPIES: "too-many-copies",
    Fault.TRAP: "trap",
    Fault.WRONG_SPACE: "wrong-space",
    Fault.BEYOND_ARGUMENT: "out-of-bounds",
    Fault.SHORT_GROUP: "short-warpgroup",
    Fault.DIVERGENT_GROUP: "divergent-warpgroup",
    Fault.BAD_DESCRIPTOR: "bad-descriptor",
    Fault.NOT_VISIBLE: "not-visible",
    Fault.OVERTAKEN: "overtaken",
    Fault.NOT_FENCED: "not-fenced",
    Fault.SUMS_IN_FLIGHT: "sums-in-flight",
    Fault.PRODUCTS_LEFT: "products-left",
    Fault.TOO_MANY_PRODUCTS: "too-many-products",
}


@record
class Place:  # pragma: no cover - only wrong kernels
    """Who and where: a thread of a block, and the instruction."""

    thread: Coordinates
    block: Coordinates
    instruction: str

    def __str__(self) -> str:
        return f"thread {self.thread} of block {self.block}: {self.instruction}"


@record
class Finding:  # pragma: no cover - only wrong kernels
    """A fault of a kernel.

    kind: such as ``race``.  other: the other side of a race, None for other faults.
    address, size: the access; size 0 where memory has no part in it.
    where: the buffer or variable nearest to the address.
    """

    kind: str
    title: str
    kernel: str
    at: Place
    other: Place | None
    address: int
    size: int
    where: str
    details: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.kernel}: {self.title}", f"  {self.at}"]
        if self.other is not None:
            lines.append(f"  {self.other}")
        if self.size:
            lines.append(f"  {self.size} bytes at {self.address:#x}: {self.where}")
        lines += [f"  {line}" for line in self.details]
        return "\n".join(lines)


class EmulatorError(BringupError):  # pragma: no cover - only wrong kernels
    """A kernel did what no kernel may do.  finding: what, who and where."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding

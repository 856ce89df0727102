"""What the chip can do, as data, and what it has done, as counters."""

from __future__ import annotations

from dataclasses import dataclass

from bringup_simulator.errors import LimitError

__all__ = ["VECTOR_WIDTH", "Counters", "Limits"]

VECTOR_WIDTH = 128


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes the chip is built with; requests beyond them raise ``LimitError``.

    rank: axes of a view or of a grid.  elements: of one view, and points of one grid.  buffers:
    bound to one command.  scratchpad: bytes of tiles per grid point.  registers: vector registers
    per grid point, the least used of them in its local memory.  vector_width: lanes, a power of
    two.  instructions: static length of a kernel.  watchdog: instructions one grid point may
    execute, loops counted; beyond it the launch fails with ``CommandTimeoutError``.  alignment: of
    a binding's byte offset.
    """

    rank: int = 32
    elements: int = 2**40
    buffers: int = 32
    scratchpad: int = 64 * 1024
    registers: int = 4096
    vector_width: int = VECTOR_WIDTH
    instructions: int = 1 << 16
    watchdog: int = 5_000_000
    alignment: int = 16

    def __post_init__(self) -> None:
        width = self.vector_width
        if width < 1 or width & (width - 1):
            raise ValueError(f"vector_width must be a power of two, not {width}")

    def require(self, name: str, what: str, used: int, allowed: int) -> None:
        """LimitError on behalf of ``name`` if ``used`` exceeds ``allowed``."""
        if used > allowed:
            raise LimitError(f"{name}: needs {used} {what}, the chip takes {allowed}")


@dataclass(frozen=True, slots=True)
class Counters:
    """A snapshot of the device's bookkeeping; all sizes in bytes.

    live_*: allocated and not yet freed by the host.  peak_bytes: highest ``live_bytes`` so far.
    kernel_read/kernel_written: moved between memory and registers by launched kernels, masked
    lanes not counted; scratchpad traffic is free and not counted.
    """

    live_bytes: int = 0
    live_allocations: int = 0
    peak_bytes: int = 0
    commands: int = 0
    launches: int = 0
    calls: int = 0
    uploaded: int = 0
    downloaded: int = 0
    copied: int = 0
    kernel_read: int = 0
    kernel_written: int = 0

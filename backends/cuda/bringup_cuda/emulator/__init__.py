"""GPU kernels on the host: the LLVM IR that goes to NVPTX, run thread by thread and checked.

>>> from bringup_cuda.emulator import run
>>> run(text, "kernel", grid=4, block=256, args=[x, y])  # doctest: +SKIP

Arrays among the arguments are copied to the emulated GPU and back.  What no kernel may do raises
`EmulatorError`: data races, accesses out of bounds or misaligned, reads of shared memory nobody
wrote, barriers and warp instructions that diverge, deadlocks.
"""

from __future__ import annotations

from bringup_cuda.emulator.gpu import Gpu
from bringup_cuda.emulator.loading import Loaded, load
from bringup_cuda.emulator.report import EmulatorError, Finding, Place
from bringup_cuda.emulator.running import run

__all__ = ["EmulatorError", "Finding", "Gpu", "Loaded", "Place", "load", "run"]

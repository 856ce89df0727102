"""How many blocks of a kernel a GPU holds at once, and how many to launch.

A block for each unit of work is what the hardware balances best: whichever multiprocessor is done
takes the next.  Where blocks are short, though, the time in which one ends and the next begins
counts, and while it lasts less memory is asked for.  Those kernels that say so (`SimtKernel`'s
``persistent``) are given the blocks that fit, each of which takes many units in turn; never where
the turns are few, since the last of them is shared by some of the blocks only.
"""

from __future__ import annotations

from typing import Any

from bringup.llvm.simt import SimtKernel
from bringup.records import record
from bringup_cuda import surface
from bringup_cuda.targets import SHARED_RESERVED, WARP

#: Turns of each block from which on the last one, which leaves some blocks idle, is no loss.
TURNS = 16
#: Registers are given to a warp in parts of so many, and lie in so many files, each with warps of
#: its own: CUDA C++ Programming Guide and NVIDIA's occupancy calculator, compute capability 3.0 on.
_REGISTERS, _FILES = 256, 4


@record
class Processors:
    """The multiprocessors of a GPU.

    count: of them.  threads, blocks, registers, shared_bytes: of each, at most.
    """

    count: int
    threads: int
    blocks: int
    registers: int
    shared_bytes: int


def processors_of(driver: surface.Driver, gpu: surface.Device) -> Processors:
    """What a device says of itself."""
    names = driver.device_attribute
    return Processors(
        gpu.get_attribute(names.MULTIPROCESSOR_COUNT),
        gpu.get_attribute(names.MAX_THREADS_PER_MULTIPROCESSOR),
        gpu.get_attribute(names.MAX_BLOCKS_PER_MULTIPROCESSOR),
        gpu.get_attribute(names.MAX_REGISTERS_PER_MULTIPROCESSOR),
        gpu.get_attribute(names.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
    )


def resident(processors: Processors, threads: int, registers: int, shared_bytes: int) -> int:
    """Blocks that one multiprocessor holds at once.

    registers: of a thread.  shared_bytes: of a block, in all.
    """
    warps = -(-threads // WARP)
    each = -(-max(registers, 1) * WARP // _REGISTERS) * _REGISTERS
    by_registers = processors.registers // _FILES // each * _FILES // warps
    by_threads = processors.threads // (warps * WARP)
    by_memory = processors.shared_bytes // (shared_bytes + SHARED_RESERVED)
    return max(1, min(by_registers, by_threads, by_memory, processors.blocks))


def blocks_of(
    kernel: SimtKernel, function: Any, driver: surface.Driver, processors: Processors
) -> int:
    """How many blocks to launch.  function: the kernel's, loaded."""
    if not kernel.persistent or kernel.blocks <= TURNS * processors.count:
        return kernel.blocks
    names = driver.function_attribute
    static = function.get_attribute(names.SHARED_SIZE_BYTES)
    shared = static + kernel.shared_bytes
    registers = function.get_attribute(names.NUM_REGS)
    held = processors.count * resident(processors, kernel.threads, registers, shared)
    return held if kernel.blocks >= TURNS * held else kernel.blocks


__all__ = ["TURNS", "Processors", "blocks_of", "processors_of", "resident"]

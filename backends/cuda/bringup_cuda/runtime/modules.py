"""Loaded code: functions that are ready to launch, and how many blocks to launch.

A block for each unit of work is what the hardware balances best: the multiprocessor that is done
first takes the next.  Where blocks are short, however, the time between the end of a block and the
start of the next counts, and less memory is requested meanwhile.  Kernels that say so
(``SimtKernel.persistent``) are launched with only the blocks that are resident at once, each of
which takes many units; never where that means few units each, since only some blocks have a last
one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bringup.llvm.simt import SimtKernel
from bringup.records import record
from bringup_cuda.driver import protocol
from bringup_cuda.driver.errors import leak
from bringup_cuda.targets import SHARED_RESERVED, WARP

#: Units of each persistent block from which on the last one, which only some blocks have, is cheap.
MIN_UNITS = 16
#: Registers are assigned to a warp in pieces of this many, from this many register files that each
#: serve their own warps: NVIDIA's occupancy calculator, compute capability 3.0 and later.
_REGISTER_PIECE, _REGISTER_FILES = 256, 4


class LoadedModule:
    """A module of the driver, shared by equal programs; the last release drops it.

    wait: waits for queued work, whose code the driver would drop.
    """

    def __init__(self, module: Any, driver: protocol.Driver, wait: Callable[[], None]) -> None:
        self.module = module
        self.users = 0
        self._driver = driver
        self._wait = wait
        self._functions: dict[str, Any] = {}

    def function(self, name: str, arguments: str, shared_bytes: int) -> Any:
        """A kernel, prepared for launches.

        arguments: a letter of `struct` for each.  shared_bytes: of dynamic shared memory.
        """
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = self.module.get_function(name)
            function.prepare(arguments)
            if shared_bytes:
                # By default only 48 KiB are allowed, less what the kernel itself declares.
                limit = self._driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
                function.set_attribute(limit, shared_bytes)
        return function

    def release(self) -> None:
        """Remove a user."""
        self.users -= 1
        if self.users:
            return
        try:
            self._wait()
        except BaseException:  # pragma: no cover on cuda-emulated - only drivers
            # Code whose work may still run must not be dropped.
            leak(self.module)
            raise
        finally:
            self._functions.clear()
            self.module = None


@record
class Multiprocessors:
    """The multiprocessors of a GPU.

    count: their number.  threads, blocks, registers, shared_bytes: the most that each holds.
    """

    count: int
    threads: int
    blocks: int
    registers: int
    shared_bytes: int

    @classmethod
    def of(cls, driver: protocol.Driver, gpu: protocol.Device) -> Multiprocessors:
        """Ask a device for its attributes."""
        names = driver.device_attribute
        return cls(
            gpu.get_attribute(names.MULTIPROCESSOR_COUNT),
            gpu.get_attribute(names.MAX_THREADS_PER_MULTIPROCESSOR),
            gpu.get_attribute(names.MAX_BLOCKS_PER_MULTIPROCESSOR),
            gpu.get_attribute(names.MAX_REGISTERS_PER_MULTIPROCESSOR),
            gpu.get_attribute(names.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
        )

    def resident_blocks(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Blocks that one multiprocessor holds at once.

        threads, shared_bytes: of a block.  registers: of a thread.
        """
        warps = -(-threads // WARP)
        warp_registers = -(-max(registers, 1) * WARP // _REGISTER_PIECE) * _REGISTER_PIECE
        warps_per_file = self.registers // _REGISTER_FILES // warp_registers
        by_registers = warps_per_file * _REGISTER_FILES // warps
        by_threads = self.threads // (warps * WARP)
        by_memory = self.shared_bytes // (shared_bytes + SHARED_RESERVED)
        return max(1, min(by_registers, by_threads, by_memory, self.blocks))


def blocks_to_launch(
    kernel: SimtKernel, function: Any, driver: protocol.Driver, processors: Multiprocessors
) -> int:
    """The blocks of a launch.  function: the loaded kernel."""
    if not kernel.persistent or kernel.blocks <= MIN_UNITS * processors.count:
        return kernel.blocks
    names = driver.function_attribute
    shared_bytes = function.get_attribute(names.SHARED_SIZE_BYTES) + kernel.shared_bytes
    registers = function.get_attribute(names.NUM_REGS)
    resident = processors.resident_blocks(kernel.threads, registers, shared_bytes)
    resident *= processors.count
    return resident if kernel.blocks >= MIN_UNITS * resident else kernel.blocks

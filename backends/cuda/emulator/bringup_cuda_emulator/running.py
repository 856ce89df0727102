"""Run one kernel on arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from bringup_cuda_emulator.gpu import Gpu, Shape
from bringup_cuda_emulator.loading import Loaded, load

Dims = int | Sequence[int]


def run(  # pragma: no cover - only kernels run by hand
    module: str | Loaded,
    kernel: str,
    grid: Dims,
    block: Dims,
    args: Sequence[Any],
    *,
    shared_bytes: int = 0,
    seed: int = 0,
    gpu: Gpu | None = None,
) -> None:
    """Run a kernel over arrays, which hold its results afterwards.

    module: LLVM IR for NVPTX, or a module loaded before.
    args: C-contiguous numpy arrays, copied to the GPU and back, and numbers.
    shared_bytes: of dynamic shared memory.  seed: picks the order of blocks and threads.
    Raises EmulatorError, CompileError.
    """
    loaded = load(module) if isinstance(module, str) else module
    machine = gpu or _gpu()
    machine.seed = seed
    addresses: list[tuple[np.ndarray[Any, Any], int]] = []
    given: list[Any] = []
    try:
        for value in args:
            if not isinstance(value, np.ndarray):
                given.append(value)
                continue
            assert value.flags.c_contiguous, "an array must be contiguous"
            address = machine.arena.allocate(value.nbytes)
            addresses.append((value, address))
            ctypes.memmove(address, value.ctypes.data, value.nbytes)
            given.append(address)
        machine.launch(loaded, kernel, _dims(grid), _dims(block), given, shared_bytes)
        for array, address in addresses:
            if array.flags.writeable:
                ctypes.memmove(array.ctypes.data, address, array.nbytes)
    finally:
        for _, address in addresses:
            machine.arena.free(address)


def _dims(value: Dims) -> Shape:  # pragma: no cover - only kernels run by hand
    given = (value,) if isinstance(value, int) else tuple(value)
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


@cache
def _gpu() -> Gpu:  # pragma: no cover - only kernels run by hand
    return Gpu()

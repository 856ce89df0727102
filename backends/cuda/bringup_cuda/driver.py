"""What the NVIDIA driver says is there, asked through its C library: pycuda need not be built."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bringup.backend import NoHardware

LIBRARY = "libcuda.so.1"

# Names and values as in cuda.h.
CUDA_SUCCESS = 0
CUDA_ERROR_NO_DEVICE = 100
CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: its product name and its architecture, such as ``sm_90``."""

    product: str
    architecture: str


def find_gpus(load: Callable[[str], Any] = ctypes.CDLL) -> tuple[Gpu, ...]:
    """The GPUs the driver offers to this process, at least one.

    load: opens a C library by name.  Raises NoHardware with what is missing.
    """
    try:
        driver = load(LIBRARY)
    except OSError as error:
        raise NoHardware(f"the NVIDIA driver is not installed ({error})") from None
    status = driver.cuInit(0)
    if status == CUDA_ERROR_NO_DEVICE:
        raise NoHardware("the NVIDIA driver is installed but finds no GPU")
    if status != CUDA_SUCCESS:
        raise NoHardware(f"the NVIDIA driver does not start (cuInit returned {status})")
    count = _int(driver.cuDeviceGetCount)
    if count == 0:
        raise NoHardware("the NVIDIA driver offers no GPU to this process")
    return tuple(_describe(driver, index) for index in range(count))


def _describe(driver: Any, index: int) -> Gpu:
    device = _int(driver.cuDeviceGet, index)
    name = ctypes.create_string_buffer(256)
    _check(driver.cuDeviceGetName(name, len(name), device))
    major = _int(driver.cuDeviceGetAttribute, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
    minor = _int(driver.cuDeviceGetAttribute, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)
    return Gpu(name.value.decode(errors="replace"), f"sm_{major}{minor}")


def _int(function: Callable[..., int], *args: int) -> int:
    """Call ``function(&result, *args)``."""
    result = ctypes.c_int()
    _check(function(ctypes.byref(result), *args))
    return result.value


def _check(status: int) -> None:
    if status != CUDA_SUCCESS:
        raise NoHardware(f"the NVIDIA driver cannot describe its GPUs (error {status})")

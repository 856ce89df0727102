"""The GPUs of this machine, from the driver's C library, which does not need pycuda; and pycuda."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from typing import Any, cast

from bringup.backend import NoHardware
from bringup.errors import BackendError
from bringup.records import record
from bringup_cuda.driver import protocol
from bringup_cuda.driver.extras import LIBRARY
from bringup_cuda.targets import TARGETS, number_of

#: ``kDLCUDA`` of dlpack.h.
CUDA = 2

# Names and values as in cuda.h.
CUDA_SUCCESS = 0
CUDA_ERROR_NOT_INITIALIZED = 3
CUDA_ERROR_NO_DEVICE = 100
CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76

#: The first CUDA release whose driver reads the PTX of `bringup_cuda.codegen.lower`.
OLDEST = 12080
OLDEST_RELEASE = "570"


@record
class Gpu:
    """One GPU: its product name and its architecture, such as ``sm_90``."""

    product: str
    architecture: str


def find_gpus(
    load: Callable[[str], Any] = ctypes.CDLL,
) -> tuple[Gpu, ...]:  # pragma: no cover on cuda-emulated - only drivers
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
    if status == CUDA_ERROR_NOT_INITIALIZED:
        raise NoHardware(
            "the NVIDIA driver does not start (cuInit returned 3), as in a child of fork whose"
            ' parent started it: use multiprocessing\'s "spawn"'
        )
    if status != CUDA_SUCCESS:
        raise NoHardware(f"the NVIDIA driver does not start (cuInit returned {status})")
    count = _int(driver.cuDeviceGetCount)
    if count == 0:
        raise NoHardware("the NVIDIA driver offers no GPU to this process")
    return tuple(_describe(driver, index) for index in range(count))


def driver_version(
    load: Callable[[str], Any] = ctypes.CDLL,
) -> int:  # pragma: no cover on cuda-emulated - only drivers
    """The CUDA release that the driver speaks: 12080 is 12.8.  Only where `find_gpus` succeeds."""
    return _int(load(LIBRARY).cuDriverGetVersion)


def nearest(architecture: str) -> str | None:  # pragma: no cover on cuda-emulated - only drivers
    """The newest known architecture whose code a GPU of this one runs; None if it is too old.

    >>> nearest("sm_90"), nearest("sm_103"), nearest("sm_70")
    ('sm_90a', 'sm_100', None)
    """
    number = number_of(architecture)
    known = [a for a in TARGETS if number_of(a) <= number]
    runs = [a for a in known if not a.endswith("a") or number_of(a) == number]
    return max(runs, key=lambda a: (number_of(a), a), default=None)


def require_gpus(  # pragma: no cover on cuda-emulated - only drivers
    find: Callable[[], tuple[Gpu, ...]] = find_gpus,
    version: Callable[[], int] = driver_version,
    module: Callable[[str], Any] = importlib.import_module,
) -> tuple[Gpu, ...]:
    """The GPUs, all of which can be opened.

    Raises NoHardware with what is missing; BackendError if GPUs are there, and the driver is too
    old, the GPUs are, or pycuda is not there or broken.
    """
    gpus = find()
    there = ", ".join(f"{gpu.product} ({gpu.architecture})" for gpu in gpus)
    for gpu in gpus:
        if nearest(gpu.architecture) is None:
            raise BackendError(
                f"{there}: {gpu.architecture} is older than {next(iter(TARGETS))}, the oldest"
                " that code is made for",
                fix="hide it: set CUDA_VISIBLE_DEVICES to the others",
            )
    speaks = version()
    if speaks < OLDEST:
        raise BackendError(
            f"{there} is present, and its driver speaks CUDA {_release(speaks)}, older than"
            f" {_release(OLDEST)}",
            fix=f"update the NVIDIA driver to release {OLDEST_RELEASE} or later",
        )
    open_library(there, module)
    return gpus


def open_library(  # pragma: no cover on cuda-emulated - only drivers
    there: str = "a GPU", module: Callable[[str], Any] = importlib.import_module
) -> protocol.Library:
    """The driver module of pycuda.  Raises BackendError if it is not there or does not load.

    there: the GPUs of this machine, for that error.
    """
    from bringup_cuda.driver.extras import DriverExtras

    try:
        driver = module("pycuda.driver")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] != "pycuda":
            raise _broken(there, error) from error
        raise BackendError(
            f"{there} is present, and pycuda is not installed",
            fix="pip install pycuda, which takes the CUDA headers to build",
        ) from error
    except Exception as error:
        raise _broken(there, error) from error
    pycuda_driver = cast(protocol.Driver, driver)
    return protocol.Library(pycuda_driver, DriverExtras(pycuda_driver), "ptx", CUDA)


def _broken(
    there: str, error: Exception
) -> BackendError:  # pragma: no cover on cuda-emulated - only drivers
    reason = str(error).partition("\n")[0]
    fix = "build it anew: pip install --force-reinstall --no-cache-dir --no-binary pycuda pycuda"
    if "undefined symbol: cu" in reason:
        fix = f"update the driver, or {fix}, with CUDA headers that are not newer than the driver"
    return BackendError(
        f"{there} is present, and pycuda does not load: {type(error).__name__}: {reason}", fix=fix
    )


def _release(version: int) -> str:  # pragma: no cover on cuda-emulated - only drivers
    return f"{version // 1000}.{version % 1000 // 10}"


def _describe(driver: Any, index: int) -> Gpu:  # pragma: no cover on cuda-emulated - only drivers
    device = _int(driver.cuDeviceGet, index)
    name = ctypes.create_string_buffer(256)
    _check(driver.cuDeviceGetName(name, len(name), device))
    major = _int(driver.cuDeviceGetAttribute, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
    minor = _int(driver.cuDeviceGetAttribute, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)
    return Gpu(name.value.decode(errors="replace"), f"sm_{major}{minor}")


def _int(
    function: Callable[..., int], *args: int
) -> int:  # pragma: no cover on cuda-emulated - only drivers
    """Call ``function(&result, *args)``."""
    result = ctypes.c_int()
    _check(function(ctypes.byref(result), *args))
    return result.value


def _check(status: int) -> None:  # pragma: no cover on cuda-emulated - only drivers
    if status != CUDA_SUCCESS:
        raise NoHardware(f"the NVIDIA driver cannot describe its GPUs (error {status})")

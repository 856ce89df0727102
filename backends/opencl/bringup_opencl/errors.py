"""The driver's errors as errors of bringup."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bringup.errors import DeviceError, DeviceLostError, OutOfMemoryError
from bringup_opencl.driver import cl

#: INVALID_BUFFER_SIZE is what drivers say of one buffer that is larger than they allow.
_NO_MEMORY = (
    cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
    cl.status_code.OUT_OF_RESOURCES,
    cl.status_code.OUT_OF_HOST_MEMORY,
    cl.status_code.INVALID_BUFFER_SIZE,
)
_MEMORY_FIX = "drop references to arrays, or compute in smaller pieces"


def device_error(code: int, text: str) -> DeviceError:
    """The error of bringup for a code of OpenCL."""
    if code in _NO_MEMORY:
        return OutOfMemoryError(text, fix=_MEMORY_FIX)
    if code == cl.status_code.DEVICE_NOT_AVAILABLE:
        return DeviceLostError(text, fix="open the device in a new process")
    return DeviceError(text)


@contextmanager
def errors_of(what: str) -> Iterator[None]:
    """Inside the block the driver's errors become those of bringup."""
    try:
        yield
    except cl.Error as error:
        raise device_error(error.code, f"{what}: {error}") from error

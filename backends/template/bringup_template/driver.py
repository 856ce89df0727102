"""The memory of Template, waiting for it, and its driver's errors in bringup's words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bringup import errors
from bringup.backend import Device, Handle

from bringup_template import simulated_memory

#: What the driver's errors mean.  Others become a plain DeviceError; there are also
#: DeviceLostError, DeviceTimeoutError and CompileError.
MEANINGS: dict[type[Exception], type[errors.DeviceError]] = {
    simulated_memory.OutOfMemory: errors.OutOfMemoryError,
}


@contextmanager
def reported() -> Iterator[None]:
    """Raise what the driver raises as an error of bringup's."""
    try:
        yield
    except simulated_memory.DriverError as error:
        raise MEANINGS.get(type(error), errors.DeviceError)(str(error)) from error


class TemplateMemory(Device):
    """The six methods that move bytes.  Core looks into nothing that `alloc` returns."""

    def __init__(self, index: int) -> None:
        self.index = index

    @reported()
    def alloc(self, nbytes: int) -> Handle:
        """Of any content, and of 0 bytes too."""
        return simulated_memory.alloc(nbytes)

    @reported()
    def free(self, handle: Handle) -> None:
        """Work that is queued still has the memory."""
        simulated_memory.free(handle)

    @reported()
    def upload(self, handle: Handle, data: memoryview) -> None:
        """``data`` may change once this returns."""
        simulated_memory.upload(handle, data)

    @reported()
    def download(self, handle: Handle, out: memoryview) -> None:
        """After all work before it."""
        simulated_memory.download(handle, out)

    @reported()
    def copy(self, target: Handle, source: Handle, nbytes: int) -> None:
        """Within the device, after all work before it."""
        simulated_memory.copy(target, source, nbytes)

    @reported()
    def synchronize(self) -> None:
        """Wait for all work; raise its first error and forget it."""
        simulated_memory.wait()

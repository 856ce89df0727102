"""What all three depths share: memory, waiting, and the chip's errors in bringup's words.

For your device, replace each call of ``self.chip`` by one of your driver's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bringup import errors
from bringup.backend import Device
from bringup_template import simulator as sim

# Whatever else the chip reports becomes a plain DeviceError.
_MEANINGS: dict[type[BaseException], type[errors.DeviceError]] = {
    sim.OutOfDeviceMemoryError: errors.OutOfMemoryError,
    sim.DeviceLostError: errors.DeviceLostError,
    sim.CommandTimeoutError: errors.DeviceTimeoutError,
    sim.BadImageError: errors.CompileError,
    sim.LimitError: errors.CompileError,
}


@contextmanager
def reported() -> Iterator[None]:
    """Raise what the chip reports as an error of bringup's."""
    try:
        yield
    except sim.SimulatorError as error:
        # The queue runs late: a command may fail long after the user's line.  Every command carries
        # its step as a tag, so that the error at the wait can still name that line.
        cause = error.__cause__ if isinstance(error, sim.CommandFailedError) else error
        raised = _MEANINGS.get(type(cause), errors.DeviceError)(str(error))
        raised.location = getattr(getattr(error, "tag", None), "location", None)
        raise raised from error


class Chip(Device):
    """The six byte methods.  A handle is whatever your driver calls memory by; core only passes it on."""

    def __init__(self, chip: sim.Accelerator) -> None:
        self.chip = chip

    @reported()
    def alloc(self, nbytes: int) -> sim.Handle:
        """Any content will do, even for 0 bytes."""
        return self.chip.alloc(nbytes)

    @reported()
    def free(self, handle: sim.Handle) -> None:
        """Commands in the queue still see the memory: this chip keeps it until they have run."""
        self.chip.free(handle)

    @reported()
    def upload(self, handle: sim.Handle, data: memoryview) -> None:
        """``data`` may change as soon as this returns: this chip has taken the bytes by then."""
        self.chip.upload(handle, data)

    @reported()
    def download(self, handle: sim.Handle, out: memoryview) -> None:
        """Waits, so errors of earlier commands surface here too."""
        self.chip.download(handle, out)

    @reported()
    def copy(self, target: sim.Handle, source: sim.Handle, nbytes: int) -> None:
        """Queued like everything else."""
        self.chip.copy(target, source, nbytes)

    @reported()
    def synchronize(self) -> None:
        """Wait, raise the first error, forget it: the device stays usable."""
        self.chip.synchronize()

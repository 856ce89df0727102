"""What all three depths share: memory, waiting, and the chip's errors in bringup's words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import bringup_simulator as sim
from bringup import errors
from bringup.backend import Device, Step

# Anything else the chip reports becomes a plain DeviceError.
_MEANINGS: dict[type, type[errors.DeviceError]] = {
    sim.OutOfDeviceMemoryError: errors.OutOfMemoryError,
    sim.DeviceLostError: errors.DeviceLostError,
    sim.CommandTimeoutError: errors.DeviceTimeoutError,
    sim.BadKernelError: errors.CompileError,
    sim.LimitError: errors.CompileError,
}


@contextmanager
def reported(step: Step | None = None) -> Iterator[None]:
    """Raise what the chip reports as an error of bringup's; step: the one at work, if known."""
    try:
        yield
    except sim.SimulatorError as error:
        cause: BaseException | None = error
        if isinstance(error, sim.CommandFailedError):
            # The queue runs late: the wait is far from the user's line.  The failed command's tag,
            # given when it was queued, is the step that knows the line.
            cause, step = error.__cause__, error.tag
        raised = _MEANINGS.get(type(cause), errors.DeviceError)(str(error))
        raised.step, raised.location = step, step.location if step else None
        raise raised from error


class Chip(Device):
    """The six byte methods.  A handle is the chip's own."""

    def __init__(self, chip: sim.Accelerator) -> None:
        self.chip = chip

    @reported()
    def alloc(self, nbytes: int) -> sim.Handle:
        """Of any content, and of 0 bytes too."""
        return self.chip.alloc(nbytes)

    @reported()
    def free(self, handle: sim.Handle) -> None:
        """Queued commands still see the memory: this chip keeps it until they have run."""
        self.chip.free(handle)

    @reported()
    def upload(self, handle: sim.Handle, data: memoryview) -> None:
        """``data`` may change once this returns: this chip has taken the bytes by then."""
        self.chip.upload(handle, data)

    @reported()
    def download(self, handle: sim.Handle, out: memoryview) -> None:
        """Waits, so errors of commands before it surface here as well."""
        self.chip.download(handle, out)

    @reported()
    def copy(self, target: sim.Handle, source: sim.Handle, nbytes: int) -> None:
        """Queued like everything else."""
        self.chip.copy(target, source, nbytes)

    @reported()
    def synchronize(self) -> None:
        """Wait; raise the first error and forget it: the device stays usable."""
        self.chip.synchronize()

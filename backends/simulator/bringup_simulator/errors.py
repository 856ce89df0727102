"""Errors of the chip's driver.

They are the driver's own, as a real chip's would be; a backend translates them into bringup's.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BadKernelError",
    "CommandFailedError",
    "CommandTimeoutError",
    "DeviceLostError",
    "DoubleFreeError",
    "GuardError",
    "InjectedError",
    "InvalidHandleError",
    "LimitError",
    "OutOfBoundsError",
    "OutOfDeviceMemoryError",
    "SimulatorError",
    "UseAfterFreeError",
]


class SimulatorError(Exception):
    """Root of everything the driver raises on purpose."""


class OutOfDeviceMemoryError(SimulatorError):
    """An allocation did not fit; nothing was allocated and the device stays usable."""


class InvalidHandleError(SimulatorError):
    """A handle that this device never issued, such as one computed from another handle."""


class UseAfterFreeError(InvalidHandleError):
    """A handle was used after its free."""


class DoubleFreeError(UseAfterFreeError):
    """A handle was freed twice."""


class OutOfBoundsError(SimulatorError):
    """An access reached outside its buffer, parameter or tile."""


class GuardError(SimulatorError):
    """Bytes next to an allocation were overwritten; the guard is repaired after the report."""


class LimitError(SimulatorError):
    """A request exceeds what the chip can do: see ``Limits``."""


class BadKernelError(SimulatorError):
    """A kernel that the chip's compiler does not take."""


class CommandTimeoutError(SimulatorError):
    """A kernel would execute more operations than the chip's watchdog allows."""


class DeviceLostError(SimulatorError):
    """The device is gone, and every buffer with it."""


class InjectedError(SimulatorError):
    """The default error of ``fail_next``."""


class CommandFailedError(SimulatorError):
    """A queued command failed; raised by a wait after it.

    command: its name as submitted.  tag: whatever the host gave with it.  ``__cause__`` holds the
    error itself.
    """

    def __init__(self, command: str, cause: BaseException, tag: Any = None) -> None:
        super().__init__(f"{command}: {type(cause).__name__}: {cause}")
        self.command = command
        self.tag = tag
        self.__cause__ = cause

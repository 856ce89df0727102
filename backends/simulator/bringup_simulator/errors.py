"""Errors of the simulated accelerator's driver.

They are the driver's own, as a real chip's would be; a backend translates them into bringup's.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BadImageError",
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
    "ViewEscapedError",
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
    """An access reached outside its buffer, binding or scratchpad tile."""


class GuardError(SimulatorError):
    """Bytes next to an allocation were overwritten; the guard is repaired after the report."""


class LimitError(SimulatorError):
    """A request exceeds what the chip can do: rank, elements, buffers, scratchpad, alignment."""


class BadImageError(SimulatorError):
    """A kernel image is damaged, of another version, or breaks a rule of the instruction set."""


class ViewEscapedError(SimulatorError):
    """A callable kept a view of device memory beyond its command."""


class CommandTimeoutError(SimulatorError):
    """A kernel executed more instructions than the chip's watchdog allows."""


class DeviceLostError(SimulatorError):
    """The device is gone; only ``reset`` works, and every buffer is lost."""


class InjectedError(SimulatorError):
    """The default error of ``fail_next``."""


class CommandFailedError(SimulatorError):
    """A queued command failed; raised by the wait that covers it.

    command: name of the command as submitted.  ticket: its ticket.  tag: whatever the host gave
    with the command.  ``__cause__`` holds the error itself.  later: the other failures this wait
    covers, in queue order; each is reported once.
    """

    def __init__(self, command: str, ticket: int, cause: BaseException, tag: Any = None) -> None:
        super().__init__(f"{command}: {type(cause).__name__}: {cause}")
        self.command = command
        self.ticket = ticket
        self.tag = tag
        self.later: tuple[CommandFailedError, ...] = ()
        self.__cause__ = cause

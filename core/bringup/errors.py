"""Every exception bringup raises on purpose.

A user error carries four facts: what failed (types as the IR prints them), where in the user's
code, which instruction, and the fix.  All of them derive from `BringupError`, so one ``except``
clause catches what the SDK reports and nothing else.
"""

from __future__ import annotations

from bringup.records import record


@record
class Location:
    """A line of the user's code: ``file:line (function)``."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function})"


class BringupError(Exception):
    """Base of all errors.

    what: one sentence, naming types as the IR prints them.
    notes: further facts, one line each.
    location: the user's line.
    instruction: IR text of the instruction at fault.
    fix: what to do about it.
    op: with what name of the IR `what` begins, until it is known what the user called.
    call: the method of a device that raised it, such as ``upload``; empty if none did.
    """

    def __init__(
        self,
        what: str,
        *,
        location: Location | None = None,
        instruction: str | None = None,
        fix: str | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(what)
        self.what = what
        self.location = location
        self.instruction = instruction
        self.fix = fix
        self.notes = notes
        self.op: str | None = None
        self.call = ""

    def __str__(self) -> str:
        lines = [self.what, *(f"  {note}" for note in self.notes)]
        if self.location is not None:
            lines.append(f"  at {self.location}")
        if self.instruction is not None:
            lines.append(f"  in instruction: {self.instruction}")
        if self.fix is not None:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


class OpTypeError(BringupError, TypeError):
    """Operand types, shapes or attributes that an op does not take."""


class AxisError(OpTypeError, IndexError, ValueError):
    """An axis that an array does not have, or not of the size needed: a TypeError as of every
    operand that an op does not take, an IndexError and a ValueError as the array API asks.
    """


class GraphError(BringupError, ValueError):
    """A graph, kernel or program that breaks its level's rules: a defect of a pass or a plugin."""


class ScheduleError(BringupError, ValueError):
    """A step of a schedule that a function of the loop level does not take: a loop that it does not
    have, or a change that could give other values.
    """


class ParseError(BringupError, ValueError):
    """IR text that does not follow the grammar; the message names line and column."""


class ProgramFileError(BringupError, ValueError):
    """A file that is no program file, is damaged, or needs a later version than this one."""


class TraceError(BringupError, RuntimeError):
    """A Python construct that cannot be traced, such as ``if`` on a value that is not known yet."""


class ArrayIndexError(BringupError, IndexError):
    """An index that is out of range or of a form arrays do not take."""


class MissingAttributeError(BringupError, AttributeError):
    """An attribute that arrays do not have; the fix names the function to use instead."""


class ConversionError(BringupError, ValueError):
    """A value that cannot become an array, a scalar or another dtype without losing meaning."""


class UnsupportedError(BringupError, NotImplementedError):
    """The selected device cannot run something, and nothing silently takes its place."""


class NaNError(BringupError, ArithmeticError):
    """A NaN that an operation made of operands without any, under ``BRINGUP_CHECK_NAN=1``."""


class DeviceError(BringupError, RuntimeError):
    """Something a device reported.

    step: that of `bringup.backend.current_step` at which the failed work was queued, set by devices
    that work late: only what depends on that run is then lost.
    """

    step: object = None


class OutOfMemoryError(DeviceError, MemoryError):
    """The device has no room for an allocation; the device stays usable."""


class CompileError(DeviceError):
    """A backend's compiler refused a kernel.  log: its output.  source: what it was given."""

    def __init__(
        self, what: str, *, log: str = "", source: str = "", fix: str | None = None
    ) -> None:
        super().__init__(what, fix=fix, notes=tuple(log.strip().splitlines()[:20]))
        self.log = log
        self.source = source


class DeviceLostError(DeviceError):
    """The device stopped answering; its buffers are gone."""


class DeviceTimeoutError(DeviceError, TimeoutError):
    """The device did not finish in the time allowed."""


class BackendError(BringupError, RuntimeError):
    """A backend that is missing, broken or refused; the message names plugin and distribution."""


class DeletedBufferError(BringupError, RuntimeError):
    """An array whose memory was donated to a call and must not be used again."""


__all__ = [
    "ArrayIndexError",
    "AxisError",
    "BackendError",
    "BringupError",
    "CompileError",
    "ConversionError",
    "DeletedBufferError",
    "DeviceError",
    "DeviceLostError",
    "DeviceTimeoutError",
    "GraphError",
    "Location",
    "MissingAttributeError",
    "NaNError",
    "OpTypeError",
    "OutOfMemoryError",
    "ParseError",
    "ProgramFileError",
    "ScheduleError",
    "TraceError",
    "UnsupportedError",
]

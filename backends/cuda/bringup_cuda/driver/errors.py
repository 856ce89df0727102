"""The driver's errors as errors of bringup.

pycuda gives a class and a text, ``"cuStreamSynchronize failed: an illegal memory access was
encountered"``; the text behind the colon is the driver's own and the same in every release.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from bringup.backend.adapters_run import step_text
from bringup.errors import (
    BringupError,
    CompileError,
    DeviceError,
    DeviceLostError,
    DeviceTimeoutError,
    OutOfMemoryError,
)
from bringup.program.program import Step

OUT_OF_MEMORY = "out of memory"
#: A launch ran longer than the system lets one, as where the GPU also drives a display.
TIMED_OUT = "the launch timed out and was terminated"
#: After one of these the driver fails every call on the context: its memory is gone.
STICKY = (
    "an illegal memory access was encountered",
    "misaligned address",
    "an illegal instruction was encountered",
    "operation not supported on global/shared address space",
    "invalid program counter",
    "hardware stack error",
    "unspecified launch failure",
    "device-side assert triggered",
    "uncorrectable ECC error encountered",
    "uncorrectable NVLink error detected during the execution",
    "context is destroyed",
    TIMED_OUT,
)

_FORK_FIX = 'start processes by multiprocessing.get_context("spawn"), or open it after the fork'
_CLOSED_FIX = "use it before the process ends: devices are closed then"
_LOST_FIX = "start a new process: CUDA gives a process no second context on the device"
_WHICH_FIX = "run again with BRINGUP_CHECK=1, which waits after each launch, to learn which"
_SHOWN = 4


class Forked(Exception):
    """This process is a child of the one that opened the device."""


class Closed(Exception):
    """The process ends: its devices, and the programs made for them, are given back."""


def reason_of(error: BaseException) -> str:  # pragma: no cover on cuda-emulated - only drivers
    """The first line of the driver's text."""
    return str(error).partition("\n")[0] or type(error).__name__


def is_sticky(error: BaseException) -> bool:  # pragma: no cover on cuda-emulated - only drivers
    """Whether the context cannot be used any more."""
    text = str(error)
    return any(reason in text for reason in STICKY)


def is_out_of_memory(
    error: BaseException,
) -> bool:  # pragma: no cover on cuda-emulated - only drivers
    """Whether there is just not enough memory."""
    return isinstance(error, MemoryError) or OUT_OF_MEMORY in str(error)


def device_error(
    error: BaseException, device: str, suspects: Sequence[Step] = ()
) -> DeviceError:  # pragma: no cover on cuda-emulated - only drivers
    """The error of bringup for one of the driver.

    device: the name for messages.
    suspects: the launches that it may be about, in order.
    """
    kind: type[DeviceError] = DeviceError
    notes: list[str] = []
    fix: str | None = None
    if TIMED_OUT in str(error):
        kind = DeviceTimeoutError
    elif is_sticky(error):
        kind = DeviceLostError
    elif is_out_of_memory(error):
        kind = OutOfMemoryError
        fix = "drop references to arrays, or compute in smaller pieces"
    if is_sticky(error):
        notes.append(f"{device} is lost, and what its memory held")
        fix = _LOST_FIX
    names = {step.name for step in suspects}
    message = f"{device}: {f'{names.pop()}: ' if len(names) == 1 else ''}{reason_of(error)}"
    if len(suspects) > 1:
        notes += [f"one of {len(suspects)} launches failed that were queued together:"]
        notes += [f"  {_line(step)}" for step in suspects[:_SHOWN]]
        notes += ["  …"] if len(suspects) > _SHOWN else []
        fix = f"{_WHICH_FIX}; {fix}" if fix else _WHICH_FIX
    result = kind(message, notes=tuple(notes), fix=fix)
    if len(suspects) == 1:
        attach_step(result, suspects[0])
    elif suspects:
        result.location = suspects[0].location
    return result


def attach_step(
    error: BringupError, step: Step
) -> None:  # pragma: no cover on cuda-emulated - only drivers
    """Point an error at the step that it is about."""
    if isinstance(error, DeviceError):
        error.step = step
    error.location = error.location or step.location
    error.instruction = error.instruction or step_text(step)


def lost_error(device: str, first: BaseException) -> DeviceLostError:
    """The error of every call of a device that is lost.  first: the error that lost it."""
    if isinstance(first, Forked):  # pragma: no cover - only children of a fork
        return DeviceLostError(
            f"{device} was opened before this process was forked, and is its parent's alone",
            notes=("CUDA does not work in a child of fork",),
            fix=_FORK_FIX,
        )
    if isinstance(first, Closed):
        return DeviceLostError(f"{device} is closed", fix=_CLOSED_FIX)
    return DeviceLostError(  # pragma: no cover on cuda-emulated - only drivers
        f"{device} is lost",
        notes=(f"it was lost by: {reason_of(first)}",),
        fix=_LOST_FIX,
    )


def load_error(
    error: BaseException, log: str, source: str
) -> CompileError:  # pragma: no cover on cuda-emulated - only drivers
    """The error for code that the driver refuses to load."""
    reason = "it gives no reason" if isinstance(error, UnicodeDecodeError) else reason_of(error)
    return CompileError(
        f"the driver loads the program's code not: {reason}", log=log, source=source
    )


def _line(step: Any) -> str:  # pragma: no cover on cuda-emulated - only drivers
    return f"{step.name} at {step.location}" if step.location is not None else step.name


def leak(thing: object) -> None:
    """Never free an object of pycuda, not even when the interpreter ends.

    Destructors of pycuda make the context current.  Where the driver refuses that, for instance in
    a child of fork, pycuda ends the process; where it refuses the rest, pycuda writes a warning for
    each object.  So objects of a lost device live until the process ends, when the driver frees
    their memory.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))

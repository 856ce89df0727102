"""What a vendor's code raises, as errors of ours."""

from __future__ import annotations

import signal
import traceback
from types import CodeType, TracebackType

from bringup.errors import (
    BringupError,
    DeviceError,
    DeviceTimeoutError,
    OutOfMemoryError,
    UnsupportedError,
)

REPORT = "report this to the backend's authors"

# What a vendor's Python code raises when it means one of ours.
_MEANINGS: tuple[tuple[type[Exception], type[BringupError]], ...] = (
    (MemoryError, OutOfMemoryError),
    (TimeoutError, DeviceTimeoutError),
    (NotImplementedError, UnsupportedError),
)


def error_class_for(error: Exception) -> type[BringupError]:
    """The class of ours that says what a foreign exception does."""
    return next((ours for theirs, ours in _MEANINGS if isinstance(error, theirs)), DeviceError)


def describe_error(error: Exception) -> str:
    """A foreign exception as text: its class and message."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def is_vendor_error(error: BaseException) -> bool:
    """True if a vendor's code raised it: not one of ours, and not of a signal handler.

    A handler runs between any two steps of Python, also of a backend. What it raises ends the
    program's own wait, `TimeoutError` of an alarm for one, and says nothing about a device.
    """
    if isinstance(error, BringupError) or not isinstance(error, Exception):
        return False
    handlers = _handlers()
    frames = traceback.walk_tb(error.__traceback__)
    return not handlers or all(frame.f_code not in handlers for frame, _ in frames)


def _handlers() -> set[CodeType]:
    """The code of every signal handler that is written in Python."""
    found = set()
    for handler in map(signal.getsignal, signal.valid_signals()):
        if callable(handler):  # neither the default, nor to be ignored, nor unknown
            function = getattr(handler, "func", handler)  # of a functools.partial
            for place in (function, type(function).__call__):
                code = getattr(place, "__code__", None)
                if isinstance(code, CodeType):
                    found.add(code)
    return found


class vendor_call:  # noqa: N801  (a context manager, read as a verb)
    """Inside the block every exception that is none of ours becomes one, and names the method.

    One of ours gets the method as its ``call``, unless a call inside that one raised it.
    owner: the vendor's object.
    method: its method called inside.
    kind: the class of what is none of ours; by default as its own class says.
    """

    __slots__ = ("_kind", "_method", "_owner")

    def __init__(self, owner: object, method: str, kind: type[BringupError] | None = None) -> None:
        self._owner = owner
        self._method = method
        self._kind = kind

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, BringupError):
            error.call = error.call or self._method
        elif isinstance(error, Exception) and is_vendor_error(error):
            what = f"{type(self._owner).__name__}.{self._method}: {describe_error(error)}"
            raised = (self._kind or error_class_for(error))(what, fix=REPORT)
            raised.call = self._method
            raise raised from error

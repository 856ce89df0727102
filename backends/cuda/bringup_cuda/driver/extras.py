"""What pycuda's releases lack, by the driver's C library: captured graphs, waits of streams that
other libraries made, copies between devices.

pycuda 2026.1 has no stream capture, takes no stream but its own, and its ``memcpy_peer_async``
reads its two contexts the wrong way round.  Handles are shared: ``stream.handle`` and
``context.handle`` are what the driver knows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from bringup_cuda.driver import protocol
from bringup_cuda.driver.discovery import LIBRARY

#: ``CU_STREAM_CAPTURE_MODE_RELAXED``, as in cuda.h.  In the other modes a call that frees memory
#: ends the capture, and the garbage collector frees what it likes when it likes, other libraries'
#: memory too.
RELAXED = 2
#: ``CU_EVENT_DISABLE_TIMING``.
NO_TIMING = 2


class DriverGraph:  # pragma: no cover on cuda-emulated - only drivers
    """A captured graph of the real driver."""

    def __init__(self, extras: DriverExtras, handle: int) -> None:
        self._extras = extras
        self._handle = ctypes.c_void_p(handle)
        self._launch = extras.function("cuGraphLaunch")
        self._stream: tuple[Any, ctypes.c_void_p] = (None, ctypes.c_void_p())

    def launch(self, stream: Any) -> None:
        """See `protocol.Graph`."""
        of, handle = self._stream
        if of is not stream:
            _, handle = self._stream = stream, ctypes.c_void_p(stream.handle)
        status = self._launch(self._handle, handle)
        if status:
            raise self._extras.error("cuGraphLaunch", status)

    def free(self) -> None:
        """See `protocol.Graph`."""
        self._extras.call("cuGraphExecDestroy", self._handle)


class DriverExtras:  # pragma: no cover on cuda-emulated - only drivers
    """`protocol.Extras` of NVIDIA's driver.

    driver: whose error classes are raised.  load: opens a C library by name.
    """

    def __init__(self, driver: protocol.Driver, load: Callable[[str], Any] = ctypes.CDLL) -> None:
        self._driver = driver
        self._library = load(LIBRARY)

    def begin_capture(self, stream: Any) -> None:
        """See `protocol.Extras`."""
        self.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.handle), RELAXED)

    def end_capture(self, stream: Any) -> DriverGraph:
        """See `protocol.Extras`."""
        graph, made = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuStreamEndCapture", ctypes.c_void_p(stream.handle), ctypes.byref(graph))
        try:
            self.call(
                "cuGraphInstantiateWithFlags", ctypes.byref(made), graph, ctypes.c_ulonglong(0)
            )
        finally:
            self.call("cuGraphDestroy", graph)
        return DriverGraph(self, made.value or 0)

    def make_wait(self, waiting: int, stream: Any) -> None:
        """See `protocol.Extras`."""
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), NO_TIMING)
        try:
            self.call("cuEventRecord", event, ctypes.c_void_p(stream.handle))
            self.call("cuStreamWaitEvent", ctypes.c_void_p(waiting), event, 0)
        finally:
            # Whoever waits for it goes on waiting.
            self.call("cuEventDestroy_v2", event)

    def memcpy_peer_async(
        self,
        dest: int,
        dest_context: Any,
        src: int,
        src_context: Any,
        size: int,
        stream: Any,
    ) -> None:
        """See `protocol.Extras`."""
        self.call(
            "cuMemcpyPeerAsync",
            ctypes.c_ulonglong(dest),
            ctypes.c_void_p(dest_context.handle),
            ctypes.c_ulonglong(src),
            ctypes.c_void_p(src_context.handle),
            ctypes.c_size_t(size),
            ctypes.c_void_p(stream.handle),
        )

    def call(self, name: str, *args: Any) -> None:
        """Call a function of the library.  Raises what pycuda would."""
        status = self.function(name)(*args)
        if status:
            raise self.error(name, status)

    def function(self, name: str) -> Callable[..., int]:
        """A function of the library; it returns a status."""
        found: Callable[..., int] = getattr(self._library, name)
        return found

    def error(self, name: str, status: int) -> Exception:
        """What pycuda would raise for a status that a function returned."""
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(status, ctypes.byref(text))
        said = text.value.decode() if text.value else f"error {status}"
        kind = self._driver.MemoryError if status == _OUT_OF_MEMORY else self._driver.LogicError
        return kind(f"{name} failed: {said}")


_OUT_OF_MEMORY = 2

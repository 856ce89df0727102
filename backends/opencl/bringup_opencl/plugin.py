"""The two hooks under the entry point ``opencl``; no driver is looked for before devices are."""

from __future__ import annotations

from bringup.backend import Backend, Handshake, hookimpl


@hookimpl
def bringup_handshake() -> Handshake:
    """Written against level 1 of the seam and opset 1."""
    return Handshake(api=(1, 1), opset=(1, 1))


@hookimpl
def bringup_backend() -> Backend:
    """The backend, whose source can be looked at without a driver."""
    from bringup_opencl.backend import OpenCLBackend

    return OpenCLBackend()

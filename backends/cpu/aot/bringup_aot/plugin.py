"""The two hooks under the entry point ``aot``."""

from __future__ import annotations

from bringup.backend import Backend, Handshake, hookimpl


@hookimpl
def bringup_handshake() -> Handshake:
    """Written against level 1 of the seam and opset 1."""
    return Handshake(api=(1, 1), opset=(1, 1))


@hookimpl
def bringup_backend() -> Backend:
    """The backend; nothing is linked yet."""
    from bringup_aot.device import AotBackend

    return AotBackend()

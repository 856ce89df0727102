"""The plugin: what the entry point names.  Loads no LLVM."""

from __future__ import annotations

from bringup.backend import API_LEVEL, OPSET, Backend, Handshake, hookimpl
from bringup_cpu.backend import CpuBackend


@hookimpl
def bringup_handshake() -> Handshake:
    """The seam and the op table of the distribution this backend comes in."""
    return Handshake(api=(API_LEVEL, API_LEVEL), opset=(OPSET, OPSET))


@hookimpl
def bringup_backend() -> Backend:
    """The one backend of this plugin."""
    return CpuBackend()

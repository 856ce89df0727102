"""The plugin of ``template-program``."""

from __future__ import annotations

from bringup.backend import Backend, Handshake, hookimpl
from bringup_template.plugins.common import HANDSHAKE, KernelsBackend


@hookimpl
def bringup_handshake() -> Handshake:
    """Called before all else."""
    return HANDSHAKE


@hookimpl
def bringup_backend() -> Backend:
    """Touches no device, and imports no driver."""
    return KernelsBackend("template-program", "bringup_template.program_device:ProgramTemplate")

"""The plugin of ``template-program``."""

from __future__ import annotations

from bringup.backend import Backend, Handshake, hookimpl
from bringup_template.plugins.common import HANDSHAKE, KernelsBackend
from bringup_template.program_device import ProgramTemplate


@hookimpl
def bringup_handshake() -> Handshake:
    """Called before all else."""
    return HANDSHAKE


@hookimpl
def bringup_backend() -> Backend:
    """Touches no device."""
    return KernelsBackend("template-program", ProgramTemplate)

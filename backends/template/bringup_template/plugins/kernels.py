"""The plugin of ``template-kernels``."""

from __future__ import annotations

from bringup.backend import Backend, Handshake, hookimpl
from bringup_template.kernels_device import KernelsTemplate
from bringup_template.plugins.common import HANDSHAKE, KernelsBackend


@hookimpl
def bringup_handshake() -> Handshake:
    """Called before all else."""
    return HANDSHAKE


@hookimpl
def bringup_backend() -> Backend:
    """Touches no device."""
    return KernelsBackend("template-kernels", KernelsTemplate)

"""The two hooks of each machine, under the entry points ``aot-NAME``."""

from __future__ import annotations

from bringup.backend import Backend, Handshake, hookimpl
from bringup_aot.machines import MACHINES, Machine


class Plugin:
    """A machine as a plugin."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @hookimpl
    def bringup_handshake(self) -> Handshake:
        """Written against level 1 of the seam and opset 1."""
        return Handshake(api=(1, 1), opset=(1, 1))

    @hookimpl
    def bringup_backend(self) -> Backend:
        """The backend; nothing is linked yet."""
        from bringup_aot.device import AotBackend

        return AotBackend(self.machine)


x86_64, aarch64, riscv64, riscv64v, wasm32, cortex_m4 = map(Plugin, MACHINES)

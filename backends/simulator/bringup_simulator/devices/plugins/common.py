"""What the plugin modules share: the backends' description, and kernels as text."""

from __future__ import annotations

from pkgutil import resolve_name

from bringup.backend import Device, DeviceInfo, Handshake, Lowered, Program, SimpleBackend
from bringup_simulator import Accelerator, compile_kernel

HANDSHAKE = Handshake(api=(1, 1), opset=(1, 1))
_DEVICES = [DeviceInfo(index, "simulated accelerator") for index in range(2)]


class SimulatorBackend(SimpleBackend):
    """A backend of simulated devices; device: ``module:Class``, imported when first needed."""

    def __init__(self, name: str, device: str) -> None:
        def open_(index: int) -> Device:
            opened: Device = resolve_name(device)(Accelerator(index=index))
            return opened

        super().__init__(name, open_, lambda: resolve_name(device).capabilities, _DEVICES)


class KernelsBackend(SimulatorBackend):
    """A backend whose kernels can be looked at without a device."""

    def lower(self, program: Program, target: str = "") -> Lowered:
        """The kernels in the chip's language, and what the chip's compiler makes of them."""
        from bringup_simulator.devices.driver import reported
        from bringup_simulator.devices.render import render

        texts = [(render(kernel), kernel.name) for kernel in dict.fromkeys(program.kernels)]
        with reported():
            listings = [compile_kernel(*text).listing for text in texts]
        return Lowered("\n".join(text for text, _ in texts), "\n\n".join(listings))

"""What the plugin modules share: the backends' description, and kernels as text."""

from __future__ import annotations

from bringup.backend import DeviceInfo, Handshake, Lowered, SimpleBackend
from bringup.program.program import Program
from bringup_template.driver import Chip
from bringup_template.render import render
from bringup_template.simulator import Accelerator

#: The seam levels and opsets this distribution was written for.
HANDSHAKE = Handshake(api=(1, 1), opset=(1, 1))

_INFOS = tuple(DeviceInfo(index, "simulated accelerator") for index in range(2))


class TemplateBackend(SimpleBackend):
    """A backend of simulated devices, each opened by ``device(chip)``."""

    def __init__(self, name: str, device: type[Chip]) -> None:
        super().__init__(
            name, lambda index: device(Accelerator(index=index)), device.capabilities, _INFOS
        )


class KernelsBackend(TemplateBackend):
    """A backend whose kernels can be looked at without a device."""

    def lower(self, program: Program, target: str = "") -> Lowered:
        """The kernels as bringup forms them, and the instructions of their images."""
        kernels = dict.fromkeys(program.kernels)
        source = "\n\n".join(map(str, kernels))
        return Lowered(source, "\n".join(render(kernel).listing() for kernel in kernels))

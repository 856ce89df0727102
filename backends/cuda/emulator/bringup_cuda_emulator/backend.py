"""NVIDIA GPUs that are emulated on the host, as a backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bringup.backend import Capabilities, Device, DeviceInfo
from bringup_cuda.backend import CudaBackend, device_name
from bringup_cuda.driver import protocol

#: The architecture that emulated devices have: what an H100 is given.
EMULATED = "sm_90a"
#: How many of them there are: programs for several devices can be tried anywhere.
EMULATED_COUNT = 2


class EmulatedBackend(CudaBackend):
    """The same as for GPUs; the driver is an emulator, which runs kernels on the host's CPUs."""

    name = "cuda-emulated"

    def devices(self) -> Sequence[DeviceInfo]:
        """Always there."""
        product = f"emulated GPU ({EMULATED})"
        return tuple(DeviceInfo(index, product) for index in range(EMULATED_COUNT))

    def capabilities(self, target: str = "") -> Capabilities:
        """Those of the architecture, marked as simulated."""
        return replace(super().capabilities(target), simulated=True)

    def open(self, index: int) -> Device:
        """Open an emulated GPU."""
        from bringup_cuda.runtime.device import CudaDevice

        name, capabilities = device_name(self.name, index), self.capabilities()
        return CudaDevice(emulated_library(), index, name, capabilities, EMULATED)

    def _meant(self, target: str) -> str:
        return target or EMULATED


def emulated_library() -> protocol.Library:
    """The emulator as a driver."""
    from bringup_cuda_emulator import driver

    # Its memory is the host's: ``kDLCPU``.
    return protocol.Library(driver, driver.extras, "llvm", 1, survives_errors=True)

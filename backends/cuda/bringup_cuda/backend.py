"""The backend object: what is there, what it could do, and a plain refusal to open it."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.backend import Backend, Capabilities, Device, DeviceInfo, Lowered, NoHardware
from bringup.program.program import Program
from bringup_cuda.driver import find_gpus
from bringup_cuda.targets import capabilities_of


class CudaBackend(Backend):
    """NVIDIA GPUs.  Describes architectures; opens no device in this version."""

    name = "cuda"

    def devices(self) -> Sequence[DeviceInfo]:
        """Raises NoHardware: with what is missing, or because nothing here opens the GPU found."""
        found = ", ".join(f"{gpu.product} ({gpu.architecture})" for gpu in find_gpus())
        raise NoHardware(f"{found} is present, but this version of bringup-cuda opens no device")

    def capabilities(self, target: str = "") -> Capabilities:
        """Capabilities of an architecture such as ``sm_90``; of the oldest one without a target."""
        return capabilities_of(target)

    def open(self, index: int) -> Device:
        """Raises NoHardware, with the reason `devices` gives."""
        self.devices()
        raise AssertionError("devices always raises")

    def lower(self, program: Program, target: str = "") -> Lowered:
        """LLVM IR and PTX for an architecture; needs no GPU.  Raises UnsupportedError,
        CompileError.
        """
        from bringup_cuda.lower import lower

        return lower(program, target)

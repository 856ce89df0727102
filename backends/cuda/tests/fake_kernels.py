"""Devices over the fake driver, whose launches do what the kernels they were made of say."""

from __future__ import annotations

from typing import Any

import pytest
from fake_driver import FakeDriver, FakeExtras

from bringup.backend import DeviceInfo
from bringup.kernel.evaluate import evaluate_kernel
from bringup.program.program import KernelStep
from bringup.runtime.devices import OpenDevice
from bringup_cuda.backend import CudaBackend
from bringup_cuda.codegen import lower
from bringup_cuda.codegen.commands import Translated
from bringup_cuda.driver import protocol
from bringup_cuda.runtime.device import CudaDevice

_translate = lower.translate


class Interpreter:
    """Remembers the kernels of every program that is compiled, and runs them when launched."""

    def __init__(self) -> None:
        self.steps: dict[tuple[bytes, str], KernelStep] = {}

    def translate(self, program: Any, target: str = "") -> Translated:
        """`bringup_cuda.codegen.lower.translate`, looked at."""
        made = _translate(program, target)
        for launch in made.launches:
            assert isinstance(launch.step, KernelStep)
            assert launch.arguments == launch.step.slots
            self.steps[made.text.encode(), launch.kernel.name] = launch.step
        return made

    def run(self, driver: FakeDriver, image: bytes, name: str, args: tuple[int, ...]) -> None:
        """The kernel of that name, on memory of the driver."""
        step = self.steps[image.removesuffix(b"\0"), name]
        arrays = [
            driver.bytes_at(address, slot.type.nbytes)
            .view(slot.type.dtype.numpy)
            .reshape(slot.type.shape)
            for address, slot in zip(args, step.slots, strict=True)
        ]
        evaluate_kernel(step.kernel, arrays)


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> Interpreter:
    """Every program compiled meanwhile can be interpreted."""
    made = Interpreter()
    monkeypatch.setattr(lower, "translate", made.translate)
    return made


def opened(
    driver: FakeDriver, *, graphs: bool = True, index: int = 0, dlpack: int = 0
) -> OpenDevice:
    """A device over the fake driver."""
    fake: Any = driver
    extras: Any = FakeExtras(driver) if graphs else None
    backend = CudaBackend()
    name = f"cuda:{index}" if index else "cuda"
    device = CudaDevice(
        protocol.Library(fake, extras, "llvm", dlpack),
        index,
        name,
        backend.capabilities("sm_90"),
        "sm_90",
    )
    return OpenDevice("cuda", index, backend, device, DeviceInfo(index, "fake"))


def device_of(open_: OpenDevice) -> CudaDevice:
    """The device inside."""
    assert isinstance(open_.device, CudaDevice)
    return open_.device


__all__ = ["Interpreter", "device_of", "interpreter", "opened"]

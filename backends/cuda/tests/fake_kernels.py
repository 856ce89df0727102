"""What launches of the fake driver do: the reference run of the kernel they were made of."""

from __future__ import annotations

from typing import Any

from fake_driver import FakeDriver

from bringup.kernel.evaluate import evaluate_kernel
from bringup.program.program import KernelStep
from bringup_cuda import surface
from bringup_cuda.commands import Translated
from bringup_cuda.device import CudaDevice
from bringup_cuda.lower import translate


class Interpreter:
    """Remembers the kernels of every program that is compiled, and runs them when launched."""

    def __init__(self) -> None:
        self.steps: dict[str, KernelStep] = {}

    def translate(self, program: Any, target: str = "") -> Translated:
        """`bringup_cuda.lower.translate`, looked at."""
        made = translate(program, target)
        for launch in made.launches:
            step = launch.step
            assert isinstance(step, KernelStep)
            assert launch.arguments == step.slots, "the reference knows whole kernels alone"
            self.steps[launch.kernel.name] = step
        return made

    def run(self, driver: FakeDriver, name: str, args: tuple[int, ...]) -> None:
        """The kernel of that name, on memory of the driver."""
        step = self.steps[name]
        arrays = [
            driver.bytes_at(address, slot.type.nbytes).view(slot.type.dtype.numpy)
            for address, slot in zip(args, step.slots, strict=True)
        ]
        shaped = [a.reshape(s.type.shape) for a, s in zip(arrays, step.slots, strict=True)]
        evaluate_kernel(step.kernel, shaped)


def library(driver: FakeDriver, extras: Any = None) -> surface.Library:
    """The fake driver as the runtime takes it."""
    fake: Any = driver
    return surface.Library(fake, extras, "llvm")


__all__ = ["CudaDevice", "Interpreter", "library"]

"""How long a device takes for a program, and for one step of a program, on inputs made up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from bringup.backend.device import Executable
from bringup.program.program import KernelStep, OpStep, Program, Slot, Space
from bringup.runtime import async_errors, transfer
from bringup.runtime.devices import OpenDevice
from bringup.types import TensorType


class Timer:
    """Runs programs of the same types on a device, and counts seconds.

    The arguments are normal floats, and zeros of other dtypes, which are indices of everything.
    """

    def __init__(
        self,
        device: OpenDevice,
        inputs: Sequence[TensorType],
        outputs: Sequence[TensorType],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.device, self.outputs, self.clock = device.device, outputs, clock
        self.inputs = [transfer.upload(device.device, _elements(type_)) for type_ in inputs]

    def seconds(self, executable: Executable, count: int = 1) -> float:
        """Of so many runs in a row, until the device has done them."""
        transfer.wait(self.device, None)  # whose errors are others' too
        start = self.clock()
        for _ in range(count):
            transfer.execute(self.device, executable, self.inputs, len(self.outputs))
        async_errors.synchronize(self.device)
        return self.clock() - start

    def results(self, executable: Executable) -> list[bytes]:
        """What one run gives."""
        made = transfer.execute(self.device, executable, self.inputs, len(self.outputs))
        pairs = zip(made, self.outputs, strict=True)
        return [transfer.download(self.device, b, t).tobytes() for b, t in pairs]


def step_alone(step: KernelStep | OpStep) -> Program:
    """A program of one step, whose operands are inputs and whose results are outputs."""
    if isinstance(step, KernelStep):
        roles: Sequence[str] = step.roles
    else:
        roles = ["in"] * len(step.operands) + ["out"] * len(step.results)
    types: dict[str, list[TensorType]] = {"in": [], "out": []}
    slots = []
    for role, slot in zip(roles, step.slots, strict=True):
        space: Space = "input" if role == "in" else "output"
        slots.append(Slot(space, len(types[role]), 0, slot.type))
        types[role].append(slot.type)
    if isinstance(step, KernelStep):
        moved: KernelStep | OpStep = replace(step, slots=tuple(slots))
    else:
        count = len(step.operands)
        moved = replace(step, operands=tuple(slots[:count]), results=tuple(slots[count:]))
    return Program(step.name, tuple(types["in"]), tuple(types["out"]), (moved,))


def _elements(type_: TensorType) -> transfer.Host:
    if type_.dtype.kind not in ("float", "complex"):
        return np.zeros(type_.shape, type_.dtype.numpy)
    normal = np.random.default_rng(0).standard_normal(type_.shape)
    return normal.astype(type_.dtype.numpy)


__all__ = ["Timer", "step_alone"]

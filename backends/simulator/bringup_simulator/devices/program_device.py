"""Depth 3: take whole programs, whose steps are queued in order."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Sequence

from bringup.backend import KernelStep, Program, located
from bringup_simulator import Accelerator, Binding, Handle, SimulatorError
from bringup_simulator.devices.driver import Chip, reported
from bringup_simulator.devices.kernels_device import CAPABILITIES
from bringup_simulator.devices.render import render


class ProgramSimulator(Chip):
    """The chip as a device of programs."""

    # What the renderer can render.  With no ops beside kernels, every step is a launch.
    capabilities = CAPABILITIES

    def compile(self, program: Program) -> Executable:
        """Once for each program."""
        return Executable(self.chip, program)


class Executable:
    """A loaded program.  Its calls share kernels and constants; all other memory is their own."""

    def __init__(self, chip: Accelerator, program: Program) -> None:
        self.chip, self.program = chip, program
        self.aliases = dict(program.aliases)
        self.steps = [step for step in program.steps if isinstance(step, KernelStep)]
        self.kernels = []
        for step in self.steps:
            with reported(step):
                self.kernels.append(chip.load(render(step.kernel), step.kernel.name))
        self.constants: list[Handle] = []
        weakref.finalize(self, _free, chip, self.constants)
        for literal in program.constants:
            with reported():
                self.constants.append(chip.alloc(literal.type.nbytes))
                chip.upload(self.constants[-1], literal.array())

    @reported()
    def __call__(self, inputs: Sequence[Handle]) -> list[Handle]:
        """Queue every step and return; nothing has run yet."""
        owned = [inputs[i] for i in self.program.donated]
        outputs: list[Handle] = []
        try:
            for i, kind in enumerate(self.program.outputs):
                if i in self.aliases:  # written over a donated input
                    outputs.append(inputs[self.aliases[i]])
                    continue
                owned.append(self.chip.alloc(kind.nbytes))
                outputs.append(owned[-1])
            owned.append(self.chip.alloc(self.program.arena_bytes))
            spaces = {"input": inputs, "output": outputs, "constant": self.constants}
            spaces["arena"] = owned[-1:]
            for step, kernel in zip(self.steps, self.kernels, strict=True):
                bindings = [Binding(spaces[s.space][s.index], s.offset) for s in step.slots]
                self.chip.launch(kernel, bindings, tag=located(step))
        except BaseException:
            _free(self.chip, owned)
            raise
        # The chip keeps the memory until the queue is done with it.
        _free(self.chip, [handle for handle in owned if handle not in outputs])
        return outputs


def _free(chip: Accelerator, handles: Iterable[Handle]) -> None:
    for handle in handles:
        with contextlib.suppress(SimulatorError):  # a lost device has lost its memory too
            chip.free(handle)

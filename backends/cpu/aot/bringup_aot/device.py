"""A device whose programs are libraries made ahead of time, each run in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bringup.aot.weights import HeldArray, embedded
from bringup.backend import Backend, Capabilities, Device, DeviceInfo, NoHardware
from bringup.backend.link import Linked, LinkOptions, LinkUnit
from bringup.backend.registry import load
from bringup.errors import DeviceError
from bringup.program.program import Program
from bringup.types import TensorType
from bringup_aot.machines import MACHINES, Machine, compiler

Array = np.ndarray[Any, Any]
_SYMBOL = "model_run"


class AotBackend(Backend):
    """The machines, each a device of its own number."""

    name = "aot"

    def __init__(self) -> None:
        self.maker = load("cpu")

    def devices(self) -> Sequence[DeviceInfo]:
        """The machines that can be linked for and run.  Raises NoHardware if there is none."""
        found, reasons = [], []
        for index, machine in enumerate(MACHINES):
            try:
                linker = " ".join(compiler(machine))
            except NoHardware as reason:
                reasons.append(str(reason))
            else:
                found.append(DeviceInfo(index, machine.target, (("linker", linker),)))
        if not found:
            raise NoHardware("; ".join(reasons))
        return found

    def capabilities(self, target: str = "") -> Capabilities:
        """Those of a target; of the first machine by default."""
        return self.maker.capabilities(target or MACHINES[0].target)

    def open(self, index: int) -> Device:
        """Open a machine."""
        machine = MACHINES[index]
        return AotDevice(self.capabilities(machine.target), self.maker, machine)


class AotDevice(Device):
    """Memory of this process; a run of a program copies its arguments to the machine."""

    refcounted_handles = True

    def __init__(self, capabilities: Capabilities, maker: Backend, machine: Machine) -> None:
        self.capabilities = capabilities
        self.maker, self.machine = maker, machine

    def alloc(self, nbytes: int) -> Array:
        """Of any content."""
        return np.empty(nbytes, np.uint8)

    def free(self, handle: Array) -> None:
        """Python does it."""

    def upload(self, handle: Array, data: memoryview) -> None:
        """At once."""
        handle[: len(data)] = data

    def download(self, handle: Array, out: memoryview) -> None:
        """At once."""
        out[:] = handle[: len(out)].data

    def copy(self, target: Array, source: Array, nbytes: int) -> None:
        """At once."""
        target[:nbytes] = source[:nbytes]

    def synchronize(self) -> None:
        """Nothing is ever pending."""

    def compile(self, program: Program) -> AotExecutable:
        """Link a program."""
        literals = [literal for each in program.programs for literal in each.constants]
        held = [
            HeldArray(f"constant{n}", literal.type, np.ascontiguousarray(literal.array()).tobytes())
            for n, literal in enumerate(literals)
        ]
        weights, offsets = embedded(held)
        places = tuple(offsets[array.elements] for array in held)
        unit = LinkUnit(_SYMBOL, program, len(program.inputs), places)
        linked = self.maker.link([unit], weights, self.machine.target, LinkOptions())
        return AotExecutable(program, linked, self.machine)


class AotExecutable:
    """A linked program."""

    def __init__(self, program: Program, linked: Linked, machine: Machine) -> None:
        self.program, self.machine = program, machine
        self.arena_bytes = linked.arena_bytes[0]
        self.folder = TemporaryDirectory(prefix="bringup-aot-")  # removed with this object
        self.path = machine.link(linked.data, Path(self.folder.name))

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """Run it once."""
        program = self.program
        sizes = [type_.nbytes for type_ in (*program.inputs, *program.outputs)]
        head = [len(program.inputs), len(program.outputs), self.arena_bytes, *sizes]
        parts = [
            array[: type_.nbytes].tobytes()
            for array, type_ in zip(inputs, program.inputs, strict=True)
        ]
        written = self.machine.run(self.path, np.array(head, "<u8").tobytes() + b"".join(parts))
        status = int.from_bytes(written[:8], "little")
        if status:
            raise DeviceError(f"{_SYMBOL} returned {status}")
        outputs, at = [], 8
        for index, type_ in enumerate(program.outputs):
            found = np.frombuffer(written[at : at + type_.nbytes], np.uint8).copy()
            at += type_.nbytes
            outputs.append(self.placed(inputs, index, type_, found))
        return outputs

    def placed(self, inputs: Sequence[Array], index: int, type_: TensorType, found: Array) -> Array:
        """A result, in the memory of the donated input that it takes."""
        source = dict(self.program.aliases).get(index)
        if source is None:
            return found
        inputs[source][: type_.nbytes] = found
        return inputs[source]

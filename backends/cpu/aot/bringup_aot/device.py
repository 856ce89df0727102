"""A device whose programs are libraries made ahead of time, each run in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bringup.aot.weights import HeldArray, embedded
from bringup.backend import Backend, Capabilities, Device, DeviceInfo, Lowered
from bringup.backend.link import Linked, LinkOptions, LinkUnit
from bringup.backend.registry import load
from bringup.errors import DeviceError
from bringup.program.program import Program
from bringup.types import TensorType
from bringup_aot.machines import Machine, compiler

Array = np.ndarray[Any, Any]
_SYMBOL = "model_run"


class AotBackend(Backend):
    """A machine as a device."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.name = f"aot-{machine.name}"
        self.maker = load("cpu")

    def devices(self) -> Sequence[DeviceInfo]:
        """The machine.  Raises NoHardware where its emulator or a linker is missing."""
        return (
            DeviceInfo(0, self.machine.target, (("linker", " ".join(compiler(self.machine))),)),
        )

    def capabilities(self, target: str = "") -> Capabilities:
        """Those of the target."""
        return self.maker.capabilities(self.machine.target)

    def open(self, index: int) -> Device:
        """Open the machine."""
        return AotDevice(self.capabilities(), self)

    def lower(self, program: Program, target: str = "") -> Lowered:
        """As for the processor that is there."""
        return self.maker.lower(program, "")


class AotDevice(Device):
    """Memory of this process; a run of a program copies its arguments to the machine."""

    refcounted_handles = True

    def __init__(self, capabilities: Capabilities, backend: AotBackend) -> None:
        self.capabilities = capabilities
        self.backend = backend

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
        backend = self.backend
        linked = backend.maker.link([unit], weights, backend.machine.target, LinkOptions())
        return AotExecutable(program, linked, backend.machine)


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

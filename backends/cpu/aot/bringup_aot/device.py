"""A device whose programs are libraries made ahead of time, in processes beside this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import numpy as np

from bringup.aot.interface import Function, members
from bringup.aot.library import Library, make_library
from bringup.aot.weights import constants_of
from bringup.api.exporting import backend_of
from bringup.backend import Backend, Capabilities, Device, DeviceInfo, NoHardware
from bringup.backend.link import LinkOptions
from bringup.errors import DeviceError
from bringup.program.program import Program
from bringup_aot.machines import MACHINES, Machine, compiler
from bringup_aot.running import Running

Array = np.ndarray[Any, Any]
_NAME, _SYMBOL = "model", "model_run"


class AotBackend(Backend):
    """The machines, each a device of its own number."""

    name = "aot"

    def devices(self) -> Sequence[DeviceInfo]:
        """The machines that can be linked for and run.  Raises NoHardware if there is none."""
        found, reasons = [], []
        for index, machine in enumerate(MACHINES):
            try:
                linker = " ".join(compiler(machine))
            except NoHardware as reason:
                reasons.append(str(reason))
            else:
                found.append(DeviceInfo(index, machine.product, (("linker", linker),)))
        if not found:
            raise NoHardware("; ".join(reasons))
        return found

    def capabilities(self, target: str = "") -> Capabilities:
        """Those of a target, of the first machine by default.  Results have memory of their own."""
        maker, architecture = backend_of(target or MACHINES[0].target)
        return replace(maker.capabilities(architecture), donation=False)

    def open(self, index: int) -> Device:
        """Open a machine."""
        machine = MACHINES[index]
        return AotDevice(self.capabilities(machine.target), machine)


class AotDevice(Device):
    """Memory of this process; a run of a program copies its arguments to the machine."""

    refcounted_handles = True

    def __init__(self, capabilities: Capabilities, machine: Machine) -> None:
        self.capabilities, self.machine = capabilities, machine
        self._lock = Lock()
        # The program that was called last waits for more calls; no other one runs.
        self._last: tuple[Path, Running] | None = None

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
        """Make a library of a program, and link it."""
        arguments, results = (
            members((f"{kind}{n}" for n in range(len(types))), types)
            for kind, types in (("x", program.inputs), ("y", program.outputs))
        )
        function = Function(
            _NAME, _SYMBOL, program, arguments, results, tuple(constants_of(program, _SYMBOL))
        )
        maker, target = backend_of(self.machine.target)
        library = make_library(_NAME, [function], maker, target, options=LinkOptions())
        return AotExecutable(program, library, self)

    def call(self, path: Path, data: bytes, size: int) -> bytes:
        """What a linked program writes, of what it reads.  Raises DeviceError."""
        with self._lock:
            if self._last is None or self._last[0] != path:
                self._stop()
                self._last = path, self.machine.start(path)
            try:
                return self._last[1].call(data, size)
            except BaseException:
                self._stop()
                raise

    def _stop(self) -> None:
        if self._last is not None:
            self._last[1].stop()
        self._last = None


class AotExecutable:
    """A linked program."""

    def __init__(self, program: Program, library: Library, device: AotDevice) -> None:
        self.program, self.device = program, device
        self.arena_bytes = library.arena_bytes[_SYMBOL]
        self.folder = TemporaryDirectory(prefix="bringup-aot-")  # removed with this object
        self.path = device.machine.link(library, Path(self.folder.name))

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """Run it once."""
        program = self.program
        sizes = [type_.nbytes for type_ in (*program.inputs, *program.outputs)]
        head = [len(program.inputs), len(program.outputs), self.arena_bytes, *sizes]
        parts = [
            array[: type_.nbytes].tobytes()
            for array, type_ in zip(inputs, program.inputs, strict=True)
        ]
        data = np.array(head, "<u8").tobytes() + b"".join(parts)
        size = 8 + sum(type_.nbytes for type_ in program.outputs)
        written = self.device.call(self.path, data, size)
        status = int.from_bytes(written[:8], "little")
        if status:
            raise DeviceError(f"{_SYMBOL} returned {status}")
        outputs, at = [], 8
        for type_ in program.outputs:
            outputs.append(np.frombuffer(written[at : at + type_.nbytes], np.uint8).copy())
            at += type_.nbytes
        return outputs

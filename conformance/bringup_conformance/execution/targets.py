"""What the suite runs programs on: anything that compiles a graph and calls it on arrays of the
host.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Protocol

import numpy as np

from bringup.backend.capabilities import Capabilities
from bringup.backend.device import Backend, Device, Executable
from bringup.backend.vendor_errors import vendor_call
from bringup.errors import UnsupportedError
from bringup.graph import Graph
from bringup.integers import round_up
from bringup.passes.pipeline import passes_for
from bringup.program.program import Program
from bringup.runtime import transfer
from bringup.runtime.compiler import Options, compile_graph, executable_of, graph_passes
from bringup.runtime.devices import OpenDevice, get
from bringup.types import TensorType
from bringup_conformance.execution import heartbeat
from bringup_conformance.execution.cost import Cost
from bringup_conformance.oracle.numbers import Array, same_bits

#: A compiled program on arrays of the host.
Runnable = Callable[[Sequence[Array]], list[Array]]


#: Results and arenas of at most this many bytes are poisoned before every call.
_POISONED_BYTES = 1 << 14


# Operands and results of at most this many bytes are looked at for memory that they share.
_COMPARED_BYTES = 1 << 20
# What operands are overwritten with: the byte tells whose memory a result is in.
_FIRST_BYTE, _BYTES = 0xC3, 256


class SharedMemoryError(Exception):
    """A result of a program lies in the memory of an operand, which may change after the call."""


#: The message of a `SharedMemoryError`, from the numbers of the result and of the operand, which is
#: None if it is not known which.
Describe = Callable[[int, int | None], str]


class Target(Protocol):
    """A device under test."""

    @property
    def name(self) -> str:
        """What a user asks for it by."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """Its declaration."""
        ...

    @property
    def passes(self) -> tuple[str, ...]:
        """Names of the passes that can be left out one by one."""
        ...

    def missing(self, graph: Graph) -> str | None:
        """Why the device cannot run a graph by its own declaration, or None if it should."""
        ...

    def compile(
        self,
        graph: Graph,
        *,
        fuse: bool = True,
        skip: frozenset[str] = frozenset(),
        optimize: bool = True,
    ) -> Runnable:
        """A program to call.  fuse: False makes one launch of every instruction.  skip: passes left
        out.  optimize: False asks for code in little time that may be slow.
        """
        ...


class DeviceTarget:
    """An opened device, through the seam that user code goes through."""

    def __init__(self, device: OpenDevice) -> None:
        self.device = device
        #: What the programs that `compile` made cost so far.
        self.cost = Cost()

    @classmethod
    def named(cls, name: str) -> DeviceTarget:
        """Open ``"name"`` or ``"name:index"``.  Raises BackendError."""
        with heartbeat.phase("opening"):
            device = get(name)
        heartbeat.instrument(device.device)
        return cls(device)

    @classmethod
    def of(cls, backend: Backend, index: int = 0) -> DeviceTarget:
        """A device of a backend at hand, opened for this target alone; no plugin is needed."""
        info = next(each for each in backend.devices() if each.index == index)
        return cls(OpenDevice(backend.name, index, backend, backend.open(index), info))

    @property
    def name(self) -> str:
        """The device's."""
        return self.device.name

    @property
    def capabilities(self) -> Capabilities:
        """The device's."""
        return self.device.capabilities

    @property
    def passes(self) -> tuple[str, ...]:
        """Those that can be left out, all but decomposition."""
        every = graph_passes(self.capabilities, self.device.backend)
        names = (each.name for each in every if not each.required)
        # Without decomposition a device may lack what it is then given.
        return tuple(dict.fromkeys(name for name in names if name != "decompose"))

    def missing(self, graph: Graph) -> str | None:
        """The reason of the decomposition that finds no way, in one line."""
        return missing_from(self.capabilities, graph)

    def compile(
        self,
        graph: Graph,
        *,
        fuse: bool = True,
        skip: frozenset[str] = frozenset(),
        optimize: bool = True,
    ) -> Runnable:
        """The arrays that the program is called on hold afterwards what it left in its inputs.

        Before each launch, memory that the device has in store for small results and scratch is
        filled with 0xFF, so that what is read before it is written shows, and shows again.
        After the first, inputs are overwritten, so that results in their memory show.
        Raises SharedMemoryError, and what the device raises.
        """
        start, cpu_start = time.perf_counter(), _cpu_seconds()
        with heartbeat.phase("compiling"):
            options = Options(fuse=fuse, skip=skip, optimize=optimize)
            compiled = compile_graph(graph, self.device, options=options)
        compiling, busy = time.perf_counter() - start, _cpu_seconds() - cpu_start
        self.cost += Cost(compiling=compiling)
        assert compiled.executable is not None
        output_types = [v.type for v in graph.outputs]
        input_types = [v.type for v in graph.inputs]
        sizes = [t.nbytes for t in output_types] + [p.arena_bytes for p in compiled.programs]
        small = [size for size in sizes if 0 < size <= _POISONED_BYTES]
        run = _callable(
            self.device.device, compiled.executable, partial(_shared_in_graph, graph),
            output_types, input_types, small,
        )  # fmt: skip
        cost = compiled.cost()
        called = False

        def counted(inputs: Sequence[Array]) -> list[Array]:
            nonlocal called
            start, cpu_start = time.perf_counter(), _cpu_seconds()
            results = run(inputs)
            seconds = time.perf_counter() - start
            self.cost += Cost(
                kernels=cost.kernels, bytes_read=cost.bytes_read, bytes_written=cost.bytes_written
            )
            if called:
                self.cost += Cost(running=seconds)
            else:
                called = True
                self.cost += Cost(
                    first_calls=seconds,
                    compiled=cost.kernels,
                    busy=busy + _cpu_seconds() - cpu_start,
                )
            return results

        return counted


def _cpu_seconds() -> float:
    """Processor time of this process and of those it started that ended."""
    return sum(os.times()[:4])


def runnable_of(device: OpenDevice, program: Program, *, spoil: bool = False) -> Runnable:
    """What a device makes of a program at hand, past passes, fusion and planning.

    spoil: fill memory that the device has in store for results and scratch with 0xFF before each
    launch, so that what is read before it is written shows.
    Arrays hold afterwards what is left in the inputs.  Raises as `DeviceTarget.compile`'s.
    """
    executable = executable_of(device, program)
    sizes = [t.nbytes for t in program.outputs] + [program.arena_bytes] if spoil else []
    names = ", ".join(step.name for step in program.steps)
    return _callable(
        device.device, executable, partial(_shared, names), program.outputs, program.inputs, sizes
    )


def _shared(names: str, output: int, operand: int | None) -> str:
    number = "an operand" if operand is None else f"operand {operand}"
    return f"{names}: output {output} shares memory with {number}: overwriting that changes it"


def _shared_in_graph(graph: Graph, output: int, operand: int | None) -> str:
    """The op that makes the output, and the number among its own operands."""
    instr = graph.outputs[output].producer
    if instr is None:
        return _shared("the copy of an input", output, operand)
    if operand is None or graph.inputs[operand] not in instr.operands:
        text = _shared(instr.op.name, output, operand)
        return text.replace(f"operand {operand}", f"input {operand} of the program")
    return _shared(instr.op.name, output, instr.operands.index(graph.inputs[operand]))


def _poison(device: Device, sizes: Sequence[int]) -> None:
    """Free memory of these sizes, twice each, that is full of 0xFF: the next allocations get it."""
    unit = device.capabilities.alignment  # what allocators round sizes to, as far as is known
    rounded = [round_up(size, unit) for size in sizes]
    arrays = [np.full(size, 0xFF, np.uint8) for size in rounded for _ in range(2)]
    buffers = [transfer.upload(device, array) for array in arrays]
    del buffers


def _callable(
    device: Device,
    executable: Executable,
    describe: Describe,
    output_types: Sequence[TensorType],
    input_types: Sequence[TensorType] = (),
    poisoned: Sequence[int] = (),
) -> Runnable:
    """An executable on arrays of the host.

    describe: says which memory is shared if the first call finds a result in that of an input.
    input_types: if given, the arrays of inputs hold afterwards what the program left in the inputs.
    poisoned: sizes of memory to poison after the inputs were allocated.
    """
    called = False

    def run(inputs: Sequence[Array]) -> list[Array]:
        nonlocal called
        buffers = [transfer.upload(device, array) for array in inputs]
        _poison(device, poisoned)
        with heartbeat.phase("launching"):
            results = transfer.execute(device, executable, buffers, len(output_types))
        pairs = zip(results, output_types, strict=True)
        arrays = [transfer.download(device, buffer, type_) for buffer, type_ in pairs]
        triples = zip(inputs, buffers, input_types, strict=bool(input_types))
        for array, buffer, type_ in triples:
            after = transfer.download(device, buffer, type_)
            if not same_bits(after, array).all():
                array[...] = after
        if not called and sum(x.nbytes for x in (*inputs, *arrays)) <= _COMPARED_BYTES:
            for number, buffer in enumerate(buffers):
                _overwrite(device, buffer, inputs[number].nbytes, number)
            for output, (buffer, before) in enumerate(zip(results, arrays, strict=True)):
                after = transfer.download(device, buffer, output_types[output])
                _require_kept(before, after, len(inputs), partial(describe, output))
        called = True
        return arrays

    return run


def _overwrite(device: Device, buffer: object, nbytes: int, number: int) -> None:
    """Fill the memory of an input with the byte that stands for its number."""
    if nbytes:
        fill = np.full(nbytes, (_FIRST_BYTE + number) % _BYTES, np.uint8)
        with vendor_call(device, "upload"):
            device.upload(transfer.handle_of(buffer), fill.data)


def _require_kept(
    before: Array, after: Array, count: int, describe: Callable[[int | None], str]
) -> None:
    """Raises SharedMemoryError if a result changed when ``count`` inputs were overwritten."""
    old, new = (np.frombuffer(x.tobytes(), np.uint8) for x in (before, after))
    changed = new[old != new]
    if changed.size:
        number = (int(changed[0]) - _FIRST_BYTE) % _BYTES
        raise SharedMemoryError(describe(number if number < count else None))


def missing_from(capabilities: Capabilities, graph: Graph) -> str | None:
    """Why capabilities do not cover a graph even through decompositions, or None if they do."""
    for value in (*graph.inputs, *graph.outputs):
        # What is folded away before it reaches the device still has to be returned by it.
        claims = chain(capabilities.ops.values(), capabilities.kernels.values())
        if not any(value.dtype in dtypes for dtypes in claims):
            return f"it claims no op for {value.dtype}"
    for each in passes_for(capabilities.available):
        try:
            graph = each.run(graph)
        except UnsupportedError as error:
            return error.what
        if each.name == "decompose":
            break
    return None

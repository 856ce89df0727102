"""What the suite runs programs on: anything that compiles a graph and calls it on arrays of the
host.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Protocol

import numpy as np

from bringup.backend.capabilities import Capabilities
from bringup.backend.device import Backend, Device, Executable
from bringup.errors import UnsupportedError
from bringup.graph import Graph
from bringup.passes.pipeline import passes_for
from bringup.program.program import Program
from bringup.runtime import transfer
from bringup.runtime.compiler import Options, compile_graph, graph_passes
from bringup.runtime.devices import OpenDevice, get
from bringup.types import TensorType
from bringup_conformance.execution import pulse
from bringup_conformance.execution.spent import Spent
from bringup_conformance.oracle.numbers import Array, same_bits

#: A compiled program on arrays of the host.
Runnable = Callable[[Sequence[Array]], list[Array]]


#: Bytes of a result or arena that is filled before every call.
_SPOILT = 1 << 14


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
        #: By the programs that `compile` made, so far.
        self.spent = Spent()

    @classmethod
    def named(cls, name: str) -> DeviceTarget:
        """Open ``"name"`` or ``"name:index"``.  Raises BackendError."""
        with pulse.doing("opening"):
            device = get(name)
        pulse.observe(device.device)
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
        Raises what the device raises.
        """
        start, worked = time.perf_counter(), _worked()
        with pulse.doing("compiling"):
            options = Options(fuse=fuse, skip=skip, optimize=optimize)
            compiled = compile_graph(graph, self.device, options=options)
        compiling, busy = time.perf_counter() - start, _worked() - worked
        self.spent += Spent(compiling=compiling)
        assert compiled.executable is not None
        ins, outs = [v.type for v in graph.inputs], [v.type for v in graph.outputs]
        sizes = [t.nbytes for t in outs] + [p.arena_bytes for p in compiled.programs]
        small = [size for size in sizes if 0 < size <= _SPOILT]
        run = _callable(self.device.device, compiled.executable, outs, ins, small)
        cost = compiled.cost()
        called = False

        def counted(inputs: Sequence[Array]) -> list[Array]:
            nonlocal called
            start, worked = time.perf_counter(), _worked()
            results = run(inputs)
            seconds = time.perf_counter() - start
            self.spent += Spent(0.0, seconds, cost.kernels, cost.bytes_read, cost.bytes_written)
            if not called:
                called = True
                self.spent += Spent(
                    compiled=cost.kernels,
                    first=compiling + seconds,
                    busy=busy + _worked() - worked,
                )
            return results

        return counted


def _worked() -> float:
    """Seconds of processor time of this process and of those it started that ended."""
    return sum(os.times()[:4])


def runnable_of(device: OpenDevice, program: Program, *, spoil: bool = False) -> Runnable:
    """What a device makes of a program at hand, past passes, fusion and planning.

    spoil: fill memory that the device has in store for results and scratch with 0xFF before each
    launch, so that what is read before it is written shows.
    Arrays hold afterwards what is left in the inputs.  Raises what the device raises.
    """
    executable = device.device.compile(program)
    sizes = [t.nbytes for t in program.outputs] + [program.arena_bytes] if spoil else []
    return _callable(device.device, executable, program.outputs, program.inputs, sizes)


def _spoil(device: Device, sizes: Sequence[int]) -> None:
    """Leave memory of these sizes, twice each, to be found full of 0xFF."""
    unit = device.capabilities.alignment  # what allocators round sizes to, as far as is known
    rounded = [-(-size // unit) * unit for size in sizes]
    spoilt = [np.full(size, 0xFF, np.uint8) for size in rounded for _ in range(2)]
    held = [transfer.upload(device, array) for array in spoilt]
    del held


def _callable(
    device: Device,
    executable: Executable,
    outs: Sequence[TensorType],
    shown: Sequence[TensorType] = (),
    spoilt: Sequence[int] = (),
) -> Runnable:
    """shown: types of the inputs, if their arrays are to hold what is left in them.  spoilt: sizes
    of memory to spoil once the inputs have theirs.
    """

    def run(inputs: Sequence[Array]) -> list[Array]:
        buffers = [transfer.upload(device, array) for array in inputs]
        _spoil(device, spoilt)
        with pulse.doing("launching"):
            results = transfer.execute(device, executable, buffers, len(outs))
        pairs = zip(results, outs, strict=True)
        found = [transfer.download(device, buffer, type_) for buffer, type_ in pairs]
        for array, buffer, type_ in zip(inputs, buffers, shown, strict=bool(shown)):
            left = transfer.download(device, buffer, type_)
            if not same_bits(left, array).all():
                array[...] = left
        return found

    return run


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

"""Compiled programs: native code, its constants, and what one call of it needs."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bringup.graph import Literal
from bringup.llvm.host.engine import Code
from bringup.program.cost import program_cost
from bringup.program.program import Program
from bringup.records import record
from bringup.runtime import timeline
from bringup_cpu.memory import Memory

#: The function that runs a program; see `bringup_cpu.codegen`.
ENTRY = "entry"


@record
class NativeCode:
    """LLVM IR of a program.

    arena_bytes: memory that a call needs, beginning with the program's arena.
    launches: of each kernel, in order, its name and what the timeline says of it.
    traced: whether each thread records when it works on a launch.
    """

    text: str
    arena_bytes: int
    launches: tuple[tuple[str, Mapping[str, Any]], ...]
    traced: bool = False


class CpuExecutable:
    """A loaded program.  Calls from several threads may overlap.

    program: what it computes.  address: of the entry.
    template: the addresses of a call's buffers, 0 where they differ from call to call.
    arena_bytes: arena and scratch of a call.  seconds: the shortest run so far.
    """

    __slots__ = (
        "_aliases", "_code", "_constants", "_memory", "_pointers", "_run", "_sizes", "address",
        "arena_bytes", "program", "seconds", "template",
    )  # fmt: skip

    def __init__(self, program: Program, code: Code, arena_bytes: int, memory: Memory) -> None:
        self.program = program
        self.address = code.addresses[ENTRY]
        self.arena_bytes = arena_bytes
        self.seconds = math.inf
        self._code = code
        self._memory = memory
        self._constants = [
            _copied(memory, literal) for each in program.programs for literal in each.constants
        ]
        varying = len(program.inputs) + len(program.outputs)
        self.template = [0] * varying + [buffer.address for buffer in self._constants]
        self._pointers = ctypes.c_void_p * len(self.template)
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(self.address)
        self._sizes = [type_.nbytes for type_ in program.outputs]
        self._aliases: Mapping[int, int] = dict(program.aliases)

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run on buffers and return new ones; an aliased output is its donated input's buffer."""
        assert self._fit(inputs), f"buffers do not hold {', '.join(map(str, self.program.inputs))}"
        alloc, aliases = self._memory.alloc, self._aliases
        outputs = [
            inputs[aliases[k]] if k in aliases else alloc(nbytes)
            for k, nbytes in enumerate(self._sizes)
        ]
        addresses = [buffer.address for buffer in (*inputs, *outputs, *self._constants)]
        arena = alloc(self.arena_bytes) if self.arena_bytes else None
        start = time.perf_counter()
        self._execute(addresses, arena.address if arena is not None else None)
        self.seconds = min(self.seconds, time.perf_counter() - start)
        return outputs

    def _execute(self, addresses: list[int], arena: int | None) -> None:
        self._run(self._pointers(*addresses), arena)

    def _fit(self, inputs: Sequence[Any]) -> bool:
        types = self.program.inputs
        return len(inputs) == len(types) and all(
            buffer.nbytes >= type_.nbytes for buffer, type_ in zip(inputs, types, strict=True)
        )


class TracedExecutable(CpuExecutable):
    """A program that notes when each thread worked on each kernel, for the timeline."""

    __slots__ = ("_facts", "_launches", "_peak", "_threads")

    def __init__(
        self, program: Program, native: NativeCode, code: Code, memory: Memory, threads: int
    ) -> None:
        super().__init__(program, code, native.arena_bytes, memory)
        assert native.traced
        self._launches = native.launches
        self._threads = threads
        cost = program_cost(program)
        self._facts = {"bytes": cost.bytes_read + cost.bytes_written, "flops": cost.flops}
        self._peak = cost.peak_bytes
        self._pointers = ctypes.c_void_p * (len(self.template) + 1)

    def _execute(self, addresses: list[int], arena: int | None) -> None:
        from bringup_cpu.spans import Records

        records = Records(self._launches, self._threads)
        timeline.count("memory of the call", self._peak)
        with timeline.span(self.program.name, "program", **self._facts):
            super()._execute([*addresses, records.address], arena)
        timeline.count("memory of the call", 0)
        records.publish()


def _copied(memory: Memory, literal: Literal) -> Any:
    """A buffer with a constant's elements."""
    buffer = memory.alloc(literal.type.nbytes)
    np.ndarray(literal.type.shape, literal.type.dtype.numpy, buffer)[...] = literal.array()
    return buffer

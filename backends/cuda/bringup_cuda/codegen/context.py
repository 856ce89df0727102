"""What the emitters of one program share: its LLVM module, its kernels and scratch memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager

from bringup.integers import round_up
from bringup.llvm.simt import SimtKernel
from bringup.llvm.text import Module
from bringup.program.program import OpStep, Program, Slot
from bringup_cuda.codegen.commands import Command, Scratch
from bringup_cuda.codegen.nvvm import TRIPLE, native_functions
from bringup_cuda.targets import ALIGNMENT, TARGETS


class CodegenContext:
    """The module that a program is translated into, and what its steps share.

    module: receives the kernels.  target: the architecture, such as ``sm_90``.
    row: the numbers of the architecture.
    """

    def __init__(self, target: str) -> None:
        self.module = Module(TRIPLE)
        self.module.native = native_functions(target)
        self.target = target
        self.row = TARGETS[target]
        self._step_scratch_bytes = 0
        #: Translated op steps by what their commands depend on: equal steps share kernels.
        self.op_steps: dict[Hashable, tuple[OpStep, Sequence[Command]]] = {}
        self._kernels: dict[str, SimtKernel] = {}
        self._programs: list[Program] = []

    @contextmanager
    def nested(self, program: Program) -> Iterator[None]:
        """Translate the steps of a program, which may be the body of a loop of another one."""
        self._programs.append(program)
        yield
        self._programs.pop()

    def begin_step(self) -> None:
        """Start a step, which may reuse the scratch memory of the step before."""
        self._step_scratch_bytes = 0

    def function_name(self, label: str) -> str:
        """A function name that is not used in the module yet."""
        return f"{re.sub(r'[^A-Za-z0-9_]', '_', label)}_{len(self.module.functions)}"

    def scratch(self, nbytes: int) -> Scratch:
        """Memory whose contents last until the end of the step."""
        scratch = Scratch(self._step_scratch_bytes, nbytes)
        self._step_scratch_bytes += round_up(nbytes, ALIGNMENT)
        return scratch

    def emit_once(self, key: str, label: str, emit: Callable[[str], SimtKernel]) -> SimtKernel:
        """The kernel of a key; ``emit`` makes it under a new name when it is first asked for."""
        if key not in self._kernels:
            self._kernels[key] = emit(self.function_name(label))
        return self._kernels[key]

    def is_constant(self, read: Slot, writes: Sequence[Slot]) -> bool:
        """Whether a slot that a launch of this step reads shares no memory with those it writes."""
        return not any(self._overlap(read, written) for written in writes)

    def _overlap(self, one: Slot, other: Slot) -> bool:
        spaces = {one.space, other.space}
        if spaces == {"arena"}:
            first, second = sorted((one, other), key=lambda slot: slot.offset)
            return second.offset < first.offset + first.type.nbytes
        if len(spaces) == 1:
            return one.index == other.index
        # Operands and results of loops and branches may share memory in ways only the loop knows.
        nested = len(self._programs) > 1
        if spaces == {"input", "output"}:
            source, result = sorted((one, other), key=lambda slot: slot.space)
            return nested or (result.index, source.index) in self._programs[-1].aliases
        return False

"""Op steps as native functions: ops on whole buffers that are no loop nest of a kernel.

A step becomes one or more phases, run one after the other.  Each is a function ``void name(ptr
buffers, i64 begin, i64 end, i64 worker)``, called as those of `bringup.llvm.loops.kernel`: it runs
units ``begin … end - 1``, which threads may share in any way.  ``buffers`` holds one pointer per
operand, one per result, one to `NativeStep.shared_bytes` of memory that the phases share, then one
to scratch memory, of which each worker has `NativeKernel.tile_bytes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from bringup.backend.capabilities import Claims, RowClaims
from bringup.dtypes import STORED
from bringup.errors import UnsupportedError
from bringup.integers import round_up
from bringup.lazy import LazyTable
from bringup.llvm import text as ir
from bringup.llvm.loops.schedule import LINE_BYTES, NativeKernel, unit_function
from bringup.llvm.text import Builder, Module, Val, i64_const
from bringup.program.program import OpStep
from bringup.records import record
from bringup.target import Target


@record
class NativeStep:
    """An emitted op step.

    phases: in order; each may read what all units of earlier phases wrote.
    shared_bytes: memory whose contents last from phase to phase.
    shared: the offsets of buffers in it, the last of a phase's buffers.
    buffers: which buffers each phase takes, of the step's and the shared ones; all if empty.
    """

    phases: tuple[NativeKernel, ...]
    shared_bytes: int = 0
    shared: tuple[int, ...] = (0,)
    buffers: tuple[tuple[int, ...], ...] = ()


#: Emits a step into a module, as functions whose names begin with the given name.
StepEmitter = Callable[[Module, OpStep, str, Target], NativeStep]


class PhaseBuilder:
    """The function of a phase, and what its emitter needs.

    b: the builder, in the function's entry.  operands, results: their addresses.
    shared: address of the memory that all phases share.  worker: number of the thread.
    """

    def __init__(self, module: Module, step: OpStep, name: str) -> None:
        self.name = name
        self.function = unit_function(module, name)
        self.b = Builder(self.function.block("entry"))
        buffers, self._begin, self._end, self.worker = self.function.args
        pointers = [
            self.b.load(ir.ptr, self.b.gep(buffers, n, ir.ptr), 8)
            for n in range(len(step.slots) + 2)
        ]
        self.operands = pointers[: len(step.operands)]
        self.results = pointers[len(step.operands) : -2]
        self.shared, self._scratch = pointers[-2:]
        self._scratch_bytes = 0

    def scratch(self, *sizes: int) -> list[Val]:
        """Addresses of memory of the worker's own, of ``sizes`` bytes.  Call this once."""
        assert not self._scratch_bytes, "scratch is laid out once"
        offsets: list[int] = []
        for nbytes in sizes:
            offsets.append(self._scratch_bytes)
            self._scratch_bytes += round_up(nbytes, LINE_BYTES)
        size = i64_const(self._scratch_bytes)
        base = self.b.gep(self._scratch, self.b.mul(self.worker, size), ir.i8)
        return [self.b.gep(base, offset, ir.i8) for offset in offsets]

    @contextmanager
    def units(self) -> Iterator[Val]:
        """The loop over the units of a call; the function ends after it."""
        with self.b.loop(self._begin, self._end) as loop:
            yield loop.index
        self.b.ret()

    def done(self, units: int, work: int) -> NativeKernel:
        """The finished phase: its units, each of about ``work`` scalar operations."""
        return NativeKernel(self.name, units, self._scratch_bytes, work)


def emit_step(
    module: Module, step: OpStep, name: str, target: Target, *, in_place: bool = False
) -> NativeStep:
    """Emit ``step`` into ``module``; no phase if its results have no element.

    in_place: the first result has the memory of the first operand.
    Raises UnsupportedError for an op without emitter.
    """
    if step.op.name in FROM_LIBRARY:
        from bringup.llvm.steps.library import emit_library
        from bringup.program.loops import step_loops

        shared = replace(target, threads=_THREADS)
        loops = step_loops(step, f"{name}.", shared, in_place=in_place)
        assert loops is not None
        return emit_library(module, loops, target)
    if step.op.name not in OP_EMITTERS:  # pragma: no cover - only wrong claims
        raise UnsupportedError(
            f"{step.name} is in no kernel and no native function runs it", location=step.location
        )
    if not any(slot.type.size for slot in step.results):
        return NativeStep(())
    return OP_EMITTERS[step.op.name](module, step, name, target)


def step_claims(*others: str) -> Claims:
    """Claims for `Capabilities.ops` of a backend that runs op steps through `emit_step`.

    others: names of further steps, which it runs in other ways.
    """
    return RowClaims(dict.fromkeys((*OP_EMITTERS, *FROM_LIBRARY, *others), frozenset(STORED)))


def _of(module: str, *names: str) -> dict[str, tuple[str, str]]:
    return {name: (f"bringup.llvm.steps.{module}", f"emit_{name}") for name in names}


#: Ops whose loops are those of the op library.
FROM_LIBRARY = (
    "attention", "block_sparse_dot", "cholesky", "cumulative", "dynamic_update_slice", "eigh", "lu",
    "qr", "scatter", "sort", "svd", "triangular_solve",
)  # fmt: skip
#: Threads for which library ops are cut, however many there are: results, such as those of sums in
#: chunks, must not depend on their number.
_THREADS = 16
#: The emitter of each other op.
OP_EMITTERS: LazyTable[StepEmitter] = LazyTable(
    {
    }
)

"""Op steps as native functions: ops on whole buffers that are no loop nest of a kernel.

A step becomes one or more phases, run one after the other.  Each is a function ``void name(ptr
buffers, i64 begin, i64 end, i64 worker)``, called as those of `bringup.llvm.loops`: it runs units
``begin … end - 1``, which threads may share in any way.  ``buffers`` holds one pointer per operand,
one per result, one to `NativeStep.shared_bytes` of memory that the phases share, then one to
scratch, of which each worker has `NativeKernel.tile_bytes`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from bringup.dtypes import ALL, DType
from bringup.errors import UnsupportedError
from bringup.llvm import text as ir
from bringup.llvm.loops import NativeKernel
from bringup.llvm.schedule import LoopTarget
from bringup.llvm.text import Builder, Module, Param, Val, const
from bringup.ops.table import lookup
from bringup.program.program import OpStep
from bringup.records import record

_ALIGNMENT = 64


@record
class NativeStep:
    """An emitted op step.

    phases: in order; each may read what every unit of the ones before wrote.
    shared_bytes: memory that holds its contents from phase to phase.
    """

    phases: tuple[NativeKernel, ...]
    shared_bytes: int = 0


#: Emits a step into a module, as functions whose names start with the given one.
StepEmitter = Callable[[Module, OpStep, str, LoopTarget], NativeStep]


class Phase:
    """A phase being emitted.

    b: the builder, in the function's entry.  operands, results: addresses.  shared: of the memory
    that all phases see.  worker: number of the thread.
    """

    def __init__(self, module: Module, step: OpStep, name: str) -> None:
        params: list[Param] = [
            ("buffers", ir.ptr, "nocapture readonly"),
            ("begin", ir.i64),
            ("end", ir.i64),
            ("worker", ir.i64),
        ]
        self.name = name
        self.function = module.function(name, ir.void, params, attrs="nounwind", linkage="internal")
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
        """Addresses of memory of the worker's own, of so many bytes each.  Call it once."""
        assert not self._scratch_bytes, "scratch is laid out once"
        offsets: list[int] = []
        for nbytes in sizes:
            offsets.append(self._scratch_bytes)
            self._scratch_bytes += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        size = const(ir.i64, self._scratch_bytes)
        mine = self.b.gep(self._scratch, self.b.mul(self.worker, size), ir.i8)
        return [self.b.gep(mine, offset, ir.i8) for offset in offsets]

    @contextmanager
    def units(self) -> Iterator[Val]:
        """The loop over the units of a call, which ends the function."""
        with self.b.loop(self._begin, self._end) as loop:
            yield loop.index
        self.b.ret()

    def done(self, units: int, work: int) -> NativeKernel:
        """What was emitted: so many units of about so many scalar operations."""
        return NativeKernel(self.name, units, self._scratch_bytes, work)


def emit_step(module: Module, step: OpStep, name: str, target: LoopTarget) -> NativeStep:
    """Emit ``step`` into ``module``; no phase if its results have no element.

    Raises UnsupportedError for an op without emitter.
    """
    place = OP_EMITTERS.get(step.op.name)
    if place is None:
        raise UnsupportedError(
            f"{step.name} is in no kernel and no native function runs it", location=step.location
        )
    if not any(slot.type.size for slot in step.results):
        return NativeStep(())
    topic, function = place
    emitter: StepEmitter = getattr(importlib.import_module(f"bringup.llvm.{topic}"), function)
    return emitter(module, step, name, target)


def step_claims() -> dict[str, frozenset[DType]]:
    """Claims for `Capabilities.ops` of a backend that runs op steps through `emit_step`."""
    rows = map(lookup, OP_EMITTERS)
    return {claim: frozenset((*ALL, *row.dtypes)) for row in rows for claim in row.claims}


#: The function that emits each op that has one, by its module here, which is imported when needed.
OP_EMITTERS: Mapping[str, tuple[str, str]] = {
    "attention": ("attending", "emit_attention"),
    "cholesky": ("factoring", "emit_cholesky"),
    "cumulative": ("cumulative", "emit_cumulative"),
    "dynamic_update_slice": ("scattering", "emit_update"),
    "lu": ("factoring", "emit_lu"),
    "qr": ("reflecting", "emit_qr"),
    "scatter": ("scattering", "emit_scatter"),
    "sort": ("sorting", "emit_sort"),
    "triangular_solve": ("factoring", "emit_triangular_solve"),
}

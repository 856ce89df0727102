"""Op steps as native functions: the loops of the op library, with vectors.

A step becomes one or more phases, run one after the other.  Each is a function as those of
`bringup.llvm.loops.kernel`.  ``buffers`` holds one pointer per parameter, then one to scratch
memory, of which each worker has `NativeKernel.tile_bytes`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bringup.errors import UnsupportedError
from bringup.integers import ceil_power_of_two, round_up
from bringup.lazy import LazyTable
from bringup.llvm.func.render import emit_func
from bringup.llvm.loops.schedule import LINE_BYTES, NativeKernel
from bringup.llvm.text import Module
from bringup.loops.form import ACCESSES, STRAIGHT, For, Func, statements
from bringup.loops.library.calls import PERMUTES, StepLoops
from bringup.loops.schedule import Schedule, Scheduled, Step
from bringup.program.loops import step_loops
from bringup.program.program import OpStep
from bringup.records import record
from bringup.target import Target

#: Threads for which ops are cut, however many there are: results, such as those of sums in chunks,
#: must not depend on their number.
_THREADS = 16
#: The schedules of ops for which vectors along memory are not enough.
_STEPS: LazyTable[Callable[[Func, Target], Schedule]] = LazyTable(
    {"attention": ("bringup.llvm.func.schedules.attention", "attention_steps")}
)


@record
class NativeStep:
    """An emitted op step.

    phases: in order; each may read what all units of earlier phases wrote.
    shared_bytes: memory whose contents last from phase to phase.
    shared: the offsets of buffers in it.
    buffers: which buffers each phase takes, of the step's and the shared ones.
    """

    phases: tuple[NativeKernel, ...]
    shared_bytes: int
    shared: tuple[int, ...]
    buffers: tuple[tuple[int, ...], ...]


def emit_step(
    module: Module, step: OpStep, name: str, target: Target, *, in_place: bool = False
) -> NativeStep:
    """Emit ``step`` into ``module`` as functions whose names begin with the given name; no phase if
    its results have no element.

    in_place: the first result has the memory of the first operand.
    Raises UnsupportedError for an op that the library does not have.
    """
    loops, scheduled = scheduled_step(step, f"{name}.", target, in_place=in_place)
    natives = {func: emit_func(module, each.after, func.name) for func, each in scheduled.items()}
    phases = [natives[func] for func in loops.funcs]
    if loops.work:
        phases = [replace(phase, work=loops.work) for phase in phases]
    offsets, end = [], 0
    for buffer in loops.temporaries:
        offsets.append(end)
        end = round_up(end + buffer.type.nbytes, LINE_BYTES)
    return NativeStep(tuple(phases), end, tuple(offsets), loops.numbers)


def scheduled_step(
    step: OpStep, prefix: str, target: Target, *, in_place: bool = False
) -> tuple[StepLoops, dict[Func, Scheduled]]:
    """The functions of a step, and each of them with the steps by which it runs.

    prefix: of their names.  Raises UnsupportedError for an op that the library does not have.
    """
    shared = replace(target, threads=_THREADS, instructions=(*target.instructions, PERMUTES))
    loops = step_loops(step, prefix, shared, in_place=in_place)
    if loops is None:  # pragma: no cover - only wrong claims
        raise UnsupportedError(
            f"{step.name} is in no kernel and no native function runs it", location=step.location
        )
    steps = _STEPS.get(loops.call.name, vectors_of)
    funcs = dict.fromkeys(loops.funcs)
    return loops, {func: Scheduled.of(func, steps(func, target)) for func in funcs}


def vectors_of(func: Func, target: Target) -> Schedule:
    """Vectors along the innermost loops over neighbouring elements, masked at the end."""
    steps: list[Step] = []
    for loops in _along(func):
        (name,) = {loop.name for loop in loops}
        size = max(loop.axis.size for loop in loops)
        accesses = [s for loop in loops for s in loop.body if isinstance(s, ACCESSES)]
        bits = max(stmt.buffer.dtype.bits for stmt in accesses)
        lanes = min(target.lanes(max(bits, 16)), ceil_power_of_two(size))
        if lanes > 1:
            blocks, vector = f"{name}.b", f"{name}.v"
            steps.append(Step("split", (name, blocks, vector, lanes)))
            if all(loop.end is None and loop.axis.size > lanes for loop in loops) and size % lanes:
                steps.append(Step("peel", (blocks, 0, 1)))
            steps.append(Step("vectorize", (vector,)))
    return Schedule(tuple(steps))


def _along(func: Func) -> list[list[For]]:
    """The loops in which every access is to neighbouring elements, by name.

    A step names all loops of a name, so that all of them must be such loops.
    """
    named: dict[str, list[For]] = {}
    for stmt in statements(func.body):
        if isinstance(stmt, For):
            named.setdefault(stmt.name, []).append(stmt)
    return [loops for loops in named.values() if all(map(_is_along, loops))]


def _is_along(loop: For) -> bool:
    if loop.kind != "serial" or not all(isinstance(stmt, STRAIGHT) for stmt in loop.body):
        return False
    indices = [s.index for s in loop.body if isinstance(s, ACCESSES)]
    return bool(indices) and all(index.coefficient(loop.axis) == 1 for index in indices)


__all__ = ["NativeStep", "emit_step", "scheduled_step"]

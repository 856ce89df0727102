"""Steps that the op library has, as native functions: their loops, with vectors."""

from __future__ import annotations

from collections.abc import Callable

from bringup.integers import ceil_power_of_two, round_up
from bringup.lazy import LazyTable
from bringup.llvm.func.render import emit_func
from bringup.llvm.loops.schedule import LINE_BYTES, LoopTarget
from bringup.llvm.steps.base import NativeStep
from bringup.llvm.text import Module
from bringup.loops.form import For, Func, Let, Load, Store, statements
from bringup.loops.library import StepLoops
from bringup.loops.schedule import Schedule, Step, apply


#: The schedules of ops for which vectors along memory are not enough.
_STEPS: LazyTable[Callable[[Func, LoopTarget], Schedule]] = LazyTable(
    {"attention": ("bringup.llvm.func.schedules.attention", "attention_steps")}
)


def emit_library(module: Module, loops: StepLoops, target: LoopTarget) -> NativeStep:
    """Emit the functions of a step, under their names."""
    steps = _STEPS.get(loops.call.name, vectors_of)
    phases = [
        emit_func(module, apply(func, steps(func, target)), func.name) for func in loops.funcs
    ]
    offsets, end = [], 0
    for buffer in loops.temporaries:
        offsets.append(end)
        end = round_up(end + buffer.type.nbytes, LINE_BYTES)
    return NativeStep(tuple(phases), end, tuple(offsets), loops.numbers)


def vectors_of(func: Func, target: LoopTarget) -> Schedule:
    """Vectors along the innermost loops over neighbouring elements, masked at the end."""
    steps: list[Step] = []
    for loop in _along(func):
        bits = max(s.buffer.dtype.bits for s in loop.body if isinstance(s, Load | Store))
        lanes = min(target.vector_bits // max(bits, 16), ceil_power_of_two(loop.axis.size))
        if lanes > 1:
            blocks, vector = f"{loop.name}.b", f"{loop.name}.v"
            steps.append(Step("split", (loop.name, blocks, vector, lanes)))
            if loop.axis.size % lanes and loop.end is None and loop.axis.size > lanes:
                steps.append(Step("peel", (blocks, 0, 1)))
            steps.append(Step("vectorize", (vector,)))
    return Schedule(tuple(steps))


def _along(func: Func) -> list[For]:
    """The loops, one of each name, in which every access is to neighbouring elements.

    A step names all loops of a name, so that all of them must be such loops.
    """
    named: dict[str, list[For]] = {}
    for stmt in statements(func.body):
        if isinstance(stmt, For) and stmt.kind == "serial" and stmt.axis.size > 1:
            named.setdefault(stmt.name, []).append(stmt)
    return [loops[0] for loops in named.values() if all(map(_is_along, loops))]


def _is_along(loop: For) -> bool:
    if not all(isinstance(stmt, Let | Load | Store) for stmt in loop.body):
        return False
    indices = [s.index for s in loop.body if isinstance(s, Load | Store)]
    return bool(indices) and all(index.coefficient(loop.axis) == 1 for index in indices)


__all__ = ["emit_library", "vectors_of"]

"""Steps that the op library has, as native functions: their loops, with vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bringup.integers import ceil_power_of_two, round_up
from bringup.lazy import LazyTable
from bringup.llvm.func.render import emit_func
from bringup.llvm.loops.schedule import LINE_BYTES
from bringup.llvm.steps.base import NativeStep
from bringup.llvm.text import Module
from bringup.loops.form import For, Func, Let, Load, Store, statements
from bringup.loops.library import StepLoops
from bringup.loops.schedule import Schedule, Step, apply
from bringup.target import Target

#: The schedules of ops for which vectors along memory are not enough.
_STEPS: LazyTable[Callable[[Func, Target], Schedule]] = LazyTable(
    {"attention": ("bringup.llvm.func.schedules.attention", "attention_steps")}
)


def emit_library(module: Module, loops: StepLoops, target: Target) -> NativeStep:
    """Emit the functions of a step, under their names."""
    steps = _STEPS.get(loops.call.name, vectors_of)
    natives = {
        func: emit_func(module, apply(func, steps(func, target)), func.name)
        for func in dict.fromkeys(loops.funcs)
    }
    phases = [natives[func] for func in loops.funcs]
    if loops.work:
        phases = [replace(phase, work=loops.work) for phase in phases]
    offsets, end = [], 0
    for buffer in loops.temporaries:
        offsets.append(end)
        end = round_up(end + buffer.type.nbytes, LINE_BYTES)
    return NativeStep(tuple(phases), end, tuple(offsets), loops.numbers)


def vectors_of(func: Func, target: Target) -> Schedule:
    """Vectors along the innermost loops over neighbouring elements, masked at the end."""
    steps: list[Step] = []
    for loops in _along(func):
        (name,) = {loop.name for loop in loops}
        size = max(loop.axis.size for loop in loops)
        accesses = [s for loop in loops for s in loop.body if isinstance(s, Load | Store)]
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
    if loop.kind != "serial" or not all(isinstance(stmt, Let | Load | Store) for stmt in loop.body):
        return False
    indices = [s.index for s in loop.body if isinstance(s, Load | Store)]
    return bool(indices) and all(index.coefficient(loop.axis) == 1 for index in indices)


__all__ = ["emit_library", "vectors_of"]

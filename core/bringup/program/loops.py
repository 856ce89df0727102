"""The steps of a program as functions of the loop level."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bringup.loops import Func
from bringup.loops.library import StepLoops, library_loops
from bringup.program.program import ControlStep, KernelStep, OpStep, Program


def step_loops(step: OpStep, number: int, units: int = 1) -> StepLoops | None:
    """The functions of a step that the op library has, else None; see `library_loops`.

    number: of the step among those of its program, which makes the names of functions different.
    """
    operands, results = (tuple(s.type for s in slots) for slots in (step.operands, step.results))
    loops = library_loops(step.op.name, operands, results, step.attrs, units=units)
    if loops is None:
        return None
    funcs = tuple(replace(func, name=f"o{number}_{func.name}") for func in loops.funcs)
    return replace(loops, funcs=funcs)


def program_loops(program: Program, kernels: Iterator[Func]) -> Iterator[Func]:
    """The functions of all steps in order: the next of ``kernels`` for each kernel, and those of
    steps that the op library has.
    """
    for number, step in enumerate(program.steps):
        if isinstance(step, KernelStep):
            yield next(kernels)
        elif isinstance(step, ControlStep):
            for inner in step.programs:
                yield from program_loops(inner, kernels)
        elif loops := step_loops(step, number):
            yield from loops.funcs


__all__ = ["program_loops", "step_loops"]

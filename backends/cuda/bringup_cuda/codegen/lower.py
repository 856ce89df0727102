"""Programs as LLVM IR for NVPTX, and the IR as PTX; no GPU is needed.

`translate` turns each step of a program into commands: kernels that are contractions, all other
kernels, and op steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from bringup.backend import Lowered
from bringup.errors import CompileError
from bringup.graph.index import Axis, Expr
from bringup.integers import ceil_div, round_up
from bringup.kernel.contraction import size
from bringup.kernel.form import Kernel
from bringup.kernel.split import SplitFold, split_fold
from bringup.llvm.simt import SimtKernel, emit_simt
from bringup.llvm.simt.plan import split_for
from bringup.program.program import ControlStep, KernelStep, Program
from bringup_cuda.codegen.commands import (
    Command,
    Control,
    Launch,
    Translated,
    note_extents,
)
from bringup_cuda.codegen.context import CodegenContext
from bringup_cuda.codegen.contraction.emit import emit_contraction
from bringup_cuda.codegen.contraction.planning import ContractionPlan, plan_contraction
from bringup_cuda.codegen.nvvm import TRIPLE
from bringup_cuda.codegen.steps import translate_op_step
from bringup_cuda.driver.protocol import Image
from bringup_cuda.targets import BASELINE, PTX_FEATURE


def lower(program: Program, target: str) -> Lowered:
    """LLVM IR and PTX of a program for an architecture such as ``sm_90``.  Raises CompileError."""
    source = translate(program, target).text
    return Lowered(source, to_ptx(source, target or BASELINE))


def translate(program: Program, target: str = "") -> Translated:
    """Emit everything a program launches into one module, for an architecture such as ``sm_90``.

    Raises UnsupportedError for a step that has no emitter.
    """
    codegen = CodegenContext(target or BASELINE)
    translated = Translated("", _translate_steps(codegen, program), codegen.scratch_bytes)
    note_extents(codegen.module, translated.launches)
    return replace(translated, text=str(codegen.module))


def _translate_steps(codegen: CodegenContext, program: Program) -> tuple[Command, ...]:
    commands: list[Command] = []
    with codegen.nested(program):
        for step in program.steps:
            codegen.begin_step()
            if isinstance(step, ControlStep):
                bodies = tuple(_translate_steps(codegen, body) for body in step.programs)
                commands.append(Control(step, bodies))
            elif isinstance(step, KernelStep):
                launches = _translate_contraction(codegen, step)
                commands += _translate_kernel(codegen, step) if launches is None else launches
            else:
                commands += translate_op_step(codegen, step)
    return tuple(commands)


# -- kernels ---------------------------------------------------------------------------------------


def _translate_kernel(codegen: CodegenContext, step: KernelStep) -> list[Command]:
    """Launches of any kernel, in the form of `bringup.llvm.simt`.

    A long fold becomes two launches, with partial results in scratch memory.
    """
    split = split_for(step.kernel, codegen.simt)
    constant = _constant_buffers(codegen, step)
    if split is None:
        kernel = _emit_simt(codegen, step.kernel, {}, constant)
        return [Launch(kernel, step.slots, step)] if kernel.blocks else []
    partials = tuple(codegen.scratch(t.nbytes) for t in split.scratch)
    count = len(step.kernel.buffers)
    kernels = [
        _emit_simt(codegen, split.partial, split.axis_limits, constant),
        _emit_simt(
            codegen, split.final, {}, constant | frozenset(range(count, count + len(partials)))
        ),
    ]
    return [Launch(kernel, (*step.slots, *partials), step) for kernel in kernels]


def _constant_buffers(codegen: CodegenContext, step: KernelStep) -> frozenset[int]:
    """The buffers of a step's kernel that the kernel reads and nothing writes while it runs."""
    roles = [(i, d.role) for i, d in enumerate(step.kernel.buffers) if d.role != "tile"]
    buffers = list(zip(roles, step.slots, strict=True))
    writes = [slot for (_, role), slot in buffers if role == "out"]
    return frozenset(
        i for (i, role), slot in buffers if role == "in" and codegen.is_constant(slot, writes)
    )


def _emit_simt(
    codegen: CodegenContext,
    kernel: Kernel,
    axis_limits: Mapping[Axis, Expr],
    constant: frozenset[int],
) -> SimtKernel:
    """The function of a kernel, which equal kernels share.  constant: as in `emit_simt`."""
    key = f"{sorted(constant)}\n{_text_key(kernel, axis_limits)}"
    return codegen.emit_once(
        key,
        kernel.name,
        lambda name: emit_simt(codegen.module, kernel, name, codegen.simt, axis_limits, constant),
    )


def _text_key(kernel: Kernel, axis_limits: Mapping[Axis, Expr]) -> str:
    """A kernel without its name, and where its axes end."""
    stops = "".join(f"{axis} < {stop}\n" for axis, stop in axis_limits.items())
    return stops + str(kernel).split("\n", 1)[-1]


# -- contractions ----------------------------------------------------------------------------------


def _translate_contraction(codegen: CodegenContext, step: KernelStep) -> list[Command] | None:
    """Launches of a kernel that sums products over rows and columns; None for other kernels."""
    plan = plan_contraction(step.kernel, codegen.target)
    if plan is None:
        return None
    split = _split_sums(plan)
    if split is None:
        return [Launch(_emit_contraction(codegen, plan, {}), step.slots, step)]
    partial_plan = plan_contraction(split.partial, codegen.target, split.axis_limits)
    assert partial_plan is not None, "a part of a contraction is a contraction"
    scratch = tuple(codegen.scratch(t.nbytes) for t in split.scratch)
    count = len(step.kernel.buffers)
    partials = frozenset(range(count, count + len(scratch)))
    kernels = [
        _emit_contraction(codegen, partial_plan, split.axis_limits),
        _emit_simt(codegen, split.final, {}, partials),
    ]
    return [Launch(kernel, (*step.slots, *scratch), step) for kernel in kernels]


def _split_sums(plan: ContractionPlan) -> SplitFold | None:
    """The kernel in two, if the plan splits sums and an inner axis is long enough (split-K)."""
    contraction, parts = plan.contraction, plan.parts
    longest = max(a.size for a in contraction.inner)
    if parts < 2 or longest < 2 * parts:
        return None
    other_axes = size(contraction.inner) // longest
    granule = max(1, plan.copies[0].layout.depth // other_axes)
    chunk = ceil_div(longest, parts)
    chunk = round_up(chunk, granule)
    points = contraction.kernel.points
    elements = chunk * other_axes * min(points, 64)
    return split_fold(contraction.kernel, chunk_elements=elements, max_points=points)


def _emit_contraction(
    codegen: CodegenContext, plan: ContractionPlan, axis_limits: Mapping[Axis, Expr]
) -> SimtKernel:
    """The function of a contraction, which equal ones share."""
    kernel = plan.contraction.kernel
    key = f"contraction\n{_text_key(kernel, axis_limits)}"
    return codegen.emit_once(key, kernel.name, partial(emit_contraction, codegen.module, plan))


# -- PTX -------------------------------------------------------------------------------------------


def to_ptx(source: str, architecture: str) -> str:
    """Compile LLVM IR to PTX.  Raises CompileError with LLVM's message."""
    import llvmlite.binding as llvm

    from bringup.llvm.host.machine import LLVM

    # LLVM's objects must be freed under the lock too, so they are locals of another function.
    def compile_module() -> str:
        machine = _machine(architecture)
        try:
            module = llvm.parse_assembly(source)
            module.verify()
        except RuntimeError as error:  # pragma: no cover - only wrong emitters
            raise CompileError(
                "LLVM refuses the emitted IR", log=str(error), source=source
            ) from error
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        passes = llvm.create_pass_builder(machine, options)
        passes.getModulePassManager().run(module, passes)
        return str(machine.emit_assembly(module))

    with LLVM:
        return compile_module()


@lru_cache
def _machine(architecture: str) -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(TRIPLE)
    return target.create_target_machine(cpu=architecture, features=PTX_FEATURE, opt=3)


def image_of(text: str, architecture: str, image: Image) -> bytes:
    """LLVM IR in the form that a driver loads.  Raises CompileError."""
    code = text if image == "llvm" else to_ptx(text, architecture)
    return code.encode() + b"\0"

"""Programs as LLVM IR for NVPTX, and the IR as PTX; no GPU is needed.

`translate` turns each step of a program into commands: kernels that are contractions, all other
kernels, and op steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from bringup.backend import Lowered
from bringup.errors import CompileError
from bringup.llvm.simt import SimtKernel, emit_simt
from bringup.llvm.simt.matrix import emit_tiles
from bringup.loops.schedule import Schedule
from bringup.program.commands import scratch_bytes_of
from bringup.program.program import ControlStep, KernelStep, Program
from bringup_cuda.codegen.commands import (
    Command,
    Control,
    Launch,
    Translated,
    launches_of,
    note_extents,
)
from bringup_cuda.codegen.context import CodegenContext
from bringup_cuda.codegen.contraction.planning import ContractionPlan, plan_contraction
from bringup_cuda.codegen.contraction.schedule import scheduled_contraction
from bringup_cuda.codegen.nvvm import SIMT, TRIPLE
from bringup_cuda.codegen.steps import translate_op_step
from bringup_cuda.driver.protocol import Image
from bringup_cuda.targets import ALIGNMENT, BASELINE, PTX_FEATURE


def lower(program: Program, target: str) -> Lowered:
    """LLVM IR and PTX of a program for an architecture such as ``sm_90``.  Raises CompileError."""
    source = translate(program, target).text
    return Lowered(source, to_ptx(source, target or BASELINE))


def translate(program: Program, target: str = "") -> Translated:
    """Emit everything a program launches into one module, for an architecture such as ``sm_90``.

    Raises UnsupportedError for a step that has no emitter.
    """
    [translated] = translate_all([program], target or BASELINE)
    return translated


def translate_all(programs: Sequence[Program], target: str) -> list[Translated]:
    """As `translate`, into one module, whose text each has: programs share equal kernels."""
    codegen = CodegenContext(target)
    every = [_translate_steps(codegen, program) for program in programs]
    note_extents(codegen.module, (launch for each in every for launch in launches_of(each)))
    text = str(codegen.module)
    return [Translated(text, each, scratch_bytes_of(each, ALIGNMENT)) for each in every]


def _translate_steps(codegen: CodegenContext, program: Program) -> tuple[Command, ...]:
    commands: list[Command] = []
    with codegen.nested(program):
        for step in program.steps:
            codegen.begin_step()
            if isinstance(step, ControlStep):
                bodies = tuple(_translate_steps(codegen, body) for body in step.programs)
                commands.append(Control(step, bodies))
            elif isinstance(step, KernelStep):
                launch = _translate_kernel(codegen, step)
                commands += [] if launch is None else [launch]
            else:
                commands += translate_op_step(codegen, step)
    return tuple(commands)


# -- kernels ---------------------------------------------------------------------------------------


def _translate_kernel(codegen: CodegenContext, step: KernelStep) -> Launch | None:
    """The launch of a kernel, a contraction or any other; None if there is nothing to do."""
    plan = plan_contraction(step.kernel, codegen.target)
    if plan is not None:
        return Launch(_emit_contraction(codegen, plan, step.schedule), step.slots, step)
    kernel = _emit_simt(codegen, step, _constant_buffers(codegen, step))
    return Launch(kernel, step.slots, step) if kernel.blocks else None


def _constant_buffers(codegen: CodegenContext, step: KernelStep) -> frozenset[int]:
    """The buffers of a step's kernel that the kernel reads and nothing writes while it runs."""
    roles = [(i, d.role) for i, d in enumerate(step.kernel.buffers) if d.role != "tile"]
    buffers = list(zip(roles, step.slots, strict=True))
    writes = [slot for (_, role), slot in buffers if role == "out"]
    return frozenset(
        i for (i, role), slot in buffers if role == "in" and codegen.is_constant(slot, writes)
    )


def _emit_simt(codegen: CodegenContext, step: KernelStep, constant: frozenset[int]) -> SimtKernel:
    """The function of a kernel, which equal kernels share.  constant: as in `emit_simt`."""
    kernel, steps = step.kernel, step.schedule
    return codegen.emit_once(
        f"{sorted(constant)}\n{steps or ''}\n{kernel.content}",
        kernel.name,
        lambda name: emit_simt(codegen.module, kernel, name, codegen.row, SIMT, constant, steps),
    )


def _emit_contraction(
    codegen: CodegenContext, plan: ContractionPlan, steps: Schedule | None
) -> SimtKernel:
    """The function of a contraction, which equal ones share.  steps: how its loops run, in place of
    the choice for the architecture.
    """
    kernel = plan.contraction.kernel
    registers = codegen.row.registers // (plan.tile.threads * plan.resident)

    def emit(name: str) -> SimtKernel:
        func = scheduled_contraction(plan, steps).after
        return emit_tiles(codegen.module, func, name, codegen.row, SIMT, registers)

    key = f"contraction\n{steps or ''}\n{kernel.content}"
    return codegen.emit_once(key, kernel.name, emit)


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

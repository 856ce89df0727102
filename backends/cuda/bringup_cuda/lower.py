"""Programs as PTX, with or without a GPU: core's SIMT emitter and LLVM's NVPTX target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from bringup.backend import Lowered
from bringup.errors import CompileError, UnsupportedError
from bringup.kernel.form import Kernel
from bringup.kernel.split import split_fold
from bringup.llvm.simt import SimtKernel, SimtTarget, emit_simt
from bringup.llvm.text import Module
from bringup.program.program import KernelStep, Program
from bringup_cuda.targets import BASELINE, BLOCK

TRIPLE = "nvptx64-nvidia-cuda"
#: The PTX version that knows every architecture of `SHARED_KIB`.
PTX_FEATURE = "+ptx87"
#: Elements one block folds of a long reduction, and the grid size up to which reductions are cut.
CHUNK_ELEMENTS = 1 << 14
SPLIT_POINTS = 256

SIMT = SimtTarget(
    calling_convention="ptx_kernel",
    thread="llvm.nvvm.read.ptx.sreg.tid.x",
    block_index="llvm.nvvm.read.ptx.sreg.ctaid.x",
    block_size="llvm.nvvm.read.ptx.sreg.ntid.x",
    grid_size="llvm.nvvm.read.ptx.sreg.nctaid.x",
    barrier="llvm.nvvm.barrier0",
    block=BLOCK,
)


@dataclass(frozen=True, slots=True)
class Translated:
    """A program's LLVM IR for NVPTX, and its launches in order."""

    text: str
    launches: tuple[SimtKernel, ...]


def translate(program: Program) -> Translated:
    """Emit every kernel of a program into one module.  Raises UnsupportedError for an op step."""
    module = Module(TRIPLE)
    launches: list[SimtKernel] = []
    for number, (kernel, clips) in enumerate(_kernels(program)):
        name = f"{kernel.name}_{number}".replace(".", "_")
        launches.append(emit_simt(module, kernel, name, SIMT, clips))
    return Translated(str(module), tuple(launches))


def _kernels(program: Program) -> Iterator[tuple[Kernel, Any]]:
    for step in program.steps:
        if not isinstance(step, KernelStep):
            raise UnsupportedError(
                f"{step.name} stands in no kernel, and kernels are all that is lowered to PTX",
                location=step.location,
            )
        split = split_fold(step.kernel, chunk_elements=CHUNK_ELEMENTS, max_points=SPLIT_POINTS)
        if split is None:
            yield step.kernel, {}
        else:
            yield split.partial, split.clips
            yield split.final, {}


def lower(program: Program, target: str) -> Lowered:
    """LLVM IR and PTX of a program for an architecture such as ``sm_90``.  Raises CompileError."""
    source = translate(program).text
    return Lowered(source, to_ptx(source, target or BASELINE))


def to_ptx(source: str, architecture: str) -> str:
    """Compile LLVM IR to PTX.  Raises CompileError with LLVM's message."""
    import llvmlite.binding as llvm

    machine = _machine(architecture)
    try:
        module = llvm.parse_assembly(source)
        module.verify()
    except RuntimeError as error:
        raise CompileError("LLVM refuses the emitted IR", log=str(error), source=source) from error
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    return str(machine.emit_assembly(module))


@lru_cache
def _machine(architecture: str) -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(TRIPLE)
    return target.create_target_machine(cpu=architecture, features=PTX_FEATURE, opt=3)

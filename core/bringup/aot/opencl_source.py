"""OpenCL C of programs, and a C file that launches it through OpenCL 1.2, of any vendor.

Kernels and library ops are functions of the loop level, whose loops are shared by work items as
core chooses for a GPU of which nothing is known but what most have.  A kernel takes each buffer as
memory and an offset: parts of the arena and rows of stacks may begin anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from bringup.aot.host_source import ALIGNMENT, HostDialect, host_library
from bringup.backend.adapters import SimpleBackend, scheduled_func, scheduled_loops
from bringup.backend.capabilities import Capabilities, LibraryClaims, RowClaims, Shapes
from bringup.backend.device import Device, NoHardware
from bringup.backend.link import STATUS, Driver, Linked, LinkOptions, LinkUnit, Weights
from bringup.c import OPENCL, c_claims, geometry, render_all, render_c, scratch_bytes, symbol, units
from bringup.dtypes import STORED
from bringup.errors import UnsupportedError
from bringup.integers import ceil_div, round_up
from bringup.kernel.form import Kernel
from bringup.kernel.limits import Limits
from bringup.loops.form import Func
from bringup.loops.schedule import Scheduled
from bringup.program.commands import Argument, Command, Control, Launch, Scratch, SimtKernel
from bringup.program.loops import numbered_loops
from bringup.program.program import ControlStep, KernelStep, OpStep, Program
from bringup.target import Target

#: The name of the target.
TARGET = "opencl-c"
#: A parameter is memory and where the buffer begins in it.
_PARAMETER = "__global {type} *bu_base{{n}}, ulong bu_offset{{n}}"
DIALECT = replace(
    OPENCL,
    pointer=_PARAMETER.format(type="{type}"),
    scratch=_PARAMETER.format(type="uchar"),
    begin=(
        "__global {type} *{restrict}{name} ="
        " (__global {type} *)((__global const uchar *)bu_base{n} + bu_offset{n});"
    ),
)
#: What schedules are chosen for: work groups and local memory that every GPU has.
ROW = Target(
    line_bytes=128,
    threads=1 << 14,
    block=256,
    most_threads=256,
    shared_bytes=32 << 10,
    multiprocessors=16,
)
#: The most work items of a kernel that needs scratch memory for each.
_MOST_WITH_SCRATCH = 1 << 12
_, _NULL_POINTER, _, _, _ = range(len(STATUS))


def capabilities() -> Capabilities:
    """What OpenCL C holds: kernels, the ops of the op library, loops and branches."""
    kernels, tiles = c_claims(DIALECT), ROW.tile_bytes
    control = RowClaims(dict.fromkeys(("while", "scan", "case"), frozenset(STORED)))
    return Capabilities(
        kernels=kernels,
        ops={**LibraryClaims(kernels), **control},
        limits=Limits(row_elements=tiles // 4, tile_bytes=tiles),
        shapes=Shapes(vector=ROW.warp, block=ROW.block),
        alignment=ALIGNMENT,
    )


def _no_device(_index: int) -> Device:
    raise NoHardware("OpenCL C is compiled and run elsewhere")


class OpenCLSource(SimpleBackend):
    """What makes OpenCL C of programs.  It has no devices."""

    def __init__(self) -> None:
        render = partial(render_c, dialect=OPENCL)
        super().__init__(TARGET, _no_device, capabilities, (), render=render, target=ROW)

    def scheduled(self, step: KernelStep, target: str = "") -> Scheduled:
        """In groups of work items, as GPUs want it."""
        from bringup.llvm.simt import scheduled_kernel

        scheduled = scheduled_kernel(step.kernel, ROW, step.schedule)
        return scheduled_loops(step) if scheduled is None else scheduled

    def chunk_length(self, kernel: Kernel, target: str = "") -> int:
        """Chunks of long sums that would leave much of a GPU idle."""
        from bringup.llvm.simt.plan import chunk_length

        return chunk_length(kernel, ROW)

    def link_targets(self) -> Sequence[str]:
        """OpenCL C."""
        return (TARGET,)

    def link(
        self, units: Sequence[LinkUnit], weights: Weights, target: str, options: LinkOptions
    ) -> Linked:
        """The file, and the kernels beside it.  Raises UnsupportedError."""
        kernels = _Kernels(self, small=options.small)
        commands = [kernels.commands(unit.program) for unit in units]
        code = render_all([*kernels.funcs.values()], DIALECT).encode()
        return host_library(units, commands, code, ".cl", weights, options, DRIVER)


class _Kernels:
    """The commands of programs, and the functions that they launch, by content."""

    def __init__(self, backend: OpenCLSource, *, small: bool) -> None:
        self.backend, self.small = backend, small
        self.funcs: dict[str, Func] = {}

    def commands(self, program: Program) -> tuple[Command, ...]:
        """Those of a program."""
        numbers = range(len(program.steps))
        return tuple([command for n in numbers for command in self.step(program, n)])

    def step(self, program: Program, number: int) -> Iterator[Command]:
        """Those of a step."""
        step = program.steps[number]
        if isinstance(step, ControlStep):
            yield Control(step, tuple([self.commands(body) for body in step.programs]))
            return
        if isinstance(step, KernelStep):
            scheduled = scheduled_loops(step) if self.small else self.backend.scheduled(step)
            yield from self.launch(step, scheduled.after, step.slots, 0)
            return
        loops = numbered_loops(program, number, ROW)
        if loops is None:
            raise UnsupportedError(
                f"OpenCL C has no function for {step.name}", location=step.location
            )
        arguments: list[Argument] = list(step.slots)
        used = 0
        for buffer in loops.temporaries:
            arguments.append(Scratch(used, buffer.type.nbytes))
            used = round_up(used + buffer.type.nbytes, ALIGNMENT)
        for func, chosen in zip(loops.funcs, loops.numbers, strict=True):
            memory = [arguments[n] for n in chosen]
            yield from self.launch(step, scheduled_func(func, None).after, memory, used)

    def launch(
        self, step: KernelStep | OpStep, func: Func, memory: Sequence[Argument], used: int
    ) -> Iterator[Launch]:
        """The launch of a function.  used: bytes of scratch memory before its own."""
        if not units(func):
            return
        if func.content not in self.funcs:
            is_taken = any(other.name == func.name for other in self.funcs.values())
            name = f"{func.name}_{len(self.funcs)}" if is_taken else func.name
            self.funcs[func.content] = replace(func, name=name)
        func = self.funcs[func.content]
        shape, each = geometry(func), scratch_bytes(func, DIALECT)
        threads = shape.threads or min(ROW.block, units(func))
        blocks = shape.blocks if shape.threads else ceil_div(units(func), threads)
        if each:
            blocks = max(1, min(blocks, _MOST_WITH_SCRATCH // threads))
            memory = [*memory, Scratch(used, each * blocks * threads)]
        kernel = SimtKernel(symbol(func, DIALECT), blocks, threads)
        yield Launch(kernel, tuple(memory), step)


_FUNCTIONS = {
    "bu_at": """\
static bu_address bu_at(bu_address address, uint64_t offset) {
  address.offset += offset;
  return address;
}""",
    "bu_check": f"""\
static int bu_check(cl_mem memory) {{
  return memory == NULL ? {_NULL_POINTER} : 0;
}}""",
    "bu_launch": """\
static int bu_launch(const bu_call *call, int kernel, bu_address *memory, uint32_t count) {
  const cl_kernel function = call->device->kernels[kernel];
  const size_t threads = bu_kernels[kernel].threads, all = bu_kernels[kernel].blocks * threads;
  cl_int result = CL_SUCCESS;
  for (uint32_t n = 0; n < count && result == CL_SUCCESS; n++) {
    result = clSetKernelArg(function, 2 * n, sizeof memory[n].memory, &memory[n].memory);
    if (result == CL_SUCCESS)
      result = clSetKernelArg(function, 2 * n + 1, sizeof memory[n].offset, &memory[n].offset);
  }
  if (result != CL_SUCCESS) return result;
  return clEnqueueNDRangeKernel(call->queue, function, 1, NULL, &all, &threads, 0, NULL, NULL);
}""",
    "bu_copy": """\
static int bu_copy(const bu_call *call, bu_address target, bu_address source, size_t bytes) {
  if (target.memory == source.memory && target.offset == source.offset) return 0;
  return clEnqueueCopyBuffer(call->queue, source.memory, target.memory, source.offset,
      target.offset, bytes, 0, NULL, NULL);
}""",
    "bu_clear": """\
static int bu_clear(const bu_call *call, bu_address target, size_t bytes) {
  const cl_uchar zero = 0;
  return clEnqueueFillBuffer(
      call->queue, target.memory, &zero, sizeof zero, target.offset, bytes, 0, NULL, NULL);
}""",
    "bu_read": """\
static int bu_read(const bu_call *call, void *target, bu_address source, size_t bytes) {
  return clEnqueueReadBuffer(
      call->queue, source.memory, CL_TRUE, source.offset, bytes, target, 0, NULL, NULL);
}""",
    "bu_write": """\
static int bu_write(
    cl_command_queue queue, bu_address target, const void *source, size_t bytes) {
  return clEnqueueWriteBuffer(
      queue, target.memory, CL_TRUE, target.offset, bytes, source, 0, NULL, NULL);
}""",
}
_UNLOAD = f"""\
int NAME_unload(NAME_device *device) {{
  if (device == NULL) return {_NULL_POINTER};
  for (size_t n = 0; n < sizeof device->kernels / sizeof *device->kernels; n++)
    if (device->kernels[n] != NULL) clReleaseKernel(device->kernels[n]);
  return clReleaseProgram(device->program);
}}"""
_LOAD = f"""\
int NAME_load(NAME_device *device, cl_context context, cl_device_id id) {{
  if (device == NULL) return {_NULL_POINTER};
  const char *text = (const char *)bu_code;
  const size_t length = sizeof bu_code - 1;
  cl_int result;
  memset(device, 0, sizeof *device);
  device->program = clCreateProgramWithSource(context, 1, &text, &length, &result);
  if (result != CL_SUCCESS) return result;
  result = clBuildProgram(device->program, 1, &id, "{" ".join(OPENCL.flags)}", NULL, NULL);
  for (size_t n = 0; n < sizeof bu_kernels / sizeof *bu_kernels && result == CL_SUCCESS; n++)
    if (bu_kernels[n].blocks > 0)
      device->kernels[n] = clCreateKernel(device->program, bu_kernels[n].name, &result);
  if (result != CL_SUCCESS) NAME_unload(device);
  return result;
}}"""
#: OpenCL's interface in C.
DRIVER = HostDialect(
    driver=Driver(
        include=(
            "#ifndef CL_TARGET_OPENCL_VERSION\n#define CL_TARGET_OPENCL_VERSION 120\n#endif\n"
            "#include <CL/cl.h>"
        ),
        memory="cl_mem",
        queue="cl_command_queue queue",
        context=("cl_context context", "cl_device_id id"),
        state=("cl_program program", "cl_kernel kernels[KERNELS]"),
        errors="errors of OpenCL",
    ),
    null="(bu_address){NULL, 0}",
    of="(bu_address){{{memory}, 0}}",
    row_alignment=1,
    types="typedef struct {\n  cl_mem memory;\n  cl_ulong offset;\n} bu_address;",
    functions=_FUNCTIONS,
    load=_LOAD,
    unload=_UNLOAD,
)

__all__ = ["TARGET", "OpenCLSource"]

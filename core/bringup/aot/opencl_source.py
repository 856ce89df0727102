"""OpenCL C of programs, and a C file that launches it through OpenCL 1.2, of any vendor.

Kernels and library ops are functions of the loop level, whose loops are shared by work items as
core chooses for a GPU of which nothing is known but what most have.  A kernel takes each buffer as
memory and an offset: parts of the arena and rows of stacks may begin anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from bringup.aot.host_source import ALIGNMENT, HostDialect, host_library
from bringup.aot.loop_commands import LoopCommands
from bringup.backend.adapters import SimpleBackend, scheduled_loops
from bringup.backend.capabilities import CONTROL_CLAIMS, Capabilities, LibraryClaims, Shapes
from bringup.backend.device import Device, NoHardware
from bringup.backend.link import STATUS, Driver, Linked, LinkOptions, LinkUnit, Weights
from bringup.c import OPENCL, Dialect, c_claims, render_c
from bringup.kernel.form import Kernel
from bringup.kernel.limits import Limits
from bringup.llvm.choices import chunk_length_for, scheduled_for
from bringup.loops.schedule import Scheduled
from bringup.program.program import KernelStep
from bringup.target import Target

#: The name of the target.
TARGET = "opencl-c"
#: A parameter is memory and where the buffer begins in it.
_PARAMETER = "__global {type} *bu_base{{n}}, ulong bu_offset{{n}}"


def located(dialect: Dialect) -> Dialect:
    """OpenCL C whose functions take each buffer as memory and where it begins there."""
    return replace(
        dialect,
        pointer=_PARAMETER.format(type="{type}"),
        scratch=_PARAMETER.format(type="uchar"),
        begin=(
            "__global {type} *{restrict}{name} ="
            " (__global {type} *)((__global const uchar *)bu_base{n} + bu_offset{n});"
        ),
    )


DIALECT = located(OPENCL)
#: What schedules are chosen for: work groups and local memory that every GPU has.
ROW = Target(
    line_bytes=128,
    threads=1 << 14,
    block=256,
    most_threads=256,
    shared_bytes=32 << 10,
    multiprocessors=16,
)
_, _NULL_POINTER, _, _, _ = range(len(STATUS))


def capabilities() -> Capabilities:
    """What OpenCL C holds: kernels, the ops of the op library, loops and branches."""
    kernels, tiles = c_claims(DIALECT), ROW.tile_bytes
    return Capabilities(
        kernels=kernels,
        ops={**LibraryClaims(kernels), **CONTROL_CLAIMS},
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
        return scheduled_for(step, ROW)

    def chunk_length(self, kernel: Kernel, target: str = "") -> int:
        """Chunks of long sums that would leave much of a GPU idle."""
        return chunk_length_for(kernel, ROW)

    def link_targets(self) -> Sequence[str]:
        """OpenCL C."""
        return (TARGET,)

    def link(
        self, units: Sequence[LinkUnit], weights: Weights, target: str, options: LinkOptions
    ) -> Linked:
        """The file, and the kernels beside it.  Raises UnsupportedError."""
        scheduled = scheduled_loops if options.small else self.scheduled
        return opencl_library(units, weights, options, LoopCommands(DIALECT, ROW, scheduled))


def opencl_library(
    units: Sequence[LinkUnit], weights: Weights, options: LinkOptions, kernels: LoopCommands
) -> Linked:
    """A library of OpenCL C.  kernels: for `located` OpenCL C.  Raises UnsupportedError."""
    commands = [kernels.of(unit.program) for unit in units]
    code = kernels.functions.text().encode()
    return host_library(units, commands, code, ".cl", weights, options, DRIVER)


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
        queue="cl_command_queue",
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

__all__ = ["TARGET", "OpenCLSource", "located", "opencl_library"]

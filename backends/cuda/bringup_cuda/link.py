"""Libraries made ahead of time for NVIDIA GPUs: PTX, and a C file that needs the driver alone."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.aot.host_source import HostDialect, host_library
from bringup.backend.link import STATUS, Driver, Linked, LinkOptions, LinkUnit, Weights
from bringup_cuda.codegen.lower import to_ptx, translate_all
from bringup_cuda.runtime.modules import MIN_UNITS
from bringup_cuda.targets import ROW_ALIGNMENT

_, _NULL_POINTER, _MISALIGNED, _, _ = range(len(STATUS))


def link(units: Sequence[LinkUnit], weights: Weights, target: str, options: LinkOptions) -> Linked:
    """The file of ``units`` and its PTX.  Raises UnsupportedError, CompileError."""
    translated = translate_all([unit.program for unit in units], target)
    ptx = to_ptx(translated[0].text, target)
    commands = [each.commands for each in translated]
    return host_library(units, commands, ptx.encode(), ".ptx", weights, options, DRIVER)


_FUNCTIONS = {
    "bu_status": """\
static int bu_status(CUresult result) {
  return -(int)result;
}""",
    "bu_at": """\
static bu_address bu_at(bu_address address, uint64_t offset) {
  return address + offset;
}""",
    "bu_check": f"""\
static int bu_check(CUdeviceptr memory) {{
  if (memory == 0) return {_NULL_POINTER};
  return memory % {ROW_ALIGNMENT} == 0 ? 0 : {_MISALIGNED};
}}""",
    "bu_launch": """\
/* Every parameter is an address, so that they lie in memory as the kernel takes them. */
static int bu_launch(const bu_call *call, int kernel, bu_address *memory, uint32_t count) {
  const bu_kernel *const shape = &bu_kernels[kernel];
  size_t bytes = count * sizeof *memory;
  void *parameters[] = {
    CU_LAUNCH_PARAM_BUFFER_POINTER, memory, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
    CU_LAUNCH_PARAM_END,
  };
  return bu_status(cuLaunchKernel(call->device->kernels[kernel], call->device->blocks[kernel], 1, 1,
      shape->threads, 1, 1, shape->shared_bytes, call->queue, NULL, parameters));
}""",
    "bu_copy": """\
static int bu_copy(const bu_call *call, bu_address target, bu_address source, size_t bytes) {
  if (target == source) return 0;
  return bu_status(cuMemcpyDtoDAsync(target, source, bytes, call->queue));
}""",
    "bu_read": """\
static int bu_read(const bu_call *call, void *target, bu_address source, size_t bytes) {
  const int status = bu_status(cuMemcpyDtoHAsync(target, source, bytes, call->queue));
  return status != 0 ? status : bu_status(cuStreamSynchronize(call->queue));
}""",
    "bu_write": """\
static int bu_write(CUstream stream, bu_address target, const void *source, size_t bytes) {
  return bu_status(cuMemcpyHtoDAsync(target, source, bytes, stream));
}""",
    "bu_blocks": f"""\
/* Fewer blocks than a kernel has work for, if each of those that the GPU holds at once has much. */
static int bu_blocks(const bu_kernel *kernel, CUfunction function, unsigned *blocks) {{
  CUdevice device;
  int processors = 0, resident = 0;
  *blocks = kernel->blocks;
  if (!kernel->persistent) return 0;
  CUresult result = cuCtxGetDevice(&device);
  if (result == CUDA_SUCCESS)
    result = cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
  if (result == CUDA_SUCCESS)
    result = cuOccupancyMaxActiveBlocksPerMultiprocessor(
        &resident, function, (int)kernel->threads, kernel->shared_bytes);
  const unsigned most = (unsigned)(processors * resident);
  if (most > 0 && kernel->blocks / most >= {MIN_UNITS}) *blocks = most;
  return bu_status(result);
}}""",
}
_UNLOAD = f"""\
int NAME_unload(NAME_device *device) {{
  if (device == NULL) return {_NULL_POINTER};
  return bu_status(cuModuleUnload(device->module));
}}"""
_LOAD = f"""\
int NAME_load(NAME_device *device) {{
  if (device == NULL) return {_NULL_POINTER};
  int status = bu_status(cuModuleLoadData(&device->module, bu_code));
  if (status != 0) return status;
  for (int n = 0; n < (int)(sizeof bu_kernels / sizeof *bu_kernels) && status == 0; n++) {{
    const bu_kernel *const kernel = &bu_kernels[n];
    CUfunction *const function = &device->kernels[n];
    if (kernel->blocks == 0) break;
    status = bu_status(cuModuleGetFunction(function, device->module, kernel->name));
    if (status == 0 && kernel->shared_bytes > 0)
      status = bu_status(cuFuncSetAttribute(*function,
          CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)kernel->shared_bytes));
    if (status == 0) status = bu_blocks(kernel, *function, &device->blocks[n]);
  }}
  if (status != 0) NAME_unload(device);
  return status;
}}"""
#: The driver's interface in C, as CUDA 12 and later have it.
DRIVER = HostDialect(
    driver=Driver(
        include="#include <cuda.h>",
        memory="CUdeviceptr",
        queue="CUstream",
        context=(),
        state=("CUmodule module", "CUfunction kernels[KERNELS]", "unsigned blocks[KERNELS]"),
        errors="CUresults, negated",
        integers={"CUdeviceptr": "u64", "unsigned": "u32"},
    ),
    null="0",
    of="{memory}",
    row_alignment=ROW_ALIGNMENT,
    types="typedef CUdeviceptr bu_address;",
    functions=_FUNCTIONS,
    load=_LOAD,
    unload=_UNLOAD,
)

__all__ = ["DRIVER", "link"]

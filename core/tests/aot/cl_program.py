"""Programs in C that call every function of a library of OpenCL C, on memory of exact sizes."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from c_cases import Case
from c_program import compilers, flat

#: Each function runs twice, with other contents of the arena and of the results.
_MAIN = """\
#include "NAME.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { const char *name; int (*call)(cl_mem *, cl_mem *, cl_mem, cl_mem); size_t arena;
  int args, results; const size_t *bytes; } function;

static cl_context context;
static cl_device_id id;
static cl_command_queue queue;
static NAME_device device;

static cl_mem make(size_t bytes) {
  return bytes ? clCreateBuffer(context, CL_MEM_READ_WRITE, bytes, NULL, NULL) : NULL;
}
static int fill(cl_mem memory, size_t bytes, unsigned char value) {
  return bytes ? clEnqueueFillBuffer(queue, memory, &value, 1, 0, bytes, 0, NULL, NULL) : 0;
}
static int fetch(cl_mem memory, size_t bytes, void *to) {
  return bytes ? clEnqueueReadBuffer(queue, memory, CL_TRUE, 0, bytes, to, 0, NULL, NULL) : 0;
}

FUNCTIONS

int main(int count, char **names) {
  cl_platform_id platform;
  if (count < 3) return 2;
  if (clGetPlatformIDs(1, &platform, NULL)) return 77;
  if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &id, NULL)) return 77;
  context = clCreateContext(NULL, 1, &id, NULL, NULL, NULL);
  queue = clCreateCommandQueue(context, id, 0, NULL);
  int status = NAME_load(&device, context, id);
  if (status) return fprintf(stderr, "NAME_load gave %d\\n", status), 3;
  cl_mem weights = make(WEIGHTS_BYTES);
  if (weights && (status = UPLOAD)) return fprintf(stderr, "NAME_upload gave %d\\n", status), 3;
  FILE *in = fopen(names[1], "rb"), *out = fopen(names[2], "wb");
  for (size_t k = 0; k < sizeof functions / sizeof *functions; k++) {
    const function *f = &functions[k];
    const int all = f->args + f->results;
    cl_mem arrays[16], arena = make(f->arena);
    unsigned char *data[16], *again;
    for (int n = 0; n < all; n++) {
      arrays[n] = make(f->bytes[n]);
      data[n] = malloc(f->bytes[n] + 1);
      if (n >= f->args || !f->bytes[n]) continue;
      if (fread(data[n], 1, f->bytes[n], in) != f->bytes[n]) return 4;
      if (clEnqueueWriteBuffer(queue, arrays[n], CL_TRUE, 0, f->bytes[n], data[n], 0, NULL, NULL))
        return 4;
    }
    for (int time = 0; time < 2; time++) {
      if (fill(arena, f->arena, time ? 0xFF : 0)) return 5;
      for (int n = f->args; n < all; n++)
        if (fill(arrays[n], f->bytes[n], time ? 0 : 0xFF)) return 5;
      status = f->call(arrays, arrays + f->args, arena, weights);
      if (status) return fprintf(stderr, "%s gave %d\\n", f->name, status), 6;
      for (int n = 0; n < all; n++) {
        again = malloc(f->bytes[n] + 1);
        if ((status = fetch(arrays[n], f->bytes[n], again)))
          return fprintf(stderr, "%s ended with %d\\n", f->name, status), 7;
        if ((n < f->args || time) && memcmp(again, data[n], f->bytes[n]))
          return fprintf(stderr, "%s: array %d differs\\n", f->name, n), 8;
        memcpy(data[n], again, f->bytes[n]);
        free(again);
      }
    }
    for (int n = 0; n < all; n++) {
      if (n >= f->args && fwrite(data[n], 1, f->bytes[n], out) != f->bytes[n]) return 9;
      if (arrays[n]) clReleaseMemObject(arrays[n]);
      free(data[n]);
    }
    if (arena) clReleaseMemObject(arena);
  }
  return fclose(out) || NAME_unload(&device);
}
"""

_CALL = """\
static int call_{name}(cl_mem *a, cl_mem *r, cl_mem arena, cl_mem weights) {{
  const {library}_{name}_args args = {{{args}}};
  const {library}_{name}_results results = {{{results}}};
  (void)a, (void)r, (void)weights;
  return {library}_{name}(&device, &args, &results, arena, queue);
}}
static const size_t bytes_{name}[] = {{{bytes}}};
"""


def main_of(library: str, cases: Mapping[str, Case], arenas: Mapping[str, int], header: str) -> str:
    """The text of a program that runs the cases.  header: of the library."""
    texts, rows = [], []
    for name, case in cases.items():
        args, results = flat(case.arguments), flat(case.results)
        struct = header[: header.index(f"}} {library}_{name}_args;")].rpartition("typedef")[2]
        given = [f"a[{n}]" for n in range(len(args))]
        given += ["weights"] if "cl_mem weights;" in struct else []
        texts.append(
            _CALL.format(
                name=name,
                library=library,
                args=", ".join(given) or "NULL",
                results=", ".join(f"r[{n}]" for n in range(len(results))),
                bytes=", ".join(str(array.nbytes) for array in (*args, *results)),
            )
        )
        arena = arenas[f"{library}_{name}"]
        counts = f"{len(args)}, {len(results)}"
        rows.append(f'  {{"{name}", call_{name}, {arena}, {counts}, bytes_{name}}},')
    table = "\n".join(["static const function functions[] = {", *rows, "};"])
    upload = f"{library}_upload(weights, queue)" if f"int {library}_upload(" in header else "1"
    text = _MAIN.replace("FUNCTIONS", "\n".join([*texts, table])).replace("UPLOAD", upload)
    return text.replace("WEIGHTS_BYTES", f"{library.upper()}_WEIGHTS_BYTES").replace(
        "NAME", library
    )


def missing(folder: Path) -> str:
    """What of OpenCL is not there to compile and run a program with, or nothing."""
    if not compilers():
        return "there is no C compiler"
    source, program = folder / "empty.c", folder / "empty"
    source.write_text(
        "#define CL_TARGET_OPENCL_VERSION 120\n#include <CL/cl.h>\n"
        "int main(void) { cl_platform_id p; return clGetPlatformIDs(1, &p, NULL) != CL_SUCCESS; }\n"
    )
    command = [*compilers()[0], str(source), "-lOpenCL", "-o", str(program)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return "CL/cl.h or libOpenCL is not installed"
    if subprocess.run([str(program)], capture_output=True, check=False).returncode:
        return "there is no OpenCL platform"
    return ""


__all__ = ["main_of", "missing"]

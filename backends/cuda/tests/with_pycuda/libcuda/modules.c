/* Modules of PTX, their kernels, and launches: checked against what the text declares. */
#define _GNU_SOURCE
#include "standin.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FREE_SHARED = 48 << 10, MOST_SHARED = 227 << 10, MAX_THREADS = 1024 };

static struct { char kernel[256]; CUresult status; } fault;
static struct launch {
  char kernel[256];
  unsigned grid[3], block[3], shared, bytes;
} last;

/* From now on this kernel fails when it runs; status 0: no more. */
EXPORT void standin_fault(const char *kernel, int status) {
  snprintf(fault.kernel, sizeof fault.kernel, "%s", kernel);
  fault.status = (CUresult)status;
}
EXPORT void standin_last(struct launch *out) { *out = last; }

static unsigned number_after(const char *text, const char *end, const char *word, unsigned other) {
  const char *found = memmem(text, (size_t)(end - text), word, strlen(word));
  return found ? (unsigned)strtoul(found + strlen(word), NULL, 10) : other;
}

static unsigned size_of(const char *type) {
  unsigned bits = (unsigned)strtoul(type + 2, NULL, 10);
  return bits / 8;
}

/* One `.param .align 8 .b8 name[16]` or `.param .u64 .ptr .global .align 16 name`. */
static unsigned place(const char *text, const char *end, unsigned at) {
  static const char *const types[] = {".u64", ".s64", ".b64", ".f64", ".u32", ".s32", ".b32",
                                      ".f32", ".u16", ".s16", ".b16", ".f16", ".u8", ".s8", ".b8"};
  unsigned size = 0, align;
  for (size_t i = 0; i < sizeof types / sizeof *types && !size; ++i) {
    const char *found = memmem(text, (size_t)(end - text), types[i], strlen(types[i]));
    if (found) size = size_of(found);
  }
  align = size;
  const char *bracket = memchr(text, '[', (size_t)(end - text));
  if (bracket) {
    align = number_after(text, end, ".align ", size);
    size *= (unsigned)strtoul(bracket + 1, NULL, 10);
  }
  return (at + align - 1) / align * align + size;
}

static unsigned parameters(const char *text, const char *end) {
  unsigned at = 0;
  for (const char *p = text; (p = memmem(p, (size_t)(end - p), ".param", 6)); p += 6) {
    const char *stop = p + strcspn(p, ",)");
    at = place(p, stop < end ? stop : end, at);
  }
  return at;
}

/* Bytes of `.shared .align 16 .b8 name[N];` in a stretch of text; `.extern` ones have none. */
static unsigned shared(const char *text, const char *end) {
  unsigned bytes = 0;
  for (const char *p = text; (p = memmem(p, (size_t)(end - p), ".shared .align", 14)); p += 14) {
    const char *stop = p + strcspn(p, ";");
    bytes = place(p, stop, bytes);
  }
  return bytes;
}

static CUfunction find(CUmodule module, const char *name) {
  for (CUfunction f = module->functions; f; f = f->next)
    if (!strcmp(f->name, name)) return f;
  const char *p = module->image;
  size_t length = strlen(name);
  while ((p = strstr(p, ".entry "))) {
    p += strlen(".entry ");
    if (strncmp(p, name, length) || isalnum((unsigned char)p[length]) || strchr("_$", p[length]))
      continue;
    const char *body = strchr(p, '{'), *close = strchr(p, ')'), *end = strstr(p, ".entry ");
    if (!body || !close || close > body) return NULL;
    if (!end) end = p + strlen(p);
    CUfunction made = calloc(1, sizeof *made);
    made->next = module->functions;
    module->functions = made;
    made->module = module;
    made->name = strdup(name);
    made->parameter_bytes = parameters(p, close);
    made->threads = number_after(close, body, ".maxntid ", MAX_THREADS);
    /* Those outside belong to any kernel that names them: all, to be on the safe side. */
    made->static_shared = shared(module->image, strstr(module->image, ".entry ")) + shared(body, end);
    made->dynamic_shared = FREE_SHARED;
    return made;
  }
  return NULL;
}

/* Fill the compiler's logs, once: sizes are overwritten by what was used. */
static CUresult say(unsigned count, CUjit_option *options, void **values, CUresult status,
                    const char *problem) {
  char *buffer[2] = {NULL, NULL};
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == CU_JIT_INFO_LOG_BUFFER) buffer[0] = values[i];
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER) buffer[1] = values[i];
  }
  for (unsigned i = 0; i < count; ++i) {
    int error = options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES;
    if (!error && options[i] != CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES) continue;
    const char *text = error ? problem : "";
    snprintf(buffer[error], (size_t)values[i], "%s", text);
    values[i] = (void *)(*text ? strlen(text) + 1 : 0);
  }
  return status;
}

static CUresult check(const char *text, const char **problem) {
  const char *version = strstr(text, ".version "), *target = strstr(text, ".target sm_");
  *problem = "";
  if (!version || !target) {
    *problem = "ptxas fatal   : Missing .version directive at start of file";
    return CUDA_ERROR_INVALID_PTX;
  }
  if (strtoul(target + strlen(".target sm_"), NULL, 10) > 90) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  if (strtod(version + strlen(".version "), NULL) > 8.75)
    return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  return CUDA_SUCCESS;
}

static CUresult load(CUmodule *made, const void *image, unsigned count, CUjit_option *options,
                     void **values) {
  CUresult status = unsafe();
  if (status) LEAVE(status);
  const char *problem;
  status = check(image, &problem);
  int hooked = -1;
  if (!status && hooks.load && (hooked = hooks.load(current()->device, image)) < 0)
    status = CUDA_ERROR_INVALID_PTX, problem = "the hook does not load this text";
  if (status) LEAVE(say(count, options, values, status, problem));
  *made = calloc(1, sizeof **made);
  (*made)->context = current();
  (*made)->image = strdup(image);
  (*made)->hooked = hooked;
  LEAVE(say(count, options, values, CUDA_SUCCESS, ""));
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *made, const void *image, unsigned count,
                                   CUjit_option *options, void **values) {
  ENTER(1);
  return load(made, image, count, options, values);
}

EXPORT CUresult cuModuleLoadData(CUmodule *made, const void *image) {
  ENTER(1);
  return load(made, image, 0, NULL, NULL);
}

EXPORT CUresult cuModuleUnload(CUmodule module) {
  ENTER(1);
  CUresult refused = unsafe();
  if (refused) LEAVE(refused);
  if (module->context != current()) LEAVE(CUDA_ERROR_INVALID_CONTEXT);
  run_all(current());
  /* Its functions stay: who uses one that is gone is told. */
  module->context = NULL;
  free(module->image);
  module->image = NULL;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  ENTER(1);
  if (module->context != current()) LEAVE(CUDA_ERROR_INVALID_HANDLE);
  *function = find(module, name);
  LEAVE(*function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
}

EXPORT CUresult cuFuncGetAttribute(int *value, CUfunction_attribute asked, CUfunction function) {
  ENTER(1);
  switch (asked) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = (int)function->threads; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = (int)function->static_shared; break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = 0; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = (int)function->dynamic_shared; break;
    default: LEAVE(CUDA_ERROR_INVALID_VALUE);
  }
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute asked, int value) {
  ENTER(1);
  if (asked != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 ||
      (unsigned)value + function->static_shared > MOST_SHARED)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  function->dynamic_shared = (unsigned)value;
  LEAVE(CUDA_SUCCESS);
}

/* As many as the threads of a multiprocessor allow. */
EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function,
                                                            int threads, size_t shared_) {
  ENTER(1);
  if (threads < 1 || (unsigned)threads > function->threads || shared_ > function->dynamic_shared)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  *blocks = 2048 / threads;
  LEAVE(CUDA_SUCCESS);
}

/* pycuda asks before every launch, which then says the shape itself. */
EXPORT CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z) {
  ENTER(1);
  if (x < 1 || y < 1 || z < 1 || (unsigned)(x * y * z) > function->threads)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  LEAVE(CUDA_SUCCESS);
}

static const void *parameter_block(void **extra, size_t *bytes) {
  const void *block = NULL;
  *bytes = 0;
  for (void **at = extra; at && *at != CU_LAUNCH_PARAM_END; at += 2) {
    if (*at == CU_LAUNCH_PARAM_BUFFER_POINTER) block = at[1];
    if (*at == CU_LAUNCH_PARAM_BUFFER_SIZE) *bytes = *(size_t *)at[1];
  }
  return block;
}

EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                               unsigned by, unsigned bz, unsigned shared_, CUstream stream,
                               void **given, void **extra) {
  ENTER(1);
  if (!owns(stream) || f->module->context != current()) LEAVE(CUDA_ERROR_INVALID_HANDLE);
  if (given) LEAVE(CUDA_ERROR_NOT_SUPPORTED);
  if (!gx || !gy || !gz || !bx || !by || !bz || gx > 0x7fffffff || gy > 65535 || gz > 65535)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  if (bx > MAX_THREADS || by > MAX_THREADS || bz > 64 || bx * by * bz > f->threads)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  if (shared_ > f->dynamic_shared) LEAVE(CUDA_ERROR_INVALID_VALUE);
  size_t bytes;
  const void *block = parameter_block(extra, &bytes);
  if (bytes != f->parameter_bytes || bytes > MAX_PARAMETERS) LEAVE(CUDA_ERROR_INVALID_VALUE);
  struct work *made = work_of(LAUNCH);
  made->function = f;
  made->grid[0] = gx, made->grid[1] = gy, made->grid[2] = gz;
  made->block[0] = bx, made->block[1] = by, made->block[2] = bz;
  made->shared = shared_, made->bytes = bytes;
  made->own = malloc(bytes ? bytes : 1);
  memcpy(made->own, block, bytes);
  LEAVE(queue(stream, made));
}

CUresult run_launch(CUcontext context, const struct work *work) {
  CUfunction f = work->function;
  snprintf(last.kernel, sizeof last.kernel, "%s", f->name);
  memcpy(last.grid, work->grid, sizeof last.grid);
  memcpy(last.block, work->block, sizeof last.block);
  last.shared = work->shared, last.bytes = (unsigned)work->bytes;
  if (fault.status && !strcmp(fault.kernel, f->name)) return fault.status;
  if (!f->module->image) return CUDA_ERROR_ILLEGAL_INSTRUCTION; /* unloaded under the launch */
  if (!hooks.launch) return CUDA_SUCCESS;
  return (CUresult)hooks.launch(context->device, f->module->hooked, f->name, work->grid, work->block,
                                work->shared, work->own, work->bytes);
}

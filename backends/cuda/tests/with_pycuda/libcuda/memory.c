/* Memory of devices and pinned memory of the host; copies. */
#include "standin.h"

#include <stdlib.h>
#include <string.h>

struct allocation *allocations;
static uint64_t device_memory = 1ull << 30;

uint64_t memory_of(int device) {
  (void)device;
  return device_memory;
}
EXPORT void standin_memory(uint64_t bytes) { device_memory = bytes; }
/* Bytes that a device has handed out. */
EXPORT uint64_t standin_used(int device) { return contexts[device].used; }
/* Pieces of pinned memory. */
EXPORT int standin_pinned(void) {
  int count = 0;
  for (struct allocation *a = allocations; a; a = a->next) count += !a->owner;
  return count;
}

struct allocation *holding(uint64_t address, uint64_t bytes) {
  for (struct allocation *a = allocations; a; a = a->next)
    if (a->address <= address && address + bytes <= a->address + a->bytes) return a;
  return NULL;
}

static int on_device(uint64_t address, uint64_t bytes, CUcontext owner) {
  struct allocation *found = holding(address, bytes);
  return found && found->owner && (!owner || found->owner == owner);
}

static void keep(CUcontext owner, uint64_t address, uint64_t bytes) {
  struct allocation *made = malloc(sizeof *made);
  *made = (struct allocation){allocations, owner, address, bytes};
  allocations = made;
}

static void release(struct allocation *found) {
  struct allocation **at = &allocations;
  while (*at != found) at = &(*at)->next;
  *at = found->next;
  if (!found->owner)
    free((void *)found->address);
  else {
    found->owner->used -= found->bytes;
    if (hooks.release)
      hooks.release(found->owner->device, found->address);
    else
      free((void *)found->address);
  }
  free(found);
}

void forget_memory(CUcontext context) {
  for (struct allocation *a = allocations, *next; a; a = next) {
    next = a->next;
    if (a->owner == context) release(a);
  }
}

EXPORT CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes) {
  ENTER(1);
  CUresult refused = unsafe();
  if (refused) LEAVE(refused);
  if (!bytes) LEAVE(CUDA_ERROR_INVALID_VALUE);
  CUcontext context = current();
  if (context->used + bytes > device_memory) LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  void *own = NULL;
  if (!hooks.allocate && posix_memalign(&own, 256, bytes)) LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  *address = hooks.allocate ? hooks.allocate(context->device, bytes) : (uintptr_t)own;
  if (!*address) LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  memset((void *)*address, 0xA5, bytes);
  context->used += bytes;
  keep(context, *address, bytes);
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuMemFree(CUdeviceptr address) {
  ENTER(1);
  CUresult refused = unsafe();
  if (refused) LEAVE(refused);
  struct allocation *found = holding(address, 1);
  if (!found || found->address != address || found->owner != current())
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  run_all(current());
  release(found);
  LEAVE(current()->failed);
}

EXPORT CUresult cuMemGetInfo(size_t *free_, size_t *total) {
  ENTER(1);
  *total = device_memory;
  *free_ = device_memory - current()->used;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuMemHostAlloc(void **made, size_t bytes, unsigned flags) {
  ENTER(1);
  (void)flags;
  CUresult refused = unsafe();
  if (refused) LEAVE(refused);
  if (posix_memalign(made, 4096, bytes ? bytes : 1)) LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  memset(*made, 0x5A, bytes);
  keep(NULL, (uintptr_t)*made, bytes);
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuMemFreeHost(void *address) {
  ENTER(1);
  CUresult refused = unsafe();
  if (refused) LEAVE(refused);
  struct allocation *found = holding((uintptr_t)address, 1);
  if (!found || found->address != (uintptr_t)address || found->owner)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  for (int i = 0; i < MAX_DEVICES; ++i)
    if (contexts[i].users) run_all(&contexts[i]);
  release(found);
  LEAVE(CUDA_SUCCESS);
}

/* -- copies -------------------------------------------------------------------------------------- */

static CUresult copy(void *to, const void *from, size_t bytes, CUstream stream) {
  struct work *made = work_of(COPY);
  made->to = to, made->from = from, made->bytes = bytes;
  return queue(stream, made);
}

static int is_pinned(const void *address, size_t bytes) {
  struct allocation *found = holding((uintptr_t)address, bytes);
  return found && !found->owner;
}

EXPORT CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
  ENTER(1);
  if (!owns(stream)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
  if (!on_device(to, bytes, current())) LEAVE(CUDA_ERROR_INVALID_VALUE);
  if (is_pinned(from, bytes)) LEAVE(copy((void *)to, from, bytes, stream));
  if (captures(stream)) LEAVE(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  struct work *made = work_of(COPY);
  made->own = malloc(bytes ? bytes : 1);
  memcpy(made->own, from, bytes);
  made->to = (void *)to, made->from = made->own, made->bytes = bytes;
  LEAVE(queue(stream, made));
}

EXPORT CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
  ENTER(1);
  if (!owns(stream)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
  if (!on_device(from, bytes, current())) LEAVE(CUDA_ERROR_INVALID_VALUE);
  if (is_pinned(to, bytes)) LEAVE(copy(to, (void *)from, bytes, stream));
  if (captures(stream)) LEAVE(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUresult status = copy(to, (void *)from, bytes, stream);
  run_all(current());
  LEAVE(status ? status : current()->failed);
}

EXPORT CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  ENTER(1);
  if (!owns(stream)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
  if (!on_device(to, bytes, current()) || !on_device(from, bytes, current()))
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  LEAVE(copy((void *)to, (void *)from, bytes, stream));
}

EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here,
                                  size_t bytes, CUstream stream) {
  ENTER(1);
  if (!owns(stream)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
  if (!on_device(to, bytes, there) || !on_device(from, bytes, here))
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  LEAVE(copy((void *)to, (void *)from, bytes, stream));
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
  ENTER(1);
  if (!owns(stream)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
  if (!on_device(to, bytes, current())) LEAVE(CUDA_ERROR_INVALID_VALUE);
  struct work *made = work_of(FILL);
  made->to = (void *)to, made->value = value, made->bytes = bytes;
  LEAVE(queue(stream, made));
}

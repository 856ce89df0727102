/* The runner for a library that launches on a device of OpenCL, the first of the first platform. */
#include "model.h"

#define model_run run_on_device
#include "runner.c"
#undef model_run

static cl_context context;
static cl_command_queue queue;
static model_device device;

/* The first call makes a context, and the code of the library in it. */
static int load(void) {
  cl_platform_id platform;
  cl_device_id id;
  if (context) return 0;
  if (clGetPlatformIDs(1, &platform, NULL)) return 101;
  if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &id, NULL)) return 101;
  context = clCreateContext(NULL, 1, &id, NULL, NULL, NULL);
  queue = clCreateCommandQueue(context, id, 0, NULL);
  return model_load(&device, context, id);
}

/* New memory of the device with these bytes; OpenCL has none without any. */
static cl_mem copied(void *bytes, uint64_t size) {
  const cl_mem_flags flags = CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR;
  return size ? clCreateBuffer(context, flags, size, bytes, NULL) : NULL;
}

int run_on_device(void *const *arguments, void *const *results, void *arena) {
  static cl_mem memory[MOST + 1];
  (void)arguments, (void)results, (void)arena;
  int status = load();
  if (status) return status;
  /* The structs are arrays of memory; behind the arguments stand the weights. */
  const uint64_t count = head[0] + head[1];
  for (uint64_t n = 0; n < head[0]; n++) memory[n] = copied(places[n], sizes[n]);
  for (uint64_t n = head[0]; n < count; n++) memory[n + 1] = copied(places[n], sizes[n]);
#if MODEL_WEIGHTS_BYTES > 0
  memory[head[0]] = clCreateBuffer(context, CL_MEM_READ_WRITE, MODEL_WEIGHTS_BYTES, NULL, NULL);
  status = model_upload(memory[head[0]], queue);
  if (status) return status;
#endif
  const void *const args = memory, *const made = memory + head[0] + 1;
  const cl_mem scratch = copied(places[count], sizes[count]);
  status = model_run(&device, args, made, scratch, queue);
  if (!status) status = clFinish(queue);
  for (uint64_t n = head[0]; n < count && !status; n++)
    if (sizes[n])
      status = clEnqueueReadBuffer(
          queue, memory[n + 1], CL_TRUE, 0, sizes[n], places[n], 0, NULL, NULL);
  if (scratch) clReleaseMemObject(scratch);
  for (uint64_t n = 0; n <= count; n++)
    if (memory[n]) clReleaseMemObject(memory[n]);
  return status;
}

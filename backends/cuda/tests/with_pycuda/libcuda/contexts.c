/* Entering and leaving, contexts, devices, injected errors, what tests ask for. */
#define _GNU_SOURCE
#include "standin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct hooks hooks;
struct CUctx_st contexts[MAX_DEVICES];

static pthread_mutex_t lock;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pid_t started; /* the process that called cuInit, 0 before */
static int devices = 2, driver_version = 12080, hooked, push_fails, interrupting;
static __thread CUcontext stack[MAX_DEPTH];
static __thread int depth;

/* -- Python's lock ------------------------------------------------------------------------------
 * pycuda keeps it in some calls, and hooks need it: whoever waits here lets go of it meanwhile. */

static int (*gil_held)(void);
static void *(*gil_release)(void);
static void (*gil_take)(void *);
static int (*gil_ensure)(void);
static void (*gil_restore)(int);
static int (*python_run)(const char *);
static int (*python_lives)(void);

static void start(void) {
  pthread_mutexattr_t recursive;
  pthread_mutexattr_init(&recursive);
  pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&lock, &recursive);
  *(void **)&gil_held = dlsym(RTLD_DEFAULT, "PyGILState_Check");
  *(void **)&gil_release = dlsym(RTLD_DEFAULT, "PyEval_SaveThread");
  *(void **)&gil_take = dlsym(RTLD_DEFAULT, "PyEval_RestoreThread");
  *(void **)&gil_ensure = dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
  *(void **)&gil_restore = dlsym(RTLD_DEFAULT, "PyGILState_Release");
  *(void **)&python_run = dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
  *(void **)&python_lives = dlsym(RTLD_DEFAULT, "Py_IsInitialized");
  const char *count = getenv("STANDIN_DEVICES"), *version = getenv("STANDIN_VERSION");
  if (count) devices = atoi(count) > MAX_DEVICES ? MAX_DEVICES : atoi(count);
  if (version) driver_version = atoi(version);
  for (int i = 0; i < MAX_DEVICES; ++i) contexts[i].device = i;
}

static void take_lock(void) {
  pthread_once(&once, start);
  if (pthread_mutex_trylock(&lock) == 0) return;
  void *state = python_lives && python_lives() && gil_held() ? gil_release() : NULL;
  pthread_mutex_lock(&lock);
  if (state) gil_take(state);
}

/* Let Python supply the hooks: once, when a device is first opened. */
static void find_hooks(void) {
  const char *module = getenv("STANDIN_HOOKS");
  if (hooked || !module || !*module || !python_lives || !python_lives()) return;
  hooked = 1;
  char text[512];
  snprintf(text, sizeof text, "import %s; %s.install()", module, module);
  int state = gil_ensure();
  if (python_run(text)) {
    fprintf(stderr, "libcuda stand-in: %s does not install\n", module);
    abort();
  }
  gil_restore(state);
}

/* -- calls: counted, and failing on demand -------------------------------------------------------- */

enum { MAX_NAMES = 256 };
static struct call {
  char name[48];
  unsigned count;
  int fail_in; /* calls until it fails, 0: not */
  int interrupt_in; /* calls until one is interrupted, 0: not */
  CUresult status;
} calls[MAX_NAMES];

static struct call *call_of(const char *name) {
  for (int i = 0; i < MAX_NAMES; ++i) {
    if (!*calls[i].name) strncpy(calls[i].name, name, sizeof calls[i].name - 1);
    if (!strcmp(calls[i].name, name)) return &calls[i];
  }
  abort();
}

CUcontext current(void) { return depth ? stack[depth - 1] : NULL; }

CUresult enter(const char *name, int wants_context) {
  take_lock();
  struct call *call = call_of(name);
  ++call->count;
  if (call->interrupt_in && !--call->interrupt_in) interrupting = 1;
  if (started != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
  if (call->fail_in && !--call->fail_in) {
    if (current() && is_sticky(call->status)) current()->failed = call->status;
    return call->status;
  }
  if (!wants_context) return CUDA_SUCCESS;
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  if (!current()->users) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return current()->failed;
}

CUresult leave(CUresult status) {
  /* At the end: Python would answer in the middle of a hook. */
  int interrupts = interrupting;
  interrupting = 0;
  pthread_mutex_unlock(&lock);
  if (interrupts) raise(SIGINT);
  return status;
}

int is_sticky(CUresult status) {
  return status == CUDA_ERROR_ILLEGAL_ADDRESS || status == CUDA_ERROR_LAUNCH_TIMEOUT ||
         status == CUDA_ERROR_ECC_UNCORRECTABLE ||
         (status >= CUDA_ERROR_ASSERT && status <= CUDA_ERROR_LAUNCH_FAILED &&
          status != CUDA_ERROR_TOO_MANY_PEERS && status != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED &&
          status != CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

EXPORT void standin_hooks(const struct hooks *given) { hooks = *given; }
EXPORT unsigned standin_count(const char *name) { return call_of(name)->count; }
EXPORT void standin_fail(const char *name, int status, int in) {
  call_of(name)->status = (CUresult)status;
  call_of(name)->fail_in = in;
}
/* As if somebody pressed Ctrl-C while it runs. */
EXPORT void standin_interrupt(const char *name, int in) { call_of(name)->interrupt_in = in; }
/* Make contexts usable again that an error ended: what no real driver does, for the next test. */
EXPORT void standin_heal(void) {
  for (int i = 0; i < MAX_DEVICES; ++i) contexts[i].failed = CUDA_SUCCESS;
}
/* Whether an ended context cannot be pushed either: cuda.h allows both. */
EXPORT void standin_push_fails(int whether) { push_fails = whether; }
/* How many contexts this thread has pushed. */
EXPORT int standin_depth(void) { return depth; }

/* -- the driver ---------------------------------------------------------------------------------- */

EXPORT CUresult cuInit(unsigned flags) {
  take_lock();
  struct call *call = call_of(__func__);
  ++call->count;
  if (flags) LEAVE(CUDA_ERROR_INVALID_VALUE);
  if (call->fail_in && !--call->fail_in) LEAVE(call->status);
  if (!devices) LEAVE(CUDA_ERROR_NO_DEVICE);
  /* A child of a process that started the driver cannot start it again. */
  if (started && started != getpid()) LEAVE(CUDA_ERROR_NOT_INITIALIZED);
  started = getpid();
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuDriverGetVersion(int *version) {
  take_lock();
  *version = driver_version;
  LEAVE(CUDA_SUCCESS);
}

static const struct { CUresult status; const char *name, *text; } texts[] = {
  {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
  {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
  {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
  {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
  {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
  {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
  {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
  {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
  {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
  {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
   "no kernel image is available for execution on the device"},
  {CUDA_ERROR_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE",
   "uncorrectable ECC error encountered"},
  {CUDA_ERROR_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
  {CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
   "the provided PTX was compiled with an unsupported toolchain."},
  {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
  {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
  {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
  {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
   "an illegal memory access was encountered"},
  {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
   "too many resources requested for launch"},
  {CUDA_ERROR_LAUNCH_TIMEOUT, "CUDA_ERROR_LAUNCH_TIMEOUT",
   "the launch timed out and was terminated"},
  {CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
   "peer access is already enabled"},
  {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
  {CUDA_ERROR_ASSERT, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
  {CUDA_ERROR_HARDWARE_STACK_ERROR, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error"},
  {CUDA_ERROR_ILLEGAL_INSTRUCTION, "CUDA_ERROR_ILLEGAL_INSTRUCTION",
   "an illegal instruction was encountered"},
  {CUDA_ERROR_MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
  {CUDA_ERROR_INVALID_ADDRESS_SPACE, "CUDA_ERROR_INVALID_ADDRESS_SPACE",
   "operation not supported on global/shared address space"},
  {CUDA_ERROR_INVALID_PC, "CUDA_ERROR_INVALID_PC", "invalid program counter"},
  {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
  {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
  {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
  {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
   "operation not permitted when stream is capturing"},
  {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
   "operation failed due to a previous error during capture"},
  {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult text_of(CUresult status, const char **text, int name) {
  for (size_t i = 0; i < sizeof texts / sizeof *texts; ++i)
    if (texts[i].status == status) {
      *text = name ? texts[i].name : texts[i].text;
      return CUDA_SUCCESS;
    }
  *text = NULL;
  return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult status, const char **text) {
  return text_of(status, text, 0);
}
EXPORT CUresult cuGetErrorName(CUresult status, const char **text) {
  return text_of(status, text, 1);
}

/* -- devices ------------------------------------------------------------------------------------- */

EXPORT CUresult cuDeviceGetCount(int *count) {
  ENTER(0);
  *count = devices;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  ENTER(0);
  if (ordinal < 0 || ordinal >= devices) LEAVE(CUDA_ERROR_INVALID_DEVICE);
  *device = ordinal;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
  ENTER(0);
  snprintf(name, (size_t)length, "stand-in GPU %d", device);
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) {
  ENTER(0);
  *bytes = memory_of(device);
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
  ENTER(0);
  (void)device;
  *major = 9, *minor = 0;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute asked, CUdevice device) {
  ENTER(0);
  switch (asked) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 4; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = 2048; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: *value = 1 << 16; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = 228 << 10; break;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: *value = 1 << 10; break;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: *value = 3; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 227 << 10; break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = device + 1; break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = 1000000; break;
    default: LEAVE(CUDA_ERROR_INVALID_VALUE);
  }
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
  ENTER(0);
  *can = device != peer;
  LEAVE(CUDA_SUCCESS);
}

/* -- contexts ------------------------------------------------------------------------------------ */

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  ENTER(0);
  if (device < 0 || device >= devices) LEAVE(CUDA_ERROR_INVALID_DEVICE);
  find_hooks();
  ++contexts[device].users;
  *context = &contexts[device];
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  ENTER(0);
  CUcontext context = &contexts[device];
  if (!context->users) LEAVE(CUDA_ERROR_INVALID_CONTEXT);
  if (context->users == 1) {
    if (!context->failed) run_all(context);
    forget_streams(context);
    forget_memory(context);
    context->failed = CUDA_SUCCESS;
    context->peers = 0;
  }
  --context->users;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxPushCurrent(CUcontext context) {
  ENTER(0);
  if (context < contexts || context >= contexts + MAX_DEVICES || depth == MAX_DEPTH)
    LEAVE(CUDA_ERROR_INVALID_CONTEXT);
  if (push_fails && context->failed) LEAVE(context->failed);
  stack[depth++] = context;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxPopCurrent(CUcontext *context) {
  ENTER(0);
  if (!depth) LEAVE(CUDA_ERROR_INVALID_CONTEXT);
  *context = stack[--depth];
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
  ENTER(1);
  *device = current()->device;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxSynchronize(void) {
  ENTER(1);
  CUresult refused = unsafe();
  if (refused) LEAVE(refused);
  run_all(current());
  LEAVE(current()->failed);
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  ENTER(1);
  if (flags || peer == current()) LEAVE(CUDA_ERROR_INVALID_VALUE);
  unsigned bit = 1u << peer->device;
  if (current()->peers & bit) LEAVE(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  current()->peers |= bit;
  LEAVE(CUDA_SUCCESS);
}

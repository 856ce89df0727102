/* A stand-in for NVIDIA's libcuda.so.1, in memory of the host, for the tests of a real pycuda.
 *
 * Built against NVIDIA's own cuda.h, so that a function whose type differs does not compile.  Work
 * is queued and runs when something waits for it, as late as it may.  Rules that the real driver
 * keeps are checked: contexts, owners of handles, parameter blocks against what the PTX declares,
 * captures, errors that end a context, forks.
 *
 * Kernels run by a hook (`struct hooks`), or not at all.
 */
#ifndef STANDIN_H
#define STANDIN_H

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum { MAX_DEVICES = 8, MAX_DEPTH = 32, MAX_PARAMETERS = 4096 };

/* What Python supplies.  device and module are numbers; 0 is no memory, a status is a CUresult. */
struct hooks {
  uint64_t (*allocate)(int device, uint64_t bytes);
  void (*release)(int device, uint64_t address);
  int (*load)(int device, const char *image);
  int (*launch)(int device, int module, const char *kernel, const unsigned *grid,
                const unsigned *block, unsigned shared, const void *parameters, uint64_t bytes);
};
extern struct hooks hooks;

struct allocation {
  struct allocation *next;
  struct CUctx_st *owner; /* NULL: pinned memory of the host */
  uint64_t address, bytes;
};

/* A context; only primary ones exist. */
struct CUctx_st {
  int device, users;
  CUresult failed; /* what every call answers from now on */
  unsigned peers;  /* a bit for each device */
  uint64_t used;
};
extern struct CUctx_st contexts[MAX_DEVICES];
extern struct allocation *allocations;

enum kind { COPY, FILL, LAUNCH, WAIT, MARK, REPLAY };

struct work {
  struct work *next;
  enum kind kind;
  uint64_t number; /* within its stream */
  void *to;
  const void *from;
  size_t bytes;
  void *own; /* freed with the work */
  unsigned char value;
  CUfunction function;
  unsigned grid[3], block[3], shared;
  CUevent event;
  CUstream awaited;
  uint64_t awaited_number;
  CUgraphExec graph;
};

struct CUstream_st {
  CUcontext context;
  struct work *first, *last;
  uint64_t queued, done;
  int dead;
  int capturing, invalidated;
  CUstreamCaptureMode mode;
  unsigned long thread; /* that captures */
  struct work *captured, *captured_last;
};

struct CUevent_st {
  CUcontext context;
  unsigned flags;
  CUstream stream; /* of the last record, NULL if none */
  uint64_t number;
  double at; /* milliseconds, when the mark was passed */
};

struct CUmod_st {
  CUcontext context;
  char *image;
  int hooked; /* of hooks.load, -1 if none */
  struct CUfunc_st *functions;
};

struct CUfunc_st {
  struct CUfunc_st *next;
  CUmodule module;
  char *name;
  unsigned parameter_bytes, threads, static_shared, dynamic_shared;
};

/* Entering the library: takes the lock, counts the call, says what it must answer at once.  With
 * LEAVE around every way out.  `context` is the current one. */
CUresult enter(const char *name, int wants_context);
CUresult leave(CUresult status);
CUcontext current(void);
#define ENTER(wants)                              \
  do {                                            \
    CUresult at_once = enter(__func__, wants);    \
    if (at_once != CUDA_SUCCESS) return leave(at_once); \
  } while (0)
#define LEAVE(status) return leave(status)

/* Whether an error ends its context. */
int is_sticky(CUresult status);

/* queues.c */
CUresult queue(CUstream stream, struct work *work);
struct work *work_of(enum kind kind);
void drop(struct work *work);
void run_all(CUcontext context);
void forget_streams(CUcontext context);
int owns(CUstream stream);
int captures(CUstream stream);
/* CUDA_SUCCESS, or the error of a call that may wait for work while this thread captures. */
CUresult unsafe(void);

/* memory.c */
struct allocation *holding(uint64_t address, uint64_t bytes);
void forget_memory(CUcontext context);
uint64_t memory_of(int device);

/* modules.c */
CUresult run_launch(CUcontext context, const struct work *work);

/* graphs.c */
CUresult run_graph(CUcontext context, CUgraphExec graph, CUresult (*run)(CUcontext, struct work *));
void release_graph(CUgraphExec graph);
void retain_graph(CUgraphExec graph);

#endif

/* Captured work, replayed as one. */
#define _GNU_SOURCE
#include "standin.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct CUgraph_st {
  struct work *first;
};

struct CUgraphExec_st {
  struct work *first;
  int users; /* the handle, and launches that are queued */
  int destroyed;
};

static struct work *copy_of(const struct work *first) {
  struct work *head = NULL, **at = &head;
  for (; first; first = first->next) {
    struct work *made = *at = malloc(sizeof *made);
    *made = *first;
    made->next = NULL;
    if (made->own) {
      made->own = malloc(made->bytes ? made->bytes : 1);
      memcpy(made->own, first->own, made->bytes);
    }
    at = &made->next;
  }
  return head;
}

static void drop_all(struct work *first) {
  for (struct work *next; first; first = next) {
    next = first->next;
    drop(first);
  }
}

EXPORT CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  ENTER(1);
  if (!stream) LEAVE(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  if (!owns(stream)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
  if (stream->capturing) LEAVE(CUDA_ERROR_ILLEGAL_STATE);
  stream->capturing = 1, stream->invalidated = 0;
  stream->mode = mode, stream->thread = (unsigned long)pthread_self();
  stream->captured = stream->captured_last = NULL;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  ENTER(1);
  if (!owns(stream) || !stream->capturing) LEAVE(CUDA_ERROR_ILLEGAL_STATE);
  if (stream->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      stream->thread != (unsigned long)pthread_self())
    LEAVE(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  struct work *first = stream->captured;
  stream->capturing = 0;
  stream->captured = stream->captured_last = NULL;
  *graph = NULL;
  if (stream->invalidated) {
    drop_all(first);
    LEAVE(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  *graph = calloc(1, sizeof **graph);
  (*graph)->first = first;
  LEAVE(CUDA_SUCCESS);
}

#undef cuGraphInstantiateWithFlags
CUresult cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph, unsigned long long flags);
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph,
                                            unsigned long long flags) {
  ENTER(1);
  if (flags || !graph) LEAVE(CUDA_ERROR_INVALID_VALUE);
  *made = calloc(1, sizeof **made);
  (*made)->first = copy_of(graph->first);
  (*made)->users = 1;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphDestroy(CUgraph graph) {
  ENTER(0);
  if (!graph) LEAVE(CUDA_ERROR_INVALID_VALUE);
  drop_all(graph->first);
  free(graph);
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec graph) {
  ENTER(0);
  if (graph->destroyed) LEAVE(CUDA_ERROR_INVALID_VALUE);
  graph->destroyed = 1;
  release_graph(graph);
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  ENTER(1);
  if (!owns(stream)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
  if (graph->destroyed) LEAVE(CUDA_ERROR_INVALID_VALUE);
  struct work *made = work_of(REPLAY);
  made->graph = graph;
  retain_graph(graph);
  LEAVE(queue(stream, made));
}

CUresult run_graph(CUcontext context, CUgraphExec graph, CUresult (*run)(CUcontext, struct work *)) {
  for (struct work *work = graph->first; work; work = work->next) {
    CUresult status = run(context, work);
    if (status != CUDA_SUCCESS) return status;
  }
  return CUDA_SUCCESS;
}

void retain_graph(CUgraphExec graph) { ++graph->users; }

void release_graph(CUgraphExec graph) {
  if (--graph->users) return;
  drop_all(graph->first);
  free(graph);
}

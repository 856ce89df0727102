/* Streams and events: work waits until something waits for it. */
#define _GNU_SOURCE
#include "standin.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_STREAMS = 4096 };
static struct CUstream_st *streams[MAX_STREAMS]; /* never freed: late users are told apart */
static int stream_count;
static struct CUstream_st defaults[MAX_DEVICES];
static int running; /* hooks may call back into the library */

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * 1e3 + at.tv_nsec * 1e-6;
}

struct work *work_of(enum kind kind) {
  struct work *made = calloc(1, sizeof *made);
  made->kind = kind;
  return made;
}

void drop(struct work *work) {
  if (work->graph) release_graph(work->graph);
  free(work->own);
  free(work);
}

/* The legacy default stream, and that of each thread, which is the same one here. */
static int is_default(CUstream stream) {
  return !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

static CUstream stream_of(CUstream stream) {
  if (!is_default(stream)) return stream;
  defaults[current()->device].context = current();
  return &defaults[current()->device];
}

int owns(CUstream stream) {
  return is_default(stream) || (!stream->dead && stream->context == current());
}

int captures(CUstream stream) { return !is_default(stream) && stream->capturing; }

CUresult queue(CUstream given, struct work *work) {
  CUstream stream = stream_of(given);
  if (stream->capturing) {
    if (stream->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->captured_last)
      stream->captured_last->next = work;
    else
      stream->captured = work;
    stream->captured_last = work;
    return CUDA_SUCCESS;
  }
  work->number = ++stream->queued;
  if (stream->last)
    stream->last->next = work;
  else
    stream->first = work;
  stream->last = work;
  return CUDA_SUCCESS;
}

static void run_until(CUstream stream, uint64_t number);

static CUresult run(CUcontext context, struct work *work) {
  switch (work->kind) {
    case COPY: memmove(work->to, work->from, work->bytes); break;
    case FILL: memset(work->to, work->value, work->bytes); break;
    case LAUNCH: return run_launch(context, work);
    case WAIT: run_until(work->awaited, work->awaited_number); break;
    case MARK:
      if (work->event->stream && work->event->number == work->number) work->event->at = now();
      break;
    case REPLAY: return run_graph(context, work->graph, run);
  }
  return CUDA_SUCCESS;
}

/* What failed stays in the context, and what was queued behind it never runs. */
static void run_one(CUstream stream) {
  struct work *work = stream->first;
  stream->first = work->next;
  if (!stream->first) stream->last = NULL;
  ++running;
  if (!stream->context->failed) {
    CUresult status = run(stream->context, work);
    if (status != CUDA_SUCCESS) stream->context->failed = status;
  }
  --running;
  stream->done = work->number;
  drop(work);
}

static void run_until(CUstream stream, uint64_t number) {
  while (stream->first && stream->done < number) run_one(stream);
}

void run_all(CUcontext context) {
  if (running) return;
  for (int i = 0; i < stream_count; ++i)
    if (streams[i]->context == context) run_until(streams[i], streams[i]->queued);
  run_until(&defaults[context->device], defaults[context->device].queued);
}

void forget_streams(CUcontext context) {
  for (int i = 0; i < stream_count; ++i)
    if (streams[i]->context == context) streams[i]->dead = 1;
}

CUresult unsafe(void) {
  for (int i = 0; i < stream_count; ++i)
    if (streams[i]->capturing &&
        (streams[i]->mode == CU_STREAM_CAPTURE_MODE_GLOBAL ||
         (streams[i]->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
          streams[i]->thread == (unsigned long)pthread_self()))) {
      streams[i]->invalidated = 1;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *made, unsigned flags) {
  ENTER(1);
  if (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) LEAVE(CUDA_ERROR_INVALID_VALUE);
  if (stream_count == MAX_STREAMS) LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  *made = streams[stream_count++] = calloc(1, sizeof **made);
  (*made)->context = current();
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuStreamDestroy(CUstream stream) {
  ENTER(1);
  if (is_default(stream) || !owns(stream)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
  if (!running) run_until(stream, stream->queued);
  stream->dead = 1;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuStreamSynchronize(CUstream given) {
  ENTER(1);
  if (!owns(given)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
  CUstream stream = stream_of(given);
  CUresult refused = stream->capturing ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : unsafe();
  if (refused) LEAVE(refused);
  run_until(stream, stream->queued);
  LEAVE(current()->failed);
}

EXPORT CUresult cuStreamQuery(CUstream given) {
  ENTER(1);
  if (!owns(given)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
  CUstream stream = stream_of(given);
  if (stream->first && !running) run_one(stream);
  if (current()->failed) LEAVE(current()->failed);
  LEAVE(stream->first ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  ENTER(1);
  if (flags) LEAVE(CUDA_ERROR_INVALID_VALUE);
  if (!owns(stream)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
  if (!event->stream) LEAVE(CUDA_SUCCESS);
  struct work *made = work_of(WAIT);
  made->awaited = event->stream, made->awaited_number = event->number;
  LEAVE(queue(stream, made));
}

/* -- events -------------------------------------------------------------------------------------- */

EXPORT CUresult cuEventCreate(CUevent *made, unsigned flags) {
  ENTER(1);
  if (flags & ~7u) LEAVE(CUDA_ERROR_INVALID_VALUE);
  *made = calloc(1, sizeof **made);
  (*made)->context = current();
  (*made)->flags = flags;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuEventDestroy(CUevent event) {
  ENTER(1);
  /* Its mark may be queued: the memory stays. */
  event->context = NULL;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream given) {
  ENTER(1);
  if (!owns(given) || event->context != current()) LEAVE(CUDA_ERROR_INVALID_HANDLE);
  CUstream stream = stream_of(given);
  struct work *made = work_of(MARK);
  made->event = event;
  if (stream->capturing) {
    drop(made);
    LEAVE(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  CUresult status = queue(given, made);
  event->stream = stream, event->number = made->number, event->at = 0;
  LEAVE(status);
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
  ENTER(1);
  if (!event->context) LEAVE(CUDA_ERROR_INVALID_HANDLE);
  CUresult refused = unsafe();
  if (refused) LEAVE(refused);
  if (event->stream) run_until(event->stream, event->number);
  LEAVE(event->context->failed);
}

EXPORT CUresult cuEventQuery(CUevent event) {
  ENTER(1);
  if (!event->context) LEAVE(CUDA_ERROR_INVALID_HANDLE);
  CUresult refused = unsafe();
  if (refused) LEAVE(refused);
  if (!event->stream) LEAVE(CUDA_SUCCESS);
  if (event->stream->first && event->stream->done < event->number && !running)
    run_one(event->stream);
  if (event->context->failed) LEAVE(event->context->failed);
  LEAVE(event->stream->done < event->number ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}

static CUresult elapsed(float *milliseconds, CUevent from, CUevent to) {
  if ((from->flags | to->flags) & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
  if (!from->stream || !to->stream) return CUDA_ERROR_INVALID_HANDLE;
  if (from->at == 0 || to->at == 0) return CUDA_ERROR_NOT_READY;
  *milliseconds = (float)(to->at - from->at);
  return CUDA_SUCCESS;
}

#undef cuEventElapsedTime
CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to);
EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
  ENTER(1);
  LEAVE(elapsed(milliseconds, from, to));
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent from, CUevent to);
EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent from, CUevent to) {
  ENTER(1);
  LEAVE(elapsed(milliseconds, from, to));
}

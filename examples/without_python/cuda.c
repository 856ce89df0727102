/* Classifies the digits of a file, 64 bytes of brightness 0 ... 16 for each, by two networks on the
   first NVIDIA GPU.  Prints a line for each digit: what the one says, what the other says. */
#include <stdio.h>

#include "digits.h"

enum { BATCH = 64, PIXELS = DIGITS_MLP_X_SIZE / BATCH, KINDS = DIGITS_MLP_RESULT_SIZE / BATCH };

static int best(const float *scores) {
  int found = 0;
  for (int n = 1; n < KINDS; n++) found = scores[n] > scores[found] ? n : found;
  return found;
}

int main(int count, char **words) {
  static unsigned char pictures[BATCH * PIXELS];
  static float x[BATCH * PIXELS], scores[2][BATCH * KINDS];
  CUdevice gpu;
  CUcontext context;
  FILE *file = count == 2 ? fopen(words[1], "rb") : NULL;
  if (file == NULL) return fprintf(stderr, "usage: %s FILE\n", words[0]), 2;
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&gpu, 0) != CUDA_SUCCESS ||
      cuDevicePrimaryCtxRetain(&context, gpu) != CUDA_SUCCESS ||
      cuCtxPushCurrent(context) != CUDA_SUCCESS)
    return fprintf(stderr, "no NVIDIA GPU\n"), 1;

  const size_t sizes[] = {
    sizeof x, sizeof scores[0], sizeof scores[1], DIGITS_WEIGHTS_BYTES, DIGITS_MLP_ARENA_BYTES + 1,
    DIGITS_LENET_ARENA_BYTES + 1,
  };
  CUdeviceptr memory[6];
  CUstream stream;
  if (cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) return 1;
  for (int n = 0; n < 6; n++)
    if (cuMemAlloc(&memory[n], sizes[n]) != CUDA_SUCCESS) return 1;
  digits_device device;
  int status = digits_load(&device);
  if (status == DIGITS_OK) status = digits_upload(memory[3], stream);
  if (status != DIGITS_OK) return fprintf(stderr, "nothing is loaded: %d\n", status), 1;

  const digits_mlp_args mlp_args = {.x = memory[0], .weights = memory[3]};
  const digits_lenet_args lenet_args = {.x = memory[0], .weights = memory[3]};
  const digits_mlp_results mlp_results = {.result = memory[1]};
  const digits_lenet_results lenet_results = {.result = memory[2]};
  size_t many;
  while ((many = fread(pictures, PIXELS, BATCH, file)) > 0) {
    for (int n = 0; n < BATCH * PIXELS; n++) x[n] = (float)pictures[n] / 16.0f;
    status = -(int)cuMemcpyHtoDAsync(memory[0], x, sizeof x, stream);
    if (!status) status = digits_mlp(&device, &mlp_args, &mlp_results, memory[4], stream);
    if (!status) status = digits_lenet(&device, &lenet_args, &lenet_results, memory[5], stream);
    for (int n = 0; n < 2 && !status; n++)
      status = -(int)cuMemcpyDtoHAsync(scores[n], memory[1 + n], sizeof scores[n], stream);
    if (!status) status = -(int)cuStreamSynchronize(stream);
    if (status) return fprintf(stderr, "a call ended with %d\n", status), 1;
    for (size_t n = 0; n < many; n++)
      printf("%d %d\n", best(&scores[0][n * KINDS]), best(&scores[1][n * KINDS]));
  }
  fclose(file);
  digits_unload(&device);
  for (int n = 0; n < 6; n++) cuMemFree(memory[n]);
  cuStreamDestroy(stream);
  cuCtxPopCurrent(&context);
  cuDevicePrimaryCtxRelease(gpu);
  return 0;
}

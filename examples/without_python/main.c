/* Classifies the digits of a file: 64 bytes of brightness, 0 ... 16, for each. */
#include <stdio.h>

#include "digits.h"

static _Alignas(DIGITS_ARENA_ALIGNMENT) unsigned char arena[DIGITS_ARENA_BYTES + 1];

int main(int count, char **words) {
  unsigned char pixels[DIGITS_X_SIZE];
  float x[DIGITS_X_SIZE], scores[DIGITS_RESULT_SIZE];
  const digits_args args = {.x = x};
  const digits_results results = {.result = scores};
  FILE *file = count == 2 ? fopen(words[1], "rb") : NULL;
  if (file == NULL) {
    fprintf(stderr, "usage: %s FILE\n", words[0]);
    return 2;
  }
  while (fread(pixels, 1, sizeof pixels, file) == sizeof pixels) {
    int best = 0;
    for (int n = 0; n < DIGITS_X_SIZE; n++) x[n] = (float)pixels[n] / 16.0f;
    if (digits_run(&args, &results, arena) != DIGITS_OK) return 1;
    for (int n = 1; n < DIGITS_RESULT_SIZE; n++) best = scores[n] > scores[best] ? n : best;
    printf("%d\n", best);
  }
  fclose(file);
  return 0;
}

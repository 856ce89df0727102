/* Runs a program of a library until its input ends: reads sizes and arguments, calls it, writes
   status and results.

   Everything has a guard of bytes on both sides; a call that touches one is told apart by status
   100.  Input: the numbers of arguments, results and bytes of arena, the size of each array, then
   the arguments.  Output: the status, then the results.  All numbers are 64-bit, little-endian.  */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int model_run(void *const *arguments, void *const *results, void *arena);

enum { GUARD = 128, MARK = 0xA5, MOST = 512 };

/* The numbers of arguments, results and bytes of arena; the size, memory and place of each. */
static uint64_t head[3], sizes[MOST];
static unsigned char *rooms[MOST], *places[MOST];

/* Whether all bytes were read; written; memory, or null; the end of what is written or taken. */
static int take(void *to, uint64_t count);
static int give(const void *from, uint64_t count);
static void *room(uint64_t count);
static void finish(uint64_t count);

static unsigned char *guarded(uint64_t n) {
  const uint64_t size = sizes[n];
  unsigned char *memory = rooms[n] = room(size + 2 * GUARD + 64);
  if (!memory) return 0;
  memory += 64 - (uintptr_t)memory % 64;
  memset(memory, MARK, GUARD);
  memset(memory + GUARD, 0x5A, size);
  memset(memory + GUARD + size, MARK, GUARD);
  return memory + GUARD;
}

static int is_whole(const unsigned char *memory, uint64_t size) {
  for (uint64_t n = 0; n < GUARD; n++)
    if (memory[size + n] != MARK || memory[-1 - (int64_t)n] != MARK) return 0;
  return 1;
}

/* One call. */
static int run(void) {
  static void *pointers[MOST];
  uint64_t status;
  if (head[0] + head[1] + 1 > MOST) return 2;
  const uint64_t count = head[0] + head[1];
  if (!take(sizes, count * sizeof *sizes)) return 2;
  sizes[count] = head[2];
  for (uint64_t n = 0; n <= count; n++)
    if (!(pointers[n] = places[n] = guarded(n))) return 3;
  for (uint64_t n = 0; n < head[0]; n++)
    if (!take(places[n], sizes[n])) return 2;
  status = (uint64_t)model_run(pointers, pointers + head[0], head[2] ? places[count] : 0);
  for (uint64_t n = 0; n <= count; n++)
    if (!is_whole(places[n], sizes[n])) status = 100;
  if (!give(&status, sizeof status)) return 4;
  for (uint64_t n = head[0]; n < count; n++)
    if (!give(places[n], sizes[n])) return 4;
  finish(count);
  return 0;
}

static int calls(void) {
  int status = 0;
  while (!status && take(head, sizeof head)) status = run();
  return status;
}

#ifndef __arm__
#include <stdio.h>

static int take(void *to, uint64_t count) { return fread(to, 1, count, stdin) == count; }
static int give(const void *from, uint64_t count) { return fwrite(from, 1, count, stdout) == count; }
static void *room(uint64_t count) { return malloc(count); }
static void finish(uint64_t count) {
  fflush(stdout);
  for (uint64_t n = 0; n <= count; n++) free(rooms[n]);
}
int main(void) { return calls(); }
#ifdef __SANITIZE_ADDRESS__
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "detect_leaks=0"; }
#endif

#else
/* A processor without a system: pipes of the debugger's process, and memory of the board. */
extern unsigned char memory_start[], memory_end[];
static unsigned char *next = memory_start;
static intptr_t input, output;

static intptr_t ask(int what, const void *block) {
  register intptr_t r0 __asm__("r0") = what;
  register const void *r1 __asm__("r1") = block;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}

static intptr_t opened(const char *name, int mode) {
  const intptr_t block[3] = {(intptr_t)name, mode, (intptr_t)strlen(name)};
  return ask(1, block);
}

static int take(void *to, uint64_t count) {
  /* A read of a pipe says how much of it is left. */
  for (intptr_t left = (intptr_t)count, before; left; ) {
    const intptr_t block[3] = {input, (intptr_t)to + (intptr_t)count - left, left};
    before = left;
    left = ask(6, block);
    if (left == before) return 0;
  }
  return 1;
}

static int give(const void *from, uint64_t count) {
  const intptr_t block[3] = {output, (intptr_t)from, (intptr_t)count};
  return !count || ask(5, block) == 0;
}

static void *room(uint64_t count) {
  if (count > (uint64_t)(memory_end - next)) return 0;
  unsigned char *found = next;
  next += (count + 7) / 8 * 8;
  return found;
}

static void finish(uint64_t count) {
  (void)count;
  next = memory_start;
}

void reset(void) {
  *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* the registers of floats are on */
  __asm__ volatile("dsb\n isb");
  input = opened("/dev/stdin", 1);
  output = opened("/dev/stdout", 5);
  const intptr_t end[2] = {0x20026, calls()};
  ask(0x20, end);
  for (;;) {
  }
}

__attribute__((section(".vectors"), used)) static const void *const vectors[] = {memory_end, reset};
#endif

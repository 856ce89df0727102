"""Programs in C that call every function of a library once, on memory of exact sizes."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from c_cases import Array, Case

WARNINGS = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
SANITIZERS = ("-fsanitize=undefined,address", "-fno-sanitize-recover=all")

#: Each array has bytes in front of it and behind it that no call may change, and begins at no
#: better multiple than its elements need.  With EXACT, which is for sanitizers, it has none.
_MAIN = """\
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "NAME.h"

enum { GUARD = 64, MARK = 0xA5 };
typedef struct { const char *name; int (*call)(void **, void **, void *); size_t arena;
  int args, results; const size_t *bytes, *align; } function;

static unsigned char *make(size_t bytes, size_t align) {
#ifdef EXACT
  unsigned char *block = malloc(bytes + align);
  return block + align;
#else
  unsigned char *block = malloc(bytes + 2 * GUARD + align);
  memset(block, MARK, bytes + 2 * GUARD + align);
  return block + GUARD + align;
#endif
}

static void *make_arena(size_t bytes) {
#ifdef EXACT
  return bytes ? aligned_alloc(64, bytes) : NULL;
#else
  unsigned char *block = aligned_alloc(64, (bytes + 3 * GUARD) / 64 * 64);
  memset(block, MARK, bytes + 2 * GUARD);
  return block + GUARD;
#endif
}

static int is_whole(const unsigned char *start, size_t bytes) {
#ifdef EXACT
  (void)start, (void)bytes;
#else
  for (size_t n = 1; n <= GUARD; n++)
    if (start[-(ptrdiff_t)n] != MARK || start[bytes + n - 1] != MARK) return 0;
#endif
  return 1;
}

FUNCTIONS

int main(int count, char **names) {
  if (count < 3) return 2;
  FILE *in = fopen(names[1], "rb"), *out = fopen(names[2], "wb");
  for (size_t k = 0; k < sizeof functions / sizeof *functions; k++) {
    const function *f = &functions[k];
    const int all = f->args + f->results;
    void *arrays[16], *copies[16];
    for (int n = 0; n < all; n++) {
      arrays[n] = make(f->bytes[n], f->align[n]);
      copies[n] = malloc(f->bytes[n] + 1);
      if (n < f->args && fread(arrays[n], 1, f->bytes[n], in) != f->bytes[n]) return 3;
      memcpy(copies[n], arrays[n], f->bytes[n]);
    }
    unsigned char *arena = make_arena(f->arena);
    /* What the arena and the results hold at first does not count. */
    for (int time = 0; time < 2; time++) {
      if (f->arena) memset(arena, time ? 0xFF : 0, f->arena);
      for (int n = f->args; n < all; n++) memset(arrays[n], time ? 0 : 0xFF, f->bytes[n]);
      const int status = f->call(arrays, arrays + f->args, arena);
      if (status) return fprintf(stderr, "%s gave %d\\n", f->name, status), 4;
      for (int n = f->args; n < all && !time; n++) memcpy(copies[n], arrays[n], f->bytes[n]);
    }
    for (int n = 0; n < all; n++) {
      if (memcmp(arrays[n], copies[n], f->bytes[n]))
        return fprintf(stderr, "%s: array %d differs\\n", f->name, n), 5;
      if (!is_whole(arrays[n], f->bytes[n]) || (f->arena && !is_whole(arena, f->arena)))
        return fprintf(stderr, "%s wrote beyond array %d or the arena\\n", f->name, n), 6;
      if (n >= f->args && fwrite(arrays[n], 1, f->bytes[n], out) != f->bytes[n]) return 7;
    }
  }
  return fclose(out);
}
"""

_CALL = """\
static int call_{name}(void **a, void **r, void *arena) {{
  {library}_{name}_args args = {{{args}}};
  {library}_{name}_results results = {{{results}}};
  return {library}_{name}(&args, &results, arena{pool});
}}
static const size_t bytes_{name}[] = {{{bytes}}}, align_{name}[] = {{{align}}};
"""


def flat(arrays: Sequence[Array]) -> list[Array]:
    """As C gets them: a complex array is its two parts."""
    parts: list[Array] = []
    for array in arrays:
        parts += [array.real, array.imag] if array.dtype.kind == "c" else [array]
    return [np.ascontiguousarray(part) for part in parts]


def main_of(
    library: str, cases: Mapping[str, Case], arenas: Mapping[str, int], pool: str = ""
) -> str:
    """The text of a program that runs the cases; pool: the last argument of each call."""
    texts, rows = [], []
    for name, case in cases.items():
        args, results = flat(case.arguments), flat(case.results)
        every = [*args, *results]
        texts.append(
            _CALL.format(
                name=name,
                library=library,
                args=", ".join(f"a[{n}]" for n in range(len(args))) or "(void *)a",
                results=", ".join(f"r[{n}]" for n in range(len(results))),
                bytes=", ".join(str(a.nbytes) for a in every),
                align=", ".join(str(a.dtype.itemsize) for a in every),
                pool=pool,
            )
        )
        arena = arenas[f"{library}_{name}"]
        counts = f"{len(args)}, {len(results)}"
        rows.append(f'  {{"{name}", call_{name}, {arena}, {counts}, bytes_{name}, align_{name}}},')
    table = "\n".join(["static const function functions[] = {", *rows, "};"])
    return _MAIN.replace("NAME", library).replace("FUNCTIONS", "\n".join([*texts, table]))


def run(program: Path, cases: Mapping[str, Case]) -> dict[str, list[Array]]:
    """The results of each case."""
    folder = program.parent
    data = [a.tobytes() for case in cases.values() for a in flat(case.arguments)]
    (folder / "in").write_bytes(b"".join(data))
    command = [str(program), str(folder / "in"), str(folder / "out")]
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-3000:]}"
    written, at = (folder / "out").read_bytes(), 0
    found: dict[str, list[Array]] = {}
    for name, case in cases.items():
        found[name] = []
        for like in flat(case.results):
            array = np.frombuffer(written[at : at + like.nbytes], like.dtype)
            found[name].append(array.reshape(like.shape))
            at += like.nbytes
    assert at == len(written)
    return found


@cache
def compilers() -> tuple[tuple[str, ...], ...]:
    """The commands of gcc and clang, as far as there are any; the setting alone if there is one."""
    if chosen := os.environ.get("BRINGUP_CC"):
        return (tuple(shlex.split(chosen)),)
    found = [(path,) for name in ("gcc", "clang") if (path := shutil.which(name))]
    if len(found) < 2 and find_spec("ziglang"):
        found.append((sys.executable, "-m", "ziglang", "cc"))  # type: ignore[arg-type]
    return tuple(found)


def compile_all(
    sources: Sequence[Path],
    program: Path,
    flags: Sequence[str],
    command: Sequence[str] = (),
    library: str = "-lm",
) -> Path:
    """A program of some files of C; any warning is an error."""
    if not compilers():
        (pytest.fail if os.environ.get("CI") else pytest.skip)("there is no C compiler")
    line = [*(command or compilers()[0]), *WARNINGS, *flags, *map(str, sources)]
    line += [] if "-c" in flags else [library]
    done = subprocess.run([*line, "-o", str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:5000]
    return program


def rust_compiler() -> tuple[str, ...]:
    """The command of a compiler of Rust that knows ``unsafe extern``; empty if there is none."""
    path = shutil.which("rustc")
    if path is None:
        return ()
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    return (path,) if tuple(map(int, version.split()[1].split(".")[:2])) >= (1, 82) else ()


def need_rust() -> tuple[str, ...]:
    """The same; skips the test if there is none."""
    return rust_compiler() or pytest.skip("rustc 1.82 or later is not installed")


def has_sanitizers(folder: Path) -> bool:
    """Whether the first compiler makes programs with sanitizers."""
    source = folder / "empty.c"
    source.write_text("int main(void) { return 0; }\n")
    line = [*compilers()[0], *SANITIZERS, str(source), "-o", str(folder / "empty")]
    return subprocess.run(line, capture_output=True, check=False).returncode == 0


__all__ = [
    "SANITIZERS", "compile_all", "compilers", "flat", "has_sanitizers", "main_of", "need_rust",
    "run", "rust_compiler",
]  # fmt: skip

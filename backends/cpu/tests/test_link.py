"""Libraries made ahead of time, called from C on this machine, and looked at for other ones."""

from __future__ import annotations

import importlib
import itertools
import math
import platform
import re
import runpy
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.aot.library import Library
from bringup.aot.toolchain import host_compiler, linked
from bringup.backend import Capabilities, NoHardware, SimpleBackend
from bringup.backend.link import LinkOptions, Weights
from bringup.errors import BringupError, UnsupportedError
from bringup.llvm.host.engine import engine
from bringup_cpu import processors
from bringup_cpu.backend import CpuBackend
from bringup_cpu.integer_fma import define_fma
from bringup_cpu.support import NAMES, needed_support, support_module

Array = np.ndarray[Any, Any]
f32 = bu.float32

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="runs code of x86-64"
)
HOST = "x86_64-linux-gnu"
RNG = np.random.default_rng(0)
WEIGHTS = RNG.standard_normal((24, 10)).astype(np.float32)


def model(x: Any) -> Any:
    return bu.nn.softmax(bu.tanh(x) @ WEIGHTS, axis=-1)


#: A program of C: arguments from files, a call, results to files; its last line is the status.
MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "{name}.h"
static _Alignas(64) unsigned char arena[{arena} + 64];
static void *read_file(const char *name, size_t size) {{
  void *memory = aligned_alloc(64, (size + 127) / 64 * 64);
  FILE *file = fopen(name, "rb");
  if (!file || fread(memory, 1, size, file) != size) exit(50);
  fclose(file);
  return memory;
}}
{before}
int main(void) {{
{body}
}}
"""


def run_c(folder: Path, library: Library, body: str, before: str = "") -> str:
    """What a program of C prints that is linked with a library."""
    library.write(folder)
    text = MAIN.format(
        name=library.name, arena=max(library.arena_bytes.values()), before=before, body=body
    )
    (folder / "main.c").write_text(text)
    compiler = host_compiler()
    assert compiler is not None, "the tests need a compiler, or the wheel ziglang"
    command = [*compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]
    command += ["main.c", f"{library.name}.o", "-o", "main"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    done = subprocess.run(
        ["./main"], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done.stdout


CALL = """
  float *x = read_file("x.bin", sizeof(float) * MODEL_X_SIZE), y[MODEL_RESULT_SIZE];
  model_args args = {x};
  model_results results = {y};
  printf("%d\\n", model_run(&args, &results, arena));
  fwrite(y, 1, sizeof y, fopen("y.bin", "wb"));
  printf("%d %d %d %d\\n", model_run(0, &results, arena), model_run(&args, 0, arena),
         model_run(&args, &results, 0), model_run(&args, &results, arena + 1));
  args.x = 0;
  printf("%d\\n", model_run(&args, &results, arena));
  args.x = (float *)((char *)x + 1);
  printf("%d\\n", model_run(&args, &results, arena));
  return 0;
"""


def test_results_have_the_bits_of_the_device_and_wrong_pointers_a_code(tmp_path: Path) -> None:
    x = RNG.standard_normal((3, 24)).astype(np.float32)
    x.tofile(tmp_path / "x.bin")
    library = bu.jit(model).export("model", f32[3, 24], target=HOST)
    assert library.arena_bytes["model_run"] > 0
    assert run_c(tmp_path, library, CALL).split() == ["0", *"1112", "1", "2"]
    found = np.fromfile(tmp_path / "y.bin", np.float32).reshape(3, 10)
    assert np.array_equal(found, np.asarray(bu.jit(model)(x)))


def test_frozen_weights_are_panels_of_the_target(tmp_path: Path) -> None:
    """Of two vectors of the processor; levels that share the weights have them as they were."""
    load = pytest.importorskip("safetensors.numpy").load
    x, weights = (RNG.standard_normal(s).astype(np.float32) for s in ((32, 256), (256, 64)))
    frozen = bu.freeze(lambda w, x: bu.nn.relu(x @ w), weights)
    plain = bu.jit(lambda x: bu.nn.relu(x @ weights))
    x.tofile(tmp_path / "x.bin")
    found = []
    for fn, held in ((plain, weights), (frozen, weights.reshape(1, 256, 8, 8).swapaxes(1, 2))):
        library = fn.export("model", f32[32, 256], target="x86-64-v2", weights="external")
        (there,) = load(library.files["model.safetensors"]).values()
        assert np.array_equal(there, held)
        run_c(tmp_path, fn.export("model", f32[32, 256], target="x86-64-v2"), CALL)
        found.append(np.fromfile(tmp_path / "y.bin", np.float32))
    assert np.array_equal(*found)
    library = frozen.export("model", f32[32, 256], target=HOST, weights="external")
    (there,) = load(library.files["model.safetensors"]).values()
    assert np.array_equal(there, weights)


EXTERNAL = """
  float *x = read_file("x.bin", sizeof(float) * MODEL_X_SIZE), y[MODEL_RESULT_SIZE];
  char *weights = read_file("model.safetensors", {size});
  model_args args = {{x, weights}};
  model_results results = {{y}};
  printf("%d\\n", model_run(&args, &results, arena));
  fwrite(y, 1, sizeof y, fopen("y.bin", "wb"));
  weights[{last}]++;
  printf("%d\\n", model_run(&args, &results, arena));
  return 0;
"""


def test_weights_in_a_file_are_those_of_the_library(tmp_path: Path) -> None:
    load = pytest.importorskip("safetensors.numpy").load
    x = RNG.standard_normal((3, 24)).astype(np.float32)
    x.tofile(tmp_path / "x.bin")
    library = bu.jit(model).export("model", f32[3, 24], target=HOST, weights="external")
    file = library.files["model.safetensors"]
    (held,) = load(file).values()
    assert np.array_equal(held, WEIGHTS)
    assert WEIGHTS.tobytes() not in library.files["model.o"]
    body = EXTERNAL.format(size=len(file), last=file.index(b"sha256") + 20)
    assert run_c(tmp_path, library, body).split() == ["0", "3"]
    found = np.fromfile(tmp_path / "y.bin", np.float32).reshape(3, 10)
    assert np.array_equal(found, np.asarray(bu.jit(model)(x)))


POOL = """
  float *x = read_file("x.bin", sizeof(float) * MODEL_X_SIZE), *y = malloc(4 * MODEL_RESULT_SIZE);
  model_args args = {x};
  model_results results = {y};
  model_pool pool = {run, 0};
  printf("%d ", model_run(&args, &results, arena, 0));
  fwrite(y, 1, 4 * MODEL_RESULT_SIZE, fopen("alone.bin", "wb"));
  memset(y, 0, 4 * MODEL_RESULT_SIZE);
  printf("%d ", model_run(&args, &results, arena, &pool));
  printf("%d\\n", calls > 0);
  fwrite(y, 1, 4 * MODEL_RESULT_SIZE, fopen("y.bin", "wb"));
  return 0;
"""
#: Parts in any order, by turns on all workers.
RUN = """
static int calls;
static void run(void *self, model_part part, void *context, int64_t count, int64_t grain) {
  (void)self;
  int64_t parts = (count + grain - 1) / grain;
  for (int64_t n = parts - 1; n >= 0; n--) {
    int64_t end = (n + 1) * grain;
    part(context, n * grain, end < count ? end : count, calls++ % 3);
  }
}
"""


def test_a_pool_of_the_caller_shares_the_work(tmp_path: Path) -> None:
    fn = bu.jit(lambda x: bu.sum(bu.exp(x), axis=1))
    x = RNG.standard_normal((1024, 256)).astype(np.float32)
    x.tofile(tmp_path / "x.bin")
    library = fn.export("model", f32[1024, 256], target=HOST, threads=3)
    assert run_c(tmp_path, library, POOL, RUN).split() == ["0", "0", "1"]
    wanted = np.asarray(fn(x)).tobytes()
    assert (tmp_path / "y.bin").read_bytes() == wanted == (tmp_path / "alone.bin").read_bytes()


SEVERAL = """
  float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8], z[8];
  maths_first_args first = {x};
  maths_first_results first_results = {y};
  maths_second_args second = {x, x};
  maths_second_results second_results = {y, z};
  int a = maths_first(&first, &first_results, arena);
  printf("%d %g ", a, y[7]);
  int b = maths_second(&second, &second_results, arena);
  printf("%d %g %g\\n", b, y[2], z[2]);
  return 0;
"""


def test_functions_of_one_library_share_what_is_equal(tmp_path: Path) -> None:
    def double(x: Any) -> Any:
        return x + x

    def both(x: Any, y: Any) -> Any:
        return {"a": x + x, "b": x * y}

    together = bu.export(
        "maths", {"first": (double, f32[8]), "second": (both, f32[8], f32[8])}, target="x86-64-v3"
    )
    assert sorted(together.arena_bytes) == ["maths_first", "maths_second"]
    assert run_c(tmp_path, together, SEVERAL).split() == ["0", "16", "0", "6", "9"]
    same = bu.export("maths", {"a": (double, f32[8]), "b": (double, f32[8])}, target="x86-64-v3")
    one = bu.export("maths", {"a": (double, f32[8])}, target="x86-64-v3")
    assert same.files["maths.o"].count(b"add\0") == one.files["maths.o"].count(b"add\0")


@pytest.mark.parametrize("target", processors.names())
def test_every_processor_gets_an_object_that_needs_no_library(target: str) -> None:
    functions: Mapping[str, tuple[Callable[..., Any], Any]] = {
        f"{name}_{dtype}": (getattr(bu, name), getattr(bu, dtype)[9])
        for name in ("exp", "sqrt", "floor", "round", "sin")
        for dtype in ("float16", "float32", "float64")
    }
    rem = {"rem": (bu.fmod, bu.float64[5], bu.float64[5])}
    library = bu.export("all", {**functions, **rem}, target=target)
    code = library.files["all.o"]
    for name in ("fmod", "sinf", "expf", "memcpy@"):
        assert f"\0{name}\0".encode() not in code
    magic = {b"\x7fELF": "elf", b"\0asm": "wasm"}
    assert magic[code[:4]] == ("wasm" if target == "wasm32" else "elf")


@pytest.mark.parametrize("target", processors.names())
def test_choices_between_halves_are_compiled(target: str) -> None:
    """LLVM ended the process at this one, for AArch64 without arithmetic of f16."""

    def choose(x: Any, y: Any, z: Any, w: Any) -> Any:
        e = bu.exp(y[2] - bu.max(y[2]))
        most = bu.maximum(bu.broadcast_to(bu.sum(e), (3,)), z)
        total = bu.broadcast_to(bu.sum(x), (1, 3))
        return bu.concat([w, total, bu.reshape(most, (1, 3))], axis=0)

    f16 = bu.float16
    library = bu.jit(choose).export("model", f16[3], f16[3, 3], f16[()], f16[1, 3], target=target)
    assert library.files["model.o"]


def test_static_and_shared_libraries_are_linked(tmp_path: Path) -> None:
    library = bu.jit(lambda x: x + 1).export("model", f32[4], target=HOST)
    shared = linked("shared", "model", library.files["model.o"], ["model_run"], HOST)
    static = linked("static", "model", library.files["model.o"], ["model_run"], HOST)
    assert static.startswith(b"!<arch>")
    path = tmp_path / "libmodel.so"
    path.write_bytes(shared)
    import ctypes

    loaded = ctypes.CDLL(str(path))
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    args, results = ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data)
    assert loaded.model_run(ctypes.byref(args), ctypes.byref(results), None) == 0
    assert y.tolist() == [1, 2, 3, 4]


def test_wrong_names_and_targets_say_what_to_do() -> None:
    fn = bu.jit(lambda x: x + 1)
    with pytest.raises(BringupError, match="no name in C"):
        fn.export("my model", f32[4], target=HOST)
    with pytest.raises(BringupError, match="no library can be made") as error:
        fn.export("model", f32[4], target="pdp11")
    assert "x86_64-linux-gnu" in str(error.value)
    with pytest.raises(BringupError, match="weights"):
        fn.export("model", f32[4], target=HOST, weights="somewhere")  # type: ignore[arg-type]
    reader = SimpleBackend("reader", lambda _index: CpuBackend().open(0), Capabilities())
    with pytest.raises(UnsupportedError, match="'reader' makes no libraries"):
        reader.link([], Weights(), "", LinkOptions())


# -- what processors lack --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def support() -> Callable[..., Any]:
    """Calls a function of the support by its name, compiled for this machine."""
    import ctypes

    module = support_module(NAMES, "")
    define_fma(module, "integer_fma")
    text, names = str(module), (*NAMES, "integer_fma")
    for name in names:
        text = re.sub(rf"@{name}\b", f"@own.{name}", text)
    code = engine().compile_native(text, [f"own.{name}" for name in names])

    def call(name: str, *values: float) -> float:
        kind = ctypes.c_float if name.endswith("f") else ctypes.c_double
        function = ctypes.CFUNCTYPE(kind, *[kind] * len(values))(code.addresses[f"own.{name}"])
        found: float = function(*values)
        return found

    return call


EDGES = [0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1e-310, 2.0**52 - 0.5, 0.5, -0.5, 1.5]


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "roundeven", "sqrt"])
@pytest.mark.parametrize("suffix", ["", "f"])
def test_rounding_and_roots_in_software_are_exact(
    name: str, suffix: str, support: Callable[..., Any]
) -> None:
    if name + suffix not in NAMES:
        assert name == "sqrt", "every processor has roots of f32"
        return
    dtype = np.float32 if suffix else np.float64
    powers = 10.0 ** RNG.integers(-30, 30, 300)
    with np.errstate(all="ignore"):
        x = np.array([*EDGES, *RNG.standard_normal(300) * powers, *RNG.integers(-9, 9, 50) / 2])
        x = x.astype(dtype)
        wanted = {"roundeven": np.rint}.get(name, getattr(np, name, None))(x)  # type: ignore[misc]
    found = np.array([support(name + suffix, float(v)) for v in x], dtype)
    equal = (found.view(f"u{x.itemsize}") == wanted.view(f"u{x.itemsize}")) | (
        np.isnan(found) & np.isnan(wanted)
    )
    assert equal.all(), x[~equal]


def test_bytes_far_apart_are_gathered_by_sve() -> None:
    """LLVM ended the process; so this is one of its own."""
    program = (
        "import bringup as bu\n"
        "fn = bu.jit(lambda x: x[:, 0].astype(bu.float32))\n"
        "x = bu.float8_e4m3fn[8, 50]\n"
        "fn.export('model', x, target='aarch64-linux-gnu+sve')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_multiply_adds_in_software_round_once(support: Callable[..., Any]) -> None:
    for n in range(3000):
        a, b = (float(v) for v in RNG.standard_normal(2) * 2.0 ** RNG.integers(-40, 40, 2))
        near = -a * b * (1 + float(RNG.integers(-3, 4)) * 2.0**-52)
        c = near if n % 2 else float(RNG.standard_normal() * 2.0 ** int(RNG.integers(-90, 90)))
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        for name in ("fma", "integer_fma"):
            assert support(name, a, b, c) == exact.numerator / exact.denominator
        x, y, z = (float(np.float32(v)) for v in (a, b, c))
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        assert Fraction(support("fmaf", x, y, z)) == _as_f32(exact)


def test_multiply_adds_in_integers_of_any_size_round_once(support: Callable[..., Any]) -> None:
    """Subnormal operands and results, overflow, sums that cancel, addends far away."""

    def some() -> float:
        tiny = RNG.integers(1 << int(RNG.integers(1, 53))) * 5e-324
        wide = RNG.standard_normal() * 2.0 ** int(RNG.integers(-1070, 1020))
        return float((tiny, wide, RNG.standard_normal())[RNG.integers(3)])

    for n in range(5000):
        a, b, c = some(), some(), some()
        if n % 2 and math.isfinite(a * b):
            c = -a * b * (1 + float(RNG.integers(-2, 3)) * 2.0**-52)
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        try:
            wanted = exact.numerator / exact.denominator
        except OverflowError:
            wanted = math.inf if exact > 0 else -math.inf
        if not exact:  # a sum of zeros of one sign has it
            wanted = a * b + c
        if exact and not c:
            wanted = math.copysign(wanted, a * b)
        assert support("integer_fma", a, b, c) == wanted, (a, b, c)
    assert support("integer_fma", 1e300, 1e300, -math.inf) == -math.inf
    assert math.copysign(1, support("integer_fma", -1e-300, 1e-300, 0.0)) == -1


def test_multiply_adds_in_software_keep_the_signs_of_zeros(support: Callable[..., Any]) -> None:
    small = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan)
    for a, b, c in itertools.product(small, repeat=3):
        wanted = a * b + c  # exact
        for name in ("fma", "integer_fma", "fmaf"):
            found = support(name, a, b, c)
            assert repr(found) == repr(wanted), (name, a, b, c)


def _as_f32(exact: Fraction) -> Fraction:
    """The nearest f32, ties to even."""
    near = np.float32(exact.numerator / exact.denominator)
    around = [near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))]
    ranked = sorted(
        (abs(Fraction(float(v)) - exact), int(v.view(np.uint32)) & 1, v) for v in around
    )
    return Fraction(float(ranked[0][2]))


def test_only_what_code_calls_is_added() -> None:
    assert needed_support(b"\0fmaf\0") == {"fma", "fmaf"}
    small = bu.jit(lambda x: x + 1).export("model", f32[4], target="x86-64-v2").files["model.o"]
    exp = bu.jit(lambda x: bu.exp(x))
    own, more = (
        exp.export("model", type_, target="x86-64-v2").files["model.o"]
        for type_ in (f32[4], bu.float64[4])
    )
    assert b"fma" not in small
    assert b"fma" not in own  # vectors of f32 have a function of their own
    assert b"fma" in more


#: The networks whose sizes and times the page on libraries tells.
NETWORKS = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "libraries.py"))


def loaded_bytes(code: bytes) -> int:
    """What of an object of ELF for 64 bits comes into memory."""
    (start,), (size, count) = (
        struct.unpack_from("<Q", code, 40),
        struct.unpack_from("<2H", code, 58),
    )
    sections = (struct.unpack_from("<2I4Q", code, start + n * size) for n in range(count))
    return sum(length for _, _, flags, _, _, length in sections if flags & 2)


#: A network's name, the type of its argument, and the most bytes that it may need beyond weights.
SIZES = (("mlp", f32[1, 784], 24 << 10), ("lenet", f32[1, 1, 28, 28], 48 << 10))


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize(("name", "type_", "most"), SIZES, ids=lambda v: str(v))
def test_networks_are_small_and_hold_their_weights_once(
    name: str, type_: Any, most: int, small: bool
) -> None:
    """With code for three levels of x86-64."""
    arrays, fn = NETWORKS[name.upper()], bu.jit(NETWORKS[name])
    held = fn.export("model", type_, target=HOST, small=small).files["model.o"]
    assert 0 < loaded_bytes(held) - sum(array.nbytes for array in arrays.values()) <= most
    assert [held.count(array.tobytes()) for array in arrays.values()] == [1] * len(arrays)


def test_frozen_weights_are_held_once() -> None:
    """Laid out for one processor, with no second array of them as they were."""
    frozen = bu.freeze(lambda p, x: bu.nn.relu(x @ p["w1"] + p["b1"]), NETWORKS["MLP"])
    held = frozen.export("model", f32[32, 784], target="x86-64-v3").files["model.o"]
    w = NETWORKS["MLP"]["w1"]
    panels = w.reshape(784, 8, 16).swapaxes(0, 1).tobytes()
    assert (held.count(w.tobytes()), held.count(panels)) == (0, 1)
    assert loaded_bytes(held) < w.nbytes + (12 << 10)


ARENA = """
  static float x[MODEL_X_SIZE], y[MODEL_RESULT_SIZE];
  model_args args = {x};
  model_results results = {y};
  int last = -1;
  for (int n = 0; n < 2; n++) {
    memset(arena, n ? 0x5a : 0xa5, sizeof arena);
    if (model_run(&args, &results, arena)) return 60;
    for (int at = 0; at < (int)sizeof arena; at++)
      if (arena[at] != (n ? 0x5a : 0xa5) && at > last) last = at;
  }
  printf("%d %d\\n", last, MODEL_ARENA_BYTES);
  return 0;
"""


@pytest.mark.parametrize(("name", "type_", "_most"), SIZES, ids=lambda v: str(v))
def test_memory_is_that_of_the_arena_and_no_more(
    name: str, type_: Any, _most: int, tmp_path: Path
) -> None:
    """The last line of it is used, and nothing behind it."""
    fn = bu.jit(NETWORKS[name])
    library = fn.export("model", type_, target="x86-64-v2")
    last, size = map(int, run_c(tmp_path, library, ARENA).split())
    assert size - 64 <= last < size


@pytest.mark.parametrize(("said", "refused"), [("7.2.22", True), ("10.0.2", False)])
def test_an_emulator_that_is_too_old_is_refused(
    said: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The development distribution bringup-aot, which is not installed here."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "aot"))
    machines: Any = importlib.import_module("bringup_aot.machines")
    emulator, linker = tmp_path / "qemu-riscv64", tmp_path / "cc"
    for path, text in ((emulator, f"echo qemu-riscv64 version {said}"), (linker, "")):
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    machine = next(m for m in machines.MACHINES if m.least)
    machine = replace(machine, compiler=str(linker), emulator=(str(emulator),))
    if refused:
        with pytest.raises(NoHardware, match=r"7 ends at .* QEMU 8 or newer is needed"):
            machines.compiler(machine)
    else:
        assert machines.compiler(machine) == (str(linker),)

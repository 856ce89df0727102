"""C source: what programs in C get from it, by the compilers of this machine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from c_cases import CASES, LENET, MLP, Array, Case, lenet, mlp
from c_program import SANITIZERS, compile_all, compilers, has_sanitizers, main_of, run
from syrupy.assertion import SnapshotAssertion
from typer.testing import CliRunner

import bringup as bu
from bringup import lax
from bringup.aot.library import WeightsPlace
from bringup.c import C11
from bringup.cli.app import app
from bringup.errors import BringupError


@dataclass(frozen=True)
class Suite:
    """A library of all cases, and its folder."""

    folder: Path
    sources: tuple[Path, Path]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """All cases as functions of one library, and a program that calls them."""
    folder = tmp_path_factory.mktemp("suite")
    functions = {name: (case.function, *case.arguments) for name, case in CASES.items()}
    library = bu.export("suite", functions, target="c11")
    library.write(folder)
    main = folder / "main.c"
    main.write_text(main_of("suite", CASES, library.arena_bytes))
    return Suite(folder, (folder / "suite.c", main))


@pytest.fixture(scope="module")
def results(suite: Suite) -> dict[str, list[Array]]:
    """What the program gives."""
    return run(compile_all(suite.sources, suite.folder / "program", ("-O2",)), CASES)


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_numpy(name: str, results: dict[str, list[Array]]) -> None:
    """And no byte beyond results and arena is written."""
    assert_close(results[name], CASES[name])


def assert_close(found: list[Array], case: Case) -> None:
    """Within the tolerance of a case."""
    for got, want in zip(found, case.results, strict=True):
        if case.tolerance and want.dtype.kind == "f":
            wide = np.result_type(want.dtype, np.float32)
            np.testing.assert_allclose(
                got.astype(wide), want.astype(wide), rtol=case.tolerance, atol=case.tolerance
            )
        else:
            assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("number", range(2))
def test_every_compiler_gives_the_same_bits(
    number: int, suite: Suite, results: dict[str, list[Array]]
) -> None:
    """Without optimisation; the second one with checks of undefined behaviour, which clang 14 takes
    minutes to optimise.
    """
    if number and len(compilers()) < 2:
        pytest.skip("there is one compiler")
    flags = ("-fsanitize=undefined", "-fsanitize-trap=undefined") if number else ()
    program = suite.folder / f"other{number}"
    compile_all(suite.sources, program, ("-O0", *flags), compilers()[number])
    for name, found in run(program, CASES).items():
        for got, want in zip(found, results[name], strict=True):
            assert got.tobytes() == want.tobytes(), name


def test_nothing_is_undefined(suite: Suite) -> None:
    """Sanitizers watch every access of arrays and of an arena of exact sizes."""
    if not has_sanitizers(suite.folder):
        pytest.skip("the compiler has no sanitizers")
    flags = ("-O1", "-DEXACT", *SANITIZERS)
    run(compile_all(suite.sources, suite.folder / "sanitized", flags), CASES)


def test_small_code_gives_numbers_of_numpy_too(tmp_path: Path) -> None:
    """Loops without schedules; kernels and their calls are fewer bytes."""
    cases = {
        name: CASES[name] for name in ("mlp", "lenet", "norm_softmax", "sort", "recurrence7_False")
    }
    functions = {name: (case.function, *case.arguments) for name, case in cases.items()}
    library = bu.export("suite", functions, target="c11", small=True)
    library.write(tmp_path)
    main = tmp_path / "main.c"
    main.write_text(main_of("suite", cases, library.arena_bytes))
    program = compile_all((tmp_path / "suite.c", main), tmp_path / "program", ("-Os",))
    for name, found in run(program, cases).items():
        assert_close(found, cases[name])


_POOL = """\
/* Parts that begin at multiples of the grain, the last one first, on workers in turns. */
static void run_parts(void *self, suite_part part, void *context, int64_t count, int64_t grain) {
  int64_t *calls = self, begin = (count - 1) / grain * grain;
  for (int64_t end = count, n = 0; begin >= 0; end = begin, begin -= grain, n++) {
    part(context, begin, end, n % 3);
    ++*calls;
  }
}
static int64_t calls;
static const suite_pool pool = {run_parts, &calls};
"""


def test_a_pool_of_workers_gives_the_same_bits(tmp_path: Path) -> None:
    """Whatever the order of the parts, each with memory of its own."""
    x = np.random.default_rng(1).standard_normal((192, 192)).astype(np.float32)
    functions = {
        "product": (lambda x: x @ x, x),
        "rows": (lambda x: bu.sort(bu.exp(x), axis=1), x),
        "sums": (lambda x: bu.cumsum(bu.sort(x.reshape(-1))), x),
        "solve": (lambda x: bu.linalg.solve(x @ x.T + 192 * bu.eye(192, dtype=x.dtype), x), x),
    }
    cases = {
        name: Case(f, args, (np.asarray(bu.jit(f)(*args)),), 1e-3)
        for name, (f, *args) in ((n, (f, a)) for n, (f, a) in functions.items())
    }
    library = bu.export("suite", functions, target="c11", threads=3)
    library.write(tmp_path)
    text = main_of("suite", cases, library.arena_bytes, ", POOL")
    text = text.replace(
        '#include "suite.h"',
        '#include "suite.h"\n#ifndef POOL\n' + _POOL + "#define POOL &pool\n#endif",
        1,
    )
    text = text.replace(
        "  return fclose(out);", "  if (CALLS < 8) return 9;\n  return fclose(out);"
    )
    (tmp_path / "main.c").write_text(text)
    sources = (tmp_path / "suite.c", tmp_path / "main.c")
    found = {}
    for name, flags in (("pool", ("-DCALLS=calls",)), ("alone", ("-DPOOL=NULL", "-DCALLS=8"))):
        program = compile_all(sources, tmp_path / name, ("-O2", *flags))
        found[name] = run(program, cases)
    for name, case in cases.items():
        assert found["pool"][name][0].tobytes() == found["alone"][name][0].tobytes(), name
        assert_close(found["pool"][name], case)


_CODES = """\
#include <stddef.h>
#include <stdio.h>
#include "model.h"
#define EXPECT(code, call) if ((call) != code) return printf("%d: %s\\n", __LINE__, #call), 1

int main(void) {
  static _Alignas(64) unsigned char arena[MODEL_ARENA_BYTES + 64];
  static float x[MODEL_X_SIZE], y[MODEL_RESULT_SIZE];
  const float *askew = (const float *)((const char *)x + 2);
  model_args args = {x}, none = {NULL}, aside = {askew};
  model_results results = {y}, nowhere = {NULL};
  EXPECT(MODEL_OK, model_run(&args, &results, arena));
  EXPECT(MODEL_NULL_POINTER, model_run(NULL, &results, arena));
  EXPECT(MODEL_NULL_POINTER, model_run(&args, NULL, arena));
  EXPECT(MODEL_NULL_POINTER, model_run(&args, &results, NULL));
  EXPECT(MODEL_NULL_POINTER, model_run(&none, &results, arena));
  EXPECT(MODEL_NULL_POINTER, model_run(&args, &nowhere, arena));
  EXPECT(MODEL_MISALIGNED, model_run(&aside, &results, arena));
  EXPECT(MODEL_MISALIGNED, model_run(&args, &results, arena + 32));
  return 0;
}
"""


def test_wrong_pointers_give_codes(tmp_path: Path) -> None:
    """And nothing is read or written there."""
    bu.jit(mlp).export("model", bu.float32[1, 784], target="c11").write(tmp_path)
    assert runs(tmp_path, _CODES) == ""


def runs(folder: Path, main: str, *arguments: str) -> str:
    """What a program of a model says."""
    (folder / "main.c").write_text(main)
    sources = (folder / "model.c", folder / "main.c")
    program = compile_all(sources, folder / "main", ("-O1", "-D_POSIX_C_SOURCE=200809L"))
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


_MAPPED = """\
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include "model.h"

int main(int count, char **names) {
  static _Alignas(64) unsigned char arena[MODEL_ARENA_BYTES + 1];
  static float x[MODEL_X_SIZE], y[MODEL_RESULT_SIZE];
  for (int n = 0; n < MODEL_X_SIZE; n++) x[n] = (float)(n % 17) / 17;
  for (int k = 1; k < count; k++) {
    const void *file = mmap(NULL, 1 << 20, PROT_READ, MAP_PRIVATE, open(names[k], O_RDONLY), 0);
    const model_args args = {x, file};
    const model_results results = {y};
    printf("%d ", model_run(&args, &results, arena));
  }
  for (int n = 0; n < MODEL_RESULT_SIZE; n++) printf("%.9g ", (double)y[n]);
  return 0;
}
"""


def test_weights_are_mapped_from_a_file(tmp_path: Path) -> None:
    """The code has none of them, and tells another file from its own."""
    library = bu.jit(mlp).export("model", bu.float32[1, 784], target="c11", weights="external")
    library.write(tmp_path)
    assert len(library.files["model.c"]) < 60_000
    file = bytearray(library.files["model.safetensors"])
    assert len(file) >= sum(array.nbytes for array in MLP.values())
    (tmp_path / "good").write_bytes(file)
    file[file.index(b"sha256") + 10] ^= 1
    (tmp_path / "bad").write_bytes(file)
    bad, good, *numbers = runs(
        tmp_path, _MAPPED, str(tmp_path / "bad"), str(tmp_path / "good")
    ).split()
    assert (bad, good) == ("3", "0")
    x = (np.arange(784) % 17 / 17).astype(np.float32)[None]
    want = np.asarray(bu.jit(mlp)(x)).reshape(-1)
    np.testing.assert_allclose(np.float32(numbers), want, rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("weights", ["embedded", "external"])
def test_functions_may_lack_something(weights: WeightsPlace, threads: int, tmp_path: Path) -> None:
    """Weights beside one that has some, arguments, results, work for a pool."""
    vector, matrix = bu.float32[4], bu.float32[3, 784]
    functions = {
        "whole": (lambda x: x @ MLP["w"], matrix),
        "weightless": (lambda x: x + 1, vector),
        "fixed": (lambda: bu.zeros(3),),
        "nothing": (lambda x: (), vector),
    }
    options: dict[str, Any] = {"weights": weights, "threads": threads}
    for name, chosen in (("all", functions), ("few", dict([*functions.items()][1:]))):
        bu.export(name, chosen, target="c11", **options).write(tmp_path)
        for number, command in enumerate(compilers()):
            path = tmp_path / f"{name}{number}.o"
            compile_all((tmp_path / f"{name}.c",), path, ("-c",), command)


def test_functions_of_a_library_share_kernels_and_weights() -> None:
    """Two functions with the same layers are hardly more text than one."""
    types = (mlp, bu.float32[1, 784])
    one = bu.export("m", {"first": types}, target="c11").files["m.c"]
    two = bu.export("m", {"first": types, "second": types}, target="c11").files["m.c"]
    assert len(two) - len(one) < 6_000
    assert two.count(b"static const float") == one.count(b"static const float") > 0
    assert two.count(b"static void k") == one.count(b"static void k") > 0


@pytest.mark.parametrize(
    ("function", "types", "weights", "most"),
    [
        (mlp, bu.float32[1, 784], MLP, 24 << 10),
        (lenet, bu.float32[1, 1, 28, 28], LENET, 48 << 10),
    ],
)
@pytest.mark.parametrize("small", [False, True])
def test_code_is_small_and_calls_no_more_than_it_says(
    function: Callable[..., object],
    types: bu.TensorType,
    weights: Mapping[str, Array],
    most: int,
    small: bool,
    tmp_path: Path,
) -> None:
    """Beyond the weights; no memory is written but what the caller gives."""
    if not shutil.which("nm") or not shutil.which("size"):
        pytest.skip("there is no nm to look with")
    bu.jit(function).export("model", types, target="c11", small=small).write(tmp_path)
    path = tmp_path / "model.o"
    compile_all((tmp_path / "model.c",), path, ("-Os", "-c", "-fno-stack-protector"))
    text, data, bss = map(int, _output("size", path).splitlines()[1].split()[:3])
    assert text - sum(array.nbytes for array in weights.values()) <= most
    assert (data, bss) == (0, 0)
    names = {line.split()[-1] for line in _output("nm", "-u", path).splitlines()}
    maths = {name for pair in C11.functions.values() for name in pair} | {"truncf"}
    assert names <= {"memcpy", "memset", "memcmp", "_GLOBAL_OFFSET_TABLE_"} | maths


def _output(*command: object) -> str:
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=True
    ).stdout


def test_an_unknown_language_is_refused_with_those_that_are_known() -> None:
    """Among the processors."""
    with pytest.raises(BringupError, match="no library can be made for 'c99'") as error:
        bu.jit(mlp).export("model", bu.float32[1, 784], target="c99")
    assert "c11" in str(error.value)


def test_text_of_loops_and_branches(snapshot: SnapshotAssertion) -> None:
    """A recurrence behind a choice; what the file holds from its programs on."""

    def step(h: Any, row: Any) -> Any:
        return h * 0.5 + row, h

    def choose(n: Any, x: Any) -> Any:
        return lax.switch(n, [lambda x: lax.scan(step, x[0], x)[1], lambda x: x * 2], x)

    library = bu.jit(choose).export("model", bu.int32[()], bu.float32[3, 4], target="c11")
    text = library.files["model.c"].decode()
    assert text[text.index("static void bu_program_") :] == snapshot


def test_build_writes_source_and_links_none(tmp_path: Path) -> None:
    """``bringup build``: the files, and a refusal of other kinds."""
    model = tmp_path / "model.py"
    model.write_text("def predict(x):\n    return x * 2\n")
    command = ["build", f"{model}:predict", "--args", "f32[8]", "--target", "c11"]
    command += ["--out", str(tmp_path)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "predict_run: 0 bytes of arena" in done.output
    assert "predict_run(" in (tmp_path / "predict.c").read_text()
    refused = CliRunner().invoke(app, [*command, "--kind", "static"])
    assert refused.exit_code != 0
    assert "c11 gives no machine code" in str(refused.exception or refused.output)

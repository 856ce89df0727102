"""Libraries of OpenCL C: a host file of C, and what it computes on the OpenCL of this machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import cl_program
import numpy as np
import pytest
from c_cases import CASES, MLP, Array, Case, mlp
from c_program import compile_all, run
from syrupy.assertion import SnapshotAssertion
from test_c_source import assert_close

import bringup as bu
from bringup.aot.library import Library
from bringup.errors import UnsupportedError

#: Kernels in plain loops, each a work item for itself.
SMALL = ("mlp", "lenet", "norm_softmax", "sort", "recurrence7_False", "running")


@pytest.fixture(scope="module")
def _opencl(tmp_path_factory: pytest.TempPathFactory) -> None:
    if lacks := cl_program.missing(tmp_path_factory.mktemp("opencl")):
        pytest.skip(lacks)


def computed(folder: Path, cases: dict[str, Case], *, small: bool) -> dict[str, list[Array]]:
    """What a program of C gets from a library of these functions."""
    functions = {name: (case.function, *case.arguments) for name, case in cases.items()}
    library = bu.export("suite", functions, target="opencl-c", small=small)
    library.write(folder)
    header = library.files["suite.h"].decode()
    main = folder / "main.c"
    main.write_text(cl_program.main_of("suite", cases, library.arena_bytes, header))
    sources = (folder / "suite.c", main)
    program = compile_all(sources, folder / "program", ("-O1",), library="-lOpenCL")
    return run(program, cases)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, _opencl: None) -> dict[str, list[Array]]:
    """Of all cases."""
    return computed(tmp_path_factory.mktemp("suite"), CASES, small=False)


@pytest.fixture(scope="module")
def small_results(
    tmp_path_factory: pytest.TempPathFactory, _opencl: None
) -> dict[str, list[Array]]:
    """Of some."""
    cases = {name: CASES[name] for name in SMALL}
    return computed(tmp_path_factory.mktemp("small"), cases, small=True)


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_numpy(name: str, results: dict[str, list[Array]]) -> None:
    """Whatever the arena and the results held before, and with no argument changed."""
    assert_close(results[name], CASES[name])


@pytest.mark.parametrize("name", SMALL)
def test_small_code_gives_numbers_of_numpy_too(
    name: str, small_results: dict[str, list[Array]]
) -> None:
    assert_close(small_results[name], CASES[name])


@pytest.mark.usefixtures("_opencl")
def test_weights_without_elements_are_uploaded(tmp_path: Path) -> None:
    """Nothing is copied: OpenCL 1.2 refuses a copy of no bytes."""
    empty, x = bu.asarray(np.zeros((0, 3), np.float32)), np.ones((2, 3), np.float32)
    case = Case(lambda x: bu.concatenate([x, empty]) + 1, (x,), (x + 1,))
    found = computed(tmp_path, {"empty": case}, small=False)
    assert_close(found["empty"], case)
    text = (tmp_path / "suite.c").read_text()
    assert "int suite_upload(" in text
    assert "bu_pieces" not in text


def library(**options: bool) -> Library:
    """The small network."""
    return bu.jit(mlp).export("model", bu.float32[1, 784], target="opencl-c", **options)


def test_the_files_and_their_interface() -> None:
    """The kernels are a file as well as a part of the C file; memory is that of OpenCL."""
    files = library().files
    assert sorted(files) == ["model.c", "model.cl", "model.h", "model.hpp", "model.rs"]
    code = ", ".join(map(str, files["model.cl"][:8]))
    assert code in files["model.c"].decode()
    header = files["model.h"].decode()
    for text in (
        "#include <CL/cl.h>",
        "cl_mem x; /* f32[1,784] */",
        "cl_mem weights; /* written by model_upload */",
        "int model_load(model_device *device, cl_context context, cl_device_id id);",
        "int model_upload(cl_mem weights, cl_command_queue queue);",
        "const model_results *results, cl_mem arena, cl_command_queue queue);",
    ):
        assert text in header
    weights = sum(-(-w.nbytes // 256) * 256 for w in MLP.values())
    assert f"#define MODEL_WEIGHTS_BYTES {weights}" in header


def test_text_of_a_library(snapshot: SnapshotAssertion) -> None:
    """A loop that the host decides on, with the tables and calls of a whole file."""

    def halved(x: bu.Array) -> bu.Array:
        return bu.lax.while_loop(lambda y: y.sum() > 1, lambda y: y / 2, x)

    files = bu.jit(halved).export("halved", bu.float32[4], target="opencl-c").files
    lines = files["halved.c"].decode().splitlines()
    assert "\n".join(line for line in lines if not re.fullmatch("  [0-9, ]+", line)) == snapshot
    assert files["halved.h"].decode() == snapshot
    assert files["halved.cl"].decode() == snapshot


def test_a_pool_of_threads_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="a pool of 4 threads"):
        library(threads=4)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_opencl")
def test_what_is_wrong_with_a_call_is_told(tmp_path: Path) -> None:
    """By a code of the header; an error of OpenCL is its own negative number."""
    files = library()
    files.write(tmp_path)
    (tmp_path / "main.c").write_text(_WRONG)
    sources = (tmp_path / "model.c", tmp_path / "main.c")
    program = compile_all(sources, tmp_path / "program", ("-O1",), library="-lOpenCL")
    done = subprocess.run([str(program)], capture_output=True, text=True, check=True)
    # CL_INVALID_CONTEXT is -34, CL_INVALID_COMMAND_QUEUE is -36.
    assert np.array(done.stdout.split(), int).tolist() == [1, 1, -34, 1, -36, 1, 1, 1, 0]


_WRONG = """\
#include "model.h"
#include <stdio.h>

int main(void) {
  cl_platform_id platform;
  cl_device_id id;
  clGetPlatformIDs(1, &platform, NULL);
  clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &id, NULL);
  cl_context context = clCreateContext(NULL, 1, &id, NULL, NULL, NULL);
  cl_command_queue queue = clCreateCommandQueue(context, id, 0, NULL);
  model_device device;
  printf("%d %d %d ", model_load(NULL, context, id), model_unload(NULL),
      model_load(&device, NULL, id));
  if (model_load(&device, context, id)) return 1;
  cl_mem all[4];
  const size_t bytes[] = {MODEL_X_SIZE * 4, MODEL_RESULT_SIZE * 4, MODEL_ARENA_BYTES,
    MODEL_WEIGHTS_BYTES};
  for (int n = 0; n < 4; n++)
    all[n] = clCreateBuffer(context, CL_MEM_READ_WRITE, bytes[n], NULL, NULL);
  printf("%d %d ", model_upload(NULL, queue), model_upload(all[3], NULL));
  if (model_upload(all[3], queue)) return 1;
  const model_args args = {all[0], all[3]}, none = {NULL, all[3]};
  const model_results results = {all[1]};
  printf("%d %d %d %d\\n", model_run(&device, &none, &results, all[2], queue),
      model_run(&device, &args, &results, NULL, queue),
      model_run(NULL, &args, &results, all[2], queue),
      model_run(&device, &args, &results, all[2], queue));
  return clFinish(queue) || model_unload(&device);
}
"""

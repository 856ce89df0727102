"""Libraries for CUDA made ahead of time: their C, their PTX, and what they compute."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from assembling import Assemble
from linked import ROOT, include, own_cases

import bringup as bu
from bringup.aot.library import Library
from bringup.errors import UnsupportedError

sys.path.append(str(ROOT / "core" / "tests" / "aot"))
from c_cases import CASES, MLP, lenet, mlp
from c_program import flat
from test_c_source import assert_close

from bringup.backend.link import STATUS

HERE = Path(__file__).parent
CODES = {name: number for number, (name, _) in enumerate(STATUS)}
#: What a run of a process is for: a target, where weights are, and the functions.
RUNS = {
    "sm_80": ("cuda:sm_80", "embedded", [*CASES, "wide"]),
    "sm_90a": (
        "cuda:sm_90a",
        "external",
        ["mlp", "lenet", "norm_softmax", "choose1", "running", "product"],
    ),
}
#: Seconds; the emulator checks every access.
MOST = 600


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Where each of `RUNS` has written what it got."""
    lacks = ""
    if include() is None:
        lacks = "no cuda.h: install the wheel nvidia-cuda-runtime-cu12"
    elif not shutil.which(os.environ.get("CC", "cc")):
        lacks = "there is no C compiler"
    if lacks:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(lacks)
    made = {}
    for name, (target, weights, functions) in RUNS.items():
        folder = made[name] = tmp_path_factory.mktemp(name)
        command = [sys.executable, str(HERE / "linked.py"), str(folder), target, weights]
        done = subprocess.run(
            [*command, *functions], capture_output=True, text=True, check=False, timeout=MOST
        )
        assert done.returncode == 0, done.stderr[-5000:]
    return made


@pytest.mark.parametrize(
    ("run", "name"),
    [(run, name) for run, (_, _, names) in RUNS.items() for name in names],
)
def test_results_are_those_of_numpy(run: str, name: str, folders: dict[str, Path]) -> None:
    """Whatever the arena and the results held before, and with no argument changed."""
    found, case = np.load(folders[run] / "results.npz"), {**CASES, **own_cases()}[name]
    wanted = tuple(flat(case.results))
    results = [found[f"{name}.{n}"] for n in range(len(wanted))]
    assert_close(results, replace(case, results=wanted))


def test_codes_say_what_is_wrong_with_a_call(folders: dict[str, Path]) -> None:
    """Errors of the driver are negative."""
    facts = json.loads((folders["sm_80"] / "facts.json").read_text())
    codes = {name: code for name, code in facts.items() if isinstance(code, int)}
    codes = {name: code for name, code in codes.items() if not name.startswith("blocks")}
    null = ("no argument", "no result", "no arena", "no device", "no struct")
    assert codes == {
        "right": CODES["OK"],
        **dict.fromkeys((*null, "nowhere to load", "nowhere to unload"), CODES["NULL_POINTER"]),
        "misaligned": CODES["MISALIGNED"],
        **dict.fromkeys(("cuLaunchKernel", "cuModuleLoadData", "cuModuleGetFunction"), -719),
    }
    facts = json.loads((folders["sm_90a"] / "facts.json").read_text())
    assert facts["other weights"] == CODES["WRONG_WEIGHTS"]
    assert facts["no file"] == facts["nowhere to put weights"] == CODES["NULL_POINTER"]


def test_blocks_with_little_work_are_as_many_as_the_gpu_holds(folders: dict[str, Path]) -> None:
    """The stand-in has 4 multiprocessors, which hold 8 of these blocks each."""
    facts = json.loads((folders["sm_80"] / "facts.json").read_text())
    assert facts["blocks of wide"] == 32


def test_the_example_says_what_bringup_says(folders: dict[str, Path]) -> None:
    """Its program of C, with weights that nobody trained."""
    facts = json.loads((folders["sm_80"] / "facts.json").read_text())
    assert facts["digits as bringup says them"] == "70 of 70"


@pytest.mark.parametrize(("run", "weights"), [("sm_80", "embedded"), ("sm_90a", "external")])
@pytest.mark.parametrize("language", ["C++", "Rust"])
def test_a_module_calls_the_library(
    language: str, run: str, weights: str, folders: dict[str, Path]
) -> None:
    """Compiled with warnings as errors; the second call has no memory for a result."""
    called = json.loads((folders[run] / "facts.json").read_text())[f"called by {language}"]
    if called is None:
        pytest.skip("rustc is not installed, or does not know 'unsafe extern'")
    assert called == [CODES["OK"], CODES["NULL_POINTER"], 1.0, 4.0, 9.0, 16.0]


@cache
def library(target: str, **options: Any) -> Library:
    """The small network for a target."""
    return bu.jit(mlp).export("model", bu.float32[1, 784], target=target, **options)


def test_the_header_has_the_interface_of_other_libraries() -> None:
    """With memory of the device in the place of pointers."""
    header = library("cuda:sm_80").files["model.h"].decode()
    for text in (
        "#include <cuda.h>",
        '#define MODEL_TARGET "sm_80"',
        f"#define MODEL_ARENA_BYTES {library('cuda:sm_80').arena_bytes['model_run']}",
        "#define MODEL_X_SIZE 784",
        "CUdeviceptr x; /* f32[1,784] */",
        "CUdeviceptr weights; /* written by model_upload */",
        "int model_load(model_device *device);",
        "int model_upload(CUdeviceptr weights, CUstream queue);",
        "int model_run(const model_device *device, const model_args *args,",
        "const model_results *results, CUdeviceptr arena, CUstream queue);",
    ):
        assert text in header
    weights = sum(-(-w.nbytes // 256) * 256 for w in MLP.values())
    assert f"#define MODEL_WEIGHTS_BYTES {weights}" in header


def test_the_driver_alone_is_called() -> None:
    """The file includes its own header and two of C, and calls no function of the runtime."""
    text = library("cuda:sm_80").files["model.c"].decode()
    lines = [line for line in text.splitlines() if line.startswith("#include")]
    assert lines == ['#include "model.h"', "#include <stddef.h>", "#include <string.h>"]
    assert "malloc" not in text
    assert "cuda" not in text


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a", "sm_120"])
def test_ptx_is_assembled(target: str, assemble: Assemble) -> None:
    assemble(library(f"cuda:{target}").files["model.ptx"].decode(), target)


def test_functions_share_kernels_and_weights() -> None:
    """Two functions with one layer in common are less than both alone."""
    types = (bu.float32[1, 784],)
    both = bu.export("m", {"a": (mlp, *types), "b": (mlp, *types)}, target="cuda:sm_80").files
    assert both["m.ptx"] == library("cuda:sm_80").files["model.ptx"]
    assert len(both["m.c"]) < 1.05 * len(library("cuda:sm_80").files["model.c"])


def test_what_cannot_be_is_refused() -> None:
    """A pool of threads, an unknown GPU."""
    with pytest.raises(UnsupportedError, match="a pool of 4 threads"):
        bu.jit(mlp).export("model", bu.float32[1, 784], target="cuda:sm_80", threads=4)
    with pytest.raises(UnsupportedError, match="no architecture 'sm_10'"):
        bu.jit(mlp).export("model", bu.float32[1, 784], target="cuda:sm_10")


def test_lenet_has_a_launch_for_each_kernel_and_little_else() -> None:
    """Weights and code beside it, the tables are short."""
    files = bu.jit(lenet).export("lenet", bu.float32[1, 1, 28, 28], target="cuda:sm_80").files
    text = files["lenet.c"].decode()
    assert text.count("{BU_LAUNCH,") == files["lenet.ptx"].decode().count(".entry ")
    assert "{BU_COPY," not in text

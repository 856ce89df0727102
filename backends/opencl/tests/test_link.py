"""Libraries for kinds of machines, made without a device, and run on the OpenCL of this one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import bringup as bu
from bringup.aot.library import Library
from bringup.api import exporting
from bringup.errors import UnsupportedError
from bringup_opencl.backend import OpenCLBackend
from bringup_opencl.machine import KINDS

sys.path.append(str(Path(__file__).parents[3] / "core" / "tests" / "aot"))
import cl_program
from c_cases import CASES, Array, mlp
from c_program import compile_all, run
from test_c_source import assert_close

#: Products, folds, steps of the op library, loops and branches.
NAMES = ("mlp", "lenet", "norm_softmax", "sort", "scatter", "collatz", "running", "choose1")


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend as if its distribution were installed."""
    monkeypatch.setattr(exporting, "backend_of", lambda target: (OpenCLBackend(), target))


def library(target: str) -> Library:
    functions = {name: (CASES[name].function, *CASES[name].arguments) for name in NAMES}
    return bu.export("suite", functions, target=target)


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_those_of_numpy(kind: str, tmp_path: Path) -> None:
    if lacks := cl_program.missing(tmp_path):
        pytest.skip(lacks)
    made = library(kind)
    made.write(tmp_path)
    cases = {name: CASES[name] for name in NAMES}
    header = made.files["suite.h"].decode()
    (tmp_path / "main.c").write_text(cl_program.main_of("suite", cases, made.arena_bytes, header))
    sources = (tmp_path / "suite.c", tmp_path / "main.c")
    program = compile_all(sources, tmp_path / "program", ("-O1",), library="-lOpenCL")
    found: dict[str, list[Array]] = run(program, cases)
    for name, results in found.items():
        assert_close(results, cases[name])


def test_processors_get_vectors_and_gpus_groups() -> None:
    """A processor has no local memory and groups of one; both take memory and an offset."""
    cpu, gpu = (library(kind).files["suite.cl"].decode() for kind in ("cpu", "gpu"))
    assert "__builtin_memcpy(&v" in cpu
    assert "__local" not in cpu
    assert "__local" in gpu
    assert "ulong bu_offset0" in cpu
    assert "ulong bu_offset0" in gpu


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="OpenCL has no 'tpu'"):
        bu.jit(mlp).export("model", bu.float32[1, 784], target="tpu")

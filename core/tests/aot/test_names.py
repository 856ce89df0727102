"""Names in the files of a library: any that Python has, and never one twice."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from c_program import compile_all, compilers, need_rust

import bringup as bu
from bringup.aot.library import Library
from bringup.errors import BringupError

f32 = bu.float32[4]


def named(
    result: Any, args: Any, results: Any, arena: Any, pool: Any, X: Any, x: Any, status: Any,
    call: Any, buffers: Any, device: Any, queue: Any, file: Any, whole: Any, weights: Any, code: Any
) -> dict[str, Any]:  # fmt: skip
    """Every name that the text of a library has for something of its own."""
    return {
        "result": result + args + results + arena + pool + X + weights,
        "x": x + status + call + buffers + device + queue + file + whole + code,
    }


def library(target: str, folder: Path, **options: Any) -> Library:
    made = bu.jit(named).export("m", *[f32] * 16, target=target, **options)
    made.write(folder)
    return made


@pytest.mark.parametrize("options", [{}, {"threads": 2, "weights": "external"}])
def test_arguments_may_have_the_names_of_what_stands_beside_them(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    header = library("c11", tmp_path, **options).files["m.h"].decode()
    defined = [line.split()[1] for line in header.splitlines() if line.startswith("#define")]
    assert len(defined) == len(set(defined))
    compile_all([tmp_path / "m.c"], tmp_path / "m.o", ("-c",))
    (tmp_path / "called.cpp").write_text('#include "m.hpp"\n')
    flags = ["-x", "c++", "-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-c"]
    subprocess.run([*compilers()[0], *flags, "called.cpp"], cwd=tmp_path, check=True)


def test_and_in_rust(tmp_path: Path) -> None:
    rust = need_rust()
    library("c11", tmp_path)
    library("opencl-c", tmp_path / "opencl")
    for file in ("m.rs", "opencl/m.rs"):
        command = [*rust, "--edition", "2021", "-D", "warnings", "--crate-type", "lib", file]
        subprocess.run(command, cwd=tmp_path, check=True)


def test_a_launched_library_too(tmp_path: Path) -> None:
    """No parameter counts as used because an argument has its name."""
    text = library("opencl-c", tmp_path).files["m.c"].decode()
    assert "  (void)arena;\n" in text


@pytest.mark.parametrize(
    ("names", "twice", "target"),
    [
        (("a", "a_args"), "m_a_args", "c11"),
        (("mean", "Mean"), "M_MEAN_ARENA_BYTES", "c11"),
        (("pool",), "m_pool", "c11"),
        (("part",), "m_part", "c11"),
        (("load",), "m_load", "opencl-c"),
    ],
)
def test_functions_whose_names_clash_are_refused(
    names: tuple[str, ...], twice: str, target: str
) -> None:
    functions = {name: (lambda x: x + 1, f32) for name in names}
    threads = 2 if target == "c11" else 1
    with pytest.raises(BringupError, match=f"{twice} would stand in m.h twice"):
        bu.export("m", functions, target=target, threads=threads)

"""The modules for C++ and Rust beside a library: compiled, warnings as errors, and run."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.aot.library import Library, WeightsPlace
from bringup.aot.toolchain import host_compiler

sys.path.append(str(Path(__file__).parents[3] / "core" / "tests" / "aot"))
from c_program import need_rust

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="runs code of x86-64"
)
WEIGHTS = np.arange(1, 5, dtype=np.float32)
#: Every dtype, and what its arrays are made of in Rust: narrow floats are their bits.
RUST = {
    "bool": "u8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "float16": "u16", "bfloat16": "u16", "float32": "f32", "float64": "f64",
}  # fmt: skip
WORDS = {"u": "uint", "i": "int"}
VARIANTS = pytest.mark.parametrize(
    ("weights", "threads"), [("embedded", 1), ("external", 1), ("embedded", 2)]
)


def make(folder: Path, weights: WeightsPlace, threads: int) -> Library:
    """A library of a function that holds an array, and of one for every dtype."""

    def scaled(x: Any) -> Any:
        return x * WEIGHTS

    def backward(x: Any) -> Any:
        return x[::-1]

    functions: dict[str, tuple[Any, ...]] = {"scaled": (scaled, bu.float32[4])}
    functions |= {f"backward_{name}": (backward, getattr(bu, name)[3]) for name in RUST}
    library = bu.export("maths", functions, target="x86-64-v2", weights=weights, threads=threads)
    library.write(folder)
    return library


def run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@VARIANTS
def test_rust_calls_a_library(tmp_path: Path, weights: WeightsPlace, threads: int) -> None:
    rust = need_rust()
    make(tmp_path, weights, threads)
    file = "&held.0, " if weights == "external" else ""
    lines = ["mod maths;", "#[repr(C, align(64))]", "struct File([u8; 65536]);", "fn main() {"]
    lines += ["let mut held = File([0; 65536]);"]
    lines += ['let stored = std::fs::read("maths.safetensors").unwrap_or_default();']
    lines += ["held.0[..stored.len()].copy_from_slice(&stored);"]
    lines += ["let mut y = [0f32; 4];"]
    arena = "&mut Box::new_uninit()" + (", None" if threads > 1 else "")
    if weights == "external":
        wrong = "&held.0[..stored.len() - 1], &mut y"
        lines += [f"assert_eq!(maths::scaled(&[0.0; 4], {wrong}, {arena}), Err(3));"]
    lines += [f"maths::scaled(&[1.0, 2.0, 3.0, 4.0], {file}&mut y, {arena}).unwrap();"]
    lines += ['println!("{} {}", y[0], y[3]);']
    for name, type_ in RUST.items():
        lines += [f"let x: [{type_}; 3] = [1 as {type_}, 0 as {type_}, 0 as {type_}];"]
        lines += [f"let mut y: [{type_}; 3] = [0 as {type_}; 3];"]
        lines += [f"maths::backward_{name}(&x, &mut y, {arena}).unwrap();"]
        lines += ['println!("{}", y[2]);']
    (tmp_path / "main.rs").write_text("\n".join([*lines, "}"]))
    for edition in ("2018", "2024"):
        flags = ["--edition", edition, "-D", "warnings", "-C", "link-arg=maths.o"]
        run([*rust, *flags, "main.rs", "-o", "main"], tmp_path)
    assert run(["./main"], tmp_path).split() == ["1", "16", *["1"] * len(RUST)]


#: Pools of a program: threads, a pool that leaves parts out, and one that repeats and invents some.
POOLS = """
mod big;
use std::sync::atomic::{AtomicUsize, Ordering};
fn main() {
    let x: Vec<f32> = (0..SIZE).map(|n| n as f32).collect();
    let x: &[f32; SIZE] = x.as_slice().try_into().unwrap();
    let mut alone = Box::new([0f32; SIZE]);
    big::run(x, &mut alone, &mut Box::new_uninit(), None).unwrap();
    let calls = AtomicUsize::new(0);
    let threads: big::Pool = &|parts, count| std::thread::scope(|scope| {
        for n in 0..count {
            let calls = &calls;
            scope.spawn(move || { parts(n); calls.fetch_add(1, Ordering::Relaxed); });
        }
    });
    let lazy: big::Pool = &|_, _| {};
    let wild: big::Pool = &|parts, count| std::thread::scope(|scope| {
        for n in 0..5 * count { scope.spawn(move || parts(n % (2 * count))); }
    });
    for pool in [threads, lazy, wild] {
        let mut y = Box::new([0f32; SIZE]);
        big::run(x, &mut y, &mut Box::new_uninit(), Some(pool)).unwrap();
        assert!(*y == *alone);
    }
    assert!(alone[SIZE - 1] == 3.0 * (SIZE - 1) as f32);
    println!("{}", calls.load(Ordering::Relaxed));
}
"""


def test_rust_gives_a_library_threads(tmp_path: Path) -> None:
    """Safely: nothing that a pool does computes a part twice, or leaves one out."""
    rust, size = need_rust(), 1 << 18
    times = bu.jit(lambda x: x * 3)
    times.export("big", bu.float32[size], target="x86-64-v2", threads=3).write(tmp_path)
    (tmp_path / "main.rs").write_text(POOLS.replace("SIZE", str(size)))
    for edition in ("2021", "2024"):
        flags = ["--edition", edition, "-D", "warnings", "-C", "link-arg=big.o"]
        run([*rust, *flags, "main.rs", "-o", "main"], tmp_path)
    assert run(["./main"], tmp_path) == "3\n"  # a loop in three parts


@VARIANTS
def test_cpp_calls_a_library(tmp_path: Path, weights: WeightsPlace, threads: int) -> None:
    compiler = host_compiler()
    assert compiler is not None, "the tests need a compiler, or the wheel ziglang"
    library = make(tmp_path, weights, threads)
    file = "file, " if weights == "external" else ""
    pool = ", nullptr" if threads > 1 else ""
    stored = library.files.get("maths.safetensors", b"0")
    lines = ['#include "maths.hpp"', "#include <cstdio>", "int main() {"]
    lines += [f"alignas(64) static const unsigned char file[] = {{{','.join(map(str, stored))}}};"]
    lines += ["(void)file;", "const float x[4] = {1, 2, 3, 4};", "float y[4];"]
    lines += ["static maths::scaled_arena arena;"]
    lines += [f'std::printf("%d ", maths::scaled(x, {file}y, arena{pool}));']
    lines += ['std::printf("%g %g ", y[0], y[3]);']
    for name, rust in RUST.items():
        type_ = {"f32": "float", "f64": "double"}.get(rust) or f"{WORDS[rust[0]]}{rust[1:]}_t"
        lines += [f"{{ maths::backward_{name}_arena arena;"]
        lines += [f"const {type_} x[3] = {{1, 0, 0}}; {type_} y[3];"]
        lines += [f'std::printf("%d ", maths::backward_{name}(x, y, arena) || y[2] != 1); }}']
    (tmp_path / "main.cpp").write_text("\n".join([*lines, "}"]))
    flags = ["-x", "c++", "-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    run([*compiler, *flags, "-c", "main.cpp", "-o", "main.o"], tmp_path)
    run([*compiler, "main.o", "maths.o", "-o", "main"], tmp_path)
    assert run(["./main"], tmp_path).split() == ["0", "1", "16", *["0"] * len(RUST)]

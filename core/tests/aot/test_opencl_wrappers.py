"""The modules for C++ and Rust beside a library of OpenCL C: compiled, warnings as errors, run."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cl_program
import numpy as np
import pytest
from c_program import compile_all, compilers, need_rust

import bringup as bu
from bringup.aot.library import WeightsPlace

HELD = np.arange(1, 5, dtype=np.float32)
WHERE_WEIGHTS_ARE = pytest.mark.parametrize("weights", ["embedded", "external"])


def make(folder: Path, weights: WeightsPlace) -> str:
    """A library of two functions, written; what calls pass before the weights."""
    if lacks := cl_program.missing(folder):
        pytest.skip(lacks)

    def scaled(X: Any, args: Any) -> Any:
        return {"sum": X * HELD + args, "shifted": X - 1}

    functions: dict[str, tuple[Any, ...]] = {"scaled": (scaled, bu.float32[4], bu.float32[4])}
    functions |= {"nothing": (lambda: bu.ones(4, dtype=bu.float32),)}
    library = bu.export("maths", functions, target="opencl-c", weights=weights)
    library.write(folder)
    compile_all([folder / "maths.c"], folder / "maths.o", ("-c", "-fPIC"))
    return "file, " if weights == "external" else ""


def run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check(folder: Path) -> None:
    """Link what calls the library to a program that gives it memory, and compare what it writes."""
    (folder / "main.c").write_text(_MAIN)
    sources = (folder / "main.c", folder / "libcalled.so")
    program = compile_all(sources, folder / "program", (), library="-lOpenCL")
    # CL_INVALID_CONTEXT is -34.
    wanted = ["-34", "0", "2", "5", "10", "17", "0", "1", "2", "3", "1"]
    assert run([str(program)], folder).split() == wanted


@WHERE_WEIGHTS_ARE
def test_cpp_calls_a_library(tmp_path: Path, weights: WeightsPlace) -> None:
    file = make(tmp_path, weights)
    (tmp_path / "called.cpp").write_text(_CPP.replace("FILE", file))
    flags = ["-x", "c++", "-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fPIC"]
    flags += ["-fno-exceptions"]  # so that a program of C can link it
    run([*compilers()[0], *flags, "-c", "called.cpp", "-o", "called.o"], tmp_path)
    link = ["-shared", "called.o", "maths.o", "-lOpenCL", "-o", "libcalled.so"]
    run([*compilers()[0], *link], tmp_path)
    check(tmp_path)


@WHERE_WEIGHTS_ARE
@pytest.mark.parametrize("edition", ["2018", "2024"])
def test_rust_calls_a_library(tmp_path: Path, weights: WeightsPlace, edition: str) -> None:
    rust = need_rust()
    file = make(tmp_path, weights)
    (tmp_path / "called.rs").write_text(_RUST.replace("FILE", file))
    flags = ["--edition", edition, "-D", "warnings", "--crate-type", "cdylib"]
    flags += ["-C", "link-arg=maths.o", "-C", "link-arg=-lOpenCL"]
    run([*rust, *flags, "called.rs"], tmp_path)
    check(tmp_path)


_CPP = """\
#include "maths.hpp"

extern "C" int called(cl_context context, cl_device_id id, cl_command_queue queue, cl_mem *m,
    const void *file) {
  (void)file;
  maths::device device(context, id);
  if (device.status() != MATHS_OK) return device.status();
  int status = device.upload(FILEm[2], queue);
  if (status == 0) status = device.scaled({m[0], m[1], m[2]}, {m[4], m[3]}, m[6], queue);
  return status == 0 ? device.nothing({nullptr}, {m[5]}, m[6], queue) : status;
}
"""
_RUST = """\
mod maths;
use core::ffi::c_void;

/// # Safety
/// All is the driver's.
#[allow(unsafe_attr_outside_unsafe, unused_unsafe)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn called(context: *mut c_void, id: *mut c_void, queue: maths::Queue,
    memory: *const maths::Memory, file: *const c_void) -> i32 {
    let _ = file;
    let m = unsafe { core::slice::from_raw_parts(memory, 7) };
    let all = || unsafe {
        let device = maths::Device::load(context, id)?;
        device.upload(FILEm[2], queue)?;
        let args = maths::ScaledArgs { X: m[0], args: m[1], weights: m[2] };
        let results = maths::ScaledResults { result_shifted: m[4], result_sum: m[3] };
        device.scaled(&args, &results, m[6], queue)?;
        let args = maths::NothingArgs { unused: m[6] };
        device.nothing(&args, &maths::NothingResults { result: m[5] }, m[6], queue)
    };
    match all() { Ok(()) => 0, Err(code) => code }
}
"""
_MAIN = """\
#include "maths.h"
#include <stdio.h>

int called(cl_context context, cl_device_id id, cl_command_queue queue, cl_mem *memory,
    const void *file);

int main(void) {
  static unsigned char file[65536];
  FILE *stored = fopen("maths.safetensors", "rb");
  if (stored != NULL && fread(file, 1, sizeof file, stored) == 0) return 1;
  cl_platform_id platform;
  cl_device_id id;
  clGetPlatformIDs(1, &platform, NULL);
  clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &id, NULL);
  cl_context context = clCreateContext(NULL, 1, &id, NULL, NULL, NULL);
  cl_command_queue queue = clCreateCommandQueue(context, id, 0, NULL);
  const size_t arena = MATHS_SCALED_ARENA_BYTES + MATHS_NOTHING_ARENA_BYTES + 1;
  const size_t bytes[] = {16, 16, MATHS_WEIGHTS_BYTES, 16, 16, 16, arena};
  const float x[] = {1, 2, 3, 4}, ones[] = {1, 1, 1, 1};
  cl_mem memory[7];
  for (int n = 0; n < 7; n++)
    memory[n] = clCreateBuffer(context, CL_MEM_READ_WRITE, bytes[n], NULL, NULL);
  clEnqueueWriteBuffer(queue, memory[0], CL_TRUE, 0, 16, x, 0, NULL, NULL);
  clEnqueueWriteBuffer(queue, memory[1], CL_TRUE, 0, 16, ones, 0, NULL, NULL);
  printf("%d ", called(NULL, id, queue, memory, file));
  printf("%d", called(context, id, queue, memory, file));
  for (int n = 3; n < 6; n++) {
    float y[4];
    clEnqueueReadBuffer(queue, memory[n], CL_TRUE, 0, 16, y, 0, NULL, NULL);
    for (int k = 0; k < (n < 5 ? 4 : 1); k++) printf(" %g", y[k]);
  }
  return clFinish(queue);
}
"""

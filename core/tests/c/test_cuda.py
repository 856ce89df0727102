"""CUDA C, compiled by NVIDIA's own compiler and assembled, where their wheels are installed."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
from functools import cache
from pathlib import Path

import pytest
from functions import TEXTS
from scalars import all_ops

from bringup.c import CUDA, render_c, symbol
from bringup.dtypes import STORED, DType
from bringup.loops import parse_func

if importlib.util.find_spec("nvidia") is None or not importlib.util.find_spec("nvidia.cuda_nvrtc"):
    pytest.skip("no wheel nvidia-cuda-nvrtc-cu12", allow_module_level=True)


@cache
def nvrtc() -> ctypes.CDLL:
    """The compiler, out of its wheel."""
    spec = importlib.util.find_spec("nvidia.cuda_nvrtc")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (folder,) = spec.submodule_search_locations
    (library,) = Path(folder).glob("lib/libnvrtc.so.*")
    return ctypes.CDLL(str(library))


def ptx_of(source: str) -> str:
    """The PTX of a source; what the compiler says if it takes it not."""
    lib, program = nvrtc(), ctypes.c_void_p()
    lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"k.cu", 0, None, None)
    options = [b"--gpu-architecture=sm_80", *(flag.encode() for flag in CUDA.flags)]
    array = (ctypes.c_char_p * len(options))(*options)
    failed = lib.nvrtcCompileProgram(program, len(options), array)
    size = ctypes.c_size_t()
    lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetProgramLog(program, log)
    assert not failed, log.value.decode()
    lib.nvrtcGetPTXSize(program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetPTX(program, ptx)
    return ptx.value.decode()


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_every_op_compiles(dtype: DType) -> None:
    func, _ = all_ops(dtype, CUDA)
    ptx = ptx_of(render_c(func, CUDA))
    assert f".visible .entry {symbol(func, CUDA)}(" in ptx


@pytest.mark.parametrize("name", TEXTS)
def test_functions_are_assembled_without_spills(name: str, tmp_path: Path) -> None:
    spec = importlib.util.find_spec("nvidia.cuda_nvcc")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("no wheel nvidia-cuda-nvcc-cu12")
    source = tmp_path / "k.ptx"
    source.write_text(ptx_of(render_c(parse_func(TEXTS[name]), CUDA)))
    assembler = Path(next(iter(spec.submodule_search_locations))) / "bin" / "ptxas"
    command = [assembler, "--gpu-name=sm_80", "-v", source, "-o", tmp_path / "k.cubin"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "0 bytes spill stores" in done.stderr


def test_products_are_not_fused_with_sums() -> None:
    """Each is rounded, as the table wants; a fold may skip a rounding, and there is an fma."""
    func = parse_func("""
func apart(x: in f32[64], y: out f32[64]) {
  for i in 64 parallel {
    %0: f32 = x[i]
    %1: f32 = mul(%0, %0)
    %2: f32 = add(%1, %0)
    y[i] = %2
  }
}""")
    assert "fma" not in ptx_of(render_c(func, CUDA))
    assert "fma.rn.f32" in ptx_of(render_c(parse_func(TEXTS["unrolled"]), CUDA))

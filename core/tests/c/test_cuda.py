"""CUDA C, compiled to PTX by NVIDIA's own compiler where its wheel is installed."""

from __future__ import annotations

import ctypes
import importlib.util
from functools import cache
from pathlib import Path

import pytest
from scalars import all_ops

from bringup.c import CUDA, render_c, symbol
from bringup.dtypes import STORED, DType

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
    # Products and sums are rounded each: nothing but the library's own fma may be fused.
    if dtype.is_integer:
        assert "fma.rn.f64" not in ptx

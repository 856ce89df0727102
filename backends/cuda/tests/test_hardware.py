"""What hardware does otherwise than the host that emulates it: each of these passed there once."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import numpy as np
import pytest
from assembling import find_ptxas
from emulated import run, translated
from suite_programs import assembled

import bringup as bu
from bringup import bfloat16, float16, float32, float64, int32, int64
from bringup.api.apply import apply
from bringup.errors import CompileError
from bringup.program.program import OpStep
from bringup.types import TensorType
from bringup_cuda.codegen.lower import to_ptx
from bringup_cuda_emulator import EmulatorError, Gpu, load

Array = np.ndarray[Any, Any]


def rem(x: Any, y: Any) -> Any:
    return apply("rem", (x, y), {})


def operands(dtype: Any) -> tuple[Array, Array]:
    """Any bits, close pairs, and all pairs of special values."""
    rng, word = np.random.default_rng(0), np.uint32 if dtype is np.float32 else np.uint64
    drawn = rng.integers(0, np.iinfo(word).max, (2, 1000), dtype=word, endpoint=True)
    x, y = drawn.view(dtype)
    x[:500] = rng.standard_normal(500) * 1e6
    y[:500] = x[:500] / rng.integers(1, 1 << 20, 500)
    limits = np.finfo(dtype)
    special = [0.0, -0.0, 1.0, -3.0, 5.5, np.inf, -np.inf, np.nan]
    special += [limits.tiny, limits.smallest_subnormal, limits.max]
    pairs = np.meshgrid(*[np.array(special, dtype)] * 2)
    return np.append(x, pairs[0]), np.append(y, pairs[1])


@pytest.mark.parametrize(("type_", "dtype"), [(float32, np.float32), (float64, np.float64)])
def test_remainders_are_exact_without_frem(type_: TensorType, dtype: Any) -> None:
    """LLVM makes x - trunc(x / y) * y of ``frem``, each step rounded: no remainder of large x."""
    x, y = operands(dtype)
    types = (type_[x.size], type_[x.size])
    with np.errstate(all="ignore"):
        wanted = np.fmod(x, y)
    (made,) = run(rem, types, (x, y))
    np.testing.assert_array_equal(made, wanted)
    known = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(made[known]), np.signbit(wanted[known]))
    for architecture in ("sm_75", "sm_90"):
        text = to_ptx(translated(rem, types, architecture)[1].text, architecture)
        assert "div.rn" not in text
        assert "rem.u" in text


def test_dynamic_shared_memory_is_asked_for() -> None:
    """49152 bytes are the most that needs no asking."""

    def factors(a: Any) -> Any:
        return apply("lu", (a,), {})[0]

    a = np.random.default_rng(1).standard_normal((92, 66))
    kernels = translated(factors, (float64[92, 66],))[1].kernels
    assert max(kernel.shared_bytes for kernel in kernels) == (48 << 10) + 256
    (wanted,) = run(factors, (float64[92, 66],), (a,))
    made = bu.jit(factors, device="cuda-emulated")(a)
    np.testing.assert_array_equal(np.asarray(made), wanted)


def test_kernels_of_steps_take_exactly_their_blocks() -> None:
    """They loop over what is left for more blocks than a launch has, not for fewer."""
    made = translated(bu.sort, (float32[100_000],))[1]
    steps = [launch.kernel for launch in made.launches if isinstance(launch.step, OpStep)]
    assert len(steps) >= 4
    assert all(kernel.fixed and not kernel.persistent for kernel in steps)


#: Float instructions that the assembler may fuse or round as it likes, or that flush subnormals:
#: PTX ISA, `mul`: without a rounding modifier it may be fused with the addition that follows.
LOOSE = re.compile(
    r"^\s+(?:@\S+ )?"
    r"((?:add|sub|mul|mad|fma|div|rcp|sqrt)\.b?f(?:16|32|64)(?:x2)?\b|\S*\.(?:ftz|approx|full)\b)",
    re.MULTILINE,
)
FLOATS: dict[str, tuple[Any, tuple[TensorType, ...]]] = {
    "rows": (lambda x: bu.nn.softmax(x * 2 + 1, axis=-1), (float32[64, 1000],)),
    "halves": (lambda x, y: x * y + x / bu.sqrt(y), (float16[1000], float16[1000])),
    "doubles": (lambda x, y: x * y + bu.sin(x) / bu.sqrt(y), (float64[1000], float64[1000])),
    "product": (lambda x, w: bu.nn.gelu(x @ w) * 3 + 1, (float32[64, 64], float32[64, 64])),
    "attention": (lambda q: bu.nn.attention(q, q, q), (bfloat16[4, 64, 64],)),
    "running sum": (lambda x: bu.cumulative_sum(x * x + x, axis=1), (float32[8, 3000],)),
}


@pytest.mark.parametrize("architecture", ["sm_75", "sm_90", "sm_100"])
def test_every_float_instruction_says_how_it_rounds(architecture: str) -> None:
    """The driver's compiler fuses multiplications with additions where it is let."""
    for fn, types in FLOATS.values():
        text = to_ptx(translated(fn, types, architecture)[1].text, architecture)
        assert re.search(r"\.rn\.f(32|64)", text) is not None
        assert LOOSE.findall(text) == []


def test_loose_instructions_are_found() -> None:
    text = (
        "\tmul.f32 \t%r1, %r2, %r3;\n\t@%p1 ex2.approx.ftz.f32 \t%r1, %r2;\n\tadd.rn.f32 \t%r1;\n"
    )
    assert LOOSE.findall(text) == ["mul.f32", "ex2.approx.ftz"]


INEXACT = """
target triple = "nvptx64-nvidia-cuda"
declare float @llvm.sin.f32(float)

define ptx_kernel void @kernel(ptr addrspace(1) %out) {{
  %x = load float, ptr addrspace(1) %out, align 4
  %r = {what}
  store float %r, ptr addrspace(1) %out, align 4
  ret void
}}
"""


@pytest.mark.parametrize("what", ["frem float %x, 3.0", "call float @llvm.sin.f32(float %x)"])
def test_what_no_gpu_computes_exactly_is_not_emulated(what: str) -> None:
    with pytest.raises(CompileError, match="GPUs have no exact"):
        load(INEXACT.format(what=what))


WIDE = 1 << 25
ELEMENTWISE: dict[str, tuple[Any, TensorType]] = {
    "exponentials": (lambda x: bu.tanh(x * x) * bu.exp(-x) + x, float32[WIDE]),
    "sine and cosine": (lambda x: bu.sin(x) + bu.cos(x), float32[WIDE]),
    "powers": (lambda x: bu.pow(x, x + 1), float32[WIDE]),
    "roots and quotients": (lambda x: bu.sqrt(x) / (x + 1) + bu.rsqrt(x), float32[WIDE]),
    "remainders": (lambda x: rem(x, x + 1), float32[WIDE]),
    "halves": (bu.atan, bfloat16[WIDE]),
    "doubles": (lambda x: bu.exp(x) / bu.sqrt(x) + bu.log(x), float64[WIDE]),
    "long integers": (lambda x: x // (x + 1), int64[WIDE]),
    "conversions": (lambda x: (bu.astype(x, int32), bu.astype(x, int64)), float64[WIDE]),
}


def scaled(x: bu.Array) -> bu.Array:
    y = bu.asinh(bu.sinh(x))
    return y / bu.sum(y, axis=-1, keepdims=True)


#: Columns that are kept with their sums, and short rows of long functions.
ROWS: dict[str, tuple[Any, TensorType]] = {
    "softmax of columns": (lambda x: bu.nn.softmax(x, axis=0), float32[1025, 8]),
    "asinh(sinh(x)), scaled": (scaled, float64[96, 4]),
}
EVERY = [*ELEMENTWISE, *ROWS]


@pytest.mark.parametrize(
    ("architecture", "programs"),
    [("sm_80", EVERY[::2]), ("sm_90", EVERY), ("sm_100", EVERY[1::2])],
    ids=("sm_80", "sm_90", "sm_100"),
)
def test_kernels_do_not_spill(architecture: str, programs: list[str]) -> None:
    """All elements of a thread are computed together, and the assembler is told how many blocks
    must fit beside each other: too many, and what a long function keeps goes to memory.
    """
    ptxas = find_ptxas()
    if ptxas is None:
        pytest.skip("no ptxas")
    spilled = {}
    for name in programs:
        fn, type_ = (ELEMENTWISE | ROWS)[name]
        text = to_ptx(translated(fn, (type_,), architecture)[1].text, architecture)
        for kernel in assembled(ptxas, text, architecture):
            spilled[name] = kernel.spilled
    assert spilled == dict.fromkeys(programs, 0)


CONSTANT = """
target triple = "nvptx64-nvidia-cuda"

define ptx_kernel void @kernel(ptr addrspace(1) %in, ptr addrspace(1) %out) {
  %x = load float, ptr addrspace(1) %in, align 4, !invariant.load !0
  %to = getelementptr float, ptr addrspace(1) %out, i64 3
  store float %x, ptr addrspace(1) %to, align 4
  ret void
}

!bringup.extents = !{!1}
!0 = !{}
!1 = !{!"kernel", i64 16, i64 16}
"""


def test_what_is_read_as_constant_is_not_written() -> None:
    """By ``ld.global.nc``, whose cache knows nothing of what the kernel stores."""
    assert "ld.global.nc" in to_ptx(CONSTANT, "sm_90")
    module, gpu = load(CONSTANT), Gpu()
    memory = gpu.arena.allocate(32)
    ctypes.memset(memory, 0, 32)
    gpu.launch(module, "kernel", (1, 1, 1), (1, 1, 1), [memory, memory + 16])
    with pytest.raises(EmulatorError, match="writes what it reads as constant") as caught:
        gpu.launch(module, "kernel", (1, 1, 1), (1, 1, 1), [memory, memory + 4])
    assert caught.value.finding.kind == "constant-written"

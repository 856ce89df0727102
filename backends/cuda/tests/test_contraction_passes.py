"""What the code generator is given: LLVM's passes for NVPTX change no bit of any result, and bring
in no race.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from emulated import optimised, run_program, translated

import bringup as bu
from bringup import bfloat16, float16, float32, float64, int8
from bringup.types import TensorType

Fn = Callable[..., Any]


def relu(x: Any, w: Any, b: Any) -> Any:
    return bu.nn.relu(x @ w + b)


def turned(x: Any, w: Any) -> Any:
    return x @ bu.permute_dims(w, (1, 0))


def convolved(x: Any, w: Any) -> Any:
    return bu.nn.conv(x, w, padding=1)


def attend(q: Any, k: Any, v: Any) -> Any:
    return bu.nn.attention(q, k, v, causal=True)


PROGRAMS: dict[str, tuple[Fn, tuple[TensorType, ...]]] = {
    "f32": (relu, (float32[70, 65], float32[65, 72], float32[72])),
    "f64, turned": (turned, (float64[40, 64], float64[72, 64])),
    "bf16": (relu, (bfloat16[70, 64], bfloat16[64, 72], bfloat16[72])),
    "f16, turned": (turned, (float16[150, 72], float16[200, 72])),
    "i8": (lambda x, w: x @ w, (int8[70, 64], int8[64, 80])),
    "f16, odd": (lambda x, w: x @ w, (float16[33, 37], float16[37, 41])),
    "f32, in parts": (lambda x, w: x @ w, (float32[16, 2049], float32[2049, 24])),
    "f16 convolution": (convolved, (float16[2, 4, 10, 10], float16[8, 4, 3, 3])),
    "f32 convolution": (convolved, (float32[2, 4, 10, 10], float32[8, 4, 3, 3])),
    "f32 attention": (attend, (float32[2, 70, 24], float32[2, 90, 24], float32[2, 90, 40])),
    "bf16 attention": (attend, (bfloat16[2, 70, 24], bfloat16[2, 90, 24], bfloat16[2, 90, 40])),
}


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        *((name, "sm_90") for name in PROGRAMS),
        *((name, "sm_75") for name in ("f32", "bf16", "f16, odd", "i8", "bf16 attention")),
    ],
)
def test_passes_change_no_bit(name: str, architecture: str) -> None:
    fn, types = PROGRAMS[name]
    program, made = translated(fn, types, architecture)
    random = np.random.default_rng(11)
    given = [(4 * random.standard_normal(t.shape)).astype(t.dtype.numpy) for t in types]
    for plain, after in zip(
        run_program(program, made, given),
        run_program(program, optimised(made, architecture), given),
        strict=True,
    ):
        np.testing.assert_array_equal(plain.view(np.uint8), after.view(np.uint8))

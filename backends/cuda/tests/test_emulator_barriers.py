"""Every barrier of emitted kernels is there for a reason: without it the emulator finds a fault."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from emulated import run_program

import bringup as bu
from bringup import float32
from bringup.types import TensorType
from bringup_cuda.codegen.commands import Launch, Translated
from bringup_cuda.codegen.lower import translate
from bringup_cuda_emulator import EmulatorError

f32 = float32
BARRIER = re.compile(r"  call void @llvm\.nvvm\.barrier(0\(\)|\.cta\.sync\.\S+\(i32 0\))\n")
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[TensorType, ...]]] = {
    "softmax": (lambda x: bu.nn.softmax(x, axis=1), (f32[5, 700],)),
    "layer norm": (
        lambda x, gain, bias: bu.nn.layer_norm(x, gain, bias),
        (f32[5, 700], f32[700], f32[700]),
    ),
    "sum": (bu.sum, (f32[150_000],)),
    "sum of rows": (lambda x: bu.sum(x, axis=1), (f32[5, 3000],)),
    "sum of columns": (lambda x: bu.sum(x, axis=0), (f32[300, 600],)),
    "softmax in shared memory": (lambda x: bu.nn.softmax(x, axis=1), (f32[3, 20_000],)),
    "softmax of columns": (lambda x: bu.nn.softmax(x, axis=0), (f32[1000, 70],)),
    "transpose": (lambda x: bu.permute_dims(x, (1, 0)), (f32[100, 300],)),
}


def alone(made: Translated) -> Translated:
    """With one block for all of the grid's work: its loop comes round again."""
    commands = tuple(
        replace(c, kernel=replace(c.kernel, blocks=1)) if isinstance(c, Launch) else c
        for c in made.commands
    )
    return replace(made, commands=commands)


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_barrier_can_be_left_out(name: str) -> None:
    fn, types = PROGRAMS[name]
    program = bu.jit(fn).lower(*types, target="cuda:sm_90").program
    made = alone(translate(program, "sm_90"))
    random = np.random.default_rng(0)
    inputs = [random.standard_normal(t.shape).astype(np.float32) for t in types]
    run_program(program, made, inputs)
    found = list(BARRIER.finditer(made.text))
    assert found
    for barrier in found:
        text = made.text[: barrier.start()] + made.text[barrier.end() :]
        with pytest.raises(EmulatorError) as caught:
            run_program(program, replace(made, text=text), inputs)
        assert caught.value.finding.kind in ("race", "uninitialised")

"""Kernels as a GPU runs them: the steps that make their loops, and what these compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from emulated import run_program, translated

import bringup as bu
from bringup import float16, float32, int8
from bringup.kernel.evaluate import evaluate_kernel
from bringup.kernel.form import Kernel
from bringup.loops import verify_func
from bringup.loops.schedule import Scheduled
from bringup.passes.check import generated_inputs
from bringup.program.program import KernelStep
from bringup.types import TensorType

Fn = Callable[..., Any]
f32 = float32


def scheduled(fn: Fn, *types: TensorType) -> Scheduled:
    """The loops of a function that is one kernel."""
    (made,) = bu.jit(fn).lower(*types, target="cuda:sm_90").schedules
    assert made is not None
    return made


# By variant of the schedule: a function and its types.
MAPS: dict[str, tuple[Fn, list[TensorType]]] = {
    "one element": (lambda x: x * 2, [f32[()]]),
    "less than a block": (lambda x: x * 2, [f32[100]]),
    "whole vectors": (lambda x: x * 2 + 1, [f32[4096]]),
    "elements that fill no vector": (lambda x: x * 2, [f32[9001]]),
    "one block and elements that fill no vector": (lambda x: x * 2, [f32[1027]]),
    "copies": (lambda x, y: x * 2 + y, [f32[3 << 20], f32[3 << 20]]),
    "copies and elements that fill no vector": (lambda x: x * 2, [float16[(5 << 20) + 3003]]),
    "axes that change places": (lambda x: bu.transpose(x, (1, 0, 2)) + 1, [f32[5, 7, 12]]),
    "masked lanes": (lambda x: bu.pad(x, [(1, 2), (3, 0)]) * 2, [f32[30, 32]]),
    "masked vectors": (lambda x, y: bu.concat([x, y], axis=1), [f32[30, 32], f32[30, 8]]),
    "loaded indices": (lambda x, i: x[i] * 2, [f32[77], bu.int32[400]]),
    "bools": (lambda x: (x > 1) & (x < 50), [int8[999]]),
    "an axis of one element": (lambda x: bu.sum(x * 3, axis=0), [f32[1, 999]]),
}


def check_values(fn: Fn, types: list[TensorType]) -> None:
    """What the emulator computes, which is what the reference of kernels computes, by bits."""
    program, code = translated(fn, types)
    (step,) = program.steps
    assert isinstance(step, KernelStep)
    inputs = [
        np.asarray(x % 77 if x.dtype == np.int32 else x)
        for x in generated_inputs(bu.trace(fn, *types), 3, special=False)
    ]
    buffers = [
        inputs[slot.index] if slot.space == "input" else np.zeros(type_.shape, type_.dtype.numpy)
        for slot, type_ in zip(step.slots, _types(step.kernel), strict=True)
    ]
    evaluate_kernel(step.kernel, buffers)
    found = run_program(program, code, inputs)
    wanted = [b.tobytes() for s, b in zip(step.slots, buffers, strict=True) if s.space == "output"]
    assert [array.tobytes() for array in found] == wanted


def _types(kernel: Kernel) -> list[TensorType]:
    return [decl.type for decl in kernel.buffers if decl.role != "tile"]


MAP = """\
split g0 b i 4096 tail=branch
split i i.o v 4
split i.o k t 256
reorder t k
split g0.t g0.t.o w 4 tail=peel
split g0.t.o r s 256
vectorize v
unroll k
vectorize w
serialize r
bind b block
bind t thread
bind s thread
bind g0.t.t thread

func k0_mul_add(b0: in f32[3000001], b1: in f32[3000001], b2: out f32[3000001]) {
  for b in 733 block {
    if 0 <= b < 732 {
      for t in 256 thread {
        for k in 4 unroll {
          for v in 4 vector {
            %0: f32 = 2.0
            %1: f32 = b0[4096*b + 1024*k + 4*t + v]
            %2: f32 = mul(%1, %0)
            %3: f32 = b1[4096*b + 1024*k + 4*t + v]
            %4: f32 = add(%3, %2)
            b2[4096*b + 1024*k + 4*t + v] = %4
          }
        }
      }
    }
    if 732 <= b < 733 {
      for r in 2 {
        for s in 256 until -256*r + 432 thread {
          for w in 4 vector {
            %0_1: f32 = 2.0
            %1_1: f32 = b0[1024*r + 4*s + w + 2998272]
            %2_1: f32 = mul(%1_1, %0_1)
            %3_1: f32 = b1[1024*r + 4*s + w + 2998272]
            %4_1: f32 = add(%3_1, %2_1)
            b2[1024*r + 4*s + w + 2998272] = %4_1
          }
        }
      }
      for g0.t.t in 1 thread {
        %0_1_1: f32 = 2.0
        %1_1_1: f32 = b0[3000000]
        %2_1_1: f32 = mul(%1_1_1, %0_1_1)
        %3_1_1: f32 = b1[3000000]
        %4_1_1: f32 = add(%3_1_1, %2_1_1)
        b2[3000000] = %4_1_1
      }
    }
  }
}"""


@pytest.mark.parametrize("name", MAPS)
def test_kernels_without_loops(name: str) -> None:
    fn, types = MAPS[name]
    verify_func(scheduled(fn, *types).after)
    check_values(fn, types)


def test_steps_of_a_map() -> None:
    """Each thread has four vectors at once, but in the last block, and odd elements."""
    assert str(scheduled(lambda x, y: x * 2 + y, f32[3_000_001], f32[3_000_001])) == MAP

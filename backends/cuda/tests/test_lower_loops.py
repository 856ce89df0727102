"""Kernels as a GPU runs them: the steps that make their loops, and what these compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from emulated import run_program, translated

import bringup as bu
from bringup import float16, float32, int8
from bringup.dtypes import bool_
from bringup.kernel.evaluate import evaluate_kernel
from bringup.kernel.form import Kernel
from bringup.loops import verify_func
from bringup.loops.schedule import Schedule, Scheduled
from bringup.passes.check import generated_inputs
from bringup.program.program import KernelStep
from bringup.types import TensorType
from bringup_cuda.codegen.lower import to_ptx, translate

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


def check_values(fn: Fn, types: list[TensorType], *, exact: bool = False) -> None:
    """What the emulator computes is what the reference of kernels computes, by bits.

    exact: inputs are small integers, so that sums are the same in every order.
    """
    program, code = translated(fn, types)
    (step,) = program.steps
    assert isinstance(step, KernelStep)
    draw = np.random.default_rng(3)
    inputs = [
        np.asarray(x % 77 if x.dtype == np.int32 else x)
        for x in generated_inputs(bu.trace(fn, *types), 3, special=False)
    ]
    if exact:
        inputs = [draw.integers(-9, 10, x.shape).astype(x.dtype) for x in inputs]
    buffers = [
        inputs[slot.index] if slot.space == "input" else np.zeros(type_.shape, type_.dtype.numpy)
        for slot, type_ in zip(step.slots, _types(step.kernel), strict=True)
    ]
    evaluate_kernel(step.kernel, buffers)
    found = run_program(program, code, inputs)
    wanted = {s.index: b for s, b in zip(step.slots, buffers, strict=True) if s.space == "output"}
    assert [array.tobytes() for array in found] == [
        wanted[number].tobytes() for number in sorted(wanted)
    ]


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
bind t s g0.t.t thread

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


TRANSPOSES: dict[str, tuple[Fn, list[TensorType]]] = {
    "loads": (lambda x, y: x.T + y, [f32[100, 70], f32[70, 100]]),
    "whole tiles": (lambda x: x.T * 2, [f32[64, 96]]),
    "stores": (lambda x, y: bu.where(y, x, x[::-1]).T, [f32[33, 70], bool_[33, 70]]),
    "pairs": (lambda x: x.T, [float16[70, 130]]),
    "bytes": (lambda x: bu.transpose(x, (0, 2, 1)), [int8[3, 132, 64]]),
}
TRANSPOSE = """\
split g0 g0.o p 32
split g1 g1.o q 32
reorder g1.o p
fuse g0.o g1.o g0.o.g1.o
bind g0.o.g1.o block
share q p %0 pad=1
split q.in q.in.y q.in.k 8
reorder q.in.y p.in q.in.k
split p p.y p.k 8
reorder p.y q p.k
unroll q.in.k p.k
bind p.in q.in.y q p.y thread

func k0_add(b0: in f32[7000], b1: in f32[7000], b2: out f32[7000]) {
  for g0.o.g1.o in 12 block {
    alloc v0: shared f32[1056]
    for q.in.y in 4 until -4*(g0.o.g1.o)%4 + 13 thread {
      for p.in in 32 until -32*(g0.o.g1.o)//4 + 70 thread {
        for q.in.k in 8 until -8*q.in.y + -32*(g0.o.g1.o)%4 + 100 unroll {
          %0_1: f32 = b0[p.in + 70*q.in.k + 560*q.in.y + 32*(g0.o.g1.o)//4 + 2240*(g0.o.g1.o)%4]
          v0[p.in + 33*q.in.k + 264*q.in.y] = %0_1
        }
      }
    }
    barrier
    for p.y in 4 until -4*(g0.o.g1.o)//4 + 9 thread {
      for q in 32 until -32*(g0.o.g1.o)%4 + 100 thread {
        for p.k in 8 until -8*p.y + -32*(g0.o.g1.o)//4 + 70 unroll {
          %0: f32 = v0[p.k + 8*p.y + 33*q]
          %1: f32 = b1[100*p.k + 800*p.y + q + 3200*(g0.o.g1.o)//4 + 32*(g0.o.g1.o)%4]
          %2: f32 = add(%1, %0)
          b2[100*p.k + 800*p.y + q + 3200*(g0.o.g1.o)//4 + 32*(g0.o.g1.o)%4] = %2
        }
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


@pytest.mark.parametrize("name", TRANSPOSES)
def test_transposes(name: str) -> None:
    fn, types = TRANSPOSES[name]
    verify_func(scheduled(fn, *types).after)
    check_values(fn, types)


#: Folds whose points have a thread each.
POINTS: dict[str, tuple[Fn, list[TensorType]]] = {
    "columns": (lambda x: bu.sum(x, axis=0), [f32[6, 300]]),
    "many columns": (lambda x: bu.sum(x, axis=0), [f32[9, 530_000]]),
    "columns in chains": (lambda x: bu.max(x, axis=0), [int8[30, 999]]),
    "several axes": (lambda x: bu.sum(x, axis=(0, 2)), [f32[2, 200_000, 2]]),
    "rows": (lambda x: bu.max(x, axis=1), [f32[300_000, 3]]),
    "rows in vectors": (lambda x: bu.sum(x * 2, axis=1), [f32[300_000, 4]]),
    "rows that are read twice": (
        lambda x: x - bu.max(x, axis=1, keepdims=True),
        [f32[300_000, 4]],
    ),
    "all of it": (lambda x: bu.sum(x), [f32[1]]),
}


CHAINS = """\
split s0_0 s0_0.m s0_0.k 16 tail=peel
split s0_0.k s0_0.k.j s0_0.k.c 8
rfactor s0_0.m r0 s0_0.k.c
unroll s0_0.k.j s0_0.k.c
split g0 b i 256
bind b block
bind i thread"""


@pytest.mark.parametrize("name", POINTS)
def test_points(name: str) -> None:
    fn, types = POINTS[name]
    verify_func(scheduled(fn, *types).after)
    check_values(fn, types, exact=True)


def test_steps_of_points() -> None:
    """A thread loads sixteen elements of a column at once, which fold into eight accumulators."""
    fn, types = POINTS["columns in chains"]
    assert str(scheduled(fn, *types).steps) == CHAINS


#: Folds whose points several threads share, by variant of the schedule.
SHARED: dict[str, tuple[Fn, list[TensorType]]] = {
    "rows of a part of a warp": (lambda x: bu.sum(x, axis=1), [f32[100, 7]]),
    "rows of a warp": (lambda x: bu.max(x * 2, axis=1), [f32[50, 130]]),
    "rows of several warps": (lambda x: bu.sum(x, axis=1), [f32[9, 3000]]),
    "long rows": (lambda x: bu.sum(x, axis=1), [f32[3, 20_001]]),
    "rows that fill no vector": (lambda x: bu.max(x, axis=1), [float16[3, 5003]]),
    "rows that stay in registers": (
        lambda x: (x - bu.max(x, axis=1, keepdims=True)) * 2,
        [f32[33, 200]],
    ),
    "what is computed stays in registers": (
        lambda x: (x * x + x) * bu.sum(x * x + x, axis=1, keepdims=True),
        [f32[40, 600]],
    ),
    "rows that stay in shared memory": (
        lambda x: (x * x + x) * bu.max(x * x + x, axis=1, keepdims=True),
        [f32[2, 9000]],
    ),
    "several axes": (lambda x: bu.sum(x, axis=(0, 2)), [f32[20, 11, 30]]),
    "columns": (lambda x: bu.sum(x, axis=0), [f32[300, 70]]),
    "columns in vectors": (lambda x: bu.sum(x, axis=0), [f32[500, 64]]),
    "columns that stay in registers": (
        lambda x: x - bu.max(x, axis=0, keepdims=True),
        [f32[60, 36]],
    ),
    "columns that stay in shared memory": (
        lambda x: (x * x + x) * bu.max(x * x + x, axis=0, keepdims=True),
        [f32[700, 36]],
    ),
    "two results": (lambda x: (bu.sum(x, axis=1), bu.max(x, axis=1)), [f32[20, 90]]),
    "all of it": (lambda x: bu.sum(x), [f32[5000]]),
    "bools": (lambda x: bu.any(x > 1, axis=1), [f32[10, 400]]),
}


@pytest.mark.parametrize("name", SHARED)
def test_shared_folds(name: str) -> None:
    fn, types = SHARED[name]
    func = scheduled(fn, *types).after
    assert "shuffle" in str(func) or "barrier" in str(func)
    verify_func(func)
    check_values(fn, types, exact=True)


ROWS = """\
split s0_0 s0_0.o s0_0.v 4
split s0_0.o s0_0.o.k s0_0.o.x 16
reorder s0_0.o.x s0_0.o.k
rfactor s0_0.o.k r0 s0_0.v
split s1_0 s1_0.o s1_0.v 4
split s1_0.o s1_0.o.k s1_0.o.x 16
reorder s1_0.o.x s1_0.o.k
unroll s0_0.o.k s1_0.o.k
vectorize s0_0.v s1_0.v
split g0 b i 16
bind b block
bind i thread
replicate i t s0_0.o.x s1_0.o.x lanes=16
keep b0 t"""


def test_steps_of_shared_rows() -> None:
    """Sixteen threads share a row, of which each holds its vectors from the fold to the map."""
    fn, _ = SHARED["rows that stay in registers"]
    assert str(scheduled(fn, f32[60_000, 200]).steps) == ROWS


#: Softmax of rows by a block each: threads exchange registers within a warp.
SOFTMAX = """
split s0_0 s0_0.o s0_0.t 64
reorder s0_0.t s0_0.o
split s1_0 s1_0.o s1_0.t 64
reorder s1_0.t s1_0.o
split s2_0 s2_0.o s2_0.t 64
reorder s2_0.t s2_0.o
bind g0 block
replicate g0 t s0_0.t s1_0.t s2_0.t lanes=32 tiles=shared
"""


def test_folds_by_steps_of_the_user() -> None:
    """A step of a program may carry a schedule, in place of the choice of the device."""
    program = bu.jit(lambda x: bu.nn.softmax(x, axis=1)).lower(f32[5, 300], target="cuda:sm_90")
    (step,) = program.program.steps
    mine = replace(step, schedule=Schedule.parse(SOFTMAX))
    changed = replace(program.program, steps=(mine,))
    code = translate(changed, "sm_90")
    assert "shfl.sync.bfly" in to_ptx(code.text, "sm_90")
    x = np.random.default_rng(1).normal(size=(5, 300)).astype(np.float32)
    (found,) = run_program(changed, code, [x])
    wanted = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    wanted /= wanted.sum(axis=1, keepdims=True)
    # An exponential, a sum of 300 and a division, each of which rounds.
    assert np.abs(found / wanted - 1).max() < 305 * 2.0**-24


def test_steps_of_a_transpose() -> None:
    """A tile goes through shared memory, whose rows are one element longer than they need be."""
    fn, types = TRANSPOSES["loads"]
    assert str(scheduled(fn, *types)) == TRANSPOSE

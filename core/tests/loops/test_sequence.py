"""Functions in sequence as one: the same values, and names that do not meet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.loops import Func, evaluate_func, lower_kernel, parse_func, verify_func
from bringup.loops.sequence import in_sequence, instructions, written
from bringup.program.program import KernelStep

NEGATE = parse_func("""
func negate(x: in f32[4], y: out f32[4]) {
  for i in 4 parallel {
    %0: f32 = x[i]
    %1: f32 = neg(%0)
    y[i] = %1
  }
}""")
ADD = parse_func("""
func add(x: in f32[4], y: inout f32[4]) {
  for i in 4 {
    %0: f32 = x[i]
    y[i] add= %0
  }
}""")
BOTH = parse_func("""
func both(x: in f32[4], y: out f32[4], z: in f32[4]) {
  for i in 4 {
    %0: f32 = x[i]
    %1: f32 = z[i]
    %2: f32 = add(%0, %1)
    y[i] = %2
  }
}""")
REVERSE = parse_func("""
func reverse(x: in f32[4], y: out f32[4]) {
  alloc x_tile: scratch f32[4]
  for i in 4 {
    %0: f32 = x[i]
    x_tile[i] = %0
  }
  for i in 4 {
    %1: f32 = x_tile[-1*i + 3]
    y[i] = %1
  }
}""")


@pytest.mark.parametrize(
    ("funcs", "places", "roles"),
    [
        ((NEGATE, NEGATE), ((0, 1), (1, 2)), "in out out"),
        ((NEGATE, NEGATE), ((0, 1), (1, 0)), "inout out"),
        ((NEGATE,), ((0, 0),), "inout"),
        ((BOTH,), ((0, 1, 1),), "in inout"),
        ((NEGATE, BOTH), ((0, 1), (0, 1, 1)), "in out"),
        ((NEGATE, ADD), ((0, 1), (0, 1)), "in out"),
        ((ADD, NEGATE), ((0, 1), (0, 1)), "in inout"),
        ((ADD, NEGATE), ((0, 1), (1, 0)), "inout inout"),
        ((NEGATE, NEGATE), ((0, 1), (0, 2)), "in out out"),
    ],
)
def test_what_a_buffer_is_to_all_of_them(funcs: Any, places: Any, roles: str) -> None:
    joined = in_sequence("joined", funcs, places)
    assert " ".join(param.role for param in joined.params) == roles
    verify_func(joined)


def test_each_has_buffers_and_scalars_of_its_own() -> None:
    joined = in_sequence("joined", [REVERSE, REVERSE, NEGATE], [(0, 1), (1, 2), (2, 3)])
    verify_func(joined)
    assert str(joined).count("alloc x_tile: ") == str(joined).count("alloc x_tile_1: ") == 1
    x = np.float32([1, 2, 3, 4])
    arrays = [x, *np.zeros((3, 4), np.float32)]
    evaluate_func(joined, arrays)
    assert arrays[1].tolist() == [4, 3, 2, 1]
    assert arrays[3].tolist() == [-1, -2, -3, -4]


def kernels_of(function: Any, *types: Any) -> list[tuple[Func, list[int]]]:
    """The loops of a program's kernels, and numbers for their slots."""
    (program,) = bu.jit(function).lower(*types).programs
    numbers: dict[Any, int] = {}
    found = []
    for step in program.steps:
        assert isinstance(step, KernelStep)
        found.append(
            (
                lower_kernel(step.kernel),
                [numbers.setdefault(s, len(numbers)) for s in step.slots],
            )
        )
    return found


def model(x: Any, w: Any) -> Any:
    hidden = bu.nn.softmax(bu.tanh(x @ w), axis=-1)
    normal = bu.nn.layer_norm(hidden, bu.ones(8), bu.zeros(8))
    return bu.sum(normal.T @ x, axis=0) + bu.max(hidden)


def test_a_program_of_kernels_as_one_function_gives_their_bits() -> None:
    found = kernels_of(model, bu.float32[6, 8], bu.float32[8, 8])
    assert len(found) > 2
    joined = in_sequence("whole", *zip(*found, strict=True))
    verify_func(joined)
    one, other = (
        [
            rng.normal(size=p.buffer.size).astype(p.buffer.dtype.numpy)
            if p.role == "in"
            else np.zeros(p.buffer.size, p.buffer.dtype.numpy)
            for p in joined.params
        ]
        for rng in map(np.random.default_rng, (0, 0))
    )
    evaluate_func(joined, one)
    for func, numbers in found:
        evaluate_func(func, [other[n] for n in numbers])
    for mine, theirs in zip(one, other, strict=True):
        assert mine.tobytes() == theirs.tobytes()


def test_instructions_are_counted_by_vectors() -> None:
    # 8 times a load, an op and a store, and 2 vectors of 4 lanes.
    func = parse_func("""
func f(x: in f32[8], y: out f32[8]) {
  for i in 8 {
    %0: f32 = x[i]
    %1: f32 = neg(%0)
    y[i] = %1
  }
  for j in 8 vector {
    %2: f32 = x[j]
    if 0 <= j < 4 {
      y[j] = %2
    }
  }
}""")
    assert instructions(func.body, lanes=4) == 8 * 3 + 2 * 2
    assert instructions(func.body, lanes=1) == 8 * 3 + 8 * 2
    assert written(func.body) == 3 + 2
    copies = parse_func(str(func).replace("i in 8 {", "i in 8 unroll {"))
    assert written(copies.body) == 8 * 3 + 2

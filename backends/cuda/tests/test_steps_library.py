"""Op steps that the op library has: what is launched, exactly, and the loops behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from stepped import lowered, program_of, run_step

from bringup.dtypes import DType, bf16, f32, i32, i64
from bringup.llvm.simt.nests import nest_steps
from bringup.loops import parse_func
from bringup.loops.schedule import apply
from bringup.types import TensorType
from bringup_cuda.codegen.commands import Copy, Launch
from bringup_cuda.codegen.lower import translate
from bringup_cuda.targets import TARGETS

ELEMENTS = {"offset": (), "collapsed": (0,), "index_map": (0,), "index_dim": 1}
ROWS = {**ELEMENTS, "offset": (1,)}


def scan(dtype: DType, *shape: int, dim: int) -> tuple[str, list[TensorType], dict[str, Any]]:
    return "cumulative", [TensorType(shape, dtype)], {"kind": "add", "dim": dim}


def sort(*shape: int) -> tuple[str, list[TensorType], dict[str, Any]]:
    types = [TensorType(shape, f32), TensorType(shape, i64)]
    return "sort", types, {"dim": len(shape) - 1}


def scatter(dtype: DType, kind: str, rows: int) -> tuple[str, list[TensorType], dict[str, Any]]:
    types = [(rows, 64), (4096, 1), (4096, 64)]
    x, at, updates = map(TensorType, types, (dtype, i32, dtype))
    return "scatter", [x, at, updates], {"kind": kind, **ROWS}


# A step, its launches as blocks × threads, and its scratch bytes.
LAUNCHES: list[tuple[tuple[str, list[TensorType], dict[str, Any]], list[tuple[int, int]], int]] = [
    (scan(f32, 1 << 24, dim=0), [(512, 256)] * 2, 2048),
    (scan(f32, 4096, 4096, dim=1), [(4096, 256)], 0),
    (scan(bf16, 100, 20, dim=1), [(4, 256)], 0),
    (scan(f32, 4096, 4096, dim=0), [(512, 256)] * 2, 524288),
    (sort(40, 20), [(5, 256)], 0),
    (sort(40, 4000), [(40, 256)], 0),
    (scatter(i32, "set", 5000), [(20, 256), (16, 256), (1024, 256)], 20224),
    (scatter(i32, "add", 5000), [(1024, 256)], 0),
    (scatter(i32, "add", 8), [(64, 256)], 0),
    (scatter(f32, "add", 5000), [(16, 256), (1, 256), (4, 256), (1024, 256)], 52992),
]


@pytest.mark.parametrize(("step", "launches", "scratch"), LAUNCHES, ids=str)
def test_launches_and_scratch(
    step: tuple[str, list[TensorType], dict[str, Any]],
    launches: list[tuple[int, int]],
    scratch: int,
) -> None:
    name, types, attrs = step
    translated = lowered(name, types, **attrs)
    kernels = [c.kernel for c in translated.commands if isinstance(c, Launch)]
    assert [(kernel.blocks, kernel.threads) for kernel in kernels] == launches
    assert all(kernel.fixed for kernel in kernels)
    assert translated.scratch_bytes == scratch
    copies = [c for c in translated.commands if isinstance(c, Copy)]
    assert len(copies) == (name == "scatter")


def test_passes_of_a_long_sort_share_their_kernels() -> None:
    translated = lowered("sort", [TensorType((1 << 20,), i64)], dim=0)
    names = [launch.kernel.name for launch in translated.launches]
    assert len(names) == 32
    # Two counts, two for the running sums, and three that move: from the operand, to the results.
    assert len(set(names)) == 7


def test_a_nest_of_parallel_loops_has_a_thread_for_each_iteration() -> None:
    func = parse_func("""
func f(x: in f32[1200], y: out f32[1200]) {
  for i in 30 parallel {
    for j in 40 parallel {
      %0: f32 = x[i + 30*j]
      y[40*i + j] = %0
    }
  }
}""")
    steps = nest_steps(func, TARGETS["sm_90"])
    assert str(steps) == "fuse i j i.j\nsplit i.j b t 256\nbind b block\nbind t thread"
    text = str(apply(func, steps))
    assert "for b in 5 block {" in text
    assert "for t in 256 until -256*b + 1200 thread {" in text
    bound = apply(func, steps)
    assert not nest_steps(bound, TARGETS["sm_90"]).steps


@pytest.mark.parametrize("kind", ["set", "add"])
def test_every_order_of_blocks_and_threads_gives_the_same_bits(kind: str) -> None:
    """`run_step` takes another order each time."""
    rng = np.random.default_rng(11)
    at = rng.integers(0, 40, (5000, 1))
    updates = rng.standard_normal(5000).astype(np.float32)
    runs = [
        run_step("scatter", [np.zeros(40, np.float32), at, updates], kind=kind, **ELEMENTS)[0]
        for _ in range(4)
    ]
    x = np.round(rng.standard_normal(20000), 1).astype(np.float32)
    place = np.arange(20000)
    runs += [run_step("sort", [x, place], dim=0)[0] for _ in range(4)]
    for group in (runs[:4], runs[4:]):
        assert len({b"".join(array.tobytes() for array in results) for results in group}) == 1


def test_equal_steps_share_kernels() -> None:
    program = program_of(*scan(f32, 3000, 7, dim=1))
    from dataclasses import replace

    twice = translate(replace(program, steps=program.steps * 2), "sm_90")
    assert len(twice.launches) == 2
    assert len(twice.kernels) == 1


def test_llvm_copies_short_loops_alone() -> None:
    """A block's tiles come one after the other; the lanes of a short sort may be copied."""
    cases = scan(f32, 1 << 24, dim=0), sort(40, 20)
    long, short = (lowered(name, types, **attrs) for name, types, attrs in cases)
    assert "!llvm.loop" in long.text
    assert "!llvm.loop" not in short.text

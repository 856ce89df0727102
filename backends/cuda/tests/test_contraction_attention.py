"""Attention on the emulator: within the suite's bounds, and exact where weights are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import Array, run, run_program, translated

import bringup as bu
from bringup import bfloat16, float16, float32, float64
from bringup.backend.capabilities import Numerics
from bringup.dtypes import DType
from bringup.errors import UnsupportedError
from bringup.llvm.simt import SimtKernel
from bringup.llvm.simt.matrix import emit_tiles
from bringup.llvm.text import Module
from bringup.loops import parse_func
from bringup_conformance.oracle.bounds import analyse
from bringup_conformance.oracle.span import inside
from bringup_cuda.codegen.nvvm import SIMT
from bringup_cuda.targets import target_of
from bringup_cuda_emulator import run as run_kernel

FLOATS = (float32, float64, float16, bfloat16)
#: Without asynchronous copies and tensor cores, with both, and with less shared memory.
ARCHITECTURES = ("sm_75", "sm_90", "sm_86")


def attend(causal: bool, scale: float | None = None) -> Any:
    def fn(q: Any, k: Any, v: Any, *bias: Any) -> Any:
        given = {"bias": bias[0]} if bias else {}
        return bu.nn.attention(q, k, v, causal=causal, scale=scale, **given)

    return fn


def drawn(dtype: DType, *shapes: tuple[int, ...]) -> list[Array]:
    random = np.random.default_rng(5)
    return [random.standard_normal(shape).astype(dtype.numpy) for shape in shapes]


def check(
    dtype: DType,
    *shapes: tuple[int, ...],
    causal: bool,
    architecture: str = "sm_90",
    seed: int = 0,
) -> None:
    """One launch, whose results lie within the bounds of plain arithmetic in f32."""
    fn, types = attend(causal), [dtype[shape] for shape in shapes]
    program, made = translated(fn, types, architecture)
    assert len(made.launches) == 1
    given = drawn(dtype, *shapes)
    (result,) = run_program(program, made, given, seed)
    (span,) = analyse(bu.trace(fn, *types), given, Numerics())
    assert inside(result, span).all()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_dtype(dtype: DType, architecture: str) -> None:
    """Causal or not, in turn over dtypes and architectures."""
    causal = bool((FLOATS.index(dtype) + ARCHITECTURES.index(architecture)) & 1)
    shapes = (2, 70, 24), (2, 90, 24), (2, 90, 40)
    check(dtype, *shapes, causal=causal, architecture=architecture)


@pytest.mark.parametrize(
    ("queries", "keys", "depth", "values"),
    [(1, 1, 1, 1), (3, 200, 7, 5), (130, 33, 16, 8), (5, 33, 130, 12), (40, 20, 64, 150)],
)
@pytest.mark.parametrize("dtype", [float32, float16], ids=str)
def test_odd_sizes(dtype: DType, queries: int, keys: int, depth: int, values: int) -> None:
    """Among them depths and values that are worked off in pieces, and more queries than keys."""
    shapes = (2, queries, depth), (2, keys, depth), (2, keys, values)
    check(dtype, *shapes, causal=False)


@pytest.mark.parametrize("bias", [(2, 3, 40, 50), (1, 3, 1, 50), (2, 1, 40, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_a_bias_stretches(dtype: DType, bias: tuple[int, ...]) -> None:
    check(dtype, (2, 3, 40, 16), (2, 3, 50, 16), (2, 3, 50, 16), bias, causal=True)


@pytest.mark.parametrize("seed", [1, 2])
def test_order_of_threads_does_not_matter(seed: int) -> None:
    check(float16, (1, 70, 16), (1, 90, 16), (1, 90, 16), causal=True, seed=seed)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_key_that_wins_is_all_there_is(dtype: DType) -> None:
    """Powers of 0 and 1 alone: the values of the winner, bit for bit."""
    n = 96
    rows = np.arange(n)
    winner = (rows * 37 + 5) % n
    q = np.zeros((1, n, n))
    q[0, rows, winner] = 100
    k = np.eye(n)[None] * 100
    v = np.random.default_rng(1).integers(-100, 100, (1, n, 24))
    given = [a.astype(dtype.numpy) for a in (q, k, v)]
    (result,) = run(attend(False, 1.0), [dtype[a.shape] for a in given], given)
    np.testing.assert_array_equal(result, given[2][:, winner])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_keys_that_tie_share(dtype: DType) -> None:
    """The mean of 64 values that sum exactly."""
    q, k = np.zeros((1, 5, 16)), np.ones((1, 64, 16))
    v = np.random.default_rng(1).integers(-8, 8, (1, 64, 20))
    v[:, 0] -= v.sum(axis=1) % 64
    given = [a.astype(dtype.numpy) for a in (q, k, v)]
    (result,) = run(attend(False), [dtype[a.shape] for a in given], given)
    wanted = np.broadcast_to(v.sum(axis=1, keepdims=True) // 64, (1, 5, 20))
    np.testing.assert_array_equal(result.astype(np.float64), wanted)


def test_queries_without_keys() -> None:
    """NaN for those that see none; 0 where there is none."""
    given = drawn(float32, (1, 70, 8), (1, 6, 8), (1, 6, 8))
    (result,) = run(attend(True), [float32[a.shape] for a in given], given)
    assert np.isnan(result[0, :64]).all()
    assert np.isfinite(result[0, 64:]).all()
    empty = drawn(float32, (1, 7, 8), (1, 0, 8), (1, 0, 8))
    (result,) = run(attend(False), [float32[a.shape] for a in empty], empty)
    assert (result == 0).all()


def test_scores_of_no_number_and_of_infinity() -> None:
    given = drawn(float32, (1, 4, 8), (1, 6, 8), (1, 6, 8))
    given[0][0, 1, 0] = np.nan
    types = [float32[a.shape] for a in given]
    (result,) = run(attend(False), types, given)
    assert np.isnan(result[0, 1]).all()
    assert np.isfinite(result[0, [0, 2, 3]]).all()


def test_keys_that_a_bias_hides() -> None:
    """Two keys of six remain, and they are alike."""
    q, k = np.zeros((1, 4, 8), np.float32), np.ones((1, 6, 8), np.float32)
    v = np.arange(48, dtype=np.float32).reshape(1, 6, 8)
    bias = np.zeros((1, 1, 6), np.float32)
    bias[..., 2:] = -np.inf
    given = [q, k, v, bias]
    (result,) = run(attend(False), [float32[a.shape] for a in given], given)
    np.testing.assert_array_equal(result, np.broadcast_to(v[:, :2].mean(axis=1), (4, 8))[None])


#: A product whose left factor is in registers of a warp, and what is changed in it.
HELD = """\
func f(x: in f16[256], y: in f16[256], z: out f32[128]) {
  for b in 1 block {
    alloc a: fragment f16[256]
    alloc s: shared f16[256]
    alloc r: fragment f32[128]
    for y in 8 thread {
      for x in 4 thread {
        for l in 2 unroll {
          for h in 2 unroll {
            for c in 2 unroll {
              %0: f16 = x[c + 8*h + 128*l + 2*x + 16*y]
              a[c + 8*h + 128*l + 2*x + 16*y] = %0
            }
          }
          for c in 2 unroll {
            %1: f32 = 0.0
            r[c + 64*l + 2*x + 8*y] = %1
          }
        }
        for k in 8 {
          %2: f16 = y[32*k + 4*y + x]
          s[32*k + 4*y + x] = %2
        }
      }
    }
    barrier
    for y in 8 thread by 16x8x16 {
      for x in 4 thread {
        for l in 2 unroll {
          for c in 2 unroll {
            for h in 2 {
              for e in 4 {
                for p in 2 {
                  %3: f16 = a[p + 8*h + 128*l + 2*e + 16*y]
                  %4: f16 = s[c + 128*h + 16*p + 2*x + 32*e]
                  %5: f32 = convert(%3) {dtype=f32}
                  %6: f32 = convert(%4) {dtype=f32}
                  r[c + 64*l + 2*x + 8*y] add= %5 * %6
                }
              }
            }
          }
        }
      }
    }
    for y in 8 thread {
      for x in 4 thread {
        for l in 2 unroll {
          for c in 2 unroll {
            %7: f32 = r[c + 64*l + 2*x + 8*y]
            z[c + 64*l + 2*x + 8*y] = %7
          }
        }
      }
    }
  }
}"""


def emitted(text: str) -> tuple[Module, SimtKernel]:
    module = Module("nvptx64-nvidia-cuda")
    return module, emit_tiles(module, parse_func(text), "f", target_of("sm_90"), SIMT, 0)


def test_a_factor_in_registers() -> None:
    """Matrices of sixteen columns are loaded, of which eight are multiplied."""
    module, kernel = emitted(HELD)
    random = np.random.default_rng(0)
    x, y = (random.integers(-8, 8, (16, 16)).astype(np.float16) for _ in range(2))
    z = np.zeros((16, 8), np.float32)
    run_kernel(str(module), "f", kernel.blocks, kernel.threads, [x, y, z])
    np.testing.assert_array_equal(z, x.astype(np.float32) @ y[:, :8].astype(np.float32))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("for p in 2", "for e in 4"), "lanes do not have what they need of a"),
        (("16*p + 2*x + 32*e", "64*p + 2*x + 16*e"), "s does not lie in lines"),
    ],
)
def test_factors_that_lanes_do_not_have(change: tuple[str, str], says: str) -> None:
    """Each lane has two neighbours of either half of a row."""
    old, new = change
    text = HELD.replace(old, "_").replace(new, old).replace("_", new)
    with pytest.raises(UnsupportedError, match=says):
        emitted(text)

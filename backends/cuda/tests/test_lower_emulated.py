"""Kernels in every mapping to threads, run on the emulator, which watches memory, barriers and
races: equal to the reference, by its own measure or to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from emulated import run_program, translated
from test_lower import cross_entropy, norm

import bringup as bu
from bringup import bfloat16, float16, float32, float64, int8, int32
from bringup.backend.capabilities import Numerics
from bringup.dtypes import DType, bool_
from bringup.llvm.simt import render as simt_render
from bringup.passes.check import generated_inputs
from bringup.types import TensorType
from bringup_conformance.oracle.bounds import analyse
from bringup_conformance.oracle.verdict import judge
from bringup_cuda.codegen.commands import Command, Launch, Translated
from bringup_cuda.codegen.lower import to_ptx

Array = np.ndarray[Any, Any]
Fn = Callable[..., Any]
Run = Callable[[Sequence[Array]], Sequence[Array]]
f32 = float32


def check(fn: Fn, *types: TensorType) -> Translated:
    """Random inputs, without special values and with them, within the bounds of their analysis."""
    program, made = translated(fn, types)
    within_bounds(fn, types, lambda arrays: run_program(program, made, arrays))
    return made


def within_bounds(fn: Fn, types: Sequence[TensorType], run: Run) -> None:
    graph = bu.trace(fn, *types)
    for seed, special in ((0, False), (1, True)):
        inputs = generated_inputs(graph, seed, special=special)
        spans = analyse(graph, inputs, Numerics())
        for n, (found, span) in enumerate(zip(run(inputs), spans, strict=True)):
            verdict = judge(found, span, n)
            assert verdict.ok, verdict


def exactly(fn: Fn, *arrays: Array) -> Translated:
    """Small integers, of which every sum is exact, against numpy in f64."""
    types = [bu.asarray(a).type for a in arrays]
    program, made = translated(fn, types)
    found = run_program(program, made, arrays)
    wanted = fn(*(bu.asarray(a.astype(np.float64)) for a in arrays))
    for one, other in zip(found, wanted if isinstance(wanted, tuple) else [wanted], strict=True):
        assert one.astype(np.float64).tolist() == np.asarray(other).tolist()
    return made


def integers(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(7).integers(-4, 5, shape).astype(dtype)


# Rows in a part of a warp, a warp, a block; in registers and too long for them; odd ones.
@pytest.mark.parametrize("n", [1, 3, 16, 31, 64, 128, 255, 700, 1024, 1028, 5000, 40_000])
def test_softmax(n: int) -> None:
    check(lambda x: bu.nn.softmax(x, axis=1), f32[3, n])


@pytest.mark.parametrize("shape", [(300, 130), (3000, 13), (5, 2000)], ids=str)
def test_softmax_of_columns(shape: tuple[int, int]) -> None:
    check(lambda x: bu.nn.softmax(x, axis=0), f32[shape])


def test_norms() -> None:
    check(norm, f32[9, 512], f32[512], f32[512])
    check(norm, f32[9, 77], f32[77], f32[77])
    check(lambda x: bu.nn.group_norm(x, 4), f32[2, 8, 20, 20])


def test_gradients_of_norms() -> None:
    gradient = bu.grad(lambda *each: bu.sum(norm(*each) ** 2), argnums=(0, 1, 2))
    check(gradient, f32[90, 64], f32[64], f32[64])


def test_cross_entropy() -> None:
    check(bu.value_and_grad(cross_entropy), f32[30, 70], int32[30])


@pytest.mark.parametrize("n", [1, 31, 1000, 4097, 100_000, 300_001])
def test_sums(n: int) -> None:
    made = exactly(bu.sum, integers(n))
    assert len(made.kernels) == (2 if n > 1 << 16 else 1)


SHAPES = [(1000, 4), (3000, 3), (40_000, 4), (2000, 130), (64, 257), (7, 1000), (500, 64)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_sums_along_an_axis(shape: tuple[int, int], axis: int) -> None:
    exactly(lambda x: (bu.sum(x, axis=axis), bu.max(x, axis=axis)), integers(*shape))


@pytest.mark.parametrize("shape", [(16, 5, 313), (32, 3, 3136), (3, 70, 4)], ids=str)
def test_sums_over_outer_axes(shape: tuple[int, int, int]) -> None:
    exactly(lambda x: bu.sum(x, axis=(0, 2)), integers(*shape))


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (float16, bu.sum),
        (bfloat16, bu.max),
        (bfloat16, bu.prod),
        (float64, bu.min),
        (int8, bu.sum),
        (bool_, bu.any),
        (bool_, bu.all),
    ],
    ids=["sum-f16", "max-bf16", "prod-bf16", "min-f64", "sum-i8", "any", "all"],
)
@pytest.mark.parametrize("axis", [0, 1])
def test_registers_of_every_width_are_shuffled(dtype: DType, kind: Fn, axis: int) -> None:
    check(lambda x: kind(x, axis=axis), dtype[300, 200])


def test_positions_of_the_greatest() -> None:
    check(lambda x: (bu.argmax(x, axis=1), bu.argmin(x, axis=0)), f32[30, 70])


@pytest.mark.parametrize("dtype", [f32, float16, int8, bool_, float64], ids=str)
@pytest.mark.parametrize("shape", [(64, 64), (33, 70), (100, 17), (128, 40)], ids=str)
def test_transposed_results(dtype: DType, shape: tuple[int, int]) -> None:
    made = check(lambda x, y: bu.where(y, x, x[::-1]).T, dtype[shape], bool_[shape])
    assert "addrspace(3) global" in made.text


@pytest.mark.parametrize("dtype", [f32, float16, int8, bool_, float64], ids=str)
@pytest.mark.parametrize("shape", [(64, 64), (33, 70), (100, 17), (128, 40)], ids=str)
def test_transpositions(dtype: DType, shape: tuple[int, int]) -> None:
    made = check(lambda x, y: bu.where(y, x.T, x.T), dtype[shape], bool_[shape[::-1]])
    assert "addrspace(3) global" in made.text


def test_more_operands_to_turn_than_shared_memory_holds(
    assemble: Callable[[str, str], None],
) -> None:
    def sums(*arrays: Any) -> Any:
        return sum((a.T * k for k, a in enumerate(arrays, 1)), start=arrays[0].T)

    types = [float64[40, 33]] * 7
    made = check(sums, *types)
    assert made.text.count("= internal addrspace(3)") == 1  # of what is stored
    each = check(lambda *arrays: [a.T + 1 for a in arrays], *types)
    assemble(to_ptx(made.text, "sm_80"), "sm_80")
    assemble(to_ptx(each.text, "sm_80"), "sm_80")


def test_permutations() -> None:
    check(lambda x: bu.permute_dims(x, (2, 1, 0)) * 2, f32[40, 5, 50])
    check(lambda x: bu.permute_dims(x, (0, 2, 1, 3)) * 2, f32[3, 7, 5, 8])


@pytest.mark.parametrize("width", [64, 63])
def test_joined_parts(width: int) -> None:
    check(lambda x, y: bu.concat([x, y, x], axis=1) * 2, f32[40, width], f32[40, 32])
    check(lambda x, y: bu.concat([x, y, x], axis=0) * 2, f32[40, width], f32[3, width])


@pytest.mark.parametrize("n", [1, 31, 1024, 100_003, 600_001])
def test_elements(n: int) -> None:
    exactly(lambda x, y: x * 2 + y, integers(n), integers(n))


@pytest.mark.parametrize("divisible", [True, False], ids=["in fours", "one by one"])
def test_exponentials_have_the_bits_of_the_host_s(divisible: bool) -> None:
    """Of all sizes, where results are usual, subnormal, infinite or none: neighbours are mixed."""
    random = np.random.default_rng(3)
    edges = np.array([86.5, 87.3, 88.72, 88.73, 103.9, 104.1, 1e-40, 0, np.inf, np.nan], np.float32)
    near = [edges]
    for step in (np.inf, -np.inf):
        near.append(np.nextafter(edges, np.float32(step)))
    usual = random.uniform(-90, 90, 40_000).astype(np.float32)
    x = np.concatenate([usual, *near, *(-n for n in near), usual[: 8 if divisible else 7]])
    x = np.concatenate([x, np.repeat(edges, 8)])
    x = x[: len(x) // 4 * 4 + (0 if divisible else 1) - 4]
    fn = bu.exp
    program, made = translated(fn, [f32[x.size]])
    (found,) = run_program(program, made, [x])
    wanted = np.asarray(bu.jit(fn, device="cpu")(x))
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    "power", [-140, -121, -100, -70, -61, -60, -59, -38, 0, 20, 49, 50, 59, 60, 90]
)
def test_quotients_by_one_divisor_are_rounded_once(power: int) -> None:
    """Rows over their sums, which are exact: what is multiplied has the bits of the division."""
    x = np.random.default_rng(power + 200).integers(0, 1 << 10, (40, 256)).astype(np.float32)
    x[0], x[1, 0], x[2] = 0, -0.0, x[2] * (np.arange(256) == 7)
    x[3:9, 1:] = np.ldexp(x[3:9, 1:], -100)  # of no account beside the first
    x[3:9, 0] = np.arange(3, 9)
    x = np.ldexp(x, power).astype(np.float32)

    def shares(x: Any) -> Any:
        return x / bu.sum(x, axis=1, keepdims=True)

    program, made = translated(shares, [f32[x.shape]])
    assert "fdiv float 1.000000e+00" in made.text or "fdiv float 0x3FF" in made.text
    (found,) = run_program(program, made, [x])
    with np.errstate(all="ignore"):
        wanted = x / np.sum(x, axis=1, keepdims=True, dtype=np.float32)
    wanted[np.isnan(wanted)], found[np.isnan(found)] = np.nan, np.nan
    assert found.tobytes() == wanted.tobytes()


def test_conversions() -> None:
    check(lambda x: bu.astype(bu.astype(x, bfloat16), float32), f32[5001])
    check(lambda x: bu.astype(bu.maximum(x, -x), bfloat16), bfloat16[77])


def test_many_folds_of_a_column_fit_shared_memory(assemble: Callable[[str, str], None]) -> None:
    def moments(x: Any) -> Any:
        return tuple(bu.sum(x * k + k, axis=0) for k in range(1, 15))

    exactly(moments, integers(600, 96))
    _, made = translated(moments, [f32[600, 96]])
    assemble(to_ptx(made.text, "sm_80"), "sm_80")


@pytest.mark.parametrize("axis", [0, 1])
def test_positions_of_64_bits(axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As arrays of more than 2**31 elements have them, on arrays that are smaller."""
    monkeypatch.setattr(simt_render, "_fits_words", lambda func, units: False)
    made = exactly(lambda x: bu.sum(x, axis=axis), integers(300, 301))
    assert "phi i64" in made.text
    assert "phi i32" not in made.text
    check(lambda x: bu.nn.softmax(x, axis=axis), f32[70, 301])
    check(lambda x, y: bu.concat([x.T, y], axis=1) * 2, f32[70, 31], f32[31, 33])
    exactly(lambda x: x[::-1] * 2, integers(300, 301))


def test_huge_arrays_have_positions_of_64_bits() -> None:
    for n, kind in ((1 << 33, "i64"), (1 << 20, "i32")):
        _, made = translated(lambda x: x * 2, [int8[n]])
        assert f"phi {kind}" in made.text


FEW_BLOCKS: dict[str, tuple[Fn, TensorType]] = {
    "elements": (lambda x: x * 2 + 1, f32[90_001]),
    "sums of rows": (lambda x: bu.sum(x, axis=1), f32[9, 5000]),
    "sums of odd rows": (lambda x: bu.sum(x, axis=1), f32[9, 5001]),
    "sums of short rows": (lambda x: bu.sum(x, axis=1), f32[700, 12]),
    "sums of columns": (lambda x: bu.sum(x, axis=0), f32[300, 1500]),
    "softmax in warps": (lambda x: bu.nn.softmax(x, axis=1), f32[100, 64]),
    "softmax in registers": (lambda x: bu.nn.softmax(x, axis=1), f32[9, 1500]),
    "softmax in shared memory": (lambda x: bu.nn.softmax(x, axis=1), f32[5, 40_001]),
    "softmax of columns": (lambda x: bu.nn.softmax(x, axis=0), f32[2000, 70]),
    "transposition": (lambda x: x.T * 2, f32[100, 130]),
}


@pytest.mark.parametrize("name", FEW_BLOCKS)
def test_blocks_take_several_turns(name: str) -> None:
    """Fewer blocks than there is work for: what one turn shares, the next one does not spoil."""
    fn, type_ = FEW_BLOCKS[name]
    program, made = translated(fn, [type_])
    assert max(kernel.blocks for kernel in made.kernels) > 4
    fewer = replace(made, commands=tuple(_at_most(c, 2) for c in made.commands))
    within_bounds(fn, [type_], lambda arrays: run_program(program, fewer, arrays))


def _at_most(command: Command, blocks: int) -> Command:
    assert isinstance(command, Launch)
    kernel = command.kernel
    return replace(command, kernel=replace(kernel, blocks=min(kernel.blocks, blocks)))


def test_work_in_place() -> None:
    """What a launch overwrites is read by the thread that writes it, and before it does."""

    def softmax(x: Any) -> Any:
        return bu.nn.softmax(x, axis=1)

    run = bu.jit(softmax, device="cuda-emulated", donate_argnums=0)
    assert run.lower(f32[9, 701]).program.aliases
    within_bounds(
        softmax,
        [f32[9, 701]],
        lambda arrays: [np.asarray(run(bu.asarray(arrays[0], device="cuda-emulated")))],
    )

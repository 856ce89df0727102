"""Native factors and triangular systems: sizes round the blocks, dtypes, stacks, bad values."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bringup as bu
from bringup.dtypes import f32
from bringup.llvm.loops.library import emit_step
from bringup.llvm.text import Module
from bringup.ops.structures import STRUCTURES
from bringup.ops.table import lookup
from bringup.program.program import OpStep, Slot
from bringup.target import Target
from bringup.types import TensorType

SIZES = (1, 16, 33, 70)
FLOATS = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)


def drawn(shape: tuple[int, ...], dtype: Any, structure: str = "") -> Any:
    x = np.random.default_rng(sum(shape)).normal(size=shape)
    return (STRUCTURES[structure](x) if structure else x).astype(dtype)


def results(function: Any, *arrays: Any) -> list[Any]:
    made = bu.jit(function)(*(bu.asarray(a, device="cpu") for a in arrays))
    return [np.asarray(x) for x in (made if isinstance(made, tuple) else (made,))]


def small(error: Any, scale: Any, n: int, dtype: Any) -> None:
    unit = float(ml_dtypes.finfo(dtype).eps)
    assert np.abs(error).max(initial=0) <= 8 * (n + 2) * unit * (np.abs(scale).max(initial=0) + 1)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("n", SIZES)
def test_products_of_factors(n: int, dtype: Any) -> None:
    a = drawn((2, n, n), dtype, "definite").astype(np.float64)
    (factor,) = results(bu.linalg.cholesky, a.astype(dtype))
    assert factor.dtype == dtype
    factor = factor.astype(np.float64)
    small(factor @ np.swapaxes(factor, -1, -2) - a, a, n, dtype)
    assert not np.triu(factor, 1).any()
    for m in (n, n + 3, max(n - 5, 1)) if dtype in (np.float32, np.float64) else (n,):
        x = drawn((2, m, n), dtype)
        wide = x.astype(np.float64)
        order, lower, upper = results(bu.linalg.lu, x)
        product = lower.astype(np.float64) @ upper.astype(np.float64)
        permuted = np.take_along_axis(wide, order[..., None].astype(np.int64), axis=-2)
        small(product - permuted, np.abs(upper.astype(np.float64)).max() * 4, n, dtype)
        for mode in ("reduced", "complete"):
            found = results(lambda v, mode=mode: bu.linalg.qr(v, mode=mode), x)
            q, r = (v.astype(np.float64) for v in found)
            small(q @ r - wide, wide, m + n, dtype)
            small(np.swapaxes(q, -1, -2) @ q - np.eye(q.shape[-1]), 1, m + n, dtype)
            assert not np.tril(r, -1).any()


@pytest.mark.parametrize("columns", [1, 35])
@pytest.mark.parametrize("n", SIZES)
def test_triangular_systems_of_every_form(n: int, columns: int) -> None:
    matrix = drawn((n, n), np.float64, "dominant")
    for number in range(16):
        left, lower, transpose, unit_diagonal = (bool(number >> i & 1) for i in range(4))
        b = drawn((n, columns) if left else (columns, n), np.float64)
        options = {"left": left, "lower": lower, "transpose": transpose}
        (x,) = results(
            lambda a, b, o=options, u=unit_diagonal: bu.linalg.solve_triangular(
                a, b, unit_diagonal=u, **o
            ),
            matrix / n if unit_diagonal else matrix,
            b,
        )
        full = np.tril(matrix) if lower else np.triu(matrix)
        if unit_diagonal:
            full = full / n
            np.fill_diagonal(full, 1)
        full = full.T if transpose else full
        small((full @ x if left else x @ full) - b, np.abs(full).max() * x, n, np.float64)


def test_a_bad_matrix_of_a_stack_spoils_no_other() -> None:
    a = drawn((4, 40, 40), np.float64, "definite")
    a[1, 39, 39] = -1
    a[2, 5, 3] = np.nan
    a[3, 3, 5] = np.nan  # above the diagonal
    (factor,) = results(bu.linalg.cholesky, a)
    lower = np.tri(40, dtype=bool)
    for bad in (1, 2):
        assert np.isnan(factor[bad][lower]).all()
        assert not factor[bad][~lower].any()
    assert np.isfinite(factor[[0, 3]]).all()


def test_dependent_columns_leave_orthogonal_factors() -> None:
    x = np.arange(150.0 * 90).reshape(150, 90)
    q, r = results(bu.linalg.qr, x)
    small(q.T @ q - np.eye(90), 1, 150, np.float64)
    small(q @ r - x, x, 150, np.float64)
    order, lower, upper = results(bu.linalg.lu, x)
    small(lower @ upper - x[order], x, 150, np.float64)


def test_equal_pivots_take_the_first_row() -> None:
    x = np.array([[1.0, 2.0], [-1.0, 5.0], [1.0, 7.0]])
    assert results(bu.linalg.lu, x)[0].tolist() == [0, 1, 2]
    x[2, 0] = np.nan
    assert results(bu.linalg.lu, x)[0][0] == 2


@pytest.mark.parametrize(("bits", "registers"), [(128, 16), (256, 16), (128, 32)])
def test_narrower_vectors_and_fewer_registers(bits: int, registers: int, monkeypatch: Any) -> None:
    target = Target(vector_bits=bits, registers=registers)
    monkeypatch.setattr("bringup_cpu.device.host_target", lambda: target)
    a = drawn((2, 37, 37), np.float64, "definite") + bits * registers / 1e4 * np.eye(37)
    (factor,) = results(lambda x: bu.linalg.cholesky(x * 1.0), a)
    small(factor @ np.swapaxes(factor, -1, -2) - a, a, 37, np.float64)
    q, r = results(lambda x: bu.linalg.qr(x * 1.0), a)
    small(q @ r - a, a, 37, np.float64)
    b = drawn((2, 37, 5), np.float64)
    (x,) = results(lambda a, b: bu.linalg.solve(a * 1.0, b), a, b)
    small(a @ x - b, np.abs(a).max() * x, 37, np.float64)


def test_one_matrix_has_scratch_memory_for_one_thread() -> None:
    from bringup_cpu.codegen import generate

    program = bu.jit(bu.linalg.cholesky, device="cpu").lower(bu.float64[512, 512]).program
    targets = [Target(vector_bits=256, threads=threads) for threads in (1, 8)]
    sizes = [generate(program, target).arena_bytes for target in targets]
    assert sizes[0] == sizes[1] < 3 * 512 * 512 * 8


@pytest.mark.parametrize("n", [6, 64])
def test_flops_are_those_of_the_decomposition(n: int) -> None:
    for function in (bu.linalg.cholesky, bu.linalg.qr, bu.linalg.lu):
        cost = bu.jit(function, device="cpu").lower(bu.float64[n, n]).cost()
        assert n**3 / 3 <= cost.flops <= 20 * n**3


def test_work_is_that_of_the_decomposition() -> None:
    """Not of loops to their ends, or two small matrices would be for two threads."""
    row, type_ = lookup("eigh"), TensorType((2, 8, 8), f32)
    attrs = row.bind({"vectors": True})
    results = [Slot("output", n, 0, t) for n, t in enumerate(row.result_types((type_,), attrs))]
    step = OpStep(row, attrs, (Slot("input", 0, 0, type_),), tuple(results))
    (phase,) = emit_step(Module(), step, "two", Target("", 256, 16)).phases
    assert (phase.units, phase.work) == (2, 9 * 8**3)

"""Factors of matrices on the emulator, judged by the residuals that the table bounds."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from assembling import OLDEST, find_ptxas, release_of
from emulated import Array
from stepped import assert_equal, lowered, run_step

from bringup.dtypes import FLOATS, DType, f32, f64
from bringup.ops.table import find
from bringup.types import TensorType
from bringup_cuda.codegen.lower import to_ptx


def check(name: str, dtype: DType, arrays: Sequence[Array], **attrs: Any) -> None:
    given = [x.astype(dtype.numpy) for x in arrays]
    made, wanted = run_step(name, given, **attrs)
    row = find(name)
    assert row is not None
    assert row.accuracy.residual is not None
    whole = {a.name: attrs.get(a.name, a.default) for a in row.attrs}
    exact = [x.astype(np.float64) if x.dtype.kind != "i" else x for x in (*given, *made, *wanted)]
    parts = exact[: len(given)], exact[len(given) : -len(wanted)], exact[-len(wanted) :]
    for label, error, bound in row.accuracy.residual(*parts, whole, dtype):
        assert np.all(error <= bound), (label, float(np.max(error - bound)))


def definite(*shape: int) -> Array:
    x = np.random.default_rng(sum(shape)).standard_normal(shape)
    return x @ np.swapaxes(x, -1, -2) + shape[-1] * np.eye(shape[-1])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (5, 2, 2), (3, 33, 33)], ids=str)
def test_cholesky(shape: tuple[int, ...], dtype: DType) -> None:
    check("cholesky", dtype, [definite(*shape)])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (4, 3, 7), (4, 7, 3), (2, 33, 33)], ids=str)
def test_lu(shape: tuple[int, ...], dtype: DType) -> None:
    check("lu", dtype, [np.random.default_rng(1).standard_normal(shape)])


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (4, 3, 7), (4, 7, 3), (2, 33, 33)], ids=str)
def test_qr(shape: tuple[int, ...], dtype: DType, complete: bool) -> None:
    x = np.random.default_rng(5).standard_normal(shape)
    x[..., 0] = 0
    check("qr", dtype, [x], complete=complete)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("form", list(product([False, True], repeat=4)), ids=str)
def test_triangular_solve(form: tuple[bool, bool, bool, bool], dtype: DType) -> None:
    left, lower, transpose, unit = form
    rng = np.random.default_rng(2)
    for n, m in ((1, 1), (33, 10)):
        matrix = rng.standard_normal((2, n, n)) / n + 2 * np.eye(n)
        b = rng.standard_normal((2, n, m) if left else (2, m, n))
        attrs = {"left": left, "lower": lower, "transpose": transpose, "unit": unit}
        check("triangular_solve", dtype, [matrix, b], **attrs)


def test_matrices_beyond_shared_memory() -> None:
    check("cholesky", f64, [definite(180, 180)])
    check("lu", f64, [np.random.default_rng(3).standard_normal((180, 170))])
    check("qr", f64, [np.random.default_rng(3).standard_normal((150, 140))])
    matrix = np.random.default_rng(4).standard_normal((180, 180)) / 180 + 2 * np.eye(180)
    check("triangular_solve", f64, [matrix, np.ones((180, 3))], transpose=True)


def test_a_matrix_that_is_not_definite_gives_nan_below_zeros() -> None:
    x = definite(2, 5, 5).astype(np.float32)
    x[1, 3, 3] = -1
    made, wanted = run_step("cholesky", [x])
    assert np.array_equal(np.isnan(made[0]), np.isnan(wanted[0]))
    assert not made[0][:, 0, 4].any()


def test_the_first_nan_is_the_pivot() -> None:
    x = np.ones((6, 1), np.float32)
    x[2:4] = np.nan
    made, wanted = run_step("lu", [x])
    assert_equal(made[1:], wanted[1:])


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_nothing_spills(architecture: str, tmp_path: Path) -> None:
    ptxas = find_ptxas()
    if ptxas is None or release_of(ptxas) < OLDEST:
        pytest.skip("no ptxas that reads what is written")
    a = TensorType((8, 40, 40), f32)
    for name, types in (("cholesky", [a]), ("lu", [a]), ("qr", [a]), ("triangular_solve", [a, a])):
        source = tmp_path / "step.ptx"
        source.write_text(to_ptx(lowered(name, types, architecture).text, architecture))
        command = [ptxas, "-v", f"-arch={architecture}", str(source), "-o", str(tmp_path / "out")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert re.findall(r"(\d+) bytes spill stores", done.stderr) == ["0"]

"""Native eigenvalues and singular values: sizes round the vectors, dtypes, stacks, bad values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bringup as bu
from bringup.program.program import OpStep
from bringup.target import Target

Array = np.ndarray[Any, Any]
FLOATS = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)


def drawn(shape: tuple[int, ...], dtype: Any) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


def results(function: Any, a: Array) -> list[Array]:
    made = bu.jit(function)(bu.asarray(a, device="cpu"))
    return [np.asarray(x) for x in (made if isinstance(made, tuple) else (made,))]


def norm(x: Array) -> float:
    """The largest singular value."""
    return float(np.linalg.norm(x.astype(np.float64), 2)) if x.size else 0.0


def good(found: list[Array], a: Array) -> None:
    """Backward stable and orthogonal: errors of rounding that add up like a random walk."""
    unit, n = float(ml_dtypes.finfo(found[0].dtype).eps), max(a.shape[-2:])
    allowed = (4 * n**0.5 + 8) * unit
    scale = np.longdouble(max(np.abs(a.astype(np.longdouble)).max(initial=0), 1e-300))
    a = a.astype(np.longdouble) / scale
    u, values, vh = (x.astype(np.longdouble) for x in found)
    values = values / scale
    k = values.shape[-1]
    assert np.isfinite(values).all()
    assert norm(u[:, :k] * values @ vh[:k] - a) <= allowed * norm(a)
    assert norm(u.T @ u - np.eye(u.shape[1])) <= allowed
    assert norm(vh @ vh.T - np.eye(len(vh))) <= allowed


def check_eigh(a: Array) -> list[Array]:
    values, vectors = results(bu.linalg.eigh, a)
    assert (np.diff(values.astype(np.float64)) >= 0).all()
    good([vectors, values, vectors.T], np.tril(a) + np.tril(a, -1).T)
    return [values, vectors]


def check_svd(a: Array, *, complete: bool = True) -> None:
    found = results(lambda x: tuple(bu.linalg.svd(x, full_matrices=complete)), a)
    m, n = a.shape
    k = min(m, n)
    shapes = [(m, m), (k,), (n, n)] if complete else [(m, k), (k,), (k, n)]
    assert [x.shape for x in found] == shapes
    values = found[1].astype(np.float64)
    assert (values >= 0).all()
    assert (np.diff(values) <= 0).all()
    good(found, a)


def spectra(n: int, dtype: Any) -> Iterator[tuple[Array, Array, Array]]:
    """Orthogonal matrices and values between them: many, few, equal, graded, tiny and huge."""
    rng = np.random.default_rng(n)
    q, p = (np.linalg.qr(rng.normal(size=(n, n)))[0] for _ in range(2))
    info = ml_dtypes.finfo(dtype)
    few = np.where(np.arange(n) < -(-n // 4), rng.normal(size=n), 0)
    equal = np.repeat([3.0, 2.0, 1.0, -4.0], -(-n // 4))[:n]
    graded = 10.0 ** -np.linspace(0, 12, n)
    yield from ((q, w, p) for w in (rng.normal(size=n), few, equal, graded, np.ones(n)))
    for end in (float(info.tiny) * 16, float(info.max) / (4 * n**0.5 + 4)):
        yield q, end * rng.uniform(0.5, 1, size=n), p


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("n", [1, 2, 9, 33, 128])
def test_errors_are_a_small_multiple_of_rounding(n: int, dtype: Any) -> None:
    for q, w, p in spectra(n, dtype):
        symmetric = (q * w @ q.T).astype(dtype)
        check_eigh(np.tril(symmetric) + np.tril(symmetric, -1).T)
        check_svd((q * w @ p.T).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("n", [2, 3, 9])
def test_values_that_are_all_equal_are_found(n: int, dtype: Any) -> None:
    """Steps on them leave nothing but errors of rounding, which must count as nothing."""
    rng = np.random.default_rng(n)
    q = np.linalg.qr(rng.normal(size=(300, n, n)))[0]
    signs = rng.choice([-3.0, 3.0], size=(300, 1, n))
    for a, function in ((3 * q, bu.linalg.svdvals), (q * signs @ q.mT, bu.linalg.eigvalsh)):
        (values,) = results(function, a.astype(dtype))
        assert np.abs(np.abs(values) - 3).max() <= 24 * n**0.5 * float(ml_dtypes.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
def test_every_form(dtype: Any) -> None:
    for number, shape in enumerate(((1, 7), (7, 1), (3, 40), (40, 3), (19, 34), (34, 19))):
        check_svd(drawn(shape, dtype), complete=bool(number // 2 % 2))
    check_eigh(drawn((21, 21), dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda d: np.dtype(d).name)
def test_zeros_on_the_diagonals(dtype: Any) -> None:
    for n in (2, 5, 40):
        shifted, half = np.eye(n, k=1, dtype=dtype), np.zeros((n, n), dtype)
        half[: n // 2, n // 2 :] = drawn((n // 2, n - n // 2), dtype)
        stair = np.triu(np.ones((n, n), dtype)) * (np.arange(n) % 3 != 0)
        product = np.outer(*drawn((2, n), dtype))
        for a in (shifted, half, stair, product, np.zeros((n, n), dtype)):
            check_svd(a)
            check_eigh(a + a.T)
    assert results(bu.linalg.svdvals, np.eye(6, k=1, dtype=dtype))[0].tolist() == [1] * 5 + [0]


def test_a_bad_matrix_of_a_stack_spoils_no_other() -> None:
    a = drawn((4, 20, 20), np.float64)
    a[1, 7, 3] = np.nan
    a[2, 19, 19] = np.inf
    a[3, 3, 5] = np.nan  # above the diagonal
    values, vectors = results(bu.linalg.eigh, a)
    for bad in (1, 2):
        assert np.isnan(values[bad]).all()
        assert np.isnan(vectors[bad]).all()
    for fine in (0, 3):
        one = np.nan_to_num(a[fine])
        assert np.array_equal(check_eigh(one)[0], values[fine])
    u, s, vh = results(bu.linalg.svd, a)
    assert [bool(np.isnan(x[i]).all()) for i in range(4) for x in (u, s, vh)] == (
        [False] * 3 + [True] * 9
    )


def test_values_do_not_pay_for_vectors_and_have_gradients() -> None:
    def steps(function: Any) -> list[tuple[str, Any]]:
        program = bu.jit(function, device="cpu").lower(bu.float64[12, 12]).program
        return [(s.op.name, s.attrs["vectors"]) for s in program.steps if isinstance(s, OpStep)]

    assert steps(bu.linalg.eigvalsh) == [("eigh", False)]
    assert steps(bu.linalg.svdvals) == [("svd", False)]
    assert steps(lambda x: bu.linalg.svd(x).U) == [("svd", True)]
    assert steps(bu.grad(lambda x: bu.sum(bu.linalg.eigvalsh(x)))) == [("eigh", True)]
    a = drawn((12, 12), np.float64)
    for alone, both in ((bu.linalg.eigvalsh, bu.linalg.eigh), (bu.linalg.svdvals, bu.linalg.svd)):
        (values,) = results(alone, a)
        (wanted,) = [x for x in results(both, a) if x.ndim == 1]
        assert np.array_equal(values, wanted)


@pytest.mark.parametrize(("bits", "registers"), [(128, 16), (256, 16), (128, 32), (512, 32)])
def test_other_vectors_and_registers(bits: int, registers: int, monkeypatch: Any) -> None:
    target = Target(vector_bits=bits, registers=registers)
    monkeypatch.setattr("bringup_cpu.device.host_target", lambda: target)
    a = drawn((37, 37), np.float32) + np.float32(bits * registers / 1e4)
    check_eigh(a + a.T)
    check_svd(a[:, :30])

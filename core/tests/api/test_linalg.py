"""`bringup.linalg` against numpy, in value, shape, gradient and mistakes."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import OpTypeError

#: Stacks of matrices, and sizes below and above those that are written out.
STACKED = (((), 1), ((2, 1), 1), ((2,), 3), ((), 8), ((2, 1), 8), ((2,), 20))


def drawn(shape: tuple[int, ...], seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def definite(shape: tuple[int, ...], seed: int = 0) -> Any:
    x = drawn(shape, seed)
    return x @ np.swapaxes(x, -1, -2) + np.eye(shape[-1])


def close(actual: Any, wanted: Any, bound: float = 1e-12) -> None:
    actual, wanted = np.asarray(actual), np.asarray(wanted)
    assert actual.shape == wanted.shape
    assert np.abs(actual - wanted).max(initial=0) <= bound * (1 + np.abs(wanted).max(initial=0))


@pytest.mark.parametrize(("stack", "n"), STACKED)
def test_factors(stack: tuple[int, ...], n: int) -> None:
    a = definite((*stack, n, n), n)
    factor = bu.linalg.cholesky(bu.asarray(a))
    close(factor, np.linalg.cholesky(a))
    close(bu.linalg.cholesky(bu.asarray(a), upper=True), np.swapaxes(np.linalg.cholesky(a), -1, -2))
    x = drawn((*stack, n + 2, n), n)
    for mode in ("reduced", "complete"):
        found = bu.linalg.qr(bu.asarray(x), mode=mode)
        for one, other in zip(found, np.linalg.qr(x, mode=mode), strict=True):
            close(one, other, 1e-11)
    order, lower, upper = map(np.asarray, bu.linalg.lu(bu.asarray(x)))
    close(lower @ upper, np.take_along_axis(x, order[..., None], axis=-2))
    assert np.array_equal(lower, np.tril(lower))
    assert np.array_equal(upper, np.triu(upper))


@pytest.mark.parametrize("n", [1, 2, 7, 30])
def test_equations_inverses_and_determinants(n: int) -> None:
    a, b, v = drawn((3, n, n), n), drawn((3, n, 4), 1), drawn((n,), 2)

    @bu.jit
    def program(a: Any, b: Any, v: Any) -> Any:
        solved = bu.linalg.solve(a, b), bu.linalg.solve(a, v), bu.linalg.solve(a[0], b)
        return solved, bu.linalg.inv(a), bu.linalg.det(a), bu.linalg.slogdet(a)

    solved, inverse, determinant, parts = program(*map(bu.asarray, (a, b, v)))
    close(solved[0], np.linalg.solve(a, b), 1e-9)
    wanted = np.linalg.solve(a, np.broadcast_to(v[:, None], (3, n, 1)))[..., 0]
    close(solved[1], wanted, 1e-9)
    close(solved[2], np.linalg.solve(a[:1], b), 1e-9)
    close(inverse, np.linalg.inv(a), 1e-9)
    close(determinant, np.linalg.det(a), 1e-10)
    for one, other in zip(parts, np.linalg.slogdet(a), strict=True):
        close(one, other, 1e-10)


def test_the_backward_error_of_solve_is_that_of_elimination() -> None:
    for n in (16, 64):
        a, b = drawn((4, n, n), n), drawn((4, n, 2), 3)
        a[0, :, 0] *= 1e9
        x = np.asarray(bu.linalg.solve(bu.asarray(a), bu.asarray(b)))
        other = np.linalg.solve(a, b)

        def backward(x: Any, a: Any = a, b: Any = b) -> Any:
            wide = a.astype(np.longdouble) @ x - b
            return float((np.abs(wide) / (np.abs(a) @ np.abs(x) + np.abs(b))).max())

        assert backward(x) <= 4 * backward(other) + n * 2.0**-53


def test_singular_and_indefinite_matrices() -> None:
    zero = bu.zeros((2, 2))
    assert bu.linalg.det(zero).tolist() == 0
    assert [v.tolist() for v in bu.linalg.slogdet(zero)] == [0, -math.inf]
    assert not np.isfinite(np.asarray(bu.linalg.inv(zero))).any()
    factor = np.asarray(bu.linalg.cholesky(bu.asarray([[1.0, 2.0], [2.0, 1.0]])))
    assert np.isnan(factor[np.tril_indices(2)]).all()
    assert factor[0, 1] == 0
    assert bu.linalg.matrix_rank(zero).tolist() == 0
    assert bu.linalg.pinv(zero).tolist() == [[0, 0], [0, 0]]


def test_triangular_systems() -> None:
    a = drawn((2, 5, 5)) + 4 * np.eye(5)
    b = drawn((2, 5, 3), 1)
    for lower in (False, True):
        triangle = np.tril(a) if lower else np.triu(a)
        found = bu.linalg.solve_triangular(bu.asarray(a), bu.asarray(b), lower=lower)
        close(found, np.linalg.solve(triangle, b))
        turned = bu.linalg.solve_triangular(
            bu.asarray(a), bu.asarray(np.swapaxes(b, -1, -2)), lower=lower, left=False
        )
        close(np.asarray(turned) @ triangle, np.swapaxes(b, -1, -2))
    v = bu.linalg.solve_triangular(bu.asarray(a[0]), bu.asarray(b[0, :, 0]), unit_diagonal=True)
    close(v, np.linalg.solve(np.triu(a[0], 1) + np.eye(5), b[0, :, 0]))


@functools.partial(bu.jit, static_argnums=1)
def everything(x: Any, full: bool) -> Any:
    return bu.linalg.svdvals(x), bu.linalg.svd(x, full_matrices=full), bu.linalg.pinv(x)


@pytest.mark.parametrize("n", [1, 4, 9])
def test_eigenvalues_and_singular_values(n: int) -> None:
    """Of each form of a matrix, with all singular vectors at one size and few at the next."""
    a = drawn((3, n, n), n)
    a = a + np.swapaxes(a, -1, -2)
    values, vectors = bu.linalg.eigh(bu.asarray(a))
    close(values, np.linalg.eigvalsh(a))
    close(bu.linalg.eigvalsh(bu.asarray(a)), np.linalg.eigvalsh(a))
    v = np.asarray(vectors)
    close(a @ v, v * np.asarray(values)[..., None, :])
    forms = {(n + 3, n): n != 4, (n, n + 2): n == 4, (2, n, n): n != 4}
    for shape, full in forms.items():
        x = drawn(shape, n)
        values, parts, inverse = everything(bu.asarray(x), full)
        close(values, np.linalg.svdvals(x))
        u, s, vh = map(np.asarray, parts)
        other = np.linalg.svd(x, full_matrices=full)
        assert [v.shape for v in (u, s, vh)] == [v.shape for v in other]
        k = s.shape[-1]
        close((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], x)
        close(inverse, np.linalg.pinv(x), 1e-9)


def test_ranks() -> None:
    x = drawn((2, 6, 2)) @ drawn((2, 2, 5), 1)
    assert bu.linalg.matrix_rank(bu.asarray(x)).tolist() == [2, 2]
    assert bu.linalg.matrix_rank(bu.asarray(np.diag([1, 0.2])), rtol=0.5).tolist() == 1
    assert bu.linalg.matrix_rank(bu.zeros((0, 3))).tolist() == 0
    pinv = bu.linalg.pinv(bu.asarray(x))
    close(pinv, np.linalg.pinv(x), 1e-10)


@pytest.mark.parametrize("ord", ["fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf])
def test_matrix_norms(ord: Any) -> None:
    x = drawn((2, 4, 3))

    @bu.jit
    def norms(x: Any) -> Any:
        return [bu.linalg.matrix_norm(x, ord=ord, keepdims=kept) for kept in (False, True)]

    for kept, found in zip((False, True), norms(bu.asarray(x)), strict=True):
        close(found, np.linalg.matrix_norm(x, ord=ord, keepdims=kept))


@pytest.mark.parametrize("ord", [0, 1, 2, 3, 0.5, -1, math.inf, -math.inf])
@pytest.mark.parametrize("axis", [None, 0, (0, 2)])
def test_vector_norms(ord: Any, axis: Any) -> None:
    x = drawn((2, 4, 3))
    for keepdims in (False, True):
        wanted = np.linalg.vector_norm(x, ord=ord, axis=axis, keepdims=keepdims)
        close(bu.linalg.vector_norm(bu.asarray(x), ord=ord, axis=axis, keepdims=keepdims), wanted)
    z = x + 1j
    close(bu.linalg.vector_norm(bu.asarray(z)), np.linalg.vector_norm(z))


@pytest.mark.parametrize("offset", [-4, -2, -1, 0, 1, 3, 5])
def test_diagonals_and_traces(offset: int) -> None:
    x = np.arange(24).reshape(2, 3, 4)
    found = bu.linalg.diagonal(bu.asarray(x), offset=offset)
    assert np.array_equal(np.asarray(found), np.linalg.diagonal(x, offset=offset))
    trace = bu.linalg.trace(bu.asarray(x), offset=offset)
    assert np.array_equal(np.asarray(trace), np.linalg.trace(x, offset=offset))
    assert trace.dtype is bu.int64


@pytest.mark.parametrize("power", [-3, -1, 0, 1, 2, 7])
def test_powers(power: int) -> None:
    x = drawn((2, 3, 3)) + 2 * np.eye(3)
    found = bu.linalg.matrix_power(bu.asarray(x), power)
    close(found, np.linalg.matrix_power(x, power), 1e-11)


@pytest.mark.parametrize("axis", [-1, 0])
def test_vector_products(axis: int) -> None:
    a, b = drawn((3, 3), 1), drawn((3, 3), 2)
    close(
        bu.linalg.cross(bu.asarray(a), bu.asarray(b), axis=axis), np.linalg.cross(a, b, axis=axis)
    )
    spread = bu.linalg.cross(bu.asarray(a), bu.asarray(b[0]))
    close(spread, np.cross(a, b[0]))


GRADIENTS = {
    "cholesky": lambda x: bu.linalg.cholesky(x @ x.mT + bu.eye(len(x))),
    "qr": lambda x: bu.linalg.qr(x).Q + 2 * bu.linalg.qr(x).R,
    "solve": lambda x: bu.linalg.solve(x, bu.asarray(drawn((4, 2), 9)[: len(x)], dtype=x.dtype)),
    "inv": bu.linalg.inv,
    "det": bu.linalg.det,
    "slogdet": lambda x: bu.linalg.slogdet(x).logabsdet,
    "eigvalsh": lambda x: bu.linalg.eigvalsh(x + x.mT),
    "eigh": lambda x: bu.abs(bu.linalg.eigh(x + x.mT).eigenvectors),
    "svdvals": bu.linalg.svdvals,
    "svd": lambda x: bu.linalg.svd(x).U * bu.linalg.svd(x).S @ bu.linalg.svd(x).Vh * 2,
    "pinv": bu.linalg.pinv,
    "nuc": lambda x: bu.linalg.matrix_norm(x, ord="nuc"),
    "norm 2": lambda x: bu.linalg.matrix_norm(x, ord=2),
    "lu": lambda x: bu.linalg.lu(x)[1],
    "triangular": lambda x: bu.linalg.solve_triangular(x, x.mT @ x, lower=True),
    "quantile": lambda x: bu.quantile(x, [0.3, 0.5], axis=0),
}


@pytest.mark.parametrize(
    ("name", "compiled", "dtype"),
    [
        *((name, True, "float64") for name in GRADIENTS),
        ("eigh", False, "float64"),
        ("svd", True, "float32"),
    ],
)
def test_derivatives(name: str, compiled: bool, dtype: str) -> None:
    """The jvp, the gradient, its jvp and the product with the Hessian, against differences of the
    function and of its gradient in f64; sizes are even and odd in turn.
    """
    function, eps, step = GRADIENTS[name], float(np.finfo(dtype).eps), 1e-5
    n = 3 + list(GRADIENTS).index(name) % 2
    x, direction = drawn((n, n), 5) + 2 * np.eye(n), drawn((n, n), 6)
    weights = drawn(function(bu.asarray(x)).shape, 7)

    def loss(x: Any) -> Any:
        return bu.sum(function(x) * bu.asarray(weights, dtype=x.dtype))

    def derivatives(x: Any, t: Any) -> Any:
        return (
            bu.jvp(function, (x,), (t,))[1],
            *bu.jvp(bu.grad(loss), (x,), (t,)),
            bu.hessian(loss)(x),
        )

    both = bu.jit(lambda x: (function(x), bu.grad(loss)(x)))
    before, after = (
        [np.asarray(part) for part in both(bu.asarray(x + sign * step * direction))]
        for sign in (-1, 1)
    )
    slope, curve = ((b - a) / (2 * step) for a, b in zip(before, after, strict=True))
    run = bu.jit(derivatives) if compiled else derivatives
    pushed, gradient, twice, hessian = map(
        np.asarray, run(bu.asarray(x, dtype=dtype), bu.asarray(direction, dtype=dtype))
    )
    # Differences err by about 1e-9; rounding by a few hundred roundoffs of these matrices.
    bound = 1e-7 + 500 * eps
    close(pushed, slope, bound)
    along = (slope * weights).sum()
    assert abs((gradient * direction).sum() - along) <= bound * (1 + np.abs(gradient).sum())
    close(twice, curve, bound)
    square = hessian.reshape(n * n, n * n)
    close((square @ direction.reshape(n * n)).reshape(n, n), curve, bound)


def test_second_derivatives_where_cotangents_are_zero() -> None:
    """Eigenvectors of a diagonal matrix: the cotangent between them is 0, its derivative is not."""
    x = np.diag([1.0, 2.0, 4.0])

    def corner(x: Any) -> Any:
        return bu.linalg.eigh(x).eigenvectors[0, 0] ** 2

    # v00² = 1 − (x10 / 1)² − (x20 / 3)² + … : by the lower triangle alone.
    wanted = np.zeros((3, 3))
    wanted[1, 0], wanted[2, 0] = -2.0, -2.0 / 9
    along = np.tril(np.ones((3, 3)))
    for mode in (bu.jacfwd, bu.jacrev):
        second = np.asarray(mode(bu.grad(corner))(bu.asarray(x))).reshape(9, 9)
        close((second @ along.reshape(9)).reshape(3, 3), wanted)


def test_equal_eigenvalues_in_forward_mode() -> None:
    ones, along = bu.eye(3), bu.asarray([[1.0, 2.0, 3.0], [2.0, 5.0, 6.0], [3.0, 6.0, 9.0]])
    _, moved = bu.jvp(lambda x: bu.sum(bu.linalg.eigvalsh(x)), (ones,), (along,))
    assert moved.item() == 15.0
    _, moved = bu.jvp(lambda x: bu.linalg.eigh(x).eigenvectors, (ones,), (along,))
    assert not np.isfinite(np.asarray(moved)).all()


def test_equal_eigenvalues_have_gradients_of_their_own() -> None:
    ones = bu.eye(3)
    by_values = bu.grad(lambda x: bu.sum(bu.linalg.eigvalsh(x)))(ones)
    assert by_values.tolist() == np.eye(3).tolist()
    flat = bu.asarray([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    by_norm = np.asarray(bu.grad(lambda x: bu.linalg.svdvals(x)[0])(flat))
    close(by_norm, np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]]))
    by_vectors = bu.grad(lambda x: bu.linalg.eigh(x).eigenvectors[0, 1])(ones)
    assert not np.isfinite(np.asarray(by_vectors)).all()


def test_functions_map() -> None:
    a, b = definite((3, 2, 4, 4)), drawn((3, 2, 4))
    mapped = bu.vmap(bu.vmap(bu.linalg.solve))(bu.asarray(a), bu.asarray(b))
    close(mapped, np.linalg.solve(a, b[..., None])[..., 0], 1e-10)
    close(bu.vmap(bu.linalg.cholesky)(bu.asarray(a)), np.linalg.cholesky(a))
    shared = bu.vmap(lambda v: bu.linalg.solve(bu.asarray(a[0, 0]), v))(bu.asarray(b[:, 0]))
    close(shared, np.linalg.solve(a[0, 0], b[:, 0].T).T, 1e-10)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: bu.linalg.cholesky(bu.ones((2, 3))), "cholesky: the matrices of .* not square"),
        (lambda: bu.linalg.inv(bu.ones((3,))), "inv: .* fewer than two dimensions"),
        (lambda: bu.linalg.solve(bu.ones((2, 2)), bu.ones((3,))), "solve: sizes do not fit"),
        (lambda: bu.linalg.solve(bu.ones((2, 2, 2)), bu.ones((3, 2, 1))), "do not broadcast"),
        (lambda: bu.linalg.qr(bu.ones((2, 2)), mode="raw"), "qr: mode 'raw'"),
        (lambda: bu.linalg.det(bu.ones((2, 2)) * 1j), "det: does not take complex numbers"),
        (lambda: bu.linalg.matrix_norm(bu.ones((2, 2)), ord=3), "matrix_norm: ord 3"),
        (lambda: bu.linalg.cross(bu.ones((2,)), bu.ones((3,))), "cross: the vectors"),
        (lambda: bu.linalg.diagonal(bu.ones((3,))), "diagonal: .* fewer than two"),
    ],
)
def test_mistakes(call: Any, said: str) -> None:
    with pytest.raises(OpTypeError, match=said) as caught:
        call()
    assert caught.value.fix
    assert caught.value.location is not None

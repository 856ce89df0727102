"""Complex arrays: pairs of real ones, under the functions of real ones."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import ConversionError, OpTypeError

RNG = np.random.default_rng(0)
Z = (RNG.normal(size=(3, 4)) + 1j * RNG.normal(size=(3, 4))) * np.exp2(RNG.integers(-3, 4, (3, 4)))
W = RNG.normal(size=(3, 4)) + 1j * RNG.normal(size=(3, 4))
X = RNG.normal(size=(3, 4))
Function = Callable[[Any], Any]


def close(found: Any, wanted: Any, rtol: float = 1e-14) -> None:
    wanted = np.asarray(wanted)
    host = np.asarray(found)
    assert host.dtype == wanted.dtype
    assert host.shape == wanted.shape
    np.testing.assert_allclose(host, wanted, rtol=rtol, atol=rtol)


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "pow": lambda a, b: a**b,
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize(
    "other", [W, X, 2.5, 3, 1 - 2j, np.complex64(2j)], ids=lambda v: str(v)[:6]
)
def test_arithmetic(name: str, other: Any) -> None:
    function = BINARY[name]
    held = bu.asarray(other) if isinstance(other, np.ndarray) else other
    z = bu.asarray(Z)
    for f in (function, bu.jit(function) if isinstance(held, bu.Array) else function):
        close(f(z, held), function(Z, other), 3e-14)
        if name != "pow":
            close(f(held, z), function(other, Z), 3e-14)
    assert bool(bu.all(z == Z))


@pytest.mark.parametrize("power", [0, 1, 2, 3, 7, -1, -5, 100, -100])
def test_powers_by_ints(power: int) -> None:
    close(bu.asarray(W) ** power, W**power, 1e-11)
    close(bu.asarray(0j) ** power, np.complex128(0) ** power) if power >= 0 else None


UNARY = [
    "exp", "log", "sqrt", "abs", "square", "reciprocal", "negative", "positive", "sign", "sin",
    "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh",
    "expm1", "log1p", "log2", "log10", "isnan", "isinf", "isfinite", "conj", "real", "imag",
]  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_functions(name: str) -> None:
    wanted = {"asin": "arcsin", "acos": "arccos", "atan": "arctan"}
    wanted |= {f"{n}h": f"{v}h" for n, v in wanted.items()}
    function = getattr(np, wanted.get(name, name))
    ours: Function = getattr(bu, name)
    close(ours(bu.asarray(Z)), function(Z))
    close(bu.jit(ours)(bu.asarray(Z)), function(Z))
    single = np.asarray(ours(bu.asarray(Z.astype(np.complex64))))
    np.testing.assert_allclose(single, function(Z.astype(np.complex64)), rtol=2e-6, atol=2e-6)
    assert single.dtype == function(Z.astype(np.complex64)).dtype


def test_the_angle() -> None:
    close(bu.angle(bu.asarray(Z)), np.angle(Z))
    close(bu.angle(bu.asarray([-1.0, 0.0, 2.0])), np.angle([-1.0, 0.0, 2.0]))
    close(bu.imag(bu.asarray(X)), X * 0)
    assert bu.real(bu.asarray(X)).dtype is bu.float64


MOVED: dict[str, tuple[Function, Function]] = {
    "reshape": (lambda z: bu.reshape(z, (2, -1)), lambda z: z.reshape(2, -1)),
    "permute_dims": (lambda z: bu.permute_dims(z, (1, 0)), np.transpose),
    "T": (lambda z: z.T, lambda z: z.T),
    "index": (lambda z: z[1:, ::-2], lambda z: z[1:, ::-2]),
    "element": (lambda z: z[1, 2], lambda z: z[1, 2]),
    "newaxis": (lambda z: z[:, None], lambda z: z[:, None]),
    "at set": (lambda z: z.at[1].set(2j), lambda z: np.where(np.arange(3)[:, None] == 1, 2j, z)),
    "at add": (lambda z: z.at[:, 1:].add(1 + 1j), lambda z: z + np.array([0, 1, 1, 1]) * (1 + 1j)),
    "stack": (lambda z: bu.stack([z, z]), lambda z: np.stack([z, z])),
    "concat": (lambda z: bu.concat([z, bu.real(z)]), lambda z: np.concatenate([z, z.real])),
    "flip": (bu.flip, np.flip),
    "roll": (lambda z: bu.roll(z, 2), lambda z: np.roll(z, 2)),
    "tile": (lambda z: bu.tile(z, (2, 1)), lambda z: np.tile(z, (2, 1))),
    "broadcast": (lambda z: bu.broadcast_to(z, (2, 3, 4)), lambda z: np.broadcast_to(z, (2, 3, 4))),
    "tril": (bu.tril, np.tril),
    "where": (lambda z: bu.where(bu.real(z) > 0, z, 0), lambda z: np.where(z.real > 0, z, 0)),
    "sum": (lambda z: bu.sum(z, axis=0), lambda z: z.sum(0)),
    "prod": (bu.prod, np.prod),
    "prod of rows": (lambda z: bu.prod(z, axis=0), lambda z: z.prod(0)),
    "prod of none": (lambda z: bu.prod(z[:0], axis=0), lambda z: z[:0].prod(0)),
    "cumulative_sum": (lambda z: bu.cumulative_sum(z, axis=1), lambda z: z.cumsum(1)),
    "take": (lambda z: bu.take(z, bu.asarray([2, 0]), axis=0), lambda z: z[[2, 0]]),
    "einsum": (lambda z: bu.einsum("ij,kj->ik", z, z), lambda z: z @ z.T),
    "mean": (lambda z: bu.mean(z, axis=1, keepdims=True), lambda z: z.mean(1, keepdims=True)),
    "var": (bu.var, np.var),
    "std": (lambda z: bu.std(z, axis=0), lambda z: z.std(0)),
    "any": (bu.any, np.any),
    "count": (bu.count_nonzero, lambda z: np.asarray(np.count_nonzero(z))),
    "matmul": (lambda z: z @ bu.conj(z.mT), lambda z: z @ z.conj().T),
    "matmul real": (lambda z: z @ bu.real(z.mT), lambda z: z @ z.real.T),
    "real matmul": (lambda z: bu.real(z) @ z.mT, lambda z: z.real @ z.T),
    "tensordot": (lambda z: bu.tensordot(z, z, axes=2), lambda z: np.tensordot(z, z, 2)),
    "vecdot": (lambda z: bu.vecdot(z, z), lambda z: (z.conj() * z).sum(-1)),
    "zeros_like": (bu.zeros_like, np.zeros_like),
    "full_like": (lambda z: bu.full_like(z, 1j), lambda z: np.full_like(z, 1j)),
    "astype": (lambda z: bu.astype(z, bu.complex64), lambda z: z.astype(np.complex64)),
    "in": (lambda z: bu.asarray(z[0, 0] in z), lambda z: np.asarray(True)),
}


@pytest.mark.parametrize("name", MOVED)
def test_arrays_of_pairs_are_arrays(name: str) -> None:
    ours, numpys = MOVED[name]
    close(ours(bu.asarray(Z)), numpys(Z))
    if name != "in":
        close(bu.jit(ours)(bu.asarray(Z)), numpys(Z))


def test_making_them() -> None:
    close(bu.asarray([1j, 2]), np.asarray([1j, 2]))
    close(bu.asarray(1j), np.asarray(1j))
    close(bu.asarray([1, 2], dtype=bu.complex64), np.asarray([1, 2], np.complex64))
    close(bu.asarray(bu.asarray([1.0]), dtype="complex64"), np.asarray([1], np.complex64))
    close(bu.zeros((2, 2), dtype=bu.complex128), np.zeros((2, 2), complex))
    close(bu.full((2,), 1j), np.full((2,), 1j))
    close(bu.full((2,), 1j, dtype=bu.complex64), np.full((2,), 1j, np.complex64))
    close(bu.ones(2, dtype=complex), np.ones(2, complex))
    close(bu.eye(2, dtype=bu.complex64), np.eye(2, dtype=np.complex64))
    close(bu.complex(bu.asarray(X), 2.0), X + 2j)
    close(bu.complex(1, bu.asarray([1, 2])), np.array([1 + 1j, 1 + 2j]))
    assert bu.complex(bu.ones(2, dtype=bu.float16)).dtype is bu.complex64
    with pytest.raises(OpTypeError, match="complex already"):
        bu.complex(1j, 2.0)


def test_ramps_and_whole_powers() -> None:
    close(bu.linspace(0, 1j, 5), np.linspace(0, 1j, 5))
    close(bu.linspace(1 + 1j, 2, 3, dtype=bu.complex64), np.linspace(1 + 1j, 2, 3, dtype="c8"))
    assert (bu.asarray(1j) ** 2.0).item() == -1
    assert (bu.asarray(1j) ** bu.asarray(0.5)).item() == pytest.approx(1j**0.5)


def test_types() -> None:
    f32, f64, c64, c128 = bu.float32, bu.float64, bu.complex64, bu.complex128
    assert bu.result_type(c64, f32) is c64
    assert bu.result_type(c64, f64) is bu.result_type(f64, c64) is c128
    assert bu.result_type(bu.int64, c64) is c64
    assert bu.result_type(f32, 1j) is c64
    assert bu.result_type(bu.float16, 1j) is c64
    assert bu.result_type(f64, 1j) is bu.result_type(bu.int8, 1j) is bu.result_type(1, 1j) is c128
    assert bu.can_cast(f64, c128)
    assert not bu.can_cast(c64, f64)
    assert bu.isdtype(c64, "complex floating")
    assert bu.isdtype(c64, "numeric")
    assert not bu.isdtype(c64, "real floating")
    assert bu.finfo(c64).bits == 32
    info = bu.__array_namespace_info__()
    assert info.default_dtypes()["complex floating"] is c128
    assert set(info.dtypes(kind="complex floating")) == {"complex64", "complex128"}
    assert pickle.loads(pickle.dumps(c64)) is c64


def test_looking_at_them() -> None:
    z = bu.asarray([1 + 2j, 3.0])
    assert z.tolist() == [1 + 2j, 3 + 0j]
    assert z[0].item() == complex(z[0]) == 1 + 2j
    assert str(z) == "[1.+2.j 3.+0.j]"
    assert repr(z).startswith("Array([1.+2.j, 3.+0.j], dtype=complex128, device=")
    assert [complex(v) for v in z] == [1 + 2j, 3]
    assert len(z) == 2
    assert (z.shape, z.ndim, z.size, z.nbytes, z.dtype) == ((2,), 1, 2, 32, bu.complex128)
    assert bool(z[0])
    assert not bool(z[0] * 0)
    assert np.asarray(z, np.complex64).dtype == np.complex64
    for made in (pickle.loads(pickle.dumps(z)), copy.deepcopy(z), copy.copy(z)):
        assert made.tolist() == z.tolist()
    for convert in (float, int):
        with pytest.raises(ConversionError, match="which is complex"):
            convert(z[0])


def test_containers_for_jit_and_grad() -> None:
    z = bu.asarray(Z)

    @bu.jit
    def step(pair: dict[str, Any], scale: float) -> tuple[Any, Any]:
        assert pair["z"].is_traced
        assert "traced" in repr(pair["z"])
        return pair["z"] * scale, bu.sum(bu.abs(pair["z"]))

    scaled, total = step({"z": z}, 2.0)
    close(scaled, Z * 2)
    close(total, np.abs(Z).sum())
    doubled = bu.tree.tree_map(lambda x: x + x, {"z": z})
    close(doubled["z"], Z + Z)
    assert "real=(3, 4)" in repr(bu.tree.tree_map(lambda x: x.shape, z))


@pytest.mark.parametrize(
    "z", [Z, Z[::-1, 1::2], Z.astype(np.complex64), Z[0, 0], np.complex64(1 - 2j), 3 - 2j]
)
def test_complex_numbers_of_the_host_are_arguments(z: Any) -> None:
    twice, size = bu.jit(lambda z: z * 2), bu.jit(lambda z: bu.abs(z))
    for _ in range(4):  # the native path is made on the way
        close(twice(z), np.asarray(z) * 2, 1e-6)
        close(size(z), np.abs(z), 1e-6)
        close(size(2.5), np.asarray(2.5))
    close(bu.grad(lambda z: bu.sum(bu.abs(z) ** 2))(z), np.asarray(z) * 2, 1e-6)
    close(bu.jvp(lambda z: z * z, (z,), (z,))[1], np.asarray(z) ** 2 * 2, 1e-6)


def test_complex_numbers_of_the_host_in_maps_and_loops() -> None:
    row = Z[0]
    close(bu.vmap(lambda a, b: a * b, in_axes=(0, None))(row, row), np.outer(row, row))
    last, all_ = bu.scan(lambda c, x: (c * x, c), 1j, row)
    close(last, 1j * row.prod())
    close(all_, 1j * np.concatenate([[1], row[:-1].cumprod()]))
    close(bu.while_loop(lambda c: bu.abs(c) < 10, lambda c: c * 2j, 1j), np.asarray(16j))
    assert bu.jit(lambda x, s: x * s)(bu.ones(2, dtype=bu.float32), 1j).dtype is bu.complex64
    assert bu.jit(lambda z: z + 1).lower(bu.complex64[3]).graph.inputs[0].type is bu.float32[3]
    np.testing.assert_array_equal(bu.tree.tree_map(lambda x: -x, {"z": row})["z"], -row)


def test_complex_results_of_the_host_keep_both_parts() -> None:
    close(bu.jit(lambda x: np.ones(2) * 1j)(2.0), np.ones(2) * 1j)
    close(bu.jit(lambda: 2 - 1j)(), np.asarray(2 - 1j))
    close(bu.cond(bu.asarray(True), lambda: 1j, lambda: 2j), np.asarray(1j))


def test_a_jacobian_of_complex_by_complex_is_refused() -> None:
    with pytest.raises(OpTypeError, match="Jacobian of f") as caught:
        bu.jacfwd(lambda z: z * z)(bu.asarray(Z[0]))
    assert caught.value.location is not None
    assert caught.value.location.file == __file__


def test_gradients_of_real_values() -> None:
    """Both parts of a gradient are slopes along the parts of the variable."""

    def loss(z: Any) -> Any:
        w = bu.exp(z * 0.3j) / (z + 2.0) + bu.sqrt(z) * bu.log(z)
        return bu.sum(bu.real(w * bu.conj(w)) + bu.angle(z) + bu.abs(w))

    gradient = np.asarray(bu.grad(loss)(bu.asarray(Z)))
    step = 1e-6
    for direction in (1, 1j):
        for i in np.ndindex(Z.shape):
            moved = np.zeros_like(Z)
            moved[i] = step * direction
            ends = [loss(bu.asarray(Z + s * moved)).item() for s in (1, -1)]
            slope = (ends[0] - ends[1]) / (2 * step)
            part = gradient[i].real if direction == 1 else gradient[i].imag
            assert abs(part - slope) < 1e-6 * (1 + abs(slope))
    close(bu.grad(lambda x: bu.sum(bu.abs(bu.exp(x * 1j) * x)))(bu.asarray(X)), np.sign(X))
    assert bu.grad(lambda z: bu.sum(bu.abs(z)))(bu.asarray([0j])).tolist() == [0]
    with pytest.raises(OpTypeError, match=r"returned c128\[\]"):
        bu.grad(lambda z: bu.sum(z * 1j))(bu.asarray(Z))


def test_far_out_and_at_the_edges() -> None:
    inf, nan = np.inf, np.nan
    points = np.array([3e200 + 4e200j, 3e-200 + 4e-200j, 1e-310j, 1e308 + 1e308j, -1e-320, 1e300])
    z = bu.asarray(points)
    close(bu.abs(z), np.abs(points))
    with np.errstate(all="ignore"):
        close(bu.log(z), np.log(points))
        np.testing.assert_allclose(np.asarray(bu.sqrt(z)), np.sqrt(points), rtol=1e-14)
        np.testing.assert_allclose(np.asarray(z / (3 - 4j)), points / (3 - 4j), rtol=1e-13)
        close(z[:2] / z[1::-1], points[:2] / points[1::-1], 1e-13)
        far = np.exp(709 + 1.5j) * np.e
    assert bu.exp(bu.asarray(710 + 1.5j)).item() == pytest.approx(far, rel=1e-12)
    near = np.exp(1j * np.linspace(0.1, 3, 9)) * (1 + 1e-12)
    assert np.abs(np.asarray(bu.log(bu.asarray(near))).real - 1e-12).max() < 1e-15
    close(bu.sqrt(bu.asarray([0j, -4 + 0j, complex(-4, -0.0)])), np.array([0, 2j, -2j]))
    with np.errstate(all="ignore"):
        ends = np.array([complex(inf, inf), complex(-inf, 1), complex(1, inf), complex(nan, 1)])
        for ours, numpys in ((bu.sqrt, np.sqrt), (bu.abs, np.abs), (bu.isinf, np.isinf)):
            np.testing.assert_array_equal(np.asarray(ours(bu.asarray(ends))), numpys(ends))
    assert bu.exp(bu.asarray(complex(-inf, inf))).item() == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda z: z < z,
        lambda z: bu.floor(z),
        lambda z: bu.max(z),
        lambda z: bu.sort(z, axis=0),
        lambda z: z % 2,
        lambda z: z & z,
        lambda z: bu.astype(z, bu.float32),
        lambda z: bu.nn.relu(z),
    ],
)
def test_what_complex_numbers_do_not_do(call: Callable[[Any], Any]) -> None:
    with pytest.raises(OpTypeError) as caught:
        call(bu.asarray(Z))
    assert caught.value.fix
    assert caught.value.location is not None
    assert caught.value.location.file == __file__


def test_real_arrays_meet_complex_scalars() -> None:
    x = bu.asarray(X.astype(np.float32))
    close(x * 1j, X.astype(np.float32) * np.complex64(1j), 1e-6)
    close(1j - bu.asarray([1, 2]), 1j - np.array([1, 2]))
    close(bu.where(bu.asarray(X) > 0, 1j, bu.asarray(X)), np.where(X > 0, 1j, X))
    with pytest.raises(ConversionError, match="is complex and does not become i64"):
        bu.full(3, 1j, dtype=bu.int64)


def test_making_them_of_real_numbers_of_the_host() -> None:
    for given in ([1.0, 2.0], [], np.float32([1.5, -0.0]), np.arange(3), [True], np.float64(2)):
        for dtype in (np.complex64, np.complex128):
            close(bu.asarray(given, dtype=dtype), np.asarray(given).astype(dtype))
            close(bu.array(given, dtype=dtype), np.asarray(given).astype(dtype))


@pytest.mark.parametrize(
    "options", [{}, {"include_initial": True}, {"dtype": bu.complex64}], ids=str
)
def test_running_products(options: Any) -> None:
    for axis in (0, 1):
        found = np.asarray(bu.cumulative_prod(bu.asarray(Z), axis=axis, **options))
        wanted = np.cumprod(Z, axis=axis)
        if options.get("include_initial"):
            wanted = np.concatenate([np.ones_like(wanted.take([0], axis)), wanted], axis)
        np.testing.assert_allclose(found, wanted, rtol=1e-6 if "dtype" in options else 1e-13)
    assert bu.cumulative_prod(bu.asarray([1j] * 5)).tolist() == [1j, -1, -1j, 1, 1j]


def test_distinct_elements() -> None:
    z = np.array([[1 + 2j, 1 - 2j, 0], [1 + 2j, -0.0, 3j], [1, 1 - 2j, 1]])
    values, first, inverse, counts = bu.unique_all(bu.asarray(z))
    wanted = np.unique(z.ravel(), return_index=True, return_inverse=True, return_counts=True)
    np.testing.assert_array_equal(np.asarray(values), wanted[0])
    assert first.tolist() == wanted[1].tolist()
    np.testing.assert_array_equal(z, np.asarray(values)[np.asarray(inverse)])
    assert counts.tolist() == wanted[3].tolist()
    limited = bu.jit(lambda v: bu.unique_values(v, size=3))(bu.asarray(z))
    np.testing.assert_array_equal(np.asarray(limited), wanted[0][:3])
    assert bu.unique_counts(bu.asarray([np.nan + 0j, np.nan])).counts.tolist() == [1, 1]


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "pow", "equal"])
def test_functions_of_two_scalars(name: str) -> None:
    for a, b in ((2j, 3), (3, 2j), (2j, True), (1 + 1j, 2j)):
        close(getattr(bu, name)(a, b), np.asarray(getattr(np, name)(a, b)))

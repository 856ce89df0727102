"""Creation, manipulation, reductions, linear algebra and nn against numpy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bringup as bu
from bringup.errors import ConversionError, MissingAttributeError, OpTypeError

X = np.arange(24.0).reshape(2, 3, 4)


def same(found: Any, expected: Any) -> None:
    host, expected = np.asarray(found), np.asarray(expected)
    assert host.dtype == expected.dtype
    np.testing.assert_array_equal(host, expected)


CREATED: dict[str, tuple[Callable[[], Any], Any]] = {
    "zeros": (lambda: bu.zeros((2, 3)), np.zeros((2, 3))),
    "ones": (lambda: bu.ones(3, dtype=bu.int8), np.ones(3, np.int8)),
    "full": (lambda: bu.full((2,), 7), np.full(2, 7)),
    "full bool": (lambda: bu.full((), True), np.full((), True)),
    "full whole float": (lambda: bu.full(2, 3.0, dtype=bu.int32), np.full(2, 3, np.int32)),
    "full numpy": (lambda: bu.full(2, np.float32(1.5)), np.full(2, 1.5, np.float32)),
    "full array": (lambda: bu.full(2, bu.asarray(1.5)), np.full(2, 1.5)),
    "full bool array": (lambda: bu.ones(2, dtype=bool), np.ones(2, bool)),
    "arange": (lambda: bu.arange(5), np.arange(5)),
    "arange step": (lambda: bu.arange(7, 0, -3), np.arange(7, 0, -3)),
    "arange empty": (lambda: bu.arange(3, 0), np.arange(3, 0)),
    "arange float": (lambda: bu.arange(0.5, 3.0, 0.5), np.arange(0.5, 3.0, 0.5)),
    "arange f32": (lambda: bu.arange(3, dtype=bu.float32), np.arange(3, dtype=np.float32)),
    "linspace": (lambda: bu.linspace(1, 3, 7), np.linspace(1, 3, 7)),
    "linspace open": (
        lambda: bu.linspace(0, 1, 4, endpoint=False),
        np.linspace(0, 1, 4, endpoint=False),
    ),
    "linspace one": (lambda: bu.linspace(2, 3, 1), np.linspace(2, 3, 1)),
    "linspace none": (lambda: bu.linspace(2, 3, 0), np.linspace(2, 3, 0)),
    "eye": (lambda: bu.eye(3, 4, k=1), np.eye(3, 4, k=1)),
    "eye lower": (lambda: bu.eye(3, k=-1, dtype=bu.int8), np.eye(3, k=-1, dtype=np.int8)),
    "tril": (lambda: bu.tril(bu.asarray(X), k=1), np.tril(X, 1)),
    "triu": (lambda: bu.triu(bu.asarray(X), k=-1), np.triu(X, -1)),
    "triu bool": (lambda: bu.triu(bu.ones((2, 2), dtype=bool)), np.triu(np.ones((2, 2), bool))),
    "zeros_like": (lambda: bu.zeros_like(bu.asarray([1, 2])), np.zeros(2, int)),
    "full_like": (lambda: bu.full_like(bu.asarray(X), 2), np.full_like(X, 2)),
    "meshgrid": (
        lambda: bu.meshgrid(bu.arange(2), bu.arange(3))[0],
        np.meshgrid([0, 1], [0, 1, 2])[0],
    ),
    "meshgrid ij": (
        lambda: bu.meshgrid(bu.arange(2), bu.arange(3), indexing="ij")[1],
        np.meshgrid([0, 1], [0, 1, 2], indexing="ij")[1],
    ),
}


@pytest.mark.parametrize("name", CREATED)
def test_creation(name: str) -> None:
    make, expected = CREATED[name]
    same(make(), expected)
    same(bu.jit(make)(), expected)


@pytest.mark.parametrize(
    "value",
    [
        *(True, 3, 2.5, -0.0, [], [1, 2], [[1.5], [2]], (True, False)),
        *(np.arange(3, dtype=np.uint8), np.float16(2), np.zeros((0, 3)), X[::-1, :, ::2], X.T),
    ],
    ids=repr,
)
def test_asarray(value: Any) -> None:
    same(bu.asarray(value), np.asarray(value))


def test_asarray_of_arrays() -> None:
    x = bu.asarray([1.0, 2.0])
    assert bu.asarray(x) is x
    assert bu.asarray(x, copy=True) is not x
    assert bu.asarray(x, dtype=bu.float32).dtype is bu.float32
    same(bu.asarray([x, x]), np.array([[1.0, 2.0], [1.0, 2.0]]))
    half = np.array([1.5, 2.5], ml_dtypes.bfloat16)
    assert bu.asarray(half).dtype is bu.bfloat16
    assert bu.asarray(half).tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("text", "a str does not become an array"),
        ([1, [2]], "nested sequences of different lengths"),
        (np.array(["1"]), "numpy's <U1 has no equivalent"),
        (print, "a builtin_function_or_method does not become an array"),
        (2**70, "out of range for i64"),
    ],
    ids=repr,
)
def test_asarray_refuses(value: Any, message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        bu.asarray(value)


def test_numpy_arrays_are_copied() -> None:
    host = np.ones(3)
    x = bu.asarray(host)
    host[:] = 5
    assert x.tolist() == [1, 1, 1]
    with pytest.raises(ConversionError, match="by copying only"):
        bu.asarray(host, copy=False)


MOVED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "reshape": (lambda x: bu.reshape(x, (4, -1)), lambda x: x.reshape(4, -1)),
    "reshape flat": (lambda x: bu.reshape(x, -1), lambda x: x.reshape(-1)),
    "permute_dims": (lambda x: bu.permute_dims(x, (2, 0, -2)), lambda x: x.transpose(2, 0, 1)),
    "moveaxis": (lambda x: bu.moveaxis(x, 0, -1), lambda x: np.moveaxis(x, 0, -1)),
    "moveaxis two": (
        lambda x: bu.moveaxis(x, (0, 1), (2, 0)),
        lambda x: np.moveaxis(x, (0, 1), (2, 0)),
    ),
    "expand_dims": (lambda x: bu.expand_dims(x, (0, -1)), lambda x: np.expand_dims(x, (0, -1))),
    "squeeze": (lambda x: bu.squeeze(x[:1], 0), lambda x: x[0]),
    "flip": (bu.flip, np.flip),
    "flip axis": (lambda x: bu.flip(x, axis=(0, -1)), lambda x: np.flip(x, (0, -1))),
    "roll": (lambda x: bu.roll(x, 5), lambda x: np.roll(x, 5)),
    "roll axes": (
        lambda x: bu.roll(x, (1, -5), axis=(0, 2)),
        lambda x: np.roll(x, (1, -5), (0, 2)),
    ),
    "roll none": (lambda x: bu.roll(x, 0, axis=1), lambda x: x),
    "broadcast_to": (
        lambda x: bu.broadcast_to(x[:, :1], (5, 2, 3, 4)),
        lambda x: np.broadcast_to(x[:, :1], (5, 2, 3, 4)),
    ),
    "tile": (lambda x: bu.tile(x, (2, 1)), lambda x: np.tile(x, (2, 1))),
    "tile up": (lambda x: bu.tile(x, (2, 1, 1, 3)), lambda x: np.tile(x, (2, 1, 1, 3))),
    "tile none": (lambda x: bu.tile(x, (0,)), lambda x: np.tile(x, (0,))),
    "repeat": (lambda x: bu.repeat(x, 3), lambda x: np.repeat(x, 3)),
    "repeat axis": (lambda x: bu.repeat(x, 2, axis=1), lambda x: np.repeat(x, 2, 1)),
    "repeat each": (
        lambda x: bu.repeat(x, (0, 2, 1), axis=1),
        lambda x: np.repeat(x, (0, 2, 1), 1),
    ),
    "concat": (lambda x: bu.concat([x, x[:1]], axis=0), lambda x: np.concatenate([x, x[:1]])),
    "concat flat": (
        lambda x: bu.concat([x, x[0]], axis=None),
        lambda x: np.concatenate([x, x[0]], axis=None),
    ),
    "stack": (lambda x: bu.stack([x, x], axis=-1), lambda x: np.stack([x, x], -1)),
    "unstack": (lambda x: bu.unstack(x, axis=1)[2], lambda x: x[:, 2]),
    "mT": (lambda x: x.mT, lambda x: x.swapaxes(1, 2)),
    "T": (lambda x: x[0].T, lambda x: x[0].T),
}


@pytest.mark.parametrize("name", MOVED)
def test_manipulation(name: str) -> None:
    ours, numpys = MOVED[name]
    same(ours(bu.asarray(X)), numpys(X))
    same(bu.jit(ours)(bu.asarray(X)), numpys(X))


def test_shapes_in_common() -> None:
    assert bu.broadcast_shapes() == ()
    assert bu.broadcast_shapes(3, (2, 1), (1, 1, 1)) == (1, 2, 3)
    with pytest.raises(OpTypeError, match=r"\(2,\) and \(3,\) do not broadcast"):
        bu.broadcast_shapes((2,), (3,))


def test_concat_promotes() -> None:
    assert bu.concat([bu.asarray([1]), bu.asarray([0.5])]).dtype is bu.float64
    same(bu.broadcast_arrays(bu.asarray([1]), bu.zeros((2, 1)))[0], np.array([[1], [1]]))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: bu.reshape(x, (5, 5)),
        lambda x: bu.reshape(x, (-1, -1)),
        lambda x: bu.squeeze(x, 0),
        lambda x: bu.permute_dims(x, (0, 1, 3)),
        lambda x: bu.expand_dims(x, 9),
        lambda x: bu.flip(x, axis=(0, 0)),
        lambda x: bu.concat([]),
        lambda x: bu.concat([x, x[0]]),
        lambda x: bu.sum(x, axis=3),
        lambda x: bu.sum(x, axis=0.5),
        lambda x: bu.max(x[:0], axis=0),
        lambda x: bu.argmax(x[:0]),
        lambda x: bu.zeros(3).mT,
        lambda x: bu.zeros("a"),
        lambda x: bu.arange(0, 1, 0),
        lambda x: bu.tril(bu.zeros(3)),
        lambda x: bu.broadcast_to(x, (2,)),
        lambda x: bu.repeat(x, (1, 2), axis=1),
        lambda x: bu.roll(x, (1, 2), axis=0),
        lambda x: bu.moveaxis(x, (0, 1), 0),
        lambda x: x @ x,
        lambda x: x @ bu.asarray(1.0),
        lambda x: x @ 2,
        lambda x: bu.vecdot(x, x, axis=0),
        lambda x: bu.tensordot(x, x, axes=4),
        lambda x: bu.outer(x, x),
        lambda x: bu.nn.layer_norm(x, bu.ones(3)),
        lambda x: bu.meshgrid(x, indexing="yx"),
    ],
)
def test_misuse_is_a_type_error_that_says_what_to_do(call: Callable[[Any], Any]) -> None:
    with pytest.raises(OpTypeError) as caught:
        call(bu.asarray(X))
    assert caught.value.fix
    assert caught.value.location is not None
    assert caught.value.location.file == __file__


REDUCTIONS = ["sum", "prod", "max", "min", "mean", "var", "std", "any", "all"]


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), ()], ids=repr)
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(name: str, axis: Any, keepdims: bool) -> None:
    x = X - 3.0
    found = getattr(bu, name)(bu.asarray(x), axis=axis, keepdims=keepdims)
    expected = getattr(np, name)(x, axis=axis, keepdims=keepdims)
    assert found.shape == expected.shape
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-12)
    assert np.asarray(found).dtype == expected.dtype


@pytest.mark.parametrize("name", ["sum", "prod"])
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint8, np.int32, np.uint64, np.float32])
def test_sums_are_wide(name: str, dtype: Any) -> None:
    x = np.array([1, 1, 2, 100]).astype(dtype)
    same(getattr(bu, name)(bu.asarray(x)), getattr(np, name)(x))
    same(getattr(bu, name)(bu.asarray(x), dtype=bu.float32), getattr(np, name)(x, dtype=np.float32))


def test_half_sums_accumulate_wider() -> None:
    x = np.ones(4096, np.float16)
    assert bu.sum(bu.asarray(x)).item() == 4096


@pytest.mark.parametrize("axis", [None, 0, 2, -2], ids=repr)
def test_positions(axis: Any) -> None:
    x = np.sin(X * 7)
    a = bu.asarray(x)
    for keepdims in (False, True):
        same(bu.argmax(a, axis=axis, keepdims=keepdims), np.argmax(x, axis=axis, keepdims=keepdims))
        same(bu.argmin(a, axis=axis, keepdims=keepdims), np.argmin(x, axis=axis, keepdims=keepdims))
        same(
            bu.count_nonzero(a > 0, axis=axis, keepdims=keepdims),
            np.count_nonzero(x > 0, axis=axis, keepdims=keepdims),
        )


def test_empty_reductions() -> None:
    nothing = bu.zeros((0, 2))
    assert bu.sum(nothing, axis=0).tolist() == [0, 0]
    assert bu.prod(nothing).item() == 1
    assert bu.all(nothing).item() is True
    assert bu.any(nothing).item() is False
    assert bu.max(nothing, axis=1).shape == (0,)
    assert np.isnan(bu.mean(nothing).item())


def test_variance_takes_a_correction() -> None:
    for correction in (0, 1, 1.5):
        found = bu.var(bu.asarray(X), axis=0, correction=correction)
        np.testing.assert_allclose(np.asarray(found), X.var(0) * 2 / max(2 - correction, 0))
    assert bu.mean(bu.asarray([1, 2])).item() == 1.5


SHAPES = [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4))]
SHAPES += [
    ((5, 2, 3), (5, 3, 4)),
    ((5, 1, 2, 3), (6, 3, 4)),
    ((2, 3), (5, 3, 4)),
    ((3,), (5, 3, 4)),
]
SHAPES += [((5, 2, 3), (3,)), ((2, 0), (0, 3))]


@pytest.mark.parametrize(("a", "b"), SHAPES, ids=str)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(-9, 9, a), rng.integers(-9, 9, b)
    same(bu.asarray(x) @ bu.asarray(y), x @ y)
    same(x @ bu.asarray(y), x @ y)
    same(bu.asarray(x) @ y.astype(np.float64), x @ y.astype(np.float64))


def test_other_products() -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(3.0)
    same(bu.vecdot(bu.asarray(a), bu.asarray(b)), a @ b)
    same(bu.vecdot(bu.asarray(a.T), bu.asarray(b[:, None]), axis=-2), a @ b)
    same(
        bu.tensordot(bu.asarray(a), bu.asarray(a), axes=([0], [0])), np.tensordot(a, a, ([0], [0]))
    )
    same(bu.tensordot(bu.asarray(a), bu.asarray(a)), np.tensordot(a, a))
    same(bu.tensordot(bu.asarray(a), bu.asarray(b), axes=0), np.tensordot(a, b, 0))
    same(bu.outer(bu.asarray(b), bu.asarray(b)), np.outer(b, b))


def test_nn() -> None:
    x = X[0] / 7 - 1
    a = bu.asarray(x)
    close = np.testing.assert_allclose
    close(np.asarray(bu.nn.relu(a)), np.maximum(x, 0))
    close(np.asarray(bu.nn.sigmoid(a)), 1 / (1 + np.exp(-x)))
    close(np.asarray(bu.nn.silu(a)), x / (1 + np.exp(-x)))
    tanh = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    close(np.asarray(bu.nn.gelu(a, approximate=True)), tanh, rtol=1e-10)
    close(np.asarray(bu.nn.gelu(a)), 0.5 * x * (1 + np.asarray(bu.nn.erf(a / np.sqrt(2)))))
    for axis in (-1, 0, (0, 1)):
        powers = np.exp(x - x.max(axis=axis, keepdims=True))
        soft = powers / powers.sum(axis=axis, keepdims=True)
        close(np.asarray(bu.nn.softmax(a, axis=axis)), soft)
        close(np.asarray(bu.nn.log_softmax(a, axis=axis)), np.log(soft))
    centred = x - x.mean(1, keepdims=True)
    normal = centred / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    close(np.asarray(bu.nn.layer_norm(a)), normal)
    gain, bias = np.arange(4.0), np.ones(4)
    affine = bu.nn.layer_norm(a, bu.asarray(gain), bu.asarray(bias))
    close(np.asarray(affine), normal * gain + bias)
    assert bu.nn.layer_norm(bu.asarray(x, dtype=bu.float32), bu.ones(4)).dtype is bu.float64
    hot = bu.nn.one_hot(bu.asarray([[1], [5]]), 3, axis=0)
    same(hot, np.array([[[0.0], [0.0]], [[1.0], [0.0]], [[0.0], [0.0]]]))


def test_constants_and_inspection() -> None:
    assert (bu.pi, bu.e, bu.inf, bu.newaxis) == (np.pi, np.e, np.inf, None)
    assert np.isnan(bu.nan)
    info = bu.__array_namespace_info__()
    assert info.capabilities()["boolean indexing"] is True
    assert info.default_device().name == "reference"
    assert info.default_dtypes()["real floating"] is bu.float64
    assert set(info.dtypes(kind="unsigned integer")) == {"uint8", "uint16", "uint32", "uint64"}
    assert bu.zeros(1).__array_namespace__() is bu
    assert bu.zeros(1).__array_namespace__(api_version=bu.__array_api_version__) is bu
    with pytest.raises(ConversionError, match=r"version 2021\.12"):
        bu.zeros(1).__array_namespace__(api_version="2021.12")


@pytest.mark.parametrize(
    ("module", "name", "fix"),
    [
        ("linalg", "lu_factor", "use bringup.linalg.solve"),
        ("linalg", "eigvals", "only symmetric matrices"),
        ("random", "uniforms", "use bringup.random.uniform"),
        ("optim", "Adam", "use bringup.optim.adam"),
        ("nn", "Softmax", "use bringup.nn.softmax"),
        ("fft", "strange", r"names are those .* dir\(bringup.fft\)"),
    ],
)
def test_namespaces_say_what_to_use_instead(module: str, name: str, fix: str) -> None:
    namespace = getattr(bu, module)
    assert not hasattr(namespace, name)
    assert not hasattr(namespace, f"__{name}__")
    with pytest.raises(MissingAttributeError, match=f"bringup.{module} has no '{name}'") as caught:
        getattr(namespace, name)
    assert re.match(fix, caught.value.fix or "")
    assert caught.value.location is not None
    assert caught.value.location.file == __file__


def test_extremes_of_bools() -> None:
    """True is the larger, as in numpy: ``argmax`` of a mask is where it first holds."""
    a = np.array([[False, True, True], [False, False, False]])
    b = np.array([True, True, False])
    for name in ("max", "min", "argmax", "argmin"):
        for axis in (None, 0, 1):
            same(getattr(bu, name)(bu.asarray(a), axis=axis), getattr(np, name)(a, axis=axis))
    for name in ("maximum", "minimum"):
        for other in (b, True):
            same(getattr(bu, name)(bu.asarray(a), other), getattr(np, name)(a, other))
        assert getattr(bu, name)(bu.asarray(a), 2).dtype is bu.int64

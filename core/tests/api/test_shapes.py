"""Every function of arrays on 0-d arrays, on arrays without elements and on eight dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bringup as bu

Function = Callable[..., Any]
SHAPES = ((), (0,), (1,), (2, 0, 3), (0, 0), (2, 1, 3, 1, 2, 1, 2, 2), (1, 2, 1, 0, 2, 1, 2, 1))
VECTORS = tuple(shape for shape in SHAPES if shape)

UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "exp", "expm1", "floor", "isfinite",
    "isinf", "isnan", "log", "log1p", "log2", "log10", "logical_not", "negative", "positive",
    "reciprocal", "round", "sign", "signbit", "sin", "sinh", "sqrt", "square", "tan", "tanh",
    "trunc", "asinh",
)  # fmt: skip
BINARY = (
    "add", "atan2", "copysign", "divide", "equal", "floor_divide", "greater", "greater_equal",
    "hypot", "less", "less_equal", "logaddexp", "logical_and", "logical_or", "logical_xor",
    "maximum", "minimum", "multiply", "nextafter", "not_equal", "pow", "remainder", "subtract",
)  # fmt: skip
REDUCTIONS = (
    "all", "any", "count_nonzero", "max", "mean", "min", "prod", "std", "sum", "var",
)  # fmt: skip

# The array API's names where numpy has another one.
NUMPY = {"acos": "arccos", "asin": "arcsin", "atan": "arctan", "atan2": "arctan2"}
NUMPY |= {"asinh": "arcsinh", "pow": "power", "concat": "concatenate"}


def of_numpy(name: str) -> Function:
    found: Function = getattr(np, NUMPY.get(name, name))
    return found


def host(shape: tuple[int, ...], seed: int = 0) -> Any:
    """Numbers between 0.1 and 1, for which every function has a value."""
    return np.random.default_rng(seed).uniform(0.1, 1, shape)


def same(found: Any, wanted: Any) -> None:
    wanted = np.asarray(wanted)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_array(name: str, shape: tuple[int, ...]) -> None:
    x = host(shape)
    same(getattr(bu, name)(bu.asarray(x)), of_numpy(name)(x))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_arrays(name: str, shape: tuple[int, ...]) -> None:
    x, y = host(shape), host(shape, 1)
    same(getattr(bu, name)(bu.asarray(x), bu.asarray(y)), of_numpy(name)(x, y))
    if shape:
        one = y[..., :1]
        same(getattr(bu, name)(bu.asarray(x), bu.asarray(one)), of_numpy(name)(x, one))


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.filterwarnings("ignore:Mean of empty", "ignore:Degrees of freedom")
@pytest.mark.filterwarnings("ignore:invalid value")
def test_reductions_of_any_axes(name: str, shape: tuple[int, ...], keepdims: bool) -> None:
    x = host(shape)
    rank = len(shape)
    for axis in {
        None,
        *((rank - 1, 0, -1) if rank else ()),
        *([(0, rank - 1)] if rank > 1 else []),
    }:
        empty = 0 in (shape if axis is None else np.take(shape, axis, mode="wrap").reshape(-1))
        if name in ("max", "min") and empty:
            continue
        found = getattr(bu, name)(bu.asarray(x), axis=axis, keepdims=keepdims)
        same(found, of_numpy(name)(x, axis=axis, keepdims=keepdims))


MOVES: dict[str, Function] = {
    "flip": lambda np, x: np.flip(x),
    "roll": lambda np, x: np.roll(x, 3),
    "roll one": lambda np, x: np.roll(x, -1, axis=0),
    "moveaxis": lambda np, x: np.moveaxis(x, 0, -1),
    "reshape": lambda np, x: np.reshape(x, (-1,)) if x.size else np.reshape(x, (0, 5)),
    "expand_dims": lambda np, x: np.expand_dims(x, 0) if x.ndim < 8 else x,
    "squeeze": lambda np, x: np.squeeze(x[:1], 0) if x.shape[0] else x,
    "repeat": lambda np, x: np.repeat(x, 2, axis=-1),
    "tile": lambda np, x: np.tile(x, (2,) * x.ndim),
    "stack": lambda np, x: np.stack([x, x], axis=-1) if x.ndim < 8 else x,
    "indexed": lambda np, x: x[..., ::-1][:1],
    "broadcast": lambda np, x: np.broadcast_to(x[:1], (2, *x.shape[1:])) if x.shape[0] else x,
    "where": lambda np, x: np.where(x > 0.5, x, -x),
    "clip": lambda np, x: np.clip(x, 0.3, 0.6),
    "positions": lambda np, x: np.argmax(x, axis=-1) if x.shape[-1] else x,
    "negation": lambda np, x: -x + 1,
    "sort": lambda np, x: np.sort(x, axis=0),
    "argsort": lambda np, x: np.argsort(x, axis=-1),
    "running sum": lambda np, x: getattr(np, "cumulative_sum" if np is bu else "cumsum")(
        x, axis=-1
    ),
    "take": lambda np, x: np.take(x, np.asarray([0, 0]), axis=0) if x.shape[0] else x,
    "rows by index": lambda np, x: x[np.asarray([0, 0, -1])] if x.shape[0] else x,
    "vecdot": lambda np, x: np.vecdot(x, x),
    "tensordot": lambda np, x: np.tensordot(x, x, axes=x.ndim),
}


@pytest.mark.parametrize("shape", VECTORS)
@pytest.mark.parametrize("name", MOVES)
def test_moves(name: str, shape: tuple[int, ...]) -> None:
    x = host(shape)
    same(MOVES[name](bu, bu.asarray(x)), MOVES[name](np, x))


@pytest.mark.parametrize("shape", VECTORS)
def test_joins(shape: tuple[int, ...]) -> None:
    x = host(shape)
    for axis in (0, -1):
        same(bu.concat([bu.asarray(x)] * 3, axis=axis), np.concatenate([x] * 3, axis=axis))
    same(bu.permute_dims(bu.asarray(x), tuple(range(len(shape)))[::-1]), x.T)
    parts = bu.unstack(bu.asarray(x))
    assert [p.shape for p in parts] == [shape[1:]] * shape[0]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((0, 3), (3, 2)),
        ((2, 0), (0, 3)),
        ((2, 3), (3, 0)),
        ((0,), (0,)),
        ((0, 2, 3), (3, 1)),
        ((2, 1, 2, 1, 1, 2, 3, 2), (1, 2, 1, 1, 2, 2, 2, 3)),
        ((2, 1, 1, 1, 1, 1, 0, 2), (2, 3)),
    ],
)
def test_products(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    x, y = host(left), host(right, 1)
    same(bu.asarray(x) @ bu.asarray(y), x @ y)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_and_maps(shape: tuple[int, ...]) -> None:
    x = bu.asarray(host(shape))

    def fn(x: bu.Array) -> bu.Array:
        return bu.sum(bu.exp(x) * x) + bu.sum(bu.mean(x, axis=-1) if x.ndim else x) * 0

    if 0 not in shape[-1:]:
        same(bu.grad(fn)(x), np.exp(host(shape)) * (1 + host(shape)))
    if shape:
        same(bu.vmap(bu.exp)(x), np.exp(host(shape)))
        softmax = bu.nn.softmax(x)
        assert softmax.shape == shape


@pytest.mark.parametrize("shape", SHAPES)
def test_creation(shape: tuple[int, ...]) -> None:
    for fn in (bu.zeros, bu.ones, bu.empty):
        assert fn(shape).shape == shape
    same(bu.full(shape, 7.0), np.full(shape, 7.0))
    same(bu.zeros_like(bu.ones(shape)), np.zeros(shape))
    assert np.asarray(bu.ones(shape)).tolist() == np.ones(shape).tolist()

"""`vmap` of functions: containers, axes, other transformations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bringup as bu
from bringup.errors import OpTypeError, TraceError

Function = Callable[..., Any]
RNG = np.random.default_rng(7)


def array(*shape: int, dtype: object = bu.float32) -> bu.Array:
    return bu.asarray(RNG.normal(size=shape).astype(np.float32), dtype=dtype)


def same(found: Any, wanted: Any, rtol: float = 1e-5) -> None:
    assert found.shape == wanted.shape
    assert found.dtype is wanted.dtype
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=rtol, atol=1e-5)


def looped(fn: Function, *columns: Any) -> bu.Array:
    """The law: the function of each example, stacked."""
    return bu.stack([fn(*row) for row in zip(*columns, strict=True)])


FUNCTIONS: dict[str, Function] = {
    "elementwise": lambda x: bu.exp(x) * 2 + 1,
    "softmax": bu.nn.softmax,
    "normalised": lambda x: (x - bu.mean(x, axis=0)) / (bu.std(x, axis=0) + 1),
    "moved": lambda x: bu.roll(bu.flip(x.T, axis=0), 1, axis=1),
    "joined": lambda x: bu.concat([x, bu.zeros((1, 4), dtype=x.dtype)], axis=0)[1:, ::2],
    "product": lambda x: x @ x.T,
    "positions": lambda x: bu.argmax(x, axis=-1),
    "a scalar": lambda x: bu.sum(x * x),
    "chosen": lambda x: bu.where(x > 0, x, bu.min(x)),
    "a constant": lambda x: bu.ones((2,), dtype=bu.int32),
    "the argument": lambda x: x,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_mapped_function_is_the_function_of_each(name: str, compiled: bool) -> None:
    fn = FUNCTIONS[name]
    mapped = bu.vmap(fn)
    xs = array(3, 5, 4)
    same((bu.jit(mapped) if compiled else mapped)(xs), looped(fn, xs))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 3),
    st.integers(-4, 3),
    st.integers(0, 4),
    st.booleans(),
)
def test_any_axis_may_be_mapped_and_any_be_the_result(
    at: int, target: int, size: int, shared: bool
) -> None:
    rest = [2, 3, 4]
    x = array(*rest[:at], size, *rest[at:])
    w = array(4, 5)
    in_axes = (at, None) if shared else (at - 4, 0)
    weights = w if shared else bu.broadcast_to(w, (size, 4, 5))
    found = bu.vmap(lambda x, w: bu.tanh(x) @ w, in_axes=in_axes, out_axes=target)(x, weights)
    same(found, bu.moveaxis(bu.tanh(bu.moveaxis(x, at, 0)) @ w, 0, target))


class Layer(NamedTuple):
    w: Any
    b: Any


def test_containers_and_their_axes() -> None:
    def fn(layer: Layer, batch: dict[str, Any]) -> dict[str, Any]:
        y = batch["x"] @ layer.w + layer.b
        return {"y": y, "scale": layer.b * batch["scale"], "all": (layer.w,)}

    layer = Layer(array(4, 3), array(5, 3))
    batch = {"x": array(4, 5), "scale": 2.0}
    in_axes = (Layer(None, 0), {"x": 1, "scale": None})
    out_axes = {"y": 0, "scale": 1, "all": None}
    found = bu.vmap(fn, in_axes, out_axes)(layer, batch)
    same(found["y"], bu.matmul(batch["x"].T, layer.w) + layer.b)
    same(found["scale"], layer.b.T * 2)
    same(found["all"][0], layer.w)


def test_what_all_examples_share_may_be_any_object_and_has_a_value() -> None:
    def fn(x: bu.Array, power: int, kind: str, flag: bu.Array) -> bu.Array:
        assert kind == "even"
        return x**power if flag > 0 else x

    xs = array(3, 2)
    found = bu.vmap(fn, in_axes=(0, None, None, None))(xs, 2, "even", bu.asarray(1))
    same(found, xs * xs)


def test_keywords_are_mapped_along_their_first_axis() -> None:
    xs, ys = array(3, 2), array(3, 2)
    same(bu.vmap(lambda x, *, y: x - y)(xs, y=ys), xs - ys)


def test_outer_arrays_are_shared() -> None:
    xs, w = array(3, 2), array(2)
    same(bu.vmap(lambda x: x * w)(xs), xs * w)


def test_numpy_arrays_are_arguments() -> None:
    xs = np.ones((3, 2), np.float32)
    assert bu.vmap(lambda x: bu.sum(x))(xs).tolist() == [2.0, 2.0, 2.0]


def test_nothing_mapped_needs_a_size() -> None:
    found = bu.vmap(lambda x: x + 1, in_axes=None, axis_size=3)(bu.asarray([1.0, 2.0]))
    assert found.tolist() == [[2.0, 3.0]] * 3
    assert bu.vmap(lambda: bu.ones(2), axis_size=0)().shape == (0, 2)


def test_python_may_not_look_at_one_example() -> None:
    with pytest.raises(TraceError):
        bu.vmap(lambda x: x if x > 0 else -x)(array(3))


# ---- with other transformations


def test_maps_of_maps() -> None:
    x, y = array(3, 2), array(4, 2)

    def distance(a: bu.Array, b: bu.Array) -> bu.Array:
        return bu.sum((a - b) ** 2)

    rows = bu.vmap(bu.vmap(distance, in_axes=(None, 0)), in_axes=(0, None))
    wanted = bu.sum((x[:, None, :] - y[None]) ** 2, axis=-1)
    same(rows(x, y), wanted)
    same(bu.jit(rows)(x, y), wanted)
    same(bu.vmap(bu.vmap(distance, (None, 0)), (0, None), out_axes=1)(x, y), wanted.T)


def loss(w: bu.Array, x: bu.Array, y: bu.Array) -> bu.Array:
    return bu.mean((bu.tanh(x @ w) - y) ** 2)


def test_gradients_per_example() -> None:
    w, x, y = array(4, 2), array(3, 4), array(3, 2)
    each = bu.vmap(bu.grad(loss), in_axes=(None, 0, 0))
    wanted = looped(lambda x, y: bu.grad(loss)(w, x, y), x, y)
    same(each(w, x, y), wanted)
    same(bu.jit(each)(w, x, y), wanted)


def test_values_and_gradients_per_example() -> None:
    w, x, y = array(4, 2), array(3, 4), array(3, 2)
    values, gradients = bu.vmap(bu.value_and_grad(loss, argnums=(0, 1)), (None, 0, 0))(w, x, y)
    same(values, looped(lambda x, y: loss(w, x, y), x, y))
    same(gradients[1], looped(lambda x, y: bu.grad(loss, argnums=1)(w, x, y), x, y))


def test_the_gradient_of_a_mapped_function() -> None:
    w, x, y = array(4, 2), array(3, 4), array(3, 2)

    def total(w: bu.Array) -> bu.Array:
        return bu.sum(bu.vmap(loss, in_axes=(None, 0, 0))(w, x, y))

    per_example = bu.vmap(bu.grad(loss), in_axes=(None, 0, 0))(w, x, y)
    same(bu.grad(total)(w), bu.sum(per_example, axis=0))


def test_compiled_functions_inside() -> None:
    xs = array(3, 4)
    inner = bu.jit(lambda x, k: bu.sum(x) * k)
    same(bu.vmap(lambda x: inner(x, 2.0))(xs), bu.sum(xs, axis=1) * 2)


def test_names_and_texts_stay() -> None:
    assert bu.vmap(loss).__name__ == "loss"


# ---- with loops, indices and keys


def root(x: bu.Array) -> bu.Array:
    """Newton's method; how many steps it takes depends on the number."""

    def better(state: tuple[bu.Array, bu.Array]) -> tuple[bu.Array, bu.Array]:
        guess, _ = state
        after = (guess + x / guess) / 2
        return after, bu.abs(after - guess)

    first = (x, bu.ones((), dtype=x.dtype))
    found: bu.Array = bu.while_loop(lambda state: state[1] > 1e-12, better, first)[0]
    return found


def decayed(w: bu.Array, xs: bu.Array) -> bu.Array:
    zero = bu.zeros((), dtype=xs.dtype)
    found: bu.Array = bu.scan(lambda c, x: (c * w + x, None), zero, xs)[0]
    return found


def test_each_example_loops_as_long_as_it_needs() -> None:
    xs = bu.asarray([1.0, 2.0, 9.0, 1e6])
    for mapped in (bu.vmap(root), bu.jit(bu.vmap(root))):
        np.testing.assert_allclose(mapped(xs).tolist(), [1.0, 2.0**0.5, 3.0, 1000.0])


def test_scans_and_their_gradients() -> None:
    w, xs = bu.asarray(0.5), bu.asarray(RNG.normal(size=(3, 5)))
    same(bu.vmap(decayed, (None, 0))(w, xs), looped(lambda x: decayed(w, x), xs))
    each = bu.vmap(bu.grad(decayed), (None, 0))(w, xs)
    same(each, looped(lambda x: bu.grad(decayed)(w, x), xs))
    total = bu.grad(lambda w: bu.sum(bu.vmap(decayed, (None, 0))(w, xs)))(w)
    same(total, bu.sum(each))


@pytest.mark.parametrize("shared", [False, True])
def test_choices(shared: bool) -> None:
    xs, signs = array(3, 2), bu.asarray([1.0, -1.0, 2.0])

    def fn(x: bu.Array, sign: bu.Array) -> bu.Array:
        found: bu.Array = bu.cond(sign > 0, lambda a: a * 2, lambda a: -a, x)
        return found

    if shared:
        same(bu.vmap(fn, (0, None))(xs, signs[0]), xs * 2)
    else:
        same(bu.vmap(fn)(xs, signs), bu.where(signs[:, None] > 0, xs * 2, -xs))


def test_indices_per_example() -> None:
    table, rows = array(4, 3), bu.asarray([[0, 2], [1, 1], [3, 0]])
    same(bu.vmap(lambda i: bu.take(table, i, axis=0))(rows), bu.take(table, rows, axis=0))
    places = bu.asarray([0, 1, 2, 0])
    same(bu.vmap(lambda row, j: row[j])(table, places), looped(lambda r, j: r[j], table, places))


def test_keys_per_example_give_what_each_key_gives() -> None:
    keys = bu.random.split(bu.random.key(0), 4)
    found = bu.vmap(lambda key: bu.random.normal(key, (3,)))(keys)
    wanted = [bu.random.normal(keys[i], (3,)).tolist() for i in range(4)]
    assert found.tolist() == wanted


def test_convolutions_and_their_gradients_per_example() -> None:
    x, w = array(3, 2, 6, 6), array(4, 2, 3, 3)

    def energy(x: bu.Array, w: bu.Array) -> bu.Array:
        return bu.mean(bu.nn.conv(x[None], w) ** 2)

    for argnum in (0, 1):
        slope = bu.grad(energy, argnums=argnum)
        same(bu.vmap(slope, (0, None))(x, w), looped(lambda x, s=slope: s(x, w), x), rtol=1e-4)


# ---- errors


def test_axes_are_checked_before_the_function_runs() -> None:
    def fn(x: bu.Array, y: bu.Array) -> bu.Array:
        raise AssertionError("the function ran")

    with pytest.raises(OpTypeError, match="differ in the number of examples: 3, 4"):
        bu.vmap(fn)(array(3), array(4))

"""Products with derivatives, and matrices of them, against each other and against slopes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import OpTypeError

RNG = np.random.default_rng(5)


def array(*shape: int) -> bu.Array:
    return bu.asarray(RNG.normal(size=shape))


def close(found: Any, wanted: Any, rtol: float = 1e-9) -> None:
    assert found.shape == wanted.shape
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=rtol, atol=1e-9)


def slopes(fn: Callable[..., Any], x: bu.Array) -> Any:
    """Central differences of each element of the result by each of the argument."""
    start = np.asarray(x)
    columns = []
    for index in np.ndindex(start.shape):
        ends = []
        for step in (1e-6, -1e-6):
            moved = start.copy()
            moved[index] += step
            ends.append(np.asarray(fn(bu.asarray(moved))))
        columns.append((ends[0] - ends[1]) / 2e-6)
    shape = columns[0].shape
    return np.stack(columns, axis=-1).reshape(*shape, *start.shape)


FUNCTIONS: dict[str, Callable[[bu.Array], bu.Array]] = {
    "elementwise": lambda x: bu.exp(x) * bu.sin(x),
    "softmax": bu.nn.softmax,
    "moved": lambda x: bu.concat([x.T, bu.flip(x).T], axis=1)[1:],
    "products": lambda x: x @ x.T,
    "powers": lambda x: x**3 / (1 + x * x),
    "norms": lambda x: x / bu.sqrt(bu.sum(x * x, axis=1, keepdims=True)),
    "extremes": lambda x: bu.max(x, axis=0),
    "a scalar": lambda x: bu.sum(x * x),
    "chosen": lambda x: bu.where(x > 0, x * x, bu.sin(x)),
    "nothing": lambda x: bu.ones(2, dtype=bu.float64),
    "one element": lambda x: x[1, 2],
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("compiled", [False, True])
def test_both_modes_give_the_slopes(name: str, compiled: bool) -> None:
    fn, x = FUNCTIONS[name], array(2, 3)
    wanted = slopes(fn, x)
    for mode in (bu.jacrev, bu.jacfwd):
        jacobian = bu.jit(mode(fn)) if compiled else mode(fn)
        close(jacobian(x), bu.asarray(wanted), rtol=1e-6)


def test_containers_on_both_sides() -> None:
    def fn(p: dict[str, bu.Array], x: bu.Array) -> dict[str, bu.Array]:
        return {"y": x @ p["w"] + p["b"], "n": bu.sum(p["w"] ** 2)}

    p, x = {"w": array(3, 2), "b": array(2)}, array(4, 3)
    for mode in (bu.jacrev, bu.jacfwd):
        found = mode(fn, argnums=(0, 1))(p, x)
        by_p, by_x = found["y"]
        assert by_p["w"].shape == (4, 2, 3, 2)
        close(by_p["b"], bu.broadcast_to(bu.eye(2, dtype=bu.float64), (4, 2, 2)))
        assert by_x.shape == (4, 2, 4, 3)
        close(found["n"][0]["w"], 2 * p["w"])
        close(found["n"][1], bu.zeros((4, 3), dtype=bu.float64))


def test_second_derivatives() -> None:
    a = array(3, 3)

    def square(x: bu.Array) -> bu.Array:
        return x @ (a @ x) + bu.sum(x**3)

    x = array(3)
    wanted = a + a.T + 6 * bu.eye(3, dtype=bu.float64) * x
    close(bu.hessian(square)(x), wanted)
    close(bu.jit(bu.hessian(square))(x), wanted)
    close(bu.jacrev(bu.grad(square))(x), wanted)


def test_products_agree_with_the_matrix() -> None:
    fn, x = FUNCTIONS["softmax"], array(2, 3)
    matrix = bu.reshape(bu.jacrev(fn)(x), (6, 6))
    ct, move = array(2, 3), array(2, 3)
    y, pull = bu.vjp(fn, x)
    close(y, fn(x))
    (gradient,) = pull(ct)
    close(bu.reshape(gradient, (6,)), bu.reshape(ct, (6,)) @ matrix)
    y, moved = bu.jvp(fn, (x,), (move,))
    close(y, fn(x))
    close(bu.reshape(moved, (6,)), matrix @ bu.reshape(move, (6,)))


def test_what_is_none_is_zero_and_integers_have_no_derivative() -> None:
    def fn(x: bu.Array, y: bu.Array) -> dict[str, bu.Array]:
        return {"product": x * y, "place": bu.argmax(x), "sum": bu.sum(y)}

    x, y = array(3), array(3)
    result, pull = bu.vjp(fn, x, y)
    assert result["place"].dtype is bu.int64
    by_x, by_y = pull({"product": None, "place": None, "sum": 1.0})
    close(by_x, bu.zeros(3, dtype=bu.float64))
    close(by_y, bu.ones(3, dtype=bu.float64))
    _, moves = bu.jvp(fn, (x, y), (x, None))
    close(moves["product"], x * y)
    assert moves["place"] is None
    assert moves["sum"].item() == 0.0


def test_products_inside_a_compiled_function_and_per_example() -> None:
    def directional(x: bu.Array, v: bu.Array) -> bu.Array:
        return bu.jvp(lambda z: bu.sum(bu.exp(z)), (x,), (v,))[1]

    xs, vs = array(4, 3), array(4, 3)
    wanted = bu.sum(bu.exp(xs) * vs, axis=1)
    close(bu.jit(bu.vmap(directional))(xs, vs), wanted)
    close(bu.vmap(lambda x, v: bu.vjp(bu.exp, x)[1](v)[0])(xs, vs), bu.exp(xs) * vs)
    close(bu.grad(lambda x: bu.sum(bu.vmap(directional)(x, vs)))(xs), bu.exp(xs) * vs)


def test_values_may_decide_what_is_done() -> None:
    found = bu.jacrev(lambda x: x * x if x[0] > 0 else -x)(bu.asarray([2.0]))
    assert found.tolist() == [[4.0]]


def test_arguments_without_elements() -> None:
    assert bu.jacrev(lambda x: x * 2)(bu.zeros((0, 2))).shape == (0, 2, 0, 2)
    assert bu.jacfwd(lambda x: bu.sum(x))(bu.zeros((0, 2))).shape == (0, 2)


def test_integers_are_refused() -> None:
    with pytest.raises(OpTypeError, match="the result of lambda is i64"):
        bu.jacrev(lambda x: bu.argmax(x))(array(3))
    with pytest.raises(OpTypeError, match=r"argument\[0\] is i64"):
        bu.jacfwd(lambda x: x * 1.5)(bu.asarray([1, 2]))


def test_cotangents_have_the_type_of_the_result() -> None:
    _, pull = bu.vjp(lambda x: x * 2, array(3))
    with pytest.raises(OpTypeError, match=r"the cotangent is f64\[2\]"):
        pull(array(2))
    with pytest.raises(OpTypeError, match="is a tuple of 2 where the tree has"):
        pull((1.0, 2.0))

"""Derivatives of one's own: constants, rules of the user's, and what is computed again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import OpTypeError, UnsupportedError
from bringup.graph.parser import parse_graph
from bringup.ops.table import find

MAYBE = [lambda f: f, bu.jit]


def at(x: Any) -> bu.Array:
    return bu.asarray(x, dtype=bu.float64)


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-12, atol=1e-12)


# -- stop_gradient ---------------------------------------------------------------------------------


@pytest.mark.parametrize("maybe", MAYBE)
def test_a_stopped_value_is_a_constant_in_every_mode(maybe: Callable[..., Any]) -> None:
    def f(x: bu.Array) -> bu.Array:
        return x * bu.stop_gradient(bu.sin(x))

    close(maybe(bu.grad(f))(at(2.0)), np.sin(2.0))
    value, moved = maybe(lambda x: bu.jvp(f, (x,), (at(1.0),)))(at(2.0))
    close([value, moved], [2 * np.sin(2.0), np.sin(2.0)])
    close(maybe(bu.grad(bu.grad(f)))(at(2.0)), 0.0)
    close(maybe(bu.hessian(f))(at(2.0)), 0.0)
    close(maybe(bu.vmap(bu.grad(f)))(at([1.0, 2.0])), np.sin([1.0, 2.0]))
    close(maybe(bu.grad(lambda x: bu.sum(bu.vmap(f)(x))))(at([1.0, 2.0])), np.sin([1.0, 2.0]))


def test_containers_are_stopped_whole() -> None:
    def f(x: bu.Array) -> bu.Array:
        held = bu.stop_gradient({"a": x, "b": (2, bu.arange(3)), "c": None})
        assert held["b"][0] == 2
        assert held["b"][1].dtype == bu.int64
        assert held["c"] is None
        return x * held["a"] + bu.sum(held["b"][1])

    close(bu.grad(f)(at(3.0)), 3.0)
    assert bu.stop_gradient({"a": 1}) == {"a": 1}


def test_a_stopped_value_inside_a_loop() -> None:
    def f(x: bu.Array) -> bu.Array:
        return bu.scan(lambda c, _: (c * bu.stop_gradient(c), None), x, None, length=2)[0]

    # c2 = c1 [c1], c1 = x [x]: the derivative is [x] · [x²].
    close(bu.grad(f)(at(3.0)), 27.0)


# -- rules for reverse mode ------------------------------------------------------------------------


def doubled() -> Any:
    """A sine whose gradient is twice what it should be, so that a rule passed by shows."""

    @bu.custom_vjp
    def f(x: bu.Array, y: bu.Array) -> bu.Array:
        return bu.sin(x) * y

    f.defvjp(
        lambda x, y: (f(x, y), {"c": bu.cos(x), "s": bu.sin(x), "y": y}),
        lambda kept, ct: (2 * kept["c"] * kept["y"] * ct, kept["s"] * ct),
    )
    return f


@pytest.mark.parametrize("maybe", MAYBE)
def test_reverse_mode_goes_by_the_rule(maybe: Callable[..., Any]) -> None:
    f, x, y = doubled(), at(0.5), at(3.0)
    close(f(x, y), 3 * np.sin(0.5))
    value, (by_x, by_y) = maybe(bu.value_and_grad(f, argnums=(0, 1)))(x, y)
    close([value, by_x, by_y], [3 * np.sin(0.5), 6 * np.cos(0.5), np.sin(0.5)])
    close(maybe(bu.grad(bu.grad(f)))(x, y), -6 * np.sin(0.5))
    close(maybe(bu.grad(lambda x: f(y=y, x=x)))(x), 6 * np.cos(0.5))
    xs = at([0.5, 1.0])
    close(maybe(bu.vmap(bu.grad(f), in_axes=(0, None)))(xs, y), 6 * np.cos(np.asarray(xs)))
    total = maybe(bu.grad(lambda y: bu.sum(bu.vmap(f, in_axes=(0, None))(xs, y))))
    close(total(y), np.sin(np.asarray(xs)).sum())

    def loop(x: bu.Array) -> bu.Array:
        return bu.scan(lambda c, _: (f(c, 1.0), None), x, None, length=2)[0]

    close(maybe(bu.grad(loop))(x), 4 * np.cos(0.5) * np.cos(np.sin(0.5)))


@pytest.mark.parametrize("maybe", MAYBE)
@pytest.mark.parametrize("dtype", [bu.float16, bu.float32, bu.float64], ids=str)
def test_numbers_yield_to_arrays_in_rules(dtype: Any, maybe: Callable[..., Any]) -> None:
    """A Python number beside an array makes neither its cotangent nor its tangent wider."""
    x = bu.asarray(0.5, dtype=dtype)
    reverse = doubled()

    @bu.custom_jvp
    def both(x: bu.Array, y: bu.Array) -> bu.Array:
        return x * y

    @both.defjvp
    def _rule(primals: Any, tangents: Any) -> Any:
        (x, y), (dx, dy) = primals, tangents
        return both(x, y), 3 * (dx * y + x * dy)

    for f, wanted in ((reverse, 4 * np.cos(0.5)), (both, 6.0)):
        found = maybe(bu.grad(lambda x, f=f: f(x, 2.0)))(x)
        assert found.dtype is dtype
        # The number, the function and each product round once.
        assert abs(float(found) - wanted) <= 4 * abs(wanted) * float(bu.finfo(dtype).eps)
    assert maybe(lambda x: bu.jvp(lambda x: both(x, 2.0), (x,), (x,)))(x)[1].dtype is dtype


@pytest.mark.parametrize("maybe", MAYBE)
def test_rules_run_under_the_default_dtype_of_the_call(maybe: Callable[..., Any]) -> None:
    f = doubled()

    def inside(x: bu.Array) -> bu.Array:
        with bu.default_dtype(bu.float32):
            return f(x, 2.0)

    for dtype in (bu.float32, bu.float16):
        assert maybe(bu.grad(inside))(bu.asarray(0.5, dtype=dtype)).dtype is dtype


def test_forward_mode_is_refused_where_the_rule_is() -> None:
    f = doubled()
    with pytest.raises(UnsupportedError, match="passes through f") as caught:
        bu.jvp(lambda x: f(x, x), (at(1.0),), (at(1.0),))
    assert caught.value.location is not None
    assert caught.value.location.file == __file__
    with pytest.raises(UnsupportedError, match="passes through f"):
        bu.jvp(
            lambda x: bu.scan(lambda c, _: (f(c, c), None), x, None, length=2)[0],
            (at(1.0),),
            (at(1.0),),
        )
    # What no tangent reaches does no harm.
    close(bu.jvp(lambda x: f(at(1.0), at(1.0)) * x, (at(2.0),), (at(1.0),))[1], np.sin(1.0))


def test_arguments_that_are_no_arrays_come_first() -> None:
    def apply(fn: Any, x: bu.Array, power: int) -> bu.Array:
        return fn(x) ** power

    made = bu.custom_vjp(apply, nondiff_argnums=(0, 2))

    def back(fn: Any, power: int, kept: tuple[bu.Array], ct: bu.Array) -> tuple[bu.Array]:
        assert fn is bu.sin
        return (kept[0] * ct * power,)

    made.defvjp(lambda fn, x, power: (apply(fn, x, power), (x,)), back)
    close(bu.grad(lambda x: made(bu.sin, x, 3))(at(2.0)), 6.0)


def test_containers_none_and_integers_in_rules() -> None:
    @bu.custom_vjp
    def pick(table: dict[str, bu.Array], i: bu.Array) -> dict[str, bu.Array]:
        return {"y": table["a"][i], "n": i + 1}

    def back(kept: Any, ct: Any) -> Any:
        assert ct["n"] is None
        return {"a": bu.zeros(3, dtype=bu.float64) + ct["y"], "b": None}, None

    pick.defvjp(lambda t, i: (pick(t, i), None), back)
    table = {"a": at([1.0, 2.0, 3.0]), "b": at(1.0)}
    found = bu.jit(bu.grad(lambda t: pick(t, bu.asarray(1))["y"] * 5))(table)
    close(found["a"], [5.0, 5.0, 5.0])
    close(found["b"], 0.0)


def test_constants_that_rules_use_from_outside() -> None:
    scale = at([1.0, 2.0])

    @bu.custom_vjp
    def f(x: bu.Array) -> bu.Array:
        return x * scale

    f.defvjp(lambda x: (f(x), None), lambda _, ct: (ct * scale * 10,))
    close(bu.jit(bu.grad(lambda x: bu.sum(f(x))))(at([1.0, 1.0])), [10.0, 20.0])


def test_mistakes_of_rules_are_told() -> None:
    x = at(1.0)

    @bu.custom_vjp
    def bare(x: bu.Array) -> bu.Array:
        return x

    with pytest.raises(OpTypeError, match="bare has no rule yet"):
        bare(x)
    f = bu.custom_vjp(lambda x: x)
    f.defvjp(lambda x: x, lambda _, ct: (ct,))
    with pytest.raises(OpTypeError, match=r"not \(result, residuals\)"):
        bu.grad(f)(x)
    f.defvjp(lambda x: (x, None), lambda _, ct: ct)
    with pytest.raises(OpTypeError, match="the result of bwd"):
        bu.grad(f)(x)
    f.defvjp(lambda x: (x, None), lambda _, ct: (bu.ones(3),))
    with pytest.raises(OpTypeError, match="what it belongs to is f64"):
        bu.grad(f)(x)

    def loss(y: bu.Array) -> bu.Array:
        g = bu.custom_vjp(lambda x: x * y)
        g.defvjp(lambda x: (x, None), lambda _, ct: (ct,))
        return g(x)

    with pytest.raises(OpTypeError, match="array of type f64"):
        bu.grad(loss)(x)
    with pytest.raises(OpTypeError, match="nondiff_argnums"):
        bu.custom_vjp(lambda x: x, nondiff_argnums=(-1,))
    assert repr(bare) == "<custom_vjp bare>"


# -- rules for both modes --------------------------------------------------------------------------


def softplus(wrong: float = 1.0) -> Any:
    @bu.custom_jvp
    def f(x: bu.Array) -> bu.Array:
        return bu.log(1 + bu.exp(x))

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (x,), (dx,) = primals, tangents
        return f(x), wrong * dx / (1 + bu.exp(-x))

    return f


@pytest.mark.parametrize("maybe", MAYBE)
def test_one_rule_serves_both_modes(maybe: Callable[..., Any]) -> None:
    f, x = softplus(2.0), at(0.5)
    s = 1 / (1 + np.exp(-0.5))
    close(maybe(bu.grad(f))(x), 2 * s)
    close(maybe(lambda x: bu.jvp(f, (x,), (at(3.0),))[1])(x), 6 * s)
    for second in (bu.grad(bu.grad(f)), bu.hessian(f), bu.jacfwd(bu.jacfwd(f))):
        close(maybe(second)(x), 2 * s * (1 - s))
    close(maybe(bu.vmap(bu.grad(f)))(at([0.5, 0.5])), [2 * s, 2 * s])
    large = bu.grad(softplus())(bu.asarray(200.0, dtype=bu.float32))
    assert large.item() == 1.0


def test_rules_of_several_arguments_and_fixed_ones() -> None:
    @bu.custom_jvp
    def unused(x: bu.Array) -> bu.Array:
        return x

    with pytest.raises(OpTypeError, match="no rule yet"):
        unused(at(1.0))
    power = bu.custom_jvp(lambda x, n, y: x**n * y, nondiff_argnums=(1,))
    power.defjvp(lambda n, p, t: (p[0] ** n * p[1], n * p[0] ** (n - 1) * p[1] * t[0]))
    by_x, by_y = bu.grad(lambda x, y: power(x, 3, y), argnums=(0, 1))(at(2.0), at(5.0))
    close([by_x, by_y], [60.0, 0.0])


# -- what is computed again ------------------------------------------------------------------------

SIZE, WIDTH, BLOCKS = 256, 64, 8


def layers(x: bu.Array, w: bu.Array) -> bu.Array:
    for _ in range(3):
        x = bu.tanh(x @ w)
    return x


def loss_of(block: Callable[..., Any]) -> Callable[..., Any]:
    def loss(x: bu.Array, weights: list[bu.Array]) -> bu.Array:
        for w in weights:
            x = block(x, w)
        return bu.sum(x)

    return loss


def arena(block: Callable[..., Any]) -> int:
    gradient = bu.jit(bu.grad(loss_of(block), argnums=1))
    types = bu.float32[SIZE, WIDTH], [bu.float32[WIDTH, WIDTH]] * BLOCKS
    return int(gradient.lower(*types, target="cpu:").cost().arena_bytes)


def test_a_checkpoint_lowers_the_peak_of_memory() -> None:
    """Three results of each block are kept without it; with it one, and those of one block."""
    result = 4 * SIZE * WIDTH
    assert arena(layers) >= 3 * BLOCKS * result
    assert arena(bu.checkpoint(layers)) <= (BLOCKS + 3) * result


def test_a_checkpoint_changes_no_bit() -> None:
    rng = np.random.default_rng(0)
    x = bu.asarray(rng.normal(size=(8, 4)).astype(np.float32))
    weights = [bu.asarray(rng.normal(size=(4, 4)).astype(np.float32)) for _ in range(3)]
    plain = bu.jit(bu.grad(loss_of(layers), argnums=1))(x, weights)
    again = bu.jit(bu.grad(loss_of(bu.checkpoint(layers)), argnums=1))(x, weights)
    for one, other in zip(plain, again, strict=True):
        assert np.array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize("maybe", MAYBE)
def test_every_mode_goes_through_a_checkpoint(maybe: Callable[..., Any]) -> None:
    scale = at(2.0)
    assert bu.remat is bu.checkpoint

    def loss(fn: Callable[..., Any]) -> Callable[[bu.Array], bu.Array]:
        return lambda x: fn({"x": x}, n=3)[0]

    def plain(p: dict[str, bu.Array], n: int) -> tuple[bu.Array, bu.Array]:
        return bu.sin(scale * p["x"]) ** n, bu.asarray(1)

    kept, again, x = loss(plain), loss(bu.checkpoint(plain)), at(0.7)
    for mode in (bu.grad, bu.hessian, lambda f: bu.grad(bu.grad(f)), lambda f: f):
        close(maybe(mode(again))(x), maybe(mode(kept))(x))
        close(maybe(bu.vmap(mode(again)))(at([0.7, 1.0])), bu.vmap(mode(kept))(at([0.7, 1.0])))
    close(bu.jvp(again, (x,), (at(1.0),))[1], bu.grad(kept)(x))
    # What it uses from outside is differentiated too.
    close(bu.grad(lambda s: bu.checkpoint(lambda x: bu.sin(s * x))(x))(scale), 0.7 * np.cos(1.4))


def test_calls_as_text() -> None:
    graph = bu.trace(lambda x: bu.stop_gradient(x), bu.float32[2])
    assert "rule=rule<stop_gradient>" in str(graph)
    assert parse_graph(str(graph), find).key == graph.key
    f = doubled()
    graph = parse_graph(str(bu.trace(lambda x: f(x, x), bu.float32[()])), find)
    assert "rule=rule<f>" in str(graph)

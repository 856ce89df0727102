"""Optimisers against their formulae in numpy's f64, their cost in kernels, and their errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.errors import OpTypeError
from bringup.program.program import Cost

Array = np.ndarray[Any, Any]
Tree = dict[str, Any]
RNG = np.random.default_rng(0)
START = {"w": RNG.normal(size=(3, 4)), "b": [RNG.normal(size=4), RNG.normal(size=())]}
SLOPES = [bu.tree.tree_map(lambda x: RNG.normal(size=np.shape(x)), START) for _ in range(7)]


def leaves(tree: Any) -> list[Array]:
    return [np.asarray(x).astype(np.float64) for x in bu.tree.flatten(tree)[0]]


def run(optimizer: bu.optim.Optimizer, dtype: Any, *, compiled: bool = False) -> list[Array]:
    """The parameters after all steps."""

    def as_arrays(tree: Any) -> Any:
        return bu.tree.tree_map(lambda x: bu.asarray(x, dtype=dtype), tree)

    update = bu.jit(optimizer.update) if compiled else optimizer.update
    params = as_arrays(START)
    state = optimizer.init(params)
    for slopes in SLOPES:
        params, state = update(as_arrays(slopes), state, params)
    assert int(state.step) == len(SLOPES)
    assert all(x.dtype is dtype for x in bu.tree.flatten(params)[0])
    return leaves(params)


def by_formula(step: Callable[..., Array]) -> list[Array]:
    """The same with one function of numpy arrays, which keeps what it needs in a dict."""
    params = leaves(START)
    memory: list[dict[str, Array]] = [{} for _ in params]
    for t, slopes in enumerate(SLOPES, 1):
        for i, g in enumerate(leaves(slopes)):
            params[i] = step(params[i], g, t, memory[i])
    return params


def descent(p: Array, g: Array, t: int, _m: dict[str, Array]) -> Array:
    return p - 0.1 * g


def heavy(p: Array, g: Array, t: int, m: dict[str, Array]) -> Array:
    m["v"] = 0.9 * m.get("v", 0) + g
    return p - 0.1 * m["v"]


def nesterov(p: Array, g: Array, t: int, m: dict[str, Array]) -> Array:
    m["v"] = 0.9 * m.get("v", 0) + g
    return p - 0.1 * (g + 0.9 * m["v"])


def adam(p: Array, g: Array, t: int, m: dict[str, Array], decay: float = 0.0) -> Array:
    m["m"] = 0.8 * m.get("m", 0) + 0.2 * g
    m["v"] = 0.99 * m.get("v", 0) + 0.01 * g**2
    move = m["m"] / (1 - 0.8**t) / (np.sqrt(m["v"] / (1 - 0.99**t)) + 1e-6)
    return p - 0.1 * (move + decay * p)


def adamw(p: Array, g: Array, t: int, m: dict[str, Array]) -> Array:
    return adam(p, g, t, m, decay=0.05)


def matrices_decay(p: Array, g: Array, t: int, m: dict[str, Array]) -> Array:
    return adam(p, g, t, m, decay=0.05 if p.ndim > 1 else 0.0)


def rmsprop(p: Array, g: Array, t: int, m: dict[str, Array]) -> Array:
    m["v"] = 0.8 * m.get("v", 0) + 0.2 * g**2
    m["s"] = 0.9 * m.get("s", 0) + g / (np.sqrt(m["v"]) + 1e-6)
    return p - 0.1 * m["s"]


def lion(p: Array, g: Array, t: int, m: dict[str, Array]) -> Array:
    move = np.sign(0.9 * m.get("m", 0) + (1 - 0.9) * g)
    m["m"] = 0.8 * m.get("m", 0) + 0.2 * g
    return p - 0.1 * (move + 0.05 * p)


def halved(p: Array, g: Array, t: int, m: dict[str, Array]) -> Array:
    return adam(p, g / 2 + 1, t, m)


def rate_at(t: int) -> float:
    """Of the t-th step, the first being 1: two steps of warm-up, then a cosine to 0.01."""
    n = t - 1
    if n < 2:
        return 0.5 * n / 2
    return 0.01 + (0.5 - 0.01) * (0.5 + 0.5 * math.cos(math.pi * min((n - 2) / 3, 1)))


def scheduled(p: Array, g: Array, t: int, _m: dict[str, Array]) -> Array:
    return p - rate_at(t) * g


BETAS = {"beta1": 0.8, "beta2": 0.99, "epsilon": 1e-6}
CASES = {
    "sgd": (bu.optim.sgd(0.1), descent),
    "momentum": (bu.optim.sgd(0.1, momentum=0.9), heavy),
    "nesterov": (bu.optim.sgd(0.1, momentum=0.9, nesterov=True), nesterov),
    "adam": (bu.optim.adam(0.1, **BETAS), adam),
    "adamw": (bu.optim.adamw(0.1, decay=0.05, **BETAS), adamw),
    "adamw, of matrices": (
        bu.optim.adamw(0.1, decay=0.05, decays=lambda p: p.ndim > 1, **BETAS),
        matrices_decay,
    ),
    "rmsprop": (bu.optim.rmsprop(0.1, decay=0.8, epsilon=1e-6, momentum=0.9), rmsprop),
    "lion": (bu.optim.lion(0.1, beta2=0.8, decay=0.05), lion),
    "chain": (
        bu.optim.chain(
            lambda g: bu.tree.tree_map(lambda x: x / 2, g),
            lambda g: bu.tree.tree_map(lambda x: x + 1, g),
            optimizer=bu.optim.adam(0.1, **BETAS),
        ),
        halved,
    ),
    "cosine": (bu.optim.sgd(bu.optim.cosine_schedule(0.5, 5, warmup=2, final=0.01)), scheduled),
}
# Schedules are computed in f32.
CLOSE = {"f64": 1e-13, "f32": 3e-6, "f16": 1e-2, "bf16": 0.1}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, dtype) for name in CASES for dtype in (bu.float64, bu.bfloat16)),
        *((name, dtype) for name in ("adam", "cosine") for dtype in (bu.float32, bu.float16)),
    ],
    ids=str,
)
def test_steps_follow_the_formula(name: str, dtype: Any) -> None:
    optimizer, step = CASES[name]
    loose = max(CLOSE[dtype.name], 1e-6 if name == "cosine" else 0)
    for got, wanted in zip(run(optimizer, dtype), by_formula(step), strict=True):
        assert np.abs(got - wanted).max() <= loose


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_formula_is_seen(name: str) -> None:
    optimizer, step = CASES[name]
    slip = 0.5 if name == "lion" else 1e-4  # lion takes signs
    off = by_formula(lambda p, g, t, m: step(p, g * 1.001 + slip, t, m))
    got = run(optimizer, bu.float64)
    assert max(np.abs(a - b).max() for a, b in zip(got, off, strict=True)) > 1e-6


@pytest.mark.parametrize("name", CASES)
def test_compiled_steps_are_the_same(name: str) -> None:
    optimizer, _ = CASES[name]
    for got, wanted in zip(
        run(optimizer, bu.float32, compiled=True), run(optimizer, bu.float32), strict=True
    ):
        assert np.abs(got - wanted).max() <= 1e-6


@pytest.mark.parametrize(
    ("name", "arrays"),
    [("sgd", 2), ("momentum", 3), ("adam", 4), ("rmsprop", 4), ("lion", 3)],
)
def test_a_leaf_is_one_kernel(name: str, arrays: int) -> None:
    """Parameter, gradient and memory are read once, and the new ones written, whatever is done."""
    optimizer, _ = CASES[name]
    params = [bu.zeros((64, 128), dtype=bu.float32), bu.zeros(4096, dtype=bu.float32)]
    cost = bu.jit(optimizer.update).lower(params, optimizer.init(params), params).cost()
    assert cost.kernels <= 2 + 3, "one a leaf; the step's number, and what follows from it"
    size = params[0].nbytes + params[1].nbytes
    assert size * arrays <= cost.bytes_read <= size * arrays + 100
    assert size * (arrays - 1) <= cost.bytes_written <= size * (arrays - 1) + 100


def test_clipping_scales_all_together() -> None:
    tree = {"a": bu.asarray([3.0, 0.0]), "b": [bu.asarray(4.0, dtype=bu.float32)]}
    assert float(bu.optim.global_norm(tree)) == 5
    clipped = bu.optim.clip_by_global_norm(tree, 1.0)
    assert np.allclose(clipped["a"], [0.6, 0.0], rtol=1e-15)
    assert abs(float(clipped["b"][0]) - 0.8) < 1e-7
    assert clipped["b"][0].dtype is bu.float32
    same = bu.optim.clip_by_global_norm(tree, 5.0)
    assert same["a"].tolist() == [3.0, 0.0]
    nothing = bu.optim.clip_by_global_norm([bu.zeros(3)], 1.0)
    assert nothing[0].tolist() == [0.0] * 3
    assert bu.optim.clip_by_global_norm([], 1.0) == []


def test_norms_of_half_precision_do_not_overflow() -> None:
    tree = [bu.full(100, 1000.0, dtype=bu.float16)]
    assert float(bu.optim.global_norm(tree)) == 10_000
    clipped = np.asarray(bu.optim.clip_by_global_norm(tree, 1.0)[0])
    assert clipped.dtype == np.float16
    assert np.allclose(clipped, 0.1, rtol=1e-3)


def test_the_cosine_has_its_corners() -> None:
    rate = bu.optim.cosine_schedule(2.0, 100, warmup=20, final=0.5)
    made = [0, 10, 20, 60, 100, 1000]
    assert np.allclose([float(rate(n)) for n in made], [0, 1, 2, 1.25, 0.5, 0.5], atol=1e-6)
    flat = bu.optim.cosine_schedule(2.0, 10)
    assert float(flat(bu.asarray(0))) == 2
    assert rate(bu.asarray(3, dtype=bu.int32)).dtype is bu.float32


def test_schedules_have_their_corners() -> None:
    line = bu.optim.linear_schedule(2.0, 1.0, 4)
    assert [float(line(n)) for n in (0, 1, 4, 5)] == [2, 1.75, 1, 1]
    fall = bu.optim.exponential_schedule(2.0, 0.5, 3)
    assert np.allclose([float(fall(n)) for n in (0, 1, 3, 6)], [2, 2 * 0.5 ** (1 / 3), 1, 0.5])
    steps = bu.jit(bu.optim.piecewise_schedule([3.0, 2.0, 1.0], [2, 5]))
    assert [float(steps(n)) for n in (0, 1, 2, 4, 5, 9)] == [3, 3, 2, 2, 1, 1]
    assert steps(bu.asarray(3)).dtype is bu.float32
    for rates, bounds in (([1.0], [2]), ([1.0, 2.0, 3.0], [5, 2]), ([1.0, 2.0], [])):
        with pytest.raises(OpTypeError, match="rates with the bounds"):
            bu.optim.piecewise_schedule(rates, bounds)


def test_averages_forget() -> None:
    """In f16 the mean is taken in f32, and the average keeps its own dtype."""
    params = {"w": bu.asarray([4.0], dtype=bu.float16)}
    average = {"w": bu.asarray([0.0], dtype=bu.float32)}
    for _ in range(3):
        average = bu.optim.ema(average, params, 0.5)
    assert average["w"].dtype is bu.float32
    assert average["w"].tolist() == [3.5]


def test_steps_may_reuse_memory() -> None:
    optimizer = bu.optim.adam(0.1)

    def step(params: Any, state: Any, x: bu.Array) -> Any:
        slopes = bu.grad(lambda p: bu.mean(bu.square(x @ p["w"])))(params)
        return optimizer.update(slopes, state, params)

    donating = bu.jit(step, donate_argnums=(0, 1))
    params = {"w": bu.ones((8, 1), dtype=bu.float32)}
    state = optimizer.init(params)
    x = bu.asarray(RNG.normal(size=(32, 8)).astype(np.float32))
    before = params["w"]
    for _ in range(50):
        params, state = donating(params, state, x)
    assert before.is_deleted
    assert np.abs(np.asarray(params["w"])).max() < 0.2


def test_misuse_is_explained() -> None:
    optimizer = bu.optim.adam(0.1)
    params = {"w": bu.ones(2)}
    state = optimizer.init(params)
    with pytest.raises(OpTypeError, match=r"the gradients are \{'v': \*\}, the parameters"):
        optimizer.update({"v": bu.ones(2)}, state, params)
    with pytest.raises(OpTypeError, match=r"params\['w'\] is i64\[2\], and only floats"):
        optimizer.init({"w": bu.asarray([1, 2])})
    with pytest.raises(OpTypeError, match="the slots are"):
        optimizer.update({"b": bu.ones(2)}, state, {"b": bu.ones(2)})
    with pytest.raises(OpTypeError, match="warmup=7 of steps=5"):
        bu.optim.cosine_schedule(1.0, 5, warmup=7)


LAYERS, WIDTH, BATCH = 6, 32, 256


def step_cost(optimizer: bu.optim.Optimizer, *, checkpoint: bool = False) -> Cost:
    """A training step of layers that are much wider in examples than in weights."""

    def layer(w: Any, x: bu.Array) -> bu.Array:
        return bu.tanh(bu.tanh(x @ w[0]) @ w[1])

    weights = [[bu.float32[WIDTH, WIDTH]] * 2] * LAYERS

    def loss(weights: Any, x: bu.Array) -> bu.Array:
        for w in weights:
            x = (bu.checkpoint(layer) if checkpoint else layer)(w, x)
        return bu.sum(x)

    @partial(bu.jit, donate_argnums=(0, 1))
    def step(weights: Any, state: Any, x: bu.Array) -> Any:
        return optimizer.update(bu.grad(loss)(weights, x), state, weights)

    zeros = bu.tree.map(lambda t: bu.zeros(t.shape, dtype=bu.float32), weights)
    state = optimizer.init(zeros)
    return step.lower(zeros, state, bu.float32[BATCH, WIDTH]).cost()


def test_a_rate_that_the_step_computes_costs_one_launch_and_no_memory() -> None:
    """Updates stay in the kernels of the gradients, which do not wait for each other."""
    plain = step_cost(bu.optim.sgd(0.1, momentum=0.9))
    rated = step_cost(bu.optim.sgd(bu.optim.cosine_schedule(0.1, 10, warmup=2), momentum=0.9))
    assert rated.kernels <= plain.kernels + 1
    assert rated.arena_bytes < plain.arena_bytes + 1024
    assert rated.bytes_written < plain.bytes_written + 1024


@pytest.mark.parametrize("rate", [0.1, bu.optim.cosine_schedule(0.1, 10, warmup=2)])
def test_updates_run_as_soon_as_they_may(rate: Any) -> None:
    """No activation or cotangent waits for the end of the step to be multiplied."""
    optimizer, result = bu.optim.sgd(rate, momentum=0.9), 4 * BATCH * WIDTH
    # What all layers but the last keep, and cotangents of one.
    assert step_cost(optimizer).arena_bytes < (2 * LAYERS + 2) * result + 1024
    # Inputs of layers, and what one of them computes again.
    assert step_cost(optimizer, checkpoint=True).arena_bytes < (LAYERS + 4) * result + 1024


def test_the_peak_counts_what_is_donated_once() -> None:
    cost = step_cost(bu.optim.sgd(0.1, momentum=0.9))
    parameters = 4 * WIDTH * WIDTH * 2 * LAYERS
    assert cost.peak_bytes - cost.arena_bytes - 4 * BATCH * WIDTH - 2 * parameters in range(9)

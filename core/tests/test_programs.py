"""Twenty programs in JAX's style, whose import lines alone name bringup, against numpy in f64.

The reference is the text of the programs itself: with numpy and loops of Python in the place of the
imports.  A gradient is compared along a direction with differences of the reference.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import bringup as bu

EPS = float(np.finfo("f4").eps)
TEXT = (Path(__file__).parent / "programs.py").read_text("utf-8")
IMPORT = re.compile(r"^(import|from) .*\n", re.MULTILINE)


@pytest.fixture(autouse=True, scope="module")
def _single_precision() -> Iterator[None]:
    with bu.default_dtype(bu.float32):
        yield


@pytest.fixture(scope="module")
def ours() -> Any:
    """The programs as they stand."""
    return _run(TEXT, {})


@pytest.fixture(scope="module")
def theirs() -> Any:
    """The programs with numpy."""
    return _run(IMPORT.sub("", TEXT), _numpy())


def _run(text: str, names: dict[str, Any]) -> Any:
    exec(compile(text, "programs.py", "exec"), names)
    return SimpleNamespace(**names)


# ---- numpy in the place of the imports


def _numpy() -> dict[str, Any]:
    from functools import partial

    nn = SimpleNamespace(
        relu=lambda x: np.maximum(x, 0),
        sigmoid=_sigmoid,
        silu=lambda x: x * _sigmoid(x),
        swish=lambda x: x * _sigmoid(x),
        softplus=lambda x: np.logaddexp(x, 0),
        softmax=lambda x, axis=-1: np.exp(x - _logsumexp(x, axis, True)),
        log_softmax=lambda x, axis=-1: x - _logsumexp(x, axis, True),
        gelu=lambda x, approximate: (
            x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
        ),
        one_hot=lambda x, num_classes: np.eye(num_classes)[x],
    )
    lax = SimpleNamespace(
        rsqrt=lambda x: 1 / np.sqrt(x),
        max=np.maximum,
        add=np.add,
        scan=_scan,
        cond=lambda pred, yes, no, *operands: (yes if pred else no)(*operands),
        fori_loop=_fori_loop,
        while_loop=_while_loop,
        conv=lambda x, w, strides, pad: _conv(x, w, strides, pad),
        conv_general_dilated=_conv,
        reduce_window=_reduce_window,
        dot_general=lambda x, y, dims, preferred_element_type: np.tensordot(
            x.astype(preferred_element_type), y.astype(preferred_element_type), dims[0]
        ),
    )
    jnp = SimpleNamespace(**vars(np))
    tree = SimpleNamespace(map=bu.tree.map, tree_map=bu.tree.map, leaves=bu.tree.leaves)
    jnp.fft = np.fft
    jnp.float32 = np.float64
    jnp.bincount = lambda x, length: np.bincount(x, minlength=length)
    shared = {"grad": _grad, "jit": lambda f, **_: f, "value_and_grad": None, "vmap": _vmap}
    return {
        **shared,
        "partial": partial,
        "np": np,
        "jnp": jnp,
        "jax": SimpleNamespace(**shared, lax=lax, nn=nn, tree=tree, tree_util=tree),
        "lax": lax,
        "nn": nn,
        "random": _Drawn(),
        "relu": nn.relu,
        "softplus": nn.softplus,
        "logsumexp": _logsumexp,
        "resize": _doubled,
        "segment_sum": _segment_sum,
        "cho_solve": lambda factor, y: np.linalg.solve(factor[0] @ factor[0].T, y),
        "solve_triangular": lambda a, y, lower: np.linalg.solve(a, y),
    }


class _Drawn:
    """Numbers of `bringup.random`, which are data to the reference."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args: host(getattr(bu.random, name)(*args))


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _logsumexp(x: Any, axis: int, keepdims: bool) -> Any:
    return np.logaddexp.reduce(x, axis=axis, keepdims=keepdims)


def _grad(f: Callable[..., Any]) -> Callable[..., Any]:
    """By central differences, of a function of a vector."""

    def gradient(x: Any, *rest: Any) -> Any:
        steps = 1e-5 * np.eye(x.size)
        return np.array([(f(x + s, *rest) - f(x - s, *rest)) / 2e-5 for s in steps])

    return gradient


def _vmap(f: Callable[..., Any], in_axes: Any = 0) -> Callable[..., Any]:
    def mapped(*args: Any) -> Any:
        axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
        chosen = [a if axis is None else None for a, axis in zip(args, axes, strict=True)]
        (count,) = {len(a) for a, axis in zip(args, axes, strict=True) if axis == 0}
        rows = [[a[i] if c is None else c for a, c in zip(args, chosen)] for i in range(count)]  # noqa: B905
        return np.stack([f(*row) for row in rows])

    return mapped


def _scan(f: Callable[..., Any], carry: Any, xs: Any = None, length: int | None = None) -> Any:
    results = []
    for i in range(len(xs) if length is None else length):
        carry, y = f(carry, None if xs is None else xs[i])
        results.append(y)
    return carry, bu.tree.map(lambda *ys: np.stack(ys), *results)


def _fori_loop(lower: int, upper: int, body: Callable[..., Any], state: Any) -> Any:
    for i in range(lower, upper):
        state = body(i, state)
    return state


def _while_loop(cond_fun: Callable[..., Any], body_fun: Callable[..., Any], init_val: Any) -> Any:
    while cond_fun(init_val):
        init_val = body_fun(init_val)
    return init_val


def _segment_sum(x: Any, ids: Any, num_segments: int) -> Any:
    total = np.zeros((num_segments, *x.shape[1:]))
    np.add.at(total, ids, x)
    return total


def _doubled(x: Any, shape: tuple[int, ...], method: str) -> Any:
    assert shape == (x.shape[0], 2 * x.shape[1], 2 * x.shape[2], x.shape[3])
    assert method == "nearest"
    return x.repeat(2, axis=1).repeat(2, axis=2)


def _windows(x: Any, window: Any, strides: Any, pad: str, edge: float) -> Any:
    """Views of windows over all dimensions of `x`: the places, then what is in each."""
    counts = [-(-n // s) for n, s in zip(x.shape, strides, strict=True)]
    table = zip(counts, strides, window, x.shape, strict=True)
    total = [max((c - 1) * s + w - n, 0) if pad == "SAME" else 0 for c, s, w, n in table]
    padded = np.pad(x, [(n // 2, n - n // 2) for n in total], constant_values=edge)
    views = np.lib.stride_tricks.sliding_window_view(padded, window)
    return views[tuple(slice(None, None, s) for s in strides)]


def _reduce_window(x: Any, init: float, fold: Any, window: Any, strides: Any, padding: str) -> Any:
    views = _windows(x, window, strides, padding, init)
    return fold.reduce(views.reshape(*views.shape[: x.ndim], -1), axis=-1)


def _conv(
    x: Any,
    w: Any,
    window_strides: Any,
    padding: str,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
) -> Any:
    if dimension_numbers:
        x, w = x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1)
    parts = []
    for n in range(feature_group_count):
        at, out = (size // feature_group_count for size in (x.shape[1], w.shape[0]))
        part, kernel = x[:, n * at : (n + 1) * at], w[n * out : (n + 1) * out]
        views = _windows(part, (1, 1, *w.shape[2:]), (1, 1, *window_strides), padding, 0.0)
        parts.append(np.einsum("bihwxykl,oikl->bohw", views, kernel))
    found = np.concatenate(parts, axis=1)
    return found.transpose(0, 2, 3, 1) if dimension_numbers else found


# ---- comparison


def host(tree: Any) -> Any:
    """A tree of arrays of ours with numpy's in the place of them, floats as f64."""

    def each(x: Any) -> Any:
        if not isinstance(x, bu.Array):
            return x
        found = np.asarray(x)
        return found.astype("f8") if found.dtype == "f4" else found

    return bu.tree.map(each, tree) if not isinstance(tree, bu.random.Key) else tree


def rounded(roundings: int) -> float:
    """The relative error of a chain of operations that round, where a sum of n terms counts n.

    It grows with the root of their number, as their errors have both signs; a factor of 4 is enough
    but for a chance below 1e-3 (N. Higham, T. Mary: A new approach to probabilistic rounding error
    analysis, 2019).
    """
    return 4 * math.sqrt(roundings) * EPS / 2


def near(found: Any, expected: Any, roundings: int) -> None:
    """Assert that leaves are f32, and off by so many roundings of the largest element at most."""
    leaves = zip(bu.tree.leaves(found), bu.tree.leaves(expected), strict=True)
    for ours, theirs in leaves:
        assert ours.shape == np.shape(theirs)
        if ours.dtype.is_integer or ours.dtype is bu.bool:
            assert np.array_equal(np.asarray(ours), theirs)
            continue
        assert ours.dtype is bu.float32
        finite = np.isfinite(theirs)
        assert np.array_equal(np.isfinite(np.asarray(ours)), finite)
        away = np.abs(np.asarray(ours) - theirs)[finite].max(initial=0)
        assert away <= rounded(roundings) * np.abs(theirs)[finite].max(initial=0)


def near_slope(
    gradient: Any, loss: Callable[[Any], Any], params: Any, roundings: int, seed: int = 0
) -> None:
    """Assert that a gradient along a random direction is what differences of `loss` say."""
    rng = np.random.default_rng(seed)
    at, given = host(params), host(gradient)
    along = bu.tree.map(lambda x: rng.normal(size=np.shape(x)), at)
    h = 1e-6
    ahead, behind = (bu.tree.map(lambda x, d: x + s * d, at, along) for s in (h, -h))  # noqa: B023
    expected = (loss(ahead) - loss(behind)) / (2 * h)
    terms = bu.tree.leaves(bu.tree.map(lambda g, d: np.sum(g * d), given, along))
    sizes = bu.tree.leaves(bu.tree.map(lambda g, d: np.sum(np.abs(g * d)), given, along))
    assert all(x.dtype is bu.float32 for x in bu.tree.leaves(gradient))
    assert abs(sum(terms) - expected) <= rounded(roundings) * sum(sizes)


def key(seed: int = 0) -> Any:
    return bu.random.PRNGKey(seed)


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype("f4")


# ---- the programs


def test_transformer(ours: Any, theirs: Any) -> None:
    """Sums of 32 products and 11 classes, three norms over 8, an attention over 6."""
    data = np.random.default_rng(0).integers(0, 11, (2, 7))
    x, y = bu.array(data[:, :-1]), bu.array(data[:, 1:])
    params = ours.gpt_init(key())
    state = ours.adam_init(params)
    for n in range(2):
        before = params
        params, state, loss = ours.gpt_step(params, state, x, y, key(n))

        def reference(p: Any) -> Any:
            return theirs.gpt_loss(p, data[:, :-1], data[:, 1:], key(n))  # noqa: B023

        near(loss, reference(host(before)), 128)
        if n == 0:  # the first mean of Adam is a tenth of the gradient
            near_slope(bu.tree.map(lambda m: m * 10, state["m"]), reference, before, 256)
    tokens, logits = ours.sample(params, key(3), [1, 2, 3], 6)
    assert len(tokens) == 7
    assert set(tokens) <= set(range(11))
    near(logits, theirs.gpt(host(params), np.array([tokens[:6]]))[:, -1], 128)


def test_adam(ours: Any) -> None:
    """The first step of Adam is the rate times the sign of the gradient."""
    params, gradient = {"w": bu.ones(3)}, {"w": bu.array([0.5, -2.0, 0.25])}
    moved, state = ours.adam(gradient, ours.adam_init(params), params)
    near(moved["w"], np.array([0.99, 1.01, 0.99]), 16)
    assert state["t"].item() == 1


def test_residual_network(ours: Any, theirs: Any) -> None:
    """Sums of 54 products in 6 convolutions, means of 32."""
    x, labels = normal(2, 8, 8, 3), np.array([1, 4])
    params, stats = ours.resnet_init(key())
    expected, (after, accuracy) = theirs.resnet_loss(host(params), host(stats), x, labels)
    velocity = bu.tree.map(bu.zeros_like, params)
    moved, new, velocity, loss, found = ours.resnet_step(params, stats, velocity, x, labels, 0.1)
    near((loss, new), (expected, after), 600)
    assert float(found) == accuracy

    def reference(p: Any) -> Any:
        return theirs.resnet_loss(p, host(stats), x, labels)[0]

    near_slope(velocity, reference, params, 2000)
    stem = host(params["stem"]) - 0.1 * host(velocity["stem"])
    near(moved["stem"], stem, 4)


def test_recurrent_network(ours: Any, theirs: Any) -> None:
    """Five cells, sums of 4 products and some ten functions in each."""
    xs, ys = normal(3, 5, 2), normal(3, seed=1)
    params = ours.lstm_init(key(), 2, 4)
    loss, gradient = bu.jit(bu.value_and_grad(ours.lstm_loss))(params, xs, ys)
    near(loss, theirs.lstm_loss(host(params), xs, ys), 128)
    near_slope(gradient, lambda p: theirs.lstm_loss(p, xs, ys), params, 256)


def test_variational_autoencoder(ours: Any, theirs: Any) -> None:
    """Sums of 8 products in 4 layers, 8 terms of an example."""
    x = (normal(4, 8) > 0).astype("f4")
    first, second, rest = bu.random.split(key(), 3)
    params = ours.vae_init(first, [(8, 6), (6, 2), (6, 2), (2, 6), (6, 8)])
    moved, loss = ours.vae_step(params, second, x)
    near(loss, -theirs.elbo(host(params), second, x), 64)
    _, later = ours.vae_step(moved, rest, x)
    near(later, -theirs.elbo(host(moved), rest, x), 64)
    # Of differences of weights near 0.5, a hundredth of gradients near 0.1, 500 roundings are lost.
    gradient = bu.tree.map(lambda before, after: (before - after) / 1e-2, params, moved)
    near_slope(gradient, lambda p: -theirs.elbo(p, second, x), params, 64 + 500)


def test_unet(ours: Any, theirs: Any) -> None:
    """Sums of 36 or 72 products in 7 convolutions on the longest way, norms over 128."""
    x, t = normal(1, 8, 8, 3), np.array([30])
    params = ours.unet_init(key())
    loss, gradient = bu.jit(bu.value_and_grad(ours.unet_loss))(params, key(1), x, t)

    def reference(p: Any) -> Any:
        return theirs.unet_loss(p, key(1), x, t)

    near(loss, reference(host(params)), 1024)
    near_slope(gradient, reference, params, 2048)


@pytest.mark.parametrize("dtype", [bu.bfloat16, bu.float16], ids=str)
def test_mixed_precision(ours: Any, theirs: Any, dtype: Any) -> None:
    """The loss is off by roundings to the narrow dtype: of 3 layers with their weights."""
    x, y = normal(4, 6), np.array([0, 2, 1, 1])
    sizes = [(6, 8), (8, 8), (8, 3)]
    params = [
        {"w": bu.random.normal(k, s) * np.sqrt(2 / s[0]), "b": bu.zeros(s[1])}
        for k, s in zip(bu.random.split(key(), 3), sizes, strict=True)
    ]
    scale, good, scales = bu.float32(2.0**20), bu.array(0), []
    for n in range(5):
        before = params
        params, scale, good, loss = ours.mixed_step(params, scale, good, x, y, dtype)
        expected = theirs.mixed_loss(host(before), x, y, 1.0, np.float64)[1]
        spread = np.abs(theirs.mixed_forward(host(before), x, np.float64)).max()
        narrow = float(bu.finfo(dtype).eps)
        assert abs(float(loss) - expected) <= 2 * 3 * 4 * narrow / 2 * spread, n
        assert loss.dtype is params[0]["w"].dtype is bu.float32
        scales.append(float(scale) / 2**20)
    if dtype is bu.bfloat16:
        assert scales == [1, 2, 2, 4, 4]
    else:  # a product of the scale and a gradient is beyond the largest f16
        assert scales[0] == 0.5


def test_pruning(ours: Any, theirs: Any) -> None:
    """The schedule, the masks, and steps that keep what is pruned out of the product."""
    x, y = normal(5, 4), normal(5, 6, seed=1)
    w = bu.array(normal(4, 6, seed=2))
    for step in range(8):
        mask = ours.mask_of(w, step)
        near(mask, theirs.mask_of(host(w), step), 1)
        loss = bu.jit(ours.pruned_loss)(w, step, x, y)
        near(loss, theirs.pruned_loss(host(w), step, x, y), 64)
        after, density = ours.pruned_step(w, step, x, y)
        assert float(density) == np.asarray(mask).mean()
        assert np.array_equal(
            np.asarray(after)[np.asarray(mask) == 0], np.asarray(w)[np.asarray(mask) == 0]
        )
        w = after
    assert float(density) == 0.25


def test_int8(ours: Any, theirs: Any) -> None:
    """Integers are the same, so that factors alone round; and 1 of 127 of what was not rounded."""
    x, w1, w2 = normal(3, 8), normal(8, 6, seed=1), normal(6, 4, seed=2)
    layers = [(*ours.quantize(bu.array(w), 0), bu.zeros(w.shape[1])) for w in (w1, w2)]
    found = ours.quantized_forward(layers, bu.array(x))
    near(found, theirs.quantized_forward(host(layers), x.astype("f8")), 64)
    exact = np.maximum(x @ w1, 0) @ w2
    assert np.abs(np.asarray(found) - exact).max() <= 2 * 2 / 127 * np.abs(exact).max()


def test_heat_and_waves(ours: Any, theirs: Any) -> None:
    """Five and eight steps of seven sums."""
    u = normal(8, 8).astype("f8")
    given = bu.array(u)
    near(ours.heat_roll(given, 5), theirs.heat_roll(given := host(given), 5), 5 * 8)
    expected = given.copy()
    for _ in range(5):
        inner = theirs.laplacian(expected)[1:-1, 1:-1]
        expected[1:-1, 1:-1] += 0.1 * inner
    near(ours.heat_slices(bu.array(given)), expected, 5 * 8)
    found = ours.wave(bu.array(given), bu.zeros_like(bu.array(given)), 1.0)
    near(found, theirs.wave(given, np.zeros_like(given), 1.0), 8 * 10)


def test_kalman_filter(ours: Any, theirs: Any) -> None:
    """Six steps, each with some 40 operations; the condition of S is below 8."""
    ys = np.cumsum(normal(6, 2), 0)
    params = {
        "A": 0.9 * bu.eye(3) + 0.05 * np.diag(np.ones(2), 1),
        "C": bu.array(normal(2, 3, seed=1)),
        "logq": bu.full(3, -2.0),
        "logr": bu.full((2,), np.log(0.5)),
    }
    found, gradient = bu.jit(bu.value_and_grad(ours.kalman, has_aux=True))(params, ys)
    near(found, theirs.kalman(host(params), ys), 6 * 40 * 8)
    near_slope(gradient, lambda p: theirs.kalman(p, ys)[0], params, 2 * 6 * 40 * 8)


def test_clusters(ours: Any, theirs: Any) -> None:
    """Means of at most 30 points of 2 coordinates, which move no point to another cluster."""
    x = normal(30, 2) + 4 * np.random.default_rng(1).integers(0, 3, (30, 1)).astype("f4")
    near(ours.kmeans(bu.array(x), 3, 4), theirs.kmeans(x.astype("f8"), 3, 4), 4 * 40)


def test_gaussian_process(ours: Any, theirs: Any) -> None:
    """Solutions of 8 equations of a condition below 100."""
    x = np.sort(normal(8, 1), 0)
    y = np.sin(3 * x[:, 0])
    params = {"amp": 0.0, "scale": -0.5, "noise": -2.0}
    value, gradient = bu.jit(bu.value_and_grad(ours.gp_loss))(params, x, y)
    near(value, theirs.gp_loss(params, x, y), 8 * 100)
    near_slope(gradient, lambda p: theirs.gp_loss(p, x, y), params, 2 * 8 * 100)
    new = np.linspace(-2, 2, 5)[:, None]
    found = bu.jit(ours.gp_predict)(params, x, y, new)
    near(found, theirs.gp_predict(params, x, y, new.astype("f4").astype("f8")), 8 * 100)


def test_bodies(ours: Any, theirs: Any) -> None:
    """Three steps with two sums of 5 forces of ten operations."""
    x, v, m = normal(5, 3), 0.1 * normal(5, 3, seed=1), np.ones(5, "f4") / 5
    found = ours.bodies(bu.array(x), bu.array(v), bu.array(m))
    near(found, theirs.bodies(x.astype("f8"), v.astype("f8"), m.astype("f8")), 3 * 2 * 50)


def test_differential_equation(ours: Any, theirs: Any) -> None:
    """As many steps, each of seven stages of ten operations, as in f64."""
    found = ours.odeint(ours.van_der_pol, bu.array([2.0, 0.0]), 0.0, 1.0)
    t, y, _, count = theirs.odeint(theirs.van_der_pol, np.array([2.0, 0.0]), 0.0, 1.0)
    assert int(found[3]) == count
    near(found[:2], (t, y), 70 * count)


def test_hamiltonian_chain(ours: Any, theirs: Any) -> None:
    """One path against the reference, and moments of a chain within five standard errors."""
    x, p = normal(3), normal(3, seed=1)
    found = bu.jit(ours.hamiltonian, static_argnums=2)(x, p, 0.25)
    near(found, theirs.hamiltonian(x.astype("f8"), p.astype("f8"), 0.25), 5 * 8)
    n = 800
    xs, accepted = ours.hmc(key(), bu.zeros(3), n)
    assert xs.dtype is bu.float32
    assert 0.8 < float(accepted.mean()) <= 1
    wide = 5 / math.sqrt(n / 4)  # a draw in four counts as independent
    deviations = np.linspace(0.5, 1.5, 3)
    assert np.all(np.abs(np.asarray(xs.mean(axis=0))) <= wide * deviations)
    assert np.all(np.abs(np.asarray(xs.std(0, ddof=1)) / deviations - 1) <= wide)


def test_spectra(ours: Any, theirs: Any) -> None:
    """Squares of sums of 16 products with cosines of two roundings, and sums of 9 of them."""
    x = np.sin(0.02 * np.arange(64) ** 2).astype("f4")
    near(ours.spectrogram(x), theirs.spectrogram(x.astype("f8")), 128)


def test_page_rank(ours: Any, theirs: Any) -> None:
    """Sums of 20 ranks, some ten times, each of which shrinks errors by 0.85."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 15, 40), rng.integers(0, 20, 40)
    found = ours.pagerank(bu.array(src), bu.array(dst), 20)
    ranks, _, count = theirs.pagerank(src, dst, 20)
    assert int(found[2]) == count
    near(found[0], ranks, int(30 / (1 - 0.85)))
    assert float(bu.sum(found[0])) == pytest.approx(1, abs=20 * EPS)


def test_images(ours: Any, theirs: Any) -> None:
    """Sums of 25 products of weights of 30 roundings, and of 9 more of them."""
    image = np.random.default_rng(0).random((2, 7, 6)).astype("f4")
    near(ours.image_filters(bu.array(image)), theirs.image_filters(image.astype("f8")), 160)


def test_beams(ours: Any) -> None:
    """Against a search with lists, in f64; sums of 4 products in 5 steps."""
    v, k, steps, width = 6, 3, 5, 4
    emb, wh, wo = normal(v, width), 0.5 * normal(width, width, seed=1), normal(width, v, seed=2)
    tokens, scores, history = ours.beam_search(*map(bu.array, (emb, wh, wo)), k, steps)
    beams = [((), 0.0, np.zeros(width))]
    best = []
    for _ in range(steps):
        grown = []
        for words, score, state in beams:
            if 1 in words:
                grown.append(((*words, 1), score, state))
                continue
            state = np.tanh(emb[words[-1] if words else 0].astype("f8") + state @ wh)  # noqa: PLW2901
            logp = state @ wo - np.logaddexp.reduce(state @ wo)
            grown += [((*words, n), score + logp[n], state) for n in range(v)]
        beams = sorted(grown, key=lambda beam: -beam[1])[:k]
        best.append([score for _, score, _ in beams])
    assert tokens.dtype is bu.int32
    assert tokens.tolist() == [list(words) for words, _, _ in beams]
    near((scores, history), (np.array(best[-1]), np.array(best)), steps * 24)


def test_logistic_regression(ours: Any, theirs: Any) -> None:
    """A step against slopes, then accuracy on three clusters, all from arrays of numpy."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 48)
    x = (4 * rng.normal(size=(3, 4))[labels] + rng.normal(size=(48, 4))).astype("f4")
    y = np.eye(3)[labels]
    params = [bu.array(normal(4, 3)), bu.zeros(3)]
    gradient = bu.grad(ours.logistic_loss)(params, x[:16], y[:16])
    near_slope(gradient, lambda p: theirs.logistic_loss(p, x[:16], y[:16]), params, 128)
    for _ in range(2):
        for start in range(0, 48, 16):
            params = ours.logistic_step(params, x[start : start + 16], y[start : start + 16])
    assert params[0].dtype is bu.float32
    score = ours.accuracy(params, x, y)
    assert float(score) == pytest.approx(theirs.accuracy(host(params), x, y), abs=48 * EPS)
    assert f"{score:.3f}" == f"{float(score):.3f}"

"""The training steps of the examples and the programs of the benchmarks, as graphs.

They are traced anew each time, so that what the front layer makes of a function is compared too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import bringup as bu
from bringup.graph import Graph

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
f32, i32 = bu.float32, bu.int32


def graphs() -> Iterator[tuple[str, Graph]]:
    """Names and graphs."""
    sys.path.insert(0, str(EXAMPLES))
    for make in (_networks, _pictures, _sequences, _kernels):
        for name, fn, arguments in make():
            yield f"models/{name}", bu.trace(fn, *arguments)


def _step(loss: Callable[..., Any], optimizer: bu.optim.Optimizer) -> Callable[..., Any]:
    def step(params: Any, state: Any, *data: Any) -> Any:
        value, slopes = bu.value_and_grad(loss)(params, *data)
        return (*optimizer.update(slopes, state, params), value)

    return step


def _networks() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    import diffusion
    import lenet
    import lstm
    import regression
    import vae

    key, picture, label = bu.random.key(0), f32[32, 1, 8, 8], i32[32]
    rate = bu.optim.cosine_schedule(0.1, 100, warmup=10)
    for name, loss, params, data in (
        ("lenet", lenet.loss, lenet.init(), (picture, label)),
        ("lstm", lstm.loss, lstm.init(), (f32[32, 8, 8], label)),
        ("vae", vae.loss, vae.init(key), (f32[32, 64], key)),
        ("diffusion", diffusion.loss, diffusion.init(key, 16), (picture, label, key)),
        ("regression", regression.loss, regression.init(key), (f32[32, 32], f32[32, 1], key)),
    ):
        optimizer = bu.optim.adam(rate)
        yield f"{name}/step", _step(loss, optimizer), (params, optimizer.init(params), *data)


def _pictures() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    import mobilenet
    import resnet
    import vision
    import vit

    key = bu.random.key(0)
    networks = {
        "resnet": (resnet.scores, resnet.init(key, 8, [1, 2], 4), f32[2, 3, 32, 32]),
        "resnet-again": (
            partial(resnet.scores, checkpoint=True),
            resnet.init(key, 8, [1, 2], 4),
            f32[2, 3, 32, 32],
        ),
        "mobilenet": (mobilenet.scores, mobilenet.init(key), f32[8, 1, 8, 8]),
        "vit": (vit.network, vit.init(key), f32[8, 1, 8, 8]),
    }
    for name, (scores, params, x) in networks.items():
        stats = {} if name == "vit" else vision.init_stats(params)
        optimizer = bu.optim.sgd(0.1, momentum=0.9)
        step = vision.trainer(scores, optimizer).__wrapped__
        yield f"{name}/step", step, (params, stats, optimizer.init(params), x, i32[x.shape[0]])
        yield f"{name}/scores", partial(scores, training=False), (params, stats, x)


def _sequences() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    import transformer

    params = transformer.init(bu.random.key(0), 32)
    optimizer = bu.optim.adamw(1e-3)
    step = _step(transformer.loss, optimizer)
    yield "transformer/step", step, (params, optimizer.init(params), i32[4, 33])
    cache = transformer.empty_cache()
    yield "transformer/follow", transformer.follow, (params, cache, i32[()], i32[()])


def _softmax(x: bu.Array) -> bu.Array:
    return bu.nn.softmax(x, axis=-1)


def _layer(x: bu.Array, w: bu.Array, b: bu.Array) -> bu.Array:
    return bu.nn.relu(x @ w + b)


def _stencil(x: bu.Array) -> bu.Array:
    around = (bu.roll(x, by, axis=axis) for by in (1, -1) for axis in (0, 1))
    return sum(around, -4 * x)


def _kernels() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    vector, square = f32[1_000_000], f32[512, 512]
    yield "sum", lambda x, y, z: bu.sum(x + y * z), (vector, vector, vector)
    yield "chain", lambda x, y: bu.tanh(x * y + 1) * bu.exp(-x * x), (vector, vector)
    yield "softmax", _softmax, (f32[4096, 1024],)
    yield "softmax-gradient", bu.grad(lambda x: bu.sum(_softmax(x) ** 2)), (f32[512, 256],)
    yield "layer-norm", bu.nn.layer_norm, (f32[512, 256], f32[256], f32[256])
    yield "layer", _layer, (f32[512, 784], f32[784, 512], f32[512])
    yield "layer-bf16", _layer, (bu.bfloat16[64, 128], bu.bfloat16[128, 96], bu.bfloat16[96])
    yield "products", lambda x, y, z: (x @ y).T @ z, (square, square, square)
    yield "transpose", lambda x: x.T + 1, (square,)
    yield "columns", lambda x: bu.sum(x, axis=0), (square,)
    yield "largest", lambda x: bu.argmax(x, axis=1), (square,)
    yield "convolution", partial(bu.nn.conv, padding=1), (f32[8, 64, 28, 28], f32[64, 64, 3, 3])
    yield "pool", lambda x: bu.nn.max_pool(x, 2), (f32[8, 16, 28, 28],)
    yield "attention", partial(bu.nn.attention, causal=True), (f32[2, 4, 128, 64],) * 3
    yield "stencil", _stencil, (square,)
    yield "sort", bu.sort, (f32[64, 1000],)
    yield "running-sums", lambda x: bu.cumulative_sum(x, axis=1), (square,)
    yield "integers", lambda x, y: bu.matmul(x, y, dtype=i32), (bu.int8[64, 128], bu.int8[128, 96])
    yield "solve", bu.linalg.solve, (f32[24, 24], f32[24, 3])
    yield "spectrum", bu.fft.fft, (bu.complex64[8, 60],)
    yield "normal", lambda key: bu.random.normal(key, (1000,), dtype=f32), (bu.random.key(0),)
    yield "scatter", lambda x, i, y: x.at[i].add(y), (f32[100], i32[500], f32[500])
    yield "gather", lambda x, i: bu.take(x, i, axis=0), (f32[1000, 32], i32[64])
    yield "loop", lambda x: bu.fori_loop(0, 10, lambda _, y: y * 0.5 + x, x), (f32[100],)

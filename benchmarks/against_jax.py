"""Time programs against jax in one process, calls of the two interleaved.

    pip install jax && python benchmarks/against_jax.py [NAME ...]

A ratio below 1 means that bringup is faster.  Both run on all CPUs given to the process, on arrays
that are on the device already; each row is the median over rounds, after warm-up.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from timing import repeats, seconds

import bringup as bu

Program = Callable[..., Any]
ROUNDS = 40


def _normal(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def chain(xp: Any) -> Program:
    return lambda x, y, z: xp.tanh(x * y + z) * xp.exp(-x * x) + y


def softmax(xp: Any) -> Program:
    def run(x: Any) -> Any:
        e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
        return e / xp.sum(e, axis=-1, keepdims=True)

    return run


def layer_norm(xp: Any) -> Program:
    def run(x: Any, scale: Any, shift: Any) -> Any:
        centred = x - xp.mean(x, axis=-1, keepdims=True)
        variance = xp.mean(centred * centred, axis=-1, keepdims=True)
        return centred / xp.sqrt(variance + 1e-5) * scale + shift

    return run


def convolution(layout: str) -> Callable[[Any], Program]:
    """A layer of 3 × 3 windows with bias and activation."""
    kernel = "OIHW" if layout == "NCHW" else "HWIO"

    def make(xp: Any) -> Program:
        if xp is bu:
            return lambda x, w, b: bu.nn.relu(bu.nn.conv(x, w, padding="same", layout=layout) + b)
        numbers = (layout, kernel, layout)
        return lambda x, w, b: jax.nn.relu(
            jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers) + b
        )

    return make


def attention(xp: Any) -> Program:
    if xp is bu:
        return bu.nn.attention

    def run(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bhld,bhmd->bhlm", q, k) / q.shape[-1] ** 0.5
        return jax.nn.softmax(scores) @ v

    return run


def block(xp: Any) -> Program:
    """A transformer block with four heads and a network of four times the width."""
    normed, attend = layer_norm(xp), attention(xp)

    def run(x: Any, wide: Any, out: Any, up: Any, down: Any) -> Any:
        length, width = x.shape[1:]

        def heads(y: Any) -> Any:
            return xp.permute_dims(xp.reshape(y, (-1, length, 4, width // 4)), (0, 2, 1, 3))

        y = normed(x, 1.0, 0.0) @ wide
        q, k, v = (heads(y[..., n * width : (n + 1) * width]) for n in range(3))
        met = xp.reshape(xp.permute_dims(attend(q, k, v), (0, 2, 1, 3)), x.shape)
        x = x + met @ out
        return x + xp.maximum(normed(x, 1.0, 0.0) @ up, 0) @ down

    return run


def largest(xp: Any) -> Program:
    if xp is bu:
        return lambda x: bu.nn.max_pool(x, 2)
    window = (1, 1, 2, 2)
    return lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")


def running_sum(xp: Any) -> Program:
    name = "cumulative_sum" if xp is bu else "cumsum"
    return lambda x: getattr(xp, name)(x, axis=1)


def _vectors(n: int) -> list[np.ndarray[Any, Any]]:
    return [_normal(n)] * 3


CASES: dict[str, tuple[Callable[[Any], Program], list[np.ndarray[Any, Any]]]] = {
    "sum(x + y*z), 1e6": (lambda xp: lambda x, y, z: xp.sum(x + y * z), _vectors(10**6)),
    "sum(x + y*z), 2e7": (lambda xp: lambda x, y, z: xp.sum(x + y * z), _vectors(2 * 10**7)),
    "chain, 1e4": (chain, _vectors(10**4)),
    "chain, 1e6": (chain, _vectors(10**6)),
    "chain, 2e7": (chain, _vectors(2 * 10**7)),
    "softmax 4096x1024": (softmax, [_normal(4096, 1024)]),
    "layer norm 4096x1024": (layer_norm, [_normal(4096, 1024), _normal(1024), _normal(1024)]),
    "sum of rows 4096x4096": (lambda xp: lambda x: xp.sum(x, axis=1), [_normal(4096, 4096)]),
    "sum of columns 4096x4096": (lambda xp: lambda x: xp.sum(x, axis=0), [_normal(4096, 4096)]),
    "transpose + 1, 4096x4096": (lambda xp: lambda x: x.T + 1, [_normal(4096, 4096)]),
    "relu(x@w + b) 512x784x512": (
        lambda xp: lambda x, w, b: xp.maximum(x @ w + b, 0),
        [_normal(512, 784), _normal(784, 512), _normal(512)],
    ),
    "x@w 2048": (lambda xp: lambda x, w: x @ w, [_normal(2048, 2048)] * 2),
    "x@w.T 2048": (lambda xp: lambda x, w: x @ w.T, [_normal(2048, 2048)] * 2),
    "x.T@w.T 1024": (lambda xp: lambda x, w: x.T @ w.T, [_normal(1024, 1024)] * 2),
    "x@w 64x4096x4096": (
        lambda xp: lambda x, w: x @ w,
        [_normal(64, 4096), _normal(4096, 4096)],
    ),
    "x@w.T, 32 of 128x64x128": (
        lambda xp: lambda x, w: x @ w.mT,
        [_normal(32, 128, 64), _normal(32, 128, 64)],
    ),
    "transformer block 2x128x256": (
        block,
        [
            _normal(2, 128, 256),
            *(_normal(n, m) / 16 for n, m in ((256, 768), (256, 256), (256, 1024), (1024, 256))),
        ],
    ),
    "convolution 64-64, 8x56x56": (
        convolution("NCHW"),
        [_normal(8, 64, 56, 56), _normal(64, 64, 3, 3), _normal(64, 1, 1)],
    ),
    "the same, features last": (
        convolution("NHWC"),
        [_normal(8, 56, 56, 64), _normal(3, 3, 64, 64), _normal(64)],
    ),
    "largest of 2x2, 8x64x56x56": (largest, [_normal(8, 64, 56, 56)]),
    "attention 8 heads, 1024x64": (attention, [_normal(1, 8, 1024, 64)] * 3),
    "sort rows, 1024x4096": (lambda xp: xp.sort, [_normal(1024, 4096)]),
    "argsort rows, 1024x4096": (lambda xp: xp.argsort, [_normal(1024, 4096)]),
    "sort 1e6": (lambda xp: xp.sort, [_normal(10**6)]),
    "running sums, 1024x4096": (running_sum, [_normal(1024, 4096)]),
    "x + 1, 4": (lambda xp: lambda x: x + 1, [_normal(4)]),
}


def compare(name: str) -> str:
    """One row of the table: both medians in microseconds, and their ratio."""
    make, data = CASES[name]
    ours, theirs = bu.jit(make(bu)), jax.jit(make(jnp))
    mine, yours = [bu.asarray(x) for x in data], [jnp.asarray(x) for x in data]
    np.testing.assert_allclose(np.asarray(ours(*mine)), theirs(*yours), rtol=2e-3, atol=2e-3)

    def other() -> None:
        theirs(*yours).block_until_ready()

    repeat = repeats(other, 2e-3)
    rounds = max(8, min(ROUNDS, int(2 / (seconds(other, repeat) * repeat))))
    pairs = [(seconds(lambda: ours(*mine), repeat), seconds(other, repeat)) for _ in range(rounds)]
    a, b = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(x / y for x, y in pairs)
    return f"{name:28} {a * 1e6:12.1f} {b * 1e6:12.1f} {ratio:8.2f}"


def main(names: list[str]) -> None:
    """Print the table."""
    print(f"{'':28} {'bringup µs':>12} {'jax µs':>12} {'ratio':>8}")
    for name in names or CASES:
        print(compare(name), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

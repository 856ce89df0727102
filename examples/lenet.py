"""Handwritten digits: LeNet, trained on any device.

    python examples/lenet.py [--device NAME] [--steps N]

Two convolutions with pooling, then two dense layers, as LeCun's network of 1998, on the pictures of
8 × 8 points that come with scikit-learn. One program is a whole training step: forward, backward
and an update with momentum, the new parameters in the memory of the old ones.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import bringup as bu

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ModuleNotFoundError:
    raise SystemExit('the digits are missing: pip install "bringup[examples]"') from None

Params = dict[str, bu.Array]
Data = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]

RATE, MOMENTUM = 0.05, 0.9

SHAPES = {
    "c1": (16, 1, 3, 3),
    "c2": (32, 16, 3, 3),
    "d1": (32 * 2 * 2, 64),
    "d2": (64, 10),
}


def init() -> Params:
    """Weights, and one bias per feature, on the default device."""
    rng = np.random.default_rng(0)
    params: Params = {}
    for name, shape in SHAPES.items():
        inputs = math.prod(shape[1:]) if len(shape) == 4 else shape[0]
        outputs = (shape[0], 1, 1) if len(shape) == 4 else shape[1]
        weights = rng.normal(0, np.sqrt(2 / inputs), shape)
        params[name] = bu.asarray(weights.astype(np.float32))
        params[name + "_bias"] = bu.zeros(outputs, dtype=bu.float32)
    return params


def scores(p: Params, x: bu.Array) -> bu.Array:
    """One row of ten scores per picture."""
    x = bu.nn.relu(bu.nn.conv(x, p["c1"], padding="same") + p["c1_bias"])
    x = bu.nn.max_pool(x, 2)
    x = bu.nn.relu(bu.nn.conv(x, p["c2"], padding="same") + p["c2_bias"])
    x = bu.nn.max_pool(x, 2)
    x = bu.reshape(x, (x.shape[0], -1))
    x = bu.nn.relu(x @ p["d1"] + p["d1_bias"])
    return x @ p["d2"] + p["d2_bias"]


def loss(params: Params, x: bu.Array, label: bu.Array) -> bu.Array:
    """The mean cross-entropy."""
    return bu.mean(bu.nn.cross_entropy(scores(params, x), label))


@partial(bu.jit, donate_argnums=(0, 1))
def step(
    params: Params, speed: Params, x: bu.Array, label: bu.Array, rate: float
) -> tuple[Params, Params, bu.Array]:
    """One step of gradient descent with momentum; `params` and `speed` are gone after it."""
    value, gradients = bu.value_and_grad(loss)(params, x, label)
    speed = bu.tree.tree_map(lambda v, g: MOMENTUM * v - rate * g, speed, gradients)
    return bu.tree.tree_map(lambda p, v: p + v, params, speed), speed, value


@bu.jit
def accuracy(params: Params, x: bu.Array, label: bu.Array) -> bu.Array:
    """The share of pictures whose highest score is that of their digit."""
    return bu.mean(bu.astype(bu.argmax(scores(params, x), axis=1) == label, bu.float32))


def shifted(x: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Each picture moved by at most a point to every side."""
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    row, column = (rng.integers(0, 3, (len(x), 1)) + np.arange(8) for _ in range(2))
    return wide[np.arange(len(x))[:, None, None], 0, row[:, :, None], column[:, None]][:, None]


def batches(data: Data, size: int, steps: int) -> Iterator[Data]:
    """Batches of one size, epoch after epoch, shuffled and shifted anew in each."""
    x, label = data
    rng = np.random.default_rng(1)
    made = 0
    while True:
        order = rng.permutation(len(x))
        for start in range(0, len(x) - size + 1, size):
            if made == steps:
                return
            made += 1
            chosen = order[start : start + size]
            yield shifted(x[chosen], rng), label[chosen]


def train(steps: int, size: int, training: Data, test: Data) -> None:
    """Train, and print how well and how fast; the rate falls to nothing along half a cosine."""
    params, rate = init(), RATE * size / 64
    speed = bu.tree.tree_map(bu.zeros_like, params)
    first = last = None
    begin = time.perf_counter()
    for i, batch in enumerate(batches(training, size, steps)):
        falling = rate * (1 + math.cos(math.pi * i / steps)) / 2
        params, speed, last = step(params, speed, *batch, falling)
        if first is None:
            first = float(last)  # traced and compiled here
            begin = time.perf_counter()
    assert first is not None
    assert last is not None
    final = float(last)  # waits for the device
    seconds = time.perf_counter() - begin
    kernels = step.lower(params, speed, *next(batches(training, size, 1)), rate).cost().kernels
    print(
        f"LeNet   loss {first:.3f} -> {final:.7f}   test accuracy"
        f" {float(accuracy(params, *test)):6.1%}   {kernels} kernels a step,"
        f" {seconds / max(steps - 1, 1) * 1e6:.0f} µs"
    )


def main() -> None:
    """Read the options, split the pictures, train."""
    parser = argparse.ArgumentParser(description="Train LeNet on handwritten digits.")
    parser.add_argument("--device", help="as `bringup devices` lists it; by default the first")
    parser.add_argument("--steps", type=int, default=1500, help="of training, at least 1")
    parser.add_argument("--batch", type=int, default=64, help="pictures in one step")
    options = parser.parse_args()

    digits = load_digits()
    pictures = (digits.images / 16).astype(np.float32)[:, None]
    x_train, x_test, y_train, y_test = train_test_split(
        pictures,
        digits.target.astype(np.int32),
        test_size=0.25,
        random_state=0,
        stratify=digits.target,
    )
    with bu.device(options.device) as device:
        print(f"{len(x_train)} digits to learn, {len(x_test)} to test, on {device}")
        train(max(options.steps, 1), options.batch, (x_train, y_train), (x_test, y_test))


if __name__ == "__main__":
    main()

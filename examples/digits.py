"""Handwritten digits: softmax regression, then a small network, trained on any device.

    python examples/digits.py [--device NAME] [--steps N]

The model is plain Python over containers of arrays. `value_and_grad` differentiates it, and `jit`
makes one program of a whole training step: forward, backward and update, the new parameters in the
memory of the old ones.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

import bringup as bu

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ModuleNotFoundError:
    raise SystemExit('the digits are missing: pip install "bringup[examples]"') from None

Params = list[dict[str, bu.Array]]
Data = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]

BATCH = 128


def init(sizes: list[int]) -> Params:
    """Weights and biases of dense layers with these numbers of units, on the default device."""
    rng = np.random.default_rng(0)
    return [
        {
            "w": bu.asarray(rng.normal(0, np.sqrt(2 / n), (n, m)).astype(np.float32)),
            "b": bu.zeros(m, dtype=bu.float32),
        }
        for n, m in pairwise(sizes)
    ]


def scores(params: Params, x: bu.Array) -> bu.Array:
    """One row of ten scores per picture."""
    *hidden, last = params
    for layer in hidden:
        x = bu.nn.relu(x @ layer["w"] + layer["b"])
    return x @ last["w"] + last["b"]


def loss(params: Params, x: bu.Array, label: bu.Array) -> bu.Array:
    """The mean cross-entropy."""
    one_hot = bu.nn.one_hot(label, 10, dtype=bu.float32)
    return -bu.mean(bu.sum(one_hot * bu.nn.log_softmax(scores(params, x), axis=1), axis=1))


@partial(bu.jit, donate_argnums=0)
def step(params: Params, x: bu.Array, label: bu.Array, rate: float) -> tuple[Params, bu.Array]:
    """One step of gradient descent; `params` are gone after it."""
    value, gradients = bu.value_and_grad(loss)(params, x, label)
    return bu.tree.tree_map(lambda p, g: p - rate * g, params, gradients), value


@bu.jit
def accuracy(params: Params, x: bu.Array, label: bu.Array) -> bu.Array:
    """The share of pictures whose highest score is that of their digit."""
    return bu.mean(bu.astype(bu.argmax(scores(params, x), axis=1) == label, bu.float32))


def batches(x: np.ndarray[Any, Any], label: np.ndarray[Any, Any], steps: int) -> Iterator[Data]:
    """Batches of one size, epoch after epoch, shuffled anew in each."""
    rng = np.random.default_rng(1)
    made = 0
    while True:
        order = rng.permutation(len(x))
        for start in range(0, len(x) - BATCH + 1, BATCH):
            if made == steps:
                return
            made += 1
            chosen = order[start : start + BATCH]
            yield x[chosen], label[chosen]


def train(name: str, sizes: list[int], rate: float, steps: int, data: tuple[Data, Data]) -> None:
    """Train one model and print how well and how fast."""
    training, test = data
    params = init(sizes)
    kernels = step.lower(params, *next(batches(*training, 1)), rate).cost().kernels
    feed = batches(*training, steps)
    params, first = step(params, *next(feed), rate)  # traced and compiled here
    last = first
    begin = time.perf_counter()
    for batch in feed:
        params, last = step(params, *batch, rate)
    final = float(last)  # waits for the device
    seconds = time.perf_counter() - begin
    print(
        f"{name:20} loss {float(first):.3f} -> {final:.7f}   test accuracy"
        f" {float(accuracy(params, *test)):6.1%}   {kernels} kernels a step,"
        f" {seconds / max(steps - 1, 1) * 1e6:.0f} µs"
    )


def main() -> None:
    """Read the options, split the pictures, train both models."""
    parser = argparse.ArgumentParser(description="Train on handwritten digits.")
    parser.add_argument("--device", help="as `bringup devices` lists it; by default the first")
    parser.add_argument("--steps", type=int, default=1000, help="of training, for each model")
    options = parser.parse_args()

    digits = load_digits()
    x = (digits.data / 16).astype(np.float32)
    x_train, x_test, y_train, y_test = train_test_split(
        x, digits.target.astype(np.int32), test_size=0.25, random_state=0, stratify=digits.target
    )
    data = (x_train, y_train), (x_test, y_test)
    with bu.device(options.device) as device:
        print(f"{len(x_train)} digits to learn, {len(x_test)} to test, on {device}")
        train("softmax regression", [64, 10], 0.5, options.steps, data)
        train("64-64-10 network", [64, 64, 10], 0.2, options.steps, data)


if __name__ == "__main__":
    main()

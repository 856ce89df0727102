"""The lower halves of handwritten digits from their upper halves: a network against a line.

    python examples/regression.py [--device NAME] [--steps N]

Ridge regression is the best linear function of the 32 upper pixels; the network is trained by Adam
to do better. Keys of `bringup.random` make its first weights, the batches and the dropout, so every
run does the same on every device. One step, drawing its batch included, is one program.
"""

from __future__ import annotations

import argparse
import time
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
Host = np.ndarray[Any, Any]

SIZES = [32, 128, 128, 32]
BATCH = 128
DROPOUT = 0.1
RATE = 3e-3


def init(key: bu.random.Key) -> Params:
    """Weights and biases of dense layers."""
    keys = bu.random.split(key, len(SIZES) - 1)
    return [
        {"w": bu.nn.init.he_normal(k, (n, m), dtype=bu.float32), "b": bu.zeros(m, dtype=bu.float32)}
        for k, (n, m) in zip(keys, pairwise(SIZES), strict=True)
    ]


def predict(params: Params, x: bu.Array, key: bu.random.Key | None = None) -> bu.Array:
    """The lower pixels; with a key, units are dropped as in training."""
    *hidden, last = params
    for number, layer in enumerate(hidden):
        x = bu.nn.relu(x @ layer["w"] + layer["b"])
        if key is not None:
            x = bu.nn.dropout(x, bu.random.fold_in(key, number), DROPOUT)
    return x @ last["w"] + last["b"]


def loss(params: Params, x: bu.Array, y: bu.Array, key: bu.random.Key) -> bu.Array:
    """The mean squared error."""
    return bu.mean(bu.square(predict(params, x, key) - y))


def train(x: Host, y: Host, steps: int) -> Params:
    """The trained network; prints how long a step took."""
    first, rest = bu.random.split(bu.random.key(0))
    optimizer = bu.optim.adam(bu.optim.cosine_schedule(RATE, steps))

    @partial(bu.jit, donate_argnums=(0, 1))
    def step(params: Params, state: Any, x: bu.Array, y: bu.Array, key: bu.random.Key) -> Any:
        choosing, dropping = bu.random.split(bu.random.fold_in(key, state.step))
        chosen = bu.random.randint(choosing, BATCH, 0, len(x), dtype=bu.int32)
        batch = (bu.take(x, chosen, axis=0), bu.take(y, chosen, axis=0))
        value, gradients = bu.value_and_grad(loss)(params, *batch, dropping)
        return *optimizer.update(gradients, state, params), value

    params = init(first)
    state = optimizer.init(params)
    data = bu.asarray(x), bu.asarray(y)
    kernels = step.lower(params, state, *data, rest).cost().kernels
    params, state, value = step(params, state, *data, rest)  # traced and compiled here
    print(f"step 1: loss {float(value):.6f}")
    begin = time.perf_counter()
    for _ in range(steps - 1):
        params, state, value = step(params, state, *data, rest)
    final = float(value)  # waits for the device
    each = (time.perf_counter() - begin) / max(steps - 1, 1)
    print(f"step {steps}: loss {final:.6f}, {kernels} kernels a step, {each * 1e6:.0f} µs")
    return params


def ridge(x: Host, y: Host, asked: Host, strength: float = 1.0) -> Host:
    """The best linear function, its weights held small, in f64."""
    wide = np.c_[x, np.ones(len(x))].astype(np.float64)
    held = np.diag([strength] * x.shape[1] + [0.0])
    weights = np.linalg.solve(wide.T @ wide + held, wide.T @ y)
    return np.asarray(np.c_[asked, np.ones(len(asked))] @ weights)


def r_squared(predicted: Host, y: Host) -> float:
    """The share of the variance of all pixels that is explained."""
    return 1 - float(((predicted - y) ** 2).sum() / ((y - y.mean(axis=0)) ** 2).sum())


def main() -> None:
    """Read the options, split the pictures, fit both."""
    parser = argparse.ArgumentParser(description="Complete handwritten digits.")
    parser.add_argument("--device", help="as `bringup devices` lists it; by default the first")
    parser.add_argument("--steps", type=int, default=2000, help="of training")
    options = parser.parse_args()

    pictures = (load_digits().data / 16).astype(np.float32)
    training, test = train_test_split(pictures, test_size=0.25, random_state=0)
    (x, y), (asked, wanted) = (np.split(half, 2, axis=1) for half in (training, test))
    with bu.device(options.device) as device:
        print(f"{len(x)} digits to learn, {len(asked)} to test, on {device}")
        params = train(x, y, options.steps)
        network = np.asarray(bu.jit(predict)(params, asked))
    line = ridge(x, y, asked)
    print(f"held-out R²: ridge regression {r_squared(line, wanted):.3f}", end=", ")
    print(f"network {r_squared(network, wanted):.3f}")


if __name__ == "__main__":
    main()

"""The lower halves of handwritten digits from their upper halves: a network against a line.

    python examples/regression.py [--device NAME] [--steps N] [--plot FILE]

Ridge regression is the best linear function of the 32 upper pixels; the network is trained by Adam
to do better. Keys of `bringup.random` make its first weights, the batches and the dropout, so every
run does the same on every device. One step, drawing its batch included, is one program.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise, repeat
from typing import Any

import numpy as np
from common import Host, Training, digits, parser, plot, trained

import bringup as bu

Params = list[dict[str, bu.Array]]

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


def train(params: Params, training: Training, x: Host, y: Host, key: bu.random.Key) -> Params:
    """The network after a training."""
    optimizer = bu.optim.adam(bu.optim.cosine_schedule(RATE, training.steps))

    @partial(bu.jit, donate_argnums=(0, 1))
    def step(params: Params, state: Any, x: bu.Array, y: bu.Array, key: bu.random.Key) -> Any:
        choosing, dropping = bu.random.split(bu.random.fold_in(key, state.step))
        chosen = bu.random.randint(choosing, BATCH, 0, len(x), dtype=bu.int32)
        batch = (bu.take(x, chosen, axis=0), bu.take(y, chosen, axis=0))
        value, gradients = bu.value_and_grad(loss)(params, *batch, dropping)
        return *optimizer.update(gradients, state, params), value

    batch = bu.asarray(x), bu.asarray(y), key
    params, _ = training.run(repeat(batch, training.steps), step, params, optimizer.init(params))
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
    """Read the options, fit both."""
    options = parser("Complete handwritten digits.", steps=2000).parse_args()
    pictures = (part.reshape(len(part), -1) for part, _ in digits())
    (x, y), (asked, wanted) = (np.split(half, 2, axis=1) for half in pictures)
    training = Training(options.steps)
    with bu.device(options.device) as device:
        print(f"{len(x)} digits to learn, {len(asked)} to test, on {device}")
        first, rest = bu.random.split(bu.random.key(0))
        params = trained(options, init(first), lambda p: train(p, training, x, y, rest))
        network = np.asarray(bu.jit(predict)(params, bu.asarray(asked)))
    line = ridge(x, y, asked)
    print(f"network: {training.said()}")
    print(f"held-out R²: ridge regression {r_squared(line, wanted):.3f}", end=", ")
    print(f"network {r_squared(network, wanted):.3f}")
    plot(options.plot, "lower halves of digits", ("network", training))


if __name__ == "__main__":
    main()

"""Handwritten digits: LeNet, trained on any device.

    python examples/lenet.py [--device NAME] [--steps N] [--batch N] [--plot FILE]

Two convolutions with pooling, then two dense layers, as LeCun's network of 1998, on the pictures of
8 × 8 points that come with scikit-learn. One program is a whole training step: forward, backward
and an update with momentum, the new parameters in the memory of the old ones.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from common import Host, Training, batches, digits, parser, plot, right, trained

import bringup as bu

Params = dict[str, bu.Array]

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


def shifted(x: Host, rng: np.random.Generator) -> Host:
    """Each picture moved by at most a point to every side."""
    wide: Host = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    row, column = (rng.integers(0, 3, (len(x), 1)) + np.arange(8) for _ in range(2))
    moved: Host = wide[np.arange(len(x))[:, None, None], 0, row[:, :, None], column[:, None]]
    return moved[:, None]


def train(params: Params, training: Training, data: tuple[Host, Host], size: int) -> Params:
    """The parameters after a training; the rate falls to nothing along half a cosine."""
    rate = bu.optim.cosine_schedule(RATE * size / 64, training.steps)
    optimizer = bu.optim.sgd(rate, momentum=MOMENTUM)

    @partial(bu.jit, donate_argnums=(0, 1))
    def step(
        params: Params, state: bu.optim.State, x: bu.Array, label: bu.Array
    ) -> tuple[Params, bu.optim.State, bu.Array]:
        value, gradients = bu.value_and_grad(loss)(params, x, label)
        return *optimizer.update(gradients, state, params), value

    rng = np.random.default_rng(2)
    feed = ((shifted(x, rng), label) for x, label in batches(data, size, training.steps))
    params, _ = training.run(feed, step, params, optimizer.init(params))
    return params


def main() -> None:
    """Read the options, train."""
    found = parser("Train LeNet on handwritten digits.", steps=1500)
    found.add_argument("--batch", type=int, default=64, help="pictures in one step")
    options = found.parse_args()
    learned, (x, label) = digits()
    training = Training(options.steps)
    with bu.device(options.device) as device:
        print(f"{len(learned[1])} digits to learn, {len(label)} to test, on {device}")
        params = trained(options, init(), lambda p: train(p, training, learned, options.batch))
        share = right(bu.jit(scores)(params, bu.asarray(x)), label) / len(label)
    print(f"LeNet: {training.said()}, test accuracy {share:.1%}")
    plot(options.plot, "digits, LeNet", ("LeNet", training))


if __name__ == "__main__":
    main()

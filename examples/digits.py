"""Handwritten digits: softmax regression, then a small network, trained on any device.

    python examples/digits.py [--device NAME] [--steps N] [--plot FILE] [--save FILE | --load FILE]

The model is plain Python over containers of arrays. `value_and_grad` differentiates it, and `jit`
makes one program of a whole training step: forward, backward and update, the new parameters in the
memory of the old ones.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
from common import Host, Training, batches, digits, parser, plot, right, trained

import bringup as bu

Params = list[dict[str, bu.Array]]
Data = tuple[Host, Host]

BATCH = 128
#: The numbers of units, and the rate of learning.
MODELS = {"softmax regression": ([64, 10], 0.5), "64-64-10 network": ([64, 64, 10], 0.2)}


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


def train(params: Params, training: Training, data: Data, rate: float) -> Params:
    """The parameters after the steps of a training."""

    @partial(bu.jit, donate_argnums=0)
    def step(params: Params, x: bu.Array, label: bu.Array) -> tuple[Params, bu.Array]:
        value, gradients = bu.value_and_grad(loss)(params, x, label)
        return bu.tree.map(lambda p, g: p - rate * g, params, gradients), value

    (params,) = training.run(batches(data, BATCH, training.steps), step, params)
    return params


def main() -> None:
    """Read the options, train both models."""
    options = parser("Train on handwritten digits.", steps=1000).parse_args()
    learned, (x, label) = ((x.reshape(len(x), -1), y) for x, y in digits())
    trainings = {name: Training(options.steps) for name in MODELS}
    with bu.device(options.device) as device:
        print(f"{len(learned[1])} digits to learn, {len(label)} to test, on {device}")
        models = trained(
            options,
            {name: init(sizes) for name, (sizes, _) in MODELS.items()},
            lambda models: {
                name: train(models[name], trainings[name], learned, rate)
                for name, (_, rate) in MODELS.items()
            },
        )
        for name, training in trainings.items():
            share = right(bu.jit(scores)(models[name], bu.asarray(x)), label) / len(label)
            print(f"{name}: {training.said()}, test accuracy {share:.1%}")
    plot(options.plot, "digits, dense", *trainings.items())


if __name__ == "__main__":
    main()

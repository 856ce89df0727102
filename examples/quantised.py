"""Handwritten digits: what a dense network loses and saves with weights of 8 and of 4 bits.

    python examples/quantised.py [--device NAME] [--steps N] [--plot FILE]

A network is trained in f32 and quantised in four ways: int8 weights with rows of x in int8 at run
time (dynamic), the same with ranges of x seen before (calibrated), int4 weights, and int4 weights
after some training that sees the values the codes will have (quantisation-aware). The network
itself stays as it is written: what replaces a matrix stands on the right of `@` like a matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

from common import Host, Training, batches, digits, measured, parser, table, trained

import bringup as bu

Params = list[dict[str, bu.Array]]

SIZES = [64, 256, 256, 10]
BATCH = 64
#: Of 4-bit weights, the rows of a column that share a scale.
GROUP = 64


def init(key: bu.random.Key) -> Params:
    """Weights and biases of dense layers."""
    keys = bu.random.split(key, len(SIZES) - 1)
    return [
        {"w": bu.nn.init.he_normal(k, (n, m), dtype=bu.float32), "b": bu.zeros(m, dtype=bu.float32)}
        for k, (n, m) in zip(keys, pairwise(SIZES), strict=True)
    ]


def scores(params: Any, x: bu.Array) -> bu.Array:
    """One row of ten scores per picture; weights are arrays or what replaces them."""
    *hidden, last = params
    for layer in hidden:
        x = bu.nn.relu(x @ layer["w"] + layer["b"])
    found: bu.Array = x @ last["w"] + last["b"]
    return found


def train(
    params: Params,
    training: Training,
    data: tuple[Host, Host],
    rate: float,
    seen: Callable[[Params], Params] = lambda params: params,
) -> Params:
    """The parameters after a training.

    seen: the parameters that the network computes with, of those that are trained.
    """
    optimizer = bu.optim.adam(bu.optim.cosine_schedule(rate, training.steps))

    def loss(params: Params, x: bu.Array, label: bu.Array) -> bu.Array:
        return bu.mean(bu.nn.cross_entropy(scores(seen(params), x), label))

    @partial(bu.jit, donate_argnums=1)
    def step(
        params: Params, state: bu.optim.State, x: bu.Array, label: bu.Array
    ) -> tuple[Params, bu.optim.State, bu.Array]:
        value, gradients = bu.value_and_grad(loss)(params, x, label)
        return *optimizer.update(gradients, state, params), value

    feed = batches(data, BATCH, training.steps)
    params, _ = training.run(feed, step, params, optimizer.init(params))
    return params


def main() -> None:
    """Read the options, train, quantise, compare."""
    options = parser("Quantise a network of handwritten digits.", steps=600).parse_args()
    data, (x, label) = ((x.reshape(len(x), -1), y) for x, y in digits())
    training, tuning = Training(options.steps), Training(max(options.steps // 3, 1))
    with bu.device(options.device) as device:
        print(f"{len(data[1])} digits to learn, {len(label)} to test, on {device}")
        first = init(bu.random.key(0))
        dense = trained(options, first, lambda p: train(p, training, data, 2e-3))
        print(f"f32: {training.said()}")
        seen = partial(bu.quant.fake_params, bits=4, group=GROUP)
        aware = train(dense, tuning, data, 5e-4, seen)
        print(f"quantisation-aware: {tuning.said()}")
        variants = {
            "f32": dense,
            "int8, dynamic": bu.quant.quantize_params(dense, dynamic=True),
            "int8, calibrated": bu.quant.calibrate(scores, dense, [data[0][:256]]),
            "int4 weights": bu.quant.quantize_params(dense, bits=4, group=GROUP),
            "int4, trained for it": bu.quant.quantize_params(aware, bits=4, group=GROUP),
        }
        rows = [measured(name, scores, params, x, label) for name, params in variants.items()]
    losses = ("f32", training), ("int4, trained for it", tuning)
    table(options.plot, "digits, a dense network, quantised", len(label), rows, *losses)


if __name__ == "__main__":
    main()

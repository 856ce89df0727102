"""Handwritten digits drawn by a variational autoencoder, trained on any device.

    python examples/vae.py [--device NAME] [--steps N] [--plot FILE]

The encoder names a normal distribution of eight numbers for each picture, the decoder draws a
picture of numbers from it (D. Kingma and M. Welling, 2014). The random numbers come from keys of
`bringup.random`, so every run does the same. Drawing new digits is the decoder alone.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from common import Host, Training, batches, digits, parser, plot, trained

import bringup as bu

Params = dict[str, bu.Array]

POINTS, HIDDEN, CODES = 64, 256, 8
BATCH, RATE = 64, 2e-3
#: The standard deviation of a point from what is drawn.
SPREAD = 0.2
#: The columns of the picture.
COLUMNS = 16


def init(key: bu.random.Key) -> Params:
    """Weights and biases of two dense layers for the encoder and two for the decoder."""
    shapes = {
        "see": (POINTS, HIDDEN), "code": (HIDDEN, 2 * CODES),
        "read": (CODES, HIDDEN), "draw": (HIDDEN, POINTS),
    }  # fmt: skip
    params: Params = {}
    for (name, shape), each in zip(shapes.items(), bu.random.split(key, len(shapes)), strict=True):
        params[name] = bu.nn.init.lecun_normal(each, shape, dtype=bu.float32)
        params[f"{name}_bias"] = bu.zeros(shape[1], dtype=bu.float32)
    return params


def encode(p: Params, x: bu.Array) -> tuple[bu.Array, bu.Array]:
    """The mean and the logarithm of the variance of each number."""
    hidden = bu.nn.silu(x @ p["see"] + p["see_bias"])
    found = hidden @ p["code"] + p["code_bias"]
    return found[:, :CODES], found[:, CODES:]


def decode(p: Params, codes: bu.Array) -> bu.Array:
    """The points of a picture for each row of numbers."""
    hidden = bu.nn.silu(codes @ p["read"] + p["read_bias"])
    return bu.nn.logistic(hidden @ p["draw"] + p["draw_bias"])


def cost(drawn: bu.Array | Host, x: bu.Array | Host) -> bu.Array:
    """Nats for each picture of normally distributed points, less what is the same for all."""
    return bu.sum(bu.square((x - drawn) / SPREAD), axis=1) / 2


def loss(params: Params, x: bu.Array, key: bu.random.Key) -> bu.Array:
    """The mean of the negative evidence lower bound, in nats for each picture."""
    mean, log_variance = encode(params, x)
    noise = bu.random.normal(key, mean.shape, dtype=bu.float32)
    drawn = decode(params, mean + bu.exp(log_variance / 2) * noise)
    # From the standard normal distribution, in closed form.
    divergence = bu.sum(bu.square(mean) + bu.exp(log_variance) - 1 - log_variance, axis=1) / 2
    return bu.mean(cost(drawn, x) + divergence)


def train(params: Params, training: Training, x: Host, key: bu.random.Key) -> Params:
    """The parameters after a training."""
    optimizer = bu.optim.adam(bu.optim.cosine_schedule(RATE, training.steps))

    @partial(bu.jit, donate_argnums=(0, 1))
    def step(params: Params, state: bu.optim.State, key: bu.random.Key, x: bu.Array) -> Any:
        drawing = bu.random.fold_in(key, state.step)
        value, gradients = bu.value_and_grad(loss)(params, x, drawing)
        return *optimizer.update(gradients, state, params), key, value

    feed = batches((x,), BATCH, training.steps)
    params, *_ = training.run(feed, step, params, optimizer.init(params), key)
    return params


def main() -> None:
    """Read the options, train, draw."""
    options = parser("Draw handwritten digits.", steps=3000).parse_args()
    (x, _), (held_out, _) = ((x.reshape(len(x), -1), y) for x, y in digits())
    training = Training(options.steps)
    with bu.device(options.device) as device:
        print(f"{len(x)} digits to learn, {len(held_out)} to test, on {device}")
        first, rest = bu.random.split(bu.random.key(0))
        params = trained(options, init(first), lambda p: train(p, training, x, rest))
        print(f"autoencoder: {training.said()}")
        baseline = bu.mean(cost(x.mean(axis=0), held_out))
        bound = bu.jit(loss)(params, bu.asarray(held_out), bu.random.key(1))
        print(
            f"nats for a held-out digit: mean picture {float(baseline):.2f},"
            f" autoencoder at most {float(bound):.2f}"
        )

        @bu.jit
        def drawn(params: Params, codes: bu.Array) -> bu.Array:
            return bu.reshape(decode(params, codes), (-1, 8, 8))

        seen = held_out[:COLUMNS]
        codes = bu.random.normal(bu.random.key(2), (4 * COLUMNS, CODES), dtype=bu.float32)
        again = np.asarray(drawn(params, encode(params, bu.asarray(seen))[0]))
        new = np.asarray(drawn(params, codes)).reshape(4, COLUMNS, 8, 8)
    rows = [("held out", seen.reshape(-1, 8, 8)), ("decoded", again)]
    rows += [("new", row) for row in new]
    title = "digits, variational autoencoder"
    plot(options.plot, title, ("autoencoder", training), pictures=rows)


if __name__ == "__main__":
    main()

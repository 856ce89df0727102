"""Handwritten digits drawn out of noise by a diffusion model, trained on any device.

    python examples/diffusion.py [--device NAME] [--steps N] [--width N] [--plot FILE]

A small U-shaped network of convolutions, group norms and one attention sees a noisy picture, how
noisy it is and which digit it is to be, and predicts the noise (J. Ho et al., 2020). It learns from
digits with noise added. Sampling starts from noise alone and takes a part of what is predicted away
in each step (J. Song et al., 2021); `scan` makes one program of all the steps.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from common import Host, Training, batches, digits, parser, plot, trained

import bringup as bu

Params = dict[str, Any]
Data = tuple[Host, Host]
GROUPS, FEATURES, BATCH, RATE = 4, 64, 64, 3e-3
#: Where sampling starts (at 1 no picture is left), its steps, and how many pictures of a digit.
START, SAMPLING, DRAWN = 0.99, 50, 10


def init(key: bu.random.Key, width: int) -> Params:
    """Each block norms and convolves twice; `up` sees the output of `down` as well."""
    keys = iter(bu.random.split(key, 32))

    def weights(*shape: int) -> bu.Array:
        # Convolutions have their inputs in all axes after the first, matrices in the first.
        inputs = math.prod(shape[1:]) if len(shape) == 4 else shape[0]
        return bu.random.normal(next(keys), shape, dtype=bu.float32) * math.sqrt(1 / inputs)

    def norm(n: int) -> dict[str, bu.Array]:
        return {"gain": bu.ones(n, dtype=bu.float32), "bias": bu.zeros(n, dtype=bu.float32)}

    def block(inputs: int, outputs: int) -> Params:
        return {
            "before": norm(inputs), "first": weights(outputs, inputs, 3, 3),
            "between": norm(outputs), "second": weights(outputs, outputs, 3, 3),
            "told": weights(FEATURES, outputs), "past": weights(outputs, inputs, 1, 1),
        }  # fmt: skip

    return {
        "digit": weights(10, FEATURES) * 10**0.5, "told": weights(FEATURES, FEATURES),
        "in": weights(width, 1, 3, 3), "down": block(width, width),
        "middle": block(width, 2 * width), "seen": norm(2 * width),
        "heads": weights(2 * width, 6 * width), "joined": weights(2 * width, 2 * width),
        "up": block(3 * width, width), "after": norm(width), "out": weights(1, width, 3, 3) * 0.1,
    }  # fmt: skip


def convolved(p: Params, x: bu.Array, told: bu.Array) -> bu.Array:
    """A block: two convolutions, between them what is told, around them the input itself."""
    hidden = bu.nn.silu(bu.nn.group_norm(x, GROUPS, **p["before"]))
    hidden = bu.nn.conv(hidden, p["first"], padding="same") + (told @ p["told"])[:, :, None, None]
    hidden = bu.nn.silu(bu.nn.group_norm(hidden, GROUPS, **p["between"]))
    return bu.nn.conv(hidden, p["second"], padding="same") + bu.nn.conv(x, p["past"])


def attended(p: Params, x: bu.Array) -> bu.Array:
    """Every point of ``x[batch, features, height, width]`` with what it finds at all others."""
    points = bu.reshape(bu.nn.group_norm(x, GROUPS, **p["seen"]), (*x.shape[:2], -1))
    parts = bu.matrix_transpose(points) @ p["heads"]
    query, key, value = bu.split(parts[:, None], 3, axis=-1)
    found = bu.nn.attention(query, key, value)[:, 0] @ p["joined"]
    return x + bu.reshape(bu.matrix_transpose(found), x.shape)


def noise_in(p: Params, x: bu.Array, time: bu.Array, digit: bu.Array) -> bu.Array:
    """The noise of pictures ``[batch, 1, 8, 8]`` at times from 0, none, to 1, nothing else."""
    waves = time[:, None] * bu.exp(bu.linspace(0, math.log(100), FEATURES // 2, dtype=bu.float32))
    told = bu.concat([bu.sin(waves), bu.cos(waves)], axis=1) @ p["told"]
    told = bu.nn.silu(told + bu.take(p["digit"], digit, axis=0))
    fine = convolved(p["down"], bu.nn.conv(x, p["in"], padding="same"), told)
    coarse = attended(p, convolved(p["middle"], bu.nn.avg_pool(fine, 2), told))
    wide = bu.nn.resize(coarse, x.shape[2:], method="nearest", axis=(2, 3))
    x = convolved(p["up"], bu.concat([wide, fine], axis=1), told)
    x = bu.nn.silu(bu.nn.group_norm(x, GROUPS, **p["after"]))
    return bu.nn.conv(x, p["out"], padding="same")


def shares(time: bu.Array) -> tuple[bu.Array, bu.Array]:
    """How much picture and how much noise there is; their squares add up to 1."""
    return bu.cos(time * (math.pi / 2)), bu.sin(time * (math.pi / 2))


def loss(params: Params, x: bu.Array, digit: bu.Array, key: bu.random.Key) -> bu.Array:
    """The mean squared error of the noise; 1 is that of who sees none."""
    first, second = bu.random.split(key)
    time = bu.random.uniform(first, x.shape[0], dtype=bu.float32)
    noise = bu.random.normal(second, x.shape, dtype=bu.float32)
    picture, rest = (share[:, None, None, None] for share in shares(time))
    return bu.mean(bu.square(noise_in(params, picture * x + rest * noise, time, digit) - noise))


def train(params: Params, training: Training, data: Data, key: bu.random.Key) -> Params:
    """The parameters after a training."""
    steps = training.steps
    optimizer = bu.optim.adam(bu.optim.cosine_schedule(RATE, steps, warmup=min(50, steps // 2)))

    @partial(bu.jit, donate_argnums=(0, 1))
    def step(params: Params, state: Any, key: bu.random.Key, x: bu.Array, digit: bu.Array) -> Any:
        fresh = bu.random.fold_in(key, state.step)
        value, gradients = bu.value_and_grad(loss)(params, x, digit, fresh)
        return *optimizer.update(gradients, state, params), key, value

    feed = batches((data[0] * 2 - 1, data[1]), BATCH, steps)
    params, *_ = training.run(feed, step, params, optimizer.init(params), key)
    return params


@bu.jit
def sample(params: Params, digit: bu.Array, key: bu.random.Key) -> bu.Array:
    """Pictures of digits: at each time the picture that is seen, with less of the noise."""

    def step(x: bu.Array, time: bu.Array) -> tuple[bu.Array, None]:
        noise = noise_in(params, x, bu.broadcast_to(time, digit.shape), digit)
        picture, rest = shares(time)
        seen = bu.clip((x - rest * noise) / picture, -1.0, 1.0)
        picture, rest = shares(time - START / SAMPLING)
        return picture * seen + rest * noise, None

    start = bu.random.normal(key, (digit.shape[0], 1, 8, 8), dtype=bu.float32)
    times = bu.linspace(START, START / SAMPLING, SAMPLING, dtype=bu.float32)
    return (bu.scan(step, start, times)[0][:, 0] + 1) / 2


def main() -> None:
    """Read the options, train, draw."""
    reader = parser("Draw handwritten digits out of noise.", steps=1500)
    reader.add_argument("--width", type=int, default=24, help="channels, a multiple of 4")
    options = reader.parse_args()
    data, _ = digits()
    training = Training(options.steps)
    with bu.device(options.device) as device:
        print(f"{len(data[1])} digits to learn, on {device}")
        first, rest = bu.random.split(bu.random.key(0))
        params = init(first, options.width)
        params = trained(options, params, lambda p: train(p, training, data, rest))
        print(f"diffusion: {training.said()}")
        asked = np.repeat(np.arange(10, dtype=np.int32), DRAWN)
        drawn = np.asarray(sample(params, bu.asarray(asked), bu.random.key(1)))
    nearest = np.square(drawn[:, None] - data[0][:, 0]).sum(axis=(2, 3)).argmin(axis=1)
    same = (data[1][nearest] == asked).sum()
    print(f"{same} of {len(drawn)} drawn are nearest to a picture of the digit asked for")
    pictures = [(str(n), drawn[asked == n]) for n in range(10)]
    plot(options.plot, "digits, diffusion", ("diffusion", training), pictures=pictures)


if __name__ == "__main__":
    main()

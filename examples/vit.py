"""Handwritten digits: a vision transformer, trained on any device.

    python examples/vit.py [--device NAME] [--steps N] [--compare] [--plot FILE]

As A. Dosovitskiy et al. (2021): a picture is a sequence of squares of points, each square is mapped
to a vector, its place is added, and blocks of attention and a GELU network follow. The digit is
read from the mean of all squares.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from common import Host, digits
from vision import Params, Stats, accuracy, parser, train

import bringup as bu

BLOCKS, WIDTH, HEADS, SQUARE, SIZE = 3, 64, 4, 2, 8
RATE, DECAY = 3e-3, 0.05


def shifted(x: Host, label: Host) -> tuple[Host, Host]:
    """The pictures as they are and moved by a point to every side, nine of each."""
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    moved = [wide[..., i : i + SIZE, j : j + SIZE] for i in range(3) for j in range(3)]
    return np.concatenate(moved), np.tile(label, 9)


def init(key: bu.random.Key) -> Params:
    """Matrices spread by their inputs, everything else ones and zeros."""
    keys = iter(bu.random.split(key, 3 + 4 * BLOCKS))

    def matrix(inputs: int, outputs: int) -> bu.Array:
        return bu.nn.init.lecun_normal(next(keys), (inputs, outputs), dtype=bu.float32)

    def norm() -> dict[str, bu.Array]:
        return {"gain": bu.ones(WIDTH, dtype=bu.float32), "bias": bu.zeros(WIDTH, dtype=bu.float32)}

    def block() -> dict[str, Any]:
        return {
            "before": norm(),
            "heads": matrix(WIDTH, 3 * WIDTH),
            "joined": matrix(WIDTH, WIDTH),
            "between": norm(),
            "up": matrix(WIDTH, 4 * WIDTH),
            "down": matrix(4 * WIDTH, WIDTH),
        }

    places = (SIZE // SQUARE) ** 2
    return {
        "square": matrix(SQUARE * SQUARE, WIDTH),
        "place": bu.random.normal(next(keys), (places, WIDTH), dtype=bu.float32),
        "blocks": [block() for _ in range(BLOCKS)],
        "after": norm(),
        "digit": matrix(WIDTH, 10),
        "digit_bias": bu.zeros(10, dtype=bu.float32),
    }


def squares(x: bu.Array) -> bu.Array:
    """The points of each square of pictures ``[n, 1, 8, 8]``, ``[n, 16, 4]``."""
    side = SIZE // SQUARE
    x = bu.reshape(x, (x.shape[0], side, SQUARE, side, SQUARE))
    return bu.reshape(bu.permute_dims(x, (0, 1, 3, 2, 4)), (x.shape[0], side * side, -1))


def scores(params: Params, x: bu.Array) -> bu.Array:
    """One row of ten scores per picture."""
    x = squares(x) @ params["square"] + params["place"]
    for block in params["blocks"]:
        parts = bu.nn.layer_norm(x, **block["before"]) @ block["heads"]
        split = bu.reshape(parts, (*x.shape[:2], 3, HEADS, WIDTH // HEADS))
        found = bu.nn.attention(*bu.unstack(bu.permute_dims(split, (2, 0, 3, 1, 4))))
        x = x + bu.reshape(bu.permute_dims(found, (0, 2, 1, 3)), x.shape) @ block["joined"]
        hidden = bu.nn.gelu(bu.nn.layer_norm(x, **block["between"]) @ block["up"])
        x = x + hidden @ block["down"]
    x = bu.mean(bu.nn.layer_norm(x, **params["after"]), axis=1)
    ten: bu.Array = x @ params["digit"] + params["digit_bias"]
    return ten


def network(params: Params, stats: Stats, x: bu.Array, training: bool) -> tuple[bu.Array, Stats]:
    """`scores`, which are the same in training, and no statistics."""
    return scores(params, x), stats


def main() -> None:
    """Read the options, train, test."""
    options = parser("Train a vision transformer on digits.", steps=1000, batch=64).parse_args()
    learned, test = digits()
    with bu.device(options.device) as device:
        print(
            f"{len(learned[0])} digits to learn in nine places, {len(test[0])} to test, on {device}"
        )
        params = init(bu.random.key(0))
        rate = bu.optim.cosine_schedule(RATE, options.steps, warmup=min(50, options.steps // 2))
        optimizer = bu.optim.adamw(rate, decay=DECAY, decays=lambda p: p.ndim > 1)
        params, _ = train(
            "vision transformer", network, optimizer, params, {}, shifted(*learned), options
        )
        share = accuracy(bu.freeze(scores, params), *test, options.batch)
    print(f"test accuracy {share:.1%}")


if __name__ == "__main__":
    main()

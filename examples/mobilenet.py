"""Handwritten digits: a MobileNetV2 with depthwise convolutions, then frozen, on any device.

    python examples/mobilenet.py [--device NAME] [--steps N] [--compare] [--plot FILE]

The inverted residual of M. Sandler et al. (2018): more features, a window over each of them alone,
fewer features without an activation. After training, `freeze` puts the batch norms into the
weights; both forms of inference are timed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from common import digits, seconds
from vision import Params, Stats, accuracy, conv_norm, init_stats, layer, parser, train

import bringup as bu

RATE = 3e-3
#: How many times as many features are inside a block.
EXPANSION = 4
#: Of each block, the features it hands on and the stride of its window.
BLOCKS = [(16, 1), (24, 2), (24, 1), (32, 2), (32, 1)]
STEM, LAST = 16, 64


def init(key: bu.random.Key) -> Params:
    """Parameters on the default device."""
    keys = iter(bu.random.split(key, 3 + 3 * len(BLOCKS)))
    params: Params = {"stem": layer(next(keys), (STEM, 1, 3, 3)), "blocks": []}
    inputs = STEM
    for outputs, _ in BLOCKS:
        inner = EXPANSION * inputs
        params["blocks"].append(
            {
                "expand": layer(next(keys), (inner, inputs, 1, 1)),
                "depthwise": layer(next(keys), (inner, 1, 3, 3)),
                "project": layer(next(keys), (outputs, inner, 1, 1)),
            }
        )
        inputs = outputs
    params["last"] = layer(next(keys), (LAST, inputs, 1, 1))
    params["head"] = bu.nn.init.lecun_normal(next(keys), (LAST, 10), dtype=bu.float32)
    return params | {"head_bias": bu.zeros(10, dtype=bu.float32)}


def block(p: Params, s: Stats, x: bu.Array, training: bool, stride: int) -> tuple[bu.Array, Stats]:
    """An inverted residual; the input is added where it has the shape of the result."""
    new: Stats = {}
    y, new["expand"] = conv_norm(p["expand"], s["expand"], x, training)
    y, new["depthwise"] = conv_norm(
        p["depthwise"], s["depthwise"], bu.nn.relu6(y), training, stride, groups=y.shape[1]
    )
    y, new["project"] = conv_norm(p["project"], s["project"], bu.nn.relu6(y), training)
    return x + y if x.shape == y.shape else y, new


def scores(
    params: Params, stats: Stats, x: bu.Array, training: bool = False
) -> tuple[bu.Array, Stats]:
    """Ten scores for pictures ``[n, 1, 8, 8]``, and the statistics."""
    new: Stats = {"blocks": []}
    x, new["stem"] = conv_norm(params["stem"], stats["stem"], x, training)
    x = bu.nn.relu6(x)
    for p, s, (_, stride) in zip(params["blocks"], stats["blocks"], BLOCKS, strict=True):
        x, block_stats = block(p, s, x, training, stride)
        new["blocks"].append(block_stats)
    x, new["last"] = conv_norm(params["last"], stats["last"], x, training)
    return bu.mean(bu.nn.relu6(x), axis=(2, 3)) @ params["head"] + params["head_bias"], new


def main() -> None:
    """Read the options, train, freeze, and compare the two forms of inference."""
    options = parser("Train a MobileNetV2 on handwritten digits.", steps=400, batch=64).parse_args()
    learned, test = digits()
    with bu.device(options.device) as device:
        print(f"{len(learned[0])} digits to learn, {len(test[0])} to test, on {device}")
        params = init(bu.random.key(0))
        optimizer = bu.optim.adam(bu.optim.cosine_schedule(RATE, options.steps))
        known = train(
            "MobileNetV2", scores, optimizer, params, init_stats(params), learned, options
        )

        def network(known: tuple[Params, Stats], x: Any) -> bu.Array:
            return scores(*known, x)[0]

        x = test[0][: options.batch]
        frozen, plain = bu.freeze(network, known), bu.jit(network)
        share = accuracy(frozen, *test, options.batch)
        apart = np.abs(np.asarray(frozen(x)) - np.asarray(plain(known, x))).max()
        kernels = [plain.lower(known, x).cost().kernels, frozen.lower(x).cost().kernels]
        times = seconds(
            lambda: plain(known, x).block_until_ready(), lambda: frozen(x).block_until_ready()
        )
    print(
        f"inference: {kernels[0]} kernels and {times[0] * 1e3:.3f} ms for {len(x)} digits", end=", "
    )
    print(f"frozen {kernels[1]} and {times[1] * 1e3:.3f} ms, scores at most {apart:.1e} apart")
    print(f"test accuracy {share:.1%}, frozen")


if __name__ == "__main__":
    main()

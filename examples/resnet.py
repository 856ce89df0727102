"""ResNet-50: trained on pictures, then run with frozen parameters, on any device.

    python examples/resnet.py [--steps N] [--images FOLDER] [--compare] [--plot FILE]

The network of K. He et al. (2016), with the stride in the convolutions of 3 × 3. Pictures are read
from a folder for each class; without one, the classes are noisy patterns of colour. A training step
is one program: forward with the statistics of the batch, backward, and an update with momentum. For
inference, `freeze` puts the running statistics into the weights, and no batch norm is left.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import Host
from vision import Params, Stats, accuracy, conv_norm, init_stats, layer, parser, train

import bringup as bu

MOMENTUM = 0.9


def init(key: bu.random.Key, width: int, blocks: list[int], classes: int) -> Params:
    """Parameters on the default device; each stage has twice the features of the one before."""
    keys = iter(bu.random.split(key, 2 + 4 * sum(blocks)))
    params: Params = {"stem": layer(next(keys), (width, 3, 7, 7)), "blocks": []}
    inputs = width
    for stage, count in enumerate(blocks):
        inner, outputs = width * 2**stage, 4 * width * 2**stage
        for number in range(count):
            layers = {
                "reduce": layer(next(keys), (inner, inputs, 1, 1)),
                "window": layer(next(keys), (inner, inner, 3, 3)),
                # A gain of zero: at first the block hands on its input (P. Goyal et al., 2017).
                "expand": layer(next(keys), (outputs, inner, 1, 1), gain=0.0),
            }
            if number == 0:
                layers["shortcut"] = layer(next(keys), (outputs, inputs, 1, 1))
            params["blocks"].append(layers)
            inputs = outputs
    weights = bu.nn.init.lecun_normal(next(keys), (inputs, classes), dtype=bu.float32)
    return params | {"head": weights, "head_bias": bu.zeros(classes, dtype=bu.float32)}


def block(p: Params, s: Stats, x: bu.Array, training: bool, stride: int) -> tuple[bu.Array, Stats]:
    """Fewer features, a window, more features; added to the input or its projection."""
    new: Stats = {}
    y, new["reduce"] = conv_norm(p["reduce"], s["reduce"], x, training)
    y, new["window"] = conv_norm(p["window"], s["window"], bu.nn.relu(y), training, stride)
    y, new["expand"] = conv_norm(p["expand"], s["expand"], bu.nn.relu(y), training)
    if "shortcut" in p:
        x, new["shortcut"] = conv_norm(p["shortcut"], s["shortcut"], x, training, stride)
    return bu.nn.relu(x + y), new


def scores(
    params: Params, stats: Stats, x: bu.Array, training: bool = False, checkpoint: bool = False
) -> tuple[bu.Array, Stats]:
    """A score of each class for pictures ``[n, 3, size, size]``, and the statistics."""
    x, stem = conv_norm(params["stem"], stats["stem"], x, training, stride=2)
    x = bu.nn.max_pool(bu.nn.relu(x), 3, stride=2, padding=1)
    blocks: list[Stats] = []
    for number, (p, s) in enumerate(zip(params["blocks"], stats["blocks"], strict=True)):
        stride = 2 if number > 0 and "shortcut" in p else 1  # each stage but the first begins so
        run: Callable[..., Any] = partial(block, training=training, stride=stride)
        x, new = (bu.checkpoint(run) if checkpoint else run)(p, s, x)
        blocks.append(new)
    found = bu.mean(x, axis=(2, 3)) @ params["head"] + params["head_bias"]
    return found, {"stem": stem, "blocks": blocks}


def patterns(count: int, classes: int, size: int) -> tuple[Host, Host]:
    """Pictures of noise, each with the pattern of 4 × 4 colours of its class, and the classes."""
    rng = np.random.default_rng(0)
    colours = rng.normal(size=(classes, 3, 4, 4))
    label = np.arange(count) % classes
    places = np.arange(size) * 4 // size
    noise = rng.normal(size=(count, 3, size, size))
    pictures = colours[label][:, :, places[:, None], places] + noise
    return pictures.astype(np.float32), label.astype(np.int32)


def read(folder: Path, size: int) -> tuple[Host, Host]:
    """The middle squares of the pictures in a folder for each class, of mean 0 and variance 1."""
    from PIL import Image, ImageOps

    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    pictures, label = [], []
    for number, name in enumerate(names):
        for path in sorted((folder / name).iterdir()):
            if path.suffix.lower() in Image.registered_extensions():
                with Image.open(path) as picture:
                    pictures.append(np.asarray(ImageOps.fit(picture.convert("RGB"), (size, size))))
                label.append(number)
    if not pictures:
        raise SystemExit(f"no pictures are in folders of {folder}, one folder for each class")
    x = np.stack(pictures).transpose(0, 3, 1, 2).astype(np.float32)
    means, spread = x.mean(axis=(0, 2, 3), keepdims=True), x.std(axis=(0, 2, 3), keepdims=True)
    return (x - means) / np.maximum(spread, 1), np.array(label, np.int32)


def main() -> None:
    """Read the options and pictures, train, freeze, and look at the pictures again."""
    flag = argparse.BooleanOptionalAction
    reader = parser("Train a ResNet-50 on pictures.", steps=20, batch=8)
    reader.add_argument("--images", type=Path, help="a folder with a folder for each class")
    reader.add_argument("--size", type=int, default=224, help="of pictures, in points")
    reader.add_argument("--width", type=int, default=64, help="features of the first layer")
    reader.add_argument("--blocks", type=int, nargs="+", default=[3, 4, 6, 3], help="by stage")
    reader.add_argument("--rate", type=float, default=0.003, help="of learning, at its peak")
    reader.add_argument("--checkpoint", action=flag, default=False, help="compute blocks again")
    options = reader.parse_args()
    if options.images:
        data = read(options.images, options.size)
    else:
        data = patterns(8 * options.batch, 4, options.size)

    def network(known: tuple[Params, Stats], x: bu.Array) -> bu.Array:
        return scores(*known, x)[0]

    with bu.device(options.device) as device:
        classes = int(data[1].max()) + 1
        print(f"{len(data[0])} pictures of {classes} classes, on {device}")
        params = init(bu.random.key(0), options.width, options.blocks, classes)
        training = partial(scores, checkpoint=options.checkpoint)
        rate = bu.optim.cosine_schedule(options.rate, options.steps, warmup=options.steps // 4)
        optimizer = bu.optim.sgd(rate, momentum=MOMENTUM)
        known = train("ResNet", training, optimizer, params, init_stats(params), data, options)
        share = accuracy(bu.freeze(network, known), *data, options.batch)
    print(f"accuracy {share:.1%} on the pictures it has learned, frozen")


if __name__ == "__main__":
    main()

"""Networks that every framework runs: one text of each, its parameters and what it reads.

A network is a function of a framework (`frameworks.py`), its parameters and arrays. In training it
returns the loss, in inference the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

Host = np.ndarray[Any, Any]
Params = dict[str, Any]
Random = np.random.Generator
#: Parameters, and the arrays that are read with them.
Made = tuple[Params, tuple[Host, ...]]


class Model(NamedTuple):
    """make: ``(random numbers, small) -> (parameters, arrays)``, on the host.

    run: ``(framework, parameters, *arrays) -> loss or result``.  optimizer: ``sgd`` (with momentum)
    or ``adam``; None is inference.
    """

    make: Callable[[Random, bool], Made]
    run: Callable[..., Any]
    optimizer: str | None


def longest(params: Any) -> int:
    """How many products the longest sum of a dense layer or a convolution has."""
    if isinstance(params, np.ndarray):
        return math.prod(params.shape[1:]) if params.ndim == 4 else params.shape[0]
    return max(map(longest, params.values() if isinstance(params, dict) else params))


def _normal(rng: Random, *shape: int, spread: float = 1.0) -> Host:
    return rng.standard_normal(shape, np.float32) * np.float32(spread)


def _dense(rng: Random, inputs: int, outputs: int) -> Host:
    return _normal(rng, inputs, outputs, spread=inputs**-0.5)


def _filters(rng: Random, *shape: int) -> Host:
    return _normal(rng, *shape, spread=(2 / math.prod(shape[1:])) ** 0.5)


def _norm(width: int) -> Params:
    return {"gain": np.ones(width, np.float32), "bias": np.zeros(width, np.float32)}


def _pictures(rng: Random, *shape: int) -> tuple[Host, Host]:
    return _normal(rng, *shape), rng.integers(0, 10, shape[0], np.int32)


# ---- convolutions with batch norm


def _layer(rng: Random, shape: tuple[int, ...], training: bool) -> Params:
    """A convolution and its batch norm, which in inference knows a mean and a variance."""
    mean, var = _normal(rng, 2, shape[0], spread=0.1)
    stats = {"mean": mean, "var": abs(var) + 1}
    norm = _norm(shape[0])
    return {"weights": _filters(rng, *shape), "norm": norm if training else norm | stats}


def _conv_norm(f: Any, p: Params, x: Any, stride: int = 1, groups: int = 1) -> Any:
    padding = p["weights"].shape[-1] // 2
    x = f.conv(x, p["weights"], stride=stride, padding=padding, groups=groups)
    return f.batch_norm(x, **p["norm"])


def make_resnet(rng: Random, small: bool, training: bool) -> Made:
    """ResNet-50 of K. He et al. (2016), or one of two blocks."""
    width, blocks, size = (8, (1, 1), 32) if small else (64, (3, 4, 6, 3), 224)
    params: Params = {"stem": _layer(rng, (width, 3, 7, 7), training), "blocks": []}
    inputs = width
    for stage, count in enumerate(blocks):
        inner, outputs = width * 2**stage, 4 * width * 2**stage
        for number in range(count):
            shapes = {
                "reduce": (inner, inputs, 1, 1),
                "window": (inner, inner, 3, 3),
                "expand": (outputs, inner, 1, 1),
            }
            if number == 0:
                shapes["shortcut"] = (outputs, inputs, 1, 1)
            layers = {n: _layer(rng, s, training) for n, s in shapes.items()}
            layers["expand"]["norm"]["gain"] *= np.float32(0.2)  # else rounding grows with depth
            params["blocks"].append(layers)
            inputs = outputs
    classes = 10 if small else 1000
    params |= {"head": _dense(rng, inputs, classes), "head_bias": np.zeros(classes, np.float32)}
    x, label = _pictures(rng, 8, 3, size, size)
    return params, (x, label) if training else (x,)


def _resnet_block(f: Any, p: Params, x: Any, stride: int) -> Any:
    y = f.nn.relu(_conv_norm(f, p["reduce"], x))
    y = f.nn.relu(_conv_norm(f, p["window"], y, stride))
    y = _conv_norm(f, p["expand"], y)
    if "shortcut" in p:
        x = _conv_norm(f, p["shortcut"], x, stride)
    return f.nn.relu(x + y)


def resnet(f: Any, params: Params, x: Any, label: Any = None) -> Any:
    """The scores of pictures, or with labels the loss."""
    x = f.max_pool(f.nn.relu(_conv_norm(f, params["stem"], x, 2)), 3, stride=2, padding=1)
    for number, p in enumerate(params["blocks"]):
        stride = 2 if number and "shortcut" in p else 1
        x = f.checkpoint(partial(_resnet_block, f, stride=stride))(p, x)
    x = f.dense(x.mean(axis=(2, 3)), params["head"], params["head_bias"])
    return x if label is None else f.cross_entropy(x, label)


def make_mobilenet(rng: Random, small: bool) -> Made:
    """An inverted residual of M. Sandler et al. (2018), as in its third stage."""
    width, inner, size = (4, 8, 8) if small else (24, 144, 56)
    shapes = {
        "expand": (inner, width, 1, 1),
        "depthwise": (inner, 1, 3, 3),
        "project": (width, inner, 1, 1),
    }
    params = {name: _layer(rng, shape, training=False) for name, shape in shapes.items()}
    return params, (_normal(rng, 8, width, size, size),)


def mobilenet(f: Any, p: Params, x: Any) -> Any:
    """Wide by points, by feature 3 × 3, narrow by points, and `x`."""
    y = f.nn.relu6(_conv_norm(f, p["expand"], x))
    y = f.nn.relu6(_conv_norm(f, p["depthwise"], y, groups=y.shape[1]))
    return x + _conv_norm(f, p["project"], y)


def make_lenet(rng: Random, small: bool) -> Made:
    """As `examples/lenet.py`, on pictures of 8 × 8."""
    shapes = {"c1": (16, 1, 3, 3), "c2": (32, 16, 3, 3), "d1": (128, 64), "d2": (64, 10)}
    params: Params = {}
    for name, shape in shapes.items():
        params[name] = _filters(rng, *shape) if len(shape) == 4 else _dense(rng, *shape)
        params[f"{name}_bias"] = np.zeros(shape[0 if len(shape) == 4 else 1], np.float32)
    return params, _pictures(rng, 4 if small else 64, 1, 8, 8)


def lenet(f: Any, p: Params, x: Any, label: Any) -> Any:
    """Two convolutions with pooling, then two dense layers."""
    for name in ("c1", "c2"):
        x = f.conv(x, p[name], p[f"{name}_bias"], padding=1)
        x = f.max_pool(f.nn.relu(x), 2, stride=2)
    x = f.nn.relu(f.dense(x.reshape((x.shape[0], -1)), p["d1"], p["d1_bias"]))
    return f.cross_entropy(f.dense(x, p["d2"], p["d2_bias"]), label)


# ---- transformers


def _transformer(rng: Random, blocks: int, width: int) -> Params:
    shapes = {
        "heads": (width, 3 * width),
        "joined": (width, width),
        "up": (width, 4 * width),
        "down": (4 * width, width),
    }
    return {
        "blocks": [
            {n: _dense(rng, *shape) for n, shape in shapes.items()}
            | {"before": _norm(width), "between": _norm(width)}
            for _ in range(blocks)
        ],
        "after": _norm(width),
    }


def _transformer_block(f: Any, p: Params, x: Any, heads: int, causal: bool) -> Any:
    parts = f.dense(f.layer_norm(x, **p["before"]), p["heads"])
    split = parts.reshape((*x.shape[:2], 3, heads, x.shape[2] // heads))
    x = x + f.dense(f.attention(split, causal).reshape(x.shape), p["joined"])
    hidden = f.gelu(f.dense(f.layer_norm(x, **p["between"]), p["up"]))
    return x + f.dense(hidden, p["down"])


def _blocks(f: Any, params: Params, x: Any, heads: int, causal: bool) -> Any:
    for p in params["blocks"]:
        x = f.checkpoint(partial(_transformer_block, f, heads=heads, causal=causal))(p, x)
    return f.layer_norm(x, **params["after"])


def make_gpt(rng: Random, small: bool, blocks: int, width: int, context: int, batch: int) -> Made:
    """A transformer of characters, as `examples/transformer.py`."""
    if small:
        blocks, width, context, batch = 1, 24, 8, 2
    params = _transformer(rng, blocks, width)
    params["character"] = _normal(rng, 96, width, spread=width**-0.5)
    params["place"] = _normal(rng, context, width, spread=width**-0.5)
    text = rng.integers(0, 96, (batch, context + 1), np.int32)
    return params, (text[:, :-1].copy(), text[:, 1:].copy())


def gpt(f: Any, params: Params, text: Any, following: Any, heads: int) -> Any:
    """The mean cross-entropy of the characters that follow."""
    x = f.rows(params["character"], text) + params["place"]
    x = _blocks(f, params, x, heads, causal=True)
    return f.cross_entropy(x @ f.permute(params["character"], (1, 0)), following)


def make_vit(rng: Random, small: bool) -> Made:
    """ViT-Ti/16 of A. Dosovitskiy et al. (2021) and H. Touvron et al. (2021)."""
    blocks, width, square, size = (1, 12, 4, 8) if small else (12, 192, 16, 224)
    params = _transformer(rng, blocks, width)
    params["square"] = _filters(rng, width, 3, square, square)
    params["place"] = _normal(rng, (size // square) ** 2, width, spread=0.2)
    params |= {"head": _dense(rng, width, 10), "head_bias": np.zeros(10, np.float32)}
    return params, _pictures(rng, 8, 3, size, size)


def vit(f: Any, params: Params, x: Any, label: Any) -> Any:
    """The loss of the class read from the mean of all squares of a picture."""
    x = f.conv(x, params["square"], stride=params["square"].shape[-1])
    x = f.permute(x.reshape((*x.shape[:2], -1)), (0, 2, 1)) + params["place"]
    x = _blocks(f, params, x, heads=3, causal=False).mean(axis=1)
    return f.cross_entropy(f.dense(x, params["head"], params["head_bias"]), label)


# ---- others


def make_lstm(rng: Random, small: bool) -> Made:
    """As `examples/lstm.py`: pictures of eight lines of eight points."""
    units, batch = (4, 2) if small else (64, 32)
    params = {
        "line": _dense(rng, 8, 4 * units),
        "own": _dense(rng, units, 4 * units),
        "bias": np.zeros(4 * units, np.float32),
        "last": _dense(rng, units, 10),
        "last_bias": np.zeros(10, np.float32),
    }
    lines, label = _pictures(rng, batch, 8, 8)
    return params, (lines.transpose(1, 0, 2).copy(), label)


def lstm(f: Any, p: Params, lines: Any, label: Any) -> Any:
    """The loss of the class read from what is shown after the last line."""
    shown = f.lstm(lines, p["line"], p["own"], p["bias"])
    return f.cross_entropy(f.dense(shown, p["last"], p["last_bias"]), label)


def make_vae(rng: Random, small: bool) -> Made:
    """As `examples/vae.py`; the noise is drawn on the host, so that all have the same."""
    points, hidden, codes, batch = (8, 8, 2, 4) if small else (64, 256, 8, 64)
    shapes = {
        "see": (points, hidden), "code": (hidden, 2 * codes),
        "read": (codes, hidden), "draw": (hidden, points),
    }  # fmt: skip
    params: Params = {name: _dense(rng, *shape) for name, shape in shapes.items()}
    params |= {f"{n}_bias": np.zeros(shape[1], np.float32) for n, shape in shapes.items()}
    x = rng.random((batch, points), np.float32)
    return params, (x, _normal(rng, batch, codes))


def vae(f: Any, p: Params, x: Any, noise: Any) -> Any:
    """The negative evidence lower bound of D. Kingma and M. Welling (2014)."""
    hidden = f.nn.silu(f.dense(x, p["see"], p["see_bias"]))
    code = f.dense(hidden, p["code"], p["code_bias"])
    mean, log_variance = code[:, : noise.shape[1]], code[:, noise.shape[1] :]
    drawn = mean + f.xp.exp(log_variance / 2) * noise
    hidden = f.nn.silu(f.dense(drawn, p["read"], p["read_bias"]))
    picture = f.nn.sigmoid(f.dense(hidden, p["draw"], p["draw_bias"]))
    cost = f.xp.square((x - picture) / 0.2).sum(axis=1)
    divergence = (f.xp.square(mean) + f.xp.exp(log_variance) - 1 - log_variance).sum(axis=1)
    return ((cost + divergence) / 2).mean()


def _gpt(blocks: int, width: int, heads: int, context: int, batch: int) -> Model:
    make = partial(make_gpt, blocks=blocks, width=width, context=context, batch=batch)
    return Model(make, partial(gpt, heads=heads), "adam")


MODELS: dict[str, Model] = {
    "ResNet-50 training, 8 of 224×224": Model(partial(make_resnet, training=True), resnet, "sgd"),
    "ResNet-50 inference, 8 of 224×224": Model(partial(make_resnet, training=False), resnet, None),
    "MobileNetV2 block inference, 8 of 24×56×56": Model(make_mobilenet, mobilenet, None),
    "GPT training, 2 blocks of 64, 16 × 128": _gpt(2, 64, 4, 128, 16),
    "GPT training, 6 blocks of 384, 4 × 256": _gpt(6, 384, 6, 256, 4),
    "ViT-Ti/16 training, 8 of 224×224": Model(make_vit, vit, "adam"),
    "LSTM training, 32 of 8 × 8": Model(make_lstm, lstm, "adam"),
    "VAE training, 64 of 64": Model(make_vae, vae, "adam"),
    "LeNet training, 64 of 8×8": Model(make_lenet, lenet, "sgd"),
}

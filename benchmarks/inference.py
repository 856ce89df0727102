"""Time networks with their parameters frozen, as arguments, and without fusion.

    python benchmarks/inference.py [--rounds N]

Medians of interleaved calls, so that other work of the machine meets all alike; launches and bytes
moved.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import bringup as bu

nn = bu.nn
_RNG = np.random.default_rng(0)
Params = dict[str, Any]


def _weights(*shape: int) -> Any:
    return _RNG.normal(size=shape, scale=np.prod(shape[1:]) ** -0.5).astype(np.float32)


def _normed_weights(*shape: int) -> Params:
    names = ("gain", "bias", "mean", "var")
    return {"w": _weights(*shape), **{n: np.abs(_weights(shape[0], 1))[:, 0] + 0.5 for n in names}}


def _normed(p: Params, x: Any, **options: Any) -> Any:
    y = nn.conv(x, p["w"], **options)
    return nn.batch_norm(y, p["gain"], p["bias"], mean=p["mean"], var=p["var"])


def inverted_residual(p: dict[str, Params], x: Any) -> Any:
    """A block of MobileNetV2: wide by points, by feature 3 × 3, narrow by points, and `x`."""
    y = nn.relu6(_normed(p["wide"], x))
    y = nn.relu6(_normed(p["depth"], y, padding=1, groups=y.shape[1]))
    return x + _normed(p["narrow"], y)


def residual(p: dict[str, Params], x: Any) -> Any:
    """A block of ResNet: two convolutions of 3 × 3, and `x`."""
    y = nn.relu(_normed(p["first"], x, padding=1))
    return nn.relu(x + _normed(p["second"], y, padding=1))


def lenet(p: Params, x: Any) -> Any:
    """As `examples/lenet.py`: two convolutions with pooling, two dense layers."""
    for name in ("c1", "c2"):
        x = nn.relu(nn.conv(x, p[name], padding="same") + p[name + "_bias"])
        x = nn.max_pool(x, 2)
    x = bu.reshape(x, (x.shape[0], -1))
    return nn.relu(x @ p["d1"] + p["d1_bias"]) @ p["d2"] + p["d2_bias"]


def product(w: Any, x: Any) -> Any:
    """Activations by weights; sums of integers are of 32 bits."""
    return bu.matmul(x, w, dtype=bu.int32 if x.dtype is bu.int8 else None)


def _drawn(dtype: Any, *shape: int) -> Any:
    return bu.astype(bu.asarray(np.round(64 * _weights(*shape))), dtype)


_MOBILE = {
    "wide": _normed_weights(144, 24, 1, 1),
    "depth": _normed_weights(144, 1, 3, 3),
    "narrow": _normed_weights(24, 144, 1, 1),
}
_RESIDUAL = {name: _normed_weights(64, 64, 3, 3) for name in ("first", "second")}
_SHAPES = {"c1": (16, 1, 3, 3), "c2": (32, 16, 3, 3), "d1": (128, 64), "d2": (64, 10)}
_BIASES = {"c1": (16, 1, 1), "c2": (32, 1, 1), "d1": (64,), "d2": (10,)}
_LENET = {name: _weights(*shape) for name, shape in _SHAPES.items()}
_LENET |= {f"{name}_bias": _weights(1, *shape)[0] for name, shape in _BIASES.items()}

CASES: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "MobileNetV2 block, 1 image": (inverted_residual, _MOBILE, _weights(1, 24, 56, 56)),
    "MobileNetV2 block, 8 images": (inverted_residual, _MOBILE, _weights(8, 24, 56, 56)),
    "ResNet block, 1 image": (residual, _RESIDUAL, _weights(1, 64, 56, 56)),
    "LeNet, 1 image": (lenet, _LENET, _weights(1, 1, 8, 8)),
    "LeNet, 64 images": (lenet, _LENET, _weights(64, 1, 8, 8)),
}
CASES |= {
    f"{rows} rows x 1024 x 1024 {dtype}": (
        product, _drawn(dtype, 1024, 1024), _drawn(dtype, rows, 1024)
    )
    for dtype in (bu.float32, bu.bfloat16, bu.int8)
    for rows in (1, 8, 32, 64, 512)
}  # fmt: skip


def main() -> None:
    """Print a line for each network and each way."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=200, help="calls of each")
    parser.add_argument("--only", default="", help="part of the names of cases")
    options = parser.parse_args()
    rounds = options.rounds
    for name, (fn, params, host) in CASES.items():
        if options.only not in name:
            continue
        p, x = bu.tree.tree_map(bu.asarray, params), bu.asarray(host)
        frozen = bu.freeze(fn, p)
        plain, unfused = bu.jit(fn), bu.jit(fn, fuse=False)
        ways: dict[str, tuple[Any, tuple[Any, ...]]] = {
            "frozen": (frozen, (x,)), "arguments": (plain, (p, x)), "unfused": (unfused, (p, x))
        }  # fmt: skip
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds + 1):
            for way, (call, args) in ways.items():
                start = time.perf_counter()
                np.asarray(call(*args))
                times[way].append(time.perf_counter() - start)
        for way, (call, args) in ways.items():
            cost, median = call.lower(*args).cost(), statistics.median(times[way][1:])
            print(
                f"{name:28} {way:10} {median * 1e6:9.1f} µs"
                f"  {cost.kernels:3} launches  {cost.bytes_read + cost.bytes_written:13,} bytes"
            )


if __name__ == "__main__":
    main()

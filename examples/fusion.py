"""What one line of code becomes: its graph, its kernels, the bytes they move, the source.

    python examples/fusion.py [--device NAME] [--size N] [--all] [--plot FILE]

Computed op by op, ``sum(x + y * z)`` writes two arrays of intermediate results to memory and reads
them back. Fused it is one kernel that reads x, y and z once: nearly all it costs is that reading. A
device may have long sums cut into chunks, which a second kernel adds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import Bars, plot, seconds

import bringup as bu
from bringup.errors import UnsupportedError

ROW = 1024


def sum_of_products(x: bu.Array, y: bu.Array, z: bu.Array) -> bu.Array:
    """Three ops: mul, add, reduce."""
    return bu.sum(x + y * z)


def softmax(x: bu.Array) -> bu.Array:
    """Two reductions of a row and three passes over it, which stays in cache between them."""
    return bu.nn.softmax(x, axis=-1)


def layer_norm(x: bu.Array, gain: bu.Array, bias: bu.Array) -> bu.Array:
    """Mean, variance and the scaled result, of one read of each row from memory."""
    return bu.nn.layer_norm(x, gain=gain, bias=bias)


def show(
    fn: Callable[..., bu.Array], arrays: list[bu.Array], *, kernels: bool, source: bool
) -> Bars:
    """Print what a function becomes on the device of the arrays; the bytes it moves, in MiB."""
    types = ", ".join(str(array.type) for array in arrays)
    print(f"\n==== {fn.__name__}({types})\n")
    fused = bu.jit(fn).lower(*arrays)
    print(fused.graph)
    for kernel in fused.kernels if kernels else ():
        print(f"\n{kernel}")
    print(f"\n{'':10} launches   bytes read   bytes written")
    costs = {"op by op": bu.jit(fn, fuse=False).lower(*arrays).cost(), "fused": fused.cost()}
    for name, cost in costs.items():
        print(f"{name:10} {cost.kernels:8} {cost.bytes_read:12,} {cost.bytes_written:15,}")
    sizes = [(n, (cost.bytes_read + cost.bytes_written) / 2**20) for n, cost in costs.items()]
    moved = Bars(f"moved by {fn.__name__}", "MiB", sizes)
    try:
        text, asm = fused.source, fused.asm
    except UnsupportedError as error:
        print(f"source     none: {error.what}")
        return moved
    print(f"source     {text.count(chr(10))} lines, assembled to {asm.count(chr(10))}")
    if source:
        print(f"\n{text}")
    return moved


def race(x: bu.Array, y: bu.Array, z: bu.Array) -> Bars:
    """Time the one line as three calls and as one."""
    multiply, add, total = bu.jit(bu.multiply), bu.jit(bu.add), bu.jit(bu.sum)
    one = bu.jit(sum_of_products)
    apart, fused = seconds(
        lambda: float(total(add(x, multiply(y, z)))), lambda: float(one(x, y, z))
    )
    print(f"\n==== time of sum_of_products, {x.size:,} elements\n")
    print(f"three calls {apart * 1e3:8.3f} ms")
    print(f"one         {fused * 1e3:8.3f} ms, {apart / fused:.1f} times as fast")
    return Bars("sum_of_products", "ms", [("op by op", apart * 1e3), ("fused", fused * 1e3)])


def main() -> None:
    """Read the options, show three functions, time one."""
    parser = argparse.ArgumentParser(description="Show what one line of code becomes.")
    parser.add_argument("--device", help="as `bringup devices` lists it; by default the first")
    parser.add_argument("--size", type=int, default=1 << 22, help=f"elements, at least {ROW}")
    parser.add_argument("--all", action="store_true", help="print every kernel and its source")
    parser.add_argument("--plot", type=Path, help="a PNG or SVG file for a picture of the costs")
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    with bu.device(options.device):
        x, y, z = (bu.asarray(rng.random(options.size, np.float32)) for _ in range(3))
        rows = bu.asarray(rng.random((options.size // ROW, ROW), np.float32))
        gain, bias = bu.asarray(np.ones(ROW, np.float32)), bu.asarray(np.zeros(ROW, np.float32))
        bars = [
            show(sum_of_products, [x, y, z], kernels=True, source=options.all),
            show(softmax, [rows], kernels=options.all, source=options.all),
            show(layer_norm, [rows, gain, bias], kernels=options.all, source=options.all),
            race(x, y, z),
        ]
    plot(options.plot, f"{options.size:,} elements of f32", bars=bars)


if __name__ == "__main__":
    main()

"""Layers that frameworks fuse by name: their launches, in inference and training, and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.ops.table import lookup
from bringup.program.program import KernelStep

nn = bu.nn
f32 = bu.float32
Host = np.ndarray[Any, Any]
Params = dict[str, Any]
#: Of f32.
ROUNDOFF = 2.0**-24


@pytest.fixture(autouse=True)
def _on_this_device() -> Iterator[None]:
    with bu.device("cpu"):
        yield


def column(v: Any) -> Any:
    return bu.reshape(v, (-1, 1, 1))


def normed(y: Any, p: Params) -> Any:
    return nn.batch_norm(y, p["gain"], p["shift"], mean=p["mean"], var=p["var"])


def normed_in_training(y: Any, p: Params) -> Any:
    return nn.batch_norm_train(y, p["gain"], p["shift"], mean=p["mean"], var=p["var"])[0]


@dataclass(frozen=True)
class Pattern:
    """A layer, and what it costs.

    reads: its parameters but the weights, a number for each of 16 features.
    plain, frozen: launches with parameters as arguments, and with parameters frozen.
    step: launches of result and gradients by x and parameters: those on the way to the result,
    which may begin on gradients, and the others.
    training: the layer in training, if that is another one, and its launches.
    """

    fn: Callable[[Params, Any], Any]
    x: tuple[int, ...]
    weights: tuple[int, ...]
    reads: tuple[str, ...]
    plain: int
    frozen: int
    step: tuple[int, int]
    training: tuple[Callable[[Params, Any], Any], int] | None = None


IMAGE, KERNEL, MATRIX = (8, 8, 18, 18), (16, 8, 3, 3), (32, 16)
NORM = ("gain", "shift", "mean", "var")

PATTERNS = {
    "convolution, bias, activation": Pattern(
        lambda p, x: nn.relu(nn.conv(x, p["w"]) + column(p["b"])),
        IMAGE, KERNEL, ("b",), plain=1, frozen=1, step=(1, 4),
    ),
    # Without freezing, the factors are made first, one number per feature.
    "convolution, batch norm, activation": Pattern(
        lambda p, x: nn.relu(normed(nn.conv(x, p["w"]), p)),
        IMAGE, KERNEL, NORM, plain=2, frozen=1, step=(3, 3),
        # Statistics of the batch are there when the whole product is: one kernel makes them,
        # normalises and applies the activation.  With gradients, it makes their sums instead.
        training=(lambda p, x: nn.relu(normed_in_training(nn.conv(x, p["w"]), p)), 2),
    ),
    "convolution, bias, batch norm, activation": Pattern(
        lambda p, x: nn.relu(normed(nn.conv(x, p["w"]) + column(p["b"]), p)),
        IMAGE, KERNEL, ("b", *NORM), plain=2, frozen=1, step=(3, 4),
        training=(
            lambda p, x: nn.relu(normed_in_training(nn.conv(x, p["w"]) + column(p["b"]), p)), 2
        ),
    ),
    "convolution, squeeze, bias": Pattern(
        lambda p, x: bu.squeeze(nn.conv(x, p["w"]), axis=3) + p["b"][:, None],
        IMAGE, (16, 8, 3, 18), ("b",), plain=1, frozen=1, step=(1, 4),
    ),
    "product, bias, activation": Pattern(
        lambda p, x: nn.relu(x @ p["w"] + p["b"]),
        (240, 32), MATRIX, ("b",), plain=1, frozen=1, step=(1, 3),
    ),
    "product, bias, gelu": Pattern(
        lambda p, x: nn.gelu(x @ p["w"] + p["b"]),
        (240, 32), MATRIX, ("b",), plain=1, frozen=1, step=(1, 3),
    ),
    # The largest of a row is known when the whole row is, and a unit of a product is a tile.
    "product, bias, activation, softmax": Pattern(
        lambda p, x: nn.softmax(nn.relu(x @ p["w"] + p["b"]), axis=1),
        (240, 32), MATRIX, ("b",), plain=2, frozen=2, step=(2, 3),
    ),
}  # fmt: skip


def drawn(pattern: Pattern) -> tuple[dict[str, Host], Host]:
    """Parameters and an argument."""
    rng = np.random.default_rng(0)
    p = {name: rng.normal(size=16) for name in pattern.reads} | {
        "w": rng.normal(size=pattern.weights)
    }
    if "var" in p:
        p["var"] = np.abs(p["var"]) + 0.5
    x = rng.normal(size=pattern.x)
    return {name: v.astype(np.float32) for name, v in p.items()}, x.astype(np.float32)


def launches_in_training(pattern: Pattern) -> tuple[int, int]:
    """Launches on the way to the result, some of which start on gradients, and all others."""
    fn = pattern.training[0] if pattern.training is not None else pattern.fn
    p, x = drawn(pattern)
    # What runs along in training has no gradient.
    running = {name: p.pop(name) for name in ("mean", "var") if name in p}

    def step(p: Params, x: Any, cotangent: Any) -> Any:
        y, pull = bu.vjp(lambda p, x: fn(p | running, x), p, x)
        return y, pull(cotangent)

    result = bu.eval_shape(fn, p | running, x)
    program = bu.jit(step).lower(p, x, result).program
    needed = {("output", 0, 0)}
    counts = [0, 0]
    for launch in reversed(program.steps):
        assert isinstance(launch, KernelStep)
        read, written = (
            {(slot.space, slot.index, slot.offset) for slot in map(launch.slots.__getitem__, each)}
            for each in (launch.kernel.inputs, launch.kernel.outputs)
        )
        leads = not needed.isdisjoint(written)
        if leads:
            needed = (needed - written) | read
        counts[not leads] += 1
    return counts[0], counts[1]


@pytest.mark.parametrize("name", PATTERNS)
def test_launches(name: str) -> None:
    pattern = PATTERNS[name]
    p, x = drawn(pattern)
    assert bu.jit(pattern.fn).lower(p, x).cost().kernels == pattern.plain
    assert bu.freeze(pattern.fn, p).lower(x).cost().kernels == pattern.frozen
    assert launches_in_training(pattern) == pattern.step
    if pattern.training is not None:
        fn, kernels = pattern.training
        assert bu.jit(fn).lower(p, x).cost().kernels == kernels


def test_a_gain_that_is_cheap_to_make_again_needs_no_launch_of_its_own() -> None:
    """As many numbers as in a few features of small images cost less than a launch."""
    pattern = PATTERNS["convolution, batch norm, activation"]
    p, _ = drawn(pattern)
    assert bu.jit(pattern.fn).lower(p, f32[4, 8, 10, 10]).cost().kernels == 1


def exact(name: str, p: dict[str, Host], x: Host) -> tuple[Host, Host]:
    """The layer before its activation in f64, and a bound of its error in f32, with parameters
    frozen or not.
    """
    wide = {key: value.astype(np.float64) for key, value in p.items()}
    if name.startswith("product"):
        terms = [(x @ wide["w"])[..., None], (np.abs(x) @ np.abs(wide["w"]))[..., None]]
        per_feature: tuple[int, ...] = (16, 1)
        length = x.shape[1]
    else:
        windows = np.lib.stride_tricks.sliding_window_view(x, p["w"].shape[2:], (2, 3))
        ways = ((windows, wide["w"]), (np.abs(windows), np.abs(wide["w"])))
        terms = [np.einsum("nchwij,ocij->nohw", a, b, optimize=True) for a, b in ways]
        per_feature = (16, 1, 1)
        length = p["w"][0].size
    numbers = {key: value.reshape(per_feature) for key, value in wide.items() if key != "w"}
    scale, shifts = np.ones(per_feature), [numbers.get("b", np.zeros(per_feature))]
    if "var" in numbers:
        scale = numbers["gain"] / np.sqrt(numbers["var"] + 1e-5)
        shifts = [shifts[0] * scale, -numbers["mean"] * scale, numbers["shift"]]
    value = terms[0] * scale + sum(shifts)
    size = terms[1] * np.abs(scale) + sum(np.abs(each) for each in shifts)
    # Products and their sum; three shifts and a scale; four roundings in the scale itself.
    roundings = (length + 8) * ROUNDOFF
    shape = value.shape[:-1] if name.startswith("product") else value.shape
    if "squeeze" in name:
        shape = value.shape[:-1]
    return value.reshape(shape), (roundings / (1 - roundings) * size).reshape(shape)


@pytest.mark.parametrize("name", [n for n in PATTERNS if "gelu" not in n])
def test_numbers(name: str) -> None:
    pattern = PATTERNS[name]
    p, x = drawn(pattern)
    value, error = exact(name, p, x.astype(np.float64))
    if "activation" in name:
        value = np.maximum(value, 0)  # moves no two numbers apart
    if "softmax" in name:
        # A result is exp(z - max) / sum.  Errors of z and max, and the rounding of z - max, change
        # each power by a factor, and so the sum; then powers, sum and quotient are rounded.
        powers = np.exp(value - value.max(axis=1, keepdims=True))
        value = powers / powers.sum(axis=1, keepdims=True)
        exponents = 2 * error - ROUNDOFF * np.log(value)
        powers_off = 2 * lookup("exp").accuracy.ulp["f32"] * ROUNDOFF
        rounded = 2 * powers_off + (value.shape[1] + 1) * ROUNDOFF
        error = np.expm1(2 * exponents.max(axis=1, keepdims=True) + 2 * rounded) * value
    frozen = bu.freeze(pattern.fn, p)
    for y in (bu.jit(pattern.fn)(p, x), frozen(x)):
        found = np.asarray(y).astype(np.float64)
        assert np.all(np.abs(found - value) <= error)


def test_launches_of_a_block_that_is_computed_again_do_not_wait_for_each_other() -> None:
    """A launch that ends early may wait for one that ends late, and so for what that waits for."""

    def layer(p: Any, s: Any, x: Any, stride: int = 1) -> Any:
        x = bu.nn.conv(x, p[0], stride=stride, padding=p[0].shape[-1] // 2)
        x, mean, var = bu.nn.batch_norm_train(x, p[1], p[2], mean=s[0], var=s[1])
        return x, (mean, var)

    def block(p: Any, s: Any, x: Any) -> Any:
        y, first = layer(p[0], s[0], x)
        y, second = layer(p[1], s[1], bu.nn.relu(y))
        y, third = layer(p[2], s[2], bu.nn.relu(y))
        x, shortcut = layer(p[3], s[3], x)
        return bu.nn.relu(x + y), (first, second, third, shortcut)

    def loss(p: Any, s: Any, x: Any) -> Any:
        x, stem = layer(p[0], s[0], x, 2)
        x, rest = bu.checkpoint(block)(p[1], s[1], bu.nn.relu(x))
        return bu.sum(bu.mean(x, axis=(2, 3)) @ p[2]), (stem, rest)

    def params(outputs: int, inputs: int, size: int) -> Any:
        kernel = bu.float32[outputs, inputs, size, size]
        return (kernel, bu.float32[outputs], bu.float32[outputs])

    sizes = (8, 8, 1), (8, 8, 3), (32, 8, 1), (32, 8, 1)
    p = (params(8, 3, 7), [params(*size) for size in sizes], bu.float32[32, 4])
    s = tuple((bu.float32[n], bu.float32[n]) for n in (8, 8, 8, 32, 32))
    step = bu.jit(bu.grad(loss, has_aux=True))
    assert step.lower(p, (s[0], s[1:]), bu.float32[8, 3, 16, 16]).cost().kernels < 50

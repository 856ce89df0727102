"""What the networks for pictures share: convolutions with batch norm, and their training."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import common
import numpy as np
from common import Bars, Host, Training, batches, compared, plot, trained

import bringup as bu

Params = dict[str, Any]
Stats = dict[str, Any]
#: ``(params, stats, x, training=) -> (scores, stats)``.
Network = Callable[..., tuple[bu.Array, Stats]]


def parser(description: str, steps: int, batch: int) -> argparse.ArgumentParser:
    """The options that `train` reads.

    steps, batch: how many steps, and pictures in one, by default.
    """
    options = common.parser(description, steps)
    flag = argparse.BooleanOptionalAction
    options.add_argument("--batch", type=int, default=batch, help="pictures in a step")
    options.add_argument("--donate", action=flag, default=True, help="reuse parameters' memory")
    options.add_argument("--compare", action="store_true", help="training and inference op by op")
    options.add_argument("--repeats", type=int, default=5, help="of each call that is compared")
    return options


def layer(key: bu.random.Key, shape: tuple[int, ...], gain: float = 1.0) -> Params:
    """A convolution's weights, ``(out, in, n, n)``, with the gain and bias of its batch norm."""
    return {
        "weights": bu.nn.init.he_normal(key, shape, dtype=bu.float32, in_axis=1, out_axis=0),
        "gain": bu.full(shape[0], gain, dtype=bu.float32),
        "bias": bu.zeros(shape[0], dtype=bu.float32),
    }


def conv_norm(
    p: Params, s: Stats, x: bu.Array, training: bool, stride: int = 1, groups: int = 1
) -> tuple[bu.Array, Stats]:
    """A convolution and its batch norm; in training by the batch, with the statistics updated."""
    padding = p["weights"].shape[-1] // 2
    x = bu.nn.conv(x, p["weights"], stride=stride, padding=padding, groups=groups)
    if not training:
        return bu.nn.batch_norm(x, p["gain"], p["bias"], **s), s
    x, mean, var = bu.nn.batch_norm_train(x, p["gain"], p["bias"], **s)
    return x, {"mean": mean, "var": var}


def init_stats(params: Any) -> Any:
    """The running statistics of each batch norm in a container of layers."""
    if isinstance(params, list):
        return [init_stats(part) for part in params]
    if "gain" in params:
        return {"mean": bu.zeros_like(params["gain"]), "var": bu.ones_like(params["gain"])}
    return {name: init_stats(p) for name, p in params.items() if not isinstance(p, bu.Array)}


def trainer(
    network: Network, optimizer: bu.optim.Optimizer, donate: bool = True
) -> bu.Jitted[..., Any]:
    """A step as one program: new parameters, statistics and state of the optimiser, and the loss.

    donate: put the new ones in the memory of the old ones, which are gone then.
    """

    def loss(params: Params, stats: Stats, x: bu.Array, label: bu.Array) -> Any:
        found, stats = network(params, stats, x, training=True)
        return bu.mean(bu.nn.cross_entropy(found, label)), stats

    @partial(bu.jit, donate_argnums=(0, 1, 2) if donate else ())
    def step(params: Params, stats: Stats, state: Any, x: bu.Array, label: bu.Array) -> Any:
        (value, stats), slopes = bu.value_and_grad(loss, has_aux=True)(params, stats, x, label)
        params, state = optimizer.update(slopes, state, params)
        return params, stats, state, value

    return step


def accuracy(predict: Callable[[bu.Array], bu.Array], x: Host, label: Host, size: int) -> float:
    """The share of pictures whose highest score is that of their class."""
    parts = range(0, len(x), size)
    found = [np.argmax(np.asarray(predict(bu.asarray(x[i : i + size]))), axis=1) for i in parts]
    return float(np.mean(np.concatenate(found) == label))


def train(
    title: str,
    network: Network,
    optimizer: bu.optim.Optimizer,
    params: Params,
    stats: Stats,
    data: tuple[Host, Host],
    options: argparse.Namespace,
) -> tuple[Params, Stats]:
    """The trained parameters and their statistics; prints how the loss falls, and how fast."""
    step, training = trainer(network, optimizer, options.donate), Training(options.steps)
    feed = batches(data, options.batch, options.steps)

    def run(known: tuple[Params, Stats]) -> tuple[Params, Stats]:
        params, stats, _ = training.run(feed, step, *known, optimizer.init(known[0]))
        return params, stats

    params, stats = trained(options, (params, stats), run)
    print(training.said())
    x, label = (bu.asarray(part) for part in next(batches(data, options.batch, 1)))
    arguments = params, stats, optimizer.init(params), x, label
    cost = step.lower(*arguments).cost()
    scratch, peak = (size / 2**20 for size in (cost.arena_bytes, cost.peak_bytes))
    print(f"{cost.kernels} kernels a step, {scratch:,.1f} MiB of scratch, {peak:,.1f} MiB in all")
    bars: list[Bars] = []
    if options.compare:

        @bu.jit
        def predict(params: Params, stats: Stats, x: bu.Array) -> bu.Array:
            return bu.argmax(network(params, stats, x, training=False)[0], axis=1)

        repeats = options.repeats
        bars = [
            compared("time of a step", "loss", step, *arguments, repeats=repeats),
            compared("time of inference", "classes", predict, params, stats, x, repeats=repeats),
        ]
    plot(options.plot, title, ("fused", training), bars=bars)
    return params, stats

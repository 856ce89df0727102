"""Handwritten digits: LeNet with a tenth of its weights, then with fewer units.

    python examples/pruned.py [--device NAME] [--steps N] [--plot FILE]

LeNet is trained, then pruned gradually while it is trained on: in the end 90 % of the weights of
each layer are zero. Zeros alone save no time. So the dense network is also pruned by whole units,
channels of convolutions and columns of a dense layer; `without_units` takes out what is zero
altogether, and the same function of smaller arrays is compiled to a smaller program.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from common import Host, Training, batches, digits, measured, parser, table
from lenet import Params, init, loss, scores, shifted

import bringup as bu

BATCH = 64
#: What makes and what reads each channel or unit; a channel of `c2` is 2 × 2 rows of `d1`.
UNITS = [
    bu.prune.Units(
        made={f"['{name}']": axis, f"['{name}_bias']": 0}, read={f"['{reader}']": read_axis}
    )
    for name, axis, reader, read_axis in (
        ("c1", 0, "c2", 1),
        ("c2", 0, "d1", 0),
        ("d1", 1, "d2", 0),
    )
]


def weights(path: str) -> bool:
    """Whether a parameter is no bias."""
    return "bias" not in path


def train(
    params: Params,
    data: tuple[Host, Host],
    steps: int,
    rate: float,
    pruning: bu.prune.Gradual | None = None,
) -> tuple[Params, Training]:
    """The trained parameters, pruned after each step of the optimiser."""
    optimizer = bu.optim.adam(bu.optim.cosine_schedule(rate, steps))

    @partial(bu.jit, donate_argnums=(1, 2))
    def step(params: Params, state: Any, pruned: Any, x: bu.Array, label: bu.Array) -> Any:
        value, gradients = bu.value_and_grad(loss)(params, x, label)
        params, state = optimizer.update(gradients, state, params)
        if pruning is not None:
            params, pruned = pruning.update(params, pruned)
        return params, state, pruned, value

    training, rng = Training(steps), np.random.default_rng(2)
    feed = ((shifted(x, rng), label) for x, label in batches(data, BATCH, steps))
    pruned = () if pruning is None else pruning.init(params)
    params, *_ = training.run(feed, step, params, optimizer.init(params), pruned)
    return params, training

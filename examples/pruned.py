"""Handwritten digits: LeNet with a tenth of its weights, and with fewer units.

    python examples/pruned.py [--device NAME] [--steps N] [--plot FILE]

LeNet is trained, then trained on while more and more weights become zero, in the end the least 90 %
of all. Zeros alone save no time; some units are left without weights, and `without_units` takes
them out. More is saved where whole units of the dense network are chosen, channels of convolutions
and columns of a dense layer: the same function of smaller arrays is compiled to a smaller program.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from common import Host, Training, batches, digits, measured, parser, table
from lenet import Params, init, loss, scores

import bringup as bu

BATCH = 32
#: The share of weights that become zero, and of units that are removed.
SPARSITY, FEWER = 0.9, 0.5
#: The layers with units, the axis that counts them, and who reads them; a channel of `c2` is 2 × 2
#: rows of `d1`.
LAYERS = (("c1", 0, "c2", 1), ("c2", 0, "d1", 0), ("d1", 1, "d2", 0))
UNITS = [
    bu.prune.Units(made={f"['{name}']": axis, f"['{name}_bias']": 0}, read={f"['{to}']": to_axis})
    for name, axis, to, to_axis in LAYERS
]


def without_least(params: Params) -> Params:
    """Smaller parameters, without the units of each layer whose weights are least."""
    zeroed = dict(params)
    for name, axis, *_ in LAYERS:
        weights, bias = params[name], params[f"{name}_bias"]
        rows = bu.reshape(bu.moveaxis(weights, axis, 0), (bias.shape[0], -1))
        stays = bu.prune.masks(rows, FEWER, block=(1, None))[:, 0]
        others = [n for n in range(weights.ndim) if n != axis]
        zeroed[name] = bu.where(bu.expand_dims(stays, axis=others), weights, 0.0)
        zeroed[f"{name}_bias"] = bu.where(bu.reshape(stays, bias.shape), bias, 0.0)
    return dict(bu.prune.without_units(zeroed, UNITS))


def trainer(data: tuple[Host, Host], steps: int) -> Callable[..., Any]:
    """``train(params, pruned) -> (params, pruned)``, which says how so many steps went.

    pruned: what pruning remembers, nothing at first; it begins after the first so many steps.
    """
    optimizer = bu.optim.adam(bu.optim.cosine_schedule(3e-3, steps))
    rise = bu.prune.polynomial(0.0, SPARSITY, steps=max(steps // 2, 1), begin=steps)
    # Biases of channels have axes of size 1 after the first.
    pruning = bu.prune.gradual(
        rise, every=5, scope="global", prunes=lambda p: p.ndim > 1 and p.shape[-1] > 1
    )

    @partial(bu.jit, donate_argnums=(1, 2))
    def step(params: Params, state: Any, pruned: Any, x: bu.Array, label: bu.Array) -> Any:
        value, gradients = bu.value_and_grad(loss)(params, x, label)
        params, state = optimizer.update(gradients, state, params)
        params, pruned = pruning.update(params, pruned)
        return params, state, pruned, value

    def train(name: str, params: Params, pruned: Any = None) -> tuple[Params, Any]:
        training = Training(steps)
        before = params, optimizer.init(params), pruned or pruning.init(params)
        params, _, pruned = training.run(batches(data, BATCH, steps), step, *before)
        print(f"{name}: {training.said()}")
        return params, pruned

    return train


def main() -> None:
    """Read the options, train, prune, compare."""
    options = parser("Prune LeNet on handwritten digits.", steps=1000).parse_args()
    data, (x, label) = digits()
    with bu.device(options.device) as device:
        print(f"{len(data[1])} digits to learn, {len(label)} to test, on {device}")
        train = trainer(data, options.steps)
        dense, pruned = train("dense", init())
        sparse, _ = train("pruned", dense, pruned)
        fewer, _ = train("half of the units", without_least(dense))
        variants = {
            "dense": dense,
            f"{SPARSITY:.0%} zeros": sparse,
            "  without idle units": bu.prune.without_units(sparse, UNITS),
            "half of the units": fewer,
        }
        rows = [measured(name, scores, params, x, label) for name, params in variants.items()]
    table(options.plot, "LeNet, pruned", len(label), rows)


if __name__ == "__main__":
    main()

"""Handwritten digits: LeNet with a tenth of its weights, and with fewer units; a dense network with
a tenth of its blocks.

    python examples/pruned.py [--device NAME] [--steps N] [--plot FILE]

LeNet is trained, then trained on while more and more weights become zero, in the end the least 90 %
of all. Zeros alone save no time; some units are left without weights, and `without_units` takes
them out. More is saved where whole units of the dense network are chosen, channels of convolutions
and columns of a dense layer: the same function of smaller arrays is compiled to a smaller program.
Where layers are wide, blocks of weights become zero together, and `block_sparse_params` stores the
matrices without them: what stands on the right of `@` is smaller, and the product costs less.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import lenet
import quantised
from common import Host, Training, batches, digits, measured, parser, table, trained
from lenet import Params

import bringup as bu

BATCH = 32
#: The share of weights or blocks that become zero, and of units that are removed.
SPARSITY, FEWER = 0.9, 0.5
BLOCK = (16, 16)
Networks = dict[str, Any]
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


def initial() -> Networks:
    """LeNet as it is trained, pruned by weights and with fewer units; then the same of the dense
    network, whose pruned one has blocks of zeros.
    """
    convolved, flat = lenet.init(), quantised.init(bu.random.key(0))
    fewer = without_least(convolved)
    return {"dense": convolved, "sparse": convolved, "fewer": fewer, "flat": flat, "blocks": flat}


def trainer(
    scores: Callable[..., bu.Array],
    data: tuple[Host, Host],
    steps: int,
    done: list[tuple[str, Training]],
    **how: Any,
) -> Callable[..., Any]:
    """``train(name, params, pruned) -> (params, pruned)``, which adds how it went to `done`.

    how: which weights are pruned, as `bu.prune.gradual` takes it.
    pruned: what pruning remembers, nothing at first; it begins after the first so many steps.
    """
    optimizer = bu.optim.adam(bu.optim.cosine_schedule(3e-3, steps))
    rise = bu.prune.polynomial(0.0, SPARSITY, steps=max(steps // 2, 1), begin=steps)
    pruning = bu.prune.gradual(rise, every=5, **how)

    def loss(params: Any, x: bu.Array, label: bu.Array) -> bu.Array:
        return bu.mean(bu.nn.cross_entropy(scores(params, x), label))

    @partial(bu.jit, donate_argnums=(1, 2))
    def step(params: Any, state: Any, pruned: Any, x: bu.Array, label: bu.Array) -> Any:
        value, gradients = bu.value_and_grad(loss)(params, x, label)
        params, state = optimizer.update(gradients, state, params)
        params, pruned = pruning.update(params, pruned)
        return params, state, pruned, value

    def train(name: str, params: Any, pruned: Any = None) -> tuple[Any, Any]:
        training = Training(steps)
        before = params, optimizer.init(params), pruned or pruning.init(params)
        params, _, pruned = training.run(batches(data, BATCH, steps), step, *before)
        print(f"{name}: {training.said()}")
        done.append((name, training))
        return params, pruned

    return train


def train(
    data: tuple[Host, Host], steps: int, done: list[tuple[str, Training]], networks: Networks
) -> Networks:
    """The networks trained."""
    # Biases of channels have axes of size 1 after the first.
    weights = {"prunes": lambda p: p.ndim > 1 and p.shape[-1] > 1, "scope": "global"}
    train = trainer(lenet.scores, data, steps, done, **weights)
    dense, pruned = train("dense", networks["dense"])
    sparse, _ = train("pruned", dense, pruned)
    fewer, _ = train("half of the units", without_least(dense))
    lines = data[0].reshape(len(data[0]), -1), data[1]
    divided = {"prunes": lambda p: p.ndim > 1 and p.shape[-1] % BLOCK[1] == 0, "block": BLOCK}
    train = trainer(quantised.scores, lines, steps, done, **divided)
    flat, pruned = train("dense layers", networks["flat"])
    blocks, _ = train("pruned by blocks", flat, pruned)
    return {"dense": dense, "sparse": sparse, "fewer": fewer, "flat": flat, "blocks": blocks}


def main() -> None:
    """Read the options, train, prune, compare."""
    options = parser("Prune LeNet on handwritten digits.", steps=1000).parse_args()
    data, (x, label) = digits()
    done: list[tuple[str, Training]] = []
    with bu.device(options.device) as device:
        print(f"{len(data[1])} digits to learn, {len(label)} to test, on {device}")
        found = trained(options, initial(), partial(train, data, options.steps, done))
        units = {
            "dense": found["dense"],
            f"{SPARSITY:.0%} zeros": found["sparse"],
            "  without idle units": bu.prune.without_units(found["sparse"], UNITS),
            "half of the units": found["fewer"],
        }
        blocks = {
            "dense layers": found["flat"],
            f"{SPARSITY:.0%} zero blocks": found["blocks"],
            "  stored without them": bu.prune.block_sparse_params(found["blocks"], block=BLOCK),
        }
        lines = x.reshape(len(x), -1)
        rows = [measured(name, lenet.scores, p, x, label) for name, p in units.items()]
        rows += [measured(name, quantised.scores, p, lines, label) for name, p in blocks.items()]
        table(options.plot, "LeNet and a dense network, pruned", len(label), rows, *done)


if __name__ == "__main__":
    main()

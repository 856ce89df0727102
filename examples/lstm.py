"""Handwritten digits read line by line: an LSTM, trained on any device.

    python examples/lstm.py [--device NAME] [--steps N] [--batch N] [--plot FILE]

The network sees one line of a picture after the other and names the digit at the end. `scan` runs
the cell over the lines, and `value_and_grad` goes back through it. Another `scan` runs the training
step over the batches, so a whole epoch is one call of one program; where a device has no loops of
its own, the host runs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from common import Host, Training, batches, digits, parser, plot, right, trained

import bringup as bu

Params = dict[str, bu.Array]
State = tuple[bu.Array, bu.Array]

UNITS, POINTS, RATE = 64, 8, 0.01


def init() -> Params:
    """The cell's weights for a line and for its own output, its biases, and the last layer."""
    rng = np.random.default_rng(0)

    def weights(inputs: int, outputs: int) -> bu.Array:
        return bu.asarray(rng.normal(0, inputs**-0.5, (inputs, outputs)).astype(np.float32))

    remember = np.zeros(4 * UNITS, np.float32)
    remember[UNITS : 2 * UNITS] = 1  # at first the cell keeps what it has seen
    return {
        "line": weights(POINTS, 4 * UNITS),
        "own": weights(UNITS, 4 * UNITS),
        "bias": bu.asarray(remember),
        "last": weights(UNITS, 10),
        "last_bias": bu.zeros(10, dtype=bu.float32),
    }


def cell(p: Params, state: State, line: bu.Array) -> State:
    """What to take in, what to keep, what to show (S. Hochreiter and J. Schmidhuber, 1997)."""
    shown, kept = state
    gates = line @ p["line"] + shown @ p["own"] + p["bias"]
    take, keep, value, show = (gates[:, i * UNITS : (i + 1) * UNITS] for i in range(4))
    kept = bu.nn.logistic(keep) * kept + bu.nn.logistic(take) * bu.tanh(value)
    return bu.nn.logistic(show) * bu.tanh(kept), kept


def scores(params: Params, pictures: bu.Array) -> bu.Array:
    """One row of ten scores per picture."""
    lines = bu.permute_dims(pictures, (1, 0, 2))
    start = bu.zeros((pictures.shape[0], UNITS), dtype=bu.float32)
    end: State
    end, _ = bu.scan(lambda s, line: (cell(params, s, line), None), (start, start), lines)
    return end[0] @ params["last"] + params["last_bias"]


def loss(params: Params, pictures: bu.Array, labels: bu.Array) -> bu.Array:
    """The mean cross-entropy."""
    return bu.mean(bu.nn.cross_entropy(scores(params, pictures), labels))


def trainer(optimizer: bu.optim.Optimizer) -> Any:
    """An epoch as one program: the parameters, what the optimiser remembers, the losses."""

    def step(carry: Any, batch: Any) -> Any:
        params, state = carry
        value, gradients = bu.value_and_grad(loss)(params, *batch)
        return optimizer.update(gradients, state, params), value

    @partial(bu.jit, donate_argnums=(0, 1))
    def epoch(params: Params, state: Any, pictures: bu.Array, labels: bu.Array) -> Any:
        (params, state), losses = bu.scan(step, (params, state), (pictures, labels))
        return params, state, losses

    return epoch


def epochs(data: tuple[Host, Host], size: int, steps: int) -> Iterator[Any]:
    """The batches of each epoch stacked, the same number of them in every epoch."""
    count = min(len(data[1]) // size, steps)
    feed = batches(data, size, steps // count * count)
    for together in zip(*[feed] * count, strict=True):
        yield tuple(np.stack(parts) for parts in zip(*together, strict=True))


def main() -> None:
    """Read the options, train."""
    reader = parser("Train an LSTM on handwritten digits.", steps=1680)
    reader.add_argument("--batch", type=int, default=32, help="pictures in a step")
    options = reader.parse_args()
    (x, label), (x_test, label_test) = digits()
    optimizer = bu.optim.adam(bu.optim.cosine_schedule(RATE, options.steps))
    feed = list(epochs((x[:, 0], label), options.batch, options.steps))
    training = Training(len(feed))

    def train(params: Params) -> Params:
        found: Params
        found, _ = training.run(feed, trainer(optimizer), params, optimizer.init(params))
        return found

    with bu.device(options.device) as device:
        print(f"{len(x)} digits to learn, {len(x_test)} to test, on {device}")
        params = trained(options, init(), train)
        found = bu.jit(scores)(params, bu.asarray(x_test[:, 0]))
        share = right(found, label_test) / len(label_test)
    print(f"LSTM: {training.said()}, test accuracy {share:.1%}")
    plot(options.plot, "digits line by line, LSTM", ("LSTM", training))


if __name__ == "__main__":
    main()

"""Handwritten digits read line by line: an LSTM, trained on any device.

    python examples/lstm.py [--device NAME] [--epochs N] [--batch N] [--batches N]

The network sees one line of a picture after the other and names the digit at the end. `scan` runs
the cell over the lines, and `value_and_grad` goes back through it. Another `scan` runs the training
step over the batches, so a whole epoch is one call of one program; where a device has no loops of
its own, the host runs them.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import numpy as np

import bringup as bu

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ModuleNotFoundError:
    raise SystemExit('the digits are missing: pip install "bringup[examples]"') from None

Params = dict[str, bu.Array]
State = tuple[bu.Array, bu.Array]
Host = np.ndarray[Any, Any]

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
        return bu.scan(step, (params, state), (pictures, labels))

    return epoch


@bu.jit
def accuracy(params: Params, pictures: bu.Array, labels: bu.Array) -> bu.Array:
    """The share of pictures whose highest score is that of their digit."""
    found = bu.argmax(scores(params, pictures), axis=1)
    return bu.mean(bu.astype(found == labels, bu.float32))


def batches(x: Host, label: Host, size: int, count: int, rng: np.random.Generator) -> Any:
    """Pictures in another order, in so many batches of one size."""
    chosen = rng.permutation(len(x))[: count * size].reshape(count, size)
    return bu.asarray(x[chosen]), bu.asarray(label[chosen])


def train(x: Host, y: Host, options: argparse.Namespace) -> Params:
    """The trained parameters; prints how the loss falls, and how fast."""
    count = min(len(x) // options.batch, options.batches)
    optimizer = bu.optim.adam(bu.optim.cosine_schedule(RATE, options.epochs * count))
    epoch, rng = trainer(optimizer), np.random.default_rng(1)
    params = init()
    state = optimizer.init(params)
    for number in range(1, options.epochs + 1):
        data = batches(x, y, options.batch, count, rng)
        begin = time.perf_counter()
        (params, state), losses = epoch(params, state, *data)
        found = np.asarray(losses)  # waits for the device
        each = (time.perf_counter() - begin) / count * 1e6
        if number in (1, options.epochs) or number % 10 == 0:
            print(f"epoch {number:3}: loss {found[0]:.4f} -> {found[-1]:.6f}, {each:.0f} µs a step")
    return params


def main() -> None:
    """Read the options, split the pictures, train."""
    parser = argparse.ArgumentParser(description="Train an LSTM on handwritten digits.")
    parser.add_argument("--device", help="as `bringup devices` lists it; by default the first")
    parser.add_argument("--epochs", type=int, default=40, help="how often to see every picture")
    parser.add_argument("--batch", type=int, default=32, help="pictures in a step")
    parser.add_argument("--batches", type=int, default=1000, help="at most so many in an epoch")
    options = parser.parse_args()

    digits = load_digits()
    pictures = (digits.images / 16).astype(np.float32)
    x, x_test, y, y_test = train_test_split(
        pictures, digits.target.astype(np.int32), test_size=0.25, random_state=0,
        stratify=digits.target,
    )  # fmt: skip
    with bu.device(options.device) as device:
        print(f"{len(x)} digits to learn, {len(x_test)} to test, on {device}")
        params = train(x, y, options)
        print(f"test accuracy {float(accuracy(params, x_test, y_test)):.1%}")


if __name__ == "__main__":
    main()

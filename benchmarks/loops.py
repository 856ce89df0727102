"""Time ordinary Python loops that nobody compiled: what deferred evaluation makes of them.

    python benchmarks/loops.py [NAME ...]

For each loop and each number of steps: milliseconds of CPU per step, compilation included, and how
many programs were compiled.  A loop is sound if neither grows with the number of steps.  One row
cannot be flat: an array that grows has another type at each step.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import bringup as bu

STEPS = (10, 100, 1000)
_RNG = np.random.default_rng(0)
_X = _RNG.normal(size=(64, 8)).astype(np.float32)
_Y = (_X @ np.linspace(-1, 1, 8, dtype=np.float32))[:, None]


def _loss(params: dict[str, bu.Array], x: Any, y: Any) -> bu.Array:
    hidden = bu.tanh(x @ params["w1"] + params["b1"])
    return bu.mean((hidden @ params["w2"] - y) ** 2)


def _params() -> dict[str, bu.Array]:
    key = bu.random.key(0)
    return {
        "w1": bu.random.normal(bu.random.fold_in(key, 1), (8, 16), dtype=bu.float32) * 0.3,
        "b1": bu.zeros(16, dtype=bu.float32),
        "w2": bu.random.normal(bu.random.fold_in(key, 2), (16, 1), dtype=bu.float32) * 0.3,
    }


def train_by_hand(steps: int) -> float:
    """Gradients written out; the loss is printed at each step."""
    x, y, w = bu.asarray(_X), bu.asarray(_Y), bu.zeros((8, 1), dtype=bu.float32)
    loss = 0.0
    for _ in range(steps):
        error = x @ w - y
        loss = float(bu.mean(error * error))
        w = w - 0.1 * (x.T @ error) * (2 / 64)
    return loss


def train_printing(steps: int, every: int = 10) -> float:
    """`value_and_grad` without `jit`; the loss is printed at every tenth step."""
    x, y, params = bu.asarray(_X), bu.asarray(_Y), _params()
    slope = bu.value_and_grad(_loss)
    for step in range(steps):
        loss, grads = slope(params, x, y)
        params = {name: p - 0.1 * grads[name] for name, p in params.items()}
        if step % every == every - 1:
            float(loss)
    return float(_loss(params, x, y))


def train_silently(steps: int) -> float:
    """The same, looked at only at the end, with a rate that falls at each step."""
    x, y, params = bu.asarray(_X), bu.asarray(_Y), _params()
    slope = bu.value_and_grad(_loss)
    for step in range(steps):
        _, grads = slope(params, x, y)
        rate = 0.1 / (1 + 0.01 * step)
        params = {name: p - rate * grads[name] for name, p in params.items()}
    return float(_loss(params, x, y))


def momentum(steps: int) -> float:
    """Containers of parameters and velocities, updated by `tree_map`."""
    x, y, params = bu.asarray(_X), bu.asarray(_Y), _params()
    velocity = bu.tree.tree_map(bu.zeros_like, params)
    total = bu.asarray(0.0, dtype=bu.float32)
    for _ in range(steps):
        loss, grads = bu.value_and_grad(_loss)(params, x, y)
        velocity = bu.tree.tree_map(lambda v, g: 0.9 * v + g, velocity, grads)
        params = bu.tree.tree_map(lambda p, v: p - 0.01 * v, params, velocity)
        total = total + loss
    return float(total)


def running_total(steps: int) -> float:
    """A total beside a loss that is looked at."""
    w, total = bu.asarray(_X[0]), bu.asarray(0.0, dtype=bu.float32)
    for _ in range(steps):
        w = w * 0.99
        loss = bu.sum(w * w)
        total = total + loss
        float(loss)
    return float(total)


def moving_average(steps: int) -> float:
    """An exponential moving average that nobody looks at before the end."""
    average = bu.zeros(8, dtype=bu.float32)
    for step in range(steps):
        average = 0.99 * average + 0.01 * bu.asarray(_X[step % 64])
    return float(bu.sum(average))


def split_keys(steps: int) -> float:
    """``key, sub = split(key)``; only what `sub` gives is looked at."""
    key, found = bu.random.key(0), 0.0
    for _ in range(steps):
        key, sub = bu.random.split(key)
        found = float(bu.sum(bu.random.normal(sub, (100,), dtype=bu.float32)))
    return found


def many_keys(steps: int) -> float:
    """`fold_in` of the number of the step, and a split into five."""
    root, found = bu.random.key(0), 0.0
    for step in range(steps):
        keys = bu.random.split(bu.random.fold_in(root, step), 5)
        parts = [bu.sum(bu.random.uniform(k, (20,), dtype=bu.float32)) for k in keys]
        found = float(parts[0] + parts[4])
    return found


def generator(steps: int) -> float:
    """A generator cuts batches out of an array; their sums are added."""
    data = bu.asarray(_X)

    def batches() -> Iterator[bu.Array]:
        for step in range(steps):
            start = step % 15 * 4
            yield data[start : start + 8] * 2.0

    total = bu.asarray(0.0, dtype=bu.float32)
    for batch in batches():
        total = total + bu.sum(batch * batch)
    return float(total)


def losses(steps: int) -> float:
    """A list of losses, stacked at the end: that one program has as many inputs as steps."""
    w, found = bu.asarray(_X[0]), []
    for _ in range(steps):
        w = w - 0.01 * w
        found.append(bu.sum(w * w))
    return float(bu.mean(bu.stack(found)))


def while_loop(steps: int) -> float:
    """Python's own while, whose condition looks at a value."""
    x, step = bu.asarray(_X[0]), 0
    while float(bu.max(bu.abs(x))) > 0 and step < steps:
        x, step = x * 0.999 + 0.0001, step + 1
    return float(bu.sum(x))


def updates(steps: int) -> float:
    """``x = x.at[i].set(v)``."""
    x = bu.zeros(64, dtype=bu.float32)
    for step in range(steps):
        x = x.at[step % 64].set(x[(step + 1) % 64] * 0.5 + step)
    return float(bu.sum(x))


def closures(steps: int) -> float:
    """A function made anew at each step, which closes over arrays of the step before."""
    x = bu.asarray(_X[0])
    for _ in range(steps):
        mean = bu.mean(x)

        def centred(v: bu.Array, mean: bu.Array = mean) -> bu.Array:
            def scaled(u: bu.Array) -> bu.Array:
                return (u - mean) * 0.9

            return scaled(v) + mean

        x = centred(x)
    return float(bu.max(x))


def newton(steps: int) -> float:
    """Newton's iteration for square roots, each until it has converged."""
    root = 0.0
    for step in range(steps):
        square, x = bu.asarray(step % 7 + 2.0), bu.asarray(1.0)
        while abs(float(x * x - square)) > 1e-9:
            x = 0.5 * (x + square / x)
        root = float(x)
    return root


def jitted_step(steps: int) -> float:
    """A compiled step between deferred operations before and after it."""
    step = bu.jit(lambda w, x: (w * 0.9 + x, bu.sum(w * x)))
    w, total = bu.zeros(8, dtype=bu.float32), bu.asarray(0.0, dtype=bu.float32)
    for number in range(steps):
        x = (bu.asarray(_X[number % 64]) - 0.5) * 2.0
        w, loss = step(w, x)
        total = total + loss * 0.5
        w = bu.clip(w, -1.0, 1.0)
    return float(total)


def growing(steps: int) -> float:
    """An array that grows: each step has another type, hence a program of its own."""
    x = bu.ones(1, dtype=bu.float32)
    for _ in range(steps):
        x = bu.concat([x, x[-1:] * 0.5])
    return float(bu.sum(x))


LOOPS: dict[str, Callable[[int], float]] = {
    fn.__name__: fn
    for fn in (
        train_by_hand,
        train_printing,
        train_silently,
        momentum,
        running_total,
        moving_average,
        split_keys,
        many_keys,
        generator,
        losses,
        while_loop,
        updates,
        closures,
        newton,
        jitted_step,
    )
}
#: Loops whose programs cannot stay the same.
GROWING: dict[str, Callable[[int], float]] = {"growing": growing}


class _Count(logging.Handler):
    """Counts what the compiler tells."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


def main(names: list[str]) -> None:
    """Print the table."""
    counted = _Count()
    compiler = logging.getLogger("bringup.compiler")
    compiler.setLevel(logging.INFO)
    compiler.addHandler(counted)
    float(bu.ones(1)[0] + 1)  # opens the device
    print(f"{'':16}" + "".join(f"{f'{n} steps: ms, programs':>28}" for n in STEPS))
    for name, loop in (LOOPS | GROWING).items():
        if names and name not in names:
            continue
        cells = []
        for steps in STEPS if name in LOOPS else STEPS[:2]:
            bu.clear_caches()
            counted.count = 0
            start = time.process_time()
            loop(steps)
            per_step = (time.process_time() - start) * 1e3 / steps
            cells.append(f"{per_step:21.3f} {counted.count:6}")
        print(f"{name:16}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The examples that train, on the device and on the CPU.

Two trainings drift apart, since each step starts from what the one before it rounded.  So steps are
compared one at a time: from parameters of the CPU's training, every value of a step within the
bounds of the suite's oracle (`gpu_checks.judging`).  How the losses of both whole trainings ended
stands beside that.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import bringup as bu
from bringup.tracing.pytree import flatten
from bringup_conformance.execution.targets import DeviceTarget
from gpu_checks.judging import Judged, judge_graph
from gpu_checks.packing import ROOT
from gpu_checks.work import Task

HOST = "cpu"
#: Numbers of the steps that are compared.
COMPARED = (1, 2, 20)
#: Examples in the batch of a compared step, at most: of the transformer each takes the oracle
#: seconds.
FEW = {"digits": 128, "transformer": 1}
#: Steps of a training.
STEPS = {"digits": 200, "transformer": 60}
Step = Callable[..., Any]
#: ``make() -> (step, state, feed)``: ``step(*state, *feed(n)) -> (*state, loss)``.
Make = Callable[[], tuple[Step, tuple[Any, ...], Callable[[int], tuple[Any, ...]]]]


def work(task: Task) -> bool:
    """The part ``training:EXAMPLE``."""
    make = {"digits": _digits, "transformer": _transformer}[task.argument](task.quick)
    steps = 4 if task.quick else STEPS[task.argument]
    target = DeviceTarget.named(task.device)
    good, there = _compare(task, make, target)
    losses = {}
    for name in (HOST, task.device):
        if task.left > 0:
            losses[name] = _train(make, name, steps, task)
    ends = {name: [round(values[i], 6) for i in (0, -1)] for name, values in losses.items()}
    falls = all(first > last for first, last in ends.values())
    said = ", ".join(f"loss on {n} {a:.4f} → {b:.4f}" for n, (a, b) in ends.items())
    task.row(name="training", losses=ends, steps=steps, said=said, wrong=int(not falls),
             compared=0, open=0)  # fmt: skip
    return good and there and falls


def _compare(task: Task, make: Make, target: DeviceTarget) -> tuple[bool, bool]:
    """Whether the steps compared are right, and whether there was time for the first."""
    good, made = True, 0
    # Half of the time is for the trainings.
    until = task.left / 2
    with bu.device(HOST):
        step, state, feed = make()
        compiled = bu.jit(step)
        for number in range(1, (2 if task.quick else max(COMPARED)) + 1):
            if number in COMPARED and task.left > until:
                batch = [part[: FEW[task.argument]] for part in feed(number)]
                found = _judged(compiled, (*state, *batch), target, lambda: task.left - until)
                task.row(name=f"step {number}", **found.row())
                good &= found.verdict.ok
                made += found.verdict.compared > 0
            *after, _ = compiled(*state, *feed(number))
            state = tuple(after)
    return good, made > 0


def _judged(
    step: Any, arguments: tuple[Any, ...], target: DeviceTarget, left: Callable[[], float]
) -> Judged:
    graph = step.lower(*arguments).graph
    leaves = [np.asarray(leaf) for leaf in flatten((arguments, {}))[0]]
    pairs = zip(leaves, graph.inputs, strict=True)
    inputs = [np.asarray(leaf, value.dtype.numpy) for leaf, value in pairs]
    return judge_graph(target, graph, inputs, left)


def _train(make: Make, device: str, steps: int, task: Task) -> list[float]:
    with bu.device(device):
        step, state, feed = make()
        compiled = bu.jit(step)
        losses = []
        for number in range(1, steps + 1):
            *after, loss = compiled(*state, *feed(number))
            state = tuple(after)
            losses.append(loss)
            if task.left < 0:
                break
        return [float(loss) for loss in losses]


def _digits(quick: bool) -> Make:
    example = _example("digits")
    (x, label), _ = example.digits()
    data = x.reshape(len(x), -1), label
    batches: Sequence[Any] = list(example.batches(data, example.BATCH, 4 if quick else 200))

    def make() -> Any:
        def step(params: Any, x: Any, label: Any) -> Any:
            value, gradients = bu.value_and_grad(example.loss)(params, x, label)
            return bu.tree.tree_map(lambda p, g: p - 0.2 * g, params, gradients), value

        return step, (example.init([64, 64, 10]),), lambda n: batches[(n - 1) % len(batches)]

    return make


def _transformer(quick: bool) -> Make:
    example = _example("transformer")
    if quick:
        example.BLOCKS, example.WIDTH, example.HEADS, example.CONTEXT = 1, 16, 2, 12
    source = inspect.getsource(argparse)[: 2000 if quick else None]
    alphabet = sorted(set(source))
    text = np.array([alphabet.index(c) for c in source], np.int32)
    windows, batch = example.windows(text), 2 if quick else 16

    def make() -> Any:
        optimizer = bu.optim.adam(3e-3, beta2=0.99)

        def step(params: Any, state: Any, drawn: Any) -> Any:
            value, gradients = bu.value_and_grad(example.loss)(params, drawn)
            gradients = bu.optim.clip_by_global_norm(gradients, 1.0)
            return *optimizer.update(gradients, state, params), value

        def feed(number: int) -> tuple[Any, ...]:
            chosen = np.random.default_rng(number).integers(0, len(windows), batch)
            return (windows[chosen],)

        params = example.init(bu.random.key(0), len(alphabet))
        return step, (params, optimizer.init(params)), feed

    return make


def _example(name: str) -> Any:
    folder = str(ROOT / "examples")
    if folder not in sys.path:
        sys.path.append(folder)  # examples share a module
    return importlib.import_module(name)

"""Time and weigh whole models in bringup, jax and torch: the same maths from the same parameters.

    pip install jax torch
    python benchmarks/models.py [--models WORD ...] [--frameworks NAME ...] [--rounds N] [--cpu]
    python benchmarks/models.py --memory [--models WORD ...] [--small]

Tables are printed as Markdown. Every side is a process of its own, with empty caches for compiled
code; the sides take turns, one runs at a time, on all CPUs given to the process. Before anything is
timed the results of the first steps are compared. A framework that is not installed is left out.
On a machine that does other things too, ``taskset -c 0 … --cpu`` gives the least doubtful ratios.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from frameworks import Bringup, Jax, Torch
from networks import MODELS, Host, longest
from timing import repeats, seconds

#: The package of each side, and what makes it. The first one is the base of ratios.
SIDES: dict[str, tuple[str, Callable[[], Any]]] = {
    "bringup": ("bringup", Bringup),
    "bringup, op by op": ("bringup", partial(Bringup, fuse=False)),
    "bringup on OpenCL": ("bringup_opencl", partial(Bringup, device="opencl")),
    "jax.jit": ("jax", Jax),
    "torch": ("torch", Torch),
    "torch.compile": ("torch", partial(Torch, compiled=True)),
}
#: What `--memory` compares, and in which models by default.
WAYS: dict[str, Callable[[], Any]] = {
    "op by op": partial(Bringup, fuse=False, donate=False),
    "fused": partial(Bringup, donate=False),
    "fused, donated": Bringup,
    "fused, donated, checkpoint": partial(Bringup, checkpoint=True),
}
WEIGHED = ("ResNet-50 training", "GPT training, 6")
#: Steps whose results are compared, and how often with other parameters.
STEPS, DRAWS = 3, 2
#: Seconds of a turn, at least.
TURN = 0.3


def _nudged(params: Any, rng: np.random.Generator, by: float) -> Any:
    """Every parameter a little larger or smaller, in proportion to itself."""
    if isinstance(params, np.ndarray):
        return params * (1 + by * rng.choice((-1, 1), params.shape)).astype(params.dtype)
    if isinstance(params, dict):
        return {name: _nudged(part, rng, by) for name, part in params.items()}
    return [_nudged(part, rng, by) for part in params]


class Worker:
    """One model in one way, in the process of a `Side`."""

    def __init__(self, make: Callable[[], Any], name: str, small: bool) -> None:
        self._model, self._framework, self._repeat = MODELS[name], make(), 0
        self._params, self._data = self._model.make(np.random.default_rng(0), small)
        self._begin = self._framework.begin(self._model)
        self._advance: Callable[[], Any]
        self._nudge = longest(self._params) * float(np.finfo(np.float32).eps) / 2

    def _step(self) -> Host:
        return np.asarray(self._advance())

    def begin(self, draw: int) -> tuple[float, Host, float, float]:
        """Seconds of the first step, results of the first ones, the most MiB held so far, nudge.

        draw: unless it is 0, parameters are nudged, each by so large a part of itself.
        """
        params, results = self._params, []
        if draw:
            params = _nudged(params, np.random.default_rng(draw), self._nudge)
        self._advance = self._begin(params, self._data)
        first = seconds(lambda: results.append(self._step()))
        results += [self._step() for _ in range(STEPS - 1)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return first, np.stack(results), peak, self._nudge

    def turn(self, cpu: bool) -> float:
        """Seconds of a step, the mean of so many that they can be timed; or those of all CPUs."""
        self._repeat = self._repeat or repeats(self._step, TURN)
        return seconds(self._step, self._repeat, time.process_time if cpu else time.perf_counter)

    def cost(self) -> tuple[int, int]:
        """Bytes of scratch of a step of training, and of all that a call holds."""
        cost = self._framework.lowered().cost()
        return cost.arena_bytes, cost.peak_bytes


def serve(link: Connection, *arguments: Any) -> None:
    """Do what the other end asks for, the name of a method and its arguments, until it is None."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"XDG_CACHE_HOME": folder, "TORCHINDUCTOR_CACHE_DIR": folder}
        worker = Worker(*arguments)
        link.send("ready")
        while (message := link.recv()) is not None:
            name, *given = message
            link.send(getattr(worker, name)(*given))


class Side:
    """A process that runs one model in one way."""

    def __init__(self, make: Callable[[], Any], name: str, small: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name
        self._link, end = context.Pipe()
        self._process = context.Process(target=serve, args=(end, make, name, small), daemon=True)
        self._process.start()
        end.close()
        self._link.recv()  # what it imports disturbs no other side

    def ask(self, *message: Any) -> Any:
        """What it answers; ends the program where it failed, after its traceback."""
        self._link.send(message)
        try:
            return self._link.recv()
        except (EOFError, ConnectionResetError):
            raise SystemExit(f"{self.name} failed") from None

    def end(self) -> None:
        """Free its memory."""
        self._link.send(None)
        self._process.join()


def compare(name: str, sides: dict[str, Side]) -> dict[str, tuple[float, float]]:
    """Seconds of the first step and MiB at most, by side; ends the program where they disagree.

    A sum of n products is the exact one of factors that differ by n roundings. So two sides may be
    twice as far apart as nudging the parameters by so much moves the result, and as n roundings of
    the result itself.
    """
    begun = {}
    for side, process in sides.items():
        begun[side] = process.ask("begin", 0)
        _say(f"  {side}: first step {begun[side][0]:.1f} s, results {begun[side][1].ravel()[:3]}")
    base, *others = sides
    _, expected, _, by = begun[base]
    nudged = [sides[base].ask("begin", draw)[1] for draw in range(1, 1 + DRAWS)]
    moved = [max(abs(n[i] - expected[i]).max() for n in nudged) for i in range(STEPS)]
    own = [by * abs(result).max() for result in expected]
    bounds = 2 * np.maximum.accumulate(np.add(moved, own))
    if not bounds.all():
        raise SystemExit(f"{name}: the parameters do not move the result, so nothing is compared")
    for side in others:
        apart = [abs(a - b).max() for a, b in zip(begun[side][1], expected, strict=True)]
        _say(f"  {side}: at most {max(apart):.1e} from {base}'s, {max(bounds):.1e} allowed")
        if not all(a <= b for a, b in zip(apart, bounds, strict=True)):
            raise SystemExit(f"{name}: {side} is {apart} from {base}, allowed are {bounds}")
    return {side: (first, peak) for side, (first, _, peak, _) in begun.items()}


def measure(name: str, chosen: Sequence[str], options: argparse.Namespace) -> list[list[str]]:
    """A row of each table: time of a step, of the first one, memory."""
    _say(name)
    sides = {side: Side(SIDES[side][1], name, options.small) for side in chosen}
    firsts = compare(name, sides)
    turns = [[s.ask("turn", options.cpu) for s in sides.values()] for _ in range(options.rounds)]
    for side in sides.values():
        side.end()
    times = [statistics.median(column) for column in zip(*turns, strict=True)]
    ratios = [statistics.median(turn[i] / turn[0] for turn in turns) for i in range(len(sides))]
    shown = [f"{t * 1e3:,.0f}" if t > 0.1 else f"{t * 1e3:.3g}" for t in times]
    steps = [f"{t} ({r:.2f})" for t, r in zip(shown, ratios, strict=True)]
    _say(f"  ms of a step: {', '.join(steps)}")
    return [
        [name, *steps],
        [name, *(f"{first:.1f}" for first, _ in firsts.values())],
        [name, *(f"{peak:,.0f}" for _, peak in firsts.values())],
    ]


def weigh(name: str, small: bool) -> Iterable[list[str]]:
    """Rows of what a step of training holds in each way, in MiB."""
    _say(name)
    for way, make in WAYS.items():
        side = Side(make, name, small)
        _, _, peak, _ = side.ask("begin", 0)
        sizes = [size / 2**20 for size in side.ask("cost")] + [peak]
        side.end()
        yield [name, way, *(f"{size:,.1f}" if small else f"{size:,.0f}" for size in sizes)]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print Markdown."""
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def main() -> None:
    """Read the options, print the tables."""
    parser = argparse.ArgumentParser(description="Time whole models in several frameworks.")
    parser.add_argument("--models", nargs="+", default=[""], help="those whose names hold a word")
    parser.add_argument("--frameworks", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--rounds", type=int, default=9, help="how often each framework is timed")
    parser.add_argument(
        "--cpu", action="store_true", help="CPU time instead of elapsed time, for a busy machine"
    )
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that all runs")
    parser.add_argument("--memory", action="store_true", help="what bringup holds, in four ways")
    options = parser.parse_args()
    words = [word.lower() for word in options.models]
    names = [name for name in MODELS if any(word in name.lower() for word in words)]
    if options.memory:
        if options.models == [""]:
            names = [name for name in names if name.startswith(WEIGHED)]
        head = ("model, MiB", "way", "arena", "arena, arguments, results", "process at most")
        table(head, [row for name in names for row in weigh(name, options.small)])
        return
    missing = {p for p, _ in SIDES.values() if importlib.util.find_spec(p) is None}
    wanted = [side for side in SIDES if side in options.frameworks]
    chosen = [side for side in wanted if SIDES[side][0] not in missing]
    for package in sorted(missing):
        print(f"{package} is not installed and left out")
    rows = [measure(name, chosen, options) for name in names]
    unit = "ms of CPU" if options.cpu else "ms"
    titles = (f"{unit}, a step (times {chosen[0]}'s)", "s, first step", "MiB, process at most")
    for title, part in zip(titles, zip(*rows, strict=True), strict=True):
        table((title, *chosen), part)


if __name__ == "__main__":
    main()

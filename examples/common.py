"""What the examples share: options, pictures of digits, a bar of steps, plots, saved parameters."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import bringup as bu

Host = np.ndarray[Any, Any]
T = TypeVar("T")
#: One line says what to do where a package of the examples is missing.
EXTRA = 'pip install "bringup[examples]"'


def parser(description: str, steps: int) -> argparse.ArgumentParser:
    """The options that every example has.

    steps: of training, by default.
    """
    found = argparse.ArgumentParser(description=description)
    found.add_argument("--device", help="as `bringup devices` lists it; by default the first")
    found.add_argument("--steps", type=int, default=steps, help="of training, at least 1")
    found.add_argument("--plot", type=Path, help="a PNG or SVG file for a picture of the training")
    return found


def digits() -> tuple[tuple[Host, Host], tuple[Host, Host]]:
    """The pictures of scikit-learn, f32 [n, 1, 8, 8] from 0 to 1, and digits, i32 [n]: those to
    learn, and a quarter to test.
    """
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ModuleNotFoundError:
        raise SystemExit(f"the digits are missing: {EXTRA}") from None
    data = load_digits()
    pictures = (data.images / 16).astype(np.float32)[:, None]
    x, x_test, y, y_test = train_test_split(
        pictures, data.target.astype(np.int32), test_size=0.25, random_state=0,
        stratify=data.target,
    )  # fmt: skip
    return (x, y), (x_test, y_test)


def batches(
    data: tuple[Host, ...], size: int, steps: int, seed: int = 1
) -> Iterator[tuple[Host, ...]]:
    """So many batches of one size, epoch after epoch, shuffled anew in each."""
    rng, made = np.random.default_rng(seed), 0
    while True:
        order = rng.permutation(len(data[0]))
        for start in range(0, len(order) - size + 1, size):
            if made == steps:
                return
            made += 1
            yield tuple(part[order[start : start + size]] for part in data)


class Training:
    """The steps of a training: a bar on a terminal, the loss and the time of each.

    losses: of every step, when it is over.  seconds: of a step, without the first, which compiles.
    first: seconds of that.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.losses: list[float] = []
        self.first = self.seconds = 0.0
        self._found: list[bu.Array] = []

    def over(self, items: Iterable[T], step: Callable[[T], bu.Array]) -> list[float]:
        """Take a step for each item; `step` returns the loss, which is looked at now and then."""
        try:
            from tqdm import tqdm
        except ModuleNotFoundError:
            raise SystemExit(f"the progress bar is missing: {EXTRA}") from None
        begin = time.perf_counter()
        # No bar where the output is no terminal.
        with tqdm(items, total=self.steps, disable=None, unit="step") as bar:
            for number, item in enumerate(bar):
                self._found.append(step(item))
                if number == 0:
                    float(self._found[0])  # waits for the device
                    self.first = time.perf_counter() - begin
                    begin = time.perf_counter()
                elif number % 50 == 0:
                    bar.set_postfix(loss=f"{float(self._found[-1]):.4f}")
        self.losses = [float(loss) for loss in self._found]
        self.seconds = (time.perf_counter() - begin) / max(len(self.losses) - 1, 1)
        return self.losses

    def said(self) -> str:
        """A line of how it went."""
        return (
            f"loss {self.losses[0]:.4f} -> {self.losses[-1]:.6f}, first step {self.first:.1f} s,"
            f" then {self.seconds * 1e3:.2f} ms a step"
        )


def plot(path: Path | None, title: str, *trainings: tuple[str, Training]) -> None:
    """Write a picture of losses, and of the time of a step where there are several."""
    if path is None:
        return
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise SystemExit(f"the plots are missing: {EXTRA}") from None
    several = len(trainings) > 1
    figure = Figure(figsize=(9 if several else 5, 3.5), layout="constrained")
    axes = figure.subplots(1, 1 + several, squeeze=False)[0]
    axes[0].set(title=title, xlabel="step", ylabel="loss", yscale="log")
    for name, training in trainings:
        axes[0].plot(range(1, len(training.losses) + 1), training.losses, label=name, linewidth=1)
    if several:
        axes[0].legend(frameon=False)
        names = [name for name, _ in trainings]
        bars = axes[1].barh(names, [t.seconds * 1e3 for _, t in trainings])
        axes[1].bar_label(bars, fmt="%.2f", padding=3)
        axes[1].set(title="time of a step", xlabel="ms")
        axes[1].invert_yaxis()
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
    print(f"a picture is in {path}")


def save(path: Path, params: Any) -> None:
    """Write a container of arrays as safetensors, by their paths in it."""
    from safetensors.numpy import save_file

    named = bu.tree.leaves_with_path(params)
    save_file({name: np.asarray(leaf) for name, leaf in named}, path)


def load(path: Path, like: T) -> T:
    """Read what `save` wrote into a container like that one."""
    from safetensors.numpy import load_file

    found = load_file(path)
    loaded: T = bu.tree.map_with_path(lambda name, _leaf: bu.asarray(found[name]), like)
    return loaded

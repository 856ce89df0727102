"""What the examples share: options, digits, a bar of steps, tables, plots, saved parameters."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

import bringup as bu

Host = np.ndarray[Any, Any]
#: Names and seconds.
Times = list[tuple[str, float]]
T = TypeVar("T")
#: One line says what to do where a package of the examples is missing.
EXTRA = 'pip install "bringup[examples]"'


def _positive(text: str) -> int:
    """A number of steps."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 1 or more")
    return int(text)


def parser(description: str, steps: int) -> argparse.ArgumentParser:
    """The options that every example has.

    steps: of training, by default.
    """
    found = argparse.ArgumentParser(description=description)
    found.add_argument("--device", help="as `bringup devices` lists it; by default the first")
    found.add_argument("--steps", type=_positive, default=steps, help="of training, at least 1")
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
        """Take a step for each item; `step` returns the loss, which is looked at now and then.

        A step may be several in one call: it returns their losses as an array of one axis.
        """
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
                    np.asarray(self._found[0])  # waits for the device
                    self.first = time.perf_counter() - begin
                    begin = time.perf_counter()
                elif number % 50 == 0:
                    bar.set_postfix(loss=f"{np.ravel(self._found[-1])[-1]:.4f}")
        losses = [np.ravel(loss) for loss in self._found]
        self.losses = np.concatenate(losses).tolist()
        # What the first call compiled is left out.
        steps = len(self.losses) - len(losses[0])
        self.seconds = (time.perf_counter() - begin) / steps if steps else 0.0
        return self.losses

    def run(self, batches: Iterable[tuple[Any, ...]], step: Callable[..., Any], *state: Any) -> Any:
        """The state after a step for each batch: ``step(*state, *batch) -> (*state, loss)``."""

        def advance(batch: tuple[Any, ...]) -> bu.Array:
            nonlocal state
            *after, loss = step(*state, *batch)
            state = tuple(after)
            return loss

        self.over(batches, advance)
        return state

    def said(self) -> str:
        """A line of how it went."""
        return (
            f"loss {self.losses[0]:.4f} -> {self.losses[-1]:.6f}, first step {self.first:.1f} s,"
            f" then {self.seconds * 1e3:.2f} ms a step"
        )


def compared(fn: Callable[..., Any], *args: Any, repeats: int) -> Times:
    """Print launches, bytes and times of a function fused and op by op; the seconds of both.

    The last of its results is the loss, whose difference is printed as well.
    """
    found = bu.compare(fn, *args, repeats=repeats)
    print("\n".join(str(found).splitlines()[:4]))
    print(f"loss: {found.ulp[-1]:g} ULP apart")
    return [("fused", found.fused.seconds), ("op by op", found.unfused.seconds)]


def plot(
    path: Path | None,
    title: str,
    *trainings: tuple[str, Training],
    times: Times | None = None,
) -> None:
    """Write a picture of losses and of the times of a step.

    times: names and seconds; by default those of the trainings.
    """
    if path is None:
        return
    rows = times or [(name, training.seconds) for name, training in trainings]
    figure = _figure(9, 3.5)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    left.set(title=title, xlabel="step", ylabel="loss", yscale="log")
    for name, training in trainings:
        left.plot(range(1, len(training.losses) + 1), training.losses, label=name, linewidth=1)
    left.xaxis.get_major_locator().set_params(integer=True)
    left.yaxis.set_major_formatter("{x:g}")
    low, high = left.get_ylim()
    left.yaxis.set_minor_formatter("{x:g}" if high < 10 * low else "")
    if len(trainings) > 1:
        left.legend(frameon=False)
    bars = right.barh([name for name, _ in rows], [each * 1e3 for _, each in rows], height=0.5)
    labels = [f"{each * 1e3:,.{0 if each > 0.1 else 2}f}" for _, each in rows]
    right.bar_label(bars, labels, padding=3)
    right.margins(x=0.2, y=0.6 / len(rows))
    right.set(title="time of a step", xlabel="ms")
    right.invert_yaxis()
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
    print(f"a picture is in {path}")


def _figure(width: float, height: float) -> Any:
    """An empty figure of a size in inches."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise SystemExit(f"the plots are missing: {EXTRA}") from None
    return Figure(figsize=(width, height), layout="constrained", dpi=150)


def gallery(path: Path | None, title: str, rows: Sequence[tuple[str, Host]]) -> None:
    """Write a picture of rows of pictures, each row ``[n, height, width]`` from 0 to 1, named."""
    if path is None:
        return
    names, pictures = zip(*rows, strict=True)
    framed = [
        np.hstack([np.pad(picture, 1, constant_values=np.nan) for picture in np.clip(row, 0, 1)])
        for row in pictures
    ]
    height, width = framed[0].shape
    figure = _figure(width / 12 + 1, height * len(framed) / 12 + 0.4)
    axes = figure.subplots()
    axes.imshow(np.vstack(framed), cmap="gray_r", vmin=0, vmax=1)
    axes.set(title=title, xticks=[])
    axes.set_yticks([(n + 0.5) * height - 0.5 for n in range(len(framed))], names)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.savefig(path)
    print(f"a picture is in {path}")


def right(scores: bu.Array, labels: Host) -> int:
    """In how many rows the highest score is that of the label."""
    return int((np.argmax(np.asarray(scores), axis=1) == labels).sum())


def seconds(run: Callable[[], Any], rounds: int = 20) -> float:
    """The median time of a run, the first one (which compiles) left out."""
    run()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


class Row(NamedTuple):
    """What one variant of a network reaches and costs: bytes of parameters, seconds of a call."""

    name: str
    right: int
    bytes: int
    seconds: float


def measured(
    name: str, network: Callable[..., bu.Array], params: Any, x: Host, labels: Host
) -> Row:
    """A network compiled for its parameters and called with all pictures at once."""
    call, held = bu.jit(network), bu.asarray(x)
    size = sum(leaf.nbytes for leaf in bu.tree.leaves(params))
    each = seconds(lambda: np.asarray(call(params, held)))
    return Row(name, right(call(params, held), labels), size, each)


def table(path: Path | None, title: str, count: int, rows: Sequence[Row]) -> None:
    """Print what variants of a network reach and cost, of so many pictures, and plot it."""
    wide = max(len(row.name) for row in rows)
    print(f"{'':{wide}} {'right':>12} {'bytes':>10} {'a call':>10}")
    for row in rows:
        share = f"{row.right} of {count}"
        print(f"{row.name:{wide}} {share:>12} {row.bytes:10,} {row.seconds * 1e6:7.0f} µs")
    if path is None:
        return
    figure = _figure(9, 1.2 + 0.4 * len(rows))
    figure.suptitle(title)
    shown = (
        (f"right of {count}", "{:.0f}", [row.right for row in rows]),
        ("KiB of parameters", "{:.1f}", [row.bytes / 1024 for row in rows]),
        ("µs a call", "{:.0f}", [row.seconds * 1e6 for row in rows]),
    )
    for axes, (label, form, numbers) in zip(figure.subplots(1, 3, sharey=True), shown, strict=True):
        bars = axes.barh([row.name for row in rows], numbers, height=0.6)
        axes.bar_label(bars, fmt=form, padding=3)
        axes.set(xlabel=label, xticks=[])
        axes.margins(x=0.25)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.invert_yaxis()
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

"""What the examples share: options, digits, a bar of steps, tables, plots, saved parameters."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

import bringup as bu

Host = np.ndarray[Any, Any]
T = TypeVar("T")


@contextmanager
def extra(what: str) -> Iterator[None]:
    """One line says what to do where a package of the examples is missing."""
    try:
        yield
    except ModuleNotFoundError:
        raise SystemExit(f'{what} missing: pip install "bringup[examples]"') from None


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
    found.add_argument("--save", type=Path, help="a safetensors file for what is trained")
    found.add_argument("--load", type=Path, help="such a file, instead of a training")
    return found


def trained(options: argparse.Namespace, params: T, train: Callable[[T], T]) -> T:
    """What a training makes of parameters, saved where `--save` says, or what `--load` names."""
    if options.load:
        return load(options.load, params)
    params = train(params)
    if options.save:
        save(options.save, params)
    return params


def digits() -> tuple[tuple[Host, Host], tuple[Host, Host]]:
    """The pictures of scikit-learn, f32 [n, 1, 8, 8] from 0 to 1, and digits, i32 [n]: those to
    learn, and a quarter to test.
    """
    with extra("the digits are"):
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
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
        with extra("the progress bar is"):
            from tqdm import tqdm
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
            loss: bu.Array
            *after, loss = step(*state, *batch)
            state = tuple(after)
            return loss

        self.over(batches, advance)
        return state

    def said(self) -> str:
        """A line of how it went."""
        if not self.losses:
            return "parameters of a file, not trained"
        return (
            f"loss {self.losses[0]:.4f} -> {self.losses[-1]:.6f}, first step {self.first:.1f} s,"
            f" then {self.seconds * 1e3:.2f} ms a step"
        )


class Bars(NamedTuple):
    """A number for each of several names, as bars: what the numbers are, their unit, the rows."""

    title: str
    unit: str
    rows: Sequence[tuple[str, float]]


def compared(title: str, result: str, fn: Callable[..., Any], *args: Any, repeats: int) -> Bars:
    """Print launches, bytes and times of a function fused and op by op; the times of both.

    result: what the last of its results is, whose difference is printed as well.
    """
    found = bu.compare(fn, *args, repeats=repeats)
    print("\n".join(str(found).splitlines()[:4]))
    print(f"{result}: {found.ulp[-1]:g} ULP apart")
    rows = [("fused", found.fused.seconds * 1e3), ("op by op", found.unfused.seconds * 1e3)]
    return Bars(title, "ms", rows)


def step_times(*trainings: tuple[str, Training]) -> Bars:
    """The time of a step of each training that had more than one."""
    rows = [(name, training.seconds * 1e3) for name, training in trainings if training.seconds]
    return Bars("time of a step", "ms", rows)


def plot(
    path: Path | None,
    title: str,
    *trainings: tuple[str, Training],
    bars: Sequence[Bars] = (),
    pictures: Sequence[tuple[str, Host]] = (),
) -> None:
    """Write a picture of the losses of trainings, next to them bars, and below them pictures.

    bars: by default the time of a step of each training.
    pictures: named rows ``[n, height, width]`` of points from 0 to 1.
    """
    losses = [(name, training.losses) for name, training in trainings if training.losses]
    panels = [panel for panel in bars or [step_times(*trainings)] if panel.rows]
    if path is None:
        return
    if not (losses or panels or pictures):
        print("no picture: nothing was trained")
        return
    with extra("the plots are"):
        from matplotlib.figure import Figure
    # Strips one below the other: a height in inches, and of each part a share and how it is drawn.
    curves = [(3.0, partial(_draw_losses, losses=losses))] * bool(losses)
    cells = [
        (2.0, partial(_draw_bars, panel=panel, before=before))
        for before, panel in zip([None, *panels], panels, strict=False)
    ]
    tall = 1 + 0.35 * max((len(panel.rows) for panel in panels), default=0)
    strips: list[tuple[float, Any]] = [(3.2 if losses else tall, curves + cells)]
    if losses and len(cells) > 2:
        strips = [(3.2, curves), (tall, cells)]
    if pictures:
        drawn = _framed(pictures)
        names = [name for name, _ in pictures]
        height = min(9 * drawn.shape[0] / drawn.shape[1], 6)
        strips.append((height, [(1.0, partial(_draw_pictures, drawn=drawn, names=names))]))
    strips = [(height, parts) for height, parts in strips if parts]
    heights = [height for height, _ in strips]
    figure = Figure(figsize=(10, sum(heights) + 0.3), layout="constrained", dpi=150)
    figure.suptitle(title)
    places = figure.subfigures(len(strips), 1, squeeze=False, height_ratios=heights)[:, 0]
    for place, (_, parts) in zip(places, strips, strict=True):
        shares = [share for share, _ in parts]
        row = place.subplots(1, len(parts), squeeze=False, width_ratios=shares)[0]
        for axes, (_, draw) in zip(row, parts, strict=True):
            draw(axes)
    figure.savefig(path)
    print(f"a picture is in {path}")


def _draw_losses(axes: Any, losses: Sequence[tuple[str, Sequence[float]]]) -> None:
    """The loss of each step, pale, and its mean of a fiftieth of the steps around it."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    axes.set(xlabel="step", ylabel="loss", yscale="log")
    for name, values in losses:
        steps, wide = np.arange(1, len(values) + 1), max(len(values) // 50, 1)
        (pale,) = axes.plot(steps, values, linewidth=1, alpha=0.3)
        means = [np.convolve(row, np.full(wide, 1 / wide), "valid") for row in (steps, values)]
        axes.plot(*means, label=name, color=pale.get_color())
    axes.xaxis.get_major_locator().set_params(integer=True)
    low, high = axes.get_ylim()
    if high < 10 * low:  # there may be no power of ten
        axes.yaxis.set_major_locator(MaxNLocator(6))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    if len(losses) > 1:
        axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_bars(axes: Any, panel: Bars, before: Bars | None) -> None:
    """A bar for each row, the first on top, with its number.

    before: the panel on the left; where it has the same names they are not repeated.
    """
    names, numbers = zip(*panel.rows, strict=True)
    bars = axes.barh(names, numbers, height=0.6)
    if before and [name for name, _ in before.rows] == list(names):
        axes.tick_params(left=False, labelleft=False)
    labels = [f"{number:,.0f}" if number >= 100 else f"{number:.3g}" for number in numbers]
    axes.bar_label(bars, labels, padding=3)
    axes.set(title=panel.title, xlabel=panel.unit, xticks=[])
    axes.title.set_fontsize("medium")
    axes.margins(x=0.3)
    middle, half = (len(numbers) - 1) / 2, max(len(numbers), 4) / 2
    axes.set_ylim(middle + half, middle - half)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _framed(rows: Sequence[tuple[str, Host]]) -> Host:
    """Rows of pictures as one, with a frame around each."""
    return np.vstack(
        [
            np.hstack([np.pad(one, 1, constant_values=np.nan) for one in np.clip(row, 0, 1)])
            for _, row in rows
        ]
    )


def _draw_pictures(axes: Any, drawn: Host, names: Sequence[str]) -> None:
    """Rows of pictures with their names."""
    height = len(drawn) / len(names)
    axes.imshow(drawn, cmap="gray_r", vmin=0, vmax=1)
    axes.set(xticks=[])
    axes.set_yticks([(n + 0.5) * height - 0.5 for n in range(len(names))], names)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def right(scores: bu.Array | Host, labels: Host) -> int:
    """In how many rows the highest score is that of the label."""
    return int((np.argmax(np.asarray(scores), axis=1) == labels).sum())


def seconds(*runs: Callable[[], Any], rounds: int = 20) -> list[float]:
    """The median time of each run.  They alternate, so that what else the machine does is the same
    for all; the first round, which compiles, is left out.
    """
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds + 1):
        for run, taken in zip(runs, times, strict=True):
            begin = time.perf_counter()
            run()
            taken.append(time.perf_counter() - begin)
    return [statistics.median(taken[1:]) for taken in times]


class Row(NamedTuple):
    """What one variant of a network reaches and costs: bytes of parameters, and a call."""

    name: str
    right: int
    bytes: int
    run: Callable[[], Any]


def measured(
    name: str, network: Callable[..., bu.Array], params: Any, x: Host, labels: Host
) -> Row:
    """A network compiled for its parameters and called with all pictures at once."""
    call, held = bu.jit(network), bu.asarray(x)
    size = sum(leaf.nbytes for leaf in bu.tree.leaves(params))
    count = right(call(params, held), labels)
    return Row(name, count, size, lambda: np.asarray(call(params, held)))


def table(
    path: Path | None,
    title: str,
    count: int,
    rows: Sequence[Row],
    *trainings: tuple[str, Training],
    bars: Sequence[Bars] = (),
) -> None:
    """Print what variants of a network reach and cost, of so many pictures, and plot it.

    trainings, bars: what is plotted as well.
    """
    times = seconds(*(row.run for row in rows))
    wide = max(len(row.name) for row in rows)
    print(f"{'':{wide}} {'right':>12} {'bytes':>10} {'a call':>10}")
    for row, each in zip(rows, times, strict=True):
        share = f"{row.right} of {count}"
        print(f"{row.name:{wide}} {share:>12} {row.bytes:10,} {each * 1e6:7.0f} µs")
    shown = [
        Bars("right", f"of {count} digits", [(row.name, row.right) for row in rows]),
        Bars("parameters", "KiB", [(row.name, row.bytes / 1024) for row in rows]),
        Bars(
            "time of a call",
            "µs",
            [(row.name, each * 1e6) for row, each in zip(rows, times, strict=True)],
        ),
    ]
    plot(path, title, *trainings, bars=[*shown, *bars])


def save(path: Path, params: Any) -> None:
    """Write a container of arrays as safetensors, by their paths in it."""
    with extra("safetensors is"):
        from safetensors.numpy import save_file

    named = bu.tree.leaves_with_path(params)
    save_file({name: np.asarray(leaf) for name, leaf in named}, path)
    print(f"what is trained is in {path}")


def load(path: Path, like: T) -> T:
    """Read what `save` wrote into a container like that one."""
    with extra("safetensors is"):
        from safetensors.numpy import load_file

    found = load_file(path)
    if {n: a.shape for n, a in found.items()} != {
        n: a.shape for n, a in bu.tree.leaves_with_path(like)
    }:
        raise SystemExit(f"{path} holds arrays of other names or shapes than this network")
    loaded: T = bu.tree.map_with_path(lambda name, _leaf: bu.asarray(found[name]), like)
    return loaded

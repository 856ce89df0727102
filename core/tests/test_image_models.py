"""The examples for pictures learn, read folders, draw, and freeze within a derived bound."""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import bringup as bu

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Main = Callable[..., str]

needs_digits = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="the digits come with scikit-learn"
)
needs_plots = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib draws and brings pillow"
)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """An example by its name, as a module."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


@pytest.fixture
def main(
    example: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Main:
    """What an example prints with options."""

    def run(name: str, *options: str) -> str:
        monkeypatch.setattr("sys.argv", [name, *options])
        example(name).main()
        return capsys.readouterr().out

    return run


def losses(text: str) -> tuple[float, float]:
    """The first and the last."""
    found = re.search(r"loss ([\d.]+) -> ([\d.]+)", text)
    assert found, text
    return float(found[1]), float(found[2])


def drawn(path: Path) -> np.ndarray[Any, Any]:
    """The points of a picture, which has some that are not of the background."""
    from matplotlib.image import imread

    points = np.asarray(imread(path))
    assert points.shape[1] > 1000
    assert (points[..., :3] < 0.9).any(axis=2).mean() > 0.01
    return points


@needs_plots
def test_a_resnet_learns_pictures_of_a_folder(main: Main, tmp_path: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for name, colour in (("blue", (40, 40, 200)), ("red", (200, 40, 40))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("no picture")
        for number in range(4):
            points = np.clip(rng.normal(colour, 20, (20, 24 + number, 3)), 0, 255)
            Image.fromarray(points.astype(np.uint8)).save(tmp_path / name / f"{number}.png")
    plot = tmp_path / "training.png"
    small = ("--size", "16", "--width", "4", "--blocks", "1", "--batch", "4")
    text = main(
        "resnet", "--images", str(tmp_path), *small, "--steps", "20", "--rate", "0.02",
        "--plot", str(plot),
    )  # fmt: skip
    first, last = losses(text)
    assert last < 0.3 * first
    assert "8 pictures of 2 classes" in text
    assert "accuracy 100.0%" in text
    drawn(plot)


@needs_plots
def test_two_forms_of_a_step_are_compared_and_drawn(
    example: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    common, plot = example("common"), tmp_path / "times.png"
    step = bu.jit(lambda x: bu.sum(bu.exp(x) * x))
    x = bu.ones(1000, dtype=bu.float32)
    times = common.compared("time of a step", "loss", step, x, repeats=1)
    assert [name for name, _ in times.rows] == ["fused", "op by op"]
    text = capsys.readouterr().out
    assert re.search(r"launches +1 +3 +3.00\n", text), text
    assert re.search(r"loss: \d+ ULP apart\n", text), text
    training = common.Training(2)
    training.over([2.0, 1.0], bu.asarray)
    common.plot(plot, "two steps", ("fused", training), bars=[times])
    drawn(plot)


def test_a_folder_without_pictures_is_named(main: Main, tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    with pytest.raises(SystemExit, match=f"no pictures are in folders of {tmp_path}"):
        main("resnet", "--images", str(tmp_path))


@pytest.fixture
def mobilenet(example: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A small one."""
    module = example("mobilenet")
    small = {"BLOCKS": [(8, 1)], "STEM": 8, "LAST": 32, "EXPANSION": 2, "RATE": 0.02}
    for name, value in small.items():
        monkeypatch.setattr(module, name, value)
    return module


@needs_digits
@pytest.mark.usefixtures("mobilenet")
def test_a_mobilenet_learns_the_digits(main: Main) -> None:
    text = main("mobilenet", "--steps", "50", "--batch", "50")
    first, last = losses(text)
    assert last < 0.8 * first
    (share,) = re.findall(r"test accuracy ([\d.]+)%, frozen", text)
    assert float(share) > 30
    kernels = re.search(r"inference: (\d+) kernels .* frozen (\d+)", text)
    assert kernels, text
    assert int(kernels[2]) < int(kernels[1])


@needs_digits
def test_a_vision_transformer_learns_the_digits(
    example: Callable[[str], ModuleType],
    main: Main,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"BLOCKS": 1, "WIDTH": 32, "HEADS": 2, "RATE": 0.01}.items():
        monkeypatch.setattr(example("vit"), name, value)
    text = main("vit", "--steps", "100", "--batch", "50", "--compare", "--repeats", "1")
    assert "classes: 0 ULP apart" in text
    first, last = losses(text)
    assert last < 0.7 * first
    (share,) = re.findall(r"test accuracy ([\d.]+)%", text)
    assert float(share) > 40


def test_squares_hold_the_points_of_their_place(example: Callable[[str], ModuleType]) -> None:
    x = np.arange(128, dtype=np.float32).reshape(2, 1, 8, 8)
    found = np.asarray(example("vit").squares(bu.asarray(x)))
    assert found.shape == (2, 16, 4)
    for place in range(16):
        row, column = 2 * (place // 4), 2 * (place % 4)
        expected = x[:, 0, row : row + 2, column : column + 2].reshape(2, 4)
        assert np.array_equal(found[:, place], expected)


@pytest.mark.parametrize("name", ["mobilenet", "vit"])
def test_without_the_digits_the_extra_is_named(
    main: Main, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(SystemExit, match=r"the digits are missing: pip install"):
        main(name)


def layers(params: Any) -> Iterator[dict[str, Any]]:
    """Each convolution with its batch norm."""
    if isinstance(params, list):
        for part in params:
            yield from layers(part)
    elif "gain" in params:
        yield params
    else:
        for part in params.values():
            if not isinstance(part, np.ndarray):
                yield from layers(part)


def magnitudes(params: Any, stats: Any) -> tuple[Any, Any]:
    """The network in which each scale, shift and weight is what it adds at most to a magnitude."""
    if isinstance(params, list):
        pairs = [magnitudes(p, s) for p, s in zip(params, stats, strict=True)]
        return [p for p, _ in pairs], [s for _, s in pairs]
    if "gain" in params:
        scale = np.abs(params["gain"]) / np.sqrt(stats["var"] + 1e-5)
        shift = np.abs(stats["mean"]) * scale + np.abs(params["bias"])
        known = {"weights": np.abs(params["weights"]), "gain": scale, "bias": shift}
        return known, {"mean": 0 * scale, "var": 1 - 1e-5 + 0 * scale}
    pairs = {
        name: (np.abs(p), None) if isinstance(p, np.ndarray) else magnitudes(p, stats[name])
        for name, p in params.items()
    }
    return {n: p for n, (p, _) in pairs.items()}, {n: s for n, (_, s) in pairs.items() if s}


@pytest.mark.parametrize("name", ["resnet", "mobilenet"])
def test_a_frozen_network_is_within_the_bound_of_its_roundings(
    name: str,
    example: Callable[[str], ModuleType],
    mobilenet: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In f64.  A layer of n products and 6 operations of its norm adds ``(n + 7) u`` times its
    magnitude to the relative error of what comes before; what follows a layer without weights adds
    one u for an addition, and one for each element of a mean.  The magnitudes are those of the same
    network on absolute values, without a limit of activations.  Both forms are within this of the
    exact scores.
    """
    module, rng = example(name), np.random.default_rng(0)
    if name == "resnet":
        params, x = module.init(bu.random.key(0), 4, [1], 3), rng.normal(size=(2, 3, 16, 16))
    else:
        params, x = mobilenet.init(bu.random.key(0)), rng.normal(size=(2, 1, 8, 8))
    stats = example("vision").init_stats(params)
    params = bu.tree.map(lambda p: rng.normal(0, 0.5, p.shape), params)
    stats = bu.tree.map(lambda s: rng.uniform(0.5, 2, s.shape), stats)

    def network(known: Any, x: Any) -> bu.Array:
        found: bu.Array = module.scores(*known, x)[0]
        return found

    plain, frozen = bu.jit(network), bu.freeze(network, (params, stats))
    scores, folded = np.asarray(plain((params, stats), x)), np.asarray(frozen(x))
    assert frozen.lower(x).cost().flops < plain.lower((params, stats), x).cost().flops
    assert not np.array_equal(scores, folded), "nothing was folded, and the bound shows nothing"
    monkeypatch.setattr(bu.nn, "relu6", bu.nn.relu)
    largest = np.asarray(bu.jit(network)(magnitudes(params, stats), np.abs(x)))
    roundings = sum(math.prod(p["weights"].shape[1:]) + 7 for p in layers(params))
    roundings += len(params["blocks"]) + x[0, 0].size + len(params["head"]) + 1
    bound = 2 * roundings * 2.0**-53 * largest
    assert (np.abs(scores - folded) <= bound).all()
    assert (bound < 1e-3 * np.abs(scores).max()).all(), "the bound finds wrong weights"

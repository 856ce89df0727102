"""The transformer of the examples beats bigrams; its cache changes nothing, nor does a device."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import bringup as bu

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "transformer.py"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module, of a size for slow devices."""
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    spec = importlib.util.spec_from_file_location("transformer", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, value in {"WIDTH": 8, "HEADS": 2, "CONTEXT": 10}.items():
        monkeypatch.setattr(module, name, value)
    return module


def test_it_beats_bigrams_within_half_a_minute() -> None:
    command = [sys.executable, str(EXAMPLE), "--steps", "300", "--batch", "6"]
    # As a user compiles it: training is many calls of one program.
    env = {name: value for name, value in os.environ.items() if name != "BRINGUP_OPT"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    found = re.search(r"bigrams ([\d.]+), transformer ([\d.]+)\n", done.stdout)
    assert found, done.stdout
    bigrams, transformer = map(float, found.groups())
    assert transformer < bigrams - 0.05
    speeds = re.search(
        r"with a cache ([\d,]+) .*, without one ([\d,]+) tokens a second\n", done.stdout
    )
    assert speeds, done.stdout
    written = done.stdout[speeds.end() : -1]
    assert written.startswith("    def ")
    assert len(written) == 128


def test_bigrams_are_counted_with_one_more(small: ModuleType) -> None:
    """``abababab…``: b follows a n times of n, each counted once more among two characters."""
    text = np.array([0, 1] * 50, np.int32)
    pieces = small.windows(text)
    loss = small.bigram_loss(text, pieces, 2)
    assert loss == pytest.approx(-(np.log(51 / 52) + np.log(50 / 51)) / 2)


def test_the_cache_gives_the_scores_of_the_whole_text(small: ModuleType) -> None:
    params = small.init(bu.random.key(3), 7)
    text = bu.random.randint(bu.random.key(4), (1, 10), 0, 7, dtype=bu.int32)
    places = bu.arange(10, dtype=bu.int32)

    def causal(_n: int, query: bu.Array, key: bu.Array, value: bu.Array) -> bu.Array:
        return bu.nn.attention(query, key, value, causal=True)

    wanted = np.asarray(small.scores(params, text, places, causal))[0]
    follow, cache = bu.jit(small.follow), small.empty_cache()
    for place in range(10):
        found, cache = follow(params, cache, text[0, place], places[place])
        assert np.abs(np.asarray(found) - wanted[place]).max() < 1e-5


def test_the_cache_changes_no_character(small: ModuleType) -> None:
    params, key = small.init(bu.random.key(3), 7), bu.random.key(5)
    kept, anew = (small.sample(params, [1, 2], key, 10, cached) for cached in (True, False))
    assert kept == anew
    assert kept[:2] == [1, 2]
    assert len(set(kept)) > 2


def test_what_comes_later_changes_nothing_before(small: ModuleType) -> None:
    params = small.init(bu.random.key(3), 7)
    first = bu.random.randint(bu.random.key(4), (1, 10), 0, 7, dtype=bu.int32)
    second = bu.where(bu.arange(10) < 6, first, (first + 1) % 7)

    def causal(_n: int, query: bu.Array, key: bu.Array, value: bu.Array) -> bu.Array:
        return bu.nn.attention(query, key, value, causal=True)

    places = bu.arange(10, dtype=bu.int32)
    one, two = (np.asarray(small.scores(params, t, places, causal))[0] for t in (first, second))
    assert np.abs(one[:6] - two[:6]).max() < 1e-6
    assert np.abs(one[6:] - two[6:]).max() > 1e-3


def test_training_and_sampling_are_the_same_on_every_device(
    small: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small, "BLOCKS", 1)  # the second would be compiled for each device too
    text = np.asarray(bu.random.randint(bu.random.key(0), 100, 0, 7, dtype=bu.int32))
    found = []
    for name in (name for name in bu.devices() if ":" not in name):
        with bu.device(name):
            training, first = small.Training(2), small.init(bu.random.key(0), 7)
            params = small.train(first, training, text, 2, bu.random.key(1))
            written = small.sample(params, [1, 2], bu.random.key(1), 6)
            found.append((training.losses, written))
    assert len(found[0][0]) == 2
    assert len(found[0][1]) == 6
    for losses, written in found:
        assert losses == pytest.approx(found[0][0], rel=1e-5)
        assert written == found[0][1]

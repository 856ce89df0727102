"""Program files on CPUs: weights stay in the file, and libraries are made of it."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np

import bringup as bu
from bringup.runtime import devices
from bringup_cpu.device import CpuDevice

RNG = np.random.default_rng(1)
W = bu.asarray(RNG.normal(size=(64, 48)).astype(np.float32))
B = bu.asarray(RNG.normal(size=5).astype(np.float32))
ODD = bu.asarray(RNG.normal(size=3).astype(np.float32))
X = RNG.normal(size=(2, 64)).astype(np.float32)


def test_weights_are_not_copied(tmp_path: Path) -> None:
    bu.save(tmp_path / "f", lambda x: (bu.exp(x @ W), B * 2, ODD + 1), bu.float32[2, 64])
    expected = [np.asarray(y) for y in (bu.exp(bu.asarray(X) @ W), B * 2, ODD + 1)]
    file = bu.load(tmp_path / "f", device="cpu")
    file.verify()
    device = devices.get("cpu").device
    assert isinstance(device, CpuDevice)
    results = file(X)
    del results
    gc.collect()
    before = device.memory.state.live_bytes
    again = bu.load(tmp_path / "f", device="cpu")
    results = again(X)
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(result), wanted)
    del results, result
    gc.collect()
    # The array that does not begin at a multiple of 64 bytes is a copy.
    assert device.memory.state.live_bytes - before == 12
    copied = bu.load(tmp_path / "f", device="cpu", copy=True)
    results = copied(X)
    np.testing.assert_array_equal(np.asarray(results[0]), expected[0])
    del results
    gc.collect()
    assert device.memory.state.live_bytes - before == 12 + W.nbytes + B.nbytes + ODD.nbytes
    kept = file(X)
    del file, again
    gc.collect()
    np.testing.assert_array_equal(np.asarray(kept[0]), expected[0])


def test_a_file_is_given_back_with_its_last_entry(tmp_path: Path) -> None:
    bu.save(tmp_path / "f", {"a": (lambda x: x @ W, bu.float32[2, 64])})
    file = bu.load(tmp_path / "f", device="cpu")
    contents = weakref.ref(file._contents)
    entry = file.entries["a"]
    gc.collect()
    gc.disable()
    try:
        del file
        assert entry(X).shape == (2, 48)
        assert contents() is not None
        del entry
        assert contents() is None
    finally:
        gc.enable()


def test_a_library_of_a_file_is_that_of_its_function(tmp_path: Path) -> None:
    def predict(x: bu.Array) -> bu.Array:
        return bu.nn.softmax(x @ W)

    bu.save(tmp_path / "f", predict, bu.float32[2, 64])
    entry = bu.load(tmp_path / "f").entries["predict"]
    for target in ("x86_64-linux-gnu", "aarch64-linux-gnu", "wasm32"):
        mine = entry.export("model", target=target)
        theirs = bu.jit(predict).export("model", bu.float32[2, 64], target=target)
        assert mine.files == theirs.files

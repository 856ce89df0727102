"""Program files on a device that borrows nothing and takes its memory back."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np

import bringup as bu
from bringup.runtime import devices

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_weights_are_copied_to_the_device_of_the_call(tmp_path: Path) -> None:
    w = bu.asarray(X.T)
    bu.save(tmp_path / "f", lambda x: x @ w, bu.float32[2, 3])
    here = devices.get()
    default = bu.load(tmp_path / "f")
    assert default(X).device is here
    assert default(bu.asarray(X)).device is here
    other = bu.load(tmp_path / "f", device="cpu")
    assert other(X).device is not here
    np.testing.assert_array_equal(other(X), default(X))
    alive = len(here.device.alive)
    again = bu.load(tmp_path / "f")
    result = again(X)
    del result, again
    gc.collect()
    assert len(here.device.alive) == alive

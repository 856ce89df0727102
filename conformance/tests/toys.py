"""A device of a few ops in a distribution of its own, which worker processes find as any other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

_SOURCE = """
import os, signal, time
import numpy as np
from bringup.backend import Capabilities, DeviceInfo, Handshake, OpsDevice, SimpleBackend
from bringup.backend import claims, hookimpl
from bringup.ops.table import all_ops, lookup

ROWS = [row for row in all_ops() if row.tier == 0]

def misbehave(name, operands):
{misbehaviour}

class Toy(OpsDevice):
    capabilities = Capabilities(ops=claims([r.name for r in ROWS], ["f32"]), simulated=True)
    def __init__(self):
        self.ops = {{row.name: self.function(row.name) for row in ROWS}}
    def function(self, name):
        def call(*views, out, **attrs):
            arrays = [self.array(view) for view in views]
            misbehave(name, arrays)
            with np.errstate(all="ignore"):
                self.array(out)[...] = lookup(name).reference(*arrays, **attrs)
        return call
    def array(self, view):
        t = view.type
        raw = view.handle[view.offset : view.offset + t.nbytes]
        return raw.view(t.dtype.numpy).reshape(t.shape)
    def alloc(self, nbytes): return np.zeros(nbytes, np.uint8)
    def free(self, handle): pass
    def upload(self, handle, data): handle[: len(data)] = np.frombuffer(data, np.uint8)
    def download(self, handle, out): out[:] = handle[: len(out)].data
    def copy(self, target, source, nbytes): target[:nbytes] = source[:nbytes]
    def synchronize(self):
        if hasattr(misbehave, "lost"):
            raise misbehave.lost
    def close(self): pass

{after}
@hookimpl
def bringup_handshake():
    return Handshake(api=(1, 1), opset=(1, 1))

@hookimpl
def bringup_backend():
    {opening}
    info = [DeviceInfo(0, "Toy One", (("cores", "1"),))]
    return SimpleBackend("toy", lambda index: Toy(), Capabilities(), info)
"""


def install(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    misbehaviour: str = "pass",
    opening: str = "pass",
    after: str = "",
) -> None:
    """Put the device ``toy`` on the path.

    misbehaviour: statements before each op; ``name`` and ``operands`` are its.  What they set as
    ``misbehave.lost`` every wait raises from then on.
    opening: a statement before the backend is made.  after: statements behind the class ``Toy``.
    """
    body = "\n".join("    " + line for line in misbehaviour.splitlines())
    info = folder / "bringup_toy-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bringup-toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[bringup.backends]\ntoy = plugin_toy\n")
    source = _SOURCE.format(misbehaviour=body, opening=opening, after=after)
    (folder / "plugin_toy.py").write_text(source)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    # No other test's toy is open in this process.
    monkeypatch.setattr("bringup.backend.registry._loaded", {})
    monkeypatch.setattr("bringup.runtime.devices._open", {})
    # An entry that is set and taken away is one that monkeypatch takes away again after the test.
    monkeypatch.setitem(sys.modules, "plugin_toy", None)
    del sys.modules["plugin_toy"]

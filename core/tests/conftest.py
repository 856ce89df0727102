"""Plugin distributions made on the spot: real metadata and modules in a directory of the path."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

GOOD = """
from bringup.backend import Capabilities, DeviceInfo, Handshake, SimpleBackend, hookimpl

def open_device(index):
    raise RuntimeError("no door")

@hookimpl
def bringup_handshake():
    return Handshake(api=(1, 1), opset=(1, 1))

@hookimpl
def bringup_backend():
    return SimpleBackend({name!r}, open_device, Capabilities(), [DeviceInfo(0, "Good One")])
"""


Install = Callable[..., Path]


@pytest.fixture
def healthy() -> str:
    """The source of a plugin module without defects; ``{name!r}`` stands for its name."""
    return GOOD


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """``install(name, source)`` puts a distribution with one backend on the path."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("bringup.backend.registry._loaded", {})
    before = set(sys.modules)

    def put(
        name: str,
        source: str = GOOD,
        *,
        distribution: str = "",
        version: str = "1.0",
        requires: tuple[str, ...] = (),
        entry_points: str = "",
    ) -> Path:
        distribution = distribution or f"bringup-{name}"
        module = f"plugin_{distribution}".replace("-", "_")
        root = tmp_path / distribution
        info = root / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {distribution}", f"Version: {version}"]
        lines += [f"Requires-Dist: {r}" for r in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        entries = entry_points or f"[bringup.backends]\n{name} = {module}\n"
        (info / "entry_points.txt").write_text(entries)
        if source:
            (root / f"{module}.py").write_text(source.replace("{name!r}", repr(name)))
        sys.path.insert(0, str(root))
        return root

    yield put
    for name in set(sys.modules) - before:
        if name.startswith("plugin_"):
            del sys.modules[name]

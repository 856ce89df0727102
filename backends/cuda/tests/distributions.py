"""Metadata of the two distributions, for tests that run without them installed."""

from __future__ import annotations

from pathlib import Path

DEVICES = {"bringup-cuda": "cuda", "bringup-cuda-emulator": "cuda-emulated"}


def write_metadata(root: Path) -> Path:
    """Write it into a folder for the path, which is returned: their wheels would ask for pycuda."""
    for name, device in DEVICES.items():
        package = name.replace("-", "_")
        info = root / f"{package}-0.1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
        (info / "entry_points.txt").write_text(f"[bringup.backends]\n{device} = {package}.plugin\n")
    return root

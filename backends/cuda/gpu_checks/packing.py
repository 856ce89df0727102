"""A folder with all that a machine without a network needs to run bringup-cuda.

``site.tar.xz`` holds wheels, unpacked as pip would install them; ``pycuda-*.tar.gz`` is built where
the GPU is, for that interpreter, with the headers in ``include``; ``manifest.json`` says what is in
them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Of this file: ``backends/cuda``, and the root of the checkout.
BACKEND = Path(__file__).resolve().parents[1]
ROOT = BACKEND.parents[1]

SITE = "site.tar.xz"
MANIFEST = "manifest.json"
#: What pycuda needs to be built and to run; it is itself packed as source.
PYCUDA_NEEDS = ("setuptools", "pytools", "mako", "platformdirs")
#: What pycuda is compiled with; whatever CUDA release they are of, a driver of it or a newer one
#: loads the result.
HEADERS = ("cuda.h", "cudaProfiler.h")
HEADER_WHEELS = ("nvidia-cuda-runtime-cu12>=12.8", "nvidia-cuda-profiler-api-cu12>=12.8")
#: glibc releases whose wheels a machine of today takes, the newest first.
GLIBC = ("2_34", "2_28", "2_27", "2_17")


def pack(folder: Path, python: str, machine: str, without: Sequence[str]) -> dict[str, Any]:
    """Fill a folder for a machine with this Python, such as "3.12"; returns its manifest.

    machine: as ``uname -m`` says there.  without: distributions that are there already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("pycuda-*.tar.gz"), folder / SITE, folder / MANIFEST):
        old.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as text:
        wheels = Path(text)
        _own_wheels(wheels)
        _download_wheels(wheels, python, machine)
        source = download_pycuda(folder)
        download_headers(folder)
        left_out = {_plain(name) for name in without}
        chosen = [w for w in sorted(wheels.glob("*.whl")) if _name_of(w) not in left_out]
        entries = _write_site(folder / SITE, chosen)
    manifest = {
        "python": python,
        "machine": machine,
        "commit": commit(),
        "pycuda": source.name,
        "distributions": entries,
        "bytes": source.stat().st_size + (folder / SITE).stat().st_size,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def requirements() -> list[str]:
    """Of bringup when it runs, and of pycuda."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *PYCUDA_NEEDS]


def commit(packed: Path | None = None) -> str:
    """Of this checkout, with a mark if files differ from it; or else of the one that was packed;
    or else empty.
    """
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=False)
        known = found.stdout.strip()
    except OSError:
        known = ""
    if not known and packed is not None:
        known = str(json.loads((packed / MANIFEST).read_text())["commit"])
    return known


def _own_wheels(folder: Path) -> None:
    for source in (ROOT, BACKEND):
        pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(source))


def _download_wheels(folder: Path, python: str, machine: str) -> None:
    platforms = [f"manylinux_{release}_{machine}" for release in GLIBC]
    platforms.append(f"manylinux2014_{machine}")
    pip(
        "download", "--only-binary=:all:", "--dest", str(folder), "--python-version", python,
        "--implementation", "cp",
        *(word for each in platforms for word in ("--platform", each)),
        *requirements(),
    )  # fmt: skip


def download_pycuda(folder: Path) -> Path:
    """The source of pycuda, in a folder."""
    pip("download", "--no-deps", "--no-binary=pycuda", "--dest", str(folder), "pycuda")
    return next(folder.glob("pycuda-*.tar.gz"))


def download_headers(folder: Path) -> None:
    """`HEADERS` into ``include`` of a folder, which then is as good as a toolkit to pycuda."""
    include = folder / "include"
    include.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as text:
        pip("download", "--no-deps", "--only-binary=:all:", "--dest", text, *HEADER_WHEELS)
        for wheel in Path(text).glob("*.whl"):
            with zipfile.ZipFile(wheel) as opened:
                for name in opened.namelist():
                    if Path(name).name in HEADERS:
                        (include / Path(name).name).write_bytes(opened.read(name))


def _write_site(target: Path, wheels: Sequence[Path]) -> list[dict[str, Any]]:
    """Write every wheel's files, one distribution after the other; returns what is known of each.

    Small files come first in each, so that what is not wanted there is cheap to skip.
    """
    entries = []
    with tarfile.open(target, "w:xz", preset=6) as archive, tempfile.TemporaryDirectory() as text:
        for wheel in wheels:
            place = Path(text) / wheel.stem
            with zipfile.ZipFile(wheel) as opened:
                opened.extractall(place)
            files = sorted(str(f.relative_to(place)) for f in place.rglob("*") if f.is_file())
            for file in files:
                archive.add(place / file, file)
            name, version = wheel.name.split("-")[:2]
            entries.append({"name": _plain(name), "version": version, "files": files})
    return entries


def _name_of(wheel: Path) -> str:
    return _plain(wheel.name.split("-")[0])


def _plain(name: str) -> str:
    """As the registry compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pip(*words: str) -> None:
    """This interpreter's.  Raises CalledProcessError."""
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *words], check=True)

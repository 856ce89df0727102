"""``bringup doctor``: what is installed, its state, and what to do about it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import stat
from dataclasses import asdict
from pathlib import Path
from typing import Any

import platformdirs

from bringup import config
from bringup.backend.discovery import BackendStatus
from bringup.backend.registry import list_backends
from bringup.cli.output import document, heading, line, size_text, table

_NEEDED = ("bringup", "numpy", "ml_dtypes", "llvmlite", "pluggy", "hypothesis")
_FAULTS = ("incompatible", "broken", "duplicate")


def show(*, as_json: bool) -> int:
    """Print the report; returns 1 if a backend or a package needs a fix, else 0.

    Plugins are tried in interpreters of their own: this one imports none of them, so that a
    crashing driver is a line of the report.
    """
    backends = list_backends(probe=True)
    versions = {"python": platform.python_version(), **{name: _version(name) for name in _NEEDED}}
    variables = {v.name: config.text(v.name) for v in config.VARIABLES}
    cache = _cache()
    if as_json:
        rows = [asdict(status) for status in backends]
        document({"versions": versions, "backends": rows, "variables": variables, "cache": cache})
    else:
        _print(versions, backends, cache)
    return int(_faults(versions, backends) > 0)


def _print(versions: dict[str, str], backends: list[BackendStatus], cache: dict[str, Any]) -> None:
    heading("Versions")
    table(("package", "version"), [(k, v or "not installed") for k, v in versions.items()])
    line()
    heading("Backends")
    rows = [(s.name, s.state, s.distribution, s.version, s.reason, s.fix) for s in backends]
    if rows:
        table(("name", "state", "distribution", "version", "reason", "fix"), rows, apart=True)
    else:
        line("none is installed")
    for status in backends:
        for text in status.output.splitlines():
            line(f"{status.name} printed: {text}")
    line()
    heading("Environment")
    table(
        ("variable", "value", "meaning", "fix"),
        [(v.name, config.text(v.name), v.doc, config.problem(v) or "") for v in config.VARIABLES],
    )
    line()
    heading("Cache")
    line(f"{cache['path']}: {cache['files']:,} files, {size_text(cache['bytes'])}")
    line()
    faults = _faults(versions, backends)
    heading(f"{faults} to fix" if faults else "Everything is in order.")


def _faults(versions: dict[str, str], backends: list[BackendStatus]) -> int:
    """How many packages, backends and variables need a fix."""
    missing = sum(not version for version in versions.values())
    broken = sum(status.state in _FAULTS for status in backends)
    return missing + broken + sum(config.problem(v) is not None for v in config.VARIABLES)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cache() -> dict[str, Any]:
    path = Path(platformdirs.user_cache_dir("bringup"))
    sizes: list[int] = []
    for file in path.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # another process tidies up meanwhile
            status = file.stat()
            sizes += [status.st_size] if stat.S_ISREG(status.st_mode) else []
    return {"path": str(path), "files": len(sizes), "bytes": sum(sizes)}

"""Line and branch coverage of a backend's code, measured in every process that a run starts.

The library `coverage` measures.  A worker may be killed at any time, so it saves its data before it
reports anything.
"""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import bringup
from bringup.backend.discovery import candidates, select
from bringup.errors import BringupError

if TYPE_CHECKING:
    from coverage import Coverage

# A process that finds this variable is measured; its value is a file of the library's settings.
_MEASURED = "COVERAGE_PROCESS_START"
_SETTINGS = """
[run]
branch = true
parallel = true
data_file = {data}
patch = _exit
include = {files}
disable_warnings = no-data-collected, module-not-measured, module-not-imported
"""


def library() -> ModuleType:
    """The library.  Raises BringupError if it is not installed."""
    try:
        return import_module("coverage")
    except ImportError:
        raise BringupError(
            "the library that measures coverage is not installed",
            fix='pip install "bringup[coverage]"',
        ) from None


def begin() -> None:
    """Measure this process if the run that started it is measured."""
    if _MEASURED in os.environ:
        library().process_startup()


def save() -> None:
    """Save the data of this process so far, if it is measured."""
    module = sys.modules.get("coverage")
    if module is not None and (current := module.Coverage.current()) is not None:
        current.save()


def packages_of(backend: str) -> tuple[str, ...]:
    """The packages of a backend's plugin, and of the backends that its distribution requires.

    Raises BackendError for a name that no backend has.
    """
    # Worker processes import this module and start sooner without the two.
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    installed = candidates()
    plugin = select(backend.partition(":")[0], installed)
    required = {canonicalize_name(Requirement(text).name) for text in plugin.requires}
    plugins = [plugin, *(c for c in installed if c.distribution in required and not c.is_core)]
    return tuple(dict.fromkeys(c.entry.module.partition(".")[0] for c in plugins))


def packages_of_backends() -> tuple[str, ...]:
    """The packages of core that the suite runs without, since only backends use them."""
    # Asked in a new process: in this one a device may be open.
    modules = ("cli", "execution.isolated", "execution.schedule", "execution.worker")
    suite = ", ".join(f"bringup_conformance.{module}" for module in modules)
    program = f"import sys, {suite}; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    packages = [each for each in pkgutil.iter_modules(bringup.__path__) if each.ispkg]
    return tuple(sorted({f"bringup.{each.name}" for each in packages} - {*done.stdout.split()}))


def modules_of(package: str) -> dict[str, Path]:
    """The source files of a package, or of a single module, by the names of modules.

    Raises BringupError if it is not installed.
    """
    try:
        spec = importlib.util.find_spec(package)
    except ImportError:
        spec = None
    if spec is None:
        raise BringupError(f"no package is named {package!r}", fix="name one that can be imported")
    if spec.submodule_search_locations is None:
        return {package: Path(spec.origin or "")}
    modules: dict[str, Path] = {}
    for folder in map(Path, spec.submodule_search_locations):
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            modules[".".join((package, *parts)).removesuffix(".__init__")] = file
    return modules


class Measurement:
    """What was measured.  coverage: the library's object, with the data of all processes.
    lost: sentences of the library about data that it could not use.
    """

    def __init__(self) -> None:
        self.coverage: Coverage
        self.lost: list[str] = []


@contextmanager
def measured(files: Sequence[Path], folder: Path, *, here: bool) -> Iterator[Measurement]:
    """Measure some files in the processes that are started inside the block; their cache is empty.

    folder: for the data, while the result is used.  The result is complete when the block ends.
    here: whether to measure this process as well.
    """
    from unittest import mock  # which imports asyncio: no worker needs it

    module, measurement = library(), Measurement()
    settings = folder / "settings"
    included = "\n    ".join(map(str, files))
    settings.write_text(_SETTINGS.format(data=folder / "data", files=included), encoding="utf-8")
    caches = str(folder / "cache")
    variables = {_MEASURED: str(settings), "XDG_CACHE_HOME": caches, "LOCALAPPDATA": caches}
    with mock.patch.dict(os.environ, variables):
        own = module.Coverage(config_file=str(settings)) if here else None
        with nullcontext() if own is None else own.collect():
            yield measurement
        if own is not None:
            own.save()
    measurement.coverage = module.Coverage(config_file=str(settings))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        measurement.coverage.combine([str(folder)])
    measurement.lost += [str(each.message) for each in caught]

"""What installed distributions say of themselves, read from their files.

The standard library's reader imports a parser of mail first, 15 ms that the first call of every
program would pay.  It still reads where distributions do not lie in directories of the path: in
archives, and where an importer of somebody's own finds them.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from functools import lru_cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup.records import record

if TYPE_CHECKING:
    from importlib.metadata import Distribution

_FOLDERS = (".dist-info", ".egg-info")


@record
class Entry:
    """One entry point.  value: the object it names, ``package.module`` or ``module:attribute``."""

    name: str
    value: str

    @property
    def module(self) -> str:
        """The module its object lives in."""
        return self.value.partition("[")[0].partition(":")[0].strip()

    def load(self) -> Any:
        """Import the module; the attribute named, or the module itself."""
        attribute = self.value.partition("[")[0].partition(":")[2].strip()
        names = filter(None, attribute.split("."))
        return reduce(getattr, names, importlib.import_module(self.module))


@record
class Installed:
    """A distribution with entry points of one group.

    name: normalised: lower case, words joined by ``-``.
    fault: why its metadata cannot be read; there are no entries then.
    """

    name: str
    version: str
    entries: tuple[Entry, ...] = ()
    requires: tuple[str, ...] = ()
    fault: str = ""


def installed(group: str) -> Iterator[Installed]:
    """The distributions on ``sys.path`` that have entry points of a group, in the path's order.

    One found twice on the path comes twice.
    """
    for entry in sys.path:
        folder = Path(entry)
        try:
            yield from _in_path(folder, folder.stat().st_mtime_ns, group)
        except NotADirectoryError:
            yield from _by_library(group, path=[entry])
        except OSError:
            continue
    if any(hasattr(finder, "find_distributions") for finder in sys.meta_path[:] if _is_own(finder)):
        yield from _by_library(group)


@lru_cache(maxsize=256)
def _in_path(folder: Path, _changed: int, group: str) -> tuple[Installed, ...]:
    """What lies in a directory of the path; read again when something came or went since."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(_FOLDERS))
    return tuple(found for name in names for found in _in_folder(f"{folder}/{name}", group))


def _is_own(finder: object) -> bool:
    from importlib.machinery import PathFinder

    return finder is not PathFinder


def _in_folder(folder: str, group: str) -> Iterator[Installed]:
    try:
        with open(f"{folder}/entry_points.txt", "rb") as file:
            text = file.read()
    except OSError:
        return
    if group.encode() not in text:
        return
    stated: dict[str, list[str]] = {}
    try:
        stated = _header(folder)
        entries = _entries(text.decode(), group)
    except (OSError, ValueError) as error:
        yield _unreadable(stated, error)
        return
    if entries:
        requires = tuple(stated.get("Requires-Dist", ()))
        yield Installed(_name(stated), _first(stated, "Version", "unknown"), entries, requires)


def _header(folder: str) -> dict[str, list[str]]:
    file = Path(folder, "METADATA" if folder.endswith(".dist-info") else "PKG-INFO")
    found: dict[str, list[str]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line:
            break
        key, colon, value = line.partition(":")
        if colon and not line[0].isspace():
            found.setdefault(key, []).append(value.strip())
    return found


def _entries(text: str, group: str) -> tuple[Entry, ...]:
    found: dict[Entry, None] = {}
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif section == group and line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            if not equals or not value.strip():
                raise ValueError(f"{line!r} is no entry point")
            found[Entry(name.strip(), value.strip())] = None
    return tuple(found)


def _by_library(group: str, path: list[str] | None = None) -> Iterator[Installed]:
    import importlib.metadata

    for distribution in importlib.metadata.distributions(path=sys.path if path is None else path):
        try:
            rows = [e for e in distribution.entry_points if e.group == group]
            if rows:
                yield _of_library(distribution, tuple(Entry(e.name, e.value) for e in rows))
        except Exception as error:  # noqa: BLE001  (foreign text; the parser raises anything)
            if group in (distribution.read_text("entry_points.txt") or ""):
                yield _unreadable({}, error)


def _of_library(distribution: Distribution, entries: tuple[Entry, ...]) -> Installed:
    metadata = distribution.metadata  # parsed anew at each look
    stated = {key: metadata.get_all(key) or [] for key in ("Name", "Version", "Requires-Dist")}
    requires = tuple(stated["Requires-Dist"])
    return Installed(_name(stated), _first(stated, "Version", "unknown"), entries, requires)


def _unreadable(stated: dict[str, list[str]], error: Exception) -> Installed:
    fault = f"{type(error).__name__}: {error}"
    return Installed(_name(stated), _first(stated, "Version", "unknown"), fault=fault)


def _first(stated: dict[str, list[str]], key: str, default: str) -> str:
    return next(iter(stated.get(key, ())), "") or default


def _name(stated: dict[str, list[str]]) -> str:
    return _first(stated, "Name", "unnamed").lower().replace("_", "-").replace(".", "-")

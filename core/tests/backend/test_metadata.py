"""Reading installed metadata without the standard library's reader gives what that one gives."""

from __future__ import annotations

import importlib.metadata
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bringup.backend.metadata import Entry, Installed, installed

Install = Callable[..., Path]


def by_the_library(group: str) -> Iterator[Installed]:
    for found in importlib.metadata.distributions():
        entries = [Entry(e.name, e.value) for e in found.entry_points if e.group == group]
        if entries:
            name = found.name.lower().replace("_", "-").replace(".", "-")
            requires = tuple(found.metadata.get_all("Requires-Dist") or ())
            yield Installed(name, found.version, tuple(dict.fromkeys(entries)), requires)


@pytest.mark.parametrize("group", ["bringup.backends", "console_scripts", "pytest11", "nobody's"])
def test_everything_installed_here_reads_the_same(group: str, install: Install) -> None:
    install("good", requires=("numpy>=1", 'torch; extra == "all"'), version="2.0")
    text = "# comment\n[bringup.backends]\na.b = x.y:z.w [extra]\n\n[other]\nc=d\n"
    install("odd", entry_points=text)
    wanted = {each.name: each for each in by_the_library(group)}
    assert {each.name: each for each in installed(group)} == wanted
    assert bool(wanted) == (group != "nobody's")


def test_an_archive_on_the_path_is_read_too(install: Install, tmp_path: Path) -> None:
    root = install("zipped")
    sys.path.remove(str(root))
    archive = tmp_path / "zipped.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in root.rglob("*"):
            file.write(path, path.relative_to(root))
    sys.path.insert(0, str(archive))
    found = {each.name: each for each in installed("bringup.backends")}
    assert found["bringup-zipped"].entries[0].name == "zipped"


def test_an_importer_of_somebodys_own_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere(importlib.metadata.Distribution):
        def read_text(self, filename: str) -> str | None:
            return {
                "METADATA": "Name: Else_Where\nVersion: 3\n",
                "entry_points.txt": "[bringup.backends]\nfar = far.away\n",
            }.get(filename)

        def locate_file(self, path: object) -> Path:
            raise NotImplementedError

    class Finder:
        @staticmethod
        def find_distributions(_context: object) -> Iterator[Elsewhere]:
            yield Elsewhere()

        @staticmethod
        def find_spec(*_args: object) -> None:
            return None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    found = {each.name: each for each in installed("bringup.backends")}
    assert found["else-where"] == Installed("else-where", "3", (Entry("far", "far.away"),))


def test_an_entry_names_a_module_or_something_in_it() -> None:
    assert Entry("n", "os.path").load() is __import__("os").path
    assert Entry("n", "os : path.join [extra]").load() is __import__("os").path.join

"""The three distributions agree on names, versions and entry points, and name things that exist."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"bringup": ".", "bringup-cuda": "backends/cuda", "bringup-template": "backends/template"}
GROUP = "bringup.backends"


def metadata(distribution: str) -> dict[str, Any]:
    path = ROOT / FOLDERS[distribution] / "pyproject.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def packages(distribution: str) -> dict[str, Path]:
    """The import packages a wheel holds, by name."""
    wheel = metadata(distribution)["tool"]["hatch"]["build"]["targets"]["wheel"]
    return {Path(p).name: ROOT / FOLDERS[distribution] / p for p in wheel["packages"]}


each = pytest.mark.parametrize("distribution", FOLDERS)
each_beside = pytest.mark.parametrize("distribution", [d for d in FOLDERS if d != "bringup"])


@each
def test_identity(distribution: str) -> None:
    project = metadata(distribution)["project"]
    assert project["name"] == distribution
    assert project["version"] == metadata("bringup")["project"]["version"]
    assert str(Version(project["version"])) == project["version"]
    assert project["requires-python"] == ">=3.11"
    assert project["license"] == "Apache-2.0"


@each
def test_every_package_of_the_wheel_is_there_and_typed(distribution: str) -> None:
    for name, path in packages(distribution).items():
        assert (path / "__init__.py").is_file(), name
        assert (path / "py.typed").is_file(), name


@each
def test_entry_points_name_modules_of_the_same_wheel(distribution: str) -> None:
    project = metadata(distribution)["project"]
    backends = project["entry-points"][GROUP]
    assert backends
    targets = [*backends.values(), *project.get("scripts", {}).values()]
    for target in targets:
        module = target.partition(":")[0].split(".")
        path = packages(distribution)[module[0]].joinpath(*module[1:])
        assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), target


@each
def test_a_backend_entry_point_is_a_module_not_an_object(distribution: str) -> None:
    for target in metadata(distribution)["project"]["entry-points"][GROUP].values():
        assert ":" not in target


def test_the_base_distribution_holds_core_cpu_and_suite() -> None:
    assert set(packages("bringup")) == {"bringup", "bringup_cpu", "bringup_conformance"}
    assert metadata("bringup")["project"]["scripts"] == {
        "bringup": "bringup.cli:main",
        "conformance": "bringup_conformance.cli:main",
    }


def test_no_device_name_is_taken_twice() -> None:
    names = [n for d in FOLDERS for n in metadata(d)["project"]["entry-points"][GROUP]]
    assert len(names) == len(set(names))


@each_beside
def test_a_backend_beside_the_base_depends_on_it(distribution: str) -> None:
    wanted = [Requirement(r) for r in metadata(distribution)["project"]["dependencies"]]
    base = [r for r in wanted if r.name == "bringup"]
    assert len(base) == 1
    assert base[0].specifier.contains(metadata("bringup")["project"]["version"])


def test_running_the_suite_needs_no_test_runner() -> None:
    names = {Requirement(r).name for r in metadata("bringup")["project"]["dependencies"]}
    assert "hypothesis" in names
    assert names.isdisjoint({"pytest", "mypy", "ruff", "scikit-learn", "pycuda"})

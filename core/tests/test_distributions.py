"""The distributions agree on names, versions and entry points, and name things that exist."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "bringup": ".",
    "bringup-aot": "backends/cpu/aot",
    "bringup-c": "backends/c",
    "bringup-cuda": "backends/cuda",
    "bringup-cuda-emulator": "backends/cuda/emulator",
    "bringup-opencl": "backends/opencl",
    "bringup-selftest": "conformance/selftest",
    "bringup-simulator": "backends/simulator",
    "bringup-template": "backends/template",
}
#: What tests the suite.
WITHOUT_BACKENDS = ("bringup-selftest",)
GROUP = "bringup.backends"


def metadata(distribution: str) -> dict[str, Any]:
    path = ROOT / FOLDERS[distribution] / "pyproject.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def backends_of(distribution: str) -> dict[str, str]:
    """Its entry points, by names of devices."""
    found: dict[str, str] = metadata(distribution)["project"].get("entry-points", {}).get(GROUP, {})
    return found


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
def test_what_a_package_page_shows(distribution: str) -> None:
    project = metadata(distribution)["project"]
    assert project["authors"]
    if distribution != "bringup-template":  # the package of a vendor, who has addresses of his own
        assert {"Homepage", "Documentation", "Issues", "Changelog"} <= set(project["urls"])
        assert all(url.startswith("https://") for url in project["urls"].values())
    minors = {c.rpartition(" ")[2] for c in project["classifiers"] if " :: Python :: 3." in c}
    assert minors == {"3.11", "3.12", "3.13"}
    folder = ROOT / FOLDERS[distribution]
    assert project["license-files"] == ["LICENSE"]
    assert (folder / "LICENSE").read_text("utf-8") == (ROOT / "LICENSE").read_text("utf-8")
    text = (folder / "README.md").read_text("utf-8")
    shown = readme_hook().absolute(text) if "dynamic" in project else text
    links = re.findall(r"\]\(([^)\s]+)\)", shown)
    assert links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def readme_hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_addresses_stand_for_paths_of_the_repository() -> None:
    hook = readme_hook()
    page = "[a](docs/x.md#y) [b](https://x.org/) [c](#here) ![d](e.png)"
    assert hook.absolute(page) == (
        f"[a]({hook.SOURCE}docs/x.md#y) [b](https://x.org/) [c](#here) ![d]({hook.SOURCE}e.png)"
    )


@each_beside
def test_backends_depend_on_this_version(distribution: str) -> None:
    own = Version(metadata("bringup")["project"]["version"])
    needed = {
        r.name: r for r in map(Requirement, metadata(distribution)["project"]["dependencies"])
    }
    assert own in needed["bringup"].specifier
    assert Version(f"{own.major}.{own.minor + 1}") not in needed["bringup"].specifier


@each
def test_every_package_of_the_wheel_is_there_and_typed(distribution: str) -> None:
    for name, path in packages(distribution).items():
        assert (path / "__init__.py").is_file(), name
        assert (path / "py.typed").is_file(), name


@each
def test_entry_points_name_modules_of_the_same_wheel(distribution: str) -> None:
    project = metadata(distribution)["project"]
    backends = backends_of(distribution)
    assert bool(backends) == (distribution not in WITHOUT_BACKENDS)
    targets = [*backends.values(), *project.get("scripts", {}).values()]
    for target in targets:
        module = target.partition(":")[0].split(".")
        path = packages(distribution)[module[0]].joinpath(*module[1:])
        assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), target


@each
def test_a_backend_entry_point_is_a_module_not_an_object(distribution: str) -> None:
    for target in backends_of(distribution).values():
        assert ":" not in target


def test_the_base_distribution_holds_core_cpu_and_suite() -> None:
    assert set(packages("bringup")) == {"bringup", "bringup_cpu", "bringup_conformance"}
    assert metadata("bringup")["project"]["scripts"] == {
        "bringup": "bringup.cli:main",
        "conformance": "bringup_conformance.cli:main",
    }


def test_no_device_name_is_taken_twice() -> None:
    names = [
        n for d in FOLDERS for n in metadata(d)["project"].get("entry-points", {}).get(GROUP, ())
    ]
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

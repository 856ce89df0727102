"""What backends use of core stays: by a list of all of it, and by a backend that was built once."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pydoc
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import seam

from bringup.backend import API_LEVEL

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
WHEEL = HERE / "bringup_level1-1-py3-none-any.whl"
POLICY = ROOT / "docs/reference/stability.md"


def test_nothing_of_this_level_has_gone_or_is_narrower() -> None:
    problems = seam.narrowed(seam.listed(), seam.current())
    assert problems == [], f"this needs API level {API_LEVEL + 1}, see docs/reference/stability.md"


def test_what_is_new_is_listed() -> None:
    assert seam.current() == seam.listed(), "run python core/tests/backend/seam.py"


def test_the_list_is_whole() -> None:
    said = seam.listed()
    assert len(said) > 400
    assert said["bringup.backend.claims"].startswith("function (names: Iterable[str], dtypes: ")
    assert said["bringup.backend.Device.alloc"] == (
        "abstract implemented method (self, nbytes: int) -> Handle"
    )
    assert said["bringup.backend.Capabilities.simulated"] == "field bool"
    assert said["bringup.loops.Func.content"] == "property"


@pytest.mark.parametrize("name", seam.SEAM)
def test_help_tells_of_every_name(name: str) -> None:
    module = importlib.import_module(name)
    page = pydoc.plain(pydoc.render_doc(module))
    for each in seam.SEAM[name] or module.__all__:
        assert re.search(rf"\b{each}\b", page), each
        value = getattr(module, each)
        if inspect.isroutine(value) or inspect.isclass(value):
            assert inspect.getdoc(value), each


OLD = {
    "m.C": "class (a: int, b: str = ...) -> None",
    "m.C.x": "field int",
    "m.f": "function (x: int, *, y: int = ...) -> str",
    "m.D": "abstract class",
    "m.D.run": "abstract implemented method (self, n: int) -> None",
}


@pytest.mark.parametrize(
    ("path", "new", "what"),
    [
        ("m.f", None, "m.f is gone"),
        ("m.C.x", "field str", "m.C.x was field int, and is field str"),
        ("m.C.x", "property", "m.C.x was"),
        ("m.f", "function (z: int, *, y: int = ...) -> str", "m.f was"),
        ("m.f", "function (x: int, *, y: int) -> str", "m.f was"),
        ("m.f", "function (x: int) -> str", "m.f was"),
        ("m.f", "function (*, x: int, y: int = ...) -> str", "m.f was"),
        ("m.f", "function (x: int, z: int, *, y: int = ...) -> str", "m.f was"),
        ("m.f", "function (x: str, *, y: int = ...) -> str", "m.f was"),
        ("m.f", "function (x: int, *, y: int = ...) -> bytes", "m.f was"),
        ("m.C", "class (b: str = ..., a: int = ...) -> None", "m.C was"),
        ("m.D.run", "abstract implemented method (self, n: int, m: int = ...) -> None", "m.D.run"),
        ("m.D.stop", "abstract implemented method (self) -> None", "m.D.stop has to be written"),
    ],
)
def test_what_narrows(path: str, new: str | None, what: str) -> None:
    after = {k: v for k, v in ({**OLD, path: new}).items() if v is not None}
    (problem,) = seam.narrowed(OLD, after)
    assert problem.startswith(what)


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("m.g", "function () -> None"),
        ("m.f", "function (x: int, y: int = ...) -> str"),
        ("m.f", "function (x: int = ..., *, y: int = ..., z: int = ...) -> str"),
        ("m.C", "class (a: int, b: str = ..., c: bool = ...) -> None"),
        ("m.D.run", "implemented method (self, n: int) -> None"),
        ("m.D.stop", "implemented method (self) -> None"),
        ("m.E", "abstract class"),
        ("m.E.run", "abstract implemented method (self) -> None"),
    ],
)
def test_what_does_not(path: str, new: str) -> None:
    assert seam.narrowed(OLD, {**OLD, path: new}) == []


def test_the_policy_names_the_modules() -> None:
    text = POLICY.read_text("utf-8")
    for module in seam.SEAM:
        assert f"`{module}`" in text


def imported(text: str) -> set[str]:
    """``module.name`` for each name of core that a source imports."""
    found = set()
    for module, several, one in re.findall(
        r"^from (bringup[\w.]*) import (?:\(([^)]*)\)|(.*))$", text, re.MULTILINE
    ):
        found |= {f"{module}.{name}" for name in re.findall(r"\w+", several or one)}
    return found


def test_what_new_backends_import_is_listed(tmp_path: Path) -> None:
    from bringup.cli import new

    said = seam.listed()
    for depth, language in (
        ("ops", ""),
        ("programs", ""),
        ("loops", ""),
        ("loops", "c"),
        ("loops", "hip"),
    ):
        names = new.Names.of("Acme X1")
        files = new.generate(tmp_path / f"{depth}{language}", names, depth, language)
        sources = [
            f.read_text("utf-8") for f in files if names.module in f.parts and f.suffix == ".py"
        ]
        used = {
            name
            for name in set().union(*map(imported, sources))
            if not name.startswith((names.module, "bringup.errors"))
        }
        assert used
        assert {name for name in used if name not in said} == set()


def test_the_wheel_is_what_stands_beside_it() -> None:
    with zipfile.ZipFile(WHEEL) as wheel:
        packed = {n: wheel.read(n).decode() for n in wheel.namelist() if n.endswith(".py")}
        (metadata,) = [n for n in wheel.namelist() if n.endswith("entry_points.txt")]
        entries = wheel.read(metadata).decode()
    beside = {
        str(file.relative_to(HERE / "level1")): file.read_text("utf-8")
        for file in (HERE / "level1").rglob("*.py")
    }
    assert packed == beside
    assert "level1-loops = bringup_level1.loops" in entries
    assert all("api=(1, 1)" in text for name, text in packed.items() if name.endswith("memory.py"))


@pytest.mark.parametrize("depth", ["ops", "kernels", "loops", "program"])
def test_a_backend_of_level_1_goes_on_working(depth: str, tmp_path: Path) -> None:
    path = os.pathsep.join([str(WHEEL), *(entry for entry in sys.path if entry)])
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error::DeprecationWarning:bringup", "-m"),
            *("bringup_conformance", "run", f"--backend=level1-{depth}", "--level", "smoke"),
            "--json",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "BRINGUP_OPT": "0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout)
    assert counts["passed"] > 40
    assert counts["failed"] == 0

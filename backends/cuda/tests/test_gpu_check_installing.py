"""What gpu_check packs, installs and compiles."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import gpu_check
import pytest
from gpu_checks import installing, packing, running


def _wheel(folder: Path, name: str, files: dict[str, str]) -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return path


def _packed(folder: Path, wheels: list[Path], python: str) -> Path:
    entries = packing._write_site(folder / packing.SITE, wheels)
    manifest = {
        "python": python, "machine": "x", "commit": "abc", "pycuda": "pycuda-1.tar.gz",
        "distributions": entries,
    }  # fmt: skip
    (folder / packing.MANIFEST).write_text(json.dumps(manifest))
    return folder


def test_wheels_are_unpacked_and_what_others_were_built_against_is_not(tmp_path: Path) -> None:
    wheels = [
        _wheel(tmp_path, "Some_Thing", {"some/thing.py": "x = 1", "some/data": "y"}),
        _wheel(tmp_path, "numpy", {"numpy/__init__.py": ""}),
    ]
    packed = _packed(tmp_path, wheels, "3")
    manifest = json.loads((packed / packing.MANIFEST).read_text())
    rows = installing._unpack(packed, tmp_path / "site", manifest)
    numpy = metadata.version("numpy")
    assert [(row["name"], row["how"]) for row in rows] == [
        ("some-thing", "unpacked"), ("numpy", f"{numpy} was there"),
    ]  # fmt: skip
    unpacked = sorted(p.name for p in (tmp_path / "site").rglob("*") if p.is_file())
    assert unpacked == ["data", "thing.py"]


def test_a_folder_for_another_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"packed for Python 2\.7, this is 3"):
        installing.install(_packed(tmp_path, [], "2.7"), tmp_path / "site")


def test_what_is_packed_is_what_the_package_needs() -> None:
    needed = packing.requirements()
    assert any(each.startswith("llvmlite") for each in needed)
    assert {"mako", "pytools"} <= set(needed)


def _toolkit(folder: Path, text: str = "", names: Sequence[str] = packing.HEADERS) -> Path:
    (folder / "include").mkdir(parents=True)
    for name in names:
        (folder / "include" / name).write_text(text)
    return folder


def test_a_toolkit_has_all_that_pycuda_includes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frameworks bring cuda.h alone."""
    lacks = _toolkit(tmp_path / "lacks", names=["cuda.h"])
    whole = _toolkit(tmp_path / "whole")
    monkeypatch.setenv("CUDA_HOME", str(lacks))
    monkeypatch.setenv("CUDA_ROOT", str(whole))
    assert installing.find_toolkit() == whole


def test_packed_headers_come_before_those_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    built: list[Path | None] = []
    monkeypatch.setattr(installing, "_installed", lambda name: None)
    monkeypatch.setattr(installing, "build_pycuda", lambda source, site, kit: built.append(kit))
    packed = _packed(tmp_path, [], version)
    installing.install(packed, tmp_path / "site")
    installing.install(_toolkit(packed), tmp_path / "site")
    assert built == [None, packed]


def test_the_packed_folder_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts run in the checkout."""
    asked: list[running.Run] = []
    monkeypatch.setattr(running, "run", lambda run, parts: asked.append(run) or 0)
    monkeypatch.chdir(tmp_path)
    assert gpu_check.main(["run", "--packed", "packed", "--results", str(tmp_path)]) == 0
    assert asked[0].packed == tmp_path.resolve() / "packed"


_SETUP = """
from setuptools import Extension, setup
config = {}
exec(open("siteconf.py").read(), config)
assert config["CUDA_ENABLE_CURAND"] is False
setup(name="pycuda", version="1", packages=["pycuda"], ext_package="pycuda", ext_modules=[
    Extension("_driver", ["one.c", "two.c"], libraries=["cuda"],
              include_dirs=[config["CUDA_ROOT"] + "/include"])])
"""
_ONE = """
#include <Python.h>
#include <cuda.h>
int two(void);
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_driver", 0, -1, 0};
PyMODINIT_FUNC PyInit__driver(void) {
    PyObject *made = PyModule_Create(&module);
    PyModule_AddIntConstant(made, "number", CUDA_VERSION + two());
    return made;
}
"""


def test_a_source_with_an_extension_is_built_against_the_toolkit_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("setuptools")
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if shutil.which(os.environ.get("CC", "cc")) is None or not headers.is_file():
        pytest.skip("no compiler, or no headers of Python")
    tree = tmp_path / "pycuda-1"
    (tree / "pycuda").mkdir(parents=True)
    for name, text in {
        "setup.py": _SETUP, "one.c": _ONE, "two.c": "int two(void) { return 2; }",
        "pycuda/__init__.py": "",
    }.items():  # fmt: skip
        (tree / name).write_text(text)
    with tarfile.open(tmp_path / "pycuda-1.tar.gz", "w:gz") as archive:
        archive.add(tree, tree.name)
    toolkit = _toolkit(tmp_path / "toolkit", "#define CUDA_VERSION 13000\n")
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    installing.build_pycuda(tmp_path / "pycuda-1.tar.gz", tmp_path / "site")
    (made,) = (tmp_path / "site" / "pycuda").glob("_driver*.so")
    # The name that is linked against is the driver's own, so that any driver serves.
    assert installing.LIBRARY_OF_DRIVER.encode() in made.read_bytes()
    asked = [
        sys.executable,
        "-c",
        "from importlib.metadata import version as v; print(v('pycuda'))",
    ]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_a_build_that_fails_says_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("no compiler")
    tree = tmp_path / "pycuda-1"
    tree.mkdir()
    (tree / "setup.py").write_text("raise SystemExit('no such header')")
    with tarfile.open(tmp_path / "pycuda-1.tar.gz", "w:gz") as archive:
        archive.add(tree, tree.name)
    monkeypatch.setenv("CUDA_HOME", str(_toolkit(tmp_path)))
    with pytest.raises(RuntimeError, match="no such header"):
        installing.build_pycuda(tmp_path / "pycuda-1.tar.gz", tmp_path / "site")

"""Installing a packed folder into one of its own, without a network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_checks import packing
from gpu_checks.packing import HEADERS, MANIFEST, SITE

if TYPE_CHECKING:
    from gpu_checks.work import Task

#: Where toolkits are found; the first that has the headers is taken.
TOOLKITS = ("CUDA_HOME", "CUDA_ROOT", "CUDA_PATH")
#: Distributions that are taken from the machine, where others were built against them, from this
#: major version on.
SHARED = {"numpy": 2}
LIBRARY_OF_DRIVER = "libcuda.so.1"

# distutils compiles one file after the other, and pycuda's sources are sixty.
_BUILD = """
import os, runpy, sys
from concurrent.futures import ThreadPoolExecutor
import setuptools
from distutils import ccompiler

def compile(self, sources, output_dir=None, macros=None, include_dirs=None, debug=0,
            extra_preargs=None, extra_postargs=None, depends=None):
    macros, objects, extra, flags, build = self._setup_compile(
        output_dir, macros, include_dirs, sources, depends, extra_postargs)
    options = self._get_cc_args(flags, debug, extra_preargs)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda one: self._compile(one, *build[one], options, extra, flags),
                      [one for one in objects if one in build]))
    return objects

ccompiler.CCompiler.compile = compile
sys.path.insert(0, os.getcwd())
runpy.run_path("setup.py", run_name="__main__")
"""


def install(folder: Path, site: Path) -> list[dict[str, Any]]:
    """Put what the machine lacks into ``site``; what was done, a row for each thing.

    Raises RuntimeError with the build's last words.
    """
    manifest = json.loads((folder / MANIFEST).read_text())
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if manifest["python"] != running:
        raise RuntimeError(f"packed for Python {manifest['python']}, this is {running}")
    rows = _unpack(folder, site, manifest)
    if _installed("pycuda"):
        return [*rows, {"name": "pycuda", "how": "was there"}]
    build_pycuda(folder / manifest["pycuda"], site, folder if _has_headers(folder) else None)
    return [*rows, {"name": "pycuda", "how": "built"}]


def _unpack(folder: Path, site: Path, manifest: dict[str, Any]) -> list[dict[str, Any]]:
    wanted: set[str] = set()
    rows = []
    for entry in manifest["distributions"]:
        there = _installed(entry["name"])
        least = SHARED.get(entry["name"])
        leak = least is not None and there is not None and int(there.split(".")[0]) >= least
        how = f"{there} was there" if leak else "unpacked"
        rows.append({"name": entry["name"], "version": entry["version"], "how": how})
        if not leak:
            wanted.update(entry["files"])
    site.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / SITE) as archive:
        _write_inside_only(archive)
        for member in archive:
            if member.name in wanted:
                archive.extract(member, site)
    return rows


def _write_inside_only(archive: tarfile.TarFile) -> None:
    """Refuse members that lie outside the folder; Python 3.11 can do so from 3.11.4 on."""
    archive.extraction_filter = getattr(tarfile, "data_filter", None)


def build_pycuda(source: Path, site: Path, toolkit: Path | None = None) -> None:
    """Compile pycuda's source into ``site``.

    toolkit: the folder whose ``include`` has the headers; one of this machine if None.
    Boost comes with it.  curand is left out: nothing here uses it, and its header is a wheel of its
    own.  Raises RuntimeError.
    """
    options = ["build", "--build-lib", str(site), "egg_info", "--egg-base", str(site)]
    _compile(source, toolkit or find_toolkit(), options, [site])


def install_pycuda() -> None:
    """Compile pycuda and install it into this interpreter's environment, with the toolkit's headers
    or, without one, those of NVIDIA's wheels.  Needs a network.  Raises RuntimeError.
    """
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        source = packing.download_pycuda(folder)
        try:
            toolkit = find_toolkit()
        except RuntimeError:
            packing.download_headers(folder)
            toolkit = folder
        tools = folder / "tools"
        packing.pip("install", "--target", str(tools), "setuptools", "wheel")
        _compile(source, toolkit, ["bdist_wheel", "--dist-dir", text], [tools])
        packing.pip("install", str(next(folder.glob("pycuda-*.whl"))))


def _compile(source: Path, toolkit: Path, options: list[str], places: list[Path]) -> None:
    """places: of modules that setup.py needs."""
    with tempfile.TemporaryDirectory() as text:
        work = Path(text)
        with tarfile.open(source) as archive:
            _write_inside_only(archive)
            archive.extractall(work)
        tree = next(path for path in work.iterdir() if (path / "setup.py").is_file())
        (tree / "siteconf.py").write_text(
            f"CUDA_ENABLE_CURAND = False\nCUDA_ROOT = {str(toolkit)!r}\n"
        )
        (work / "build.py").write_text(_BUILD)
        environment = {**os.environ, "LIBRARY_PATH": str(_linkable(work))}
        # The stub defines nothing, so that a linker that drops what is not needed would drop it.
        environment["LDFLAGS"] = "-Wl,--no-as-needed " + os.environ.get("LDFLAGS", "")
        before = [*map(str, places), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, before))
        done = subprocess.run(
            [sys.executable, str(work / "build.py"), "-q", *options],
            cwd=tree, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"pycuda does not build:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")


def find_toolkit() -> Path:
    """The folder whose ``include`` has what pycuda needs.  Raises RuntimeError."""
    named = [Path(os.environ[name]) for name in TOOLKITS if name in os.environ]
    compiler = shutil.which("nvcc")
    if compiler is not None:
        named.append(Path(compiler).resolve().parents[1])
    beside = [Path("/usr/local/cuda"), *sorted(Path("/usr/local").glob("cuda-*"), reverse=True)]
    # Frameworks bring headers as wheels: nvidia/cu13 and nvidia/cuda_runtime.
    wheels = [p for s in sys.path for p in sorted(Path(s).glob("nvidia/cu*"), reverse=True)]
    for folder in (*named, *beside, *wheels):
        if _has_headers(folder):
            return folder
    wanted = " and ".join(HEADERS)
    raise RuntimeError(
        f"no toolkit: no include/ with {wanted} in CUDA_HOME, /usr/local/cuda or a wheel"
    )


def _has_headers(folder: Path) -> bool:
    return all((folder / "include" / name).is_file() for name in HEADERS)


def _linkable(work: Path) -> Path:
    """A folder with a ``libcuda.so`` that stands for the driver's library when linking.

    Drivers install it under the name programs load, toolkits keep a stub in varying places.
    """
    folder = work / "stub"
    folder.mkdir()
    (work / "stub.c").write_text("")
    subprocess.run(
        [
            os.environ.get("CC", "cc"), "-shared", f"-Wl,-soname,{LIBRARY_OF_DRIVER}",
            "-o", str(folder / "libcuda.so"), str(work / "stub.c"),
        ],
        check=True,
    )  # fmt: skip
    return folder


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def work(task: Task) -> bool:
    """The part ``install``."""
    if task.packed is None or task.site is None:
        raise ValueError("nothing to install from")
    for row in install(task.packed, task.site):
        task.row(**row)
    return True

"""The backend over the real pycuda, without a GPU: ``python …/with_pycuda/run.py``.

pycuda is compiled from its source, `libcuda/` in the place of the driver's library; then the tests
beside this file run on them, the suite's level smoke, and parts of ``gpu_check.py run``.
Needs a C++ compiler and, unless ``--folder`` was filled before, a network.  Exits with 1 if
anything failed.

bringup must be importable, with what its tests need; nothing is installed into its environment.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BACKEND = HERE.parents[1]
ROOT = BACKEND.parents[1]
sys.path[:0] = [str(BACKEND), str(BACKEND / "emulator"), str(HERE)]

import standin  # noqa: E402
from gpu_checks import installing, packing  # noqa: E402

#: What the registry has under the names of pycuda's needs, and what those need.
NEEDS = [*packing.PYCUDA_NEEDS, "typing-extensions"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="keep what is built here, and find it again")
    parser.add_argument("tests", nargs="*", help="arguments for pytest; then nothing else is run")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = (asked.folder or Path(text)).resolve()
        begin = time.monotonic()
        prepare(folder)
        _say(f"built in {time.monotonic() - begin:.0f} s: {folder}")
        environment = environment_of(folder, Path(text))
        good = True
        for command in commands(asked.tests, Path(text)):
            _say("$ " + " ".join(command))
            done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
            good = good and done.returncode == 0
    return 0 if good else 1


def commands(tests: list[str], work: Path) -> list[list[str]]:
    """What is run.  work: an empty folder."""
    python = sys.executable
    pytest = [python, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    if tests:
        return [[*pytest, *tests]]
    main = "import sys; from bringup_conformance.cli import main; sys.exit(main())"
    suite = [python, "-c", main, "run", "--backend=cuda", "--level=smoke"]
    check = [python, str(BACKEND / "gpu_check.py"), "run", "--quick", "--results", str(work)]
    check += ["--only", "programs,memory,matrices,calls"]
    return [[*pytest, str(HERE)], suite, check]


def prepare(folder: Path) -> None:
    """Build what is not there yet."""
    site = folder / "site"
    if not (folder / "include").is_dir():
        packing.download_headers(folder)
    if not (site / "pycuda").is_dir():
        packing.pip("install", "--no-compile", "--target", str(site), *NEEDS)
        source = packing.download_pycuda(folder)
        # Most of the time goes into optimising code that waits for a driver.
        os.environ["CFLAGS"] = "-O0 -g0 -w"
        installing.build_pycuda(source, site, folder)
    standin.build(folder / "lib", [folder / "include"])


def environment_of(folder: Path, work: Path) -> dict[str, str]:
    """Of an interpreter that finds both."""
    before = [str(folder / "site"), str(HERE), str(BACKEND), str(BACKEND / "emulator")]
    if os.environ.get("PYTHONPATH"):
        before.append(os.environ["PYTHONPATH"])
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(folder / "lib"),
        "PYTHONPATH": os.pathsep.join(before),
        "STANDIN_HOOKS": "standin_hooks",
        "XDG_CACHE_HOME": str(work / "cache"),
    }


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

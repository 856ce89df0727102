"""The plugin as if its distribution were installed, and NVIDIA's assembler where there is one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

# Helpers of the tests lie beside them.
sys.path.insert(0, str(Path(__file__).parent))

from assembling import OLDEST, WHEELS, Assemble, find_ptxas, release_of, run_ptxas
from distributions import write_metadata


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Metadata alone where the distributions are not installed.

    Gone after each module, so that the tests of others see the backends that are there.
    """
    try:
        metadata.distribution("bringup-cuda-emulator")
    except metadata.PackageNotFoundError:
        root = write_metadata(tmp_path_factory.mktemp("site"))
    else:
        yield
        return
    sys.path.append(str(root))
    # For the interpreters that tests start as well.
    here = Path(__file__).parents[1]
    found = [str(root), str(here), str(here / "emulator"), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, found)))
        yield
    sys.path.remove(str(root))


@pytest.fixture
def compiled_for(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """``compiled_for("translate")`` is a list, to which each call of that function of
    `codegen.lower` adds the architecture that it is called for.
    """
    from bringup_cuda.codegen import lower

    def watch(name: str) -> list[str]:
        architectures: list[str] = []
        function = getattr(lower, name)

        def noted(source: Any, architecture: str) -> Any:
            architectures.append(architecture)
            return function(source, architecture)

        monkeypatch.setattr(lower, name, noted)
        return architectures

    return watch


@pytest.fixture(scope="session")
def assemble() -> Assemble:
    """``assemble(ptx, architecture)`` fails the test if NVIDIA's assembler refuses the text.

    It reads and checks all of it without making it fast, which takes most of the time.
    It skips the test if there is no assembler, so it stands last in one.
    """
    ptxas, lacks = find_ptxas(), ""
    if ptxas is None:
        lacks = f"no ptxas on the path, and none of the wheels {', '.join(WHEELS)}"
    elif (release := release_of(ptxas)) < OLDEST:
        lacks = f"{ptxas} is of CUDA {release}, PTX 8.7 needs {OLDEST}"

    def run(text: str, architecture: str) -> None:
        if lacks:
            pytest.skip(lacks)
        done = run_ptxas(ptxas, text, architecture, "-O0")
        assert done.returncode == 0, f"{done.stderr}\n{text}"

    return run

"""NVIDIA's assembler, where there is one: on the path, or in a wheel."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

#: The wheels that bring the assembler.
WHEELS = ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu13", "nvidia-cuda-nvcc-cu12")
#: The first toolkit that reads the PTX version the plugin writes.
OLDEST = (12, 8)

Assemble = Callable[[str, str], None]


def find_ptxas() -> str | None:
    """Its path."""
    found = shutil.which("ptxas")
    if found is not None:
        return found
    for wheel in WHEELS:
        try:
            files = metadata.distribution(wheel).files or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name == "ptxas":
                return str(Path(str(file.locate())))
    return None


def run_ptxas(
    ptxas: str, text: str, architecture: str, *options: str
) -> subprocess.CompletedProcess[str]:
    """What the assembler says of a text; see ``returncode``."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / f"{architecture}.ptx"
        source.write_text(text)
        command = [ptxas, *options, f"-arch={architecture}", str(source), "-o", f"{source}.cubin"]
        return subprocess.run(command, capture_output=True, text=True, check=False)


def release_of(ptxas: str) -> tuple[int, int]:
    """Of which CUDA it is."""
    text = subprocess.run([ptxas, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"release (\d+)\.(\d+)", text)
    assert found is not None, text
    return int(found[1]), int(found[2])

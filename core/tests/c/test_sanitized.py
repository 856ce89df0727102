"""Rendered code has defined behaviour and stays within its buffers: gcc's sanitizers say so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from toolchain import compiler

_HERE = Path(__file__).parent
_FLAGS = "-O1 -fsanitize=undefined,address"


def _runtime(name: str) -> str:
    """The path of a library of the compiler, or nothing if it does not have it."""
    command = [*compiler(), f"-print-file-name={name}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    path = done.stdout.strip()
    return path if os.path.isabs(path) else ""


@pytest.mark.parametrize("tests", ["test_scalar.py", "test_kernels.py", "test_functions.py"])
def test_nothing_is_undefined(tests: str) -> None:
    """The same tests in another process, whose allocations the sanitizer watches."""
    libraries = [_runtime(name) for name in ("libasan.so", "libubsan.so")]
    if not all(libraries):
        pytest.skip("the compiler has no sanitizers that a process can load")
    env = {**os.environ, "BRINGUP_CC_FLAGS": _FLAGS, "LD_PRELOAD": " ".join(libraries)}
    env |= {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=0"}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-s", str(_HERE / tests)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    said = done.stdout + done.stderr
    assert "runtime error" not in said, said[-6000:]
    assert "AddressSanitizer" not in said, said[-6000:]
    assert done.returncode == 0, said[-6000:]

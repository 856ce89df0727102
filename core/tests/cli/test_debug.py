"""``BRINGUP_DEBUG`` tells more at each level, on standard error alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = "import bringup as bu\nprint(bu.jit(lambda x: bu.sum(x * 2))(bu.asarray([1.0, 2.0])))"


def told(level: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "BRINGUP_DEBUG": level},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "6.0\n"
    return done.stderr


@pytest.mark.parametrize(
    ("level", "program", "passes", "kernel", "source"),
    [
        ("0", False, False, False, False),
        ("1", True, False, False, False),
        ("2", True, True, False, False),
        ("3", True, True, True, False),
        ("4", True, True, True, True),
    ],
)
def test_what_each_level_tells(
    level: str, program: bool, passes: bool, kernel: bool, source: bool
) -> None:
    text = told(level)
    assert ("bringup.compiler: lambda: launches: 1, compiled in " in text) is program
    assert ("bringup.passes: lambda: dce: " in text) is passes
    assert ("kernel k0_mul_reduce\n" in text) is kernel
    assert ("source of lambda" in text) is source
    assert bool(text) is program

"""The simulator stands for hardware and its driver: it runs without bringup."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import bringup_simulator


def test_it_imports_nothing_of_bringup() -> None:
    modules = [
        f"bringup_simulator.{m.name}" for m in pkgutil.iter_modules(bringup_simulator.__path__)
    ]
    assert len(modules) > 5
    code = f"import sys; sys.modules['bringup'] = None; import {', '.join(modules)}"
    subprocess.run([sys.executable, "-c", code], check=True)

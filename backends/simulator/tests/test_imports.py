"""The simulator stands for hardware and its driver: all but its devices runs without bringup."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import bringup_simulator


def test_it_imports_nothing_of_bringup() -> None:
    modules = [
        f"bringup_simulator.{module.name}"
        for module in pkgutil.iter_modules(bringup_simulator.__path__)
        if module.name != "devices"
    ]
    assert len(modules) > 5
    code = f"import sys; sys.modules['bringup'] = None; import {', '.join(modules)}"
    # Where the tests found it, installed or not.
    path = str(Path(bringup_simulator.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)

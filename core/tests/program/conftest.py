"""Lets the tests of this folder import ``lowering``, and ``growing`` of the kernels' tests."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent / "kernel")]

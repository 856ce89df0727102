"""Lets the tests of this folder import what stands in it, beside it and in that of kernels."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE.parent / "kernel"), str(HERE), str(HERE.parent)]

"""Lets the tests of this folder import ``growing``, of the tests of kernels, ``schedules``, and
``library_cases`` beside the folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE.parent / "kernel"), str(HERE.parent), str(HERE)]

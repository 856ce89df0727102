"""Lets the tests of this folder import its helpers, what stands beside it, and ``growing`` of the
kernels' tests.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[1] / "kernel"))

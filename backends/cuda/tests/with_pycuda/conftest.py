"""These tests need the real pycuda over the stand-in for the driver's library: `run.py` has both.

Without, nothing here is collected.  With ``STANDIN_HOOKS`` set nothing is left out: what cannot be
imported then fails.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))

collect_ignore_glob = [] if os.environ.get("STANDIN_HOOKS") else ["*.py"]

if TYPE_CHECKING:
    from standin import StandIn


@pytest.fixture
def driver() -> Iterator[StandIn]:
    """The library; no context stays pushed in this thread."""
    from standin import StandIn

    made = StandIn()
    yield made
    assert made.depth() == 0

"""Lets the tests of this folder import its helpers, such as ``planted``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def two_faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a report on a device with two faults."""
    from small import run_two_faults

    folder = tmp_path_factory.mktemp("two")
    run_two_faults(folder)
    return folder

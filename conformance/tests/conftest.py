"""Lets the tests of this folder import its helpers, such as ``planted``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module", autouse=True)
def _selftest_for_children() -> Iterator[None]:
    """The interpreters that tests start find bringup_selftest too, which need not be installed."""
    found = [str(Path(__file__).parents[1] / "selftest"), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, found)))
        yield


@pytest.fixture(scope="module")
def two_faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a report on a device with two faults."""
    from small import run_two_faults

    folder = tmp_path_factory.mktemp("two")
    run_two_faults(folder)
    return folder

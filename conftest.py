"""Settings of every test run from this checkout."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from sybil import Example, Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

# Two runs of one commit must generate the same cases; deadlines measure the machine, not the code.
settings.register_profile(
    "bringup",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("bringup")

# Python blocks of the pages run as they stand; doctest itself stumbles over code fences.
pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()], patterns=["*.md"], excludes=["DESIGN.md"]
).pytest()


#: Blocks of pages that this process has run, by page and position.
_ran: set[tuple[str, int]] = set()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A block of a page builds on those before it, which another process may have run."""
    block = getattr(item, "example", None)
    if not isinstance(block, Example):
        return
    _ran.add((block.path, block.start))
    for earlier in block.document.examples():
        at = earlier.path, earlier.start
        if earlier.start < block.start and at not in _ran:
            _ran.add(at)
            earlier.evaluate()


@pytest.fixture(autouse=True)
def _names_of_examples(doctest_namespace: dict[str, object]) -> None:
    """Docstrings of public functions say ``bu`` for the package."""
    doctest_namespace["bu"] = importlib.import_module("bringup")


@pytest.fixture(autouse=True, scope="module")
def _no_programs_of_other_modules() -> Iterator[None]:
    """Thousands of programs on devices that are gone make every search for garbage slow."""
    yield
    importlib.import_module("bringup").clear_caches()


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run code in a new interpreter with a cache of the test's own; it must exit with 0.

    options: of the interpreter.  environment: on top of this process's; nothing of the SDK's own.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("BRINGUP_")}

    def run(
        code: str, *options: str, timeout: float = 60, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        env = {**inherited, "XDG_CACHE_HOME": str(tmp_path), **environment}
        done = subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", *options, "-c", code],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=env,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done

    return run

"""Settings of every test run from this checkout."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from sybil import Sybil
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


@pytest.fixture(autouse=True)
def _names_of_examples(doctest_namespace: dict[str, object]) -> None:
    """Docstrings of public functions say ``bu`` for the package."""
    doctest_namespace["bu"] = importlib.import_module("bringup")


@pytest.fixture(autouse=True, scope="module")
def _no_programs_of_other_modules() -> Iterator[None]:
    """Thousands of programs on devices that are gone make every search for garbage slow."""
    yield
    importlib.import_module("bringup").clear_caches()

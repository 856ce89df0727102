"""Each test has a cache of its own and looks for the compiler anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bringup.backend import NoHardware
from bringup_c import compiler


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cached = (compiler.command, compiler.version)  # a test may put others in their places
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.fixture
def installed() -> str:
    """What the compiler of this machine says of its version; skips where there is none."""
    try:
        return compiler.version()
    except NoHardware as error:
        pytest.skip(str(error))

"""Whole sources, in every dialect; `--snapshot-update` accepts what has changed."""

from __future__ import annotations

import pytest
from functions import MEETING, TEXTS
from syrupy.assertion import SnapshotAssertion

from bringup.c import DIALECTS, Dialect, render_c
from bringup.loops import parse_func


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("name", TEXTS)
def test_source(name: str, dialect: Dialect, snapshot: SnapshotAssertion) -> None:
    if name in MEETING and not dialect.has_threads:
        pytest.skip("the threads of this function meet")
    assert render_c(parse_func(TEXTS[name]), dialect) == snapshot

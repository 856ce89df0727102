"""The conformance suite's programs as PTX: some of them here, all of them by `suite_programs`."""

from __future__ import annotations

from pathlib import Path

import pytest
from suite_programs import ARCHITECTURES, cases, count, find_ptxas

#: One unit of the suite in so many, another one for each architecture.
EVERY = 480


@pytest.mark.parametrize("number", range(len(ARCHITECTURES)), ids=ARCHITECTURES)
def test_programs_are_lowered_and_assembled_without_spills(number: int, tmp_path: Path) -> None:
    architecture = ARCHITECTURES[number]
    found = cases("fusion", architecture, every=EVERY, seed=number)
    counts = count(found, architecture, tmp_path)
    assert counts.programs >= 5
    assert counts.kernels >= counts.programs
    assert not counts.refused
    assert not counts.spilling
    if find_ptxas() is None:
        pytest.skip(f"{counts.kernels} kernels were lowered, but there is no ptxas")
    assert counts.assembled >= counts.kernels

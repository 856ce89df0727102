"""Faults that only data, attributes and constants of the right kind show are found."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.backend.capabilities import Numerics
from bringup.dtypes import f8e4m3fn, f16, f32
from bringup.ops.table import lookup
from bringup_conformance.generate.recipes import Recipe, nan_patterns
from bringup_conformance.oracle import special
from bringup_conformance.selftest import watching
from bringup_conformance.selftest.corpus import faults
from bringup_conformance.selftest.killing import How

#: Faults by the cases that find them.
FOUND = {
    "ops/max/f32": "SV34a",
    "ops/convert/f64": "SV31a",
    "ops/argmax/f32": "SV36a",
    "ops/transpose/f32": "SV38a",
}


@pytest.mark.parametrize("only", FOUND)
def test_faults_are_found_by_the_cases_of_their_rows(only: str) -> None:
    wanted = FOUND[only].split()
    chosen = [fault for fault in faults() if fault.id in wanted]
    how = How(only.split("/")[0], simulated=False, only=only, shrink_seconds=0)
    found = {row.id: row.killed for row in watching.examined(chosen, how, 1)}
    assert found == dict.fromkeys(wanted, True)


def test_nan_has_every_sort_of_payload_and_both_signs() -> None:
    made = Recipe("nans", 0).make(f32[500])
    bits = made.view(np.uint32)[np.isnan(made)]
    assert {0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF} <= set(bits.tolist())
    quiet = bits & 0x400000 != 0
    assert 0.2 < quiet.mean() < 0.9
    assert len(set(bits.tolist())) > 40
    words = np.arange(8, dtype=np.uint64)
    for dtype in (f16, f8e4m3fn):
        for patterns in nan_patterns(dtype, words):
            assert np.isnan(patterns.view(dtype.numpy)).all()


def test_cells_about_nan_hold_for_every_pattern() -> None:
    (cells,) = (
        each
        for each in special.groups(lookup("convert"), f32, Numerics(), 4)
        if ("nan",) in [cell.operands for cell in each.cells]
        and dict(each.cells[0].attrs)["dtype"] is f16
    )
    (column,) = special.operands(cells, f32)
    at = [cell.operands for cell in cells.cells].index(("nan",))
    found = column[at :: len(cells.cells)]
    assert np.isnan(found).all()
    assert len(set(found.view(np.uint32).tolist())) >= 4
